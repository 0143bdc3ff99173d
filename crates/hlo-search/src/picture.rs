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

/// Columns beside each other; further ones stand below.
const COLUMNS_OF_BAND: usize = 96;
/// Colours that readers with weak colour vision tell apart (Okabe and Ito 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7", "#f0e442"];
const REPEATED: &str = "#c8c8c8";
const RARE: &str = "#505050";

/// One op as it is drawn.
struct OpBox {
    column: usize,
    row: usize,
    kind: usize,
    cost_ms: f64,
    title: String,
}

/// The picture as SVG.
pub(crate) fn draw_plan(program: &Program<'_>, plan: &ChosenPlan<'_>, report: &PlanReport) -> String {
    let (boxes, kinds) = find_boxes(program, plan);
    let colours = colours_of(&kinds);
    let tops = band_tops(&boxes);
    let n_columns = boxes.iter().map(|one| one.column + 1).max().unwrap_or(0).min(COLUMNS_OF_BAND);
    let width = (MARGIN * 2.0 + n_columns as f64 * COLUMN).max(720.0);
    let height = MARGIN + tops.last().copied().unwrap_or(0.0);
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
    legend(&kinds, &colours, width, &mut out);
    for one in &boxes {
        let size = (4.0 + 3.0 * (1.0 + one.cost_ms * 10.0).ln()).min(13.0);
        let x = MARGIN + (one.column % COLUMNS_OF_BAND) as f64 * COLUMN;
        let y = tops[one.column / COLUMNS_OF_BAND] + one.row as f64 * ROW;
        let _ = writeln!(
            out,
            "<rect x='{x:.0}' y='{y:.0}' width='{size:.1}' height='{size:.1}' fill='{}'><title>{}, {:.4} ms</title></rect>",
            colours[one.kind], one.title, one.cost_ms
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Where each band of columns begins, and where the last one ends.
fn band_tops(boxes: &[OpBox]) -> Vec<f64> {
    let mut n_rows: Vec<usize> = Vec::new();
    for one in boxes {
        let band = one.column / COLUMNS_OF_BAND;
        n_rows.resize(n_rows.len().max(band + 1), 0);
        n_rows[band] = n_rows[band].max(one.row + 1);
    }
    let mut tops = vec![MARGIN + 3.0 * LEGEND];
    for n in n_rows {
        tops.push(tops.last().copied().unwrap_or(0.0) + (n + 1) as f64 * ROW);
    }
    tops
}

/// The boxes, and how often each way to be cut occurs.
fn find_boxes(program: &Program<'_>, plan: &ChosenPlan<'_>) -> (Vec<OpBox>, IndexMap<String, usize, FixedHash>) {
    let depth = depths(program);
    let mut n_in_column: Vec<usize> = Vec::new();
    let mut kinds: IndexMap<String, usize, FixedHash> = IndexMap::default();
    let mut boxes = Vec::new();
    for (id, op) in program.ops.iter().take(MOST_BOXES) {
        let Some(of_op) = plan.plan(id) else { continue };
        let words = kind_of(program, id, of_op);
        let name = escaped(program.module.inst_name(op.inst));
        let title = format!("%{name} {}: {words}", program.module.inst(op.inst).opcode.name());
        let entry = kinds.entry(words);
        let kind = entry.index();
        *entry.or_insert(0) += 1;
        let column = depth[id] as usize;
        n_in_column.resize(n_in_column.len().max(column + 1), 0);
        let row = n_in_column[column];
        n_in_column[column] += 1;
        boxes.push(OpBox { column, row, kind, cost_ms: plan.work(id) as f64 / 1e9, title });
    }
    (boxes, kinds)
}

/// What all devices repeat is grey, the most frequent other ways have colours of their own, the rest is dark.
fn colours_of(kinds: &IndexMap<String, usize, FixedHash>) -> Vec<&'static str> {
    let is_repeated = |kind: &str| kind.split(" / ").all(|word| word == "repeated");
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    order.sort_by_key(|&kind| std::cmp::Reverse(kinds[kind]));
    let mut colours = vec![RARE; kinds.len()];
    let mut next = COLOURS.iter();
    for kind in order {
        let name = kinds.get_index(kind).map_or("", |(name, _)| name.as_str());
        colours[kind] = if is_repeated(name) { REPEATED } else { next.next().copied().unwrap_or(RARE) };
    }
    colours
}

fn legend(kinds: &IndexMap<String, usize, FixedHash>, colours: &[&str], width: f64, out: &mut String) {
    let (mut x, mut y) = (MARGIN, MARGIN + LEGEND);
    let named = kinds.keys().zip(colours).filter(|(_, colour)| **colour != RARE);
    let has_rare = colours.contains(&RARE).then_some(("other ways", RARE));
    for (kind, colour) in named.map(|(kind, colour)| (kind.as_str(), *colour)).chain(has_rare) {
        let needed = 24.0 + 7.0 * kind.len() as f64;
        if x + needed > width {
            (x, y) = (MARGIN, y + LEGEND * 0.8);
        }
        let _ = writeln!(
            out,
            "<rect x='{x:.0}' y='{:.0}' width='10' height='10' fill='{colour}'/><text x='{:.0}' y='{y:.0}'>{kind}</text>",
            y - 9.0,
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
