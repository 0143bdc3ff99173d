//! `batch-norm-training`, `-inference` and `-grad`: statistics over all dims but the features', computed in `f64`.

use hlo_ir::attrs::BatchNormAttrs;
use hlo_ir::{DType, Literal};

use super::number::{converted, finished, typed};
use crate::EvalError;

/// An array seen as `[outer, features, inner]`.
struct Features {
    n: usize,
    inner: usize,
    /// Elements of one feature.
    count: f64,
}

impl Features {
    fn new(operand: &Literal, attrs: &BatchNormAttrs, per_feature: &[&Literal]) -> Result<Features, EvalError> {
        let dims = operand.dims();
        let dim_idx = usize::try_from(attrs.feature_index).ok().filter(|&i| i < dims.len());
        let dim_idx = dim_idx.ok_or_else(|| {
            EvalError::invalid(format!("batch norm: expected a dim of {dims:?}, found {}", attrs.feature_index))
        })?;
        if let Some(odd) = per_feature.iter().find(|literal| literal.dims() != [dims[dim_idx]]) {
            return Err(EvalError::invalid(format!(
                "batch norm: expected one value for each of {} features, found dims {:?}",
                dims[dim_idx],
                odd.dims()
            )));
        }
        let n = dims[dim_idx] as usize;
        let inner = dims[dim_idx + 1..].iter().map(|&size| size as usize).product();
        Ok(Features { n, inner, count: operand.n_elems() as f64 / n as f64 })
    }

    fn of(&self, at: usize) -> usize {
        at / self.inner % self.n
    }

    /// For each feature, the sum of `term(element, feature)`.
    fn sums(&self, n_elems: usize, term: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let mut out = vec![0.0; self.n];
        for at in 0..n_elems {
            let feature = self.of(at);
            out[feature] += term(at, feature);
        }
        out
    }
}

fn wide(literal: &Literal) -> Result<Vec<f64>, EvalError> {
    if !literal.dtype().is_float() {
        return Err(EvalError::invalid(format!("batch norm: expected floats, found {}", literal.dtype())));
    }
    Ok(typed::<f64>(&converted(literal, DType::F64))?.to_vec())
}

fn inverse_deviations(variance: &[f64], attrs: &BatchNormAttrs) -> Vec<f64> {
    variance.iter().map(|v| 1.0 / (v + f64::from(attrs.epsilon.get())).sqrt()).collect()
}

/// `batch-norm-training`: the normalised, scaled and shifted operand, and mean and (biased) variance of each feature.
///
/// # Errors
/// Operands that do not fit each other.
pub(crate) fn batch_norm_training(
    operand: &Literal,
    scale: &Literal,
    offset: &Literal,
    attrs: &BatchNormAttrs,
) -> Result<[Literal; 3], EvalError> {
    let features = Features::new(operand, attrs, &[scale, offset])?;
    let x = wide(operand)?;
    let mean: Vec<f64> = features.sums(x.len(), |at, _| x[at]).iter().map(|sum| sum / features.count).collect();
    let squares = features.sums(x.len(), |at, f| (x[at] - mean[f]) * (x[at] - mean[f]));
    let variance: Vec<f64> = squares.iter().map(|sum| sum / features.count).collect();
    let out = normalized(&features, &x, (&wide(scale)?, &wide(offset)?), &mean, &inverse_deviations(&variance, attrs));
    Ok([
        finished(operand.dims(), out, operand.dtype())?,
        finished(scale.dims(), mean, scale.dtype())?,
        finished(scale.dims(), variance, scale.dtype())?,
    ])
}

/// `batch-norm-inference`: as in training, with mean and variance given.
///
/// # Errors
/// Operands that do not fit each other.
pub(crate) fn batch_norm_inference(
    operand: &Literal,
    scale: &Literal,
    offset: &Literal,
    mean: &Literal,
    variance: &Literal,
    attrs: &BatchNormAttrs,
) -> Result<Literal, EvalError> {
    let features = Features::new(operand, attrs, &[scale, offset, mean, variance])?;
    let inverse = inverse_deviations(&wide(variance)?, attrs);
    let out = normalized(&features, &wide(operand)?, (&wide(scale)?, &wide(offset)?), &wide(mean)?, &inverse);
    finished(operand.dims(), out, operand.dtype())
}

fn normalized(
    features: &Features,
    x: &[f64],
    (scale, offset): (&[f64], &[f64]),
    mean: &[f64],
    inverse: &[f64],
) -> Vec<f64> {
    let one = |(at, x): (usize, &f64)| {
        let f = features.of(at);
        (x - mean[f]) * inverse[f] * scale[f] + offset[f]
    };
    x.iter().enumerate().map(one).collect()
}

/// `batch-norm-grad`: the gradients of operand, scale and offset, from the gradient of the output.
///
/// With `x̂ = (x - mean) / √(variance + ε)` over the `n` elements of a feature: `d scale = Σ g·x̂`, `d offset = Σ g`,
/// `d x = scale / √(variance + ε) · (g - d offset / n - x̂ · d scale / n)`.
///
/// # Errors
/// Operands that do not fit each other.
pub(crate) fn batch_norm_grad(
    operand: &Literal,
    scale: &Literal,
    mean: &Literal,
    variance: &Literal,
    grad_output: &Literal,
    attrs: &BatchNormAttrs,
) -> Result<[Literal; 3], EvalError> {
    let features = Features::new(operand, attrs, &[scale, mean, variance])?;
    if grad_output.dims() != operand.dims() {
        return Err(EvalError::invalid(format!(
            "batch-norm-grad: expected a gradient of dims {:?}, found {:?}",
            operand.dims(),
            grad_output.dims()
        )));
    }
    let (x, g, mean_of, scale_of) = (wide(operand)?, wide(grad_output)?, wide(mean)?, wide(scale)?);
    let inverse = inverse_deviations(&wide(variance)?, attrs);
    let hat = |at: usize, f: usize| (x[at] - mean_of[f]) * inverse[f];
    let grad_scale = features.sums(x.len(), |at, f| g[at] * hat(at, f));
    let grad_offset = features.sums(x.len(), |at, _| g[at]);
    let one = |at: usize| {
        let f = features.of(at);
        let spread = (grad_offset[f] + hat(at, f) * grad_scale[f]) / features.count;
        scale_of[f] * inverse[f] * (g[at] - spread)
    };
    let grad_operand = (0..x.len()).map(one).collect();
    Ok([
        finished(operand.dims(), grad_operand, operand.dtype())?,
        finished(scale.dims(), grad_scale, scale.dtype())?,
        finished(scale.dims(), grad_offset, scale.dtype())?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs(feature_index: i64) -> BatchNormAttrs {
        BatchNormAttrs { epsilon: 0.001f32.into(), feature_index }
    }

    fn elems(dims: &[i64], seed: usize) -> Literal {
        let n = dims.iter().product::<i64>() as usize;
        Literal::from_elems(dims, (0..n).map(|i| ((i * 31 + seed * 17) % 23) as f64 / 7.0 - 1.0).collect()).unwrap()
    }

    fn get(literal: &Literal, at: usize) -> f64 {
        literal.elems::<f64>().unwrap()[at]
    }

    #[test]
    fn training_gives_scaled_unit_variance_about_the_offset() {
        let (x, scale, offset) = (elems(&[2, 3, 5], 1), elems(&[3], 2), elems(&[3], 3));
        let [out, mean, variance] = batch_norm_training(&x, &scale, &offset, &attrs(1)).unwrap();
        for f in 0..3 {
            let of = |literal: &Literal| -> Vec<f64> {
                (0..30).filter(|at| at / 5 % 3 == f).map(|at| get(literal, at)).collect()
            };
            let moments = |x: &[f64]| {
                let mean = x.iter().sum::<f64>() / 10.0;
                (mean, x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 10.0)
            };
            let ((m, v), (out_m, out_v)) = (moments(&of(&x)), moments(&of(&out)));
            assert!((m - get(&mean, f)).abs() < 1e-12 && (v - get(&variance, f)).abs() < 1e-12);
            let epsilon = f64::from(0.001f32);
            assert!((out_m - get(&offset, f)).abs() < 1e-12);
            assert!((out_v - get(&scale, f).powi(2) * v / (v + epsilon)).abs() < 1e-12);
        }
        let same = batch_norm_inference(&x, &scale, &offset, &mean, &variance, &attrs(1)).unwrap();
        assert_eq!(same, out);
    }

    #[test]
    fn gradients_are_slopes_of_the_training_step() {
        let (x, scale, offset, g) = (elems(&[4, 3], 1), elems(&[3], 2), elems(&[3], 3), elems(&[4, 3], 5));
        let loss = |x: &Literal, scale: &Literal, offset: &Literal| -> f64 {
            let [out, _, _] = batch_norm_training(x, scale, offset, &attrs(1)).unwrap();
            (0..12).map(|at| get(&out, at) * get(&g, at)).sum()
        };
        let [_, mean, variance] = batch_norm_training(&x, &scale, &offset, &attrs(1)).unwrap();
        let grads = batch_norm_grad(&x, &scale, &mean, &variance, &g, &attrs(1)).unwrap();
        let moved = |literal: &Literal, at: usize, by: f64| {
            let mut out = literal.clone();
            out.elems_mut::<f64>().unwrap()[at] += by;
            out
        };
        let h = 1e-5;
        for at in 0..12 {
            let slope =
                (loss(&moved(&x, at, h), &scale, &offset) - loss(&moved(&x, at, -h), &scale, &offset)) / (2.0 * h);
            assert!((slope - get(&grads[0], at)).abs() < 1e-6, "{at}: {slope}");
        }
        for f in 0..3 {
            let slope =
                (loss(&x, &moved(&scale, f, h), &offset) - loss(&x, &moved(&scale, f, -h), &offset)) / (2.0 * h);
            assert!((slope - get(&grads[1], f)).abs() < 1e-6);
            let slope =
                (loss(&x, &scale, &moved(&offset, f, h)) - loss(&x, &scale, &moved(&offset, f, -h))) / (2.0 * h);
            assert!((slope - get(&grads[2], f)).abs() < 1e-6);
        }
    }

    #[test]
    fn empty_and_misfitting_operands() {
        let none = Literal::zeros(DType::F32, &[0, 3]).unwrap();
        let ones = Literal::zeros(DType::F32, &[3]).unwrap();
        let [out, mean, _] = batch_norm_training(&none, &ones, &ones, &attrs(1)).unwrap();
        assert_eq!(out, none);
        assert!(mean.elems::<f32>().unwrap()[0].is_nan());
        assert!(batch_norm_training(&none, &ones, &ones, &attrs(0)).is_err());
        assert!(batch_norm_training(&none, &ones, &ones, &attrs(2)).is_err());
        assert!(batch_norm_grad(&none, &ones, &ones, &ones, &ones, &attrs(1)).is_err());
        let empty = Literal::zeros(DType::F32, &[0]).unwrap();
        assert!(batch_norm_training(&none, &empty, &empty, &attrs(0)).is_ok());
    }
}
