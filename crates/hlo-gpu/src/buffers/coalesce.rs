//! Put values into one place where that saves a copy or memory.
//!
//! Values are united into classes, one after the other in order of worth: a class may hold values whose intervals do not
//! meet, or meet in the one point where a step overwrites one with the other as it reads it.
//!
//! 1. Outputs with the donated parameters that they replace.
//! 2. Both ends of copies: a loop's state, a branch's result.
//! 3. What kernels and collectives may do in place.

use super::liveness::{Interval, Lives};
use super::{Draft, Home};
use crate::lower::strides::is_same_layout;
use crate::plan::{BufferId, PlanValueId, Step, Work};
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};
use hashbrown::{HashMap, HashSet};
use hlo_ir::DType;

/// Values that lie in one place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClassId(u32);
entity_impl!(ClassId, "class");

/// Where a class must lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fixed {
    /// Anywhere.
    No,
    /// In a parameter.
    Parameter {
        /// Its leaf.
        leaf: u32,
        /// Whether it may be written to.
        is_donated: bool,
    },
    /// In the memory of an output.
    Output(u32),
    /// Where it is only read.
    ReadOnly,
}

/// One class.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Its values; one that is never used has no life.
    members: Vec<PlanValueId>,
    /// Pieces of lives, each with its value, in order of their beginnings.
    pub intervals: Vec<(Interval, PlanValueId)>,
    /// Bytes of the largest value.
    pub bytes: u64,
    /// Where it must lie.
    pub fixed: Fixed,
}

/// All classes.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// The classes; those that were united into another are empty.
    pub classes: PrimaryMap<ClassId, Class>,
    of: SecondaryMap<PlanValueId, ClassId>,
}

impl Classes {
    /// The class of a value.
    pub(crate) fn of(&self, value: PlanValueId) -> ClassId {
        self.of[value]
    }

    /// Unites the classes of two values if nothing stands against it.
    fn unite(&mut self, draft: &Draft, a: PlanValueId, b: PlanValueId) -> bool {
        let (to, from) = (self.of[a], self.of[b]);
        if to == from {
            return true;
        }
        if self.classes[to].intervals.len() < self.classes[from].intervals.len() {
            return self.unite(draft, b, a);
        }
        let Some(fixed) = self.united_place(to, from) else { return false };
        if self.meet(draft, to, from) {
            return false;
        }
        let moved = std::mem::take(&mut self.classes[from].intervals);
        self.classes[from].fixed = Fixed::No;
        let members = std::mem::take(&mut self.classes[from].members);
        for &value in &members {
            self.of[value] = to;
        }
        let bytes = self.classes[from].bytes;
        let class = &mut self.classes[to];
        class.bytes = class.bytes.max(bytes);
        class.fixed = fixed;
        class.members.extend(members);
        class.intervals.extend(moved);
        class.intervals.sort_by_key(|&(interval, value)| (interval, value));
        true
    }

    /// Where two classes lie together; `None` if they cannot.
    fn united_place(&self, a: ClassId, b: ClassId) -> Option<Fixed> {
        let (a, b) = (&self.classes[a], &self.classes[b]);
        let fixed = match (a.fixed, b.fixed) {
            (Fixed::No, other) | (other, Fixed::No) => other,
            (_, _) => return None,
        };
        match fixed {
            Fixed::No | Fixed::Output(_) => (a.bytes == b.bytes).then_some(fixed),
            Fixed::Parameter { is_donated, .. } => (is_donated && a.bytes == b.bytes).then_some(fixed),
            Fixed::ReadOnly => None,
        }
    }

    /// Whether two classes live at the same time elsewhere than where one value is overwritten by the other.
    fn meet(&self, draft: &Draft, a: ClassId, b: ClassId) -> bool {
        let (a, b) = (&self.classes[a].intervals, &self.classes[b].intervals);
        let hands_over = |first: &(Interval, PlanValueId), then: &(Interval, PlanValueId)| {
            first.0.end == then.0.start && draft.shareable.contains(&(first.1, then.1))
        };
        let mut start = 0;
        for x in a {
            while b.get(start).is_some_and(|y| y.0.end < x.0.start) {
                start += 1;
            }
            for y in b[start..].iter().take_while(|y| y.0.start <= x.0.end) {
                let is_apart = y.0.end < x.0.start || hands_over(x, y) || hands_over(y, x);
                if !is_apart {
                    return true;
                }
            }
        }
        false
    }
}

/// Puts every value into a class.
pub(crate) fn share(draft: &Draft, lives: &Lives) -> Classes {
    let mut classes = Classes { classes: PrimaryMap::new(), of: SecondaryMap::with_default(ClassId::new(0)) };
    for (id, value) in draft.values.iter() {
        let fixed = match value.home {
            Home::Parameter { leaf, is_donated } => Fixed::Parameter { leaf, is_donated },
            Home::Constant(_) | Home::DeviceIds => Fixed::ReadOnly,
            Home::Temporary => Fixed::No,
        };
        let intervals = lives[id].iter().map(|&interval| (interval, id)).collect();
        classes.of[id] = classes.classes.push(Class { members: vec![id], intervals, bytes: value.bytes, fixed });
    }
    let mut pairs = Pairs::default();
    pairs.collect(draft, &draft.plan.steps);
    // A loop's state first, so that outputs reach through loops to the parameters that begin them.
    for &(from, to) in &pairs.loop_copies {
        classes.unite(draft, from, to);
    }
    replace_donated(draft, &mut classes, &pairs);
    for &(from, to) in pairs.copies.iter().chain(&pairs.updates) {
        classes.unite(draft, from, to);
    }
    for (k, &output) in draft.plan.outputs.iter().enumerate() {
        let class = classes.of[draft.value_of[output]];
        if classes.classes[class].fixed == Fixed::No {
            classes.classes[class].fixed = Fixed::Output(k as u32);
        }
    }
    classes
}

/// Unites each output with a donated parameter of its shape: the one whose next value it is, one that its kernel may overwrite, or
/// the first that is read no more. Outputs that are next values choose first.
fn replace_donated(draft: &Draft, classes: &mut Classes, pairs: &Pairs) {
    let shape = |b: BufferId| &draft.plan.buffers[b].shape;
    let mut donated: HashMap<(DType, &[i64]), Leaves> = HashMap::new();
    for (leaf, &parameter) in draft.plan.parameters.iter().enumerate().filter(|(_, b)| draft.may_be_output(**b)) {
        let shape = shape(parameter);
        donated.entry((shape.dtype, shape.dims.as_slice())).or_default().push((leaf, parameter));
    }
    let updates: HashSet<(PlanValueId, PlanValueId)> = pairs.updates.iter().copied().collect();
    let aliases: HashSet<(usize, usize)> = draft.plan.aliases.iter().copied().collect();
    let mut outputs: Vec<(usize, BufferId)> = draft.plan.outputs.iter().copied().enumerate().collect();
    outputs.sort_by_key(|(k, _)| !aliases.iter().any(|(output, _)| output == k));
    for (k, output) in outputs {
        let value = draft.value_of[output];
        if matches!(classes.classes[classes.of(value)].fixed, Fixed::Parameter { .. }) {
            continue;
        }
        let alike = donated.get(&(shape(output).dtype, shape(output).dims.as_slice())).into_iter().flatten();
        let mut candidates: Vec<(u8, BufferId)> = alike
            .filter(|(_, parameter)| is_same_layout(shape(*parameter), shape(output)))
            .map(|&(leaf, parameter)| match updates.contains(&(draft.value_of[parameter], value)) {
                _ if aliases.contains(&(k, leaf)) => (0, parameter),
                true => (1, parameter),
                false => (2, parameter),
            })
            .collect();
        candidates.sort_by_key(|&(rank, _)| rank);
        candidates.into_iter().any(|(_, parameter)| classes.unite(draft, draft.value_of[parameter], value));
    }
}

/// Leaves of ENTRY's parameters with their buffers.
type Leaves = Vec<(usize, BufferId)>;

/// Pairs of values that it pays to unite, in the order of their steps.
#[derive(Default)]
struct Pairs {
    loop_copies: Vec<(PlanValueId, PlanValueId)>,
    copies: Vec<(PlanValueId, PlanValueId)>,
    updates: Vec<(PlanValueId, PlanValueId)>,
}

impl Pairs {
    fn collect(&mut self, draft: &Draft, steps: &[Step]) {
        for (i, step) in steps.iter().enumerate() {
            match &step.work {
                Work::Copy { from, to } => {
                    let pair = (draft.value_of[*from], draft.value_of[*to]);
                    // Copies that stand before a loop bring its state in.
                    let next = steps[i..].iter().find(|s| !matches!(s.work, Work::Copy { .. }));
                    match next.is_some_and(|s| matches!(s.work, Work::While { .. })) && draft.shareable.contains(&pair)
                    {
                        true => self.loop_copies.push(pair),
                        false => self.copies.push(pair),
                    }
                }
                Work::While { condition, body, .. } => {
                    self.collect(draft, condition);
                    self.collect(draft, body);
                }
                Work::Conditional { branches, .. } => branches.iter().for_each(|b| self.collect(draft, b)),
                work @ (Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Fill { .. }) => {
                    let accesses = work.accesses(&draft.plan);
                    for &to in &accesses.writes {
                        for &from in &accesses.reads {
                            let pair = (draft.value_of[from], draft.value_of[to]);
                            if draft.shareable.contains(&pair) {
                                self.updates.push(pair);
                            }
                        }
                    }
                }
            }
        }
    }
}
