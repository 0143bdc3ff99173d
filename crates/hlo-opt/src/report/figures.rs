//! What a step costs on one device, before and after the passes.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::memory::{MemoryReport, peak_memory};
use hlo_analysis::time::{Machine, predict};
use hlo_analysis::traffic::Traffic;
use hlo_ir::Module;
use hlo_pass::STACK_BYTES;
use serde::Serialize;
use std::collections::BTreeMap;
use std::thread::JoinHandle;

/// What times are predicted for.
#[derive(Clone, Debug)]
pub(crate) struct Pricing {
    /// The machine that runs the module.
    pub machine: Machine,
    /// How often loops run where the module does not say.
    pub frequency_options: FrequencyOptions,
}

/// The figures of a module before and after all passes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Totals {
    /// The machine that the times are predicted for.
    pub machine: String,
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

impl Figures {
    /// The figures of a verified module.
    pub(crate) fn of(module: &Module, pricing: &Pricing) -> Figures {
        let frequencies = Frequencies::compute(module, pricing.frequency_options);
        let Traffic { n_runs, sent_bytes } = Traffic::find(module, &frequencies);
        let time = predict(module, &frequencies, &pricing.machine).ok().map(|time| Time {
            critical_path_s: time.critical_path_s,
            compute_s: time.compute_s,
            communication_s: time.communication_s,
            is_partial: time.is_partial,
        });
        let memory = peak_memory(module);
        let MemoryReport { peak_bytes, argument_bytes, output_bytes, alias_bytes, constant_bytes, temp_bytes, .. } =
            memory;
        Figures {
            sent_bytes,
            collectives: n_runs,
            peak_bytes,
            argument_bytes,
            output_bytes,
            alias_bytes,
            constant_bytes,
            temp_bytes,
            time,
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
    figures: Option<JoinHandle<Figures>>,
    module: Option<Box<Module>>,
    pricing: Pricing,
}

impl Before {
    /// Begins to measure a copy of the module.
    pub(crate) fn start(module: &Module, pricing: Pricing) -> Before {
        let (copy, thread) = (module.clone(), std::thread::Builder::new().stack_size(STACK_BYTES));
        let known = pricing.clone();
        let figures = thread.spawn(move || Figures::of(&copy, &known)).ok();
        // Where the system gives no thread it is done at the end.
        let module = figures.is_none().then(|| Box::new(module.clone()));
        Before { figures, module, pricing }
    }

    /// The figures of the module as it came and as it is now.
    pub(crate) fn and_after(self, after: &Module, has_changed: bool) -> Totals {
        let Before { figures, module, pricing } = self;
        let now = has_changed.then(|| Figures::of(after, &pricing));
        let before = match figures.map(JoinHandle::join) {
            Some(Ok(figures)) => figures,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Figures::of(module.as_deref().unwrap_or(after), &pricing),
        };
        let after_figures = now.unwrap_or_else(|| before.clone());
        let (machine, n_devices) = (pricing.machine.to_string(), after.n_devices().max(1));
        Totals { machine, n_devices, before, after: after_figures }
    }
}
