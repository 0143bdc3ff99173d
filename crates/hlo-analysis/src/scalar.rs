//! Arithmetic on single elements: what a trip count, a branch or a device's offset depends on is a handful of scalar integer ops.
//!
//! The meaning of an op comes from the op table's evaluator column. Elements are `pred`,
//! integers, `f32` and `f64`; whatever else an op may be is not followed.

use hlo_ir::attrs::{Attrs, CompareAttrs, Comparison};
use hlo_ir::literal::Scalar;
use hlo_ir::op::{
    BinaryFns, ElementwiseRoutine, EvalRoutine, EvalRule, IntType, ShapingRoutine, StructureRoutine, UnaryFns,
};
use hlo_ir::{DType, InstId, Module, NumberClass, Opcode};

/// One element. Integers are sign- or zero-extended to 64 bits, `pred` is 0 or 1, `u64` keeps its bits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Element {
    /// Of `pred` or an integer type.
    Int(i64),
    /// Of `f32` or `f64`.
    Float(f64),
}

/// An op on elements, with the types that it goes from and to.
#[derive(Clone, Copy, Debug)]
pub struct ScalarOp {
    opcode: Opcode,
    rule: ScalarRule,
    /// Type of the last operand, by which the others are read.
    from: DType,
    to: DType,
}

#[derive(Clone, Copy, Debug)]
enum ScalarRule {
    Unary(UnaryFns),
    Binary(BinaryFns),
    Compare(Comparison),
    Abs,
    Select,
    Clamp,
    Convert,
}

/// Whether elements of the type are followed.
pub fn is_followed(dtype: DType) -> bool {
    match dtype.class() {
        NumberClass::Pred | NumberClass::Signed | NumberClass::Unsigned => true,
        NumberClass::Float => matches!(dtype, DType::F32 | DType::F64),
        NumberClass::Complex => false,
    }
}

/// The element type of an array of one element, if such elements are followed.
pub fn single(module: &Module, inst: InstId) -> Option<DType> {
    let array = module.shape(inst).as_array()?;
    (array.n_elems() == 1 && is_followed(array.dtype)).then_some(array.dtype)
}

/// The element of a constant of one element.
pub fn constant(module: &Module, inst: InstId) -> Option<Element> {
    let Attrs::Constant(value) = &module.inst(inst).attrs else { return None };
    let hlo_ir::ConstantValue::Array(literal) = &**value else { return None };
    if literal.n_elems() != 1 || !is_followed(literal.dtype()) {
        return None;
    }
    element(literal.get(0)?)
}

/// A scalar as an element; `None` for complex ones.
pub fn element(scalar: Scalar) -> Option<Element> {
    match scalar {
        Scalar::Pred(x) => Some(Element::Int(x.into())),
        Scalar::Int(x) => Some(Element::Int(x)),
        Scalar::Uint(x) => Some(Element::Int(x as i64)),
        Scalar::Float(x) => Some(Element::Float(x)),
        Scalar::Complex(..) => None,
    }
}

/// Whether an instruction only gives its one element another shape.
pub fn is_reshaping(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let moves = match instruction.opcode.row().eval {
        EvalRule::Routine(EvalRoutine::Structure(routine)) => routine == StructureRoutine::Identity,
        EvalRule::Routine(EvalRoutine::Shaping(routine)) => is_permutation(routine),
        EvalRule::Routine(
            EvalRoutine::Parameter
            | EvalRoutine::Constant
            | EvalRoutine::Elementwise(_)
            | EvalRoutine::OneArray(_)
            | EvalRoutine::SeveralArrays(_)
            | EvalRoutine::Lockstep(_),
        )
        | EvalRule::Unary(_)
        | EvalRule::Binary(_)
        | EvalRule::NotEvaluated(_) => false,
    };
    let from = instruction.operands.first().and_then(|&operand| single(module, operand));
    moves && from.is_some() && from == single(module, inst)
}

impl ScalarRule {
    /// What a routine does to single elements; `None` where that is not followed.
    fn of(routine: ElementwiseRoutine, attrs: &Attrs) -> Option<ScalarRule> {
        match routine {
            ElementwiseRoutine::Abs => Some(ScalarRule::Abs),
            ElementwiseRoutine::Select => Some(ScalarRule::Select),
            ElementwiseRoutine::Clamp => Some(ScalarRule::Clamp),
            ElementwiseRoutine::Convert => Some(ScalarRule::Convert),
            ElementwiseRoutine::Compare => {
                // The total order of floats differs from the usual one.
                let compare = CompareAttrs::of(attrs).filter(|compare| compare.order.as_str() != "TOTALORDER")?;
                Some(ScalarRule::Compare(compare.direction))
            }
            ElementwiseRoutine::IsFinite
            | ElementwiseRoutine::Complex
            | ElementwiseRoutine::Real
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::BitcastConvert
            | ElementwiseRoutine::StochasticConvert
            | ElementwiseRoutine::ReducePrecision => None,
        }
    }
}

/// Whether a routine gives every element of its operand at most once, and no other value.
fn is_permutation(routine: ShapingRoutine) -> bool {
    match routine {
        ShapingRoutine::Reshape
        | ShapingRoutine::Broadcast
        | ShapingRoutine::Transpose
        | ShapingRoutine::Reverse
        | ShapingRoutine::Slice => true,
        ShapingRoutine::DynamicSlice
        | ShapingRoutine::DynamicUpdateSlice
        | ShapingRoutine::Pad
        | ShapingRoutine::Concatenate
        | ShapingRoutine::Iota
        | ShapingRoutine::GetDimensionSize => false,
    }
}

impl ScalarOp {
    /// What an instruction does to single elements; `None` where that is not followed.
    pub fn of(module: &Module, inst: InstId) -> Option<ScalarOp> {
        let instruction = module.inst(inst);
        let to = single(module, inst)?;
        let from = single(module, *instruction.operands.last()?)?;
        let rule = match instruction.opcode.row().eval {
            EvalRule::Unary(fns) => ScalarRule::Unary(fns),
            EvalRule::Binary(fns) => ScalarRule::Binary(fns),
            EvalRule::Routine(EvalRoutine::Elementwise(routine)) => ScalarRule::of(routine, &instruction.attrs)?,
            EvalRule::Routine(
                EvalRoutine::Parameter
                | EvalRoutine::Constant
                | EvalRoutine::Shaping(_)
                | EvalRoutine::OneArray(_)
                | EvalRoutine::SeveralArrays(_)
                | EvalRoutine::Structure(_)
                | EvalRoutine::Lockstep(_),
            )
            | EvalRule::NotEvaluated(_) => return None,
        };
        Some(ScalarOp { opcode: instruction.opcode, rule, from, to })
    }

    /// The opcode.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The direction of an integer comparison.
    pub fn as_compare(&self) -> Option<Comparison> {
        match self.rule {
            ScalarRule::Compare(direction) if !self.from.is_float() => Some(direction),
            ScalarRule::Compare(_)
            | ScalarRule::Unary(_)
            | ScalarRule::Binary(_)
            | ScalarRule::Abs
            | ScalarRule::Select
            | ScalarRule::Clamp
            | ScalarRule::Convert => None,
        }
    }

    /// The element type of the operands.
    pub fn operand_type(&self) -> DType {
        self.from
    }

    /// The result; `None` where the op has no meaning for the type.
    pub fn apply(&self, args: &[Element]) -> Option<Element> {
        match (self.rule, args) {
            (ScalarRule::Unary(fns), &[x]) => unary(fns, x, self.from, self.to),
            (ScalarRule::Binary(fns), &[x, y]) => binary(fns, x, y, self.from, self.to),
            (ScalarRule::Compare(direction), &[x, y]) => {
                Some(Element::Int(holds(direction, order(x, y, self.from)?.as_ref()).into()))
            }
            (ScalarRule::Abs, &[Element::Int(x)]) => {
                Some(wrap(if is_signed(self.to) { x.wrapping_abs() } else { x }, self.to))
            }
            (ScalarRule::Abs, &[Element::Float(x)]) => Some(Element::Float(x.abs())),
            (ScalarRule::Select, &[Element::Int(which), on_true, on_false]) => {
                Some(if which != 0 { on_true } else { on_false })
            }
            (ScalarRule::Clamp, &[low, x, high]) => {
                let at_least = if order(x, low, self.from)? == Some(std::cmp::Ordering::Less) { low } else { x };
                Some(if order(high, at_least, self.from)? == Some(std::cmp::Ordering::Less) { high } else { at_least })
            }
            (ScalarRule::Convert, &[x]) => Some(convert(x, self.from, self.to)),
            (
                ScalarRule::Unary(_)
                | ScalarRule::Binary(_)
                | ScalarRule::Compare(_)
                | ScalarRule::Abs
                | ScalarRule::Select
                | ScalarRule::Clamp
                | ScalarRule::Convert,
                _,
            ) => None,
        }
    }
}

/// Width and sign of an integer type; `pred` counts as one unsigned bit.
pub fn int_type(dtype: DType) -> IntType {
    let bits = if dtype == DType::Pred { 1 } else { dtype.bits() };
    IntType { bits, is_signed: is_signed(dtype) }
}

/// The smallest and the largest value of an integer type.
pub fn int_range(dtype: DType) -> (i128, i128) {
    let t = int_type(dtype);
    match t.is_signed {
        true => (-(1i128 << (t.bits - 1)), (1i128 << (t.bits - 1)) - 1),
        false => (0, (1i128 << t.bits) - 1),
    }
}

/// An integer element as a number.
pub fn as_number(x: i64, dtype: DType) -> i128 {
    if is_signed(dtype) { x.into() } else { (x as u64).into() }
}

fn is_signed(dtype: DType) -> bool {
    dtype.class() == NumberClass::Signed
}

fn wrap(x: i64, dtype: DType) -> Element {
    let t = int_type(dtype);
    let unused = 64 - t.bits;
    Element::Int(match t.is_signed {
        true => (x << unused) >> unused,
        false => ((x as u64) << unused >> unused) as i64,
    })
}

fn round(x: f64, dtype: DType) -> Element {
    Element::Float(if dtype == DType::F32 { f64::from(x as f32) } else { x })
}

fn unary(fns: UnaryFns, x: Element, from: DType, to: DType) -> Option<Element> {
    Some(match x {
        Element::Float(x) => round(fns.real?(x), to),
        Element::Int(x) if from == DType::Pred => Element::Int(fns.pred?(x != 0).into()),
        Element::Int(x) => wrap(fns.int?(x, int_type(from)), to),
    })
}

fn binary(fns: BinaryFns, x: Element, y: Element, from: DType, to: DType) -> Option<Element> {
    Some(match (x, y) {
        (Element::Float(x), Element::Float(y)) => round(fns.real?(x, y), to),
        (Element::Int(x), Element::Int(y)) if from == DType::Pred => Element::Int(fns.pred?(x != 0, y != 0).into()),
        (Element::Int(x), Element::Int(y)) => wrap(fns.int?(x, y, int_type(from)), to),
        (Element::Int(_) | Element::Float(_), _) => return None,
    })
}

/// How two elements compare: `Some(None)` if one is a NaN.
fn order(x: Element, y: Element, dtype: DType) -> Option<Option<std::cmp::Ordering>> {
    match (x, y) {
        (Element::Float(x), Element::Float(y)) => Some(x.partial_cmp(&y)),
        (Element::Int(x), Element::Int(y)) => Some(Some(as_number(x, dtype).cmp(&as_number(y, dtype)))),
        (Element::Int(_) | Element::Float(_), _) => None,
    }
}

fn holds(direction: Comparison, order: Option<&std::cmp::Ordering>) -> bool {
    let Some(order) = order else { return direction == Comparison::Ne };
    match direction {
        Comparison::Eq => order.is_eq(),
        Comparison::Ne => order.is_ne(),
        Comparison::Ge => order.is_ge(),
        Comparison::Gt => order.is_gt(),
        Comparison::Le => order.is_le(),
        Comparison::Lt => order.is_lt(),
    }
}

fn convert(x: Element, from: DType, to: DType) -> Element {
    match (x, to.is_float()) {
        (Element::Float(x), true) => round(x, to),
        (Element::Int(x), true) => {
            // Once from the exact integer: through f64 an f32 would be rounded twice.
            let number = as_number(x, from);
            Element::Float(if to == DType::F32 { f64::from(number as f32) } else { number as f64 })
        }
        (Element::Float(x), false) if to == DType::Pred => Element::Int((x != 0.0).into()),
        (Element::Int(x), false) if to == DType::Pred => Element::Int((x != 0).into()),
        (Element::Int(x), false) => wrap(x, to),
        (Element::Float(x), false) => {
            let (low, high) = int_range(to);
            // The cast saturates and takes a NaN to 0, as HLO's convert does.
            Element::Int((x as i128).clamp(low, high) as i64)
        }
    }
}
