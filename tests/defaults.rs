//! An attribute that states its default is one value with none: it reads, prints, hashes, compares, proves and diffs as its absence does.

use crate::cli::{folder, run};
use hlo_ir::attrs::{Attrs, FieldRef, Presence, QuotedText, RawBraces, Window, Word, is_default};
use hlo_ir::dtype::NumberClass;
use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_ir::{DType, InstId, Module};
use hlo_prove::{Options, prove};
use hlo_tests::samples;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

fn parse(text: &str) -> Result<Module, String> {
    let module = hlo_text::parse_module(text).map_err(|diags| hlo_text::render(&diags, "text", text, false))?.module;
    hlo_ir::verify::verify(&module).map_err(|e| format!("{e:?}"))?;
    Ok(module)
}

fn print(module: &Module, form: FormChoice) -> String {
    print_module(module, &PrintOptions { form, ..PrintOptions::default() })
}

fn insts(module: &Module) -> impl Iterator<Item = InstId> {
    module.computations().iter().flat_map(|&comp| module.comp(comp).insts.clone())
}

fn hash(attrs: &Attrs) -> u64 {
    let mut hasher = DefaultHasher::new();
    attrs.hash(&mut hasher);
    hasher.finish()
}

/// Holds a module against the one with a default stated.
fn is_one_value(plain: &Module, stated: &str, files: &std::path::Path) -> Result<(), String> {
    let other = parse(stated)?;
    for (a, b) in insts(plain).zip(insts(&other)) {
        let (a, b) = (plain.inst(a), other.inst(b));
        if a.attrs != b.attrs || hash(&a.attrs) != hash(&b.attrs) || a.marks != b.marks {
            return Err(format!("read as {:?} {:?}, not {:?} {:?}", b.attrs, b.marks, a.attrs, a.marks));
        }
    }
    for form in [FormChoice::Auto, FormChoice::Long, FormChoice::Short] {
        let (a, b) = (print(plain, form), print(&other, form));
        if a != b {
            return Err(format!("printed {form:?}:\n{b}not:\n{a}"));
        }
    }
    let is_proved = |other: &Module| prove(plain, other, &Options::default()).is_ok_and(|proof| proof.is_proved());
    if is_proved(plain) && !is_proved(&other) {
        return Err("not proved".into());
    }
    let [a, b] = ["a.hlo", "b.hlo"].map(|name| files.join(name).display().to_string());
    std::fs::write(&a, print(plain, FormChoice::Auto)).map_err(|e| e.to_string())?;
    std::fs::write(&b, stated).map_err(|e| e.to_string())?;
    let diff = run(&["diff", &a, &b, "--exit-code"]);
    if diff.code != 0 { Err(format!("diff: {}{}", diff.stdout, diff.stderr)) } else { Ok(()) }
}

/// The words that some attribute has as its default.
const WORDS: [&str; 9] = [
    "SCHEDULE_NONE",
    "API_VERSION_ORIGINAL",
    "PADDING_INVALID",
    "unset",
    "FLOAT",
    "SIGNED",
    "UNSIGNED",
    "default",
    "main",
];

/// Texts that state the default of a field, if a text can.
fn stated(key: &str, field: FieldRef<'_>, operand: Option<DType>) -> Vec<String> {
    let is_it = |field: FieldRef<'_>| is_default(key, field, operand);
    match field {
        FieldRef::Bool(_) => vec!["false".into()],
        FieldRef::Dims(_) | FieldRef::Bools(_) | FieldRef::OutputAliases(_) | FieldRef::Comps(_) => vec!["{}".into()],
        FieldRef::OptInt(_) => {
            (-1..=1).filter(|&n| is_it(FieldRef::OptInt(&Some(n)))).map(|n: i64| n.to_string()).collect()
        }
        FieldRef::Word(_) => {
            let words = WORDS.iter().filter(|&&word| is_it(FieldRef::Word(&Word::from(word))));
            words.map(ToString::to_string).collect()
        }
        FieldRef::Words(_) => vec!["{default,default}".into(), "{}".into()],
        FieldRef::Text(_) => vec!["\"\"".into()],
        FieldRef::OptText(_) if is_it(FieldRef::OptText(&Some(QuotedText("main".into())))) => vec!["\"main\"".into()],
        FieldRef::Window(window) if *window == Window::default() => vec!["{}".into()],
        FieldRef::Raw(raw) if *raw == RawBraces::default() => Vec::new(),
        FieldRef::Int(_)
        | FieldRef::OptBool(_)
        | FieldRef::Float(_)
        | FieldRef::OptText(_)
        | FieldRef::Comp(_)
        | FieldRef::Shape(_)
        | FieldRef::Shapes(_)
        | FieldRef::Slice(_)
        | FieldRef::Padding(_)
        | FieldRef::Window(_)
        | FieldRef::ConvDims(_)
        | FieldRef::Groups(_)
        | FieldRef::Pairs(_)
        | FieldRef::DomainSharding(_)
        | FieldRef::Sharding(_)
        | FieldRef::Comparison(_)
        | FieldRef::Raw(_)
        | FieldRef::RawLiteral(_) => Vec::new(),
    }
}

/// A text with an attribute added to the instruction of a name.
fn with_attribute(text: &str, name: &str, attribute: &str) -> Option<String> {
    let is_it = |line: &&str| {
        let line = line.trim_start().trim_start_matches("ROOT ").trim_start_matches('%');
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" = "))
    };
    let line = text.lines().find(is_it)?;
    Some(text.replacen(line, &format!("{line}, {attribute}"), 1))
}

/// Attributes with defaults that no sample can state, with the reason.
const NOT_STATED: [(&str, &str); 3] = [
    ("async_execution_thread", "it stands at the sugar of an async start, whose other attributes are the wrapped op's"),
    ("branch_computations", "an empty list beside the branches that must stand is another conditional"),
    ("output_to_operand_aliasing", "of async starts: as their thread"),
];

#[test]
fn attributes_that_state_their_defaults_are_none() {
    let files = folder("stated_defaults");
    let (mut failures, mut stated_keys, mut open_keys) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for sample in samples("ops") {
        let Ok(module) = parse(&sample.text) else { continue };
        let text = print(&module, FormChoice::Auto);
        for inst in insts(&module) {
            let operand =
                module.inst(inst).operands.first().and_then(|&of| module.shape(of).as_array()).map(|a| a.dtype);
            let format = module.inst(inst).attrs.format();
            let mut texts = Vec::new();
            module.inst(inst).attrs.for_each_field(&mut |key, presence, field| {
                if presence == Presence::IfSet && is_default(key, field, operand) {
                    let values = stated(key, field, operand);
                    if !values.is_empty() {
                        open_keys.insert((format!("{format:?}"), key));
                    }
                    texts.extend(values.into_iter().map(|value| (key, format!("{key}={value}"))));
                }
            });
            for (key, attribute) in texts {
                let Some(changed) = with_attribute(&text, module.inst_name(inst), &attribute) else { continue };
                if let Err(error) = is_one_value(&module, &changed, &files) {
                    if !NOT_STATED.iter().any(|(known, _)| *known == key) {
                        failures.push(format!("{}: %{} {attribute}: {error}", sample.name(), module.inst_name(inst)));
                    }
                    continue;
                }
                stated_keys.insert((format!("{format:?}"), key));
            }
        }
    }
    assert!(failures.is_empty(), "{} fail\n{}", failures.len(), failures.join("\n"));
    let missing: Vec<_> =
        open_keys.difference(&stated_keys).filter(|(_, key)| !NOT_STATED.iter().any(|n| n.0 == *key)).collect();
    assert!(missing.is_empty(), "not stated: {missing:?}");
    assert!(stated_keys.len() >= 50, "only {} attributes: {stated_keys:?}", stated_keys.len());
}

#[test]
fn marks_that_say_nothing_are_none() {
    let files = folder("empty_marks");
    for sample in
        ["add", "custom-call", "dot"].map(|name| samples("ops").into_iter().find(|s| s.name() == name).expect(name))
    {
        let module = parse(&sample.text).expect("a sample");
        let text = print(&module, FormChoice::Auto);
        let entry = module.entry().expect("an entry");
        let name = module.inst_name(module.comp(entry).root.expect("a root")).to_string();
        for mark in [
            "result_accuracy={mode=default}",
            "backend_config=\"\"",
            "metadata={}",
            "frontend_attributes={}",
            "control-predecessors={}",
            "statistics={}",
        ] {
            let stated = with_attribute(&text, &name, mark).expect("the root");
            is_one_value(&module, &stated, &files).unwrap_or_else(|e| panic!("{} {mark}: {e}", sample.name()));
        }
    }
}

#[test]
fn each_type_is_compared_in_its_own_order_by_default() {
    let files = folder("default_orders");
    for &dtype in DType::ALL {
        let module = |order: &str| {
            let order = if order.is_empty() { String::new() } else { format!(", type={order}") };
            format!(
                "HloModule m\n\nENTRY %main {{\n  %a = {dtype}[4] parameter(0)\n  %b = {dtype}[4] parameter(1)\n  \
                 ROOT %c = pred[4] compare(%a, %b), direction=EQ{order}\n}}\n"
            )
        };
        let Ok(plain) = parse(&module("")) else { continue };
        let own = match dtype.class() {
            NumberClass::Pred | NumberClass::Unsigned => "UNSIGNED",
            NumberClass::Signed => "SIGNED",
            NumberClass::Float | NumberClass::Complex => "FLOAT",
        };
        is_one_value(&plain, &module(own), &files).unwrap_or_else(|e| panic!("{dtype}: {e}"));
        if let Ok(total) = parse(&module("TOTALORDER")) {
            assert!(dtype.is_float(), "{dtype}");
            assert_ne!(print(&plain, FormChoice::Auto), print(&total, FormChoice::Auto));
            assert!(!prove(&plain, &total, &Options::default()).expect("a pair").is_proved(), "{dtype}");
        }
    }
}

#[test]
fn layouts_that_state_the_row_major_order_are_none() {
    let files = folder("default_layouts");
    let plain = "HloModule m\n\nENTRY %main {\n  %a = f32[4,2] parameter(0)\n  \
                 ROOT %c = f32[4,2] custom-call(%a), custom_call_target=\"f\"\n}\n";
    let [a, b] = ["a.hlo", "b.hlo"].map(|name| files.join(name).display().to_string());
    for (layout, code, is_proved) in [("{1,0}", 0, true), ("{0,1}", 1, false)] {
        let stated = plain.replace("f32[4,2]", &format!("f32[4,2]{layout}"));
        std::fs::write(&a, plain).expect("a file");
        std::fs::write(&b, &stated).expect("a file");
        assert_eq!(run(&["diff", &a, &b, "--exit-code"]).code, code, "{layout}");
        let [plain, stated] = [plain, stated.as_str()].map(|text| parse(text).expect("a module"));
        assert_eq!(prove(&plain, &stated, &Options::default()).expect("a pair").is_proved(), is_proved, "{layout}");
    }
}

#[test]
fn modules_are_proved_against_their_own_texts() {
    let mut failures = Vec::new();
    for sample in ["ops", "programs", "syntax"].into_iter().flat_map(samples) {
        let Ok(module) = parse(&sample.text) else { continue };
        // Nothing is known of constants that are left out.
        if print(&module, FormChoice::Auto).contains("constant({...})") {
            continue;
        }
        for form in [FormChoice::Auto, FormChoice::Long, FormChoice::Short] {
            let Ok(again) = parse(&print(&module, form)) else { continue };
            match prove(&module, &again, &Options::default()) {
                Ok(proof) if proof.is_proved() => {}
                Ok(proof) => {
                    let open =
                        proof.outputs.iter().find_map(|output| output.difference.clone()).or(proof.effects.difference);
                    failures.push(format!("{} {form:?}: {}", sample.name(), open.unwrap_or_default()));
                }
                Err(error) => failures.push(format!("{} {form:?}: {error}", sample.name())),
            }
        }
    }
    assert!(failures.is_empty(), "{} fail\n{}", failures.len(), failures.join("\n"));
}
