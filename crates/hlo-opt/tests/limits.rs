//! What is too large, too long, too much or interrupted: a clear error, and nothing left behind.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(name).to_string_lossy().into_owned()
}

fn tool(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hlo-opt"));
    command.args(args);
    command
}

/// Runs the tool on a module of stdin.
fn run(args: &[&str], module: &str) -> Output {
    let mut child =
        tool(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool runs");
    child.stdin.take().expect("a pipe").write_all(module.as_bytes()).expect("the tool reads");
    child.wait_with_output().expect("the tool ends")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder of its own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("hlo-opt-limits-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        Folder(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_without_the_memory_says_what_it_asks_and_what_there_is() {
    let iota =
        "HloModule m\nENTRY %e () -> f32[100000000000] {\n  ROOT %i = f32[100000000000] iota(), iota_dimension=0\n}\n";
    let output = run(&["run", "--backend", "host", "-"], iota);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let expected = "memory: 400000000000 bytes are asked for each of 1 devices of this process, and ";
    assert!(said(&output).contains(expected), "{}", said(&output));
}

#[test]
fn passes_end_with_their_time() {
    let module = sample("programs/mlp_adam.hlo");
    let too_short =
        ["--preset=data-parallel", "--preset=sharded-state", "--pass=cse,dce", "--pass=shard-weight-update"];
    for what in too_short {
        let folder = Folder::new("timeout");
        let written = folder.file("out.hlo");
        let output =
            tool(&[what, "--timeout", "0.000001", "-q", "-o", &written, &module]).output().expect("the tool runs");
        assert_eq!(output.status.code(), Some(1), "{what}: {}", said(&output));
        assert!(said(&output).contains(": stopped after 0."), "{what}: {}", said(&output));
        assert!(
            said(&output).contains(" s, limit 0.000001 s; the module stays as it was"),
            "{what}: {}",
            said(&output)
        );
        assert!(!Path::new(&written).exists(), "{what}");
    }
    let output = tool(&["--pass=cse,dce", "--timeout", "600", "-q", &module]).output().expect("the tool runs");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    for wrong in ["0", "-1", "soon", "1e400"] {
        let output = tool(&["--pass=cse", &format!("--timeout={wrong}"), &module]).output().expect("the tool runs");
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", said(&output));
        assert!(said(&output).contains("expected a positive number of seconds"), "{wrong}: {}", said(&output));
    }
}

#[test]
fn ranks_that_no_device_is_for_are_refused_before_anybody_waits() {
    for ranks in ["4294967295", "16", "9"] {
        let module = sample("programs/mlp_sgd.repl.hlo");
        let args =
            ["run", "--backend", "host", "--rank", "0", "--ranks", ranks, "--coordinator", "127.0.0.1:1", &module];
        let output = tool(&args).output().expect("the tool runs");
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("expected at most one rank for each of 8 devices, found "), "{}", said(&output));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_no_temporary_file() {
    let folder = Folder::new("signals");
    let module = folder.file("iota.hlo");
    let large = "HloModule m\nENTRY %e () -> f32[33554432] {\n  ROOT %i = f32[33554432] iota(), iota_dimension=0\n}\n";
    std::fs::write(&module, large).expect("a file");
    let others = || {
        let names = std::fs::read_dir(&folder.0).expect("the folder").map(|e| e.expect("an entry").file_name());
        names.filter(|name| name != "iota.hlo" && name != "o.npz").collect::<Vec<_>>()
    };
    let mut n_interrupted = 0;
    for signal in ["-TERM", "-INT", "-HUP"] {
        let mut child = tool(&["eval", &module, "-o", &folder.file("o.npz")]).spawn().expect("the tool runs");
        // While it writes there is a temporary file.
        while others().is_empty() && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
        n_interrupted += u32::from(child.wait().expect("it ends").code().is_none());
        assert_eq!(others(), Vec::<std::ffi::OsString>::new(), "{signal}");
    }
    assert!(n_interrupted > 0, "no run was interrupted: nothing was tested");
}

#[test]
fn an_evaluation_ends_at_its_bounds() {
    let endless = "HloModule m\n%c (s: s32[]) -> pred[] {\n  %s = s32[] parameter(0)\n  %k = s32[] constant(2000000000)\n  ROOT %l = \
                   pred[] compare(%s, %k), direction=LT\n}\n%b (t: s32[]) -> s32[] {\n  %t = s32[] parameter(0)\n  %o = s32[] \
                   constant(1)\n  ROOT %u = s32[] add(%t, %o)\n}\nENTRY %e () -> s32[] {\n  %z = s32[] constant(0)\n  ROOT %w = \
                   s32[] while(%z), condition=%c, body=%b\n}\n";
    let output = run(&["eval", "-", "--max-steps", "1000"], endless);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("more than 1000 instructions executed (--max-steps allows more)"),
        "{}",
        said(&output)
    );
    let output = run(&["eval", "-", "--timeout", "1"], endless);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("time is up after "), "{}", said(&output));
}

#[cfg(unix)]
#[test]
fn endless_input_is_refused_and_a_report_that_cannot_be_written_is_an_error() {
    let output = tool(&["/dev/zero"]).output().expect("the tool runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot read `/dev/zero`: expected at most 2147483648 bytes"), "{}", said(&output));
    if !Path::new("/dev/full").exists() {
        return;
    }
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let module = sample("programs/mlp_sgd.hlo");
    let status = tool(&["--pass", "dce", "--report", "text", &module, "-o", "/dev/null"]).stderr(full).status();
    assert_eq!(status.expect("the tool runs").code(), Some(1));
}

#[test]
fn arrays_and_words_that_nobody_takes_are_refused() {
    let folder = Folder::new("arrays");
    let add = "HloModule m\nENTRY %e (a: f32[2], b: f32[2]) -> f32[2] {\n  %a = f32[2] parameter(0)\n  %b = f32[2] parameter(1)\n  \
               ROOT %c = f32[2] add(%a, %b)\n}\n";
    let both = folder.file("both.npz");
    assert_eq!(run(&["eval", "-", "-o", &both, "--save-inputs"], add).status.code(), Some(0));
    assert_eq!(
        run(&["eval", "-", "--inputs", &both], add).status.code(),
        Some(0),
        "outputs beside inputs are no matter"
    );
    let negate =
        "HloModule m\nENTRY %e (a: f32[2]) -> f32[2] {\n  %a = f32[2] parameter(0)\n  ROOT %c = f32[2] negate(%a)\n}\n";
    let output = run(&["eval", "-", "--inputs", &both], negate);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("expected the arrays in0_d0 to in0_d0 alone, found `in1_d0`"), "{}", said(&output));
    let output = run(&["eval", "-", "--draw", "n1 n1"], negate);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("at most 1 words to draw by, one for each entry leaf, found 2"),
        "{}",
        said(&output)
    );
}

#[test]
fn calls_that_double_at_each_level_are_left_where_the_module_would_grow_too_large() {
    let mut text =
        "HloModule m\n%c0 (p: f32[]) -> f32[] {\n  %p0 = f32[] parameter(0)\n  ROOT %n0 = f32[] negate(%p0)\n}\n"
            .to_string();
    for i in 1..25 {
        let callee = i - 1;
        text += &format!(
            "%c{i} (p: f32[]) -> f32[] {{\n  %p{i} = f32[] parameter(0)\n  %a{i} = f32[] call(%p{i}), to_apply=%c{callee}\n  ROOT %r{i} = \
             f32[] call(%a{i}), to_apply=%c{callee}\n}}\n"
        );
    }
    text += "ENTRY %e (x: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  ROOT %r = f32[] call(%x), to_apply=%c24\n}\n";
    let output = run(&["--pass", "inline-calls", "-", "--report", "text"], &text);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(output.stdout.len() < 10 << 20, "{} bytes", output.stdout.len());
    assert!(said(&output).contains("call"), "{}", said(&output));
}

/// The outputs of a small module on the host, with these variables of the environment and no other folders.
#[cfg(unix)]
fn run_on_host(folder: &Folder, variables: &[(&str, &str)], more: &[&str]) -> String {
    let module = folder.file("module.hlo");
    let text =
        "HloModule m\nENTRY %e (a: f32[5]) -> f32[5] {\n  %a = f32[5] parameter(0)\n  ROOT %c = f32[5] negate(%a)\n}\n";
    std::fs::write(&module, text).expect("a file");
    let args = [&["run", "--backend", "host", &module], more].concat();
    let mut command = tool(&args);
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME").envs(variables.iter().copied());
    let output = command.output().expect("the tool runs");
    assert_eq!(output.status.code(), Some(0), "{variables:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(unix)]
fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).map(|entries| {
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    });
    let mut names = entries.unwrap_or_default();
    names.sort();
    names
}

#[cfg(unix)]
#[test]
fn compiled_kernels_are_kept_in_a_folder_of_the_user_alone_and_heal() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("cache");
    let cache = folder.file("cache");
    let kept = folder.file("cache/hlo-opt");
    let first = run_on_host(&folder, &[("XDG_CACHE_HOME", &cache)], &[]);
    let files = names(&kept);
    assert!(files.len() == 2 && files[0].ends_with(".cpp") && files[1].ends_with(".so"), "{files:?}");
    let mode = std::fs::metadata(&kept).expect("the cache").permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    let object = format!("{kept}/{}", files[1]);
    let compiled = std::fs::read(&object).expect("the object");
    // Another program under the object's name, whole as a file; then one that was cut off.
    for foreign in [std::fs::read(env!("CARGO_BIN_EXE_hlo-opt")).expect("a program"), compiled[..100].to_vec()] {
        std::fs::remove_file(&object).expect("the object");
        std::fs::write(&object, &foreign).expect("a file");
        assert_eq!(run_on_host(&folder, &[("XDG_CACHE_HOME", &cache)], &[]), first);
        // Its size may be another one: the compiler notes the name of the source, in which the number of the process stands.
        let found = std::fs::read(&object).expect("the object");
        assert!(found != foreign && found[..4] == compiled[..4], "it is compiled anew");
    }
    // What others can write to is not used.
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o777)).expect("the owner may");
    std::fs::write(&object, b"not loaded").expect("a file");
    assert_eq!(run_on_host(&folder, &[("XDG_CACHE_HOME", &cache)], &[]), first);
    assert_eq!(std::fs::read(&object).expect("the object"), b"not loaded");
}

#[cfg(unix)]
#[test]
fn without_a_folder_of_the_user_nothing_is_kept() {
    let folder = Folder::new("no-cache");
    let (temporary, home) = (folder.file("tmp"), folder.file("home"));
    std::fs::create_dir_all(&temporary).expect("a folder");
    std::fs::create_dir_all(&home).expect("a folder");
    let outputs = [
        run_on_host(&folder, &[("TMPDIR", &temporary)], &[]),
        run_on_host(&folder, &[("TMPDIR", &temporary), ("HOME", "/dev/null"), ("XDG_CACHE_HOME", "")], &[]),
        run_on_host(&folder, &[("TMPDIR", &temporary), ("HOME", &home)], &["--no-cache"]),
    ];
    assert!(outputs.iter().all(|output| output.contains("out0") && *output == outputs[0]), "{outputs:?}");
    assert_eq!((names(&temporary), names(&home)), (vec![], vec![]));
    run_on_host(&folder, &[("HOME", &home), ("XDG_CACHE_HOME", "")], &[]);
    assert_eq!(names(&format!("{home}/.cache/hlo-opt")).len(), 2);
}

#[test]
fn a_short_text_names_no_shape_that_memory_has_no_room_for() {
    let nested = |first: &str, more: &dyn Fn(usize) -> String, n: usize| {
        let tuples: String = (1..n)
            .map(|i| format!("  {}t{i} = tuple({})\n", if i + 1 == n { "ROOT " } else { "" }, more(i - 1)))
            .collect();
        format!("HloModule m\nENTRY e {{\n  p = f32[] parameter(0)\n  t0 = tuple({first})\n{tuples}}}\n")
    };
    let wide = run(&["-"], &nested("p,p", &|i| format!("t{i},t{i}"), 64));
    assert_eq!(wide.status.code(), Some(1));
    assert!(
        said(&wide).contains("`tuple`: expected operands of at most 262144 leaves in all, found 524288"),
        "{}",
        said(&wide)
    );
    let deep = |n: usize| nested("p", &|i| format!("t{i}"), n);
    let output = run(&["-"], &deep(201));
    assert!(said(&output).contains("`tuple`: expected at most 200 levels of tuples, found more"), "{}", said(&output));
    // What is written is read again, as text and as a proto.
    let output = run(&["-"], &deep(200));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let again = run(&["-"], &String::from_utf8_lossy(&output.stdout));
    assert_eq!(again.stdout, output.stdout, "{}", said(&again));
    let folder = Folder::new("levels");
    let proto = folder.file("deep.pb");
    let written = run(&["-", "--output-format", "proto", "-o", &proto], &deep(95));
    assert_eq!(written.status.code(), Some(0), "{}", said(&written));
    let read = tool(&[&proto]).output().expect("the tool ends");
    assert_eq!(read.status.code(), Some(0), "{}", said(&read));
    let refused = run(&["-", "--output-format", "proto", "-o", &folder.file("deeper.pb")], &deep(96));
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("%t95: expected at most 95 levels of tuples in a proto, found 96"),
        "{}",
        said(&refused)
    );
    assert!(!Path::new(&folder.file("deeper.pb")).exists());
}

#[test]
fn a_chain_of_ten_thousand_calls_is_lowered_in_seconds() {
    let calls: String = (1..10_000)
        .map(|i| {
            format!(
                "call{i} {{\n  p{i} = f32[4] parameter(0)\n  ROOT r{i} = f32[4] call(p{i}), to_apply=call{}\n}}\n\n",
                i - 1
            )
        })
        .collect();
    let text = format!(
        "HloModule calls\n\ncall0 {{\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}}\n\n{calls}ENTRY e {{\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] \
         call(x), to_apply=call9999\n}}\n"
    );
    let output = run(&["--preset", "gpu", "--timeout", "60", "-q", "-"], &text);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("negate("));
}
