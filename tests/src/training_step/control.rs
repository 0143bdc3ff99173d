//! Loops, branches, calls (some of one computation from several places), and the entry of a training step.

use super::{Body, Generator, LARGE, SMALL, Val, row_major};
use crate::random_module::Input;
use hlo_ir::DType;

impl Generator {
    /// A computation entered from here, if it is not too deep already.
    pub(super) fn control(&mut self, body: &mut Body, depth: usize) {
        if depth == 0 {
            return;
        }
        match self.rng.below(5) {
            0 | 1 => self.conditional(body, depth - 1),
            2 => self.loop_of(body, depth - 1),
            3 => self.call(body, depth - 1, "call"),
            _ => self.call(body, 0, "fusion"),
        }
    }

    /// Some values of the pool.
    fn some(&mut self, body: &Body, at_most: usize) -> Vec<Val> {
        let n = 1 + self.rng.below(at_most);
        let order = self.rng.shuffled(body.pool.len());
        order.into_iter().take(n).map(|i| body.pool[i].clone()).collect()
    }

    fn tuple(&mut self, body: &mut Body, vals: &[Val]) -> (String, String) {
        let name = self.name("tuple");
        let shape = format!("({})", vals.iter().map(Val::shape).collect::<Vec<_>>().join(", "));
        let names = vals.iter().map(|v| format!("%{}", v.name)).collect::<Vec<_>>().join(", ");
        body.lines.push(format!("%{name} = {shape} tuple({names})"));
        (name, shape)
    }

    /// A body whose pool is the elements of its one parameter.
    fn body_of(&mut self, shape: &str, vals: &[Val]) -> Body {
        let mut inner = Body::default();
        let param = self.name("param");
        inner.lines.push(format!("%{param} = {shape} parameter(0)"));
        for (k, val) in vals.iter().enumerate() {
            let element = self.element(&mut inner, &param, k, val);
            match val.dtype {
                DType::S32 => inner.counters.push(element),
                _ => inner.pool.push(element),
            }
        }
        inner
    }

    /// A result for each of `specs`: something of its type, no larger, in its layout.
    fn results(&mut self, body: &mut Body, specs: &[Val]) -> Vec<Val> {
        let mut out = Vec::new();
        for spec in specs {
            let mut val = self.like(body, spec);
            if val.bound > spec.bound {
                val = self.clamp(body, &val, spec.bound);
            }
            if val.layout != spec.layout {
                let args = format!("%{})", val.name);
                val = self.emit(body, "copy", spec.dtype, &spec.dims, &spec.layout, &args, spec.bound);
            }
            out.push(val);
        }
        out
    }

    fn conditional(&mut self, body: &mut Body, depth: usize) {
        let Some(counter) = body.counters.first().cloned() else { return };
        let operands = self.some(body, 4);
        let specs: Vec<Val> = operands.iter().take(2).map(|v| Val { bound: LARGE, ..v.clone() }).collect();
        let mut branches: Vec<String> = Vec::new();
        let mut tuples: Vec<String> = Vec::new();
        for _ in 0..2 {
            if !branches.is_empty() && self.rng.one_in(5) {
                // One computation for both branches, on other values.
                let others = self.results(body, &operands);
                tuples.push(format!("%{}", self.tuple(body, &others).0));
                branches.push(branches[0].clone());
                continue;
            }
            // Each branch takes the same values in an order of its own; the first are its results' types.
            let (tuple, shape) = self.tuple(body, &operands);
            let mut inner = self.body_of(&shape, &operands);
            for _ in 0..self.rng.below(5) {
                self.step(&mut inner, depth);
            }
            let results = self.results(&mut inner, &specs);
            let name = self.name("branch");
            self.close(&name, inner, &results, false);
            branches.push(format!("%{name}"));
            tuples.push(format!("%{tuple}"));
        }
        let bound = self.rng.below(4);
        let limit = self.scalar(body, DType::S32, bound as f64);
        let args = format!("%{}, %{}), direction=LT", counter.name, limit.name);
        let pred = self.emit(body, "compare", DType::Pred, &[], &[], &args, 1.0);
        let name = self.name("conditional");
        let shape = specs.iter().map(Val::shape).collect::<Vec<_>>().join(", ");
        body.lines.push(format!(
            "%{name} = ({shape}) conditional(%{}, {}), true_computation={}, false_computation={}",
            pred.name,
            tuples.join(", "),
            branches[0],
            branches[1]
        ));
        self.take_elements(body, &name, &specs);
    }

    fn take_elements(&mut self, body: &mut Body, tuple: &str, specs: &[Val]) {
        for (k, spec) in specs.iter().enumerate() {
            if spec.dtype != DType::S32 {
                let element = self.element(body, tuple, k, spec);
                body.pool.push(element);
            }
        }
    }

    fn loop_of(&mut self, body: &mut Body, depth: usize) {
        let carried = self.some(body, 5);
        let n_steps = 2 + self.rng.below(8);
        self.training_loop(body, &carried, n_steps, depth);
    }

    /// A loop of two or three rounds.
    fn training_loop(&mut self, body: &mut Body, carried: &[Val], n_steps: usize, depth: usize) {
        let mut vals = vec![self.scalar(body, DType::S32, 0.0)];
        vals.extend(carried.iter().map(|v| Val { bound: v.bound.max(SMALL), ..v.clone() }));
        let (tuple, shape) = self.tuple(body, &vals);
        let mut inner = self.body_of(&shape, &vals);
        for _ in 0..n_steps {
            self.step(&mut inner, depth);
        }
        let counter = inner.counters[0].clone();
        let one = self.scalar(&mut inner, DType::S32, 1.0);
        let args = format!("%{}, %{})", counter.name, one.name);
        let next = self.emit(&mut inner, "add", DType::S32, &[], &[], &args, 1.0);
        let mut results = vec![next];
        results.extend(self.results(&mut inner, &vals[1..]));
        let step = self.name("body");
        self.close(&step, inner, &results, false);

        let (condition, param, count, limit, less) =
            (self.name("condition"), self.name("param"), self.name("count"), self.name("limit"), self.name("less"));
        let rounds = 2 + self.rng.below(2);
        let mut text = format!(
            "%{condition} {{\n  %{param} = {shape} parameter(0)\n  %{count} = s32[] get-tuple-element(%{param}), index=0\n  \
             %{limit} = s32[] constant({rounds})\n"
        );
        let compared = format!("%{less} = pred[] compare(%{count}, %{limit}), direction=LT\n");
        text += &match self.rng.one_in(8) && vals[1].dtype == DType::F32 {
            true => format!("  {compared}{}", self.small_enough(&param, &less, &vals[1])),
            false => format!("  ROOT {compared}"),
        };
        self.computations.push(text + "}\n");
        let mut init = tuple;
        for site in 0..self.n_sites().min(2) {
            if site > 0 {
                let mut again = vec![self.scalar(body, DType::S32, 0.0)];
                again.extend(self.results(body, &vals[1..]));
                init = self.tuple(body, &again).0;
            }
            let name = self.name("while");
            body.lines.push(format!("%{name} = {shape} while(%{init}), condition=%{condition}, body=%{step}"));
            self.take_elements(body, &name, &vals);
        }
    }

    /// A condition that also looks at what is carried: whether its sum is not too large (it never is).
    fn small_enough(&mut self, param: &str, less: &str, val: &Val) -> String {
        let mut body = Body::default();
        let val = self.element(&mut body, param, 1, val);
        let reducer = self.reducer("add", DType::F32);
        let zero = self.scalar(&mut body, DType::F32, 0.0);
        let all = (0..val.dims.len()).map(|d| d.to_string()).collect::<Vec<_>>().join(",");
        let args = format!("%{}, %{}), dimensions={{{all}}}, to_apply=%{reducer}", val.name, zero.name);
        let sum = self.emit(&mut body, "reduce", DType::F32, &[], &[], &args, 1e9);
        let large = self.scalar(&mut body, DType::F32, 1e9);
        let args = format!("%{}, %{}), direction=LT", sum.name, large.name);
        let is_small = self.emit(&mut body, "compare", DType::Pred, &[], &[], &args, 1.0);
        let goes_on = self.name("goes_on");
        body.lines.push(format!("ROOT %{goes_on} = pred[] and(%{less}, %{})", is_small.name));
        body.lines.iter().map(|line| format!("  {line}\n")).collect()
    }

    fn call(&mut self, body: &mut Body, depth: usize, op: &str) {
        let operands = self.some(body, 4);
        let mut inner = Body::default();
        for (k, operand) in operands.iter().enumerate() {
            let param = self.emit(
                &mut inner,
                "parameter",
                operand.dtype,
                &operand.dims,
                &operand.layout,
                &format!("{k})"),
                operand.bound,
            );
            inner.pool.push(param);
        }
        let n_steps = 1 + self.rng.below(5);
        for _ in 0..n_steps {
            let n = inner.lines.len();
            let (pool, channel) = (inner.pool.len(), self.next_channel);
            self.step(&mut inner, depth);
            // Collectives cannot stand in a fusion.
            if op == "fusion" && inner.lines[n..].iter().any(|l| l.contains("all-reduce") || l.contains("opt-barrier"))
            {
                inner.lines.truncate(n);
                inner.pool.truncate(pool);
                self.next_channel = channel;
            }
        }
        let n_results = 1 + self.rng.below(2);
        let results: Vec<Val> = inner.pool.iter().rev().take(n_results).cloned().collect();
        let callee = self.name(op);
        self.close(&callee, inner, &results, false);
        let shape = results.iter().map(Val::shape).collect::<Vec<_>>().join(", ");
        let how = match op {
            "fusion" => format!("kind=kLoop, calls=%{callee}"),
            _ => format!("to_apply=%{callee}"),
        };
        let mut arguments = operands.clone();
        for site in 0..self.n_sites() {
            if site > 0 {
                arguments = self.results(body, &operands);
            }
            let name = self.name(op);
            let names = arguments.iter().map(|v| format!("%{}", v.name)).collect::<Vec<_>>().join(", ");
            body.lines.push(format!("%{name} = ({shape}) {op}({names}), {how}"));
            self.take_elements(body, &name, &results);
        }
    }

    /// From how many places a computation is called.
    fn n_sites(&mut self) -> usize {
        if self.rng.one_in(3) { 2 + self.rng.below(2) } else { 1 }
    }

    /// The dims of a weight: odd sizes, one to three of them.
    fn weight_dims(&mut self) -> Vec<i64> {
        let sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16];
        let rank = 1 + self.rng.below(3);
        let mut dims: Vec<i64> = (0..rank).map(|_| *self.rng.pick(&sizes)).collect();
        if dims.iter().product::<i64>() < 2 {
            dims[0] = 5;
        }
        dims
    }

    /// The next value of all state: each from itself and the gradient that the data give, which follow the state in `vals`.
    fn updated(&mut self, body: &mut Body, vals: &[Val], params: &[(DType, Vec<i64>, bool)]) -> Vec<Val> {
        let (mut out, mut state) = (Vec::new(), Vec::new());
        for (val, (_, _, is_state)) in vals.iter().zip(params) {
            if *is_state {
                state.push(val.clone());
                continue;
            }
            let sum = self.all_reduce(body, val);
            for old in state.drain(..) {
                let mut change = sum.clone();
                if self.rng.one_in(3) {
                    change = self.binary(body, &sum);
                }
                let op = if self.rng.one_in(2) { "add" } else { "subtract" };
                let args = format!("%{}, %{})", old.name, change.name);
                let bound = old.bound + change.bound;
                let new = self.emit(body, op, old.dtype, &old.dims, &old.layout, &args, bound);
                let new = self.tame(body, new);
                body.pool.push(new.clone());
                out.push(new);
            }
        }
        out
    }

    /// The entry: weights, state of the same shapes, a counter, data that differ between the devices.
    pub(super) fn entry(&mut self, n_steps: usize) -> Vec<Input> {
        let mut body = Body::default();
        let mut inputs = Vec::new();
        let n = self.n_devices() as u32;
        let n_weights = 1 + self.rng.below(3);
        let mut params: Vec<(DType, Vec<i64>, bool)> = vec![(DType::S32, vec![], true)];
        for _ in 0..n_weights {
            let dims = self.weight_dims();
            for _ in 0..1 + self.rng.below(3) {
                params.push((DType::F32, dims.clone(), true));
            }
            params.push((DType::F32, dims, false));
        }
        for (k, (dtype, dims, is_replicated)) in params.iter().enumerate() {
            let layout = if self.rng.one_in(3) { (0..dims.len()).collect() } else { row_major(dims.len()) };
            let mut args = format!("{k})");
            if *is_replicated && self.devices.replicas > 1 {
                args += ", parameter_replication={true}";
            }
            if *is_replicated && self.devices.partitions > 1 {
                args += ", sharding={replicated}";
            }
            let param = self.emit(&mut body, "parameter", *dtype, dims, &layout, &args, 3.0);
            let key_of_device = if *is_replicated { vec![0; n as usize] } else { (0..n).collect() };
            inputs.push(Input { dtype: *dtype, dims: dims.clone(), key_of_device });
            match dtype {
                DType::S32 => body.counters.push(param),
                _ => body.pool.push(param),
            }
        }
        let state = body.pool.clone();
        let is_single_step = !self.rng.one_in(3);
        match is_single_step {
            false => {
                // A training loop round everything.
                self.training_loop(&mut body, &state, n_steps, 2);
                for _ in 0..self.rng.below(3) {
                    self.step(&mut body, 1);
                }
            }
            true => {
                for _ in 0..n_steps {
                    self.step(&mut body, 2);
                }
            }
        }
        let mut results: Vec<Val> = match is_single_step && self.rng.one_in(2) {
            true => self.updated(&mut body, &state, &params[1..]),
            false => Vec::new(),
        };
        let n_results = 1 + self.rng.below(5);
        let recent = body.pool.len().saturating_sub(8);
        for _ in 0..n_results {
            let i = recent + self.rng.below(body.pool.len() - recent);
            results.push(body.pool[i].clone());
        }
        self.close("entry", body, &results, true);
        inputs
    }
}
