//! Programs with regions of several ways: the search of ways and placements together beside the search of each combination of ways alone,
//! and what the programs give.

use super::random::Random;
use crate::network::Evenness;
use crate::pins::Pins;
use crate::program::Program;
use crate::regions::{Regions, joint_program};
use crate::search::SearchLimits;
use crate::search_within::search_within;
use crate::solver::{Cost, INFINITE};
use crate::ways_search::search_ways;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_ir::{Module, Scalar};
use hlo_mesh::Machine;
use std::fmt::Write;

/// A program with products of one operand, of concatenations, under slices, in sums, and of products.
struct Draft {
    body: String,
    values: Vec<(String, Vec<i64>)>,
    results: Vec<usize>,
    n_params: usize,
}

impl Draft {
    fn add(&mut self, dims: &[i64], op: &str) -> usize {
        let name = format!("v{}", self.values.len());
        let _ = writeln!(self.body, "  %{name} = f32{dims:?} {op}");
        self.values.push((name, dims.to_vec()));
        self.values.len() - 1
    }

    fn param(&mut self, dims: &[i64]) -> usize {
        let op = format!("parameter({})", self.n_params);
        self.n_params += 1;
        self.add(dims, &op)
    }

    fn dot(&mut self, a: usize, b: usize) -> usize {
        let dims = [self.values[a].1[0], self.values[b].1[1]];
        let op = format!("dot(%v{a}, %v{b}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}");
        self.add(&dims, &op)
    }

    fn function(&mut self, random: &mut Random, x: usize) -> usize {
        let dims = self.values[x].1.clone();
        match random.below(3) {
            0 => x,
            1 => self.add(&dims, &format!("negate(%v{x})")),
            _ => self.add(&dims, &format!("tanh(%v{x})")),
        }
    }

    /// One more region that takes a value.
    fn extend(&mut self, random: &mut Random, x: usize) -> usize {
        let (rows, n) = (self.values[x].1[0], self.values[x].1[1]);
        let size = |random: &mut Random| [2, 3, 4, 6, 8][random.below(5) as usize];
        match random.below(5) {
            // Products of one operand.
            0 => {
                let m = size(random);
                let weights: Vec<usize> = (0..2 + random.below(2)).map(|_| self.param(&[n, m])).collect();
                let products: Vec<usize> = weights.into_iter().map(|w| self.dot(x, w)).collect();
                let products: Vec<usize> = products.into_iter().map(|p| self.function(random, p)).collect();
                products.into_iter().reduce(|a, b| self.add(&[rows, m], &format!("multiply(%v{a}, %v{b})"))).unwrap()
            }
            // A product of a concatenation.
            1 => {
                let k = size(random);
                let other = self.param(&[rows, k]);
                let joined = self.add(&[rows, n + k], &format!("concatenate(%v{x}, %v{other}), dimensions={{1}}"));
                let m = size(random);
                let w = self.param(&[n + k, m]);
                self.dot(joined, w)
            }
            // A product under slices.
            2 => {
                let w = self.param(&[n, 7]);
                let whole = self.dot(x, w);
                let part = |from: i64, to: i64| format!("slice(%v{whole}), slice={{[0:{rows}], [{from}:{to}]}}");
                let first = self.add(&[rows, 4], &part(0, 4));
                let rest = self.add(&[rows, 3], &part(4, 7));
                let rest = self.function(random, rest);
                self.results.push(rest);
                first
            }
            // A sum of products.
            3 => {
                let (k, m) = (size(random), size(random));
                let (y, w, v) = (self.param(&[rows, k]), self.param(&[n, m]), self.param(&[k, m]));
                let (a, b) = (self.dot(x, w), self.dot(y, v));
                self.add(&[rows, m], &format!("add(%v{a}, %v{b})"))
            }
            // A product of a product.
            _ => {
                let (k, m) = (size(random), size(random));
                let (w, v) = (self.param(&[n, k]), self.param(&[k, m]));
                let first = self.dot(x, w);
                self.dot(first, v)
            }
        }
    }
}

fn draw_program(random: &mut Random, n_regions: u64) -> Module {
    let mut draft = Draft { body: String::new(), values: Vec::new(), results: Vec::new(), n_params: 0 };
    let mut x = draft.param(&[[4, 6, 12][random.below(3) as usize], 5]);
    for _ in 0..n_regions {
        x = draft.extend(random, x);
        x = draft.function(random, x);
    }
    draft.results.push(x);
    let shape = |&k: &usize| format!("f32{:?}", draft.values[k].1);
    let shapes = draft.results.iter().map(shape).collect::<Vec<_>>().join(", ");
    let names = draft.results.iter().map(|k| format!("%v{k}")).collect::<Vec<_>>().join(", ");
    let text =
        format!("HloModule drawn\n\nENTRY %main {{\n{}  ROOT %results = ({shapes}) tuple({names})\n}}\n", draft.body);
    let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

fn machine(random: &mut Random, n: i64) -> Machine {
    // Slow links make redistributions matter, fast ones launches and traffic.
    let links = [format!("h100:[(gpu,{n},1,1)]"), format!("h100:[(gpu,{n},100,0)]")];
    Machine::parse(&links[random.below(2) as usize], 1).expect("a machine")
}

fn limits<'a>(n: i64) -> SearchLimits<'a> {
    SearchLimits {
        even: Evenness::None,
        effort: 1 << 32,
        wanted_gap: 0.0,
        memory_limit: None,
        meshes: crate::mesh::factorizations(n, 2),
        pins: Pins::default(),
        only: None,
        given: None,
        start: None,
        without: Vec::new(),
        to_beat: INFINITE,
        is_over: &|| false,
        progress: &|_| {},
    }
}

/// The least cost of a program as it is.
fn least(module: &Module, machine: &Machine, n: i64) -> Cost {
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let program = Program::read(module, &frequencies).expect("a program");
    let links = machine.network(n as usize).expect("links");
    let found = search_within(&program, machine, &links, &limits(n)).unwrap_or_else(|_| panic!("a plan"));
    assert!(found.is_exact);
    found.cost
}

fn numbers(module: &Module) -> Vec<f64> {
    let inputs = draw_inputs(module, None, &DrawOptions { seed: 7, ..DrawOptions::default() }).expect("inputs");
    let outputs = run(module, &inputs, &EvalOptions::default()).expect("results");
    let of = |literal: &hlo_ir::Literal| -> Vec<f64> {
        let n: i64 = literal.dims().iter().product();
        let number = |k| match literal.get(k) {
            Some(Scalar::Float(x)) => x,
            other => panic!("expected a float, found {other:?}"),
        };
        (0..n as usize).map(number).collect()
    };
    outputs.leaves.iter().flat_map(|leaf| of(&leaf[0])).collect()
}

/// Searches a program with all ways at once, and each combination of ways by itself.
fn check_joint(seed: u64) -> bool {
    let mut random = Random::new(seed);
    let n_regions = 1 + random.below(2);
    let module = draw_program(&mut random, n_regions);
    let n = [2, 4, 6][random.below(3) as usize];
    let machine = machine(&mut random, n);
    let Some(joint) = joint_program(&module, &machine, Regions::ByAllRules) else { return false };
    let n_ways: Vec<u32> = joint.marks.n_ways.values().copied().collect();
    let mut best = INFINITE;
    let expected = numbers(&module);
    for number in 0..n_ways.iter().product::<u32>() {
        let mut rest = number;
        let ways: Vec<u32> = n_ways.iter().map(|&of| (rest % of, rest /= of).0).collect();
        let Some((changed, _)) = joint.chosen(&module, &ways) else { continue };
        hlo_ir::verify::verify(&changed).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        best = best.min(least(&changed, &machine, n));
        for (want, is) in expected.iter().zip(numbers(&changed)) {
            assert!((want - is).abs() <= 1e-4 * (1.0 + want.abs()), "seed {seed}, ways {ways:?}: {want} {is}");
        }
    }
    let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
    let program = Program::read(&module, &frequencies).expect("a program");
    let links = machine.network(n as usize).expect("links");
    let plain = search_within(&program, &machine, &links, &limits(n)).unwrap_or_else(|_| panic!("a plan"));
    let options = FrequencyOptions::default();
    let found = search_ways(&module, (&program, &plain), options, (&machine, Regions::ByAllRules), &links, &limits(n))
        .expect("regions");
    let cost = match &found.rewritten {
        Some(rewritten) => least(&rewritten.module, &machine, n),
        None => plain.cost,
    };
    assert!(found.lower_bound <= best, "seed {seed}: bound {} above {best}", found.lower_bound);
    assert_eq!(cost, best, "seed {seed}: bound {}, as it is {}", found.lower_bound, plain.cost);
    true
}

/// `HLO_PROPTEST_CASES=3000` for as many.
#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn ways_and_placements_together_are_the_best_of_all_combinations() {
    let cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let n_checked = (0..).filter(|&seed| check_joint(seed)).take(cases).count();
    assert_eq!(n_checked, cases);
}

/// `%a1` and `%a2` could be one product, and `%b1` and `%b2`, but not both at once: each pair needs a value of the other. The third pair
/// is nobody's.
const CIRCLE: &str = "
HloModule circle

ENTRY %main {
  %p = f32[12,20] parameter(0)
  %q = f32[12,8] parameter(1)
  %r = f32[12,8] parameter(2)
  %c1 = f32[20,8] dot(%p, %q), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %c2 = f32[20,8] dot(%p, %r), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %y = f32[120,12] parameter(3)
  %z = f32[120,12] parameter(4)
  %k = f32[12,8] parameter(5)
  %v = f32[12,8] parameter(6)
  %a1 = f32[120,8] dot(%y, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %fa = f32[12,8] slice(%a1), slice={[0:12], [0:8]}
  %fas = f32[12,8] tanh(%fa)
  %b1 = f32[120,8] dot(%z, %fas), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %b2 = f32[120,8] dot(%z, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %fb = f32[12,8] slice(%b2), slice={[0:12], [0:8]}
  %fbs = f32[12,8] tanh(%fb)
  %a2 = f32[120,8] dot(%y, %fbs), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %out = (f32[20,8], f32[20,8], f32[120,8], f32[120,8]) tuple(%c1, %c2, %a2, %b1)
}
";

#[test]
fn of_regions_that_need_each_other_all_but_one_stay() {
    let module = hlo_text::parse_module(CIRCLE).unwrap_or_else(|e| panic!("{e:?}")).module;
    let machine = Machine::parse("h100:[(gpu,4,100,0)]", 1).expect("a machine");
    let joint = joint_program(&module, &machine, Regions::ByAllRules).expect("regions");
    let n_ways: Vec<u32> = joint.marks.n_ways.values().copied().collect();
    assert_eq!(n_ways.len(), 2, "the pair that is nobody's, and one of the two");
    let (changed, told) = joint.chosen(&module, &[1, 1]).expect("they do not need each other");
    assert_eq!(told.len(), 2);
    hlo_ir::verify::verify(&changed).unwrap_or_else(|e| panic!("{e:?}"));
}

/// Three products of one operand as one product with three slices of it: nothing else is written to memory.
#[test]
fn three_products_of_one_operand_are_one_product_with_slices_of_it() {
    let text = "
HloModule three

ENTRY %main {
  %x = f32[256,128] parameter(0)
  %q = f32[128,32] parameter(1)
  %k = f32[128,32] parameter(2)
  %v = f32[128,32] parameter(3)
  %a = f32[256,32] dot(%x, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %b = f32[256,32] dot(%x, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %c = f32[256,32] dot(%x, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %ta = f32[256,32] tanh(%a)
  %tb = f32[256,32] tanh(%b)
  %tc = f32[256,32] tanh(%c)
  ROOT %out = (f32[256,32], f32[256,32], f32[256,32]) tuple(%ta, %tb, %tc)
}
";
    let module = hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}")).module;
    let machine = Machine::parse("h100:[(gpu,4,100,0)]", 1).expect("a machine");
    let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
    let program = Program::read(&module, &frequencies).expect("a program");
    let links = machine.network(4).expect("links");
    let plain = search_within(&program, &machine, &links, &limits(4)).unwrap_or_else(|_| panic!("a plan"));
    let options = FrequencyOptions::default();
    let found = search_ways(&module, (&program, &plain), options, (&machine, Regions::ByAllRules), &links, &limits(4))
        .expect("regions");
    let rewritten = found.rewritten.expect("one product is faster");
    assert_eq!(rewritten.regions[0].0.n_products_so, 1);
    // A product, the concatenation of the weights and three functions, for three products and three functions.
    assert!(least(&rewritten.module, &machine, 4) < plain.cost * 6 / 7, "{}", plain.cost);
}
