//! Cuts of chains into pipeline stages, beside all cuts tried in turn and beside a simulated schedule.

mod random;

use hlo_search::{Stage, StageCut, StageError, StageLayer, StageLimits, cut_stages};
use random::Random;

fn random_chain(random: &mut Random) -> Vec<StageLayer> {
    let n_layers = 1 + random.below(9) as usize;
    let (heaviest_border, has_equal_layers) = ([0, 3, 30][random.below(3) as usize], random.below(4) == 0);
    let mut layer = || StageLayer {
        forward_ps: 1 + random.below(20),
        backward_ps: 1 + random.below(40),
        weight_bytes: random.below(50),
        kept_bytes: random.below(20),
        border_ps: random.below(heaviest_border + 1),
        border_bytes: random.below(10),
    };
    if has_equal_layers { vec![layer(); n_layers] } else { (0..n_layers).map(|_| layer()).collect() }
}

/// All ways to begin `n_stages` stages in `n_layers` layers.
fn all_begins(n_layers: usize, n_stages: usize) -> Vec<Vec<usize>> {
    let subsets = (0..1_u32 << (n_layers - 1)).filter(|set| set.count_ones() as usize + 1 == n_stages);
    subsets.map(|set| std::iter::once(0).chain((1..n_layers).filter(|at| set >> (at - 1) & 1 == 1)).collect()).collect()
}

/// The total of a cut and the time of its slowest stage, added up layer by layer; `None` where a stage takes too much memory.
fn price(layers: &[StageLayer], begins: &[usize], limits: &StageLimits) -> Option<(u64, u64)> {
    let mut times = Vec::new();
    for (at, &begin) in begins.iter().enumerate() {
        let end = begins.get(at + 1).copied().unwrap_or(layers.len());
        let in_flight = limits.n_microbatches.min((begins.len() - at) as u64);
        let (mut ps, mut bytes) = (if at == 0 { 0 } else { layers[begin].border_ps }, 0);
        for layer in &layers[begin..end] {
            ps += layer.forward_ps + layer.backward_ps;
            bytes += layer.weight_bytes + in_flight * layer.kept_bytes;
        }
        if bytes > limits.memory_bytes {
            return None;
        }
        times.push(ps);
    }
    let slowest = *times.iter().max().expect("a stage");
    Some((times.iter().sum::<u64>() + (limits.n_microbatches - 1) * slowest, slowest))
}

#[test]
fn cuts_are_the_best_of_all_cuts() {
    let mut random = Random::new(1);
    let (mut n_found, mut n_without) = (0, 0);
    for _ in 0..200 {
        let layers = random_chain(&mut random);
        let n_microbatches = 1 + random.below(8);
        let all: u64 = layers.iter().map(|layer| layer.weight_bytes + layer.kept_bytes * n_microbatches).sum();
        let memory_bytes = [u64::MAX, all / 2, all / 3, all / 5][random.below(4) as usize];
        for n_stages in 1..=layers.len() {
            let limits = StageLimits { n_stages, n_microbatches, memory_bytes };
            let all_cuts = all_begins(layers.len(), n_stages);
            let best = all_cuts.iter().filter_map(|begins| price(&layers, begins, &limits)).min();
            match (cut_stages(&layers, &limits), best) {
                (Ok(cut), Some((total_ps, _))) => {
                    let begins: Vec<usize> = cut.stages.iter().map(|stage| stage.begin).collect();
                    assert_eq!(cut.total_ps, total_ps, "{layers:?} {limits:?}");
                    assert_eq!(price(&layers, &begins, &limits), Some((cut.total_ps, cut.slowest_ps)));
                    assert!(cut.stages.iter().all(|stage| stage.memory_bytes <= memory_bytes));
                    n_found += 1;
                }
                (Err(StageError::Memory { limit_bytes }), None) => {
                    assert_eq!(limit_bytes, memory_bytes);
                    n_without += 1;
                }
                (found, expected) => panic!("expected {expected:?}, found {found:?}: {layers:?} {limits:?}"),
            }
        }
    }
    assert!(n_found > 300 && n_without > 100, "both occur: {n_found} cuts, {n_without} chains without one");
}

/// The time of a step when each stage does its forward and backward passes one at a time in the order of 1F1B.
fn simulate(layers: &[StageLayer], stages: &[Stage], n_microbatches: usize) -> u64 {
    let n = stages.len();
    let sum = |stage: &Stage, of: fn(&StageLayer) -> u64| layers[stage.begin..stage.end].iter().map(of).sum::<u64>();
    let forward: Vec<u64> = stages.iter().map(|stage| sum(stage, |layer| layer.forward_ps)).collect();
    let backward: Vec<u64> = stages.iter().map(|stage| sum(stage, |layer| layer.backward_ps)).collect();
    // By stage: (is backward, microbatch), so many forward passes ahead as there are stages behind.
    let order = |stage: usize| -> Vec<(bool, usize)> {
        let ahead = (n - stage).min(n_microbatches);
        let mut order: Vec<_> = (0..ahead).map(|batch| (false, batch)).collect();
        for batch in 0..n_microbatches {
            order.push((true, batch));
            order.extend((batch + ahead < n_microbatches).then_some((false, batch + ahead)));
        }
        order
    };
    let orders: Vec<_> = (0..n).map(order).collect();
    let mut done = vec![[vec![None; n_microbatches], vec![None; n_microbatches]]; n];
    let (mut next, mut free) = (vec![0; n], vec![0_u64; n]);
    while (0..n).any(|stage| next[stage] < orders[stage].len()) {
        for stage in 0..n {
            while let Some(&(is_backward, batch)) = orders[stage].get(next[stage]) {
                let needs = match (is_backward, stage) {
                    (false, 0) => Some(0),
                    (false, _) => done[stage - 1][0][batch],
                    (true, last) if last + 1 == n => done[stage][0][batch],
                    (true, _) => done[stage + 1][1][batch],
                };
                let Some(ready) = needs else { break };
                let takes = if is_backward { backward[stage] } else { forward[stage] };
                free[stage] = free[stage].max(ready) + takes;
                done[stage][usize::from(is_backward)][batch] = Some(free[stage]);
                next[stage] += 1;
            }
        }
    }
    free.into_iter().max().expect("a stage")
}

#[test]
fn equal_stages_take_what_a_simulated_schedule_takes() {
    let layer = StageLayer { forward_ps: 10, backward_ps: 20, ..StageLayer::default() };
    for (n_stages, m) in [(1, 1), (2, 3), (4, 8), (6, 4), (8, 64)] {
        let layers = vec![layer; 2 * n_stages];
        let limits = StageLimits { n_stages, n_microbatches: m, memory_bytes: u64::MAX };
        let cut = cut_stages(&layers, &limits).expect("a cut");
        assert_eq!(cut.total_ps, (m + n_stages as u64 - 1) * 60);
        assert_eq!(simulate(&layers, &cut.stages, m as usize), cut.total_ps);
        let idle = (n_stages - 1) as f64 / (m as f64 + (n_stages - 1) as f64);
        assert!((cut.bubble_share - idle).abs() < 1e-12, "{} {idle}", cut.bubble_share);
    }
}

/// With unequal stages the formula is a model; the simulated schedule is near it.
#[test]
fn unequal_stages_take_about_what_a_simulated_schedule_takes() {
    let mut random = Random::new(2);
    let mut ratios = Vec::new();
    for _ in 0..500 {
        let mut layers = random_chain(&mut random);
        layers.iter_mut().for_each(|layer| layer.border_ps = 0);
        let n_stages = 1 + random.below(layers.len() as u64) as usize;
        let limits = StageLimits { n_stages, n_microbatches: 1 + random.below(32), memory_bytes: u64::MAX };
        let cut = cut_stages(&layers, &limits).expect("a cut");
        ratios.push(simulate(&layers, &cut.stages, limits.n_microbatches as usize) as f64 / cut.total_ps as f64);
    }
    ratios.sort_by(f64::total_cmp);
    let (least, median, most) = (ratios[0], ratios[250], ratios[499]);
    assert!(least > 0.79 && (median - 1.0).abs() < 1e-3 && most < 1.01, "{least} {median} {most}");
}

#[test]
fn in_flight_microbatches_decide_the_cut() {
    // Each layer keeps 10 bytes of a microbatch. Three stages have 3, 2 and 1 in flight, so that 60 bytes hold 2, 3 and 6 layers.
    let layer = StageLayer { forward_ps: 1, backward_ps: 1, kept_bytes: 10, ..StageLayer::default() };
    let lengths = |n_layers: usize, memory_bytes: u64| {
        let limits = StageLimits { n_stages: 3, n_microbatches: 8, memory_bytes };
        let cut: StageCut = cut_stages(&vec![layer; n_layers], &limits)?;
        Ok(cut.stages.iter().map(|stage| (stage.end - stage.begin, stage.memory_bytes)).collect::<Vec<_>>())
    };
    assert_eq!(lengths(9, 90), Ok(vec![(3, 90), (3, 60), (3, 30)]));
    assert_eq!(lengths(11, 60), Ok(vec![(2, 60), (3, 60), (6, 60)]));
    assert_eq!(lengths(12, 60), Err(StageError::Memory { limit_bytes: 60 }));
}

#[test]
fn impossible_sizes_are_refused() {
    let layers = [StageLayer::default(); 3];
    for (n_stages, n_microbatches) in [(0, 1), (4, 1), (1, 0)] {
        let limits = StageLimits { n_stages, n_microbatches, memory_bytes: u64::MAX };
        let error = cut_stages(&layers, &limits).expect_err("no cut");
        assert_eq!(error, StageError::Sizes { n_layers: 3, n_stages, n_microbatches });
        assert!(error.to_string().contains("expected one to 3 stages"), "{error}");
    }
}
