//! Whether a rule holds: a proof for all sizes by symbolic forms, and many evaluations of both sides at random points.

use crate::evaluate::{Array, evaluate};
use crate::form::{Form, Proof, Unknown, prove_equal};
use crate::numbers::{Histories, Integers, N_LANES, Residue, ResidueLanes, Residues, drawn, mix};
use crate::op::{Op, Unary};
use crate::rule::{Label, Rule};
use crate::size::{Size, Sym};
use crate::term::TermId;
use std::fmt;

/// Random points for each tuple of sizes.
pub const N_SEEDS: u64 = 64;

/// Tuples of sizes: the unknown that stands at place `s` has entry `s` modulo the length. Among them degrees 2, 3, 4 and 6, odd sizes, and one.
const TUPLES: [&[i64]; 12] = [
    &[2, 3],
    &[3, 2, 5],
    &[4, 1, 3],
    &[6, 2, 1],
    &[5, 3, 1, 2],
    &[1, 4, 2],
    &[7, 1, 2, 3],
    &[2, 6, 3],
    &[1, 1, 2],
    &[3, 4, 1, 2],
    &[8, 1, 2],
    &[9, 2, 1, 1],
];

/// What a check of a rule gives.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// It holds.
    Accepted(Accepted),
    /// It does not.
    Rejected(Rejected),
}

/// What was shown of a rule that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// How it keeps floating-point results.
    pub label: Label,
    /// Tuples of sizes that both sides were evaluated at, each at [`N_SEEDS`] points modulo two primes.
    pub n_tuples: usize,
}

/// Why a rule is not accepted.
#[derive(Clone, PartialEq, Debug)]
pub enum Rejected {
    /// The sides differ.
    Differs(Box<Counterexample>),
    /// The dims of the results differ, or there are several of them on one side only.
    Dims {
        /// Dims of the left side's results.
        left: String,
        /// Dims of the right side's.
        right: String,
    },
    /// No evaluation differs, but nothing is proved.
    Unproved(&'static str),
}

/// Where the two sides differ.
#[derive(Clone, PartialEq, Debug)]
pub struct Counterexample {
    /// Values of the rule's unknowns.
    pub sizes: Vec<(String, i64)>,
    /// The inputs: name, dims, elements in row-major order.
    pub inputs: Vec<(String, Vec<usize>, Vec<i64>)>,
    /// Which result differs.
    pub result: usize,
    /// The index of the element that differs.
    pub place: Vec<usize>,
    /// What the left side has there.
    pub left: i64,
    /// What the right side has there.
    pub right: i64,
    /// Whether the elements are whole numbers; otherwise they are residues modulo 2^61 - 1.
    pub is_of_integers: bool,
    /// Whether only some function in the place of relu, step, exp or max tells the sides apart: a rule that holds of the function itself
    /// looks the same.
    pub has_stand_in: bool,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(|(name, n)| format!("{name} = {n}")).collect();
        writeln!(f, "with {}", sizes.join(", "))?;
        for (name, dims, elems) in &self.inputs {
            const SHOWN: usize = 24;
            let shown: Vec<String> = elems.iter().take(SHOWN).map(i64::to_string).collect();
            let more = if elems.len() > SHOWN { ", …" } else { "" };
            writeln!(f, "  {name}{dims:?} = [{}{more}]", shown.join(", "))?;
        }
        if self.has_stand_in {
            writeln!(f, "and some function in place of relu, step, exp or max that is zero (exp: one) at zero")?;
        }
        if !self.is_of_integers {
            writeln!(f, "modulo 2^61 - 1")?;
        }
        let result = if self.result == 0 { String::new() } else { format!(" of result {}", self.result) };
        write!(f, "the left side has {} at {:?}{result}, the right side {}", self.left, self.place, self.right)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Differs(example) => example.fmt(f),
            Rejected::Dims { left, right } => write!(f, "the left side gives {left}, the right side {right}"),
            Rejected::Unproved(why) => {
                write!(f, "no evaluation tells the sides apart, but they are not proved equal: {why}")
            }
        }
    }
}

/// Checks a rule: dims, a proof for all sizes (products of elements at index maps; relu, step, exp and max as unknown functions), and
/// [`N_SEEDS`] evaluations modulo two 61-bit primes at each of eight or more tuples of sizes (Unger et al. 2022, §4, with the proof in
/// place of Z3).
pub fn check(rule: &Rule) -> Verdict {
    let verdict = check_dims(rule).and_then(|()| {
        // Wrong rules mostly differ at the first points, and those are cheap.
        check_values(rule, 0..1)?;
        prove(rule)?;
        check_values(rule, (1..N_SEEDS / N_LANES as u64).map(|n| n * N_LANES as u64))
    });
    match verdict {
        Ok(n_tuples) => Verdict::Accepted(Accepted { label: label(rule), n_tuples }),
        Err(why) => Verdict::Rejected(why),
    }
}

/// A proof alone, for all sizes.
///
/// # Errors
/// Why there is none.
pub fn prove(rule: &Rule) -> Result<(), Rejected> {
    for (&l, &r) in rule.left.iter().zip(&rule.right) {
        prove_terms(&rule.terms, l, r)?;
    }
    Ok(())
}

pub(crate) fn prove_terms(terms: &crate::term::Terms, left: TermId, right: TermId) -> Result<(), Rejected> {
    let unknown = |why: Unknown| {
        Rejected::Unproved(match why {
            Unknown::Order => "two borders have no proved order",
            Unknown::TooMany => "more products than are looked at",
        })
    };
    let form = |term| Form::of(terms, term).map_err(unknown);
    match prove_equal(&form(left)?, &form(right)?).map_err(unknown)? {
        Proof::Equal => Ok(()),
        Proof::Different => Err(Rejected::Unproved("their symbolic forms differ")),
    }
}

fn check_dims(rule: &Rule) -> Result<(), Rejected> {
    let dims = |side: &[TermId]| -> Vec<_> { side.iter().map(|&t| rule.terms.dims(t).clone()).collect() };
    if dims(&rule.left) == dims(&rule.right) && !rule.left.is_empty() {
        return Ok(());
    }
    let text = |side: &[TermId]| crate::text::dims_text(rule, side);
    Err(Rejected::Dims { left: text(&rule.left), right: text(&rule.right) })
}

/// The tuples of sizes at which all dims of a rule are one or more.
pub(crate) fn tuples(rule: &Rule) -> Vec<Vec<i64>> {
    let syms = unknowns(rule);
    let mut all: Vec<Vec<i64>> = Vec::new();
    for base in TUPLES {
        let mut sizes = vec![1; rule.unknowns.len()];
        for (place, sym) in syms.iter().enumerate() {
            let n = base[place % base.len()];
            sizes[sym.number()] = if sym.is_amount() { n % 3 } else { n };
        }
        let is_sound = rule.reachable().iter().all(|&t| rule.terms.dims(t).iter().all(|d| d.at(&sizes) >= 1));
        if is_sound && !all.contains(&sizes) {
            all.push(sizes);
        }
    }
    all
}

fn unknowns(rule: &Rule) -> Vec<Sym> {
    let all = rule.reachable();
    let sizes = all.iter().flat_map(|&t| {
        let node = rule.terms.node(t);
        node.dims.iter().chain(node.op.sizes()).flat_map(Size::unknowns).collect::<Vec<_>>()
    });
    let mut syms: Vec<Sym> = sizes.collect();
    syms.sort();
    syms.dedup();
    syms
}

fn residues(seed: u64) -> impl Fn(u8, &[usize]) -> Array<Residue> {
    move |input, dims| {
        let n: usize = dims.iter().product();
        Array { dims: dims.to_vec(), elems: (0..n).map(|place| drawn(seed, input, place)).collect() }
    }
}

fn lanes(start: u64) -> impl Fn(u8, &[usize]) -> Array<[Residue; N_LANES]> {
    move |input, dims| {
        let n: usize = dims.iter().product();
        let point = |place: usize| std::array::from_fn(|lane| drawn(start + lane as u64, input, place));
        Array { dims: dims.to_vec(), elems: (0..n).map(point).collect() }
    }
}

fn integers(seed: u64) -> impl Fn(u8, &[usize]) -> Array<i64> {
    move |input, dims| {
        let n: usize = dims.iter().product();
        let draw = |place: usize| (mix(mix(seed ^ (u64::from(input) << 40)) ^ place as u64) % 7) as i64 - 3;
        Array { dims: dims.to_vec(), elems: (0..n).map(draw).collect() }
    }
}

/// Evaluates both sides at [`N_LANES`] points from each of `starts` on; returns the number of tuples.
fn check_values(rule: &Rule, starts: impl Iterator<Item = u64> + Clone) -> Result<usize, Rejected> {
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    let has_functions = rule.reachable().iter().any(|&t| rule.terms.node(t).op.is_function());
    let tuples = tuples(rule);
    for sizes in &tuples {
        for start in starts.clone() {
            let values = evaluate(&ResidueLanes, &rule.terms, &roots, sizes, &lanes(start));
            if let Some((result, at)) = first_difference(&values) {
                let n = values.len() / 2;
                let differs = |lane: &usize| values[result].elems[at][*lane] != values[n + result].elems[at][*lane];
                let lane = (0..N_LANES).find(differs).unwrap_or_default() as u64;
                return Err(difference(rule, sizes, start + lane));
            }
            // What max is is known to whole numbers alone.
            if has_functions {
                let whole = evaluate(&Integers, &rule.terms, &roots, sizes, &integers(start));
                if first_difference(&whole).is_some() {
                    return Err(difference(rule, sizes, start));
                }
            }
        }
    }
    Ok(tuples.len())
}

/// The sides are known to differ at these sizes: tells it by small whole numbers, if some do.
fn difference(rule: &Rule, sizes: &[i64], seed: u64) -> Rejected {
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    let n = rule.left.len();
    for small in [seed, seed + 1000, seed + 2000, seed + 3000] {
        let whole = evaluate(&Integers, &rule.terms, &roots, sizes, &integers(small));
        if let Some(found) = first_difference(&whole) {
            let values = (whole[found.0].elems[found.1], whole[n + found.0].elems[found.1]);
            return counterexample(rule, sizes, found, values, &integers(small), true);
        }
    }
    let values = evaluate(&Residues, &rule.terms, &roots, sizes, &residues(seed));
    let found = first_difference(&values).unwrap_or_default();
    let of = |k: usize| values[k].elems.get(found.1).map_or(0, |r| r[0] as i64);
    let inputs = |input: u8, dims: &[usize]| {
        let a = residues(seed)(input, dims);
        Array { dims: a.dims, elems: a.elems.iter().map(|r| r[0] as i64).collect() }
    };
    counterexample(rule, sizes, found, (of(found.0), of(n + found.0)), &inputs, false)
}

/// The result and the place of the first element in which the halves of a list differ.
fn first_difference<N: PartialEq>(values: &[Array<N>]) -> Option<(usize, usize)> {
    let (left, right) = values.split_at(values.len() / 2);
    left.iter().zip(right).enumerate().find_map(|(result, (l, r))| {
        let at = l.elems.iter().zip(&r.elems).position(|(a, b)| a != b)?;
        Some((result, at))
    })
}

fn counterexample(
    rule: &Rule,
    sizes: &[i64],
    (result, at): (usize, usize),
    (left, right): (i64, i64),
    input: &dyn Fn(u8, &[usize]) -> Array<i64>,
    is_of_integers: bool,
) -> Rejected {
    let dims: Vec<usize> = rule.terms.dims(rule.left[result]).iter().map(|d| d.at(sizes) as usize).collect();
    let mut place = vec![0; dims.len()];
    let mut rest = at;
    for d in (0..dims.len()).rev() {
        place[d] = rest % dims[d];
        rest /= dims[d];
    }
    let inputs = rule.reachable().into_iter().filter_map(|t| {
        let Op::Input(number) = rule.terms.node(t).op else { return None };
        let dims: Vec<usize> = rule.terms.dims(t).iter().map(|d| d.at(sizes) as usize).collect();
        let array = input(number, &dims);
        Some((rule.inputs[usize::from(number)].clone(), dims, array.elems))
    });
    let ops = || rule.reachable().into_iter().map(|t| &rule.terms.node(t).op);
    let has_exp = ops().any(|op| *op == Op::Unary(Unary::Exp));
    let has_stand_in = has_exp || !is_of_integers && ops().any(Op::is_function);
    let sizes = unknowns(rule).iter().map(|s| (rule.unknowns[s.number()].clone(), sizes[s.number()])).collect();
    Rejected::Differs(Box::new(Counterexample {
        sizes,
        inputs: inputs.collect(),
        result,
        place,
        left,
        right,
        is_of_integers,
        has_stand_in,
    }))
}

/// `Exact` if at every tuple of sizes each element is got by the same floating-point operations in the same order.
fn label(rule: &Rule) -> Label {
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    let input = |number: u8, dims: &[usize]| {
        let n: usize = dims.iter().product();
        Array {
            dims: dims.to_vec(),
            elems: (0..n).map(|place| mix((u64::from(number) << 40) ^ place as u64)).collect(),
        }
    };
    let is_exact = tuples(rule)
        .iter()
        .all(|sizes| first_difference(&evaluate(&Histories, &rule.terms, &roots, sizes, &input)).is_none());
    if is_exact { Label::Exact } else { Label::Reassoc }
}
