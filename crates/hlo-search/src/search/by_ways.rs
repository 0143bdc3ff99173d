//! The search over ways of regions: best first, by bound, over what is fixed of them.
//!
//! A bound of the whole problem may mix ways (half of each), which costs less than any of them. With the ways fixed, what is left is a
//! problem as that of a program as it is, whose bounds are sharp. So nodes of a tree fix the ways of some regions, and the node of
//! the least bound is branched over the next region until no node is below the best plan. The bound is the least of the nodes'.

use super::MeshSearch;
use crate::baselines::Allowed;
use crate::network::{PlanNetwork, RegionPart};
use crate::regions::RegionId;
use crate::solver::{Assignment, Cost, INFINITE, Solved};

/// Ways that are fixed, of the first regions of the order.
struct Node {
    fixed: Vec<(RegionId, u32)>,
    bound: Cost,
}

/// How often the tables are read for a node in which ways are free, and for one in which all are fixed.
const READS: [u64; 2] = [64, 4096];

impl MeshSearch<'_, '_, '_> {
    /// The best plan over all ways of regions on a mesh.
    pub(super) fn solve_by_ways(
        &mut self,
        network: &mut PlanNetwork,
        starts: &[Assignment],
        effort: u64,
        cutoff: Option<Cost>,
    ) -> Solved {
        let order = self.regions_by_arithmetic();
        let n_entries: u64 = network.problem.pairs.iter().map(|pair| pair.table.costs.len() as u64).sum();
        let (end, first_step) = (self.n_steps.saturating_add(effort), self.n_steps);
        let outside = cutoff.unwrap_or(INFINITE);
        let mut best = self.solve_within(network, None, starts, READS[0] * n_entries, cutoff);
        let mut open = vec![Node { fixed: Vec::new(), bound: best.lower_bound }];
        // Nodes that cannot be branched any more, and what they end at.
        let mut least_closed = INFINITE;
        loop {
            let wanted = self.near(best.cost).min(outside);
            let Some(at) = (0..open.len()).min_by_key(|&k| (open[k].bound, usize::MAX - open[k].fixed.len())) else {
                break;
            };
            if open[at].bound >= wanted || self.n_steps >= end || (self.limits.is_over)() {
                break;
            }
            let node = open.swap_remove(at);
            let Some(&region) = order.get(node.fixed.len()) else {
                least_closed = least_closed.min(node.bound);
                continue;
            };
            for way in 0..self.facts.program.choices.n_ways[region] {
                let fixed: Vec<(RegionId, u32)> = node.fixed.iter().copied().chain([(region, way)]).collect();
                let allowed = allow_ways(network, &fixed);
                let reads = READS[usize::from(fixed.len() == order.len())];
                let left = end.saturating_sub(self.n_steps);
                let to_beat = Some(best.cost.min(outside)).filter(|&cost| cost < INFINITE);
                let solved = self.solve_within(network, Some(&allowed), &[], left.min(reads * n_entries), to_beat);
                open.push(Node { fixed, bound: solved.lower_bound.max(node.bound) });
                if solved.cost < best.cost {
                    best = Solved { lower_bound: best.lower_bound, ..solved };
                }
            }
        }
        let lower_bound = open.iter().map(|node| node.bound).fold(least_closed, Cost::min).min(best.cost);
        let was_bounded = outside < best.cost && lower_bound >= outside;
        Solved {
            lower_bound: lower_bound.min(outside.max(best.lower_bound)),
            is_exact: best.assignment.is_some() && (best.cost - lower_bound) as f64 <= 1e-9 * best.cost as f64,
            was_bounded,
            was_stopped: self.was_stopped,
            n_steps: self.n_steps - first_step,
            phases: Vec::new(),
            ..best
        }
    }

    fn near(&self, cost: Cost) -> Cost {
        if cost >= INFINITE { cost } else { cost - (cost as f64 * self.limits.wanted_gap) as Cost }
    }

    /// The regions, those with most arithmetic first.
    fn regions_by_arithmetic(&self) -> Vec<RegionId> {
        let program = self.facts.program;
        let flops = |region: &RegionId| -> f64 {
            let own = program.choices.ops_of(*region).iter();
            let own = own.filter(|&&op| program.choices.of_op[op].is_some_and(|of| of.way == 0));
            own.filter_map(|&op| Some(self.facts.work.of_op[op].as_ref()?.flops() * program.ops[op].frequency)).sum()
        };
        let mut order: Vec<RegionId> = program.choices.n_ways.keys().collect();
        order.sort_by(|a, b| flops(b).total_cmp(&flops(a)));
        order
    }
}

/// The states that variables may have where these regions are computed in these ways.
fn allow_ways(network: &PlanNetwork, fixed: &[(RegionId, u32)]) -> Allowed {
    let mut allowed = Allowed::new();
    let way_of = |region: RegionId| fixed.iter().find(|(one, _)| *one == region).map(|&(_, way)| way);
    for &(region, way) in fixed {
        if let Some(var) = network.var_of_region[region].expand() {
            let n_ways = network.problem.variables[var].len() as u32;
            allowed[var] = (0..n_ways).map(|other| other == way).collect();
        }
    }
    for (var, costs) in &network.problem.variables {
        let all = 0..costs.len();
        allowed[var] = match network.part(var) {
            RegionPart::OfWay(of) => match way_of(of.region) {
                Some(way) => all.map(|state| (state + 1 < costs.len()) == (way == of.way)).collect(),
                None => continue,
            },
            RegionPart::AtRegion(region, n_ways) => match way_of(region) {
                Some(way) => all.map(|state| state as u32 % n_ways == way).collect(),
                None => continue,
            },
            RegionPart::Outside => continue,
        };
    }
    allowed
}
