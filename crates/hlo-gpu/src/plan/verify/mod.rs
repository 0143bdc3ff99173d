//! What every plan holds, checked without regard to how it was made.
//!
//! - [`places`]: every buffer lies within its place, at an aligned offset, views of one value at one distance from each other.
//!   Parameters and outputs are whole; outputs do not overlap. A communicator's groups are disjoint and are all devices.
//! - [`works`]: each piece of work by itself is one that can be issued. Kernels get as many arguments as their source has, to read
//!   and to write as it says; what a step writes overlaps with what it reads only where that is allowed; products stay within
//!   their buffers; sizes and types of collectives agree. Constants, device ids and parameters that are not donated are only
//!   read.
//! - [`contents`]: every byte that a step reads was written, by the caller or an earlier step, as the value that the step
//!   reads, and by no other since. What the host decides by is the same on all devices: so all devices issue the same steps,
//!   and all ranks of a communicator the same sequence of collectives.
//! - [`streams`]: of two steps on different streams that touch the same bytes, one of them writing, the later waits for the
//!   earlier, itself or by the order of its stream and earlier waits.
//! - [`flights`]: no two collectives that may be in flight at once share more than one device, so none waits for the other for ever.

mod contents;
#[cfg(test)]
mod corruptions;
mod flights;
mod labels;
mod places;
mod streams;
mod works;

use super::Plan;

/// Checks a plan.
///
/// # Errors
/// What is wrong, one sentence for each thing, the step or buffer first.
pub fn verify(plan: &Plan) -> Result<(), Vec<String>> {
    let mut errors = Vec::new();
    // What follows takes for granted that what is named exists.
    places::check(plan, &mut errors);
    if errors.is_empty() {
        works::check(plan, &plan.steps, &mut errors);
        flights::check(plan, &plan.steps, &mut errors);
    }
    if errors.is_empty() {
        contents::check(plan, &mut errors);
        streams::check(plan, &plan.steps, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
