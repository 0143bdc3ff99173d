//! Where `unsafe` may stand, and that a sentence says why.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::source::{TextFile, Tree};

/// Places with `unsafe` code: a folder or a file.
const MAY: [&str; 10] = [
    // Running calls C interfaces: the driver, libraries of the card, kernels in a shared object.
    "crates/hlo-run/src/",
    // A PJRT plugin is a table of C functions; what decides about programs is in files without `unsafe`.
    "crates/hlo-pjrt/src/compile.rs",
    "crates/hlo-pjrt/src/errors.rs",
    "crates/hlo-pjrt/src/extensions.rs",
    "crates/hlo-pjrt/src/native.rs",
    "crates/hlo-pjrt/src/plugin.rs",
    "crates/hlo-pjrt/src/table.rs",
    // Python holds that table as a pointer.
    "crates/hlo-jax/src/hook.rs",
    // These tests play the other side of that table.
    "crates/hlo-pjrt/tests/pjrt/",
    // matrixmultiply takes pointers.
    "crates/hlo-eval/src/kernels/number.rs",
];

/// The shortest comment that counts as a sentence.
const SENTENCE_CHARS: usize = 20;

/// Findings about `unsafe` outside these places, and about exceptions from the lint without a reason.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(|(file, rust)| check_file(file, rust)).collect()
}

fn check_file(file: &TextFile, rust: &syn::File) -> Vec<Finding> {
    let mut found = Unsafe::default();
    found.visit_file(rust);
    let mut findings = Vec::new();
    if !MAY.iter().any(|place| file.path.starts_with(place)) {
        let finding = |line: &usize| Finding::new("unsafe-place", file.at(*line), "expected no `unsafe` here");
        findings.extend(found.code.iter().chain(&found.exceptions).map(finding));
    }
    for &line in &found.exceptions {
        let text = file.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        if text.split_once("//").is_none_or(|(_, reason)| reason.trim().len() < SENTENCE_CHARS) {
            let message = "expected a sentence beside the exception for unsafe code";
            findings.push(Finding::new("unsafe-reason", file.at(line), message));
        }
    }
    findings
}

/// Lines with `unsafe` code, and lines that allow it.
#[derive(Default)]
struct Unsafe {
    code: Vec<usize>,
    exceptions: Vec<usize>,
}

impl Unsafe {
    fn add(&mut self, span: Span) {
        self.code.push(span.start().line);
    }
}

impl<'ast> Visit<'ast> for Unsafe {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.add(block.span());
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if signature.unsafety.is_some() {
            self.add(signature.span());
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.unsafety.is_some() {
            self.add(item.span());
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if item.unsafety.is_some() {
            self.add(item.span());
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        if item.unsafety.is_some() {
            self.add(item.span());
        }
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let lifts = attribute.path().is_ident("allow") || attribute.path().is_ident("expect");
        let names_it = |list: &syn::MetaList| list.tokens.to_string().split(',').any(|t| t.trim() == "unsafe_code");
        if lifts && attribute.meta.require_list().is_ok_and(names_it) {
            self.exceptions.push(attribute.span().start().line);
        }
        visit::visit_attribute(self, attribute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let file = TextFile { path: path.to_string(), text: text.to_string(), rust: None };
        let rust = syn::parse_file(text).expect("it parses");
        check_file(&file, &rust).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn unsafe_code_stands_where_running_needs_it() {
        let block = "fn f() { unsafe { g() } }";
        assert!(rules("crates/hlo-run/src/cuda/blas.rs", block).is_empty());
        assert_eq!(rules("crates/hlo-gpu/src/lower/dot.rs", block), ["unsafe-place"]);
        assert_eq!(rules("crates/hlo-eval/src/kernels/dot.rs", block), ["unsafe-place"]);
        for other in ["unsafe fn f() {}", "unsafe impl Send for T {}", "unsafe trait T {}", "unsafe extern \"C\" {}"] {
            assert_eq!(rules("crates/hlo-ir/src/lib.rs", other), ["unsafe-place"], "{other}");
        }
        assert!(rules("crates/hlo-ir/src/lib.rs", "// unsafe\nfn f() { g(\"unsafe\") }").is_empty());
    }

    #[test]
    fn an_exception_has_a_sentence() {
        let path = "crates/hlo-run/src/host/library.rs";
        assert!(rules(path, "#![allow(unsafe_code)] // Kernels are loaded as a shared object.\n").is_empty());
        assert_eq!(rules(path, "#![allow(unsafe_code)] // why\n"), ["unsafe-reason"]);
        assert_eq!(rules(path, "#![allow(unsafe_code)]\n"), ["unsafe-reason"]);
        assert_eq!(rules("crates/hlo-gpu/src/lib.rs", "#![allow(unsafe_code)]\n"), ["unsafe-place", "unsafe-reason"]);
        assert!(rules("crates/hlo-gpu/src/lib.rs", "#![forbid(unsafe_code)]\n").is_empty());
    }
}
