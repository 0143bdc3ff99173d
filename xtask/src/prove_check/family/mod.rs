//! Families of pairs of small programs: both programs of a pair are written from one description, each in a way of its own, and half
//! of the time a detail of the second is another. So they are equal, or near misses at the edge of a rule: elements beyond the
//! first, places that are taken twice, leaves of loops that only seem to be passed on, clamped rows, wrapped numbers, orders of members.
//!
//! The evaluator says which they are; a family only says what is worth trying.

mod cuts;
mod groups;
mod identities;
mod indices;
mod layouts;
mod loops;
mod moves;
mod sums;

use std::fmt::Write;

use hlo_ir::Module;
use hlo_tests::random_module::Rng;

/// Writes the two programs of a pair.
type Family = fn(&mut Rng) -> (Program, Program);

/// All families.
const FAMILIES: [(&str, Family); 8] = [
    ("family: elements moved", moves::pair),
    ("family: loops", loops::pair),
    ("family: loops cut otherwise", cuts::pair),
    ("family: parts of sums, factors", sums::pair),
    ("family: groups of collectives", groups::pair),
    ("family: layouts", layouts::pair),
    ("family: indices", indices::pair),
    ("family: identities", identities::pair),
];

/// Two programs.
pub(super) struct Pair {
    pub(super) family: &'static str,
    pub(super) before: Module,
    pub(super) after: Module,
}

/// A pair of any family; `None` if a program is not valid.
pub(super) fn pair(rng: &mut Rng) -> Option<Pair> {
    let (family, make) = rng.pick(&FAMILIES);
    let (before, after) = make(rng);
    Some(Pair { family, before: before.module().ok()?, after: after.module().ok()? })
}

/// A program that is written line by line.
#[derive(Clone)]
struct Program {
    replica_count: usize,
    num_partitions: usize,
    computations: String,
    lines: Vec<String>,
    n_params: usize,
    results: Vec<(String, String)>,
}

/// The reducers that every program has.
const REDUCERS: [(&str, &str, &str); 5] = [
    ("add", "f32", "add"),
    ("max", "f32", "maximum"),
    ("mul", "f32", "multiply"),
    ("add_s32", "s32", "add"),
    ("max_s32", "s32", "maximum"),
];

impl Program {
    fn new(replica_count: usize, num_partitions: usize) -> Program {
        let mut computations = String::new();
        for (name, dtype, op) in REDUCERS {
            let _ = writeln!(
                computations,
                "%{name} {{\n  %a.{name} = {dtype}[] parameter(0)\n  %b.{name} = {dtype}[] parameter(1)\n  ROOT %r.{name} = \
                 {dtype}[] {op}(%a.{name}, %b.{name})\n}}\n"
            );
        }
        // One that is none of the known ones, one that gives the second, and an order.
        computations.push_str(
            "%odd {\n  %a.odd = f32[] parameter(0)\n  %b.odd = f32[] parameter(1)\n  %s.odd = f32[] add(%a.odd, %b.odd)\n  \
             %p.odd = f32[] multiply(%a.odd, %b.odd)\n  ROOT %r.odd = f32[] add(%s.odd, %p.odd)\n}\n\n%second {\n  %a.second = \
             f32[] parameter(0)\n  ROOT %b.second = f32[] parameter(1)\n}\n\n%less {\n  %a.less = f32[] parameter(0)\n  %b.less = \
             f32[] parameter(1)\n  ROOT %r.less = pred[] compare(%a.less, %b.less), direction=LT\n}\n\n",
        );
        Program { replica_count, num_partitions, computations, lines: Vec::new(), n_params: 0, results: Vec::new() }
    }

    /// One device.
    fn single() -> Program {
        Program::new(1, 1)
    }

    /// An instruction; gives its name.
    fn add(&mut self, shape: &str, text: &str) -> String {
        let name = format!("%v{}", self.lines.len());
        self.lines.push(format!("{name} = {shape} {text}"));
        name
    }

    fn param(&mut self, shape: &str) -> String {
        let number = self.n_params;
        self.n_params += 1;
        self.add(shape, &format!("parameter({number})"))
    }

    fn constant(&mut self, shape: &str, value: &str) -> String {
        self.add(shape, &format!("constant({value})"))
    }

    /// A number everywhere in an array.
    fn splat(&mut self, shape: &str, value: &str) -> String {
        let dtype = shape.split('[').next().unwrap_or_default();
        let scalar = self.constant(&format!("{dtype}[]"), value);
        self.add(shape, &format!("broadcast({scalar}), dimensions={{}}"))
    }

    /// Makes a value a result.
    fn give(&mut self, shape: &str, name: &str) {
        self.results.push((shape.into(), name.into()));
    }

    fn text(&self) -> String {
        let shapes: Vec<&str> = self.results.iter().map(|(shape, _)| shape.as_str()).collect();
        let names: Vec<&str> = self.results.iter().map(|(_, name)| name.as_str()).collect();
        format!(
            "HloModule m, replica_count={}, num_partitions={}\n\n{}ENTRY %main {{\n  {}\n  ROOT %root = ({}) tuple({})\n}}\n",
            self.replica_count,
            self.num_partitions,
            self.computations,
            self.lines.join("\n  "),
            shapes.join(", "),
            names.join(", ")
        )
    }

    fn module(&self) -> Result<Module, String> {
        let text = self.text();
        let module = hlo_text::parse_module(&text).map_err(|e| format!("{e:?}\n{text}"))?.module;
        hlo_ir::verify::verify(&module).map_err(|e| format!("{e:?}\n{text}"))?;
        Ok(module)
    }
}

/// Numbers as HLO text has them.
fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// A factor, of which some are no factors: zero, and what is not finite.
fn factor(rng: &mut Rng) -> &'static str {
    rng.pick::<&'static str>(&["2", "0.5", "1", "-1", "0", "-0", "inf", "-inf", "nan", "3"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_write_valid_programs() {
        for (name, make) in FAMILIES {
            let (mut n_equal, mut invalid) = (0, Vec::new());
            for seed in 0..200 {
                let (before, after) = make(&mut Rng::new(seed));
                invalid.extend([&before, &after].into_iter().filter_map(|program| program.module().err()));
                n_equal += usize::from(before.text() == after.text());
            }
            // Groups of another mode may name devices that are not there.
            assert!(invalid.len() < 100, "{name}: {} of 400 programs: {}", invalid.len(), invalid[0]);
            assert!(n_equal < 100, "{name}: {n_equal} of 200 pairs are one text");
        }
    }
}
