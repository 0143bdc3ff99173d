//! Sums over devices into products and out of them: `Σ_d a·x_d = a·Σ_d x_d`, where `a` is equal on the devices.
//!
//! A term is reached along as many ways as a program has between two of its values, so what became of it is kept.

use crate::devices::{Classes, Spread};
use crate::elementwise::{Elementwise, Linear};
use crate::term::{Arg, Extent, Extra, Head, Node, TermId, Terms};
use hlo_ir::DType;
use hlo_ir::monoid::Monoid;
use smallvec::SmallVec;

/// Sums within products within sums are looked into so far.
const MAX_DEPTH: usize = 1000;

impl Elementwise {
    /// The sum over devices of a product of which one factor is equal on all of them: the product with the other's sum.
    pub(crate) fn sum_in_product(&self, terms: &mut Terms, product: TermId, spread: Spread) -> Option<TermId> {
        self.sum_in_product_at(terms, product, spread, 0)
    }

    fn sum_in_product_at(&self, terms: &mut Terms, product: TermId, spread: Spread, depth: usize) -> Option<TermId> {
        if let Some(&known) = terms.spreads.into.get(&(product, spread)) {
            return known;
        }
        let classes = terms.classes(product);
        if depth >= MAX_DEPTH || spread == terms.devices.own(classes) {
            return None;
        }
        let Node::Apply(Head::Elementwise(word), args) = terms.node(product) else { return None };
        let op = self.op(*word)?;
        let [a, b] = args.as_slice() else { return None };
        let is_equal = |arg: &Arg| terms.classes(arg.term) == Classes::ALL_EQUAL;
        let varying = match (op.linear(), is_equal(a), is_equal(b)) {
            (Linear::Product | Linear::DotProduct, true, false) => 1,
            (Linear::Product | Linear::DotProduct | Linear::Quotient, false, true) => 0,
            (Linear::Product | Linear::DotProduct | Linear::RoundedProduct | Linear::Quotient | Linear::No, _, _) => {
                return None;
            }
        };
        let dtype = op.dtype;
        let (word, mut args) = (*word, args.clone());
        if !self.is_a_factor(terms, op, args[1 - varying].term) {
            return None;
        }
        args[varying].term = self.sum_of_term(terms, args[varying].term, spread, (dtype, depth + 1));
        let out = terms.apply_mapped(Head::Elementwise(word), args);
        terms.spreads.into.insert((product, spread), Some(out));
        Some(out)
    }

    /// The sum of a term over devices, at the term's own coordinates.
    fn sum_of_term(&self, terms: &mut Terms, term: TermId, spread: Spread, (dtype, depth): (DType, usize)) -> TermId {
        let classes = terms.classes(term);
        let spread = terms.devices.normalize(spread, classes);
        if let Some(product) = self.sum_in_product_at(terms, term, spread, depth) {
            return product;
        }
        let args = match terms.node(term).clone() {
            Node::Apply(Head::Sum(Monoid::Add, of), args) if of == dtype => args
                .into_iter()
                .map(|mut arg| {
                    let Extra::Extent(mut extent) = terms.extra_of(arg.extra).clone() else { return arg };
                    extent.spread = terms.devices.compose(spread, extent.spread);
                    if let Some(product) = self.sum_in_product_at(terms, arg.term, extent.spread, depth) {
                        let classes = terms.classes(product);
                        arg.term = product;
                        extent.spread = terms.devices.own(classes);
                    }
                    arg.extra = terms.extra(Extra::Extent(extent));
                    arg
                })
                .collect(),
            _ => {
                let extra = terms.extra(Extra::Extent(Extent { reduce: SmallVec::new(), spread }));
                vec![Arg::same(terms, term, extra)]
            }
        };
        terms.apply_mapped(Head::Sum(Monoid::Add, dtype), args)
    }

    /// A sum's arguments by the devices that they are summed over, each as it is on one device; `None` for those that are
    /// not summed over devices. Sums that stand within products come out of them.
    pub(crate) fn by_devices(&self, terms: &mut Terms, args: &[Arg]) -> Vec<(Option<Spread>, Vec<Arg>)> {
        self.by_devices_at(terms, args, 0)
    }

    fn by_devices_at(&self, terms: &mut Terms, args: &[Arg], depth: usize) -> Vec<(Option<Spread>, Vec<Arg>)> {
        let mut groups: Vec<(Option<Spread>, Vec<Arg>)> = Vec::new();
        for arg in args {
            let Extra::Extent(mut extent) = terms.extra_of(arg.extra).clone() else { continue };
            let classes = terms.classes(arg.term);
            let own = terms.devices.own(classes);
            let mut local = arg.clone();
            let mut spread = None;
            if extent.spread != own {
                spread = Some(extent.spread);
                extent.spread = own;
            } else if let Some((product, devices)) = self.out_of_product(terms, arg.term, depth) {
                spread = Some(devices);
                local.term = product;
                let classes = terms.classes(product);
                extent.spread = terms.devices.own(classes);
            }
            local.extra = terms.extra(Extra::Extent(extent));
            match groups.iter_mut().find(|(s, _)| *s == spread) {
                Some((_, list)) => list.push(local),
                None => groups.push((spread, vec![local])),
            }
        }
        groups
    }

    /// The sum of arguments with their extents, or the argument if it is the only one and is all of it.
    pub(crate) fn sum_of_args(&self, terms: &mut Terms, dtype: DType, args: Vec<Arg>) -> TermId {
        if let [only] = args.as_slice() {
            let is_plain = match terms.extra_of(only.extra) {
                Extra::Extent(extent) => extent.reduce.is_empty(),
                Extra::None | Extra::Moves(_) | Extra::Inner(_) => false,
            };
            let classes = terms.classes(only.term);
            let own = terms.devices.own(classes);
            let is_own = matches!(terms.extra_of(only.extra), Extra::Extent(e) if e.spread == own);
            if is_plain && is_own && only.map == Arg::same(terms, only.term, only.extra).map {
                return only.term;
            }
        }
        terms.apply_mapped(Head::Sum(Monoid::Add, dtype), args)
    }

    /// The product of which a product with a sum over devices is the sum, and the devices.
    fn out_of_product(&self, terms: &mut Terms, product: TermId, depth: usize) -> Option<(TermId, Spread)> {
        if let Some(&known) = terms.spreads.out_of.get(&product) {
            return known;
        }
        if depth >= MAX_DEPTH {
            return None;
        }
        let out = self.look_out_of_product(terms, product, depth);
        terms.spreads.out_of.insert(product, out);
        out
    }

    fn look_out_of_product(&self, terms: &mut Terms, product: TermId, depth: usize) -> Option<(TermId, Spread)> {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(product).clone() else { return None };
        let op = self.op(word)?;
        let [a, b] = args.as_slice() else { return None };
        let is_equal = |arg: &Arg| terms.classes(arg.term) == Classes::ALL_EQUAL;
        let is_sum = |arg: &Arg| matches!(terms.node(arg.term), Node::Apply(Head::Sum(Monoid::Add, _), _));
        let k = match op.linear() {
            Linear::Product | Linear::DotProduct | Linear::Quotient if is_sum(a) && is_equal(b) => 0,
            Linear::Product | Linear::DotProduct if is_sum(b) && is_equal(a) => 1,
            Linear::Product | Linear::DotProduct | Linear::RoundedProduct | Linear::Quotient | Linear::No => {
                return None;
            }
        };
        if !self.is_a_factor(terms, op, args[1 - k].term) {
            return None;
        }
        let Node::Apply(Head::Sum(_, dtype), inner) = terms.node(args[k].term).clone() else { return None };
        let groups = self.by_devices_at(terms, &inner, depth + 1);
        let [(Some(spread), local)] = groups.as_slice() else { return None };
        let mut args = args.clone();
        let rank = terms.rank(args[k].term);
        args[k].term = self.sum_of_args(terms, dtype, local.clone());
        if terms.rank(args[k].term) != rank {
            return None;
        }
        Some((terms.apply_mapped(Head::Elementwise(word), args), *spread))
    }
}
