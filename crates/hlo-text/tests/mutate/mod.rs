//! A small deterministic mutator of HLO text, and what must hold of the parser on whatever it makes.

use hlo_ir::print::{PrintOptions, print_module};
use std::path::Path;
use std::time::Duration;

/// SplitMix64: a seed gives the same mutations everywhere.
pub(crate) struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.bits() % n as u64) as usize }
    }
}

/// Pieces of text that parsers trip over.
const TOKENS: &[&str] = &[
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "<=",
    "?",
    ",",
    "=",
    "->",
    ":",
    "%",
    "\"",
    "\\",
    "'",
    "/*",
    "*/",
    "//",
    "\r",
    "\n",
    "-",
    "0",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999999",
    "1e999",
    "nan",
    "inf",
    "ROOT ",
    "ENTRY ",
    "HloModule ",
    "f32[",
    "f32[]",
    "f32[2,3]{1,0}",
    "f32[99999999999,99999999999]",
    "s4[",
    "token[]",
    "()",
    "((((((((",
    "{{{{{{{{",
    "<=[8]T(1,0)",
    "mesh['a'=2]",
    "{...}",
    "T(",
    "S(5)",
    "parameter(",
    "constant(",
    "tuple(",
    "-start(",
    "-done(",
    "add(",
    "calls=",
    "to_apply=",
    "dimensions={",
    "sharding={",
    "metadata={",
    "é",
    "\u{0}",
    "\u{EF80}",
    "\\377",
];

/// The samples below `folders` of `ir-samples`, largest ones left out.
pub(crate) fn seeds(folders: &[&str], max_bytes: usize) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples");
    let mut out: Vec<Vec<u8>> = Vec::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|e| e == "hlo"));
        paths.sort();
        out.extend(paths.iter().filter_map(|path| std::fs::read(path).ok()).filter(|text| text.len() <= max_bytes));
    }
    out
}

/// A damaged copy of one of `seeds`.
pub(crate) fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut text = seeds[random.below(seeds.len())].clone();
    for _ in 0..1 + random.below(4) {
        let at = random.below(text.len() + 1);
        let len = [1, 2, 8, 40, 400][random.below(5)];
        let end = (at + 1 + random.below(len)).min(text.len());
        let at = at.min(end);
        match random.below(9) {
            0 => text.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1 << random.below(8)),
            1 => drop(text.drain(at..end)),
            2 => {
                let piece = text[at..end].to_vec();
                let to = random.below(text.len() + 1);
                text.splice(to..to, piece);
            }
            3 => {
                let piece = text[at..end].to_vec();
                let copies = 1 + random.below(300);
                text.splice(at..at, piece.repeat(copies));
            }
            4 => text.truncate(at),
            5 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let to = (from + 1 + random.below(len)).min(other.len());
                text.splice(at..end, other[from..to].iter().copied());
            }
            6 => {
                let token = TOKENS[random.below(TOKENS.len())].repeat(1 + random.below(3));
                text.splice(at..at, token.into_bytes());
            }
            7 => {
                let token = TOKENS[random.below(TOKENS.len())];
                text.splice(at..end, token.bytes());
            }
            _ => swap_lines(&mut text, random),
        }
    }
    text
}

fn swap_lines(text: &mut Vec<u8>, random: &mut Random) {
    let mut lines: Vec<Vec<u8>> = text.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    let (a, b) = (random.below(lines.len()), random.below(lines.len()));
    lines.swap(a, b);
    *text = lines.join(&b'\n');
}

/// How long this thread ran, so that a busy machine makes no input slow; zero where the system does not tell.
pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// Parses `text`; what parses must print and parse again to the same text, what does not must render. Gives the time
/// of the parse alone.
pub(crate) fn check(text: &[u8]) -> Result<Duration, String> {
    let start = cpu_time();
    let parsed = hlo_text::parse_bytes(text);
    let time = cpu_time().saturating_sub(start);
    match parsed {
        Ok(parsed) => {
            let printed = print_module(&parsed.module, &PrintOptions::default());
            match hlo_text::parse_module(&printed) {
                Ok(again) => {
                    let second = print_module(&again.module, &PrintOptions::default());
                    if second != printed {
                        let lines = printed.lines().zip(second.lines()).find(|(a, b)| a != b);
                        return Err(format!("a second print differs: {lines:?}"));
                    }
                }
                Err(diags) => return Err(hlo_text::render(&diags, "printed", &printed, false)),
            }
        }
        Err(diags) => {
            if diags.is_empty() || diags.len() > 20 {
                return Err(format!("expected 1 to 20 diagnostics, found {}", diags.len()));
            }
            let shown = hlo_text::render(&diags, "mutant", &String::from_utf8_lossy(text), false);
            if shown.is_empty() {
                return Err("no text for the diagnostics".into());
            }
        }
    }
    Ok(time)
}
