//! Rows of a dim that other devices hold: which tiles a shard takes them from, and in how many permutes.
//!
//! A dim of `n_rows` rows is cut into tiles of `tile` rows. Shard `s` wants the rows `starts[s] .. + size`. They lie in
//! consecutive tiles. The `k`-th of these is fetched for all shards at once: of the first one only the end, of the
//! last one only the beginning that some shard wants. The fetched windows stand one after the other, so that every shard finds its
//! rows at an offset of its own. Tiles are counted from the first one that a shard wants, or from one that lies equally far from all
//! shards' own tiles, whichever fetches less.

/// What is fetched from the `k`-th tile of each shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HaloPiece {
    /// The rows of the tile.
    pub low: i64,
    /// Their end.
    pub high: i64,
    /// The tile of each shard; `None` if there is no such tile.
    pub tile_of_shard: Vec<Option<i64>>,
}

impl HaloPiece {
    /// Pairs of tile and shard, in rounds in which each tile and each shard occurs once; own tiles are left out.
    pub(super) fn rounds(&self) -> Vec<Vec<(i64, i64)>> {
        let mut rounds: Vec<Vec<(i64, i64)>> = Vec::new();
        let mut n_uses = vec![0; self.tile_of_shard.len()];
        for (shard, tile) in self.tile_of_shard.iter().enumerate() {
            let Some(tile) = tile.filter(|&tile| tile != shard as i64) else { continue };
            // A tile that was sent in so many rounds waits for the next one.
            let Some(n_used) = n_uses.get_mut(tile as usize) else { continue };
            if rounds.len() == *n_used {
                rounds.push(Vec::new());
            }
            rounds[*n_used].push((tile, shard as i64));
            *n_used += 1;
        }
        rounds
    }
}

/// All that the shards fetch along one dim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HaloPlan {
    /// The pieces, in the order of their rows.
    pub pieces: Vec<HaloPiece>,
    /// Where the rows of each shard begin in the joined pieces.
    pub offset_of_shard: Vec<i64>,
    /// Rows that nobody fetches before the joined pieces.
    pub front: i64,
    /// Whether some shard wants rows outside of the array.
    pub has_outside: bool,
}

/// The rows that all shards want.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HaloRows<'a> {
    /// Rows of the whole dim.
    pub n_rows: i64,
    /// Where the rows of each shard begin.
    pub starts: &'a [i64],
    /// Rows of a shard.
    pub size: i64,
}

impl HaloRows<'_> {
    /// Rows of a tile.
    pub(super) fn tile(&self) -> i64 {
        let n_shards = self.starts.len().max(1) as i64;
        (self.n_rows.max(1) + n_shards - 1) / n_shards
    }

    /// What is fetched.
    pub(super) fn plan(&self) -> HaloPlan {
        let tile = self.tile();
        let first: Vec<Option<i64>> =
            (0..self.starts.len()).map(|s| self.wanted(s).map(|(low, _)| low / tile)).collect();
        let from_first: Vec<i64> = first.iter().map(|first| first.unwrap_or(0)).collect();
        let distances = first.iter().zip(0..).filter_map(|(first, s)| Some((*first)? - s));
        let nearest = distances.min().unwrap_or(0);
        let from_own: Vec<i64> = (0..self.starts.len() as i64).map(|s| s + nearest).collect();
        let plans = [self.counted_from(&from_own), self.counted_from(&from_first)];
        let cost = |plan: &HaloPlan| (plan.received_rows(), plan.n_permutes(), plan.joined_rows());
        let [own, first] = plans;
        if cost(&own) <= cost(&first) { own } else { first }
    }

    /// The rows of the array that a shard wants; none if it wants none.
    fn wanted(&self, shard: usize) -> Option<(i64, i64)> {
        let start = *self.starts.get(shard)?;
        let (low, high) = (start.max(0), (start + self.size).min(self.n_rows));
        (low < high).then_some((low, high))
    }

    /// What is fetched if the tiles of shard `s` are counted from `bases[s]` on, which is none after its first one.
    fn counted_from(&self, bases: &[i64]) -> HaloPlan {
        let &HaloRows { n_rows, starts, size } = self;
        let (tile, n_shards) = (self.tile(), starts.len() as i64);
        let wanting = || (0..starts.len()).filter_map(|s| Some((bases[s] * tile, self.wanted(s)?)));
        let n_pieces = wanting().map(|(base, (_, high))| (high - 1 - base) / tile + 1).max().unwrap_or(0);
        let low = wanting().map(|(base, (low, _))| low - base).min().unwrap_or(0).clamp(0, tile);
        let high = wanting().map(|(base, (_, high))| high - base - (n_pieces - 1) * tile).max().unwrap_or(0);
        let piece = |k: i64| {
            let (low, high) =
                (if k == 0 { low } else { 0 }, if k + 1 == n_pieces { high.clamp(0, tile) } else { tile });
            let of_shard = |(s, base): (usize, &i64)| {
                let (at, (from, to)) = (base + k, self.wanted(s)?);
                let is_wanted = from < at * tile + high && at * tile + low < to;
                (is_wanted && (0..n_shards).contains(&at)).then_some(at)
            };
            HaloPiece { low, high, tile_of_shard: bases.iter().enumerate().map(of_shard).collect() }
        };
        // A shard that wants rows before the array finds its first row behind them.
        let at = |s: usize| self.wanted(s).map(|_| starts[s] - bases[s] * tile - low);
        let front = (0..starts.len()).filter_map(at).map(|offset| -offset).max().unwrap_or(0).max(0);
        let is_inside = |&start: &i64| start >= 0 && start + size <= n_rows;
        HaloPlan {
            pieces: (0..n_pieces).map(piece).filter(|piece| piece.low < piece.high).collect(),
            offset_of_shard: (0..starts.len()).map(|s| at(s).map_or(0, |offset| offset + front)).collect(),
            has_outside: !starts.iter().all(is_inside),
            front,
        }
    }
}

impl HaloPlan {
    /// Whether every row outside of the array that a shard wants is zero where it finds it: beside the joined pieces, or in a piece that
    /// comes to all shards by permutes, which leave zeros where nobody sends. Rows that pad the last tile may hold anything.
    pub(super) fn leaves_zeros_outside(&self, rows: &HaloRows<'_>) -> bool {
        let (tile, mut pieces, mut end): (_, Vec<(std::ops::Range<i64>, _, _)>, _) =
            (rows.tile(), Vec::new(), self.front);
        for piece in &self.pieces {
            let keeps_own = piece.tile_of_shard.iter().zip(0..).any(|(&tile, shard)| tile == Some(shard));
            let from = end;
            end += piece.high - piece.low;
            pieces.push((from..end, piece, !keeps_own && piece.rounds().iter().any(|round| !round.is_empty())));
        }
        // Of rows from `low` to `high` of the joined pieces, with what lies beside them.
        let are_zero = |shard: usize, low: i64, high: i64| {
            pieces.iter().filter(|(range, ..)| low.max(range.start) < high.min(range.end)).all(
                |(_, piece, is_sent): &(_, &HaloPiece, _)| {
                    *is_sent && piece.tile_of_shard.get(shard).is_some_and(Option::is_none)
                },
            )
        };
        rows.n_rows % tile == 0
            && rows.starts.iter().zip(&self.offset_of_shard).enumerate().all(|(shard, (&start, &offset))| {
                let (end, place) = (start + rows.size, offset - start);
                let before = (start, end.min(0));
                let after = (start.max(rows.n_rows), end);
                [before, after].iter().all(|&(low, high)| low >= high || are_zero(shard, low + place, high + place))
            })
    }

    /// Rows of the joined pieces.
    pub(super) fn joined_rows(&self) -> i64 {
        self.pieces.iter().map(|piece| piece.high - piece.low).sum()
    }

    /// Rows that the device that receives most receives.
    pub(super) fn received_rows(&self) -> i64 {
        self.pieces.iter().map(|piece| piece.rounds().len().min(1) as i64 * (piece.high - piece.low)).sum()
    }

    /// Number of permutes.
    pub(super) fn n_permutes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.rounds().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that shard `s` finds, from tiles that hold their row numbers.
    fn found(rows: &HaloRows<'_>, s: usize) -> Vec<Option<i64>> {
        let (plan, tile) = (rows.plan(), rows.tile());
        let mut joined = vec![None; plan.front as usize];
        for piece in &plan.pieces {
            for row in piece.low..piece.high {
                joined.push(piece.tile_of_shard[s].map(|at| at * tile + row));
            }
        }
        let from = plan.offset_of_shard[s] as usize;
        (0..rows.size as usize).map(|k| joined.get(from + k).copied().flatten()).collect()
    }

    /// The rows that shard `s` finds as the permutes leave them: the row's number and one, zero where nobody sends, and -1 for rows
    /// that pad the last tile and for a shard's own rows where it wants none.
    fn left(rows: &HaloRows<'_>, s: usize) -> Vec<i64> {
        let (plan, tile) = (rows.plan(), rows.tile());
        let mut joined = vec![0; plan.front as usize];
        for piece in &plan.pieces {
            let is_kept = piece.tile_of_shard.iter().zip(0..).any(|(&tile, shard)| tile == Some(shard));
            for row in piece.low..piece.high {
                let number = |at: i64| if at * tile + row < rows.n_rows { at * tile + row + 1 } else { -1 };
                let else_left = if is_kept || piece.rounds().is_empty() { -1 } else { 0 };
                joined.push(piece.tile_of_shard[s].map_or(else_left, number));
            }
        }
        let from = plan.offset_of_shard[s] as usize;
        (0..rows.size as usize).map(|k| joined.get(from + k).copied().unwrap_or(0)).collect()
    }

    #[test]
    fn every_shard_finds_the_rows_of_the_array_that_it_wants() {
        let (mut n_cases, mut n_zero) = (0, 0);
        for n_rows in [1, 2, 5, 8, 12] {
            for n_shards in [2, 3, 4, 5] {
                for first in -4..6 {
                    for step in [-3, -2, -1, 1, 2, 3, 4, 6] {
                        for size in [1, 2, 3, 5, 7] {
                            let starts: Vec<i64> = (0..n_shards).map(|s| first + s * step).collect();
                            let rows = HaloRows { n_rows, starts: &starts, size };
                            let left: Vec<Vec<i64>> = (0..starts.len()).map(|s| left(&rows, s)).collect();
                            let is_outside = |s: usize, k: usize| !(0..n_rows).contains(&(starts[s] + k as i64));
                            let are_zeros = left.iter().enumerate().all(|(s, found)| {
                                found.iter().enumerate().all(|(k, &row)| !is_outside(s, k) || row == 0)
                            });
                            let says_zeros = rows.plan().leaves_zeros_outside(&rows);
                            assert!(are_zeros || !says_zeros, "{rows:?}: {left:?}");
                            n_zero += usize::from(says_zeros && rows.plan().has_outside);
                            for (s, start) in starts.iter().enumerate() {
                                for (k, row) in found(&rows, s).into_iter().enumerate() {
                                    let wanted = start + k as i64;
                                    if (0..n_rows).contains(&wanted) {
                                        assert_eq!(row, Some(wanted), "{rows:?}, shard {s}, row {k}");
                                        n_cases += 1;
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        assert!(n_cases > 10_000, "{n_cases}");
        assert!(n_zero > 100, "{n_zero}");
    }

    #[test]
    fn neighbours_send_only_the_rows_at_the_border() {
        // Tiles of 8 rows; windows reach two rows back and three rows on.
        let rows = HaloRows { n_rows: 32, starts: &[-2, 6, 14, 22], size: 13 };
        let plan = rows.plan();
        let windows: Vec<(i64, i64)> = plan.pieces.iter().map(|piece| (piece.low, piece.high)).collect();
        assert_eq!(windows, [(6, 8), (0, 8), (0, 3)]);
        assert_eq!((plan.n_permutes(), plan.received_rows(), plan.has_outside), (2, 5, true));
        assert!(plan.leaves_zeros_outside(&rows));
        // A reversed dim: each tile goes to one other shard.
        let rows = HaloRows { n_rows: 32, starts: &[24, 16, 8, 0], size: 8 };
        assert_eq!((rows.plan().n_permutes(), rows.plan().received_rows()), (1, 8));
        // Tiles of 9 rows become tiles of 8.
        let rows = HaloRows { n_rows: 33, starts: &[0, 8, 16, 24], size: 8 };
        assert_eq!((rows.plan().n_permutes(), rows.plan().received_rows()), (1, 3));
    }
}
