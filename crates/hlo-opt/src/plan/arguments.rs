//! The grammar of `hlo-opt plan`, and how its words are read.

use crate::Failure;
use crate::arguments::CountArgs;
use crate::completion;
use crate::report_format::ReportFormat;
use crate::target_arguments::GoneArgs;
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use hlo_cluster::Algo;
use hlo_cluster::reduction::{Lowering, ParallelismMatrix, Rules};
use std::fmt;
use std::path::PathBuf;

/// What to plan.
#[derive(Subcommand, Debug)]
pub(crate) enum PlanCommand {
    /// Rank all placements of parallelism axes by the time of their reductions
    Placement(PlacementArgs),
    /// Find the best program of collectives for a reduction, on every placement
    Reduction(ReductionArgs),
    /// Find the cheapest steps from one sharding of an array to another
    Reshard(ReshardArgs),
    /// Find how to cut a global training step, with a bound that says how far from the best the plan can be
    Parallel(Box<ParallelArgs>),
    /// Compare state that is whole or in shards (ZeRO), on several numbers of devices: memory, bytes sent, step time
    Zero(ZeroArgs),
    /// List the algebraic rules, or check rules of a file
    Rules(RulesArgs),
}

/// What both plans take.
#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    /// A name (h100, h100:4, p2-a100:2, …), '[(name,count[,GB/s[,µs]]),…]', or a TOML file
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::links))]
    pub machine: String,
    /// Options that are part of --machine now.
    #[command(flatten)]
    pub gone: GoneArgs,
    /// Sizes of the parallelism axes: 4,2,8
    #[arg(long, value_name = "SIZES", value_delimiter = ',', required = true)]
    pub axes: Vec<u32>,
    /// Bytes on each device
    #[arg(long, value_name = "N[KiB|MiB|GiB]", default_value = "2GiB", value_parser = bytes)]
    pub bytes: f64,
    /// Algorithm of each collective
    #[arg(long, value_name = "ALGO", default_value = "auto")]
    pub algo: AlgoChoice,
    /// Which reading of the collectives' rules
    #[arg(long, value_name = "RULES", default_value = "pinned")]
    pub rules: RulesChoice,
    /// How positions of several axes are numbered
    #[arg(long, value_name = "HOW", default_value = "best")]
    pub lowering: LoweringChoice,
    /// Most steps of a program
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_size: Option<usize>,
    /// For people or for programs
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
}

impl MachineArgs {
    /// Devices of a machine whose name leaves that open: one for each place on the axes.
    pub(crate) fn n_devices(&self) -> usize {
        self.axes.iter().fold(1usize, |n, &size| n.saturating_mul(size as usize))
    }
}

/// `plan placement`.
#[derive(Args, Debug)]
pub(crate) struct PlacementArgs {
    /// The machine and the axes.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Reductions with their weights: 0=1.0,0+2=0.25 (a + joins axes of one reduction)
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true, value_parser = weighted)]
    pub reduce: Vec<Weighted>,
}

/// `plan reduction`.
#[derive(Args, Debug)]
pub(crate) struct ReductionArgs {
    /// The machine and the axes.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The axes to reduce together, by number, in any order: 0,2
    #[arg(long, value_name = "AXES", value_delimiter = ',', required = true)]
    pub reduce: Vec<usize>,
    /// Only this placement: [[1,4],[4,4]], a row for each axis
    #[arg(long, value_name = "MATRIX", value_parser = matrix_rows)]
    pub matrix: Option<MatrixRows>,
    /// Also the fastest program of each size that no shorter one beats
    #[arg(long)]
    pub pareto: bool,
    /// Draw the predicted time of every program per matrix
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
}

/// `plan reshard`.
#[derive(Args, Debug)]
pub(crate) struct ReshardArgs {
    /// The whole array: f32[16,16,16]
    #[arg(long, value_name = "SHAPE")]
    pub shape: String,
    /// How it is cut, in any form of HLO's sharding=: '{devices=[4,1]<=[4]}'
    #[arg(long, value_name = "SHARDING")]
    pub from: String,
    /// How it is to be cut
    #[arg(long, value_name = "SHARDING")]
    pub to: String,
    /// Plan for least time on this machine; without one, for fewest bytes.
    #[command(flatten)]
    pub machine: crate::target_arguments::MachineArgs,
    /// Devices, where no sharding lists them
    #[arg(long, value_name = "N", value_parser = devices)]
    pub devices: Option<usize>,
    /// Steps with their costs, a per-device module, one JSON object, or a picture
    #[arg(long, value_name = "WHAT", default_value = "text")]
    pub emit: ReshardEmit,
}

/// What `plan reshard` prints.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum ReshardEmit {
    Text,
    Hlo,
    Json,
    Svg,
}

/// `plan parallel`.
#[derive(Args, Debug)]
pub(crate) struct ParallelArgs {
    /// A global program without shardings: HLO text or proto, or - for stdin
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The counts of devices.
    #[command(flatten)]
    pub counts: CountArgs,
    /// The machine.
    #[command(flatten)]
    pub machine: crate::target_arguments::MachineArgs,
    /// Number of devices; those of the cluster, or 8
    #[arg(long, value_name = "N", value_parser = devices)]
    pub devices: Option<usize>,
    /// What a device has for the step, parameters included: 30GiB
    #[arg(long, value_name = "N[KiB|MiB|GiB]", value_parser = bytes)]
    pub memory_limit: Option<f64>,
    /// How long to search, in billions of table entries; the same effort gives the same plan
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = zero_or_more)]
    pub effort: f64,
    /// The gap between plan and bound that is small enough, as a share of the time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = zero_or_more)]
    pub gap: f64,
    /// End the search after so many seconds; the report then says that another run may end elsewhere
    #[arg(long, value_name = "SECONDS", value_parser = zero_or_more)]
    pub time_limit: Option<f64>,
    /// The most axes of a mesh
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=3))]
    pub axes: usize,
    /// Only these meshes: 4x6, or '2x2x6;4x6'
    #[arg(long, value_name = "MESHES")]
    pub mesh: Option<String>,
    /// Every axis has to divide what it cuts
    #[arg(long)]
    pub even: bool,
    /// What is fixed: a TOML file of lines "%w" = [1, 4], the parts of each dim
    #[arg(long, value_name = "FILE")]
    pub pins: Option<PathBuf>,
    /// Whether branches that are alike may become one op each, and how their parameters and results are held then
    #[arg(long, value_name = "HOW", default_value = "same-state")]
    pub algebra: AlgebraChoice,
    /// Whether matrix products and convolutions may be joined, split or done in another order, each time with what that does to the plan
    #[arg(long, value_name = "RULES", value_parser = ["true", "false", "forward"], num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", conflicts_with_all = ["pins", "without"])]
    pub regions: String,
    /// What the search is kept from, to see what it gains: parameter-cuts, attribute-cuts, reduction-cuts, joint; several with +
    #[arg(long, value_name = "PARTS", default_value = "")]
    pub without: String,
    /// With --algebra stacked-state: write the program that packs the state of branches here
    #[arg(long, value_name = "FILE")]
    pub pack: Option<PathBuf>,
    /// With --algebra stacked-state: write the program that unpacks it here
    #[arg(long, value_name = "FILE")]
    pub unpack: Option<PathBuf>,
    /// Also tell what other states of this value would cost; may be repeated
    #[arg(long, value_name = "%NAME")]
    pub why: Vec<String>,
    /// Write the problem of the plan's mesh, its bound and its solution as JSON
    #[arg(long, value_name = "FILE")]
    pub dump_problem: Option<PathBuf>,
    /// Write the program with a sharding on every value here
    #[arg(short, long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The report, one JSON object, the annotated program, or a picture of its ops coloured by how they are cut
    #[arg(long, value_name = "WHAT", default_value = "text")]
    pub emit: ParallelEmit,
}

/// `plan zero`.
#[derive(Args, Debug)]
pub(crate) struct ZeroArgs {
    /// The step of one of several devices, or a global one with shardings: HLO text or proto, or - for stdin
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The counts of devices.
    #[command(flatten)]
    pub counts: CountArgs,
    /// The machine.
    #[command(flatten)]
    pub machine: crate::target_arguments::MachineArgs,
    /// Numbers of devices: 8,16,64; other numbers than the module's own are modelled. The module's if none is given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<usize>,
    /// What a device has for the step: 30GiB; what it has if not given
    #[arg(long, value_name = "N[KiB|MiB|GiB]", value_parser = bytes)]
    pub memory_limit: Option<f64>,
    /// The table, one JSON object, a picture, or a page with both
    #[arg(long, value_name = "WHAT", default_value = "text")]
    pub emit: ZeroEmit,
}

/// What `plan zero` prints.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum ZeroEmit {
    Text,
    Json,
    Svg,
    Html,
}

/// `plan rules`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["list", "check"])))]
pub(crate) struct RulesArgs {
    /// Generate, verify and print the rules
    #[arg(long)]
    pub list: bool,
    /// Check the rules of a file: each is accepted, or rejected with a counterexample. The file is text of this project, or a collection
    /// of TASO or FlexFlow in JSON, of which a table says how many rules are right, by the ops that they are about
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
    /// Leave out a rule, and what follows from it; may be repeated
    #[arg(long, value_name = "RULE")]
    pub without_rule: Vec<String>,
    /// Leave out the rules that are backward forms of others
    #[arg(long)]
    pub no_closure: bool,
}

/// `--algebra` of `plan parallel`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AlgebraChoice {
    /// The program as it is
    None,
    /// Parameters and results stay as they are
    SameState,
    /// The state of all branches is one parameter
    StackedState,
}

/// What `plan parallel` prints.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum ParallelEmit {
    Text,
    Json,
    Hlo,
    SearchSvg,
}

/// One reduction and what it counts.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Weighted {
    /// The axes that are reduced together.
    pub reduce: Vec<usize>,
    /// How often, or how much it matters.
    pub weight: f64,
}

/// The rows of a matrix as given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MatrixRows(pub Vec<Vec<u32>>);

/// `--algo`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum AlgoChoice {
    Ring,
    Tree,
    Auto,
}

/// `--rules`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum RulesChoice {
    Pinned,
    Literal,
}

/// `--lowering`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum LoweringChoice {
    AxisMajor,
    LevelMajor,
    Best,
}

impl From<AlgoChoice> for Algo {
    fn from(choice: AlgoChoice) -> Algo {
        match choice {
            AlgoChoice::Ring => Algo::Ring,
            AlgoChoice::Tree => Algo::Tree,
            AlgoChoice::Auto => Algo::Auto,
        }
    }
}

impl From<RulesChoice> for Rules {
    fn from(choice: RulesChoice) -> Rules {
        match choice {
            RulesChoice::Pinned => Rules::Pinned,
            RulesChoice::Literal => Rules::Literal,
        }
    }
}

impl LoweringChoice {
    /// The one asked for; none for the better of both.
    pub(crate) fn lowering(self) -> Option<Lowering> {
        match self {
            LoweringChoice::AxisMajor => Some(Lowering::AxisMajor),
            LoweringChoice::LevelMajor => Some(Lowering::LevelMajor),
            LoweringChoice::Best => None,
        }
    }
}

/// The matrix of `--matrix`, if it fits.
///
/// # Errors
/// Wrong products or a wrong number of rows or columns.
pub(crate) fn matrix(rows: &MatrixRows, levels: &[u32], axes: &[u32]) -> Result<ParallelismMatrix, Failure> {
    ParallelismMatrix::new(rows.0.clone(), levels, axes).map_err(|e| Failure::Usage(format!("--matrix: {e}")))
}

/// Beyond these, times and costs would no longer be numbers.
const MOST_BYTES: f64 = (1u64 << 63) as f64;
const MOST_WEIGHT: f64 = 1e12;

/// What is wrong with the value of an option.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ValueError {
    NoBytes,
    TooManyBytes,
    NoSteps,
    NoDevices,
    NoNumber,
    NoWeightedAxes,
    Weight { found: f64 },
    NoMatrix,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueError::NoBytes => "expected a number of bytes such as 4096 or 2GiB",
            ValueError::TooManyBytes => "expected zero bytes to 8 EiB",
            ValueError::NoSteps => "expected a number of steps, at least 1",
            ValueError::NoDevices => "expected a number of devices, at least 1",
            ValueError::NoNumber => "expected a number of 0 or more",
            ValueError::NoWeightedAxes => "expected axes and a weight such as 0+2=0.25",
            ValueError::Weight { found } => {
                return write!(f, "expected a weight from zero to {MOST_WEIGHT:e}, found {found:e}");
            }
            ValueError::NoMatrix => "expected rows of numbers such as [[1,4],[4,4]]",
        })
    }
}

impl std::error::Error for ValueError {}

fn bytes(text: &str) -> Result<f64, ValueError> {
    let suffixes = [("KiB", 1u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (number, factor) = suffixes
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        .unwrap_or((text, 1));
    let number: f64 = number.trim().parse().map_err(|_| ValueError::NoBytes)?;
    let bytes = number * factor as f64;
    if (0.0..=MOST_BYTES).contains(&bytes) { Ok(bytes) } else { Err(ValueError::TooManyBytes) }
}

fn at_least_one(text: &str) -> Result<usize, ValueError> {
    text.parse().ok().filter(|n| *n > 0).ok_or(ValueError::NoSteps)
}

/// What durations can hold, too.
fn zero_or_more(text: &str) -> Result<f64, ValueError> {
    text.parse().ok().filter(|n| (0.0..1e15).contains(n)).ok_or(ValueError::NoNumber)
}

fn devices(text: &str) -> Result<usize, ValueError> {
    at_least_one(text).map_err(|_| ValueError::NoDevices)
}

fn weighted(text: &str) -> Result<Weighted, ValueError> {
    let (axes, weight) = text.split_once('=').unwrap_or((text, "1"));
    let reduce: Option<Vec<usize>> = axes.split('+').map(|axis| axis.trim().parse().ok()).collect();
    let weight: f64 = weight.trim().parse().map_err(|_| ValueError::NoWeightedAxes)?;
    match reduce {
        Some(reduce) if (0.0..=MOST_WEIGHT).contains(&weight) => Ok(Weighted { reduce, weight }),
        Some(_) => Err(ValueError::Weight { found: weight }),
        None => Err(ValueError::NoWeightedAxes),
    }
}

fn matrix_rows(text: &str) -> Result<MatrixRows, ValueError> {
    serde_json::from_str(text).map(MatrixRows).map_err(|_| ValueError::NoMatrix)
}
