//! Delta debugging of a module: cuts are tried from large to small, and kept where the module is still of interest.
//!
//! Every cut gives a valid module. A binary search comes first: the shortest beginning of the entry whose values may be the
//! outputs. Then instructions are taken out in chunks, which are halved as they fail (Zeller and Hildebrandt's ddmin, without its
//! complements); what only they used becomes an output, so that an instruction need not keep all that hangs on it. Where it is such
//! an instruction that matters, values are replaced by zeros, operands or parameters, in chunks as well. With k
//! instructions that matter among n, that is some 2 k log(n / k) cuts. Calls, fusions, branches and single iterations of loops take the
//! place of what calls them, so that the entry holds what is inside. All is repeated until nothing helps.

use super::edits::{self, Fill};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{InstId, Module};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Why a search ends early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stop<E> {
    /// The condition was asked as often as it may.
    Spent,
    /// It cannot be asked.
    Failed(E),
}

/// Whether a module, and its text, is still of interest.
pub(super) type Condition<'c, E> = &'c mut dyn FnMut(&Module, &str) -> Result<bool, E>;

/// A search for the smallest module of interest.
pub(super) struct Search<'c, E> {
    condition: Condition<'c, E>,
    /// The smallest module so far.
    current: Module,
    /// Its instructions and bytes of text.
    size: (usize, usize),
    /// Hashes of texts that were tried.
    tried: BTreeSet<u64>,
    n_evaluations: u64,
    max_evaluations: u64,
}

/// The text of a module as it is written and measured.
pub(super) fn text(module: &Module) -> String {
    print_module(module, &PrintOptions { expand_mesh_groups: true, ..PrintOptions::default() })
}

impl<'c, E> Search<'c, E> {
    /// A search that begins with `module`, which is of interest.
    pub(super) fn new(module: Module, max_evaluations: u64, condition: Condition<'c, E>) -> Search<'c, E> {
        let size = (module.n_instructions(), text(&module).len());
        Search { condition, current: module, size, tried: BTreeSet::new(), n_evaluations: 0, max_evaluations }
    }

    /// The smallest module, how often the condition was asked, and whether that was as often as it may.
    ///
    /// # Errors
    /// The condition cannot be asked.
    pub(super) fn run(mut self) -> Result<(Module, u64, bool), E> {
        match self.rounds() {
            Ok(()) => Ok((self.current, self.n_evaluations, false)),
            Err(Stop::Spent) => Ok((self.current, self.n_evaluations, true)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn rounds(&mut self) -> Result<(), Stop<E>> {
        loop {
            let before = self.size;
            self.shrink_entry()?;
            if self.open_all()? {
                self.shrink_entry()?;
            }
            self.shrink_outputs()?;
            for fill in [Fill::Zero, Fill::Operand, Fill::Parameter] {
                self.in_chunks(&|module| edits::sites(module, fill), &|module, slice| edits::cut(module, slice, fill))?;
            }
            self.in_chunks(&edits::unused_params, &edits::drop_params)?;
            self.attempt(edits::strip(&self.current))?;
            if self.size == before {
                return Ok(());
            }
        }
    }

    /// Keeps a candidate that is smaller and still of interest. What was tried before is not tried again.
    fn attempt(&mut self, candidate: Option<Module>) -> Result<bool, Stop<E>> {
        let Some(candidate) = candidate else { return Ok(false) };
        let text = text(&candidate);
        let size = (candidate.n_instructions(), text.len());
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        if size >= self.size || !self.tried.insert(hasher.finish()) {
            return Ok(false);
        }
        if self.n_evaluations >= self.max_evaluations {
            return Err(Stop::Spent);
        }
        self.n_evaluations += 1;
        let is_kept = (self.condition)(&candidate, &text).map_err(Stop::Failed)?;
        if is_kept {
            self.current = candidate;
            self.size = size;
        }
        Ok(is_kept)
    }

    /// Finds the shortest beginning of the entry, then takes chunks out of it.
    fn shrink_entry(&mut self) -> Result<(), Stop<E>> {
        let base = self.current.clone();
        let n = base.entry().map_or(0, |entry| base.comp(entry).insts.len());
        let (mut too_few, mut enough) = (0, n);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            if self.attempt(edits::keep_first(&base, middle))? { enough = middle } else { too_few = middle }
        }
        self.in_chunks(&|module| edits::sites(module, Fill::Parameter), &edits::remove)
    }

    /// Opens all that calls, or else one by one. Says whether any was opened.
    fn open_all(&mut self) -> Result<bool, Stop<E>> {
        let all = edits::callers(&self.current);
        if all.is_empty() {
            return Ok(false);
        }
        if self.attempt(edits::open(&self.current, &all, 0))? {
            return Ok(true);
        }
        let mut has_opened = false;
        for site in all {
            for branch in 0..2 {
                let is_there = edits::callers(&self.current).contains(&site);
                if is_there && self.attempt(edits::open(&self.current, &[site], branch))? {
                    has_opened = true;
                }
            }
        }
        Ok(has_opened)
    }

    fn shrink_outputs(&mut self) -> Result<(), Stop<E>> {
        let mut chunk = edits::n_outputs(&self.current) / 2;
        while chunk > 0 {
            let mut at = 0;
            while at < edits::n_outputs(&self.current) {
                let n = edits::n_outputs(&self.current);
                let kept: Vec<usize> = (0..n).filter(|i| !(at..at + chunk).contains(i)).collect();
                if kept.is_empty() || !self.attempt(edits::keep_outputs(&self.current, &kept))? {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        Ok(())
    }

    /// Edits instructions in chunks, from the end, where most hangs on one instruction; chunks are halved from one round to the next.
    fn in_chunks(
        &mut self,
        sites: &dyn Fn(&Module) -> Vec<InstId>,
        edit: &dyn Fn(&Module, &[InstId]) -> Option<Module>,
    ) -> Result<(), Stop<E>> {
        let mut chunk = sites(&self.current).len();
        while chunk > 0 {
            let mut left = sites(&self.current);
            while !left.is_empty() {
                let slice = left.split_off(left.len().saturating_sub(chunk));
                if self.attempt(edit(&self.current, &slice))? {
                    let there: BTreeSet<InstId> = sites(&self.current).into_iter().collect();
                    left.retain(|site| there.contains(site));
                }
            }
            chunk /= 2;
        }
        Ok(())
    }
}
