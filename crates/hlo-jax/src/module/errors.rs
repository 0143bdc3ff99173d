//! Failures as Python exceptions.

use crate::tool::on_own_stack;
use crate::words::python_words;
use hlo_opt::Failure;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

create_exception!(hlo_opt, HloError, PyValueError, "A module that is not valid, or work on it that cannot be done.");
create_exception!(hlo_opt, UsageError, PyValueError, "An option that cannot be right: what was expected and found.");

/// Does some work on a thread with a large stack, while other Python threads go on.
///
/// # Errors
/// The failure as an exception. A panic is an `HloError`.
pub(super) fn work<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    match py.detach(|| on_own_stack(work)) {
        Ok(outcome) => outcome.map_err(|failure| match failure {
            Failure::Usage(text) => UsageError::new_err(python_words(&text)),
            Failure::File(text) | Failure::Diagnostics(text) => HloError::new_err(python_words(&text)),
        }),
        Err(panic) => Err(HloError::new_err(panic)),
    }
}
