//! How long runs and their steps took, for `hlo-opt run --repeat` and `--times`.

use hlo_gpu::plan::{Plan, Work};
use hlo_run::Finished;

/// One line: the runs after the first, and the first beside them; of runs of several steps the time for a step. `None` where
/// there was one run of one step alone.
pub(crate) fn summary(finished: &Finished) -> Option<String> {
    let n_steps = f64::from(finished.n_steps);
    if let ([only], 2..) = (finished.run_seconds.as_slice(), finished.n_steps) {
        return Some(format!(
            "time: {:.4} ms for each of {n_steps} steps, the first of which is slower\n",
            only * 1e3 / n_steps
        ));
    }
    let (first, others) = finished.run_seconds.split_first()?;
    let mut sorted = others.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (sorted.first()?, sorted.last()?);
    let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    let n = sorted.len();
    let [median, least, most, first] = [median, *least, *most, *first].map(|seconds| seconds * 1e3 / n_steps);
    let each = if finished.n_steps > 1 { format!(" of {n_steps} steps, for a step") } else { String::new() };
    Some(format!(
        "time: median {median:.4} ms, least {least:.4}, most {most:.4} of {n} runs{each}; the first took {first:.2} ms\n"
    ))
}

/// A TSV of the entry's steps, slowest first: milliseconds, what it is, its name, bytes that it reads and writes, GB/s of them.
pub(crate) fn steps(plan: &Plan, finished: &Finished) -> String {
    let mut rows: Vec<(f64, usize)> = finished.step_seconds.iter().copied().zip(0..).collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut text = "ms\tkind\tstep\tbytes\tGB/s\n".to_string();
    for (seconds, i) in rows {
        let step = &plan.steps[i];
        let accesses = step.work.accesses(plan);
        let buffers = accesses.reads.iter().chain(&accesses.writes);
        let n_bytes: u64 = buffers.map(|&buffer| plan.buffers[buffer].shape.size_bytes()).sum();
        let rate = if seconds > 0.0 { n_bytes as f64 / seconds / 1e9 } else { 0.0 };
        text += &format!("{:.5}\t{}\t{}\t{n_bytes}\t{rate:.1}\n", seconds * 1e3, kind(&step.work), step.name);
    }
    text
}

fn kind(work: &Work) -> &'static str {
    match work {
        Work::Launch { .. } => "kernel",
        Work::Gemm(_) => "gemm",
        Work::Collective(_) => "collective",
        Work::Copy { .. } => "copy",
        Work::Fill { .. } => "fill",
        Work::While { .. } => "loop",
        Work::Conditional { .. } => "branch",
    }
}

#[cfg(test)]
mod tests {
    use super::summary;
    use hlo_run::Finished;

    #[test]
    fn the_first_run_is_no_part_of_the_median() {
        let of = |run_seconds: &[f64], n_steps| {
            let run_seconds = run_seconds.to_vec();
            summary(&Finished { outputs: Vec::new(), run_seconds, n_steps, step_seconds: Vec::new() })
        };
        assert_eq!(of(&[1.0], 1), None);
        let text = of(&[1.0, 0.004, 0.002, 0.003, 0.009], 1);
        let expected = "time: median 3.5000 ms, least 2.0000, most 9.0000 of 4 runs; the first took 1000.00 ms\n";
        assert_eq!(text.as_deref(), Some(expected));
        let text = of(&[1.0, 0.004], 4);
        let expected = "time: median 1.0000 ms, least 1.0000, most 1.0000 of 1 runs of 4 steps, for a step; the first took 250.00 ms\n";
        assert_eq!(text.as_deref(), Some(expected));
        let text = of(&[1.0], 4);
        assert_eq!(text.as_deref(), Some("time: 250.0000 ms for each of 4 steps, the first of which is slower\n"));
    }
}
