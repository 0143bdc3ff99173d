#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hlo_tests::fuzzing::run("parse", bytes));
