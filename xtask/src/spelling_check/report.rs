//! What the two readings say together.

use super::Reading;
use super::grammar::Spelling;
use serde_json::Value;
use std::collections::BTreeMap;

/// The least share, in hundredths, that we must read of what jaxlib reads and compiles.
const LEAST_PERCENT: usize = 99;

/// What a text holds whose module is to us another than to jaxlib, and why.
const KNOWN: [(&str, &str); 2] = [
    (
        "f32[4] add(f32[4] p, f32[4] negate(f32[4] q))",
        "to an instruction that stands alone jaxlib adds a parameter that nothing uses, called as the nested operand's opcode",
    ),
    ("f8e8m0fnu[2] constant(1)", "jaxlib prints the smallest f8e8m0fnu as 5.9e-39 and reads that as 1.2e-38"),
];

/// Texts with the same reason.
#[derive(Default)]
struct Reasons<'a>(BTreeMap<String, Vec<&'a Spelling>>);

impl<'a> Reasons<'a> {
    fn add(&mut self, reason: String, spelling: &'a Spelling) {
        self.0.entry(reason).or_default().push(spelling);
    }

    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Prints a line for each reason, the most frequent first.
    fn print(&self, what: &str, show: bool) {
        if self.0.is_empty() {
            return;
        }
        println!("\n{what}: {}", self.len());
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(reason, spellings)| (std::cmp::Reverse(spellings.len()), reason.as_str()));
        for (reason, spellings) in rows {
            let first = spellings.first().map_or("", |spelling| spelling.name.as_str());
            println!("  {:>4}  {reason}  ({first})", spellings.len());
            for spelling in spellings.iter().filter(|_| show) {
                println!("--- {}\n{}", spelling.name, spelling.text);
            }
        }
    }
}

/// Prints the shares and the reasons; true if we read enough, and nothing otherwise.
pub(super) fn report(
    spellings: &[Spelling],
    readings: &[Reading],
    answers: &[Value],
    show: bool,
) -> Result<bool, String> {
    let mut refused_compiled = Reasons::default();
    let mut refused_read = Reasons::default();
    let mut more = Reasons::default();
    let mut other = Reasons::default();
    let mut same: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut n_read, mut n_compiled, mut n_known) = (0, 0, 0);
    for ((spelling, reading), answer) in spellings.iter().zip(readings).zip(answers) {
        let is_read = answer["reads"] == true;
        let is_compiled = answer["compiles"] == true;
        n_read += usize::from(is_read);
        n_compiled += usize::from(is_compiled);
        match reading {
            Reading::Refused(rule, message) if is_compiled => {
                refused_compiled.add(format!("{rule}: {message}"), spelling);
            }
            Reading::Refused(rule, _) if is_read => refused_read.add(rule.clone(), spelling),
            Reading::Refused(..) => {}
            Reading::Read(_) if !is_read => {
                let family = spelling.name.split('/').next().unwrap_or_default();
                more.add(family.to_string(), spelling);
            }
            Reading::Read(_) => match answer["same"].as_str().unwrap_or("jaxlib ends on our print") {
                what @ ("text" | "names" | "program" | "results") => *same.entry(what).or_default() += 1,
                _ if KNOWN.iter().any(|(part, _)| spelling.text.contains(part)) => n_known += 1,
                difference => other.add(difference.to_string(), spelling),
            },
        }
    }
    let n_both = n_read - refused_read.len() - refused_compiled.len();
    refused_compiled.print("jaxlib reads and compiles, we refuse", true);
    other.print("we read otherwise than jaxlib", true);
    refused_read.print("jaxlib reads but does not compile, we refuse", show);
    more.print("we read, jaxlib does not", show);
    let count = |what: &str| same.get(what).copied().unwrap_or(0);
    println!("\n{} texts; jaxlib reads {n_read} and compiles {n_compiled}", spellings.len());
    println!("of those that it compiles we read {}", share(n_compiled - refused_compiled.len(), n_compiled));
    println!("of those that it reads we read {}", share(n_both, n_read));
    println!(
        "of these jaxlib reads our print as the same: {} in text, {} but for names and what no proto has, {} as StableHLO, \
         {} by results on random inputs; {} otherwise, {n_known} for a known reason",
        count("text"),
        count("names"),
        count("program"),
        count("results"),
        other.len()
    );
    KNOWN.iter().filter(|_| n_known > 0).for_each(|(part, reason)| println!("  {part}: {reason}"));
    println!("of those that it refuses we read {}", more.len());
    if n_compiled == 0 {
        return Err("jaxlib compiled nothing".into());
    }
    Ok((n_compiled - refused_compiled.len()) * 100 >= LEAST_PERCENT * n_compiled && other.len() == 0)
}

fn share(part: usize, whole: usize) -> String {
    format!("{part} of {whole} ({:.2} %)", 100.0 * part as f64 / whole.max(1) as f64)
}
