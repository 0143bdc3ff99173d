//! What the environment asks for.

use crate::log::{Level, Log};
use crate::switch::read_switch;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The plugin that is wrapped.
pub(crate) const PLUGIN: &str = "HLO_OPT_PJRT_PLUGIN";
const SWITCH: &str = "HLO_OPT";
const PIPELINE: &str = "HLO_OPT_PIPELINE";
const ONLY: &str = "HLO_OPT_ONLY";
const MACHINE: &str = "HLO_OPT_MACHINE";
const STRICT: &str = "HLO_OPT_STRICT";
const LOG: &str = "HLO_OPT_LOG";
const DEADLINE: &str = "HLO_OPT_DEADLINE_S";

/// How programs are optimized.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether nothing is to be done at all.
    pub is_off: bool,
    /// A preset or a list of passes, with options, as `--preset` and `--pass` take them.
    pub pipeline: String,
    /// The programs that are touched, by their names or what `jax.jit` calls them, `jit_NAME`; all if empty.
    pub only: Vec<String>,
    /// What times are predicted for, as `--machine` takes it; by default eight H200s.
    pub machine: Option<String>,
    /// Whether a failure is an error of the compile.
    pub is_strict: bool,
    /// How long a program may take.
    pub deadline: Duration,
    /// Whether the compiler keeps what a program donates when a hook changes the program (jaxlib from 0.11 on). If it does not, such
    /// programs are left alone.
    pub keeps_aliases: bool,
    /// Where lines go.
    pub log: Log,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            is_off: false,
            pipeline: "data-parallel".into(),
            only: Vec::new(),
            machine: None,
            is_strict: false,
            deadline: Duration::from_secs(60),
            keeps_aliases: true,
            log: Log::to_stderr(Level::Change),
        }
    }
}

impl Settings {
    /// Whether a program of this name is touched.
    pub(crate) fn touches(&self, program: &str) -> bool {
        let name = program.strip_prefix("jit_").unwrap_or(program);
        self.only.is_empty() || self.only.iter().any(|only| only == program || only == name)
    }

    /// The settings of the environment, lines going to stderr, and the plugin that it names. What cannot be understood is warned of
    /// and left at its default.
    pub fn from_environment() -> (Settings, Option<PathBuf>) {
        let (settings, warnings) = Settings::of(|name| std::env::var_os(name));
        for warning in warnings {
            settings.log.say(Level::Warning, &warning);
        }
        let plugin = std::env::var_os(PLUGIN).filter(|path| !path.is_empty());
        (settings, plugin.map(PathBuf::from))
    }

    /// The settings of some variables, and what is wrong with them.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> (Settings, Vec<String>) {
        let mut warnings = Vec::new();
        let mut text = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty())?;
            value.into_string().map_err(|_| warnings.push(format!("{name}: expected text, found other bytes"))).ok()
        };
        let mut settings = Settings::default();
        let (switch, strict, log, deadline) = (text(SWITCH), text(STRICT), text(LOG), text(DEADLINE));
        if let Some(pipeline) = text(PIPELINE) {
            settings.pipeline = pipeline;
        }
        let only = text(ONLY).unwrap_or_default();
        settings.only = only.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
        settings.machine = text(MACHINE);
        let mut flag = |name: &str, value: Option<String>, default: bool| match value.as_deref().map(read_switch) {
            None => default,
            Some(Ok(is_on)) => is_on,
            Some(Err(why)) => {
                warnings.push(format!("{name}: {why}"));
                default
            }
        };
        settings.is_off = !flag(SWITCH, switch, true);
        settings.is_strict = flag(STRICT, strict, false);
        if let Some(word) = log {
            match Level::NAMES.iter().find(|(name, _)| *name == word) {
                Some((_, level)) => settings.log = Log::to_stderr(*level),
                None => warnings.push(format!("{LOG}: expected warning, change or all, found `{word}`")),
            }
        }
        if let Some(value) = deadline {
            let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            match seconds.filter(|time| !time.is_zero()) {
                Some(time) => settings.deadline = time,
                None => warnings.push(format!("{DEADLINE}: expected a number of seconds, found `{value}`")),
            }
        }
        (settings, warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        Settings::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn nothing_said_is_the_default() {
        let (settings, warnings) = of(&[("HLO_OPT", ""), ("HLO_OPT_STRICT", "")]);
        assert!(!settings.is_off && !settings.is_strict && settings.machine.is_none() && warnings.is_empty());
        assert_eq!((settings.pipeline.as_str(), settings.deadline), ("data-parallel", Duration::from_secs(60)));
    }

    #[test]
    fn each_variable_is_read() {
        let (settings, warnings) = of(&[
            ("HLO_OPT", "off"),
            ("HLO_OPT_PIPELINE", "cse,dce"),
            ("HLO_OPT_MACHINE", "h100:4"),
            ("HLO_OPT_ONLY", "train_step, jit_eval,"),
            ("HLO_OPT_STRICT", "1"),
            ("HLO_OPT_LOG", "all"),
            ("HLO_OPT_DEADLINE_S", "2.5"),
        ]);
        assert!(settings.is_off && settings.is_strict && warnings.is_empty(), "{warnings:?}");
        assert_eq!((settings.pipeline.as_str(), settings.machine.as_deref()), ("cse,dce", Some("h100:4")));
        assert_eq!(settings.deadline, Duration::from_millis(2500));
        assert!(settings.touches("jit_train_step") && settings.touches("jit_eval") && !settings.touches("jit_init"));
        assert!(of(&[]).0.touches("jit_init"));
        assert!(format!("{:?}", settings.log).contains("All"));
    }

    #[test]
    fn switches_take_the_words_of_the_python_package() {
        for (word, is_off) in
            [("off", true), ("0", true), ("False", true), ("NO", true), ("yes", false), ("true", false)]
        {
            let (settings, warnings) = of(&[("HLO_OPT", word), ("HLO_OPT_STRICT", word)]);
            assert!(
                settings.is_off == is_off && settings.is_strict != is_off && warnings.is_empty(),
                "{word}: {warnings:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_understood_is_said() {
        for (name, value) in [
            ("HLO_OPT", "perhaps"),
            ("HLO_OPT_STRICT", "very"),
            ("HLO_OPT_LOG", "loud"),
            ("HLO_OPT_DEADLINE_S", "0"),
            ("HLO_OPT_DEADLINE_S", "-1"),
            ("HLO_OPT_DEADLINE_S", "soon"),
        ] {
            let (settings, warnings) = of(&[(name, value)]);
            assert_eq!(warnings.len(), 1, "{name}={value}");
            assert!(warnings[0].contains(name) && warnings[0].contains(value), "{warnings:?}");
            assert!(!settings.is_off && !settings.is_strict && settings.deadline == Duration::from_secs(60));
        }
    }
}
