//! Runs a plan on graphics processors: CUDA's driver, NVRTC, cuBLASLt and NCCL, loaded when they are first needed.
//!
//! Run on one card; NCCL between cards is tested against doubles alone. The decisions are in modules of their own: which matrices a product takes
//! ([`products`]), who reads what from whom ([`moves`]), which kernel reduces what ([`reductions`]), and which card a device
//! gets ([`card::ordinals`]). What calls the libraries is thin, and is tested against doubles of them, whose streams are threads.
//!
//! Each device has a host thread, a compute stream and a communication stream. Waiting is looking again and again, with an
//! eye on the other processes, so that a collective whose partner is gone is aborted and not waited for.

mod addresses;
mod blas;
mod card;
mod choices;
mod compile;
mod context;
mod device;
mod graph;
mod libraries;
mod moves;
mod nccl;
mod products;
mod reductions;
mod shared;

pub use card::first_card_model;

use device::GpuDevice;

use std::ops::Range;

use crate::ExecutionError;
use crate::run::{Backend, Meeting};
use card::Card;
use choices::Choices;
use hlo_gpu::plan::{CollectiveCall, Kernel, Plan, Step, Work};
use libraries::Library;
use reductions::Reductions;

/// How to run on cards.
#[derive(Clone, Copy, Default, Debug)]
pub struct GpuOptions {
    /// All devices on one card.
    pub shares_card: bool,
    /// This process's number among those of its machine.
    pub local_rank: Option<u32>,
}

/// What a plan has besides kernels.
#[derive(Clone, Copy, Debug)]
struct Needs {
    has_products: bool,
    has_collectives: bool,
}

/// A plan whose kernels are compiled and loaded on the cards of this process.
pub struct GpuProgram<'p> {
    plan: &'p Plan,
    options: GpuOptions,
    needs: Needs,
    devices: Range<u32>,
    cards: Vec<Card>,
    /// The card of each device of this process.
    card_of: Vec<usize>,
    reductions: Reductions,
    /// The algorithms of products, where all devices of the plan are in this process.
    choices: Option<Choices>,
}

impl<'p> GpuProgram<'p> {
    /// Compiles and loads a plan's kernels for the devices of this process.
    ///
    /// # Errors
    /// A library is missing; there are too few cards; NVRTC or the driver refuses a kernel.
    pub fn new(plan: &'p Plan, devices: Range<u32>, options: GpuOptions) -> Result<GpuProgram<'p>, ExecutionError> {
        let needs = Needs {
            has_products: has_products(&plan.steps),
            has_collectives: !collective_steps(&plan.steps).is_empty(),
        };
        if options.shares_card && devices != crate::run::all_devices(plan) {
            let reason = "expected all devices in one process with --share-gpu, found several ranks".to_string();
            return Err(ExecutionError::Device { what: "GPUs".to_string(), reason });
        }
        let mut libraries = vec![Library::Driver, Library::Nvrtc];
        libraries.extend(needs.has_products.then_some(Library::CublasLt));
        libraries.extend((needs.has_collectives && !options.shares_card).then_some(Library::Nccl));
        libraries::require(&libraries)?;
        let n_devices = devices.len() as u32;
        let ordinals = card::ordinals(n_devices, card::count()?, options.local_rank, options.shares_card)?;
        let mut distinct = ordinals.clone();
        distinct.dedup();
        let card_of = ordinals.iter().map(|o| distinct.iter().position(|d| d == o).unwrap_or(0)).collect();
        let mut cards = distinct.into_iter().map(Card::open).collect::<Result<Vec<Card>, ExecutionError>>()?;
        let reductions = if options.shares_card { Reductions::of(plan)? } else { Reductions::default() };
        let kernels: Vec<&Kernel> = plan.kernels.values().chain(reductions.all()).collect();
        let mut compiled: Vec<(u32, Vec<compile::Cubin>)> = Vec::new();
        for card in &mut cards {
            if !compiled.iter().any(|(arch, _)| *arch == card.arch) {
                compiled.push((card.arch, compile::compile(&kernels, card.arch)?));
            }
            let cubins = compiled.iter().find(|(arch, _)| *arch == card.arch).map(|(_, cubins)| cubins.as_slice());
            card.load(cubins.unwrap_or_default(), &kernels)?;
        }
        let choices = (devices == crate::run::all_devices(plan)).then(Choices::default);
        Ok(GpuProgram { plan, options, needs, devices, cards, card_of, reductions, choices })
    }
}

impl Backend for GpuProgram<'_> {
    type Device<'m>
        = GpuDevice<'m>
    where
        Self: 'm;

    fn plan(&self) -> &Plan {
        self.plan
    }

    fn open<'m>(&'m self, id: u32, meeting: &'m Meeting<'m>) -> Result<GpuDevice<'m>, ExecutionError> {
        let local = id.saturating_sub(self.devices.start) as usize;
        let card = self.card_of.get(local).and_then(|&card| self.cards.get(card));
        let card = card.ok_or_else(|| ExecutionError::Device {
            what: "GPUs".to_string(),
            reason: format!("expected a device among {:?}, found {id}", self.devices),
        })?;
        GpuDevice::open(self, card, meeting, id)
    }
}

/// All steps of a list, those inside loops and branches too.
fn walk<'s>(steps: &'s [Step], visit: &mut dyn FnMut(&'s Work)) {
    for step in steps {
        visit(&step.work);
        match &step.work {
            Work::While { condition, body, .. } => {
                walk(condition, visit);
                walk(body, visit);
            }
            Work::Conditional { branches, .. } => branches.iter().for_each(|branch| walk(branch, visit)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}

fn has_products(steps: &[Step]) -> bool {
    let mut found = false;
    walk(steps, &mut |work| found |= matches!(work, Work::Gemm(_)));
    found
}

fn collective_steps(steps: &[Step]) -> Vec<&CollectiveCall> {
    let mut found = Vec::new();
    walk(steps, &mut |work| {
        if let Work::Collective(call) = work {
            found.push(call);
        }
    });
    found
}
