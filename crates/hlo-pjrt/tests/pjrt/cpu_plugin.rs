//! Round a real plugin: XLA's for CPUs, eight devices in this process.
//!
//! `cargo xtask pjrt-check` installs the plugin and names it in `HLO_PJRT_TEST_PLUGIN`; without it these tests say that they are
//! skipped.
#![allow(unsafe_code)] // Loads the plugin and wraps its table.

use crate::client::{Array, Client, Kind};
use crate::fake::{Lines, settings};
use crate::programs::{
    Options, count, eight_replicas, proto, proto_without_counts, sample, sample_with_replicated, without_counts,
};
use hlo_ir::{DType, Module, Shape};
use hlo_pjrt::c_api::PjrtApi;
use hlo_pjrt::{Level, Optimizer, Settings, wrap};
use hlo_proto::wire::{Value, take_field};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

const N_DEVICES: usize = 8;
const PLUGIN: &str = "HLO_PJRT_TEST_PLUGIN";

/// Two programs of eight devices at once, on few cores, take XLA past its limit for a rendezvous.
static TURN: Mutex<()> = Mutex::new(());

/// The plugin's table; none where there is no plugin.
fn plugin() -> Option<NonNull<PjrtApi>> {
    let Some(path) = std::env::var_os(PLUGIN) else {
        eprintln!("skipped: {PLUGIN} names no plugin; `cargo xtask pjrt-check` installs one");
        return None;
    };
    // SAFETY: the plugin's initializers may run here as in any framework.
    let library = unsafe { libloading::Library::new(&path) }.unwrap_or_else(|error| panic!("{PLUGIN}: {error}"));
    // SAFETY: the entry of a plugin has this type.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *mut PjrtApi>(b"GetPjrtApi\0") };
    let entry = *entry.unwrap_or_else(|error| panic!("{PLUGIN}: {error}"));
    std::mem::forget(library);
    // SAFETY: it takes nothing.
    NonNull::new(unsafe { entry() })
}

/// The inputs of all devices: small numbers that look random. The last `n_own` parameters are the batch, of which each device has its own
/// part; all others are the same everywhere, as state is.
fn draw(module: &Module, n_own: usize, seed: u64) -> Vec<Vec<Array>> {
    let params = &module.comp(module.entry().expect("an entry")).params;
    let one = |device: usize| {
        let with_numbers = params.iter().enumerate().map(|(i, &param)| {
            let owner = if i + n_own >= params.len() { device as u64 + 1 } else { 0 };
            array(module.shape(param), seed.wrapping_mul(1000) + owner * 100 + i as u64)
        });
        with_numbers.collect()
    };
    (0..N_DEVICES).map(one).collect()
}

fn array(shape: &Shape, seed: u64) -> Array {
    let Shape::Array(array) = shape else { panic!("expected an array, found {shape:?}") };
    let n_elems: i64 = array.dims.iter().product();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // Knuth's MMIX generator; its high bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let (kind, bytes) = match array.dtype {
        DType::F32 => (Kind::F32, (0..n_elems).flat_map(|_| (0.1 * next()).to_le_bytes()).collect()),
        DType::S32 => (Kind::S32, (0..n_elems).flat_map(|_| ((next() * 8.0) as i32).to_le_bytes()).collect()),
        ref other => panic!("expected f32 or s32, found {other:?}"),
    };
    Array { kind, dims: array.dims.to_vec(), bytes }
}

/// The largest difference of two runs, relative to the largest number of its array: bits are compared where there are no floats.
fn difference(expected: &[Vec<Vec<u8>>], found: &[Vec<Vec<u8>>]) -> f32 {
    let mut most = 0_f32;
    assert_eq!(expected.len(), found.len(), "devices");
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected.len(), found.len(), "results of a device");
        for (expected, found) in expected.iter().zip(found) {
            assert_eq!(expected.len(), found.len(), "bytes of a result");
            let numbers = |bytes: &[u8]| -> Vec<f32> {
                let chunks = bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().expect("4 bytes")));
                chunks.collect()
            };
            let (expected, found) = (numbers(expected), numbers(found));
            let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
            assert!(expected.iter().chain(&found).all(|x| x.is_finite()), "finite numbers");
            most = expected.iter().zip(&found).fold(most, |most, (x, y)| most.max((x - y).abs() / largest));
        }
    }
    most
}

/// The module in what the plugin says it made: HloModuleProtoWithConfig, whose first field it is.
fn optimized_module(executable: &crate::client::Executable<'_>) -> Vec<u8> {
    let made = executable.optimized().expect("the optimized program");
    match take_field(&made, &mut 0) {
        Ok((1, Value::Bytes(module))) => module.to_vec(),
        other => panic!("expected a module, found {other:?}"),
    }
}

/// All-reduces, reduce-scatters and all-gathers of a module.
fn collectives(proto: &[u8]) -> [usize; 3] {
    ["all-reduce", "reduce-scatter", "all-gather"].map(|opcode| count(proto, opcode))
}

/// A program, how it is compiled, and what is done to it.
struct Case {
    module: Module,
    options: Vec<u8>,
    pipeline: &'static str,
}

/// What the plugin makes of a program, without and with the wrapper: collectives, and the largest difference of the results.
struct Compared {
    without: [usize; 3],
    with: [usize; 3],
    difference: f32,
    lines: Lines,
}

impl Case {
    fn compare(&self, api: NonNull<PjrtApi>) -> Compared {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, lines) = settings();
        // SAFETY: the plugin is never unloaded.
        let wrapped = unsafe { wrap(api, Optimizer::new(Settings { pipeline: self.pipeline.into(), ..asked })) };
        assert_ne!(wrapped, api, "the plugin has no XlaTransform, so its compile is intercepted");
        let program = proto_without_counts(self.module.clone());
        let [before, after] = [api, wrapped].map(|api| {
            let client = Client::new(api, N_DEVICES as i64).expect("a client");
            assert_eq!(client.n_devices(), N_DEVICES);
            let executable = client.compile(&program, &self.options).expect("it compiles");
            let run = |seed| executable.run(&draw(&self.module, 2, seed)).expect("it runs");
            (collectives(&optimized_module(&executable)), run(1), run(2))
        });
        // Other inputs give other results: a comparison that cannot fail would not notice.
        assert!(difference(&before.1, &before.2) > 1e-2, "other inputs, other results");
        assert!(difference(&after.1, &after.2) > 1e-2, "other inputs, other results");
        let difference = difference(&before.1, &after.1).max(difference(&before.2, &after.2));
        eprintln!("{}: {:?} -> {:?}, results differ by {difference:e}", self.pipeline, before.0, after.0);
        Compared { without: before.0, with: after.0, difference, lines }
    }
}

/// Sums in another order: f32 has 24 bits.
const MOST_DIFFERENCE: f32 = 2e-5;

fn partitioned(pipeline: &'static str) -> Case {
    // XLA's CPU compiler wants its partitioner to be on where there are partitions, so its passes are switched off one by one.
    let disabled = "spmd-partitioning,sharding-propagation,shardy-xla";
    let options = Options { n_replicas: 1, n_partitions: N_DEVICES as u64, uses_partitioner: true, disabled }.bytes();
    Case { module: sample("mlp_momentum.hlo"), options, pipeline }
}

#[test]
fn updates_of_a_partitioned_program_are_sharded() {
    let Some(api) = plugin() else { return };
    assert_sharded(&partitioned("shard-weight-update,dce").compare(api));
}

fn assert_sharded(compared: &Compared) {
    let ([sums, scatters, gathers], [_, scatters_now, gathers_now]) = (compared.without, compared.with);
    assert!(sums > 0 && scatters == 0 && gathers == 0, "{:?}", compared.without);
    assert!(scatters_now > 0 && gathers_now > 0, "{:?}", compared.with);
    assert!(compared.difference <= MOST_DIFFERENCE, "{}", compared.difference);
    assert!(compared.lines.lock().expect("no panic").iter().any(|(level, _)| *level == Level::Change));
}

#[test]
fn updates_of_replicas_are_sharded() {
    let Some(api) = plugin() else { return };
    let module = sample_with_replicated("mlp_momentum.repl.hlo", 12);
    let compared = Case { module, options: eight_replicas(), pipeline: "shard-weight-update,dce" }.compare(api);
    assert_sharded(&compared);
}

#[test]
fn the_default_pipeline_leaves_the_combining_of_sums_to_xla() {
    let Some(api) = plugin() else { return };
    let module = sample("mlp_adam_accum.repl.hlo");
    let compared = Case { module, options: eight_replicas(), pipeline: "data-parallel" }.compare(api);
    // XLA's CPU compiler combines the sums itself, so that combining them is no gain.
    assert_eq!((compared.without, compared.with), ([1, 0, 0], [1, 0, 0]));
    let lines = compared.lines.lock().expect("no panic");
    assert!(lines.iter().any(|(level, line)| *level == Level::All && line.contains("left as it is")), "{lines:?}");
    assert!(compared.difference <= MOST_DIFFERENCE, "{}", compared.difference);
}

#[test]
fn a_signature_that_would_change_does_not() {
    let Some(api) = plugin() else { return };
    let compared = partitioned("sharded-state{objective=memory}").compare(api);
    assert_eq!((compared.without, compared.difference), (compared.with, 0.0), "the same program, the same bits");
    let lines = compared.lines.lock().expect("no panic");
    assert!(lines.iter().any(|(level, line)| *level == Level::Warning && line.contains("signature")), "{lines:?}");
}

#[test]
fn strict_says_why_in_the_error_of_the_plugin() {
    let Some(api) = plugin() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (asked, _) = settings();
    let asked = Settings { pipeline: "no-such-pass".into(), is_strict: true, ..asked };
    // SAFETY: the plugin is never unloaded.
    let wrapped = unsafe { wrap(api, Optimizer::new(asked)) };
    let client = Client::new(wrapped, N_DEVICES as i64).expect("a client");
    let Err(error) = client.compile(&without_counts("mlp_momentum.repl.hlo"), &eight_replicas()) else {
        panic!("expected an error, found a program");
    };
    assert!(error.contains("hlo-opt (HLO_OPT_STRICT=1): jit_step: ") && error.contains("no-such-pass"), "{error}");
    // The client is as good as before: a program for one device is none of the wrapper's.
    let text = "HloModule one\n\nENTRY %e (a: f32[8]) -> f32[8] {\n  ROOT %a = f32[8]{0} parameter(0)\n}\n";
    let module = hlo_text::parse_module(text).unwrap_or_else(|errors| panic!("{errors:?}")).module;
    let one_device = Options { n_replicas: 1, n_partitions: 1, ..Options::default() }.bytes();
    assert!(client.compile(&proto(&module), &one_device).is_ok());
}
