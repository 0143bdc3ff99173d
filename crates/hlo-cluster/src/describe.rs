//! Descriptions of clusters as text: TOML, an inline hierarchy, or the name of a shipped one.

use crate::device::DeviceProfile;
use crate::error::ClusterError;
use crate::toml_error::toml_error;
use crate::topology::{Bypass, Cluster, Count, Level, LevelNetwork};
use pest::Parser;
use pest::error::{ErrorVariant, LineColLocation};
use pest::iterators::Pair;
use serde::Deserialize;

use grammar::{Grammar, Rule};

/// The grammar's generated rules, which carry no documentation of their own.
#[allow(missing_docs)]
mod grammar {
    #[derive(pest_derive::Parser)]
    #[grammar = "hierarchy.pest"]
    pub(super) struct Grammar;
}

/// Bandwidth of an inline hierarchy's innermost level where none is given: a GPU's NVLink port in the P² paper.
const INNER_GBYTES_PER_S: f64 = 270.0;
/// Bandwidth of the other levels where none is given: a node's network card in the P² paper.
const OUTER_GBYTES_PER_S: f64 = 8.0;
/// Latencies where none are given, and the launch: NCCL's tuning table, low-latency protocol, ring (`hwLat` for NVLink
/// and network, `baseLat`; NCCL 2.1x `src/graph/tuning.cc`).
const INNER_LATENCY_US: f64 = 0.6;
const OUTER_LATENCY_US: f64 = 2.7;
const LAUNCH_US: f64 = 6.6;

/// The shipped descriptions: name and TOML.
const SHIPPED: [(&str, &str); 8] = [
    ("dgx-a100", include_str!("../clusters/dgx-a100.toml")),
    ("dgx-b200", include_str!("../clusters/dgx-b200.toml")),
    ("dgx-h100", include_str!("../clusters/dgx-h100.toml")),
    ("ethernet", include_str!("../clusters/ethernet.toml")),
    ("p2-a100", include_str!("../clusters/p2-a100.toml")),
    ("p2-v100", include_str!("../clusters/p2-v100.toml")),
    ("tpuv3", include_str!("../clusters/tpuv3.toml")),
    ("tpuv3-slice", include_str!("../clusters/tpuv3-slice.toml")),
];

/// Longest text that is read.
const MAX_LEN: usize = 1 << 20;

impl Cluster {
    /// A cluster from what a user writes as an argument: an inline hierarchy `[(node,4),(gpu,16,270,0.6)]` (outermost
    /// first; name, count, GB/s of one entity's link in and out, µs of a hop), the name of a shipped description,
    /// whose outermost count can be replaced: `p2-a100:2`, `tpuv3-slice:8x8`, or the text of a TOML description.
    ///
    /// Files are the caller's business: read them and give their text here or to [`Cluster::from_toml`].
    ///
    /// # Errors
    /// The place, what was expected and what was found.
    pub fn from_arg(arg: &str) -> Result<Cluster, ClusterError> {
        let arg = arg.trim();
        // Neither a hierarchy nor a name has an equals sign, and every description has.
        if arg.contains('=') {
            return Cluster::from_toml(arg);
        }
        if arg.starts_with('[') {
            return inline(arg);
        }
        let (name, size) = arg.split_once(':').map_or((arg, None), |(name, size)| (name, Some(size)));
        let names = SHIPPED.iter().map(|(name, _)| *name);
        let (_, text) = SHIPPED
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| ClusterError::unknown("cluster (a name, or `[(name,count),…]`)", name, names))?;
        let mut description = parse_toml(text)?;
        if let (Some(size), Some(level)) = (size, description.level.first_mut()) {
            let extents: Option<Vec<u32>> = size.split('x').map(|n| n.trim().parse().ok()).collect();
            let extents = extents.ok_or_else(|| {
                ClusterError::new("cluster size", "a count such as `4` or extents such as `4x4`", format!("`{size}`"))
            })?;
            level.resize(&extents)?;
        }
        let mut cluster = description.build()?;
        cluster.rename(arg);
        Ok(cluster)
    }

    /// A cluster from the text of a TOML description; `clusters/p2-a100.toml` in this crate is an example with all the
    /// common fields, `clusters/p2-v100.toml` one with a ring.
    ///
    /// # Errors
    /// The place, what was expected and what was found.
    pub fn from_toml(text: &str) -> Result<Cluster, ClusterError> {
        parse_toml(text)?.build()
    }

    /// The names that [`Cluster::from_arg`] knows.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }
}

/// The levels of a shipped description, and what a launch costs in seconds.
///
/// # Errors
/// No description has this name.
pub(crate) fn shipped_levels(name: &str) -> Result<(Vec<Level>, f64), ClusterError> {
    let cluster = Cluster::from_arg(name)?;
    Ok((cluster.levels().to_vec(), cluster.launch_s()))
}

/// The name, device and links that a description says.
pub(crate) struct MachineText {
    pub name: String,
    pub device: Option<DeviceProfile>,
    /// `None` without levels.
    pub cluster: Option<Cluster>,
}

/// Reads a description of a machine: a cluster's, a device, or both.
///
/// # Errors
/// The place, what was expected and what was found.
pub(crate) fn parse_machine(text: &str) -> Result<MachineText, ClusterError> {
    let description = parse_toml(text).map_err(|error| match DeviceProfile::from_toml(text) {
        Ok(profile) => ClusterError::new(
            "machine",
            "the profile of a device in a table `[device]`, with `[device.flops_per_s]`, below `name = …` of the machine",
            format!("the profile of `{}` for itself", profile.name),
        ),
        Err(_) => error,
    })?;
    let device = match &description.device {
        None => None,
        Some(DeviceText::Name(name)) => Some(DeviceProfile::from_arg(name)?),
        Some(DeviceText::Profile(profile)) => Some(profile.clone().checked()?),
    };
    if description.level.is_empty() {
        let name = description.name;
        return match device {
            Some(_) => Ok(MachineText { name, device, cluster: None }),
            None => Err(ClusterError::new("machine", "a level or a device", "neither")),
        };
    }
    let cluster = description.build()?;
    Ok(MachineText { name: cluster.name().to_string(), device, cluster: Some(cluster) })
}

/// A TOML file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    name: String,
    #[serde(default)]
    launch_us: f64,
    #[serde(default)]
    level: Vec<LevelText>,
    device: Option<DeviceText>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "the name of a shipped device, or a table with a device's profile")]
enum DeviceText {
    Name(String),
    Profile(Box<DeviceProfile>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelText {
    name: String,
    count: CountText,
    gbytes_per_s: f64,
    #[serde(default)]
    latency_us: f64,
    #[serde(default)]
    network: NetworkText,
    /// Torus and mesh: the extents.
    dims: Option<Vec<u32>>,
    #[serde(default = "one")]
    shared_by: u32,
    bypass: Option<BypassText>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a count, or a list of counts, one for each parent")]
enum CountText {
    Same(u32),
    Each(Vec<u32>),
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum NetworkText {
    #[default]
    Switched,
    Ring,
    Torus,
    Mesh,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BypassText {
    gbytes_per_s: f64,
    #[serde(default = "one")]
    shared_by: u32,
    domain: Option<u32>,
}

fn one() -> u32 {
    1
}

fn parse_toml(text: &str) -> Result<Description, ClusterError> {
    if text.len() > MAX_LEN {
        return Err(ClusterError::new("cluster", format!("at most {MAX_LEN} bytes"), text.len().to_string()));
    }
    toml::from_str(text).map_err(|error| toml_error("cluster", text, &error))
}

impl Description {
    fn build(self) -> Result<Cluster, ClusterError> {
        if self.level.is_empty() {
            return Err(ClusterError::new("cluster", "a field `level`", "none"));
        }
        let levels = self.level.into_iter().map(LevelText::build).collect::<Result<_, _>>()?;
        Cluster::new(self.name, levels, self.launch_us * 1e-6)
    }
}

impl LevelText {
    /// Replaces the count, and the extents of a torus.
    fn resize(&mut self, extents: &[u32]) -> Result<(), ClusterError> {
        let expected_len = self.dims.as_ref().map_or(1, Vec::len);
        let product = extents.iter().try_fold(1u32, |p, &d| p.checked_mul(d));
        let (true, Some(count)) = (extents.len() == expected_len, product) else {
            let expected = format!("{expected_len} extents for level `{}`", self.name);
            return Err(ClusterError::new("cluster size", expected, format!("{extents:?}")));
        };
        self.count = CountText::Same(count);
        if self.dims.is_some() {
            self.dims = Some(extents.to_vec());
        }
        Ok(())
    }

    fn build(self) -> Result<Level, ClusterError> {
        let network = match (self.network, self.dims) {
            (NetworkText::Switched, None) => LevelNetwork::Switched,
            (NetworkText::Ring, None) => LevelNetwork::Ring,
            (NetworkText::Torus, Some(dims)) => LevelNetwork::Torus { dims, wraps: true },
            (NetworkText::Mesh, Some(dims)) => LevelNetwork::Torus { dims, wraps: false },
            (_, dims) => {
                let found = if dims.is_some() { "dims without one" } else { "a torus or mesh without dims" };
                let place = format!("level `{}`: dims", self.name);
                return Err(ClusterError::new(place, "dims exactly on a torus or a mesh", found));
            }
        };
        Ok(Level {
            name: self.name,
            count: match self.count {
                CountText::Same(n) => Count::Same(n),
                CountText::Each(each) => Count::Each(each),
            },
            network,
            bytes_per_s: self.gbytes_per_s * 1e9,
            latency_s: self.latency_us * 1e-6,
            shared_by: self.shared_by,
            bypass: self.bypass.map(|b| Bypass {
                bytes_per_s: b.gbytes_per_s * 1e9,
                shared_by: b.shared_by,
                domain: b.domain,
            }),
        })
    }
}

/// Reads `[(name,count[,GB/s[,µs]]),…]`.
fn inline(text: &str) -> Result<Cluster, ClusterError> {
    if text.len() > MAX_LEN {
        return Err(ClusterError::new("cluster", format!("at most {MAX_LEN} bytes"), text.len().to_string()));
    }
    let mut pairs = Grammar::parse(Rule::hierarchy, text).map_err(|error| syntax_error(text, &error))?;
    let parts: Vec<Pair<'_, Rule>> =
        pairs.next().into_iter().flat_map(Pair::into_inner).filter(|p| p.as_rule() == Rule::level).collect();
    let n_levels = parts.len();
    let levels = parts
        .into_iter()
        .enumerate()
        .map(|(i, part)| inline_level(part, i + 1 == n_levels))
        .collect::<Result<_, _>>()?;
    let name: String = text.split_whitespace().collect();
    Cluster::new(name, levels, LAUNCH_US * 1e-6)
}

fn inline_level(pair: Pair<'_, Rule>, is_innermost: bool) -> Result<Level, ClusterError> {
    let (mut name, mut counts, mut numbers) = (String::new(), Vec::new(), Vec::new());
    for part in pair.into_inner() {
        let (line, column) = part.line_col();
        let at = || format!("cluster, line {line}, column {column}");
        match part.as_rule() {
            Rule::name => name = part.as_str().into(),
            Rule::count => {
                for n in part.into_inner().filter(|p| p.as_rule() == Rule::integer) {
                    let found = || ClusterError::new(at(), "a count below 2³²", format!("`{}`", n.as_str()));
                    counts.push(n.as_str().parse::<u32>().map_err(|_| found())?);
                }
            }
            Rule::number => {
                let found = || ClusterError::new(at(), "a number", format!("`{}`", part.as_str()));
                numbers.push(part.as_str().parse::<f64>().map_err(|_| found())?);
            }
            // Of these a level has brackets and commas.
            Rule::open
            | Rule::close
            | Rule::comma
            | Rule::hierarchy
            | Rule::level
            | Rule::open_all
            | Rule::close_all
            | Rule::integer
            | Rule::plus
            | Rule::EOI
            | Rule::WHITESPACE => {}
        }
    }
    let (gbytes_per_s, latency_us) = match is_innermost {
        true => (INNER_GBYTES_PER_S, INNER_LATENCY_US),
        false => (OUTER_GBYTES_PER_S, OUTER_LATENCY_US),
    };
    let bytes_per_s = numbers.first().copied().unwrap_or(gbytes_per_s) * 1e9;
    let latency_s = numbers.get(1).copied().unwrap_or(latency_us) * 1e-6;
    let mut level = Level::switched(name, counts.first().copied().unwrap_or(0), bytes_per_s, latency_s);
    if counts.len() > 1 {
        level.count = Count::Each(counts);
    }
    Ok(level)
}

fn syntax_error(text: &str, error: &pest::error::Error<Rule>) -> ClusterError {
    let (line, column) = match error.line_col {
        LineColLocation::Pos(at) | LineColLocation::Span(at, _) => at,
    };
    let word = |rule: &Rule| match rule {
        Rule::hierarchy | Rule::open_all => "`[`",
        Rule::level | Rule::open => "a level `(name,count[,GB/s[,µs]])`",
        Rule::close_all => "`]`",
        Rule::close => "`)`",
        Rule::comma => "`,`",
        Rule::plus => "`+`",
        Rule::name => "a name",
        Rule::count | Rule::integer => "a count",
        Rule::number => "a number",
        Rule::EOI => "the end",
        Rule::WHITESPACE => "a blank",
    };
    let mut expected: Vec<&str> = match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => positives.iter().map(word).collect(),
        ErrorVariant::CustomError { .. } => Vec::new(),
    };
    expected.dedup();
    let expected = expected.join(" or ");
    let rest: String = text.lines().nth(line - 1).unwrap_or_default().chars().skip(column - 1).take(20).collect();
    let found = if rest.is_empty() { "the end".to_string() } else { format!("`{rest}`") };
    ClusterError::new(format!("cluster, line {line}, column {column}"), expected, found)
}
