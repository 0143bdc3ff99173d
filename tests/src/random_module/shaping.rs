//! Steps that move elements, contract, sort and draw numbers.

use super::{Body, Gen, MAX_ELEMS, Uniform, Val, list, shape_text};
use hlo_ir::DType;

impl Gen {
    pub(super) fn shaping_step(&mut self, body: &mut Body) -> Vec<Val> {
        let x = self.any(body);
        let (t, u) = (x.dtype, x.uniform);
        let rank = x.dims.len();
        let axis = self.rng.below(rank);
        vec![match self.rng.below(12) {
            0 => self.scalar_or_iota(body),
            1 if rank < 3 && x.n_elems() * 3 <= MAX_ELEMS => {
                let at = self.rng.below(rank + 1);
                let mut dims = x.dims.clone();
                dims.insert(at, 1 + self.rng.below(3) as i64);
                let kept: Vec<i64> = (0..=rank as i64).filter(|&d| d != at as i64).collect();
                self.emit(body, t, &dims, &format!("broadcast({}), dimensions={{{}}}", x.name, list(&kept)), u)
            }
            2 if rank > 0 => {
                let mut dims = x.dims.clone();
                dims.rotate_left(1);
                self.emit(body, t, &dims, &format!("reshape({})", x.name), u)
            }
            3 if rank > 1 => {
                let perm: Vec<usize> = self.rng.shuffled(rank);
                let dims: Vec<i64> = perm.iter().map(|&d| x.dims[d]).collect();
                let perm: Vec<i64> = perm.iter().map(|&d| d as i64).collect();
                self.emit(body, t, &dims, &format!("transpose({}), dimensions={{{}}}", x.name, list(&perm)), u)
            }
            4 if rank > 0 => self.emit(body, t, &x.dims, &format!("reverse({}), dimensions={{{axis}}}", x.name), u),
            5 if rank > 0 => {
                let mut dims = x.dims.clone();
                let start = self.rng.below(dims[axis] as usize) as i64;
                dims[axis] -= start;
                let ranges: Vec<String> =
                    (0..rank).map(|d| format!("[{}:{}]", if d == axis { start } else { 0 }, x.dims[d])).collect();
                self.emit(body, t, &dims, &format!("slice({}), slice={{{}}}", x.name, ranges.join(", ")), u)
            }
            6 | 7 if rank > 0 => self.dynamic(body, &x),
            8 if x.n_elems() * 2 <= MAX_ELEMS && rank > 0 => {
                let y = self.any_like(body, &x);
                let mut dims = x.dims.clone();
                dims[axis] *= 2;
                let text = format!("concatenate({}, {}), dimensions={{{axis}}}", x.name, y.name);
                self.emit(body, t, &dims, &text, u.meet(y.uniform))
            }
            9 if rank > 0 && x.n_elems() * 2 <= MAX_ELEMS => {
                let any = self.any(body);
                let fill = self.shape_as(body, &any, t, &[]);
                let dims: Vec<i64> = x.dims.iter().enumerate().map(|(d, &n)| n + (d == axis) as i64).collect();
                let config: Vec<&str> = (0..rank).map(|d| if d == axis { "1_0" } else { "0_0" }).collect();
                let text = format!("pad({}, {}), padding={}", x.name, fill.name, config.join("x"));
                self.emit(body, t, &dims, &text, u.meet(fill.uniform))
            }
            10 => return self.draw(body, &x),
            11 => return self.through_tuple(body, &x),
            _ => self.emit(body, t, &x.dims, &format!("copy({})", x.name), u),
        }]
    }

    fn scalar_or_iota(&mut self, body: &mut Body) -> Val {
        if self.rng.one_in(2) {
            return self.emit(body, DType::S32, &[4, 2], "iota(), iota_dimension=0", Uniform::Everywhere);
        }
        let text = self.rng.below(5).to_string();
        self.scalar(body, DType::F32, &text)
    }

    /// A slice at, or an update of, a place that the data choose.
    fn dynamic(&mut self, body: &mut Body, x: &Val) -> Val {
        let small: Vec<i64> = x.dims.iter().map(|&n| (n + 1) / 2).collect();
        let any = self.any(body);
        let start = self.shape_as(body, &any, DType::S32, &[]);
        let starts = vec![start.name.as_str(); x.dims.len()].join(", ");
        let uniform = x.uniform.meet(start.uniform);
        if self.rng.one_in(2) {
            let text = format!("dynamic-slice({}, {starts}), dynamic_slice_sizes={{{}}}", x.name, list(&small));
            return self.emit(body, x.dtype, &small, &text, uniform);
        }
        let any = self.any(body);
        let update = self.shape_as(body, &any, x.dtype, &small);
        let text = format!("dynamic-update-slice({}, {}, {starts})", x.name, update.name);
        self.emit(body, x.dtype, &x.dims, &text, uniform.meet(update.uniform))
    }

    /// Random bits whose state is data.
    fn draw(&mut self, body: &mut Body, x: &Val) -> Vec<Val> {
        let key = self.shape_as(body, x, DType::U32, &[4]);
        let pairs = self.resize(body, &key, &[2, 2]);
        let state = self.emit(body, DType::U64, &[2], &format!("bitcast-convert({})", pairs.name), key.uniform);
        let algorithm = *self.rng.pick(&["rng_three_fry", "rng_philox"]);
        let shape = format!("({}, {})", state.shape(), shape_text(DType::U32, &[3]));
        let tuple = self.emit_tuple(body, &shape, &format!("rng-bit-generator({}), algorithm={algorithm}", state.name));
        let bits = Val { name: String::new(), dtype: DType::U32, dims: vec![3], uniform: key.uniform };
        vec![self.element(body, &tuple, 1, &bits, key.uniform)]
    }

    /// Through nested tuples, often with a barrier, side by side with another value.
    fn through_tuple(&mut self, body: &mut Body, x: &Val) -> Vec<Val> {
        let y = self.any(body);
        let shape = format!("({}, ({}, {}))", x.shape(), y.shape(), x.shape());
        let inner = self.emit_tuple(
            body,
            &format!("({}, {})", y.shape(), x.shape()),
            &format!("tuple({}, {})", y.name, x.name),
        );
        let outer = self.emit_tuple(body, &shape, &format!("tuple({}, {inner})", x.name));
        let barrier =
            if self.rng.one_in(2) { self.emit_tuple(body, &shape, &format!("opt-barrier({outer})")) } else { outer };
        let text = format!("get-tuple-element({barrier}), index=1");
        let inner = self.emit_tuple(body, &format!("({}, {})", y.shape(), x.shape()), &text);
        vec![self.element(body, &inner, 0, &y, y.uniform), self.element(body, &barrier, 0, x, x.uniform)]
    }

    /// Dots, reductions, sorts, gathers and scatters.
    pub(super) fn contraction_step(&mut self, body: &mut Body) -> Vec<Val> {
        let x = self.any_of(body, |t| matches!(t, DType::F32 | DType::S32 | DType::BF16));
        let (t, u) = (x.dtype, x.uniform);
        vec![match self.rng.below(6) {
            0 => {
                let (any, a) = (self.any(body), self.resize(body, &x, &[2, 3]));
                let b = self.shape_as(body, &any, t, &[3, 2]);
                let dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
                self.emit(body, t, &[2, 2], &format!("dot({}, {}), {dims}", a.name, b.name), u.meet(b.uniform))
            }
            1 | 2 => {
                let (to_apply, neutral) = self.reducer(t);
                let init = self.scalar(body, t, neutral);
                let keep = self.rng.below(x.dims.len() + 1).min(x.dims.len());
                let dims: Vec<i64> = (keep as i64..x.dims.len() as i64).collect();
                let text =
                    format!("reduce({}, {}), dimensions={{{}}}, to_apply={to_apply}", x.name, init.name, list(&dims));
                self.emit(body, t, &x.dims[..keep], &text, u)
            }
            3 => {
                let n = x.n_elems();
                let flat = self.resize(body, &x, &[n]);
                let to_apply = self.scalar_comp("compare , direction=LT", t);
                let text = format!("sort({}), dimensions={{0}}, is_stable=true, to_apply={to_apply}", flat.name);
                self.emit(body, t, &[n], &text, u)
            }
            4 => {
                let table = self.resize(body, &x, &[4, 2]);
                let any = self.any(body);
                let indices = self.shape_as(body, &any, DType::S32, &[3]);
                let attrs = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}";
                let text = format!("gather({}, {}), {attrs}", table.name, indices.name);
                self.emit(body, t, &[3, 2], &text, u.meet(indices.uniform))
            }
            _ => {
                let table = self.resize(body, &x, &[4, 2]);
                let (any, other) = (self.any(body), self.any(body));
                let indices = self.shape_as(body, &any, DType::S32, &[3]);
                let updates = self.shape_as(body, &other, t, &[3, 2]);
                let to_apply = self.scalar_comp("add", t);
                let attrs = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1";
                let text = format!(
                    "scatter({}, {}, {}), {attrs}, to_apply={to_apply}",
                    table.name, indices.name, updates.name
                );
                self.emit(body, t, &[4, 2], &text, u.meet(indices.uniform).meet(updates.uniform))
            }
        }]
    }
}
