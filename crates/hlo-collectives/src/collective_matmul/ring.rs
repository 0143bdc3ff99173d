//! A gather before products, or a reduce-scatter after one, as a ring of permutes.
//!
//! In step `i` of a gather, the device at position `p` of its group has the shard of position `p + i`: each sends what it has to the
//! position before it. In step `i` of a reduce-scatter, it adds its summand for the position `p + n - 1 - i` to what came from the
//! position before it; after the last step that is the sum for its own.

use super::find::{Kind, Product, Role, Site};
use crate::in_parts::summed_in;
use hlo_ir::attrs::{Attrs, DynamicSliceAttrs, PermutingAttrs};
use hlo_ir::{ArrayShape, Dims, InstId, Module, Opcode, Scalar};
use hlo_spmd::{Appender, ChannelIds, DeviceTables, Rewrite, SpmdError, array};

/// Takes a gather or a reduce-scatter apart; the new collectives. `tables` has the numbers that its computation looks up by device.
///
/// # Errors
/// A group names a device that is none, or something is no array.
pub(super) fn emit(
    module: &mut Module,
    rewrite: &mut Rewrite,
    site: &Site,
    (channels, tables): (&mut ChannelIds, &mut DeviceTables),
) -> Result<Vec<InstId>, SpmdError> {
    let here = Appender::new(module.inst(site.collective).parent);
    let mut ring = Ring { module, rewrite, site, channels, here, tables, collectives: Vec::new() };
    match site.kind {
        Kind::Scatter => ring.scatter()?,
        Kind::Gather | Kind::Sum => ring.gather()?,
    }
    Ok(ring.collectives)
}

struct Ring<'a> {
    module: &'a mut Module,
    rewrite: &'a mut Rewrite,
    site: &'a Site,
    channels: &'a mut ChannelIds,
    here: Appender,
    tables: &'a mut DeviceTables,
    collectives: Vec<InstId>,
}

impl Ring<'_> {
    fn n(&self) -> usize {
        self.site.groups.first().map_or(1, Vec::len)
    }

    /// Multiplies each shard as it arrives.
    fn gather(&mut self) -> Result<(), SpmdError> {
        let (site, n) = (self.site, self.n());
        let mut shard = self.module.inst(site.collective).operands[0];
        let size = shape_of(self.module, shard)?.dims[site.dim];
        let mut results: Vec<Option<InstId>> = vec![None; site.products.len()];
        let mut whole = None;
        for step in 0..n {
            if step > 0 {
                shard = self.permuted(shard, n - 1);
            }
            for (product, result) in site.products.iter().zip(&mut results) {
                *result = Some(self.multiplied(product, shard, (step, size), *result)?);
            }
            if site.is_needed_whole {
                whole = Some(self.written(whole, shard, site.collective, site.dim, (step, size))?);
            }
        }
        for (product, result) in site.products.iter().zip(results).filter_map(|(p, r)| Some((p, r?))) {
            let result = self.finished(product.dot, result)?;
            self.rewrite.redirect(product.dot, result);
        }
        if let Some(whole) = whole {
            self.rewrite.redirect(site.collective, whole);
        }
        Ok(())
    }

    /// A product's result, with what the shard of this step gives.
    fn multiplied(
        &mut self,
        product: &Product,
        shard: InstId,
        at: (usize, i64),
        so_far: Option<InstId>,
    ) -> Result<InstId, SpmdError> {
        let mut factor = shard;
        for between in &product.between {
            factor = self.resized(between.inst, &[factor], (between.dim, at.1))?;
        }
        let mut operands = self.module.inst(product.dot).operands.clone();
        operands[product.side] = factor;
        let other = 1 - product.side;
        match product.role {
            Role::Free { result } => {
                let part = self.resized(product.dot, &operands, (result, at.1))?;
                self.written(so_far, part, product.dot, result, at)
            }
            Role::Batch { other: dim, result } => {
                operands[other] = self.cut(operands[other], dim, at)?;
                let part = self.resized(product.dot, &operands, (result, at.1))?;
                self.written(so_far, part, product.dot, result, at)
            }
            Role::Contracted { other: dim } => {
                operands[other] = self.cut(operands[other], dim, at)?;
                let whole = shape_of(self.module, product.dot)?;
                let shape = ArrayShape { dtype: summed_in(whole.dtype), ..whole.clone() };
                let attrs = self.module.inst(product.dot).attrs.clone();
                let summand = self.add(product.dot, Opcode::Dot, shape.clone(), &operands, attrs);
                Ok(match so_far {
                    Some(sum) => self.add(product.dot, Opcode::Add, shape, &[sum, summand], Attrs::Plain),
                    None => summand,
                })
            }
        }
    }

    fn scatter(&mut self) -> Result<(), SpmdError> {
        let (site, n) = (self.site, self.n());
        let Some(product) = site.products.first() else { return Ok(()) };
        let size = shape_of(self.module, site.collective)?.dims[site.dim];
        let mut sum: Option<InstId> = None;
        for step in (0..n).rev() {
            let mut operands = self.module.inst(product.dot).operands.clone();
            operands[product.side] = self.cut(operands[product.side], product.dim, (step, size))?;
            if let Role::Batch { other, .. } = product.role {
                operands[1 - product.side] = self.cut(operands[1 - product.side], other, (step, size))?;
            }
            let cut = match product.role {
                Role::Free { result } | Role::Batch { result, .. } => result,
                Role::Contracted { .. } => site.dim,
            };
            let mut summand = self.resized(product.dot, &operands, (cut, size))?;
            for between in &product.between {
                summand = self.resized(between.inst, &[summand], (between.dim, size))?;
            }
            sum = Some(match sum {
                Some(sum) => {
                    let arrived = self.permuted(sum, 1);
                    let shape = shape_of(self.module, summand)?.clone();
                    self.add(site.collective, Opcode::Add, shape, &[arrived, summand], Attrs::Plain)
                }
                None => summand,
            });
        }
        if let Some(sum) = sum {
            let sum = self.rewrite.with_shape_of(self.module, sum, site.collective);
            self.rewrite.redirect(site.collective, sum);
        }
        Ok(())
    }

    fn add(
        &mut self,
        source: InstId,
        opcode: Opcode,
        shape: ArrayShape,
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        let hint = format!("{}.part", self.module.inst_name(source));
        self.rewrite.at(source).add(self.module, &hint, opcode, shape, operands, attrs)
    }

    /// What `inst` does, on other operands, with `size` elements along a dim of its result.
    fn resized(&mut self, inst: InstId, operands: &[InstId], (dim, size): (usize, i64)) -> Result<InstId, SpmdError> {
        let mut shape = shape_of(self.module, inst)?.clone();
        shape.dims[dim] = size;
        let (opcode, attrs) = (self.module.inst(inst).opcode, self.module.inst(inst).attrs.clone());
        Ok(self.add(inst, opcode, shape, operands, attrs))
    }

    /// The array in the type, and layout, of what it stands for.
    fn finished(&mut self, dot: InstId, result: InstId) -> Result<InstId, SpmdError> {
        let (wanted, found) = (shape_of(self.module, dot)?.clone(), shape_of(self.module, result)?.dtype);
        if wanted.dtype == found {
            return Ok(result);
        }
        Ok(self.add(dot, Opcode::Convert, wanted, &[result], Attrs::Plain))
    }

    /// Sends an array on, by so many positions.
    fn permuted(&mut self, value: InstId, by: usize) -> InstId {
        let n = self.n();
        let pair = |group: &Vec<u32>, i: usize| (i64::from(group[i]), i64::from(group[(i + by) % n]));
        let pairs = self.site.groups.iter().flat_map(|group| (0..n).map(move |i| pair(group, i))).collect();
        let channel_id = (self.module.header.num_partitions > 1).then(|| self.channels.take());
        let attrs = PermutingAttrs { channel_id, source_target_pairs: pairs, ..PermutingAttrs::default() };
        let shape = self.module.shape(value).clone();
        let (hint, source) = (format!("{}.arrived", self.module.inst_name(self.site.collective)), self.site.collective);
        let moved = self.rewrite.add(self.module, source, (&hint, Opcode::CollectivePermute), shape, &[value], attrs);
        self.collectives.push(moved);
        moved
    }

    /// Starts along each dim: `step` positions behind this device's along `dim`, 0 along others.
    fn starts(&mut self, rank: usize, dim: usize, (step, size): (usize, i64)) -> Result<Vec<InstId>, SpmdError> {
        let n = self.n();
        let mut table = vec![0; self.module.n_devices()];
        for group in self.site.groups.iter() {
            for (position, &device) in group.iter().enumerate() {
                *table.get_mut(device as usize).ok_or(SpmdError::UnknownDevice)? =
                    ((position + step) % n) as i64 * size;
            }
        }
        let start = self.tables.looked_up(self.module, self.here, &table)?;
        let zero = self.tables.looked_up(self.module, self.here, &vec![0; table.len()])?;
        Ok((0..rank).map(|d| if d == dim { start } else { zero }).collect())
    }

    /// The part of an array that a step takes.
    fn cut(&mut self, value: InstId, dim: usize, at: (usize, i64)) -> Result<InstId, SpmdError> {
        let mut shape = shape_of(self.module, value)?.clone();
        shape.dims[dim] = at.1;
        let mut operands = vec![value];
        operands.extend(self.starts(shape.rank(), dim, at)?);
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: Dims::from_slice(&shape.dims) };
        Ok(self.add(value, Opcode::DynamicSlice, shape, &operands, attrs))
    }

    /// An array like `model` in which this step's part is written.
    fn written(
        &mut self,
        so_far: Option<InstId>,
        part: InstId,
        model: InstId,
        dim: usize,
        at: (usize, i64),
    ) -> Result<InstId, SpmdError> {
        let shape = shape_of(self.module, model)?.clone();
        let base = match so_far {
            Some(base) => base,
            None => self.rewrite.splat(self.module, "empty", Scalar::Float(0.0), &shape),
        };
        let mut operands = vec![base, part];
        operands.extend(self.starts(shape.rank(), dim, at)?);
        Ok(self.add(model, Opcode::DynamicUpdateSlice, shape, &operands, Attrs::Plain))
    }
}

fn shape_of(module: &Module, inst: InstId) -> Result<&ArrayShape, SpmdError> {
    array(module, inst).ok_or_else(|| SpmdError::not_an_array(module, inst))
}
