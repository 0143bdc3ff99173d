//! Kernels of columns: what is summed along slow dims by the threads that compute and write it.

use super::rows::only_launch;
use super::{Case, case, check_all};
use std::collections::BTreeMap;

/// Two results of dims `[parts, rows, columns]` in this order of memory, and the sums of the rows of one of them and of a product.
fn columns_case(dtype: &str, dims: &[i64; 3], layout: &str) -> Case {
    let [parts, rows, columns] = dims;
    let (x, s) = (format!("{dtype}[{parts},{rows},{columns}]{layout}"), format!("{dtype}[{parts},{columns}]"));
    let text = format!(
        "HloModule columns
add {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] add(a, b) }}
most {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] maximum(a, b) }}
fused {{
  x = {x} parameter(0)
  y = {x} parameter(1)
  bias = {dtype}[{columns}] parameter(2)
  zero = {dtype}[] constant(0)
  lowest = {dtype}[] constant(-inf)
  biases = {x} broadcast(bias), dimensions={{2}}
  g = {x} multiply(x, y)
  h = {x} add(g, biases)
  square = {x} multiply(h, x)
  s = {s} reduce(g, zero), dimensions={{1}}, to_apply=add
  q = {s} reduce(square, lowest), dimensions={{1}}, to_apply=most
  ROOT all = ({s}, {x}, {s}, {x}) tuple(s, g, q, h)
}}
ENTRY main {{
  x = {x} parameter(0)
  y = {x} parameter(1)
  bias = {dtype}[{columns}] parameter(2)
  ROOT f = ({s}, {x}, {s}, {x}) fusion(x, y, bias), kind=kInput, calls=fused
}}"
    );
    case(&format!("columns {dtype}[{parts},{rows},{columns}]{layout}"), &text)
}

#[test]
fn columns_agree_with_the_evaluator() {
    let shapes: [(&str, &[i64; 3], &str); 16] = [
        ("f32", &[8, 128, 64], ""),
        ("f32", &[4, 64, 32], ""),
        ("f32", &[3, 37, 33], ""),
        ("f32", &[2, 5, 100], ""),
        ("f32", &[1, 300, 7], ""),
        ("f32", &[5, 2, 129], ""),
        ("f32", &[6, 9, 40], "{2,0,1}"),
        ("f32", &[6, 9, 40], "{1,2,0}"),
        ("bf16", &[4, 64, 128], ""),
        ("bf16", &[3, 10, 66], ""),
        ("bf16", &[3, 10, 67], ""),
        ("bf16", &[40, 11, 512], ""),
        ("bf16", &[130, 6, 130], ""),
        ("f16", &[2, 33, 64], ""),
        ("f64", &[4, 17, 48], ""),
        ("f64", &[70, 8, 32], ""),
    ];
    let cases: Vec<Case> = shapes.iter().map(|(dtype, dims, layout)| columns_case(dtype, dims, layout)).collect();
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// A sum of a view: the rows of a batch, and columns that are two dims of what is written.
#[test]
fn a_sum_may_be_of_a_view() {
    let text = "HloModule columns
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
fused {
  x = f32[4,50,3,16] parameter(0)
  e = pred[4,50,3,16] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[4,50,3,16] broadcast(zero), dimensions={}
  g = f32[4,50,3,16] select(e, x, zeros)
  view = f32[5,40,48] reshape(g)
  s = f32[5,48] reduce(view, zero), dimensions={1}, to_apply=add
  ROOT all = (f32[4,50,3,16], f32[5,48]) tuple(g, s)
}
ENTRY main {
  x = f32[4,50,3,16] parameter(0)
  e = pred[4,50,3,16] parameter(1)
  ROOT f = (f32[4,50,3,16], f32[5,48]) fusion(x, e), kind=kInput, calls=fused
}";
    let case = case("columns of a view", text);
    let (kernel, shared) = only_launch(&case.module);
    // What is written whole may lie where what is selected lies; 5 parts of 2 tiles of columns are so many blocks.
    assert_eq!(shared, [(0, 0)]);
    assert_eq!((kernel.grid, kernel.block), (10, 256));
    assert!(!kernel.source.contains("p0["), "x is read once, in packs:\n{}", kernel.source);
    assert_eq!(check_all(&[case]), BTreeMap::new());
}

/// The gradient of a norm: rows with sums along them, a residual, one element for each row, and sums of columns of parts of the rows.
fn norm_case(dtype: &str, [parts, rows, columns]: [i64; 3], n_whole: usize) -> Case {
    let n = parts * rows;
    let (x, r, c, s) = (
        format!("{dtype}[{n},{columns}]"),
        format!("{dtype}[{n}]"),
        format!("{dtype}[{parts},{rows},{columns}]"),
        format!("{dtype}[{parts},{columns}]"),
    );
    let results = ["dx", "sum", "beta", "gamma"];
    let shapes = [&x, &r, &s, &s].map(String::as_str);
    let kept = if n_whole == 1 { 0..4 } else { 1..4 };
    let (names, shapes) = (results[kept.clone()].join(", "), shapes[kept].join(", "));
    let text = format!(
        "HloModule norms
add {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] add(a, b) }}
fused {{
  dy = {x} parameter(0)
  x = {x} parameter(1)
  scale = {dtype}[{columns}] parameter(2)
  rest = {x} parameter(3)
  zero = {dtype}[] constant(0)
  scales = {x} broadcast(scale), dimensions={{1}}
  g = {x} multiply(dy, scales)
  gx = {x} multiply(g, x)
  sum = {r} reduce(gx, zero), dimensions={{1}}, to_apply=add
  sums = {x} broadcast(sum), dimensions={{0}}
  back = {x} multiply(x, sums)
  d = {x} subtract(g, back)
  dx = {x} add(d, rest)
  dyx = {x} multiply(dy, x)
  of_dy = {c} reshape(dx)
  of_dyx = {c} reshape(dyx)
  beta = {s} reduce(of_dy, zero), dimensions={{1}}, to_apply=add
  gamma = {s} reduce(of_dyx, zero), dimensions={{1}}, to_apply=add
  ROOT all = ({shapes}) tuple({names})
}}
ENTRY main {{
  dy = {x} parameter(0)
  x = {x} parameter(1)
  scale = {dtype}[{columns}] parameter(2)
  rest = {x} parameter(3)
  ROOT f = ({shapes}) fusion(dy, x, scale, rest), kind=kInput, calls=fused
}}"
    );
    case(&format!("norm {dtype}[{parts},{rows},{columns}] {n_whole}"), &text)
}

#[test]
fn norms_with_sums_of_columns_agree_with_the_evaluator() {
    let shapes: [(&str, [i64; 3], usize); 13] = [
        ("f32", [8, 16, 64], 1),
        ("f32", [3, 5, 32], 1),
        ("f32", [2, 9, 48], 1),
        ("f32", [4, 8, 512], 1),
        ("f32", [4, 8, 512], 0),
        ("f32", [2, 3, 768], 1),
        ("f32", [3, 4, 1040], 0),
        ("f32", [1, 3, 4096], 1),
        ("f32", [2, 2, 16384], 1),
        ("bf16", [4, 8, 256], 1),
        ("bf16", [2, 11, 1024], 1),
        ("f16", [2, 7, 96], 1),
        ("f64", [3, 10, 512], 1),
    ];
    let cases: Vec<Case> = shapes.map(|(dtype, dims, n_whole)| norm_case(dtype, dims, n_whole)).into();
    for (case, (_, [parts, ..], _)) in cases.iter().zip(shapes) {
        assert_eq!(i64::from(only_launch(&case.module).0.grid), parts, "{}: a block for each part", case.name);
    }
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// Rows as long as parts are: the sum of columns has the dims of what is one element for each row, and stands before it in the text.
#[test]
fn a_sum_of_columns_is_not_taken_for_one_of_rows() {
    let text = "HloModule square
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
fused {
  x = f32[12,64,64] parameter(0)
  zero = f32[] constant(0)
  down = f32[12,64] reduce(x, zero), dimensions={1}, to_apply=add
  sum = f32[12,64] reduce(x, zero), dimensions={2}, to_apply=add
  sums = f32[12,64,64] broadcast(sum), dimensions={0,1}
  d = f32[12,64,64] subtract(x, sums)
  ROOT all = (f32[12,64], f32[12,64,64]) tuple(down, d)
}
ENTRY main {
  x = f32[12,64,64] parameter(0)
  ROOT f = (f32[12,64], f32[12,64,64]) fusion(x), kind=kInput, calls=fused
}";
    let case = case("square", text);
    let (kernel, shared) = only_launch(&case.module);
    assert_eq!((kernel.grid, shared), (12, vec![(0, 1)]));
    assert!(!kernel.source.contains("p0["), "each element is loaded once:\n{}", kernel.source);
    assert_eq!(check_all(&[case]), BTreeMap::new());
}

/// Many sums share one table of shared memory: a block has 48 KiB.
#[test]
fn sums_share_their_memory() {
    let n_sums = 56;
    let list = |of: &dyn Fn(usize) -> String| (0..n_sums).map(of).collect::<Vec<String>>();
    let shapes = ["f64[4,64,64]".to_string()].into_iter().chain(list(&|_| "f64[4,64]".into()));
    let shapes = shapes.collect::<Vec<String>>().join(", ");
    let sums = list(&|k| {
        format!(
            "  n{k} = f64[] constant({k})
  b{k} = f64[4,64,64] broadcast(n{k}), dimensions={{}}
  m{k} = f64[4,64,64] multiply(view, b{k})
  sum{k} = f64[4,64] reduce(m{k}, zero), dimensions={{1}}, to_apply=add"
        )
    });
    let names = list(&|k| format!("sum{k}")).join(", ");
    let text = format!(
        "HloModule many
add {{ a = f64[] parameter(0) b = f64[] parameter(1) ROOT s = f64[] add(a, b) }}
fused {{
  x = f64[4,64,64] parameter(0)
  zero = f64[] constant(0)
  view = f64[4,64,64] negate(x)
{}
  ROOT all = ({}) tuple(view, {names})
}}
ENTRY main {{
  x = f64[4,64,64] parameter(0)
  ROOT f = ({}) fusion(x), kind=kInput, calls=fused
}}",
        sums.join("\n"),
        shapes,
        shapes,
    );
    let case = case("many", &text);
    let (kernel, _) = only_launch(&case.module);
    let tables: Vec<&str> = kernel.source.lines().filter(|line| line.contains("__shared__")).map(str::trim).collect();
    assert_eq!(tables.len(), 1, "{tables:?}");
    assert!(tables[0].starts_with("__shared__ double") && tables[0].ends_with("[256];"), "{tables:?}");
    assert_eq!(check_all(&[case]), BTreeMap::new());
}
