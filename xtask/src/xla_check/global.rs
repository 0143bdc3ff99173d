//! `xla-check --global`: real XLA partitions and runs global programs, and the evaluator runs them as a whole. With `--pass` XLA gets what
//! the pipeline makes of them, which is to be a global program still.

use serde_json::json;

use super::manifest::{Program, read_folder};
use super::options::Options;
use super::worker::{Job, Session};
use crate::workspace;

/// The global programs of the corpus; without one those of the samples, of which some have a folder of their own.
pub(super) fn programs(options: &Options) -> Result<Vec<Program>, String> {
    let only = options.only.as_deref();
    let mut programs = read_folder(&options.corpus, only)?;
    if options.has_own_corpus() {
        programs.extend(read_folder(&workspace::root().join("ir-samples/global"), only)?);
    }
    programs.retain(|program| program.name().contains(".unopt"));
    Ok(programs)
}

/// The job that checks one of them.
pub(super) fn job(session: &Session<'_>, program: &Program) -> Job {
    let corpus = program.file.parent().and_then(|folder| folder.file_name()).unwrap_or_default();
    let work = workspace::target_dir().join("xla-check").join(corpus).join("global").join(program.name());
    let mut config = session.config(program, &work);
    config["stages"] = json!(["global"]);
    config["pipeline"] = json!(session.options.pipeline);
    Job { module: program.name(), script: "global_case.py", config, work }
}
