//! The entry of the shared object, in processes of their own: it looks at the environment once.

use std::process::{Command, Output};

/// Set where this test is the child that calls the entry.
const CHILD: &str = "HLO_PJRT_TEST_CHILD";

fn child(variables: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "entry::the_entry_is_called", "--nocapture"]).env(CHILD, "1");
    for name in ["HLO_OPT", "HLO_OPT_PJRT_PLUGIN", "HLO_OPT_LOG", "HLO_OPT_STRICT", "HLO_OPT_PIPELINE"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().expect("the child runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// In a child: says whether the entry gives a table, twice the same.
#[test]
fn the_entry_is_called() {
    if std::env::var_os(CHILD).is_some() {
        let first = hlo_pjrt::GetPjrtApi();
        assert_eq!(hlo_pjrt::GetPjrtApi(), first);
        println!("\nentry: {}", if first.is_null() { "null" } else { "a table" });
    }
}

#[test]
fn without_a_plugin_it_is_null_and_one_sentence_says_why() {
    for (plugin, why) in [
        ("", "expected the plugin to wrap in HLO_OPT_PJRT_PLUGIN, found nothing"),
        ("no-such-plugin.so", "HLO_OPT_PJRT_PLUGIN=no-such-plugin.so: "),
        ("libc.so.6", "HLO_OPT_PJRT_PLUGIN=libc.so.6: expected a PJRT plugin, found no entry: "),
    ] {
        let (output, said) = child(&[("HLO_OPT_PJRT_PLUGIN", plugin)]);
        assert!(output.status.success(), "{said}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("entry: null"), "{plugin}");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("hlo-opt")).collect();
        let [line] = lines[..] else { panic!("expected one line, found {said}") };
        assert!(line.starts_with("hlo-opt: warning: no PJRT plugin: ") && line.contains(why), "{line}");
    }
}

#[test]
fn the_wrapper_does_not_wrap_itself() {
    // Cargo puts the shared object beside this program.
    let program = std::env::current_exe().expect("this program");
    let name = format!("{}hlo_pjrt{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = program.parent().expect("a build folder").join(name);
    assert!(library.exists(), "{}", library.display());
    // The copy in this program loads the shared object, which finds itself.
    let (output, said) = child(&[("HLO_OPT_PJRT_PLUGIN", library.to_str().expect("text"))]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("entry: null"), "{said}");
    assert!(said.contains("expected another plugin, found this one"), "{said}");
}

#[test]
fn a_real_plugin_is_wrapped() {
    let Some(plugin) = std::env::var_os("HLO_PJRT_TEST_PLUGIN") else {
        eprintln!("skipped: HLO_PJRT_TEST_PLUGIN names no plugin; `cargo xtask pjrt-check` installs one");
        return;
    };
    let plugin = plugin.to_str().expect("text");
    let (output, said) = child(&[("HLO_OPT_PJRT_PLUGIN", plugin), ("HLO_OPT_LOG", "loud")]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("entry: a table"), "{said}");
    assert!(said.contains("hlo-opt: warning: HLO_OPT_LOG: expected warning, change or all, found `loud`"), "{said}");
}
