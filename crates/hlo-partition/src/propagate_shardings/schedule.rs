//! In which order shardings spread: user priorities, then stages, each to a fixpoint.

use super::step::Stepper;
use super::ties::{Direction, FactorEffect, Tie, TieId, TieKind};
use super::values::{CutId, CutValue, bits};
use cranelift_entity::packed_option::ReservedValue;
use cranelift_entity::{EntityRef, EntitySet, PrimaryMap};
use hlo_pass::{Deadline, OutOfTime};
use std::collections::BinaryHeap;

/// Which order of stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Shardy's: five cumulative stages.
    Shardy,
    /// GSPMD's: aggressiveness 0 to 3, each forward and backward through the program.
    Gspmd,
}

impl Order {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Order::Shardy => "shardy",
            Order::Gspmd => "gspmd",
        }
    }

    fn n_stages(self) -> usize {
        match self {
            Order::Shardy => 5,
            Order::Gspmd => 4,
        }
    }

    /// From where a tie lets the shardings of passing factors, and of others, come in the stages up to this one.
    fn directions(self, stage: usize, tie: &Tie) -> (Direction, Direction) {
        let both = match self {
            Order::Shardy => (0..=stage).map(|s| of_shardy(s, tie)).fold((Direction::Nowhere, Direction::Nowhere), or),
            Order::Gspmd => of_gspmd(stage, tie),
        };
        match tie.kind {
            TieKind::Barrier(allowed) if both.0 != Direction::Nowhere => (allowed, allowed),
            TieKind::Barrier(_) => (Direction::Nowhere, Direction::Nowhere),
            TieKind::Elementwise
            | TieKind::Relabelling
            | TieKind::Edge
            | TieKind::Exit
            | TieKind::Window
            | TieKind::Broadcast
            | TieKind::Transform
            | TieKind::CountedRows
            | TieKind::Other => both,
        }
    }
}

fn or(a: (Direction, Direction), b: (Direction, Direction)) -> (Direction, Direction) {
    (a.0.or(b.0), a.1.or(b.1))
}

/// What stage `stage` of Shardy adds: 0 elementwise, reshape, transpose and edges, and forward alone dynamic slices, where no
/// operand is used elsewhere; 1 the same, any uses; 2 factors that pass, broadcasts backward alone; 3 all but broadcasts
/// forward; 4 everything.
fn of_shardy(stage: usize, tie: &Tie) -> (Direction, Direction) {
    let (none, both) = (Direction::Nowhere, Direction::Both);
    let is_broadcast = tie.kind == TieKind::Broadcast;
    if tie.kind == TieKind::CountedRows {
        return (none, none);
    }
    match stage {
        0 | 1 => match tie.kind {
            TieKind::Edge | TieKind::Exit => (both, both),
            TieKind::Elementwise | TieKind::Relabelling | TieKind::Barrier(_) if stage == 1 || tie.is_sole_use => {
                (both, both)
            }
            TieKind::Window if stage == 1 || tie.is_sole_use => (Direction::Forward, Direction::Forward),
            TieKind::Elementwise
            | TieKind::Relabelling
            | TieKind::Barrier(_)
            | TieKind::Window
            | TieKind::Broadcast
            | TieKind::Transform
            | TieKind::CountedRows
            | TieKind::Other => (none, none),
        },
        2 => (if is_broadcast { Direction::Backward } else { both }, none),
        3 if is_broadcast => (Direction::Backward, Direction::Backward),
        _ => (both, both),
    }
}

/// Elementwise ops and edges from aggressiveness 0; all ops from 1, broadcasts backward from 2 and forward at 3. Nothing goes through
/// transforms and solves, nor backward into manual regions and out of them.
fn of_gspmd(stage: usize, tie: &Tie) -> (Direction, Direction) {
    let (none, both) = (Direction::Nowhere, Direction::Both);
    match tie.kind {
        TieKind::Edge if tie.is_border() => (Direction::Forward, Direction::Forward),
        TieKind::Transform => (none, none),
        TieKind::Edge | TieKind::Exit | TieKind::Elementwise | TieKind::Relabelling | TieKind::Barrier(_) => {
            (both, both)
        }
        TieKind::Broadcast => match stage {
            0 | 1 => (none, none),
            2 => (Direction::Backward, Direction::Backward),
            _ => (both, both),
        },
        TieKind::Window | TieKind::CountedRows | TieKind::Other => match stage {
            0 => (none, none),
            _ => (both, both),
        },
    }
}

/// The ties of each value, its definition first.
#[derive(Debug)]
pub(crate) struct TiesOf {
    starts: Vec<u32>,
    ties: Vec<TieId>,
}

impl TiesOf {
    pub(crate) fn new(n_values: usize, ties: &PrimaryMap<TieId, Tie>) -> TiesOf {
        let mut starts = vec![0u32; n_values + 1];
        for tensor in ties.values().flat_map(|tie| &tie.tensors) {
            starts[tensor.value.index() + 1] += 1;
        }
        for k in 0..n_values {
            starts[k + 1] += starts[k];
        }
        let mut next = starts.clone();
        let n = starts.last().copied().unwrap_or(0) as usize;
        let mut of = vec![TieId::reserved_value(); n];
        // Definitions first, then uses.
        for is_use in [false, true] {
            for (id, tie) in ties {
                for (k, tensor) in tie.tensors.iter().enumerate() {
                    if tie.is_operand(k) == is_use {
                        let slot = &mut next[tensor.value.index()];
                        of[*slot as usize] = id;
                        *slot += 1;
                    }
                }
            }
        }
        TiesOf { starts, ties: of }
    }

    pub(crate) fn of(&self, value: CutId) -> &[TieId] {
        let range = self.starts[value.index()] as usize..self.starts[value.index() + 1] as usize;
        &self.ties[range]
    }
}

/// Spreads the shardings that the user gave.
pub(crate) struct Schedule<'a> {
    pub values: &'a mut PrimaryMap<CutId, CutValue>,
    pub ties: &'a PrimaryMap<TieId, Tie>,
    pub ties_of: &'a TiesOf,
    pub stepper: &'a mut Stepper,
    pub order: Order,
    pub deadline: Deadline,
}

impl Schedule<'_> {
    /// Runs to the end: each priority in turn, those of less urgency frozen.
    ///
    /// # Errors
    /// The time is over.
    pub(crate) fn run(&mut self) -> Result<(), OutOfTime> {
        let mut priorities: Vec<u32> =
            self.values.values().flat_map(|v| &v.waiting).map(|waiting| waiting.priority).collect();
        priorities.push(0);
        priorities.sort();
        priorities.dedup();
        for priority in priorities {
            self.release(priority);
            for stage in 0..self.order.n_stages() {
                self.run_stage(stage)?;
            }
        }
        Ok(())
    }

    /// Gives dims of this priority what the user said of them.
    fn release(&mut self, priority: u32) {
        for value in self.values.values_mut().filter(|value| !value.waiting.is_empty()) {
            let (now, later) = std::mem::take(&mut value.waiting).into_iter().partition(|w| w.priority <= priority);
            value.waiting = later;
            for waiting in Vec::into_iter(now) {
                let set = bits(&waiting.atoms);
                value.taken &= !set;
                value.used |= set;
                if let Some(dim) = value.dims.get_mut(waiting.dim) {
                    dim.atoms = waiting.atoms;
                    dim.is_closed = waiting.is_closed;
                }
            }
        }
    }

    fn run_stage(&mut self, stage: usize) -> Result<(), OutOfTime> {
        let mut dirty: EntitySet<TieId> = EntitySet::with_capacity(self.ties.len());
        for (id, tie) in self.ties {
            // What earlier stages let pass has come to rest.
            if stage == 0 || self.order.directions(stage, tie) != self.order.directions(stage - 1, tie) {
                dirty.insert(id);
            }
        }
        match self.order {
            Order::Shardy => self.run_stack(stage, dirty),
            Order::Gspmd => self.run_sweeps(stage, dirty),
        }
    }

    /// In program order, but what a change concerns comes first.
    fn run_stack(&mut self, stage: usize, mut is_waiting: EntitySet<TieId>) -> Result<(), OutOfTime> {
        let is_exit = |id: &TieId| self.ties[*id].kind == TieKind::Exit;
        let (exits, others): (Vec<TieId>, Vec<TieId>) = is_waiting.keys().partition(is_exit);
        let mut stack: Vec<TieId> = exits.into_iter().chain(others).collect();
        stack.reverse();
        while let Some(id) = stack.pop() {
            is_waiting.remove(id);
            self.deadline.check()?;
            self.visit(stage, id, Direction::Both);
            for &value in &self.stepper.changed {
                for &other in self.ties_of.of(value).iter().rev() {
                    if is_waiting.insert(other) {
                        stack.push(other);
                    }
                }
            }
        }
        Ok(())
    }

    /// Forward through the program, then backward, until nothing changes.
    fn run_sweeps(&mut self, stage: usize, dirty: EntitySet<TieId>) -> Result<(), OutOfTime> {
        let mut dirty = [dirty.clone(), dirty];
        let directions = [Direction::Forward, Direction::Backward];
        let mut turn = 0;
        while dirty.iter().any(|set| !set.is_empty()) {
            // What becomes dirty ahead is visited in this sweep, what becomes dirty behind in the next one.
            let mut heap: BinaryHeap<(i64, TieId)> = dirty[turn].keys().map(|id| (rank(turn, id), id)).collect();
            dirty[turn].clear();
            let mut is_queued: EntitySet<TieId> = EntitySet::with_capacity(self.ties.len());
            is_queued.extend(heap.iter().map(|&(_, id)| id));
            while let Some((at, id)) = heap.pop() {
                is_queued.remove(id);
                self.deadline.check()?;
                self.visit(stage, id, directions[turn]);
                for &value in &self.stepper.changed {
                    for &other in self.ties_of.of(value) {
                        dirty[1 - turn].insert(other);
                        if rank(turn, other) < at {
                            if is_queued.insert(other) {
                                heap.push((rank(turn, other), other));
                            }
                        } else {
                            dirty[turn].insert(other);
                        }
                    }
                }
            }
            turn = 1 - turn;
        }
        Ok(())
    }

    fn visit(&mut self, stage: usize, id: TieId, sweep: Direction) {
        let tie = &self.ties[id];
        let (of_pass, of_others) = self.order.directions(stage, tie);
        let direction = |effect| {
            let allowed = if effect == FactorEffect::Pass { of_pass } else { of_others };
            allowed.and(sweep)
        };
        self.stepper.visit(self.values, (id, tie), direction);
    }
}

/// The larger, the earlier a tie comes in a sweep.
fn rank(turn: usize, id: TieId) -> i64 {
    if turn == 0 { -(id.index() as i64) } else { id.index() as i64 }
}
