//! The shape of a cluster: levels of entities, outermost first, and the links of each level.
//!
//! Devices are the entities of the innermost level, numbered row-major over the levels.

use crate::error::ClusterError;

/// How many entities a level has in each entity of the level outside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Count {
    /// The same number everywhere.
    Same(u32),
    /// One number for each parent, in order: node counts may differ.
    Each(Vec<u32>),
}

/// How the siblings of one level reach each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LevelNetwork {
    /// Each entity has one link into a switch, in and out.
    Switched,
    /// Siblings stand on a ring; each neighbouring pair has an edge in each direction.
    Ring,
    /// Siblings stand on a grid of these extents, row-major, an edge in each direction between neighbours; routes go
    /// dim by dim.
    Torus {
        /// Extents, the most significant first; their product is the level's count.
        dims: Vec<u32>,
        /// Whether each line closes to a ring (a torus) or not (a mesh).
        wraps: bool,
    },
}

/// A second way out for flows that a ring or a torus does not carry: to siblings that are no neighbours on the ring,
/// and out of the parent.
#[derive(Clone, PartialEq, Debug)]
pub struct Bypass {
    /// Bandwidth of one such link, in and out, bytes per second.
    pub bytes_per_s: f64,
    /// How many consecutive entities share one link.
    pub shared_by: u32,
    /// Siblings further apart than a domain of so many consecutive entities meet outside of the parent's link.
    pub domain: Option<u32>,
}

/// One level of the hierarchy.
#[derive(Clone, PartialEq, Debug)]
pub struct Level {
    /// What its entities are called: `node`, `gpu`.
    pub name: String,
    /// How many there are in each parent.
    pub count: Count,
    /// How siblings reach each other.
    pub network: LevelNetwork,
    /// Bandwidth of one link (switched: an entity's, in and out; ring, torus: an edge's, each way), bytes per second.
    pub bytes_per_s: f64,
    /// Time of one hop between siblings for an empty message, seconds.
    pub latency_s: f64,
    /// How many consecutive entities share one link into the switch (shared network cards); 1 where not.
    pub shared_by: u32,
    /// The other way out of a ring or torus.
    pub bypass: Option<Bypass>,
}

impl Level {
    /// A level whose entities hang at a switch, a link each.
    pub fn switched(name: impl Into<String>, count: u32, bytes_per_s: f64, latency_s: f64) -> Level {
        Level {
            name: name.into(),
            count: Count::Same(count),
            network: LevelNetwork::Switched,
            bytes_per_s,
            latency_s,
            shared_by: 1,
            bypass: None,
        }
    }
}

/// Most devices of a cluster: what the tables below stay small for.
pub(crate) const MAX_DEVICES: u64 = 1 << 22;
/// Most levels.
pub(crate) const MAX_LEVELS: usize = 12;

/// A machine: levels, links and latencies. Built by [`Cluster::from_arg`], [`Cluster::from_toml`], [`Cluster::flat`] or
/// [`Cluster::new`].
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    name: String,
    levels: Vec<Level>,
    launch_s: f64,
    n_devices: u32,
    /// By level, by device: the entity's number among all of the level.
    pub(crate) entity: Vec<Vec<u32>>,
    /// By level, by entity: its place among its siblings.
    pub(crate) place: Vec<Vec<u32>>,
}

impl Cluster {
    /// A cluster of these levels, outermost first; `launch_s` is what every collective costs before its first byte
    /// moves, in seconds.
    ///
    /// # Errors
    /// No level, no device, too many of either, a number that is not positive, extents that do not fit the count.
    pub fn new(name: impl Into<String>, levels: Vec<Level>, launch_s: f64) -> Result<Cluster, ClusterError> {
        if levels.is_empty() || levels.len() > MAX_LEVELS {
            return Err(ClusterError::new("levels", format!("1 to {MAX_LEVELS}"), levels.len().to_string()));
        }
        check_us("launch", launch_s)?;
        let (mut entity, mut place) = (Vec::new(), Vec::new());
        let mut n_parents = 1u32;
        let mut children = Vec::new();
        for (index, level) in levels.iter().enumerate() {
            let at = format!("level {} ({})", index + 1, level.name);
            let counts = check_level(level, &at, n_parents)?;
            place.push(counts.iter().flat_map(|&n| 0..n).collect::<Vec<u32>>());
            n_parents = place.last().map_or(0, |p: &Vec<u32>| p.len() as u32);
            children.push(counts);
        }
        // Bottom up: which entity of each level a device lies in.
        let mut of_device: Vec<u32> = (0..n_parents).collect();
        for counts in children.iter().rev() {
            let parent_of: Vec<u32> =
                counts.iter().enumerate().flat_map(|(p, &n)| std::iter::repeat_n(p as u32, n as usize)).collect();
            let next = of_device.iter().map(|&e| parent_of[e as usize]).collect();
            entity.push(std::mem::replace(&mut of_device, next));
        }
        entity.reverse();
        Ok(Cluster { name: name.into(), levels, launch_s, n_devices: n_parents, entity, place })
    }

    /// `n` devices at one switch; `gbytes_per_s` (10⁹ bytes) in and out each, `latency_us` for a hop and for a launch.
    /// `n` is taken as 1 where it is 0, a bandwidth beyond the limits as the nearest one within.
    pub fn flat(n: u32, gbytes_per_s: f64, latency_us: f64) -> Cluster {
        let n = n.clamp(1, MAX_DEVICES as u32);
        let bytes_per_s = gbytes_per_s.max(*GBYTES_PER_S.start()).min(*GBYTES_PER_S.end()) * 1e9;
        let latency_s = if latency_us > 0.0 { latency_us * 1e-6 } else { 0.0 };
        let levels = vec![Level::switched("device", n, bytes_per_s, latency_s)];
        let (entity, place) = (vec![(0..n).collect()], vec![(0..n).collect()]);
        Cluster { name: format!("flat {n}"), levels, launch_s: latency_s, n_devices: n, entity, place }
    }

    /// Its name, for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn rename(&mut self, name: &str) {
        self.name = name.into();
    }

    /// The levels, outermost first.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Number of devices.
    pub fn n_devices(&self) -> u32 {
        self.n_devices
    }

    /// What every collective costs before its first byte moves, in seconds.
    pub fn launch_s(&self) -> f64 {
        self.launch_s
    }

    /// The level counts, outermost first, if every parent has as many children as its siblings.
    pub fn hierarchy(&self) -> Option<Vec<u32>> {
        let same = |level: &Level| match &level.count {
            Count::Same(n) => Some(*n),
            Count::Each(each) => each.first().copied().filter(|first| each.iter().all(|n| n == first)),
        };
        self.levels.iter().map(same).collect()
    }

    /// A regular hierarchy of the same devices, outermost first, one number for each level: equal blocks of consecutive
    /// devices that lie in one entity of their level each, as large as they can be. Where every entity has as many children
    /// as its siblings these are the counts; nodes of 8, 8 and 4 devices are 5 blocks of 4.
    pub fn regular_hierarchy(&self) -> Vec<u32> {
        let (mut counts, mut outer) = (Vec::with_capacity(self.levels.len()), self.n_devices);
        for of_device in &self.entity {
            let n_inside = of_device.chunk_by(|a, b| a == b).fold(0, |block, of| gcd(block, of.len() as u32)).max(1);
            counts.push(outer / n_inside);
            outer = n_inside;
        }
        counts
    }

    /// The same links without any latency or launch time: the regime of very large messages.
    pub fn without_latency(&self) -> Cluster {
        let mut cluster = self.clone();
        cluster.launch_s = 0.0;
        cluster.levels.iter_mut().for_each(|level| level.latency_s = 0.0);
        cluster
    }

    /// The outermost level at which two devices lie in different entities; none for a device and itself.
    pub(crate) fn parting_level(&self, a: u32, b: u32) -> Option<usize> {
        self.entity.iter().position(|of| of.get(a as usize) != of.get(b as usize))
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Beyond these, times would no longer be numbers.
const GBYTES_PER_S: std::ops::RangeInclusive<f64> = 1e-9..=1e9;
const MOST_US: f64 = 1e9;

fn check_bandwidth(place: &str, bytes_per_s: f64) -> Result<(), ClusterError> {
    let gbytes_per_s = bytes_per_s / 1e9;
    if GBYTES_PER_S.contains(&gbytes_per_s) {
        return Ok(());
    }
    let expected = format!("{:e} to {:e}", GBYTES_PER_S.start(), GBYTES_PER_S.end());
    Err(ClusterError::new(format!("{place}: GB/s"), expected, format!("{gbytes_per_s:e}")))
}

fn check_us(place: &str, seconds: f64) -> Result<(), ClusterError> {
    let us = seconds * 1e6;
    if (0.0..=MOST_US).contains(&us) {
        return Ok(());
    }
    Err(ClusterError::new(format!("{place}: µs"), format!("zero to {MOST_US:e}"), format!("{us:e}")))
}

/// The children of each of `n_parents` parents.
fn check_level(level: &Level, at: &str, n_parents: u32) -> Result<Vec<u32>, ClusterError> {
    if level.name.trim().is_empty() {
        return Err(ClusterError::new(format!("{at}: name"), "a name", "none"));
    }
    check_bandwidth(at, level.bytes_per_s)?;
    check_us(at, level.latency_s)?;
    let counts = match &level.count {
        Count::Same(n) => vec![*n; n_parents as usize],
        Count::Each(each) => each.clone(),
    };
    if counts.len() != n_parents as usize {
        let expected = format!("one number for each of {n_parents} entities of the level outside");
        return Err(ClusterError::new(format!("{at}: count"), expected, counts.len().to_string()));
    }
    if counts.contains(&0) {
        return Err(ClusterError::new(format!("{at}: count"), "at least 1", "0"));
    }
    let total = counts.iter().map(|&n| u64::from(n)).sum::<u64>();
    if total > MAX_DEVICES {
        return Err(ClusterError::new(
            format!("{at}: count"),
            format!("at most {MAX_DEVICES} entities"),
            total.to_string(),
        ));
    }
    for shared_by in std::iter::once(level.shared_by).chain(level.bypass.iter().map(|b| b.shared_by)) {
        if shared_by == 0 || u64::from(shared_by) > total {
            let expected = format!("1 to {total}, the entities of the level");
            return Err(ClusterError::new(format!("{at}: shared_by"), expected, shared_by.to_string()));
        }
    }
    if let Some(bypass) = &level.bypass {
        check_bandwidth(&format!("{at}: bypass"), bypass.bytes_per_s)?;
        if bypass.domain == Some(0) {
            return Err(ClusterError::new(format!("{at}: bypass: domain"), "at least 1", "0"));
        }
        if level.network == LevelNetwork::Switched {
            return Err(ClusterError::new(format!("{at}: bypass"), "a ring or a torus", "a switched level"));
        }
    }
    if let LevelNetwork::Torus { dims, .. } = &level.network {
        let product = dims.iter().try_fold(1u32, |p, &d| p.checked_mul(d));
        if dims.is_empty() || counts.iter().any(|&n| Some(n) != product) {
            let expected = format!("extents whose product is {}", counts.first().copied().unwrap_or(0));
            return Err(ClusterError::new(format!("{at}: dims"), expected, format!("{dims:?}")));
        }
    }
    Ok(counts)
}
