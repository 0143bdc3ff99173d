//! The proof of two modules: their inputs are equal, are their outputs?

use crate::array::{Tree, Value};
use crate::prover::{Prover, Side};
use crate::rules::{Rule, Rules};
use crate::term::Node;
use crate::words::ModuleWords;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::sharding::LeafSharding;
use hlo_ir::{Module, Shape};
use std::fmt;
use std::rc::Rc;

/// What the user says of the modules.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shardings of the entry's leaves, besides those that the first module has; a promise of the caller.
    pub inputs: Vec<Option<LeafSharding>>,
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
}

/// What is known of all outputs.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The outputs, in order.
    pub outputs: Vec<Output>,
    /// On how many devices the modules run.
    pub n_devices: usize,
    /// How many distinct terms the proof looked at.
    pub n_terms: usize,
}

impl Proof {
    /// Whether every output is proved.
    pub fn is_proved(&self) -> bool {
        self.outputs.iter().all(|output| output.verdict == Verdict::Proved)
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
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoEntry => f.write_str("expected an entry computation, found none"),
            Error::Devices([a, b]) => write!(f, "expected a module on {a} devices, found one on {b}"),
            Error::Inputs([a, b]) => write!(f, "expected inputs {a}, found {b}"),
            Error::Outputs([a, b]) => write!(f, "expected outputs {a}, found {b}"),
        }
    }
}

impl std::error::Error for Error {}

/// Proves that `after` gives on every device what `before` gives, for any inputs that the shardings of `before` allow.
/// It needs a stack of some 100 MiB for modules of many thousand instructions.
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
    for module in after {
        let (a, b) = (before.n_devices(), module.n_devices());
        if a != b {
            return Err(Error::Devices([a, b]));
        }
    }
    let exact = prove_with(before, after, options, false)?;
    if exact.is_proved() {
        return Ok(exact);
    }
    let mut proof = prove_with(before, after, options, true)?;
    let used = proof.outputs.iter().fold(Rules::NONE, |rules, output| rules | output.modulo);
    for (output, exact) in proof.outputs.iter_mut().zip(exact.outputs) {
        if exact.verdict == Verdict::Proved {
            *output = exact;
        } else if output.verdict == Verdict::Proved && output.modulo == Rules::NONE {
            // Without those rules it was not proved, so it rests on some of them.
            output.modulo = if used == Rules::NONE { Rules::of(Rule::SumFlattens) } else { used };
        }
    }
    Ok(proof)
}

fn prove_with(before: &Module, after: &[&Module], options: &Options, reassociates: bool) -> Result<Proof, Error> {
    let mut prover = Prover::new(before.n_devices(), reassociates);
    let expected_types = output_types(before)?;
    let inputs = inputs(&mut prover, before, options)?;
    let expected = run(&mut prover, before, 0, &inputs)?;
    let mut types = input_types(before)?;
    let mut found = inputs;
    for &module in after {
        let wanted = input_types(module)?;
        if types != wanted {
            return Err(Error::Inputs([types, wanted].map(|t| t.join(" "))));
        }
        found = run(&mut prover, module, 1, &found)?;
        types = output_types(module)?.into_iter().map(|output| output.1).collect();
    }
    if types.len() != expected_types.len() || expected_types.iter().zip(&types).any(|(a, b)| a.1 != *b) {
        let expected: Vec<&str> = expected_types.iter().map(|o| o.1.as_str()).collect();
        return Err(Error::Outputs([expected.join(" "), types.join(" ")]));
    }
    let last = after.last().copied().unwrap_or(before);
    let mut outputs: Vec<Output> = expected_types
        .iter()
        .enumerate()
        .map(|(leaf, (index, _))| judge(&mut prover, &[before, last], leaf, index, expected.get(leaf), found.get(leaf)))
        .collect();
    let rules = prover.arrays.terms.rules_below();
    for (output, values) in outputs.iter_mut().zip(expected.iter().zip(&found)) {
        if output.verdict == Verdict::Proved {
            for value in [values.0, values.1] {
                prover
                    .for_each_term(value, &mut |term| output.modulo = output.modulo | rules[term.0 as usize].inexact());
            }
        }
    }
    Ok(Proof { outputs, n_devices: prover.n_devices(), n_terms: prover.arrays.terms.len() })
}

/// The leaves of a module's result on these leaves of its inputs.
fn run(prover: &mut Prover, module: &Module, number: usize, inputs: &[Value]) -> Result<Vec<Value>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let mut leaves = inputs.iter().cloned();
    let params = module.comp(entry).params.iter();
    let args = params.map(|&param| tree_of(module.shape(param), &mut leaves)).collect();
    let mut side = Side { module, words: ModuleWords::default(), number };
    Ok(prover.run(&mut side, entry, args).leaves())
}

/// Whether an output is equal; on which rules that rests is noted once all are compared.
fn judge(
    prover: &mut Prover,
    modules: &[&Module; 2],
    leaf: usize,
    index: &[i64],
    expected: Option<&Value>,
    found: Option<&Value>,
) -> Output {
    let (verdict, difference) = match (expected, found) {
        (Some(a), Some(b)) if prover.arrays.is_equal(a, b) => (Verdict::Proved, None),
        // Without the rules for exact numbers a difference is not the last word.
        (Some(_), Some(_)) if !prover.elementwise.reassociates => (Verdict::Unknown, None),
        (Some(a), Some(b)) => (Verdict::Unknown, Some(prover.explain(modules, a, b))),
        (_, _) => (Verdict::Unknown, Some("the result has fewer leaves than its shape".to_string())),
    };
    Output { leaf, index: index.to_vec(), verdict, modulo: Rules::NONE, difference }
}

/// Shapes of the entry's leaves, as text.
fn input_types(module: &Module) -> Result<Vec<String>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let mut out = Vec::new();
    for &param in &module.comp(entry).params {
        module.shape(param).for_each_leaf(&mut |_, leaf| out.push(type_text(leaf)));
    }
    Ok(out)
}

fn output_types(module: &Module) -> Result<Vec<(Vec<i64>, String)>, Error> {
    let entry = module.entry().ok_or(Error::NoEntry)?;
    let mut out = Vec::new();
    if let Some(shape) = module.result_shape(entry) {
        module.shapes.get(shape).for_each_leaf(&mut |index, leaf| out.push((index.to_vec(), type_text(leaf))));
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
fn inputs(prover: &mut Prover, module: &Module, options: &Options) -> Result<Vec<Value>, Error> {
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
            let classes = prover.arrays.terms.devices.classes_of_promises(&keys);
            let n = match leaf {
                Shape::Array(array) | Shape::Buffer(array) => array.n_elems() as i64,
                Shape::Tuple(_) | Shape::Token | Shape::Opaque => 0,
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
