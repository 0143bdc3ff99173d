//! No silent default for an opcode: outside the op table, a `match` over opcodes lists them all.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::source::Tree;

/// The op table may say "every other".
const TABLE: &str = "crates/hlo-ir/src/op/";

/// Findings about matches with an opcode in one arm and everything else in another.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in tree.rust().filter(|(file, _)| !file.path.starts_with(TABLE)) {
        let mut places = Places::default();
        places.visit_file(rust);
        findings.extend(places.wildcards.iter().map(|&line| {
            Finding::new(
                "opcode-wildcard",
                file.at(line),
                "expected every opcode to be listed, found an arm for the rest",
            )
        }));
        findings.extend(places.globs.iter().map(|&line| {
            Finding::new(
                "opcode-glob",
                file.at(line),
                "expected `Opcode::Name` in patterns, found an import of all names",
            )
        }));
    }
    findings
}

#[derive(Default)]
struct Places {
    wildcards: Vec<usize>,
    globs: Vec<usize>,
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        if node.arms.iter().any(|arm| names_opcode(&arm.pat)) {
            let rest = node.arms.iter().filter(|arm| catches_all(&arm.pat));
            self.wildcards.extend(rest.map(|arm| arm.pat.span().start().line));
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_use_path(&mut self, node: &'ast syn::UsePath) {
        if node.ident == "Opcode" && matches!(*node.tree, syn::UseTree::Glob(_)) {
            self.globs.push(node.span().start().line);
        }
        visit::visit_use_path(self, node);
    }
}

/// Whether a pattern is `_` or the bare name of a variable (not of a variant like `None`), alone.
fn catches_all(pat: &syn::Pat) -> bool {
    match pat {
        syn::Pat::Wild(_) => true,
        syn::Pat::Ident(p) => {
            p.subpat.is_none() && p.ident.to_string().starts_with(|c: char| c.is_lowercase() || c == '_')
        }
        _ => false,
    }
}

fn names_opcode(pat: &syn::Pat) -> bool {
    struct Paths(bool);
    impl<'ast> Visit<'ast> for Paths {
        fn visit_path(&mut self, path: &'ast syn::Path) {
            let before_last = path.segments.iter().rev().nth(1);
            self.0 |= before_last.is_some_and(|segment| segment.ident == "Opcode");
        }
    }
    let mut paths = Paths(false);
    paths.visit_pat(pat);
    paths.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wildcards(body: &str) -> usize {
        let file = syn::parse_file(&format!("fn f() {{ {body} }}")).expect("it parses");
        let mut places = Places::default();
        places.visit_file(&file);
        places.wildcards.len() + places.globs.len()
    }

    #[test]
    fn arms_for_the_rest_are_found() {
        assert_eq!(wildcards("match op { Opcode::Add => 1, _ => 2 };"), 1);
        assert_eq!(wildcards("match (op, n) { (ir::Opcode::Add, 1) => 1, rest => 2 };"), 1);
        assert_eq!(wildcards("match op { Some(Opcode::Add | Opcode::Abs) => 1, Some(_) => 2, None => 3 };"), 0);
        assert_eq!(wildcards("match kind { Kind::A => 1, _ => 2 };"), 0);
        assert_eq!(wildcards("use ir::Opcode::*;"), 1);
    }
}
