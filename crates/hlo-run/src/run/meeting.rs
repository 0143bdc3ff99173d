//! Where the devices meet: each brings bytes, one computes from all of them what each takes away.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::ExecutionError;
use crate::ranks::Ranks;

/// The meeting point of the threads of this process's devices. With other processes, whoever comes last here speaks with
/// them; the computation then happens once, in the process of rank 0, whatever the number of processes: so results are the
/// same to the bit.
pub struct Meeting<'r> {
    devices: Range<u32>,
    ranks: Option<&'r Ranks>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    round: u64,
    /// What the devices of this process brought to the present round.
    brought: Vec<Option<Vec<u8>>>,
    /// What they take from the last one.
    results: Vec<Vec<u8>>,
    failure: Option<ExecutionError>,
}

impl<'r> Meeting<'r> {
    /// A meeting of these devices, all in this process.
    pub fn alone(devices: Range<u32>) -> Meeting<'static> {
        Meeting { state: Mutex::new(State::for_devices(&devices)), devices, ranks: None, changed: Condvar::new() }
    }

    /// A meeting of this process's share of `n_devices` devices with the shares of others.
    ///
    /// # Errors
    /// The devices cannot be shared equally.
    pub fn of_ranks(ranks: &'r Ranks, n_devices: u32) -> Result<Meeting<'r>, ExecutionError> {
        let devices = ranks.seat().devices(n_devices)?;
        Ok(Meeting { ranks: Some(ranks), ..Meeting::alone(devices) })
    }

    /// The flat ids of this process's devices.
    pub fn devices(&self) -> Range<u32> {
        self.devices.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings bytes and waits until all devices have come. `combine` makes of what they brought, in the order of flat ids,
    /// what each of them takes away. All devices must come to the same meetings in the same order; `name` says which.
    ///
    /// # Errors
    /// A device failed, here or elsewhere; `combine` fails.
    pub fn meet(
        &self,
        device: u32,
        name: &str,
        bytes: Vec<u8>,
        combine: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ExecutionError>,
    ) -> Result<Vec<u8>, ExecutionError> {
        let me = device.saturating_sub(self.devices.start) as usize;
        let mut state = self.lock();
        let round = state.round;
        if let Some(place) = state.brought.get_mut(me) {
            *place = Some(bytes);
        }
        if state.brought.iter().all(Option::is_some) && state.failure.is_none() {
            let brought: Vec<Vec<u8>> = state.brought.iter_mut().filter_map(Option::take).collect();
            drop(state);
            let results = self.combined(name, brought, combine).inspect_err(|error| self.fail(error))?;
            state = self.lock();
            state.results = results;
            state.round += 1;
            self.changed.notify_all();
        }
        let waiting = |state: &mut State| state.round == round && state.failure.is_none();
        let mut state = self.changed.wait_while(state, waiting).unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            Some(error) if state.round == round => Err(error.clone()),
            _ => Ok(state.results.get_mut(me).map(std::mem::take).unwrap_or_default()),
        }
    }

    fn combined(
        &self,
        name: &str,
        brought: Vec<Vec<u8>>,
        combine: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ExecutionError>,
    ) -> Result<Vec<Vec<u8>>, ExecutionError> {
        match self.ranks {
            None => combine(brought),
            Some(ranks) => ranks.exchange(name, brought, combine),
        }
    }

    /// Makes every present and later meeting fail, and tells the other processes. The first failure is kept.
    pub fn fail(&self, error: &ExecutionError) {
        {
            let mut state = self.lock();
            if state.failure.is_some() {
                return;
            }
            state.failure = Some(error.clone());
            self.changed.notify_all();
        }
        if let Some(ranks) = self.ranks {
            ranks.fail(error);
        }
    }

    /// Whether all is well, here and elsewhere. Whoever waits for a device asks this now and then.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<(), ExecutionError> {
        let own = self.lock().failure.clone();
        match own.or_else(|| self.ranks.and_then(Ranks::failure)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl State {
    fn for_devices(devices: &Range<u32>) -> State {
        State { brought: vec![None; devices.len()], ..State::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each device brings its number, round after round, and takes the sum.
    #[test]
    fn all_take_what_is_made_of_all() {
        let meeting = Meeting::alone(4..12);
        let sum = |all: Vec<Vec<u8>>| {
            let sum: u8 = all.iter().map(|bytes| bytes[0]).sum();
            Ok(vec![vec![sum]; all.len()])
        };
        std::thread::scope(|scope| {
            for device in meeting.devices() {
                let meeting = &meeting;
                scope.spawn(move || {
                    for round in 0..200u8 {
                        let found = meeting.meet(device, "sum", vec![device as u8 ^ (round % 2)], sum).unwrap();
                        assert_eq!(found, [(4..12u8).map(|d| d ^ (round % 2)).sum::<u8>()]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_failure_wakes_all_who_wait() {
        let meeting = Meeting::alone(0..3);
        let error = ExecutionError::Host { what: "device 2".to_string(), reason: "broken".to_string() };
        std::thread::scope(|scope| {
            let wait = |device| meeting.meet(device, "x", Vec::new(), Ok);
            let waiting: Vec<_> = (0..2).map(|device| scope.spawn(move || wait(device))).collect();
            meeting.fail(&error);
            waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Err(error.clone())));
        });
        assert_eq!(meeting.meet(2, "x", Vec::new(), Ok), Err(error.clone()));
        assert_eq!(meeting.check(), Err(error));
    }

    #[test]
    fn what_cannot_be_combined_fails_for_all() {
        let meeting = Meeting::alone(0..2);
        let error = ExecutionError::Host { what: "x".to_string(), reason: "no".to_string() };
        std::thread::scope(|scope| {
            let refuse = |device| meeting.meet(device, "x", Vec::new(), |_| Err(error.clone()));
            let threads: Vec<_> = (0..2).map(|device| scope.spawn(move || refuse(device))).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Err(error.clone())));
        });
    }
}
