//! A row of the table of `plan zero`.

use serde::Serialize;

/// A form on a number of devices.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    /// How many devices run the step.
    pub n_devices: usize,
    /// Whether the module is for another number of devices.
    pub is_modelled: bool,
    /// `replicated`, `ZeRO-1, 2`, `ZeRO-3`, or `auto`: each parameter is held as is predicted to be faster.
    pub form: &'static str,
    /// Among how many devices most bytes of state are cut; 1 where nothing is.
    pub n_shards: usize,
    /// Bytes of a device's arguments.
    pub argument_bytes: u64,
    /// Bytes of a device's temporaries at the peak.
    pub temp_bytes: u64,
    /// Bytes of a device at the peak.
    pub peak_bytes: u64,
    /// Bytes that a device sends in a step.
    pub sent_bytes: f64,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Whether the peak is within the memory limit, or what a device has.
    pub fits: bool,
    /// Whether it is the fastest that fits on these devices.
    pub is_best: bool,
}
