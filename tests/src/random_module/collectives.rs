//! Steps that exchange data between devices, in all group modes, and async pairs.

use super::{Body, Gen, MAX_ELEMS, Uniform, Val, shape_text};
use hlo_ir::DType;

/// The groups of a collective.
struct Groups {
    /// `replica_groups=…` with channel and `use_global_device_ids`.
    attrs: String,
    /// Flat device ids.
    flat: Vec<Vec<usize>>,
}

/// Which attributes a collective has for its groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// all-reduce: groups may be uneven.
    Reducing,
    /// all-gather, reduce-scatter.
    Gathering,
    /// all-to-all, collective-broadcast: no `use_global_device_ids`.
    Exchanging,
}

/// How the ids in the groups are read.
#[derive(Clone, Copy)]
enum Mode {
    Replicas,
    ReplicasAllPartitions,
    Partitions,
    Flat,
}

impl Gen {
    pub(super) fn collective_step(&mut self, body: &mut Body) -> Vec<Val> {
        if body.scope == Uniform::Nowhere {
            return self.elementwise_step(body);
        }
        let mut new = match self.rng.below(9) {
            0..=2 => self.all_reduce(body),
            3 => self.all_gather(body),
            4 => self.reduce_scatter(body),
            5 => self.all_to_all(body),
            6 => self.tuple_all_to_all(body),
            7 => self.broadcast(body),
            _ => self.permute(body),
        };
        if self.rng.one_in(4) {
            // What comes out is often equal within groups: mix it.
            let x = new[0].clone();
            let y = self.any_like(body, &x);
            let op = if x.dtype == DType::Pred { "xor" } else { "add" };
            let uniform = x.uniform.meet(y.uniform);
            new.push(self.emit(body, x.dtype, &x.dims, &format!("{op}({}, {})", x.name, y.name), uniform));
        }
        new
    }

    fn modes(&self, scope: Uniform, family: Family) -> Vec<Mode> {
        use Mode::*;
        match (scope, family) {
            (Uniform::Everywhere, Family::Exchanging) => vec![Replicas, Partitions],
            (Uniform::Everywhere, Family::Reducing | Family::Gathering) => vec![Replicas, ReplicasAllPartitions, Flat],
            (Uniform::WithinReplica, Family::Exchanging) => vec![Partitions],
            (Uniform::WithinReplica, Family::Reducing | Family::Gathering) => vec![Flat],
            (Uniform::WithinPartition, _) => vec![Replicas],
            (Uniform::Nowhere, _) => Vec::new(),
        }
    }

    /// Random groups over the devices that run in step.
    fn groups(&mut self, scope: Uniform, family: Family) -> Groups {
        let (r, p) = (self.size.replica_count, self.size.num_partitions);
        let modes = self.modes(scope, family);
        let mode = *self.rng.pick(&modes);
        let is_uneven = family == Family::Reducing;
        self.n_channels += 1;
        let channel = format!("channel_id={}, ", self.n_channels);
        let global = ", use_global_device_ids=true";
        let (ids, before, after) = match mode {
            Mode::Replicas => (self.split(r, is_uneven), "", ""),
            Mode::ReplicasAllPartitions => (self.split(r, is_uneven), channel.as_str(), ""),
            Mode::Partitions => (self.split(p, is_uneven), channel.as_str(), ""),
            Mode::Flat if scope == Uniform::Everywhere => (self.split(r * p, is_uneven), channel.as_str(), global),
            Mode::Flat => {
                let of_one = self.split(p, is_uneven);
                let shifted = (0..r).flat_map(|replica| {
                    let shift = move |g: &Vec<usize>| g.iter().map(|id| id + replica * p).collect();
                    of_one.iter().map(shift).collect::<Vec<Vec<usize>>>()
                });
                (shifted.collect(), channel.as_str(), global)
            }
        };
        let flat: Vec<Vec<usize>> = match mode {
            Mode::Flat => ids.clone(),
            Mode::Replicas => {
                (0..p).flat_map(|part| ids.iter().map(move |g| g.iter().map(|rep| rep * p + part).collect())).collect()
            }
            Mode::Partitions => {
                (0..r).flat_map(|rep| ids.iter().map(move |g| g.iter().map(|part| rep * p + part).collect())).collect()
            }
            Mode::ReplicasAllPartitions => {
                ids.iter().map(|g| g.iter().flat_map(|rep| (0..p).map(move |part| rep * p + part)).collect()).collect()
            }
        };
        let is_whole = ids.len() == 1 && ids[0].iter().enumerate().all(|(i, &id)| i == id);
        let text = match is_whole && !matches!(mode, Mode::Flat) && self.rng.one_in(2) {
            true => "{}".into(),
            false => format!("{{{}}}", ids.iter().map(|g| braced(g)).collect::<Vec<_>>().join(",")),
        };
        Groups { attrs: format!("{before}replica_groups={text}{after}"), flat }
    }

    /// The ids below `n` in groups, often in order, of equal sizes unless `is_uneven`.
    fn split(&mut self, n: usize, is_uneven: bool) -> Vec<Vec<usize>> {
        let ids: Vec<usize> = if self.rng.one_in(3) { self.rng.shuffled(n) } else { (0..n).collect() };
        if is_uneven && self.rng.one_in(3) {
            let mut groups = vec![Vec::new()];
            for id in ids {
                if self.rng.one_in(3) && groups.last().is_some_and(|g| !g.is_empty()) {
                    groups.push(Vec::new());
                }
                groups.last_mut().into_iter().for_each(|g| g.push(id));
            }
            return groups;
        }
        let divisors: Vec<usize> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
        let size = *self.rng.pick(&divisors);
        if self.rng.one_in(2) {
            return ids.chunks(size).map(<[usize]>::to_vec).collect();
        }
        let n_groups = n / size;
        (0..n_groups).map(|g| (0..size).map(|i| ids[i * n_groups + g]).collect()).collect()
    }

    /// Where a value that is equal within each group is equal for sure.
    fn uniform_of(&self, groups: &Groups) -> Uniform {
        let (r, p) = (self.size.replica_count, self.size.num_partitions);
        let covers = |mut line: Box<dyn Iterator<Item = usize>>, group: &Vec<usize>| line.all(|d| group.contains(&d));
        let any = |line: &dyn Fn() -> Box<dyn Iterator<Item = usize>>| groups.flat.iter().any(|g| covers(line(), g));
        let n = r * p;
        if any(&|| Box::new(0..n)) {
            Uniform::Everywhere
        } else if (0..r).all(|rep| any(&|| Box::new(rep * p..(rep + 1) * p))) {
            Uniform::WithinReplica
        } else if (0..p).all(|part| any(&|| Box::new((0..r).map(move |rep| rep * p + part)))) {
            Uniform::WithinPartition
        } else {
            Uniform::Nowhere
        }
    }

    /// A number to exchange: not too wide, so that sums stay apart.
    fn operand(&mut self, body: &mut Body) -> Val {
        self.any_of(body, |t| t != DType::C64 && t != DType::F64)
    }

    fn all_reduce(&mut self, body: &mut Body) -> Vec<Val> {
        let groups = self.groups(body.scope, Family::Reducing);
        let uniform = self.uniform_of(&groups);
        let x = self.operand(body);
        let (to_apply, _) = self.reducer(x.dtype);
        let attrs = format!("{}, to_apply={to_apply}", groups.attrs);
        match self.rng.below(4) {
            0 => {
                let start =
                    self.emit(body, x.dtype, &x.dims, &format!("all-reduce-start({}), {attrs}", x.name), uniform);
                vec![self.emit(body, x.dtype, &x.dims, &format!("all-reduce-done({})", start.name), uniform)]
            }
            1 => {
                let other = self.any(body);
                let y = self.convert(body, &other, x.dtype);
                let shape = format!("({}, {})", x.shape(), y.shape());
                let tuple = self.emit_tuple(body, &shape, &format!("all-reduce({}, {}), {attrs}", x.name, y.name));
                vec![self.element(body, &tuple, 0, &x, uniform), self.element(body, &tuple, 1, &y, uniform)]
            }
            _ => vec![self.emit(body, x.dtype, &x.dims, &format!("all-reduce({}), {attrs}", x.name), uniform)],
        }
    }

    fn all_gather(&mut self, body: &mut Body) -> Vec<Val> {
        let groups = self.groups(body.scope, Family::Gathering);
        let size = groups.flat[0].len() as i64;
        let uniform = self.uniform_of(&groups);
        let x = self.operand(body);
        let x = if x.dims.is_empty() || x.n_elems() * size > MAX_ELEMS { self.resize(body, &x, &[2]) } else { x };
        let axis = self.rng.below(x.dims.len());
        let mut dims = x.dims.clone();
        dims[axis] *= size;
        let attrs = format!("{}, dimensions={{{axis}}}", groups.attrs);
        if self.rng.one_in(4) {
            let shape = format!("({}, {})", x.shape(), shape_text(x.dtype, &dims));
            let start = self.emit_tuple(body, &shape, &format!("all-gather-start({}), {attrs}", x.name));
            return vec![self.emit(body, x.dtype, &dims, &format!("all-gather-done({start})"), uniform)];
        }
        vec![self.emit(body, x.dtype, &dims, &format!("all-gather({}), {attrs}", x.name), uniform)]
    }

    fn reduce_scatter(&mut self, body: &mut Body) -> Vec<Val> {
        let groups = self.groups(body.scope, Family::Gathering);
        let size = groups.flat[0].len() as i64;
        let x = self.operand(body);
        let x = self.resize(body, &x, &[size * 2]);
        let (to_apply, _) = self.reducer(x.dtype);
        let attrs = format!("{}, dimensions={{0}}, to_apply={to_apply}", groups.attrs);
        if self.rng.one_in(4) {
            let shape = format!("(({}), {})", x.shape(), shape_text(x.dtype, &[2]));
            let start = self.emit_tuple(body, &shape, &format!("reduce-scatter-start({}), {attrs}", x.name));
            return vec![self.emit(body, x.dtype, &[2], &format!("reduce-scatter-done({start})"), Uniform::Nowhere)];
        }
        vec![self.emit(body, x.dtype, &[2], &format!("reduce-scatter({}), {attrs}", x.name), Uniform::Nowhere)]
    }

    fn all_to_all(&mut self, body: &mut Body) -> Vec<Val> {
        let groups = self.groups(body.scope, Family::Exchanging);
        let size = groups.flat[0].len() as i64;
        let x = self.operand(body);
        let x = self.resize(body, &x, &[size, 2]);
        let text = format!("all-to-all({}), {}, dimensions={{0}}", x.name, groups.attrs);
        vec![self.emit(body, x.dtype, &[size, 2], &text, Uniform::Nowhere)]
    }

    fn tuple_all_to_all(&mut self, body: &mut Body) -> Vec<Val> {
        let groups = self.groups(body.scope, Family::Exchanging);
        let x = self.operand(body);
        let operands: Vec<Val> =
            (0..groups.flat[0].len()).map(|i| if i == 0 { x.clone() } else { self.any_like(body, &x) }).collect();
        let shapes = vec![x.shape(); operands.len()].join(", ");
        let names = operands.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", ");
        let text = format!("all-to-all({names}), {}", groups.attrs);
        let tuple = self.emit_tuple(body, &format!("({shapes})"), &text);
        (0..operands.len()).map(|i| self.element(body, &tuple, i, &x, Uniform::Nowhere)).collect()
    }

    fn broadcast(&mut self, body: &mut Body) -> Vec<Val> {
        let groups = self.groups(body.scope, Family::Exchanging);
        let uniform = self.uniform_of(&groups);
        let x = self.operand(body);
        let text = format!("collective-broadcast({}), {}", x.name, groups.attrs);
        vec![self.emit(body, x.dtype, &x.dims, &text, uniform)]
    }

    fn permute(&mut self, body: &mut Body) -> Vec<Val> {
        let modes = self.modes(body.scope, Family::Exchanging);
        let mode = *self.rng.pick(&modes);
        let (n, channel) = match mode {
            Mode::Partitions => {
                self.n_channels += 1;
                (self.size.num_partitions, format!("channel_id={}, ", self.n_channels))
            }
            Mode::Replicas | Mode::ReplicasAllPartitions | Mode::Flat => (self.size.replica_count, String::new()),
        };
        let targets = self.rng.shuffled(n);
        let n_pairs = if self.rng.one_in(2) { n } else { 1 + self.rng.below(n) };
        let sources = self.rng.shuffled(n);
        let pairs: Vec<String> = (0..n_pairs).map(|i| format!("{{{},{}}}", sources[i], targets[sources[i]])).collect();
        let x = self.operand(body);
        let attrs = format!("{channel}source_target_pairs={{{}}}", pairs.join(","));
        if self.rng.one_in(4) {
            let shape = format!("({}, {}, u32[], u32[])", x.shape(), x.shape());
            let start = self.emit_tuple(body, &shape, &format!("collective-permute-start({}), {attrs}", x.name));
            let text = format!("collective-permute-done({start})");
            return vec![self.emit(body, x.dtype, &x.dims, &text, Uniform::Nowhere)];
        }
        let text = format!("collective-permute({}), {attrs}", x.name);
        vec![self.emit(body, x.dtype, &x.dims, &text, Uniform::Nowhere)]
    }
}

fn braced(ids: &[usize]) -> String {
    format!("{{{}}}", ids.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}
