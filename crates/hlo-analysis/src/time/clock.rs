//! The predicted time of a module: kernels, collectives and copies of one device on lanes of their own.
//!
//! The module need not be fused: each computation's fusible groups count as one kernel each ([`crate::fusion`]). A kernel is
//! a task on the compute lane, a collective a task on the communication lane. What
//! `copy-start` begins is a task on the copy lane: a copy engine reads and writes the bytes once, beside kernels and collectives; so is what moves an array
//! to the memory of the host or back, at the speed of that link. A task begins when its operands are there
//! and its lane is free. Among the tasks that could begin, a lane takes one by a rule: the longest chain of tasks behind it,
//! the first in the text, or the first that a collective needs. Of the three rules the one that ends soonest counts.
//!
//! All lanes catch up with each other before and after a loop or a conditional. A loop takes its body's time as often as it
//! runs ([`Frequencies`]); a conditional the mean of its branches, weighted by how often each is taken.
//!
//! A called computation with one call site is priced in its caller's place. One with several call sites counts like a loop
//! that runs once, so inline calls first for a better figure. What `async-start` begins is priced as a call that stands there: its
//! kernels and collectives run on their lanes beside what does not need them.
//!
//! An update of a part of an array writes the part alone where the array's memory may be written over ([`InPlaceUpdates`]), and
//! the whole array where not. Initial values of loops and results that are not free to be written over are copied.
//!
//! **Not counted**: layout copies that a backend adds, the host's part in loops, custom calls beyond their bytes (then
//! [`ModuleTime::is_partial`]). Cost: `n log n` in the module's instructions and tuple leaves.

use super::kernel::{Updates, instruction_cost, region_cost};
use super::lanes::{Lane, TaskSpan, Tasks};
use super::members::{Members, exchanged_bytes, members_of};
use super::timeline::{Label, Recorder, Span};
use super::units::{Unit, Units};
use crate::frequency::Frequencies;
use crate::fusion::{StagedEdges, prepare_and_stage};
use crate::memory::InPlaceUpdates;
use crate::values::{Through, condition_and_body, handed_on, hands_on};
use cranelift_entity::{EntitySet, SecondaryMap};
use hashbrown::HashMap;
use hlo_cluster::CollectiveCost;
use hlo_ir::cost::Costs;
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::memory_space::leaves_on_host;
use hlo_ir::op::{Begun, CollectiveRule, CostRule, Flow};
use hlo_ir::view::is_view;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_mesh::{Exchange, KernelCost, KernelWork, Machine, Network, SizeMismatch};
use smallvec::SmallVec;

/// Predicted time of one execution of a module on each device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ModuleTime {
    /// Seconds from the beginning to the end.
    pub critical_path_s: f64,
    /// Seconds in which kernels run.
    pub compute_s: f64,
    /// Seconds in which collectives run.
    pub communication_s: f64,
    /// Whether a part is not known: a custom call's work, or an exchange with the host.
    pub is_partial: bool,
}

impl ModuleTime {
    /// Both one after the other.
    fn plus(self, other: ModuleTime) -> ModuleTime {
        ModuleTime {
            critical_path_s: self.critical_path_s + other.critical_path_s,
            compute_s: self.compute_s + other.compute_s,
            communication_s: self.communication_s + other.communication_s,
            is_partial: self.is_partial || other.is_partial,
        }
    }

    /// `n` times one after the other. What never runs takes nothing, even if one run takes infinitely long.
    fn times(self, n: f64) -> ModuleTime {
        if n == 0.0 {
            return ModuleTime::default();
        }
        ModuleTime {
            critical_path_s: self.critical_path_s * n,
            compute_s: self.compute_s * n,
            communication_s: self.communication_s * n,
            is_partial: self.is_partial,
        }
    }
}

/// Predicts the time of a verified module.
///
/// # Errors
/// The machine has another number of devices than the module runs on.
pub fn predict(module: &Module, frequencies: &Frequencies, machine: &Machine) -> Result<ModuleTime, SizeMismatch> {
    run(module, frequencies, machine, Issue::Freely, None).map(|(time, _)| time)
}

/// Predicts the time of a verified module whose text is its schedule, as XLA runs what it has scheduled: a device issues in the order of the text. A
/// collective or copy begins once all kernels before it have run. One that is not begun and ended apart
/// holds up what follows, one that is holds up what follows its end.
///
/// # Errors
/// As [`predict`].
pub fn predict_as_ordered(
    module: &Module,
    frequencies: &Frequencies,
    machine: &Machine,
) -> Result<ModuleTime, SizeMismatch> {
    run(module, frequencies, machine, Issue::AsOrdered, None).map(|(time, _)| time)
}

/// When tasks are issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Issue {
    /// As soon as their operands are there and their lane is free, in the best order that is known.
    #[default]
    Freely,
    /// One after the other, in the order of the text.
    AsOrdered,
}

/// Predicts the time of a verified module, and when each of its tasks runs. The last span ends with the critical path.
///
/// # Errors
/// As [`predict`].
pub fn predict_timeline(
    module: &Module,
    frequencies: &Frequencies,
    machine: &Machine,
) -> Result<(ModuleTime, Vec<Span>), SizeMismatch> {
    let (time, recorder) = run(module, frequencies, machine, Issue::Freely, Some(Recorder::default()))?;
    let spans = recorder.and_then(|(recorder, prepared)| Some(recorder.unfold(&prepared, prepared.entry()?)));
    Ok((time, spans.unwrap_or_default()))
}

/// When tasks begin, in seconds from the beginning of their computation: of a kernel the first instruction that it puts out, of
/// a loop, a conditional, a collective or a copy the instruction. Nothing is known of others.
///
/// # Errors
/// As [`predict`].
pub fn predict_starts(
    module: &Module,
    frequencies: &Frequencies,
    machine: &Machine,
) -> Result<SecondaryMap<InstId, Option<f64>>, SizeMismatch> {
    let (_, recorder) = run(module, frequencies, machine, Issue::Freely, Some(Recorder::default()))?;
    Ok(recorder.map(|(recorder, _)| recorder.starts_s()).unwrap_or_default())
}

/// The time, and what the recorder saw of the module as it was prepared for that.
fn run(
    module: &Module,
    frequencies: &Frequencies,
    machine: &Machine,
    issue: Issue,
    recorder: Option<Recorder>,
) -> Result<(ModuleTime, Option<(Recorder, Module)>), SizeMismatch> {
    let network = machine.network(module.n_devices().max(1))?;
    let stepwise = stepwise_computations(module);
    let mut module = module.clone();
    let mut staged: SecondaryMap<CompId, Option<StagedEdges>> = SecondaryMap::new();
    for &comp in module.computations().to_vec().iter().filter(|&&comp| stepwise.contains(comp)) {
        // A computation with a cycle stays as it is; no verified module has one.
        let prepared = prepare_and_stage(&mut module, comp);
        staged[comp] = prepared.ok().map(|(_, staged)| staged);
    }
    let prepared = module;
    let module = &prepared;
    let mut clock = Clock {
        module,
        frequencies,
        machine,
        network,
        costs: Costs::new(module),
        exchanges: HashMap::new(),
        in_place_of_call: computations_in_place_of_calls(module),
        effectful: module.effectful_computations(),
        updates: InPlaceUpdates::find(module),
        times: SecondaryMap::new(),
        staged,
    };
    let mut progress = Progress { recorder, issue, ..Progress::default() };
    for comp in module.post_order() {
        if stepwise.contains(comp) && !clock.in_place_of_call.contains(comp) {
            clock.times[comp] = clock.computation(comp, &mut progress);
        }
    }
    let time = module.entry().map(|entry| clock.times[entry]).unwrap_or_default();
    Ok((time, progress.recorder.map(|recorder| (recorder, prepared))))
}

/// Nested calls that are priced in their callers' place.
const MAX_CALL_DEPTH: u32 = 64;

/// Computations that are priced where they are called: those with one call site, which is a call or begins one.
fn computations_in_place_of_calls(module: &Module) -> EntitySet<CompId> {
    let mut n_sites: SecondaryMap<CompId, u32> = SecondaryMap::new();
    let order = module.post_order();
    let insts = order.iter().flat_map(|&comp| &module.comp(comp).insts);
    for &inst in insts.filter(|&&inst| !continues_call(module, inst)) {
        module.called(inst).into_iter().for_each(|callee| n_sites[callee] += 1);
    }
    let (mut found, mut depth) = (EntitySet::new(), SecondaryMap::<CompId, u32>::new());
    for &comp in order.iter().rev() {
        for &inst in module.comp(comp).insts.iter().filter(|&&inst| is_call(module, inst)) {
            for callee in module.called(inst) {
                depth[callee] = depth[comp] + 1;
                if n_sites[callee] == 1 && depth[callee] < MAX_CALL_DEPTH {
                    found.insert(callee);
                } else {
                    depth[callee] = 0;
                }
            }
        }
    }
    found
}

fn is_call(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let flow = instruction.opcode.row().flow;
    instruction.opcode != Opcode::Fusion && (flow == Flow::Call || flow == Flow::AsyncStart(Begun::Call))
}

/// Whether an instruction names a computation that an earlier one has begun.
fn continues_call(module: &Module, inst: InstId) -> bool {
    let flow = module.inst(inst).opcode.row().flow;
    flow == Flow::AsyncUpdate || flow == Flow::AsyncDone
}

/// The computations whose instructions are kernels and collectives, rather than the inside of a fusion or a reduction.
fn stepwise_computations(module: &Module) -> EntitySet<CompId> {
    let mut found = EntitySet::new();
    found.extend(module.entry());
    let calls = module.computations().iter().flat_map(|&comp| module.calls_of(comp));
    let is_stepwise = |opcode: Opcode| {
        let flow = opcode.row().flow;
        opcode != Opcode::Fusion
            && (flow.entry().is_some() || flow == Flow::Call || flow == Flow::AsyncStart(Begun::Call))
    };
    found.extend(calls.filter(|(opcode, _)| is_stepwise(*opcode)).map(|&(_, callee)| callee));
    found
}

struct Clock<'m> {
    module: &'m Module,
    frequencies: &'m Frequencies,
    machine: &'m Machine,
    network: Network,
    costs: Costs<'m>,
    exchanges: HashMap<(Exchange, Members), CollectiveCost>,
    in_place_of_call: EntitySet<CompId>,
    effectful: EntitySet<CompId>,
    updates: InPlaceUpdates,
    times: SecondaryMap<CompId, ModuleTime>,
    /// What was found out about a computation before it is priced.
    staged: SecondaryMap<CompId, Option<StagedEdges>>,
}

/// For each leaf of a value the task that computes it; `None` if it is there from the beginning.
type Makers = SmallVec<[Option<usize>; 1]>;

/// The tasks since all lanes last caught up with each other.
#[derive(Default)]
struct Section {
    lanes: Vec<Lane>,
    durations_s: Vec<f64>,
    needs: Vec<Vec<usize>>,
    labels: Vec<Label>,
    /// Tasks of earlier sections.
    n_before: usize,
}

/// What is known on the way through a computation and the calls in it.
#[derive(Default)]
struct Progress {
    /// By instruction of the whole module: one table serves all computations, one after the other.
    makers: SecondaryMap<InstId, Makers>,
    section: Section,
    time: ModuleTime,
    issue: Issue,
    /// Whether the walk is in what an `async-start` begins.
    is_begun: bool,
    /// Keeps when tasks run, where somebody asks.
    recorder: Option<Recorder>,
}

impl Progress {
    /// Adds a task that needs all leaves of `operands`; its number.
    fn task(&mut self, label: Label, lane: Lane, duration_s: f64, operands: impl Iterator<Item = InstId>) -> usize {
        let section = &mut self.section;
        let makers = operands.flat_map(|operand| self.makers[operand].iter().copied().flatten());
        let mut needs: Vec<usize> = makers.filter_map(|task| task.checked_sub(section.n_before)).collect();
        if self.issue == Issue::AsOrdered && lane != Lane::Compute {
            needs.extend(section.lanes.iter().rposition(|&earlier| earlier == Lane::Compute));
        }
        needs.sort();
        needs.dedup();
        section.lanes.push(lane);
        section.durations_s.push(duration_s);
        section.needs.push(needs);
        section.labels.push(label);
        section.n_before + section.lanes.len() - 1
    }

    /// Where tasks are issued in order: kernels that follow wait until `operands` are there.
    fn wait(&mut self, label: Label, operands: impl Iterator<Item = InstId>) {
        if self.issue == Issue::AsOrdered && !self.is_begun {
            self.task(label, Lane::Compute, 0.0, operands);
        }
    }

    /// Lets all lanes catch up with each other.
    fn catch_up(&mut self) {
        let n_before = self.section.n_before + self.section.lanes.len();
        let Section { lanes, durations_s, needs, labels, .. } =
            std::mem::replace(&mut self.section, Section { n_before, ..Section::default() });
        let tasks = Tasks { lanes: &lanes, durations_s: &durations_s, needs: &needs };
        let text: Vec<usize> = (0..lanes.len()).collect();
        let runs: SmallVec<[Vec<TaskSpan>; 3]> = match self.issue {
            Issue::AsOrdered => std::iter::once(tasks.run(&text)).collect(),
            Issue::Freely => [tasks.by_chain(), tasks.feeding_first(text.clone()), text]
                .iter()
                .map(|wanted| tasks.run(&tasks.list_schedule(wanted)))
                .collect(),
        };
        let ends_s: SmallVec<[f64; 3]> =
            runs.iter().map(|spans| spans.iter().map(|span| span.end_s).fold(0.0, f64::max)).collect();
        let least_s = ends_s.iter().copied().fold(f64::INFINITY, f64::min);
        if let Some(recorder) = &mut self.recorder {
            let taken = runs.iter().zip(ends_s).find(|(_, end_s)| *end_s == least_s);
            if let Some((spans, _)) = taken {
                recorder.tasks(self.time.critical_path_s, &labels, &lanes, spans);
            }
        }
        let busy =
            |lane: Lane| lanes.iter().zip(&durations_s).filter(|(l, _)| **l == lane).map(|(_, s)| s).sum::<f64>();
        self.time = self.time.plus(ModuleTime {
            critical_path_s: least_s,
            compute_s: busy(Lane::Compute),
            communication_s: busy(Lane::Communication),
            is_partial: false,
        });
    }

    /// Adds what takes `time` while all lanes wait; when it runs.
    fn wait_for(&mut self, time: ModuleTime) -> TaskSpan {
        let start_s = self.time.critical_path_s;
        self.time = self.time.plus(time);
        TaskSpan { start_s, end_s: self.time.critical_path_s }
    }
}

impl<'m> Clock<'m> {
    /// Adds copies of whole arrays of these bytes, one after the other: as one task, which needs all leaves of `operands`.
    fn copies(
        &self,
        label: Option<InstId>,
        copied_bytes: &[u64],
        operands: impl Iterator<Item = InstId>,
        progress: &mut Progress,
    ) {
        let Some(label) = label.filter(|_| !copied_bytes.is_empty()) else { return };
        let work_of = |&bytes: &u64| KernelWork { bytes: 2.0 * bytes as f64, arithmetic_s: 0.0 };
        let seconds = copied_bytes.iter().map(|bytes| self.machine.kernel_s(work_of(bytes))).sum();
        progress.task(Label::of(label), Lane::Compute, seconds, operands);
    }

    /// The time of one run of a computation.
    fn computation(&mut self, comp: CompId, progress: &mut Progress) -> ModuleTime {
        (progress.section, progress.time) = Default::default();
        for &param in &self.module.comp(comp).params {
            progress.makers[param] = self.nothing(param);
        }
        self.walk(comp, progress);
        let root = self.module.comp(comp).root.expand();
        self.copies(root, self.updates.copied_at_end(comp), root.into_iter(), progress);
        progress.catch_up();
        if let Some(recorder) = &mut progress.recorder {
            recorder.finish(comp, progress.time.critical_path_s);
        }
        progress.time
    }

    /// Makers of a value that is there from the beginning.
    fn nothing(&self, inst: InstId) -> Makers {
        SmallVec::from_elem(None, self.module.shape(inst).n_leaves())
    }

    /// Adds the tasks of a computation whose parameters have makers.
    fn walk(&mut self, comp: CompId, progress: &mut Progress) {
        let staged = self.staged[comp].take();
        for unit in Units::of(self.module, comp, staged).in_order(&self.effectful) {
            match unit {
                Unit::Kernel(group) => {
                    let cost = region_cost(&self.costs, &group.all, &group.outputs, Updates::AsFound(&self.updates));
                    let (inputs, outputs) = (group.inputs.iter().copied(), group.outputs.iter().copied());
                    self.kernel(&cost, group.all.len(), inputs, outputs, progress);
                }
                Unit::Inst(inst) => self.instruction(inst, progress),
            }
        }
    }

    fn kernel(
        &mut self,
        cost: &KernelCost,
        n_instructions: usize,
        inputs: impl Iterator<Item = InstId>,
        outputs: impl Iterator<Item = InstId>,
        progress: &mut Progress,
    ) {
        let outputs: SmallVec<[InstId; 4]> = outputs.collect();
        let is_empty = outputs.iter().all(|&output| self.module.shape(output).memory_bytes() == 0);
        let label = outputs.first().filter(|_| !is_empty).map(|&inst| Label { inst, n_instructions });
        let maker = label.map(|label| {
            let duration_s = self.machine.kernel_s(self.machine.work_of(cost));
            progress.task(label, Lane::Compute, duration_s, inputs)
        });
        for output in outputs {
            progress.makers[output] = SmallVec::from_elem(maker, self.module.shape(output).n_leaves());
        }
    }

    fn instruction(&mut self, inst: InstId, progress: &mut Progress) {
        let module = self.module;
        let instruction = module.inst(inst);
        let row = instruction.opcode.row();
        let operands = instruction.operands.iter().copied();
        match row.flow {
            Flow::Parameter => {}
            Flow::Constant | Flow::ReplicaId | Flow::PartitionId => progress.makers[inst] = self.nothing(inst),
            Flow::Tuple | Flow::GetTupleElement | Flow::AsyncUpdate => {
                progress.makers[inst] = self.handed_on(inst, progress);
            }
            Flow::AsyncDone => {
                progress.wait(Label::of(inst), operands);
                progress.makers[inst] = self.handed_on(inst, progress);
            }
            Flow::Identity if moves_bytes(module, inst) || !self.updates.copied_at(inst).is_empty() => {
                let cost = instruction_cost(&self.costs, inst, Updates::AsFound(&self.updates));
                self.kernel(&cost, 1, operands, std::iter::once(inst), progress);
            }
            Flow::Identity => progress.makers[inst] = self.handed_on(inst, progress),
            Flow::Call if is_call(module, inst) => self.call(inst, progress),
            Flow::While => {
                self.copies(Some(inst), self.updates.copied_at(inst), operands, progress);
                progress.catch_up();
                self.repeat(inst, progress);
                progress.makers[inst] = self.nothing(inst);
            }
            Flow::Conditional => {
                progress.catch_up();
                let shares = self.frequencies.branch_shares(inst).map(|shares| shares.shares.clone());
                let branches = module.called(inst);
                let start_s = progress.time.critical_path_s;
                for (slot, branch) in branches.into_iter().enumerate() {
                    let share = shares.as_ref().and_then(|shares| shares.get(slot).copied());
                    progress.time = progress.time.plus(self.times[branch].times(share.unwrap_or(1.0)));
                }
                if let Some(recorder) = &mut progress.recorder {
                    recorder.chooses(inst, TaskSpan { start_s, end_s: progress.time.critical_path_s });
                }
                progress.makers[inst] = self.nothing(inst);
            }
            Flow::AsyncStart(Begun::Collective(rule)) => self.collective(inst, rule, progress),
            Flow::Collective(rule) => {
                self.collective(inst, rule, progress);
                progress.wait(Label::of(inst), std::iter::once(inst));
            }
            Flow::AsyncStart(Begun::Call) => {
                let was_begun = std::mem::replace(&mut progress.is_begun, true);
                self.call(inst, progress);
                progress.is_begun = was_begun;
                // `(operands, results, context)`
                let results = std::mem::take(&mut progress.makers[inst]);
                let mut makers = self.handed_on(inst, progress);
                let place = module.shapes.element_leaves(instruction.shape, 1);
                makers.iter_mut().skip(place.start).zip(results).for_each(|(to, from)| *to = from);
                progress.makers[inst] = makers;
            }
            Flow::AsyncStart(Begun::Copy) => self.copy_begun(inst, progress),
            Flow::All if is_view(module, inst) => {
                let first = instruction.operands.first();
                progress.makers[inst] = first.map_or_else(|| self.nothing(inst), |&o| progress.makers[o].clone());
            }
            Flow::All if is_move(module, inst) => {
                let bytes = module.shape(inst).memory_bytes() as f64;
                let task = progress.task(Label::of(inst), Lane::Copy, self.machine.host_copy_s(bytes), operands);
                progress.makers[inst] = SmallVec::from_elem(Some(task), module.shape(inst).n_leaves());
            }
            Flow::Call | Flow::All => {
                progress.time.is_partial |= matches!(row.cost, CostRule::Unknown(_) | CostRule::Communication);
                if row.cost == CostRule::Free || is_token(module.shape(inst)) {
                    let task = operands.flat_map(|o| progress.makers[o].iter().copied()).flatten().max();
                    progress.makers[inst] = SmallVec::from_elem(task, module.shape(inst).n_leaves());
                } else {
                    let cost = instruction_cost(&self.costs, inst, Updates::AsFound(&self.updates));
                    self.kernel(&cost, 1, operands, std::iter::once(inst), progress);
                }
            }
        }
    }

    /// Makers of leaves that are leaves of operands; for other leaves the operands' last maker.
    fn handed_on(&self, inst: InstId, progress: &Progress) -> Makers {
        let module = self.module;
        let mut makers = self.nothing(inst);
        for run in handed_on(module, inst, Through::ALL) {
            let from = progress.makers[run.operand].get(run.in_operand());
            if let (Some(to), Some(from)) = (makers.get_mut(run.in_result()), from) {
                to.copy_from_slice(from);
            }
        }
        makers
    }

    fn call(&mut self, inst: InstId, progress: &mut Progress) {
        let module = self.module;
        let Some(&callee) = module.called(inst).first() else { return };
        if !self.in_place_of_call.contains(callee) {
            progress.catch_up();
            let span = progress.wait_for(self.times[callee]);
            if let Some(recorder) = &mut progress.recorder {
                recorder.calls(inst, span, callee);
            }
            progress.makers[inst] = self.nothing(inst);
            return;
        }
        // Operands become parameters in order, of what `async-start` begins as of a call.
        for (&param, &operand) in module.comp(callee).params.iter().zip(&module.inst(inst).operands) {
            progress.makers[param] = progress.makers[operand].clone();
        }
        self.walk(callee, progress);
        let root = module.comp(callee).root.expand();
        progress.makers[inst] = root.map_or_else(|| self.nothing(inst), |root| progress.makers[root].clone());
    }

    /// Adds the rounds of a loop.
    fn repeat(&self, inst: InstId, progress: &mut Progress) {
        let Some((condition, body)) = condition_and_body(self.module, inst) else { return };
        let n_trips = self.frequencies.trip_count(inst).map_or(1, |trips| trips.count) as f64;
        let time = self.times[condition].times(n_trips + 1.0).plus(self.times[body].times(n_trips));
        let span = progress.wait_for(time);
        if let Some(recorder) = &mut progress.recorder {
            recorder.repeats(inst, span, n_trips, [condition, body]);
        }
    }

    /// Adds the copy that `inst` begins: `(destination, source, context)`.
    fn copy_begun(&self, inst: InstId, progress: &mut Progress) {
        let module = self.module;
        let operands = module.inst(inst).operands.iter().copied();
        let bytes: f64 = operands.clone().map(|operand| module.shape(operand).memory_bytes() as f64).sum();
        let is_with_host = operands.clone().chain([inst]).any(|value| leaves_on_host(module, value).contains(&true));
        let seconds = match is_with_host {
            true => self.machine.host_copy_s(bytes),
            false => self.machine.kernel_s(KernelWork { bytes: 2.0 * bytes, arithmetic_s: 0.0 }),
        };
        let task = progress.task(Label::of(inst), Lane::Copy, seconds, operands);
        let mut makers: Makers = SmallVec::from_elem(Some(task), module.shape(inst).n_leaves());
        for run in handed_on(module, inst, Through::ALL) {
            let from = progress.makers[run.operand].get(run.in_operand());
            if let (Some(to), Some(from)) = (makers.get_mut(run.in_result()), from) {
                to.copy_from_slice(from);
            }
        }
        progress.makers[inst] = makers;
    }

    /// Adds the task of a collective, whether it waits for its outcome or begins.
    fn collective(&mut self, inst: InstId, rule: CollectiveRule, progress: &mut Progress) {
        let module = self.module;
        let exchange = Exchange::of(rule);
        let members = members_of(module, inst, exchange);
        let is_alone = exchange != Exchange::Permute && members.groups.iter().all(|group| group.len() <= 1);
        let operands = module.inst(inst).operands.iter().copied();
        if is_alone {
            let task = operands.flat_map(|o| progress.makers[o].iter().copied()).flatten().max();
            progress.makers[inst] = SmallVec::from_elem(task, module.shape(inst).n_leaves());
            return;
        }
        let network = &self.network;
        let cost = self
            .exchanges
            .entry((exchange, members))
            .or_insert_with_key(|(exchange, members)| network.exchange(*exchange, &members.groups, &members.pairs));
        let seconds = cost.seconds(exchanged_bytes(module, inst, rule));
        let task = progress.task(Label::of(inst), Lane::Communication, seconds, operands);
        progress.makers[inst] = SmallVec::from_elem(Some(task), module.shape(inst).n_leaves());
    }
}

/// Whether an instruction moves an array to the memory of the host or back.
fn is_move(module: &Module, inst: InstId) -> bool {
    matches!(CustomTarget::of(&module.inst(inst).attrs), Some(CustomTarget::Move(_)))
}

fn is_token(shape: &Shape) -> bool {
    shape.memory_bytes() == 0 && shape.as_array().is_none()
}

/// Whether an instruction is a copy that changes the order of the bytes.
fn moves_bytes(module: &Module, inst: InstId) -> bool {
    if hands_on(module, inst, Through::MARKERS) {
        return false;
    }
    let operand = module.inst(inst).operands.first().and_then(|&operand| module.shape(operand).as_array());
    match (operand, module.shape(inst).as_array()) {
        (Some(from), Some(to)) => !from.is_same_order(to),
        (None, _) | (_, None) => false,
    }
}
