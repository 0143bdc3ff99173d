//! The state graph: its counts, its twin without pruning, and every program run on real numbers of chunks.

use hlo_cluster::Collective;
use hlo_cluster::reduction::graph::Graph;
use hlo_cluster::reduction::semantics::{DeviceState, Rules, Sizes, apply};
use hlo_cluster::reduction::{ReductionInstruction, ReductionStep, Vocabulary};
use std::collections::{BTreeMap, BTreeSet};

fn graph(n_factors: usize, rules: Rules) -> Graph {
    Graph::build(n_factors, rules).expect("a graph")
}

#[test]
fn counts_are_those_of_the_paper() {
    let pinned: Vec<u128> = (1..=4).map(|n| graph(n, Rules::Pinned).n_programs(None)).collect();
    assert_eq!(pinned, [3, 47, 1287, 57_865]);
    assert_eq!(graph(2, Rules::Literal).n_programs(None), 122);
    let two = graph(2, Rules::Pinned);
    let cumulative: Vec<u128> = (1..=5).map(|n| two.n_programs(Some(n))).collect();
    assert_eq!(cumulative, [1, 5, 25, 47, 47]);
    let three = graph(3, Rules::Pinned);
    assert_eq!(three.n_programs(Some(5)), 795);
    assert_eq!(three.counts_by_size().len(), 7);
    assert_eq!(graph(4, Rules::Pinned).counts_by_size().len(), 9);
}

#[test]
fn too_many_levels_are_refused() {
    let error = |n, rules| Graph::build(n, rules).err().map_or("none".into(), |e| e.to_string());
    const LEVELS: &str = "levels on which the reduction has more than one device";
    assert_eq!(error(6, Rules::Pinned), format!("hierarchy: expected at most 5 {LEVELS}, found 6"));
    assert_eq!(error(5, Rules::Literal), format!("hierarchy: expected at most 4 {LEVELS}, found 5"));
}

#[test]
fn counts_of_what_hlo_can_say() {
    let hlo = |n| Graph::build_with(n, Rules::Pinned, Vocabulary::Hlo, true).expect("a graph");
    let counts: Vec<u128> = (1..=4).map(|n| hlo(n).n_programs(None)).collect();
    assert_eq!(counts, [2, 20, 394, 13_060]);
    // The vocabulary is a choice among all programs; a `Master` all-reduce among the collectives of HLO adds none.
    let is_hlo = |step: &ReductionStep| !matches!(step.collective, Collective::Reduce | Collective::Broadcast);
    for n in 1..=3 {
        let mut chosen = programs(&graph(n, Rules::Pinned));
        chosen.retain(|program| program.iter().all(is_hlo));
        assert!(chosen == programs(&hlo(n)), "{n}");
    }
}

#[test]
fn pruning_changes_nothing_but_the_work() {
    let cases = [
        (Rules::Pinned, Vocabulary::All, 4),
        (Rules::Pinned, Vocabulary::Hlo, 4),
        (Rules::Literal, Vocabulary::All, 3),
    ];
    for (rules, vocabulary, most) in cases {
        for n_factors in 0..=most {
            let build = |prunes| Graph::build_with(n_factors, rules, vocabulary, prunes).expect("a graph");
            let (pruned, mut whole) = (build(true), build(false));
            assert!(pruned.n_met <= whole.n_met && whole.edges.len() <= pruned.n_met);
            whole.n_met = pruned.n_met;
            assert!(pruned == whole, "{n_factors} {rules:?} {vocabulary:?}");
        }
    }
}

/// States met without pruning, and live ones, as a search in another language found them.
#[test]
fn states_are_as_many_as_another_search_found() {
    let found: Vec<(usize, usize)> = (1..=4)
        .map(|n| Graph::build_with(n, Rules::Pinned, Vocabulary::All, false).expect("a graph"))
        .map(|graph| (graph.n_met, graph.edges.len()))
        .collect();
    assert_eq!(found, [(4, 4), (26, 20), (325, 116), (5786, 727)]);
}

/// All programs by blind search on real factors, with chunks counted: the slow twin.
fn blind(factors: &[usize], rules: Rules) -> BTreeSet<Vec<ReductionStep>> {
    let k: usize = factors.iter().product();
    let start: Vec<DeviceState> = (0..k).map(|d| DeviceState::start(d, k)).collect();
    let mut found = BTreeSet::new();
    let mut alive = BTreeMap::new();
    explore(factors, rules, &start, &mut Vec::new(), &mut found, &mut alive);
    found
}

fn next_state(factors: &[usize], rules: Rules, state: &[DeviceState], step: ReductionStep) -> Option<Vec<DeviceState>> {
    let mut after = state.to_vec();
    for group in step.instruction.groups(factors) {
        let before: Vec<&DeviceState> = group.iter().map(|at| &state[*at]).collect();
        let members = apply(step.collective, &before, rules, Sizes::Counted).ok()?;
        group.iter().zip(members).for_each(|(at, member)| after[*at] = member);
    }
    Some(after)
}

fn all_steps(n_factors: usize, rules: Rules) -> Vec<ReductionStep> {
    let instructions = ReductionInstruction::all(n_factors).into_iter();
    instructions
        .flat_map(|instruction| Collective::ALL.map(|collective| ReductionStep { instruction, collective }))
        .filter(|s| rules == Rules::Literal || !s.instruction.is_master() || s.collective == Collective::AllReduce)
        .collect()
}

/// Depth first; `alive` remembers states from which nothing was found.
fn explore(
    factors: &[usize],
    rules: Rules,
    state: &[DeviceState],
    steps: &mut Vec<ReductionStep>,
    found: &mut BTreeSet<Vec<ReductionStep>>,
    alive: &mut BTreeMap<Vec<Vec<u64>>, bool>,
) -> bool {
    let k = state.len();
    if state.iter().all(|s| *s == DeviceState::goal(k)) {
        found.insert(steps.clone());
        return true;
    }
    let key: Vec<Vec<u64>> = state.iter().map(|s| s.rows.to_vec()).collect();
    if alive.get(&key) == Some(&false) {
        return false;
    }
    let mut any = false;
    for step in all_steps(factors.len(), rules) {
        if let Some(after) = next_state(factors, rules, state, step)
            && after != state
        {
            steps.push(step);
            any |= explore(factors, rules, &after, steps, found, alive);
            steps.pop();
        }
    }
    alive.insert(key, any);
    any
}

fn programs(graph: &Graph) -> BTreeSet<Vec<ReductionStep>> {
    let mut all = BTreeSet::new();
    graph.for_each_program(usize::MAX, &mut |edges| {
        all.insert(edges.iter().map(|e| graph.step(e)).collect());
    });
    all
}

#[test]
fn blind_search_on_real_factors_finds_the_same_programs() {
    for rules in [Rules::Pinned, Rules::Literal] {
        for factors in [vec![2], vec![5], vec![2, 2], vec![2, 3], vec![3, 2], vec![4, 2], vec![2, 4], vec![3, 3]] {
            assert!(blind(&factors, rules) == programs(&graph(factors.len(), rules)), "{factors:?} {rules:?}");
        }
    }
    for factors in [[2, 2, 2], [2, 3, 2], [3, 2, 4]] {
        assert!(blind(&factors, Rules::Pinned) == programs(&graph(3, Rules::Pinned)), "{factors:?}");
    }
}

/// A device's copy of the data: a number for each chunk, or nothing.
type Copy = Vec<Option<f64>>;

/// Runs a step on numbers, with no look at the rules: reducing adds what is there, gathering takes what others have.
fn run_step(factors: &[usize], data: &mut [Copy], step: ReductionStep) {
    for group in step.instruction.groups(factors) {
        let n_chunks = data[group[0]].len();
        let before: Vec<Copy> = group.iter().map(|at| data[*at].clone()).collect();
        let has: Vec<usize> = (0..n_chunks).filter(|c| before[0][*c].is_some()).collect();
        let sum = |c: usize| {
            let parts: Vec<f64> = before.iter().filter_map(|b| b[c]).collect();
            (!parts.is_empty()).then(|| parts.iter().sum::<f64>())
        };
        for (place, &at) in group.iter().enumerate() {
            data[at] = match step.collective {
                Collective::AllReduce => (0..n_chunks).map(sum).collect(),
                Collective::Reduce if place == 0 => (0..n_chunks).map(sum).collect(),
                Collective::Reduce => vec![None; n_chunks],
                Collective::Broadcast => before[0].clone(),
                Collective::AllGather => (0..n_chunks).map(|c| before.iter().find_map(|b| b[c])).collect(),
                Collective::ReduceScatter => {
                    let each = has.len() / group.len();
                    let mine = &has[place * each..(place + 1) * each];
                    (0..n_chunks).map(|c| if mine.contains(&c) { sum(c) } else { None }).collect()
                }
            };
        }
    }
}

#[test]
fn every_program_sums_real_numbers() {
    for (factors, n_programs) in [(vec![2, 3], 47), (vec![4, 2], 47), (vec![2, 2, 2], 1287), (vec![2, 3, 2], 1287)] {
        let k: usize = factors.iter().product();
        let all = programs(&graph(factors.len(), Rules::Pinned));
        assert_eq!(all.len(), n_programs);
        let start: Vec<Copy> =
            (0..k).map(|d| (0..k).map(|c| Some((1 << d) as f64 * 64.0 + c as f64)).collect()).collect();
        let sums: Copy = (0..k).map(|c| Some(((1 << k) - 1) as f64 * 64.0 + (k * c) as f64)).collect();
        for program in all {
            let mut data = start.clone();
            program.iter().for_each(|step| run_step(&factors, &mut data, *step));
            assert!(data.iter().all(|copy| *copy == sums), "{factors:?} {program:?}");
        }
    }
}

/// Figure 4: a reduction of different chunks, and one that counts a device twice.
#[test]
fn the_papers_wrong_programs_are_refused() {
    use hlo_cluster::reduction::InstructionForm::{InsideGroup, Parallel};
    use hlo_cluster::reduction::semantics::StateError;
    let factors = [2, 2];
    let start: Vec<DeviceState> = (0..4).map(|d| DeviceState::start(d, 4)).collect();
    let step =
        |slice, form, collective| ReductionStep { instruction: ReductionInstruction { slice, form }, collective };
    let all_reduce_all = step(0, InsideGroup, Collective::AllReduce);
    let try_after = |first: ReductionStep, group: &[usize]| {
        let state = next_state(&factors, Rules::Pinned, &start, first).expect("a first step");
        let members: Vec<&DeviceState> = group.iter().map(|at| &state[*at]).collect();
        apply(all_reduce_all.collective, &members, Rules::Pinned, Sizes::Counted).err()
    };
    let scatter = step(1, InsideGroup, Collective::ReduceScatter);
    assert_eq!(try_after(scatter, &[0, 1]), Some(StateError::ChunksDiffer));
    let reduce = step(1, Parallel(0), Collective::AllReduce);
    assert_eq!(try_after(reduce, &[0, 2]), Some(StateError::CountedTwice));
}
