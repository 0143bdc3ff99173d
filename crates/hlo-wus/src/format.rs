//! How good a sharding format is, and which formats an array may have (§4.1 of the paper).
//!
//! The physically major-most dims of the state (carried values and parameters) come first. Cutting other dims makes reduce-scatter and
//! all-gather move strided pieces. Measured on the CPU backend for f32[2048,2048]: a reduce-scatter takes 13 ms along the major dim
//! and 80 ms along the minor one, an all-gather 21 and 129. A merge of dims is trivial if they are neighbours in memory and lie outside
//! of the layout's tile.

use hlo_ir::ArrayShape;
use hlo_spmd::DimRun;

/// Padding up to this share of the elements is not worth another format: it is less than what a merge of one more dim
/// costs in indexing, and collectives are no slower by more than this.
pub(crate) const CHEAP_PADDING: f64 = 0.02;

/// Padding up to this share is less than what strided pieces cost (six times the time, as measured above).
const BEARABLE_PADDING: f64 = 0.5;

/// What formats are compared by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Rank {
    /// Bytes of values that are computed in shards: more is better.
    pub(crate) computed_bytes: u64,
    /// Whether a parameter of the entry or what a loop carries has the format.
    pub(crate) has_state: bool,
    /// Whether the run is the physically major-most piece of the state.
    pub(crate) is_major: bool,
    /// Share of padding.
    pub(crate) waste: f64,
    /// Dims merged.
    pub(crate) len: usize,
}

impl Rank {
    /// Less is better.
    pub(crate) fn total_cmp(&self, other: &Rank) -> std::cmp::Ordering {
        let class = |r: &Rank| match (r.is_major, r.waste) {
            (true, waste) if waste <= CHEAP_PADDING => 0,
            (true, waste) if waste <= BEARABLE_PADDING => 1,
            (false, waste) if waste <= CHEAP_PADDING => 2,
            (_, _) => 3,
        };
        let waste = |r: &Rank| if r.waste <= CHEAP_PADDING { 0.0 } else { r.waste };
        (other.computed_bytes.cmp(&self.computed_bytes))
            .then(other.has_state.cmp(&self.has_state))
            .then(class(self).cmp(&class(other)))
            .then(waste(self).total_cmp(&waste(other)))
            .then(other.is_major.cmp(&self.is_major))
            .then(self.len.cmp(&other.len))
    }

    /// Why this format lost against `best`.
    pub(crate) fn worse_than(&self, best: &Rank) -> String {
        if self.computed_bytes < best.computed_bytes {
            let (few, many) = (self.computed_bytes, best.computed_bytes);
            return format!("{few} bytes of the update could be computed in shards, {many} in the format chosen");
        }
        if best.has_state && !self.has_state {
            return "no weight or optimizer state could be in shards".into();
        }
        if best.is_major && !self.is_major {
            return "it is not the major-most piece in memory: shards would be strided".into();
        }
        if self.waste > best.waste {
            return format!("{:.1} % padding, {:.1} % in the format chosen", self.waste * 100.0, best.waste * 100.0);
        }
        "it merges more dims without need".into()
    }
}

/// Runs of a tensor that may be cut: every dim, every trivial merge that starts at the major-most dim, and every merge that would be
/// one in row-major order. A gradient that is transposed has the layout of what it is a transpose of until layouts are assigned,
/// and the update behind it may be about blocks of a flat array.
pub fn candidates(shape: &ArrayShape) -> Vec<DimRun> {
    let mut runs: Vec<DimRun> = (0..shape.rank()).filter(|&d| shape.dims[d] > 1).map(DimRun::dim).collect();
    let is_tiled = shape.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty());
    let row_major = ArrayShape::new(shape.dtype, shape.dims.iter().copied());
    for start in 0..shape.rank() {
        for len in 2..=shape.rank() - start {
            let run = DimRun::of(start, len);
            let is_trivial_major = |shape: &ArrayShape| is_trivial(shape, run) && is_major_run(shape, run);
            if is_trivial_major(shape) || (!is_tiled && is_trivial_major(&row_major)) {
                runs.push(run);
            }
        }
    }
    runs
}

/// Whether merging the run's dims moves no byte: they are neighbours in memory in the same order, outside of the tile.
fn is_trivial(shape: &ArrayShape, run: DimRun) -> bool {
    let order = shape.major_to_minor();
    let n_tiled = shape.layout.as_ref().and_then(|l| l.tiles.first()).map_or(0, |tile| tile.len());
    let n_untiled = order.len().saturating_sub(n_tiled);
    let Some(place) = order.iter().position(|&d| d == run.start) else { return false };
    let is_in_order = run.dims().enumerate().all(|(i, dim)| order.get(place + i) == Some(&dim));
    is_in_order && place + run.len <= n_untiled
}

/// Whether the run is the slowest piece of memory; dims of one element before it do not count.
pub(crate) fn is_major_run(shape: &ArrayShape, run: DimRun) -> bool {
    let mut order = shape.major_to_minor();
    order.retain(|d| run.dims().contains(d) || shape.dims.get(*d) != Some(&1));
    let mut dims: Vec<usize> = order.into_iter().take(run.len).collect();
    dims.sort();
    dims.into_iter().eq(run.dims())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::DType;
    use hlo_spmd::EvenSplit;

    fn best(shape: &ArrayShape, n_shards: usize) -> (DimRun, EvenSplit) {
        let ranked = candidates(shape).into_iter().map(|run| {
            let split = EvenSplit::new(run.size(&shape.dims), n_shards);
            let rank = Rank {
                computed_bytes: 1,
                has_state: true,
                is_major: is_major_run(shape, run),
                waste: split.waste(),
                len: run.len,
            };
            (rank, run, split)
        });
        let best = ranked.min_by(|a, b| a.0.total_cmp(&b.0)).expect("a candidate");
        (best.1, best.2)
    }

    const CHEAPEST: Rank = Rank { computed_bytes: 9, has_state: true, is_major: true, waste: 0.0, len: 1 };

    #[test]
    fn formats_are_ranked_by_what_is_in_shards_then_by_place_and_padding() {
        let [cheap, bearable] = [CHEAP_PADDING, BEARABLE_PADDING];
        let best_first = [
            CHEAPEST,
            Rank { waste: cheap, len: 2, ..CHEAPEST },
            Rank { waste: bearable, ..CHEAPEST },
            Rank { is_major: false, ..CHEAPEST },
            Rank { is_major: false, waste: cheap, len: 2, ..CHEAPEST },
            Rank { is_major: false, waste: bearable, ..CHEAPEST },
            Rank { waste: 2.0 * bearable, ..CHEAPEST },
            Rank { has_state: false, ..CHEAPEST },
            Rank { computed_bytes: 8, ..CHEAPEST },
        ];
        for (i, a) in best_first.iter().enumerate() {
            for (k, b) in best_first.iter().enumerate() {
                assert_eq!(a.total_cmp(b), i.cmp(&k), "{i} {k}");
            }
        }
    }

    #[test]
    fn the_first_difference_says_why_a_format_lost() {
        let fewer = Rank { computed_bytes: 8, has_state: false, ..CHEAPEST };
        let why = "8 bytes of the update could be computed in shards, 9 in the format chosen";
        assert_eq!(fewer.worse_than(&CHEAPEST), why);
        let stateless = Rank { has_state: false, ..CHEAPEST };
        assert_eq!(stateless.worse_than(&CHEAPEST), "no weight or optimizer state could be in shards");
        assert_eq!(stateless.worse_than(&Rank { computed_bytes: 8, ..CHEAPEST }), stateless.worse_than(&CHEAPEST));
    }

    #[test]
    fn the_papers_example_is_merged_as_the_paper_says() {
        let mut shape = ArrayShape::new(DType::F32, [3, 3, 256, 256]).with_row_major();
        let (run, split) = best(&shape, 10);
        assert_eq!((run, split.size, split.padded_size()), (DimRun::of(0, 3), 2304, 2310));
        let mut layout = shape.layout.as_deref().cloned().expect("a layout");
        layout.tiles = vec![[8, 128].into_iter().collect()];
        shape.layout = Some(layout.into());
        let (run, split) = best(&shape, 10);
        assert_eq!((run, split.size, split.padded_size()), (DimRun::of(0, 2), 9, 10));
    }

    #[test]
    fn a_dim_that_divides_is_cut_as_it_is_and_a_small_one_is_merged() {
        let shape = |dims: [i64; 2]| ArrayShape::new(DType::F32, dims).with_row_major();
        assert_eq!(best(&shape([784, 512]), 8).0, DimRun::dim(0));
        assert_eq!(best(&shape([1001, 64]), 8).0, DimRun::dim(0));
        assert_eq!(best(&shape([10, 3]), 8), (DimRun::of(0, 2), EvenSplit::new(30, 8)));
        assert_eq!(best(&shape([1, 4096]), 8).0, DimRun::dim(1));
    }
}
