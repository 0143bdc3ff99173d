//! Whether a module is the program of all devices together or the program of each device: the one place that decides
//! it.
//!
//! A global program has the shapes of whole values; a partitioner makes the program of each device of it, with the
//! shapes of tiles. Both name the number of partitions in the header and may have `sharding=` on parameters and
//! results, so that one look is not enough. [`decide`] takes the first of these that applies, the surest first:
//!
//! | evidence | kind |
//! |---|---|
//! | the user says it | as said |
//! | a custom call that speaks to a partitioner | global |
//! | the entry's name ends in `_spmd`, as XLA's partitioner names it | per device |
//! | a parameter whose `sharding=` names more devices than the header | global |
//! | a `sharding=` on a value that is neither a parameter nor the result of the entry: partitioners leave none | global |
//! | several replicas and one partition | per device |
//! | a collective, or an instruction that asks for the device's number: outside of manual regions only a partitioner writes these | per device |
//! | one device, and no mesh of several | one device |
//! | the header counts one device, and names a mesh of several | global |
//! | the stage in the name of XLA's dump file | as named |
//! | the header lets XLA propagate shardings, and no partitioner has renamed the entry | global |
//! | a result that its `sharding=` says is equal on devices, and that depends on a parameter's part of each device | global |
//! | nothing | per device |
//!
//! Effects that run on one device, such as an outfeed, keep their `sharding={maximal …}` in programs of each device; it
//! is no evidence.

use crate::annotations::{ParamFacts, ParamLeaf, entry_leaves, own_sharding};
use crate::replication::{Difference, Differences, Replication};
use crate::values::InstLeaf;
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::devices::find_n_devices;
use hlo_ir::op::Effects;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::{CompId, InstId, Module, Opcode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The devices whose program a module is: each for itself, or all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramKind {
    /// One device: there is nothing to tell apart.
    OneDevice,
    /// Each device, with the shapes of tiles.
    PerDevice,
    /// All devices together, with the shapes of whole values.
    Global,
}

/// When XLA dumped a module, by the name of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpStage {
    /// Before its partitioner.
    BeforePartitioner,
    /// After it.
    AfterPartitioner,
}

/// The evidence for a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// The user says so.
    Said,
    /// A custom call that speaks to a partitioner.
    PartitionerCall(InstId),
    /// The name that XLA's partitioner gives the entry.
    EntryName(CompId),
    /// A parameter that is cut over more devices than the header counts.
    MoreDevices(InstId),
    /// A sharding within the program.
    ShardingWithin(InstId),
    /// Several replicas and one partition.
    Replicas,
    /// An exchange between devices.
    Collective(InstId),
    /// An instruction that gives the number of the device.
    DeviceId(InstId),
    /// One device.
    OneDevice,
    /// A mesh of several devices, where the header counts one.
    Mesh,
    /// The name of the dump file.
    Stage(DumpStage),
    /// The header lets XLA propagate shardings.
    OpenShardings,
    /// A result that would differ between devices which hold the same by its sharding: its number, and the parameter's
    /// leaf.
    ResultDiffers {
        /// The flat number of the result.
        output: usize,
        /// The flat number of the parameter's leaf.
        leaf: usize,
    },
    /// A partitioner has just made it of a global one.
    Partitioned,
    /// None, and parameters or results are cut, as they are in both kinds of programs.
    OnlyInterface,
    /// None.
    Nothing,
}

/// The kind of a module, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramDecision {
    /// The kind.
    pub kind: ProgramKind,
    /// The evidence for it.
    pub evidence: Evidence,
}

impl ProgramDecision {
    fn new(kind: ProgramKind, evidence: Evidence) -> ProgramDecision {
        ProgramDecision { kind, evidence }
    }

    /// Returns whether the module is the program of all devices together.
    pub fn is_global(&self) -> bool {
        self.kind == ProgramKind::Global
    }

    /// Returns whether the module may be of the other kind: nothing but its interface speaks for this one.
    pub fn is_open(&self) -> bool {
        matches!(self.evidence, Evidence::OnlyInterface | Evidence::Nothing)
    }

    /// Returns whether this program has whole values of which the program `after` takes and gives tiles; `None` where
    /// shapes have to tell. A program of whose kind nothing is known is taken for that of the other if both have the
    /// same interface.
    pub fn has_tiles_in(&self, after: &ProgramDecision, has_same_interface: bool) -> Option<bool> {
        match (self.kind, after.kind) {
            (ProgramKind::Global, ProgramKind::PerDevice) => Some(!(after.is_open() && has_same_interface)),
            (ProgramKind::PerDevice, ProgramKind::PerDevice) => {
                if self.is_open() {
                    None
                } else {
                    Some(false)
                }
            }
            (ProgramKind::Global, ProgramKind::Global) => Some(false),
            (ProgramKind::OneDevice, _) | (_, ProgramKind::OneDevice | ProgramKind::Global) => None,
        }
    }

    /// Returns the instruction that the decision rests on, if it is one.
    pub fn inst(&self) -> Option<InstId> {
        match self.evidence {
            Evidence::PartitionerCall(inst)
            | Evidence::MoreDevices(inst)
            | Evidence::ShardingWithin(inst)
            | Evidence::Collective(inst)
            | Evidence::DeviceId(inst) => Some(inst),
            Evidence::Said
            | Evidence::EntryName(_)
            | Evidence::Replicas
            | Evidence::OneDevice
            | Evidence::Mesh
            | Evidence::Stage(_)
            | Evidence::OpenShardings
            | Evidence::ResultDiffers { .. }
            | Evidence::Partitioned
            | Evidence::OnlyInterface
            | Evidence::Nothing => None,
        }
    }

    /// Returns whether a reader of the module may expect the other kind: the evidence stands in no instruction and no
    /// name in it.
    pub fn is_surprising(&self) -> bool {
        match self.evidence {
            Evidence::Stage(_) => self.is_global(),
            Evidence::OpenShardings | Evidence::ResultDiffers { .. } | Evidence::OnlyInterface => true,
            Evidence::Said
            | Evidence::PartitionerCall(_)
            | Evidence::EntryName(_)
            | Evidence::MoreDevices(_)
            | Evidence::ShardingWithin(_)
            | Evidence::Replicas
            | Evidence::Collective(_)
            | Evidence::DeviceId(_)
            | Evidence::OneDevice
            | Evidence::Mesh
            | Evidence::Partitioned
            | Evidence::Nothing => false,
        }
    }

    /// The reason in words, with the names of `module`.
    pub fn reason(&self, module: &Module) -> String {
        let name = |inst: InstId| format!("`%{}`", module.inst_name(inst));
        match self.evidence {
            Evidence::Said => "--program says so".into(),
            Evidence::PartitionerCall(inst) => format!("{} is a custom call to a partitioner", name(inst)),
            Evidence::EntryName(comp) => format!("a partitioner named the entry `%{}`", module.comp_name(comp)),
            Evidence::MoreDevices(inst) => {
                let n = module.n_devices().max(1);
                format!("{} has a sharding over more devices than the header's {n}", name(inst))
            }
            Evidence::ShardingWithin(inst) => {
                format!("{} has a sharding within the program, which partitioners remove", name(inst))
            }
            Evidence::Replicas => format!("the header has {} replicas and one partition", module.header.replica_count),
            Evidence::Collective(inst) => format!("{} exchanges values between devices", name(inst)),
            Evidence::DeviceId(inst) => format!("{} asks for the number of the device", name(inst)),
            Evidence::OneDevice => "there is one device".into(),
            Evidence::Mesh => "the header names a mesh of several devices".into(),
            Evidence::Stage(DumpStage::BeforePartitioner) => "the file's name says: before XLA's partitioner".into(),
            Evidence::Stage(DumpStage::AfterPartitioner) => "the file's name says: after XLA's partitioner".into(),
            Evidence::OpenShardings => {
                "the header lets XLA propagate shardings, and no partitioner has named the entry `…_spmd`".into()
            }
            Evidence::ResultDiffers { output, leaf } => format!(
                "its sharding says that devices hold the same output {output}, which without an exchange depends on their \
                 parts of parameter leaf {leaf}"
            ),
            Evidence::Partitioned => "a partitioner has just made it".into(),
            Evidence::OnlyInterface => "only parameters and results have shardings".into(),
            Evidence::Nothing => "nothing says that values are whole".into(),
        }
    }
}

/// A decision that outlives changes of the module that it was made of: its reason is kept in words, for what it rests on
/// may be gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownProgram {
    /// The decision. The instructions of its evidence may be gone.
    decision: ProgramDecision,
    reason: Arc<str>,
}

impl KnownProgram {
    /// Keeps what was decided of `module`; nothing of a program of one device, for a pass may put it onto several.
    pub fn of(decision: ProgramDecision, module: &Module) -> Option<KnownProgram> {
        let reason = || decision.reason(module).into();
        (decision.kind != ProgramKind::OneDevice).then(|| KnownProgram { decision, reason: reason() })
    }

    /// The program of each device, which a partitioner has just made.
    pub fn partitioned(module: &Module) -> Option<KnownProgram> {
        KnownProgram::of(ProgramDecision::new(ProgramKind::PerDevice, Evidence::Partitioned), module)
    }

    /// The decision.
    pub fn decision(&self) -> ProgramDecision {
        self.decision
    }

    /// Why, with the names of the module of which it was decided.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Decides what a module is a program of. `said` is the user's word, `stage` that of the file's name.
pub fn decide(module: &Module, said: Option<ProgramKind>, stage: Option<DumpStage>) -> ProgramDecision {
    use ProgramKind::{Global, OneDevice, PerDevice};
    if let Some(kind) = said {
        return ProgramDecision::new(kind, Evidence::Said);
    }
    if let Some(decision) = by_marks(module) {
        return decision;
    }
    if module.n_devices() <= 1 {
        return match find_n_devices(module) {
            0 | 1 => ProgramDecision::new(OneDevice, Evidence::OneDevice),
            _ => ProgramDecision::new(Global, Evidence::Mesh),
        };
    }
    match stage {
        Some(stage @ DumpStage::BeforePartitioner) => return ProgramDecision::new(Global, Evidence::Stage(stage)),
        Some(stage @ DumpStage::AfterPartitioner) => return ProgramDecision::new(PerDevice, Evidence::Stage(stage)),
        None => {}
    }
    let header = &module.header;
    let is_open = header.allow_spmd_sharding_propagation_to_parameters.is_some()
        || header.allow_spmd_sharding_propagation_to_output.is_some();
    if is_open {
        return ProgramDecision::new(Global, Evidence::OpenShardings);
    }
    if let Some(evidence) = find_differing_result(module) {
        return ProgramDecision::new(Global, evidence);
    }
    let evidence = if is_interface_cut(module) { Evidence::OnlyInterface } else { Evidence::Nothing };
    ProgramDecision::new(PerDevice, evidence)
}

/// Decides by marks in the module itself.
fn by_marks(module: &Module) -> Option<ProgramDecision> {
    use ProgramKind::{Global, PerDevice};
    let insts = || module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    let is_call =
        |&inst: &InstId| CustomTarget::of(&module.inst(inst).attrs).is_some_and(CustomTarget::is_of_partitioner);
    if let Some(call) = insts().find(is_call) {
        return Some(ProgramDecision::new(Global, Evidence::PartitionerCall(call)));
    }
    let entry = module.entry();
    if let Some(entry) = entry.filter(|&entry| module.comp_name(entry).ends_with(PARTITIONED_SUFFIX)) {
        return Some(ProgramDecision::new(PerDevice, Evidence::EntryName(entry)));
    }
    let n_devices = module.n_devices().max(1);
    let is_for_more = |leaf: &&ParamLeaf| {
        own_sharding(module, leaf).and_then(LeafSharding::n_listed_devices).is_some_and(|n| n > n_devices)
    };
    if let Some(leaf) = entry_leaves(module).iter().find(is_for_more) {
        return Some(ProgramDecision::new(Global, Evidence::MoreDevices(leaf.param)));
    }
    if let Some(inst) = find_sharding_within(module) {
        return Some(ProgramDecision::new(Global, Evidence::ShardingWithin(inst)));
    }
    if module.header.replica_count > 1 && module.header.num_partitions <= 1 {
        return Some(ProgramDecision::new(PerDevice, Evidence::Replicas));
    }
    if let Some(inst) = insts().find(|&inst| module.inst(inst).opcode.row().effects == Effects::Communicates) {
        return Some(ProgramDecision::new(PerDevice, Evidence::Collective(inst)));
    }
    let is_id = |&inst: &InstId| matches!(module.inst(inst).opcode, Opcode::PartitionId | Opcode::ReplicaId);
    insts().find(is_id).map(|inst| ProgramDecision::new(PerDevice, Evidence::DeviceId(inst)))
}

/// How XLA's partitioner ends the name of an entry that it has partitioned.
const PARTITIONED_SUFFIX: &str = "_spmd";

/// A value with a sharding that is neither a parameter nor the result of the entry.
fn find_sharding_within(module: &Module) -> Option<InstId> {
    let entry = module.entry();
    module.computations().iter().find_map(|&comp| {
        let root = module.comp(comp).root.expand();
        let is_at_interface =
            |inst: InstId| Some(comp) == entry && (module.inst(inst).opcode == Opcode::Parameter || root == Some(inst));
        let is_mark = |&&inst: &&InstId| match module.sharding(inst) {
            None => false,
            Some(_) if is_at_interface(inst) => false,
            Some(sharding) => {
                let has_effects = module.inst(inst).opcode.row().effects != Effects::Pure;
                !(has_effects && has_only_one_device(sharding))
            }
        };
        module.comp(comp).insts.iter().find(is_mark).copied()
    })
}

/// Whether a sharding puts every leaf on one device.
fn has_only_one_device(sharding: &Sharding) -> bool {
    let is_maximal = |leaf: &LeafSharding| matches!(leaf.kind, ShardingKind::Maximal(_) | ShardingKind::MaximalMesh(_));
    match sharding {
        Sharding::Single(leaf) => is_maximal(leaf),
        Sharding::Tuple(leaves) => leaves.iter().all(is_maximal),
    }
}

/// A result of which the root's sharding says that devices hold the same, and that would differ between them.
fn find_differing_result(module: &Module) -> Option<Evidence> {
    let root = module.comp(module.entry()?).root.expand()?;
    let sharding = module.sharding(root)?;
    let n_partitions = module.header.num_partitions.max(1) as usize;
    let params = ParamFacts::default();
    let known = Replication::compute(module, &params);
    let differences = Differences::new(module, &params, &known);
    (0..module.shape(root).n_leaves()).find_map(|output| {
        let tiles = sharding.leaf(output)?.tile_of_device(n_partitions)?;
        let mut groups: BTreeMap<(usize, u32), Vec<u32>> = BTreeMap::new();
        for device in 0..module.n_devices() {
            groups.entry((device / n_partitions, tiles[device % n_partitions])).or_default().push(device as u32);
        }
        let groups: Vec<Vec<u32>> = groups.into_values().filter(|group| group.len() > 1).collect();
        if groups.is_empty() || known.is_equal_within(root, output, &groups) {
            return None;
        }
        let leaf = InstLeaf { inst: root, leaf_idx: output as u32 };
        match differences.of(leaf, &groups) {
            Difference::Cut(leaf) => Some(Evidence::ResultDiffers { output, leaf }),
            Difference::Unsaid(_) | Difference::Source(_) | Difference::Unknown => None,
        }
    })
}

/// Whether a parameter or a result of the entry is cut.
fn is_interface_cut(module: &Module) -> bool {
    let is_cut = |leaf: &LeafSharding| leaf.tiles_of_dims().is_some_and(|tiles| tiles.iter().any(|&n| n > 1));
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    let is_root_cut = match root.and_then(|root| module.sharding(root)) {
        Some(Sharding::Single(leaf)) => is_cut(leaf),
        Some(Sharding::Tuple(leaves)) => leaves.iter().any(is_cut),
        None => false,
    };
    is_root_cut || entry_leaves(module).iter().any(|leaf| own_sharding(module, leaf).is_some_and(is_cut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_text::parse_module;

    fn parsed(header: &str, body: &str) -> Module {
        let text = format!("HloModule m{header}\n\nENTRY %main (x: f32[8,6]) -> f32[8,6] {{\n{body}}}\n");
        parse_module(&text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}")).module
    }

    const CUT: &str = "  %x = f32[8,6]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}\n";

    fn decided(header: &str, body: &str) -> (ProgramKind, Evidence) {
        let ProgramDecision { kind, evidence } = decide(&parsed(header, body), None, None);
        (kind, evidence)
    }

    #[test]
    fn a_program_whose_interface_alone_is_cut_is_decided_by_what_else_there_is() {
        let four = ", num_partitions=4";
        let negated = |sharding: &str| format!("{CUT}  ROOT %n = f32[8,6]{{1,0}} negate(%x){sharding}\n");
        let [plain, cut, whole] = ["", ", sharding={devices=[4,1]<=[4]}", ", sharding={replicated}"].map(negated);
        for same in [&plain, &cut] {
            assert_eq!(decided(four, same), (ProgramKind::PerDevice, Evidence::OnlyInterface));
            let open = format!(", allow_spmd_sharding_propagation_to_parameters={{false}}{four}");
            assert_eq!(decided(&open, same), (ProgramKind::Global, Evidence::OpenShardings));
            for (stage, kind) in [
                (DumpStage::BeforePartitioner, ProgramKind::Global),
                (DumpStage::AfterPartitioner, ProgramKind::PerDevice),
            ] {
                let module = parsed(four, same);
                assert_eq!(decide(&module, None, Some(stage)).kind, kind);
                assert_eq!(decide(&module, Some(ProgramKind::Global), Some(stage)).kind, ProgramKind::Global);
            }
        }
        assert_eq!(decided(four, &whole), (ProgramKind::Global, Evidence::ResultDiffers { output: 0, leaf: 0 }));
        let one = "  %x = f32[8,6]{1,0} parameter(0)\n  ROOT %n = f32[8,6]{1,0} negate(%x)\n";
        assert_eq!(decided("", one), (ProgramKind::OneDevice, Evidence::OneDevice));
        assert_eq!(decided(four, one), (ProgramKind::PerDevice, Evidence::Nothing));
        assert_eq!(decided(", replica_count=4", one), (ProgramKind::PerDevice, Evidence::Replicas));
    }

    #[test]
    fn marks_in_the_module_outweigh_the_name_of_its_file() {
        let within = format!(
            "{CUT}  %n = f32[8,6]{{1,0}} negate(%x), sharding={{replicated}}\n  ROOT %c = f32[8,6]{{1,0}} negate(%n)\n"
        );
        let module = parsed(", num_partitions=4", &within);
        let after = decide(&module, None, Some(DumpStage::AfterPartitioner));
        assert!(after.is_global() && matches!(after.evidence, Evidence::ShardingWithin(_)), "{after:?}");
        assert_eq!(decided("", CUT.replace("%x = ", "ROOT %x = ").as_str()).0, ProgramKind::Global);
        let id = format!(
            "{CUT}  %id = u32[] partition-id()\n  %b = u32[8,6]{{1,0}} broadcast(%id), dimensions={{}}\n  \
             %f = f32[8,6]{{1,0}} convert(%b)\n  ROOT %n = f32[8,6]{{1,0}} add(%x, %f), sharding={{replicated}}\n"
        );
        let module = parsed(", num_partitions=4", &id);
        assert_eq!(decide(&module, None, Some(DumpStage::BeforePartitioner)).kind, ProgramKind::PerDevice);
        let text = hlo_ir::print::print_module(&module, &hlo_ir::print::PrintOptions::default());
        let id_gone = text.replace("partition-id()", "constant(3)").replace("%main", "%main_spmd");
        let named = parse_module(&id_gone).expect("a module").module;
        assert!(matches!(decide(&named, None, None).evidence, Evidence::EntryName(_)));
    }

    #[test]
    fn an_outfeed_on_one_device_is_no_sharding_within() {
        let body = format!(
            "{CUT}  %t = token[] after-all()\n  %o = token[] outfeed(%x, %t), outfeed_shape=f32[8,6]{{1,0}}, \
             sharding={{maximal device=0}}\n  ROOT %n = f32[8,6]{{1,0}} negate(%x)\n"
        );
        assert_eq!(decided(", num_partitions=4", &body), (ProgramKind::PerDevice, Evidence::OnlyInterface));
    }
}
