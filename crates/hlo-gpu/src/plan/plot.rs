//! A picture of a plan's streams over modelled time: see [`super::model`] for what the times are.
//!
//! Two rows, compute and communication, with a bar for each step, and below them the memory in use; idle stretches of a row are left pale, so what does not overlap
//! is seen at once. Bars that are wide enough are labelled, all have a tooltip; neighbours of one kind that are too narrow
//! to be seen apart are one bar.

use super::live::arena_over_time;
use super::model::{Bar, busy_s, modelled_times};
use super::{CollectiveKind, Plan, Stream, Work};
use std::fmt::Write;

const WIDTH: f64 = 1400.0;
const LEFT: f64 = 120.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const ROW: f64 = 56.0;
const GAP: f64 = 14.0;
/// Bars narrower than this go together with their neighbours.
const NARROW: f64 = 0.5;
/// Width of a letter of a label.
const LETTER: f64 = 5.8;
/// Height of a line of labels.
const LINE: f64 = 11.0;
/// Ticks of the time axis at most.
const MOST_TICKS: f64 = 14.0;

/// What a bar shows: the legend's word and its colour.
type Kind = (&'static str, &'static str);

const KINDS: [Kind; 8] = [
    ("kernel", "#4c78a8"),
    ("gemm", "#2f9e77"),
    ("copy or fill", "#9d9d9d"),
    ("all-reduce", "#d9730d"),
    ("reduce-scatter", "#b5489c"),
    ("all-gather", "#8a63d2"),
    ("all-to-all or permute", "#b3402e"),
    ("more rounds", "#c9c2b2"),
];

fn kind(work: &Work) -> Kind {
    match work {
        Work::Launch { .. } => KINDS[0],
        Work::While { .. } | Work::Conditional { .. } => KINDS[7],
        Work::Gemm(_) => KINDS[1],
        Work::Copy { .. } | Work::Fill { .. } => KINDS[2],
        Work::Collective(call) => match call.kind {
            CollectiveKind::Groups { reduction: Some(_), scatters: false } => KINDS[3],
            CollectiveKind::Groups { reduction: Some(_), scatters: true } => KINDS[4],
            CollectiveKind::Groups { reduction: None, scatters: false } => KINDS[5],
            CollectiveKind::Groups { reduction: None, scatters: true } | CollectiveKind::Pairs(_) => KINDS[6],
        },
    }
}

/// One rectangle: a step, or several that are too narrow.
struct Rect {
    kind: Kind,
    lane: usize,
    start_s: f64,
    end_s: f64,
    name: String,
    n_steps: usize,
}

/// The picture: compute above, communication below.
pub fn svg(plan: &Plan) -> String {
    let (bars, end_s) = modelled_times(plan);
    let total_s = end_s.max(1e-9);
    let per_s = (WIDTH - LEFT - RIGHT) / total_s;
    let rects = rectangles(&bars, NARROW / per_s);
    let kinds: Vec<Kind> = KINDS.into_iter().filter(|k| rects.iter().any(|r| r.kind == *k)).collect();
    let bottom = TOP + 3.0 * ROW + 2.0 * GAP;
    let height = bottom + 44.0;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"DejaVu Sans, Helvetica, sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"
    );
    write_heading(&mut out, plan, &bars, total_s, &kinds);
    write_axis(&mut out, total_s, per_s, bottom);
    for (lane, word) in ["compute", "communication"].into_iter().enumerate() {
        let (y, width) = (top_of(lane), WIDTH - LEFT - RIGHT);
        let _ = writeln!(out, "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{ROW}\" fill=\"#f1efe9\"/>");
        let (x, middle) = (LEFT - 10.0, y + ROW / 2.0 + 4.0);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{middle}\" text-anchor=\"end\">{word}</text>");
    }
    rects.iter().for_each(|rect| write_rect(&mut out, rect, per_s));
    write_memory(&mut out, plan, &arena_over_time(plan, &bars), total_s, per_s);
    out.push_str("</svg>\n");
    out
}

fn top_of(lane: usize) -> f64 {
    TOP + lane as f64 * (ROW + GAP)
}

/// Bars as rectangles; neighbours of one kind below `narrow_s` seconds together.
fn rectangles(bars: &[Bar<'_>], narrow_s: f64) -> Vec<Rect> {
    let mut rects: Vec<Rect> = Vec::new();
    let mut last: [Option<usize>; 2] = [None, None];
    for bar in bars {
        let lane = usize::from(bar.step.stream == Stream::Communication);
        let (kind, start_s, end_s) = (kind(&bar.step.work), bar.start_s, bar.end_s());
        if let Some(rect) = last[lane].and_then(|at| rects.get_mut(at)) {
            let is_near = start_s - rect.end_s < narrow_s && rect.kind == kind;
            if is_near && bar.duration_s < narrow_s && (rect.n_steps > 1 || rect.end_s - rect.start_s < narrow_s) {
                rect.end_s = end_s;
                rect.n_steps += 1;
                continue;
            }
        }
        last[lane] = Some(rects.len());
        rects.push(Rect { kind, lane, start_s, end_s, name: bar.step.name.clone(), n_steps: 1 });
    }
    rects
}

fn write_heading(out: &mut String, plan: &Plan, bars: &[Bar<'_>], total_s: f64, kinds: &[Kind]) {
    let (compute_s, communication_s) = (busy_s(bars, Stream::Compute), busy_s(bars, Stream::Communication));
    let written = plan.written_order_s.filter(|written_s| *written_s > total_s * 1.0005);
    let written = written.map_or(String::new(), |s| format!(" ({} in the order of the text)", time(s)));
    let path = plan.critical_path_s.map_or(String::new(), |s| format!(", critical path {}", time(s)));
    let n_devices = plan.n_replicas.saturating_mul(plan.n_partitions);
    let _ = writeln!(
        out,
        "<text x=\"10\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}: modelled {}{path}{written}</text>\n\
         <text x=\"10\" y=\"40\" fill=\"#444\">compute busy {} ({:.0}%), communication busy {} ({:.0}%); \
         {n_devices} x {}</text>",
        escaped(&plan.name),
        time(total_s),
        time(compute_s),
        100.0 * compute_s / total_s,
        time(communication_s),
        100.0 * communication_s / total_s,
        escaped(&plan.machine_name())
    );
    let mut right = WIDTH - RIGHT;
    for (word, color) in kinds.iter().rev().chain(std::iter::once(&("idle", "#f1efe9"))) {
        right -= word.len() as f64 * 7.0 + 6.0;
        let _ = writeln!(out, "<text x=\"{right:.1}\" y=\"20\">{word}</text>");
        right -= 17.0;
        let _ = writeln!(
            out,
            "<rect x=\"{right:.1}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{color}\" stroke=\"#bbb\" stroke-width=\"0.5\"/>"
        );
        right -= 14.0;
    }
}

/// The memory in use: arguments and outputs, which are there all the time, and on them what the arena holds.
fn write_memory(out: &mut String, plan: &Plan, arena: &[(f64, u64)], total_s: f64, per_s: f64) {
    let memory = plan.memory();
    let (peak, given) = (memory.peak_bytes().max(1) as f64, memory.peak_bytes() - memory.temp_bytes);
    let (top, width) = (top_of(2), WIDTH - LEFT - RIGHT);
    let y = |bytes: f64| top + ROW * (1.0 - bytes / peak);
    let mut path = format!("M{LEFT} {:.2}", y(given as f64));
    // Of moments that are too near to be seen apart the one with most counts.
    let mut column: Option<(f64, u64)> = None;
    let steps = arena.iter().map(|&(time_s, bytes)| (LEFT + time_s * per_s, bytes));
    for (x, bytes) in steps.chain([(LEFT + total_s * per_s, 0)]) {
        match &mut column {
            Some((at, most)) if x - *at < NARROW => *most = bytes.max(*most),
            last => {
                if let Some((at, most)) = last.replace((x, bytes)) {
                    let _ = write!(path, "H{at:.2}V{:.2}", y((given + most) as f64));
                }
            }
        }
    }
    let (right, bottom, line) = (LEFT + width, top + ROW, y(given as f64));
    let most = arena.iter().map(|(_, bytes)| given + bytes).max().unwrap_or(given);
    let (label, middle) = (LEFT - 10.0, top + ROW / 2.0);
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{ROW}\" fill=\"#f1efe9\"/>\n\
         <path d=\"{path}H{right}V{bottom}H{LEFT}Z\" fill=\"#8fa8c4\"><title>arena, at most {}</title></path>\n\
         <rect x=\"{LEFT}\" y=\"{line:.2}\" width=\"{width}\" height=\"{:.2}\" fill=\"#c3cedb\"><title>arguments and outputs: \
         {}</title></rect>\n\
         <text x=\"{label}\" y=\"{middle}\" text-anchor=\"end\">memory</text>\n\
         <text x=\"{label}\" y=\"{}\" text-anchor=\"end\" fill=\"#444\" font-size=\"11\">{}</text>",
        size(most - given),
        bottom - line,
        size(given),
        middle + 14.0,
        size(most)
    );
}

/// Bytes, scaled.
fn size(bytes: u64) -> String {
    let scaled = |shift: u32| bytes as f64 / (1u64 << shift) as f64;
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", scaled(10)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", scaled(20)),
        _ => format!("{:.1} GiB", scaled(30)),
    }
}

fn write_axis(out: &mut String, total_s: f64, per_s: f64, bottom: f64) {
    let rough = total_s / MOST_TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= rough).unwrap_or(rough);
    for k in 0..=(total_s / step) as usize {
        let x = LEFT + k as f64 * step * per_s;
        let (from, to, words) = (TOP - 6.0, bottom + 6.0, bottom + 22.0);
        let _ = writeln!(out, "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from}\" y2=\"{to}\" stroke=\"#ccc\"/>");
        let label = time(k as f64 * step);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{words}\" text-anchor=\"middle\" fill=\"#444\">{label}</text>");
    }
}

fn write_rect(out: &mut String, rect: &Rect, per_s: f64) {
    let (x, y) = (LEFT + rect.start_s * per_s, top_of(rect.lane));
    let width = ((rect.end_s - rect.start_s) * per_s).max(0.15);
    let (color, name) = (rect.kind.1, escaped(&rect.name));
    let more = if rect.n_steps > 1 { format!(" and {} more", rect.n_steps - 1) } else { String::new() };
    // A line between neighbours, but not where it would be all that is seen.
    let line = if width > 2.0 { " stroke=\"white\" stroke-width=\"0.6\"" } else { "" };
    let _ = writeln!(
        out,
        "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{ROW}\" fill=\"{color}\"{line}><title>{} {name}{more}: {} \
         from {}</title></rect>",
        rect.kind.0,
        time(rect.end_s - rect.start_s),
        time(rect.start_s)
    );
    if rect.n_steps > 1 {
        return;
    }
    // Along the bar if it is wide, upwards if it is as wide as a line is high.
    let (across, up) = (((width - 6.0) / LETTER) as usize, ((ROW - 6.0) / LETTER) as usize);
    let middle = (x + width / 2.0 + 3.5, y + ROW / 2.0 + 3.5);
    let (room, at) = if across >= up {
        (across, format!("x=\"{:.2}\" y=\"{:.2}\"", x + 3.0, middle.1))
    } else if width >= LINE {
        let (x, y) = (middle.0, y + ROW - 3.0);
        (up, format!("x=\"{x:.2}\" y=\"{y:.2}\" transform=\"rotate(-90 {x:.2} {y:.2})\""))
    } else {
        return;
    };
    let label = match rect.name.chars().count() {
        n if n <= room => name,
        _ => escaped(&rect.name.chars().take(room.saturating_sub(1)).chain(['…']).collect::<String>()),
    };
    let _ = writeln!(out, "<text {at} font-size=\"10\" fill=\"white\">{label}</text>");
}

/// A time in the unit that suits it.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {unit}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
