//! The steps of a plan, on all devices at once.

use hlo_ir::Literal;

use super::arrays::{from_memory, to_memory};
use super::library::Library;
use super::memory::Memory;
use super::{collective, gemm};
use crate::GpuError;
use crate::plan::{BufferId, Plan, Step, Work};

/// A plan with its kernels compiled for the host.
pub struct Program<'p> {
    plan: &'p Plan,
    library: Library,
}

/// Compiles a plan's kernels and runs it once: `[device][leaf]` in and out.
///
/// # Errors
/// As [`Program::new`] and [`Program::run`].
pub fn run(plan: &Plan, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>, GpuError> {
    Program::new(plan)?.run(inputs)
}

impl<'p> Program<'p> {
    /// Compiles the kernels of a plan.
    ///
    /// # Errors
    /// As [`Library::new`].
    pub fn new(plan: &'p Plan) -> Result<Program<'p>, GpuError> {
        Ok(Program { plan, library: Library::new(plan.kernels.values())? })
    }

    /// Runs the plan on all devices: `inputs[device][leaf]` to `[device][leaf]`.
    ///
    /// # Errors
    /// Inputs that do not fit the plan's parameters; a predicate that differs between devices; a buffer outside its place.
    pub fn run(&self, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>, GpuError> {
        let plan = self.plan;
        let mut memory = Memory::new(plan)?;
        let n_devices = memory.n_devices();
        let misfit = |reason: String| GpuError::Host { what: "inputs".to_string(), reason };
        if inputs.len() != n_devices {
            return Err(misfit(format!("expected inputs for {n_devices} devices, found {}", inputs.len())));
        }
        for (device, leaves) in inputs.iter().enumerate() {
            if leaves.len() != plan.parameters.len() {
                return Err(misfit(format!("expected {} arrays, found {}", plan.parameters.len(), leaves.len())));
            }
            for (&buffer, literal) in plan.parameters.iter().zip(leaves) {
                let bytes = to_memory(literal, &plan.buffers[buffer].shape)?;
                memory.bytes_mut(device, buffer)?.copy_from_slice(&bytes);
            }
        }
        self.steps(&mut memory, &plan.steps)?;
        let output = |device: usize| {
            plan.outputs
                .iter()
                .map(|&buffer| from_memory(memory.bytes(device, buffer)?, &plan.buffers[buffer].shape))
                .collect()
        };
        (0..n_devices).map(output).collect()
    }

    fn steps(&self, memory: &mut Memory<'_>, steps: &[Step]) -> Result<(), GpuError> {
        steps.iter().try_for_each(|step| self.step(memory, step))
    }

    fn step(&self, memory: &mut Memory<'_>, step: &Step) -> Result<(), GpuError> {
        let devices = 0..memory.n_devices();
        match &step.work {
            Work::Launch { kernel, arguments } => {
                for device in devices {
                    let pointers = arguments.iter().map(|&buffer| memory.pointer(device, buffer)).collect::<Result<
                        Vec<_>,
                        GpuError,
                    >>(
                    )?;
                    self.library.launch(&self.plan.kernels[*kernel], &pointers)?;
                }
                Ok(())
            }
            Work::Gemm(product) => {
                devices.into_iter().try_for_each(|device| gemm::run(self.plan, memory, device, product))
            }
            Work::Collective(call) => collective::run(self.plan, memory, call),
            Work::Copy { from, to } => {
                for device in devices {
                    let bytes = memory.bytes(device, *from)?.to_vec();
                    let target = memory.bytes_mut(device, *to)?;
                    if target.len() != bytes.len() {
                        let reason = format!("expected a copy of {} bytes, found {}", target.len(), bytes.len());
                        return Err(GpuError::Host { what: step.name.clone(), reason });
                    }
                    target.copy_from_slice(&bytes);
                }
                Ok(())
            }
            Work::Fill { to, byte } => {
                for device in devices {
                    memory.bytes_mut(device, *to)?.fill(*byte);
                }
                Ok(())
            }
            Work::While { condition, predicate, body } => loop {
                self.steps(memory, condition)?;
                if self.agreed(memory, &step.name, *predicate)?.first() == Some(&0) {
                    return Ok(());
                }
                self.steps(memory, body)?;
            },
            Work::Conditional { selector, branches } => {
                let bytes = self.agreed(memory, &step.name, *selector)?;
                let last = branches.len().saturating_sub(1);
                let branch = match bytes.as_slice() {
                    [pred] => usize::from(*pred == 0),
                    [a, b, c, d] => usize::try_from(i32::from_le_bytes([*a, *b, *c, *d])).unwrap_or(last).min(last),
                    _ => last,
                };
                branches.get(branch).map_or(Ok(()), |steps| self.steps(memory, steps))
            }
        }
    }

    /// The bytes of a buffer that must be the same on all devices.
    fn agreed(&self, memory: &Memory<'_>, name: &str, buffer: BufferId) -> Result<Vec<u8>, GpuError> {
        let first = memory.bytes(0, buffer)?.to_vec();
        for device in 1..memory.n_devices() {
            if memory.bytes(device, buffer)? != first.as_slice() {
                let reason = format!("expected the same decision on all devices, found another on device {device}");
                return Err(GpuError::Host { what: name.to_string(), reason });
            }
        }
        Ok(first)
    }
}
