//! Results of cases, and how they are shown.

use serde_json::{Value, json};

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// It was run and holds.
    Passed,
    /// It does not hold, or could not be judged.
    Failed,
    /// It does not apply to this module; the reason says why.
    Skipped,
}

/// One case of one module.
pub(crate) struct CaseResult {
    /// The module's file name.
    pub module: String,
    /// The case's name, as `text.auto`.
    pub case: String,
    /// How it ended.
    pub status: Status,
    /// Why it failed or was skipped.
    pub reason: String,
    /// Largest and median error over the outputs, and the tolerance; relative to an output's largest element.
    pub errors: Option<[f64; 3]>,
    /// Wall-clock time.
    pub seconds: f64,
}

impl CaseResult {
    /// A failure that the worker itself could not tell.
    pub(super) fn failed(module: &str, case: &str, reason: String, seconds: f64) -> Self {
        Self { module: module.into(), case: case.into(), status: Status::Failed, reason, errors: None, seconds }
    }

    /// As [`CaseResult::from_json`] reads it; the module is told elsewhere.
    pub(super) fn as_json(&self) -> Value {
        let status = match self.status {
            Status::Passed => "passed",
            Status::Failed => "failed",
            Status::Skipped => "skipped",
        };
        let [worst, median, tolerance] = self.errors.map_or([None; 3], |errors| errors.map(Some));
        let median = median.filter(|m| m.is_finite());
        json!({
            "case": self.case, "status": status, "reason": self.reason, "worst": worst, "median": median,
            "tolerance": tolerance, "seconds": self.seconds,
        })
    }

    /// A worker's line about a case.
    pub(super) fn from_json(module: &str, value: &Value) -> Option<Self> {
        let status = match value.get("status")?.as_str()? {
            "passed" => Status::Passed,
            "skipped" => Status::Skipped,
            _ => Status::Failed,
        };
        let number = |key: &str| value.get(key).and_then(Value::as_f64);
        let errors = number("worst").zip(number("tolerance"));
        Some(Self {
            module: module.into(),
            case: value.get("case")?.as_str()?.into(),
            status,
            reason: value.get("reason").and_then(Value::as_str).unwrap_or_default().into(),
            errors: errors.map(|(worst, tolerance)| [worst, number("median").unwrap_or(f64::INFINITY), tolerance]),
            seconds: number("seconds").unwrap_or(0.0),
        })
    }
}

/// The table of all results, and the line of counts at its end.
pub(super) fn render(results: &[CaseResult]) -> String {
    let wide =
        |get: fn(&CaseResult) -> &str, least: usize| results.iter().map(|r| get(r).len()).max().unwrap_or(0).max(least);
    let (module, case) = (wide(|r| &r.module, 6), wide(|r| &r.case, 4));
    let mut out = format!(
        "{:module$}  {:case$}  result   {:>8} {:>8} {:>8} {:>8}\n",
        "module", "case", "worst", "median", "limit", "seconds"
    );
    for r in results {
        let status = match r.status {
            Status::Passed => "passed",
            Status::Failed => "FAILED",
            Status::Skipped => "skipped",
        };
        let [worst, median, tolerance] = match r.errors {
            Some(errors) => errors.map(|e| if e > 1e300 { "inf".into() } else { format!("{e:.1e}") }),
            None => [const { String::new() }; 3],
        };
        let line = format!(
            "{:module$}  {:case$}  {status:7}  {worst:>8} {median:>8} {tolerance:>8} {:>8.1}  {}",
            r.module, r.case, r.seconds, r.reason
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let count = |status: Status| results.iter().filter(|r| r.status == status).count();
    let (passed, failed, skipped) = (count(Status::Passed), count(Status::Failed), count(Status::Skipped));
    out + &format!("{passed} passed, {failed} failed, {skipped} skipped\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_case_is_not_a_passed_one() {
        let line = serde_json::json!({"case": "pass.xla", "status": "skipped", "reason": "unchanged", "seconds": 0.5});
        let skipped = CaseResult::from_json("m.hlo", &line).expect("a case line");
        let failed = CaseResult::failed("m.hlo", "eval", "died".into(), 1.0);
        let text = render(&[skipped, failed]);
        assert!(text.ends_with("0 passed, 1 failed, 1 skipped\n"), "{text}");
        assert!(text.contains("FAILED") && text.contains("unchanged"), "{text}");
    }
}
