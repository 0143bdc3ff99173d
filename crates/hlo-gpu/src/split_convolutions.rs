//! Compute long sums of convolutions in parts side by side, so that all of a device works on them.
//!
//! Before, the gradient of a kernel, whose few elements are sums over all images and positions:
//! ```text
//! %g = f32[3,3,64,64] convolution(%x, %dy), window={size=32x32 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf
//! ```
//! after, with the 64 images in 16 groups:
//! ```text
//! %dy.1 = f32[16,4,32,32,64] reshape(%dy)
//! %dy.2 = f32[4,32,32,16,64] transpose(%dy.1), dimensions={1,2,3,0,4}
//! %dy.3 = f32[4,32,32,1024] reshape(%dy.2)
//! %parts = f32[3,3,64,1024] convolution(%x, %dy.3), window={size=32x32 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf, feature_group_count=16
//! %parts.1 = f32[3,3,64,16,64] reshape(%parts)
//! %g = f32[3,3,64,64] reduce(%parts.1, %zero), dimensions={3}, to_apply=%add
//! ```
//!
//! **Why.** Our own kernel gives each multiprocessor a tile of the output. Here there are five of them, for 132 multiprocessors.
//!
//! **What it does.** The features that are added up go in as many equal parts as are fastest by the price of [`crate::convolution_price`]. The
//! kernel's reshape and transpose become index arithmetic of the fusion.
//!
//! **What it does not do.** Convolutions of several groups, and those that wait for others. Taps of the window are not parted.
//!
//! **Requires** that `convolution-to-dot` has taken what is faster as a product. **Ensures** the same products; their sums are added up in
//! another order, those of 16-bit floats in f32.

use crate::convolution_price::{bits_of_part, fastest_parts, own_s};
use crate::lower::legalize::stepwise_computations;
use hlo_analysis::Preserved;
use hlo_ir::attrs::{Attrs, ConvAttrs, DimsAttrs, ReduceAttrs, ReshapeAttrs};
use hlo_ir::cost::Costs;
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, Literal, Module, Opcode, Scalar, Shape};
use hlo_mesh::Machine;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "split-convolutions",
    help: "compute long sums of convolutions with few results in parts side by side",
    options: &[OptionInfo {
        name: "parts",
        kind: OptionKind::Int,
        default: "0",
        help: "parts of each sum, where they are equal; 0: as many as are fastest",
    }],
    build: |options: &Options| Ok(Box::new(SplitConvolutions { parts: options.int("parts") })),
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SplitConvolutions {
    parts: i64,
}

impl Pass for SplitConvolutions {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_changed = 0;
        for comp in stepwise_computations(module) {
            let (was_live, n_slots) = (module.live(comp), module.n_inst_slots());
            let insts = module.comp(comp).insts.clone();
            for inst in insts.into_iter().filter(|&inst| was_live.contains(inst)) {
                let Some(split) = self.split(module, inst, &cx.target.machine) else { continue };
                n_changed += 1;
                let sum = split.write(module, comp, inst);
                module.replace_all_uses(inst, sum);
            }
            let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
            module.restore_order(comp).map_err(cycle)?;
            module.remove_newly_dead(comp, &was_live, n_slots);
        }
        cx.report.count("convolutions", n_changed);
        if n_changed == 0 {
            cx.report.unchanged_because = Some("no convolution is faster in parts".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// A convolution that is faster in parts.
struct Split {
    attrs: ConvAttrs,
    kernel: ArrayShape,
    output: ArrayShape,
    /// In which a part's results are.
    dtype: DType,
    parts: i64,
}

impl SplitConvolutions {
    fn split(&self, module: &Module, inst: InstId, machine: &Machine) -> Option<Split> {
        let node = module.inst(inst);
        let (Attrs::Conv(attrs), &[lhs, rhs]) = (&node.attrs, node.operands.as_slice()) else { return None };
        let (input, kernel) = (module.shape(lhs).as_array()?, module.shape(rhs).as_array()?);
        let output = module.shape(inst).as_array()?;
        let is_plain = attrs.feature_group_count.unwrap_or(1) == 1
            && attrs.batch_group_count.unwrap_or(1) == 1
            && !attrs.sparsity_config.0.contains('=')
            && output.dtype.is_float()
            && [input, kernel, output].iter().all(|array| array.dynamic == 0 && array.n_elems() > 0)
            && node.control_predecessors().is_empty();
        if !is_plain {
            return None;
        }
        let channels = kernel.dims[attrs.dim_labels.kernel_input_feature as usize];
        let parts = match self.parts {
            0 => fastest(machine, module, inst),
            parts => (channels % parts == 0).then_some(parts),
        }?;
        let dtype = if bits_of_part(output.dtype) > output.dtype.bits() { DType::F32 } else { output.dtype };
        (parts > 1).then(|| Split {
            attrs: (**attrs).clone(),
            kernel: kernel.clone(),
            output: output.clone(),
            dtype,
            parts,
        })
    }
}

/// In how many parts a convolution is the fastest, if it gains a tenth by them: less is within what the price does not know.
fn fastest(machine: &Machine, module: &Module, inst: InstId) -> Option<i64> {
    let flops = Costs::new(module).of(inst).flops as f64;
    let (parts, parted_s) = fastest_parts(machine, module, inst, flops);
    (parted_s < 0.9 * own_s(machine, module, inst, flops, 1)).then_some(parts)
}

impl Split {
    /// Writes the parts and their sum, which stands for the convolution.
    fn write(&self, module: &mut Module, comp: CompId, conv: InstId) -> InstId {
        let name = module.inst_name(conv).to_string();
        let &[lhs, rhs] = module.inst(conv).operands.as_slice() else { return conv };
        let labels = &self.attrs.dim_labels;
        let (from, features) = (labels.kernel_input_feature as usize, labels.kernel_output_feature as usize);
        let array = |dtype: DType, dims: &[i64]| ArrayShape::new(dtype, dims.iter().copied()).with_row_major();
        let mut build = Builder::new(module, comp);
        // The number of the part stands before the features of the input, then before those of the output.
        let mut dims: Vec<i64> = self.kernel.dims.to_vec();
        dims[from] /= self.parts;
        let mut with_parts = dims.clone();
        with_parts.insert(from, self.parts);
        let kernel_name = format!("{name}.kernel");
        let reshape = |build: &mut Builder<'_>, name: &str, value: InstId, shape: ArrayShape| {
            build.add(name, Opcode::Reshape, Shape::Array(shape), [value], ReshapeAttrs::default())
        };
        let parted = reshape(&mut build, &kernel_name, rhs, array(self.kernel.dtype, &with_parts));
        let mut order: Vec<i64> = (0..with_parts.len() as i64).filter(|&dim| dim != from as i64).collect();
        order.insert(features, from as i64);
        let moved: Vec<i64> = order.iter().map(|&dim| with_parts[dim as usize]).collect();
        let turned = build.add(
            &kernel_name,
            Opcode::Transpose,
            Shape::Array(array(self.kernel.dtype, &moved)),
            [parted],
            DimsAttrs { dimensions: Dims::from_slice(&order) },
        );
        dims[features] *= self.parts;
        let kernel = reshape(&mut build, &kernel_name, turned, array(self.kernel.dtype, &dims));
        let out = labels.output_feature as usize;
        let mut of_parts: Vec<i64> = self.output.dims.to_vec();
        of_parts[out] *= self.parts;
        let attrs = ConvAttrs { feature_group_count: Some(self.parts), ..self.attrs.clone() };
        let parts_name = format!("{name}.parts");
        let shape = Shape::Array(array(self.dtype, &of_parts));
        let parts = build.add(&parts_name, Opcode::Convolution, shape, [lhs, kernel], attrs);
        of_parts[out] /= self.parts;
        of_parts.insert(out, self.parts);
        let parts = reshape(&mut build, &parts_name, parts, array(self.dtype, &of_parts));
        let zero = build.constant("zero", Literal::scalar(self.dtype, Scalar::Float(0.0)));
        let to_apply = build.module_mut().add_sum("add", self.dtype);
        let along = ReduceAttrs { dimensions: Dims::from_slice(&[out as i64]), to_apply: Some(to_apply) };
        let sum = ArrayShape { dtype: self.dtype, ..self.output.clone() };
        let sum = build.add(&name, Opcode::Reduce, Shape::Array(sum), [parts, zero], along);
        match self.dtype == self.output.dtype {
            true => sum,
            false => build.add(&name, Opcode::Convert, Shape::Array(self.output.clone()), [sum], Attrs::Plain),
        }
    }
}
