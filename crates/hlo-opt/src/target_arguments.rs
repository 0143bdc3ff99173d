//! Options about the target of passes and the machine of predictions.

use crate::completion;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use hlo_pass::options::parse_int;

/// The machine, trip counts and limit of all passes.
#[derive(Args, Debug, Default)]
pub(crate) struct TargetArgs {
    /// What times are for: a100, b200, h100, h200, auto; h200:4 is four nodes
    ///
    /// A name has as many devices as the module, in nodes of eight; auto is this computer's card. Other links:
    /// '[(node,2),(gpu,8)]' has h200s, 'a100:[(node,2),(gpu,8)]' has a100s, a100:switch has any number of them at one switch,
    /// and a TOML file describes what it says. One switch of h200 if not given.
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::machine))]
    pub machine: Option<String>,
    /// How often a loop is taken to run where the module does not say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    pub unknown_trip_count: Option<u64>,
    /// Bytes that a device has for the step, parameters included: 30GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_limit, hide_short_help = true)]
    pub memory_limit: Option<u64>,
    /// Options that are part of --machine now.
    #[command(flatten)]
    pub gone: GoneArgs,
}

/// The machine that times are predicted for.
#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    /// Nodes of a100, b200, h100 or h200, as many as there are devices for; h200:4 for four nodes; auto: this computer's; a
    /// hierarchy as '[(node,2),(gpu,8)]' or 'a100:[(node,2),(gpu,8)]'; a100:switch for one switch; or a TOML file
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::machine))]
    pub machine: Option<String>,
    /// Options that are part of --machine now.
    #[command(flatten)]
    pub gone: GoneArgs,
}

/// Options that are part of `--machine` now: an error says what to write.
#[derive(Args, Debug, Default)]
pub(crate) struct GoneArgs {
    #[arg(long, hide = true, value_parser = gone_cluster)]
    cluster: Option<String>,
    #[arg(long, hide = true, value_parser = gone_device)]
    device: Option<String>,
}

fn gone_cluster(text: &str) -> Result<String, String> {
    let wiring = match text.split(':').next() {
        Some(name @ ("a100" | "v100")) => {
            format!(
                "the wiring of the P² paper that `{name}` named is `p2-{name}` now, and `a100` is nodes of eight A100s"
            )
        }
        Some(_) | None => "a hierarchy or a file stands there as it stood here".into(),
    };
    Err(format!("links and devices are one option, --machine: {wiring}"))
}

fn gone_device(text: &str) -> Result<String, String> {
    let file = if text.ends_with(".toml") { "; a file has the profile in a table `[device]`" } else { "" };
    Err(format!(
        "links and devices are one option, --machine: '{text}:switch' for one switch, '{text}:[(node,2),(gpu,8)]' for other \
         links{file}"
    ))
}

fn parse_limit(text: &str) -> Result<u64, String> {
    parse_int(text)
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "expected a number of bytes above 0, as 64MiB or 30GiB".into())
}
