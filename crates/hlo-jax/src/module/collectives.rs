//! The collectives of a module: who takes part, what they move and how often they run.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::members_of;
use hlo_ir::Module;
use hlo_ir::op::CollectiveForm;
use hlo_mesh::Exchange;
use hlo_opt::source_place::source_place;
use pyo3::prelude::*;

/// A collective; of one in two halves the first.
#[pyclass(frozen, get_all, module = "hlo_opt")]
pub(super) struct Collective {
    /// Its opcode, as `all-reduce`.
    opcode: &'static str,
    /// Its name, without `%`.
    name: String,
    /// The computation that it stands in.
    computation: String,
    /// Bytes of its operands on one device, in one run.
    bytes: u64,
    /// Bytes of its result on one device, in one run; of a start, what it holds besides included.
    result_bytes: u64,
    /// How many arrays it takes.
    n_operands: usize,
    /// The devices that exchange values with each other, by flat id (replica x number of partitions + partition).
    groups: Vec<Vec<u32>>,
    /// Of a permute: which device sends to which.
    pairs: Vec<(u32, u32)>,
    /// The channel.
    channel_id: Option<i64>,
    /// How often it runs in one run of the module.
    runs: f64,
    /// How surely that is known: stated, derived, estimated or assumed.
    runs_basis: &'static str,
    /// The name path of the framework.
    op_name: Option<String>,
    /// `file:line` of the program that it comes from.
    source: Option<String>,
}

#[pymethods]
impl Collective {
    fn __repr__(&self) -> String {
        let Collective { opcode, name, bytes, runs, .. } = self;
        format!("<Collective {opcode} %{name}: {bytes} bytes, {runs} runs>")
    }
}

/// The collectives of all computations, in text order.
pub(super) fn find(module: &Module, unknown_trip_count: u64) -> Vec<Collective> {
    let frequencies = Frequencies::compute(module, FrequencyOptions { unknown_trip_count });
    let mut found = Vec::new();
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        let instruction = module.inst(inst);
        let row = instruction.opcode.row();
        let Some(rule) = row.collective.filter(|rule| !matches!(rule.form, CollectiveForm::Done(..))) else { continue };
        let members = members_of(module, inst, Exchange::of(rule));
        let op_name = instruction.marks.as_ref().and_then(|marks| marks.op_name());
        let bytes = instruction.operands.iter().map(|&operand| module.shape(operand).memory_bytes());
        found.push(Collective {
            opcode: row.name,
            name: module.inst_name(inst).into(),
            computation: module.comp_name(instruction.parent).into(),
            bytes: bytes.fold(0, u64::saturating_add),
            result_bytes: module.shape(inst).memory_bytes(),
            n_operands: instruction.operands.len(),
            groups: members.groups,
            pairs: members.pairs,
            channel_id: instruction.attrs.collective().and_then(|view| view.channel_id),
            runs: frequencies.of(instruction.parent),
            runs_basis: frequencies.basis(instruction.parent).name(),
            op_name: op_name.map(str::to_string),
            source: source_place(module, inst).map(|place| place.to_string()),
        });
    }
    found
}
