//! Which device this is, and where it stands in its group, as values of a per-device program.

use crate::append::Appender;
use crate::error::SpmdError;
use hlo_ir::attrs::{Attrs, DynamicSliceAttrs, ReshapeAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Opcode, Scalar};
use indexmap::IndexMap;
use std::sync::Arc;

/// Builds positions of devices in groups, once in each computation.
#[derive(Clone, Debug)]
pub struct DeviceIds {
    groups: Arc<[Vec<u32>]>,
    positions: IndexMap<CompId, InstId>,
    offsets: IndexMap<(CompId, i64), InstId>,
}

impl DeviceIds {
    /// `groups` hold all devices, each group's members in the order of their positions.
    pub fn new(groups: Arc<[Vec<u32>]>) -> DeviceIds {
        DeviceIds { groups, positions: IndexMap::new(), offsets: IndexMap::new() }
    }

    /// The groups.
    pub fn groups(&self) -> &[Vec<u32>] {
        &self.groups
    }

    /// `s32[]`: this device's position in its group.
    ///
    /// # Errors
    /// A group names a device that is none.
    pub fn position(&mut self, module: &mut Module, comp: CompId) -> Result<InstId, SpmdError> {
        if let Some(&position) = self.positions.get(&comp) {
            return Ok(position);
        }
        let device = device_id(module, comp);
        let is_identity = self.groups.iter().all(|g| g.iter().enumerate().all(|(i, &d)| i == d as usize));
        let position = if is_identity { device } else { self.looked_up(module, comp, device)? };
        self.positions.insert(comp, position);
        Ok(position)
    }

    /// `s32[]`: the position times `size`, the first element of this device's shard of so many elements.
    ///
    /// # Errors
    /// As [`DeviceIds::position`].
    pub fn offset(&mut self, module: &mut Module, comp: CompId, size: i64) -> Result<InstId, SpmdError> {
        if let Some(&offset) = self.offsets.get(&(comp, size)) {
            return Ok(offset);
        }
        let position = self.position(module, comp)?;
        let literal = Literal::scalar(DType::S32, Scalar::Int(size));
        let factor = Builder::new(module, comp).constant("shard_size", literal);
        let scalar = ArrayShape::new(DType::S32, []);
        let operands = [position, factor];
        let offset = Appender::new(comp).add(module, "shard_start", Opcode::Multiply, scalar, &operands, Attrs::Plain);
        self.offsets.insert((comp, size), offset);
        Ok(offset)
    }

    /// Looks the position of `device`, a flat id, up in a table.
    fn looked_up(&self, module: &mut Module, comp: CompId, device: InstId) -> Result<InstId, SpmdError> {
        let mut positions = vec![0i32; module.n_devices()];
        for group in self.groups.iter() {
            for (position, &member) in group.iter().enumerate() {
                *positions.get_mut(member as usize).ok_or(SpmdError::UnknownDevice)? = position as i32;
            }
        }
        let n = positions.len() as i64;
        let table = Literal::from_elems(&[n], positions).map_err(|_| SpmdError::PositionTable)?;
        let table = Builder::new(module, comp).constant("shard_of_device", table);
        let one = ArrayShape::new(DType::S32, [1]).with_row_major();
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: one.dims.clone() };
        let at = Appender::new(comp);
        let slice = at.add(module, "shard_of_this_device", Opcode::DynamicSlice, one, &[table, device], attrs);
        let scalar = ArrayShape::new(DType::S32, []);
        Ok(at.add(module, "shard_id", Opcode::Reshape, scalar, &[slice], ReshapeAttrs::default()))
    }
}

/// Numbers by device as values of one computation, each table once.
#[derive(Clone, Debug, Default)]
pub struct DeviceTables {
    device: Option<InstId>,
    known: IndexMap<Vec<i64>, InstId>,
}

impl DeviceTables {
    /// `s32[]`: the number of this device in a table by device id, appended by `at` to its computation.
    ///
    /// # Errors
    /// There is no number.
    pub fn looked_up(&mut self, module: &mut Module, at: Appender, table: &[i64]) -> Result<InstId, SpmdError> {
        if let Some(&known) = self.known.get(table) {
            return Ok(known);
        }
        let first = *table.first().ok_or(SpmdError::PositionTable)?;
        let found = if table.iter().all(|&n| n == first) {
            let literal = Literal::scalar(DType::S32, Scalar::Int(first));
            Builder::new(module, at.computation()).constant("start", literal)
        } else {
            let device = match self.device {
                Some(device) => device,
                None => *self.device.insert(device_id(module, at.computation())),
            };
            let is_identity = table.iter().enumerate().all(|(id, &n)| n == id as i64);
            if is_identity { device } else { Self::picked(module, at, table, device)? }
        };
        self.known.insert(table.to_vec(), found);
        Ok(found)
    }

    fn picked(module: &mut Module, at: Appender, table: &[i64], device: InstId) -> Result<InstId, SpmdError> {
        let elems: Vec<i32> =
            table.iter().map(|&n| i32::try_from(n)).collect::<Result<_, _>>().map_err(|_| SpmdError::PositionTable)?;
        let literal = Literal::from_elems(&[elems.len() as i64], elems).map_err(|_| SpmdError::PositionTable)?;
        let literal = Builder::new(module, at.computation()).constant("starts_by_device", literal);
        let one = ArrayShape::new(DType::S32, [1]).with_row_major();
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: one.dims.clone() };
        let slice = at.add(module, "start", Opcode::DynamicSlice, one, &[literal, device], attrs);
        let scalar = ArrayShape::new(DType::S32, []);
        Ok(at.add(module, "start", Opcode::Reshape, scalar, &[slice], ReshapeAttrs::default()))
    }
}

/// `s32[]`: replica × num_partitions + partition.
pub(crate) fn device_id(module: &mut Module, comp: CompId) -> InstId {
    let (r, p) = (module.header.replica_count, module.header.num_partitions);
    let at = Appender::new(comp);
    let u32s = |module: &mut Module, hint: &str, opcode: Opcode, operands: &[InstId]| {
        at.add(module, hint, opcode, ArrayShape::new(DType::U32, []), operands, Attrs::Plain)
    };
    let id = match (r > 1, p > 1) {
        (false, _) => u32s(module, "partition-id", Opcode::PartitionId, &[]),
        (true, false) => u32s(module, "replica-id", Opcode::ReplicaId, &[]),
        (true, true) => {
            let replica = u32s(module, "replica-id", Opcode::ReplicaId, &[]);
            let partition = u32s(module, "partition-id", Opcode::PartitionId, &[]);
            let literal = Literal::scalar(DType::U32, Scalar::Uint(p as u64));
            let count = Builder::new(module, comp).constant("num_partitions", literal);
            let row = u32s(module, "device_row", Opcode::Multiply, &[replica, count]);
            u32s(module, "device_id", Opcode::Add, &[row, partition])
        }
    };
    at.add(module, "shard_id", Opcode::Convert, ArrayShape::new(DType::S32, []), &[id], Attrs::Plain)
}
