//! Element types of at most eight bits.

use super::{Step, case, check_all, execute, lower, sanitizers};
use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_gpu::kernel::EmitOptions;
use hlo_ir::Literal;
use hlo_run::Library;
use std::collections::BTreeMap;

/// A sum of small floats stays in `f32` until it is finished, where the evaluator rounds every step, as XLA does on the
/// CPU: so the evaluator adds up the same numbers in `f32` here.
#[test]
fn sums_of_small_floats_are_rounded_once() {
    let sum = |small: &str, summed: &str| {
        format!(
            "HloModule sums\n
%add (a: {summed}[], b: {summed}[]) -> {summed}[] {{
  %a = {summed}[] parameter(0)
  %b = {summed}[] parameter(1)
  ROOT %s = {summed}[] add(%a, %b)
}}

ENTRY %main (x: f32[7,700]) -> ({small}[7], {small}[700]) {{
  %x = f32[7,700]{{1,0}} parameter(0)
  %small = {small}[7,700]{{1,0}} convert(%x)
  %wide = {summed}[7,700]{{1,0}} convert(%small)
  %zero = {summed}[] constant(0)
  %rows = {summed}[7]{{0}} reduce(%wide, %zero), dimensions={{1}}, to_apply=%add
  %columns = {summed}[700]{{0}} reduce(%wide, %zero), dimensions={{0}}, to_apply=%add
  %r = {small}[7]{{0}} convert(%rows)
  %c = {small}[700]{{0}} convert(%columns)
  ROOT %out = ({small}[7]{{0}}, {small}[700]{{0}}) tuple(%r, %c)
}}"
        )
    };
    for small in ["f8e5m2", "f8e4m3fn", "f8e4m3fnuz"] {
        let (ours, wide) = (case(small, &sum(small, small)), case(small, &sum(small, "f32")));
        let inputs =
            draw_inputs(&ours.module, None, &DrawOptions { seed: 7, ..DrawOptions::default() }).expect("inputs");
        let expected = run(&wide.module, &inputs, &EvalOptions::default()).expect("results");
        let inputs: Vec<Literal> = inputs.leaves.iter().map(|row| row[0].as_ref().clone()).collect();
        let lowered = lower(&ours.module, &EmitOptions::default());
        let kernels = lowered.steps.iter().filter_map(|(_, step)| match step {
            Step::Launch { kernel, .. } => Some(kernel),
            Step::Parameter(_) | Step::Fill(_) => None,
        });
        let library = Library::with_sanitizers(kernels, sanitizers().as_deref()).expect("kernels that compile");
        for (found, expected) in execute(&lowered, &library, &inputs, false).iter().zip(&expected.leaves) {
            assert_eq!(found.as_ref(), Some(expected[0].as_ref()), "{small}");
        }
    }
}

/// Numbers of all magnitudes, as `f32` and `f64`, as floats of at most 8 bits and back; every code of 8 bits as a number; and integers
/// below 8 bits by all operations on them: to the bit.
#[test]
fn types_of_at_most_eight_bits_are_those_of_the_evaluator() {
    let small = ["f8e3m4", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu"];
    let narrower = ["f4e2m1fn", "f6e2m3fn", "f6e3m2fn"];
    let (mut lines, mut reducers, mut outs, mut shapes) = (String::new(), String::new(), Vec::new(), Vec::new());
    let mut give = |lines: &mut String, name: &str, shape: String, op: String| {
        lines.push_str(&format!("  %{name} = {shape} {op}\n"));
        outs.push(format!("%{name}"));
        shapes.push(shape);
    };
    // Which bits a NaN has is left open.
    let mut give_bits = |lines: &mut String, name: &str, n: usize| {
        lines.push_str(&format!(
            "  %{name}f = f32[{n}] convert(%{name})
  %{name}bits = u32[{n}] bitcast-convert(%{name}f)
  %{name}nan = pred[{n}] compare(%{name}f, %{name}f), direction=NE
  %{name}marks = u32[{n}] broadcast(%step), dimensions={{}}\n"
        ));
        give(
            lines,
            &format!("{name}out"),
            format!("u32[{n}]"),
            format!("select(%{name}nan, %{name}marks, %{name}bits)"),
        );
    };
    for ty in small.iter().chain(&narrower) {
        lines.push_str(&format!("  %{ty}x = {ty}[65536] convert(%x)\n  %{ty}d = {ty}[65536] convert(%d)\n"));
        give_bits(&mut lines, &format!("{ty}x"), 65536);
        give_bits(&mut lines, &format!("{ty}d"), 65536);
    }
    for ty in small {
        lines.push_str(&format!("  %{ty}codes = {ty}[256] bitcast-convert(%codes)\n"));
        give_bits(&mut lines, &format!("{ty}codes"), 256);
    }
    for ty in ["s1", "s2", "s4", "u1", "u2", "u4"] {
        lines.push_str(&format!("  %{ty}a = {ty}[512] convert(%a)\n  %{ty}b = {ty}[512] convert(%b)\n"));
        let binary = ["add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor"];
        let shifts = ["shift-left", "shift-right-logical", "shift-right-arithmetic", "power"];
        for op in binary.iter().chain(&shifts) {
            give(&mut lines, &format!("{ty}{op}"), format!("{ty}[512]"), format!("{op}(%{ty}a, %{ty}b)"));
        }
        for op in ["not", "count-leading-zeros", "popcnt"] {
            give(&mut lines, &format!("{ty}{op}"), format!("{ty}[512]"), format!("{op}(%{ty}a)"));
        }
        give(&mut lines, &format!("{ty}float"), format!("{ty}[65536]"), "convert(%x)".into());
        give(&mut lines, &format!("{ty}below"), "pred[512]".into(), format!("compare(%{ty}a, %{ty}b), direction=LT"));
        give(&mut lines, &format!("{ty}wide"), "s32[512]".into(), format!("convert(%{ty}a)"));
        let dims =
            "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1";
        let scatter = format!("scatter(%{ty}a, %places, %{ty}b), {dims}, to_apply=%add_{ty}");
        give(&mut lines, &format!("{ty}scattered"), format!("{ty}[512]"), scatter);
        reducers += &format!(
            "%add_{ty} (a: {ty}[], b: {ty}[]) -> {ty}[] {{
  %a = {ty}[] parameter(0)
  %b = {ty}[] parameter(1)
  ROOT %s = {ty}[] add(%a, %b)
}}

"
        );
    }
    let text = format!(
        "HloModule narrow
{reducers}ENTRY %main (k: u32[]) -> ({0}) {{
  %k = u32[] parameter(0)
  %i = u32[65536] iota(), iota_dimension=0
  %step = u32[] constant(65521)
  %steps = u32[65536] broadcast(%step), dimensions={{}}
  %all = u32[65536] multiply(%i, %steps)
  %x = f32[65536] bitcast-convert(%all)
  %wide = f64[65536] convert(%x)
  %near = f64[] constant(1.0000000001)
  %nears = f64[65536] broadcast(%near), dimensions={{}}
  %d = f64[65536] multiply(%wide, %nears)
  %j = u32[256] iota(), iota_dimension=0
  %codes = u8[256] convert(%j)
  %m = s32[512] iota(), iota_dimension=0
  %mask = s32[] constant(15)
  %masks = s32[512] broadcast(%mask), dimensions={{}}
  %a = s32[512] and(%m, %masks)
  %four = s32[] constant(4)
  %fours = s32[512] broadcast(%four), dimensions={{}}
  %b = s32[512] shift-right-logical(%m, %fours)
  %hundred = s32[] constant(100)
  %hundreds = s32[512] broadcast(%hundred), dimensions={{}}
  %places = s32[512] remainder(%m, %hundreds)
{lines}  ROOT %out = ({0}) tuple({1})
}}",
        shapes.join(", "),
        outs.join(", ")
    );
    assert_eq!(check_all(&[case("narrow", &text)]), BTreeMap::new());
}
