//! Text to module and back.

use hlo_ir::Module;
use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_tests::{Sample, first_difference, samples};

fn parse(sample: &Sample, text: &str) -> Result<Module, String> {
    let path = sample.path.display().to_string();
    hlo_text::parse_module(text)
        .map(|parsed| parsed.module)
        .map_err(|diags| hlo_text::render(&diags, &path, text, false))
}

fn print(module: &Module, form: FormChoice) -> String {
    print_module(module, &PrintOptions { form, ..PrintOptions::default() })
}

/// Runs `check` on every sample of the folder and reports all that fail.
fn for_all(folder: &str, check: impl Fn(&Sample) -> Result<(), String>) {
    let failures: Vec<String> = samples(folder)
        .iter()
        .filter_map(|sample| check(sample).err().map(|error| format!("{folder}/{}.hlo: {error}", sample.name())))
        .collect();
    assert!(failures.is_empty(), "{} samples fail\n{}", failures.len(), failures.join("\n"));
}

fn expect_same(what: &str, found: &str, expected: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {}", first_difference(found, expected))) }
}

/// Texts in XLA's own form come back byte for byte.
fn comes_back(sample: &Sample) -> Result<(), String> {
    let module = parse(sample, &sample.text)?;
    expect_same("auto", &print(&module, FormChoice::Auto), sample.body())
}

/// Every form parses and prints the same again, and long to short to long loses nothing but debug info.
fn is_stable(sample: &Sample) -> Result<(), String> {
    let module = parse(sample, &sample.text)?;
    let [auto, long, short] = [FormChoice::Auto, FormChoice::Long, FormChoice::Short].map(|form| print(&module, form));
    let reread = |text: &str, form| Ok::<_, String>(print(&parse(sample, text)?, form));
    expect_same("auto, read again", &reread(&auto, FormChoice::Auto)?, &auto)?;
    let long_again = reread(&long, FormChoice::Long)?;
    // Debug tables are numbered in the order of the text that is read, as XLA does it; the first print puts that text in
    // order, so only the second is final.
    if module.header.tables.is_empty() {
        expect_same("long, read again", &long_again, &long)?;
    }
    expect_same("long, read a third time", &reread(&long_again, FormChoice::Long)?, &long_again)?;
    expect_same("auto of long", &reread(&long, FormChoice::Auto)?, &long)?;
    expect_same("short, read again", &reread(&short, FormChoice::Short)?, &short)?;
    expect_same("auto of short", &reread(&short, FormChoice::Auto)?, &short)?;
    expect_same("short of long", &reread(&long, FormChoice::Short)?, &short)?;
    let long_of_short = reread(&short, FormChoice::Long)?;
    expect_same("short of long of short", &reread(&long_of_short, FormChoice::Short)?, &short)
}

/// Samples whose print differs from XLA's, with the reason.
const DIFFERS_FROM_XLA: [(&str, &str); 6] = [
    ("literals-elided", "XLA replaces an elided constant by made-up numbers; we keep it elided"),
    ("literals-negative-zero", "XLA prints negative zero as `-0`, which it reads as +0; we print `-0.0`"),
    ("names", "XLA's short form leaves out the `%` without which nobody can read a name like `true`; we keep it"),
    ("short-channels", "XLA prints a channel id that is not positive and takes it for none; we leave it out"),
    ("short-convolution", "XLA prints no window where none was written; we print the one that it compiles"),
    ("origin-recovery-table", "XLA reads and prints the modules within the table anew; we keep its text"),
];

/// `--format long` and `--format short` print what XLA prints.
fn prints_as_xla(sample: &Sample) -> Result<(), String> {
    let module = parse(sample, &sample.text)?;
    let difference = [("long.expected", FormChoice::Long), ("short.expected", FormChoice::Short)]
        .iter()
        .map(|&(extension, form)| {
            let expected = sample.beside(extension).ok_or_else(|| format!("no {extension} beside it"))?;
            expect_same(extension, &print(&module, form), &expected)
        })
        .find_map(Result::err);
    let reason = DIFFERS_FROM_XLA.iter().find(|(name, _)| *name == sample.name()).map(|(_, reason)| reason);
    match (difference, reason) {
        (None, None) | (Some(_), Some(_)) => Ok(()),
        (Some(difference), None) => Err(difference),
        (None, Some(reason)) => Err(format!("prints as XLA does, but is listed as different: {reason}")),
    }
}

#[test]
fn ops_come_back_byte_for_byte() {
    for_all("ops", comes_back);
}

#[test]
fn programs_come_back_byte_for_byte() {
    for_all("programs", comes_back);
}

#[test]
fn searched_steps_come_back_byte_for_byte() {
    for_all("search", comes_back);
}

#[test]
fn ops_are_stable_in_all_forms() {
    for_all("ops", is_stable);
}

#[test]
fn programs_are_stable_in_all_forms() {
    for_all("programs", is_stable);
}

#[test]
fn searched_steps_are_stable_in_all_forms() {
    for_all("search", is_stable);
}

#[test]
fn syntax_is_stable_in_all_forms() {
    for_all("syntax", is_stable);
}

#[test]
fn syntax_prints_as_xla_prints_it() {
    for_all("syntax", prints_as_xla);
}
