//! Random global programs with a manual region: values cut along the axes of a random mesh, collectives over some of its axes, and
//! annotations in Shardy's or in GSPMD's form, as JAX lowers `shard_map`.
//!
//! Valid by construction: along which manual axes a value may differ is known ([`Val::varies`]), and what leaves the region is cut along
//! these or summed over them.

use crate::random_module::Rng;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Names of axes.
const AXES: [&str; 3] = ["x", "y", "z"];
/// Largest array in the region, in elements.
const MAX_ELEMS: i64 = 512;

/// A global program with a manual region.
#[derive(Clone, PartialEq, Debug)]
pub struct RandomRegion {
    /// HLO text.
    pub text: String,
    /// Devices of its mesh.
    pub n_devices: usize,
}

/// A value of f32.
#[derive(Clone, Debug)]
struct Val {
    name: String,
    dims: Vec<i64>,
    /// Manual axes along which devices may hold different values.
    varies: BTreeSet<usize>,
}

/// For each dim the axes that cut it, major ones first.
type DimAxes = Vec<Vec<usize>>;

struct Gen {
    rng: Rng,
    sizes: Vec<usize>,
    manual: BTreeSet<usize>,
    is_shardy: bool,
    n_names: usize,
    n_channels: usize,
    body: Vec<String>,
    entry: Vec<String>,
}

/// A program on 2 to `most_devices` devices (4 at least); the same seed gives the same text.
pub fn random_region(seed: u64, most_devices: usize) -> RandomRegion {
    let mut rng = Rng::new(seed ^ 0x4ec1);
    let (n_axes, mut sizes) = (*rng.pick(&[1, 2, 2, 2, 3]), Vec::new());
    let mut n_devices = 1;
    while sizes.len() < n_axes && 2 * n_devices <= most_devices {
        let size = *rng.pick(&[2, 2, 3, 4, 5]);
        if size * n_devices <= most_devices {
            n_devices *= size;
            sizes.push(size);
        }
    }
    let all: BTreeSet<usize> = (0..sizes.len()).collect();
    let mut manual: BTreeSet<usize> = all.iter().copied().filter(|_| rng.one_in(2)).collect();
    if manual.is_empty() || rng.one_in(3) {
        manual = all;
    }
    let is_shardy = rng.one_in(2);
    let (body, entry) = (Vec::new(), Vec::new());
    let gen_ = Gen { rng, sizes, manual, is_shardy, n_names: 0, n_channels: 0, body, entry };
    RandomRegion { text: gen_.program(seed), n_devices }
}

fn shape(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("f32[{}]", dims.join(","))
}

fn shapes(values: &[Val]) -> String {
    let shapes: Vec<String> = values.iter().map(|value| shape(&value.dims)).collect();
    format!("({})", shapes.join(", "))
}

fn names(values: &[Val]) -> String {
    values.iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Gen {
    fn program(mut self, seed: u64) -> String {
        let n_params = 1 + self.rng.below(3);
        let mut locals = Vec::new();
        let (mut wholes, mut cuts) = (Vec::new(), Vec::new());
        for number in 0..n_params {
            let (whole, cut, local) = self.parameter(number);
            let whole = if self.rng.one_in(2) { self.entry_op(&whole) } else { whole };
            let name = format!("local.{number}");
            self.body.push(format!("{name} = {} parameter({number})", shape(&local)));
            let varies = cut.iter().flatten().copied().collect();
            locals.push(Val { name, dims: local, varies });
            wholes.push(whole);
            cuts.push(cut);
        }
        let inputs = locals.clone();
        for _ in 0..2 + self.rng.below(5) {
            if let Some(value) = self.step(&locals) {
                locals.push(value);
            }
        }
        let n_results = 1 + self.rng.below(3.min(locals.len()));
        let (mut results, mut out_cuts) = (Vec::new(), Vec::new());
        for _ in 0..n_results {
            // What was computed last comes out for sure.
            let value =
                locals[locals.len() - 1 - if results.is_empty() { 0 } else { self.rng.below(locals.len()) }].clone();
            let (value, cut) = self.cut_result(value);
            results.push(value);
            out_cuts.push(cut);
        }
        // A value that is new, so that a parameter is no root.
        let results: Vec<Val> =
            results.iter().map(|value| self.body_op("negate", &[value], value.dims.clone())).collect();
        if results.len() > 1 {
            self.body.push(format!("ROOT results = {} tuple({})", shapes(&results), names(&results)));
        } else if let Some(last) = self.body.last_mut() {
            last.insert_str(0, "ROOT ");
        }
        let outs = match self.is_shardy {
            true => self.shardy_region(&wholes, &cuts, &inputs, &results, &out_cuts),
            false => self.gspmd_region(&wholes, &cuts, &inputs, &results, &out_cuts),
        };
        self.finish(seed, outs)
    }

    /// A parameter of the entry, how its dims are cut for the region, and the dims of its tiles there.
    fn parameter(&mut self, number: usize) -> (Val, DimAxes, Vec<i64>) {
        let rank = 1 + self.rng.below(3);
        let mut local: Vec<i64> = (0..rank).map(|_| *self.rng.pick(&[1, 2, 3, 4, 4, 6])).collect();
        if local.iter().product::<i64>() > 64 {
            local.truncate(2);
        }
        let manual: Vec<usize> = self.manual.iter().copied().collect();
        let cut = self.random_cut(local.len(), &manual);
        let dims: Vec<i64> = local.iter().zip(&cut).map(|(n, axes)| n * self.n_tiles(axes) as i64).collect();
        let all: Vec<usize> = (0..self.sizes.len()).collect();
        let annotation = if self.rng.one_in(3) {
            String::new()
        } else {
            let own = self.random_cut(dims.len(), &all);
            let shardy = self.shardy_dims(&own, false).replace('"', "\\\"");
            let shardy = format!(", frontend_attributes={{xla.sdy.sharding=\"#sdy.sharding<@mesh, {shardy}>\"}}");
            format!(", sharding={}{}", self.tiles(&own, false), if self.is_shardy { shardy.as_str() } else { "" })
        };
        let name = format!("whole.{number}");
        self.entry.push(format!("{name} = {} parameter({number}){annotation}", shape(&dims)));
        (Val { name, dims, varies: BTreeSet::new() }, cut, local)
    }

    fn n_tiles(&self, axes: &[usize]) -> usize {
        axes.iter().map(|&axis| self.sizes[axis]).product()
    }

    /// Some of the axes on some dims.
    fn random_cut(&mut self, rank: usize, axes: &[usize]) -> DimAxes {
        let mut cut = vec![Vec::new(); rank];
        for k in self.rng.shuffled(axes.len()) {
            if rank > 0 && !self.rng.one_in(3) {
                let dim = self.rng.below(rank);
                cut[dim].push(axes[k]);
            }
        }
        cut
    }

    fn fresh(&mut self, hint: &str) -> String {
        self.n_names += 1;
        format!("{}.{}", hint.replace('-', "_"), self.n_names)
    }

    fn entry_op(&mut self, value: &Val) -> Val {
        let op = *self.rng.pick(&["tanh", "negate", "cosine"]);
        let name = self.fresh(op);
        self.entry.push(format!("{name} = {} {op}({})", shape(&value.dims), value.name));
        Val { name, ..value.clone() }
    }

    /// Appends an instruction of the body.
    fn body_op(&mut self, call: &str, operands: &[&Val], dims: Vec<i64>) -> Val {
        let (op, attributes) = call.split_once(' ').unwrap_or((call, ""));
        let name = self.fresh(op);
        let list: Vec<&str> = operands.iter().map(|operand| operand.name.as_str()).collect();
        let comma = if attributes.is_empty() { "" } else { ", " };
        self.body.push(format!("{name} = {} {op}({}){comma}{attributes}", shape(&dims), list.join(", ")));
        let varies = operands.iter().flat_map(|operand| &operand.varies).copied().collect();
        Val { name, dims, varies }
    }

    /// A random step on a value of the pool; `None` where what was drawn does not apply.
    fn step(&mut self, pool: &[Val]) -> Option<Val> {
        let value = self.rng.pick(pool).clone();
        let rank = value.dims.len();
        match self.rng.below(12) {
            0 => {
                let op = *self.rng.pick(&["tanh", "cosine", "abs"]);
                Some(self.body_op(op, &[&value], value.dims.clone()))
            }
            1 => {
                let other = pool.iter().rev().find(|other| other.dims == value.dims)?.clone();
                let op = *self.rng.pick(&["add", "multiply", "maximum"]);
                Some(self.body_op(op, &[&value, &other], value.dims.clone()))
            }
            2 if rank > 0 => {
                let dim = self.rng.below(rank);
                let mut dims = value.dims.clone();
                dims.remove(dim);
                let zero = self.zero();
                Some(self.body_op(&format!("reduce dimensions={{{dim}}}, to_apply=sum"), &[&value, &zero], dims))
            }
            3 if rank == 2 => {
                let n = value.dims[1];
                let call = "dot lhs_contracting_dims={0}, rhs_contracting_dims={0}";
                (n <= 8).then(|| self.body_op(call, &[&value, &value], vec![n, n]))
            }
            4 if rank > 1 => {
                let order: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
                let dims = value.dims.iter().rev().copied().collect();
                Some(self.body_op(&format!("transpose dimensions={{{}}}", order.join(",")), &[&value], dims))
            }
            5 if self.manual.len() == self.sizes.len() => Some(self.add_axis_index(&value)),
            6 if self.manual.len() < self.sizes.len() => Some(self.constrain(&value)),
            7 if rank > 0 => Some(self.repeat_sum(&value)),
            2..=7 => None,
            _ => self.collective(&value),
        }
    }

    fn zero(&mut self) -> Val {
        let zero = self.body_op("constant", &[], Vec::new());
        if let Some(line) = self.body.last_mut() {
            *line = line.replace("constant()", "constant(0)");
        }
        zero
    }

    /// The sum of all elements, in the place of each: a scalar that is another one on each device.
    fn repeat_sum(&mut self, value: &Val) -> Val {
        let all: Vec<String> = (0..value.dims.len()).map(|dim| dim.to_string()).collect();
        let zero = self.zero();
        let call = format!("reduce dimensions={{{}}}, to_apply=sum", all.join(","));
        let sum = self.body_op(&call, &[value, &zero], Vec::new());
        self.body_op("broadcast dimensions={}", &[&sum], value.dims.clone())
    }

    /// The groups of devices that differ along these axes alone.
    fn groups(&self, axes: &[usize]) -> String {
        let rest: Vec<usize> = (0..self.sizes.len()).filter(|axis| !axes.contains(axis)).collect();
        let (_, ids) = self.assignment(&[rest, axes.to_vec()]);
        let groups: Vec<String> = ids
            .chunks(self.n_tiles(axes))
            .map(|group| format!("{{{}}}", group.iter().map(usize::to_string).collect::<Vec<_>>().join(",")))
            .collect();
        format!("{{{}}}", groups.join(","))
    }

    fn collective(&mut self, value: &Val) -> Option<Val> {
        let manual: Vec<usize> = self.manual.iter().copied().collect();
        let axis = *self.rng.pick(&manual);
        let n = self.sizes[axis] as i64;
        let dim = self.rng.below(value.dims.len());
        let size = value.dims.get(dim).copied().unwrap_or(0);
        self.n_channels += 1;
        let channel = self.n_channels;
        let over =
            |groups: String| format!("channel_id={channel}, replica_groups={groups}, use_global_device_ids=true");
        let mut dims = value.dims.clone();
        match self.rng.below(5) {
            0 if size > 0 && value.dims.iter().product::<i64>() * n <= MAX_ELEMS => {
                dims[dim] *= n;
                let call = format!("all-gather {}, dimensions={{{dim}}}", over(self.groups(&[axis])));
                let mut out = self.body_op(&call, &[value], dims);
                out.varies.remove(&axis);
                Some(out)
            }
            1 if size > 0 && size % n == 0 => {
                dims[dim] /= n;
                let call = format!("reduce-scatter {}, dimensions={{{dim}}}, to_apply=sum", over(self.groups(&[axis])));
                let mut out = self.body_op(&call, &[value], dims);
                out.varies.insert(axis);
                Some(out)
            }
            2 if size > 0 && size % n == 0 => {
                let groups = self.groups(&[axis]);
                let call = format!("all-to-all channel_id={channel}, replica_groups={groups}, dimensions={{{dim}}}");
                let mut out = self.body_op(&call, &[value], dims);
                out.varies.insert(axis);
                Some(out)
            }
            3 => {
                let (groups, by) = (self.groups(&[axis]), 1 + self.rng.below(n as usize));
                let is_ring = !self.rng.one_in(3);
                let groups = groups.trim_matches(|c| c == '{' || c == '}').to_string();
                let mut pairs = Vec::new();
                for group in groups.split("},{") {
                    let ids: Vec<&str> = group.split(',').collect();
                    let n_pairs = if is_ring { ids.len() } else { ids.len() - 1 };
                    pairs.extend((0..n_pairs).map(|k| format!("{{{},{}}}", ids[k], ids[(k + by) % ids.len()])));
                }
                let call =
                    format!("collective-permute channel_id={channel}, source_target_pairs={{{}}}", pairs.join(","));
                let mut out = self.body_op(&call, &[value], dims);
                out.varies.insert(axis);
                Some(out)
            }
            _ => {
                let mut axes: Vec<usize> = manual.iter().copied().filter(|_| self.rng.one_in(2)).collect();
                if axes.is_empty() {
                    axes.push(axis);
                }
                Some(self.sum_over(value, &axes))
            }
        }
    }

    fn sum_over(&mut self, value: &Val, axes: &[usize]) -> Val {
        self.n_channels += 1;
        let reducer = *self.rng.pick(&["sum", "sum", "largest"]);
        let groups = self.groups(axes);
        let channel = self.n_channels;
        let call = format!(
            "all-reduce channel_id={channel}, replica_groups={groups}, use_global_device_ids=true, to_apply={reducer}"
        );
        let mut out = self.body_op(&call, &[value], value.dims.clone());
        out.varies.retain(|axis| !axes.contains(axis));
        out
    }

    /// The number of the device along an axis, added to a value.
    fn add_axis_index(&mut self, value: &Val) -> Val {
        let axis = self.rng.below(self.sizes.len());
        let (stride, size) = (self.sizes[axis + 1..].iter().product::<usize>(), self.sizes[axis]);
        let tag = self.fresh("axis");
        for line in [
            format!("id.{tag} = u32[] partition-id()"),
            format!("stride.{tag} = u32[] constant({stride})"),
            format!("size.{tag} = u32[] constant({size})"),
            format!("major.{tag} = u32[] divide(id.{tag}, stride.{tag})"),
            format!("index.{tag} = u32[] remainder(major.{tag}, size.{tag})"),
            format!("number.{tag} = f32[] convert(index.{tag})"),
        ] {
            self.body.push(line);
        }
        let number = Val { name: format!("number.{tag}"), dims: Vec::new(), varies: BTreeSet::from([axis]) };
        let all = self.body_op("broadcast dimensions={}", &[&number], value.dims.clone());
        self.body_op("add", &[value, &all], value.dims.clone())
    }

    /// An annotation in the region that cuts a value along axes that are not manual.
    fn constrain(&mut self, value: &Val) -> Val {
        let free: Vec<usize> = (0..self.sizes.len()).filter(|axis| !self.manual.contains(axis)).collect();
        let cut = self.random_cut(value.dims.len(), &free);
        let call = match self.is_shardy {
            true => format!(
                "custom-call custom_call_target=\"Sharding\", sharding={}, frontend_attributes={{xla.sdy.sharding={}}}",
                self.tiles(&cut, false),
                self.shardy_values(std::slice::from_ref(&cut), false)
            ),
            false => {
                format!("custom-call custom_call_target=\"Sharding\", sharding={}", self.tiles(&cut, true))
            }
        };
        self.body_op(&call, &[value], value.dims.clone())
    }

    /// A result's dims cut along all axes along which it varies, but for those over which it is summed first.
    fn cut_result(&mut self, value: Val) -> (Val, DimAxes) {
        let rank = value.dims.len();
        let varies: Vec<usize> = value.varies.iter().copied().collect();
        let summed: Vec<usize> = varies.iter().copied().filter(|_| rank == 0 || self.rng.one_in(4)).collect();
        let value = if summed.is_empty() { value } else { self.sum_over(&value, &summed) };
        let mut cut = vec![Vec::new(); rank];
        for &axis in &value.varies {
            let dim = self.rng.below(rank);
            cut[dim].push(axis);
        }
        (value, cut)
    }

    fn outer(&mut self, results: &[Val], cuts: &[DimAxes]) -> Vec<Val> {
        let mut out = Vec::new();
        for (value, cut) in results.iter().zip(cuts) {
            let dims = value.dims.iter().zip(cut).map(|(n, axes)| n * self.n_tiles(axes) as i64).collect();
            out.push(Val { name: self.fresh("joined"), dims, varies: BTreeSet::new() });
        }
        out
    }

    /// The region in Shardy's form: one instruction at each end.
    fn shardy_region(
        &mut self,
        wholes: &[Val],
        cuts: &[DimAxes],
        inputs: &[Val],
        results: &[Val],
        out_cuts: &[DimAxes],
    ) -> Vec<Val> {
        let axes: Vec<String> = self.manual.iter().map(|&axis| format!("\\\"{}\\\"", AXES[axis])).collect();
        let manual = format!("xla.sdy.manual_axes=\"#sdy<manual_axes{{{}}}>\"", axes.join(", "));
        let is_partial = self.manual.len() < self.sizes.len();
        let attributes = format!("xla.sdy.in_shardings={},{manual}", self.shardy_values(cuts, is_partial));
        let tiles = self.together("xla.sdy.GlobalToLocalShape", wholes, inputs, &attributes);
        let made = results.iter().map(|value| Val { name: self.fresh("of_call"), ..value.clone() }).collect::<Vec<_>>();
        let call = format!(
            "call({}), to_apply=xla.sdy.manual_computation_body, frontend_attributes={{inlineable=\"false\"}}",
            names(&tiles)
        );
        self.take_apart(&call, &made);
        let outs = self.outer(results, out_cuts);
        let attributes = format!("{manual},xla.sdy.out_shardings={}", self.shardy_values(out_cuts, is_partial));
        let call = custom_call("xla.sdy.LocalToGlobalShape", &made, &attributes);
        self.take_apart(&call, &outs);
        outs
    }

    /// Values of other shapes that a custom call gives.
    fn together(&mut self, target: &str, operands: &[Val], like: &[Val], attributes: &str) -> Vec<Val> {
        let made: Vec<Val> = like.iter().map(|value| Val { name: self.fresh("tile"), ..value.clone() }).collect();
        self.take_apart(&custom_call(target, operands, attributes), &made);
        made
    }

    /// An instruction of the entry that gives these values: one, or a tuple of them.
    fn take_apart(&mut self, call: &str, made: &[Val]) {
        if let [only] = made {
            self.entry.push(format!("{} = {} {call}", only.name, shape(&only.dims)));
            return;
        }
        let tuple = self.fresh("all");
        self.entry.push(format!("{tuple} = {} {call}", shapes(made)));
        for (index, value) in made.iter().enumerate() {
            self.entry.push(format!(
                "{} = {} get-tuple-element({tuple}), index={index}",
                value.name,
                shape(&value.dims)
            ));
        }
    }

    /// The region in GSPMD's form: two instructions for each value at each end.
    fn gspmd_region(
        &mut self,
        wholes: &[Val],
        cuts: &[DimAxes],
        inputs: &[Val],
        results: &[Val],
        out_cuts: &[DimAxes],
    ) -> Vec<Val> {
        let is_partial = self.manual.len() < self.sizes.len();
        let open = |rank: usize| match is_partial && rank > 0 {
            true => format!(
                ", backend_config=\"unspecified_dims=[{}]\"",
                (0..rank).map(|d| d.to_string()).collect::<Vec<_>>().join(",")
            ),
            false => String::new(),
        };
        let mut tiles = Vec::new();
        for ((whole, cut), input) in wholes.iter().zip(cuts).zip(inputs) {
            let (cut_name, name) = (self.fresh("cut"), self.fresh("tile"));
            let (outside, inside) = (self.tiles(cut, false), self.tiles(&vec![Vec::new(); cut.len()], true));
            let open = open(cut.len());
            self.entry.push(format!(
                "{cut_name} = {} custom-call({}), custom_call_target=\"Sharding\", sharding={outside}{open}",
                shape(&whole.dims),
                whole.name
            ));
            self.entry.push(format!("{name} = {} custom-call({cut_name}), custom_call_target=\"SPMDFullToShardShape\", sharding={inside}{open}", shape(&input.dims)));
            tiles.push(Val { name, ..input.clone() });
        }
        let made = results.iter().map(|value| Val { name: self.fresh("of_call"), ..value.clone() }).collect::<Vec<_>>();
        self.take_apart(&format!("call({}), to_apply=xla.sdy.manual_computation_body", names(&tiles)), &made);
        let outs = self.outer(results, out_cuts);
        for ((value, cut), out) in made.iter().zip(out_cuts).zip(&outs) {
            let name = self.fresh("part");
            let (outside, inside) = (self.tiles(cut, false), self.tiles(&vec![Vec::new(); cut.len()], true));
            let open = open(cut.len());
            self.entry.push(format!(
                "{name} = {} custom-call({}), custom_call_target=\"Sharding\", sharding={inside}{open}",
                shape(&value.dims),
                value.name
            ));
            self.entry.push(format!(
                "{} = {} custom-call({name}), custom_call_target=\"SPMDShardToFullShape\", sharding={outside}{open}",
                out.name,
                shape(&out.dims)
            ));
        }
        outs
    }

    /// The module, with what follows the region.
    fn finish(mut self, seed: u64, outs: Vec<Val>) -> String {
        let all: Vec<usize> = (0..self.sizes.len()).collect();
        let (mut results, mut annotations) = (Vec::new(), Vec::new());
        let is_annotated = self.rng.one_in(2);
        for out in &outs {
            let out = self.entry_op(out);
            let cut = self.random_cut(out.dims.len(), &all);
            annotations.push(self.tiles(&cut, false));
            if !(is_annotated && self.is_shardy) {
                results.push(out);
                continue;
            }
            let attributes = format!("xla.sdy.sharding={}", self.shardy_values(&[cut], false));
            results.extend(self.together(
                "xla.sdy.FuncResultSharding",
                std::slice::from_ref(&out),
                std::slice::from_ref(&out),
                &attributes,
            ));
        }
        let annotation =
            if is_annotated { format!(", sharding={{{}}}", annotations.join(", ")) } else { String::new() };
        self.entry.push(format!("ROOT results = {} tuple({}){annotation}", shapes(&results), names(&results)));
        let mut text = format!("HloModule random_region_{seed}");
        if self.is_shardy {
            let axes: Vec<String> =
                self.sizes.iter().enumerate().map(|(k, n)| format!("\"{}\"={n}", AXES[k])).collect();
            let _ =
                write!(text, ", frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<[{}]>}}}}", axes.join(", "));
        }
        text += "\n\n";
        for (name, op) in [("sum", "add"), ("largest", "maximum")] {
            let _ = write!(
                text,
                "{name} {{\n  a.{name} = f32[] parameter(0)\n  b.{name} = f32[] parameter(1)\n  ROOT c.{name} = f32[] {op}(a.{name}, b.{name})\n}}\n\n"
            );
        }
        let _ = write!(text, "xla.sdy.manual_computation_body {{\n  {}\n}}\n\n", self.body.join("\n  "));
        let _ = writeln!(text, "ENTRY main {{\n  {}\n}}", self.entry.join("\n  "));
        text
    }

    /// `[{"x", ?}, {}]` for each value, as the text of an attribute.
    fn shardy_values(&self, cuts: &[DimAxes], is_open: bool) -> String {
        let values: Vec<String> =
            cuts.iter().map(|cut| format!("<@mesh, {}>", self.shardy_dims(cut, is_open))).collect();
        format!("\"#sdy.sharding_per_value<[{}]>\"", values.join(", ").replace('"', "\\\""))
    }

    fn shardy_dims(&self, cut: &DimAxes, is_open: bool) -> String {
        let dims: Vec<String> = cut
            .iter()
            .map(|axes| {
                let mut parts: Vec<String> = axes.iter().map(|&axis| format!("\"{}\"", AXES[axis])).collect();
                parts.extend(is_open.then(|| "?".to_string()));
                format!("{{{}}}", parts.join(", "))
            })
            .collect();
        format!("[{}]", dims.join(", "))
    }

    /// Tile counts and device ids, row by row, of dims cut along these axes.
    fn assignment(&self, dims: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
        let axes: Vec<usize> = dims.iter().flatten().copied().collect();
        let mut ids = vec![0];
        for &axis in &axes {
            let stride: usize = self.sizes[axis + 1..].iter().product();
            ids = ids.iter().flat_map(|id| (0..self.sizes[axis]).map(move |k| id + k * stride)).collect();
        }
        (dims.iter().map(|axes| self.n_tiles(axes)).collect(), ids)
    }

    /// GSPMD's text of a value whose dims are cut so; `is_inside`: within the region.
    fn tiles(&self, cut: &DimAxes, is_inside: bool) -> String {
        let manual: Vec<usize> = self.manual.iter().copied().filter(|_| is_inside).collect();
        let is_used = |axis: &usize| manual.contains(axis) || cut.iter().flatten().any(|other| other == axis);
        let rest: Vec<usize> = (0..self.sizes.len()).filter(|axis| !is_used(axis)).collect();
        if is_inside && rest.is_empty() && cut.iter().all(Vec::is_empty) {
            return "{manual}".into();
        }
        if !is_inside && cut.iter().all(Vec::is_empty) {
            return "{replicated}".into();
        }
        let groups = [("manual", manual), ("replicated", rest)].into_iter().filter(|(_, axes)| !axes.is_empty());
        let (kinds, groups): (Vec<&str>, Vec<Vec<usize>>) = groups.unzip();
        let (counts, ids) = self.assignment(&[cut.as_slice(), &groups].concat());
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let kinds = if kinds.is_empty() { String::new() } else { format!(" last_tile_dims={{{}}}", kinds.join(", ")) };
        format!("{{devices=[{}]{}{kinds}}}", list(&counts), list(&ids))
    }
}

fn custom_call(target: &str, operands: &[Val], attributes: &str) -> String {
    format!(
        "custom-call({}), custom_call_target=\"{target}\", custom_call_has_side_effect=true, frontend_attributes={{{attributes}}}",
        names(operands)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_eval::EvalOptions;
    use hlo_eval::draw::{DrawOptions, Same};
    use hlo_eval::global::GlobalProgram;

    #[test]
    fn regions_are_valid_and_run() {
        let (mut n_shardy, mut n_partial) = (0, 0);
        for seed in 0..200 {
            let RandomRegion { text, n_devices } = random_region(seed, 12);
            let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{seed}: {e:?}\n{text}")).module;
            assert!(hlo_ir::verify::verify(&module).is_ok(), "{seed}: {:?}\n{text}", hlo_ir::verify::verify(&module));
            // Where GSPMD's form cuts nothing it names no number.
            let n_named = hlo_ir::devices::find_n_devices(&module);
            assert!(n_named == n_devices || !text.contains("devices=["), "{seed}: {n_named} devices:\n{text}");
            let program = GlobalProgram::on(&module, n_devices).unwrap();
            let options = DrawOptions { seed, draws: Vec::new(), same: Same::None };
            let inputs = program.draw(&options).unwrap();
            let outputs =
                program.run(&inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{seed}: {e}\n{text}"));
            assert_eq!(outputs.parting(), None, "{seed}:\n{text}");
            n_shardy += usize::from(text.contains("sdy.mesh"));
            n_partial += usize::from(text.contains("unspecified_dims") || text.contains(", ?"));
        }
        assert!((60..140).contains(&n_shardy) && n_partial > 30, "{n_shardy} {n_partial}");
    }
}
