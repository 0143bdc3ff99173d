//! `convolution` as a matrix product: `output[m, n] = sum over k of input[m, k] × kernel[k, n]`. Here `m` goes over the
//! output's batch and spatial positions, `n` over its features, and `k` over the window's taps and the input's features.
//!
//! The left matrix is never stored: its elements are found by the convolution's own index map, so padding, strides, dilations
//! of both sides, reversed windows and groups (each a product of its own) all go this way. A block computes a tile of
//! the output; slices of both factors go through shared memory ([`slices`]), and while one slice is multiplied the next one is
//! on its way. Factors of 16-bit floats are multiplied by tensor cores, others by each thread, which holds a small tile in
//! registers. What follows the convolution element by element is computed before its result is written, and sums of its columns
//! on the way ([`sums`]).
//!
//! One thread for each element computes instead: groups with less than four features (nothing is shared between the
//! elements of a row), sums of less than 16 products, outputs of less than 1024 elements, convolutions that other operations
//! read elsewhere than at their own element.

mod size;
mod slices;
mod sums;

pub(crate) use sums::{MAX_SUMS, rows_of_tiles};

use std::collections::HashSet;

use hlo_ir::{DType, InstId, Module, Opcode};
use smallvec::SmallVec;

use self::size::{Size, Units};
use self::slices::{Side, Sides};
use self::sums::{SumsPlace, TileSums};
use super::Signature;
use super::contraction::Convolution;
use super::dtype::CType;
use super::emitter::{Argument, Atom, Emitter, FrameId, Index, ScopeKind};
use super::group::{BlockRange, ResultGroup, ResultSum};
use super::kept_sum::KeptSum;
use super::reach::Reach;
use super::windows::guarded;
use crate::GpuError;
use crate::lower::dot::may_round_to_tf32;

/// The least number of products of a sum.
const MIN_PRODUCTS: i64 = 16;

/// The matrix product that a convolution is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ConvTiles {
    conv: InstId,
    /// Of one group.
    m: i64,
    n: i64,
    k: i64,
    n_groups: i64,
    size: Size,
    /// The output's dims that `m` goes over, the fastest first.
    row_dims: SmallVec<[usize; 4]>,
    sides: Sides,
    /// Sums of the columns of each tile.
    sums: TileSums,
}

/// The matrix product of one group.
struct Product {
    units: Units,
    m: i64,
    n: i64,
    k: i64,
}

impl Product {
    /// None for convolutions that go by an element for each thread.
    fn of(conv: &Convolution<'_>, uses_tf32: bool) -> Option<Product> {
        let n = conv.n_features() / conv.n_groups;
        let m = i64::try_from(conv.output.n_elems()).ok()? / conv.n_features().max(1);
        let k = conv.window.iter().map(|dim| dim.size).product::<i64>() * conv.group_input;
        if n < 4 || k < MIN_PRODUCTS || m * n * conv.n_groups < 1024 {
            return None;
        }
        let (from, to) = (conv.input.dtype, conv.output.dtype);
        let is_half = matches!(from, DType::BF16 | DType::F16) && conv.kernel.dtype == from;
        let is_f32 = [from, conv.kernel.dtype, to].iter().all(|&dtype| dtype == DType::F32);
        let units = if is_half && to.is_float() && to != DType::F64 {
            Units::TensorCores
        } else if is_f32 && uses_tf32 && may_round_to_tf32(&conv.attrs.operand_precision) {
            Units::TensorCoresTf32
        } else if CType::of(to).held_bytes() <= 4 {
            Units::Threads
        } else {
            Units::ThreadsOfWideElements
        };
        Some(Product { units, m, n, k })
    }
}

/// How many times longer than a device full of the largest tiles the tiles of a convolution take, with its sums in so many parts; none if it
/// goes by an element for each thread.
pub(crate) fn conv_rounds(module: &Module, conv: InstId, parts: i64) -> Option<f64> {
    let conv = Convolution::of(module, conv)?;
    let Product { units, m, n, k } = Product::of(&conv, false)?;
    let n_groups = conv.n_groups * parts;
    let size = size::choose(units, (m, n), n_groups, None)?;
    // Slices are whole.
    let k_of_part = ceil_div(ceil_div(k, parts), size.slice) * size.slice;
    let busy = size.rounds((m, n), n_groups) as f64 * k_of_part as f64 * size::MULTIPROCESSORS as f64;
    Some(busy / (m as f64 * n as f64 * k as f64 * conv.n_groups as f64))
}

/// A group whose results are one convolution, or computed from its elements one by one.
pub(super) fn choose(
    module: &Module,
    signature: &Signature,
    group: &ResultGroup,
    uses_tf32: bool,
) -> Option<ConvTiles> {
    of_sources(module, signature, &group.sources, TileSums::default(), uses_tf32)
}

/// The tiles of a kernel of one convolution, or of what is computed from its elements one by one, and of sums of columns of these.
pub(super) fn choose_with_sums(
    module: &Module,
    reach: &Reach,
    signature: &Signature,
    uses_tf32: bool,
) -> Option<ConvTiles> {
    let sums = TileSums::of(module, reach, signature)?;
    let sources = reach.with_sources(module, &signature.bindings, sums.all());
    let sources: Vec<(InstId, usize)> = sources.roots.iter().map(|root| (root.inst, root.leaf)).collect();
    of_sources(module, signature, &sources, sums, uses_tf32)
}

fn of_sources(
    module: &Module,
    signature: &Signature,
    sources: &[(InstId, usize)],
    sums: TileSums,
    uses_tf32: bool,
) -> Option<ConvTiles> {
    let inst = only_convolution(module, signature, sources)?;
    let conv = Convolution::of(module, inst)?;
    let Product { units, m, n, k } = Product::of(&conv, uses_tf32)?;
    let row_dims = row_dims(&conv);
    if !sums.fit(&conv, &row_dims) {
        return None;
    }
    // Parts of sums may have as few rows as no tile of tensor cores.
    let with_all_bits = Product::of(&conv, false)?.units;
    let size_of = |units: Units| size::choose(units, (m, n), conv.n_groups, sums.n_rows());
    let size = size_of(units).or_else(|| size_of(with_all_bits))?;
    let sides = Sides::new(module, signature, &conv, &row_dims, (n, size));
    Some(ConvTiles { conv: inst, m, n, k, n_groups: conv.n_groups, size, row_dims, sides, sums })
}

/// The output's dims that rows go over: the one that is fastest in the input first, then as the output lies.
fn row_dims(conv: &Convolution<'_>) -> SmallVec<[usize; 4]> {
    let dims = &conv.attrs.dim_labels;
    let feature = dims.output_feature as usize;
    let in_input = slices::fastest(conv.input);
    let spatial = dims.input_spatial.iter().zip(&dims.output_spatial);
    let pairs = spatial.chain(std::iter::once((&dims.input_batch, &dims.output_batch)));
    let first = pairs.filter(|(from, _)| Some(**from) == in_input).map(|(_, to)| *to as usize).next();
    let others = conv.output.physical_order().into_iter().filter(|&dim| dim != feature && Some(dim) != first);
    first.into_iter().chain(others).collect()
}

/// The convolution that all these leaves are, or are computed from at their own element.
fn only_convolution(module: &Module, signature: &Signature, sources: &[(InstId, usize)]) -> Option<InstId> {
    let mut found: Option<InstId> = None;
    let (mut seen, mut open) = (HashSet::new(), Vec::new());
    for &(source, leaf) in sources {
        if leaf != 0 || signature.bindings.contains_key(&source) {
            return None;
        }
        open.push(source);
    }
    let mut results = HashSet::new();
    while let Some(inst) = open.pop() {
        if !seen.insert(inst) || signature.bindings.contains_key(&inst) {
            continue;
        }
        let node = module.inst(inst);
        if node.opcode == Opcode::Convolution {
            if found.is_some_and(|other| other != inst) {
                return None;
            }
            found = Some(inst);
            continue; // what its own operands are computed from is read elsewhere
        }
        results.insert(inst);
        open.extend(node.operands.iter().copied());
    }
    let conv = found?;
    let dims = &module.shape(conv).as_array()?.dims;
    // Whatever depends on the convolution reads it at its own element.
    let depends = |inst: InstId| inst == conv || depends_on(module, signature, inst, conv);
    let is_at_own_element = results.iter().all(|&inst| {
        let is_elementwise = module.inst(inst).opcode.is_elementwise();
        !depends(inst) || (is_elementwise && module.shape(inst).as_array().is_some_and(|array| array.dims == *dims))
    });
    let all_depend = sources.iter().all(|&(source, _)| depends(source));
    (is_at_own_element && all_depend).then_some(conv)
}

fn depends_on(module: &Module, signature: &Signature, inst: InstId, on: InstId) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![inst]);
    while let Some(at) = open.pop() {
        if at == on {
            return true;
        }
        if seen.insert(at) && !signature.bindings.contains_key(&at) {
            open.extend(module.inst(at).operands.iter().copied());
        }
    }
    false
}

fn ceil_div(n: i64, size: i64) -> i64 {
    (n + size - 1) / size
}

impl ConvTiles {
    /// Tiles of all groups.
    pub(super) fn n_tiles(&self) -> i64 {
        ceil_div(self.m, self.size.tile[0]) * ceil_div(self.n, self.size.tile[1]) * self.n_groups
    }

    /// The sums among the results.
    pub(super) fn sums(&self) -> &[ResultSum] {
        self.sums.all()
    }

    /// The numbers of the results that are no sums.
    pub(super) fn whole(&self) -> &[usize] {
        self.sums.whole()
    }

    /// Elements of the convolution.
    pub(super) fn n_elems(&self) -> i64 {
        self.m * self.n * self.n_groups
    }

    /// Writes the loop over the tiles of a group's blocks.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let conv = Convolution::of(e.module, self.conv);
        let conv = conv.ok_or_else(|| e.unsupported(self.conv, "expected operands that fit the dim labels"))?;
        let sum_type = CType::of(if self.size.units.are_tensor_cores() { DType::F32 } else { conv.output.dtype });
        let (rows, columns) = self.sides.declare(e, &conv, self.size, sum_type);
        e.is_cooperative = true;
        let tile = e.loop_variable();
        let header = blocks.loop_header(tile, self.n_tiles());
        e.scope(ScopeKind::Loop, header, |e| {
            let depth = e.depth();
            let (rest, tile_column) = e.divide(tile, ceil_div(self.n, self.size.tile[1]));
            let (of_group, tile_row) = e.divide(rest, ceil_div(self.m, self.size.tile[0]));
            let of_group = if self.n_groups == 1 { Atom::Const(0) } else { of_group };
            let first_m = e.affine(tile_row, self.size.tile[0], 0);
            let first_n = e.affine(tile_column, self.size.tile[1], 0);
            let sums = e.fresh("c");
            e.line(format!("{} {sums}[{}] = {{}};", sum_type.held, self.size.sums()));
            let slice = self.size.slice;
            let k = e.loop_variable();
            // In the first round nothing is there to be multiplied, and in the last one nothing is left to be loaded.
            let header =
                format!("for (idx {k} = 0; {k} < {}; {k} += {slice})", ceil_div(self.k, slice) * slice + slice);
            e.scope(ScopeKind::Loop, header, |e| {
                rows.declare_ahead(e);
                columns.declare_ahead(e);
                e.branch(&format!("{k} < {}", self.k), |e| {
                    self.load(e, frame, &conv, (&rows, depth), (of_group, first_m, k))?;
                    self.load(e, frame, &conv, (&columns, depth), (of_group, first_n, k))
                })?;
                e.line(format!("if ({k} != 0) {}", self.size.multiply(&sums, [rows.place(), columns.place()])));
                e.line("__syncthreads();");
                rows.store(e);
                columns.store(e);
                e.line("__syncthreads();");
                Ok(())
            })?;
            let kept = self.sums.start(e, frame, self.size)?;
            self.store(e, frame, (group, results, &kept), &conv, (of_group, first_m, first_n), &sums)?;
            let tile = SumsPlace { part: tile_row, first: first_n, of_group, n: self.n, n_features: conv.n_features() };
            self.sums.write(e, frame, results, (self.size, &tile), &kept)
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

    /// Writes the loads of a slice of one factor, from row or column `first` and product `first_k` on.
    fn load(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        conv: &Convolution<'_>,
        (side, depth): (&Side, usize),
        (group, first, first_k): (Atom, Atom, Atom),
    ) -> Result<(), GpuError> {
        for (load, (along, within)) in side.places(e).into_iter().enumerate() {
            let at = e.bind(format!("{first} + {along}"), depth);
            let k = e.sum(first_k, within);
            let mut conditions = side.lanes_that_load();
            let limit = if side.is_input { self.m } else { self.n };
            if limit % self.size.tile[usize::from(!side.is_input)] != 0 {
                conditions.push(format!("{at} < {limit}"));
            }
            if self.k % self.size.slice != 0 {
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
            let (operand, own) = if side.is_input {
                let index = self.output_index(e, conv, group, at, Atom::Const(0));
                (conv.lhs, conv.input_index(e, (&index, group), &taps, channel, &mut conditions))
            } else {
                let first = e.affine(group, self.n, 0);
                let feature = e.sum(first, at);
                (conv.rhs, conv.kernel_index(feature, &taps, channel))
            };
            guarded(e, &conditions, |e| side.load(e, frame, (operand, &own), load))?;
        }
        Ok(())
    }

    /// Writes what a thread has to memory, or what follows from it.
    fn store(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        (group, results, kept): (&ResultGroup, &[Argument], &[KeptSum]),
        conv: &Convolution<'_>,
        (of_group, first_m, first_n): (Atom, Atom, Atom),
        sums: &str,
    ) -> Result<(), GpuError> {
        let ctype = CType::of(conv.output.dtype);
        let whole_results = group.without(self.sums.all());
        let unrolled = |e: &mut Emitter<'_>, n: i64| {
            let i = e.loop_variable();
            (i, format!("#pragma unroll\nfor (idx {i} = 0; {i} < {n}; ++{i})"))
        };
        let [n_rows, n_columns] = self.size.own();
        let (i, header) = unrolled(e, n_rows);
        e.scope(ScopeKind::Loop, header, |e| {
            let depth = e.depth();
            let m = e.bind(format!("{first_m} + {}", self.size.row(i)), depth);
            let (j, header) = unrolled(e, n_columns);
            e.scope(ScopeKind::Loop, header, |e| {
                let depth = e.depth();
                let n = e.bind(format!("{first_n} + {}", self.size.column(j)), depth);
                let mut conditions = Vec::new();
                if self.m % self.size.tile[0] != 0 {
                    conditions.push(format!("{m} < {}", self.m));
                }
                if self.n % self.size.tile[1] != 0 {
                    conditions.push(format!("{n} < {}", self.n));
                }
                let index = self.output_index(e, conv, of_group, m, n);
                guarded(e, &conditions, |e| {
                    let whole = e.constant(ctype.held, &format!("{sums}[{}]", self.size.sum(i, j)));
                    let rounded = ctype.rounded(&whole.text);
                    let value = if rounded == whole.text { whole.clone() } else { e.constant(ctype.held, &rounded) };
                    if value != whole {
                        e.unrounded.insert(value.text.clone(), whole.text);
                    }
                    e.staged.insert((frame, self.conv), value);
                    let stores = whole_results.values_at(e, frame, results, &index)?;
                    kept.iter().try_for_each(|sum| sum.add(e, frame, (j, &index[..]), None))?;
                    e.staged.clear();
                    for (result, at, value) in stores {
                        e.line(format!("r{result}[{at}] = {value};"));
                    }
                    Ok(())
                })
            })
        })
    }
}
