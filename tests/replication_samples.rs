//! The replication analysis says of every marked line of `ir-samples/analysis/replication` what the mark says.

use crate::lockstep::{parse, samples};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::replication::Replication;
use std::collections::BTreeMap;

/// The marks of a line: what is expected of each leaf; `None` for other comments and lines without one.
fn marks(line: &str) -> Option<Vec<&str>> {
    let (code, comment) = line.split_once("  // ")?;
    let marks: Vec<&str> = comment.split(';').map(str::trim).collect();
    (!code.trim().is_empty()).then_some(marks)
}

/// `replicated`, `unique` or `groups {{…},…}` of a partition of the devices.
fn describe(labels: &[u32]) -> String {
    let mut classes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (device, &label) in labels.iter().enumerate() {
        classes.entry(label).or_default().push(device.to_string());
    }
    if classes.len() == 1 {
        return "replicated".into();
    }
    if classes.len() == labels.len() {
        return "unique".into();
    }
    let groups: Vec<String> = classes.values().map(|members| format!("{{{}}}", members.join(","))).collect();
    format!("groups {{{}}}", groups.join(","))
}

#[test]
fn every_marked_line_is_as_marked() {
    let mut failures = String::new();
    for (path, text) in samples("analysis/replication") {
        let module = parse(&path, &text);
        let facts = Replication::compute(&module, &ParamFacts::default());
        let mut n_marks = 0;
        for (line_idx, line) in text.lines().enumerate() {
            let Some(expected) = marks(line) else { continue };
            let name = line.trim().trim_start_matches("ROOT ").trim_start_matches('%');
            let name = name.split(' ').next().unwrap_or("");
            let all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
            let Some(&inst) = all.clone().find(|&&inst| module.inst_name(inst) == name) else {
                failures.push_str(&format!("{path}:{}: no instruction %{name}\n", line_idx + 1));
                continue;
            };
            let n_leaves = module.shape(inst).n_leaves();
            let found: Vec<String> =
                (0..n_leaves).map(|leaf| facts.classes(inst, leaf).map_or("not reached".into(), describe)).collect();
            n_marks += 1;
            let is_one_for_all = expected.len() == 1 && found.iter().all(|f| *f == expected[0]);
            if found != expected && !is_one_for_all {
                let found = found.join("; ");
                failures.push_str(&format!(
                    "{path}:{}: %{name}: expected {}, found {found}\n",
                    line_idx + 1,
                    expected.join("; ")
                ));
            }
        }
        if n_marks == 0 {
            failures.push_str(&format!("{path}: no line is marked\n"));
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}
