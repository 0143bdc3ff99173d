//! Arrays on their way between numpy and the evaluator: element type, dims and bytes.
//!
//! The bytes are the elements in row-major order, little-endian. Elements below 8 bits are widened as in `.npz` files
//! ([`hlo_eval::npz::savable`]); all others keep their bits.

use hlo_eval::npz::savable;
use hlo_eval::{Inputs, Outputs, entry_leaves};
use hlo_ir::literal::{Buffer, element_count};
use hlo_ir::{DType, Literal, Module};
use hlo_opt::Failure;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyByteArray;
use std::sync::Arc;

/// An array as Python hands it over: element type, dims, bytes.
pub(super) type Given = (String, Vec<i64>, PyBackedBytes);

/// An array as Python gets it.
pub(super) type Computed<'py> = (&'static str, Vec<i64>, Bound<'py, PyByteArray>);

fn literal((name, dims, bytes): &Given) -> Result<Arc<Literal>, String> {
    let dtype = DType::from_name(name).ok_or_else(|| format!("expected an element type of HLO, found `{name}`"))?;
    let stored = stored_as(dtype);
    let n_elems = element_count(dims).ok_or_else(|| format!("expected dims of an array, found {dims:?}"))?;
    let n_bytes = stored.bytes_of(n_elems as u64);
    if bytes.len() as u64 != n_bytes {
        return Err(format!("expected {n_bytes} bytes for {name}{dims:?}, found {}", bytes.len()));
    }
    let array = Literal::new(stored, dims, Buffer::from_packed_bytes(stored, bytes, n_elems));
    array.map(|array| Arc::new(array.convert(dtype))).map_err(|error| error.to_string())
}

fn computed<'py>(py: Python<'py>, array: &Literal) -> Computed<'py> {
    let stored = stored_as(array.dtype());
    let bytes = match stored == array.dtype() {
        true => array.data().to_packed_bytes(stored),
        false => array.convert(stored).data().to_packed_bytes(stored),
    };
    (array.dtype().name(), array.dims().to_vec(), PyByteArray::new(py, &bytes))
}

/// In which type elements cross: numpy packs none.
fn stored_as(dtype: DType) -> DType {
    if dtype.bits() < 8 { savable(dtype) } else { dtype }
}

/// The inputs of all devices: of each its own arrays, or one list for all.
///
/// # Errors
/// Another number of devices or of arrays than the module has.
pub(super) fn inputs(module: &Module, arrays: &[Vec<Given>], is_for_all: bool) -> Result<Inputs, Failure> {
    let failure = |text: String| Failure::Diagnostics(format!("error: evaluate: {text}"));
    let (n_devices, n_leaves) = (module.n_devices(), entry_leaves(module).len());
    if !is_for_all && arrays.len() != n_devices {
        let (expected, found) = (counted(n_devices, "list"), counted(arrays.len(), "list"));
        return Err(failure(format!("expected {expected} of arrays, one for each device, found {found}")));
    }
    let mut leaves: Vec<Vec<Arc<Literal>>> = vec![Vec::with_capacity(n_devices); n_leaves];
    for (device, row) in arrays.iter().enumerate() {
        if row.len() != n_leaves {
            let whose = if is_for_all { String::new() } else { format!("device {device}: ") };
            let (expected, found) = (counted(n_leaves, "array"), counted(row.len(), "array"));
            return Err(failure(format!("{whose}expected {expected} for the entry's parameters, found {found}")));
        }
        for (i, (array, leaf)) in row.iter().zip(&mut leaves).enumerate() {
            let literal = literal(array).map_err(|text| failure(format!("input {i} on device {device}: {text}")))?;
            let n_copies = if is_for_all { n_devices } else { 1 };
            leaf.extend(std::iter::repeat_n(literal, n_copies));
        }
    }
    Ok(Inputs { leaves })
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// The arrays of each device.
pub(super) fn of_outputs<'py>(py: Python<'py>, outputs: &Outputs, n_devices: usize) -> Vec<Vec<Computed<'py>>> {
    let of_device = |device: usize| outputs.leaves.iter().filter_map(move |row| row.get(device));
    (0..n_devices).map(|device| of_device(device).map(|array| computed(py, array)).collect()).collect()
}
