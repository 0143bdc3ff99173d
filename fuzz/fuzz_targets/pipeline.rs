#![no_main]

use hlo_tests::fuzzing::edits::Headers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hlo_tests::fuzzing::run("pipeline", bytes));

libfuzzer_sys::fuzz_mutator!(|bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
    hlo_fuzz::mutate(bytes, size, max_size, seed, Headers::Pipeline)
});
