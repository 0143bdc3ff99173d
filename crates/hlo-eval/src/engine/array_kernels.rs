//! Contractions, windows, indexing, sorting, linear algebra and computations of scalars: from operands to kernel calls.

use super::pure::{Args, Context, all_arrays, arrays, one};
use crate::error::EvalError;
use crate::kernels::{batch_norm, conv, dot, fft, indexing, linalg, ragged, reduce, sorting, windows};
use crate::value::Value;
use hlo_ir::Literal;
use hlo_ir::attrs::Attrs;
use hlo_ir::op::EvalRoutine;
use std::sync::Arc;

fn refs(args: &[Arc<Literal>]) -> Vec<&Literal> {
    args.iter().map(Arc::as_ref).collect()
}

impl Context<'_> {
    /// The value of an operation that works on whole arrays.
    pub(super) fn array_kernel(&self, kernel: EvalRoutine, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        let literal = match (kernel, attrs) {
            (EvalRoutine::Dot, Attrs::Dot(attrs)) => {
                let [x, y] = arrays(args)?;
                dot::dot(&x, &y, attrs, self.result()?)?
            }
            (EvalRoutine::RaggedDot, Attrs::Dot(attrs)) => {
                let [x, y, sizes] = arrays(args)?;
                ragged::ragged_dot(&x, &y, &sizes, attrs, self.result()?)?
            }
            (EvalRoutine::Convolution, Attrs::Conv(attrs)) => {
                let [x, y] = arrays(args)?;
                conv::convolution(&x, &y, attrs, self.result()?)?
            }
            (EvalRoutine::Gather, Attrs::Gather(attrs)) => {
                let [x, indices] = arrays(args)?;
                indexing::gather(&x, &indices, attrs, self.result()?)?
            }
            (EvalRoutine::SelectAndScatter, Attrs::SelectAndScatter(attrs)) => {
                let [x, source, init] = arrays(args)?;
                let mut select = self.computation(attrs.select)?;
                let mut scatter = self.computation(attrs.scatter)?;
                windows::select_and_scatter(&x, &source, &init, &attrs.window, &mut select, &mut scatter)?
            }
            (EvalRoutine::Map, Attrs::Reduce(attrs)) => {
                let mut computation = self.computation(attrs.to_apply)?;
                reduce::map(&all_arrays(args)?, self.result()?.dtype, &mut computation)?
            }
            (EvalRoutine::Cholesky, Attrs::Cholesky(attrs)) => linalg::cholesky(one(args)?.as_ref(), attrs)?,
            (EvalRoutine::TriangularSolve, Attrs::TriangularSolve(attrs)) => {
                let [a, b] = arrays(args)?;
                linalg::triangular_solve(&a, &b, attrs)?
            }
            (EvalRoutine::Fft, Attrs::Fft(attrs)) => fft::fft(one(args)?.as_ref(), attrs)?,
            (EvalRoutine::BatchNormInference, Attrs::BatchNorm(attrs)) => {
                let [x, scale, offset, mean, variance] = arrays(args)?;
                batch_norm::batch_norm_inference(&x, &scale, &offset, &mean, &variance, attrs)?
            }
            _ => return self.multi_result_kernel(kernel, attrs, args),
        };
        Ok(literal.into())
    }

    /// The value of an operation that can have several results.
    fn multi_result_kernel(&self, kernel: EvalRoutine, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        let args = all_arrays(args)?;
        let results = match (kernel, attrs) {
            (EvalRoutine::Reduce, Attrs::Reduce(attrs)) => {
                let (operands, inits) = args.split_at(args.len() / 2);
                reduce::reduce(operands, inits, &attrs.dimensions, &mut self.computation(attrs.to_apply)?)?
            }
            (EvalRoutine::ReduceWindow, Attrs::ReduceWindow(attrs)) => {
                let args = refs(&args);
                let (operands, inits) = args.split_at(args.len() / 2);
                windows::reduce_window(operands, inits, &attrs.window, &mut self.computation(attrs.to_apply)?)?
            }
            (EvalRoutine::Scatter, Attrs::Scatter(attrs)) => {
                let args = refs(&args);
                let (operands, rest) = args.split_at(args.len() / 2);
                let (indices, updates) = rest.split_first().ok_or_else(|| self.no_attributes())?;
                indexing::scatter(operands, indices, updates, attrs, &mut self.computation(attrs.to_apply)?)?
            }
            (EvalRoutine::Sort, Attrs::Sort(attrs)) => {
                let dim = attrs.dimensions.first().copied().unwrap_or(0);
                sorting::sort(&refs(&args), dim, attrs.is_stable, &mut self.computation(attrs.to_apply)?)?
            }
            (EvalRoutine::TopK, Attrs::TopK(attrs)) => match args.as_slice() {
                [x] => <[Literal; 2]>::from(sorting::topk(x, attrs)?).into(),
                _ => return Err(self.no_attributes()),
            },
            (EvalRoutine::BatchNormTraining, Attrs::BatchNorm(attrs)) => match args.as_slice() {
                [x, scale, offset] => batch_norm::batch_norm_training(x, scale, offset, attrs)?.into(),
                _ => return Err(self.no_attributes()),
            },
            (EvalRoutine::BatchNormGrad, Attrs::BatchNorm(attrs)) => match args.as_slice() {
                [x, scale, mean, variance, grad] => {
                    batch_norm::batch_norm_grad(x, scale, mean, variance, grad, attrs)?.into()
                }
                _ => return Err(self.no_attributes()),
            },
            _ => {
                let op = self.module.inst(self.inst).opcode;
                return Err(EvalError::unsupported(format!("{op} has no evaluator")));
            }
        };
        self.one_or_tuple(results)
    }
}
