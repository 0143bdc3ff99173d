//! The samples in `ir-samples`: where they are and what their header lines say; random modules, shardings, manual regions and training steps; and what
//! is held against the bytes of a fuzzer; and a reader of problems that the search of plans writes down.

pub mod certificate;
pub mod dumped_problem;
pub mod equal_rewrites;
pub mod fuzzing;
pub mod large_step;
pub mod random_convolutions;
pub mod random_module;
pub mod random_region;
pub mod random_search;
pub mod random_sharding;
pub mod random_strategies;
pub mod training_step;
pub mod unequal_layouts;
pub mod unity_ref;

use std::fs;
use std::path::{Path, PathBuf};

/// One sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Where it is.
    pub path: PathBuf,
    /// The whole text, header lines included.
    pub text: String,
}

impl Sample {
    /// Its file name without `.hlo`.
    pub fn name(&self) -> &str {
        self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
    }

    /// The text after the header lines.
    pub fn body(&self) -> &str {
        let mut rest = self.text.as_str();
        while rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        }
        rest
    }

    /// The value of the header line `// key: value`.
    pub fn header(&self, key: &str) -> Option<&str> {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("//"));
        lines.filter_map(|line| line.trim().split_once(':')).find(|(k, _)| *k == key).map(|(_, value)| value.trim())
    }

    /// The text of a file beside the sample with another extension, e.g. `long.expected`.
    pub fn beside(&self, extension: &str) -> Option<String> {
        fs::read_to_string(self.path.with_extension(extension)).ok()
    }
}

/// The folder `ir-samples`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ir-samples")
}

/// The samples of a folder below `ir-samples`, by path. Line ends are as in the file.
///
/// # Panics
/// The folder cannot be read or has no sample: a test over no samples would test nothing.
pub fn samples(folder: &str) -> Vec<Sample> {
    let dir = root().join(folder);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hlo"));
    paths.sort();
    assert!(!paths.is_empty(), "no samples in {}", dir.display());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Sample { path, text }
    };
    paths.into_iter().map(read).collect()
}

/// The first line in which two texts differ, both shown.
pub fn first_difference(found: &str, expected: &str) -> String {
    let (mut found_lines, mut expected_lines) = (found.lines(), expected.lines());
    for number in 1.. {
        let (f, e) = (found_lines.next(), expected_lines.next());
        if f != e {
            let (f, e) = (f.unwrap_or("the end"), e.unwrap_or("the end"));
            return format!("line {number}\n  expected {e}\n  found    {f}");
        }
        if f.is_none() {
            break;
        }
    }
    "only line ends differ".to_string()
}
