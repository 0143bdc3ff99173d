//! `hlo-opt eval`: runs a module on all its devices in the evaluator, or a global program as a whole; arrays go in and out as `.npz`.

use crate::arguments::EvalArgs;
use crate::arrays::{ChosenInputs, summary, write_arrays};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::elided::advice;
use crate::input::{Loaded, Source};
use crate::output::expect_no_input;
use crate::params::Said;
use crate::progress::Progress;
use crate::{Failure, exit};
use hlo_eval::global::GlobalProgram;
use hlo_eval::{EvalError, EvalOptions, Inputs, Outputs};
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_ir::{InstId, Module};
use std::path::Path;
use std::time::Instant;

/// Runs the module and writes its outputs, or a line about each output where no file is asked for.
///
/// # Errors
/// Wrong usage, an invalid input, or an evaluation that cannot go on.
pub(crate) fn run(args: &EvalArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    expect_no_input("-o", args.output.as_ref(), &[&args.file])?;
    let chosen = ChosenInputs::parse(&args.inputs)?;
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::Any, console)?;
    let promises = Said::read(args.inputs.replicated_params.as_deref(), console)?;
    let chosen = chosen.with_promises(promises.of(&source, source.whole(), &loaded, console)?);
    let deadline = args.timeout.and_then(|time| Instant::now().checked_add(time));
    let options = EvalOptions { max_steps: args.max_steps, deadline, ..EvalOptions::default() };
    let (inputs, outputs) = match loaded.decision().is_global() {
        true => evaluate_global(&chosen, &source, &loaded, &options, console)?,
        false => {
            let inputs = chosen.of(&loaded.module, console)?;
            progress.now("evaluating");
            let outputs = evaluate(&source, &loaded, &inputs, &options, console.has_color)?;
            (inputs, outputs)
        }
    };
    progress.now("writing");
    match &args.output {
        Some(path) => write_arrays(path, args.save_inputs.then_some(&inputs), &outputs)?,
        None => console.print(summary(&outputs).as_bytes())?,
    }
    Ok(exit::OK)
}

/// Runs a global program on one set of inputs. Its results are one set as well, unless copies of a value differ.
fn evaluate_global(
    chosen: &ChosenInputs<'_>,
    source: &Source,
    loaded: &Loaded,
    options: &EvalOptions,
    console: &mut Console<'_>,
) -> Result<(Inputs, Outputs), Failure> {
    let program = GlobalProgram::of(&loaded.module).map_err(|e| Failure::File(format!("{}: {e}", source.name)))?;
    let inputs = chosen.of_global(&program, 0)?;
    let n_devices = program.n_devices();
    let plural = if n_devices == 1 { "" } else { "s" };
    console.say(&format!("note: a global program, run as a whole on {n_devices} device{plural}\n"));
    let outputs = program.run(&inputs, options);
    let outputs = outputs.map_err(|error| Failure::Diagnostics(placed(source, loaded, &error, console.has_color)))?;
    let agreed = outputs.agreed().unwrap_or_else(|error| {
        console.say(&format!("note: {error}: each device goes on with its own copies\n"));
        outputs.of_devices().clone()
    });
    Ok((inputs, agreed))
}

/// Runs a module that was read from `source`.
///
/// # Errors
/// As [`hlo_eval::run`], with the place of the instruction.
pub(crate) fn evaluate(
    source: &Source,
    loaded: &Loaded,
    inputs: &Inputs,
    options: &EvalOptions,
    has_color: bool,
) -> Result<Outputs, Failure> {
    let module = &loaded.module;
    // A global program on devices that only its annotations name: its inputs are the wholes.
    let outputs = match module.n_devices() == 1 && loaded.decision().is_global() {
        true => GlobalProgram::of(module).and_then(|program| program.run(inputs, options)?.agreed()),
        false => hlo_eval::run(module, inputs, options),
    };
    outputs.map_err(|error| Failure::Diagnostics(placed(source, loaded, &error, has_color)))
}

/// The error with the place of the innermost instruction that it names.
fn placed(source: &Source, loaded: &Loaded, error: &EvalError, has_color: bool) -> String {
    let (mut innermost, mut entity) = (error, Entity::Module);
    while let EvalError::At { instruction, source, .. } = innermost {
        entity = instruction_named(&loaded.module, instruction).map_or(entity, Entity::Inst);
        innermost = source;
    }
    let mut diagnostic = Diagnostic::about("evaluation", entity, error.to_string());
    if let Some(constant) = error.constant_without_elements() {
        diagnostic = diagnostic.with_help(advice(Path::new(&source.name), constant));
    }
    source.render(source.whole(), Some(loaded), vec![diagnostic], has_color)
}

fn instruction_named(module: &Module, text: &str) -> Option<InstId> {
    let name = module.names.find(text)?;
    let mut all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    all.find(|&&inst| module.inst(inst).name == name).copied()
}
