//! What the README shows is what the tool does.

use hlo_opt::console::Console;
use hlo_tests::{root, samples};
use std::ffi::OsString;

/// The fenced block that follows a line with `marker`.
fn block<'t>(readme: &'t str, marker: &str) -> &'t str {
    let after = readme.split_once(marker).unwrap_or_else(|| panic!("expected `{marker}` in the README")).1;
    let inside = after.split_once("```text\n").expect("a block after the marker").1;
    inside.split_once("```").expect("the end of the block").0
}

/// The instructions of the entry computation, without what every line has in common.
fn entry(text: &str) -> String {
    let from = text.find("ENTRY").expect("an entry computation");
    text[from..].trim_end().to_string() + "\n"
}

#[test]
fn before_and_after_are_what_the_tool_prints() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let sgd = samples("passes/shard-weight-update").into_iter().find(|s| s.name() == "sgd").expect("the sample");
    let path = sgd.path.display().to_string();
    let print = |args: &[&str]| {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut console = Console {
            stdin: &mut std::io::empty(),
            stdout: &mut stdout,
            stderr: &mut stderr,
            shows_progress: false,
            has_color: false,
        };
        let args = ["hlo-opt"].iter().chain(args).map(OsString::from);
        assert_eq!(hlo_opt::run(args, &mut console), 0, "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("UTF-8 text")
    };
    assert_eq!(block(&readme, "<!-- before -->"), entry(&print(&[&path])));
    let pipeline = "shard-weight-update{min-bytes=0}";
    assert!(readme.contains(&format!("--pass '{pipeline}'")), "the README names the pipeline");
    assert_eq!(block(&readme, "<!-- after -->"), entry(&print(&["--pass", pipeline, &path])));
}
