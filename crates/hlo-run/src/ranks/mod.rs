//! Processes that run one plan together, each on its share of the devices.
//!
//! They are a star of TCP connections around rank 0, which computes what the devices exchange ([`Ranks::exchange`]) with
//! the same code as a process alone. Nobody waits for the dead: every connection carries a heartbeat from a thread of its
//! own, so that a rank that is busy is heard and one that is stopped is not; a closed connection, six seconds of silence
//! or an error ends the run in every process, with the rank and the reason named.
//!
//! With a [`Secret`] a rank must prove that it knows it, and every frame is signed. Nothing is encrypted.

mod connect;
mod frame;
mod greet;
mod inspect;
mod seat;
mod secret;
mod watch;

pub use inspect::{describe_frames, sign_frames};
pub use seat::{Seat, SeatFlags, local_rank};
pub use secret::Secret;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ExecutionError;
use frame::Kind;
use watch::Wires;

/// Called with the failure when this process does not come to its end by itself, because a step takes long.
pub type OnStuck = Box<dyn Fn(&ExecutionError) + Send>;

/// The connected processes, seen from one of them.
pub struct Ranks {
    seat: Seat,
    wires: Wires,
    round: AtomicU64,
}

impl Ranks {
    /// Waits until all ranks are there. `digest` is that of everything that must be the same in all, `plan` names it in
    /// messages; `say` tells the user what is waited for.
    ///
    /// # Errors
    /// A rank is missing, there twice, out of range, of another version, or has another digest: said to all.
    pub fn connect(
        seat: Seat,
        digest: u64,
        plan: &str,
        say: &mut dyn FnMut(&str),
        on_stuck: OnStuck,
    ) -> Result<Ranks, ExecutionError> {
        let links = connect::connect(&seat, digest, plan, say)?;
        let wires = Wires::start(seat.rank, links, on_stuck)
            .map_err(|e| ExecutionError::Ranks { reason: format!("cannot watch the connections: {e}") })?;
        if seat.rank == 0 {
            say(&format!("{} ranks are connected", seat.n_ranks));
        }
        Ok(Ranks { seat, wires, round: AtomicU64::new(0) })
    }

    /// This process's place.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Brings an array of bytes for each own device to rank 0, which makes of all of them, in the order of flat ids, what
    /// each device takes away. All ranks must come to the same exchanges in the same order; `name` says which.
    ///
    /// # Errors
    /// A rank was lost or failed; `combine` fails (at rank 0; it is then for the caller to say so by [`Ranks::fail`]).
    pub fn exchange(
        &self,
        name: &str,
        own: Vec<Vec<u8>>,
        combine: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ExecutionError>,
    ) -> Result<Vec<Vec<u8>>, ExecutionError> {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let share = own.len();
        if self.seat.rank > 0 {
            self.wires.send(0, Kind::Bytes, &frame::encode(round, name, &own))?;
            return self.receive(0, round, name, share);
        }
        let n_others = self.wires.len();
        let mut all = own;
        for peer in 0..n_others {
            all.extend(self.receive(peer, round, name, share)?);
        }
        let mut results = combine(all)?;
        if results.len() != share * (n_others + 1) {
            let reason = format!("expected results for {} devices, found {}", share * (n_others + 1), results.len());
            return Err(ExecutionError::Host { what: name.to_string(), reason });
        }
        let others = results.split_off(share);
        for (peer, chunk) in others.chunks(share.max(1)).enumerate() {
            self.wires.send(peer, Kind::Bytes, &frame::encode(round, name, chunk))?;
        }
        Ok(results)
    }

    fn receive(&self, peer: usize, round: u64, name: &str, share: usize) -> Result<Vec<Vec<u8>>, ExecutionError> {
        let payload = self.wires.receive(peer)?;
        let rank = self.wires.rank_of(peer);
        match frame::decode(&payload) {
            Some((r, n, arrays)) if r == round && n == name && arrays.len() == share => Ok(arrays),
            Some((r, n, arrays)) => Err(ExecutionError::Ranks {
                reason: format!(
                    "expected {share} arrays of exchange {round} (`{name}`) from rank {rank}, found {} of exchange {r} (`{n}`)",
                    arrays.len()
                ),
            }),
            None => Err(ExecutionError::Ranks { reason: format!("rank {rank} sent bytes that cannot be read") }),
        }
    }

    /// Brings everything to rank 0: the arrays of all devices there, nothing elsewhere.
    ///
    /// # Errors
    /// As [`Ranks::exchange`].
    pub fn gather(&self, name: &str, own: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ExecutionError> {
        let mut gathered = Vec::new();
        self.exchange(name, own, |all| {
            let nothing = vec![Vec::new(); all.len()];
            gathered = all;
            Ok(nothing)
        })?;
        Ok(gathered)
    }

    /// The failure that ends the run, if there is one.
    pub fn failure(&self) -> Option<ExecutionError> {
        self.wires.failure()
    }

    /// Tells the other ranks that this one cannot go on. Nothing happens if the run has failed already.
    pub fn fail(&self, error: &ExecutionError) {
        self.wires.fail(error);
    }

    /// Ends a run in which all went well: rank 0 lets the others go, the others wait for that.
    ///
    /// # Errors
    /// A rank failed or was lost before its end.
    pub fn finish(self) -> Result<(), ExecutionError> {
        self.wires.finish()
    }
}
