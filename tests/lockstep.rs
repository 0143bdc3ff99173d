//! Running a module on all its devices and looking at every value on the way.

use hlo_analysis::Analyses;
use hlo_eval::{EvalError, EvalOptions, Inputs, Value, run, run_observed};
use hlo_ir::literal::Scalar;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{DType, InstId, Literal, Module, Shape};
use hlo_pass::runner::{RunOptions, RunSummary, bind_text, run_pipeline};
use hlo_tests::random_module::{Input, Rng};
use hlo_tests::unequal_layouts::give_unequal_layouts;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A literal of random small values.
pub(crate) fn random_literal(rng: &mut Rng, dtype: DType, dims: &[i64]) -> Literal {
    let mut literal = Literal::zeros(dtype, dims).expect("dims of a small array");
    for i in 0..literal.n_elems() {
        let bits = rng.next_u64();
        let value = match dtype {
            DType::Pred => Scalar::Pred(bits & 1 == 1),
            t if t.is_integer() => Scalar::Int((bits % 11) as i64 - 3),
            _ => Scalar::Float((bits % 4096) as f64 / 1024.0 - 2.0),
        };
        assert!(literal.set(i, value));
    }
    literal
}

/// Inputs that are equal on devices with equal keys, and drawn anew for each key.
pub(crate) fn draw<'k>(seed: u64, leaves: impl Iterator<Item = (DType, Vec<i64>, Vec<u32>)> + 'k) -> Inputs {
    let row = |(leaf, (dtype, dims, keys)): (usize, (DType, Vec<i64>, Vec<u32>))| {
        let mut known: BTreeMap<u32, Arc<Literal>> = BTreeMap::new();
        let mut of_key = |key: u32| {
            let mut rng = Rng::new(seed ^ ((leaf as u64) << 32) ^ (u64::from(key) << 8));
            known.entry(key).or_insert_with(|| Arc::new(random_literal(&mut rng, dtype, &dims))).clone()
        };
        keys.into_iter().map(&mut of_key).collect()
    };
    Inputs { leaves: leaves.enumerate().map(row).collect() }
}

/// The inputs of a random module.
pub(crate) fn draw_for(seed: u64, inputs: &[Input]) -> Inputs {
    draw(seed, inputs.iter().map(|i| (i.dtype, i.dims.clone(), i.key_of_device.clone())))
}

/// Whether two arrays are equal bit for bit, any NaN equal to any other.
pub(crate) fn are_equal(a: &Literal, b: &Literal) -> bool {
    let number = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let scalar = |x: Option<Scalar>, y: Option<Scalar>| match (x, y) {
        (Some(Scalar::Float(x)), Some(Scalar::Float(y))) => number(x, y),
        (Some(Scalar::Complex(a, b)), Some(Scalar::Complex(x, y))) => number(a, x) && number(b, y),
        (x, y) => x == y,
    };
    if (a.dtype(), a.dims()) != (b.dtype(), b.dims()) {
        return false;
    }
    // Large arrays are mostly equal by their bytes, or differ early.
    let bytes = |x: &Literal| x.data().to_packed_bytes(x.dtype());
    let is_equal_at = |i| scalar(a.get(i), b.get(i));
    (0..a.n_elems().min(16)).all(is_equal_at) && (bytes(a) == bytes(b) || (16..a.n_elems()).all(is_equal_at))
}

/// What was seen of one leaf of an instruction.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Devices with equal numbers ran the instruction together each time and held equal values each time.
    pub labels: Vec<u32>,
}

/// What was seen of every executed instruction's leaves.
pub(crate) type Observed = BTreeMap<(InstId, usize), Seen>;

/// Collects the values of one execution of one instruction, then compares them.
struct Watcher {
    n_devices: usize,
    current: Option<InstId>,
    values: Vec<(u32, Vec<Option<Arc<Literal>>>)>,
    seen: Observed,
}

impl Watcher {
    fn see(&mut self, inst: InstId, device: u32, value: &Value) {
        if self.current != Some(inst) || self.values.last().is_some_and(|(last, _)| *last >= device) {
            self.compare();
            self.current = Some(inst);
        }
        let mut leaves = Vec::new();
        flatten(value, &mut leaves);
        self.values.push((device, leaves));
    }

    /// Refines what was seen by the values of this execution.
    fn compare(&mut self) {
        let Some(inst) = self.current.take() else { return };
        let values = std::mem::take(&mut self.values);
        let n_leaves = values.first().map_or(0, |(_, leaves)| leaves.len());
        for leaf in 0..n_leaves {
            // 0: did not run; then one number for each distinct value.
            let mut number = vec![0u32; self.n_devices];
            let mut distinct: Vec<&Option<Arc<Literal>>> = Vec::new();
            for (device, leaves) in &values {
                let value = &leaves[leaf];
                let same = |known: &&Option<Arc<Literal>>| match (known, value) {
                    (Some(a), Some(b)) => Arc::ptr_eq(a, b) || are_equal(a, b),
                    (None, None) => true,
                    _ => false,
                };
                let found = distinct.iter().position(same);
                number[*device as usize] = 1 + found.unwrap_or(distinct.len()) as u32;
                if found.is_none() {
                    distinct.push(value);
                }
            }
            let seen = self.seen.entry((inst, leaf)).or_insert_with(|| Seen { labels: vec![0; number.len()] });
            let mut numbers: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            for (label, new) in seen.labels.iter_mut().zip(number) {
                let next = numbers.len() as u32;
                *label = *numbers.entry((*label, new)).or_insert(next);
            }
        }
    }
}

fn flatten(value: &Value, out: &mut Vec<Option<Arc<Literal>>>) {
    match value {
        Value::Array(array) => out.push(Some(array.clone())),
        Value::Tuple(elements) => elements.iter().for_each(|e| flatten(e, out)),
        Value::Token => out.push(None),
    }
}

/// Runs `module` and says which devices held equal values of every executed instruction.
pub(crate) fn observe(module: &Module, inputs: &Inputs) -> Result<Observed, EvalError> {
    let mut watcher =
        Watcher { n_devices: module.n_devices(), current: None, values: Vec::new(), seen: Observed::new() };
    let options = EvalOptions { max_steps: 5_000_000, n_threads: 1, ..EvalOptions::default() };
    run_observed(module, inputs, &options, &mut |inst, device, value| watcher.see(inst, device, value))?;
    watcher.compare();
    Ok(watcher.seen)
}

/// Element type and dims of the array leaves of the entry's parameters, with their parameter and leaf number.
pub(crate) fn entry_arrays(module: &Module) -> Vec<(InstId, usize, DType, Vec<i64>)> {
    let mut out = Vec::new();
    let entry = module.entry().expect("an entry");
    for &param in &module.comp(entry).params {
        let mut leaf_idx = 0;
        module.shape(param).for_each_leaf(&mut |_, shape| {
            if let Shape::Array(array) = shape {
                out.push((param, leaf_idx, array.dtype, array.dims.to_vec()));
            }
            leaf_idx += 1;
        });
    }
    out
}

/// Path and text of every sample of a folder below `ir-samples`.
pub(crate) fn samples(folder: &str) -> Vec<(String, String)> {
    let samples = hlo_tests::samples(folder).into_iter();
    samples.map(|sample| (format!("{folder}/{}", sample.name()), sample.text)).collect()
}

/// The module of a text.
pub(crate) fn parse(name: &str, text: &str) -> Module {
    match hlo_text::parse_module(text) {
        Ok(parsed) => parsed.module,
        Err(diags) => panic!("{}", hlo_text::render(&diags, name, text, false)),
    }
}

/// The module of a random text; every second seed gives its arrays unequal layouts.
pub(crate) fn parse_random(seed: u64, text: &str) -> Module {
    let mut module = parse(&format!("seed {seed}"), text);
    if seed % 2 == 1 {
        give_unequal_layouts(&mut module, &mut Rng::new(seed));
    }
    module
}

/// Integers of which the largest is `most` and the least `-most` as `f32`, others on each device: small sums and products are exact.
pub(crate) fn small_integers(seed: u64, n_devices: usize, params: &[Vec<i64>], most: usize) -> Inputs {
    let array = |leaf: usize, device: usize| {
        let mut rng = Rng::new(seed ^ ((leaf as u64) << 20) ^ ((device as u64) << 40));
        let mut array = Literal::zeros(DType::F32, &params[leaf]).expect("dims of a small array");
        for place in 0..array.n_elems() {
            assert!(array.set(place, Scalar::Float(rng.below(2 * most + 1) as f64 - most as f64)));
        }
        Arc::new(array)
    };
    let row = |leaf: usize| (0..n_devices).map(|device| array(leaf, device)).collect();
    Inputs { leaves: (0..params.len()).map(row).collect() }
}

/// Runs passes on a module, which must compute the same bits before and after; what they counted.
pub(crate) fn keeps_every_bit(seed: u64, text: &str, inputs: &Inputs, pipeline: &str) -> RunSummary {
    let mut module = parse_random(seed, text);
    let shown = |module: &Module| print_module(module, &PrintOptions::default());
    let evaluate = |module: &Module| {
        let options = EvalOptions { n_threads: 1, ..EvalOptions::default() };
        run(module, inputs, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}\n{}", shown(module)))
    };
    let before = evaluate(&module);
    let registry = hlo_opt::registry::passes();
    let (passes, target) = bind_text(pipeline, &registry, module.n_devices()).expect("the pass");
    let options = RunOptions { check: true, target: Some(&target), ..RunOptions::default() };
    let once = run_pipeline(&mut module, &mut Analyses::default(), &passes, options);
    let once = once.unwrap_or_else(|e| panic!("seed {seed}: {:?}\n{text}", e.diagnostics));
    let after = evaluate(&module);
    for (leaf, (a, b)) in before.leaves.iter().zip(&after.leaves).enumerate() {
        for (device, (a, b)) in a.iter().zip(b).enumerate() {
            let place = format!("seed {seed}: result {leaf} differs on device {device}");
            assert!(are_equal(a, b), "{place}\n{text}\n{}", shown(&module));
        }
    }
    once
}
