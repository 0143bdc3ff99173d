//! A picture of a plan: every op as a box, from left to right as they depend on each other, coloured by how it is cut.
//!
//! Boxes of one column depend on none of each other. The area of a box grows with the time of its op. What a box is, and what it costs,
//! is its title, which browsers show when the mouse rests on it.

use crate::plan::ChosenPlan;
use crate::plans::{AxisUse, Plan};
use crate::program::{OpId, Program};
use crate::report::PlanReport;
use cranelift_entity::SecondaryMap;
use hlo_ir::factors::FactorRole;
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use std::fmt::Write;

/// The most boxes of a picture.
const MOST_BOXES: usize = 20_000;
const COLUMN: f64 = 14.0;
const ROW: f64 = 14.0;
const LEGEND: f64 = 22.0;
const MARGIN: f64 = 16.0;

/// Colours that readers with weak colour vision tell apart (Okabe and Ito 2008), light ones first.
const COLOURS: [&str; 8] = ["#bdbdbd", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442"];

/// The picture as SVG.
pub(crate) fn draw_plan(program: &Program<'_>, plan: &ChosenPlan<'_>, report: &PlanReport) -> String {
    let depth = depths(program);
    let mut n_in_column: Vec<usize> = Vec::new();
    let mut kinds: IndexMap<String, usize, FixedHash> = IndexMap::default();
    let mut boxes = String::new();
    for (id, op) in program.ops.iter().take(MOST_BOXES) {
        let Some(of_op) = plan.plan(id) else { continue };
        let kind = kind_of(program, id, of_op);
        let n_kinds = kinds.len();
        let colour = *kinds.entry(kind.clone()).or_insert(n_kinds);
        let column = depth[id] as usize;
        n_in_column.resize(n_in_column.len().max(column + 1), 0);
        let row = n_in_column[column];
        n_in_column[column] += 1;
        let cost_ms = plan.work(id) as f64 / 1e9;
        let size = (4.0 + 3.0 * (1.0 + cost_ms * 10.0).ln()).min(13.0);
        let (x, y) = (MARGIN + column as f64 * COLUMN, MARGIN + 3.0 * LEGEND + row as f64 * ROW);
        let inst = program.module.inst(op.inst);
        let _ = writeln!(
            boxes,
            "<rect x='{x:.0}' y='{y:.0}' width='{size:.1}' height='{size:.1}' fill='{}'><title>%{} {}: {kind}, {cost_ms:.4} ms</title></rect>",
            COLOURS[colour % COLOURS.len()],
            escaped(program.module.inst_name(op.inst)),
            inst.opcode.name(),
        );
    }
    let width = (MARGIN * 2.0 + n_in_column.len() as f64 * COLUMN).max(720.0);
    let n_rows = n_in_column.iter().max().copied().unwrap_or(0);
    let height = MARGIN * 2.0 + 3.0 * LEGEND + n_rows as f64 * ROW;
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0}' height='{height:.0}' font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    let left_out = program.ops.len().saturating_sub(MOST_BOXES);
    let cut = if left_out > 0 { format!("; {left_out} ops are left out") } else { String::new() };
    let _ = writeln!(
        out,
        "<text x='{MARGIN}' y='{}'>mesh {}, {:.3} ms a step, bound {:.3} ms; {}{cut}</text>",
        MARGIN + 4.0,
        report.mesh,
        report.step_s * 1e3,
        report.bound_s * 1e3,
        escaped(&report.machine)
    );
    legend(&kinds, width, &mut out);
    out.push_str(&boxes);
    out.push_str("</svg>\n");
    out
}

fn legend(kinds: &IndexMap<String, usize, FixedHash>, width: f64, out: &mut String) {
    let (mut x, mut y) = (MARGIN, MARGIN + LEGEND);
    for (kind, &colour) in kinds.iter().take(16) {
        let needed = 24.0 + 7.0 * kind.len() as f64;
        if x + needed > width {
            (x, y) = (MARGIN, y + LEGEND * 0.8);
        }
        let _ = writeln!(
            out,
            "<rect x='{x:.0}' y='{:.0}' width='10' height='10' fill='{}'/><text x='{:.0}' y='{y:.0}'>{kind}</text>",
            y - 9.0,
            COLOURS[colour % COLOURS.len()],
            x + 14.0
        );
        x += needed;
    }
}

/// How many ops lie before each one on the longest way.
fn depths(program: &Program<'_>) -> SecondaryMap<OpId, u32> {
    let mut depth: SecondaryMap<OpId, u32> = SecondaryMap::new();
    for (id, op) in &program.ops {
        let makers = op.operands.iter().filter_map(|value| program.values[value.expand()?].producer);
        depth[id] = makers.map(|(maker, _)| depth[maker] + 1).max().unwrap_or(0);
    }
    depth
}

/// What the axes of a plan do, in words.
fn kind_of(program: &Program<'_>, id: OpId, plan: &Plan) -> String {
    let factors = program.ops[id].factors.as_ref();
    let word = |one: &AxisUse| match *one {
        AxisUse::Repeats => "repeated".to_string(),
        AxisUse::PassesSums(_) => "sums".to_string(),
        AxisUse::Cuts(factor) => {
            let is_reduced =
                factors.is_some_and(|set| set.uses(factor).any(|one| matches!(one.role, FactorRole::Reduce(_))));
            let dim = factors
                .and_then(|set| set.results.first())
                .and_then(|tensor| tensor.iter().position(|uses| uses.iter().any(|one| one.factor == factor)));
            match (is_reduced, dim) {
                (false, Some(dim)) => format!("dim {dim}"),
                (true, _) | (false, None) => "reduced".to_string(),
            }
        }
    };
    plan.uses.iter().map(word).collect::<Vec<_>>().join(" / ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}
