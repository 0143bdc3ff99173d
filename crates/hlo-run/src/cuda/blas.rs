//! Matrix products by cuBLASLt. The algorithm of each product of the plan is chosen once ([`super::choices`]).
#![allow(unsafe_code)] // cuBLASLt is a C interface; descriptors live as long as the values that made them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use hlo_ir::DType;

use super::addresses::{Addresses, Way};
use super::card::Card;
use super::choices::{Choices, MOST_SUGGESTIONS, Question, fastest};
use super::context::{Allocation, DeviceContext, Event, Timing};
use super::products::{Columns, Product, product};
use crate::ExecutionError;
use hlo_gpu::plan::Gemm;

/// What NVIDIA recommends for Hopper; more than enough for the cards before it.
const WORKSPACE_BYTES: usize = 32 << 20;

/// The products of one device.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Allocation,
    ready: HashMap<Product, Ready>,
}

/// A product with its algorithm.
struct Ready {
    operation: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
    is_double: bool,
    addresses: Addresses,
}

type Status = result::CublasError;
type Stream = cudarc::driver::sys::CUstream;

fn failed(what: &str) -> impl Fn(Status) -> ExecutionError + '_ {
    move |error| ExecutionError::Device { what: what.to_string(), reason: format!("cuBLASLt: {:?}", error.0) }
}

/// An attribute's value as the library takes it.
fn raw<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

impl Blas {
    /// A handle and workspace on a card.
    pub(super) fn new(card: &Card) -> Result<Blas, ExecutionError> {
        let workspace = Allocation::new(card, WORKSPACE_BYTES, "the workspace of products")?;
        let handle = result::create_handle().map_err(failed(&card.name))?;
        Ok(Blas { handle, workspace, ready: HashMap::new() })
    }

    /// Issues a product on a stream. With `choices`, a product that is new is timed: then the stream must not record, and
    /// `drain` waits for what was issued on it.
    pub(super) fn multiply(
        &mut self,
        context: &DeviceContext<'_>,
        stream: Stream,
        gemm: &Gemm,
        choices: Option<&Choices>,
        drain: &dyn Fn(Stream) -> Result<(), ExecutionError>,
    ) -> Result<(), ExecutionError> {
        let name = &context.plan.buffers[gemm.output.buffer].name;
        if gemm.outer_batch * gemm.batch * gemm.m * gemm.n == 0 {
            return Ok(());
        }
        if gemm.k == 0 {
            let output = gemm.output.buffer;
            return context.fill(stream, context.address(output)?, 0, context.size_bytes(output));
        }
        let product = product(gemm).ok_or_else(|| ExecutionError::Device {
            what: name.clone(),
            reason: "expected matrices stored by rows or by columns, found others".to_string(),
        })?;
        let library = Library { handle: self.handle, workspace: self.workspace.address };
        let ready = match self.ready.entry(product) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let mut ready = Ready::addressed(library.handle, context, &product, name)?;
                ready.algorithm = match choices {
                    None => ready.suggestions(library.handle, 1).map_err(failed(name))?[0],
                    Some(choices) => {
                        let buffers = [product.a.buffer, product.b.buffer, product.d.buffer];
                        let dtypes = buffers.map(|buffer| context.plan.buffers[buffer].shape.dtype);
                        let question = Question::new(&product, dtypes, ready.addresses.alignments, context.card.arch);
                        choices.get_or_choose(question, || {
                            let suggestions = ready.suggestions(library.handle, MOST_SUGGESTIONS);
                            let suggestions = suggestions.map_err(failed(name))?;
                            let mut pieces = Vec::new();
                            for buffer in buffers {
                                pieces.push((context.address(buffer)?, context.size_bytes(buffer)));
                            }
                            // A product that wrote where it reads would read something else the second time.
                            if (0..2).any(|k| overlap(pieces[k], pieces[2])) {
                                return Ok(suggestions[0]);
                            }
                            let timed = fastest(&suggestions, |algorithm| {
                                let before = Event::record(context.card, stream, Timing::On)?;
                                if library.run(&ready, algorithm, stream).is_err() {
                                    return Ok(None);
                                }
                                let after = Event::record(context.card, stream, Timing::On)?;
                                drain(stream)?;
                                before.seconds_until(context.card, &after).map(Some)
                            })?;
                            Ok(timed.unwrap_or(suggestions[0]))
                        })?
                    }
                };
                entry.insert(ready)
            }
        };
        library.run(ready, &ready.algorithm, stream).map_err(failed(name))
    }
}

/// Whether two pieces of memory, each an address and its bytes, have a byte in common.
fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.0 + other.1 && other.0 < one.0 + one.1
}

/// What runs products.
#[derive(Clone, Copy)]
struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
}

impl Library {
    /// Issues `d = a × b` for all matrices of a product.
    fn run(&self, ready: &Ready, algorithm: &sys::cublasLtMatmulAlgo_t, stream: Stream) -> Result<(), Status> {
        let (ones, zeros) = ((1.0f32, 1.0f64), (0.0f32, 0.0f64));
        let (alpha, beta) = match ready.is_double {
            true => (raw(&ones.1).0, raw(&zeros.1).0),
            false => (raw(&ones.0).0, raw(&zeros.0).0),
        };
        let call = |at: &[u64; 3]| {
            let [a, b, d] = at.map(|address| address as usize as *mut c_void);
            // SAFETY: layouts were made from the plan's views, which lie within their buffers; the workspace is used by this
            // device's compute stream alone.
            unsafe {
                result::matmul(
                    self.handle,
                    ready.operation,
                    alpha,
                    beta,
                    a,
                    ready.a,
                    b,
                    ready.b,
                    d,
                    ready.d,
                    d,
                    ready.d,
                    std::ptr::from_ref(algorithm),
                    self.workspace as usize as *mut c_void,
                    WORKSPACE_BYTES,
                    stream.cast(),
                )
            }
        };
        ready.addresses.calls.iter().try_for_each(call)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.ready.clear();
        // SAFETY: made in `new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Ready {
    /// A product whose matrices the library finds, with no algorithm yet. Several batches go by the addresses of all their matrices
    /// where the library has an algorithm that takes these, and one after the other where it has none.
    fn addressed(
        handle: sys::cublasLtHandle_t,
        context: &DeviceContext<'_>,
        product: &Product,
        name: &str,
    ) -> Result<Ready, ExecutionError> {
        if product.outer_batch > 1 {
            let addresses = Addresses::of_each(context, product)?;
            if let Ok(ready) = Ready::new(context, product, name, addresses)
                && ready.suggestions(handle, 1).is_ok()
            {
                return Ok(ready);
            }
        }
        Ready::new(context, product, name, Addresses::of_batches(context, product)?)
    }

    fn new(
        context: &DeviceContext<'_>,
        product: &Product,
        name: &str,
        addresses: Addresses,
    ) -> Result<Ready, ExecutionError> {
        let error = failed(name);
        let dtype = |matrix: &Columns| context.plan.buffers[matrix.buffer].shape.dtype;
        let type_of = |matrix: &Columns| {
            library_type(dtype(matrix)).ok_or_else(|| ExecutionError::Device {
                what: name.to_string(),
                reason: format!("expected a product of floats, found one of {}", dtype(matrix)),
            })
        };
        let types = (type_of(&product.a)?, type_of(&product.b)?, type_of(&product.d)?);
        let is_double = dtype(&product.d) == DType::F64;
        let is_single = dtype(&product.a) == DType::F32;
        let (compute, scale) = match (is_double, is_single && product.uses_tf32) {
            (true, _) => (sys::cublasComputeType_t::CUBLAS_COMPUTE_64F, sys::cudaDataType_t::CUDA_R_64F),
            (false, true) => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType_t::CUDA_R_32F),
            (false, false) => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F),
        };
        let operation = result::create_matmul_desc(compute, scale).map_err(&error)?;
        let null = std::ptr::null_mut();
        // SAFETY: an algorithm is plain data; it is replaced before use.
        let algorithm = unsafe { std::mem::zeroed() };
        // From here on what was made is destroyed with `ready`.
        let way = addresses.way;
        let mut ready = Ready { operation, a: null, b: null, d: null, algorithm, is_double, addresses };
        ready.a = layout(&product.a, types.0, way).map_err(&error)?;
        ready.b = layout(&product.b, types.1, way).map_err(&error)?;
        ready.d = layout(&product.d, types.2, way).map_err(&error)?;
        for (attribute, matrix) in [
            (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, &product.a),
            (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, &product.b),
        ] {
            // `cublasOperation_t`, which the bindings leave out: 0 is the matrix itself, 1 its transpose.
            let transposed = i32::from(matrix.is_transposed);
            let (value, size) = raw(&transposed);
            // SAFETY: the attribute is an i32.
            unsafe { result::set_matmul_desc_attribute(operation, attribute, value, size) }.map_err(&error)?;
        }
        Ok(ready)
    }

    /// Asks the library for algorithms for these layouts at these addresses: one at least, `most` at most, those that it
    /// holds for the fastest first.
    fn suggestions(
        &self,
        handle: sys::cublasLtHandle_t,
        most: usize,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, Status> {
        use sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as A,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES as B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as C,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as D,
        };
        let [a, b, d] = self.addresses.alignments;
        let preference = result::create_matmul_pref()?;
        // SAFETY: all bits zero are a result, with the state of success; the library overwrites those that it counts.
        let mut found = vec![unsafe { std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>() }; most.max(1)];
        let mut n_found = 0;
        // SAFETY: values have the types of their attributes (u64, u32); the descriptors are alive; there is room for as
        // many results as are asked for; the preference is destroyed once.
        let outcome = unsafe {
            let (value, size) = raw(&WORKSPACE_BYTES);
            let mut outcome = result::set_matmul_pref_attribute(preference, WORKSPACE, value, size);
            for (attribute, bytes) in [(A, a), (B, b), (C, d), (D, d)] {
                let (value, size) = raw(&bytes);
                outcome = outcome.and_then(|()| result::set_matmul_pref_attribute(preference, attribute, value, size));
            }
            let (operation, room) = (self.operation, found.len() as i32);
            let asked = outcome.and_then(|()| {
                let (results, n) = (found.as_mut_ptr(), &raw mut n_found);
                let (a, b, d) = (self.a, self.b, self.d);
                sys::cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, d, d, preference, room, results, n)
                    .result()
            });
            asked.and(result::destroy_matmul_pref(preference))
        };
        outcome?;
        found.truncate(usize::try_from(n_found).unwrap_or(0));
        let is_usable = |found: &&sys::cublasLtMatmulHeuristicResult_t| found.state.result().is_ok();
        let usable: Vec<_> = found.iter().filter(is_usable).map(|found| found.algo).collect();
        if usable.is_empty() {
            return Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        }
        Ok(usable)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // SAFETY: made in `new`; null where that came to an end early.
        unsafe {
            for layout in [self.a, self.b, self.d] {
                if !layout.is_null() {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

fn library_type(dtype: DType) -> Option<sys::cudaDataType_t> {
    match dtype {
        DType::F16 => Some(sys::cudaDataType_t::CUDA_R_16F),
        DType::BF16 => Some(sys::cudaDataType_t::CUDA_R_16BF),
        DType::F32 => Some(sys::cudaDataType_t::CUDA_R_32F),
        DType::F64 => Some(sys::cudaDataType_t::CUDA_R_64F),
        _ => None,
    }
}

fn layout(matrix: &Columns, dtype: sys::cudaDataType_t, way: Way) -> Result<sys::cublasLtMatrixLayout_t, Status> {
    use sys::cublasLtMatrixLayoutAttribute_t::{
        CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE as MODE,
        CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as STRIDE,
    };
    let leading = matrix.leading.max(matrix.rows).cast_signed();
    let layout = result::create_matrix_layout(dtype, matrix.rows, matrix.cols, leading)?;
    let (Way::Strided(count) | Way::Pointers(count)) = way;
    let (count, stride) = (count as i32, matrix.batch_stride.cast_signed());
    let mode = sys::cublasLtBatchMode_t::CUBLASLT_BATCH_MODE_POINTER_ARRAY;
    // SAFETY: the attributes are an i32, an i64 and the mode.
    unsafe {
        let outcome = result::set_matrix_layout_attribute(layout, COUNT, raw(&count).0, raw(&count).1);
        let outcome = outcome.and_then(|()| match way {
            Way::Strided(_) => result::set_matrix_layout_attribute(layout, STRIDE, raw(&stride).0, raw(&stride).1),
            Way::Pointers(_) => result::set_matrix_layout_attribute(layout, MODE, raw(&mode).0, raw(&mode).1),
        });
        if outcome.is_err() {
            let _ = result::destroy_matrix_layout(layout);
        }
        outcome.map(|()| layout)
    }
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn pieces_that_touch_do_not_overlap() {
        assert_eq!(
            [overlap((0, 16), (16, 16)), overlap((0, 17), (16, 16)), overlap((20, 1), (16, 16))],
            [false, true, true]
        );
    }
}
