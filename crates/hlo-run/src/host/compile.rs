//! Kernels as one C++ program, compiled once for each content.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

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

fn cache_folder() -> PathBuf {
    let home = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    home.unwrap_or_else(env::temp_dir).join("hlo-opt")
}

fn host_error(what: &str, error: impl std::fmt::Display) -> ExecutionError {
    ExecutionError::Host { what: what.to_string(), reason: error.to_string() }
}

/// The shared object of a program, compiled if it is not in the cache. `sanitizers` is a list as `-fsanitize` takes it.
pub(super) fn shared_object(program: &str, sanitizers: Option<&str>) -> Result<PathBuf, ExecutionError> {
    let compiler = env::var("CXX").ok().filter(|name| !name.trim().is_empty()).unwrap_or_else(|| "c++".to_string());
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_string()).collect();
    if let Some(list) = sanitizers {
        flags.insert(0, format!("-fsanitize={list}"));
        flags.insert(0, "-fno-sanitize-recover=all".to_string());
    }
    let stamp = format!("// {compiler} {}\n{program}", flags.join(" "));
    let folder = cache_folder();
    fs::create_dir_all(&folder).map_err(|e| host_error(&folder.display().to_string(), e))?;
    let base = format!("{:016x}", content_hash(&stamp));
    let (source, object) = (folder.join(format!("{base}.cpp")), folder.join(format!("{base}.so")));
    if is_whole(&object) && fs::read_to_string(&source).is_ok_and(|text| text == stamp) {
        return Ok(object);
    }
    // Other processes may do the same: each writes files of its own and renames them.
    let own = format!("{base}.{}.{:?}", std::process::id(), std::thread::current().id());
    let own: String = own.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
    let (own_source, own_object) = (folder.join(format!("{own}.cpp")), folder.join(format!("{own}.so")));
    fs::write(&own_source, &stamp).map_err(|e| host_error(&own_source.display().to_string(), e))?;
    let result = compile(&compiler, &flags, &own_source, &own_object);
    let result = result.and_then(|()| {
        fs::rename(&own_object, &object).map_err(|e| host_error(&object.display().to_string(), e))?;
        fs::rename(&own_source, &source).map_err(|e| host_error(&source.display().to_string(), e))
    });
    if result.is_err() {
        let _ = fs::remove_file(&own_source);
    }
    result.map(|()| object)
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
