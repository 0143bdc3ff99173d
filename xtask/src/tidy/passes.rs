//! A pass is found by its name: text name (kebab) = file (snake) = type (Camel) = folder of samples.

use syn::visit::{self, Visit};

use super::Finding;
use super::source::{TextFile, Tree};

/// Findings about every `impl Pass for …` in a crate's `src`, its unit tests aside.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in tree.rust().filter(|(file, _)| file.path.starts_with("crates/") && file.path.contains("/src/"))
    {
        let mut passes = Passes::default();
        passes.visit_file(rust);
        for (type_name, text_name) in passes.found {
            findings.extend(check_pass(tree, file, &type_name, text_name.as_deref()));
        }
    }
    findings
}

fn check_pass(tree: &Tree, file: &TextFile, type_name: &str, text_name: Option<&str>) -> Vec<Finding> {
    let expected = kebab(type_name);
    let mut findings = Vec::new();
    if let Some(found) = text_name.filter(|found| *found != expected) {
        let message = format!("expected the text name \"{expected}\" of `{type_name}`, found \"{found}\"");
        findings.push(Finding::new("pass-name", file.path.as_str(), message));
    }
    let snake = expected.replace('-', "_");
    let in_own_file = file.path.ends_with(&format!("/{snake}.rs")) || file.path.ends_with(&format!("/{snake}/mod.rs"));
    if !in_own_file {
        let message = format!("expected the pass `{type_name}` in {snake}.rs or {snake}/mod.rs");
        findings.push(Finding::new("pass-file", file.path.as_str(), message));
    }
    let samples = format!("ir-samples/passes/{expected}");
    if !tree.exists(&samples) {
        findings.push(Finding::new("pass-sample", samples, "expected samples of this pass, found no folder"));
    }
    findings
}

/// `ShardWeightUpdate` to `shard-weight-update`.
fn kebab(type_name: &str) -> String {
    let mut out = String::new();
    for c in type_name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Types that implement `Pass`, with the literal that their `name` gives.
#[derive(Default)]
struct Passes {
    found: Vec<(String, Option<String>)>,
}

impl<'ast> Visit<'ast> for Passes {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if node.ident != "tests" {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let of_pass =
            node.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()).is_some_and(|s| s.ident == "Pass");
        if let (true, syn::Type::Path(of)) = (of_pass, &*node.self_ty)
            && let Some(segment) = of.path.segments.last()
        {
            self.found.push((segment.ident.to_string(), name_literal(&node.items)));
        }
    }
}

fn name_literal(items: &[syn::ImplItem]) -> Option<String> {
    items.iter().find_map(|item| match item {
        syn::ImplItem::Fn(f) if f.sig.ident == "name" => match f.block.stmts.last() {
            Some(syn::Stmt::Expr(syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(s), .. }), None)) => Some(s.value()),
            _ => None,
        },
        syn::ImplItem::Const(c) if c.ident == "NAME" => match &c.expr {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(s), .. }) => Some(s.value()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_off_the_source() {
        let code = "impl Pass for TupleSimplifier { fn name(&self) -> &'static str { \"tuple-simplifier\" } }\
                    mod tests { impl Pass for Fake {} }";
        let mut passes = Passes::default();
        passes.visit_file(&syn::parse_file(code).expect("it parses"));
        assert_eq!(passes.found, [("TupleSimplifier".to_string(), Some("tuple-simplifier".to_string()))]);
        assert_eq!(kebab("ShardWeightUpdate"), "shard-weight-update");
    }
}
