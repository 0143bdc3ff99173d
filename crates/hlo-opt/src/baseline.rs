//! The module that XLA makes of a module before it runs: the honest baseline of every figure.
//!
//! XLA combines collectives by itself, so combining them is no gain of ours. Times and counts of collectives are those of the module
//! with its collectives combined by XLA's own thresholds, which the device's profile has.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::{ModuleTime, predict};
use hlo_collectives::combine_as_xla;
use hlo_ir::Module;
use hlo_mesh::{Machine, SizeMismatch};
use std::borrow::Cow;

/// The module with its collectives combined as XLA combines them for `machine`; `None` if that changes nothing.
pub(crate) fn as_xla_compiles(module: &Module, machine: &Machine) -> Option<Module> {
    combine_as_xla(module, &machine.device().xla_combiner)
}

/// As [`as_xla_compiles`], or the module itself.
pub(crate) fn compiled<'m>(module: &'m Module, machine: &Machine) -> Cow<'m, Module> {
    as_xla_compiles(module, machine).map_or(Cow::Borrowed(module), Cow::Owned)
}

/// The predicted time of the module that XLA makes of `module`.
///
/// # Errors
/// The machine has another number of devices than the module.
pub(crate) fn predict_compiled(
    module: &Module,
    options: FrequencyOptions,
    machine: &Machine,
) -> Result<ModuleTime, SizeMismatch> {
    let compiled = compiled(module, machine);
    predict(&compiled, &Frequencies::compute(&compiled, options), machine)
}

/// How XLA combines collectives for a machine, in words.
pub(crate) fn combiner(machine: &Machine) -> String {
    let combiner = &machine.device().xla_combiner;
    let most = combiner.all_reduce_bytes.max(combiner.all_gather_bytes).max(combiner.reduce_scatter_bytes);
    match most {
        0 => "XLA combines no collectives".into(),
        most if most >= 1 << 50 => "XLA combines all-reduces of any size".into(),
        most => format!("XLA combines collectives up to {} MiB", most >> 20),
    }
}
