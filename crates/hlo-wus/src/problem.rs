//! One placement problem: all gradients summed over the same groups, the regions round them, and what every placement
//! costs.

use crate::context::{ShardingContext, StateCuts};
use crate::error::{GradientRefusal, WusError};
use crate::fusions::{Fusion, Fusions, arithmetic_ps};
use crate::machine::{Kind, Times};
use crate::pairs::{Pair, SettledPairs, aliased, param_numbers};
use crate::placement::{Assignment, CostModel, Node, Price, Term, Uses, ValueForm};
use crate::region::UpdateRegion;
use crate::state::StateOfRegion;
use crate::tables::{IndexMap, IndexSet};
use crate::unsummed::Unsummed;
use crate::zero::{StateChoice, StateUnit, UnitForm};
use cranelift_entity::SecondaryMap;
use hlo_analysis::min_cut::UNCUTTABLE;
use hlo_analysis::optimizer_state::{LeafRole, find_roles};
use hlo_analysis::values::{Origin, Use, User, ValueId};
use hlo_ir::cost::Costs;
use hlo_ir::{ArrayShape, CompId, InstId};
use hlo_pass::{Deadline, OutOfTime};
use hlo_spmd::OperandCut;
use hlo_spmd::ShardFormat;
use hlo_spmd::is_broadcast;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// How often a computation runs and how deep in loops it stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Executions per execution of the entry.
    pub frequency: f64,
    /// Loops around it.
    pub depth: u32,
}

/// What the costs of a problem are computed from.
pub struct Terms<'a> {
    /// Times of collectives and kernels.
    pub times: &'a Times,
    /// How often every computation runs.
    pub rates: &'a SecondaryMap<CompId, Option<Rate>>,
    /// Updates with state are in shards whether or not that is predicted to be faster.
    pub is_forced: bool,
    /// Picoseconds that one resident byte is worth.
    pub ps_per_resident_byte: f64,
    /// Whether weights stay in shards; `None` leaves it to the cost.
    pub keeps_weights: Option<bool>,
    /// Whether gradients of a forced update are in shards; else as is cheaper.
    pub scatters_gradients: bool,
    /// What state costs beside time, and what of it is not free.
    pub choice: &'a StateChoice,
    /// Whether only the optimizer's state may be in shards outside of the module.
    pub is_of_optimizer: bool,
    /// The number of the problem, of those that a module has.
    pub problem: usize,
    /// Smaller arrays stay whole.
    pub min_bytes: u64,
    /// The known pairs of parameters and outputs, if state may cross the entry in shards.
    pub state_pairs: Option<Vec<Pair>>,
}

/// The kernels of a region of tensors: what does not depend on the placement.
#[derive(Clone, Copy, Debug, Default)]
struct Kernels {
    /// Time of all launches, in picoseconds.
    launches_ps: f64,
    n_bound_by_arithmetic: usize,
}

/// Where a value crosses the edges of fusions.
struct Edges {
    node: Node,
    bytes: u64,
    /// Fusions that read it, with what each use wants.
    readers: IndexMap<u32, Uses>,
    /// The fusion that computes it, if anything outside takes it.
    writer: Option<u32>,
}

/// Regions and their nodes.
pub struct Problem {
    /// All regions.
    pub regions: Vec<UpdateRegion>,
    /// The update of each region.
    pub updates: Vec<IndexSet<ValueId>>,
    /// Whether an update computes from its gradients alone.
    pub stateless: Vec<bool>,
    /// Whether an update is in shards if it is forced: it has state that may be.
    is_wanted: Vec<bool>,
    /// The parameters that may be in shards, where roles or pins say it.
    cuttable: Option<IndexSet<ValueId>>,
    /// What the entry's parameters are, where only the optimizer's state may be in shards.
    pub(crate) roles: Option<Vec<LeafRole>>,
    /// What each update has in shards if it is forced: its gradients and the next values of its state.
    pub kept: Vec<IndexSet<ValueId>>,
    /// The cost of every placement.
    pub costs: CostModel,
    /// The placement chosen.
    pub in_shards: Assignment,
    /// Whether it is possible: what is fixed can be so.
    pub is_possible: bool,
    /// Which terms belong to each region.
    ranges: Vec<Range<usize>>,
    /// The kernels of each region.
    kernels: Vec<Kernels>,
    region_of: SecondaryMap<ValueId, u32>,
    node_of: SecondaryMap<ValueId, Option<Node>>,
    /// Where a value stands in its region.
    place_of: SecondaryMap<ValueId, u32>,
    computes: SecondaryMap<ValueId, bool>,
    /// Reductions over the cut dim that may take shards.
    pub(crate) partials: IndexMap<InstId, Node>,
    /// Gradients of state that every device computes whole.
    pub(crate) n_unsummed: usize,
    /// Outputs that are the next value of a parameter, where both may be in shards.
    pairs: IndexMap<usize, ValueId>,
    /// The parameters of `pairs`.
    paired: IndexSet<ValueId>,
}

impl Problem {
    /// Grows regions from all gradients of the context and finds the cheapest placement. Gradients without a region come back
    /// with the reason.
    ///
    /// # Errors
    /// It is not clear which output is the next value of which parameter, or the time is over.
    pub fn solve(
        context: &mut ShardingContext<'_>,
        terms: &Terms<'_>,
    ) -> Result<(Problem, Vec<(ValueId, GradientRefusal)>), WusError> {
        let mut problem = Problem {
            regions: Vec::new(),
            updates: Vec::new(),
            stateless: Vec::new(),
            is_wanted: Vec::new(),
            cuttable: None,
            roles: None,
            kept: Vec::new(),
            costs: CostModel::default(),
            in_shards: Vec::new(),
            is_possible: true,
            ranges: Vec::new(),
            kernels: Vec::new(),
            region_of: SecondaryMap::new(),
            node_of: SecondaryMap::new(),
            place_of: SecondaryMap::new(),
            computes: SecondaryMap::new(),
            partials: IndexMap::default(),
            n_unsummed: 0,
            pairs: IndexMap::default(),
            paired: IndexSet::default(),
        };
        let mut left = problem.add_regions(context, &context.gradients.clone())?;
        let mut by_alias = SettledPairs::find(context, &problem.regions, &aliased(context.module));
        if let (Some(known), true) = (&terms.state_pairs, terms.is_of_optimizer) {
            let pairs = by_alias.clone().with_known(context, &problem.regions, known)?;
            problem.roles = Some(problem.find_roles(context, known, &pairs));
            let unsummed = Unsummed::find(context, &problem.state_outside(context, terms.min_bytes))?;
            problem.set_maybe_weights(context, &unsummed.maybe_weights);
            if !unsummed.gradients.is_empty() {
                problem.n_unsummed = unsummed.gradients.len();
                context.gradients.extend(unsummed.gradients.iter().copied());
                left.extend(problem.add_regions(context, &unsummed.gradients)?);
                by_alias = SettledPairs::find(context, &problem.regions, &aliased(context.module));
            }
        }
        let exits = by_alias.outputs();
        if let Some(known) = &terms.state_pairs {
            problem.pairs = by_alias.with_known(context, &problem.regions, known)?;
            problem.paired = problem.pairs.values().copied().collect();
        }
        problem.cuttable = problem.find_cuttable(context, terms.choice);
        let may_be_cut = |value: &ValueId| problem.cuttable.as_ref().is_none_or(|cuttable| cuttable.contains(value));
        for (region, update) in problem.regions.iter().zip(&problem.updates) {
            context.deadline.check()?;
            let state = StateOfRegion::find(context, region);
            let is_stateless = !state.is_used_by(context, region, update);
            let has_cuttable = region.runs.keys().any(may_be_cut);
            problem.stateless.push(is_stateless);
            problem.is_wanted.push(!is_stateless && has_cuttable);
            let mut kept = state.kept(context, region, update, &exits);
            kept.retain(|value| terms.scatters_gradients || !context.gradients.contains(value));
            // The next value of what stays whole is computed as is cheaper.
            kept.retain(|value| {
                let mut next_of = context.values.uses[*value].iter().filter_map(|taken| match taken.user {
                    User::Exit(output) => problem.pairs.get(&(output as usize)),
                    User::Op { .. } | User::Becomes(_) | User::Opaque(_) => None,
                });
                has_cuttable && next_of.all(may_be_cut)
            });
            problem.kept.push(kept);
        }
        problem.add_partials(context);
        problem.add_terms(context, terms)?;
        let (in_shards, cost) = match terms.is_forced {
            true => problem.forced(context.deadline)?,
            false => problem.costs.solve(context.deadline)?,
        };
        (problem.in_shards, problem.is_possible) = (in_shards, cost < UNCUTTABLE);
        Ok((problem, left))
    }

    /// Adds the regions of gradients. Those without a region come back with the reason.
    fn add_regions(
        &mut self,
        context: &mut ShardingContext<'_>,
        gradients: &IndexSet<ValueId>,
    ) -> Result<Vec<(ValueId, GradientRefusal)>, OutOfTime> {
        let mut left = Vec::new();
        let mut known: IndexSet<ValueId> = IndexSet::default();
        for &seed in gradients {
            context.deadline.check()?;
            if known.contains(&seed) {
                continue;
            }
            match context.region(seed) {
                Ok((region, update)) => {
                    known.extend(region.gradients.iter().copied());
                    self.updates.push(update);
                    self.add_region(context, region);
                }
                Err(reason) => left.push((seed, reason)),
            }
        }
        Ok(left)
    }

    /// Finds the roles of the entry's parameters, with the next values that are known and those that were found.
    fn find_roles(
        &self,
        context: &ShardingContext<'_>,
        known: &[Pair],
        found: &IndexMap<usize, ValueId>,
    ) -> Vec<LeafRole> {
        let numbers = param_numbers(context);
        let found = found.iter().filter_map(|(&output, param)| Some((*numbers.get(param)?, output)));
        let pairs: Vec<Pair> = known.iter().copied().chain(found).collect();
        find_roles(context.module, (context.values, context.replication), context.groups, &pairs)
    }

    /// Notes which parameters may be weights.
    fn set_maybe_weights(&mut self, context: &ShardingContext<'_>, found: &IndexSet<ValueId>) {
        let numbers = param_numbers(context);
        for number in found.iter().filter_map(|value| numbers.get(value)) {
            if let Some(role) = self.roles.as_mut().and_then(|roles| roles.get_mut(*number)) {
                *role = LeafRole::MaybeWeight;
            }
        }
    }

    /// Optimizer state of so many bytes and more that belongs to no region.
    fn state_outside(&self, context: &ShardingContext<'_>, min_bytes: u64) -> Vec<ValueId> {
        let is_state =
            |number: usize| self.roles.as_ref().is_some_and(|roles| roles.get(number) == Some(&LeafRole::State));
        let params = param_numbers(context).into_iter().filter(|&(_, number)| is_state(number));
        let is_large = |value: ValueId| {
            context.values.shape(context.module, value).is_some_and(|shape| shape.size_bytes() >= min_bytes)
        };
        let outside = |&value: &ValueId| is_large(value) && self.region_number(value).is_none();
        params.map(|(value, _)| value).filter(outside).collect()
    }

    /// The parameters that may be in shards, where roles or pins say it.
    fn find_cuttable(&self, context: &ShardingContext<'_>, choice: &StateChoice) -> Option<IndexSet<ValueId>> {
        self.roles.as_ref()?;
        let numbers = param_numbers(context);
        let is_cuttable = |number: usize| !self.is_held_whole(StateUnit::Param(number), choice);
        Some(numbers.into_iter().filter(|&(_, number)| is_cuttable(number)).map(|(value, _)| value).collect())
    }

    /// Whether its role, or else the user, has a unit whole.
    fn is_held_whole(&self, unit: StateUnit, choice: &StateChoice) -> bool {
        let by_role = || match (unit, &self.roles) {
            (StateUnit::Param(number), Some(roles)) => roles.get(number) != Some(&LeafRole::State),
            (StateUnit::Param(_), None) | (StateUnit::Carry(..), _) => false,
        };
        choice.fixed.get(&unit).map_or_else(by_role, |is_sharded| !is_sharded)
    }

    fn add_region(&mut self, context: &mut ShardingContext<'_>, region: UpdateRegion) {
        self.regions.push(region);
        let number = self.regions.len() as u32;
        let region = &self.regions[number as usize - 1];
        for (place, &value) in (0..).zip(region.runs.keys()) {
            self.region_of[value] = number;
            self.place_of[value] = place;
            self.node_of[value] = Some(self.costs.add_node());
            self.computes[value] = context.can_shard(&region.runs, value);
        }
    }

    /// The cheapest placement that has the gradients and the next state of every update with state in shards, and where only
    /// the optimizer's state may be in shards all of that, as far as that is possible: where one of them is needed whole inside a fusion, no gather can stand before it. Everything else is in
    /// shards, gathered or computed whole, whichever is cheapest; where it makes no difference it is in shards.
    ///
    /// # Errors
    /// The time is over.
    pub(crate) fn forced(&self, deadline: Deadline) -> Result<(Assignment, u128), OutOfTime> {
        let always_full = self.costs.always_full();
        let nodes = |values: &IndexSet<ValueId>| -> Vec<Node> {
            let nodes = values.iter().filter_map(|&v| self.node_of[v]);
            nodes.filter(|n| !always_full[n.0 as usize]).collect()
        };
        let fixed = |values: &IndexSet<ValueId>| nodes(values).into_iter().map(|node| Term::Fixed(node, true));
        let kept: Vec<Term> = self.kept.iter().flat_map(fixed).collect();
        let with_state = || self.regions.iter().zip(&self.is_wanted).filter(|(_, is_wanted)| **is_wanted);
        let is_state = |v: &ValueId| self.cuttable.as_ref().is_some_and(|cuttable| cuttable.contains(v));
        let values = |region: &UpdateRegion, is_taken: &dyn Fn(&ValueId) -> bool| -> IndexSet<ValueId> {
            region.runs.keys().copied().filter(is_taken).collect()
        };
        let is_wanted = |v: &ValueId| self.computes[*v] || is_state(v);
        let wanted: Vec<Node> = with_state().flat_map(|(region, _)| nodes(&values(region, &is_wanted))).collect();
        // The optimizer's state lies in shards whatever its other uses cost, as far as that is possible.
        let state: Vec<Term> = with_state().flat_map(|(region, _)| fixed(&values(region, &is_state))).collect();
        if !state.is_empty() {
            let found = self.costs.solve_with(&[kept.clone(), state].concat(), &wanted, deadline)?;
            if found.1 < UNCUTTABLE {
                return Ok(found);
            }
        }
        self.costs.solve_with(&kept, &wanted, deadline)
    }

    /// Predicted time of what the placement decides in one region, and of its launches, in nanoseconds.
    pub fn predicted_ns(&self, region: usize, in_shards: &[bool]) -> f64 {
        let terms = &self.costs.terms[self.ranges[region].clone()];
        let decided_ps = terms.iter().map(|term| term.ps(in_shards)).sum::<f64>();
        (decided_ps + self.kernels[region].launches_ps) / 1e3
    }

    /// How many fusions of a region take longer to compute than to read and write.
    pub fn n_bound_by_arithmetic(&self, region: usize) -> usize {
        self.kernels[region].n_bound_by_arithmetic
    }

    /// The state that may be in shards.
    pub(crate) fn state(&self, context: &ShardingContext<'_>, problem: usize) -> IndexMap<StateUnit, UnitForm> {
        let units = self.units(context, problem).into_iter();
        let form = |(unit, value, node): (StateUnit, ValueId, Node)| {
            let saved_bytes = self.saved_bytes(context, self.region(value)?, value);
            Some((unit, UnitForm { is_sharded: self.in_shards[node.0 as usize], saved_bytes }))
        };
        units.filter_map(form).collect()
    }

    /// The values that are state, with their nodes.
    fn units(&self, context: &ShardingContext<'_>, problem: usize) -> Vec<(StateUnit, ValueId, Node)> {
        let numbers = param_numbers(context);
        let values = self.regions.iter().flat_map(|region| region.runs.keys());
        let unit = |&value: &ValueId| {
            let unit = match context.values.values[value].origin {
                Origin::EntryParam => StateUnit::Param(*numbers.get(&value)?),
                _ => StateUnit::Carry(problem, value),
            };
            Some((unit, value, self.node_of[value]?))
        };
        values.filter(|value| self.is_state(context, **value)).filter_map(unit).collect()
    }

    /// What a device holds less of a value in shards, in bytes.
    fn saved_bytes(&self, context: &ShardingContext<'_>, region: &UpdateRegion, value: ValueId) -> f64 {
        let bytes = context.values.shape(context.module, value).map_or(0, ArrayShape::size_bytes) as f64;
        (bytes - bytes * (1.0 + region.split.waste()) / context.n_shards as f64).max(0.0)
    }

    /// What the placement saves against everything full, in picoseconds.
    pub(crate) fn gain_ps(&self) -> f64 {
        self.whole_ps() - self.costs.terms.iter().map(|term| term.ps(&self.in_shards)).sum::<f64>()
    }

    /// What the placement decides takes with everything full, in picoseconds.
    pub(crate) fn whole_ps(&self) -> f64 {
        self.costs.terms.iter().map(|term| term.ps(&[])).sum()
    }

    /// Whether a placement has anything of a region in shards.
    pub(crate) fn is_sharded(&self, region: usize) -> bool {
        let nodes = self.regions[region].runs.keys().filter_map(|&v| self.node_of[v]);
        nodes.into_iter().any(|node| self.in_shards[node.0 as usize])
    }

    /// The region of a value.
    pub fn region(&self, value: ValueId) -> Option<&UpdateRegion> {
        self.regions.get(self.region_number(value)?)
    }

    /// Which region a value is in.
    pub(crate) fn region_number(&self, value: ValueId) -> Option<usize> {
        (self.region_of[value] as usize).checked_sub(1)
    }

    /// The format of a value that is in shards.
    pub fn shards(&self, value: ValueId) -> Option<ShardFormat> {
        let node = self.node_of[value]?;
        self.in_shards[node.0 as usize].then(|| self.region(value)?.format_at(self.place_of[value] as usize))?
    }

    /// The form in which an output of the entry leaves.
    pub(crate) fn exit_form(&self, output: usize) -> Option<ShardFormat> {
        self.shards(*self.pairs.get(&output)?)
    }

    /// Outputs and the parameters whose next value they are.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, ValueId)> {
        self.pairs.iter().map(|(&output, &param)| (output, param))
    }

    /// State that something else than its own update takes whole: weights, not moments.
    fn is_weight(&self, context: &mut ShardingContext<'_>, number: usize, state: ValueId) -> bool {
        let region = &self.regions[number];
        let mut seen: IndexSet<ValueId> = [state].into_iter().collect();
        let mut next = 0;
        while let Some(&value) = seen.get_index(next) {
            next += 1;
            for taken in &context.values.uses[value] {
                let result = match taken.user {
                    User::Op { inst, .. } => context.values.of(inst),
                    User::Becomes(into) => Some(into),
                    User::Exit(_) => continue,
                    User::Opaque(_) => return true,
                };
                match result.filter(|r| region.runs.contains_key(r) && self.computes[*r]) {
                    Some(result) if self.updates[number].contains(&result) => {}
                    Some(result) => {
                        seen.insert(result);
                    }
                    None if self.wanted(context, value, taken) == ValueForm::Full => return true,
                    None => {}
                }
            }
        }
        false
    }

    /// The format of a reduction's operand, if the reduction takes shards and gives partial results.
    pub fn partial(&self, context: &ShardingContext<'_>, inst: InstId) -> Option<ShardFormat> {
        let node = self.partials.get(&inst)?;
        let operand = context.values.of(*context.module.inst(inst).operands.first()?)?;
        let region = self.region(operand)?;
        self.in_shards[node.0 as usize].then(|| region.format(operand))?
    }

    /// What a use of a value with a format wants.
    fn wanted(&self, context: &mut ShardingContext<'_>, value: ValueId, taken: &Use) -> ValueForm {
        let Some(region) = self.region(value) else { return ValueForm::Full };
        let run = region.runs[&value];
        let same_run = |v: ValueId| region.runs.get(&v).zip(self.node_of[v]);
        match taken.user {
            User::Op { inst, operand } => {
                let result = context.values.of(inst);
                if let Some((&result_run, node)) = result.and_then(same_run)
                    && result.is_some_and(|v| self.computes[v] && !context.gradients.contains(&v))
                {
                    let cut = context.relation(inst).map(|r| r.operand_cut(operand as usize, result_run));
                    if cut == Some(OperandCut::Run(run)) {
                        return ValueForm::Of(node);
                    }
                }
                self.partials.get(&inst).filter(|_| operand == 0).map_or(ValueForm::Full, |&node| ValueForm::Of(node))
            }
            User::Becomes(into) => match same_run(into) {
                Some((&other, node)) if other == run => ValueForm::Of(node),
                Some(_) | None => ValueForm::Full,
            },
            User::Exit(output) => match self.pairs.get(&(output as usize)).copied().and_then(same_run) {
                Some((_, node)) => ValueForm::Of(node),
                None => ValueForm::Full,
            },
            User::Opaque(_) => ValueForm::Full,
        }
    }

    fn add_terms(&mut self, context: &mut ShardingContext<'_>, terms: &Terms<'_>) -> Result<(), OutOfTime> {
        let mut out = TermList { terms: Vec::new(), cx: terms };
        let costs = Costs::new(context.module);
        let numbers = param_numbers(context);
        let mut partials_of: IndexMap<usize, Vec<(InstId, Node)>> = IndexMap::default();
        for (&inst, &node) in &self.partials {
            let operand = context.module.inst(inst).operands.first().and_then(|&o| context.values.of(o));
            if let Some(number) = operand.and_then(|v| self.region_number(v)) {
                partials_of.entry(number).or_default().push((inst, node));
            }
        }
        let (mut kernels, mut ranges) =
            (Vec::with_capacity(self.regions.len()), Vec::with_capacity(self.regions.len()));
        for (number, region) in self.regions.iter().enumerate() {
            context.deadline.check()?;
            let start = out.terms.len();
            for &value in region.runs.keys() {
                self.value_terms(context, region, value, &mut out);
            }
            kernels.push(self.kernel_terms(context, region, &costs, &mut out));
            // Weights are read by more than the step, and a padded array is no ordinary one.
            let is_padded = context.cuts == StateCuts::Padded && !context.cuts_evenly(region);
            let keeps = if is_padded { Some(false) } else { terms.keeps_weights.filter(|_| !self.stateless[number]) };
            if let Some(keeps) = keeps {
                for &value in region.runs.keys() {
                    // Where roles are known they say it of the entry's parameters. Only optimizer state is padded.
                    let role = numbers.get(&value).and_then(|&number| self.roles.as_ref()?.get(number));
                    let has_role = role.is_some_and(|&role| !is_padded || role == LeafRole::State);
                    if !has_role && self.is_state(context, value) && self.is_weight(context, number, value) {
                        out.terms.extend(self.node_of[value].map(|node| Term::Fixed(node, keeps)));
                    }
                }
            }
            for &(inst, node) in partials_of.get(&number).map_or(&[][..], Vec::as_slice) {
                let comp = context.module.inst(inst).parent;
                let price = out.collective(comp, Kind::Combine, context.module.shape(inst).size_bytes() as f64);
                let latency = out.collective(comp, Kind::Combine, 0.0);
                out.terms.push(Term::Shard(node, Price::time(price.ps - latency.ps)));
            }
            ranges.push(start..out.terms.len());
        }
        (self.kernels, self.ranges) = (kernels, ranges);
        if !terms.choice.fixed.is_empty() || self.roles.is_some() {
            for (unit, _, node) in self.units(context, terms.problem) {
                let wanted = if self.is_held_whole(unit, terms.choice) {
                    Some(false)
                } else {
                    terms.choice.fixed.get(&unit).copied()
                };
                out.terms.extend(wanted.map(|wanted| Term::Fixed(node, wanted)));
            }
        }
        for (comp, nodes) in self.batches(context.module) {
            out.terms.push(Term::AnyShard(nodes.into(), out.collective(comp, Kind::Combine, 0.0)));
        }
        self.costs.terms = out.terms;
        Ok(())
    }

    /// What a value costs by itself, and where its uses want another form.
    fn value_terms(
        &self,
        context: &mut ShardingContext<'_>,
        region: &UpdateRegion,
        value: ValueId,
        out: &mut TermList<'_>,
    ) {
        let Some(node) = self.node_of[value] else { return };
        let module = context.module;
        let comp = module.inst(context.values.inst(value)).parent;
        let bytes = context.values.shape(module, value).map_or(0, ArrayShape::size_bytes);
        let padded = bytes as f64 * (1.0 + region.split.waste());
        if context.gradients.contains(&value) && !context.is_summed_by_all(value) {
            // The sum is whole in any case, and a shard of it costs nothing.
        } else if context.gradients.contains(&value) {
            out.terms.push(Term::Full(node, out.collective(comp, Kind::AllReduce, bytes as f64)));
            out.terms.push(Term::Shard(node, out.collective(comp, Kind::ReduceScatter, padded)));
        } else if !self.computes[value] && !self.paired.contains(&value) {
            out.terms.push(Term::Fixed(node, false));
        }
        if self.is_state(context, value) {
            let resident_bytes = self.saved_bytes(context, region, value);
            let by_choice = match context.values.values[value].origin {
                Origin::EntryParam => out.cx.choice.ps_per_param_byte,
                _ => out.cx.choice.ps_per_carried_byte,
            };
            let ps = resident_bytes * (out.cx.ps_per_resident_byte + by_choice);
            out.terms.push(Term::Full(node, Price { ps, resident_bytes, ..Price::default() }));
        }
        let mut places: IndexMap<CompId, Uses> = IndexMap::default();
        for taken in &context.values.uses[value] {
            let form = self.wanted(context, value, taken);
            let forms = places.entry(taken.comp).or_default();
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        for (comp, uses) in places {
            let is_fused = context.values.fused.contains(comp);
            let gather = (!is_fused).then(|| out.collective(comp, Kind::AllGather, padded));
            let slice = (!is_fused).then(Price::default);
            out.terms.push(Term::Slice { value: ValueForm::Of(node), uses: uses.clone(), price: slice });
            out.terms.push(Term::Gather { value: node, uses, price: gather });
        }
        // Sources without this format come whole.
        for &source in &context.values.sources[value] {
            if region.runs.get(&source) != region.runs.get(&value) {
                let inst = context.values.inst(source);
                let is_fused = context.values.fused.contains(module.inst(inst).parent);
                let is_free = !is_fused || (context.is_rebuilt(source) && is_broadcast(module, inst));
                let price = is_free.then(Price::default);
                out.terms.push(Term::Slice { value: ValueForm::Full, uses: smallvec![ValueForm::Of(node)], price });
            }
        }
    }

    /// What kernels cost: for each fusion its arithmetic, or its memory traffic at the region's edges (§3.2: the
    /// combined size of the non-fusible inputs and outputs), whichever binds.
    fn kernel_terms(
        &self,
        context: &mut ShardingContext<'_>,
        region: &UpdateRegion,
        costs: &Costs<'_>,
        out: &mut TermList<'_>,
    ) -> Kernels {
        let mut fusions = Fusions::find(context.module, &self.ops(context, region), costs, out.cx.times);
        let edges: Vec<Edges> = region.runs.keys().filter_map(|&v| self.edges(context, v, &fusions)).collect();
        for edge in &edges {
            edge.readers.keys().chain(&edge.writer).for_each(|&number| fusions.add_bytes(number, edge.bytes));
        }
        let n_shards = context.n_shards as f64;
        let saved_share = 1.0 - (1.0 + region.split.waste()) / n_shards;
        for (inst, number) in fusions.ops() {
            let fusion = fusions.get(number);
            let place = self.partials.get(&inst).copied().or_else(|| self.node_of[context.values.of(inst)?]);
            if let (Some(node), true) = (place, fusion.is_bound_by_arithmetic(out.cx.times)) {
                let saved_ps = arithmetic_ps(context.module, inst, costs, out.cx.times) * saved_share;
                out.terms.push(Term::Full(node, Price::time(out.rate(fusion.comp).frequency * saved_ps)));
            }
        }
        for edge in edges {
            self.traffic_terms(&edge, &fusions, saved_share, out);
        }
        let launch_ps = |fusion: &Fusion| out.rate(fusion.comp).frequency * out.cx.times.launch_ps();
        Kernels {
            launches_ps: fusions.all().iter().map(launch_ps).sum(),
            n_bound_by_arithmetic: fusions.all().iter().filter(|f| f.is_bound_by_arithmetic(out.cx.times)).count(),
        }
    }

    /// Ops of a format that can be computed on shards, and reductions that can take shards.
    fn ops(&self, context: &ShardingContext<'_>, region: &UpdateRegion) -> IndexSet<InstId> {
        let mut ops: IndexSet<InstId> = IndexSet::default();
        for &value in region.runs.keys() {
            if self.is_op(context, value) {
                ops.insert(context.values.inst(value));
            }
            ops.extend(context.values.uses[value].iter().filter_map(|u| match u.user {
                User::Op { inst, .. } => Some(inst).filter(|i| self.partials.contains_key(i)),
                User::Becomes(_) | User::Exit(_) | User::Opaque(_) => None,
            }));
        }
        ops
    }

    /// Where a value crosses the edges of fusions.
    fn edges(&self, context: &mut ShardingContext<'_>, value: ValueId, fusions: &Fusions) -> Option<Edges> {
        let node = self.node_of[value]?;
        let own = fusions.of(context.values.inst(value)).filter(|_| self.is_op(context, value));
        let bytes = context.values.shape(context.module, value).map_or(0, ArrayShape::size_bytes);
        let mut readers: IndexMap<u32, Uses> = IndexMap::default();
        let mut is_written = false;
        for taken in &context.values.uses[value] {
            let reader = match taken.user {
                User::Op { inst, .. } => fusions.of(inst),
                User::Becomes(_) | User::Exit(_) | User::Opaque(_) => None,
            };
            is_written |= reader.is_none() || reader != own;
            if let Some(reader) = reader.filter(|_| reader != own) {
                readers.entry(reader).or_default().push(self.wanted(context, value, taken));
            }
        }
        Some(Edges { node, bytes, readers, writer: own.filter(|_| is_written) })
    }

    /// Memory traffic of a value in the fusions that it binds. It is charged for what sharding would save, and in full
    /// where both forms may be read.
    fn traffic_terms(&self, edges: &Edges, fusions: &Fusions, saved_share: f64, out: &mut TermList<'_>) {
        let (whole_bytes, saved_bytes) = (edges.bytes as f64, edges.bytes as f64 * saved_share);
        let times = out.cx.times;
        let is_bound = |number: &u32| !fusions.get(*number).is_bound_by_arithmetic(times);
        for (reader, uses) in edges.readers.iter().filter(|(number, _)| is_bound(number)) {
            let comp = fusions.get(*reader).comp;
            let mut nodes: SmallVec<[Node; 2]> = uses.iter().filter_map(|u| u.node()).collect();
            nodes.dedup();
            if nodes.len() < 2 && nodes.len() == uses.iter().collect::<IndexSet<_>>().len() {
                out.terms.push(Term::AnyFull(uses.clone(), out.memory(comp, saved_bytes)));
                continue;
            }
            out.terms.push(Term::AnyFull(uses.clone(), out.memory(comp, whole_bytes)));
            out.terms.push(Term::AnyShard(nodes, out.memory(comp, whole_bytes - saved_bytes)));
        }
        if let Some(writer) = edges.writer.filter(is_bound) {
            out.terms.push(Term::Full(edges.node, out.memory(fusions.get(writer).comp, saved_bytes)));
        }
    }

    /// Whether a value lives from one step to the next and may be in shards.
    fn is_state(&self, context: &ShardingContext<'_>, value: ValueId) -> bool {
        match context.values.values[value].origin {
            Origin::Carry => true,
            Origin::EntryParam => self.paired.contains(&value),
            Origin::Computed | Origin::Param | Origin::CallResult => false,
        }
    }

    /// Whether an op of its own computes the value, in shards or full. What touches a window alone costs next to nothing.
    fn is_op(&self, context: &ShardingContext<'_>, value: ValueId) -> bool {
        let opcode = context.module.inst(context.values.inst(value)).opcode;
        context.values.values[value].origin == Origin::Computed
            && self.computes[value]
            && !context.gradients.contains(&value)
            && !opcode.row().factors.takes_window()
    }
}

/// Collects terms.
struct TermList<'a> {
    terms: Vec<Term>,
    cx: &'a Terms<'a>,
}

impl TermList<'_> {
    fn rate(&self, comp: CompId) -> Rate {
        self.cx.rates[comp].unwrap_or(Rate { frequency: 1.0, depth: 0 })
    }

    fn collective(&self, comp: CompId, kind: Kind, bytes: f64) -> Price {
        let rate = self.rate(comp);
        Price {
            ps: rate.frequency * self.cx.times.collective_ps(kind, bytes),
            collectives: 64f64.powi(rate.depth.min(2) as i32),
            resident_bytes: 0.0,
        }
    }

    fn memory(&self, comp: CompId, bytes: f64) -> Price {
        Price::time(self.rate(comp).frequency * self.cx.times.memory_ps(bytes))
    }
}
