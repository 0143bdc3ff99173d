//! `--emit`: what the GPU backend makes of a module, printed.

use crate::arguments::Emit;
use hlo_gpu::kernel::{CudaKernels, EmitOptions, prelude};
use hlo_gpu::lower::LowerOptions;
use hlo_gpu::lower::Matmul;
use hlo_gpu::plan::Plan;
use hlo_gpu::plan::verify::verify;
use hlo_gpu::{GpuError, lower};
use hlo_ir::Module;
use std::fmt::Write;

/// The plan of a module; `options` are the user's.
///
/// # Errors
/// The instruction that cannot be lowered, or what the plan's verifier finds.
pub(crate) fn lowered(module: &Module, options: &LowerOptions) -> Result<Plan, GpuError> {
    let how = EmitOptions { uses_tf32: options.matmul == Matmul::Tf32, ..EmitOptions::default() };
    let plan = lower::lower(module, &mut CudaKernels { options: how }, options)?;
    verify(&plan).map_err(|errors| GpuError::unsupported(&plan.name, errors.join("; ")))?;
    Ok(plan)
}

/// Lowers a module and appends what was asked for to `out`.
///
/// # Errors
/// As [`lowered`].
pub(crate) fn write(module: &Module, emit: Emit, options: &LowerOptions, out: &mut String) -> Result<(), GpuError> {
    let plan = lowered(module, options)?;
    let _ = match emit {
        Emit::Hlo | Emit::Dot | Emit::ShardingSvg | Emit::Plan => write!(out, "{plan}"),
        Emit::PlanJson => writeln!(out, "{}", plan.to_json()),
        Emit::Cuda => plan
            .kernels
            .values()
            .try_fold((), |(), kernel| write!(out, "{}", kernel.source).map(|()| out.push('\n')))
            .map(|()| out.insert_str(0, &prelude())),
        Emit::Trace => writeln!(out, "{}", plan.to_trace()),
        Emit::PlanSvg => write!(out, "{}", hlo_gpu::plan::plot::svg(&plan)),
    };
    Ok(())
}
