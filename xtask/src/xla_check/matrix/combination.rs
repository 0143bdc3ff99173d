//! The combinations of the weight-update sharding's options that a module is checked under.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::xla_check::manifest::Program;

/// Runs before the sharding, so that gradients are single arrays, summed once, and outside of loops.
const BEFORE: &str = "fold-all-reduce-of-all-reduce,reassociate-all-reduce,split-tuple-all-reduce,sink-all-reduce";

/// A module of more bytes is checked under [`FOR_LARGE`] only: its processes take minutes and gigabytes.
const LARGE_BYTES: usize = 1_000_000;
const FOR_LARGE: [&str; 2] = ["replicated/auto/none", "replicated/auto/packed"];

/// Percent of the way from the least peak to that of state that is whole, at which a limit is put.
const SHARES: [u64; 4] = [100, 60, 40, 30];

/// One combination.
pub(super) struct Combination {
    /// interface/weights/combine.
    pub name: String,
    /// As `--pass` takes it.
    pub pipeline: String,
    interface: &'static str,
    combine: &'static str,
    /// Whether the tool chooses which weights stay in shards.
    chooses_weights: bool,
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
        Combination { chooses_weights: true, name: String::new(), pipeline: String::new(), ..*self }.judged()
    }

    /// What decides how emitted text is judged.
    pub(super) fn judged(&self) -> Value {
        // The sharding's own corruptions are judged where nothing is combined, the combining's where something is; both
        // once, where the tool itself chooses about the weights: they judge the judge, and take most of a row's time.
        let mutants = match (self.chooses_weights, self.combine) {
            (false, _) => &[][..],
            (true, "none") => &["drop_mean", "square_unreduced_gradient", "rotate_shard"],
            (true, _) => &["rotate_shard", "swap_combined"],
        };
        json!({"interface": self.interface, "combine": self.combine, "mutants": mutants})
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

/// Options of the pass that the tool has.
pub(super) struct Offered {
    interface: bool,
    keep_weights: bool,
}

impl Offered {
    /// Asks the tool.
    pub(super) fn ask(tool: &Path) -> Result<Self, String> {
        let output = Command::new(tool).arg("--list-passes").output();
        let output = output.map_err(|e| format!("{}: {e}", tool.display()))?;
        let list = String::from_utf8_lossy(&output.stdout);
        let mut lines = list.lines().skip_while(|line| !line.starts_with("shard-weight-update "));
        if lines.next().is_none() {
            return Err(format!("{} --list-passes: expected a pass shard-weight-update", tool.display()));
        }
        let options: Vec<&str> = lines.take_while(|line| line.starts_with(' ')).map(str::trim).collect();
        let has = |name: &str| options.iter().any(|option| option.starts_with(name));
        Ok(Self { interface: has("interface="), keep_weights: has("keep-weights-sharded=") })
    }
}

/// The combinations for a module, and those that are not run, with the reason.
pub(super) fn of_module(text: &str, offered: &Offered) -> (Vec<Combination>, Vec<(String, String)>) {
    let (mut run, mut not_run) = (Vec::new(), Vec::new());
    for interface in ["replicated", "sharded"] {
        for weights in ["auto", "yes", "no"] {
            for combine in ["none", "variadic", "packed"] {
                let name = format!("{interface}/{weights}/{combine}");
                match why_not(text, &name, offered) {
                    Some(reason) => not_run.push((name, reason.into())),
                    None => run.extend(combination(text, name, interface, weights, combine, offered)),
                }
            }
        }
    }
    (run, not_run)
}

/// The forms of ZeRO that are no combination of the other options: moments alone, and what is chosen under limits between the least
/// peak that the tool names and that of state that is whole. None for a large module, unless they are `asked` for.
pub(super) fn forms(tool: &Path, program: &Program, text: &str, asked: bool) -> Result<Vec<Combination>, String> {
    if text.len() > LARGE_BYTES && !asked {
        return Ok(Vec::new());
    }
    let form = |name: String, options: String, after: &str| Combination {
        name: format!("sharded/{name}/none"),
        pipeline: format!("{BEFORE},shard-weight-update{{min-bytes=0,{options}}},dce{after}"),
        interface: "sharded",
        combine: "none",
        chooses_weights: false,
    };
    let ahead = form("zero-3-ahead".into(), "zero=3".into(), ",pipeline-loop-collectives{collectives=all}");
    let mut found = vec![form("zero-1".into(), "zero=1".into(), ""), ahead];
    if let Some((least, whole)) = peaks(tool, program)? {
        found.extend(SHARES.map(|share| {
            let limit = least + whole.saturating_sub(least) * share / 100;
            form(format!("zero-auto-{share}"), format!("zero=auto,memory-limit={limit}"), "")
        }));
    }
    Ok(found)
}

/// The least peak of a device that the tool finds, and that of state that is whole: both are named where a limit is below. `None` where no
/// state can be in shards.
fn peaks(tool: &Path, program: &Program) -> Result<Option<(u64, u64)>, String> {
    let mut command = Command::new(tool);
    command.arg(&program.file).args(["-q", "-o", "-", "--pass"]);
    command.arg(format!("{BEFORE},shard-weight-update{{min-bytes=0,zero=auto,memory-limit=1}}"));
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

fn why_not(text: &str, name: &str, offered: &Offered) -> Option<&'static str> {
    if name.starts_with("sharded/") && !offered.interface {
        return Some("the pass has no option `interface`");
    }
    if !name.contains("/auto/") && !offered.keep_weights {
        return Some("the pass has no option `keep-weights-sharded`");
    }
    (text.len() > LARGE_BYTES && !FOR_LARGE.contains(&name)).then_some("a large module has two combinations only")
}

/// None where the option says nothing: weights that no loop and no interface keeps.
fn combination(
    text: &str,
    name: String,
    interface: &'static str,
    weights: &str,
    combine: &'static str,
    offered: &Offered,
) -> Option<Combination> {
    let keeps_nothing = interface == "replicated" && !has_training_loop(text);
    if keeps_nothing && weights != "auto" {
        return None;
    }
    let mut options = String::from("min-bytes=0,profit=always");
    if offered.interface {
        options += &format!(",interface={interface}");
    }
    if offered.keep_weights {
        options += &format!(",keep-weights-sharded={weights}");
    }
    let mut pipeline = format!("{BEFORE},shard-weight-update{{{options}}}");
    if combine != "none" {
        pipeline += &format!(",combine-collectives{{mode={combine}}}");
    }
    pipeline += ",dce";
    Some(Combination { name, pipeline, interface, combine, chooses_weights: weights == "auto" })
}

/// Whether a gradient is summed within a loop: then the loop is of steps. A loop that only accumulates a gradient has its
/// all-reduce outside.
fn has_training_loop(text: &str) -> bool {
    let mut bodies: Vec<&str> = Vec::new();
    for part in text.split("body=").skip(1) {
        let part = part.trim_start_matches('%');
        let end = part.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c))).unwrap_or(part.len());
        bodies.push(&part[..end]);
    }
    let mut current = "";
    let mut reaches: Vec<(&str, &str)> = Vec::new();
    let mut sums: Vec<&str> = Vec::new();
    for line in text.lines() {
        if !line.starts_with([' ', '}']) && line.ends_with('{') {
            let head = line.trim_start_matches("ENTRY ").trim_start_matches('%');
            current = head.split([' ', '(']).next().unwrap_or_default();
        } else if line.contains(" all-reduce(") {
            sums.push(current);
        }
        for key in ["to_apply=", "body=", "calls="] {
            if let Some((_, rest)) = line.split_once(key) {
                let rest = rest.trim_start_matches('%');
                let end = rest.find([',', ' ', '}']).unwrap_or(rest.len());
                reaches.push((current, &rest[..end]));
            }
        }
    }
    let mut within = bodies;
    let mut at = 0;
    while let Some(&comp) = within.get(at) {
        at += 1;
        let called: Vec<&str> = reaches.iter().filter(|(from, _)| *from == comp).map(|(_, to)| *to).collect();
        let new: Vec<&str> = called.into_iter().filter(|to| !within.contains(to)).collect();
        within.extend(new);
    }
    sums.iter().any(|comp| within.contains(comp))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCUMULATION: &str = "%body (p: f32[]) -> f32[] {\n  %x = f32[] add(%p, %p)\n}\n\nENTRY %main {\n  \
                                %w = f32[] while(%a), condition=%c, body=%body\n  %g = f32[] all-reduce(%w)\n}\n";

    fn names(text: &str, offered: &Offered) -> Vec<String> {
        of_module(text, offered).0.into_iter().map(|c| c.name).collect()
    }

    #[test]
    fn options_that_the_pass_lacks_are_listed_as_not_run() {
        let offered = Offered { interface: false, keep_weights: false };
        let (run, not_run) = of_module(ACCUMULATION, &offered);
        assert_eq!(run.len(), 3);
        assert!(run.iter().all(|c| !c.pipeline.contains("interface")));
        assert_eq!(not_run.len(), 15);
    }

    #[test]
    fn weights_of_a_loop_of_steps_are_kept_with_either_interface() {
        let steps = ACCUMULATION.replace("add(%p, %p)", "all-reduce(%p)");
        let offered = Offered { interface: true, keep_weights: true };
        assert_eq!(names(&steps, &offered).len(), 18);
        assert_eq!(names(ACCUMULATION, &offered).len(), 12);
    }

    #[test]
    fn a_large_module_has_two_combinations() {
        let large = format!("{ACCUMULATION}// {}\n", "x".repeat(LARGE_BYTES));
        assert_eq!(names(&large, &Offered { interface: true, keep_weights: true }), FOR_LARGE);
    }
}
