//! Random bits as arithmetic on counters.
//!
//! [`hlo_ir::float::rng`] says which bits each algorithm gives: ThreeFry-2x32 and Philox-4x32 (Salmon et al., *Parallel Random Numbers:
//! As Easy as 1, 2, 3*, SC 2011). Here every element computes the block that it is a word of, so that no element waits for another one.

use hlo_ir::attrs::{Comparison, DimsAttrs, RngBitsAttrs};
use hlo_ir::expand::Writer;
use hlo_ir::float::rng::{Algorithm, pair_dim};
use hlo_ir::{DType, Dims, InstId, NumberClass, Opcode, Scalar};

/// Writes the new state and the bits; none for states of other lengths and bits of other types than integers of whole bytes.
pub(super) fn expand(w: &mut Writer<'_>, draw: InstId) -> Option<InstId> {
    let instruction = w.module.inst(draw);
    let &[state] = instruction.operands.as_slice() else { return None };
    let algorithm = Algorithm::from_name(RngBitsAttrs::of(&instruction.attrs)?.algorithm.as_str())?;
    let shape = w.module.shape(draw).clone();
    let [of_state, of_bits] = shape.as_tuple()? else { return None };
    let bits = of_bits.as_array()?;
    let is_integer = matches!(bits.dtype.class(), NumberClass::Signed | NumberClass::Unsigned);
    let n_elems = i64::try_from(bits.n_elems()).ok().filter(|&n| n > 0)?;
    let n_words = *w.dims(state).first()?;
    if !is_integer || bits.dtype.bits() < 8 || w.dtype(state) != DType::U64 || w.dims(state).len() != 1 {
        return None;
    }
    let is_wide = bits.dtype.bits() == 64;
    let dims: Dims = bits.dims.iter().copied().collect();
    let words: Vec<InstId> = (0..n_words).map(|k| word_of(w, state, k)).collect();
    let (words, drawn) = match (algorithm, words.as_slice()) {
        (Algorithm::ThreeFry, &[key, counter]) => {
            let (drawn, n_blocks) = three_fry(w, (key, counter), is_wide, &dims);
            let next = advanced(w, counter, n_blocks);
            (vec![key, next], drawn)
        }
        (Algorithm::Default | Algorithm::Philox, &[key, low]) => {
            // The counter's missing high half is the key.
            let (drawn, n_blocks) = philox(w, key, (low, key), is_wide, n_elems);
            let next = advanced(w, low, n_blocks);
            (vec![key, next], drawn)
        }
        (Algorithm::Default | Algorithm::Philox, &[key, low, high]) => {
            let (drawn, n_blocks) = philox(w, key, (low, high), is_wide, n_elems);
            let blocks = w.scalar(DType::U64, Scalar::Uint(n_blocks));
            let (next, next_high) = sum_of_halves(w, (low, high), blocks);
            (vec![key, next, next_high], drawn)
        }
        _ => return None,
    };
    let drawn = w.reshape(drawn, &dims);
    let drawn = w.convert(drawn, bits.dtype);
    let drawn = w.laid_out_as(drawn, of_bits);
    let words: Vec<InstId> = words.into_iter().map(|word| w.reshape(word, &[1])).collect();
    let attrs = DimsAttrs { dimensions: std::iter::once(0).collect() };
    let next = w.add(Opcode::Concatenate, (DType::U64, &[n_words]), &words, attrs);
    let next = w.laid_out_as(next, of_state);
    Some(w.tuple(&[next, drawn]))
}

/// A word of the state, as a scalar.
fn word_of(w: &mut Writer<'_>, state: InstId, k: i64) -> InstId {
    let word = w.slice(state, 0, (k, k + 1));
    w.reshape(word, &[])
}

/// A counter after so many blocks.
fn advanced(w: &mut Writer<'_>, counter: InstId, n_blocks: u64) -> InstId {
    let blocks = w.scalar(DType::U64, Scalar::Uint(n_blocks));
    w.each(Opcode::Add, &[counter, blocks])
}

/// A number of 128 bits, as halves, and one of 64.
fn sum_of_halves(w: &mut Writer<'_>, (low, high): (InstId, InstId), more: InstId) -> (InstId, InstId) {
    let sum = w.each(Opcode::Add, &[low, more]);
    let overflows = w.compare(Comparison::Lt, sum, more);
    let carry = w.convert(overflows, DType::U64);
    (sum, w.each(Opcode::Add, &[high, carry]))
}

/// The low and the high word of numbers of 64 bits.
fn halves(w: &mut Writer<'_>, array: InstId) -> [InstId; 2] {
    let high = w.with(Opcode::ShiftRightLogical, array, 32);
    [w.convert(array, DType::U32), w.convert(high, DType::U32)]
}

fn joined(w: &mut Writer<'_>, [low, high]: [InstId; 2]) -> InstId {
    let (low, high) = (w.convert(low, DType::U64), w.convert(high, DType::U64));
    let high = w.with(Opcode::ShiftLeft, high, 32);
    w.each(Opcode::Or, &[low, high])
}

/// The one of `words` that each number below their count says.
fn chosen(w: &mut Writer<'_>, which: InstId, words: &[InstId]) -> InstId {
    let mut chosen = words[0];
    for (k, &word) in words.iter().enumerate().skip(1) {
        let number = w.splat_like(which, k as u64);
        let is_it = w.compare(Comparison::Eq, which, number);
        chosen = w.each(Opcode::Select, &[is_it, word, chosen]);
    }
    chosen
}

/// Elements, and the number of blocks drawn. A 64-bit element takes a whole block; of narrower types, the two words of a block lie next
/// to each other along one dim.
fn three_fry(w: &mut Writer<'_>, (key, counter): (InstId, InstId), is_wide: bool, dims: &[i64]) -> (InstId, u64) {
    let product = |dims: &[i64]| dims.iter().product::<i64>();
    let (outer, size, inner) = match pair_dim(dims).filter(|_| !is_wide) {
        Some(dim) => (product(&dims[..dim]), dims[dim], product(&dims[dim + 1..])),
        None => (product(dims), 1, 1),
    };
    let n_pairs = (size + 1) / 2;
    let all = [outer, size, inner];
    let [at, position, within] = [0, 1, 2].map(|dim| w.iota(DType::U64, &all, dim));
    let parity = w.with(Opcode::And, position, 1);
    let pair = w.with(Opcode::ShiftRightLogical, position, 1);
    let before = w.with(Opcode::Multiply, at, n_pairs as u64);
    let row = w.each(Opcode::Add, &[before, pair]);
    let before = w.with(Opcode::Multiply, row, inner as u64);
    let block = w.each(Opcode::Add, &[before, within]);
    let counters = w.broadcast(counter, &all, &[]);
    let counters = w.each(Opcode::Add, &[counters, block]);
    let counters = halves(w, counters);
    let keys = w.broadcast(key, &all, &[]);
    let keys = halves(w, keys);
    let words = three_fry_block(w, keys, counters);
    let drawn = if is_wide { joined(w, words) } else { chosen(w, parity, &words) };
    (drawn, (outer * n_pairs * inner) as u64)
}

fn three_fry_block(w: &mut Writer<'_>, key: [InstId; 2], counter: [InstId; 2]) -> [InstId; 2] {
    const ROTATIONS: [[u64; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let both = w.each(Opcode::Xor, &key);
    let keys = [key[0], key[1], w.with(Opcode::Xor, both, 0x1bd1_1bda)];
    let mut x = [w.each(Opcode::Add, &[counter[0], keys[0]]), w.each(Opcode::Add, &[counter[1], keys[1]])];
    for group in 0..5usize {
        for rotation in ROTATIONS[group % 2] {
            x[0] = w.each(Opcode::Add, &[x[0], x[1]]);
            let left = w.with(Opcode::ShiftLeft, x[1], rotation);
            let right = w.with(Opcode::ShiftRightLogical, x[1], 32 - rotation);
            let rotated = w.each(Opcode::Or, &[left, right]);
            x[1] = w.each(Opcode::Xor, &[rotated, x[0]]);
        }
        x[0] = w.each(Opcode::Add, &[x[0], keys[(group + 1) % 3]]);
        x[1] = w.each(Opcode::Add, &[x[1], keys[(group + 2) % 3]]);
        x[1] = w.with(Opcode::Add, x[1], group as u64 + 1);
    }
    x
}

/// Elements in a row, and the number of blocks drawn. A block gives four narrow or two 64-bit elements.
fn philox(
    w: &mut Writer<'_>,
    key: InstId,
    (low, high): (InstId, InstId),
    is_wide: bool,
    n_elems: i64,
) -> (InstId, u64) {
    let shift = if is_wide { 1 } else { 2 };
    let per_block = 1u64 << shift;
    let dims = [n_elems];
    let index = w.iota(DType::U64, &dims, 0);
    let block = w.with(Opcode::ShiftRightLogical, index, shift);
    let which = w.with(Opcode::And, index, per_block - 1);
    let counters = (w.broadcast(low, &dims, &[]), w.broadcast(high, &dims, &[]));
    let (low, high) = sum_of_halves(w, counters, block);
    let ([c0, c1], [c2, c3]) = (halves(w, low), halves(w, high));
    let keys = w.broadcast(key, &dims, &[]);
    let keys = halves(w, keys);
    let words = philox_block(w, keys, [c0, c1, c2, c3]);
    let drawn = if is_wide {
        let pairs = [joined(w, [words[0], words[1]]), joined(w, [words[2], words[3]])];
        chosen(w, which, &pairs)
    } else {
        chosen(w, which, &words)
    };
    (drawn, (n_elems as u64).div_ceil(per_block))
}

fn philox_block(w: &mut Writer<'_>, mut key: [InstId; 2], mut counter: [InstId; 4]) -> [InstId; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [w.with(Opcode::Add, key[0], 0x9e37_79b9), w.with(Opcode::Add, key[1], 0xbb67_ae85)];
        }
        let [even, odd] = [(counter[0], 0xd251_1f53), (counter[2], 0xcd9e_8d57)].map(|(word, factor)| {
            let word = w.convert(word, DType::U64);
            let product = w.with(Opcode::Multiply, word, factor);
            halves(w, product)
        });
        let mixed = [(odd[1], counter[1], key[0]), (even[1], counter[3], key[1])].map(|(high, word, key)| {
            let both = w.each(Opcode::Xor, &[high, word]);
            w.each(Opcode::Xor, &[both, key])
        });
        counter = [mixed[0], odd[0], mixed[1], even[0]];
    }
    counter
}
