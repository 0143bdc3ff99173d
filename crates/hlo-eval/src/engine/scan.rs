//! `scan`: a loop over the slices along one dim that carries values from one step to the next.
//!
//! Operands are the scanned arrays, then the initial carries. Each step calls the body with the slices and the carries; it
//! returns the step's outputs and the new carries. The result holds the stacked outputs and the last carries.

use super::machine::Machine;
use super::pure::Operands;
use crate::error::EvalError;
use crate::kernels::shape_ops::{concatenate, dim_index, reshape, slice};
use crate::value::{Spread, Value};
use hlo_ir::attrs::{ScanAttrs, SliceDim};
use hlo_ir::{ArrayShape, InstId, Literal, Shape};
use std::sync::Arc;

/// Slice `t` of `x` along `dim`, without that dim.
fn slice_at(x: &Literal, dim: usize, t: i64) -> Result<Value, EvalError> {
    let mut ranges: Vec<SliceDim> = x.dims().iter().map(|&d| SliceDim { start: 0, limit: d, stride: 1 }).collect();
    ranges[dim] = SliceDim { start: t, limit: t + 1, stride: 1 };
    let mut shape = ArrayShape::new(x.dtype(), x.dims().iter().copied());
    shape.dims[dim] = 1;
    let thin = slice(x, &ranges, &shape)?;
    shape.dims.remove(dim);
    Ok(Value::Array(reshape(Arc::new(thin), &shape)?))
}

/// The arrays one after the other along a new dim.
fn stacked(parts: &[Value], dim: usize) -> Result<Value, EvalError> {
    let widened = |part: &Value| -> Result<Arc<Literal>, EvalError> {
        let part = part.as_array()?;
        let mut shape = ArrayShape::new(part.dtype(), part.dims().iter().copied());
        if dim > shape.dims.len() {
            return Err(EvalError::invalid(format!("expected an output with at least {dim} dims")));
        }
        shape.dims.insert(dim, 1);
        reshape(part.clone(), &shape)
    };
    let parts: Result<Vec<Arc<Literal>>, EvalError> = parts.iter().map(widened).collect();
    Ok(concatenate(&parts?, dim as i64)?.into())
}

impl Machine<'_> {
    pub(super) fn eval_scan(
        &mut self,
        inst: InstId,
        attrs: &ScanAttrs,
        mut operands: Operands,
        active: &[u32],
    ) -> Result<Spread, EvalError> {
        let body = attrs.to_apply.ok_or_else(|| EvalError::invalid("a scan without a body"))?;
        let n_carries = usize::try_from(attrs.num_carries.unwrap_or(0)).unwrap_or(usize::MAX);
        let n_inputs = operands.len().checked_sub(n_carries).filter(|&n| n > 0);
        let n_inputs = n_inputs.ok_or_else(|| EvalError::unsupported("a scan without a scanned operand"))?;
        let mut carries: Vec<Spread> = operands.drain(n_inputs..).collect();
        let first = operands[0].get(0)?.as_array()?.dims().to_vec();
        let dim = dim_index(attrs.dimensions.first().copied().unwrap_or(0), first.len())?;
        let fits =
            |o: &Spread| o.get(0).and_then(Value::as_array).is_ok_and(|x| x.dims().get(dim) == Some(&first[dim]));
        if !operands.iter().all(fits) || first[dim] == 0 {
            return Err(EvalError::unsupported("a scan over operands of different or no length"));
        }
        let mut steps: Vec<Vec<Spread>> = Vec::new();
        for k in 0..first[dim] {
            let t = if attrs.is_reverse { first[dim] - 1 - k } else { k };
            let slices: Result<Vec<Spread>, EvalError> =
                operands.iter().map(|o| o.map(|x| slice_at(x.as_array()?, dim, t))).collect();
            let mut args = slices?;
            args.append(&mut carries);
            let result = self.run(body, args, active)?;
            let mut parts = elements(&result)?;
            let n_outputs = parts.len().checked_sub(n_carries);
            carries = parts.split_off(n_outputs.ok_or_else(|| EvalError::invalid("fewer results than carries"))?);
            steps.push(parts);
        }
        if attrs.is_reverse {
            steps.reverse();
        }
        let n_outputs = steps.first().map_or(0, Vec::len);
        let is_tuple = matches!(self.module.shape(inst), Shape::Tuple(_));
        let mut values = Vec::with_capacity(active.len());
        for i in 0..active.len() {
            let mut results = Vec::new();
            for output in 0..n_outputs {
                let parts: Result<Vec<Value>, EvalError> =
                    steps.iter().map(|step| step[output].get(i).cloned()).collect();
                results.push(stacked(&parts?, dim)?);
            }
            for carry in &carries {
                results.push(carry.get(i)?.clone());
            }
            values.push(match results.len() {
                1 if !is_tuple => results.remove(0),
                _ => Value::tuple(results),
            });
        }
        Ok(Spread::of(values))
    }
}

/// The elements of a tuple on all devices; a single value is its only element.
fn elements(value: &Spread) -> Result<Vec<Spread>, EvalError> {
    let n = match value.get(0)? {
        Value::Tuple(elements) => elements.len(),
        Value::Array(_) | Value::Token => return Ok(vec![value.clone()]),
    };
    (0..n).map(|k| value.map(|v| v.element(k as i64).cloned())).collect()
}
