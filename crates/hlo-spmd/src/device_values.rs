//! What an integer is on every device: device ids, constants, tables and arithmetic on them.

use hlo_ir::dtype::NumberClass;
use hlo_ir::{ConstantValue, DType, InstId, Literal, Module, Opcode, Scalar};

/// Operations on two numbers; none where the result has no meaning or depends on how it wraps.
type Binary = fn(i64, i64) -> Option<i64>;
const BINARY: [(Opcode, Binary); 7] = [
    (Opcode::Add, i64::checked_add),
    (Opcode::Subtract, i64::checked_sub),
    (Opcode::Multiply, i64::checked_mul),
    (Opcode::Divide, i64::checked_div),
    (Opcode::Remainder, i64::checked_rem),
    (Opcode::Minimum, |a, b| Some(a.min(b))),
    (Opcode::Maximum, |a, b| Some(a.max(b))),
];

/// Most instructions that are looked at for one value.
const MAX_STEPS: usize = 200;

/// The value of `inst`, an integer or an array of one, on every device; none if it depends on anything but the device.
pub fn find_device_values(module: &Module, inst: InstId) -> Option<Vec<i64>> {
    Search { module, n_steps: 0 }.values(inst)
}

struct Search<'m> {
    module: &'m Module,
    n_steps: usize,
}

impl Search<'_> {
    fn values(&mut self, inst: InstId) -> Option<Vec<i64>> {
        self.n_steps += 1;
        let shape = self.module.shape(inst).as_array()?;
        if self.n_steps > MAX_STEPS || shape.n_elems() != 1 || !shape.dtype.is_integer() {
            return None;
        }
        let dtype = shape.dtype;
        let values = self.raw(inst)?;
        values.iter().all(|&value| holds(dtype, value)).then_some(values)
    }

    /// Without looking whether the type can hold them.
    fn raw(&mut self, inst: InstId) -> Option<Vec<i64>> {
        let instruction = self.module.inst(inst);
        let (opcode, operands) = (instruction.opcode, instruction.operands.as_slice());
        let n_partitions = self.module.header.num_partitions.max(1);
        let n_devices = self.module.n_devices() as i64;
        let passes = [Opcode::Convert, Opcode::Copy, Opcode::Reshape, Opcode::Broadcast];
        match operands {
            [] if opcode == Opcode::PartitionId => Some((0..n_devices).map(|d| d % n_partitions).collect()),
            [] if opcode == Opcode::ReplicaId => Some((0..n_devices).map(|d| d / n_partitions).collect()),
            [] => number(self.table(inst)?, 0).map(|value| vec![value; n_devices as usize]),
            [one] if passes.contains(&opcode) => self.values(*one),
            [a, b] if opcode == Opcode::DynamicSlice => {
                let places = self.values(*b)?;
                let table = self.table(*a).filter(|table| table.dims().len() == 1)?;
                let last = (table.n_elems() as i64).checked_sub(1)?;
                places.into_iter().map(|place| number(table, place.clamp(0, last) as usize)).collect()
            }
            [a, b] => {
                let (_, apply) = BINARY.iter().find(|(binary, _)| *binary == opcode)?;
                let (a, b) = (self.values(*a)?, self.values(*b)?);
                a.into_iter().zip(b).map(|(a, b)| apply(a, b)).collect()
            }
            _ => None,
        }
    }

    /// The array of a constant.
    fn table(&self, inst: InstId) -> Option<&Literal> {
        match self.module.inst(inst).attrs.as_constant()? {
            ConstantValue::Array(literal) => Some(literal),
            ConstantValue::Tuple(_) | ConstantValue::Elided => None,
        }
    }
}

fn number(table: &Literal, index: usize) -> Option<i64> {
    match table.get(index)? {
        Scalar::Int(value) => Some(value),
        Scalar::Uint(value) => i64::try_from(value).ok(),
        Scalar::Pred(_) | Scalar::Float(_) | Scalar::Complex(..) => None,
    }
}

/// Whether an integer type can hold a number.
fn holds(dtype: DType, value: i64) -> bool {
    let bits = dtype.bits().min(63);
    match dtype.class() {
        NumberClass::Unsigned => value >= 0 && (bits == 63 || value < 1 << bits),
        NumberClass::Signed => bits == 63 || (-(1 << (bits - 1))..1 << (bits - 1)).contains(&value),
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_type_holds_its_range_and_nothing_beside_it() {
        let in_range = |dtype, values: [i64; 4]| values.map(|value| holds(dtype, value));
        assert_eq!(in_range(DType::S8, [-129, -128, 127, 128]), [false, true, true, false]);
        assert_eq!(in_range(DType::U8, [-1, 0, 255, 256]), [false, true, true, false]);
        assert_eq!(
            in_range(DType::S32, [-(1 << 31) - 1, -(1 << 31), (1 << 31) - 1, 1 << 31]),
            [false, true, true, false]
        );
        assert_eq!(in_range(DType::S64, [i64::MIN, -1, 0, i64::MAX]), [true; 4]);
        assert_eq!(in_range(DType::U64, [-1, 0, 1, i64::MAX]), [false, true, true, true]);
        assert_eq!([DType::Pred, DType::F32, DType::C64].map(|dtype| holds(dtype, 0)), [false; 3]);
    }
}
