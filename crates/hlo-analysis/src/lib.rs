//! Facts about a module, computed when first asked for and kept until a pass says that it changed what they rest on.

pub mod annotations;
pub mod classes;
pub mod code;
pub mod counts;
pub mod frequency;
pub mod fusion;
pub mod memory;
pub mod replication;
pub mod time;
pub mod traffic;
pub mod values;

use annotations::ParamFacts;
use frequency::{Frequencies, FrequencyOptions};
use hlo_ir::Module;
use replication::Replication;
use std::sync::Arc;
use values::{SharedCallees, Through, Values};

/// Lazily computed analyses of one module. A copy shares what is known.
#[derive(Clone, Debug, Default)]
pub struct Analyses {
    /// What the user said of the entry's parameters.
    pub params: ParamFacts,
    /// What the user said of loops.
    pub frequency_options: FrequencyOptions,
    replication: Option<Arc<Replication>>,
    frequencies: Option<(FrequencyOptions, Arc<Frequencies>)>,
    values: Option<(Through, SharedCallees, Arc<Values>)>,
    peak_bytes: Option<u64>,
}

/// Which analyses still hold after a change. The graph of values never does: it names every use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Preserved {
    /// Facts of instructions that are still there, and of new ones none are asked.
    pub replication: bool,
    /// Computations still run as often, and loops and conditionals that are still there branch as often.
    pub frequencies: bool,
    /// The peak of memory is that of the module as it is now.
    pub peak_memory: bool,
}

impl Preserved {
    /// Nothing holds.
    pub const NONE: Preserved = Preserved { replication: false, frequencies: false, peak_memory: false };
    /// Everything holds.
    pub const ALL: Preserved = Preserved { replication: true, frequencies: true, peak_memory: true };
}

impl Analyses {
    /// Analyses that start from what the user said of the entry's parameters.
    pub fn new(params: ParamFacts) -> Analyses {
        Analyses { params, ..Analyses::default() }
    }

    /// Which devices hold equal values.
    pub fn replication(&mut self, module: &Module) -> Arc<Replication> {
        let params = &self.params;
        self.replication.get_or_insert_with(|| Arc::new(Replication::compute(module, params))).clone()
    }

    /// How often each computation runs.
    pub fn frequencies(&mut self, module: &Module) -> Arc<Frequencies> {
        let options = self.frequency_options;
        if let Some((with, known)) = &self.frequencies
            && *with == options
        {
            return known.clone();
        }
        let fresh = Arc::new(Frequencies::compute(module, options));
        self.frequencies = Some((options, fresh.clone()));
        fresh
    }

    /// The graph of values. The last one asked for is kept.
    pub fn values(&mut self, module: &Module, through: Through, shared: SharedCallees) -> Arc<Values> {
        if let Some((known_through, known_shared, known)) = &self.values
            && (*known_through, *known_shared) == (through, shared)
        {
            return known.clone();
        }
        let fresh = Arc::new(Values::find(module, through, shared));
        self.values = Some((through, shared, fresh.clone()));
        fresh
    }

    /// The most bytes that are in memory at once ([`memory::peak_memory`]).
    pub fn peak_bytes(&mut self, module: &Module) -> u64 {
        *self.peak_bytes.get_or_insert_with(|| memory::peak_memory(module).peak_bytes)
    }

    /// Forgets what is not preserved.
    pub fn invalidate(&mut self, preserved: Preserved) {
        self.values = None;
        if !preserved.peak_memory {
            self.peak_bytes = None;
        }
        if !preserved.replication {
            self.replication = None;
        }
        if !preserved.frequencies {
            self.frequencies = None;
        }
    }
}
