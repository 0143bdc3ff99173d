//! The grammar of `hlo-opt compare` and `hlo-opt bisect`.

use crate::input_arguments::{CountArgs, InputArgs, time_limit};
use crate::target_arguments::TargetArgs;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// On how many inputs, and how near.
#[derive(Args, Clone, Debug)]
pub(crate) struct JudgeArgs {
    /// The inputs.
    #[command(flatten)]
    pub inputs: InputArgs,
    /// How many inputs to draw, with one seed after the other
    ///
    /// The first trial draws plain values. Later trials draw what plain values rarely reach: the last index and indices beyond it, each
    /// branch of a switch, integers of all sizes, values near the constants with which the program compares them, small, large, negative,
    /// equal and zero values, negative divisors, and, where the program checks that something is finite, an infinity or a NaN. [default:
    /// 6, or up to 12 where counters are compared with constants]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    #[arg(conflicts_with = "inputs")]
    pub trials: Option<u64>,
    /// Share of an output's largest element by which floats may differ [default: as the output is measured]
    ///
    /// The default is the largest of 2e-5, one ulp of narrow types, and ten times what inputs that are moved by half an ulp of f32
    /// change, or, of outputs that are computed in a narrower type, three times what half an ulp of the narrowest type changes; at most a
    /// tenth. It is a share of the output's largest element; of an output that is near an input of its shape, such as a new weight, a
    /// share of the largest step from that input, besides roundings; and a huge element that is the same in both programs does not count
    /// where the others are less than a tenth of it. Elements that moved inputs change by more, and integers that they change, are behind
    /// a step such as a sign or a comparison: ten times as many may differ. NaN is equal to NaN.
    #[arg(long, value_name = "SHARE", value_parser = not_negative)]
    pub rtol: Option<f64>,
    /// By how much floats may differ besides
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = not_negative)]
    pub atol: f64,
    /// Instructions to execute at most in each evaluation
    #[arg(long, value_name = "N", default_value_t = hlo_eval::DEFAULT_MAX_STEPS)]
    pub max_steps: u64,
    /// Stop with an error after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = time_limit)]
    pub timeout: Option<Duration>,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number >= 0.0 && number.is_finite());
    number.ok_or_else(|| "expected a number that is not negative, as 1e-5".into())
}

/// `compare`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 the same, 4 different, 5 undecided: more than 1 % of an output is NaN in both, or all of it infinite, or most of it rounding"
)]
pub(crate) struct CompareArgs {
    /// HLO text or proto that says what is right, or - for stdin; also a global program, from before XLA's partitioner
    pub a: PathBuf,
    /// What is compared with it; or a folder of --preset sharded-state, whose modules run one after the other
    pub b: PathBuf,
    /// How.
    #[command(flatten)]
    pub judge: JudgeArgs,
}

/// `bisect`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 no pass changes the results, 4 one does, 5 undecided: more than 1 % of an output is NaN"
)]
pub(crate) struct BisectArgs {
    /// HLO text or proto, or - for stdin
    pub file: PathBuf,
    /// Passes to run, in order: 'a,b{opt=1,list=[x,y]}'
    #[arg(long = "pass", alias = "passes", value_name = "PIPELINE")]
    pub pipelines: Vec<String>,
    /// Run the way that this preset takes (before --pass)
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// The machine, trip counts and limit of all passes.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Write the module before and after the pass here: before.hlo, after.hlo
    #[arg(long, value_name = "FOLDER")]
    pub out_dir: Option<PathBuf>,
    /// How.
    #[command(flatten)]
    pub judge: JudgeArgs,
}
