//! Classes of values whose layouts follow from one another.
//!
//! A value's layout is that of its class' leader with the dims renamed: `order[i] = names[leader's order[i]]`.

use cranelift_entity::SecondaryMap;
use hlo_ir::{Dims, InstId};
use smallvec::SmallVec;

/// `permutation[i]` is the other side's dim of dim `i`.
pub(crate) type Permutation = SmallVec<[usize; 6]>;

/// Disjoint sets with a permutation on each edge, and the wishes of their members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// The next value on the way to the leader, and this value's dim for each dim of that.
    up: SecondaryMap<InstId, Option<(InstId, Permutation)>>,
    /// Orders, minor first, in the leader's dims, and their weights.
    votes: SecondaryMap<InstId, Vec<(Dims, u64)>>,
}

/// First `outer`, then `inner`: dim `i` goes to `inner[outer[i]]`.
fn then(outer: &Permutation, inner: &Permutation) -> Permutation {
    outer.iter().map(|&i| inner.get(i).copied().unwrap_or(i)).collect()
}

fn inverse(permutation: &Permutation) -> Permutation {
    let mut back: Permutation = permutation.iter().map(|_| 0).collect();
    for (i, &p) in permutation.iter().enumerate() {
        if let Some(slot) = back.get_mut(p) {
            *slot = i;
        }
    }
    back
}

impl Classes {
    /// The leader of a value's class.
    pub(crate) fn leader(&self, inst: InstId) -> InstId {
        let mut at = inst;
        while let Some((up, _)) = &self.up[at] {
            at = *up;
        }
        at
    }

    /// The leader, and for each of its dims the value's dim; `None` for the leader itself.
    fn path(&self, inst: InstId) -> (InstId, Option<Permutation>) {
        let (mut at, mut names) = (inst, None::<Permutation>);
        while let Some((up, own)) = &self.up[at] {
            names = Some(match names {
                None => own.clone(),
                Some(names) => then(own, &names),
            });
            at = *up;
        }
        (at, names)
    }

    /// Lets a value, and all on its way, know its leader at once: chains of elementwise operations are as long as networks are deep.
    fn shorten(&mut self, inst: InstId) {
        let mut way = Vec::new();
        let mut at = inst;
        while let Some((up, _)) = &self.up[at] {
            way.push(at);
            at = *up;
        }
        let mut names = None::<Permutation>;
        for &value in way.iter().rev() {
            let Some((_, own)) = &self.up[value] else { continue };
            let of_leader = names.map_or_else(|| own.clone(), |of_up| then(&of_up, own));
            self.up[value] = Some((at, of_leader.clone()));
            names = Some(of_leader);
        }
    }

    /// Ties `operand` to `inst`: dim `i` of `inst` is dim `to_operand[i]` of `operand`. Nothing where that contradicts what
    /// is known.
    pub(crate) fn unite(&mut self, inst: InstId, operand: InstId, to_operand: &Permutation) {
        self.shorten(inst);
        self.shorten(operand);
        let identity = || (0..to_operand.len()).collect::<Permutation>();
        let ((a, a_names), (b, b_names)) = (self.path(inst), self.path(operand));
        if a == b {
            return;
        }
        // b's dim of each of a's dims: a → inst → operand → b.
        let to_inst = a_names.unwrap_or_else(identity);
        let from_operand = inverse(&b_names.unwrap_or_else(identity));
        let a_to_b = then(&then(&to_inst, to_operand), &from_operand);
        self.up[b] = Some((a, a_to_b));
    }

    /// A value wishes an order of its dims, minor first.
    pub(crate) fn vote(&mut self, inst: InstId, order: Dims, weight: u64) {
        self.shorten(inst);
        let (leader, order) = self.of_leader(inst, order);
        match self.votes[leader].iter_mut().find(|(known, _)| *known == order) {
            Some((_, total)) => *total = total.saturating_add(weight),
            None => self.votes[leader].push((order, weight)),
        }
    }

    /// The order, minor first, that a value should have by the wishes of its class; the first of equal ones.
    pub(crate) fn choice(&self, inst: InstId) -> Option<Dims> {
        let votes = &self.votes[self.leader(inst)];
        let best = votes.iter().min_by(|(a, x), (b, y)| y.cmp(x).then_with(|| b.cmp(a)))?;
        Some(self.of_member(inst, best.0.clone()))
    }

    /// The order of a value where another one of its class has this order.
    pub(crate) fn order_beside(&self, inst: InstId, other: InstId, order: Dims) -> Dims {
        let (_, order) = self.of_leader(other, order);
        self.of_member(inst, order)
    }

    /// A value's order as one of its leader, and this.
    fn of_leader(&self, inst: InstId, order: Dims) -> (InstId, Dims) {
        let (leader, names) = self.path(inst);
        let Some(names) = names else { return (leader, order) };
        let back = inverse(&names);
        (leader, order.iter().map(|&d| back.get(d as usize).map_or(d, |&i| i as i64)).collect())
    }

    /// The leader's order as one of a value.
    fn of_member(&self, inst: InstId, order: Dims) -> Dims {
        match self.path(inst).1 {
            None => order,
            Some(names) => order.iter().map(|&d| names.get(d as usize).map_or(d, |&i| i as i64)).collect(),
        }
    }
}
