//! Which updates of a part of an array happen in place, and which arrays are copied whole.
//!
//! A `dynamic-update-slice` or a `scatter` writes its part alone if the memory of its array may be written over: the array is read
//! there for the last time, and its memory is not somebody else's. Somebody else's are constants, parameters of the
//! entry that are neither aliased with a result nor donated for one, and arguments that a caller still needs. Otherwise the
//! whole array is written anew. What a loop carries is the loop's own: an initial value that is not free to be written
//! over is copied before the loop, once. So are leaves of the entry's result that are no memory of their own, and leaves of a
//! body's result that are another leaf of what it was given.
//!
//! The buffers and their last uses are those of the peak ([`BufferTable`]). **Not looked at**: whether a fusion reads other elements of the
//! array than those that it writes. Cost: linear in the instructions and their leaves.

use super::buffer_table::{Action, BufId, BufferSource, BufferTable, Position, ScheduledStep};
use super::{build_tables, callees, pair_aliases};
use crate::values::{CallSite, Through, argument, hands_on, tuple_elements};
use cranelift_entity::{EntitySet, SecondaryMap};
use hashbrown::{HashMap, HashSet};
use hlo_ir::op::{Begun, FactorRule, Flow};
use hlo_ir::view::is_view;
use hlo_ir::{CompId, InstId, Module, Opcode};
use std::ops::Range;

/// The updates and copies of a module.
#[derive(Clone, Debug, Default)]
pub struct InPlaceUpdates {
    in_place: EntitySet<InstId>,
    /// Updates in fusions that are in place at one fusion and not at another.
    rewritten: EntitySet<InstId>,
    copied_at: HashMap<InstId, Vec<u64>>,
    copied_at_end: HashMap<CompId, Vec<u64>>,
}

impl InPlaceUpdates {
    /// The updates and copies of everything that the entry reaches.
    pub fn find(module: &Module) -> InPlaceUpdates {
        let Some(entry) = module.entry() else { return InPlaceUpdates::default() };
        let order = stepwise_order(module, entry);
        let (tables, _) = build_tables(module, &order);
        let mut owned: SecondaryMap<CompId, Option<Vec<bool>>> = SecondaryMap::new();
        let aliases = tables.get(&entry).map(|table| pair_aliases(module, entry, table)).unwrap_or_default();
        let mut finder = Finder { module, found: InPlaceUpdates::default() };
        // Callers first: they say what is given up.
        for &comp in order.iter().rev() {
            let Some(table) = tables.get(&comp) else { continue };
            let mut given = owned[comp].take().unwrap_or_default();
            given.resize(table.params.len(), false);
            if comp == entry {
                aliases.values().for_each(|&param| given[param as usize] = true);
                finder.copy_results(comp, table, |leaf| aliases.get(&leaf).copied());
            }
            for step in &table.steps {
                finder.step(&Place { table, owned: &given }, step, &mut owned);
                if let Action::While { body, .. } = step.action
                    && let Some(table) = tables.get(&body)
                {
                    finder.copy_results(body, table, Some);
                }
            }
        }
        finder.found
    }

    /// Whether an update writes its part alone.
    pub fn is_in_place(&self, update: InstId) -> bool {
        self.in_place.contains(update) && !self.rewritten.contains(update)
    }

    /// Bytes of each array that is copied whole where an instruction stands: initial values of a loop, or what a copy copies.
    pub fn copied_at(&self, inst: InstId) -> &[u64] {
        self.copied_at.get(&inst).map_or(&[], Vec::as_slice)
    }

    /// Bytes of each array that is copied whole where a computation ends.
    pub fn copied_at_end(&self, comp: CompId) -> &[u64] {
        self.copied_at_end.get(&comp).map_or(&[], Vec::as_slice)
    }
}

/// The arrays among the operands of an update of their parts, which are its first results; `None` for other instructions.
pub(crate) fn updated_operands(module: &Module, inst: InstId) -> Option<Range<usize>> {
    let instruction = module.inst(inst);
    let factors = instruction.opcode.row().factors;
    if factors == FactorRule::DynamicUpdateSlice {
        Some(0..1)
    } else if factors == FactorRule::Scatter {
        Some(0..instruction.operands.len().saturating_sub(1) / 2)
    } else {
        None
    }
}

/// The computations that run step by step, callees before callers.
fn stepwise_order(module: &Module, entry: CompId) -> Vec<CompId> {
    let mut wanted: EntitySet<CompId> = EntitySet::new();
    wanted.insert(entry);
    let mut order = module.post_order();
    for &caller in order.iter().rev() {
        if wanted.contains(caller) {
            for &inst in &module.comp(caller).insts {
                wanted.extend(callees(module, inst).into_iter().map(|(callee, _)| callee));
                if module.inst(inst).opcode.row().flow == Flow::AsyncStart(Begun::Call) {
                    wanted.extend(module.called(inst));
                }
            }
        }
    }
    order.retain(|&comp| wanted.contains(comp));
    order
}

/// A computation, and which leaves of its parameters its callers give up.
struct Place<'p> {
    table: &'p BufferTable,
    owned: &'p [bool],
}

impl Place<'_> {
    /// Whether the memory of a buffer may be written over at `position`.
    fn is_free_at(&self, buffer: BufId, position: Position) -> bool {
        let buffer = &self.table.buffers[buffer];
        let is_own = match buffer.source {
            BufferSource::Param(leaf) => self.owned.get(leaf as usize) == Some(&true),
            BufferSource::Constant => false,
            BufferSource::Written => true,
        };
        is_own && buffer.last_use == Some(position)
    }

    /// For each of `leaves`, whether it may be written over at `position` and is neither there twice nor among `kept`.
    fn given_up(&self, leaves: &[BufId], kept: &[BufId], position: Position) -> Vec<bool> {
        let mut n_times: HashMap<BufId, u32> = HashMap::new();
        leaves.iter().chain(kept).for_each(|&buffer| *n_times.entry(buffer).or_insert(0) += 1);
        leaves.iter().map(|buffer| n_times[buffer] == 1 && self.is_free_at(*buffer, position)).collect()
    }
}

struct Finder<'m> {
    module: &'m Module,
    found: InPlaceUpdates,
}

impl Finder<'_> {
    fn step(&mut self, at: &Place<'_>, step: &ScheduledStep, owned: &mut SecondaryMap<CompId, Option<Vec<bool>>>) {
        let (module, inst, position) = (self.module, step.inst, step.position);
        let mut give = |callee: CompId, flags: Vec<bool>| match &mut owned[callee] {
            Some(known) => known.iter_mut().zip(flags).for_each(|(known, flag)| *known &= flag),
            unknown => *unknown = Some(flags),
        };
        let operands = || at.table.operand_leaves(module, inst).collect::<Vec<BufId>>();
        let results = at.table.leaves(inst);
        match &step.action {
            Action::Op => self.op(at, inst, position),
            Action::Call(callee) => give(*callee, at.given_up(&operands(), results, position)),
            Action::While { condition, body } => {
                let operands = operands();
                let is_carried = |&(leaf, &buffer): &(usize, &BufId)| {
                    let buffer = &at.table.buffers[buffer];
                    buffer.inst == inst && buffer.leaf as usize == leaf
                };
                let carried: Vec<bool> = results.iter().enumerate().map(|leaf| is_carried(&leaf)).collect();
                give(*condition, vec![false; operands.len()]);
                let mut taken: HashSet<BufId> = results.iter().copied().collect();
                for (&initial, _) in operands.iter().zip(&carried).filter(|(_, carried)| **carried) {
                    let is_free = at.is_free_at(initial, position) && taken.insert(initial);
                    if !is_free && !self.is_made_anew(at.table, initial) {
                        self.found.copied_at.entry(inst).or_default().push(at.table.buffers[initial].bytes);
                    }
                }
                give(*body, carried);
            }
            Action::Conditional(branches) => {
                for (slot, &branch) in (0..).zip(branches) {
                    let given = argument(module, CallSite { inst, slot }, 0);
                    let given = given.map_or(&[][..], |operand| at.table.leaves(operand));
                    give(branch, at.given_up(given, &[], position));
                }
            }
        }
    }

    fn op(&mut self, at: &Place<'_>, inst: InstId, position: Position) {
        let module = self.module;
        let instruction = module.inst(inst);
        let arrays = updated_operands(module, inst);
        let (is_fusion, is_copy) = (instruction.opcode == Opcode::Fusion, hands_on(module, inst, Through::COPIES));
        if !is_fusion && !is_copy && arrays.is_none() {
            return;
        }
        let operands: Vec<BufId> = at.table.operand_leaves(module, inst).collect();
        let mut free = at.given_up(&operands, &[], position);
        if operands.len() != instruction.operands.len() {
            // An operand is a tuple, which no update takes.
            return;
        }
        if is_fusion {
            for (update, param) in fused_updates(module, inst) {
                // One result can take an array's place.
                match free.get_mut(param).is_some_and(std::mem::take) {
                    true => self.found.in_place.insert(update),
                    false => self.found.rewritten.insert(update),
                };
            }
        } else if let Some(arrays) = arrays {
            if free.get(arrays).is_some_and(|free| free.iter().all(|&is_free| is_free)) {
                self.found.in_place.insert(inst);
            }
        } else if free.first() == Some(&false) {
            self.found.copied_at.insert(inst, vec![module.shape(inst).memory_bytes()]);
        }
    }

    /// Whether a value is no memory but made where it is read.
    fn is_made_anew(&self, table: &BufferTable, buffer: BufId) -> bool {
        let buffer = &table.buffers[buffer];
        let flow = self.module.inst(buffer.inst).opcode.row().flow;
        buffer.bytes == 0 || buffer.source == BufferSource::Constant && flow != Flow::Constant
    }

    /// Notes the leaves of a computation's result that are copied: constants, leaves that come twice, and leaves of parameters but
    /// for the one in whose memory the result goes.
    fn copy_results(&mut self, comp: CompId, table: &BufferTable, home: impl Fn(u32) -> Option<u32>) {
        let mut bytes = Vec::new();
        for (leaf, &id) in (0..).zip(&table.root) {
            let buffer = &table.buffers[id];
            let is_copied = match buffer.source {
                BufferSource::Param(param) => home(leaf) != Some(param),
                BufferSource::Constant => true,
                BufferSource::Written => buffer.result_leaf != Some(leaf),
            };
            if is_copied && !self.is_made_anew(table, id) {
                bytes.push(buffer.bytes);
            }
        }
        self.found.copied_at_end.insert(comp, bytes);
    }
}

/// The updates that a fusion gives, each with the fusion's operand that is updated.
fn fused_updates(module: &Module, fusion: InstId) -> Vec<(InstId, usize)> {
    let Some(&fused) = module.called(fusion).first() else { return Vec::new() };
    let Some(root) = module.comp(fused).root.expand() else { return Vec::new() };
    let outputs = tuple_elements(module, root).unwrap_or(std::slice::from_ref(&root));
    let param_of = |update: InstId| {
        let arrays = updated_operands(module, update)?;
        let array = behind_views(module, *module.inst(update).operands.get(arrays.start)?);
        let param = module.comp(fused).params.iter().position(|&param| param == array)?;
        Some((update, param))
    };
    outputs.iter().filter_map(|&output| param_of(output)).collect()
}

/// What an array is a view of, or itself.
pub(crate) fn behind_views(module: &Module, array: InstId) -> InstId {
    let mut at = array;
    while is_view(module, at)
        && let Some(&operand) = module.inst(at).operands.first()
    {
        at = operand;
    }
    at
}
