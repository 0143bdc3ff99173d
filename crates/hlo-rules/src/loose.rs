//! A text of a rule in which dims have labels in place of places: rules that differ in the order of dims, in transposes, or in the
//! order of the operands of products, sums and maxima have one text.
//!
//! Equal texts mean that the rules say the same. Rules that say the same may still have several texts, where parts of one kind
//! stand beside each other.

use crate::op::Op;
use crate::rule::Rule;
use crate::size::{Size, Sym};
use crate::term::{TermId, Terms};

/// Number of a dim's label.
type Label = usize;

struct Writer<'r> {
    terms: &'r Terms,
    out: String,
    /// Inputs in the order in which they are met, each with the places of its dims in the order of their labels then.
    inputs: Vec<(u8, Vec<usize>)>,
    names: Vec<Sym>,
    n_labels: usize,
}

impl Rule {
    /// The text under which rules are told apart when a set is closed.
    pub(crate) fn loose_text(&self) -> String {
        let (left, right) = (self.kind(&self.left), self.kind(&self.right));
        let forward = || self.loose_sides(&self.left, &self.right);
        let backward = || self.loose_sides(&self.right, &self.left);
        match left.cmp(&right) {
            std::cmp::Ordering::Less => forward(),
            std::cmp::Ordering::Greater => backward(),
            std::cmp::Ordering::Equal => forward().min(backward()),
        }
    }

    /// Whether the sides differ in nothing but the order of dims and of operands.
    pub(crate) fn is_loosely_trivial(&self) -> bool {
        let mut writer = Writer::new(&self.terms);
        writer.side(&self.left);
        let left = std::mem::take(&mut writer.out);
        // Inputs and names stay numbered as the left side met them.
        writer.n_labels = 0;
        writer.side(&self.right);
        left == writer.out
    }

    fn kind(&self, side: &[TermId]) -> String {
        side.iter().map(|&t| kind(&self.terms, t)).collect()
    }

    fn loose_sides(&self, left: &[TermId], right: &[TermId]) -> String {
        let mut writer = Writer::new(&self.terms);
        writer.side(left);
        writer.out.push('=');
        writer.n_labels = 0;
        writer.side(right);
        writer.out
    }
}

/// What a term is made of, in a text that says nothing of inputs and dims.
fn kind(terms: &Terms, term: TermId) -> String {
    let node = terms.node(term);
    if let Op::Transpose(_) = node.op {
        return kind(terms, node.args[0]);
    }
    if let Op::Input(_) = node.op {
        return node.dims.len().to_string();
    }
    let mut args: Vec<String> = node.args.iter().map(|&a| kind(terms, a)).collect();
    if node.op.is_commutative() {
        args.sort();
    }
    format!("{}({})", node.op.name(), args.join(","))
}

impl<'r> Writer<'r> {
    fn new(terms: &'r Terms) -> Writer<'r> {
        Writer { terms, out: String::new(), inputs: Vec::new(), names: Vec::new(), n_labels: 0 }
    }

    fn side(&mut self, roots: &[TermId]) {
        for &root in roots {
            // The result's dims are told apart by their sizes first.
            let dims = self.terms.dims(root).clone();
            let labels: Vec<Label> = dims.iter().map(|_| self.fresh()).collect();
            self.term(root, &labels);
            self.out.push('&');
        }
    }

    fn fresh(&mut self) -> Label {
        self.n_labels += 1;
        self.n_labels - 1
    }

    fn size(&mut self, size: &Size) {
        for sym in size.unknowns() {
            if !self.names.contains(&sym) {
                self.names.push(sym);
            }
        }
        let mut parts: Vec<String> = Vec::new();
        for (monomial, n) in size.parts() {
            let place = |s: &Sym| self.names.iter().position(|m| m == s).unwrap_or_default();
            let mut factors: Vec<usize> = monomial.iter().map(place).collect();
            factors.sort();
            parts.push(format!("{n}{factors:?}"));
        }
        parts.sort();
        self.out.push_str(&parts.concat());
        self.out.push(';');
    }

    fn input(&mut self, number: u8, term: TermId, labels: &[Label]) {
        let known = self.inputs.iter().position(|i| i.0 == number);
        let at = known.unwrap_or_else(|| {
            let mut order: Vec<usize> = (0..labels.len()).collect();
            order.sort_by_key(|&d| labels[d]);
            self.inputs.push((number, order));
            self.inputs.len() - 1
        });
        self.out.push_str(&format!("${at}["));
        for d in self.inputs[at].1.clone() {
            self.out.push_str(&format!("{},", labels[d]));
            if known.is_none() {
                let size = self.terms.dims(term)[d].clone();
                self.size(&size);
            }
        }
        self.out.push(']');
    }

    /// The least number of an input of a term that was met before.
    fn first_met(&self, term: TermId) -> usize {
        let number = |t: TermId| {
            let Op::Input(number) = self.terms.node(t).op else { return None };
            self.inputs.iter().position(|i| i.0 == number)
        };
        self.terms.reachable(&[term]).into_iter().filter_map(number).min().unwrap_or(usize::MAX)
    }

    /// Writes a term whose dims have these labels.
    fn term(&mut self, term: TermId, labels: &[Label]) {
        let node = self.terms.node(term);
        if let Op::Input(number) = node.op {
            return self.input(number, term, labels);
        }
        if let Op::Transpose(order) = &node.op {
            let place = |d: usize| order.iter().position(|&o| usize::from(o) == d).unwrap_or_default();
            let inner: Vec<Label> = (0..order.len()).map(|d| labels[place(d)]).collect();
            return self.term(node.args[0], &inner);
        }
        let of_args = self.labels_of_args(term, labels);
        self.out.push_str(node.op.name());
        self.out.push('(');
        // Parts of one kind stand in the order in which their inputs were met.
        let mut args: Vec<(String, usize, usize)> =
            node.args.iter().enumerate().map(|(k, &a)| (kind(self.terms, a), self.first_met(a), k)).collect();
        if node.op.is_commutative() {
            args.sort();
        }
        for (_, _, k) in args {
            self.term(node.args[k], &of_args[k]);
            self.out.push(',');
        }
        let sizes: Vec<Size> = node.op.sizes().into_iter().cloned().collect();
        sizes.iter().for_each(|size| self.size(size));
        self.out.push(')');
    }

    /// Labels for the dims of each operand, new ones for dims that the result lacks; notes what the op does to which label.
    fn labels_of_args(&mut self, term: TermId, labels: &[Label]) -> Vec<Vec<Label>> {
        let node = self.terms.node(term);
        let rank = |k: usize| self.terms.dims(node.args[k]).len();
        match &node.op {
            Op::Dot(pairs) => {
                let ranks = [rank(0), rank(1)];
                let sums: Vec<Label> = pairs.contract.iter().map(|_| self.fresh()).collect();
                let (left, right) = (pairs.left_free(ranks[0]), pairs.right_free(ranks[1]));
                let n_batch = pairs.batch.len();
                let side = |rank: usize, own: &[u8], start: usize, of: &dyn Fn(&(u8, u8)) -> u8| -> Vec<Label> {
                    let label = |d: u8| {
                        let batch = pairs.batch.iter().position(|p| of(p) == d).map(|i| labels[i]);
                        let sum = || pairs.contract.iter().position(|p| of(p) == d).map(|i| sums[i]);
                        let own = || labels[start + own.iter().position(|&o| o == d).unwrap_or_default()];
                        batch.or_else(sum).unwrap_or_else(own)
                    };
                    (0..rank as u8).map(label).collect()
                };
                vec![side(ranks[0], &left, n_batch, &|p| p.0), side(ranks[1], &right, n_batch + left.len(), &|p| p.1)]
            }
            Op::Add | Op::Multiply | Op::Unary(_) | Op::Max | Op::Above => {
                node.args.iter().map(|_| labels.to_vec()).collect()
            }
            Op::Scale => vec![labels.to_vec(), Vec::new()],
            Op::Slice { dim, .. } | Op::Pad { dim, .. } | Op::Concat { dim } => {
                self.out.push_str(&format!("@{}", labels[usize::from(*dim)]));
                let mut all = Vec::new();
                for _ in &node.args {
                    let mut inner = labels.to_vec();
                    inner[usize::from(*dim)] = self.fresh();
                    all.push(inner);
                }
                all
            }
            Op::Stack { dim } => {
                self.out.push_str(&format!("@{}", labels[usize::from(*dim)]));
                let mut inner = labels.to_vec();
                inner.remove(usize::from(*dim));
                node.args.iter().map(|_| inner.clone()).collect()
            }
            Op::Pick { dim, place } => {
                let mut inner = labels.to_vec();
                let new = self.fresh();
                self.out.push_str(&format!("@{new}:{place}"));
                inner.insert(usize::from(*dim), new);
                vec![inner]
            }
            Op::Broadcast(new) => {
                let gone = |d: &usize| new.iter().any(|n| usize::from(n.0) == *d);
                new.iter().for_each(|n| self.out.push_str(&format!("@{}", labels[usize::from(n.0)])));
                vec![(0..labels.len()).filter(|d| !gone(d)).map(|d| labels[d]).collect()]
            }
            Op::Reduce(over) => {
                let mut inner = labels.to_vec();
                for &d in over {
                    let new = self.fresh();
                    self.out.push_str(&format!("@{new}"));
                    inner.insert(usize::from(d), new);
                }
                vec![inner]
            }
            Op::Reshape(_) => {
                self.out.push_str(&format!("@{labels:?}"));
                vec![(0..rank(0)).map(|_| self.fresh()).collect()]
            }
            Op::Conv(conv) => {
                let flags: Vec<bool> = conv.windows.iter().map(|w| w.is_reversed).collect();
                self.out.push_str(&format!("@{labels:?}{flags:?}{}:{}", conv.feature_groups, conv.batch_groups));
                let (n, f) = (labels[0], labels[1]);
                let (batch, feature, kernel_feature) = (
                    if conv.batch_groups > 1 { self.fresh() } else { n },
                    self.fresh(),
                    if conv.feature_groups > 1 { self.fresh() } else { usize::MAX },
                );
                let kernel_feature = if kernel_feature == usize::MAX { feature } else { kernel_feature };
                let spatial: Vec<[Label; 2]> = conv.windows.iter().map(|_| [self.fresh(), self.fresh()]).collect();
                vec![
                    [batch, feature].into_iter().chain(spatial.iter().map(|s| s[0])).collect(),
                    [f, kernel_feature].into_iter().chain(spatial.iter().map(|s| s[1])).collect(),
                ]
            }
            Op::Input(_) | Op::Transpose(_) => Vec::new(),
        }
    }
}
