//! Choices of which a side was taken in no trial: a fault in what hangs on it was not looked for.

use cranelift_entity::SecondaryMap;
use hlo_analysis::values::entered;
use hlo_eval::Value;
use hlo_ir::op::CalleeEntry;
use hlo_ir::{InstId, Literal, Module, NumberClass, Opcode, Scalar};
use std::fmt::Write;

/// Choices that are named; of more the number is told.
const MAX_NAMED: usize = 3;

/// The sides of all choices of a program that trials have taken.
pub(crate) struct Sides {
    /// The instructions that choose, and their predicates.
    choices: Vec<(InstId, InstId)>,
    /// The sides that a predicate has taken: a bit for each branch, false before true.
    taken: SecondaryMap<InstId, u64>,
    /// How many sides a predicate can take; none of other instructions.
    n_sides: SecondaryMap<InstId, u32>,
}

impl Sides {
    /// Finds the selects and conditionals of a module.
    pub(crate) fn of(module: &Module) -> Sides {
        let mut sides = Sides { choices: Vec::new(), taken: SecondaryMap::new(), n_sides: SecondaryMap::new() };
        let insts = module.post_order().into_iter().flat_map(|comp| module.comp(comp).insts.clone());
        for inst in insts {
            let instruction = module.inst(inst);
            let n_sides = match entered(module, inst) {
                Some((CalleeEntry::Branches, branches)) => branches.len(),
                Some((CalleeEntry::Call | CalleeEntry::Loop, _)) | None if instruction.opcode != Opcode::Select => {
                    continue;
                }
                Some((CalleeEntry::Call | CalleeEntry::Loop, _)) | None => 2,
            };
            let Some(&predicate) = instruction.operands.first() else { continue };
            sides.choices.push((inst, predicate));
            sides.n_sides[predicate] = n_sides.min(u64::BITS as usize) as u32;
        }
        sides
    }

    /// Notes the sides that a value takes, if it is a predicate.
    pub(crate) fn see(&mut self, inst: InstId, value: &Value) {
        let n_sides = self.n_sides[inst];
        if n_sides == self.taken[inst].count_ones() {
            return;
        }
        if let Value::Array(array) = value {
            self.taken[inst] |= sides_of(array, n_sides);
        }
    }

    /// Tells which choices missed a side; `None` if none did. Choices that nothing reached hang on others.
    pub(crate) fn note(&self, module: &Module) -> Option<String> {
        let has_missed = |(_, predicate): &&(InstId, InstId)| {
            (1..self.n_sides[*predicate]).contains(&self.taken[*predicate].count_ones())
        };
        let missing: Vec<&(InstId, InstId)> = self.choices.iter().filter(has_missed).collect();
        if missing.is_empty() {
            return None;
        }
        let mut out =
            format!("note: {} of {} choices missed a side in every trial:", missing.len(), self.choices.len());
        for (number, &&(inst, predicate)) in missing.iter().take(MAX_NAMED).enumerate() {
            let is_pred = module.shape(predicate).as_array().is_some_and(|a| a.dtype.class() == NumberClass::Pred);
            let missed = (0..self.n_sides[predicate]).filter(|side| self.taken[predicate] >> side & 1 == 0);
            let missed: Vec<String> = match is_pred {
                true => missed.map(|side| (side == 1).to_string()).collect(),
                false => missed.map(|side| side.to_string()).collect(),
            };
            let comma = if number == 0 { "" } else { "," };
            let _ = write!(out, "{comma} %{} (never {})", module.inst_name(inst), missed.join(", "));
        }
        let more = missing.len().saturating_sub(MAX_NAMED);
        let _ = writeln!(
            out,
            "{}; --draw and --trials reach more",
            if more == 0 { String::new() } else { format!(" and {more} more") }
        );
        Some(out)
    }
}

/// The sides that the elements of a predicate, or of the number of a branch, take.
fn sides_of(array: &Literal, n_sides: u32) -> u64 {
    // A number that is no branch takes the last one.
    let last = n_sides.saturating_sub(1);
    let side = |scalar: Scalar| match scalar {
        Scalar::Pred(value) => u32::from(value),
        Scalar::Int(value) => u32::try_from(value).map_or(last, |side| side.min(last)),
        Scalar::Uint(value) => u32::try_from(value).map_or(last, |side| side.min(last)),
        Scalar::Float(_) | Scalar::Complex(..) => 0,
    };
    (0..array.n_elems()).filter_map(|index| array.get(index)).fold(0, |sides, scalar| sides | 1 << side(scalar))
}
