//! `hlo-opt diff`: names are no difference, what is computed is; large modules take seconds.

use std::path::{Path, PathBuf};
use std::process::Command;

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(name).to_string_lossy().into_owned()
}

/// What the tool prints, and its exit code.
fn tool(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_hlo-opt")).args(args).output().expect("the tool runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), said)
}

/// A test's files.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("diff").join(test);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for files");
        Folder(folder)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the file is written");
        path.display().to_string()
    }
}

/// A chain in a loop, with a sum over devices behind it.
const MODULE: &str = "HloModule m, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

condition {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT is_less = pred[] compare(i, n), direction=LT
}

body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4] sine(x)
  z = f32[4] multiply(y, x)
  ROOT q = (s32[], f32[4]) tuple(next, z)
}

ENTRY e {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[4]) tuple(zero, x)
  loop = (s32[], f32[4]) while(start), condition=condition, body=body
  last = f32[4] get-tuple-element(loop), index=1
  all = f32[4] all-reduce(last), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT out = f32[4] exponential(all)
}
";

/// The module with these texts replaced; each must be there.
fn changed(replacements: &[(&str, &str)]) -> String {
    replacements.iter().fold(MODULE.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

#[test]
fn ends_of_other_channels_are_a_difference() {
    let sends = "HloModule m, num_partitions=2

ENTRY e {
  x = f32[4] parameter(0)
  t = token[] after-all()
  r = (f32[4], u32[], token[]) recv(t), channel_id=1
  s = (f32[4], u32[], token[]) send(x, t), channel_id=1
  rd = (f32[4], token[]) recv-done(r), channel_id=1
  sd = token[] send-done(s), channel_id=1
  ROOT y = f32[4] get-tuple-element(rd), index=0
}
";
    let apart = sends.replace("send(x, t), channel_id=1", "send(x, t), channel_id=2");
    let apart = apart.replace("send-done(s), channel_id=1", "send-done(s), channel_id=2");
    let folder = Folder::new("ends");
    let [a, b, c] = [("a.hlo", sends), ("b.hlo", &apart), ("c.hlo", &sends.replace("channel_id=1", "channel_id=7"))]
        .map(|(name, text)| folder.file(name, text));
    let (code, said) = tool(&["diff", "--exit-code", &a, &b]);
    assert!(code == 1 && said.contains("4 changed"), "{said}");
    assert_eq!(tool(&["diff", "--exit-code", &a, &c]).0, 0);
}

#[test]
fn other_names_and_channels_are_no_difference() {
    let folder = Folder::new("names");
    let a = folder.file("a.hlo", MODULE);
    let renamed = [
        ("body {", "turn {"),
        ("body=body", "body=turn"),
        ("add {", "plus {"),
        ("to_apply=add", "to_apply=plus"),
        ("last", "latest"),
        ("loop", "rounds"),
        ("channel_id=1", "channel_id=9"),
    ];
    let b = folder.file("b.hlo", &changed(&renamed));
    let (code, said) = tool(&["diff", &a, &b, "--exit-code"]);
    assert_eq!((code, said.as_str()), (0, "instructions: 22 -> 22: 22 the same, 0 changed, 0 removed, 0 added\n"));
}

#[test]
fn other_spellings_of_the_same_are_no_difference() {
    let module = |negated: &str, gathered: &str, tuple: &str| {
        format!(
            "HloModule m, num_partitions=8\n\nENTRY main {{\n  s = f32[4] parameter(0)\n  d = f32[4] negate(s){negated}\n  g = f32[16] \
             all-gather(d), channel_id=1, replica_groups={gathered}, use_global_device_ids=true, dimensions={{0}}\n  \
             ROOT t = (f32[16], f32[4]) tuple(g, d){tuple}\n}}\n"
        )
    };
    let plain = module("", "[2,4]<=[4,2]T(1,0)", ", sharding={{replicated}, {replicated}}");
    let other = module(
        ", metadata={op_name=\"a\" source_file=\"x.py\" source_line=3}",
        "[2,4]<=[2,2,2]T(2,0,1)",
        ", sharding={replicated}",
    );
    let folder = Folder::new("spellings");
    let [a, b] = [("a.hlo", plain), ("b.hlo", other)].map(|(name, text)| folder.file(name, &text));
    let (code, said) = tool(&["diff", &a, &b, "--exit-code"]);
    assert_eq!((code, said.as_str()), (0, "instructions: 4 -> 4: 4 the same, 0 changed, 0 removed, 0 added\n"));
}

/// A change below leaves what is computed from it the same: its operands are matched.
#[test]
fn one_change_is_one_difference() {
    let folder = Folder::new("one");
    let a = folder.file("a.hlo", MODULE);
    for (from, to, counts, lines) in [
        (
            "constant(5)",
            "constant(6)",
            "21 the same, 1 changed, 0 removed, 0 added",
            ["-  n = s32[] constant(5)", "+  n = s32[] constant(6)"],
        ),
        (
            "sine(x)",
            "cosine(x)",
            "21 the same, 1 changed, 0 removed, 0 added",
            ["-  y = f32[4] sine(x)", "+  y = f32[4] cosine(x)"],
        ),
        ("{{0,1}}", "{{0},{1}}", "21 the same, 1 changed, 0 removed, 0 added", ["-  all = ", "+  all = "]),
    ] {
        let b = folder.file("b.hlo", &changed(&[(from, to)]));
        let (code, said) = tool(&["diff", &a, &b]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(counts), "{from}: {said}");
        assert!(lines.iter().all(|line| said.contains(line)), "{from}: {said}");
        assert_eq!(tool(&["diff", &a, &b, "--exit-code", "--stat"]).0, 1);
    }
}

#[test]
fn what_was_put_in_between_is_added_and_its_user_changed() {
    let folder = Folder::new("between");
    let a = folder.file("a.hlo", MODULE);
    let b =
        [("ROOT out = f32[4] exponential(all)", "minus = f32[4] negate(all)\n  ROOT out = f32[4] exponential(minus)")];
    let b = folder.file("b.hlo", &changed(&b));
    let (_, said) = tool(&["diff", &a, &b, "-U", "0"]);
    assert!(said.contains("22 -> 23: 21 the same, 1 changed, 0 removed, 1 added\n  negate: 0 -> 1\n"), "{said}");
    assert!(
        said.contains("+  minus = f32[4] negate(all)\n-  ROOT out = f32[4] exponential(all)\n+  ROOT out"),
        "{said}"
    );
    let (_, back) = tool(&["diff", &b, &a]);
    assert!(back.contains("23 -> 22: 21 the same, 1 changed, 1 removed, 0 added\n"), "{back}");
}

#[test]
fn another_root_or_header_is_a_difference() {
    let folder = Folder::new("root");
    let a = folder.file("a.hlo", MODULE);
    let other_root =
        [("ROOT out = f32[4] exponential", "out = f32[4] exponential"), ("  all = f32[4]", "  ROOT all = f32[4]")];
    let b = folder.file("b.hlo", &changed(&other_root));
    let (code, said) = tool(&["diff", &a, &b, "--exit-code"]);
    assert_eq!(code, 1, "{said}");
    let b = folder.file(
        "b.hlo",
        &changed(&[
            ("num_partitions=2", "replica_count=2"),
            (", use_global_device_ids=true", ""),
            ("channel_id=1, ", ""),
        ]),
    );
    let (_, said) = tool(&["diff", &a, &b]);
    assert!(said.contains("header: replica_count 1 -> 2\nheader: num_partitions 2 -> 1\n"), "{said}");
}

#[test]
fn another_order_of_instructions_is_a_difference() {
    let folder = Folder::new("order");
    let ordered = [("last), channel_id=1,", "last), channel_id=1, control-predecessors={x},")];
    let (a, b) = (folder.file("a.hlo", &changed(&ordered)), folder.file("b.hlo", MODULE));
    let (code, said) = tool(&["diff", &a, &b, "--exit-code"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.starts_with("instructions: 22 -> 22: 21 the same, 1 changed, 0 removed, 0 added\n"), "{said}");
    assert_eq!(tool(&["diff", &a, &a, "--exit-code"]).0, 0);
}

#[test]
fn a_page_has_the_same_lines_escaped() {
    let folder = Folder::new("page");
    let (a, b) = (folder.file("a.hlo", MODULE), folder.file("b.hlo", &changed(&[("sine(x)", "cosine(x)")])));
    let (code, page) = tool(&["diff", &a, &b, "--format", "html"]);
    assert_eq!(code, 0);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
    assert!(
        page.contains("<pre class=\"new\">+  y = f32[4] cosine(x)</pre>") && page.contains("a.hlo -&gt; "),
        "{page}"
    );
}

#[test]
fn bad_files_are_errors() {
    assert_eq!(tool(&["diff", "-", "-"]).0, 2);
    assert_eq!(tool(&["diff", "no-such-file", "no-such-file"]).0, 1);
}

/// Every program with itself: nothing; with what a pass makes of it: every added line is in the one, every removed in the other.
#[test]
fn programs_differ_from_what_passes_make_of_them() {
    let folder = Folder::new("programs");
    for name in ["mlp_adam", "gpt2l_adam", "gpt2l_adamw_fori", "conv_lars"] {
        let program = sample(&format!("programs/{name}.hlo"));
        let (code, said) = tool(&["diff", &program, &program, "--exit-code"]);
        assert!(code == 0 && said.contains(" 0 changed, 0 removed, 0 added"), "{name}: {said}");
        let out = folder.0.join("out.hlo").display().to_string();
        let (code, said) = tool(&["--pass", "shard-weight-update{min-bytes=0},dce", &program, "-o", &out]);
        assert_eq!(code, 0, "{said}");
        let (code, said) = tool(&["diff", &program, &out, "--exit-code"]);
        assert!(code == 1 && said.contains("\n+  ") && said.contains("reduce-scatter: 0 -> "), "{name}: {said}");
        let texts = [&program, &out].map(|path| std::fs::read_to_string(path).expect("a module"));
        for (sign, text) in ["-  ", "+  "].iter().zip(&texts) {
            for line in said.lines().filter_map(|line| line.strip_prefix(sign)) {
                let head = line.split(" = ").next().unwrap_or(line).trim_start_matches("ROOT ").to_string() + " = ";
                assert!(text.contains(&head), "{name}: {line}");
            }
        }
    }
}
