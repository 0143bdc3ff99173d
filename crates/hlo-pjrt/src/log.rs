//! What the wrapper says: lines on stderr, or wherever the owner of the process wants them.

use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How much a line matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// A program that could not be optimized, and was compiled as it was.
    Warning,
    /// What was done to a program.
    Change,
    /// Why a program was left alone.
    All,
}

impl Level {
    /// The names that `HLO_OPT_LOG` takes.
    pub(crate) const NAMES: [(&str, Level); 3] =
        [("warning", Level::Warning), ("change", Level::Change), ("all", Level::All)];
}

/// Takes a line.
type Sink = dyn Fn(Level, &str) + Send + Sync;

/// Where lines go, and which.
#[derive(Clone)]
pub struct Log {
    most: Level,
    sink: Arc<Sink>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Log {
    /// Lines up to a level on stderr, each with the name of the tool before it.
    pub fn to_stderr(most: Level) -> Log {
        Log::new(most, |level, line| {
            let what = if level == Level::Warning { "warning: " } else { "" };
            // A closed stderr is no reason to stop a compile.
            let _ = writeln!(std::io::stderr(), "hlo-opt: {what}{line}");
        })
    }

    /// Lines up to a level, without the name of the tool. The sink may be called from any thread.
    pub fn new(most: Level, sink: impl Fn(Level, &str) + Send + Sync + 'static) -> Log {
        Log { most, sink: Arc::new(sink) }
    }

    pub(crate) fn say(&self, level: Level, line: &str) {
        if level <= self.most {
            // Lines are said between calls of C, through which a panic of the sink must not go.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.sink)(level, line)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn lines_up_to_a_level_are_said() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let log = Log::new(Level::Change, move |_, line| {
            sink.lock().expect("no panic").push(line.to_string());
            assert_ne!(line, "change", "a sink that fails");
        });
        log.say(Level::Warning, "warning");
        log.say(Level::All, "all");
        log.say(Level::Change, "change");
        assert_eq!(*lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner), ["warning", "change"]);
    }
}
