//! The target that passes price for and keep: the machine, how often open loops run, the memory of a device.

use crate::options::{SETTINGS, parse_int};
use crate::pipeline::{Pipeline, PipelineError};
use crate::{PassCx, PassError};
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::time::predict;
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_mesh::{Machine, MachineError, MachineName};

/// The target of a pipeline. All passes share one.
#[derive(Clone, Debug)]
pub struct Target {
    /// The machine that times are predicted for.
    pub machine: Machine,
    /// How often loops run where the module does not say.
    pub frequency: FrequencyOptions,
    /// Bytes that a device has for the step; `None` if there is no limit.
    pub memory_limit: Option<u64>,
}

impl Target {
    /// The target where nothing is said of it: [`Machine::unnamed`], default trip counts, no limit.
    ///
    /// # Errors
    /// The shipped description of the device cannot be read.
    pub fn unnamed() -> Result<Target, MachineError> {
        Ok(Target { machine: Machine::unnamed()?, frequency: FrequencyOptions::default(), memory_limit: None })
    }
}

/// The target as a user says it, before the number of devices is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetSpec {
    /// The machine.
    pub machine: Option<MachineName>,
    /// How often loops run where the module does not say; at least 1.
    pub unknown_trip_count: Option<u64>,
    /// Bytes that a device has for the step.
    pub memory_limit: Option<u64>,
}

impl TargetSpec {
    /// Takes one setting of a pipeline.
    ///
    /// # Errors
    /// An unknown setting, one that was said before, or a value that it cannot have.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), PipelineError> {
        let about = |error: String| PipelineError::new(format!("setting `@{name}`: {error}"));
        let number = || match parse_int(value) {
            Some(number) if number > 0 => Ok(number.unsigned_abs()),
            Some(_) | None => {
                Err(about(format!("expected a whole number above 0 such as 100 or 30GiB, found `{value}`")))
            }
        };
        let is_said = match name.replace('_', "-").as_str() {
            "machine" => {
                let machine = MachineName::parse(value).map_err(|error| about(error.to_string()))?;
                self.machine.replace(machine).is_some()
            }
            "unknown-trip-count" => self.unknown_trip_count.replace(number()?).is_some(),
            "memory-limit" => self.memory_limit.replace(number()?).is_some(),
            _ => return Err(PipelineError::unknown("setting", name, SETTINGS.into_iter())),
        };
        match is_said {
            true => Err(about("stands twice".into())),
            false => Ok(()),
        }
    }

    /// Both; `None` where the two say the same thing differently.
    pub fn and(self, other: TargetSpec) -> Option<TargetSpec> {
        fn one<T: PartialEq>(a: Option<T>, b: Option<T>) -> Option<Option<T>> {
            match (a, b) {
                (Some(a), Some(b)) => (a == b).then_some(Some(a)),
                (a, b) => Some(a.or(b)),
            }
        }
        Some(TargetSpec {
            machine: one(self.machine, other.machine)?,
            unknown_trip_count: one(self.unknown_trip_count, other.unknown_trip_count)?,
            memory_limit: one(self.memory_limit, other.memory_limit)?,
        })
    }

    /// The target of a module on `n_devices` devices.
    ///
    /// # Errors
    /// The machine cannot have so many devices.
    pub fn target(&self, n_devices: usize) -> Result<Target, MachineError> {
        let machine = self.machine.as_ref().map(|name| Machine::named(name, n_devices));
        let frequency = self.unknown_trip_count.map(|unknown_trip_count| FrequencyOptions { unknown_trip_count });
        Ok(Target {
            machine: machine.unwrap_or_else(Machine::unnamed)?,
            frequency: frequency.unwrap_or_default(),
            memory_limit: self.memory_limit,
        })
    }
}

impl Pipeline {
    /// Reads the settings.
    ///
    /// # Errors
    /// A setting that is unknown, stands twice or has a wrong value.
    pub fn target_spec(&self) -> Result<TargetSpec, PipelineError> {
        let mut spec = TargetSpec::default();
        self.settings.iter().try_for_each(|(name, value)| spec.set(name, value))?;
        Ok(spec)
    }
}

impl PassCx<'_> {
    /// The predicted time of a module on the machine, in seconds.
    ///
    /// # Errors
    /// The machine has another number of devices than the module.
    pub fn predicted_s(&mut self, module: &Module) -> Result<f64, PassError> {
        let frequencies = self.analyses.frequencies(module);
        let time = predict(module, &frequencies, &self.target.machine);
        let time = time.map_err(|error| PassError::about("machine-size", Entity::Module, error.to_string()))?;
        Ok(time.critical_path_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_once_each() {
        let mut spec = TargetSpec::default();
        spec.set("machine", "h100:2").expect("a machine");
        spec.set("memory_limit", "30GiB").expect("a limit");
        assert_eq!(spec.target(16).expect("a target").machine.to_string(), "h100, 2 x dgx-h100");
        assert_eq!(spec.target(16).expect("a target").memory_limit, Some(30 << 30));
        assert!(spec.target(3).is_err(), "two nodes of equal size");
        let error = |name: &str, value: &str| spec.clone().set(name, value).expect_err(name).to_string();
        assert!(error("machine", "a100").contains("stands twice"), "{}", error("machine", "a100"));
        assert!(error("machin", "a100").contains("did you mean `machine`?"), "{}", error("machin", "a100"));
        assert!(error("unknown-trip-count", "0").contains("above 0"));
        assert!(error("memory-limit", "much").contains("found `much`"));
    }

    #[test]
    fn two_specs_agree_or_are_none() {
        let of = |name: &str, value: &str| {
            let mut spec = TargetSpec::default();
            spec.set(name, value).expect(value);
            spec
        };
        let both = of("machine", "h100").and(of("memory-limit", "1GiB")).expect("both");
        assert_eq!(both.clone().and(both.clone()), Some(both.clone()));
        assert_eq!(both.and(of("machine", "a100")), None);
    }
}
