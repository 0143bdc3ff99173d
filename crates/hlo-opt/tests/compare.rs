//! `hlo-opt compare` and `hlo-opt bisect`: what is the same is told from what is not.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(name).to_string_lossy().into_owned()
}

fn tool(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hlo-opt")).args(args).output().expect("the tool runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The tool ends with this code and says these words; all that it says.
fn expect(args: &[&str], code: i32, words: &[&str]) -> String {
    let output = tool(args);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{args:?}: expected `{word}` in {said}"));
    said
}

/// A test's files.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare").join(test);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for files");
        Folder(folder)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the file is written");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

const ADD: &str = "HloModule m, num_partitions=2

ENTRY e {
  x = f32[2,3] parameter(0)
  n = s32[4] parameter(1)
  y = f32[2,3] add(x, x), metadata={op_name=\"jit(step)/twice\"}
  m = s32[4] add(n, n)
  ROOT out = (f32[2,3], s32[4]) tuple(y, m)
}
";

#[test]
fn what_a_pass_makes_is_the_same_and_another_rate_is_not() {
    let folder = Folder::new("passes");
    let (sgd, sharded) = (sample("passes/shard-weight-update/sgd.hlo"), folder.path("sharded.hlo"));
    expect(&["--pass", "shard-weight-update{min-bytes=0}", &sgd, "-o", &sharded], 0, &[]);
    expect(&["compare", &sgd, &sharded], 0, &["the same: 1 outputs on 4 devices, 6 trials"]);
    let wrong = std::fs::read_to_string(&sharded).expect("the module").replace("constant(-0.01)", "constant(-0.02)");
    let wrong = folder.file("wrong.hlo", &wrong);
    let words = ["different (seed 0): output 0 (%new_weight) of device 0 at [0,0]: expected ", "1 of 1 outputs differ"];
    expect(&["compare", &sgd, &wrong], 4, &words);
    expect(&["compare", &sgd, &wrong, "--rtol", "2"], 0, &["the same"]);
    expect(&["compare", &sgd, &wrong, "--atol", "9e3"], 0, &["the same"]);
    expect(&["compare", &sgd, &sharded, "--rtol=-1"], 2, &["expected a number that is not negative"]);
}

#[test]
fn integers_are_equal_or_not() {
    let folder = Folder::new("integers");
    let a = folder.file("a.hlo", ADD);
    let b = folder.file("b.hlo", &ADD.replace("m = s32[4] add(n, n)", "m = s32[4] multiply(n, n)"));
    expect(&["compare", &a, &a], 0, &["2 outputs on 2 devices"]);
    expect(
        &["compare", &a, &b, "--rtol", "100", "--atol", "100"],
        4,
        &["output 1 (%m) of device ", "1 of 2 outputs differ"],
    );
}

#[test]
fn a_nan_in_another_place_differs_and_one_in_the_same_is_said() {
    let folder = Folder::new("nan");
    let log = |text: &str| ADD.replace("y = f32[2,3] add(x, x)", text);
    let a = folder.file("a.hlo", &log("y = f32[2,3] log(x)"));
    let b = folder.file("b.hlo", ADD);
    // The operand of a logarithm is drawn positive.
    let (code, said) = (0, "the same: 2 outputs on 2 devices, 6 trials");
    expect(&["compare", &a, &a], code, &[said]);
    let said = ["undecided: 2 outputs", "elements are NaN in both programs", "1 of 2 outputs are NaN in more than 1 %"];
    expect(&["compare", &a, &a, "--draw", "n1"], 5, &said);
    expect(&["compare", &a, &b, "--draw", "n1"], 4, &["output 0 (%y, jit(step)/twice) of device 0", " inf "]);
}

/// Rows of a table, by `take` of JAX: NaN for indices beyond it, which it looks for with constants.
const TAKE: &str = "\
HloModule take

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  table = f32[10,4] parameter(0)
  ids = s32[16] parameter(1)
  zero = s32[] constant(0)
  zeros = s32[16] broadcast(zero), dimensions={}
  last = s32[] constant(9)
  lasts = s32[16] broadcast(last), dimensions={}
  above = pred[16] compare(ids, zeros), direction=GE
  below = pred[16] compare(ids, lasts), direction=LE
  within = pred[16] and(above, below)
  ids1 = s32[16,1] reshape(ids)
  rows = f32[16,4] gather(table, ids1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  k = f32[] constant(nan)
  nans = f32[16,4] broadcast(k), dimensions={}
  withins = pred[16,4] broadcast(within), dimensions={0}
  all = f32[16,4] select(withins, rows, nans)
  none = f32[] constant(0)
  ROOT sum = f32[4] reduce(all, none), dimensions={0}, to_apply=add
}
";

#[test]
fn indices_beyond_their_bounds_leave_trials_that_decide() {
    let folder = Folder::new("take");
    let a = folder.file("a.hlo", TAKE);
    expect(&["compare", &a, &a], 0, &["the same: 1 outputs"]);
    let b = folder.file("b.hlo", &TAKE.replace("constant(9)", "constant(8)"));
    expect(&["compare", &a, &b], 4, &["output 0 (%sum)"]);
}

/// Programs over `x`, `y`, a scalar `s` and an index `i`, each with a fault that few inputs show.
const FAULTS: [(&str, [&str; 2]); 8] = [
    (
        "a fourth branch",
        [
            "z = f32[8,4] conditional(i, x, x, x, x, x), branch_computations={same, same, same, same, same}",
            "z = f32[8,4] conditional(i, x, x, x, x, x), branch_computations={same, same, same, twice, same}",
        ],
    ),
    (
        "the last row",
        [
            "z = f32[1,4] dynamic-slice(x, i, k), dynamic_slice_sizes={1,4}",
            "l = s32[] constant(6); m = s32[] minimum(i, l); z = f32[1,4] dynamic-slice(x, m, k), dynamic_slice_sizes={1,4}",
        ],
    ),
    (
        "a row beyond the last",
        [
            "z = f32[1,4] dynamic-slice(x, i, k), dynamic_slice_sizes={1,4}",
            "l = s32[] constant(8); m = s32[] remainder(i, l); z = f32[1,4] dynamic-slice(x, m, k), dynamic_slice_sizes={1,4}",
        ],
    ),
    ("the sign of a divisor", ["z = f32[8,4] divide(x, y)", "w = f32[8,4] abs(y); z = f32[8,4] divide(x, w)"]),
    (
        "the sign of an integer's divisor",
        [
            "l = s32[] constant(100); z = s32[] divide(l, i)",
            "l = s32[] constant(100); m = s32[] abs(i); z = s32[] divide(l, m)",
        ],
    ),
    (
        "the sign of a power's base",
        [
            "p = f32[] constant(3); q = f32[8,4] broadcast(p), dimensions={}; z = f32[8,4] power(y, q)",
            "p = f32[] constant(3); q = f32[8,4] broadcast(p), dimensions={}; w = f32[8,4] abs(y); z = f32[8,4] power(w, q)",
        ],
    ),
    (
        "how far a scale falls",
        [
            "h = f32[] constant(0.5); l = f32[] constant(1); d = f32[] multiply(s, h); z = f32[] maximum(d, l)",
            "h = f32[] constant(0.25); l = f32[] constant(1); d = f32[] multiply(s, h); z = f32[] maximum(d, l)",
        ],
    ),
    (
        "a norm that is clipped",
        [
            "o = f32[] constant(0); l = f32[] constant(6); t = f32[8,4] tanh(x); u = f32[8,4] multiply(t, t); \
         v = f32[] reduce(u, o), dimensions={0,1}, to_apply=sum; n = f32[] sqrt(v); z = f32[] minimum(n, l)",
            "o = f32[] constant(0); l = f32[] constant(6); t = f32[8,4] tanh(x); u = f32[8,4] multiply(t, t); \
         v = f32[] reduce(u, o), dimensions={0,1}, to_apply=sum; n = f32[] sqrt(v); p = f32[] constant(4.9); z = f32[] minimum(n, p)",
        ],
    ),
];

fn of_fault(lines: &str) -> String {
    let lines: String = lines.split("; ").map(|line| format!("  {}\n", line.trim())).collect();
    let last = lines.lines().last().unwrap_or_default().trim().to_string();
    let lines = lines.replace(&last, &format!("ROOT {last}"));
    format!(
        "HloModule m\n\nsame {{\n  ROOT a = f32[8,4] parameter(0)\n}}\n\ntwice {{\n  a = f32[8,4] parameter(0)\n  ROOT b = f32[8,4] add(a, a)\n}}\n\n\
         sum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\n\
         ENTRY main {{\n  x = f32[8,4] parameter(0)\n  y = f32[8,4] parameter(1)\n  s = f32[] parameter(2)\n  \
         i = s32[] parameter(3)\n  k = s32[] constant(0)\n{lines}}}\n"
    )
}

#[test]
fn trials_reach_what_few_inputs_show() {
    let folder = Folder::new("faults");
    for (what, programs) in FAULTS {
        let [a, b] = programs.map(of_fault);
        let (a, b) = (folder.file("a.hlo", &a), folder.file("b.hlo", &b));
        expect(&["compare", &a, &a], 0, &["the same"]);
        let said = text(&tool(&["compare", &a, &b]));
        assert!(said.starts_with("different"), "{what}: {said}");
    }
}

/// Signs of a product that is rounded to bf16, and a mean beside it.
const SIGNS: &str = "\
HloModule signs

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[64,32] parameter(0)
  w = f32[32,16] parameter(1)
  v = f32[16] parameter(2)
  xb = bf16[64,32] convert(x)
  wb = bf16[32,16] convert(w)
  y = bf16[64,16] dot(xb, wb), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  yf = f32[64,16] convert(y)
  s = f32[64,16] sign(yf)
  zero = f32[] constant(0)
  m = f32[] reduce(s, zero), dimensions={0,1}, to_apply=add
  k = f32[] constant(0.5)
  ks = f32[16] broadcast(k), dimensions={}
  u = f32[16] multiply(v, ks)
  ROOT out = (f32[64,16], f32[], f32[16]) tuple(s, m, u)
}
";

#[test]
fn elements_behind_a_step_are_counted_and_widen_nothing() {
    let folder = Folder::new("signs");
    let a = folder.file("a.hlo", SIGNS);
    // Products in f32 flip few signs.
    let right = SIGNS
        .replace("y = bf16[64,16]", "y = f32[64,16]")
        .replace("yf = f32[64,16] convert(y)", "yf = f32[64,16] copy(y)");
    let right = right
        .replace("xb = bf16[64,32] convert", "xb = f32[64,32] copy")
        .replace("wb = bf16[32,16] convert", "wb = f32[32,16] copy");
    let b = folder.file("b.hlo", &right);
    expect(&["compare", &a, &b], 0, &["the same: 3 outputs"]);
    let negated = SIGNS.replace("s = f32[64,16] sign(yf)", "s0 = f32[64,16] sign(yf)\n  s = f32[64,16] negate(s0)");
    let b = folder.file("b.hlo", &negated);
    expect(&["compare", &a, &b], 4, &["output 0 (%s)"]);
    // What flips says nothing of the output beside it.
    let b = folder.file("b.hlo", &right.replace("constant(0.5)", "constant(0.475)"));
    expect(&["compare", &a, &b], 4, &["output 2 (%u)"]);
}

#[test]
fn inputs_are_drawn_or_read() {
    let folder = Folder::new("inputs");
    let a = folder.file("a.hlo", ADD);
    let b = folder.file("b.hlo", &ADD.replace("add(x, x)", "multiply(x, x)"));
    // Twice and squared are the same for 2 alone.
    expect(&["compare", &a, &b, "--draw", "2 int3"], 0, &["the same"]);
    let arrays = folder.path("in.npz");
    expect(&["eval", &a, "--draw", "2", "-o", &arrays, "--save-inputs"], 0, &[]);
    expect(&["compare", &a, &b, "--inputs", &arrays], 0, &["1 trial;"]);
    expect(&["compare", &a, &b, "--inputs", &arrays, "--trials", "2"], 2, &["cannot be used with"]);
    expect(&["compare", &a, &b, "--draw", "3"], 4, &["expected 6, found 9", "12           12"]);
}

#[test]
fn signatures_that_differ_are_an_error_that_names_the_difference() {
    let folder = Folder::new("signatures");
    let a = folder.file("a.hlo", ADD);
    for (from, to, words) in [
        ("f32[2,3]", "f32[3,2]", "input 0: expected f32[2,3], found f32[3,2]"),
        ("num_partitions=2", "num_partitions=4", "expected 2 devices, found 4"),
        (
            "ROOT out = (f32[2,3], s32[4]) tuple(y, m)",
            "ROOT out = (f32[2,3]) tuple(y)",
            "expected 2 output leaves, found 1",
        ),
    ] {
        let b = folder.file("b.hlo", &ADD.replace(from, to));
        expect(&["compare", &a, &b], 1, &["has another signature than", words]);
    }
    expect(&["compare", "-", "-"], 2, &["found - twice"]);
    expect(&["compare", &a, "no-such-file"], 1, &["cannot read `no-such-file`"]);
}

/// The program of each of four devices, as a partitioner names it; its header counts none.
const WITHOUT_COUNTS: &str = "\
HloModule m

%add (x: u32[], y: u32[]) -> u32[] {
  %x = u32[] parameter(0)
  %y = u32[] parameter(1)
  ROOT %z = u32[] add(%x, %y)
}

ENTRY %main_spmd {
  %a = u32[16]{0} parameter(0), sharding={devices=[4]<=[4]}
  ROOT %r = u32[16]{0} all-reduce(%a), channel_id=1, replica_groups={}, to_apply=%add, sharding={devices=[4]<=[4]}
}
";

#[test]
fn devices_that_annotations_alone_name_are_counted() {
    let folder = Folder::new("annotated");
    let a = folder.file("a.hlo", WITHOUT_COUNTS);
    let local = WITHOUT_COUNTS.replace("all-reduce(%a), channel_id=1, replica_groups={}, to_apply=%add", "copy(%a)");
    let b = folder.file("b.hlo", &local);
    let counted = folder.file("c.hlo", &WITHOUT_COUNTS.replace("HloModule m", "HloModule m, num_partitions=4"));
    expect(&["compare", &a, &b], 4, &["the header has no counts; 4 partitions, by `sharding=`", "output 0 (%r)"]);
    expect(&["prove", &a, &b], 4, &["on 4 devices"]);
    expect(&["compare", &a, &counted], 0, &["on 4 devices"]);
}

#[test]
fn state_in_shards_is_compared_by_its_folder() {
    let folder = Folder::new("state");
    let (step, shards) = (sample("passes/shard-weight-update/sgd.hlo"), folder.path("shards"));
    expect(&["--pass", "shard-weight-update{state=auto,min-bytes=0}", &step, "-o", &shards], 0, &[]);
    expect(&["compare", &step, &shards], 0, &["the same"]);
    let main = folder.path("shards/main.hlo");
    expect(&["compare", &step, &main], 1, &["its state is in shards: name the folder"]);
}

#[test]
fn the_pass_that_changes_the_results_is_named() {
    let folder = Folder::new("bisect");
    let step = sample("passes/shard-weight-update/adam-replicas.hlo");
    let pipeline = "simplify-algebra,cse,shard-weight-update{min-bytes=0},dce";
    let common = ["bisect", &step, "--passes", pipeline, "--replicated-params", "0-2"];
    let (out, unequal) = (folder.path("out"), folder.path("unequal.npz"));
    // The promise that devices hold the same is kept by whatever is drawn, and broken by a file.
    for same in ["none", "0-2", "auto"] {
        let kept = ["--same", same, "--trials", "1", "--out-dir", &out];
        expect(&[&common[..], &kept].concat(), 0, &["no pass changes the results: 4 passes, "]);
        assert!(!Path::new(&out).exists());
    }
    expect(&["eval", &step, "--same", "none", "-o", &unequal, "--save-inputs"], 0, &[]);
    let broken = ["--inputs", &unequal, "--out-dir", &out];
    expect(
        &[&common[..], &broken].concat(),
        4,
        &["pass 3 of 4 changes the results: shard-weight-update\n", "different (inputs of "],
    );
    let (before, after) = (folder.path("out/before.hlo"), folder.path("out/after.hlo"));
    expect(&["compare", &before, &after, "--same", "none"], 4, &[]);
    expect(&["compare", &before, &after, "--same", "0-2"], 0, &[]);
    expect(&["bisect", &step], 2, &["expected --pass or --preset"]);
    expect(&["bisect", &step, "--pass", "no-such-pass"], 2, &["unknown pass"]);
}

#[test]
fn a_preset_is_bisected_with_its_state_in_shards() {
    let step = sample("passes/shard-weight-update/sgd.hlo");
    let preset = "sharded-state{objective=memory,min-bytes=0}";
    let words = ["takes `all state in shards`", "no pass changes the results: "];
    expect(&["bisect", &step, "--preset", preset], 0, &words);
}

#[test]
fn a_step_of_one_device_is_bisected_through_its_partition() {
    let step = sample("search/mlp.6.hlo");
    let pipeline = "search-parallelization{devices=3},spmd-partition,simplify-tuples,cse,dce";
    expect(&["bisect", &step, "--pass", pipeline, "--trials", "1"], 0, &["no pass changes the results: 5 passes, "]);
    expect(
        &["bisect", &step, "--preset", "auto-parallel{devices=2}", "--trials", "1"],
        0,
        &["no pass changes the results"],
    );
}

#[test]
fn a_global_program_runs_as_a_whole_in_both_forms() {
    let folder = Folder::new("global-eval");
    for form in ["unopt", "unopt_gspmd"] {
        let program = sample(&format!("global/partial_manual.{form}.hlo"));
        let arrays = folder.path(&format!("{form}.npz"));
        let words = ["a global program, run as a whole on 8 devices"];
        expect(&["eval", &program, "-o", &arrays, "--save-inputs"], 0, &words);
        expect(&["eval", &program, "--same", "none"], 2, &["a global program, which has one set of inputs"]);
        // One set of inputs and one of outputs, which go in again.
        expect(&["eval", &program, "--inputs", &arrays], 0, &["out0  f32[32,128]              from -1 to 1\n"]);
        expect(&["compare", &program, &sample("global/partial_manual.hlo"), "--inputs", &arrays], 0, &["the same"]);
    }
    expect(
        &["run", "--backend", "host", &sample("global/partial_manual.unopt.hlo")],
        1,
        &["expected the program of each device, found a global program"],
    );
}

#[test]
fn a_per_device_program_is_compared_with_the_global_one_tile_by_tile() {
    let pairs = [
        ("programs/mlp_adam.unopt.hlo", "programs/mlp_adam.hlo", "20 outputs of the global program on 8 devices"),
        ("programs/mlp_sgd.unopt_gspmd.hlo", "programs/mlp_sgd.spmd_gspmd.hlo", "7 outputs of the global program"),
        ("global/partial_manual.unopt.hlo", "global/partial_manual.hlo", "1 outputs of the global program"),
        ("global/partial_manual.unopt_gspmd.hlo", "global/partial_manual.spmd_gspmd.hlo", "1 outputs of the global"),
        ("global/fsdp_mlp_sgd.unopt.hlo", "global/fsdp_mlp_sgd.hlo", "3 outputs of the global program on 8 devices"),
        ("global/shapes_mix.unopt_gspmd.hlo", "global/shapes_mix.spmd_gspmd.hlo", "3 outputs of the global program"),
        // Two forms of one program.
        ("global/ulysses_fwd.unopt.hlo", "global/ulysses_fwd.unopt_gspmd.hlo", "1 outputs of the global program"),
    ];
    for (global, other, words) in pairs {
        expect(&["compare", &sample(global), &sample(other), "--trials", "1"], 0, &["the same: ", words]);
    }
}

#[test]
fn a_global_program_that_is_broken_is_told_from_what_was_made_of_it() {
    let folder = Folder::new("global-mutants");
    let (program, local) = ("global/partial_manual.unopt.hlo", sample("global/partial_manual.hlo"));
    let text = std::fs::read_to_string(sample(program)).expect("the sample");
    let broken = |name: &str, from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        folder.file(name, &text.replace(from, to))
    };
    let differs = |file: &str, words: &[&str]| expect(&["compare", file, &local, "--trials", "1"], 4, words);
    // The sum is dropped: copies differ, and each device's own is compared.
    let sum = "all-reduce(dot_general.3), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, \
               to_apply=region_0.1";
    differs(
        &broken("dropped.hlo", sum, "copy(dot_general.3)"),
        &[
            "note: `",
            "that devices 0 and 4 go on with differ at [0, 0]",
            "different (seed 0): output 0",
            "in its tile by {devices=[4,1,2]",
        ],
    );
    differs(&broken("groups.hlo", "{{0,4},{1,5},{2,6},{3,7}}", "{{0,1},{2,3},{4,5},{6,7}}"), &["different"]);
    // Another tile of one operand alone.
    let whole = "[{?}, {\\\"x\\\", ?}]>, <@mesh, [{\\\"x\\\", ?}, {?}]>";
    let turned = "mesh = #sdy.mesh<[\"x\"=2, \"y\"=4]>";
    let two_meshes = format!("{turned}, turned = #sdy.mesh<[\"x\"=2, \"y\"=4], device_ids=[4,5,6,7,0,1,2,3]>");
    let other_tile = text.replace(turned, &two_meshes).replace(whole, &whole.replacen(">, <@mesh", ">, <@turned", 1));
    differs(&folder.file("tile.hlo", &other_tile), &["different"]);
    // An axis swapped on both: the tiles no longer fit the body.
    let swapped = broken("axis.hlo", whole, &whole.replace("\\\"x\\\"", "\\\"y\\\""));
    expect(
        &["compare", &swapped, &local],
        1,
        &["value 0: expected tiles of [32, 64] in [1, 1] parts along its dims, found [32, 32]"],
    );
}

#[test]
fn a_result_whose_cut_nobody_says_is_cut_in_any_way() {
    let folder = Folder::new("unsaid-cut");
    let whole = folder.file(
        "whole.hlo",
        "HloModule g\n\nENTRY %main (x: f32[7], y: f32[8]) -> f32[7] {\n  %x = f32[7]{0} parameter(0)\n  %y = f32[8]{0} parameter(1)\n  \
         ROOT %r = f32[7]{0} negate(%x)\n}\n",
    );
    // Devices 0 and 1 hold the first tile, 2 and 3 the second, of an element less; the one annotation that would fit says another order.
    let local = |of_device: &str, op: &str| {
        format!(
            "HloModule l, num_partitions=4

ENTRY %main (x: f32[7], y: f32[4]) -> f32[4] {{
  %x = f32[7]{{0}} parameter(0), sharding={{replicated}}
  %y = f32[4]{{0}} parameter(1), sharding={{devices=[2,2]<=[2,2]T(1,0) last_tile_dim_replicate}}
  %zero = f32[] constant(0)
  %padded = f32[8]{{0}} pad(%x, %zero), padding=0_1
  %starts = s32[4]{{0}} constant({{{of_device}}})
  %id = u32[] partition-id()
  %own = s32[1]{{0}} dynamic-slice(%starts, %id), dynamic_slice_sizes={{1}}
  %start = s32[] reshape(%own)
  %tile = f32[4]{{0}} dynamic-slice(%padded, %start), dynamic_slice_sizes={{4}}
  ROOT %r = f32[4]{{0}} {op}(%tile)
}}
"
        )
    };
    let right = folder.file("right.hlo", &local("0, 0, 4, 4", "negate"));
    expect(&["compare", &whole, &right], 0, &["the same: 1 outputs of the global program on 4 devices"]);
    expect(&["prove", &whole, &right], 5, &["no annotation says how it is cut", "the results are the same"]);
    // Nobody holds the second tile; three elements are of one tile and one of another; another function.
    for (name, starts, op) in
        [("missing", "0, 0, 0, 0", "negate"), ("shifted", "0, 0, 4, 3", "negate"), ("other", "0, 0, 4, 4", "abs")]
    {
        let wrong = folder.file(&format!("{name}.hlo"), &local(starts, op));
        expect(&["compare", &whole, &wrong], 4, &["different (seed 0): output 0 (%r)"]);
        expect(&["prove", &whole, &wrong], 4, &["refuted"]);
    }
}

#[test]
fn shapes_that_are_no_tiles_are_an_error() {
    let (program, other) = (sample("global/tp_mlp_sgd.unopt.hlo"), sample("global/fsdp_mlp_sgd.hlo"));
    expect(
        &["compare", &program, &other],
        1,
        &["has another signature than", "output 0: expected the tiles that sharding="],
    );
    let (adam, odd) = (sample("programs/mlp_adam.unopt.hlo"), sample("programs/mlp_odd_adam.hlo"));
    expect(&["compare", &adam, &odd], 1, &["input 0: expected the tiles that sharding="]);
    let two = sample("programs/mlp_adam_2.hlo");
    expect(&["compare", &adam, &two], 1, &["expected 2 devices, found a global program on 8"]);
}

const CUT: &str = "HloModule m, num_partitions=4\n\nENTRY main {\n  x = f32[2,8] parameter(0), sharding={devices=[4,1]<=[4]}\n  \
                   ROOT r = f32[2,8] negate(x), sharding={devices=[4,1]<=[4]}\n}\n";

#[test]
fn tiles_that_modules_place_otherwise_are_noted() {
    let folder = Folder::new("other-tiles");
    let [rows, reversed, unsaid] = [
        CUT.to_string(),
        CUT.replace("negate(x), sharding={devices=[4,1]<=[4]}", "negate(x), sharding={devices=[4,1]3,2,1,0}"),
        CUT.replace("negate(x), sharding={devices=[4,1]<=[4]}", "negate(x)"),
    ];
    let files = [("rows.hlo", rows), ("reversed.hlo", reversed), ("unsaid.hlo", unsaid)];
    let [rows, reversed, unsaid] = files.map(|(name, text)| folder.file(name, &text));
    for command in ["compare", "prove"] {
        let told = expect(&[command, &rows, &reversed, "--program", "per-device"], 0, &[]);
        assert!(told.contains("other tiles of output 0: sharding={devices=[4,1]<=[4]}, then"), "{told}");
        let silent = expect(&[command, &rows, &unsaid, "--program", "per-device"], 0, &[]);
        assert!(!silent.contains("other tiles"), "{silent}");
    }
}
