//! Shape inference: for each [`ShapeRule`] the result shape that operands and attributes imply.
//!
//! A rule either computes the shape ([`Inferred::Shape`]), names an operand whose type the result has
//! ([`Inferred::Operand`], nothing is allocated), or checks a shape that only the text can give
//! ([`Inferred::Stated`]: `reshape`, `convert`, `iota`, `parameter` …). The verifier compares the answer with the
//! stated shape; a builder calls [`infer_result`].
//!
//! Dynamic dims are checked by their bounds, an unbounded dim agrees with any size; whether a dim is *marked* dynamic
//! is propagated where it is clear and never compared, as in XLA.

mod asynchrony;
mod batch_norm;
mod collective;
mod contraction;
mod elementwise;
mod indexing;
mod linear_algebra;
mod reduction;
mod same_type;
mod shape_text;
mod shaping;
mod structure;
mod window;

pub use collective::group_size;
pub use same_type::infer_by_ids;
pub use shape_text::ShapeText;

use crate::attrs::Attrs;
use crate::module::{CompId, InstId, Module};
use crate::op::{Opcode, ShapeRule};
use crate::shape::{ArrayShape, Dims, Layout, Shape, UNBOUNDED_DIM};
use smallvec::SmallVec;
use std::fmt::{self, Display};

/// An instruction as inference sees it; it need not be part of a module yet.
#[derive(Clone, Copy, Debug)]
pub struct OpView<'a> {
    /// What it does.
    pub opcode: Opcode,
    /// Shapes of its operands.
    pub operands: &'a [&'a Shape],
    /// Attributes of its opcode.
    pub attrs: &'a Attrs,
    /// The shape that the text or the builder asks for.
    pub stated: Option<&'a Shape>,
}

/// What inference found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inferred {
    /// This shape; an array without layout is row-major.
    Shape(Shape),
    /// The type of operand `i`.
    Operand(usize),
    /// The stated shape, which was checked as far as the rule can.
    Stated,
}

/// A constraint that operands, attributes or the stated shape break.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShapeError {
    /// Id of the constraint, `<rule>.<what>`: `dot.contracting-sizes`.
    pub constraint: &'static str,
    /// What the constraint asks for.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {} [{}]", self.expected, self.found, self.constraint)
    }
}

impl std::error::Error for ShapeError {}

type Checked<T> = Result<T, ShapeError>;

#[cold]
fn fail<T>(constraint: &'static str, expected: impl Display, found: impl Display) -> Checked<T> {
    Err(ShapeError { constraint, expected: expected.to_string(), found: found.to_string() })
}

/// Whether `actual` is the inferred shape: layouts and dynamic marks are ignored, unbounded dims agree with any size.
pub fn agrees(inferred: &Shape, actual: &Shape) -> bool {
    match (inferred, actual) {
        (Shape::Array(a), Shape::Array(b)) | (Shape::Buffer(a), Shape::Buffer(b)) => {
            a.dtype == b.dtype && dims_agree(&a.dims, &b.dims)
        }
        (Shape::Tuple(a), Shape::Tuple(b)) => a.len() == b.len() && a.iter().zip(b).all(|(x, y)| agrees(x, y)),
        (Shape::Token, Shape::Token) | (Shape::Opaque, Shape::Opaque) => true,
        (Shape::Array(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => false,
    }
}

fn dim_agrees(a: i64, b: i64) -> bool {
    a == b || a == UNBOUNDED_DIM || b == UNBOUNDED_DIM
}

fn dims_agree(a: &[i64], b: &[i64]) -> bool {
    a == b || (a.len() == b.len() && a.iter().zip(b).all(|(&x, &y)| dim_agrees(x, y)))
}

/// Infers the shape of an instruction of `module`.
///
/// # Errors
/// The first constraint that is broken, in the order in which the rule lists them.
pub fn infer_inst(module: &Module, inst: InstId) -> Result<Inferred, ShapeError> {
    let node = module.inst(inst);
    let infer = |operands: &[&Shape]| {
        let (opcode, attrs) = (node.opcode, &node.attrs);
        infer_shape(module, &OpView { opcode, operands, attrs, stated: Some(module.shape(inst)) })
    };
    match node.operands.as_slice() {
        &[only] => infer(&[module.shape(only)]),
        &[first, second] => infer(&[module.shape(first), module.shape(second)]),
        all => infer(&all.iter().map(|&o| module.shape(o)).collect::<SmallVec<[&Shape; 8]>>()),
    }
}

/// Infers the shape of `op`; `module` gives called computations and the number of devices.
///
/// # Errors
/// The first constraint that is broken. Rules that need a stated shape fail with `….needs-shape` without one.
pub fn infer_shape(module: &Module, op: &OpView<'_>) -> Result<Inferred, ShapeError> {
    let row = op.opcode.row();
    if !row.arity.accepts(op.operands.len()) {
        return fail("op.arity", format_args!("{}", ArityText(row.arity)), format_args!("{}", op.operands.len()));
    }
    if op.attrs.format() != row.format {
        return fail("op.format", format_args!("attributes of {}", row.name), "attributes of another format");
    }
    dispatch(&Infer { module, op }, row.shape)
}

/// The result of [`infer_shape`] as a shape; arrays get the layout of the operand they are made of element by
/// element (a `transpose` permutes it), else row-major, as in XLA.
///
/// # Errors
/// As [`infer_shape`].
pub fn infer_result(module: &Module, op: &OpView<'_>) -> Result<Shape, ShapeError> {
    let mut shape = match infer_shape(module, op)? {
        Inferred::Shape(shape) => shape,
        Inferred::Operand(i) => match op.operands.get(i) {
            Some(shape) => (*shape).clone(),
            None => return fail("op.arity", format_args!("operand {i}"), "none"),
        },
        Inferred::Stated => match op.stated {
            Some(shape) => shape.clone(),
            None => return fail("op.needs-shape", "a stated shape", "none"),
        },
    };
    add_default_layouts(&mut shape);
    Ok(shape)
}

/// Gives arrays without a layout the one that its absence means.
pub(crate) fn add_default_layouts(shape: &mut Shape) {
    match shape {
        Shape::Array(array) | Shape::Buffer(array) => {
            let rank = array.rank();
            array.layout.get_or_insert_with(|| Box::new(Layout::row_major(rank)));
        }
        Shape::Tuple(elements) => elements.iter_mut().for_each(add_default_layouts),
        Shape::Token | Shape::Opaque => {}
    }
}

fn dispatch(cx: &Infer<'_>, rule: ShapeRule) -> Checked<Inferred> {
    match rule {
        ShapeRule::Unary(numbers) => elementwise::unary(cx, numbers),
        ShapeRule::Binary(numbers) => elementwise::binary(cx, numbers),
        ShapeRule::Abs => elementwise::abs(cx),
        ShapeRule::IsFinite => elementwise::is_finite(cx),
        ShapeRule::Compare => elementwise::compare(cx),
        ShapeRule::Select => elementwise::select(cx),
        ShapeRule::Clamp => elementwise::clamp(cx),
        ShapeRule::Complex => elementwise::complex(cx),
        ShapeRule::ComplexPart => elementwise::complex_part(cx),
        ShapeRule::Convert => elementwise::convert(cx),
        ShapeRule::BitcastConvert => elementwise::bitcast_convert(cx),
        ShapeRule::StochasticConvert => elementwise::stochastic_convert(cx),
        ShapeRule::Map => elementwise::map(cx),
        ShapeRule::Broadcast => shaping::broadcast(cx),
        ShapeRule::Reshape => shaping::reshape(cx),
        ShapeRule::DynamicReshape => shaping::dynamic_reshape(cx),
        ShapeRule::Bitcast => shaping::bitcast(cx),
        ShapeRule::Transpose => shaping::transpose(cx),
        ShapeRule::Reverse => shaping::reverse(cx),
        ShapeRule::Slice => shaping::slice(cx),
        ShapeRule::DynamicSlice => shaping::dynamic_slice(cx),
        ShapeRule::DynamicUpdateSlice => shaping::dynamic_update_slice(cx),
        ShapeRule::Pad => shaping::pad(cx),
        ShapeRule::Concatenate => shaping::concatenate(cx),
        ShapeRule::Iota => shaping::iota(cx),
        ShapeRule::GetDimensionSize => shaping::get_dimension_size(cx),
        ShapeRule::SetDimensionSize => shaping::set_dimension_size(cx),
        ShapeRule::Dot => contraction::dot(cx),
        ShapeRule::RaggedDot => contraction::ragged_dot(cx),
        ShapeRule::ScaledDot => contraction::scaled_dot(cx),
        ShapeRule::Convolution => contraction::convolution(cx),
        ShapeRule::Reduce => reduction::reduce(cx),
        ShapeRule::ReduceWindow => reduction::reduce_window(cx),
        ShapeRule::SelectAndScatter => reduction::select_and_scatter(cx),
        ShapeRule::Sort => reduction::sort(cx),
        ShapeRule::Scan => reduction::scan(cx),
        ShapeRule::TopK => reduction::topk(cx),
        ShapeRule::Gather => indexing::gather(cx),
        ShapeRule::Scatter => indexing::scatter(cx),
        ShapeRule::Fft => linear_algebra::fft(cx),
        ShapeRule::Cholesky => linear_algebra::cholesky(cx),
        ShapeRule::TriangularSolve => linear_algebra::triangular_solve(cx),
        ShapeRule::BatchNormTraining => batch_norm::training(cx),
        ShapeRule::BatchNormInference => batch_norm::inference(cx),
        ShapeRule::BatchNormGrad => batch_norm::grad(cx),
        ShapeRule::RngBitGenerator => structure::rng_bit_generator(cx),
        ShapeRule::RngState => structure::rng_state(cx),
        ShapeRule::Rng => structure::rng(cx),
        ShapeRule::Tuple => structure::tuple(cx),
        ShapeRule::GetTupleElement => structure::get_tuple_element(cx),
        ShapeRule::FirstOperand => structure::first_operand(cx),
        ShapeRule::AfterAll => structure::after_all(cx),
        ShapeRule::Constant => structure::constant(cx),
        ShapeRule::Call => structure::call(cx),
        ShapeRule::While => structure::while_loop(cx),
        ShapeRule::Conditional => structure::conditional(cx),
        ShapeRule::DeviceId => Ok(Inferred::Shape(Shape::array(crate::DType::U32, []))),
        ShapeRule::Collective(rule) => collective::collective(cx, rule),
        ShapeRule::DoneOfPair => asynchrony::done_of_pair(cx),
        ShapeRule::AsyncStart => asynchrony::async_start(cx),
        ShapeRule::AsyncUpdate => asynchrony::async_update(cx),
        ShapeRule::AsyncDone => asynchrony::done_of_pair(cx),
        ShapeRule::CopyStart => asynchrony::copy_start(cx),
        ShapeRule::CopyDone => asynchrony::copy_done(cx),
        ShapeRule::Send => asynchrony::send(cx),
        ShapeRule::SendDone => asynchrony::send_done(cx),
        ShapeRule::Recv => asynchrony::recv(cx),
        ShapeRule::RecvDone => asynchrony::recv_done(cx),
        ShapeRule::Outfeed => asynchrony::outfeed(cx),
        ShapeRule::Stated(_) => match cx.op.stated {
            Some(_) => Ok(Inferred::Stated),
            None => fail("op.needs-shape", "a stated shape", "none"),
        },
    }
}

/// Number of operands in words.
pub(crate) struct ArityText(pub crate::op::Arity);

impl Display for ArityText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            crate::op::Arity::Exactly(1) => write!(f, "1 operand"),
            crate::op::Arity::Exactly(n) => write!(f, "{n} operands"),
            crate::op::Arity::AtLeast(n) => write!(f, "{n} or more operands"),
        }
    }
}

/// What a rule works on: the op and the module around it.
struct Infer<'a> {
    module: &'a Module,
    op: &'a OpView<'a>,
}

impl<'a> Infer<'a> {
    fn n_operands(&self) -> usize {
        self.op.operands.len()
    }

    fn operand(&self, i: usize) -> Checked<&'a Shape> {
        match self.op.operands.get(i) {
            Some(shape) => Ok(shape),
            None => fail("op.arity", format_args!("an operand {i}"), format_args!("{} operands", self.n_operands())),
        }
    }

    fn array(&self, i: usize) -> Checked<&'a ArrayShape> {
        match self.operand(i)? {
            Shape::Array(array) => Ok(array),
            other @ (Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_)) => {
                fail("op.array-operand", format_args!("an array as operand {i}"), ShapeText(other))
            }
        }
    }

    fn stated(&self) -> Checked<&'a Shape> {
        match self.op.stated {
            Some(shape) => Ok(shape),
            None => fail("op.needs-shape", "a stated shape", "none"),
        }
    }

    fn stated_array(&self) -> Checked<&'a ArrayShape> {
        let shape = self.stated()?;
        match shape.as_array() {
            Some(array) => Ok(array),
            None => fail("op.array-result", "an array", ShapeText(shape)),
        }
    }

    /// The element type that the stated result asks for, if there is one.
    fn stated_dtype(&self) -> Option<crate::DType> {
        Some(self.op.stated?.as_array()?.dtype)
    }

    /// Fails with `op.format`: the attributes are not those of the opcode.
    #[cold]
    fn wrong_format<T>(&self) -> Checked<T> {
        fail("op.format", format_args!("attributes of {}", self.op.opcode), "attributes of another format")
    }

    /// The result shape of a called computation; `None` while it is not whole (the verifier reports that).
    fn callee_result(&self, comp: Option<CompId>) -> Option<&'a Shape> {
        Some(self.module.shapes.get(self.module.result_shape(comp?)?))
    }
}

/// `dim` as an index below `rank`.
fn dim_index(constraint: &'static str, dim: i64, rank: usize) -> Checked<usize> {
    match usize::try_from(dim) {
        Ok(d) if d < rank => Ok(d),
        Ok(_) | Err(_) => fail(constraint, format_args!("a dim below {rank}"), dim),
    }
}

/// A set of distinct dims below `rank` as a bit mask; ranks above 64 do not occur (the verifier rejects them).
fn dim_set(constraint: &'static str, dims: &[i64], rank: usize) -> Checked<u64> {
    let mut set = 0u64;
    for &dim in dims {
        let bit = 1u64 << (dim_index(constraint, dim, rank.min(64))? as u32);
        if set & bit != 0 {
            return fail(constraint, "distinct dims", format_args!("dim {dim} twice"));
        }
        set |= bit;
    }
    Ok(set)
}

/// An array of `dims` where bit `i` of `dynamic` marks dim `i`.
fn array_of(dtype: crate::DType, dims: Dims, dynamic: u64) -> Inferred {
    Inferred::Shape(Shape::Array(ArrayShape { dtype, dims, dynamic, layout: None }))
}

/// The mark of dim `from` of `array`, put at dim `to`.
fn dynamic_bit(array: &ArrayShape, from: usize, to: usize) -> u64 {
    if array.is_dynamic(from) && to < 64 { 1 << to } else { 0 }
}

/// One array stays an array, several make a tuple.
fn array_or_tuple(mut shapes: Vec<Shape>) -> Inferred {
    match (shapes.len(), shapes.pop()) {
        (1, Some(only)) => Inferred::Shape(only),
        (_, last) => {
            shapes.extend(last);
            Inferred::Shape(Shape::Tuple(shapes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::ParameterAttrs;
    use crate::attrs::{CallAttrs, ConditionalAttrs, DimsAttrs, DotAttrs, PadAttrs, PadDim, ReduceAttrs};
    use crate::dtype::DType;
    use crate::edit::Builder;
    use crate::literal::{ConstantValue, Literal};

    fn infer(opcode: Opcode, attrs: Attrs, operands: &[&Shape]) -> Result<Shape, &'static str> {
        let op = OpView { opcode, operands, attrs: &attrs, stated: None };
        infer_result(&Module::new("m"), &op).map(|s| s.without_layout()).map_err(|e| e.constraint)
    }

    fn f32s(dims: &[i64]) -> Shape {
        Shape::array(DType::F32, dims.iter().copied())
    }

    #[test]
    fn dot_puts_batch_then_free_dims_and_names_what_disagrees() {
        let dims = |d: &[i64]| Dims::from_slice(d);
        let attrs = |l: i64, r: i64| {
            Attrs::from(DotAttrs {
                lhs_batch_dims: dims(&[0]),
                rhs_batch_dims: dims(&[0]),
                lhs_contracting_dims: dims(&[l]),
                rhs_contracting_dims: dims(&[r]),
                ..DotAttrs::default()
            })
        };
        let (lhs, rhs) = (f32s(&[2, 3, 5]), f32s(&[2, 5, 7]));
        assert_eq!(infer(Opcode::Dot, attrs(2, 1), &[&lhs, &rhs]), Ok(f32s(&[2, 3, 7])));
        assert_eq!(infer(Opcode::Dot, attrs(2, 2), &[&lhs, &rhs]), Err("dot.contracting-sizes"));
        assert_eq!(infer(Opcode::Dot, attrs(0, 0), &[&lhs, &rhs]), Err("dot.contracting-dims"));
        assert_eq!(infer(Opcode::Dot, attrs(9, 1), &[&lhs, &rhs]), Err("dot.contracting-dims"));
    }

    #[test]
    fn unbounded_dims_agree_and_huge_padding_does_not_overflow() {
        let open = f32s(&[UNBOUNDED_DIM, 4]);
        assert_eq!(infer(Opcode::Add, Attrs::Plain, &[&open, &f32s(&[3, 4])]), Ok(f32s(&[3, 4])));
        assert_eq!(infer(Opcode::Add, Attrs::Plain, &[&open, &f32s(&[3, 5])]), Err("elementwise.dims"));
        let pad = |high| Attrs::from(PadAttrs { padding: vec![PadDim { low: 0, high, interior: i64::MAX }] });
        let zero = f32s(&[]);
        assert_eq!(infer(Opcode::Pad, pad(1), &[&f32s(&[9]), &zero]), Err("pad.size"));
        assert_eq!(infer(Opcode::Pad, pad(1), &[&f32s(&[1]), &zero]), Ok(f32s(&[2])));
    }

    #[test]
    fn transpose_needs_a_permutation_and_the_right_number_of_operands() {
        let attrs = |d: &[i64]| Attrs::from(DimsAttrs { dimensions: Dims::from_slice(d) });
        let a = f32s(&[2, 3]);
        assert_eq!(infer(Opcode::Transpose, attrs(&[1, 0]), &[&a]), Ok(f32s(&[3, 2])));
        assert_eq!(infer(Opcode::Transpose, attrs(&[1, 1]), &[&a]), Err("transpose.permutation"));
        assert_eq!(infer(Opcode::Transpose, attrs(&[1, 0]), &[&a, &a]), Err("op.arity"));
        assert_eq!(infer(Opcode::Transpose, Attrs::Plain, &[&a]), Err("op.format"));
    }

    /// An array whose dims with a mark are dynamic.
    fn bounded(dims: &[(i64, bool)]) -> Shape {
        let dynamic = (0..).zip(dims).fold(0, |set, (i, &(_, is_dynamic))| set | u64::from(is_dynamic) << i);
        let dims = dims.iter().map(|&(size, _)| size).collect();
        Shape::Array(ArrayShape { dtype: DType::F32, dims, dynamic, layout: None })
    }

    #[test]
    fn dynamic_marks_move_with_their_dims() {
        let dims = |d: &[i64]| Dims::from_slice(d);
        let a = bounded(&[(2, true), (3, false), (5, true)]);
        let attrs = Attrs::from(DimsAttrs { dimensions: dims(&[1, 2, 0]) });
        assert_eq!(infer(Opcode::Transpose, attrs, &[&a]), Ok(bounded(&[(3, false), (5, true), (2, true)])));
        let attrs = Attrs::from(ReduceAttrs { dimensions: dims(&[1]), to_apply: None });
        assert_eq!(infer(Opcode::Reduce, attrs, &[&a, &f32s(&[])]), Ok(bounded(&[(2, true), (5, true)])));
        let attrs = Attrs::from(PadAttrs { padding: vec![PadDim { low: 1, high: 0, interior: 0 }; 3] });
        let padded = bounded(&[(3, true), (4, false), (6, true)]);
        assert_eq!(infer(Opcode::Pad, attrs, &[&a, &f32s(&[])]), Ok(padded));
        let attrs = Attrs::from(DotAttrs {
            lhs_batch_dims: dims(&[2]),
            rhs_batch_dims: dims(&[0]),
            lhs_contracting_dims: dims(&[1]),
            rhs_contracting_dims: dims(&[1]),
            ..DotAttrs::default()
        });
        let b = bounded(&[(5, false), (3, false), (7, false), (4, true)]);
        let product = bounded(&[(5, true), (2, true), (7, false), (4, true)]);
        assert_eq!(infer(Opcode::Dot, attrs, &[&a, &b]), Ok(product));
    }

    #[test]
    fn a_constant_has_the_shape_of_its_value() {
        let value = ConstantValue::Array(Literal::zeros(DType::S8, &[2, 3]).expect("a static shape"));
        let tuple = ConstantValue::Tuple(vec![value.clone(), value.clone()]);
        let array = Shape::array(DType::S8, [2, 3]);
        assert_eq!(infer(Opcode::Constant, Attrs::Constant(value.into()), &[]), Ok(array.clone()));
        let tuple_shape = Shape::Tuple(vec![array.clone(), array]);
        assert_eq!(infer(Opcode::Constant, Attrs::Constant(tuple.into()), &[]), Ok(tuple_shape));
        assert_eq!(infer(Opcode::Constant, Attrs::Constant(ConstantValue::Elided.into()), &[]), Err("op.needs-shape"));
    }

    #[test]
    fn a_call_keeps_the_layout_that_is_stated() {
        let mut module = Module::new("m");
        let name = module.names.intern("callee");
        let callee = module.add_computation(name);
        let attrs = ParameterAttrs { number: 0, ..ParameterAttrs::default() };
        let mut b = Builder::new(&mut module, callee);
        let parameter = b.add("x", Opcode::Parameter, f32s(&[2, 3]), [], attrs);
        module.comp_mut(callee).root = Some(parameter).into();
        let attrs = Attrs::from(CallAttrs { to_apply: Some(callee), ..CallAttrs::default() });
        let layout = Some(Box::new(Layout::new(Dims::from_slice(&[0, 1]))));
        let stated =
            Shape::Array(ArrayShape { dtype: DType::F32, dims: Dims::from_slice(&[2, 3]), dynamic: 0, layout });
        let operands = [&f32s(&[2, 3])];
        let op = OpView { opcode: Opcode::Call, operands: &operands, attrs: &attrs, stated: Some(&stated) };
        assert_eq!(infer_result(&module, &op), Ok(stated.clone()));
    }

    #[test]
    fn a_truth_chooses_between_two_branches_and_a_number_among_any() {
        let mut module = Module::new("m");
        let branches = ["a", "b", "c"].map(|name| {
            let name = module.names.intern(name);
            module.add_computation(name)
        });
        let chosen = |named: bool, n: usize, chooser: &Shape| {
            let attrs = if named {
                let [a, b, _] = branches.map(Some);
                ConditionalAttrs { true_computation: a, false_computation: b, ..ConditionalAttrs::default() }
            } else {
                ConditionalAttrs { branch_computations: branches[..n].to_vec(), ..ConditionalAttrs::default() }
            };
            let mut operands = vec![&Shape::Token; n + 1];
            operands[0] = chooser;
            let op = OpView { opcode: Opcode::Conditional, operands: &operands, attrs: &attrs.into(), stated: None };
            infer_result(&module, &op).map_err(|e| e.constraint)
        };
        // The branches take no operand, which is the next thing that is checked.
        let (taken, refused) = (Err("call.n-operands"), Err("conditional.chooser"));
        let [truth, number, real] = [DType::Pred, DType::S32, DType::F32].map(|dtype| Shape::array(dtype, []));
        assert_eq!([2, 3].map(|n| chosen(false, n, &number)), [taken.clone(), taken.clone()]);
        assert_eq!([2, 3].map(|n| chosen(false, n, &truth)), [taken.clone(), refused.clone()]);
        assert_eq!([&truth, &number].map(|chooser| chosen(true, 2, chooser)), [taken, refused.clone()]);
        let arrays = [DType::Pred, DType::S32].map(|dtype| Shape::array(dtype, [2]));
        assert_eq!(
            [&real, &arrays[0], &arrays[1]].map(|chooser| chosen(false, 2, chooser)),
            [(); 3].map(|()| refused.clone())
        );
    }
}
