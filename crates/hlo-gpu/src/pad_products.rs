//! Make the rows of a product's arrays begin at multiples of 16 bytes, as the fast kernels of libraries demand.
//!
//! Before, a product with a head of 50,257 words:
//! ```text
//! %y = bf16[4096,50257] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, with %w padded by zeros:
//! ```text
//! %y.padded = bf16[4096,50264] dot(%x, %w.padded), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! %y.1 = bf16[4096,50257] slice(%y.padded), slice={[0:4096], [0:50257]}
//! ```
//!
//! **Why.** cuBLASLt multiplies arrays of 16-bit floats whose rows begin elsewhere at a sixth of its speed, f32 by TF32 at a quarter
//! ([`hlo_analysis::time::product_slowdown`]).
//!
//! **What it does.** A dim that is the fastest in memory of an operand or of the result, and no multiple of 16 bytes, grows to
//! the next one, in all three arrays. A contracted dim grows by zeros, which add nothing. Several products of one array share its padded form.
//!
//! **What it does not do.** Products for which the bytes that are copied cost more than the speed gains, products that wait for
//! others, dims of a batch, and f32, unless `tf32` says that those go to tensor cores too.
//!
//! **Requires** layouts as they will be (`propagate-layouts`). **Ensures** the same sums of the same products, and of zeros.

use crate::lower::dot::dot_may_round_to_tf32;
use crate::lower::legalize::stepwise_computations;
use crate::plan::has_library_types;
use hashbrown::HashMap;
use hlo_analysis::Preserved;
use hlo_ir::attrs::{Attrs, DotAttrs, PadAttrs, PadDim, SliceAttrs, SliceDim};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, Literal, Module, Opcode, Scalar, Shape};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// Bits that rows must be a multiple of.
const ALIGNED_BITS: i64 = 128;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "pad-products",
    help: "pad matrices for tensor cores whose rows begin at odd places, which libraries multiply slowly",
    options: &[
        OptionInfo {
            name: "min-operations",
            kind: OptionKind::Int,
            default: "4000000000",
            help: "operations of a product below which it stays as it is",
        },
        OptionInfo {
            // On an H100 an operation takes some 6e-15 s longer, and a byte that is copied 3.3e-13 s: 55 of them are as long.
            name: "min-operations-per-byte",
            kind: OptionKind::Int,
            default: "100",
            help: "operations for each byte that is copied to pad, below which a product stays as it is",
        },
        OptionInfo {
            name: "tf32",
            kind: OptionKind::Bool,
            default: "false",
            help: "products of f32 go to tensor cores by TF32, as --matmul tf32 has it",
        },
    ],
    build: |options: &Options| {
        let count = |name: &str| u64::try_from(options.int(name)).unwrap_or(0) as f64;
        Ok(Box::new(PadProducts {
            least: count("min-operations"),
            per_byte: count("min-operations-per-byte"),
            uses_tf32: options.flag("tf32"),
        }))
    },
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PadProducts {
    least: f64,
    per_byte: f64,
    uses_tf32: bool,
}

impl Pass for PadProducts {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_changed = 0;
        for comp in stepwise_computations(module) {
            let insts = module.comp(comp).insts.clone();
            let (was_live, n_slots) = (module.live(comp), module.n_inst_slots());
            let mut padded = HashMap::new();
            for inst in insts.into_iter().filter(|&inst| was_live.contains(inst)) {
                let Some(product) = Product::of(module, inst, self.uses_tf32) else { continue };
                let grown = product.grown();
                if self.pays(&product, &grown) {
                    n_changed += 1;
                    let slice = product.write(module, (comp, inst), &grown, &mut padded);
                    module.replace_all_uses(inst, slice);
                }
            }
            let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
            module.restore_order(comp).map_err(cycle)?;
            module.remove_newly_dead(comp, &was_live, n_slots);
        }
        cx.report.count("products", n_changed);
        if n_changed == 0 {
            cx.report.unchanged_because =
                Some("no large product for tensor cores has rows that begin at odd places".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

impl PadProducts {
    /// Whether padding is worth the bytes that it copies.
    fn pays(&self, product: &Product, grown: &[ArrayShape; 3]) -> bool {
        let [lhs, _, out] = &product.arrays;
        let contracted: f64 =
            product.attrs.lhs_contracting_dims.iter().map(|&dim| lhs.dims[dim as usize] as f64).product();
        let operations = 2.0 * out.n_elems() as f64 * contracted;
        let changed = product.arrays.iter().zip(grown).filter(|(old, new)| old.dims != new.dims);
        let copied: Vec<f64> = changed.map(|(old, new)| (old.memory_bytes() + new.memory_bytes()) as f64).collect();
        !copied.is_empty() && operations >= self.least && operations >= self.per_byte * copied.iter().sum::<f64>()
    }
}

/// A product that tensor cores make.
struct Product {
    attrs: DotAttrs,
    operands: [InstId; 2],
    /// Both operands, and the result.
    arrays: [ArrayShape; 3],
}

impl Product {
    fn of(module: &Module, inst: InstId, uses_tf32: bool) -> Option<Product> {
        let node = module.inst(inst);
        let (Opcode::Dot, Attrs::Dot(attrs), &[lhs, rhs]) = (node.opcode, &node.attrs, node.operands.as_slice()) else {
            return None;
        };
        if !node.control_predecessors().is_empty() {
            return None;
        }
        let array =
            |inst: InstId| module.shape(inst).as_array().filter(|array| array.dynamic == 0 && array.n_elems() > 0);
        let arrays = [array(lhs)?.clone(), array(rhs)?.clone(), array(inst)?.clone()];
        let [left, right, out] = &arrays;
        let is_rounded = uses_tf32 && left.dtype == DType::F32 && dot_may_round_to_tf32(attrs);
        let is_for_tensor_cores =
            (left.dtype.bits() == 16 || is_rounded) && has_library_types(left.dtype, right.dtype, out.dtype);
        is_for_tensor_cores.then(|| Product { attrs: (**attrs).clone(), operands: [lhs, rhs], arrays })
    }

    /// The three arrays with the dims that must grow grown.
    fn grown(&self) -> [ArrayShape; 3] {
        let mut grown = self.arrays.clone();
        for side in 0..3 {
            let array = &self.arrays[side];
            let fastest = array.physical_order().into_iter().find(|&dim| array.dims[dim] != 1);
            let aligned = ALIGNED_BITS / i64::from(array.dtype.bits());
            let Some(dim) = fastest.filter(|&dim| array.dims[dim] % aligned != 0) else { continue };
            let size = array.dims[dim] + aligned - array.dims[dim] % aligned;
            for (side, dim) in self.same_dims(side, dim) {
                grown[side].dims[dim] = size;
            }
        }
        grown
    }

    /// A dim of one of the three arrays in all arrays that have it; none for those of a batch.
    fn same_dims(&self, side: usize, dim: usize) -> Vec<(usize, usize)> {
        let DotAttrs { lhs_contracting_dims, rhs_contracting_dims, lhs_batch_dims, rhs_batch_dims, .. } = &self.attrs;
        let contracted: [&Dims; 2] = [lhs_contracting_dims, rhs_contracting_dims];
        let batch: [&Dims; 2] = [lhs_batch_dims, rhs_batch_dims];
        // The result has the dims of the batch, those of the first operand alone, and those of the second.
        let own = |side: usize| {
            let is_own =
                move |dim: &usize| !contracted[side].contains(&(*dim as i64)) && !batch[side].contains(&(*dim as i64));
            (0..self.arrays[side].rank()).filter(is_own)
        };
        let of_result = (0..2).flat_map(|side| own(side).map(move |dim| (side, dim)));
        let mut groups: Vec<Vec<(usize, usize)>> =
            of_result.enumerate().map(|(k, at)| vec![at, (2, batch[0].len() + k)]).collect();
        let pairs = lhs_contracting_dims.iter().zip(rhs_contracting_dims);
        groups.extend(pairs.map(|(&left, &right)| vec![(0, left as usize), (1, right as usize)]));
        groups.into_iter().find(|group| group.contains(&(side, dim))).unwrap_or_default()
    }

    /// Writes the padded product; gives what stands for `inst`. `padded` has the arrays that are padded already, by value and dims.
    fn write(
        &self,
        module: &mut Module,
        (comp, inst): (CompId, InstId),
        grown: &[ArrayShape; 3],
        padded: &mut HashMap<(InstId, Dims), InstId>,
    ) -> InstId {
        let name = module.inst_name(inst).to_string();
        let mut operands = self.operands;
        for (side, operand) in operands.iter_mut().enumerate() {
            let (old, new) = (&self.arrays[side], &grown[side]);
            if old.dims == new.dims {
                continue;
            }
            let key = (*operand, new.dims.clone());
            *operand = match padded.get(&key) {
                Some(&known) => known,
                None => {
                    let pad = pad(module, comp, *operand, (old, new));
                    padded.insert(key, pad);
                    pad
                }
            };
        }
        let [.., old, new] = [&self.arrays[2], &grown[2]];
        let mut build = Builder::new(module, comp);
        let whole = Shape::Array(new.clone());
        if old.dims == new.dims {
            return build.add(&name, Opcode::Dot, whole, operands, self.attrs.clone());
        }
        let product = build.add(&format!("{name}.padded"), Opcode::Dot, whole, operands, self.attrs.clone());
        let slice = old.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        build.add(&name, Opcode::Slice, Shape::Array(old.clone()), [product], SliceAttrs { slice })
    }
}

/// An array with zeros behind the end of the dims that grow.
fn pad(module: &mut Module, comp: CompId, array: InstId, (old, new): (&ArrayShape, &ArrayShape)) -> InstId {
    let name = format!("{}.padded", module.inst_name(array));
    let mut build = Builder::new(module, comp);
    let zero = build.constant("zero", Literal::scalar(old.dtype, Scalar::Float(0.0)));
    let high = old.dims.iter().zip(&new.dims).map(|(old, new)| PadDim { low: 0, high: new - old, interior: 0 });
    let attrs = PadAttrs { padding: high.collect() };
    build.add(&name, Opcode::Pad, Shape::Array(new.clone()), [array, zero], attrs)
}
