//! Loops and branches.
//!
//! The first module's loops are read as recurrences: what an iteration makes of the carried values, with a term for each
//! carried leaf. A loop of the second module is the same recurrence if each of its leaves is a part of the first's leaves:
//! the same part at the start, and again after an iteration if it was so before. Which part is guessed from the start and
//! then checked; leaves of which no guess holds are the second loop's own.
//!
//! Two kinds of carried values have closed forms, because sums over devices may move past them: what is only added to
//! ([`crate::rules::Rule::LoopSum`]), and zeros into which rows are written ([`crate::rules::Rule::LoopStack`]).

// circle: a loop is matched by guesses, and a guess is tried on the loop

use crate::array::{Tree, Value};
use crate::devices::Classes;
use crate::effects::N_WORLDS;
use crate::elementwise::ElementwiseOp;
use crate::guess::Parts;
use crate::prover::{Prover, Side};
use crate::rules::{Rule, Rules};
use crate::term::{LoopId, Node};
use crate::walk::Known;
use crate::world::split_worlds;
use hlo_ir::attrs::WhileAttrs;
use hlo_ir::{CompId, DType, InstId, Opcode, Shape};

/// A loop of the first module.
#[derive(Clone)]
pub(crate) struct LoopRecord {
    pub id: LoopId,
    /// What sums over its iterations are named by: the loop itself, or another one if its iterations are cut otherwise.
    pub sums: LoopId,
    pub parent: Option<LoopId>,
    pub inits: Vec<Value>,
    /// The leaves at the start of an iteration, and after it.
    pub params: Vec<Value>,
    pub results: Vec<Value>,
    pub condition: Value,
    pub outs: Vec<Value>,
    /// The leaves after an iteration in which those that start as one number, which does not say of what they are a part,
    /// are unknown; see [`Prover::probe`].
    pub probed: Option<Vec<Value>>,
    /// How often it runs, if that is known and asked for.
    pub trips: Option<u64>,
}

/// Why a leaf of the second module's loop is none of the first's.
#[derive(Clone)]
pub(crate) enum Parting {
    /// No leaf of the first loop begins as it does.
    Start,
    /// After an iteration it is not what the first loop's is.
    Iteration { expected: Value, found: Value },
    /// The loops go on while these hold.
    Condition { expected: Value, found: Value },
}

/// Number of elements and element type of a leaf.
type LeafType = (i64, DType);

/// A loop under study.
pub(crate) struct Loop<'a, 'm> {
    pub side: &'a mut Side<'m>,
    site: InstId,
    condition: CompId,
    body: CompId,
    init: &'a Tree,
    /// Whether the worlds are carried, behind the leaves.
    has_worlds: bool,
    pub inits: Vec<Value>,
    pub types: Vec<LeafType>,
    /// What the body's instructions gave in the round before.
    known: Known,
}

impl Loop<'_, '_> {
    /// The instructions of the body.
    pub(crate) fn body_insts(&self) -> Vec<InstId> {
        self.side.module.comp(self.body).insts.clone()
    }

    /// Takes other values for those that the body's instructions gave, and gives those.
    pub(crate) fn swap_known(&mut self, known: Known) -> Known {
        std::mem::replace(&mut self.known, known)
    }
}

/// For each leaf the round in which its carried value was made, and its classes.
pub(crate) type Carries = Vec<Option<(usize, Classes)>>;

/// What a leaf of the second module's loop is taken for.
#[derive(Clone)]
pub(crate) enum Guess {
    Part(Parts),
    Invariant,
    Own(Classes),
}

/// What one iteration gives.
pub(crate) struct Iteration {
    pub condition: Value,
    pub results: Vec<Value>,
}

/// How often guesses are corrected.
pub(crate) const MAX_ROUNDS: usize = 24;

impl Prover {
    pub(crate) fn run_while(&mut self, side: &mut Side<'_>, inst: InstId, init: &Tree) -> Option<Tree> {
        let attrs = WhileAttrs::of(&side.module.inst(inst).attrs)?;
        let (condition, body) = (attrs.condition?, attrs.body?);
        let mut types = Vec::new();
        side.module.shape(inst).for_each_leaf(&mut |_, leaf| types.push(leaf_type(leaf)));
        let mut inits = init.leaves();
        // A condition with effects runs once more often than the body: such a loop is read as a whole.
        if inits.len() != types.len() || self.is_impure(side, condition) {
            return None;
        }
        let has_worlds = self.is_impure(side, body);
        if has_worlds {
            inits.extend(self.outside.worlds.clone());
            types.extend([(1, DType::Pred); N_WORLDS]);
        }
        let side_number = side.number;
        let is_second = side_number > 0;
        self.last_parting = None;
        let mut this = Loop { side, site: inst, condition, body, init, has_worlds, inits, types, known: Known::new() };
        let outs = if is_second {
            let candidates: Vec<usize> =
                (0..self.loops.len()).filter(|&k| self.loops[k].parent == self.parent).collect();
            // The loop of which most leaves are parts; no other is looked for once all are.
            let mut best: Option<(usize, usize, Vec<Value>)> = None;
            let mut last = None;
            for k in candidates {
                last = Some(k);
                let Some((n_own, outs)) = self.match_loop(&mut this, k) else { continue };
                if best.as_ref().is_none_or(|(least, ..)| n_own < *least) {
                    best = Some((n_own, k, outs));
                }
                if n_own == 0 {
                    break;
                }
            }
            // What is traced last is to be what the values are.
            if let Some((_, k, outs)) = &mut best
                && self.trace.is_some()
                && last != Some(*k)
                && let Some((_, again)) = self.match_loop(&mut this, *k)
            {
                *outs = again;
            }
            match best {
                Some((.., outs)) => outs,
                None => self.study_loop(&mut this)?,
            }
        } else {
            self.study_loop(&mut this)?
        };
        let mut outs = outs;
        if has_worlds {
            let before = std::mem::replace(&mut self.outside.worlds, split_worlds(&mut outs)?);
            self.note_event(side_number, inst, &before, init.leaves());
        }
        init.with_leaves(&mut outs.into_iter())
    }

    /// One iteration on these leaves. What is below the leaves that the round before had is not looked at again, unless this
    /// is no round but an iteration beside them.
    pub(crate) fn iterate(&mut self, this: &mut Loop<'_, '_>, params: &[Value], is_round: bool) -> Option<Iteration> {
        let mut leaves = params.to_vec();
        let worlds = if this.has_worlds { Some(split_worlds(&mut leaves)?) } else { None };
        let tree = this.init.with_leaves(&mut leaves.into_iter())?;
        let outer = worlds.map(|worlds| std::mem::replace(&mut self.outside.worlds, worlds));
        let was_paused = self.trace.as_mut().map(|trace| trace.pause_unless(is_round));
        let condition = self.run_called(this.side, this.site, this.condition, vec![tree.clone()]);
        let known = is_round.then_some(&mut this.known);
        let mut results = self.run_called_again(this.side, this.site, this.body, vec![tree], known).leaves();
        if let Some(outer) = outer {
            results.extend(std::mem::replace(&mut self.outside.worlds, outer));
        }
        if let (Some(trace), Some(was_paused)) = (&mut self.trace, was_paused) {
            trace.resume(was_paused);
        }
        let Tree::Leaf(condition) = condition else { return None };
        (results.len() == params.len()).then_some(Iteration { condition, results })
    }

    /// A carried leaf at the start of an iteration: that of the round before as long as its classes stay.
    fn carry(
        &mut self,
        id: LoopId,
        leaf: usize,
        n_elems: i64,
        (round, classes): (usize, Classes),
        carries: &mut Carries,
    ) -> Value {
        let last = carries[leaf].filter(|last| last.1 == classes);
        let (round, _) = *carries[leaf].insert(last.unwrap_or((round, classes)));
        let node = Node::Carry(id, round as u32, leaf as u32);
        let term = self.arrays.terms.leaf(node, n_elems, classes, Rules::of(Rule::LoopInduction));
        Value::Same(self.arrays.whole(term, n_elems))
    }

    /// Forgets all loops that were noted but the first so many.
    pub(crate) fn forget_loops(&mut self, n: usize) {
        self.n_forgotten += usize::from(self.loops.len() > n);
        self.loops.truncate(n);
    }

    pub(crate) fn new_loop(&mut self) -> LoopId {
        self.n_loops += 1;
        LoopId(self.n_loops)
    }

    /// Reads a loop by itself: the leaves after it.
    fn study_loop(&mut self, this: &mut Loop<'_, '_>) -> Option<Vec<Value>> {
        let id = self.new_loop();
        self.note_starts(id, &this.inits);
        let n_leaves = this.inits.len();
        if let Some(parting) = self.last_parting.take() {
            self.partings.extend((0..n_leaves as u32).map(|leaf| ((id, leaf), parting.clone())));
        }
        let mut guesses: Vec<Guess> = Vec::with_capacity(n_leaves);
        for k in 0..n_leaves {
            let value = this.inits[k].clone();
            guesses.push(Guess::Own(self.arrays.classes(&value)));
        }
        let outer = self.parent.replace(id);
        let n_loops = self.loops.len();
        let mut found = None;
        let first_term = self.arrays.terms.len();
        let mut carries: Carries = vec![None; n_leaves];
        for round in 0..MAX_ROUNDS {
            self.forget_loops(n_loops);
            let Some(params) = self.params(this, id, round, &guesses, None, &mut carries) else { break };
            let Some(iteration) = self.iterate(this, &params, true) else { break };
            if !self.update_own(&mut guesses, &params, &iteration) {
                found = Some((params, iteration));
                break;
            }
        }
        self.parent = outer;
        let (params, iteration) = found?;
        let outs = self.own_results(this, id, id, &guesses, &params, &iteration, first_term);
        self.note_origin(0, this.side.number, this.site);
        if this.side.number == 0 {
            let Iteration { condition, results } = iteration;
            let inits = this.inits.clone();
            let outs = outs.clone();
            let known = this.swap_known(Known::new());
            let probed = self.probe(this, &params);
            let (sums, parent) = (id, self.parent);
            let trips = None;
            self.loops.push(LoopRecord { id, sums, parent, inits, params, results, condition, outs, probed, trips });
            // What is made of a state to look at it is no loop to match.
            if self.cuts_otherwise && parent != Some(LoopId(u32::MAX)) {
                self.note_other_cuts(this, &known);
            }
        }
        Some(outs)
    }

    /// The leaves after an iteration that begins with `params`, but for those that start as one number at several places:
    /// they are one unknown number. `None` if there are none such.
    pub(crate) fn probe(&mut self, this: &mut Loop<'_, '_>, params: &[Value]) -> Option<Vec<Value>> {
        let node = Node::LoopResult(LoopId(u32::MAX), 0);
        let unknown = self.arrays.terms.leaf(node, 1, Classes::ALL_EQUAL, Rules::NONE);
        let mut probed = params.to_vec();
        let mut n_unknown = 0;
        for (k, value) in probed.iter_mut().enumerate() {
            let (n, _) = this.types[k];
            let is_one_number = match &this.inits[k] {
                Value::Same(array) => match &*self.arrays.segments(*array) {
                    [only] => n > 1 && self.arrays.terms.as_constant(only.term).is_some(),
                    _ => false,
                },
                Value::Each(_) => false,
            };
            if is_one_number && *value != this.inits[k] {
                *value = Value::Same(self.arrays.whole(unknown, n));
                n_unknown += 1;
            }
        }
        if n_unknown == 0 {
            return None;
        }
        // Loops within this iteration are not those of any iteration.
        let n_loops = self.loops.len();
        let outer = self.parent.replace(LoopId(u32::MAX));
        let iteration = self.iterate(this, &probed, false);
        self.parent = outer;
        self.forget_loops(n_loops);
        Some(iteration?.results)
    }

    /// The leaves at the start of an iteration, as guessed.
    pub(crate) fn params(
        &mut self,
        this: &Loop<'_, '_>,
        id: LoopId,
        round: usize,
        guesses: &[Guess],
        of: Option<&[Value]>,
        carries: &mut Carries,
    ) -> Option<Vec<Value>> {
        let mut params = Vec::with_capacity(guesses.len());
        for (k, guess) in guesses.iter().enumerate() {
            params.push(match guess {
                Guess::Invariant => this.inits[k].clone(),
                Guess::Own(classes) => self.carry(id, k, this.types[k].0, (round, *classes), carries),
                Guess::Part(parts) => {
                    let classes = self.arrays.terms.devices.all_different();
                    let own = self.carry(id, k, this.types[k].0, (round, classes), carries);
                    self.compose(parts, of?, Some(&own))?
                }
            });
        }
        Some(params)
    }

    /// Corrects the guesses of a loop's own leaves by an iteration. Whether there was something to correct.
    fn update_own(&mut self, guesses: &mut [Guess], params: &[Value], iteration: &Iteration) -> bool {
        let mut changed = false;
        for (k, guess) in guesses.iter_mut().enumerate() {
            let classes = match guess {
                Guess::Own(classes) => classes,
                // What seemed to be passed on while another leaf was taken for something else.
                Guess::Invariant if iteration.results[k] != params[k] => {
                    *guess = Guess::Own(self.arrays.classes(&params[k]));
                    changed = true;
                    continue;
                }
                Guess::Invariant | Guess::Part(_) => continue,
            };
            if iteration.results[k] == params[k] {
                *guess = Guess::Invariant;
                changed = true;
                continue;
            }
            let after = self.arrays.classes(&iteration.results[k]);
            let joined = self.arrays.terms.devices.join(*classes, after);
            if joined != *classes {
                *classes = joined;
                changed = true;
            }
        }
        changed
    }

    /// The leaves after a loop, of those that are its own. `id` names its carried leaves, `runs` its iterations.
    #[allow(clippy::too_many_arguments)] // the parts of one loop, which no type of their own would make clearer
    fn own_results(
        &mut self,
        this: &Loop<'_, '_>,
        id: LoopId,
        runs: LoopId,
        guesses: &[Guess],
        params: &[Value],
        iteration: &Iteration,
        first_term: usize,
    ) -> Vec<Value> {
        let often = self.arrays.classes(&iteration.condition);
        let uses = self.carry_uses(params, iteration, guesses, first_term);
        let mut outs = Vec::with_capacity(guesses.len());
        for (k, guess) in guesses.iter().enumerate() {
            let classes = match guess {
                Guess::Invariant | Guess::Part(_) => {
                    outs.push(this.inits[k].clone());
                    continue;
                }
                Guess::Own(classes) => *classes,
            };
            let (n, dtype) = this.types[k];
            let closed = if often == Classes::ALL_EQUAL && self.elementwise.reassociates() && uses[k] == 1 {
                self.closed_form(runs, (&params[k], &iteration.results[k]), &this.inits[k], n, dtype)
            } else {
                None
            };
            outs.push(match closed {
                Some(value) => value,
                None => {
                    let classes = self.arrays.terms.devices.join(classes, often);
                    let node = Node::LoopResult(id, k as u32);
                    let term = self.arrays.terms.leaf(node, n, classes, Rules::of(Rule::LoopInduction));
                    Value::Same(self.arrays.whole(term, n))
                }
            });
        }
        outs
    }

    /// The leaves after a loop of the second module, if it is the first's `record_idx`-th, and how many are its own.
    fn match_loop(&mut self, this: &mut Loop<'_, '_>, record_idx: usize) -> Option<(usize, Vec<Value>)> {
        let record = &self.loops[record_idx];
        let (runs, sums, trips, inits) = (record.id, record.sums, record.trips, record.inits.clone());
        let (before, after) = (record.params.clone(), record.results.clone());
        let (condition, outs) = (record.condition.clone(), record.outs.clone());
        let probed = record.probed.clone();
        let id = self.new_loop();
        self.note_starts(id, &this.inits);
        let mut queues = self.candidates(this, &inits);
        if let Some(probed) = probed {
            self.candidates_of_probe(this, id, &before, &probed, &mut queues);
        }
        let mut guesses = self.first_guesses(this, &mut queues);
        self.check_starts(this, &inits, &mut guesses);
        let outer = self.parent.replace(runs);
        let mut found = None;
        let first_term = self.arrays.terms.len();
        let mut carries: Carries = vec![None; guesses.len()];
        for (k, guess) in guesses.iter().enumerate() {
            if let Guess::Own(_) = guess {
                self.partings.insert((id, k as u32), Parting::Start);
            }
        }
        for round in 0..MAX_ROUNDS {
            let Some(params) = self.params(this, id, round, &guesses, Some(&before), &mut carries) else { break };
            let Some(iteration) = self.iterate(this, &params, true) else { break };
            // What turns out to be invariant is known before anything is held against it.
            if self.update_own(&mut guesses, &params, &iteration) {
                continue;
            }
            let mut changed = false;
            for (k, guess) in guesses.iter_mut().enumerate() {
                let Guess::Part(parts) = guess else { continue };
                let result = &iteration.results[k];
                let expected = self.compose(parts, &after, Some(result));
                if expected.as_ref().is_some_and(|e| self.arrays.is_equal(e, result)) {
                    continue;
                }
                changed = true;
                if let Some(expected) = expected.clone() {
                    let parting = Parting::Iteration { expected, found: result.clone() };
                    self.partings.insert((id, k as u32), parting);
                }
                let rest = expected.and_then(|expected| self.parts_that_hold(parts, &expected, result));
                *guess = match rest.or_else(|| queues[k].pop()) {
                    Some(parts) => Guess::Part(parts),
                    None => {
                        let value = this.inits[k].clone();
                        Guess::Own(self.arrays.classes(&value))
                    }
                };
            }
            if changed {
                self.check_starts(this, &inits, &mut guesses);
            }
            if !changed {
                let ends_alike = self.arrays.is_equal(&iteration.condition, &condition)
                    || trips.is_some()
                        && trips == self.trips(&this.inits, &params, &iteration.results, &iteration.condition);
                if !ends_alike {
                    let found = iteration.condition.clone();
                    self.last_parting = Some(Parting::Condition { expected: condition.clone(), found });
                }
                found = ends_alike.then_some((params, iteration));
                break;
            }
        }
        self.parent = outer;
        let (params, iteration) = found?;
        let mut results = self.own_results(this, id, sums, &guesses, &params, &iteration, first_term);
        for (k, guess) in guesses.iter().enumerate() {
            if let Guess::Part(parts) = guess {
                let (n, classes) = (this.types[k].0, self.arrays.terms.devices.all_different());
                let node = Node::LoopResult(id, k as u32);
                let term = self.arrays.terms.leaf(node, n, classes, Rules::of(Rule::LoopInduction));
                let own = Value::Same(self.arrays.whole(term, n));
                results[k] = self.compose(parts, &outs, Some(&own))?;
            }
        }
        self.note_origin(0, this.side.number, this.site);
        let n_own = guesses.iter().filter(|guess| matches!(guess, Guess::Own(_))).count();
        Some((n_own, results))
    }

    /// The branch that the first operand chooses.
    pub(crate) fn run_conditional(&mut self, side: &mut Side<'_>, inst: InstId, operands: &[Tree]) -> Option<Tree> {
        let module = side.module;
        let branches = module.called(inst);
        let Tree::Leaf(choice) = &operands[0] else { return None };
        let first = module.inst(inst).operands.first()?;
        let choice_dtype = module.shape(*first).as_array()?.dtype;
        if let Value::Same(choice) = choice
            && let Some(number) = self.arrays.as_integer(*choice)
        {
            let k = chosen_branch(choice_dtype, number, branches.len());
            return Some(self.run_called(side, inst, *branches.get(k)?, vec![operands.get(1 + k)?.clone()]));
        }
        let mut results = Vec::with_capacity(branches.len());
        let mut leaves: Vec<Vec<Value>> = Vec::with_capacity(branches.len());
        let worlds = self.outside.worlds.clone();
        for (&branch, operand) in branches.iter().zip(&operands[1..]) {
            let result = self.run_called(side, inst, branch, vec![operand.clone()]);
            let mut own = result.leaves();
            own.extend(std::mem::replace(&mut self.outside.worlds, worlds.clone()));
            results.push(result);
            leaves.push(own);
        }
        let mut types = Vec::new();
        module.shape(inst).for_each_leaf(&mut |_, leaf| types.push(leaf_type(leaf)));
        types.extend([(1, DType::Pred); N_WORLDS]);
        let mut out = Vec::with_capacity(types.len());
        for (k, &(n, dtype)) in types.iter().enumerate() {
            let of_branch: Vec<&Value> = leaves.iter().map(|l| l.get(k)).collect::<Option<_>>()?;
            if of_branch.iter().all(|v| *v == of_branch[0]) || n == 0 {
                out.push(of_branch[0].clone());
                continue;
            }
            let all = self.splat(choice, n)?;
            let mut values = vec![&all];
            values.extend(of_branch);
            // A choice by a truth value takes its first branch for true, as select does.
            let opcode = if choice_dtype == DType::Pred { Opcode::Select } else { Opcode::Conditional };
            let op = ElementwiseOp {
                opcode,
                dtype,
                operand_dtype: choice_dtype,
                comparison: None,
                attributes: String::new(),
            };
            out.push(self.elementwise(op, &values, n)?);
        }
        self.outside.worlds = split_worlds(&mut out)?;
        self.note_event(side.number, inst, &worlds, vec![choice.clone()]);
        results[0].with_leaves(&mut out.into_iter())
    }
}

/// The branch that a number chooses: the first for true, the last for numbers of none.
fn chosen_branch(dtype: DType, number: i64, n_branches: usize) -> usize {
    if dtype == DType::Pred {
        return usize::from(number == 0);
    }
    let last = n_branches.saturating_sub(1);
    usize::try_from(number).map_or(last, |k| k.min(last))
}

pub(crate) fn leaf_type(shape: &Shape) -> LeafType {
    match shape {
        Shape::Array(array) | Shape::Buffer(array) => (array.n_elems() as i64, array.dtype),
        Shape::Token => (1, DType::Pred),
        Shape::Tuple(_) | Shape::Opaque => (0, DType::Pred),
    }
}
