//! `--replicated-params`: its `like:FILE` form needs a file, the others are the analysis crate's.

use crate::Failure;
use crate::console::Console;
use crate::input::load_one;
use hlo_analysis::annotations::ParamFacts;
use hlo_ir::Module;
use std::path::Path;

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

    /// What is said of `module`'s parameters.
    ///
    /// # Errors
    /// The spec does not fit the module.
    pub(crate) fn of(&self, module: &Module) -> Result<ParamFacts, Failure> {
        let facts = match (&self.sibling, &self.spec) {
            (Some(sibling), _) => ParamFacts::from_sibling(sibling, module),
            (None, Some(spec)) => ParamFacts::parse(spec, module),
            (None, None) => Ok(ParamFacts::default()),
        };
        facts.map_err(|message| Failure::Usage(format!("--replicated-params: {message}")))
    }
}
