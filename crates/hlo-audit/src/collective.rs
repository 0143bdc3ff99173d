//! The collectives of a module: who takes part, what they move, how long they take and how often they run.

use crate::cost::Cost;
use hashbrown::HashMap;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::time::{Members, exchanged_bytes, members_of};
use hlo_cluster::CollectiveCost;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{CollectiveForm, CollectiveRule, CollectiveSource};
use hlo_ir::{InstId, Module};
use hlo_mesh::{Exchange, Network};

/// Arrays below this are latency alone, and XLA moves them with others: checks about bytes leave them.
pub(crate) const SMALL_BYTES: u64 = 1 << 10;

/// A collective that waits for its outcome, or the first half of one that does not.
#[derive(Clone, Debug)]
pub(crate) struct Collective {
    pub(crate) inst: InstId,
    pub(crate) rule: CollectiveRule,
    /// Who takes part.
    pub(crate) members: Members,
    /// The reduction, if it is a well-known one.
    pub(crate) reducer: Option<Monoid>,
    /// The dim that is scattered or gathered.
    pub(crate) dim: Option<usize>,
    /// Bytes of the larger of what one device puts in and what it gets, in one run.
    pub(crate) bytes: u64,
    /// Predicted seconds of one run.
    pub(crate) run_s: f64,
    /// Runs in a step.
    pub(crate) n_runs: f64,
}

impl Collective {
    /// The sum of all operands over the groups, whole on every device.
    pub(crate) fn is_all_reduce(&self) -> bool {
        self.rule.reduces() && !self.rule.scatters
    }

    /// All parts on every device.
    pub(crate) fn is_all_gather(&self) -> bool {
        self.rule.source == CollectiveSource::Members && self.rule.gathers && !self.rule.scatters
    }

    /// Whether no device receives anything of another.
    pub(crate) fn is_of_one_device(&self) -> bool {
        self.members.groups.iter().all(|group| group.len() <= 1)
            && self.members.pairs.iter().all(|(from, to)| from == to)
    }

    /// How many arrays it moves.
    pub(crate) fn n_arrays(&self, module: &Module) -> usize {
        module.inst(self.inst).operands.len()
    }

    /// What arrays of `bytes` together cost, as a part of `runs` of this collective.
    pub(crate) fn cost(&self, bytes: u64, runs: f64) -> Cost {
        let share = if self.bytes == 0 { 1.0 } else { bytes as f64 / self.bytes as f64 };
        Cost::Moved { bytes: bytes as f64 * runs, seconds: self.run_s * share.min(1.0) * runs }
    }

    /// What the whole of it costs in a step.
    pub(crate) fn whole_cost(&self) -> Cost {
        self.cost(self.bytes, self.n_runs)
    }
}

/// The collectives of everything that the entry reaches, in text order.
pub(crate) fn find_collectives(module: &Module, frequencies: &Frequencies, network: &Network) -> Vec<Collective> {
    let mut costs: HashMap<(Exchange, Members), CollectiveCost> = HashMap::new();
    let mut found = Vec::new();
    for &comp in module.computations() {
        let n_runs = frequencies.of(comp);
        if n_runs <= 0.0 {
            continue;
        }
        for &inst in &module.comp(comp).insts {
            let Some(rule) = module.inst(inst).opcode.row().collective else { continue };
            if matches!(rule.form, CollectiveForm::Done(..)) {
                continue;
            }
            let exchange = Exchange::of(rule);
            let members = members_of(module, inst, exchange);
            let bytes = exchanged_bytes(module, inst, rule) as u64;
            let cost = costs
                .entry((exchange, members.clone()))
                .or_insert_with(|| network.exchange(exchange, &members.groups, &members.pairs));
            let view = module.inst(inst).attrs.collective();
            let reducer = view.and_then(|view| find_monoid(module, view.to_apply?));
            let run_s = cost.seconds(bytes as f64);
            let dim = view.and_then(|view| view.dim());
            found.push(Collective { inst, rule, members, reducer, dim, bytes, run_s, n_runs });
        }
    }
    found.iter_mut().filter(|c| c.is_of_one_device()).for_each(|c| c.run_s = 0.0);
    found
}
