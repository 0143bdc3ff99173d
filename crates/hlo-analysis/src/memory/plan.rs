//! The buffers of one computation, whoever calls it: which leaves share one, and where each is used last.

use super::in_place::{is_rebuilt, is_view};
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::attrs::Attrs;
use hlo_ir::op::{Flow, ShapeRule};
use hlo_ir::{CompId, InstId, Module, Shape};
use std::ops::Range;
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
pub(super) enum Source {
    /// A leaf of the parameters, counted over all of them.
    Param(u32),
    /// A constant, or made anew by each use: never written, and copied where memory of its own is needed.
    Constant,
    /// Written by the instruction that defines it.
    Written,
}

/// One buffer.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) bytes: u64,
    pub(super) inst: InstId,
    pub(super) leaf: u32,
    pub(super) source: Source,
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
pub(super) struct Step {
    pub(super) position: Position,
    pub(super) inst: InstId,
    pub(super) action: Action,
}

/// The buffers and the schedule of a computation.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) buffers: PrimaryMap<BufId, Buffer>,
    pub(super) steps: Vec<Step>,
    /// Buffers of the leaves of all parameters.
    pub(super) params: Vec<BufId>,
    /// Buffers of the leaves of the result.
    pub(super) root: Vec<BufId>,
    pub(super) result: Rc<[ResultLeaf]>,
    pub(super) constant_bytes: u64,
    /// Of each instruction, by its index in the computation's list: its leaves' buffers are `leaves[first..first + n]`.
    leaves: Vec<BufId>,
    place: SecondaryMap<InstId, (u32, u32)>,
}

impl Plan {
    /// The buffers of an instruction's leaves.
    pub(super) fn leaves(&self, inst: InstId) -> &[BufId] {
        let (first, n) = self.place[inst];
        &self.leaves[first as usize..(first + n) as usize]
    }

    /// The buffers of the leaves of all operands in a row.
    pub(super) fn operand_leaves<'p>(&'p self, module: &'p Module, inst: InstId) -> impl Iterator<Item = BufId> + 'p {
        module.inst(inst).operands.iter().flat_map(|&operand| self.leaves(operand).iter().copied())
    }

    /// The plan of `comp`; `results` has those of the computations that it calls.
    pub(super) fn build(module: &Module, comp: CompId, results: &SecondaryMap<CompId, Rc<[ResultLeaf]>>) -> Plan {
        let mut builder = Builder {
            module,
            results,
            plan: Plan {
                buffers: PrimaryMap::new(),
                steps: Vec::new(),
                params: Vec::new(),
                root: Vec::new(),
                result: Rc::from([]),
                constant_bytes: 0,
                leaves: Vec::new(),
                place: SecondaryMap::new(),
            },
        };
        for (position, &inst) in module.comp(comp).insts.iter().enumerate() {
            builder.add(inst, position as Position);
        }
        builder.finish(comp)
    }
}

struct Builder<'m> {
    module: &'m Module,
    results: &'m SecondaryMap<CompId, Rc<[ResultLeaf]>>,
    plan: Plan,
}

/// The action of an instruction that runs computations on its own operands; `None` for the others.
pub(super) fn control(module: &Module, inst: InstId) -> Option<Action> {
    match &module.inst(inst).attrs {
        Attrs::Call(attrs) => Some(Action::Call(attrs.to_apply?)),
        Attrs::While(attrs) => Some(Action::While { condition: attrs.condition?, body: attrs.body? }),
        Attrs::Conditional(_) => Some(Action::Conditional(module.called(inst).to_vec())),
        _ => None,
    }
}

impl Builder<'_> {
    fn add(&mut self, inst: InstId, position: Position) {
        let module = self.module;
        let first = self.plan.leaves.len() as u32;
        let flow = module.inst(inst).opcode.row().flow;
        match flow {
            Flow::Parameter => self.add_fresh(inst, ResultLeaf::Written),
            Flow::Constant => self.add_fresh(inst, ResultLeaf::Constant),
            Flow::Tuple => {
                for &operand in &module.inst(inst).operands {
                    self.add_range(operand, 0..u32::MAX);
                }
            }
            Flow::GetTupleElement => {
                let range = element_range(module, inst);
                if let Some(&operand) = module.inst(inst).operands.first() {
                    self.add_range(operand, range);
                }
            }
            _ if is_view(module, inst) => {
                if let Some(&operand) = module.inst(inst).operands.first() {
                    self.add_range(operand, 0..u32::MAX);
                }
            }
            _ if is_rebuilt(module, inst) => self.add_fresh(inst, ResultLeaf::Constant),
            _ => self.add_step(inst, position),
        }
        let n = self.plan.leaves.len() as u32 - first;
        self.plan.place[inst] = (first, n);
    }

    /// An instruction that does something: its operands are read, and its results are written or handed through.
    fn add_step(&mut self, inst: InstId, position: Position) {
        let module = self.module;
        let action = control(module, inst);
        let operands: Vec<BufId> = self.plan.operand_leaves(module, inst).collect();
        for &buffer in &operands {
            self.plan.buffers[buffer].last_use = Some(position);
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
                let shared = handed_through(module, inst, &operands);
                self.add_results(inst, &shared, &operands);
            }
        }
        self.plan.steps.push(Step { position, inst, action: action.unwrap_or(Action::Op) });
    }

    /// One buffer for each leaf.
    fn add_fresh(&mut self, inst: InstId, leaf: ResultLeaf) {
        let n = self.module.shape(inst).n_leaves();
        self.add_results(inst, &vec![leaf; n], &[]);
    }

    /// The leaves of `inst` as `leaves` says, with the operands' leaves as parameters.
    fn add_results(&mut self, inst: InstId, leaves: &[ResultLeaf], operands: &[BufId]) {
        let first = self.plan.leaves.len();
        let mut leaf_idx = 0usize;
        let plan = &mut self.plan;
        let mut visit = |shape: &Shape| {
            let known = match leaves.get(leaf_idx) {
                Some(&ResultLeaf::Param(p)) => operands.get(p as usize).copied(),
                Some(&ResultLeaf::Same(i)) => plan.leaves.get(first + i as usize).copied(),
                Some(ResultLeaf::Constant | ResultLeaf::Written) | None => None,
            };
            let buffer = known.unwrap_or_else(|| {
                let source = match leaves.get(leaf_idx) {
                    Some(ResultLeaf::Constant) => Source::Constant,
                    Some(ResultLeaf::Param(_) | ResultLeaf::Same(_) | ResultLeaf::Written) | None => Source::Written,
                };
                plan.buffers.push(Buffer {
                    bytes: shape.memory_bytes(),
                    inst,
                    leaf: leaf_idx as u32,
                    source,
                    last_use: None,
                    result_leaf: None,
                })
            });
            plan.leaves.push(buffer);
            leaf_idx += 1;
        };
        self.module.shape(inst).for_each_leaf(&mut |_, shape| visit(shape));
    }

    /// Leaves of an operand handed on.
    fn add_range(&mut self, operand: InstId, range: Range<u32>) {
        let (first, n) = self.plan.place[operand];
        let from = first + range.start.min(n);
        let to = first + range.end.min(n);
        self.plan.leaves.extend_from_within(from as usize..to as usize);
    }

    fn finish(self, comp: CompId) -> Plan {
        let Builder { module, mut plan, .. } = self;
        for &param in &module.comp(comp).params {
            let leaves = plan.leaves(param).to_vec();
            for buffer in leaves {
                plan.buffers[buffer].source = Source::Param(plan.params.len() as u32);
                plan.params.push(buffer);
            }
        }
        plan.root = module.comp(comp).root.expand().map_or(Vec::new(), |root| plan.leaves(root).to_vec());
        let mut result = Vec::with_capacity(plan.root.len());
        for (i, &id) in plan.root.iter().enumerate() {
            let buffer = &mut plan.buffers[id];
            buffer.last_use = Some(END);
            result.push(match (buffer.source, buffer.result_leaf) {
                (Source::Param(p), _) => ResultLeaf::Param(p),
                (Source::Constant, _) => ResultLeaf::Constant,
                (Source::Written, Some(first)) => ResultLeaf::Same(first),
                (Source::Written, None) => ResultLeaf::Written,
            });
            buffer.result_leaf.get_or_insert(i as u32);
        }
        plan.result = result.into();
        let constants = module.comp(comp).insts.iter().filter(|&&i| module.inst(i).opcode.row().flow == Flow::Constant);
        plan.constant_bytes = constants.map(|&i| module.shape(i).memory_bytes()).fold(0, u64::saturating_add);
        plan
    }
}

/// Which leaves of the tuple a `get-tuple-element` takes.
fn element_range(module: &Module, inst: InstId) -> Range<u32> {
    let instruction = module.inst(inst);
    let (Attrs::TupleIndex(attrs), Some(&operand)) = (&instruction.attrs, instruction.operands.first()) else {
        return 0..0;
    };
    let index = usize::try_from(attrs.index).unwrap_or(usize::MAX);
    let leaves = module.shapes.element_leaves(module.inst(operand).shape, index);
    leaves.start as u32..leaves.end as u32
}

/// What each result leaf of an op is: the two halves of asynchronous ops hand operands and results through.
fn handed_through(module: &Module, inst: InstId, operands: &[BufId]) -> Vec<ResultLeaf> {
    let instruction = module.inst(inst);
    let row = instruction.opcode.row();
    let n = module.shape(inst).n_leaves();
    let mut leaves = vec![ResultLeaf::Written; n];
    let mut hand = |result: Range<usize>, from: u32| {
        for (operand, leaf) in (from..).zip(result) {
            if leaf < n && (operand as usize) < operands.len() {
                leaves[leaf] = ResultLeaf::Param(operand);
            }
        }
    };
    let element = |index: usize| {
        let leaves = instruction.operands.first().map(|&o| module.shapes.element_leaves(module.inst(o).shape, index));
        leaves.map_or(0..0, |leaves| leaves.start as u32..leaves.end as u32)
    };
    match (row.shape, row.flow) {
        (ShapeRule::AllGatherStart | ShapeRule::CollectivePermuteStart | ShapeRule::AsyncStart, _) => {
            hand(0..operands.len(), 0);
        }
        (ShapeRule::CopyStart, _) => hand(1..2, 0),
        (ShapeRule::Send | ShapeRule::RecvDone, _) => hand(0..1, 0),
        (ShapeRule::AsyncUpdate, _) => hand(0..n, 0),
        (ShapeRule::DoneOfPair | ShapeRule::AsyncDone, _) => hand(0..n, element(1).start),
        (ShapeRule::CopyDone, _) => hand(0..n, element(0).start),
        // all-reduce-done
        (ShapeRule::FirstOperand, Flow::AsyncDone) => hand(0..n, 0),
        _ => {}
    }
    leaves
}
