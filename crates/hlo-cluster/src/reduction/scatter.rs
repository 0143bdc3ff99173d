//! Reduce-scatters and all-gathers over the levels of a hierarchy one after the other.
//!
//! After a reduce-scatter each device has one chunk of the sum. No step but a reduce-scatter brings it nearer to that, and
//! none may run over a factor twice. So a program is a list of ranges of factors, in the order in which they scatter;
//! together the ranges are all factors. An all-gather is the same backwards. Two factors have 3 programs, three 11, four 49, five 261.
//!
//! **Chunk order.** A reduce-scatter deals contiguous blocks. Which chunk a device must end with is given. So
//! the chunks are first put in the order in which the steps cut them, the same on all devices. Each group lists its members
//! by the blocks that they need. Where two groups would need different orders there is no program.

use crate::collective::{Algo, Collective, CollectiveCost};
use crate::reduction::chunk_order::NoArrays;
use crate::reduction::instruction::{InstructionForm, ReductionInstruction};
use crate::topology::Cluster;
use std::collections::BTreeMap;
use std::ops::Range;

/// A reduce-scatter or an all-gather to be done in several steps.
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'a> {
    /// The hierarchy's factors above one, outermost first.
    pub factors: &'a [usize],
    /// The devices of each group by their position in the hierarchy.
    pub groups: &'a [Vec<u32>],
    /// By group, by position: which chunk of the whole the device has after the reduce-scatter, or before the all-gather.
    pub chunks: &'a [Vec<usize>],
}

/// Groups of devices, members in order.
pub type Groups = Vec<Vec<u32>>;

/// A program, in the order in which a reduce-scatter runs it.
#[derive(Clone, PartialEq, Debug)]
pub struct ScatterProgram {
    /// Predicted time in seconds.
    pub seconds: f64,
    /// Who communicates in each step.
    pub instructions: Vec<ReductionInstruction>,
    /// How the chunks are put in order before the first step: the `i`-th becomes what was at `order[i]`.
    pub order: Vec<usize>,
    /// By step, the groups of devices, each in the order of its blocks.
    pub groups: Vec<Groups>,
    /// Whether a faster program was passed over, because no order of the chunks serves all groups in it.
    pub is_second_choice: bool,
}

/// All lists of ranges of `n_factors` factors that cover each factor once, as instructions.
pub fn scatter_programs(n_factors: usize) -> Vec<Vec<ReductionInstruction>> {
    let mut out = Vec::new();
    extend(n_factors, 0, &mut Vec::new(), &mut out);
    out
}

fn extend(n: usize, done: u32, program: &mut Vec<ReductionInstruction>, out: &mut Vec<Vec<ReductionInstruction>>) {
    if done == (1 << n) - 1 {
        out.push(program.clone());
        return;
    }
    for from in 0..n {
        for to in from + 1..=n {
            let range = (1u32 << to) - (1 << from);
            if done & range == 0 {
                program.push(over(from, to, n));
                extend(n, done | range, program, out);
                program.pop();
            }
        }
    }
}

/// The instruction in which the factors `from..to` take part.
fn over(from: usize, to: usize, n: usize) -> ReductionInstruction {
    match to == n {
        true => ReductionInstruction { slice: from, form: InstructionForm::InsideGroup },
        false => ReductionInstruction { slice: to, form: InstructionForm::Parallel(from) },
    }
}

impl Scatter<'_> {
    /// The fastest program for a whole of `bytes` bytes; among equals the one with the fewest steps. None if no order of the
    /// chunks serves all groups.
    pub fn best(&self, cluster: &Cluster, kind: Collective, bytes: f64, algo: Algo) -> Option<ScatterProgram> {
        let mut known: BTreeMap<ReductionInstruction, CollectiveCost> = BTreeMap::new();
        let mut seconds = |program: &[ReductionInstruction]| {
            let mut whole = bytes;
            let mut sum = 0.0;
            for &instruction in program {
                let cost = known.entry(instruction).or_insert_with(|| {
                    let positions = instruction.groups(self.factors);
                    cluster.collective_cost(kind, &devices(self.groups, &positions), algo)
                });
                sum += cost.seconds(whole);
                whole /= self.n_members(instruction) as f64;
            }
            sum
        };
        let mut programs: Vec<(f64, Vec<ReductionInstruction>)> =
            scatter_programs(self.factors.len()).into_iter().map(|p| (seconds(&p), p)).collect();
        programs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.len().cmp(&b.1.len())).then(a.1.cmp(&b.1)));
        programs.into_iter().enumerate().find_map(|(rank, (seconds, instructions))| {
            let (order, groups) = self.with_order(&instructions).ok()?;
            Some(ScatterProgram { seconds, instructions, order, groups, is_second_choice: rank > 0 })
        })
    }

    /// The order of the chunks and the groups of each step that leave every device with its chunk.
    ///
    /// # Errors
    /// Groups that need different orders, or a program that does not end with one chunk each.
    pub fn with_order(&self, program: &[ReductionInstruction]) -> Result<(Vec<usize>, Vec<Groups>), NoArrays> {
        let k: usize = self.factors.iter().product();
        let chunks = self.chunks.first().ok_or(NoArrays::Invalid)?;
        if self.groups.len() != self.chunks.len() || !self.chunks.iter().all(|of| is_permutation(of, k)) {
            return Err(NoArrays::Invalid);
        }
        let order = self.arrange((0..k).collect(), program, chunks);
        if !is_permutation(&order, k) {
            return Err(NoArrays::Invalid);
        }
        let mut place_of = vec![0; k];
        order.iter().enumerate().for_each(|(place, &chunk)| place_of[chunk] = place);
        let mut steps: Vec<Groups> = vec![Vec::new(); program.len()];
        for (devices, chunks) in self.groups.iter().zip(self.chunks) {
            // What a device holds stays a piece of the arranged whole.
            let mut held = vec![0..k; k];
            for (instruction, step) in program.iter().zip(&mut steps) {
                for members in instruction.groups(self.factors) {
                    let listed = deal(&members, |at| place_of[chunks[at]], &mut held)?;
                    step.push(listed.iter().map(|&at| devices[at]).collect());
                }
            }
            if held.iter().any(|held| held.len() != 1) {
                return Err(NoArrays::Invalid);
            }
        }
        Ok((order, steps))
    }

    /// The chunks of these positions, in the order in which the rest of the program cuts them; blocks that could stand in any
    /// order stand by their first chunk.
    fn arrange(&self, positions: Vec<usize>, program: &[ReductionInstruction], chunks: &[usize]) -> Vec<usize> {
        let Some((instruction, rest)) = program.split_first() else {
            return positions.iter().map(|&at| chunks[at]).collect();
        };
        let mut blocks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for at in positions {
            blocks.entry(self.place(*instruction, at)).or_default().push(at);
        }
        let mut arranged: Vec<Vec<usize>> =
            blocks.into_values().map(|block| self.arrange(block, rest, chunks)).collect();
        arranged.sort_by_key(|block| block.iter().min().copied());
        arranged.concat()
    }

    /// The value of the factors that take part, at a position.
    fn place(&self, instruction: ReductionInstruction, at: usize) -> usize {
        let range = instruction.taking_part(self.factors.len());
        let inner: usize = self.factors[range.end..].iter().product();
        at / inner % self.n_members(instruction)
    }

    fn n_members(&self, instruction: ReductionInstruction) -> usize {
        self.factors[instruction.taking_part(self.factors.len())].iter().product()
    }
}

/// Gives each member the block that has the place it wants; the members in the order of the blocks.
fn deal(members: &[usize], wanted: impl Fn(usize) -> usize, held: &mut [Range<usize>]) -> Result<Vec<usize>, NoArrays> {
    let whole = held[members[0]].clone();
    if members.iter().any(|&at| held[at] != whole) || !whole.len().is_multiple_of(members.len()) {
        return Err(NoArrays::OrdersDiffer);
    }
    let each = whole.len() / members.len();
    let mut listed = vec![None; members.len()];
    for &at in members {
        let block = wanted(at).checked_sub(whole.start).map_or(usize::MAX, |place| place / each);
        let slot = listed.get_mut(block).filter(|slot| slot.is_none()).ok_or(NoArrays::OrdersDiffer)?;
        *slot = Some(at);
        held[at] = whole.start + block * each..whole.start + (block + 1) * each;
    }
    Ok(listed.into_iter().flatten().collect())
}

/// Whether these are all numbers below `k`, each once.
fn is_permutation(of: &[usize], k: usize) -> bool {
    let mut is_there = vec![false; k];
    of.len() == k && of.iter().all(|&i| is_there.get_mut(i).is_some_and(|seen| !std::mem::replace(seen, true)))
}

/// Groups of positions in each of the groups of devices.
pub fn devices(groups: &[Vec<u32>], positions: &[Vec<usize>]) -> Vec<Vec<u32>> {
    let of = |devices: &Vec<u32>| -> Vec<Vec<u32>> {
        positions.iter().map(|group| group.iter().filter_map(|p| devices.get(*p).copied()).collect()).collect()
    };
    groups.iter().flat_map(of).collect()
}
