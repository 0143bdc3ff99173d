//! Plans a global program and prints what the search says:
//! `plan_file FILE CLUSTER DEVICE [AXES [EFFORT [GAP [MESHES [MEMORY_GB [OUT [PINS]]]]]]]`. The annotated program goes to `OUT`.

use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::time::Machine;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_search::{Asked, Evenness, SearchOptions, Searched, plan_parallel, read_meshes};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |k: usize, default: &str| words.get(k).cloned().unwrap_or_else(|| default.into());
    let bytes = std::fs::read(word(0, ""))?;
    let parsed = hlo_text::parse_bytes(&bytes).map_err(|errors| format!("{errors:?}"))?;
    let read = |name: String| if name.ends_with(".toml") { std::fs::read_to_string(name) } else { Ok(name) };
    let machine = Machine::from_args(&read(word(1, ""))?, &read(word(2, "h200"))?)?;
    let n_devices = machine.cluster().map_or(8, |cluster| i64::from(cluster.n_devices()));
    let options = SearchOptions {
        machine,
        n_devices,
        effort: (word(4, "1").parse::<f64>()? * 1e9) as u64,
        gap: word(5, "0").parse()?,
        most_axes: word(3, "3").parse()?,
        even: Evenness::None,
        meshes: read_meshes(&word(6, ""), n_devices)?,
        pins: words.get(9).map(std::fs::read_to_string).transpose()?.unwrap_or_default(),
        draw: None,
        why: Vec::new(),
        dumps_problem: false,
        plan: "best".into(),
        memory_limit: Some((word(7, "0").parse::<f64>()? * 1e9) as u64).filter(|&bytes| bytes > 0),
    };
    let start = Instant::now();
    let progress = |line: &str| eprintln!("{line}");
    let asked = Asked { options: &options, given: None, is_over: &|| false, progress: &progress };
    match plan_parallel(&parsed.module, &asked, FrequencyOptions::default())? {
        Searched::Nothing(why) => println!("{why}"),
        Searched::Plan(plan) => {
            if let Some(out) = words.get(8).filter(|out| !out.is_empty()) {
                std::fs::write(out, print_module(&plan.module, &PrintOptions::default()))?;
            }
            let report = plan.report;
            let gap = 100.0 * report.gap();
            let gb = report.peak_bytes as f64 / 1e9;
            println!(
                "{:.2} s: mesh {}, {:.3} ms, gap {gap:.3} %, {gb:.3} GB",
                start.elapsed().as_secs_f64(),
                report.mesh,
                report.step_s * 1e3
            );
            for baseline in &report.baselines {
                let ratio = baseline.step_s.map(|s| s / report.step_s);
                println!("  {} on {}: {ratio:?}", baseline.name, baseline.mesh);
            }
            for mesh in &report.meshes {
                println!("  {mesh:?}");
            }
            for param in &report.params {
                println!("  {} {:?} {} {}", param.name, param.dims, param.state, param.bytes);
            }
        }
    }
    Ok(())
}
