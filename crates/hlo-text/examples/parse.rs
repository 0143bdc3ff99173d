//! Parses the files named on the command line and prints each one's speed in CPU time, or its errors.

/// Nanoseconds that this thread ran (Linux); the wall clock means little on a busy machine.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
}

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
            drop(last);
            let start_ns = cpu_ns();
            last = hlo_text::parse_bytes(&bytes);
            best_s = best_s.min((cpu_ns() - start_ns) * 1e-9);
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
