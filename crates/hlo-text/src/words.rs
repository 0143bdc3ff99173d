//! Attributes whose value is a word of a closed list.

/// The words that `key` takes; `None` if any word does.
fn words_of(key: &str) -> Option<&'static [&'static str]> {
    Some(match key {
        "kind" => &["kLoop", "kInput", "kOutput", "kCustom"],
        "distribution" => &["rng_uniform", "rng_normal"],
        "fft_type" => &["FFT", "IFFT", "RFFT", "IRFFT"],
        "transpose_a" => &["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"],
        "type" => &["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"],
        "padding_type" => &["PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"],
        "schedule" => &["SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"],
        "convolution_kind" => &["unset", "fprop", "dgrad", "wgrad"],
        "operand_precision" => &["default", "high", "highest", "packed_nibble"],
        _ => return None,
    })
}

/// What would have done instead of `word`; `None` if it does.
pub(crate) fn expected_instead(key: &str, word: &str) -> Option<String> {
    let words = words_of(key)?;
    let quoted = || words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
    (!words.contains(&word)).then(quoted)
}
