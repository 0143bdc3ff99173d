//! Equations of small programs: each is proved and holds in the evaluator bit for bit, on inputs at the edges too; what looks like it
//! and does not hold is not proved, and the evaluator shows why.

use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, Inputs, run};
use hlo_ir::literal::Scalar;
use hlo_ir::{Literal, Module, NumberClass};
use hlo_prove::{Options, prove};
use std::sync::Arc;

const PARAMS: &str =
    "%x = TYPE parameter(0)\n  %y = TYPE parameter(1)\n  %p = pred[4] parameter(2)\n  %i = s32[] parameter(3)";

/// A module of one device that gives the last of these lines, whose values have the type, `f32[4]` or another.
fn module(dtype: &str, lines: &str) -> Module {
    let lines: Vec<&str> = lines.split(';').map(str::trim).collect();
    let (last, others) = lines.split_last().expect("a line");
    let params = PARAMS.replace("TYPE", dtype);
    let text = format!(
        "HloModule m\n\n%max {{\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %m = f32[] maximum(%a, %b)\n}}\n\n\
         %add {{\n  %c = f32[] parameter(0)\n  %d = f32[] parameter(1)\n  ROOT %s = f32[] add(%c, %d)\n}}\n\n\
         %sine {{\n  %e = f32[4] parameter(0)\n  ROOT %f = f32[4] sine(%e)\n}}\n\n\
         %cosine {{\n  %g = f32[4] parameter(0)\n  ROOT %h = f32[4] cosine(%g)\n}}\n\n\
         ENTRY %main {{\n  {params}\n  {}\n  ROOT {last}\n}}\n",
        others.join("\n  ")
    );
    let text = text.replace("T[", &format!("{}[", dtype.trim_end_matches("[4]")));
    let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

/// Drawn inputs, and inputs at the edges of their types.
fn inputs(module: &Module, seed: u64) -> Inputs {
    let mut inputs = draw_inputs(module, None, &DrawOptions { seed, ..DrawOptions::default() }).expect("inputs");
    let floats = [-0.0, 0.0, f64::INFINITY, f64::NAN, f64::NEG_INFINITY, 1.0];
    let integers = [-1, i64::from(i32::MIN), i64::from(i32::MAX), 0, 7, -3];
    for (leaf, row) in inputs.leaves.iter_mut().enumerate() {
        for array in row.iter_mut().filter(|_| seed > 0) {
            let mut edged = Literal::clone(array);
            for k in 0..edged.n_elems() {
                let number = (seed as usize * (7 + leaf) + k * (1 + leaf)) % 6;
                let value = match edged.dtype().class() {
                    NumberClass::Float => Scalar::Float(floats[number]),
                    NumberClass::Signed => Scalar::Int(integers[number]),
                    NumberClass::Pred => Scalar::Pred(number < 3),
                    NumberClass::Unsigned => Scalar::Uint([255, 0, 1, 254, 128, 127][number]),
                    NumberClass::Complex => continue,
                };
                edged.set(k, value);
            }
            *array = Arc::new(edged);
        }
    }
    inputs
}

/// Whether two modules give the same numbers; every NaN counts as the same, zeros of different signs do not.
fn agree(before: &Module, after: &Module) -> bool {
    (0..24).all(|seed| {
        let inputs = inputs(before, seed);
        let outputs = |module: &Module| run(module, &inputs, &EvalOptions::default()).expect("a run").leaves;
        let (a, b) = (outputs(before), outputs(after));
        a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| {
            (0..a.n_elems()).all(|k| match (a.get(k), b.get(k)) {
                (Some(Scalar::Float(x)), Some(Scalar::Float(y))) => {
                    x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()
                }
                (x, y) => x == y,
            })
        })
    })
}

#[track_caller]
fn equal(dtype: &str, before: &str, after: &str) {
    let (before, after) = (module(dtype, before), module(dtype, after));
    let proof = prove(&before, &after, &Options::default()).expect("a pair");
    assert!(proof.is_proved(), "{:?}", proof.outputs[0].difference);
    assert_eq!(proof.n_exact(), 1);
    assert!(agree(&before, &after), "the evaluator says otherwise");
}

#[track_caller]
fn different(dtype: &str, before: &str, after: &str) {
    let (before, after) = (module(dtype, before), module(dtype, after));
    let proof = prove(&before, &after, &Options::default()).expect("a pair");
    assert_eq!(proof.n_exact(), 0, "it is proved bit for bit");
    assert!(!agree(&before, &after), "the near miss is no miss");
}

const TYPES: [&str; 4] = ["f32[4]", "bf16[4]", "s32[4]", "u8[4]"];

#[test]
fn negations() {
    for dtype in TYPES {
        equal(dtype, "%n = T[4] negate(%x); %r = T[4] negate(%n)", "%r = T[4] copy(%x)");
        equal(dtype, "%r = T[4] subtract(%x, %y)", "%n = T[4] negate(%y); %r = T[4] add(%x, %n)");
        equal(dtype, "%r = T[4] subtract(%x, %y)", "%n = T[4] negate(%y); %r = T[4] add(%n, %x)");
        equal(dtype, "%r = T[4] add(%x, %y)", "%n = T[4] negate(%y); %r = T[4] subtract(%x, %n)");
        equal(dtype, "%r = T[4] select(%p, %x, %y)", "%n = pred[4] not(%p); %r = T[4] select(%n, %y, %x)");
        different(dtype, "%r = T[4] select(%p, %x, %y)", "%n = pred[4] not(%p); %r = T[4] select(%n, %x, %y)");
        different(dtype, "%r = T[4] subtract(%x, %y)", "%n = T[4] negate(%x); %r = T[4] add(%y, %n)");
    }
    for dtype in ["f32[4]", "bf16[4]"] {
        // 0 - 0 is 0, and so is its exchange, but the negation of it is -0.
        different(dtype, "%r = T[4] subtract(%x, %y)", "%n = T[4] subtract(%y, %x); %r = T[4] negate(%n)");
        different(
            dtype,
            "%r = T[4] copy(%x)",
            "%z = T[] constant(0); %b = T[4] broadcast(%z), dimensions={}; %r = T[4] add(%x, %b)",
        );
    }
}

#[test]
fn numbers_without_a_sign_have_no_negation() {
    let dtype = "f8e8m0fnu[4]";
    different(dtype, "%n = T[4] negate(%x); %r = T[4] negate(%n)", "%r = T[4] copy(%x)");
    different(dtype, "%r = T[4] add(%x, %y)", "%n = T[4] negate(%y); %r = T[4] subtract(%x, %n)");
}

#[test]
fn ones_drop() {
    let one = |op: &str| format!("%z = T[] constant(1); %b = T[4] broadcast(%z), dimensions={{}}; %r = T[4] {op}");
    for dtype in TYPES {
        for op in ["multiply(%x, %b)", "multiply(%b, %x)", "divide(%x, %b)"] {
            equal(dtype, "%r = T[4] copy(%x)", &one(op));
        }
        different(dtype, "%r = T[4] copy(%x)", &one("divide(%b, %x)"));
        different(dtype, "%r = T[4] copy(%x)", &one("multiply(%y, %b)"));
    }
}

#[test]
fn comparisons_turn() {
    let compare = |operands: &str, direction: &str| format!("%r = pred[4] compare({operands}), direction={direction}");
    for dtype in TYPES {
        for (one, turned) in [("LT", "GT"), ("LE", "GE"), ("GT", "LT"), ("GE", "LE")] {
            equal(dtype, &compare("%x, %y", one), &compare("%y, %x", turned));
            different(dtype, &compare("%x, %y", one), &compare("%x, %y", turned));
        }
        let not =
            |direction: &str| format!("%n = pred[4] compare(%x, %y), direction={direction}; %r = pred[4] not(%n)");
        equal(dtype, &compare("%x, %y", "EQ"), &not("NE"));
        match dtype {
            "s32[4]" | "u8[4]" => equal(dtype, &compare("%x, %y", "LT"), &not("GE")),
            // Where one is a NaN both are false.
            _ => different(dtype, &compare("%x, %y", "LT"), &not("GE")),
        }
    }
}

#[test]
fn integers_add_up() {
    let sums = |first: &str, c: i64, second: &str, d: i64| {
        format!(
            "%c0 = T[] constant({c}); %c1 = T[4] broadcast(%c0), dimensions={{}}; %d0 = T[] constant({d}); %d1 = T[4] \
             broadcast(%d0), dimensions={{}}; %t1 = T[4] {first}(%x, %c1); %r = T[4] {second}(%t1, %d1)"
        )
    };
    for dtype in ["s32[4]", "u8[4]"] {
        equal(dtype, "%r = T[4] copy(%x)", &sums("add", 3, "subtract", 3));
        equal(dtype, &sums("add", 3, "subtract", 1), &sums("subtract", 5, "add", 7));
        equal(dtype, &sums("subtract", 3, "add", 1), &sums("add", 4, "subtract", 6));
        different(dtype, &sums("add", 3, "subtract", 1), &sums("subtract", 5, "add", 6));
    }
    equal("u8[4]", &sums("add", 200, "add", 100), &sums("add", 22, "add", 22));
    equal("s32[4]", &sums("add", 2_147_483_647, "add", 2), &sums("subtract", 2_147_483_647, "add", 0));
    different("f32[4]", "%r = T[4] copy(%x)", &sums("add", 3, "subtract", 3));
}

#[test]
fn a_row_that_is_written_again_counts_once() {
    let update = |from: &str, value: &str, at: &str, name: &str| {
        format!("%s{name} = T[1] slice({value}), slice={{[0:1]}}; {name} = T[4] dynamic-update-slice({from}, %s{name}, {at})")
            .replace("%s%", "%s")
    };
    let own = update("%x", "%y", "%i", "%r");
    for dtype in TYPES {
        equal(dtype, &own, &format!("{}; {}", update("%x", "%y", "%i", "%u"), update("%u", "%y", "%i", "%r")));
        equal(dtype, &own, &format!("{}; {}", update("%x", "%x", "%i", "%u"), update("%u", "%y", "%i", "%r")));
        let next = "%k = s32[] constant(1); %j = s32[] add(%i, %k)";
        let elsewhere = format!("{next}; {}; {}", update("%x", "%y", "%j", "%u"), update("%u", "%y", "%i", "%r"));
        different(dtype, &own, &elsewhere);
    }
}

#[test]
fn branches_of_known_numbers_are_chosen() {
    let conditional = |k: i64| {
        format!("%k = s32[] constant({k}); %r = f32[4] conditional(%k, %x, %x), branch_computations={{%sine, %cosine}}")
    };
    for (k, op) in [(0, "sine"), (1, "cosine"), (5, "cosine"), (-1, "cosine")] {
        equal("f32[4]", &format!("%r = f32[4] {op}(%x)"), &conditional(k));
    }
    different("f32[4]", "%r = f32[4] sine(%x)", &conditional(2));
    let by_truth = |truth: &str| {
        format!(
            "%k = pred[] constant({truth}); %r = f32[4] conditional(%k, %x, %x), true_computation=%sine, false_computation=%cosine"
        )
    };
    equal("f32[4]", "%r = f32[4] sine(%x)", &by_truth("true"));
    equal("f32[4]", "%r = f32[4] cosine(%x)", &by_truth("false"));
    different("f32[4]", "%r = f32[4] cosine(%x)", &by_truth("true"));
}

#[test]
fn a_reduction_of_nothing_is_its_initial_value() {
    let nothing = "%e = f32[0] slice(%x), slice={[2:2]}; %k = f32[] constant(3); %r = f32[] reduce(%e, %k), dimensions={0}, to_apply=%add";
    equal("f32[4]", nothing, "%r = f32[] constant(3)");
    different("f32[4]", nothing, "%r = f32[] constant(0)");
}

#[test]
fn inner_padding_is_a_row_of_elements_and_fillers() {
    let pad = |padding: &str| format!("%k = f32[] constant(7); %r = f32[7] pad(%x, %k), padding={padding}");
    let parts = |order: &str| {
        format!(
            "%k = f32[1] constant({{7}}); %a = f32[1] slice(%x), slice={{[0:1]}}; %b = f32[1] slice(%x), slice={{[1:2]}}; %c = f32[1] \
             slice(%x), slice={{[2:3]}}; %d = f32[1] slice(%x), slice={{[3:4]}}; %r = f32[7] concatenate({order}), dimensions={{0}}"
        )
    };
    equal("f32[4]", &pad("0_0_1"), &parts("%a, %k, %b, %k, %c, %k, %d"));
    equal("f32[4]", &pad("1_-1_1"), &parts("%k, %a, %k, %b, %k, %c, %k"));
    equal("f32[4]", &pad("-1_-2_2"), &parts("%k, %k, %b, %k, %k, %c, %k"));
    different("f32[4]", &pad("1_-1_1"), &parts("%a, %k, %b, %k, %c, %k, %d"));
    equal("f32[4]", "%k = f32[] constant(7); %r = f32[2] pad(%x, %k), padding=3_-5", "%r = f32[2] constant({7, 7})");
}

/// Orders of a maximum do not matter for numbers of any kind, yet the proof counts them as sums.
#[test]
fn a_maximum_of_maxima_is_one() {
    let of = |lines: &str| format!("%k = f32[] constant(-inf); {lines}");
    let whole = of("%r = f32[] reduce(%x, %k), dimensions={0}, to_apply=%max");
    let halves = |second: &str| {
        of(&format!(
            "%a = f32[2] slice(%x), slice={{[0:2]}}; %b = f32[2] slice(%x), slice={{{second}}}; %c = f32[2] maximum(%a, %b); %r = f32[] \
             reduce(%c, %k), dimensions={{0}}, to_apply=%max"
        ))
    };
    let (before, after) = (module("f32[4]", &whole), module("f32[4]", &halves("[2:4]")));
    assert!(prove(&before, &after, &Options::default()).expect("a pair").is_proved());
    assert!(agree(&before, &after));
    let miss = module("f32[4]", &halves("[1:3]"));
    assert!(!prove(&before, &miss, &Options::default()).expect("a pair").is_proved());
    assert!(!agree(&before, &miss));
}

/// Of two tables, two reads and two loops that are not equal the message says what is not.
#[test]
fn messages_say_what_differs() {
    let message = |before: &str, after: &str| {
        let (before, after) = (module("f32[4]", before), module("f32[4]", after));
        let proof = prove(&before, &after, &Options::default()).expect("a pair");
        proof.outputs[0].difference.clone().expect("a difference")
    };
    let of_table = |table: &str| {
        format!("%t = f32[4] constant({{{table}}}); %r = f32[1] dynamic-slice(%t, %i), dynamic_slice_sizes={{1}}")
    };
    let text = message(&of_table("1, 2, 3, 4"), &of_table("1, 2, 9, 4"));
    assert!(
        text.ends_with("expected the table {1, 2, 3, 4}, found the table {1, 2, 9, 4}; at [2] expected 3, found 9"),
        "{text}"
    );
    let of_sum = |from: usize| {
        format!(
            "%k = f32[] constant(0); %s = f32[2] slice(%x), slice={{[{from}:{}]}}; %r = f32[] reduce(%s, %k), dimensions={{0}}, \
             to_apply=%add",
            from + 2
        )
    };
    let text = message(&of_sum(0), &of_sum(1));
    assert!(text.ends_with("; operand 0 is taken at other elements"), "{text}");
}

#[test]
fn shapes_of_one_device_are_no_tiles() {
    let (before, after) =
        (module("f32[4]", "%r = f32[4] copy(%x)"), module("f32[4]", "%r = f32[2] slice(%x), slice={[0:2]}"));
    let error = prove(&before, &after, &Options::default()).expect_err("other outputs").to_string();
    assert_eq!(error, "expected outputs f32[4], found f32[2]");
}
