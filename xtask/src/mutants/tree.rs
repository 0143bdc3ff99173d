//! The copy of the source tree that holds the switched mutants, and its builds.

use super::sample::Mutant;
use super::switch::{SWITCH_MODULE, with_switches};
use crate::workspace;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test binary, and the folder that it runs in.
#[derive(Clone, Debug)]
pub(super) struct Binary {
    pub(super) package: String,
    pub(super) path: PathBuf,
    pub(super) folder: PathBuf,
}

/// The copy; what did not change keeps its time, so that builds are incremental.
pub(super) struct Tree {
    root: PathBuf,
    build: PathBuf,
    /// Files that have switches.
    switched: BTreeSet<String>,
}

impl Tree {
    /// Copies what git tracks, and what it would track.
    pub(super) fn copy(folder: &Path) -> Result<Tree, String> {
        let output = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(workspace::root())
            .output()
            .map_err(|e| format!("git ls-files: {e}"))?;
        let tree = Tree { root: folder.join("tree"), build: folder.join("build"), switched: BTreeSet::new() };
        for file in String::from_utf8_lossy(&output.stdout).lines() {
            // A file that was deleted and is not yet committed is still in the list.
            if let Ok(bytes) = fs::read(workspace::root().join(file)) {
                tree.write(file, &bytes)?;
            }
        }
        Ok(tree)
    }

    fn write(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.root.join(file);
        if fs::read(&path).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(|e| format!("{file}: {e}"))?;
        fs::write(&path, bytes).map_err(|e| format!("{file}: {e}"))
    }

    /// Writes the sources with switches; gives the mutants that cannot have one.
    pub(super) fn switch(&mut self, sample: &[Mutant]) -> Result<BTreeSet<u32>, String> {
        let mut files = BTreeMap::<&str, Vec<(u32, &Mutant)>>::new();
        for (id, mutant) in (0..).zip(sample) {
            files.entry(&mutant.file).or_default().push((id, mutant));
        }
        let mut left = BTreeSet::new();
        // A file whose last mutant was dropped must lose its switches: their numbers are given to others.
        for file in std::mem::take(&mut self.switched).iter().filter(|file| !files.contains_key(file.as_str())) {
            self.write(file, read_source(file)?.as_bytes())?;
        }
        self.switched = files.keys().map(ToString::to_string).collect();
        for (file, mutants) in &files {
            let source = read_source(file)?;
            let (text, without) = with_switches(&source, mutants).map_err(|e| format!("{file}: {e}"))?;
            left.extend(without);
            self.write(file, text.as_bytes())?;
        }
        let crates: BTreeSet<&str> = files.keys().filter_map(|file| file.split("/src/").next()).collect();
        for folder in crates {
            let file = format!("{folder}/src/lib.rs");
            let source = read_source(&file)?;
            self.write(&file, (source + SWITCH_MODULE).as_bytes())?;
        }
        Ok(left)
    }

    fn cargo(&self, command: &[&str]) -> Result<(bool, Vec<Value>), String> {
        let output = Command::new("cargo")
            .args(command)
            .args(["--workspace", "--exclude", "xtask", "--message-format", "json", "--quiet"])
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_TEST_DEBUG", "0")
            .stderr(Stdio::null())
            .output()
            .map_err(|e| format!("cargo: {e}"))?;
        let lines = String::from_utf8_lossy(&output.stdout);
        Ok((output.status.success(), lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()))
    }

    /// The mutants that errors of the compiler are about; none if all compile.
    pub(super) fn check(&self) -> Result<BTreeSet<u32>, String> {
        let (ok, messages) = self.cargo(&["check", "--lib", "--keep-going"])?;
        let mut wrong = BTreeSet::new();
        let errors = messages.iter().filter(|m| m.pointer("/message/level").and_then(Value::as_str) == Some("error"));
        for error in errors {
            let found = self.blamed(error)?;
            if found.is_empty() && error.pointer("/message/spans/0").is_some() {
                let text = error.pointer("/message/rendered").and_then(Value::as_str).unwrap_or("");
                return Err(format!("an error that is about no mutant:\n{text}"));
            }
            wrong.extend(found);
        }
        match ok || !wrong.is_empty() {
            true => Ok(wrong),
            false => Err("cargo check fails without an error about a mutant".into()),
        }
    }

    /// The mutants between whose marks an error lies, or else those that share a line with it.
    fn blamed(&self, error: &Value) -> Result<BTreeSet<u32>, String> {
        let (mut inside, mut beside) = (BTreeSet::new(), BTreeSet::new());
        let spans = |value: &Value| value.get("spans").and_then(Value::as_array).cloned().unwrap_or_default();
        let message = error.get("message").unwrap_or(&Value::Null);
        // What the compiler proposes names the place where the error is about something that is missing.
        let proposed = message.get("children").and_then(Value::as_array).into_iter().flatten().flat_map(spans);
        for span in spans(message).into_iter().chain(proposed) {
            let number = |field: &str| span.get(field).and_then(Value::as_u64).unwrap_or(0) as usize;
            let file = span.get("file_name").and_then(Value::as_str).unwrap_or("");
            let Ok(text) = fs::read_to_string(self.root.join(file)) else { continue };
            let (start, end) = (number("byte_start"), number("byte_end"));
            let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
            let line_end = text[end..].find('\n').map_or(text.len(), |at| end + at);
            for (id, range) in marks(&text) {
                if range.start <= start && end <= range.end {
                    inside.insert(id);
                }
                if range.start < line_end && line_start < range.end {
                    beside.insert(id);
                }
            }
        }
        Ok(if inside.is_empty() { beside } else { inside })
    }

    /// Builds all tests.
    pub(super) fn build_tests(&self) -> Result<Vec<Binary>, String> {
        let (ok, messages) = self.cargo(&["test", "--tests", "--no-run"])?;
        if !ok {
            return Err(format!("the tests do not build in {}", self.root.display()));
        }
        let binaries = messages.iter().filter_map(|message| {
            let text = |path: &str| message.pointer(path).and_then(Value::as_str);
            let is_test = message.pointer("/profile/test").and_then(Value::as_bool) == Some(true);
            let folder = Path::new(text("/manifest_path")?).parent()?.to_path_buf();
            let package = folder.file_name()?.to_string_lossy().into_owned();
            let path = PathBuf::from(text("/executable")?);
            is_test.then_some(Binary { package, path, folder })
        });
        Ok(binaries.collect())
    }
}

fn read_source(file: &str) -> Result<String, String> {
    fs::read_to_string(workspace::root().join(file)).map_err(|e| format!("{file}: {e}"))
}

/// The numbers of all mutants in a switched source, and the bytes between their marks.
fn marks(text: &str) -> Vec<(u32, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("/*<") {
        let rest = &text[start + 3..];
        let Some(id) = rest.find("*/").and_then(|end| rest[..end].parse::<u32>().ok()) else { continue };
        if let Some(length) = rest.find(&format!("/*{id}>*/")) {
            found.push((id, start..start + 3 + length));
        }
    }
    found
}
