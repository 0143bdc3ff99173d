//! The buffers of one computation, whoever calls it: which leaves share one, and where each is used last.

use super::in_place::{is_rebuilt, viewed};
use crate::values::{LeafRun, Through, condition_and_body, entered, handed_on};
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::memory_space::leaves_on_host;
use hlo_ir::op::{CalleeEntry, Flow, ShapeRule};
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode};
use std::rc::Rc;

/// A buffer of a computation: the memory of one array leaf and of all leaves that are the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BufId(u32);
entity_impl!(BufId, "buf");

/// Place in a computation's schedule.
pub(super) type Position = u32;
/// After the last instruction: where results are handed over.
pub(super) const END: Position = u32::MAX;

/// Where a buffer comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BufferSource {
    /// A leaf of the parameters, counted over all of them.
    Param(u32),
    /// A constant, or made anew by each use: never written, and copied where memory of its own is needed.
    Constant,
    /// Written by the instruction that defines it.
    Written,
}

/// One buffer.
#[derive(Clone, Debug)]
pub(super) struct LeafBuffer {
    pub(super) bytes: u64,
    pub(super) inst: InstId,
    pub(super) leaf: u32,
    pub(super) source: BufferSource,
    /// Where it is read last; `None` if never.
    pub(super) last_use: Option<Position>,
    /// The first leaf of the result that it is.
    pub(super) result_leaf: Option<u32>,
}

/// What a leaf of a computation's result is to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResultLeaf {
    /// A leaf of the parameters, handed through.
    Param(u32),
    Constant,
    /// The same memory as an earlier leaf.
    Same(u32),
    Written,
}

/// What happens at a place of the schedule.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Reads operands, writes results.
    Op,
    Call(CompId),
    While {
        condition: CompId,
        body: CompId,
    },
    Conditional(Vec<CompId>),
}

/// One instruction that does something.
#[derive(Clone, Debug)]
pub(super) struct ScheduledStep {
    pub(super) position: Position,
    pub(super) inst: InstId,
    pub(super) action: Action,
}

/// The buffers and the schedule of a computation.
#[derive(Debug)]
pub(super) struct BufferTable {
    pub(super) buffers: PrimaryMap<BufId, LeafBuffer>,
    pub(super) steps: Vec<ScheduledStep>,
    /// Buffers of the leaves of all parameters.
    pub(super) params: Vec<BufId>,
    /// Buffers of the leaves of the result.
    pub(super) root: Vec<BufId>,
    pub(super) result: Rc<[ResultLeaf]>,
    pub(super) constant_bytes: u64,
    /// Of each instruction, by its index in the computation's list: its leaves' buffers are `leaves[first..first + n]`.
    leaves: Vec<BufId>,
    place: InstMap<(u32, u32)>,
}

impl BufferTable {
    /// The buffers of an instruction's leaves.
    pub(super) fn leaves(&self, inst: InstId) -> &[BufId] {
        let (first, n) = self.place[inst];
        &self.leaves[first as usize..(first + n) as usize]
    }

    /// The buffers of the leaves of all operands in a row.
    pub(super) fn operand_leaves<'p>(&'p self, module: &'p Module, inst: InstId) -> impl Iterator<Item = BufId> + 'p {
        module.inst(inst).operands.iter().flat_map(|&operand| self.leaves(operand).iter().copied())
    }

    /// The table of `comp`; `results` has those of the computations that it calls.
    pub(super) fn build(
        module: &Module,
        comp: CompId,
        results: &SecondaryMap<CompId, Rc<[ResultLeaf]>>,
    ) -> BufferTable {
        let mut builder = TableBuilder {
            module,
            results,
            table: BufferTable {
                buffers: PrimaryMap::new(),
                steps: Vec::new(),
                params: Vec::new(),
                root: Vec::new(),
                result: Rc::from([]),
                constant_bytes: 0,
                leaves: Vec::new(),
                place: InstMap::of(module, comp),
            },
        };
        for (position, &inst) in module.comp(comp).insts.iter().enumerate() {
            builder.add(inst, position as Position);
        }
        builder.finish(comp)
    }
}

/// The bytes of each leaf in the device's own memory: none where it lies in the host's.
pub(super) fn device_bytes(module: &Module, inst: InstId) -> Vec<u64> {
    let mut is_on_host = leaves_on_host(module, inst).into_iter();
    let mut bytes = Vec::with_capacity(is_on_host.len());
    module.shape(inst).for_each_leaf(&mut |_, leaf| {
        bytes.push(if is_on_host.next() == Some(true) { 0 } else { leaf.memory_bytes() });
    });
    bytes
}

struct TableBuilder<'m> {
    module: &'m Module,
    results: &'m SecondaryMap<CompId, Rc<[ResultLeaf]>>,
    table: BufferTable,
}

/// The action of an instruction that runs computations on its own operands; `None` for the others.
pub(super) fn control(module: &Module, inst: InstId) -> Option<Action> {
    // Inside of a fusion nothing counts.
    if module.inst(inst).opcode == Opcode::Fusion {
        return None;
    }
    let (entry, callees) = entered(module, inst)?;
    match entry {
        CalleeEntry::Call => Some(Action::Call(*callees.first()?)),
        CalleeEntry::Loop => {
            let (condition, body) = condition_and_body(module, inst)?;
            Some(Action::While { condition, body })
        }
        CalleeEntry::Branches => Some(Action::Conditional(callees.to_vec())),
    }
}

impl TableBuilder<'_> {
    fn add(&mut self, inst: InstId, position: Position) {
        let module = self.module;
        let first = self.table.leaves.len() as u32;
        let flow = module.inst(inst).opcode.row().flow;
        if let Some(runs) = viewed(module, inst) {
            runs.iter().for_each(|run| self.add_run(run));
        } else if flow == Flow::Parameter {
            self.add_fresh(inst, ResultLeaf::Written);
        } else if flow == Flow::Constant || is_rebuilt(module, inst) {
            self.add_fresh(inst, ResultLeaf::Constant);
        } else {
            self.add_step(inst, position);
        }
        let n = self.table.leaves.len() as u32 - first;
        self.table.place[inst] = (first, n);
    }

    /// An instruction that does something: its operands are read, and its results are written or handed through.
    fn add_step(&mut self, inst: InstId, position: Position) {
        let module = self.module;
        let action = control(module, inst);
        let operands: Vec<BufId> = self.table.operand_leaves(module, inst).collect();
        for &buffer in &operands {
            self.table.buffers[buffer].last_use = Some(position);
        }
        match &action {
            Some(Action::Call(callee)) => self.add_results(inst, &self.results[*callee].clone(), &operands),
            Some(Action::While { body, .. }) => {
                let body = self.results[*body].clone();
                let carried = (0u32..).zip(body.iter()).map(|(k, &leaf)| match leaf {
                    ResultLeaf::Param(p) if p == k => leaf,
                    _ => ResultLeaf::Written,
                });
                self.add_results(inst, &carried.collect::<Vec<_>>(), &operands);
            }
            Some(Action::Conditional(_)) => self.add_fresh(inst, ResultLeaf::Written),
            Some(Action::Op) | None => {
                let shared = self.handed_through(inst, operands.len());
                self.add_results(inst, &shared, &operands);
            }
        }
        self.table.steps.push(ScheduledStep { position, inst, action: action.unwrap_or(Action::Op) });
    }

    /// One buffer for each leaf.
    fn add_fresh(&mut self, inst: InstId, leaf: ResultLeaf) {
        let n = self.module.shape(inst).n_leaves();
        self.add_results(inst, &vec![leaf; n], &[]);
    }

    /// The leaves of `inst` as `leaves` says, with the operands' leaves as parameters.
    fn add_results(&mut self, inst: InstId, leaves: &[ResultLeaf], operands: &[BufId]) {
        let first = self.table.leaves.len();
        let table = &mut self.table;
        for (leaf_idx, bytes) in device_bytes(self.module, inst).into_iter().enumerate() {
            let known = match leaves.get(leaf_idx) {
                Some(&ResultLeaf::Param(p)) => operands.get(p as usize).copied(),
                Some(&ResultLeaf::Same(i)) => table.leaves.get(first + i as usize).copied(),
                Some(ResultLeaf::Constant | ResultLeaf::Written) | None => None,
            };
            let buffer = known.unwrap_or_else(|| {
                let source = match leaves.get(leaf_idx) {
                    Some(ResultLeaf::Constant) => BufferSource::Constant,
                    Some(ResultLeaf::Param(_) | ResultLeaf::Same(_) | ResultLeaf::Written) | None => {
                        BufferSource::Written
                    }
                };
                table.buffers.push(LeafBuffer {
                    bytes,
                    inst,
                    leaf: leaf_idx as u32,
                    source,
                    last_use: None,
                    result_leaf: None,
                })
            });
            table.leaves.push(buffer);
        }
    }

    /// Leaves of an operand that are leaves of the result too.
    fn add_run(&mut self, run: &LeafRun) {
        let (first, n) = self.table.place[run.operand];
        let in_operand = run.in_operand();
        let from = first as usize + in_operand.start.min(n as usize);
        let to = first as usize + in_operand.end.min(n as usize);
        self.table.leaves.extend_from_within(from..to);
    }

    /// What each result leaf of an op is: the two halves of asynchronous ops hand operands and results through.
    fn handed_through(&self, inst: InstId, n_operand_leaves: usize) -> Vec<ResultLeaf> {
        let module = self.module;
        let instruction = module.inst(inst);
        let shape_rule = instruction.opcode.row().shape;
        let mut leaves = vec![ResultLeaf::Written; module.shape(inst).n_leaves()];
        // What is sent stays where it is until it has left, and what was received where it arrived.
        let is_transfer = shape_rule == ShapeRule::Send || shape_rule == ShapeRule::RecvDone;
        if let (true, Some(data), 1..) = (is_transfer, leaves.first_mut(), n_operand_leaves) {
            *data = ResultLeaf::Param(0);
        }
        let runs = handed_on(module, inst, Through::ASYNC_HALVES);
        if runs.is_empty() {
            return leaves;
        }
        let mut first_of_operand = Vec::with_capacity(instruction.operands.len());
        let mut n_leaves = 0;
        for &operand in &instruction.operands {
            first_of_operand.push(n_leaves);
            n_leaves += self.table.leaves(operand).len();
        }
        for run in &runs {
            for (result, operand) in run.in_result().zip(run.in_operand()) {
                if let Some(leaf) = leaves.get_mut(result) {
                    *leaf = ResultLeaf::Param((first_of_operand[run.operand_idx] + operand) as u32);
                }
            }
        }
        leaves
    }

    fn finish(self, comp: CompId) -> BufferTable {
        let TableBuilder { module, mut table, .. } = self;
        for &param in &module.comp(comp).params {
            let leaves = table.leaves(param).to_vec();
            for buffer in leaves {
                table.buffers[buffer].source = BufferSource::Param(table.params.len() as u32);
                table.params.push(buffer);
            }
        }
        table.root = module.comp(comp).root.expand().map_or(Vec::new(), |root| table.leaves(root).to_vec());
        let mut result = Vec::with_capacity(table.root.len());
        for (i, &id) in table.root.iter().enumerate() {
            let buffer = &mut table.buffers[id];
            buffer.last_use = Some(END);
            result.push(match (buffer.source, buffer.result_leaf) {
                (BufferSource::Param(p), _) => ResultLeaf::Param(p),
                (BufferSource::Constant, _) => ResultLeaf::Constant,
                (BufferSource::Written, Some(first)) => ResultLeaf::Same(first),
                (BufferSource::Written, None) => ResultLeaf::Written,
            });
            buffer.result_leaf.get_or_insert(i as u32);
        }
        table.result = result.into();
        let constants = module.comp(comp).insts.iter().filter(|&&i| module.inst(i).opcode.row().flow == Flow::Constant);
        table.constant_bytes = constants.flat_map(|&i| device_bytes(module, i)).fold(0, u64::saturating_add);
        table
    }
}
