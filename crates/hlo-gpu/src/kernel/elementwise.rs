//! Operations that compute an element from the operands' elements at the same index.

use hlo_ir::attrs::{Attrs, Comparison};
use hlo_ir::{DType, Scalar};

use super::dtype::CType;
use super::emitter::{Atom, Element, Emitted, Emitter, Value};
use crate::GpuError;

/// The operands' elements at the same index; scalars stand for arrays of themselves.
fn operands(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Result<Vec<Value>, GpuError> {
    let operands = &e.module.inst(inst).operands;
    let element = |&operand| {
        let own = if e.leaf_shape(operand, 0)?.rank() == 0 { &[][..] } else { index };
        e.value(frame, operand, 0, own)
    };
    operands.iter().map(element).collect()
}

/// Functions of which the result is an operand, but for its sign: there is nothing to round.
const EXACT: [&str; 6] = ["abs", "clamp", "maximum", "minimum", "negate", "select"];

/// Functions that the prelude has once more for `bf16`, with errors that rounding hides.
const FASTER_FOR_BF16: [&str; 3] = ["divide", "exponential", "logistic"];

/// `hlo::name(operands…)`, rounded to the result's type.
pub(super) fn function(e: &mut Emitter<'_>, element: Element<'_>, name: &str) -> Emitted {
    let inst = element.inst;
    let args: Vec<String> = operands(e, element)?.into_iter().map(|value| value.text).collect();
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let suffix = if ctype.dtype == DType::BF16 && FASTER_FOR_BF16.contains(&name) { "_bf16" } else { "" };
    let text = format!("hlo::{name}{suffix}({})", args.join(", "));
    if EXACT.contains(&name) || ctype.rounded(&text) == text {
        return Ok(e.constant(ctype.held, &text));
    }
    let whole = e.constant(ctype.held, &text);
    let value = e.constant(ctype.held, &ctype.computed(&whole.text));
    if ctype.computed("x") == ctype.rounded("x") {
        e.unrounded.insert(value.text.clone(), whole.text);
    }
    Ok(value)
}

pub(super) fn compare(e: &mut Emitter<'_>, element: Element<'_>) -> Emitted {
    let inst = element.inst;
    let args = operands(e, element)?;
    let (Attrs::Compare(attrs), [a, b]) = (&e.module.inst(inst).attrs, args.as_slice()) else {
        return Err(e.unsupported(inst, "expected two operands to compare"));
    };
    let operator = match attrs.direction {
        Comparison::Eq => "==",
        Comparison::Ne => "!=",
        Comparison::Ge => ">=",
        Comparison::Gt => ">",
        Comparison::Le => "<=",
        Comparison::Lt => "<",
    };
    let is_total = attrs.order.as_str() == "TOTALORDER" && e.operand_shape(inst, 0)?.dtype.is_float();
    let side = |x: &Value| if is_total { format!("hlo::total_order({})", x.text) } else { x.text.clone() };
    Ok(e.constant("bool", &format!("{} {operator} {}", side(a), side(b))))
}

pub(super) fn convert(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let operand = e.operand(inst, 0)?;
    let from = CType::of(e.leaf_shape(operand, 0)?.dtype);
    let to = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let value = e.value(frame, operand, 0, index)?;
    Ok(e.constant(to.held, &to.converted(from, &value.text)))
}

/// The real part; a real number is its own.
pub(super) fn real(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let number = e.value(frame, e.operand(inst, 0)?, 0, index)?;
    if !e.operand_shape(inst, 0)?.dtype.is_complex() {
        return Ok(number);
    }
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    Ok(e.constant(ctype.held, &format!("{}.re", number.text)))
}

/// The imaginary part; that of a real number is 0.
pub(super) fn imag(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    if !e.operand_shape(inst, 0)?.dtype.is_complex() {
        return Ok(Value::literal(ctype.literal(Scalar::Float(0.0))));
    }
    let number = e.value(frame, e.operand(inst, 0)?, 0, index)?;
    Ok(e.constant(ctype.held, &format!("{}.im", number.text)))
}

/// The bits of a held value, as an unsigned integer.
fn to_bits(ctype: CType, value: &str) -> String {
    match ctype.dtype {
        DType::F32 => format!("hlo::bits32({value})"),
        DType::F64 => format!("hlo::bits64({value})"),
        _ if ctype.is_coded() => format!("{}.bits", ctype.exact_stored(value)),
        _ => format!("(hlo::u{})({value})", ctype.dtype.bits()),
    }
}

/// A held value from its bits.
fn from_bits(ctype: CType, bits: &str) -> String {
    match ctype.dtype {
        DType::F32 => format!("hlo::f32_bits((hlo::u32)({bits}))"),
        DType::F64 => format!("hlo::f64_bits({bits})"),
        _ if ctype.is_coded() => {
            let width = if ctype.size_bytes() == 1 { "u8" } else { "u16" };
            ctype.loaded(&format!("{}{{(hlo::{width})({bits})}}", ctype.stored))
        }
        DType::Pred => format!("({bits}) != 0"),
        _ => format!("({})({bits})", ctype.held),
    }
}

/// An operand's element seen as `to`, which has the same width.
pub(super) fn reinterpreted(e: &mut Emitter<'_>, from: CType, to: CType, value: Value) -> Value {
    if from == to {
        return value;
    }
    let text = from_bits(to, &to_bits(from, &value.text));
    e.constant(to.held, &text)
}

pub(super) fn bitcast_convert(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let operand = e.operand(inst, 0)?;
    let from = CType::of(e.leaf_shape(operand, 0)?.dtype);
    let to = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let (from_bits_wide, to_bits_wide) = (from.dtype.bits(), to.dtype.bits());
    if from_bits_wide == to_bits_wide {
        let value = e.value(frame, operand, 0, index)?;
        return Ok(reinterpreted(e, from, to, value));
    }
    if from_bits_wide > to_bits_wide {
        let Some((&part, rest)) = index.split_last() else {
            return Err(e.unsupported(inst, "expected a last dim of parts"));
        };
        let value = e.value(frame, operand, 0, rest)?;
        let bits = format!("({} >> ({part} * {to_bits_wide}))", to_bits(from, &value.text));
        let narrow = format!("(hlo::u{to_bits_wide}){bits}");
        return Ok(e.constant(to.held, &from_bits(to, &narrow)));
    }
    let mut parts = Vec::new();
    for part in 0..to_bits_wide / from_bits_wide {
        let mut own: Vec<Atom> = index.to_vec();
        own.push(Atom::Const(i64::from(part)));
        let value = e.value(frame, operand, 0, &own)?;
        parts.push(format!("(hlo::u{to_bits_wide}){} << {}", to_bits(from, &value.text), part * from_bits_wide));
    }
    let bits: Vec<String> = parts.into_iter().map(|part| format!("({part})")).collect();
    Ok(e.constant(to.held, &from_bits(to, &bits.join(" | "))))
}

pub(super) fn reduce_precision(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let operand = e.operand(inst, 0)?;
    let value = e.value(frame, operand, 0, index)?;
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let Attrs::ReducePrecision(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected widths of exponent and mantissa"));
    };
    // An f16 is held as a float, whose exponent is wider: what is denormal as f16 is not so as a float.
    let function = match e.leaf_shape(inst, 0)?.dtype {
        DType::F16 => "reduce_precision_f16",
        _ => "reduce_precision",
    };
    let text = format!("hlo::{function}({}, {}, {})", value.text, attrs.exponent_bits, attrs.mantissa_bits);
    Ok(e.constant(ctype.held, &ctype.rounded(&text)))
}

/// The computation on the operands' elements.
pub(super) fn map(e: &mut Emitter<'_>, element: Element<'_>) -> Emitted {
    let inst = element.inst;
    let args = operands(e, element)?;
    let callee = e.module.called(inst).first().copied();
    let callee = callee.ok_or_else(|| e.unsupported(inst, "expected a computation to map"))?;
    let results = e.apply(callee, &args)?;
    results.into_iter().next().ok_or_else(|| e.unsupported(inst, "expected one result of the mapped computation"))
}
