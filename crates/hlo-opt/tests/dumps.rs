//! Dumps of three versions of JAX, in the three ways in which programs are data-parallel: as their names and contents are.

use hlo_opt::console::Console;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Runs `hlo-opt` and gives its exit code, stdout and stderr.
fn run(args: &[&str]) -> (u8, String, String) {
    let (mut stdin, mut stdout, mut stderr): (&[u8], _, _) = (b"", Vec::new(), Vec::new());
    let mut console = Console {
        stdin: &mut stdin,
        stdout: &mut stdout,
        stderr: &mut stderr,
        shows_progress: false,
        has_color: false,
        stdin_is_terminal: true,
        stdout_is_terminal: false,
    };
    let code = hlo_opt::run(std::iter::once("hlo-opt").chain(args.iter().copied()).map(OsString::from), &mut console);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8 output");
    (code, text(stdout), text(stderr))
}

/// The files of a dump folder whose names contain `part`.
fn files(version: &str, style: &str, part: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/dumps").join(version).join(style);
    let entries = std::fs::read_dir(folder).expect("a folder of dumps").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().contains(part)).collect();
    found.sort();
    found
}

const VERSIONS: [&str; 3] = ["jax-0.10", "jax-0.11", "jax-0.12"];
const STYLES: [&str; 3] = ["jit", "shard_map", "pmap"];
const SHARD: &str = "inline-calls,sink-all-reduce,shard-weight-update{min-bytes=0}";

#[test]
fn every_dump_is_read_and_printed_so_that_it_is_read_as_the_same() {
    for version in VERSIONS {
        for style in STYLES {
            let dumps = files(version, style, ".txt");
            assert_eq!(dumps.len(), 2, "{version} {style}: before and after the partitioner");
            for path in dumps {
                let (code, printed, errors) = run(&[&path.to_string_lossy()]);
                assert_eq!((code, errors.as_str()), (0, ""), "{}", path.display());
                let copy = std::env::temp_dir().join(format!("hlo-opt-dumps-{}-{version}-{style}", std::process::id()));
                std::fs::write(&copy, &printed).expect("a temporary file");
                let again = run(&[&copy.to_string_lossy()]);
                std::fs::remove_file(&copy).expect("the temporary file");
                assert_eq!(again, (0, printed, String::new()), "{}", path.display());
            }
        }
    }
}

#[test]
fn steps_are_sharded_whatever_says_which_parameters_are_replicated() {
    for version in VERSIONS {
        for style in STYLES {
            let [step] = files(version, style, ".after_spmd-partitioning.").try_into().expect("one partitioned module");
            let step = step.to_string_lossy().into_owned();
            let promise: &[&str] = if style == "pmap" { &["--replicated-params", "stacked:0-9"] } else { &[] };
            let (code, printed, errors) = run(&[&["--pass", SHARD, "--check", &step], promise].concat());
            assert_eq!(code, 0, "{step}: {errors}");
            assert_eq!(printed.matches(" reduce-scatter(").count(), 3, "{step}: {errors}");
            let is_told = errors.contains("no parameter has `sharding=` (jax 0.12); taken from ")
                && errors.contains(".before_spmd-partitioning.txt\n");
            assert_eq!(is_told, version == "jax-0.12", "{step}: {errors}");
        }
    }
}

#[test]
fn what_does_not_belong_to_the_module_is_not_taken() {
    let [step] = files("jax-0.12", "jit", ".after_spmd-partitioning.").try_into().expect("one partitioned module");
    let [other] = files("jax-0.12", "pmap", ".before_spmd-partitioning.").try_into().expect("one global module");
    let folder = std::env::temp_dir().join(format!("hlo-opt-dumps-{}-mixed", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let name = step.file_name().expect("a name");
    let copy = folder.join(name);
    std::fs::copy(&step, &copy).expect("a copy");
    let copied = copy.to_string_lossy().into_owned();
    let alone = run(&["--pass", SHARD, &copied, "-o", "/dev/null", "--report", "text"]);
    assert!(alone.1.contains("like:FILE") || alone.2.contains("like:FILE"), "{alone:?}");
    // A dump with the right name of another program.
    let beside = "module_0022.jit_train_step.0000.spmd-partitioner.after_shardy-xla.before_spmd-partitioning.txt";
    std::fs::copy(&other, folder.join(beside)).expect("a copy");
    let (code, _, errors) = run(&["--pass", SHARD, &copied, "-o", "/dev/null"]);
    std::fs::remove_dir_all(&folder).expect("the temporary folder");
    assert_eq!(code, 0);
    assert!(errors.contains("does not help: expected entry leaf 0 of the sibling to be"), "{errors}");
}

/// A folder of its own with one file in it, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, text: &str) -> (Folder, String) {
        let folder = std::env::temp_dir().join(format!("hlo-opt-dumps-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let file = folder.join("step.txt");
        std::fs::write(&file, text).expect("a temporary file");
        (Folder(folder), file.to_string_lossy().into_owned())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn counts_that_the_header_lacks_are_said_or_found() {
    let [step] = files("jax-0.10", "jit", ".after_spmd-partitioning.").try_into().expect("one partitioned module");
    let text = std::fs::read_to_string(step).expect("the dump");
    let (_folder, file) = Folder::with("counts", &text.replace(", num_partitions=4", ""));
    let scattered = |args: &[&str]| {
        let (code, printed, errors) = run(&[args, &["--pass", SHARD, &file]].concat());
        (code, printed.matches(" reduce-scatter(").count(), printed.contains("num_partitions=4"), errors)
    };
    let (code, n, has_count, errors) = scattered(&[]);
    assert_eq!((code, n, has_count), (0, 3, true), "{errors}");
    assert!(errors.contains("note: the header has no counts; 4 partitions, by the groups of `%all-reduce"), "{errors}");
    for flag in ["--num-partitions", "--num_partitions"] {
        let (code, n, has_count, errors) = scattered(&[flag, "4"]);
        assert_eq!((code, n, has_count, errors.contains("no counts")), (0, 3, true, false), "{errors}");
    }
    let (code, _, _, errors) = scattered(&["--num-partitions", "8"]);
    assert_eq!(code, 1);
    assert!(errors.contains("(the header says replica_count=1, num_partitions=8), found no id 4"), "{errors}");
    let (code, _, _, errors) = scattered(&["--num-partitions", "0"]);
    assert_eq!(code, 2, "{errors}");
    // A print alone adds nothing.
    let (code, printed, errors) = run(&[&file]);
    assert_eq!((code, printed.contains("num_partitions"), errors.as_str()), (0, false, ""));
    let (_, facts, errors) = run(&["analyze", "time", &file]);
    assert!(facts.starts_with("predicted on 4 x h200") && errors.contains("4 partitions"), "{facts}{errors}");
}

#[test]
fn a_flag_against_the_header_and_collectives_against_each_other_are_errors() {
    let [step] = files("jax-0.10", "jit", ".after_spmd-partitioning.").try_into().expect("one partitioned module");
    let text = std::fs::read_to_string(&step).expect("the dump");
    let (code, _, errors) = run(&["--num-partitions", "2", &step.to_string_lossy()]);
    assert_eq!(code, 2);
    assert!(errors.contains("--num-partitions 2: the header of") && errors.contains("says 4"), "{errors}");
    let bare = text.replace(", num_partitions=4", "");
    let (_folder, file) = Folder::with("against", &bare.replacen("mesh['axis_0'=4,", "mesh['axis_0'=3,", 1));
    let (code, _, errors) = run(&["eval", &file]);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("collectives contradict each other: 3 devices by"), "{errors}");
    assert!(errors.contains("say them with --num-partitions or --num-replicas"), "{errors}");
}

#[test]
fn of_a_folder_the_step_is_taken_and_several_steps_are_asked_about() {
    let path = |version: &str, style: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/dumps").join(version).join(style);
        folder.to_string_lossy().into_owned()
    };
    for version in VERSIONS {
        for style in ["jit", "shard_map"] {
            let (code, printed, errors) = run(&["--pass", SHARD, &path(version, style)]);
            assert_eq!((code, printed.matches(" reduce-scatter(").count()), (0, 3), "{version} {style}: {errors}");
            let line = errors.lines().find(|line| line.starts_with('*')).unwrap_or_default();
            assert!(line.contains(" 4 ") && line.contains(".after_spmd-partitioning."), "{errors}");
        }
    }
    let (_folder, step) = Folder::with("folder", "HloModule small\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n");
    let folder = Path::new(&step).parent().expect("a folder");
    let (code, _, errors) = run(&["--pass", "dce", &folder.to_string_lossy()]);
    assert_eq!(code, 2);
    assert!(
        errors.contains(": 1 modules and no program of each of several devices: dump with --xla_dump_hlo_pass_re"),
        "{errors}"
    );
    let [one] = files("jax-0.10", "jit", ".after_spmd-partitioning.").try_into().expect("one");
    let [other] = files("jax-0.10", "pmap", ".after_spmd-partitioning.").try_into().expect("one");
    for from in [&one, &other] {
        std::fs::copy(from, folder.join(from.file_name().expect("a name"))).expect("a copy");
    }
    let (code, _, errors) = run(&["--pass", "dce", &folder.to_string_lossy()]);
    assert_eq!(code, 2);
    assert!(errors.contains("several steps: name the file of one") && errors.contains("jit__fun"), "{errors}");
    // The same step before XLA's passes is no program of one device, though it has collectives.
    let [global] = files("jax-0.10", "shard_map", ".before_spmd-partitioning.").try_into().expect("one");
    let early = "module_0022.jit_train_step.before_optimizations.txt";
    std::fs::copy(global, folder.join(early)).expect("a copy");
    // The same step, compiled once more, is no other step: the last is taken.
    std::fs::remove_file(folder.join(other.file_name().expect("a name"))).expect("the copy");
    let again = one.file_name().expect("a name").to_string_lossy().replace("module_0022", "module_0031");
    std::fs::copy(&one, folder.join(&again)).expect("a copy");
    let (code, _, errors) = run(&["--pass", "dce", &folder.to_string_lossy()]);
    assert_eq!(code, 0);
    assert!(errors.lines().any(|line| line.starts_with('*') && line.ends_with(&again)), "{errors}");
    assert!(!errors.contains(early), "{errors}");
    // A preset for programs of all devices takes the one that is there.
    let (code, _, errors) = run(&["--preset", "auto-spmd", &folder.to_string_lossy()]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.lines().any(|line| line.starts_with('*') && line.ends_with(early)), "{errors}");
    std::fs::remove_file(folder.join(early)).expect("the copy");
    let (code, _, errors) = run(&["--preset", "auto-spmd", &folder.to_string_lossy()]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("no program from before XLA's passes: dump with --xla_dump_to"), "{errors}");
}

#[test]
fn weights_are_called_what_the_framework_calls_them() {
    let [step] = files("jax-0.10", "jit", ".after_spmd-partitioning.").try_into().expect("one");
    let (_folder, file) = Folder::with("names", "");
    let directory = Path::new(&file).with_file_name("sharded").to_string_lossy().into_owned();
    let pipeline = "inline-calls,sink-all-reduce,shard-weight-update{min-bytes=0,state=auto}";
    let step = step.to_string_lossy().into_owned();
    let (code, _, report) = run(&["--pass", pipeline, "--report", "text", &step, "-o", &directory]);
    assert_eq!(code, 0, "{report}");
    assert!(report.contains("    of        s['m']['") && report.contains(" and 3 more"), "{report}");
    let manifest = std::fs::read_to_string(Path::new(&directory).join("manifest.json")).expect("a manifest");
    // A weight, its two moments: of each three, as a parameter and as an output.
    for name in ["s['w']['w0']", "s['m']['w1']", "s['v']['b0']"] {
        assert_eq!(manifest.matches(&format!("\"name\": \"{name}\"")).count(), 2, "{name}: {manifest}");
    }
}

#[test]
fn of_several_files_the_step_is_taken() {
    let all = files("jax-0.12", "jit", "");
    let names: Vec<String> = all.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    assert!(names.len() > 1, "{names:?}");
    let args: Vec<&str> = ["--pass", SHARD].into_iter().chain(names.iter().map(String::as_str)).collect();
    let (code, printed, errors) = run(&args);
    assert_eq!((code, printed.matches(" reduce-scatter(").count()), (0, 3), "{errors}");
    let line = errors.lines().find(|line| line.starts_with('*')).unwrap_or_default();
    assert!(line.contains("partitioned") && line.contains("jit_train_step"), "{errors}");

    // The same step as a proto is found as well; two steps are asked about.
    let (_folder, file) = Folder::with("several", "HloModule small\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n");
    let [step] = files("jax-0.12", "jit", ".after_spmd-partitioning.").try_into().expect("one");
    let proto = Path::new(&file).with_file_name("0001.after_spmd-partitioning.hlo.pb");
    let (proto, step) = (proto.to_string_lossy().into_owned(), step.to_string_lossy().into_owned());
    assert_eq!(run(&["--output-format", "proto", &step, "-o", &proto]).0, 0);
    let (code, _, errors) = run(&["--pass", "dce", &file, &proto]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.lines().any(|line| line.starts_with('*') && line.ends_with("hlo.pb")), "{errors}");
    let [other] = files("jax-0.12", "pmap", ".after_spmd-partitioning.").try_into().expect("one");
    let (code, _, errors) = run(&["--pass", "dce", &step, &other.to_string_lossy()]);
    assert!(code == 2 && errors.contains("these 2 paths: several steps: name the file of one"), "{errors}");
    let again = Path::new(&file).with_file_name("again.hlo").to_string_lossy().into_owned();
    std::fs::copy(&file, &again).expect("the copy");
    let (code, _, errors) = run(&["--pass", "dce", &file, &again]);
    assert!(
        code == 2 && errors.contains("2 modules and no program of each of several devices") && errors.contains("small"),
        "{errors}"
    );
}

#[test]
fn a_program_of_all_devices_is_told_apart() {
    for version in VERSIONS {
        for style in STYLES {
            let [global] = files(version, style, ".before_spmd-partitioning.").try_into().expect("one global module");
            let (code, _, errors) = run(&["--preset", "data-parallel", &global.to_string_lossy()]);
            assert_eq!(code, 1, "{errors}");
            assert!(
                errors.contains("found a global program, from before a partitioner"),
                "{version} {style}: {errors}"
            );
        }
    }
}

#[test]
fn a_global_program_is_known_by_what_it_says_whatever_its_file_is_called() {
    for version in VERSIONS {
        for style in STYLES {
            let [before] = files(version, style, ".before_spmd-partitioning.").try_into().expect("one global module");
            let copy =
                std::env::temp_dir().join(format!("hlo-opt-global-{}-{version}-{style}.hlo", std::process::id()));
            std::fs::copy(&before, &copy).expect("a temporary file");
            let audited = run(&["audit", &copy.to_string_lossy()]);
            let evaluated = run(&["eval", &copy.to_string_lossy()]);
            std::fs::remove_file(&copy).expect("the temporary file");
            assert_eq!(audited.0, 1, "{version} {style}: {}", audited.2);
            let refused = "expected the program of each device, found a global program, from before a partitioner: ";
            assert!(audited.2.contains(refused), "{version} {style}: {}", audited.2);
            assert!(
                evaluated.0 == 0 && evaluated.2.contains("note: a global program"),
                "{version} {style}: {evaluated:?}"
            );
            let [after] =
                files(version, style, ".after_spmd-partitioning.").try_into().expect("one partitioned module");
            let (code, _, said) = run(&["audit", &after.to_string_lossy()]);
            assert_eq!(code, 0, "{version} {style}: {said}");
        }
    }
}
