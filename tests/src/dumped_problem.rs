//! The problem of a parallel plan as `hlo-opt plan parallel --dump-problem` writes it, read by a program that knows nothing of the search:
//! what is claimed is added up again.

use serde_json::Value;

/// What a file claims, and what it adds up to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedProblem {
    /// Devices along each axis of the mesh.
    pub mesh: Vec<i64>,
    /// The plan's cost as claimed, in picoseconds.
    pub cost: i64,
    /// The claimed bound, in picoseconds.
    pub bound: i64,
    /// The cost of the assignment, added up from the lists and tables.
    pub summed: i64,
    /// Limits of memory, each with what the assignment takes of it, in bytes.
    pub limits: Vec<(u64, u64)>,
    /// A bound that needs no search: the least of each list and of each table.
    pub least: i64,
}

impl DumpedProblem {
    /// Reads a file's text and adds up what it claims.
    ///
    /// # Errors
    /// What was expected where, if the text is not as described or the assignment takes what is not allowed.
    pub fn read(text: &str) -> Result<DumpedProblem, String> {
        let dump: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let field = |name: &str| dump.get(name).ok_or_else(|| format!("expected `{name}`"));
        let list = |name: &str| field(name)?.as_array().ok_or_else(|| format!("{name}: expected a list"));
        let number = |value: &Value, what: &str| {
            value.as_i64().ok_or_else(|| format!("{what}: expected a number, found {value}"))
        };
        if field("unit")? != "picoseconds" {
            return Err(format!("unit: expected picoseconds, found {}", field("unit")?));
        }
        let assignment = list("assignment")?;
        let state = |variable: usize| assignment.get(variable).and_then(Value::as_u64).map(|state| state as usize);
        let at = |index: Option<usize>, values: &Value, what: &str| -> Result<Value, String> {
            let found = index.and_then(|index| values.get(index)).cloned();
            found.ok_or_else(|| format!("{what}: the assignment names a state that there is not"))
        };
        let least = |values: &mut dyn Iterator<Item = &Value>, what: &str| {
            values.filter_map(Value::as_i64).min().ok_or_else(|| format!("{what}: expected an allowed state"))
        };
        let (mut summed, mut bound_of_lists) = (0i64, 0i64);
        for (k, variable) in list("variables")?.iter().enumerate() {
            let what = format!("variable {k}");
            let costs = variable.get("costs").ok_or_else(|| format!("{what}: expected costs"))?;
            let states = variable.get("states").and_then(Value::as_array).map(Vec::len);
            if states != costs.as_array().map(Vec::len) {
                return Err(format!("{what}: expected a cost for each state"));
            }
            summed += number(&at(state(k), costs, &what)?, &what)?;
            bound_of_lists += least(&mut costs.as_array().into_iter().flatten(), &what)?;
        }
        let tables = list("tables")?;
        let least_of: Vec<i64> = tables
            .iter()
            .map(|rows| {
                least(
                    &mut rows.as_array().into_iter().flatten().flat_map(|row| row.as_array().into_iter().flatten()),
                    "table",
                )
            })
            .collect::<Result<_, String>>()?;
        for (k, pair) in list("pairs")?.iter().enumerate() {
            let what = format!("pair {k}");
            let part = |i: usize| {
                pair.get(i)
                    .and_then(Value::as_u64)
                    .map(|x| x as usize)
                    .ok_or_else(|| format!("{what}: expected three numbers"))
            };
            let (a, b, table) = (part(0)?, part(1)?, part(2)?);
            let rows = tables.get(table).ok_or_else(|| format!("{what}: there is no table {table}"))?;
            summed += number(&at(state(b), &at(state(a), rows, &what)?, &what)?, &what)?;
            bound_of_lists += least_of[table];
        }
        let mut limits = Vec::new();
        for (k, constraint) in list("constraints")?.iter().enumerate() {
            let what = format!("constraint {k}");
            let limit = constraint.get("limit").and_then(Value::as_u64);
            let terms = constraint.get("terms").and_then(Value::as_array);
            let (Some(limit), Some(terms)) = (limit, terms) else {
                return Err(format!("{what}: expected a limit and terms"));
            };
            let mut taken = 0u64;
            for term in terms {
                let variable = term.get(0).and_then(Value::as_u64).map(|variable| variable as usize);
                let bytes = at(variable.and_then(state), term.get(1).unwrap_or(&Value::Null), &what)?;
                taken += bytes.as_u64().ok_or_else(|| format!("{what}: expected bytes, found {bytes}"))?;
            }
            limits.push((limit, taken));
        }
        let mesh = list("mesh")?.iter().map(|size| number(size, "mesh")).collect::<Result<_, String>>()?;
        let (cost, bound) = (number(field("cost")?, "cost")?, number(field("bound")?, "bound")?);
        Ok(DumpedProblem { mesh, cost, bound, summed, limits, least: bound_of_lists })
    }

    /// What is wrong with the claims.
    ///
    /// # Errors
    /// The cost is not the sum, a limit of memory is exceeded, or the bound lies above the cost or below what needs no search.
    pub fn check(&self) -> Result<(), String> {
        let &DumpedProblem { cost, bound, summed, least, .. } = self;
        if summed != cost {
            return Err(format!("expected a cost of {summed} ps, the sum of what the plan takes, found {cost}"));
        }
        if let Some((limit, taken)) = self.limits.iter().find(|(limit, taken)| taken > limit) {
            return Err(format!("expected at most {limit} bytes of memory, found {taken}"));
        }
        match least <= bound && bound <= cost {
            true => Ok(()),
            false => Err(format!("expected a bound between {least} and {cost} ps, found {bound}")),
        }
    }
}
