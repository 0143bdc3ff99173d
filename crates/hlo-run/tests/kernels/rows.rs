//! Kernels of rows: reductions along the fastest dims, and what carries their results back.

use super::{Case, Step, case, check_all, lower};
use hlo_gpu::kernel::EmitOptions;
use hlo_gpu::plan::Kernel;
use hlo_ir::Module;
use std::collections::BTreeMap;

/// Softmax, its sums, and a residual: rows of `columns` along the last `n_along` dims of `dims`, with what is one element for each row.
fn rows_case(dtype: &str, dims: &[i64], n_along: usize, layout: &str) -> Case {
    let list = |dims: &[i64]| dims.iter().map(i64::to_string).collect::<Vec<String>>().join(",");
    let (kept, all) = (&dims[..dims.len() - n_along], list(dims));
    let (row, rank) = (list(kept), dims.len());
    let along = (rank - n_along..rank).map(|d| d.to_string()).collect::<Vec<String>>().join(",");
    let back = (0..kept.len()).map(|d| d.to_string()).collect::<Vec<String>>().join(",");
    let (x, r) = (format!("{dtype}[{all}]{layout}"), format!("{dtype}[{row}]"));
    let text = format!(
        "HloModule rows
add {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] add(a, b) }}
most {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] maximum(a, b) }}
fused {{
  x = {x} parameter(0)
  y = {x} parameter(1)
  scale = {r} parameter(2)
  lowest = {dtype}[] constant(-inf)
  zero = {dtype}[] constant(0)
  top = {r} reduce(x, lowest), dimensions={{{along}}}, to_apply=most
  tops = {x} broadcast(top), dimensions={{{back}}}
  below = {x} subtract(x, tops)
  e = {x} exponential(below)
  total = {r} reduce(e, zero), dimensions={{{along}}}, to_apply=add
  totals = {x} broadcast(total), dimensions={{{back}}}
  p = {x} divide(e, totals)
  out = {x} add(p, y)
  scaled = {r} multiply(total, scale)
  ROOT all = ({x}, {r}, {r}) tuple(out, scaled, top)
}}
ENTRY main {{
  x = {x} parameter(0)
  y = {x} parameter(1)
  scale = {r} parameter(2)
  ROOT f = ({x}, {r}, {r}) fusion(x, y, scale), kind=kLoop, calls=fused
}}"
    );
    case(&format!("rows {dtype}[{all}]{layout}"), &text)
}

/// The first launch of a module, and which operands its results may overwrite.
pub(super) fn only_launch(module: &Module) -> (Kernel, Vec<(usize, usize)>) {
    let steps = lower(module, &EmitOptions::default()).steps.into_iter();
    let launches = steps.filter_map(|(_, step)| match step {
        Step::Launch { kernel, shared, .. } => Some((kernel, shared)),
        Step::Parameter(_) | Step::Fill(_) => None,
    });
    let [launch] = launches.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("expected one launch"));
    launch
}

#[test]
fn an_operand_of_which_other_rows_are_read_is_not_overwritten() {
    let text = "HloModule rows
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
fused {
  x = f32[8,64] parameter(0)
  y = f32[8,64] parameter(1)
  zero = f32[] constant(0)
  total = f32[8] reduce(x, zero), dimensions={1}, to_apply=add
  totals = f32[8,64] broadcast(total), dimensions={0}
  p = f32[8,64] divide(x, totals)
  other = f32[8,64] reverse(y), dimensions={0}
  ROOT out = f32[8,64] add(p, other)
}
ENTRY main {
  x = f32[8,64] parameter(0)
  y = f32[8,64] parameter(1)
  ROOT f = f32[8,64] fusion(x, y), kind=kLoop, calls=fused
}";
    let case = case("other rows", text);
    assert_eq!(only_launch(&case.module).1, [(0, 0)]);
    assert_eq!(check_all(&[case]), BTreeMap::new());
}

/// Rows of all lengths that teams take: those that fit into registers and those that do not, whole packs and single elements.
#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn rows_agree_with_the_evaluator() {
    let shapes: [(&str, &[i64], usize, &str); 31] = [
        ("f32", &[700, 2], 1, ""),
        ("f32", &[300, 4], 1, ""),
        ("f32", &[5, 31], 1, ""),
        ("bf16", &[260, 3, 4], 2, ""),
        ("f32", &[9, 32], 1, ""),
        ("f32", &[8, 33], 1, ""),
        ("f32", &[3, 5, 512], 1, ""),
        ("f32", &[7, 768], 1, ""),
        ("f32", &[5, 2049], 1, ""),
        ("f32", &[3, 4096], 1, ""),
        ("f32", &[2, 50257], 1, ""),
        ("f32", &[1, 70000], 1, ""),
        ("f32", &[6, 5, 16], 2, ""),
        ("f32", &[4, 3, 160], 1, "{2,0,1}"),
        ("f32", &[40, 96], 1, "{0,1}"),
        ("bf16", &[9, 1000], 1, ""),
        ("bf16", &[11, 77], 1, ""),
        ("f64", &[5, 640], 1, ""),
        ("f16", &[6, 264], 1, ""),
        // One row alone.
        ("f32", &[1, 512], 1, ""),
        ("bf16", &[1, 1, 33000], 1, ""),
        ("f32", &[1, 17], 1, ""),
        // Rows that begin and end within a pack.
        ("f32", &[13, 129], 1, ""),
        ("f32", &[6, 1023], 1, ""),
        ("f32", &[5, 4098], 1, ""),
        ("f32", &[2, 20001], 1, ""),
        ("f32", &[4, 5, 43], 2, ""),
        ("bf16", &[9, 257], 1, ""),
        ("bf16", &[11, 8191], 1, ""),
        ("f16", &[1, 33001], 1, ""),
        ("f64", &[5, 641], 1, ""),
    ];
    let cases = shapes.map(|(dtype, dims, n_along, layout)| rows_case(dtype, dims, n_along, layout));
    for (case, (_, dims, n_along, layout)) in cases.iter().zip(shapes) {
        let (kernel, shared) = only_launch(&case.module);
        // Both operands of whole rows may be overwritten: no thread reads what another one has written.
        let wanted: &[(usize, usize)] = if layout.is_empty() { &[(0, 0), (1, 0)] } else { &[] };
        assert_eq!(shared, wanted, "{}", case.name);
        // Threads work together, and none goes over a row alone but where it is short.
        let alone = format!("< {}; ++", dims[dims.len() - n_along..].last().expect("a dim"));
        let is_shared_out = kernel.is_cooperative && !kernel.source.contains(&alone);
        let is_short = dims[dims.len() - n_along..].iter().product::<i64>() < 32;
        assert!(is_shared_out != is_short, "{}: {}", case.name, kernel.source);
    }
    assert_eq!(check_all(&cases), BTreeMap::new());
}
