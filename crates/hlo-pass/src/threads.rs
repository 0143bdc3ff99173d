//! Tasks on as many threads as the machine runs at once.

use crate::STACK_BYTES;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;

/// What is left to do.
struct Queue<T> {
    open: Vec<T>,
    /// Tasks that threads are at: each may bring more.
    n_running: usize,
    /// Whether a task panicked: nobody begins another one.
    is_stopped: bool,
}

/// The tasks, and the threads that wait for some.
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    more: Condvar,
}

/// Does `tasks` and those that `work` gives. A thread that is free takes the task of the least rank, of several the first one.
pub fn in_threads<T: Copy + Send>(tasks: Vec<T>, rank: impl Fn(&T) -> usize + Sync, work: impl Fn(T) -> Vec<T> + Sync) {
    let shared =
        Shared { queue: Mutex::new(Queue { open: tasks, n_running: 0, is_stopped: false }), more: Condvar::new() };
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (shared, rank, work) = (&shared, &rank, &work);
    std::thread::scope(|scope| {
        let spawn = |_| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, move || shared.take_part(rank, work))
        };
        // Where the system gives no more threads, there are fewer.
        let others: Vec<ScopedJoinHandle<'_, ()>> = (1..n_threads).filter_map(|number| spawn(number).ok()).collect();
        shared.take_part(rank, work);
        for other in others {
            if let Err(panic) = other.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

impl<T: Copy> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one task after the other until there are none and will be none.
    fn take_part(&self, rank: &impl Fn(&T) -> usize, work: &impl Fn(T) -> Vec<T>) {
        while let Some(task) = self.next(rank) {
            let mut running = Running { shared: self, found: None };
            running.found = Some(work(task));
        }
    }

    /// The next task, once there is one.
    fn next(&self, rank: &impl Fn(&T) -> usize) -> Option<T> {
        let mut queue = self.lock();
        loop {
            let first = queue.open.iter().enumerate().min_by_key(|(_, task)| rank(task)).map(|(place, _)| place);
            match first {
                _ if queue.is_stopped => return None,
                Some(place) => {
                    queue.n_running += 1;
                    return Some(queue.open.remove(place));
                }
                None if queue.n_running == 0 => return None,
                None => queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A task that a thread is at. When it ends, also by a panic, the others hear of it.
struct Running<'s, T: Copy> {
    shared: &'s Shared<T>,
    /// What the task gave; `None` if it panicked.
    found: Option<Vec<T>>,
}

impl<T: Copy> Drop for Running<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.n_running -= 1;
        match self.found.take() {
            Some(found) => queue.open.extend(found),
            None => queue.is_stopped = true,
        }
        self.shared.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_bring_tasks_until_there_are_none() {
        let done = Mutex::new(Vec::new());
        let work = |n: u32| {
            done.lock().unwrap_or_else(PoisonError::into_inner).push(n);
            if n < 64 { vec![2 * n, 2 * n + 1] } else { Vec::new() }
        };
        in_threads(vec![1], |n| *n as usize, work);
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable();
        assert_eq!(done, (1..128).collect::<Vec<u32>>());
        in_threads(Vec::<u32>::new(), |_| 0, |_| Vec::new());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_nobody_waits_for_ever() {
        let outcome = std::panic::catch_unwind(|| {
            in_threads((0..100).collect(), |_| 0, |n: u32| if n == 7 { panic!("seven") } else { Vec::new() });
        });
        let message = outcome.expect_err("a panic");
        assert_eq!(message.downcast_ref::<&str>(), Some(&"seven"));
    }
}
