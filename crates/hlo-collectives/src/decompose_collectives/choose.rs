//! The best program for a collective on a cluster, or why it stays as it is.

use super::cut::{Cut, n_parts};
use super::emit::{DeviceStep, Program};
use super::fit::{Fit, REDUCED, find_fit};
use super::subject::Subject;
use hlo_cluster::reduction::chunk_order::{ArrayStep, to_arrays};
use hlo_cluster::reduction::graph::max_factors;
use hlo_cluster::reduction::plan::Request;
use hlo_cluster::reduction::scatter::{ScatterProgram, devices};
use hlo_cluster::reduction::{Planner, Rules, Scatter, Step};
use hlo_cluster::{Algo, Cluster, Collective};
use hlo_ir::ArrayShape;

/// A program that is worth it.
pub struct Chosen {
    /// What to write.
    pub program: Program,
    /// Its steps, for reports.
    pub told: String,
    /// Predicted time of the one collective, in seconds.
    pub before_s: f64,
    /// Predicted time of the program, in seconds; with padding at most this.
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
    pub fn choose(&self, planner: &mut Planner<'_>, subject: &Subject, whole: &ArrayShape) -> Result<Chosen, String> {
        if whole.n_elems() == 0 {
            return Err("has no elements".into());
        }
        let fit = find_fit(planner.levels(), &subject.groups)?;
        let most = max_factors(Rules::Pinned);
        if fit.factors.len() > most {
            return Err(format!("its groups span {} levels, programs are made for at most {most}", fit.factors.len()));
        }
        let chosen = match subject.kind {
            Collective::ReduceScatter | Collective::AllGather => self.scatter(&fit, subject, whole)?,
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => {
                self.all_reduce(planner, &fit, whole)?
            }
        };
        if chosen.after_s > chosen.before_s * (1.0 - self.min_gain) {
            let (before, after, share) = (chosen.before_s * 1e9, chosen.after_s * 1e9, self.min_gain);
            let what = said(subject.kind);
            return Err(format!(
                "one {what} takes {before:.0} ns, the best program {after:.0}: saves less than {share}"
            ));
        }
        Ok(chosen)
    }

    fn all_reduce(&self, planner: &mut Planner<'_>, fit: &Fit, shape: &ArrayShape) -> Result<Chosen, String> {
        let (bytes, algo) = (shape.size_bytes() as f64, self.algo);
        let request = Request { reduce: vec![REDUCED], bytes, algo, lowering: None, max_size: None };
        let plan = planner.plan(fit.matrix.clone(), &request).map_err(|e| e.to_string())?;
        let before_s = plan.all_reduce_s;
        // From the fastest to the shortest: a program that arrays cannot say gives way to the next.
        let said = |(seconds, program): (f64, Vec<Step>)| {
            to_arrays(&fit.factors, &program).ok().map(|a| (seconds, program, a))
        };
        let (seconds, program, steps) = plan.front.into_iter().rev().find_map(said).ok_or("no program can be said")?;
        if let [Step { collective: Collective::AllReduce, .. }] = program.as_slice() {
            return Err(no_program(Collective::AllReduce, before_s));
        }
        let told = program.iter().map(Step::to_string).collect::<Vec<_>>().join(" ");
        let program = all_reduce_program(fit, shape, &steps);
        let after_s = seconds * program.cut.padded.n_elems() as f64 / shape.n_elems() as f64;
        Ok(Chosen { program, told, before_s, after_s })
    }

    fn scatter(&self, fit: &Fit, subject: &Subject, whole: &ArrayShape) -> Result<Chosen, String> {
        let kind = subject.kind;
        let (bytes, algo) = (whole.size_bytes() as f64, self.algo);
        let before_s = self.cluster.collective_s(kind, bytes, &subject.groups, algo);
        let chunks = fit.places(&subject.groups);
        let scatter = Scatter { factors: &fit.factors, groups: &fit.groups, chunks: &chunks };
        let best = scatter.best(&self.cluster, kind, bytes, algo);
        let best = best.ok_or("its groups do not cover all chunks")?;
        if best.instructions.len() < 2 {
            return Err(match best.is_second_choice {
                true => "its groups need their chunks in different orders".into(),
                false => no_program(kind, before_s),
            });
        }
        let mut steps = best.instructions.iter().map(|i| Step { instruction: *i, collective: kind }.to_string());
        let told = match kind {
            Collective::AllGather => steps.rev().collect::<Vec<_>>().join(" "),
            _ => steps.by_ref().collect::<Vec<_>>().join(" "),
        };
        let after_s = best.seconds;
        let program = scatter_program(fit, (kind, subject.dim), whole, best);
        Ok(Chosen { program, told, before_s, after_s })
    }
}

fn no_program(kind: Collective, before_s: f64) -> String {
    format!("one {} takes {:.0} ns, no program takes less", said(kind), before_s * 1e9)
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
pub fn all_reduce_program(fit: &Fit, shape: &ArrayShape, steps: &[ArrayStep]) -> Program {
    let n_chunks = fit.factors.iter().product();
    let on_devices = |step: &ArrayStep| match step {
        ArrayStep::Collective { collective, groups } => {
            DeviceStep::Collective { kind: *collective, groups: devices(&fit.groups, groups) }
        }
        ArrayStep::Reorder { order } => DeviceStep::Reorder { order: order.clone() },
    };
    Program {
        cut: Cut::new(shape, n_parts(n_chunks, steps)),
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
) -> Program {
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
    let cut = Cut { padded: whole.clone(), bare: whole.clone(), dim };
    Program { cut, n_chunks, n_held: if gathers { 1 } else { n_chunks }, steps }
}
