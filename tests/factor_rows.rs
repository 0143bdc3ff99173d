//! The columns of factor rules ([`hlo_ir::op::FactorRow`]) against the evaluator, on every sample of an op.

use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, Inputs, run};
use hlo_ir::factors::{FactorUse, find_factors};
use hlo_ir::literal::Scalar;
use hlo_ir::op::{DimPlaces, FactorRow, FactorRule, Linear, Reach, Reads};
use hlo_ir::{DType, InstId, Literal, Module};
use hlo_tests::random_module::Rng;
use hlo_tests::unequal_layouts::give_unequal_layouts;
use hlo_tests::{Sample, samples};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Elements of an operand that are changed one at a time.
const MOST_CHANGED: usize = 64;

/// Whether two elements are the same, any NaN as any other.
fn is_same(a: Option<Scalar>, b: Option<Scalar>) -> bool {
    match (a, b) {
        (Some(Scalar::Float(a)), Some(Scalar::Float(b))) => a == b || a.is_nan() && b.is_nan(),
        (a, b) => a == b,
    }
}

/// An op of one device whose operands are parameters and whose result is an array, with inputs.
struct Case {
    name: String,
    module: Module,
    inst: InstId,
    row: FactorRow,
    /// The parameter's number of each operand; `None` where an operand is computed.
    params: Vec<Option<usize>>,
    inputs: Inputs,
}

/// Every instruction of its sample's op in the samples of ops.
fn cases() -> Vec<Case> {
    let of_sample = |sample: &Sample| -> Vec<Case> {
        let Ok(parsed) = hlo_text::parse_module(&sample.text) else { return Vec::new() };
        let module = parsed.module;
        let Some(entry) = module.entry().filter(|_| module.n_devices() == 1) else { return Vec::new() };
        let is_of_op = |inst: &InstId| module.inst(*inst).opcode.name() == sample.name();
        let insts = module.comp(entry).insts.iter().copied().filter(is_of_op);
        insts.filter_map(|inst| case(sample.name(), module.clone(), inst)).collect()
    };
    samples("ops").iter().flat_map(of_sample).collect()
}

/// The instruction as the result of its module.
fn case(name: &str, mut module: Module, inst: InstId) -> Option<Case> {
    let entry = module.entry()?;
    let params = module.comp(entry).params.clone();
    let are_arrays = params.iter().all(|&param| module.shape(param).as_array().is_some());
    if !are_arrays || module.shape(inst).as_array().is_none() {
        return None;
    }
    let of_operands = module.inst(inst).operands.iter();
    let of_operands: Vec<Option<usize>> =
        of_operands.map(|&operand| params.iter().position(|&param| param == operand)).collect();
    if of_operands.iter().all(Option::is_none) {
        return None;
    }
    module.comp_mut(entry).root = inst.into();
    module.header.entry_computation_layout = None;
    let inputs = draw_inputs(&module, None, &DrawOptions::default()).ok()?;
    let (name, row) = (format!("{name} %{}", module.inst_name(inst)), module.inst(inst).opcode.row().factors.row());
    Some(Case { name, row, params: of_operands, inputs, inst, module })
}

impl Case {
    fn result(&self, inputs: &Inputs) -> Option<Arc<Literal>> {
        let outputs = run(&self.module, inputs, &EvalOptions::default()).ok()?;
        Some(outputs.leaves[0][0].clone())
    }

    fn operand(&self, k: usize) -> Option<&Arc<Literal>> {
        Some(&self.inputs.leaves[self.params.get(k).copied()??][0])
    }

    /// The inputs with another array for one operand.
    fn with(&self, k: usize, array: Literal) -> Option<Inputs> {
        let mut inputs = self.inputs.clone();
        inputs.leaves[self.params[k]?][0] = Arc::new(array);
        Some(inputs)
    }

    /// For elements of an operand, the elements of the result that are others where that one is. Only of numbers, and
    /// of operands that are no other operand too.
    fn changed(&self, k: usize) -> Option<Vec<(usize, BTreeSet<usize>)>> {
        let operand = self.operand(k)?;
        if self.params.iter().filter(|param| **param == self.params[k]).count() > 1 {
            return None;
        }
        if operand.dims().is_empty() || !matches!(operand.dtype(), DType::F32 | DType::F64 | DType::S32 | DType::BF16) {
            return None;
        }
        let before = self.result(&self.inputs)?;
        let n = operand.n_elems();
        let step = n.div_ceil(MOST_CHANGED).max(1);
        let mut found = Vec::new();
        for element in (0..n).step_by(step) {
            let mut changed = (**operand).clone();
            // The bits of another element: whatever the type, a value that the op takes.
            let other = (0..n).map(|at| operand.get(at)).find(|&value| value != operand.get(element))??;
            assert!(changed.set(element, other), "{}", self.name);
            let after = self.result(&self.with(k, changed)?)?;
            let differs = |at: &usize| !is_same(before.get(*at), after.get(*at));
            found.push((element, (0..before.n_elems()).filter(differs).collect()));
        }
        Some(found)
    }

    fn n_elems(&self) -> usize {
        self.module.shape(self.inst).as_array().map_or(0, |array| array.n_elems() as usize)
    }
}

/// How many cases each rule has, to see that a column is tested at all.
fn count(counts: &mut BTreeMap<String, usize>, case: &Case) {
    let rule = format!("{:?}", case.module.inst(case.inst).opcode.row().factors);
    *counts.entry(rule).or_default() += 1;
}

#[test]
fn an_element_reaches_as_many_as_its_column_says() {
    let mut counts = BTreeMap::new();
    for case in cases() {
        let ks = match case.row.reach {
            Reach::Same | Reach::Once => 0..1,
            Reach::OnceAny => 0..case.params.len(),
            Reach::Often | Reach::Open => continue,
        };
        // Bits seen as a type of another width are several elements.
        let is_same_width = |k: usize| {
            let operand = case.module.inst(case.inst).operands[k];
            let bits = |inst| case.module.shape(inst).as_array().map(|array| array.dtype.bits());
            !case.row.sees_layouts || bits(operand) == bits(case.inst)
        };
        for k in ks.filter(|&k| is_same_width(k)) {
            let Some(changed) = case.changed(k) else { continue };
            for (element, changed) in changed {
                assert!(changed.len() <= 1, "{}: element {element} of operand {k} reaches {changed:?}", case.name);
                let is_there = changed.iter().all(|&at| at == element);
                assert!(case.row.reach != Reach::Same || is_there, "{}: element {element}: {changed:?}", case.name);
            }
            count(&mut counts, &case);
        }
    }
    for rule in
        ["Elementwise", "Reshape", "Transpose", "Reverse", "Slice", "DynamicSlice", "Pad", "Concatenate", "Reduce"]
    {
        assert!(counts.contains_key(rule), "no sample shows {rule}: {counts:?}");
    }
}

#[test]
fn one_to_one_ops_use_each_element_once() {
    let mut counts = BTreeMap::new();
    for case in cases().into_iter().filter(|case| case.row.is_one_to_one) {
        for k in 0..case.params.len() {
            let n = case.operand(k).map_or(0, |operand| operand.n_elems());
            let Some(changed) = case.changed(k).filter(|_| n == case.n_elems()) else { continue };
            let places: Vec<usize> = changed.iter().flat_map(|(_, changed)| changed.iter().copied()).collect();
            let distinct: BTreeSet<usize> = places.iter().copied().collect();
            assert_eq!(places.len(), distinct.len(), "{}: operand {k}: {changed:?}", case.name);
            if case.module.inst(case.inst).opcode.row().factors != FactorRule::Elementwise {
                assert_eq!(places.len(), changed.len(), "{}: an element is not used", case.name);
            }
            count(&mut counts, &case);
        }
    }
    for rule in ["Elementwise", "Reshape", "Transpose", "Reverse"] {
        assert!(counts.contains_key(rule), "no sample shows {rule}: {counts:?}");
    }
}

#[test]
fn no_more_is_read_than_the_column_says() {
    let mut counts = BTreeMap::new();
    for case in cases() {
        let Some(operand) = case.operand(0) else { continue };
        let most = match case.row.reads {
            Reads::Picks | Reads::LooksUp => case.n_elems(),
            Reads::Around => {
                operand.n_elems() - case.operand(1).map_or(0, |update| update.n_elems()).min(operand.n_elems())
            }
            Reads::Share | Reads::Whole => continue,
        };
        let Some(changed) = case.changed(0).filter(|changed| changed.len() == operand.n_elems()) else { continue };
        let n_read = changed.iter().filter(|(_, changed)| !changed.is_empty()).count();
        assert!(n_read <= most, "{}: {n_read} elements are read, {most} are said", case.name);
        count(&mut counts, &case);
    }
    for rule in ["Slice", "DynamicSlice", "DynamicUpdateSlice", "Gather"] {
        assert!(counts.contains_key(rule), "no sample shows {rule}: {counts:?}");
    }
}

/// f(x + y) = f(x) + f(y) for arrays x and y in these operands.
fn assert_linear(case: &Case, ks: &[usize]) -> Option<()> {
    let distinct: BTreeSet<_> = case.params.iter().collect();
    if distinct.len() != case.params.len() || case.params.contains(&None) {
        return None;
    }
    let drawn = |seed: u64| draw_inputs(&case.module, None, &DrawOptions { seed, ..DrawOptions::default() }).ok();
    let (x, y) = (drawn(1)?, drawn(2)?);
    let mut sum = x.clone();
    let (mut only_x, mut only_y) = (x.clone(), x);
    for &k in ks {
        let param = case.params[k]?;
        let (a, b) = (&only_x.leaves[param][0], &y.leaves[param][0]);
        let (a, b) = (a.elems::<f32>()?, b.elems::<f32>()?);
        let both = a.iter().zip(b).map(|(a, b)| a + b).collect();
        let dims = sum.leaves[param][0].dims().to_vec();
        sum.leaves[param][0] = Arc::new(Literal::from_elems::<f32>(&dims, both).ok()?);
        only_y.leaves[param][0] = y.leaves[param][0].clone();
        only_x.leaves[param][0] = only_x.leaves[param][0].clone();
    }
    let (x, y, sum) = (case.result(&only_x)?, case.result(&only_y)?, case.result(&sum)?);
    let (x, y, sum) = (x.elems::<f32>()?, y.elems::<f32>()?, sum.elems::<f32>()?);
    for (at, sum) in sum.iter().enumerate() {
        let expected = x[at] + y[at];
        let scale = x[at].abs().max(y[at].abs()).max(1.0);
        assert!((sum - expected).abs() <= 1e-4 * scale, "{}, operands {ks:?}: {sum}, expected {expected}", case.name);
    }
    Some(())
}

#[test]
fn linear_ops_are_linear() {
    let mut counts = BTreeMap::new();
    for case in cases() {
        let n = case.params.len();
        let sets: Vec<Vec<usize>> = match case.row.linear {
            Linear::Each if n <= 2 => (0..n).map(|k| vec![k]).collect(),
            Linear::Together => vec![(0..n).collect()],
            Linear::Each | Linear::ByFormula | Linear::Never => continue,
        };
        for set in sets {
            if assert_linear(&case, &set).is_some() {
                count(&mut counts, &case);
            }
        }
    }
    for rule in ["Broadcast", "Reshape", "Transpose", "Slice", "Dot", "Convolution", "Concatenate"] {
        assert!(counts.contains_key(rule), "no sample shows {rule}: {counts:?}");
    }
}

#[test]
fn results_depend_on_layouts_where_the_column_says_so_alone() {
    let mut n_checked = 0;
    for case in cases().into_iter().filter(|case| !case.row.sees_layouts) {
        let Some(before) = case.result(&case.inputs) else { continue };
        for seed in 0..3 {
            let mut module = case.module.clone();
            give_unequal_layouts(&mut module, &mut Rng::new(seed));
            let Ok(after) = run(&module, &case.inputs, &EvalOptions::default()) else { continue };
            assert!(
                crate::lockstep::are_equal(&before, &after.leaves[0][0]),
                "{} by layouts of seed {seed}",
                case.name
            );
            n_checked += 1;
        }
    }
    assert!(n_checked > 100, "{n_checked}");
}

#[test]
fn dims_are_in_the_places_that_the_column_says() {
    let mut counts = BTreeMap::new();
    for case in cases() {
        let ks = match case.row.places {
            DimPlaces::All => 0..case.params.len(),
            DimPlaces::First => 0..1,
            DimPlaces::Permuted | DimPlaces::New => continue,
        };
        let Ok(set) = find_factors(&case.module, case.inst) else { continue };
        for k in ks {
            let (operand, result) = (&set.operands[k], &set.results[0]);
            if operand.len() != result.len() {
                continue;
            }
            for (dim, (of_operand, of_result)) in operand.iter().zip(result).enumerate() {
                let factors = |uses: &[FactorUse]| uses.iter().map(|used| used.factor).collect::<Vec<_>>();
                let elsewhere = result.iter().enumerate().filter(|(other, _)| *other != dim);
                let is_elsewhere = |factor: &usize| elsewhere.clone().any(|(_, uses)| factors(uses).contains(factor));
                let moved: Vec<usize> = factors(of_operand).into_iter().filter(is_elsewhere).collect();
                assert!(moved.is_empty(), "{}: dim {dim} of operand {k}: {moved:?}, {of_result:?}", case.name);
            }
            count(&mut counts, &case);
        }
    }
    for rule in ["Elementwise", "Reverse", "Slice", "DynamicSlice", "DynamicUpdateSlice", "Pad", "Concatenate"] {
        assert!(counts.contains_key(rule), "no sample shows {rule}: {counts:?}");
    }
}
