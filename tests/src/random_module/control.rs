//! Steps that call computations: calls and fusions (several times), loops, branches.

use super::{Body, Gen, Uniform, Val};
use hlo_ir::DType;

/// A computation that may be called again.
#[derive(Clone, Debug)]
pub(super) struct Callable {
    name: String,
    params: Vec<Val>,
    results: Vec<Val>,
    /// Which devices must run it in step.
    scope: Uniform,
    is_fusion: bool,
}

impl Gen {
    pub(super) fn control_step(&mut self, body: &mut Body) -> Vec<Val> {
        match self.rng.below(4) {
            0 => self.new_call(body),
            1 => self.repeated_call(body),
            2 => self.loop_step(body),
            _ => self.branch_step(body),
        }
    }

    /// A computation whose parameters have the types of `params`.
    fn sub_body(&mut self, params: &[Val], scope: Uniform, depth: usize) -> Body {
        let mut body = Body { lines: Vec::new(), pool: Vec::new(), scope, depth };
        for (number, param) in params.iter().enumerate() {
            let val = self.emit(&mut body, param.dtype, &param.dims, &format!("parameter({number})"), param.uniform);
            body.pool.push(val);
        }
        body
    }

    /// A computation with one tuple parameter whose elements have the types of `elements`.
    fn tuple_body(&mut self, elements: &[Val], scope: Uniform, depth: usize) -> Body {
        let mut body = Body { lines: Vec::new(), pool: Vec::new(), scope, depth };
        let tuple = self.emit_tuple(&mut body, &tuple_shape(elements), "parameter(0)");
        for (index, like) in elements.iter().enumerate() {
            let val = self.element(&mut body, &tuple, index, like, like.uniform);
            body.pool.push(val);
        }
        body
    }

    /// Ends a computation that returns the tuple of `results`.
    fn finish(&mut self, mut body: Body, hint: &str, results: &[Val]) -> String {
        let root = self.fresh("root");
        body.lines.push(format!("ROOT {root} = {} tuple({})", tuple_shape(results), names(results)));
        let name = self.fresh(hint);
        self.done.push(format!("{name} {{\n  {}\n}}", body.lines.join("\n  ")));
        name
    }

    fn some_steps(&mut self, body: &mut Body) {
        for _ in 0..1 + self.rng.below(3) {
            self.step(body);
        }
    }

    fn new_call(&mut self, body: &mut Body) -> Vec<Val> {
        let args: Vec<Val> = (0..1 + self.rng.below(3)).map(|_| self.any(body)).collect();
        let is_fusion = self.rng.one_in(2);
        let scope = if is_fusion { Uniform::Nowhere } else { body.scope };
        // The next caller may pass anything.
        let params: Vec<Val> = args.iter().map(|a| Val { uniform: Uniform::Nowhere, ..a.clone() }).collect();
        let mut callee = self.sub_body(&params, scope, body.depth + if is_fusion { 2 } else { 1 });
        self.some_steps(&mut callee);
        let results: Vec<Val> = callee.pool.iter().rev().take(3).cloned().collect();
        let name = self.finish(callee, if is_fusion { "fused" } else { "called" }, &results);
        let callable = Callable { name, params, results, scope, is_fusion };
        let mut new = self.emit_call(body, &callable, &args);
        self.callables.push(callable);
        if self.rng.one_in(2) {
            new.extend(self.repeated_call(body));
        }
        new
    }

    /// Calls something that was called before, with other arguments.
    fn repeated_call(&mut self, body: &mut Body) -> Vec<Val> {
        let fitting: Vec<usize> = (0..self.callables.len())
            .filter(|&i| self.callables[i].is_fusion || self.callables[i].scope == body.scope)
            .collect();
        if fitting.is_empty() {
            return self.elementwise_step(body);
        }
        let callable = self.callables[*self.rng.pick(&fitting)].clone();
        let args: Vec<Val> = callable.params.iter().map(|p| self.any_like(body, p)).collect();
        self.emit_call(body, &callable, &args)
    }

    fn emit_call(&mut self, body: &mut Body, callable: &Callable, args: &[Val]) -> Vec<Val> {
        let text = match callable.is_fusion {
            true => format!("fusion({}), kind=kLoop, calls={}", names(args), callable.name),
            false => format!("call({}), to_apply={}", names(args), callable.name),
        };
        let tuple = self.emit_tuple(body, &tuple_shape(&callable.results), &text);
        let results = callable.results.iter().enumerate();
        results.map(|(i, like)| self.element(body, &tuple, i, like, Uniform::Nowhere)).collect()
    }

    /// A loop whose trip count is a constant or comes from data.
    fn loop_step(&mut self, body: &mut Body) -> Vec<Val> {
        let limit = if self.rng.one_in(2) {
            let text = self.rng.below(4).to_string();
            self.scalar(body, DType::S32, &text)
        } else {
            let any = self.any(body);
            let raw = self.shape_as(body, &any, DType::S32, &[]);
            let (low, high) = (self.scalar(body, DType::S32, "0"), self.scalar(body, DType::S32, "3"));
            let text = format!("clamp({}, {}, {})", low.name, raw.name, high.name);
            self.emit(body, DType::S32, &[], &text, raw.uniform)
        };
        let zero = self.scalar(body, DType::S32, "0");
        let carried: Vec<Val> = (0..1 + self.rng.below(3)).map(|_| self.any(body)).collect();
        // What the loop only takes in a narrower type.
        let any = self.any(body);
        let wide = self.convert(body, &any, DType::F32);
        let init: Vec<Val> = [zero, limit.clone()].into_iter().chain(carried.clone()).chain([wide]).collect();
        let init_tuple = self.emit_tuple(body, &tuple_shape(&init), &format!("tuple({})", names(&init)));
        let scope = body.scope.meet(limit.uniform);
        // Inside, the counter and the limit are as uniform as those that are still there.
        let inside: Vec<Val> = init
            .iter()
            .enumerate()
            .map(|(i, v)| Val { uniform: if i < 2 { limit.uniform } else { Uniform::Nowhere }, ..v.clone() })
            .collect();
        let mut condition = self.tuple_body(&inside, Uniform::Nowhere, 9);
        let text = format!("compare({}, {}), direction=LT", condition.pool[0].name, condition.pool[1].name);
        let less = self.fresh("less");
        condition.lines.push(format!("ROOT {less} = pred[] {text}"));
        let condition_name = self.fresh("condition");
        self.done.push(format!("{condition_name} {{\n  {}\n}}", condition.lines.join("\n  ")));

        let mut inner = self.tuple_body(&inside, scope, body.depth + 1);
        let (i, limit_inside) = (inner.pool[0].clone(), inner.pool[1].clone());
        let wide_inside = inner.pool.remove(init.len() - 1);
        let piece =
            if self.rng.one_in(2) { wide_inside.clone() } else { self.resize(&mut inner, &wide_inside, &[2, 3]) };
        let narrow = *self.rng.pick(&[DType::BF16, DType::F16, DType::S8]);
        let narrowed = self.convert(&mut inner, &piece, narrow);
        inner.pool.push(narrowed);
        self.some_steps(&mut inner);
        let one = self.scalar(&mut inner, DType::S32, "1");
        let text = format!("add({}, {})", i.name, one.name);
        let mut results = vec![self.emit(&mut inner, DType::S32, &[], &text, i.uniform), limit_inside];
        for like in &carried {
            results.push(self.any_like(&mut inner, like));
        }
        results.push(wide_inside);
        let name = self.finish(inner, "loop_body", &results);
        let text = format!("while({init_tuple}), condition={condition_name}, body={name}");
        let tuple = self.emit_tuple(body, &tuple_shape(&init), &text);
        (0..init.len() - 1)
            .map(|index| {
                let uniform = if index < 2 { limit.uniform } else { Uniform::Nowhere };
                self.element(body, &tuple, index, &init[index], uniform)
            })
            .collect()
    }

    /// A branch on a constant, on data or on the device.
    fn branch_step(&mut self, body: &mut Body) -> Vec<Val> {
        let any = self.any(body);
        let is_indexed = self.rng.one_in(2);
        let predicate = self.shape_as(body, &any, if is_indexed { DType::S32 } else { DType::Pred }, &[]);
        let scope = body.scope.meet(predicate.uniform);
        let n_branches = if is_indexed { 1 + self.rng.below(3) } else { 2 };
        let results: Vec<Val> = (0..1 + self.rng.below(2)).map(|_| self.any(body)).collect();
        let (mut operands, mut branches) = (vec![predicate.name.clone()], Vec::new());
        for _ in 0..n_branches {
            let args: Vec<Val> = (0..1 + self.rng.below(3)).map(|_| self.any(body)).collect();
            operands.push(self.emit_tuple(body, &tuple_shape(&args), &format!("tuple({})", names(&args))));
            let mut branch = self.tuple_body(&args, scope, body.depth + 1);
            self.some_steps(&mut branch);
            let values: Vec<Val> = results.iter().map(|like| self.any_like(&mut branch, like)).collect();
            branches.push(self.finish(branch, "branch", &values));
        }
        let attrs = match is_indexed {
            true => format!("branch_computations={{{}}}", branches.join(", ")),
            false => format!("true_computation={}, false_computation={}", branches[0], branches[1]),
        };
        let text = format!("conditional({}), {attrs}", operands.join(", "));
        let tuple = self.emit_tuple(body, &tuple_shape(&results), &text);
        (0..results.len()).map(|i| self.element(body, &tuple, i, &results[i], Uniform::Nowhere)).collect()
    }
}

fn tuple_shape(vals: &[Val]) -> String {
    format!("({})", vals.iter().map(Val::shape).collect::<Vec<_>>().join(", "))
}

fn names(vals: &[Val]) -> String {
    vals.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ")
}
