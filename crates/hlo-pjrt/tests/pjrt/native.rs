//! The callback of the extension XlaTransform.
#![allow(unsafe_code)] // Plays the plugin's side of the extension.

use crate::fake::{Client, SIZES, TABLE_BYTES, compile_through, only_line, refusal, settings, table};
use crate::programs::{count, eight_replicas, proto, sample, without_counts};
use hlo_pjrt::c_api::{
    ClearArgs, ExtensionBase, PRE_SCHEDULER, PjrtApi, PjrtError, RegisterArgs, TRANSFORM_VERSION, TransformArgs,
    TransformCallbacks, TransformHeader, TransformString, XLA_TRANSFORM, XlaTransformExtension,
};
use hlo_pjrt::{
    Level, Made, Optimizer, RegisterError, Settings, Stage, Tool, module_failed, module_left, register, set_current,
    transform_module, unregister, wrap,
};
use std::mem::offset_of;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Mutex, PoisonError};

/// What the plugin was asked, and the callback that it has.
#[derive(Default)]
struct Registry {
    calls: Vec<&'static str>,
    /// The address of the callbacks.
    callbacks: usize,
    refuses: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { calls: Vec::new(), callbacks: 0, refuses: false });

/// The callback is one for the process, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn registry() -> std::sync::MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn on_register(args: *mut RegisterArgs) -> *mut PjrtError {
    // SAFETY: the wrapper gives complete arguments.
    let args = unsafe { &*args };
    // SAFETY: as above.
    let name = unsafe { std::slice::from_raw_parts(args.name.cast::<u8>(), args.name_size) };
    assert_eq!((args.struct_size, name, args.stage), (40, &b"hlo-opt"[..], PRE_SCHEDULER));
    let mut registry = registry();
    registry.calls.push("register");
    registry.callbacks = args.callbacks.expose_provenance();
    if registry.refuses { refusal("no room") } else { null_mut() }
}

unsafe extern "C" fn on_clear(args: *mut ClearArgs) -> *mut PjrtError {
    // SAFETY: the wrapper gives complete arguments.
    let args = unsafe { &mut *args };
    assert_eq!((args.struct_size, args.stage, args.name_size), (41, PRE_SCHEDULER, 7));
    registry().calls.push("clear");
    refusal("there was none")
}

/// A table whose second extension is XlaTransform, with so many bytes.
fn with_transform(struct_size: usize) -> NonNull<PjrtApi> {
    let base = ExtensionBase { struct_size, kind: XLA_TRANSFORM, next: null_mut() };
    let ours = Box::leak(Box::new(XlaTransformExtension { base, register: Some(on_register), clear: Some(on_clear) }));
    let first = ExtensionBase { struct_size: 24, kind: 1, next: (&raw mut *ours).cast() };
    table(TABLE_BYTES, 0, Box::leak(Box::new(first)))
}

/// Calls the callback with a module: the error, or what became of the module.
fn transform(module: &[u8], struct_size: usize, api_version: i64) -> Result<Option<Vec<u8>>, String> {
    let nothing = TransformString { data: null(), size: 0 };
    let header = TransformHeader {
        api_version,
        data: null_mut(),
        cleanup: None,
        has_error: false,
        code: 0,
        error_message: nothing,
    };
    let input = TransformString { data: module.as_ptr().cast(), size: module.len() };
    let mut args = TransformArgs { struct_size, header, module: input, transformed: nothing, changed: false };
    // SAFETY: the wrapper registered this address.
    let callbacks = unsafe { &*std::ptr::with_exposed_provenance::<TransformCallbacks>(registry().callbacks) };
    assert_eq!(callbacks.version, TRANSFORM_VERSION);
    // Some versions call with a copy.
    let mut copy = TransformCallbacks { ..*callbacks };
    let call = callbacks.transform.expect("a callback");
    // SAFETY: the arguments are complete.
    unsafe { call(&raw mut copy, &raw mut args) };
    let take = |text: TransformString| {
        // SAFETY: the callback says that so many bytes lie there until `cleanup` is called.
        unsafe { std::slice::from_raw_parts(text.data.cast::<u8>(), text.size) }.to_vec()
    };
    let result = match (args.header.has_error, args.changed) {
        (true, _) => Err(String::from_utf8(take(args.header.error_message)).expect("text")),
        (false, true) => Ok(Some(take(args.transformed))),
        (false, false) => Ok(None),
    };
    let has_bytes = args.header.has_error || args.changed;
    assert_eq!(args.header.cleanup.is_some(), has_bytes, "what is handed over can be freed");
    if let Some(cleanup) = args.header.cleanup {
        // SAFETY: it is called once.
        unsafe { cleanup(args.header.data) };
    }
    result
}

const WHOLE: usize = offset_of!(TransformArgs, changed) + 1;

#[test]
fn the_callback_is_registered_and_optimizes() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *registry() = Registry::default();
    let (asked, lines) = settings();
    let sharded = Settings {
        pipeline: "shard-weight-update{profit=always},combine-collectives{mode=variadic},dce".into(),
        ..asked.clone()
    };
    let real = with_transform(size_of::<XlaTransformExtension>());
    // SAFETY: the table is never freed.
    assert_eq!(unsafe { wrap(real, Optimizer::new(sharded)) }, real, "the plugin's own table");
    assert_eq!(registry().calls, ["clear", "register"]);
    only_line(&lines, Level::All);

    let module = proto(&sample("mlp_momentum.hlo"));
    let made = transform(&module, WHOLE, TRANSFORM_VERSION).expect("no error").expect("a change");
    assert_eq!((count(&module, "reduce-scatter"), count(&made, "reduce-scatter")), (0, 5));
    assert!(only_line(&lines, Level::Change).contains("µs predicted for 8 x h200"));

    // Nothing is touched where the struct is too small, the version another, or there is one device.
    assert_eq!(transform(&module, WHOLE - 1, TRANSFORM_VERSION), Ok(None));
    assert_eq!(transform(&module, WHOLE, TRANSFORM_VERSION + 1), Ok(None));
    assert_eq!(transform(b"", WHOLE, TRANSFORM_VERSION), Ok(None));
    assert!(transform(&module, WHOLE + 7, TRANSFORM_VERSION).expect("no error").is_some());
}

#[test]
fn what_xla_does_itself_is_left_to_it() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *registry() = Registry::default();
    let real = with_transform(size_of::<XlaTransformExtension>());
    let text = "HloModule sums, num_partitions=8\n\n%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  \
        %y = f32[] parameter(1)\n  ROOT %s = f32[] add(%x, %y)\n}\n\nENTRY %e (a: f32[8], b: f32[8]) -> (f32[8], f32[8]) {\n  \
        %a = f32[8]{0} parameter(0)\n  %b = f32[8]{0} parameter(1)\n  \
        %c = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add\n  \
        %d = f32[8]{0} all-reduce(%b), replica_groups={}, to_apply=%add\n  \
        ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%c, %d)\n}\n";
    let module = proto(&hlo_text::parse_module(text).unwrap_or_else(|errors| panic!("{errors:?}")).module);
    let (asked, lines) = settings();
    let asked = Settings { pipeline: "combine-collectives,dce".into(), ..asked };
    // SAFETY: the table is never freed.
    assert_eq!(unsafe { register(real, Stage::Partitioned, Optimizer::new(asked)) }, Ok(()));
    assert!(transform(&module, WHOLE, TRANSFORM_VERSION).is_ok_and(|made| made.is_none()));
    assert_eq!(only_line(&lines, Level::All), "sums: left as it is: XLA combines its collectives itself");
}

#[test]
fn without_an_optimizer_modules_stay_as_they_are() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *registry() = Registry::default();
    let real = with_transform(size_of::<XlaTransformExtension>());
    let module = proto(&sample("mlp_momentum.hlo"));
    let (asked, lines) = settings();
    let fails: Tool = |_, _, _| Err("called".into());
    // SAFETY: the table is never freed.
    assert_eq!(unsafe { register(real, Stage::Partitioned, Optimizer::with_tool(asked, fails)) }, Ok(()));
    assert_eq!(transform(&module, WHOLE, TRANSFORM_VERSION), Ok(None));
    assert!(only_line(&lines, Level::Warning).contains("called"));
    lines.lock().expect("no panic").clear();
    unregister();
    assert_eq!(transform(&module, WHOLE, TRANSFORM_VERSION), Ok(None));
    assert!(lines.lock().expect("no panic").is_empty());
}

#[test]
fn a_module_is_transformed_without_a_plugin() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let module = proto(&sample("mlp_momentum.hlo"));
    unregister();
    assert_eq!(transform_module(&module), Ok(None));
    assert_eq!(module_failed("jit_step", "it fell".into()), Ok(()));
    let sharded = "shard-weight-update{profit=always},dce";
    let (asked, lines) = settings();
    set_current(Stage::Partitioned, Optimizer::new(Settings { pipeline: sharded.into(), ..asked }));
    let made = transform_module(&module).expect("no error").expect("a change");
    assert_eq!((count(&module, "reduce-scatter"), count(&made, "reduce-scatter")), (0, 5));
    only_line(&lines, Level::Change);
    lines.lock().expect("no panic").clear();
    module_left("jit_step", "it rests");
    assert_eq!(only_line(&lines, Level::All), "jit_step: left as it is: it rests");
    lines.lock().expect("no panic").clear();
    assert_eq!(module_failed("jit_step", "it fell".into()), Ok(()));
    assert_eq!(only_line(&lines, Level::Warning), "jit_step: compiled as it came: it fell");
    let (asked, _) = settings();
    set_current(Stage::Partitioned, Optimizer::new(Settings { pipeline: sharded.into(), is_strict: true, ..asked }));
    assert_eq!(module_failed("jit_step", "it fell".into()), Err("jit_step: it fell".into()));
}

#[test]
fn a_compiler_that_drops_aliases_gets_nothing_that_donates() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let donor = sample("mlp_momentum.hlo");
    assert!(!donor.header.buffer_donor.is_empty() && donor.header.input_output_alias.is_empty());
    let mut plain = sample("mlp_momentum.hlo");
    plain.header.buffer_donor.clear();
    let aliased = sample("scan_momentum.hlo");
    assert!(!aliased.header.input_output_alias.is_empty());
    let [plain, donor, aliased] = [plain, donor, aliased].map(|module| proto(&module));
    for (keeps_aliases, module, changes) in [
        (false, &plain, true),
        (false, &donor, false),
        (false, &aliased, false),
        (true, &donor, true),
        (true, &aliased, true),
    ] {
        let (asked, lines) = settings();
        let pipeline = "shard-weight-update{profit=always},dce".into();
        set_current(Stage::Partitioned, Optimizer::new(Settings { pipeline, keeps_aliases, ..asked }));
        assert_eq!(transform_module(module).map(|made| made.is_some()), Ok(changes));
        if !changes {
            assert!(only_line(&lines, Level::All).contains("expected jaxlib 0.11 or newer"));
        }
    }
    unregister();
}

#[test]
fn the_devices_are_those_that_the_module_names() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *registry() = Registry::default();
    let real = with_transform(size_of::<XlaTransformExtension>());
    let (asked, lines) = settings();
    let fails: Tool = |_, _, _| Err("called".into());
    // SAFETY: the table is never freed.
    assert_eq!(unsafe { register(real, Stage::Partitioned, Optimizer::with_tool(asked, fails)) }, Ok(()));
    for (assignment, line) in [
        // Field 15 {1: replicas, 2: partitions}.
        (&b"\x7a\x04\x08\x01\x10\x01"[..], (Level::All, "left as it is: it runs on one device")),
        (b"\x7a\x04\x08\x01\x10\x08", (Level::Warning, "compiled as it came: called")),
        (b"\x7a\x02\x08\xff", (Level::Warning, "compiled as it came: device_assignment: expected a varint")),
        (b"", (Level::Warning, "compiled as it came: called")),
    ] {
        lines.lock().expect("no panic").clear();
        let module = [&without_counts("mlp_momentum.hlo"), assignment].concat();
        assert_eq!(transform(&module, WHOLE, TRANSFORM_VERSION), Ok(None));
        let said = only_line(&lines, line.0);
        assert!(said.contains(line.1), "expected `{}`, found `{said}`", line.1);
    }
}

#[test]
fn a_failure_in_the_callback() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *registry() = Registry::default();
    let panics: Tool = |_, _, _| panic!("the tree fell");
    let module = proto(&sample("mlp_momentum.hlo"));
    let real = with_transform(offset_of!(XlaTransformExtension, clear));
    for is_strict in [false, true] {
        let (asked, lines) = settings();
        let optimizer = Optimizer::with_tool(Settings { is_strict, ..asked }, panics);
        // SAFETY: the table is never freed.
        assert_eq!(unsafe { register(real, Stage::Partitioned, optimizer) }, Ok(()));
        let made = transform(&module, WHOLE, TRANSFORM_VERSION);
        if is_strict {
            assert_eq!(made, Err("hlo-opt (HLO_OPT_STRICT=1): jit_step: internal error: the tree fell".into()));
        } else {
            assert_eq!(made, Ok(None));
            assert!(only_line(&lines, Level::Warning).contains("internal error: the tree fell"));
        }
    }
    assert_eq!(registry().calls, ["register", "register"], "an extension without `clear` is asked for none");
    // A module that names no devices, in which there is nothing to do.
    let (asked, _) = settings();
    let tool: Tool = |_, _, route| Err(format!("{route:?}"));
    // SAFETY: as above.
    assert_eq!(
        unsafe {
            register(real, Stage::Partitioned, Optimizer::with_tool(Settings { is_strict: true, ..asked }, tool))
        },
        Ok(())
    );
    let made = transform(&without_counts("mlp_momentum.hlo"), WHOLE, TRANSFORM_VERSION);
    assert_eq!(made, Err("hlo-opt (HLO_OPT_STRICT=1): jit_step: Stage".into()));
}

#[test]
fn a_plugin_that_refuses_the_callback_is_intercepted() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *registry() = Registry { refuses: true, ..Registry::default() };
    let (asked, lines) = settings();
    let real = with_transform(size_of::<XlaTransformExtension>());
    let same: Tool = |_, _, _| Ok(Made::Same("seen".into()));
    // SAFETY: the table is never freed.
    let copy = unsafe { wrap(real, Optimizer::with_tool(asked, same)) };
    assert_ne!(copy, real);
    assert!(only_line(&lines, Level::Warning).contains("refuses the callback: no room"), "{lines:?}");
    let client = Client::default();
    let program = without_counts("mlp_momentum.hlo");
    compile_through(copy, &client, ("hlo", &program, &eight_replicas()), SIZES).expect("it compiles");
    assert!(only_line(&lines, Level::All).contains("seen"));
}

#[test]
fn registering_says_why_it_cannot() {
    let (asked, _) = settings();
    let optimizer = Optimizer::new(asked);
    // SAFETY: the table is never freed.
    let error = unsafe { register(table(TABLE_BYTES, 0, null_mut()), Stage::Partitioned, optimizer.clone()) };
    assert_eq!(error, Err(RegisterError::NoExtension));
    // SAFETY: as above.
    let error = unsafe { register(table(TABLE_BYTES, 7, null_mut()), Stage::Partitioned, optimizer) };
    assert!(matches!(&error, Err(RegisterError::UnknownApi(why)) if why.contains("7.81")), "{error:?}");
}
