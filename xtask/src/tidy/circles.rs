//! Files of one crate that use each other in a circle, without a reason in one of them.
//!
//! A file uses another if a `use` or a qualified path of it leads there; names that a module re-exports lead to the file
//! that defines them. What a module's file and the files below it use of each other makes no circle: parents re-export
//! their children and hold what the children share. Code of tests does not count.
//!
//! A line `// circle: reason` takes its file out of the graph. A line in a file that is in no circle is a finding too.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::module_paths::{Modules, SourceModule};
use super::source::Tree;

const MARK: &str = "// circle: ";

/// The shortest text that counts as a reason.
const REASON_CHARS: usize = 20;

/// Findings about all crates.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<SourceModule>> = BTreeMap::new();
    for (file, rust) in tree.rust().filter(|(file, _)| !tree.is_only_tests(file)) {
        if let Some((root, rest)) = file.path.split_once("/src/") {
            crates.entry(root).or_default().push(SourceModule::new(file, rest, rust));
        }
    }
    crates.into_values().flat_map(|files| check_crate(&Modules::new(files))).collect()
}

/// For each file, the numbers of the files that it uses.
type Uses = Vec<BTreeSet<usize>>;

fn check_crate(modules: &Modules<'_>) -> Vec<Finding> {
    let files = modules.files();
    let uses: Uses = (0..files.len())
        .map(|from| {
            let targets = modules.targets(from).into_iter();
            targets.filter(|&to| to != from && !is_family(&files[from].path, &files[to].path)).collect()
        })
        .collect();
    let mut findings = Vec::new();
    let mut excused = BTreeSet::new();
    for (i, module) in files.iter().enumerate() {
        let Some((line, reason)) = reason(&module.file.text) else { continue };
        let place = module.file.at(line);
        if reason.len() < REASON_CHARS {
            findings.push(Finding::new("circle-reason", place, "expected a reason for the circle"));
        } else if circle_through(&uses, i, &BTreeSet::new()).is_none() {
            findings.push(Finding::new("circle-reason", place, "expected no reason, since the file is in no circle"));
        }
        excused.insert(i);
    }
    let mut told = BTreeSet::new();
    for i in 0..files.len() {
        let Some(circle) = circle_through(&uses, i, &excused) else { continue };
        // One finding for the files of a circle, not one for each of them.
        if circle.iter().all(|member| !told.contains(member)) {
            let names: Vec<&str> = circle.iter().chain([&i]).map(|&member| files[member].file.path.as_str()).collect();
            let message = format!("expected no circle of files without a reason, found {}", names.join(" -> "));
            findings.push(Finding::new("circle", files[i].file.at(1), message));
        }
        told.extend(circle);
    }
    findings
}

/// The line and the reason after [`MARK`].
fn reason(text: &str) -> Option<(usize, &str)> {
    text.lines().enumerate().find_map(|(i, line)| Some((i + 1, line.strip_prefix(MARK)?.trim())))
}

/// Whether one module lies below the other.
fn is_family(a: &[String], b: &[String]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// The shortest circle from a file back to itself that avoids some files: its members, beginning with the file.
fn circle_through(uses: &Uses, start: usize, avoided: &BTreeSet<usize>) -> Option<Vec<usize>> {
    if avoided.contains(&start) {
        return None;
    }
    let mut came_from: BTreeMap<usize, usize> = BTreeMap::new();
    let mut level = vec![start];
    while !level.is_empty() {
        let mut next = Vec::new();
        for from in level {
            for &to in uses[from].iter().filter(|to| !avoided.contains(to)) {
                if to == start {
                    let back = std::iter::successors(Some(from), |at| came_from.get(at).copied());
                    let mut circle: Vec<usize> = back.collect();
                    circle.reverse();
                    return Some(circle);
                }
                if let std::collections::btree_map::Entry::Vacant(entry) = came_from.entry(to) {
                    entry.insert(from);
                    next.push(to);
                }
            }
        }
        level = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::TextFile;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<TextFile> = files
            .iter()
            .map(|(path, text)| TextFile {
                path: format!("crates/x/src/{path}"),
                text: text.to_string(),
                rust: syn::parse_file(text).ok(),
            })
            .collect();
        check(&Tree::of(files)).iter().map(|f| f.to_string().replace("crates/x/src/", "")).collect()
    }

    #[test]
    fn siblings_that_use_each_other_are_a_circle() {
        let root = ("lib.rs", "mod a; mod b; mod c;");
        let found = findings(&[
            root,
            ("a.rs", "use crate::b::f;"),
            ("b.rs", "fn f() { super::c::g() }"),
            ("c.rs", "use super::a;\nfn g() { a::h() }"),
        ]);
        assert_eq!(
            found,
            ["a.rs:1: expected no circle of files without a reason, found a.rs -> b.rs -> c.rs -> a.rs [circle]"]
        );
        assert!(findings(&[root, ("a.rs", "use super::b::f;"), ("b.rs", "use super::c::g;"), ("c.rs", "")]).is_empty());
    }

    #[test]
    fn re_exported_names_lead_to_the_file_that_defines_them() {
        let root = ("lib.rs", "mod a; mod b;");
        let found = findings(&[
            root,
            ("a/mod.rs", "mod deep;\npub use deep::T;"),
            ("a/deep.rs", "use crate::b::U;\npub struct T;"),
            ("b.rs", "use crate::a::T;\npub struct U;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a/deep.rs -> b.rs -> a/deep.rs"), "{found:?}");
        // What else the module's file uses does not matter.
        let found = findings(&[
            root,
            ("a/mod.rs", "mod deep;\npub use deep::T;\nuse crate::b::U;"),
            ("a/deep.rs", "pub struct T;"),
            ("b.rs", "use crate::a::T;\npub struct U;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn parents_and_children_and_tests_are_no_circle() {
        let found = findings(&[
            ("lib.rs", "mod a; mod b; struct S; fn f() { a::f(); b::f() }"),
            ("a.rs", "use super::S; pub fn f() {}\n#[cfg(test)] mod tests { use crate::b::f; }"),
            ("b.rs", "use crate::{S, a::f as g}; pub fn f() {}"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_reason_excuses_a_circle_and_only_that() {
        let files = |mark: &str, other: &str| {
            let a = format!("{mark}\nuse super::b::f;");
            findings(&[("lib.rs", "mod a; mod b;"), ("a.rs", &a), ("b.rs", other)])
        };
        assert!(files("// circle: a grammar's rules call each other", "use super::a::g;").is_empty());
        assert_eq!(
            files("// circle: why", "use super::a::g;"),
            ["a.rs:1: expected a reason for the circle [circle-reason]"]
        );
        let stale = files("// circle: a grammar's rules call each other", "");
        assert_eq!(stale, ["a.rs:1: expected no reason, since the file is in no circle [circle-reason]"]);
    }
}
