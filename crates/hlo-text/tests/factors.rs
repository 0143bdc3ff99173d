//! Dimension factors on samples: every op whose row has a factor rule has factors that cover each dim once, and the
//! others say why they have none.

use hlo_ir::factors::{FactorRole, FactorSet, NoFactors, TensorFactors, find_factors};
use hlo_ir::op::FactorRule;
use hlo_ir::{InstId, Module, Opcode, Shape};
use std::collections::BTreeSet;
use std::path::Path;

fn modules() -> Vec<(String, Module)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples");
    let mut out = Vec::new();
    for folder in ["ops", "programs"] {
        let mut files: Vec<_> = std::fs::read_dir(root.join(folder))
            .expect("a folder of samples")
            .map(|entry| entry.expect("a readable folder").path())
            .filter(|path| path.extension().is_some_and(|e| e == "hlo"))
            .collect();
        files.sort();
        for path in files {
            let text = std::fs::read_to_string(&path).expect("a readable sample");
            let parsed = hlo_text::parse_module(&text).unwrap_or_else(|d| panic!("{}: {:?}", path.display(), d[0]));
            out.push((path.display().to_string(), parsed.module));
        }
    }
    out
}

#[test]
fn every_factor_rule_covers_each_dim_exactly_and_every_other_row_says_why_not() {
    let mut covered = BTreeSet::new();
    for (path, module) in modules() {
        for inst in module.computations().iter().flat_map(|&c| module.comp(c).insts.clone()) {
            let opcode = module.inst(inst).opcode;
            let name = format!("{path}: {}", module.inst_name(inst));
            match (opcode.row().factors, find_factors(&module, inst)) {
                (FactorRule::Structural(reason) | FactorRule::Whole(reason), Err(found)) => {
                    assert_eq!(found, NoFactors::OfRow(reason), "{name}");
                }
                (FactorRule::Structural(_) | FactorRule::Whole(_), Ok(_)) => panic!("{name}: factors without a rule"),
                (_, Ok(set)) => {
                    check(&name, &module, inst, &set);
                    covered.insert(opcode);
                }
                (_, Err(found)) => assert!(matches!(found, NoFactors::OfInstruction(_)), "{name}: {found:?}"),
            }
        }
    }
    let has_rule = |op: &&Opcode| !matches!(op.row().factors, FactorRule::Structural(_) | FactorRule::Whole(_));
    let missing: Vec<_> = Opcode::ALL.iter().filter(has_rule).filter(|op| !covered.contains(op)).collect();
    assert!(missing.is_empty(), "no sample shows the factors of {missing:?}");
}

fn check(name: &str, module: &Module, inst: InstId, set: &FactorSet) {
    let operands = module.inst(inst).operands.iter().map(|&o| module.shape(o));
    let result = module.shape(inst);
    let leaves: Vec<&Shape> = result.as_tuple().map_or(vec![result], |t| t.iter().collect());
    let tensors: Vec<(&Shape, &TensorFactors)> =
        operands.zip(&set.operands).chain(leaves.into_iter().zip(&set.results)).collect();
    let mut is_used = vec![false; set.factors.len()];
    for (shape, tensor) in &tensors {
        let dims = &shape.as_array().expect("only arrays have factors").dims;
        assert_eq!(dims.len(), tensor.len(), "{name}");
        let mut seen = BTreeSet::new();
        for (&size, uses) in dims.iter().zip(tensor.iter()) {
            assert_eq!(uses.iter().map(|one| one.size).product::<i64>(), size, "{name}");
            for one in uses {
                assert!(seen.insert(one.factor), "{name}: a factor twice in one tensor");
                is_used[one.factor] = true;
                let is_own_size = one.role != FactorRole::Shift;
                assert!(!is_own_size || one.size == set.factors[one.factor].size, "{name}: another size");
            }
        }
    }
    assert!(is_used.iter().all(|&u| u), "{name}: a factor in no tensor");
    for factor in 0..set.factors.len() {
        let in_results = set.results.iter().filter(|t| FactorSet::mentions(t, factor)).count();
        let has = |is_role: fn(FactorRole) -> bool| set.uses(factor).any(|one| is_role(one.role));
        let n_uses = set.uses(factor).count();
        if has(|role| role == FactorRole::Pass) {
            assert_eq!(in_results, set.results.len(), "{name}: parts of some results only");
        }
        if has(|role| matches!(role, FactorRole::Reduce(_))) {
            assert_eq!(in_results, 0, "{name}: a reduced factor ends");
        }
        if has(|role| matches!(role, FactorRole::Own)) {
            assert_eq!(n_uses, 1, "{name}: another tensor has the factor too");
        }
        if has(|role| role == FactorRole::Shift) {
            let is_anchored = has(|role| matches!(role, FactorRole::Pass | FactorRole::Reduce(_)));
            assert!(is_anchored, "{name}: a dim that is shifted against nothing");
        }
    }
}
