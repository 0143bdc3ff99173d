//! Edits of HLO text that often leave a valid module: for a fuzzer's cases that are texts, between its edits of bytes.

use crate::random_module::{Rng, Size, random_module};
use hlo_ir::{DType, Opcode};
use hlo_opt::registry;

/// A line `// edit:` of the target `verify` begins with one of these.
const MODULE_EDITS: [&str; 12] = [
    "operand",
    "add-operand",
    "drop-operand",
    "shape",
    "opcode",
    "attributes",
    "marks",
    "root",
    "no-root",
    "swap",
    "name",
    "entry",
];
/// Ops on one value or two that keep its shape.
const ELEMENTWISE: [&str; 14] = [
    "negate", "abs", "copy", "sine", "tanh", "add", "subtract", "multiply", "maximum", "minimum", "divide", "and",
    "xor", "power",
];

/// Which header lines the cases of a target have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headers {
    /// None.
    None,
    /// `// pass: PIPELINE`.
    Pipeline,
    /// `// edit: KIND I J`.
    Edits,
}

/// The text after one to four edits; `None` where it is too long, or no text.
pub fn edited(bytes: &[u8], headers: Headers, seed: u32, max_bytes: usize) -> Option<String> {
    let mut rng = Rng::new(u64::from(seed));
    let mut text = std::str::from_utf8(bytes).ok()?.to_string();
    if rng.one_in(200) || !text.contains("ENTRY") {
        let size =
            Size { replica_count: 1 + rng.below(3), num_partitions: 1 + rng.below(3), n_steps: 2 + rng.below(12) };
        text = random_module(rng.next_u64(), size).text;
    }
    for _ in 0..=rng.below(4) {
        text = edit(&text, headers, &mut rng);
    }
    (text.len() <= max_bytes).then_some(text)
}

fn edit(text: &str, headers: Headers, rng: &mut Rng) -> String {
    match (headers, rng.below(12)) {
        (Headers::Pipeline, 0) => with_pipeline(text, rng),
        (Headers::Edits, 0 | 1) => {
            let (kind, first, second) = (rng.pick(&MODULE_EDITS), rng.below(64), rng.below(200));
            format!("// edit: {kind} {first} {second}\n{text}")
        }
        (_, 1 | 2) => with_other_type(text, rng),
        (_, 3) => with_other_number(text, rng),
        (_, 4 | 5) => with_one_more(text, rng),
        (_, 6) => with_other_opcode(text, rng),
        (_, 7 | 8) => with_other_word(text, rng),
        (_, 9) => with_moved_line(text, rng),
        (_, 10) => with_other_attribute(text, rng),
        (Headers::None | Headers::Pipeline | Headers::Edits, _) => with_other_operand(text, rng),
    }
}

fn with_pipeline(text: &str, rng: &mut Rng) -> String {
    let passes = registry::passes();
    let names: Vec<&str> = (0..=rng.below(4)).map(|_| rng.pick(&passes).name).collect();
    let options = |name: &&str| match *name {
        "shard-weight-update" => "shard-weight-update{min-bytes=0,profit=always}".to_string(),
        "distribute-matrix-updates" => "distribute-matrix-updates{profit=always}".to_string(),
        "combine-collectives" => "combine-collectives{mode=packed}".to_string(),
        name => name.to_string(),
    };
    let pipeline = names.iter().map(options).collect::<Vec<_>>().join(",");
    let body: Vec<&str> = text.lines().filter(|line| !line.starts_with("// pass:")).collect();
    format!("// pass: {pipeline}\n{}\n", body.join("\n"))
}

/// One element type for another, everywhere or from a place on.
fn with_other_type(text: &str, rng: &mut Rng) -> String {
    let present: Vec<&DType> = DType::ALL.iter().filter(|t| text.contains(&format!("{}[", t.name()))).collect();
    if present.is_empty() {
        return text.to_string();
    }
    let (old, new) = (rng.pick(&present).name(), rng.pick(DType::ALL).name());
    let from = if rng.one_in(3) { boundary(text, rng.below(text.len())) } else { 0 };
    let (head, tail) = text.split_at(from);
    format!("{head}{}", tail.replace(&format!("{old}["), &format!("{new}[")))
}

/// A number for another, everywhere or once.
fn with_other_number(text: &str, rng: &mut Rng) -> String {
    let words = tokens(text);
    let numbers: Vec<&(usize, &str)> = words.iter().filter(|(_, w)| w.bytes().all(|b| b.is_ascii_digit())).collect();
    if numbers.is_empty() {
        return text.to_string();
    }
    let (_, old) = rng.pick(&numbers);
    let near = old.parse::<u64>().unwrap_or(0).wrapping_add(1);
    let choices =
        [0, 1, 2, 3, 4, 6, 8, 16, near, near.wrapping_sub(2), near.wrapping_mul(2), 1 << 20, 1 << 31, (1 << 62) + 1];
    let new = rng.pick(&choices).to_string();
    let is_everywhere = !rng.one_in(3);
    let (at, _) = **rng.pick(&numbers);
    rebuilt(text, &words, |place, word| ((is_everywhere && word == *old) || place == at).then(|| new.clone()))
}

/// An instruction on the value of another one, which takes its place in one of its uses.
fn with_one_more(text: &str, rng: &mut Rng) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let arrays: Vec<usize> =
        (0..lines.len()).filter(|&i| defined(lines[i]).is_some_and(|(_, s)| s.contains('['))).collect();
    if arrays.is_empty() {
        return text.to_string();
    }
    let at = *rng.pick(&arrays);
    let Some((name, shape)) = defined(lines[at]) else { return text.to_string() };
    let op = rng.pick(&ELEMENTWISE);
    let n_operands = if ["negate", "abs", "copy", "sine", "tanh"].contains(op) { 1 } else { 2 };
    let mut out: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
    let new = format!("{name}.z{}", rng.below(1000));
    let operands = vec![name; n_operands].join(", ");
    if let Some(user) =
        (at + 1..lines.len()).filter(|&i| tokens(lines[i]).iter().any(|(_, w)| *w == name)).nth(rng.below(2))
    {
        let words = tokens(lines[user]);
        out[user] = rebuilt(lines[user], &words, |_, word| (word == name).then(|| new.clone()));
    }
    out.insert(at + 1, format!("  {new} = {shape} {op}({operands})"));
    out.join("\n") + "\n"
}

fn with_other_opcode(text: &str, rng: &mut Rng) -> String {
    let words = tokens(text);
    let is_op = |(at, word): &&(usize, &str)| {
        text[at + word.len()..].starts_with('(') && Opcode::ALL.iter().any(|op| op.name() == *word)
    };
    let ops: Vec<&(usize, &str)> = words.iter().filter(is_op).collect();
    if ops.is_empty() {
        return text.to_string();
    }
    let (at, _) = **rng.pick(&ops);
    let new = match rng.one_in(2) {
        true => rng.pick(Opcode::ALL).name(),
        false => rng.pick(&ELEMENTWISE),
    };
    rebuilt(text, &words, |place, _| (place == at).then(|| new.to_string()))
}

/// A word in the place of another.
fn with_other_word(text: &str, rng: &mut Rng) -> String {
    let words = tokens(text);
    if words.is_empty() {
        return text.to_string();
    }
    let (at, new) = (rng.pick(&words).0, rng.pick(&words).1.to_string());
    rebuilt(text, &words, |place, _| (place == at).then(|| new.clone()))
}

/// An operand for another name of the same computation and the same shape.
fn with_other_operand(text: &str, rng: &mut Rng) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let defs: Vec<(usize, &str, &str)> =
        lines.iter().enumerate().filter_map(|(i, line)| defined(line).map(|(name, shape)| (i, name, shape))).collect();
    if defs.is_empty() {
        return text.to_string();
    }
    let &(old_at, old, shape) = rng.pick(&defs);
    let same: Vec<&(usize, &str, &str)> = defs.iter().filter(|d| d.2 == shape && d.0 != old_at).collect();
    if same.is_empty() {
        return text.to_string();
    }
    let (new_at, new, _) = **rng.pick(&same);
    let first = old_at.max(new_at) + 1 + rng.below(4);
    let replace = |(i, line): (usize, &&str)| match i >= first {
        true => rebuilt(line, &tokens(line), |_, word| (word == old).then(|| new.to_string())),
        false => line.to_string(),
    };
    lines.iter().enumerate().map(replace).collect::<Vec<_>>().join("\n") + "\n"
}

/// A line doubled, left out, or moved.
fn with_moved_line(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    if lines.len() < 2 {
        return text.to_string();
    }
    let (from, to) = (rng.below(lines.len()), rng.below(lines.len()));
    match rng.below(3) {
        0 => lines.insert(to, lines[from]),
        1 => drop(lines.remove(from)),
        _ => lines.swap(from, to),
    }
    lines.join("\n") + "\n"
}

/// An attribute of one line at the end of another, or one left out.
fn with_other_attribute(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    let with: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].contains("), ")).collect();
    let calls: Vec<usize> =
        (0..lines.len()).filter(|&i| lines[i].contains(" = ") && lines[i].ends_with([')', '}'])).collect();
    if with.is_empty() || calls.is_empty() {
        return text.to_string();
    }
    let (from, to) = (*rng.pick(&with), *rng.pick(&calls));
    let Some((head, attributes)) = lines[from].split_once("), ") else { return text.to_string() };
    if rng.one_in(2) {
        lines[from] = match attributes.rsplit_once(", ") {
            Some((rest, _)) => format!("{head}), {rest}"),
            None => format!("{head})"),
        };
    } else {
        let new = attributes.to_string();
        lines[to] = format!("{}, {new}", lines[to]);
    }
    lines.join("\n") + "\n"
}

/// Name and shape of a line that defines an array or a tuple.
fn defined(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let (name, rest) = line.strip_prefix("ROOT ").unwrap_or(line).split_once(" = ")?;
    let (shape, _) = rest.split_once(' ')?;
    (!name.contains(' ') && !line.starts_with("//")).then_some((name, shape))
}

/// Words with their places: names, numbers, keys.
fn tokens(text: &str) -> Vec<(usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '%' | '.' | '_' | '-');
    text.split(|c: char| !is_part(c))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
        .collect()
}

/// The text with some of its words replaced.
fn rebuilt(text: &str, words: &[(usize, &str)], mut replace: impl FnMut(usize, &str) -> Option<String>) -> String {
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    for &(at, word) in words {
        if let Some(new) = replace(at, word) {
            out.push_str(&text[done..at]);
            out.push_str(&new);
            done = at + word.len();
        }
    }
    out + &text[done..]
}

fn boundary(text: &str, near: usize) -> usize {
    (0..=near.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}
