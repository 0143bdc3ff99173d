//! The text form of rules.
//!
//! ```text
//! rule dot-of-concat reassoc
//!   x1: [m, k1]
//!   x2: [m, k2]
//!   w1: [k1, n]
//!   w2: [k2, n]
//!   left  = dot(concat(x1, x2, dim=1), concat(w1, w2, dim=0), contract=[1:0])
//!   right = add(dot(x1, w1, contract=[1:0]), dot(x2, w2, contract=[1:0]))
//! ```
//!
//! A rule has a name and, if it says so, a label; a line for each input with its dims; and both sides, each a term or several between
//! commas. Sizes are sums of products of names and numbers. A name stands for a size of one or more; `amounts p, q` before the inputs
//! makes names stand for zero or more. `#` begins a comment. The ops and their attributes:
//!
//! | op | attributes |
//! |---|---|
//! | `dot(a, b)` | `contract=[1:0]`, `batch=[0:0]`: pairs of dims |
//! | `conv(x, w)`: `[n, c, …]`, `[f, c, …]` to `[n, f, …]` | `window=[stride:low:base:dilation:out]` for each spatial dim, `reversed=[0]`, `groups=2`, `batch_groups=2` |
//! | `add`, `multiply`, `max`, `above` (`a, b`); `scale(a, c)`, where `c` is an input of dims `[]`; `relu`, `step`, `exp` (`a`) | |
//! | `transpose(a)` | `order=[1, 0]` |
//! | `reshape(a)` | `dims=[m*n, k]` |
//! | `slice(a)` | `dim=0`, `start=k1`, `size=k2` |
//! | `concat(a, b, …)`, `stack(a, b, …)` | `dim=0` |
//! | `pick(a)` | `dim=0`, `place=1` |
//! | `pad(a)` | `dim=0`, `low=p`, `high=0` |
//! | `broadcast(a)` | `new=[0:m]`: dims of the result and their sizes |
//! | `reduce(a)` | `dims=[0]` |

mod parse;
mod parse_error;
mod print;
mod tokens;

pub use parse::parse_rules;
pub(crate) use parse::parse_signatures;
pub use parse_error::ParseError;
pub(crate) use print::dims_text;
pub use print::print_rule;
