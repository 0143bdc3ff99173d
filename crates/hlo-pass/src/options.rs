//! Options of passes: declared by the pass, given as text in a pipeline string, checked before a pass is built.

use crate::pipeline::{OptionValue, PipelineError};
use indexmap::IndexMap;

/// The names under which a pipeline or the command line says the target of all passes.
pub const SETTINGS: [&str; 3] = ["machine", "unknown-trip-count", "memory-limit"];

/// An option that a pass takes.
#[derive(Clone, Copy, Debug)]
pub struct OptionInfo {
    /// Kebab-case name.
    pub name: &'static str,
    /// Which values it takes.
    pub kind: OptionKind,
    /// Printed in `--list-passes`; also the value when not given.
    pub default: &'static str,
    /// One line.
    pub help: &'static str,
}

/// Which values an option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionKind {
    /// `true` or `false`.
    Bool,
    /// A whole number from 0 on, with an optional suffix `KiB`, `MiB`, `GiB`.
    Int,
    /// A number from 0 on.
    Float,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
}

/// Checked option values of one pass.
#[derive(Clone, Debug, Default)]
pub struct Options {
    values: IndexMap<&'static str, String>,
}

impl Options {
    /// Checks the given values against what the pass declares; absent ones take their defaults.
    ///
    /// # Errors
    /// An unknown name (with the nearest known one) or a value of the wrong kind.
    pub fn check(
        pass: &str,
        infos: &'static [OptionInfo],
        given: &[(String, OptionValue)],
    ) -> Result<Options, PipelineError> {
        let mut values: IndexMap<&'static str, String> = infos.iter().map(|i| (i.name, i.default.into())).collect();
        let mut seen: Vec<&'static str> = Vec::new();
        for (name, value) in given {
            let Some(info) = infos.iter().find(|i| i.name == name.replace('_', "-")) else {
                if let Some(said) = said_of_target(&name.replace('_', "-"), &value.as_text()) {
                    return Err(PipelineError::new(format!(
                        "`{pass}` has no option `{name}`: one target is said for all passes, as --{said}"
                    )));
                }
                let names = infos.iter().map(|i| i.name);
                return Err(PipelineError::unknown(&format!("option of `{pass}`"), name, names));
            };
            if seen.contains(&info.name) {
                return Err(PipelineError::new(format!("option `{name}` of `{pass}` stands twice")));
            }
            seen.push(info.name);
            let text = value.as_text();
            if let Some(expected) = info.kind.mismatch(&text) {
                return Err(PipelineError::new(format!(
                    "option `{name}` of `{pass}`: expected {expected}, found `{text}`"
                )));
            }
            values.insert(info.name, text);
        }
        Ok(Options { values })
    }

    /// A declared option's text; empty if the pass does not declare it.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// A declared whole number.
    pub fn int(&self, name: &str) -> i64 {
        parse_int(self.text(name)).unwrap_or(0)
    }

    /// A declared number.
    pub fn float(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }

    /// A declared flag.
    pub fn flag(&self, name: &str) -> bool {
        self.text(name) == "true"
    }
}

/// How the command line says what an option about the target would say: `machine a100:switch, or in front of --pass as …`.
fn said_of_target(option: &str, value: &str) -> Option<String> {
    let (setting, value) = match option {
        "cluster" => ("machine", value.to_string()),
        "device" => ("machine", format!("{value}:switch")),
        option => (SETTINGS.into_iter().find(|setting| *setting == option)?, value.to_string()),
    };
    Some(format!("{setting} '{value}', or in front of --pass as '@{setting}={value};…'"))
}

impl OptionKind {
    /// What was expected, if `text` is not of this kind.
    fn mismatch(self, text: &str) -> Option<String> {
        match self {
            OptionKind::Bool => (!matches!(text, "true" | "false")).then(|| "true or false".into()),
            OptionKind::Int if parse_int(text).is_some_and(|number| number >= 0) => None,
            OptionKind::Int => Some("a whole number such as 0, 4096 or 4KiB".into()),
            OptionKind::Float => match text.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= 0.0 => None,
                Ok(_) | Err(_) => Some("a finite number, 0 or above".into()),
            },
            OptionKind::Word(words) => (!words.contains(&text)).then(|| format!("one of {}", words.join(", "))),
            OptionKind::Text => None,
        }
    }

    /// How the kind reads in a list of options.
    pub fn describe(self) -> String {
        match self {
            OptionKind::Bool => "true|false".into(),
            OptionKind::Int => "integer".into(),
            OptionKind::Float => "number".into(),
            OptionKind::Word(words) => words.join("|"),
            OptionKind::Text => "text".into(),
        }
    }
}

/// A number as options take it, perhaps with KiB, MiB or GiB behind it.
pub fn parse_int(text: &str) -> Option<i64> {
    for (suffix, factor) in [("KiB", 1i64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)] {
        if let Some(number) = text.strip_suffix(suffix) {
            return number.trim().parse::<i64>().ok()?.checked_mul(factor);
        }
    }
    text.parse().ok()
}
