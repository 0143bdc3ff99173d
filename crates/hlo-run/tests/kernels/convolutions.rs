//! Convolutions in tiles, alone and with what follows them element by element.

use super::{Case, case, check_all, check_all_as, lower, rows::only_launch};
use hlo_gpu::kernel::EmitOptions;
use std::collections::BTreeMap;

/// Draws numbers; equal seeds give equal ones.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// Dim labels: of a forward pass, with images and features first or last; of the gradients of the input and of the kernel.
const LABELS: [&str; 6] =
    ["b01f_01io->b01f", "bf01_oi01->bf01", "b01f_01oi->b01f", "f01b_i01o->01bf", "fb01_io01->fb01", "01bf_o01i->f01b"];

/// Sizes in the order of labels.
fn dims(labels: &str, size: impl Fn(char) -> i64) -> Vec<i64> {
    labels.chars().map(size).collect()
}

fn list(dims: &[i64]) -> String {
    dims.iter().map(i64::to_string).collect::<Vec<String>>().join(",")
}

/// A shape with the dims in one of several orders in memory.
fn shape(numbers: &mut Numbers, dtype: &str, dims: &[i64]) -> String {
    let layout = numbers.of(&["", "", "{3,2,1,0}", "{2,1,0,3}", "{0,3,2,1}"]);
    format!("{dtype}[{}]{layout}", list(dims))
}

/// A convolution of which the result is rectified, with the mask of what stays, or added to; what is wanted of the result decides `kind`.
fn random_case(seed: u64, types: [&str; 2]) -> Case {
    let mut numbers = Numbers(seed);
    let [from, to] = types;
    let labels = numbers.of(&LABELS);
    let (inputs, rest) = labels.split_once('_').expect("labels");
    let (kernels, outputs) = rest.split_once("->").expect("labels");
    let (is_of_features, is_of_batch) = (numbers.below(6) == 0, numbers.below(8) == 0);
    let groups = if is_of_features || is_of_batch { 2 } else { 1 };
    let feature_groups = if is_of_features { groups } else { 1 };
    let batch_groups = if is_of_batch && !is_of_features { groups } else { 1 };
    let channels = numbers.of(&[3, 8, 16, 20, 24, 63, 64]);
    let features = groups * numbers.of(&[4, 8, 12, 33, 40, 72]);
    let batch = numbers.of(&[3, 4, 8, 16]);
    let mut window = Vec::new();
    let (mut size, mut n_inputs, mut n_outputs) = ([1; 2], [1; 2], [1; 2]);
    let words = |list: Vec<String>| list.join("x");
    let (mut strides, mut pads, mut base, mut dilations, mut reversed) = (vec![], vec![], vec![], vec![], vec![]);
    for d in 0..2 {
        size[d] = 1 + numbers.below(4) as i64;
        let stride = 1 + numbers.below(2) as i64;
        let (low, high) = (numbers.below(3) as i64, numbers.below(3) as i64);
        let (base_dilation, dilation) = (numbers.of(&[1, 1, 2]), numbers.of(&[1, 1, 2]));
        n_inputs[d] = 7 + numbers.below(7) as i64;
        let padded = (n_inputs[d] - 1) * base_dilation + 1 + low + high;
        n_outputs[d] = (padded - ((size[d] - 1) * dilation + 1)) / stride + 1;
        strides.push(stride.to_string());
        pads.push(format!("{low}_{high}"));
        base.push(base_dilation.to_string());
        dilations.push(dilation.to_string());
        reversed.push(numbers.of(&["0", "0", "1"]).to_string());
    }
    window.push(format!("size={}x{}", size[0], size[1]));
    window.push(format!("stride={}", words(strides)));
    window.push(format!("pad={}", words(pads)));
    window.push(format!("lhs_dilate={}", words(base)));
    window.push(format!("rhs_dilate={}", words(dilations)));
    window.push(format!("rhs_reversal={}", words(reversed)));
    let spatial = |sizes: [i64; 2], label: char| sizes[usize::from(label == '1')];
    let input = dims(inputs, |label| match label {
        'b' => batch * batch_groups,
        'f' => channels * feature_groups,
        _ => spatial(n_inputs, label),
    });
    let kernel = dims(kernels, |label| match label {
        'i' => channels,
        'o' => features,
        _ => spatial(size, label),
    });
    let output = dims(outputs, |label| match label {
        'b' => batch,
        'f' => features,
        _ => spatial(n_outputs, label),
    });
    let feature_dim = outputs.find('f').expect("features");
    let (x, w) = (shape(&mut numbers, from, &input), shape(&mut numbers, from, &kernel));
    let (y, o) = (format!("{to}[{}]", list(&output)), shape(&mut numbers, to, &output));
    let pred = format!("pred[{}]", list(&output));
    let conv = format!(
        "convolution(x, w), window={{{}}}, dim_labels={labels}, feature_group_count={feature_groups}, batch_group_count={batch_groups}",
        window.join(" ")
    );
    let parameters = format!("x = {x} parameter(0)\n w = {w} parameter(1)");
    let kind = if to == "c64" { 0 } else { numbers.below(3) }; // complex numbers have no order
    let text = match kind {
        0 => format!("HloModule c\nENTRY main {{\n {parameters}\n ROOT c = {o} {conv}\n}}"),
        kind => {
            let [result, all] = if kind == 1 {
                [
                    format!("on = {pred} compare(a, zeros), direction=GT\n ROOT r = ({y}, {pred}) tuple(y, on)"),
                    format!("({y}, {pred})"),
                ]
            } else {
                [format!("ROOT r = {y} add(y, z)"), y.clone()]
            };
            format!(
                "HloModule c
fused {{
 {parameters}
 b = {to}[{features}] parameter(2)
 z = {y} parameter(3)
 c = {y} {conv}
 bs = {y} broadcast(b), dimensions={{{feature_dim}}}
 a = {y} add(c, bs)
 zero = {to}[] constant(0)
 zeros = {y} broadcast(zero), dimensions={{}}
 y = {y} maximum(a, zeros)
 {result}
}}
ENTRY main {{
 {parameters}
 b = {to}[{features}] parameter(2)
 z = {y} parameter(3)
 ROOT f = {all} fusion(x, w, b, z), kind=kCustom, calls=fused
}}"
            )
        }
    };
    case(&format!("{types:?} {seed}: {text}"), &text)
}

/// What kernels for tensor cores call.
const OF_WARPS: &str = "add_products_of_warp";

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn convolutions_in_tiles_agree_with_the_evaluator() {
    let types = [
        ["f32", "f32"],
        ["bf16", "bf16"],
        ["f16", "f16"],
        ["f32", "f32"],
        ["bf16", "f32"],
        ["f64", "f64"],
        ["s8", "s32"],
        ["c64", "c64"],
        ["f32", "f32"],
        ["bf16", "bf16"],
        ["s16", "s16"],
    ];
    let mut cases = Vec::new();
    let mut n_of_tensor_cores = 0;
    for seed in 0..160 {
        let case = random_case(seed * 977 + 13, types[seed as usize % types.len()]);
        let (kernel, _) = only_launch(&case.module);
        if !kernel.is_cooperative {
            continue; // few elements
        }
        n_of_tensor_cores += usize::from(kernel.source.contains(OF_WARPS));
        cases.push(case);
    }
    assert!(cases.len() > 100 && n_of_tensor_cores > 30, "{} in tiles, {n_of_tensor_cores}", cases.len());
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// The case with factors that are numbers of bf16, which are the same in TF32.
fn with_short_factors(case_of_f32: &Case, text: &str) -> Case {
    let (before, entry) = text.split_once("ENTRY").expect("an entry");
    let mut entry = entry.to_string();
    for (name, number) in [("x", 0), ("w", 1)] {
        let end = format!(" parameter({number})");
        let (head, rest) = entry.split_once(&end).expect("a parameter");
        let (lines, shape) = head.rsplit_once(&format!("{name} = f32")).expect("its shape");
        entry = format!("{lines}{name}.short = bf16{shape}{end}\n {name} = f32{shape} convert({name}.short){rest}");
    }
    case(&case_of_f32.name, &format!("{before}ENTRY{entry}"))
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn convolutions_in_tf32_agree_with_the_evaluator() {
    let how = EmitOptions { uses_tf32: true, ..EmitOptions::default() };
    let cases = (0..60).map(|seed| random_case(seed * 877 + 5, ["f32", "f32"]));
    let mut cases: Vec<Case> = cases
        .map(|case| {
            let text = case.name.split_once(": ").expect("a text").1.to_string();
            with_short_factors(&case, &text)
        })
        .collect();
    let uses_warps = |case: &Case, how: &EmitOptions| {
        lower(&case.module, how).steps.iter().any(|(_, step)| match step {
            super::Step::Launch { kernel, .. } => kernel.source.contains(OF_WARPS),
            super::Step::Parameter(_) | super::Step::Fill(_) => false,
        })
    };
    cases.retain(|case| uses_warps(case, &how));
    assert!(cases.len() > 30, "{}", cases.len());
    assert!(!cases.iter().any(|case| uses_warps(case, &EmitOptions::default())));
    // Both factors are rounded, whichever way they are read.
    for case in &cases {
        for (_, step) in lower(&case.module, &how).steps {
            if let super::Step::Launch { kernel, .. } = step
                && kernel.source.contains(OF_WARPS)
            {
                let rounded = kernel.source.split("hlo::round_tf32(").skip(1).filter_map(|rest| rest.split('[').next());
                assert_eq!(rounded.collect::<std::collections::BTreeSet<_>>().len(), 2, "{}", kernel.source);
            }
        }
    }
    assert_eq!(check_all_as(&cases, how), BTreeMap::new());
}

/// Small arrays whose windows and pads go beyond 32 bits.
#[test]
fn far_positions_agree_with_the_evaluator() {
    let dilated = "HloModule m
ENTRY e {
  x = f32[8,5,16] parameter(0)
  w = f32[3,16,16] parameter(1)
  ROOT c = f32[8,11,16] convolution(x, w), window={size=3 pad=-2399999990_2 lhs_dilate=600000000}, dim_labels=b0f_0io->b0f
}";
    let padded = "HloModule m
ENTRY e {
  x = f32[8,9] parameter(0)
  z = f32[] constant(7)
  ROOT c = f32[8,12] pad(x, z), padding=0_0x0_4294967296_-4294967293
}";
    assert_eq!(check_all(&[case("dilated", dilated), case("padded", padded)]), BTreeMap::new());
}
