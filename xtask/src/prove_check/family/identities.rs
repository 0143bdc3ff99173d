//! Equations of elementwise ops, true for all numbers, for some, or for none: zeros of both signs, numbers that are none, numbers that wrap.

use hlo_tests::random_module::Rng;

use super::{Program, factor};

/// Forms of one value of `x`, `y`, `z` and `p`; `c` is a number.
const FORMS: [&[&str]; 22] = [
    &[
        "x",
        "x * 1",
        "1 * x",
        "x / 1",
        "-(-x)",
        "x + 0",
        "x - 0",
        "0 + x",
        "x + -0",
        "x - -0",
        "0 - (0 - x)",
        "max(x,x)",
    ],
    &["x - y", "x + (-y)", "-(y - x)", "-y + x", "(x * 1) - y", "-(y + (-x))", "x - (y + 0)"],
    &["p ? x : y", "!p ? y : x", "!(!p) ? x : y", "p ? x : (p ? z : y)", "p ? (p ? x : z) : y", "!p ? x : y"],
    &["x < y", "y > x", "!(x >= y)", "!(y <= x)", "x <= y", "(-x) > (-y)", "(y - x) > 0"],
    &["x == y", "y == x", "!(x != y)", "(x - y) == 0"],
    &["x >= y", "y <= x", "!(x < y)", "x > y"],
    &["x", "(x + c) - c", "(x - c) + c", "(x * c) / c", "(c + x) - c", "c - (c - x)"],
    &["x * c", "c * x", "x * c * 1", "x / c", "(x + x) * c / 2", "-(x * -c)", "(-x) * (-c)"],
    &["x + x", "2 * x", "x * 2", "x - (-x)"],
    &["abs(x)", "abs(-x)", "max(x, -x)", "x < 0 ? -x : x", "x >= 0 ? x : -x", "abs(abs(x))"],
    &["max(x, y)", "max(y, x)", "x > y ? x : y", "x >= y ? x : y", "-min(-x, -y)", "max(x, max(y, x))"],
    &["min(x, y)", "min(y, x)", "x < y ? x : y", "-max(-x, -y)"],
    &["x * 0", "0", "0 * x", "x - x", "-0"],
    &["1", "x / x", "x == x ? 1 : 0"],
    &["x * y * z", "x * (y * z)", "z * y * x"],
    &["x + y + z", "x + (y + z)", "z + y + x", "(x + z) + y"],
    &["x * (y + z)", "x * y + x * z", "(y + z) * x"],
    &["x * (y - z)", "x * y - x * z", "-(x * (z - y))"],
    &["(x + y) * c", "x * c + y * c", "c * y + c * x", "(y + x) * c"],
    &["p ? x * y : x * z", "x * (p ? y : z)", "!p ? x * z : y * x"],
    &["p ? x + 1 : x + 2", "x + (p ? 1 : 2)", "x + (!p ? 2 : 1)"],
    &["true ? x : y", "x", "false ? y : x", "(1 < 2) ? x : y", "(x == x) ? x : y"],
];

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let forms = *rng.pick(&FORMS);
    let dtype = *rng.pick::<&'static str>(&["f32", "f32", "s32", "bf16", "u8"]);
    let c = match dtype {
        "f32" | "bf16" => factor(rng),
        "s32" => *rng.pick::<&'static str>(&["3", "2", "-1", "2147483647", "-2147483648", "0"]),
        _ => *rng.pick::<&'static str>(&["3", "2", "255", "128", "0"]),
    };
    let d = if rng.one_in(8) { "3" } else { c };
    let (first, second) = (*rng.pick::<&'static str>(forms), *rng.pick::<&'static str>(forms));
    let is_reduced = dtype == "f32" && rng.one_in(4);
    let write = |form: &str, c: &str| {
        let mut p = Program::single();
        let shape = format!("{dtype}[4]");
        let names = [p.param(&shape), p.param(&shape), p.param(&shape), p.param("pred[4]")];
        let mut reader = Reader { rest: form, c, dtype, names, program: p };
        let (is_pred, mut value) = reader.choice();
        let mut p = reader.program;
        let mut shape = if is_pred { "pred[4]".to_string() } else { shape };
        if is_reduced && !is_pred {
            let zero = p.constant("f32[]", "0");
            shape = "f32[]".into();
            value = p.add(&shape, &format!("reduce({value}, {zero}), dimensions={{0}}, to_apply=%add"));
        }
        p.give(&shape, &value);
        p
    };
    (write(first, c), write(second, d))
}

/// Reads a formula and writes its instructions.
struct Reader<'a> {
    rest: &'a str,
    c: &'a str,
    dtype: &'a str,
    names: [String; 4],
    program: Program,
}

impl Reader<'_> {
    fn takes(&mut self, word: &str) -> bool {
        let rest = self.rest.trim_start();
        let is_there = rest.starts_with(word);
        if is_there {
            self.rest = &rest[word.len()..];
        }
        is_there
    }

    fn shape(&self) -> String {
        format!("{}[4]", self.dtype)
    }

    fn op(&mut self, op: &str, operands: &[&str]) -> String {
        let shape = self.shape();
        self.program.add(&shape, &format!("{op}({})", operands.join(", ")))
    }

    /// `p ? a : b`; whether a value is a truth value, and its name.
    fn choice(&mut self) -> (bool, String) {
        let (is_pred, first) = self.comparison();
        if !self.takes("?") {
            return (is_pred, first);
        }
        let (_, a) = self.choice();
        self.takes(":");
        let (_, b) = self.choice();
        (false, self.op("select", &[&first, &a, &b]))
    }

    fn comparison(&mut self) -> (bool, String) {
        let (is_pred, a) = self.sum();
        for (word, direction) in [("<=", "LE"), (">=", "GE"), ("==", "EQ"), ("!=", "NE"), ("<", "LT"), (">", "GT")] {
            if self.takes(word) {
                let (_, b) = self.sum();
                let text = format!("compare({a}, {b}), direction={direction}");
                return (true, self.program.add("pred[4]", &text));
            }
        }
        (is_pred, a)
    }

    fn sum(&mut self) -> (bool, String) {
        let (is_pred, mut a) = self.product();
        loop {
            let op = if self.takes("+") {
                "add"
            } else if self.takes("-") {
                "subtract"
            } else {
                return (is_pred, a);
            };
            let (_, b) = self.product();
            a = self.op(op, &[&a, &b]);
        }
    }

    fn product(&mut self) -> (bool, String) {
        let (is_pred, mut a) = self.unary();
        loop {
            let op = if self.takes("*") {
                "multiply"
            } else if self.takes("/") {
                "divide"
            } else {
                return (is_pred, a);
            };
            let (_, b) = self.unary();
            a = self.op(op, &[&a, &b]);
        }
    }

    fn unary(&mut self) -> (bool, String) {
        let is_float = self.dtype == "f32" || self.dtype == "bf16";
        if is_float && self.takes("-0") {
            return (false, self.number("-0"));
        }
        if self.takes("-") {
            let (_, a) = self.unary();
            return (false, self.op("negate", &[&a]));
        }
        if self.takes("!") {
            let (_, a) = self.unary();
            return (true, self.program.add("pred[4]", &format!("not({a})")));
        }
        for (word, op) in [("max(", "maximum"), ("min(", "minimum")] {
            if self.takes(word) {
                let (_, a) = self.choice();
                self.takes(",");
                let (_, b) = self.choice();
                self.takes(")");
                return (false, self.op(op, &[&a, &b]));
            }
        }
        if self.takes("abs(") {
            let (_, a) = self.choice();
            self.takes(")");
            return (false, self.op("abs", &[&a]));
        }
        if self.takes("(") {
            let inner = self.choice();
            self.takes(")");
            return inner;
        }
        for (k, name) in ["x", "y", "z", "p"].into_iter().enumerate() {
            if self.takes(name) {
                return (k == 3, self.names[k].clone());
            }
        }
        for (word, value) in [("true", "true"), ("false", "false")] {
            if self.takes(word) {
                return (true, self.program.splat("pred[4]", value));
            }
        }
        if self.takes("c") {
            let c = self.c.to_string();
            return (false, self.number(&c));
        }
        let number = ["0", "1", "2"].into_iter().find(|word| self.takes(word)).unwrap_or("7");
        (false, self.number(number))
    }

    fn number(&mut self, value: &str) -> String {
        let shape = self.shape();
        self.program.splat(&shape, value)
    }
}
