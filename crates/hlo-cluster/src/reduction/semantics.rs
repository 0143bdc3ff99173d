//! What a collective does to what devices know, and when it may be used (P², figure 8).
//!
//! The data is cut into as many chunks as there are positions. A device's state has one row for each chunk: the set of
//! positions whose contributions its copy of that chunk holds; an empty row is a chunk it does not have. At first
//! position `d` holds `{d}` in every row; the goal is everything in every row everywhere. A rule is a Hoare triple: it
//! refuses a group whose members do not meet its precondition, else it gives the states after.

use crate::collective::Collective;

/// Which of two readings of the figure is used. The paper's tables follow `Pinned`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rules {
    /// The figure as it stands: every collective with `Master`; a broadcast must tell nobody less than they know and
    /// somebody more.
    Literal,
    /// `Master` only with all-reduce; a broadcast must tell everybody more than they know.
    Pinned,
}

/// Why a collective has no meaning on the states of a group's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateError {
    /// Reducing: two members have different chunks.
    ChunksDiffer,
    /// Reducing: a contribution would be counted twice.
    CountedTwice,
    /// Scattering: the chunks cannot be dealt out evenly.
    NotDivisible,
    /// Gathering: two members have the same chunk.
    ChunksOverlap,
    /// Gathering: the members have different numbers of chunks.
    NumbersDiffer,
    /// Broadcasting: the root would take knowledge from a member, or give none.
    NothingTold,
}

/// What one device holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceState {
    /// By chunk: a set of positions, as bits.
    pub rows: Box<[u64]>,
    /// The factors over which its chunks are scattered, as bits: it holds the product of the others. Only kept up in
    /// [`Sizes::Symbolic`].
    pub scattered: u32,
}

/// How sizes are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// By counting chunks.
    Counted,
    /// As if the factors were different primes; these factors (bits) take part.
    Symbolic(u32),
}

/// Most positions: a row is one word.
pub const MAX_POSITIONS: usize = 64;

impl DeviceState {
    /// What position `d` of `k` has before the first step: all `k` chunks, each of its own data alone.
    pub fn start(d: usize, k: usize) -> DeviceState {
        DeviceState { rows: vec![1 << d; k].into(), scattered: 0 }
    }

    /// A device that has everything.
    pub fn goal(k: usize) -> DeviceState {
        let all = if k >= MAX_POSITIONS { u64::MAX } else { (1 << k) - 1 };
        DeviceState { rows: vec![all; k].into(), scattered: 0 }
    }

    /// Nothing at all.
    fn cleared(&self) -> DeviceState {
        DeviceState { rows: vec![0; self.rows.len()].into(), scattered: 0 }
    }

    /// Whether it has no chunk.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| *row == 0)
    }

    /// Its chunks, as bits.
    fn chunks(&self) -> u64 {
        self.rows.iter().enumerate().fold(0, |set, (i, row)| set | u64::from(*row != 0) << i)
    }

    /// Whether it has at least what `other` has, row by row.
    fn covers(&self, other: &DeviceState) -> bool {
        self.rows.iter().zip(&other.rows).all(|(a, b)| b & !a == 0)
    }
}

/// What a collective makes of a group, equal states once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum After {
    /// The same for every member.
    Alike(DeviceState),
    /// The root's, and that of every other member.
    RootAndRest(DeviceState, DeviceState),
    /// One for each member.
    Each(Vec<DeviceState>),
}

/// The states of a group after a collective; `before` in the group's order, the root first. A group that has nothing
/// stays as it is, a broadcast apart.
///
/// # Errors
/// The precondition that is not met.
pub fn apply(
    collective: Collective,
    before: &[&DeviceState],
    rules: Rules,
    sizes: Sizes,
) -> Result<Vec<DeviceState>, StateError> {
    Ok(match apply_once(collective, before, rules, sizes)? {
        After::Alike(state) => vec![state; before.len()],
        After::RootAndRest(root, rest) => {
            let mut after = vec![rest; before.len()];
            after.iter_mut().take(1).for_each(|first| first.clone_from(&root));
            after
        }
        After::Each(after) => after,
    })
}

/// The same with equal states once.
///
/// # Errors
/// The precondition that is not met.
pub fn apply_once(
    collective: Collective,
    before: &[&DeviceState],
    rules: Rules,
    sizes: Sizes,
) -> Result<After, StateError> {
    let Some((root, others)) = before.split_first() else { return Ok(After::Each(Vec::new())) };
    if collective != Collective::Broadcast && before.iter().all(|s| s.is_empty()) {
        return Ok(After::Alike((*root).clone()));
    }
    match collective {
        Collective::AllReduce => Ok(After::Alike(reduced(before)?)),
        Collective::Reduce => Ok(After::RootAndRest(reduced(before)?, root.cleared())),
        Collective::ReduceScatter => scattered(&reduced(before)?, before.len(), sizes).map(After::Each),
        Collective::AllGather => Ok(After::Alike(gathered(before, sizes)?)),
        Collective::Broadcast => {
            let told = others.iter().filter(|s| **s != *root).count();
            let enough = match rules {
                Rules::Literal => told > 0,
                Rules::Pinned => told == others.len(),
            };
            if !enough || others.iter().any(|s| !root.covers(s)) {
                return Err(StateError::NothingTold);
            }
            Ok(After::Alike((*root).clone()))
        }
    }
}

/// The sum of all members.
fn reduced(before: &[&DeviceState]) -> Result<DeviceState, StateError> {
    let mut sum = before[0].clone();
    let chunks = sum.chunks();
    for state in &before[1..] {
        if state.chunks() != chunks || state.scattered != sum.scattered {
            return Err(StateError::ChunksDiffer);
        }
        for (total, row) in sum.rows.iter_mut().zip(&state.rows) {
            if *total & row != 0 {
                return Err(StateError::CountedTwice);
            }
            *total |= row;
        }
    }
    Ok(sum)
}

/// Deals the chunks of `sum` out to `n` members, in order and in blocks.
fn scattered(sum: &DeviceState, n: usize, sizes: Sizes) -> Result<Vec<DeviceState>, StateError> {
    let chunks: Vec<usize> = (0..sum.rows.len()).filter(|i| sum.rows[*i] != 0).collect();
    let taking_part = match sizes {
        Sizes::Counted => 0,
        Sizes::Symbolic(taking_part) => taking_part,
    };
    if !chunks.len().is_multiple_of(n) || sum.scattered & taking_part != 0 {
        return Err(StateError::NotDivisible);
    }
    let each = chunks.len() / n;
    let member = |i: usize| {
        let mut state = sum.cleared();
        chunks[i * each..(i + 1) * each].iter().for_each(|c| state.rows[*c] = sum.rows[*c]);
        state.scattered = sum.scattered | taking_part;
        state
    };
    Ok((0..n).map(member).collect())
}

/// Everything that any member has.
fn gathered(before: &[&DeviceState], sizes: Sizes) -> Result<DeviceState, StateError> {
    let mut all = before[0].clone();
    let number = all.chunks().count_ones();
    for state in &before[1..] {
        if all.chunks() & state.chunks() != 0 {
            return Err(StateError::ChunksOverlap);
        }
        if state.chunks().count_ones() != number || state.scattered != before[0].scattered {
            return Err(StateError::NumbersDiffer);
        }
        all.rows.iter_mut().zip(&state.rows).for_each(|(a, b)| *a |= b);
    }
    if let Sizes::Symbolic(taking_part) = sizes {
        if all.scattered & taking_part != taking_part {
            return Err(StateError::NumbersDiffer);
        }
        all.scattered &= !taking_part;
    }
    Ok(all)
}
