//! `xla-check --decompose`: collectives decomposed over the levels of clusters, on every module of eight devices.
//!
//! Each cluster is tried on the module as it is, and after weight-update sharding, whose reduce-scatters and all-gathers then go
//! level by level too. A module's process (`oracle/decompose_case.py`) runs the untouched module once.

use serde_json::{Map, Value, json};

use super::manifest::Program;
use super::worker::{Job, Session};
use crate::workspace;

/// Eight devices; links are far slower outside than inside, so that nearly every collective is decomposed.
const CLUSTERS: [(&str, &str); 3] = [
    ("2x4", "[(node,2,1),(gpu,4,100)]"),
    ("4x2", "[(node,4,1),(gpu,2,100)]"),
    ("2x2x2", "[(rack,2,1),(node,2,10),(gpu,2,100)]"),
];
const N_DEVICES: u64 = 8;

/// Runs before the sharding, so that gradients are single arrays, summed once, and outside of loops.
const SHARDED: &str = "fold-all-reduce-of-all-reduce,reassociate-all-reduce,split-tuple-all-reduce,sink-all-reduce,\
                       shard-weight-update{min-bytes=0,profit=always},";

/// Keeps the modules that real XLA can run on the devices of the clusters.
pub fn select(programs: &mut Vec<Program>) -> Result<(), String> {
    let mut texts = Vec::with_capacity(programs.len());
    for program in programs.iter() {
        let text = std::fs::read_to_string(&program.file).map_err(|e| format!("{}: {e}", program.file.display()))?;
        texts.push(n_devices(&text));
    }
    let mut n_devices = texts.into_iter();
    programs.retain(|program| n_devices.next() == Some(N_DEVICES) && program.runnable);
    Ok(())
}

/// Replicas times partitions, as the module's first line says.
fn n_devices(text: &str) -> u64 {
    let header = text.lines().find(|line| line.starts_with("HloModule")).unwrap_or_default();
    let count = |key: &str| -> u64 {
        let digits = header.split(key).nth(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        digits.flatten().and_then(|digits| digits.parse().ok()).unwrap_or(1)
    };
    count("replica_count=") * count("num_partitions=")
}

/// Whether a case is of one of the clusters.
pub fn is_case(case: &str) -> bool {
    CLUSTERS.iter().any(|(name, _)| case.split('.').next() == Some(name))
}

/// The job that checks all clusters on one module.
pub fn job(session: &Session<'_>, program: &Program) -> Job {
    let corpus = program.file.parent().and_then(|d| d.file_name()).unwrap_or_default();
    let work = workspace::target_dir().join("xla-check").join(corpus).join("decompose").join(program.name());
    let wanted = |name: &str| session.options.combination.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let mut pipelines = Map::new();
    for (name, cluster) in CLUSTERS {
        let decompose = format!("decompose-collectives{{cluster={cluster},algo=ring,min-gain=0}}");
        for (name, before) in [(name.to_string(), ""), (format!("{name}.sharded"), SHARDED)] {
            if wanted(&name) {
                pipelines.insert(name, Value::String(format!("{before}{decompose}")));
            }
        }
    }
    let mut config = session.config(program, &work);
    config["pipelines"] = Value::Object(pipelines);
    config["stages"] = json!(["pass"]);
    Job { module: program.name(), script: "decompose_case.py", config, work }
}

#[cfg(test)]
mod tests {
    use super::n_devices;

    #[test]
    fn devices_are_replicas_times_partitions() {
        assert_eq!(n_devices("// x\nHloModule m, is_scheduled=true, replica_count=4, num_partitions=2\n"), 8);
        assert_eq!(n_devices("HloModule m, num_partitions=16, x={1}\n"), 16);
        assert_eq!(n_devices("HloModule m\n"), 1);
    }
}
