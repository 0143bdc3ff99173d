//! What a step costs on one device, before and after the passes.

use super::html::{View, Views};
use crate::baseline::combiner;
use hlo_analysis::Analyses;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::memory::{MemorySizes, memory_curve};
use hlo_analysis::time::{ModuleTime, predict, predict_timeline};
use hlo_analysis::traffic::Traffic;
use hlo_ir::Module;
use hlo_mesh::Machine;
use hlo_pass::STACK_BYTES;
use hlo_pass::fastest::AsCompiled;
use hlo_pass::report::{Candidate, WayChoice};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What times are predicted for.
#[derive(Clone, Debug)]
pub(crate) struct Pricing {
    /// The machine that runs the module.
    pub machine: Machine,
    /// How often loops run where the module does not say.
    pub frequency_options: FrequencyOptions,
    /// The module as the compiler leaves it, as in [`hlo_pass::fastest::Ways`].
    pub as_compiled: Option<AsCompiled>,
}

/// The figures of a module before and after all passes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Totals {
    /// The machine that the times are predicted for.
    pub machine: String,
    /// How XLA combines collectives on its own, which the figures count; `None` where our own back end runs the module.
    pub baseline: Option<String>,
    /// Devices that the module runs on.
    pub n_devices: usize,
    /// Of the module as it came.
    pub before: Figures,
    /// Of the module as it is now.
    pub after: Figures,
}

/// One run of a module on one device.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Bytes that the device sends in collectives.
    pub sent_bytes: f64,
    /// How often collectives run, by opcode.
    pub collectives: BTreeMap<&'static str, f64>,
    /// The most memory in use at one time: arguments, outputs that lie in no argument, constants, temporaries.
    pub peak_bytes: u64,
    /// The entry's parameters.
    pub argument_bytes: u64,
    /// The result.
    pub output_bytes: u64,
    /// The part of the result that lies in the memory of parameters.
    pub alias_bytes: u64,
    /// Constants.
    pub constant_bytes: u64,
    /// Everything else that is in memory at the peak.
    pub temp_bytes: u64,
    /// Parameters in the memory of the host; no other figure counts them.
    pub host_bytes: u64,
    /// The predicted time; none where the machine has another number of devices than the module.
    pub time: Option<Time>,
}

/// Predicted seconds of one run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Time {
    /// From the beginning to the end.
    pub critical_path_s: f64,
    /// In which kernels run.
    pub compute_s: f64,
    /// In which collectives run.
    pub communication_s: f64,
    /// Whether a part is not known: a custom call's work, or an exchange with the host.
    pub is_partial: bool,
}

/// What is measured of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// Its figures.
    Figures,
    /// Its figures without the time, which a preset predicts for each of its ways.
    Untimed,
    /// What a page shows beside them as well.
    Page,
}

/// What was measured of a module.
struct Measured {
    figures: Figures,
    /// For a page.
    view: Option<Box<View>>,
}

impl Measured {
    /// Measures a verified module, of which `analyses` are known.
    fn of(module: &Module, mut analyses: Analyses, pricing: &Pricing, scope: Scope) -> Measured {
        analyses.frequency_options = pricing.frequency_options;
        let memory = analyses.memory(module);
        let combined = pricing.as_compiled.and_then(|compile| compile(module, &pricing.machine));
        let compiled = combined.as_ref().unwrap_or(module);
        let frequencies = match &combined {
            Some(combined) => Arc::new(Frequencies::compute(combined, pricing.frequency_options)),
            None => analyses.frequencies(module),
        };
        let traffic = Traffic::find(compiled, &frequencies);
        match scope {
            Scope::Figures => {
                let time = predict(compiled, &frequencies, &pricing.machine).ok();
                Measured { figures: Figures::new(traffic, time, memory), view: None }
            }
            Scope::Untimed => Measured { figures: Figures::new(traffic, None, memory), view: None },
            Scope::Page => {
                let timeline = predict_timeline(compiled, &frequencies, &pricing.machine).ok();
                let (curve, points) = memory_curve(module);
                let (time, spans) = timeline.unzip();
                let figures = Figures::new(traffic, time, memory);
                let view = View::of((module, &curve, &points), (compiled, &frequencies), spans);
                Measured { figures, view: Some(Box::new(view)) }
            }
        }
    }
}

impl From<ModuleTime> for Time {
    fn from(time: ModuleTime) -> Time {
        let ModuleTime { critical_path_s, compute_s, communication_s, is_partial } = time;
        Time { critical_path_s, compute_s, communication_s, is_partial }
    }
}

impl From<&Candidate> for Time {
    fn from(way: &Candidate) -> Time {
        let &Candidate { critical_path_s, compute_s, communication_s, is_partial, .. } = way;
        Time { critical_path_s, compute_s, communication_s, is_partial }
    }
}

/// What a preset has predicted of the module as it came and as its way left it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Predicted {
    before: Option<Time>,
    after: Option<Time>,
}

impl Predicted {
    /// Of a preset's ways, the one without a pass is the module as it came, and the one taken is the module as it is now if no other
    /// pass ran behind it (`is_last`).
    pub(crate) fn of(choice: Option<&WayChoice>, is_last: bool) -> Predicted {
        let as_it_came = choice.and_then(|choice| choice.candidates.iter().find(|way| way.pipeline.is_empty()));
        let taken = choice.filter(|_| is_last).and_then(WayChoice::taken);
        Predicted { before: as_it_came.map(Time::from), after: taken.map(Time::from) }
    }
}

impl Figures {
    fn new(traffic: Traffic, time: Option<ModuleTime>, memory: MemorySizes) -> Figures {
        Figures {
            sent_bytes: traffic.sent_bytes,
            collectives: traffic.n_runs,
            peak_bytes: memory.peak_bytes,
            argument_bytes: memory.argument_bytes,
            output_bytes: memory.output_bytes,
            alias_bytes: memory.alias_bytes,
            constant_bytes: memory.constant_bytes,
            temp_bytes: memory.temp_bytes,
            host_bytes: memory.host_bytes,
            time: time.map(Time::from),
        }
    }

    /// How often collectives of all kinds run.
    pub(crate) fn n_collectives(&self) -> f64 {
        // The sum of no floats is -0.
        self.collectives.values().fold(0.0, |sum, n| sum + n)
    }
}

/// The figures of a module as it came, on their way: passes run meanwhile.
pub(crate) struct Before {
    measured: Option<JoinHandle<Measured>>,
    module: Option<Box<(Module, Analyses)>>,
    pricing: Pricing,
    scope: Scope,
}

impl Before {
    /// Begins to measure a copy of the module.
    pub(crate) fn start(module: &Module, analyses: &Analyses, pricing: Pricing, scope: Scope) -> Before {
        let (copy, thread) = (module.clone(), std::thread::Builder::new().stack_size(STACK_BYTES));
        let (known, known_pricing) = (analyses.clone(), pricing.clone());
        let measured = thread.spawn(move || Measured::of(&copy, known, &known_pricing, scope)).ok();
        // Where the system gives no thread it is done at the end.
        let module = measured.is_none().then(|| Box::new((module.clone(), analyses.clone())));
        Before { measured, module, pricing, scope }
    }

    /// The figures of the module as it came and as it is now, and what a page shows of both. What is not known is predicted.
    pub(crate) fn and_after(
        self,
        (after, analyses): (&Module, &Analyses),
        has_changed: bool,
        known: Predicted,
    ) -> (Totals, Option<Views>) {
        let Before { measured, module, pricing, scope } = self;
        let now = has_changed.then(|| {
            let scope = if scope == Scope::Untimed && known.after.is_none() { Scope::Figures } else { scope };
            let mut now = Measured::of(after, analyses.clone(), &pricing, scope);
            now.figures.time = now.figures.time.or(known.after);
            now
        });
        let mut before = match measured.map(JoinHandle::join) {
            Some(Ok(measured)) => measured,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => match module.as_deref() {
                Some((before, analyses)) => Measured::of(before, analyses.clone(), &pricing, scope),
                None => Measured::of(after, analyses.clone(), &pricing, scope),
            },
        };
        before.figures.time = before.figures.time.or(known.before);
        let (figures, view) = now.map_or((None, None), |now| (Some(now.figures), now.view));
        let views = before.view.map(|before| Views { before, after: view });
        let after_figures = figures.unwrap_or_else(|| before.figures.clone());
        let (machine, n_devices) = (pricing.machine.to_string(), after.n_devices().max(1));
        let baseline = pricing.as_compiled.map(|_| combiner(&pricing.machine));
        (Totals { machine, baseline, n_devices, before: before.figures, after: after_figures }, views)
    }
}
