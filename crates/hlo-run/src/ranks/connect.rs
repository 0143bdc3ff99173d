//! The beginning: every rank finds rank 0, says who it is, and waits until all are there and fit together.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{self, Frame, Kind};
use super::seat::Seat;
use crate::ExecutionError;

/// Of the protocol and of the program that speaks it.
const VERSION: &str = concat!("hlo-opt ", env!("CARGO_PKG_VERSION"), ", protocol 1");
const HELLO_BYTES: u64 = 4096;
/// How long a rank may take for its first words once it is connected.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long ranks that come late are told what went wrong.
const TELL_TIME: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

fn failed(reason: String) -> ExecutionError {
    ExecutionError::Ranks { reason }
}

/// The first words of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Hello {
    version: String,
    rank: u32,
    n_ranks: u32,
    digest: u64,
    plan: String,
}

impl Hello {
    fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n{:016x}\n{}", self.version, self.rank, self.n_ranks, self.digest, self.plan)
    }

    fn parse(text: &str) -> Option<Hello> {
        let mut lines = text.splitn(5, '\n');
        Some(Hello {
            version: lines.next()?.to_string(),
            rank: lines.next()?.parse().ok()?,
            n_ranks: lines.next()?.parse().ok()?,
            digest: u64::from_str_radix(lines.next()?, 16).ok()?,
            plan: lines.next()?.to_string(),
        })
    }

    /// Why this rank cannot take part in what rank 0 (`own`) begins.
    fn misfit(&self, own: &Hello, is_taken: bool) -> Option<String> {
        let rank = self.rank;
        if self.version != own.version {
            return Some(format!(
                "rank {rank} is `{}`, rank 0 is `{}`: expected one version",
                self.version, own.version
            ));
        }
        if self.n_ranks != own.n_ranks {
            return Some(format!(
                "rank {rank} expects {} ranks, rank 0 expects {}: expected one number",
                self.n_ranks, own.n_ranks
            ));
        }
        if rank >= own.n_ranks {
            return Some(format!("expected ranks below {}, found rank {rank}", own.n_ranks));
        }
        if is_taken || rank == 0 {
            return Some(format!("two processes are rank {rank}: expected one of each rank"));
        }
        (self.digest != own.digest).then(|| {
            format!(
                "rank {rank} has another plan (`{}`, digest {:016x}) than rank 0 (`{}`, digest {:016x}): expected the same \
                 module and flags",
                self.plan, self.digest, own.plan, own.digest
            )
        })
    }
}

/// Connects this rank with the others: rank 0 gets a stream for each other rank, in order, the others get one to rank 0.
/// `digest` is that of everything that must be the same in all, `plan` a name for messages; `say` tells the user.
pub(super) fn connect(
    seat: &Seat,
    digest: u64,
    plan: &str,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<TcpStream>, ExecutionError> {
    let plan = plan.chars().take(200).collect();
    let own = Hello { version: VERSION.into(), rank: seat.rank, n_ranks: seat.n_ranks, digest, plan };
    let streams = if seat.rank == 0 { Lobby::open(seat, own, say)?.fill()? } else { vec![join(seat, &own)?] };
    for stream in &streams {
        let ready = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(None));
        ready.map_err(|e| failed(format!("cannot use a connection: {e}")))?;
    }
    Ok(streams)
}

/// Another rank than 0: keeps trying until rank 0 listens, then waits for its word.
fn join(seat: &Seat, own: &Hello) -> Result<TcpStream, ExecutionError> {
    let place = &seat.coordinator;
    let deadline = Instant::now() + seat.connect_timeout;
    let mut stream = loop {
        let error = match connect_once(place, deadline) {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let seconds = seat.connect_timeout.as_secs();
            return Err(failed(format!("rank 0 did not answer at {place} within {seconds} s: {error}")));
        }
        thread::sleep(PAUSE * 5);
    };
    let left = deadline.saturating_duration_since(Instant::now()) + HELLO_PATIENCE;
    let lost = |error: io::Error| failed(format!("rank 0 at {place} was lost before all ranks were there: {error}"));
    stream.set_read_timeout(Some(left)).map_err(lost)?;
    frame::write(&mut stream, Kind::Hello, own.to_text().as_bytes()).map_err(lost)?;
    let answer = frame::read(&mut stream, HELLO_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            failed(format!("rank 0 at {place} did not say within {} s that all ranks are there", left.as_secs()))
        }
        _ => lost(error),
    })?;
    match answer.kind {
        Kind::Welcome => Ok(stream),
        Kind::Failed => Err(failed(answer.text())),
        other => Err(failed(format!("expected a welcome from rank 0 at {place}, found {other:?}"))),
    }
}

fn connect_once(place: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in place.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A stream whose first frame was read, or should have been.
type Newcomer = (TcpStream, Option<Hello>);

/// Where rank 0 waits for the others.
struct Lobby<'s> {
    seat: &'s Seat,
    own: Hello,
    listener: TcpListener,
    newcomers: (Sender<Newcomer>, Receiver<Newcomer>),
    seated: BTreeMap<u32, TcpStream>,
}

impl<'s> Lobby<'s> {
    fn open(seat: &'s Seat, own: Hello, say: &mut dyn FnMut(&str)) -> Result<Lobby<'s>, ExecutionError> {
        let wrong = |error: io::Error| failed(format!("rank 0 cannot listen at {}: {error}", seat.coordinator));
        let listener = TcpListener::bind(seat.coordinator.as_str()).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        say(&format!("rank 0 waits at {address} for {} more", seat.n_ranks.saturating_sub(1)));
        Ok(Lobby { seat, own, listener, newcomers: channel(), seated: BTreeMap::new() })
    }

    /// Waits until every seat is taken.
    fn fill(mut self) -> Result<Vec<TcpStream>, ExecutionError> {
        let deadline = Instant::now() + self.seat.connect_timeout;
        while self.seated.len() + 1 < self.seat.n_ranks as usize {
            if Instant::now() >= deadline {
                let error = self.missing();
                return Err(self.refuse_all(error));
            }
            match self.next() {
                Some((stream, hello)) => {
                    if let Some(error) = hello.misfit(&self.own, self.seated.contains_key(&hello.rank)) {
                        tell(stream, &error);
                        return Err(self.refuse_all(error));
                    }
                    self.seated.insert(hello.rank, stream);
                }
                None => thread::sleep(PAUSE),
            }
        }
        let mut streams: Vec<TcpStream> = std::mem::take(&mut self.seated).into_values().collect();
        for (i, stream) in streams.iter_mut().enumerate() {
            let lost = |error: io::Error| failed(format!("rank {} was lost: {error}", i + 1));
            frame::write(stream, Kind::Welcome, &[]).map_err(lost)?;
        }
        Ok(streams)
    }

    fn missing(&self) -> String {
        let missing: Vec<String> = (1..self.seat.n_ranks)
            .filter(|rank| !self.seated.contains_key(rank))
            .map(|rank| rank.to_string())
            .collect();
        let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
        format!("{ranks} {} did not connect within {} s", missing.join(", "), self.seat.connect_timeout.as_secs())
    }

    /// The next rank that said who it is; whoever says something else is sent away.
    fn next(&self) -> Option<(TcpStream, Hello)> {
        if let Ok((stream, _)) = self.listener.accept() {
            let sender = self.newcomers.0.clone();
            thread::spawn(move || {
                let hello = hear(&stream);
                let _ = sender.send((stream, hello));
            });
        }
        match self.newcomers.1.try_recv() {
            Ok((stream, Some(hello))) => Some((stream, hello)),
            Ok((_, None)) | Err(_) => None,
        }
    }

    /// Tells all who are here, and for a while those who still come, why nothing will come of it.
    fn refuse_all(mut self, error: String) -> ExecutionError {
        let mut n_told = self.seated.len() + 1;
        std::mem::take(&mut self.seated).into_values().for_each(|stream| tell(stream, &error));
        let deadline = Instant::now() + TELL_TIME;
        while Instant::now() < deadline && n_told + 1 < self.seat.n_ranks as usize {
            match self.next() {
                Some((stream, _)) => {
                    tell(stream, &error);
                    n_told += 1;
                }
                None => thread::sleep(PAUSE),
            }
        }
        failed(error)
    }
}

fn hear(stream: &TcpStream) -> Option<Hello> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(HELLO_PATIENCE)).ok()?;
    let Frame { kind, payload } = frame::read(&mut &*stream, HELLO_BYTES).ok()?;
    (kind == Kind::Hello).then(|| Hello::parse(&String::from_utf8_lossy(&payload)))?
}

fn tell(mut stream: TcpStream, error: &str) {
    let _ = frame::write(&mut stream, Kind::Failed, error.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
}
