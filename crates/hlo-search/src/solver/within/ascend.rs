//! Prices of several limits at once, by steps along the subgradient.
//!
//! With `g` what a minimizer takes of each limit over that limit, as a part of it, prices (of whole limits) move by `t * d`, where `d`
//! is a mean of `g` and the last `d`, and `t = q * (cost - bound) / |d|^2` (Polyak 1969, with the best known cost as the aim). `q`
//! halves when the bound did not get better three times.

use super::{Point, Within};
use crate::solver::facts::Search;
use crate::solver::limits::{highest_price, price_of};
use crate::solver::problem::Cost;
use crate::solver::tables::is_infinite;

/// How much of the last direction stays.
const INERTIA: f64 = 0.3;

impl Within {
    /// Moves the prices while that raises the bound; the minimizer at the best ones, or none if that closes the search.
    pub(super) fn ascend(&mut self, search: &mut Search, mut point: Point) -> Option<Point> {
        let limits: Vec<f64> = self.model.limits.iter().map(|limit| (*limit).max(1) as f64).collect();
        let highest: Vec<u64> = (0..limits.len()).map(|limit| highest_price(&self.model, limit)).collect();
        let mut worths: Vec<f64> = vec![0.0; limits.len()];
        for (worth, (price, limit)) in worths.iter_mut().zip(self.prices.iter().zip(&limits)) {
            *worth = *price as f64 * limit / price_of(1, 1) as f64;
        }
        let mut direction = vec![0.0; limits.len()];
        let (mut pace, mut n_idle) = (1.0, 0);
        for _ in 0..self.n_ascents {
            if self.is_done(search) {
                return None;
            }
            for ((direction, taken), limit) in direction.iter_mut().zip(&point.taken).zip(&limits) {
                *direction = INERTIA * *direction + (*taken as f64 - limit) / limit;
            }
            let square: f64 = direction.iter().map(|part| part * part).sum();
            let aim = if is_infinite(self.cutoff) { self.bound / 10 } else { self.cutoff - self.bound };
            if square <= 0.0 {
                break;
            }
            let step = pace * aim.max(1) as f64 / square;
            worths.iter_mut().zip(&direction).for_each(|(worth, part)| *worth = (*worth + step * part).max(0.0));
            let price = |(limit, worth): (usize, &f64)| {
                let amount = self.model.limits[limit].max(1);
                price_of(*worth as Cost, amount).min(highest[limit])
            };
            let prices: Vec<u64> = worths.iter().enumerate().map(price).collect();
            let last_bound = self.bound;
            point = self.minimizer_at(search, &prices)?;
            n_idle = if self.bound > last_bound { 0 } else { n_idle + 1 };
            if n_idle == 3 {
                (pace, n_idle) = (pace / 2.0, 0);
            }
        }
        let prices = self.prices.clone();
        self.minimizer_at(search, &prices)
    }
}
