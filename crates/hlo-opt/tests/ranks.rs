//! `hlo-opt run` as several processes over loopback: the same result as one process, and an end with a reason whatever
//! happens to a rank. Every wait is bounded.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use hlo_eval::npz::NpzReader;

/// A loop of rounds that each need all devices: sums of different numbers, averages, and a branch of the host.
fn module(n_rounds: u32) -> String {
    let groups = "{{0,1,2,3,4,5,6,7}}";
    format!(
        "HloModule rounds, replica_count=8

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

condition {{
  state = (s32[], f32[64], f32[8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant({n_rounds})
  ROOT is_less = pred[] compare(i, n), direction=LT
}}

body {{
  state = (s32[], f32[64], f32[8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[64] get-tuple-element(state), index=1
  sum = f32[64] all-reduce(x), replica_groups={groups}, to_apply=add
  eighth = f32[] constant(0.12437)
  eighths = f32[64] broadcast(eighth), dimensions={{}}
  mean = f32[64] multiply(sum, eighths)
  wave = f32[64] sine(x)
  y = f32[64] add(mean, wave)
  part = f32[8] reduce-scatter(y), replica_groups={groups}, dimensions={{0}}, to_apply=add
  ROOT new = (s32[], f32[64], f32[8]) tuple(next, y, part)
}}

ENTRY main {{
  x = f32[64] parameter(0)
  part = f32[8] parameter(1)
  zero = s32[] constant(0)
  state = (s32[], f32[64], f32[8]) tuple(zero, x, part)
  loop = (s32[], f32[64], f32[8]) while(state), condition=condition, body=body
  y = f32[64] get-tuple-element(loop), index=1
  last = f32[8] get-tuple-element(loop), index=2
  all = f32[64] all-gather(last), replica_groups={groups}, dimensions={{0}}
  ROOT out = (f32[64], f32[8], f32[64]) tuple(y, last, all)
}}
"
    )
}

/// Rounds that take far longer than any test waits.
const FOREVER: u32 = 2_000_000_000;

/// A test's files.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ranks").join(test);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for files");
        Folder(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn module(&self, n_rounds: u32) -> String {
        let path = self.path(&format!("rounds{n_rounds}.hlo"));
        std::fs::write(&path, module(n_rounds)).expect("the module is written");
        path
    }
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hlo-opt"));
    for variable in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "SLURM_PROCID", "SLURM_NTASKS"] {
        command.env_remove(variable);
    }
    command.env_remove("HLO_OPT_SECRET");
    command.args(["run", "--backend", "host", "--draw", "n1"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running rank; killed when the test is over, however it ends.
struct Rank {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        let mut child = command.spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("its messages"));
        Rank { child, stderr }
    }

    /// The next line that it says.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("a line of text");
        line
    }

    /// Its exit code and all that it said; fails the test after a minute.
    fn end(&mut self) -> (Option<i32>, String) {
        self.end_within(Duration::from_secs(60))
    }

    fn end_within(&mut self, limit: Duration) -> (Option<i32>, String) {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("a state") {
                let mut said = String::new();
                self.stderr.read_to_string(&mut said).expect("text");
                return (status.code(), said);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("a rank hangs; its threads, with states and ticks of CPU time:\n{}", self.threads());
    }

    /// One line a thread as `/proc` has it: name, state, time in user code and in the kernel, where it sleeps.
    fn threads(&self) -> String {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let folders = std::fs::read_dir(tasks).into_iter().flatten().flatten().map(|entry| entry.path());
        let line = |folder: PathBuf| {
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            let stat = read("stat");
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            let field = |i: usize| fields.get(i).copied().unwrap_or("?");
            format!("{}: {} {}+{} {}", read("comm").trim(), field(0), field(11), field(12), read("wchan"))
        };
        folders.map(line).collect::<Vec<_>>().join("\n")
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill is there").success());
    }
}

/// Where rank 0 says that it listens.
fn place_of(rank0: &mut Rank) -> String {
    let line = rank0.line();
    let place = line.strip_prefix("rank 0 waits at ").and_then(|rest| rest.split(' ').next());
    place.unwrap_or_else(|| panic!("{line}")).to_string()
}

/// Starts ranks; rank 0 takes a free port and says which. `args` are for all, `more` for some.
fn start(n_ranks: usize, args: &[&str], more: impl Fn(usize) -> Vec<String>) -> Vec<Rank> {
    let n = n_ranks.to_string();
    let rank = |i: usize, place: &str| {
        let mut command = program(args);
        command.args(["--ranks", &n, "--rank", &i.to_string(), "--coordinator", place]).args(more(i));
        Rank::start(command)
    };
    let mut ranks = vec![rank(0, "127.0.0.1:0")];
    let place = place_of(&mut ranks[0]);
    ranks.extend((1..n_ranks).map(|i| rank(i, &place)));
    ranks
}

fn none(_: usize) -> Vec<String> {
    Vec::new()
}

fn all_run(ranks: &mut [Rank]) {
    let line = ranks[0].line();
    assert_eq!(line, format!("{} ranks are connected\n", ranks.len()));
}

fn arrays(path: &str) -> Vec<(String, hlo_ir::Literal)> {
    let bytes = std::fs::read(path).expect("an archive");
    let mut archive = NpzReader::new(std::io::Cursor::new(bytes)).expect("an archive");
    let names: Vec<String> = archive.names().map(str::to_string).collect();
    names.into_iter().map(|name| (name.clone(), archive.read(&name).expect("an array"))).collect()
}

/// What one process makes of the module; compiles its kernels for all.
fn alone(folder: &Folder, module: &str) -> String {
    let path = folder.path("alone.npz");
    let output = program(&[module, "-o", &path]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

#[test]
fn several_processes_give_what_one_gives() {
    let folder = Folder::new("several");
    let module = folder.module(30);
    let expected = arrays(&alone(&folder, &module));
    assert_eq!(expected.len(), 24);
    for n_ranks in [2, 4, 8] {
        let path = folder.path(&format!("of{n_ranks}.npz"));
        let mut ranks = start(n_ranks, &[&module, "-o", &path], none);
        for (i, rank) in ranks.iter_mut().enumerate() {
            let (code, said) = rank.end();
            assert_eq!(code, Some(0), "rank {i} of {n_ranks}: {said}");
        }
        assert!(arrays(&path) == expected, "{n_ranks} ranks");
    }
}

#[test]
fn runs_end_well_every_time() {
    let folder = Folder::new("ends");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/programs/mlp_sgd.repl.hlo");
    let module = module.display().to_string();
    alone(&folder, &module);
    // A rank that has heard of the end may be gone before rank 0 has told the next one.
    for _ in 0..8 {
        for (i, rank) in start(4, &[&module], none).iter_mut().enumerate() {
            let (code, said) = rank.end();
            assert_eq!(code, Some(0), "rank {i}: {said}");
        }
    }
}

#[test]
fn launchers_give_ranks_by_their_variables() {
    let folder = Folder::new("launchers");
    let module = folder.module(3);
    let expected = arrays(&alone(&folder, &module));
    let path = folder.path("out.npz");
    let mut rank0 = program(&[&module, "-o", &path, "--coordinator", "127.0.0.1:0"]);
    rank0.env("OMPI_COMM_WORLD_RANK", "0").env("OMPI_COMM_WORLD_SIZE", "2");
    let mut rank0 = Rank::start(rank0);
    let place = place_of(&mut rank0);
    let (host, port) = place.rsplit_once(':').expect("host and port");
    let mut rank1 = program(&[&module]);
    rank1.env("SLURM_PROCID", "1").env("SLURM_NTASKS", "2").env("MASTER_ADDR", host).env("MASTER_PORT", port);
    let mut rank1 = Rank::start(rank1);
    assert_eq!((rank0.end().0, rank1.end().0), (Some(0), Some(0)));
    assert!(arrays(&path) == expected);
}

/// All ranks but one end with 1 and say these words.
fn others_say(ranks: &mut [Rank], except: usize, words: &str) {
    for (i, rank) in ranks.iter_mut().enumerate().filter(|(i, _)| *i != except) {
        let (code, said) = rank.end();
        assert_eq!(code, Some(1), "rank {i}: {said}");
        assert!(said.contains(&format!("error: rank {i} stops: ")) && said.contains(words), "rank {i}: {said}");
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    let folder = Folder::new("killed");
    alone(&folder, &folder.module(1));
    let module = folder.module(FOREVER);
    let path = folder.path("never.npz");
    for victim in [2, 0] {
        let mut ranks = start(4, &[&module, "-o", &path], none);
        all_run(&mut ranks);
        std::thread::sleep(Duration::from_millis(500));
        ranks[victim].signal("KILL");
        let killed = Instant::now();
        others_say(&mut ranks, victim, &format!("rank {victim} was lost: its connection"));
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        assert!(std::fs::read_dir(&folder.0).expect("files").count() == 3, "no output, whole or in part");
    }
}

#[test]
fn a_stopped_rank_is_named_by_all_others() {
    let folder = Folder::new("stopped");
    alone(&folder, &folder.module(1));
    let module = folder.module(FOREVER);
    for victim in [1, 0] {
        let mut ranks = start(4, &[&module], none);
        all_run(&mut ranks);
        std::thread::sleep(Duration::from_millis(500));
        ranks[victim].signal("STOP");
        let stopped = Instant::now();
        others_say(&mut ranks, victim, &format!("rank {victim} was lost: no sign of life for 6 s"));
        let elapsed = stopped.elapsed();
        assert!(elapsed > Duration::from_secs(5) && elapsed < Duration::from_secs(20), "{elapsed:?}");
    }
}

/// One kernel that goes over so many rows of 1024 elements, then a sum over both devices.
fn busy_module(n_rows: u64) -> String {
    let shape = format!("f32[{n_rows},1024]");
    format!(
        "HloModule busy, replica_count=2

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[] parameter(0)
  xs = {shape} broadcast(x), dimensions={{}}
  i = {shape} iota(), iota_dimension=0
  y = {shape} add(xs, i)
  s = {shape} sine(y)
  zero = f32[] constant(0)
  sum = f32[] reduce(s, zero), dimensions={{0,1}}, to_apply=add
  ROOT all = f32[] all-reduce(sum), replica_groups={{{{0,1}}}}, to_apply=add
}}
"
    )
}

/// A rank in a kernel for longer than others wait in silence is busy, not lost: rank 1 says nothing but its heartbeat.
#[test]
fn a_busy_rank_is_not_lost() {
    let folder = Folder::new("busy");
    let mut n_rows = 1 << 20;
    // The kernel is made longer until it is long enough on this machine. How fast the machine is changes with what else
    // runs on it, so that a kernel may also take many times longer than the one before it let expect.
    for _ in 0..12 {
        let module = folder.path("busy.hlo");
        std::fs::write(&module, busy_module(n_rows)).expect("the module is written");
        let mut ranks = start(2, &[&module, "--connect-timeout", "30"], none);
        all_run(&mut ranks);
        let started = Instant::now();
        for rank in &mut ranks {
            let (code, said) = rank.end_within(Duration::from_secs(600));
            assert_eq!(code, Some(0), "{said}");
        }
        let elapsed = started.elapsed();
        if elapsed > Duration::from_secs(8) {
            return;
        }
        let wanted = 11.0 / elapsed.as_secs_f64();
        n_rows = (n_rows as f64 * wanted.clamp(1.2, 3.0)) as u64;
    }
    panic!("no kernel was long enough");
}

#[test]
fn another_plan_is_refused_by_all() {
    let folder = Folder::new("plans");
    let (module, other) = (folder.module(5), folder.module(6));
    for (rank, args) in [(2, vec![other.clone()]), (1, vec![module.clone(), "--seed".into(), "9".into()])] {
        let args_of = |i: usize| if i == rank { args.clone() } else { vec![module.clone()] };
        let mut ranks = start(3, &[], args_of);
        others_say(&mut ranks, usize::MAX, &format!("rank {rank} has another plan"));
    }
}

#[test]
fn missing_ranks_are_named() {
    let folder = Folder::new("missing");
    let module = folder.module(5);
    let rank = |i: &str, place: &str| {
        Rank::start(program(&[&module, "--ranks", "4", "--rank", i, "--coordinator", place, "--connect-timeout", "2"]))
    };
    let mut rank0 = rank("0", "127.0.0.1:0");
    let place = place_of(&mut rank0);
    let mut ranks = [rank0, rank("2", &place)];
    let found: Vec<_> = ranks.iter_mut().map(Rank::end).collect();
    for (code, said) in found {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("ranks 1, 3 did not connect within 2 s"), "{said}");
    }
    // Rank 0 is gone by now.
    let (code, said) = rank("1", &place).end();
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!("rank 0 did not answer at {place} within 2 s")), "{said}");
}

#[test]
fn ranks_that_do_not_fit_are_refused() {
    let folder = Folder::new("misfits");
    let module = folder.module(5);
    let rank = |i: &str, n: &str, place: &str| {
        Rank::start(program(&[&module, "--ranks", n, "--rank", i, "--coordinator", place]))
    };
    for (second, n, third, expected) in [
        ("1", "3", "1", "two processes are rank 1"),
        ("2", "4", "1", "rank 2 expects 4 ranks, rank 0 expects 3"),
        ("3", "4", "1", "rank 3 expects 4 ranks, rank 0 expects 3"),
    ] {
        let mut rank0 = rank("0", "3", "127.0.0.1:0");
        let place = place_of(&mut rank0);
        let mut ranks = vec![rank0, rank(second, n, &place), rank(third, "3", &place)];
        for rank in &mut ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains(expected) || said.contains("rank 0 did not answer"), "{said}");
        }
    }
    let mut ranks = start(3, &[&module], none);
    others_say(&mut ranks, usize::MAX, "expected a number of ranks that divides 8 devices, found 3");
}

#[test]
fn a_rank_that_fails_tells_the_others_why() {
    let folder = Folder::new("fails");
    let module = folder.module(5);
    alone(&folder, &module);
    // Rank 1 has no compiler and an empty cache.
    let mut rank0 = Rank::start(program(&[&module, "--ranks", "2", "--rank", "0", "--coordinator", "127.0.0.1:0"]));
    let place = place_of(&mut rank0);
    let mut rank1 = program(&[&module, "--ranks", "2", "--rank", "1", "--coordinator", &place]);
    rank1.env("CXX", "no-such-compiler").env("XDG_CACHE_HOME", folder.path("cache"));
    let mut rank1 = Rank::start(rank1);
    let (code, said) = rank1.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rank 1 stops: C++ compiler") && said.contains("no-such-compiler"), "{said}");
    let (code, said) = rank0.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rank 0 stops: rank 1 failed: C++ compiler") && said.contains("no-such-compiler"), "{said}");
}

#[test]
fn ranks_with_a_secret_run_and_others_are_refused() {
    let folder = Folder::new("secret");
    let module = folder.module(3);
    let expected = arrays(&alone(&folder, &module));
    let (file, other, path) = (folder.path("secret"), folder.path("other"), folder.path("out.npz"));
    std::fs::write(&file, "a secret of the test\n").expect("a secret");
    std::fs::write(&other, "another secret of the test\n").expect("a secret");
    let permit = |path: &str, mode: &str| {
        assert!(Command::new("chmod").args([mode, path]).status().expect("chmod is there").success());
    };
    permit(&file, "600");
    permit(&other, "644");
    let rank = |i: &str, place: &str, args: &[&str]| {
        let mut command = program(&[&module, "-o", &path, "--ranks", "2", "--rank", i, "--coordinator", place]);
        command.args(args);
        command
    };
    let mut rank0 = Rank::start(rank("0", "127.0.0.1:0", &["--secret-file", &file]));
    let place = place_of(&mut rank0);
    for (args, why) in [(&["--secret-file", &other][..], "it has another secret"), (&[], "it has no secret")] {
        let (code, said) = Rank::start(rank("1", &place, args)).end();
        assert_eq!(code, Some(1), "{said}");
        let words = format!("error: rank 1 stops: rank 0 at {place} refuses this rank: {why}");
        assert!(said.contains(&words), "{said}");
        assert_eq!(said.contains("can be read by others"), !args.is_empty(), "{said}");
        let line = rank0.line();
        assert!(line.starts_with("refused 127.0.0.1:") && line.contains(why), "{line}");
    }
    let mut rank1 = rank("1", &place, &[]);
    rank1.env("HLO_OPT_SECRET", "a secret of the test");
    let (code, said) = Rank::start(rank1).end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(rank0.end().0, Some(0));
    assert!(arrays(&path) == expected);
}

#[test]
fn a_secret_that_is_none_is_an_error() {
    let folder = Folder::new("no-secret");
    let module = folder.module(3);
    let file = folder.path("secret");
    std::fs::write(&file, "short\n").expect("a secret");
    let missing = folder.path("missing");
    let common = [&module[..], "--ranks", "2", "--rank", "0", "--coordinator", "127.0.0.1:0"];
    for (path, expected) in [
        (&file[..], format!("error: `{file}`: expected a secret of 16 to 4096 bytes, found 5")),
        (&missing, format!("error: cannot read `{missing}`")),
        ("/dev/zero", "error: `/dev/zero`: expected a secret of 16 to 4096 bytes, found 8192".to_string()),
    ] {
        let (code, said) = Rank::start(program(&[&common[..], &["--secret-file", path]].concat())).end();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&expected), "{said}");
    }
    let mut command = program(&common);
    command.env("HLO_OPT_SECRET", "");
    let (code, said) = Rank::start(command).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("HLO_OPT_SECRET: expected a secret of 16 to 4096 bytes, found 0"), "{said}");
}

#[test]
fn an_open_door_is_warned_of() {
    let folder = Folder::new("open");
    let module = folder.module(3);
    let args = [&module[..], "--ranks", "2", "--rank", "0", "--coordinator", "0.0.0.0:0", "--connect-timeout", "1"];
    for secret in [None, Some("a secret of the test")] {
        let mut command = program(&args);
        if let Some(secret) = secret {
            command.env("HLO_OPT_SECRET", secret);
        }
        let (code, said) = Rank::start(command).end();
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(
            said.contains("can take part in the run: --secret-file keeps others out"),
            secret.is_none(),
            "{said}"
        );
    }
}
