//! Quantities as people read them.

/// Where a report has no number.
pub(crate) const UNKNOWN: &str = "–";

/// Bytes, scaled.
pub(crate) fn bytes(n: u64) -> String {
    let scaled = |shift: u32| n as f64 / (1u64 << shift) as f64;
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", scaled(10)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", scaled(20)),
        _ => format!("{:.1} GiB", scaled(30)),
    }
}

/// Nanoseconds as microseconds.
pub(crate) fn microseconds(ns: f64) -> String {
    if ns.is_finite() { format!("{:.1} µs", ns / 1e3) } else { UNKNOWN.into() }
}

/// Seconds, scaled.
pub(crate) fn seconds(s: f64) -> String {
    match s {
        _ if !s.is_finite() => UNKNOWN.into(),
        _ if s < 10e-3 => format!("{:.1} µs", s * 1e6),
        _ if s < 10.0 => format!("{:.1} ms", s * 1e3),
        _ => format!("{s:.1} s"),
    }
}

/// How often something runs: whole where it is.
pub(crate) fn count(n: f64) -> String {
    if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.1}") }
}

/// How much more or less the second is than the first, in percent; `=` where it is as much.
pub(crate) fn change(before: f64, after: f64) -> String {
    if before == after {
        return "=".into();
    }
    let percent = (after / before - 1.0) * 100.0;
    if !percent.is_finite() {
        return "new".into();
    }
    let sign = if percent < 0.0 { '−' } else { '+' };
    let size = percent.abs();
    match size {
        _ if size < 0.05 => "=".into(),
        _ if size < 10.0 => format!("{sign}{size:.1} %"),
        _ => format!("{sign}{size:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_scaled() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 20), "8.0 MiB");
        assert_eq!(microseconds(1234.0), "1.2 µs");
        assert_eq!(microseconds(f64::NAN), "–");
        assert_eq!([650.2e-6, 9.9994e-3, 0.0123, 12.0].map(seconds), ["650.2 µs", "9999.4 µs", "12.3 ms", "12.0 s"]);
        assert_eq!((count(3.0).as_str(), count(2.5).as_str()), ("3", "2.5"));
    }

    #[test]
    fn changes_have_a_sign() {
        assert_eq!(change(100.0, 65.0), "−35 %");
        assert_eq!(change(100.0, 101.5), "+1.5 %");
        assert_eq!(change(100.0, 100.01), "=");
        assert_eq!(change(0.0, 0.0), "=");
        assert_eq!(change(0.0, 1.0), "new");
        assert_eq!(change(7.0, 0.0), "−100 %");
    }
}
