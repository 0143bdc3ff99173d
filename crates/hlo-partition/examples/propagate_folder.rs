//! Runs `propagate-shardings` on all programs of a folder: `propagate_folder FOLDER [ORDER]` writes what becomes of each `NAME.hlo` to
//! `NAME.out`, or to `NAME.error` why nothing does. `cargo xtask propagate-check` compares it with what Shardy or XLA makes of the same program.

use hlo_analysis::Analyses;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::options::Options;
use hlo_pass::pipeline::OptionValue;
use hlo_pass::report::PassReport;
use hlo_pass::{PassCx, Target};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("expected a folder")?;
    let order = words.next().unwrap_or_else(|| "shardy".into());
    let mut files: Vec<_> = std::fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(|file| file.file_name());
    for path in files.into_iter().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "hlo")) {
        match propagated(&path, &order) {
            Ok(text) => std::fs::write(path.with_extension("out"), text)?,
            Err(error) => std::fs::write(path.with_extension("error"), error.to_string())?,
        }
    }
    Ok(())
}

/// The text of a program after the pass.
fn propagated(path: &Path, order: &str) -> Result<String, Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let name = path.display().to_string();
    let parsed = hlo_text::parse_module(&text);
    let mut module = parsed.map_err(|diags| hlo_text::render(&diags, &name, &text, false))?.module;
    let info = hlo_partition::PASSES.iter().find(|info| info.name == "propagate-shardings").ok_or("no such pass")?;
    let options = Options::check(info.name, info.options, &[("order".into(), OptionValue::Text(order.into()))])
        .map_err(|error| error.to_string())?;
    let pass = (info.build)(&options)?;
    let mut report = PassReport::new(info.name);
    let mut analyses = Analyses::default();
    let target = Target::unnamed()?;
    let mut cx = PassCx::new(&mut analyses, &mut report, &target);
    pass.run(&mut module, &mut cx).map_err(|error| format!("{name}: {}", error.diagnostic.message))?;
    hlo_ir::verify::verify(&module).map_err(|diags| format!("{name}: {diags:?}"))?;
    Ok(print_module(&module, &PrintOptions::default()))
}
