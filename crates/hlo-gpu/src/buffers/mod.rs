//! Where every value lies, and what every step waits for.
//!
//! 0. [`order`]: steps in an order in which communication hides behind computation.
//! 1. [`liveness`]: when each value lives, as intervals on the line of all steps.
//! 2. [`coalesce`]: values that may lie in one place do: state and its update, both ends of a copy, a loop's carried values,
//!    an operand that a kernel overwrites as it reads it. Copies inside one place go away.
//! 3. [`place`]: donated parameters and outputs are blocks of their own, free while nothing lives there; the rest goes to
//!    the arena, best fit.
//! 4. [`waits`]: a step waits for the last step of the other stream that touched the same bytes.

pub(crate) mod coalesce;
pub(crate) mod combine;
pub(crate) mod frugal;
pub(crate) mod liveness;
pub(crate) mod order;
pub(crate) mod place;
pub(crate) mod waits;

use crate::plan::model::StepTimes;
use crate::plan::{BufferId, ConstantId, FasterOrder, Place, Plan, PlanBuffer, PlanValueId, Step, Work};
use cranelift_entity::PrimaryMap;
use hashbrown::{HashMap, HashSet};
use hlo_ir::ArrayShape;
use hlo_pass::threads::in_threads;
use order::{By, Held, Rule};
use std::sync::OnceLock;

/// What a value is, before it has a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// An ENTRY parameter's leaf.
    Parameter {
        /// Which.
        leaf: u32,
        /// Whether it may be overwritten.
        is_donated: bool,
    },
    /// A constant.
    Constant(ConstantId),
    /// This device's numbers.
    DeviceIds,
    /// What steps compute.
    Temporary,
}

/// A value's size and kind.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// Bytes of the whole.
    pub bytes: u64,
    /// What it is.
    pub home: Home,
}

/// A plan whose buffers have no place yet: offsets are distances from the beginning of their value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    /// The plan so far.
    pub plan: Plan,
    /// The values.
    pub values: PrimaryMap<PlanValueId, Value>,
    /// The value of each buffer.
    pub value_of: PrimaryMap<BufferId, PlanValueId>,
    /// Pairs (read, written): the step that writes the second may do so over the first.
    pub shareable: HashSet<(PlanValueId, PlanValueId)>,
    /// How long what collectives use must stay untouched after they are issued.
    pub held: Held,
}

impl Draft {
    /// A draft of an empty plan.
    pub(crate) fn new(plan: Plan) -> Draft {
        Draft { plan, ..Draft::default() }
    }

    /// A new value and the buffer that is the whole of it.
    pub(crate) fn add_value(&mut self, name: &str, shape: ArrayShape, home: Home) -> BufferId {
        let value = self.values.push(Value { bytes: shape.memory_bytes(), home });
        self.add_view_of(name, shape, value, 0)
    }

    /// Another view of a buffer's value, `offset_bytes` after the buffer's beginning.
    pub(crate) fn add_view(&mut self, name: &str, shape: ArrayShape, buffer: BufferId, offset_bytes: u64) -> BufferId {
        let offset = self.plan.buffers[buffer].offset_bytes + offset_bytes;
        self.add_view_of(name, shape, self.value_of[buffer], offset)
    }

    /// A view of a value.
    pub(crate) fn add_view_of(
        &mut self,
        name: &str,
        shape: ArrayShape,
        value: PlanValueId,
        offset_bytes: u64,
    ) -> BufferId {
        self.value_of.push(value);
        let place = Place::Arena;
        self.plan.buffers.push(PlanBuffer {
            name: name.into(),
            shape,
            place,
            offset_bytes,
            value,
            value_offset_bytes: offset_bytes,
        })
    }

    /// The step that writes `to` may do so over `from`, if nothing else reads it later.
    pub(crate) fn allow_sharing(&mut self, from: BufferId, to: BufferId) {
        self.shareable.insert((self.value_of[from], self.value_of[to]));
    }

    /// What a buffer's value is.
    pub(crate) fn home_of(&self, buffer: BufferId) -> Home {
        self.values[self.value_of[buffer]].home
    }

    /// Whether a buffer can be an output as it is: a whole value, and not memory that is only read.
    pub(crate) fn may_be_output(&self, buffer: BufferId) -> bool {
        let is_whole = self.plan.buffers[buffer].offset_bytes == 0
            && self.plan.buffers[buffer].shape.memory_bytes() == self.values[self.value_of[buffer]].bytes;
        is_whole
            && match self.home_of(buffer) {
                Home::Parameter { is_donated, .. } => is_donated,
                Home::Temporary => true,
                Home::Constant(_) | Home::DeviceIds => false,
            }
    }
}

/// Gives every value of a draft its place, takes superfluous copies away, and says what each step waits for; the steps stay in
/// their order. Outputs share memory with the parameters whose next values they are if they can.
pub(crate) fn assign(mut draft: Draft) -> Plan {
    let lives = liveness::find_lives(&draft);
    let classes = coalesce::share(&draft, &lives);
    place::place(&mut draft, &classes);
    let Draft { mut plan, .. } = draft;
    let mut steps = std::mem::take(&mut plan.steps);
    let mut renamed = Renamed::default();
    remove_idle_copies(&plan, &mut steps, &mut renamed);
    plan.buffers.values_mut().for_each(|buffer| buffer.value = renamed.name_of(buffer.value));
    waits::add_waits(&plan, &mut steps);
    plan.steps = steps;
    plan
}

/// The orders that [`assign_fastest`] tries, the module's own first.
pub(crate) const ORDERS: [Rule; 10] = [
    Rule { by: By::Text, is_timed: false, combined_bytes: 0 },
    Rule { by: By::Text, is_timed: true, combined_bytes: 0 },
    Rule { by: By::Memory, is_timed: false, combined_bytes: 0 },
    Rule { by: By::Memory, is_timed: true, combined_bytes: 0 },
    Rule { by: By::Feeding, is_timed: true, combined_bytes: 0 },
    Rule { by: By::Chain, is_timed: true, combined_bytes: 0 },
    Rule { by: By::Feeding, is_timed: true, combined_bytes: 2 << 20 },
    Rule { by: By::Chain, is_timed: true, combined_bytes: 512 << 10 },
    Rule { by: By::Chain, is_timed: true, combined_bytes: 2 << 20 },
    Rule { by: By::Chain, is_timed: true, combined_bytes: 16 << 20 },
];

/// Times that differ by less than this fraction are alike: the model is not that good, and each launch takes time of the host.
const ALIKE: f64 = 0.01;

/// A plan that could be taken.
struct Candidate {
    time_s: f64,
    peak_bytes: u64,
    n_launches: u64,
    plan: Plan,
}

/// Like [`assign`], with steps in one of [`ORDERS`]: of those whose modelled time is least, or almost so, the one of the fewest launches. Where
/// the peak of memory is above the least one by more than `slack` (a fraction), a share more of it counts as a share more of time.
pub(crate) fn assign_fastest(mut draft: Draft, slack: f64) -> Plan {
    // Sources and elements are long, and nothing here reads them.
    let constants = std::mem::take(&mut draft.plan.constants);
    let sources: Vec<String> = draft.plan.kernels.values_mut().map(|k| std::mem::take(&mut k.source)).collect();
    let has_several = n_collectives(&draft.plan.steps) > 1;
    let rules: Vec<Rule> = ORDERS.into_iter().filter(|rule| has_several || rule.combined_bytes == 0).collect();
    let candidate = |rule: Rule| {
        let mut times = StepTimes::for_plan(&draft.plan);
        let mut ordered = draft.clone();
        order::order_steps(&mut ordered, rule, &mut times);
        let plan = assign(ordered);
        let (time_s, peak_bytes) = (times.plan_s(&plan), plan.memory().peak_bytes());
        Candidate { time_s, peak_bytes, n_launches: n_launches(&plan.steps), plan }
    };
    let slots: Vec<OnceLock<Candidate>> = rules.iter().map(|_| OnceLock::new()).collect();
    in_threads(
        (0..rules.len()).collect(),
        |&k| k,
        |k| {
            let _ = slots[k].set(candidate(rules[k]));
            Vec::new()
        },
    );
    let mut candidates: Vec<Candidate> = slots.into_iter().filter_map(OnceLock::into_inner).collect();
    let apart_s = apart_s(&rules, &candidates, slack);
    let written_s = candidates.first().map(|candidate| candidate.time_s);
    // The same durations in another order have another sum.
    let rounded = |candidate: &Candidate| (candidate.time_s / written_s.unwrap_or(1.0) * 1e9).round();
    let faster =
        |a: &Candidate, b: &Candidate| rounded(a).total_cmp(&rounded(b)).then_with(|| a.peak_bytes.cmp(&b.peak_bytes));
    let fastest =
        candidates.iter().min_by(|a, b| faster(a, b)).map(|best| (rounded(best), best.time_s, best.peak_bytes));
    let least_bytes = candidates.iter().map(|candidate| candidate.peak_bytes).min().unwrap_or(0) as f64;
    let cost = |candidate: &Candidate| {
        candidate.time_s * (candidate.peak_bytes as f64 / (least_bytes * (1.0 + slack)).max(1.0)).max(1.0)
    };
    let least = candidates.iter().map(cost).min_by(f64::total_cmp).unwrap_or(0.0);
    candidates.retain(|candidate| cost(candidate) <= least * (1.0 + ALIKE));
    let best = candidates.into_iter().min_by(|a, b| a.n_launches.cmp(&b.n_launches).then_with(|| faster(a, b)));
    let Some(best) = best else { return Plan::default() };
    let is_for_memory = |&(s, _, peak_bytes): &(f64, f64, u64)| s < rounded(&best) && peak_bytes > best.peak_bytes;
    let faster_order = fastest
        .filter(is_for_memory)
        .map(|(_, time_s, peak_bytes)| FasterOrder { time_s, more_bytes: peak_bytes - best.peak_bytes });
    let mut plan = best.plan;
    plan.faster_order = faster_order;
    plan.apart_s = apart_s;
    plan.constants = constants;
    plan.kernels.values_mut().zip(sources).for_each(|(kernel, source)| kernel.source = source);
    plan.written_order_s = written_s;
    plan
}

/// The least times of the orders that combine no collectives: of those that take little memory, and of all.
fn apart_s(rules: &[Rule], candidates: &[Candidate], slack: f64) -> Option<[f64; 2]> {
    let apart = || candidates.iter().zip(rules).filter(|(_, rule)| rule.combined_bytes == 0).map(|(one, _)| one);
    let most_bytes = apart().map(|one| one.peak_bytes).min()? as f64 * (1.0 + slack);
    let least = |times: &mut dyn Iterator<Item = f64>| times.min_by(f64::total_cmp);
    let in_little = least(&mut apart().filter(|one| one.peak_bytes as f64 <= most_bytes).map(|one| one.time_s))?;
    Some([in_little, least(&mut apart().map(|one| one.time_s))?])
}

/// Collectives among steps, those of loops and branches too.
fn n_collectives(steps: &[Step]) -> usize {
    let of = |step: &Step| match &step.work {
        Work::Collective(_) => 1,
        Work::While { condition, body, .. } => n_collectives(condition) + n_collectives(body),
        Work::Conditional { branches, .. } => branches.iter().map(|branch| n_collectives(branch)).sum(),
        Work::Launch { .. } | Work::Gemm(_) | Work::Copy { .. } | Work::Fill { .. } => 0,
    };
    steps.iter().map(of).sum()
}

/// What the host launches in a run, of branches the most.
fn n_launches(steps: &[Step]) -> u64 {
    let of = |step: &Step| match &step.work {
        Work::While { condition, body, n_trips, .. } => {
            let round = n_launches(condition).saturating_add(n_launches(body));
            round.saturating_mul(*n_trips).saturating_add(n_launches(condition))
        }
        Work::Conditional { branches, .. } => branches.iter().map(|branch| n_launches(branch)).max().unwrap_or(0),
        Work::Collective(_) | Work::Launch { .. } | Work::Gemm(_) | Work::Copy { .. } | Work::Fill { .. } => 1,
    };
    steps.iter().map(of).fold(0, u64::saturating_add)
}

/// Takes away copies of a buffer to itself: both values are one from then on.
fn remove_idle_copies(plan: &Plan, steps: &mut Vec<Step>, renamed: &mut Renamed) {
    let at = |b: BufferId| (plan.buffers[b].place, plan.buffers[b].offset_bytes);
    steps.retain(|step| {
        let Work::Copy { from, to } = step.work else { return true };
        if at(from) == at(to) {
            renamed.unite(plan.buffers[from].value, plan.buffers[to].value);
        }
        at(from) != at(to)
    });
    for step in steps {
        match &mut step.work {
            Work::While { condition, body, .. } => {
                remove_idle_copies(plan, condition, renamed);
                remove_idle_copies(plan, body, renamed);
            }
            Work::Conditional { branches, .. } => {
                branches.iter_mut().for_each(|b| remove_idle_copies(plan, b, renamed))
            }
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}

/// Values that became one, each with another of its kind; one of them stands for all.
#[derive(Default)]
struct Renamed(HashMap<PlanValueId, PlanValueId>);

impl Renamed {
    fn name_of(&mut self, value: PlanValueId) -> PlanValueId {
        let mut root = value;
        while let Some(&next) = self.0.get(&root) {
            root = next;
        }
        let mut at = value;
        while let Some(next) = self.0.insert(at, root).filter(|_| at != root) {
            at = next;
        }
        self.0.remove(&root);
        root
    }

    fn unite(&mut self, a: PlanValueId, b: PlanValueId) {
        let (a, b) = (self.name_of(a), self.name_of(b));
        if a != b {
            self.0.insert(a.max(b), a.min(b));
        }
    }
}
