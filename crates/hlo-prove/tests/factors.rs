//! Sums change places with a product or a quotient only if the factor is finite and not zero: every rule that moves a factor, with
//! factors of every kind, held against the evaluator.

use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_ir::Module;
use hlo_ir::literal::Scalar;
use hlo_prove::{Options, prove};

const TYPES: [&str; 6] = ["f32", "f64", "bf16", "f16", "f8e5m2", "f8e4m3fn"];

/// Pairs of programs that differ by whether the factor `%c` stands within a sum; `%x` differs from device to device.
const PAIRS: [(&str, [&str; 2]); 9] = [
    (
        "a product within a sum over devices",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] multiply(%x, %b); %o = T[4,8] all-reduce(%q), GROUPS",
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] all-reduce(%x), GROUPS; %o = T[4,8] multiply(%q, %b)",
        ],
    ),
    (
        "a quotient within a sum over devices",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] divide(%x, %b); %o = T[4,8] all-reduce(%q), GROUPS",
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] all-reduce(%x), GROUPS; %o = T[4,8] divide(%q, %b)",
        ],
    ),
    (
        "a product within a sum over elements",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] multiply(%x, %b); %o = T[4] reduce(%q, %zero), dimensions={1}, \
             to_apply=%add",
            "%b = T[4] broadcast(%c), dimensions={}; %q = T[4] reduce(%x, %zero), dimensions={1}, to_apply=%add; \
             %o = T[4] multiply(%b, %q)",
        ],
    ),
    (
        "a quotient within a sum over elements",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] divide(%x, %b); %o = T[4] reduce(%q, %zero), dimensions={1}, \
             to_apply=%add",
            "%b = T[4] broadcast(%c), dimensions={}; %q = T[4] reduce(%x, %zero), dimensions={1}, to_apply=%add; \
             %o = T[4] divide(%q, %b)",
        ],
    ),
    (
        "a product within a sum that is scattered",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %q = T[4,8] multiply(%b, %x); %o = T[1,8] reduce-scatter(%q), GROUPS, \
             dimensions={0}",
            "%b = T[1,8] broadcast(%c), dimensions={}; %q = T[1,8] reduce-scatter(%x), GROUPS, dimensions={0}; \
             %o = T[1,8] multiply(%q, %b)",
        ],
    ),
    (
        "a dot within a sum over devices",
        [
            "%b = T[8,3] broadcast(%c), dimensions={}; %d = T[4,3] dot(%x, %b), lhs_contracting_dims={1}, \
             rhs_contracting_dims={0}; %o = T[4,3] all-reduce(%d), GROUPS",
            "%b = T[8,3] broadcast(%c), dimensions={}; %d = T[4,8] all-reduce(%x), GROUPS; %o = T[4,3] dot(%d, %b), \
             lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ],
    ),
    (
        "a product with an array within a sum over devices",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %s = T[4,8] multiply(%w, %b); %q = T[4,8] multiply(%x, %s); \
             %o = T[4,8] all-reduce(%q), GROUPS",
            "%b = T[4,8] broadcast(%c), dimensions={}; %s = T[4,8] multiply(%w, %b); %q = T[4,8] all-reduce(%x), GROUPS; \
             %o = T[4,8] multiply(%q, %s)",
        ],
    ),
    (
        "a product within a sum over iterations",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %z = T[4,8] broadcast(%zero), dimensions={}; %k = s32[] constant(0); \
             %i = (s32[], T[4,8], T[4,8]) tuple(%k, %z, %x); %l = (s32[], T[4,8], T[4,8]) while(%i), condition=%go, body=%scaled; \
             %q = T[4,8] get-tuple-element(%l), index=1; %o = T[4,8] all-reduce(%q), GROUPS",
            "%b = T[4,8] broadcast(%c), dimensions={}; %z = T[4,8] broadcast(%zero), dimensions={}; %k = s32[] constant(0); \
             %i = (s32[], T[4,8], T[4,8]) tuple(%k, %z, %x); %l = (s32[], T[4,8], T[4,8]) while(%i), condition=%go, body=%plain; \
             %q = T[4,8] get-tuple-element(%l), index=1; %r = T[4,8] all-reduce(%q), GROUPS; %o = T[4,8] multiply(%r, %b)",
        ],
    ),
    (
        "a quotient within a sum over iterations",
        [
            "%b = T[4,8] broadcast(%c), dimensions={}; %z = T[4,8] broadcast(%zero), dimensions={}; %k = s32[] constant(0); \
             %i = (s32[], T[4,8], T[4,8]) tuple(%k, %z, %x); %l = (s32[], T[4,8], T[4,8]) while(%i), condition=%go, body=%divided; \
             %q = T[4,8] get-tuple-element(%l), index=1; %o = T[4,8] all-reduce(%q), GROUPS",
            "%b = T[4,8] broadcast(%c), dimensions={}; %z = T[4,8] broadcast(%zero), dimensions={}; %k = s32[] constant(0); \
             %i = (s32[], T[4,8], T[4,8]) tuple(%k, %z, %x); %l = (s32[], T[4,8], T[4,8]) while(%i), condition=%go, body=%plain; \
             %q = T[4,8] get-tuple-element(%l), index=1; %r = T[4,8] all-reduce(%q), GROUPS; %o = T[4,8] divide(%r, %b)",
        ],
    ),
];

/// Whether sums may change places with the factor.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Expected {
    /// In all types in which it is computed.
    Moves,
    /// In no type, neither as a factor nor as a divisor.
    Stays,
    /// It depends on the type, or on what is done with it; what is proved must hold in the evaluator.
    Holds,
}
use Expected::{Holds, Moves, Stays};

/// Factors: lines that make `%c`, of the number `%p` that is the same on all devices.
const FACTORS: [(&str, Expected); 40] = [
    ("%c = T[] constant(2)", Moves),
    ("%c = T[] constant(0.125)", Moves),
    ("%c = T[] constant(-1.5)", Moves),
    ("%c = T[] copy(%p)", Moves),
    ("%c = T[] negate(%p)", Moves),
    ("%m = T[] constant(4); %n = T[] constant(1); %c = T[] divide(%n, %m)", Moves),
    ("%m = T[] constant(4); %c = T[] rsqrt(%m)", Moves),
    ("%m = T[] constant(1.5); %c = T[] multiply(%p, %m)", Moves),
    ("%m = s32[] constant(3); %c = T[] convert(%m)", Moves),
    ("%m = T[] constant(1); %a = T[] abs(%p); %c = T[] maximum(%a, %m)", Moves),
    ("%c = T[] constant(0)", Stays),
    ("%c = T[] constant(-0)", Stays),
    ("%m = T[] constant(1); %n = T[] constant(0); %c = T[] divide(%m, %n)", Stays),
    ("%m = T[] constant(-1); %n = T[] constant(0); %c = T[] divide(%m, %n)", Stays),
    ("%n = T[] constant(0); %c = T[] log(%n)", Stays),
    ("%n = T[] constant(0); %c = T[] divide(%n, %n)", Stays),
    ("%n = T[] constant(0); %c = T[] rsqrt(%n)", Stays),
    ("%c = T[] subtract(%p, %p)", Stays),
    ("%m = T[] constant(1); %n = T[] subtract(%p, %p); %c = T[] divide(%m, %n)", Stays),
    ("%m = T[] constant(0); %c = T[] multiply(%p, %m)", Stays),
    ("%m = T[] constant(0); %c = T[] divide(%p, %m)", Stays),
    ("%m = T[] constant(0); %n = T[] log(%m); %c = T[] add(%p, %n)", Stays),
    ("%m = T[] constant(0); %n = T[] log(%m); %i = T[] exponential(%n); %c = T[] divide(%p, %i)", Stays),
    ("%m = f32[] constant(1e30); %n = f32[] multiply(%m, %m); %c = T[] convert(%n)", Holds),
    ("%m = f64[] constant(1e300); %n = f64[] multiply(%m, %m); %c = T[] convert(%n)", Stays),
    ("%m = f32[] constant(inf); %c = T[] convert(%m)", Stays),
    ("%m = f32[] constant(-inf); %c = T[] convert(%m)", Stays),
    ("%m = f32[] constant(nan); %c = T[] convert(%m)", Stays),
    ("%m = f32[] constant(3e38); %c = T[] convert(%m)", Holds),
    ("%m = f32[] constant(1e-40); %c = T[] convert(%m)", Holds),
    ("%m = f32[] constant(60000); %c = T[] convert(%m)", Holds),
    ("%m = f32[] constant(1e-7); %c = T[] convert(%m)", Holds),
    ("%m = f32[] constant(300); %c = T[] convert(%m)", Holds),
    ("%m = T[] constant(100); %n = T[] multiply(%p, %m); %c = T[] exponential(%n)", Holds),
    (
        "%m = T[] constant(100); %n = T[] multiply(%m, %m); %o2 = T[] multiply(%n, %m); %c = T[] multiply(%o2, %p)",
        Holds,
    ),
    ("%m = T[] constant(0); %c = T[] maximum(%p, %m)", Holds),
    ("%m = T[] constant(0); %n = pred[] compare(%p, %m), direction=GT; %c = T[] convert(%n)", Holds),
    (
        "%m = T[] constant(0); %n = pred[] compare(%p, %m), direction=GT; %i = T[] log(%m); %c = T[] select(%n, %p, %i)",
        Stays,
    ),
    ("%c = T[] floor(%p)", Holds),
    ("%m = s32[] convert(%p); %c = T[] convert(%m)", Holds),
];

fn module(dtype: &str, lines: &str) -> Module {
    let lines: Vec<&str> = lines.split(';').map(str::trim).collect();
    let body = |name: &str, op: &str| {
        let factor = "  %b.N = T[4,8] broadcast(%c.N), dimensions={}\n";
        let (factor, term) = if op.is_empty() {
            (String::new(), "%x.N".to_string())
        } else {
            (format!("FACTOR{factor}  %t.N = T[4,8] {op}(%x.N, %b.N)\n"), "%t.N".to_string())
        };
        format!(
            "%{name} {{\n  %s.N = (s32[], T[4,8], T[4,8]) parameter(0)\n  %i.N = s32[] get-tuple-element(%s.N), index=0\n  \
             %a.N = T[4,8] get-tuple-element(%s.N), index=1\n  %x.N = T[4,8] get-tuple-element(%s.N), index=2\n{factor}  \
             %n.N = T[4,8] add(%a.N, {term})\n  %one.N = s32[] constant(1)\n  %j.N = s32[] add(%i.N, %one.N)\n  \
             ROOT %r.N = (s32[], T[4,8], T[4,8]) tuple(%j.N, %n.N, %x.N)\n}}\n\n"
        )
        .replace(".N", &format!(".{name}"))
    };
    let bodies = [body("plain", ""), body("scaled", "multiply"), body("divided", "divide")].concat();
    let (factor, rest): (Vec<&str>, Vec<&str>) = {
        let at = lines.iter().position(|line| line.starts_with("%c = ")).expect("a factor") + 1;
        (lines[..at].to_vec(), lines[at..].to_vec())
    };
    // A loop's body makes constants anew; other factors are not carried into it.
    let is_constant = !factor.iter().any(|line| line.contains("%p"));
    let within = |name: &str| -> String {
        let own: String = factor.iter().map(|line| format!("  {line}\n")).collect();
        let mut own = if is_constant { own } else { "  %c = T[] constant(2)\n".to_string() };
        for word in ["%c", "%m", "%n", "%o2", "%i", "%a"] {
            for end in [" ", ",", ")"] {
                own = own.replace(&format!("{word}{end}"), &format!("{word}.f.{name}{end}"));
            }
        }
        own.replace(&format!("%c.f.{name} ="), &format!("%c.{name} ="))
    };
    let bodies: String = bodies
        .split_inclusive("}\n\n")
        .map(|text| {
            let name = text.trim_start_matches('%').split(' ').next().unwrap_or_default().to_string();
            text.replace("FACTOR", &within(&name))
        })
        .collect();
    let (last, others) = rest.split_last().expect("a result");
    let text = format!(
        "HloModule m, num_partitions=4\n\n%add {{\n  %l = T[] parameter(0)\n  %e = T[] parameter(1)\n  ROOT %f = T[] add(%l, %e)\n}}\n\n\
         {bodies}%go {{\n  %s.g = (s32[], T[4,8], T[4,8]) parameter(0)\n  %i.g = s32[] get-tuple-element(%s.g), index=0\n  \
         %n.g = s32[] constant(3)\n  ROOT %lt = pred[] compare(%i.g, %n.g), direction=LT\n}}\n\n\
         ENTRY %main {{\n  %x = T[4,8] parameter(0)\n  %p = T[] parameter(1), sharding={{replicated}}\n  \
         %w = T[4,8] parameter(2), sharding={{replicated}}\n  %zero = T[] constant(0)\n  {}\n  {}\n  ROOT {last}\n}}\n",
        factor.join("\n  "),
        others.join("\n  ")
    );
    let text =
        text.replace("GROUPS", "replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true, to_apply=%add");
    let text = text.replace("T[", &format!("{dtype}["));
    let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

/// By which share of the largest element results of a type may differ: they are sums of few numbers.
fn share(dtype: &str) -> f64 {
    match dtype {
        "f32" | "f64" => 1e-5,
        "bf16" => 0.05,
        "f16" => 0.01,
        // These have two or three digits: a sum of numbers that cancel has none.
        _ => f64::MAX,
    }
}

/// Whether the programs give the same on some inputs, but for rounding.
fn agree(before: &Module, after: &Module, share: f64) -> bool {
    (0..6).all(|seed| {
        let inputs = draw_inputs(before, None, &DrawOptions { seed, ..DrawOptions::default() }).expect("inputs");
        let outputs = |module: &Module| run(module, &inputs, &EvalOptions::default()).expect("a run").leaves;
        let (a, b) = (outputs(before), outputs(after));
        a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| {
            let numbers = |literal: &hlo_ir::Literal| -> Vec<f64> {
                let number = |k| match literal.get(k) {
                    Some(Scalar::Float(value)) => value,
                    other => panic!("{other:?}"),
                };
                (0..literal.n_elems()).map(number).collect()
            };
            let (a, b) = (numbers(a), numbers(b));
            let largest = a.iter().filter(|x| x.is_finite()).fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()));
            a.iter().zip(&b).all(|(x, y)| match x.is_finite() && y.is_finite() {
                true => (x - y).abs() <= share * largest,
                false => x == y || x.is_nan() && y.is_nan(),
            })
        })
    })
}

#[test]
fn factors_that_are_zero_or_not_finite_are_not_moved() {
    let (mut n_proved, mut n_apart) = (0, 0);
    for dtype in TYPES {
        for (factor, expected) in FACTORS {
            for (what, programs) in PAIRS {
                // Within a loop the factor is a constant.
                if what.contains("iterations") && factor.contains("%p") {
                    continue;
                }
                let [before, after] = programs.map(|lines| module(dtype, &format!("{factor}; {lines}")));
                let is_proved = prove(&before, &after, &Options::default()).expect("a pair").is_proved();
                let name = format!("{dtype}: {what}: {factor}");
                // Out of loops come numbers that stand in the program alone.
                let is_computed = !factor.starts_with("%c = T[] constant");
                // A small input divides a number out of the range of a narrow type.
                let may_overflow = dtype.starts_with("f8") || dtype == "f16" && what.contains("quotient");
                match expected {
                    Moves if may_overflow && (factor.contains("%p") || what.contains("array")) => {}
                    Moves if is_computed && what.contains("iterations") => {}
                    Moves => assert!(is_proved, "not proved: {name}"),
                    Stays => assert!(!is_proved, "proved: {name}"),
                    Holds => {}
                }
                // What is not proved need not differ, but the test is of nothing if none does.
                let is_same = agree(&before, &after, share(dtype));
                assert!(is_same || !is_proved, "proved, and differs: {name}");
                n_proved += usize::from(is_proved);
                n_apart += usize::from(!is_same);
            }
        }
    }
    assert!(n_proved > 300 && n_apart > 300, "{n_proved} proved, {n_apart} apart");
}

/// Factors that are zero or infinite for inputs near one, and whether they divide.
const NEAR_ONE: [(&str, &str); 20] = [
    ("f = f4e2m1fn[] convert(s); c = f32[] convert(f)", "divide"),
    ("f = f8e4m3fn[] convert(s); c = f32[] convert(f)", "divide"),
    ("k = f32[] constant(20000); m = f32[] multiply(s, k); f = f16[] convert(m); c = f32[] convert(f)", "multiply"),
    ("e = f32[] exponential(s); f = f32[] exponential(e); c = f32[] exponential(f)", "multiply"),
    ("k = f32[] constant(100); c = f32[] power(s, k)", "multiply"),
    ("k = f32[] constant(100); c = f32[] power(s, k)", "divide"),
    ("k = f32[] constant(-100); c = f32[] power(s, k)", "multiply"),
    (
        "k = f32[] constant(3); l = f32[] constant(2); m = f32[] maximum(s, k); n = f32[] minimum(m, l); c = f32[] subtract(n, l)",
        "divide",
    ),
    ("k = f32[] constant(-100); l = f32[] constant(-50); n = f32[] clamp(k, s, l); c = f32[] subtract(n, l)", "divide"),
    (
        "k = f32[] constant(1e-10); l = f32[] constant(1); m = f32[] multiply(s, k); n = f32[] add(m, l); c = f32[] subtract(n, l)",
        "divide",
    ),
    ("k = f32[] constant(1e10); n = f32[] add(s, k); c = f32[] subtract(n, k)", "divide"),
    (
        "k = f32[] constant(1e-10); l = f32[] constant(1); m = f32[] multiply(s, k); n = f32[] add(m, l); c = f32[] log(n)",
        "divide",
    ),
    (
        "k = f32[] constant(1e-5); l = f32[] constant(1); m = f32[] multiply(s, k); n = f32[] cosine(m); c = f32[] subtract(l, n)",
        "divide",
    ),
    (
        "k = f32[] constant(20); l = f32[] constant(1); m = f32[] multiply(s, k); n = f32[] tanh(m); c = f32[] subtract(l, n)",
        "divide",
    ),
    (
        "k = f32[] constant(10); l = f32[] constant(1); m = f32[] multiply(s, k); n = f32[] erf(m); c = f32[] subtract(l, n)",
        "divide",
    ),
    ("n = f32[] negate(s); m = f32[] maximum(s, n); c = f32[] subtract(m, s)", "divide"),
    ("k = f32[] constant(100); m = f32[] multiply(s, k); c = f32[] logistic(m)", "divide"),
    ("k = f32[] constant(100); l = f32[] constant(10); m = f32[] multiply(s, k); c = f32[] power(l, m)", "multiply"),
    ("l = f32[] constant(1e30); c = f32[] power(l, s)", "multiply"),
    ("k = f32[] constant(1000); m = f32[] add(s, k); c = f32[] power(m, m)", "multiply"),
];

#[test]
fn factors_that_leave_their_range_for_inputs_near_one_are_not_moved() {
    let module = |factor: &str, lines: &str| {
        let factor: String = factor.split("; ").map(|line| format!("  {line}\n")).collect();
        let text = format!(
            "HloModule m, num_partitions=4\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT o = f32[] add(a, b)\n}}\n\n\
             ENTRY main {{\n  s = f32[] parameter(0), sharding={{replicated}}\n  x = f32[8] parameter(1)\n{factor}  \
             cs = f32[8] broadcast(c), dimensions={{}}\n{lines}}}\n"
        );
        let sum = "replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true, to_apply=add";
        hlo_text::parse_module(&text.replace("SUM", sum)).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module
    };
    let is_proved = |factor: &str, op: &str| {
        let before = module(factor, &format!("  y = f32[8] {op}(x, cs)\n  ROOT r = f32[8] all-reduce(y), SUM\n"));
        let after = module(factor, &format!("  y = f32[8] all-reduce(x), SUM\n  ROOT r = f32[8] {op}(y, cs)\n"));
        prove(&before, &after, &Options::default()).expect("a pair").is_proved()
    };
    for (factor, op) in NEAR_ONE {
        assert!(!is_proved(factor, op), "{factor}: {op}");
    }
    for (factor, op) in [
        ("f = bf16[] convert(s); c = f32[] convert(f)", "divide"),
        ("f = f16[] convert(s); c = f32[] convert(f)", "multiply"),
        ("c = f32[] exponential(s)", "multiply"),
        ("k = f32[] constant(2); c = f32[] power(s, k)", "divide"),
    ] {
        assert!(is_proved(factor, op), "{factor}: {op}");
    }
}
