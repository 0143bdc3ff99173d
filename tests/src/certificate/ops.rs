//! What an element of an instruction's value is made of, for each op.

use super::field::{self, Number, int_type, wrapped};
use super::program::Place;
use super::values::{Stop, Values};
use hlo_ir::attrs::{
    CompareAttrs, Comparison, DimsAttrs, DotAttrs, DynamicSliceAttrs, IotaAttrs, PadAttrs, ReduceAttrs, SliceAttrs,
};
use hlo_ir::dtype::NumberClass;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{
    Begun, BinaryFns, ElementwiseRoutine, EvalRoutine, EvalRule, Flow, LockstepRoutine, OneArrayRoutine,
    SeveralArraysRoutine, ShapingRoutine, StructureRoutine, UnaryFns,
};
use hlo_ir::{ArrayShape, CompId, ConstantValue, DType, Literal, Opcode};
use std::cmp::Ordering;

/// One run of an op for one element.
#[derive(Clone, Copy)]
pub(super) struct At<'s> {
    pub place: Place,
    pub device: u32,
    pub to: &'s ArrayShape,
    pub opcode: Opcode,
}

impl<'m> Values<'m> {
    /// An element of the value of an instruction, from elements of its operands.
    pub(super) fn define(&mut self, place: Place, at: i64, device: u32) -> Result<Number, Stop> {
        let module = self.programs.module(place.frame);
        let instruction = module.inst(place.inst);
        let opcode = instruction.opcode;
        match opcode.row().flow {
            Flow::Collective(rule) | Flow::AsyncStart(Begun::Collective(rule)) => {
                return self.exchanged(place, rule, at, device);
            }
            Flow::Conditional => return self.chosen(place, at, device),
            Flow::ReplicaId | Flow::PartitionId => {
                let partitions = module.header.num_partitions.max(1);
                let is_replica = matches!(opcode.row().flow, Flow::ReplicaId);
                let id = i64::from(device);
                return Ok(field::from_integer(if is_replica { id / partitions } else { id % partitions }));
            }
            Flow::Constant => {
                let literal = instruction.attrs.as_constant().and_then(|value| literal_of(value, place.leaf));
                return literal
                    .and_then(|literal| field::element(literal, at))
                    .ok_or_else(|| self.unread(place, "its value"));
            }
            Flow::Parameter | Flow::While => return Err(self.unread(place, "no equation says what it is")),
            Flow::All
            | Flow::Tuple
            | Flow::GetTupleElement
            | Flow::Identity
            | Flow::Call
            | Flow::AsyncStart(_)
            | Flow::AsyncUpdate
            | Flow::AsyncDone => {}
        }
        let to = self.programs.shape(place).ok_or_else(|| self.unread(place, "its shape"))?;
        let here = At { place, device, to, opcode };
        match opcode.row().eval {
            EvalRule::Unary(fns) => {
                let x = self.operand(here, 0, at)?;
                Ok(unary(opcode, fns, to.dtype, x))
            }
            EvalRule::Binary(fns) => {
                let (x, y) = (self.operand(here, 0, at)?, self.operand(here, 1, at)?);
                Ok(binary(opcode, fns, to.dtype, x, y))
            }
            EvalRule::Routine(EvalRoutine::Elementwise(routine)) => self.elementwise(here, routine, at),
            EvalRule::Routine(EvalRoutine::Shaping(routine)) => self.shaping(here, routine, at),
            EvalRule::Routine(EvalRoutine::OneArray(routine)) => match routine {
                OneArrayRoutine::Dot => self.dot(here, at),
                OneArrayRoutine::Convolution => self.convolution(here, at),
                OneArrayRoutine::Gather => self.gather(here, at),
                OneArrayRoutine::RaggedDot
                | OneArrayRoutine::SelectAndScatter
                | OneArrayRoutine::Map
                | OneArrayRoutine::Cholesky
                | OneArrayRoutine::TriangularSolve
                | OneArrayRoutine::Fft
                | OneArrayRoutine::BatchNormInference => self.unit(here, at),
            },
            EvalRule::Routine(EvalRoutine::SeveralArrays(routine)) => match routine {
                SeveralArraysRoutine::Reduce => self.reduce(here, at),
                SeveralArraysRoutine::ReduceWindow => self.reduce_window(here, at),
                SeveralArraysRoutine::Scatter => self.scatter(here, at),
                SeveralArraysRoutine::Sort
                | SeveralArraysRoutine::TopK
                | SeveralArraysRoutine::BatchNormTraining
                | SeveralArraysRoutine::BatchNormGrad => self.unit(here, at),
            },
            EvalRule::Routine(
                EvalRoutine::Structure(StructureRoutine::RngBitGenerator)
                | EvalRoutine::Lockstep(LockstepRoutine::CustomCall),
            ) => self.unit(here, at),
            EvalRule::Routine(
                EvalRoutine::Parameter
                | EvalRoutine::Constant
                | EvalRoutine::Structure(
                    StructureRoutine::Tuple
                    | StructureRoutine::GetTupleElement
                    | StructureRoutine::Identity
                    | StructureRoutine::AfterAll
                    | StructureRoutine::CopyStart
                    | StructureRoutine::CopyDone,
                )
                | EvalRoutine::Lockstep(
                    LockstepRoutine::Call
                    | LockstepRoutine::While
                    | LockstepRoutine::Conditional
                    | LockstepRoutine::Scan
                    | LockstepRoutine::Collective(_)
                    | LockstepRoutine::ReplicaId
                    | LockstepRoutine::PartitionId
                    | LockstepRoutine::AsyncStart
                    | LockstepRoutine::AsyncUpdate
                    | LockstepRoutine::AsyncDone,
                ),
            )
            | EvalRule::NotEvaluated(_) => Err(self.unread(place, "an op that is not read")),
        }
    }

    /// An element of an operand that is an array.
    pub(super) fn operand(&mut self, here: At<'_>, number: usize, at: i64) -> Result<Number, Stop> {
        let operand = self.operand_place(here, number)?;
        self.value(operand, at, here.device)
    }

    pub(super) fn operand_place(&self, here: At<'_>, number: usize) -> Result<Place, Stop> {
        let operand = self.programs.operand(Place { leaf: 0, ..here.place }, number);
        operand.ok_or_else(|| self.unread(here.place, "an operand that is missing"))
    }

    pub(super) fn operand_shape(&self, here: At<'_>, number: usize) -> Result<&'m ArrayShape, Stop> {
        let place = self.operand_place(here, number)?;
        self.programs.shape(place).ok_or_else(|| self.unread(place, "its shape"))
    }

    pub(super) fn n_operands(&self, here: At<'_>) -> usize {
        self.programs.module(here.place.frame).inst(here.place.inst).operands.len()
    }

    fn attrs(&self, here: At<'_>) -> &'m hlo_ir::attrs::Attrs {
        &self.programs.module(here.place.frame).inst(here.place.inst).attrs
    }

    /// Each branch's value, times a number that says whether it is the one.
    fn chosen(&mut self, place: Place, at: i64, device: u32) -> Result<Number, Stop> {
        let branches = self.programs.callees(place.frame, place.inst).to_vec();
        let operand = self.programs.operand(Place { leaf: 0, ..place }, 0);
        let dtype = self.programs.shape(place).map(|shape| shape.dtype);
        let index = operand.ok_or_else(|| self.unread(place, "its first operand"))?;
        let index = self.value(index, 0, device)?;
        let mut sum = 0;
        let mut values = vec![3, index];
        for (k, branch) in branches.into_iter().enumerate() {
            let root = self.callee_root(branch, place.leaf)?;
            let value = self.value(root, at, device)?;
            values.push(value);
            sum = field::add(sum, field::multiply(field::hash([3, self.seed, index, k as u64]), value % field::P));
        }
        // Integers have no field to be multiplied in.
        Ok(match dtype {
            Some(dtype) if field::is_whole(dtype) => field::drawn(field::hash(values), dtype),
            Some(_) | None => sum,
        })
    }

    fn elementwise(&mut self, here: At<'_>, routine: ElementwiseRoutine, at: i64) -> Result<Number, Stop> {
        let n = self.n_operands(here);
        let mut x = Vec::with_capacity(n);
        for k in 0..n {
            let is_scalar = self.operand_shape(here, k)?.n_elems() == 1;
            x.push(self.operand(here, k, if is_scalar { 0 } else { at })?);
        }
        let dtype = here.to.dtype;
        let from = self.operand_shape(here, 0)?.dtype;
        let opaque =
            |text: String| field::drawn(field::hash([field::hash_text(&text)].into_iter().chain(x.clone())), dtype);
        Ok(match routine {
            ElementwiseRoutine::Select => x[if x[0] != 0 { 1 } else { 2 }],
            ElementwiseRoutine::Clamp => {
                let low = extreme(dtype, x[1], x[0], true);
                extreme(dtype, low, x[2], false)
            }
            ElementwiseRoutine::Compare => {
                let attrs = CompareAttrs::of(self.attrs(here)).ok_or_else(|| self.unread(here.place, "a direction"))?;
                let order = match field::is_whole(from) {
                    true => field::order_of_integers(from, x[0], x[1]),
                    false => field::order(x[0], x[1]),
                };
                u64::from(holds(attrs.direction, order))
            }
            ElementwiseRoutine::Complex => field::complex(x[0], x[1]),
            ElementwiseRoutine::Convert => converted(from, dtype, x[0]),
            ElementwiseRoutine::BitcastConvert if from == dtype => x[0],
            ElementwiseRoutine::Abs if field::is_whole(dtype) => {
                wrapped(dtype, field::from_integer(field::to_integer(x[0]).wrapping_abs()))
            }
            ElementwiseRoutine::BitcastConvert => opaque(format!("bitcast {from} {dtype}")),
            ElementwiseRoutine::Abs
            | ElementwiseRoutine::IsFinite
            | ElementwiseRoutine::Real
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::StochasticConvert
            | ElementwiseRoutine::ReducePrecision => {
                let word = self.word(here.place);
                opaque(format!("{routine:?} {from} {word}"))
            }
        })
    }

    fn shaping(&mut self, here: At<'_>, routine: ShapingRoutine, at: i64) -> Result<Number, Stop> {
        let missing = |values: &Values<'_>| values.unread(here.place, "its attributes");
        let attrs = self.attrs(here);
        let index = index_of(&here.to.dims, at);
        let from = match routine {
            ShapingRoutine::Iota => return self.iota(here, &index),
            _ => self.operand_shape(here, 0)?,
        };
        let from_index: Vec<i64> = match routine {
            ShapingRoutine::Iota => return Err(missing(self)),
            ShapingRoutine::Reshape => {
                if here.opcode == Opcode::Bitcast && !(is_row_major(from) && is_row_major(here.to)) {
                    return Err(self.unread(here.place, "a bitcast between layouts"));
                }
                return self.operand(here, 0, at);
            }
            ShapingRoutine::Broadcast => {
                let dims = &DimsAttrs::of(attrs).ok_or_else(|| missing(self))?.dimensions;
                dims.iter().map(|&d| index[d as usize]).collect()
            }
            ShapingRoutine::Transpose => {
                let dims = &DimsAttrs::of(attrs).ok_or_else(|| missing(self))?.dimensions;
                let mut out = vec![0; index.len()];
                dims.iter().zip(&index).for_each(|(&d, &i)| out[d as usize] = i);
                out
            }
            ShapingRoutine::Reverse => {
                let dims = &DimsAttrs::of(attrs).ok_or_else(|| missing(self))?.dimensions;
                let mut out = index;
                dims.iter().for_each(|&d| out[d as usize] = here.to.dims[d as usize] - 1 - out[d as usize]);
                out
            }
            ShapingRoutine::Slice => {
                let slice = &SliceAttrs::of(attrs).ok_or_else(|| missing(self))?.slice;
                slice.iter().zip(&index).map(|(s, i)| s.start + i * s.stride.max(1)).collect()
            }
            ShapingRoutine::DynamicSlice => {
                DynamicSliceAttrs::of(attrs).ok_or_else(|| missing(self))?;
                let starts = self.starts(here, 1, &from.dims, &here.to.dims)?;
                index.iter().zip(starts).map(|(i, s)| i + s).collect()
            }
            ShapingRoutine::DynamicUpdateSlice => {
                let update = self.operand_shape(here, 1)?;
                let starts = self.starts(here, 2, &from.dims, &update.dims)?;
                let inner: Vec<i64> = index.iter().zip(starts).map(|(i, s)| i - s).collect();
                if inner.iter().zip(&update.dims).all(|(i, n)| (0..*n).contains(i)) {
                    return self.operand(here, 1, place_of(&update.dims, &inner));
                }
                index
            }
            ShapingRoutine::Pad => {
                let padding = &PadAttrs::of(attrs).ok_or_else(|| missing(self))?.padding;
                let mut inner = Vec::with_capacity(index.len());
                for ((pad, i), n) in padding.iter().zip(&index).zip(&from.dims) {
                    let (at, step) = (i - pad.low, pad.interior + 1);
                    if at < 0 || at % step != 0 || at / step >= *n {
                        return self.operand(here, 1, 0);
                    }
                    inner.push(at / step);
                }
                inner
            }
            ShapingRoutine::Concatenate => {
                let dim =
                    DimsAttrs::of(attrs).and_then(|a| a.dimensions.first().copied()).ok_or_else(|| missing(self))?;
                let mut index = index;
                for k in 0..self.n_operands(here) {
                    let part = self.operand_shape(here, k)?;
                    let n = part.dims[dim as usize];
                    if index[dim as usize] < n {
                        return self.operand(here, k, place_of(&part.dims, &index));
                    }
                    index[dim as usize] -= n;
                }
                return Err(missing(self));
            }
            ShapingRoutine::GetDimensionSize => return Err(self.unread(here.place, "a dynamic size")),
        };
        self.operand(here, 0, place_of(&from.dims, &from_index))
    }

    fn iota(&mut self, here: At<'_>, index: &[i64]) -> Result<Number, Stop> {
        let attrs = IotaAttrs::of(self.attrs(here)).ok_or_else(|| self.unread(here.place, "its dim"))?;
        let number = field::from_integer(index[attrs.iota_dimension as usize]);
        Ok(converted(DType::S64, here.to.dtype, number))
    }

    /// The starts of a dynamic slice, clamped.
    fn starts(&mut self, here: At<'_>, first: usize, whole: &[i64], part: &[i64]) -> Result<Vec<i64>, Stop> {
        let is_vector = self.n_operands(here) == first + 1 && whole.len() != 1
            || self.operand_shape(here, first).is_ok_and(|shape| shape.rank() == 1);
        let mut starts = Vec::with_capacity(whole.len());
        for (k, (whole, part)) in whole.iter().zip(part).enumerate() {
            let (operand, at) = if is_vector { (first, k as i64) } else { (first + k, 0) };
            let start = self.position(here, operand, at)?;
            starts.push(start.clamp(0, (whole - part).max(0)));
        }
        Ok(starts)
    }

    /// An element of an operand that says where something is.
    pub(super) fn position(&mut self, here: At<'_>, number: usize, at: i64) -> Result<i64, Stop> {
        let position = field::to_integer(self.operand(here, number, at)?);
        if position < 0 && self.operand_shape(here, number)?.dtype.class() == NumberClass::Unsigned {
            return Err(self.unread(here.place, "an index beyond 63 bits"));
        }
        Ok(position.clamp(-MAX_POSITION, MAX_POSITION))
    }

    fn dot(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let attrs = DotAttrs::of(self.attrs(here)).ok_or_else(|| self.unread(here.place, "its dims"))?;
        let (lhs, rhs) = (self.operand_shape(here, 0)?, self.operand_shape(here, 1)?);
        let index = index_of(&here.to.dims, at);
        let (mut l, mut r) = (vec![0; lhs.rank()], vec![0; rhs.rank()]);
        let mut k = 0;
        for (&a, &b) in attrs.lhs_batch_dims.iter().zip(&attrs.rhs_batch_dims) {
            (l[a as usize], r[b as usize]) = (index[k], index[k]);
            k += 1;
        }
        let mut free = |side: &mut Vec<i64>, batch: &[i64], contracted: &[i64]| {
            for (d, place) in side.iter_mut().enumerate() {
                if !batch.contains(&(d as i64)) && !contracted.contains(&(d as i64)) {
                    *place = index[k];
                    k += 1;
                }
            }
        };
        free(&mut l, &attrs.lhs_batch_dims, &attrs.lhs_contracting_dims);
        free(&mut r, &attrs.rhs_batch_dims, &attrs.rhs_contracting_dims);
        let sizes: Vec<i64> = attrs.lhs_contracting_dims.iter().map(|&d| lhs.dims[d as usize]).collect();
        let rounds = attrs.rounds(lhs.dtype) || attrs.rounds(rhs.dtype);
        let mut sum = 0;
        for step in 0..sizes.iter().product() {
            let digits = index_of(&sizes, step);
            for ((&a, &b), digit) in attrs.lhs_contracting_dims.iter().zip(&attrs.rhs_contracting_dims).zip(digits) {
                (l[a as usize], r[b as usize]) = (digit, digit);
            }
            let x = self.operand(here, 0, place_of(&lhs.dims, &l))?;
            let y = self.operand(here, 1, place_of(&rhs.dims, &r))?;
            // Operands that are rounded before have products of their own.
            let product = match rounds {
                true => field::hash([self.word(here.place), x, y]),
                false => times(here.to.dtype, x, y),
            };
            sum = plus(here.to.dtype, sum, product);
        }
        Ok(sum)
    }

    fn reduce(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let attrs = ReduceAttrs::of(self.attrs(here)).ok_or_else(|| self.unread(here.place, "its dims"))?;
        if self.n_operands(here) != 2 {
            return self.unit(here, at);
        }
        let monoid = self.monoid(here, attrs.to_apply)?;
        let from = self.operand_shape(here, 0)?;
        let is_reduced = |d: usize| attrs.dimensions.contains(&(d as i64));
        let kept = index_of(&here.to.dims, at);
        let mut kept = kept.into_iter();
        let mut index: Vec<i64> =
            (0..from.rank()).map(|d| if is_reduced(d) { 0 } else { kept.next().unwrap_or(0) }).collect();
        let reduced: Vec<usize> = (0..from.rank()).filter(|&d| is_reduced(d)).collect();
        let sizes: Vec<i64> = reduced.iter().map(|&d| from.dims[d]).collect();
        let mut total = self.initial(here, 1, monoid)?;
        for step in 0..sizes.iter().product() {
            reduced.iter().zip(index_of(&sizes, step)).for_each(|(&d, digit)| index[d] = digit);
            let x = self.operand(here, 0, place_of(&from.dims, &index))?;
            total = Some(joined(monoid, here.to.dtype, total, x));
        }
        total.map_or_else(|| self.operand(here, 1, 0), Ok)
    }

    pub(super) fn monoid(&self, here: At<'_>, comp: Option<CompId>) -> Result<Monoid, Stop> {
        let module = self.programs.module(here.place.frame);
        comp.and_then(|comp| find_monoid(module, comp)).ok_or_else(|| self.unread(here.place, "its reducer"))
    }

    /// What a reduction starts from, unless it is the identity.
    pub(super) fn initial(&mut self, here: At<'_>, operand: usize, monoid: Monoid) -> Result<Option<Number>, Stop> {
        let place = self.operand_place(here, operand)?;
        let place = self.same(place)?;
        let constant = self.programs.module(place.frame).inst(place.inst).attrs.as_constant();
        let first = constant.and_then(|value| literal_of(value, 0)).and_then(|literal| literal.get(0));
        match first {
            Some(first) if Some(first) == monoid.identity(here.to.dtype) => Ok(None),
            _ => self.value(place, 0, here.device).map(Some),
        }
    }
}

/// What is farther away than this is out of bounds of whatever there is.
const MAX_POSITION: i64 = 1 << 61;

/// The sum of two numbers of a type; integers wrap around.
pub(super) fn plus(dtype: DType, a: Number, b: Number) -> Number {
    match dtype.class() {
        NumberClass::Signed | NumberClass::Unsigned => wrapped(dtype, a.wrapping_add(b)),
        NumberClass::Pred => (a | b) & 1,
        NumberClass::Float | NumberClass::Complex => field::add(a, b),
    }
}

/// The product of two numbers of a type; integers wrap around.
pub(super) fn times(dtype: DType, a: Number, b: Number) -> Number {
    match dtype.class() {
        NumberClass::Signed | NumberClass::Unsigned => wrapped(dtype, a.wrapping_mul(b)),
        NumberClass::Pred => a & b & 1,
        NumberClass::Float | NumberClass::Complex => field::multiply(a, b),
    }
}

/// Two elements joined by a reducer.
pub(super) fn joined(monoid: Monoid, dtype: DType, total: Option<Number>, x: Number) -> Number {
    let Some(total) = total else { return x };
    match monoid {
        Monoid::Add => plus(dtype, total, x),
        Monoid::Multiply => times(dtype, total, x),
        Monoid::Maximum => extreme(dtype, total, x, true),
        Monoid::Minimum => extreme(dtype, total, x, false),
        Monoid::And => field::from_integer(field::to_integer(total) & field::to_integer(x)),
        Monoid::Or => field::from_integer(field::to_integer(total) | field::to_integer(x)),
    }
}

/// The larger or the smaller of two; of real numbers, whose order is not that of the field, either one the same way.
fn extreme(dtype: DType, a: Number, b: Number, is_max: bool) -> Number {
    let is_larger = match field::is_whole(dtype) {
        true => field::order_of_integers(dtype, a, b).is_gt(),
        false => field::order(a, b).is_gt(),
    };
    if is_larger == is_max { a } else { b }
}

fn converted(from: DType, to: DType, x: Number) -> Number {
    match (field::is_whole(from), field::is_whole(to)) {
        (_, true) if to == DType::Pred => u64::from(x != 0),
        (true, true) => wrapped(to, x),
        (true, false) => field::real(from, x),
        (false, true) => field::drawn(field::hash([4, x]), to),
        // Every number of a shorter type is one of the longer.
        (false, false)
            if to == from || to.bits() > from.bits() && to != DType::F8E8M0FNU && from != DType::F8E8M0FNU =>
        {
            x
        }
        (false, false) => field::hash([field::hash_text(&format!("convert {from} {to}")), x]),
    }
}

fn unary(opcode: Opcode, fns: UnaryFns, dtype: DType, x: Number) -> Number {
    match dtype.class() {
        NumberClass::Pred => match fns.pred {
            Some(f) => u64::from(f(x != 0)),
            None => field::hash([5, x]) & 1,
        },
        NumberClass::Signed | NumberClass::Unsigned => match fns.int {
            Some(f) => wrapped(dtype, field::from_integer(f(field::to_integer(x), int_type(dtype)))),
            None => field::drawn(field::hash([field::hash_text(&opcode.to_string()), x]), dtype),
        },
        NumberClass::Float | NumberClass::Complex if opcode == Opcode::Negate => field::negate(x),
        NumberClass::Float | NumberClass::Complex => field::hash([field::hash_text(&opcode.to_string()), x]),
    }
}

fn binary(opcode: Opcode, fns: BinaryFns, dtype: DType, x: Number, y: Number) -> Number {
    match dtype.class() {
        NumberClass::Pred => match fns.pred {
            Some(f) => u64::from(f(x != 0, y != 0)),
            None => field::hash([5, x, y]) & 1,
        },
        NumberClass::Signed | NumberClass::Unsigned => match fns.int {
            Some(f) => {
                let value = f(field::to_integer(x), field::to_integer(y), int_type(dtype));
                wrapped(dtype, field::from_integer(value))
            }
            None => field::drawn(field::hash([field::hash_text(&opcode.to_string()), x, y]), dtype),
        },
        NumberClass::Float | NumberClass::Complex => {
            let exact: [(Opcode, Number); 6] = [
                (Opcode::Add, field::add(x, y)),
                (Opcode::Subtract, field::add(x, field::negate(y))),
                (Opcode::Multiply, field::multiply(x, y)),
                (Opcode::Divide, if opcode == Opcode::Divide { field::divide(x, y) } else { 0 }),
                (Opcode::Maximum, extreme(dtype, x, y, true)),
                (Opcode::Minimum, extreme(dtype, x, y, false)),
            ];
            let found = exact.iter().find(|(op, _)| *op == opcode);
            found.map_or_else(|| field::hash([field::hash_text(&opcode.to_string()), x, y]), |(_, number)| *number)
        }
    }
}

/// The position along each dim of a row-major place.
pub(super) fn index_of(dims: &[i64], mut place: i64) -> Vec<i64> {
    let mut index = vec![0; dims.len()];
    for (d, &n) in dims.iter().enumerate().rev() {
        index[d] = place % n.max(1);
        place /= n.max(1);
    }
    index
}

/// The row-major place of a position.
pub(super) fn place_of(dims: &[i64], index: &[i64]) -> i64 {
    dims.iter().zip(index).fold(0, |place, (n, i)| place * n + i)
}

/// Whether the last dim varies fastest.
fn is_row_major(shape: &ArrayShape) -> bool {
    shape.layout.as_ref().is_none_or(|layout| {
        let order = layout.minor_to_major.as_slice();
        layout.tiles.is_empty() && order.iter().rev().copied().eq(0..order.len() as i64)
    })
}

fn holds(direction: Comparison, order: Ordering) -> bool {
    match direction {
        Comparison::Eq => order.is_eq(),
        Comparison::Ne => order.is_ne(),
        Comparison::Ge => order.is_ge(),
        Comparison::Gt => order.is_gt(),
        Comparison::Le => order.is_le(),
        Comparison::Lt => order.is_lt(),
    }
}

/// The literal of a constant that is one array.
fn literal_of(value: &ConstantValue, leaf: usize) -> Option<&Literal> {
    match value {
        ConstantValue::Array(literal) if leaf == 0 => Some(literal),
        ConstantValue::Array(_) | ConstantValue::Tuple(_) | ConstantValue::Elided => None,
    }
}
