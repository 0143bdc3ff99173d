//! Scatters of rows, alone and with what their arrays and updates are.

use super::{Case, Step, case, check_all, lower, passed};
use hlo_eval::draw::Draw;
use hlo_gpu::kernel::EmitOptions;
use std::collections::BTreeMap;

/// A scatter of rows that lie anywhere: index vectors out of range, most on few rows, more than a block keeps.
fn scattered(dtype: &str, rows: i64, columns: &str, n: i64, below: i64, layout: &str) -> Case {
    let (dims, window) = if columns.is_empty() { (String::new(), "") } else { (format!(",{columns}"), "1") };
    let text = format!(
        "HloModule scattered
%combine (a: {dtype}[], b: {dtype}[]) -> {dtype}[] {{
  %a = {dtype}[] parameter(0)
  %b = {dtype}[] parameter(1)
  %half = {dtype}[] constant(0.5)
  %less = {dtype}[] multiply(%a, %half)
  ROOT %s = {dtype}[] add(%less, %b)
}}

ENTRY %main (x: {dtype}[{rows}{dims}], ids: s32[{n},1], y: {dtype}[{n}{dims}]) -> {dtype}[{rows}{dims}] {{
  %x = {dtype}[{rows}{dims}]{layout} parameter(0)
  %ids = s32[{n},1]{{1,0}} parameter(1)
  %y = {dtype}[{n}{dims}] parameter(2)
  %two = s32[] constant(2)
  %twos = s32[{n},1]{{1,0}} broadcast(%two), dimensions={{}}
  %at = s32[{n},1]{{1,0}} subtract(%ids, %twos)
  ROOT %s = {dtype}[{rows}{dims}]{layout} scatter(%x, %at, %y), update_window_dims={{{window}}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%combine
}}"
    );
    let mut case = case(&format!("scattered {dtype}[{rows}{dims}] {n}"), &text);
    case.draws = Draw::parse_list(&format!("n1 int{below} n1")).expect("draws");
    case
}

/// The combiner is neither associative nor commutative: any other order of updates gives other numbers.
#[test]
fn updates_of_rows_are_taken_in_order() {
    let cases = [
        scattered("f32", 37, "300", 5000, 44, "{1,0}"),
        scattered("f32", 3, "1030", 2500, 7, "{1,0}"),
        scattered("f32", 5000, "40", 3000, 5010, "{1,0}"),
        scattered("f32", 29, "33", 4100, 3, "{0,1}"),
        scattered("f32", 700, "", 9000, 702, "{0}"),
        scattered("bf16", 33, "520", 1025, 36, "{1,0}"),
        scattered("f64", 60, "17", 31, 70, "{1,0}"),
        scattered("f32", 21, "96", 0, 9, "{1,0}"),
    ];
    // Blocks look for the updates of their rows together.
    assert!(cases.iter().all(|case| {
        let steps = lower(&case.module, &EmitOptions::default()).steps;
        steps.iter().any(|(_, step)| {
            matches!(step, Step::Launch { kernel, .. } if kernel.is_cooperative && kernel.name.starts_with("scatter"))
        })
    }));
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// Gradients of two tables that one product gives side by side, with the first rows of one of them in another order, and numbers of a narrow type.
fn gradients(dtype: &str, rows: i64, columns: i64, n: i64) -> Case {
    let (wide, narrow) = (format!("{dtype}[{n},{}]", 2 * columns), format!("bf16[{n},{columns}]"));
    let (table, updates) = (format!("{dtype}[{rows},{columns}]"), format!("{dtype}[{n},{columns}]"));
    let (half, rest) = (n / 2, n - n / 2);
    let how = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add";
    let text = format!(
        "HloModule gradients
add {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] add(a, b) }}
ENTRY main {{
  g = {wide} parameter(0)
  ids = s32[{n},1] parameter(1)
  h = {narrow} parameter(2)
  row = {dtype}[{columns}] parameter(3)
  old = {table} parameter(4)
  few = s32[{half},1] slice(ids), slice={{[0:{half}], [0:1]}}
  zero = {dtype}[] constant(0)
  zeros = {table} broadcast(zero), dimensions={{}}
  left = {updates} slice(g), slice={{[0:{n}], [0:{columns}]}}
  right = {updates} slice(g), slice={{[0:{n}], [{columns}:{}]}}
  turned = {updates} reverse(right), dimensions={{0}}
  a = {table} scatter(zeros, ids, left), {how}
  b = {table} scatter(zeros, ids, turned), {how}
  numbers = {updates} convert(h)
  c = {table} scatter(old, ids, numbers), {how}
  copies = {dtype}[{half},{columns}] broadcast(row), dimensions={{1}}
  d = {table} scatter(old, few, copies), {how}
  last = {dtype}[{rest},{columns}] slice(left), slice={{[{half}:{n}], [0:{columns}]}}
  ROOT all = ({table}, {table}, {table}, {table}, {dtype}[{rest},{columns}]) tuple(a, b, c, d, last)
}}",
        2 * columns
    );
    let mut case = case(&format!("gradients {dtype}[{rows},{columns}] {n}"), &text);
    case.draws = Draw::parse_list(&format!("n1 int{} n1 n1 n1", rows + 2)).expect("draws");
    passed(case, "fuse")
}

#[test]
fn scatters_take_in_zeros_slices_and_conversions() {
    let cases = [
        gradients("f32", 37, 64, 500),
        gradients("f32", 700, 33, 90),
        gradients("f32", 9, 300, 2600),
        gradients("bf16", 61, 48, 130),
        gradients("f64", 5, 7, 41),
    ];
    for case in &cases {
        let steps = lower(&case.module, &EmitOptions::default()).steps;
        let scatters = steps.iter().filter(
            |(_, step)| matches!(step, Step::Launch { kernel, .. } if kernel.source.contains("append_in_order")),
        );
        // The first scatter's slice is read by another instruction too, and written.
        assert_eq!(scatters.count(), 4, "{}", case.name);
        let fills = steps.iter().any(|(_, step)| matches!(step, Step::Launch { operands, .. } if operands.is_empty()));
        assert!(!fills, "{}: zeros lie in no memory", case.name);
    }
    assert_eq!(check_all(&cases), BTreeMap::new());
}
