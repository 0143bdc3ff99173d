//! `--replicated-params`: its `like:FILE` form needs a file, the others are the analysis crate's.

use crate::Failure;
use crate::console::Console;
use crate::input::{Loaded, Part, Source, load_one};
use hlo_analysis::annotations::{
    Contradiction, OPTIMIZER, OptimizerPromise, ParamFacts, ParamFactsError, entry_leaves, spec_of,
};
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use std::path::Path;

/// The longest spec that advice repeats.
const MAX_SHOWN_BYTES: usize = 200;

/// Leaves that were dropped from a promise and are named.
const MAX_DROPPED: usize = 4;

/// The leaves that `optimizer` promises, and those that it leaves out.
fn told(module: &Module, promise: &OptimizerPromise) -> String {
    let OptimizerPromise { promised, dropped, .. } = promise;
    let promised = match promised.as_slice() {
        [] => "no leaf: no output is made of a parameter of its type and equal on all devices".to_string(),
        leaves => spec_of(leaves),
    };
    let mut out = format!("note: --replicated-params optimizer promises {promised}\n");
    let leaves = entry_leaves(module);
    for (leaf, output) in dropped.iter().take(MAX_DROPPED) {
        let described = leaves.get(*leaf).map_or_else(String::new, |leaf| leaf.describe(module));
        out.push_str(&format!("  dropped {leaf} ({described}): output {output} is not computed from equal values\n"));
    }
    if let Some(n_more) = dropped.len().checked_sub(MAX_DROPPED).filter(|&n| n > 0) {
        out.push_str(&format!("  and {n_more} more\n"));
    }
    out
}

/// What the user said, with the sibling module already read.
pub(crate) struct Said {
    spec: Option<String>,
    sibling: Option<Module>,
}

impl Said {
    /// Takes the option's value; reads the sibling of `like:FILE`.
    ///
    /// # Errors
    /// The sibling cannot be read or is no valid module.
    pub(crate) fn read(spec: Option<&str>, console: &mut Console<'_>) -> Result<Said, Failure> {
        let file = spec.and_then(|s| s.trim().strip_prefix("like:"));
        let sibling = file.map(|file| load_one(Path::new(file), console)).transpose()?;
        Ok(Said { spec: spec.map(Into::into), sibling })
    }

    /// What is said of the parameters of a module that was read from `part` of `source`.
    ///
    /// # Errors
    /// The spec does not fit the module (wrong usage), or contradicts its annotations (a diagnostic at the parameter).
    pub(crate) fn of(
        &self,
        source: &Source,
        part: Part<'_>,
        loaded: &Loaded,
        console: &mut Console<'_>,
    ) -> Result<ParamFacts, Failure> {
        let module = &loaded.module;
        if self.spec.as_deref().map(str::trim) == Some(OPTIMIZER) {
            let promise = OptimizerPromise::find(module);
            console.say(&told(module, &promise));
            return Ok(promise.facts);
        }
        let has_color = console.has_color;
        let facts = match (&self.sibling, &self.spec) {
            (Some(sibling), _) => ParamFacts::from_sibling(sibling, module),
            (None, Some(spec)) => ParamFacts::parse(spec, module),
            (None, None) => Ok(ParamFacts::default()),
        };
        facts.map_err(|error| match error {
            ParamFactsError::Contradicted(found) => {
                Failure::Diagnostics(source.render(part, Some(loaded), vec![self.diagnostic(&found)], has_color))
            }
            error => Failure::Usage(format!("--replicated-params: {error}")),
        })
    }

    /// The promise, what contradicts it and what to say instead.
    fn diagnostic(&self, found: &Contradiction) -> Diagnostic {
        let spec = self.spec.as_deref().unwrap_or_default().trim();
        let message = format!("--replicated-params {spec} contradicts the module: {found}");
        let help = match found.rest.as_str() {
            "" => "leave --replicated-params out: it names no leaf that could be the same on all devices".to_string(),
            rest if rest.len() <= MAX_SHOWN_BYTES => {
                format!("say it of the other leaves alone: --replicated-params {rest}")
            }
            _ => format!("leave out entry leaf {} and all others that `sharding=` cuts", found.leaf),
        };
        Diagnostic::about("promise-contradicts-sharding", Entity::Inst(found.param), message).with_help(help)
    }
}
