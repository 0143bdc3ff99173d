//! Machines on the command line: shipped names, and files that describe links, a device or both.

use crate::cli::{folder, run, sample};
use serde_json::Value;

const CLUSTER: &str = "name = \"pair\"\n[[level]]\nname = \"gpu\"\ncount = 2\ngbytes_per_s = 1\n";
const DEVICE: &str = "[device]\nname = \"slowpoke\"\nmemory_bytes_per_s = 1e9\nmemory_bytes = 1e9\nlaunch_s = 1e-3\n\
                      [device.flops_per_s]\nf32 = 1e9\n";
const SUM: &str = "HloModule m, replica_count=2\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
                   ROOT s = f32[] add(a, b)\n}\nENTRY e {\n  x = f32[1024] parameter(0)\n  n = f32[1024] negate(x)\n  \
                   ROOT s = f32[1024] all-reduce(n), replica_groups={{0,1}}, to_apply=add\n}\n";

#[test]
fn analyze_time_reads_files_of_machines() {
    let folder = folder("machines");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let machine = write("pair.toml", &format!("{CLUSTER}{DEVICE}"));
    let module = write("sum.hlo", SUM);
    let text = run(&["analyze", "time", "--machine", &machine, &module]);
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    assert!(text.stdout.starts_with("predicted on 2 x slowpoke, pair\n"), "{}", text.stdout);
    let seconds = |args: &[&str]| {
        let args = [&["analyze", "time", "--format", "json", &module], args].concat();
        let facts: Value = serde_json::from_str(&run(&args).stdout).expect("JSON");
        (facts["compute_s"].as_f64().expect("seconds"), facts["communication_s"].as_f64().expect("seconds"))
    };
    let (fast, slow) = (seconds(&[]), seconds(&["--machine", &machine]));
    assert!(slow.0 > 1e-3 && slow.0 > 100.0 * fast.0, "{fast:?} {slow:?}");
    assert!(slow.1 > fast.1, "{fast:?} {slow:?}");
    // A file may have links alone, or a device alone.
    let links = run(&["analyze", "time", "--machine", &write("links.toml", CLUSTER), &module]).stdout;
    assert!(links.starts_with("predicted on 2 x h200, pair\n"), "{links}");
    let alone = write("alone.toml", &format!("name = \"alone\"\n{DEVICE}"));
    let alone = run(&["analyze", "time", "--machine", &alone, &module]).stdout;
    assert!(alone.starts_with("predicted on 2 x slowpoke, one switch\n"), "{alone}");
    let one_switch = run(&["analyze", "time", "--machine", "a100:switch", &module]).stdout;
    assert!(one_switch.starts_with("predicted on 2 x a100, one switch\n"), "{one_switch}");
    // A wrong file is named.
    let missing = run(&["analyze", "time", "--machine", "no-such.toml", &module]);
    assert!(missing.code == 1 && missing.stderr.contains("cannot read `no-such.toml`"), "{}", missing.stderr);
    let refused = run(&["analyze", "time", "--machine", &write("wrong.toml", "name = 3\n"), &module]);
    assert!(refused.code == 1 && refused.stderr.contains("wrong.toml`: "), "{}", refused.stderr);
    let unknown = run(&["analyze", "time", "--machine", "abacus", &module]);
    assert!(unknown.code == 2 && unknown.stderr.contains("--machine"), "{}", unknown.stderr);
}

#[test]
fn the_machine_of_a_pipeline_may_come_from_a_file() {
    let file = folder("machines-pass").join("twin.toml");
    std::fs::write(&file, format!("name = \"twin\"\n{DEVICE}")).expect("a file");
    let sample = sample("programs/mlp_sgd_wide.hlo");
    let with = |machine: &str| run(&["--pass", &format!("@machine={machine};shard-weight-update"), &sample]);
    let by_file = with(&file.display().to_string());
    assert_eq!(by_file.code, 0, "{}", by_file.stderr);
    assert!(by_file.stderr.contains("time for 8 x slowpoke, one switch"), "{}", by_file.stderr);
    assert_eq!(with("no-such.toml").code, 1);
    std::fs::write(&file, "name = 3\n").expect("a file");
    let wrong = with(&file.display().to_string());
    assert!(wrong.code == 2 && wrong.stderr.contains("setting `@machine`: cluster, line 1"), "{}", wrong.stderr);
}

#[test]
fn assumed_trip_counts_are_said() {
    let file = folder("machines-loop").join("loop.hlo");
    let text = "HloModule m\nc {\n  p = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  \
                n = s32[] get-tuple-element(p), index=1\n  ROOT c = pred[] compare(i, n), direction=LT\n}\n\
                b {\n  p = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  \
                n = s32[] get-tuple-element(p), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  \
                ROOT t = (s32[], s32[]) tuple(j, n)\n}\nENTRY e {\n  n = s32[] parameter(0)\n  zero = s32[] constant(0)\n  \
                t = (s32[], s32[]) tuple(zero, n)\n  w = (s32[], s32[]) while(t), condition=c, body=b\n  \
                ROOT r = s32[] get-tuple-element(w), index=0\n}\n";
    std::fs::write(&file, text).expect("a file");
    let file = file.display().to_string();
    let report = run(&["analyze", "time", &file]).stdout;
    assert!(report.contains("  1 loop is taken to run 100 times: --unknown-trip-count\n"), "{report}");
    let facts = run(&["analyze", "time", "--format", "json", "--unknown-trip-count", "7", &file]).stdout;
    let facts: Value = serde_json::from_str(&facts).expect("JSON");
    assert_eq!((facts["n_assumed_loops"].as_u64(), facts["unknown_trip_count"].as_u64()), (Some(1), Some(7)));
}
