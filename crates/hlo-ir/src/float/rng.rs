//! The random bits of `rng-bit-generator`, bit for bit as XLA expands it: ThreeFry-2x32 and Philox-4x32.
//!
//! Both are counter based: element numbers are encrypted under the key in the state. The state is `u64[2]` (key, counter)
//! or, for Philox, also `u64[3]` (key, low and high half of a 128-bit counter). The new state is the old one with the
//! counter advanced by the number of blocks drawn.
//!
//! References: Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011 (both ciphers and their constants).

use smallvec::SmallVec;
use std::fmt;

use crate::dtype::{DType, NumberClass};
use crate::literal::{Buffer, Literal, element_count};

/// The algorithms that `rng-bit-generator` can name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// `rng_default`: the backend's choice; on XLA's CPU backend, Philox.
    Default,
    /// `rng_three_fry`: two 32-bit words a block, 20 rounds.
    ThreeFry,
    /// `rng_philox`: four 32-bit words a block, 10 rounds.
    Philox,
}

impl Algorithm {
    /// The algorithm with this name in HLO text.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        match name {
            "rng_default" => Some(Algorithm::Default),
            "rng_three_fry" => Some(Algorithm::ThreeFry),
            "rng_philox" => Some(Algorithm::Philox),
            _ => None,
        }
    }
}

/// Why no random bits could be drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RngError {
    /// The state has this many words; the algorithm takes 2 (Philox: 2 or 3).
    StateLen(Algorithm, usize),
    /// Random bits of this type are not defined here; integers are.
    ElementType(DType),
    /// The dims are negative or too large.
    Dims,
}

impl fmt::Display for RngError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RngError::StateLen(algorithm, len) => {
                let expected = if *algorithm == Algorithm::ThreeFry { "2" } else { "2 or 3" };
                write!(f, "rng-bit-generator: expected a state of {expected} words, found {len}")
            }
            RngError::ElementType(dtype) => {
                write!(f, "rng-bit-generator: expected an integer element type, found {dtype}")
            }
            RngError::Dims => write!(f, "rng-bit-generator: expected dims with a countable product"),
        }
    }
}

impl std::error::Error for RngError {}

/// The new state and `dims` elements of random bits. `dtype` is an integer type.
pub fn rng_bit_generator(
    algorithm: Algorithm,
    state: &[u64],
    dtype: DType,
    dims: &[i64],
) -> Result<(SmallVec<[u64; 3]>, Literal), RngError> {
    if !matches!(dtype.class(), NumberClass::Signed | NumberClass::Unsigned) {
        return Err(RngError::ElementType(dtype));
    }
    let n_elems = element_count(dims).ok_or(RngError::Dims)?;
    let (words, new_state): (Vec<u64>, SmallVec<[u64; 3]>) = match (algorithm, state) {
        (Algorithm::ThreeFry, &[key, counter]) => {
            let (words, n_blocks) = three_fry_elems(key, counter, dtype.bits() == 64, dims, n_elems)?;
            (words, SmallVec::from_slice(&[key, counter.wrapping_add(n_blocks)]))
        }
        (Algorithm::Default | Algorithm::Philox, &[key, low]) => {
            // The counter's missing high half is the key.
            let (words, next) = philox_elems(key, join(low, key), dtype.bits() == 64, n_elems);
            (words, SmallVec::from_slice(&[key, next as u64]))
        }
        (Algorithm::Default | Algorithm::Philox, &[key, low, high]) => {
            let (words, next) = philox_elems(key, join(low, high), dtype.bits() == 64, n_elems);
            (words, SmallVec::from_slice(&[key, next as u64, (next >> 64) as u64]))
        }
        _ => return Err(RngError::StateLen(algorithm, state.len())),
    };
    let bits = Literal::new(DType::U64, dims, Buffer::U64(words)).map_err(|_| RngError::Dims)?;
    // Narrow types take the low bits of a word: HLO's convert between integers wraps.
    Ok((new_state, bits.convert(dtype)))
}

fn join(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// The low and the high word of a 64-bit number.
fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

fn pair(words: [u32; 2]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

/// Elements in row-major order, and the number of blocks drawn. A 64-bit element takes a whole block; of narrower types,
/// the two words of a block lie next to each other along one dim.
fn three_fry_elems(
    key: u64,
    counter: u64,
    wide: bool,
    dims: &[i64],
    n_elems: usize,
) -> Result<(Vec<u64>, u64), RngError> {
    let block = |index: usize| three_fry_2x32(split(key), split(counter.wrapping_add(index as u64)));
    if wide {
        return Ok(((0..n_elems).map(|i| pair(block(i))).collect(), n_elems as u64));
    }
    let dim_idx = pair_dim(dims);
    let dim = dim_idx.map_or(1, |i| dims[i] as usize);
    let n_inner = element_count(&dims[dim_idx.map_or(0, |i| i + 1)..]).ok_or(RngError::Dims)?;
    let n_outer = n_elems.checked_div(dim.saturating_mul(n_inner)).unwrap_or(0);
    let n_pairs = dim.div_ceil(2);
    let mut words = vec![0; n_elems];
    for index in 0..n_outer * n_pairs * n_inner {
        let (outer, in_outer) = (index / (n_pairs * n_inner), index % (n_pairs * n_inner));
        let (pair_idx, inner) = (in_outer / n_inner, in_outer % n_inner);
        for (parity, word) in block(index).into_iter().enumerate() {
            let position = 2 * pair_idx + parity;
            if position < dim
                && let Some(slot) = words.get_mut((outer * dim + position) * n_inner + inner)
            {
                *slot = u64::from(word);
            }
        }
    }
    Ok((words, (n_outer * n_pairs * n_inner) as u64))
}

/// The dim along which the words of a block alternate: the first even one, else the first of the largest ones.
pub fn pair_dim(dims: &[i64]) -> Option<usize> {
    let largest = dims.iter().copied().max()?;
    dims.iter().position(|dim| dim % 2 == 0).or_else(|| dims.iter().position(|&dim| dim == largest))
}

/// Elements in row-major order, and the counter after them. A block gives four narrow or two 64-bit elements.
fn philox_elems(key: u64, counter: u128, wide: bool, n_elems: usize) -> (Vec<u64>, u128) {
    let per_block = if wide { 2 } else { 4 };
    let n_blocks = n_elems.div_ceil(per_block);
    let mut elems = Vec::with_capacity(n_blocks * per_block);
    for index in 0..n_blocks {
        let at = counter.wrapping_add(index as u128);
        let [c0, c1] = split(at as u64);
        let [c2, c3] = split((at >> 64) as u64);
        let words = philox_4x32(split(key), [c0, c1, c2, c3]);
        if wide {
            elems.extend([pair([words[0], words[1]]), pair([words[2], words[3]])]);
        } else {
            elems.extend(words.map(u64::from));
        }
    }
    elems.truncate(n_elems);
    (elems, counter.wrapping_add(n_blocks as u128))
}

/// One block of ThreeFry-2x32 with 20 rounds.
pub fn three_fry_2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd1_1bda];
    let mut x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for group in 0..5usize {
        for rotation in ROTATIONS[group % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(rotation) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(group + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    x
}

/// One block of Philox-4x32 with 10 rounds.
pub fn philox_4x32(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..10 {
        let even = u64::from(counter[0]) * 0xd251_1f53;
        let odd = u64::from(counter[2]) * 0xcd9e_8d57;
        let ([even_low, even_high], [odd_low, odd_high]) = (split(even), split(odd));
        counter = [odd_high ^ counter[1] ^ key[0], odd_low, even_high ^ counter[3] ^ key[1], even_low];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::literal::Scalar;

    /// Drawn by XLA on the CPU, one case a line: `algorithm state type dims new_state elements`, numbers comma-separated.
    const FIXTURE: &str = include_str!("../../tests/data/rng_bits.txt");

    fn numbers<T: std::str::FromStr>(word: &str) -> Vec<T> {
        word.split(',').filter(|word| !word.is_empty()).map(|word| word.parse().ok().unwrap()).collect()
    }

    #[test]
    fn bits_and_states_are_those_of_xla() {
        let mut n_cases = 0;
        for line in FIXTURE.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let algorithm = Algorithm::from_name(words[0]).unwrap();
            let dtype = DType::from_name(words[2]).unwrap();
            let (state, dims) = (numbers::<u64>(words[1]), numbers::<i64>(words[3]));
            let (new_state, bits) = rng_bit_generator(algorithm, &state, dtype, &dims).unwrap();
            assert_eq!(new_state.as_slice(), numbers::<u64>(words[4]), "{line}");
            // The fixture has all elements as unsigned numbers.
            let got: Vec<u64> = (0..bits.n_elems())
                .map(|i| match bits.get(i) {
                    Some(Scalar::Int(x)) => (x as u64) & (u64::MAX >> (64 - dtype.bits())),
                    Some(Scalar::Uint(x)) => x,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(got, numbers::<u64>(words[5]), "{line}");
            n_cases += 1;
        }
        assert!(n_cases > 200, "{n_cases}");
    }

    #[test]
    fn wrong_states_and_types_are_errors() {
        let error = rng_bit_generator(Algorithm::ThreeFry, &[1, 2, 3], DType::U32, &[1]).unwrap_err();
        assert_eq!(error.to_string(), "rng-bit-generator: expected a state of 2 words, found 3");
        assert!(rng_bit_generator(Algorithm::Philox, &[1], DType::U32, &[1]).is_err());
        assert!(rng_bit_generator(Algorithm::Philox, &[1, 2], DType::F32, &[1]).is_err());
        assert!(rng_bit_generator(Algorithm::Philox, &[1, 2], DType::U32, &[i64::MAX, 4]).is_err());
    }
}
