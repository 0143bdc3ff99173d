//! Rules to text.

use crate::op::Op;
use crate::rule::{Label, Rule};
use crate::size::{Size, SizeText};
use crate::term::TermId;
use std::fmt::Write;

/// The text of a rule, which [`super::parse_rules`] reads back.
pub fn print_rule(rule: &Rule, label: Option<Label>) -> String {
    let name = if rule.name.is_empty() { "unnamed" } else { &rule.name };
    let label = label.map_or_else(String::new, |label| format!(" {}", label.name()));
    let mut out = format!("rule {name}{label}\n");
    let all = rule.reachable();
    let mut amounts: Vec<_> = Vec::new();
    for &term in &all {
        let node = rule.terms.node(term);
        let sizes = node.dims.iter().chain(node.op.sizes());
        amounts.extend(sizes.flat_map(Size::unknowns).filter(|s| s.is_amount()));
    }
    amounts.sort();
    amounts.dedup();
    if !amounts.is_empty() {
        let names: Vec<&str> = amounts.iter().map(|s| rule.unknowns[s.number()].as_str()).collect();
        let _ = writeln!(out, "  amounts {}", names.join(", "));
    }
    let mut inputs: Vec<(u8, TermId)> = all
        .iter()
        .filter_map(|&t| if let Op::Input(n) = rule.terms.node(t).op { Some((n, t)) } else { None })
        .collect();
    inputs.sort();
    for (number, term) in inputs {
        let _ = writeln!(out, "  {}: {}", rule.inputs[usize::from(number)], dims(rule, term));
    }
    let side = |roots: &[TermId]| roots.iter().map(|&r| term_text(rule, r)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "  left  = {}", side(&rule.left));
    let _ = writeln!(out, "  right = {}", side(&rule.right));
    out
}

fn dims(rule: &Rule, term: TermId) -> String {
    let dims = rule.terms.dims(term).iter().map(|d| SizeText(d, &rule.unknowns).to_string());
    format!("[{}]", dims.collect::<Vec<_>>().join(", "))
}

/// Dims of the results of a side.
pub(crate) fn dims_text(rule: &Rule, side: &[TermId]) -> String {
    side.iter().map(|&t| dims(rule, t)).collect::<Vec<_>>().join(", ")
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

fn term_text(rule: &Rule, term: TermId) -> String {
    let node = rule.terms.node(term);
    if let Op::Input(number) = node.op {
        return rule.inputs[usize::from(number)].clone();
    }
    let args = node.args.iter().map(|&a| term_text(rule, a));
    let parts: Vec<String> = args.chain(attributes(rule, &node.op)).collect();
    format!("{}({})", node.op.name(), parts.join(", "))
}

fn attributes(rule: &Rule, op: &Op) -> Vec<String> {
    let size = |s: &Size| SizeText(s, &rule.unknowns).to_string();
    let pairs = |pairs: &[(u8, u8)]| list(pairs.iter().map(|(a, b)| format!("{a}:{b}")));
    match op {
        Op::Input(_) | Op::Add | Op::Multiply | Op::Scale | Op::Unary(_) | Op::Max | Op::Above => Vec::new(),
        Op::Dot(dims) => {
            let batch = (!dims.batch.is_empty()).then(|| format!("batch={}", pairs(&dims.batch)));
            let contract = (!dims.contract.is_empty()).then(|| format!("contract={}", pairs(&dims.contract)));
            batch.into_iter().chain(contract).collect()
        }
        Op::Conv(conv) => {
            let window = |w: &crate::op::Window| [&w.stride, &w.low, &w.base, &w.dilation, &w.out].map(size).join(":");
            let mut all = vec![format!("window={}", list(conv.windows.iter().map(window)))];
            let reversed: Vec<String> =
                (0..conv.windows.len()).filter(|&s| conv.windows[s].is_reversed).map(|s| s.to_string()).collect();
            if !reversed.is_empty() {
                all.push(format!("reversed={}", list(reversed)));
            }
            if conv.feature_groups != 1 {
                all.push(format!("groups={}", conv.feature_groups));
            }
            if conv.batch_groups != 1 {
                all.push(format!("batch_groups={}", conv.batch_groups));
            }
            all
        }
        Op::Transpose(order) => vec![format!("order={}", list(order.iter().map(u8::to_string)))],
        Op::Reshape(dims) => vec![format!("dims={}", list(dims.iter().map(size)))],
        Op::Slice { dim, start, size: n } => {
            vec![format!("dim={dim}"), format!("start={}", size(start)), format!("size={}", size(n))]
        }
        Op::Concat { dim } | Op::Stack { dim } => vec![format!("dim={dim}")],
        Op::Pick { dim, place } => vec![format!("dim={dim}"), format!("place={place}")],
        Op::Pad { dim, low, high } => {
            vec![format!("dim={dim}"), format!("low={}", size(low)), format!("high={}", size(high))]
        }
        Op::Broadcast(new) => vec![format!("new={}", list(new.iter().map(|(d, n)| format!("{d}:{}", size(n)))))],
        Op::Reduce(dims) => vec![format!("dims={}", list(dims.iter().map(u8::to_string)))],
    }
}
