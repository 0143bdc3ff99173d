//! Sums of columns of convolutions, by the threads of their tiles.

use super::{Case, Step, case, check_all, check_all_as, lower, passed};
use hlo_gpu::kernel::EmitOptions;
use std::collections::BTreeMap;

/// A convolution of `[images, height, width, channels]` with 3 x 3 taps to `features`, in `groups`.
struct Layer {
    types: [&'static str; 2],
    dims: [i64; 4],
    features: i64,
    groups: i64,
}

/// What is wanted of it.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// The gradient of an activation, and of the bias before it.
    Bias,
    /// The mean and the mean square of each feature, beside what they are of.
    Statistics,
    /// The mean of each image alone.
    Means,
}

/// Passes the pass, `fuse` in some way, over the text of a layer.
fn fused(layer: &Layer, wanted: Wanted, pass: &str) -> Case {
    let Layer { types: [from, to], dims: [images, height, width, channels], features, groups } = layer;
    let of_group = channels / groups;
    let y = |dtype: &str| format!("{dtype}[{images},{height},{width},{features}]");
    let row = format!("f32[{features}]");
    let (wide, pred) = (y("f32"), y("pred"));
    let y = y(to);
    let what = match wanted {
        Wanted::Bias => format!(
            "g = {y} select(on, c, zeros)
  w32 = {wide} convert(g)
  s = {row} reduce(w32, zero), dimensions={{0,1,2}}, to_apply=add
  ROOT all = ({y}, {row}) tuple(g, s)"
        ),
        Wanted::Statistics => format!(
            "c32 = {wide} convert(c)
  q = {wide} multiply(c32, c32)
  s = {row} reduce(c32, zero), dimensions={{0,1,2}}, to_apply=add
  t = {row} reduce(q, zero), dimensions={{0,1,2}}, to_apply=add
  ROOT all = ({row}, {y}, {row}) tuple(s, c, t)"
        ),
        Wanted::Means => format!(
            "n = {y} negate(c)
  c32 = {wide} convert(n)
  s = f32[{images},{features}] reduce(c32, zero), dimensions={{1,2}}, to_apply=add
  ROOT all = (f32[{images},{features}]) tuple(s)"
        ),
    };
    let text = format!(
        "HloModule sums
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }}
ENTRY main {{
  x = {from}[{images},{height},{width},{channels}] parameter(0)
  w = {from}[3,3,{of_group},{features}] parameter(1)
  on = {pred} parameter(2)
  zero = f32[] constant(0)
  zero.1 = {to}[] constant(0)
  zeros = {y} broadcast(zero.1), dimensions={{}}
  c = {y} convolution(x, w), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f, feature_group_count={groups}
  {what}
}}"
    );
    let name = format!("{wanted:?} of {types:?} {dims:?} {features} {groups}", types = layer.types, dims = layer.dims);
    passed(case(&name, &text), pass)
}

/// Results of the kernel that multiplies, and whether it adds up columns in shared memory.
fn kernel_of(case: &Case, how: &EmitOptions) -> (usize, bool) {
    let launches = lower(&case.module, how).steps.into_iter().filter_map(|(_, step)| match step {
        Step::Launch { kernel, operands, .. } => Some((kernel, operands)),
        Step::Parameter(_) | Step::Fill(_) => None,
    });
    let mut of_products = launches.filter(|(kernel, _)| kernel.source.contains("add_products"));
    let (kernel, operands) = of_products.next().expect("tiles");
    assert!(of_products.next().is_none(), "{}: one kernel multiplies", case.name);
    (kernel.arguments.len() - operands.len(), kernel.source.contains("part * "))
}

fn layers() -> Vec<Layer> {
    let layer = |types, dims, features, groups| Layer { types, dims, features, groups };
    let (f32, bf16) = (["f32", "f32"], ["bf16", "bf16"]);
    vec![
        layer(f32, [4, 16, 16, 4], 32, 1),
        layer(f32, [8, 16, 8, 8], 40, 2),
        layer(f32, [4, 8, 8, 4], 132, 1),
        layer(f32, [4, 16, 16, 6], 33, 3),
        layer(bf16, [4, 16, 16, 8], 32, 1),
        layer(bf16, [16, 8, 8, 8], 40, 2),
        layer(bf16, [4, 16, 16, 8], 136, 1),
        layer(["f16", "f32"], [4, 16, 32, 4], 24, 1),
        layer(["f64", "f64"], [4, 16, 16, 4], 36, 1),
    ]
}

#[test]
fn tiles_add_up_their_columns_as_the_evaluator_does() {
    let mut cases = Vec::new();
    let all = [(Wanted::Bias, 2), (Wanted::Statistics, 3), (Wanted::Means, 1)];
    for (i, layer) in layers().iter().enumerate() {
        let (wanted, n_results) = all[i % all.len()];
        let case = fused(layer, wanted, "fuse");
        assert_eq!(kernel_of(&case, &EmitOptions::default()), (n_results, true), "{}", case.name);
        cases.push(case);
    }
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// Small integers have no bits that TF32 lacks. Where the fusion was made for other tiles, no tensor cores multiply.
#[test]
fn so_do_tiles_of_tf32() {
    let how = EmitOptions { uses_tf32: true, ..EmitOptions::default() };
    let of_f32 = layers().into_iter().filter(|layer| layer.types == ["f32", "f32"]).take(2);
    let mut cases = Vec::new();
    for layer in of_f32 {
        for pass in ["fuse{tf32=true}", "fuse"] {
            let mut case = fused(&layer, Wanted::Statistics, pass);
            case.draws = hlo_eval::draw::Draw::parse_list("int9,int9,int2").expect("draw words");
            let (n_results, has_sums) = kernel_of(&case, &how);
            assert!(n_results == 3 && has_sums, "{} by {pass}", case.name);
            cases.push(case);
        }
    }
    let uses_warps = |case: &&Case| {
        lower(&case.module, &how).steps.iter().any(
            |(_, step)| matches!(step, Step::Launch { kernel, .. } if kernel.source.contains("add_products_of_warp")),
        )
    };
    assert!(cases.iter().step_by(2).all(|case| uses_warps(&case)), "made for tensor cores");
    assert_eq!(check_all_as(&cases, how), BTreeMap::new());
}

/// Rows that are no multiple of those of a tile.
#[test]
fn other_sums_stay_kernels_of_their_own() {
    for dims in [[15, 9, 9, 16], [1, 33, 33, 16]] {
        let case = fused(&Layer { types: ["f32", "f32"], dims, features: 32, groups: 1 }, Wanted::Bias, "fuse");
        let (n_results, has_sums) = kernel_of(&case, &EmitOptions::default());
        assert!(n_results == 1 && !has_sums, "{}", case.name);
        assert_eq!(check_all(&[case]), BTreeMap::new());
    }
}
