//! The value of a number on every device: device ids, constants, tables, and any arithmetic, comparison or choice on them.

use hlo_analysis::scalar::{Element, ScalarOp, as_number, constant, element, is_reshaping, single};
use hlo_ir::{ConstantValue, InstId, Module, Opcode};
use std::collections::BTreeMap;

/// Most instructions that are looked at for one value.
const MAX_INSTS: usize = 200;

/// The value of `inst`, an integer, a truth value (0 or 1) or an array of one, on every device; none if it depends on anything but
/// the device.
pub fn find_device_values(module: &Module, inst: InstId) -> Option<Vec<i64>> {
    let dtype = single(module, inst)?;
    let number = |one: &Element| match one {
        Element::Int(value) => i64::try_from(as_number(*value, dtype)).ok(),
        Element::Float(_) => None,
    };
    let mut search = Search { module, known: BTreeMap::new() };
    search.elements(inst)?.iter().map(number).collect()
}

struct Search<'m> {
    module: &'m Module,
    known: BTreeMap<InstId, Option<Vec<Element>>>,
}

impl Search<'_> {
    /// The element on every device.
    fn elements(&mut self, inst: InstId) -> Option<Vec<Element>> {
        if let Some(known) = self.known.get(&inst) {
            return known.clone();
        }
        // Also a guard: what is looked at is not looked at again.
        self.known.insert(inst, None);
        let found = if self.known.len() <= MAX_INSTS { self.find(inst) } else { None };
        self.known.insert(inst, found.clone());
        found
    }

    fn find(&mut self, inst: InstId) -> Option<Vec<Element>> {
        let module = self.module;
        let instruction = module.inst(inst);
        let n_partitions = module.header.num_partitions.max(1);
        let n_devices = module.n_devices() as i64;
        single(module, inst)?;
        let operands = instruction.operands.as_slice();
        if instruction.opcode == Opcode::PartitionId {
            return Some((0..n_devices).map(|d| Element::Int(d % n_partitions)).collect());
        }
        if instruction.opcode == Opcode::ReplicaId {
            return Some((0..n_devices).map(|d| Element::Int(d / n_partitions)).collect());
        }
        if let Some(value) = constant(module, inst) {
            return Some(vec![value; n_devices as usize]);
        }
        if let (Opcode::DynamicSlice, &[table, place]) = (instruction.opcode, operands) {
            return self.looked_up(table, place);
        }
        if let (true, &[one]) = (is_reshaping(module, inst), operands) {
            return self.elements(one);
        }
        let op = ScalarOp::of(module, inst)?;
        let columns: Vec<Vec<Element>> =
            operands.iter().map(|&operand| self.elements(operand)).collect::<Option<_>>()?;
        let args = |device: usize| columns.iter().map(|column| column[device]).collect::<Vec<_>>();
        (0..n_devices as usize).map(|device| op.apply(&args(device))).collect()
    }

    /// The elements of a constant table of one dim at `place`.
    fn looked_up(&mut self, table: InstId, place: InstId) -> Option<Vec<Element>> {
        let dtype = single(self.module, place)?;
        let places = self.elements(place)?;
        let ConstantValue::Array(table) = self.module.inst(table).attrs.as_constant()? else { return None };
        let last = (table.n_elems() as i128).checked_sub(1).filter(|&last| last >= 0 && table.dims().len() == 1)?;
        let at = |place: Element| match place {
            Element::Int(place) => table.get(as_number(place, dtype).clamp(0, last) as usize).and_then(element),
            Element::Float(_) => None,
        };
        places.into_iter().map(at).collect()
    }
}
