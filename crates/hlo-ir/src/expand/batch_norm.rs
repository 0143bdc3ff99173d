//! Batch norms as reductions and elementwise operations.
//!
//! S. Ioffe and C. Szegedy 2015, *Batch Normalization*, §3. With `x̂ = (x - mean) / √(variance + ε)` over the `n` elements of a feature,
//! `y = scale · x̂ + offset`; the gradients are `d scale = Σ g·x̂`, `d offset = Σ g` and
//! `d x = scale / √(variance + ε) · (g - (d offset + x̂ · d scale) / n)`. Types of fewer than 32 bits are computed in f32.

use super::writer::Writer;
use crate::attrs::BatchNormAttrs;
use crate::{DType, Dims, InstId, Opcode, Scalar, Shape};

/// Writes what a batch norm gives, an array or a tuple; none if its operands are no arrays of real numbers.
pub fn expand_batch_norm(w: &mut Writer<'_>, norm: InstId) -> Option<InstId> {
    let instruction = w.module.inst(norm).clone();
    let attrs = BatchNormAttrs::of(&instruction.attrs)?;
    let (x, others) = instruction.operands.split_first()?;
    let dtype = w.dtype(*x);
    if !dtype.is_float() || !matches!(dtype.bits(), 16 | 32 | 64) {
        return None;
    }
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let feature = usize::try_from(attrs.feature_index).ok()?;
    let mut norm_of = Norm { w, wide, feature, dims: Dims::new(), epsilon: f64::from(attrs.epsilon.get()) };
    norm_of.dims = norm_of.w.dims(*x);
    let shape = norm_of.w.module.shape(norm).clone();
    let x = norm_of.w.convert(*x, wide);
    let others: Vec<InstId> = others.iter().map(|&other| norm_of.w.convert(other, wide)).collect();
    let opcode = instruction.opcode;
    let results = if let (Opcode::BatchNormTraining, &[scale, offset]) = (opcode, others.as_slice()) {
        let mean = norm_of.mean(x);
        let centered = norm_of.centered(x, mean);
        let squares = norm_of.w.each(Opcode::Multiply, &[centered, centered]);
        let variance = norm_of.mean(squares);
        let hat = norm_of.scaled(centered, variance);
        vec![norm_of.output(hat, scale, offset), mean, variance]
    } else if let (Opcode::BatchNormInference, &[scale, offset, mean, variance]) = (opcode, others.as_slice()) {
        let centered = norm_of.centered(x, mean);
        let hat = norm_of.scaled(centered, variance);
        vec![norm_of.output(hat, scale, offset)]
    } else if let (Opcode::BatchNormGrad, &[scale, mean, variance, gradient]) = (opcode, others.as_slice()) {
        let centered = norm_of.centered(x, mean);
        let hat = norm_of.scaled(centered, variance);
        norm_of.gradients(hat, (scale, variance), gradient)
    } else {
        return None;
    };
    let shapes: Vec<Shape> = shape.as_tuple().map_or_else(|| vec![shape.clone()], <[Shape]>::to_vec);
    let mut arrays = Vec::new();
    for (&result, shape) in results.iter().zip(&shapes) {
        let result = w.convert(result, shape.as_array()?.dtype);
        arrays.push(w.laid_out_as(result, shape));
    }
    match (shape.as_tuple(), arrays.as_slice()) {
        (None, &[only]) => Some(only),
        (Some(_), all) => Some(w.tuple(all)),
        (None, _) => None,
    }
}

struct Norm<'w, 'm> {
    w: &'w mut Writer<'m>,
    /// The type of the arithmetic.
    wide: DType,
    feature: usize,
    dims: Dims,
    epsilon: f64,
}

impl Norm<'_, '_> {
    fn of_feature(&mut self, array: InstId) -> InstId {
        let (dims, feature) = (self.dims.clone(), self.feature);
        self.w.broadcast(array, &dims, &[feature])
    }

    fn sum(&mut self, array: InstId) -> InstId {
        let others: Vec<usize> = (0..self.dims.len()).filter(|&dim| dim != self.feature).collect();
        self.w.sum(array, &others)
    }

    /// Elements of a feature, as an array like `like`.
    fn count(&mut self, like: InstId) -> InstId {
        let n: i64 = (0..self.dims.len()).filter(|&dim| dim != self.feature).map(|dim| self.dims[dim]).product();
        let dims = self.w.dims(like);
        self.w.splat(self.wide, &dims, Scalar::Float(n as f64))
    }

    fn mean(&mut self, array: InstId) -> InstId {
        let sum = self.sum(array);
        let count = self.count(sum);
        self.w.each(Opcode::Divide, &[sum, count])
    }

    fn centered(&mut self, x: InstId, mean: InstId) -> InstId {
        let means = self.of_feature(mean);
        self.w.each(Opcode::Subtract, &[x, means])
    }

    /// `1 / √(variance + ε)`, of each feature.
    fn inverse_deviation(&mut self, variance: InstId) -> InstId {
        let dims = self.w.dims(variance);
        let epsilon = self.w.splat(self.wide, &dims, Scalar::Float(self.epsilon));
        let sum = self.w.each(Opcode::Add, &[variance, epsilon]);
        self.w.each(Opcode::Rsqrt, &[sum])
    }

    fn scaled(&mut self, centered: InstId, variance: InstId) -> InstId {
        let inverse = self.inverse_deviation(variance);
        let inverses = self.of_feature(inverse);
        self.w.each(Opcode::Multiply, &[centered, inverses])
    }

    fn output(&mut self, hat: InstId, scale: InstId, offset: InstId) -> InstId {
        let (scales, offsets) = (self.of_feature(scale), self.of_feature(offset));
        let scaled = self.w.each(Opcode::Multiply, &[hat, scales]);
        self.w.each(Opcode::Add, &[scaled, offsets])
    }

    /// The gradients of operand, scale and offset.
    fn gradients(&mut self, hat: InstId, (scale, variance): (InstId, InstId), gradient: InstId) -> Vec<InstId> {
        let weighted = self.w.each(Opcode::Multiply, &[gradient, hat]);
        let (of_scale, of_offset) = (self.sum(weighted), self.sum(gradient));
        let (scales, offsets) = (self.of_feature(of_scale), self.of_feature(of_offset));
        let along = self.w.each(Opcode::Multiply, &[hat, scales]);
        let both = self.w.each(Opcode::Add, &[offsets, along]);
        let count = self.count(both);
        let spread = self.w.each(Opcode::Divide, &[both, count]);
        let rest = self.w.each(Opcode::Subtract, &[gradient, spread]);
        let inverse = self.inverse_deviation(variance);
        let factor = self.w.each(Opcode::Multiply, &[scale, inverse]);
        let factors = self.of_feature(factor);
        vec![self.w.each(Opcode::Multiply, &[factors, rest]), of_scale, of_offset]
    }
}
