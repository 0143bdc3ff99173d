//! Bytes that a program reads and writes, counted alike for ours and XLA's: operands read and results written, once each, as if nothing
//! stayed in cache; of slices, gathers and updates the part that is touched, within fusions too.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::cost::Costs;
use hlo_ir::op::{CostRule, Runs};
use hlo_ir::view::is_view;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};
use std::collections::HashMap;

/// Bytes of one run of the module on a device.
pub(super) fn moved(module: &Module) -> Result<u64, String> {
    let entry = module.entry().ok_or("a module: expected an ENTRY computation, found none")?;
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    Ok(Counter { module, costs: Costs::new(module), frequencies }.of_computation(entry))
}

struct Counter<'m> {
    module: &'m Module,
    costs: Costs<'m>,
    frequencies: Frequencies,
}

/// Ops that only look at an operand otherwise: who reads a part of their result reads a part of the operand. So do elementwise ones.
const VIEWS: [Opcode; 5] = [Opcode::Bitcast, Opcode::Reshape, Opcode::Transpose, Opcode::Convert, Opcode::Copy];
/// Ops that read a part of their first operand as large as their result.
const PARTS: [Opcode; 3] = [Opcode::Slice, Opcode::DynamicSlice, Opcode::Gather];

impl Counter<'_> {
    fn of_computation(&self, comp: CompId) -> u64 {
        self.module.comp(comp).insts.iter().map(|&inst| self.of_inst(inst)).sum()
    }

    fn of_inst(&self, inst: InstId) -> u64 {
        let called = || self.module.called(inst).into_iter().map(|comp| self.of_computation(comp));
        let rule = self.module.inst(inst).opcode.row().cost;
        if rule == CostRule::Called(Runs::Fused) {
            self.of_fusion(inst)
        } else if rule == CostRule::Called(Runs::Loop) {
            // The condition runs once more, and moves next to nothing.
            called().sum::<u64>() * self.frequencies.trip_count(inst).map_or(1, |trips| trips.count)
        } else if rule == CostRule::Called(Runs::Once) {
            called().sum()
        } else if rule == CostRule::Called(Runs::Choice) {
            called().max().unwrap_or(0)
        } else if is_view(self.module, inst) {
            // XLA writes these as bitcasts.
            0
        } else {
            self.costs.of(inst).bytes()
        }
    }

    fn of_fusion(&self, fusion: InstId) -> u64 {
        let Some(&comp) = self.module.called(fusion).first() else { return 0 };
        let body = self.module.comp(comp);
        let is_parameter = |inst: &InstId| self.module.inst(*inst).opcode == Opcode::Parameter;
        let mut known = HashMap::new();
        let mut read = |inst: InstId| match self.module.shape(inst).as_array() {
            Some(array) => array.dtype.bytes_of(self.n_read(comp, inst, &mut known)),
            None => self.bytes(inst),
        };
        let read: u64 = body.insts.iter().copied().filter(is_parameter).map(&mut read).sum();
        read + body.root.expand().map_or(0, |root| self.written(root))
    }

    fn bytes(&self, inst: InstId) -> u64 {
        self.module.shape(inst).size_bytes()
    }

    /// Elements of a value of a fusion that are read to compute its results. `known` has those of other values.
    fn n_read(&self, comp: CompId, value: InstId, known: &mut HashMap<InstId, u64>) -> u64 {
        if let Some(&n) = known.get(&value) {
            return n;
        }
        let n_elems = |inst: InstId| self.module.shape(inst).as_array().map_or(0, ArrayShape::n_elems);
        let body = self.module.comp(comp);
        let is_result = body.root.expand() == Some(value);
        let mut n = if is_result { n_elems(value) } else { 0 };
        for &user in body.insts.iter().filter(|&&user| self.module.inst(user).operands.contains(&value)) {
            let node = self.module.inst(user);
            let is_first_alone = node.operands.iter().position(|&o| o == value) == Some(0)
                && node.operands.iter().filter(|&&o| o == value).count() == 1;
            let keeps_places =
                VIEWS.contains(&node.opcode) || node.opcode.is_elementwise() && n_elems(user) == n_elems(value);
            n += if keeps_places || PARTS.contains(&node.opcode) && is_first_alone {
                self.n_read(comp, user, known)
            } else if node.opcode == Opcode::DynamicUpdateSlice && is_first_alone {
                0
            } else {
                n_elems(value)
            };
        }
        let n = n.min(n_elems(value));
        known.insert(value, n);
        n
    }

    /// What a fusion writes of a result.
    fn written(&self, value: InstId) -> u64 {
        let node = self.module.inst(value);
        let first = node.operands.first().copied();
        match first {
            Some(_) if node.opcode == Opcode::Tuple => node.operands.iter().map(|&o| self.written(o)).sum(),
            Some(first) if [Opcode::Bitcast, Opcode::Reshape].contains(&node.opcode) => self.written(first),
            Some(first) if node.opcode == Opcode::DynamicUpdateSlice && self.is_given(first) => {
                node.operands.get(1).map_or(0, |&update| self.bytes(update))
            }
            Some(_) | None => self.bytes(value),
        }
    }

    /// Whether a value is a parameter, looked at otherwise perhaps: an update of it is in place.
    fn is_given(&self, value: InstId) -> bool {
        let node = self.module.inst(value);
        let is_view = [Opcode::Bitcast, Opcode::Reshape].contains(&node.opcode);
        node.opcode == Opcode::Parameter || is_view && node.operands.first().is_some_and(|&first| self.is_given(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_slices_and_updates_within_fusions_the_part_that_is_touched_counts() {
        let text = "
HloModule m

%fused {
  %stack = f32[8,100] parameter(0)
  %at = s32[] parameter(1)
  %x = f32[1,100] parameter(2)
  %zero = s32[] constant(0)
  %part = f32[1,100] dynamic-slice(%stack, %at, %zero), dynamic_slice_sizes={1,100}
  %sum = f32[1,100] add(%part, %x)
  ROOT %new = f32[8,100] dynamic-update-slice(%stack, %sum, %at, %zero)
}

ENTRY %main {
  %s = f32[8,100] parameter(0)
  %i = s32[] parameter(1)
  %y = f32[1,100] parameter(2)
  ROOT %r = f32[8,100] fusion(%s, %i, %y), kind=kLoop, calls=%fused
}
";
        let module = hlo_text::parse_module(text).expect("a module").module;
        // The part, the index and the summand are read, the part is written.
        assert_eq!(moved(&module), Ok(400 + 4 + 400 + 400));
    }

    #[test]
    fn of_what_is_computed_for_a_part_the_part_is_read() {
        let text = "
HloModule m

%part {
  %x = f32[8,100] parameter(0)
  %y = bf16[8,100] parameter(1)
  %wide = f32[8,100] convert(%y)
  %sum = f32[8,100] add(%x, %wide)
  ROOT %rows = f32[2,100] slice(%sum), slice={[0:2], [0:100]}
}

%narrow {
  %z = f32[8,100] parameter(0)
  ROOT %w = bf16[8,100] convert(%z)
}

ENTRY %main {
  %a = f32[8,100] parameter(0)
  %b = bf16[8,100] fusion(%a), kind=kLoop, calls=%narrow
  ROOT %r = f32[2,100] fusion(%a, %b), kind=kLoop, calls=%part
}
";
        let module = hlo_text::parse_module(text).expect("a module").module;
        assert_eq!(moved(&module), Ok((3200 + 1600) + (800 + 400 + 800)));
    }

    #[test]
    fn what_gives_bytes_another_shape_moves_none() {
        let text = "
HloModule m

ENTRY %main {
  %x = f32[4,6]{1,0} parameter(0)
  %view = f32[24]{0} reshape(%x)
  %turned = f32[6,4]{0,1} transpose(%x), dimensions={1,0}
  %copied = f32[6,4]{1,0} transpose(%x), dimensions={1,0}
  ROOT %all = (f32[24]{0}, f32[6,4]{0,1}, f32[6,4]{1,0}) tuple(%view, %turned, %copied)
}
";
        let module = hlo_text::parse_module(text).expect("a module").module;
        assert_eq!(moved(&module), Ok(2 * 96));
    }
}
