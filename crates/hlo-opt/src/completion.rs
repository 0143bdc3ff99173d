//! What a shell offers for a word that is not finished: presets, passes, their options and values, machines.

use crate::presets::PRESETS;
use crate::registry;
use clap_complete::engine::CompletionCandidate;
use hlo_mesh::MachineName;
use hlo_pass::options::{OptionInfo, OptionKind};
use std::ffi::OsStr;

/// For `--preset`: names, and options in braces.
pub(crate) fn preset(word: &OsStr) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy();
    let known = PRESETS.iter().map(|preset| Call { name: preset.name, help: preset.help, options: preset.options() });
    last_call(&word, "", &known.collect::<Vec<_>>())
}

/// For `--pass`: the last pass of a list, and its options in braces.
pub(crate) fn pipeline(word: &OsStr) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy();
    let mut depth = 0i32;
    let mut start = 0;
    for (at, c) in word.char_indices() {
        depth += i32::from("{[(".contains(c)) - i32::from("}])".contains(c));
        if (c == ',' || c == ';') && depth == 0 {
            start = at + 1;
        }
    }
    let (before, last) = word.split_at(start);
    let known = registry::passes().into_iter().map(|p| Call { name: p.name, help: p.help, options: p.options });
    last_call(last, before, &known.collect::<Vec<_>>())
}

/// For `--machine`.
pub(crate) fn machine(word: &OsStr) -> Vec<CompletionCandidate> {
    let names = MachineName::names().chain(["auto"]);
    starting(word, names.map(str::to_string))
}

/// For `--machine` of a plan over links alone.
pub(crate) fn links(word: &OsStr) -> Vec<CompletionCandidate> {
    starting(word, MachineName::names().map(str::to_string))
}

/// Something with a name that takes options in braces.
struct Call {
    name: &'static str,
    help: &'static str,
    options: &'static [OptionInfo],
}

/// Candidates for one call, each with what stands before it.
fn last_call(text: &str, before: &str, known: &[Call]) -> Vec<CompletionCandidate> {
    let Some((name, inside)) = text.split_once('{') else {
        let fitting = known.iter().filter(|call| call.name.starts_with(text));
        let candidate =
            |call: &Call| CompletionCandidate::new(format!("{before}{}", call.name)).help(Some(call.help.into()));
        return fitting.map(candidate).collect();
    };
    let Some(call) = known.iter().find(|call| call.name == name.replace('_', "-")) else { return Vec::new() };
    let start = inside.rfind(',').map_or(0, |at| at + 1);
    let (given, last) = inside.split_at(start);
    let before = format!("{before}{name}{{{given}");
    match last.split_once('=') {
        None => {
            let fitting = call.options.iter().filter(|option| option.name.starts_with(last));
            let candidate = |option: &OptionInfo| {
                CompletionCandidate::new(format!("{before}{}=", option.name)).help(Some(option.help.into()))
            };
            fitting.map(candidate).collect()
        }
        Some((option, value)) => {
            let kind = call.options.iter().find(|known| known.name == option).map(|known| known.kind);
            let values: Vec<&str> = match kind {
                Some(OptionKind::Word(words)) => words.to_vec(),
                Some(OptionKind::Bool) => vec!["true", "false"],
                Some(OptionKind::Text | OptionKind::Int | OptionKind::Float) | None => Vec::new(),
            };
            let fitting = values.iter().filter(|known| known.starts_with(value));
            fitting.map(|known| CompletionCandidate::new(format!("{before}{option}={known}"))).collect()
        }
    }
}

fn starting(word: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy();
    names.filter(|name| name.starts_with(&*word)).map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(candidates: Vec<CompletionCandidate>) -> Vec<String> {
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_last_pass_of_a_list_is_completed() {
        let of = |word: &str| words(pipeline(OsStr::new(word)));
        assert_eq!(of("inline-calls,shard"), ["inline-calls,shard-weight-update"]);
        assert_eq!(of("dce,shard-weight-update{prof"), ["dce,shard-weight-update{profit="]);
        assert_eq!(of("shard-weight-update{min-bytes=0,state=o"), ["shard-weight-update{min-bytes=0,state=optimizer"]);
        assert_eq!(
            of("@machine=[(node,2),(gpu,8)];decompose-collectives{algo=r"),
            ["@machine=[(node,2),(gpu,8)];decompose-collectives{algo=ring"]
        );
        assert!(of("no-such-pass{a").is_empty() && of("").len() == registry::passes().len());
    }

    #[test]
    fn presets_and_machines_are_completed() {
        assert_eq!(words(preset(OsStr::new("sh"))), ["sharded-state"]);
        assert_eq!(words(preset(OsStr::new("data-parallel{objective=m"))), ["data-parallel{objective=memory"]);
        assert_eq!(words(machine(OsStr::new("h"))), ["h100", "h200"]);
        assert_eq!(words(links(OsStr::new("tpu"))), ["tpuv3", "tpuv3-slice"]);
    }
}
