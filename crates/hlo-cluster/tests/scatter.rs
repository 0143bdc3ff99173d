//! Reduce-scatters and all-gathers in several steps: run on arrays of chunks, against the definition of one step.

use crate::random::Random;
use hlo_cluster::reduction::scatter::{devices, scatter_programs};
use hlo_cluster::reduction::{InstructionForm, Scatter};
use hlo_cluster::{Algo, Cluster, Collective};

/// Deals the chunks of arrays out by groups of devices, blocks in the order of the members.
fn deal(groups: &[Vec<u32>], held: &mut [Vec<usize>]) {
    for group in groups {
        let whole = held[group[0] as usize].clone();
        assert!(group.iter().all(|&d| held[d as usize] == whole));
        let blocks = whole.chunks(whole.len() / group.len());
        group.iter().zip(blocks).for_each(|(&d, block)| held[d as usize] = block.to_vec());
    }
}

/// Concatenates by groups, in the order of the members.
fn gather(groups: &[Vec<u32>], held: &mut [Vec<usize>]) {
    for group in groups {
        let whole: Vec<usize> = group.iter().flat_map(|&d| held[d as usize].clone()).collect();
        group.iter().for_each(|&d| held[d as usize].clone_from(&whole));
    }
}

#[test]
fn programs_are_the_orders_of_ranges() {
    let counts: Vec<usize> = (1..=5).map(|n| scatter_programs(n).len()).collect();
    assert_eq!(counts, [1, 3, 11, 49, 261]);
}

#[test]
fn every_program_leaves_every_device_its_chunk() {
    let mut random = Random(11);
    for factors in [vec![2, 4], vec![3, 2], vec![2, 2, 2], vec![2, 3, 2], vec![2, 1 + 1, 3, 2]] {
        let k: usize = factors.iter().product();
        // Two groups that lie side by side, devices at random.
        let mut ids: Vec<u32> = (0..2 * k as u32).collect();
        random.shuffle(&mut ids);
        let groups: Vec<Vec<u32>> = ids.chunks(k).map(<[u32]>::to_vec).collect();
        for _ in 0..3 {
            let mut chunks: Vec<usize> = (0..k).collect();
            random.shuffle(&mut chunks);
            let both = [chunks.clone(), chunks.clone()];
            let scatter = Scatter { factors: &factors, groups: &groups, chunks: &both };
            for program in scatter_programs(factors.len()) {
                let (order, steps) = scatter.with_order(&program).expect("an order");
                let mut held = vec![order.clone(); 2 * k];
                steps.iter().for_each(|groups| deal(groups, &mut held));
                for group in &groups {
                    assert!(group.iter().zip(&chunks).all(|(&d, &chunk)| held[d as usize] == [chunk]));
                }
                steps.iter().rev().for_each(|groups| gather(groups, &mut held));
                assert!(held.iter().all(|whole| *whole == order), "{factors:?} {program:?}");
            }
        }
    }
}

#[test]
fn groups_that_need_different_orders_are_refused() {
    let groups = [vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
    let chunks = [vec![0, 1, 2, 3], vec![0, 2, 3, 1]];
    let scatter = Scatter { factors: &[2, 2], groups: &groups, chunks: &chunks };
    let programs = scatter_programs(2);
    let n_right = programs.iter().filter(|program| scatter.with_order(program).is_ok()).count();
    // All at once, and none of the others: one group pairs 0 with 2 and 0 with 1, the other 0 with 3 and 0 with 2.
    assert_eq!((programs.len(), n_right), (3, 1));
    let twice = Scatter { factors: &[2, 2], groups: &groups, chunks: &[vec![0, 1, 2, 2], vec![0, 1, 2, 3]] };
    assert!(programs.iter().all(|program| twice.with_order(program).is_err()));
}

#[test]
fn the_best_program_is_the_cheapest_and_scatters_within_the_nodes_first() {
    let cluster = Cluster::from_arg("[(node,2,8,3),(gpu,4,270,1)]").expect("a cluster");
    let (groups, chunks) = ([(0..8).collect::<Vec<u32>>()], [(0..8).collect::<Vec<usize>>()]);
    let factors = [2, 4];
    let scatter = Scatter { factors: &factors, groups: &groups, chunks: &chunks };
    for kind in [Collective::ReduceScatter, Collective::AllGather] {
        let best = scatter.best(&cluster, kind, 1e9, Algo::Ring).expect("a program");
        let forms: Vec<InstructionForm> = best.instructions.iter().map(|i| i.form).collect();
        assert_eq!(forms, [InstructionForm::InsideGroup, InstructionForm::Parallel(0)]);
        assert_eq!(best.order, [0, 4, 1, 5, 2, 6, 3, 7]);
        let mut least = f64::INFINITY;
        for program in scatter_programs(2) {
            let (mut bytes, mut sum) = (1e9, 0.0);
            for instruction in program {
                let positions = instruction.groups(&factors);
                sum += cluster.collective_s(kind, bytes, &devices(&groups, &positions), Algo::Ring);
                bytes /= positions[0].len() as f64;
            }
            least = least.min(sum);
        }
        assert!((best.seconds - least).abs() <= 1e-12 * least);
        // Half of it leaves a node once, where one ring over all takes seven eighths through each card.
        let once = cluster.collective_s(kind, 1e9, &groups, Algo::Ring);
        assert!(best.seconds < 0.6 * once, "{} {once}", best.seconds);
    }
}
