//! `hlo-opt.toml`: defaults of the command line, from the folder of the file or the nearest one above it.

use crate::Failure;
use crate::arguments::{Arguments, Command};
use crate::target_arguments::MachineArgs;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The file's name.
const NAME: &str = "hlo-opt.toml";

/// What `--config` says to read none.
const NONE: &str = "none";

/// What the file may say. Each is taken where the command line says nothing of it.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields)]
struct Config {
    /// As `--machine`.
    machine: Option<String>,
    /// As `--preset`, for runs without passes of their own.
    preset: Option<String>,
}

/// Fills in what the configuration says; a line about it.
///
/// # Errors
/// A file that cannot be read, is no TOML or has an unknown field.
pub(crate) fn apply(arguments: &mut Arguments) -> Result<Option<String>, Failure> {
    let Some(place) = find(arguments)? else { return Ok(None) };
    let failed = |what: String| Failure::File(format!("cannot read `{}`: {what}", place.display()));
    let text = std::fs::read_to_string(&place).map_err(|error| failed(error.to_string()))?;
    let config: Config = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        failed(format!("line {line}: {}", error.message()))
    })?;
    let taken = take(config, arguments);
    Ok((!taken.is_empty()).then(|| format!("note: {}, by {}\n", taken.join(", "), place.display())))
}

/// The file that `--config` names, or the nearest one.
fn find(arguments: &Arguments) -> Result<Option<PathBuf>, Failure> {
    match &arguments.config {
        Some(named) if named == Path::new(NONE) => Ok(None),
        Some(named) => Ok(Some(named.clone())),
        None => {
            let file = input(arguments).filter(|file| *file != Path::new("-")).unwrap_or(Path::new("."));
            // Of a path that is not there the message comes when it is read.
            let from = file.canonicalize().ok();
            Ok(from.and_then(|from| from.ancestors().map(|folder| folder.join(NAME)).find(|place| place.is_file())))
        }
    }
}

/// The file or folder that the command is about.
fn input(arguments: &Arguments) -> Option<&Path> {
    match &arguments.command {
        None => arguments.optimize.files.first().map(PathBuf::as_path),
        Some(command) => command.machine_and_file()?.1,
    }
}

/// Puts values where the command line has none; which they are.
fn take(config: Config, arguments: &mut Arguments) -> Vec<String> {
    let Config { machine, preset } = config;
    let mut taken = Vec::new();
    let mut put = |what: &str, value: Option<String>, to: &mut Option<String>| {
        if let (Some(value), None) = (value, &to) {
            taken.push(format!("{what} {value}"));
            *to = Some(value);
        }
    };
    match &mut arguments.command {
        // These predict no times and run nothing.
        None if arguments.optimize.list_passes || arguments.optimize.verify_only => {}
        None => {
            let args = &mut arguments.optimize;
            put("machine", machine, &mut args.target.machine);
            if args.pipelines.is_empty() {
                put("preset", preset, &mut args.preset);
            }
        }
        Some(command) => {
            if let Some(args) = command.machine_mut() {
                put("machine", machine, &mut args.machine);
            }
        }
    }
    taken
}

impl Command {
    /// What the command says of the machine, and the file that it reads; none of a command that predicts no times.
    fn machine_and_file(&self) -> Option<(&MachineArgs, Option<&Path>)> {
        use crate::arguments::AnalyzeCommand;
        match self {
            Command::Analyze(AnalyzeCommand::Time(args)) => Some((&args.machine, Some(&args.file))),
            Command::Audit(args) => Some((&args.machine, args.file.as_deref())),
            _ => None,
        }
    }

    fn machine_mut(&mut self) -> Option<&mut MachineArgs> {
        use crate::arguments::AnalyzeCommand;
        match self {
            Command::Analyze(AnalyzeCommand::Time(args)) => Some(&mut args.machine),
            Command::Audit(args) => Some(&mut args.machine),
            _ => None,
        }
    }
}
