//! The command line inside of another process: streams in memory, and a thread with a stack of our own size.

use hlo_opt::console::Console;
use hlo_pass::STACK_BYTES;
use std::ffi::OsString;

/// What a call of the command line printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Printed {
    /// The exit code: see [`hlo_opt::exit`].
    pub code: u8,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// Runs the command line with these arguments (without the program's name) on what stands on stdin.
///
/// # Errors
/// No thread could be started, or it panicked: what the panic said.
pub fn run(args: Vec<OsString>, stdin: &[u8]) -> Result<Printed, String> {
    on_own_stack(move || {
        let (mut stdin, mut stdout, mut stderr) = (stdin, Vec::new(), Vec::new());
        let mut console = Console {
            stdin: &mut stdin,
            stdin_is_terminal: false,
            stdout: &mut stdout,
            stdout_is_terminal: false,
            stderr: &mut stderr,
            shows_progress: false,
            has_color: false,
        };
        let code = hlo_opt::run(std::iter::once("hlo-opt".into()).chain(args), &mut console);
        Printed { code, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    })
}

/// Does some work on a thread whose stack is large enough for deeply nested modules.
///
/// # Errors
/// As [`run`].
pub fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread could be started: {error}"))?;
        thread.join().map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            format!("internal error: {}", text.unwrap_or_default())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "HloModule m\n\nENTRY %e (a: f32[2]) -> f32[2] {\n  ROOT %a = f32[2]{0} parameter(0)\n}\n";

    #[test]
    fn what_stands_on_stdin_is_read() {
        let printed = run(vec!["--verify-only".into()], MODULE.as_bytes());
        assert_eq!(printed, Ok(Printed { code: 0, stdout: Vec::new(), stderr: String::new() }));
        let printed = run(Vec::new(), MODULE.as_bytes()).expect("no panic");
        assert!(printed.stdout.starts_with(b"HloModule m"), "{printed:?}");
        let wrong = run(vec!["--verify-only".into()], b"HloModule").expect("no panic");
        assert_eq!(wrong.code, 1, "{wrong:?}");
        assert!(wrong.stderr.contains("expected"), "{wrong:?}");
    }

    #[test]
    fn a_panic_is_an_error() {
        let outcome: Result<(), String> = on_own_stack(|| panic!("the {} fell", "tree"));
        assert_eq!(outcome, Err("internal error: the tree fell".into()));
    }
}
