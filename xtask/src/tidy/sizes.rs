//! Files of at most 800 lines, half of them of at most 300; functions of at most 120, nine in ten of at most 45.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::source::Tree;

const FILE_MOST: usize = 800;
const FILE_MEDIAN: usize = 300;
const FUNCTION_MOST: usize = 120;
const FUNCTION_P90: usize = 45;
const BAD_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];

/// Findings about lengths and file names.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut files, mut functions) = (Vec::new(), Vec::new());
    for (file, rust) in tree.rust() {
        let lines = file.text.lines().count();
        files.push(lines);
        if lines > FILE_MOST {
            findings.push(Finding::new(
                "file-length",
                file.at(1),
                format!("expected at most {FILE_MOST} lines, found {lines}"),
            ));
        }
        let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        let folder = file.path.rsplit('/').nth(1).unwrap_or_default();
        if BAD_NAMES.contains(&stem) || BAD_NAMES.contains(&folder) {
            findings.push(Finding::new("file-name", file.path.as_str(), "expected a name that says what is inside"));
        }
        let mut found = Functions::default();
        found.visit_file(rust);
        for (name, line, length) in found.found {
            functions.push(length);
            if length > FUNCTION_MOST {
                let message = format!("expected at most {FUNCTION_MOST} lines, found {length} in `{name}`");
                findings.push(Finding::new("function-length", file.at(line), message));
            }
        }
    }
    findings.extend(check_share("file-median", "half of the files", &mut files, 0.5, FILE_MEDIAN));
    findings.extend(check_share("function-p90", "nine functions in ten", &mut functions, 0.9, FUNCTION_P90));
    findings
}

fn check_share(rule: &'static str, which: &str, lengths: &mut [usize], share: f64, most: usize) -> Option<Finding> {
    lengths.sort_unstable();
    let index = (lengths.len() as f64 * share) as usize;
    let length = *lengths.get(index.min(lengths.len().saturating_sub(1)))?;
    (length > most)
        .then(|| Finding::new(rule, "(all)", format!("expected {which} within {most} lines, found {length}")))
}

/// Every function with a body: name, first line, lines.
#[derive(Default)]
struct Functions {
    found: Vec<(String, usize, usize)>,
}

impl Functions {
    fn add(&mut self, name: &syn::Ident, from: Span, to: Span) {
        let (first, last) = (from.start().line, to.end().line);
        self.found.push((name.to_string(), first, last + 1 - first));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig.ident, item.sig.span(), item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, item.sig.span(), item.block.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig.ident, item.sig.span(), block.span());
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let file = syn::parse_file("/// doc\nfn a() {\n    1;\n}\nimpl T { fn b() {} }\n").expect("it parses");
        let mut found = Functions::default();
        found.visit_file(&file);
        assert_eq!(found.found, [("a".into(), 2, 3), ("b".into(), 5, 1)]);
    }
}
