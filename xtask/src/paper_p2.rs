//! `cargo xtask paper-p2`: the simulator and the planner against the A100 rows of P²'s appendix A (Xie et al. 2022).
//!
//! Nothing is fitted. The bandwidths are those that the paper's own simulator assumes; latencies are left out. The data is
//! what the paper reduces (2²⁹ floats, ten times). Positions are numbered axis by axis, and the rules are the pinned ones.

use hlo_cluster::reduction::{Lowering, ParallelismMatrix, Planner, Request, Rules};
use hlo_cluster::{Algo, Cluster, ClusterError};
use std::collections::BTreeMap;
use std::fmt::Write;

const TABLE: &str = include_str!("../../crates/hlo-cluster/tests/data/p2_appendix_a100.csv");
/// 2²⁹ floats, ten runs.
const BYTES: f64 = 2_147_483_648.0 * 10.0;

/// Measured and predicted seconds of one matrix, for one algorithm.
struct Row {
    group: String,
    matrix: String,
    all_reduce: [f64; 2],
    optimum: [f64; 2],
    n_faster: u128,
    n_faster_measured: u128,
}

/// Agreement for one algorithm.
struct Agreement {
    all_reduce: f64,
    optimum: f64,
    /// Rows of the table whose measured-best matrix is among those predicted to be the best, and all rows.
    best: (usize, usize),
    /// Programs that beat the single all-reduce: predicted, measured.
    faster: (u128, u128),
    /// Of pairs of matrices of a row that differ by more than 5 % in measurement and in prediction: agree, disagree.
    pairs: (usize, usize),
}

/// Runs the command.
pub(crate) fn run() -> Result<bool, String> {
    let (text, fine) = report().map_err(|e| e.to_string())?;
    print!("{text}");
    Ok(fine)
}

/// The output, and whether the agreement is what the repository promises.
fn report() -> Result<(String, bool), ClusterError> {
    let mut out =
        String::from("P2, appendix A, A100: predicted against measured (axis-major, pinned rules, no latency)\n\n");
    let mut fine = true;
    for (algo, name, least) in [(Algo::Ring, "ring", (0.98, 0.99)), (Algo::Tree, "tree", (0.96, 0.98))] {
        let rows = rows(algo)?;
        let found = agreement(&rows);
        let _ = writeln!(
            out,
            "{name}: Spearman all-reduce {:.3} (at least {}), optimum {:.3} (at least {}); {} matrices",
            found.all_reduce,
            least.0,
            found.optimum,
            least.1,
            rows.len()
        );
        let _ = writeln!(
            out,
            "  measured-best matrix among the predicted-best ones: {} of {}; pairs of matrices more than 5 % apart: {} \
             agree, {} disagree",
            found.best.0, found.best.1, found.pairs.0, found.pairs.1
        );
        let _ = writeln!(
            out,
            "  programs faster than one all-reduce: {} predicted, {} measured",
            found.faster.0, found.faster.1
        );
        fine &= found.all_reduce >= least.0 && found.optimum >= least.1 && found.best.0 == found.best.1;
    }
    Ok((out, fine))
}

fn rows(algo: Algo) -> Result<Vec<Row>, ClusterError> {
    let column = if algo == Algo::Ring { 0 } else { 1 };
    let mut out = Vec::new();
    for line in TABLE.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |i: usize| cells.get(i).copied().unwrap_or_default();
        let number = |i: usize| cell(i).parse::<f64>().unwrap_or(f64::NAN);
        let list = |text: &str| text.split(' ').filter_map(|n| n.parse::<u32>().ok()).collect::<Vec<u32>>();
        let cluster = Cluster::from_arg(&format!("p2-a100:{}", cell(2)))?.without_latency();
        let axes = list(cell(5));
        let mut planner = Planner::new(&cluster, Rules::Pinned);
        let matrix = ParallelismMatrix::new(cell(13).split(';').map(list).collect(), planner.levels(), &axes)?;
        let request = Request {
            reduce: list(cell(6)).into_iter().map(|i| i as usize).collect(),
            bytes: BYTES,
            algo,
            lowering: Some(Lowering::AxisMajor),
            max_size: None,
        };
        let plan = planner.plan(matrix, &request)?;
        out.push(Row {
            group: cell(0).into(),
            matrix: cell(13).into(),
            all_reduce: [number(14 + column), plan.all_reduce_s],
            optimum: [number(16 + column), plan.best_s],
            n_faster: plan.n_faster,
            n_faster_measured: number(10 + column) as u128,
        });
    }
    Ok(out)
}

fn agreement(rows: &[Row]) -> Agreement {
    let column = |of: fn(&Row) -> [f64; 2], i: usize| rows.iter().map(|row| of(row)[i]).collect::<Vec<f64>>();
    let rank = |of: fn(&Row) -> [f64; 2]| spearman(&column(of, 0), &column(of, 1));
    let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| groups.entry(&row.group).or_default().push(row));
    let (mut hits, mut faster, mut pairs) = (0, (0, 0), (0, 0));
    for rows in groups.values() {
        let least = |i: usize| rows.iter().map(|row| row.all_reduce[i]).fold(f64::INFINITY, f64::min);
        let (measured, predicted) = (least(0), least(1));
        let is_hit = |row: &&&Row| row.all_reduce[0] == measured && row.all_reduce[1] <= predicted * (1.0 + 1e-9);
        hits += usize::from(rows.iter().any(|row| is_hit(&row)));
        // The table gives the number of faster programs once for all matrices of a row.
        faster.0 += rows.iter().map(|row| row.n_faster).sum::<u128>();
        faster.1 += rows.first().map_or(0, |row| row.n_faster_measured);
        for (i, a) in rows.iter().enumerate() {
            for b in rows.iter().skip(i + 1).filter(|b| b.matrix != a.matrix) {
                let apart = |i: usize| (a.all_reduce[i] / b.all_reduce[i]).ln();
                if apart(0).abs() > 1.05f64.ln() && apart(1).abs() > 1.05f64.ln() {
                    if apart(0) * apart(1) > 0.0 { pairs.0 += 1 } else { pairs.1 += 1 }
                }
            }
        }
    }
    Agreement {
        all_reduce: rank(|row| row.all_reduce),
        optimum: rank(|row| row.optimum),
        best: (hits, groups.len()),
        faster,
        pairs,
    }
}

/// Spearman's rank correlation, equal values sharing their average rank.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let covariance = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    covariance(&a, &b) / (covariance(&a, &a) * covariance(&b, &b)).sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    // Predictions that differ by rounding alone are equal.
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut out = vec![0.0; values.len()];
    let mut start = 0;
    for run in order.chunk_by(|a, b| same(values[*a], values[*b])) {
        let rank = start as f64 + (run.len() as f64 + 1.0) / 2.0;
        run.iter().for_each(|i| out[*i] = rank);
        start += run.len();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_table_is_predicted() {
        let (text, fine) = report().expect("a report");
        assert!(fine, "{text}");
    }

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert!((spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 15.0]) - 0.5).abs() < 1e-12);
    }
}
