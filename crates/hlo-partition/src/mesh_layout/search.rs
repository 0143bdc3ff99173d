//! The integer program of automatic layouts, and its exact solution.
//!
//! For each name `t` and axis `m` a boolean `x[t,m]`, and `z`, at least the live memory at each op. Each name has at most one axis; in an
//! op or a tensor each axis cuts at most one name; an axis divides what it cuts. Minimised is `(T + 1) z - Σ x`, with `T` the number of names:
//! `Σ x` is at most `T`, so it only decides between layouts of equal memory, of which the one that cuts more names is taken.
//!
//! Solved by branch and bound over names. The bound of a node lets every open name of a tensor take the largest axes that no decided
//! name of the tensor has.

use hlo_pass::{Deadline, OutOfTime};

/// Names, at most 64, as bits.
pub(crate) type NameSet = u64;

/// The program.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayoutProblem {
    /// Size of each name's dim; names that may not be cut have size 0, which no axis divides.
    pub sizes: Vec<i64>,
    /// Size of each axis.
    pub axes: Vec<i64>,
    /// For each name those that may not have its axis.
    pub conflicts: Vec<NameSet>,
    /// Sets of names that tensors have.
    pub tensors: Vec<NameSet>,
    /// For some ops the live bytes by tensor set.
    pub live: Vec<Vec<f64>>,
    /// Ops that are not among them, which might have more in some layout.
    pub n_left_out: usize,
}

/// A solution.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Solution {
    /// The axis of each name.
    pub axis_of: Vec<Option<usize>>,
    /// Live bytes of a device at the op that has most.
    pub z_bytes: f64,
    /// `(T + 1) z - Σ x`.
    pub objective: f64,
    /// Nodes that were looked at.
    pub n_steps: u64,
    /// Whether no better one exists; else the steps ran out.
    pub is_proved: bool,
}

impl LayoutProblem {
    /// Whether an axis may cut a name beside what is decided.
    pub(crate) fn allows(&self, axis_of: &[Option<usize>], name: usize, axis: usize) -> bool {
        let size = self.sizes[name];
        let is_taken =
            |(other, its): (usize, &Option<usize>)| *its == Some(axis) && self.conflicts[name] >> other & 1 == 1;
        size > 0 && size % self.axes[axis] == 0 && !axis_of.iter().enumerate().any(is_taken)
    }

    /// The most live bytes that a device has at an op; with names from `n_decided` on undecided, a bound from below.
    fn memory(&self, axis_of: &[Option<usize>], n_decided: usize) -> f64 {
        let mut largest_first: Vec<usize> = (0..self.axes.len()).collect();
        largest_first.sort_by_key(|&axis| std::cmp::Reverse(self.axes[axis]));
        let divisors: Vec<f64> =
            self.tensors.iter().map(|&names| self.divisor(axis_of, n_decided, names, &largest_first)).collect();
        let of_op = |live: &Vec<f64>| live.iter().zip(&divisors).map(|(bytes, divisor)| bytes / divisor).sum::<f64>();
        self.live.iter().map(of_op).fold(0.0, f64::max)
    }

    /// By how much a tensor gets smaller, at most.
    fn divisor(&self, axis_of: &[Option<usize>], n_decided: usize, names: NameSet, largest_first: &[usize]) -> f64 {
        let (mut divisor, mut used, mut n_open) = (1.0, 0u64, 0usize);
        for name in (0..self.sizes.len()).filter(|name| names >> name & 1 == 1) {
            match axis_of[name] {
                Some(axis) => {
                    divisor *= self.axes[axis] as f64;
                    used |= 1 << axis;
                }
                None => n_open += usize::from(name >= n_decided && self.sizes[name] > 0),
            }
        }
        let free = largest_first.iter().filter(|&&axis| used >> axis & 1 == 0).take(n_open);
        free.fold(divisor, |divisor, &axis| divisor * self.axes[axis] as f64)
    }

    fn objective(&self, z_bytes: f64, n_cut: usize) -> f64 {
        (self.sizes.len() + 1) as f64 * z_bytes - n_cut as f64
    }

    /// The live bytes and the objective of a layout.
    pub(crate) fn rated(&self, axis_of: &[Option<usize>]) -> (f64, f64) {
        let z = self.memory(axis_of, self.sizes.len());
        (z, self.objective(z, axis_of.iter().flatten().count()))
    }

    /// Name by name the axis that leaves the least memory.
    fn greedy(&self) -> Vec<Option<usize>> {
        let mut axis_of = vec![None; self.sizes.len()];
        for name in 0..self.sizes.len() {
            let mut best = (self.rated(&axis_of).1, None);
            for axis in (0..self.axes.len()).filter(|&axis| self.allows(&axis_of, name, axis)).collect::<Vec<_>>() {
                axis_of[name] = Some(axis);
                let objective = self.rated(&axis_of).1;
                if objective < best.0 {
                    best = (objective, Some(axis));
                }
            }
            axis_of[name] = best.1;
        }
        axis_of
    }

    /// The best layout, looking at `most_steps` nodes at most.
    ///
    /// # Errors
    /// The time is over.
    pub(crate) fn solve(&self, most_steps: u64, deadline: Deadline) -> Result<Solution, OutOfTime> {
        let axis_of = self.greedy();
        let (z_bytes, objective) = self.rated(&axis_of);
        let mut search = Search {
            problem: self,
            best: Solution { axis_of, z_bytes, objective, n_steps: 0, is_proved: self.n_left_out == 0 },
            most_steps,
            deadline,
            now: vec![None; self.sizes.len()],
        };
        search.branch(0)?;
        Ok(search.best)
    }
}

struct Search<'p> {
    problem: &'p LayoutProblem,
    best: Solution,
    most_steps: u64,
    deadline: Deadline,
    now: Vec<Option<usize>>,
}

impl Search<'_> {
    /// Decides the names from `name` on.
    fn branch(&mut self, name: usize) -> Result<(), OutOfTime> {
        if self.best.n_steps >= self.most_steps {
            self.best.is_proved = false;
            return Ok(());
        }
        self.deadline.check()?;
        self.best.n_steps += 1;
        let n_names = self.problem.sizes.len();
        let z = self.problem.memory(&self.now, name);
        let n_cut = self.now.iter().flatten().count() + (n_names - name);
        if self.problem.objective(z, n_cut) >= self.best.objective {
            return Ok(());
        }
        if name == n_names {
            self.best.axis_of.clone_from(&self.now);
            self.best.z_bytes = z;
            self.best.objective = self.problem.objective(z, n_cut);
            return Ok(());
        }
        for axis in 0..self.problem.axes.len() {
            if self.problem.allows(&self.now, name, axis) {
                self.now[name] = Some(axis);
                self.branch(name + 1)?;
                self.now[name] = None;
            }
        }
        self.branch(name + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[a,b] * [b,c]`, all three tensors live at the product.
    fn product(sizes: [i64; 3], axes: &[i64]) -> LayoutProblem {
        let [a, b, c] = sizes.map(|size| size as f64);
        LayoutProblem {
            sizes: sizes.to_vec(),
            axes: axes.to_vec(),
            conflicts: vec![0b110, 0b101, 0b011],
            tensors: vec![0b011, 0b110, 0b101],
            live: vec![vec![a * b, b * c, a * c]],
            n_left_out: 0,
        }
    }

    #[test]
    fn the_worked_example_has_tensors_of_25() {
        let solution = product([10, 5, 20], &[4, 2]).solve(1_000_000, Deadline::default()).expect("no end");
        // a over the axis of 2, c over that of 4: 50 / 2, 100 / 4, 200 / 8.
        assert_eq!(solution.axis_of, [Some(1), None, Some(0)]);
        assert_eq!(solution.z_bytes, 75.0);
        assert_eq!(solution.objective, 4.0 * 75.0 - 2.0);
        assert!(solution.is_proved);
    }

    #[test]
    fn it_is_the_best_of_all() {
        let mut state = 7u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let n_names = 2 + draw(4) as usize;
            let sizes: Vec<i64> = (0..n_names).map(|_| [0, 4, 6, 8, 12][draw(5) as usize]).collect();
            let mut conflicts = vec![0u64; n_names];
            let tensors: Vec<NameSet> = (0..3).map(|_| draw(1 << n_names)).collect();
            for &tensor in &tensors {
                (0..n_names).filter(|n| tensor >> n & 1 == 1).for_each(|n| conflicts[n] |= tensor & !(1 << n));
            }
            let live = (0..3).map(|_| (0..3).map(|_| draw(100) as f64).collect()).collect();
            let problem = LayoutProblem { sizes, axes: vec![2, 4], conflicts, tensors, live, n_left_out: 0 };
            let found = problem.solve(u64::MAX, Deadline::default()).expect("no end");
            let mut least = f64::INFINITY;
            for code in 0..3usize.pow(n_names as u32) {
                let mut axis_of: Vec<Option<usize>> = vec![None; n_names];
                let is_legal = (0..n_names).all(|name| match code / 3usize.pow(name as u32) % 3 {
                    0 => true,
                    axis => {
                        let fits = problem.allows(&axis_of, name, axis - 1);
                        axis_of[name] = Some(axis - 1);
                        fits
                    }
                });
                if is_legal {
                    least = least.min(problem.rated(&axis_of).1);
                }
            }
            assert_eq!(found.objective, least, "{problem:?}");
        }
    }

    #[test]
    fn a_limit_of_steps_is_told() {
        let solution = product([10, 5, 20], &[4, 2]).solve(2, Deadline::default()).expect("no end");
        assert!(!solution.is_proved);
        assert_eq!(solution.n_steps, 2);
    }
}
