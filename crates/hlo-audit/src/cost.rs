//! What a finding costs.

/// What a finding costs in one step on one device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cost {
    /// Collectives that would not be needed.
    Moved {
        /// Bytes of whole arrays put into them.
        bytes: f64,
        /// Seconds predicted.
        seconds: f64,
    },
    /// Memory that would not be needed.
    Held {
        /// Bytes.
        bytes: u64,
    },
    /// The result is wrong; bytes of what is wrong.
    Wrong {
        /// Bytes.
        bytes: u64,
    },
}

impl Cost {
    /// The bytes, of whatever kind.
    pub fn bytes(self) -> u64 {
        match self {
            Cost::Moved { bytes, .. } => bytes as u64,
            Cost::Held { bytes } | Cost::Wrong { bytes } => bytes,
        }
    }

    /// The predicted seconds, where time is lost.
    pub fn seconds(self) -> Option<f64> {
        match self {
            Cost::Moved { seconds, .. } => Some(seconds),
            Cost::Held { .. } | Cost::Wrong { .. } => None,
        }
    }

    /// What the bytes are.
    pub fn kind(self) -> &'static str {
        match self {
            Cost::Moved { .. } => "moved",
            Cost::Held { .. } => "held",
            Cost::Wrong { .. } => "wrong",
        }
    }
}

/// Bytes of several arrays together; the largest number where there is no larger one.
pub(crate) fn total_bytes(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}
