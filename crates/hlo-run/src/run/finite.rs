//! `--check-finite`: which step first made a value that is not a finite number.

use half::{bf16, f16};
use hlo_ir::DType;

use super::Device;
use crate::ExecutionError;
use hlo_gpu::plan::{Plan, Step};

/// Reads back what a step wrote. Loops and branches have been checked inside.
pub(super) fn check<D: Device>(plan: &Plan, device: &mut D, id: u32, step: &Step) -> Result<(), ExecutionError> {
    for buffer in step.work.accesses(plan).writes {
        let shape = &plan.buffers[buffer].shape;
        if !shape.dtype.is_float() {
            continue;
        }
        let bytes = device.read(buffer)?;
        if let Some((element, value)) = first_not_finite(shape.dtype, &bytes) {
            let array = &plan.buffers[buffer].name;
            let reason = format!(
                "expected finite values, found {value} on device {id}: element {element} in memory of `{array}`"
            );
            return Err(ExecutionError::NotFinite { instruction: step.name.clone(), reason });
        }
    }
    Ok(())
}

/// The first element that is infinite or no number. Types below 16 bits are not looked into.
fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, f64)> {
    let find = |values: &mut dyn Iterator<Item = f64>| values.enumerate().find(|(_, x)| !x.is_finite());
    let pairs = bytes.as_chunks::<2>().0.iter().map(|&pair| u16::from_le_bytes(pair));
    match dtype {
        DType::F64 => find(&mut bytes.as_chunks::<8>().0.iter().map(|&word| f64::from_le_bytes(word))),
        DType::F32 => find(&mut bytes.as_chunks::<4>().0.iter().map(|&word| f64::from(f32::from_le_bytes(word)))),
        DType::BF16 => find(&mut pairs.map(|bits| bf16::from_bits(bits).to_f64())),
        DType::F16 => find(&mut pairs.map(|bits| f16::from_bits(bits).to_f64())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_and_no_numbers_are_found() {
        let f32s = |xs: &[f32]| xs.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(first_not_finite(DType::F32, &f32s(&[1.0, f32::MAX])), None);
        assert_eq!(first_not_finite(DType::F32, &f32s(&[1.0, f32::INFINITY])), Some((1, f64::INFINITY)));
        assert!(first_not_finite(DType::F32, &f32s(&[f32::NAN])).is_some_and(|(i, x)| i == 0 && x.is_nan()));
        assert_eq!(first_not_finite(DType::BF16, &bf16::NEG_INFINITY.to_le_bytes()), Some((0, f64::NEG_INFINITY)));
        assert_eq!(first_not_finite(DType::S32, &[255; 4]), None);
    }
}
