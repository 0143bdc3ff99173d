//! The list of modules: `manifest.json` of a corpus folder, an array of objects.
//!
//! Read here: `file`; `name` (the model) and `form`; `instructions`; `draw` (a word for each flat ENTRY parameter);
//! optionally `like` (a sibling whose shardings hold here too; a `.repl` module's is its `.spmd` sibling).

use std::path::PathBuf;

use serde_json::Value;

use super::options::Options;

/// Forms that are partitioned and that the StableHLO route takes.
const RUNNABLE_FORMS: [&str; 3] = ["spmd", "spmd_gspmd", "repl"];

/// The most instructions of a module in the quick set.
const QUICK_INSTRUCTIONS: u64 = 700;

/// One module of the list.
pub struct Program {
    /// Where the text lies.
    pub file: PathBuf,
    /// The sibling that carries the shardings, if this module carries none.
    pub like: Option<PathBuf>,
    /// How inputs are drawn.
    pub draw: String,
    /// Whether real XLA can run it; if not, only its text is checked.
    pub runnable: bool,
    model: String,
    instructions: u64,
}

impl Program {
    /// The file's name, which is how results speak of the module.
    pub fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The modules that the options select, smallest first.
pub fn read(options: &Options) -> Result<Vec<Program>, String> {
    let path = options.corpus.join("manifest.json");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let list: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let entries = list.as_array().ok_or_else(|| format!("{}: expected an array of modules", path.display()))?;
    let mut programs = entries
        .iter()
        .map(|entry| read_program(options, entry))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    if let Some(part) = &options.only {
        programs.retain(|p| p.name().contains(part.as_str()));
    }
    programs.sort_by_key(|p| (p.instructions, p.name()));
    if options.quick {
        keep_quick(&mut programs);
    }
    Ok(programs)
}

fn read_program(options: &Options, entry: &Value) -> Result<Program, String> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let file = text("file").ok_or("expected a `file` in every entry")?;
    let form = text("form").map(String::from).unwrap_or_else(|| form_of(file));
    let sibling = (form == "repl").then(|| file.replace(".repl.", ".spmd."));
    let like = text("like").map(String::from).or(sibling).map(|name| options.corpus.join(name));
    let path = options.corpus.join(file);
    for needed in [Some(&path), like.as_ref()].into_iter().flatten() {
        if !needed.exists() {
            return Err(format!("`{file}` needs {}, which does not exist", needed.display()));
        }
    }
    Ok(Program {
        like,
        draw: text("draw").unwrap_or_default().into(),
        runnable: RUNNABLE_FORMS.contains(&form.as_str()),
        model: text("name").unwrap_or(file).into(),
        instructions: entry.get("instructions").and_then(Value::as_u64).unwrap_or(u64::MAX),
        file: path,
    })
}

/// The form in a name like `mlp_adam_8.spmd.hlo`; a plain `mlp_adam.hlo` is a partitioned module.
fn form_of(file: &str) -> String {
    let stem = file.strip_suffix(".hlo").unwrap_or(file);
    stem.rsplit_once('.').map_or("spmd", |(_, form)| form).into()
}

/// Keeps the smallest runnable module of every model, and one that is not runnable.
fn keep_quick(programs: &mut Vec<Program>) {
    let mut models: Vec<(String, bool)> = Vec::new();
    programs.retain(|p| {
        let key = if p.runnable { (p.model.clone(), true) } else { (String::new(), false) };
        let fresh = p.instructions <= QUICK_INSTRUCTIONS && !models.contains(&key);
        if fresh {
            models.push(key);
        }
        fresh
    });
}
