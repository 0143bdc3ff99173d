//! Parses and verifies the files named on the command line and prints each one's speed in CPU time, or its errors.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

/// Nanoseconds that this thread ran; the wall clock means little on a busy machine.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// What `work` gives, and the smaller of `best_s` and its seconds.
fn timed<T>(best_s: f64, work: impl FnOnce() -> T) -> (T, f64) {
    let start_ns = cpu_ns();
    let value = black_box(work());
    (value, best_s.min((cpu_ns() - start_ns) * 1e-9))
}

fn main() {
    for path in std::env::args().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else {
            println!("{path}: cannot be read");
            continue;
        };
        let n_rounds = if bytes.len() > 1 << 20 { 15 } else { 3 };
        let (mut parse_s, mut verify_s) = (f64::MAX, f64::MAX);
        for round in 1..=n_rounds {
            let parsed;
            (parsed, parse_s) = timed(parse_s, || hlo_text::parse_bytes(&bytes));
            let diags = match parsed {
                Ok(parsed) => {
                    let verified;
                    (verified, verify_s) = timed(verify_s, || hlo_ir::verify::verify(&parsed.module));
                    if round == n_rounds {
                        let n = parsed.module.n_instructions();
                        let (mb, shapes) = (bytes.len() as f64 / 1e6, parsed.module.shapes.len());
                        print!("{path}: {mb:.2} MB, {n} instructions, {shapes} shapes, {:.0} MB/s", mb / parse_s);
                        println!(", verified in {:.0} ns an instruction", verify_s * 1e9 / n.max(1) as f64);
                    }
                    verified.err()
                }
                Err(diags) => Some(diags),
            };
            if let Some(diags) = diags {
                print!("{}", hlo_text::render(&diags, &path, &String::from_utf8_lossy(&bytes), false));
                break;
            }
        }
    }
}
