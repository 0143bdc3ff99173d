//! Sizes of a convolution's tiles, and which elements of a tile a thread has.

use std::fmt::Display;

use smallvec::SmallVec;

use super::ceil_div;

/// Threads of a block.
pub(super) const THREADS: i64 = 256;

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Units {
    /// Each thread, its own small tile.
    Threads,
    /// The same for elements of more than four bytes, of which registers hold fewer.
    ThreadsOfWideElements,
    /// Tensor cores with 16-bit floats, for a warp at a time: `mma.sync` of 16 x 8 x 16 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
    TensorCores,
    /// Tensor cores with f32 rounded to TF32: 16 x 8 x 8.
    TensorCoresTf32,
}

impl Units {
    /// Whether warps multiply, and not threads.
    pub(super) fn are_tensor_cores(self) -> bool {
        match self {
            Units::Threads | Units::ThreadsOfWideElements => false,
            Units::TensorCores | Units::TensorCoresTf32 => true,
        }
    }
}

/// How a tile is dealt out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    pub units: Units,
    /// Rows and columns of a block's tile.
    pub tile: [i64; 2],
    /// Of a thread's tile; with tensor cores of a warp's.
    part: [i64; 2],
    /// Products of each sum that are in shared memory at a time.
    pub slice: i64,
    /// Time of a product beside one of the largest tile, in percent: smaller ones load more for each product. Counted from the
    /// instructions of a slice, not measured.
    cost: i64,
}

const fn threads(tile: [i64; 2], part: [i64; 2], slice: i64, cost: i64) -> Size {
    Size { units: Units::Threads, tile, part, slice, cost }
}

const fn wide(tile: [i64; 2], part: [i64; 2], cost: i64) -> Size {
    Size { units: Units::ThreadsOfWideElements, tile, part, slice: 16, cost }
}

const fn tensor(tile: [i64; 2], part: [i64; 2], cost: i64) -> Size {
    Size { units: Units::TensorCores, tile, part, slice: 32, cost }
}

const fn tf32(tile: [i64; 2], part: [i64; 2], cost: i64) -> Size {
    Size { units: Units::TensorCoresTf32, tile, part, slice: 16, cost }
}

const SIZES: [Size; 23] = [
    threads([128, 128], [8, 8], 8, 100),
    threads([128, 64], [8, 4], 8, 115),
    threads([64, 128], [4, 8], 8, 115),
    threads([64, 64], [4, 4], 16, 140),
    threads([128, 32], [4, 4], 16, 150),
    threads([32, 128], [4, 4], 16, 150),
    threads([32, 32], [2, 2], 16, 230),
    threads([16, 16], [1, 1], 16, 400),
    wide([64, 64], [4, 4], 100),
    wide([128, 32], [4, 4], 105),
    wide([32, 128], [4, 4], 105),
    wide([32, 32], [2, 2], 160),
    wide([16, 16], [1, 1], 280),
    tensor([128, 128], [64, 32], 100),
    tensor([128, 64], [32, 32], 125),
    tensor([64, 128], [32, 32], 125),
    tensor([64, 64], [32, 16], 160),
    tensor([32, 32], [16, 8], 270),
    tf32([128, 128], [64, 32], 100),
    tf32([128, 64], [32, 32], 125),
    tf32([64, 128], [32, 32], 125),
    tf32([64, 64], [32, 16], 160),
    tf32([32, 32], [16, 8], 270),
];

/// Blocks that run at a time: a device of this many multiprocessors has 132 (H100 data sheet).
pub(super) const MULTIPROCESSORS: i64 = 132;

/// The size whose tiles are done first; of those with so many rows, if they must have them.
pub(super) fn choose(units: Units, (m, n): (i64, i64), n_groups: i64, n_rows: Option<i64>) -> Option<Size> {
    let sizes = SIZES.iter().filter(|size| size.units == units && n_rows.is_none_or(|n_rows| size.tile[0] == n_rows));
    sizes.min_by_key(|size| size.rounds((m, n), n_groups)).copied()
}

/// Rows of the tiles that are done first or take at most a fiftieth longer, the fastest first.
pub(super) fn rows_of_fast(units: Units, (m, n): (i64, i64), n_groups: i64) -> SmallVec<[i64; 4]> {
    let timed =
        SIZES.iter().filter(|size| size.units == units).map(|size| (size.rounds((m, n), n_groups), size.tile[0]));
    let mut timed: SmallVec<[(i64, i64); 8]> = timed.collect();
    timed.sort_by_key(|&(time, _)| time);
    let most = timed.first().map_or(0, |&(best, _)| best.saturating_add(best / 50));
    let mut rows: SmallVec<[i64; 4]> = SmallVec::new();
    for (_, n_rows) in timed.into_iter().take_while(|&(time, _)| time <= most) {
        if !rows.contains(&n_rows) {
            rows.push(n_rows);
        }
    }
    rows
}

impl Size {
    /// How long tiles take, if as many run at a time as a device has multiprocessors, in sums of the largest tile.
    pub(super) fn rounds(&self, (m, n): (i64, i64), n_groups: i64) -> i64 {
        let n_tiles = ceil_div(m, self.tile[0]) * ceil_div(n, self.tile[1]) * n_groups;
        let of_tile = self.tile[0] * self.tile[1] * self.cost / 100;
        // Many rounds overlap, so that a last one that is not full is no whole one.
        (n_tiles.saturating_mul(of_tile) / MULTIPROCESSORS).max(of_tile)
    }

    /// Neighbours of a thread's rows, and of its columns, in shared memory: what one access loads.
    fn chunk(&self) -> [i64; 2] {
        self.part.map(|own| own.min(4))
    }

    /// Rows and columns of which a thread has sums.
    pub(super) fn own(&self) -> [i64; 2] {
        if self.units.are_tensor_cores() { [self.part[0] / 8, self.part[1] / 4] } else { self.part }
    }

    /// Sums of a thread.
    pub(super) fn sums(&self) -> i64 {
        self.own().iter().product()
    }

    /// Threads among which the rows of a tile's column are dealt out.
    pub(super) fn threads_of_column(&self) -> i64 {
        self.tile[0] / self.own()[0]
    }

    /// The number of a thread among those.
    pub(super) fn thread_of_column(&self) -> String {
        let [number, _] = self.part_number();
        if self.units.are_tensor_cores() { format!("{number} * 8 + (int)(threadIdx.x % 32 / 4)") } else { number }
    }

    /// Parts along the columns.
    fn parts_across(&self) -> i64 {
        self.tile[1] / self.part[1]
    }

    /// The place of a thread's or a warp's part of the tile.
    fn part_number(&self) -> [String; 2] {
        let who = if self.units.are_tensor_cores() { "threadIdx.x / 32" } else { "threadIdx.x" };
        [format!("(int)({who} / {})", self.parts_across()), format!("(int)({who} % {})", self.parts_across())]
    }

    /// The row of the tile that is a thread's row `i`.
    pub(super) fn row(&self, i: impl Display) -> String {
        let [number, _] = self.part_number();
        match self.units {
            Units::Threads | Units::ThreadsOfWideElements => {
                let [chunk, _] = self.chunk();
                let apart = self.tile[0] * chunk / self.part[0];
                format!("{i} / {chunk} * {apart} + {i} % {chunk} + {number} * {chunk}")
            }
            Units::TensorCores | Units::TensorCoresTf32 => {
                format!("{i} / 2 * 16 + {i} % 2 * 8 + (int)(threadIdx.x % 32 / 4) + {number} * {}", self.part[0])
            }
        }
    }

    /// The column of the tile that is a thread's column `j`.
    pub(super) fn column(&self, j: impl Display) -> String {
        let [_, number] = self.part_number();
        match self.units {
            Units::Threads | Units::ThreadsOfWideElements => {
                let [_, chunk] = self.chunk();
                let apart = self.tile[1] * chunk / self.part[1];
                format!("{j} / {chunk} * {apart} + {j} % {chunk} + {number} * {chunk}")
            }
            Units::TensorCores | Units::TensorCoresTf32 => {
                format!("{j} / 2 * 8 + {j} % 2 + (int)(threadIdx.x % 4) * 2 + {number} * {}", self.part[1])
            }
        }
    }

    /// Which of a thread's sums is that of its row `i` and column `j`.
    pub(super) fn sum(&self, i: impl Display, j: impl Display) -> String {
        match self.units {
            Units::Threads | Units::ThreadsOfWideElements => format!("{i} * {} + {j}", self.part[1]),
            Units::TensorCores | Units::TensorCoresTf32 => {
                format!("({i} / 2 * {} + {j} / 2) * 4 + {i} % 2 * 2 + {j} % 2", self.part[1] / 8)
            }
        }
    }

    /// The call that adds the products of a slice to a thread's sums. Of both tables: the name, and the elements from a row to the next.
    pub(super) fn multiply(&self, sums: &str, [rows, columns]: [(&str, i64); 2]) -> String {
        let [row, column] = self.part_number();
        let [m, n] = self.part;
        match self.units {
            Units::Threads | Units::ThreadsOfWideElements => {
                let [along, across] = self.chunk();
                format!(
                    "hlo::add_products<{m}, {n}, {along}, {across}, {}>({sums}, {} + {row} * {along}, {}, {}, {} + {column} * {across}, {}, {});",
                    self.slice,
                    rows.0,
                    rows.1,
                    self.tile[0] * along / m,
                    columns.0,
                    columns.1,
                    self.tile[1] * across / n,
                )
            }
            Units::TensorCores | Units::TensorCoresTf32 => format!(
                "hlo::add_products_of_warp<{m}, {n}, {}, {}, {}>({sums}, {} + {row} * {}, {} + {column} * {});",
                self.slice,
                rows.1,
                columns.1,
                rows.0,
                m * rows.1,
                columns.0,
                n * columns.1,
            ),
        }
    }
}
