//! Which factors an op propagates shardings along.
//!
//! These are the factors of [`hlo_ir::factors`] with Shardy's view of them. Two differences: dims that an op takes whole are tied where
//! operand and result have the same one, because it costs nothing that they are cut alike until they are gathered; and the size of
//! a dim that an op makes shorter or longer is that of the operand.

use super::ties::{FactorEffect, TieFactor, TieKind, TieRule};
use hlo_ir::factors::{FactorRole, FactorSet, FactorUse, TensorFactors, find_factors};
use hlo_ir::op::{CollectiveSource, FactorRule};
use hlo_ir::{InstId, Module, Opcode};
use smallvec::{SmallVec, smallvec};

/// What becomes of the dims that an op takes whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WholeDims {
    /// They are tied to nothing.
    Apart,
    /// Those of operand and result are tied.
    Alike,
    /// Those of the right-hand sides and the solution are tied.
    Solution,
}

/// When an op takes part.
pub(super) fn kind_of(rule: FactorRule) -> TieKind {
    ties_of(rule).0
}

/// When an op takes part, and how it ties the dims that it takes whole.
fn ties_of(rule: FactorRule) -> (TieKind, WholeDims) {
    match rule {
        FactorRule::Elementwise => (TieKind::Elementwise, WholeDims::Apart),
        FactorRule::Reshape | FactorRule::Bitcast | FactorRule::Transpose => (TieKind::Relabelling, WholeDims::Apart),
        FactorRule::DynamicSlice | FactorRule::DynamicUpdateSlice => (TieKind::Window, WholeDims::Apart),
        FactorRule::Broadcast => (TieKind::Broadcast, WholeDims::Apart),
        FactorRule::Sort => (TieKind::Other, WholeDims::Alike),
        FactorRule::Cholesky | FactorRule::Fft => (TieKind::Transform, WholeDims::Alike),
        FactorRule::TriangularSolve => (TieKind::Transform, WholeDims::Solution),
        FactorRule::BitcastConvert
        | FactorRule::Reverse
        | FactorRule::Slice
        | FactorRule::Pad
        | FactorRule::Concatenate
        | FactorRule::Iota
        | FactorRule::Dot
        | FactorRule::Convolution
        | FactorRule::Reduce
        | FactorRule::ReduceWindow
        | FactorRule::SelectAndScatter
        | FactorRule::Gather
        | FactorRule::Scatter
        | FactorRule::BatchNorm
        | FactorRule::CustomCall
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => (TieKind::Other, WholeDims::Apart),
    }
}

/// The factors of an instruction that are in two tensors or more; `None` if there are none.
pub(super) fn find_rule(module: &Module, inst: InstId) -> Option<TieRule> {
    let rule = module.inst(inst).opcode.row().factors;
    if module.inst(inst).opcode.row().collective.is_some() {
        return of_collective(module, inst);
    }
    let set = find_factors(module, inst).ok()?;
    let mut built = of_set(rule, &set);
    match ties_of(rule).1 {
        // A sort gathers its dim, unless the atoms can go to another one.
        WholeDims::Alike if rule == FactorRule::Sort => {
            if module.inst(inst).opcode != Opcode::TopK && has_other_dims(&set) {
                tie_whole_dims(&mut built);
            }
        }
        WholeDims::Alike => tie_whole_dims(&mut built),
        WholeDims::Solution => tie_solution(&mut built),
        WholeDims::Apart => {}
    }
    Some(built).filter(is_shared)
}

/// Whether a sort has other dims, to which the atoms of the sorted one can go.
fn has_other_dims(set: &FactorSet) -> bool {
    let dims = set.operands.iter().flatten().flatten();
    dims.into_iter().any(|one| one.role == FactorRole::Pass && one.size > 1)
}

/// Whether any factor is in two tensors.
fn is_shared(rule: &TieRule) -> bool {
    let mut seen_in: Vec<Option<usize>> = vec![None; rule.factors.len()];
    rule.tensors.iter().enumerate().any(|(k, tensor)| {
        tensor.iter().flatten().any(|&factor| match seen_in.get_mut(usize::from(factor)) {
            Some(seen) => seen.replace(k).is_some_and(|before| before != k),
            None => false,
        })
    })
}

fn of_set(rule: FactorRule, set: &FactorSet) -> TieRule {
    // A dim that is made shorter or longer counts by the operand's size, but for what joins or covers several rows.
    let by_operand = matches!(rule, FactorRule::Slice | FactorRule::Pad);
    let moves_rows = by_operand || matches!(rule, FactorRule::Concatenate | FactorRule::Reverse);
    let mut factors: Vec<TieFactor> =
        set.factors.iter().map(|factor| TieFactor { size: factor.size, effect: FactorEffect::Pass }).collect();
    for (k, tensor) in set.operands.iter().chain(&set.results).enumerate() {
        for one in tensor.iter().flatten() {
            let Some(factor) = factors.get_mut(one.factor) else { continue };
            match one.role {
                FactorRole::Pass | FactorRole::Own => {}
                FactorRole::Reduce(_) => factor.effect = FactorEffect::Reduce,
                FactorRole::Whole(_) => factor.effect = FactorEffect::Whole,
                FactorRole::Shift => {
                    factor.effect = if moves_rows { FactorEffect::Move } else { FactorEffect::Halo };
                    if by_operand && k < set.operands.len() {
                        factor.size = one.size;
                    }
                }
            }
        }
    }
    // The rows of a source of another size are not where the windows are.
    let is_left_out = |one: &FactorUse, operand: usize| {
        rule == FactorRule::SelectAndScatter && operand == 1 && one.role == FactorRole::Shift
    };
    let numbers = |k: usize, tensor: &TensorFactors| -> Vec<SmallVec<[u16; 2]>> {
        let of_dim = |uses: &SmallVec<[FactorUse; 2]>| {
            uses.iter().filter(|one| !is_left_out(one, k)).map(|one| one.factor as u16).collect()
        };
        tensor.iter().map(of_dim).collect()
    };
    let tensors = set.operands.iter().chain(&set.results).enumerate().map(|(k, tensor)| numbers(k, tensor)).collect();
    TieRule { factors, tensors }
}

/// Gives dims of all tensors that are alone with their factor that of the first operand's dim.
fn tie_whole_dims(rule: &mut TieRule) {
    let Some(first) = rule.tensors.first().cloned() else { return };
    for tensor in rule.tensors.iter_mut().skip(1) {
        for (dim, of_dim) in tensor.iter_mut().enumerate() {
            let from = first.get(dim).filter(|from| from.len() == 1);
            if let (Some(from), [one]) = (from, of_dim.as_slice())
                && from[0] != *one
            {
                *of_dim = from.clone();
            }
        }
    }
}

/// `a[…, m, m]`, `b[…, m, n]` to `x[…, m, n]`: rows of `a` are those of `b`, columns of `a` those of the solution.
fn tie_solution(rule: &mut TieRule) {
    let [a, b, x] = rule.tensors.as_mut_slice() else { return };
    let Some(row) = a.len().checked_sub(2) else { return };
    // From the left the matrix meets rows of `b`, from the right columns: whichever of them no pass factor has.
    let is_whole = |of_dim: &SmallVec<[u16; 2]>, factors: &[TieFactor]| {
        of_dim.iter().all(|&f| factors.get(usize::from(f)).is_some_and(|factor| factor.effect == FactorEffect::Whole))
    };
    let Some(met) = (row..row + 2).find(|&dim| b.get(dim).is_some_and(|d| is_whole(d, &rule.factors))) else { return };
    if let (Some(of_b), Some(of_x)) = (b.get_mut(met), x.get_mut(met)) {
        *of_b = a[row].clone();
        *of_x = a[row + 1].clone();
    }
}

/// Collectives of a manual region: dims that they neither split nor join pass.
fn of_collective(module: &Module, inst: InstId) -> Option<TieRule> {
    let instruction = module.inst(inst);
    let view = instruction.attrs.collective()?;
    if instruction.opcode.row().collective?.source == CollectiveSource::Rows {
        return None;
    }
    let n = instruction.operands.len();
    let mut rule = TieRule { factors: Vec::new(), tensors: Vec::new() };
    let mut results = Vec::new();
    for (k, &operand) in instruction.operands.iter().enumerate() {
        let from = module.shape(operand).as_array()?;
        let to = module.shapes.leaf(instruction.shape, k)?.as_array()?;
        let (mut of_operand, mut of_result) = (vec![smallvec![]; from.rank()], vec![smallvec![]; to.rank()]);
        for (dim, pair) in from.dims.iter().zip(&to.dims).enumerate() {
            if pair.0 == pair.1 && !view.dimensions.contains(&(dim as i64)) {
                let factor: SmallVec<[u16; 2]> = smallvec![rule.factors.len() as u16];
                rule.factors.push(TieFactor { size: *pair.0, effect: FactorEffect::Pass });
                of_operand[dim] = factor.clone();
                of_result[dim] = factor;
            }
        }
        rule.tensors.push(of_operand);
        results.push(of_result);
    }
    rule.tensors.append(&mut results);
    Some(rule).filter(|rule| n > 0 && is_shared(rule))
}
