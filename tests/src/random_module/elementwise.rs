//! Steps that work element by element: every row of the op table by its number classes.

use super::{Body, DTYPES, Gen, Uniform, Val};
use hlo_ir::dtype::NumberClass;
use hlo_ir::op::{EvalRule, ShapeRule};
use hlo_ir::{DType, Opcode};

/// Bits of an element, as a group of types that bitcast-convert may exchange.
const SAME_WIDTH: [&[DType]; 3] =
    [&[DType::S32, DType::U32, DType::F32], &[DType::S8, DType::U8], &[DType::F16, DType::BF16]];

/// Elementwise ops; without stochastic-convert, which the evaluator does not have.
fn is_offered(op: Opcode) -> bool {
    op.is_elementwise() && op.row().shape != ShapeRule::StochasticConvert
}

/// Whether the evaluator computes `op` on elements of `dtype`.
fn has_meaning(op: Opcode, dtype: DType) -> bool {
    let of_class = |real, int, complex, pred| match dtype.class() {
        NumberClass::Float => real,
        NumberClass::Signed | NumberClass::Unsigned => int,
        NumberClass::Complex => complex,
        NumberClass::Pred => pred,
    };
    match op.row().eval {
        EvalRule::Unary(f) => of_class(f.real.is_some(), f.int.is_some(), f.complex.is_some(), f.pred.is_some()),
        EvalRule::Binary(f) => of_class(f.real.is_some(), f.int.is_some(), f.complex.is_some(), f.pred.is_some()),
        EvalRule::Routine(_) => true,
        EvalRule::NotEvaluated(_) => false,
    }
}

impl Gen {
    pub(super) fn elementwise_step(&mut self, body: &mut Body) -> Vec<Val> {
        let ops: Vec<Opcode> = Opcode::ALL.iter().copied().filter(|&op| is_offered(op)).collect();
        let op = *self.rng.pick(&ops);
        let name = op.name();
        let new = match op.row().shape {
            ShapeRule::Unary(numbers) => {
                let x = self.any_of(body, |t| numbers.has(t) && has_meaning(op, t));
                let bits = ", exponent_bits=5, mantissa_bits=7";
                let attrs = if op == Opcode::ReducePrecision { bits } else { "" };
                self.emit(body, x.dtype, &x.dims, &format!("{name}({}){attrs}", x.name), x.uniform)
            }
            ShapeRule::Abs => {
                let x = self.any_of(body, |t| t != DType::Pred && t != DType::U8 && t != DType::U32);
                self.emit(body, x.dtype.real_part(), &x.dims, &format!("{name}({})", x.name), x.uniform)
            }
            ShapeRule::IsFinite => {
                let x = self.any_of(body, DType::is_float);
                self.emit(body, DType::Pred, &x.dims, &format!("{name}({})", x.name), x.uniform)
            }
            ShapeRule::ComplexPart => {
                let x = self.any_of(body, DType::is_complex);
                self.emit(body, x.dtype.real_part(), &x.dims, &format!("{name}({})", x.name), x.uniform)
            }
            ShapeRule::Binary(numbers) => {
                let x = self.any_of(body, |t| numbers.has(t) && has_meaning(op, t));
                let y = self.any_like(body, &x);
                self.binary(body, x.dtype, name, &x, &y, "")
            }
            ShapeRule::Compare => {
                let x = self.any_of(body, |t| !t.is_complex());
                let y = self.any_like(body, &x);
                let direction = *self.rng.pick(&["EQ", "NE", "LT", "GE"]);
                self.binary(body, DType::Pred, name, &x, &y, &format!(", direction={direction}"))
            }
            ShapeRule::Complex => {
                let x = self.any_of(body, |t| t == DType::F32);
                let y = self.any_like(body, &x);
                self.binary(body, DType::C64, name, &x, &y, "")
            }
            ShapeRule::Select => {
                let x = self.any(body);
                let y = self.any_like(body, &x);
                let any = self.any(body);
                let c = self.shape_as(body, &any, DType::Pred, &x.dims);
                self.ternary(body, name, [&c, &x, &y], &x)
            }
            ShapeRule::Clamp => {
                let x = self.any_of(body, |t| !t.is_complex() && t != DType::Pred);
                let (low, high) = (self.any_like(body, &x), self.any_like(body, &x));
                self.ternary(body, name, [&low, &x, &high], &x)
            }
            ShapeRule::Convert => {
                let x = self.any(body);
                let to = *self.rng.pick(DTYPES);
                self.convert(body, &x, to)
            }
            ShapeRule::Map => {
                let x = self.any_of(body, |t| t.is_float());
                let y = self.any_like(body, &x);
                let to_apply = self.scalar_comp("subtract", x.dtype);
                let dims: Vec<i64> = (0..x.dims.len() as i64).collect();
                let attrs = format!(", dimensions={{{}}}, to_apply={to_apply}", super::list(&dims));
                self.binary(body, x.dtype, name, &x, &y, &attrs)
            }
            // Copies.
            _ => {
                let x = self.any(body);
                self.emit(body, x.dtype, &x.dims, &format!("copy({})", x.name), x.uniform)
            }
        };
        if self.rng.one_in(8) {
            let family = *self.rng.pick(&SAME_WIDTH);
            let x = self.any_of(body, |t| family.contains(&t));
            let to = *self.rng.pick(family);
            let cast = self.emit(body, to, &x.dims, &format!("bitcast-convert({})", x.name), x.uniform);
            return vec![new, cast];
        }
        vec![new]
    }

    fn binary(&mut self, body: &mut Body, dtype: DType, op: &str, x: &Val, y: &Val, attrs: &str) -> Val {
        let uniform = x.uniform.meet(y.uniform);
        self.emit(body, dtype, &x.dims, &format!("{op}({}, {}){attrs}", x.name, y.name), uniform)
    }

    fn ternary(&mut self, body: &mut Body, op: &str, operands: [&Val; 3], like: &Val) -> Val {
        let [a, b, c] = operands;
        let uniform = a.uniform.meet(b.uniform).meet(c.uniform);
        self.emit(body, like.dtype, &like.dims, &format!("{op}({}, {}, {})", a.name, b.name, c.name), uniform)
    }

    /// Arithmetic on the device's own number.
    pub(super) fn id_step(&mut self, body: &mut Body) -> Vec<Val> {
        let (op, uniform) =
            *self.rng.pick(&[("replica-id()", Uniform::WithinReplica), ("partition-id()", Uniform::WithinPartition)]);
        let id = self.emit(body, DType::U32, &[], op, uniform);
        let two = self.scalar(body, DType::U32, "2");
        let op = *self.rng.pick(&["remainder", "divide", "multiply", "add"]);
        let new = self.binary(body, DType::U32, op, &id, &two, "");
        vec![id, new]
    }
}
