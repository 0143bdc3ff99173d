//! `hlo-opt prove`: what passes make is proved, and what another number makes is refuted.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(name).to_string_lossy().into_owned()
}

fn tool(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hlo-opt")).args(args).output().expect("the tool runs")
}

/// The tool ends with this code and says these words.
fn expect(args: &[&str], code: i32, words: &[&str]) -> String {
    let output = tool(args);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{args:?}: expected `{word}` in {said}"));
    said
}

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prove").join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for files");
    folder
}

#[test]
fn what_a_pass_makes_is_proved_and_another_rate_is_refuted() {
    let folder = folder("passes");
    let path = |name: &str| folder.join(name).display().to_string();
    let (step, sharded) = (sample("programs/mlp_adam.hlo"), path("sharded.hlo"));
    expect(&["--pass", "shard-weight-update{profit=always,min-bytes=0}", &step, "-o", &sharded], 0, &[]);
    expect(&["prove", &step, &sharded], 0, &["proved: 20 of 20 outputs proved on 8 devices, bit for bit"]);
    let text = std::fs::read_to_string(&sharded).expect("the module");
    assert!(text.contains("constant(0.9)"));
    let wrong = path("wrong.hlo");
    std::fs::write(&wrong, text.replacen("constant(0.9)", "constant(0.8)", 1)).expect("the file is written");
    let words = ["refuted: 8 of 20 outputs", "expected 0.9, found 0.8", "different (seed 0): output "];
    expect(&["prove", &step, &wrong], 4, &words);
    let said = expect(&["prove", &step, &wrong, "--no-eval", "--report", "json"], 5, &[]);
    let proof: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&proof["verdict"], &proof["proved"]), (&"unknown".into(), &8.into()));
    assert_eq!(proof["outputs"].as_array().map(Vec::len), Some(20));
}

#[test]
fn a_norm_of_shards_holds_modulo_rounding() {
    let folder = folder("norm");
    let (step, sharded) = (sample("programs/mlp_clipadam.hlo"), folder.join("sharded.hlo").display().to_string());
    expect(&["--pass", "shard-weight-update{profit=always,min-bytes=0}", &step, "-o", &sharded], 0, &[]);
    let said = expect(&["prove", &step, &sharded, "--explain"], 0, &["modulo rounding (", "sum-flattens: "]);
    assert!(said.contains("movement: "), "{said}");
}

#[test]
fn a_folder_of_sharded_state_is_proved_as_a_whole() {
    let folder = folder("state");
    let (step, state) = (sample("programs/mlp_adam.hlo"), folder.join("state").display().to_string());
    expect(&["--preset", "sharded-state", &step, "-o", &state], 0, &[]);
    expect(&["prove", &step, &state], 0, &["proved: 20 of 20 outputs"]);
}

#[test]
fn a_certificate_is_written_beside_the_verdict() {
    let folder = folder("certificate");
    let path = |name: &str| folder.join(name).display().to_string();
    let (step, sharded, file) = (sample("programs/mlp_adam.hlo"), path("sharded.hlo"), path("certificate.txt"));
    expect(&["--pass", "shard-weight-update{profit=always,min-bytes=0}", &step, "-o", &sharded], 0, &[]);
    expect(&["prove", &step, &sharded, "--certificate", &file], 0, &["proved: 20 of 20 outputs"]);
    let text = std::fs::read_to_string(&file).expect("the certificate");
    assert!(text.starts_with("hlo-prove certificate 1\nsite 0 0 - "), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("output ")).count(), 20);
    expect(&["prove", &step, &sharded, "--certificate", "/nowhere/certificate.txt"], 1, &["/nowhere"]);
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let (adam, sgd) = (sample("programs/mlp_adam.hlo"), sample("programs/mlp_sgd.hlo"));
    expect(&["prove", &adam, &sgd], 1, &["expected inputs ", ", found "]);
    expect(&["prove", "-", "-"], 2, &["stdin"]);
    expect(&["prove", &adam, &adam, "--replicated-params", "999"], 2, &["--replicated-params"]);
}

#[test]
fn passes_are_proved_one_by_one() {
    let passes = "@machine=[(node,2),(gpu,4)];shard-weight-update{profit=always,min-bytes=0,partial=no},dce,decompose-collectives{min-gain=0},\
                  combine-collectives{mode=variadic}";
    let step = sample("programs/gpt2l_adam.hlo");
    let words = [
        "shard-weight-update: proved, 74 of 74 outputs, bit for bit\n",
        "decompose-collectives: proved, 74 of 74 outputs, modulo rounding (",
        "combine-collectives: proved, 74 of 74 outputs, bit for bit\n",
    ];
    let said = expect(&["--pass", passes, "--check=prove", "--quiet", &step, "-o", "/dev/null"], 0, &words);
    assert!(!said.contains("UNKNOWN"), "{said}");
    // Without a value the passes' word is enough.
    let said = expect(&["--pass", passes, "--check", "--quiet", &step, "-o", "/dev/null"], 0, &[]);
    assert_eq!(said, "");
}

#[test]
fn the_way_that_a_preset_takes_is_proved() {
    let step = sample("programs/mlp_adam.hlo");
    let of_preset = |preset: &str, step: &str| {
        let args = ["--preset", preset, "--check=prove", "--quiet", step, "-o", "/dev/null"];
        expect(&args, 0, &[])
    };
    let said = of_preset("data-parallel{objective=memory,min-bytes=0}", &step);
    assert!(said.starts_with("inline-calls: ") && said.contains("\nshard-weight-update: "), "{said}");
    assert!(said.lines().all(|line| line.contains(": proved, 20 of 20 outputs, ")), "{said}");
    let said = of_preset("data-parallel", &sample("programs/conv_lars.hlo"));
    assert!(said.contains("\nscatter-to-select: proved, 29 of 29 outputs, "), "{said}");
    let said = of_preset("data-parallel", &sample("programs/mlp_clipadam.hlo"));
    assert_eq!(said, "no pass changes the module: nothing is to be proved\n");
    // State in shards has another signature: the modules beside it are proved with it.
    let folder = folder("state-by-passes");
    let preset = "sharded-state{min-bytes=0}";
    let place = folder.join("out").display().to_string();
    let words = ["shard-weight-update: proved, 20 of 20 outputs, "];
    expect(&["--preset", preset, "--check=prove", "--quiet", &step, "-o", &place], 0, &words);
}

#[test]
fn a_global_program_is_proved_or_refuted() {
    let folder = folder("global");
    let (program, local) = (sample("global/tp_mlp_sgd.unopt.hlo"), sample("global/tp_mlp_sgd.hlo"));
    expect(&["prove", &program, &local], 0, &["proved: 3 of 3 outputs of the global program proved on 8 devices"]);
    let text = std::fs::read_to_string(&local).expect("the sample");
    // A sum over pairs in place of the other axis.
    let (groups, other) = ("{{0,4},{1,5},{2,6},{3,7}}", "{{0,1},{2,3},{4,5},{6,7}}");
    assert_eq!(text.matches(groups).count(), 1);
    let wrong = folder.join("wrong.hlo").display().to_string();
    std::fs::write(&wrong, text.replace(groups, other)).expect("the file is written");
    expect(&["prove", &program, &wrong], 4, &["refuted: ", "different (seed 0): output "]);
    expect(&["prove", &program, &wrong, "--no-eval"], 5, &["unknown: "]);
    // What no proof is found of agrees on drawn inputs, and stays unknown.
    let (program, local) = (sample("global/conv_spatial_sgd.unopt.hlo"), sample("global/conv_spatial_sgd.hlo"));
    expect(
        &["prove", &program, &local],
        5,
        &["in the evaluator the results are the same on the inputs that were drawn"],
    );
}

/// Two devices that multiply and update, in matrices of 1,024 rows: minutes in the evaluator.
fn large_step(update: &str) -> String {
    format!(
        "HloModule step, num_partitions=2\n\n%sum (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  \
         %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}}\n\nENTRY %main {{\n  \
         %w = f32[1024,1024] parameter(0), sharding={{replicated}}\n  %x = f32[1024,1024] parameter(1)\n  \
         %y = f32[1024,1024] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         %z = f32[1024,1024] dot(%x, %y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}\n  \
         %rate = f32[] constant(0.9)\n  %other = f32[] constant(0.8)\n  {update}\n  \
         ROOT %r = (f32[1024,1024], f32[1024,1024]) tuple(%new, %y)\n}}\n"
    )
}

#[test]
fn what_is_too_large_to_run_differs_on_a_smaller_shape() {
    let folder = folder("smaller");
    let whole = "%g = f32[1024,1024] all-reduce(%z), replica_groups={{0,1}}, to_apply=%sum, channel_id=1, use_global_device_ids=true
  %rates = f32[1024,1024] broadcast(RATE), dimensions={}
  %kept = f32[1024,1024] multiply(%w, %rates)
  %new = f32[1024,1024] subtract(%kept, %g)";
    let write = |name: &str, rate: &str| {
        let file = folder.join(name).display().to_string();
        let text = large_step(&whole.replace("RATE", rate)).replace("1024", "1048576");
        std::fs::write(&file, text).expect("the file is written");
        file
    };
    let (before, after) = (write("before.hlo", "%rate"), write("after.hlo", "%other"));
    let words = [
        "unknown: 1 of 2 outputs",
        "expected 0.9, found 0.8",
        "they differ on a smaller shape of the same programs, in f64: input 0 is f32[2, 2] in the place of [1048576, 1048576]",
        "different (seed 0): output 0 (%new)",
    ];
    expect(&["prove", &before, &after], 5, &words);
}

/// A module of samples and what a pass makes of it with a promise, without which devices differ.
fn with_promise(test: &str) -> [String; 2] {
    let folder = folder(test);
    let text = std::fs::read_to_string(sample("passes/shard-weight-update/adam-replicas.hlo")).expect("a sample");
    let step = folder.join("step.hlo").display().to_string();
    std::fs::write(&step, text.replace(", parameter_replication={true}", "")).expect("the file is written");
    let sharded = folder.join("sharded.hlo").display().to_string();
    let pass = "shard-weight-update{min-bytes=0,profit=always}";
    expect(&["--pass", pass, &step, "--replicated-params", "0-2", "-o", &sharded], 0, &[]);
    [step, sharded]
}

#[test]
fn a_promise_binds_every_command_that_draws_inputs() {
    let [step, sharded] = with_promise("promises");
    let promise = ["--replicated-params", "0-2"];
    let pass = ["--pass", "shard-weight-update{min-bytes=0,profit=always}", "--trials", "1"];
    for (args, code) in [(vec!["compare", &step, &sharded], 4), (vec!["prove", &step, &sharded], 4)] {
        // Without the promise the devices hold different weights, and a shard of one is no shard of another.
        expect(&args, code, &[]);
        expect(&[&args[..], &promise].concat(), 0, &[]);
    }
    expect(&[&["bisect", &step][..], &pass, &promise].concat(), 0, &["no pass changes the results"]);
    // It binds beside what is said of others.
    expect(&[&["compare", &step, &sharded][..], &promise, &["--same", "none"]].concat(), 0, &[]);
    // Weights that are the same stay the same.
    let same = expect(&[&["eval", &step][..], &promise].concat(), 0, &[]);
    assert!(same.contains("the same on all"), "{same}");
    let apart = expect(&["eval", &step], 0, &[]);
    assert!(!apart.contains("the same on all"), "{apart}");
}

const SENT: &str = "HloModule m\n\nENTRY %main {\n  %x = f32[4] parameter(0)\n  %y = f32[4] parameter(1)\n  \
                    %tok = token[] after-all()\n  %o = token[] outfeed(%x, %tok), outfeed_shape=f32[4]\n  \
                    ROOT %r = f32[4] add(%x, %y)\n}\n";

#[test]
fn effects_that_differ_are_unknown_and_named() {
    let folder = folder("effects");
    let file = |name: &str, text: &str| {
        let path = folder.join(name).display().to_string();
        std::fs::write(&path, text).expect("the file is written");
        path
    };
    let before = file("before.hlo", SENT);
    let other = file("other.hlo", &SENT.replace("outfeed(%x", "outfeed(%y"));
    let none = file("none.hlo", &SENT.replace("  %o = token[] outfeed(%x, %tok), outfeed_shape=f32[4]\n", ""));
    expect(&["prove", &before, &before], 0, &["proved: 1 of 1 outputs proved on 1 device, bit for bit"]);
    let words = ["unknown: 1 of 1 outputs", "effects: `outfeed` %o", "expected input 0", "the effects are not"];
    expect(&["prove", &before, &other], 5, &words);
    expect(
        &["prove", &before, &none],
        5,
        &["`outfeed` %o of the first module is missing", "expected 1 times, found 0"],
    );
    let said = expect(&["prove", &before, &other, "--report", "json"], 5, &[]);
    let proof: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&proof["verdict"], &proof["proved"]), (&"unknown".into(), &1.into()));
    assert_eq!(proof["effects"]["verdict"], "unknown");
    assert!(proof["effects"]["difference"].as_str().is_some_and(|text| text.contains("outfeed")));
}
