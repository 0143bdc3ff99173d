//! Long sums of small floats in rounds (see [`super::rounding`]): windows are reduced first.
// circle: a long reduce reduces windows first, and a window over whole dims is a reduce

use hlo_ir::Literal;
use hlo_ir::attrs::{Window, WindowDim};
use std::sync::Arc;

use super::reducer::Reducer;
use super::windows::reduce_window;
use crate::EvalError;

/// The longest dim that `reduce` takes in one go.
const LONGEST_ROW: i64 = 32;

/// `operand` with windows of 32 elements along `dims` reduced until none of these dims is longer.
///
/// # Errors
/// As [`reduce_window`].
pub(crate) fn shortened(
    operand: &Arc<Literal>,
    init: &Literal,
    dims: &[i64],
    reducer: &mut dyn Reducer,
) -> Result<Arc<Literal>, EvalError> {
    let mut current = operand.clone();
    let is_long = |x: &Literal| dims.iter().any(|&dim| x.dims().get(dim as usize).is_some_and(|&n| n > LONGEST_ROW));
    while is_long(&current) {
        let window_dim = |(i, &n): (usize, &i64)| {
            if !dims.contains(&(i as i64)) || n == 0 {
                return WindowDim::default();
            }
            let size = n.min(LONGEST_ROW);
            let n_padding = (n as u64).div_ceil(size as u64) as i64 * size - n;
            let pad_low = n_padding / 2;
            WindowDim { size, stride: size, pad_low, pad_high: n_padding - pad_low, ..WindowDim::default() }
        };
        let window = Window { dims: current.dims().iter().enumerate().map(window_dim).collect() };
        let mut results = reduce_window(&[&current], &[init], &window, reducer)?;
        current = Arc::new(results.pop().ok_or_else(|| EvalError::invalid("reduce-window: expected a result"))?);
    }
    Ok(current)
}
