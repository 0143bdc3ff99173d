//! Global programs among the samples, each beside what XLA's partitioner made of it: the evaluator gives the same for both.

use crate::tool;
use hlo_tests::root;
use std::path::{Path, PathBuf};

/// A global program, the per-device program of it, and how inputs are drawn.
struct Pair {
    global: PathBuf,
    local: PathBuf,
    draw: String,
}

/// The pairs of a folder: `NAME.unopt.hlo` beside `NAME.hlo`, `NAME.unopt_gspmd.hlo` beside `NAME.spmd_gspmd.hlo`.
fn pairs(folder: &str) -> Vec<Pair> {
    let folder = root().join(folder);
    let manifest = std::fs::read_to_string(folder.join("manifest.json")).expect("the manifest");
    let manifest: Vec<serde_json::Value> = serde_json::from_str(&manifest).expect("a list of programs");
    let entries = std::fs::read_dir(&folder).expect("a folder of samples");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let pair = |name: &String| {
        let local = match (name.strip_suffix(".unopt.hlo"), name.strip_suffix(".unopt_gspmd.hlo")) {
            (Some(stem), _) => format!("{stem}.hlo"),
            (None, stem) => format!("{}.spmd_gspmd.hlo", stem?),
        };
        let said = manifest.iter().find(|program| program["file"] == **name);
        let draw = said.and_then(|program| program["draw"].as_str()).expect("how its inputs are drawn").to_string();
        Some(Pair { global: folder.join(name), local: folder.join(local), draw })
    };
    names.iter().filter_map(pair).collect()
}

/// The file, or of a step that is done 1,000 times one that is done 5 times, with a summary in every second one in place of every hundredth.
fn with_short_loop(path: &Path) -> String {
    if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mlp_adam_summary")) {
        return path.display().to_string();
    }
    let mut text = std::fs::read_to_string(path).expect("the sample");
    for (long, short) in [("s32[] constant(1000)", "s32[] constant(5)"), ("s32[] constant(100)", "s32[] constant(2)")] {
        assert_eq!(text.matches(long).count(), 1, "{}: {long}", path.display());
        text = text.replace(long, short);
    }
    let short = Path::new(env!("CARGO_TARGET_TMPDIR")).join("global_programs");
    std::fs::create_dir_all(&short).expect("a folder");
    let short = short.join(path.file_name().expect("a name"));
    std::fs::write(&short, text).expect("the file is written");
    short.display().to_string()
}

/// The exit code of `hlo-opt`, and what it prints.
fn run(args: &[&str]) -> (u8, String) {
    let (code, stdout, stderr) = tool::run(args);
    (code, stdout + &stderr)
}

#[test]
fn what_the_partitioner_made_is_the_same_as_the_global_program() {
    same_as_global("global", 20);
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn what_the_partitioner_made_of_steps_is_the_same_as_the_global_program() {
    same_as_global("programs", 12);
}

fn same_as_global(folder: &str, n_pairs: usize) {
    let pairs = pairs(folder);
    assert_eq!(pairs.len(), n_pairs, "{folder}");
    for Pair { global, local, draw } in pairs {
        let (global, local) = (with_short_loop(&global), with_short_loop(&local));
        let (code, said) = run(&["compare", &global, &local, "--draw", &draw, "--trials", "1"]);
        assert!(code == 0 && said.contains(" of the global program on 8 devices"), "{global}: {said}");
    }
}

#[test]
fn both_forms_of_annotations_mean_the_same() {
    let pairs = ["programs", "global"].map(pairs).into_iter().flatten();
    let mut n_compared = 0;
    for Pair { global, draw, .. } in pairs {
        let shardy = global.display().to_string();
        let gspmd = shardy.replace(".unopt.hlo", ".unopt_gspmd.hlo");
        if shardy == gspmd || !Path::new(&gspmd).is_file() {
            continue;
        }
        let (code, said) = run(&["compare", &shardy, &gspmd, "--draw", &draw, "--trials", "1"]);
        assert!(code == 0 && said.contains("largest difference is 0.0e0"), "{shardy}: {said}");
        n_compared += 1;
    }
    assert_eq!(n_compared, 14);
}

#[test]
fn dumps_from_before_and_after_the_partitioner_are_the_same() {
    let mut n_compared = 0;
    for version in ["jax-0.10", "jax-0.11", "jax-0.12"] {
        for style in ["jit", "pmap", "shard_map"] {
            let folder = root().join("dumps").join(version).join(style);
            let entries = std::fs::read_dir(&folder).expect("a dump").map(|entry| entry.expect("an entry").path());
            let files: Vec<String> = entries.map(|path| path.display().to_string()).collect();
            let file = |part: &str| files.iter().find(|file| file.contains(part)).expect("a file of the dump");
            let (before, after) = (file(".before_spmd-partitioning"), file(".after_spmd-partitioning"));
            let text = std::fs::read_to_string(before).expect("the file");
            let module = hlo_text::parse_module(&text).expect("a module").module;
            // Second moments are no squares of negative numbers.
            let draw = vec!["p.5"; hlo_eval::entry_leaves(&module).len()].join(" ");
            let (code, said) = run(&["compare", before, after, "--draw", &draw]);
            assert!(code == 0 && said.contains(" of the global program on 4 devices"), "{before}: {said}");
            assert!(!said.contains("NaN"), "{said}");
            let (code, said) = run(&["eval", before, "--draw", &draw]);
            assert!(code == 0 && said.contains("a global program, run as a whole on 4 devices"), "{before}: {said}");
            n_compared += 1;
        }
    }
    assert_eq!(n_compared, 9);
}

/// A step whose dims no number of devices divides, and which is too small for any cut to pay.
const ODD: &str = "HloModule odd

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  w = f32[515,131] parameter(0)
  x = f32[99,515] parameter(1)
  h = f32[99,131] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[515,131] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  n = f32[515,131] subtract(w, g)
  zero = f32[] constant(0)
  square = f32[99,131] multiply(h, h)
  loss = f32[] reduce(square, zero), dimensions={0,1}, to_apply=add
  ROOT all = (f32[515,131], f32[]) tuple(n, loss)
}
";

#[test]
fn a_step_that_no_cut_makes_faster_stays_whole_and_every_mesh_can_be_asked_for() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("global_programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    let [step, out, report] =
        ["odd.hlo", "odd.out.hlo", "odd.json"].map(|name| folder.join(name).display().to_string());
    std::fs::write(&step, ODD).expect("the file is written");
    for options in [
        "devices=8",
        "devices=6",
        "devices=7",
        "devices=8,mesh=8",
        "devices=8,mesh=2x4",
        "devices=8,mesh=8;2x4",
        "devices=8,mesh=2x2x2",
    ] {
        let preset = format!("auto-parallel{{{options}}}");
        let (code, said) =
            run(&["--preset", &preset, "--machine", "h200", &step, "-o", &out, "--report-file", &report]);
        assert_eq!(code, 0, "{options}: {said}");
        let report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&report).expect("a report")).expect("JSON");
        let choice = &report["modules"][0]["choice"];
        let seconds = |candidate: &serde_json::Value| candidate["critical_path_s"].as_f64().expect("a time");
        let candidates = choice["candidates"].as_array().expect("the ways");
        let whole = candidates.iter().find(|c| c["way"] == "the whole step on every device").expect("the whole step");
        let chosen = &candidates[choice["chosen"].as_u64().expect("a number") as usize];
        assert!(seconds(chosen) <= seconds(whole), "{options}: {choice}");
        let (code, said) = run(&["compare", &step, &out, "--trials", "1"]);
        assert!(code == 0, "{options}: {said}");
    }
    let pass = "search-parallelization{plan=megatron,mesh=8},spmd-partition";
    let (code, said) = run(&["--pass", pass, &step]);
    assert!(
        code == 1 && said.contains("option `mesh`: expected a mesh of 2 axes for plan=megatron, found 8"),
        "{said}"
    );
}
