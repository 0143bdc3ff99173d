//! Programs over arrays, run as HLO runs them: every element must come out summed and in its place.

use hlo_cluster::Collective;
use hlo_cluster::reduction::chunk_order::{ArrayStep, NoArrays, to_arrays};
use hlo_cluster::reduction::{Graph, ReductionStep, Rules, Vocabulary};

fn programs(n_factors: usize) -> Vec<Vec<ReductionStep>> {
    let graph = Graph::build_with(n_factors, Rules::Pinned, Vocabulary::Hlo, true).expect("a graph");
    let mut all = Vec::new();
    graph.for_each_program(usize::MAX, &mut |edges| all.push(edges.iter().map(|e| graph.step(e)).collect()));
    all
}

/// HLO's meaning of a collective on one group of arrays, in the group's order.
fn run_group(collective: Collective, group: &[usize], arrays: &mut [Vec<u64>]) {
    let sum: Vec<u64> = (0..arrays[group[0]].len()).map(|i| group.iter().map(|at| arrays[*at][i]).sum()).collect();
    let gathered: Vec<u64> = group.iter().flat_map(|at| arrays[*at].clone()).collect();
    for (place, at) in group.iter().enumerate() {
        arrays[*at] = match collective {
            Collective::AllReduce => sum.clone(),
            Collective::ReduceScatter => sum.chunks(sum.len() / group.len()).nth(place).unwrap_or(&[]).to_vec(),
            _ => gathered.clone(),
        };
    }
}

fn run(steps: &[ArrayStep], arrays: &mut [Vec<u64>]) {
    for step in steps {
        match step {
            ArrayStep::Collective { collective, groups } => {
                groups.iter().for_each(|group| run_group(*collective, group, arrays));
            }
            ArrayStep::Reorder { order } => {
                arrays.iter_mut().for_each(|a| *a = order.iter().map(|i| a[*i]).collect());
            }
        }
    }
}

fn start(k: usize) -> Vec<Vec<u64>> {
    (0..k).map(|d| (0..k).map(|c| (1 << d) * 1000 + c as u64).collect()).collect()
}

fn goal(k: usize) -> Vec<u64> {
    (0..k).map(|c| ((1 << k) - 1) * 1000 + (k * c) as u64).collect()
}

#[test]
fn every_program_that_hlo_can_say_is_right_as_arrays() {
    let cases: [&[usize]; 6] = [&[2, 4], &[3, 2], &[4, 2], &[2, 2, 2], &[2, 3, 2], &[4, 2, 2]];
    for factors in cases {
        let k = factors.iter().product();
        let all = programs(factors.len());
        let mut n_reordered = 0;
        for program in &all {
            let steps = to_arrays(factors, program).expect("arrays");
            n_reordered += usize::from(steps.iter().any(|s| matches!(s, ArrayStep::Reorder { .. })));
            let mut arrays = start(k);
            run(&steps, &mut arrays);
            assert!(arrays.iter().all(|a| *a == goal(k)), "{factors:?} {program:?} {steps:?}");
        }
        // Both kinds are met: the order of a group is enough for most, not for all of three levels.
        assert!(n_reordered < all.len() && (factors.len() < 3 || n_reordered > 0), "{factors:?} {n_reordered}");
    }
}

#[test]
fn ids_in_order_would_be_silently_wrong() {
    use hlo_cluster::reduction::{InstructionForm, ReductionInstruction};
    let step =
        |slice, form, collective| ReductionStep { instruction: ReductionInstruction { slice, form }, collective };
    let program = [
        step(1, InstructionForm::InsideGroup, Collective::ReduceScatter),
        step(1, InstructionForm::Parallel(0), Collective::ReduceScatter),
        step(0, InstructionForm::InsideGroup, Collective::AllGather),
    ];
    let mut steps = to_arrays(&[2, 4], &program).expect("arrays");
    let gather =
        ArrayStep::Collective { collective: Collective::AllGather, groups: vec![vec![0, 4, 1, 5, 2, 6, 3, 7]] };
    assert_eq!(steps.last(), Some(&gather));
    let naive = ArrayStep::Collective { collective: Collective::AllGather, groups: vec![(0..8).collect()] };
    *steps.last_mut().expect("a step") = naive;
    let mut arrays = start(8);
    run(&steps, &mut arrays);
    assert_ne!(arrays[0], goal(8));
    let reduce = [
        step(0, InstructionForm::InsideGroup, Collective::Reduce),
        step(0, InstructionForm::InsideGroup, Collective::Broadcast),
    ];
    assert_eq!(to_arrays(&[2, 4], &reduce), Err(NoArrays::NotAnArrayCollective));
    let twice = [
        step(1, InstructionForm::InsideGroup, Collective::ReduceScatter),
        step(0, InstructionForm::InsideGroup, Collective::AllReduce),
    ];
    assert_eq!(to_arrays(&[2, 4], &twice), Err(NoArrays::Invalid));
}
