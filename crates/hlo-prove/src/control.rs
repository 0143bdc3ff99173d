//! Loops and branches.
//!
//! The first module's loops are read as recurrences: what an iteration makes of the carried values, with a term for each
//! carried leaf. A loop of the second module is the same recurrence if each of its leaves is a part of the first's leaves:
//! the same part at the start, and again after an iteration if it was so before. Which part is guessed from the start and
//! then checked; leaves of which no guess holds are the second loop's own.
//!
//! Two kinds of carried values have closed forms, because sums over devices may move past them: what is only added to
//! ([`crate::rules::Rule::LoopSum`]), and zeros into which rows are written ([`crate::rules::Rule::LoopStack`]).

use crate::array::{Tree, Value};
use crate::devices::Classes;
use crate::elementwise::ElementwiseOp;
use crate::prover::{Prover, Side};
use crate::rules::{Rule, Rules};
use crate::segment::{Coords, Dim, Region, Segment};
use crate::sum::Summand;
use crate::term::{Arg, ArrayId, Extra, Head, LoopId, Node, TermId, Terms};
use hashbrown::{HashMap, HashSet};
use hlo_ir::attrs::WhileAttrs;
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, DType, InstId, Opcode, Shape};
use smallvec::SmallVec;
use std::rc::Rc;

/// A loop of the first module.
pub(crate) struct LoopRecord {
    id: LoopId,
    parent: Option<LoopId>,
    inits: Vec<Value>,
    /// The leaves at the start of an iteration, and after it.
    params: Vec<Value>,
    results: Vec<Value>,
    condition: Value,
    outs: Vec<Value>,
    /// The leaves after an iteration in which those that start as one number, which does not say of what they are a part,
    /// are unknown; see [`Prover::probe`].
    probed: Option<Vec<Value>>,
}

/// Number of elements and element type of a leaf.
type LeafType = (i64, DType);

/// A loop under study.
struct Loop<'a, 'm> {
    side: &'a mut Side<'m>,
    condition: CompId,
    body: CompId,
    init: &'a Tree,
    inits: Vec<Value>,
    types: Vec<LeafType>,
}

/// A part of the first module's leaves: for each device regions of places and of places in a leaf.
type Parts = Rc<Vec<Vec<(usize, Region)>>>;

/// In the place of a leaf's number: these elements are the second loop's own, as the padding of shards is.
const OWN: usize = usize::MAX;

/// What a leaf of the second module's loop is taken for.
#[derive(Clone)]
enum Guess {
    Part(Parts),
    Invariant,
    Own(Classes),
}

/// What one iteration gives.
struct Iteration {
    condition: Value,
    results: Vec<Value>,
}

const MAX_ROUNDS: usize = 24;

impl Prover {
    pub(crate) fn run_while(&mut self, side: &mut Side<'_>, inst: InstId, init: &Tree) -> Option<Tree> {
        let attrs = WhileAttrs::of(&side.module.inst(inst).attrs)?;
        let (condition, body) = (attrs.condition?, attrs.body?);
        let mut types = Vec::new();
        side.module.shape(inst).for_each_leaf(&mut |_, leaf| types.push(leaf_type(leaf)));
        let inits = init.leaves();
        if inits.len() != types.len() {
            return None;
        }
        let is_second = side.number == 1;
        let mut this = Loop { side, condition, body, init, inits, types };
        let outs = if is_second {
            let candidates: Vec<usize> =
                (0..self.loops.len()).filter(|&k| self.loops[k].parent == self.parent).collect();
            // The loop of which most leaves are parts; no other is looked for once all are.
            let mut best: Option<(usize, Vec<Value>)> = None;
            for k in candidates {
                let Some((n_own, outs)) = self.match_loop(&mut this, k) else { continue };
                if best.as_ref().is_none_or(|(least, _)| n_own < *least) {
                    best = Some((n_own, outs));
                }
                if n_own == 0 {
                    break;
                }
            }
            match best {
                Some((_, outs)) => outs,
                None => self.study_loop(&mut this)?,
            }
        } else {
            self.study_loop(&mut this)?
        };
        init.with_leaves(&mut outs.into_iter())
    }

    /// One iteration on these leaves.
    fn iterate(&mut self, this: &mut Loop<'_, '_>, params: &[Value]) -> Option<Iteration> {
        let tree = this.init.with_leaves(&mut params.iter().cloned())?;
        let condition = self.run(this.side, this.condition, vec![tree.clone()]);
        let results = self.run(this.side, this.body, vec![tree]).leaves();
        let Tree::Leaf(condition) = condition else { return None };
        (results.len() == params.len()).then_some(Iteration { condition, results })
    }

    /// A carried leaf at the start of an iteration.
    fn carry(&mut self, id: LoopId, round: usize, leaf: usize, n_elems: i64, classes: Classes) -> Value {
        let node = Node::Carry(id, round as u32, leaf as u32);
        let term = self.arrays.terms.leaf(node, n_elems, classes, Rules::of(Rule::LoopInduction));
        Value::Same(self.arrays.whole(term, n_elems))
    }

    fn new_loop(&mut self) -> LoopId {
        self.n_loops += 1;
        LoopId(self.n_loops)
    }

    /// Reads a loop by itself: the leaves after it.
    fn study_loop(&mut self, this: &mut Loop<'_, '_>) -> Option<Vec<Value>> {
        let id = self.new_loop();
        self.note_starts(id, &this.inits);
        let n_leaves = this.inits.len();
        let mut guesses: Vec<Guess> = Vec::with_capacity(n_leaves);
        for k in 0..n_leaves {
            let value = this.inits[k].clone();
            guesses.push(Guess::Own(self.arrays.classes(&value)));
        }
        let outer = std::mem::replace(&mut self.parent, Some(id));
        let n_loops = self.loops.len();
        let mut found = None;
        for round in 0..MAX_ROUNDS {
            self.loops.truncate(n_loops);
            let first_term = self.arrays.terms.len();
            let params = self.params(this, id, round, &guesses, None)?;
            let iteration = self.iterate(this, &params)?;
            if !self.update_own(&mut guesses, &params, &iteration) {
                found = Some((first_term, params, iteration));
                break;
            }
        }
        self.parent = outer;
        let (first_term, params, iteration) = found?;
        let outs = self.own_results(this, id, id, &guesses, &params, &iteration, first_term);
        if this.side.number == 0 {
            let Iteration { condition, results } = iteration;
            let inits = this.inits.clone();
            let outs = outs.clone();
            let probed = self.probe(this, &params);
            self.loops.push(LoopRecord { id, parent: self.parent, inits, params, results, condition, outs, probed });
        }
        Some(outs)
    }

    /// The leaves after an iteration that begins with `params`, but for those that start as one number at several places:
    /// they are one unknown number. `None` if there are none such.
    fn probe(&mut self, this: &mut Loop<'_, '_>, params: &[Value]) -> Option<Vec<Value>> {
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
        let iteration = self.iterate(this, &probed);
        self.parent = outer;
        self.loops.truncate(n_loops);
        Some(iteration?.results)
    }

    /// The leaves at the start of an iteration, as guessed.
    fn params(
        &mut self,
        this: &Loop<'_, '_>,
        id: LoopId,
        round: usize,
        guesses: &[Guess],
        of: Option<&[Value]>,
    ) -> Option<Vec<Value>> {
        let mut params = Vec::with_capacity(guesses.len());
        for (k, guess) in guesses.iter().enumerate() {
            params.push(match guess {
                Guess::Invariant => this.inits[k].clone(),
                Guess::Own(classes) => self.carry(id, round, k, this.types[k].0, *classes),
                Guess::Part(parts) => {
                    let classes = self.arrays.terms.devices.all_different();
                    let own = self.carry(id, round, k, this.types[k].0, classes);
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
            let Guess::Own(classes) = guess else { continue };
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
            let closed = if often == Classes::ALL_EQUAL && self.elementwise.reassociates && uses[k] == 1 {
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

    /// In how many values each carried leaf occurs: results of an iteration, and the condition. Only leaves that might have
    /// a closed form are looked for.
    fn carry_uses(
        &self,
        params: &[Value],
        iteration: &Iteration,
        guesses: &[Guess],
        first_term: usize,
    ) -> Vec<usize> {
        let mut uses = vec![usize::MAX; params.len()];
        let mut carries: Vec<(TermId, usize)> = Vec::new();
        for (k, param) in params.iter().enumerate() {
            if let (Guess::Own(_), Value::Same(array), true) =
                (&guesses[k], param, self.may_have_closed_form(&iteration.results[k]))
            {
                carries.extend(self.arrays.segments(*array).first().map(|s| (s.term, k)));
            }
        }
        // Terms are newer than their arguments, so one walk finds who reaches whom, for 64 leaves at once.
        for some in carries.chunks(64) {
            let mut reached: Vec<u64> = vec![0; self.arrays.terms.len() - first_term];
            for term in first_term..self.arrays.terms.len() {
                let own = some.iter().position(|c| c.0.0 as usize == term).map_or(0, |bit| 1u64 << bit);
                let mut mask = own;
                self.for_each_argument(TermId(term as u32), &mut |arg| {
                    if let Some(of_arg) = (arg.0 as usize).checked_sub(first_term) {
                        mask |= reached.get(of_arg).copied().unwrap_or(0);
                    }
                });
                reached[term - first_term] = mask;
            }
            some.iter().for_each(|&(_, k)| uses[k] = 0);
            for value in iteration.results.iter().chain([&iteration.condition]) {
                let mut mask = 0;
                self.for_each_term(value, &mut |term| {
                    if let Some(place) = (term.0 as usize).checked_sub(first_term) {
                        mask |= reached[place];
                    }
                });
                for (bit, &(_, k)) in some.iter().enumerate() {
                    uses[k] += (mask >> bit & 1) as usize;
                }
            }
        }
        uses
    }

    fn may_have_closed_form(&self, result: &Value) -> bool {
        let mut is_closed = self.elementwise.reassociates;
        self.for_each_term(result, &mut |term| {
            let is_sum = matches!(self.arrays.terms.node(term), Node::Apply(Head::Sum(Monoid::Add, _), _));
            is_closed &= is_sum || self.is_row_update(term);
        });
        is_closed
    }

    /// Calls `visit` with the term of each segment of a value.
    fn for_each_term(&self, value: &Value, visit: &mut dyn FnMut(TermId)) {
        match value {
            Value::Same(array) => self.arrays.segments(*array).iter().for_each(|s| visit(s.term)),
            Value::Each(arrays) => {
                for &array in arrays.iter() {
                    self.arrays.segments(array).iter().for_each(|s| visit(s.term));
                }
            }
        }
    }

    /// Calls `visit` with what a term is made of, what a loop starts from included.
    fn for_each_argument(&self, term: TermId, visit: &mut dyn FnMut(TermId)) {
        let mut of_loop = |id: &LoopId, visit: &mut dyn FnMut(TermId)| {
            self.loop_starts.get(id).into_iter().flatten().for_each(|&term| visit(term));
        };
        match self.arrays.terms.node(term) {
            Node::Element(of, _) => visit(*of),
            Node::Apply(head, args) => {
                args.iter().for_each(|arg| visit(arg.term));
                match head {
                    Head::LoopSum(id) | Head::LoopStack(id) => of_loop(id, visit),
                    Head::Elementwise(_) | Head::Sum(..) | Head::Moved | Head::From(_) | Head::Unit(_) => {}
                }
            }
            Node::Whole(_, arrays, _) => {
                for &array in arrays {
                    self.arrays.segments(array).iter().for_each(|s| visit(s.term));
                }
            }
            Node::Carry(id, ..) | Node::LoopResult(id, _) => of_loop(id, visit),
            Node::Input(_) | Node::Constant(_) | Node::Table(_) | Node::Iota(_) | Node::Unique(_) => {}
        }
    }

    /// Notes what a loop starts from: all that its carried values and results can depend on.
    fn note_starts(&mut self, id: LoopId, inits: &[Value]) {
        let mut starts = Vec::new();
        for value in inits {
            self.for_each_term(value, &mut |term| starts.push(term));
        }
        starts.sort_unstable();
        starts.dedup();
        self.loop_starts.insert(id, starts);
    }

    /// The leaf after the loop, if an iteration only adds to it or writes a row.
    fn closed_form(
        &mut self,
        id: LoopId,
        (param, result): (&Value, &Value),
        init: &Value,
        n: i64,
        dtype: DType,
    ) -> Option<Value> {
        let Value::Same(param) = param else { return None };
        let carry = self.arrays.segments(*param).first()?.term;
        let is_stack = (0..self.n_devices()).all(|d| {
            self.arrays.segments(self.arrays.on(result, d)).iter().all(|s| self.is_row_update(s.term))
        });
        let added = self.map(&[result], |p, arrays| {
            let mut out = Vec::new();
            for segment in p.arrays.segments(arrays[0]).iter() {
                let closed =
                    if is_stack { p.stacked(id, segment, carry) } else { p.accumulated(id, segment, carry, dtype) };
                out.push(closed?);
            }
            Some(p.arrays.intern(out))
        })?;
        let zero = hlo_ir::Literal::zeros(dtype, &[]).ok()?;
        let starts_at_zero = match init {
            Value::Same(array) => match &*self.arrays.segments(*array) {
                [only] => self.arrays.terms.as_constant(only.term) == Some(&zero),
                _ => false,
            },
            Value::Each(_) => false,
        };
        if is_stack {
            return starts_at_zero.then_some(added);
        }
        let op = ElementwiseOp {
            opcode: Opcode::Add,
            dtype,
            operand_dtype: dtype,
            comparison: None,
            attributes: String::new(),
        };
        self.elementwise(op, &[init, &added], n)
    }

    fn is_row_update(&self, term: TermId) -> bool {
        match self.arrays.terms.node(term) {
            Node::Apply(Head::Elementwise(word), args) => {
                args.len() == 4 && self.elementwise.op(*word).is_some_and(|op| op.opcode == Opcode::DynamicUpdateSlice)
            }
            _ => false,
        }
    }

    /// What a segment of the carry gets from all iterations together, if each adds to it.
    fn accumulated(&mut self, id: LoopId, segment: &Segment, carry: TermId, dtype: DType) -> Option<Segment> {
        let Node::Apply(Head::Sum(Monoid::Add, _), args) = self.arrays.terms.node(segment.term).clone() else {
            return None;
        };
        let mut summands = Vec::new();
        let mut n_carries = 0;
        for arg in self.summed_over_devices(&args) {
            let summand = self.summand_of(segment, &arg)?;
            if arg.term == carry {
                let is_own = summand.reduce.is_empty() && self.is_own(&summand) && is_in_place(segment, &summand);
                if !is_own {
                    return None;
                }
                n_carries += 1;
                continue;
            }
            let term = self.loop_sum(id, arg.term);
            summands.push(Summand { term, ..summand });
        }
        if n_carries != 1 || summands.is_empty() {
            return None;
        }
        let out = self.elementwise.sum(&mut self.arrays.terms, Monoid::Add, dtype, &segment.region, summands);
        self.arrays.terms.mark(out.term, Rules::of(Rule::LoopSum));
        Some(out)
    }

    fn is_own(&mut self, summand: &Summand) -> bool {
        let classes = self.arrays.terms.classes(summand.term);
        summand.spread == self.arrays.terms.devices.own(classes)
    }

    /// An argument of a segment's sum as a summand over the segment's region.
    fn summand_of(&self, segment: &Segment, arg: &Arg) -> Option<Summand> {
        let Extra::Extent(extent) = self.arrays.terms.extra_of(arg.extra) else { return None };
        Some(Summand {
            term: arg.term,
            at: arg.at(&segment.region.at[1..]),
            steps: segment.region.dims.iter().map(|d| arg.step(&d.step[1..])).collect(),
            reduce: extent.reduce.clone(),
            spread: extent.spread,
        })
    }

    /// A sum's arguments, with sums over devices out of products.
    fn summed_over_devices(&mut self, args: &[Arg]) -> Vec<Arg> {
        let mut out = Vec::with_capacity(args.len());
        for (spread, group) in self.elementwise.by_devices(&mut self.arrays.terms, args) {
            for mut arg in group {
                if let (Some(spread), Extra::Extent(mut extent)) =
                    (spread, self.arrays.terms.extra_of(arg.extra).clone())
                {
                    extent.spread = spread;
                    arg.extra = self.arrays.terms.extra(Extra::Extent(extent));
                }
                out.push(arg);
            }
        }
        out
    }

    /// The sum of a term over a loop's iterations.
    fn loop_sum(&mut self, id: LoopId, term: TermId) -> TermId {
        match self.arrays.terms.node(term).clone() {
            Node::Apply(head @ Head::Sum(Monoid::Add, _), args) => {
                let args = self.summed_over_devices(&args);
                let args = args.into_iter().map(|arg| Arg { term: self.loop_sum(id, arg.term), ..arg }).collect();
                self.arrays.terms.apply_mapped(head, args)
            }
            Node::Apply(head @ Head::Elementwise(word), mut args) if self.constant_factor(word, &args).is_some() => {
                let factor = self.constant_factor(word, &args).unwrap_or(0);
                let other = 1 - factor;
                args[other].term = self.loop_sum(id, args[other].term);
                self.arrays.terms.apply_mapped(head, args)
            }
            _ => {
                let arg = Arg::same(&self.arrays.terms, term, Terms::NO_EXTRA);
                self.arrays.terms.apply_mapped(Head::LoopSum(id), vec![arg])
            }
        }
    }

    /// Which argument of a product or quotient is a number, for which sums may change places with it.
    fn constant_factor(&self, word: crate::term::WordId, args: &[Arg]) -> Option<usize> {
        let op = self.elementwise.op(word)?;
        let is_number = |k: usize| args.get(k).is_some_and(|a| self.arrays.terms.as_constant(a.term).is_some());
        match op.opcode {
            Opcode::Multiply if is_number(0) => Some(0),
            Opcode::Multiply | Opcode::Divide if is_number(1) && !op.dtype.is_integer() => Some(1),
            _ => None,
        }
    }

    /// What a segment of the carry holds after the loop, if each iteration writes a row of it.
    fn stacked(&mut self, id: LoopId, segment: &Segment, carry: TermId) -> Option<Segment> {
        let Node::Apply(_, args) = self.arrays.terms.node(segment.term).clone() else { return None };
        let [iota, index, row, before] = args.as_slice() else { return None };
        // The old value must stand where it stood.
        let was: Vec<Coords> = segment.region.dims.iter().map(|d| before.step(&d.step[1..])).collect();
        let in_place = before.term == carry
            && before.at(&segment.region.at[1..]).as_slice() == [segment.region.at[0]]
            && segment.region.dims.iter().zip(&was).all(|(d, step)| step.as_slice() == [d.step[0]]);
        if !in_place || self.arrays.terms.classes(index.term) != Classes::ALL_EQUAL {
            return None;
        }
        let join = |place: i64, a: Coords, b: Coords| -> Coords { std::iter::once(place).chain(a).chain(b).collect() };
        let region = Region {
            at: join(segment.region.at[0], iota.at(&segment.region.at[1..]), row.at(&segment.region.at[1..])),
            dims: segment
                .region
                .dims
                .iter()
                .map(|d| Dim { n: d.n, step: join(d.step[0], iota.step(&d.step[1..]), row.step(&d.step[1..])) })
                .collect(),
        };
        self.stack(id, iota.term, index.term, row.term, &region)
    }

    /// The stack of a row over the iterations. The region has the place, the row's number, then the row's coordinates.
    fn stack(&mut self, id: LoopId, iota: TermId, index: TermId, row: TermId, region: &Region) -> Option<Segment> {
        match self.arrays.terms.node(row).clone() {
            Node::Apply(head @ Head::Elementwise(word), args) if self.constant_factor(word, &args).is_some() => {
                let factor = self.constant_factor(word, &args)?;
                let inner = &args[1 - factor];
                let inner_region = through(inner, region);
                let stacked = self.stack(id, iota, index, inner.term, &inner_region)?;
                let rank = self.arrays.terms.rank(stacked.term);
                let mut list = [(stacked.term, Terms::NO_EXTRA, 1), (args[factor].term, Terms::NO_EXTRA, 1 + rank)];
                if factor == 0 {
                    list.swap(0, 1);
                }
                if self.elementwise.op(word).is_some_and(|op| op.opcode == Opcode::Multiply) {
                    list.sort_by_key(|a| a.0);
                }
                Some(self.arrays.terms.apply(head, &list, &stacked.region))
            }
            Node::Apply(Head::Sum(Monoid::Add, dtype), args) => {
                // The devices are summed over last.
                let groups = self.elementwise.by_devices(&mut self.arrays.terms, &args);
                if groups.iter().all(|(spread, _)| spread.is_none()) {
                    return Some(self.stack_of_whole(id, iota, index, row, region));
                }
                let mut summands = Vec::with_capacity(groups.len());
                for (spread, local) in groups {
                    let local = self.elementwise.sum_of_args(&mut self.arrays.terms, dtype, local);
                    if self.arrays.terms.rank(local) != self.arrays.terms.rank(row) {
                        return Some(self.stack_of_whole(id, iota, index, row, region));
                    }
                    let stacked = self.stack(id, iota, index, local, region)?;
                    let mut summand = Summand::own(&mut self.arrays.terms, stacked.term, &stacked.region, 1);
                    summand.spread = spread.unwrap_or(summand.spread);
                    summands.push(summand);
                }
                let out = self.elementwise.sum(&mut self.arrays.terms, Monoid::Add, dtype, region, summands);
                self.arrays.terms.mark(out.term, Rules::of(Rule::LoopStack));
                Some(out)
            }
            _ => Some(self.stack_of_whole(id, iota, index, row, region)),
        }
    }

    fn stack_of_whole(&mut self, id: LoopId, iota: TermId, index: TermId, row: TermId, region: &Region) -> Segment {
        let rank = self.arrays.terms.rank(row);
        let args = [(iota, Terms::NO_EXTRA, 1), (index, Terms::NO_EXTRA, 2 + rank), (row, Terms::NO_EXTRA, 2)];
        self.arrays.terms.apply(Head::LoopStack(id), &args, region)
    }

    /// The leaves after a loop of the second module, if it is the first's `record_idx`-th, and how many are its own.
    fn match_loop(&mut self, this: &mut Loop<'_, '_>, record_idx: usize) -> Option<(usize, Vec<Value>)> {
        let record = &self.loops[record_idx];
        let (runs, inits) = (record.id, record.inits.clone());
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
        let outer = std::mem::replace(&mut self.parent, Some(runs));
        let mut found = None;
        for round in 0..MAX_ROUNDS {
            let first_term = self.arrays.terms.len();
            let Some(params) = self.params(this, id, round, &guesses, Some(&before)) else { break };
            let Some(iteration) = self.iterate(this, &params) else { break };
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
                found = self.arrays.is_equal(&iteration.condition, &condition).then_some((first_term, params, iteration));
                break;
            }
        }
        self.parent = outer;
        let (first_term, params, iteration) = found?;
        let mut results = self.own_results(this, id, runs, &guesses, &params, &iteration, first_term);
        for (k, guess) in guesses.iter().enumerate() {
            if let Guess::Part(parts) = guess {
                let (n, classes) = (this.types[k].0, self.arrays.terms.devices.all_different());
                let node = Node::LoopResult(id, k as u32);
                let term = self.arrays.terms.leaf(node, n, classes, Rules::of(Rule::LoopInduction));
                let own = Value::Same(self.arrays.whole(term, n));
                results[k] = self.compose(parts, &outs, Some(&own))?;
            }
        }
        let n_own = guesses.iter().filter(|guess| matches!(guess, Guess::Own(_))).count();
        Some((n_own, results))
    }

    /// For each leaf what it may be of the first loop's leaves, the best last.
    fn candidates(&mut self, this: &Loop<'_, '_>, inits: &[Value]) -> Vec<Vec<Parts>> {
        let mut by_value: HashMap<&Value, Vec<usize>> = HashMap::new();
        for (i, init) in inits.iter().enumerate() {
            by_value.entry(init).or_default().push(i);
        }
        let by_term = self.leaves_of_terms(inits);
        let mut taken: HashSet<usize> = HashSet::new();
        let mut out = Vec::with_capacity(this.inits.len());
        for (k, init) in this.inits.iter().enumerate() {
            let mut queue: Vec<Parts> = Vec::new();
            let equal = by_value.get(init).cloned().unwrap_or_default();
            let start = equal.iter().position(|i| !taken.contains(i)).unwrap_or(0);
            let whole = |i: usize| -> Parts {
                let mut region = Region::line(this.types[k].0);
                region.at.push(0);
                region.dims.iter_mut().for_each(|d| d.step.push(1));
                Rc::new(vec![vec![(i, region)]])
            };
            // Leaves with the same start, those that no other leaf was taken for first.
            for j in (0..equal.len().min(8)).rev() {
                queue.push(whole(equal[(start + j) % equal.len()]));
            }
            if let Some(&first) = equal.get(start) {
                taken.insert(first);
            } else {
                // Where they were found is a guess, until the elements there are these.
                let mut found: Vec<Parts> = (0..8).map_while(|nth| self.locate(init, inits, &by_term, nth)).collect();
                found.retain(|parts| {
                    let start = self.compose(parts, inits, Some(init));
                    start.is_some_and(|start| self.arrays.is_equal(&start, init))
                });
                let leaf_of = |parts: &Parts| parts.iter().flatten().map(|part| part.0).find(|&leaf| leaf != OWN);
                found.sort_by_key(|parts| leaf_of(parts).is_some_and(|leaf| taken.contains(&leaf)));
                taken.extend(found.first().and_then(leaf_of));
                queue.extend(found.into_iter().rev());
            }
            out.push(queue);
        }
        out
    }

    fn first_guesses(&mut self, this: &Loop<'_, '_>, queues: &mut [Vec<Parts>]) -> Vec<Guess> {
        let mut guesses = Vec::with_capacity(queues.len());
        for (k, queue) in queues.iter_mut().enumerate() {
            guesses.push(match queue.pop() {
                Some(parts) => Guess::Part(parts),
                None => {
                    let value = this.inits[k].clone();
                    Guess::Own(self.arrays.classes(&value))
                }
            });
        }
        guesses
    }

    /// Gives up what does not hold at the start.
    fn check_starts(&mut self, this: &Loop<'_, '_>, inits: &[Value], guesses: &mut [Guess]) {
        for (k, guess) in guesses.iter_mut().enumerate() {
            let Guess::Part(parts) = guess else { continue };
            let start = self.compose(parts, inits, Some(&this.inits[k]));
            if !start.is_some_and(|start| self.arrays.is_equal(&start, &this.inits[k])) {
                let value = this.inits[k].clone();
                *guess = Guess::Own(self.arrays.classes(&value));
            }
        }
    }

    /// For leaves without a candidate, those by where their elements stand after an iteration of unknown numbers.
    fn candidates_of_probe(
        &mut self,
        this: &mut Loop<'_, '_>,
        id: LoopId,
        before: &[Value],
        probed: &[Value],
        queues: &mut [Vec<Parts>],
    ) -> Option<()> {
        if queues.iter().all(|queue| !queue.is_empty()) {
            return None;
        }
        let guesses = self.first_guesses(this, &mut queues.to_vec());
        let params = self.params(this, id, MAX_ROUNDS, &guesses, Some(before))?;
        let own = self.probe(this, &params)?;
        let by_term = self.leaves_of_terms(probed);
        for (k, queue) in queues.iter_mut().enumerate() {
            if queue.is_empty() {
                queue.extend(self.locate(&own[k], probed, &by_term, 0));
            }
        }
        Some(())
    }

    /// In which leaves each term stands.
    fn leaves_of_terms(&self, values: &[Value]) -> HashMap<TermId, Vec<usize>> {
        let mut by_term: HashMap<TermId, Vec<usize>> = HashMap::new();
        for (i, value) in values.iter().enumerate() {
            let n_lists = match value {
                Value::Same(_) => 1,
                Value::Each(ids) => ids.len(),
            };
            for device in 0..n_lists {
                for segment in self.arrays.segments(self.arrays.on(value, device)).iter() {
                    let list = by_term.entry(segment.term).or_default();
                    if list.last() != Some(&i) {
                        list.push(i);
                    }
                }
            }
        }
        by_term
    }

    /// Where the elements of a value stand in the first loop's leaves at the start.
    fn locate(
        &self,
        value: &Value,
        inits: &[Value],
        by_term: &HashMap<TermId, Vec<usize>>,
        nth: usize,
    ) -> Option<Parts> {
        let mut each = Vec::new();
        for device in 0..self.n_devices() {
            let mut parts = Vec::new();
            for segment in self.arrays.segments(self.arrays.on(value, device)).iter() {
                // One number at several places does not say where it stood: it may be the padding of a shard.
                if self.arrays.terms.rank(segment.term) == 0 && segment.region.n_elems() > 1 {
                    let mut region = crate::elementwise::places(&segment.region);
                    region.at.push(region.at[0]);
                    region.dims.iter_mut().for_each(|d| d.step.push(d.step[0]));
                    parts.push((OWN, region));
                    continue;
                }
                let mut found = by_term.get(&segment.term)?.iter().filter_map(|&i| {
                    let list = self.arrays.segments(self.arrays.on(&inits[i], device));
                    let within = list.iter().filter(|s| s.term == segment.term);
                    within.filter_map(|s| place_within(&segment.region, &s.region)).next().map(|region| (i, region))
                });
                parts.push(found.nth(nth)?);
            }
            each.push(parts);
        }
        is_mostly_found(&each).then(|| Rc::new(each))
    }

    /// The parts of which the elements are as expected; the others become the loop's own. `None` if no part is left.
    fn parts_that_hold(&mut self, parts: &Parts, expected: &Value, found: &Value) -> Option<Parts> {
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let mut list = parts.get(if parts.len() == 1 { 0 } else { device })?.clone();
            let (a, b) = (self.arrays.on(expected, device), self.arrays.on(found, device));
            for (_, region) in self.arrays.differences(a, b)? {
                let part = list.iter_mut().find(|(_, r)| r.holds_place(region.at[0]))?;
                part.0 = OWN;
                // The loop's own elements are where they are.
                part.1.at[1] = part.1.at[0];
                part.1.dims.iter_mut().for_each(|d| d.step[1] = d.step[0]);
            }
            each.push(list);
        }
        is_mostly_found(&each).then(|| Rc::new(each))
    }

    /// The parts of leaves as a value; the elements of `own` are the second loop's.
    fn compose(&mut self, parts: &Parts, leaves: &[Value], own: Option<&Value>) -> Option<Value> {
        if let [only] = parts.as_slice() {
            if let [(leaf, region)] = only.as_slice() {
                // The whole of one leaf.
                if *leaf != OWN && region.at.iter().all(|&a| a == 0) && region.dims.iter().all(|d| d.step[..] == [1, 1]) {
                    return leaves.get(*leaf).cloned();
                }
            }
        }
        let mut known: HashMap<(Vec<ArrayId>, usize), ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let list_idx = if parts.len() == 1 { 0 } else { device };
            let list = parts.get(list_idx)?;
            let of_leaf = |&(leaf, _): &(usize, Region)| if leaf == OWN { own } else { leaves.get(leaf) };
            let arrays: Vec<ArrayId> =
                list.iter().map(|part| of_leaf(part).map(|v| self.arrays.on(v, device))).collect::<Option<_>>()?;
            if let Some(&id) = known.get(&(arrays.clone(), list_idx)) {
                each.push(id);
                continue;
            }
            let mut segments = Vec::new();
            for (&array, (_, region)) in arrays.iter().zip(list) {
                segments.extend(self.arrays.take(array, region.clone())?);
            }
            let id = self.arrays.intern(segments);
            known.insert((arrays, list_idx), id);
            each.push(id);
        }
        Some(self.arrays.value(each))
    }

    /// The branch that the first operand chooses.
    pub(crate) fn run_conditional(&mut self, side: &mut Side<'_>, inst: InstId, operands: &[Tree]) -> Option<Tree> {
        let module = side.module;
        let branches = module.called(inst);
        let Tree::Leaf(choice) = &operands[0] else { return None };
        let mut results = Vec::with_capacity(branches.len());
        for (&branch, operand) in branches.iter().zip(&operands[1..]) {
            results.push(self.run(side, branch, vec![operand.clone()]));
        }
        let leaves: Vec<Vec<Value>> = results.iter().map(Tree::leaves).collect();
        let first = module.inst(inst).operands.first()?;
        let choice_dtype = module.shape(*first).as_array()?.dtype;
        let mut types = Vec::new();
        module.shape(inst).for_each_leaf(&mut |_, leaf| types.push(leaf_type(leaf)));
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
            let op =
                ElementwiseOp { opcode, dtype, operand_dtype: choice_dtype, comparison: None, attributes: String::new() };
            out.push(self.elementwise(op, &values, n)?);
        }
        results[0].with_leaves(&mut out.into_iter())
    }
}

/// Whether no more than half of the elements are a loop's own: padding is less than that.
fn is_mostly_found(each: &[Vec<(usize, Region)>]) -> bool {
    let n_elems = |is_own: bool| -> i64 {
        each.iter().flatten().filter(|(leaf, _)| (*leaf == OWN) == is_own).map(|(_, region)| region.n_elems()).sum()
    };
    n_elems(true) <= n_elems(false)
}

/// The region of an argument's coordinates, for a region that has the place and one more coordinate before them.
fn through(arg: &Arg, region: &Region) -> Region {
    let join = |head: &[i64], tail: Coords| -> Coords { head.iter().copied().chain(tail).collect() };
    Region {
        at: join(&region.at[..2], arg.at(&region.at[2..])),
        dims: region.dims.iter().map(|d| Dim { n: d.n, step: join(&d.step[..2], arg.step(&d.step[2..])) }).collect(),
    }
}

/// Whether a summand's only coordinate is the place itself.
fn is_in_place(segment: &Segment, summand: &Summand) -> bool {
    let rank = summand.at.len();
    rank == 0
        || rank == 1
            && summand.at[0] == segment.region.at[0]
            && segment.region.dims.iter().zip(&summand.steps).all(|(d, step)| step[0] == d.step[0])
}

pub(crate) fn leaf_type(shape: &Shape) -> LeafType {
    match shape {
        Shape::Array(array) | Shape::Buffer(array) => (array.n_elems() as i64, array.dtype),
        Shape::Tuple(_) | Shape::Token | Shape::Opaque => (0, DType::Pred),
    }
}

/// Places and places in the other region's array, for a region whose coordinates lie within the other.
fn place_within(region: &Region, whole: &Region) -> Option<Region> {
    let gap: Coords = region.at.iter().zip(&whole.at).skip(1).map(|(a, b)| a - b).collect();
    let start = steps_to(&gap, whole, true)?;
    let mut dims: SmallVec<[Dim; 2]> = SmallVec::new();
    for dim in &region.dims {
        let step = Coords::from_slice(&dim.step[1..]);
        let along = steps_to(&step, whole, false)?;
        dims.push(Dim { n: dim.n, step: Coords::from_slice(&[dim.step[0], along]) });
    }
    Some(Region { at: Coords::from_slice(&[region.at[0], whole.at[0] + start]), dims })
}

/// How many places further an array of the region's shape has what is this much further in coordinates.
fn steps_to(gap: &[i64], whole: &Region, is_bounded: bool) -> Option<i64> {
    let mut rest = Coords::from_slice(gap);
    let mut places = 0;
    let mut dims: Vec<&Dim> = whole.dims.iter().collect();
    dims.sort_by(|a, b| b.step[1..].cmp(&a.step[1..]));
    for dim in dims {
        let Some(c) = (1..dim.step.len()).find(|&c| dim.step[c] != 0) else { continue };
        let n = rest[c - 1].div_euclid(dim.step[c]);
        if is_bounded && !(0..dim.n).contains(&n) {
            return None;
        }
        places += n * dim.step[0];
        for (r, s) in rest.iter_mut().zip(&dim.step[1..]) {
            *r -= n * s;
        }
    }
    rest.iter().all(|&r| r == 0).then_some(places)
}
