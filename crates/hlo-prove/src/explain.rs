//! Where two values part: the device, the elements, and the terms down to the first that differ.

use crate::array::Value;
use crate::control::Parting;
use crate::prover::Prover;
use crate::term::{ArrayId, Extra, Head, Node, TermId};
use hashbrown::HashSet;
use hlo_ir::{InstId, Literal, Module, Scalar};

impl Prover {
    /// One sentence on where the second value parts from the first, and whether it does for certain.
    pub(crate) fn explain(&mut self, modules: &[&Module], expected: &Value, found: &Value) -> (String, bool) {
        let mut seen: HashSet<(ArrayId, ArrayId)> = HashSet::new();
        for device in 0..self.n_devices() {
            let (a, b) = (self.arrays.on(expected, device), self.arrays.on(found, device));
            if !seen.insert((a, b)) {
                continue;
            }
            let Some(differences) = self.arrays.differences(a, b) else { continue };
            if let Some((terms, region)) = differences.into_iter().next() {
                let rank = self.arrays.terms.rank(terms[0]);
                let (p, q, path) = self.descend(terms[0], terms[1]);
                let n_elems = region.n_elems();
                let contrast = self.contrast(p, q).or_else(|| self.parting(modules, q));
                let contrast = contrast.map_or(String::new(), |text| format!("; {text}"));
                let text = format!(
                    "device {device}, {n_elems} element{} from {}: expected {} at {:?}, found {} at {:?}; below {}: expected {}, found {}{contrast}",
                    if n_elems == 1 { "" } else { "s" },
                    region.at[0],
                    self.name(modules, terms[0]),
                    &region.at[1..1 + rank],
                    self.name(modules, terms[1]),
                    &region.at[1 + rank..],
                    if path.is_empty() { "it".to_string() } else { path.join("/") },
                    self.show(modules, p, 3),
                    self.show(modules, q, 3),
                );
                return (text, self.parts_in_leaves(terms[0], terms[1]));
            }
        }
        ("the values have too many parts to compare".to_string(), false)
    }

    /// The first terms that differ below two terms, and the ops on the way.
    fn descend(&self, mut p: TermId, mut q: TermId) -> (TermId, TermId, Vec<String>) {
        let mut path = Vec::new();
        while path.len() < 40 {
            let (Node::Apply(hp, ap), Node::Apply(hq, aq)) = (self.arrays.terms.node(p), self.arrays.terms.node(q))
            else {
                break;
            };
            if hp != hq {
                break;
            }
            let only_p: Vec<TermId> = ap.iter().map(|a| a.term).filter(|t| !aq.iter().any(|a| a.term == *t)).collect();
            let only_q: Vec<TermId> = aq.iter().map(|a| a.term).filter(|t| !ap.iter().any(|a| a.term == *t)).collect();
            let (Some(&np), Some(&nq)) = (only_p.first(), only_q.first()) else { break };
            path.push(self.head(*hp));
            (p, q) = (np, nq);
        }
        let from = path.len().saturating_sub(5);
        (p, q, path.split_off(from))
    }

    /// Why a leaf of the second module's loop is none of the first's. Where that hangs on another leaf, why that one is none.
    fn parting(&mut self, modules: &[&Module], term: TermId) -> Option<String> {
        let mut place = match self.arrays.terms.node(term) {
            Node::LoopResult(id, leaf) | Node::Carry(id, _, leaf) => (*id, *leaf),
            _ => return None,
        };
        let mut text = None;
        let mut seen = HashSet::new();
        while seen.insert(place) {
            let (what, expected, found) = match self.partings.get(&place)?.clone() {
                Parting::Start => {
                    text =
                        Some(format!("no leaf that the first module's loop carries begins as leaf {} does", place.1));
                    break;
                }
                Parting::Iteration { expected, found } => {
                    (format!("leaf {} parts from the first module's loop in an iteration", place.1), expected, found)
                }
                Parting::Condition { expected, found } => ("the loops end otherwise".to_string(), expected, found),
            };
            let Some((p, q)) = self.first_difference(&expected, &found) else { break };
            let [p_text, q_text] = [p, q].map(|term| self.show(modules, term, 3));
            text = Some(format!("{what}: expected {p_text}, found {q_text}"));
            match self.arrays.terms.node(q) {
                Node::Carry(id, _, leaf) => place = (*id, *leaf),
                _ => break,
            }
        }
        text
    }

    /// The terms where two values part first.
    fn first_difference(&mut self, expected: &Value, found: &Value) -> Option<(TermId, TermId)> {
        for device in 0..self.n_devices() {
            let (a, b) = (self.arrays.on(expected, device), self.arrays.on(found, device));
            if let Some((terms, _)) = self.arrays.differences(a, b)?.into_iter().next() {
                let (p, q, _) = self.descend(terms[0], terms[1]);
                return Some((p, q));
            }
        }
        None
    }

    /// What differs between two terms that look alike.
    fn contrast(&self, p: TermId, q: TermId) -> Option<String> {
        let terms = &self.arrays.terms;
        match (terms.node(p), terms.node(q)) {
            (Node::Table(_) | Node::Constant(_), Node::Table(_) | Node::Constant(_)) => {
                let (a, b) = (terms.literal(p)?, terms.literal(q)?);
                if a.n_elems() > 1 && b.n_elems() > 1 && a.n_elems() != b.n_elems() {
                    return Some(format!("expected {} elements, found {}", a.n_elems(), b.n_elems()));
                }
                let element = |literal: &Literal, k: usize| literal.get(if literal.n_elems() == 1 { 0 } else { k });
                let n = a.n_elems().max(b.n_elems());
                let pair = |k: usize| Some((k, element(a, k)?, element(b, k)?));
                let (k, x, y) = (0..n).filter_map(pair).find(|(_, x, y)| x != y)?;
                Some(format!("at [{k}] expected {}, found {}", number(x), number(y)))
            }
            (Node::Whole(a, _, _), Node::Whole(b, _, _)) => first_unlike_word(terms.text(*a), terms.text(*b)),
            (Node::Apply(Head::Unit(a), _), Node::Apply(Head::Unit(b), _)) if a != b => {
                first_unlike_word(terms.text(*a), terms.text(*b))
            }
            (Node::Apply(a, x), Node::Apply(b, y)) if a == b && x.len() == y.len() => {
                let k = x.iter().zip(y).position(|(x, y)| x != y)?;
                if x[k].term != y[k].term {
                    return None;
                }
                let text = match (terms.extra_of(x[k].extra), terms.extra_of(y[k].extra)) {
                    (Extra::Extent(a), Extra::Extent(b)) if a.spread != b.spread => "over other devices",
                    (Extra::Extent(a), Extra::Extent(b)) if a.reduce != b.reduce => "over other elements",
                    (Extra::Moves(a), Extra::Moves(b)) if a != b => "with other steps or bounds",
                    (_, _) => "at other elements",
                };
                Some(format!("operand {k} is taken {text}"))
            }
            (_, _) => None,
        }
    }

    fn head(&self, head: Head) -> String {
        match head {
            Head::Elementwise(word) => match self.elementwise.op(word) {
                Some(op) => op.opcode.to_string(),
                None => self.arrays.terms.text(word).to_string(),
            },
            Head::Sum(monoid, _) => format!("sum[{}]", monoid.opcode()),
            Head::Moved => "at run time".to_string(),
            Head::Unit(word) => self.arrays.terms.text(word).split(' ').nth(1).unwrap_or("unit").to_string(),
            Head::From(_) => "from".to_string(),
            Head::LoopSum(_) => "sum of iterations".to_string(),
            Head::LoopStack(_) => "rows of iterations".to_string(),
        }
    }

    /// The instruction that made a term.
    fn origin(&self, term: TermId) -> Option<(usize, InstId)> {
        let k = self.origins.partition_point(|&(first, _, _)| first <= term.0);
        // Instructions within a call end before it; the innermost that began last made the term.
        self.origins[..k].last().map(|&(_, side, inst)| (side, inst))
    }

    fn name(&self, modules: &[&Module], term: TermId) -> String {
        match (self.arrays.terms.node(term), self.origin(term)) {
            (Node::Input(k), _) => format!("input {k}"),
            (Node::Constant(_) | Node::Iota(_), _) | (_, None) => self.show(modules, term, 1),
            (_, Some((side, inst))) => format!("%{}", modules[side].inst_name(inst)),
        }
    }

    fn show(&self, modules: &[&Module], term: TermId, depth: usize) -> String {
        let terms = &self.arrays.terms;
        match terms.node(term) {
            Node::Input(k) => format!("input {k}"),
            Node::Constant(_) => match terms.as_constant(term).and_then(|l| l.get(0)) {
                Some(value) => number(value),
                None => "a constant".to_string(),
            },
            Node::Table(_) => {
                let literal = terms.literal(term);
                let shown = literal.map_or(0, |literal| literal.n_elems().min(MAX_SHOWN));
                let mut numbers: Vec<String> =
                    (0..shown).filter_map(|k| literal.and_then(|literal| literal.get(k)).map(number)).collect();
                if literal.is_some_and(|literal| literal.n_elems() > MAX_SHOWN) {
                    numbers.push("…".to_string());
                }
                format!("the table {{{}}}", numbers.join(", "))
            }
            Node::Iota(_) => "iota".to_string(),
            Node::Carry(_, _, leaf) => format!("carried leaf {leaf}"),
            Node::LoopResult(_, leaf) => match self.origin(term) {
                Some((0, inst)) => format!("leaf {leaf} of the loop %{}", modules[0].inst_name(inst)),
                Some((side, inst)) => {
                    format!("leaf {leaf} of the loop %{} of the second module", modules[side].inst_name(inst))
                }
                None => format!("leaf {leaf} of a loop"),
            },
            Node::Element(of, at) => format!("{}{:?}", self.show(modules, *of, depth.saturating_sub(1)), at.as_slice()),
            Node::Whole(word, ..) => terms.text(*word).split(' ').next().unwrap_or("op").to_string(),
            Node::Unique(_) => "what nothing equals".to_string(),
            Node::Apply(_, _) if depth == 0 => self.name(modules, term),
            Node::Apply(head, args) => {
                let mut parts = Vec::new();
                for arg in args.iter().take(6) {
                    let mut text = self.show(modules, arg.term, depth - 1);
                    if let Extra::Extent(extent) = terms.extra_of(arg.extra) {
                        let n: i64 = extent.reduce.iter().map(|r| r.0).product();
                        if n > 1 {
                            text.push_str(&format!(" over {n}"));
                        }
                        let members = terms.devices.members(extent.spread, 0);
                        let n_members: u128 = members.iter().map(|m| m.1).sum();
                        if n_members > 1 {
                            text.push_str(&format!(" on {n_members} devices"));
                        }
                    }
                    parts.push(text);
                }
                format!("{}({})", self.head(*head), parts.join(", "))
            }
        }
    }
}

/// How many elements of a table are shown.
const MAX_SHOWN: usize = 4;

/// Where two descriptions of ops part.
fn first_unlike_word(a: &str, b: &str) -> Option<String> {
    let (mut a, mut b) = (a.split(' '), b.split(' '));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return None,
            (x, y) if x == y => {}
            (x, y) => {
                return Some(format!(
                    "in its attributes expected {}, found {}",
                    x.unwrap_or("none"),
                    y.unwrap_or("none")
                ));
            }
        }
    }
}

fn number(value: Scalar) -> String {
    match value {
        Scalar::Pred(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Uint(value) => value.to_string(),
        // Most numbers are f32, and shortest as such.
        Scalar::Float(value) if f64::from(value as f32) == value => (value as f32).to_string(),
        Scalar::Float(value) => value.to_string(),
        Scalar::Complex(re, im) => format!("({re}, {im})"),
    }
}
