//! The evaluator as judge: a module before and after a pipeline gives the same results on every device.

use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::replication::Replication;
use hlo_eval::draw::{Draw, DrawOptions, Same};
use hlo_eval::global::{GlobalProgram, TiledInterface, find_manual_region};
use hlo_eval::{EvalOptions, Inputs, Outputs, entry_leaves};
use hlo_ir::devices::find_n_devices;
use hlo_ir::literal::{Literal, Scalar};
use hlo_ir::{Module, NumberClass, Shape};
use std::sync::Arc;

/// How near two results must be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Nearness {
    /// Bit for bit.
    Exact,
    /// Every element within this share of the output's largest element.
    WithinShare(f64),
}

/// Runs `before` and `after` on the same random inputs, `seed` by seed, and compares all outputs of all devices.
///
/// Devices that hold the same value by the entry's annotations get the same values.
///
/// # Errors
/// What does not run, or which output of which device differs and by how much.
pub(crate) fn check(before: &Module, after: &Module, draw: &str, near: Nearness) -> Result<(), String> {
    for seed in 1..=3 {
        let inputs = draw_inputs(before, draw, seed);
        let run = |what: &str, module: &Module| {
            hlo_eval::run(module, &inputs, &EvalOptions::default()).map_err(|e| format!("{what}: {e}"))
        };
        compare(&run("before", before)?, &run("after", after)?, near).map_err(|e| format!("seed {seed}: {e}"))?;
    }
    Ok(())
}

/// As [`check`], where `chain` of modules, each fed with the outputs of the one before, does what `before` does.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_chain(before: &Module, chain: &[&Module], draw: &str, near: Nearness) -> Result<(), String> {
    for seed in 1..=2 {
        let inputs = draw_inputs(before, draw, seed);
        let run = |what: &str, module: &Module, inputs: &Inputs| {
            hlo_eval::run(module, inputs, &EvalOptions::default()).map_err(|e| format!("{what}: {e}"))
        };
        let mut leaves = inputs.leaves.clone();
        for module in chain {
            leaves = run(&module.name, module, &Inputs { leaves })?.leaves;
        }
        compare(&run("before", before, &inputs)?, &Outputs { leaves }, near)
            .map_err(|e| format!("seed {seed}: {e}"))?;
    }
    Ok(())
}

/// Runs the global program `before`, and `after`, its program on each device (or another global program), on the same inputs, and compares
/// all outputs by the tiles that devices hold, within the 2e-5th part of the output's largest element.
///
/// # Errors
/// What does not run, or which output of which device differs and by how much.
pub(crate) fn check_global(before: &Module, after: &Module, draw: &str) -> Result<(), String> {
    let draws =
        draw.split_whitespace().map(Draw::parse).collect::<Result<Vec<Draw>, _>>().map_err(|e| e.to_string())?;
    // Only what comes after may say on how many devices the program runs.
    let n_devices = find_n_devices(before).max(find_n_devices(after));
    let global = GlobalProgram::on(before, n_devices).map_err(|e| e.to_string())?;
    for seed in 1..=2 {
        let options = DrawOptions { seed, draws: draws.clone(), same: Same::Auto };
        let wholes = global.draw(&options).map_err(|e| format!("before: {e}"))?;
        let outputs = global.run(&wholes, &EvalOptions::default()).map_err(|e| format!("before: {e}"))?;
        // What is only annotated has the number of partitions in its header, and whole inputs that it says are cut.
        let shapes = |module: &Module| entry_leaves(module).into_iter().map(|leaf| leaf.shape.dims).collect::<Vec<_>>();
        let is_annotated = || shapes(before) == shapes(after) && TiledInterface::between(&global, &[after]).is_err();
        let is_global = find_manual_region(after).is_some() || after.n_devices() == 1 || is_annotated();
        let (expected, found) = match is_global {
            true => {
                let again = GlobalProgram::of(after).map_err(|e| format!("after: {e}"))?;
                let found = again.run(&wholes, &EvalOptions::default()).map_err(|e| format!("after: {e}"))?;
                (outputs.of_devices().clone(), found.of_devices().clone())
            }
            false => {
                let tiled = TiledInterface::between(&global, &[after]).map_err(|e| format!("after: {e}"))?;
                let inputs = tiled.cut_inputs(&wholes).map_err(|e| e.to_string())?;
                let found =
                    hlo_eval::run(after, &inputs, &EvalOptions::default()).map_err(|e| format!("after: {e}"))?;
                in_tiles(&tiled, outputs.of_devices(), &found)?
            }
        };
        compare(&expected, &found, Nearness::WithinShare(2e-5)).map_err(|e| format!("seed {seed}: {e}"))?;
    }
    Ok(())
}

/// Whole outputs as tiles, and tiles without their padding.
fn in_tiles(tiled: &TiledInterface, wholes: &Outputs, tiles: &Outputs) -> Result<(Outputs, Outputs), String> {
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for (leaf, (whole, tile)) in wholes.leaves.iter().zip(&tiles.leaves).enumerate() {
        let cut = tiled.of_output(leaf).first().ok_or("an output without tiles")?;
        expected.push(cut.of_wholes(whole).map_err(|e| e.to_string())?);
        found.push(cut.without_padding(tile).map_err(|e| e.to_string())?);
    }
    Ok((Outputs { leaves: expected }, Outputs { leaves: found }))
}

/// Compares all outputs of all devices.
///
/// # Errors
/// Which output of which device differs and by how much.
pub(crate) fn compare(before: &Outputs, after: &Outputs, near: Nearness) -> Result<(), String> {
    if before.leaves.len() != after.leaves.len() {
        return Err(format!("expected {} outputs, found {}", before.leaves.len(), after.leaves.len()));
    }
    for (i, (expected, found)) in before.leaves.iter().zip(&after.leaves).enumerate() {
        if expected.len() != found.len() {
            return Err(format!("output {i}: expected {} devices, found {}", expected.len(), found.len()));
        }
        for (device, (expected, found)) in expected.iter().zip(found).enumerate() {
            let is_near = match near {
                Nearness::Exact => expected == found,
                Nearness::WithinShare(share) => share_apart(expected, found) <= share,
            };
            if !is_near {
                let share = share_apart(expected, found);
                return Err(format!("output {i} of device {device} differs by {share:.1e} of its largest element"));
            }
        }
    }
    Ok(())
}

/// The largest difference of two arrays over the largest magnitude of the first; infinite where only one has a NaN.
fn share_apart(expected: &Literal, found: &Literal) -> f64 {
    if expected.dtype() != found.dtype() {
        return f64::INFINITY;
    }
    let (worst, largest) = apart(expected, found);
    if worst == 0.0 { 0.0 } else { worst / largest }
}

/// How far each output of all devices lies from `truth`, at the most.
pub(crate) fn distances(truth: &Outputs, found: &Outputs) -> Vec<f64> {
    let far = |(truth, found): (&Vec<Arc<Literal>>, &Vec<Arc<Literal>>)| {
        truth.iter().zip(found).map(|(truth, found)| apart(truth, found).0).fold(0.0, f64::max)
    };
    truth.leaves.iter().zip(&found.leaves).map(far).collect()
}

/// The largest difference of two arrays, and the largest magnitude of the first.
fn apart(expected: &Literal, found: &Literal) -> (f64, f64) {
    if expected.dims() != found.dims() {
        return (f64::INFINITY, 0.0);
    }
    let values = |literal: &Literal| -> Vec<f64> {
        let parts = (0..literal.n_elems()).filter_map(|i| literal.get(i)).flat_map(|scalar| match scalar {
            Scalar::Pred(v) => [f64::from(u8::from(v)), 0.0],
            Scalar::Int(v) => [v as f64, 0.0],
            Scalar::Uint(v) => [v as f64, 0.0],
            Scalar::Float(v) => [v, 0.0],
            Scalar::Complex(re, im) => [re, im],
        });
        parts.collect()
    };
    let (expected, found) = (values(expected), values(found));
    let largest = expected.iter().fold(0.0f64, |max, v| max.max(v.abs()));
    let apart = |(a, b): (&f64, &f64)| match (a == b || (a.is_nan() && b.is_nan()), (a - b).abs()) {
        (true, _) => 0.0,
        (false, difference) if difference.is_nan() => f64::INFINITY,
        (false, difference) => difference,
    };
    (expected.iter().zip(&found).map(apart).fold(0.0, f64::max), largest)
}

/// Draws the entry's parameters; the words are those of the `// draw:` header.
fn draw_inputs(module: &Module, draw: &str, seed: u64) -> Inputs {
    let facts = Replication::compute(module, &ParamFacts::default());
    let entry = module.entry().expect("a verified module has an entry");
    let mut words = draw.split_whitespace();
    let mut row_number = 0;
    let mut leaves = Vec::new();
    for &param in &module.comp(entry).params {
        let mut leaf_idx = 0;
        module.shape(param).for_each_leaf(&mut |_, shape| {
            if let Shape::Array(array) = shape {
                let word = words.next().unwrap_or("n1");
                let classes = facts.classes(param, leaf_idx).expect("parameters are reached").to_vec();
                let draw_one = |class: u32| {
                    let mut random = Random(seed ^ (row_number << 32) ^ (u64::from(class) << 48) ^ 0x5DEE_CE66);
                    Arc::new(draw_array(array.dtype, &array.dims, word, &mut random))
                };
                leaves.push(classes.into_iter().map(draw_one).collect());
                row_number += 1;
            }
            leaf_idx += 1;
        });
    }
    assert_eq!(leaves.len(), entry_leaves(module).len());
    Inputs { leaves }
}

fn draw_array(dtype: hlo_ir::DType, dims: &[i64], word: &str, random: &mut Random) -> Literal {
    let mut array = Literal::zeros(dtype, dims).expect("dims of a verified module");
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|e| panic!("draw word `{word}`: {e}"));
    let is_float = matches!(dtype.class(), NumberClass::Float | NumberClass::Complex);
    for i in 0..array.n_elems() {
        let value = match (word.strip_prefix("int"), word.strip_prefix('n'), word.strip_prefix('p')) {
            (Some(bound), ..) => (random.uniform() * number(bound)).floor(),
            (None, Some(_), _) if !is_float => (random.uniform() * 8.0).floor(),
            (None, Some(scale), _) => random.normal() * number(scale),
            (None, None, Some(scale)) => random.normal().abs() * number(scale),
            (None, None, None) => number(word),
        };
        let scalar = match dtype.class() {
            NumberClass::Pred => Scalar::Pred(value as i64 % 2 == 1),
            NumberClass::Signed => Scalar::Int(value as i64),
            NumberClass::Unsigned => Scalar::Uint(value as u64),
            NumberClass::Float => Scalar::Float(value),
            NumberClass::Complex => Scalar::Complex(value, random.normal()),
        };
        assert!(array.set(i, scalar), "the scalar is of the array's class");
    }
    array
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `0..1`.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Of mean 0 and variance 1 (Box and Muller).
    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}
