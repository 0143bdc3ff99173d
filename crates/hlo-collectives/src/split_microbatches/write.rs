//! A region in parts, written beside what it stands for.

use super::region::{Region, is_collective};
use crate::in_parts::summed_in;
use hlo_ir::attrs::{Attrs, DimsAttrs};
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_pass::PassError;
use hlo_spmd::{ChannelIds, Rewrite, array};
use indexmap::IndexMap;

/// A copy of the module with a region in parts, and the new collectives.
pub(super) struct Written {
    pub module: Module,
    pub collectives: Vec<InstId>,
}

/// Writes a region in parts, on a copy. With `sums_gradients`, products that sum over the parts are sums of the parts' products.
///
/// # Errors
/// An instruction depends on itself: a defect.
pub(super) fn write(module: &Module, region: &Region, sums_gradients: bool) -> Result<Written, PassError> {
    let mut work = module.clone();
    let comp = work.inst(region.seed).parent;
    let rewrite = Rewrite::new(&work, comp);
    let channels = ChannelIds::free_in(&work);
    let mut writer = Writer {
        module: &mut work,
        rewrite,
        region,
        channels,
        parts: IndexMap::new(),
        slices: IndexMap::new(),
        collectives: Vec::new(),
    };
    let order: Vec<InstId> = module.comp(comp).insts.clone();
    for inst in order {
        if region.members.contains_key(&inst) {
            writer.member(inst);
        } else if sums_gradients && region.sums.contains_key(&inst) {
            writer.sum(inst);
        }
    }
    writer.join_what_leaves(module, sums_gradients);
    let (rewrite, collectives) = (writer.rewrite, writer.collectives);
    rewrite.finish(&mut work)?;
    Ok(Written { module: work, collectives })
}

struct Writer<'a> {
    module: &'a mut Module,
    rewrite: Rewrite,
    region: &'a Region,
    channels: ChannelIds,
    /// The parts of members.
    parts: IndexMap<InstId, Vec<InstId>>,
    /// Parts of what enters.
    slices: IndexMap<(InstId, usize), Vec<InstId>>,
    collectives: Vec<InstId>,
}

impl Writer<'_> {
    fn member(&mut self, inst: InstId) {
        let Some(member) = self.region.members.get(&inst) else { return };
        let is_exchanged = is_collective(self.module, inst);
        let (opcode, name) = (self.module.inst(inst).opcode, self.module.inst_name(inst).to_string());
        let Some(shape) = array(self.module, inst).map(|whole| self.part_of(whole, member.dim)) else { return };
        let mut parts: Vec<InstId> = Vec::with_capacity(self.region.n);
        for i in 0..self.region.n {
            let operands = self.operands(inst, &member.operands, i);
            let mut attrs = member.attrs.clone();
            if is_exchanged {
                self.channels.renew(&mut attrs);
            }
            let (hint, shape) = (format!("{name}.p{i}"), Shape::Array(shape.clone()));
            let part = self.rewrite.add(self.module, inst, (&hint, opcode), shape, &operands, attrs);
            if is_exchanged {
                // In order, and one by one: XLA combines collectives that do not depend on each other.
                if let Some(&before) = parts.last() {
                    self.module.marks_mut(part).control_predecessors.push(before);
                }
                self.collectives.push(part);
            }
            parts.push(part);
        }
        self.parts.insert(inst, parts);
    }

    /// A product that sums over the parts, as the sum of the parts' products.
    fn sum(&mut self, inst: InstId) {
        let (Some(cut), Some(whole)) = (self.region.sums.get(&inst), array(self.module, inst).cloned()) else { return };
        let shape = ArrayShape { dtype: summed_in(whole.dtype), ..whole.clone() };
        let (opcode, attrs) = (self.module.inst(inst).opcode, self.module.inst(inst).attrs.clone());
        let name = self.module.inst_name(inst).to_string();
        let mut sum: Option<InstId> = None;
        for i in 0..self.region.n {
            let operands = self.operands(inst, cut, i);
            let at = self.rewrite.at(inst);
            let part = at.add(self.module, &format!("{name}.p{i}"), opcode, shape.clone(), &operands, attrs.clone());
            sum = Some(match sum {
                Some(sum) => at.add(self.module, &name, Opcode::Add, shape.clone(), &[sum, part], Attrs::Plain),
                None => part,
            });
        }
        if let Some(mut sum) = sum {
            if shape.dtype != whole.dtype {
                sum = self.rewrite.at(inst).add(self.module, &name, Opcode::Convert, whole, &[sum], Attrs::Plain);
            }
            self.rewrite.redirect(inst, sum);
        }
    }

    /// The operands of part `i`.
    fn operands(&mut self, inst: InstId, cut: &[Option<usize>], i: usize) -> Vec<InstId> {
        let operands = self.module.inst(inst).operands.clone();
        let part = |(operand, dim): (InstId, &Option<usize>)| match *dim {
            None => operand,
            Some(dim) => match self.region.members.get(&operand).filter(|member| member.dim == dim) {
                Some(_) => self.parts.get(&operand).map_or(operand, |parts| parts[i]),
                None => self.sliced(operand, dim)[i],
            },
        };
        operands.into_iter().zip(cut).map(part).collect()
    }

    fn part_of(&self, whole: &ArrayShape, dim: usize) -> ArrayShape {
        let mut shape = whole.clone();
        shape.dims[dim] /= self.region.n as i64;
        shape
    }

    /// The parts of what enters.
    fn sliced(&mut self, value: InstId, dim: usize) -> &[InstId] {
        if !self.slices.contains_key(&(value, dim)) {
            let mut parts = Vec::with_capacity(self.region.n);
            if let Some(shape) = array(self.module, value).map(|whole| self.part_of(whole, dim)) {
                let name = self.module.inst_name(value).to_string();
                for i in 0..self.region.n {
                    let (hint, start) = (format!("{name}.p{i}"), shape.dims[dim] * i as i64);
                    let at = self.rewrite.at(value);
                    parts.push(at.slice(self.module, &hint, value, shape.clone(), (dim, start)));
                }
            }
            self.slices.insert((value, dim), parts);
        }
        &self.slices[&(value, dim)]
    }

    /// Puts the parts of members together for what needs them whole.
    fn join_what_leaves(&mut self, before: &Module, sums_gradients: bool) {
        let users = before.users();
        for (&inst, member) in &self.region.members {
            let takes_parts = |user: &InstId| {
                let cut = match self.region.members.get(user) {
                    Some(other) => Some(&other.operands),
                    None => self.region.sums.get(user).filter(|_| sums_gradients),
                };
                let of = before.inst(*user).operands.iter().zip(cut.into_iter().flatten());
                cut.is_some() && of.into_iter().all(|(&o, dim)| o != inst || *dim == Some(member.dim))
            };
            let is_root = before.comp(before.inst(inst).parent).root.expand() == Some(inst);
            if !is_root && users[inst].iter().all(takes_parts) {
                continue;
            }
            let (Some(parts), Some(shape)) = (self.parts.get(&inst), array(before, inst)) else { continue };
            let attrs = DimsAttrs { dimensions: std::iter::once(member.dim as i64).collect() };
            let (name, shape) = (before.inst_name(inst), Shape::Array(shape.clone()));
            let whole = self.rewrite.add(self.module, inst, (name, Opcode::Concatenate), shape, parts, attrs);
            self.rewrite.redirect(inst, whole);
        }
    }
}
