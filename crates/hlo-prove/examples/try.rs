fn main() {
    std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(|| {
            let a: Vec<String> = std::env::args().collect();
            let read = |p: &str| hlo_text::parse_module(&std::fs::read_to_string(p).unwrap()).unwrap().module;
            let (x, y) = (read(&a[1]), read(&a[2]));
            let t = std::time::Instant::now();
            let p = hlo_prove::prove(&x, &y, &Default::default()).unwrap();
            println!(
                "{} of {} outputs, {} terms, {:.1} ms",
                p.n_proved(),
                p.outputs.len(),
                p.n_terms,
                t.elapsed().as_secs_f64() * 1e3
            );
            let n: usize = a.get(3).map_or(3, |s| s.parse().unwrap());
            for o in p.outputs.iter().filter(|o| o.verdict != hlo_prove::Verdict::Proved).take(n) {
                println!("  {} {}", o.leaf, o.difference.as_ref().unwrap());
            }
            let mut rules: Vec<_> = p.outputs.iter().flat_map(|o| o.modulo.iter().map(|r| r.name)).collect();
            rules.sort();
            rules.dedup();
            println!("  modulo {rules:?}");
        })
        .unwrap()
        .join()
        .unwrap();
}
