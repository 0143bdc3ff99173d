//! `reduce`: a loop over the reduced elements, in one thread or dealt out to a team; and how accumulators are combined.

use hlo_ir::arg_extremum::{ArgExtremum, find_arg_extremum};
use hlo_ir::attrs::Attrs;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, DType, InstId, Instruction, NumberClass, Opcode, Scalar};
use smallvec::SmallVec;

use super::dtype::CType;
use super::emitter::{Atom, Element, Emitted, Emitter, FrameId, Index, ScopeKind, Value};
use super::places::Places;
use super::structure;
use super::table::{Rule, rule};
use super::team::Team;
use super::team_join;
use crate::GpuError;

/// How accumulators and values become new accumulators.
pub(super) struct Combiner {
    comp: CompId,
    /// The prelude's function, if the computation is that function of its two parameters.
    plain: Option<String>,
    monoid: Option<Monoid>,
    /// The argmax or argmin that it is.
    extremum: Option<ArgExtremum>,
    pub ctypes: Vec<CType>,
}

impl Combiner {
    /// The combiner of arrays of these element types by `comp`.
    pub(super) fn new(e: &Emitter<'_>, comp: CompId, dtypes: &[DType]) -> Combiner {
        let ctypes = dtypes.iter().map(|&dtype| CType::of(dtype)).collect();
        let computation = e.module.comp(comp);
        let root = computation.root.expand().map(|root| e.module.inst(root));
        let monoid = find_monoid(e.module, comp);
        let is_applied = |root: &&Instruction| monoid.is_some() || root.operands.as_slice() == computation.params;
        let applied = root.filter(|_| computation.params.len() == 2).filter(is_applied);
        let plain = applied.and_then(|root| match rule(root.opcode) {
            Rule::Function(name) => Some(name),
            Rule::Code(_) | Rule::Refused(_) => None,
        });
        Combiner { comp, plain, monoid, extremum: find_arg_extremum(e.module, comp), ctypes }
    }

    /// Whether `init` changes nothing that it is combined with.
    fn is_neutral(&self, init: &str) -> bool {
        let [ctype] = self.ctypes.as_slice() else { return false };
        let is_float = ctype.dtype.is_float();
        let literal = |x: Scalar| ctype.literal(x) == init;
        let zero = || {
            literal(Scalar::Float(0.0)) && is_float
                || literal(Scalar::Int(0))
                || literal(Scalar::Uint(0))
                || literal(Scalar::Pred(false))
        };
        match self.monoid {
            Some(Monoid::Add | Monoid::Or) => zero(),
            Some(Monoid::Multiply) => is_float && literal(Scalar::Float(1.0)),
            Some(Monoid::And) => literal(Scalar::Pred(true)),
            Some(Monoid::Maximum) if is_float => literal(Scalar::Float(f64::NEG_INFINITY)),
            Some(Monoid::Maximum) => literal(lowest_integer(ctype.dtype)),
            Some(Monoid::Minimum) => is_float && literal(Scalar::Float(f64::INFINITY)),
            None => false,
        }
    }

    /// Whether elements may be dealt out to parts that are joined afterwards, with `inits` in every part. For an argmax any
    /// initial value will do: a pair that takes part several times changes nothing.
    pub(super) fn may_split(&self, inits: &[Value]) -> bool {
        self.extremum.is_some() || matches!(inits, [init] if self.is_neutral(&init.text))
    }

    /// Where parts take turns with the elements and the order of elements makes a difference: the combiner of which an
    /// accumulator's position must be known.
    pub(super) fn ordered(&self) -> Option<ArgExtremum> {
        self.extremum.filter(|extremum| extremum.is_float)
    }

    /// Writes `accumulators = f(accumulators, values)`. Sums of small floats stay in `f32` until they are finished.
    pub(super) fn combine(
        &self,
        e: &mut Emitter<'_>,
        accumulators: &[Value],
        values: &[Value],
    ) -> Result<(), GpuError> {
        if let (Some(name), [a], [x]) = (&self.plain, accumulators, values) {
            e.line(format!("{0} = hlo::{name}({0}, {1});", a.text, x.text));
            return Ok(());
        }
        self.combine_rounded(e, accumulators, values)
    }

    /// As [`Combiner::combine`], with every step rounded to the element type.
    pub(super) fn combine_rounded(
        &self,
        e: &mut Emitter<'_>,
        accumulators: &[Value],
        values: &[Value],
    ) -> Result<(), GpuError> {
        let args: Vec<Value> = accumulators.iter().chain(values).cloned().collect();
        self.assign(e, accumulators, &args)
    }

    /// Writes `accumulators = f(args)`.
    pub(super) fn assign(&self, e: &mut Emitter<'_>, accumulators: &[Value], args: &[Value]) -> Result<(), GpuError> {
        let results = e.apply(self.comp, args)?;
        // A result that is itself an accumulator must be read before any is written.
        let copies: Vec<String> = results
            .iter()
            .zip(&self.ctypes)
            .map(
                |(result, ctype)| {
                    if results.len() > 1 { e.constant(ctype.held, &result.text).text } else { result.text.clone() }
                },
            )
            .collect();
        for (accumulator, copy) in accumulators.iter().zip(copies) {
            e.line(format!("{} = {copy};", accumulator.text));
        }
        Ok(())
    }

    /// One accumulator for each operand, starting from `inits`.
    pub(super) fn start(&self, e: &mut Emitter<'_>, inits: &[Value]) -> Vec<Value> {
        self.ctypes.iter().zip(inits).map(|(ctype, init)| e.variable(ctype.held, &init.text)).collect()
    }

    /// The accumulators as values of their element types; those of other leaves than `leaf` are remembered.
    pub(super) fn finish(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        inst: InstId,
        leaf: usize,
        index: &[Atom],
        accumulators: &[Value],
    ) -> Result<Value, GpuError> {
        let mut found = None;
        for (i, (accumulator, ctype)) in accumulators.iter().zip(&self.ctypes).enumerate() {
            let rounded = ctype.rounded(&accumulator.text);
            let value =
                if rounded == accumulator.text { accumulator.clone() } else { e.constant(ctype.held, &rounded) };
            if i == leaf {
                found = Some(value);
            } else {
                e.remember(frame, inst, i, index, value);
            }
        }
        found.ok_or_else(|| e.unsupported(inst, format!("expected a result leaf {leaf}")))
    }
}

/// The lowest value of an integer type; false for `pred`.
fn lowest_integer(dtype: DType) -> Scalar {
    match dtype.class() {
        NumberClass::Signed => Scalar::Int(i64::MIN >> (64 - dtype.bits())),
        NumberClass::Unsigned => Scalar::Uint(0),
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => Scalar::Pred(false),
    }
}

/// The arrays and initial values of a reduction, and its combiner.
pub(super) struct Reduced {
    pub operands: Vec<InstId>,
    pub inits: Vec<Value>,
    pub combiner: Combiner,
}

impl Reduced {
    /// Reads a `reduce` or `reduce-window`: operands, then as many initial values.
    pub(super) fn new(
        e: &mut Emitter<'_>,
        frame: FrameId,
        inst: InstId,
        comp: Option<CompId>,
    ) -> Result<Reduced, GpuError> {
        let comp = comp.ok_or_else(|| e.unsupported(inst, "expected a computation to reduce by"))?;
        let all = &e.module.inst(inst).operands;
        let (operands, inits) = all.split_at(all.len() / 2);
        let mut dtypes = Vec::new();
        for &operand in operands {
            dtypes.push(e.leaf_shape(operand, 0)?.dtype);
        }
        let combiner = Combiner::new(e, comp, &dtypes);
        // A constant is known even where it is passed as an argument; only a known one lets a reduction be split.
        let value = |&init: &InstId| {
            let is_constant = e.module.inst(init).opcode == Opcode::Constant;
            if is_constant {
                structure::constant(e, Element { frame, inst: init, leaf: 0, index: &[] })
            } else {
                e.value(frame, init, 0, &[])
            }
        };
        let inits = inits.iter().map(value).collect::<Result<Vec<Value>, GpuError>>()?;
        Ok(Reduced { operands: operands.to_vec(), inits, combiner })
    }

    /// The operands' elements at an index.
    pub(super) fn values(&self, e: &mut Emitter<'_>, frame: FrameId, index: &[Atom]) -> Result<Vec<Value>, GpuError> {
        self.operands.iter().map(|&operand| e.value(frame, operand, 0, index)).collect()
    }
}

/// The dims that a `reduce` takes away, the slowest in memory first.
pub(super) fn reduced_dims(e: &Emitter<'_>, inst: InstId) -> Result<SmallVec<[usize; 4]>, GpuError> {
    let Attrs::Reduce(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected dims to reduce"));
    };
    let order = e.operand_shape(inst, 0)?.physical_order();
    Ok(order.into_iter().rev().filter(|&dim| attrs.dimensions.contains(&(dim as i64))).collect())
}

/// Joins the accumulators of a team's threads; `places` are those where they were found, if these decide between equal ones.
fn join(
    e: &mut Emitter<'_>,
    combiner: &Combiner,
    accumulators: &[Value],
    team: Team,
    places: Option<&Places>,
) -> Result<(), GpuError> {
    let held = accumulators.iter().cloned().zip(combiner.ctypes.iter().map(|ctype| ctype.held));
    let held: Vec<(Value, &'static str)> = held.chain(places.map(Places::held)).collect();
    team_join::join(team, e, &held, &mut |e, others| match places {
        Some(places) => places.join(e, combiner, accumulators, others),
        None => combiner.combine(e, accumulators, others),
    })
}

pub(super) fn reduce(e: &mut Emitter<'_>, Element { frame, inst, leaf, index }: Element<'_>) -> Emitted {
    let comp = e.module.called(inst).first().copied();
    let reduced = Reduced::new(e, frame, inst, comp)?;
    let shape = e.operand_shape(inst, 0)?;
    let dims = reduced_dims(e, inst)?;
    let sizes: SmallVec<[i64; 4]> = dims.iter().map(|&dim| shape.dims[dim]).collect();
    let mut own: Index = SmallVec::from_elem(Atom::Const(0), shape.rank());
    let kept = (0..shape.rank()).filter(|dim| !dims.contains(dim));
    for (dim, &atom) in kept.zip(index) {
        own[dim] = atom;
    }
    let accumulators = reduced.combiner.start(e, &reduced.inits);
    let is_trailing = dims.iter().all(|&dim| dim >= index.len());
    let n: i64 = sizes.iter().product();
    let team =
        e.team.filter(|team| e.meets(*team) && n >= team.n_parts() && reduced.combiner.may_split(&reduced.inits));
    if let (Some(team), Some(row)) = (team, e.row.clone().filter(|row| is_trailing && row.is_over(shape, index))) {
        row.each_element(e, &mut |e, _, at| {
            let values = reduced.values(e, frame, at)?;
            reduced.combiner.combine(e, &accumulators, &values)
        })?;
        join(e, &reduced.combiner, &accumulators, team, None)?;
    } else if let Some(team) = team {
        let places = reduced.combiner.ordered().map(|extremum| Places::new(e, extremum));
        let k = e.loop_variable();
        let (unrolled, first, stride) = (team.unrolled(), team.part(), team.n_parts());
        let header = format!("{unrolled}\nfor (idx {k} = {first}; {k} < {n}; {k} += {stride})");
        e.scope(ScopeKind::Divided, header, |e| {
            let order: SmallVec<[usize; 4]> = (0..dims.len()).rev().collect();
            let at = e.index_at(k, &sizes, &order);
            for (&dim, &atom) in dims.iter().zip(&at) {
                own[dim] = atom;
            }
            let values = reduced.values(e, frame, &own)?;
            places.iter().for_each(|places| places.advance(e, &accumulators, &values, k));
            reduced.combiner.combine(e, &accumulators, &values)
        })?;
        join(e, &reduced.combiner, &accumulators, team, places.as_ref())?;
    } else {
        e.count_all(&sizes, &mut |e, at| {
            for (&dim, &atom) in dims.iter().zip(at) {
                own[dim] = atom;
            }
            let values = reduced.values(e, frame, &own)?;
            reduced.combiner.combine(e, &accumulators, &values)
        })?;
    }
    reduced.combiner.finish(e, frame, inst, leaf, index, &accumulators)
}
