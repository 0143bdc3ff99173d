//! Facts about a module, computed when first asked for and kept until a pass says that it changed what they rest on.
//!
//! Copies of [`Analyses`] share the costly facts, also those that are not known yet: ways that run beside each other on copies of
//! one module compute each once.

pub mod annotations;
pub mod carried_loop;
pub mod classes;
pub mod code;
pub mod counts;
pub mod frequency;
pub mod fusion;
pub mod in_flight;
pub mod input_needs;
pub mod memory;
pub mod min_cut;
pub mod optimizer_state;
pub mod program_kind;
pub mod replication;
pub mod scalar;
pub mod thresholds;
pub mod time;
pub mod traffic;
pub mod values;

use annotations::ParamFacts;
use frequency::{Frequencies, FrequencyOptions};
use hlo_ir::Module;
use memory::MemorySizes;
use program_kind::{KnownProgram, ProgramDecision};
use replication::Replication;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use values::{SharedCallees, Through, Values};

/// A fact that copies share: whoever asks first computes it, and others wait for it.
type Shared<T> = Arc<OnceLock<T>>;

/// The graph of values last asked for, and how it was asked for.
type LastValues = Option<(Through, SharedCallees, Shared<Arc<Values>>)>;

/// Lazily computed analyses of one module. A copy shares what is known and what will be, until one of the two forgets it.
#[derive(Clone, Debug, Default)]
pub struct Analyses {
    /// What the user said of the entry's parameters.
    pub params: ParamFacts,
    /// What the user said of loops.
    pub frequency_options: FrequencyOptions,
    /// Facts about the module that its text does not say: whether it is the program of all devices together or of each
    /// device.
    pub program: Option<KnownProgram>,
    replication: Shared<Arc<Replication>>,
    frequencies: Option<(FrequencyOptions, Arc<Frequencies>)>,
    values: Arc<Mutex<LastValues>>,
    memory: Shared<MemorySizes>,
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

    /// The same analyses of a module of which more is known than its text.
    #[must_use]
    pub fn with_program(self, program: Option<KnownProgram>) -> Analyses {
        Analyses { program, ..self }
    }

    /// Decides what the module is a program of, by what is known beside its text and by the text.
    pub fn program_kind(&self, module: &Module) -> ProgramDecision {
        self.program.as_ref().map_or_else(|| program_kind::decide(module, None, None), KnownProgram::decision)
    }

    /// The reason of [`Analyses::program_kind`] in words.
    pub fn why_program_kind(&self, module: &Module) -> String {
        match &self.program {
            Some(known) => known.reason().into(),
            None => program_kind::decide(module, None, None).reason(module),
        }
    }

    /// Which devices hold equal values.
    pub fn replication(&mut self, module: &Module) -> Arc<Replication> {
        let params = &self.params;
        self.replication.get_or_init(|| Arc::new(Replication::compute(module, params))).clone()
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
        let cell = {
            // Nothing panics while it holds the lock.
            let mut last = self.values.lock().unwrap_or_else(PoisonError::into_inner);
            match &*last {
                Some((known_through, known_shared, cell)) if (*known_through, *known_shared) == (through, shared) => {
                    cell.clone()
                }
                Some(_) | None => last.insert((through, shared, Shared::default())).2.clone(),
            }
        };
        cell.get_or_init(|| Arc::new(Values::find(module, through, shared))).clone()
    }

    /// How many bytes are in memory, and of what kind ([`memory::peak_memory`]).
    pub fn memory(&mut self, module: &Module) -> MemorySizes {
        *self.memory.get_or_init(|| memory::memory_sizes(module))
    }

    /// Forgets what is not preserved.
    pub fn invalidate(&mut self, preserved: Preserved) {
        self.values = Arc::default();
        if !preserved.peak_memory {
            self.memory = Shared::default();
        }
        if !preserved.replication {
            self.replication = Shared::default();
        }
        if !preserved.frequencies {
            self.frequencies = None;
        }
    }
}
