//! Kernels as one C++ program, compiled once for each content.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use super::cache::{Folder, KernelCache, is_own_file};
use crate::ExecutionError;
use hlo_gpu::kernel::{content_hash, prelude};
use hlo_gpu::plan::Kernel;

const SHIM: &str = include_str!("shim.h");

const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-x",
    "c++",
];

/// The C++ program of some kernels of different names.
pub(super) fn program<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> String {
    let mut text = format!("{SHIM}\n{}\n", prelude());
    for kernel in kernels {
        text.push_str(&kernel.source);
        text.push_str(&format!("HLO_HOST_KERNEL({}, {})\n\n", kernel.name, kernel.is_cooperative));
    }
    text
}

/// A compiled program. Its folder is kept as long as this value.
pub(super) struct SharedObject {
    /// The file to load.
    pub(super) path: PathBuf,
    _folder: Folder,
}

fn host_error(what: &str, error: impl std::fmt::Display) -> ExecutionError {
    ExecutionError::Host { what: what.to_string(), reason: error.to_string() }
}

/// The shared object of a program, compiled if it is not in the cache. `sanitizers` is a list as `-fsanitize` takes it.
pub(super) fn shared_object(
    program: &str,
    sanitizers: Option<&str>,
    cache: KernelCache,
) -> Result<SharedObject, ExecutionError> {
    let compiler = env::var("CXX").ok().filter(|name| !name.trim().is_empty()).unwrap_or_else(|| "c++".to_string());
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_string()).collect();
    if let Some(list) = sanitizers {
        flags.insert(0, format!("-fsanitize={list}"));
        flags.insert(0, "-fno-sanitize-recover=all".to_string());
    }
    let stamp = format!("// {compiler} {}\n{program}", flags.join(" "));
    let folder = Folder::find(cache).map_err(|e| host_error("folder of compiled kernels", e))?;
    let base = format!("{:016x}", content_hash(&stamp));
    let file = |name: String| folder.path.join(name);
    let (source, object) = (file(format!("{base}.cpp")), file(format!("{base}.so")));
    if is_kept(&source, &object, &stamp) {
        return Ok(SharedObject { path: object, _folder: folder });
    }
    // Other processes may do the same: each writes files of its own and renames them.
    let own = format!("{base}.{}.{:?}", std::process::id(), std::thread::current().id());
    let own: String = own.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
    let (own_source, own_object) = (file(format!("{own}.cpp")), file(format!("{own}.so")));
    fs::write(&own_source, &stamp).map_err(|e| host_error(&own_source.display().to_string(), e))?;
    let result = compile(&compiler, &flags, &own_source, &own_object).and_then(|()| {
        let failed = |path: &Path, e: io::Error| host_error(&path.display().to_string(), e);
        let bytes = fs::read(&own_object).map_err(|e| failed(&own_object, e))?;
        fs::write(&own_source, signed(&stamp, &bytes)).map_err(|e| failed(&own_source, e))?;
        fs::rename(&own_object, &object).map_err(|e| failed(&object, e))?;
        fs::rename(&own_source, &source).map_err(|e| failed(&source, e))
    });
    if result.is_err() {
        let _ = fs::remove_file(&own_source);
    }
    result.map(|()| SharedObject { path: object, _folder: folder })
}

/// The text beside an object: its source, and a hash of its bytes.
fn signed(stamp: &str, object: &[u8]) -> String {
    let hash = object
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{stamp}\n// object {} bytes, FNV-1a {hash:016x}\n", object.len())
}

/// Whether the files are this user's, and the object is what was compiled from this source.
fn is_kept(source: &Path, object: &Path, stamp: &str) -> bool {
    if !is_own_file(source) || !is_own_file(object) || !is_whole(object) {
        return false;
    }
    let Ok(bytes) = fs::read(object) else { return false };
    fs::read_to_string(source).is_ok_and(|text| text == signed(stamp, &bytes))
}

/// Whether a file is a shared object from its header to the table of sections at its end: one that was cut off (a full disk)
/// would end this process when it is loaded.
fn is_whole(object: &Path) -> bool {
    let mut head = [0u8; 64];
    let read = fs::File::open(object).and_then(|mut file| {
        file.read_exact(&mut head)?;
        file.metadata()
    });
    let Ok(metadata) = read else { return false };
    let number =
        |at: usize, n: usize| head[at..at + n].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let end = number(0x28, 8).saturating_add(number(0x3a, 2) * number(0x3c, 2));
    head.starts_with(b"\x7fELF") && metadata.len() >= end
}

fn compile(compiler: &str, flags: &[String], source: &Path, object: &Path) -> Result<(), ExecutionError> {
    // The variable may hold flags too, as make has it.
    let mut words = compiler.split_whitespace();
    let name = words.next().unwrap_or("c++");
    let output = Command::new(name).args(words).args(flags).arg(source).arg("-o").arg(object).output();
    let output = output.map_err(|e| {
        host_error(
            "C++ compiler",
            format!("expected one to run kernels on the host; `{name}` (set CXX to another): {e}"),
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let first: Vec<&str> = messages.lines().filter(|line| line.contains("error")).take(5).collect();
    let why = if first.is_empty() { format!("it ended with {}", output.status) } else { first.join("; ") };
    Err(host_error(&format!("`{name}` cannot compile the kernels"), why))
}

#[cfg(test)]
mod tests {
    use super::is_whole;

    #[test]
    fn a_file_that_was_cut_off_is_seen() {
        let whole = std::env::current_exe().unwrap();
        assert!(is_whole(&whole));
        let bytes = std::fs::read(&whole).unwrap();
        let cut = std::env::temp_dir().join(format!("hlo-gpu-cut-{}", std::process::id()));
        for n in [0, 40, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&cut, &bytes[..n]).unwrap();
            assert!(!is_whole(&cut), "{n} of {} bytes", bytes.len());
        }
        std::fs::remove_file(&cut).unwrap();
        assert!(!is_whole(&cut));
    }
}
