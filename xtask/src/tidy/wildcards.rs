//! No silent default for what the op table tells apart: outside the table, a `match` over opcodes, or over the rules that
//! stand for them, lists every case.
//!
//! Tests may have defaults for rules: what a test does not expect shows as a failed assertion.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::source::Tree;

/// The op table may say "every other", and so may the functions that pick the attributes of one structure.
const MAY_DEFAULT: [&str; 3] = ["crates/hlo-ir/src/op/", "crates/hlo-ir/src/attrs/", "crates/hlo-ir/src/collective.rs"];

/// The columns of the op table, what they are made of, the formats of attributes, and the work of a GPU plan.
const RULES: &[&str] = &[
    "Arity",
    "Attrs",
    "Begun",
    "CollectiveForm",
    "CollectiveKind",
    "CollectiveSource",
    "CompUse",
    "CostRule",
    "Effects",
    "ElementwiseRoutine",
    "EvalRoutine",
    "EvalRule",
    "FactorRule",
    "Flow",
    "LeafRule",
    "LockstepRoutine",
    "NamedDims",
    "OneArrayRoutine",
    "OpKind",
    "Participation",
    "Relabelling",
    "Runs",
    "ScalarFn",
    "SeveralArraysRoutine",
    "ShapeRule",
    "ShapingRoutine",
    "SpecialOp",
    "StartResult",
    "StructureRoutine",
    "Work",
];

/// Findings about matches with one case in an arm and everything else in another.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in tree.rust() {
        if MAY_DEFAULT.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        let is_test = file.path.starts_with("tests/") || file.path.contains("/tests/") || has_tests(&rust.items);
        let places = Places::of(rust, is_test);
        let wildcards = [
            ("opcode-wildcard", "opcode", &places.opcode_wildcards),
            ("rule-wildcard", "rule of the op table", &places.rule_wildcards),
        ];
        for (rule, what, lines) in wildcards {
            let message = format!("expected every {what} to be listed, found an arm for the rest");
            findings.extend(lines.iter().map(|&line| Finding::new(rule, file.at(line), message.clone())));
        }
        findings.extend(places.globs.iter().map(|(name, line)| {
            let message = format!("expected `{name}::Name` in patterns, found an import of all names");
            Finding::new("opcode-glob", file.at(*line), message)
        }));
    }
    findings
}

#[derive(Default)]
struct Places {
    /// Whether the walk is in a test, where matches on rules may have defaults.
    is_test: bool,
    opcode_wildcards: Vec<usize>,
    rule_wildcards: Vec<usize>,
    globs: Vec<(String, usize)>,
}

impl Places {
    fn of(rust: &syn::File, is_test: bool) -> Places {
        let mut places = Places { is_test, ..Places::default() };
        places.visit_file(rust);
        places
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        let patterns: Vec<&syn::Pat> = node.arms.iter().flat_map(|arm| alternatives(&arm.pat)).collect();
        self.opcode_wildcards.extend(rest_of(&patterns, &["Opcode"]));
        if !self.is_test {
            self.rule_wildcards.extend(rest_of(&patterns, RULES));
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        let was_test = self.is_test;
        self.is_test |= node.content.as_ref().is_some_and(|(_, items)| has_tests(items));
        visit::visit_item_mod(self, node);
        self.is_test = was_test;
    }

    fn visit_use_path(&mut self, node: &'ast syn::UsePath) {
        let is_listed = node.ident == "Opcode" || RULES.iter().any(|name| node.ident == name);
        if is_listed && matches!(*node.tree, syn::UseTree::Glob(_)) {
            self.globs.push((node.ident.to_string(), node.span().start().line));
        }
        visit::visit_use_path(self, node);
    }
}

/// Whether one of the items is a test.
fn has_tests(items: &[syn::Item]) -> bool {
    let is_test = |attr: &syn::Attribute| attr.path().is_ident("test");
    items.iter().any(|item| matches!(item, syn::Item::Fn(f) if f.attrs.iter().any(is_test)))
}

/// Whether a pattern takes everything: `_`, the bare name of a variable (not of a variant like `None`), or a tuple of such.
fn catches_all(pat: &syn::Pat) -> bool {
    match pat {
        syn::Pat::Wild(_) | syn::Pat::Rest(_) => true,
        syn::Pat::Ident(p) => {
            p.subpat.is_none() && p.ident.to_string().starts_with(|c: char| c.is_lowercase() || c == '_')
        }
        syn::Pat::Tuple(tuple) => tuple.elems.iter().all(catches_all),
        syn::Pat::Paren(inner) => catches_all(&inner.pat),
        _ => false,
    }
}

/// The patterns of an or-pattern, without parentheses, references and names for the whole.
fn alternatives(pat: &syn::Pat) -> Vec<&syn::Pat> {
    match pat {
        syn::Pat::Or(or) => or.cases.iter().flat_map(alternatives).collect(),
        syn::Pat::Paren(inner) => alternatives(&inner.pat),
        syn::Pat::Reference(inner) => alternatives(&inner.pat),
        syn::Pat::Ident(syn::PatIdent { subpat: Some((_, inner)), .. }) => alternatives(inner),
        other => vec![other],
    }
}

/// Lines of the patterns that take all other variants where patterns beside them name variants of one of the enums. Patterns
/// stand for one place of the value; what stands inside of equal variants and tuples is compared place by place.
fn rest_of(patterns: &[&syn::Pat], enums: &[&str]) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    if patterns.iter().any(|pat| names_one(pat, enums)) {
        lines.extend(patterns.iter().filter(|pat| catches_all(pat)).map(|pat| pat.span().start().line));
    }
    let mut inner: BTreeMap<String, Vec<Vec<Inside<'_>>>> = BTreeMap::new();
    for pat in patterns {
        if let Some((name, places)) = parts(pat) {
            inner.entry(name).or_default().push(places);
        }
    }
    for rows in inner.values() {
        let names: BTreeSet<&String> = rows.iter().flatten().map(|(name, _)| name).collect();
        for name in names {
            let column = rows.iter().flat_map(|row| row.iter().find(|(of, _)| of == name));
            let column: Vec<&syn::Pat> = column.flat_map(|(_, pat)| alternatives(pat)).collect();
            lines.extend(rest_of(&column, enums));
        }
    }
    lines
}

/// A place inside a pattern, a number or the name of a field, and what stands there.
type Inside<'p> = (String, &'p syn::Pat);

/// What a pattern takes apart, a variant or a tuple, and its places.
fn parts(pat: &syn::Pat) -> Option<(String, Vec<Inside<'_>>)> {
    match pat {
        syn::Pat::Tuple(tuple) => Some((format!("({})", tuple.elems.len()), by_number(&tuple.elems))),
        syn::Pat::TupleStruct(variant) => Some((last_name(&variant.path)?, by_number(&variant.elems))),
        syn::Pat::Struct(variant) => {
            let fields = variant.fields.iter();
            let places = fields.map(|field| (field_name(&field.member), &*field.pat)).collect();
            Some((last_name(&variant.path)?, places))
        }
        _ => None,
    }
}

fn by_number(elems: &syn::punctuated::Punctuated<syn::Pat, syn::Token![,]>) -> Vec<Inside<'_>> {
    elems.iter().enumerate().map(|(at, pat)| (at.to_string(), pat)).collect()
}

fn field_name(member: &syn::Member) -> String {
    match member {
        syn::Member::Named(name) => name.to_string(),
        syn::Member::Unnamed(index) => index.index.to_string(),
    }
}

fn last_name(path: &syn::Path) -> Option<String> {
    Some(path.segments.last()?.ident.to_string())
}

/// Whether a pattern has a variant of one of the enums, at any depth.
fn names_one(pat: &syn::Pat, enums: &[&str]) -> bool {
    struct Paths<'e>(&'e [&'e str], bool);
    impl<'ast> Visit<'ast> for Paths<'_> {
        fn visit_path(&mut self, path: &'ast syn::Path) {
            let before_last = path.segments.iter().rev().nth(1);
            self.1 |= before_last.is_some_and(|segment| self.0.iter().any(|name| segment.ident == name));
        }
    }
    let mut paths = Paths(enums, false);
    paths.visit_pat(pat);
    paths.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(text: &str) -> Places {
        Places::of(&syn::parse_file(text).expect("it parses"), false)
    }

    fn wildcards(body: &str) -> usize {
        let places = of_file(&format!("fn f() {{ {body} }}"));
        places.opcode_wildcards.len() + places.rule_wildcards.len() + places.globs.len()
    }

    #[test]
    fn arms_for_the_rest_are_found() {
        assert_eq!(wildcards("match op { Opcode::Add => 1, _ => 2 };"), 1);
        assert_eq!(wildcards("match (op, n) { (ir::Opcode::Add, 1) => 1, rest => 2 };"), 1);
        assert_eq!(wildcards("match op { Some(Opcode::Add | Opcode::Abs) => 1, None => 3 };"), 0);
        assert_eq!(wildcards("match kind { Kind::A => 1, _ => 2 };"), 0);
        assert_eq!(wildcards("use ir::Opcode::*;"), 1);
    }

    #[test]
    fn rules_of_the_op_table_are_listed_too() {
        for name in RULES {
            assert_eq!(wildcards(&format!("match x {{ {name}::A => 1, _ => 2 }};")), 1, "{name}");
            assert_eq!(wildcards(&format!("match x {{ {name}::A => 1, {name}::B(_) => 2 }};")), 0, "{name}");
        }
        assert_eq!(wildcards("match (row.flow, n) { (Flow::Tuple, _) => 1, (_, _) => 2 };"), 1);
        assert_eq!(
            wildcards("match (row.flow, n) { (Flow::Tuple, _) => 1, (Flow::All, 0) => 2, (other, ..) => 3 };"),
            1
        );
        assert_eq!(wildcards("match row.flow { Flow::Tuple => 1, _ if is_view => 2, Flow::All => 3 };"), 1);
        assert_eq!(wildcards("use op::Flow::*;"), 1);
    }

    #[test]
    fn arms_for_the_rest_are_found_inside_of_variants_and_tuples() {
        assert_eq!(wildcards("match op { Some(Opcode::Add | Opcode::Abs) => 1, Some(_) => 2, None => 3 };"), 1);
        assert_eq!(wildcards("match op { None => 3, Some(Opcode::Add) => 1, Some(Opcode::Abs) => 2 };"), 0);
        let rules = "match rule { EvalRule::Routine(EvalRoutine::Shape) => 1, EvalRule::Routine(_) => 2, EvalRule::Unary(_) => 3 };";
        assert_eq!(wildcards(rules), 1);
        assert_eq!(wildcards("match x { Row { flow: Flow::Tuple, .. } => 1, Row { flow: other, .. } => 2 };"), 1);
        assert_eq!(wildcards("match (a, b) { (Flow::Tuple, 0) => 1, (Flow::All, _) => 2, (_, _) => 3 };"), 1);
        assert_eq!(wildcards("match x { &Work::Gemm(_) => 1, Work::Copy { .. } | Work::Fill { .. } => 2 };"), 0);
        assert_eq!(wildcards("match x { A(Flow::Tuple) => 1, B(_) => 2 };"), 0);
    }

    #[test]
    fn tests_may_have_defaults_for_rules_but_not_for_opcodes() {
        let test = |body: &str| format!("mod tests {{ #[test] fn f() {{ {body} }} }}");
        assert!(of_file(&test("match work { Work::Gemm(_) => 1, _ => 2 };")).rule_wildcards.is_empty());
        assert_eq!(of_file(&test("match op { Opcode::Add => 1, _ => 2 };")).opcode_wildcards.len(), 1);
    }
}
