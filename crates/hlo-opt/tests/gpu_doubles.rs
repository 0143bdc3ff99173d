//! `hlo-opt run --backend gpu` against doubles of the CUDA driver, NVRTC, cuBLASLt and NCCL (`doubles/`), which need no card:
//! what is issued to the libraries, in which order and with which waits. What only silicon can show is not shown.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hlo_eval::npz::NpzReader;
use hlo_ir::{Literal, Scalar};

/// Products in several orders and types, every kind of collective (in place and not), a loop and a branch.
const STEP: &str = "HloModule step, replica_count=4

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT sum = f32[] add(a, b) }
most { a = f32[] parameter(0) b = f32[] parameter(1) ROOT most = f32[] maximum(a, b) }
all_hold { a = pred[] parameter(0) b = pred[] parameter(1) ROOT both = pred[] and(a, b) }
halve { x = f32[8,16] parameter(0) half = f32[] constant(0.5) halves = f32[8,16] broadcast(half), dimensions={} ROOT y = f32[8,16] \
    multiply(x, halves) }
keep { x = f32[8,16] parameter(0) ROOT y = f32[8,16] negate(x) }
condition { state = (s32[], f32[8,16]) parameter(0) i = s32[] get-tuple-element(state), index=0 n = s32[] constant(5) ROOT less = \
    pred[] compare(i, n), direction=LT }
body {
  state = (s32[], f32[8,16]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[8,16] get-tuple-element(state), index=1
  sum = f32[8,16] all-reduce(x), replica_groups={{0,1},{3,2}}, to_apply=add
  wave = f32[8,16] sine(sum)
  ROOT new = (s32[], f32[8,16]) tuple(next, wave)
}

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = bf16[2,16,8] parameter(2)
  xw = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  xx = f32[16,16] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  vv = bf16[2,8,8] dot(v, v), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
  both = f32[8,16] dot(xw, xx), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  part = f32[2,16] reduce-scatter(both), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add
  whole = f32[8,16] all-gather(part), replica_groups={{0,1,2,3}}, dimensions={0}
  swapped = f32[8,16] all-to-all(xw), replica_groups={{0,2},{1,3}}, dimensions={0}
  moved = f32[8,16] collective-permute(swapped), source_target_pairs={{0,1},{1,2},{2,0}}
  joined = f32[8,16] add(whole, moved)
  zero = s32[] constant(0)
  state = (s32[], f32[8,16]) tuple(zero, joined)
  loop = (s32[], f32[8,16]) while(state), condition=condition, body=body
  y = f32[8,16] get-tuple-element(loop), index=1
  top = f32[8,16] all-reduce(y), replica_groups={{0,1,2,3}}, to_apply=most
  first = f32[1,1] slice(top), slice={[0:1],[0:1]}
  scalar = f32[] reshape(first)
  limit = f32[] constant(100)
  low = pred[] compare(scalar, limit), direction=LT
  agreed = pred[] all-reduce(low), replica_groups={{0,1,2,3}}, to_apply=all_hold
  branch = f32[8,16] conditional(agreed, y, y), true_computation=halve, false_computation=keep
  vsum = f32[2,8,8] convert(vv)
  q = f32[2,2,2,16] reshape(x)
  heads = f32[2,2,2,2] dot(q, q), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}, rhs_contracting_dims={3}
  ROOT out = (f32[8,16], f32[8,16], f32[2,8,8], f32[8,16], f32[2,2,2,2]) tuple(branch, top, vsum, moved, heads)
}
";

/// The folder of the compiled doubles.
fn doubles() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doubles");
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hlo-run/src/host/shim.h");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doubles");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("programs")).expect("a folder");
        for (source, library) in [("driver", "cuda"), ("nvrtc", "nvrtc"), ("cublaslt", "cublasLt"), ("nccl", "nccl")] {
            let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".into()));
            command.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-Wall"]);
            command.arg(format!("-DSHIM=\"{}\"", shim.display())).arg(sources.join(format!("{source}.cpp")));
            command.arg("-o").arg(folder.join(format!("lib{library}.so"))).arg("-ldl");
            let output = command.output().expect("a C++ compiler");
            assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        }
        folder
    })
}

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu").join(test);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for files");
        Folder(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("it is written");
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

/// A run with the doubles and this number of cards.
fn program(n_cards: usize, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hlo-opt"));
    for variable in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS"] {
        command.env_remove(variable);
    }
    command.arg("run").args(args).envs(variables.iter().copied());
    command.env("LD_LIBRARY_PATH", doubles()).env("TMPDIR", doubles().join("programs"));
    command.env("DOUBLE_GPUS", n_cards.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a run leaves; fails the test if it takes longer than a minute.
fn finished(mut child: Child) -> Output {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a state").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("a run hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn run(n_cards: usize, args: &[&str], variables: &[(&str, &str)]) -> Output {
    finished(program(n_cards, args, variables).spawn().expect("it starts"))
}

/// Starts two ranks of two devices each on the same machine of four cards, as a launcher does.
fn two_ranks(args: &[&str]) -> [Child; 2] {
    two_ranks_with(args, &[])
}

fn two_ranks_with(args: &[&str], variables: &[(&str, &str)]) -> [Child; 2] {
    let with = |rank: &str, place: &str| {
        let place = ["--ranks", "2", "--rank", rank, "--coordinator", place];
        program(4, &[args, &place].concat(), &[variables, &[("LOCAL_RANK", rank)]].concat()).spawn().expect("it starts")
    };
    let mut first = with("0", "127.0.0.1:0");
    // One byte at a time: what comes after the line belongs to the test.
    let (mut line, mut byte) = (String::new(), [0u8]);
    let stderr = first.stderr.as_mut().expect("its messages");
    while !line.ends_with('\n') && stderr.read(&mut byte).expect("a byte") == 1 {
        line.push(char::from(byte[0]));
    }
    let place = line.strip_prefix("rank 0 waits at ").and_then(|rest| rest.split(' ').next());
    let second = with("1", place.unwrap_or_else(|| panic!("{line}")));
    [first, second]
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn arrays(path: &str) -> Vec<(String, Literal)> {
    let bytes = std::fs::read(path).expect("an archive");
    let mut archive = NpzReader::new(std::io::Cursor::new(bytes)).expect("an archive");
    let names: Vec<String> = archive.names().map(str::to_string).collect();
    names.into_iter().map(|name| (name.clone(), archive.read(&name).expect("an array"))).collect()
}

/// The largest difference relative to the largest element.
fn difference(found: &Literal, expected: &Literal) -> f64 {
    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()));
    let float = |array: &Literal, i| match array.get(i) {
        Some(Scalar::Float(x)) => x,
        other => panic!("{other:?}"),
    };
    let largest = (0..expected.n_elems()).fold(f64::MIN_POSITIVE, |most, i| most.max(float(expected, i).abs()));
    let error = |i| (float(found, i) - float(expected, i)).abs();
    let errors = (0..expected.n_elems()).map(error).map(|e| if e.is_nan() { f64::INFINITY } else { e });
    errors.fold(0.0, f64::max) / largest
}

#[test]
fn cards_and_a_shared_card_agree_with_the_host() {
    let folder = Folder::new("agree");
    let module = folder.write("step.hlo", STEP);
    let drawn = ["--seed", "4", "--draw", "n.3 n.3 n1", "--replicated-params", "1", "-o"];
    let host = folder.path("host.npz");
    let output = run(0, &[&["--backend", "host", &module][..], &drawn, &[&host]].concat(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    let expected = arrays(&host);
    assert_eq!(expected.len(), 20);
    // Repeated runs and further steps replay recorded launches. Nothing is donated: each step begins with the same inputs.
    let ways = [
        (4, &[][..]),
        (1, &["--share-gpu"]),
        (4, &["--sync"]),
        (1, &["--share-gpu", "--check-finite"]),
        (4, &["--repeat", "3"]),
        (1, &["--share-gpu", "--repeat", "3"]),
        (4, &["--steps", "3"]),
        (1, &["--share-gpu", "--steps", "3", "--repeat", "1"]),
    ];
    for (i, (n_cards, flags)) in ways.into_iter().enumerate() {
        let path = folder.path(&format!("gpu{i}.npz"));
        let output = run(n_cards, &[&["--backend", "gpu", &module][..], &drawn, &[&path], flags].concat(), &[]);
        assert!(output.status.success(), "{flags:?}: {}", said(&output));
        let found = arrays(&path);
        assert_eq!(found.len(), expected.len());
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            // Leaf 2 was rounded to bf16.
            let tolerance = if name.starts_with("out2") { 1e-2 } else { 2e-5 };
            assert!(difference(found, expected) < tolerance, "{flags:?}: {name}: {}", difference(found, expected));
        }
    }
}

/// One process times what cuBLASLt suggests and all its devices take the fastest; several processes take the first suggestion,
/// so that they compute the same.
#[test]
fn products_take_the_fastest_algorithm() {
    let folder = Folder::new("algorithms");
    let module = folder.write("step.hlo", STEP);
    let counts = |path: &str| -> Vec<Vec<u32>> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let number = |word: &str| word.parse().expect("a number");
        text.lines().map(|line| line.split(' ').map(number).collect()).collect()
    };
    // Five products on four devices. Each is timed once: a first run and three more of both algorithms that run.
    let path = folder.path("one");
    let args = ["--backend", "gpu", &module, "--replicated-params", "1", "--repeat", "1"];
    let output = run(4, &args, &[("DOUBLE_ALGORITHMS", &path)]);
    assert!(output.status.success(), "{}", said(&output));
    // A recorded product is counted when it is recorded.
    assert_eq!(counts(&path), [[20, 20 + 40]]);
    let path = folder.path("two");
    let listed = ["--backend", "gpu", &module, "--replicated-params", "1"];
    for rank in two_ranks_with(&listed, &[("DOUBLE_ALGORITHMS", &path)]) {
        let output = finished(rank);
        assert!(output.status.success(), "{}", said(&output));
    }
    assert_eq!(counts(&path), [[10, 0], [10, 0]]);
}

/// How long runs and steps took is said where it is asked for, for both kinds of devices.
#[test]
fn times_name_every_step() {
    let folder = Folder::new("times");
    let module = folder.write("step.hlo", STEP);
    for (n_cards, backend) in [(4, "gpu"), (0, "host")] {
        let times = folder.path(&format!("{backend}.tsv"));
        let args = ["--backend", backend, &module, "--replicated-params", "1", "--repeat", "2", "--times", &times];
        let output = run(n_cards, &args, &[]);
        assert!(output.status.success(), "{}", said(&output));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.contains("time: median") && printed.contains("of 2 runs"), "{printed}");
        let table = std::fs::read_to_string(&times).expect("a table");
        let mut rows = table.lines().map(|row| row.split('\t').collect::<Vec<_>>());
        assert_eq!(rows.next(), Some(vec!["ms", "kind", "step", "bytes", "GB/s"]));
        let rows: Vec<Vec<&str>> = rows.collect();
        let milliseconds: Vec<f64> = rows.iter().map(|row| row[0].parse().expect("a number")).collect();
        assert!(milliseconds.is_sorted_by(|a, b| a >= b), "{table}");
        for kind in ["gemm", "collective", "loop", "branch"] {
            assert!(rows.iter().any(|row| row[1] == kind), "{kind}: {table}");
        }
        assert!(rows.iter().any(|row| row[2].contains("loop") && row[0] != "0.00000"), "{table}");
    }
}

/// Two processes of two devices: the ids of communicators go from one to the other, and rank 0 gets all outputs.
#[test]
fn ranks_on_cards_agree_with_the_host() {
    let folder = Folder::new("ranks");
    let module = folder.write("step.hlo", STEP);
    let drawn = ["--seed", "4", "--draw", "n.3 n.3 n1", "--replicated-params", "1"];
    let (host, cards) = (folder.path("host.npz"), folder.path("cards.npz"));
    let output = run(0, &[&["--backend", "host", &module, "-o", &host][..], &drawn].concat(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    for rank in two_ranks(&[&["--backend", "gpu", &module, "-o", &cards][..], &drawn].concat()) {
        let output = finished(rank);
        assert!(output.status.success(), "{}", said(&output));
    }
    for ((name, found), (_, expected)) in arrays(&cards).iter().zip(&arrays(&host)) {
        let tolerance = if name.starts_with("out2") { 1e-2 } else { 2e-5 };
        assert!(difference(found, expected) < tolerance, "{name}: {}", difference(found, expected));
    }
}

/// A killed rank leaves the other in a collective on the card: it is aborted, and the rank is named.
#[test]
fn a_killed_rank_does_not_leave_a_collective_hanging() {
    let folder = Folder::new("killed");
    let module = folder.write("step.hlo", &STEP.replace("n = s32[] constant(5)", "n = s32[] constant(2000000000)"));
    for victim in [0, 1] {
        let mut ranks = two_ranks(&["--backend", "gpu", &module, "--replicated-params", "1"]);
        std::thread::sleep(Duration::from_secs(6));
        assert!(ranks.iter_mut().all(|rank| rank.try_wait().expect("a state").is_none()), "both run");
        ranks[victim].kill().expect("it is killed");
        let killed = Instant::now();
        let [first, second] = ranks;
        let (mut dead, other) = if victim == 0 { (first, second) } else { (second, first) };
        dead.wait().expect("it is gone");
        let output = finished(other);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let expected = format!("error: rank {} stops: rank {victim} was lost: its connection", 1 - victim);
        assert!(said(&output).contains(&expected), "{}", said(&output));
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    }
}

/// Adam and a convolutional net's kernels go the same way; here a whole training step with donated state.
#[test]
fn a_training_step_agrees_with_the_host() {
    let folder = Folder::new("training");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/programs/mlp_sgd.repl.hlo");
    let module = module.display().to_string();
    let drawn = ["--draw", "n.05 n.05 n.05 n.05 n.05 n.05 n1 n1", "-o"];
    let (host, shared) = (folder.path("host.npz"), folder.path("shared.npz"));
    let output = run(0, &[&["--backend", "host", &module][..], &drawn, &[&host]].concat(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    let output = run(1, &[&["--backend", "gpu", "--share-gpu", &module][..], &drawn, &[&shared]].concat(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    for ((name, found), (_, expected)) in arrays(&shared).iter().zip(&arrays(&host)) {
        assert!(difference(found, expected) < 2e-5, "{name}: {}", difference(found, expected));
    }
}

#[test]
fn out_of_memory_says_asked_and_free() {
    let folder = Folder::new("memory");
    let module = folder.write("step.hlo", STEP);
    let memory = [("DOUBLE_MEMORY_BYTES", "4000")];
    for (n_cards, flags) in [(1, &["--share-gpu"][..]), (4, &[])] {
        let args = ["--backend", "gpu", &module, "--replicated-params", "1"];
        let output = run(n_cards, &[&args[..], flags].concat(), &memory);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).starts_with("error: GPU "), "{}", said(&output));
        assert!(said(&output).contains("(Double): out of memory: expected "), "{}", said(&output));
        assert!(said(&output).contains(" free of 4000"), "{}", said(&output));
    }
}

#[test]
fn too_few_cards_are_said() {
    let folder = Folder::new("cards");
    let module = folder.write("step.hlo", STEP);
    let args = ["--backend", "gpu", &module, "--replicated-params", "1"];
    for (n_cards, expected) in
        [(2, "expected 4 for as many devices, found 2"), (0, "expected at least one, found none")]
    {
        let output = run(n_cards, &args, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
    let ranks = ["--ranks", "2", "--rank", "0", "--coordinator", "127.0.0.1:0", "--connect-timeout", "1"];
    let output = run(1, &[&args[..], &ranks].concat(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("rank 1 did not connect within 1 s"), "{}", said(&output));
}

/// One device stops before a collective in which the others wait already: they are aborted, and the cause is named.
#[test]
fn a_device_that_stops_ends_the_others() {
    let folder = Folder::new("stops");
    let text = "HloModule stops, replica_count=4

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT sum = f32[] add(a, b) }

ENTRY main {
  x = f32[1024] parameter(0)
  id = u32[] replica-id()
  real = f32[] convert(id)
  three = f32[] constant(3)
  left = f32[] subtract(three, real)
  lefts = f32[1024] broadcast(left), dimensions={}
  q = f32[1024] divide(x, lefts)
  sum = f32[1024] all-reduce(q), replica_groups={{0,1,2,3}}, to_apply=add
  ROOT y = f32[1024] sine(sum)
}
";
    let module = folder.write("stops.hlo", text);
    for (n_cards, flags) in [(4, &[][..]), (1, &["--share-gpu"])] {
        let output =
            run(n_cards, &[&["--backend", "gpu", &module, "--draw", "p1", "--check-finite"][..], flags].concat(), &[]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{flags:?}");
        let text = said(&output);
        assert!(text.contains("expected finite values, found inf on device 3"), "{flags:?}: {text}");
    }
}

#[test]
fn an_error_on_the_card_names_its_step_with_sync() {
    let folder = Folder::new("sync");
    let text = "HloModule chain, replica_count=1\n\nENTRY main {\n  x = f32[64,64] parameter(0)\n  first = f32[64,64] sine(x)\n  \
                product = f32[64,64] dot(first, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  second = f32[64,64] \
                cosine(product)\n  ROOT last = f32[64,64] dot(second, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";
    let module = folder.write("chain.hlo", text);
    let broken = [("DOUBLE_BREAKING_LAUNCH", "2")];
    let output = run(1, &["--backend", "gpu", &module], &broken);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).starts_with("error: GPU 0 (Double): "), "{}", said(&output));
    assert!(said(&output).contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", said(&output));
    let output = run(1, &["--backend", "gpu", "--sync", &module], &broken);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).starts_with("error: second: GPU 0 (Double): "), "{}", said(&output));
}
