//! The sample: which of the mutants that `cargo mutants --list` finds are run.
//!
//! Each mutant has a key without line numbers, and the mutants of a part are taken in the order of a hash of seed and key.
//! So an edit elsewhere in a file, or a new test, leaves the sample as it is.

use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// A part of the sample: its name, and the sources it is drawn from.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) files: &'static [&'static str],
}

/// The parts. Op rules are what the op table names: shapes, factors, shards and costs of an op.
pub(super) const PARTS: [Part; 7] = [
    Part {
        name: "op rules (hlo-ir)",
        files: &[
            "crates/hlo-ir/src/op/",
            "crates/hlo-ir/src/infer/",
            "crates/hlo-ir/src/factors/",
            "crates/hlo-ir/src/localize/",
            "crates/hlo-ir/src/cost.rs",
            "crates/hlo-ir/src/collective.rs",
            "crates/hlo-ir/src/monoid.rs",
        ],
    },
    Part { name: "hlo-analysis", files: &["crates/hlo-analysis/src/"] },
    Part { name: "hlo-wus", files: &["crates/hlo-wus/src/"] },
    Part { name: "hlo-collectives", files: &["crates/hlo-collectives/src/"] },
    Part { name: "hlo-spmd", files: &["crates/hlo-spmd/src/"] },
    Part { name: "hlo-cluster", files: &["crates/hlo-cluster/src/"] },
    Part { name: "buffers (hlo-gpu)", files: &["crates/hlo-gpu/src/buffers/"] },
];

/// Mutants of a part at least, where it has so many.
const LEAST_OF_A_PART: usize = 40;

/// One change of the source.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// File, function and change; the same after an edit elsewhere.
    pub(super) key: String,
    /// Index of its part in [`PARTS`].
    pub(super) part: usize,
    /// From the root.
    pub(super) file: String,
    /// The kind of change, as `cargo mutants` names it.
    pub(super) genre: String,
    /// Bytes of the file that it replaces.
    pub(super) span: Range<usize>,
    /// What it puts there.
    pub(super) replacement: String,
}

/// All mutants of the parts, each part in the order in which it is drawn from.
pub(super) fn list(root: &Path, seed: u64) -> Result<Vec<Vec<Mutant>>, String> {
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json", "--dir"])
        .arg(root)
        .output()
        .map_err(|e| format!("cargo mutants: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo mutants --list: {}\n(cargo install cargo-mutants)",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo mutants --list: {e}"))?;
    let (mut parts, mut texts, mut keys) = (vec![Vec::new(); PARTS.len()], HashMap::new(), HashSet::new());
    for value in &found {
        let file = text(value, "/file")?;
        let Some(part) = PARTS.iter().position(|part| part.files.iter().any(|start| file.starts_with(start))) else {
            continue;
        };
        if is_prose(value) {
            continue;
        }
        if !texts.contains_key(file) {
            let source = std::fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
            texts.insert(file.to_string(), source);
        }
        parts[part].push(mutant(value, part, &texts[file], &mut keys)?);
    }
    for mutants in &mut parts {
        mutants.sort_by_cached_key(|mutant| (hash(seed, &mutant.key), mutant.key.clone()));
    }
    Ok(parts)
}

/// How many mutants of each part a sample of `count` has: in proportion to its size, but not too few.
pub(super) fn shares(sizes: &[usize], count: usize) -> Vec<usize> {
    let total: usize = sizes.iter().sum();
    sizes.iter().map(|&size| (count * size).div_ceil(total.max(1)).max(LEAST_OF_A_PART).min(size)).collect()
}

/// Whether the mutant changes only what is printed for people.
fn is_prose(value: &Value) -> bool {
    let function = value.pointer("/function/function_name").and_then(Value::as_str).unwrap_or("");
    ["impl Display", "impl fmt::Display", "impl Debug", "impl fmt::Debug"].iter().any(|name| function.contains(name))
}

fn mutant(value: &Value, part: usize, source: &str, keys: &mut HashSet<String>) -> Result<Mutant, String> {
    let file = text(value, "/file")?;
    let name = text(value, "/name")?;
    let change = name.strip_prefix(file).and_then(|rest| rest.splitn(4, ':').nth(3)).unwrap_or(name).trim();
    let key = (1..)
        .map(|n| if n == 1 { format!("{file}: {change}") } else { format!("{file}: {change} #{n}") })
        .find(|key| !keys.contains(key))
        .ok_or("no key")?;
    keys.insert(key.clone());
    let span = offset(value, "start", source)?..offset(value, "end", source)?;
    let (genre, replacement) = (text(value, "/genre")?.to_string(), text(value, "/replacement")?.to_string());
    Ok(Mutant { key, part, file: file.to_string(), genre, span, replacement })
}

/// The byte of a place that is given by line and column in characters, both from 1.
fn offset(value: &Value, end: &str, source: &str) -> Result<usize, String> {
    let number = |field: &str| {
        let path = format!("/span/{end}/{field}");
        value.pointer(&path).and_then(Value::as_u64).map(|n| n as usize).ok_or(format!("{path}: expected a number"))
    };
    let (line, column) = (number("line")?, number("column")?);
    let begin: usize = source.split_inclusive('\n').take(line - 1).map(str::len).sum();
    Ok(begin + source[begin..].chars().take(column - 1).map(char::len_utf8).sum::<usize>())
}

fn text<'a>(value: &'a Value, path: &str) -> Result<&'a str, String> {
    value.pointer(path).and_then(Value::as_str).ok_or_else(|| format!("{path}: expected text in {value}"))
}

/// FNV-1a, and the last step of SplitMix64.
fn hash(seed: u64, key: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = key.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_small_part_has_its_least_and_never_more_than_it_has() {
        assert_eq!(super::shares(&[1000, 100, 10], 111), [100, 40, 10]);
    }
}
