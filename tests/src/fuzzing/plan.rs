//! Modules lowered to launch plans: a plan holds what [`hlo_gpu::plan::verify`] asks for, or the lowering says why not.

use super::pipeline::{expect_sound, run_text};
use super::verified;
use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::plot::svg;
use hlo_gpu::plan::verify::verify;
use hlo_ir::Module;
use hlo_opt::presets::GPU;

const MAX_DEVICES: usize = 64;

pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let Some(mut module) = std::str::from_utf8(bytes).ok().and_then(verified) else { return Ok(()) };
    if module.n_devices() > MAX_DEVICES {
        return Ok(());
    }
    is_planned(&module)?;
    match run_text(&mut module, GPU) {
        Some(outcome) => expect_sound(outcome)?,
        None => return Err("the pipeline of the backend is not known".into()),
    }
    is_planned(&module)
}

fn is_planned(module: &Module) -> Result<(), String> {
    // A refusal names the instruction, which is what is promised.
    let Ok(plan) = lower(module, &mut CudaKernels::default(), &LowerOptions::default()) else { return Ok(()) };
    verify(&plan).map_err(|broken| format!("the plan is broken: {}\n{plan}", broken.join("; ")))?;
    plan.to_json();
    svg(&plan);
    Ok(())
}
