//! Messages of the command line in the words of the Python package.

/// Options of the command line that Python calls otherwise than by their names with underscores.
const RENAMED: [(&str, &str); 3] =
    [("pass", "passes"), ("timeout", "timeout_s"), ("list-checks", "`python -m hlo_opt audit --list-checks`")];

/// The addition that the command line makes to a message about its usage.
const HELP: [&str; 2] = ["\n\nUsage:", "\n\nFor more information"];

/// A message of the command line as Python says it: options are arguments (`--replicated-params` is `replicated_params`), and hints at the
/// command's help are left out.
#[must_use]
pub fn python_words(text: &str) -> String {
    let end = HELP.iter().filter_map(|help| text.find(help)).min().unwrap_or(text.len());
    let text = text[..end].trim_end();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let text = text.strip_prefix("evaluate: ").unwrap_or(text);
    without_repetition(&with_arguments(&without_placeholders(text)))
}

/// The summary of a run as Python says it: arguments instead of options, and no folder to write to.
#[must_use]
pub fn python_summary(text: &str) -> String {
    let lines = text.lines().map(|line| with_arguments(&line.replace(" -o DIRECTORY", "")) + "\n");
    lines.collect()
}

/// `'--timeout <SECONDS>'` as `--timeout`.
fn without_placeholders(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("'--") {
        let (before, quoted) = rest.split_at(start);
        out.push_str(before);
        rest = quoted;
        let Some(length) = quoted[1..].find('\'') else { break };
        let name = &quoted[1..=length];
        out.push_str(name.split(' ').next().unwrap_or(name));
        rest = &quoted[length + 2..];
    }
    out.push_str(rest);
    out
}

/// Each `--name-of-an-option` as the argument of Python.
fn with_arguments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("--") {
        let (before, option) = rest.split_at(start);
        out.push_str(before);
        let name = &option[2..];
        let length = name.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(name.len());
        let is_option = length > 0 && !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
        let (name, behind) = name.split_at(length);
        match RENAMED.iter().find(|(of_tool, _)| *of_tool == name) {
            _ if !is_option => out.extend(["--", name]),
            Some((_, of_python)) => out.push_str(of_python),
            None => out.push_str(&name.replace('-', "_")),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// `machine: machine (a name …): expected` as `machine (a name …): expected`.
fn without_repetition(text: &str) -> String {
    match text.split_once(": ") {
        Some((name, rest)) if rest.starts_with(name) && rest[name.len()..].starts_with([' ', ':']) => rest.to_string(),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_arguments() {
        for (of_tool, of_python) in [
            (
                "error: --machine: machine: nodes: expected a divisor\n\nFor more information, try 'hlo-opt --help'.",
                "machine: nodes: expected a divisor",
            ),
            ("--pass: unknown pass: `dcee`", "passes: unknown pass: `dcee`"),
            (
                "--preset: expected one of data-parallel, gpu, found `x`",
                "preset: expected one of data-parallel, gpu, found `x`",
            ),
            (
                "invalid value '0.0' for '--timeout <SECONDS>': expected a positive number",
                "invalid value '0.0' for timeout_s: expected a positive number",
            ),
            (
                "--replicated-params: expected leaf numbers below 1, found 9",
                "replicated_params: expected leaf numbers below 1, found 9",
            ),
            ("error: evaluate: expected 1 array", "expected 1 array"),
            ("a -- b, x--y, 3 -> 1", "a -- b, x--y, 3 -> 1"),
            ("say it with --num-partitions\n\nUsage: hlo-opt [OPTIONS]", "say it with num_partitions"),
            ("  try --preset sharded-state: memory −42 %", "  try preset sharded-state: memory −42 %"),
            ("--deny: a check of --list-checks", "deny: a check of `python -m hlo_opt audit --list-checks`"),
            ("an open quote '--pass", "an open quote 'passes"),
        ] {
            assert_eq!(python_words(of_tool), of_python);
        }
        let summary =
            "  time for 8 x h200; --machine names another\n  try --preset sharded-state -o DIRECTORY: memory\n";
        assert_eq!(
            python_summary(summary),
            "  time for 8 x h200; machine names another\n  try preset sharded-state: memory\n"
        );
    }
}
