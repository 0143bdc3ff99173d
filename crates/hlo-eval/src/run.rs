//! The interface: a module and the inputs of every device in, the outputs of every device out.

use crate::engine::{EvalOptions, Machine, Observer};
use crate::error::EvalError;
use crate::value::{Spread, Value};
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::sharding::LeafSharding;
use hlo_ir::{ArrayShape, InstId, Literal, Module, Shape};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// How many elements of an array are hashed, about.
const HASHED_ELEMS: usize = 8;

/// The arrays that every device is given: `[flat leaf of the entry parameters][device]`.
///
/// Parameters that are tuples are flattened in order; tokens take no place. Arrays that are equal on several devices
/// should be one `Arc`, but need not be: [`run`] compares them.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// One row for each leaf, with one array for each device.
    pub leaves: Vec<Vec<Arc<Literal>>>,
}

/// The arrays that every device returns: `[flat leaf of the entry's result][device]`.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// One row for each leaf, with one array for each device.
    pub leaves: Vec<Vec<Arc<Literal>>>,
}

/// One array among the entry's parameters.
#[derive(Clone, Debug)]
pub struct EntryLeaf {
    /// Number of the parameter.
    pub param: usize,
    /// Its element type and dims.
    pub shape: ArrayShape,
    /// Its sharding, if the parameter has one.
    pub sharding: Option<LeafSharding>,
    /// Whether `parameter_replication` says that all replicas hold the same.
    pub is_replicated: bool,
}

/// The array leaves of the entry's parameters, in the order of [`Inputs::leaves`].
pub fn entry_leaves(module: &Module) -> Vec<EntryLeaf> {
    let mut leaves = Vec::new();
    let Some(entry) = module.entry() else { return leaves };
    for (param, &inst) in module.comp(entry).params.iter().enumerate() {
        let sharding = module.sharding(inst);
        let attrs = ParameterAttrs::of(&module.inst(inst).attrs);
        let flags = attrs.map_or(&[][..], |attrs| &attrs.parameter_replication);
        let mut leaf_idx = 0;
        module.shape(inst).for_each_leaf(&mut |_, shape| {
            if let Shape::Array(array) = shape {
                let sharding = sharding.and_then(|s| s.leaf(leaf_idx)).cloned();
                let is_replicated = flags.get(leaf_idx).is_some_and(|flag| *flag);
                leaves.push(EntryLeaf { param, shape: array.clone(), sharding, is_replicated });
            }
            leaf_idx += 1;
        });
    }
    leaves
}

/// The array leaves of the entry's result, in the order of [`Outputs::leaves`].
pub fn result_leaves(module: &Module) -> Vec<ArrayShape> {
    let mut leaves = Vec::new();
    if let Some(shape) = module.entry().and_then(|entry| module.result_shape(entry)) {
        module.shapes.get(shape).for_each_leaf(&mut |_, shape| {
            if let Shape::Array(array) = shape {
                leaves.push(array.clone());
            }
        });
    }
    leaves
}

/// Runs `module` on all its devices in lockstep.
///
/// # Errors
/// Inputs that do not fit the entry's parameters; an operation without semantics; devices of a collective that never
/// meet; a limit of `options`. Errors name the instruction.
pub fn run(module: &Module, inputs: &Inputs, options: &EvalOptions) -> Result<Outputs, EvalError> {
    Ok(run_with(module, inputs, options, None)?.0)
}

/// As [`run`]; `observe` sees every executed instruction with the flat id of a device and its value there, device by
/// device, in the order of execution. Parameters are seen at every call; constants and pure instructions that nothing reads are not.
///
/// # Errors
/// As [`run`].
pub fn run_observed(
    module: &Module,
    inputs: &Inputs,
    options: &EvalOptions,
    observe: &mut dyn FnMut(InstId, u32, &Value),
) -> Result<Outputs, EvalError> {
    Ok(run_with(module, inputs, options, Some(observe))?.0)
}

/// The outputs, and where copies of a value first differ at the end of a manual region.
pub(crate) fn run_with<'m>(
    module: &'m Module,
    inputs: &Inputs,
    options: &'m EvalOptions,
    observer: Option<&'m mut Observer<'m>>,
) -> Result<(Outputs, Option<String>), EvalError> {
    let entry = module.entry().ok_or_else(|| EvalError::invalid("the module has no entry computation"))?;
    let n_devices = module.n_devices();
    let shared = share_equal(module, inputs)?;
    let mut args = Vec::new();
    let mut leaf = 0;
    for &param in &module.comp(entry).params {
        let shape = module.shape(param);
        let mut after = leaf;
        let mut values = Vec::with_capacity(n_devices);
        for device in 0..n_devices {
            after = leaf;
            values.push(Value::of_leaves(shape, &mut |_| {
                after += 1;
                let row: Option<&Arc<Literal>> = shared.get(after - 1).and_then(|row| row.get(device));
                row.cloned().ok_or_else(|| EvalError::invalid(format!("no input for leaf {}", after - 1)))
            })?);
        }
        leaf = after;
        args.push(Spread::of(values));
    }
    drop(shared);
    let active: Vec<u32> = (0..u32::try_from(n_devices).unwrap_or(u32::MAX)).collect();
    let mut machine = Machine::new(module, options);
    machine.observer = observer;
    let result = machine.run(entry, args, &active)?;
    let mut leaves: Vec<Vec<Arc<Literal>>> = vec![Vec::with_capacity(n_devices); result_leaves(module).len()];
    for device in 0..n_devices {
        let mut rows = leaves.iter_mut();
        result.get(device)?.for_each_array(&mut |array| {
            if let Some(row) = rows.next() {
                row.push(array.clone());
            }
        });
    }
    Ok((Outputs { leaves }, machine.parting))
}

/// The inputs, checked against the parameters; equal arrays of a leaf are one `Arc`.
fn share_equal(module: &Module, inputs: &Inputs) -> Result<Vec<Vec<Arc<Literal>>>, EvalError> {
    let expected = entry_leaves(module);
    if expected.len() != inputs.leaves.len() {
        let text = format!("expected inputs for {} parameter leaves, found {}", expected.len(), inputs.leaves.len());
        return Err(EvalError::invalid(text));
    }
    let mut out = Vec::with_capacity(expected.len());
    for (i, (leaf, row)) in expected.iter().zip(&inputs.leaves).enumerate() {
        if row.len() != module.n_devices() {
            let text = format!("input {i}: expected {} devices, found {}", module.n_devices(), row.len());
            return Err(EvalError::invalid(text));
        }
        let mut shared: Vec<Arc<Literal>> = Vec::with_capacity(row.len());
        let mut by_storage: HashMap<*const Literal, Arc<Literal>> = HashMap::new();
        let mut by_elements: HashMap<u64, Vec<Arc<Literal>>> = HashMap::new();
        for (device, array) in row.iter().enumerate() {
            if array.dtype() != leaf.shape.dtype || array.dims() != leaf.shape.dims.as_slice() {
                return Err(EvalError::invalid(format!(
                    "input {i} on device {device}: expected {}{:?}, found {}{:?}",
                    leaf.shape.dtype,
                    leaf.shape.dims.as_slice(),
                    array.dtype(),
                    array.dims()
                )));
            }
            let known = by_storage.entry(Arc::as_ptr(array)).or_insert_with(|| {
                let alike = by_elements.entry(hash_of_some(array)).or_default();
                if let Some(known) = alike.iter().find(|known| *known == array) {
                    return known.clone();
                }
                alike.push(array.clone());
                array.clone()
            });
            shared.push(known.clone());
        }
        out.push(shared);
    }
    Ok(out)
}

/// A hash of a few elements: arrays with another one are not equal.
fn hash_of_some(array: &Literal) -> u64 {
    let mut hasher = DefaultHasher::new();
    let step = (array.n_elems() / HASHED_ELEMS).max(1);
    for scalar in (0..array.n_elems()).step_by(step).filter_map(|i| array.get(i)) {
        format!("{scalar:?}").hash(&mut hasher);
    }
    hasher.finish()
}
