//! The options of `xla-check`.

use std::path::PathBuf;

use crate::arguments::{self, Arguments, Word};
use crate::workspace;

/// What to check, and how.
pub(crate) struct Options {
    /// Folder with the modules and their `manifest.json`.
    pub corpus: PathBuf,
    /// Only a small module of each model.
    pub quick: bool,
    /// Only modules whose file name contains this.
    pub only: Option<String>,
    /// Some of `text`, `eval`, `pass`.
    pub stages: Vec<String>,
    /// The pipeline of the `pass` stage.
    pub pipeline: Option<String>,
    /// Whether corrupted results must be detected.
    pub mutants: bool,
    /// Modules at a time.
    pub jobs: usize,
    /// Seconds that a module's process may take.
    pub timeout_s: u64,
    /// A built tool.
    pub tool: Option<PathBuf>,
    /// Check the weight-update sharding under every combination of its options.
    pub is_matrix: bool,
    /// Check collectives decomposed for several clusters.
    pub is_decompose: bool,
    /// Check global programs.
    pub is_global: bool,
    /// With `is_matrix` or `is_decompose`: only combinations whose name contains this.
    pub combination: Option<String>,
    /// With `is_matrix` or `is_decompose`: forget the results of earlier runs.
    pub is_fresh: bool,
}

const STAGES: [&str; 3] = ["text", "eval", "pass"];

impl Options {
    /// Reads the words after `xla-check`.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self {
            corpus: own_corpus(),
            quick: false,
            only: None,
            stages: STAGES.map(String::from).to_vec(),
            pipeline: None,
            mutants: false,
            jobs: (cores / 2).max(1),
            timeout_s: 900,
            tool: None,
            is_matrix: false,
            is_decompose: false,
            is_global: false,
            combination: None,
            is_fresh: false,
        };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            let flag = match word {
                Word::Flag(flag) => flag,
                Word::Plain(word) => return Err(arguments::unknown("xla-check", &word)),
            };
            match flag.as_str() {
                "--quick" => options.quick = true,
                "--mutants" => options.mutants = true,
                "--only" => options.only = Some(arguments.value(&flag)?),
                "--corpus" => options.corpus = arguments.value(&flag)?.into(),
                "--stages" => options.stages = read_stages(&arguments.value(&flag)?)?,
                "--pass" => options.pipeline = Some(arguments.value(&flag)?),
                "--jobs" => options.jobs = arguments.number(&flag)?,
                "--timeout" => options.timeout_s = arguments.number(&flag)? as u64,
                "--all" => options.is_matrix = true,
                "--decompose" => options.is_decompose = true,
                "--global" => options.is_global = true,
                "--combination" => options.combination = Some(arguments.value(&flag)?),
                "--fresh" => options.is_fresh = true,
                "--hlo-opt" => options.tool = Some(arguments.value(&flag)?.into()),
                _ => return Err(arguments::unknown("xla-check", &flag)),
            }
        }
        if options.mutants && options.pipeline.is_none() {
            return Err("--mutants: expected --pass PIPELINE, whose results are to be corrupted".into());
        }
        options.check_together()?;
        Ok(options)
    }

    /// Whether the modules are the samples.
    pub(crate) fn has_own_corpus(&self) -> bool {
        self.corpus == own_corpus()
    }

    /// Options that say nothing without another one, or against it.
    fn check_together(&self) -> Result<(), String> {
        if self.is_matrix && (self.pipeline.is_some() || self.mutants) {
            return Err("--all: it has its own pipelines and mutants, so leave --pass and --mutants out".into());
        }
        if self.is_decompose && (self.is_matrix || self.pipeline.is_some() || self.mutants) {
            return Err("--decompose: it has its own pipelines, so leave --all, --pass and --mutants out".into());
        }
        if self.is_global && (self.is_matrix || self.is_decompose || self.mutants || self.quick) {
            return Err("--global: it has its own cases, so leave --all, --decompose, --mutants and --quick out".into());
        }
        if self.combination.is_some() && !self.is_matrix && !self.is_decompose {
            return Err("--combination: expected --all or --decompose beside it".into());
        }
        if self.is_fresh && !self.is_matrix && !self.is_decompose {
            return Err("--fresh: expected --all or --decompose beside it".into());
        }
        Ok(())
    }
}

fn own_corpus() -> PathBuf {
    workspace::root().join("ir-samples/programs")
}

fn read_stages(list: &str) -> Result<Vec<String>, String> {
    let stages: Vec<String> = list.split(',').map(String::from).collect();
    match stages.iter().find(|s| !STAGES.contains(&s.as_str())) {
        Some(other) => Err(format!("--stages: expected some of text,eval,pass, found '{other}'")),
        None => Ok(stages),
    }
}
