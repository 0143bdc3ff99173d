//! Contractions, windows, indexing, sorting, linear algebra and computations of scalars: from operands to kernel calls.

use super::pure::{Args, Context, all_arrays, arrays, one};
use crate::error::EvalError;
use crate::kernels::{batch_norm, conv, dot, fft, indexing, linalg, ragged, reduce, sorting, windows};
use crate::value::Value;
use hlo_ir::Literal;
use hlo_ir::attrs::{
    Attrs, BatchNormAttrs, CholeskyAttrs, ConvAttrs, DotAttrs, FftAttrs, GatherAttrs, ReduceAttrs, ReduceWindowAttrs,
    ScatterAttrs, SelectAndScatterAttrs, SortAttrs, TopKAttrs, TriangularSolveAttrs,
};
use hlo_ir::op::{OneArrayRoutine, SeveralArraysRoutine};
use std::sync::Arc;

fn refs(args: &[Arc<Literal>]) -> Vec<&Literal> {
    args.iter().map(Arc::as_ref).collect()
}

impl Context<'_> {
    /// The value of an operation that makes one array of whole arrays.
    pub(super) fn one_array(&self, routine: OneArrayRoutine, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        let literal = match routine {
            OneArrayRoutine::Dot => {
                let [x, y] = arrays(args)?;
                dot::dot(&x, &y, self.given(DotAttrs::of(attrs))?, self.result()?)?
            }
            OneArrayRoutine::RaggedDot => {
                let [x, y, sizes] = arrays(args)?;
                ragged::ragged_dot(&x, &y, &sizes, self.given(DotAttrs::of(attrs))?, self.result()?)?
            }
            OneArrayRoutine::Convolution => {
                let [x, y] = arrays(args)?;
                conv::convolution(&x, &y, self.given(ConvAttrs::of(attrs))?, self.result()?)?
            }
            OneArrayRoutine::Gather => {
                let [x, indices] = arrays(args)?;
                indexing::gather(&x, &indices, self.given(GatherAttrs::of(attrs))?, self.result()?)?
            }
            OneArrayRoutine::SelectAndScatter => {
                let attrs = self.given(SelectAndScatterAttrs::of(attrs))?;
                let [x, source, init] = arrays(args)?;
                let mut select = self.computation(attrs.select)?;
                let mut scatter = self.computation(attrs.scatter)?;
                windows::select_and_scatter(&x, &source, &init, &attrs.window, &mut select, &mut scatter)?
            }
            OneArrayRoutine::Map => {
                let mut computation = self.computation(self.given(ReduceAttrs::of(attrs))?.to_apply)?;
                reduce::map(&all_arrays(args)?, self.result()?.dtype, &mut computation)?
            }
            OneArrayRoutine::Cholesky => linalg::cholesky(one(args)?.as_ref(), self.given(CholeskyAttrs::of(attrs))?)?,
            OneArrayRoutine::TriangularSolve => {
                let [a, b] = arrays(args)?;
                linalg::triangular_solve(&a, &b, self.given(TriangularSolveAttrs::of(attrs))?)?
            }
            OneArrayRoutine::Fft => fft::fft(one(args)?.as_ref(), self.given(FftAttrs::of(attrs))?)?,
            OneArrayRoutine::BatchNormInference => {
                let [x, scale, offset, mean, variance] = arrays(args)?;
                let attrs = self.given(BatchNormAttrs::of(attrs))?;
                batch_norm::batch_norm_inference(&x, &scale, &offset, &mean, &variance, attrs)?
            }
        };
        Ok(literal.into())
    }

    /// The value of an operation that can have several results.
    pub(super) fn several_arrays(
        &self,
        routine: SeveralArraysRoutine,
        attrs: &Attrs,
        args: Args,
    ) -> Result<Value, EvalError> {
        let args = all_arrays(args)?;
        let results = match routine {
            SeveralArraysRoutine::Reduce => {
                let attrs = self.given(ReduceAttrs::of(attrs))?;
                let (operands, inits) = args.split_at(args.len() / 2);
                reduce::reduce(operands, inits, &attrs.dimensions, &mut self.computation(attrs.to_apply)?)?
            }
            SeveralArraysRoutine::ReduceWindow => {
                let attrs = self.given(ReduceWindowAttrs::of(attrs))?;
                let args = refs(&args);
                let (operands, inits) = args.split_at(args.len() / 2);
                windows::reduce_window(operands, inits, &attrs.window, &mut self.computation(attrs.to_apply)?)?
            }
            SeveralArraysRoutine::Scatter => {
                let attrs = self.given(ScatterAttrs::of(attrs))?;
                let args = refs(&args);
                let (operands, rest) = args.split_at(args.len() / 2);
                let (indices, updates) = rest.split_first().ok_or_else(|| self.no_attributes())?;
                indexing::scatter(operands, indices, updates, attrs, &mut self.computation(attrs.to_apply)?)?
            }
            SeveralArraysRoutine::Sort => {
                let attrs = self.given(SortAttrs::of(attrs))?;
                let dim = attrs.dimensions.first().copied().unwrap_or(0);
                sorting::sort(&refs(&args), dim, attrs.is_stable, &mut self.computation(attrs.to_apply)?)?
            }
            SeveralArraysRoutine::TopK => match args.as_slice() {
                [x] => <[Literal; 2]>::from(sorting::topk(x, self.given(TopKAttrs::of(attrs))?)?).into(),
                _ => return Err(self.no_attributes()),
            },
            SeveralArraysRoutine::BatchNormTraining => match args.as_slice() {
                [x, scale, offset] => {
                    batch_norm::batch_norm_training(x, scale, offset, self.given(BatchNormAttrs::of(attrs))?)?.into()
                }
                _ => return Err(self.no_attributes()),
            },
            SeveralArraysRoutine::BatchNormGrad => match args.as_slice() {
                [x, scale, mean, variance, grad] => {
                    let attrs = self.given(BatchNormAttrs::of(attrs))?;
                    batch_norm::batch_norm_grad(x, scale, mean, variance, grad, attrs)?.into()
                }
                _ => return Err(self.no_attributes()),
            },
        };
        self.one_or_tuple(results)
    }
}
