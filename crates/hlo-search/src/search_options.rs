//! What may be asked of a search.

use crate::ablation::Part;
use crate::error::SearchError;
use crate::mesh::MOST_AXES;
use crate::network::Evenness;
use crate::regions::Regions;
use crate::stack_branches::StateForm;
use hlo_mesh::Machine;
use hlo_pass::Target;
use hlo_pass::options::{OptionInfo, OptionKind, Options};

pub(crate) const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "devices",
        kind: OptionKind::Int,
        default: "0",
        help: "number of devices; 0: those of the machine, 8 at one switch",
    },
    OptionInfo {
        name: "effort",
        kind: OptionKind::Float,
        default: "1",
        help: "how long the search goes on, in billions of table entries read; the same effort gives the same plan",
    },
    OptionInfo {
        name: "gap",
        kind: OptionKind::Float,
        default: "0",
        help: "the difference between plan and bound that is small enough, as a share of the plan's time",
    },
    OptionInfo { name: "axes", kind: OptionKind::Int, default: "3", help: "the most axes of a mesh, 1 to 3" },
    OptionInfo {
        name: "mesh",
        kind: OptionKind::Text,
        default: "",
        help: "only these meshes: 4x6, or 2x2x6;4x6; empty: all",
    },
    OptionInfo {
        name: "plan",
        kind: OptionKind::Word(&["best", "data-parallel", "zero-1", "zero-3", "megatron", "whole"]),
        default: "best",
        help: "the best plan, or the best one that is made as people make it by hand",
    },
    OptionInfo {
        name: "pins",
        kind: OptionKind::Text,
        default: "",
        help: "a .toml file with what is fixed: \"%w\" = [1, 4], the parts of each dim",
    },
    OptionInfo {
        name: "draw",
        kind: OptionKind::Int,
        default: "0",
        help: "a legal plan by chance, of this seed, in the place of the best one: to try partitioners; 0: the best one",
    },
    OptionInfo {
        name: "algebra",
        kind: OptionKind::Word(&["none", "same-state", "stacked-state", "rewritten"]),
        default: "same-state",
        help: "whether branches that are alike may become one: not at all, with parameters and results as they are, or with the state of all \
               branches as one parameter; rewritten: as same-state, and never the program as it is",
    },
    OptionInfo {
        name: "regions",
        kind: OptionKind::Word(&["false", "true", "forward"]),
        default: "false",
        help: "whether matrix products and convolutions may be joined, split and done in another order, by proved rules; forward: by those of forward passes alone, to see what their backward forms gain",
    },
    OptionInfo {
        name: "without",
        kind: OptionKind::Text,
        default: "",
        help: "what the search is kept from, to see what it gains: parameter-cuts, attribute-cuts, reduction-cuts, joint; several with +",
    },
    OptionInfo {
        name: "even",
        kind: OptionKind::Word(&["false", "ends", "true"]),
        default: "false",
        help: "what axes have to divide: nothing (the last tiles are padded), parameters and results, or everything",
    },
];

/// What is asked of the search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// The machine.
    pub machine: Machine,
    /// Number of devices.
    pub n_devices: i64,
    /// Table entries that may be read.
    pub effort: u64,
    /// The gap that is small enough, relative to the plan's time.
    pub gap: f64,
    /// The most axes of a mesh.
    pub most_axes: usize,
    /// The meshes to be searched, as sizes of axes; none: all.
    pub meshes: Vec<Vec<i64>>,
    /// Bytes that a device has.
    pub memory_limit: Option<u64>,
    /// What has to be cut into equal tiles.
    pub even: Evenness,
    /// TOML with what is fixed; empty: nothing.
    pub pins: String,
    /// The seed of a plan by chance, in the place of the best one.
    pub draw: Option<u64>,
    /// Values whose alternatives are to be told, by name.
    pub why: Vec<String>,
    /// `best`, or the kind of plan that is wanted: `data-parallel`, `zero-1`, `zero-3`, `megatron`.
    pub plan: String,
    /// Whether the problem and its solution are wanted as JSON.
    pub dumps_problem: bool,
    /// Whether branches that are alike may become one.
    pub algebra: Algebra,
    /// Whether regions of products may be computed in other ways.
    pub regions: Regions,
    /// What the search is kept from.
    pub without: Vec<Part>,
}

/// What a search may rewrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algebra {
    /// Nothing.
    None,
    /// Branches that are alike may become one; parameters and results stay.
    SameState,
    /// The same, and the state of all branches is one parameter.
    StackedState,
    /// As `SameState`, and the program as it is does not compete.
    Rewritten,
}

impl Algebra {
    /// How the state of branches is held.
    pub(crate) fn state_form(self) -> Option<StateForm> {
        match self {
            Algebra::None => None,
            Algebra::SameState | Algebra::Rewritten => Some(StateForm::Same),
            Algebra::StackedState => Some(StateForm::Stacked),
        }
    }
}

/// The most devices that are searched for.
pub const MOST_DEVICES: i64 = 1 << 16;

/// Devices where nothing says how many.
const DEFAULT_DEVICES: i64 = 8;

impl SearchOptions {
    /// Reads the options of the pass, for a target.
    ///
    /// # Errors
    /// A value that an option cannot have, or that does not go with another one.
    pub(crate) fn of(options: &Options, target: &Target) -> Result<SearchOptions, SearchError> {
        let wrong = |name: &'static str, expected: String, found: String| SearchError::Option { name, expected, found };
        let machine = target.machine.clone();
        let of_cluster = machine.cluster().map(|cluster| i64::from(cluster.n_devices()));
        let n_devices = match options.int("devices") {
            0 => of_cluster.unwrap_or(DEFAULT_DEVICES),
            n => n,
        };
        if !(2..=MOST_DEVICES).contains(&n_devices) {
            return Err(wrong("devices", format!("2 to {MOST_DEVICES}"), n_devices.to_string()));
        }
        let axes = options.int("axes");
        if !(1..=MOST_AXES as i64).contains(&axes) {
            return Err(wrong("axes", format!("1 to {MOST_AXES}"), axes.to_string()));
        }
        let draw = Some(options.int("draw").unsigned_abs()).filter(|&seed| seed > 0);
        let memory_limit = target.memory_limit;
        // A plan by chance keeps nothing.
        let keeps = memory_limit.is_some() || !options.text("pins").is_empty() || options.text("plan") != "best";
        if draw.is_some() && keeps {
            let expected = "neither `pins` nor `memory-limit` nor `plan` beside it";
            return Err(wrong("draw", expected.into(), "one of them".into()));
        }
        let fixes = !options.text("pins").is_empty() || !options.text("without").is_empty();
        let regions = Regions::of_word(options.text("regions"));
        if regions != Regions::AsTheyAre && (fixes || options.text("plan") != "best") {
            let expected = "neither `pins` nor `without` nor `plan` beside it";
            return Err(wrong("regions", expected.into(), "one of them".into()));
        }
        let meshes = read_meshes(options.text("mesh"), n_devices)?;
        Ok(SearchOptions {
            machine,
            n_devices,
            effort: (options.float("effort") * 1e9) as u64,
            gap: options.float("gap"),
            most_axes: axes as usize,
            meshes,
            memory_limit,
            even: match options.text("even") {
                "true" => Evenness::All,
                "ends" => Evenness::Ends,
                _ => Evenness::None,
            },
            pins: options.text("pins").into(),
            draw,
            why: Vec::new(),
            dumps_problem: false,
            algebra: match options.text("algebra") {
                "same-state" => Algebra::SameState,
                "stacked-state" => Algebra::StackedState,
                "rewritten" => Algebra::Rewritten,
                _ => Algebra::None,
            },
            regions,
            without: read_parts(options.text("without"))?,
            plan: options.text("plan").into(),
        })
    }
}

/// Parts of the search as an option says them: `parameter-cuts+joint`.
///
/// # Errors
/// Another word.
pub fn read_parts(text: &str) -> Result<Vec<Part>, SearchError> {
    let words = text.split('+').map(str::trim).filter(|word| !word.is_empty());
    let part = |word: &str| {
        Part::of_word(word).ok_or_else(|| SearchError::Option {
            name: "without",
            expected: Part::ALL.map(Part::word).join(", "),
            found: format!("`{word}`"),
        })
    };
    let mut parts = words.map(part).collect::<Result<Vec<Part>, SearchError>>()?;
    parts.sort();
    parts.dedup();
    Ok(parts)
}

/// Meshes as an option says them: `4x6;2x2x6`.
///
/// # Errors
/// A mesh of other sizes than the devices allow.
pub fn read_meshes(text: &str, n_devices: i64) -> Result<Vec<Vec<i64>>, SearchError> {
    let mut all = Vec::new();
    for said in text.split(';').map(str::trim).filter(|said| !said.is_empty()) {
        let sizes: Option<Vec<i64>> = said.split('x').map(|size| size.trim().parse().ok()).collect();
        let product = |sizes: &[i64]| sizes.iter().try_fold(1i64, |n, &size| n.checked_mul(size));
        match sizes {
            Some(sizes)
                if sizes.len() <= MOST_AXES
                    && sizes.iter().all(|&size| size > 1)
                    && product(&sizes) == Some(n_devices) =>
            {
                all.push(sizes);
            }
            Some(_) | None => {
                return Err(SearchError::Option {
                    name: "mesh",
                    expected: format!("1 to {MOST_AXES} sizes of 2 or more whose product is {n_devices}"),
                    found: format!("`{said}`"),
                });
            }
        }
    }
    Ok(all)
}
