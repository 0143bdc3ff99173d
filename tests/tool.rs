//! `hlo-opt` as the tests call it: in this process, without a terminal.

use hlo_opt::console::Console;
use std::ffi::OsString;

/// The exit code of `hlo-opt` called with these words, and what it prints to stdout and stderr.
pub(crate) fn run<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> (u8, String, String) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut console = Console {
        stdin: &mut std::io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        shows_progress: false,
        has_color: false,
        stdin_is_terminal: true,
        stdout_is_terminal: false,
    };
    let words = std::iter::once(OsString::from("hlo-opt")).chain(words.into_iter().map(Into::into));
    let code = hlo_opt::run(words, &mut console);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8 text");
    (code, text(stdout), text(stderr))
}
