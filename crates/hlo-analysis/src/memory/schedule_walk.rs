//! Walking through a computation's schedule, counting the bytes that it holds beyond what it was given.
//!
//! A computation is walked in a *context*: which leaves of its parameters it owns, because nobody else needs them any
//! more, so that their memory is given back or taken over where they die; and where each leaf of its result goes. Each context is
//! walked once. A computation gets at most [`MAX_CONTEXTS`] of them and calls are followed [`MAX_DEPTH`] deep; beyond that one context serves in
//! which nothing is owned and every result pays, which never counts too little.

use super::buffer_table::{Action, BufId, BufferSource, BufferTable, END, LeafBuffer, Position, ScheduledStep};
use super::in_place::overwritable;
use crate::values::{CallSite, argument};
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use hashbrown::HashMap;
use hlo_ir::{CompId, InstId, Module};
use std::rc::Rc;

/// Contexts in which one computation is walked, not counting the ones in which nothing is owned.
const MAX_CONTEXTS: usize = 8;
/// Calls within calls that are followed with contexts of their own.
const MAX_DEPTH: usize = 64;

/// A context, known to the finder.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ContextId(u32);
entity_impl!(ContextId, "context");

/// Where a leaf of a result goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ResultSlot {
    /// Into memory of its own.
    Pays,
    /// Into memory that is paid for and free.
    Free,
    /// Into the memory of a leaf of the parameters, once that is read for the last time.
    After(u32),
    /// Into memory that is paid for, but in use to the end.
    Late,
}

/// What the caller does with results.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum ResultMode {
    /// Takes them as they are, also where they are parameters handed through (call).
    Shares,
    /// Needs each leaf in memory of its own (the entry, a branch).
    Owns,
    /// Puts each leaf where the parameters' leaf of the same number was (a loop's body).
    Carries,
}

/// A computation and how it is run.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct WalkContext {
    pub(super) comp: CompId,
    pub(super) mode: ResultMode,
    /// For each leaf of the parameters.
    pub(super) owned: Box<[bool]>,
    /// For each leaf of the result.
    pub(super) slots: Box<[ResultSlot]>,
}

/// Where a computation holds most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Peak {
    /// Bytes beyond those at its start.
    pub(super) bytes: i64,
    /// `None` at its start.
    pub(super) position: Option<Position>,
    /// Which of the computations that run there is the one that holds most; `None` if the place itself does.
    pub(super) within: Option<ContextId>,
}

/// A buffer that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeldBuffer {
    pub(super) inst: InstId,
    pub(super) leaf: u32,
    pub(super) bytes: u64,
    /// The leaf of the computation's result that it becomes.
    pub(super) result_leaf: Option<u32>,
}

impl HeldBuffer {
    fn of(buffer: &LeafBuffer) -> HeldBuffer {
        HeldBuffer { inst: buffer.inst, leaf: buffer.leaf, bytes: buffer.bytes, result_leaf: buffer.result_leaf }
    }
}

/// How much is held at one moment of a walk: its place is as in [`Peak`].
pub(super) type Moment = Peak;

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Held {
    /// Not live, or someone else's.
    #[default]
    No,
    /// Counted here.
    Own,
    /// In the slot of a result.
    Slot,
}

pub(super) struct PeakFinder<'m> {
    module: &'m Module,
    pub(super) tables: HashMap<CompId, Rc<BufferTable>>,
    contexts: PrimaryMap<ContextId, WalkContext>,
    context_ids: HashMap<WalkContext, ContextId>,
    n_contexts: HashMap<CompId, usize>,
    /// By context: followed with contexts of its own for what it calls, and (second) with plain ones only.
    peaks: SecondaryMap<ContextId, [Option<Peak>; 2]>,
    overwritable: HashMap<InstId, Rc<[bool]>>,
}

impl<'m> PeakFinder<'m> {
    /// A finder over the computations of `order`, callees before callers, each with its table and how it is used.
    pub(super) fn new(
        module: &'m Module,
        tables: HashMap<CompId, Rc<BufferTable>>,
        order: &[(CompId, Vec<ResultMode>)],
    ) -> Self {
        let mut finder = PeakFinder {
            module,
            tables,
            contexts: PrimaryMap::new(),
            context_ids: HashMap::new(),
            n_contexts: HashMap::new(),
            peaks: SecondaryMap::new(),
            overwritable: HashMap::new(),
        };
        for (comp, modes) in order {
            for &mode in modes {
                if let Some(context) = finder.plain(*comp, mode) {
                    finder.peak(context, MAX_DEPTH);
                }
            }
        }
        finder
    }

    fn intern(&mut self, context: WalkContext) -> ContextId {
        if let Some(&id) = self.context_ids.get(&context) {
            return id;
        }
        let id = self.contexts.push(context.clone());
        self.context_ids.insert(context, id);
        id
    }

    /// The context in which nothing is owned and every result pays; a loop's body has only this one.
    fn plain(&mut self, comp: CompId, mode: ResultMode) -> Option<ContextId> {
        let table = self.tables.get(&comp)?;
        let slots = (0..table.root.len() as u32).map(|leaf| match mode {
            ResultMode::Carries => ResultSlot::After(leaf),
            ResultMode::Shares | ResultMode::Owns => ResultSlot::Pays,
        });
        let context = WalkContext { comp, mode, owned: vec![false; table.params.len()].into(), slots: slots.collect() };
        Some(self.intern(context))
    }

    /// The wanted context, or the plain one if this is too deep or there are too many.
    pub(super) fn grant(&mut self, wanted: WalkContext, depth: usize) -> Option<ContextId> {
        let (comp, mode) = (wanted.comp, wanted.mode);
        if depth >= MAX_DEPTH {
            return self.plain(comp, mode);
        }
        if let Some(&id) = self.context_ids.get(&wanted) {
            return Some(id);
        }
        let n = self.n_contexts.entry(comp).or_insert(0);
        if *n >= MAX_CONTEXTS {
            return self.plain(comp, mode);
        }
        *n += 1;
        Some(self.intern(wanted))
    }

    /// The computation of a context.
    pub(super) fn computation(&self, id: ContextId) -> CompId {
        self.contexts[id].comp
    }

    /// Where a computation holds most.
    pub(super) fn peak(&mut self, id: ContextId, depth: usize) -> Peak {
        let which = usize::from(depth >= MAX_DEPTH);
        if let Some(peak) = self.peaks[id][which] {
            return peak;
        }
        let peak = ScheduleWalk::new(self, id, depth, None).map(|mut walk| walk.run().0).unwrap_or_default();
        self.peaks[id][which] = Some(peak);
        peak
    }

    /// The computation's peak, and what it holds there. The second half of the walk repeats the first.
    pub(super) fn held_at_peak(&mut self, id: ContextId, depth: usize) -> (Peak, Vec<HeldBuffer>) {
        let peak = self.peak(id, depth);
        let held = ScheduleWalk::new(self, id, depth, Some(peak)).and_then(|mut walk| walk.run().1);
        (peak, held.unwrap_or_default())
    }

    /// Every moment of the computation, in order.
    pub(super) fn moments(&mut self, id: ContextId, depth: usize) -> Vec<Moment> {
        let Some(mut walk) = ScheduleWalk::new(self, id, depth, None) else { return Vec::new() };
        walk.moments = Some(Vec::new());
        walk.run();
        walk.moments.unwrap_or_default()
    }

    fn overwritable(&mut self, inst: InstId) -> Rc<[bool]> {
        let module = self.module;
        self.overwritable.entry(inst).or_insert_with(|| overwritable(module, inst).into()).clone()
    }
}

/// One walk.
struct ScheduleWalk<'w, 'm> {
    finder: &'w mut PeakFinder<'m>,
    context: WalkContext,
    table: Rc<BufferTable>,
    depth: usize,
    held: SecondaryMap<BufId, Held>,
    /// For each leaf of the parameters, the result leaf whose slot it still occupies.
    occupies: Vec<Option<u32>>,
    slot_is_free: Vec<bool>,
    now: i64,
    peak: Peak,
    /// The peak to stop at, and what was held there.
    watch: Option<Peak>,
    snapshot: Option<Vec<HeldBuffer>>,
    /// All moments so far, where they are wanted.
    moments: Option<Vec<Moment>>,
    /// Results that are copied at the end.
    copies: Vec<HeldBuffer>,
    /// How often each buffer is among the leaves at hand; zero between two uses.
    counts: SecondaryMap<BufId, u32>,
}

impl<'w, 'm> ScheduleWalk<'w, 'm> {
    fn new(finder: &'w mut PeakFinder<'m>, id: ContextId, depth: usize, watch: Option<Peak>) -> Option<Self> {
        let context = finder.contexts[id].clone();
        let table = finder.tables.get(&context.comp)?.clone();
        let mut occupies = vec![None; table.params.len()];
        for (leaf, slot) in context.slots.iter().enumerate() {
            if let ResultSlot::After(param) = slot
                && let Some(place) = occupies.get_mut(*param as usize)
            {
                *place = Some(leaf as u32);
            }
        }
        let slot_is_free = context.slots.iter().map(|slot| *slot == ResultSlot::Free).collect();
        Some(ScheduleWalk {
            finder,
            context,
            table,
            depth,
            held: SecondaryMap::new(),
            occupies,
            slot_is_free,
            now: 0,
            peak: Peak::default(),
            watch,
            snapshot: None,
            moments: None,
            copies: Vec::new(),
            counts: SecondaryMap::new(),
        })
    }

    fn run(&mut self) -> (Peak, Option<Vec<HeldBuffer>>) {
        let table = self.table.clone();
        for (leaf, &buffer) in table.params.iter().enumerate() {
            if self.context.owned.get(leaf) == Some(&true) {
                self.held[buffer] = Held::Own;
            }
        }
        self.note(0, None, None, &[]);
        for &buffer in &table.params {
            if table.buffers[buffer].last_use.is_none() {
                self.release(buffer);
            }
        }
        for step in &table.steps {
            match &step.action {
                Action::Op => self.op(step),
                Action::Call(callee) => self.call(step, *callee),
                Action::While { condition, body } => self.repeat(step, *condition, *body),
                Action::Conditional(branches) => self.choose(step, branches),
            }
            if self.snapshot.is_some() {
                return (self.peak, self.snapshot.take());
            }
        }
        self.finish();
        (self.peak, self.snapshot.take())
    }

    fn bytes(&self, buffer: BufId) -> i64 {
        i64::try_from(self.table.buffers[buffer].bytes).unwrap_or(i64::MAX)
    }

    /// Notes how much is held: `extra` beyond what this computation counts now. `given_away` are owned buffers that a called computation counts.
    fn note(&mut self, extra: i64, position: Option<Position>, within: Option<ContextId>, given_away: &[BufId]) {
        let bytes = self.now.saturating_add(extra);
        let here = Peak { bytes, position, within };
        if self.watch == Some(here) && self.snapshot.is_none() {
            let mut snapshot = self.copies.clone();
            for (id, buffer) in &self.table.buffers {
                if self.held[id] == Held::Own && !given_away.contains(&id) {
                    snapshot.push(HeldBuffer::of(buffer));
                }
            }
            self.snapshot = Some(snapshot);
        }
        if let Some(moments) = &mut self.moments {
            moments.push(here);
        }
        if bytes > self.peak.bytes {
            self.peak = here;
        }
    }

    /// A buffer is read for the last time.
    fn release(&mut self, buffer: BufId) {
        match (self.held[buffer], self.table.buffers[buffer].source) {
            (Held::Own, _) => {
                self.now = self.now.saturating_sub(self.bytes(buffer));
                self.held[buffer] = Held::No;
            }
            (Held::No, BufferSource::Param(leaf)) => {
                if let Some(result) = self.occupies.get_mut(leaf as usize).and_then(Option::take) {
                    self.slot_is_free[result as usize] = true;
                }
            }
            (Held::No | Held::Slot, _) => {}
        }
    }

    fn pay(&mut self, buffer: BufId) {
        self.now = self.now.saturating_add(self.bytes(buffer));
        self.held[buffer] = Held::Own;
    }

    fn dies_at(&self, buffer: BufId, position: Position) -> bool {
        self.table.buffers[buffer].last_use == Some(position)
    }

    /// Buffers among `leaves` that are read for the last time at `position`, each once.
    fn dying(&mut self, leaves: impl Iterator<Item = BufId>, position: Position) -> Vec<BufId> {
        let mut dying = Vec::new();
        for buffer in leaves {
            if self.dies_at(buffer, position) && !dying_has(&mut self.counts, buffer) {
                dying.push(buffer);
            }
        }
        dying.iter().for_each(|&buffer| self.counts[buffer] = 0);
        dying
    }

    /// Buffers that the step's instruction writes, each once.
    fn written(&self, step: &ScheduledStep) -> Vec<BufId> {
        let leaves = self.table.leaves(step.inst).iter().copied().enumerate();
        let is_own = |&(leaf, buffer): &(usize, BufId)| {
            let defined = &self.table.buffers[buffer];
            defined.inst == step.inst && defined.leaf as usize == leaf && defined.source == BufferSource::Written
        };
        leaves.filter(is_own).map(|(_, buffer)| buffer).collect()
    }

    /// Frees what was read for the last time, and results that nobody reads.
    fn end_step(&mut self, dying: &[BufId], written: &[BufId]) {
        for &buffer in dying {
            self.release(buffer);
        }
        for &buffer in written {
            if self.table.buffers[buffer].last_use.is_none() {
                self.release(buffer);
            }
        }
    }

    /// The result leaf of this computation that a buffer becomes, if its slot is free.
    fn free_slot(&self, buffer: BufId) -> Option<usize> {
        let leaf = self.table.buffers[buffer].result_leaf? as usize;
        (self.slot_is_free.get(leaf) == Some(&true)).then_some(leaf)
    }

    /// The parameter's buffer in whose memory a buffer is to go, if it still occupies it.
    fn occupant(&self, buffer: BufId) -> Option<BufId> {
        let leaf = self.table.buffers[buffer].result_leaf?;
        let Some(&ResultSlot::After(param)) = self.context.slots.get(leaf as usize) else { return None };
        if *self.occupies.get(param as usize)? != Some(leaf) {
            return None;
        }
        self.table.params.get(param as usize).copied().filter(|&occupant| self.held[occupant] == Held::No)
    }

    /// `buffer` takes over the memory of `occupant`.
    fn move_in(&mut self, buffer: BufId, occupant: BufId) {
        if let BufferSource::Param(leaf) = self.table.buffers[occupant].source {
            self.occupies[leaf as usize] = None;
        }
        self.held[buffer] = Held::Slot;
    }

    fn op(&mut self, step: &ScheduledStep) {
        let (table, module) = (self.table.clone(), self.finder.module);
        let written = self.written(step);
        let dying = self.dying(table.operand_leaves(module, step.inst), step.position);
        if written.iter().any(|&buffer| table.buffers[buffer].bytes > 0) {
            let mut reusable = self.reusable(step, &dying);
            for &buffer in &written {
                self.place(buffer, &mut reusable);
            }
        }
        self.note(0, Some(step.position), None, &[]);
        self.end_step(&dying, &written);
    }

    /// The dying operands over which results may be written.
    fn reusable(&mut self, step: &ScheduledStep, dying: &[BufId]) -> Vec<BufId> {
        if dying.is_empty() {
            return Vec::new();
        }
        let flags = self.finder.overwritable(step.inst);
        let operands = &self.finder.module.inst(step.inst).operands;
        let (mut reusable, mut barred) = (Vec::new(), Vec::new());
        for (i, &operand) in operands.iter().enumerate() {
            let list = if flags.get(i) == Some(&true) { &mut reusable } else { &mut barred };
            let leaves = self.table.leaves(operand).iter().copied();
            list.extend(leaves.filter(|&buffer| self.dies_at(buffer, step.position)));
        }
        if !barred.is_empty() {
            barred.iter().for_each(|&buffer| self.counts[buffer] = 1);
            reusable.retain(|&buffer| self.counts[buffer] == 0);
            barred.iter().for_each(|&buffer| self.counts[buffer] = 0);
        }
        reusable
    }

    /// Gives a result memory: its slot, that of a dying operand, or new one.
    fn place(&mut self, buffer: BufId, reusable: &mut Vec<BufId>) {
        if let Some(leaf) = self.free_slot(buffer) {
            self.slot_is_free[leaf] = false;
            self.held[buffer] = Held::Slot;
            return;
        }
        if let Some(occupant) = self.occupant(buffer)
            && reusable.contains(&occupant)
        {
            reusable.retain(|&other| other != occupant);
            return self.move_in(buffer, occupant);
        }
        let fits = |&other: &BufId| self.held[other] == Held::Own && self.bytes(other) == self.bytes(buffer);
        match reusable.iter().position(fits) {
            Some(i) => {
                let other = reusable.swap_remove(i);
                self.held[other] = Held::No;
                self.held[buffer] = Held::Own;
            }
            None => self.pay(buffer),
        }
    }

    fn count(&mut self, leaves: &[BufId]) {
        leaves.iter().for_each(|&buffer| self.counts[buffer] += 1);
    }

    fn uncount(&mut self, leaves: &[BufId]) {
        leaves.iter().for_each(|&buffer| self.counts[buffer] = 0);
    }

    fn call(&mut self, step: &ScheduledStep, callee: CompId) {
        let (table, module, position) = (self.table.clone(), self.finder.module, step.position);
        let operands: Vec<BufId> = table.operand_leaves(module, step.inst).collect();
        let results = table.leaves(step.inst).to_vec();
        let written = self.written(step);
        let dying = self.dying(operands.iter().copied(), position);
        // A leaf that comes twice, or back out again, stays the caller's.
        self.count(&operands);
        self.count(&results);
        let owned: Vec<bool> = operands
            .iter()
            .map(|&b| self.dies_at(b, position) && self.held[b] == Held::Own && self.counts[b] == 1)
            .collect();
        let mut slots = vec![ResultSlot::Pays; results.len()];
        let leaf_of: HashMap<BufId, u32> = operands.iter().copied().zip(0..).collect();
        for &buffer in &written {
            slots[table.buffers[buffer].leaf as usize] = if self.free_slot(buffer).is_some() {
                ResultSlot::Free
            } else {
                let occupant = self.occupant(buffer).filter(|&b| self.dies_at(b, position) && self.counts[b] == 1);
                occupant.and_then(|b| leaf_of.get(&b)).map_or(ResultSlot::Pays, |&leaf| ResultSlot::After(leaf))
            };
        }
        self.uncount(&operands);
        self.uncount(&results);
        let wanted = WalkContext { comp: callee, mode: ResultMode::Shares, owned: owned.into(), slots: slots.into() };
        let Some(granted) = self.finder.grant(wanted, self.depth + 1) else { return };
        let context = self.finder.contexts[granted].clone();
        let inner = self.finder.peak(granted, self.depth + 1);
        let given: Vec<BufId> = operands.iter().zip(&context.owned).filter(|(_, o)| **o).map(|(&b, _)| b).collect();
        self.note(inner.bytes, Some(position), Some(granted), &given);
        for buffer in given {
            self.release(buffer);
        }
        for &buffer in &written {
            let slot = context.slots.get(table.buffers[buffer].leaf as usize).copied().unwrap_or(ResultSlot::Pays);
            self.receive(buffer, slot, &operands);
        }
        self.end_step(&dying, &written);
    }

    /// A called computation has put a result where `slot` says; `operands` are the leaves that it was given.
    fn receive(&mut self, buffer: BufId, slot: ResultSlot, operands: &[BufId]) {
        match slot {
            ResultSlot::Pays => self.pay(buffer),
            ResultSlot::Free => {
                if let Some(leaf) = self.free_slot(buffer) {
                    self.slot_is_free[leaf] = false;
                }
                self.held[buffer] = Held::Slot;
            }
            ResultSlot::After(leaf) => match operands.get(leaf as usize) {
                Some(&occupant) => self.move_in(buffer, occupant),
                None => self.pay(buffer),
            },
            // Only branches are given this.
            ResultSlot::Late => self.held[buffer] = Held::Slot,
        }
    }

    fn repeat(&mut self, step: &ScheduledStep, condition: CompId, body: CompId) {
        let (table, module, position) = (self.table.clone(), self.finder.module, step.position);
        let operands: Vec<BufId> = table.operand_leaves(module, step.inst).collect();
        let written = self.written(step);
        let dying = self.dying(operands.iter().copied(), position);
        // Leaves that the loop hands through are needed to its end.
        let results = table.leaves(step.inst).to_vec();
        self.count(&results);
        let (staying, ending): (Vec<BufId>, Vec<BufId>) = dying.into_iter().partition(|&b| self.counts[b] > 0);
        self.uncount(&results);
        self.count(&ending);
        let takeable: Vec<bool> = operands.iter().map(|&b| self.counts[b] > 0).collect();
        self.uncount(&ending);
        for &buffer in &written {
            let leaf = table.buffers[buffer].leaf as usize;
            let init = operands.get(leaf).copied().filter(|_| takeable[leaf]);
            self.place(buffer, &mut init.into_iter().collect());
        }
        self.note(0, Some(position), None, &[]);
        self.end_step(&ending, &[]);
        for (comp, mode) in [(condition, ResultMode::Shares), (body, ResultMode::Carries)] {
            let Some(inner) = self.finder.plain(comp, mode) else { continue };
            let peak = self.finder.peak(inner, self.depth + 1);
            self.note(peak.bytes, Some(position), Some(inner), &[]);
        }
        self.end_step(&staying, &written);
    }

    fn choose(&mut self, step: &ScheduledStep, branches: &[CompId]) {
        let (table, module, position) = (self.table.clone(), self.finder.module, step.position);
        let operands = &module.inst(step.inst).operands;
        let written = self.written(step);
        let all = operands.iter().flat_map(|&operand| table.leaves(operand).iter().copied());
        let dying = self.dying(all, position);
        let own: Vec<BufId> = dying.iter().copied().filter(|&b| self.held[b] == Held::Own).collect();
        // Results into slots: free ones, or those of parameters that die here.
        let targets: Vec<Option<BufId>> = written
            .iter()
            .map(|&buffer| match self.free_slot(buffer) {
                Some(_) => None,
                None => self.occupant(buffer).filter(|&occupant| self.dies_at(occupant, position)),
            })
            .collect();
        let was_free: Vec<bool> = written.iter().map(|&buffer| self.free_slot(buffer).is_some()).collect();
        for (branch_idx, &branch) in branches.iter().enumerate() {
            let site = CallSite { inst: step.inst, slot: branch_idx as u32 };
            let given = argument(module, site, 0).map_or(&[][..], |operand| table.leaves(operand));
            self.branch(position, branch, given, &own, &targets, &was_free);
        }
        for &buffer in &own {
            self.release(buffer);
        }
        for ((&buffer, target), is_free) in written.iter().zip(targets).zip(was_free) {
            match (is_free, target) {
                (true, _) => self.receive(buffer, ResultSlot::Free, &[]),
                (false, Some(occupant)) => self.move_in(buffer, occupant),
                (false, None) => self.pay(buffer),
            }
        }
        self.end_step(&dying, &written);
    }

    /// Walks one branch: it owns the dying leaves that it is given, and those of the other branches are already gone.
    fn branch(
        &mut self,
        position: Position,
        branch: CompId,
        given: &[BufId],
        own: &[BufId],
        targets: &[Option<BufId>],
        was_free: &[bool],
    ) {
        self.count(given);
        let owned: Vec<bool> = given
            .iter()
            .map(|&b| self.dies_at(b, position) && self.held[b] == Held::Own && self.counts[b] == 1)
            .collect();
        let leaf_of: HashMap<BufId, u32> = given.iter().copied().zip(0..).collect();
        let slots = targets.iter().zip(was_free).map(|(target, &is_free)| match target {
            None if is_free => ResultSlot::Free,
            None => ResultSlot::Pays,
            // The occupant is gone in a branch that is not given it; given twice, it has two names.
            Some(occupant) => match (self.counts[*occupant], leaf_of.get(occupant)) {
                (1, Some(&leaf)) => ResultSlot::After(leaf),
                (0, _) | (_, None) => ResultSlot::Free,
                (_, Some(_)) => ResultSlot::Late,
            },
        });
        let slots: Box<[ResultSlot]> = slots.collect();
        let gone: Vec<BufId> = own.iter().copied().filter(|&b| self.counts[b] == 0).collect();
        self.uncount(given);
        let wanted = WalkContext { comp: branch, mode: ResultMode::Owns, owned: owned.into(), slots };
        let Some(granted) = self.finder.grant(wanted, self.depth + 1) else { return };
        let inner = self.finder.peak(granted, self.depth + 1);
        let mut elsewhere = gone.clone();
        let is_owned = self.finder.contexts[granted].owned.clone();
        elsewhere.extend(given.iter().zip(&is_owned).filter(|(_, o)| **o).map(|(&b, _)| b));
        let gone_bytes: i64 = gone.iter().map(|&b| self.bytes(b)).sum();
        self.note(inner.bytes.saturating_sub(gone_bytes), Some(position), Some(granted), &elsewhere);
    }

    /// Hands the results over: leaves that are not in memory of their own are copied.
    fn finish(&mut self) {
        if self.context.mode != ResultMode::Owns {
            return;
        }
        let table = self.table.clone();
        for (leaf, &buffer) in table.root.iter().enumerate() {
            let is_first = table.buffers[buffer].result_leaf == Some(leaf as u32);
            let pays = self.context.slots.get(leaf) == Some(&ResultSlot::Pays);
            if pays && !(is_first && self.held[buffer] == Held::Own) {
                self.now = self.now.saturating_add(self.bytes(buffer));
                self.copies
                    .push(HeldBuffer { result_leaf: Some(leaf as u32), ..HeldBuffer::of(&table.buffers[buffer]) });
            }
        }
        self.note(0, Some(END), None, &[]);
    }
}

/// Marks a buffer as seen; whether it was before.
fn dying_has(counts: &mut SecondaryMap<BufId, u32>, buffer: BufId) -> bool {
    std::mem::replace(&mut counts[buffer], 1) != 0
}
