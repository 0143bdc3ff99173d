//! Shard the update of replicated weights over the devices that all-reduce their gradients.
//!
//! Before, every device sums the whole gradient and updates the whole weight:
//! ```text
//! %g = f32[784,512] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %s = f32[784,512] multiply(%g, %rate)
//! %w1 = f32[784,512] add(%w, %s)
//! ```
//! after, it sums and updates a quarter, and all devices gather the result:
//! ```text
//! %g = f32[196,512] reduce-scatter(%local), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
//! %s = f32[196,512] multiply(%g, %rate.shard)
//! %w.shard = f32[196,512] dynamic-slice(%w, %shard_start, %zero), dynamic_slice_sizes={196,512}
//! %w1.shard = f32[196,512] add(%w.shard, %s)
//! %w1 = f32[784,512] all-gather(%w1.shard), replica_groups={{0,1,2,3}}, dimensions={0}
//! ```
//! The sample `ir-samples/passes/shard-weight-update/sgd.hlo` runs this.
//!
//! **Why.** The update reads and writes weights and optimizer state several times over and is the same on every device:
//! 1/n of it is enough. An all-reduce moves as much as a reduce-scatter and an all-gather, so the weight costs no extra traffic.
//! In a training loop the state stays in shards from step to step, which also saves its memory.
//!
//! A computation that is called from several places is copied for those calls that take part in an update in their own way.
//!
//! **What it does not do.** Tuple all-reduces (split them first) and asynchronous ones; computations called from so many places
//! that copies would double the module (inline them first). Formats that reinterpret bytes (bitcasts) are not built.
//!
//! **Interface.** `state=replicated` keeps the module's signature. Otherwise state crosses the entry in shards, and the pass makes
//! two more modules that convert it, and a manifest ([`crate::interface`]). With `state=optimizer` and `state=gradients` that is
//! the optimizer's state alone ([`hlo_analysis::optimizer_state`]): weights and all else come and go as before.
//!
//! **Algorithm.** 0. [`hlo_spmd::CallSiteCopies`]: a computation of its own for each call site, and back after step 6 where copies came out
//! alike. 1. [`crate::find`] array all-reduces by plain addition over all devices; each set of groups is a problem of its
//! own. 2. [`crate::values`]: array leaves with tuples looked through; a loop's carry is one value. 3. [`crate::format`](mod@crate::format):
//! from each gradient a region of values that meet in ops that can be cut, in one format. 4. [`crate::problem`]: the cost of every
//! placement as a sum of terms. 5. [`crate::placement`]: the cheapest one, a minimum cut. 6. [`crate::rewrite`].
//! Near-linear in the instructions.
//!
//! **Requires** a partitioned or replicated module whose parameters say which are replicated (`sharding=`,
//! `parameter_replication`, or the user). **Ensures** the same results on every device up to the order of summation
//! in reduce-scatter and in reductions of shards. **Errors**: none on a verified module; what does not fit is left.
//!
//! **References.** Xu et al. 2020, *Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training*, §3.1
//! (which ops), §3.2 (where), §4.1 (formats), §4.2 (loops). They place collectives greedily; we take the factors of ops from the op
//! table and an exact minimum cut.

use crate::carried::cut_carried;
use crate::context::{ShardingContext, StateCuts};
use crate::error::{GradientRefusal, WusError};
use crate::explain::{self, Unequal};
use crate::find::{LeftGradient, find_gradients};
use crate::interface::{Interface, RepeatedWork};
use crate::machine::{Times, times};
use crate::own_slices::cut_own_slices;
use crate::pairs::{Pair, aliased, joined, parse_pairs};
use crate::problem::{Problem, Rate, Terms};
use crate::rewrite::Rewriter;
use crate::tables::{IndexMap, IndexSet};
use crate::zero::{Pins, StateChoice, StateForm, StateUnit, UnitForm, parse_pins};
use cranelift_entity::SecondaryMap;
use hlo_analysis::Preserved;
use hlo_analysis::optimizer_state::{find_roles, find_summed};
use hlo_analysis::values::{InstLeaf, SharedCallees, Through, ValueId, Values};
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::diag::Entity;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Artifact, Decision, LateText, MemoryChange, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{CallSiteCopies, Grouping, groupings};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "shard-weight-update",
    help: "compute the update of replicated weights in shards: reduce-scatter, update, all-gather",
    options: OPTIONS,
    build: |options| Ok(Box::new(ShardWeightUpdate::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "min-bytes",
        kind: OptionKind::Int,
        default: "1KiB",
        help: "leave gradients smaller than this: two collectives cost more than the update saves",
    },
    OptionInfo {
        name: "profit",
        kind: OptionKind::Word(&["auto", "always"]),
        default: "always",
        help: "auto: shard what is predicted to be faster; always: shard every update that has state",
    },
    OptionInfo {
        name: "state",
        kind: OptionKind::Word(&["replicated", "optimizer", "gradients", "parameters", "auto"]),
        default: "replicated",
        help: "what lies in shards between steps: replicated: nothing, the signature stays; else -o names a directory: optimizer: its state (ZeRO-1), gradients: during the step too (ZeRO-2), parameters: weights too (ZeRO-3), auto: weights where that is cheaper",
    },
    OptionInfo {
        name: "pins",
        kind: OptionKind::Text,
        default: "",
        help: "with state=: parameters that are in shards or whole, by flat number, as [0:sharded,3:whole]",
    },
    OptionInfo {
        name: "state-pairs",
        kind: OptionKind::Text,
        default: "",
        help: "with state=: which output is the next value of which parameter, as [PARAM:OUTPUT,…]",
    },
    OptionInfo {
        name: "memory-weight",
        kind: OptionKind::Float,
        default: "0",
        help: "picoseconds that one byte of state kept in a loop is worth",
    },
    OptionInfo {
        name: "partial",
        kind: OptionKind::Word(&["auto", "no"]),
        default: "auto",
        help: "auto: cut within a level of the cluster and sum across where that is cheaper; no: over all devices",
    },
    OptionInfo {
        name: "cuts",
        kind: OptionKind::Word(&["any", "even", "padded"]),
        default: "any",
        help: "even: along a dim that is a multiple of the shards; padded: elsewhere state of 16 KiB that is no weight by up to 2 % of padding; any: however",
    },
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct ShardWeightUpdate {
    min_bytes: u64,
    is_forced: bool,
    is_partial: bool,
    cuts: StateCuts,
    /// What lies in shards between steps, if anything does.
    pub(crate) state: Option<StateForm>,
    pins: IndexMap<StateUnit, bool>,
    state_pairs: Vec<Pair>,
    ps_per_resident_byte: f64,
}

/// What one rewrite of a module did.
#[derive(Default)]
pub(crate) struct Sharded {
    pub is_changed: bool,
    /// Whether all that was to be fixed is so.
    pub is_possible: bool,
    /// What is saved against everything whole, in picoseconds, without the price of parameters' bytes.
    pub gain_ps: f64,
    /// What everything whole takes, in picoseconds.
    pub whole_ps: f64,
    /// How far the gain may be from the best, since prices are rounded.
    pub rounding_ps: f64,
    /// Problems that were solved.
    n_solved: usize,
    /// Sets of groups over which gradients of state are summed.
    pub n_problems: usize,
    /// What may be in shards.
    pub state: IndexMap<StateUnit, UnitForm>,
    /// The parameters beside these that could be cut at the interface alone.
    met: IndexSet<StateUnit>,
}

impl Sharded {
    /// Adds a problem that was solved.
    fn add(&mut self, problem: &Problem, gain_ps: f64, state: IndexMap<StateUnit, UnitForm>, choice: &StateChoice) {
        let price = |counts: fn(&UnitForm) -> bool| -> f64 {
            let counted = state.iter().filter(|(_, form)| counts(form));
            counted.map(|(unit, form)| choice.ps_per_byte(unit) * form.saved_bytes).sum()
        };
        let (all_ps, saved_ps) = (price(|_| true), price(|form| form.is_sharded));
        self.gain_ps += gain_ps - saved_ps;
        self.whole_ps += problem.whole_ps() - all_ps;
        self.n_solved += 1;
        self.n_problems += usize::from(!state.is_empty());
        self.state.extend(state);
    }
}

/// The cheapest placement for one grouping of the devices.
struct Planned<'w, 'm> {
    gain_ps: f64,
    way: &'w Grouping,
    times: Times,
    context: ShardingContext<'m>,
    problem: Problem,
    left: Vec<(ValueId, GradientRefusal)>,
}

impl ShardWeightUpdate {
    fn new(options: &Options) -> Result<ShardWeightUpdate, WusError> {
        let state = StateForm::named(options.text("state"));
        let (pins, state_pairs) = (parse_pins(options.text("pins"))?, parse_pairs(options.text("state-pairs"))?);
        if state.is_none() {
            let given = [("pins", !pins.is_empty()), ("state-pairs", !state_pairs.is_empty())];
            if let Some(&(option, _)) = given.iter().find(|(_, is_given)| *is_given) {
                return Err(WusError::ReplicatedState { option });
            }
        }
        Ok(ShardWeightUpdate {
            min_bytes: options.int("min-bytes").max(0) as u64,
            is_forced: options.text("profit") == "always",
            state,
            is_partial: options.text("partial") == "auto",
            cuts: match options.text("cuts") {
                "even" => StateCuts::Even,
                "padded" => StateCuts::Padded,
                _ => StateCuts::Any,
            },
            pins,
            state_pairs,
            ps_per_resident_byte: options.float("memory-weight").max(0.0),
        })
    }

    /// Solves the problem of one set of groups and rewrites the module.
    fn solve(
        &self,
        module: &mut Module,
        (groups, gradients): (&[Vec<u32>], &[InstId]),
        interface: Option<&mut Interface>,
        choice: &StateChoice,
        done: &mut Sharded,
        cx: &mut PassCx<'_>,
    ) -> Result<(), PassError> {
        let before = module.clone();
        let replication = cx.analyses.replication(&before);
        let params = cx.analyses.params.clone();
        let values = cx.analyses.values(&before, Through::MARKERS, SharedCallees::Opaque);
        let entity = Entity::Inst(gradients[0]);
        let rates = self.rates(&before, &values, cx);
        let (known, hidden): (Vec<InstId>, Vec<InstId>) = gradients.iter().partition(|&&g| values.of(g).is_some());
        for gradient in hidden {
            cx.report.decisions.push(explain::left(&before, gradient, GradientRefusal::SharedComputation));
        }
        let seeds: IndexSet<_> = known.iter().filter_map(|&g| values.of(g)).collect();
        let ways = match self.is_partial {
            true => groupings(cx.target.machine.cluster(), groups),
            false => groupings(None, groups),
        };
        let network = cx.target.machine.network(before.n_devices());
        let network = network.map_err(|e| PassError::about("machine-size", entity, e.to_string()))?;
        let mut best: Option<Planned<'_, '_>> = None;
        for way in &ways {
            let times = times(&cx.target.machine, &network, groups, way);
            let mut context = ShardingContext::new(&before, &values, &replication, &way.shard, seeds.clone());
            (context.cuts, context.deadline) = (self.cuts, cx.deadline);
            let terms = Terms {
                times: &times,
                rates: &rates,
                is_forced: self.is_forced(cx) || choice.form.is_some(),
                ps_per_resident_byte: self.ps_per_resident_byte,
                keeps_weights: choice.form.or(self.state).and_then(StateForm::keeps_weights),
                scatters_gradients: self.state != Some(StateForm::Optimizer),
                is_of_optimizer: self.state.is_some_and(StateForm::is_of_optimizer),
                choice,
                problem: done.n_solved,
                min_bytes: self.min_bytes,
                state_pairs: interface.as_ref().map(|interface| interface.state_pairs.clone()),
            };
            let (problem, left) = Problem::solve(&mut context, &terms).map_err(|e| e.about(entity))?;
            let gain = problem.gain_ps();
            done.rounding_ps = done.rounding_ps.max(problem.costs.terms.len() as f64);
            let is_better =
                |known: &Planned<'_, '_>| (problem.is_possible, gain) > (known.problem.is_possible, known.gain_ps);
            if best.as_ref().is_none_or(is_better) {
                best = Some(Planned { gain_ps: gain, way, times, context, problem, left });
            }
        }
        let Some(Planned { gain_ps, way, times, mut context, problem, left }) = best else { return Ok(()) };
        cx.check_deadline()?;
        done.add(&problem, gain_ps, problem.state(&context, done.n_solved), choice);
        if !problem.is_possible {
            done.is_possible = false;
            return Ok(());
        }
        let unequal = Unequal::new(&before, &params, &replication);
        for (value, reason) in left {
            let inst = values.inst(value);
            let is_unequal = reason == GradientRefusal::NotReplicated;
            let why = if is_unequal { unequal.why(InstLeaf::new(inst, 0), &way.shard) } else { String::new() };
            cx.report.decisions.push(explain::left(&before, inst, format_args!("{reason}{why}")));
        }
        let sharded: Vec<usize> = (0..problem.regions.len()).filter(|&c| problem.is_sharded(c)).collect();
        let is_changed = !sharded.is_empty();
        let mut emitted = Default::default();
        if is_changed {
            emitted = Rewriter::new(module, &mut context, &problem, &way.across)
                .emit()
                .map_err(|error| error.about(entity))?;
        }
        if let Some(interface) = interface {
            interface.record(&context, &problem);
            if let Some(roles) = &problem.roles {
                interface.set_summed(&find_summed(&before, &values, &interface.state_pairs, roles));
            }
            interface.declare(module);
            // What the user said of a parameter no longer holds for its shards.
            let cut = interface.params.iter().enumerate().filter(|(_, leaf)| leaf.cut.is_some());
            cut.for_each(|(number, _)| cx.analyses.params.forget(number));
        }
        if is_changed {
            cx.analyses.invalidate(Preserved::NONE);
        }
        let emitted_for = explain::by_region(&context, &problem, &emitted);
        for &region in &sharded {
            let mut decision = explain::sharded(&context, &problem, region, module, &emitted_for[region], &times);
            if let Some(level) = &way.level {
                decision.reason += &format!("; cut within each {level}, summed across: cheaper than over all devices");
            }
            cx.report.decisions.push(decision);
        }
        if sharded.len() < problem.regions.len() {
            let forced = if self.is_forced(cx) { problem.in_shards.clone() } else { problem.forced(cx.deadline)?.0 };
            for region in (0..problem.regions.len()).filter(|c| !sharded.contains(c)) {
                let reason = explain::whole(&context, &problem, region, &forced, &unequal);
                let gradients = problem.regions[region].gradients.iter();
                let all_reduces = gradients.map(|&v| values.inst(v));
                cx.report.decisions.extend(all_reduces.map(|inst| explain::left(&before, inst, &reason)));
            }
        }
        if is_changed {
            let often = |comp| rates[comp].map_or(0.0, |rate| rate.frequency);
            cx.report.decisions.extend(explain::computed_whole(&mut context, &problem, often));
        }
        cx.report.count("updates-sharded", sharded.len() as u64);
        if problem.n_unsummed > 0 {
            cx.report.count("gradients-unsummed", problem.n_unsummed as u64);
        }
        cx.report.count("reduce-scatters", emitted.scattered.len() as u64);
        cx.report.count("all-gathers", emitted.gathered.len() as u64);
        cx.report.count("partial-all-reduces", emitted.combined.len() as u64);
        done.is_changed |= is_changed;
        Ok(())
    }

    /// The interface to shard, if it is to be.
    fn interface(&self, module: &Module) -> Result<Option<Interface>, PassError> {
        if self.state.is_none() {
            return Ok(None);
        }
        let failed = |error: WusError| error.about(Entity::Module);
        let mut interface = Interface::of(module).map_err(failed)?;
        let (n_params, n_outputs) = (interface.params.len(), interface.outputs.len());
        if let Some(&pair) = self.state_pairs.iter().find(|(p, o)| *p >= n_params || *o >= n_outputs) {
            return Err(failed(WusError::PairOutOfRange { n_params, n_outputs, pair }));
        }
        interface.state_pairs = joined(aliased(module), &self.state_pairs);
        Ok(Some(interface))
    }

    /// The pairs that the user says and that aliases of the header contradict.
    fn contradicted(&self, interface: &Interface) -> Vec<&Pair> {
        self.state_pairs.iter().filter(|pair| !interface.state_pairs.contains(pair)).collect()
    }

    /// Whether all that can be is cut, whatever it is worth. The search within a limit has to weigh what is faster.
    fn is_forced(&self, cx: &PassCx<'_>) -> bool {
        let is_searched = self.state == Some(StateForm::Auto) && cx.target.memory_limit.is_some();
        self.is_forced && !is_searched
    }

    /// What the user fixed.
    pub(crate) fn pinned(&self) -> StateChoice {
        StateChoice { fixed: self.pins.clone(), ..StateChoice::default() }
    }

    /// How often every computation runs, and in how many loops it stands.
    fn rates(&self, module: &Module, values: &Values, cx: &mut PassCx<'_>) -> SecondaryMap<CompId, Option<Rate>> {
        let frequencies = cx.analyses.frequencies(module);
        let mut rates: SecondaryMap<CompId, Option<Rate>> = SecondaryMap::new();
        for &comp in &values.comps {
            let depth = rates[comp].map_or(0, |rate| rate.depth);
            rates[comp] = Some(Rate { frequency: frequencies.of(comp), depth });
            for &inst in &module.comp(comp).insts {
                let is_loop = module.inst(inst).opcode == Opcode::While;
                for callee in module.called(inst) {
                    rates[callee] = Some(Rate { frequency: 0.0, depth: depth + u32::from(is_loop) });
                }
            }
        }
        rates
    }
}

impl Pass for ShardWeightUpdate {
    fn takes_single_all_reduces(&self) -> bool {
        true
    }

    fn writes_files(&self) -> bool {
        self.state.is_some()
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        // The peak before is asked for last: others that run beside this pass may have found it by then.
        let before = cx.measures_peaks.then(|| (module.clone(), cx.analyses.clone()));
        // The signature that stays leaves nothing to choose within a limit.
        let is_changed = match cx.target.memory_limit.filter(|_| self.state.is_some()) {
            Some(limit) => self.shard_within(limit, module, cx)?,
            None => self.shard_all(module, &self.pinned(), cx)?.is_changed,
        };
        if !is_changed {
            return Ok(Changed::No);
        }
        let peak_memory = before.is_some();
        cx.report.memory = before.map(|(before, mut known)| MemoryChange {
            peak_after_bytes: cx.analyses.memory(module).peak_bytes,
            peak_before_bytes: known.memory(&before).peak_bytes,
        });
        Ok(Changed::Yes(Preserved { peak_memory, ..Preserved::NONE }))
    }
}

impl ShardWeightUpdate {
    /// Shards a module.
    pub(crate) fn shard_all(
        &self,
        module: &mut Module,
        choice: &StateChoice,
        cx: &mut PassCx<'_>,
    ) -> Result<Sharded, PassError> {
        let done = match CallSiteCopies::has_shared(module) {
            true => self.shard_apart(module, choice, cx)?,
            false => self.shard(module, choice, cx)?,
        };
        let is_known = |unit: &StateUnit| done.state.contains_key(unit) || done.met.contains(unit);
        let unknown = self.pins.keys().filter(|unit| !is_known(unit));
        let param = |unit: &StateUnit| match unit {
            StateUnit::Param(number) => Some(*number),
            StateUnit::Carry(..) => None,
        };
        let params: Vec<usize> = unknown.filter_map(param).collect();
        if !params.is_empty() || !done.is_possible && *choice == self.pinned() && !self.pins.is_empty() {
            return Err(WusError::Pinned { params }.about(Entity::Module));
        }
        Ok(done)
    }

    /// Shards a module in which computations are called from several places: on a copy of it where each call has its own.
    fn shard_apart(
        &self,
        module: &mut Module,
        choice: &StateChoice,
        cx: &mut PassCx<'_>,
    ) -> Result<Sharded, PassError> {
        let mut apart = module.clone();
        let copies = CallSiteCopies::split(&mut apart);
        if find_gradients(module, self.min_bytes).0.is_empty() || copies.is_empty() {
            return self.shard(module, choice, cx);
        }
        cx.analyses.invalidate(Preserved::NONE);
        let outcome = self.shard(&mut apart, choice, cx);
        cx.analyses.invalidate(Preserved::NONE);
        let sharded = outcome.map_err(|mut error| {
            if let Entity::Inst(inst) = &mut error.diagnostic.entity {
                *inst = copies.original(*inst);
            }
            error
        })?;
        let merged = copies.merge(&mut apart);
        explain::tell_copies(&apart, &merged, &mut cx.report.decisions);
        if !merged.kept().is_empty() {
            cx.report.count("computations-copied", merged.kept().len() as u64);
        }
        if sharded.is_changed {
            *module = apart;
        }
        Ok(sharded)
    }

    /// Shards a module in which computations that are called from several places are not looked into.
    fn shard(&self, module: &mut Module, choice: &StateChoice, cx: &mut PassCx<'_>) -> Result<Sharded, PassError> {
        let (gradients, left) = find_gradients(module, self.min_bytes);
        cx.report.count("all-reduces-seen", (gradients.len() + left.len()) as u64);
        cx.report.count("updates-sharded", 0);
        // Gradients summed over other groups are shards of another problem.
        let mut problems: IndexMap<Vec<Vec<u32>>, Vec<InstId>> = IndexMap::default();
        let replication = cx.analyses.replication(module);
        let mut repeated = None;
        for gradient in &gradients {
            // A user who asks for shards wants them over all devices that hold the same; else the search weighs them.
            let groups = match self.state.is_some_and(|form| form != StateForm::Auto) {
                true => gradient.holders(&replication),
                false => gradient.groups.clone(),
            };
            let size = |groups: &[Vec<u32>]| groups.first().map_or(0, Vec::len);
            let (summed_by, held_by) = (size(&gradient.groups), size(&groups));
            if summed_by < held_by {
                let reason = format!(
                    "{summed_by} of the {held_by} devices that hold it add it up, the others repeat their work: cut the batch over all {held_by}"
                );
                cx.report.decisions.push(Decision::about(module, gradient.all_reduce, "repeated", reason));
                repeated = Some(RepeatedWork { summed_by, held_by });
            }
            problems.entry(groups).or_default().push(gradient.all_reduce);
        }
        let mut interface = self.interface(module)?;
        interface.iter_mut().for_each(|interface| interface.repeated = repeated);
        for &(param, output) in interface.iter().flat_map(|interface| self.contradicted(interface)) {
            let reason = "the header says that one of the two shares its memory with another array".to_string();
            let subject = format!("state-pairs {param}:{output}");
            cx.report.decisions.push(Decision { subject, action: "left".into(), reason, ..Decision::default() });
        }
        let mut done = Sharded { is_possible: true, ..Sharded::default() };
        if let Some(interface) = &mut interface {
            let values = cx.analyses.values(module, Through::MARKERS, SharedCallees::Opaque);
            // Where no gradient is sharded, no search says what the parameters are.
            let groups = left.iter().find_map(|left| module.device_groups(left.all_reduce).ok());
            if let (Some(groups), true) = (groups, problems.is_empty()) {
                let facts = (&*values, &*replication);
                let roles = find_roles(module, facts, &groups.groups, &interface.state_pairs);
                interface.set_summed(&find_summed(module, &values, &interface.state_pairs, &roles));
                interface.set_roles(&roles);
            }
        }
        for (groups, gradients) in problems {
            self.solve(module, (&groups, &gradients), interface.as_mut(), choice, &mut done, cx)?;
        }
        if let Some(mut interface) = interface {
            let mut pins = Pins { said: &self.pins, met: &mut done.met };
            let n_own = if done.is_possible { cut_own_slices(module, &mut interface, &mut pins) } else { 0 };
            if n_own > 0 {
                done.is_changed = true;
                cx.report.count("own-slices-cut", n_own as u64);
                cx.analyses.invalidate(Preserved::NONE);
            }
            let mut pins = Pins { said: &self.pins, met: &mut done.met };
            let n_carried = match done.is_possible {
                true => cut_carried(module, &mut interface, (self.cuts, &mut pins)),
                false => 0,
            };
            if n_carried > 0 {
                cx.report.count("carried-arrays-cut", n_carried as u64);
            }
            let failed = |error: WusError| error.about(Entity::Module);
            let shard = Artifact::Module(Box::new(interface.shard_module().map_err(failed)?));
            let unshard = Artifact::Module(Box::new(interface.unshard_module().map_err(failed)?));
            let manifest = Artifact::Text(LateText::new(move || interface.manifest()));
            cx.report.files = [("shard.hlo", shard), ("unshard.hlo", unshard), ("manifest.json", manifest)]
                .map(|(name, file)| (name.to_string(), file))
                .into();
        }
        for LeftGradient { all_reduce, reason } in &left {
            cx.report.decisions.push(explain::left(module, *all_reduce, reason));
        }
        if !done.is_changed {
            let has_promise = !cx.analyses.params.is_empty();
            cx.report.unchanged_because =
                Some(nothing_to_do(module, cx.report, (gradients.len(), left.len()), has_promise));
        }
        Ok(done)
    }
}

/// Why the module stays as it is, and what the user can do.
fn nothing_to_do(
    module: &Module,
    report: &PassReport,
    (n_gradients, n_left): (usize, usize),
    has_promise: bool,
) -> String {
    if module.n_devices() < 2 {
        return "the module runs on one device: it has to be partitioned or replicated first (take the text after \
                XLA's SPMD partitioner)"
            .into();
    }
    if n_gradients + n_left == 0 {
        return "the module has no all-reduce".into();
    }
    let is_silent = |&param: &InstId| {
        let flags = ParameterAttrs::of(&module.inst(param).attrs).map(|attrs| &attrs.parameter_replication);
        module.sharding(param).is_none() && flags.is_none_or(|flags| flags.is_empty())
    };
    let says_nothing = module.entry().is_some_and(|entry| module.comp(entry).params.iter().all(is_silent));
    if says_nothing && !has_promise && n_gradients > 0 {
        return "no update could be sharded; the entry's parameters do not say which of them are replicated: name \
                them with --replicated-params (optimizer: weights and state), or take them from the dump before XLA's \
                partitioner with like:FILE"
            .into();
    }
    let largest = report.decisions.iter().max_by_key(|decision| decision.bytes);
    let why = largest.map_or(String::new(), |largest| format!(": {}: {}", largest.subject, largest.reason));
    format!("no update could be sharded; the decisions say why{why}")
}
