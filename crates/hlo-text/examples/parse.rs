//! Parses the files named on the command line and prints each one's speed, or its errors.

use std::time::Instant;

fn main() {
    for path in std::env::args().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else {
            println!("{path}: cannot be read");
            continue;
        };
        let mut best_s = f64::MAX;
        let n_rounds = if bytes.len() > 1 << 20 { 15 } else { 3 };
        let mut last = hlo_text::parse_bytes(&bytes);
        for _ in 1..n_rounds {
            let start = Instant::now();
            last = hlo_text::parse_bytes(&bytes);
            best_s = best_s.min(start.elapsed().as_secs_f64());
        }
        match last {
            Ok(parsed) => {
                let n = parsed.module.n_instructions();
                let (mb, shapes) = (bytes.len() as f64 / 1e6, parsed.module.shapes.len());
                println!("{path}: {mb:.2} MB, {n} instructions, {shapes} shapes, {:.0} MB/s", mb / best_s);
            }
            Err(diags) => print!("{}", hlo_text::render(&diags, &path, &String::from_utf8_lossy(&bytes), false)),
        }
    }
}
