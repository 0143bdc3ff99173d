//! The catalogue of rules.

/// One rule of the verifier.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Id in kebab-case; diagnostics carry it.
    pub id: &'static str,
    /// What must hold, in one sentence.
    pub doc: &'static str,
    /// Whether a text can break it: the parser itself rejects or repairs the others.
    pub from_text: bool,
}

const fn text(id: &'static str, doc: &'static str) -> Rule {
    Rule { id, doc, from_text: true }
}

const fn built(id: &'static str, doc: &'static str) -> Rule {
    Rule { id, doc, from_text: false }
}

/// Every rule, by family.
pub const RULES: &[Rule] = &[
    // Structure.
    built("entry-computation", "The module has an entry computation, and nothing calls it."),
    built("computation-root", "A computation has a root, which is one of its instructions."),
    built("unique-names", "Names of instructions and names of computations are unique in the module."),
    built(
        "instruction-parent",
        "An instruction stands once in the list of the computation that it names as its parent.",
    ),
    built("operand-order", "Operands belong to the same computation and stand before their users."),
    built("control-order", "Control predecessors belong to the same computation and stand before."),
    built(
        "module-bytes",
        "The arrays of all instructions together have at most 2^63 - 1 bytes, so that sums of sizes are exact.",
    ),
    built("parameter-numbers", "A computation's parameters are numbered from 0 without gaps."),
    built("attribute-format", "An instruction has the attributes of its opcode."),
    built(
        "called-computation",
        "Called computations are given, belong to the module, and are listed before their callers.",
    ),
    built("operand-count", "An instruction has as many operands as its opcode takes."),
    // Shapes.
    built("shape-dims", "Dims are 0 or more and at most 64, dynamic marks stand on dims."),
    text("layout-permutation", "A layout orders each dim once."),
    text(
        "shape-mismatch",
        "Operands and attributes fit the opcode's shape rule, and the result has the shape that follows, layouts aside.",
    ),
    text("mixed-precision", "Operands that must have one element type have it: there are no implicit conversions."),
    text(
        "called-signature",
        "The operands of a call or fusion are its callee's parameters, its result is the callee's.",
    ),
    text("while-shape", "Condition and body take the loop's state; the body returns it, the condition pred[]."),
    text("conditional-shape", "Each branch takes its operand, and all branches return the conditional's shape."),
    text("reducer-signature", "A computation applied to elements takes and returns scalars of the right types."),
    text("comparator-signature", "A sort's comparator takes two scalars for each operand and returns pred[]."),
    // Groups.
    text("groups-well-formed", "Replica groups describe lists of ids: tile sizes multiply up, mesh axes exist."),
    text("groups-unique-ids", "No id stands twice in the groups of a collective."),
    text("groups-missing-id", "The groups hold the ids 0 to n−1, each of them."),
    text("groups-empty", "No group is empty."),
    text("groups-device-count", "The groups cover as many ids as the module has replicas or partitions in their mode."),
    text("groups-flattened-empty", "Groups of flat device ids are listed, not left empty."),
    text("groups-global-ids-without-channel", "use_global_device_ids=true stands only with a channel_id."),
    text("groups-uneven", "All groups have one size, except those of an all-reduce or collective-broadcast."),
    // Collectives.
    text("all-gather-operand", "An all-gather gathers arrays."),
    text("all-gather-dim", "An all-gather's dim is one of its operands'."),
    text("all-gather-arity", "An all-gather has one result for each operand."),
    text("all-gather-shard-count", "An all-gather's dim grows by the size of a group."),
    text("reduce-scatter-dim", "A reduce-scatter's dim is one of its operands'."),
    text("reduce-scatter-arity", "A reduce-scatter has one result for each operand."),
    text("reduce-scatter-shard-count", "A reduce-scatter's dim is cut by the size of a group, without remainder."),
    text("all-reduce-arity", "An all-reduce has one result for each operand."),
    text("all-to-all-arity", "An all-to-all without dimensions has one operand for each member of a group."),
    text("all-to-all-split", "The size of a group divides the dim that an all-to-all cuts."),
    text("permute-source", "No device is the source of two pairs."),
    text("permute-target", "No device is the target of two pairs."),
    text("permute-range", "Source and target ids exist."),
    built("channel-id", "Channel ids are 1 or more."),
    // Asynchrony.
    text("async-unpaired", "A done follows the start of its own kind, and each start has its done."),
    text("async-one-consumer", "A start has exactly one consumer."),
    text(
        "async-thread",
        "A called computation runs on its caller's thread, the one of an async start on the thread that it names.",
    ),
    text("transfer-channel", "A send-done or recv-done has the channel and the side of its send or recv."),
    // Header.
    text("header-counts", "Replica and partition counts are 1 or more, 16,777,216 devices at most."),
    text("entry-layout", "The entry computation's layout has its parameters' and its result's shapes."),
    text("alias-index", "Aliases name parts of the result and of parameters."),
    text("alias-duplicate", "No part is aliased twice."),
    text("alias-shape", "Aliased parts have one size; those that must alias have one shape."),
    text("donor-index", "Buffer donors name parts of parameters."),
    text("donor-alias", "No output aliases a buffer donor."),
    // Attributes.
    text("parameter-replication", "parameter_replication has one flag for each leaf of the parameter."),
    text("operand-aliasing", "output_to_operand_aliasing names parts of one shape."),
    text("layout-constraints", "operand_layout_constraints has the shapes of the operands."),
    text("sharding-rank", "A sharding tiles each dim of the value."),
    text("sharding-tuple", "The sharding of a tuple has one part for each leaf."),
    text("sharding-device", "A sharding names existing devices, each once."),
    text("sharding-device-count", "A sharding has one device for each tile."),
    text("sharding-axes", "A sharding uses axes of its mesh, each once."),
];
