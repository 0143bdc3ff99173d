//! The end of the time that passes may take.

use crate::PassError;
use hlo_ir::diag::Entity;
use std::fmt;
use std::time::{Duration, Instant};

/// The rule of a diagnostic that says that the time is over.
pub(crate) const RULE: &str = "deadline";

/// When work is to stop. It is copied into whatever works long, which asks it once in each round of its loops; a question costs some tens
/// of nanoseconds. By default there is no end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline(Option<Limit>);

#[derive(Clone, Copy, Debug)]
struct Limit {
    begun: Instant,
    most: Duration,
}

impl Deadline {
    /// So long from now on.
    pub fn within(most: Duration) -> Deadline {
        Deadline(Some(Limit { begun: Instant::now(), most }))
    }

    /// Whether the time is over; once it is, it stays so.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|limit| limit.begun.elapsed() >= limit.most)
    }

    /// An error once the time is over.
    ///
    /// # Errors
    /// The time is over.
    pub fn check(self) -> Result<(), OutOfTime> {
        let Deadline(Some(Limit { begun, most })) = self else { return Ok(()) };
        let taken = begun.elapsed();
        if taken < most { Ok(()) } else { Err(OutOfTime { taken, limit: most }) }
    }
}

/// The time was over before the work was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfTime {
    /// How long the work had run.
    pub taken: Duration,
    /// How long it was allowed to.
    pub limit: Duration,
}

impl fmt::Display for OutOfTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (taken, limit) = (self.taken.as_secs_f64(), self.limit.as_secs_f64());
        write!(f, "stopped after {taken:.1} s, limit {limit} s; the module stays as it was")
    }
}

impl std::error::Error for OutOfTime {}

impl From<OutOfTime> for PassError {
    fn from(error: OutOfTime) -> PassError {
        PassError::about(RULE, Entity::Module, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_end_unless_one_is_said() {
        assert!(!Deadline::default().is_over() && Deadline::default().check().is_ok());
        let long = Deadline::within(Duration::from_secs(3600));
        assert!(!long.is_over() && long.check().is_ok());
        assert!(!Deadline::within(Duration::MAX).is_over());
    }

    #[test]
    fn what_is_over_says_so() {
        let over = Deadline::within(Duration::ZERO);
        assert!(over.is_over() && over.check().is_err());
        let error = OutOfTime { taken: Duration::from_millis(2140), limit: Duration::from_millis(1500) };
        assert_eq!(error.to_string(), "stopped after 2.1 s, limit 1.5 s; the module stays as it was");
        assert_eq!(PassError::from(error).diagnostic.rule, "deadline");
    }
}
