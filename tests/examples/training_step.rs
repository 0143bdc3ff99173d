//! Prints a random training step: `cargo run -p hlo-tests --example training_step -- SEED [STEPS]`.

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<u64>().ok());
    let seed = args.next().unwrap_or(0);
    let n_steps = args.next().unwrap_or(14) as usize;
    print!("{}", hlo_tests::training_step::training_step(seed, n_steps).text);
}
