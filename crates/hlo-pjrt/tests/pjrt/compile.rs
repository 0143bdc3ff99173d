//! What arrives at the plugin's compile.
#![allow(unsafe_code)] // Wraps tables that the tests made.

use crate::fake::{
    Client, Compiled, SIZES, TABLE_BYTES, UNKNOWN, compile_through, n_errors, only_line, settings, table,
};
use crate::programs::{Options, count, eight_replicas, proto, sample, without_counts};
use hlo_pjrt::c_api::{CompileArgs, PjrtApi};
use hlo_pjrt::{DeviceCounts, Level, Made, Optimizer, Route, Settings, Tool, wrap};
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};
use std::sync::LazyLock;
use std::time::Duration;

const SAMPLE: &str = "mlp_momentum.repl.hlo";

/// A table of the wrapper round a new plugin.
fn wrapped(settings: Settings, tool: Option<Tool>) -> NonNull<PjrtApi> {
    let optimizer = match tool {
        None => Optimizer::new(settings),
        Some(tool) => Optimizer::with_tool(settings, tool),
    };
    // SAFETY: the table is never freed.
    unsafe { wrap(table(TABLE_BYTES, 0, null_mut()), optimizer) }
}

/// One compile for eight partitions without a partitioner, by passes or by a tool made up. The program's parameters say that they
/// are replicated, so that its state could be in shards.
fn compile_partitioned(settings: Settings, tool: Option<Tool>, client: &Client) -> Result<usize, String> {
    let options = Options { n_replicas: 1, n_partitions: 8, ..Options::default() }.bytes();
    compile_through(wrapped(settings, tool), client, ("hlo", &PARTITIONED, &options), SIZES)
}

static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| without_counts(SAMPLE));

static PARTITIONED: LazyLock<Vec<u8>> = LazyLock::new(|| without_counts("mlp_momentum.hlo"));

fn compiled(client: &Client) -> Vec<Compiled> {
    client.compiled.lock().expect("no test panics with it").clone()
}

/// That the plugin got the caller's own bytes, and nothing else.
fn assert_untouched(client: &Client, code: &[u8]) {
    let compiled = compiled(client);
    let [one] = &compiled[..] else { panic!("expected one compile, found {}", compiled.len()) };
    assert_eq!(one.code_address, code.as_ptr() as usize, "the caller's own bytes");
}

#[test]
fn a_per_device_program_is_optimized() {
    let (settings, lines) = settings();
    let client = Client::default();
    let result = compile_through(wrapped(settings, None), &client, ("hlo", &PROGRAM, &eight_replicas()), SIZES);
    let compiled = compiled(&client);
    let [one] = &compiled[..] else { panic!("expected one compile, found {}", compiled.len()) };
    assert_eq!((one.format.as_str(), result), ("hlo", Ok(one.code.len())));
    assert_eq!((count(&PROGRAM, "all-reduce"), count(&one.code, "all-reduce")), (7, 1));
    let line = only_line(&lines, Level::Change);
    for part in ["jit_step: ", "collectives 1 -> 1, sending ", " bytes; ", " µs predicted for 8 x h200"] {
        assert!(line.contains(part), "expected `{part}`, found `{line}`");
    }
    // Which device is which stays the caller's to say.
    let read = hlo_proto::read(&one.code).unwrap_or_else(|error| panic!("{}", error.message));
    assert_eq!((read.module.header.replica_count, read.module.header.num_partitions), (1, 1));
}

#[test]
fn a_program_that_names_its_devices_still_does() {
    let (settings, _) = settings();
    let client = Client::default();
    let program = proto(&sample(SAMPLE));
    compile_through(wrapped(settings, None), &client, ("hlo", &program, &eight_replicas()), SIZES)
        .expect("it compiles");
    let code = &compiled(&client)[0].code;
    assert_eq!(count(code, "all-reduce"), 1);
    let read = hlo_proto::read(code).unwrap_or_else(|error| panic!("{}", error.message));
    assert_eq!(read.module.header.replica_count, 8);
}

#[test]
fn what_is_no_per_device_program_passes_through() {
    let spmd = Options { n_replicas: 1, n_partitions: 8, uses_partitioner: true, disabled: "" };
    let one_device = Options { n_replicas: 1, n_partitions: 1, ..spmd };
    let global = proto(&sample("mlp_momentum.hlo"));
    let (settings, lines) = settings();
    let api = wrapped(settings, None);
    for (format, options, why) in [
        ("mlir", eight_replicas(), "expected a program of format `hlo`, found `mlir`"),
        ("hlo", spmd.bytes(), "it is not partitioned yet: use_spmd_partitioning is set (1 replicas, 8 partitions)"),
        ("hlo", one_device.bytes(), "it is compiled for one device"),
        ("hlo", Vec::new(), "it is compiled for one device"),
    ] {
        lines.lock().expect("no panic").clear();
        let client = Client::default();
        compile_through(api, &client, (format, &global, &options), SIZES).expect("it compiles");
        assert_untouched(&client, &global);
        let line = only_line(&lines, Level::All);
        assert!(line.contains(why), "expected `{why}`, found `{line}`");
    }
    // A partitioner that is switched off does nothing.
    let client = Client::default();
    let off = Options { disabled: "sharding-propagation,spmd-partitioning", ..spmd }.bytes();
    let partitioned = without_counts("mlp_momentum.hlo");
    compile_through(api, &client, ("hlo", &partitioned, &off), SIZES).expect("it compiles");
    assert_eq!(count(&compiled(&client)[0].code, "all-reduce"), 1);
}

#[test]
fn a_global_program_is_recognized_by_what_stands_in_it() {
    let (settings, lines) = settings();
    let client = Client::default();
    let text = "HloModule global\n\nENTRY %e (a: f32[8]) -> f32[8] {\n  %a = f32[8]{0} parameter(0)\n  \
        ROOT %c = f32[8]{0} custom-call(%a), custom_call_target=\"Sharding\", sharding={devices=[8]<=[8]}\n}\n";
    let module = hlo_text::parse_module(text).unwrap_or_else(|errors| panic!("{errors:?}")).module;
    let program = proto(&module);
    let options = Options { n_replicas: 1, n_partitions: 8, ..Options::default() }.bytes();
    compile_through(wrapped(settings, None), &client, ("hlo", &program, &options), SIZES).expect("it compiles");
    assert_untouched(&client, &program);
    assert!(
        only_line(&lines, Level::All).contains("not partitioned yet: `%c` is a custom call to a partitioner"),
        "{lines:?}"
    );
}

/// Things that go wrong, and what the warning says of each.
fn failures() -> Vec<(Settings, Option<Tool>, &'static str)> {
    let pipeline = |text: &str| Settings { pipeline: text.into(), ..Settings::default() };
    let slow: Tool = |_, _, _| {
        std::thread::sleep(Duration::from_secs(20));
        Ok(Made::Same("too late".into()))
    };
    let panics: Tool = |_, _, _| panic!("the {} fell", "tree");
    let garbage: Tool = |_, _, _| Ok(Made::Other { proto: vec![0xff; 9], line: "changed".into() });
    let other: Tool = |_, _, _| Ok(Made::Other { proto: proto(&sample("mlp_sgd.repl.hlo")), line: "changed".into() });
    let deadline = Duration::from_millis(50);
    vec![
        (pipeline("no-such-pass"), None, "no-such-pass"),
        (pipeline("data-parallel{color=red}"), None, "color"),
        (pipeline("sharded-state{objective=memory}"), None, "its signature would change: "),
        (Settings { deadline, ..Settings::default() }, Some(slow), "not done within 0.05 s"),
        (Settings::default(), Some(panics), "internal error: the tree fell"),
        (Settings::default(), Some(garbage), "its signature would change: the program as it is now: "),
        (Settings::default(), Some(other), "its signature would change: expected 1 replicas and 1 partitions"),
    ]
}

#[test]
fn after_a_failure_the_program_is_compiled_as_it_came() {
    for (asked, tool, why) in failures() {
        let (Settings { log, .. }, lines) = settings();
        let client = Client::default();
        let result = compile_partitioned(Settings { log, ..asked }, tool, &client);
        assert_eq!(result, Ok(PARTITIONED.len()), "{why}");
        assert_untouched(&client, &PARTITIONED);
        let line = only_line(&lines, Level::Warning);
        let begin = "jit_step: compiled as it came: ";
        assert!(line.starts_with(begin) && line.contains(why), "expected `{why}`, found `{line}`");
    }
}

#[test]
fn strict_makes_a_failure_an_error_of_the_compile() {
    for (asked, tool, why) in failures() {
        let (Settings { log, .. }, lines) = settings();
        let client = Client::default();
        let error = compile_partitioned(Settings { log, is_strict: true, ..asked }, tool, &client);
        let error = error.expect_err(why);
        assert!(error.contains("hlo-opt (HLO_OPT_STRICT=1): jit_step: ") && error.contains(why), "{error}");
        assert!(compiled(&client).iter().all(|one| one.code.is_empty()), "no program was compiled");
        assert!(only_line(&lines, Level::Warning).contains(why));
    }
}

#[test]
fn bytes_that_are_no_program_or_no_options_are_left_to_the_plugin() {
    let (settings, lines) = settings();
    let api = wrapped(settings, None);
    for (code, options) in
        [(&b"\xff\xff\xff"[..], eight_replicas()), (b"", eight_replicas()), (&PROGRAM, b"\x1a\xff".into())]
    {
        lines.lock().expect("no panic").clear();
        let client = Client::default();
        compile_through(api, &client, ("hlo", code, &options), SIZES).expect("it compiles");
        assert_untouched(&client, code);
        assert!(only_line(&lines, Level::Warning).contains("compiled as it came: "), "{lines:?}");
    }
}

#[test]
fn a_plugin_that_refuses_the_optimized_program_gets_the_other() {
    let (asked, lines) = settings();
    let client = Client { only: Some(PARTITIONED.clone()), ..Client::default() };
    assert_eq!(compile_partitioned(asked, None, &client), Ok(PARTITIONED.len()));
    assert_eq!((compiled(&client).len(), n_errors()), (2, 0), "the error was read and freed");
    assert!(
        only_line(&lines, Level::Warning).contains("the plugin refuses the optimized program: this program is too new")
    );

    let (asked, _) = settings();
    let client = Client { only: Some(PARTITIONED.clone()), ..Client::default() };
    let error = compile_partitioned(Settings { is_strict: true, ..asked }, None, &client);
    assert_eq!(error, Err("this program is too new".into()));
}

#[test]
fn structs_of_other_sizes() {
    let (settings, lines) = settings();
    let api = wrapped(settings, None);
    let compile = |sizes| {
        let client = Client::default();
        compile_through(api, &client, ("hlo", &PROGRAM, &eight_replicas()), sizes).expect("it compiles");
        compiled(&client).remove(0)
    };
    // Fields are missing, or the size is none: nothing is read.
    let (args, program) = SIZES;
    for sizes in
        [(offset_of!(CompileArgs, executable) - 1, program), (0, program), (args, program - 1), (args, 1 << 20)]
    {
        lines.lock().expect("no panic").clear();
        assert_eq!(compile(sizes).code_address, PROGRAM.as_ptr() as usize, "{sizes:?}");
        assert!(only_line(&lines, Level::All).contains("known size"), "{lines:?}");
    }
    // Fields that nobody knows yet go on to the plugin.
    for sizes in [(args + 24, program), (args, program + 16), (args, program + 3)] {
        let compiled = compile(sizes);
        assert_eq!(count(&compiled.code, "all-reduce"), 1, "{sizes:?}");
        let unknown: Vec<u8> = UNKNOWN.to_le_bytes().into_iter().cycle().take(sizes.1 - program).collect();
        assert_eq!(compiled.unknown, unknown, "{sizes:?}");
    }
}

#[test]
fn the_tool_is_told_the_devices() {
    let tool: Tool = |_, _, route| Ok(Made::Same(format!("{route:?}")));
    let (settings, lines) = settings();
    let client = Client::default();
    let options = Options { n_replicas: 2, n_partitions: 4, ..Options::default() }.bytes();
    compile_through(wrapped(settings, Some(tool)), &client, ("hlo", &PROGRAM, &options), SIZES).expect("it compiles");
    let route = Route::Compile(DeviceCounts { n_replicas: 2, n_partitions: 4 });
    assert_eq!(only_line(&lines, Level::All), format!("jit_step: left as it is: {route:?}"));
}

#[test]
fn the_passes_are_told_the_devices() {
    let (asked, lines) = settings();
    let asked = Settings { pipeline: "combine-collectives".into(), ..asked };
    // Groups that name nobody are all devices: how many, only the options say.
    let text = "HloModule sums\n\n%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  \
        ROOT %s = f32[] add(%x, %y)\n}\n\nENTRY %e (a: f32[8], b: f32[8]) -> (f32[8], f32[8]) {\n  \
        %a = f32[8]{0} parameter(0)\n  %b = f32[8]{0} parameter(1)\n  \
        %c = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add\n  \
        %d = f32[8]{0} all-reduce(%b), replica_groups={}, to_apply=%add\n  \
        ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%c, %d)\n}\n";
    let program = proto(&hlo_text::parse_module(text).unwrap_or_else(|errors| panic!("{errors:?}")).module);
    let client = Client::default();
    compile_through(wrapped(asked, None), &client, ("hlo", &program, &eight_replicas()), SIZES).expect("it compiles");
    assert_eq!(count(&compiled(&client)[0].code, "all-reduce"), 1);
    let line = only_line(&lines, Level::Change);
    assert!(line.contains("collectives 1 -> 1") && line.contains("for 8 x h200"), "{line}");
}
