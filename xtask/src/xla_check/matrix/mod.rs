//! `xla-check --all`: weight-update sharding of every per-device module under every combination of its options.
//!
//! A module's untouched results on real XLA are computed once and kept beside the results. Every combination then has a
//! process of its own (`oracle/matrix_case.py`): the evaluator and real XLA run the transformed module to the untouched
//! module's results, corrupted results are seen, and a second run of the passes changes nothing. What came to an end is
//! kept under a hash of the module, the tool, the judge and the combination, so that a later run goes on where this one
//! stopped; what died or ran out of time is tried again. Another tool, or another combination, that emits the same text in
//! the first run and in the second, with the same evaluator and the same corruptions, keeps the results too: nothing that
//! they rest on differs.

mod combination;
mod emitted;
mod summary;

use std::path::PathBuf;

use serde_json::{Value, json};

use super::content_hash::ContentHash;
use super::evaluator_sources;
use super::kept::Kept;
use super::manifest::Program;
use super::table::{CaseResult, Status};
use super::worker::{Job, Session};
use crate::{python, workspace};
use combination::{Combination, NotRun};

/// The files that judge.
const JUDGES: [&str; 8] = [
    "check_case.py",
    "compare.py",
    "hlo_oracle.py",
    "hlo_text.py",
    "matrix_case.py",
    "mutants.py",
    "requirements.txt",
    "variadic.py",
];

/// Results of one module under one combination, or of the untouched module.
pub(super) struct Row {
    module: String,
    /// The combination's name, or `original`.
    combination: String,
    results: Vec<CaseResult>,
    /// Whether the results come from an earlier run.
    is_kept: bool,
}

/// Runs the matrix; false if a case failed.
pub(super) fn run(session: &Session<'_>, programs: &[Program]) -> Result<bool, String> {
    let corpus = session.options.corpus.file_name().unwrap_or_default();
    let folder = workspace::target_dir().join("xla-check").join(corpus).join("matrix");
    let mut matrix = Matrix {
        session,
        judge: hash_files(JUDGES.iter().map(|name| python::oracle_dir().join(name)))?,
        tool: ContentHash::new().add_file(&session.tool)?.digits(),
        evaluator: evaluator_sources::digits()?,
        kept: Kept::open(&folder.join("results.jsonl"), session.options.is_fresh)?,
        folder,
        rows: Vec::new(),
        not_run: Vec::new(),
    };
    for (index, program) in programs.iter().enumerate() {
        matrix.check(program, &format!("[{}/{}]", index + 1, programs.len()))?;
    }
    print!("{}", summary::render(&matrix.rows, &matrix.not_run));
    let is_fine = |row: &Row| row.results.iter().all(|r| r.status != Status::Failed);
    let n_passed = matrix.rows.iter().flat_map(|r| &r.results).filter(|r| r.status == Status::Passed).count();
    Ok(n_passed > 0 && matrix.rows.iter().all(is_fine))
}

/// A run over all modules.
struct Matrix<'s> {
    session: &'s Session<'s>,
    judge: String,
    tool: String,
    evaluator: String,
    folder: PathBuf,
    kept: Kept,
    rows: Vec<Row>,
    not_run: Vec<NotRun>,
}

impl Matrix<'_> {
    /// The untouched module, then every combination.
    fn check(&mut self, program: &Program, progress: &str) -> Result<(), String> {
        let text = std::fs::read_to_string(&program.file).map_err(|e| format!("{}: {e}", program.file.display()))?;
        let like = program.like.as_ref().map_or(Ok(Vec::new()), std::fs::read);
        let like = like.map_err(|e| format!("{}: the sibling: {e}", program.name()))?;
        let source = [text.as_bytes(), &like, program.draw.as_bytes(), self.judge.as_bytes()];
        let source = source.iter().fold(ContentHash::new(), |hash, part| hash.add(part)).digits();
        let (mut combinations, not_run) = combination::of_module(&text);
        let wanted = &self.session.options.combination;
        combinations.extend(combination::forms(&self.session.tool, program, &text, wanted.is_some())?);
        let is_wanted = |name: &str| wanted.as_ref().is_none_or(|part| name.contains(part));
        let combinations: Vec<Combination> = combinations.into_iter().filter(|c| is_wanted(&c.name)).collect();
        let not_run = not_run.into_iter().filter(|(name, _)| is_wanted(name));
        self.not_run.extend(not_run.map(|(combination, reason)| NotRun {
            module: program.name(),
            combination,
            reason,
        }));
        self.one(program, &source, None, progress)?;
        if self.has_reference(program, &source) {
            for combination in &combinations {
                self.one(program, &source, Some(combination), progress)?;
            }
        } else {
            let reason = "the untouched module has no results to compare with";
            self.not_run.extend(combinations.into_iter().map(|c| NotRun {
                module: program.name(),
                combination: c.name,
                reason: reason.into(),
            }));
        }
        Ok(())
    }

    /// Whether the untouched module's results lie there and are this module's.
    fn has_reference(&self, program: &Program, source: &str) -> bool {
        let file = self.folder.join(program.name()).join("reference/reference.json");
        let kept = std::fs::read_to_string(file).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        kept.is_some_and(|kept| kept.get("key").and_then(Value::as_str) == Some(source))
    }

    /// Adds one row, run or kept.
    fn one(
        &mut self,
        program: &Program,
        source: &str,
        combination: Option<&Combination>,
        progress: &str,
    ) -> Result<(), String> {
        let name = combination.map_or("original", |c| &c.name);
        let (module, folder) = (program.name(), self.folder.join(program.name()));
        let described = combination.map_or(Value::Null, Combination::as_json);
        let key = digits(&[source, &self.tool, &described.to_string()]);
        let reference = folder.join("reference");
        let mut kept = self.kept.get(&module, &key).filter(|_| self.has_reference(program, source));
        let mut is_kept = kept.is_some();
        if kept.is_none() {
            std::fs::create_dir_all(&reference).map_err(|e| format!("{}: {e}", reference.display()))?;
            let work = folder.join(name.replace('/', "-"));
            let mut config = self.session.config(program, &work);
            config["pipeline"] = json!(combination.map(|c| &c.pipeline));
            config["combination"] = described.clone();
            config["reference"] = json!({"folder": reference, "key": source});
            let job = Job { module: module.clone(), script: "matrix_case.py", config, work };
            let emitted = match combination {
                Some(_) => emitted::digest(self.session, &job)?,
                None => Some("untouched".into()),
            };
            let key_by_text = |judged: Option<Value>| {
                let judged = judged.map_or(String::new(), |judged| judged.to_string());
                emitted.as_ref().map(|e| digits(&[source, &self.evaluator, &judged, e]))
            };
            let by_text = key_by_text(combination.map(Combination::judged));
            let by_full = key_by_text(combination.map(Combination::judged_fully));
            let mut known = by_text.iter().chain(&by_full).filter_map(|key| self.kept.get(&module, key));
            kept = known.next().filter(|_| self.has_reference(program, source));
            is_kept = kept.is_some();
            let is_whole = match kept {
                Some(_) => true,
                None => {
                    let (results, is_whole) = self.session.check(&job);
                    kept = Some(results);
                    is_whole
                }
            };
            for key in by_text.iter().chain([&key]).filter(|_| is_whole) {
                self.kept.add(&module, name, key, kept.as_deref().unwrap_or_default())?;
            }
        }
        let results = kept.unwrap_or_default();
        let row = Row { module, combination: name.into(), results, is_kept };
        eprintln!("{progress} {}", summary::line(&row));
        self.rows.push(row);
        Ok(())
    }
}

fn digits(parts: &[&str]) -> String {
    parts.iter().fold(ContentHash::new(), |hash, part| hash.add(part.as_bytes())).digits()
}

fn hash_files(files: impl Iterator<Item = PathBuf>) -> Result<String, String> {
    let mut hash = ContentHash::new();
    for file in files {
        hash = hash.add_file(&file)?;
    }
    Ok(hash.digits())
}
