//! Random small training steps: weights and state that are the same on all devices, gradients summed over them, updates of
//! every kind that optimizers have.
//!
//! [`training_step`] gives text and inputs; the same seed gives the same text. In *exact* steps all numbers are small
//! whole ones, and every op keeps them so (halves are rounded, large values clamped; the generator tracks magnitudes), so that
//! a sum is the same in any order and results can be compared bit for bit. The others have roots, quotients and `tanh`, no
//! comparisons, and are compared with a tolerance.

mod control;
mod ops;

use crate::random_module::{Input, Rng};
use hlo_ir::DType;
use std::fmt::Write;

/// A training step and what its entry takes.
#[derive(Clone, Debug)]
pub struct TrainingStep {
    /// HLO text.
    pub text: String,
    /// Inputs in parameter order.
    pub inputs: Vec<Input>,
    /// Whether results do not depend on the order of sums.
    pub is_exact: bool,
    /// Devices.
    pub n_devices: usize,
}

/// An array in a computation.
#[derive(Clone, Debug)]
struct Val {
    name: String,
    dtype: DType,
    dims: Vec<i64>,
    /// Dims from the fastest in memory.
    layout: Vec<usize>,
    /// No element is larger.
    bound: f64,
}

impl Val {
    fn shape(&self) -> String {
        shape_text(self.dtype, &self.dims, &self.layout)
    }

    fn n_elems(&self) -> i64 {
        self.dims.iter().product()
    }

    fn is_like(&self, other: &Val) -> bool {
        (self.dtype, &self.dims) == (other.dtype, &other.dims)
    }
}

fn shape_text(dtype: DType, dims: &[i64], layout: &[usize]) -> String {
    let list = |items: Vec<String>| items.join(",");
    let dims = list(dims.iter().map(ToString::to_string).collect());
    match layout {
        [] => format!("{dtype}[{dims}]"),
        _ => format!("{dtype}[{dims}]{{{}}}", list(layout.iter().map(ToString::to_string).collect())),
    }
}

fn row_major(rank: usize) -> Vec<usize> {
    (0..rank).rev().collect()
}

/// A computation under construction.
#[derive(Default)]
struct Body {
    lines: Vec<String>,
    pool: Vec<Val>,
    /// Scalars that all devices agree on, fit to decide branches.
    counters: Vec<Val>,
}

/// How devices are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Devices {
    replicas: usize,
    partitions: usize,
}

/// The generator.
struct Generator {
    rng: Rng,
    devices: Devices,
    is_exact: bool,
    computations: Vec<String>,
    next_name: usize,
    next_channel: usize,
}

/// The largest magnitude before a value is clamped.
const LARGE: f64 = 64.0;
/// What values are clamped to.
const SMALL: f64 = 8.0;

impl Generator {
    fn n_devices(&self) -> usize {
        self.devices.replicas * self.devices.partitions
    }

    fn name(&mut self, stem: &str) -> String {
        self.next_name += 1;
        format!("{stem}.{}", self.next_name)
    }

    /// Appends an instruction that computes an array.
    #[allow(clippy::too_many_arguments)]
    fn emit(
        &mut self,
        body: &mut Body,
        op: &str,
        dtype: DType,
        dims: &[i64],
        layout: &[usize],
        args: &str,
        bound: f64,
    ) -> Val {
        let name = self.name(&op.replace('-', "_"));
        let val = Val { name, dtype, dims: dims.to_vec(), layout: layout.to_vec(), bound };
        body.lines.push(format!("%{} = {} {op}({args}", val.name, val.shape()));
        val
    }

    /// A scalar constant.
    fn scalar(&mut self, body: &mut Body, dtype: DType, value: f64) -> Val {
        self.emit(body, "constant", dtype, &[], &[], &format!("{value})"), value.abs())
    }

    /// A scalar of the shape of `like`.
    fn broadcast(&mut self, body: &mut Body, scalar: &Val, like: &Val) -> Val {
        let args = format!("%{}), dimensions={{}}", scalar.name);
        self.emit(body, "broadcast", scalar.dtype, &like.dims, &like.layout, &args, scalar.bound)
    }

    /// A reducer; each collective has its own, as JAX writes them.
    fn reducer(&mut self, op: &str, dtype: DType) -> String {
        let (name, a, b, r) = (self.name("reducer"), self.name("a"), self.name("b"), self.name("r"));
        let t = dtype;
        self.computations.push(format!(
            "%{name} ({a}: {t}[], {b}: {t}[]) -> {t}[] {{\n  %{a} = {t}[] parameter(0)\n  %{b} = {t}[] parameter(1)\n  \
             ROOT %{r} = {t}[] {op}(%{a}, %{b})\n}}\n"
        ));
        name
    }

    /// Groups, channel and mode of a collective.
    fn groups(&mut self) -> (String, usize) {
        let n = self.n_devices();
        let size = match self.rng.below(5) {
            0 if n.is_multiple_of(2) => n / 2,
            1 if n.is_multiple_of(2) && n > 2 => 2,
            2 if n.is_multiple_of(3) => 3,
            _ => n,
        };
        let mut ids: Vec<usize> = (0..n).collect();
        let is_strided = self.rng.one_in(4);
        if is_strided {
            // Members are not neighbours: their shard ids come from a table.
            ids = (0..n).map(|i| i / size + (i % size) * (n / size)).collect();
        }
        let groups: Vec<String> = ids
            .chunks(size)
            .map(|g| format!("{{{}}}", g.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")))
            .collect();
        let mut text = format!("replica_groups={{{}}}", groups.join(","));
        if self.devices.partitions > 1 {
            self.next_channel += 1;
            text = format!("channel_id={}, {text}, use_global_device_ids=true", self.next_channel);
        }
        (text, size)
    }

    /// `val` clamped where it is large.
    fn tame(&mut self, body: &mut Body, val: Val) -> Val {
        if val.bound <= LARGE { val } else { self.clamp(body, &val, SMALL) }
    }

    fn clamp(&mut self, body: &mut Body, val: &Val, to: f64) -> Val {
        let low = self.scalar(body, val.dtype, -to);
        let high = self.scalar(body, val.dtype, to);
        let args = format!("%{}, %{}, %{})", low.name, val.name, high.name);
        self.emit(body, "clamp", val.dtype, &val.dims, &val.layout, &args, to)
    }

    /// Ends a computation.
    fn close(&mut self, name: &str, body: Body, root: &[Val], is_entry: bool) {
        let shapes = root.iter().map(Val::shape).collect::<Vec<_>>().join(", ");
        let names = root.iter().map(|v| format!("%{}", v.name)).collect::<Vec<_>>().join(", ");
        let tuple = self.name("tuple");
        let mut text = format!("{}%{name} {{\n", if is_entry { "ENTRY " } else { "" });
        for line in &body.lines {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(text, "  ROOT %{tuple} = ({shapes}) tuple({names})\n}}");
        self.computations.push(text);
    }
}

/// A random training step.
pub fn training_step(seed: u64, n_steps: usize) -> TrainingStep {
    let mut rng = Rng::new(seed);
    let n = *rng.pick(&[2usize, 3, 4, 6, 8]);
    let devices = match rng.below(4) {
        0 => Devices { replicas: n, partitions: 1 },
        1 if n.is_multiple_of(2) && n > 2 => Devices { replicas: 2, partitions: n / 2 },
        _ => Devices { replicas: 1, partitions: n },
    };
    let is_exact = !rng.one_in(4);
    let mut generator = Generator { rng, devices, is_exact, computations: Vec::new(), next_name: 0, next_channel: 0 };
    let inputs = generator.entry(n_steps);
    let header =
        format!("HloModule step_{seed}, replica_count={}, num_partitions={}\n\n", devices.replicas, devices.partitions);
    let text = header + &generator.computations.join("\n");
    TrainingStep { text, inputs, is_exact, n_devices: n }
}
