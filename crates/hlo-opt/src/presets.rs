//! Pipelines with a name, for `--preset`: what most modules need, in the order that works.

use crate::Failure;
use hlo_pass::pipeline::nearest;
use std::fmt::Write;

/// A pipeline with a name.
pub struct Preset {
    /// As `--preset` takes it.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub help: &'static str,
    /// The pipeline, as `--pass` takes it.
    pub pipeline: &'static str,
}

/// What the GPU backend lowers best.
pub const GPU: &str = "inline-calls,simplify-tuples,cse,dce,propagate-layouts,fuse";

/// All presets. The passes before the sharding make each gradient one array that is summed once, outside of accumulation
/// loops; `sink-all-reduce` runs twice because merged sums can be moved again.
pub const PRESETS: [Preset; 3] = [
    Preset {
        name: "data-parallel",
        help: "a data-parallel training step or loop: gradients summed once, updates sharded, the signature as it was",
        pipeline: "inline-calls,simplify-tuples,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                   fold-all-reduce-of-all-reduce,sink-all-reduce,shard-weight-update,dce",
    },
    Preset {
        name: "sharded-state",
        help: "the same for a step whose loop is outside: state crosses the interface in shards, -o names a directory",
        pipeline: "inline-calls,simplify-tuples,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                   fold-all-reduce-of-all-reduce,sink-all-reduce,shard-weight-update{interface=sharded},dce",
    },
    Preset {
        name: "gpu",
        help: "a per-device module as the GPU backend takes it; --emit other than hlo runs it last",
        pipeline: GPU,
    },
];

/// The pipeline of a preset.
///
/// # Errors
/// No preset has this name: usage, with the nearest one.
pub fn pipeline(name: &str) -> Result<&'static str, Failure> {
    let names = || PRESETS.iter().map(|preset| preset.name);
    PRESETS.iter().find(|preset| preset.name == name).map(|preset| preset.pipeline).ok_or_else(|| {
        let near = nearest(name, names()).map_or(String::new(), |near| format!(", did you mean `{near}`?"));
        let all = names().collect::<Vec<_>>().join(", ");
        Failure::Usage(format!("--preset: expected one of {all}, found `{name}`{near}"))
    })
}

/// A line for each preset and, indented, its pipeline.
pub fn list() -> String {
    let mut out = String::from("\nPresets (--preset NAME):\n");
    for preset in &PRESETS {
        let _ = writeln!(out, "{}  {}\n    {}", preset.name, preset.help, preset.pipeline);
    }
    out
}
