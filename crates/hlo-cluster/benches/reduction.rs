//! How long synthesis and planning take, the state graph included each time.

use hlo_cluster::reduction::{Graph, Planner, Request, Rules};
use hlo_cluster::{Algo, Cluster};

fn main() {
    divan::main();
}

/// The state graph alone: 1,287, 57,865 and 3,936,857 programs.
#[divan::bench(args = [2, 3, 4, 5], sample_count = 5)]
fn state_graph(n_factors: usize) -> Option<u128> {
    Graph::build(n_factors, Rules::Pinned).ok().map(|graph| graph.n_programs(None))
}

/// Best programs on all matrices, with counts.
fn plan(cluster: &str, axes: &[u32], reduce: &[usize]) -> Option<f64> {
    let cluster = Cluster::from_arg(cluster).ok()?;
    let mut planner = Planner::new(&cluster, Rules::Pinned);
    let request =
        Request { reduce: reduce.to_vec(), bytes: 2f64.powi(31), algo: Algo::Auto, lowering: None, max_size: None };
    let plans = planner.plan_all(axes, &request).ok()?;
    Some(plans.iter().map(|plan| plan.best_s).sum())
}

/// The paper's largest synthesis.
#[divan::bench]
fn papers_largest() -> Option<f64> {
    plan("p2-a100", &[64], &[0])
}

/// 4,096 devices on four levels, both axes alone and together.
#[divan::bench(sample_count = 3)]
fn four_levels() -> Option<f64> {
    let hierarchy = "[(a,8),(b,8),(c,8),(d,8)]";
    let alone = |axis| plan(hierarchy, &[64, 64], &[axis]);
    Some(alone(0)? + alone(1)? + plan(hierarchy, &[64, 64], &[0, 1])?)
}

/// 100,000 devices on five levels, 100 matrices.
#[divan::bench(sample_count = 3)]
fn five_levels() -> Option<f64> {
    plan("[(a,10),(b,10),(c,10),(d,10),(e,10)]", &[1000, 100], &[0])
}
