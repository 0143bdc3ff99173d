//! Costs by symmetry, by simulation and by running the real states; the best program against all programs.

use crate::random::Random;
use hlo_cluster::reduction::graph::{Edge, Graph};
use hlo_cluster::reduction::semantics::{DeviceState, Sizes, apply};
use hlo_cluster::reduction::{
    Lowering, ParallelismMatrix, PlacedReduction, Planner, Priced, Request, Rules, StepCosts,
};
use hlo_cluster::{Algo, Cluster, Collective};

const SYSTEMS: [(&str, &[u32]); 11] = [
    ("[(n,2,8,3),(g,4,100,1)]", &[2, 4]),
    ("[(n,2,8,3),(g,4,100,1)]", &[4, 2]),
    ("[(n,3,8,3),(g,4,20,1)]", &[6, 2]),
    ("[(r,2,3,5),(n,3,8,3),(g,4,20,1)]", &[4, 3, 2]),
    ("[(r,2,3,5),(n,2,8,3),(g,4,20,1)]", &[8, 2]),
    ("[(g,12,5,1)]", &[4, 3]),
    ("p2-v100:2", &[8, 2]),
    ("[(n,4,8,3),(g,8,100,1)]", &[32, 1]),
    ("[(r,2,3,5),(n,4,8,3),(g,4,20,1)]", &[1, 32]),
    ("[(n,2,8,3),(g,6+2,100,1)]", &[4, 2]),
    ("[(n,3,8,3),(g,8+8+4,100,1)]", &[10, 2]),
];

/// Every reduction of every matrix of the systems above, in both lowerings, for each algorithm.
fn for_each_case(mut run: impl FnMut(&PlacedReduction<'_>, &Graph)) {
    let graphs: Vec<Graph> = (0..=3).map(|n| Graph::build(n, Rules::Pinned).expect("a graph")).collect();
    for (text, axes) in SYSTEMS {
        let cluster = Cluster::from_arg(text).expect("a cluster");
        let levels = cluster.regular_hierarchy();
        for matrix in ParallelismMatrix::all(&levels, axes).expect("matrices") {
            for reduce in [vec![0], vec![1], vec![0, 1]] {
                let n_factors = matrix.reduction_factors(&reduce).iter().filter(|f| **f > 1).count();
                for lowering in [Lowering::LevelMajor, Lowering::AxisMajor] {
                    for algo in [Algo::Ring, Algo::Tree, Algo::Auto] {
                        let (cluster, matrix, reduce) = (&cluster, &matrix, reduce.as_slice());
                        let reduction = PlacedReduction { cluster, matrix, reduce, lowering, bytes: 1e6, algo };
                        run(&reduction, &graphs[n_factors]);
                    }
                }
            }
        }
    }
}

#[test]
fn symmetry_costs_what_simulation_costs() {
    let mut n_bounds = 0;
    for_each_case(|reduction, graph| {
        let mut fast = StepCosts::new(graph, reduction);
        let (mut bounded, mut slow) = (StepCosts::new(graph, reduction), StepCosts::by_simulation(graph, reduction));
        for edge in graph.edges.iter().flatten() {
            let (bound, is_exact) = bounded.bound_s(edge);
            let (a, b) = (fast.seconds(edge), slow.seconds(edge));
            let step = graph.step(edge);
            assert!(bound <= b * (1.0 + 1e-12), "{:?} {step}: a bound of {bound} for {b}", reduction.matrix);
            assert!(!is_exact || (a - bound).abs() <= 1e-12 * b, "{step}: {bound} is said to be exact, {a} is");
            n_bounds += usize::from(!is_exact);
            assert!((a - b).abs() <= 1e-12 * b, "{:?} {step} {}: {a} {b}", reduction.matrix, reduction.algo as u8);
        }
        let (a, b) = (fast.all_reduce_s(), slow.all_reduce_s());
        assert!((a - b).abs() <= 1e-12 * b, "{a} {b}");
    });
    assert!(n_bounds > 300, "{n_bounds} steps were bounded");
}

/// The time of a program on the real factors: states are run with counted chunks, a group's bytes are its chunks.
fn real_s(reduction: &PlacedReduction<'_>, graph: &Graph, program: &[Edge]) -> f64 {
    let of_levels = reduction.matrix.reduction_factors(reduction.reduce);
    let factors: Vec<usize> = of_levels.into_iter().map(|f| f as usize).filter(|f| *f > 1).collect();
    let k: usize = factors.iter().product();
    let devices = reduction.matrix.reduction_groups(reduction.reduce, reduction.lowering);
    let mut state: Vec<DeviceState> = (0..k).map(|d| DeviceState::start(d, k)).collect();
    let chunks = |s: &DeviceState| s.rows.iter().filter(|row| **row != 0).count() as f64 / k as f64;
    let mut total = 0.0;
    for edge in program {
        let step = graph.step(edge);
        let mut groups = Vec::new();
        for group in step.instruction.groups(&factors) {
            let before: Vec<&DeviceState> = group.iter().map(|at| &state[*at]).collect();
            let after = apply(step.collective, &before, Rules::Pinned, Sizes::Counted).expect("a valid program");
            let whole = match step.collective {
                Collective::AllGather => chunks(&after[0]),
                _ => chunks(before[0]),
            };
            group.iter().zip(after).for_each(|(at, s)| state[*at] = s);
            if whole > 0.0 {
                groups.extend(devices.iter().map(|of| (group.iter().map(|p| of[*p]).collect::<Vec<u32>>(), whole)));
            }
        }
        total += reduction.cluster.weighted_cost(step.collective, &groups, reduction.algo).seconds(reduction.bytes);
    }
    assert!(state.iter().all(|s| *s == DeviceState::goal(k)));
    total
}

#[test]
fn symbolic_costs_are_real_ones() {
    let mut random = Random(7);
    for_each_case(|reduction, graph| {
        let mut costs = StepCosts::new(graph, reduction);
        let mut programs = Vec::new();
        graph.for_each_program(usize::MAX, &mut |p| programs.push(p.to_vec()));
        // All programs of one or two levels, some of the 1,287 of three.
        let keep = if programs.len() > 100 { 15 } else { programs.len() };
        random.shuffle(&mut programs);
        for program in &programs[..keep] {
            let symbolic: f64 = program.iter().map(|edge| costs.seconds(edge)).sum();
            let real = real_s(reduction, graph, program);
            assert!((symbolic - real).abs() <= 1e-12 * real, "{:?} {symbolic} {real}", reduction.matrix);
        }
    });
}

#[test]
fn the_best_program_is_the_best_of_all() {
    for_each_case(|reduction, graph| {
        if graph.n_factors == 0 || reduction.algo != Algo::Auto {
            return;
        }
        let mut costs = StepCosts::new(graph, reduction);
        let all_reduce_s = costs.all_reduce_s();
        let priced = Priced::new(graph, |edge| costs.seconds(edge));
        for max_size in [None, Some(1), Some(2), Some(3)] {
            let mut all = Vec::new();
            graph.for_each_program(max_size.unwrap_or(99), &mut |p| {
                let seconds: f64 = p.iter().map(|edge| costs.seconds(edge)).sum();
                let text: Vec<String> = p.iter().map(|edge| graph.step(edge).to_string()).collect();
                all.push((seconds, p.len(), text));
            });
            assert_eq!(all.len() as u128, graph.n_programs(max_size));
            let least = all.iter().map(|p| p.0).fold(f64::INFINITY, f64::min);
            let near = all.iter().filter(|p| p.0 <= least * (1.0 + 1e-12));
            let first = near.map(|p| (p.1, p.2.clone())).min().expect("a program");
            let best = priced.best(max_size).expect("a program");
            let text: Vec<String> = best.steps.iter().map(|edge| graph.step(edge).to_string()).collect();
            assert!((best.seconds - least).abs() <= 1e-12 * least);
            assert_eq!((text.len(), text), first);
            let faster = all.iter().filter(|p| p.0 < all_reduce_s * (1.0 - 1e-12)).count() as u128;
            assert_eq!(priced.n_faster(all_reduce_s, max_size), faster);
            let front = priced.front(max_size);
            for point in &front {
                let rivals = all.iter().filter(|p| p.1 <= point.steps.len());
                let least = rivals.map(|p| p.0).fold(f64::INFINITY, f64::min);
                assert!((point.seconds - least).abs() <= 1e-12 * least);
            }
        }
    });
}

#[test]
fn a_plan_names_its_devices() {
    let cluster = Cluster::from_arg("p2-a100:2").expect("shipped");
    let mut planner = Planner::new(&cluster, Rules::Pinned);
    let request = Request { reduce: vec![1], bytes: 2f64.powi(31), algo: Algo::Ring, lowering: None, max_size: None };
    let plans = planner.plan_all(&[2, 16], &request).expect("plans");
    assert_eq!(plans.iter().map(|p| p.n_programs).collect::<Vec<_>>(), [47, 3]);
    let across = &plans[0];
    assert_eq!(across.matrix.rows(), [vec![1, 2], vec![2, 8]]);
    assert!(across.n_faster > 0 && across.best_s < across.all_reduce_s);
    // BlueConnect: scatter inside the nodes, all-reduce across, gather inside.
    let kinds: Vec<Collective> = across.best.iter().map(|s| s.collective).collect();
    assert_eq!(kinds, [Collective::ReduceScatter, Collective::AllReduce, Collective::AllGather]);
    assert_eq!(across.best[0].groups[0], (0..8).collect::<Vec<u32>>());
    assert_eq!(across.best[1].groups[0], [0, 16]);
    // Within a node nothing beats one all-reduce.
    assert_eq!((plans[1].n_faster, plans[1].best.len()), (0, 1));
    let nothing = Request { reduce: vec![0], ..request.clone() };
    let plan = planner.plan_all(&[1, 32], &nothing).expect("plans");
    assert_eq!((plan[0].n_programs, plan[0].best_s, plan[0].best.len()), (0, 0.0, 0));
    let error = planner.plan_all(&[2, 16], &Request { reduce: vec![2], ..request }).err().map(|e| e.to_string());
    assert_eq!(error.as_deref(), Some("reduce: expected different axes below 2, found [2]"));
}

#[test]
fn nodes_of_different_sizes_are_planned_over_equal_blocks() {
    let levels = |text: &str| Cluster::from_arg(text).map(|c| c.regular_hierarchy());
    assert_eq!(levels("[(n,3),(g,8+8+4)]"), Ok(vec![5, 4]));
    assert_eq!(levels("[(n,2),(g,3+4)]"), Ok(vec![7, 1]));
    assert_eq!(levels("[(p,2),(n,2+1),(g,2+4+6)]"), Ok(vec![2, 3, 2]));
    for name in Cluster::shipped() {
        let cluster = Cluster::from_arg(name).expect("a shipped cluster");
        assert_eq!(cluster.hierarchy(), Some(cluster.regular_hierarchy()), "{name}");
    }
    // Two full nodes and a half one: pairs first, then the ten pairs; no program may beat what the links allow.
    let cluster = Cluster::from_arg("[(n,3,8),(g,8+8+4)]").expect("a cluster");
    let mut planner = Planner::new(&cluster, Rules::Pinned);
    let request = Request { reduce: vec![0], bytes: 1e9, algo: Algo::Ring, lowering: None, max_size: None };
    let plan = &planner.plan_all(&[20], &request).expect("a plan")[0];
    assert_eq!((plan.matrix.rows(), plan.n_programs), ([vec![5, 4]].as_slice(), 47));
    assert!(plan.n_faster > 0 && plan.best_s < plan.all_reduce_s, "{} {}", plan.best_s, plan.all_reduce_s);
    let all: Vec<Vec<u32>> = vec![(0..20).collect()];
    assert_eq!(plan.all_reduce_s, cluster.collective_s(Collective::AllReduce, 1e9, &all, Algo::Ring));
}
