//! Which algorithm each product of a run takes: the library's first suggestion, or the fastest of several that were timed.
//!
//! Devices that hold equal values must compute equal ones, and algorithms differ in their last bits. So all devices of a run
//! take one choice: of a process that holds them all, the first device that meets a product times the suggestions, and the
//! others wait for it. They never wait for one another in a circle: what a device needs to get to a product are earlier
//! steps of others. Several processes take the first suggestion.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;
use hlo_gpu::plan::BufferId;
use hlo_ir::DType;

use super::products::{Columns, Product};
use crate::ExecutionError;

/// Suggestions that are timed at most.
pub(super) const MOST_SUGGESTIONS: usize = 8;
/// A later suggestion must take less than this part of the time of the first, or it is not worth another choice.
const WORTHWHILE: f64 = 0.97;
/// Timed runs of a suggestion, of which the median counts.
const N_RUNS: usize = 3;
/// A suggestion whose first run takes so many times the best time is not timed further.
const HOPELESS: f64 = 3.0;
/// What loading an algorithm's code may take; only a longer first run says that an algorithm is slow.
const MOST_WARM_UP_SECONDS: f64 = 5e-3;

/// What the choice of an algorithm depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Question {
    /// Without its buffers.
    product: Product,
    dtypes: [DType; 3],
    /// Powers of two that divide the addresses.
    alignments: [u32; 3],
    /// The card's architecture.
    arch: u32,
}

impl Question {
    /// That of a product of matrices of these element types at addresses that are so aligned.
    pub(super) fn new(product: &Product, dtypes: [DType; 3], alignments: [u32; 3], arch: u32) -> Question {
        let without = |matrix: Columns| Columns { buffer: BufferId::from_u32(0), ..matrix };
        let (a, b, d) = (without(product.a), without(product.b), without(product.d));
        Question { product: Product { a, b, d, ..*product }, dtypes, alignments, arch }
    }
}

/// A choice that is being made or was made.
type Slot = Arc<Mutex<Option<Algorithm>>>;

/// The choices of a run.
#[derive(Debug, Default)]
pub(super) struct Choices {
    slots: Mutex<HashMap<Question, Slot>>,
}

impl Choices {
    /// The choice that was made, or else the one that `choose` makes.
    pub(super) fn get_or_choose(
        &self,
        question: Question,
        choose: impl FnOnce() -> Result<Algorithm, ExecutionError>,
    ) -> Result<Algorithm, ExecutionError> {
        let slot = self.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(question).or_default().clone();
        let mut choice = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(algorithm) = *choice {
            return Ok(algorithm);
        }
        let chosen = choose()?;
        *choice = Some(chosen);
        Ok(chosen)
    }
}

/// The suggestion to take. `seconds` runs one; `None` where the library refuses it after all.
pub(super) fn fastest<T: Copy>(
    suggestions: &[T],
    mut seconds: impl FnMut(&T) -> Result<Option<f64>, ExecutionError>,
) -> Result<Option<T>, ExecutionError> {
    let mut best: Option<(f64, T)> = None;
    for suggestion in suggestions {
        // The first run loads the algorithm's code.
        let Some(warm_up) = seconds(suggestion)? else { continue };
        let limit = best.map_or(f64::INFINITY, |(time, _)| time);
        if warm_up > (HOPELESS * limit).max(MOST_WARM_UP_SECONDS) {
            continue;
        }
        let mut times = Vec::new();
        for _ in 0..N_RUNS {
            times.extend(seconds(suggestion)?);
        }
        times.sort_by(f64::total_cmp);
        let Some(&median) = times.get(times.len() / 2) else { continue };
        if best.is_none() || median < WORTHWHILE * limit {
            best = Some((median, *suggestion));
        }
    }
    Ok(best.map(|(_, suggestion)| suggestion))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(times: &[Option<f64>]) -> Option<usize> {
        let numbers: Vec<usize> = (0..times.len()).collect();
        fastest(&numbers, |&number| Ok(times[number])).expect("nothing fails")
    }

    #[test]
    fn the_first_is_kept_unless_another_is_clearly_faster() {
        assert_eq!(chosen(&[Some(1.0), Some(0.99), Some(1.2)]), Some(0));
        assert_eq!(chosen(&[Some(1.0), Some(0.8), Some(0.5)]), Some(2));
        assert_eq!(chosen(&[None, Some(2.0), Some(2.0)]), Some(1));
        assert_eq!(chosen(&[None, None]), None);
    }

    #[test]
    fn medians_count_and_hopeless_ones_are_run_once() {
        let mut n_runs = [0; 2];
        let found = fastest(&[0, 1], |&number| {
            n_runs[number] += 1;
            // One slow run is no reason.
            Ok(Some(if number == 1 {
                4.0
            } else if n_runs[0] == 2 {
                9.0
            } else {
                1.0
            }))
        });
        assert_eq!((found.expect("nothing fails"), n_runs), (Some(0), [4, 1]));
    }

    #[test]
    fn a_choice_is_made_once_and_again_after_a_failure() {
        let choices = Choices::default();
        let matrix = |n| {
            let buffer = BufferId::from_u32(n);
            Columns { buffer, rows: 2, cols: 2, leading: 2, batch_stride: 4, outer_stride: 0, is_transposed: false }
        };
        let question = |first| {
            let (a, b, d) = (matrix(first), matrix(first + 1), matrix(first + 2));
            let product = Product { a, b, d, batch: 1, outer_batch: 1, uses_tf32: false };
            Question::new(&product, [DType::F32; 3], [16; 3], 90)
        };
        let reason = || ExecutionError::Device { what: String::new(), reason: String::new() };
        assert!(choices.get_or_choose(question(0), || Err(reason())).is_err());
        let algorithm = |number| Algorithm { data: [number; 8] };
        let first = choices.get_or_choose(question(0), || Ok(algorithm(1)));
        // The same product of other buffers.
        let second = choices.get_or_choose(question(7), || Ok(algorithm(2)));
        assert_eq!((first.ok(), second.ok()), (Some(algorithm(1)), Some(algorithm(1))));
    }
}
