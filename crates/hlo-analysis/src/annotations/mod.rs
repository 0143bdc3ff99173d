//! What the user says of the entry's parameters: `--replicated-params`.
//!
//! A spec is `optimizer` ([`OptimizerPromise`]), `all`, a list of flat leaf numbers and ranges (`0-12,14`), `/regex/`
//! on the leaves' metadata names, or the shardings of a sibling module (`like:FILE`; the file is read by the command
//! line, which calls [`ParamFacts::from_sibling`]). It is a promise, which nobody can check in full; where it
//! contradicts the module's own
//! `sharding=`, it is an error ([`Contradiction`]). `stacked:` before `all`, a list or a pattern promises that the leaves are stacks of
//! equal copies, one for each device, as `jax.pmap` takes them: their first dim is cut, and each device has one element of it.

mod contradiction;
mod optimizer;
mod sibling;

pub use contradiction::{Contradiction, differing_devices, is_stack, own_sharding, spec_of};

pub use optimizer::OptimizerPromise;

use contradiction::find_contradiction;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::sharding::{LeafSharding, ShardingKind};
use hlo_ir::{InstId, Module, Shape};
use std::fmt;

/// The spec that promises weights, optimizer state and the scalars of updates ([`OptimizerPromise`]).
pub const OPTIMIZER: &str = "optimizer";

/// What is said of each flat leaf of the entry's parameters.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParamFacts {
    leaves: Vec<Option<LeafSharding>>,
}

/// Why a spec says nothing of the entry's parameters, or nothing that can be true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParamFactsError {
    /// A pattern that is no regular expression.
    Pattern {
        /// As written.
        pattern: String,
        /// What the library says.
        why: String,
    },
    /// A pattern that no metadata name matches.
    MatchesNothing {
        /// As written.
        pattern: String,
    },
    /// Neither a number nor a range.
    NoNumber {
        /// As written.
        part: String,
    },
    /// A range whose larger number stands first.
    Backwards {
        /// As written.
        part: String,
    },
    /// A leaf that the entry does not have.
    OutOfRange {
        /// Leaves of the entry.
        n_leaves: usize,
        /// The number.
        leaf: usize,
    },
    /// The sibling's entry has more or fewer leaves.
    OtherLeaves {
        /// Leaves of the module's entry.
        expected: usize,
        /// Leaves of the sibling's.
        found: usize,
    },
    /// A leaf of the sibling's entry that, cut as it says, has another shape.
    OtherShape {
        /// The leaf.
        leaf: usize,
        /// Of the module's entry.
        expected: Box<Shape>,
        /// Of the sibling's, whole.
        found: Box<Shape>,
    },
    /// The sibling annotates no parameter.
    NoShardings,
    /// The module says something else.
    Contradicted(Box<Contradiction>),
    /// A leaf that is no stack of one part for each device.
    NoStack {
        /// The leaf's flat number.
        leaf: usize,
        /// The leaf in words.
        described: String,
    },
}

impl fmt::Display for ParamFactsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamFactsError::Pattern { pattern, why } => write!(f, "pattern /{pattern}/: {why}"),
            ParamFactsError::MatchesNothing { pattern } => {
                write!(f, "pattern /{pattern}/ matches the metadata name of no entry parameter")
            }
            ParamFactsError::NoNumber { part } => write!(f, "expected a leaf number or a range a-b, found `{part}`"),
            ParamFactsError::Backwards { part } => {
                write!(f, "expected a range with its smaller number first, found `{part}`")
            }
            ParamFactsError::OutOfRange { n_leaves, leaf } => {
                write!(f, "expected leaf numbers below {n_leaves} (the entry's leaves), found {leaf}")
            }
            ParamFactsError::OtherLeaves { expected, found } => {
                write!(f, "expected {expected} entry leaves in the sibling, found {found}")
            }
            ParamFactsError::OtherShape { leaf, expected, found } => {
                let texts = [expected, found].map(|shape| shape.to_string());
                write!(
                    f,
                    "expected entry leaf {leaf} of the sibling to be {}, whole or cut, found {}",
                    texts[0], texts[1]
                )
            }
            ParamFactsError::NoShardings => {
                f.write_str("expected `sharding=` on entry parameters of the sibling, found none")
            }
            ParamFactsError::Contradicted(contradiction) => contradiction.fmt(f),
            ParamFactsError::NoStack { leaf, described } => write!(
                f,
                "expected a stack with one part for each device, found entry leaf {leaf} ({described}): its first dim has \
                 another size than 1, or its `sharding=` does not cut the first dim alone"
            ),
        }
    }
}

impl std::error::Error for ParamFactsError {}

/// A flat leaf of the entry's parameters.
#[derive(Clone, Debug)]
pub struct ParamLeaf {
    /// The parameter.
    pub param: InstId,
    /// Leaf number within the parameter.
    pub leaf_idx: usize,
}

impl ParamLeaf {
    /// The leaf in words: ``parameter 3 `%p` ``, ``parameter 1{0} `%s` `` for a part of a tuple.
    pub fn describe(&self, module: &Module) -> String {
        let number = ParameterAttrs::of(&module.inst(self.param).attrs).map_or(0, |p| p.number);
        let mut indices = Vec::new();
        module.shape(self.param).for_each_leaf(&mut |index, _| {
            indices.push(index.iter().map(|i| format!("{{{i}}}")).collect::<String>());
        });
        let index = indices.get(self.leaf_idx).map_or("", String::as_str);
        format!("parameter {number}{index} `%{}`", module.inst_name(self.param))
    }
}

/// The flat leaves of the entry's parameters, in order: the numbers that `--replicated-params` uses.
pub fn entry_leaves(module: &Module) -> Vec<ParamLeaf> {
    let mut out = Vec::new();
    let Some(entry) = module.entry() else { return out };
    for &param in &module.comp(entry).params {
        for leaf_idx in 0..module.shape(param).n_leaves() {
            out.push(ParamLeaf { param, leaf_idx });
        }
    }
    out
}

impl ParamFacts {
    /// The facts of a spec.
    ///
    /// # Errors
    /// What is wrong with the spec: a number out of range, a bad range or pattern, a pattern that matches nothing; or it contradicts
    /// the module.
    pub fn parse(spec: &str, module: &Module) -> Result<ParamFacts, ParamFactsError> {
        match spec.trim().strip_prefix("stacked:") {
            Some(spec) => ParamFacts::read(spec, module)?.stacked(module),
            None => ParamFacts::read(spec, module)?.not_contradicted(module),
        }
    }

    /// The facts, if all leaves that they are about are stacks.
    fn stacked(self, module: &Module) -> Result<ParamFacts, ParamFactsError> {
        let leaves = entry_leaves(module);
        let mut promised = leaves.iter().enumerate().filter(|(number, _)| self.leaf(*number).is_some());
        match promised.find(|(_, leaf)| !is_stack(module, leaf)) {
            Some((number, leaf)) => Err(ParamFactsError::NoStack { leaf: number, described: leaf.describe(module) }),
            None => Ok(self),
        }
    }

    /// The facts, unless the module contradicts them.
    fn not_contradicted(self, module: &Module) -> Result<ParamFacts, ParamFactsError> {
        match find_contradiction(&self, module) {
            Some(found) => Err(ParamFactsError::Contradicted(Box::new(found))),
            None => Ok(self),
        }
    }

    /// What a spec says, whatever the module says.
    fn read(spec: &str, module: &Module) -> Result<ParamFacts, ParamFactsError> {
        let leaves = entry_leaves(module);
        let mut facts = ParamFacts { leaves: vec![None; leaves.len()] };
        let replicated = || Some(LeafSharding::new(ShardingKind::Replicated));
        let spec = spec.trim();
        if spec.is_empty() {
            return Ok(facts);
        }
        if spec == OPTIMIZER {
            return Ok(OptimizerPromise::find(module).facts);
        }
        if spec == "all" {
            facts.leaves.fill_with(replicated);
            return Ok(facts);
        }
        if let Some(pattern) = spec.strip_prefix('/').and_then(|s| s.strip_suffix('/')) {
            let regex = regex_lite::Regex::new(pattern)
                .map_err(|e| ParamFactsError::Pattern { pattern: pattern.into(), why: e.to_string() })?;
            let mut n_found = 0;
            for (slot, leaf) in facts.leaves.iter_mut().zip(&leaves) {
                let name = module.inst(leaf.param).marks.as_ref().and_then(|m| m.op_name());
                if name.is_some_and(|name| regex.is_match(name)) {
                    *slot = replicated();
                    n_found += 1;
                }
            }
            return match n_found {
                0 => Err(ParamFactsError::MatchesNothing { pattern: pattern.into() }),
                _ => Ok(facts),
            };
        }
        for part in spec.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number =
                |text: &str| text.trim().parse::<usize>().map_err(|_| ParamFactsError::NoNumber { part: part.into() });
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(ParamFactsError::Backwards { part: part.into() });
            }
            if last >= leaves.len() {
                return Err(ParamFactsError::OutOfRange { n_leaves: leaves.len(), leaf: last });
            }
            facts.leaves[first..=last].fill_with(replicated);
        }
        Ok(facts)
    }

    /// What is said of flat leaf `leaf`.
    pub fn leaf(&self, leaf: usize) -> Option<&LeafSharding> {
        self.leaves.get(leaf)?.as_ref()
    }

    /// Promises that flat leaf `leaf` is the same on all devices, whatever was said of it.
    pub(crate) fn promise(&mut self, leaf: usize) {
        if self.leaves.len() <= leaf {
            self.leaves.resize(leaf + 1, None);
        }
        self.leaves[leaf] = Some(LeafSharding::new(ShardingKind::Replicated));
    }

    /// Takes back what is said of flat leaf `leaf`, after a pass has made it something else.
    pub fn forget(&mut self, leaf: usize) {
        if let Some(fact) = self.leaves.get_mut(leaf) {
            *fact = None;
        }
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.leaves.iter().all(Option::is_none)
    }
}

/// The `parameter_replication` flags of a parameter.
pub(crate) fn replication_flags(module: &Module, param: InstId) -> &[bool] {
    ParameterAttrs::of(&module.inst(param).attrs).map_or(&[], |p| &p.parameter_replication)
}
