//! Random inputs: one distribution for each entry leaf, equal values where devices hold the same tile.
//!
//! What is drawn matters. Second moments must be positive and of the order of a squared gradient, or errors in an
//! optimizer's update stay below every tolerance; so each leaf has a word that says its distribution and scale.

use crate::error::EvalError;
use crate::run::{EntryLeaf, Inputs, entry_leaves};
use hlo_ir::literal::{Buffer, element_count};
use hlo_ir::{ArrayShape, DType, Literal, Module, NumberClass};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The distribution of one leaf.
#[derive(Clone, PartialEq, Debug)]
pub enum Draw {
    /// `nS`: normal with standard deviation S.
    Normal(f64),
    /// `pS`: the absolute value of that, plus S / 1000; for second moments.
    Positive(f64),
    /// `uS`: uniform between S / 20 and 19 S / 20; for decay rates. Narrow types do not round it to 0 or S.
    Uniform(f64),
    /// `intK`: integers from 0 below K, in leaves of floats too.
    Below(u64),
    /// A number: this value everywhere.
    Constant(f64),
    /// Indices into a dim: see [`IndexDraw`]. No word says it.
    Index(IndexDraw),
    /// Integers of all sizes: half from 0 below 8, a quarter beside zero on both sides, a quarter over the range of the type. Floats as
    /// `n1`. No word says it.
    Wide,
    /// As `n1`, rounded to quarters, so that elements are equal to one another. No word says it.
    Quarters,
    /// Values at which a program takes another way: see [`NearDraw`]. No word says it.
    Near(NearDraw),
    /// As the distribution, with an infinity among the elements. No word says it.
    Infinite(Box<Draw>),
    /// As the distribution, with a NaN among the elements. No word says it.
    NotANumber(Box<Draw>),
    /// As `pS`, below zero. No word says it.
    Negative(f64),
    /// As the distribution, with zeros in an eighth of the elements: arrays of one shape have them in the same places. No word says it.
    WithZeros(Box<Draw>),
}

/// Elements near some values: each second one, and a leaf's only one always.
#[derive(Clone, PartialEq, Debug)]
pub struct NearDraw {
    /// The values, none twice, the least first. An integer lies at one of them, one beside it, or between two; a float within a quarter of it.
    pub values: Arc<[f64]>,
    /// The place that a leaf's only element takes: at each of the values, then above each, one below, further below, one above.
    pub turn: u64,
    /// The distribution of the other elements.
    pub otherwise: Box<Draw>,
}

/// Integers that index a dim of which `last` is the last valid index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexDraw {
    /// The last valid index.
    pub last: u64,
    /// Half of the indices lie beyond the bounds: below zero, or above the last.
    pub is_beyond: bool,
    /// The indices do not fall, in row-major order.
    pub is_sorted: bool,
    /// No index stands twice, as long as there are enough valid ones.
    pub is_unique: bool,
}

impl Draw {
    /// The distribution of a word.
    ///
    /// # Errors
    /// The word is none of `nS`, `pS`, `uS`, `intK` and a number.
    pub fn parse(word: &str) -> Result<Draw, EvalError> {
        let scale = |text: &str| text.parse::<f64>().ok().filter(|s| s.is_finite());
        let parsed = if let Some(limit) = word.strip_prefix("int") {
            limit.parse::<u64>().ok().filter(|&k| k > 0).map(Draw::Below)
        } else if let Some(text) = word.strip_prefix('n').filter(|_| !word.eq_ignore_ascii_case("nan")) {
            scale(text).map(Draw::Normal)
        } else if let Some(text) = word.strip_prefix('p') {
            scale(text).filter(|&s| s >= 0.0).map(Draw::Positive)
        } else if let Some(text) = word.strip_prefix('u') {
            scale(text).filter(|&s| s >= 0.0).map(Draw::Uniform)
        } else {
            // A number that no float holds is no infinity that was asked for.
            let is_said = |x: &f64| !x.is_infinite() || !word.contains(|c: char| c.is_ascii_digit());
            word.parse::<f64>().ok().filter(is_said).map(Draw::Constant)
        };
        parsed.ok_or_else(|| {
            EvalError::invalid(format!(
                "expected nS, pS, uS, intK or a number to draw, S finite and for pS and uS not below 0, found `{word}`"
            ))
        })
    }

    /// The distributions of a list of words between blanks or commas, one for each entry leaf.
    ///
    /// # Errors
    /// The first word that is no distribution.
    pub fn parse_list(text: &str) -> Result<Vec<Draw>, EvalError> {
        let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
        words.map(Draw::parse).collect()
    }
}

/// Which devices are given the same values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Same {
    /// Those that hold the same tile by the entry parameters' `sharding=`, and all replicas where `parameter_replication` says
    /// so; leaves without either differ everywhere.
    #[default]
    Auto,
    /// All, for every leaf.
    All,
    /// None.
    None,
    /// All, for these leaves; none for the others.
    Leaves(Vec<usize>),
}

impl Same {
    /// Reads `auto`, `all`, `none` or a list of leaf numbers and ranges such as `0-12,14`.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn parse(text: &str) -> Result<Same, EvalError> {
        match text {
            "auto" => return Ok(Same::Auto),
            "all" => return Ok(Same::All),
            "none" => return Ok(Same::None),
            _ => {}
        }
        let error =
            |item: &str| EvalError::invalid(format!("expected auto, all, none or leaf numbers, found `{item}`"));
        let mut leaves = Vec::new();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let number = |n: &str| n.trim().parse::<usize>().ok().filter(|&n| n < 1 << 24).ok_or_else(|| error(item));
            match item.split_once('-') {
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(error(item));
                    }
                    leaves.extend(first..=last);
                }
                None => leaves.push(number(item)?),
            }
        }
        if leaves.is_empty() { Err(error(text)) } else { Ok(Same::Leaves(leaves)) }
    }

    /// Checks that the entry of `module` has the leaves that are named.
    ///
    /// # Errors
    /// It has fewer.
    pub fn check(&self, module: &Module) -> Result<(), EvalError> {
        let Same::Leaves(same) = self else { return Ok(()) };
        let n_leaves = entry_leaves(module).len();
        let Some(leaf) = same.iter().find(|&&leaf| leaf >= n_leaves) else { return Ok(()) };
        Err(EvalError::invalid(format!("expected leaf numbers below {n_leaves} (the entry's leaves), found {leaf}")))
    }
}

/// Bytes of distinct arrays that one call draws.
const MAX_DRAWN_BYTES: u64 = 1 << 32;

/// What to draw.
#[derive(Clone, Debug, Default)]
pub struct DrawOptions {
    /// The same seed gives the same inputs on every machine.
    pub seed: u64,
    /// One distribution for each entry leaf; missing ones are `n1` (integers: `int8`).
    pub draws: Vec<Draw>,
    /// Which devices are given the same values.
    pub same: Same,
}

/// Inputs for all devices of `module`. `like` is a module with the same parameters whose shardings [`Same::Auto`]
/// follows in place of the module's own.
///
/// # Errors
/// `like` has other parameters; [`Same::check`] fails; dims are out of range or too large to draw.
pub fn draw_inputs(module: &Module, like: Option<&Module>, options: &DrawOptions) -> Result<Inputs, EvalError> {
    let leaves = entry_leaves(module);
    let shardings = like.map_or_else(|| leaves.clone(), entry_leaves);
    if shardings.len() != leaves.len() {
        let text =
            format!("expected {} parameter leaves in the module to follow, found {}", leaves.len(), shardings.len());
        return Err(EvalError::invalid(text));
    }
    options.same.check(module)?;
    let groups = shardings.iter().enumerate().map(|(i, leaf)| groups_of(&options.same, i, leaf, module));
    draw_rows(&leaves, &groups.collect::<Vec<_>>(), options)
}

/// One array for each leaf of a global program.
pub(crate) fn draw_wholes(module: &Module, options: &DrawOptions) -> Result<Inputs, EvalError> {
    let leaves = entry_leaves(module);
    draw_rows(&leaves, &vec![vec![0]; leaves.len()], options)
}

/// For each leaf, the arrays of its groups: one for each device.
fn draw_rows(leaves: &[EntryLeaf], groups: &[Vec<u32>], options: &DrawOptions) -> Result<Inputs, EvalError> {
    if options.draws.len() > leaves.len() {
        let (expected, found) = (leaves.len(), options.draws.len());
        let text = format!("expected at most {expected} words to draw by, one for each entry leaf, found {found}");
        return Err(EvalError::invalid(text));
    }
    let mut rows = Vec::with_capacity(leaves.len());
    let mut drawn_bytes = 0u64;
    for (i, (leaf, groups)) in leaves.iter().zip(groups).enumerate() {
        let draw = options.draws.get(i).unwrap_or(&Draw::Normal(1.0));
        let mut row: Vec<Arc<Literal>> = Vec::with_capacity(groups.len());
        let mut first_of: HashMap<u32, usize> = HashMap::new();
        for (device, &group) in groups.iter().enumerate() {
            match first_of.get(&group) {
                Some(&first) => row.push(row[first].clone()),
                None => {
                    first_of.insert(group, device);
                    drawn_bytes = drawn_bytes.saturating_add(leaf.shape.size_bytes());
                    if drawn_bytes > MAX_DRAWN_BYTES {
                        let text = format!(
                            "inputs up to input {i} take {drawn_bytes} bytes, at most {MAX_DRAWN_BYTES} are drawn"
                        );
                        return Err(EvalError::Limit(text));
                    }
                    let array = draw_array(&leaf.shape, draw, &mut Source::new(options.seed, i, group))
                        .map_err(|e| EvalError::invalid(format!("input {i}: {e}")))?;
                    row.push(Arc::new(array));
                }
            }
        }
        rows.push(row);
    }
    Ok(Inputs { leaves: rows })
}

/// For each device a number; devices with the same number are given the same values.
fn groups_of(same: &Same, leaf_idx: usize, leaf: &EntryLeaf, module: &Module) -> Vec<u32> {
    let n_devices = module.n_devices();
    let distinct = || (1..=u32::try_from(n_devices).unwrap_or(u32::MAX)).collect::<Vec<u32>>();
    match same {
        Same::Auto => {
            let n_partitions = module.header.num_partitions.max(1) as usize;
            // Of replicas with partitions, each has the tiles of its partitions.
            let of_each_replica = |tiles: Vec<u32>| {
                let n_tiles = tiles.iter().max().map_or(1, |&last| last + 1);
                let tile = |device: usize| (device / n_partitions) as u32 * n_tiles + tiles[device % n_partitions];
                (0..n_devices).map(tile).collect()
            };
            let of_sharding = leaf.sharding.as_ref().and_then(|s| {
                s.tile_of_device(n_devices).or_else(|| s.tile_of_device(n_partitions).map(of_each_replica))
            });
            let tiles = of_sharding.unwrap_or_else(distinct);
            let of = |device: usize| if leaf.is_replicated { device % n_partitions } else { device };
            (0..n_devices).filter_map(|device| tiles.get(of(device)).copied()).collect()
        }
        Same::All => vec![0; n_devices],
        Same::None => distinct(),
        Same::Leaves(leaves) if leaves.contains(&leaf_idx) => vec![0; n_devices],
        Same::Leaves(_) => distinct(),
    }
}

fn draw_array(shape: &ArrayShape, draw: &Draw, source: &mut Source) -> Result<Literal, EvalError> {
    let n = element_count(&shape.dims).ok_or_else(|| EvalError::invalid("expected dims of known size"))?;
    let wide = match shape.dtype.class() {
        NumberClass::Pred => {
            let bits = match draw {
                Draw::Constant(value) => vec![*value != 0.0; n],
                Draw::Normal(_)
                | Draw::Positive(_)
                | Draw::Uniform(_)
                | Draw::Below(_)
                | Draw::Index(_)
                | Draw::Wide
                | Draw::Quarters
                | Draw::Near(_)
                | Draw::Negative(_)
                | Draw::Infinite(_)
                | Draw::NotANumber(_)
                | Draw::WithZeros(_) => (0..n).map(|_| source.next() >> 63 == 1).collect(),
            };
            return Ok(Literal::new(DType::Pred, &shape.dims, Buffer::Pred(bits))?);
        }
        NumberClass::Signed | NumberClass::Unsigned => {
            let values = draw_integers(draw, n, shape.dtype, source);
            Literal::new(DType::S64, &shape.dims, Buffer::S64(values))?
        }
        NumberClass::Float => Literal::new(DType::F64, &shape.dims, Buffer::F64(draw_reals(draw, n, source)))?,
        NumberClass::Complex => {
            let parts = draw_reals(draw, 2 * n, source);
            let pairs = parts.chunks_exact(2).map(|pair| hlo_ir::float::Complex::new(pair[0], pair[1])).collect();
            Literal::new(DType::C128, &shape.dims, Buffer::C128(pairs))?
        }
    };
    Ok(wide.convert(shape.dtype))
}

/// `n` integers for a type, in row-major order. Those of unsigned types do not lie below zero.
fn draw_integers(draw: &Draw, n: usize, dtype: DType, source: &mut Source) -> Vec<i64> {
    let below = |limit: u64, source: &mut Source| (0..n).map(|_| source.below(limit) as i64).collect();
    match draw {
        Draw::Normal(_) | Draw::Positive(_) | Draw::Negative(_) | Draw::Uniform(_) | Draw::Quarters => below(8, source),
        Draw::Below(limit) => below(*limit, source),
        Draw::Constant(value) => vec![*value as i64; n],
        Draw::Index(of) => draw_indices(*of, n, dtype, source),
        Draw::Wide => (0..n).map(|_| draw_wide(dtype, source)).collect(),
        Draw::Infinite(draw) | Draw::NotANumber(draw) | Draw::WithZeros(draw) => draw_integers(draw, n, dtype, source),
        Draw::Near(near) => {
            let mut values = draw_integers(&near.otherwise, n, dtype, source);
            for value in &mut values {
                let Some((number, place)) = near.next(n, source) else { continue };
                // An exact float of 64 bits holds every threshold that is written as one.
                let at = near.values[number] as i64;
                let at = match place {
                    Place::At => at,
                    Place::OneBelow => at.saturating_sub(1),
                    Place::OneAbove => at.saturating_add(1),
                    Place::Above => near.between(number, source) as i64,
                    Place::Below => match number.checked_sub(1) {
                        Some(before) => near.between(before, source) as i64,
                        None => (near.values[number] * source.unit()) as i64,
                    },
                };
                *value = if dtype.class() == NumberClass::Unsigned { at.max(0) } else { at };
            }
            values
        }
    }
}

/// An integer of [`Draw::Wide`].
fn draw_wide(dtype: DType, source: &mut Source) -> i64 {
    let is_signed = dtype.class() == NumberClass::Signed;
    match source.below(4) {
        0 if is_signed => source.below(17) as i64 - 8,
        // The conversion to the type keeps the lowest bits.
        1 => source.next() as i64,
        _ => source.below(8) as i64,
    }
}

/// `n` reals, in row-major order.
fn draw_reals(kind: &Draw, n: usize, source: &mut Source) -> Vec<f64> {
    match kind {
        Draw::Infinite(draw) | Draw::NotANumber(draw) => {
            let mut values = draw_reals(draw, n, source);
            // The one is found by a check of size, the other is not equal to itself: a program may ask for either alone.
            let infinity = [f64::INFINITY, f64::NEG_INFINITY][source.below(2) as usize];
            let is_infinite = matches!(kind, Draw::Infinite(_));
            let at = source.below(n as u64) as usize;
            let element = values.get_mut(at);
            element.into_iter().for_each(|element| *element = if is_infinite { infinity } else { f64::NAN });
            values
        }
        Draw::WithZeros(draw) => {
            let mut values = draw_reals(draw, n, source);
            let mut places = Source::new(0, 0, 0);
            values.iter_mut().filter(|_| places.below(8) == 0).for_each(|element| *element = 0.0);
            values
        }
        Draw::Near(near) => {
            let mut values = draw_reals(&near.otherwise, n, source);
            for value in &mut values {
                if let Some((number, _)) = near.next(n, source) {
                    *value = near.values[number] * (0.75 + 0.5 * source.unit());
                }
            }
            values
        }
        Draw::Normal(_)
        | Draw::Positive(_)
        | Draw::Negative(_)
        | Draw::Uniform(_)
        | Draw::Below(_)
        | Draw::Constant(_)
        | Draw::Index(_)
        | Draw::Wide
        | Draw::Quarters => (0..n).map(|_| draw_real(kind, source)).collect(),
    }
}

/// A real of a distribution that has no other within it.
fn draw_real(draw: &Draw, source: &mut Source) -> f64 {
    match draw {
        Draw::Normal(scale) => source.normal() * scale,
        Draw::Positive(scale) => source.normal().abs() * scale + 1e-3 * scale,
        Draw::Uniform(scale) => (0.05 + 0.9 * source.unit()) * scale,
        Draw::Below(limit) => source.below(*limit) as f64,
        Draw::Index(of) => source.below(of.last.saturating_add(1)) as f64,
        Draw::Constant(x) => *x,
        Draw::Quarters => (4.0 * source.normal()).round() / 4.0,
        Draw::Negative(scale) => -(source.normal().abs() * scale + 1e-3 * scale),
        Draw::Wide | Draw::Near(_) | Draw::Infinite(_) | Draw::NotANumber(_) | Draw::WithZeros(_) => source.normal(),
    }
}

/// A place near a value.
#[derive(Clone, Copy)]
enum Place {
    At,
    /// Between it and the next one.
    Above,
    OneBelow,
    /// Between it and the one before, or zero.
    Below,
    OneAbove,
}

impl NearDraw {
    /// How many numbers of [`NearDraw::turn`] are places of their own.
    pub fn n_turns(&self) -> u64 {
        5 * self.values.len() as u64
    }

    /// The number of the value near which the next of `n` elements lies, and its place there; `None` if it lies elsewhere.
    fn next(&self, n: usize, source: &mut Source) -> Option<(usize, Place)> {
        let n_values = self.values.len() as u64;
        if n_values == 0 {
            return None;
        }
        if n == 1 {
            let turn = self.turn % self.n_turns();
            let places = [Place::At, Place::Above, Place::OneBelow, Place::Below, Place::OneAbove];
            let place = places.get((turn / n_values) as usize).copied().unwrap_or(Place::At);
            return Some(((turn % n_values) as usize, place));
        }
        let is_near = source.next() >> 63 == 1;
        let number = source.below(n_values) as usize;
        let place =
            [Place::At, Place::At, Place::OneBelow, Place::OneBelow, Place::OneAbove, Place::Above, Place::Below];
        is_near.then(|| (number, place[source.below(7) as usize]))
    }

    /// A number between a value and the next one, or half as much beyond the last one.
    fn between(&self, number: usize, source: &mut Source) -> f64 {
        let at = self.values[number];
        let next = self.values.get(number + 1).copied().unwrap_or(at + 0.5 * at.abs() + 8.0);
        at + (next - at) * source.unit()
    }
}

/// `n` indices, in row-major order. Those of unsigned types do not lie below zero.
fn draw_indices(of: IndexDraw, n: usize, dtype: DType, source: &mut Source) -> Vec<i64> {
    let n_valid = of.last.saturating_add(1).min(1 << 40);
    let margin = n_valid / 2 + 2;
    let mut seen = HashSet::new();
    let mut draw = || {
        let is_beyond = of.is_beyond && source.next() >> 63 == 1;
        match (is_beyond, dtype.class() == NumberClass::Signed && source.next() >> 63 == 1) {
            // The first and the last one are where an error of one shows.
            (false, _) => match source.below(16) {
                0 => 0,
                1 => n_valid as i64 - 1,
                _ => source.below(n_valid) as i64,
            },
            (true, true) => -1 - source.below(margin) as i64,
            (true, false) => (n_valid + source.below(margin)) as i64,
        }
    };
    let mut indices: Vec<i64> = (0..n).map(|_| draw()).collect();
    if of.is_unique && n as u64 <= n_valid {
        for index in &mut indices {
            while !seen.insert(*index) {
                *index = (*index + 1).rem_euclid(n_valid as i64);
            }
        }
    }
    if of.is_sorted {
        indices.sort_unstable();
    }
    indices
}

/// A stream of random numbers: SplitMix64 (Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014).
struct Source {
    state: u64,
    spare: Option<f64>,
}

impl Source {
    /// A stream of its own for every seed, leaf and group of devices.
    fn new(seed: u64, leaf: usize, group: u32) -> Source {
        let mut source = Source { state: seed, spare: None };
        for part in [leaf as u64, u64::from(group)] {
            source.state = source.next() ^ part;
        }
        source
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Uniform in `(0, 1]`.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Standard normal, by Box and Muller's transform.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let (radius, angle) = ((-2.0 * self.unit().ln()).sqrt(), std::f64::consts::TAU * self.unit());
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::attrs::Attrs;
    use hlo_ir::edit::Builder;
    use hlo_ir::{Opcode, Shape};

    fn drawn(dtype: DType, word: &str, n: i64) -> Literal {
        let shape = ArrayShape::new(dtype, [n]);
        draw_array(&shape, &Draw::parse(word).unwrap(), &mut Source::new(1, 2, 3)).unwrap()
    }

    /// Two replicas of two partitions; devices are numbered replica by replica.
    #[test]
    fn replicas_get_the_same_where_the_parameter_says_so() {
        let leaf = |is_replicated| EntryLeaf {
            param: 0,
            shape: ArrayShape::new(DType::F32, [4]),
            sharding: None,
            is_replicated,
        };
        let mut module = Module::new("m");
        (module.header.replica_count, module.header.num_partitions) = (2, 2);
        assert_eq!(groups_of(&Same::Auto, 0, &leaf(true), &module), [1, 2, 1, 2]);
        assert_eq!(groups_of(&Same::Auto, 0, &leaf(false), &module), [1, 2, 3, 4]);
    }

    #[test]
    fn a_sharding_of_the_partitions_holds_within_each_replica() {
        use hlo_ir::groups::IotaTile;
        use hlo_ir::sharding::{LeafSharding, ShardingKind, SubgroupKind, TileDevices, Tiling};
        let ids = |dims: &[i64]| IotaTile {
            dims: dims.into(),
            reshape_dims: [2].as_slice().into(),
            perm: [0].as_slice().into(),
        };
        let leaf = |dims: &[i64], last_dims: Vec<SubgroupKind>| EntryLeaf {
            param: 0,
            shape: ArrayShape::new(DType::F32, [4]),
            sharding: Some(LeafSharding::new(ShardingKind::Tiled(Box::new(Tiling {
                dims: dims.into(),
                devices: TileDevices::Iota(ids(dims)),
                last_dims,
                last_dim_short: false,
            })))),
            is_replicated: false,
        };
        let mut module = Module::new("m");
        (module.header.replica_count, module.header.num_partitions) = (2, 2);
        let groups = |leaf: &EntryLeaf| groups_of(&Same::Auto, 0, leaf, &module);
        assert_eq!(groups(&leaf(&[2], Vec::new())), [0, 1, 2, 3]);
        assert_eq!(groups(&leaf(&[1, 2], vec![SubgroupKind::Replicated])), [0, 0, 1, 1]);
    }

    #[test]
    fn distributions_have_their_moments() {
        let n = 40_000;
        let normal = drawn(DType::F64, "n.5", n);
        let values = normal.elems::<f64>().unwrap();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01 && (variance - 0.25).abs() < 0.01, "{mean} {variance}");
        let positive = drawn(DType::F32, "p5e-7", 1000);
        assert!(positive.elems::<f32>().unwrap().iter().all(|&x| x >= 5e-10));
        let below = drawn(DType::S32, "int3", 1000);
        let counts = below.elems::<i32>().unwrap().iter().fold([0; 3], |mut c, &x| {
            c[x as usize] += 1;
            c
        });
        assert!(counts.iter().all(|&c| c > 250), "{counts:?}");
        let uniform = drawn(DType::F32, "u.5", n);
        let values = uniform.elems::<f32>().unwrap();
        assert!(values.iter().all(|&x| (0.024..0.476).contains(&x)) && values.iter().any(|&x| x > 0.47));
        assert_eq!(drawn(DType::S32, "3", 2).elems::<i32>().unwrap(), [3, 3]);
        assert_eq!(drawn(DType::F32, "2.5", 1).elems::<f32>().unwrap(), [2.5]);
        assert_eq!(drawn(DType::F32, "n1", 5), drawn(DType::F32, "n1", 5));
    }

    #[test]
    fn indices_keep_their_bounds_and_promises() {
        let indices = |of: IndexDraw, dtype: DType| draw_indices(of, 40, dtype, &mut Source::new(1, 2, 3));
        let within = IndexDraw { last: 49, is_beyond: false, is_sorted: false, is_unique: false };
        let plain = indices(within, DType::S32);
        assert!(plain.iter().all(|&i| (0..50).contains(&i)) && !plain.is_sorted(), "{plain:?}");
        let beyond = indices(IndexDraw { is_beyond: true, ..within }, DType::S32);
        let n_beyond = beyond.iter().filter(|&&i| !(0..50).contains(&i)).count();
        assert!((10..30).contains(&n_beyond) && beyond.iter().any(|&i| i < 0) && beyond.iter().any(|&i| i > 49));
        assert!(indices(IndexDraw { is_beyond: true, ..within }, DType::U32).iter().all(|&i| i >= 0));
        let promised = indices(IndexDraw { is_sorted: true, is_unique: true, is_beyond: true, ..within }, DType::S32);
        assert!(promised.windows(2).all(|pair| pair[0] < pair[1]), "{promised:?}");
        let one_place = IndexDraw { last: 0, is_unique: true, ..within };
        assert_eq!(indices(one_place, DType::S32), [0; 40]);
    }

    #[test]
    fn elements_near_thresholds_fall_on_both_sides() {
        let near = |turn: u64| NearDraw { values: Arc::new([100.0]), turn, otherwise: Box::new(Draw::Normal(1.0)) };
        let one = |turn: u64| draw_integers(&Draw::Near(near(turn)), 1, DType::S32, &mut Source::new(1, 2, 3))[0];
        assert_eq!([one(0), one(2), one(4), one(5)], [100, 99, 101, 100]);
        assert!((101..160).contains(&one(1)) && (0..100).contains(&one(3)));
        let several = |turn: u64| NearDraw { values: Arc::new([10.0, 50.0, 90.0]), ..near(turn) };
        let of = |turn: u64| draw_integers(&Draw::Near(several(turn)), 1, DType::S32, &mut Source::new(1, 2, 3))[0];
        assert_eq!([of(0), of(1), of(2), of(6), of(7), of(8)], [10, 50, 90, 9, 49, 89]);
        assert_eq!([of(12), of(13), of(14)], [11, 51, 91]);
        assert!((10..=50).contains(&of(3)) && (50..=90).contains(&of(4)) && of(5) > 90 && (10..=50).contains(&of(10)));
        let many = draw_integers(&Draw::Near(near(0)), 200, DType::S32, &mut Source::new(1, 2, 3));
        for expected in [99, 100, 101] {
            assert!(many.contains(&expected), "{many:?}");
        }
        assert!(many.iter().filter(|&&value| value < 8).count() > 50, "{many:?}");
        let reals = draw_reals(&Draw::Near(near(0)), 200, &mut Source::new(1, 2, 3));
        assert!(reals.iter().any(|&x| (75.0..100.0).contains(&x)) && reals.iter().any(|&x| x > 100.0));
    }

    #[test]
    fn wide_integers_have_all_sizes_of_their_type() {
        let wide = |dtype: DType| {
            let shape = ArrayShape::new(dtype, [400]);
            let array = draw_array(&shape, &Draw::Wide, &mut Source::new(1, 2, 3)).unwrap();
            array.convert(DType::S64).elems::<i64>().unwrap().to_vec()
        };
        let bytes = wide(DType::U8);
        assert!(bytes.iter().any(|&x| x > 200) && bytes.iter().filter(|&&x| x < 8).count() > 200);
        let signed = wide(DType::S32);
        assert!(signed.iter().any(|&x| x < -8) && signed.iter().any(|&x| x > 1 << 20) && signed.contains(&-1));
    }

    #[test]
    fn zeros_stand_in_the_same_places_and_one_element_is_not_finite() {
        let reals = |draw: Draw, leaf: usize| draw_reals(&draw, 100, &mut Source::new(1, leaf, 3));
        let zeros = |leaf: usize| {
            let values = reals(Draw::WithZeros(Box::new(Draw::Normal(1.0))), leaf);
            (0..100).filter(|&i| values[i] == 0.0).collect::<Vec<usize>>()
        };
        assert!(zeros(0) == zeros(1) && (5..30).contains(&zeros(0).len()));
        let count = |draw: Draw, is: fn(&f64) -> bool| reals(draw, 0).iter().filter(|x| is(x)).count();
        let normal = || Box::new(Draw::Normal(1.0));
        let kinds = |draw: fn(Box<Draw>) -> Draw| {
            (count(draw(normal()), |x| x.is_infinite()), count(draw(normal()), |x| x.is_nan()))
        };
        assert_eq!((kinds(Draw::Infinite), kinds(Draw::NotANumber)), ((1, 0), (0, 1)));
        assert_eq!(count(Draw::Negative(1.0), |x| *x < 0.0), 100);
        let quarters = reals(Draw::Quarters, 0);
        assert!(quarters.iter().all(|value| (4.0 * value).fract() == 0.0));
    }

    #[test]
    fn words_and_lists_are_read_or_refused() {
        assert_eq!(
            Draw::parse_list("n.05 3,p5e-7").unwrap(),
            [Draw::Normal(0.05), Draw::Constant(3.0), Draw::Positive(5e-7)]
        );
        for word in ["", "x1", "n", "int0", "int-1", "p1e999", "p-1", "u-1", "1e400"] {
            assert!(Draw::parse(word).is_err(), "{word}");
        }
        assert_eq!(Same::parse("0-2,5").unwrap(), Same::Leaves(vec![0, 1, 2, 5]));
        for text in ["some", "1-x", "5-2", ""] {
            assert!(Same::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn inputs_beyond_memory_are_an_error() {
        let mut module = Module::new("m");
        let name = module.names.intern("entry");
        let comp = module.add_computation(name);
        module.set_entry(comp);
        let shape = Shape::array(DType::F32, [9_999_999_999_999]);
        let param = Attrs::Parameter(Box::default());
        Builder::new(&mut module, comp).add("p", Opcode::Parameter, shape, [], param);
        let outcome = draw_inputs(&module, None, &DrawOptions::default());
        assert!(matches!(outcome, Err(EvalError::Limit(_))), "{outcome:?}");
    }
}
