//! Sums of parts of a vector that meet, overlap or come twice, of parts put into places that overlap, and of products with numbers.

use hlo_tests::random_module::Rng;

use super::{Program, factor};

const N: usize = 24;

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    match rng.below(3) {
        0 => parts(rng),
        1 => places(rng),
        _ => factors(rng),
    }
}

/// Parts of a vector: where they begin and end.
type Parts = Vec<(usize, usize)>;

/// A sum or a maximum over parts, which the second program has cut otherwise, or twice, or in place of others.
fn parts(rng: &mut Rng) -> (Program, Program) {
    let length = 1 + rng.below(4);
    let shift = *rng.pick(&[1, 1, length, length + 2]);
    let mut own: Parts = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(N - length - 2 * shift);
        own.extend((0..1 + rng.below(3)).map(|k| (at + k * shift, at + k * shift + length)));
    }
    let mut other = own.clone();
    match rng.below(6) {
        // Cut in two.
        0 => {
            let k = rng.below(other.len());
            let (from, to) = other[k];
            if to - from > 1 {
                other[k].1 = from + 1;
                other.push((from + 1, to));
            }
        }
        // Neighbours made one, or left out.
        1 => {
            let (a, b) = (rng.below(other.len()), rng.below(other.len()));
            if a != b {
                let to = other[b].1;
                other[a] = (other[a].0.min(other[b].0), other[a].1.max(to));
                other.remove(b);
            }
        }
        // One comes twice, in place of another.
        2 => {
            let (a, b) = (rng.below(other.len()), rng.below(other.len()));
            other[a] = other[b];
        }
        3 => {
            let k = rng.below(other.len());
            other.remove(k);
            if other.is_empty() {
                other.push((0, length));
            }
        }
        _ => {}
    }
    let turn = rng.below(other.len());
    other.rotate_left(turn);
    let reducer = *rng.pick::<&'static str>(&["add", "add", "max"]);
    let write = |parts: &Parts| {
        let mut p = Program::single();
        let x = p.param(&format!("f32[{N}]"));
        let zero = p.constant("f32[]", "0");
        let names: Vec<String> = parts
            .iter()
            .map(|(from, to)| p.add(&format!("f32[{}]", to - from), &format!("slice({x}), slice={{[{from}:{to}]}}")))
            .collect();
        let n: usize = parts.iter().map(|(from, to)| to - from).sum();
        let all = p.add(&format!("f32[{n}]"), &format!("concatenate({}), dimensions={{0}}", names.join(", ")));
        let sum = p.add("f32[]", &format!("reduce({all}, {zero}), dimensions={{0}}, to_apply=%{reducer}"));
        p.give("f32[]", &sum);
        p
    };
    (write(&own), write(&other))
}

/// Vectors put to places of a longer one, and added there; the second program says so for a part of the places.
fn places(rng: &mut Rng) -> (Program, Program) {
    let n = 6;
    let pieces: Vec<(usize, usize)> = (0..1 + rng.below(3))
        .map(|_| {
            let length = 1 + rng.below(4);
            (rng.below(n - length + 1), length)
        })
        .collect();
    let mut other = pieces.clone();
    if rng.one_in(2) {
        let k = rng.below(other.len());
        other[k].0 = rng.below(n - other[k].1 + 1);
    }
    let reducer = *rng.pick::<&'static str>(&["add", "add", "max", "mul"]);
    let filling = if reducer == "mul" { "1" } else { "0" };
    let (from, to) = (rng.below(3), 4 + rng.below(3));
    let is_added = |rng: &mut Rng| reducer == "add" && rng.one_in(2);
    let write = |pieces: &[(usize, usize)], is_added: bool, is_cut_first: bool| {
        let mut p = Program::single();
        let inputs: Vec<String> = pieces.iter().map(|(_, length)| p.param(&format!("f32[{length}]"))).collect();
        let zero = p.constant("f32[]", filling);
        let shape = format!("f32[{n}]");
        let mut width = n;
        let mut rows = Vec::new();
        for ((at, length), input) in pieces.iter().zip(&inputs) {
            let mut row = p.add(&shape, &format!("pad({input}, {zero}), padding={at}_{}", n - at - length));
            if is_cut_first {
                width = to - from;
                row = p.add(&format!("f32[{width}]"), &format!("slice({row}), slice={{[{from}:{to}]}}"));
            }
            rows.push(row);
        }
        let shape = format!("f32[{width}]");
        let mut sum = if is_added {
            let mut sum = rows[0].clone();
            for row in &rows[1..] {
                sum = p.add(&shape, &format!("add({sum}, {row})"));
            }
            sum
        } else {
            let rows: Vec<String> =
                rows.iter().map(|row| p.add(&format!("f32[1,{width}]"), &format!("reshape({row})"))).collect();
            let all = p.add(
                &format!("f32[{},{width}]", rows.len()),
                &format!("concatenate({}), dimensions={{0}}", rows.join(", ")),
            );
            p.add(&shape, &format!("reduce({all}, {zero}), dimensions={{0}}, to_apply=%{reducer}"))
        };
        let shape = format!("f32[{}]", to - from);
        if !is_cut_first {
            sum = p.add(&shape, &format!("slice({sum}), slice={{[{from}:{to}]}}"));
        }
        p.give(&shape, &sum);
        p
    };
    (write(&pieces, is_added(rng), rng.one_in(2)), write(&other, is_added(rng), rng.one_in(2)))
}

/// Products with numbers before a sum, or behind it.
fn factors(rng: &mut Rng) -> (Program, Program) {
    let c = factor(rng);
    let d = if rng.one_in(4) { factor(rng) } else { c };
    let op = *rng.pick::<&'static str>(&["multiply", "multiply", "divide"]);
    let over = rng.below(3);
    let (computed, other) = (rng.below(8), factor(rng));
    let write = |c: &str, is_inside: bool, is_runtime: bool| {
        let mut p = Program::new(1, 2);
        let x = p.param("f32[6]");
        let y = p.param("f32[]");
        let zero = p.constant("f32[]", "0");
        let number = if is_runtime { y.clone() } else { p.constant("f32[]", c) };
        // A number that ops make of others, of which the second may be zero or infinite, or of an input that goes away.
        let second = p.constant("f32[]", other);
        let number = match computed {
            0 => p.add("f32[]", &format!("divide({number}, {second})")),
            1 => p.add("f32[]", &format!("multiply({second}, {number})")),
            2 => p.add("f32[]", &format!("log({number})")),
            3 => {
                let nothing = p.add("f32[]", &format!("subtract({y}, {y})"));
                p.add("f32[]", &format!("divide({number}, {nothing})"))
            }
            4 => {
                let narrow = p.add("f16[]", &format!("convert({number})"));
                p.add("f32[]", &format!("convert({narrow})"))
            }
            _ => number,
        };
        let sum = |p: &mut Program, x: &str| match over {
            0 => p.add("f32[]", &format!("reduce({x}, {zero}), dimensions={{0}}, to_apply=%add")),
            1 => p.add("f32[6]", &format!("all-reduce({x}), replica_groups={{}}, to_apply=%add")),
            _ => {
                let own = p.add("f32[]", &format!("reduce({x}, {zero}), dimensions={{0}}, to_apply=%add"));
                p.add("f32[]", &format!("all-reduce({own}), replica_groups={{}}, to_apply=%add"))
            }
        };
        let shape = if over == 1 { "f32[6]" } else { "f32[]" };
        let result = if is_inside {
            let everywhere = p.add("f32[6]", &format!("broadcast({number}), dimensions={{}}"));
            let product = p.add("f32[6]", &format!("{op}({x}, {everywhere})"));
            sum(&mut p, &product)
        } else {
            let sum = sum(&mut p, &x);
            let number =
                if over == 1 { p.add("f32[6]", &format!("broadcast({number}), dimensions={{}}")) } else { number };
            p.add(shape, &format!("{op}({sum}, {number})"))
        };
        p.give(shape, &result);
        p
    };
    let is_runtime = rng.one_in(3);
    (write(c, rng.one_in(2), is_runtime), write(d, rng.one_in(2), is_runtime))
}
