//! What the user says of the entry's parameters: `--replicated-params`.
//!
//! A spec is `all`, a list of flat leaf numbers and ranges (`0-12,14`), `/regex/` on the leaves' metadata names, or
//! the shardings of a sibling module (`like:FILE`; the file is read by the command line, which calls
//! [`ParamFacts::from_sibling`]).

use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::sharding::{LeafSharding, ShardingKind};
use hlo_ir::{InstId, Module};

/// What is said of each flat leaf of the entry's parameters.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParamFacts {
    leaves: Vec<Option<LeafSharding>>,
}

/// A flat leaf of the entry's parameters.
#[derive(Clone, Debug)]
pub struct ParamLeaf {
    /// The parameter.
    pub param: InstId,
    /// Leaf number within the parameter.
    pub leaf_idx: usize,
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
    /// What is wrong with the spec: a number out of range, a bad range or pattern, a pattern that matches nothing.
    pub fn parse(spec: &str, module: &Module) -> Result<ParamFacts, String> {
        let leaves = entry_leaves(module);
        let mut facts = ParamFacts { leaves: vec![None; leaves.len()] };
        let replicated = || Some(LeafSharding::new(ShardingKind::Replicated));
        let spec = spec.trim();
        if spec.is_empty() {
            return Ok(facts);
        }
        if spec == "all" {
            facts.leaves.fill_with(replicated);
            return Ok(facts);
        }
        if let Some(pattern) = spec.strip_prefix('/').and_then(|s| s.strip_suffix('/')) {
            let regex = regex_lite::Regex::new(pattern).map_err(|e| format!("pattern /{pattern}/: {e}"))?;
            let mut n_found = 0;
            for (slot, leaf) in facts.leaves.iter_mut().zip(&leaves) {
                let name = module.inst(leaf.param).marks.as_ref().and_then(|m| m.op_name());
                if name.is_some_and(|name| regex.is_match(name)) {
                    *slot = replicated();
                    n_found += 1;
                }
            }
            return match n_found {
                0 => Err(format!("pattern /{pattern}/ matches the metadata name of no entry parameter")),
                _ => Ok(facts),
            };
        }
        for part in spec.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                text.trim()
                    .parse::<usize>()
                    .map_err(|_| format!("expected a leaf number or a range a-b, found `{part}`"))
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("expected a range with its smaller number first, found `{part}`"));
            }
            if last >= leaves.len() {
                return Err(format!("expected leaf numbers below {} (the entry's leaves), found {last}", leaves.len()));
            }
            facts.leaves[first..=last].fill_with(replicated);
        }
        Ok(facts)
    }

    /// The shardings of a sibling module's entry parameters, leaf by leaf.
    ///
    /// # Errors
    /// The sibling has another number of leaves, or annotates none.
    pub fn from_sibling(sibling: &Module, module: &Module) -> Result<ParamFacts, String> {
        let (theirs, ours) = (entry_leaves(sibling), entry_leaves(module));
        if theirs.len() != ours.len() {
            return Err(format!("expected {} entry leaves in the sibling, found {}", ours.len(), theirs.len()));
        }
        let leaves: Vec<Option<LeafSharding>> = theirs
            .iter()
            .map(|leaf| sibling.sharding(leaf.param).and_then(|s| s.leaf(leaf.leaf_idx)).cloned())
            .collect();
        if leaves.iter().all(Option::is_none) {
            return Err("expected `sharding=` on entry parameters of the sibling, found none".into());
        }
        Ok(ParamFacts { leaves })
    }

    /// What is said of flat leaf `leaf`.
    pub fn leaf(&self, leaf: usize) -> Option<&LeafSharding> {
        self.leaves.get(leaf)?.as_ref()
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
