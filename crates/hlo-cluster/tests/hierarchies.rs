//! The four hierarchies that programs could be synthesized on (P², section 3.4), by blind search on small systems:
//! (a) the machine's levels, (b) the matrix by columns, (c) the matrix by rows, (d) the reduction axis alone, which is what
//! this crate uses. Every program of one is, lowered to devices, a program of the next; (d) loses nothing.

use hlo_cluster::Collective;
use hlo_cluster::reduction::semantics::{DeviceState, Rules, Sizes, apply};
use hlo_cluster::reduction::{Lowering, ParallelismMatrix, ReductionInstruction};
use std::collections::{BTreeSet, HashSet};

/// A step as devices see it: the collective and its groups, each in order.
type Lowered = (Collective, BTreeSet<Vec<u32>>);

/// The steps of a hierarchy whose positions are laid on devices, once for each of `layouts`.
fn steps(factors: &[u32], layouts: &[Vec<u32>]) -> Vec<Lowered> {
    let factors: Vec<usize> = factors.iter().map(|f| *f as usize).filter(|f| *f > 1).collect();
    let mut out: BTreeSet<Lowered> = BTreeSet::new();
    for instruction in ReductionInstruction::all(factors.len()) {
        let positions = instruction.groups(&factors);
        let on = |layout: &Vec<u32>| -> Vec<Vec<u32>> {
            positions.iter().map(|group| group.iter().map(|p| layout[*p]).collect()).collect()
        };
        let groups: BTreeSet<Vec<u32>> = layouts.iter().flat_map(on).collect();
        let allowed = |c: &Collective| !instruction.is_master() || *c == Collective::AllReduce;
        out.extend(Collective::ALL.into_iter().filter(allowed).map(|collective| (collective, groups.clone())));
    }
    out.into_iter().collect()
}

struct Search<'s> {
    steps: &'s [Lowered],
    goal: Vec<DeviceState>,
    dead: HashSet<Vec<DeviceState>>,
    found: BTreeSet<Vec<Lowered>>,
}

impl Search<'_> {
    fn explore(&mut self, state: &[DeviceState], taken: &mut Vec<Lowered>) -> bool {
        if state == self.goal {
            self.found.insert(taken.clone());
            return true;
        }
        if self.dead.contains(state) {
            return false;
        }
        let mut any = false;
        for step in self.steps {
            if let Some(after) = after(state, step)
                && after != state
            {
                taken.push(step.clone());
                any |= self.explore(&after, taken);
                taken.pop();
            }
        }
        if !any {
            self.dead.insert(state.to_vec());
        }
        any
    }
}

fn after(state: &[DeviceState], (collective, groups): &Lowered) -> Option<Vec<DeviceState>> {
    let mut after = state.to_vec();
    for group in groups {
        let before: Vec<&DeviceState> = group.iter().map(|d| &state[*d as usize]).collect();
        let members = apply(*collective, &before, Rules::Pinned, Sizes::Counted).ok()?;
        group.iter().zip(members).for_each(|(d, member)| after[*d as usize] = member);
    }
    Some(after)
}

/// All programs made of these steps that give each device the sum of its own reduction group.
fn programs(steps: &[Lowered], reduction_groups: &[Vec<u32>], n_devices: u32) -> BTreeSet<Vec<Lowered>> {
    let n = n_devices as usize;
    let start: Vec<DeviceState> = (0..n).map(|d| DeviceState::start(d, n)).collect();
    let mut goal = start.clone();
    for group in reduction_groups {
        let sum = group.iter().fold(0u64, |set, d| set | 1 << d);
        group.iter().for_each(|d| goal[*d as usize].rows = vec![sum; n].into());
    }
    let mut search = Search { steps, goal, dead: HashSet::new(), found: BTreeSet::new() };
    search.explore(&start, &mut Vec::new());
    search.found
}

#[test]
fn the_reduction_axis_alone_loses_no_program() {
    let systems: [(&[u32], &[&[u32]]); 5] = [
        (&[2, 4], &[&[1, 2], &[2, 2]]),
        (&[2, 4], &[&[2, 1], &[1, 4]]),
        (&[4, 2], &[&[2, 1], &[2, 2]]),
        (&[2, 6], &[&[1, 3], &[2, 2]]),
        (&[2, 2, 2], &[&[2, 1, 1], &[1, 2, 2]]),
    ];
    for (levels, rows) in systems {
        let rows: Vec<Vec<u32>> = rows.iter().map(|row| row.to_vec()).collect();
        let axes: Vec<u32> = rows.iter().map(|row| row.iter().product()).collect();
        let n_devices = levels.iter().product();
        let matrix = ParallelismMatrix::new(rows.clone(), levels, &axes).expect("a matrix");
        for reduce in 0..rows.len() {
            let groups = matrix.reduction_groups(&[reduce], Lowering::LevelMajor);
            let by_id: Vec<u32> = (0..n_devices).collect();
            let by_row = matrix.reduction_groups(&[0, 1], Lowering::AxisMajor);
            let columns: Vec<u32> = (0..levels.len()).flat_map(|j| rows.iter().map(move |row| row[j])).collect();
            let hierarchies = [
                steps(levels, std::slice::from_ref(&by_id)),
                steps(&columns, &[by_id]),
                steps(&rows.concat(), &by_row),
                steps(&rows[reduce], &groups),
            ];
            let found = hierarchies.map(|steps| programs(&steps, &groups, n_devices));
            let sizes: Vec<usize> = found.iter().map(BTreeSet::len).collect();
            assert!(found.windows(2).all(|pair| pair[0].is_subset(&pair[1])), "{rows:?} {reduce} {sizes:?}");
            let n_factors = rows[reduce].iter().filter(|x| **x > 1).count();
            assert_eq!(sizes[3], [0, 3, 47][n_factors], "{rows:?} {reduce}");
        }
    }
}
