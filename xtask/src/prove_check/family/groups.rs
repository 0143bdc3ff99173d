//! Collectives in all group modes: the same groups written in two modes, members in another order, other channels, sums in stages.

use hlo_tests::random_module::Rng;

use super::{Program, list};

/// How the ids of groups are read.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Replicas,
    ReplicasAllPartitions,
    Partitions,
    Flat,
}

/// An exchange: what, in which mode, among whom, and with which reducer.
#[derive(Clone)]
struct Exchange {
    op: &'static str,
    mode: Mode,
    groups: Vec<Vec<usize>>,
    reducer: &'static str,
}

const MODES: [Mode; 4] = [Mode::Replicas, Mode::ReplicasAllPartitions, Mode::Partitions, Mode::Flat];
const OPS: [&str; 7] =
    ["all-reduce", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast", "permute"];

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let (r, p) = *rng.pick(&[(1, 4), (4, 1), (2, 2), (2, 2), (2, 4), (1, 8)]);
    let n_exchanges = 1 + rng.below(2);
    let before: Vec<Exchange> = (0..n_exchanges).map(|_| exchange((r, p), rng)).collect();
    let mut after = before.clone();
    let k = rng.below(after.len());
    match rng.below(8) {
        0 => after[k].mode = *rng.pick(&MODES),
        1 | 2 => {
            let group = rng.below(after[k].groups.len());
            let n = after[k].groups[group].len();
            let (i, j) = (rng.below(n), rng.below(n));
            after[k].groups[group].swap(i, j);
        }
        3 => {
            let n = after[k].groups.len();
            let (a, b) = (rng.below(n), rng.below(n));
            after[k].groups.swap(a, b);
        }
        4 => {
            let n = after[k].groups.len();
            let (a, b) = (rng.below(n), rng.below(n));
            let (i, j) = (rng.below(after[k].groups[a].len()), rng.below(after[k].groups[b].len()));
            let (x, y) = (after[k].groups[a][i], after[k].groups[b][j]);
            (after[k].groups[a][i], after[k].groups[b][j]) = (y, x);
        }
        5 => after[k] = flattened(&after[k], (r, p)),
        6 => {
            let other = exchange((r, p), rng);
            after[k] = other;
        }
        _ => {
            after.reverse();
        }
    }
    let first_channel = 1 + rng.below(3);
    (write(&before, (r, p), 1), write(&after, (r, p), first_channel))
}

/// The ids that are in groups of a mode.
fn n_ids(mode: Mode, (r, p): (usize, usize)) -> usize {
    match mode {
        Mode::Replicas | Mode::ReplicasAllPartitions => r,
        Mode::Partitions => p,
        Mode::Flat => r * p,
    }
}

fn exchange(size: (usize, usize), rng: &mut Rng) -> Exchange {
    let op = *rng.pick::<&'static str>(&OPS);
    let mode = match op {
        "all-to-all" | "collective-broadcast" | "permute" => *rng.pick(&[Mode::Replicas, Mode::Partitions]),
        _ => *rng.pick(&MODES),
    };
    let n = n_ids(mode, size);
    let mut ids: Vec<usize> = (0..n).collect();
    if rng.one_in(3) {
        ids = rng.shuffled(n);
    }
    let sizes: Vec<usize> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
    let groups = ids.chunks(*rng.pick(&sizes)).map(<[usize]>::to_vec).collect();
    Exchange { op, mode, groups, reducer: rng.pick::<&'static str>(&["add", "add", "max", "odd", "second"]) }
}

/// The same groups as ids of devices, for ops that take these.
fn flattened(own: &Exchange, (r, p): (usize, usize)) -> Exchange {
    let of = |group: &Vec<usize>, device: &dyn Fn(usize) -> usize| group.iter().map(|&id| device(id)).collect();
    let groups: Vec<Vec<usize>> = match own.mode {
        Mode::Flat => own.groups.clone(),
        Mode::Replicas => (0..p).flat_map(|part| own.groups.iter().map(move |g| of(g, &|id| id * p + part))).collect(),
        Mode::Partitions => {
            (0..r).flat_map(|replica| own.groups.iter().map(move |g| of(g, &|id| replica * p + id))).collect()
        }
        Mode::ReplicasAllPartitions => own
            .groups
            .iter()
            .map(|g| g.iter().flat_map(|&id| (0..p).map(move |part| id * p + part)).collect())
            .collect(),
    };
    match own.op {
        "all-to-all" | "collective-broadcast" | "permute" => own.clone(),
        _ => Exchange { mode: Mode::Flat, groups, ..own.clone() },
    }
}

fn write(exchanges: &[Exchange], (r, p): (usize, usize), first_channel: usize) -> Program {
    let mut program = Program::new(r, p);
    let n = r * p;
    let mut value = program.param(&format!("f32[{n},2]"));
    // A value of the same dims that differs within what comes out.
    let other = program.param(&format!("f32[{n},2]"));
    let shape = format!("f32[{n},2]");
    for (k, exchange) in exchanges.iter().enumerate() {
        let Exchange { op, mode, groups, reducer } = exchange;
        let size = groups.first().map_or(1, Vec::len) * if *mode == Mode::ReplicasAllPartitions { p } else { 1 };
        let channel = match mode {
            Mode::Replicas => String::new(),
            Mode::ReplicasAllPartitions | Mode::Partitions | Mode::Flat => {
                format!(", channel_id={}", first_channel + k)
            }
        };
        // All-reduces and their kin read channels without global ids as replicas of all partitions.
        let global = if *mode == Mode::Flat { ", use_global_device_ids=true" } else { "" };
        let lists: Vec<String> = groups.iter().map(|g| format!("{{{}}}", list(g))).collect();
        let of_groups = format!("replica_groups={{{}}}{channel}{global}", lists.join(","));
        value = match *op {
            "all-reduce" => program.add(&shape, &format!("all-reduce({value}), {of_groups}, to_apply=%{reducer}")),
            "all-gather" => {
                let wide = format!("f32[{},2]", n * size);
                let all = program.add(&wide, &format!("all-gather({value}), {of_groups}, dimensions={{0}}"));
                program.add(&shape, &format!("slice({all}), slice={{[{}:{}],[0:2]}}", n * size - n, n * size))
            }
            "reduce-scatter" => {
                let tall = format!("f32[{},2]", n * size);
                let names = vec![value.clone(); size.saturating_sub(1)].into_iter().chain([other.clone()]);
                let names = names.collect::<Vec<_>>().join(", ");
                let all = program.add(&tall, &format!("concatenate({names}), dimensions={{0}}"));
                program
                    .add(&shape, &format!("reduce-scatter({all}), {of_groups}, dimensions={{0}}, to_apply=%{reducer}"))
            }
            "all-to-all" => program.add(&shape, &format!("all-to-all({value}), {of_groups}, dimensions={{0}}")),
            "collective-broadcast" => program.add(&shape, &format!("collective-broadcast({value}), {of_groups}")),
            _ => {
                let pairs: Vec<String> = groups
                    .iter()
                    .flat_map(|g| (0..g.len()).map(|i| format!("{{{},{}}}", g[i], g[(i + 1) % g.len()])))
                    .collect();
                program.add(
                    &shape,
                    &format!("collective-permute({value}), source_target_pairs={{{}}}{channel}", pairs.join(",")),
                )
            }
        };
        if k + 1 < exchanges.len() && first_channel != 3 {
            value = program.add(&shape, &format!("add({value}, {value})"));
        }
    }
    program.give(&shape, &value);
    program
}
