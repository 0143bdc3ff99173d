//! CUDA C++ for one instruction: a fusion, or a single operation.
//!
//! Emission is elemental: threads walk over the elements of the result, and an operand's element is computed where it is
//! needed by following index maps back to the arguments (see [`table`]). On top of that stand the forms that the hardware
//! wants: teams of threads for reductions ([`team`]), tiles for transposes ([`tiles`]) and for convolutions, which are matrix
//! products ([`conv_tiles`]), 16-byte accesses for elementwise kernels. Results of
//! different dims are computed by different blocks of one launch.

mod bodies;
mod column_team;
mod contraction;
mod conv_tiles;
mod device_reduction;
mod dtype;
mod elementwise;
mod emitter;
mod group;
mod groups;
mod indexing;
mod kept_sum;
mod places;
mod reach;
mod reduction;
mod row_sums;
mod row_team;
mod row_walk;
mod scalar;
mod scatter_rows;
mod shape_ops;
mod sort_rows;
mod structure;
mod table;
mod team;
mod team_join;
mod tiles;
mod windows;

pub(crate) use conv_tiles::{MAX_SUMS, conv_rounds, rows_of_tiles};
pub(crate) use shape_ops::keeps_runs;
pub(crate) use sort_rows::{comparator_keys, max_sorted_elems, sorted_operand};
pub(crate) use windows::window_dims;

use std::collections::HashMap;

use hlo_analysis::values::{entered, params_of_operands};
use hlo_ir::op::CalleeEntry;
use hlo_ir::{ArrayShape, InstId, Module, Shape};

use crate::GpuError;
use crate::lower::kernels::EmittedKernel;
use crate::plan::{Access, Kernel};
pub use device_reduction::device_reduction;
use dtype::CType;
use emitter::{Argument, Binding, Emitter};
use groups::{Form, FormedGroup};

/// What stands before the kernels of a program: types and arithmetic, the functions that rows of the op table describe,
/// and what else kernels call.
pub fn prelude() -> String {
    let numbers = [include_str!("prelude/numbers.h"), include_str!("prelude/narrow.h")].concat();
    let complex = include_str!("prelude/complex.h");
    [&numbers, &scalar::functions(), complex, include_str!("prelude/kernels.h")].join("\n")
}

/// How kernels are written.
#[derive(Clone, Debug, Default)]
pub struct EmitOptions {
    /// One thread for each element, one element at a time: the slow and obvious form, which the others are compared with.
    pub is_elemental_only: bool,
    /// Convolutions of f32 round their factors to TF32, but for those whose precision asks for all bits.
    pub uses_tf32: bool,
}

/// The arguments and results of an instruction as a kernel sees them.
struct Signature {
    operands: Vec<Argument>,
    results: Vec<Argument>,
    /// What the values that are not computed in the kernel stand for.
    bindings: HashMap<InstId, Binding>,
    /// The instruction whose leaves are the results.
    root: InstId,
}

fn array_leaves(shape: &Shape, instruction: &str) -> Result<Vec<Argument>, GpuError> {
    let mut leaves = Vec::new();
    shape.for_each_leaf(&mut |_, leaf| {
        if let Shape::Array(array) = leaf {
            leaves.push(array.clone());
        }
    });
    leaves
        .into_iter()
        .map(|shape| {
            check_layout(&shape, instruction)?;
            Ok(Argument { ctype: CType::of(shape.dtype), shape })
        })
        .collect()
}

fn check_layout(shape: &ArrayShape, instruction: &str) -> Result<(), GpuError> {
    let is_plain = shape.layout.as_ref().is_none_or(|layout| layout.tiles.is_empty());
    if is_plain && shape.dynamic == 0 {
        return Ok(());
    }
    let reason = "expected static dims and a layout without tiles".to_string();
    Err(GpuError::Unsupported { instruction: instruction.to_string(), reason })
}

impl Signature {
    fn new(module: &Module, inst: InstId) -> Result<Signature, GpuError> {
        let node = module.inst(inst);
        let name = module.inst_name(inst);
        let callee = match entered(module, inst) {
            Some((CalleeEntry::Call, callees)) => callees.first().map(|&callee| module.comp(callee)),
            Some((CalleeEntry::Loop | CalleeEntry::Branches, _)) | None => None,
        };
        let params = params_of_operands(module, inst);
        let mut operands = Vec::new();
        let mut bindings = HashMap::new();
        for (&operand, param) in node.operands.iter().zip(params) {
            let value = param.filter(|_| callee.is_some()).unwrap_or(operand);
            bindings.entry(value).or_insert(Binding::Arguments(operands.len()));
            operands.extend(array_leaves(module.shape(operand), name)?);
        }
        let root = callee.and_then(|comp| comp.root.expand()).unwrap_or(inst);
        let results = array_leaves(module.shape(inst), name)?;
        if results.len() != module.shape(inst).n_leaves() || results.is_empty() {
            let reason = "expected a result of arrays, found a token or none".to_string();
            return Err(GpuError::Unsupported { instruction: name.to_string(), reason });
        }
        Ok(Signature { operands, results, bindings, root })
    }
}

/// The kernel of `inst`, a fusion or a single operation. Its arguments are the array leaves of the operands in order, then
/// those of the result.
///
/// # Errors
/// An operation or element type that no kernel is written for; the instruction is named.
pub fn emit(module: &Module, inst: InstId, options: &EmitOptions) -> Result<EmittedKernel, GpuError> {
    let signature = Signature::new(module, inst)?;
    let reach = reach::Reach::new(module, &signature.bindings, signature.root, signature.results.len());
    let groups = groups::groups(module, &reach, &signature, options);
    let block = groups.iter().map(|group| group.block()).max().unwrap_or(256);
    let mut emitter = Emitter::new(module, inst, signature.operands.clone());
    let frame = emitter.add_frame(signature.bindings.clone());
    let grid = groups::write(&mut emitter, frame, &groups, &signature.results, block)?;
    let is_cooperative = emitter.is_cooperative;
    if !is_cooperative && groups.iter().any(groups::FormedGroup::has_team) {
        // The reduction cannot be split: its initial value is not neutral, or not known.
        return emit(module, inst, &EmitOptions { is_elemental_only: true, ..*options });
    }
    let updatable = match groups.as_slice() {
        [only] if only.is_of_rows() => reach::updatable_rows(&signature, &emitter.rows_read),
        [FormedGroup { group, form: Form::Columns(columns) }] => {
            reach::updatable_beside(module, &reach, columns.sums(), group, &signature)
        }
        [FormedGroup { group, form: Form::Product(tiles) }] => {
            reach::updatable_beside(module, &reach, tiles.sums(), group, &signature)
        }
        _ => reach::updatable(module, &reach, groups.iter().map(|formed| &formed.group), &signature),
    };
    let body = emitter.into_text();
    let n_elems = signature.operands.iter().chain(&signature.results).map(|a| a.shape.n_elems()).max().unwrap_or(0);
    let computed = reach.roots.iter().flat_map(|root| &root.all).filter(|inst| !signature.bindings.contains_key(inst));
    let farthest = computed.map(|&inst| windows::farthest_position(module, inst)).max().unwrap_or(0);
    let idx = if n_elems < 1 << 30 && farthest < 1 << 30 { "int" } else { "long long" };
    let text = |name: &str| {
        let read = signature.operands.iter().enumerate().map(|(i, argument)| {
            let may_alias = updatable.iter().any(|&(operand, _)| operand == i);
            let restrict = if may_alias { "" } else { " __restrict__" };
            format!("const {}*{restrict} p{i}", argument.ctype.stored)
        });
        let written = signature.results.iter().enumerate().map(|(i, argument)| {
            let may_alias = updatable.iter().any(|&(_, result)| result == i);
            let restrict = if may_alias { "" } else { " __restrict__" };
            format!("{}*{restrict} r{i}", argument.ctype.stored)
        });
        let parameters = read.chain(written).collect::<Vec<String>>().join(", ");
        format!(
            "extern \"C\" __global__ void __launch_bounds__({block}) {name}({parameters}) {{\n    typedef {idx} idx;\n{body}}}\n"
        )
    };
    let opcode = module.inst(inst).opcode.name().replace('-', "_");
    let name = format!("{opcode}_{:016x}", content_hash(&text("")));
    let accesses = signature.operands.iter().map(|_| Access::Read);
    let kernel = Kernel {
        source: text(&name),
        name,
        grid,
        block,
        shared_bytes: 0,
        is_cooperative,
        arguments: accesses.chain(signature.results.iter().map(|_| Access::Write)).collect(),
    };
    Ok(EmittedKernel { kernel, updatable })
}

/// Writes a plan's kernels.
#[derive(Clone, Debug, Default)]
pub struct CudaKernels {
    /// How.
    pub options: EmitOptions,
}

impl crate::lower::kernels::Emitter for CudaKernels {
    fn emit(&mut self, module: &Module, inst: InstId) -> Result<EmittedKernel, GpuError> {
        emit(module, inst, &self.options)
    }
}

/// FNV-1a of a text: equal kernels get equal names, in every process.
pub fn content_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
