//! A row for each module and pipeline: what is proved of what the pipeline makes of the module.

use std::collections::BTreeMap;

use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_opt::library::OpenModule;
use hlo_opt::presets::PREPARE;
use hlo_prove::Verdict;

use super::Program;
use super::proof::{Proved, prove};

/// Outputs that are not proved, with the reason: file, pipeline, number of the output.
const KNOWN_UNKNOWNS: [(&str, &str, usize, &str); 0] = [];

/// What is done to a module.
pub(super) struct Pipeline {
    pub(super) name: &'static str,
    /// `pass` or `preset`.
    kind: &'static str,
    text: String,
}

const SHARD: &str = "shard-weight-update{profit=always,min-bytes=0},dce";
const COMBINE: &str = "combine-collectives{mode=variadic}";

/// The pipelines for a module on so many devices.
pub(super) fn pipelines(n_devices: usize) -> Vec<Pipeline> {
    let of = |name, text: String| Pipeline { name, kind: "pass", text };
    let mut all = vec![
        of("shard", format!("{PREPARE},{SHARD}")),
        of("shard, combine", format!("{PREPARE},{SHARD},{COMBINE}")),
        Pipeline { name: "data-parallel", kind: "preset", text: "data-parallel".into() },
    ];
    if n_devices >= 4 && n_devices.is_multiple_of(2) {
        let machine = format!("@machine=[(node,2),(gpu,{})]", n_devices / 2);
        let decompose = "decompose-collectives{min-gain=0}";
        all.push(of("shard, decompose, combine", format!("{machine};{PREPARE},{SHARD},{decompose},{COMBINE}")));
    }
    all
}

impl Pipeline {
    /// The module after the pipeline.
    ///
    /// # Errors
    /// A pass fails.
    pub(super) fn after(&self, before: &OpenModule) -> Result<OpenModule, String> {
        let outcome = before.run(&[(self.kind, self.text.as_str())]);
        outcome.map(|outcome| outcome.module).map_err(|failure| format!("{}: {failure:?}", self.name))
    }
}

/// Reads a module; `None` where it is no program of one device among several.
///
/// # Errors
/// The file cannot be read or is no module.
pub(super) fn open(program: &Program) -> Result<Option<OpenModule>, String> {
    let (module, _) = OpenModule::read(&program.file, &[]).map_err(|failure| format!("{failure:?}"))?;
    let is_several = module.module().n_devices() > 1;
    Ok(is_several.then_some(module))
}

fn text(module: &Module) -> String {
    print_module(module, &PrintOptions::default())
}

/// The numbers of one pipeline over all modules.
#[derive(Default)]
struct Total {
    n_modules: usize,
    n_changed: usize,
    n_whole: usize,
    n_outputs: usize,
    n_proved: usize,
    n_exact: usize,
    ms: f64,
}

/// Proves every module; false if an output is neither proved nor known.
pub(super) fn run(programs: &[Program]) -> Result<bool, String> {
    println!("{:>9} {:>13} {:>9}  {:<34} {:<26} modulo", "", "proved", "ms", "module", "pipeline");
    let (mut totals, mut n_bad) = (BTreeMap::<&str, Total>::new(), 0);
    for program in programs {
        let before = match open(program) {
            Ok(Some(before)) => before,
            Ok(None) => continue,
            Err(reason) => {
                println!("{}: {reason}", program.name());
                n_bad += 1;
                continue;
            }
        };
        for pipeline in pipelines(before.module().n_devices()) {
            let row = pipeline.after(&before).and_then(|after| {
                let is_changed = text(before.module()) != text(after.module());
                Ok((is_changed, prove(before.module(), after.module())?))
            });
            match row {
                Ok((is_changed, proved)) => {
                    n_bad += show(program, &pipeline, is_changed, &proved);
                    totals.entry(pipeline.name).or_default().add(is_changed, &proved);
                }
                Err(reason) => {
                    println!("{}, {}: {}", program.name(), pipeline.name, reason.lines().next().unwrap_or_default());
                    n_bad += 1;
                }
            }
        }
    }
    for (name, total) in &totals {
        println!(
            "{name}: {} of {} changed modules proved whole ({} more unchanged), {} of {} outputs, {} of them bit for bit; {:.1} s",
            total.n_whole,
            total.n_changed,
            total.n_modules - total.n_changed,
            total.n_proved,
            total.n_outputs,
            total.n_exact,
            total.ms / 1e3
        );
    }
    Ok(n_bad == 0)
}

impl Total {
    /// Outputs are counted of changed modules alone: the others are the same text.
    fn add(&mut self, is_changed: bool, proved: &Proved) {
        self.n_modules += 1;
        self.ms += proved.ms;
        if is_changed {
            self.n_changed += 1;
            self.n_whole += usize::from(proved.proof.is_proved());
            self.n_outputs += proved.proof.outputs.len();
            self.n_proved += proved.proof.n_proved();
            self.n_exact += proved.proof.n_exact();
        }
    }
}

/// Prints a row, and gives the number of outputs that are neither proved nor known.
fn show(program: &Program, pipeline: &Pipeline, is_changed: bool, proved: &Proved) -> usize {
    let (name, outputs) = (program.name(), &proved.proof.outputs);
    let mut modulo: Vec<&str> = outputs.iter().flat_map(|o| o.modulo.iter().map(|rule| rule.name)).collect();
    modulo.sort_unstable();
    modulo.dedup();
    let modulo = if modulo.is_empty() { "bit for bit".to_string() } else { modulo.join(" ") };
    let changed = if is_changed { "changed" } else { "unchanged" };
    let counts = format!("{} of {}", proved.proof.n_proved(), outputs.len());
    println!("{changed:>9} {counts:>13} {:>9.1}  {name:<34} {:<26} {modulo}", proved.ms, pipeline.name);
    let mut n_bad = 0;
    for output in outputs.iter().filter(|output| output.verdict != Verdict::Proved) {
        let known =
            KNOWN_UNKNOWNS.iter().find(|(f, p, leaf, _)| (*f, *p, *leaf) == (&name, pipeline.name, output.leaf));
        n_bad += usize::from(known.is_none());
        let reason = known.map(|(.., reason)| format!("known: {reason}")).or(output.difference.clone());
        println!("{:>9} {:>13} output {}: {}", "", "", output.leaf, reason.unwrap_or_default());
    }
    n_bad
}
