//! Seconds to read and to write a proto, a line for each repetition: `speed FILE REPETITIONS`.

use std::time::Instant;

fn main() {
    let mut words = std::env::args().skip(1);
    let (Some(path), Some(n)) = (words.next(), words.next().and_then(|n| n.parse::<usize>().ok())) else {
        eprintln!("usage: speed FILE REPETITIONS");
        std::process::exit(2);
    };
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            eprintln!("{path}: {error}");
            std::process::exit(1);
        }
    };
    for _ in 0..n {
        let start = Instant::now();
        match hlo_proto::read(&bytes) {
            Ok(parsed) => {
                let read = start.elapsed().as_secs_f64();
                let start = Instant::now();
                let written = hlo_proto::write(&parsed.module, &parsed.kept);
                println!("{read:.6} {:.6} {}", start.elapsed().as_secs_f64(), written.bytes.len());
            }
            Err(diag) => println!("{}", diag.message),
        }
    }
}
