//! From programs over *sets* of chunks to collectives over arrays, as HLO has them.
//!
//! The rules only say which chunks a device holds. An array holds them in an order, and HLO gives that order a meaning: a
//! reduce-scatter deals contiguous blocks out in the order of the group, an all-gather concatenates in the order of the
//! group, an all-reduce adds element by element. `I.RS P.RS A.AG` with groups in the order of their ids gathers the
//! chunks in the wrong order, silently. Here each device's chunks are tracked in order; all-gathers list their groups by
//! the chunks that the members hold, and where that is not enough the array is reordered locally, the same way everywhere.

use crate::collective::Collective;
use crate::reduction::instruction::ReductionStep;

/// One step over arrays that are cut into chunks of equal size along one dim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArrayStep {
    /// A collective over these groups of positions, in this order.
    Collective {
        /// All-reduce, reduce-scatter or all-gather.
        collective: Collective,
        /// The groups; positions in none of them stay as they are.
        groups: Vec<Vec<usize>>,
    },
    /// The array's chunks are put in another order on every device: the `i`-th becomes what was at `order[i]`.
    Reorder {
        /// A permutation of the array's chunks at this point.
        order: Vec<usize>,
    },
}

/// Why a program cannot be said with arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoArrays {
    /// It has a reduce or a broadcast.
    NotAnArrayCollective,
    /// Devices would have to reorder their chunks in different ways.
    OrdersDiffer,
    /// A group's members do not hold what the collective needs: this is no valid program.
    Invalid,
}

/// Turns a valid program into steps over arrays; afterwards every device holds all chunks in order.
///
/// # Errors
/// See [`NoArrays`].
pub fn to_arrays(factors: &[usize], program: &[ReductionStep]) -> Result<Vec<ArrayStep>, NoArrays> {
    let k: usize = factors.iter().product();
    let mut arrays = Arrays { held: vec![(0..k).collect(); k], steps: Vec::new() };
    for step in program {
        let groups = step.instruction.groups(factors);
        match step.collective {
            Collective::AllReduce => arrays.all_reduce(groups)?,
            Collective::ReduceScatter => arrays.reduce_scatter(groups)?,
            Collective::AllGather => arrays.all_gather(groups)?,
            Collective::Reduce | Collective::Broadcast => return Err(NoArrays::NotAnArrayCollective),
        }
    }
    arrays.sort()?;
    Ok(arrays.steps)
}

struct Arrays {
    /// By position: the chunks of its array, in order.
    held: Vec<Vec<usize>>,
    steps: Vec<ArrayStep>,
}

impl Arrays {
    fn all_reduce(&mut self, groups: Vec<Vec<usize>>) -> Result<(), NoArrays> {
        let agree = |arrays: &Arrays| {
            groups.iter().all(|group| group.iter().all(|at| arrays.held[*at] == arrays.held[group[0]]))
        };
        if !agree(self) {
            self.sort()?;
        }
        if !agree(self) {
            return Err(NoArrays::Invalid);
        }
        self.steps.push(ArrayStep::Collective { collective: Collective::AllReduce, groups });
        Ok(())
    }

    fn reduce_scatter(&mut self, groups: Vec<Vec<usize>>) -> Result<(), NoArrays> {
        // The rules deal out in the order of the chunks.
        self.sort()?;
        for group in &groups {
            let whole = self.held[group[0]].clone();
            let is_even = whole.len().is_multiple_of(group.len());
            if !is_even || group.iter().any(|at| self.held[*at] != whole) {
                return Err(NoArrays::Invalid);
            }
            let each = whole.len() / group.len();
            for (place, at) in group.iter().enumerate() {
                self.held[*at] = whole[place * each..(place + 1) * each].to_vec();
            }
        }
        self.steps.push(ArrayStep::Collective { collective: Collective::ReduceScatter, groups });
        Ok(())
    }

    fn all_gather(&mut self, mut groups: Vec<Vec<usize>>) -> Result<(), NoArrays> {
        for group in &mut groups {
            group.sort_by_key(|at| self.held[*at].clone());
            let whole: Vec<usize> = group.iter().flat_map(|at| self.held[*at].iter().copied()).collect();
            let mut distinct = whole.clone();
            distinct.sort();
            distinct.dedup();
            if distinct.len() != whole.len() {
                return Err(NoArrays::Invalid);
            }
            group.iter().for_each(|at| self.held[*at].clone_from(&whole));
        }
        self.steps.push(ArrayStep::Collective { collective: Collective::AllGather, groups });
        Ok(())
    }

    /// Puts the chunks of every device in order, if they are not.
    fn sort(&mut self) -> Result<(), NoArrays> {
        let order_of = |held: &Vec<usize>| {
            let mut order: Vec<usize> = (0..held.len()).collect();
            order.sort_by_key(|i| held[*i]);
            order
        };
        let Some(order) = self.held.first().map(order_of) else { return Ok(()) };
        if self.held.iter().any(|held| order_of(held) != order) {
            return Err(NoArrays::OrdersDiffer);
        }
        if !order.is_sorted() {
            self.held.iter_mut().for_each(|held| held.sort());
            self.steps.push(ArrayStep::Reorder { order });
        }
        Ok(())
    }
}
