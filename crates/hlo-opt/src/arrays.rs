//! The arrays that go into a run and come out of it: drawn or read, written or told in a line each.

use crate::arguments::InputArgs;
use crate::console::Console;
use crate::input::load_one;
use crate::{Failure, output};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::input_needs::{LeafNeeds, find_input_needs};
use hlo_eval::draw::{Draw, DrawOptions, IndexDraw, Same, draw_inputs};
use hlo_eval::global::GlobalProgram;
use hlo_eval::npz::{NpzReader, NpzWriter};
use hlo_eval::{EvalError, Inputs, Outputs};
use hlo_ir::Module;
use hlo_ir::literal::{Literal, Scalar};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::Arc;

/// What the command line says of the inputs, parsed.
pub(crate) struct ChosenInputs<'a> {
    args: &'a InputArgs,
    draws: Vec<Draw>,
    same: Same,
    promises: ParamFacts,
}

impl<'a> ChosenInputs<'a> {
    /// Reads the flags.
    ///
    /// # Errors
    /// Wrong usage.
    pub(crate) fn parse(args: &'a InputArgs) -> Result<ChosenInputs<'a>, Failure> {
        let draws = Draw::parse_list(&args.draw).map_err(usage("--draw"))?;
        let same = Same::parse(&args.same).map_err(usage("--same"))?;
        Ok(ChosenInputs { args, draws, same, promises: ParamFacts::default() })
    }

    /// The same, with leaves that are drawn alike on the devices on which the user promises that they are equal.
    pub(crate) fn with_promises(self, promises: ParamFacts) -> ChosenInputs<'a> {
        ChosenInputs { promises, ..self }
    }

    /// The inputs of a module, for all its devices.
    ///
    /// # Errors
    /// A file cannot be read or does not fit; `--same` names a leaf that the entry has not (wrong usage).
    pub(crate) fn of(&self, module: &Module, console: &mut Console<'_>) -> Result<Inputs, Failure> {
        self.of_trial(module, 0, console)
    }

    /// The inputs of one of several trials: each has the next seed. What is read from a file is the same in all.
    ///
    /// # Errors
    /// As [`ChosenInputs::of`].
    pub(crate) fn of_trial(&self, module: &Module, trial: u64, console: &mut Console<'_>) -> Result<Inputs, Failure> {
        if let Some(path) = &self.args.inputs {
            return read_inputs(path, |archive| archive.read_inputs(module));
        }
        self.same.check(module).map_err(usage("--same"))?;
        let like = self.args.like.as_ref().map(|path| load_one(path, console)).transpose()?;
        let inputs = draw_inputs(module, like.as_ref(), &self.options(module, trial));
        let mut inputs = inputs.map_err(|e| Failure::File(e.to_string()))?;
        // Who says by name which devices get the same may break a promise.
        if self.same == Same::Auto {
            keep_promises(&mut inputs, &self.promises);
        }
        Ok(inputs)
    }

    /// The one set of inputs of a global program, for one of several trials.
    ///
    /// # Errors
    /// A file cannot be read or does not fit; flags say that devices get different inputs (wrong usage).
    pub(crate) fn of_global(&self, program: &GlobalProgram<'_>, trial: u64) -> Result<Inputs, Failure> {
        if self.args.like.is_some() || !matches!(self.same, Same::Auto | Same::All) {
            let text = "--same and --like: expected neither for a global program, which has one set of inputs";
            return Err(Failure::Usage(text.into()));
        }
        if let Some(path) = &self.args.inputs {
            return read_inputs(path, |archive| archive.read_wholes(program.module()));
        }
        program.draw(&self.options(program.module(), trial)).map_err(|e| Failure::File(e.to_string()))
    }

    /// How the inputs of a trial are drawn: by the words that the user gave, and behind them by what the program needs.
    fn options(&self, module: &Module, trial: u64) -> DrawOptions {
        let seed = self.args.seed.wrapping_add(trial);
        let is_beyond = trial % TRIALS_PER_BEYOND == 1;
        let needed = find_input_needs(module).into_iter().map(|needs| draw_of(needs, is_beyond));
        let mut draws = self.draws.clone();
        draws.extend(needed.skip(self.draws.len()));
        DrawOptions { seed, draws, same: self.same.clone() }
    }
}

/// One trial in so many, the second first, has indices beyond their bounds. A program that marks such indices with NaN has
/// enough trials without them.
const TRIALS_PER_BEYOND: u64 = 3;

/// The distribution of a leaf by what the program needs of it.
fn draw_of(needs: LeafNeeds, is_beyond: bool) -> Draw {
    match needs {
        LeafNeeds { last_index: Some(last), is_sorted, is_unique, .. } => {
            Draw::Index(IndexDraw { last, is_beyond, is_sorted, is_unique })
        }
        LeafNeeds { is_fraction: true, .. } => Draw::Uniform(1.0),
        LeafNeeds { is_positive: true, .. } => Draw::Positive(1.0),
        LeafNeeds { .. } => Draw::Normal(1.0),
    }
}

/// Gives devices one array of a leaf where a promise says that they have the same values, and those that had one array with them.
fn keep_promises(inputs: &mut Inputs, promises: &ParamFacts) {
    for (leaf, row) in inputs.leaves.iter_mut().enumerate() {
        let Some(tiles) = promises.leaf(leaf).and_then(|sharding| sharding.tile_of_device(row.len())) else { continue };
        // The first device of each group, over chains of devices.
        let mut first: Vec<usize> = (0..row.len()).collect();
        let find = |first: &[usize], mut device: usize| {
            while first[device] != device {
                device = first[device];
            }
            device
        };
        let mut of_tile: HashMap<u32, usize> = HashMap::new();
        let mut of_array: HashMap<*const Literal, usize> = HashMap::new();
        for (device, (&tile, array)) in tiles.iter().zip(row.iter()).enumerate() {
            let same_tile = *of_tile.entry(tile).or_insert(device);
            let same_array = *of_array.entry(Arc::as_ptr(array)).or_insert(device);
            for other in [same_tile, same_array] {
                let (a, b) = (find(&first, other), find(&first, device));
                first[a.max(b)] = a.min(b);
            }
        }
        for device in 0..row.len() {
            row[device] = row[find(&first, device)].clone();
        }
    }
}

/// What a flag says cannot be right.
fn usage(flag: &'static str) -> impl Fn(EvalError) -> Failure {
    move |error| Failure::Usage(format!("{flag}: {error}"))
}

fn read_inputs(
    path: &Path,
    read: impl FnOnce(&mut NpzReader<BufReader<File>>) -> Result<Inputs, EvalError>,
) -> Result<Inputs, Failure> {
    let name = path.display();
    let file = File::open(path).map_err(|e| Failure::File(format!("cannot read `{name}`: {e}")))?;
    NpzReader::new(BufReader::new(file))
        .and_then(|mut archive| read(&mut archive))
        .map_err(|e| Failure::File(format!("`{name}`: {e}")))
}

/// Writes outputs, and the inputs before them if they are given: the whole file or none.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_arrays(path: &Path, inputs: Option<&Inputs>, outputs: &Outputs) -> Result<(), Failure> {
    output::write_whole_with(path, |sink: &mut dyn Write| {
        let mut archive = NpzWriter::new(sink);
        let written = inputs.map_or(Ok(()), |inputs| archive.write_inputs(inputs));
        written
            .and_then(|()| archive.write_outputs(outputs))
            .and_then(|()| archive.finish().map(drop))
            .map_err(std::io::Error::other)
    })
}

/// A line for each output: type, range, and whether the devices agree.
pub(crate) fn summary(outputs: &Outputs) -> String {
    let mut out = String::new();
    for (i, row) in outputs.leaves.iter().enumerate() {
        let Some(first) = row.first() else { continue };
        let dims: Vec<String> = first.dims().iter().map(i64::to_string).collect();
        let shape = format!("{}[{}]", first.dtype(), dims.join(","));
        let n_elems: usize = row.iter().map(|array| array.n_elems()).sum();
        let (least, largest, n_nan) = range(row.iter().map(|array| &**array));
        let mut range = match n_elems - n_nan {
            0 if n_elems == 0 => "no elements".into(),
            0 => String::new(),
            _ => format!("from {least} to {largest}"),
        };
        if n_nan > 0 {
            let _ = write!(range, "{}NaN in {n_nan} of {n_elems}", if range.is_empty() { "" } else { ", " });
        }
        let devices = match (row.len(), row.iter().all(|array| array == first)) {
            (1, _) => String::new(),
            (n, true) => format!("  the same on all {n} devices"),
            (n, false) => format!("  different on {n} devices"),
        };
        let _ = writeln!(out, "out{i}  {shape:<24} {range}{devices}");
    }
    out
}

/// The least and the largest element (real parts of complex ones), and how many are NaN.
fn range<'l>(arrays: impl Iterator<Item = &'l Literal>) -> (f64, f64, usize) {
    let elements = arrays.flat_map(|array| (0..array.n_elems()).filter_map(|i| array.get(i)));
    elements.fold((f64::INFINITY, f64::NEG_INFINITY, 0), |(least, largest, n_nan), element| {
        let value = match element {
            Scalar::Pred(value) => f64::from(u8::from(value)),
            Scalar::Int(value) => value as f64,
            Scalar::Uint(value) => value as f64,
            Scalar::Float(value) | Scalar::Complex(value, _) => value,
        };
        (least.min(value), largest.max(value), n_nan + usize::from(value.is_nan()))
    })
}
