//! Programs and the options to compile them with, as bytes.

use hlo_ir::Module;
use hlo_proto::wire::push_varint;
use std::path::Path;

/// A program of `ir-samples/programs` as a module.
pub(crate) fn sample(file: &str) -> Module {
    parse(file, &text_of(file))
}

/// As [`sample`], with the first parameters of the entry marked as replicated: replicas have no shardings that would say it.
pub(crate) fn sample_with_replicated(file: &str, n_params: usize) -> Module {
    let text = text_of(file);
    let (before, mut entry) = text.split_once("\nENTRY ").map(|(a, b)| (a, b.to_string())).expect("an entry");
    for i in 0..n_params {
        let parameter = format!(" parameter({i})");
        entry = entry.replace(&parameter, &format!("{parameter}, parameter_replication={{true}}"));
    }
    parse(file, &format!("{before}\nENTRY {entry}"))
}

fn parse(file: &str, text: &str) -> Module {
    hlo_text::parse_module(text).unwrap_or_else(|errors| panic!("{file}: {errors:?}")).module
}

fn text_of(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/programs").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A program of `ir-samples/programs` as an HloModuleProto that names no devices: the options of the compile do.
pub(crate) fn without_counts(file: &str) -> Vec<u8> {
    proto_without_counts(sample(file))
}

/// A module as an HloModuleProto that names no devices.
pub(crate) fn proto_without_counts(mut module: Module) -> Vec<u8> {
    (module.header.replica_count, module.header.num_partitions) = (1, 1);
    proto(&module)
}

/// A module as an HloModuleProto.
pub(crate) fn proto(module: &Module) -> Vec<u8> {
    hlo_proto::write(module, &hlo_proto::Kept::default()).bytes
}

/// How many instructions of an opcode an HloModuleProto has.
pub(crate) fn count(proto: &[u8], opcode: &str) -> usize {
    let module = hlo_proto::read(proto).unwrap_or_else(|error| panic!("{}", error.message)).module;
    let all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    all.filter(|&&inst| module.inst(inst).opcode.row().name == opcode).count()
}

/// Appends a field that is a number.
pub(crate) fn push_int(out: &mut Vec<u8>, number: u64, value: u64) {
    push_varint(out, number << 3);
    push_varint(out, value);
}

/// Appends a field that is text, bytes or a message.
pub(crate) fn push_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    push_varint(out, number << 3 | 2);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// What a CompileOptionsProto says here.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub n_replicas: u64,
    pub n_partitions: u64,
    pub uses_partitioner: bool,
    /// `xla_disable_hlo_passes`, as an override.
    pub disabled: &'static str,
}

impl Options {
    /// The bytes.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let (mut build, mut all) = (Vec::new(), Vec::new());
        push_int(&mut build, 1, u64::MAX); // no device ordinal: -1
        push_int(&mut build, 4, self.n_replicas);
        push_int(&mut build, 5, self.n_partitions);
        push_int(&mut build, 6, u64::from(self.uses_partitioner));
        push_bytes(&mut all, 3, &build);
        if !self.disabled.is_empty() {
            let (mut value, mut entry) = (Vec::new(), Vec::new());
            push_bytes(&mut value, 1, self.disabled.as_bytes());
            push_bytes(&mut entry, 1, b"xla_disable_hlo_passes");
            push_bytes(&mut entry, 2, &value);
            push_bytes(&mut all, 7, &entry);
        }
        all
    }
}

/// Options for eight replicas.
pub(crate) fn eight_replicas() -> Vec<u8> {
    Options { n_replicas: 8, n_partitions: 1, ..Options::default() }.bytes()
}
