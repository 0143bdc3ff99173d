//! Damages samples and stops at the first input that panics, is slow or does not print to the same text again.
//!
//! The first argument is the CPU time in seconds, the second the seed (default 1). The input found goes to stdout.

#[path = "../tests/mutate/mod.rs"]
mod mutate;

use mutate::{Random, check, cpu_time, mutate, seeds};
use std::io::Write;
use std::time::Duration;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap_or(60));
    let seconds = args.next().unwrap_or(60);
    let first_seed = args.next().unwrap_or(1) << 32;
    let seeds = seeds(&["ops", "syntax", "invalid/parse", "invalid/verify", "programs"], 1 << 17);
    let start = cpu_time();
    let (mut n, mut slowest) = (0u64, Duration::ZERO);
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    while cpu_time() - start < Duration::from_secs(seconds) {
        let text = mutate(&seeds, &mut Random(first_seed + n));
        let outcome = std::panic::catch_unwind(|| check(&text));
        let problem = match outcome {
            Ok(Ok(time)) => {
                slowest = slowest.max(time);
                // 1 MB/s is a hundredth of the usual speed.
                let bound = Duration::from_millis(500) + Duration::from_micros(text.len() as u64);
                (time > bound).then(|| format!("took {time:?} for {} bytes", text.len()))
            }
            Ok(Err(error)) => Some(error),
            Err(_) => Some("panicked".into()),
        };
        if let Some(problem) = problem {
            eprintln!("input {n}: {problem}");
            if let Err(error) = std::io::stdout().write_all(&text) {
                eprintln!("stdout: {error}");
            }
            std::process::exit(1);
        }
        n += 1;
    }
    eprintln!("{n} inputs in {seconds} s, slowest parse {slowest:?}");
}
