//! Forms of XLA's text that are newer than the version of jaxlib that judges the samples: what they are read as, and that what is printed reads
//! as the same module.

use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_ir::{CompId, Module};

fn print(module: &Module, form: FormChoice) -> String {
    print_module(module, &PrintOptions { form, ..PrintOptions::default() })
}

/// Parses and verifies a text; what is printed of it in all forms must read as the same.
fn read(text: &str) -> Module {
    let parsed = hlo_text::parse_module(text);
    let module = parsed.unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, "text", text, false))).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{text}\n{diags:?}"));
    for form in [FormChoice::Auto, FormChoice::Long, FormChoice::Short] {
        let printed = print(&module, form);
        let again = hlo_text::parse_module(&printed).unwrap_or_else(|diags| panic!("{printed}\n{diags:?}")).module;
        assert_eq!(print(&again, form), printed);
        hlo_ir::verify::verify(&again).unwrap_or_else(|diags| panic!("{printed}\n{diags:?}"));
    }
    module
}

/// The message about a text that must not be read.
fn refusal(text: &str) -> String {
    match hlo_text::parse_module(text) {
        Err(diags) => diags[0].message.clone(),
        Ok(parsed) => hlo_ir::verify::verify(&parsed.module).expect_err("a module that is refused")[0].message.clone(),
    }
}

/// The lines of the entry computation, without those of parameters.
fn entry_lines(module: &Module) -> Vec<String> {
    let text = print(module, FormChoice::Short);
    let entry = text.split("ENTRY").nth(1).expect("an entry");
    let lines = entry.lines().map(str::trim).filter(|line| line.contains(" = ") && !line.contains(" parameter("));
    lines.map(String::from).collect()
}

const TWO: &str = "HloModule m\n\nf {\n  p = f32[4]{0} parameter(0)\n  q = s32[2]{0} parameter(1)\n  n = f32[4]{0} negate(p)\n  ROOT c = f32[3]{0} custom-call(n, q), custom_call_target=\"f\"\n}\n\nENTRY e {\n  a = f32[4]{0} parameter(0)\n  b = s32[2]{0} parameter(1)\n";

#[test]
fn a_chain_begins_where_its_last_operand_is_bound() {
    let text = format!(
        "{TWO}  start = ((f32[4]{{0}}), (), u32[]) async-start(a), calls=f, async_execution_thread=\"side\"\n  \
         bound = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-update(start, b)\n  \
         later = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-update(bound)\n  \
         ROOT done = f32[3]{{0}} async-done(later)\n}}\n"
    );
    let expected = [
        "bound = ((f32[4]{0}, s32[2]{0}), f32[3]{0}, u32[]) async-start(a, b), async_execution_thread=\"side\", calls=f",
        "later = ((f32[4]{0}, s32[2]{0}), f32[3]{0}, u32[]) async-update(bound)",
        "ROOT done = f32[3]{0} async-done(later)",
    ];
    assert_eq!(entry_lines(&read(&text)), expected);
}

#[test]
fn nothing_is_bound_late_in_a_chain_whose_parts_have_one_shape() {
    let text = format!(
        "{TWO}  start = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-start(a, b), calls=f\n  \
         later = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-update(start)\n  \
         ROOT done = f32[3]{{0}} async-done(later)\n}}\n"
    );
    assert_eq!(read(&text).comp(read(&text).entry().expect("an entry")).insts.len(), 5);
}

#[test]
fn the_op_of_a_sugared_start_gets_the_operands_that_updates_bind() {
    let text = "HloModule m\nENTRY e {\n  a = f32[2,3]{1,0} parameter(0)\n  b = f32[3,5]{1,0} parameter(1)\n  \
                s = ((), (), u32[]) dot-start(), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  \
                t = ((f32[2,3]{1,0}), (), u32[]) dot-update(s, a)\n  \
                u = ((f32[2,3]{1,0}, f32[3,5]{1,0}), f32[2,5]{1,0}, u32[]) dot-update(t, b)\n  \
                ROOT d = f32[2,5]{1,0} dot-done(u)\n}\n";
    let expected = [
        "u = ((f32[2,3]{1,0}, f32[3,5]{1,0}), f32[2,5]{1,0}, u32[]) dot-start(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "ROOT d = f32[2,5]{1,0} dot-done(u)",
    ];
    assert_eq!(entry_lines(&read(text)), expected);
}

#[test]
fn a_result_that_is_an_operands_memory_has_no_place_of_its_own() {
    let text = "HloModule m\n\nf {\n  p = f32[4]{0} parameter(0)\n  ROOT c = f32[4]{0} negate(p)\n}\n\nENTRY e {\n  a = f32[4]{0} parameter(0)\n  \
                s = ((f32[4]{0}), (), u32[]) async-start(a), calls=f, output_to_operand_aliasing={{1}: (0, {})}\n  \
                u = ((f32[4]{0}), (), u32[]) async-update(s)\n  ROOT d = f32[4]{0} async-done(u)\n}\n";
    let lines = entry_lines(&read(text));
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().take(2).all(|line| line.contains("= ((f32[4]{0}), f32[4]{0}, u32[]) ")), "{lines:?}");
    let none = text.replace(", output_to_operand_aliasing={{1}: (0, {})}", "");
    assert!(refusal(&none).contains("found ((f32[4]), (), u32[])"), "{}", refusal(&none));
}

#[test]
fn a_chain_that_something_else_takes_is_not_moved() {
    let text = format!(
        "{TWO}  start = ((f32[4]{{0}}), f32[3]{{0}}, u32[]) async-start(a), calls=f\n  \
         context = u32[] get-tuple-element(start), index=2\n  \
         bound = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-update(start, b)\n  \
         ROOT done = f32[3]{{0}} async-done(bound)\n}}\n"
    );
    let message = refusal(&text);
    assert!(message.contains("start") || message.contains("bound"), "{message}");
}

#[test]
fn an_update_may_say_which_context_is_which() {
    let text = format!(
        "{TWO}  start = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-start(a, b), calls=f\n  \
         later = ((f32[4]{{0}}, s32[2]{{0}}), f32[3]{{0}}, u32[]) async-update(start), output_to_operand_aliasing={{{{2}}: (0, {{2}})}}\n  \
         ROOT done = f32[3]{{0}} async-done(later)\n}}\n"
    );
    assert!(print(&read(&text), FormChoice::Long).contains("output_to_operand_aliasing={{2}: (0, {2})}"));
    let wrong = text.replace("(0, {2})", "(0, {7})");
    assert!(refusal(&wrong).contains("an alias of parts that exist"), "{}", refusal(&wrong));
}

#[test]
fn the_thread_of_a_start_holds_for_all_that_runs_there() {
    let text = "HloModule m\n\ng {\n  p = f32[] parameter(0)\n  ROOT n = f32[] negate(p)\n}\n\nf {\n  p = f32[] parameter(0)\n  ROOT c = f32[] call(p), to_apply=g\n}\n\n\
                ENTRY e {\n  a = f32[] parameter(0)\n  s = ((f32[]), f32[], u32[]) call-start(a), to_apply=f, async_execution_thread=\"side\"\n  ROOT d = f32[] call-done(s)\n}\n";
    let module = read(text);
    let thread = |comp: &CompId| module.comp(*comp).execution_thread.clone();
    let others: Vec<_> =
        module.computations().iter().filter(|comp| Some(**comp) != module.entry()).map(thread).collect();
    assert!(others.len() >= 2 && others.iter().all(|thread| thread.as_deref() == Some("side")), "{others:?}");
}

#[test]
fn partial_results_say_how_they_are_combined_and_over_which_axes() {
    let with = |sharding: &str| {
        format!(
            "HloModule m, num_partitions=8\nENTRY e {{\n  ROOT a = f32[8,4]{{1,0}} parameter(0), sharding={sharding}\n}}\n"
        )
    };
    for (written, printed) in [
        (
            "{mesh['x'=2,'y'=4], [{'x'}, {}], unreduced=max{'y'}}",
            "{mesh['x'=2,'y'=4], [{'x'}, {}], unreduced=max{'y'}}",
        ),
        (
            "{mesh['x'=2,'y'=4], [{'x'}, {}], unreduced=sum{'y':(2)2}}",
            "{mesh['x'=2,'y'=4], [{'x'}, {}], unreduced={'y':(2)2}}",
        ),
        ("{mesh['x'=2,'y'=4], unreduced=max{'x','y'}}", "{mesh['x'=2,'y'=4], unreduced=max}"),
        ("{mesh['x'=2,'y'=4] unreduced=min}", "{mesh['x'=2,'y'=4], unreduced=min}"),
        ("{mesh['x'=2,'y'=4], unreduced {'x', 'y'}}", "{mesh['x'=2,'y'=4], unreduced}"),
    ] {
        let text = print(&read(&with(written)), FormChoice::Long);
        assert!(text.contains(&format!("sharding={printed}")), "{written} reads as {text}");
    }
    let message = refusal(&with("{mesh['x'=2,'y'=4], [{'x'}, {}], unreduced=mean{'y'}}"));
    assert!(message.contains("`sum`, `max` or `min`"), "{message}");
}

#[test]
fn metadata_has_a_payload() {
    let text = "HloModule m\nENTRY e {\n  ROOT a = f32[] parameter(0), metadata={op_name=\"x\" metadata_payload=\"a \\\"b\\\"\"}\n}\n";
    assert!(print(&read(text), FormChoice::Long).contains("metadata={op_name=\"x\" metadata_payload=\"a \\\"b\\\"\"}"));
    assert!(refusal(&text.replace("metadata_payload", "payload")).contains("metadata key"));
}

#[test]
fn the_header_has_attributes_for_debuggers() {
    let text = "HloModule m,\ndebug_attributes={\n  {\"a\"}:({original_array_index=1})\n}\n\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n";
    let module = read(text);
    assert!(module.header.debug_attributes.0.contains("original_array_index=1"));
}

#[test]
fn a_signature_may_leave_out_its_colons() {
    let text = "HloModule m\nENTRY %e (a f32[2], b: s32[]) -> f32[2] {\n  %a = f32[2]{0} parameter(0)\n  %b = s32[] parameter(1)\n  ROOT %n = f32[2]{0} negate(%a)\n}\n";
    assert!(print(&read(text), FormChoice::Long).contains("ENTRY %e (a: f32[2], b: s32[]) -> f32[2] {"));
}

#[test]
fn the_sharding_of_an_outfeed_is_that_of_what_it_gives_away() {
    let text = "HloModule m, num_partitions=2\nENTRY e {\n  t = token[] after-all()\n  d = (f32[4,2]{1,0}, f32[2]{0}) parameter(0)\n  \
                ROOT o = token[] outfeed(d, t), outfeed_shape=(f32[4,2]{1,0}, f32[2]{0}), sharding={{devices=[2,1]<=[2]}, {devices=[2]<=[2]}}\n}\n";
    let _ = read(text);
    let short = text.replace("{{devices=[2,1]<=[2]}, {devices=[2]<=[2]}}", "{{devices=[2,1]<=[2]}}");
    assert!(refusal(&short).contains("2 parts of the sharding"), "{}", refusal(&short));
}
