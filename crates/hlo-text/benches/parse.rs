//! How fast HLO text becomes a module, in bytes and instructions. `HLO_BENCH_FILE` names another file to parse.

use divan::counter::{BytesCount, ItemsCount};

fn main() {
    divan::main();
}

/// The file that the benchmark parses: the largest program among the samples unless the environment names another.
fn text() -> Option<String> {
    let named = std::env::var_os("HLO_BENCH_FILE").map(std::path::PathBuf::from);
    let samples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/programs");
    let largest = || {
        let files = std::fs::read_dir(samples).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let hlo = files.filter(|path| path.extension().is_some_and(|e| e == "hlo"));
        hlo.max_by_key(|path| (path.metadata().map_or(0, |m| m.len()), path.clone()))
    };
    std::fs::read_to_string(named.or_else(largest)?).ok()
}

#[divan::bench]
fn parse_and_resolve(bencher: divan::Bencher<'_, '_>) {
    let Some(text) = text() else {
        println!("no file to parse");
        return;
    };
    let n_instructions = hlo_text::parse_module(&text).map_or(0, |parsed| parsed.module.n_instructions());
    bencher
        .counter(BytesCount::of_str(&text))
        .counter(ItemsCount::new(n_instructions))
        .bench(|| hlo_text::parse_module(divan::black_box(&text)));
}
