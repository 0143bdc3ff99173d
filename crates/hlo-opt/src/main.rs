//! The `hlo-opt` program; everything it does is in the library.

use hlo_opt::console::Console;
use hlo_pass::STACK_BYTES;
use mimalloc::MiMalloc;
use std::io::IsTerminal;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    hlo_opt::complete_for_shell();
    hlo_opt::output::remove_files_on_signals();
    hlo_opt::output::remove_files_on_panics();
    let worker = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(|| {
        let (mut stdin, mut stdout, mut stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let (is_terminal, stdout_is_terminal) = (stderr.is_terminal(), stdout.is_terminal());
        let stdin_is_terminal = stdin.is_terminal();
        let mut console = Console {
            stdin: &mut stdin,
            stdout: &mut stdout,
            stderr: &mut stderr,
            shows_progress: is_terminal,
            stdin_is_terminal,
            stdout_is_terminal,
            has_color: is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        hlo_opt::run(std::env::args_os(), &mut console)
    });
    match worker.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(_)) | Err(_) => ExitCode::from(hlo_opt::exit::ERROR),
    }
}
