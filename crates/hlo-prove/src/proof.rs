//! The proof of two modules: their inputs are equal, are their outputs?

use crate::array::{Tree, Value};
use crate::certificate::Certificate;
use crate::deadline::Deadline;
use crate::devices::Classes;
use crate::effects::{ChangedEffect, changed_effects, first_effect, has_effects};
use crate::elementwise::Freedom;
use crate::functions::SEEN;
use crate::global::{self, Layouts};
use crate::norms;
use crate::promises;
use crate::prover::{Prover, Side};
use crate::rules::{Rule, Rules};
use crate::term::Node;
use crate::trace::Trace;
use crate::words::ModuleWords;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::devices::find_n_devices;
use hlo_ir::sharding::LeafSharding;
use hlo_ir::shardy::Meshes;
use hlo_ir::{DType, Dims, Module, Opcode, Shape};
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

/// What the user says of the modules.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shardings of the entry's leaves, besides those that the first module has; a promise of the caller.
    pub inputs: Vec<Option<LeafSharding>>,
    /// When to stop: what is not proved until then is unknown.
    pub deadline: Option<Instant>,
    /// Whether the first module has whole values of which the others take and give tiles; `None` where the shapes have
    /// to tell.
    pub is_global: Option<bool>,
}

/// What is known of one output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Both modules give the same, modulo the rules that [`Output::rules`] names.
    Proved,
    /// Neither proved nor refuted.
    Unknown,
}

/// One output leaf.
#[derive(Clone, Debug)]
pub struct Output {
    /// The flat number of the leaf.
    pub leaf: usize,
    /// Its place in the result.
    pub index: Vec<i64>,
    /// Whether it is equal.
    pub verdict: Verdict,
    /// The rules for exact numbers that the proof rests on; none if it holds bit for bit.
    pub modulo: Rules,
    /// Where the modules part, if it is not proved.
    pub difference: Option<String>,
    /// Whether the difference is one of numbers, inputs, ops, or of which devices and elements are taken, in results that are otherwise
    /// computed alike. Then they differ, unless what they go through hides it.
    pub parts_in_leaves: bool,
    /// Of the output of a global program: how the second module's tiles make it up.
    pub layout: Option<LeafSharding>,
    /// Whether no annotation says so, and it was proved with the first layout that does.
    pub is_layout_assumed: bool,
}

/// The proof of the effects, such as outfeeds and transfers.
#[derive(Clone, Debug)]
pub struct EffectsProof {
    /// Whether the modules have the same effects in the same order, with the same operands and tokens, on every device.
    pub verdict: Verdict,
    /// The rules for exact numbers that the proof of their operands rests on.
    pub modulo: Rules,
    /// The effect in which the modules part, if it is not proved.
    pub difference: Option<String>,
    /// The effects of which the modules have not the same number of instructions.
    pub changed: Vec<ChangedEffect>,
}

/// What is known of all outputs.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The outputs, in order.
    pub outputs: Vec<Output>,
    /// On how many devices the modules run.
    pub n_devices: usize,
    /// Whether the first module is a global program: its shapes are those of whole values.
    pub is_global: bool,
    /// How many distinct terms the proof looked at.
    pub n_terms: usize,
    /// Whether it ended at the deadline. What was proved until then is.
    pub is_out_of_time: bool,
    /// The proof of the effects.
    pub effects: EffectsProof,
}

impl Proof {
    /// Whether every output is proved, and the effects are.
    pub fn is_proved(&self) -> bool {
        self.effects.verdict == Verdict::Proved && self.has_proved_outputs()
    }

    /// Whether every output is proved.
    pub fn has_proved_outputs(&self) -> bool {
        self.outputs.iter().all(|output| output.verdict == Verdict::Proved)
    }

    /// Takes over what another run of the proof, with more freedom, proves besides, and its reasons for what it does not. `is_exact`:
    /// whether it uses no rules for exact numbers. `has_reasons`: whether its reasons are of the loops as they stand. `also`: the rules by
    /// which the modules were rewritten before it.
    fn improve(&mut self, freer: Proof, is_exact: bool, has_reasons: bool, also: Rules) {
        let used = freer.outputs.iter().fold(freer.effects.modulo, |rules, output| rules | output.modulo);
        let some = if used == Rules::NONE { Rules::of(Rule::SumFlattens) } else { used };
        for (output, mut found) in self.outputs.iter_mut().zip(freer.outputs) {
            if output.verdict == Verdict::Proved || found.verdict == Verdict::Unknown && !has_reasons {
                continue;
            }
            if found.verdict == Verdict::Proved && found.modulo == Rules::NONE && !is_exact {
                // Without the rules for exact numbers it was not proved, so it rests on some of them.
                found.modulo = some;
            }
            if found.verdict == Verdict::Proved {
                found.modulo = found.modulo | also;
            }
            *output = found;
        }
        if self.effects.verdict == Verdict::Unknown && (freer.effects.verdict == Verdict::Proved || has_reasons) {
            self.effects = freer.effects;
            if self.effects.verdict == Verdict::Proved && self.effects.modulo == Rules::NONE && !is_exact {
                self.effects.modulo = some;
            }
            if self.effects.verdict == Verdict::Proved {
                self.effects.modulo = self.effects.modulo | also;
            }
        }
        self.n_terms = self.n_terms.max(freer.n_terms);
        self.is_out_of_time = freer.is_out_of_time;
    }

    /// How many outputs are proved bit for bit.
    pub fn n_exact(&self) -> usize {
        let is_exact = |output: &&Output| output.verdict == Verdict::Proved && output.modulo == Rules::NONE;
        self.outputs.iter().filter(is_exact).count()
    }

    /// How many outputs are proved.
    pub fn n_proved(&self) -> usize {
        self.outputs.iter().filter(|output| output.verdict == Verdict::Proved).count()
    }
}

/// Why two modules cannot be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A module has no entry computation.
    NoEntry,
    /// They run on different numbers of devices.
    Devices([usize; 2]),
    /// They take different inputs.
    Inputs([String; 2]),
    /// They give different outputs.
    Outputs([String; 2]),
    /// An annotation of shardings cannot be read.
    Annotation(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoEntry => f.write_str("expected an entry computation, found none"),
            Error::Devices([a, b]) => write!(f, "expected a module on {a} devices, found one on {b}"),
            Error::Inputs([a, b]) => write!(f, "expected inputs {a}, found {b}"),
            Error::Outputs([a, b]) => write!(f, "expected outputs {a}, found {b}"),
            Error::Annotation(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for Error {}

/// Proves that `after` gives on every device what `before` gives, for any inputs that the shardings of `before` allow.
/// It needs a stack of some 100 MiB for modules of many thousand instructions.
///
/// If `before` is a global program, `after` is to take and give the tiles of its values. A module is read as a global program
/// if it runs on one device and the other on several, or if its shapes are not those of the other.
///
/// # Errors
/// The modules have different inputs, outputs or numbers of devices.
pub fn prove(before: &Module, after: &Module, options: &Options) -> Result<Proof, Error> {
    prove_chain(before, &[after], options)
}

/// As [`prove`], for modules of which each takes what the one before it gives.
///
/// # Errors
/// The modules have different numbers of devices, the first other inputs than `before`, the last other outputs, or one in
/// between other inputs than there are.
pub fn prove_chain(before: &Module, after: &[&Module], options: &Options) -> Result<Proof, Error> {
    Ok(prove_freely(before, after, options, false)?.0)
}

/// As [`prove_chain`], with a certificate of what is proved.
///
/// # Errors
/// As [`prove_chain`].
pub fn certify(before: &Module, after: &[&Module], options: &Options) -> Result<(Proof, Certificate), Error> {
    let (proof, mut certificate) = prove_freely(before, after, options, true)?;
    let proved = proof.outputs.iter().filter(|output| output.verdict == Verdict::Proved);
    certificate.outputs = proved.map(|output| output.leaf).collect();
    Ok((proof, certificate))
}

/// Proves with as much freedom as it takes. The certificate, if it is wanted, is that of the last run.
fn prove_freely(
    before: &Module,
    after: &[&Module],
    options: &Options,
    is_certified: bool,
) -> Result<(Proof, Certificate), Error> {
    if let Some(modules) = on_named_devices(before, after)
        && let Some((before, after)) = modules.split_first()
    {
        return prove_freely(before, &after.iter().collect::<Vec<_>>(), options, is_certified);
    }
    let is_global = match options.is_global.filter(|_| before.n_devices() > 1) {
        Some(is_global) => is_global,
        None => is_global_pair(before, after)?,
    };
    let on_devices;
    let before = match after.first() {
        Some(first) if is_global => {
            let mut whole = before.clone();
            whole.header.num_partitions = first.n_devices() as i64;
            on_devices = whole;
            &on_devices
        }
        Some(_) | None => before,
    };
    for module in after {
        let (a, b) = (before.n_devices(), module.n_devices());
        if a != b {
            return Err(Error::Devices([a, b]));
        }
    }
    // Windows are taken apart last: along borders their sums have many parts.
    let freedoms: &[Freedom] = match is_global {
        true => &[Freedom::Exact, Freedom::Rows, Freedom::Windows],
        false => &[Freedom::Exact, Freedom::Reassociates, Freedom::Rows],
    };
    let mut known: Option<Proof> = None;
    let mut certificate = Certificate::default();
    // The instructions that a certificate names are those of the modules as they are.
    let expanded = if is_certified { None } else { norms::expand_all(before, after) };
    // Loops that are cut otherwise come last: to look for them takes longer. Certificates do not speak of them.
    let cuts = if !is_certified && has_loops(before) && after.iter().any(|module| has_loops(module)) { 2 } else { 1 };
    let attempts =
        [false, true].into_iter().take(cuts).flat_map(|cut| freedoms.iter().map(move |&freedom| (freedom, cut)));
    for (freedom, cuts_otherwise) in attempts {
        let mut prover = Prover::new(before.n_devices(), freedom);
        prover.cuts_otherwise = cuts_otherwise;
        prover.arrays.terms.deadline = Deadline::at(options.deadline);
        prover.trace = is_certified.then(Trace::default);
        let rewritten = expanded.as_deref().and_then(<[Module]>::split_first).filter(|_| freedom != Freedom::Exact);
        let (proof, also) = match rewritten {
            Some((before, after)) => {
                let after: Vec<&Module> = after.iter().collect();
                (prove_with(&mut prover, before, &after, options, is_global)?, Rules::of(Rule::BatchNormIsSums))
            }
            None => (prove_with(&mut prover, before, after, options, is_global)?, Rules::NONE),
        };
        if is_certified {
            let modules: Vec<&Module> = std::iter::once(before).chain(after.iter().copied()).collect();
            certificate = crate::certificate::certificate(&mut prover, &modules);
        }
        let is_done = match &mut known {
            Some(known) => {
                known.improve(proof, freedom == Freedom::Exact, !cuts_otherwise, also);
                known
            }
            None => known.insert(proof),
        };
        let is_done = is_done.is_proved() || is_done.is_out_of_time;
        if is_done {
            break;
        }
    }
    Ok((known.ok_or(Error::NoEntry)?, certificate))
}

/// The modules on the devices that their annotations or collectives name, where their headers name one alone. A first module that names
/// none anywhere, beside others whose headers do, is left as it is: it is the whole of which they take tiles. `None` if no count
/// changes.
fn on_named_devices(before: &Module, after: &[&Module]) -> Option<Vec<Module>> {
    let modules = || std::iter::once(before).chain(after.iter().copied());
    let in_headers = modules().map(Module::n_devices).max().unwrap_or(1);
    let n_devices = if in_headers > 1 { in_headers } else { modules().map(find_n_devices).max().unwrap_or(1) };
    let gets_count = |module: &Module| module.n_devices() == 1 && (in_headers == 1 || find_n_devices(module) > 1);
    if n_devices == 1 || !modules().any(gets_count) {
        return None;
    }
    let on_devices = |module: &Module| {
        let mut module = module.clone();
        if gets_count(&module) {
            module.header.num_partitions = n_devices as i64;
        }
        module
    };
    Some(modules().map(on_devices).collect())
}

fn has_loops(module: &Module) -> bool {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.any(|&inst| module.inst(inst).opcode == Opcode::While)
}

/// Whether the first module's shapes are of whole values and the others' of tiles.
fn is_global_pair(before: &Module, after: &[&Module]) -> Result<bool, Error> {
    let (Some(first), Some(last)) = (after.first(), after.last()) else { return Ok(false) };
    if before.n_devices() == 1 {
        // On one device there is no tile but the whole.
        return Ok(first.n_devices() > 1);
    }
    let texts = |leaves: Vec<LeafType>| leaves.into_iter().map(|leaf| leaf.text).collect::<Vec<_>>();
    let is_same = texts(input_types(before)?) == texts(input_types(first)?)
        && texts(output_types(before)?) == texts(output_types(last)?);
    Ok(!is_same && before.n_devices() == first.n_devices() && before.header.replica_count <= 1)
}

fn prove_with(
    prover: &mut Prover,
    before: &Module,
    after: &[&Module],
    options: &Options,
    is_global: bool,
) -> Result<Proof, Error> {
    let expected_types = output_types(before)?;
    let modules: Vec<&Module> = std::iter::once(before).chain(after.iter().copied()).collect();
    // Programs with manual regions take whole values, which are the same everywhere.
    let has_wholes = is_global || modules.iter().all(|module| global::has_regions(module));
    let inputs = inputs(prover, before, options, has_wholes)?;
    // What a whole value's effect is of its tiles is not known.
    let has_comparable_effects = !is_global || !modules.iter().any(|module| has_effects(module));
    let is_comparable = [has_comparable_effects, !is_global];
    prover.begin_worlds(is_comparable);
    let expected = run(prover, before, (0, is_global), &inputs)?;
    let expected_world = prover.outside.worlds[SEEN].clone();
    prover.begin_worlds(is_comparable);
    let mut types = input_types(before)?;
    let mut found = inputs;
    let mut was_tiled = !is_global;
    for (number, &module) in after.iter().enumerate() {
        let wanted = input_types(module)?;
        if !std::mem::replace(&mut was_tiled, true) {
            found = tiles_of_inputs(prover, before, module, &found, (&types, &wanted))?;
        } else if types.iter().map(|t| &t.text).ne(wanted.iter().map(|t| &t.text)) {
            return Err(Error::Inputs([texts(&types), texts(&wanted)]));
        }
        found = run(prover, module, (1 + number, is_global), &found)?;
        types = output_types(module)?;
    }
    let found_world = prover.outside.worlds[SEEN].clone();
    let last = after.last().copied().unwrap_or(before);
    let layouts = if is_global {
        let meshes = Meshes::of(&before.header).map_err(|error| Error::Annotation(error.to_string()))?;
        Some(global::output_layouts(before, last, &meshes, expected_types.len()))
    } else if types.iter().map(|t| &t.text).ne(expected_types.iter().map(|t| &t.text)) {
        return Err(Error::Outputs([texts(&expected_types), texts(&types)]));
    } else {
        None
    };
    if types.len() != expected_types.len() {
        return Err(Error::Outputs([texts(&expected_types), texts(&types)]));
    }
    let mut outputs = Vec::with_capacity(types.len());
    for (leaf, (whole, local)) in expected_types.iter().zip(&types).enumerate() {
        let values = (expected.get(leaf), found.get(leaf));
        let mut output = Output {
            leaf,
            index: whole.index.clone(),
            verdict: Verdict::Unknown,
            modulo: Rules::NONE,
            difference: Some("the result has fewer leaves than its shape".to_string()),
            parts_in_leaves: false,
            layout: None,
            is_layout_assumed: false,
        };
        if let (Some(expected), Some(found), false) = (values.0, values.1, prover.arrays.terms.deadline.has_passed()) {
            match &layouts {
                None => judge(prover, &modules, &mut output, expected, found),
                Some(layouts) => {
                    let cut = (whole, local, &layouts[leaf]);
                    judge_tiles(prover, &modules, &mut output, (expected, found), cut)?;
                }
            }
        }
        outputs.push(output);
    }
    let worlds = (&expected_world, &found_world);
    let mut effects = judge_effects(prover, &modules, has_comparable_effects.then_some(worlds));
    if effects.verdict == Verdict::Unknown {
        withdraw(prover, &mut outputs, &expected);
    }
    if let Some(gained) = promises::gained(&modules) {
        for output in outputs.iter_mut().filter(|output| output.verdict == Verdict::Proved) {
            output.verdict = Verdict::Unknown;
            output.difference = Some(gained.clone());
        }
    }
    if prover.arrays.terms.devices.has_overflowed {
        effects.verdict = Verdict::Unknown;
        for output in outputs.iter_mut().filter(|output| output.verdict == Verdict::Proved) {
            output.verdict = Verdict::Unknown;
            output.difference = Some("a summand counts more than 2^128 times, which is not told apart".to_string());
        }
    }
    let is_out_of_time = prover.arrays.terms.deadline.has_passed();
    if is_out_of_time {
        (effects.verdict, effects.difference) = (Verdict::Unknown, None);
        for output in &mut outputs {
            (output.verdict, output.difference) = (Verdict::Unknown, None);
        }
    }
    let rules = prover.arrays.terms.rules_below();
    for (output, values) in outputs.iter_mut().zip(expected.iter().zip(&found)) {
        if output.verdict == Verdict::Proved {
            for value in [values.0, values.1] {
                prover
                    .for_each_term(value, &mut |term| output.modulo = output.modulo | rules[term.0 as usize].inexact());
            }
        }
    }
    if effects.verdict == Verdict::Proved {
        for value in [&expected_world, &found_world] {
            prover.for_each_term(value, &mut |term| effects.modulo = effects.modulo | rules[term.0 as usize].inexact());
        }
    }
    Ok(Proof {
        outputs,
        n_devices: prover.n_devices(),
        is_global,
        n_terms: prover.arrays.terms.len(),
        is_out_of_time,
        effects,
    })
}

/// Whether the worlds that the modules give are equal; `None` if they are not compared.
fn judge_effects(prover: &mut Prover, modules: &[&Module], worlds: Option<(&Value, &Value)>) -> EffectsProof {
    let difference = match worlds {
        Some((expected, found)) => prover.compare_worlds(modules, expected, found),
        None => {
            let first = first_effect(modules);
            Some(format!("{first} stands in a global program or in one of its tiles, where effects are not compared"))
        }
    };
    let verdict = if difference.is_none() { Verdict::Proved } else { Verdict::Unknown };
    let counted = modules.split_first().filter(|_| verdict == Verdict::Unknown);
    let changed = counted.map_or(Vec::new(), |(before, after)| changed_effects(before, after));
    EffectsProof { verdict, modulo: Rules::NONE, difference, changed }
}

/// Withdraws the proof of outputs that depend on what effects give: the world may answer otherwise, so that equal terms are
/// not equal numbers.
fn withdraw(prover: &Prover, outputs: &mut [Output], expected: &[Value]) {
    for (output, value) in outputs.iter_mut().zip(expected) {
        let mut holds_effects = false;
        prover.for_each_term(value, &mut |term| holds_effects |= prover.arrays.terms.holds_effects(term));
        if holds_effects && output.verdict == Verdict::Proved {
            output.verdict = Verdict::Unknown;
            output.difference = Some("it depends on what effects give, which are not proved".to_string());
        }
    }
}

/// What each device holds of the inputs of a global program.
fn tiles_of_inputs(
    prover: &mut Prover,
    global: &Module,
    local: &Module,
    inputs: &[Value],
    (wholes, tiles): (&[LeafType], &[LeafType]),
) -> Result<Vec<Value>, Error> {
    let error = || Error::Inputs([format!("the tiles of {}", texts(wholes)), texts(tiles)]);
    if wholes.len() != tiles.len() {
        return Err(error());
    }
    let layouts = global::input_layouts(global, local);
    let mut out = Vec::with_capacity(inputs.len());
    for (((value, whole), tile), layouts) in inputs.iter().zip(wholes).zip(tiles).zip(layouts) {
        if let Some(said) = layouts.contradiction(&whole.dims, prover.n_devices()) {
            let text = format!("input {}: expected it cut as the global program says, found {said}", out.len());
            return Err(Error::Annotation(text));
        }
        let fitting = layouts.fitting(&whole.dims, &tile.dims, prover.n_devices());
        let (Some((_, grid)), true) = (fitting.first(), whole.dtype == tile.dtype) else { return Err(error()) };
        out.push(prover.tile(value, &whole.dims, grid).ok_or_else(error)?);
    }
    Ok(out)
}

/// The leaves of a module's result on these leaves of its inputs.
fn run(
    prover: &mut Prover,
    module: &Module,
    (number, is_global): (usize, bool),
    inputs: &[Value],
) -> Result<Vec<Value>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let mut leaves = inputs.iter().cloned();
    let params = module.comp(entry).params.iter();
    let args = params.map(|&param| tree_of(module.shape(param), &mut leaves)).collect();
    let meshes = Meshes::of(&module.header).map_err(|error| Error::Annotation(error.to_string()))?;
    let has_device_numbers = number > 0 || !is_global || global::has_regions(module);
    let mut side = Side { module, meshes, words: ModuleWords::default(), number, has_device_numbers };
    Ok(prover.run(&mut side, entry, args).leaves())
}

/// Whether an output is equal; on which rules that rests is noted once all are compared.
fn judge(prover: &mut Prover, modules: &[&Module], output: &mut Output, expected: &Value, found: &Value) {
    if prover.arrays.is_equal(expected, found) {
        output.verdict = Verdict::Proved;
        output.difference = None;
        output.parts_in_leaves = false;
    } else if prover.elementwise.freedom > Freedom::Exact {
        // Without the rules for exact numbers a difference is not the last word.
        let (difference, parts_in_leaves) = prover.explain(modules, expected, found);
        (output.difference, output.parts_in_leaves) = (Some(difference), parts_in_leaves);
    }
}

/// Judges an output of a global program: its tiles are to be what the devices give, under one of the layouts.
fn judge_tiles(
    prover: &mut Prover,
    modules: &[&Module],
    output: &mut Output,
    (expected, found): (&Value, &Value),
    (whole, local, layouts): (&LeafType, &LeafType, &Layouts),
) -> Result<(), Error> {
    let fitting = layouts.fitting(&whole.dims, &local.dims, prover.n_devices());
    if let Some(said) = layouts.contradiction(&whole.dims, prover.n_devices()) {
        output.difference =
            Some(format!("its own module says that it is cut by {said}, the global program says otherwise"));
        return Ok(());
    }
    if (fitting.is_empty() && layouts.is_closed) || whole.dtype != local.dtype {
        return Err(Error::Outputs([format!("the tiles of {}", whole.text), local.text.clone()]));
    }
    output.difference = Some(format!("no annotation says how {} is cut into tiles {}", whole.text, local.text));
    let mut first = None;
    for (layout, grid) in fitting {
        let tiles = prover.tile(expected, &whole.dims, &grid).and_then(|tiles| prover.held(&tiles, &whole.dims, &grid));
        let (Some(tiles), Some(held)) = (tiles, prover.held(found, &whole.dims, &grid)) else { continue };
        judge(prover, modules, output, &tiles, &held);
        if output.verdict == Verdict::Proved {
            output.is_layout_assumed =
                layouts.is_assumed() && grid.of_device.iter().any(|tile| *tile != grid.of_device[0]);
            output.layout = Some(layout);
            return Ok(());
        }
        first = first.or(output.difference.take());
    }
    output.difference = first.or(output.difference.take());
    if let Some(text) = output.difference.as_mut().filter(|_| layouts.is_assumed() && whole.dims != local.dims) {
        text.push_str("; no annotation says how it is cut, `sharding=` on the second module's root would");
    }
    Ok(())
}

/// A leaf of the entry's inputs or outputs.
struct LeafType {
    index: Vec<i64>,
    text: String,
    dims: Dims,
    dtype: Option<DType>,
}

impl LeafType {
    fn of(index: &[i64], leaf: &Shape) -> LeafType {
        let array = match leaf {
            Shape::Array(array) | Shape::Buffer(array) => Some(array),
            Shape::Tuple(_) | Shape::Token | Shape::Opaque => None,
        };
        LeafType {
            index: index.to_vec(),
            text: type_text(leaf),
            dims: array.map(|array| array.dims.clone()).unwrap_or_default(),
            dtype: array.map(|array| array.dtype),
        }
    }
}

fn texts(leaves: &[LeafType]) -> String {
    leaves.iter().map(|leaf| leaf.text.as_str()).collect::<Vec<_>>().join(" ")
}

fn input_types(module: &Module) -> Result<Vec<LeafType>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let mut out = Vec::new();
    for &param in &module.comp(entry).params {
        module.shape(param).for_each_leaf(&mut |index, leaf| out.push(LeafType::of(index, leaf)));
    }
    Ok(out)
}

fn output_types(module: &Module) -> Result<Vec<LeafType>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let mut out = Vec::new();
    if let Some(shape) = module.result_shape(entry) {
        module.shapes.get(shape).for_each_leaf(&mut |index, leaf| out.push(LeafType::of(index, leaf)));
    }
    Ok(out)
}

fn type_text(leaf: &Shape) -> String {
    match leaf {
        Shape::Array(array) | Shape::Buffer(array) => format!("{}{:?}", array.dtype, array.dims.as_slice()),
        Shape::Tuple(_) => "tuple".to_string(),
        Shape::Token => "token".to_string(),
        Shape::Opaque => "opaque".to_string(),
    }
}

/// A term for each leaf of the entry's parameters, with the devices that its sharding makes equal.
fn inputs(prover: &mut Prover, module: &Module, options: &Options, has_wholes: bool) -> Result<Vec<Value>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let partitions = module.header.num_partitions.max(1) as usize;
    let n_devices = prover.n_devices();
    let mut n_leaves = 0;
    let mut out = Vec::new();
    for &param in &module.comp(entry).params {
        let flags = ParameterAttrs::of(&module.inst(param).attrs).map(|a| a.parameter_replication.clone());
        let flags = flags.unwrap_or_default();
        let mut first = 0;
        let shape = module.shape(param).clone();
        shape.for_each_leaf(&mut |_, leaf| {
            let flag = flags.get(first).copied();
            // Each device by itself, but for what shardings and flags say.
            let mut keys: Vec<Vec<(usize, u32)>> = Vec::new();
            let own = module.sharding(param).and_then(|s| s.leaf(first));
            let tiles =
                own.filter(|_| partitions > 1 && flag != Some(false)).and_then(|s| s.tile_of_device(partitions));
            if let Some(tiles) = tiles {
                keys.push((0..n_devices).map(|d| (d / partitions, tiles[d % partitions])).collect());
            }
            if flag == Some(true) {
                keys.push((0..n_devices).map(|d| (d % partitions, 0)).collect());
            }
            let said = options.inputs.get(n_leaves).and_then(Option::as_ref);
            if let Some(tiles) = said.and_then(|s| s.tile_of_device(n_devices)) {
                keys.push(tiles.into_iter().map(|tile| (0, tile)).collect());
            }
            let classes = match has_wholes {
                true => Classes::ALL_EQUAL,
                false => prover.arrays.terms.devices.classes_of_promises(&keys),
            };
            let n = match leaf {
                Shape::Array(array) | Shape::Buffer(array) => array.n_elems() as i64,
                Shape::Token => 1,
                Shape::Tuple(_) | Shape::Opaque => 0,
            };
            let term = prover.arrays.terms.leaf(Node::Input(n_leaves as u32), n, classes, Rules::NONE);
            out.push(Value::Same(prover.arrays.whole(term, n)));
            first += 1;
            n_leaves += 1;
        });
    }
    Ok(out)
}

fn tree_of(shape: &Shape, leaves: &mut dyn Iterator<Item = Value>) -> Tree {
    match shape {
        Shape::Tuple(elements) => Tree::Tuple(Rc::new(elements.iter().map(|e| tree_of(e, leaves)).collect())),
        Shape::Array(_) | Shape::Buffer(_) | Shape::Token | Shape::Opaque => match leaves.next() {
            Some(value) => Tree::Leaf(value),
            None => Tree::Tuple(Rc::new(Vec::new())),
        },
    }
}
