//! The combinations of the weight-update sharding's options that a module is checked under.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::xla_check::manifest::Program;

/// Runs before the sharding, so that gradients are single arrays, summed once, and outside of loops.
const BEFORE: &str = "fold-all-reduce-of-all-reduce,reassociate-all-reduce,split-tuple-all-reduce,sink-all-reduce";

/// A module of more bytes is checked under [`FOR_LARGE`] only: its processes take minutes and gigabytes.
const LARGE_BYTES: usize = 1_000_000;
const FOR_LARGE: [&str; 2] = ["replicated/none", "replicated/packed"];

/// Percent of the way from the least peak to that of state that is whole, at which a limit is put.
const SHARES: [u64; 4] = [100, 60, 40, 30];

/// One combination.
pub(super) struct Combination {
    /// state/combine.
    pub name: String,
    /// As `--pass` takes it.
    pub pipeline: String,
    /// What the option `state` says.
    state: &'static str,
    combine: &'static str,
    /// Whether the judge is judged as well.
    is_corrupted: bool,
}

impl Combination {
    /// The pipeline of a second run, which must change nothing: all-reduces that were combined into one of several operands
    /// are not to be split, and combined under new names.
    fn again(&self) -> String {
        match self.combine {
            "variadic" => self.pipeline.replace("split-tuple-all-reduce,", ""),
            _ => self.pipeline.clone(),
        }
    }

    /// As `matrix_case.py` reads it.
    pub(super) fn as_json(&self) -> Value {
        let mut described = self.judged();
        described["pipeline"] = json!(self.pipeline);
        described["again"] = json!(self.again());
        described
    }

    /// The same text judged with corruptions: what was passed there need not be judged without.
    pub(super) fn judged_fully(&self) -> Value {
        Combination { is_corrupted: true, name: String::new(), pipeline: String::new(), ..*self }.judged()
    }

    /// What decides how emitted text is judged.
    pub(super) fn judged(&self) -> Value {
        // The sharding's own corruptions are judged where nothing is combined, the combining's where something is; both
        // where state is whole and where the tool itself chooses: they judge the judge, and take most of a row's time.
        let mutants = match (self.is_corrupted, self.combine) {
            (false, _) => &[][..],
            (true, "none") => &["drop_mean", "square_unreduced_gradient", "rotate_shard"],
            (true, _) => &["rotate_shard", "swap_combined"],
        };
        json!({"state": self.state, "combine": self.combine, "mutants": mutants})
    }
}

/// A combination that is not run.
pub(super) struct NotRun {
    /// The module.
    pub module: String,
    /// The combination's name.
    pub combination: String,
    /// Why.
    pub reason: String,
}

/// The combinations for a module, and those that are not run, with the reason.
pub(super) fn of_module(text: &str) -> (Vec<Combination>, Vec<(String, String)>) {
    let (mut run, mut not_run) = (Vec::new(), Vec::new());
    for state in ["replicated", "optimizer", "gradients", "parameters", "auto"] {
        for combine in ["none", "variadic", "packed"] {
            let name = format!("{state}/{combine}");
            if text.len() > LARGE_BYTES && !FOR_LARGE.contains(&name.as_str()) {
                not_run.push((name, "a large module has two combinations only".into()));
                continue;
            }
            let mut pipeline = format!("{BEFORE},shard-weight-update{{min-bytes=0,profit=always,state={state}}}");
            if combine != "none" {
                pipeline += &format!(",combine-collectives{{mode={combine}}}");
            }
            pipeline += ",dce";
            let is_corrupted = state == "replicated" || state == "auto";
            run.push(Combination { name, pipeline, state, combine, is_corrupted });
        }
    }
    (run, not_run)
}

/// What is no combination of the other options: layers that are gathered ahead, and what is chosen under limits between the least
/// peak that the tool names and that of state that is whole. None for a large module, unless they are `asked` for.
pub(super) fn forms(tool: &Path, program: &Program, text: &str, asked: bool) -> Result<Vec<Combination>, String> {
    if text.len() > LARGE_BYTES && !asked {
        return Ok(Vec::new());
    }
    let form = |name: String, state: &'static str, setting: String, after: &str| Combination {
        name: format!("{state}/{name}/none"),
        pipeline: format!("{setting}{BEFORE},shard-weight-update{{min-bytes=0,state={state}}},dce{after}"),
        state,
        combine: "none",
        is_corrupted: false,
    };
    let ahead = ",pipeline-loop-collectives{collectives=all}";
    let mut found = vec![form("ahead".into(), "parameters", String::new(), ahead)];
    if let Some((least, whole)) = peaks(tool, program)? {
        found.extend(SHARES.map(|share| {
            let limit = least + whole.saturating_sub(least) * share / 100;
            form(format!("limit-{share}"), "auto", format!("@memory-limit={limit};"), "")
        }));
    }
    Ok(found)
}

/// The least peak of a device that the tool finds, and that of state that is whole: both are named where a limit is below. `None` where no
/// state can be in shards.
fn peaks(tool: &Path, program: &Program) -> Result<Option<(u64, u64)>, String> {
    let mut command = Command::new(tool);
    command.arg(&program.file).args(["-q", "-o", "-", "--pass"]);
    command.arg(format!("@memory-limit=1;{BEFORE},shard-weight-update{{min-bytes=0,state=auto}}"));
    if let Some(like) = &program.like {
        command.arg("--replicated-params").arg(format!("like:{}", like.display()));
    }
    let output = command.output().map_err(|e| format!("{}: {e}", tool.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let bytes_after = |words: &str| -> Option<u64> {
        let (_, rest) = said.split_once(words)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Ok(bytes_after("the least that was found takes ").zip(bytes_after("state that is whole takes ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_module_has_two_combinations() {
        let names = |text: &str| of_module(text).0.into_iter().map(|c| c.name).collect::<Vec<_>>();
        assert_eq!(names("HloModule m").len(), 15);
        assert_eq!(names(&"x".repeat(LARGE_BYTES + 1)), FOR_LARGE);
    }
}
