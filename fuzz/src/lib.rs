//! What targets share whose cases are HLO texts.

use hlo_tests::fuzzing::edits::{Headers, edited};
use libfuzzer_sys::fuzzer_mutate;

/// Edits the text that stands in the first `size` bytes, or, one time in four, its bytes as the fuzzer does; gives the new size.
pub fn mutate(bytes: &mut [u8], size: usize, max_size: usize, seed: u32, headers: Headers) -> usize {
    if !seed.is_multiple_of(4)
        && let Some(text) = edited(&bytes[..size], headers, seed, max_size)
    {
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        return text.len();
    }
    fuzzer_mutate(bytes, size, max_size)
}
