//! `cargo xtask bench-zero1`: what our weight-update sharding makes of data-parallel training, beside the sharding that a
//! person writes in JAX (`oracle/zero1_by_hand.py`).
//!
//! An MLP with Adam on eight CPU devices, as one step and as a loop of steps. XLA's partitioner's output of the
//! data-parallel programs goes through `hlo-opt`. The result and the hand-written module are compared in two ways. The
//! first is their collectives: how often each kind runs in one execution, and how many bytes the whole tensors have. The
//! second is the time that real XLA takes for them, turn by turn with the same donation (`oracle/time_pair.py`).

mod options;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{python, workspace};
use options::Options;
use traffic::Traffic;

/// A hand-written variant, and how ours is asked for.
struct Variant {
    /// The hand-written module, as the script names it.
    theirs: &'static str,
    /// The data-parallel module that ours is made of.
    source: &'static str,
    /// Options of the sharding.
    options: &'static str,
    /// Whether state crosses the interface in shards: the pass writes a folder of modules.
    has_shards: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant { theirs: "step_replicated_interface", source: "dp_step", options: "state=replicated", has_shards: false },
    Variant { theirs: "step_sharded_interface", source: "dp_step", options: "state=gradients", has_shards: true },
    Variant { theirs: "loop_moments_sharded", source: "dp_loop", options: "state=gradients", has_shards: true },
    Variant { theirs: "loop_all_sharded", source: "dp_loop", options: "state=parameters", has_shards: true },
];

/// The largest median ratio ours/theirs that passes.
const MOST_RATIO: f64 = 1.25;

/// Runs the command; false if a comparison fails or a variant could not be had.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let bench = Bench {
        tool: options.tool.clone().map_or_else(workspace::build_tool, Ok)?,
        python: python::interpreter()?,
        folder: workspace::target_dir().join("bench-zero1"),
        options,
    };
    bench.write_programs()?;
    println!(
        "MLP + Adam, f32, width {}, {} layers, loops of {} steps, 8 CPU devices; ours/theirs, {} pairs\n",
        bench.options.width, bench.options.layers, bench.options.steps, bench.options.reps
    );
    let mut is_fine = true;
    for variant in &VARIANTS {
        if bench.options.only.as_ref().is_some_and(|part| !variant.theirs.contains(part.as_str())) {
            continue;
        }
        is_fine &= match bench.compare(variant) {
            Ok(holds) => holds,
            Err(message) => {
                println!("{}\n  NOT COMPARED: {message}\n", variant.theirs);
                false
            }
        };
    }
    Ok(is_fine)
}

struct Bench {
    options: Options,
    tool: PathBuf,
    python: PathBuf,
    folder: PathBuf,
}

impl Bench {
    /// Lets JAX write the six programs.
    fn write_programs(&self) -> Result<(), String> {
        std::fs::create_dir_all(&self.folder).map_err(|e| format!("{}: {e}", self.folder.display()))?;
        let sizes = [self.options.width, self.options.layers, self.options.steps].map(|n| n.to_string());
        let folder = self.folder.to_string_lossy().into_owned();
        let told = self.script("zero1_by_hand.py", &[&sizes[0], &sizes[1], &sizes[2], &folder])?;
        for line in told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let difference = line.get("difference").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
            if difference.is_nan() || difference > 1e-5 {
                return Err(format!("zero1_by_hand.py: a variant computes something else: {line}"));
            }
        }
        Ok(())
    }

    /// Runs a script of the oracle and gives what it printed.
    fn script(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.python);
        command.arg("-B").arg(python::oracle_dir().join(name)).args(arguments).stdin(Stdio::null());
        let output = command.output().map_err(|e| format!("{}: {e}", self.python.display()))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name}: {}: {}", output.status, errors.lines().last().unwrap_or("no message")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Prints one comparison; whether it holds.
    fn compare(&self, variant: &Variant) -> Result<bool, String> {
        let theirs = self.folder.join(format!("{}.hlo", variant.theirs));
        let ours = self.ours(variant)?;
        let traffic = [Traffic::of_file(&theirs)?, Traffic::of_file(&ours)?];
        let is_same = traffic[0] == traffic[1];
        println!("{}   ({} of {})", variant.theirs, variant.options, variant.source);
        println!("  collectives  theirs: {}", traffic[0]);
        println!("               ours:   {}   {}", traffic[1], if is_same { "equal" } else { "DIFFERENT" });
        let times = self.time(variant, &theirs, &ours)?;
        println!("{times}\n");
        Ok(is_same && times.is_fine())
    }

    /// The module that our pass makes.
    fn ours(&self, variant: &Variant) -> Result<PathBuf, String> {
        let source = self.folder.join(format!("{}.hlo", variant.source));
        let name = format!("{}.ours", variant.theirs);
        let out = self.folder.join(if variant.has_shards { name } else { name + ".hlo" });
        if variant.has_shards && out.exists() {
            std::fs::remove_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
        }
        let pipeline = format!(
            "split-tuple-all-reduce,sink-all-reduce,shard-weight-update{{min-bytes=1KiB,profit=always,{}}},dce",
            variant.options
        );
        let output = Command::new(&self.tool)
            .args(["--require-change", "--pass", &pipeline])
            .arg(&source)
            .arg("-o")
            .arg(&out)
            .output()
            .map_err(|e| format!("{}: {e}", self.tool.display()))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<&str> = errors.lines().filter(|l| !l.trim().is_empty()).take(2).collect();
            return Err(format!("hlo-opt --pass '{pipeline}': {}: {}", output.status, errors.join(" ")));
        }
        Ok(if variant.has_shards { out.join("main.hlo") } else { out })
    }

    fn time(&self, variant: &Variant, theirs: &Path, ours: &Path) -> Result<Times, String> {
        let layers = self.options.layers;
        let draw = [("n.03", layers), ("n5e-4", layers), ("p5e-7", layers), ("1", 1), ("n1", 2)];
        let draw: Vec<&str> = draw.iter().flat_map(|&(word, n)| std::iter::repeat_n(word, n)).collect();
        let steps = if variant.source == "dp_loop" { self.options.steps } else { 1 };
        let config = json!({
            "theirs": theirs, "ours": ours, "draw": draw.join(" "), "reps": self.options.reps, "steps": steps,
        });
        let config_file = self.folder.join("time_pair.json");
        std::fs::write(&config_file, config.to_string()).map_err(|e| format!("{}: {e}", config_file.display()))?;
        let told = self.script("time_pair.py", &[&config_file.to_string_lossy()])?;
        let last = told.lines().last().and_then(|line| serde_json::from_str(line).ok());
        last.as_ref().and_then(Times::read).ok_or_else(|| format!("time_pair.py: expected times, found `{told}`"))
    }
}

/// What `time_pair.py` measured.
struct Times {
    theirs_ms: Vec<f64>,
    ours_ms: Vec<f64>,
    ratios: Vec<f64>,
    /// The same in CPU time of all threads: on a busy machine it says more.
    cpu_ratios: Vec<f64>,
    /// Inputs whose buffers were taken over, of theirs and ours.
    taken_over: [u64; 2],
    difference: Option<f64>,
}

impl Times {
    fn read(value: &Value) -> Option<Self> {
        let sorted = |key: &str| {
            let mut list: Vec<f64> = value.get(key)?.as_array()?.iter().filter_map(Value::as_f64).collect();
            list.sort_by(f64::total_cmp);
            (!list.is_empty()).then_some(list)
        };
        let taken_over = value.get("taken_over")?.as_array()?;
        Some(Self {
            theirs_ms: sorted("theirs")?,
            ours_ms: sorted("ours")?,
            ratios: sorted("ratios")?,
            cpu_ratios: sorted("cpu_ratios")?,
            taken_over: [taken_over.first()?.as_u64()?, taken_over.get(1)?.as_u64()?],
            difference: value.get("difference")?.as_f64(),
        })
    }

    fn is_fine(&self) -> bool {
        let is_right = self.difference.is_none_or(|d| d <= 2e-5);
        middle(&self.ratios) <= MOST_RATIO && self.taken_over[0] == self.taken_over[1] && is_right
    }
}

/// The median of a sorted list that is not empty.
fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// Median and quarters of a sorted list that is not empty.
fn spread(sorted: &[f64]) -> String {
    let n = sorted.len();
    let quarters = [sorted[n / 4], sorted[(3 * n / 4).min(n - 1)]];
    format!("median {:.3}, quarters {:.3} and {:.3}", middle(sorted), quarters[0], quarters[1])
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, ms) in [("theirs", &self.theirs_ms), ("ours", &self.ours_ms)] {
            writeln!(f, "  ms per step  {name:6}  best {:8.2}  median {:8.2}", ms[0], middle(ms))?;
        }
        let verdict = if middle(&self.ratios) <= MOST_RATIO { "within" } else { "ABOVE" };
        writeln!(
            f,
            "  ratio        {} ({verdict} {MOST_RATIO}); CPU time: {}",
            spread(&self.ratios),
            spread(&self.cpu_ratios)
        )?;
        let difference = match self.difference {
            Some(d) => format!("outputs within {d:.1e} of theirs"),
            None => "outputs not compared: state in other shapes".into(),
        };
        write!(
            f,
            "  donated inputs taken over: theirs {}, ours {}; {difference}",
            self.taken_over[0], self.taken_over[1]
        )
    }
}
