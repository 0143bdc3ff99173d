//! What comes before what: the comparators of sorts.

use super::writer::Writer;
use hashbrown::HashMap;
use hlo_ir::attrs::{Attrs, Comparison, ParameterAttrs};
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
pub(super) enum Places {
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
            let is_elementwise = opcode.row().factors == FactorRule::Elementwise && opcode.is_pure();
            let is_simple = opcode == Opcode::Parameter || is_constant || is_elementwise;
            is_simple && module.shape(inst).as_array().is_some_and(|array| array.dims.is_empty())
        })
    }

    /// Whether no two elements can each come before the other, none stands outside of the order (a NaN that is neither less nor greater), and
    /// none comes before itself: a comparison of both sides is of integers, or in total order, and says no if they are the same.
    pub(super) fn is_strict(self, module: &Module) -> bool {
        match self {
            Order::By(comp) => is_total(module, comp) && of_same_elements(module, comp) == Some(false),
            Order::Total { .. } => true,
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
    pub(super) fn comparator(self, w: &mut Writer<'_>, dtypes: &[DType], places: Option<Places>) -> CompId {
        if let (Order::By(comp), None) = (self, places) {
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
        let root = self.before_or_place(&mut scalars, &x, &y, places);
        w.module.comp_mut(comp).root = Some(root).into();
        let mut order: Vec<CompId> = w.module.computations().iter().copied().filter(|&c| c != comp).collect();
        let user = order.iter().position(|&c| c == w.comp).unwrap_or(0);
        order.insert(user, comp);
        w.module.set_computation_order(order);
        comp
    }

    /// Whether `x` comes before `y`, of which the last ones are positions if these say anything.
    fn before_or_place(self, w: &mut Writer<'_>, x: &[InstId], y: &[InstId], places: Option<Places>) -> InstId {
        let (Some(places), Some((&at_x, own_x)), Some((&at_y, own_y))) = (places, x.split_last(), y.split_last())
        else {
            return self.before(w, x, y);
        };
        // An order may read positions too.
        let (own_x, own_y) = if self.n_operands(w.module) == x.len() { (x, y) } else { (own_x, own_y) };
        let (n, before) = match places {
            Places::End { n } => (n, self.before(w, own_x, own_y)),
            Places::EndAndTies { n } => {
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

/// Whether comparisons of both sides are of integers, or in total order.
fn is_total(module: &Module, comp: CompId) -> bool {
    // Which sides' elements each value depends on.
    let mut sides: HashMap<InstId, [bool; 2]> = HashMap::new();
    let params = &module.comp(comp).params;
    module.comp(comp).insts.iter().all(|&inst| {
        let instruction = module.inst(inst);
        let mut own = [false; 2];
        if let Some(number) = params.iter().position(|&param| param == inst) {
            own[number % 2] = true;
        }
        for operand in &instruction.operands {
            let of_operand = sides.get(operand).copied().unwrap_or_default();
            own = [own[0] || of_operand[0], own[1] || of_operand[1]];
        }
        sides.insert(inst, own);
        own != [true; 2] || !matches!(instruction.attrs, Attrs::Compare(_)) || compares_totally(module, inst)
    })
}

/// Whether a comparison is of integers, or in total order: each number equals itself.
fn compares_totally(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let Attrs::Compare(compare) = &instruction.attrs else { return false };
    let array = instruction.operands.first().and_then(|&operand| module.shape(operand).as_array());
    let is_number = |class| matches!(class, NumberClass::Signed | NumberClass::Unsigned | NumberClass::Pred);
    compare.order.as_str() == "TOTALORDER" || array.is_some_and(|array| is_number(array.dtype.class()))
}

/// What a comparator says of elements that are the same on both sides, as far as it is known.
fn of_same_elements(module: &Module, comp: CompId) -> Option<bool> {
    let computation = module.comp(comp);
    // The first instruction that has the same value, for each; and the values that are known.
    let mut same: HashMap<InstId, InstId> = HashMap::new();
    let mut known: HashMap<InstId, bool> = HashMap::new();
    for (i, &inst) in computation.insts.iter().enumerate() {
        let instruction = module.inst(inst);
        let of = |operand: &InstId| same.get(operand).copied().unwrap_or(*operand);
        let operands: Vec<InstId> = instruction.operands.iter().map(of).collect();
        let first = match computation.params.iter().position(|&param| param == inst) {
            Some(number) => computation.params[number & !1],
            None => {
                let is_same = |&&other: &&InstId| {
                    let earlier = module.inst(other);
                    let is_like = earlier.opcode == instruction.opcode && earlier.shape == instruction.shape;
                    is_like
                        && earlier.attrs == instruction.attrs
                        && earlier.operands.iter().map(of).eq(operands.iter().copied())
                };
                computation.insts[..i].iter().find(is_same).copied().unwrap_or(inst)
            }
        };
        same.insert(inst, first);
        let value = |operand: usize| known.get(operands.get(operand)?).copied();
        let found = match &instruction.attrs {
            Attrs::Compare(compare)
                if compares_totally(module, inst) && operands.windows(2).all(|two| two[0] == two[1]) =>
            {
                Some(matches!(compare.direction, Comparison::Eq | Comparison::Ge | Comparison::Le))
            }
            Attrs::Constant(constant) => match &**constant {
                ConstantValue::Array(literal) => match literal.get(0) {
                    Some(Scalar::Pred(value)) => Some(value),
                    Some(_) | None => None,
                },
                ConstantValue::Tuple(_) | ConstantValue::Elided => None,
            },
            _ if instruction.opcode == Opcode::Not => value(0).map(|x| !x),
            _ if instruction.opcode == Opcode::And => both(value(0), value(1), false),
            _ if instruction.opcode == Opcode::Or => both(value(0), value(1), true),
            _ if instruction.opcode == Opcode::Select => match value(0) {
                Some(true) => value(1),
                Some(false) => value(2),
                None => value(1).filter(|_| value(1) == value(2)),
            },
            _ => None,
        };
        if let Some(found) = found {
            known.insert(first, found);
        }
    }
    known.get(same.get(&computation.root.expand()?)?).copied()
}

/// Two values joined by an operation that one of them decides if it is `decisive`.
fn both(a: Option<bool>, b: Option<bool>, decisive: bool) -> Option<bool> {
    if a == Some(decisive) || b == Some(decisive) { Some(decisive) } else { a.zip(b).map(|_| !decisive) }
}
