//! Closed forms of carried values: what a loop adds up, and the rows that it writes.
//!
//! Sums over devices may move past both, so that gradients which one program sums in each iteration and another after the
//! loop are the same terms.

use crate::array::Value;
use crate::control::{Guess, Iteration};
use crate::devices::Classes;
use crate::elementwise::{ElementwiseOp, Linear};
use crate::prover::Prover;
use crate::rules::{Rule, Rules};
use crate::segment::{Coords, Dim, Region, Segment};
use crate::sum::Summand;
use crate::term::{Arg, Extra, Head, LoopId, Node, TermId, Terms};
use hashbrown::HashMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::{DType, Opcode};

/// How many factors and sums above one another a loop's sum changes places with: beyond, they are one function.
const MAX_DEPTH: usize = 2_000;

impl Prover {
    /// In how many values each carried leaf occurs: results of an iteration, and the condition. Only leaves that might have
    /// a closed form are looked for.
    pub(crate) fn carry_uses(
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
        let mut is_closed = self.elementwise.reassociates();
        self.for_each_term(result, &mut |term| {
            let is_sum = matches!(self.arrays.terms.node(term), Node::Apply(Head::Sum(Monoid::Add, _), _));
            is_closed &= is_sum || self.is_row_update(term);
        });
        is_closed
    }

    /// Calls `visit` with the term of each segment of a value.
    pub(crate) fn for_each_term(&self, value: &Value, visit: &mut dyn FnMut(TermId)) {
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
        let of_loop = |id: &LoopId, visit: &mut dyn FnMut(TermId)| {
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
    pub(crate) fn note_starts(&mut self, id: LoopId, inits: &[Value]) {
        let mut starts = Vec::new();
        for value in inits {
            self.for_each_term(value, &mut |term| starts.push(term));
        }
        starts.sort();
        starts.dedup();
        self.loop_starts.insert(id, starts);
    }

    /// The leaf after the loop, if an iteration only adds to it or writes a row.
    pub(crate) fn closed_form(
        &mut self,
        id: LoopId,
        (param, result): (&Value, &Value),
        init: &Value,
        n: i64,
        dtype: DType,
    ) -> Option<Value> {
        let Value::Same(param) = param else { return None };
        let carry = self.arrays.segments(*param).first()?.term;
        let is_stack = (0..self.n_devices())
            .all(|d| self.arrays.segments(self.arrays.on(result, d)).iter().all(|s| self.is_row_update(s.term)));
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
        let mut sums = HashMap::new();
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
            let term = self.loop_sum(id, arg.term, (0, &mut sums));
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

    /// The sum of a term over a loop's iterations. A program may have many ways between two of its values, so what was summed is
    /// kept.
    fn loop_sum(&mut self, id: LoopId, term: TermId, (depth, known): (usize, &mut HashMap<TermId, TermId>)) -> TermId {
        if let Some(&sum) = known.get(&term) {
            return sum;
        }
        let sum = match self.arrays.terms.node(term).clone() {
            Node::Apply(head @ Head::Sum(Monoid::Add, _), args) if depth < MAX_DEPTH => {
                let mut args = self.summed_over_devices(&args);
                for arg in &mut args {
                    arg.term = self.loop_sum(id, arg.term, (depth + 1, &mut *known));
                }
                self.arrays.terms.apply_mapped(head, args)
            }
            Node::Apply(head @ Head::Elementwise(word), mut args)
                if depth < MAX_DEPTH && self.constant_factor(word, &args).is_some() =>
            {
                let factor = self.constant_factor(word, &args).unwrap_or(0);
                let other = 1 - factor;
                args[other].term = self.loop_sum(id, args[other].term, (depth + 1, &mut *known));
                self.arrays.terms.apply_mapped(head, args)
            }
            _ => {
                let arg = Arg::same(&self.arrays.terms, term, Terms::NO_EXTRA);
                self.arrays.terms.apply_mapped(Head::LoopSum(id), vec![arg])
            }
        };
        known.insert(term, sum);
        sum
    }

    /// Which argument of a product or quotient is a number, for which sums may change places with it.
    fn constant_factor(&mut self, word: crate::term::WordId, args: &[Arg]) -> Option<usize> {
        let op = self.elementwise.op(word)?;
        let terms = &mut self.arrays.terms;
        let mut is_number = |k: usize| {
            args.get(k)
                .is_some_and(|a| terms.as_constant(a.term).is_some() && self.elementwise.is_a_factor(terms, op, a.term))
        };
        match op.linear() {
            Linear::Product if is_number(0) => Some(0),
            Linear::Product | Linear::Quotient if is_number(1) => Some(1),
            Linear::Product | Linear::Quotient | Linear::DotProduct | Linear::RoundedProduct | Linear::No => None,
        }
    }

    /// What a segment of the carry holds after the loop, if each iteration writes a row of it.
    fn stacked(&mut self, id: LoopId, segment: &Segment, carry: TermId) -> Option<Segment> {
        let Node::Apply(Head::Elementwise(word), args) = self.arrays.terms.node(segment.term).clone() else {
            return None;
        };
        let n_rows = self.elementwise.op(word)?.attributes.rsplit_once(" row<")?.1.parse().ok()?;
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
        self.stack((id, n_rows), iota.term, index.term, (row.term, 0), &region)
    }

    /// The stack of a row over the iterations. The region has the place, the row's number, then the row's coordinates.
    fn stack(
        &mut self,
        id: (LoopId, i64),
        iota: TermId,
        index: TermId,
        (row, depth): (TermId, usize),
        region: &Region,
    ) -> Option<Segment> {
        if depth >= MAX_DEPTH || self.arrays.terms.deadline.has_passed() {
            return Some(self.stack_of_whole(id, iota, index, row, region));
        }
        match self.arrays.terms.node(row).clone() {
            Node::Apply(head @ Head::Elementwise(word), args) if self.constant_factor(word, &args).is_some() => {
                let factor = self.constant_factor(word, &args)?;
                let inner = &args[1 - factor];
                let inner_region = through(inner, region);
                let stacked = self.stack(id, iota, index, (inner.term, depth + 1), &inner_region)?;
                let rank = self.arrays.terms.rank(stacked.term);
                let mut list = [(stacked.term, Terms::NO_EXTRA, 1), (args[factor].term, Terms::NO_EXTRA, 1 + rank)];
                if factor == 0 {
                    list.swap(0, 1);
                }
                if self.elementwise.op(word).is_some_and(|op| op.linear() == Linear::Product) {
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
                    let stacked = self.stack(id, iota, index, (local, depth + 1), region)?;
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

    fn stack_of_whole(
        &mut self,
        (id, n_rows): (LoopId, i64),
        iota: TermId,
        index: TermId,
        row: TermId,
        region: &Region,
    ) -> Segment {
        let rank = self.arrays.terms.rank(row);
        // Rows beyond the last are written to the last, so how many there are belongs to it.
        let bound = self.arrays.terms.extra(Extra::Moves(vec![(Coords::from_slice(&[0]), n_rows)]));
        let args = [(iota, bound, 1), (index, Terms::NO_EXTRA, 2 + rank), (row, Terms::NO_EXTRA, 2)];
        self.arrays.terms.apply(Head::LoopStack(id), &args, region)
    }
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
