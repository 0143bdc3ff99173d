//! The cheapest distinct terms of an e-graph: starting from the region itself, one application of a rule after the other is taken over.

use super::Limits;
use super::apply::Move;
use super::egraph::{ClassId, EGraph, ENode};
use crate::term::{TermId, Terms};
use crate::verify::prove_terms;
use std::collections::{BTreeMap, BTreeSet};

/// One way to compute a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alternative {
    /// The region's results, in the store of [`Alternatives`].
    pub roots: Vec<TermId>,
    /// What the caller's prices add up to.
    pub cost: u64,
    /// The rules applied, by number in their set.
    pub entries: Vec<usize>,
}

/// What extraction gives.
#[derive(Clone, Debug)]
pub struct Alternatives {
    /// The store of all alternatives; inputs are numbered as in the region.
    pub terms: Terms,
    /// Of distinct arithmetic, the cheapest first; the region itself, or the same arithmetic with less movement, is among them.
    pub all: Vec<Alternative>,
    /// Applications of rules that were found.
    pub n_applications: usize,
    /// Alternatives that were left out because no proof of the whole was found.
    pub n_unproved: usize,
}

/// The arithmetic of a graph: its ops that are not mere moves, with the dims of what they take and give.
type Kind = Vec<String>;

/// For each kind the cheapest graph: what it costs, the rules applied, its roots.
type Found = BTreeMap<Kind, (u64, Vec<usize>, Vec<TermId>)>;

/// Choices of nodes that differ from the region's own.
type Choices = BTreeMap<ClassId, ENode>;

/// Graphs that are kept for the next step.
const WIDTH: usize = 8;
/// Applications of rules that are taken over one after the other.
const MOST_STEPS: usize = 32;

struct Extraction<'a> {
    graph: &'a EGraph,
    terms: Terms,
    cost: &'a dyn Fn(&Terms, TermId) -> u64,
}

pub(super) fn extract(
    graph: &EGraph,
    moves: &[Move],
    classes: &[ClassId],
    region: &Terms,
    roots: &[TermId],
    limits: Limits,
    cost: &dyn Fn(&Terms, TermId) -> u64,
) -> Alternatives {
    let mut this = Extraction { graph, terms: region.clone(), cost };
    let mut seen: BTreeSet<Vec<TermId>> = BTreeSet::from([roots.to_vec()]);
    let mut found: Found = BTreeMap::new();
    found.insert(this.arithmetic(roots), (this.price(roots), Vec::new(), roots.to_vec()));
    let mut level: Vec<(u64, Choices, Vec<usize>)> = vec![(this.price(roots), Choices::new(), Vec::new())];
    let mut n_priced = 0;
    for _ in 0..MOST_STEPS {
        let mut next: Vec<(u64, Choices, Vec<usize>)> = Vec::new();
        for (_, choices, entries) in &level {
            let used = this.used(classes, choices);
            for one in moves {
                let is_near = one.results.iter().all(|&c| used.contains(&graph.find(c)));
                if !is_near || n_priced >= limits.n_priced {
                    continue;
                }
                let mut choices = choices.clone();
                for (class, node) in &one.choices {
                    choices.insert(graph.find(*class), graph.canonical(node));
                }
                n_priced += 1;
                let Some(built) = this.build(classes, &choices) else { continue };
                if !seen.insert(built.clone()) {
                    continue;
                }
                let price = this.price(&built);
                let kind = this.arithmetic(&built);
                if found.get(&kind).is_some_and(|known| known.0 <= price) {
                    continue;
                }
                let mut entries = entries.clone();
                entries.push(one.entry);
                found.insert(kind, (price, entries.clone(), built));
                next.push((price, choices, entries));
            }
        }
        next.sort_by(|a, b| (a.0, &a.2).cmp(&(b.0, &b.2)));
        next.truncate(WIDTH);
        if next.is_empty() {
            break;
        }
        level = next;
    }
    this.chosen(found, roots, moves.len(), limits)
}

impl Extraction<'_> {
    /// The sum over distinct terms.
    fn price(&self, roots: &[TermId]) -> u64 {
        self.terms.reachable(roots).iter().fold(0u64, |sum, &t| sum.saturating_add((self.cost)(&self.terms, t)))
    }

    fn arithmetic(&self, roots: &[TermId]) -> Kind {
        let mut all: Kind = Vec::new();
        for term in self.terms.reachable(roots) {
            let node = self.terms.node(term);
            if !node.op.is_movement() {
                let dims = |t: &TermId| format!("{:?}", self.terms.dims(*t));
                let mut args: Vec<String> = node.args.iter().map(dims).collect();
                args.sort();
                all.push(format!("{} {} {}", node.op.name(), args.concat(), dims(&term)));
            }
        }
        all.sort();
        all
    }

    fn node(&self, class: ClassId, choices: &Choices) -> Option<ENode> {
        choices.get(&class).cloned().or_else(|| self.graph.nodes(class).first().cloned())
    }

    /// The classes that the results are made of.
    fn used(&self, classes: &[ClassId], choices: &Choices) -> BTreeSet<ClassId> {
        let mut used = BTreeSet::new();
        let mut stack: Vec<ClassId> = classes.iter().map(|&c| self.graph.find(c)).collect();
        while let Some(class) = stack.pop() {
            if used.insert(class) {
                stack.extend(self.node(class, choices).into_iter().flat_map(|n| n.args).map(|a| self.graph.find(a)));
            }
        }
        used
    }

    /// The terms of choices; `None` if they go round in a circle.
    fn build(&mut self, classes: &[ClassId], choices: &Choices) -> Option<Vec<TermId>> {
        let mut built: BTreeMap<ClassId, Option<TermId>> = BTreeMap::new();
        classes.iter().map(|&c| self.build_class(self.graph.find(c), choices, &mut built)).collect()
    }

    fn build_class(
        &mut self,
        class: ClassId,
        choices: &Choices,
        built: &mut BTreeMap<ClassId, Option<TermId>>,
    ) -> Option<TermId> {
        if let Some(known) = built.get(&class) {
            return *known;
        }
        // Until it is built, whoever asks for it again is on a circle.
        built.insert(class, None);
        let node = self.node(class, choices)?;
        let mut args = crate::term::Args::new();
        for &arg in &node.args {
            args.push(self.build_class(self.graph.find(arg), choices, built)?);
        }
        let term = match node.op {
            crate::op::Op::Input(number) => self.terms.input(number, self.graph.dims(class).clone()),
            op => self.terms.add(op, args).ok()?,
        };
        built.insert(class, Some(term));
        Some(term)
    }

    /// The cheapest that are proved equal to the region.
    fn chosen(self, found: Found, roots: &[TermId], n_applications: usize, limits: Limits) -> Alternatives {
        let mut candidates: Vec<(u64, usize, Vec<TermId>, Vec<usize>)> =
            found.into_values().map(|(cost, entries, built)| (cost, entries.len(), built, entries)).collect();
        candidates.sort();
        let (mut all, mut n_unproved, mut has_region) = (Vec::new(), 0, false);
        let own = self.arithmetic(roots);
        for (cost, _, built, entries) in candidates {
            let is_region = self.arithmetic(&built) == own;
            let n_left = limits.n_alternatives.saturating_sub(all.len());
            if !is_region && (n_left == 0 || (n_left == 1 && !has_region)) {
                continue;
            }
            let is_proved = built.iter().zip(roots).all(|(&b, &r)| prove_terms(&self.terms, b, r).is_ok());
            if is_proved {
                has_region |= is_region;
                all.push(Alternative { roots: built, cost, entries });
            } else {
                n_unproved += 1;
            }
        }
        Alternatives { terms: self.terms, all, n_applications, n_unproved }
    }
}
