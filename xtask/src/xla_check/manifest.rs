//! The list of modules to check: `manifest.json` of a corpus folder, or, where there is none, the header lines of the
//! folder's `.hlo` files.
//!
//! Read of a manifest (an array of objects): `file`; `form`; `draw` (a word for each flat ENTRY parameter); optionally
//! `like` (a sibling whose shardings hold here too; by default a `.repl` module's is its partitioned sibling).
//! Read of a header: `// draw: …`, and `// xla: parse-only (…)`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::options::Options;

/// Forms that are partitioned and that the StableHLO route takes.
const RUNNABLE_FORMS: [&str; 3] = ["spmd", "spmd_gspmd", "repl"];

/// The largest module of the quick set.
const QUICK_BYTES: u64 = 70_000;

/// One module of the list.
pub(crate) struct Program {
    /// Where the text lies.
    pub file: PathBuf,
    /// The sibling that carries the shardings, if this module carries none.
    pub like: Option<PathBuf>,
    /// How inputs are drawn.
    pub draw: String,
    /// Whether real XLA can run it; if not, only its text is checked.
    pub runnable: bool,
    /// Whether NaN may be among the results: it is part of what an op's sample shows, and hides errors elsewhere.
    pub nan_belongs: bool,
    form: String,
    text_bytes: u64,
}

impl Program {
    /// The file's name, which is how results speak of the module.
    pub(crate) fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn new(file: PathBuf, form: String, draw: &str) -> Result<Self, String> {
        let metadata = std::fs::metadata(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let runnable = RUNNABLE_FORMS.contains(&form.as_str());
        Ok(Self { like: None, draw: draw.into(), runnable, nan_belongs: false, form, text_bytes: metadata.len(), file })
    }
}

/// The modules that the options select, smallest first.
pub(crate) fn read(options: &Options) -> Result<Vec<Program>, String> {
    let mut programs = read_folder(&options.corpus, options.only.as_deref())?;
    if options.quick {
        keep_quick(&mut programs);
    }
    Ok(programs)
}

/// The modules of a folder whose file name contains `only`, smallest first.
pub(crate) fn read_folder(corpus: &Path, only: Option<&str>) -> Result<Vec<Program>, String> {
    let path = corpus.join("manifest.json");
    let mut programs = if path.exists() {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let list: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let entries = list.as_array().ok_or_else(|| format!("{}: expected an array of modules", path.display()))?;
        entries.iter().map(|entry| from_manifest(corpus, entry)).collect::<Result<Vec<_>, _>>()?
    } else {
        from_headers(corpus)?
    };
    if let Some(part) = only {
        programs.retain(|p| p.name().contains(part));
    }
    programs.sort_by_key(|p| (p.text_bytes, p.name()));
    Ok(programs)
}

fn from_manifest(corpus: &Path, entry: &Value) -> Result<Program, String> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let file = text("file").ok_or_else(|| format!("{}: expected a `file` in every entry", corpus.display()))?;
    let form = text("form").ok_or_else(|| format!("{}: `{file}`: expected a `form`", corpus.display()))?;
    let mut program = Program::new(corpus.join(file), form.into(), text("draw").unwrap_or_default())?;
    program.like = match text("like") {
        Some(name) => Some(corpus.join(name)),
        None if form == "repl" => Some(partitioned_sibling(corpus, file)?),
        None => None,
    };
    Ok(program)
}

/// `m.spmd.hlo` or `m.hlo` of `m.repl.hlo`.
fn partitioned_sibling(corpus: &Path, file: &str) -> Result<PathBuf, String> {
    let candidates = [".spmd.hlo", ".hlo"].map(|end| corpus.join(file.replace(".repl.hlo", end)));
    let found = candidates.into_iter().find(|path| path.exists());
    found.ok_or_else(|| format!("{}: `{file}` has no partitioned sibling with the shardings", corpus.display()))
}

fn from_headers(folder: &Path) -> Result<Vec<Program>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut programs = Vec::new();
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.extension().is_none_or(|e| e != "hlo") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let header = |key: &str| {
            let lines = text.lines().take_while(|line| line.starts_with("//"));
            lines.filter_map(|line| line.trim_start_matches('/').trim().strip_prefix(key)).next().map(str::trim)
        };
        let parse_only = header("xla:").is_some_and(|rest| rest.starts_with("parse-only"));
        let form = if parse_only { "parse-only" } else { "spmd" };
        let program = Program::new(path.clone(), form.into(), header("draw:").unwrap_or_default())?;
        programs.push(Program { nan_belongs: true, ..program });
    }
    Ok(programs)
}

/// Keeps the small partitioned modules, and the smallest of each other form.
fn keep_quick(programs: &mut Vec<Program>) {
    let mut forms: Vec<String> = Vec::new();
    programs.retain(|p| {
        if p.form == "spmd" {
            return p.text_bytes <= QUICK_BYTES;
        }
        let first = !forms.contains(&p.form);
        forms.push(p.form.clone());
        first
    });
}
