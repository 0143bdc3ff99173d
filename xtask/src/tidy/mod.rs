//! `cargo xtask tidy`: rules of the source tree that neither the compiler nor clippy checks.
//!
//! One file per family of rules; each finding names its rule and its place. The rules also run as an ordinary test.

mod arrows;
mod circles;
mod dependencies;
mod io;
mod module_paths;
mod passes;
mod profiles;
mod samples;
mod sizes;
mod source;
mod unsafe_code;
mod wildcards;
mod words;

use std::fmt;

use source::Tree;

/// A place that breaks a rule.
#[derive(Debug)]
pub(crate) struct Finding {
    /// The rule's id.
    pub rule: &'static str,
    /// File, relative to the root, and line where there is one.
    pub place: String,
    /// What was expected and what was found.
    pub message: String,
}

impl Finding {
    /// A finding about a file, or about a line of it.
    fn new(rule: &'static str, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { rule, place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.place, self.message, self.rule)
    }
}

/// Runs the command; false if a rule is broken.
pub(crate) fn run() -> Result<bool, String> {
    let findings = check()?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: no finding"),
        n => println!("tidy: {n} findings"),
    }
    Ok(findings.is_empty())
}

/// All findings, family by family.
fn check() -> Result<Vec<Finding>, String> {
    let tree = Tree::read(&crate::workspace::root())?;
    let metadata = crate::workspace::metadata()?;
    let mut findings = tree.broken();
    findings.extend(arrows::check(&metadata));
    findings.extend(sizes::check(&tree));
    findings.extend(wildcards::check(&tree));
    findings.extend(samples::check(&tree));
    findings.extend(passes::check(&tree));
    findings.extend(words::check(&tree));
    findings.extend(io::check(&tree));
    findings.extend(unsafe_code::check(&tree));
    findings.extend(circles::check(&tree));
    findings.extend(dependencies::check(&tree));
    findings.extend(profiles::check(&tree));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_is_tidy() {
        let findings = super::check().expect("the tree can be read");
        let lines: Vec<String> = findings.iter().map(|f| f.to_string()).collect();
        assert!(lines.is_empty(), "{}", lines.join("\n"));
    }
}
