//! A program in, a program out: in time, checked, and with one line about it.

use crate::bounded::bounded;
use crate::compile_options::CompileOptions;
use crate::log::Level;
use crate::settings::Settings;
use crate::signature::check_signature;
use crate::tool::{Made, Route, Tool, donates, hlo_opt, own_counts, program_name};
use std::sync::Arc;

/// Why a program that donates arguments is left alone where a compiler drops the aliases of a module that it is given back.
const LOSES_ALIASES: &str = "it donates arguments, and jaxlib before 0.11 copies what a hooked program donates: expected jaxlib 0.11 or newer \
     (hlo_opt.jax.zero works with this one)";

/// Settings and the tool that they are for.
#[derive(Clone, Debug)]
pub struct Optimizer {
    settings: Arc<Settings>,
    tool: Tool,
}

/// What is to be compiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rewritten {
    /// The program as it came.
    Same,
    /// This HloModuleProto.
    Other(Vec<u8>),
    /// Nothing, for this reason: settings are strict.
    Refused(String),
}

impl Rewritten {
    /// The program to compile, `None` for the one that came; an error where there is none.
    pub(crate) fn into_result(self) -> Result<Option<Vec<u8>>, String> {
        match self {
            Rewritten::Same => Ok(None),
            Rewritten::Other(proto) => Ok(Some(proto)),
            Rewritten::Refused(why) => Err(why),
        }
    }
}

impl Optimizer {
    /// The passes of hlo-opt.
    pub fn new(settings: Settings) -> Optimizer {
        Optimizer::with_tool(settings, hlo_opt)
    }

    /// Another tool in their place.
    pub fn with_tool(settings: Settings, tool: Tool) -> Optimizer {
        Optimizer { settings: Arc::new(settings), tool }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What becomes of a program of a format that is compiled with these options (a CompileOptionsProto).
    pub(crate) fn of_compile(&self, format: &[u8], code: &[u8], options: &[u8]) -> Rewritten {
        if format != b"hlo" {
            let format = String::from_utf8_lossy(format);
            self.say(Level::All, "", &format!("left as it is: expected a program of format `hlo`, found `{format}`"));
            return Rewritten::Same;
        }
        let counts = match CompileOptions::read(options) {
            Ok(options) => options.check_per_device(),
            Err(why) => return self.failed(&program_name(code), why),
        };
        match counts {
            Ok(counts) => self.rewrite(code, Route::Compile(counts)),
            Err(why) => self.left(&program_name(code), &why),
        }
    }

    /// What becomes of a module in the middle of a compile: it is partitioned, and names its devices itself.
    pub(crate) fn of_stage(&self, route: Route, code: &[u8]) -> Rewritten {
        match own_counts(code) {
            Ok(Some(counts)) if counts.n_devices() <= 1 => self.left(&program_name(code), "it runs on one device"),
            Ok(_) if !self.settings.keeps_aliases && donates(code) => self.left(&program_name(code), LOSES_ALIASES),
            // The tool finds them in the module, or in the groups of its collectives.
            Ok(_) => self.rewrite(code, route),
            Err(why) => self.failed(&program_name(code), why),
        }
    }

    /// Runs the tool and checks what it gives.
    fn rewrite(&self, code: &[u8], route: Route) -> Rewritten {
        if !self.settings.touches(&program_name(code)) {
            return self.left(&program_name(code), "it is not among those that are named");
        }
        let (settings, tool, before) = (self.settings.clone(), self.tool, code.to_vec());
        let done = bounded(self.settings.deadline, move || {
            let made = tool(&settings, &before, route)?;
            if let Made::Other { proto, .. } = &made {
                check_signature(&before, proto).map_err(|why| format!("its signature would change: {why}"))?;
            }
            Ok::<Made, String>(made)
        });
        match done.map_err(|stopped| stopped.to_string()).and_then(|made| made) {
            Ok(Made::Same(why)) => self.left(&program_name(code), &why),
            Ok(Made::Other { proto, line }) => {
                self.say(Level::Change, &program_name(code), &line);
                Rewritten::Other(proto)
            }
            Err(why) => self.failed(&program_name(code), why),
        }
    }

    /// A program that is compiled as it came, and why.
    pub(crate) fn left(&self, name: &str, why: &str) -> Rewritten {
        let why = why.trim_start_matches("left as it is: ");
        self.say(Level::All, name, &format!("left as it is: {why}"));
        Rewritten::Same
    }

    /// A failure: the program as it came and a warning, or no program at all.
    pub(crate) fn failed(&self, name: &str, why: String) -> Rewritten {
        if self.settings.is_strict {
            return Rewritten::Refused(if name.is_empty() { why } else { format!("{name}: {why}") });
        }
        self.say(Level::Warning, name, &format!("compiled as it came: {why}"));
        Rewritten::Same
    }

    /// One line about a program.
    pub(crate) fn say(&self, level: Level, name: &str, text: &str) {
        let text = text.lines().collect::<Vec<_>>().join(" ");
        let line = if name.is_empty() { text } else { format!("{name}: {text}") };
        self.settings.log.say(level, &line);
    }
}
