//! The engine: contexts, their memo and the stack of computations under analysis.
//!
//! A *context* is a computation with the facts of its arguments and of the control flow around it. The engine keeps its
//! own stack, so a deep chain of calls costs heap and no recursion: a transfer function that needs the result of a
//! context not yet known gives it back as *wanted*; the engine analyses it and then repeats the instruction.
//!
//! Cost: each context is analysed once, a computation for at most [`MAX_CONTEXTS`] contexts by themselves. Further ones
//! share a merged context (the meet of their arguments), which is still exact for a loop state on its way down. When the
//! budget of the whole module is spent, a context with nothing known serves for all.

use super::transfer::own_sources;
use super::*;
use hlo_ir::CompId;
use std::rc::Rc;

/// Distinct contexts for which one computation is analysed by itself; further ones share a merged context.
const MAX_CONTEXTS: usize = 64;
/// Leaves that may be visited: this many times those of the module …
const BUDGET_FACTOR: usize = 64;
/// … and this many in any case.
const MIN_BUDGET: usize = 16_000_000;

/// A computation, the facts of its arguments' leaves (all parameters' in a row) and of the control flow around it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Context {
    pub(super) comp: CompId,
    pub(super) args: Box<[Classes]>,
    pub(super) control: Classes,
}

/// Facts of an instruction's leaves.
pub(super) type Fact = Rc<[Classes]>;

/// A result, or the context that must be analysed first.
pub(super) type Wanting<T> = Result<T, Context>;

/// A computation under analysis.
pub(super) struct Frame {
    context: Context,
    /// Facts so far, by place in the computation.
    known: Vec<Fact>,
    /// State and control of the while at which the analysis stands.
    pub(super) loop_state: Option<(Vec<Classes>, Classes)>,
}

impl Frame {
    /// Control flow around the computation.
    pub(super) fn control(&self) -> Classes {
        self.context.control
    }
}

/// What the engine knows of the contexts of one computation.
#[derive(Default)]
struct Visits {
    n_contexts: usize,
    merged: Option<(Box<[Classes]>, Classes)>,
}

pub(super) struct Solver<'m> {
    pub(super) module: &'m Module,
    pub(super) pool: ClassPool,
    facts: SecondaryMap<InstId, Box<[Classes]>>,
    memo: HashMap<Context, Fact>,
    running: hashbrown::HashSet<Context>,
    visits: HashMap<CompId, Visits>,
    /// Leaves of each computation's instructions.
    cost: HashMap<CompId, usize>,
    budget: usize,
    n_leaves: SecondaryMap<InstId, u32>,
    place: SecondaryMap<InstId, u32>,
    /// Where a parameter's leaves begin among the arguments.
    first_arg: SecondaryMap<InstId, Option<usize>>,
    /// What each computation depends on besides its arguments.
    pub(super) sources: HashMap<CompId, Classes>,
}

impl<'m> Solver<'m> {
    pub(super) fn new(module: &'m Module, mut pool: ClassPool) -> Solver<'m> {
        let mut n_leaves: SecondaryMap<InstId, u32> = SecondaryMap::with_capacity(module.n_inst_slots());
        let mut place: SecondaryMap<InstId, u32> = SecondaryMap::with_capacity(module.n_inst_slots());
        let mut first_arg: SecondaryMap<InstId, Option<usize>> = SecondaryMap::new();
        let mut cost = HashMap::new();
        for &comp in module.computations() {
            let mut leaves = 1;
            for (i, &inst) in module.comp(comp).insts.iter().enumerate() {
                n_leaves[inst] = module.shape(inst).n_leaves() as u32;
                place[inst] = i as u32;
                leaves += 1 + n_leaves[inst] as usize;
            }
            cost.insert(comp, leaves);
            let mut start = 0;
            for &param in &module.comp(comp).params {
                first_arg[param] = Some(start);
                start += n_leaves[param] as usize;
            }
        }
        let budget = MIN_BUDGET.max(BUDGET_FACTOR.saturating_mul(cost.values().sum()));
        let sources = own_sources(module, &mut pool);
        Solver {
            module,
            pool,
            facts: SecondaryMap::new(),
            memo: HashMap::new(),
            running: hashbrown::HashSet::new(),
            visits: HashMap::new(),
            cost,
            budget,
            n_leaves,
            place,
            first_arg,
            sources,
        }
    }

    /// Analyses the entry for arguments with facts `args`: the facts of all instructions that it reaches.
    pub(super) fn solve(mut self, args: Vec<Classes>) -> (ClassPool, SecondaryMap<InstId, Box<[Classes]>>) {
        let Some(entry) = self.module.entry() else { return (self.pool, self.facts) };
        let context = Context { comp: entry, args: args.into(), control: self.pool.top() };
        let mut stack = vec![self.open(context)];
        while let Some(mut frame) = stack.pop() {
            if let Err(wanted) = self.advance(&mut frame) {
                stack.push(frame);
                let callee = self.open(wanted);
                stack.push(callee);
                continue;
            }
            let root = self.module.comp(frame.context.comp).root.expand();
            let result = root.and_then(|r| self.local(&frame, r)).unwrap_or_else(|| Rc::from([]));
            self.running.remove(&frame.context);
            self.memo.insert(frame.context, result);
        }
        (self.pool, self.facts)
    }

    fn open(&mut self, context: Context) -> Frame {
        self.visits.entry(context.comp).or_default().n_contexts += 1;
        self.budget = self.budget.saturating_sub(self.cost.get(&context.comp).copied().unwrap_or(1));
        self.running.insert(context.clone());
        let n_insts = self.module.comp(context.comp).insts.len();
        Frame { context, known: Vec::with_capacity(n_insts), loop_state: None }
    }

    /// Goes on in a computation until its end or until a context is wanted.
    fn advance(&mut self, frame: &mut Frame) -> Wanting<()> {
        let computation = self.module.comp(frame.context.comp);
        let insts: &[InstId] = &computation.insts;
        let control = frame.control();
        while let Some(&inst) = insts.get(frame.known.len()) {
            let mut fact = match self.argument(frame, inst) {
                Some(fact) => fact,
                None => self.transfer(inst, frame)?,
            };
            if control != self.pool.top() {
                fact = fact.iter().map(|&leaf| self.pool.meet(leaf, control)).collect();
            }
            self.record(inst, &fact);
            frame.known.push(fact);
        }
        Ok(())
    }

    /// The facts of a parameter's leaves; `None` for other instructions.
    fn argument(&self, frame: &Frame, inst: InstId) -> Option<Fact> {
        let start = self.first_arg[inst]?;
        let bottom = self.pool.bottom();
        Some((start..start + self.n_leaves(inst)).map(|i| *frame.context.args.get(i).unwrap_or(&bottom)).collect())
    }

    /// Number of leaves of an instruction's result.
    pub(super) fn n_leaves(&self, inst: InstId) -> usize {
        self.n_leaves[inst] as usize
    }

    /// The facts of an instruction that stands earlier in the computation.
    pub(super) fn local(&self, frame: &Frame, inst: InstId) -> Option<Fact> {
        frame.known.get(self.place[inst] as usize).cloned()
    }

    /// Meets a fact into what all contexts agree on.
    fn record(&mut self, inst: InstId, fact: &[Classes]) {
        if self.facts[inst].is_empty() {
            self.facts[inst] = fact.into();
            return;
        }
        for (slot, &new) in self.facts[inst].iter_mut().zip(fact) {
            *slot = self.pool.meet(*slot, new);
        }
    }

    /// The facts of `comp`'s result leaves for arguments with facts `args`, if that context was analysed.
    pub(super) fn result_of(&mut self, comp: CompId, args: &[Classes], control: Classes) -> Wanting<Fact> {
        let mut context = Context { comp, args: args.into(), control };
        if let Some(known) = self.memo.get(&context) {
            return Ok(known.clone());
        }
        if self.budget == 0 {
            context.args.fill(self.pool.bottom());
            context.control = self.pool.bottom();
        } else {
            let visits = self.visits.entry(comp).or_default();
            if visits.n_contexts >= MAX_CONTEXTS {
                if let Some((merged, merged_control)) = &visits.merged {
                    for (arg, &other) in context.args.iter_mut().zip(merged.iter()) {
                        *arg = self.pool.meet(*arg, other);
                    }
                    context.control = self.pool.meet(control, *merged_control);
                }
                visits.merged = Some((context.args.clone(), context.control));
            }
        }
        if let Some(known) = self.memo.get(&context) {
            return Ok(known.clone());
        }
        if self.running.contains(&context) {
            // A computation that calls itself, which no verified module has.
            let n = self.module.comp(comp).root.expand().map_or(0, |root| self.n_leaves(root));
            return Ok(vec![self.pool.bottom(); n].into());
        }
        Err(context)
    }
}
