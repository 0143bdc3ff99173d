//! Device profiles and the roofline: what one operator, or one fused cluster of operators, takes on one device.

use crate::error::ClusterError;
use crate::toml_error::toml_error;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The shipped profiles: name and TOML.
const SHIPPED: [(&str, &str); 6] = [
    ("a100", include_str!("../profiles/a100.toml")),
    ("b200", include_str!("../profiles/b200.toml")),
    ("h100", include_str!("../profiles/h100.toml")),
    ("h200", include_str!("../profiles/h200.toml")),
    ("tpuv3", include_str!("../profiles/tpuv3.toml")),
    ("v100", include_str!("../profiles/v100.toml")),
];

/// The element types that a profile may have rates for. A name without its format, as `f8`, stands for all of its width.
const TYPES: [&str; 30] = [
    "f64",
    "f32",
    "tf32",
    "bf16",
    "f16",
    "f8",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e4m3",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e4m3b11fnuz",
    "f8e3m4",
    "f8e8m0fnu",
    "f4e2m1fn",
    "s8",
    "u8",
    "s1",
    "s2",
    "s4",
    "s16",
    "s32",
    "s64",
    "u1",
    "u2",
    "u4",
    "u16",
    "u32",
    "u64",
    "pred",
];

/// One device: peaks of the vendor, not measurements.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Its name, for reports.
    pub name: String,
    /// Memory bandwidth, reads and writes together, bytes per second.
    pub memory_bytes_per_s: f64,
    /// Memory size in bytes.
    pub memory_bytes: f64,
    /// Bandwidth between the device and the memory of its host, one way, bytes per second.
    #[serde(default = "pcie_5")]
    pub host_bytes_per_s: f64,
    /// What every kernel costs beside its work, seconds.
    pub launch_s: f64,
    /// Peak rate by dtype (`bf16`, `f32`, …; `f8` and `s8` stand for all of their width), operations per second, a
    /// multiply-add counting as two.
    flops_per_s: BTreeMap<String, f64>,
    /// Which collectives XLA combines by itself where it compiles for this device.
    #[serde(default)]
    pub xla_combiner: XlaCombiner,
}

/// Thresholds of XLA's own combiner of collectives: one for each kind, in bytes of the results; 0 where it combines none of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XlaCombiner {
    /// `xla_gpu_all_reduce_combine_threshold_bytes`.
    pub all_reduce_bytes: u64,
    /// `xla_gpu_all_gather_combine_threshold_bytes`.
    pub all_gather_bytes: u64,
    /// `xla_gpu_reduce_scatter_combine_threshold_bytes`.
    pub reduce_scatter_bytes: u64,
    /// Most collectives in one: `xla_gpu_collective_combine_threshold_count`.
    pub most_members: usize,
}

impl Default for XlaCombiner {
    /// XLA's defaults for GPUs: `kDefaultAllReduceCombineThreshold` and the others of `xla/service/collective_utils.h`, July 2026.
    fn default() -> XlaCombiner {
        const BYTES: u64 = (30 << 20) + 7;
        XlaCombiner {
            all_reduce_bytes: BYTES,
            all_gather_bytes: BYTES,
            reduce_scatter_bytes: BYTES,
            most_members: 2048,
        }
    }
}

/// PCIe 5.0 with 16 lanes, one way: what a description without a figure of its own has.
fn pcie_5() -> f64 {
    64e9
}

impl DeviceProfile {
    /// A profile from what a user writes as an argument: the name of a shipped profile, or the text of a TOML description.
    ///
    /// Files are the caller's business: read them and give their text here or to [`DeviceProfile::from_toml`].
    ///
    /// # Errors
    /// The name is not known, or the description is wrong.
    pub fn from_arg(name: &str) -> Result<DeviceProfile, ClusterError> {
        // No name has an equals sign, and every description has.
        if name.contains('=') {
            return DeviceProfile::from_toml(name);
        }
        let names = SHIPPED.iter().map(|(name, _)| *name);
        let (_, text) = SHIPPED
            .iter()
            .find(|(known, _)| *known == name.trim())
            .ok_or_else(|| ClusterError::unknown("device profile", name, names))?;
        DeviceProfile::from_toml(text)
    }

    /// A profile from the text of a TOML description; `profiles/h200.toml` in this crate is an example.
    ///
    /// # Errors
    /// The place, what was expected and what was found.
    pub fn from_toml(text: &str) -> Result<DeviceProfile, ClusterError> {
        let profile: DeviceProfile =
            toml::from_str(text).map_err(|error| toml_error("device profile", text, &error))?;
        profile.checked()
    }

    /// The profile, if its numbers can be.
    ///
    /// # Errors
    /// The field, what was expected and what was found.
    pub(crate) fn checked(self) -> Result<DeviceProfile, ClusterError> {
        let profile = self;
        let numbers = [
            ("memory_bytes_per_s", profile.memory_bytes_per_s),
            ("memory_bytes", profile.memory_bytes),
            ("host_bytes_per_s", profile.host_bytes_per_s),
            ("flops_per_s.f32", profile.flops_per_s.get("f32").copied().unwrap_or(f64::NAN)),
        ];
        if let Some(name) = profile.flops_per_s.keys().find(|name| !TYPES.contains(&name.as_str())) {
            return Err(ClusterError::unknown("element type of flops_per_s", name, TYPES.iter().copied()));
        }
        let rates = profile.flops_per_s.iter().map(|(name, rate)| (name.as_str(), *rate));
        for (place, number) in numbers.into_iter().chain(rates) {
            if !(number.is_finite() && number > 0.0) {
                let found = if number.is_nan() { "none".to_string() } else { number.to_string() };
                return Err(ClusterError::new(format!("device profile: {place}"), "a positive number", found));
            }
        }
        if !(profile.launch_s.is_finite() && profile.launch_s >= 0.0) {
            let found = profile.launch_s.to_string();
            return Err(ClusterError::new("device profile: launch_s", "a number, zero or more", found));
        }
        Ok(profile)
    }

    /// The names that [`DeviceProfile::from_arg`] knows.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Peak rate for a dtype, operations per second. A dtype without a row of its own takes that of its width if there
    /// is one (`f8e4m3fn` as `f8`), else that of `f32`.
    pub fn flops_per_s(&self, dtype: &str) -> f64 {
        let width = match dtype {
            "s8" | "u8" => "s8",
            _ if dtype.starts_with("f8") => "f8",
            _ => dtype,
        };
        // `from_toml` has seen to it that f32 is there.
        self.flops_per_s.get(width).or_else(|| self.flops_per_s.get("f32")).copied().unwrap_or(f64::INFINITY)
    }

    /// Roofline: the launch, and the longer of computing `flops` operations and moving `bytes` to and from memory.
    pub fn op_s(&self, flops: f64, bytes: f64, dtype: &str) -> f64 {
        self.launch_s + (flops / self.flops_per_s(dtype)).max(self.memory_s(bytes))
    }

    /// Time to copy `bytes` from the memory of the host or to it, seconds.
    pub fn host_copy_s(&self, bytes: f64) -> f64 {
        self.launch_s + bytes / self.host_bytes_per_s
    }

    /// Time to move `bytes` to and from memory, seconds.
    pub fn memory_s(&self, bytes: f64) -> f64 {
        bytes / self.memory_bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roofline_has_two_sides() {
        for name in DeviceProfile::shipped() {
            let device = DeviceProfile::from_arg(name).expect("a shipped profile");
            let (few, many) = (device.op_s(1.0, 1e9, "f32"), device.op_s(1e15, 1e9, "bf16"));
            assert_eq!(few, device.launch_s + 1e9 / device.memory_bytes_per_s);
            assert_eq!(many, device.launch_s + 1e15 / device.flops_per_s("bf16"));
        }
        let device = DeviceProfile::from_arg("h200").expect("a shipped profile");
        assert_eq!(device.flops_per_s("f8e5m2"), device.flops_per_s("f8e4m3fn"));
        assert_eq!(device.flops_per_s("s32"), device.flops_per_s("f32"));
    }

    /// Adam on f32 moves 28 bytes for each weight; on eight devices of this kind sharding saves 7/8 of that.
    #[test]
    fn sharding_adam_on_a_fast_memory_saves_five_picoseconds_a_weight() {
        let device = DeviceProfile::from_arg("h200").expect("a shipped profile");
        let saved = device.memory_s(28.0) * 7.0 / 8.0;
        assert!((saved * 1e12 - 5.1).abs() < 0.05, "{saved}");
        let cluster = crate::Cluster::from_arg("dgx-h100:1").expect("a shipped cluster").without_latency();
        let node = [(0..8).collect::<Vec<u32>>()];
        let gathered = cluster.collective_s(crate::Collective::AllGather, 8.0, &node, crate::Algo::Ring);
        assert!((gathered * 1e12 - 15.6).abs() < 0.05, "{gathered}");
    }

    #[test]
    fn wrong_profiles_say_where() {
        let error = |text: &str| DeviceProfile::from_toml(text).err().map_or("none".into(), |e| e.to_string());
        assert!(error("name = 3").contains("line 1, column 8"), "{}", error("name = 3"));
        let without = "name='x'\nmemory_bytes_per_s=1.0\nmemory_bytes=1.0\nlaunch_s=0.0\n[flops_per_s]\nbf16=1.0\n";
        assert_eq!(error(without), "device profile: flops_per_s.f32: expected a positive number, found none");
        assert_eq!(DeviceProfile::from_arg(without), DeviceProfile::from_toml(without));
        let misspelt = error(&without.replace("bf16", "bf61"));
        assert!(misspelt.contains("found `bf61` (did you mean `bf16`?)"), "{misspelt}");
        let h200 = include_str!("../profiles/h200.toml");
        assert_eq!(DeviceProfile::from_arg(h200), DeviceProfile::from_arg("h200"));
        let unknown = DeviceProfile::from_arg("h20").err().map_or("none".into(), |e| e.to_string());
        assert!(unknown.contains("did you mean `h200`"), "{unknown}");
    }
}
