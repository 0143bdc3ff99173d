//! Matrix products by cuBLASLt. The algorithm of each product of the plan is chosen once.
#![allow(unsafe_code)] // cuBLASLt is a C interface; descriptors live as long as the values that made them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use hlo_ir::DType;

use super::card::Card;
use super::context::{Allocation, DeviceContext};
use super::products::{Columns, Product, product};
use crate::ExecutionError;
use hlo_gpu::plan::Gemm;

/// What NVIDIA recommends for Hopper; more than enough for the cards before it.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Alignment beyond which algorithms do not differ.
const MOST_ALIGNMENT: u64 = 256;

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
    /// How the library finds the matrices.
    addressing: Addressing,
}

/// How the library finds the matrices of a product.
enum Addressing {
    /// The first and a stride. Outer batches are products of their own.
    Strided,
    /// Arrays on the card of the addresses of all matrices: `a`, `b`, `d`.
    Pointers([Allocation; 3]),
}

type Status = result::CublasError;

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

    /// Issues a product on a stream.
    pub(super) fn multiply(
        &mut self,
        context: &DeviceContext<'_>,
        stream: cudarc::driver::sys::CUstream,
        gemm: &Gemm,
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
        let handle = self.handle;
        let ready = match self.ready.entry(product) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(ready(handle, context, &product, name)?),
        };
        let (ones, zeros) = ((1.0f32, 1.0f64), (0.0f32, 0.0f64));
        let (alpha, beta) = match ready.is_double {
            true => (raw(&ones.1).0, raw(&zeros.1).0),
            false => (raw(&ones.0).0, raw(&zeros.0).0),
        };
        let n_calls = match ready.addressing {
            Addressing::Strided => product.outer_batch,
            Addressing::Pointers(_) => 1,
        };
        let matrices = [&product.a, &product.b, &product.d];
        for outer in 0..n_calls {
            let mut found = [std::ptr::null_mut::<c_void>(); 3];
            for (i, matrix) in matrices.into_iter().enumerate() {
                let address = match &ready.addressing {
                    Addressing::Strided => address_of(context, matrix, 0, outer)?,
                    Addressing::Pointers(arrays) => arrays[i].address,
                };
                found[i] = address as usize as *mut c_void;
            }
            let [a, b, d] = found;
            // SAFETY: layouts were made from the plan's views, which lie within their buffers; the workspace is used by this
            // device's compute stream alone.
            unsafe {
                result::matmul(
                    handle,
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
                    &raw const ready.algorithm,
                    self.workspace.address as usize as *mut c_void,
                    WORKSPACE_BYTES,
                    stream.cast(),
                )
            }
            .map_err(failed(name))?;
        }
        Ok(())
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.ready.clear();
        // SAFETY: made in `new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Where a matrix of a product begins.
fn address_of(context: &DeviceContext<'_>, matrix: &Columns, batch: u64, outer: u64) -> Result<u64, ExecutionError> {
    let dtype = context.plan.buffers[matrix.buffer].shape.dtype;
    let elems = batch * matrix.batch_stride + outer * matrix.outer_stride;
    Ok(context.address(matrix.buffer)? + dtype.bytes_of(elems))
}

/// A product with its algorithm. Several batches go by the addresses of all their matrices where the library has an algorithm that
/// takes these, and one after the other where it has none.
fn ready(
    handle: sys::cublasLtHandle_t,
    context: &DeviceContext<'_>,
    product: &Product,
    name: &str,
) -> Result<Ready, ExecutionError> {
    if product.outer_batch > 1 {
        let mut arrays = Vec::new();
        for matrix in [&product.a, &product.b, &product.d] {
            let mut bytes = Vec::new();
            for (outer, batch) in (0..product.outer_batch).flat_map(|o| (0..product.batch).map(move |b| (o, b))) {
                bytes.extend(address_of(context, matrix, batch, outer)?.to_le_bytes());
            }
            let array = Allocation::new(context.card, bytes.len(), "the addresses of matrices")?;
            context.upload(array.address, &bytes)?;
            arrays.push(array);
        }
        if let Ok(arrays) = <[Allocation; 3]>::try_from(arrays)
            && let Ok(ready) = Ready::new(handle, context, product, name, Addressing::Pointers(arrays))
        {
            return Ok(ready);
        }
    }
    Ready::new(handle, context, product, name, Addressing::Strided)
}

impl Ready {
    fn new(
        handle: sys::cublasLtHandle_t,
        context: &DeviceContext<'_>,
        product: &Product,
        name: &str,
        addressing: Addressing,
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
        let mut ready = Ready { operation, a: null, b: null, d: null, algorithm, is_double, addressing };
        let batch = match ready.addressing {
            Addressing::Strided => Batch::Strided(product.batch),
            Addressing::Pointers(_) => Batch::Pointers(product.batch * product.outer_batch),
        };
        ready.a = layout(&product.a, types.0, batch).map_err(&error)?;
        ready.b = layout(&product.b, types.1, batch).map_err(&error)?;
        ready.d = layout(&product.d, types.2, batch).map_err(&error)?;
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
        ready.algorithm = ready.best_algorithm(handle, context, product)?.map_err(&error)?;
        Ok(ready)
    }

    /// Asks the library for the best algorithm for these layouts at these addresses.
    fn best_algorithm(
        &self,
        handle: sys::cublasLtHandle_t,
        context: &DeviceContext<'_>,
        product: &Product,
    ) -> Result<Result<sys::cublasLtMatmulAlgo_t, Status>, ExecutionError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as A,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES as B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as C,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as D,
        };
        let mut alignments = Vec::new();
        for (attribute, matrix) in [(A, &product.a), (B, &product.b), (C, &product.d), (D, &product.d)] {
            let first = context.address(matrix.buffer)?;
            let bytes = |elems: u64| context.plan.buffers[matrix.buffer].shape.dtype.bytes_of(elems);
            let steps = match self.addressing {
                Addressing::Strided => bytes(matrix.outer_stride),
                // Of each matrix: alignment is that of the least aligned.
                Addressing::Pointers(_) => bytes(matrix.outer_stride) | bytes(matrix.batch_stride),
            };
            alignments.push((attribute, alignment(first | steps)));
        }
        let preference = match result::create_matmul_pref() {
            Ok(preference) => preference,
            Err(error) => return Ok(Err(error)),
        };
        // SAFETY: values have the types of their attributes (u64, u32); the descriptors are alive; the preference is
        // destroyed once.
        unsafe {
            let (value, size) = raw(&WORKSPACE_BYTES);
            let mut outcome = result::set_matmul_pref_attribute(preference, WORKSPACE, value, size);
            for (attribute, bytes) in &alignments {
                let (value, size) = raw(bytes);
                outcome = outcome.and_then(|()| result::set_matmul_pref_attribute(preference, *attribute, value, size));
            }
            let found = outcome.and_then(|()| {
                result::get_matmul_algo_heuristic(handle, self.operation, self.a, self.b, self.d, self.d, preference)
            });
            let destroyed = result::destroy_matmul_pref(preference);
            Ok(found.and_then(|found| destroyed.map(|()| found.algo)))
        }
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

/// The largest power of two up to [`MOST_ALIGNMENT`] that divides an address.
fn alignment(address: u64) -> u32 {
    (1u64 << address.trailing_zeros().min(MOST_ALIGNMENT.trailing_zeros())) as u32
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

/// How many matrices a call takes, and how it finds them.
#[derive(Clone, Copy)]
enum Batch {
    Strided(u64),
    Pointers(u64),
}

fn layout(matrix: &Columns, dtype: sys::cudaDataType_t, batch: Batch) -> Result<sys::cublasLtMatrixLayout_t, Status> {
    use sys::cublasLtMatrixLayoutAttribute_t::{
        CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE as MODE,
        CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as STRIDE,
    };
    let leading = matrix.leading.max(matrix.rows).cast_signed();
    let layout = result::create_matrix_layout(dtype, matrix.rows, matrix.cols, leading)?;
    let (Batch::Strided(count) | Batch::Pointers(count)) = batch;
    let (count, stride) = (count as i32, matrix.batch_stride.cast_signed());
    let mode = sys::cublasLtBatchMode_t::CUBLASLT_BATCH_MODE_POINTER_ARRAY;
    // SAFETY: the attributes are an i32, an i64 and the mode.
    unsafe {
        let outcome = result::set_matrix_layout_attribute(layout, COUNT, raw(&count).0, raw(&count).1);
        let outcome = outcome.and_then(|()| match batch {
            Batch::Strided(_) => result::set_matrix_layout_attribute(layout, STRIDE, raw(&stride).0, raw(&stride).1),
            Batch::Pointers(_) => result::set_matrix_layout_attribute(layout, MODE, raw(&mode).0, raw(&mode).1),
        });
        if outcome.is_err() {
            let _ = result::destroy_matrix_layout(layout);
        }
        outcome.map(|()| layout)
    }
}

#[cfg(test)]
mod tests {
    use super::alignment;

    #[test]
    fn alignments_are_powers_of_two() {
        assert_eq!(
            [alignment(0x1000), alignment(0x1010), alignment(2), alignment(3), alignment(0)],
            [256, 16, 2, 1, 256]
        );
    }
}
