//! Compute convolutions as matrix products of patches, which tensor cores multiply.
//!
//! Before, a convolution of 3 x 3 windows:
//! ```text
//! %y = bf16[8,56,56,64] convolution(%x, %w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
//! ```
//! after, with %x padded, and nine slices of it side by side:
//! ```text
//! %patches = bf16[8,56,56,9,64] concatenate(%tap.0, …, %tap.8), dimensions={3}
//! %y = bf16[8,56,56,64] dot(%patches, %w), lhs_contracting_dims={3,4,5}, rhs_contracting_dims={0,1,2}
//! ```
//!
//! **Why.** The product is cuBLASLt's, which makes more of the arithmetic units than our own kernel of a convolution. Patches cost memory, and
//! memory traffic, `1 / features` of the arithmetic.
//!
//! **What it does.** Windows of few taps: a slice of the padded input for each tap. Few output positions (the gradient of a kernel,
//! whose window is an image): a slice for each position. A window of one tap needs no patches. Where patches take more than
//! `max-patch-bytes`, the batch goes in equal parts: their products stand side by side, or are added up in f32.
//!
//! **What it does not do.** Groups of features or of the batch, more than [`MOST_SLICES`] slices or [`MOST_PARTS`] parts,
//! convolutions that are not so much faster so (`most-time`) by the price of [`crate::convolution_price`], and types that the library does not multiply stay
//! convolutions.
//!
//! **Requires** inlined calls. **Ensures** the same sums of the same products; a library adds them up in another order.

use crate::convolution_price::{fastest_parts, patches_s};
use crate::kernel::window_dims;
use crate::lower::legalize::stepwise_computations;
use crate::plan::has_library_types;
use hlo_analysis::Preserved;
use hlo_ir::attrs::{
    Attrs, ConvAttrs, DimsAttrs, DotAttrs, PadAttrs, PadDim, ReshapeAttrs, SliceAttrs, SliceDim, WindowDim,
};
use hlo_ir::cost::Costs;
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, Literal, Module, Opcode, Scalar, Shape};
use hlo_mesh::Machine;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// Slices of one convolution: a kernel that puts more together spends its time on finding out which one it reads.
const MOST_SLICES: i64 = 27;
/// Parts of one batch.
const MOST_PARTS: i64 = 16;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "convolution-to-dot",
    help: "compute convolutions as matrix products of patches of their input",
    options: &[
        OptionInfo {
            // A gain of less than a quarter is within what the price does not know, and patches take memory.
            name: "most-time",
            kind: OptionKind::Float,
            default: "0.75",
            help: "how long patches and their product may take beside our own kernel: 1 for as long",
        },
        OptionInfo {
            name: "max-patch-bytes",
            kind: OptionKind::Int,
            default: "256MiB",
            help: "bytes of patches beyond which the batch goes in parts, each with patches of its own",
        },
    ],
    build: |options: &Options| {
        let max_patch_bytes = u64::try_from(options.int("max-patch-bytes")).unwrap_or(0);
        Ok(Box::new(ConvolutionToDot { most_time: options.float("most-time"), max_patch_bytes }))
    },
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct ConvolutionToDot {
    most_time: f64,
    max_patch_bytes: u64,
}

impl Pass for ConvolutionToDot {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_changed = 0;
        for comp in stepwise_computations(module) {
            let (was_live, n_slots) = (module.live(comp), module.n_inst_slots());
            let needed = module.comp(comp).insts.iter().copied().filter(|&inst| was_live.contains(inst));
            let found: Vec<(InstId, Patches)> =
                needed.filter_map(|inst| Some((inst, self.patches(module, inst, &cx.target.machine)?))).collect();
            n_changed += found.len();
            for (inst, patches) in &found {
                let product = patches.write(module, comp, *inst);
                module.replace_all_uses(*inst, product);
            }
            let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
            module.restore_order(comp).map_err(cycle)?;
            module.remove_newly_dead(comp, &was_live, n_slots);
        }
        cx.report.count("convolutions", n_changed as u64);
        if n_changed == 0 {
            cx.report.unchanged_because = Some("no convolution is cheaper as a product of patches".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// What slices are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sliced {
    /// The window's taps.
    Taps,
    /// The output's positions.
    Outputs,
}

/// A convolution that is a product of patches.
#[derive(Clone, Debug)]
struct Patches {
    attrs: ConvAttrs,
    window: Vec<WindowDim>,
    input: ArrayShape,
    output: ArrayShape,
    sliced: Sliced,
    /// Equal parts in which the input's slowest dim that is no spatial one goes.
    n_parts: i64,
}

/// A dim of the patches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PatchDim {
    /// That of the input with this number.
    Input(usize),
    /// The slice's number along this spatial dim.
    Slice(usize),
}

impl ConvolutionToDot {
    /// The patches of a convolution that is cheaper with them.
    fn patches(&self, module: &Module, inst: InstId, machine: &Machine) -> Option<Patches> {
        let node = module.inst(inst);
        let (Attrs::Conv(attrs), &[lhs, rhs]) = (&node.attrs, node.operands.as_slice()) else { return None };
        let (input, kernel) = (module.shape(lhs).as_array()?, module.shape(rhs).as_array()?);
        let output = module.shape(inst).as_array()?;
        let labels = &attrs.dim_labels;
        let n_spatial = labels.input_spatial.len();
        let window = window_dims(&attrs.window, n_spatial);
        let is_plain = attrs.feature_group_count.unwrap_or(1) == 1
            && attrs.batch_group_count.unwrap_or(1) == 1
            && !attrs.sparsity_config.0.contains('=')
            && window.len() == n_spatial
            && [input, kernel, output].iter().all(|array| array.dynamic == 0 && array.n_elems() > 0);
        if !is_plain || !has_library_types(input.dtype, kernel.dtype, output.dtype) {
            return None;
        }
        let outputs = |d: usize| output.dims[labels.output_spatial[d] as usize];
        let n_taps: i64 = window.iter().map(|dim| dim.size).product();
        let n_outputs: i64 = (0..n_spatial).map(outputs).product();
        let is_reversed = window.iter().any(|dim| dim.is_reversed && dim.size > 1);
        let sliced = if n_taps <= n_outputs || is_reversed { Sliced::Taps } else { Sliced::Outputs };
        let found = Patches {
            attrs: (**attrs).clone(),
            window,
            input: input.clone(),
            output: output.clone(),
            sliced,
            n_parts: 1,
        };
        let n_slices = match sliced {
            Sliced::Taps => n_taps,
            Sliced::Outputs => n_outputs,
        };
        let elems = found.dims().iter().map(|&dim| found.size(dim)).fold(1u64, |n, size| n.saturating_mul(size as u64));
        let element_bytes = u64::from(input.dtype.bits()).div_ceil(8);
        let flops = Costs::new(module).of(inst).flops as f64;
        let patches_bytes = elems as f64 * element_bytes as f64;
        let as_product_s = patches_s(machine, flops, patches_bytes, [input, kernel, output]);
        let (_, own_s) = fastest_parts(machine, module, inst, flops);
        let is_cheap = as_product_s < self.most_time * own_s;
        let fits = |n_parts: i64| elems.saturating_mul(element_bytes) / n_parts as u64 <= self.max_patch_bytes;
        let n_batch = found.input.dims[found.batch()];
        let n_parts = match n_slices {
            1 => Some(1),
            _ => {
                (1..=MOST_PARTS).find(|&n| n_batch % n == 0 && fits(n)).filter(|_| n_slices <= MOST_SLICES && is_cheap)
            }
        };
        n_parts.map(|n_parts| Patches { n_parts, ..found })
    }
}

impl Patches {
    fn n_spatial(&self) -> usize {
        self.window.len()
    }

    fn n_outputs(&self, d: usize) -> i64 {
        self.output.dims[self.attrs.dim_labels.output_spatial[d] as usize]
    }

    /// Slices along a spatial dim.
    fn n_slices(&self, d: usize) -> i64 {
        match self.sliced {
            Sliced::Taps => self.window[d].size,
            Sliced::Outputs => self.n_outputs(d),
        }
    }

    /// The spatial dim that a dim of the input is.
    fn spatial(&self, dim: usize) -> Option<usize> {
        self.attrs.dim_labels.input_spatial.iter().position(|&one| one as usize == dim)
    }

    fn size(&self, dim: PatchDim) -> i64 {
        match dim {
            PatchDim::Slice(d) => self.n_slices(d),
            PatchDim::Input(dim) => match (self.spatial(dim), self.sliced) {
                (None, _) => self.input.dims[dim],
                (Some(d), Sliced::Taps) => self.n_outputs(d),
                (Some(d), Sliced::Outputs) => self.window[d].size,
            },
        }
    }

    /// Whether the product adds up along a dim.
    fn is_contracted(&self, dim: PatchDim) -> bool {
        match (dim, self.sliced) {
            (PatchDim::Slice(_), sliced) => sliced == Sliced::Taps,
            (PatchDim::Input(dim), sliced) => match self.spatial(dim) {
                Some(_) => sliced == Sliced::Outputs,
                None => dim == self.attrs.dim_labels.input_feature as usize,
            },
        }
    }

    /// The dims, slowest first: what is contracted lies together, and so does what is not; the input's fastest dim stays so.
    fn dims(&self) -> Vec<PatchDim> {
        let slowest_first = self.input.physical_order().into_iter().rev().map(PatchDim::Input);
        let of_input: Vec<PatchDim> = slowest_first.collect();
        let slices = (0..self.n_spatial()).map(PatchDim::Slice);
        let fastest = of_input.last().copied().unwrap_or(PatchDim::Slice(0));
        let is_last = |dim: &PatchDim| self.is_contracted(*dim) == self.is_contracted(fastest);
        let all: Vec<PatchDim> = slices.chain(of_input).collect();
        let (last, first): (Vec<PatchDim>, Vec<PatchDim>) = all.into_iter().partition(is_last);
        first.into_iter().chain(last).collect()
    }

    /// The input's slowest dim that is no spatial one: images, as a rule.
    fn batch(&self) -> usize {
        let mut slowest_first = self.input.physical_order().into_iter().rev();
        slowest_first.find(|&dim| self.spatial(dim).is_none()).unwrap_or(0)
    }

    /// Writes the products, in parts if there are several; gives what stands for the convolution.
    fn write(&self, module: &mut Module, comp: CompId, conv: InstId) -> InstId {
        let name = module.inst_name(conv).to_string();
        let &[lhs, rhs] = module.inst(conv).operands.as_slice() else { return conv };
        if self.n_parts == 1 {
            return self.product(module, (comp, &name), [lhs, rhs]);
        }
        let batch = self.batch();
        let labels = &self.attrs.dim_labels;
        let is_sum = self.is_contracted(PatchDim::Input(batch));
        let size = self.input.dims[batch] / self.n_parts;
        let mut part = Patches { n_parts: 1, ..self.clone() };
        part.input.dims[batch] = size;
        match is_sum {
            true if self.output.dtype.bits() < 32 => part.output.dtype = DType::F32,
            true => {}
            false => part.output.dims[labels.output_batch as usize] = size,
        }
        let run = |k: i64| (k * size, (k + 1) * size);
        let mut products = Vec::new();
        for k in 0..self.n_parts {
            let input = cut(module, (comp, &name), lhs, (batch, run(k)));
            let kernel = match is_sum {
                true => cut(module, (comp, &name), rhs, (labels.kernel_input_feature as usize, run(k))),
                false => rhs,
            };
            products.push(part.product(module, (comp, &name), [input, kernel]));
        }
        let mut build = Builder::new(module, comp);
        let whole = Shape::Array(self.output.clone());
        if !is_sum {
            let along = DimsAttrs { dimensions: Dims::from_slice(&[labels.output_batch]) };
            return build.add(&name, Opcode::Concatenate, whole, products, along);
        }
        let of_part = Shape::Array(part.output.clone());
        let mut add =
            |sum: InstId, next: InstId| build.add(&name, Opcode::Add, of_part.clone(), [sum, next], Attrs::Plain);
        let sum = products.into_iter().reduce(&mut add).unwrap_or(conv);
        match part.output.dtype == self.output.dtype {
            true => sum,
            false => build.add(&name, Opcode::Convert, whole, [sum], Attrs::Plain),
        }
    }

    /// Writes the patches and their product with a kernel.
    fn product(&self, module: &mut Module, (comp, name): (CompId, &str), [input, kernel]: [InstId; 2]) -> InstId {
        let dims = self.dims();
        let patches = self.gathered(module, (comp, name), input, &dims);
        let labels = &self.attrs.dim_labels;
        let (mut left, mut right) = (Dims::new(), Dims::new());
        for (k, &dim) in dims.iter().enumerate().filter(|(_, dim)| self.is_contracted(**dim)) {
            left.push(k as i64);
            right.push(match dim {
                PatchDim::Slice(d) => labels.kernel_spatial[d],
                PatchDim::Input(dim) => {
                    self.spatial(dim).map_or(labels.kernel_input_feature, |d| labels.kernel_spatial[d])
                }
            });
        }
        // The product's dims: those that are not contracted, in their order, and the features.
        let output_dim = |dim: PatchDim| match dim {
            PatchDim::Slice(d) => labels.output_spatial[d],
            PatchDim::Input(dim) => self.spatial(dim).map_or(labels.output_batch, |d| labels.output_spatial[d]),
        };
        let free = dims.iter().copied().filter(|&dim| !self.is_contracted(dim)).map(output_dim);
        let given: Vec<i64> = free.chain([labels.output_feature]).collect();
        let product = ArrayShape::new(self.output.dtype, given.iter().map(|&dim| self.output.dims[dim as usize]));
        let attrs = DotAttrs {
            lhs_contracting_dims: left,
            rhs_contracting_dims: right,
            operand_precision: self.attrs.operand_precision.clone(),
            ..DotAttrs::default()
        };
        let shape = Shape::Array(product.with_row_major());
        let dot = Builder::new(module, comp).add(name, Opcode::Dot, shape, [patches, kernel], attrs);
        let place = |dim: usize| given.iter().position(|&one| one as usize == dim).unwrap_or(0) as i64;
        let order = DimsAttrs { dimensions: (0..given.len()).map(place).collect() };
        Builder::new(module, comp).add(name, Opcode::Transpose, Shape::Array(self.output.clone()), [dot], order)
    }

    /// The input's patches, with these dims.
    fn gathered(&self, module: &mut Module, (comp, name): (CompId, &str), input: InstId, dims: &[PatchDim]) -> InstId {
        let of_input: Vec<usize> = dims
            .iter()
            .filter_map(|dim| match dim {
                PatchDim::Input(dim) => Some(*dim),
                PatchDim::Slice(_) => None,
            })
            .collect();
        let dtype = self.input.dtype;
        let array = |sizes: Vec<i64>| Shape::Array(ArrayShape::new(dtype, sizes).with_row_major());
        let mut sizes: Vec<i64> = of_input.iter().map(|&dim| self.input.dims[dim]).collect();
        let mut build = Builder::new(module, comp);
        let order = DimsAttrs { dimensions: of_input.iter().map(|&dim| dim as i64).collect() };
        let mut value = build.add(name, Opcode::Transpose, array(sizes.clone()), [input], order);
        let padding: Vec<PadDim> = of_input.iter().map(|&dim| self.padding(dim)).collect();
        if padding.iter().any(|dim| *dim != PadDim::default()) {
            for (size, pad) in sizes.iter_mut().zip(&padding) {
                *size += pad.low + pad.high + (*size - 1).max(0) * pad.interior;
            }
            let zero = build.constant("zero", Literal::scalar(dtype, Scalar::Float(0.0)));
            value = build.add(
                &format!("{name}.padded"),
                Opcode::Pad,
                array(sizes.clone()),
                [value, zero],
                PadAttrs { padding },
            );
        }
        let at = dims.iter().position(|dim| matches!(dim, PatchDim::Slice(_))).unwrap_or(0);
        let n_slices: i64 = (0..self.n_spatial()).map(|d| self.n_slices(d)).product();
        let cut: Vec<i64> = of_input.iter().map(|&dim| self.size(PatchDim::Input(dim))).collect();
        let mut with_one = cut.clone();
        with_one.insert(at, 1);
        let mut pieces = Vec::new();
        for number in 0..n_slices {
            let mut rest = number;
            let mut places = vec![0; self.n_spatial()];
            for d in (0..self.n_spatial()).rev() {
                places[d] = rest % self.n_slices(d);
                rest /= self.n_slices(d);
            }
            let slice: Vec<SliceDim> =
                of_input.iter().zip(&sizes).map(|(&dim, &size)| self.slice(dim, size, &places)).collect();
            let is_whole =
                slice.iter().zip(&sizes).all(|(one, &size)| *one == SliceDim { start: 0, limit: size, stride: 1 });
            let piece = match is_whole {
                true => value,
                false => {
                    build.add(&format!("{name}.tap"), Opcode::Slice, array(cut.clone()), [value], SliceAttrs { slice })
                }
            };
            pieces.push(build.add(
                &format!("{name}.tap"),
                Opcode::Reshape,
                array(with_one.clone()),
                [piece],
                ReshapeAttrs::default(),
            ));
        }
        with_one[at] = n_slices;
        let patches = match pieces.as_slice() {
            &[piece] => piece,
            _ => {
                let along = DimsAttrs { dimensions: Dims::from_slice(&[at as i64]) };
                build.add(&format!("{name}.patches"), Opcode::Concatenate, array(with_one), pieces, along)
            }
        };
        // The slices' numbers stand beside each other, in the order of the spatial dims.
        let all = dims.iter().map(|&dim| self.size(dim)).collect();
        build.add(&format!("{name}.patches"), Opcode::Reshape, array(all), [patches], ReshapeAttrs::default())
    }

    fn padding(&self, dim: usize) -> PadDim {
        self.spatial(dim).map_or(PadDim::default(), |d| {
            let window = self.window[d];
            PadDim { low: window.pad_low, high: window.pad_high, interior: window.base_dilation - 1 }
        })
    }

    /// What the slice with these numbers takes of a padded dim.
    fn slice(&self, dim: usize, size: i64, places: &[i64]) -> SliceDim {
        let Some(d) = self.spatial(dim) else { return SliceDim { start: 0, limit: size, stride: 1 } };
        let window = self.window[d];
        let (start, stride) = match self.sliced {
            Sliced::Taps => {
                let tap = if window.is_reversed { window.size - 1 - places[d] } else { places[d] };
                (tap * window.window_dilation, window.stride)
            }
            Sliced::Outputs => (places[d] * window.stride, window.window_dilation),
        };
        let n = self.size(PatchDim::Input(dim));
        SliceDim { start, limit: start + (n - 1) * stride + 1, stride }
    }
}

/// A run of rows of a value along one dim.
fn cut(module: &mut Module, (comp, name): (CompId, &str), value: InstId, (dim, run): (usize, (i64, i64))) -> InstId {
    let Some(mut shape) = module.shape(value).as_array().cloned() else { return value };
    let mut slice: Vec<SliceDim> = shape.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
    (slice[dim].start, slice[dim].limit) = run;
    shape.dims[dim] = run.1 - run.0;
    Builder::new(module, comp).add(
        &format!("{name}.part"),
        Opcode::Slice,
        Shape::Array(shape),
        [value],
        SliceAttrs { slice },
    )
}
