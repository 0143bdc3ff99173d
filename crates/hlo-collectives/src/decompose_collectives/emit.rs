//! A program as instructions, in place of a collective.

use super::cut::{ChunkedForm, runs};
use super::strides::find_transpose;
use hlo_cluster::Collective;
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs};
use hlo_ir::shape::{DimOrder, Layout};
use hlo_ir::{ArrayShape, CompId, Dims, InstId, Module, Opcode, Shape};
use hlo_spmd::{Appender, ChannelIds, GroupAttrs};

/// One step of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceStep {
    /// A collective over these groups of flat device ids, members in order.
    Collective {
        /// All-reduce, reduce-scatter or all-gather.
        kind: Collective,
        /// The groups.
        groups: Vec<Vec<u32>>,
    },
    /// The chunks that a device has are put in another order: the `i`-th becomes what was at `order[i]`.
    Reorder {
        /// A permutation.
        order: Vec<usize>,
    },
}

/// What is written in place of a collective of one array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceProgram {
    /// How the whole array is cut.
    pub cut: ChunkedForm,
    /// Into how many chunks.
    pub n_chunks: usize,
    /// How many of them the operand has.
    pub n_held: usize,
    /// What is done.
    pub steps: Vec<DeviceStep>,
}

/// Appends to `comp` the program that does the work of the collective `source` for one of its arrays: it takes `operand` and
/// gives an array of shape `result`. Returns that array and the new collectives.
pub fn emit(
    module: &mut Module,
    (comp, source): (CompId, InstId),
    (operand, result): (InstId, &ArrayShape),
    program: &DeviceProgram,
    channels: &mut ChannelIds,
) -> (InstId, Vec<InstId>) {
    let to_apply = module.inst(source).attrs.collective().and_then(|view| view.to_apply);
    let name = module.inst_name(source).to_string();
    let (cut, at) = (&program.cut, Appender::standing_for(comp, source));
    let mut emitter = Emitter { module, at, comp, source, name, cut, to_apply, channels };
    emitter.program(operand, result, program)
}

struct Emitter<'a> {
    module: &'a mut Module,
    at: Appender,
    comp: CompId,
    source: InstId,
    name: String,
    cut: &'a ChunkedForm,
    to_apply: Option<CompId>,
    channels: &'a mut ChannelIds,
}

impl Emitter<'_> {
    fn program(&mut self, operand: InstId, result: &ArrayShape, program: &DeviceProgram) -> (InstId, Vec<InstId>) {
        let n_chunks = program.n_chunks.max(1);
        let is_whole = program.n_held == n_chunks;
        let mut value = match is_whole {
            true => self.padded(operand),
            false => self.with_shape(operand, self.cut.part(self.cut.size() * program.n_held as i64 / n_chunks as i64)),
        };
        let (mut held, mut collectives) = (program.n_held, Vec::new());
        for step in &program.steps {
            match step {
                DeviceStep::Collective { kind, groups } => {
                    let n = groups.first().map_or(1, Vec::len).max(1);
                    held = match kind {
                        Collective::ReduceScatter => held / n,
                        Collective::AllGather => held * n,
                        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => held,
                    };
                    let size = self.cut.size() * held as i64 / n_chunks as i64;
                    value = self.collective(*kind, value, size, groups);
                    collectives.push(value);
                }
                DeviceStep::Reorder { order } => value = self.reordered(value, order, n_chunks),
            }
        }
        if held == n_chunks {
            value = self.bare(value, result);
        }
        (value, collectives)
    }

    /// `value` in another layout, if it is not in that already.
    fn with_shape(&mut self, value: InstId, shape: ArrayShape) -> InstId {
        if *self.module.shape(value) == Shape::Array(shape.clone()) {
            return value;
        }
        self.add("copy", Opcode::Copy, shape, &[value], Attrs::Plain)
    }

    fn add(
        &mut self,
        prefix: &str,
        opcode: Opcode,
        shape: ArrayShape,
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        let hint = format!("{prefix}.{}", self.name);
        self.at.add(self.module, &hint, opcode, shape, operands, attrs)
    }

    /// The operand as the program sees it.
    fn padded(&mut self, operand: InstId) -> InstId {
        let (bare, padding) = (self.cut.bare.clone(), self.cut.padding());
        let dims = self.module.shape(operand).as_array().map(|shape| shape.dims.clone());
        let mut value = operand;
        if dims.as_ref() == Some(&bare.dims) {
            value = self.with_shape(operand, bare);
        } else {
            // Flattened in the order of memory, which moves nothing.
            let dims = dims.unwrap_or_default();
            if !dims.is_empty() {
                value = self.with_shape(value, self.in_memory_order(&dims, false));
            }
            if let Some(order) = self.turning() {
                let turned = self.in_memory_order(&dims, true);
                let dimensions = order.into_iter().map(|dim| dim as i64).collect();
                value = self.add("turned", Opcode::Transpose, turned, &[value], DimsAttrs { dimensions });
            }
            value = self.add("flat", Opcode::Reshape, bare, &[value], ReshapeAttrs::default());
        }
        if padding == 0 {
            return value;
        }
        let zero = Appender::new(self.comp).zero(self.module, self.cut.padded.dtype);
        let (hint, shape) = (format!("padded.{}", self.name), self.cut.padded.clone());
        self.at.pad_end(self.module, &hint, [value, zero], shape, (self.cut.dim, padding))
    }

    /// The order of a flattened array's dims in memory, where it is not that of its indices.
    fn turning(&self) -> Option<DimOrder> {
        self.cut.major_to_minor.clone().filter(|order| !order.is_sorted())
    }

    /// The flattened array with its dims; `is_turned`: with its dims in the order of memory, row-major.
    fn in_memory_order(&self, dims: &Dims, is_turned: bool) -> ArrayShape {
        let order = self.cut.major_to_minor.clone().unwrap_or_default();
        let turned = order.iter().filter_map(|&dim| dims.get(dim).copied()).collect();
        let mut shape = self.cut.bare.clone();
        shape.dims = if is_turned { turned } else { dims.clone() };
        if let Some(layout) = &mut shape.layout {
            let n = order.len() as i64;
            let order = order.into_iter().rev().map(|dim| dim as i64);
            let minor_to_major = if is_turned { (0..n).rev().collect() } else { order.collect() };
            **layout = Layout::new(minor_to_major);
        }
        shape
    }

    /// The whole in the shape of the collective's result.
    fn bare(&mut self, whole: InstId, result: &ArrayShape) -> InstId {
        let mut value = whole;
        if self.cut.padding() > 0 {
            let size = self.cut.size() - self.cut.padding();
            value = self.slice("unpadded", value, (0, size));
        }
        if *self.module.shape(value) == Shape::Array(result.clone()) {
            return value;
        }
        let Some(order) = self.turning() else {
            return self.add("whole", Opcode::Reshape, result.clone(), &[value], ReshapeAttrs::default());
        };
        let turned = self.in_memory_order(&result.dims, true);
        value = self.add("turned", Opcode::Reshape, turned, &[value], ReshapeAttrs::default());
        let back = (0..order.len()).filter_map(|dim| order.iter().position(|&d| d == dim));
        let dimensions = back.map(|at| at as i64).collect();
        self.add("whole", Opcode::Transpose, result.clone(), &[value], DimsAttrs { dimensions })
    }

    /// Elements `start..limit` along the scattered dim.
    fn slice(&mut self, prefix: &str, value: InstId, (start, limit): (i64, i64)) -> InstId {
        let (hint, shape) = (format!("{prefix}.{}", self.name), self.cut.part(limit - start));
        self.at.slice(self.module, &hint, value, shape, (self.cut.dim, start))
    }

    /// The chunks in another order: a transpose where they are a box of strides, else consecutive ones together.
    fn reordered(&mut self, value: InstId, order: &[usize], n_chunks: usize) -> InstId {
        let elems = |chunks: usize| self.cut.size() * chunks as i64 / n_chunks as i64;
        let shape = self.cut.part(elems(order.len()));
        if let (Some(transpose), true) =
            (find_transpose(order), super::cut::order_in_memory(&shape).is_some_and(|dims| dims.is_sorted()))
        {
            return self.transposed(value, &shape, (transpose.sizes, transpose.permutation), elems(1));
        }
        let spans: Vec<(i64, i64)> = runs(order).iter().map(|&(at, n)| (elems(at), elems(at + n))).collect();
        let mut pieces = Vec::with_capacity(spans.len());
        for span in spans {
            pieces.push(self.slice("chunks", value, span));
        }
        self.add("reordered", Opcode::Concatenate, shape, &pieces, DimsAttrs { dimensions: self.along() })
    }

    /// The chunks, of `chunk` elements along the dim, as a box whose dims are permuted.
    fn transposed(
        &mut self,
        value: InstId,
        shape: &ArrayShape,
        (sizes, permutation): (Vec<usize>, Vec<usize>),
        chunk: i64,
    ) -> InstId {
        let n_before: i64 = shape.dims.iter().take(self.cut.dim).product();
        let n_after: i64 = shape.dims.iter().skip(self.cut.dim + 1).product();
        let before = (n_before > 1).then_some(n_before);
        let boxed = |sizes: &mut dyn Iterator<Item = i64>| {
            let boxed = ArrayShape::new(shape.dtype, before.into_iter().chain(sizes).chain([chunk * n_after]));
            if shape.layout.is_some() { boxed.with_row_major() } else { boxed }
        };
        let split = boxed(&mut sizes.iter().map(|&n| n as i64));
        let turned = boxed(&mut permutation.iter().map(|&from| sizes[from] as i64));
        let first = before.map_or(0, |_| 1);
        let last = first + permutation.len() as i64;
        let middle = permutation.iter().map(|&from| first + from as i64);
        let dimensions: Dims = before.map(|_| 0).into_iter().chain(middle).chain([last]).collect();
        let split = self.add("split", Opcode::Reshape, split, &[value], ReshapeAttrs::default());
        let turned = self.add("turned", Opcode::Transpose, turned, &[split], DimsAttrs { dimensions });
        self.add("reordered", Opcode::Reshape, shape.clone(), &[turned], ReshapeAttrs::default())
    }

    /// The scattered dim, as attributes have it.
    fn along(&self) -> Dims {
        [self.cut.dim as i64].into_iter().collect()
    }

    /// A collective whose result has `size` elements along the scattered dim.
    fn collective(&mut self, kind: Collective, value: InstId, size: i64, groups: &[Vec<u32>]) -> InstId {
        let shape = self.cut.part(size);
        let channels = &mut *self.channels;
        let participants = GroupAttrs::in_place_of(self.module, self.source, groups, || channels.take());
        if kind == Collective::AllGather {
            let attrs = participants.gathering(self.cut.dim);
            return self.add("all-gather", Opcode::AllGather, shape, &[value], attrs);
        }
        let scatters = kind == Collective::ReduceScatter;
        let dimensions = if scatters { self.along() } else { Dims::new() };
        let attrs = participants.combining(dimensions, self.to_apply);
        let opcode = if scatters { Opcode::ReduceScatter } else { Opcode::AllReduce };
        self.add(opcode.name(), opcode, shape, &[value], attrs)
    }
}
