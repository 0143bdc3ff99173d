//! The table of `plan zero` and its rows.

use serde::Serialize;

/// A form on a number of devices.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    /// How many devices run the step.
    pub n_devices: usize,
    /// Whether the module is for another number of devices.
    pub is_modelled: bool,
    /// What lies in shards: `replicated`, `optimizer`, `gradients`, `parameters`, or `auto`: each parameter is held as is predicted to be faster.
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

/// The table.
#[derive(Serialize)]
pub(super) struct Table<'t> {
    pub(super) machine: String,
    /// What a device has for the step.
    pub(super) memory_bytes: f64,
    /// Why other numbers of devices are not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<String>,
    pub(super) rows: &'t [Row],
}

impl Table<'_> {
    /// What has to be known beside the rows, a sentence each.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.rows.iter().any(|row| row.is_modelled) {
            notes.push(
                "* modelled: the module is for another number of devices; each device has the same part of the batch here"
                    .into(),
            );
        }
        notes.extend(self.left_out.iter().map(|why| format!("other numbers of devices are left out: {why}")));
        notes
    }
}

/// A size in bytes in GiB, small ones in MiB.
pub(super) fn size_text(bytes: f64) -> String {
    match bytes / (1u64 << 30) as f64 {
        gib if gib >= 10.0 => format!("{gib:.0} GiB"),
        gib if gib >= 1.0 => format!("{gib:.1} GiB"),
        gib => format!("{:.1} MiB", gib * 1024.0),
    }
}
