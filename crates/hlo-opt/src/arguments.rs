//! The command line's grammar.

use crate::compare::arguments::{BisectArgs, CompareArgs};
use crate::completion;
use crate::diff::arguments::DiffArgs;
use crate::input_arguments::time_limit;
pub(crate) use crate::input_arguments::{CountArgs, InputArgs};
use crate::output_format::OutputFormat;
use crate::plan::arguments::PlanCommand;
use crate::prove::arguments::ProveArgs;
use crate::reduce::arguments::ReduceArgs;
use crate::report::DocumentFormat;
pub(crate) use crate::report_format::ReportFormat;
use crate::target_arguments::{MachineArgs, TargetArgs};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use hlo_gpu::lower::Matmul;
use hlo_ir::print::FormChoice;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hlo-opt --preset data-parallel --report text step.hlo -o sharded.hlo
Exit codes: 0 well, 1 error in the input or a pass, 2 wrong usage, 3 unchanged, 4 audit, compare and bisect: found";

const TEMPLATE: &str = "{about}\n{usage-heading} {usage}\n\n{all-args}{after-help}\n";

/// Reads HLO, verifies it, runs passes on it and prints HLO
#[derive(Parser, Debug)]
#[command(name = "hlo-opt", version, term_width = 120, help_template = TEMPLATE, after_help = EXAMPLES)]
#[command(override_usage = "hlo-opt [OPTIONS] [FILE]... | hlo-opt <COMMAND>")]
pub(crate) struct Arguments {
    /// Another job than to optimize.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The main job.
    #[command(flatten)]
    pub optimize: OptimizeArgs,
    /// Defaults from this file, or none; else from the nearest hlo-opt.toml above the input
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    pub config: Option<PathBuf>,
    /// Colours in messages
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    pub color: Color,
}

impl Arguments {
    /// Parses the words of a command line, the program's name first.
    ///
    /// # Errors
    /// Wrong usage, or a request for help or the version. Options of the main job before another command are wrong
    /// usage; options of all commands, such as `--color`, are not.
    pub(crate) fn parse_words(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> clap::error::Result<Arguments> {
        let mut grammar = takes_negative_numbers(Arguments::command());
        let matches = grammar.try_get_matches_from_mut(words)?;
        if let Some((command, _)) = matches.subcommand() {
            let is_for_all = |id: &str| grammar.get_arguments().any(|arg| arg.get_id() == id && arg.is_global_set());
            let is_said = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
            let of_main_job =
                grammar.get_arguments().map(|arg| arg.get_id().as_str()).find(|id| is_said(id) && !is_for_all(id));
            if let Some(wrong) = of_main_job {
                let shown = grammar.get_arguments().find(|arg| arg.get_id() == wrong).map(ToString::to_string);
                let shown = shown.unwrap_or_default();
                let text = format!(
                    "`{shown}` before `{command}` is an option of the main job; options of `{command}` follow its name"
                );
                return Err(grammar.error(ErrorKind::ArgumentConflict, text));
            }
        }
        let arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut grammar))?;
        let is_said = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match arguments.optimize.without_effect(is_said).filter(|_| arguments.command.is_none()) {
            Some(text) => Err(grammar.error(ErrorKind::ArgumentConflict, text)),
            None => Ok(arguments),
        }
    }
}

impl OptimizeArgs {
    /// An option that is said and that these options leave without effect, and what it needs.
    fn without_effect(&self, is_said: impl Fn(&str) -> bool) -> Option<&'static str> {
        let is_hlo = self.emit == Emit::Hlo;
        let has_center = matches!(self.emit, Emit::Dot | Emit::ShardingSvg);
        let is_text = self.output_format == OutputFormat::Text;
        let is_lowered = self.emit.is_of_plan() || self.preset.is_some();
        let needs = [
            (
                "around",
                has_center,
                "`--around` says what a picture shows: expected `--emit dot` or `--emit sharding-svg` beside it",
            ),
            (
                "depth",
                self.emit == Emit::Dot && self.around.is_some(),
                "`--depth` says how much a graph shows: expected `--emit dot` and `--around` beside it",
            ),
            (
                "matmul",
                is_lowered,
                "`--matmul` says how plans multiply: expected `--emit plan`, another form of it, or `--preset gpu` beside it",
            ),
            (
                "output_format",
                is_hlo,
                "`--output-format` says how HLO is written: expected no `--emit` of something else beside it",
            ),
            (
                "format",
                is_hlo && is_text,
                "`--format` says how HLO text is written: expected no `--emit` of something else and no `--output-format proto` beside it",
            ),
        ];
        needs.into_iter().find(|&(id, has_effect, _)| is_said(id) && !has_effect).map(|(_, _, text)| text)
    }
}

/// The same grammar, where a negative number after an option is its value: who reads it says what is expected.
fn takes_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| {
        let has_value = arg.get_action().takes_values() && !arg.is_positional();
        if has_value { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(takes_negative_numbers)
}

/// The names of the commands that help lists.
pub(crate) fn command_names() -> Vec<String> {
    let grammar = Arguments::command();
    let shown = grammar.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_string()).collect()
}

/// Jobs other than the main one.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Print facts about a module
    #[command(subcommand)]
    Analyze(AnalyzeCommand),
    /// Say what is wrong with a per-device step, without changing it
    Audit(AuditArgs),
    /// Run a module on all its devices in the evaluator, or a global program as a whole
    Eval(EvalArgs),
    /// Show what differs between two modules by what they compute, names aside
    Diff(DiffArgs),
    /// Run two modules on the same inputs in the evaluator; say where their results differ
    Compare(CompareArgs),
    /// Prove without running them that two modules give the same, for any inputs; say where they part
    Prove(ProveArgs),
    /// Say which pass of a pipeline changes the results
    Bisect(BisectArgs),
    /// Shrink a module as long as a command succeeds on it
    Reduce(ReduceArgs),
    /// Run a per-device module as the GPU backend lowers it, in one process or one for each rank
    Run(RunArgs),
    /// Place parallelism on a machine, or find the best way to reduce on it or to reshard an array
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// The main job.
#[derive(Args, Debug)]
pub(crate) struct OptimizeArgs {
    /// HLO text or proto, or a folder of XLA's dumps; of several the step's is taken; stdin if none
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Passes to run, in order: 'a,b{opt=1,list=[x,y]}'
    #[arg(long = "pass", alias = "passes", value_name = "PIPELINE", add = ArgValueCompleter::new(completion::pipeline))]
    pub pipelines: Vec<String>,
    /// Run a pipeline that has a name (before --pass): data-parallel, sharded-state, gpu
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::preset))]
    pub preset: Option<String>,
    /// The machine, trip counts and limit of all passes.
    #[command(flatten)]
    pub target: TargetArgs,
    /// List the passes and their options, and the presets
    #[arg(long)]
    pub list_passes: bool,
    /// Write HLO here, not to stdout
    #[arg(short, long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What to print
    #[arg(long, value_name = "WHAT", default_value = "hlo", hide_default_value = true)]
    pub emit: Emit,
    /// With --emit dot: only what lies around this instruction; with --emit sharding-svg: the value to draw
    #[arg(long, value_name = "%NAME", hide_short_help = true)]
    pub around: Option<String>,
    /// With --around: how many steps away
    #[arg(long, value_name = "N", default_value_t = 3, hide_short_help = true)]
    pub depth: u32,
    /// How plans multiply f32
    #[arg(long, value_name = "HOW", default_value = "f32", hide_short_help = true)]
    pub matmul: MatmulChoice,
    /// Language of the output
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_short_help = true)]
    pub output_format: OutputFormat,
    /// Form of the printed text
    #[arg(long, value_name = "FORM", default_value = "auto", hide_short_help = true)]
    pub format: TextFormChoice,
    /// Only check the module
    #[arg(long, conflicts_with_all = ["pipelines", "preset", "output"])]
    pub verify_only: bool,
    /// Replicated leaves: optimizer | 0-12,14 | all | /REGEX/ | like:FILE | stacked:0-12
    #[arg(long, value_name = "SPEC")]
    pub replicated_params: Option<String>,
    /// Stop with an error where the passes of a module take longer
    #[arg(long, value_name = "SECONDS", value_parser = time_limit, hide_short_help = true)]
    pub timeout: Option<Duration>,
    /// Exit with 3 if no pass changed anything
    #[arg(long, hide_short_help = true)]
    pub require_change: bool,
    /// Hold each pass to what it says it changed and preserved; prove: and prove each, exit code 5 if one is unknown
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "contract")]
    #[arg(hide_short_help = true)]
    pub check: Option<Check>,
    /// Explain what was done, on stderr; html: a page
    #[arg(long, value_name = "FORMAT")]
    pub report: Option<DocumentFormat>,
    /// Write the report here (JSON unless --report says otherwise)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub report_file: Option<PathBuf>,
    /// Every decision of every pass, for itself, in the text report
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// No summary on stderr
    #[arg(short, long)]
    pub quiet: bool,
    /// Print counters and sizes, on stderr
    #[arg(long, hide_short_help = true)]
    pub stats: bool,
    /// Print how long everything took, on stderr
    #[arg(long, hide_short_help = true)]
    pub time_passes: bool,
    /// Print the module after each pass, or after one, on stderr
    #[arg(long, value_name = "PASS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[arg(hide_short_help = true)]
    pub print_ir_after: Option<String>,
    /// Take each part between '// -----' lines as a module of its own
    #[arg(long, hide_short_help = true)]
    pub split_input_file: bool,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// What each pass is held to.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// What it says it changed and preserved
    Contract,
    /// That, and a proof that no result changes
    Prove,
}

/// What to analyze.
#[derive(Subcommand, Debug)]
pub(crate) enum AnalyzeCommand {
    /// Which values are the same on which devices
    Replication(ReplicationArgs),
    /// How often each computation runs
    Frequency(FrequencyArgs),
    /// Peak memory of one device, and what lives at the peak
    Memory(MemoryArgs),
    /// Predicted time of a step on a machine: critical path, kernels, collectives
    Time(TimeArgs),
    /// How every value is cut over the devices: its shardings in words
    Sharding(ShardingArgs),
    /// Which dims of a global program are one dim of the model: what layouts on a mesh give axes to
    Dims(DimsArgs),
}

/// `analyze dims`.
#[derive(Args, Debug)]
pub(crate) struct DimsArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// Names of dims: a file with lines such as `batch = %x:0`, or such lines between `;`
    #[arg(long, value_name = "NAMES")]
    pub names: Option<String>,
    /// A table, or one JSON object a line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `analyze sharding`.
#[derive(Args, Debug)]
pub(crate) struct ShardingArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// A table, or one JSON object a line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `analyze time`.
#[derive(Args, Debug)]
pub(crate) struct TimeArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// The machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// A table, or one JSON object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// Trips of a loop whose count cannot be found
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub unknown_trip_count: u64,
    /// Take the order of the text as the schedule, as of a module that XLA has scheduled
    #[arg(long)]
    pub as_ordered: bool,
    /// Leave collectives apart as the text has them, where XLA would combine them
    #[arg(long)]
    pub as_written: bool,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `audit`.
#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    /// HLO text or proto of one device's program, or - for stdin
    #[arg(required_unless_present = "list_checks")]
    pub file: Option<PathBuf>,
    /// Exit with 4 on any such finding: check names, fault, advice or all; several with commas
    #[arg(short = 'D', long, value_name = "LIST", value_delimiter = ',')]
    pub deny: Vec<String>,
    /// Leave these checks out: check names, fault, advice or all; several with commas
    #[arg(short = 'A', long, value_name = "LIST", value_delimiter = ',')]
    pub allow: Vec<String>,
    /// List the checks
    #[arg(long)]
    pub list_checks: bool,
    /// Exit with 4 if collectives move more in a step, as 512MiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub max_collective_bytes: Option<u64>,
    /// Exit with 4 if more collectives run in a step
    #[arg(long, value_name = "N")]
    pub max_collectives: Option<u64>,
    /// Exit with 4 if the peak memory of one device is more
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub max_peak_bytes: Option<u64>,
    /// A list, or one JSON object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// The machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Trips of a loop whose count cannot be found
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub unknown_trip_count: u64,
    /// Entry leaves equal on all devices: optimizer | 0-12,14 | all | /REGEX/ | like:FILE; stacked:0-12: copies in a
    /// stack
    #[arg(long, value_name = "SPEC")]
    pub replicated_params: Option<String>,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// A number of bytes, as options of passes take it: 4096, 64KiB, 1GiB.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let number = hlo_pass::options::parse_int(text).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| "expected a number of bytes, as 4096, 64KiB or 1GiB".into())
}

/// `analyze memory`.
#[derive(Args, Debug)]
pub(crate) struct MemoryArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// A table, or one JSON object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// Buffers to list, the largest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// The computation to look at, as if it were the entry
    #[arg(long, value_name = "NAME")]
    pub computation: Option<String>,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `analyze frequency`.
#[derive(Args, Debug)]
pub(crate) struct FrequencyArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// A table, or one JSON object a line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// Trips of a loop whose count cannot be found
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub unknown_trip_count: u64,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `analyze replication`.
#[derive(Args, Debug)]
pub(crate) struct ReplicationArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// Which devices to compare; the axis that has more than one where not given
    #[arg(long, value_name = "AXIS")]
    pub across: Option<AcrossChoice>,
    /// A table, or one JSON object a line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,
    /// Entry leaves equal on all devices: optimizer | 0-12,14 | all | /REGEX/ | like:FILE; stacked:0-12: copies in a
    /// stack
    #[arg(long, value_name = "SPEC")]
    pub replicated_params: Option<String>,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `eval`.
#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    /// HLO text or an HLO proto, or - for stdin
    pub file: PathBuf,
    /// The inputs.
    #[command(flatten)]
    pub inputs: InputArgs,
    /// Write the outputs here: arrays out{leaf}_d{device}
    #[arg(short, long = "output", value_name = "NPZ")]
    pub output: Option<PathBuf>,
    /// Write the inputs too
    #[arg(long, requires = "output")]
    pub save_inputs: bool,
    /// Instructions to execute at most, each counted once however many devices run it
    #[arg(long, value_name = "N", default_value_t = hlo_eval::DEFAULT_MAX_STEPS)]
    pub max_steps: u64,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = time_limit)]
    pub timeout: Option<Duration>,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// HLO text or proto of a per-device module, or - for stdin
    pub file: PathBuf,
    /// Where kernels run
    #[arg(long, value_name = "WHERE")]
    pub backend: BackendChoice,
    /// The inputs.
    #[command(flatten)]
    pub inputs: InputArgs,
    /// Write the outputs here: arrays out{leaf}_d{device}
    #[arg(short, long = "output", value_name = "NPZ")]
    pub output: Option<PathBuf>,
    /// Stop at the first instruction that makes a value that is not finite
    #[arg(long)]
    pub check_finite: bool,
    /// Wait after each step, so that an error names the step that made it
    #[arg(long)]
    pub sync: bool,
    /// Take N steps without a wait between them: an output that the header aliases with an input is its next value
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Run N times more with the same inputs and say how long the runs took, without the copies of inputs and outputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub repeat: u32,
    /// Write the seconds of each step here, slowest first, as TSV: one more run, in which steps wait for one another
    #[arg(long, value_name = "TSV")]
    pub times: Option<PathBuf>,
    /// On the host: compile kernels for this run alone; else they are kept in hlo-opt below XDG_CACHE_HOME or ~/.cache
    #[arg(long)]
    pub no_cache: bool,
    /// On GPUs: how f32 matrices are multiplied
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub matmul: MatmulChoice,
    /// On GPUs: all devices on one card
    #[arg(long)]
    pub share_gpu: bool,
    /// The processes that run together.
    #[command(flatten)]
    pub ranks: RankArgs,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}

/// How this process finds the others of a run.
#[derive(Args, Debug)]
#[command(next_help_heading = "One process for each rank")]
pub(crate) struct RankArgs {
    /// Where rank 0 listens; MASTER_ADDR and MASTER_PORT if not given
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,
    /// This process; RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID if not given
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// All processes; WORLD_SIZE, OMPI_COMM_WORLD_SIZE, PMI_SIZE or SLURM_NTASKS if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Seconds to wait for the others at the beginning
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..1 << 24))]
    pub connect_timeout: u64,
    /// Only ranks with the secret in this file, or HLO_OPT_SECRET, take part; not encrypted
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// `--backend`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BackendChoice {
    /// This machine's processor; kernels are compiled by the system's C++ compiler
    Host,
    /// Graphics processors, by CUDA, cuBLASLt and NCCL
    Gpu,
}

/// `--matmul`: as f32, or faster, with operands rounded to TF32.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum MatmulChoice {
    F32,
    Tf32,
}

/// When messages have colours.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Whether colours are on; `auto` is the answer of the terminal.
    pub(crate) fn is_on(self, auto: bool) -> bool {
        match self {
            Color::Auto => auto,
            Color::Always => true,
            Color::Never => false,
        }
    }
}

/// `--format`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum TextFormChoice {
    Auto,
    Long,
    Short,
}

impl From<TextFormChoice> for FormChoice {
    fn from(form: TextFormChoice) -> FormChoice {
        match form {
            TextFormChoice::Auto => FormChoice::Auto,
            TextFormChoice::Long => FormChoice::Long,
            TextFormChoice::Short => FormChoice::Short,
        }
    }
}

/// `--emit`: HLO, the launch plan for people and as JSON, the CUDA C++ of its kernels, its streams as a picture and as a trace
/// for Perfetto; the graph of instructions.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum Emit {
    Hlo,
    Plan,
    PlanJson,
    Cuda,
    PlanSvg,
    Trace,
    Dot,
    ShardingSvg,
}

impl Emit {
    /// Whether it is made of the GPU backend's launch plan.
    pub(crate) fn is_of_plan(self) -> bool {
        match self {
            Emit::Hlo | Emit::Dot | Emit::ShardingSvg => false,
            Emit::Plan | Emit::PlanJson | Emit::Cuda | Emit::PlanSvg | Emit::Trace => true,
        }
    }
}

impl From<MatmulChoice> for Matmul {
    fn from(choice: MatmulChoice) -> Matmul {
        match choice {
            MatmulChoice::F32 => Matmul::F32,
            MatmulChoice::Tf32 => Matmul::Tf32,
        }
    }
}

/// `--across`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum AcrossChoice {
    Replicas,
    Partitions,
}
