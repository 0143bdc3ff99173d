//! Random HLO modules: seeded, valid by construction, with collectives that never deadlock.
//!
//! [`random_module`] gives text and a description of the entry's inputs: which devices must be given equal ones. The same
//! seed gives the same text; fewer steps give a prefix of the same program, so a failing case shrinks by lowering
//! [`Size::n_steps`]. How a value may differ between devices is tracked by a small lattice of the generator's own
//! ([`Uniform`]), independent of the analysis under test: it decides where a collective may stand.

mod collectives;
mod control;
mod elementwise;
mod shaping;

use hlo_ir::DType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Numbers from a seed: splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of its own for each seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 for `n` = 0).
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n.max(1) as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// An element of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// The numbers below `n` in random order.
    pub fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut out: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            let j = self.below(i + 1);
            out.swap(i, j);
        }
        out
    }
}

/// Devices and length of a random module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Replicas.
    pub replica_count: usize,
    /// Partitions of each replica.
    pub num_partitions: usize,
    /// Steps of the entry; one step adds one to a dozen instructions, or a called computation.
    pub n_steps: usize,
}

/// An input of the entry.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    /// Element type.
    pub dtype: DType,
    /// Dims.
    pub dims: Vec<i64>,
    /// Devices with equal numbers get equal values, all others different ones.
    pub key_of_device: Vec<u32>,
}

/// A module and what its entry takes.
#[derive(Clone, PartialEq, Debug)]
pub struct RandomModule {
    /// HLO text in the long form, without computation signatures.
    pub text: String,
    /// Inputs in parameter order.
    pub inputs: Vec<Input>,
}

/// On which devices a value is equal for sure, or which devices run a computation in step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Uniform {
    /// On all devices.
    Everywhere,
    /// Within each replica.
    WithinReplica,
    /// On the same partition of all replicas.
    WithinPartition,
    /// Nothing is sure.
    Nowhere,
}

impl Uniform {
    fn meet(self, other: Uniform) -> Uniform {
        match (self, other) {
            (a, b) if a == b => a,
            (Uniform::Everywhere, other) | (other, Uniform::Everywhere) => other,
            _ => Uniform::Nowhere,
        }
    }
}

/// A value that later steps may use; arrays only, tuples are taken apart where they arise.
#[derive(Clone, Debug)]
struct Val {
    name: String,
    dtype: DType,
    dims: Vec<i64>,
    uniform: Uniform,
}

impl Val {
    fn shape(&self) -> String {
        shape_text(self.dtype, &self.dims)
    }

    fn n_elems(&self) -> i64 {
        self.dims.iter().product()
    }
}

/// A computation under construction.
struct Body {
    lines: Vec<String>,
    pool: Vec<Val>,
    /// Which devices run it in step.
    scope: Uniform,
    /// Calls around it.
    depth: usize,
}

struct Gen {
    rng: Rng,
    size: Size,
    done: Vec<String>,
    n_names: usize,
    n_channels: usize,
    /// Scalar computations by op and element type.
    scalar_comps: BTreeMap<String, String>,
    /// Computations that may be called again: name, parameters, result.
    callables: Vec<control::Callable>,
}

/// Largest array, in elements.
const MAX_ELEMS: i64 = 96;
/// Element types of values.
const DTYPES: &[DType] = &[
    DType::Pred,
    DType::S8,
    DType::U8,
    DType::S32,
    DType::U32,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::C64,
];

fn shape_text(dtype: DType, dims: &[i64]) -> String {
    format!("{}[{}]", dtype.name(), list(dims))
}

fn list(items: &[i64]) -> String {
    items.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

/// A module that is valid by construction.
pub fn random_module(seed: u64, size: Size) -> RandomModule {
    let mut generator = Gen {
        rng: Rng::new(seed),
        size,
        done: Vec::new(),
        n_names: 0,
        n_channels: 0,
        scalar_comps: BTreeMap::new(),
        callables: Vec::new(),
    };
    let mut entry = Body { lines: Vec::new(), pool: Vec::new(), scope: Uniform::Everywhere, depth: 0 };
    let n_inputs = 2 + generator.rng.below(4);
    let inputs = (0..n_inputs).map(|number| generator.input(&mut entry, number)).collect();
    for _ in 0..size.n_steps {
        generator.step(&mut entry);
    }
    // Every other program returns all it computes, so that nothing of the entry is dead.
    let n_results = if seed.is_multiple_of(2) { entry.pool.len() } else { entry.pool.len().min(12) };
    let results: Vec<Val> = entry.pool[entry.pool.len() - n_results..].to_vec();
    let shapes: Vec<String> = results.iter().map(Val::shape).collect();
    let names: Vec<&str> = results.iter().map(|v| v.name.as_str()).collect();
    entry.lines.push(format!("ROOT %result = ({}) tuple({})", shapes.join(", "), names.join(", ")));
    let mut text = String::new();
    let _ = writeln!(
        text,
        "HloModule random_{seed}, replica_count={}, num_partitions={}\n",
        size.replica_count, size.num_partitions
    );
    for comp in &generator.done {
        let _ = writeln!(text, "{comp}\n");
    }
    let _ = writeln!(text, "ENTRY %main {{\n  {}\n}}", entry.lines.join("\n  "));
    RandomModule { text, inputs }
}

impl Gen {
    fn n_devices(&self) -> usize {
        self.size.replica_count * self.size.num_partitions
    }

    fn fresh(&mut self, hint: &str) -> String {
        self.n_names += 1;
        format!("%{hint}.{}", self.n_names)
    }

    /// Appends an instruction with an array result to `body`.
    fn emit(&mut self, body: &mut Body, dtype: DType, dims: &[i64], text: &str, uniform: Uniform) -> Val {
        let hint = text.split('(').next().unwrap_or("v").to_string();
        let name = self.fresh(&hint);
        body.lines.push(format!("{name} = {} {text}", shape_text(dtype, dims)));
        Val { name, dtype, dims: dims.to_vec(), uniform }
    }

    /// Appends an instruction with a tuple result of `shape`.
    fn emit_tuple(&mut self, body: &mut Body, shape: &str, text: &str) -> String {
        let hint = text.split('(').next().unwrap_or("t").to_string();
        let name = self.fresh(&hint);
        body.lines.push(format!("{name} = {shape} {text}"));
        name
    }

    /// Element `index` of the tuple `tuple`, with the type of `like`.
    fn element(&mut self, body: &mut Body, tuple: &str, index: usize, like: &Val, uniform: Uniform) -> Val {
        let (dtype, dims) = (like.dtype, like.dims.clone());
        self.emit(body, dtype, &dims, &format!("get-tuple-element({tuple}), index={index}"), uniform)
    }

    /// A parameter of the entry with a random annotation.
    fn input(&mut self, body: &mut Body, number: usize) -> Input {
        let (r, p) = (self.size.replica_count, self.size.num_partitions);
        let dtype = *self.rng.pick(&[DType::F32, DType::F32, DType::S32, DType::BF16, DType::U32, DType::Pred]);
        let rank = self.rng.below(3);
        let dims: Vec<i64> = (0..rank).map(|_| 1 + self.rng.below(4) as i64).collect();
        let mut annotation = String::new();
        // Replica part and partition part of the key.
        let mut replica_stride = 1;
        let mut tile: Vec<usize> = (0..p).collect();
        let flag = (r > 1).then(|| self.rng.below(3));
        match flag {
            Some(0) => {
                annotation.push_str(", parameter_replication={true}");
                replica_stride = 0;
            }
            // An explicit false also takes the sharding's word away.
            Some(1) if self.rng.one_in(3) => annotation.push_str(", parameter_replication={false}"),
            _ => {}
        }
        let is_denied = annotation.ends_with("{false}");
        if p > 1 && self.rng.below(4) > 0 {
            let (text, tiles) = self.sharding(rank);
            let _ = write!(annotation, ", sharding={{{text}}}");
            if !is_denied {
                tile = tiles;
            }
        }
        let is_replicated = tile.iter().all(|&t| t == tile[0]);
        let uniform = match (replica_stride == 0 || r == 1, is_replicated) {
            (true, true) => Uniform::Everywhere,
            (false, true) => Uniform::WithinReplica,
            (true, false) => Uniform::WithinPartition,
            (false, false) => Uniform::Nowhere,
        };
        let val = self.emit(body, dtype, &dims, &format!("parameter({number}){annotation}"), uniform);
        body.pool.push(val);
        let key_of_device = (0..r * p).map(|d| (d / p * replica_stride * p + tile[d % p]) as u32).collect();
        Input { dtype, dims, key_of_device }
    }

    /// A sharding of a value of `rank` over the partitions, and the tile of each.
    fn sharding(&mut self, rank: usize) -> (String, Vec<usize>) {
        let p = self.size.num_partitions;
        if rank == 0 || self.rng.one_in(2) {
            return ("replicated".into(), vec![0; p]);
        }
        let ones = vec!["1"; rank - 1].join(",");
        let rest = if rank > 1 { format!(",{ones}") } else { String::new() };
        // `n_tiles` tiles, each on `p / n_tiles` partitions.
        let divisors: Vec<usize> = (1..=p).filter(|n| p.is_multiple_of(*n)).collect();
        let n_tiles = *self.rng.pick(&divisors);
        let n_copies = p / n_tiles;
        if n_copies == 1 {
            return (format!("devices=[{p}{rest}]<=[{p}]"), (0..p).collect());
        }
        if self.rng.one_in(2) {
            let text = format!("devices=[{n_tiles}{rest},{n_copies}]<=[{p}] last_tile_dim_replicate");
            return (text, (0..p).map(|d| d / n_copies).collect());
        }
        let order = format!("[{n_copies},{n_tiles}]T(1,0)");
        let text = format!("devices=[{n_tiles}{rest},{n_copies}]<={order} last_tile_dim_replicate");
        (text, (0..p).map(|d| d % n_tiles).collect())
    }

    /// A value of the pool, later ones more often.
    fn any(&mut self, body: &Body) -> Val {
        let n = body.pool.len();
        let from = if self.rng.one_in(3) { 0 } else { n.saturating_sub(8) };
        body.pool[from + self.rng.below(n - from)].clone()
    }

    /// A value whose element type `accepts`, converted if need be.
    fn any_of(&mut self, body: &mut Body, accepts: impl Fn(DType) -> bool) -> Val {
        let val = self.any(body);
        if accepts(val.dtype) {
            return val;
        }
        let types: Vec<DType> = DTYPES.iter().copied().filter(|&t| accepts(t)).collect();
        let to = *self.rng.pick(&types);
        self.convert(body, &val, to)
    }

    /// A value of the same type as `like`.
    fn any_like(&mut self, body: &mut Body, like: &Val) -> Val {
        let exact: Vec<usize> = (0..body.pool.len())
            .filter(|&i| body.pool[i].dtype == like.dtype && body.pool[i].dims == like.dims)
            .collect();
        if !exact.is_empty() && self.rng.below(3) > 0 {
            return body.pool[*self.rng.pick(&exact)].clone();
        }
        let val = self.any(body);
        self.shape_as(body, &val, like.dtype, &like.dims)
    }

    /// `val` with another element type and other dims.
    fn shape_as(&mut self, body: &mut Body, val: &Val, dtype: DType, dims: &[i64]) -> Val {
        let val = self.convert(body, val, dtype);
        self.resize(body, &val, dims)
    }

    fn convert(&mut self, body: &mut Body, val: &Val, dtype: DType) -> Val {
        if val.dtype == dtype {
            return val.clone();
        }
        let mut val = val.clone();
        if val.dtype.is_complex() {
            let part = val.dtype.real_part();
            val = self.emit(body, part, &val.dims, &format!("real({})", val.name), val.uniform);
        }
        if val.dtype == dtype {
            return val;
        }
        self.emit(body, dtype, &val.dims, &format!("convert({})", val.name), val.uniform)
    }

    /// `val` with other dims: reshaped, cut or repeated.
    fn resize(&mut self, body: &mut Body, val: &Val, dims: &[i64]) -> Val {
        if val.dims == dims {
            return val.clone();
        }
        let (have, want) = (val.n_elems(), dims.iter().product::<i64>());
        let mut flat = val.clone();
        if have != want {
            flat = self.emit(body, val.dtype, &[have], &format!("reshape({})", val.name), val.uniform);
            let keep = if have > want { want } else { 1 };
            flat = self.emit(
                body,
                val.dtype,
                &[keep],
                &format!("slice({}), slice={{[0:{keep}]}}", flat.name),
                val.uniform,
            );
            if have < want {
                flat = self.emit(body, val.dtype, &[], &format!("reshape({})", flat.name), val.uniform);
                return self.emit(
                    body,
                    val.dtype,
                    dims,
                    &format!("broadcast({}), dimensions={{}}", flat.name),
                    val.uniform,
                );
            }
        }
        if flat.dims == dims {
            return flat;
        }
        self.emit(body, val.dtype, dims, &format!("reshape({})", flat.name), val.uniform)
    }

    fn scalar(&mut self, body: &mut Body, dtype: DType, text: &str) -> Val {
        self.emit(body, dtype, &[], &format!("constant({text})"), Uniform::Everywhere)
    }

    /// The computation `op(x, y)` on scalars, made once.
    fn scalar_comp(&mut self, op: &str, dtype: DType) -> String {
        let key = format!("{}_{}", op.replace([' ', '=', ',', '-'], "_"), dtype.name());
        if let Some(name) = self.scalar_comps.get(&key) {
            return name.clone();
        }
        let name = format!("%{key}");
        let t = dtype.name();
        let (op_name, attrs) = op.split_once(' ').unwrap_or((op, ""));
        let result = if op_name == "compare" { "pred" } else { t };
        self.done.push(format!(
            "{name} {{\n  %x_{key} = {t}[] parameter(0)\n  %y_{key} = {t}[] parameter(1)\n  \
             ROOT %z_{key} = {result}[] {op_name}(%x_{key}, %y_{key}){attrs}\n}}"
        ));
        self.scalar_comps.insert(key, name.clone());
        name
    }

    /// A reducer of `dtype` and the text of its neutral element.
    fn reducer(&mut self, dtype: DType) -> (String, &'static str) {
        let choices: &[(&str, &str)] = match dtype {
            DType::Pred => &[("and", "true"), ("or", "false")],
            t if t.is_complex() => &[("add", "(0, 0)")],
            t if t.is_float() => &[("add", "0"), ("maximum", "-inf"), ("minimum", "inf"), ("multiply", "1")],
            _ => &[("add", "0"), ("multiply", "1"), ("or", "0")],
        };
        let &(op, neutral) = self.rng.pick(choices);
        (self.scalar_comp(op, dtype), neutral)
    }

    /// Adds something to `body`.
    fn step(&mut self, body: &mut Body) {
        let n_devices = self.n_devices();
        let new = match self.rng.below(20) {
            0..=4 => self.elementwise_step(body),
            5..=8 => self.shaping_step(body),
            9 => self.contraction_step(body),
            10 => self.id_step(body),
            11..=15 if n_devices > 1 => self.collective_step(body),
            16..=19 if body.depth < 2 => self.control_step(body),
            _ => self.elementwise_step(body),
        };
        body.pool.extend(new);
    }
}
