//! The scalar functions of the op table in C++.
//!
//! Each op that a scalar function describes becomes a function of the namespace `hlo` with the op's name. Floats have an
//! overload for each precision, and integers have a template. A formula consists of operators, of functions of `math.h`
//! and of functions of `prelude/numbers.h`, whose edge cases no operator of C++ has.

use hlo_ir::Opcode;
use hlo_ir::op::{Arity, Formula, OpKind, ScalarFn};

use super::dtype;

/// Words that C++ reads as operators: the op's function needs another name.
const OPERATOR_WORDS: [&str; 4] = ["and", "not", "or", "xor"];

/// The name of an op's function: the opcode in snake case.
pub(super) fn name(opcode: Opcode) -> String {
    let mut name = String::new();
    for c in format!("{opcode:?}").chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    if OPERATOR_WORDS.contains(&name.as_str()) { format!("bit_{name}") } else { name }
}

/// What a formula is computed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    Float,
    Double,
    /// The template parameter `T`, an integer type.
    Int,
    Bool,
}

/// The functions of all ops that scalar functions describe.
pub(super) fn functions() -> String {
    let kinds = [float_function, bool_function, int_function];
    kinds.iter().flat_map(|write| Opcode::ALL.iter().filter_map(|&opcode| write(opcode))).collect()
}

/// Names of the operands.
fn operands(opcode: Opcode) -> &'static [&'static str] {
    match opcode.row().arity {
        Arity::Exactly(1) => &["x"],
        Arity::Exactly(_) | Arity::AtLeast(_) => &["a", "b"],
    }
}

/// `type a, type b`.
fn parameters(ty: &str, operands: &[&str]) -> String {
    operands.iter().map(|operand| format!("{ty} {operand}")).collect::<Vec<String>>().join(", ")
}

/// The text of a formula; `None` where the prelude has the op's function already.
fn body(opcode: Opcode, formula: fn() -> Formula, held: Held) -> Option<String> {
    let operands = operands(opcode);
    let text = text(&formula(), operands, held).text;
    (text != format!("{}({})", name(opcode), operands.join(", "))).then_some(text)
}

fn float_function(opcode: Opcode) -> Option<String> {
    let OpKind::Scalar(formulas) = opcode.row().kind else { return None };
    let (single, twice) = (body(opcode, formulas.real?, Held::Float)?, body(opcode, formulas.real?, Held::Double)?);
    let shape = if operands(opcode).len() == 1 { "UNARY" } else { "BINARY" };
    Some(format!("HLO_FLOAT_{shape}({}, {single}, {twice})\n", name(opcode)))
}

fn bool_function(opcode: Opcode) -> Option<String> {
    let OpKind::Scalar(formulas) = opcode.row().kind else { return None };
    let body = body(opcode, formulas.pred?, Held::Bool)?;
    Some(format!("HLO_FN bool {}({}) {{ return {body}; }}\n", name(opcode), parameters("bool", operands(opcode))))
}

fn int_function(opcode: Opcode) -> Option<String> {
    let OpKind::Scalar(formulas) = opcode.row().kind else { return None };
    let body = body(opcode, formulas.int?, Held::Int)?;
    let parameters = parameters("T", operands(opcode));
    Some(format!("template <class T> HLO_TEMPLATE_FN T {}({parameters}) {{ return {body}; }}\n", name(opcode)))
}

/// C++ text of a part of a formula.
struct Part {
    text: String,
    /// Whether it needs parentheses as the operand of an operator.
    is_open: bool,
}

impl Part {
    fn closed(text: String) -> Part {
        Part { text, is_open: false }
    }

    fn open(text: String) -> Part {
        Part { text, is_open: true }
    }

    fn as_operand(&self) -> String {
        if self.is_open { format!("({})", self.text) } else { self.text.clone() }
    }
}

fn float32(x: f32) -> String {
    if x.is_finite() { format!("{x:?}f") } else { dtype::float32(x) }
}

fn float64(x: f64) -> String {
    if x.is_finite() { format!("{x:?}") } else { dtype::float64(x) }
}

fn text(formula: &Formula, operands: &[&str], held: Held) -> Part {
    match formula {
        Formula::Operand(i) => Part::closed(operands.get(*i).copied().unwrap_or("missing_operand").to_string()),
        Formula::Real(x) => Part::closed(match held {
            Held::Float => float32(*x as f32),
            Held::Double | Held::Int | Held::Bool => float64(*x),
        }),
        Formula::Integer(x) => Part::closed(format!("(T){x}")),
        Formula::Apply(function, args) => {
            let args: Vec<Part> = args.iter().map(|arg| text(arg, operands, held)).collect();
            applied(*function, &args, held)
        }
    }
}

fn applied(function: ScalarFn, args: &[Part], held: Held) -> Part {
    let list = || args.iter().map(|arg| arg.text.as_str()).collect::<Vec<&str>>().join(", ");
    let call = |name: &str| Part::closed(format!("{name}({})", list()));
    let is_int = held == Held::Int;
    match function {
        ScalarFn::Math(name) if held == Held::Float => call(&format!("::{name}f")),
        ScalarFn::Math(name) => call(&format!("::{name}")),
        ScalarFn::Negate if is_int => Part::closed(format!("subtract((T)0, {})", list())),
        ScalarFn::Negate => Part::open(format!("-{}", closed_list(args, ""))),
        ScalarFn::Not if is_int => Part::closed(format!("(T)~{}", closed_list(args, ""))),
        ScalarFn::Not => Part::open(format!("!{}", closed_list(args, ""))),
        ScalarFn::Add => integer_call_or(held, args, "add", "+"),
        ScalarFn::Subtract => integer_call_or(held, args, "subtract", "-"),
        ScalarFn::Multiply => integer_call_or(held, args, "multiply", "*"),
        ScalarFn::Divide => integer_call_or(held, args, "divide", "/"),
        // Operators on narrow integers give an `int`.
        ScalarFn::And if is_int => Part::closed(format!("(T)({})", closed_list(args, " & "))),
        ScalarFn::Or if is_int => Part::closed(format!("(T)({})", closed_list(args, " | "))),
        ScalarFn::Xor if is_int => Part::closed(format!("(T)({})", closed_list(args, " ^ "))),
        ScalarFn::And => Part::open(closed_list(args, " & ")),
        ScalarFn::Or => Part::open(closed_list(args, " | ")),
        ScalarFn::Xor => Part::open(closed_list(args, " ^ ")),
        ScalarFn::Above => Part::open(closed_list(args, " > ")),
        ScalarFn::Below => Part::open(closed_list(args, " < ")),
        ScalarFn::Choose => match args {
            [condition, rest @ ..] => Part::open(format!("{} ? {}", condition.as_operand(), closed_list(rest, " : "))),
            [] => Part::closed(String::new()),
        },
        ScalarFn::Larger => call("maximum"),
        ScalarFn::Smaller => call("minimum"),
        ScalarFn::Remainder => call("remainder"),
        ScalarFn::Power => call("power"),
        ScalarFn::Sign => call("sign"),
        ScalarFn::MultiplyHigh => call("multiply_high"),
        ScalarFn::ShiftLeft => call("shift_left"),
        ScalarFn::ShiftRightArithmetic => call("shift_right_arithmetic"),
        ScalarFn::ShiftRightLogical => call("shift_right_logical"),
        ScalarFn::CountLeadingZeros => call("count_leading_zeros"),
        ScalarFn::PopulationCount => call("population_count"),
    }
}

/// The operands of an operator.
fn closed_list(args: &[Part], separator: &str) -> String {
    args.iter().map(Part::as_operand).collect::<Vec<String>>().join(separator)
}

/// On integers, which wrap, a function of the prelude; on others an operator.
fn integer_call_or(held: Held, args: &[Part], function: &str, operator: &str) -> Part {
    match held {
        Held::Int => {
            let args: Vec<&str> = args.iter().map(|arg| arg.text.as_str()).collect();
            Part::closed(format!("{function}({})", args.join(", ")))
        }
        Held::Float | Held::Double | Held::Bool => Part::open(closed_list(args, &format!(" {operator} "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_functions_for_each_class() {
        let written = functions();
        for line in [
            "HLO_FLOAT_UNARY(exponential_minus_one, ::expm1f(x), ::expm1(x))",
            "HLO_FLOAT_UNARY(logistic, 1.0f / (1.0f + ::expf(-x)), 1.0 / (1.0 + ::exp(-x)))",
            "HLO_FLOAT_BINARY(remainder, ::fmodf(a, b), ::fmod(a, b))",
            "HLO_FN bool bit_not(bool x) { return !x; }",
            "template <class T> HLO_TEMPLATE_FN T bit_not(T x) { return (T)~x; }",
            "template <class T> HLO_TEMPLATE_FN T negate(T x) { return subtract((T)0, x); }",
        ] {
            assert!(written.lines().any(|found| found == line), "expected {line}, found\n{written}");
        }
        assert!(!written.contains(" maximum(T a") && !written.contains("FLOAT_BINARY(maximum"), "{written}");
    }

    #[test]
    fn operators_nest_and_constants_keep_their_values() {
        let x = || Formula::Operand(0);
        let shown = |formula: Formula, held| text(&formula, &["x"], held).text;
        assert_eq!(shown((x() - 2.5) * -x(), Held::Float), "(x - 2.5f) * (-x)");
        assert_eq!(shown(x() / f64::INFINITY, Held::Double), "x / hlo::f64_bits(0x7ff0000000000000ull)");
        assert_eq!(shown(x() & 3, Held::Int), "(T)(x & (T)3)");
    }
}
