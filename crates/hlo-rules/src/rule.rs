//! A rule: two lists of terms over the same inputs that are equal for all sizes.

use crate::op::{Op, TypeError};
use crate::size::{Size, Sym};
use crate::term::{TermId, Terms};

/// How a rule keeps floating-point results.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Label {
    /// Bit by bit: it moves data only, or keeps each sum's order.
    Exact,
    /// Up to rounding: sums are taken in another order, or products in another grouping.
    Reassoc,
}

impl Label {
    /// Its word in text.
    pub fn name(self) -> &'static str {
        match self {
            Label::Exact => "exact",
            Label::Reassoc => "reassoc",
        }
    }
}

/// `left[i] = right[i]` for each `i`.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// Its name, if it has one.
    pub name: String,
    /// The store of both sides.
    pub terms: Terms,
    /// Names of inputs, by number.
    pub inputs: Vec<String>,
    /// Names of the unknowns of sizes, by number.
    pub unknowns: Vec<String>,
    /// One side.
    pub left: Vec<TermId>,
    /// The other.
    pub right: Vec<TermId>,
}

impl Rule {
    /// The terms of both sides, operands before users.
    pub fn reachable(&self) -> Vec<TermId> {
        let roots: Vec<TermId> = self.left.iter().chain(&self.right).copied().collect();
        self.terms.reachable(&roots)
    }

    /// The inputs that a side takes, by number, ascending.
    pub fn inputs_of(&self, side: &[TermId]) -> Vec<u8> {
        let mut inputs: Vec<u8> = Vec::new();
        for term in self.terms.reachable(side) {
            if let Op::Input(number) = self.terms.node(term).op {
                inputs.push(number);
            }
        }
        inputs.sort();
        inputs
    }

    /// Number of ops of each side.
    pub fn n_ops(&self) -> (usize, usize) {
        (self.terms.n_ops(&self.left), self.terms.n_ops(&self.right))
    }

    /// The rule read from right to left.
    pub fn reversed(&self) -> Rule {
        Rule { left: self.right.clone(), right: self.left.clone(), ..self.clone() }
    }

    /// A text that two rules share if they differ in names of inputs and unknowns, in the order of a sum's, a product's or a maximum's
    /// operands, or in which side stands left.
    pub fn canonical_text(&self) -> String {
        let mut inputs = self.inputs_of(&self.left);
        inputs.extend(self.inputs_of(&self.right));
        inputs.sort();
        inputs.dedup();
        let sides = [(&self.left, &self.right), (&self.right, &self.left)];
        let orders = permutations(&inputs);
        let texts = orders.iter().flat_map(|order| sides.map(|(l, r)| self.text_under(order, l, r)));
        texts.min().unwrap_or_default()
    }

    fn text_under(&self, order: &[u8], left: &[TermId], right: &[TermId]) -> String {
        let mut names: Vec<(Sym, String)> = Vec::new();
        let mut text = String::new();
        for input in order {
            let all = self.reachable();
            let term = all.iter().find(|&&t| self.terms.node(t).op == Op::Input(*input));
            let dims = term.map(|&t| self.terms.dims(t).clone()).unwrap_or_default();
            for size in &dims {
                text.push_str(&size_text(size, &mut names));
                text.push(',');
            }
            text.push(';');
        }
        let mut side = |roots: &[TermId]| {
            let texts: Vec<String> = roots.iter().map(|&r| self.term_text(r, order, &mut names)).collect();
            texts.join("&")
        };
        let (left, right) = (side(left), side(right));
        text + &left + "=" + &right
    }

    fn term_text(&self, term: TermId, order: &[u8], names: &mut Vec<(Sym, String)>) -> String {
        let node = self.terms.node(term);
        if let Op::Input(number) = node.op {
            return format!("${}", order.iter().position(|&o| o == number).unwrap_or_default());
        }
        let mut args: Vec<String> = node.args.iter().map(|&a| self.term_text(a, order, names)).collect();
        if matches!(node.op, Op::Add | Op::Multiply | Op::Max) {
            args.sort();
        }
        let sizes: Vec<String> = node.op.sizes().into_iter().map(|s| size_text(s, names)).collect();
        let plain = node.op.with_sizes(&|_| Size::default());
        format!("{:?}<{}>({})", plain, sizes.join(","), args.join(","))
    }

    /// The rule with inputs and unknowns numbered and named as they are met, and unused ones left out.
    ///
    /// # Errors
    /// None for a rule whose terms are well typed.
    pub fn compacted(&self) -> Result<Rule, TypeError> {
        let mut names: Vec<(Sym, Sym)> = Vec::new();
        let mut inputs: Vec<u8> = Vec::new();
        let mut fresh = Rule { name: self.name.clone(), ..Rule::default() };
        let all = self.reachable();
        let mut see = |size: &Size| {
            for sym in size.unknowns() {
                if names.iter().all(|n| n.0 != sym) {
                    let n = names.len() as u8;
                    names.push((sym, if sym.is_amount() { Sym::amount(n) } else { Sym::size(n) }));
                }
            }
        };
        for &term in &all {
            let node = self.terms.node(term);
            if let Op::Input(number) = node.op {
                inputs.push(number);
                node.dims.iter().for_each(&mut see);
            }
        }
        for &term in &all {
            self.terms.node(term).op.sizes().into_iter().for_each(&mut see);
        }
        let rename = |sym: Sym| Size::unknown(names.iter().find(|n| n.0 == sym).map_or(sym, |n| n.1));
        let number = |input: u8| inputs.iter().position(|&i| i == input).unwrap_or_default() as u8;
        let roots: Vec<TermId> = self.left.iter().chain(&self.right).copied().collect();
        let mut input = |terms: &mut Terms, i: u8, dims| terms.input(number(i), dims);
        let copies = fresh.terms.copy(&self.terms, &roots, &mut input, &|s| s.replace(&rename))?;
        fresh.left = copies[..self.left.len()].to_vec();
        fresh.right = copies[self.left.len()..].to_vec();
        fresh.inputs = inputs.iter().map(|&i| self.inputs[usize::from(i)].clone()).collect();
        fresh.unknowns = names.iter().map(|n| self.unknowns[n.0.number()].clone()).collect();
        Ok(fresh)
    }
}

fn size_text(size: &Size, names: &mut Vec<(Sym, String)>) -> String {
    for sym in size.unknowns() {
        if names.iter().all(|n| n.0 != sym) {
            let kind = if sym.is_amount() { "p" } else { "n" };
            names.push((sym, format!("{kind}{}", names.len())));
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (monomial, n) in size.parts() {
        let mut factors: Vec<&str> =
            monomial.iter().map(|s| names.iter().find(|n| n.0 == *s).map_or("", |n| n.1.as_str())).collect();
        factors.sort();
        parts.push(format!("{n}{}", factors.concat()));
    }
    parts.sort();
    parts.join("+")
}

/// All orders of a few numbers.
fn permutations(items: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    for &item in items {
        let longer = all.iter().flat_map(|order: &Vec<u8>| {
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, item);
                order
            })
        });
        all = longer.collect();
    }
    all
}
