//! Inputs at the edges: negative and large integers, indices out of bounds, zeros of both signs, and what is no finite number.
//!
//! Drawn inputs are tame, because users compare rounded results. A false proof may show only here.

use std::collections::HashMap;
use std::sync::Arc;

use hlo_eval::Inputs;
use hlo_ir::literal::Scalar;
use hlo_ir::{DType, Literal, NumberClass};
use hlo_tests::random_module::Rng;

/// Inputs of which some elements are others; `has_specials`: also of floats. Devices that were given one array are given one again.
pub(super) fn at_the_edges(inputs: &Inputs, seed: u64, has_specials: bool) -> Inputs {
    let mut rng = Rng::new(seed ^ 0x3d6e);
    let mut made: HashMap<*const Literal, Arc<Literal>> = HashMap::new();
    let mut of = |array: &Arc<Literal>| {
        made.entry(Arc::as_ptr(array)).or_insert_with(|| Arc::new(edged(array, &mut rng, has_specials))).clone()
    };
    Inputs { leaves: inputs.leaves.iter().map(|row| row.iter().map(&mut of).collect()).collect() }
}

fn edged(array: &Literal, rng: &mut Rng, has_specials: bool) -> Literal {
    let (mut out, dtype) = (array.clone(), array.dtype());
    for k in 0..array.n_elems() {
        let new = match dtype.class() {
            NumberClass::Signed | NumberClass::Unsigned if dtype.bits() >= 8 => integer(dtype, rng),
            NumberClass::Float if has_specials && rng.one_in(4) => {
                Some(Scalar::Float(*rng.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -0.0])))
            }
            NumberClass::Pred
            | NumberClass::Signed
            | NumberClass::Unsigned
            | NumberClass::Float
            | NumberClass::Complex => None,
        };
        if let Some(new) = new {
            out.set(k, new);
        }
    }
    out
}

/// A small number of either sign, or one at an end of the type; `None` for what was drawn.
fn integer(dtype: DType, rng: &mut Rng) -> Option<Scalar> {
    let is_signed = dtype.class() == NumberClass::Signed;
    let bits = dtype.bits().min(63);
    let (low, high) = match is_signed {
        true => (-1i64 << (bits - 1), (1i64 << (bits - 1)) - 1),
        false => (0, ((1u64 << bits) - 1) as i64),
    };
    let near = |from: i64, rng: &mut Rng| (from + rng.below(24) as i64).clamp(low, high);
    let number = match rng.below(6) {
        0 | 1 => return None,
        2 => near(0, rng),
        3 => near(-12, rng),
        4 => near(high - 12, rng),
        _ => near(low, rng),
    };
    Some(if is_signed { Scalar::Int(number) } else { Scalar::Uint(number as u64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_reach_the_ends_of_their_types() {
        let array = |dtype| Arc::new(Literal::zeros(dtype, &[200]).unwrap());
        let types = [DType::S32, DType::U8, DType::F32];
        let same = array(DType::S8);
        let mut leaves: Vec<_> = types.iter().map(|&dtype| vec![array(dtype), array(dtype)]).collect();
        leaves.push(vec![same.clone(), same]);
        let edged = at_the_edges(&Inputs { leaves }, 1, true);
        let has = |leaf: usize, found: &dyn Fn(Scalar) -> bool| {
            let array = &edged.leaves[leaf][1];
            (0..200).any(|k| array.get(k).is_some_and(found))
        };
        assert!(has(0, &|x| x == Scalar::Int(i64::from(i32::MIN))) && has(0, &|x| x == Scalar::Int(-1)));
        assert!(has(0, &|x| x == Scalar::Int(i64::from(i32::MAX))));
        assert!(has(1, &|x| x == Scalar::Uint(255)));
        assert!(has(2, &|x| matches!(x, Scalar::Float(v) if v.is_nan())));
        assert!(has(2, &|x| matches!(x, Scalar::Float(v) if v == 0.0 && v.is_sign_negative())));
        assert_ne!(edged.leaves[0][0], edged.leaves[0][1]);
        assert!(Arc::ptr_eq(&edged.leaves[3][0], &edged.leaves[3][1]));
    }
}
