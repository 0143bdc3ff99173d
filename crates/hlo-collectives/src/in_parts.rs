//! What the passes share that compute in parts so that collectives run meanwhile: what they are asked for, and what pays.

use crate::refusal::OptionError;
use hlo_ir::DType;
use hlo_pass::options::{OptionInfo, OptionKind, Options};

pub(crate) const MIN_GAIN: OptionInfo = OptionInfo {
    name: "min-gain",
    kind: OptionKind::Float,
    default: "0.005",
    help: "profit=auto: least share of the step's predicted time that a change must save",
};

/// What a change is worth.
#[derive(Clone, Debug)]
pub(crate) struct Profit {
    /// Whether changes are made whatever they are worth.
    pub is_forced: bool,
    min_gain: f64,
}

impl Profit {
    /// From `profit` and `min-gain`.
    ///
    /// # Errors
    /// A share that is none.
    pub(crate) fn new(options: &Options) -> Result<Profit, OptionError> {
        let min_gain = options.float("min-gain");
        if !(0.0..=1.0).contains(&min_gain) {
            return Err(OptionError::MinGain { found: min_gain });
        }
        Ok(Profit { is_forced: options.text("profit") == "always", min_gain })
    }

    /// Why a change from one predicted time to another is left; `None` if it is to be made.
    pub(crate) fn obstacle(&self, before_s: f64, after_s: f64) -> Option<&'static str> {
        match self.is_forced || after_s <= before_s * (1.0 - self.min_gain) {
            true => None,
            false if after_s < before_s => Some("saves less than min-gain"),
            false => Some("is predicted to be slower"),
        }
    }
}

/// The type in which a product that becomes several summands is added up.
pub(crate) const fn summed_in(dtype: DType) -> DType {
    match dtype {
        DType::BF16 | DType::F16 => DType::F32,
        _ => dtype,
    }
}
