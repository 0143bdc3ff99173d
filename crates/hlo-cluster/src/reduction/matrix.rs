//! Parallelism matrices: how axes of parallelism are laid over the levels of a machine (P², sections 3.1 and 3.4).
//!
//! `x[i][j]` is the share of axis `i` in level `j`; rows multiply to the axes, columns to the levels. Devices are
//! numbered row-major over the levels; within a level axis 0 is the most significant.

use crate::error::ClusterError;

/// Most placements that are listed: more are more than anybody waits for.
const MAX_MATRICES: usize = 1 << 16;

/// A placement of parallelism axes on a hierarchy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ParallelismMatrix {
    rows: Vec<Vec<u32>>,
}

/// How the positions of a reduction over several axes are numbered before the hierarchy is applied to them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lowering {
    /// Level by level, so that each level of the hierarchy is one level of the machine.
    LevelMajor,
    /// Axis by axis: what the paper's measurements show.
    AxisMajor,
}

impl Lowering {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Lowering::LevelMajor => "level-major",
            Lowering::AxisMajor => "axis-major",
        }
    }
}

impl ParallelismMatrix {
    /// A matrix from its rows, one for each axis.
    ///
    /// # Errors
    /// It has no row or no column, rows of different lengths, a zero, or products other than `levels` and `axes`.
    pub fn new(rows: Vec<Vec<u32>>, levels: &[u32], axes: &[u32]) -> Result<ParallelismMatrix, ClusterError> {
        if rows.len() != axes.len() || rows.iter().any(|row| row.len() != levels.len()) {
            let expected = format!("{} rows of {} numbers", axes.len(), levels.len());
            return Err(ClusterError::new("matrix", expected, format!("{rows:?}")));
        }
        let matrix = ParallelismMatrix { rows };
        for (j, &level) in levels.iter().enumerate() {
            let found: u64 = matrix.rows.iter().map(|row| u64::from(row[j])).product();
            if found != u64::from(level) {
                return Err(ClusterError::new(
                    format!("matrix, column {j}"),
                    format!("a product of {level}"),
                    found.to_string(),
                ));
            }
        }
        for (i, &axis) in axes.iter().enumerate() {
            let found: u64 = matrix.rows[i].iter().map(|&x| u64::from(x)).product();
            if found != u64::from(axis) {
                return Err(ClusterError::new(
                    format!("matrix, row {i}"),
                    format!("a product of {axis}"),
                    found.to_string(),
                ));
            }
        }
        Ok(matrix)
    }

    /// All matrices of a hierarchy and axes, in the order of their rows.
    ///
    /// # Errors
    /// The axes do not multiply to the number of devices, or there is none.
    pub fn all(levels: &[u32], axes: &[u32]) -> Result<Vec<ParallelismMatrix>, ClusterError> {
        let product = |of: &[u32]| of.iter().try_fold(1u64, |p, &x| p.checked_mul(u64::from(x)));
        let n_devices = product(levels).unwrap_or(0);
        if axes.is_empty() || product(axes) != Some(n_devices) || n_devices == 0 {
            let expected = format!("sizes that multiply to {n_devices} devices");
            return Err(ClusterError::new("axes", expected, format!("{axes:?}")));
        }
        let mut out = Vec::new();
        let mut rows = vec![vec![1u32; levels.len()]; axes.len()];
        let (mut left_axes, mut left_levels) = (axes.to_vec(), levels.to_vec());
        fill(&mut rows, 0, 0, &mut left_axes, &mut left_levels, &mut out);
        if out.len() > MAX_MATRICES {
            let expected = format!("axes with at most {MAX_MATRICES} placements (join some, or give one placement)");
            return Err(ClusterError::new("axes", expected, format!("more, for {axes:?}")));
        }
        Ok(out)
    }

    /// The rows, one for each axis.
    pub fn rows(&self) -> &[Vec<u32>] {
        &self.rows
    }

    /// Number of levels.
    pub fn n_levels(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// By level: the product over the axes in `reduce`.
    pub fn reduction_factors(&self, reduce: &[usize]) -> Vec<u32> {
        (0..self.n_levels())
            .map(|j| reduce.iter().filter_map(|&i| self.rows.get(i)).map(|row| row[j]).product())
            .collect()
    }

    /// The devices that reduce together: one list for each combination of the other axes, by position of the hierarchy.
    pub fn reduction_groups(&self, reduce: &[usize], lowering: Lowering) -> Vec<Vec<u32>> {
        let digits = |is_reduced: bool| -> Vec<(usize, usize)> {
            let axes: Vec<usize> = (0..self.rows.len()).filter(|i| reduce.contains(i) == is_reduced).collect();
            match lowering {
                Lowering::AxisMajor => axes.iter().flat_map(|&i| (0..self.n_levels()).map(move |j| (i, j))).collect(),
                Lowering::LevelMajor => (0..self.n_levels()).flat_map(|j| axes.iter().map(move |&i| (i, j))).collect(),
            }
        };
        let positions = self.offsets(&digits(true));
        let others = self.offsets(&digits(false));
        let mut groups: Vec<Vec<u32>> = others.iter().map(|o| positions.iter().map(|p| o + p).collect()).collect();
        groups.sort();
        groups
    }

    /// Device ids reached by running through these digits, the first the most significant, the others at zero.
    fn offsets(&self, digits: &[(usize, usize)]) -> Vec<u32> {
        let mut out = vec![0u32];
        for &(i, j) in digits {
            let weight = self.weight(i, j);
            out = out.iter().flat_map(|base| (0..self.rows[i][j]).map(move |value| base + value * weight)).collect();
        }
        out
    }

    /// What one step of digit (axis, level) adds to a device id.
    fn weight(&self, axis: usize, level: usize) -> u32 {
        let below: u32 = self.rows.iter().flat_map(|row| &row[level + 1..]).product();
        below * self.rows[axis + 1..].iter().map(|row| row[level]).product::<u32>()
    }
}

/// Fills cell (i, j) and all after it; `axes` and `levels` are what is left of the products. Stops with one matrix too many.
fn fill(
    rows: &mut Vec<Vec<u32>>,
    i: usize,
    j: usize,
    axes: &mut [u32],
    levels: &mut [u32],
    out: &mut Vec<ParallelismMatrix>,
) {
    if out.len() > MAX_MATRICES {
        return;
    }
    if i == rows.len() {
        if levels.iter().all(|l| *l == 1) {
            out.push(ParallelismMatrix { rows: rows.clone() });
        }
        return;
    }
    if j == levels.len() {
        if axes[i] == 1 {
            fill(rows, i + 1, 0, axes, levels, out);
        }
        return;
    }
    for x in 1..=axes[i].min(levels[j]) {
        if axes[i].is_multiple_of(x) && levels[j].is_multiple_of(x) {
            rows[i][j] = x;
            (axes[i], levels[j]) = (axes[i] / x, levels[j] / x);
            fill(rows, i, j + 1, axes, levels, out);
            (axes[i], levels[j]) = (axes[i] * x, levels[j] * x);
        }
    }
}
