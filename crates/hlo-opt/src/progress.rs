//! A line on the terminal for work that takes longer than a second.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant};

/// Silence before the first line.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two updates.
const PERIOD: Duration = Duration::from_millis(250);

/// Shows what is being done until it is dropped; does nothing where nobody watches.
pub(crate) struct Progress {
    shared: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    what: String,
    started: Instant,
    is_over: bool,
}

impl Progress {
    /// Starts; `is_on` says whether stderr is a terminal.
    pub(crate) fn start(is_on: bool) -> Progress {
        let state = State { what: String::new(), started: Instant::now(), is_over: false };
        let shared = Arc::new(Mutex::new(state));
        let seen = Arc::clone(&shared);
        let thread = is_on.then(|| std::thread::spawn(move || show(&seen)));
        Progress { shared, thread }
    }

    /// Says what is being done now.
    pub(crate) fn now(&self, what: &str) {
        if self.thread.is_some() {
            let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            state.what = what.into();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn show(shared: &Mutex<State>) {
    let mut has_shown = false;
    loop {
        park_timeout(PERIOD);
        let state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over {
            break;
        }
        if state.started.elapsed() > PATIENCE {
            let seconds = state.started.elapsed().as_secs();
            let _ = write!(std::io::stderr(), "\r\u{1b}[K{} … {seconds} s", state.what);
            has_shown = true;
        }
    }
    if has_shown {
        let _ = write!(std::io::stderr(), "\r\u{1b}[K");
    }
}
