//! Pieces of tiles sent straight to the devices that want them, by permutes: as few bytes as the lower bound where pieces have one
//! size and every device can send as much as it receives.
//!
//! A device's target tile is cut at the borders of source tiles; a piece that the device lacks comes from one that holds it.
//! Holders are chosen so that the most that a device sends is least (augmenting paths), and rounds so that a device sends and
//! receives once in each (a bipartite graph of degree k has k perfect matchings: König 1916, by alternating paths).

use super::bound::{Extent, overlap, volume};
use hlo_ir::Dims;
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::hash::BuildHasherDefault;

/// Most pieces of all devices together that are sent one by one.
const MOST_PIECES: usize = 1 << 16;

/// One block that devices write into their target tiles at the same time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BlockWrite {
    /// Dims of the block.
    pub block: Dims,
    /// Who sends to whom; none if each device takes a block of its own.
    pub pairs: Option<Vec<(u32, u32)>>,
    /// Where the block that a device sends (or takes itself) begins in its source tile, by device.
    pub taken_at: Vec<Dims>,
    /// Where it goes in the target tile, by device.
    pub written_at: Vec<Dims>,
    /// How much of it is meant for the device along each dim; nothing for a device that gets none.
    pub valid: Vec<Dims>,
}

/// Blocks that make the target tiles of all devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PiecePlan {
    /// Dims of a target tile.
    pub tile: Dims,
    /// The blocks, in any order.
    pub writes: Vec<BlockWrite>,
}

/// What each device holds and wants, in one system of coordinates.
pub(super) struct Ends<'a> {
    pub held: &'a [Extent],
    pub wanted: &'a [Extent],
    /// Devices of different scopes hold different values.
    pub scopes: &'a [i64],
    /// Pieces begin at multiples of this along each dim; 0 where they begin at borders of source tiles.
    pub grain: &'a [i64],
    /// Dims of a target tile.
    pub tile: Dims,
}

/// A piece: whose, and which part of the array.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    device: usize,
    extent: Extent,
}

/// The devices that hold the tile that begins here, by scope.
type Holders = IndexMap<(i64, Vec<i64>), Vec<usize>, FixedHash>;

impl Ends<'_> {
    /// The blocks; `None` if there would be too many pieces.
    pub(super) fn plan(&self) -> Option<PiecePlan> {
        let borders = self.borders();
        let mut own: BTreeMap<Dims, Vec<Piece>> = BTreeMap::new();
        let mut lacked: BTreeMap<Dims, Vec<Piece>> = BTreeMap::new();
        let mut n_pieces = 0;
        for (device, wanted) in self.wanted.iter().enumerate() {
            for extent in self.cut(wanted, &borders) {
                n_pieces += 1;
                if n_pieces > MOST_PIECES {
                    return None;
                }
                let is_held = overlap(&self.held[device], &extent) == extent;
                let dims: Dims = extent.iter().map(|(low, high)| high - low).collect();
                let pieces = if is_held { &mut own } else { &mut lacked };
                pieces.entry(dims).or_default().push(Piece { device, extent });
            }
        }
        let holders = self.holders();
        let mut writes: Vec<BlockWrite> = own.iter().rev().flat_map(|(_, pieces)| self.own_writes(pieces)).collect();
        let mut by_size = Vec::new();
        for pieces in lacked.values().rev() {
            by_size.extend(self.sent(pieces, &holders)?);
        }
        // Pieces of different sizes share rounds if that sends less.
        let all: Vec<Piece> = lacked.into_values().rev().flatten().collect();
        let mixed = self.sent(&all, &holders)?;
        let n_elems = |writes: &[BlockWrite]| writes.iter().map(|w| w.block.iter().product::<i64>()).sum::<i64>();
        let is_less = n_elems(&mixed) < n_elems(&by_size);
        writes.extend(if is_less { mixed } else { by_size });
        Some(PiecePlan { tile: self.tile.clone(), writes })
    }

    /// Where source tiles begin or end, for each dim.
    fn borders(&self) -> Vec<Vec<i64>> {
        let of_dim = |dim: usize| {
            let mut all: Vec<i64> = self.held.iter().flat_map(|extent| [extent[dim].0, extent[dim].1]).collect();
            all.sort();
            all.dedup();
            all
        };
        (0..self.grain.len()).map(of_dim).collect()
    }

    /// The pieces of a box, none of which crosses a border.
    fn cut(&self, extent: &Extent, borders: &[Vec<i64>]) -> Vec<Extent> {
        let mut out = vec![Extent::new()];
        if volume(extent) == 0 && !extent.is_empty() {
            return Vec::new();
        }
        for (dim, &(low, high)) in extent.iter().enumerate() {
            let mut cuts = vec![low];
            match self.grain[dim] {
                0 => cuts.extend(borders[dim].iter().copied().filter(|&at| low < at && at < high)),
                grain => cuts.extend((low / grain + 1..).map(|k| k * grain).take_while(|&at| at < high)),
            }
            cuts.push(high);
            let ranges: Vec<(i64, i64)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
            out = out.into_iter().flat_map(|box_| ranges.iter().map(move |&r| [&box_[..], &[r]].concat())).collect();
        }
        out
    }

    fn holders(&self) -> Holders {
        let mut holders = Holders::with_hasher(BuildHasherDefault::default());
        for (device, held) in self.held.iter().enumerate() {
            if volume(held) > 0 || held.is_empty() {
                let corner = held.iter().map(|range| range.0).collect();
                holders.entry((self.scopes[device], corner)).or_default().push(device);
            }
        }
        holders
    }

    /// The devices that hold a piece.
    fn holders_of<'h>(&self, piece: &Piece, holders: &'h Holders, corners: &[Vec<i64>]) -> &'h [usize] {
        let corner = piece.extent.iter().zip(corners).map(|(range, corners)| {
            let after = corners.partition_point(|&at| at <= range.0);
            corners.get(after.wrapping_sub(1)).copied().unwrap_or(0)
        });
        holders.get(&(self.scopes[piece.device], corner.collect())).map(Vec::as_slice).unwrap_or_default()
    }

    /// A sender of each piece, such that the most that a device sends is as little as possible.
    fn senders(&self, pieces: &[Piece], holders: &Holders) -> Option<Vec<usize>> {
        let mut corners: Vec<Vec<i64>> = vec![Vec::new(); self.grain.len()];
        for (_, corner) in holders.keys() {
            corners.iter_mut().zip(corner).for_each(|(all, &at)| all.push(at));
        }
        corners.iter_mut().for_each(|all| {
            all.sort();
            all.dedup();
        });
        let choices: Vec<&[usize]> = pieces.iter().map(|piece| self.holders_of(piece, holders, &corners)).collect();
        if choices.iter().any(|choice| choice.is_empty()) {
            return None;
        }
        let mut received = vec![0usize; self.held.len()];
        pieces.iter().for_each(|piece| received[piece.device] += 1);
        let least = received.iter().copied().max().unwrap_or(0);
        (least..).find_map(|most| assigned(&choices, self.held.len(), most))
    }

    /// The writes of these pieces, which their devices lack.
    fn sent(&self, pieces: &[Piece], holders: &Holders) -> Option<Vec<BlockWrite>> {
        let senders = self.senders(pieces, holders)?;
        Some(rounds(pieces, &senders, self.held.len()).iter().map(|round| self.write(round)).collect())
    }

    /// Blocks that devices have already, one of each device in each write.
    fn own_writes(&self, pieces: &[Piece]) -> Vec<BlockWrite> {
        let mut writes: Vec<Vec<(usize, &Piece)>> = Vec::new();
        let mut n_of = vec![0usize; self.held.len()];
        for piece in pieces {
            let k = n_of[piece.device];
            n_of[piece.device] += 1;
            if writes.len() <= k {
                writes.push(Vec::new());
            }
            writes[k].push((piece.device, piece));
        }
        let own = |write: &Vec<(usize, &Piece)>| BlockWrite { pairs: None, ..self.write(write) };
        writes.iter().map(own).collect()
    }

    /// The write of these pieces, each with its sender.
    fn write(&self, pieces: &[(usize, &Piece)]) -> BlockWrite {
        let sizes = |extent: &Extent| -> Dims { extent.iter().map(|(low, high)| high - low).collect() };
        let mut block = Dims::from_elem(0, self.grain.len());
        for (_, piece) in pieces {
            block.iter_mut().zip(sizes(&piece.extent)).for_each(|(most, size)| *most = size.max(*most));
        }
        let nowhere = vec![Dims::from_elem(0, self.grain.len()); self.held.len()];
        let mut write = BlockWrite {
            block,
            pairs: Some(Vec::new()),
            taken_at: nowhere.clone(),
            written_at: nowhere.clone(),
            valid: nowhere,
        };
        let within = |extent: &Extent, tile: &Extent| extent.iter().zip(tile).map(|(e, t)| e.0 - t.0).collect();
        for &(sender, piece) in pieces {
            write.pairs.iter_mut().for_each(|pairs| pairs.push((sender as u32, piece.device as u32)));
            write.taken_at[sender] = within(&piece.extent, &self.held[sender]);
            write.written_at[piece.device] = within(&piece.extent, &self.wanted[piece.device]);
            write.valid[piece.device] = sizes(&piece.extent);
        }
        if let Some(pairs) = &mut write.pairs {
            pairs.sort();
        }
        write
    }
}

/// A choice for each of `choices` that takes nothing more than `most` times.
fn assigned(choices: &[&[usize]], n_devices: usize, most: usize) -> Option<Vec<usize>> {
    let mut chosen: Vec<Option<usize>> = vec![None; choices.len()];
    let mut load: Vec<Vec<usize>> = vec![Vec::new(); n_devices];
    for request in 0..choices.len() {
        // A search for a device with room, over devices whose requests could go elsewhere.
        let mut from: Vec<Option<(usize, Option<usize>)>> = vec![None; n_devices];
        let mut queue: std::collections::VecDeque<usize> = std::collections::VecDeque::new();
        let mut ordered = choices[request].to_vec();
        ordered.sort_by_key(|&device| load[device].len());
        for device in ordered {
            from[device] = Some((request, None));
            queue.push_back(device);
        }
        let mut found = None;
        while let Some(device) = queue.pop_front() {
            if load[device].len() < most {
                found = Some(device);
                break;
            }
            for &other in &load[device] {
                for &next in choices[other] {
                    if from[next].is_none() {
                        from[next] = Some((other, Some(device)));
                        queue.push_back(next);
                    }
                }
            }
        }
        let mut at = found?;
        while let Some((request, before)) = from[at] {
            load[at].push(request);
            chosen[request] = Some(at);
            let Some(before) = before else { break };
            load[before].retain(|&other| other != request);
            at = before;
        }
    }
    chosen.into_iter().collect()
}

/// Rounds in each of which a device sends at most once and receives at most once; as few as the most that a device sends or
/// receives.
fn rounds<'p>(pieces: &'p [Piece], senders: &[usize], n_devices: usize) -> Vec<Vec<(usize, &'p Piece)>> {
    let mut degree = vec![0usize; 2 * n_devices];
    for (piece, &sender) in pieces.iter().zip(senders) {
        degree[sender] += 1;
        degree[n_devices + piece.device] += 1;
    }
    let n_rounds = degree.iter().copied().max().unwrap_or(0);
    // The piece of each node (senders, then receivers) in each round.
    let mut of_node: Vec<Vec<Option<usize>>> = vec![vec![None; n_rounds]; 2 * n_devices];
    let ends = |k: usize| (senders[k], n_devices + pieces[k].device);
    for k in 0..pieces.len() {
        let (u, v) = ends(k);
        let free = |node: usize| of_node[node].iter().position(Option::is_none).unwrap_or_default();
        let (a, b) = (free(u), free(v));
        if of_node[v][a].is_some() {
            // Swap rounds a and b along the path from v on, which does not end at u.
            let mut path = Vec::new();
            let (mut node, mut round) = (v, a);
            while let Some(edge) = of_node[node][round] {
                path.push((edge, round));
                let (x, y) = ends(edge);
                node = if x == node { y } else { x };
                round = a + b - round;
            }
            for &(edge, round) in &path {
                let (x, y) = ends(edge);
                for node in [x, y] {
                    if of_node[node][round] == Some(edge) {
                        of_node[node][round] = None;
                    }
                }
            }
            for &(edge, round) in &path {
                let (x, y) = ends(edge);
                of_node[x][a + b - round] = Some(edge);
                of_node[y][a + b - round] = Some(edge);
            }
        }
        of_node[u][a] = Some(k);
        of_node[v][a] = Some(k);
    }
    let of_round = |round: usize| {
        let sent = (0..n_devices).filter_map(|node| of_node[node][round]);
        sent.map(|k| (senders[k], &pieces[k])).collect()
    };
    (0..n_rounds).map(of_round).collect()
}
