//! What pipelines of a program's layers take, to compare with: nothing here rewrites a module.
//!
//! **Layers.** Weights are numbered by the first op that works with them and the batch. Of an op, *above* is the last weight that it depends on, and *below*
//! the last weight whose update depends on it. In a chain of layers a forward op of layer k has above = k, and the op that makes its
//! weight's gradient has below = k, so that an op belongs to layer min(above, below); but what takes a weight works where that weight
//! lies, such as the op that makes the gradient of the layer's input. What depends on no weight works where it is first taken: moments where
//! their weight is updated.
//!
//! **Stages** are contiguous ranges of layers, each on devices of its own, along which the batch is cut ([`crate::stages`] finds the best
//! cut for the schedule 1F1B). A microbatch is a part of the batch; work on values that hold the batch is done for each of them, all
//! other work (updates) once. At the end each stage sums its gradients by an all-reduce over its devices, and updates its weights:
//! the slowest stage's time is added.
//!
//! Only programs whose layers stand one by one have stages: what a loop runs is one layer.

use crate::mesh::SearchMesh;
use crate::prices::{Prices, picoseconds};
use crate::program::{CutId, OpId, Program, Taker};
use crate::roles::{Role, Roles};
use crate::solver::Cost;
use crate::stages::{StageCut, StageLayer, StageLimits, cut_stages};
use crate::work::{OpWork, find_work};
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_mesh::{Exchange, Machine, Network};
use serde::Serialize;
use smallvec::smallvec;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The most stages that are looked at.
const MOST_STAGES: i64 = 64;

/// The most layers: of more weights, several that follow one another are one layer, so that no search of stages takes long.
const MOST_LAYERS: usize = 256;

/// Microbatches that are tried, for each stage.
const MICROBATCHES_PER_STAGE: [i64; 3] = [1, 4, 16];

/// A pipeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PipelineReport {
    /// How many stages it has.
    pub n_stages: usize,
    /// Along how many devices each stage cuts the batch.
    pub n_devices_of_stage: i64,
    /// Into how many parts the batch is cut, one after the other.
    pub n_microbatches: u64,
    /// Modelled time of a step, in seconds.
    pub step_s: f64,
    /// The share of all stages' time in which they wait for one another.
    pub bubble_share: f64,
    /// The most memory of a device, in bytes.
    pub peak_bytes: u64,
    /// The first weight of each stage.
    pub begins: Vec<String>,
}

/// The fastest pipeline of each number of stages that divides the devices; none where there are no two layers, or no batch.
pub(crate) fn find_pipelines(
    program: &Program<'_>,
    machine: &Machine,
    links: &Network,
    n_devices: i64,
    memory_limit: Option<u64>,
) -> Vec<PipelineReport> {
    let roles = Roles::find(program);
    let Some(chain) = Chain::find(program, &roles) else { return Vec::new() };
    let memory_bytes = memory_limit.unwrap_or(u64::MAX);
    let n_layers = chain.layers.len() as i64;
    let counts = (2..=n_devices.min(n_layers).min(MOST_STAGES)).filter(|n_stages| n_devices % n_stages == 0);
    let best = |n_stages: i64| {
        let of_microbatches = |per_stage: i64| {
            let n_of_stage = n_devices / n_stages;
            let n_microbatches = per_stage * n_stages;
            let fits = chain.batch % (n_of_stage * n_microbatches) == 0;
            fits.then(|| chain.pipeline(machine, links, [n_stages, n_of_stage, n_microbatches], memory_bytes)).flatten()
        };
        let all = MICROBATCHES_PER_STAGE.iter().filter_map(|&per_stage| of_microbatches(per_stage));
        all.min_by(|a, b| a.step_s.total_cmp(&b.step_s))
    };
    counts.filter_map(best).collect()
}

/// Whether an op takes or gives what holds the batch.
fn runs_for_each(program: &Program<'_>, roles: &Roles, op: OpId) -> bool {
    let op = &program.ops[op];
    let mut values = op.operands.iter().chain(&op.results).filter_map(|value| value.expand());
    values.any(|value| roles.batch_dim[value].is_some())
}

/// The number of examples: the first dim that most data parameters have, of several the least.
fn find_batch(program: &Program<'_>, roles: &Roles) -> Option<i64> {
    let of_data = |&id: &CutId| roles.of_param[id] == Some(Role::Data) && roles.batch_dim[id].is_some();
    let mut n_params: BTreeMap<i64, usize> = BTreeMap::new();
    for size in program.values.keys().filter(of_data).filter_map(|id| program.values[id].dims.first().copied()) {
        *n_params.entry(size).or_default() += 1;
    }
    n_params.into_iter().max_by_key(|&(size, n)| (n, Reverse(size))).map(|(size, _)| size)
}

/// The first op that works with the batch and with a weight, or with what is made of the weight alone.
fn first_with_batch(program: &Program<'_>, roles: &Roles, weight: CutId) -> Option<OpId> {
    let (mut open, mut is_seen, mut first) = (vec![weight], EntitySet::new(), None::<OpId>);
    while let Some(value) = open.pop() {
        for op in program.values[value].takers.iter().filter_map(|(taker, _)| taker.op()) {
            if !is_seen.insert(op) {
                continue;
            }
            if runs_for_each(program, roles, op) {
                first = Some(first.map_or(op, |known| known.min(op)));
            } else {
                open.extend(program.ops[op].results.iter().filter_map(|value| value.expand()));
            }
        }
    }
    first
}

/// The layers of a program.
struct Chain<'a, 'm> {
    program: &'a Program<'m>,
    roles: &'a Roles,
    work: SecondaryMap<OpId, Option<OpWork>>,
    /// By layer its weights.
    layers: Vec<Vec<CutId>>,
    /// By op its layer, and whether it runs forward.
    place: SecondaryMap<OpId, Option<(usize, bool)>>,
    /// Bytes of parameters that are held by the devices of a layer.
    held_bytes: Vec<u64>,
    /// Examples of a step.
    batch: i64,
}

impl<'a, 'm> Chain<'a, 'm> {
    fn find(program: &'a Program<'m>, roles: &'a Roles) -> Option<Chain<'a, 'm>> {
        if program.ops.values().any(|op| op.frequency > 1.0) {
            return None;
        }
        let batch = find_batch(program, roles)?;
        let mut weights: Vec<(OpId, CutId)> = Vec::new();
        for id in program.values.keys().filter(|&id| roles.of_param[id] == Some(Role::Weight)) {
            weights.extend(first_with_batch(program, roles, id).map(|op| (op, id)));
        }
        weights.sort();
        let n_layers = weights.len().min(MOST_LAYERS);
        if n_layers < 2 {
            return None;
        }
        let mut layers = vec![Vec::new(); n_layers];
        for (k, &(_, id)) in weights.iter().enumerate() {
            layers[k * n_layers / weights.len()].push(id);
        }
        let mut chain = Chain {
            program,
            roles,
            work: find_work(program).of_op,
            held_bytes: vec![0; n_layers],
            layers,
            place: SecondaryMap::new(),
            batch,
        };
        chain.find_places();
        Some(chain)
    }

    /// The layer of each op.
    fn find_places(&mut self) {
        let program = self.program;
        let mut layer_of: SecondaryMap<CutId, Option<usize>> = SecondaryMap::new();
        for (layer, weights) in self.layers.iter().enumerate() {
            weights.iter().for_each(|&id| layer_of[id] = Some(layer));
        }
        let (mut above, mut below): (SecondaryMap<OpId, Option<usize>>, SecondaryMap<OpId, Option<usize>>) =
            (SecondaryMap::new(), SecondaryMap::new());
        for (id, op) in &program.ops {
            let of_operand = |value: CutId| match program.values[value].producer {
                Some((maker, _)) => above[maker],
                None => layer_of[value],
            };
            above[id] = op.operands.iter().filter_map(|value| of_operand(value.expand()?)).max();
        }
        for (id, op) in program.ops.iter().rev() {
            let takers =
                op.results.iter().filter_map(|value| value.expand()).flat_map(|value| &program.values[value].takers);
            let of_taker = |taker: &Taker| match *taker {
                Taker::Op { op, .. } => below[op],
                Taker::Replaces { param, .. } => layer_of[param],
                Taker::Becomes(_) | Taker::Exit(_) | Taker::Whole => None,
            };
            below[id] = takers.filter_map(|(taker, _)| of_taker(taker)).max();
        }
        let last = self.layers.len().saturating_sub(1);
        for (id, op) in &program.ops {
            // Of weights, and of what is made of them without the batch.
            let made_of =
                op.operands.iter().filter_map(|value| value.expand()).filter_map(|value| layer_of[value]).max();
            let takes = made_of.filter(|_| self.runs_for_each(id));
            if !self.runs_for_each(id) {
                op.results.iter().filter_map(|value| value.expand()).for_each(|value| layer_of[value] = made_of);
            }
            self.place[id] = above[id].map(|above| {
                let below = below[id].unwrap_or(last);
                (above.min(below).max(takes.unwrap_or(0)), above <= below)
            });
        }
        self.place_others(&below);
        self.find_held();
    }

    /// Ops that depend on no weight: those of an update where the weight is updated, others where they are first taken.
    fn place_others(&mut self, below: &SecondaryMap<OpId, Option<usize>>) {
        let program = self.program;
        for (id, op) in program.ops.iter().rev() {
            if self.place[id].is_some() {
                continue;
            }
            let results = op.results.iter().filter_map(|value| value.expand());
            let takers = results.flat_map(|value| &program.values[value].takers).filter_map(|(taker, _)| taker.op());
            let first = takers.filter_map(|taker| Some(self.place[taker]?.0)).min().unwrap_or(0);
            let is_update = !self.runs_for_each(id) && below[id].is_some();
            self.place[id] = if is_update { below[id].map(|layer| (layer, false)) } else { Some((first, true)) };
        }
    }

    /// A parameter lies where the first op that takes it runs.
    fn find_held(&mut self) {
        let program = self.program;
        for (id, value) in program.values.iter().filter(|(_, value)| value.is_param) {
            if self.roles.of_param[id] == Some(Role::Data) {
                continue;
            }
            let layers = value.takers.iter().filter_map(|(taker, _)| Some(self.place[taker.op()?]?.0));
            if let Some(layer) = layers.min() {
                self.held_bytes[layer] += value.bytes() as u64;
            }
        }
    }

    /// Bytes of a layer's weights.
    fn weight_bytes(&self, layer: usize) -> f64 {
        self.layers[layer].iter().map(|&id| self.program.values[id].bytes()).sum()
    }

    /// Whether a value holds the batch.
    fn is_of_batch(&self, value: CutId) -> bool {
        self.roles.batch_dim[value].is_some()
    }

    /// Whether an op works for each microbatch.
    fn runs_for_each(&self, op: OpId) -> bool {
        runs_for_each(self.program, self.roles, op)
    }

    /// Whether an op takes the batch and gives none: the gradient of a weight, or a loss.
    fn sums_batch(&self, op: OpId) -> bool {
        let results = &self.program.ops[op].results;
        self.runs_for_each(op)
            && !results.iter().filter_map(|value| value.expand()).any(|value| self.is_of_batch(value))
    }

    /// The pipeline of so many stages, devices of a stage and microbatches; `None` where no cut keeps the memory.
    fn pipeline(
        &self,
        machine: &Machine,
        links: &Network,
        [n_stages, n_of_stage, n_microbatches]: [i64; 3],
        memory_bytes: u64,
    ) -> Option<PipelineReport> {
        let mesh = SearchMesh { sizes: smallvec![n_stages, n_of_stage] };
        let prices = Prices::new(&mesh, links);
        let part = 1.0 / (n_of_stage * n_microbatches) as f64;
        let once_ps = self.once_ps(machine);
        let layers = self.stage_layers(machine, &prices, part);
        let limits = StageLimits { n_stages: n_stages as usize, n_microbatches: n_microbatches as u64, memory_bytes };
        let cut: StageCut = cut_stages(&layers, &limits).ok()?;
        let end_ps = cut.stages.iter().map(|stage| {
            let range = stage.begin..stage.end;
            let gradients: f64 = range.clone().map(|layer| self.weight_bytes(layer)).sum();
            let sum_s = prices.exchange_s(Exchange::AllReduce, 0b10, gradients);
            once_ps[range].iter().fold(picoseconds(sum_s), |sum, &ps| sum.saturating_add(ps))
        });
        let end_ps = end_ps.max().unwrap_or(0);
        let module = self.program.module;
        Some(PipelineReport {
            n_stages: cut.stages.len(),
            n_devices_of_stage: n_of_stage,
            n_microbatches: n_microbatches as u64,
            step_s: (cut.total_ps as f64 + end_ps as f64) / 1e12,
            bubble_share: cut.bubble_share,
            peak_bytes: cut.stages.iter().map(|stage| stage.memory_bytes).max().unwrap_or(0),
            begins: cut
                .stages
                .iter()
                .filter_map(|stage| self.layers[stage.begin].first())
                .map(|&weight| module.inst_name(self.program.values[weight].inst).to_string())
                .collect(),
        })
    }

    /// By layer the time of what is done once a step.
    fn once_ps(&self, machine: &Machine) -> Vec<Cost> {
        let mut out = vec![0; self.layers.len()];
        for id in self.program.ops.keys().filter(|&id| !self.runs_for_each(id)) {
            if let (Some((layer, _)), Some(work)) = (self.place[id], &self.work[id]) {
                out[layer] += work.cost_of(machine, |value| self.program.values[value].bytes(), 1.0);
            }
        }
        out
    }

    /// The layers for one microbatch, of which a device has this part of the batch.
    fn stage_layers(&self, machine: &Machine, prices: &Prices<'_>, part: f64) -> Vec<StageLayer> {
        let program = self.program;
        let bytes = |value: CutId| program.values[value].bytes() * if self.is_of_batch(value) { part } else { 1.0 };
        let mut layers = vec![StageLayer::default(); self.layers.len()];
        for id in program.ops.keys().filter(|&id| self.runs_for_each(id)) {
            let (Some((layer, is_forward)), Some(work)) = (self.place[id], &self.work[id]) else { continue };
            let ps = work.cost_of(machine, bytes, part).unsigned_abs();
            let sum = if is_forward { &mut layers[layer].forward_ps } else { &mut layers[layer].backward_ps };
            *sum = sum.saturating_add(ps);
        }
        for (layer, held) in self.held_bytes.iter().enumerate() {
            // A weight's gradient has its size.
            layers[layer].weight_bytes = held + self.weight_bytes(layer) as u64;
        }
        for (id, value) in &program.values {
            let Some((layer, true)) = value.producer.and_then(|(op, _)| self.place[op]) else { continue };
            let (mut last, mut is_kept) = (layer, false);
            for (taker, _) in &value.takers {
                let Some(op) = taker.op() else { continue };
                let Some((taker, is_forward)) = self.place[op] else { continue };
                last = last.max(if is_forward { taker } else { layer });
                is_kept |= !is_forward || self.sums_batch(op);
            }
            layers[layer].kept_bytes += if is_kept { bytes(id) as u64 } else { 0 };
            // A stage that begins behind the producer receives it, and hands it on.
            layers[layer + 1..=last].iter_mut().for_each(|later| later.border_bytes += bytes(id) as u64);
        }
        for layer in &mut layers {
            // Forward, and its gradient back.
            layer.border_ps = picoseconds(2.0 * prices.shift_s(0b01, layer.border_bytes as f64)).unsigned_abs();
        }
        layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_analysis::frequency::{Frequencies, FrequencyOptions};

    /// Four products of 4096 x 4096 and their gradients, 64 examples.
    fn four_layers() -> String {
        let mut body = String::from("  %x0 = f32[64,4096] parameter(4)\n");
        for k in 0..4 {
            body += &format!("  %w{k} = f32[4096,4096] parameter({k})\n");
        }
        let dot = |name: &str, shape: &str, ends: [&str; 2], dims: [usize; 2]| {
            let [left, right] = dims;
            format!(
                "  %{name} = f32[{shape}] dot(%{}, %{}), lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}\n",
                ends[0], ends[1]
            )
        };
        for k in 0..4 {
            body += &dot(&format!("x{}", k + 1), "64,4096", [&format!("x{k}"), &format!("w{k}")], [1, 0]);
        }
        body += "  %g4 = f32[64,4096] tanh(%x4)\n";
        for k in (0..4).rev() {
            let gradient = format!("g{}", k + 1);
            body += &dot(&format!("d{k}"), "4096,4096", [&format!("x{k}"), &gradient], [0, 0]);
            body += &format!("  %n{k} = f32[4096,4096] subtract(%w{k}, %d{k})\n");
            if k > 0 {
                body += &dot(&format!("g{k}"), "64,4096", [&gradient, &format!("w{k}")], [1, 1]);
            }
        }
        let (alias, weight) = (
            "{ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias), {2}: (2, {}, may-alias), {3}: (3, {}, may-alias) }",
            "f32[4096,4096]",
        );
        format!(
            "HloModule m, input_output_alias={alias}\n\nENTRY %e {{\n{body}  ROOT %r = ({weight}, {weight}, {weight}, {weight}) tuple(%n0, %n1, %n2, %n3)\n}}\n"
        )
    }

    fn pipelines(text: &str) -> Vec<PipelineReport> {
        let module = hlo_text::parse_bytes(text.as_bytes()).expect("a module").module;
        let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
        let program = Program::read(&module, &frequencies).expect("a program");
        let machine = Machine::parse("h100:switch", 1).expect("a machine");
        find_pipelines(&program, &machine, &machine.network(2).expect("links"), 2, None)
    }

    #[test]
    fn what_depends_on_no_weight_takes_its_time() {
        let plain = pipelines(&four_layers())[0].step_s;
        // The same behind a product of the batch's own, which is more work than all layers.
        let product = "  %own = f32[4096,4096] dot(%x, %x), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n";
        let squares: String = (0..8)
            .map(|k| {
                let from = if k == 0 { "own".to_string() } else { format!("sq{}", k - 1) };
                format!("  %sq{k} = f32[4096,4096] dot(%{from}, %{from}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n")
            })
            .collect();
        let begin = "  %x0 = f32[64,4096] dot(%x, %sq7), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
        let text = four_layers().replace(
            "  %x0 = f32[64,4096] parameter(4)\n",
            &format!("  %x = f32[64,4096] parameter(4)\n{product}{squares}{begin}"),
        );
        let behind = pipelines(&text)[0].step_s;
        assert!(behind > 3.0 * plain, "{behind} {plain}");
    }

    #[test]
    fn moments_lie_where_their_weights_do() {
        let plain = pipelines(&four_layers())[0].peak_bytes;
        // A moment of each weight, decayed before it meets the gradient.
        let mut text = four_layers();
        for k in 0..4 {
            let update = format!("  %n{k} = f32[4096,4096] subtract(%w{k}, %d{k})\n");
            let with_moment = format!(
                "  %m{k} = f32[4096,4096] parameter({})\n  %t{k} = f32[4096,4096] tanh(%m{k})\n  %up{k} = f32[4096,4096] add(%t{k}, %d{k})\n  \
                 %n{k} = f32[4096,4096] subtract(%w{k}, %up{k})\n",
                5 + k
            );
            assert!(text.contains(&update));
            text = text.replace(&update, &with_moment);
        }
        let weight = "f32[4096,4096]";
        let all = [weight; 8].join(", ");
        text = text
            .replace("  ROOT %r = (f32[4096,4096], f32[4096,4096], f32[4096,4096], f32[4096,4096]) tuple(%n0, %n1, %n2, %n3)", &format!("  ROOT %r = ({all}) tuple(%n0, %n1, %n2, %n3, %up0, %up1, %up2, %up3)"))
            .replace("{3}: (3, {}, may-alias) }", "{3}: (3, {}, may-alias), {4}: (5, {}, may-alias), {5}: (6, {}, may-alias), {6}: (7, {}, may-alias), {7}: (8, {}, may-alias) }");
        let with_moments = pipelines(&text)[0].peak_bytes;
        // Two layers' moments in the stage that holds most.
        assert_eq!(with_moments, plain + 2 * 4096 * 4096 * 4);
    }

    #[test]
    fn equal_layers_are_cut_in_the_middle() {
        let module = hlo_text::parse_bytes(four_layers().as_bytes()).expect("a module").module;
        let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
        let program = Program::read(&module, &frequencies).expect("a program");
        let machine = Machine::parse("h100:switch", 1).expect("a machine");
        let links = machine.network(2).expect("links");
        let found = find_pipelines(&program, &machine, &links, 2, None);
        let [pipeline] = found.as_slice() else { panic!("one number of stages divides two devices, found {found:?}") };
        assert_eq!((pipeline.n_stages, pipeline.n_devices_of_stage), (2, 1));
        assert_eq!(pipeline.begins, ["w0", "w2"]);
        // Two weights and their gradients, and for each microbatch that is in flight (two, or all if there are fewer) what the backward
        // pass takes of two layers' results: a weight's operand is its predecessor's result.
        let weights = 2 * 2 * 4096 * 4096 * 4;
        let of_microbatch = |n_values: u64| n_values * 64 * 4096 * 4 / pipeline.n_microbatches;
        assert_eq!(pipeline.peak_bytes, weights + pipeline.n_microbatches.min(2) * of_microbatch(2));
        // A limit below the weights has no pipeline.
        assert_eq!(find_pipelines(&program, &machine, &links, 2, Some(weights - 1)), []);
    }
}
