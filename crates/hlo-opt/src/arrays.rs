//! The arrays that go into a run and come out of it: drawn or read, written or told in a line each.

use crate::arguments::InputArgs;
use crate::console::Console;
use crate::input::load_one;
use crate::{Failure, output};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::input_needs::{LeafNeeds, find_input_needs};
use hlo_analysis::thresholds::{LeafThresholds, find_thresholds};
use hlo_eval::draw::{Draw, DrawOptions, IndexDraw, NearDraw, Same, draw_inputs};
use hlo_eval::global::GlobalProgram;
use hlo_eval::npz::{NpzReader, NpzWriter};
use hlo_eval::{EvalError, Inputs, Outputs, entry_leaves};
use hlo_ir::literal::{Literal, Scalar};
use hlo_ir::{ArrayShape, Module, NumberClass};
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
        keep_promises(&mut inputs, &self.promises);
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
        let mut draws = self.draws.clone();
        draws.extend(draws_of_trial(module, trial).into_iter().skip(self.draws.len()));
        DrawOptions { seed, draws, same: self.same.clone() }
    }

    /// Whether trials after the first draw what the program may not be meant for: not where the user gives all inputs.
    pub(crate) fn draws_by_need(&self) -> bool {
        self.args.inputs.is_none()
    }

    /// Whether a trial has inputs of which NaN may come on purpose: indices beyond their bounds, large numbers, zeros, and infinities where they
    /// are checked for.
    pub(crate) fn may_give_nan(&self, module: &Module, trial: u64) -> bool {
        let has_indices = || find_input_needs(module).iter().any(|needs| needs.last_index.is_some());
        // What a program compares indices with are their bounds: JAX answers others with NaN.
        let has_bounds = || {
            let mut leaves = find_input_needs(module).into_iter().zip(find_thresholds(module));
            leaves.any(|(needs, of)| needs.last_index.is_some() && !of.values.is_empty())
        };
        self.draws_by_need()
            && match Trial::of(trial) {
                Trial::Plain => false,
                Trial::Small => has_bounds(),
                Trial::Beyond => has_indices(),
                Trial::Large | Trial::Special | Trial::Negative => true,
            }
    }

    /// How many trials a module has where the user does not say: one of each kind, and more where counters are compared with constants.
    pub(crate) fn n_trials(&self, module: &Module) -> u64 {
        if self.args.inputs.is_some() {
            return 1;
        }
        let leaves = entry_leaves(module).into_iter().zip(find_thresholds(module)).skip(self.draws.len());
        let of_counters = leaves.filter(|(leaf, of)| leaf.shape.n_elems() == 1 && !of.ends_loop);
        let n_values = of_counters.map(|(_, of)| of.values.len() as u64).max().unwrap_or(0);
        let n_checked = find_thresholds(module).iter().filter(|of| of.is_checked).count();
        let n_least = if n_checked > 2 { MOST_TRIALS } else { N_KINDS };
        (1 + 2 * n_values).clamp(n_least, MOST_TRIALS)
    }
}

/// The inputs that a trial draws beside plain ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// None.
    Plain,
    /// Indices beyond their bounds, values a little larger, and thresholds.
    Beyond,
    /// Small values, equal values, and thresholds.
    Small,
    /// Large values, and thresholds.
    Large,
    /// Zeros, an infinity where the program checks for one, and thresholds.
    Special,
    /// Floats below zero, a NaN where the program checks for one, and thresholds.
    Negative,
}

impl Trial {
    fn of(trial: u64) -> Trial {
        let kinds = [Trial::Plain, Trial::Beyond, Trial::Small, Trial::Large, Trial::Special, Trial::Negative];
        kinds[(trial % N_KINDS) as usize]
    }

    /// The size of values; what must be positive is of the size of its square, as second moments are.
    fn size(self) -> f64 {
        match self {
            Trial::Plain | Trial::Special | Trial::Negative => 1.0,
            // Norms are clipped, and a saturated function is not reached yet.
            Trial::Beyond => 3.0,
            Trial::Small => 1e-4,
            Trial::Large => 1e2,
        }
    }
}

/// Kinds of trials.
const N_KINDS: u64 = 6;

/// Trials that a program has at the most, if the user does not say how many.
const MOST_TRIALS: u64 = 2 * N_KINDS;

/// One array of so many is zero where trials have zeros.
const ZERO_ONE_IN: u64 = 4;

/// How far above the largest threshold a number that stands alone lies.
const FAR_ABOVE: f64 = 1024.0;

/// Iterations that a threshold may ask of a loop.
const MOST_ITERATIONS: f64 = 64.0;

/// The distribution of each leaf in a trial.
fn draws_of_trial(module: &Module, trial: u64) -> Vec<Draw> {
    let needs = find_input_needs(module);
    let kind = Trial::of(trial);
    if trial == 0 {
        return needs.into_iter().map(|needs| draw_of(needs, false)).collect();
    }
    let thresholds = find_thresholds(module);
    let shapes: Vec<ArrayShape> = entry_leaves(module).into_iter().map(|leaf| leaf.shape).collect();
    let (mut n_preds, mut n_masks) = (0, 0);
    let draws = needs.iter().zip(&thresholds).zip(&shapes).map(|((needs, of), shape)| {
        if shape.dtype.class() == NumberClass::Pred {
            let number = if shape.n_elems() == 1 { &mut n_preds } else { &mut n_masks };
            *number += 1;
            return of_preds(shape, *number - 1, trial);
        }
        let sized = of_size(draw_of(*needs, kind == Trial::Beyond), *needs, of, shape, kind);
        with_thresholds(sized, *needs, of, shape, trial)
    });
    let mut draws: Vec<Draw> = draws.collect();
    if kind != Trial::Special && kind != Trial::Negative {
        return draws;
    }
    let is_checked = |leaf: &usize| thresholds[*leaf].is_checked && shapes[*leaf].dtype.is_float();
    let checked: Vec<usize> = (0..draws.len()).filter(is_checked).collect();
    for (number, (draw, shape)) in draws.iter_mut().zip(&shapes).enumerate() {
        if !shape.dtype.is_float() || shape.n_elems() == 1 {
            continue;
        }
        if kind == Trial::Special {
            // Some arrays are as new weights and new state are: all zero.
            let is_zero = (number as u64 + trial / N_KINDS).is_multiple_of(ZERO_ONE_IN);
            *draw = if is_zero { Draw::Constant(0.0) } else { Draw::WithZeros(Box::new(draw.clone())) };
        } else if number % 2 == 1 && thresholds[number].values.contains(&0.0) {
            // Beside arrays without zeros, where the program asks for them.
            *draw = Draw::WithZeros(Box::new(draw.clone()));
        }
    }
    if !checked.is_empty() {
        let turn = trial / N_KINDS + u64::from(kind == Trial::Negative);
        let leaf = checked[turn as usize % checked.len()];
        let otherwise = Box::new(draws[leaf].clone());
        draws[leaf] = if kind == Trial::Special { Draw::Infinite(otherwise) } else { Draw::NotANumber(otherwise) };
    }
    draws
}

/// Booleans: masks are all empty in one trial and all full in another, and in two more each second one is full. Those that stand alone
/// take turns, so that four trials have all pairs of two of them; `place` is the number of the leaf among masks, or among the others.
fn of_preds(shape: &ArrayShape, place: u64, trial: u64) -> Draw {
    if shape.n_elems() == 1 {
        return Draw::Constant(f64::from(u8::from((trial - 1) >> (place % 2) & 1 == 1)));
    }
    match Trial::of(trial) {
        Trial::Plain | Trial::Beyond => Draw::Normal(1.0),
        Trial::Small => Draw::Constant(0.0),
        Trial::Large => Draw::Constant(1.0),
        Trial::Special => Draw::Constant((place % 2) as f64),
        Trial::Negative => Draw::Constant(((place + 1) % 2) as f64),
    }
}

/// A counter: in each trial of another size.
fn counter(is_signed: bool, ends_loop: bool, kind: Trial) -> Draw {
    Draw::Constant(match kind {
        Trial::Plain => 3.0,
        Trial::Beyond if ends_loop => 9.0,
        Trial::Small if ends_loop => 33.0,
        Trial::Large if ends_loop => 64.0,
        Trial::Special if is_signed && !ends_loop => -3.0,
        Trial::Special => 0.0,
        Trial::Negative => 5.0,
        Trial::Beyond => 11.0,
        Trial::Small => 1_234.0,
        Trial::Large => 100_003.0,
    })
}

/// A plain distribution, with the sizes that the kind of a trial looks for.
fn of_size(plain: Draw, needs: LeafNeeds, of: &LeafThresholds, shape: &ArrayShape, kind: Trial) -> Draw {
    let is_float = shape.dtype.is_float();
    match plain {
        Draw::Positive(scale) if !needs.is_positive && is_float && kind == Trial::Negative => Draw::Negative(scale),
        Draw::Positive(_) if !needs.is_positive && !is_float => {
            of_size(Draw::Normal(1.0), LeafNeeds::default(), of, shape, kind)
        }
        // The only element of a leaf is a counter rather than data.
        Draw::Normal(_) if !is_float && shape.n_elems() == 1 => {
            counter(shape.dtype.class() == NumberClass::Signed, of.ends_loop, kind)
        }
        Draw::Normal(_) if !is_float && !of.ends_loop => Draw::Wide,
        Draw::Normal(_) if is_float && kind == Trial::Small && of.is_ordered => Draw::Quarters,
        Draw::Normal(scale) if is_float && kind == Trial::Negative => Draw::Negative(scale),
        Draw::Normal(_) if is_float => Draw::Normal(kind.size()),
        Draw::Positive(_) if is_float => Draw::Positive(kind.size() * kind.size()),
        plain => plain,
    }
}

/// A distribution with elements near the thresholds of a leaf that meet its needs.
fn with_thresholds(otherwise: Draw, needs: LeafNeeds, of: &LeafThresholds, shape: &ArrayShape, trial: u64) -> Draw {
    // A program that asks whether a divisor is zero has an answer for it.
    let is_special = Trial::of(trial) == Trial::Special;
    let fits = |value: &&f64| {
        (!needs.is_positive || **value > 0.0 || is_special && **value == 0.0)
            && (!needs.is_nonzero || **value != 0.0 || is_special)
            && (!needs.is_fraction || **value < 1.0)
            && (!of.ends_loop || value.abs() <= MOST_ITERATIONS)
    };
    let mut values: Vec<f64> = of.values.iter().filter(fits).copied().collect();
    if let (Some(last), 1) = (needs.last_index, shape.n_elems()) {
        let bounds = [0.0, last as f64, last as f64 + 1.0, -1.0];
        values.extend(bounds.into_iter().filter(|bound| shape.dtype.class() == NumberClass::Signed || *bound >= 0.0));
    }
    values.sort_by(f64::total_cmp);
    values.dedup();
    // The order of indices and their being unique is promised of all of them.
    let is_alone = shape.n_elems() == 1;
    if values.is_empty() || !is_alone && (needs.is_sorted || needs.is_unique) {
        return otherwise;
    }
    // A loss scale lies far above the number below which it may not fall.
    let most = values.last().copied().filter(|most| *most > 0.0 && !needs.is_fraction && !of.ends_loop);
    if let (true, Some(most)) = (is_alone && shape.dtype.is_float(), most) {
        values.push(FAR_ABOVE * most);
    }
    // Beyond the last index first: later trials have arrays of zeros.
    let (n_values, turn) = (values.len() as u64, trial - 1);
    let turn =
        if needs.last_index.is_some() { turn / n_values * n_values + (n_values - 1 - turn % n_values) } else { turn };
    Draw::Near(NearDraw { values: values.into(), turn, otherwise: Box::new(otherwise) })
}

/// The distribution of a leaf by what the program needs of it.
fn draw_of(needs: LeafNeeds, is_beyond: bool) -> Draw {
    match needs {
        LeafNeeds { last_index: Some(last), is_sorted, is_unique, .. } => {
            Draw::Index(IndexDraw { last, is_beyond, is_sorted, is_unique })
        }
        LeafNeeds { is_fraction: true, .. } => Draw::Uniform(1.0),
        LeafNeeds { is_positive: true, .. } | LeafNeeds { is_nonzero: true, .. } => Draw::Positive(1.0),
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
