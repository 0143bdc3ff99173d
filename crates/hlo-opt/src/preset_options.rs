//! The options that presets take in braces, and which of them are about what.

use hlo_pass::options::{OptionInfo, OptionKind};

/// The option of the passes that pad products and fuse, and of the preset that runs them.
pub(crate) const TF32: OptionInfo = OptionInfo {
    name: "tf32",
    kind: OptionKind::Bool,
    default: "false",
    help: "products and convolutions of f32 round their factors to TF32; --matmul tf32 sets it",
};
/// The option that says how much memory a faster way may take.
pub(crate) const MOST_MEMORY: &str = "most-memory";

/// The options of a preset that shards updates.
pub(crate) const fn options(objective: &'static str) -> [OptionInfo; 2] {
    [
        OptionInfo {
            name: "objective",
            kind: OptionKind::Word(&["time", "memory"]),
            default: objective,
            help: "time: what is predicted to be fastest, never slower than the input; memory: what takes the least at its peak",
        },
        OptionInfo {
            name: "min-bytes",
            kind: OptionKind::Int,
            default: "1KiB",
            help: "leave gradients smaller than this whole",
        },
    ]
}

/// The option that says what lies in shards between steps.
pub(crate) const STATE: &str = "state";

/// The form of state in which weights are in shards where that is cheaper.
pub(crate) const AUTO: &str = "auto";

/// The option that says what of state is in shards or whole.
pub(crate) const PINS: &str = "pins";

/// The options that say more of state in shards.
pub(crate) const OPTIONS_OF_STATE: [&str; 3] = [PINS, "state-pairs", "cuts"];

/// The options of a preset that keeps state in shards.
pub(crate) const OF_STATE: &[OptionInfo] = &{
    let [objective, min_bytes] = options("memory");
    let state = OptionInfo {
        name: STATE,
        kind: OptionKind::Word(&["optimizer", "gradients", "parameters", "auto"]),
        default: "auto",
        help: "what lies in shards between steps: optimizer: its state (ZeRO-1), gradients: during the step too (ZeRO-2), parameters: weights too (ZeRO-3), auto: weights where that is cheaper",
    };
    let pins = OptionInfo {
        name: PINS,
        kind: OptionKind::Text,
        default: "",
        help: "parameters that are in shards or whole, by flat number, as [0:sharded,3:whole]",
    };
    let state_pairs = OptionInfo {
        name: "state-pairs",
        kind: OptionKind::Text,
        default: "",
        help: "which output is the next value of which parameter, as [PARAM:OUTPUT,…]",
    };
    let cuts = OptionInfo {
        name: "cuts",
        kind: OptionKind::Word(&["any", "even", "padded"]),
        default: "any",
        help: "even: state is cut along a dim that is a multiple of the shards, as frameworks can hold it; padded: moments otherwise too",
    };
    [objective, min_bytes, state, pins, state_pairs, cuts]
};

pub(crate) const BY_TIME: &[OptionInfo] = &options("time");
pub(crate) const WITHIN_MEMORY: &[OptionInfo] = &{
    let [objective, min_bytes] = options("time");
    let most_memory = OptionInfo {
        name: MOST_MEMORY,
        kind: OptionKind::Float,
        default: "1.25",
        help: "leave out ways whose peak memory is more than this many times the first one's",
    };
    [objective, min_bytes, most_memory]
};

/// The option that says for how many devices a global program is planned.
pub(crate) const DEVICES: &str = "devices";

/// The options that a preset hands to the search of a parallel plan.
pub(crate) const OPTIONS_OF_SEARCH: [&str; 4] = [DEVICES, "effort", "mesh", "even"];

pub(crate) const OF_SEARCH: &[OptionInfo] = &[
    OptionInfo {
        name: DEVICES,
        kind: OptionKind::Int,
        default: "0",
        help: "number of devices; 0: those of the machine, 8 at one switch",
    },
    OptionInfo {
        name: "effort",
        kind: OptionKind::Float,
        default: "1",
        help: "how long the search goes on, in billions of table entries read",
    },
    OptionInfo { name: "mesh", kind: OptionKind::Text, default: "", help: "only these meshes: 4x6, or 2x2x6;4x6" },
    OptionInfo {
        name: "even",
        kind: OptionKind::Word(&["false", "ends", "true"]),
        default: "false",
        help: "what axes have to divide: nothing, parameters and results, or everything",
    },
];
