//! Values of which a shard is built without the whole: constants, iotas, broadcast scalars.

use crate::append::Appender;
use crate::error::SpmdError;
use crate::format::ShardFormat;
use crate::shards::{ShardBuilder, array_of, shifted};
use hlo_ir::attrs::{Attrs, DimsAttrs, IotaAttrs};
use hlo_ir::op::FactorRule;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode};

/// Whether an instruction repeats its operand.
pub fn is_broadcast(module: &Module, inst: InstId) -> bool {
    module.inst(inst).opcode.row().factors == FactorRule::Broadcast
}

/// Whether the value of an instruction costs nothing to build again, whole or in shards: a constant, an iota, a broadcast scalar.
pub fn is_rebuilt(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let is_scalar = |&operand: &InstId| module.shape(operand).as_array().is_some_and(|a| a.rank() == 0);
    let is_iota = instruction.opcode.row().factors == FactorRule::Iota;
    let repeats_scalar = is_broadcast(module, inst) && instruction.operands.iter().all(is_scalar);
    is_iota || repeats_scalar || instruction.opcode == Opcode::Constant
}

impl ShardBuilder {
    /// A shard of a broadcast scalar or of an iota, built in `comp` without the whole; `None` where it has to be cut.
    ///
    /// # Errors
    /// `inst` is no array, or a group names a device that is none.
    pub fn rebuild(
        &mut self,
        module: &mut Module,
        comp: CompId,
        inst: InstId,
        format: &ShardFormat,
    ) -> Result<Option<InstId>, SpmdError> {
        let shape = format.shard_shape(&array_of(module, inst)?);
        let (at, run) = (Appender::new(comp), format.run);
        let name = format!("{}.shard", module.inst_name(inst));
        if is_broadcast(module, inst) {
            let scalar = module.inst(inst).operands[0];
            let attrs = DimsAttrs::default();
            return Ok(Some(at.add(module, &name, Opcode::Broadcast, shape, &[scalar], attrs)));
        }
        let Attrs::Iota(iota) = &module.inst(inst).attrs else { return Ok(None) };
        let dim = iota.iota_dimension as usize;
        if !run.dims().contains(&dim) {
            let attrs = IotaAttrs { iota_dimension: run.merged(dim) as i64 };
            return Ok(Some(at.add(module, &name, Opcode::Iota, shape, &[], attrs)));
        }
        if run.len > 1 {
            return Ok(None);
        }
        // Counted in whole numbers: a start and an index that are each rounded to bf16 do not add up to the rounded sum.
        let s32 = ArrayShape { dtype: DType::S32, ..shape.clone() };
        let attrs = IotaAttrs { iota_dimension: dim as i64 };
        let within = at.add(module, &name, Opcode::Iota, s32.clone(), &[], attrs);
        let start = self.devices.offset(module, comp, format.split.shard_size)?;
        let index = shifted(module, comp, &name, within, start, s32);
        if shape.dtype == DType::S32 {
            return Ok(Some(index));
        }
        Ok(Some(at.add(module, &name, Opcode::Convert, shape, &[index], Attrs::Plain)))
    }
}
