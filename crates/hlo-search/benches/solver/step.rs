//! A made-up training step: layers of attention and of dense operations, the way back, and the updates of the parameters.

use super::solver::Cost;
use std::collections::HashMap;

/// What an axis of the mesh does to a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    Replicated,
    Dim(u8),
    Partial,
}
use Form::{Dim, Partial, Replicated};

/// What an operation computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Not linear: no partial sums.
    Pointwise,
    Linear,
    /// Linear, with its dims in another order.
    Turned,
    /// `[batch, rows, inner] x [inner, columns]`.
    Dot,
    /// A parameter of two dims.
    Leaf,
    /// The form in which a value is kept.
    Hub,
}

impl Kind {
    /// What an axis may do; the result's form stands for it.
    fn forms(self) -> &'static [Form] {
        match self {
            Kind::Pointwise => &[Replicated, Dim(0), Dim(1), Dim(2)],
            Kind::Linear | Kind::Turned | Kind::Dot | Kind::Hub => &[Replicated, Dim(0), Dim(1), Dim(2), Partial],
            Kind::Leaf => &[Replicated, Dim(0), Dim(1)],
        }
    }

    /// The forms by axis, of each state.
    pub(crate) fn states(self, n_axes: usize) -> Vec<Vec<Form>> {
        let with_all = |state: Vec<Form>| self.forms().iter().map(move |form| [&state[..], &[*form]].concat());
        (0..n_axes).fold(vec![vec![]], |states, _| states.into_iter().flat_map(with_all).collect())
    }

    /// The form in which the operand must be for a result.
    pub(crate) fn needs(self, operand: usize, form: Form) -> Form {
        match (self, operand, form) {
            (Kind::Dot, 0, Dim(2)) => Replicated,
            (Kind::Dot, 0, Partial) => Dim(2),
            (Kind::Dot, _, Dim(2)) => Dim(1),
            (Kind::Dot, _, Partial) => Dim(0),
            (Kind::Dot, _, Dim(_)) => Replicated,
            (Kind::Turned, _, Dim(dim)) => Dim((dim + 1) % 3),
            (Kind::Pointwise | Kind::Linear | Kind::Turned | Kind::Dot | Kind::Leaf | Kind::Hub, _, form) => form,
        }
    }
}

pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) n_bytes: Cost,
    /// Picoseconds on one device.
    pub(crate) work: Cost,
    pub(crate) inputs: Vec<usize>,
    pub(crate) class: u32,
}

/// The operations of a step.
#[derive(Default)]
pub(crate) struct Step {
    pub(crate) ops: Vec<Op>,
    /// The place in the layer, which is the class of what repeats.
    place: u32,
    /// What the forward pass of the layer left to do on the way back: the operation, its inputs.
    tape: Vec<(Kind, usize, Vec<usize>)>,
    /// Pairs of operations that must be in the same form.
    pub(crate) tied: Vec<(usize, usize)>,
}

pub(crate) const ACTIVATION: Cost = 64 << 20;

impl Step {
    fn add(&mut self, kind: Kind, n_bytes: Cost, inputs: Vec<usize>) -> usize {
        let work = match kind {
            Kind::Dot => n_bytes * 64,
            Kind::Pointwise | Kind::Linear | Kind::Turned => n_bytes * 2,
            Kind::Leaf | Kind::Hub => 0,
        };
        self.place += 1;
        self.ops.push(Op { kind, n_bytes, work, inputs, class: self.place });
        self.ops.len() - 1
    }

    fn forward(&mut self, kind: Kind, n_bytes: Cost, inputs: Vec<usize>) -> usize {
        let op = self.add(kind, n_bytes, inputs.clone());
        self.tape.push((kind, op, inputs));
        op
    }

    fn chain(&mut self, mut value: usize, n: usize) -> usize {
        for _ in 0..n {
            value = self.forward(Kind::Pointwise, self.ops[value].n_bytes, vec![value]);
        }
        value
    }

    fn dense(&mut self, input: usize, n_bytes: Cost, n_weight_bytes: Cost) -> usize {
        let weight = self.add(Kind::Leaf, n_weight_bytes, vec![]);
        let product = self.forward(Kind::Dot, n_bytes, vec![input, weight]);
        self.forward(Kind::Linear, n_bytes, vec![product])
    }

    fn layer(&mut self, input: usize) -> usize {
        let normal = self.chain(input, 6);
        let [query, key, value] = [(); 3].map(|()| self.dense(normal, ACTIVATION, 4 << 20));
        let [query, key] = [query, key].map(|value| self.forward(Kind::Turned, ACTIVATION, vec![value]));
        let scores = self.forward(Kind::Dot, 4 * ACTIVATION, vec![query, key]);
        let weights = self.chain(scores, 5);
        let context = self.forward(Kind::Dot, ACTIVATION, vec![weights, value]);
        let context = self.forward(Kind::Turned, ACTIVATION, vec![context]);
        let context = self.forward(Kind::Turned, ACTIVATION, vec![context]);
        let projected = self.dense(context, ACTIVATION, 4 << 20);
        let middle = self.forward(Kind::Linear, ACTIVATION, vec![input, projected]);
        let normal = self.chain(middle, 6);
        let wide = self.dense(normal, 4 * ACTIVATION, 16 << 20);
        let wide = self.chain(wide, 6);
        let narrow = self.dense(wide, ACTIVATION, 16 << 20);
        let narrow = self.forward(Kind::Turned, ACTIVATION, vec![narrow]);
        self.forward(Kind::Linear, ACTIVATION, vec![middle, narrow])
    }

    /// The way back over a layer's tape: the gradients of its inputs, and updates of its parameters.
    fn backward(&mut self, tape: Vec<(Kind, usize, Vec<usize>)>, gradients: &mut HashMap<usize, usize>) {
        for (kind, op, inputs) in tape.into_iter().rev() {
            let Some(gradient) = gradients.get(&op).copied() else { continue };
            for (operand, input) in inputs.iter().enumerate() {
                let n_bytes = self.ops[*input].n_bytes;
                let part = match (kind, operand) {
                    (Kind::Dot, 0) => self.add(Kind::Dot, n_bytes, vec![gradient, inputs[1]]),
                    (Kind::Dot, _) => self.add(Kind::Dot, n_bytes, vec![inputs[0], gradient]),
                    (Kind::Linear, _) => gradient,
                    (Kind::Turned, _) => {
                        let turned = self.add(Kind::Turned, n_bytes, vec![gradient]);
                        self.add(Kind::Turned, n_bytes, vec![turned])
                    }
                    (Kind::Pointwise | Kind::Leaf | Kind::Hub, _) => {
                        self.add(Kind::Pointwise, n_bytes, vec![*input, gradient])
                    }
                };
                let sum = match gradients.get(input) {
                    Some(other) => self.add(Kind::Linear, n_bytes, vec![*other, part]),
                    None => part,
                };
                gradients.insert(*input, sum);
                if self.ops[*input].kind == Kind::Leaf {
                    self.update(*input, sum);
                }
            }
        }
    }

    fn update(&mut self, weight: usize, gradient: usize) {
        let n_bytes = self.ops[weight].n_bytes;
        let moments = [(); 2].map(|()| {
            let moment = self.add(Kind::Leaf, n_bytes, vec![]);
            let scaled = self.add(Kind::Linear, n_bytes, vec![moment]);
            let new = self.add(Kind::Pointwise, n_bytes, vec![scaled, gradient]);
            let kept = self.add(Kind::Leaf, n_bytes, vec![new]);
            self.tied.push((moment, kept));
            new
        });
        let ratio = self.add(Kind::Pointwise, n_bytes, moments.to_vec());
        let scaled = self.add(Kind::Linear, n_bytes, vec![ratio]);
        let new = self.add(Kind::Pointwise, n_bytes, vec![weight, scaled]);
        let kept = self.add(Kind::Leaf, n_bytes, vec![new]);
        self.tied.push((weight, kept));
    }
}

pub(crate) fn step_of(n_layers: usize) -> Step {
    let mut step = Step::default();
    let mut value = step.add(Kind::Pointwise, ACTIVATION, vec![]);
    let mut tapes = Vec::new();
    for _ in 0..n_layers {
        step.place = 10;
        value = step.layer(value);
        tapes.push(std::mem::take(&mut step.tape));
    }
    step.place = 1000;
    let loss = step.add(Kind::Pointwise, ACTIVATION, vec![value]);
    let mut gradients = HashMap::from([(value, loss)]);
    for tape in tapes.into_iter().rev() {
        step.place = 2000;
        step.backward(tape, &mut gradients);
    }
    step
}
