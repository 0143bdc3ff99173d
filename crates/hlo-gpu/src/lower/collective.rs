//! Collectives as the communication library has them: contiguous buffers whose shards lie one after the other.
//! [`super::legalize`] has made scattered and gathered dims the slowest ones.

use super::strides::is_same_layout;
use super::{Leaves, Lowering, array_leaves};
use crate::GpuError;
use crate::buffers::Home;
use crate::plan::{BufferId, CollectiveCall, CollectiveKind, Reduction, Step, Stream, Work};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{CollectiveRule, CollectiveSource};
use hlo_ir::{ArrayShape, DType, InstId};

impl Lowering<'_> {
    pub(crate) fn collective(
        &mut self,
        inst: InstId,
        rule: CollectiveRule,
        steps: &mut Vec<Step>,
    ) -> Result<(), GpuError> {
        let (kind, groups) = self.kind_and_groups(inst, rule)?;
        let inputs = self.operand_buffers(inst);
        if self.module.n_exchanged(inst, rule) < inputs.len() {
            let reason = "expected arrays that the devices exchange, found a scalar operand that each device keeps";
            return Err(self.unsupported(inst, reason));
        }
        let result_is_tuple = self.module.shape(inst).as_tuple().is_some();
        if rule.exchanges_parts() && result_is_tuple {
            return self.exchange_of_arrays(inst, groups, inputs, steps);
        }
        // A device alone has what it would receive.
        let is_alone = kind.pairs().is_none() && groups.iter().all(|group| group.len() == 1);
        if is_alone && self.has_same_arrays(inst, &inputs) {
            return self.bind(inst, inputs.into_iter().map(Some).collect());
        }
        let leaves = self.result_leaves(inst);
        let outputs: Vec<BufferId> = leaves.iter().copied().flatten().collect();
        self.bind(inst, leaves)?;
        let is_in_place = kind.is_elementwise();
        let mut calls = Vec::new();
        for (&input, &output) in inputs.iter().zip(&outputs) {
            if self.draft.plan.buffers[output].shape.n_elems() == 0 {
                continue;
            }
            let value = self.draft.value_of[input];
            if is_in_place && inputs.iter().filter(|&&other| self.draft.value_of[other] == value).count() == 1 {
                self.draft.allow_sharing(input, output);
            }
            // The sum of complex numbers is that of their parts.
            let is_sum = kind.reduction().is_some();
            calls.push(if is_sum { (self.parts(input), self.parts(output)) } else { (input, output) });
        }
        let name = self.module.inst_name(inst).to_string();
        if is_alone {
            // The counts of devices that a header lacks are those of one device.
            let n_elems = |buffer: BufferId| self.draft.plan.buffers[buffer].shape.n_elems();
            if calls.iter().any(|&(input, output)| n_elems(input) != n_elems(output)) {
                let reason =
                    "expected devices that share the result, found one: give --num-partitions or --num-replicas";
                return Err(self.unsupported(inst, reason));
            }
            calls.into_iter().for_each(|(input, output)| self.copy(&name, input, output, steps));
        } else if !calls.is_empty() {
            self.call_collective(&name, kind, groups, calls, steps);
        }
        Ok(())
    }

    /// Whether the results are arrays like these, in the same layouts.
    fn has_same_arrays(&self, inst: InstId, inputs: &[BufferId]) -> bool {
        let results = array_leaves(self.module.shape(inst));
        results.len() == inputs.len()
            && results.iter().zip(inputs).all(|(result, &input)| {
                let input = &self.draft.plan.buffers[input].shape;
                result.as_ref().is_some_and(|result| result.same_type(input) && is_same_layout(input, result))
            })
    }

    /// A buffer of complex numbers as one of their parts; any other as it is.
    fn parts(&mut self, buffer: BufferId) -> BufferId {
        let shape = &self.draft.plan.buffers[buffer].shape;
        let part = match shape.dtype {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            _ => return buffer,
        };
        let parts = ArrayShape::new(part, [2 * shape.n_elems() as i64]).with_row_major();
        let name = self.draft.plan.buffers[buffer].name.to_string();
        self.draft.add_view(&name, parts, buffer, 0)
    }

    /// An all-to-all whose parts are separate arrays: they are brought into one buffer, and the results are parts of another.
    fn exchange_of_arrays(
        &mut self,
        inst: InstId,
        groups: Vec<Vec<u32>>,
        inputs: Vec<BufferId>,
        steps: &mut Vec<Step>,
    ) -> Result<(), GpuError> {
        let name = self.module.inst_name(inst).to_string();
        let Some(&first) = inputs.first() else { return Err(self.unsupported(inst, "expected operands, found none")) };
        let part = self.draft.plan.buffers[first].shape.clone();
        let n = inputs.len() as u64;
        let whole = ArrayShape::new(part.dtype, [part.n_elems().saturating_mul(n) as i64]).with_row_major();
        let packed = self.draft.add_value(&name, whole.clone(), Home::Temporary);
        let exchanged = self.draft.add_value(&name, whole, Home::Temporary);
        let mut leaves = Leaves::new();
        for (i, &input) in inputs.iter().enumerate() {
            let offset_bytes = part.memory_bytes() * i as u64;
            let shape = self.draft.plan.buffers[input].shape.clone();
            let to = self.draft.add_view(&name, shape.clone(), packed, offset_bytes);
            leaves.push(Some(self.draft.add_view(&name, shape, exchanged, offset_bytes)));
            if part.n_elems() > 0 {
                self.step(&name, Work::Copy { from: input, to }, steps);
            }
        }
        if part.n_elems() > 0 {
            let kind = CollectiveKind::Groups { reduction: None, scatters: true };
            self.call_collective(&name, kind, groups, vec![(packed, exchanged)], steps);
        }
        self.bind(inst, leaves)
    }

    fn call_collective(
        &mut self,
        name: &str,
        kind: CollectiveKind,
        groups: Vec<Vec<u32>>,
        calls: Vec<(BufferId, BufferId)>,
        steps: &mut Vec<Step>,
    ) {
        let communicator = self.communicator(groups);
        let work = Work::Collective(CollectiveCall { kind, communicator, calls });
        steps.push(Step { name: name.into(), stream: Stream::Communication, waits_for: Vec::new(), work });
    }

    /// The groups of the communicator that all devices share.
    fn everyone(&self) -> Vec<Vec<u32>> {
        vec![(0..u32::try_from(self.module.n_devices()).unwrap_or(u32::MAX)).collect()]
    }

    /// The library's collective, and the groups of a communicator for it.
    fn kind_and_groups(&self, inst: InstId, rule: CollectiveRule) -> Result<(CollectiveKind, Vec<Vec<u32>>), GpuError> {
        let wrong = |reason: String| self.unsupported(inst, reason);
        let reduces = match rule.source {
            CollectiveSource::Reduction => true,
            CollectiveSource::Members => false,
            CollectiveSource::Pair => {
                let pairs = self.module.device_pairs(inst).map_err(|error| wrong(error.to_string()))?;
                return Ok((CollectiveKind::Pairs(pairs), self.everyone()));
            }
            // The first of each group sends to all of it, and to itself.
            CollectiveSource::Root => {
                let groups = self.module.device_groups(inst).map_err(|error| wrong(error.to_string()))?;
                let from_root = |group: &Vec<u32>| -> Vec<(u32, u32)> {
                    group.first().map_or(Vec::new(), |&root| group.iter().map(|&member| (root, member)).collect())
                };
                let pairs = groups.groups.iter().flat_map(from_root).collect();
                return Ok((CollectiveKind::Pairs(pairs), self.everyone()));
            }
            CollectiveSource::Rows => {
                return Err(wrong(format!("{} has no lowering", self.module.inst(inst).opcode)));
            }
        };
        let groups = self.module.device_groups(inst).map_err(|error| wrong(error.to_string()))?;
        let reduction = if reduces { Some(self.reduction(inst)?) } else { None };
        let kind = CollectiveKind::Groups { reduction, scatters: rule.scatters };
        if !kind.is_elementwise() && groups.uniform_size().is_none() {
            return Err(wrong("expected groups of one size, found several".into()));
        }
        Ok((kind, groups.groups))
    }

    /// The library's reduction of an all-reduce or reduce-scatter.
    fn reduction(&self, inst: InstId) -> Result<Reduction, GpuError> {
        let Some(view) = self.module.inst(inst).attrs.collective() else {
            return Err(self.unsupported(inst, "expected a reducer, found none"));
        };
        let reducer = view.to_apply.and_then(|comp| find_monoid(self.module, comp));
        let operands = self.operand_buffers(inst);
        let dtypes = operands.iter().map(|&b| self.draft.plan.buffers[b].shape.dtype);
        let mut found = None;
        for dtype in dtypes {
            let reduction = reducer.and_then(|reducer| find_reduction(reducer, dtype));
            let Some(reduction) = reduction else {
                let name = view.to_apply.map_or("none", |comp| self.module.comp_name(comp));
                let reason = match reducer {
                    Some(reducer) => format!(
                        "expected a reduction that the library has (of numbers of 32 or 64 bits, s8, u8, f16 and bf16 their sum, product, minimum \
                         and maximum; of pred all; of complex numbers their sum), found `{name}`, {reducer:?}, on {dtype}"
                    ),
                    None => format!(
                        "expected a sum, product, minimum or maximum of numbers, or a logical and / or, found `{name}`"
                    ),
                };
                return Err(self.unsupported(inst, reason));
            };
            if found.is_some_and(|other| other != reduction) {
                return Err(self.unsupported(inst, "expected one reduction, found a pred beside numbers"));
            }
            found = Some(reduction);
        }
        found.ok_or_else(|| self.unsupported(inst, "expected operands, found none"))
    }
}

/// The library's reduction for a reducer on elements of a type; a `pred` is a byte of 0 or 1.
fn find_reduction(reducer: Monoid, dtype: DType) -> Option<Reduction> {
    let is_pred = dtype == DType::Pred;
    // 16-bit integers, small floats and the types below 8 bits are not the library's.
    let is_number = matches!(dtype.bits(), 32 | 64) && !dtype.is_complex()
        || matches!(dtype, DType::S8 | DType::U8 | DType::F16 | DType::BF16);
    match reducer {
        Monoid::Add if dtype.is_complex() => Some(Reduction::Sum),
        Monoid::Add | Monoid::Maximum | Monoid::Or if is_pred => Some(Reduction::Max),
        Monoid::Multiply | Monoid::Minimum | Monoid::And if is_pred => Some(Reduction::Min),
        Monoid::Add if is_number => Some(Reduction::Sum),
        Monoid::Multiply if is_number => Some(Reduction::Product),
        Monoid::Maximum if is_number => Some(Reduction::Max),
        Monoid::Minimum if is_number => Some(Reduction::Min),
        Monoid::Add | Monoid::Multiply | Monoid::Maximum | Monoid::Minimum | Monoid::And | Monoid::Or => None,
    }
}
