//! `hlo-opt plan parallel`: what it says, obeys and refuses.

use crate::tool;
use hlo_tests::dumped_problem::DumpedProblem;
use hlo_tests::root;
use serde_json::Value;
use std::path::PathBuf;

/// Unity's MLP for 24 devices.
fn mlp() -> String {
    root().join("../crates/hlo-search/examples/mlp.24.hlo").display().to_string()
}

fn sample(name: &str) -> String {
    root().join("../ir-samples").join(name).display().to_string()
}

/// The exit code of `hlo-opt plan parallel`, and what it prints to stdout and stderr.
fn plan(args: &[&str]) -> (u8, String, String) {
    tool::run(["plan", "parallel"].iter().chain(args))
}

fn json(args: &[&str]) -> Value {
    let (code, stdout, stderr) = plan(&[args, &["--emit", "json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// A file in a folder of its own.
fn written(name: &str, text: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hlo-opt-plan-parallel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn a_plan_is_no_worse_than_its_baselines_and_no_better_than_its_bound() {
    let words = [&mlp()[..], "--devices", "24", "--machine", "h100", "--axes", "2"];
    let report = json(&words);
    let step = report["step_s"].as_f64().expect("a time");
    assert!(report["bound_s"].as_f64().expect("a bound") <= step);
    assert!(report["emitted_step_s"].as_f64().expect("a time") <= step);
    let baselines = report["baselines"].as_array().expect("baselines");
    let names: Vec<&str> = baselines.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["data parallel", "ZeRO-1", "ZeRO-3", "Megatron"]);
    assert!(baselines.iter().all(|one| one["step_s"].as_f64().is_none_or(|s| s >= step)), "{baselines:?}");
    assert_eq!(plan(&words), plan(&words), "the same bytes twice");
}

#[test]
fn pins_are_obeyed_and_cost_what_they_cost() {
    let free = json(&[&mlp(), "--devices", "24", "--mesh", "4x6"]);
    let pins = written("pins.toml", "\"%weights__dense002__.1\" = [1, 1]\n\"weights['dense004']\" = [6, 1]\n");
    let pins = pins.display().to_string();
    let (code, _, stderr) = plan(&[&mlp(), "--devices", "24", "--mesh", "4x6", "--pins", &pins]);
    // A name that is none is an error that says which.
    assert_eq!(code, 1);
    assert!(stderr.contains("`weights['dense004']`"), "{stderr}");
    let pins = written("pins.toml", "\"%weights__dense002__.1\" = [1, 1]\n\"%weights__dense004__.1\" = [6, 1]\n");
    let pinned = json(&[&mlp(), "--devices", "24", "--mesh", "4x6", "--pins", &pins.display().to_string()]);
    let state = |name: &str| {
        let params = pinned["params"].as_array().expect("parameters");
        let of_name = params.iter().find(|param| param["name"] == name).expect("the parameter");
        of_name["state"].as_str().expect("a state").to_string()
    };
    assert_eq!(state("weights__dense002__.1"), "R,R");
    assert_eq!(state("weights__dense004__.1"), "R,0");
    assert!(pinned["step_s"].as_f64() >= free["step_s"].as_f64());
}

#[test]
fn what_a_decision_costs_is_told() {
    let words = [&mlp()[..], "--devices", "24", "--mesh", "4x6", "--why", "%weights__dense002__.1", "--why", "%nobody"];
    let (code, stdout, stderr) = plan(&words);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("why state of %weights__dense002__.1: "), "{stdout}");
    assert!(stdout.contains("why %nobody: no parameter and no value"), "{stdout}");
    let report = json(&words);
    let others = report["why"][0][1]["others"].as_array().expect("other states");
    let step = report["step_s"].as_f64().expect("a time");
    assert!(!others.is_empty() && others.iter().all(|other| other["step_s"].as_f64().is_none_or(|s| s >= step)));
}

#[test]
fn a_limit_that_no_plan_keeps_names_the_least() {
    let (code, stdout, stderr) = plan(&[&mlp(), "--devices", "24", "--mesh", "4x6", "--memory-limit", "64MiB"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(
        stderr.contains("no plan found within 67108864 bytes") && stderr.contains("the least that was found is "),
        "{stderr}"
    );
}

#[test]
fn a_limit_makes_a_plan_that_takes_less_and_longer() {
    let module = sample("passes/search-parallelization/memory-limit.hlo");
    let words = [&module[..], "--devices", "4", "--machine", "h100"];
    let free = json(&words);
    let peak = |report: &Value| report["peak_bytes"].as_u64().expect("bytes");
    let step = |report: &Value| report["step_s"].as_f64().expect("a time");
    let limit = 40 << 10;
    assert!(peak(&free) > limit, "without a limit {} bytes are taken: this shows nothing", peak(&free));
    let path = written("problem-memory.json", "").display().to_string();
    let limit_text = limit.to_string();
    let within = json(&[&words[..], &["--memory-limit", &limit_text, "--dump-problem", &path]].concat());
    assert!(peak(&within) <= limit && step(&within) > step(&free), "{} bytes", peak(&within));
    let problem = DumpedProblem::read(&std::fs::read_to_string(&path).expect("a file")).expect("as described");
    assert_eq!(problem.check(), Ok(()));
    assert!(
        problem.limits.iter().all(|&(allowed, _)| allowed <= limit) && !problem.limits.is_empty(),
        "{:?}",
        problem.limits
    );
}

#[test]
fn a_chain_of_layers_is_cut_into_stages() {
    let report = json(&[&mlp(), "--devices", "24", "--machine", "h100", "--mesh", "12x2"]);
    let pipelines = report["pipelines"].as_array().expect("pipelines");
    let n_stages: Vec<u64> = pipelines.iter().filter_map(|one| one["n_stages"].as_u64()).collect();
    // 16 weights, 24 devices.
    assert_eq!(n_stages, [2, 3, 4, 6, 8, 12]);
    for pipeline in pipelines {
        let begins = pipeline["begins"].as_array().expect("first weights");
        assert_eq!(Some(begins.len() as u64), pipeline["n_stages"].as_u64());
        assert_eq!(begins[0], "weights__dense000__.1");
        let bubble = pipeline["bubble_share"].as_f64().expect("a share");
        assert!((0.0..1.0).contains(&bubble), "{bubble}");
    }
    let (_, text, _) = plan(&[&mlp(), "--devices", "24", "--machine", "h100", "--mesh", "12x2"]);
    assert!(text.contains("pipeline (1F1B)") && text.contains("no pass writes it"), "{text}");
}

#[test]
fn the_preset_writes_a_program_with_the_same_results() {
    let step = sample("search/xdl.6.hlo");
    let out = written("local.hlo", "").display().to_string();
    // So little memory that tables have to be cut.
    let preset = "auto-parallel{devices=3}";
    let (code, _, stderr) =
        tool::run(["--preset", preset, "--memory-limit", "50KiB", "--machine", "h100", &step, "-o", &out]);
    assert_eq!(code, 0, "{stderr}");
    let local = std::fs::read_to_string(&out).expect("the program");
    assert!(local.contains("num_partitions=3") && local.contains("all-gather("), "{local}");
    let (code, stdout, stderr) = tool::run(["compare", &step, &out]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

/// A step with eight tables, whose rows a product of so many columns takes one beside the other.
fn tables(columns: usize) -> String {
    root().join(format!("../crates/hlo-search/examples/tables.{columns}.hlo")).display().to_string()
}

/// The gradient of what is concatenated comes as one product of which each table's part is sliced. Few columns are cheap to gather, so that
/// each device computes the parts that it wants; many are not.
#[test]
fn a_product_is_split_where_that_makes_the_plan_cheaper() {
    let words = |file: &str| json(&[file, "--devices", "8", "--machine", "h100", "--axes", "2", "--regions"]);
    let (few, many) = (words(&tables(64)), words(&tables(4096)));
    let taken = |report: &Value| report["algebra"]["taken"].as_u64();
    let way = &few["algebra"]["ways"][0]["what"]["regions"];
    assert_eq!(taken(&few), Some(0), "{few}");
    assert_eq!(way["taken"][0]["region"]["n_products_so"], 8, "{way}");
    let (step, plain) = (few["step_s"].as_f64().unwrap(), few["algebra"]["plain_step_s"].as_f64().unwrap());
    let without = way["taken"][0]["without_s"].as_f64().expect("a time");
    assert!(step < 0.95 * plain && (without - plain).abs() < 1e-9 * plain, "{step} {without} {plain}");
    assert_eq!(few["bound_s"].as_f64(), few["step_s"].as_f64(), "nothing takes less");
    assert_eq!(taken(&many), None, "{many}");
    assert_eq!(many["bound_s"].as_f64(), many["step_s"].as_f64(), "no way of a region makes a plan that takes less");
}

#[test]
fn a_program_with_regions_in_other_ways_gives_the_same() {
    let mut text = "HloModule three\n\nENTRY %main {\n  %x = f32[250,120] parameter(0)\n".to_string();
    for k in 0..3 {
        let dot = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        let w = format!("  %w{k} = f32[120,33] parameter({})\n  %d{k} = f32[250,33] dot(%x, %w{k}), {dot}\n", k + 1);
        text += &format!("{w}  %t{k} = f32[250,33] tanh(%d{k})\n");
    }
    text += "  ROOT %out = (f32[250,33], f32[250,33], f32[250,33]) tuple(%t0, %t1, %t2)\n}\n";
    let step = written("three.hlo", &text).display().to_string();
    let annotated = written("regions.hlo", "").display().to_string();
    let words = ["--devices", "4", "--regions", "--algebra", "none", "-o", &annotated];
    let (code, stdout, stderr) = plan(&[&[&step[..]], &words[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("algebra, as the plan has it: %d0, %d1, %d2: 3 products as 1"), "{stdout}");
    let local = written("regions.local.hlo", "").display().to_string();
    let (code, _, stderr) = tool::run(["--pass", "spmd-partition,dce", &annotated, "-o", &local]);
    assert_eq!(code, 0, "{stderr}");
    let (code, stdout, stderr) = tool::run(["compare", &step, &local]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

#[test]
fn what_the_search_is_kept_from_is_said_and_has_its_price() {
    let step = |parts: &str| {
        let words = [&mlp()[..], "--devices", "24", "--machine", "h100", "--mesh", "12x2", "--algebra", "none"];
        json(&[&words[..], &["--without", parts]].concat())["step_s"].as_f64().expect("a time")
    };
    let whole = step("");
    for parts in ["parameter-cuts", "attribute-cuts", "reduction-cuts", "joint"] {
        assert!(step(parts) > whole, "{parts}");
    }
    let words = ["--devices", "24", "--mesh", "12x2", "--without", "reduction-cuts+joint"];
    let (_, stdout, _) = plan(&[&[&mlp()[..]], &words[..]].concat());
    assert!(stdout.contains("kept from reduction-cuts, joint"), "{stdout}");
    let (code, _, stderr) = plan(&[&mlp(), "--without", "joint", "--regions"]);
    assert_eq!(code, 2, "regions are searched for beside nothing that is fixed");
    assert!(stderr.contains("cannot be used with"), "{stderr}");
    let pass = "search-parallelization{devices=2,regions=true,plan=megatron}";
    let (code, _, stderr) = tool::run(["--pass", pass, &mlp()]);
    assert_eq!(code, 2);
    assert!(stderr.contains("option `regions`: expected neither `pins` nor `without` nor `plan`"), "{stderr}");
    let (code, _, stderr) = plan(&[&mlp(), "--without", "cuts"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("expected parameter-cuts, attribute-cuts, reduction-cuts, joint, found `cuts`"),
        "{stderr}"
    );
}

#[test]
fn a_plan_by_chance_keeps_no_limit_and_says_so() {
    let pass = "@memory-limit=1MiB;search-parallelization{devices=2,draw=1}";
    let (code, _, stderr) = tool::run(["--pass", pass, &mlp()]);
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("option `draw`: expected neither `pins` nor `memory-limit` nor `plan` beside it"),
        "{stderr}"
    );
}

#[test]
fn programs_that_are_partitioned_already_are_refused() {
    let (code, _, stderr) = plan(&[&sample("programs/mlp_adam.hlo")]);
    assert_eq!(code, 1);
    assert!(stderr.contains("expected a global program that nobody has cut, found one of 8 devices"), "{stderr}");
    let (code, _, stderr) = plan(&[&sample("global/partial_manual.unopt.hlo")]);
    assert_eq!(code, 1);
    assert!(stderr.contains("a manual region (shard_map)") && stderr.contains("`%"), "{stderr}");
}

#[test]
fn where_nothing_can_be_cut_the_program_stays_as_it_is() {
    let text = "HloModule m\n\nENTRY %main (x: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  ROOT %y = f32[] add(%x, %x)\n}\n";
    let (file, out) = (written("scalar.hlo", text), written("out.hlo", ""));
    let (code, stdout, stderr) = plan(&[&file.display().to_string(), "-o", &out.display().to_string()]);
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert!(stderr.contains("unchanged: no value has a dim that could be cut"), "{stderr}");
    assert!(!std::fs::read_to_string(out).expect("the file").contains("sharding"));
}

#[test]
fn meshes_that_do_not_fit_are_refused() {
    let (code, _, stderr) = plan(&[&mlp(), "--devices", "24", "--mesh", "5x5"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("whose product is 24, found `5x5`"), "{stderr}");
}

#[test]
fn numbers_that_are_none_are_refused_and_one_device_has_nothing_to_divide() {
    for wrong in ["--time-limit=-1", "--time-limit=nan", "--effort=nan", "--gap=-0.5"] {
        let (code, _, stderr) = plan(&[&mlp(), wrong]);
        assert_eq!(code, 2, "{wrong}");
        assert!(stderr.contains("expected a number of 0 or more"), "{stderr}");
    }
    let (code, _, stderr) = plan(&[&mlp(), "--devices", "1"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("unchanged: there is one device"), "{stderr}");
}

/// Two layers and their gradients.
const LAYERS: &str = "\
HloModule layers, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
ENTRY %step {
  %w1 = f32[512,2048] parameter(0)
  %w2 = f32[2048,512] parameter(1)
  %x = f32[96,512] parameter(2)
  %h = f32[96,2048] dot(%x, %w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %a = f32[96,2048] tanh(%h)
  %y = f32[96,512] dot(%a, %w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %dw2 = f32[2048,512] dot(%a, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %da = f32[96,2048] dot(%y, %w2), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %dh = f32[96,2048] multiply(%da, %a)
  %dw1 = f32[512,2048] dot(%x, %dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %n1 = f32[512,2048] subtract(%w1, %dw1)
  %n2 = f32[2048,512] subtract(%w2, %dw2)
  %zero = f32[] constant(0)
  %loss = f32[] reduce(%y, %zero), dimensions={0,1}, to_apply=%sum
  ROOT %out = (f32[512,2048], f32[2048,512], f32[]) tuple(%n1, %n2, %loss)
}
";

/// A reader that knows nothing of the search adds up what is claimed.
#[test]
fn what_a_dumped_problem_claims_adds_up() {
    let module = written("layers.hlo", LAYERS).display().to_string();
    let machine = "[(node,2,12.5,2),(gpu,6,50,2)]";
    for (mesh, machine) in [("6", None), ("2x2", None), ("2x6", Some(machine)), ("2x3x2", None)] {
        let sizes: Vec<i64> = mesh.split('x').map(|size| size.parse().expect("a number")).collect();
        let n_devices = sizes.iter().product::<i64>().to_string();
        let path = written(&format!("problem-{mesh}.json"), "").display().to_string();
        let mut words = vec![&module[..], "--mesh", mesh, "--gap", "0", "--dump-problem", &path];
        match machine {
            Some(machine) => words.extend(["--machine", machine]),
            None => words.extend(["--devices", &n_devices]),
        }
        let report = json(&words);
        let problem = DumpedProblem::read(&std::fs::read_to_string(&path).expect("a file")).expect("as described");
        assert_eq!((problem.check(), &problem.mesh), (Ok(()), &sizes));
        assert_eq!((report["step_s"].as_f64().expect("a time") * 1e12).round() as i64, problem.summed, "{mesh}");
    }
    // A reader that finds nothing wrong in anything proves nothing.
    let problem = DumpedProblem { mesh: vec![2], cost: 7, bound: 6, summed: 7, limits: vec![(4, 4)], least: 5 };
    assert_eq!(problem.check(), Ok(()));
    assert!(DumpedProblem { summed: 8, ..problem.clone() }.check().is_err());
    assert!(DumpedProblem { bound: 8, ..problem.clone() }.check().is_err());
    assert!(DumpedProblem { bound: 4, ..problem.clone() }.check().is_err());
    assert!(DumpedProblem { limits: vec![(4, 4), (4, 5)], ..problem }.check().is_err());
    assert!(DumpedProblem::read("{}").is_err());
}

/// Two branches whose weights meet: what a plan takes beyond what is counted differs from plan to plan.
const BRANCHES: &str = "\
HloModule branches, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
ENTRY %e {
  %w = f32[12,12] parameter(0)
  %v = f32[12,12] parameter(1)
  %x = f32[24,12] parameter(2)
  %y = f32[36,12] parameter(3)
  %a = f32[24,12] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %a2 = f32[24,12] dot(%a, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %b = f32[36,12] dot(%y, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %b2 = f32[36,12] dot(%b, %w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %c = f32[24,36] dot(%a2, %b2), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %dw = f32[12,12] dot(%a, %a2), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %dv = f32[12,12] dot(%b, %b2), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %nw = f32[12,12] subtract(%w, %dw)
  %nv = f32[12,12] subtract(%v, %dv)
  ROOT %r = (f32[12,12], f32[12,12], f32[24,36]) tuple(%nw, %nv, %c)
}
";

/// No plan within a tighter limit takes less than what bounds the plans within a wider one.
#[test]
fn a_bound_under_a_limit_holds_for_plans_under_tighter_ones() {
    let module = written("branches.hlo", BRANCHES).display().to_string();
    let slow = "name = \"mid\"\n[device]\nname = \"mid\"\nmemory_bytes_per_s = 1e8\nmemory_bytes = 1e12\nlaunch_s = 0\nflops_per_s = { f32 = 1e8 }\n";
    let device = written("mid.toml", slow).display().to_string();
    let mut plans: Vec<(f64, f64)> = Vec::new();
    for limit in ["5443", "5896", "6400", "7000"] {
        let words = ["--devices", "4", "--mesh", "2x2", "--machine", &device, "--memory-limit", limit];
        let report = json(&[&[module.as_str()][..], &words].concat());
        plans.push((report["step_s"].as_f64().expect("a time"), report["bound_s"].as_f64().expect("a bound")));
    }
    for (k, (_, bound)) in plans.iter().enumerate() {
        assert!(plans[..=k].iter().all(|(step, _)| *step >= bound * (1.0 - 1e-9)), "{plans:?}");
    }
}

/// A loop whose body and the entry call a matrix by the same name; the loop carries two matrices.
const SHARED_NAMES: &str = r#"HloModule step

%cond (carry: (s32[], f32[64,64], f32[64,64])) -> pred[] {
  %carry = (s32[], f32[64,64], f32[64,64]) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (carry.1: (s32[], f32[64,64], f32[64,64])) -> (s32[], f32[64,64], f32[64,64]) {
  %carry.1 = (s32[], f32[64,64], f32[64,64]) parameter(0)
  %i.1 = s32[] get-tuple-element(%carry.1), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i.1, %one)
  %x = f32[64,64] get-tuple-element(%carry.1), index=1
  %y = f32[64,64] get-tuple-element(%carry.1), index=2
  %twice = f32[64,64] dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="product"}
  %more = f32[64,64] dot(%twice, %twice), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = f32[64,64] add(%more, %twice)
  ROOT %out = (s32[], f32[64,64], f32[64,64]) tuple(%next, %sum, %y)
}

ENTRY %main (w: f32[64,64], v: f32[64,64]) -> f32[64,64] {
  %w = f32[64,64] parameter(0)
  %v = f32[64,64] parameter(1)
  %twice = f32[64,64] dot(%w, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="product"}
  %squared = f32[64,64] dot(%twice, %twice), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = f32[64,64] add(%squared, %twice)
  %zero = s32[] constant(0)
  %begin = (s32[], f32[64,64], f32[64,64]) tuple(%zero, %sum, %w)
  %loop = (s32[], f32[64,64], f32[64,64]) while(%begin), condition=%cond, body=%body
  ROOT %end = f32[64,64] get-tuple-element(%loop), index=1
}
"#;

#[test]
fn a_pin_tells_values_of_one_name_apart() {
    let file = written("shared_names.hlo", SHARED_NAMES).display().to_string();
    let run = |pins: &str| {
        let pins = written("shared_names.toml", pins).display().to_string();
        plan(&[&file, "--devices", "4", "--mesh", "4", "--pins", &pins, "--emit", "json"])
    };
    let (code, _, stderr) = run("\"product\" = [4, 1]\n");
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("found 2 of that name: say `main/%twice.1#0`, `body/%twice#0`"), "{stderr}");
    for pins in ["\"main/%twice\" = [4, 1]\n", "\"body/%twice\" = [4, 1]\n", "\"main/%twice#0\" = [1, 4]\n"] {
        let (code, _, stderr) = run(pins);
        assert_eq!(code, 0, "{pins}: {stderr}");
    }
    let (code, _, stderr) = plan(&[&file, "--devices", "4", "--mesh", "4", "--why", "product"]);
    assert!(code == 1 && stderr.contains("found 2 of that name"), "{stderr}");
    let (code, _, stderr) = tool::run(["--pass", "search-parallelization{pins=nope.txt}", "-o", "-", &file]);
    assert!(code == 1 && stderr.contains("found `nope.txt`, which is neither"), "{stderr}");
}

#[test]
fn a_step_of_a_million_seconds_is_not_told_as_a_lack_of_effort() {
    let device = "name = \"slow\"\n[device]\nname = \"slow\"\nmemory_bytes_per_s = 1e-3\nmemory_bytes = 1e12\nlaunch_s = 0\nflops_per_s = { f32 = 1e-3 }\n";
    let device = written("slow_device.toml", device).display().to_string();
    let file = written("shared_names.hlo", SHARED_NAMES).display().to_string();
    let (code, _, stderr) = plan(&[&file, "--devices", "4", "--machine", &device]);
    assert!(code == 1 && stderr.contains("a million seconds"), "{stderr}");
}
