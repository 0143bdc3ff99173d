//! Instructions: who communicates with whom in a step, said by the levels of a hierarchy (P², section 3.3).
//!
//! A hierarchy of factors `x1 … xL` under a root of one; positions are numbered row-major. An instruction names a
//! *slice* level `s` (root = 0) and a form. Every form lets some consecutive factors *take part*: the positions of a
//! group run through all values of these and agree in the others.

use crate::collective::Collective;
use std::fmt;
use std::ops::Range;

/// Which positions of a slice make a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InstructionForm {
    /// All of each slice's block: the factors below the slice.
    InsideGroup,
    /// The positions with the same place in their slices, within each block of an ancestor: the factors below the
    /// ancestor down to the slice.
    Parallel(usize),
    /// The very first of the groups that [`InstructionForm::Parallel`] makes; nobody else communicates.
    Master(usize),
}

/// Which groups of devices communicate: a slice and a form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReductionInstruction {
    /// The slice level; the root is 0, the innermost factor never a slice.
    pub slice: usize,
    /// The form.
    pub form: InstructionForm,
}

/// An instruction with its collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReductionStep {
    /// Who communicates.
    pub instruction: ReductionInstruction,
    /// What they do.
    pub collective: Collective,
}

impl ReductionInstruction {
    /// All instructions for a hierarchy of `n_levels` factors (the root not counted), each with other groups.
    pub fn all(n_levels: usize) -> Vec<ReductionInstruction> {
        let mut out = Vec::new();
        for slice in 0..n_levels {
            out.push(ReductionInstruction { slice, form: InstructionForm::InsideGroup });
            out.extend((0..slice).map(|e| ReductionInstruction { slice, form: InstructionForm::Parallel(e) }));
            out.extend((0..slice).map(|e| ReductionInstruction { slice, form: InstructionForm::Master(e) }));
        }
        out
    }

    /// The factors (0-based, of `n_levels`) that take part.
    pub fn taking_part(self, n_levels: usize) -> Range<usize> {
        match self.form {
            InstructionForm::InsideGroup => self.slice..n_levels,
            InstructionForm::Parallel(ancestor) | InstructionForm::Master(ancestor) => ancestor..self.slice,
        }
    }

    /// Whether only the first group communicates.
    pub fn is_master(self) -> bool {
        matches!(self.form, InstructionForm::Master(_))
    }

    /// The ancestor of the form, if it has one.
    pub fn ancestor(self) -> Option<usize> {
        match self.form {
            InstructionForm::InsideGroup => None,
            InstructionForm::Parallel(ancestor) | InstructionForm::Master(ancestor) => Some(ancestor),
        }
    }

    /// The groups as positions of the hierarchy, each in order, the first its root.
    pub fn groups(self, factors: &[usize]) -> Vec<Vec<usize>> {
        let range = self.taking_part(factors.len());
        let product = |of: &[usize]| of.iter().product::<usize>();
        let (outer, n, inner) =
            (product(&factors[..range.start]), product(&factors[range.clone()]), product(&factors[range.end..]));
        let group = |o: usize, i: usize| (0..n).map(|j| (o * n + j) * inner + i).collect();
        if self.is_master() {
            return vec![group(0, 0)];
        }
        (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| group(o, i)).collect()
    }
}

impl fmt::Display for ReductionInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            InstructionForm::InsideGroup => write!(f, "({}, InsideGroup", self.slice),
            InstructionForm::Parallel(e) => write!(f, "({}, Parallel({e})", self.slice),
            InstructionForm::Master(e) => write!(f, "({}, Master({e})", self.slice),
        }
    }
}

impl fmt::Display for ReductionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {})", self.instruction, self.collective)
    }
}
