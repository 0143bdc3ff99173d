//! Ops on arrays of a training step.

use super::{Body, Generator, SMALL, Val, row_major};
use hlo_ir::DType;

impl Generator {
    /// A value that later steps may take; recent ones come more often.
    fn take(&mut self, body: &Body) -> Val {
        let n = body.pool.len();
        let recent = self.rng.below(n.min(6));
        let i = if self.rng.one_in(2) { n - 1 - recent } else { self.rng.below(n) };
        body.pool[i].clone()
    }

    /// Another value of the same shape, or the value itself.
    pub(super) fn like(&mut self, body: &Body, val: &Val) -> Val {
        let same: Vec<&Val> = body.pool.iter().filter(|v| v.is_like(val)).collect();
        if same.is_empty() { val.clone() } else { (*self.rng.pick(&same)).clone() }
    }

    /// One step: one to several instructions.
    pub(super) fn step(&mut self, body: &mut Body, depth: usize) {
        let val = self.take(body);
        let new = match self.rng.below(26) {
            0..=3 => {
                // A gradient, and what is computed from it.
                let sum = self.all_reduce(body, &val);
                body.pool.push(sum.clone());
                self.binary(body, &sum)
            }
            4..=9 => self.binary(body, &val),
            10..=11 => self.unary(body, &val),
            12 => self.transpose(body, &val),
            13 => self.reshape(body, &val),
            14..=15 => self.scaled_by_reduction(body, &val),
            16 => self.row_reduction(body, &val),
            17 => self.convert(body, &val),
            18 => self.rebuilt(body, &val),
            19 => self.chosen(body, &val),
            20 => self.unshardable(body, &val),
            21 => self.square(body, &val),
            22 => self.handed_on(body, &val),
            _ => return self.control(body, depth),
        };
        body.pool.push(new);
    }

    pub(super) fn all_reduce(&mut self, body: &mut Body, val: &Val) -> Val {
        let op = if self.rng.one_in(12) { "maximum" } else { "add" };
        let mut val = val.clone();
        let (groups, size) = self.groups();
        let largest = if val.dtype == DType::BF16 { 16.0 } else { 64.0 };
        if val.bound > largest {
            val = self.clamp(body, &val, SMALL);
        }
        let reducer = self.reducer(op, val.dtype);
        let args = format!("%{}), {groups}, to_apply=%{reducer}", val.name);
        let bound = if op == "add" { val.bound * size as f64 } else { val.bound };
        let sum = self.emit(body, "all-reduce", val.dtype, &val.dims, &val.layout, &args, bound);
        if self.is_exact || self.rng.one_in(2) {
            return self.tame(body, sum);
        }
        // A mean.
        let n = self.scalar(body, sum.dtype, size as f64);
        let n = self.broadcast(body, &n, &sum);
        let args = format!("%{}, %{})", sum.name, n.name);
        self.emit(body, "divide", sum.dtype, &sum.dims, &sum.layout, &args, val.bound)
    }

    pub(super) fn binary(&mut self, body: &mut Body, val: &Val) -> Val {
        let other = self.like(body, val);
        let (op, bound) = match self.rng.below(6) {
            0 | 1 => ("add", val.bound + other.bound),
            2 => ("subtract", val.bound + other.bound),
            3 if val.dtype == DType::F32 => ("multiply", val.bound * other.bound),
            4 if self.is_exact => ("maximum", val.bound.max(other.bound)),
            _ if self.is_exact => ("minimum", val.bound.max(other.bound)),
            _ => ("add", val.bound + other.bound),
        };
        // Layouts mix through elementwise ops.
        let layout = if self.rng.one_in(3) { other.layout.clone() } else { val.layout.clone() };
        let args = format!("%{}, %{})", val.name, other.name);
        let result = self.emit(body, op, val.dtype, &val.dims, &layout, &args, bound);
        self.tame(body, result)
    }

    fn square(&mut self, body: &mut Body, val: &Val) -> Val {
        if val.dtype != DType::F32 {
            return self.unary(body, val);
        }
        let args = format!("%{0}, %{0})", val.name);
        let square = self.emit(body, "multiply", val.dtype, &val.dims, &val.layout, &args, val.bound * val.bound);
        self.tame(body, square)
    }

    fn unary(&mut self, body: &mut Body, val: &Val) -> Val {
        let plain = |this: &mut Self, body: &mut Body, op: &str, val: &Val, bound: f64| {
            let args = format!("%{})", val.name);
            this.emit(body, op, val.dtype, &val.dims, &val.layout, &args, bound)
        };
        match (self.rng.below(4), self.is_exact) {
            (0, _) => plain(self, body, "negate", val, val.bound),
            (1, _) => plain(self, body, "abs", val, val.bound),
            (2, true) if val.dtype == DType::F32 => {
                let half = self.scalar(body, val.dtype, 0.5);
                let half = self.broadcast(body, &half, val);
                let args = format!("%{}, %{})", val.name, half.name);
                let half = self.emit(body, "multiply", val.dtype, &val.dims, &val.layout, &args, val.bound);
                plain(self, body, "floor", &half, (val.bound / 2.0).ceil())
            }
            (2, false) => plain(self, body, "tanh", val, 1.0),
            (3, false) => {
                let other = self.like(body, val);
                let abs = plain(self, body, "abs", &other, other.bound);
                let one = self.scalar(body, val.dtype, 1.0);
                let one = self.broadcast(body, &one, val);
                let args = format!("%{}, %{})", abs.name, one.name);
                let sum = self.emit(body, "add", val.dtype, &val.dims, &val.layout, &args, other.bound + 1.0);
                let root = plain(self, body, "sqrt", &sum, sum.bound);
                let args = format!("%{}, %{})", val.name, root.name);
                self.emit(body, "divide", val.dtype, &val.dims, &val.layout, &args, val.bound)
            }
            _ => plain(self, body, "copy", val, val.bound),
        }
    }

    fn transpose(&mut self, body: &mut Body, val: &Val) -> Val {
        let rank = val.dims.len();
        if rank < 2 {
            return self.unary(body, val);
        }
        let order = self.rng.shuffled(rank);
        let dims: Vec<i64> = order.iter().map(|&d| val.dims[d]).collect();
        // Either the bytes move, or only the layout does.
        let layout = match self.rng.one_in(2) {
            true => row_major(rank),
            false => val.layout.iter().filter_map(|&d| order.iter().position(|&o| o == d)).collect(),
        };
        let list = order.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let args = format!("%{}), dimensions={{{list}}}", val.name);
        self.emit(body, "transpose", val.dtype, &dims, &layout, &args, val.bound)
    }

    fn reshape(&mut self, body: &mut Body, val: &Val) -> Val {
        let n = val.n_elems();
        let mut dims = val.dims.clone();
        match self.rng.below(4) {
            0 if dims.len() > 1 => {
                let d = self.rng.below(dims.len() - 1);
                let merged = dims.remove(d + 1);
                dims[d] *= merged;
            }
            1 if dims.len() < 4 => dims.insert(self.rng.below(dims.len() + 1), 1),
            2 => dims = vec![n],
            _ if dims.len() < 3 => {
                let d = self.rng.below(dims.len());
                if let Some(f) = [2, 3, 5, 7].into_iter().find(|f| dims[d] % f == 0 && dims[d] > *f) {
                    dims[d] /= f;
                    dims.insert(d, f);
                }
            }
            _ => {}
        }
        let layout = row_major(dims.len());
        let args = format!("%{})", val.name);
        self.emit(body, "reshape", val.dtype, &dims, &layout, &args, val.bound)
    }

    /// A norm or a maximum of all elements, put back to scale something.
    fn scaled_by_reduction(&mut self, body: &mut Body, val: &Val) -> Val {
        let op = if self.is_exact && self.rng.one_in(3) { "maximum" } else { "add" };
        if val.dtype != DType::F32 {
            return self.convert(body, val);
        }
        let reducer = self.reducer(op, val.dtype);
        let init = match op {
            "add" => self.scalar(body, val.dtype, 0.0),
            _ => self.scalar(body, val.dtype, f64::NEG_INFINITY),
        };
        let all = (0..val.dims.len()).map(|d| d.to_string()).collect::<Vec<_>>().join(",");
        let args = format!("%{}, %{}), dimensions={{{all}}}, to_apply=%{reducer}", val.name, init.name);
        let bound = if op == "add" { val.bound * val.n_elems() as f64 } else { val.bound };
        let norm = self.emit(body, "reduce", val.dtype, &[], &[], &args, bound);
        let norm = self.clamp(body, &norm, 3.0);
        let target = if self.rng.one_in(3) { self.take(body) } else { val.clone() };
        if target.dtype != norm.dtype {
            return self.broadcast(body, &norm, &Val { bound: 3.0, ..val.clone() });
        }
        let norm = self.broadcast(body, &norm, &target);
        let args = format!("%{}, %{})", target.name, norm.name);
        let bound = target.bound * 3.0;
        let scaled = self.emit(body, "multiply", target.dtype, &target.dims, &target.layout, &args, bound);
        self.tame(body, scaled)
    }

    /// A reduction over one dim, repeated along it again (Adafactor's rows and columns).
    fn row_reduction(&mut self, body: &mut Body, val: &Val) -> Val {
        if val.dims.len() < 2 || val.dtype != DType::F32 {
            return self.scaled_by_reduction(body, val);
        }
        let dim = self.rng.below(val.dims.len());
        let reducer = self.reducer("add", val.dtype);
        let zero = self.scalar(body, val.dtype, 0.0);
        let mut dims = val.dims.clone();
        dims.remove(dim);
        let args = format!("%{}, %{}), dimensions={{{dim}}}, to_apply=%{reducer}", val.name, zero.name);
        let bound = val.bound * val.dims[dim] as f64;
        let sums = self.emit(body, "reduce", val.dtype, &dims, &row_major(dims.len()), &args, bound);
        let sums = self.clamp(body, &sums, 4.0);
        body.pool.push(sums.clone());
        let kept: Vec<String> = (0..val.dims.len()).filter(|&d| d != dim).map(|d| d.to_string()).collect();
        let args = format!("%{}), dimensions={{{}}}", sums.name, kept.join(","));
        self.emit(body, "broadcast", val.dtype, &val.dims, &val.layout, &args, 4.0)
    }

    fn convert(&mut self, body: &mut Body, val: &Val) -> Val {
        let to = if val.dtype == DType::BF16 { DType::F32 } else { DType::BF16 };
        if !self.is_exact {
            // Rounding to bf16 would turn the last bit of a sum into the eighth.
            return self.unary(body, val);
        }
        let args = format!("%{})", val.name);
        self.emit(body, "convert", to, &val.dims, &val.layout, &args, val.bound)
    }

    /// Something with an iota or a constant, which have no format of their own.
    fn rebuilt(&mut self, body: &mut Body, val: &Val) -> Val {
        let rebuilt = if val.n_elems() <= 8 && self.rng.one_in(2) {
            let mut next = 0;
            let text = constant(&val.dims, &mut next);
            self.emit(body, "constant", val.dtype, &val.dims, &val.layout, &format!("{text})"), 3.0)
        } else {
            let dim = self.rng.below(val.dims.len());
            let args = format!("), iota_dimension={dim}");
            self.emit(body, "iota", val.dtype, &val.dims, &val.layout, &args, val.dims[dim] as f64)
        };
        let args = format!("%{}, %{})", val.name, rebuilt.name);
        let bound = val.bound + rebuilt.bound;
        let sum = self.emit(body, "add", val.dtype, &val.dims, &val.layout, &args, bound);
        if bound > 200.0 { self.clamp(body, &sum, SMALL) } else { self.tame(body, sum) }
    }

    /// An element of one or of another array, where a third is positive.
    fn chosen(&mut self, body: &mut Body, val: &Val) -> Val {
        if !self.is_exact {
            return self.binary(body, val);
        }
        let (other, decider) = (self.like(body, val), self.like(body, val));
        let zero = self.scalar(body, val.dtype, 0.0);
        let zero = self.broadcast(body, &zero, val);
        let args = format!("%{}, %{}), direction=GT", decider.name, zero.name);
        let is_positive = self.emit(body, "compare", DType::Pred, &val.dims, &val.layout, &args, 1.0);
        let args = format!("%{}, %{}, %{})", is_positive.name, val.name, other.name);
        self.emit(body, "select", val.dtype, &val.dims, &val.layout, &args, val.bound.max(other.bound))
    }

    /// An op that needs its operand whole along some dim.
    fn unshardable(&mut self, body: &mut Body, val: &Val) -> Val {
        let dim = self.rng.below(val.dims.len());
        match self.rng.below(3) {
            0 => {
                let args = format!("%{}), dimensions={{{dim}}}", val.name);
                self.emit(body, "reverse", val.dtype, &val.dims, &val.layout, &args, val.bound)
            }
            1 => {
                let mut dims = val.dims.clone();
                dims[dim] *= 2;
                let other = self.like(body, val);
                let args = format!("%{}, %{}), dimensions={{{dim}}}", val.name, other.name);
                let bound = val.bound.max(other.bound);
                let both = self.emit(body, "concatenate", val.dtype, &dims, &val.layout, &args, bound);
                let slices: Vec<String> = (0..dims.len())
                    .map(|d| if d == dim { format!("[1:{}]", 1 + val.dims[d]) } else { format!("[0:{}]", dims[d]) })
                    .collect();
                let args = format!("%{}), slice={{{}}}", both.name, slices.join(", "));
                self.emit(body, "slice", val.dtype, &val.dims, &val.layout, &args, bound)
            }
            _ if val.dims.len() == 2 && val.dtype == DType::F32 => {
                let square = vec![val.dims[0], val.dims[0]];
                let args = format!("%{0}, %{0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}", val.name);
                let bound = val.bound * val.bound * val.dims[1] as f64;
                let dot = self.emit(body, "dot", val.dtype, &square, &[1, 0], &args, bound);
                let dot = self.clamp(body, &dot, 4.0);
                let args =
                    format!("%{}, %{}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}", dot.name, val.name);
                let bound = 4.0 * val.bound * val.dims[0] as f64;
                let back = self.emit(body, "dot", val.dtype, &val.dims, &[1, 0], &args, bound);
                self.tame(body, back)
            }
            _ => self.unary(body, val),
        }
    }

    /// Through a tuple, a barrier or a copy.
    fn handed_on(&mut self, body: &mut Body, val: &Val) -> Val {
        let other = self.take(body);
        let (tuple, barrier) = (self.name("pair"), self.name("barrier"));
        let shapes = format!("({}, {})", val.shape(), other.shape());
        body.lines.push(format!("%{tuple} = {shapes} tuple(%{}, %{})", val.name, other.name));
        let from = if self.rng.one_in(2) {
            body.lines.push(format!("%{barrier} = {shapes} opt-barrier(%{tuple})"));
            barrier
        } else {
            tuple
        };
        self.element(body, &from, 0, val)
    }

    /// Element `k` of a tuple.
    pub(super) fn element(&mut self, body: &mut Body, tuple: &str, k: usize, like: &Val) -> Val {
        let args = format!("%{tuple}), index={k}");
        self.emit(body, "get-tuple-element", like.dtype, &like.dims, &like.layout, &args, like.bound)
    }
}

/// A literal of numbers 0, 1, 2, 3, 0, …
fn constant(dims: &[i64], next: &mut usize) -> String {
    let Some((&first, rest)) = dims.split_first() else {
        *next += 1;
        return ((*next - 1) % 4).to_string();
    };
    let parts: Vec<String> = (0..first).map(|_| constant(rest, next)).collect();
    format!("{{ {} }}", parts.join(", "))
}
