//! Elements of two vectors moved to known places, in five ways, and given to an op that needs them all.

use hlo_tests::random_module::Rng;

use super::{Program, list};

/// Where an element comes from: a vector and a place in it, or nowhere, which is zero.
type Source = Option<(usize, usize)>;

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let n = *rng.pick(&[4, 6, 8]);
    let map = sources(n, rng);
    let mut other = map.clone();
    let mut table: Vec<i64> = (0..n).map(|_| rng.below(4) as i64).collect();
    if rng.one_in(3) {
        table = vec![table[0]; n];
    }
    let mut other_table = table.clone();
    match rng.below(6) {
        0 | 1 => {
            let at = n - 1 - rng.below(n * 3 / 4);
            other[at] = sources(n, rng)[at];
        }
        2 => {
            let at = n - 1 - rng.below(n * 3 / 4);
            other_table[at] += 1 + rng.below(3) as i64;
        }
        3 => {
            let (i, j) = (rng.below(n), rng.below(n));
            other.swap(i, j);
        }
        _ => {}
    }
    let (consumer, inner) = (rng.below(N_CONSUMERS), rng.below(N_INNER));
    let mut write = |map: &[Source], table: &[i64]| {
        let mut program = Program::new(1, 2);
        let vectors = [program.param(&vector(n)), program.param(&vector(n))];
        let moved = moved(&mut program, map, &vectors, rng);
        consume(&mut program, (consumer, inner), &moved, table, rng);
        program
    };
    (write(&map, &table), write(&other, &other_table))
}

fn vector(n: usize) -> String {
    format!("f32[{n}]")
}

/// Runs of elements, forwards or backwards or one again and again, and gaps.
fn sources(n: usize, rng: &mut Rng) -> Vec<Source> {
    let mut out = Vec::new();
    while out.len() < n {
        let (which, at, step) = (rng.below(2), rng.below(n), *rng.pick(&[1, 1, 1, 2, 0, -1]));
        let gap = rng.one_in(5);
        for k in 0..1 + rng.below(n) {
            let place = at as i64 + step * k as i64;
            let Some(place) = usize::try_from(place).ok().filter(|&p| p < n) else { break };
            out.push((!gap).then_some((which, place)));
        }
    }
    out.truncate(n);
    out
}

/// A vector with these elements.
fn moved(p: &mut Program, map: &[Source], vectors: &[String; 2], rng: &mut Rng) -> String {
    match rng.below(6) {
        0 => gathered(p, map, vectors, rng),
        1 | 2 => concatenated(p, map, vectors, rng),
        3 => masked(p, map, vectors),
        4 => updated(p, map, vectors, rng),
        _ => scattered(p, map, vectors, rng),
    }
}

/// Zero stands behind the two vectors, where indices out of bounds are clamped to.
fn gathered(p: &mut Program, map: &[Source], vectors: &[String; 2], rng: &mut Rng) -> String {
    let n = map.len();
    let zero = p.splat("f32[1]", "0");
    let all = p.add(
        &format!("f32[{}]", 2 * n + 1),
        &format!("concatenate({}, {}, {zero}), dimensions={{0}}", vectors[0], vectors[1]),
    );
    let places: Vec<String> = map
        .iter()
        .map(|source| match source {
            Some((which, place)) => format!("{{{}}}", which * n + place),
            None => format!("{{{}}}", 2 * n + rng.below(3)),
        })
        .collect();
    let indices = p.constant(&format!("s32[{n},1]"), &format!("{{{}}}", places.join(",")));
    p.add(
        &vector(n),
        &format!(
            "gather({all}, {indices}), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, \
             slice_sizes={{1}}"
        ),
    )
}

/// Runs of neighbours in the map: where they begin, and how long they are.
fn runs(map: &[Source]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (k, source) in map.iter().enumerate() {
        let follows = k > 0
            && match (map[k - 1], source) {
                (Some((a, i)), Some((b, j))) => a == *b && i + 1 == *j,
                (None, None) => true,
                (_, _) => false,
            };
        match runs.last_mut().filter(|_| follows) {
            Some(run) => run.1 += 1,
            None => runs.push((k, 1)),
        }
    }
    runs
}

/// The elements of one run.
fn run(p: &mut Program, source: Source, length: usize, vectors: &[String; 2]) -> String {
    let shape = vector(length);
    match source {
        Some((which, place)) => {
            p.add(&shape, &format!("slice({}), slice={{[{place}:{}]}}", vectors[which], place + length))
        }
        None => p.splat(&shape, "0"),
    }
}

fn concatenated(p: &mut Program, map: &[Source], vectors: &[String; 2], rng: &mut Rng) -> String {
    let mut parts: Vec<(String, usize)> = Vec::new();
    for (at, length) in runs(map) {
        parts.push((run(p, map[at], length, vectors), length));
    }
    // In one, or the first two before the others.
    if parts.len() > 2 && rng.one_in(2) {
        let length = parts[0].1 + parts[1].1;
        let both = p.add(&vector(length), &format!("concatenate({}, {}), dimensions={{0}}", parts[0].0, parts[1].0));
        parts.splice(0..2, [(both, length)]);
    }
    let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    p.add(&vector(map.len()), &format!("concatenate({}), dimensions={{0}}", names.join(", ")))
}

fn masked(p: &mut Program, map: &[Source], vectors: &[String; 2]) -> String {
    let n = map.len();
    let zero = p.constant("f32[]", "0");
    let mut out = p.splat(&vector(n), "0");
    let iota = p.add(&format!("s32[{n}]"), "iota(), iota_dimension=0");
    for (at, length) in runs(map) {
        let part = run(p, map[at], length, vectors);
        let padded = p.add(&vector(n), &format!("pad({part}, {zero}), padding={at}_{}", n - at - length));
        let low = p.splat(&format!("s32[{n}]"), &at.to_string());
        let high = p.splat(&format!("s32[{n}]"), &(at + length).to_string());
        let shape = format!("pred[{n}]");
        let after = p.add(&shape, &format!("compare({iota}, {low}), direction=GE"));
        let before = p.add(&shape, &format!("compare({iota}, {high}), direction=LT"));
        let both = p.add(&shape, &format!("and({after}, {before})"));
        out = p.add(&vector(n), &format!("select({both}, {padded}, {out})"));
    }
    out
}

/// Written one after another; what stands at an end is written beyond it, and clamped.
fn updated(p: &mut Program, map: &[Source], vectors: &[String; 2], rng: &mut Rng) -> String {
    let n = map.len();
    let mut out = p.splat(&vector(n), "0");
    let all = runs(map);
    let turn = rng.below(all.len());
    for k in 0..all.len() {
        let (at, length) = all[(k + turn) % all.len()];
        let part = run(p, map[at], length, vectors);
        let mut place = at as i64;
        if at + length == n {
            place += rng.below(3) as i64;
        } else if at == 0 {
            place -= rng.below(3) as i64;
        }
        let place = p.constant("s32[]", &place.to_string());
        out = p.add(&vector(n), &format!("dynamic-update-slice({out}, {part}, {place})"));
    }
    out
}

/// Written in any order; what is written out of bounds is left out.
fn scattered(p: &mut Program, map: &[Source], vectors: &[String; 2], rng: &mut Rng) -> String {
    let n = map.len();
    let zeros = p.splat(&vector(n), "0");
    let order = rng.shuffled(n);
    let turned: Vec<Source> = order.iter().map(|&k| map[k]).collect();
    let updates = concatenated(p, &turned, vectors, rng);
    let far = |k: usize, rng: &mut Rng| *rng.pick(&[k as i64, k as i64, n as i64 + 1, -1]);
    let places: Vec<String> = order
        .iter()
        .map(|&k| if map[k].is_none() { far(k, rng) } else { k as i64 })
        .map(|place| format!("{{{place}}}"))
        .collect();
    let indices = p.constant(&format!("s32[{n},1]"), &format!("{{{}}}", places.join(",")));
    p.add(
        &vector(n),
        &format!(
            "scatter({zeros}, {indices}, {updates}), update_window_dims={{}}, inserted_window_dims={{0}}, \
             scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%{}",
            rng.pick(&["second", "add"])
        ),
    )
}

const N_INNER: usize = 6;
const N_CONSUMERS: usize = 13;

/// An op on all elements, after an elementwise op with another vector or with a table.
fn consume(p: &mut Program, (consumer, inner): (usize, usize), moved: &str, table: &[i64], rng: &mut Rng) {
    let n = table.len();
    let shape = vector(n);
    let other = p.param(&shape);
    let at = p.param("s32[]");
    let is_splat = table.iter().all(|&t| t == table[0]);
    let table = match is_splat && rng.one_in(2) {
        true => p.splat(&shape, &table[0].to_string()),
        false => p.constant(&shape, &format!("{{{}}}", list(table))),
    };
    let v = match inner {
        0 => moved.to_string(),
        1 => p.add(&shape, &format!("multiply({moved}, {table})")),
        2 => p.add(&shape, &format!("power({other}, {moved})")),
        3 => p.add(&shape, &format!("maximum({moved}, {table})")),
        4 => {
            let product = p.add(&shape, &format!("multiply({moved}, {table})"));
            p.add(&shape, &format!("exponential({product})"))
        }
        _ => p.add(&shape, &format!("subtract({other}, {moved})")),
    };
    let zero = p.constant("f32[]", "0");
    let (out, text) = match consumer {
        0 => (shape.clone(), format!("copy({v})")),
        1 => ("f32[]".into(), format!("reduce({v}, {zero}), dimensions={{0}}, to_apply=%add")),
        2 => ("f32[]".into(), format!("reduce({v}, {zero}), dimensions={{0}}, to_apply=%max")),
        3 => ("f32[]".into(), format!("dot({v}, {other}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}")),
        4 => ("f32[]".into(), format!("dot({v}, {table}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}")),
        5 => ("f32[2]".into(), format!("dynamic-slice({v}, {at}), dynamic_slice_sizes={{2}}")),
        6 => (
            "f32[2]".into(),
            format!(
                "gather({v}, {}), offset_dims={{0}}, collapsed_slice_dims={{}}, start_index_map={{0}}, index_vector_dim=0, \
                 slice_sizes={{2}}",
                p.add("s32[1]", &format!("reshape({at})"))
            ),
        ),
        7 => (shape.clone(), format!("sort({v}), dimensions={{0}}, to_apply=%less")),
        8 => (
            format!("f32[{}]", n - 1),
            format!("reduce-window({v}, {zero}), window={{size=2}}, to_apply=%{}", rng.pick(&["add"])),
        ),
        9 => {
            let index = p.constant("s32[2,1]", "{{1},{3}}");
            let two = p.add("f32[2]", &format!("slice({v}), slice={{[{}:{n}]}}", n - 2));
            (
                shape.clone(),
                format!(
                    "scatter({other}, {index}, {two}), update_window_dims={{}}, inserted_window_dims={{0}}, \
                     scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%add"
                ),
            )
        }
        10 => (shape.clone(), format!("all-reduce({v}), replica_groups={{}}, channel_id=1, to_apply=%add")),
        11 => {
            let square = p.add(&format!("f32[2,{}]", n / 2), &format!("reshape({v})"));
            (format!("f32[{}]", n / 2), format!("reduce({square}, {zero}), dimensions={{0}}, to_apply=%add"))
        }
        _ => {
            let start = p.add("s32[]", &format!("add({at}, {at})"));
            let two = p.add("f32[2]", &format!("slice({v}), slice={{[{}:{n}]}}", n - 2));
            (shape.clone(), format!("dynamic-update-slice({other}, {two}, {start})"))
        }
    };
    let result = p.add(&out, &text);
    p.give(&out, &result);
}
