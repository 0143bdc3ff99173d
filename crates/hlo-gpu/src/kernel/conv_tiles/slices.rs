//! Slices of a convolution's factors on their way from memory through registers into shared memory.
//!
//! Where threads multiply, the elements of one product lie together (`[k][row]`), so that a thread loads those of its rows in one
//! access. Where tensor cores do, those of one row lie together (`[row][k]`), as their fragments want them.

use hlo_ir::{ArrayShape, InstId, Module};

use super::super::Signature;
use super::super::contraction::Convolution;
use super::super::dtype::CType;
use super::super::emitter::{Atom, Binding, Emitter, FrameId};
use super::super::shape_ops::keeps_runs;
use super::size::{Size, THREADS, Units};
use crate::GpuError;

/// How both factors are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sides {
    input: Read,
    kernel: Read,
}

/// How threads read a factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Read {
    /// Whether neighbours in memory are of one row or column, so that neighbouring threads read along `k`.
    is_along_k: bool,
    /// Elements that are loaded in one access.
    n_elems: i64,
    /// The argument that they are loaded from, if they are no others' results.
    argument: Option<usize>,
}

/// A factor's slice.
pub(super) struct Side {
    pub is_input: bool,
    /// In shared memory.
    table: String,
    /// What registers hold until then.
    ahead: String,
    /// Whether the argument begins at a place for packs.
    is_aligned: String,
    read: Read,
    units: Units,
    /// The factor's elements, and what stands in the table.
    ctype: CType,
    in_table: &'static str,
    /// Of an element in the table.
    element_bytes: i64,
    /// Rows or columns of the block's tile.
    length: i64,
    slice: i64,
}

/// The dim of an array whose neighbours are neighbours in memory.
pub(super) fn fastest(shape: &ArrayShape) -> Option<i64> {
    shape.physical_order().into_iter().find(|&dim| shape.dims[dim] != 1).map(|dim| dim as i64)
}

/// The argument in which runs of `n_elems` neighbours of a value lie as they do in the value.
fn source_of_runs(module: &Module, signature: &Signature, inst: InstId, n_elems: i64) -> Option<usize> {
    let mut at = inst;
    loop {
        let shape = module.shape(at).as_array()?;
        if let Some(binding) = signature.bindings.get(&at) {
            let Binding::Arguments(first) = binding else { return None };
            return Some(*first);
        }
        let &operand = module.inst(at).operands.first().filter(|_| keeps_runs(module, at))?;
        let has_runs = |shape: &ArrayShape| shape.dims.last().is_some_and(|size| size % n_elems == 0);
        if !has_runs(shape) || !module.shape(operand).as_array().is_some_and(has_runs) {
            return None;
        }
        at = operand;
    }
}

impl Sides {
    /// For groups of `n` features; the output's `row_dims`, the fastest first.
    pub(super) fn new(
        module: &Module,
        signature: &Signature,
        conv: &Convolution<'_>,
        row_dims: &[usize],
        (n, size): (i64, Size),
    ) -> Sides {
        let dims = &conv.attrs.dim_labels;
        let read = |inst: InstId, along_k: i64, along_rows: Option<(i64, i64)>| {
            let shape = module.shape(inst).as_array()?;
            let fast = fastest(shape);
            let is_along_k = fast == Some(along_k);
            // What follows the first element within the factor, however the slice is cut.
            let run = match (is_along_k, along_rows) {
                (true, _) => conv.group_input,
                (false, Some((dim, run))) if fast == Some(dim) => run,
                (false, _) => 1,
            };
            let source = |n_elems: i64| source_of_runs(module, signature, inst, n_elems);
            let most = 16 / CType::of(shape.dtype).size_bytes().min(16) as i64;
            let fits = |&n_elems: &i64| run % n_elems == 0 && size.slice % n_elems == 0 && source(n_elems).is_some();
            let n_elems = [most, most / 2, most / 4].into_iter().filter(|&n| n > 1).find(fits).unwrap_or(1);
            Some(Read { is_along_k, n_elems, argument: source(n_elems) })
        };
        let alone = Read { is_along_k: false, n_elems: 1, argument: None };
        // Rows that follow each other are images that do; those of spatial dims begin at odd places.
        let batch = dims.output_batch;
        let images = (row_dims.first() == Some(&(batch as usize)))
            .then_some((dims.input_batch, conv.output.dims[batch as usize]));
        Sides {
            input: read(conv.lhs, dims.input_feature, images).unwrap_or(alone),
            kernel: read(conv.rhs, dims.kernel_input_feature, Some((dims.kernel_output_feature, n))).unwrap_or(alone),
        }
    }

    /// The tables in shared memory.
    pub(super) fn declare(
        &self,
        e: &mut Emitter<'_>,
        conv: &Convolution<'_>,
        size: Size,
        sum_type: CType,
    ) -> (Side, Side) {
        let mut side = |is_input: bool| {
            let (read, shape) = if is_input { (self.input, conv.input) } else { (self.kernel, conv.kernel) };
            let ctype = CType::of(shape.dtype);
            let (in_table, element_bytes) = match size.units {
                Units::TensorCores | Units::TensorCoresTf32 => (ctype.stored, ctype.size_bytes()),
                Units::Threads | Units::ThreadsOfWideElements => (sum_type.held, sum_type.held_bytes()),
            };
            let mut side = Side {
                is_input,
                table: e.fresh("s"),
                ahead: e.fresh("q"),
                is_aligned: String::new(),
                read,
                units: size.units,
                ctype,
                in_table,
                element_bytes: element_bytes as i64,
                length: size.tile[usize::from(!is_input)],
                slice: size.slice,
            };
            let n_elems = side.stride() * if side.has_rows_together() { side.length } else { side.slice };
            e.line(format!("alignas(64) __shared__ {in_table} {}[{n_elems}];", side.table));
            if let (Some(argument), 2..) = (read.argument, read.n_elems) {
                let test = format!("hlo::is_aligned<{}, {}>(p{argument})", ctype.stored, read.n_elems);
                side.is_aligned = e.constant("bool", &test).text;
            }
            side
        };
        (side(true), side(false))
    }
}

impl Side {
    /// Whether the elements of a row lie together in the table, and not those of a product.
    fn has_rows_together(&self) -> bool {
        self.units.are_tensor_cores()
    }

    /// From a row of the table to the next: some elements more than it has, so that threads which access a column meet in few banks;
    /// whole accesses of 16 bytes, and of a thread's neighbours.
    fn stride(&self) -> i64 {
        let access = 16 / self.element_bytes;
        if self.has_rows_together() { self.slice + access } else { self.length + access.max(4) }
    }

    /// The table, and the elements from a row to the next.
    pub(super) fn place(&self) -> (&str, i64) {
        (&self.table, self.stride())
    }

    /// Threads beside each other along the faster of the two ways.
    fn width(&self) -> i64 {
        if self.read.is_along_k { self.slice / self.read.n_elems } else { self.length / self.read.n_elems }
    }

    fn n_loads(&self) -> i64 {
        (self.length * self.slice / self.read.n_elems / THREADS).max(1)
    }

    /// Which threads have something to load, if not all.
    pub(super) fn lanes_that_load(&self) -> Vec<String> {
        let n_threads = self.length * self.slice / self.read.n_elems;
        if n_threads < THREADS { vec![format!("threadIdx.x < {n_threads}")] } else { Vec::new() }
    }

    /// The place of each of a thread's loads: the row or column, and the product.
    pub(super) fn places(&self, e: &mut Emitter<'_>) -> Vec<(Atom, Atom)> {
        let width = self.width();
        let fast = e.bind(format!("(idx)(threadIdx.x % {width})"), 0);
        let slow = e.bind(format!("(idx)(threadIdx.x / {width})"), 0);
        let fast = e.affine(fast, self.read.n_elems, 0);
        let place = |load: i64, e: &mut Emitter<'_>| {
            let slow = e.affine(slow, 1, load * (THREADS / width));
            if self.read.is_along_k { (slow, fast) } else { (fast, slow) }
        };
        (0..self.n_loads()).map(|load| place(load, e)).collect()
    }

    /// Writes the declaration of what is loaded ahead; zeros, until it is.
    pub(super) fn declare_ahead(&self, e: &mut Emitter<'_>) {
        let held = if self.has_packs() { self.ctype.stored } else { self.in_table };
        e.line(format!("hlo::Pack<{held}, {}> {}[{}] = {{}};", self.read.n_elems, self.ahead, self.n_loads()));
    }

    fn has_packs(&self) -> bool {
        self.read.n_elems > 1
    }

    /// Writes one load, from `index` on.
    pub(super) fn load(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        (operand, index): (InstId, &[Atom]),
        load: usize,
    ) -> Result<(), GpuError> {
        let into = format!("{}[{load}]", self.ahead);
        if self.has_packs() {
            let place = e.place(frame, operand, index)?;
            let (argument, position) =
                place.ok_or_else(|| e.unsupported(operand, "expected a place in an argument"))?;
            e.rows_read.elsewhere.insert(argument);
            e.line(format!("if ({}) hlo::load_pack({into}, p{argument} + {position});", self.is_aligned));
            e.line(format!("else hlo::load_elems({into}, p{argument} + {position});"));
            return Ok(());
        }
        let value = e.value(frame, operand, 0, index)?.text;
        let value = match self.units {
            // It is of this type already.
            Units::TensorCores | Units::TensorCoresTf32 => self.ctype.exact_stored(&value),
            Units::Threads | Units::ThreadsOfWideElements => format!("({}){value}", self.in_table),
        };
        e.line(format!("{into}.elems[0] = {value};"));
        Ok(())
    }

    /// Writes what moves the slice from registers into the table.
    pub(super) fn store(&self, e: &mut Emitter<'_>) {
        let n_elems = self.read.n_elems;
        let lanes = self.lanes_that_load().pop();
        for (load, (along, within)) in self.places(e).into_iter().enumerate() {
            let (row, column) = if self.has_rows_together() { (along, within) } else { (within, along) };
            let to = format!("{} + {row} * {} + {column}", self.table, self.stride());
            let from = format!("{}[{load}]", self.ahead);
            let is_contiguous = self.read.is_along_k == self.has_rows_together();
            let is_same_type = self.ctype.stored == self.in_table;
            let store = if is_contiguous && is_same_type {
                format!("hlo::store_pack({to}, {from});")
            } else {
                let step = if is_contiguous { 1 } else { self.stride() };
                let element = format!("{from}.elems[v]");
                let element = if is_same_type || !self.has_packs() { element } else { self.ctype.loaded(&element) };
                format!(
                    "#pragma unroll\nfor (int v = 0; v < {n_elems}; ++v) ({to})[v * {step}] = ({})({element});",
                    self.in_table
                )
            };
            if self.units == Units::TensorCoresTf32 {
                // Tensor cores drop the bits that TF32 lacks.
                e.line(format!(
                    "#pragma unroll\nfor (int v = 0; v < {n_elems}; ++v) {from}.elems[v] = hlo::round_tf32({from}.elems[v]);"
                ));
            }
            match &lanes {
                Some(lanes) => e.line(format!("if ({lanes}) {{\n{store}\n}}")),
                None => e.line(store),
            }
        }
    }
}
