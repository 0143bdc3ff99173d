//! `sort` in shared memory, in the order that the evaluator has: equal elements keep theirs.
//!
//! **Whole rows** of up to [`MAX_ROW_ELEMS`] elements. A block loads some rows, and sorts them by Batcher's bitonic network (K. E. Batcher
//! 1968, *Sorting networks and their applications*). Only what the comparator reads moves; positions move along and decide where neither of two
//! elements comes first. All else is read from the operands where it is written.
//!
//! **Rows whose halves are sorted**, as the attribute [`SORTED_HALVES`](hlo_analysis::time::SORTED_HALVES) says: each block writes a piece of the merged row (O. Green, R. McColl,
//! D. Bader 2012, *GPU Merge Path*).
//!
//! 1. The block's threads search for the places at which the piece begins and ends in both halves.
//! 2. Both parts are loaded, and each element's place is its own one and the number of the other part's elements that come before it.
//!
//! Whatever the comparator says, nothing outside of a row is read or written; of a comparator that contradicts itself a sorted row is some
//! permutation, a merged one need not be.

use hashbrown::HashSet;
use hlo_analysis::time::says_sorted_halves;
use hlo_analysis::values::{InstLeaf, Through, follow};
use hlo_ir::attrs::{SliceAttrs, SliceDim, SortAttrs};
use hlo_ir::{CompId, DType, InstId, Module, Opcode};
use smallvec::SmallVec;

use super::Signature;
use super::dtype::CType;
use super::emitter::{Argument, Atom, Emitter, FrameId, Index, ScopeKind, Value};
use super::group::{BlockRange, ResultGroup};
use crate::GpuError;

/// Elements of the longest row that is sorted as a whole: their positions have 16 bits.
const MAX_ROW_ELEMS: i64 = 4096;
/// Elements of a piece of a merged row.
const MERGED_ELEMS: i64 = 2048;
/// Bytes of shared memory that every device has without being asked.
const SHARED_BYTES: usize = 48 << 10;
/// Elements of short rows that a block sorts together.
const SHORT_ROWS_ELEMS: i64 = 1024;
/// Threads of a block, and elements that each has at least.
const MAX_THREADS: i64 = 512;
const THREAD_ELEMS: i64 = 4;

/// How rows are dealt out to blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dealt {
    /// A block sorts so many rows together, each in `size` slots.
    Whole { size: i64, n_rows: i64 },
    /// A block writes so many elements of a merged row.
    Halves { n_elems: i64 },
}

/// A sort that has a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SortRows {
    sort: InstId,
    comparator: CompId,
    dim: usize,
    /// Elements of a row, and how many of them are wanted.
    n: i64,
    n_kept: i64,
    n_rows: i64,
    /// Which operand each result is, sorted.
    sorted: Vec<usize>,
    /// Operands that the comparator reads.
    keys: Vec<usize>,
    dealt: Dealt,
}

/// Elements of the longest row that a kernel sorts by keys of these types; 1 if they are too many.
pub(crate) fn max_sorted_elems(keys: impl Iterator<Item = DType>) -> i64 {
    let n_elems = shared_elems(MAX_ROW_ELEMS, keys);
    if n_elems < 32 { 1 } else { n_elems }
}

/// How many elements of these types, a power of two, shared memory holds beside their positions; at most `most`.
fn shared_elems(most: i64, keys: impl Iterator<Item = DType>) -> i64 {
    let bytes = keys.map(|dtype| CType::of(dtype).size_bytes()).sum::<usize>() + size_of::<u16>();
    let mut n = most;
    while n > 1 && n as usize * bytes > SHARED_BYTES {
        n /= 2;
    }
    n
}

/// The operands that a comparator reads.
pub(crate) fn comparator_keys(module: &Module, comparator: CompId) -> Vec<usize> {
    let computation = module.comp(comparator);
    let live = module.live(comparator);
    let read =
        computation.insts.iter().filter(|&&inst| live.contains(inst)).flat_map(|&inst| &module.inst(inst).operands);
    let read: HashSet<InstId> = read.copied().chain(computation.root.expand()).collect();
    let is_read =
        |&operand: &usize| computation.params[2 * operand..2 * operand + 2].iter().any(|param| read.contains(param));
    (0..computation.params.len() / 2).filter(is_read).collect()
}

/// The sort of which an instruction gives the first elements of rows, or all, and which operand's; values that are given are not followed.
pub(crate) fn sorted_operand(
    module: &Module,
    (inst, leaf): (InstId, usize),
    is_given: &dyn Fn(InstId) -> bool,
) -> Option<(InstId, usize)> {
    let mut at = inst;
    if let Some(SliceAttrs { slice }) = SliceAttrs::of(&module.inst(inst).attrs) {
        at = *module.inst(inst).operands.first()?;
        let dims = &module.shape(at).as_array()?.dims;
        let (sort, _) = sorted_operand(module, (at, 0), is_given)?;
        let along = SortAttrs::of(&module.inst(sort).attrs)?.dimensions.first().copied()?;
        let is_kept = |(d, (part, &size)): (usize, (&SliceDim, &i64))| {
            part.start == 0 && part.stride == 1 && (part.limit == size || d as i64 == along)
        };
        if !slice.iter().zip(dims).enumerate().all(is_kept) {
            return None;
        }
    }
    let from = follow(module, InstLeaf::new(at, leaf as u32), Through::TUPLES, is_given);
    let is_sort = module.inst(from.inst).opcode == Opcode::Sort && !is_given(from.inst);
    is_sort.then_some((from.inst, from.leaf_idx as usize))
}

/// A group that is a sort.
pub(super) fn choose(module: &Module, signature: &Signature, group: &ResultGroup) -> Option<SortRows> {
    let is_given = |inst: InstId| signature.bindings.contains_key(&inst);
    if group.sources.iter().any(|&(inst, _)| is_given(inst)) {
        return None;
    }
    let sources = group.sources.iter().map(|&source| sorted_operand(module, source, &is_given));
    let (sorts, sorted): (Vec<InstId>, Vec<usize>) = sources.collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let sort = *sorts.first()?;
    let attrs = SortAttrs::of(&module.inst(sort).attrs)?;
    let operands = &module.inst(sort).operands;
    if sorts.iter().any(|&other| other != sort) {
        return None;
    }
    let comparator = attrs.to_apply?;
    let dim = usize::try_from(*attrs.dimensions.first()?).ok()?;
    let shape = module.shape(*operands.first()?).as_array()?;
    let n = *shape.dims.get(dim)?;
    let n_kept = *signature.results[*group.results.first()?].shape.dims.get(dim)?;
    let n_rows = shape.dims.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &size)| size).product();
    let keys = comparator_keys(module, comparator);
    let dtypes = keys.iter().filter_map(|&key| Some(module.shape(*operands.get(key)?).as_array()?.dtype));
    let dealt = if module.inst(sort).marks.as_deref().is_some_and(says_sorted_halves) && n % 2 == 0 {
        Dealt::Halves { n_elems: shared_elems(MERGED_ELEMS, dtypes) }
    } else {
        let size = n.max(2).unsigned_abs().next_power_of_two() as i64;
        let most = shared_elems(MAX_ROW_ELEMS, dtypes);
        if size > most {
            return None;
        }
        let n_together = (SHORT_ROWS_ELEMS.min(most) / size).max(1);
        Dealt::Whole { size, n_rows: n_together.min((n_rows as u64).next_power_of_two() as i64) }
    };
    Some(SortRows { sort, comparator, dim, n, n_kept, n_rows, sorted, keys, dealt })
}

impl SortRows {
    /// Elements that a block has in shared memory.
    fn n_slots(&self) -> i64 {
        match self.dealt {
            Dealt::Whole { size, n_rows } => size * n_rows,
            Dealt::Halves { n_elems } => n_elems,
        }
    }

    /// Threads of a block.
    pub(super) fn block(&self) -> u32 {
        // Whole warps, as barriers want them.
        ((self.n_slots() / THREAD_ELEMS).clamp(32, MAX_THREADS) as u32).next_multiple_of(32)
    }

    /// Blocks that have work, if there may be so many.
    pub(super) fn n_blocks(&self) -> u64 {
        self.n_pieces().max(1) as u64
    }

    /// What blocks take one at a time.
    fn n_pieces(&self) -> i64 {
        match self.dealt {
            Dealt::Whole { n_rows, .. } => (self.n_rows as u64).div_ceil(n_rows as u64) as i64,
            Dealt::Halves { n_elems } => self.n_rows * self.pieces_of_row(n_elems),
        }
    }

    fn pieces_of_row(&self, n_elems: i64) -> i64 {
        (self.n_kept as u64).div_ceil(n_elems as u64) as i64
    }

    /// Writes the loop over a block's rows, or pieces.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[(usize, &Argument)],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        e.is_cooperative = true;
        let n_slots = self.n_slots();
        let operands = e.module.inst(self.sort).operands.to_vec();
        let mut shared = Vec::new();
        for &key in &self.keys {
            let ctype = CType::of(e.operand_shape(self.sort, key)?.dtype);
            let name = e.fresh("s");
            e.line(format!("__shared__ {} {name}[{n_slots}];", ctype.stored));
            shared.push(Key { operand: key, ctype, name });
        }
        let places = e.fresh("s");
        e.line(format!("__shared__ hlo::u16 {places}[{n_slots}];"));
        let writer = RowWriter { rows: self, frame, operands: &operands, results, shared: &shared, places: &places };
        let piece = e.loop_variable();
        let header = blocks.loop_header(piece, self.n_pieces());
        e.scope(ScopeKind::Loop, header, |e| match self.dealt {
            Dealt::Whole { size, n_rows } => writer.whole(e, piece, blocks.block, [size, n_rows]),
            Dealt::Halves { n_elems } => writer.halves(e, piece, blocks.block, n_elems),
        })
    }
}

/// An operand that the comparator reads, in shared memory.
struct Key {
    operand: usize,
    ctype: CType,
    name: String,
}

/// A sort while it is written.
struct RowWriter<'a> {
    rows: &'a SortRows,
    frame: FrameId,
    operands: &'a [InstId],
    results: &'a [(usize, &'a Argument)],
    shared: &'a [Key],
    /// The array of positions.
    places: &'a str,
}

impl RowWriter<'_> {
    /// The index of element `i` of a row.
    fn index(&self, e: &mut Emitter<'_>, row: Atom, i: Atom) -> Result<Index, GpuError> {
        let shape = e.operand_shape(self.rows.sort, 0)?;
        let order: SmallVec<[usize; 4]> =
            shape.physical_order().into_iter().filter(|&dim| dim != self.rows.dim).collect();
        let sizes: SmallVec<[i64; 4]> = order.iter().map(|&dim| shape.dims[dim]).collect();
        let along: SmallVec<[usize; 4]> = (0..sizes.len()).collect();
        let found = e.index_at(row, &sizes, &along);
        let mut index: Index = SmallVec::from_elem(i, shape.rank());
        order.iter().zip(found).for_each(|(&dim, atom)| index[dim] = atom);
        Ok(index)
    }

    /// Whether the elements `x` come before the elements `y`, both given by key.
    fn is_before(&self, e: &mut Emitter<'_>, x: &[String], y: &[String]) -> Result<String, GpuError> {
        let mut scalars = Vec::new();
        for (operand, &inst) in self.operands.iter().enumerate() {
            let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
            for side in [x, y] {
                let key = self.rows.keys.iter().position(|&key| key == operand);
                scalars.push(match key {
                    Some(key) => e.constant(ctype.held, &side[key]),
                    None => Value::literal(format!("{}()", ctype.held)),
                });
            }
        }
        let found = e.apply(self.rows.comparator, &scalars)?;
        let first = found.into_iter().next();
        Ok(first.ok_or_else(|| e.unsupported(self.rows.sort, "expected a comparator with a result"))?.text)
    }

    /// The keys in a slot.
    fn in_slot(&self, slot: &str) -> Vec<String> {
        self.shared.iter().map(|key| key.ctype.loaded(&format!("{}[{slot}]", key.name))).collect()
    }

    /// Writes an element's keys into its slot.
    fn load(&self, e: &mut Emitter<'_>, slot: &str, index: &[Atom]) -> Result<(), GpuError> {
        for Key { operand, ctype, name } in self.shared {
            let value = e.value(self.frame, self.operands[*operand], 0, index)?;
            e.line(format!("{name}[{slot}] = {};", ctype.exact_stored(&value.text)));
        }
        Ok(())
    }

    /// Writes all results at `to`, of the element that stood at `from` and whose keys are in a slot.
    fn store(&self, e: &mut Emitter<'_>, slot: &str, from: &[Atom], to: &[Atom]) -> Result<(), GpuError> {
        for (&operand, &(result, Argument { shape, ctype })) in self.rows.sorted.iter().zip(self.results) {
            let at = e.position(to, &shape.dims, &shape.physical_order());
            let stored = match self.shared.iter().find(|key| key.operand == operand) {
                Some(key) => format!("{}[{slot}]", key.name),
                None => ctype.exact_stored(&e.value(self.frame, self.operands[operand], 0, from)?.text),
            };
            e.line(format!("r{result}[{at}] = {stored};"));
        }
        Ok(())
    }

    /// Writes a loop over slots that are dealt out to the block's threads.
    fn each_slot<'m>(
        e: &mut Emitter<'m>,
        n: impl std::fmt::Display,
        block: u32,
        body: impl FnOnce(&mut Emitter<'m>, Atom) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let slot = e.loop_variable();
        let header = format!("for (idx {slot} = (idx)threadIdx.x; {slot} < {n}; {slot} += {block})");
        e.scope(ScopeKind::Loop, header, |e| body(e, slot))
    }

    /// Sorts some rows.
    fn whole(
        &self,
        e: &mut Emitter<'_>,
        piece: Atom,
        block: u32,
        [size, n_together]: [i64; 2],
    ) -> Result<(), GpuError> {
        let SortRows { n, n_kept, n_rows, dim, .. } = *self.rows;
        let (places, n_slots) = (self.places, size * n_together);
        let order = e.operand_shape(self.rows.sort, 0)?.physical_order();
        // Neighbouring threads take what lies side by side.
        let is_fastest = order.first() == Some(&dim) || n_together == 1;
        let at_slot = |e: &mut Emitter<'_>, t: Atom| {
            let (slow, fast) = e.divide(t, if is_fastest { size } else { n_together });
            let (of_row, i) = if is_fastest { (slow, fast) } else { (fast, slow) };
            let first = e.affine(piece, n_together, 0);
            let row = e.sum(first, of_row);
            let slot = e.affine(of_row, size, 0);
            (row, i, e.sum(slot, i))
        };
        Self::each_slot(e, n_slots, block, |e, t| {
            let (row, i, slot) = at_slot(e, t);
            let is_there = e.constant("bool", &format!("{row} < {n_rows} && {i} < {n}"));
            e.line(format!("{places}[{slot}] = (hlo::u16)({} ? {i} : {size});", is_there.text));
            e.branch(&is_there.text, |e| {
                let index = self.index(e, row, i)?;
                self.load(e, &slot.to_string(), &index)
            })
        })?;
        e.line("__syncthreads();");
        let (length, distance) = (e.fresh("n"), e.fresh("n"));
        e.scope(ScopeKind::Loop, format!("for (int {length} = 2; {length} <= {size}; {length} *= 2)"), |e| {
            let header = format!("for (int {distance} = {length} / 2; {distance} > 0; {distance} /= 2)");
            e.scope(ScopeKind::Loop, header, |e| {
                self.compare_pairs(e, (&length, &distance), (n, n_slots), block)?;
                e.line("__syncthreads();");
                Ok(())
            })
        })?;
        Self::each_slot(e, n_slots, block, |e, t| {
            let (row, i, slot) = at_slot(e, t);
            e.branch(&format!("{row} < {n_rows} && {i} < {n_kept}"), |e| {
                let depth = e.depth();
                let from = e.bind(format!("(idx){places}[{slot}]"), depth);
                let (from, to) = (self.index(e, row, from)?, self.index(e, row, i)?);
                self.store(e, &slot.to_string(), &from, &to)
            })
        })?;
        // The next rows take the same slots.
        e.line("__syncthreads();");
        Ok(())
    }

    /// A step of the network: slots of each block of twice the distance are compared, in the first step of a length each with the one that
    /// mirrors it. Slots from `n` on hold nothing.
    fn compare_pairs(
        &self,
        e: &mut Emitter<'_>,
        (length, distance): (&str, &str),
        (n, n_slots): (i64, i64),
        block: u32,
    ) -> Result<(), GpuError> {
        let places = self.places;
        let [lo, hi, at_lo, at_hi, swaps] = ["k", "k", "k", "k", "b"].map(|prefix| e.fresh(prefix));
        Self::each_slot(e, n_slots / 2, block, |e, pair| {
            e.line(format!("const int {lo} = 2 * (int){pair} - ((int){pair} & ({distance} - 1));"));
            e.line(format!("const int {hi} = 2 * {distance} == {length} ? {lo} ^ ({length} - 1) : {lo} + {distance};"));
            e.line(format!("const int {at_lo} = {places}[{lo}], {at_hi} = {places}[{hi}];"));
            e.line(format!("bool {swaps} = {at_lo} >= {n};"));
            e.branch(&format!("{at_lo} < {n} && {at_hi} < {n}"), |e| {
                let stood_first = e.constant("bool", &format!("{at_lo} < {at_hi}"));
                let side = |of_first: &str, of_second: &str| {
                    let (a, b) = (self.in_slot(of_first), self.in_slot(of_second));
                    a.iter().zip(&b).map(|(a, b)| format!("{} ? {a} : {b}", stood_first.text)).collect::<Vec<_>>()
                };
                let before = self.is_before(e, &side(&hi, &lo), &side(&lo, &hi))?;
                e.line(format!("{swaps} = ({before}) == {};", stood_first.text));
                Ok(())
            })?;
            e.branch(&format!("{swaps} && {at_hi} < {n}"), |e| {
                for Key { ctype, name, .. } in self.shared {
                    let first = e.constant(ctype.stored, &format!("{name}[{lo}]"));
                    e.line(format!("{name}[{lo}] = {name}[{hi}];\n{name}[{hi}] = {};", first.text));
                }
                e.line(format!("{places}[{lo}] = (hlo::u16){at_hi};\n{places}[{hi}] = (hlo::u16){at_lo};"));
                Ok(())
            })
        })
    }

    /// Merges a piece of a row's halves.
    fn halves(&self, e: &mut Emitter<'_>, piece: Atom, block: u32, n_elems: i64) -> Result<(), GpuError> {
        let (places, n_kept, half) = (self.places, self.rows.n_kept, self.rows.n / 2);
        let (row, piece) = e.divide(piece, self.rows.pieces_of_row(n_elems));
        let begin = e.affine(piece, n_elems, 0);
        let depth = e.depth();
        let end = e.bind(format!("{begin} + {n_elems} < {n_kept} ? {begin} + {n_elems} : {n_kept}"), depth);
        let ends = e.fresh("n");
        e.line(format!("idx {ends}[2];"));
        self.search_ends(e, row, [begin, end], &ends, block)?;
        // Of sorted halves these say nothing new.
        let n_all = e.difference(end, begin);
        let first = e.bind(format!("{ends}[0]"), depth);
        let n_first = e.bind(
            format!("{ends}[1] < {first} ? (idx)0 : {ends}[1] - {first} < {n_all} ? {ends}[1] - {first} : {n_all}"),
            depth,
        );
        let second = e.bind(format!("{half} + {begin} - {first}"), depth);
        // Where the element of a slot stands in the row.
        let stands = |e: &mut Emitter<'_>, slot: &str| {
            let depth = e.depth();
            e.bind(format!("{slot} < {n_first} ? {first} + {slot} : {second} + ({slot} - {n_first})"), depth)
        };
        Self::each_slot(e, n_all, block, |e, slot| {
            let from = stands(e, &slot.to_string());
            let index = self.index(e, row, from)?;
            self.load(e, &slot.to_string(), &index)?;
            e.line(format!("{places}[{slot}] = (hlo::u16){slot};"));
            Ok(())
        })?;
        e.line("__syncthreads();");
        Self::each_slot(e, n_all, block, |e, slot| {
            let [low, high, middle] = ["n", "n", "n"].map(|prefix| e.fresh(prefix));
            let is_first = e.constant("bool", &format!("{slot} < {n_first}"));
            let is_first = &is_first.text;
            e.line(format!("idx {low} = 0, {high} = {is_first} ? {n_all} - {n_first} : {n_first};"));
            e.scope(ScopeKind::Loop, format!("while ({low} < {high})"), |e| {
                e.line(format!("const idx {middle} = ({low} + {high}) / 2;"));
                let of_second = e.constant("idx", &format!("{is_first} ? {n_first} + {middle} : {slot}"));
                let of_first = e.constant("idx", &format!("{is_first} ? {slot} : {middle}"));
                let before = self.is_before(e, &self.in_slot(&of_second.text), &self.in_slot(&of_first.text))?;
                e.line(format!("if (({before}) == {is_first}) {low} = {middle} + 1; else {high} = {middle};"));
                Ok(())
            })?;
            e.line(format!("{places}[{low} + {slot} - ({is_first} ? (idx)0 : {n_first})] = (hlo::u16){slot};"));
            Ok(())
        })?;
        e.line("__syncthreads();");
        Self::each_slot(e, n_all, block, |e, i| {
            let slot = e.constant("idx", &format!("(idx){places}[{i}]")).text;
            let from = stands(e, &slot);
            let to = e.sum(begin, i);
            let (from, to) = (self.index(e, row, from)?, self.index(e, row, to)?);
            self.store(e, &slot, &from, &to)
        })?;
        e.line("__syncthreads();");
        Ok(())
    }

    /// How many elements of the first half are among the first so many of the merged row, for both ends of a piece: the block's threads try
    /// as many places at a time.
    fn search_ends(
        &self,
        e: &mut Emitter<'_>,
        row: Atom,
        [begin, end]: [Atom; 2],
        ends: &str,
        block: u32,
    ) -> Result<(), GpuError> {
        let half = self.rows.n / 2;
        let [which, low, high, step, goes, n_goes] = ["n", "n", "n", "n", "b", "n"].map(|prefix| e.fresh(prefix));
        e.scope(ScopeKind::Loop, format!("for (int {which} = 0; {which} < 2; ++{which})"), |e| {
            let depth = e.depth();
            let n_before = e.bind(format!("{which} ? {end} : {begin}"), depth);
            e.line(format!(
                "idx {low} = {n_before} > {half} ? {n_before} - {half} : 0, {high} = {n_before} < {half} ? {n_before} : {half};"
            ));
            e.scope(ScopeKind::Loop, format!("while ({low} < {high})"), |e| {
                let depth = e.depth();
                e.line(format!("const idx {step} = ({high} - {low} + {block} - 1) / {block};"));
                let of_first = e.bind(format!("{low} + (idx)threadIdx.x * {step}"), depth);
                e.line(format!("bool {goes} = false;"));
                e.branch(&format!("{of_first} < {high}"), |e| {
                    let depth = e.depth();
                    let of_second = e.bind(format!("{half} + {n_before} - 1 - {of_first}"), depth);
                    let mut sides = Vec::new();
                    for at in [of_second, of_first] {
                        let index = self.index(e, row, at)?;
                        let mut own = Vec::new();
                        for key in self.shared {
                            own.push(e.value(self.frame, self.operands[key.operand], 0, &index)?.text);
                        }
                        sides.push(own);
                    }
                    let before = self.is_before(e, &sides[0], &sides[1])?;
                    e.line(format!("{goes} = !({before});"));
                    Ok(())
                })?;
                e.line(format!("const int {n_goes} = __syncthreads_count({goes});"));
                e.line(format!(
                    "{high} = {n_goes} == 0 ? {low} : {low} + {n_goes} * {step} < {high} ? {low} + {n_goes} * {step} : {high};"
                ));
                e.line(format!("if ({n_goes} != 0) {low} += ({n_goes} - 1) * {step} + 1;"));
                Ok(())
            })?;
            e.line(format!("{ends}[{which}] = {low};"));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::SHARED_BYTES;
    use crate::kernel::{EmitOptions, emit};

    /// A sort of so many arrays `s64[dims]` along the last dim, by one after the other.
    fn shared_bytes(n_keys: usize, dims: &str, dim: usize) -> Option<usize> {
        let mut order = String::from("r0 = pred[] constant(false)");
        let mut rest = "r0".to_string();
        for key in 0..n_keys {
            let (a, b) = (2 * key, 2 * key + 1);
            order += &format!(
                "\n  a{key} = s64[] parameter({a})\n  b{key} = s64[] parameter({b})
  l{key} = pred[] compare(a{key}, b{key}), direction=LT\n  e{key} = pred[] compare(a{key}, b{key}), direction=EQ
  t{key} = pred[] and(e{key}, {rest})\n  o{key} = pred[] or(l{key}, t{key})"
            );
            rest = format!("o{key}");
        }
        let list = |one: &dyn Fn(usize) -> String| (0..n_keys).map(one).collect::<Vec<String>>().join(", ");
        let params: String = (0..n_keys).map(|key| format!("  p{key} = s64[{dims}] parameter({key})\n")).collect();
        let (shapes, operands) = (list(&|_| format!("s64[{dims}]")), list(&|key| format!("p{key}")));
        let text = format!(
            "HloModule keys\norder {{\n  {order}\n  ROOT r = pred[] copy({rest})\n}}\nENTRY main {{\n{params}  ROOT s = ({shapes}) \
             sort({operands}), dimensions={{{dim}}}, to_apply=order\n}}\n"
        );
        let module = hlo_text::parse_module(&text).unwrap_or_else(|d| panic!("{text}: {:?}", d[0])).module;
        let entry = module.entry().expect("an entry");
        let sort = module.comp(entry).root.expand().expect("a root");
        let kernel = emit(&module, sort, &EmitOptions::default()).ok()?.kernel;
        let declared = kernel.source.lines().filter(|line| line.contains("__shared__"));
        let bytes = declared.map(|line| {
            let n = line.split(['[', ']']).nth(1).and_then(|n| n.parse::<usize>().ok()).expect("a size");
            n * if line.contains("u16") { 2 } else { 8 }
        });
        Some(bytes.sum())
    }

    #[test]
    fn sorts_keep_to_the_shared_memory_of_a_block() {
        for (n_keys, dims, dim, least) in
            [(6, "2,512", 1, 25_000), (7, "64,16", 1, 25_000), (2, "4,2048", 1, 36_000), (1, "9", 0, 100)]
        {
            let bytes = shared_bytes(n_keys, dims, dim).expect("a kernel");
            assert!((least..=SHARED_BYTES).contains(&bytes), "{n_keys} keys of [{dims}]: {bytes} bytes");
        }
        assert_eq!(shared_bytes(7, "4,2048", 1), None, "keys that no block holds");
    }
}
