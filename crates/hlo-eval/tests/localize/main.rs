//! The numeric meaning of factors and local forms: every instruction of the op samples, cut along each of its factors, gives
//! shards that join to what the whole instruction gives.
//!
//! Each instruction is taken out of its module with the values that its operands have there, so indices, init values and
//! matrices are sensible. Along every factor it is cut for 2, 3, 4 and 5 devices, and along every two for 2 × 3, whether or not
//! the factors divide: shards have `ceil(size / n)` positions, the last ones hold fewer or none, and padding holds garbage. A
//! program with the local form of the instruction runs on all devices. A cut that has no local form must say why.

mod program;
mod shards;

use hlo_eval::{EvalOptions, Inputs, entry_leaves, run};
use hlo_ir::attrs::{Attrs, ParameterAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::factors::{FactorRole, FactorSet, find_factors};
use hlo_ir::localize::{CannotCut, localize};
use hlo_ir::module::Instruction;
use hlo_ir::op::{EvalRule, FactorRule, Opcode};
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Scalar, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

type Array = Arc<Literal>;

fn sample_modules() -> Vec<(String, Module)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/ops");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder of samples")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == "hlo"))
        .collect();
    files.sort();
    let parse = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        let parsed = hlo_text::parse_module(&text).unwrap_or_else(|d| panic!("{}: {:?}", path.display(), d[0]));
        (path.file_stem().expect("a file name").to_string_lossy().into_owned(), parsed.module)
    };
    files.into_iter().map(parse).collect()
}

/// The module with a new, empty entry computation instead of its own, for one device.
fn fresh_entry(module: &Module) -> (Module, CompId) {
    let mut module = module.clone();
    let name = module.names.fresh("alone");
    let old = module.entry().expect("an entry");
    let order: Vec<_> = module.computations().iter().copied().filter(|&c| c != old).collect();
    module.set_computation_order(order);
    let comp = module.add_computation(name);
    module.set_entry(comp);
    module.header = Default::default();
    (module, comp)
}

fn add_parameters(module: &mut Module, comp: CompId, shapes: &[Shape]) -> Vec<InstId> {
    let mut b = Builder::new(module, comp);
    let parameter = |(i, shape): (usize, &Shape)| {
        let attrs = ParameterAttrs { number: i as i64, ..ParameterAttrs::default() };
        b.add("operand", Opcode::Parameter, shape.clone(), [], attrs)
    };
    shapes.iter().enumerate().map(parameter).collect()
}

/// The module with an entry that takes `params`, applies `inst` to them, and returns `result`.
fn alone(module: &Module, inst: &Instruction, params: &[Shape], result: Shape) -> Module {
    let (mut module, comp) = fresh_entry(module);
    let operands = add_parameters(&mut module, comp, params);
    let root = Builder::new(&mut module, comp).add("root", inst.opcode, result, operands, inst.attrs.clone());
    module.comp_mut(comp).root = Some(root).into();
    module
}

fn run_one_device(module: &Module, inputs: &[Array]) -> Result<Vec<Array>, String> {
    hlo_ir::verify::verify(module).map_err(|d| format!("does not verify: {}", d[0].message))?;
    let inputs = Inputs { leaves: inputs.iter().map(|a| vec![a.clone()]).collect() };
    let outputs = run(module, &inputs, &EvalOptions::default()).map_err(|e| e.to_string())?;
    Ok(outputs.leaves.into_iter().map(|mut row| row.remove(0)).collect())
}

/// Values of the entry's parameters: small distinct numbers of both signs.
fn draw(shape: &ArrayShape, seed: &mut u64) -> Array {
    let n: i64 = shape.dims.iter().product();
    let mut literal = Literal::zeros(shape.dtype, &shape.dims).expect("a static shape");
    for i in 0..n as usize {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = (*seed >> 40) as f64 / (1u64 << 24) as f64;
        let value = match shape.dtype {
            DType::Pred => Scalar::Pred(x < 0.5),
            d if d.is_integer() => Scalar::Int((x * 4.0) as i64),
            d if d.is_complex() => Scalar::Complex(x * 2.0 - 1.0, 1.0 - x),
            _ => Scalar::Float(x * 2.0 - 1.0),
        };
        literal.set(i, value);
    }
    Arc::new(literal)
}

/// The operands of `inst` as the sample computes them.
fn operand_values(module: &Module, inst: InstId) -> Result<Vec<Array>, String> {
    let mut module = module.clone();
    let node = module.inst(inst).clone();
    let comp = node.parent;
    let shapes: Vec<Shape> = node.operands.iter().map(|&o| module.shape(o).clone()).collect();
    let tuple =
        Builder::new(&mut module, comp).add("t", Opcode::Tuple, Shape::Tuple(shapes), node.operands, Attrs::Plain);
    module.comp_mut(comp).root = Some(tuple).into();
    module.remove_dead(comp);
    module.header = Default::default();
    let mut seed = 7;
    let inputs: Vec<Array> = entry_leaves(&module).iter().map(|leaf| draw(&leaf.shape, &mut seed)).collect();
    run_one_device(&module, &inputs)
}

fn as_numbers(value: Scalar) -> [f64; 2] {
    match value {
        Scalar::Pred(x) => [f64::from(u8::from(x)), 0.0],
        Scalar::Int(x) => [x as f64, 0.0],
        Scalar::Uint(x) => [x as f64, 0.0],
        Scalar::Float(x) => [x, 0.0],
        Scalar::Complex(re, im) => [re, im],
    }
}

/// Relative distance allowed: rounding of sums in another order, in the element type's precision. Smaller floats are summed
/// exactly, see [`make_exact`].
fn tolerance(dtype: DType, is_reordered: bool) -> f64 {
    match dtype {
        _ if !is_reordered => 0.0,
        DType::F64 | DType::C128 => 1e-12,
        DType::F32 | DType::C64 => 2e-6,
        _ => 0.0,
    }
}

/// Every step of a sum of small floats is rounded, to as few as three bits, so that its order shows. A few ones among zeros
/// have sums that are exact in any order.
fn make_exact(array: &mut Array) {
    let dtype = array.dtype();
    if array.dims().is_empty() || !dtype.is_float() || dtype.bits() >= 32 {
        return;
    }
    let literal = Arc::make_mut(array);
    for i in 0..literal.n_elems() {
        if let Some(Scalar::Float(x)) = literal.get(i) {
            literal.set(i, Scalar::Float(if x.abs() > 0.75 { x.signum() } else { 0.0 }));
        }
    }
}

fn first_difference(expected: &Literal, found: &Literal, tolerance: f64) -> Option<String> {
    if (expected.dtype(), expected.dims()) != (found.dtype(), found.dims()) {
        return Some(format!("{:?} against {:?}", expected.dims(), found.dims()));
    }
    let scale = (0..expected.n_elems()).filter_map(|i| expected.get(i)).flat_map(as_numbers);
    let scale = scale.filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    (0..expected.n_elems()).find_map(|i| {
        let (a, b) = (expected.get(i)?, found.get(i)?);
        let is_same = as_numbers(a)
            .into_iter()
            .zip(as_numbers(b))
            .all(|(x, y)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * scale);
        (!is_same).then(|| format!("element {i}: {a:?} against {b:?}"))
    })
}

/// One instruction with the values of its operands and of its result.
pub struct Case<'a> {
    module: &'a Module,
    node: &'a Instruction,
    result_shape: Shape,
    operands: Vec<Array>,
    results: Vec<Array>,
}

/// What was tried, by what it shows.
#[derive(Default)]
struct Coverage {
    /// Cuts compared, by opcode.
    by_opcode: BTreeMap<Opcode, usize>,
    /// Cuts compared, by factor rule and role.
    compared: BTreeMap<(String, &'static str), usize>,
    /// Cuts refused, by factor rule and reason.
    refused: BTreeMap<(String, String), usize>,
    /// Cuts compared where the last shard holds less, or nothing.
    n_uneven: usize,
    /// Cuts of two factors compared.
    n_pairs: usize,
    failures: BTreeSet<String>,
    not_evaluated: BTreeSet<Opcode>,
}

fn role_name(role: FactorRole) -> &'static str {
    match role {
        FactorRole::Pass => "pass",
        FactorRole::Reduce(_) => "reduce",
        FactorRole::Own => "own",
        FactorRole::Whole(_) => "whole",
        FactorRole::Shift => "shift",
    }
}

fn rule_name(opcode: Opcode) -> String {
    format!("{:?}", opcode.row().factors)
}

/// Only sums of floats may differ, by the order in which they are added.
fn may_reorder(opcode: Opcode) -> bool {
    matches!(
        opcode.row().factors,
        FactorRule::Dot
            | FactorRule::Convolution
            | FactorRule::Reduce
            | FactorRule::ReduceWindow
            | FactorRule::BatchNorm
    )
}

/// Cuts `inst` along each factor, and along each two.
fn check_cuts(module: &Module, inst: InstId, coverage: &mut Coverage) -> Result<(), String> {
    let Ok(set) = find_factors(module, inst) else { return Ok(()) };
    let node = module.inst(inst);
    let operand_shapes: Vec<Shape> = node.operands.iter().map(|&o| module.shape(o).clone()).collect();
    let result_shape = module.shape(inst).clone();
    let mut operands = operand_values(module, inst)?;
    if may_reorder(node.opcode) {
        operands.iter_mut().for_each(make_exact);
    }
    let results = run_one_device(&alone(module, node, &operand_shapes, result_shape.clone()), &operands)?;
    let case = Case { module, node, result_shape, operands, results };
    for n_shards in cuts(&set) {
        check_cut(&case, inst, &set, &n_shards, coverage).map_err(|e| format!("cut {n_shards:?} of {set:?}: {e}"))?;
    }
    Ok(())
}

/// Every factor alone in 2 to 5 shards, and every pair of factors in 2 × 3.
fn cuts(set: &FactorSet) -> Vec<Vec<i64>> {
    let cut = |cuts: &[(usize, i64)]| {
        let mut n_shards = vec![1; set.factors.len()];
        cuts.iter().for_each(|&(factor, n)| n_shards[factor] = n);
        n_shards
    };
    let long: Vec<usize> = (0..set.factors.len()).filter(|&f| set.factors[f].size > 1).collect();
    let alone = long.iter().flat_map(|&f| (2..=5).map(move |n| [(f, n)]));
    let pairs = long.iter().enumerate().flat_map(|(i, &f)| long[i + 1..].iter().map(move |&g| [(f, 2), (g, 3)]));
    alone.map(|c| cut(&c)).chain(pairs.map(|c| cut(&c))).collect()
}

fn check_cut(
    case: &Case<'_>,
    inst: InstId,
    set: &FactorSet,
    n_shards: &[i64],
    coverage: &mut Coverage,
) -> Result<(), String> {
    let opcode = case.node.opcode;
    let factors: Vec<usize> = (0..n_shards.len()).filter(|&f| n_shards[f] > 1).collect();
    let form = match localize(case.module, inst, set, n_shards) {
        Ok(form) => form,
        Err(why) => {
            *coverage.refused.entry((rule_name(opcode), why.to_string())).or_default() += 1;
            return check_refusal(set, &factors, why);
        }
    };
    let joined = program::run_on_shards(case, set, n_shards, &form)?;
    for (expected, found) in case.results.iter().zip(&joined) {
        first_difference(expected, found, tolerance(expected.dtype(), may_reorder(opcode))).map_or(Ok(()), Err)?;
    }
    *coverage.by_opcode.entry(opcode).or_default() += 1;
    coverage.n_uneven += usize::from(factors.iter().any(|&f| set.factors[f].size % n_shards[f] != 0));
    coverage.n_pairs += usize::from(factors.len() > 1);
    let roles: BTreeSet<_> = factors.iter().flat_map(|&f| set.uses(f)).map(|one| role_name(one.role)).collect();
    for role in roles {
        *coverage.compared.entry((rule_name(opcode), role)).or_default() += 1;
    }
    Ok(())
}

/// A cut may be refused only for what its roles say, or for a reason that is the cut's own.
fn check_refusal(set: &FactorSet, cut: &[usize], why: CannotCut) -> Result<(), String> {
    let has = |factor: usize, is_role: fn(FactorRole) -> bool| {
        cut.contains(&factor) && set.uses(factor).any(|one| is_role(one.role))
    };
    let is_shift = |role| role == FactorRole::Shift;
    let is_reduce = |role| matches!(role, FactorRole::Reduce(_));
    let is_right = match why {
        CannotCut::Whole { factor, .. } => has(factor, |role| matches!(role, FactorRole::Whole(_))),
        CannotCut::Misaligned { factor } => has(factor, is_shift),
        CannotCut::Uneven { factor } => has(factor, is_shift) && has(factor, is_reduce),
        CannotCut::NoIdentity { .. } => cut.iter().any(|&f| has(f, is_shift) || has(f, is_reduce)),
        CannotCut::NoFactors(_) | CannotCut::NotOneCutForEachFactor | CannotCut::NoLocalAttributes(_) => false,
    };
    if is_right { Ok(()) } else { Err(format!("refused without need: {why}")) }
}

#[test]
fn shards_along_each_factor_make_the_whole() {
    let mut coverage = Coverage::default();
    for (sample, module) in sample_modules() {
        let entry = module.entry().expect("an entry");
        for &inst in &module.comp(entry).insts {
            let opcode = module.inst(inst).opcode;
            if matches!(opcode.row().eval, EvalRule::NotEvaluated(_)) {
                continue;
            }
            match check_cuts(&module, inst, &mut coverage) {
                Ok(()) => {}
                // Which ops and types the evaluator does is its own tests' business.
                Err(e) if e.contains("not evaluated: ") => {
                    coverage.not_evaluated.insert(opcode);
                }
                Err(e) => {
                    coverage.failures.insert(format!("{sample}: {} {opcode}: {e}", module.inst_name(inst)));
                }
            }
        }
    }
    println!("compared: {:#?}\nrefused: {:#?}", coverage.compared, coverage.refused);
    let failures: Vec<_> = coverage.failures.iter().map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    check_coverage(&coverage);
}

/// No op with factors, no factor rule and no role goes untested.
fn check_coverage(coverage: &Coverage) {
    let has_rule = |op: &&Opcode| {
        !matches!(op.row().factors, FactorRule::Structural(_) | FactorRule::Whole(_))
            && !matches!(op.row().eval, EvalRule::NotEvaluated(_))
            && !coverage.not_evaluated.contains(op)
    };
    let never: Vec<_> = Opcode::ALL.iter().filter(has_rule).filter(|op| !coverage.by_opcode.contains_key(op)).collect();
    assert!(never.is_empty(), "no cut of {never:?} was compared");
    let rules: BTreeSet<String> = Opcode::ALL
        .iter()
        .filter(|op| !matches!(op.row().factors, FactorRule::Structural(_) | FactorRule::Whole(_)))
        .map(|&op| rule_name(op))
        .collect();
    let compared: BTreeSet<&String> = coverage.compared.keys().map(|(rule, _)| rule).collect();
    assert!(rules.iter().all(|rule| compared.contains(rule)), "of {rules:?} only {compared:?} were compared");
    for role in ["pass", "reduce", "own", "shift"] {
        let n: usize = coverage.compared.iter().filter(|((_, found), _)| *found == role).map(|(_, n)| n).sum();
        assert!(n > 0, "no cut of a factor in the role {role} was compared");
    }
    assert!(coverage.refused.keys().any(|(_, why)| why.contains("is whole")), "no whole factor was refused");
    assert!(coverage.n_uneven > 0 && coverage.n_pairs > 0, "no uneven cut, or no cut of two factors, was compared");
    // What the samples hold of each rule beside pass: the roles that the op table gives it.
    let beside_pass = [
        ("Broadcast", "own"),
        ("Concatenate", "shift"),
        ("Convolution", "reduce"),
        ("Convolution", "shift"),
        ("Dot", "reduce"),
        ("DynamicSlice", "reduce"),
        ("Gather", "reduce"),
        ("Iota", "own"),
        ("Pad", "shift"),
        ("Reduce", "reduce"),
        ("ReduceWindow", "shift"),
        ("Reverse", "shift"),
        ("Scatter", "reduce"),
        ("SelectAndScatter", "shift"),
        ("Slice", "shift"),
    ];
    for (rule, role) in beside_pass {
        assert!(coverage.compared.contains_key(&(rule.to_string(), role)), "no {role} of {rule} was compared");
    }
}
