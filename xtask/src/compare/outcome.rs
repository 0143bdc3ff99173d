//! What a call of the tool leaves behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cases::{Case, OUTPUT};
use super::words::Renamed;
use crate::workspace;

/// Exit code and everything written, by name: `stdout`, `stderr`, and files below the output's name.
#[derive(PartialEq, Eq)]
pub(super) struct Outcome {
    code: Option<i32>,
    written: BTreeMap<String, Vec<u8>>,
}

impl Outcome {
    /// Runs a tool in an empty folder of the call's own.
    pub(super) fn of(tool: &Path, case: &Case) -> Result<Outcome, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = workspace::target_dir().join("compare").join(format!("{}-{number}", std::process::id()));
        let error = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(&folder).map_err(error)?;
        let output = Command::new(tool).args(&case.args).current_dir(&folder).output();
        let output = output.map_err(|e| format!("{}: {e}", tool.display()))?;
        let mut written =
            BTreeMap::from([("stdout".to_string(), output.stdout), ("stderr".to_string(), output.stderr)]);
        read_files(&folder.join(OUTPUT), OUTPUT, &mut written).map_err(error)?;
        std::fs::remove_dir_all(&folder).map_err(error)?;
        Ok(Outcome { code: output.status.code(), written })
    }

    /// The same with words renamed.
    pub(super) fn renamed(self, renamed: &Renamed) -> Outcome {
        let written = self.written.into_iter().map(|(name, bytes)| (name, renamed.apply(bytes))).collect();
        Outcome { written, ..self }
    }

    /// Where `new` differs first.
    pub(super) fn first_difference(&self, new: &Outcome) -> Option<String> {
        if self == new {
            return None;
        }
        if self.code != new.code {
            return Some(format!("exit code: old {:?}, new {:?}", self.code, new.code));
        }
        for (name, old) in &self.written {
            let Some(bytes) = new.written.get(name) else { return Some(format!("{name}: the new tool wrote none")) };
            if old != bytes {
                return Some(differing_line(name, old, bytes));
            }
        }
        let added = new.written.keys().find(|name| !self.written.contains_key(*name));
        added.map(|name| format!("{name}: only the new tool wrote it"))
    }
}

fn differing_line(name: &str, old: &[u8], new: &[u8]) -> String {
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let same = old.lines().zip(new.lines()).take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end)").chars().take(200).collect::<String>();
    format!("{name}, line {}:\n    - {}\n    + {}", same + 1, line(&old), line(&new))
}

/// Reads a file, or every file of a folder; nothing where neither exists.
fn read_files(path: &Path, name: &str, written: &mut BTreeMap<String, Vec<u8>>) -> std::io::Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            read_files(&entry.path(), &format!("{name}/{}", entry.file_name().to_string_lossy()), written)?;
        }
    } else if path.exists() {
        written.insert(name.to_string(), std::fs::read(path)?);
    }
    Ok(())
}
