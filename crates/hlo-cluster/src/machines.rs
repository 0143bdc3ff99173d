//! Machines by one name: what the devices are and how nodes of them are linked, for any number of devices.

use crate::describe::shipped_levels;
use crate::error::ClusterError;
use crate::topology::{Cluster, Count, Level};

/// A machine: the name that a user says, the profile of its devices, and the shipped cluster whose nodes it is made of.
const MACHINES: [(&str, &str, &str); 4] = [
    ("a100", "a100", "dgx-a100"),
    ("b200", "b200", "dgx-b200"),
    ("h100", "h100", "dgx-h100"),
    ("h200", "h200", "dgx-h100"),
];

/// What a machine's name stands for.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedMachine {
    /// The device profile's name.
    pub device: &'static str,
    /// Nodes of these devices, as many as were asked for.
    pub cluster: Cluster,
}

impl NamedMachine {
    /// `h100`, `h200`, `a100` or `b200` (or `dgx-h100` and so on) with `n_devices` devices: full nodes of eight, and the rest in one
    /// more. `h200:4` is four nodes, with as many devices each.
    ///
    /// # Errors
    /// No machine has this name, the nodes cannot be equal, or a node would have more devices than it holds.
    pub fn find(arg: &str, n_devices: u32) -> Result<NamedMachine, ClusterError> {
        let (name, n_nodes) = arg.trim().split_once(':').map_or((arg.trim(), None), |(name, n)| (name, Some(n)));
        let short = name.strip_prefix("dgx-").unwrap_or(name);
        let names = MACHINES.iter().map(|(name, _, _)| *name);
        let &(_, device, nodes) = MACHINES
            .iter()
            .find(|(known, _, _)| *known == short)
            .ok_or_else(|| ClusterError::unknown("machine (a name, or with nodes `h200:4`)", name, names))?;
        let (levels, launch_s) = shipped_levels(nodes)?;
        let [node, gpu] = levels.as_slice() else {
            return Err(ClusterError::new("machine", "nodes and devices", format!("{} levels", levels.len())));
        };
        let n_fit = match gpu.count {
            Count::Same(n) => n.max(1),
            Count::Each(ref each) => each.first().copied().unwrap_or(1).max(1),
        };
        let n_devices = n_devices.max(1);
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
        Ok(NamedMachine { device, cluster: Cluster::new(name, levels, launch_s)? })
    }

    /// The names that [`NamedMachine::find`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MACHINES.iter().map(|(name, _, _)| *name)
    }

    /// The machine whose devices the driver calls `model`, as `NVIDIA H200`.
    pub fn of_model(model: &str) -> Option<&'static str> {
        let words: Vec<String> = model.split([' ', '-']).map(str::to_lowercase).collect();
        NamedMachine::names().find(|name| words.iter().any(|word| word == name))
    }
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
    match text.trim().parse::<u32>() {
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

    #[test]
    fn a_machine_has_as_many_devices_as_are_asked_for() {
        for n in 1..=40 {
            let machine = NamedMachine::find("h200", n).expect("a machine");
            assert_eq!((machine.cluster.n_devices(), machine.device), (n, "h200"));
            assert_eq!(machine.cluster.levels().len(), if n <= 8 { 1 } else { 2 }, "{n}");
        }
        assert_eq!(NamedMachine::find("dgx-h100", 8).expect("a machine").cluster.name(), "one dgx-h100");
        let four = NamedMachine::find("a100:4", 16).expect("a machine").cluster;
        assert_eq!((four.name(), four.hierarchy()), ("4 x dgx-a100", Some(vec![4, 4])));
        assert_eq!(NamedMachine::find("b200", 20).expect("a machine").cluster.regular_hierarchy(), [5, 4]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let error = |arg: &str, n: u32| NamedMachine::find(arg, n).expect_err(arg).to_string();
        assert!(error("h2", 8).contains("a100, b200, h100, h200"), "{}", error("h2", 8));
        assert!(error("h200:3", 8).contains("a divisor of the 8 devices"), "{}", error("h200:3", 8));
        assert!(error("h200:1", 16).contains("at least 2 nodes of 8"), "{}", error("h200:1", 16));
        assert!(error("h200:0", 8).contains("a number such as `4`"));
        assert!(error("h200:x", 8).contains("a number such as `4`"));
    }

    #[test]
    fn models_of_the_driver_are_known() {
        assert_eq!(NamedMachine::of_model("NVIDIA H200"), Some("h200"));
        assert_eq!(NamedMachine::of_model("NVIDIA A100-SXM4-80GB"), Some("a100"));
        assert_eq!(NamedMachine::of_model("NVIDIA GeForce RTX 4090"), None);
    }
}
