//! Elements of gathers and scatters, and of ops that are functions of their operands at each position of some dims.

use super::field::{self, Number};
use super::ops::{At, index_of, joined, place_of};
use super::program::Place;
use super::values::{Stop, Values};
use hlo_ir::attrs::{FieldRef, GatherAttrs, ParameterAttrs, ScatterAttrs};
use hlo_ir::factors::{FactorRole, FactorSet, TensorFactors, find_factors};
use hlo_ir::op::Flow;
use hlo_ir::{CompId, ConstantValue, Dims, InstId, Module, Opcode};
use std::fmt::Write;

impl Values<'_> {
    /// The index vector at a position of the batch dims of the indices.
    fn index_vector(
        &mut self,
        here: At<'_>,
        operand: usize,
        vector_dim: i64,
        n: usize,
        batch: &[i64],
    ) -> Result<Vec<i64>, Stop> {
        let shape = self.operand_shape(here, operand)?;
        let mut out = Vec::with_capacity(n);
        for k in 0..n as i64 {
            let mut index = batch.to_vec();
            if (vector_dim as usize) < shape.rank() {
                index.insert(vector_dim as usize, k);
            }
            out.push(self.position(here, operand, place_of(&shape.dims, &index))?);
        }
        Ok(out)
    }

    pub(super) fn gather(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let attrs = GatherAttrs::of(&self.programs.module(here.place.frame).inst(here.place.inst).attrs);
        let attrs = attrs.ok_or_else(|| self.unread(here.place, "its dims"))?;
        let from = self.operand_shape(here, 0)?;
        let index = index_of(&here.to.dims, at);
        let is_offset = |d: usize| attrs.offset_dims.contains(&(d as i64));
        let batch: Vec<i64> = (0..index.len()).filter(|&d| !is_offset(d)).map(|d| index[d]).collect();
        let starts = self.index_vector(here, 1, attrs.index_vector_dim, attrs.start_index_map.len(), &batch)?;
        let mut full = vec![0; from.rank()];
        for (&d, start) in attrs.start_index_map.iter().zip(starts) {
            let d = d as usize;
            full[d] = start.clamp(0, (from.dims[d] - attrs.slice_sizes[d]).max(0));
        }
        for (&d, &of) in attrs.operand_batching_dims.iter().zip(&attrs.start_indices_batching_dims) {
            full[d as usize] += batch[batch_position(of, attrs.index_vector_dim)];
        }
        let is_inner = |d: &i64| !attrs.collapsed_slice_dims.contains(d) && !attrs.operand_batching_dims.contains(d);
        let inner = (0..from.rank() as i64).filter(is_inner);
        for (d, &offset) in inner.zip(&attrs.offset_dims) {
            full[d as usize] += index[offset as usize];
        }
        self.operand(here, 0, place_of(&from.dims, &full))
    }

    pub(super) fn scatter(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let module = self.programs.module(here.place.frame);
        let attrs = ScatterAttrs::of(&module.inst(here.place.inst).attrs);
        let attrs = attrs.ok_or_else(|| self.unread(here.place, "its dims"))?;
        if self.n_operands(here) != 3 {
            return self.unit(here, at);
        }
        let monoid = match attrs.to_apply {
            Some(comp) if takes_second(module, comp) => None,
            comp => Some(self.monoid(here, comp)?),
        };
        let updates = self.operand_shape(here, 2)?;
        let index = index_of(&here.to.dims, at);
        let is_window = |d: usize| attrs.update_window_dims.contains(&(d as i64));
        let batch_dims: Vec<usize> = (0..updates.rank()).filter(|&d| !is_window(d)).collect();
        let sizes: Vec<i64> = batch_dims.iter().map(|&d| updates.dims[d]).collect();
        let mut total = self.operand(here, 0, at)?;
        for step in 0..sizes.iter().product() {
            let batch = index_of(&sizes, step);
            let n = attrs.scatter_dims_to_operand_dims.len();
            let starts = self.index_vector(here, 1, attrs.index_vector_dim, n, &batch)?;
            let mut rest = index.clone();
            for (&d, start) in attrs.scatter_dims_to_operand_dims.iter().zip(starts) {
                rest[d as usize] -= start;
            }
            for (&d, &of) in attrs.input_batching_dims.iter().zip(&attrs.scatter_indices_batching_dims) {
                rest[d as usize] -= batch[batch_position(of, attrs.index_vector_dim)];
            }
            let mut update = vec![0; updates.rank()];
            batch_dims.iter().zip(&batch).for_each(|(&d, &b)| update[d] = b);
            let is_inner = |d: &i64| !attrs.inserted_window_dims.contains(d) && !attrs.input_batching_dims.contains(d);
            let inner: Vec<i64> = (0..rest.len() as i64).filter(is_inner).collect();
            for (&d, &window) in inner.iter().zip(&attrs.update_window_dims) {
                update[window as usize] = rest[d as usize];
            }
            let is_out = |d: i64| !is_inner(&d) && rest[d as usize] != 0;
            // An update is written whole or not at all.
            let is_bounded = inner.iter().zip(&attrs.update_window_dims).all(|(&d, &window)| {
                let first = index[d as usize] - rest[d as usize];
                first >= 0 && first + updates.dims[window as usize] <= here.to.dims[d as usize]
            });
            let is_within = update.iter().zip(&updates.dims).all(|(i, n)| (0..*n).contains(i));
            if !is_bounded || !is_within || (0..rest.len() as i64).any(is_out) {
                continue;
            }
            let x = self.operand(here, 2, place_of(&updates.dims, &update))?;
            total = match monoid {
                Some(monoid) => joined(monoid, here.to.dtype, Some(total), x),
                None => x,
            };
        }
        Ok(total)
    }

    /// An element as a function of its operands at its position along the dims that the op passes.
    pub(super) fn unit(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let module = self.programs.module(here.place.frame);
        let set = find_factors(module, here.place.inst).ok();
        let passed = set.as_ref().map_or(Vec::new(), passed);
        let n = self.n_operands(here);
        let index = index_of(&here.to.dims, at);
        let own = set.as_ref().and_then(|set| set.results.get(here.place.leaf));
        let position_of = |factor: usize| own.and_then(|t| FactorSet::dim_of(t, factor)).map(|d| index[d]);
        let mut inner: Vec<u64> = Vec::new();
        for (d, &i) in index.iter().enumerate() {
            if !own.is_some_and(|t| passed.iter().any(|&f| FactorSet::dim_of(t, f) == Some(d))) {
                inner.extend([i as u64, here.to.dims[d] as u64]);
            }
        }
        let mut parts = vec![self.word(here.place), here.place.leaf as u64];
        let called = module.callees_first(&module.called(here.place.inst));
        let mut insts = called.iter().flat_map(|&comp| &module.comp(comp).insts).map(|&inst| module.inst(inst));
        if insts.any(|inst| matches!(inst.attrs.as_constant(), Some(ConstantValue::Elided))) {
            return Err(self.unread(here.place, "a constant that is left out"));
        }
        let mut insts = called.iter().flat_map(|&comp| &module.comp(comp).insts).map(|&inst| module.inst(inst));
        if insts.any(|inst| matches!(inst.opcode.row().flow, Flow::ReplicaId | Flow::PartitionId)) {
            parts.push(u64::from(here.device));
        }
        parts.extend(inner);
        for k in 0..n {
            let shape = self.operand_shape(here, k)?;
            let factors = set.as_ref().and_then(|set| set.operands.get(k));
            let fixed: Vec<Option<i64>> = (0..shape.rank())
                .map(|d| {
                    let factor = passed.iter().find(|&&f| factors.and_then(|t| FactorSet::dim_of(t, f)) == Some(d))?;
                    position_of(*factor)
                })
                .collect();
            let free: Vec<usize> = (0..shape.rank()).filter(|&d| fixed[d].is_none()).collect();
            let sizes: Vec<i64> = free.iter().map(|&d| shape.dims[d]).collect();
            let mut full: Vec<i64> = fixed.iter().map(|at| at.unwrap_or(0)).collect();
            parts.extend(sizes.iter().map(|&n| n as u64));
            for step in 0..sizes.iter().product() {
                free.iter().zip(index_of(&sizes, step)).for_each(|(&d, digit)| full[d] = digit);
                parts.push(self.operand(here, k, place_of(&shape.dims, &full))?);
            }
        }
        Ok(field::drawn(field::hash(parts), here.to.dtype))
    }

    /// A number for an instruction's opcode, attributes and called computations.
    pub(super) fn word(&mut self, place: Place) -> u64 {
        let key = (self.programs.frames[place.frame].module, place.inst);
        let module = self.programs.module(place.frame);
        *self.words.entry(key).or_insert_with(|| field::hash_text(&word_of(module, place.inst)))
    }
}

/// Where a dim of the indices stands among those that are not the index vector's.
fn batch_position(dim: i64, vector_dim: i64) -> usize {
    (if dim > vector_dim { dim - 1 } else { dim }) as usize
}

/// Whether a computation gives its second parameter.
fn takes_second(module: &Module, comp: CompId) -> bool {
    let root = module.comp(comp).root.expand().map(|root| &module.inst(root).attrs);
    root.and_then(ParameterAttrs::of).is_some_and(|attrs| attrs.number == 1)
}

/// The factors that every tensor passes, each alone in its dims.
fn passed(set: &FactorSet) -> Vec<usize> {
    let all = || set.operands.iter().chain(&set.results);
    let is_alone =
        |tensor: &TensorFactors, f: usize| !FactorSet::mentions(tensor, f) || FactorSet::dim_of(tensor, f).is_some();
    let is_passed = |&f: &usize| {
        all().all(|tensor| is_alone(tensor, f))
            && set.results.iter().all(|tensor| FactorSet::mentions(tensor, f))
            && set.uses(f).all(|one| one.role == FactorRole::Pass)
    };
    (0..set.factors.len()).filter(is_passed).collect()
}

/// Attributes that say nothing of the result.
const SILENT: [&str; 6] = [
    "channel_id",
    "sharding",
    "is_composite",
    "output_to_operand_aliasing",
    "operand_layout_constraints",
    "indices_are_sorted",
];

fn word_of(module: &Module, inst: InstId) -> String {
    let instruction = module.inst(inst);
    let mut out = format!("{} {:?}", instruction.opcode, module.shape(inst).as_array().map(|shape| shape.dtype));
    // What a custom call gives depends on the order of elements in memory, and so do bitcasts within computations.
    if [Opcode::CustomCall, Opcode::Bitcast, Opcode::BitcastConvert].contains(&instruction.opcode) {
        let operands = instruction.operands.iter().map(|&operand| module.shape(operand));
        for shape in operands.chain([module.shape(inst)]) {
            let _ = write!(out, " {:?}", shape.as_array().and_then(|shape| shape.layout.as_ref()));
        }
    }
    let mut comps = Vec::new();
    instruction.attrs.for_each_field(&mut |key, _, value| {
        if value.is_unset() || SILENT.contains(&key) {
            return;
        }
        // What is written of a computation is what it does, not which it is.
        let _ = match value {
            FieldRef::Comp(Some(comp)) => {
                comps.push(*comp);
                write!(out, " {key}")
            }
            FieldRef::Comps(list) => {
                comps.extend_from_slice(list);
                write!(out, " {key} {}", list.len())
            }
            FieldRef::Shape(_) | FieldRef::Shapes(_) => write!(out, " {key}"),
            other => write!(out, " {key}={other:?}"),
        };
    });
    if let Some(config) = instruction.marks.as_ref().and_then(|marks| marks.backend_config.as_ref()) {
        let _ = write!(out, " {config}");
    }
    // The back end that knows a custom call may read them.
    let free = instruction.marks.as_ref().map_or(&[][..], |marks| &marks.frontend_attributes);
    if instruction.opcode == Opcode::CustomCall && !free.is_empty() {
        let _ = write!(out, " {free:?}");
    }
    for comp in comps {
        let insts = &module.comp(comp).insts;
        for &inner in insts {
            let operands: Vec<Option<usize>> =
                module.inst(inner).operands.iter().map(|o| insts.iter().position(|i| i == o)).collect();
            let dims: Option<&Dims> = module.shape(inner).as_array().map(|shape| &shape.dims);
            let constant = module.inst(inner).attrs.as_constant();
            let _ = write!(out, "; {} {dims:?} {operands:?} {constant:?}", word_of(module, inner));
        }
    }
    out
}
