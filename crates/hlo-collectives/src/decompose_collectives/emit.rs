//! A program as instructions, in place of an all-reduce.

use super::cut::{Cut, n_parts, runs};
use super::fit::Fit;
use crate::reading::AllReduce;
use crate::rewrite::Rewrite;
use hlo_cluster::Collective;
use hlo_cluster::reduction::chunk_order::ArrayStep;
use hlo_ir::attrs::{
    Attrs, CombiningAttrs, DimsAttrs, GatheringAttrs, PadAttrs, PadDim, ReshapeAttrs, SliceAttrs, SliceDim,
};
use hlo_ir::dtype::NumberClass;
use hlo_ir::edit::Builder;
use hlo_ir::groups::{GroupMode, ReplicaGroups};
use hlo_ir::{ArrayShape, CompId, Dims, InstId, Literal, Module, Opcode, Scalar, Shape};

/// Appends the program that does the work of `all_reduce` and redirects its uses to the result; the new collectives.
pub fn emit(
    module: &mut Module,
    rewrite: &mut Rewrite,
    (comp, all_reduce): (CompId, &AllReduce),
    (fit, steps): (&Fit, &[ArrayStep]),
    next_channel: &mut i64,
) -> Vec<InstId> {
    let source = all_reduce.inst;
    let Some(shape) = crate::reading::array(module, source).cloned() else { return Vec::new() };
    let n_chunks = fit.factors.iter().product();
    let cut = Cut::new(&shape, n_parts(n_chunks, steps));
    let mode = module.inst(source).attrs.collective().and_then(|c| c.mode().ok()).unwrap_or(GroupMode::Flattened);
    let to_apply = match &module.inst(source).attrs {
        Attrs::Combining(attrs) => attrs.to_apply,
        _ => None,
    };
    let name = module.inst_name(source).to_string();
    let mut emitter = Emitter { module, rewrite, comp, source, name, fit, cut, mode, to_apply, next_channel };
    emitter.program(all_reduce.operand, n_chunks, steps)
}

struct Emitter<'a> {
    module: &'a mut Module,
    rewrite: &'a mut Rewrite,
    comp: CompId,
    source: InstId,
    name: String,
    fit: &'a Fit,
    cut: Cut,
    mode: GroupMode,
    to_apply: Option<CompId>,
    next_channel: &'a mut i64,
}

impl Emitter<'_> {
    fn program(&mut self, operand: InstId, n_chunks: usize, steps: &[ArrayStep]) -> Vec<InstId> {
        let operand = self.rewrite.with_shape_of(self.module, operand, self.source);
        let mut value = self.padded(operand);
        let (mut held, mut collectives) = (n_chunks, Vec::new());
        for step in steps {
            match step {
                ArrayStep::Collective { collective, groups } => {
                    let n = groups.first().map_or(1, Vec::len).max(1);
                    held = match collective {
                        Collective::ReduceScatter => held / n,
                        Collective::AllGather => held * n,
                        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => held,
                    };
                    let size = self.cut.size() * held as i64 / n_chunks as i64;
                    value = self.collective(*collective, value, size, groups);
                    collectives.push(value);
                }
                ArrayStep::Reorder { order } => value = self.reordered(value, order, n_chunks),
            }
        }
        let result = self.bare(value);
        self.rewrite.redirect(self.source, result);
        collectives
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
        self.rewrite.add(self.module, self.source, (&hint, opcode), Shape::Array(shape), operands, attrs)
    }

    /// The operand as the program sees it.
    fn padded(&mut self, operand: InstId) -> InstId {
        let (mut value, bare, padding) = (operand, self.cut.bare.clone(), self.cut.padding());
        if *self.module.shape(value) != Shape::Array(bare.clone()) {
            value = self.add("flat", Opcode::Reshape, bare, &[value], ReshapeAttrs::default());
        }
        if padding == 0 {
            return value;
        }
        let dtype = self.cut.padded.dtype;
        let zero = Builder::new(self.module, self.comp).constant("zero", Literal::scalar(dtype, zero(dtype.class())));
        let mut dims = vec![PadDim::default(); self.cut.padded.rank()];
        dims.get_mut(self.cut.dim).into_iter().for_each(|dim| dim.high = padding);
        let shape = self.cut.padded.clone();
        self.add("padded", Opcode::Pad, shape, &[value, zero], PadAttrs { padding: dims })
    }

    /// The program's result in the shape of the all-reduce.
    fn bare(&mut self, result: InstId) -> InstId {
        let mut value = result;
        if self.cut.padding() > 0 {
            let size = self.cut.size() - self.cut.padding();
            value = self.slice("unpadded", value, (0, size));
        }
        match self.module.shape(self.source).clone() {
            Shape::Array(shape) if *self.module.shape(value) != Shape::Array(shape.clone()) => {
                self.add("whole", Opcode::Reshape, shape, &[value], ReshapeAttrs::default())
            }
            _ => value,
        }
    }

    /// Elements `start..limit` along the scattered dim.
    fn slice(&mut self, prefix: &str, value: InstId, (start, limit): (i64, i64)) -> InstId {
        let shape = self.cut.part(limit - start);
        let mut slice: Vec<SliceDim> =
            shape.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        slice.get_mut(self.cut.dim).into_iter().for_each(|dim| (dim.start, dim.limit) = (start, limit));
        self.add(prefix, Opcode::Slice, shape, &[value], SliceAttrs { slice })
    }

    /// The chunks in another order, consecutive ones together.
    fn reordered(&mut self, value: InstId, order: &[usize], n_chunks: usize) -> InstId {
        let elems = |chunks: usize| self.cut.size() * chunks as i64 / n_chunks as i64;
        let spans: Vec<(i64, i64)> = runs(order).iter().map(|&(at, n)| (elems(at), elems(at + n))).collect();
        let shape = self.cut.part(elems(order.len()));
        let mut pieces = Vec::with_capacity(spans.len());
        for span in spans {
            pieces.push(self.slice("chunks", value, span));
        }
        self.add("reordered", Opcode::Concatenate, shape, &pieces, DimsAttrs { dimensions: self.along() })
    }

    /// The scattered dim, as attributes have it.
    fn along(&self) -> Dims {
        [self.cut.dim as i64].into_iter().collect()
    }

    /// A collective whose result has `size` elements along the scattered dim.
    fn collective(&mut self, kind: Collective, value: InstId, size: i64, groups: &[Vec<usize>]) -> InstId {
        let shape = self.cut.part(size);
        let replica_groups = self.replica_groups(groups);
        let is_flat = self.mode != GroupMode::CrossReplica;
        let channel_id = is_flat.then_some(*self.next_channel);
        *self.next_channel = self.next_channel.saturating_add(i64::from(is_flat));
        if kind == Collective::AllGather {
            let attrs = GatheringAttrs {
                channel_id,
                replica_groups,
                constrain_layout: false,
                dimensions: self.along(),
                use_global_device_ids: is_flat,
            };
            return self.add("all-gather", Opcode::AllGather, shape, &[value], attrs);
        }
        let scatters = kind == Collective::ReduceScatter;
        let attrs = CombiningAttrs {
            channel_id,
            replica_groups,
            use_global_device_ids: is_flat,
            dimensions: if scatters { self.along() } else { Dims::new() },
            to_apply: self.to_apply,
            ..CombiningAttrs::default()
        };
        let opcode = if scatters { Opcode::ReduceScatter } else { Opcode::AllReduce };
        self.add(opcode.name(), opcode, shape, &[value], attrs)
    }

    /// Groups of positions as the attribute of the new mode: replica ids, or flat ids.
    fn replica_groups(&self, positions: &[Vec<usize>]) -> ReplicaGroups {
        let n_partitions = self.module.header.num_partitions.max(1);
        let by_replica = self.mode == GroupMode::CrossReplica;
        let mut lists = Vec::new();
        for devices in &self.fit.groups {
            let ids: Vec<i64> = devices.iter().map(|&d| i64::from(d)).collect();
            // Every partition does what the first one does.
            if by_replica && ids.first().is_some_and(|first| first % n_partitions != 0) {
                continue;
            }
            let id = |position: &usize| ids.get(*position).map(|id| if by_replica { id / n_partitions } else { *id });
            lists.extend(positions.iter().map(|group| group.iter().filter_map(id).collect()));
        }
        ReplicaGroups::List(lists)
    }
}

fn zero(class: NumberClass) -> Scalar {
    match class {
        NumberClass::Pred => Scalar::Pred(false),
        NumberClass::Unsigned => Scalar::Uint(0),
        NumberClass::Signed => Scalar::Int(0),
        NumberClass::Float => Scalar::Float(0.0),
        NumberClass::Complex => Scalar::Complex(0.0, 0.0),
    }
}
