//! When each task of a module runs: what [`super::predict`] computes on its way and does not keep.
//!
//! Each computation keeps its tasks with times from its own beginning. [`Recorder::unfold`] puts them one into another: of a loop
//! the first round, then one span for the rounds that follow; of a called computation all; of a conditional one span.

use super::lanes::{Lane, TaskSpan};
use cranelift_entity::SecondaryMap;
use hlo_ir::{CompId, InstId, Module, Opcode};

/// Spans of one module beyond which no loop or call is unfolded: it is one span.
const MAX_SPANS: usize = 200_000;

/// Loops and calls within each other that are unfolded.
const MAX_DEPTH: usize = 64;

/// A stretch of time in which a lane is busy.
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// The instruction; of a kernel of several the first that it puts out.
    pub name: String,
    /// Its opcode.
    pub opcode: Opcode,
    /// How many instructions the kernel computes.
    pub n_instructions: usize,
    /// The lane; `None` where all lanes are taken, by rounds of a loop or by branches.
    pub lane: Option<Lane>,
    /// When it begins, in seconds from the module's beginning.
    pub start_s: f64,
    /// When it has ended.
    pub end_s: f64,
    /// How often it runs in all.
    pub n_runs: f64,
}

/// What a task is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) inst: InstId,
    pub(super) n_instructions: usize,
}

impl Label {
    /// A task that is one instruction.
    pub(super) fn of(inst: InstId) -> Label {
        Label { inst, n_instructions: 1 }
    }
}

/// Something that takes time in a computation. Times are seconds from the computation's beginning.
#[derive(Clone, Copy, Debug)]
enum Event {
    Task { label: Label, lane: Lane, span: TaskSpan },
    Loop { inst: InstId, span: TaskSpan, n_trips: f64, condition: CompId, body: CompId },
    Branches { inst: InstId, span: TaskSpan },
    Call { inst: InstId, span: TaskSpan, callee: CompId },
}

/// The events of the computation at hand, and those of the computations that are done.
#[derive(Default)]
pub(super) struct Recorder {
    now: Vec<Event>,
    done: SecondaryMap<CompId, Done>,
}

/// A computation's events and its time.
#[derive(Clone, Default)]
struct Done {
    events: Vec<Event>,
    duration_s: f64,
    /// Spans that it unfolds into.
    n_spans: usize,
}

impl Recorder {
    /// Notes the tasks of a section that begins at `start_s`.
    pub(super) fn tasks(&mut self, start_s: f64, labels: &[Label], lanes: &[Lane], spans: &[TaskSpan]) {
        let shifted = |span: &TaskSpan| TaskSpan { start_s: start_s + span.start_s, end_s: start_s + span.end_s };
        let tasks = labels.iter().zip(lanes).zip(spans);
        self.now.extend(tasks.map(|((&label, &lane), span)| Event::Task { label, lane, span: shifted(span) }));
    }

    /// Notes a loop whose body runs `n_trips` times.
    pub(super) fn repeats(&mut self, inst: InstId, span: TaskSpan, n_trips: f64, [condition, body]: [CompId; 2]) {
        self.now.push(Event::Loop { inst, span, n_trips, condition, body });
    }

    /// Notes a conditional.
    pub(super) fn chooses(&mut self, inst: InstId, span: TaskSpan) {
        self.now.push(Event::Branches { inst, span });
    }

    /// Notes a call of a computation that has times of its own.
    pub(super) fn calls(&mut self, inst: InstId, span: TaskSpan, callee: CompId) {
        self.now.push(Event::Call { inst, span, callee });
    }

    /// A computation is done.
    pub(super) fn finish(&mut self, comp: CompId, duration_s: f64) {
        let events = std::mem::take(&mut self.now);
        let n_of = |comp: CompId| self.done[comp].n_spans;
        let n_spans = events.iter().fold(0usize, |sum, event| {
            sum.saturating_add(match *event {
                Event::Task { .. } | Event::Branches { .. } => 1,
                Event::Loop { condition, body, .. } => n_of(condition).saturating_add(n_of(body)).saturating_add(1),
                Event::Call { callee, .. } => n_of(callee).max(1),
            })
        });
        self.done[comp] = Done { events, duration_s, n_spans };
    }

    /// When tasks begin, in seconds from the beginning of their computation.
    pub(super) fn starts_s(&self) -> SecondaryMap<InstId, Option<f64>> {
        let mut starts: SecondaryMap<InstId, Option<f64>> = SecondaryMap::new();
        for event in self.done.values().flat_map(|done| &done.events) {
            let (inst, span) = match *event {
                Event::Task { label, span, .. } => (label.inst, span),
                Event::Loop { inst, span, .. } | Event::Branches { inst, span } | Event::Call { inst, span, .. } => {
                    (inst, span)
                }
            };
            starts[inst].get_or_insert(span.start_s);
        }
        starts
    }

    /// The spans of a run of `entry`, loops and calls unfolded, in the order in which tasks are issued.
    pub(super) fn unfold(&self, module: &Module, entry: CompId) -> Vec<Span> {
        let mut unfolding = Unfolding { module, recorder: self, depth: 0, spans: Vec::new() };
        unfolding.computation(entry, 0.0, 1.0);
        unfolding.spans
    }
}

struct Unfolding<'m> {
    module: &'m Module,
    recorder: &'m Recorder,
    /// Loops and calls around the computation at hand.
    depth: usize,
    spans: Vec<Span>,
}

impl Unfolding<'_> {
    fn computation(&mut self, comp: CompId, start_s: f64, n_runs: f64) {
        let recorder = self.recorder;
        self.depth += 1;
        for event in &recorder.done[comp].events {
            match *event {
                Event::Task { label, lane, span } => self.push(label, Some(lane), span, start_s, n_runs),
                Event::Branches { inst, span } => self.push(Label::of(inst), None, span, start_s, n_runs),
                Event::Call { inst, span, callee } => {
                    if self.has_room(&[callee]) {
                        self.computation(callee, start_s + span.start_s, n_runs);
                    } else {
                        self.push(Label::of(inst), None, span, start_s, n_runs);
                    }
                }
                Event::Loop { inst, span, n_trips, condition, body } => {
                    let mut at_s = span.start_s;
                    if self.has_room(&[condition, body]) {
                        self.computation(condition, start_s + at_s, n_runs * (n_trips + 1.0));
                        at_s += recorder.done[condition].duration_s;
                        if n_trips > 0.0 {
                            self.computation(body, start_s + at_s, n_runs * n_trips);
                            at_s += recorder.done[body].duration_s;
                        }
                    }
                    let rest = TaskSpan { start_s: at_s, end_s: span.end_s };
                    if rest.end_s > rest.start_s {
                        self.push(Label::of(inst), None, rest, start_s, n_runs);
                    }
                }
            }
        }
        self.depth -= 1;
    }

    /// Whether these computations may be unfolded.
    fn has_room(&self, comps: &[CompId]) -> bool {
        let n_spans = |comp: &CompId| self.recorder.done[*comp].n_spans;
        let n = comps.iter().map(n_spans).fold(self.spans.len(), usize::saturating_add);
        n <= MAX_SPANS && self.depth < MAX_DEPTH
    }

    fn push(&mut self, label: Label, lane: Option<Lane>, span: TaskSpan, start_s: f64, n_runs: f64) {
        self.spans.push(Span {
            name: self.module.inst_name(label.inst).into(),
            opcode: self.module.inst(label.inst).opcode,
            n_instructions: label.n_instructions,
            lane,
            start_s: start_s + span.start_s,
            end_s: start_s + span.end_s,
            n_runs,
        });
    }
}
