//! Which crate may depend on which. Pass families are siblings and never import each other.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Finding;

/// A crate and the crates below it; what those may use, it may use too.
const ARROWS: &[(&str, &[&str])] = &[
    ("hlo-ir", &[]),
    ("hlo-cluster", &[]),
    ("hlo-text", &["hlo-ir"]),
    ("hlo-proto", &["hlo-ir"]),
    ("hlo-eval", &["hlo-ir"]),
    ("hlo-prove", &["hlo-ir"]),
    ("hlo-rules", &["hlo-ir"]),
    ("hlo-mesh", &["hlo-ir", "hlo-cluster"]),
    ("hlo-analysis", &["hlo-mesh"]),
    ("hlo-spmd", &["hlo-analysis"]),
    ("hlo-pass", &["hlo-spmd"]),
    ("hlo-simplify", &["hlo-pass"]),
    ("hlo-wus", &["hlo-pass", "hlo-cluster"]),
    ("hlo-collectives", &["hlo-pass", "hlo-cluster"]),
    ("hlo-partition", &["hlo-pass", "hlo-cluster"]),
    ("hlo-search", &["hlo-pass", "hlo-cluster", "hlo-rules"]),
    ("hlo-gpu", &["hlo-pass", "hlo-cluster"]),
    ("hlo-audit", &["hlo-simplify", "hlo-collectives", "hlo-wus"]),
    ("hlo-run", &["hlo-gpu"]),
];

/// Packages at the top: they may use everything.
const TOPS: [&str; 6] = ["hlo-opt", "hlo-jax", "hlo-pjrt", "hlo-tests", "tests", "xtask"];

/// What every crate's own tests may use besides, if no circle comes of it.
const FOR_TESTS: [&str; 2] = ["hlo-text", "hlo-eval"];

/// Findings about the members' dependencies, from `cargo metadata`.
pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let packages = metadata.get("packages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let members: BTreeSet<&str> = packages.iter().filter_map(|p| p.get("name")?.as_str()).collect();
    packages.iter().flat_map(|package| check_package(package, &members)).collect()
}

fn check_package(package: &Value, members: &BTreeSet<&str>) -> Vec<Finding> {
    let name = package.get("name").and_then(Value::as_str).unwrap_or_default();
    let place = format!("{name}/Cargo.toml");
    if TOPS.contains(&name) {
        return Vec::new();
    }
    let Some(allowed) = below(name) else {
        return vec![Finding::new("arrows", place, "expected a row for this crate in the table of arrows, found none")];
    };
    let dependencies = package.get("dependencies").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut findings = Vec::new();
    for dependency in dependencies {
        let to = dependency.get("name").and_then(Value::as_str).unwrap_or_default();
        let for_tests = dependency.get("kind").and_then(Value::as_str) == Some("dev");
        let circle = below(to).is_some_and(|set| set.contains(name));
        let fine = allowed.contains(to) || (for_tests && FOR_TESTS.contains(&to) && !circle);
        if members.contains(to) && !fine {
            let list = allowed.iter().copied().collect::<Vec<_>>().join(", ");
            findings.push(Finding::new(
                "arrows",
                place.clone(),
                format!("expected dependencies among [{list}], found {to}"),
            ));
        }
    }
    findings
}

/// All crates below one, or none if the table does not know it.
fn below(name: &str) -> Option<BTreeSet<&'static str>> {
    let (_, direct) = ARROWS.iter().find(|(from, _)| *from == name)?;
    let mut all: BTreeSet<&'static str> = direct.iter().copied().collect();
    for next in *direct {
        all.extend(below(next).unwrap_or_default());
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn one(name: &str, to: &str, kind: Option<&str>) -> Vec<Finding> {
        let packages = json!({"packages": [
            {"name": name, "dependencies": [{"name": to, "kind": kind}]}, {"name": to, "dependencies": []},
        ]});
        check(&packages)
    }

    #[test]
    fn arrows_go_one_way() {
        assert!(one("hlo-wus", "hlo-ir", None).is_empty());
        assert!(one("hlo-wus", "hlo-eval", Some("dev")).is_empty());
        assert!(one("hlo-run", "hlo-pass", None).is_empty());
        assert_eq!(one("hlo-gpu", "hlo-run", None).len(), 1);
        assert_eq!(one("hlo-wus", "hlo-simplify", None).len(), 1);
        assert_eq!(one("hlo-wus", "hlo-simplify", Some("dev")).len(), 1);
        assert_eq!(one("hlo-ir", "hlo-text", Some("dev")).len(), 1);
        assert_eq!(one("hlo-unheard-of", "hlo-ir", None).len(), 1);
    }
}
