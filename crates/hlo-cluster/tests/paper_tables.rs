//! The A100 rows of P²'s appendix A: every list of matrices and every total of programs.

use hlo_cluster::reduction::graph::Graph;
use hlo_cluster::reduction::{ParallelismMatrix, Rules};
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = include_str!("data/p2_appendix_a100.csv");

fn numbers(text: &str, separator: char) -> Vec<u32> {
    text.split(separator).filter_map(|n| n.trim().parse().ok()).collect()
}

/// Levels, axes and reduced axes → matrices and total.
type Rows = BTreeMap<(Vec<u32>, Vec<u32>, Vec<u32>), (BTreeSet<Vec<Vec<u32>>>, u128)>;

fn rows() -> Rows {
    let mut rows = Rows::new();
    for line in TABLE.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let levels = vec![cells[2].parse().expect("nodes"), cells[3].parse().expect("GPUs")];
        let key = (levels, numbers(cells[5], ' '), numbers(cells[6], ' '));
        let matrix = cells[13].split(';').map(|row| numbers(row, ' ')).collect();
        let entry = rows.entry(key).or_default();
        entry.0.insert(matrix);
        entry.1 = cells[12].parse().expect("a total");
    }
    rows
}

#[test]
fn matrices_and_totals_are_those_of_the_paper() {
    let counts: Vec<u128> = (0..3).map(|n| Graph::build(n, Rules::Pinned).expect("a graph").n_programs(None)).collect();
    let rows = rows();
    let mut totals = BTreeSet::new();
    for ((levels, axes, reduce), (matrices, total)) in &rows {
        let reduce: Vec<usize> = reduce.iter().map(|i| *i as usize).collect();
        let ours = ParallelismMatrix::all(levels, axes).expect("matrices");
        let ours_rows: BTreeSet<Vec<Vec<u32>>> = ours.iter().map(|m| m.rows().to_vec()).collect();
        assert_eq!(&ours_rows, matrices, "{levels:?} {axes:?}");
        let n_factors = |m: &ParallelismMatrix| m.reduction_factors(&reduce).iter().filter(|f| **f > 1).count();
        assert_eq!(ours.iter().map(|m| counts[n_factors(m)]).sum::<u128>(), *total, "{levels:?} {axes:?} {reduce:?}");
        totals.insert(*total);
    }
    assert_eq!(rows.len(), 23);
    assert_eq!(totals, BTreeSet::from([6, 47, 50, 53, 94, 97, 188, 235]));
}

#[test]
fn wrong_axes_and_matrices_are_refused() {
    let error = |outcome: Result<ParallelismMatrix, _>| {
        outcome.err().map_or("none".into(), |e: hlo_cluster::ClusterError| e.to_string())
    };
    let all = ParallelismMatrix::all(&[2, 16], &[4, 4]).err().map(|e| e.to_string());
    assert_eq!(all.as_deref(), Some("axes: expected sizes that multiply to 32 devices, found [4, 4]"));
    let wrong = ParallelismMatrix::new(vec![vec![1, 4], vec![4, 4]], &[2, 16], &[4, 16]);
    assert_eq!(error(wrong), "matrix, column 0: expected a product of 2, found 4");
    let wrong = ParallelismMatrix::new(vec![vec![1, 4], vec![2, 4]], &[2, 16], &[8, 4]);
    assert_eq!(error(wrong), "matrix, row 0: expected a product of 8, found 4");
    let wrong = ParallelismMatrix::new(vec![vec![1, 4]], &[2, 16], &[8, 4]);
    assert_eq!(error(wrong), "matrix: expected 2 rows of 2 numbers, found [[1, 4]]");
}

/// A device id from its digits, by the definition: row-major over levels, axis 0 the most significant within a level.
fn device(matrix: &ParallelismMatrix, digits: &[Vec<u32>]) -> u32 {
    let mut id = 0;
    for level in 0..matrix.n_levels() {
        for (row, of_axis) in matrix.rows().iter().zip(digits) {
            id = id * row[level] + of_axis[level];
        }
    }
    id
}

#[test]
fn reduction_groups_follow_the_digits() {
    use hlo_cluster::reduction::Lowering;
    for matrix in ParallelismMatrix::all(&[2, 6, 4], &[4, 6, 2]).expect("matrices") {
        for reduce in [vec![0], vec![1], vec![0, 2], vec![1, 2], vec![0, 1, 2]] {
            for lowering in [Lowering::AxisMajor, Lowering::LevelMajor] {
                let groups = matrix.reduction_groups(&reduce, lowering);
                let mut seen = BTreeSet::new();
                for group in &groups {
                    group.iter().for_each(|d| assert!(seen.insert(*d)));
                }
                assert_eq!(seen.len(), 48);
                // The first group holds the devices whose other digits are zero, in the order of the lowering.
                let mut expected = Vec::new();
                let rows = matrix.rows();
                let order: Vec<(usize, usize)> = match lowering {
                    Lowering::AxisMajor => reduce.iter().flat_map(|&i| (0..3).map(move |j| (i, j))).collect(),
                    Lowering::LevelMajor => (0..3).flat_map(|j| reduce.iter().map(move |&i| (i, j))).collect(),
                };
                let n: u32 = order.iter().map(|&(i, j)| rows[i][j]).product();
                for position in 0..n {
                    let (mut rest, mut digits) = (position, vec![vec![0; 3]; 3]);
                    for &(i, j) in order.iter().rev() {
                        digits[i][j] = rest % rows[i][j];
                        rest /= rows[i][j];
                    }
                    expected.push(device(&matrix, &digits));
                }
                assert_eq!(groups[0], expected);
            }
        }
    }
}
