//! `hlo-opt plan reshard`: the cheapest steps from one sharding of an array to another.

use super::arguments::{ReshardArgs, ReshardEmit};
use super::{reshard_picture, time_text};
use crate::console::Console;
use crate::{Failure, machine};
use hlo_ir::axes::AxisSharding;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::sharding::{LeafSharding, Sharding};
use hlo_ir::{ArrayShape, Dims, Shape};
use hlo_mesh::Exchange;
use hlo_spmd::redistribution::{
    Redistribution, RedistributionRequest, RedistributionStep, StepKind, StepsPrice, plan_redistribution,
};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Report<'p> {
    shape: String,
    from: String,
    to: String,
    devices: usize,
    /// The prime axes, the major one first, by the letters that states use.
    axes: Vec<AxisReport>,
    source_tile: &'p [i64],
    target_tile: &'p [i64],
    steps: Vec<StepReport<'p>>,
    total: PriceReport,
    bound_bytes: u64,
    /// Bytes above the bound.
    gap_bytes: u64,
    /// Whether no steps without pieces of tiles are cheaper than `without_pieces`.
    is_searched: bool,
    without_pieces: Option<PriceReport>,
    with_pieces: Option<PriceReport>,
    greedy: GreedyReport,
}

#[derive(Serialize)]
struct AxisReport {
    letter: char,
    size: i64,
}

#[derive(Serialize)]
struct StepReport<'p> {
    op: &'static str,
    groups: &'p [Vec<u32>],
    pairs: &'p [(u32, u32)],
    cost: PriceReport,
    tile: &'p [i64],
    state: &'p str,
    because: &'p str,
}

#[derive(Serialize)]
struct PriceReport {
    bytes: u64,
    launches: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

#[derive(Serialize)]
struct GreedyReport {
    mindspore: Option<PriceReport>,
    shardy: Option<PriceReport>,
}

/// What is asked, read.
struct Question {
    shape: ArrayShape,
    ends: [LeafSharding; 2],
    axes: [AxisSharding; 2],
    n_devices: usize,
    has_cluster: bool,
}

/// Prints the plan as text, HLO, JSON or SVG.
///
/// # Errors
/// A shape, a sharding or a machine that is none or does not fit.
pub(crate) fn plan(args: &ReshardArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let question = Question::read(args)?;
    let n_devices = question.n_devices;
    let cluster = args.machine.machine.as_deref().map(|name| machine::cluster(name, n_devices)).transpose()?;
    if let Some(cluster) = cluster.as_ref().filter(|cluster| (cluster.n_devices() as usize) < n_devices) {
        let found = format!("{} with {}", cluster.name(), cluster.n_devices());
        return Err(Failure::Usage(format!("--machine: expected at least {n_devices} devices, found {found}")));
    }
    let [source, target] = &question.axes;
    let request = RedistributionRequest {
        shape: &question.shape,
        source,
        target,
        monoid: None,
        cluster: cluster.as_ref(),
        allows_pieces: true,
    };
    let plan = plan_redistribution(&request).map_err(|error| Failure::Usage(error.to_string()))?;
    match args.emit {
        ReshardEmit::Text => console.print(question.text(&plan).as_bytes()),
        ReshardEmit::Json => console.print_json(&question.report(&plan)),
        ReshardEmit::Svg => console.print(reshard_picture::svg(&question.title(), &question.shape, &plan).as_bytes()),
        ReshardEmit::Hlo => {
            let module = plan.to_module("reshard").map_err(|error| Failure::File(error.to_string()))?;
            console.print(print_module(&module, &PrintOptions::default()).as_bytes())
        }
    }
}

/// The sharding of an option.
fn sharding(option: &str, text: &str) -> Result<LeafSharding, Failure> {
    let wrong = |message: String| Failure::Usage(format!("{option}: {message}"));
    match hlo_text::parse_sharding(text) {
        Ok(Sharding::Single(leaf)) => Ok(leaf),
        Ok(Sharding::Tuple(leaves)) => {
            Err(wrong(format!("expected the sharding of one array, found a tuple of {}", leaves.len())))
        }
        Err(error) => {
            let rest = error.span.and_then(|span| text.get(span.start as usize..)).unwrap_or_default();
            let place = if rest.is_empty() { "at its end".to_string() } else { format!("before `{rest}`") };
            Err(wrong(format!("{} ({place})", error.message)))
        }
    }
}

impl Question {
    fn read(args: &ReshardArgs) -> Result<Question, Failure> {
        let wrong_shape =
            |found: &str| Failure::Usage(format!("--shape: expected an array such as f32[16,16], found {found}"));
        let shape = match hlo_text::parse_shape(&args.shape) {
            Ok(Shape::Array(array)) => array,
            Ok(_) | Err(_) => return Err(wrong_shape(&format!("`{}`", args.shape))),
        };
        let ends = [sharding("--from", &args.from)?, sharding("--to", &args.to)?];
        let listed = ends.iter().find_map(LeafSharding::n_listed_devices).or(args.devices);
        let n_devices = listed.ok_or_else(|| {
            Failure::Usage(
                "--from and --to: expected a sharding that lists its devices, or --devices, found neither".into(),
            )
        })?;
        let axes = |option: &str, leaf: &LeafSharding| {
            leaf.axes(shape.rank(), n_devices).map_err(|error| Failure::Usage(format!("{option}: {error}")))
        };
        let axes = [axes("--from", &ends[0])?, axes("--to", &ends[1])?];
        Ok(Question { shape, ends, axes, n_devices, has_cluster: args.machine.machine.is_some() })
    }

    fn shape_text(&self, dims: &[i64]) -> String {
        let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
        format!("{}[{}]", self.shape.dtype, dims.join(","))
    }

    fn title(&self) -> String {
        format!("{} {} to {}", self.shape_text(&self.shape.dims), self.ends[0], self.ends[1])
    }

    fn cost(&self, price: StepsPrice) -> PriceReport {
        let seconds = self.has_cluster.then_some(price.seconds);
        PriceReport { bytes: price.bytes, launches: price.launches, seconds }
    }

    fn report<'p>(&self, plan: &'p Redistribution) -> Report<'p> {
        let step = |step: &'p RedistributionStep| StepReport {
            op: step.kind.name(),
            groups: &step.groups,
            pairs: &step.pairs,
            cost: self.cost(step.price),
            tile: &step.tile,
            state: &step.state,
            because: &step.because,
        };
        let optional = |price: Option<StepsPrice>| price.map(|price| self.cost(price));
        Report {
            shape: self.shape_text(&self.shape.dims),
            from: self.ends[0].to_string(),
            to: self.ends[1].to_string(),
            devices: self.n_devices,
            axes: plan.axes.iter().map(|&(letter, size)| AxisReport { letter, size }).collect(),
            source_tile: &plan.source_tile,
            target_tile: &plan.target_tile,
            steps: plan.steps.iter().map(step).collect(),
            total: self.cost(plan.price),
            bound_bytes: plan.bound_bytes,
            gap_bytes: plan.price.bytes.saturating_sub(plan.bound_bytes),
            is_searched: plan.is_searched,
            without_pieces: optional(plan.without_pieces),
            with_pieces: optional(plan.with_pieces),
            greedy: GreedyReport { mindspore: optional(plan.greedy.mindspore), shardy: optional(plan.greedy.shardy) },
        }
    }

    fn text(&self, plan: &Redistribution) -> String {
        let mut out = String::new();
        let axes: Vec<String> = plan.axes.iter().map(|(letter, size)| format!("{letter}={size}")).collect();
        let axes = if axes.is_empty() { "no axes".to_string() } else { axes.join(" ") };
        let _ = writeln!(out, "{}", self.title());
        let tiles = [&plan.source_tile, &plan.target_tile].map(|tile: &Dims| self.shape_text(tile));
        let _ = writeln!(out, "{} devices: {axes}; tiles {} -> {}", self.n_devices, tiles[0], tiles[1]);
        for (number, step) in plan.steps.iter().enumerate() {
            self.step_text(number + 1, step, &mut out);
        }
        if plan.steps.is_empty() {
            let _ = writeln!(out, "  nothing to do: every device holds its target tile");
        }
        let _ = writeln!(out, "total {}", self.price_text(plan.price));
        let gap = plan.price.bytes.saturating_sub(plan.bound_bytes);
        let share = if plan.bound_bytes > 0 { gap as f64 / plan.bound_bytes as f64 * 100.0 } else { 0.0 };
        let _ = writeln!(
            out,
            "bound {} bytes: the most that a device lacks; gap {gap} bytes ({share:.1} %)",
            plan.bound_bytes
        );
        let how = if plan.is_searched { "the cheapest steps" } else { "constructed steps" };
        let others = [
            (how, plan.without_pieces),
            ("pieces of tiles", plan.with_pieces),
            ("greedy, as MindSpore", plan.greedy.mindspore),
            ("greedy, as Shardy", plan.greedy.shardy),
        ];
        for (name, price) in others {
            if let Some(price) = price {
                let _ = writeln!(out, "  {name}: {}", self.price_text(price));
            }
        }
        out
    }

    fn step_text(&self, number: usize, step: &RedistributionStep, out: &mut String) {
        let who = match (step.kind, step.groups.is_empty()) {
            (StepKind::Exchange(Exchange::Permute) | StepKind::Pieces, _) => pairs_text(&step.pairs),
            (_, true) => "on every device".to_string(),
            (_, false) => groups_text(&step.groups),
        };
        let cost = if step.price.launches == 0 { "free".to_string() } else { self.price_text(step.price) };
        let _ = writeln!(out, "{number:>3}. {} {who}: {cost}", step.kind.name());
        let _ = writeln!(out, "     {} {}: {}", self.shape_text(&step.tile), step.state, step.because);
    }

    fn price_text(&self, price: StepsPrice) -> String {
        let launches =
            if price.launches == 1 { "1 launch".to_string() } else { format!("{} launches", price.launches) };
        let time = if self.has_cluster { format!(", {}", time_text(price.seconds)) } else { String::new() };
        format!("{} bytes received per device, {launches}{time}", price.bytes)
    }
}

const SHOWN: usize = 8;

/// The first groups, and how many there are.
fn groups_text(groups: &[Vec<u32>]) -> String {
    let shown = groups.iter().take(SHOWN).map(|group| {
        let members: Vec<String> = group.iter().take(2 * SHOWN).map(u32::to_string).collect();
        format!("{{{}{}}}", members.join(","), if group.len() > 2 * SHOWN { ",…" } else { "" })
    });
    let shown: Vec<String> = shown.collect();
    format!("over {}{}", shown.join(","), if groups.len() > SHOWN { ",…" } else { "" })
}

fn pairs_text(pairs: &[(u32, u32)]) -> String {
    let moved = || pairs.iter().filter(|(source, target)| source != target);
    let shown: Vec<String> = moved().take(2 * SHOWN).map(|(source, target)| format!("{source}>{target}")).collect();
    format!("{}{}", shown.join(" "), if moved().count() > 2 * SHOWN { " …" } else { "" })
}
