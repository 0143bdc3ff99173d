//! When to stop: a proof that takes too long ends with what was proved until then.

use std::cell::Cell;
use std::time::Instant;

/// A time after which nothing that is found counts, so that whoever asks may give up at once.
#[derive(Default)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    has_passed: Cell<bool>,
}

impl Deadline {
    pub(crate) fn at(at: Option<Instant>) -> Deadline {
        Deadline { at, ..Deadline::default() }
    }

    /// Whether it is over; once it is, it stays so.
    pub(crate) fn has_passed(&self) -> bool {
        let Some(at) = self.at else { return false };
        if !self.has_passed.get() && Instant::now() >= at {
            self.has_passed.set(true);
        }
        self.has_passed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_has_passed_stays_so() {
        let deadline = Deadline::at(Some(Instant::now()));
        assert!(deadline.has_passed() && deadline.has_passed());
        let later = Deadline::at(Instant::now().checked_add(Duration::from_secs(3600)));
        assert!(!(0..1000).any(|_| later.has_passed()) && !Deadline::default().has_passed());
    }
}
