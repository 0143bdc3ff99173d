//! `hlo-opt eval`: runs a module on all its devices in the evaluator; arrays go in and out as `.npz`.

use crate::arguments::EvalArgs;
use crate::console::Console;
use crate::input::{Loaded, Source, load_one};
use crate::progress::Progress;
use crate::{Failure, exit, output};
use hlo_eval::draw::{Draw, DrawOptions, Same, draw_inputs};
use hlo_eval::npz::{NpzReader, NpzWriter};
use hlo_eval::{EvalError, Inputs, Options, Outputs};
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_ir::literal::{Literal, Scalar};
use hlo_ir::{InstId, Module};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

/// Runs the module and writes its outputs, or a line about each output where no file is asked for.
///
/// # Errors
/// Wrong usage, an invalid input, or an evaluation that cannot go on.
pub fn run(args: &EvalArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let usage = |flag: &'static str| move |e: EvalError| Failure::Usage(format!("{flag}: {e}"));
    let draws = Draw::parse_list(&args.draw).map_err(usage("--draw"))?;
    let same = Same::parse(&args.same).map_err(usage("--same"))?;
    let source = Source::read(&args.file, console)?;
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let loaded = source.load(source.whole(), console.has_color).map_err(Failure::Diagnostics)?;
    let module = &loaded.module;
    let inputs = match &args.inputs {
        Some(path) => read_inputs(path, module)?,
        None => {
            let like = args.like.as_ref().map(|path| load_one(path, console)).transpose()?;
            let options = DrawOptions { seed: args.seed, draws, same };
            draw_inputs(module, like.as_ref(), &options).map_err(|e| Failure::File(e.to_string()))?
        }
    };
    progress.now("evaluating");
    let outputs = hlo_eval::run(module, &inputs, &Options::default())
        .map_err(|e| Failure::Diagnostics(placed(&source, &loaded, &e, console.has_color)))?;
    progress.now("writing");
    match &args.output {
        Some(path) => write_arrays(path, args.save_inputs.then_some(&inputs), &outputs)?,
        None => console.print(summary(&outputs).as_bytes())?,
    }
    Ok(exit::OK)
}

fn read_inputs(path: &Path, module: &Module) -> Result<Inputs, Failure> {
    let name = path.display();
    let file = File::open(path).map_err(|e| Failure::File(format!("cannot read `{name}`: {e}")))?;
    NpzReader::new(BufReader::new(file))
        .and_then(|mut archive| archive.read_inputs(module))
        .map_err(|e| Failure::File(format!("`{name}`: {e}")))
}

fn write_arrays(path: &Path, inputs: Option<&Inputs>, outputs: &Outputs) -> Result<(), Failure> {
    output::write_whole_with(path, |sink: &mut dyn Write| {
        let mut archive = NpzWriter::new(sink);
        let written = inputs.map_or(Ok(()), |inputs| archive.write_inputs(inputs));
        written
            .and_then(|()| archive.write_outputs(outputs))
            .and_then(|()| archive.finish().map(drop))
            .map_err(std::io::Error::other)
    })
}

/// The error with the place of the innermost instruction that it names.
fn placed(source: &Source, loaded: &Loaded, error: &EvalError, has_color: bool) -> String {
    let (mut innermost, mut entity) = (error, Entity::Module);
    while let EvalError::At { instruction, source, .. } = innermost {
        entity = instruction_named(&loaded.module, instruction).map_or(entity, Entity::Inst);
        innermost = source;
    }
    let diagnostic = Diagnostic::about("evaluation", entity, error.to_string());
    source.render(source.whole(), Some(loaded), vec![diagnostic], has_color)
}

fn instruction_named(module: &Module, text: &str) -> Option<InstId> {
    let name = module.names.find(text)?;
    let mut all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    all.find(|&&inst| module.inst(inst).name == name).copied()
}

/// A line for each output: type, range, and whether the devices agree.
fn summary(outputs: &Outputs) -> String {
    let mut out = String::new();
    for (i, row) in outputs.leaves.iter().enumerate() {
        let Some(first) = row.first() else { continue };
        let dims: Vec<String> = first.dims().iter().map(i64::to_string).collect();
        let shape = format!("{}[{}]", first.dtype(), dims.join(","));
        let (least, largest) = range(row.iter().map(|array| &**array));
        let devices = match (row.len(), row.iter().all(|array| array == first)) {
            (1, _) => String::new(),
            (n, true) => format!("  the same on all {n} devices"),
            (n, false) => format!("  different on {n} devices"),
        };
        let _ = writeln!(out, "out{i}  {shape:<24} from {least} to {largest}{devices}");
    }
    out
}

/// The least and the largest element (real parts of complex ones).
fn range<'l>(arrays: impl Iterator<Item = &'l Literal>) -> (f64, f64) {
    let elements = arrays.flat_map(|array| (0..array.n_elems()).filter_map(|i| array.get(i)));
    elements.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, largest), element| {
        let value = match element {
            Scalar::Pred(value) => f64::from(u8::from(value)),
            Scalar::Int(value) => value as f64,
            Scalar::Uint(value) => value as f64,
            Scalar::Float(value) | Scalar::Complex(value, _) => value,
        };
        (least.min(value), largest.max(value))
    })
}
