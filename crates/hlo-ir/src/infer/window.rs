//! Windows over dims, as convolution, reduce-window and select-and-scatter use them.

use super::*;
use crate::attrs::Window;

/// Result sizes of `window` over `sizes`, one window dim for each.
pub(super) fn output_sizes(window: &Window, sizes: &[i64]) -> Checked<Dims> {
    if window.dims.len() != sizes.len() {
        return fail("window.n-dims", format_args!("{} window dims", sizes.len()), window.dims.len());
    }
    let mut out = Dims::new();
    for (dim, &n) in window.dims.iter().zip(sizes) {
        let parts = [
            ("size", dim.size),
            ("stride", dim.stride),
            ("lhs_dilate", dim.base_dilation),
            ("rhs_dilate", dim.window_dilation),
        ];
        for (name, value) in parts {
            if value < 1 {
                return fail("window.positive", format_args!("{name} of 1 or more"), value);
            }
        }
        out.push(if n == UNBOUNDED_DIM { UNBOUNDED_DIM } else { dim.n_outputs(n) });
    }
    Ok(out)
}
