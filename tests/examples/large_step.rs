//! Prints a training step of a size: `cargo run -p hlo-tests --example large_step -- step|clipped|loop INSTRUCTIONS`.

use hlo_tests::large_step::{Kind, large_step};

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = match args.next().as_deref() {
        Some("clipped") => Kind::Clipped,
        Some("loop") => Kind::Loop,
        _ => Kind::Step,
    };
    let n_instructions = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    print!("{}", large_step(kind, n_instructions));
}
