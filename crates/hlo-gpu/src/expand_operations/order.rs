//! What comes before what: the comparators of sorts.

use crate::kernel::comparator_keys;
use hashbrown::HashMap;
use hlo_ir::attrs::{Attrs, Comparison, ParameterAttrs};
use hlo_ir::expand::Writer;
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, ConstantValue, DType, InstId, Module, NumberClass, Opcode, Scalar};

/// What comes before what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// A computation of `(a0, b0, a1, b1, …)` says whether the first elements do.
    By(CompId),
    /// The larger one of the first operand, or the smaller one, in the total order of its type.
    Total { largest: bool },
}

/// What positions, which stand in a further operand, say beside an order. Those from `n` on stand for no element, and come last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Positions {
    /// Nothing else.
    End { n: i64 },
    /// Where neither element comes first, the one that stood first does.
    EndAndTies { n: i64 },
}

impl Order {
    /// Whether the comparator can be written for whole arrays.
    pub(super) fn is_written(self, module: &Module) -> bool {
        let Order::By(comp) = self else { return true };
        module.comp(comp).insts.iter().all(|&inst| {
            let instruction = module.inst(inst);
            let opcode = instruction.opcode;
            let is_constant =
                matches!(&instruction.attrs, Attrs::Constant(value) if matches!(**value, ConstantValue::Array(_)));
            // Of scalars a bit cast keeps the element's width.
            let is_elementwise =
                opcode == Opcode::BitcastConvert || opcode.row().factors == FactorRule::Elementwise && opcode.is_pure();
            let is_simple = opcode == Opcode::Parameter || is_constant || is_elementwise;
            is_simple && module.shape(inst).as_array().is_some_and(|array| array.dims.is_empty())
        })
    }

    /// Whether it is known to be a strict order of rows: elements are compared by one value after the other, each in an order in which every
    /// number has its place (no NaN is neither less nor greater).
    pub(super) fn is_strict(self, module: &Module) -> bool {
        match self {
            Order::By(comp) => {
                let root = module.comp(comp).root.expand();
                root.is_some_and(|root| Comparator::new(module, comp).is_strict(root))
            }
            Order::Total { .. } => true,
        }
    }

    /// Element types of the columns that it reads.
    pub(super) fn keys(self, w: &Writer<'_>, columns: &[InstId]) -> Vec<DType> {
        match self {
            Order::By(comp) => comparator_keys(w.module, comp)
                .into_iter()
                .filter_map(|key| columns.get(key))
                .map(|&key| w.dtype(key))
                .collect(),
            Order::Total { .. } => columns.first().map(|&first| w.dtype(first)).into_iter().collect(),
        }
    }

    /// Whether the elements `a` come before the elements `b`, if neither stood first.
    pub(super) fn before(self, w: &mut Writer<'_>, a: &[InstId], b: &[InstId]) -> InstId {
        let comp = match self {
            Order::By(comp) => comp,
            Order::Total { largest } => {
                let direction = if largest { Comparison::Gt } else { Comparison::Lt };
                return w.compare_totally(direction, a[0], b[0]);
            }
        };
        let dims = w.dims(a[0]);
        let params = w.module.comp(comp).params.clone();
        let pairs = a.iter().zip(b).flat_map(|(&a, &b)| [a, b]);
        let mut arrays: HashMap<InstId, InstId> = params.into_iter().zip(pairs).collect();
        for inst in w.module.comp(comp).insts.clone() {
            let instruction = w.module.inst(inst).clone();
            let dtype = w.dtype(inst);
            let operands: Vec<InstId> =
                instruction.operands.iter().filter_map(|operand| arrays.get(operand).copied()).collect();
            if instruction.opcode == Opcode::Parameter {
                continue;
            }
            let array = if instruction.opcode == Opcode::Constant {
                let scalar = w.add(Opcode::Constant, (dtype, &[]), &[], instruction.attrs);
                if dims.is_empty() { scalar } else { w.broadcast(scalar, &dims, &[]) }
            } else {
                w.add(instruction.opcode, (dtype, &dims), &operands, instruction.attrs)
            };
            arrays.insert(inst, array);
        }
        let root = w.module.comp(comp).root.expand();
        root.and_then(|root| arrays.get(&root).copied()).unwrap_or(a[0])
    }

    /// The comparator for operands of these types, the last of which are positions if these say anything.
    pub(super) fn comparator(self, w: &mut Writer<'_>, dtypes: &[DType], positions: Option<Positions>) -> CompId {
        if let (Order::By(comp), None) = (self, positions) {
            return comp;
        }
        let name = w.module.names.fresh("before");
        let comp = w.module.add_computation(name);
        let mut scalars = Writer { module: &mut *w.module, comp, hint: "before".into(), sums: &mut *w.sums };
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for (k, &dtype) in dtypes.iter().enumerate() {
            for (side, number) in [(&mut x, 2 * k), (&mut y, 2 * k + 1)] {
                let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
                side.push(scalars.add(Opcode::Parameter, (dtype, &[]), &[], attrs));
            }
        }
        let root = self.before_by_positions(&mut scalars, &x, &y, positions);
        w.module.comp_mut(comp).root = Some(root).into();
        let mut order: Vec<CompId> = w.module.computations().iter().copied().filter(|&c| c != comp).collect();
        let user = order.iter().position(|&c| c == w.comp).unwrap_or(0);
        order.insert(user, comp);
        w.module.set_computation_order(order);
        comp
    }

    /// Whether `x` comes before `y`, of which the last ones are positions if these say anything.
    fn before_by_positions(
        self,
        w: &mut Writer<'_>,
        x: &[InstId],
        y: &[InstId],
        positions: Option<Positions>,
    ) -> InstId {
        let (Some(positions), Some((&at_x, own_x)), Some((&at_y, own_y))) = (positions, x.split_last(), y.split_last())
        else {
            return self.before(w, x, y);
        };
        // An order may read positions too.
        let (own_x, own_y) = if self.n_operands(w.module) == x.len() { (x, y) } else { (own_x, own_y) };
        let (n, before) = match positions {
            Positions::End { n } => (n, self.before(w, own_x, own_y)),
            Positions::EndAndTies { n } => {
                let stood_first = w.compare(Comparison::Lt, at_x, at_y);
                let pick = |w: &mut Writer<'_>, a: &[InstId], b: &[InstId]| -> Vec<InstId> {
                    a.iter().zip(b).map(|(&a, &b)| w.each(Opcode::Select, &[stood_first, a, b])).collect()
                };
                let (first, second) = (pick(w, own_y, own_x), pick(w, own_x, own_y));
                let found = self.before(w, &first, &second);
                (n, w.compare(Comparison::Ne, found, stood_first))
            }
        };
        let end = w.scalar(w.dtype(at_x), Scalar::Int(n));
        let (has_x, has_y) = (w.compare(Comparison::Lt, at_x, end), w.compare(Comparison::Lt, at_y, end));
        let no_y = w.each(Opcode::Not, &[has_y]);
        let before = w.each(Opcode::Or, &[no_y, before]);
        w.each(Opcode::And, &[has_x, before])
    }

    /// How many operands it compares.
    pub(super) fn n_operands(self, module: &Module) -> usize {
        match self {
            Order::By(comp) => module.comp(comp).params.len() / 2,
            Order::Total { .. } => 1,
        }
    }
}

/// A comparator, as far as its values tell that it is a strict order: `x < y`, or first by one such comparison and, where it finds both equal, by
/// another.
struct Comparator<'m> {
    module: &'m Module,
    /// The sides' elements that each value depends on.
    sides: HashMap<InstId, [bool; 2]>,
    /// The first instruction that has the same value where both sides' elements are the same.
    same: HashMap<InstId, InstId>,
}

impl<'m> Comparator<'m> {
    fn new(module: &'m Module, comp: CompId) -> Comparator<'m> {
        let computation = module.comp(comp);
        let mut found = Comparator { module, sides: HashMap::new(), same: HashMap::new() };
        for (i, &inst) in computation.insts.iter().enumerate() {
            let instruction = module.inst(inst);
            let number = computation.params.iter().position(|&param| param == inst);
            let mut sides = [number.is_some_and(|n| n % 2 == 0), number.is_some_and(|n| n % 2 == 1)];
            for operand in &instruction.operands {
                let of_operand = found.sides.get(operand).copied().unwrap_or_default();
                sides = [sides[0] || of_operand[0], sides[1] || of_operand[1]];
            }
            let is_same = |&&other: &&InstId| {
                let earlier = module.inst(other);
                earlier.opcode == instruction.opcode
                    && earlier.shape == instruction.shape
                    && earlier.attrs == instruction.attrs
                    && earlier
                        .operands
                        .iter()
                        .map(|x| found.first(*x))
                        .eq(instruction.operands.iter().map(|x| found.first(*x)))
            };
            let first = match number {
                Some(number) => computation.params[number & !1],
                None => computation.insts[..i].iter().find(is_same).copied().unwrap_or(inst),
            };
            found.sides.insert(inst, sides);
            found.same.insert(inst, first);
        }
        found
    }

    fn first(&self, inst: InstId) -> InstId {
        self.same.get(&inst).copied().unwrap_or(inst)
    }

    /// The two operands and the direction of a comparison of one value of both sides, in which each number has its place.
    fn comparison(&self, inst: InstId) -> Option<([InstId; 2], Comparison)> {
        let instruction = self.module.inst(inst);
        let (Attrs::Compare(compare), &[x, y]) = (&instruction.attrs, instruction.operands.as_slice()) else {
            return None;
        };
        let class = self.module.shape(x).as_array()?.dtype.class();
        let is_number = matches!(class, NumberClass::Signed | NumberClass::Unsigned | NumberClass::Pred);
        let is_mirrored = self.first(x) == self.first(y)
            && [[true, false], [false, true]].contains(self.sides.get(&x)?)
            && self.sides.get(&x)? != self.sides.get(&y)?
            && self.sides.get(&y)? != &[true, true];
        (is_mirrored && (is_number || compare.order.as_str() == "TOTALORDER")).then_some(([x, y], compare.direction))
    }

    /// Whether a value is a strict order of the elements of both sides.
    fn is_strict(&self, inst: InstId) -> bool {
        if let Some((_, direction)) = self.comparison(inst) {
            return matches!(direction, Comparison::Lt | Comparison::Gt);
        }
        let instruction = self.module.inst(inst);
        match *instruction.operands.as_slice() {
            [a, b] if instruction.opcode == Opcode::Or => [(a, b), (b, a)].into_iter().any(|(less, then)| {
                let then = self.module.inst(then);
                let &[c, d] = then.operands.as_slice() else { return false };
                then.opcode == Opcode::And
                    && [(c, d), (d, c)].into_iter().any(|(equal, rest)| self.is_lexicographic(less, equal, rest))
            }),
            [equal, rest, less] if instruction.opcode == Opcode::Select => self.is_lexicographic(less, equal, rest),
            _ => false,
        }
    }

    /// Whether `less` is a strict comparison, `equal` says that it finds both equal, and `rest` is a strict order.
    fn is_lexicographic(&self, less: InstId, equal: InstId, rest: InstId) -> bool {
        let (Some((of_less, direction)), Some((of_equal, Comparison::Eq))) =
            (self.comparison(less), self.comparison(equal))
        else {
            return false;
        };
        let is_one_pair = of_less == of_equal || of_less == [of_equal[1], of_equal[0]];
        is_one_pair && matches!(direction, Comparison::Lt | Comparison::Gt) && self.is_strict(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_orders_are_told_from_what_only_looks_like_one() {
        let is_strict = |body: &str| {
            let text = format!(
                "HloModule m
order {{
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  x = f32[] parameter(2)
  y = f32[] parameter(3)
  two = s32[] constant(2)
  ha = s32[] divide(a, two)
  hb = s32[] divide(b, two)
  lt = pred[] compare(a, b), direction=LT
  gt = pred[] compare(a, b), direction=GT
  eq = pred[] compare(b, a), direction=EQ
  ne = pred[] compare(a, b), direction=NE
  ge = pred[] compare(a, b), direction=GE
  half = pred[] compare(ha, hb), direction=LT
  same = pred[] compare(ha, hb), direction=EQ
  less = pred[] compare(x, y), direction=LT, type=TOTALORDER
  plain = pred[] compare(x, y), direction=LT
  own = pred[] compare(a, a), direction=LT
  crossed = pred[] compare(a, hb), direction=LT
  {body}
}}
ENTRY main {{
  n = s32[4] parameter(0)
  f = f32[4] parameter(1)
  ROOT s = (s32[4], f32[4]) sort(n, f), dimensions={{0}}, to_apply=order
}}"
            );
            let module = hlo_text::parse_module(&text).unwrap_or_else(|d| panic!("{body}: {:?}", d[0])).module;
            let comp = module.computations()[0];
            Order::By(comp).is_strict(&module)
        };
        let orders = [
            "ROOT r = pred[] compare(b, a), direction=LT",
            "ROOT r = pred[] compare(ha, hb), direction=GT",
            "ROOT r = pred[] compare(x, y), direction=GT, type=TOTALORDER",
            "then = pred[] and(eq, less)\n ROOT r = pred[] or(lt, then)",
            "then = pred[] and(less, eq)\n ROOT r = pred[] or(then, gt)",
            "then = pred[] and(same, lt)\n first = pred[] or(half, then)\n third = pred[] and(eq, less)\n ROOT r = pred[] or(gt, third)",
            "ROOT r = pred[] select(same, less, half)",
            "inner = pred[] select(eq, less, gt)\n ROOT r = pred[] select(same, inner, half)",
        ];
        for body in orders {
            assert!(is_strict(body), "{body}");
        }
        let others = [
            "ROOT r = pred[] copy(lt)",
            "ROOT r = pred[] compare(a, b), direction=NE",
            "ROOT r = pred[] compare(a, b), direction=GE",
            "ROOT r = pred[] compare(x, y), direction=LT",
            "ROOT r = pred[] compare(a, hb), direction=LT",
            "ROOT r = pred[] compare(a, a), direction=LT",
            "ROOT r = pred[] compare(a, two), direction=LT",
            "ROOT r = pred[] and(lt, eq)",
            "ROOT r = pred[] or(lt, gt)",
            "ROOT r = pred[] xor(lt, less)",
            "then = pred[] and(same, less)\n ROOT r = pred[] or(lt, then)",
            "then = pred[] and(ne, less)\n ROOT r = pred[] or(lt, then)",
            "then = pred[] and(eq, plain)\n ROOT r = pred[] or(lt, then)",
            "ROOT r = pred[] select(eq, ge, lt)",
            "ROOT r = pred[] select(lt, less, eq)",
        ];
        for body in others {
            assert!(!is_strict(body), "{body}");
        }
    }
}
