//! Computations of scalars (reducers, comparators, the bodies of maps) made into short register programs.
//!
//! Tuples, calls and parameters vanish when the program is made; what is left runs on [`Scalar`]s without looking
//! anything up. A computation with an operation that has no scalar meaning is run by the engine on one-element arrays.
// circle: a machine evaluates operations that apply a computation, and what is not scalar in that computation runs on a machine

use super::{EvalOptions, Machine};
use crate::error::EvalError;
use crate::kernels::choice::compare_scalars;
use crate::kernels::elementwise::{binary_scalar, rounded, unary_scalar};
use crate::kernels::reducer::{Comparator, KnownComparison, Reducer, recognise_comparison};
use crate::value::{Spread, Value};
use hashbrown::HashMap;
use hlo_ir::attrs::{Attrs, CompareAttrs, TupleIndexAttrs};
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::literal::ConstantValue;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{
    BinaryFns, ElementwiseRoutine, EvalRoutine, EvalRule, LockstepRoutine, ShapingRoutine, StructureRoutine, UnaryFns,
};
use hlo_ir::{CompId, DType, InstId, Literal, Module, Opcode, Scalar, Shape};
use smallvec::SmallVec;

/// Calls nested in a scalar computation; deeper ones are left to the engine, which has its own limit.
const MAX_INLINE_DEPTH: usize = 16;

/// A value while the program is made: one register, or a tuple of them.
#[derive(Clone, Debug)]
enum Sym {
    Reg(usize),
    Tuple(Vec<Sym>),
}

#[derive(Clone, Debug)]
enum Code {
    Constant(Scalar),
    Unary(Opcode, &'static UnaryFns, DType, usize),
    Binary(Opcode, &'static BinaryFns, DType, usize, usize),
    Compare(Box<CompareAttrs>, DType, usize, usize),
    Select(usize, usize, usize),
    Convert(DType, usize),
    IsFinite(usize),
    Abs(DType, usize),
}

/// A straight-line program on scalars.
#[derive(Clone, Debug)]
struct Program {
    n_params: usize,
    code: Vec<Code>,
    results: Vec<usize>,
}

impl Program {
    /// The program of `comp`; `None` if an operation has no scalar meaning.
    fn of(module: &Module, comp: CompId) -> Option<Program> {
        let n_params = module.comp(comp).params.len();
        let mut program = Program { n_params, code: Vec::new(), results: Vec::new() };
        let args = (0..n_params).map(Sym::Reg).collect();
        let root = program.inline(module, comp, args, 0)?;
        program.results = match root {
            Sym::Reg(reg) => vec![reg],
            Sym::Tuple(elements) => {
                let regs: Option<Vec<usize>> = elements.into_iter().map(|e| e.reg()).collect();
                regs?
            }
        };
        Some(program)
    }

    fn inline(&mut self, module: &Module, comp: CompId, args: Vec<Sym>, depth: usize) -> Option<Sym> {
        if depth > MAX_INLINE_DEPTH {
            return None;
        }
        let mut syms: HashMap<InstId, Sym> = HashMap::new();
        for (&param, arg) in module.comp(comp).params.iter().zip(args) {
            syms.insert(param, arg);
        }
        for &inst in &module.comp(comp).insts {
            if module.inst(inst).opcode != Opcode::Parameter {
                let sym = self.translate(module, inst, &syms, depth)?;
                syms.insert(inst, sym);
            }
        }
        syms.remove(&module.comp(comp).root.expand()?)
    }

    fn push(&mut self, code: Code) -> Sym {
        self.code.push(code);
        Sym::Reg(self.n_params + self.code.len() - 1)
    }

    fn translate(&mut self, module: &Module, inst: InstId, syms: &HashMap<InstId, Sym>, depth: usize) -> Option<Sym> {
        let instruction = module.inst(inst);
        let operand = |i: usize| syms.get(instruction.operands.get(i)?).cloned();
        let reg = |i: usize| operand(i)?.reg();
        let shape = module.shape(inst);
        if let Shape::Array(array) = shape
            && !array.dims.is_empty()
        {
            return None;
        }
        let operand_dtype = |i: usize| Some(module.shape(*instruction.operands.get(i)?).as_array()?.dtype);
        let op = instruction.opcode;
        let code = match &op.row().eval {
            EvalRule::Unary(fns) => Code::Unary(op, fns, operand_dtype(0)?, reg(0)?),
            EvalRule::Binary(fns) => Code::Binary(op, fns, operand_dtype(0)?, reg(0)?, reg(1)?),
            EvalRule::NotEvaluated(_) => return None,
            EvalRule::Routine(EvalRoutine::Constant) => match instruction.attrs.as_constant()? {
                ConstantValue::Array(literal) => Code::Constant(literal.get(0)?),
                ConstantValue::Tuple(_) | ConstantValue::Elided => return None,
            },
            EvalRule::Routine(EvalRoutine::Elementwise(routine)) => match routine {
                ElementwiseRoutine::Compare => {
                    let attrs = CompareAttrs::of(&instruction.attrs)?.clone();
                    Code::Compare(attrs.into(), operand_dtype(0)?, reg(0)?, reg(1)?)
                }
                ElementwiseRoutine::Select => Code::Select(reg(0)?, reg(1)?, reg(2)?),
                ElementwiseRoutine::Convert => Code::Convert(shape.as_array()?.dtype, reg(0)?),
                ElementwiseRoutine::IsFinite => Code::IsFinite(reg(0)?),
                ElementwiseRoutine::Abs if shape.as_array()?.dtype == operand_dtype(0)? => {
                    Code::Abs(operand_dtype(0)?, reg(0)?)
                }
                ElementwiseRoutine::Abs
                | ElementwiseRoutine::Clamp
                | ElementwiseRoutine::Complex
                | ElementwiseRoutine::Real
                | ElementwiseRoutine::Imag
                | ElementwiseRoutine::BitcastConvert
                | ElementwiseRoutine::StochasticConvert
                | ElementwiseRoutine::ReducePrecision => return None,
            },
            EvalRule::Routine(EvalRoutine::Shaping(routine)) => {
                let keeps_type = shape.as_array()?.dtype == operand_dtype(0)?;
                return operand(0).filter(|_| hands_scalar_on(*routine, keeps_type));
            }
            EvalRule::Routine(EvalRoutine::Structure(routine)) => {
                let operands: Vec<Option<Sym>> = (0..instruction.operands.len()).map(operand).collect();
                return structure(*routine, &instruction.attrs, operands);
            }
            EvalRule::Routine(EvalRoutine::Lockstep(LockstepRoutine::Call)) => {
                let comp = *module.called(inst).first()?;
                let args: Option<Vec<Sym>> = (0..instruction.operands.len()).map(operand).collect();
                return self.inline(module, comp, args?, depth + 1);
            }
            EvalRule::Routine(EvalRoutine::Lockstep(LockstepRoutine::CustomCall)) => {
                let target = CustomTarget::of(&instruction.attrs);
                return operand(0).filter(|_| target.is_some_and(CustomTarget::is_identity));
            }
            EvalRule::Routine(
                EvalRoutine::Parameter
                | EvalRoutine::OneArray(_)
                | EvalRoutine::SeveralArrays(_)
                | EvalRoutine::Lockstep(
                    LockstepRoutine::While
                    | LockstepRoutine::Conditional
                    | LockstepRoutine::Scan
                    | LockstepRoutine::Collective(_)
                    | LockstepRoutine::ReplicaId
                    | LockstepRoutine::PartitionId
                    | LockstepRoutine::AsyncStart
                    | LockstepRoutine::AsyncUpdate
                    | LockstepRoutine::AsyncDone,
                ),
            ) => return None,
        };
        Some(self.push(code))
    }

    fn run(&self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
        if args.len() != self.n_params {
            let text = format!("the computation takes {} scalars, found {}", self.n_params, args.len());
            return Err(EvalError::invalid(text));
        }
        let mut regs: SmallVec<[Scalar; 16]> = SmallVec::from_slice(args);
        for code in &self.code {
            let value = match code {
                Code::Constant(value) => *value,
                Code::Unary(op, fns, dtype, x) => unary_scalar(*op, fns, *dtype, regs[*x])?,
                Code::Binary(op, fns, dtype, x, y) => binary_scalar(*op, fns, *dtype, regs[*x], regs[*y])?,
                Code::Compare(attrs, dtype, x, y) => Scalar::Pred(compare_scalars(attrs, *dtype, regs[*x], regs[*y])?),
                Code::Select(pred, x, y) => match regs[*pred] {
                    Scalar::Pred(true) => regs[*x],
                    Scalar::Pred(false) => regs[*y],
                    other => return Err(EvalError::invalid(format!("expected a pred to select by, found {other:?}"))),
                },
                Code::Convert(dtype, x) => Literal::scalar(*dtype, regs[*x]).get(0).unwrap_or(regs[*x]),
                Code::IsFinite(x) => match regs[*x] {
                    Scalar::Float(x) => Scalar::Pred(x.is_finite()),
                    other => return Err(EvalError::invalid(format!("expected a float, found {other:?}"))),
                },
                Code::Abs(dtype, x) => rounded(
                    *dtype,
                    match regs[*x] {
                        Scalar::Float(x) => Scalar::Float(x.abs()),
                        Scalar::Int(x) => Scalar::Int(x.wrapping_abs()),
                        other => other,
                    },
                ),
            };
            regs.push(value);
        }
        Ok(self.results.iter().map(|&r| regs[r]).collect())
    }
}

impl Sym {
    fn reg(self) -> Option<usize> {
        match self {
            Sym::Reg(reg) => Some(reg),
            Sym::Tuple(_) => None,
        }
    }
}

/// A computation of scalars, as kernels call it.
pub(super) struct ScalarComputation<'m> {
    module: &'m Module,
    comp: CompId,
    options: &'m EvalOptions,
    program: Option<Program>,
    known: Option<Monoid>,
    known_comparison: Option<KnownComparison>,
    param_dtypes: Vec<DType>,
}

impl<'m> ScalarComputation<'m> {
    /// The computation `comp`, compiled if it can be.
    pub(super) fn new(module: &'m Module, comp: CompId, options: &'m EvalOptions) -> Self {
        let dtype = |&p: &InstId| module.shape(p).as_array().map_or(DType::F32, |a| a.dtype);
        ScalarComputation {
            module,
            comp,
            options,
            program: Program::of(module, comp),
            known: find_monoid(module, comp),
            known_comparison: recognise_comparison(module, comp),
            param_dtypes: module.comp(comp).params.iter().map(dtype).collect(),
        }
    }

    /// The results for one set of scalars.
    pub(super) fn call(&self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
        if let Some(program) = &self.program {
            return program.run(args);
        }
        let value = |(&dtype, &arg): (&DType, &Scalar)| Spread::Same(Literal::scalar(dtype, arg).into());
        let args = self.param_dtypes.iter().zip(args).map(value).collect();
        let result = Machine::new(self.module, self.options).run(self.comp, args, &[0])?;
        let mut out = SmallVec::new();
        let scalar = |v: &Value| -> Result<Scalar, EvalError> {
            v.as_array()?.get(0).ok_or_else(|| EvalError::invalid("the computation returns an empty array"))
        };
        match result.get(0)? {
            Value::Tuple(elements) => {
                for element in elements.iter() {
                    out.push(scalar(element)?);
                }
            }
            other => out.push(scalar(other)?),
        }
        Ok(out)
    }
}

impl Reducer for ScalarComputation<'_> {
    fn known(&self) -> Option<Monoid> {
        self.known
    }

    fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
        self.call(args)
    }
}

impl Comparator for ScalarComputation<'_> {
    fn known(&self) -> Option<KnownComparison> {
        self.known_comparison
    }

    fn apply(&mut self, args: &[Scalar]) -> Result<bool, EvalError> {
        match self.call(args)?.as_slice() {
            [Scalar::Pred(flag)] => Ok(*flag),
            other => Err(EvalError::invalid(format!("expected one pred from the comparator, found {other:?}"))),
        }
    }
}

/// Whether a routine gives the one element of its operand as it is.
fn hands_scalar_on(routine: ShapingRoutine, keeps_type: bool) -> bool {
    match routine {
        ShapingRoutine::Broadcast => true,
        ShapingRoutine::Reshape => keeps_type,
        ShapingRoutine::Transpose
        | ShapingRoutine::Reverse
        | ShapingRoutine::Slice
        | ShapingRoutine::DynamicSlice
        | ShapingRoutine::DynamicUpdateSlice
        | ShapingRoutine::Pad
        | ShapingRoutine::Concatenate
        | ShapingRoutine::Iota
        | ShapingRoutine::GetDimensionSize => false,
    }
}

/// Tuples and what hands its operand on.
fn structure(routine: StructureRoutine, attrs: &Attrs, operands: Vec<Option<Sym>>) -> Option<Sym> {
    match routine {
        StructureRoutine::Identity => operands.into_iter().next()?,
        StructureRoutine::Tuple => Some(Sym::Tuple(operands.into_iter().collect::<Option<Vec<Sym>>>()?)),
        StructureRoutine::GetTupleElement => match operands.into_iter().next()?? {
            Sym::Tuple(elements) => elements.get(usize::try_from(TupleIndexAttrs::of(attrs)?.index).ok()?).cloned(),
            Sym::Reg(_) => None,
        },
        StructureRoutine::AfterAll
        | StructureRoutine::CopyStart
        | StructureRoutine::CopyDone
        | StructureRoutine::RngBitGenerator => None,
    }
}
