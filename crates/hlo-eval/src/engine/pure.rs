//! Operations without communication or control flow: each distinct set of operands is computed once.

use super::EvalOptions;
use super::program::ScalarComputation;
use crate::error::EvalError;
use crate::kernels::{choice, elementwise, shape_ops};
use crate::value::{Spread, Value};
use hlo_ir::attrs::{
    Attrs, CompareAttrs, DimsAttrs, IotaAttrs, PadAttrs, ReducePrecisionAttrs, RngBitsAttrs, SliceAttrs,
    TupleIndexAttrs,
};
use hlo_ir::float::rng::{Algorithm, rng_bit_generator};
use hlo_ir::literal::Buffer;
use hlo_ir::op::{ElementwiseRoutine, EvalRoutine, EvalRule, ShapingRoutine, StructureRoutine};
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Shape};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

/// The operands of an instruction on all active devices.
pub(super) type Operands = SmallVec<[Spread; 2]>;

/// The operands of an instruction on one device.
pub(super) type Args = SmallVec<[Value; 2]>;

/// Elements below which starting threads costs more than it saves.
const MIN_PARALLEL_ELEMS: usize = 1 << 15;

/// The value of `inst` on every active device.
pub(super) fn eval_pure(
    module: &Module,
    inst: InstId,
    operands: Operands,
    n_active: usize,
    options: &EvalOptions,
) -> Result<Spread, EvalError> {
    let cx = Context { module, inst, options };
    if operands.iter().all(|o| matches!(o, Spread::Same(_))) {
        let same = operands.into_iter().filter_map(|o| match o {
            Spread::Same(value) => Some(value),
            Spread::Each(_) => None,
        });
        return Ok(Spread::Same(cx.compute(same.collect())?));
    }
    // Operands are moved, not cloned, so that a kernel can work in place.
    let mut columns: Vec<std::vec::IntoIter<Value>> = operands
        .into_iter()
        .map(|o| match o {
            Spread::Same(value) => vec![value; n_active].into_iter(),
            Spread::Each(values) => values.into_iter(),
        })
        .collect();
    let mut distinct: Vec<Args> = Vec::new();
    let mut with_hash: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut number = Vec::with_capacity(n_active);
    for _ in 0..n_active {
        let args: Args = columns.iter_mut().filter_map(Iterator::next).collect();
        let is_known = |known: &Args| known.iter().zip(&args).all(|(a, b)| a.is_same(b));
        let mut hasher = DefaultHasher::new();
        args.iter().for_each(|value| value.hash_storage(&mut hasher));
        let alike = with_hash.entry(hasher.finish()).or_default();
        match alike.iter().copied().find(|&k| distinct.get(k).is_some_and(is_known)) {
            Some(k) => number.push(k),
            None => {
                alike.push(distinct.len());
                number.push(distinct.len());
                distinct.push(args);
            }
        }
    }
    drop(columns);
    let results = cx.compute_all(distinct)?;
    Ok(Spread::of(number.into_iter().filter_map(|k| results.get(k).cloned()).collect()))
}

/// What a kernel may look at.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) module: &'a Module,
    pub(super) inst: InstId,
    options: &'a EvalOptions,
}

fn n_elems(value: &Value) -> usize {
    let mut n = 0;
    value.for_each_array(&mut |array| n += array.n_elems());
    n
}

impl<'a> Context<'a> {
    /// The values for several sets of operands, on several threads where it pays.
    fn compute_all(&self, distinct: Vec<Args>) -> Result<Vec<Value>, EvalError> {
        let is_cheap = matches!(
            self.module.inst(self.inst).opcode.row().eval,
            EvalRule::Routine(EvalRoutine::Structure(
                StructureRoutine::Tuple | StructureRoutine::GetTupleElement | StructureRoutine::Identity
            ))
        );
        let n_work: usize = distinct.iter().flatten().map(n_elems).sum();
        let n_threads = self.options.n_threads.min(distinct.len());
        if n_threads < 2 || is_cheap || n_work < MIN_PARALLEL_ELEMS {
            return distinct.into_iter().map(|args| self.compute(args)).collect();
        }
        let per_thread = distinct.len().div_ceil(n_threads);
        let mut distinct = distinct.into_iter();
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            loop {
                let chunk: Vec<Args> = distinct.by_ref().take(per_thread).collect();
                if chunk.is_empty() {
                    break;
                }
                let work = move || -> Result<Vec<Value>, EvalError> {
                    chunk.into_iter().map(|args| self.compute(args)).collect()
                };
                workers.push(scope.spawn(work));
            }
            let mut results = Vec::new();
            for worker in workers {
                results.extend(worker.join().map_err(|_| EvalError::invalid("a worker thread panicked"))??);
            }
            Ok(results)
        })
    }

    pub(super) fn result(&self) -> Result<&'a ArrayShape, EvalError> {
        let shape = self.module.shape(self.inst).as_array();
        shape.ok_or_else(|| EvalError::invalid("expected an array as the result's shape"))
    }

    fn operand_shape(&self, i: usize) -> Result<&'a ArrayShape, EvalError> {
        let operand = self.module.inst(self.inst).operands.get(i);
        let shape = operand.and_then(|&o| self.module.shape(o).as_array());
        shape.ok_or_else(|| EvalError::invalid("expected an array operand"))
    }

    pub(super) fn computation(&self, comp: Option<CompId>) -> Result<ScalarComputation<'a>, EvalError> {
        let comp = comp.ok_or_else(|| EvalError::invalid("expected a called computation"))?;
        Ok(ScalarComputation::new(self.module, comp, self.options))
    }

    /// The value for one set of operands.
    fn compute(&self, args: Args) -> Result<Value, EvalError> {
        let instruction = self.module.inst(self.inst);
        let op = instruction.opcode;
        let routine = match &op.row().eval {
            EvalRule::Unary(fns) => {
                let [x] = arrays(args)?;
                return Ok(elementwise::unary(op, fns, x)?.into());
            }
            EvalRule::Binary(fns) => {
                let [x, y] = arrays(args)?;
                return Ok(elementwise::binary(op, fns, x, y)?.into());
            }
            EvalRule::NotEvaluated(why) => return Err(EvalError::unsupported(format!("{op}: {why}"))),
            EvalRule::Routine(routine) => *routine,
        };
        let attrs = &instruction.attrs;
        match routine {
            EvalRoutine::Elementwise(routine) => self.elementwise(routine, attrs, args),
            EvalRoutine::Shaping(routine) => self.shaping(routine, attrs, args),
            EvalRoutine::OneArray(routine) => self.one_array(routine, attrs, args),
            EvalRoutine::SeveralArrays(routine) => self.several_arrays(routine, attrs, args),
            EvalRoutine::Structure(routine) => self.structure(routine, attrs, args),
            EvalRoutine::Parameter | EvalRoutine::Constant | EvalRoutine::Lockstep(_) => {
                Err(EvalError::unsupported(format!("{op} has no evaluator")))
            }
        }
    }

    /// Attributes of the format that the operation has.
    pub(super) fn given<'b, T>(&self, attrs: Option<&'b T>) -> Result<&'b T, EvalError> {
        attrs.ok_or_else(|| self.no_attributes())
    }

    fn given_dims<'b>(&self, attrs: &'b Attrs) -> Result<&'b [i64], EvalError> {
        Ok(&self.given(DimsAttrs::of(attrs))?.dimensions)
    }

    fn structure(&self, routine: StructureRoutine, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        match routine {
            StructureRoutine::Tuple => Ok(Value::tuple(args)),
            StructureRoutine::GetTupleElement => {
                Ok(only(args)?.element(self.given(TupleIndexAttrs::of(attrs))?.index)?.clone())
            }
            StructureRoutine::Identity => {
                args.into_iter().next().ok_or_else(|| EvalError::invalid("expected an operand"))
            }
            StructureRoutine::AfterAll => Ok(Value::Token),
            StructureRoutine::CopyStart => self.copy_start(only(args)?),
            StructureRoutine::CopyDone => Ok(only(args)?.element(0)?.clone()),
            StructureRoutine::RngBitGenerator => self.random_bits(attrs, args),
        }
    }

    pub(super) fn no_attributes(&self) -> EvalError {
        let op = self.module.inst(self.inst).opcode;
        EvalError::invalid(format!("{op} without its attributes"))
    }

    fn elementwise(&self, routine: ElementwiseRoutine, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        let literal = match routine {
            ElementwiseRoutine::Compare => {
                let [x, y] = arrays(args)?;
                choice::compare(&x, &y, self.given(CompareAttrs::of(attrs))?)?
            }
            ElementwiseRoutine::Select => {
                let [pred, x, y] = arrays(args)?;
                return Ok(Value::Array(choice::select(&pred, x, y)?));
            }
            ElementwiseRoutine::Clamp => {
                let [low, x, high] = arrays(args)?;
                choice::clamp(low, x, high)?
            }
            ElementwiseRoutine::Complex => {
                let [re, im] = arrays(args)?;
                choice::complex(&re, &im)?
            }
            ElementwiseRoutine::Abs => choice::abs(one(args)?.as_ref())?,
            ElementwiseRoutine::IsFinite => choice::is_finite(one(args)?.as_ref())?,
            ElementwiseRoutine::Real => choice::complex_part(one(args)?.as_ref(), false)?,
            ElementwiseRoutine::Imag => choice::complex_part(one(args)?.as_ref(), true)?,
            ElementwiseRoutine::Convert => {
                let (x, dtype) = (one(args)?, self.result()?.dtype);
                if x.dtype() == dtype {
                    return Ok(Value::Array(x));
                }
                x.convert(dtype)
            }
            ElementwiseRoutine::BitcastConvert => {
                let result = self.result()?;
                one(args)?.bitcast_convert(result.dtype, &result.dims)?
            }
            ElementwiseRoutine::StochasticConvert => {
                let [x, random] = arrays(args)?;
                choice::stochastic_convert(&x, &random, self.result()?.dtype)?
            }
            ElementwiseRoutine::ReducePrecision => {
                let attrs = self.given(ReducePrecisionAttrs::of(attrs))?;
                choice::reduce_precision(one(args)?.as_ref(), attrs.exponent_bits, attrs.mantissa_bits)?
            }
        };
        Ok(literal.into())
    }

    fn shaping(&self, routine: ShapingRoutine, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        let result = self.result()?;
        let literal = match routine {
            ShapingRoutine::Broadcast => shape_ops::broadcast(one(args)?.as_ref(), self.given_dims(attrs)?, result)?,
            ShapingRoutine::Reshape => {
                let operand = self.operand_shape(0)?;
                let x = one(args)?;
                // A reshape keeps the logical order of elements, a bitcast their order in memory.
                let is_bitcast = self.module.inst(self.inst).opcode == hlo_ir::Opcode::Bitcast;
                let y =
                    if is_bitcast { shape_ops::bitcast(x, operand, result)? } else { shape_ops::reshape(x, result)? };
                return Ok(Value::Array(y));
            }
            ShapingRoutine::Transpose => shape_ops::transpose(one(args)?.as_ref(), self.given_dims(attrs)?)?,
            ShapingRoutine::Reverse => shape_ops::reverse(one(args)?.as_ref(), self.given_dims(attrs)?)?,
            ShapingRoutine::Slice => {
                shape_ops::slice(one(args)?.as_ref(), &self.given(SliceAttrs::of(attrs))?.slice, result)?
            }
            ShapingRoutine::DynamicSlice => {
                let args = all_arrays(args)?;
                let (x, starts) = args.split_first().ok_or_else(|| self.no_attributes())?;
                shape_ops::dynamic_slice(x, starts, result)?
            }
            ShapingRoutine::DynamicUpdateSlice => {
                let mut args = all_arrays(args)?.into_iter();
                let (Some(x), Some(update)) = (args.next(), args.next()) else { return Err(self.no_attributes()) };
                shape_ops::dynamic_update_slice(x, &update, &args.collect::<Vec<_>>())?
            }
            ShapingRoutine::Pad => {
                let [x, value] = arrays(args)?;
                shape_ops::pad(&x, &value, &self.given(PadAttrs::of(attrs))?.padding, result)?
            }
            ShapingRoutine::Concatenate => {
                let dim = self.given_dims(attrs)?.first().copied().unwrap_or(0);
                shape_ops::concatenate(&all_arrays(args)?, dim)?
            }
            ShapingRoutine::Iota => shape_ops::iota(self.given(IotaAttrs::of(attrs))?.iota_dimension, result)?,
            ShapingRoutine::GetDimensionSize => {
                let x = one(args)?;
                let dim = shape_ops::dim_index(self.given_dims(attrs)?.first().copied().unwrap_or(0), x.dims().len())?;
                Literal::from_elem(i32::try_from(x.dims()[dim]).unwrap_or(i32::MAX))
            }
        };
        Ok(literal.into())
    }

    /// `(copy, source, context)`.
    fn copy_start(&self, x: Value) -> Result<Value, EvalError> {
        let context = Value::from(Literal::zeros(DType::U32, &[])?);
        match self.module.shape(self.inst) {
            Shape::Tuple(elements) if elements.len() == 3 => Ok(Value::tuple([x.clone(), x, context])),
            _ => Ok(Value::tuple([x.clone(), x])),
        }
    }

    fn random_bits(&self, attrs: &Attrs, args: Args) -> Result<Value, EvalError> {
        let (Some(attrs), Shape::Tuple(shapes)) = (RngBitsAttrs::of(attrs), self.module.shape(self.inst)) else {
            // The older form returns the bits alone.
            return Err(EvalError::unsupported("rng-bit-generator whose result is not (state, bits)"));
        };
        let state = one(args)?;
        let name = attrs.algorithm.as_str();
        let algorithm = Algorithm::from_name(name)
            .ok_or_else(|| EvalError::unsupported(format!("random bits by the algorithm `{name}`")))?;
        let (Some(words), Some(bits)) = (state.elems::<u64>(), shapes.get(1).and_then(Shape::as_array)) else {
            return Err(EvalError::unsupported("rng-bit-generator with a state that is not u64"));
        };
        let (next, out) = rng_bit_generator(algorithm, words, bits.dtype, &bits.dims)
            .map_err(|e| EvalError::unsupported(e.to_string()))?;
        let next = Literal::new(DType::U64, state.dims(), Buffer::U64(next.to_vec()))?;
        Ok(Value::tuple([next.into(), out.into()]))
    }

    /// One result as an array, several as a tuple, as the instruction's shape says.
    pub(super) fn one_or_tuple(&self, mut results: Vec<Literal>) -> Result<Value, EvalError> {
        if matches!(self.module.shape(self.inst), Shape::Tuple(_)) {
            return Ok(Value::tuple(results.into_iter().map(Value::from)));
        }
        results.pop().map(Value::from).ok_or_else(|| EvalError::invalid("no result"))
    }
}

fn only(args: Args) -> Result<Value, EvalError> {
    let n = args.len();
    let mut args = args.into_iter();
    match (args.next(), n) {
        (Some(value), 1) => Ok(value),
        _ => Err(EvalError::invalid(format!("expected one operand, found {n}"))),
    }
}

pub(super) fn one(args: Args) -> Result<Arc<Literal>, EvalError> {
    only(args)?.into_array()
}

pub(super) fn all_arrays(args: Args) -> Result<Vec<Arc<Literal>>, EvalError> {
    args.into_iter().map(Value::into_array).collect()
}

pub(super) fn arrays<const N: usize>(args: Args) -> Result<[Arc<Literal>; N], EvalError> {
    let found = args.len();
    <[Arc<Literal>; N]>::try_from(all_arrays(args)?)
        .map_err(|_| EvalError::invalid(format!("expected {N} operands, found {found}")))
}
