//! How often each computation runs for one execution of ENTRY.
//!
//! The entry runs once. A call, a fusion or the reducer of a reduction runs as often as its caller; a loop's body once for every trip
//! and its condition once more; a conditional's branch as often as the predicate chooses it. A computation with several
//! call sites runs as often as all of them together.
//!
//! *Trip counts*: what the backend stated (`known_trip_count`); else from the condition, where the loop's scalar state
//! begins at constants: by division for `i < N` in any direction and operand order with a constant step, by running the
//! scalar code of the loop otherwise; else what the user says ([`FrequencyOptions::unknown_trip_count`]).
//!
//! *Branches*: the predicate may be a function of the scalar state of one enclosing loop, as in `step % 100 == 0`. Then that
//! scalar code is run over the iterations, and the branches taken are counted. Only iterations count in which the
//! conditionals around took the branches that lead here. For a period that is `ceil(trips / period)` firings. Loops of more than a million trips are
//! counted over the first million. A state that begins at an unknown integer is taken to begin at 0. Any other predicate:
//! all branches alike.
//!
//! Not followed: a trip count that differs from run to run of the loop (`j < i`), a predicate over the states of two
//! loops, arithmetic on arrays of more than one element.
//!
//! Cost: linear in the module, plus at most 50 million scalar ops, a fraction of a second.

mod simulate;
mod trace;

use crate::scalar::Element;
use crate::values::CallSite;
use cranelift_entity::SecondaryMap;
use hashbrown::HashMap;
use hlo_ir::attrs::Attrs;
use hlo_ir::cost::known_trip_count;
use hlo_ir::op::CalleeEntry;
use hlo_ir::{CompId, InstId, Module};

use simulate::{Budget, MAX_ITERATIONS, Slice, UnknownStart, linear_trip_count};
use trace::{Expr, ExprId, Tracer};

/// What is assumed where the module does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrequencyOptions {
    /// Trips of a loop whose count cannot be found.
    pub unknown_trip_count: u64,
}

impl Default for FrequencyOptions {
    fn default() -> FrequencyOptions {
        FrequencyOptions { unknown_trip_count: 100 }
    }
}

/// How a number was found, the surest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Basis {
    /// The module states it.
    #[default]
    Stated,
    /// It follows from the module.
    Derived,
    /// It follows from the module and an assumption: an unknown start or trip count, or the first million of trips.
    Estimated,
    /// Nothing in the module tells.
    Assumed,
}

impl Basis {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Stated => "stated",
            Basis::Derived => "derived",
            Basis::Estimated => "estimated",
            Basis::Assumed => "assumed",
        }
    }
}

/// How often a loop's body runs each time the loop is entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TripCount {
    /// Trips.
    pub count: u64,
    /// How they were found.
    pub basis: Basis,
}

/// How a conditional divides its runs.
#[derive(Clone, PartialEq, Debug)]
pub struct BranchShares {
    /// One share for each branch, in operand order; together 1.
    pub shares: Box<[f64]>,
    /// How they were found.
    pub basis: Basis,
}

/// The frequencies of one module.
#[derive(Clone, Debug, Default)]
pub struct Frequencies {
    of_computation: SecondaryMap<CompId, f64>,
    basis: SecondaryMap<CompId, Basis>,
    trips: HashMap<InstId, TripCount>,
    shares: HashMap<InstId, BranchShares>,
}

impl Frequencies {
    /// Frequencies of every computation that the entry reaches.
    pub fn compute(module: &Module, options: FrequencyOptions) -> Frequencies {
        let mut reached = module.post_order();
        let tracer = Tracer::new(module, &reached);
        let mut solver =
            FrequencySolver { module, options, tracer, budget: Budget::new(), found: Frequencies::default() };
        if let Some(entry) = module.entry() {
            solver.found.of_computation[entry] = 1.0;
        }
        // Callers before callees.
        reached.reverse();
        for comp in reached {
            for &inst in &module.comp(comp).insts {
                solver.visit(inst);
            }
        }
        solver.found
    }

    /// How often a computation runs; 0 if the entry does not reach it.
    pub fn of(&self, comp: CompId) -> f64 {
        self.of_computation[comp]
    }

    /// How the number of runs of a computation was found: the least sure of all the loops and conditionals around it.
    pub fn basis(&self, comp: CompId) -> Basis {
        self.basis[comp]
    }

    /// How often an instruction runs.
    pub fn of_inst(&self, module: &Module, inst: InstId) -> f64 {
        self.of(module.inst(inst).parent)
    }

    /// How often an instruction runs its called computations, one number for each in the order of [`Module::called`].
    pub fn of_site(&self, module: &Module, site: InstId) -> Vec<f64> {
        let here = self.of_inst(module, site);
        let n_callees = module.called(site).len();
        match (self.trips.get(&site), self.shares.get(&site)) {
            (Some(trips), _) => {
                let body = here * trips.count as f64;
                // The condition comes first; it runs once more than the body.
                [body + here, body].into_iter().take(n_callees).collect()
            }
            (None, Some(branches)) => branches.shares.iter().map(|share| here * share).collect(),
            (None, None) => vec![here; n_callees],
        }
    }

    /// The trip count of a `while` that the entry reaches.
    pub fn trip_count(&self, site: InstId) -> Option<TripCount> {
        self.trips.get(&site).copied()
    }

    /// How many loops that the entry reaches are taken to run [`FrequencyOptions::unknown_trip_count`] times.
    pub fn n_assumed_loops(&self) -> usize {
        self.trips.values().filter(|trips| trips.basis == Basis::Assumed).count()
    }

    /// The branches of a `conditional` that the entry reaches.
    pub fn branch_shares(&self, site: InstId) -> Option<&BranchShares> {
        self.shares.get(&site)
    }
}

struct FrequencySolver<'m> {
    module: &'m Module,
    options: FrequencyOptions,
    tracer: Tracer<'m>,
    budget: Budget,
    found: Frequencies,
}

/// Computations that are looked at from a conditional outwards for conditionals around it.
const MAX_GUARD_DEPTH: usize = 64;

impl FrequencySolver<'_> {
    fn visit(&mut self, inst: InstId) {
        let callees = self.module.called(inst);
        if callees.is_empty() {
            return;
        }
        match self.module.inst(inst).opcode.row().flow.entry() {
            Some(CalleeEntry::Loop) => {
                let trips = self.trip_count(inst);
                self.found.trips.insert(inst, trips);
            }
            Some(CalleeEntry::Branches) => {
                let shares = self.branch_shares(inst, callees.len());
                self.found.shares.insert(inst, shares);
            }
            Some(CalleeEntry::Call) | None => {}
        }
        let runs = self.found.of_site(self.module, inst);
        let found = &mut self.found;
        let of_loop = found.trips.get(&inst).map(|trips| trips.basis);
        let of_branch = found.shares.get(&inst).map(|shares| shares.basis);
        let here = found.basis[self.module.inst(inst).parent];
        let basis = of_loop.or(of_branch).unwrap_or_default().max(here);
        for (callee, runs) in callees.into_iter().zip(runs) {
            found.of_computation[callee] += runs;
            found.basis[callee] = found.basis[callee].max(basis);
        }
    }

    fn trip_count(&mut self, site: InstId) -> TripCount {
        if let Some(count) = known_trip_count(self.module, site) {
            return TripCount { count, basis: Basis::Stated };
        }
        let condition = self.tracer.condition(site);
        match linear_trip_count(&mut self.tracer, site, condition).or_else(|| self.run_loop(site, condition)) {
            Some(count) => TripCount { count, basis: Basis::Derived },
            None => TripCount { count: self.options.unknown_trip_count, basis: Basis::Assumed },
        }
    }

    /// The trip count by running the loop's scalar code until the condition is false.
    fn run_loop(&mut self, site: InstId, condition: ExprId) -> Option<u64> {
        if let Expr::Known(element) = self.tracer.nodes[condition] {
            return (element == Element::Int(0)).then_some(0);
        }
        let slice = Slice::build(&mut self.tracer, &[condition], UnknownStart::Refuse)?;
        let mut ended = false;
        let count = slice.run(MAX_ITERATIONS, &mut self.budget, |values| {
            ended = values.first() == Some(&Element::Int(0));
            !ended
        })?;
        (slice.site == Some(site) && ended).then_some(count)
    }

    fn branch_shares(&mut self, site: InstId, n_branches: usize) -> BranchShares {
        let alike = vec![1.0 / n_branches as f64; n_branches].into_boxed_slice();
        self.counted_shares(site, n_branches).unwrap_or(BranchShares { shares: alike, basis: Basis::Assumed })
    }

    /// The shares by counting; `None` where the predicate is not a function of one loop's scalar state.
    fn counted_shares(&mut self, site: InstId, n_branches: usize) -> Option<BranchShares> {
        let chooser = Chooser::of(self.module, site, n_branches)?;
        let node = self.tracer.value(*self.module.inst(site).operands.first()?);
        if let Expr::Known(element) = self.tracer.nodes[node] {
            let mut shares = vec![0.0; n_branches];
            *shares.get_mut(chooser.branch(element))? = 1.0;
            return Some(BranchShares { shares: shares.into(), basis: Basis::Derived });
        }
        let alone = Slice::build(&mut self.tracer, &[node], UnknownStart::AssumeZero)?;
        let around = alone.site?;
        let trips = self.found.trip_count(around)?;
        let guards = self.guards(site, around)?;
        let mut targets = vec![node];
        targets.extend(guards.iter().map(|guard| guard.node));
        let slice = Slice::build(&mut self.tracer, &targets, UnknownStart::AssumeZero)?;
        let mut counts = vec![0u64; n_branches];
        let done = slice.run(trips.count, &mut self.budget, |values| {
            let leads_here = guards.iter().zip(&values[1..]).all(|(g, &value)| g.chooser.branch(value) == g.branch);
            if leads_here && let Some(count) = counts.get_mut(chooser.branch(values[0])) {
                *count += 1;
            }
            true
        })?;
        let total: u64 = counts.iter().sum();
        let is_exact = !slice.is_start_assumed && done == trips.count && trips.basis <= Basis::Derived;
        if total == 0 && !is_exact {
            return None;
        }
        // What is certain never to run divides its runs as it likes.
        let share = |&n: &u64| if total == 0 { 1.0 / n_branches as f64 } else { n as f64 / total as f64 };
        let basis = if is_exact { Basis::Derived } else { Basis::Estimated };
        Some(BranchShares { shares: counts.iter().map(share).collect(), basis })
    }

    /// The conditionals between `site` and the loop `around` it whose predicates are functions of that loop's state;
    /// `None` if the loop is not around it.
    fn guards(&mut self, site: InstId, around: InstId) -> Option<Vec<Guard>> {
        let mut guards = Vec::new();
        let mut inner = site;
        for _ in 0..MAX_GUARD_DEPTH {
            let comp = self.module.inst(inner).parent;
            let &[CallSite { inst: outer, slot }] = self.tracer.sites.of(comp) else { return None };
            if outer == around {
                return Some(guards);
            }
            if let Some(guard) = self.guard(outer, slot as usize, around) {
                guards.push(guard);
            }
            inner = outer;
        }
        None
    }

    fn guard(&mut self, outer: InstId, branch: usize, around: InstId) -> Option<Guard> {
        let n_branches = self.module.called(outer).len();
        let chooser = Chooser::of(self.module, outer, n_branches)?;
        let node = self.tracer.value(*self.module.inst(outer).operands.first()?);
        let slice = Slice::build(&mut self.tracer, &[node], UnknownStart::AssumeZero)?;
        (slice.site == Some(around)).then_some(Guard { node, chooser, branch })
    }
}

/// A conditional's branch within which something runs.
struct Guard {
    node: ExprId,
    chooser: Chooser,
    branch: usize,
}

/// How a conditional's first operand chooses a branch.
#[derive(Clone, Copy)]
enum Chooser {
    /// Two branches: the first for true.
    Predicate,
    /// By number; the last branch also takes numbers out of range.
    Index(usize),
}

impl Chooser {
    /// `None` if the instruction is no conditional.
    fn of(module: &Module, site: InstId, n_branches: usize) -> Option<Chooser> {
        let Attrs::Conditional(attrs) = &module.inst(site).attrs else { return None };
        match attrs.true_computation {
            Some(_) => Some(Chooser::Predicate),
            None => Some(Chooser::Index(n_branches.checked_sub(1)?)),
        }
    }

    fn branch(self, element: Element) -> usize {
        match (self, element) {
            (Chooser::Predicate, Element::Int(x)) => usize::from(x == 0),
            (Chooser::Index(last), Element::Int(x)) => usize::try_from(x).map_or(last, |x| x.min(last)),
            (Chooser::Predicate, Element::Float(_)) => 1,
            (Chooser::Index(last), Element::Float(_)) => last,
        }
    }
}
