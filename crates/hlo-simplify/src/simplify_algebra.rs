//! Drop operations that change nothing, bit for bit.
//!
//! Before, `%x` is turned round twice, reshaped twice and multiplied by one:
//! ```text
//! %t = f32[3,2] transpose(%x), dimensions={1,0}
//! %tt = f32[2,3] transpose(%t), dimensions={1,0}
//! %flat = f32[6] reshape(%tt)
//! %cube = f32[1,6] reshape(%flat)
//! %ones = f32[1,6] broadcast(%one), dimensions={}
//! ROOT %y = f32[1,6] multiply(%cube, %ones)
//! ```
//! after:
//! ```text
//! ROOT %cube = f32[1,6] reshape(%x)
//! ```
//! The sample `ir-samples/passes/simplify-algebra/chain.hlo` runs this.
//!
//! **Why.** Lowering and partitioning leave such pairs behind, and they hide the ops that matter from other passes.
//!
//! **What it does not do.** Nothing that could change a bit of any number: `x + 0` stays for floats (it turns -0 into 0), so do
//! `x * 0`, `x - x` and every reassociation; complex numbers are not multiplied away (`inf * (1 + 0i)` has a NaN). A change of
//! layout is kept as what it is. In a scheduled module copies stay, as they belong to its buffers.
//!
//! **Algorithm.** [`RULES`] is the list: opcode, and a function that finds the equal earlier value or a shorter form. One
//! forward walk over each computation that runs as code; an instruction is asked again until no rule fires. Linear.
//!
//! **Requires** nothing. **Ensures** the same results, bit for bit (a signalling NaN may stay signalling). **Errors**: none.

use crate::forward::{Step, walk_forward};
use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_ir::attrs::{Attrs, DimsAttrs, PadDim, ReshapeAttrs};
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::{DType, Dims, InstId, Module, NumberClass, Opcode};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "simplify-algebra",
    help: "drop operations that change nothing, bit for bit",
    options: &[],
    build: |_| Ok(Box::new(SimplifyAlgebra)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimplifyAlgebra;

impl Pass for SimplifyAlgebra {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let effectful = module.effectful_computations();
        let mut has_changed = false;
        for comp in code_computations(module) {
            let walked = walk_forward(module, comp, &effectful, &mut |module, inst| simplify(module, inst));
            cx.report.count("uses-redirected", walked.n_redirected as u64);
            cx.report.count("instructions-rewritten", walked.n_edited as u64);
            cx.report.count("instructions-removed", walked.n_removed as u64);
            has_changed |= walked.has_changed();
        }
        if !has_changed {
            cx.report.unchanged_because = Some("no operation is without effect".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// What a rule finds.
#[derive(Clone, PartialEq, Debug)]
enum Finding {
    /// The value is this one, if the shapes are equal to the layout.
    Same(InstId),
    /// The same value follows from this operand with these attributes.
    Shorter(InstId, Attrs),
}

/// A rule of the list: for instructions of this opcode.
struct Rule {
    opcode: Opcode,
    find: fn(&Module, InstId) -> Option<Finding>,
}

const fn rule(opcode: Opcode, find: fn(&Module, InstId) -> Option<Finding>) -> Rule {
    Rule { opcode, find }
}

/// All rules; the first that finds something is taken.
static RULES: &[Rule] = &[
    rule(Opcode::Copy, same_copy),
    rule(Opcode::Convert, |m, i| same(operand(m, i, 0)?)),
    rule(Opcode::Broadcast, broadcast_of_all_dims),
    rule(Opcode::Reshape, |m, i| same(operand(m, i, 0)?)),
    rule(Opcode::Reshape, reshape_of_reshape),
    rule(Opcode::Transpose, identity_transpose),
    rule(Opcode::Transpose, transpose_of_transpose),
    rule(Opcode::Negate, negate_twice),
    rule(Opcode::Not, twice),
    rule(Opcode::Multiply, multiply_by_one),
    rule(Opcode::Divide, divide_by_one),
    rule(Opcode::Add, add_integer_zero),
    rule(Opcode::Subtract, subtract_integer_zero),
    rule(Opcode::Select, select_of_constant),
    rule(Opcode::Slice, whole_slice),
    rule(Opcode::DynamicSlice, |m, i| same(operand(m, i, 0)?)),
    rule(Opcode::Pad, pad_by_nothing),
    rule(Opcode::Concatenate, concatenate_of_one),
];

/// Applies rules to one instruction until none fires. Each shortening skips an earlier instruction, so it ends.
fn simplify(module: &mut Module, inst: InstId) -> Step {
    let mut step = Step::Keep;
    let mut original = None;
    loop {
        let (opcode, shape) = (module.inst(inst).opcode, module.inst(inst).shape);
        let fits = |found: &Finding| match found {
            // Equal to the layout and the dynamic dims: nobody can tell the two apart.
            Finding::Same(value) => module.inst(*value).shape == shape,
            Finding::Shorter(..) => true,
        };
        let mut found = RULES.iter().filter(|r| r.opcode == opcode).filter_map(|r| (r.find)(module, inst)).filter(fits);
        match found.next() {
            None => return step,
            Some(Finding::Same(value)) => {
                // Whoever used it uses `value` now; if nobody did, it stays as it was.
                if let Some(original) = original {
                    *module.inst_mut(inst) = original;
                }
                return Step::Replace(value);
            }
            Some(Finding::Shorter(from, attrs)) => {
                original.get_or_insert_with(|| module.inst(inst).clone());
                let instruction = module.inst_mut(inst);
                instruction.operands[0] = from;
                instruction.attrs = attrs;
                step = Step::Edited;
            }
        }
    }
}

fn same(value: InstId) -> Option<Finding> {
    Some(Finding::Same(value))
}

fn operand(module: &Module, inst: InstId, n: usize) -> Option<InstId> {
    module.inst(inst).operands.get(n).copied()
}

/// The first operand of `inst`'s first operand, if that has the same opcode as `inst`.
fn through(module: &Module, inst: InstId) -> Option<(InstId, InstId)> {
    let inner = operand(module, inst, 0)?;
    (module.inst(inner).opcode == module.inst(inst).opcode).then_some((inner, operand(module, inner, 0)?))
}

fn same_copy(module: &Module, inst: InstId) -> Option<Finding> {
    if module.header.is_scheduled {
        return None;
    }
    same(operand(module, inst, 0)?)
}

fn broadcast_of_all_dims(module: &Module, inst: InstId) -> Option<Finding> {
    let Attrs::Dims(attrs) = &module.inst(inst).attrs else { return None };
    attrs.dimensions.iter().enumerate().all(|(i, &d)| d == i as i64).then_some(())?;
    same(operand(module, inst, 0)?)
}

fn reshape_of_reshape(module: &Module, inst: InstId) -> Option<Finding> {
    let (_, source) = through(module, inst)?;
    Some(Finding::Shorter(source, ReshapeAttrs::default().into()))
}

fn permutation(module: &Module, inst: InstId) -> Option<&Dims> {
    Some(&DimsAttrs::of(&module.inst(inst).attrs)?.dimensions)
}

fn identity_transpose(module: &Module, inst: InstId) -> Option<Finding> {
    permutation(module, inst)?.iter().enumerate().all(|(i, &d)| d == i as i64).then_some(())?;
    same(operand(module, inst, 0)?)
}

fn transpose_of_transpose(module: &Module, inst: InstId) -> Option<Finding> {
    let (inner, source) = through(module, inst)?;
    let (outer, inner) = (permutation(module, inst)?, permutation(module, inner)?);
    let composed = outer.iter().map(|&d| inner.get(usize::try_from(d).ok()?).copied()).collect::<Option<Dims>>()?;
    Some(Finding::Shorter(source, hlo_ir::attrs::DimsAttrs { dimensions: composed }.into()))
}

fn twice(module: &Module, inst: InstId) -> Option<Finding> {
    same(through(module, inst)?.1)
}

/// Numbers of f8e8m0fnu have no sign: what is negated once is no number any more.
fn negate_twice(module: &Module, inst: InstId) -> Option<Finding> {
    let is_signed = module.shape(inst).as_array().is_some_and(|array| array.dtype != DType::F8E8M0FNU);
    is_signed.then(|| twice(module, inst)).flatten()
}

/// The one value of all elements, if `inst` is a constant of equal elements or a broadcast of one.
fn splat(module: &Module, inst: InstId) -> Option<Scalar> {
    let instruction = module.inst(inst);
    if instruction.opcode == Opcode::Broadcast {
        return splat(module, *instruction.operands.first()?);
    }
    let Attrs::Constant(value) = &instruction.attrs else { return None };
    let ConstantValue::Array(literal) = &**value else { return None };
    if literal.n_elems() == 0 || !literal.is_splat() { None } else { literal.get(0) }
}

fn is_one(module: &Module, inst: InstId) -> bool {
    match splat(module, inst) {
        Some(Scalar::Int(1) | Scalar::Uint(1)) => true,
        Some(Scalar::Float(value)) => value == 1.0,
        Some(Scalar::Int(_) | Scalar::Uint(_) | Scalar::Pred(_) | Scalar::Complex(..)) | None => false,
    }
}

fn multiply_by_one(module: &Module, inst: InstId) -> Option<Finding> {
    let (lhs, rhs) = (operand(module, inst, 0)?, operand(module, inst, 1)?);
    if is_one(module, rhs) {
        same(lhs)
    } else if is_one(module, lhs) {
        same(rhs)
    } else {
        None
    }
}

fn divide_by_one(module: &Module, inst: InstId) -> Option<Finding> {
    is_one(module, operand(module, inst, 1)?).then(|| operand(module, inst, 0))?.and_then(same)
}

/// Integers only: for floats, adding zero turns -0 into 0.
fn is_integer_zero(module: &Module, inst: InstId) -> bool {
    let class = module.shape(inst).as_array().map(|a| a.dtype.class());
    matches!(class, Some(NumberClass::Signed | NumberClass::Unsigned))
        && matches!(splat(module, inst), Some(Scalar::Int(0) | Scalar::Uint(0)))
}

fn add_integer_zero(module: &Module, inst: InstId) -> Option<Finding> {
    let (lhs, rhs) = (operand(module, inst, 0)?, operand(module, inst, 1)?);
    if is_integer_zero(module, rhs) {
        same(lhs)
    } else if is_integer_zero(module, lhs) {
        same(rhs)
    } else {
        None
    }
}

fn subtract_integer_zero(module: &Module, inst: InstId) -> Option<Finding> {
    is_integer_zero(module, operand(module, inst, 1)?).then(|| operand(module, inst, 0))?.and_then(same)
}

fn select_of_constant(module: &Module, inst: InstId) -> Option<Finding> {
    let (on_true, on_false) = (operand(module, inst, 1)?, operand(module, inst, 2)?);
    match splat(module, operand(module, inst, 0)?) {
        Some(Scalar::Pred(true)) => same(on_true),
        Some(Scalar::Pred(false)) => same(on_false),
        Some(Scalar::Int(_) | Scalar::Uint(_) | Scalar::Float(_) | Scalar::Complex(..)) | None => {
            (on_true == on_false).then_some(Finding::Same(on_true))
        }
    }
}

fn whole_slice(module: &Module, inst: InstId) -> Option<Finding> {
    let Attrs::Slice(attrs) = &module.inst(inst).attrs else { return None };
    attrs.slice.iter().all(|d| d.start == 0 && d.stride == 1).then(|| operand(module, inst, 0))?.and_then(same)
}

fn pad_by_nothing(module: &Module, inst: InstId) -> Option<Finding> {
    let Attrs::Pad(attrs) = &module.inst(inst).attrs else { return None };
    attrs.padding.iter().all(|d| *d == PadDim::default()).then(|| operand(module, inst, 0))?.and_then(same)
}

fn concatenate_of_one(module: &Module, inst: InstId) -> Option<Finding> {
    let operands = &module.inst(inst).operands;
    (operands.len() == 1).then(|| operands.first().copied())?.and_then(same)
}
