//! The lines that `bench` prints.

use super::measure::Sample;

/// The head of the table.
pub(super) const HEADER: &str = "\
file                              MB  thousand    what         ours MB/s        thousand/s  XLA MB/s          ratio
                                      instrs.                  best   median    instrs.     best   median";

/// A module's lines.
pub(super) fn rows(sample: &Sample, peak_bytes: Option<u64>) -> String {
    let name = sample.file.file_name().unwrap_or_default().to_string_lossy();
    let (bytes, instructions) = (sample.text.len() as f64, sample.n_instructions as f64);
    let mut out = String::new();
    let whole_s: Vec<f64> = sample.parse_s.iter().zip(&sample.verify_s).map(|(p, v)| p + v).collect();
    for (what, ours, xla) in [
        ("parse", &sample.parse_s, &sample.xla_parse_s),
        ("parse+verify", &whole_s, &sample.xla_parse_s),
        ("print", &sample.print_s, &sample.xla_print_s),
    ] {
        let rate = |s: Option<f64>| s.map_or("-".into(), |s| format!("{:.1}", bytes / s / 1e6));
        let per_second = best(ours).map_or("-".into(), |s| format!("{:.0}", instructions / s / 1e3));
        let ratio = best(ours).zip(best(xla)).map_or("-".into(), |(o, x)| format!("{:.1}x", x / o));
        out += &format!(
            "{name:30} {:>6.2} {:>8.1}   {what:12} {:>7} {:>7} {per_second:>10}   {:>7} {:>7} {ratio:>8}\n",
            bytes / 1e6,
            instructions / 1e3,
            rate(best(ours)),
            rate(median(ours)),
            rate(best(xla)),
            rate(median(xla)),
        );
    }
    match peak_bytes {
        Some(peak) => {
            let share = peak as f64 / bytes;
            out + &format!(
                "{name:30} peak memory of --verify-only: {:.1} MB, {share:.1} x the text\n",
                peak as f64 / 1e6
            )
        }
        None => out + &format!("{name:30} peak memory: not measured (hlo-opt --verify-only did not succeed)\n"),
    }
}

fn best(seconds: &[f64]) -> Option<f64> {
    seconds.iter().copied().min_by(f64::total_cmp)
}

fn median(seconds: &[f64]) -> Option<f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
