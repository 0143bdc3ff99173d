//! Machines by one name: what the devices are, and how they are linked.

use crate::describe::{MachineText, parse_machine, shipped_levels};
use crate::device::DeviceProfile;
use crate::error::ClusterError;
use crate::topology::{Cluster, Count, Level};

/// Machines of as many nodes as a module has devices for: the name, the profile of the devices, and the shipped
/// cluster whose nodes they are.
const NODES: [(&str, &str, &str); 4] = [
    ("a100", "a100", "dgx-a100"),
    ("b200", "b200", "dgx-b200"),
    ("h100", "h100", "dgx-h100"),
    ("h200", "h200", "dgx-h100"),
];

/// Shipped clusters of a fixed size, each with the profile of its devices.
const FIXED: [(&str, &str); 5] = [
    ("p2-a100", "a100"),
    ("p2-v100", "v100"),
    ("tpuv3", "tpuv3"),
    ("tpuv3-slice", "tpuv3"),
    ("ethernet", DEFAULT_DEVICE),
];

/// The device where none is named.
pub const DEFAULT_DEVICE: &str = "h200";

/// The word for one switch, after a device and a colon.
const SWITCH: &str = "switch";

/// A machine as a user names it. Some names stand for any number of devices: [`MachineName::with_devices`] makes the
/// machine of a module.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineName {
    text: String,
    device: DeviceProfile,
    links: Links,
}

/// How the devices of a name are linked.
#[derive(Clone, PartialEq, Debug)]
enum Links {
    /// All at one switch, however many.
    Switch,
    /// Nodes of a shipped machine: so many, or as many as the devices fill.
    Nodes { name: &'static str, cluster: &'static str, n_nodes: Option<String> },
    /// A cluster with a number of devices of its own.
    Fixed(Cluster),
}

impl MachineName {
    /// Reads a machine:
    ///
    /// - `h100`, `h200`, `a100` or `b200` (or `dgx-h100` and so on): full nodes of eight, and the rest in one more;
    ///   `h200:4`: four nodes, with as many devices each
    /// - `p2-a100:2`, `tpuv3-slice:8x8`, …: a shipped cluster of a fixed size, with its devices
    /// - `[(node,2),(gpu,8)]`: a hierarchy as [`Cluster::from_arg`] reads it, of [`DEFAULT_DEVICE`]s;
    ///   `a100:[(node,2),(gpu,8)]` of another device
    /// - `a100:switch`: any number of these devices at one switch
    /// - the text of a TOML description: a cluster's, with `device = "a100"` or a table `[device]` beside its levels; without
    ///   levels the devices hang at one switch
    ///
    /// Files are the caller's business: read them and give their text.
    ///
    /// # Errors
    /// The place, what was expected and what was found.
    pub fn parse(text: &str) -> Result<MachineName, ClusterError> {
        let text = text.trim();
        // Neither a hierarchy nor a name has an equals sign, and every description has.
        if text.contains('=') {
            let MachineText { name, device, cluster } = parse_machine(text)?;
            let device = device.map_or_else(|| DeviceProfile::from_arg(DEFAULT_DEVICE), Ok)?;
            return Ok(MachineName { text: name, device, links: cluster.map_or(Links::Switch, Links::Fixed) });
        }
        let named = |device: &str, links: Links| {
            Ok(MachineName { text: text.into(), device: DeviceProfile::from_arg(device)?, links })
        };
        if text.starts_with('[') {
            return named(DEFAULT_DEVICE, Links::Fixed(Cluster::from_arg(text)?));
        }
        let (name, size) = text.split_once(':').map_or((text, None), |(name, size)| (name, Some(size.trim())));
        match size {
            Some(SWITCH) => return named(name, Links::Switch),
            Some(hierarchy) if hierarchy.starts_with('[') => {
                return named(name, Links::Fixed(Cluster::from_arg(hierarchy)?));
            }
            Some(_) | None => {}
        }
        if let Some((_, device)) = FIXED.iter().find(|(known, _)| *known == name) {
            return named(device, Links::Fixed(Cluster::from_arg(text)?));
        }
        let short = name.strip_prefix("dgx-").unwrap_or(name);
        let Some(&(name, device, cluster)) = NODES.iter().find(|(known, _, _)| *known == short) else {
            return Err(MachineName::unknown(name));
        };
        named(device, Links::Nodes { name, cluster, n_nodes: size.map(str::to_string) })
    }

    /// The error about a name that no machine has.
    fn unknown(name: &str) -> ClusterError {
        let what = "machine (a name, `h200:4` for four nodes, `[(name,count),…]`, or a .toml file)";
        let error = ClusterError::unknown(what, name, MachineName::names());
        match DeviceProfile::shipped().any(|device| device == name) {
            true => {
                let found =
                    format!("a device, `{name}`: how it is linked is open, as `{name}:[(gpu,8)]` or `{name}:{SWITCH}`");
                ClusterError { found, ..error }
            }
            false => error,
        }
    }

    /// The profile of each device, and the links between `n_devices` of them; `None` for one switch. A cluster of a fixed size
    /// keeps its own number of devices.
    ///
    /// # Errors
    /// The nodes cannot be equal, or a node would have more devices than it holds.
    pub fn with_devices(&self, n_devices: u32) -> Result<(DeviceProfile, Option<Cluster>), ClusterError> {
        let cluster = match &self.links {
            Links::Switch => None,
            Links::Fixed(cluster) => Some(cluster.clone()),
            Links::Nodes { name, cluster, n_nodes } => {
                Some(nodes(name, cluster, n_nodes.as_deref(), n_devices.max(1))?)
            }
        };
        Ok((self.device.clone(), cluster))
    }

    /// The profile of each device.
    pub fn device(&self) -> &DeviceProfile {
        &self.device
    }

    /// The number of devices, where the name says it.
    pub fn n_devices(&self) -> Option<u32> {
        match &self.links {
            Links::Fixed(cluster) => Some(cluster.n_devices()),
            Links::Switch | Links::Nodes { .. } => None,
        }
    }

    /// The number of nodes, where the name says it.
    pub fn n_nodes(&self) -> Option<u32> {
        match &self.links {
            Links::Nodes { n_nodes, .. } => n_nodes.as_ref()?.parse().ok(),
            Links::Switch | Links::Fixed(_) => None,
        }
    }

    /// The names that [`MachineName::parse`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        NODES.iter().map(|(name, _, _)| *name).chain(FIXED.iter().map(|(name, _)| *name))
    }

    /// The names of machines that have as many nodes as a module has devices for.
    pub fn of_nodes() -> impl Iterator<Item = &'static str> + Clone {
        NODES.iter().map(|(name, _, _)| *name)
    }

    /// The machine whose devices the driver calls `model`, as `NVIDIA H200`.
    pub fn of_model(model: &str) -> Option<&'static str> {
        let words: Vec<String> = model.split([' ', '-']).map(str::to_lowercase).collect();
        MachineName::of_nodes().find(|name| words.iter().any(|word| word == name))
    }
}

/// The name as it was given; that of a description.
impl std::fmt::Display for MachineName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Nodes of a shipped cluster with so many devices.
fn nodes(short: &str, cluster: &str, n_nodes: Option<&str>, n_devices: u32) -> Result<Cluster, ClusterError> {
    let (levels, launch_s) = shipped_levels(cluster)?;
    let [node, gpu] = levels.as_slice() else {
        return Err(ClusterError::new("machine", "nodes and devices", format!("{} levels", levels.len())));
    };
    let n_fit = match gpu.count {
        Count::Same(n) => n.max(1),
        Count::Each(ref each) => each.first().copied().unwrap_or(1).max(1),
    };
    let counts = match n_nodes {
        None => of_full_nodes(n_devices, n_fit),
        Some(text) => of_nodes(text, n_devices, n_fit)?,
    };
    let inner = Level { count: Count::Each(counts.clone()), ..gpu.clone() };
    let outer = Level { count: Count::Same(counts.len() as u32), ..node.clone() };
    let levels = if counts.len() == 1 { vec![inner] } else { vec![outer, inner] };
    let are_equal = counts.windows(2).all(|two| two[0] == two[1]);
    let name = match counts.len() {
        1 => format!("one dgx-{short}"),
        n if are_equal => format!("{n} x dgx-{short}"),
        n => format!("{n} x dgx-{short}, the last with {} devices", counts.last().copied().unwrap_or(0)),
    };
    Cluster::new(name, levels, launch_s)
}

/// Devices of each node: full ones, and one with the rest.
fn of_full_nodes(n_devices: u32, n_fit: u32) -> Vec<u32> {
    let rest = n_devices % n_fit;
    let full = std::iter::repeat_n(n_fit, (n_devices / n_fit) as usize);
    full.chain((rest > 0).then_some(rest)).collect()
}

/// Devices of each of as many nodes as the text says.
fn of_nodes(text: &str, n_devices: u32, n_fit: u32) -> Result<Vec<u32>, ClusterError> {
    let wrong = |expected: String, found: String| Err(ClusterError::new("machine: nodes", expected, found));
    match text.parse::<u32>() {
        Ok(0) | Err(_) => wrong("a number such as `4`".into(), format!("`{text}`")),
        Ok(n) if !n_devices.is_multiple_of(n) => {
            wrong(format!("a divisor of the {n_devices} devices"), format!("{n} nodes"))
        }
        Ok(n) if n_devices / n > n_fit => {
            let least = n_devices.div_ceil(n_fit);
            wrong(format!("at least {least} nodes of {n_fit} for {n_devices} devices"), format!("{n}"))
        }
        Ok(n) => Ok(vec![n_devices / n; n as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, n_devices: u32) -> (String, Cluster) {
        let name = MachineName::parse(text).expect(text);
        let (device, cluster) = name.with_devices(n_devices).expect(text);
        (device.name, cluster.expect("a cluster"))
    }

    #[test]
    fn a_machine_has_as_many_devices_as_are_asked_for() {
        for n in 1..=40 {
            let (device, cluster) = made("h200", n);
            assert_eq!((cluster.n_devices(), device.as_str()), (n, "h200"));
            assert_eq!(cluster.levels().len(), if n <= 8 { 1 } else { 2 }, "{n}");
        }
        assert_eq!(made("dgx-h100", 8).1.name(), "one dgx-h100");
        let four = made("a100:4", 16).1;
        assert_eq!((four.name(), four.hierarchy()), ("4 x dgx-a100", Some(vec![4, 4])));
        assert_eq!(made("b200", 20).1.regular_hierarchy(), [5, 4]);
    }

    #[test]
    fn links_and_devices_are_said_in_one_word() {
        let (device, cluster) = made("a100:[(node,2),(gpu,4)]", 1);
        assert_eq!((device.as_str(), cluster.n_devices()), ("a100", 8));
        assert_eq!(made("[(node,2),(gpu,4)]", 1).0, DEFAULT_DEVICE);
        let (device, cluster) = made("p2-a100:2", 1);
        assert_eq!((device.as_str(), cluster.n_devices()), ("a100", 32));
        let switch = MachineName::parse("v100:switch").expect("a machine");
        assert_eq!((switch.device().name.as_str(), switch.n_devices()), ("v100", None));
        assert_eq!(switch.with_devices(3).expect("any number").1, None);
        for name in MachineName::names() {
            MachineName::parse(name).and_then(|machine| machine.with_devices(8)).expect(name);
        }
    }

    #[test]
    fn a_description_says_links_device_or_both() {
        let level = "[[level]]\nname = \"gpu\"\ncount = 4\ngbytes_per_s = 100\n";
        let both = format!("name = \"pod\"\ndevice = \"a100\"\n{level}");
        let (device, cluster) = made(&both, 8);
        assert_eq!((device.as_str(), cluster.n_devices()), ("a100", 4));
        assert_eq!(made(&format!("name = \"pod\"\n{level}"), 8).0, DEFAULT_DEVICE);
        let profile = "name = \"own\"\nmemory_bytes_per_s = 1e12\nmemory_bytes = 1e10\nlaunch_s = 1e-6\n";
        let table = format!("name = \"pod\"\n{level}[device]\n{profile}[device.flops_per_s]\nf32 = 1e13\n");
        assert_eq!(made(&table, 8).0, "own");
        let alone = format!("name = \"one\"\n[device]\n{profile}[device.flops_per_s]\nf32 = 1e13\n");
        let alone = MachineName::parse(&alone).expect("a device alone");
        assert_eq!((alone.with_devices(5).expect("any number").1, alone.device().name.as_str()), (None, "own"));
        // The file of a device alone, as `--device` took it.
        let error = MachineName::parse(&format!("{profile}[flops_per_s]\nf32 = 1e13\n")).expect_err("a profile");
        assert!(error.to_string().contains("a table `[device]`"), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let error = |arg: &str, n: u32| {
            let made = MachineName::parse(arg).and_then(|name| name.with_devices(n));
            made.expect_err(arg).to_string()
        };
        assert!(error("h2", 8).contains("a100, b200, h100, h200"), "{}", error("h2", 8));
        assert!(error("h200:3", 8).contains("a divisor of the 8 devices"), "{}", error("h200:3", 8));
        assert!(error("h200:1", 16).contains("at least 2 nodes of 8"), "{}", error("h200:1", 16));
        assert!(error("h200:0", 8).contains("a number such as `4`"));
        assert!(error("h200:x", 8).contains("a number such as `4`"));
        assert!(error("v100", 8).contains("`v100:[(gpu,8)]`"), "{}", error("v100", 8));
        assert!(error("name = \"x\"", 8).contains("a level or a device"), "{}", error("name = \"x\"", 8));
    }

    #[test]
    fn models_of_the_driver_are_known() {
        assert_eq!(MachineName::of_model("NVIDIA H200"), Some("h200"));
        assert_eq!(MachineName::of_model("NVIDIA A100-SXM4-80GB"), Some("a100"));
        assert_eq!(MachineName::of_model("NVIDIA GeForce RTX 4090"), None);
    }
}
