//! Facts about a module, computed when first asked for and kept until a pass says that it changed what they rest on.

pub mod annotations;
pub mod classes;
pub mod reducers;
pub mod replication;

use annotations::ParamFacts;
use hlo_ir::Module;
use replication::Replication;
use std::rc::Rc;

/// Lazily computed analyses of one module.
#[derive(Debug, Default)]
pub struct Analyses {
    /// What the user said of the entry's parameters.
    pub params: ParamFacts,
    replication: Option<Rc<Replication>>,
}

/// Which analyses still hold after a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Preserved {
    /// Facts of instructions that are still there, and of new ones none are asked.
    pub replication: bool,
}

impl Preserved {
    /// Nothing holds.
    pub const NONE: Preserved = Preserved { replication: false };
    /// Everything holds.
    pub const ALL: Preserved = Preserved { replication: true };
}

impl Analyses {
    /// Analyses that start from what the user said of the entry's parameters.
    pub fn new(params: ParamFacts) -> Analyses {
        Analyses { params, replication: None }
    }

    /// Which devices hold equal values.
    pub fn replication(&mut self, module: &Module) -> Rc<Replication> {
        let params = &self.params;
        self.replication.get_or_insert_with(|| Rc::new(Replication::compute(module, params))).clone()
    }

    /// Forgets what is not preserved.
    pub fn invalidate(&mut self, preserved: Preserved) {
        if !preserved.replication {
            self.replication = None;
        }
    }
}
