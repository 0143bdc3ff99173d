//! Decisions of one kind: the same action for the same reason, names and numbers aside.

use hlo_pass::report::{Decision, PredictedFor};
use hlo_spmd::CollectiveChange;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Decisions that are told together.
pub(super) struct Group<'r> {
    /// The largest first.
    pub decisions: Vec<&'r Decision>,
    /// Bytes of what they are about, together.
    pub bytes: u64,
    /// Whether all have the same reason, word for word.
    pub has_one_reason: bool,
    /// Their collectives, those of one kind as one: the instruction is `12 all-reduce`, bytes and times are sums.
    pub collectives: Vec<CollectiveChange>,
    /// What the predicted times are times of.
    pub predicted_for: PredictedFor,
    /// Sums of the predicted times of what was there and of what is there now, in nanoseconds; none where one has none, and of several decisions
    /// that tell the time of the whole step.
    pub predicted_ns: [Option<f64>; 2],
}

/// Groups in the order of their first members.
pub(super) fn groups(decisions: &[Decision]) -> Vec<Group<'_>> {
    let mut numbers: HashMap<(&str, String), usize> = HashMap::new();
    let mut members: Vec<Vec<&Decision>> = Vec::new();
    for decision in decisions {
        let key = (decision.action.as_str(), template(&decision.reason));
        let number = *numbers.entry(key).or_insert(members.len());
        if number == members.len() {
            members.push(Vec::new());
        }
        members[number].push(decision);
    }
    members.into_iter().map(Group::of).collect()
}

impl<'r> Group<'r> {
    fn of(mut decisions: Vec<&'r Decision>) -> Group<'r> {
        decisions.sort_by_key(|decision| Reverse(decision.bytes));
        let step = decisions.iter().find(|decision| decision.predicted_for == PredictedFor::Step);
        let sum = |of: fn(&Decision) -> Option<f64>| match step {
            Some(_) if decisions.len() > 1 => None,
            Some(_) | None => decisions.iter().map(|decision| of(decision)).sum(),
        };
        Group {
            bytes: decisions.iter().fold(0, |sum, decision| sum.saturating_add(decision.bytes)),
            has_one_reason: decisions.windows(2).all(|two| two[0].reason == two[1].reason),
            collectives: collectives(&decisions),
            predicted_for: step.map(|step| step.predicted_for).unwrap_or_default(),
            predicted_ns: [sum(|decision| decision.predicted_before_ns), sum(|decision| decision.predicted_after_ns)],
            decisions,
        }
    }
}

/// The collectives of all decisions, those that differ in names, numbers and sizes alone added up.
fn collectives(decisions: &[&Decision]) -> Vec<CollectiveChange> {
    let mut kinds: Vec<(String, usize, CollectiveChange)> = Vec::new();
    let mut numbers: HashMap<(&'static str, &str, u64, String), usize> = HashMap::new();
    for change in decisions.iter().flat_map(|decision| &decision.collectives) {
        let key = (change.change, change.op.as_str(), change.group_size, template(&change.because));
        let because = key.3.clone();
        match numbers.get(&key) {
            Some(&number) => {
                let (_, n, sum) = &mut kinds[number];
                *n += 1;
                sum.bytes = sum.bytes.saturating_add(change.bytes);
                sum.predicted_ns = sum.predicted_ns.zip(change.predicted_ns).map(|(a, b)| a + b);
            }
            None => {
                numbers.insert(key, kinds.len());
                kinds.push((because, 1, change.clone()));
            }
        }
    }
    let told = |(because, n, change): (String, usize, CollectiveChange)| CollectiveChange {
        instruction: match n {
            1 => format!("{} %{}", change.op, change.instruction),
            _ => format!("{n} {}", change.op),
        },
        because: if n == 1 { change.because.clone() } else { because },
        ..change
    };
    kinds.into_iter().map(told).collect()
}

/// A reason without its names and numbers: each name becomes `%…`, each number `N`.
fn template(reason: &str) -> String {
    let mut out = String::with_capacity(reason.len());
    let mut rest = reason;
    while let Some(first) = rest.chars().next() {
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
        let (text, length) = match first {
            '%' => ("%…", 1 + rest[1..].find(|c| !is_of_name(c)).unwrap_or(rest.len() - 1)),
            '0'..='9' => {
                let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
                ("N", rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()))
            }
            _ => ("", first.len_utf8()),
        };
        out.push_str(if text.is_empty() { &rest[..length] } else { text });
        rest = &rest[length..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(action: &str, reason: &str, bytes: u64, change: Option<(&'static str, u64)>) -> Decision {
        let change = change.map(|(change, bytes)| CollectiveChange {
            change,
            op: "all-reduce".into(),
            instruction: format!("ar.{bytes}"),
            because: format!("sums `%g.{bytes}`"),
            bytes,
            group_size: 8,
            predicted_ns: Some(10.0),
        });
        Decision {
            action: action.into(),
            reason: reason.into(),
            bytes,
            collectives: change.into_iter().collect(),
            predicted_before_ns: Some(1.0),
            ..Decision::default()
        }
    }

    #[test]
    fn names_and_numbers_are_left_out_of_a_template() {
        assert_eq!(template("6 values round `%psum.18` on 1/8 of them"), "N values round `%…` on N/N of them");
        assert_eq!(template("a scalar"), "a scalar");
        assert_eq!(template("100 %"), "N %…");
        assert_eq!(template(""), "");
    }

    #[test]
    fn decisions_of_one_kind_are_added_up() {
        let decisions = [
            decision("left", "a scalar", 4, None),
            decision("sharded", "6 values of %a", 64, Some(("removed", 64))),
            decision("left", "a scalar", 8, None),
            decision("sharded", "7 values of %b", 128, Some(("removed", 128))),
            decision("sharded", "no loop", 1, None),
        ];
        let groups = groups(&decisions);
        let sizes: Vec<(usize, u64, bool)> =
            groups.iter().map(|group| (group.decisions.len(), group.bytes, group.has_one_reason)).collect();
        assert_eq!(sizes, [(2, 12, true), (2, 192, false), (1, 1, true)]);
        assert_eq!(groups[1].decisions[0].bytes, 128);
        let [sum] = groups[1].collectives.as_slice() else { panic!("one kind") };
        assert_eq!((sum.instruction.as_str(), sum.bytes, sum.predicted_ns), ("2 all-reduce", 192, Some(20.0)));
        assert_eq!(sum.because, "sums `%…`");
        assert_eq!(groups[1].predicted_ns, [Some(2.0), None]);
    }

    #[test]
    fn times_of_the_whole_step_are_not_added_up() {
        let times = |n: usize| {
            let decision = |_| decision("left", "a scalar", 4, None).with_step_times([3.0, 2.0]);
            let decisions: Vec<Decision> = (0..n).map(decision).collect();
            groups(&decisions)[0].predicted_ns
        };
        assert_eq!([times(1), times(2)], [[Some(3.0), Some(2.0)], [None, None]]);
    }
}
