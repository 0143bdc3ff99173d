//! Work with an end: on a thread with a large stack, until a deadline, a panic being an error.

use hlo_pass::STACK_BYTES;
use std::any::Any;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stopped {
    /// No thread could be started.
    NoThread(String),
    /// The work panicked.
    Panicked(String),
    /// The work was not done in time. Its thread goes on, and what it finds is dropped.
    TimedOut(Duration),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::NoThread(why) => write!(f, "no thread could be started: {why}"),
            Stopped::Panicked(text) => write!(f, "internal error: {text}"),
            Stopped::TimedOut(time) => write!(f, "not done within {} s (HLO_OPT_DEADLINE_S)", time.as_secs_f64()),
        }
    }
}

/// Does some work on a thread whose stack is large enough for deeply nested modules, and waits for it at most so long.
///
/// # Errors
/// No thread, a panic, or the deadline.
pub(crate) fn bounded<T: Send + 'static>(
    most: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopped> {
    let (sender, receiver) = sync_channel(1);
    let builder = thread::Builder::new().name("hlo-opt".into()).stack_size(STACK_BYTES);
    // The other side may have gone: then nobody wants the result.
    let thread =
        builder.spawn(move || drop(sender.send(work()))).map_err(|error| Stopped::NoThread(error.to_string()))?;
    match receiver.recv_timeout(most) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Timeout) => Err(Stopped::TimedOut(most)),
        // The sender went without a word, so the thread panicked.
        Err(RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err().map(|panic| panic_text(&*panic));
            Err(Stopped::Panicked(panic.unwrap_or_default()))
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_result_a_panic_and_a_deadline() {
        assert_eq!(bounded(LONG, || 7), Ok(7));
        let panicked: Result<(), Stopped> = bounded(LONG, || panic!("the {} fell", "tree"));
        assert_eq!(panicked, Err(Stopped::Panicked("the tree fell".into())));
        let short = Duration::from_millis(20);
        let late = bounded(short, || thread::sleep(Duration::from_millis(500)));
        assert_eq!(late, Err(Stopped::TimedOut(short)));
    }

    #[test]
    fn the_stack_is_large() {
        fn deep(n: usize) -> usize {
            let frame = std::hint::black_box([n; 1 << 10]);
            if n == 0 { 0 } else { 1 + deep(n - 1) + frame[0] - n }
        }
        // At least 8 KiB for each of 5,000 calls: 40 MiB, where threads have 2 by default.
        assert_eq!(bounded(LONG, || deep(5_000)), Ok(5_000));
    }
}
