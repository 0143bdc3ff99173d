//! The evaluator as judge of what is proved: both modules run on the same random inputs on all devices.
//!
//! A proof modulo rules for exact numbers promises less than equal bits, and an optimizer can make much of a rounded sum. So where
//! bits differ both modules run again with f64 in the place of every shorter float: what is equal but for rounding is then equal
//! but for far less.
//!
//! Two of the runs have inputs at the edges of their types: integers of all sizes, and floats that are no finite numbers. What is proved
//! modulo rules for exact numbers promises nothing of the latter, and is not looked at there; what is proved bit for bit must agree
//! to the signs of zeros, unless something is added up: how often an initial value enters a sum is left open.
//!
//! Beside a global program a per-device one runs on tiles of the same whole inputs, and its outputs are held against tiles of the whole outputs, cut as
//! the proof says.

use std::ops::Range;
use std::sync::Arc;

use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::replication::Replication;
use hlo_eval::draw::{Draw, DrawOptions, Same, draw_inputs};
use hlo_eval::global::{GlobalProgram, LeafTiles, TiledInterface};
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::literal::Scalar;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{DType, Literal, Module, Opcode, Shape};
use hlo_opt::work::evaluator_work;
use hlo_prove::{Output, Proof, Verdict};

use super::proof::is_exact;
use super::wild::at_the_edges;

/// How far apart outputs may be, as a share of the largest element, for f32 and for f64.
const NEAR_F32: f64 = 2e-6;
const NEAR_F64: f64 = 1e-9;

/// From how much work, in operations and bytes, a program runs on fewer inputs.
const LARGE: f64 = 1e9;

/// Of a proof of some outputs, on how many inputs they are looked at.
const N_RUNS_OF_PARTS: usize = 3;

/// What the evaluator says of the outputs that are proved.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Judgement {
    /// Equal bits.
    Bits,
    /// Equal but for rounding; of an output that is proved bit for bit if `is_exact`.
    Rounding { is_exact: bool },
    /// Not equal.
    Apart(String),
    /// A module does not run, or short floats differ and the modules with longer ones are not valid.
    Unjudged(String),
}

/// A module with inputs and what it gives for them.
pub(super) struct Judge {
    before: Module,
    /// Of a global program, on how many devices it runs.
    n_global_devices: Option<usize>,
    runs: Vec<Run>,
    max_steps: u64,
}

/// Inputs, and what the first module gives for them.
struct Run {
    inputs: Inputs,
    outputs: Outputs,
    /// Whether some floats are no finite numbers.
    has_specials: bool,
}

impl Judge {
    /// Draws inputs, by `words` if there are any and by distributions of its own, and runs the module, `max_steps` instructions
    /// at most.
    ///
    /// # Errors
    /// It cannot be run.
    pub(super) fn new(before: &Module, words: &str, seed: u64, max_steps: u64) -> Result<Judge, String> {
        Judge::of(before, None, words, seed, max_steps)
    }

    /// The same of a global program on so many devices.
    ///
    /// # Errors
    /// It cannot be run.
    pub(super) fn of_global(
        before: &Module,
        n_devices: usize,
        words: &str,
        seed: u64,
        max_steps: u64,
    ) -> Result<Judge, String> {
        Judge::of(before, Some(n_devices), words, seed, max_steps)
    }

    fn of(
        before: &Module,
        n_global_devices: Option<usize>,
        words: &str,
        seed: u64,
        max_steps: u64,
    ) -> Result<Judge, String> {
        let n_leaves = hlo_eval::entry_leaves(before).len();
        let own = Draw::parse_list(words).map_err(|e| e.to_string())?;
        let mut draws = vec![vec![Draw::Normal(1.0); n_leaves], vec![Draw::Positive(0.7); n_leaves]];
        if own.is_empty() {
            draws.push(vec![Draw::Below(4); n_leaves]);
        } else {
            draws.insert(0, own);
        }
        let is_large = evaluator_work(before) > LARGE;
        if is_large {
            draws.truncate(1);
        }
        let mut runs = Vec::new();
        for (number, draws) in draws.into_iter().enumerate() {
            let options = DrawOptions { seed: seed.wrapping_add(number as u64), draws, same: Same::None };
            let drawn = match n_global_devices {
                Some(n) => global(before, n)?.draw(&options).map_err(|e| e.to_string()),
                None => draw(before, &options),
            };
            let inputs = drawn?;
            // Those at the edges come from what was drawn first, which a program's words say.
            let edged =
                (number == 0).then(|| [false, true].map(|special| (at_the_edges(&inputs, seed, special), special)));
            let edged = edged.into_iter().flatten().filter(|(_, special)| *special || !is_large);
            for (inputs, has_specials) in std::iter::once((inputs, false)).chain(edged) {
                if let Ok(outputs) = evaluate_before(before, n_global_devices, &inputs, max_steps) {
                    runs.push(Run { inputs, outputs, has_specials });
                }
            }
        }
        match runs.is_empty() {
            true => Err("the module does not run".into()),
            false => Ok(Judge { before: before.clone(), n_global_devices, runs, max_steps }),
        }
    }

    /// Leaves out inputs for which a module that is equal is far from the first: there rounding alone has such effects. Gives how
    /// many are left out.
    pub(super) fn leave_out_sensitive(&mut self, equal: &Module, proof: &Proof) -> usize {
        let n = self.runs.len();
        let is_apart = |k: usize| matches!(self.judge_runs(equal, proof, true, k..k + 1), Judgement::Apart(_));
        let apart: Vec<bool> = (0..n).map(is_apart).collect();
        let mut apart = apart.into_iter();
        self.runs.retain(|_| apart.next() == Some(false));
        n - self.runs.len()
    }

    /// Judges the proved outputs. `may_widen`: whether f64 may decide, which is blind for changes of types.
    pub(super) fn judge(&self, after: &Module, proof: &Proof, may_widen: bool) -> Judgement {
        let n_runs = if proof.is_proved() { self.runs.len() } else { self.runs.len().min(N_RUNS_OF_PARTS) };
        match n_runs {
            0 => Judgement::Unjudged("rounding alone shows on all inputs that were drawn".into()),
            _ => self.judge_runs(after, proof, may_widen, 0..n_runs),
        }
    }

    fn judge_runs(&self, after: &Module, proof: &Proof, may_widen: bool, runs: Range<usize>) -> Judgement {
        let mut judgement = Judgement::Bits;
        let has_sums = adds_up(&self.before) || adds_up(after);
        for Run { inputs, outputs: expected, has_specials } in self.runs.get(runs).unwrap_or_default() {
            let found = match self.evaluate_after((&self.before, after), inputs) {
                Ok(found) => found,
                Err(reason) => return Judgement::Unjudged(reason),
            };
            let mut wide = None;
            for output in proof.outputs.iter().filter(|output| output.verdict == Verdict::Proved) {
                let is_exact = is_exact(output);
                if *has_specials && !is_exact {
                    continue;
                }
                let (share, device) = self.share_apart(expected, &found, output, has_sums);
                if share == 0.0 {
                    continue;
                }
                if share > NEAR_F32 {
                    if may_widen && wide.is_none() {
                        wide = Some(self.widened(after, inputs));
                    }
                    let share = match &wide {
                        Some(Ok((expected, found))) => self.share_apart(expected, found, output, has_sums).0,
                        Some(Err(reason)) if !is_exact => return Judgement::Unjudged(format!("with f64: {reason}")),
                        Some(Err(_)) | None => f64::INFINITY,
                    };
                    if share > NEAR_F64 {
                        let leaf = output.leaf;
                        let modulo: Vec<&str> = output.modulo.iter().map(|rule| rule.name).collect();
                        let text = format!(
                            "output {leaf} of device {device}, proved modulo {modulo:?}, is {share:.1e} of its largest element apart"
                        );
                        return Judgement::Apart(text);
                    }
                }
                let was_exact = judgement == Judgement::Rounding { is_exact: true };
                judgement = Judgement::Rounding { is_exact: is_exact || was_exact };
            }
        }
        judgement
    }

    /// What both modules give with f64 in the place of shorter floats.
    fn widened(&self, after: &Module, inputs: &Inputs) -> Result<(Outputs, Outputs), String> {
        let inputs = Inputs {
            leaves: inputs.leaves.iter().map(|row| row.iter().map(|a| Arc::new(wide_array(a))).collect()).collect(),
        };
        let (before, after) = (wide_module(&self.before)?, wide_module(after)?);
        let expected = evaluate_before(&before, self.n_global_devices, &inputs, self.max_steps)?;
        Ok((expected, self.evaluate_after((&before, &after), &inputs)?))
    }

    /// What the second module gives on the first one's inputs, or on its tiles of them.
    fn evaluate_after(&self, (before, after): (&Module, &Module), inputs: &Inputs) -> Result<Outputs, String> {
        let Some(n_devices) = self.n_global_devices else { return evaluate(after, inputs, self.max_steps) };
        let tiles = TiledInterface::between(&global(before, n_devices)?, &[after])
            .and_then(|interface| interface.cut_inputs(inputs))
            .map_err(|e| e.to_string())?;
        evaluate(after, &tiles, self.max_steps)
    }

    /// The largest difference of an output over its largest element, and the device; infinite where one has a NaN, or where no tile is as
    /// the proof says.
    fn share_apart(&self, expected: &Outputs, found: &Outputs, output: &Output, has_sums: bool) -> (f64, usize) {
        let (Some(expected), Some(found)) = (expected.leaves.get(output.leaf), found.leaves.get(output.leaf)) else {
            return (f64::INFINITY, 0);
        };
        let is_signed = is_exact(output) && !has_sums;
        let Some(n_devices) = self.n_global_devices else { return largest_share(expected, found, is_signed) };
        let tiles = output.layout.as_ref().and_then(|layout| {
            let whole = hlo_eval::result_leaves(&self.before).into_iter().nth(output.leaf)?;
            let tiles = LeafTiles::of(layout, &whole, n_devices)?;
            Some((tiles.of_wholes(expected).ok()?, tiles.without_padding(found).ok()?))
        });
        tiles.map_or((f64::INFINITY, 0), |(expected, found)| largest_share(&expected, &found, is_signed))
    }
}

/// Whether a module has a sum of several elements, with an initial value or over devices.
fn adds_up(module: &Module) -> bool {
    let sums = [
        Opcode::Reduce,
        Opcode::ReduceWindow,
        Opcode::AllReduce,
        Opcode::AllReduceStart,
        Opcode::ReduceScatter,
        Opcode::Dot,
        Opcode::Convolution,
        Opcode::Scatter,
        Opcode::SelectAndScatter,
    ];
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.any(|&inst| sums.contains(&module.inst(inst).opcode))
}

/// Inputs that are equal on devices that hold the same value by the entry's annotations.
fn draw(module: &Module, options: &DrawOptions) -> Result<Inputs, String> {
    let mut inputs = draw_inputs(module, None, options).map_err(|e| e.to_string())?;
    let facts = Replication::compute(module, &ParamFacts::default());
    let entry = module.entry().ok_or("the module has no entry")?;
    let mut rows = inputs.leaves.iter_mut();
    for &param in &module.comp(entry).params {
        let mut leaf = 0;
        module.shape(param).for_each_leaf(&mut |_, shape| {
            if let Shape::Array(_) = shape {
                let (row, classes) = (rows.next(), facts.classes(param, leaf));
                if let (Some(row), Some(classes)) = (row, classes) {
                    let first = |class: u32| classes.iter().position(|&c| c == class).unwrap_or(0);
                    *row = classes.iter().filter_map(|&class| row.get(first(class)).cloned()).collect();
                }
            }
            leaf += 1;
        });
    }
    Ok(inputs)
}

pub(crate) fn wide_array(array: &Literal) -> Literal {
    match array.dtype() {
        DType::F32 | DType::BF16 | DType::F16 => array.convert(DType::F64),
        _ => array.clone(),
    }
}

pub(crate) fn wide_module(module: &Module) -> Result<Module, String> {
    let text = print_module(module, &PrintOptions::default());
    let text = ["bf16[", "f16[", "f32["].iter().fold(text, |text, short| text.replace(short, "f64["));
    let parsed = hlo_text::parse_module(&text).map_err(|e| format!("{e:?}"))?;
    hlo_ir::verify::verify(&parsed.module).map_err(|e| format!("{e:?}"))?;
    Ok(parsed.module)
}

/// A global program on so many devices.
fn global(module: &Module, n_devices: usize) -> Result<GlobalProgram<'_>, String> {
    GlobalProgram::on(module, n_devices).map_err(|e| e.to_string())
}

/// The outputs of the first module of a pair; of a global program the wholes that each device holds.
fn evaluate_before(
    module: &Module,
    n_global_devices: Option<usize>,
    inputs: &Inputs,
    max_steps: u64,
) -> Result<Outputs, String> {
    let Some(n_devices) = n_global_devices else { return evaluate(module, inputs, max_steps) };
    let outputs = global(module, n_devices)?.run(inputs, &options(max_steps)).map_err(|e| e.to_string())?;
    Ok(outputs.of_devices().clone())
}

fn evaluate(module: &Module, inputs: &Inputs, max_steps: u64) -> Result<Outputs, String> {
    run(module, inputs, &options(max_steps)).map_err(|e| e.to_string())
}

fn options(max_steps: u64) -> EvalOptions {
    EvalOptions { max_steps, n_threads: 1, ..EvalOptions::default() }
}

/// The largest difference of an output's arrays over their largest element, and the device; infinite where one has a NaN, where
/// integers differ, and if `is_signed` where zeros have other signs.
fn largest_share(expected: &[Arc<Literal>], found: &[Arc<Literal>], is_signed: bool) -> (f64, usize) {
    let shares = expected.iter().zip(found).map(|(a, b)| share_of(a, b, is_signed));
    shares
        .enumerate()
        .map(|(device, share)| (share, device))
        .fold((0.0, 0), |worst, one| if one.0 > worst.0 { one } else { worst })
}

fn share_of(a: &Literal, b: &Literal, is_signed: bool) -> f64 {
    if a.dims() != b.dims() || a.dtype() != b.dtype() {
        return f64::INFINITY;
    }
    let (mut most, mut largest) = (0.0f64, 0.0f64);
    for i in 0..a.n_elems() {
        match (a.get(i), b.get(i)) {
            (Some(Scalar::Float(x)), Some(Scalar::Float(y))) => {
                if is_signed && x == 0.0 && y == 0.0 && x.is_sign_negative() != y.is_sign_negative() {
                    return f64::INFINITY;
                }
            }
            (Some(Scalar::Complex(..)), Some(Scalar::Complex(..))) => {}
            (x, y) if x == y => continue,
            (_, _) => return f64::INFINITY,
        }
        let parts = |scalar: Option<Scalar>| match scalar {
            Some(Scalar::Float(v)) => [v, 0.0],
            Some(Scalar::Complex(re, im)) => [re, im],
            Some(Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_)) | None => [f64::NAN, 0.0],
        };
        for (x, y) in parts(a.get(i)).into_iter().zip(parts(b.get(i))) {
            if x.is_finite() {
                largest = largest.max(x.abs());
            }
            if x == y || (x.is_nan() && y.is_nan()) {
                continue;
            }
            let apart = (x - y).abs();
            most = most.max(if apart.is_nan() { f64::INFINITY } else { apart });
        }
    }
    if most == 0.0 { 0.0 } else { most / largest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prove_check::proof::prove;

    const TWICE: &str = "HloModule m, num_partitions=2\n\nENTRY %main {\n  %x = f32[4] parameter(0)\n  \
                         ROOT %r = f32[4] OP(%x, %x)\n}\n";

    #[test]
    fn what_is_not_equal_is_apart() {
        let module = |op: &str| hlo_text::parse_module(&TWICE.replace("OP", op)).unwrap().module;
        let (add, subtract) = (module("add"), module("subtract"));
        let judge = Judge::new(&add, "", 1, 1000).unwrap();
        let proof = prove(&add, &add).unwrap().proof;
        assert_eq!(judge.judge(&add, &proof, true), Judgement::Bits);
        assert!(matches!(judge.judge(&subtract, &proof, true), Judgement::Apart(_)));
    }

    #[test]
    fn what_differs_at_the_edges_alone_is_apart() {
        let module = |dtype: &str, op: &str| {
            let text = TWICE.replace("f32", dtype).replace("OP(%x, %x)", op);
            hlo_text::parse_module(&text).unwrap().module
        };
        for (dtype, a, b) in [("f32", "maximum(%x, %x)", "abs(%x)"), ("s8", "abs(%x)", "copy(%x)")] {
            let (one, other) = (module(dtype, a), module(dtype, b));
            let judge = Judge::new(&one, "p1", 1, 1000).unwrap();
            let proof = prove(&one, &one).unwrap().proof;
            assert!(matches!(judge.judge(&other, &proof, true), Judgement::Apart(_)), "{a}, {b}");
        }
    }

    #[test]
    fn tiles_are_held_against_a_global_program() {
        let parsed = |text: &str| hlo_text::parse_module(text).unwrap().module;
        let global = parsed(
            "HloModule m\n\nENTRY %main {\n  %x = f32[6] parameter(0), sharding={devices=[4]<=[4]}\n  \
             ROOT %r = f32[6] add(%x, %x), sharding={devices=[4]<=[4]}\n}\n",
        );
        let local = |op: &str| parsed(&TWICE.replace("f32[4]", "f32[2]").replace("=2", "=4").replace("OP", op));
        let judge = Judge::of_global(&global, 4, "", 1, 1000).unwrap();
        let proof = prove(&global, &local("add")).unwrap().proof;
        assert!(proof.is_proved() && proof.is_global);
        assert_eq!(judge.judge(&local("add"), &proof, true), Judgement::Bits);
        assert!(matches!(judge.judge(&local("multiply"), &proof, true), Judgement::Apart(_)));
    }
}
