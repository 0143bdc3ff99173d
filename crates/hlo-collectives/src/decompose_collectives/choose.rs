//! The best program for a collective on a cluster, or why it stays as it is.

use super::cut::{ChunkedForm, n_parts};
use super::emit::{DeviceProgram, DeviceStep};
use super::fit::{Fit, REDUCED, find_fit};
use super::subject::Subject;
use crate::refusal::{CollectiveRefusal, DecomposeRefusal};
use hlo_cluster::reduction::chunk_order::{ArrayStep, to_arrays};
use hlo_cluster::reduction::graph::max_factors;
use hlo_cluster::reduction::plan::Request;
use hlo_cluster::reduction::scatter::{ScatterProgram, devices};
use hlo_cluster::reduction::{Planner, ReductionStep, Rules, Scatter};
use hlo_cluster::{Algo, Cluster, Collective};
use hlo_ir::ArrayShape;

/// Arrays of so many bytes are no arrays: their padded sizes would pass the numbers that dims have.
const MOST_BYTES: u64 = 1 << 60;
/// Times closer than this are the same: sums of equal terms in another order.
const SAME: f64 = 1e-12;

/// A program that is worth it.
pub struct Chosen {
    /// What to write.
    pub program: DeviceProgram,
    /// Its steps, for reports.
    pub told: String,
    /// Predicted time of the one collective, in seconds.
    pub before_s: f64,
    /// Predicted time of the program, its padding included, in seconds.
    pub after_s: f64,
}

/// The machine and what is asked of a program.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The machine.
    pub cluster: Cluster,
    /// How each collective moves its bytes.
    pub algo: Algo,
    /// Least share of the time that a program must save.
    pub min_gain: f64,
}

impl Choice {
    /// The best program for arrays of this shape, whole.
    ///
    /// # Errors
    /// Why it stays one collective.
    pub fn choose(
        &self,
        planner: &mut Planner<'_>,
        subject: &Subject,
        whole: &ArrayShape,
    ) -> Result<Chosen, CollectiveRefusal> {
        if whole.n_elems() == 0 {
            return Err(DecomposeRefusal::NoElements.into());
        }
        if whole.size_bytes() >= MOST_BYTES {
            return Err(DecomposeRefusal::TooLarge { limit_bytes: MOST_BYTES }.into());
        }
        let fit = find_fit(planner.levels(), &subject.groups)?;
        let most = max_factors(Rules::Pinned);
        if fit.factors.len() > most {
            return Err(DecomposeRefusal::TooManyLevels { n_levels: fit.factors.len(), most }.into());
        }
        let chosen = match subject.kind {
            Collective::ReduceScatter | Collective::AllGather => self.scatter(&fit, subject, whole)?,
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => {
                self.all_reduce(planner, &fit, whole)?
            }
        };
        if chosen.after_s > chosen.before_s * (1.0 - self.min_gain) {
            let cut = &chosen.program.cut;
            let refusal = DecomposeRefusal::SavesTooLittle {
                what: said(subject.kind),
                before_ns: chosen.before_s * 1e9,
                after_ns: chosen.after_s * 1e9,
                n_elems: (cut.bare.n_elems(), cut.padded.n_elems()),
                min_gain: self.min_gain,
            };
            return Err(refusal.into());
        }
        Ok(chosen)
    }

    fn all_reduce(
        &self,
        planner: &mut Planner<'_>,
        fit: &Fit,
        shape: &ArrayShape,
    ) -> Result<Chosen, CollectiveRefusal> {
        let (bytes, algo) = (shape.size_bytes() as f64, self.algo);
        let request = Request { reduce: vec![REDUCED], bytes, algo, lowering: None, max_size: None };
        let plan = planner.plan(fit.matrix.clone(), &request).map_err(DecomposeRefusal::Cluster)?;
        let before_s = plan.all_reduce_s;
        let mut candidates = plan.front;
        // A program may need padding, and then another one may be the fastest.
        let padded = ChunkedForm::new(shape, fit.factors.iter().product()).padded.size_bytes() as f64;
        if padded > bytes {
            let request = Request { bytes: padded, ..request };
            candidates.extend(planner.plan(fit.matrix.clone(), &request).map_err(DecomposeRefusal::Cluster)?.front);
        }
        let mut best: Option<(f64, Vec<ReductionStep>, DeviceProgram)> = None;
        for (_, steps) in candidates {
            // Arrays cannot say every program.
            let Ok(over_arrays) = to_arrays(&fit.factors, &steps) else { continue };
            let program = all_reduce_program(fit, shape, &over_arrays);
            let seconds = self.program_s(&program);
            // Among equals the shortest.
            let is_better = |(least, shortest, _): &(f64, Vec<ReductionStep>, DeviceProgram)| {
                seconds < least * (1.0 - SAME) || (seconds <= least * (1.0 + SAME) && steps.len() < shortest.len())
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some((seconds, steps, program));
            }
        }
        let (after_s, steps, program) = best.ok_or(DecomposeRefusal::NoProgram)?;
        if let [ReductionStep { collective: Collective::AllReduce, .. }] = steps.as_slice() {
            return Err(no_program(Collective::AllReduce, before_s));
        }
        let told =
            steps.iter().map(ReductionStep::to_string).collect::<Vec<_>>().join(" ") + &program.cut.told_padding();
        Ok(Chosen { program, told, before_s, after_s })
    }

    /// Predicted time of the collectives of a program, padding included, in seconds.
    fn program_s(&self, program: &DeviceProgram) -> f64 {
        let chunk_bytes = program.cut.padded.size_bytes() as f64 / program.n_chunks.max(1) as f64;
        let (mut held, mut total) = (program.n_held, 0.0);
        for step in &program.steps {
            let DeviceStep::Collective { kind, groups } = step else { continue };
            let n = groups.first().map_or(1, Vec::len).max(1);
            let (whole, after) = match kind {
                Collective::ReduceScatter => (held, held / n),
                Collective::AllGather => (held * n, held * n),
                Collective::AllReduce | Collective::Reduce | Collective::Broadcast => (held, held),
            };
            total += self.cluster.collective_s(*kind, chunk_bytes * whole as f64, groups, self.algo);
            held = after;
        }
        total
    }

    fn scatter(&self, fit: &Fit, subject: &Subject, whole: &ArrayShape) -> Result<Chosen, CollectiveRefusal> {
        let kind = subject.kind;
        let (bytes, algo) = (whole.size_bytes() as f64, self.algo);
        let before_s = self.cluster.collective_s(kind, bytes, &subject.groups, algo);
        let chunks = fit.places(&subject.groups);
        let scatter = Scatter { factors: &fit.factors, groups: &fit.groups, chunks: &chunks };
        let best = scatter.best(&self.cluster, kind, bytes, algo);
        let best = best.ok_or(DecomposeRefusal::UncoveredChunks)?;
        if best.instructions.len() < 2 {
            return Err(match best.is_second_choice {
                true => DecomposeRefusal::ChunkOrder.into(),
                false => no_program(kind, before_s),
            });
        }
        let mut steps =
            best.instructions.iter().map(|i| ReductionStep { instruction: *i, collective: kind }.to_string());
        let told = match kind {
            Collective::AllGather => steps.rev().collect::<Vec<_>>().join(" "),
            _ => steps.by_ref().collect::<Vec<_>>().join(" "),
        };
        let after_s = best.seconds;
        let program = scatter_program(fit, (kind, subject.dim), whole, best);
        Ok(Chosen { program, told, before_s, after_s })
    }
}

fn no_program(kind: Collective, before_s: f64) -> CollectiveRefusal {
    DecomposeRefusal::NoFasterProgram { what: said(kind), before_ns: before_s * 1e9 }.into()
}

/// As HLO calls it.
fn said(kind: Collective) -> &'static str {
    match kind {
        Collective::ReduceScatter => "reduce-scatter",
        Collective::AllGather => "all-gather",
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => "all-reduce",
    }
}

/// A program of steps over arrays, in every group of an all-reduce of this shape.
pub fn all_reduce_program(fit: &Fit, shape: &ArrayShape, steps: &[ArrayStep]) -> DeviceProgram {
    let n_chunks = fit.factors.iter().product();
    let on_devices = |step: &ArrayStep| match step {
        ArrayStep::Collective { collective, groups } => {
            DeviceStep::Collective { kind: *collective, groups: devices(&fit.groups, groups) }
        }
        ArrayStep::Reorder { order } => DeviceStep::Reorder { order: order.clone() },
    };
    DeviceProgram {
        cut: ChunkedForm::new(shape, n_parts(n_chunks, steps)),
        n_chunks,
        n_held: n_chunks,
        steps: steps.iter().map(on_devices).collect(),
    }
}

/// A program that scatters along a dim, or backwards one that gathers.
pub fn scatter_program(
    fit: &Fit,
    (kind, dim): (Collective, usize),
    whole: &ArrayShape,
    found: ScatterProgram,
) -> DeviceProgram {
    let n_chunks = fit.factors.iter().product();
    let gathers = kind == Collective::AllGather;
    let collectives = found.groups.into_iter().map(|groups| DeviceStep::Collective { kind, groups });
    let is_in_order = found.order.is_sorted();
    let mut order = found.order;
    if gathers {
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &chunk)| back[chunk] = place);
        order = back;
    }
    let reorder = (!is_in_order).then_some(DeviceStep::Reorder { order });
    let steps = match gathers {
        true => collectives.rev().chain(reorder).collect(),
        false => reorder.into_iter().chain(collectives).collect(),
    };
    let cut = ChunkedForm::along(whole.clone(), dim);
    DeviceProgram { cut, n_chunks, n_held: if gathers { 1 } else { n_chunks }, steps }
}
