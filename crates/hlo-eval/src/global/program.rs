//! A global program made ready to run, and what it gives.

use crate::draw::{DrawOptions, draw_wholes};
use crate::engine::EvalOptions;
use crate::error::EvalError;
use crate::kernels::tiles::{ElementPair, first_difference};
use crate::run::{Inputs, Outputs, run_with};
use crate::value::Value;
use hlo_ir::devices::find_n_devices;
use hlo_ir::{InstId, Module};
use std::borrow::Cow;
use std::sync::Arc;

/// A global program, and its number of devices.
#[derive(Clone, Debug)]
pub struct GlobalProgram<'m> {
    module: Cow<'m, Module>,
}

impl<'m> GlobalProgram<'m> {
    /// Takes `module` as a global program on as many devices as [`find_n_devices`] says.
    ///
    /// # Errors
    /// It runs on several replicas.
    pub fn of(module: &'m Module) -> Result<GlobalProgram<'m>, EvalError> {
        GlobalProgram::on(module, find_n_devices(module))
    }

    /// Takes `module` as a global program on so many devices.
    ///
    /// # Errors
    /// It runs on several replicas, or its header has another number of partitions.
    pub fn on(module: &'m Module, n_devices: usize) -> Result<GlobalProgram<'m>, EvalError> {
        let header = &module.header;
        if header.replica_count > 1 {
            let text = format!("expected a global program on one replica, found {} replicas", header.replica_count);
            return Err(EvalError::unsupported(text));
        }
        let n = i64::try_from(n_devices.max(1)).unwrap_or(i64::MAX);
        if header.num_partitions == n {
            return Ok(GlobalProgram { module: Cow::Borrowed(module) });
        }
        if header.num_partitions > 1 {
            let text = format!("expected {n} devices, found a global program on {}", header.num_partitions);
            return Err(EvalError::invalid(text));
        }
        let mut on_devices = module.clone();
        on_devices.header.num_partitions = n;
        Ok(GlobalProgram { module: Cow::Owned(on_devices) })
    }

    /// The program, with its number of devices in the header.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// On how many devices its manual regions run.
    pub fn n_devices(&self) -> usize {
        self.module.n_devices()
    }

    /// One array for each entry leaf: `[leaf][0]`. Who is given the same values does not matter.
    ///
    /// # Errors
    /// As [`draw_inputs`](crate::draw::draw_inputs).
    pub fn draw(&self, options: &DrawOptions) -> Result<Inputs, EvalError> {
        draw_wholes(&self.module, options)
    }

    /// Runs the program on one set of inputs, `[leaf][0]`.
    ///
    /// # Errors
    /// As [`run`](crate::run()).
    pub fn run(&self, inputs: &Inputs, options: &EvalOptions) -> Result<WholeOutputs, EvalError> {
        self.run_observed(inputs, options, &mut |_, _, _| ())
    }

    /// As [`GlobalProgram::run`]; `observe` sees what it sees in [`run_observed`](crate::run_observed).
    ///
    /// # Errors
    /// As [`run`](crate::run()).
    pub fn run_observed(
        &self,
        inputs: &Inputs,
        options: &EvalOptions,
        observe: &mut dyn FnMut(InstId, u32, &Value),
    ) -> Result<WholeOutputs, EvalError> {
        let n_devices = self.n_devices();
        let on_all = inputs.leaves.iter().enumerate().map(|(leaf, row)| match row.as_slice() {
            [whole] => Ok(vec![whole.clone(); n_devices]),
            row => {
                let text = format!("input {leaf}: expected one array for a global program, found {}", row.len());
                Err(EvalError::invalid(text))
            }
        });
        let inputs = Inputs { leaves: on_all.collect::<Result<_, _>>()? };
        let (outputs, parting) = run_with(&self.module, &inputs, options, Some(observe))?;
        Ok(WholeOutputs { outputs, parting })
    }
}

/// The whole results of a global program, as each device holds them.
///
/// They are the same on all devices unless the copies of a value differ where a manual region ends: then each device has gone on with its own, as
/// the devices do that XLA compiles the program for.
#[derive(Clone, Debug)]
pub struct WholeOutputs {
    outputs: Outputs,
    parting: Option<String>,
}

impl WholeOutputs {
    /// `[leaf][device]`.
    pub fn of_devices(&self) -> &Outputs {
        &self.outputs
    }

    /// Where the copies of a value first differed at the end of a region, in a sentence. Within another region they may.
    pub fn parting(&self) -> Option<&str> {
        self.parting.as_deref()
    }

    /// The one set of results: `[leaf][0]`.
    ///
    /// # Errors
    /// Two devices hold different ones: which, where, and at which region's end copies first differed.
    pub fn agreed(&self) -> Result<Outputs, EvalError> {
        let mut leaves = Vec::with_capacity(self.outputs.leaves.len());
        for (leaf, row) in self.outputs.leaves.iter().enumerate() {
            let Some((first, rest)) = row.split_first() else { continue };
            let other = rest.iter().enumerate().find(|(_, array)| !Arc::ptr_eq(array, first) && *array != first);
            if let Some((device, array)) = other
                && let Some(ElementPair { index, one, other }) = first_difference(first, array)
            {
                let origin = self.parting().map_or(String::new(), |text| format!("; {text}"));
                let device = device + 1;
                return Err(EvalError::invalid(format!(
                    "output {leaf}: expected one result of the global program, found {one} on device 0 and {other} on device {device} at \
                     {index:?}{origin}"
                )));
            }
            leaves.push(vec![first.clone()]);
        }
        Ok(Outputs { leaves })
    }
}
