//! `cargo xtask proto-check`: HloModuleProtos that we read and write, judged by jaxlib (`oracle/proto_check.py`).
//!
//! For each module: our text of jaxlib's proto, and our proto of the text, must mean to jaxlib what its own proto of the text
//! means. And the table of messages and fields must be that of the descriptor inside jaxlib. jaxlib from 0.11 on needs Python 3.12;
//! where none is found, that version is left out, which is said.

use hlo_ir::print::print_module;
use hlo_proto::table::{Kind, Label, Message, enums, messages};
use hlo_proto::{Kept, read, write};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// Versions of jaxlib, and the least minor version of Python 3 that each runs on.
const VERSIONS: [(&str, u32); 2] = [("0.10.2", 11), ("0.12.0.1", 12)];

/// Folders of samples.
const FOLDERS: [&str; 3] = ["ir-samples/ops", "ir-samples/programs", "ir-samples/dumps"];

/// Fields of older versions, which no descriptor of these has.
const OLDER: [(&str, &str); 1] = [("CollectiveDeviceListProto", "iota_replica_group_list")];

/// Runs the check: false if something differs.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| workspace::root().join(folder)).collect();
    let mut only: Vec<String> = Vec::new();
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--corpus" => folders.push(arguments.value(&flag)?.into()),
            Word::Flag(flag) if flag == "--only" => only.push(arguments.value(&flag)?),
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("proto-check", &word)),
        }
    }
    let mut files = Vec::new();
    folders.iter().try_for_each(|folder| collect(folder, &mut files))?;
    files.retain(|file| only.is_empty() || only.iter().any(|part| file.to_string_lossy().contains(part.as_str())));
    files.sort();
    let mut is_fine = true;
    for (version, minor) in VERSIONS {
        match python::with_jax(version, minor)? {
            Some(python) => is_fine &= check(version, &python, &files)?,
            None => println!("jaxlib {version}: skipped, it needs Python 3.{minor} or newer and none was found"),
        }
    }
    Ok(is_fine)
}

/// The HLO texts below a folder; dumps are called `.txt`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "hlo" || ext == "txt") {
            files.push(path);
        }
    }
    Ok(())
}

fn check(version: &str, python: &Path, files: &[PathBuf]) -> Result<bool, String> {
    let folder = workspace::target_dir().join("proto-check").join(version);
    // What an earlier run left may be of other files.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let script = |half: &str| {
        let mut command = Command::new(python);
        command.arg("-B").arg(python::oracle_dir().join("proto_check.py")).arg(half).arg(&folder).args(files);
        // jaxlib logs what it refuses.
        let status = command.env("TF_CPP_MIN_LOG_LEVEL", "3").status();
        Ok::<bool, String>(status.map_err(|e| format!("{}: {e}", python.display()))?.success())
    };
    if !script("write")? {
        return Err(format!("jaxlib {version} could not read the samples"));
    }
    let findings = compare_table(&folder)?;
    findings.iter().for_each(|finding| println!("table, jaxlib {version}: {finding}"));
    println!("table: {} messages held against jaxlib {version}, {} differences", messages().count(), findings.len());
    let mut is_fine = findings.is_empty();
    for (i, file) in files.iter().enumerate() {
        if let Err(error) = convert(file, &folder, i) {
            println!("{}: {error}", file.display());
            is_fine = false;
        }
    }
    Ok(script("compare")? && is_fine)
}

/// Makes our text of jaxlib's proto of a file, and our proto of the file, if jaxlib reads it.
fn convert(file: &Path, folder: &Path, i: usize) -> Result<(), String> {
    let Ok(proto) = fs::read(folder.join(format!("{i}.jax.pb"))) else { return Ok(()) };
    let failed = |e: std::io::Error| e.to_string();
    let text = fs::read(file).map_err(failed)?;
    let ours = read(&proto).map_err(|diag| diag.message)?;
    fs::write(folder.join(format!("{i}.our.hlo")), print_module(&ours.module, &Default::default())).map_err(failed)?;
    let parsed =
        hlo_text::parse_bytes(&text).map_err(|diags| diags.first().map_or("".into(), |d| d.message.clone()))?;
    fs::write(folder.join(format!("{i}.our.pb")), write(&parsed.module, &Kept::default()).bytes).map_err(failed)
}

/// What differs between our table and that of jaxlib. Messages of ours may have fields that a version lacks, but no others.
fn compare_table(folder: &Path) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(folder.join("table.json")).map_err(|e| e.to_string())?;
    let table: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let mut findings = Vec::new();
    for message in messages() {
        let Some(rows) = table["messages"][message.name].as_array() else { continue };
        rows.iter().for_each(|row| findings.extend(compare_row(message, row)));
    }
    for own in enums() {
        let Some(values) = table["enums"][own.name].as_object() else { continue };
        for (name, number) in values {
            let found = own.values.iter().find(|(_, own)| own == name).map(|(number, _)| i64::from(*number));
            if found != number.as_i64() {
                findings.push(format!("{}.{name}: expected {number}, found {found:?}", own.name));
            }
        }
    }
    Ok(findings)
}

fn compare_row(message: &Message, row: &Value) -> Option<String> {
    let (name, number) = (row[0].as_str()?, row[1].as_u64()?);
    let place = format!("{}.{name}", message.name);
    let Some(field) = message.field(number as u32) else {
        return Some(format!("{place}: expected field {number}, found none"));
    };
    let kind = match field.kind {
        Kind::Int64 => "Int64",
        Kind::Int32 => "Int32",
        Kind::Uint64 => "Uint64",
        Kind::Uint32 => "Uint32",
        Kind::Bool => "Bool",
        Kind::Float => "Float",
        Kind::Double => "Double",
        Kind::Text => "Text",
        Kind::Bytes => "Bytes",
        Kind::Enum(of) => of.name,
        Kind::Message(of) => of().name,
    };
    let is_older = OLDER.contains(&(message.name, field.name()));
    let is_same = field.name() == name && Some(kind) == row[2].as_str();
    let is_many = Some(field.label == Label::Many) == row[3].as_bool();
    (!(is_older || is_same && is_many)).then(|| format!("{place}: expected {row}, found {} {kind}", field.name()))
}
