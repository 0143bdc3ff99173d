//! Why two dims are one: the ops between them.

use super::classes::{DimPlace, DimProgram};
use super::parts::PartId;
use crate::propagate_shardings::ties::TieId;
use crate::propagate_shardings::values::CutId;
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use std::collections::VecDeque;

/// Steps that a message names; what lies between is counted.
const MOST_STEPS: usize = 6;

/// A dim of a value.
type Dim = (CutId, u32);

/// The shortest way over ops from one dim of a class to another one, in words: `%x:0, by %dot %y:0`.
pub(super) fn path_text(program: &DimProgram, part: PartId, from: DimPlace, to: DimPlace) -> String {
    let steps = find_path(program, part, (from.value, from.dim), (to.value, to.dim));
    if steps.is_empty() {
        return "one name was given to dims of both".to_string();
    }
    let mut out = program.place_text(DimPlace { part: 0, ..from });
    for (number, (tie, (value, dim))) in steps.iter().enumerate() {
        if steps.len() > MOST_STEPS && number == MOST_STEPS / 2 {
            out.push_str(&format!(", … {} more …", steps.len() - MOST_STEPS));
        }
        if steps.len() > MOST_STEPS && (MOST_STEPS / 2..steps.len() - MOST_STEPS / 2).contains(&number) {
            continue;
        }
        let inst = program.module.inst_name(program.graph.ties[*tie].inst);
        let place = program.place_text(DimPlace { value: *value, dim: *dim, part: 0 });
        out.push_str(&format!(", by %{inst} {place}"));
    }
    out
}

/// The ties on the shortest way, each with the dim that it leads to.
fn find_path(program: &DimProgram, part: PartId, from: Dim, to: Dim) -> Vec<(TieId, Dim)> {
    let mut ties_of: IndexMap<CutId, Vec<TieId>, FixedHash> = IndexMap::default();
    for (id, tie) in &program.graph.ties {
        tie.tensors.iter().for_each(|tensor| ties_of.entry(tensor.value).or_default().push(id));
    }
    // From where each dim was reached.
    let mut reached: IndexMap<Dim, Option<(TieId, Dim)>, FixedHash> = IndexMap::default();
    reached.insert(from, None);
    let mut open = VecDeque::from([from]);
    while let Some(at) = open.pop_front() {
        if at == to && reached.len() > 1 {
            break;
        }
        for &tie in ties_of.get(&at.0).map_or(&[][..], |ties| ties) {
            for next in tied_to(program, tie, at) {
                if !reached.contains_key(&next) && program.parts_of(next.0, next.1 as usize).contains(&part) {
                    reached.insert(next, Some((tie, at)));
                    open.push_back(next);
                }
            }
        }
    }
    let (mut steps, mut at) = (Vec::new(), to);
    while let Some(&Some((tie, before))) = reached.get(&at) {
        steps.push((tie, at));
        at = before;
    }
    steps.reverse();
    steps
}

/// The dims that a tie has with one in common: of the same factor, or of the same number.
fn tied_to(program: &DimProgram, tie: TieId, (value, dim): Dim) -> Vec<Dim> {
    let tie = &program.graph.ties[tie];
    let Some(rule) = &tie.rule else {
        return tie.tensors.iter().map(|tensor| (tensor.value, dim)).collect();
    };
    let mut out = Vec::new();
    for (tensor, dims) in tie.tensors.iter().zip(&rule.tensors).filter(|(tensor, _)| tensor.value == value) {
        let Some(factors) = dims.get(dim as usize).filter(|_| tensor.value == value) else { continue };
        for (other, dims) in tie.tensors.iter().zip(&rule.tensors) {
            let shares = |of_dim: &[u16]| of_dim.iter().any(|factor| factors.contains(factor));
            let numbers = dims.iter().enumerate().filter(|(_, of_dim)| shares(of_dim));
            out.extend(numbers.map(|(number, _)| (other.value, number as u32)));
        }
    }
    out
}
