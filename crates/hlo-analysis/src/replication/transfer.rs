//! The transfer functions: facts of an instruction's leaves from those of its operands.
// circle: the fact of an operation asks the solver for the facts of its operands, and the solver asks this file for the operation

use super::solver::{Fact, Frame, Solver, Wanting};
use super::*;
use crate::values::{CallSite, Through, arguments, handed_on};
use hlo_ir::CompId;
use hlo_ir::attrs::{Attrs, CustomAttrs};
use hlo_ir::custom_target::{self, CustomTarget};
use hlo_ir::op::{Effects, Flow};

impl Solver<'_> {
    /// The facts of one instruction's leaves.
    pub(super) fn transfer(&mut self, inst: InstId, frame: &mut Frame) -> Wanting<Fact> {
        let n = self.n_leaves(inst);
        Ok(match self.module.inst(inst).opcode.row().flow {
            Flow::Constant => vec![self.pool.top(); n].into(),
            Flow::Parameter => self.unknown(n),
            flow @ (Flow::ReplicaId | Flow::PartitionId) => {
                vec![device_id(self.module, flow, &mut self.pool); n].into()
            }
            Flow::Tuple | Flow::GetTupleElement | Flow::Identity | Flow::AsyncUpdate | Flow::AsyncDone => {
                self.handed_on(inst, frame, n)
            }
            Flow::Call => self.call(inst, frame, n)?,
            Flow::While => self.while_loop(inst, frame, n)?,
            Flow::Conditional => self.conditional(inst, frame, n)?,
            Flow::Collective(rule) => self.collective(inst, rule, frame, n),
            Flow::AsyncStart(begun) => self.async_start(inst, begun, frame, n)?,
            Flow::All => self.plain(inst, frame, n),
        })
    }

    /// Ops whose result depends on all operands, by their effects.
    fn plain(&mut self, inst: InstId, frame: &Frame, n: usize) -> Fact {
        let effects = self.module.inst(inst).opcode.row().effects;
        if effects == Effects::SideEffect {
            return self.infeed(inst, n);
        }
        let operands = self.meet_operands(inst, frame);
        let own = own_source(self.module, inst, &self.sources, &mut self.pool);
        vec![self.pool.meet(operands, own); n].into()
    }

    /// An infeed follows its sharding across partitions; other effects give unique values.
    fn infeed(&mut self, inst: InstId, n: usize) -> Fact {
        let p = self.module.header.num_partitions.max(1) as usize;
        let sharding = self.module.sharding(inst).filter(|_| p > 1);
        let (Attrs::Infeed(_), Some(sharding)) = (&self.module.inst(inst).attrs, sharding) else {
            return self.unknown(n);
        };
        let of_leaf = |leaf_idx: usize| sharding.leaf(leaf_idx);
        let leaves: Vec<Classes> = (0..n)
            .map(|i| of_leaf(i).map_or(self.pool.bottom(), |leaf| partition_classes(leaf, &mut self.pool, p)))
            .collect();
        leaves.into()
    }

    /// What the called computations depend on besides their arguments.
    pub(super) fn sources_of_callees(&mut self, inst: InstId) -> Classes {
        let mut fact = self.pool.top();
        for callee in self.module.called(inst) {
            let own = self.sources.get(&callee).copied().unwrap_or(self.pool.bottom());
            fact = self.pool.meet(fact, own);
        }
        fact
    }

    /// The meet of all operand leaves.
    pub(super) fn meet_operands(&mut self, inst: InstId, frame: &Frame) -> Classes {
        let mut fact = self.pool.top();
        for &operand in &self.module.inst(inst).operands {
            let Some(leaves) = self.local(frame, operand) else { return self.pool.bottom() };
            for &leaf in leaves.iter() {
                fact = self.pool.meet(fact, leaf);
            }
        }
        fact
    }

    /// All operands' leaves in a row.
    pub(super) fn operand_leaves(&self, inst: InstId, frame: &Frame) -> Vec<Classes> {
        let operands = &self.module.inst(inst).operands;
        let mut out = Vec::with_capacity(operands.len());
        for &operand in operands {
            out.extend(self.local(frame, operand).iter().flat_map(|f| f.iter().copied()));
        }
        out
    }

    /// The leaves of the first operand.
    pub(super) fn first_operand(&self, inst: InstId, frame: &Frame) -> Fact {
        let first = self.module.inst(inst).operands.first();
        first.and_then(|&o| self.local(frame, o)).unwrap_or_else(|| [].into())
    }

    /// Exactly `n` leaves; a mismatch, which a verified module does not have, reads as unique.
    pub(super) fn fit(&self, leaves: Fact, n: usize) -> Fact {
        if leaves.len() == n { leaves } else { self.unknown(n) }
    }

    /// `n` leaves of which nothing is known.
    pub(super) fn unknown(&self, n: usize) -> Fact {
        vec![self.pool.bottom(); n].into()
    }

    /// What a call site gives for the parameters of what it calls: their leaves in a row.
    pub(super) fn argument_leaves(&self, site: CallSite, callee: CompId, frame: &Frame) -> Vec<Classes> {
        let mut out = Vec::new();
        for (_, operand) in arguments(self.module, site, callee) {
            out.extend(self.local(frame, operand).iter().flat_map(|f| f.iter().copied()));
        }
        out
    }

    /// The leaves of an instruction that only hands leaves on.
    fn handed_on(&self, inst: InstId, frame: &Frame, n: usize) -> Fact {
        let runs = handed_on(self.module, inst, Through::ALL);
        if let [run] = runs.as_slice()
            && let Some(whole) = self.local(frame, run.operand)
            && run.in_operand() == (0..whole.len())
        {
            return self.fit(whole, n);
        }
        let mut leaves = Vec::with_capacity(n);
        for run in &runs {
            let operand = self.local(frame, run.operand);
            leaves.extend_from_slice(operand.as_deref().and_then(|f| f.get(run.in_operand())).unwrap_or_default());
        }
        self.fit(leaves.into(), n)
    }
}

/// The classes of `replica-id` and `partition-id`; top for other flows.
fn device_id(module: &Module, flow: Flow, pool: &mut ClassPool) -> Classes {
    let p = module.header.num_partitions.max(1) as usize;
    match flow {
        Flow::ReplicaId => pool.by_key(|d| d / p),
        Flow::PartitionId => pool.by_key(|d| d % p),
        Flow::All
        | Flow::Parameter
        | Flow::Constant
        | Flow::Tuple
        | Flow::GetTupleElement
        | Flow::Identity
        | Flow::Call
        | Flow::While
        | Flow::Conditional
        | Flow::Collective(_)
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate
        | Flow::AsyncDone => pool.top(),
    }
}

/// What an instruction's value depends on besides its operands.
fn own_source(module: &Module, inst: InstId, sources: &HashMap<CompId, Classes>, pool: &mut ClassPool) -> Classes {
    let instruction = module.inst(inst);
    match instruction.opcode.row().effects {
        Effects::Pure => device_id(module, instruction.opcode.row().flow, pool),
        Effects::Random | Effects::Communicates | Effects::SideEffect => pool.bottom(),
        // A reducer or comparator that asks for its device or draws random numbers would make devices differ.
        Effects::OfCallees => {
            let mut fact = pool.top();
            for callee in module.called(inst) {
                fact = pool.meet(fact, sources.get(&callee).copied().unwrap_or(pool.bottom()));
            }
            fact
        }
        Effects::ByAttribute => {
            let target = CustomAttrs::of(&instruction.attrs).map_or("", |call| call.custom_call_target.0.as_str());
            let is_identity = CustomTarget::of(&instruction.attrs).is_some_and(CustomTarget::is_identity);
            let is_function =
                !custom_target::has_effect(&instruction.attrs) && (is_identity || is_function_of_operands(target));
            if is_function { pool.top() } else { pool.bottom() }
        }
    }
}

/// What each computation that the entry reaches depends on besides its arguments.
pub(super) fn own_sources(module: &Module, pool: &mut ClassPool) -> HashMap<CompId, Classes> {
    let mut sources = HashMap::new();
    for comp in module.post_order() {
        let mut fact = pool.top();
        for &inst in &module.comp(comp).insts {
            let own = own_source(module, inst, &sources, pool);
            fact = pool.meet(fact, own);
        }
        sources.insert(comp, fact);
    }
    sources
}

/// Custom calls of libraries that are known to compute the same from the same operands on every device. Of all others nothing is
/// known: a callback may ask its host, a kernel its device, and a partitioner's marker gives each device its own shard.
fn is_function_of_operands(target: &str) -> bool {
    const WHOLE: [&str; 5] = ["LayoutConstraint", "TopK", "X64Combine", "X64SplitHigh", "X64SplitLow"];
    const PREFIXES: [&str; 6] = ["__cublas$", "__cudnn$", "lapack_", "cusolver_", "mhlo.", "chlo."];
    WHOLE.contains(&target) || PREFIXES.iter().any(|prefix| target.starts_with(prefix))
}
