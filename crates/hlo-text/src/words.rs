//! Attributes whose value is a word of a closed list.

use hlo_ir::attrs::AttrFormat;
use std::fmt;

/// The words that one attribute takes, as XLA prints them.
struct Words {
    known: &'static [&'static str],
    /// XLA reads them in small and in capital letters alike.
    any_case: bool,
}

/// The words that `key` takes in `format`; `None` if any word does.
fn words_of(format: AttrFormat, key: &str) -> Option<Words> {
    let exact = |known| Some(Words { known, any_case: false });
    let any_case = |known| Some(Words { known, any_case: true });
    match key {
        "kind" => exact(&["kLoop", "kInput", "kOutput", "kCustom"]),
        "fft_type" => exact(&["FFT", "IFFT", "RFFT", "IRFFT"]),
        "transpose_a" => exact(&["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]),
        "type" => exact(&["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"]),
        "padding_type" => exact(&["PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"]),
        "convolution_kind" => exact(&["unset", "fprop", "dgrad", "wgrad"]),
        "distribution" => any_case(&["rng_uniform", "rng_normal"]),
        "schedule" => any_case(&["SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"]),
        "operand_precision" => any_case(&["default", "high", "highest"]),
        "api_version" => any_case(&[
            "API_VERSION_UNSPECIFIED",
            "API_VERSION_ORIGINAL",
            "API_VERSION_STATUS_RETURNING",
            "API_VERSION_STATUS_RETURNING_UNIFIED",
            "API_VERSION_TYPED_FFI",
        ]),
        "algorithm" if format == AttrFormat::RngBits => any_case(&["rng_default", "rng_three_fry", "rng_philox"]),
        "algorithm" => any_case(&[
            "unset",
            "dot_any_f8_any_f8_f32",
            "dot_any_f8_any_f8_f32_fast_accum",
            "dot_f16_f16_f16",
            "dot_f16_f16_f32",
            "dot_bf16_bf16_bf16",
            "dot_bf16_bf16_f32",
            "dot_bf16_bf16_f32_x3",
            "dot_bf16_bf16_f32_x6",
            "dot_bf16_bf16_f32_x9",
            "dot_tf32_tf32_f32",
            "dot_tf32_tf32_f32_x3",
            "dot_f32_f32_f32",
            "dot_f64_f64_f64",
        ]),
        _ => None,
    }
}

/// The words that would do where another stands.
pub(crate) struct Instead(&'static [&'static str]);

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<String> = self.0.iter().map(|word| format!("`{word}`")).collect();
        f.write_str(&quoted.join(", "))
    }
}

/// `word` as XLA prints it if the attribute `key` of `format` takes it.
///
/// # Errors
/// The words that would do.
pub(crate) fn known_word<'w>(format: AttrFormat, key: &str, word: &'w str) -> Result<&'w str, Instead> {
    let Some(Words { known, any_case }) = words_of(format, key) else { return Ok(word) };
    let is_same = |known: &&&str| if any_case { known.eq_ignore_ascii_case(word) } else { **known == word };
    known.iter().find(is_same).copied().ok_or(Instead(known))
}
