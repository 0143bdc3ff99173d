//! Collectives computed in one place from the inputs of all devices, as NCCL defines them: contiguous buffers, shards in group order.

use hlo_ir::DType;

use super::gemm::{as_f32, from_f32};
use super::memory::Memory;
use crate::ExecutionError;
use hlo_gpu::plan::{BufferId, CollectiveCall, CollectiveKind, Plan, Reduction};

/// What a device brings to a step: the inputs of its calls, one after the other.
pub(super) fn brought(memory: &Memory<'_>, call: &CollectiveCall) -> Result<Vec<u8>, ExecutionError> {
    let mut all = Vec::new();
    for &(input, _) in &call.calls {
        all.extend_from_slice(memory.bytes(input)?);
    }
    Ok(all)
}

/// Writes what a device takes from a step: the outputs of its calls, one after the other; nothing if it is in no group.
pub(super) fn take(
    plan: &Plan,
    memory: &mut Memory<'_>,
    call: &CollectiveCall,
    taken: &[u8],
) -> Result<(), ExecutionError> {
    if taken.is_empty() {
        return Ok(());
    }
    let mut rest = taken;
    for &(_, output) in &call.calls {
        let to = memory.bytes_mut(output)?;
        let Some((bytes, tail)) = rest.split_at_checked(to.len()) else {
            let reason = format!("expected an output of {} bytes, found {}", to.len(), rest.len());
            return Err(ExecutionError::Host { what: plan.buffers[output].name.clone(), reason });
        };
        to.copy_from_slice(bytes);
        rest = tail;
    }
    Ok(())
}

/// What each device takes, from what all devices brought.
pub(crate) fn combine(plan: &Plan, call: &CollectiveCall, brought: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, ExecutionError> {
    let mut taken = vec![Vec::new(); brought.len()];
    let mut at = 0;
    for &(input, output) in &call.calls {
        let size = plan.buffers[input].shape.memory_bytes() as usize;
        let error = |reason: String| ExecutionError::Host { what: plan.buffers[output].name.clone(), reason };
        let part = |bytes: &'_ Vec<u8>| bytes.get(at..at + size).map(<[u8]>::to_vec);
        let inputs: Option<Vec<Vec<u8>>> = brought.iter().map(part).collect();
        let inputs = inputs.ok_or_else(|| error(format!("expected inputs of {size} bytes, found fewer")))?;
        at += size;
        let mut exchange = Exchange { plan, inputs, input, output, taken: &mut taken };
        match &call.kind {
            CollectiveKind::Pairs(pairs) => exchange.permute(pairs)?,
            CollectiveKind::Groups { reduction, scatters } => {
                for group in &plan.communicators[call.communicator] {
                    let group: Vec<usize> = group.iter().map(|&device| device as usize).collect();
                    exchange.group(*reduction, *scatters, &group)?;
                }
            }
        }
    }
    Ok(taken)
}

/// One call between all devices.
struct Exchange<'a> {
    plan: &'a Plan,
    /// Of every device.
    inputs: Vec<Vec<u8>>,
    input: BufferId,
    output: BufferId,
    /// Of every device; outputs are added.
    taken: &'a mut Vec<Vec<u8>>,
}

impl Exchange<'_> {
    fn error(&self, reason: String) -> ExecutionError {
        ExecutionError::Host { what: self.plan.buffers[self.output].name.clone(), reason }
    }

    fn write(&mut self, device: usize, bytes: &[u8]) -> Result<(), ExecutionError> {
        let expected = self.plan.buffers[self.output].shape.memory_bytes() as usize;
        if expected != bytes.len() {
            return Err(self.error(format!("expected an output of {expected} bytes, found {}", bytes.len())));
        }
        self.taken[device].extend_from_slice(bytes);
        Ok(())
    }

    /// Each member gets its part, or all, of the reduction or of each input.
    fn group(&mut self, reduction: Option<Reduction>, scatters: bool, group: &[usize]) -> Result<(), ExecutionError> {
        if let Some(device) = group.iter().find(|&&device| device >= self.inputs.len()) {
            return Err(self.error(format!("expected devices below {}, found {device}", self.inputs.len())));
        }
        let sources: Vec<Vec<u8>> = match reduction {
            Some(reduction) => vec![self.reduced(reduction, group)?],
            None => group.iter().map(|&device| self.inputs[device].clone()).collect(),
        };
        for (i, &device) in group.iter().enumerate() {
            let mut received = Vec::new();
            for source in &sources {
                let part = source.len() / group.len();
                received.extend_from_slice(if scatters { &source[i * part..(i + 1) * part] } else { source });
            }
            self.write(device, &received)?;
        }
        Ok(())
    }

    fn permute(&mut self, pairs: &[(u32, u32)]) -> Result<(), ExecutionError> {
        for device in 0..self.inputs.len() {
            let source =
                pairs.iter().find(|(_, target)| *target as usize == device).map(|(source, _)| *source as usize);
            let bytes = match source.and_then(|source| self.inputs.get(source)) {
                Some(bytes) => bytes.clone(),
                None => vec![0; self.inputs[device].len()],
            };
            self.write(device, &bytes)?;
        }
        Ok(())
    }

    fn reduced(&self, reduction: Reduction, group: &[usize]) -> Result<Vec<u8>, ExecutionError> {
        let dtype = self.plan.buffers[self.input].shape.dtype;
        let inputs: Vec<&[u8]> = group.iter().map(|&device| self.inputs[device].as_slice()).collect();
        let sum = reduce(dtype, reduction, &inputs);
        sum.ok_or_else(|| self.error(format!("expected elements that collectives reduce, found {dtype}")))
    }
}

/// A type that collectives reduce.
trait Reducible: Copy {
    fn join(self, other: Self, reduction: Reduction) -> Self;
}

macro_rules! reducible_integers {
    ($($t:ty)*) => { $(impl Reducible for $t {
        fn join(self, other: Self, reduction: Reduction) -> Self {
            match reduction {
                Reduction::Sum => self.wrapping_add(other),
                Reduction::Product => self.wrapping_mul(other),
                Reduction::Min => self.min(other),
                Reduction::Max => self.max(other),
            }
        }
    })* };
}
reducible_integers!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! reducible_floats {
    ($($t:ty)*) => { $(impl Reducible for $t {
        fn join(self, other: Self, reduction: Reduction) -> Self {
            match reduction {
                Reduction::Sum => self + other,
                Reduction::Product => self * other,
                Reduction::Min if self.is_nan() || other.is_nan() => <$t>::NAN,
                Reduction::Max if self.is_nan() || other.is_nan() => <$t>::NAN,
                Reduction::Min => self.min(other),
                Reduction::Max => self.max(other),
            }
        }
    })* };
}
reducible_floats!(f32 f64);

fn joined<T: Reducible>(mut rows: impl Iterator<Item = Vec<T>>, reduction: Reduction) -> Option<Vec<T>> {
    let mut sum = rows.next()?;
    for row in rows {
        sum.iter_mut().zip(row).for_each(|(a, b)| *a = a.join(b, reduction));
    }
    Some(sum)
}

macro_rules! reduce_words {
    ($t:ty, $inputs:expr, $reduction:expr) => {{
        let row = |bytes: &&[u8]| -> Vec<$t> {
            bytes.as_chunks::<{ size_of::<$t>() }>().0.iter().map(|&word| <$t>::from_le_bytes(word)).collect()
        };
        Some(joined($inputs.iter().map(row), $reduction)?.into_iter().flat_map(|x| x.to_le_bytes()).collect())
    }};
}

/// The elementwise reduction of arrays of equal size, the first first.
pub(crate) fn reduce(dtype: DType, reduction: Reduction, inputs: &[&[u8]]) -> Option<Vec<u8>> {
    match dtype {
        DType::BF16 | DType::F16 | DType::F32 => {
            let rows: Option<Vec<Vec<f32>>> = inputs.iter().map(|bytes| as_f32(bytes, dtype)).collect();
            Some(from_f32(&joined(rows?.into_iter(), reduction)?, dtype))
        }
        DType::F64 => reduce_words!(f64, inputs, reduction),
        DType::S8 => reduce_words!(i8, inputs, reduction),
        DType::S16 => reduce_words!(i16, inputs, reduction),
        DType::S32 => reduce_words!(i32, inputs, reduction),
        DType::S64 => reduce_words!(i64, inputs, reduction),
        DType::U16 => reduce_words!(u16, inputs, reduction),
        DType::U32 => reduce_words!(u32, inputs, reduction),
        DType::U64 => reduce_words!(u64, inputs, reduction),
        DType::U8 => reduce_words!(u8, inputs, reduction),
        // A sum of truth values is "or", which is the maximum; a product is "and".
        DType::Pred => {
            let reduction = match reduction {
                Reduction::Sum | Reduction::Max => Reduction::Max,
                Reduction::Product | Reduction::Min => Reduction::Min,
            };
            reduce_words!(u8, inputs, reduction)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_of_each_kind() {
        let f = |xs: &[f32], dtype| from_f32(xs, dtype);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (a, b) = (f(&[1.0, -2.0, 3.0], dtype), f(&[0.5, 4.0, f32::NAN], dtype));
            let of = |reduction| as_f32(&reduce(dtype, reduction, &[&a, &b]).unwrap(), dtype).unwrap();
            assert_eq!(of(Reduction::Sum)[..2], [1.5, 2.0]);
            assert_eq!(of(Reduction::Product)[..2], [0.5, -8.0]);
            assert_eq!(of(Reduction::Min)[..2], [0.5, -2.0]);
            assert!(of(Reduction::Max)[2].is_nan(), "{dtype}");
        }
        let (a, b) = ([200u8, 1], [100u8, 0]);
        assert_eq!(reduce(DType::U8, Reduction::Sum, &[&a, &b]), Some(vec![44, 1]));
        assert_eq!(reduce(DType::S8, Reduction::Max, &[&a, &b]), Some(vec![100, 1]));
        assert_eq!(reduce(DType::Pred, Reduction::Sum, &[&[1, 0], &[1, 0]]), Some(vec![1, 0]));
        assert_eq!(reduce(DType::C64, Reduction::Sum, &[&[0; 8], &[0; 8]]), None);
    }
}
