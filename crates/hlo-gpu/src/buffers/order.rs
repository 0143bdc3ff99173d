//! Put steps into an order in which communication hides behind computation.
//!
//! The streams run beside each other, so a step may be issued as soon as what it needs is there. The order of a module's text
//! says little about that: JAX writes the gradients' sums in the order of the weights' names, and an update right behind its
//! sum. Steps between two loops or branches (at which both streams catch up) are ordered by a list scheduler over modelled
//! times: a stream that is free takes, of the steps whose inputs are there, the most urgent one. So collectives begin as early
//! as their inputs are ready, and what reads them comes as late as other work lasts.
//!
//! A step comes after all that it depends on: the writers of what it reads, and the readers and writers before it of what it
//! writes. It also stays behind the readers of state that it may overwrite in place. While a collective runs, steps of the other
//! stream that began before its end must not reuse its bytes, or they would wait for it: [`Held`] says how long.

use super::combine::combine;
use super::{Draft, frugal};
use crate::plan::model::StepTimes;
use crate::plan::{BufferId, PlanValueId, Step, Stream, Work};
use cranelift_entity::{EntitySet, SecondaryMap};
use hashbrown::HashMap;
use hlo_analysis::time::{Lane, Tasks};

/// How steps are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    /// What goes first.
    pub by: By,
    /// Whether a stream that is free takes the first step that is ready at that time; else it waits for the first step.
    pub is_timed: bool,
    /// Bytes up to which collectives become one call; 0 for none.
    pub combined_bytes: u64,
}

/// Which of two steps goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The one that is first in the text.
    Text,
    /// The one that is first in an order that takes little memory: see [`super::frugal`].
    Memory,
    /// The one that a collective reads from; of two such, or of two others, the one that is first in the frugal order.
    Feeding,
    /// The one from which the longest chain of work leads to the end.
    Chain,
}

/// For each collective (by the buffer of its first result) the last step of its list that is modelled to begin before it ends.
pub(crate) type Held = HashMap<BufferId, u32>;

/// Orders the steps of a draft, those of loops and branches by themselves.
pub(crate) fn order_steps(draft: &mut Draft, rule: Rule, times: &mut StepTimes) {
    let steps = std::mem::take(&mut draft.plan.steps);
    let readers = frugal::count_readers(draft, &steps);
    let mut overwritten: HashMap<PlanValueId, Vec<PlanValueId>> = HashMap::new();
    let mut is_state: EntitySet<PlanValueId> = EntitySet::new();
    find_state(draft, &steps, &mut is_state);
    for &(from, to) in draft.shareable.iter().filter(|(from, _)| is_state.contains(*from)) {
        overwritten.entry(to).or_default().push(from);
    }
    let mut ordering = Ordering { draft, rule, times, readers, overwritten, held: Held::new() };
    let (steps, held) = (ordering.list(steps), ordering.held);
    (draft.plan.steps, draft.held) = (steps, held);
}

struct Ordering<'d> {
    draft: &'d Draft,
    rule: Rule,
    times: &'d mut StepTimes,
    /// How often each value is still to be read.
    readers: SecondaryMap<PlanValueId, u32>,
    /// For each value the state that it may lie over.
    overwritten: HashMap<PlanValueId, Vec<PlanValueId>>,
    held: Held,
}

impl Ordering<'_> {
    fn list(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut ordered = Vec::with_capacity(steps.len());
        let mut part = Vec::new();
        for mut step in steps {
            if !step.work.is_barrier() {
                part.push(step);
                continue;
            }
            self.part(std::mem::take(&mut part), &mut ordered);
            match &mut step.work {
                Work::While { condition, body, .. } => {
                    *condition = self.list(std::mem::take(condition));
                    *body = self.list(std::mem::take(body));
                }
                Work::Conditional { branches, .. } => {
                    branches.iter_mut().for_each(|branch| *branch = self.list(std::mem::take(branch)));
                }
                Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
            }
            ordered.push(step);
        }
        self.part(part, &mut ordered);
        ordered
    }

    /// Moves steps without a loop or branch to the end of `ordered`.
    fn part(&mut self, steps: Vec<Step>, ordered: &mut Vec<Step>) {
        if steps.is_empty() {
            return;
        }
        let mut steps = steps;
        let n_collectives = steps.iter().filter(|step| matches!(step.work, Work::Collective(_))).count();
        if self.rule.combined_bytes > 0 && n_collectives > 1 {
            let mut readers = self.readers.clone();
            let needs = dependencies(self.draft, &self.overwritten, &steps);
            let (order, _) = self.order(&steps, &needs, &mut readers);
            steps = in_order(steps, order);
            let needs = dependencies(self.draft, &self.overwritten, &steps);
            steps = combine(self.draft, steps, &needs, self.rule.combined_bytes);
        }
        let needs = dependencies(self.draft, &self.overwritten, &steps);
        let mut readers = std::mem::take(&mut self.readers);
        let (order, durations) = self.order(&steps, &needs, &mut readers);
        self.readers = readers;
        let lanes: Vec<Lane> = steps.iter().map(|step| step.stream.lane()).collect();
        let tasks = Tasks { lanes: &lanes, durations_s: &durations, needs: &needs };
        hold(&steps, tasks, &order, ordered.len() as u32, &mut self.held);
        ordered.extend(in_order(steps, order));
    }

    /// The order of steps by the rule, and how long each lasts.
    fn order(
        &mut self,
        steps: &[Step],
        needs: &[Vec<usize>],
        readers: &mut SecondaryMap<PlanValueId, u32>,
    ) -> (Vec<usize>, Vec<f64>) {
        let durations: Vec<f64> = steps.iter().map(|step| self.times.work_s(&self.draft.plan, &step.work)).collect();
        let lanes: Vec<Lane> = steps.iter().map(|step| step.stream.lane()).collect();
        let tasks = Tasks { lanes: &lanes, durations_s: &durations, needs };
        let mut order: Vec<usize> = match self.rule.by {
            By::Text => (0..steps.len()).collect(),
            By::Memory => frugal::frugal_order(self.draft, steps, needs, readers),
            By::Feeding => tasks.feeding_first(frugal::frugal_order(self.draft, steps, needs, readers)),
            By::Chain => tasks.by_chain(),
        };
        if self.rule.is_timed {
            order = tasks.list_schedule(&order);
        }
        (order, durations)
    }
}

fn in_order(steps: Vec<Step>, order: Vec<usize>) -> Vec<Step> {
    let mut slots: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    order.into_iter().filter_map(|i| slots[i].take()).collect()
}

/// Adds the values that are updated in place if all goes well: parameters and what loops carry.
fn find_state(draft: &Draft, steps: &[Step], found: &mut EntitySet<PlanValueId>) {
    found.extend(draft.plan.parameters.iter().map(|&b| draft.value_of[b]));
    for step in steps {
        match &step.work {
            Work::While { body, carried, .. } => {
                found.extend(carried.iter().map(|&b| draft.value_of[b]));
                find_state(draft, body, found);
            }
            Work::Conditional { branches, .. } => branches.iter().for_each(|list| find_state(draft, list, found)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}

/// For each step the earlier steps that it must follow.
fn dependencies(
    draft: &Draft,
    overwritten: &HashMap<PlanValueId, Vec<PlanValueId>>,
    steps: &[Step],
) -> Vec<Vec<usize>> {
    let mut writer: HashMap<PlanValueId, usize> = HashMap::new();
    let mut readers: HashMap<PlanValueId, Vec<usize>> = HashMap::new();
    let mut needs = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        let accesses = step.work.accesses(&draft.plan);
        let values = |list: &[BufferId]| list.iter().map(|&b| draft.value_of[b]).collect::<Vec<PlanValueId>>();
        let (reads, writes) = (values(&accesses.reads), values(&accesses.writes));
        let mut own: Vec<usize> = Vec::new();
        own.extend(reads.iter().chain(&writes).filter_map(|value| writer.get(value)));
        for value in &writes {
            own.extend(readers.get(value).into_iter().flatten());
            for from in overwritten.get(value).into_iter().flatten() {
                own.extend(readers.get(from).into_iter().flatten());
            }
        }
        own.sort();
        own.dedup();
        needs.push(own);
        for &value in &writes {
            writer.insert(value, i);
            readers.remove(&value);
        }
        reads.iter().for_each(|&value| readers.entry(value).or_default().push(i));
    }
    needs
}

/// Finds how long collectives run if nothing but dependencies holds steps back.
fn hold(steps: &[Step], tasks: Tasks<'_>, order: &[usize], first: u32, held: &mut Held) {
    let spans = tasks.run(order);
    // Positions of compute steps, whose starts grow.
    let compute: Vec<usize> = (0..order.len()).filter(|&at| steps[order[at]].stream == Stream::Compute).collect();
    for (at, &i) in order.iter().enumerate() {
        let Work::Collective(call) = &steps[i].work else { continue };
        let Some(&(_, output)) = call.calls.first() else { continue };
        let n_begun = compute.partition_point(|&other| spans[order[other]].start_s < spans[i].end_s);
        let last = n_begun.checked_sub(1).map_or(at, |k| compute[k].max(at));
        held.insert(output, first + last as u32);
    }
}
