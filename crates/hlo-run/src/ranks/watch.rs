//! The connections of a process: who reads, who writes, and who notices that the other side is gone.
//!
//! Each connection has a reader and a keeper. The reader takes frames in; every byte is a sign of life. The keeper sends a
//! heartbeat every two seconds, and the last word when a run fails. One more thread, the monitor, looks for silence.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::OnStuck;
use super::frame::{self, Frame, Kind};
use super::greet::Link;
use super::secret::Seal;
use crate::ExecutionError;

/// Time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A rank that is not heard for so long is lost.
const SILENCE: Duration = Duration::from_secs(6);
/// How often silence is looked for.
const TICK: Duration = Duration::from_millis(250);
/// How long the last words may take to reach the others.
const LINGER: Duration = Duration::from_secs(2);
/// How long after a failure this process may take to end by itself.
const STUCK: Duration = Duration::from_secs(3);

struct Peer {
    rank: u32,
    stream: TcpStream,
    writer: Mutex<Writer>,
    /// When it was last heard, in milliseconds since `Shared::started`.
    heard_ms: AtomicU64,
}

/// Whoever holds it sends, so that frames are signed in the order in which they go out.
struct Writer {
    stream: TcpStream,
    seal: Option<Seal>,
}

impl Writer {
    fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        frame::write(&mut self.stream, self.seal.as_mut(), kind, payload)
    }
}

struct Failure {
    error: ExecutionError,
    /// What the others are told.
    message: String,
    /// The connection it came over, or that is no more: nothing is said there.
    peer: Option<usize>,
    at: Instant,
}

#[derive(Default)]
struct State {
    inboxes: Vec<VecDeque<Vec<u8>>>,
    is_closed: Vec<bool>,
    failure: Option<Failure>,
    /// All that was to be exchanged is there: a connection that closes now is no loss.
    is_ending: bool,
    /// The run is over: connections are given up once the other side has closed.
    is_over: bool,
}

struct Shared {
    rank: u32,
    peers: Vec<Peer>,
    started: Instant,
    state: Mutex<State>,
    /// A frame has come, or the run is over or has failed.
    arrived: Condvar,
    /// The run is over or has failed.
    alarm: Condvar,
}

/// All connections of a process.
pub(super) struct Wires {
    shared: Arc<Shared>,
}

impl Wires {
    /// Starts the threads of connections that are ready.
    pub(super) fn start(rank: u32, links: Vec<Link>, on_stuck: OnStuck) -> io::Result<Wires> {
        let rank_of = |i: usize| if rank == 0 { i as u32 + 1 } else { 0 };
        let (mut peers, mut incoming) = (Vec::with_capacity(links.len()), Vec::with_capacity(links.len()));
        for (i, Link { stream, seals }) in links.into_iter().enumerate() {
            let (outward, inward) = seals.unzip();
            let writer = Mutex::new(Writer { stream: stream.try_clone()?, seal: outward });
            peers.push(Peer { rank: rank_of(i), stream, writer, heard_ms: AtomicU64::new(0) });
            incoming.push(inward);
        }
        let n = peers.len();
        let state = State { inboxes: vec![VecDeque::new(); n], is_closed: vec![false; n], ..State::default() };
        let shared = Arc::new(Shared {
            rank,
            peers,
            started: Instant::now(),
            state: Mutex::new(state),
            arrived: Condvar::new(),
            alarm: Condvar::new(),
        });
        // From here on a dropped `Wires` ends the threads that were started.
        let wires = Wires { shared: Arc::clone(&shared) };
        for (i, seal) in incoming.into_iter().enumerate() {
            let (reader, keeper) = (Arc::clone(&shared), Arc::clone(&shared));
            thread::Builder::new().name(format!("reader {i}")).spawn(move || reader.read(i, seal))?;
            thread::Builder::new().name(format!("keeper {i}")).spawn(move || keeper.keep(i))?;
        }
        thread::Builder::new().name("monitor".to_string()).spawn(move || shared.monitor(&on_stuck))?;
        Ok(wires)
    }

    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.shared.peers.len()
    }

    /// The rank at the other end.
    pub(super) fn rank_of(&self, peer: usize) -> u32 {
        self.shared.peers[peer].rank
    }

    /// Sends a frame.
    pub(super) fn send(&self, peer: usize, kind: Kind, payload: &[u8]) -> Result<(), ExecutionError> {
        let shared = &self.shared;
        shared.check()?;
        let written = {
            let mut writer = shared.peers[peer].writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write(kind, payload)
        };
        written.or_else(|error| {
            shared.lose(peer, &format!("its connection broke: {error}"));
            shared.check()
        })
    }

    /// The next array of bytes from a rank.
    pub(super) fn receive(&self, peer: usize) -> Result<Vec<u8>, ExecutionError> {
        let is_waiting = |state: &mut State| state.inboxes[peer].is_empty() && state.failure.is_none();
        let state = self.shared.lock();
        let mut state = self.shared.arrived.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            Some(failure) => Err(failure.error.clone()),
            None => Ok(state.inboxes[peer].pop_front().unwrap_or_default()),
        }
    }

    /// The failure that ended the run.
    pub(super) fn failure(&self) -> Option<ExecutionError> {
        self.shared.lock().failure.as_ref().map(|failure| failure.error.clone())
    }

    /// Ends the run because of an error of this process.
    pub(super) fn fail(&self, error: &ExecutionError) {
        let message = match error {
            ExecutionError::Ranks { reason } => reason.clone(),
            other => format!("rank {} failed: {other}", self.shared.rank),
        };
        self.shared.fail(error.clone(), message, None);
    }

    /// Ends a run in which all went well.
    pub(super) fn finish(self) -> Result<(), ExecutionError> {
        let shared = &self.shared;
        if shared.rank == 0 {
            // Ranks that have heard of the end close before others have heard of it.
            shared.lock().is_ending = true;
            for peer in 0..self.len() {
                self.send(peer, Kind::Bye, &[])?;
            }
            shared.end();
            return Ok(());
        }
        let is_waiting = |state: &mut State| !state.is_over && state.failure.is_none();
        let state = shared.lock();
        drop(shared.alarm.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner));
        shared.check()
    }
}

impl Drop for Wires {
    /// Lets last words reach the others, then closes.
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.end();
        let deadline = Instant::now() + LINGER;
        while Instant::now() < deadline && !shared.lock().is_closed.iter().all(|&closed| closed) {
            thread::sleep(TICK / 25);
        }
        for peer in &shared.peers {
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
    }
}

/// Reads and notes when bytes come.
struct Heard<'a> {
    peer: &'a Peer,
    started: Instant,
}

impl Read for Heard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = (&self.peer.stream).read(buffer)?;
        self.peer.heard(self.started);
        Ok(n)
    }
}

impl Peer {
    fn heard(&self, started: Instant) {
        self.heard_ms.store(started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<(), ExecutionError> {
        self.lock().failure.as_ref().map_or(Ok(()), |failure| Err(failure.error.clone()))
    }

    /// Records the first failure and wakes everybody.
    fn fail(&self, error: ExecutionError, message: String, peer: Option<usize>) {
        let mut state = self.lock();
        if state.failure.is_none() && !state.is_ending && !state.is_over {
            state.failure = Some(Failure { error, message, peer, at: Instant::now() });
        }
        self.arrived.notify_all();
        self.alarm.notify_all();
    }

    fn lose(&self, peer: usize, why: &str) {
        let reason = format!("rank {} was lost: {why}", self.peers[peer].rank);
        self.fail(ExecutionError::Ranks { reason: reason.clone() }, reason, Some(peer));
    }

    fn end(&self) {
        self.lock().is_over = true;
        self.arrived.notify_all();
        self.alarm.notify_all();
    }

    /// Takes frames in until the connection closes.
    fn read(&self, peer: usize, mut seal: Option<Seal>) {
        let mut source = Heard { peer: &self.peers[peer], started: self.started };
        loop {
            match frame::read(&mut source, seal.as_mut(), u64::MAX) {
                Ok(Frame { kind: Kind::Heartbeat, .. }) => {}
                Ok(Frame { kind: Kind::Bytes, payload }) => {
                    self.lock().inboxes[peer].push_back(payload);
                    self.arrived.notify_all();
                }
                Ok(frame @ Frame { kind: Kind::Failed, .. }) => {
                    self.fail(ExecutionError::Ranks { reason: frame.text() }, frame.text(), Some(peer));
                }
                Ok(Frame { kind: Kind::Bye, .. }) => self.end(),
                Ok(Frame { kind: Kind::Hello | Kind::Welcome | Kind::Opening | Kind::Refused, .. }) => {
                    self.lose(peer, "it began anew");
                }
                Err(error) => {
                    let why = match error.kind() {
                        io::ErrorKind::UnexpectedEof => "its connection was closed".to_string(),
                        io::ErrorKind::PermissionDenied => error.to_string(),
                        _ => format!("its connection broke: {error}"),
                    };
                    self.lose(peer, &why);
                    self.lock().is_closed[peer] = true;
                    return;
                }
            }
        }
    }

    /// Sends heartbeats, and the last word.
    fn keep(&self, peer: usize) {
        loop {
            let (state, _) = self
                .alarm
                .wait_timeout_while(self.lock(), HEARTBEAT, |state| state.failure.is_none() && !state.is_over)
                .unwrap_or_else(PoisonError::into_inner);
            let message =
                state.failure.as_ref().map(|failure| (failure.peer != Some(peer)).then(|| failure.message.clone()));
            let is_over = state.is_over;
            drop(state);
            let own = &self.peers[peer];
            if let Some(message) = message {
                if let Some(message) = message {
                    let mut writer = own.writer.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = writer.write(Kind::Failed, message.as_bytes());
                }
                let _ = own.stream.shutdown(Shutdown::Write);
                return;
            }
            if is_over {
                let _ = own.stream.shutdown(Shutdown::Write);
                return;
            }
            // Whoever holds the writer sends something, which is as good as a heartbeat. A connection that breaks here
            // is noticed by the reader.
            match own.writer.try_lock() {
                Ok(mut writer) => drop(writer.write(Kind::Heartbeat, &[])),
                Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => {}
            }
        }
    }

    /// Looks for silence, and for an end that does not come.
    fn monitor(&self, on_stuck: &OnStuck) {
        let mut last_tick = Instant::now();
        loop {
            let (state, _) = self
                .alarm
                .wait_timeout_while(self.lock(), TICK, |state| !state.is_over)
                .unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            let failure = state.failure.as_ref().map(|failure| (failure.error.clone(), failure.at));
            drop(state);
            if let Some((error, at)) = failure {
                if at.elapsed() > STUCK {
                    on_stuck(&error);
                    return;
                }
                continue;
            }
            // A process that was itself stopped has heard nobody meanwhile.
            if last_tick.elapsed() > HEARTBEAT {
                self.peers.iter().for_each(|peer| peer.heard(self.started));
            }
            last_tick = Instant::now();
            let now_ms = self.started.elapsed().as_millis() as u64;
            for (i, peer) in self.peers.iter().enumerate() {
                let silence_ms = now_ms.saturating_sub(peer.heard_ms.load(Ordering::Relaxed));
                if silence_ms > SILENCE.as_millis() as u64 {
                    self.lose(i, &format!("no sign of life for {} s", SILENCE.as_secs()));
                    // Ends a write that waits for the silent side.
                    let _ = peer.stream.shutdown(Shutdown::Both);
                }
            }
        }
    }
}
