//! `cargo xtask paper-wus`: the three models of the weight-update sharding paper (Xu et al. 2020, section 6) on the
//! cluster model, beside the figures that its text gives.
//!
//! Nothing is fitted: all inputs are published sizes and the nominal peaks of the machine; what no source gives is an
//! assumption that the output lists. The time of forward and backward passes depends on how well the matrix units are
//! used, which the paper does not say, so every result is an interval.

use hlo_cluster::{Algo, Cluster, ClusterError, Collective, DeviceProfile};
use std::fmt::Write;

/// Share of the peak rate that training reaches, low and high.
const UTILIZATION: [f64; 2] = [0.2, 0.5];

const ASSUMPTIONS: &str = "\
Assumptions (nothing is fitted to the paper's figures):
  machine       a core has half of a TPUv3 chip's nominal peaks; 32 cores are a 4 x 4 mesh of chips, 2048 a 32 x 32 torus;
                links 82 GB/s each way, 1 us a hop (profiles/tpuv3.toml, clusters/tpuv3*.toml)
  compute       forward + backward = 3 x forward operations at 20 % to 50 % of the peak: an interval, not a value
  weights       f32; ResNet-50 25.6 M (He et al. 2016), Transformer big 210.7 M (Vaswani et al. 2017, 33,708 shared
                subwords), NCF 31.8 M (138,493 users and 26,744 items x (64 + 128), MovieLens-20M)
  work          ResNet-50 4.1 G multiply-adds an image at 224 x 224; Transformer 2 operations a weight and token,
                97 tokens a sentence, nothing for attention scores; NCF its dense layers (0.1 M weights)
  update        memory-bound at the nominal bandwidth: Adam 28 bytes a weight (reads g w m v, writes w m v), LARS 28
                (one pass for the norms of w and g, one that reads g w v and writes w v)
  collectives   one combined collective a step and kind, all bytes in f32, no overlap with compute; at 2048 cores both
                ways of section 5.2: sharded within rows of 64 cores and all-reduced across rows, or sharded over all;
                the norms of LARS cost one more all-reduce
  state         stays sharded from step to step (section 4.2)
";

/// One row of the paper's table 1.
struct Case {
    model: &'static str,
    n_cores: u32,
    batch: f64,
    n_weights: f64,
    /// Forward operations for one example.
    forward_flops: f64,
    /// Bytes of memory traffic of the update for each weight.
    update_bytes: f64,
    has_norms: bool,
    /// What the text says.
    said: Said,
}

enum Said {
    /// The step gets shorter by this share.
    Reduction(f64),
    /// Step time before and after, seconds.
    Times(f64, f64),
    /// Only a bar of figure 11, no number in the text.
    Nothing,
}

const RESNET: Case = Case {
    model: "ResNet-50",
    n_cores: 32,
    batch: 4096.0,
    n_weights: 25.6e6,
    forward_flops: 8.2e9,
    update_bytes: 28.0,
    has_norms: true,
    said: Said::Nothing,
};
const TRANSFORMER: Case = Case {
    model: "Transformer",
    n_cores: 32,
    batch: 512.0,
    n_weights: 210.7e6,
    forward_flops: 2.0 * 210.7e6 * 97.0,
    update_bytes: 28.0,
    has_norms: false,
    said: Said::Reduction(0.09),
};
const CASES: [Case; 5] = [
    RESNET,
    Case { n_cores: 2048, batch: 32768.0, said: Said::Reduction(0.06), ..RESNET },
    TRANSFORMER,
    Case { n_cores: 2048, batch: 2048.0, said: Said::Times(46.5e-3, 25.6e-3), ..TRANSFORMER },
    Case {
        model: "NCF",
        batch: 98304.0,
        n_weights: 31.8e6,
        forward_flops: 2.0 * 0.1e6,
        said: Said::Nothing,
        ..TRANSFORMER
    },
];

/// Seconds of the parts of a step.
struct Parts {
    /// By utilization.
    compute: [f64; 2],
    update: [f64; 2],
    /// Before: all-reduce. After: reduce-scatter, all-reduce across rows, all-gather, norms.
    communication: [f64; 2],
}

impl Parts {
    fn step(&self, which: usize, after: usize) -> f64 {
        self.compute[which] + self.update[after] + self.communication[after]
    }

    fn reduction(&self, which: usize) -> f64 {
        1.0 - self.step(which, 1) / self.step(which, 0)
    }
}

/// Runs the command.
pub(crate) fn run() -> Result<bool, String> {
    print!("{}", report().map_err(|e| e.to_string())?);
    Ok(true)
}

/// The whole output.
fn report() -> Result<String, ClusterError> {
    let mut out = format!("Weight-update sharding, Xu et al. 2020, section 6: model and text\n\n{ASSUMPTIONS}\n");
    let _ = writeln!(
        out,
        "{:12} {:>5} {:>7} {:>6} | {:>14} {:>13} {:>14} | {:>14} {:>14} | {:>12} | text",
        "model",
        "cores",
        "batch",
        "shards",
        "compute ms",
        "update ms",
        "comm. ms",
        "step before",
        "step after",
        "reduction"
    );
    let mut verdicts = String::new();
    for case in &CASES {
        let shards: &[u32] = if case.n_cores == 32 { &[32] } else { &[64, 2048] };
        for &n_shards in shards {
            let parts = model(case, n_shards)?;
            row(case, n_shards, &parts, &mut out);
            verdict(case, n_shards, &parts, &mut verdicts);
        }
    }
    let _ = write!(out, "\n{verdicts}");
    Ok(out)
}

/// One line of the table.
fn row(case: &Case, n_shards: u32, parts: &Parts, out: &mut String) {
    let ms = |a: f64, b: f64| format!("{:.2}..{:.2}", a * 1e3, b * 1e3);
    let arrow = |pair: [f64; 2]| format!("{:.2} -> {:.2}", pair[0] * 1e3, pair[1] * 1e3);
    let said = match case.said {
        Said::Reduction(share) => format!("about {:.0} %", share * 100.0),
        Said::Times(before, after) => {
            format!("{:.1} -> {:.1} ms ({:.0} %)", before * 1e3, after * 1e3, (1.0 - after / before) * 100.0)
        }
        Said::Nothing => "no figure".into(),
    };
    let _ = writeln!(
        out,
        "{:12} {:>5} {:>7} {n_shards:>6} | {:>14} {:>13} {:>14} | {:>14} {:>14} | {:>12} | {said}",
        case.model,
        case.n_cores,
        case.batch,
        ms(parts.compute[1], parts.compute[0]),
        arrow(parts.update),
        arrow(parts.communication),
        ms(parts.step(1, 0), parts.step(0, 0)),
        ms(parts.step(1, 1), parts.step(0, 1)),
        format!("{:.1}..{:.1} %", parts.reduction(0) * 100.0, parts.reduction(1) * 100.0),
    );
}

/// Whether the text's figure lies in the model's interval, and by how much not.
fn verdict(case: &Case, n_shards: u32, parts: &Parts, out: &mut String) {
    let name = format!("{} at {} cores, {n_shards} shards", case.model, case.n_cores);
    let within = |share: f64| parts.reduction(0) <= share && share <= parts.reduction(1);
    let place = |share: f64| if within(share) { "inside" } else { "OUTSIDE" };
    match case.said {
        Said::Nothing => {
            let _ = writeln!(out, "{name}: the text gives no figure (only a bar of figure 11); nothing to compare");
        }
        Said::Reduction(share) => {
            let _ = writeln!(out, "{name}: the reduction of the text lies {} the model's interval", place(share));
        }
        Said::Times(before, after) => {
            let saved_s = before - after;
            let modelled_s = parts.step(0, 0) - parts.step(0, 1);
            let bandwidth = case.n_weights * case.update_bytes / saved_s;
            let _ = writeln!(
                out,
                "{name}: the reduction of the text lies {} the model's interval; the model MISSES the times:\n  \
                 the text saves {:.1} ms, the model {:.1} ms; the text's step is {:.1} ms before and {:.1} ms after,\n  \
                 the model's at most {:.1} and {:.1} ms. Saving {:.1} ms would need an update that runs at {:.0} GB/s \
                 or slower\n  (nominal: 450 GB/s); what else fills the remaining step (attention, padding, input) is \
                 not modelled.",
                place(1.0 - after / before),
                saved_s * 1e3,
                modelled_s * 1e3,
                before * 1e3,
                after * 1e3,
                parts.step(0, 0) * 1e3,
                parts.step(0, 1) * 1e3,
                saved_s * 1e3,
                bandwidth / 1e9,
            );
        }
    }
}

fn model(case: &Case, n_shards: u32) -> Result<Parts, ClusterError> {
    let device = DeviceProfile::from_arg("tpuv3")?;
    let cluster = Cluster::from_arg(if case.n_cores == 32 { "tpuv3-slice" } else { "tpuv3" })?;
    let n_cores = cluster.n_devices();
    let all = vec![(0..n_cores).collect::<Vec<u32>>()];
    let bytes = 4.0 * case.n_weights;
    // Sharded over everything, or within rows of chips; devices with the same place in their rows form the columns.
    let row = n_shards;
    let rows: Vec<Vec<u32>> = (0..n_cores / row).map(|r| (r * row..(r + 1) * row).collect()).collect();
    let columns: Vec<Vec<u32>> = (0..row).map(|c| (0..n_cores / row).map(|r| r * row + c).collect()).collect();
    let time = |kind, bytes, groups: &[Vec<u32>]| cluster.collective_s(kind, bytes, groups, Algo::Auto);
    let norms = if case.has_norms { time(Collective::AllReduce, 4096.0, &all) } else { 0.0 };
    let sharded = time(Collective::ReduceScatter, bytes, &rows)
        + time(Collective::AllReduce, bytes / f64::from(row), &columns)
        + time(Collective::AllGather, bytes, &rows)
        + norms;
    let update = device.op_s(0.0, case.n_weights * case.update_bytes, "f32");
    let update_sharded = device.op_s(0.0, case.n_weights * case.update_bytes / f64::from(row), "f32");
    let flops = 3.0 * case.forward_flops * case.batch / f64::from(n_cores);
    Ok(Parts {
        compute: UTILIZATION.map(|share| flops / (share * device.flops_per_s("bf16"))),
        update: [update, update_sharded],
        communication: [time(Collective::AllReduce, bytes, &all), sharded],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_update_is_what_the_text_says_it_is() {
        let of = |i: usize| model(&CASES[i], CASES[i].n_cores).expect("a model");
        // The text's order of effects: large weights gain more, larger clusters gain more.
        assert!(of(0).reduction(0) < of(1).reduction(0));
        assert!(of(0).reduction(0) < of(2).reduction(0));
        assert!(of(2).reduction(1) < of(3).reduction(0));
        // Reduce-scatter and all-gather cost about what the all-reduce did.
        let parts = of(2);
        assert!((parts.communication[1] / parts.communication[0] - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_miss_is_said() {
        let text = report().expect("a report");
        assert!(text.contains("MISSES the times"), "{text}");
    }
}
