//! Which programs are taken for global ones, and what commands make of the two kinds.

use crate::cli::{Outcome, folder, run, sample};
use hlo_tests::{root, samples};
use std::path::{Path, PathBuf};

/// A step as JAX dumps it before XLA's passes with GSPMD: parameters and results alone have shardings, and no call
/// speaks to a partitioner.
const GSPMD_STEP: &str = "HloModule jit_loss, entry_computation_layout={(f32[8,6]{1,0}, f32[6,12]{1,0})->f32[12]{0}}, \
    allow_spmd_sharding_propagation_to_parameters={false,false}, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main.9 (x: f32[8,6], w: f32[6,12]) -> f32[12] {
  %x = f32[8,6]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
  %w = f32[6,12]{1,0} parameter(1), sharding={devices=[1,4]<=[4]}
  %h = f32[8,12]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %zero = f32[] constant(0)
  ROOT %sum = f32[12]{0} reduce(%h, %zero), dimensions={0}, to_apply=%add, sharding={replicated}
}
";

/// A dim of size 1 that is cut over two devices: the second one's tile is padding, and tiles have the shape of the
/// whole.
const SIZE_ONE: &str = "HloModule narrow, num_partitions=2

ENTRY %main (a: f32[3,1], b: f32[4]) -> (f32[3,1], f32[4]) {
  %a = f32[3,1]{1,0} parameter(0), sharding={devices=[1,2]<=[2]}
  %b = f32[4]{0} parameter(1), sharding={devices=[2]<=[2]}
  %n = f32[3,1]{1,0} negate(%a)
  ROOT %r = (f32[3,1]{1,0}, f32[4]{0}) tuple(%n, %b), sharding={{replicated}, {devices=[2]<=[2]}}
}
";

/// Values on single devices, and a cut one beside them.
const MAXIMAL: &str = "HloModule placed, num_partitions=2

ENTRY %main (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0), sharding={maximal device=1}
  %b = f32[4]{0} parameter(1), sharding={devices=[2]<=[2]}
  %t = f32[4]{0} negate(%a), sharding={maximal device=0}
  ROOT %s = f32[4]{0} add(%t, %b), sharding={replicated}
}
";

fn written(name: &str, text: &str) -> String {
    let file = folder(&format!("program_kinds_{}", name.replace('.', "_"))).join(name);
    std::fs::write(&file, text).expect("a file");
    file.display().to_string()
}

/// Whether `audit` takes a file for a global program: it refuses those alone.
fn is_global(file: &Path) -> bool {
    let Outcome { code, stderr, .. } = run(&["audit", &file.display().to_string()]);
    let is_refused = stderr.contains("found a global program");
    assert!(code == 0 || is_refused, "{}: {stderr}", file.display());
    is_refused
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn no_program_of_each_device_is_taken_for_a_global_one_or_the_reverse() {
    let (mut n_global, mut n_per_device) = (0, 0);
    let mut expect = |file: &Path, expected: bool| {
        assert_eq!(is_global(file), expected, "{}: {}", file.display(), if expected { "global" } else { "per device" });
        *(if expected { &mut n_global } else { &mut n_per_device }) += 1;
    };
    for folder in ["programs", "global", "audit"] {
        for path in files_below(&root().join(folder)) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.ends_with(".hlo") {
                expect(&path, name.contains(".unopt"));
            }
        }
    }
    for path in files_below(&root().join("dumps")) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        if name.ends_with(".txt") {
            let is_before = name.contains(".before_spmd-partitioning");
            expect(&path, is_before);
            // The text says as much under another name.
            let text = std::fs::read_to_string(&path).expect("the dump");
            let number = n_before(&path);
            expect(Path::new(&written(&format!("step{number}.hlo"), &text)), is_before);
        }
    }
    for sample in samples("passes/propagate-shardings") {
        expect(&sample.path, true);
    }
    assert!(n_global > 50 && n_per_device > 80, "{n_global} global programs, {n_per_device} of each device");
}

/// A number for a path, so that copies of dumps do not overwrite one another.
fn n_before(path: &Path) -> usize {
    path.display().to_string().bytes().fold(0, |n, byte| n.wrapping_mul(31).wrapping_add(usize::from(byte)))
}

#[test]
fn a_program_whose_interface_alone_is_cut_is_partitioned_and_stays_the_same() {
    for (name, text) in [
        ("jit_loss.hlo", GSPMD_STEP),
        ("narrow.hlo", SIZE_ONE),
        (
            "module_0001.jit_f.before_optimizations.txt",
            &GSPMD_STEP.replace("allow_spmd_sharding_propagation_to_parameters={false,false}, ", ""),
        ),
    ] {
        let (file, local) = (written(name, text), written(&format!("{name}.local.hlo"), ""));
        let made = run(&["--preset", "auto-spmd", &file, "-q", "-o", &local]);
        assert_eq!((made.code, made.stderr.as_str()), (0, ""), "{name}");
        let local_text = std::fs::read_to_string(&local).expect("a module");
        assert!(local_text.contains(" all-gather(") || local_text.contains(" all-reduce("), "{name}: {local_text}");
        let compared = run(&["compare", &file, &local]);
        assert!(compared.code == 0 && compared.stdout.contains("of the global program"), "{name}: {}", compared.stdout);
        let proved = run(&["prove", &file, &local]);
        assert!(proved.code == 0 && proved.stdout.contains("of the global program"), "{name}: {}", proved.stdout);
        assert_eq!(run(&["bisect", &file, "--preset", "auto-spmd"]).code, 0, "{name}");
        let checked = run(&["--preset", "auto-spmd", "--check=prove", &file, "-q", "-o", &local]);
        assert_eq!(checked.code, 0, "{name}: {}", checked.stderr);
        let evaluated = run(&["eval", &file]);
        assert!(!evaluated.stdout.contains("different on"), "{name}: {}", evaluated.stdout);
        // Nothing of it is told where it is taken for what it is not.
        for refused in [
            &["audit", &file][..],
            &["--preset", "data-parallel", &file],
            &["--preset", "gpu", &file],
            &["--emit", "plan", &file],
            &["run", "--backend", "host", &file],
        ] {
            let Outcome { code, stdout, stderr } = run(refused);
            assert_eq!((code, stdout.as_str()), (1, ""), "{name}: {refused:?}: {stderr}");
            let is_told = stderr.contains("found a global program") && stderr.contains("--preset auto-spmd");
            assert!(is_told && stderr.contains("--program per-device"), "{name}: {refused:?}: {stderr}");
            assert_eq!(stderr.matches("global program").count(), 1, "{name}: said once: {stderr}");
        }
    }
}

#[test]
fn the_user_has_the_last_word_on_the_kind() {
    let file = written("jit_loss.word.hlo", GSPMD_STEP);
    let faults = run(&["audit", "--program", "per-device", &file]);
    assert!(faults.code == 0 && faults.stdout.contains("fault[missing-all-reduce]"), "{}", faults.stdout);
    let evaluated = run(&["eval", "--program", "per-device", &file]);
    assert!(evaluated.stdout.contains("different on 4 devices"), "{}", evaluated.stdout);
    let refused = run(&["--preset", "auto-spmd", "--program", "per-device", &file]);
    assert!(refused.code == 1 && refused.stderr.contains("expected a global program"), "{}", refused.stderr);
    // A program that could be either is taken for that of each device, which is said, unless nothing is to be said.
    let open = GSPMD_STEP
        .replace("allow_spmd_sharding_propagation_to_parameters={false,false}, ", "")
        .replace(", sharding={replicated}\n}", "\n}");
    let file = written("open.hlo", &open);
    let note =
        "note: taken as the program of each device: only parameters and results have shardings; --program global";
    assert!(run(&["eval", &file]).stderr.contains(note));
    assert!(run(&["--pass", "cse", &file]).stderr.contains(note));
    assert!(!run(&["--pass", "cse", "-q", &file]).stderr.contains(note));
    let whole = run(&["eval", "--program", "global", &file]);
    assert!(whole.stderr.contains("run as a whole on 4 devices"), "{}", whole.stderr);
    let made = run(&["--preset", "auto-spmd", "--program", "global", "-q", &file]);
    assert!(made.code == 0 && made.stdout.contains("f32[2,6]"), "{}{}", made.stderr, made.stdout);
    // A partitioned step is not partitioned again, and the reason is the right one.
    let step = sample("programs/mlp_adam.hlo");
    let again = run(&["--preset", "auto-spmd", &step]);
    assert!(again.code == 1 && again.stderr.contains("a partitioner named the entry"), "{}", again.stderr);
}

/// A step of PyTorch/XLA with two replicas: without its momentum among the parameters, or with it.
fn graph(number: u32, has_state: bool) -> String {
    let [shape, param, momentum] = match has_state {
        true => [", m: f32[8]", "  %m = f32[8]{0} parameter(2)\n", "%m"],
        false => ["", "  %m = f32[8]{0} broadcast(%zero), dimensions={}\n", "%m"],
    };
    format!(
        "HloModule SyncTensorsGraph.{number}, replica_count=2\n\n%add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  \
         %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}}\n\nENTRY %main (x: f32[8], w: f32[8]{shape}) -> (f32[8], f32[8]) {{\n  \
         %x = f32[8]{{0}} parameter(0)\n  %w = f32[8]{{0}} parameter(1)\n  %zero = f32[] constant(0)\n{param}  %g = f32[8]{{0}} \
         all-reduce(%x), replica_groups={{}}, to_apply=%add\n  %m2 = f32[8]{{0}} add({momentum}, %g)\n  %w2 = f32[8]{{0}} \
         subtract(%w, %m2)\n  ROOT %out = (f32[8]{{0}}, f32[8]{{0}}) tuple(%w2, %m2)\n}}\n"
    )
}

#[test]
fn of_two_steps_in_a_dump_the_steady_one_is_taken() {
    let dump = folder("two_steps");
    let write = |number: u32, text: String| {
        let name = format!("module_{number:04}.SyncTensorsGraph.{number}.before_optimizations.txt");
        std::fs::write(dump.join(name), text).expect("a dump");
    };
    write(11, graph(11, false));
    write(25, graph(25, true));
    let folder = dump.display().to_string();
    let out = run(&[&folder]);
    assert!(out.code == 0 && out.stdout.starts_with("HloModule SyncTensorsGraph.25"), "{}{}", out.stderr, out.stdout);
    assert!(
        out.stderr.contains("the steady step (*) is taken") && out.stderr.contains("optimizer state"),
        "{}",
        out.stderr
    );
    // Of two with as many parameters nobody knows which one is meant.
    write(31, graph(31, true));
    let out = run(&[&folder]);
    assert!(out.code == 2 && out.stderr.contains("several steps: name the file of one"), "{}", out.stderr);
}

#[test]
fn values_on_single_devices_are_partitioned_and_stay_the_same() {
    let (file, local) = (written("placed.hlo", MAXIMAL), written("placed.local.hlo", ""));
    let made = run(&["--preset", "auto-spmd", &file, "-q", "-o", &local]);
    assert_eq!((made.code, made.stderr.as_str()), (0, ""));
    let compared = run(&["compare", &file, &local]);
    assert!(compared.code == 0 && compared.stdout.contains("of the global program"), "{}", compared.stdout);
    let proved = run(&["prove", &file, &local]);
    assert!(proved.code == 0, "{}{}", proved.stdout, proved.stderr);
}

#[test]
fn a_pass_says_what_the_kind_of_the_program_rests_on() {
    let local = written("placed.per_device.hlo", "");
    let made = run(&["--preset", "auto-spmd", &written("placed.whole.hlo", MAXIMAL), "-q", "-o", &local]);
    assert_eq!((made.code, made.stderr.as_str()), (0, ""));
    let out = run(&["--pass", "spmd-partition", "--report", "text", &local, "-o", &written("placed.again.hlo", "")]);
    assert!(
        out.stderr.contains("a per-device program: `%all-gather` exchanges values between devices"),
        "{}",
        out.stderr
    );
}
