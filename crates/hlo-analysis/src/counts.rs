//! How many replicas and partitions a module runs on, where its header does not say: the groups of its collectives do.
//!
//! XLA keeps the counts in the configuration of a compilation, which a proto, and a text made from one, does not hold. The ids of
//! a group are those of replicas, of partitions, or of all devices, as the collective's `channel_id` and `use_global_device_ids` say; where
//! they cover 0 to n−1, there are n. Ids of all devices are taken for partitions, as XLA's partitioner writes them, unless another
//! collective names replicas. Linear in the instructions.

use hlo_ir::collective::Participants;
use hlo_ir::groups::GroupMode;
use hlo_ir::{InstId, Module};
use std::fmt;

/// Counts that were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Replicas.
    pub replicas: i64,
    /// Partitions.
    pub partitions: i64,
    /// The collective that says so.
    pub from: InstId,
}

/// Why the collectives do not say how many devices there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CountsError {
    /// Two of them contradict each other.
    Contradicting {
        /// What one says: `8 partitions by %x`.
        one: String,
        /// What the other says.
        other: String,
    },
    /// The first of them, of which none names its devices.
    Unnamed(String),
}

impl fmt::Display for CountsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CountsError::Contradicting { one, other } => {
                write!(f, "the header has no counts, and collectives contradict each other: {one}, {other}")
            }
            CountsError::Unnamed(name) => {
                write!(f, "the header has no counts, and no collective names its devices (`%{name}`: all there are)")
            }
        }
    }
}

impl std::error::Error for CountsError {}

/// The ids of one kind that groups cover.
#[derive(Clone, Copy, Default)]
struct Covered {
    /// How many, and the first collective that says so.
    found: Option<(i64, InstId)>,
}

impl Covered {
    fn add(&mut self, module: &Module, what: &str, n: i64, inst: InstId) -> Result<(), CountsError> {
        let Some((known, first)) = self.found else {
            self.found = Some((n, inst));
            return Ok(());
        };
        if known == n {
            return Ok(());
        }
        let says = |n: i64, inst: InstId| format!("{n} {what} by `%{}`", module.inst_name(inst));
        Err(CountsError::Contradicting { one: says(known, first), other: says(n, inst) })
    }
}

/// The counts of a module whose header has none. `None` where the header says them, or nothing exchanges anything.
///
/// # Errors
/// The collectives contradict each other, or none names its devices.
pub fn find_counts(module: &Module) -> Result<Option<Counts>, CountsError> {
    if module.n_devices() > 1 {
        return Ok(None);
    }
    let [mut replicas, mut partitions, mut devices] = [Covered::default(); 3];
    let mut unnamed = None;
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        let Some(view) = module.inst(inst).attrs.collective() else { continue };
        let Participants::Groups { groups, .. } = view.participants else { continue };
        let (Some(mode), Some(lists)) = (view.mode(), groups.expand()) else { continue };
        if lists.is_empty() {
            unnamed.get_or_insert(inst);
            continue;
        }
        let n = lists.iter().map(Vec::len).sum::<usize>() as i64;
        if !lists.iter().flatten().all(|id| (0..n).contains(id)) {
            continue;
        }
        match mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => {
                replicas.add(module, "replicas", n, inst)?;
            }
            GroupMode::CrossPartition => partitions.add(module, "partitions", n, inst)?,
            GroupMode::Flattened => devices.add(module, "devices", n, inst)?,
        }
    }
    joined(module, [replicas.found, partitions.found, devices.found], unnamed)
}

/// The counts from the numbers of replicas, of partitions and of devices that are known.
fn joined(
    module: &Module,
    [replicas, partitions, devices]: [Option<(i64, InstId)>; 3],
    unnamed: Option<InstId>,
) -> Result<Option<Counts>, CountsError> {
    let Some((_, from)) = devices.or(partitions).or(replicas) else {
        return match unnamed {
            Some(inst) => Err(CountsError::Unnamed(module.inst_name(inst).to_string())),
            None => Ok(None),
        };
    };
    let (r, p) = (replicas.map(|(n, _)| n), partitions.map(|(n, _)| n));
    let counts = match (r, p, devices) {
        (r, Some(p), None) => (r.unwrap_or(1), p),
        (r, None, None) => (r.unwrap_or(1), 1),
        (None, None, Some((d, _))) => (1, d),
        (Some(r), None, Some((d, _))) => (r, d / r.max(1)),
        (None, Some(p), Some((d, _))) => (d / p.max(1), p),
        (Some(r), Some(p), Some(_)) => (r, p),
    };
    let (replicas, partitions) = counts;
    if let Some((d, inst)) = devices
        && replicas.checked_mul(partitions) != Some(d)
    {
        let one = format!("{d} devices by `%{}`", module.inst_name(inst));
        let other = [(r, "replicas"), (p, "partitions")];
        let other =
            other.iter().filter_map(|(n, what)| Some(format!("{} {what}", (*n)?))).collect::<Vec<_>>().join(" of ");
        return Err(CountsError::Contradicting { one, other });
    }
    Ok((replicas * partitions > 1).then_some(Counts { replicas, partitions, from }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(collectives: &[&str]) -> Result<Option<(i64, i64)>, String> {
        let lines: Vec<String> = collectives
            .iter()
            .enumerate()
            .map(|(i, attrs)| format!("  c{i} = f32[4] all-reduce(x), to_apply=add{attrs}\n"))
            .collect();
        let add = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n";
        let text = format!(
            "HloModule m\n\n{add}\nENTRY e {{\n  x = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x)\n}}\n",
            lines.concat()
        );
        let module = hlo_text::parse_module(&text).expect("valid text").module;
        let found = find_counts(&module).map_err(|error| error.to_string())?;
        Ok(found.map(|counts| (counts.replicas, counts.partitions)))
    }

    const FLAT: &str = ", channel_id=1, use_global_device_ids=true, replica_groups=";

    #[test]
    fn ids_say_what_they_are_of() {
        assert_eq!(counts(&[", replica_groups={{0,1},{2,3}}"]), Ok(Some((4, 1))));
        assert_eq!(counts(&[&format!("{FLAT}{{{{0,2}},{{1,3}}}}")]), Ok(Some((1, 4))));
        assert_eq!(counts(&[&format!("{FLAT}[2,3]<=[6]"), ", replica_groups={{1,0}}"]), Ok(Some((2, 3))));
        assert_eq!(counts(&[&format!("{FLAT}mesh['d'=8] {{'d'}}")]), Ok(Some((1, 8))));
        assert_eq!(counts(&[", replica_groups={{0}}"]), Ok(None));
        assert_eq!(counts(&[]), Ok(None));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let error = counts(&[", replica_groups={{0,1}}", ", replica_groups={{0,1,2}}"]).expect_err("two counts");
        assert!(error.ends_with("2 replicas by `%c0`, 3 replicas by `%c1`"), "{error}");
        let error = counts(&[&format!("{FLAT}{{{{0,1,2}}}}"), ", replica_groups={{0,1}}"]).expect_err("3 is not even");
        assert!(error.ends_with("3 devices by `%c0`, 2 replicas"), "{error}");
        let error = counts(&[", replica_groups={}"]).expect_err("all there are");
        assert!(error.contains("`%c0`"), "{error}");
        // Ids with a gap say nothing; the verifier refuses them.
        assert_eq!(counts(&[", replica_groups={{0,5}}"]), Ok(None));
    }
}
