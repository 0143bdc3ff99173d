//! Loops whose iterations are cut at other places than the first module's.
//!
//! What an iteration makes of the carried values is a function of them. So beside each carried leaf of the first module's loop stands
//! every value of its body, as a leaf that starts as that value of the start, and after an iteration is that value of the next
//! state: a loop that makes a value one iteration ahead carries such a leaf. The same loop from its first result on
//! is a loop with one iteration less, if a first one runs; and one that does two iterations at once, if their number is even.
//! [`crate::rules::Rule::OtherCuts`].

use crate::array::{Tree, Value};
use crate::control::{Iteration, Loop, LoopRecord};
use crate::prover::Prover;
use crate::term::{Head, LoopId, Node, TermId};
use crate::walk::Known;
use hashbrown::{HashMap, HashSet};
use hlo_ir::attrs::Comparison;
use hlo_ir::{DType, InstId, NumberClass, Opcode};

/// A body's values on some state, and the state after it.
struct Run {
    values: HashMap<InstId, Tree>,
    condition: Value,
    next: Vec<Value>,
}

/// How many iterations of a loop that counts are counted.
const MAX_TRIPS: u64 = 1 << 20;

/// Other cuts are looked for in so many loops within each other, the outermost first: each of them is run some times more, with all that it
/// holds.
const MOST_CUT_NESTS: usize = 2;

impl Prover {
    /// How many loops stand round a loop with this parent.
    fn n_loops_around(&self, parent: Option<LoopId>) -> usize {
        let outer = |id: &LoopId| self.loops.get(id.0 as usize).and_then(|record| record.parent);
        std::iter::successors(parent, outer).take(MOST_CUT_NESTS).count()
    }

    /// Notes the loop that was noted last once more for each other way to cut it, and the values of its body as leaves. `known` are these
    /// values on the carried leaves.
    pub(crate) fn note_other_cuts(&mut self, this: &mut Loop<'_, '_>, known: &Known) -> Option<()> {
        let n_loops = self.loops.len();
        let record = self.loops.last()?;
        if self.n_loops_around(record.parent) >= MOST_CUT_NESTS {
            return None;
        }
        let (inits, params, results) = (record.inits.clone(), record.params.clone(), record.results.clone());
        let condition = record.condition.clone();
        let trips = self.trips(&inits, &params, &results, &condition);
        let body = this.body_insts();
        let first = self.run_body(this, &inits)?;
        let next = self.run_body(this, &results)?;
        // Loops within were read anew, as those of other states.
        debug_assert_eq!(self.loops.len(), n_loops);
        let mut seen: HashSet<Value> = params.iter().cloned().collect();
        let mut made: Vec<InstId> = Vec::new();
        for inst in body {
            let value = |values: &HashMap<InstId, Tree>| match values.get(&inst)? {
                Tree::Leaf(value) => Some(value.clone()),
                Tree::Tuple(_) => None,
            };
            let Some((_, Tree::Leaf(now))) = known.get(&inst) else { continue };
            let (Some(at_first), Some(at_next)) = (value(&first.values), value(&next.values)) else { continue };
            let varies = *now != at_first || at_first != at_next;
            if varies && seen.insert(now.clone()) {
                made.push(inst);
            }
        }
        let of = |values: &HashMap<InstId, Tree>| -> Vec<Value> {
            let leaf = |inst: &InstId| match values.get(inst) {
                Some(Tree::Leaf(value)) => Some(value.clone()),
                Some(Tree::Tuple(_)) | None => None,
            };
            made.iter().filter_map(leaf).collect()
        };
        let now: HashMap<InstId, Tree> = known.iter().map(|(&inst, (_, value))| (inst, value.clone())).collect();
        // What they are after the loop is not looked at.
        let unknown: Vec<Value> = of(&now).iter().map(|value| self.unknown(value)).collect();
        let record = self.loops.last_mut()?;
        record.trips = trips;
        record.inits.extend(of(&first.values));
        record.params.extend(of(&now));
        record.results.extend(of(&next.values));
        record.outs.extend(unknown);
        let whole = self.loops.last()?.clone();
        self.note_peeled(this, &whole, &first, &made);
        self.note_doubled(this, whole, &next, params.len());
        Some(())
    }

    /// The loop from its first result on, if a first iteration runs.
    fn note_peeled(&mut self, this: &mut Loop<'_, '_>, whole: &LoopRecord, first: &Run, made: &[InstId]) -> Option<()> {
        let Value::Same(condition) = &first.condition else { return None };
        if self.arrays.as_integer(*condition) != Some(1) {
            return None;
        }
        let second = self.run_body(this, &first.next)?;
        let sums = self.new_loop();
        self.note_starts(sums, &this.inits);
        let mut inits = first.next.clone();
        for inst in made {
            match second.values.get(inst) {
                Some(Tree::Leaf(value)) => inits.push(value.clone()),
                Some(Tree::Tuple(_)) | None => return None,
            }
        }
        let trips = whole.trips.and_then(|n| n.checked_sub(1));
        let peeled = LoopRecord { inits, sums, trips, probed: None, ..whole.clone() };
        self.loops.push(peeled);
        Some(())
    }

    /// Two iterations as one, if an even number runs.
    fn note_doubled(&mut self, this: &Loop<'_, '_>, whole: LoopRecord, next: &Run, n_leaves: usize) -> Option<()> {
        let trips = whole.trips.filter(|n| n % 2 == 0)?;
        let sums = self.new_loop();
        self.note_starts(sums, &this.inits);
        let first = |values: &[Value]| values[..n_leaves.min(values.len())].to_vec();
        self.loops.push(LoopRecord {
            inits: first(&whole.inits),
            params: first(&whole.params),
            outs: first(&whole.outs),
            results: next.next.clone(),
            sums,
            trips: Some(trips / 2),
            probed: None,
            ..whole
        });
        Some(())
    }

    /// As many elements that nothing equals.
    fn unknown(&mut self, like: &Value) -> Value {
        let n = self.arrays.segments(self.arrays.on(like, 0)).iter().map(|segment| segment.region.n_elems()).sum();
        let term = self.arrays.terms.unique(n);
        Value::Same(self.arrays.whole(term, n))
    }

    /// An iteration of the loop on a state, beside those that are read.
    fn run_body(&mut self, this: &mut Loop<'_, '_>, state: &[Value]) -> Option<Run> {
        let n_loops = self.loops.len();
        let outer = self.parent.replace(LoopId(u32::MAX));
        let known = this.swap_known(Known::new());
        let iteration = self.iterate(this, state, true);
        let values = this.swap_known(known);
        self.parent = outer;
        self.forget_loops(n_loops);
        let Iteration { condition, results } = iteration?;
        let values = values.into_iter().map(|(inst, (_, value))| (inst, value)).collect();
        Some(Run { values, condition, next: results })
    }

    /// How often a loop runs that counts by a number up or down to another one.
    pub(crate) fn trips(&self, inits: &[Value], params: &[Value], results: &[Value], condition: &Value) -> Option<u64> {
        let Node::Apply(Head::Elementwise(word), args) = self.arrays.terms.node(self.number(condition)?) else {
            return None;
        };
        let op = self.elementwise.op(*word)?;
        let (comparison, dtype) = (op.comparison?, op.operand_dtype);
        let [left, right] = args.as_slice() else { return None };
        let constant = |term: TermId| self.arrays.terms.as_integer(term).map(i128::from);
        let (counter, bound, is_left) = match (constant(left.term), constant(right.term)) {
            (None, Some(bound)) => (left.term, bound, true),
            (Some(bound), None) => (right.term, bound, false),
            (_, _) => return None,
        };
        let leaf = params.iter().position(|param| self.number(param) == Some(counter))?;
        let start = constant(self.number(inits.get(leaf)?)?)?;
        let step = self.step_of(self.number(results.get(leaf)?)?, counter)?;
        let range = range_of(dtype)?;
        let (mut at, mut n) = (start, 0);
        while holds(comparison, if is_left { (at, bound) } else { (bound, at) }) {
            (at, n) = (at + step, n + 1);
            if !range.contains(&at) || n > MAX_TRIPS {
                return None;
            }
        }
        Some(n)
    }

    /// What is added to a number to give another one.
    fn step_of(&self, sum: TermId, counter: TermId) -> Option<i128> {
        let Node::Apply(Head::Elementwise(word), args) = self.arrays.terms.node(sum) else { return None };
        if self.elementwise.op(*word)?.opcode != Opcode::Add {
            return None;
        }
        let [a, b] = args.as_slice() else { return None };
        let added = if a.term == counter { b.term } else { a.term };
        let has_counter = a.term == counter || b.term == counter;
        self.arrays.terms.as_integer(added).filter(|_| has_counter).map(i128::from)
    }

    /// The term of a value that is one element, the same list on each device.
    fn number(&self, value: &Value) -> Option<TermId> {
        let Value::Same(array) = value else { return None };
        match self.arrays.segments(*array).as_slice() {
            [only] if only.region.n_elems() == 1 && self.arrays.terms.rank(only.term) == 0 => Some(only.term),
            _ => None,
        }
    }
}

fn holds(comparison: Comparison, (a, b): (i128, i128)) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
        Comparison::Ge => a >= b,
        Comparison::Gt => a > b,
        Comparison::Le => a <= b,
        Comparison::Lt => a < b,
    }
}

/// The numbers of an integer type.
fn range_of(dtype: DType) -> Option<std::ops::RangeInclusive<i128>> {
    let bits = dtype.bits();
    match dtype.class() {
        NumberClass::Signed => Some(-(1i128 << (bits - 1))..=(1i128 << (bits - 1)) - 1),
        NumberClass::Unsigned => Some(0..=(1i128 << bits) - 1),
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => None,
    }
}
