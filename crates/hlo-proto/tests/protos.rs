//! HloModuleProtos: text to proto and back, protos that jaxlib wrote (`ir-samples/protos`), unknown fields, damaged files.

use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_ir::{ArrayShape, Module, Shape, ShapeId};
use hlo_proto::table::{Kind, Message, messages};
use hlo_proto::wire::{Value, take_field};
use hlo_proto::{Kept, Parsed, read, write, write_for_old_readers};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples")
}

/// Names and texts of the samples of a folder.
fn samples(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder of samples");
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hlo"));
    paths.sort();
    assert!(!paths.is_empty(), "{folder}: no samples");
    let sample = |path: PathBuf| (path.display().to_string(), fs::read_to_string(&path).expect("a sample"));
    paths.into_iter().map(sample).collect()
}

fn first_difference(found: &str, expected: &str) -> String {
    let lines = found.lines().zip(expected.lines()).find(|(a, b)| a != b);
    lines.map_or("another number of lines".into(), |(a, b)| format!("expected\n  {b}\nfound\n  {a}"))
}

/// A proto of `ir-samples/protos`.
struct Stored {
    name: String,
    bytes: Vec<u8>,
}

fn stored() -> Vec<Stored> {
    let entries = fs::read_dir(root().join("protos")).expect("the folder of protos");
    let mut paths: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    let protos = paths.into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_string();
        (!name.ends_with(".expected")).then(|| Stored { bytes: fs::read(&path).expect("a proto"), name })
    });
    let protos: Vec<Stored> = protos.collect();
    assert!(protos.len() > 20, "found {} protos", protos.len());
    protos
}

fn parsed(proto: &Stored) -> Parsed {
    read(&proto.bytes).unwrap_or_else(|diag| panic!("{}: {}", proto.name, diag.message))
}

fn print(module: &Module) -> String {
    print_module(module, &PrintOptions { form: FormChoice::Long, ..PrintOptions::default() })
}

/// The module as its proto has it: every array has a layout, and what no proto has is gone.
fn as_in_protos(mut module: Module) -> Module {
    for comp in module.computations().to_vec() {
        for inst in module.comp(comp).insts.clone() {
            let shape = module.inst(inst).shape;
            module.inst_mut(inst).shape = with_layouts(&mut module, shape);
        }
    }
    if let Some(layout) = module.header.entry_computation_layout.take() {
        let params = layout.params.iter().map(|&id| with_layouts(&mut module, id)).collect();
        let result = with_layouts(&mut module, layout.result);
        module.header.entry_computation_layout = Some(hlo_ir::header::EntryLayout { params, result });
    }
    let header = &mut module.header;
    header.alias_passthrough_params = false;
    header.allow_spmd_sharding_propagation_to_parameters = None;
    header.allow_spmd_sharding_propagation_to_output = None;
    header.origin_recovery_table.0.clear();
    header.debug_attributes.0.clear();
    module
}

fn with_layouts(module: &mut Module, id: ShapeId) -> ShapeId {
    fn filled(shape: &Shape) -> Shape {
        let array = |a: &ArrayShape| if a.layout.is_none() { a.clone().with_row_major() } else { a.clone() };
        match shape {
            Shape::Array(a) => Shape::Array(array(a)),
            Shape::Buffer(a) => Shape::Buffer(array(a)),
            Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(filled).collect()),
            Shape::Token => Shape::Token,
            Shape::Opaque => Shape::Opaque,
        }
    }
    let shape = filled(module.shapes.get(id));
    module.shapes.intern(shape)
}

#[test]
fn texts_come_back_from_protos() {
    let mut failures = Vec::new();
    for folder in ["ops", "programs", "passes/shard-weight-update"] {
        for (name, text) in samples(folder) {
            let text = hlo_text::parse_module(&text).expect("a valid sample").module;
            let written = write(&text, &Kept::default());
            let back = match read(&written.bytes) {
                Ok(parsed) => print(&parsed.module),
                Err(diag) => format!("error: {}", diag.message),
            };
            let expected = print(&as_in_protos(text));
            if back != expected {
                failures.push(format!("{name}: {}", first_difference(&back, &expected)));
            }
        }
    }
    assert!(failures.is_empty(), "{} samples fail\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn protos_of_jaxlib_print_as_jaxlib_prints_them() {
    let mut n_compared = 0;
    for proto in stored() {
        let module = parsed(&proto).module;
        let stem = proto.name.split(".hlo").next().unwrap_or_default();
        let stem = stem.strip_suffix(".snapshot.pb.gz").unwrap_or(stem);
        let Ok(expected) = fs::read_to_string(root().join("protos").join(format!("{stem}.expected"))) else {
            panic!("{}: expected a file {stem}.expected", proto.name);
        };
        let printed = print(&module);
        assert!(printed == expected, "{}: {}", proto.name, first_difference(&printed, &expected));
        n_compared += 1;
    }
    assert!(n_compared > 20);
}

#[test]
fn what_is_written_is_read_as_the_same_module() {
    for proto in stored() {
        let Parsed { module, kept } = parsed(&proto);
        let written = write(&module, &kept);
        assert_eq!(written.n_dropped, 0, "{}", proto.name);
        let again = read(&written.bytes).expect("what we wrote");
        assert_eq!(print(&again.module), print(&module), "{}", proto.name);
        assert_eq!(again.kept, kept, "{}", proto.name);
        assert_eq!(write(&again.module, &again.kept).bytes, written.bytes, "{}", proto.name);
    }
}

/// The text format has every field of the table, and its messages are balanced.
#[test]
fn the_text_format_names_every_field() {
    for proto in stored() {
        let unpacked = hlo_proto::unpack(&proto.bytes).expect("a proto");
        let text = hlo_proto::text::print_module(unpacked.module()).expect("a module");
        assert_eq!(text.matches(" {\n").count(), text.lines().filter(|line| line.trim() == "}").count());
        assert!(text.contains("\n  instructions {\n"), "{text}");
    }
}

/// A field of no message, which a later version may have.
const UNKNOWN: [u8; 9] = [0xc2, 0x3e, 6, b'f', b'u', b't', b'u', b'r', b'e'];

/// Appends an unknown field to every message that has fields; counts by kind of message.
fn with_unknown(bytes: &[u8], message: &'static Message, counts: &mut Vec<(&'static str, usize)>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let begin = at;
        let tag = varint(bytes, &mut at);
        let field = message.field((tag >> 3) as u32).expect("a field of the table");
        match tag & 7 {
            0 => drop(varint(bytes, &mut at)),
            1 => at += 8,
            5 => at += 4,
            _ => {
                let len = varint(bytes, &mut at) as usize;
                let inner = &bytes[at..at + len];
                at += len;
                // What a module keeps as a whole is not looked into.
                if let (Kind::Message(of), false) = (field.kind, field.is_kept) {
                    let inner = with_unknown(inner, of(), counts);
                    push_varint(&mut out, tag);
                    push_varint(&mut out, inner.len() as u64);
                    out.extend_from_slice(&inner);
                    continue;
                }
            }
        }
        out.extend_from_slice(&bytes[begin..at]);
    }
    if !bytes.is_empty() {
        out.extend_from_slice(&UNKNOWN);
        match counts.iter_mut().find(|(name, _)| *name == message.name) {
            Some((_, n)) => *n += 1,
            None => counts.push((message.name, 1)),
        }
    }
    out
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[test]
fn unknown_fields_of_every_message_are_kept() {
    let mut counts = Vec::new();
    for proto in stored() {
        let unpacked = hlo_proto::unpack(&proto.bytes).expect("a proto");
        let message = messages().find(|message| message.name == "HloModuleProto").expect("the module");
        let mut own = Vec::new();
        let bytes = with_unknown(unpacked.module(), message, &mut own);
        let Parsed { module, kept } = read(&bytes).expect("unknown fields are no errors");
        let written = write(&module, &kept);
        let n = own.iter().map(|(_, n)| n).sum::<usize>();
        let found = written.bytes.windows(UNKNOWN.len()).filter(|window| *window == UNKNOWN).count();
        assert_eq!((found, written.n_dropped), (n, 0), "{}: {own:?}", proto.name);
        counts.extend(own);
    }
    counts.sort();
    counts.dedup_by_key(|(name, _)| *name);
    assert!(counts.len() > 30, "only {counts:?}");
}

#[test]
fn kept_fields_of_what_has_changed_are_dropped_and_counted() {
    let text = "HloModule m\n\nENTRY e {\n  p = f32[4]{0} parameter(0)\n  ROOT n = f32[4]{0} negate(p)\n}\n";
    let module = hlo_text::parse_module(text).expect("a module").module;
    let bytes = write(&module, &Kept::default()).bytes;
    let message = messages().find(|message| message.name == "HloModuleProto").expect("the module");
    let Parsed { mut module, kept } = read(&with_unknown(&bytes, message, &mut Vec::new())).expect("a module");
    let root = module.comp(module.entry().expect("an entry")).root.expect("a root");
    module.inst_mut(root).opcode = hlo_ir::Opcode::Abs;
    let of_root = write(&module, &kept);
    assert!(of_root.n_dropped > 0 && of_root.n_restored > 0, "{} {}", of_root.n_dropped, of_root.n_restored);
    assert_eq!(of_root.n_dropped + of_root.n_restored, kept.n_fields());
}

/// A damaged file is an error, or another valid module: never a panic, and never a long wait.
fn survives(bytes: &[u8]) {
    let Ok(Parsed { module, kept }) = read(bytes) else { return };
    if hlo_ir::verify::verify(&module).is_ok() {
        let _ = print(&module);
        let _ = write(&module, &kept);
    }
}

#[test]
fn truncated_files_are_errors() {
    for proto in stored() {
        let step = (proto.bytes.len() / 400).max(1);
        for len in (0..proto.bytes.len()).step_by(step) {
            survives(&proto.bytes[..len]);
        }
        let half = read(&proto.bytes[..proto.bytes.len() / 2]).expect_err("half a proto");
        assert!(!half.message.is_empty());
    }
}

#[test]
fn flipped_bits_never_panic() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for proto in stored() {
        for _ in 0..400 {
            let mut bytes = proto.bytes.clone();
            for _ in 0..1 + random(3) {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            survives(&bytes);
        }
    }
}

/// torch-neuronx makes such calls. XLA prints the word, and its own parser refuses it.
#[test]
fn a_custom_call_without_a_version_keeps_it_so() {
    let call = |version: &str| {
        format!(
            "HloModule m\n\nENTRY %e (a: f32[3]) -> f32[3] {{\n  %a = f32[3]{{0}} parameter(0)\n  \
             ROOT %b = f32[3]{{0}} custom-call(%a), custom_call_target=\"t\"{version}\n}}\n"
        )
    };
    let written = |text: &str| {
        let module = hlo_text::parse_module(text).unwrap_or_else(|diags| panic!("{text}: {diags:?}")).module;
        write(&module, &Kept::default()).bytes
    };
    for version in [", api_version=API_VERSION_UNSPECIFIED", ", api_version=API_VERSION_TYPED_FFI", ""] {
        let text = print(&read(&written(&call(version))).expect("a proto").module);
        assert!(text.contains(&format!("custom_call_target=\"t\"{version}\n")), "{version}: {text}");
    }
    let [without, first] = [", api_version=API_VERSION_UNSPECIFIED", ""].map(|version| written(&call(version)));
    // The field is number 77: two bytes, and one of its value.
    assert_eq!(without.len() + 3, first.len());
}

#[test]
fn errors_say_where() {
    let proto = fs::read(root().join("protos/mlp_sgd_wide.hlo.pb")).expect("a proto");
    let message = |bytes: &[u8]| read(bytes).expect_err("a damaged proto").message;
    let cut = message(&proto[..proto.len() / 2]);
    assert!(cut.contains("byte ") && cut.contains("expected as many bytes as the length says"), "{cut}");
    // A wire type that the field's type does not have: the name of the entry as a number.
    let at = proto.windows(2).position(|two| two == [0x12, 7]).expect("an opcode of seven letters");
    let mut bytes = proto.clone();
    bytes[at] = 0x10;
    let wrong = message(&bytes);
    assert!(wrong.starts_with("byte "), "{wrong}");
    assert!(message(b"\x0a\x02hi").contains("expected an HloModuleProto"), "{}", message(b"\x0a\x02hi"));
}

#[test]
fn groups_become_lists_for_old_readers() {
    let text = fs::read_to_string(root().join("programs/mlp_adam_pjit2d.hlo")).expect("a sample");
    let module = hlo_text::parse_module(&text).expect("a module").module;
    let lists = |bytes: &[u8]| {
        let again = read(bytes).expect("a module").module;
        print_module(&again, &PrintOptions::default())
    };
    let kept = lists(&write(&module, &Kept::default()).bytes);
    let expanded = lists(&write_for_old_readers(&module, &Kept::default()).bytes);
    assert_eq!(kept.matches("replica_groups=mesh[").count(), text.matches("replica_groups=mesh[").count());
    assert!(!expanded.contains("replica_groups=mesh["));
    assert!(
        expanded.contains("channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}"),
        "the minor axis has neighbours"
    );
    assert!(expanded.contains("channel_id=4, replica_groups={{0,2,4,6},{1,3,5,7}}"), "the major axis strides");
}

/// The fields of a message.
fn fields(bytes: &[u8]) -> Vec<(u32, Value<'_>)> {
    let mut at = 0;
    std::iter::from_fn(|| (at < bytes.len()).then(|| take_field(bytes, &mut at).expect("a field"))).collect()
}

fn messages_of<'a>(bytes: &'a [u8], wanted: u32) -> Vec<&'a [u8]> {
    let message = |(number, value): (u32, Value<'a>)| match value {
        Value::Bytes(bytes) if number == wanted => Some(bytes),
        Value::Bytes(_) | Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => None,
    };
    fields(bytes).into_iter().filter_map(message).collect()
}

fn number_of(bytes: &[u8], wanted: u32) -> u64 {
    let number = |(number, value): (u32, Value<'_>)| match value {
        Value::Int(value) if number == wanted => Some(value),
        Value::Bytes(_) | Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => None,
    };
    fields(bytes).into_iter().find_map(number).unwrap_or(0)
}

/// XLA's builder of 2025 maps the ids of computations and instructions in one table, and keeps them in 32 bits.
#[test]
fn ids_of_computations_and_instructions_are_one_sequence() {
    for (name, text) in samples("ops") {
        let module = hlo_text::parse_module(&text).expect("a module").module;
        let bytes = write(&module, &Kept::default()).bytes;
        let mut ids = Vec::new();
        for comp in messages_of(&bytes, 3) {
            ids.push(number_of(comp, 5));
            ids.extend(messages_of(comp, 2).into_iter().map(|inst| number_of(inst, 35)));
        }
        ids.sort_unstable();
        let expected: Vec<u64> = (1..=ids.len() as u64).collect();
        assert_eq!(ids, expected, "{name}");
    }
}

#[test]
fn names_have_numbers_for_old_readers() {
    for (sample, text) in samples("ops") {
        let module = hlo_text::parse_module(&text).expect("a module").module;
        let bytes = write_for_old_readers(&module, &Kept::default()).bytes;
        let again = read(&bytes).expect("a module").module;
        assert_eq!(again.n_instructions(), module.n_instructions(), "{sample}");
        let mut seen = std::collections::BTreeSet::new();
        for (&comp, &was) in again.computations().iter().zip(module.computations()) {
            let (name, before) = (again.comp_name(comp), module.comp_name(was));
            assert!(name.contains('.') && name.starts_with(before), "{sample}: {before} becomes {name}");
            for &inst in &again.comp(comp).insts {
                let name = again.inst_name(inst);
                assert!(name.contains('.') && seen.insert(name.to_string()), "{sample}: {name}");
            }
        }
        // Names that have a number already stay.
        let twice = write_for_old_readers(&again, &Kept::default()).bytes;
        assert_eq!(print(&read(&twice).expect("a module").module), print(&again), "{sample}");
    }
}

#[test]
fn numbers_behind_names_make_no_name_twice() {
    let text = "HloModule m\nENTRY e {\n  x = f32[] parameter(0)\n  x.2 = f32[] negate(x)\n  ROOT x_.2 = f32[] negate(x.2)\n}\n";
    let module = hlo_text::parse_module(text).expect("a module").module;
    let again = read(&write_for_old_readers(&module, &Kept::default()).bytes).expect("a module").module;
    let names: Vec<&str> =
        again.comp(again.entry().expect("an entry")).insts.iter().map(|&i| again.inst_name(i)).collect();
    assert_eq!(names, ["x__.2", "x.2", "x_.2"]);
}

/// The bytes of a message with what `edit` makes of its fields' messages; `None` leaves a field as it is.
fn edited(bytes: &[u8], edit: &impl Fn(u32, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        let (number, value) = take_field(bytes, &mut at).expect("a field");
        match value {
            Value::Bytes(inner) => match edit(number, inner) {
                Some(new) => {
                    push_varint(&mut out, u64::from(number) << 3 | 2);
                    push_varint(&mut out, new.len() as u64);
                    out.extend(new);
                }
                None => out.extend(&bytes[start..at]),
            },
            Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => out.extend(&bytes[start..at]),
        }
    }
    out
}

/// A literal with its shape alone.
fn stripped(literal: &[u8]) -> Vec<u8> {
    let shape = messages_of(literal, 1)[0];
    let mut out = vec![0x0a];
    push_varint(&mut out, shape.len() as u64);
    out.extend(shape);
    out
}

/// The module with what `edit` makes of the literal of each constant.
fn with_literals(module: &[u8], edit: &impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    edited(module, &|number, comp| {
        let inst = |inst: &[u8]| edited(inst, &|number, literal| (number == 8).then(|| edit(literal)));
        (number == 3).then(|| edited(comp, &|number, bytes| (number == 2).then(|| inst(bytes))))
    })
}

#[test]
fn literals_without_elements_are_elided() {
    let text = "HloModule m\nENTRY e {\n  a = f32[2]{0} constant({1, 2})\n  b = s32[] constant(3)\n  c = (f32[2]{0}, pred[]) constant(({1, 2}, true))\n  \
                d = f32[0]{0} constant({})\n  e = bf16[2]{0} constant({1, 2})\n  ROOT t = (f32[2]{0}, s32[], (f32[2]{0}, pred[]), f32[0]{0}, bf16[2]{0}) tuple(a, b, c, d, e)\n}\n";
    let module = hlo_text::parse_module(text).expect("a module").module;
    let bytes = write(&module, &Kept::default()).bytes;
    let without = read(&with_literals(&bytes, &stripped)).expect("a module");
    let printed = print(&without.module);
    for expected in ["f32[2]{0} constant({...})", "s32[] constant({...})", "(f32[2]{0}, pred[]) constant({...})"] {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    assert!(printed.contains("f32[0]{0} constant({})"), "an array without elements lacks none: {printed}");
    let again = write(&without.module, &without.kept).bytes;
    assert_eq!(print(&read(&again).expect("a module").module), printed, "elided constants stay so");
    // Too few elements are damage, and so are those of another type.
    let short = |literal: &[u8]| edited(literal, &|number, data| (number == 8).then(|| data[..4].to_vec()));
    let message = read(&with_literals(&bytes, &short)).expect_err("one element of two").message;
    assert!(message.contains("`a`") && message.contains('1') && message.contains('2'), "{message}");
    let other = |literal: &[u8]| [stripped(literal), vec![0x18 | 2, 1, 7]].concat();
    assert!(read(&with_literals(&bytes, &other)).is_err(), "a byte is no f32");
}
