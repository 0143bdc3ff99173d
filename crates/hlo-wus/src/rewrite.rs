//! Emits the sharded update: reduce-scatter, slices, the update on shards, all-gathers.

use crate::format::{Choice, Cut};
use hlo_ir::attrs::{Attrs, CombiningAttrs, DynamicSliceAttrs, GatheringAttrs, PadAttrs, PadDim, SliceAttrs, SliceDim};
use hlo_ir::edit::Builder;
use hlo_ir::factors::{FactorSet, find_factors};
use hlo_ir::groups::{GroupMode, ReplicaGroups};
use hlo_ir::literal::{Literal, Scalar};
use hlo_ir::module::UserMap;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode, Shape};
use indexmap::IndexMap;

/// What one cluster's rewrite put in.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    /// `(all-reduce, reduce-scatter)` pairs.
    pub scattered: Vec<(InstId, InstId)>,
    /// `(member, all-gather)` pairs.
    pub gathered: Vec<(InstId, InstId)>,
}

/// Rewrites clusters of one computation; shard ids and start indices are shared between them.
pub struct Rewriter<'m> {
    module: &'m mut Module,
    /// The module before any cluster was rewritten: earlier rewrites have redirected operands of later clusters.
    before: &'m Module,
    users: &'m UserMap,
    comp: CompId,
    groups: &'m [Vec<u32>],
    shard_id: Option<InstId>,
    starts: IndexMap<i64, InstId>,
    zeros: IndexMap<DType, InstId>,
    next_channel: i64,
}

impl<'m> Rewriter<'m> {
    /// A rewriter for `comp`; `groups` hold all devices, each group's members in the order of their shards. `before` is
    /// `module` before any rewrite, `users` are its users.
    pub fn new(
        module: &'m mut Module,
        before: &'m Module,
        users: &'m UserMap,
        comp: CompId,
        groups: &'m [Vec<u32>],
    ) -> Rewriter<'m> {
        let next_channel = module.max_channel_id().saturating_add(1);
        let (starts, zeros) = (IndexMap::new(), IndexMap::new());
        Rewriter { module, before, users, comp, groups, shard_id: None, starts, zeros, next_channel }
    }

    /// Emits one cluster and redirects the uses of its exits.
    ///
    /// # Errors
    /// An op of the cluster lost its factors, which growing had found: a defect of the pass, reported and not hidden.
    pub fn emit(&mut self, choice: &Choice) -> Result<Emitted, String> {
        let cluster = &choice.cluster;
        let mut emitted = Emitted::default();
        let mut shards: IndexMap<InstId, InstId> = IndexMap::new();
        for &inst in &cluster.order {
            let dim = cluster.dim(inst).ok_or("a value of the cluster has no cut dim")?;
            let shard = if cluster.gradients.contains(&inst) {
                let scattered = self.reduce_scatter(inst, dim, &choice.cut)?;
                emitted.scattered.push((inst, scattered));
                scattered
            } else if cluster.sliced.contains_key(&inst) {
                self.slice(inst, dim, &choice.cut)?
            } else {
                self.on_shard(inst, dim, &choice.cut, &shards)?
            };
            shards.insert(inst, shard);
        }
        for &exit in &cluster.exits {
            let dim = cluster.members[&exit];
            let shard = *shards.get(&exit).ok_or("an exit was not computed on shards")?;
            let (gather, whole) = self.all_gather(exit, shard, dim, &choice.cut)?;
            emitted.gathered.push((exit, gather));
            self.redirect_outside(exit, whole, choice);
        }
        Ok(emitted)
    }

    fn array(&self, inst: InstId) -> Result<ArrayShape, String> {
        self.module.shape(inst).as_array().cloned().ok_or_else(|| "not an array".into())
    }

    fn add(&mut self, hint: &str, opcode: Opcode, shape: ArrayShape, operands: &[InstId], attrs: Attrs) -> InstId {
        let mut builder = Builder::new(self.module, self.comp);
        builder.add(hint, opcode, Shape::Array(shape), operands.iter().copied(), attrs)
    }

    /// Copies the source's metadata, so that the new instruction is found where the old one was.
    fn attribute(&mut self, new: InstId, source: InstId) {
        if let Some(metadata) = self.module.inst(source).marks.as_ref().and_then(|m| m.metadata.clone()) {
            self.module.marks_mut(new).metadata = Some(metadata);
        }
    }

    fn resized(&self, inst: InstId, dim: usize, size: i64) -> Result<ArrayShape, String> {
        let mut shape = self.array(inst)?;
        *shape.dims.get_mut(dim).ok_or("the cut dim is out of range")? = size;
        Ok(shape)
    }

    /// `value` padded at the end of `dim` with zeros, if the cut needs it.
    fn padded(&mut self, value: InstId, dim: usize, cut: &Cut) -> Result<InstId, String> {
        if cut.padding() == 0 {
            return Ok(value);
        }
        let shape = self.resized(value, dim, cut.padded_size())?;
        let zero = self.zero(shape.dtype);
        let mut padding = vec![PadDim::default(); shape.rank()];
        padding[dim].high = cut.padding();
        let hint = format!("{}.padded", self.module.inst_name(value));
        Ok(self.add(&hint, Opcode::Pad, shape, &[value, zero], PadAttrs { padding }.into()))
    }

    fn zero(&mut self, dtype: DType) -> InstId {
        if let Some(&zero) = self.zeros.get(&dtype) {
            return zero;
        }
        let literal = Literal::scalar(dtype, Scalar::Float(0.0));
        let zero = Builder::new(self.module, self.comp).constant("zero", literal);
        self.zeros.insert(dtype, zero);
        zero
    }

    /// The all-reduce's operand, reduced and scattered along `dim`.
    fn reduce_scatter(&mut self, all_reduce: InstId, dim: usize, cut: &Cut) -> Result<InstId, String> {
        let operand = *self.module.inst(all_reduce).operands.first().ok_or("an all-reduce without operand")?;
        let operand = self.padded(operand, dim, cut)?;
        let Attrs::Combining(old) = self.module.inst(all_reduce).attrs.clone() else {
            return Err("expected the attributes of an all-reduce".into());
        };
        let (mode, groups) = self.groups();
        let attrs = CombiningAttrs {
            channel_id: self.channel(mode),
            replica_groups: groups,
            constrain_layout: false,
            use_global_device_ids: mode == GroupMode::Flattened,
            dimensions: [dim as i64].into_iter().collect(),
            to_apply: old.to_apply,
        };
        let shape = self.resized(all_reduce, dim, cut.shard_size)?;
        let hint = format!("reduce-scatter.{}", self.module.inst_name(all_reduce));
        let scattered = self.add(&hint, Opcode::ReduceScatter, shape, &[operand], attrs.into());
        self.attribute(scattered, all_reduce);
        Ok(scattered)
    }

    /// Groups of the new collectives and their mode. Flat device ids are replica ids where there is one partition.
    fn groups(&self) -> (GroupMode, ReplicaGroups) {
        let has_partitions = self.module.header.num_partitions > 1;
        let mode = if has_partitions { GroupMode::Flattened } else { GroupMode::CrossReplica };
        let ids = self.groups.iter().map(|g| g.iter().map(|&d| i64::from(d)).collect()).collect();
        (mode, ReplicaGroups::List(ids))
    }

    /// A channel that no other collective has, where the mode needs one.
    fn channel(&mut self, mode: GroupMode) -> Option<i64> {
        if mode == GroupMode::CrossReplica {
            return None;
        }
        let channel = self.next_channel;
        self.next_channel = channel.saturating_add(1);
        Some(channel)
    }

    /// Each device's slice of a value that all devices hold whole.
    fn slice(&mut self, value: InstId, dim: usize, cut: &Cut) -> Result<InstId, String> {
        let shape = self.resized(value, dim, cut.shard_size)?;
        let start = self.start(cut.shard_size)?;
        let zero = self.zero(DType::S32);
        let padded = self.padded(value, dim, cut)?;
        let mut operands = vec![padded];
        operands.extend((0..shape.rank()).map(|d| if d == dim { start } else { zero }));
        let hint = format!("{}.shard", self.module.inst_name(value));
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: shape.dims.clone() };
        let slice = self.add(&hint, Opcode::DynamicSlice, shape, &operands, attrs.into());
        self.attribute(slice, value);
        Ok(slice)
    }

    /// `s32[]`: the first element of this device's shard.
    fn start(&mut self, shard_size: i64) -> Result<InstId, String> {
        if let Some(&start) = self.starts.get(&shard_size) {
            return Ok(start);
        }
        let id = self.shard_id()?;
        let mut builder = Builder::new(self.module, self.comp);
        let size = builder.constant("shard_size", Literal::scalar(DType::S32, Scalar::Int(shard_size)));
        let scalar = ArrayShape::new(DType::S32, []);
        let start = self.add("shard_start", Opcode::Multiply, scalar, &[id, size], Attrs::Plain);
        self.starts.insert(shard_size, start);
        Ok(start)
    }

    /// `s32[]`: which shard this device holds, its position in the group.
    fn shard_id(&mut self) -> Result<InstId, String> {
        if let Some(id) = self.shard_id {
            return Ok(id);
        }
        let device = self.device_id();
        let is_identity = self.groups.iter().all(|g| g.iter().enumerate().all(|(i, &d)| i == d as usize));
        let id = if is_identity { device } else { self.position_of(device)? };
        self.shard_id = Some(id);
        Ok(id)
    }

    /// `s32[]`: replica × num_partitions + partition.
    fn device_id(&mut self) -> InstId {
        let (r, p) = (self.module.header.replica_count, self.module.header.num_partitions);
        let u32s = || ArrayShape::new(DType::U32, []);
        let id = match (r > 1, p > 1) {
            (false, _) => self.add("partition-id", Opcode::PartitionId, u32s(), &[], Attrs::Plain),
            (true, false) => self.add("replica-id", Opcode::ReplicaId, u32s(), &[], Attrs::Plain),
            (true, true) => {
                let replica = self.add("replica-id", Opcode::ReplicaId, u32s(), &[], Attrs::Plain);
                let partition = self.add("partition-id", Opcode::PartitionId, u32s(), &[], Attrs::Plain);
                let literal = Literal::scalar(DType::U32, Scalar::Uint(p as u64));
                let count = Builder::new(self.module, self.comp).constant("num_partitions", literal);
                let row = self.add("device_row", Opcode::Multiply, u32s(), &[replica, count], Attrs::Plain);
                self.add("device_id", Opcode::Add, u32s(), &[row, partition], Attrs::Plain)
            }
        };
        self.add("shard_id", Opcode::Convert, ArrayShape::new(DType::S32, []), &[id], Attrs::Plain)
    }

    /// Looks the device's position in its group up.
    fn position_of(&mut self, device: InstId) -> Result<InstId, String> {
        let mut positions = vec![0i32; self.module.n_devices()];
        for group in self.groups {
            for (position, &member) in group.iter().enumerate() {
                *positions.get_mut(member as usize).ok_or("a group member is no device")? = position as i32;
            }
        }
        let n = positions.len() as i64;
        let table = Literal::from_elems(&[n], positions).map_err(|_| "a table of positions")?;
        let table = Builder::new(self.module, self.comp).constant("shard_of_device", table);
        let one = ArrayShape::new(DType::S32, [1]).with_row_major();
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: one.dims.clone() };
        let slice = self.add("shard_of_this_device", Opcode::DynamicSlice, one, &[table, device], attrs.into());
        let scalar = ArrayShape::new(DType::S32, []);
        let attrs = Attrs::default_of(Opcode::Reshape.row().format).ok_or("a reshape without attributes")?;
        Ok(self.add("shard_id", Opcode::Reshape, scalar, &[slice], attrs))
    }

    /// The instruction computed on this device's shard.
    fn on_shard(
        &mut self,
        inst: InstId,
        dim: usize,
        cut: &Cut,
        shards: &IndexMap<InstId, InstId>,
    ) -> Result<InstId, String> {
        let set = find_factors(self.before, inst).map_err(|e| e.0)?;
        let factor =
            set.results.first().and_then(|r| FactorSet::sole_factor(r, dim)).ok_or("a cut dim lost its factor")?;
        let source = self.before.inst(inst).clone();
        let mut operands = Vec::with_capacity(source.operands.len());
        for (k, operand) in source.operands.iter().enumerate() {
            operands.push(match FactorSet::mentions(&set.operands[k], factor) {
                true => *shards.get(operand).ok_or("an operand was not computed on shards")?,
                false => *operand,
            });
        }
        let shape = self.resized(inst, dim, cut.shard_size)?;
        let hint = format!("{}.shard", self.module.inst_name(inst));
        let shard = self.add(&hint, source.opcode, shape, &operands, source.attrs);
        self.attribute(shard, inst);
        Ok(shard)
    }

    /// The all-gather of a shard, and the whole value (the gather without its padding).
    fn all_gather(&mut self, whole: InstId, shard: InstId, dim: usize, cut: &Cut) -> Result<(InstId, InstId), String> {
        let (mode, groups) = self.groups();
        let attrs = GatheringAttrs {
            channel_id: self.channel(mode),
            replica_groups: groups,
            constrain_layout: false,
            dimensions: [dim as i64].into_iter().collect(),
            use_global_device_ids: mode == GroupMode::Flattened,
        };
        let shape = self.resized(whole, dim, cut.padded_size())?;
        let hint = format!("all-gather.{}", self.module.inst_name(whole));
        let gather = self.add(&hint, Opcode::AllGather, shape, &[shard], attrs.into());
        self.attribute(gather, whole);
        if cut.padding() == 0 {
            return Ok((gather, gather));
        }
        let shape = self.resized(whole, dim, cut.size)?;
        let slice = shape.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        let hint = format!("{}.unpadded", self.module.inst_name(whole));
        let unpadded = self.add(&hint, Opcode::Slice, shape, &[gather], SliceAttrs { slice }.into());
        Ok((gather, unpadded))
    }

    /// Users outside of the cluster take the whole value.
    fn redirect_outside(&mut self, old: InstId, new: InstId, choice: &Choice) {
        for &user in &self.users[old] {
            if !choice.cluster.computes(user) {
                self.module.inst_mut(user).operands.iter_mut().filter(|o| **o == old).for_each(|o| *o = new);
            }
        }
        if self.module.comp(self.comp).root.expand() == Some(old) {
            self.module.comp_mut(self.comp).root = Some(new).into();
        }
    }
}
