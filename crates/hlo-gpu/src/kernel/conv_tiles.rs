//! `convolution` as a matrix product: `output[m, n] = sum over k of input[m, k] × kernel[k, n]`. Here `m` goes over the
//! output's batch and spatial positions, `n` over its features, and `k` over the window's taps and the input's features.
//!
//! The left matrix is never stored: its elements are found by the convolution's own index map, so padding, strides, dilations
//! of both sides, reversed windows and groups (each a product of its own) all go this way. A block computes a tile of
//! the output; slices of both factors go through shared memory, and each thread holds a small tile in registers. Every
//! sum is taken in the order of `k`.
//!
//! One thread for each element computes instead: groups with less than four features (nothing is shared between the
//! elements of a row), sums of less than 16 products, outputs of less than 1024 elements, convolutions inside a fusion.

use hlo_ir::{InstId, Module, Opcode};
use smallvec::SmallVec;

use super::Signature;
use super::contraction::Convolution;
use super::emitter::{Argument, Atom, Emitter, FrameId, Index, ScopeKind, Value};
use super::group::{BlockRange, ResultGroup};
use super::windows::guarded;
use crate::GpuError;

/// Products of a slice.
const SLICE: i64 = 16;
/// Threads of a block.
const THREADS: i64 = 256;
/// Elements after each row of a slice, so that threads that write along its columns meet in few banks.
const PADDING: i64 = 4;
/// Tiles that keep a device busy.
const ENOUGH_TILES: i64 = 96;
/// Rows and columns of a block's tile and of a thread's, the best first.
const SIZES: [[i64; 4]; 5] = [[64, 64, 4, 4], [128, 32, 4, 4], [32, 128, 4, 4], [32, 32, 2, 2], [16, 16, 1, 1]];

/// The matrix product that a convolution is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ConvTiles {
    conv: InstId,
    /// Of one group.
    m: i64,
    n: i64,
    k: i64,
    n_groups: i64,
    /// Rows and columns of a block's tile and of a thread's.
    size: [i64; 4],
    /// The output's dims that `m` goes over, the fastest first.
    row_dims: SmallVec<[usize; 4]>,
    /// Whether neighbouring threads read the input, and the kernel, along `k`.
    input_along_k: bool,
    kernel_along_k: bool,
}

/// A group that is one convolution.
pub(super) fn choose(module: &Module, signature: &Signature, group: &ResultGroup) -> Option<ConvTiles> {
    let &[(inst, 0)] = group.sources.as_slice() else { return None };
    if module.inst(inst).opcode != Opcode::Convolution || signature.bindings.contains_key(&inst) {
        return None;
    }
    let conv = Convolution::of(module, inst)?;
    let dims = &conv.attrs.dim_labels;
    let feature = dims.output_feature as usize;
    let n = conv.n_features() / conv.n_groups;
    let m = i64::try_from(conv.output.n_elems()).ok()? / conv.n_features().max(1);
    let k = conv.window.iter().map(|dim| dim.size).product::<i64>() * conv.group_input;
    if n < 4 || k < SLICE || m * n * conv.n_groups < 1024 {
        return None;
    }
    let fastest = |shape: &hlo_ir::ArrayShape| {
        shape.physical_order().into_iter().find(|&dim| shape.dims[dim] != 1).map(|dim| dim as i64)
    };
    let (in_input, in_kernel) = (fastest(conv.input), fastest(conv.kernel));
    // The row dim that is fastest in the input first, then as the output lies.
    let spatial = dims.input_spatial.iter().zip(&dims.output_spatial);
    let pairs = spatial.chain(std::iter::once((&dims.input_batch, &dims.output_batch)));
    let first = pairs.filter(|(from, _)| Some(**from) == in_input).map(|(_, to)| *to as usize).next();
    let others = conv.output.physical_order().into_iter().filter(|&dim| dim != feature && Some(dim) != first);
    let row_dims = first.into_iter().chain(others).collect();
    Some(ConvTiles {
        conv: inst,
        m,
        n,
        k,
        n_groups: conv.n_groups,
        size: choose_size(m, n, conv.n_groups),
        row_dims,
        input_along_k: in_input == Some(dims.input_feature),
        kernel_along_k: in_kernel == Some(dims.kernel_input_feature),
    })
}

/// The largest tile of which there are enough and that is mostly full; else the smallest.
fn choose_size(m: i64, n: i64, n_groups: i64) -> [i64; 4] {
    let fits = |size: &&[i64; 4]| {
        let (rows, columns) = (ceil_div(m, size[0]), ceil_div(n, size[1]));
        let is_full = rows * size[0] * columns * size[1] <= m * n * 3 / 2;
        is_full && rows * columns * n_groups >= ENOUGH_TILES
    };
    SIZES.iter().find(fits).copied().unwrap_or(SIZES[SIZES.len() - 1])
}

fn ceil_div(n: i64, size: i64) -> i64 {
    (n + size - 1) / size
}

/// A slice of a factor in shared memory, and how threads fill it.
struct Side {
    table: String,
    /// Rows or columns of the block's tile.
    length: i64,
    along_k: bool,
}

impl Side {
    fn stride(&self) -> i64 {
        self.length + PADDING
    }
}

impl ConvTiles {
    /// Tiles of all groups.
    pub(super) fn n_tiles(&self) -> i64 {
        ceil_div(self.m, self.size[0]) * ceil_div(self.n, self.size[1]) * self.n_groups
    }

    /// Writes the loop over the tiles of a group's blocks.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        (result, argument): (usize, &Argument),
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let module = e.module;
        let conv = Convolution::of(module, self.conv);
        let conv = conv.ok_or_else(|| e.unsupported(self.conv, "expected operands that fit the dim labels"))?;
        let held = argument.ctype.held;
        let [tile_m, tile_n, own_m, own_n] = self.size;
        let rows = Side { table: e.fresh("s"), length: tile_m, along_k: self.input_along_k };
        let columns = Side { table: e.fresh("s"), length: tile_n, along_k: self.kernel_along_k };
        for side in [&rows, &columns] {
            e.line(format!("alignas(32) __shared__ {held} {}[{}];", side.table, SLICE * side.stride()));
        }
        e.is_cooperative = true;
        let tile = e.loop_variable();
        let header = format!(
            "for (idx {tile} = {}; {tile} < {}; {tile} += {})",
            blocks.block_number(),
            self.n_tiles(),
            blocks.n_blocks
        );
        e.scope(ScopeKind::Loop, header, |e| {
            let depth = e.depth();
            let (rest, tile_column) = e.divide(tile, ceil_div(self.n, tile_n));
            let (group, tile_row) = e.divide(rest, ceil_div(self.m, tile_m));
            let group = if self.n_groups == 1 { Atom::Const(0) } else { group };
            let (first_m, first_n) = (e.affine(tile_row, tile_m, 0), e.affine(tile_column, tile_n, 0));
            let sums = e.fresh("c");
            e.line(format!("{held} {sums}[{}] = {{}};", own_m * own_n));
            let k = e.loop_variable();
            let header = format!("for (idx {k} = 0; {k} < {}; {k} += {SLICE})", self.k);
            e.scope(ScopeKind::Loop, header, |e| {
                self.fill(e, frame, &conv, (&rows, depth), (group, first_m, k), held, true)?;
                self.fill(e, frame, &conv, (&columns, depth), (group, first_n, k), held, false)?;
                e.line("__syncthreads();");
                e.line(format!(
                    "hlo::add_products<{held}, {own_m}, {own_n}, {SLICE}>({sums}, {} + {} * {own_m}, {}, {} + {} * {own_n}, {});",
                    rows.table,
                    format_args!("threadIdx.x / {}", tile_n / own_n),
                    rows.stride(),
                    columns.table,
                    format_args!("threadIdx.x % {}", tile_n / own_n),
                    columns.stride(),
                ));
                e.line("__syncthreads();");
                Ok(())
            })?;
            let row = e.bind(format!("{first_m} + (idx)(threadIdx.x / {}) * {own_m}", tile_n / own_n), depth);
            let column = e.bind(format!("{first_n} + (idx)(threadIdx.x % {}) * {own_n}", tile_n / own_n), depth);
            self.store(e, &conv, (result, argument), (group, row, column), &sums)
        })
    }

    /// The index in the output of row `m` and column `n` of a group.
    fn output_index(&self, e: &mut Emitter<'_>, conv: &Convolution<'_>, group: Atom, m: Atom, n: Atom) -> Index {
        let sizes: SmallVec<[i64; 4]> = self.row_dims.iter().map(|&dim| conv.output.dims[dim]).collect();
        let order: SmallVec<[usize; 4]> = (0..sizes.len()).collect();
        let found = e.index_at(m, &sizes, &order);
        let mut index: Index = SmallVec::from_elem(Atom::Const(0), conv.output.rank());
        for (&dim, &atom) in self.row_dims.iter().zip(&found) {
            index[dim] = atom;
        }
        let first = e.affine(group, self.n, 0);
        index[conv.attrs.dim_labels.output_feature as usize] = e.sum(first, n);
        index
    }

    /// Writes the loads of a slice of one factor.
    #[allow(clippy::too_many_arguments)] // What the two calls above differ in, and what they share.
    fn fill(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        conv: &Convolution<'_>,
        (side, depth): (&Side, usize),
        (group, first, first_k): (Atom, Atom, Atom),
        held: &str,
        is_input: bool,
    ) -> Result<(), GpuError> {
        let n_loads = (side.length * SLICE / THREADS).max(1);
        // Threads along the faster of the two; the others, and further loads, along the slower.
        let width = if side.along_k { SLICE } else { side.length };
        let fast = e.bind(format!("(idx)(threadIdx.x % {width})"), 0);
        let slow = e.bind(format!("(idx)(threadIdx.x / {width})"), 0);
        for load in 0..n_loads {
            let slow = e.affine(slow, 1, load * (THREADS / width));
            let (along, within) = if side.along_k { (slow, fast) } else { (fast, slow) };
            let at = e.bind(format!("{first} + {along}"), depth);
            let k = e.sum(first_k, within);
            let mut conditions = Vec::new();
            let limit = if is_input { self.m } else { self.n };
            if limit % side.length != 0 {
                conditions.push(format!("{at} < {limit}"));
            }
            if self.k % SLICE != 0 {
                conditions.push(format!("{k} < {}", self.k));
            }
            let (taps, channel) = e.divide(k, conv.group_input);
            let sizes: SmallVec<[i64; 4]> = conv.window.iter().map(|dim| dim.size).collect();
            let order: SmallVec<[usize; 4]> = (0..sizes.len()).rev().collect();
            let taps = if self.k == conv.group_input {
                SmallVec::from_elem(Atom::Const(0), sizes.len())
            } else {
                e.index_at(taps, &sizes, &order)
            };
            let (operand, own) = if is_input {
                let index = self.output_index(e, conv, group, at, Atom::Const(0));
                (conv.lhs, conv.input_index(e, (&index, group), &taps, channel, &mut conditions))
            } else {
                let first = e.affine(group, self.n, 0);
                let feature = e.sum(first, at);
                (conv.rhs, conv.kernel_index(feature, &taps, channel))
            };
            let element = e.variable(held, &format!("{held}()"));
            guarded(e, &conditions, |e| {
                let value: Value = e.value(frame, operand, 0, &own)?;
                e.line(format!("{} = ({held}){};", element.text, value.text));
                Ok(())
            })?;
            e.line(format!("{}[{within} * {} + {along}] = {};", side.table, side.stride(), element.text));
        }
        Ok(())
    }

    /// Writes a thread's tile to memory.
    fn store(
        &self,
        e: &mut Emitter<'_>,
        conv: &Convolution<'_>,
        (result, argument): (usize, &Argument),
        (group, row, column): (Atom, Atom, Atom),
        sums: &str,
    ) -> Result<(), GpuError> {
        let [tile_m, tile_n, own_m, own_n] = self.size;
        let unrolled = |e: &mut Emitter<'_>, n: i64| {
            let i = e.loop_variable();
            e.line("#pragma unroll");
            (i, format!("for (idx {i} = 0; {i} < {n}; ++{i})"))
        };
        let (i, header) = unrolled(e, own_m);
        e.scope(ScopeKind::Loop, header, |e| {
            let (j, header) = unrolled(e, own_n);
            e.scope(ScopeKind::Loop, header, |e| {
                let (m, n) = (e.sum(row, i), e.sum(column, j));
                let mut conditions = Vec::new();
                if self.m % tile_m != 0 {
                    conditions.push(format!("{m} < {}", self.m));
                }
                if self.n % tile_n != 0 {
                    conditions.push(format!("{n} < {}", self.n));
                }
                let index = self.output_index(e, conv, group, m, n);
                let at = e.position(&index, &argument.shape.dims, &argument.shape.physical_order());
                let ctype = argument.ctype;
                let sum = ctype.to_stored(&format!("{sums}[{i} * {own_n} + {j}]"));
                guarded(e, &conditions, |e| {
                    e.line(format!("r{result}[{at}] = {sum};"));
                    Ok(())
                })
            })
        })
    }
}
