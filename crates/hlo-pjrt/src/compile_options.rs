//! What the options of a compile say about the devices, and whether XLA will still partition the program.
//!
//! Source of the field numbers: OpenXLA's `xla/pjrt/proto/compile_options.proto`, held against what jaxlib 0.12.0.1 serializes
//! (a test reads bytes that it made).

use hlo_proto::wire::{Value, take_field};

/// Fields of CompileOptionsProto.
mod outer_fields {
    pub(super) const EXECUTABLE_BUILD_OPTIONS: u32 = 3;
    pub(super) const COMPILE_PORTABLE_EXECUTABLE: u32 = 4;
    /// Entries of a map from the name of a debug option to a message of which field 1 is text.
    pub(super) const ENV_OPTION_OVERRIDES: u32 = 7;
}

/// Fields of ExecutableBuildOptionsProto.
mod build_fields {
    pub(super) const DEBUG_OPTIONS: u32 = 3;
    pub(super) const NUM_REPLICAS: u32 = 4;
    pub(super) const NUM_PARTITIONS: u32 = 5;
    pub(super) const USE_SPMD_PARTITIONING: u32 = 6;
    pub(super) const USE_AUTO_SPMD_PARTITIONING: u32 = 7;
    pub(super) const DEVICE_ASSIGNMENT: u32 = 9;
    pub(super) const RUN_BACKEND_ONLY: u32 = 11;
}

/// `DebugOptions.xla_disable_hlo_passes`, repeated text.
const XLA_DISABLE_HLO_PASSES: u32 = 30;
/// The same as an override.
const DISABLE_HLO_PASSES: &[u8] = b"xla_disable_hlo_passes";
/// The pass that makes per-device programs of global ones.
const PARTITIONER: &str = "spmd-partitioning";

/// On how many devices a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct DeviceCounts {
    pub n_replicas: i64,
    pub n_partitions: i64,
}

impl DeviceCounts {
    /// The counts of a DeviceAssignmentProto.
    ///
    /// # Errors
    /// Bytes that are no such message.
    pub(crate) fn of_assignment(bytes: &[u8]) -> Result<DeviceCounts, &'static str> {
        let mut counts = DeviceCounts { n_replicas: 0, n_partitions: 0 };
        each_field(bytes, |number, value| {
            match (number, value) {
                (1, Value::Int(n)) => counts.n_replicas = n as i64,
                (2, Value::Int(n)) => counts.n_partitions = n as i64,
                (_, Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) | Value::Bytes(_)) => {}
            }
            Ok(())
        })?;
        Ok(counts.at_least_one())
    }

    /// A count that is not there is 1.
    fn at_least_one(self) -> DeviceCounts {
        DeviceCounts { n_replicas: self.n_replicas.max(1), n_partitions: self.n_partitions.max(1) }
    }

    /// All devices.
    pub fn n_devices(self) -> i64 {
        self.n_replicas.saturating_mul(self.n_partitions)
    }
}

/// What is read of a CompileOptionsProto.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompileOptions {
    /// The devices: those of the assignment where there is one, as XLA has it.
    pub counts: DeviceCounts,
    /// Whether XLA partitions the program.
    pub will_partition: bool,
    /// Whether the program is what XLA's passes left, schedule included.
    pub is_backend_only: bool,
}

impl CompileOptions {
    /// Reads the bytes of a CompileOptionsProto.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn read(bytes: &[u8]) -> Result<CompileOptions, String> {
        let mut reader = Reader::default();
        reader.compile_options(bytes).map_err(|why| format!("compile options: {why}"))?;
        let own = DeviceCounts { n_replicas: reader.n_replicas, n_partitions: reader.n_partitions }.at_least_one();
        let one = DeviceCounts { n_replicas: 1, n_partitions: 1 };
        let counts = if reader.is_portable { one } else { reader.assigned.unwrap_or(own) };
        let will_partition = counts.n_partitions > 1
            && reader.uses_partitioner
            && !reader.disabled.iter().any(|name| name == PARTITIONER);
        Ok(CompileOptions { counts, will_partition, is_backend_only: reader.is_backend_only })
    }

    /// The devices of a per-device program that has something to exchange.
    ///
    /// # Errors
    /// Why the program is no such one.
    pub fn check_per_device(&self) -> Result<DeviceCounts, String> {
        let DeviceCounts { n_replicas, n_partitions } = self.counts;
        if self.counts.n_devices() <= 1 {
            return Err("it is compiled for one device".into());
        }
        if self.is_backend_only {
            return Err("XLA's own passes are done with it (run_backend_only)".into());
        }
        if self.will_partition {
            return Err(format!(
                "it is not partitioned yet: use_spmd_partitioning is set ({n_replicas} replicas, {n_partitions} partitions)"
            ));
        }
        Ok(self.counts)
    }
}

/// Calls `take` with each field of a message.
fn each_field<'b>(
    bytes: &'b [u8],
    mut take: impl FnMut(u32, Value<'b>) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let mut pos = 0;
    while pos < bytes.len() {
        let (number, value) = take_field(bytes, &mut pos)?;
        take(number, value)?;
    }
    Ok(())
}

/// What was met so far; of a field that stands twice, the last one counts, and messages are merged, as the format wants it.
#[derive(Default)]
struct Reader {
    n_replicas: i64,
    n_partitions: i64,
    assigned: Option<DeviceCounts>,
    is_portable: bool,
    is_backend_only: bool,
    uses_partitioner: bool,
    disabled: Vec<String>,
}

impl Reader {
    fn compile_options(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        use outer_fields as c;
        each_field(bytes, |number, value| match (number, value) {
            (c::EXECUTABLE_BUILD_OPTIONS, Value::Bytes(message)) => self.build_options(message),
            (c::COMPILE_PORTABLE_EXECUTABLE, Value::Int(flag)) => {
                self.is_portable = flag != 0;
                Ok(())
            }
            (c::ENV_OPTION_OVERRIDES, Value::Bytes(entry)) => self.overriding(entry),
            (_, Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) | Value::Bytes(_)) => Ok(()),
        })
    }

    fn build_options(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        use build_fields as b;
        each_field(bytes, |number, value| {
            match (number, value) {
                (b::DEBUG_OPTIONS, Value::Bytes(message)) => self.debug_options(message)?,
                (b::NUM_REPLICAS, Value::Int(n)) => self.n_replicas = n as i64,
                (b::NUM_PARTITIONS, Value::Int(n)) => self.n_partitions = n as i64,
                (b::USE_SPMD_PARTITIONING | b::USE_AUTO_SPMD_PARTITIONING, Value::Int(flag)) => {
                    self.uses_partitioner |= flag != 0;
                }
                (b::DEVICE_ASSIGNMENT, Value::Bytes(message)) => {
                    self.assigned = Some(DeviceCounts::of_assignment(message)?);
                }
                (b::RUN_BACKEND_ONLY, Value::Int(flag)) => self.is_backend_only = flag != 0,
                (_, Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) | Value::Bytes(_)) => {}
            }
            Ok(())
        })
    }

    fn debug_options(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        each_field(bytes, |number, value| {
            if let (XLA_DISABLE_HLO_PASSES, Value::Bytes(names)) = (number, value) {
                self.disable(names);
            }
            Ok(())
        })
    }

    /// `{1: name, 2: {1: text}}`.
    fn overriding(&mut self, entry: &[u8]) -> Result<(), &'static str> {
        let (mut name, mut text): (&[u8], &[u8]) = (&[], &[]);
        each_field(entry, |number, value| match (number, value) {
            (1, Value::Bytes(bytes)) => {
                name = bytes;
                Ok(())
            }
            (2, Value::Bytes(message)) => each_field(message, |number, value| {
                if let (1, Value::Bytes(bytes)) = (number, value) {
                    text = bytes;
                }
                Ok(())
            }),
            (_, Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) | Value::Bytes(_)) => Ok(()),
        })?;
        if name == DISABLE_HLO_PASSES {
            // An override takes the place of what the debug options say.
            self.disabled.clear();
            self.disable(text);
        }
        Ok(())
    }

    fn disable(&mut self, names: &[u8]) {
        self.disabled.extend(String::from_utf8_lossy(names).split(',').map(|name| name.trim().to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What jaxlib 0.12.0.1 serializes, debug options left out: `num_replicas=3`, `num_partitions=8`, the devices 0 to 7 as one
    /// replica of eight partitions, `use_spmd_partitioning`, `use_auto_spmd_partitioning`, `use_shardy_partitioner`, and the option
    /// `xla_disable_hlo_passes` as `a,b`.
    const OF_JAXLIB: &str = "1a4e08ffffffffffffffffff0120032808300138014a2c080110081a030a01001a030a01011a030a01021a030a01031a030a\
        01041a030a01051a030a01061a030a010762010092010100980101b801013a070a0178120210013a1f0a16786c615f646973\
        61626c655f686c6f5f70617373657312050a03612c62";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        digits.map(|pair| u8::from_str_radix(pair, 16).expect("two digits")).collect()
    }

    #[test]
    fn what_jaxlib_serializes_is_read() {
        let mut options = CompileOptions::read(&bytes(OF_JAXLIB)).expect("options");
        let counts = DeviceCounts { n_replicas: 1, n_partitions: 8 };
        assert_eq!(options, CompileOptions { counts, will_partition: true, is_backend_only: false });
        assert!(options.check_per_device().expect_err("a global program").contains("use_spmd_partitioning"));
        options.will_partition = false;
        assert_eq!(options.check_per_device(), Ok(counts));
        options.is_backend_only = true;
        assert!(options.check_per_device().expect_err("not ours").contains("run_backend_only"));
    }

    #[test]
    fn nothing_is_one_device() {
        let options = CompileOptions::read(&[]).expect("options");
        assert_eq!(options.counts, DeviceCounts { n_replicas: 1, n_partitions: 1 });
        assert_eq!(options.check_per_device(), Err("it is compiled for one device".into()));
    }

    #[test]
    fn portable_options_are_for_one_device() {
        // Field 3 {4: 8}, then field 4: 1.
        assert_eq!(CompileOptions::read(b"\x1a\x02\x20\x08").expect("options").counts.n_replicas, 8);
        assert_eq!(CompileOptions::read(b"\x1a\x02\x20\x08\x20\x01").expect("options").counts.n_replicas, 1);
    }

    #[test]
    fn passes_are_disabled_by_either_option() {
        // Field 3 {5: 8, 6: 1, 3: {30: name}}, or field 7 {1: name of the option, 2: {1: name}} beside it.
        let build = |debug: &[u8]| [b"\x28\x08\x30\x01\x1a".as_slice(), &[debug.len() as u8], debug].concat();
        let message = |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8], bytes].concat();
        let debug = |name: &str| [b"\xf2\x01", [name.len() as u8].as_slice(), name.as_bytes()].concat();
        let overriding = |name: &str| {
            let value = message(0x12, &message(0x0a, name.as_bytes()));
            message(0x3a, &[message(0x0a, DISABLE_HLO_PASSES), value].concat())
        };
        let will_partition = |bytes: Vec<u8>| CompileOptions::read(&bytes).expect("options").will_partition;
        assert!(will_partition(message(0x1a, &build(&debug("dce")))));
        assert!(!will_partition(message(0x1a, &build(&debug(PARTITIONER)))));
        assert!(!will_partition([message(0x1a, &build(b"")), overriding("dce, spmd-partitioning")].concat()));
        assert!(will_partition([message(0x1a, &build(&debug(PARTITIONER))), overriding("dce")].concat()));
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        for damaged in [&b"\x1a"[..], b"\x1a\x05\x20", b"\x1a\x03\x4a\x01\xff", b"\x00", b"\x3a\x02\x12\x01"] {
            let error = CompileOptions::read(damaged).expect_err("damaged");
            assert!(error.starts_with("compile options: expected "), "{damaged:x?}: {error}");
        }
    }
}
