//! What an instruction costs: floating-point operations and bytes, from the op table's [`CostRule`].
//!
//! Bytes are those of operands read and results written, once each, as if nothing stayed in cache. Ops that touch a
//! part of an operand count that part: a `dynamic-slice` reads its result's bytes, a `dynamic-update-slice` reads and
//! writes the update's. A fusion's bytes are its operands and results only; its flops are its body's. Bookkeeping
//! (tuple, bitcast, parameter …) is free. Time is the business of the cluster model.

use crate::attrs::{Attrs, DotAttrs, ReduceWindowAttrs, ScanAttrs, SelectAndScatterAttrs, SortAttrs, Window};
use crate::module::{CompId, InstId, Module};
use crate::op::{CostRule, FactorRule, Runs};
use crate::shape::{ArrayShape, Shape};
use cranelift_entity::SecondaryMap;

/// Work of one instruction or computation, on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Arithmetic operations; a fused multiply-add counts two, transcendental functions several.
    pub flops: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Whether a part of it is not known: a custom call's work, or how often a loop runs (counted once then).
    pub is_partial: bool,
}

impl Cost {
    /// Both one after the other.
    pub fn plus(self, other: Cost) -> Cost {
        Cost {
            flops: self.flops.saturating_add(other.flops),
            bytes_read: self.bytes_read.saturating_add(other.bytes_read),
            bytes_written: self.bytes_written.saturating_add(other.bytes_written),
            is_partial: self.is_partial || other.is_partial,
        }
    }

    fn times(self, n: u64) -> Cost {
        Cost {
            flops: self.flops.saturating_mul(n),
            bytes_read: self.bytes_read.saturating_mul(n),
            bytes_written: self.bytes_written.saturating_mul(n),
            is_partial: self.is_partial,
        }
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }
}

/// Costs of all instructions of a verified module; those of called computations are found once.
pub struct Costs<'m> {
    module: &'m Module,
    comps: SecondaryMap<CompId, Cost>,
}

/// The cost of one instruction. For many, make [`Costs`] once: this walks the whole module for the callees.
pub fn cost(module: &Module, inst: InstId) -> Cost {
    Costs::new(module).of(inst)
}

/// How often a loop runs, if its `backend_config` says so (`"known_trip_count":{"n":"5"}`).
pub fn known_trip_count(module: &Module, inst: InstId) -> Option<u64> {
    let config = module.inst(inst).marks.as_ref()?.backend_config.as_ref()?;
    let (_, rest) = config.split_once("\"known_trip_count\"")?;
    let (_, rest) = rest.split_once("\"n\"")?;
    let digits = rest.trim_start_matches([':', ' ', '"']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

impl<'m> Costs<'m> {
    /// Costs of every computation; near-linear in the module's size.
    pub fn new(module: &'m Module) -> Costs<'m> {
        let mut costs = Costs { module, comps: SecondaryMap::new() };
        // Computations are listed before their callers.
        for &comp in module.computations() {
            let mut sum = Cost::default();
            for &inst in &module.comp(comp).insts {
                sum = sum.plus(costs.of(inst));
            }
            costs.comps[comp] = sum;
        }
        costs
    }

    /// The module whose costs these are.
    pub fn module(&self) -> &'m Module {
        self.module
    }

    /// The cost of running `comp` once.
    pub fn of_computation(&self, comp: CompId) -> Cost {
        self.comps[comp]
    }

    /// The cost of running `inst` once.
    pub fn of(&self, inst: InstId) -> Cost {
        let rule = self.module.inst(inst).opcode.row().cost;
        let flops = match rule {
            CostRule::Free => return Cost::default(),
            CostRule::Called(runs) => return self.called(inst, runs),
            CostRule::Unknown(_) => return Cost { is_partial: true, ..self.moved(inst, 0) },
            CostRule::Moves | CostRule::Communication => 0,
            CostRule::PerElement(n) => self.result_elems(inst).saturating_mul(u64::from(n)),
            CostRule::Dot => self.dot(inst),
            CostRule::Convolution => self.convolution(inst),
            CostRule::Reduce => self.reduce(inst, 0),
            CostRule::Scatter => self.reduce(inst, self.module.inst(inst).operands.len() / 2 + 1),
            CostRule::Window => self.window(inst),
            CostRule::Sort => self.sort(inst),
            CostRule::Cholesky => self.matrices(inst, |rows, columns| rows * rows / 3 * columns),
            CostRule::TriangularSolve => self.triangular_solve(inst),
            CostRule::Fft => self.fft(inst),
        };
        self.moved(inst, flops)
    }

    fn operand(&self, inst: InstId, i: usize) -> Option<&'m ArrayShape> {
        self.module.shape(*self.module.inst(inst).operands.get(i)?).as_array()
    }

    fn result_elems(&self, inst: InstId) -> u64 {
        largest_leaf(self.module.shape(inst))
    }

    fn callee_flops(&self, inst: InstId) -> u64 {
        let flops = self.module.called(inst).iter().map(|&c| self.comps[c].flops).max();
        flops.unwrap_or(1)
    }

    /// With the bytes that the op touches.
    fn moved(&self, inst: InstId, flops: u64) -> Cost {
        let node = self.module.inst(inst);
        let bytes = |i: usize| node.operands.get(i).map_or(0, |&o| self.module.shape(o).size_bytes());
        let all = |from: usize| (from..node.operands.len()).map(bytes).fold(0, u64::saturating_add);
        let written = self.module.shape(inst).size_bytes();
        let (bytes_read, bytes_written) = match node.opcode.row().factors {
            FactorRule::Slice | FactorRule::DynamicSlice | FactorRule::Gather => {
                (written.min(bytes(0)).saturating_add(all(1)), written)
            }
            FactorRule::DynamicUpdateSlice => (all(1), bytes(1)),
            FactorRule::Elementwise
            | FactorRule::Sort
            | FactorRule::Scatter
            | FactorRule::TriangularSolve
            | FactorRule::Broadcast
            | FactorRule::Reshape
            | FactorRule::Bitcast
            | FactorRule::BitcastConvert
            | FactorRule::Transpose
            | FactorRule::Reverse
            | FactorRule::Pad
            | FactorRule::Concatenate
            | FactorRule::Iota
            | FactorRule::Dot
            | FactorRule::Convolution
            | FactorRule::Reduce
            | FactorRule::ReduceWindow
            | FactorRule::SelectAndScatter
            | FactorRule::Cholesky
            | FactorRule::Fft
            | FactorRule::BatchNorm
            | FactorRule::CustomCall
            | FactorRule::Structural(_)
            | FactorRule::Whole(_) => (all(0), written),
        };
        Cost { flops, bytes_read, bytes_written, is_partial: false }
    }

    fn dot(&self, inst: InstId) -> u64 {
        let Some(DotAttrs {
            lhs_contracting_dims,
            // The other side's dims have the same sizes, and batch dims are dims of the result.
            rhs_contracting_dims: _,
            lhs_batch_dims: _,
            rhs_batch_dims: _,
            // The groups of a ragged dot share the elements of the ragged dim.
            lhs_ragged_dims: _,
            rhs_group_dims: _,
            // A multiplication counts as one whatever it rounds to.
            operand_precision: _,
            algorithm: _,
        }) = DotAttrs::of(&self.module.inst(inst).attrs)
        else {
            return 0;
        };
        let Some(lhs) = self.operand(inst, 0) else { return 0 };
        let size = |d: &i64| usize::try_from(*d).ok().and_then(|d| lhs.dims.get(d)).map_or(1, |&n| n.max(0) as u64);
        let contracted = lhs_contracting_dims.iter().map(size).fold(1, u64::saturating_mul);
        self.result_elems(inst).saturating_mul(contracted).saturating_mul(2)
    }

    fn convolution(&self, inst: InstId) -> u64 {
        let Attrs::Conv(attrs) = &self.module.inst(inst).attrs else { return 0 };
        let Some(kernel) = self.operand(inst, 1) else { return 0 };
        let feature = usize::try_from(attrs.dim_labels.kernel_input_feature).ok();
        let n_features = feature.and_then(|d| kernel.dims.get(d)).map_or(1, |&n| n.max(0) as u64);
        let taps = window_elems(&attrs.window).saturating_mul(n_features);
        self.result_elems(inst).saturating_mul(taps).saturating_mul(2)
    }

    /// The reducer, once for each element of operand `source`.
    fn reduce(&self, inst: InstId, source: usize) -> u64 {
        let n = self.operand(inst, source).map_or(0, ArrayShape::n_elems);
        n.saturating_mul(self.callee_flops(inst))
    }

    fn window(&self, inst: InstId) -> u64 {
        let attrs = &self.module.inst(inst).attrs;
        let (window, n_windows) = if let Some(attrs) = ReduceWindowAttrs::of(attrs) {
            (&attrs.window, self.result_elems(inst))
        } else if let Some(attrs) = SelectAndScatterAttrs::of(attrs) {
            (&attrs.window, self.operand(inst, 1).map_or(0, ArrayShape::n_elems))
        } else {
            return 0;
        };
        n_windows.saturating_mul(window_elems(window)).saturating_mul(self.callee_flops(inst))
    }

    fn sort(&self, inst: InstId) -> u64 {
        let Some(array) = self.operand(inst, 0) else { return 0 };
        // `topk` sorts the last dim.
        let dim = match SortAttrs::of(&self.module.inst(inst).attrs) {
            Some(attrs) => attrs.dimensions.first().and_then(|&d| usize::try_from(d).ok()),
            None => array.rank().checked_sub(1),
        };
        let n = dim.and_then(|d| array.dims.get(d)).map_or(1, |&n| n.max(1) as u64);
        array.n_elems().saturating_mul(log2(n)).saturating_mul(self.callee_flops(inst))
    }

    /// `flops(rows, columns)` for each matrix in the last two dims of operand 0.
    fn matrices(&self, inst: InstId, flops: impl Fn(u128, u128) -> u128) -> u64 {
        let Some(a) = self.operand(inst, 0) else { return 0 };
        let [batch @ .., rows, columns] = a.dims.as_slice() else { return 0 };
        let n = batch.iter().fold(1u64, |n, &d| n.saturating_mul(d.max(0) as u64));
        let each = flops(small(*rows), small(*columns));
        u64::try_from(each).unwrap_or(u64::MAX).saturating_mul(n)
    }

    fn triangular_solve(&self, inst: InstId) -> u64 {
        let n = self.operand(inst, 0).and_then(|a| a.dims.last().copied()).map_or(0, |n| n.max(0) as u64);
        self.operand(inst, 1).map_or(0, ArrayShape::n_elems).saturating_mul(n)
    }

    fn fft(&self, inst: InstId) -> u64 {
        let Attrs::Fft(attrs) = &self.module.inst(inst).attrs else { return 0 };
        let length = attrs.fft_length.iter().fold(1u64, |n, &d| n.saturating_mul(d.max(1) as u64));
        let n = self.operand(inst, 0).map_or(0, ArrayShape::n_elems).max(self.result_elems(inst));
        n.saturating_mul(log2(length)).saturating_mul(5)
    }

    fn called(&self, inst: InstId, runs: Runs) -> Cost {
        let called = self.module.called(inst);
        let sum = called.iter().fold(Cost::default(), |sum, &c| sum.plus(self.comps[c]));
        match runs {
            Runs::Once => sum,
            Runs::Fused => Cost { is_partial: sum.is_partial, ..self.moved(inst, sum.flops) },
            Runs::Loop => match known_trip_count(self.module, inst) {
                Some(n) => sum.times(n),
                None => Cost { is_partial: true, ..sum },
            },
            Runs::Choice => {
                called.iter().map(|&c| self.comps[c]).max_by_key(|c| (c.flops, c.bytes())).unwrap_or_default()
            }
            Runs::Elements => self.moved(inst, sum.flops.saturating_mul(self.result_elems(inst))),
            Runs::Steps => {
                let attrs = ScanAttrs::of(&self.module.inst(inst).attrs);
                let dim = attrs.and_then(|a| a.dimensions.first()).and_then(|&d| usize::try_from(d).ok());
                let steps = self.operand(inst, 0).and_then(|a| a.dims.get(dim?).copied());
                sum.times(steps.map_or(1, |n| n.max(0) as u64))
            }
        }
    }
}

/// Elements of the largest array in the shape: what an op with several results of one size computes at a time.
fn largest_leaf(shape: &Shape) -> u64 {
    match shape {
        Shape::Array(a) | Shape::Buffer(a) => a.n_elems(),
        Shape::Tuple(elements) => elements.iter().map(largest_leaf).max().unwrap_or(0),
        Shape::Token | Shape::Opaque => 0,
    }
}

fn window_elems(window: &Window) -> u64 {
    window.dims.iter().fold(1u64, |n, d| n.saturating_mul(d.size.max(0) as u64))
}

/// A dim size that can be cubed.
fn small(n: i64) -> u128 {
    n.clamp(0, 1 << 40) as u128
}

/// log2, rounded up.
fn log2(n: u64) -> u64 {
    u64::from(64 - n.max(1).saturating_sub(1).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::ReduceAttrs;
    use crate::edit::Builder;
    use crate::op::Opcode;
    use crate::shape::Dims;
    use crate::{DType, attrs::ParameterAttrs};

    fn f32s(dims: &[i64]) -> Shape {
        Shape::array(DType::F32, dims.iter().copied())
    }

    fn parameter(b: &mut Builder<'_>, number: i64, dims: &[i64]) -> InstId {
        b.add("p", Opcode::Parameter, f32s(dims), [], ParameterAttrs { number, ..ParameterAttrs::default() })
    }

    #[test]
    fn dots_and_reductions_are_counted_by_their_loops() {
        let mut module = Module::new("m");
        let name = module.names.intern("r");
        let reducer = module.add_computation(name);
        let mut b = Builder::new(&mut module, reducer);
        let (x, y) = (parameter(&mut b, 0, &[]), parameter(&mut b, 1, &[]));
        let sum = b.add("s", Opcode::Add, f32s(&[]), [x, y], Attrs::Plain);
        module.comp_mut(reducer).root = Some(sum).into();
        let name = module.names.intern("main");
        let main = module.add_computation(name);
        let mut b = Builder::new(&mut module, main);
        let (a, w, zero) = (parameter(&mut b, 0, &[3, 5]), parameter(&mut b, 1, &[5, 7]), parameter(&mut b, 2, &[]));
        let attrs = DotAttrs {
            lhs_contracting_dims: Dims::from_slice(&[1]),
            rhs_contracting_dims: Dims::from_slice(&[0]),
            ..DotAttrs::default()
        };
        let dot = b.add("d", Opcode::Dot, f32s(&[3, 7]), [a, w], attrs);
        let attrs = ReduceAttrs { dimensions: Dims::from_slice(&[0]), to_apply: Some(reducer) };
        let reduce = b.add("r", Opcode::Reduce, f32s(&[7]), [dot, zero], attrs);
        let costs = Costs::new(&module);
        let expected = Cost { flops: 210, bytes_read: 4 * (15 + 35), bytes_written: 4 * 21, is_partial: false };
        assert_eq!(costs.of(dot), expected);
        let expected = Cost { flops: 21, bytes_read: 4 * 22, bytes_written: 4 * 7, is_partial: false };
        assert_eq!(costs.of(reduce), expected);
        assert_eq!(costs.of_computation(main).flops, 231);
        assert_eq!(cost(&module, a), Cost::default());
    }

    #[test]
    fn trip_counts_are_read_from_the_backend_config() {
        let mut module = Module::new("m");
        let name = module.names.intern("c");
        let comp = module.add_computation(name);
        let mut b = Builder::new(&mut module, comp);
        let a = parameter(&mut b, 0, &[2]);
        assert_eq!(known_trip_count(&module, a), None);
        let config = r#"{"known_trip_count":{"n":"1000"},"known_init_step":{"init":"0"}}"#;
        module.marks_mut(a).backend_config = Some(config.into());
        assert_eq!(known_trip_count(&module, a), Some(1000));
    }
}
