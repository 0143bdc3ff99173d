//! `hlo-opt run`: lowers a module to a launch plan and runs it, in one process or in one for each rank.

use crate::arguments::{BackendChoice, InputArgs, RunArgs};
use crate::arrays::{ChosenInputs, summary, write_arrays};
use crate::complete::{Takes, read_completed, refuse_global};
use crate::console::Console;
use crate::elided;
use crate::params::Said;
use crate::progress::Progress;
use crate::{Failure, emit, exit, output, presets, registry, run_times, secret};
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_eval::{Inputs, Outputs};
use hlo_gpu::kernel::content_hash;
use hlo_gpu::lower::LowerOptions;
use hlo_gpu::plan::Plan;
use hlo_ir::{Literal, Module};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions as PassOptions, bind, run_pipeline};
use hlo_run::{
    ExecutionError, ExecutionOptions, Finished, GpuOptions, GpuProgram, HostProgram, KernelCache, Meeting, OnStuck,
    Ranks, Seat, SeatFlags, Watch, local_rank,
};
use std::sync::Arc;
use std::time::Duration;

/// Runs the module and, in a process alone and in rank 0, writes its outputs or a line about each.
///
/// # Errors
/// Wrong usage, an invalid input, a module that cannot be lowered, a run that fails here or in another rank.
pub(crate) fn run(args: &RunArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let chosen = ChosenInputs::parse(&args.inputs)?;
    for (flag, target) in [("-o", &args.output), ("--times", &args.times)] {
        output::expect_no_input(flag, target.as_ref(), &[&args.file])?;
        target.as_deref().map_or(Ok(()), output::check_target)?;
    }
    let seat = find_seat(args, console)?;
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (module, plan, promises) = lowered(args, console)?;
    progress.now("preparing the inputs");
    let inputs = chosen.with_promises(promises).of(&module, console)?;
    say_what_is_paired(args, &module, &plan, console);
    progress.now("running");
    let finished = match seat {
        None => {
            let meeting = Meeting::alone(hlo_run::all_devices(&plan));
            on_backend(args, &plan, &meeting, &inputs).map_err(|error| Failure::File(error.to_string()))?
        }
        Some(seat) => {
            // Before anybody waits for ranks that can have nothing to do.
            let n_devices = hlo_run::all_devices(&plan).end;
            if seat.n_ranks > n_devices {
                let found = seat.n_ranks;
                let text = format!("--ranks: expected at most one rank for each of {n_devices} devices, found {found}");
                return Err(Failure::Usage(text));
            }
            let rank = seat.rank;
            let outcome = with_others(args, seat, &plan, &inputs, console);
            outcome.map_err(|error| Failure::File(format!("rank {rank} stops: {error}")))?
        }
    };
    // Ranks other than 0 have given theirs away.
    if !finished.outputs.is_empty() {
        progress.now("writing");
        let outputs =
            by_leaf(hlo_run::arrays(&plan, &finished.outputs).map_err(|error| Failure::File(error.to_string()))?);
        match &args.output {
            Some(path) => write_arrays(path, None, &outputs)?,
            None => console.print(summary(&outputs).as_bytes())?,
        }
        if let Some(path) = &args.times {
            output::write_whole(path, run_times::steps(&plan, &finished).as_bytes())?;
        }
        if let Some(line) = run_times::summary(&finished) {
            console.print(line.as_bytes())?;
        }
    }
    Ok(exit::OK)
}

/// Of several steps: says which outputs become parameters because of their shapes alone.
fn say_what_is_paired(args: &RunArgs, module: &Module, plan: &Plan, console: &mut Console<'_>) {
    const SHOWN: usize = 6;
    let by_shape = plan.aliases.get(module.header.input_output_alias.len()..).unwrap_or_default();
    if args.steps < 2 || by_shape.is_empty() {
        return;
    }
    let pair = |(output, parameter): &(usize, usize)| format!("{output} is the next {parameter}");
    let pairs: Vec<String> = by_shape.iter().take(SHOWN).map(pair).collect();
    let more = by_shape.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    console.say(&format!(
        "note: the header does not say which outputs are the next values of donated parameters; they are paired as JAX does, by \
         shape in order: output {}{rest}\n",
        pairs.join(", ")
    ));
}

fn find_seat(args: &RunArgs, console: &mut Console<'_>) -> Result<Option<Seat>, Failure> {
    let flags = SeatFlags {
        coordinator: args.ranks.coordinator.clone(),
        rank: args.ranks.rank,
        n_ranks: args.ranks.ranks,
        connect_timeout: Some(Duration::from_secs(args.ranks.connect_timeout)),
        secret: args.ranks.secret_file.as_deref().map(|path| secret::read(path, console)).transpose()?,
    };
    Seat::find(&flags, &|name| std::env::var(name).ok()).map_err(|error| Failure::Usage(error.to_string()))
}

/// The module as it was read, the plan of what the GPU backend's passes make of it, and what the user promises of its parameters.
fn lowered(args: &RunArgs, console: &mut Console<'_>) -> Result<(Module, Plan, ParamFacts), Failure> {
    let said = Said::read(args.inputs.replicated_params.as_deref(), console)?;
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::PerDeviceAlone, console)?;
    let wrong = |text: String| Failure::File(format!("{}: {text}", source.name));
    refuse_global(&source, source.whole(), &loaded, console.has_color)?;
    let calls = parse_pipeline(&presets::gpu_passes(args.matmul.into())).map_err(|e| wrong(e.to_string()))?;
    let passes = bind(&calls, &registry::passes()).map_err(|e| wrong(e.to_string()))?;
    let mut module = loaded.module.clone();
    let promises = said.of(&source, source.whole(), &loaded, console)?;
    let mut analyses = Analyses::new(promises.clone());
    run_pipeline(&mut module, &mut analyses, &passes, PassOptions::default()).map_err(|error| {
        let messages = error.diagnostics.iter().map(|d| d.message.clone()).collect::<Vec<_>>();
        wrong(format!("pass `{}`: {}", error.pass, messages.join("; ")))
    })?;
    let options = LowerOptions { params: analyses.params, matmul: args.matmul.into(), ..LowerOptions::default() };
    let plan = emit::lowered(&module, &options);
    let plan = plan.map_err(|error| wrong(format!("{error}{}", elided::hint(&args.file, &module, &error))))?;
    Ok((loaded.module, plan, promises))
}

/// Runs this rank's share of the devices. Rank 0 gets the outputs of all devices, the others get none.
fn with_others(
    args: &RunArgs,
    seat: Seat,
    plan: &Plan,
    inputs: &Inputs,
    console: &mut Console<'_>,
) -> Result<Finished, ExecutionError> {
    let rank = seat.rank;
    let mut say = |text: &str| console.say(&format!("{text}\n"));
    // The process must end even if a kernel runs on, or a library waits for a rank that is gone.
    let on_stuck: OnStuck = Box::new(move |error| {
        eprintln!("error: rank {rank} stops: {error}");
        std::process::exit(i32::from(exit::ERROR));
    });
    let ranks = Ranks::connect(seat, digest(args, plan), &plan.name, &mut say, on_stuck)?;
    let outcome = Meeting::of_ranks(&ranks, hlo_run::all_devices(plan).end)
        .and_then(|meeting| on_backend(args, plan, &meeting, inputs))
        .and_then(|finished| Ok(Finished { outputs: hlo_run::gather(plan, &ranks, &finished.outputs)?, ..finished }));
    match outcome {
        Ok(finished) => ranks.finish().map(|()| finished),
        Err(error) => {
            ranks.fail(&error);
            Err(error)
        }
    }
}

/// Of everything that must be the same in all ranks.
fn digest(args: &RunArgs, plan: &Plan) -> u64 {
    let InputArgs { seed, draw, same, replicated_params, like, inputs } = &args.inputs;
    let drawn = (inputs.is_none()).then_some((seed, draw, same, replicated_params, like));
    let constants: Vec<Vec<u8>> = plan.constants.values().map(|c| c.data().to_packed_bytes(c.dtype())).collect();
    content_hash(&format!(
        "{:?} {:?} {} {} {} {} {drawn:?}\n{}\n{constants:?}",
        args.backend,
        args.matmul,
        args.check_finite,
        args.steps,
        args.repeat,
        args.times.is_some(),
        plan.to_json()
    ))
}

/// Runs the plan on the devices of this process.
fn on_backend(args: &RunArgs, plan: &Plan, meeting: &Meeting<'_>, inputs: &Inputs) -> Result<Finished, ExecutionError> {
    let of_device = |device: u32| inputs.leaves.iter().map(|row| row[device as usize].clone()).collect();
    let own: Vec<Vec<Arc<Literal>>> = meeting.devices().map(of_device).collect();
    let options = ExecutionOptions {
        watch: Watch { check_finite: args.check_finite, sync: args.sync },
        n_steps: args.steps,
        n_extra_runs: args.repeat,
        times_steps: args.times.is_some(),
    };
    match args.backend {
        BackendChoice::Host => {
            let cache = if args.no_cache { KernelCache::Off } else { KernelCache::OfUser };
            hlo_run::run(&HostProgram::with_cache(plan, cache)?, meeting, &own, options)
        }
        BackendChoice::Gpu => {
            let local_rank = local_rank(&|name| std::env::var(name).ok())?;
            let on_cards = GpuOptions { shares_card: args.share_gpu, local_rank };
            hlo_run::run(&GpuProgram::new(plan, meeting.devices(), on_cards)?, meeting, &own, options)
        }
    }
}

/// `[device][leaf]` as `[leaf][device]`.
fn by_leaf(devices: Vec<Vec<Literal>>) -> Outputs {
    let n_leaves = devices.first().map_or(0, Vec::len);
    let mut leaves: Vec<Vec<Arc<Literal>>> = vec![Vec::new(); n_leaves];
    for device in devices {
        for (row, array) in leaves.iter_mut().zip(device) {
            row.push(Arc::new(array));
        }
    }
    Outputs { leaves }
}
