//! The beginning: every rank finds rank 0, says who it is, and waits until all are there and fit together.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::Kind;
use super::greet::{Hello, Link, Unmet, VERSION, greet, hear, refusal, refuse};
use super::seat::Seat;
use crate::ExecutionError;

/// How long a rank may take for its first words once it is connected.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long ranks that come late are told what went wrong.
const TELL_TIME: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);
/// Connections that have not proven who they are; of more, the oldest is closed. Ranks prove it at once.
const MAX_UNPROVEN: usize = 128;
/// Refused connections that are named, each in a line.
const MAX_NAMED: usize = 20;

fn failed(reason: String) -> ExecutionError {
    ExecutionError::Ranks { reason }
}

impl Hello {
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

/// Connects this rank with the others: rank 0 gets a link for each other rank, in order, the others get one to rank 0.
/// `digest` is that of everything that must be the same in all, `plan` a name for messages; `say` tells the user.
pub(super) fn connect(
    seat: &Seat,
    digest: u64,
    plan: &str,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Link>, ExecutionError> {
    let plan = plan.chars().take(200).collect();
    let own = Hello { version: VERSION.into(), rank: seat.rank, n_ranks: seat.n_ranks, digest, plan };
    let links = if seat.rank == 0 { Lobby::open(seat, own, say)?.fill()? } else { vec![join(seat, &own)?] };
    for Link { stream, .. } in &links {
        let ready = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(None));
        let ready = ready.and_then(|()| stream.set_write_timeout(None));
        ready.map_err(|e| failed(format!("cannot use a connection: {e}")))?;
    }
    Ok(links)
}

/// Another rank than 0: keeps trying until rank 0 listens, then waits for its word.
fn join(seat: &Seat, own: &Hello) -> Result<Link, ExecutionError> {
    let place = &seat.coordinator;
    let deadline = Instant::now() + seat.connect_timeout;
    let patience = deadline + HELLO_PATIENCE;
    let mut link = loop {
        let met = connect_once(place, deadline).map_err(Unmet::Closed);
        let met = met.and_then(|stream| greet(stream, own, seat.secret.as_ref(), place, patience));
        let error = match met {
            Ok(link) => break link,
            Err(Unmet::Refused(why)) => return Err(failed(why)),
            Err(Unmet::Closed(error)) => error,
        };
        if Instant::now() >= deadline {
            let seconds = seat.connect_timeout.as_secs();
            return Err(failed(format!("rank 0 did not answer at {place} within {seconds} s: {error}")));
        }
        thread::sleep(PAUSE * 5);
    };
    let answer = link.read(patience).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => {
            let seconds = (seat.connect_timeout + HELLO_PATIENCE).as_secs();
            failed(format!("rank 0 at {place} did not say within {seconds} s that all ranks are there"))
        }
        io::ErrorKind::PermissionDenied => failed(format!("rank 0 at {place} does not prove that it knows the secret")),
        _ => failed(format!("rank 0 at {place} was lost before all ranks were there: {error}")),
    })?;
    match answer.kind {
        Kind::Welcome => Ok(link),
        Kind::Failed => Err(failed(answer.text())),
        Kind::Refused => Err(failed(refusal(place, &answer.text()))),
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

/// A connection that said who it is, or that is to be refused.
struct Newcomer {
    address: SocketAddr,
    heard: Result<(Link, Hello), (TcpStream, String)>,
}

/// Where rank 0 waits for the others.
struct Lobby<'s> {
    seat: &'s Seat,
    own: Hello,
    listener: TcpListener,
    newcomers: (Sender<Newcomer>, Receiver<Newcomer>),
    /// The connections that have not yet proven who they are, the oldest first.
    unproven: Vec<(SocketAddr, TcpStream)>,
    n_refused: usize,
    seated: BTreeMap<u32, Link>,
    say: &'s mut dyn FnMut(&str),
}

impl<'s> Lobby<'s> {
    fn open(seat: &'s Seat, own: Hello, say: &'s mut dyn FnMut(&str)) -> Result<Lobby<'s>, ExecutionError> {
        let wrong = |error: io::Error| failed(format!("rank 0 cannot listen at {}: {error}", seat.coordinator));
        let listener = TcpListener::bind(seat.coordinator.as_str()).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        say(&format!("rank 0 waits at {address} for {} more", seat.n_ranks.saturating_sub(1)));
        if seat.secret.is_none() && !address.ip().is_loopback() {
            say(&format!(
                "warning: whoever reaches {address} can take part in the run: --secret-file keeps others out"
            ));
        }
        let (newcomers, unproven, seated) = (channel(), Vec::new(), BTreeMap::new());
        Ok(Lobby { seat, own, listener, newcomers, unproven, n_refused: 0, seated, say })
    }

    /// Waits until every seat is taken.
    fn fill(mut self) -> Result<Vec<Link>, ExecutionError> {
        let deadline = Instant::now() + self.seat.connect_timeout;
        while self.seated.len() + 1 < self.seat.n_ranks as usize {
            if Instant::now() >= deadline {
                let error = self.missing();
                return Err(self.refuse_all(error));
            }
            match self.next() {
                Some((link, hello)) => {
                    if let Some(error) = hello.misfit(&self.own, self.seated.contains_key(&hello.rank)) {
                        link.end(Kind::Failed, &error);
                        return Err(self.refuse_all(error));
                    }
                    self.seated.insert(hello.rank, link);
                }
                None => thread::sleep(PAUSE),
            }
        }
        let mut links: Vec<Link> = std::mem::take(&mut self.seated).into_values().collect();
        for (i, link) in links.iter_mut().enumerate() {
            let lost = |error: io::Error| failed(format!("rank {} was lost: {error}", i + 1));
            link.write(Kind::Welcome, &[]).map_err(lost)?;
        }
        Ok(links)
    }

    fn missing(&self) -> String {
        let missing: Vec<String> = (1..self.seat.n_ranks)
            .filter(|rank| !self.seated.contains_key(rank))
            .map(|rank| rank.to_string())
            .collect();
        let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
        let others = match self.n_refused {
            0 => String::new(),
            n => format!("; connections that were refused: {n}"),
        };
        let seconds = self.seat.connect_timeout.as_secs();
        format!("{ranks} {} did not connect within {seconds} s{others}", missing.join(", "))
    }

    /// The next rank that said who it is; whoever says something else, or does not know the secret, is refused.
    fn next(&mut self) -> Option<(Link, Hello)> {
        for _ in 0..MAX_UNPROVEN {
            let Ok((stream, address)) = self.listener.accept() else { break };
            let Ok(watched) = stream.try_clone() else { break };
            if self.unproven.len() >= MAX_UNPROVEN {
                // Its thread reads the end, and refuses it.
                let _ = self.unproven.remove(0).1.shutdown(Shutdown::Both);
            }
            self.unproven.push((address, watched));
            let (sender, secret) = (self.newcomers.0.clone(), self.seat.secret.clone());
            let work = move || {
                let heard = hear(stream, secret.as_ref(), Instant::now() + HELLO_PATIENCE);
                let _ = sender.send(Newcomer { address, heard });
            };
            drop(thread::Builder::new().name(format!("newcomer {address}")).spawn(work));
        }
        while let Ok(Newcomer { address, heard }) = self.newcomers.1.try_recv() {
            self.unproven.retain(|(other, _)| *other != address);
            match heard {
                Ok(found) => return Some(found),
                Err((stream, why)) => self.refuse(address, stream, &why),
            }
        }
        None
    }

    /// Sends one away. The run does not end: whoever did not prove to be a rank has no say in it.
    fn refuse(&mut self, address: SocketAddr, stream: TcpStream, why: &str) {
        refuse(stream, why);
        self.n_refused += 1;
        if self.n_refused <= MAX_NAMED {
            (self.say)(&format!("refused {address}: {why}"));
        }
        if self.n_refused == MAX_NAMED {
            (self.say)("more connections that are refused are counted, and not named");
        }
    }

    /// Tells all who are here, and for a while those who still come, why nothing will come of it.
    fn refuse_all(mut self, error: String) -> ExecutionError {
        let mut n_told = self.seated.len() + 1;
        std::mem::take(&mut self.seated).into_values().for_each(|link| link.end(Kind::Failed, &error));
        let deadline = Instant::now() + TELL_TIME;
        while Instant::now() < deadline && n_told + 1 < self.seat.n_ranks as usize {
            match self.next() {
                Some((link, _)) => {
                    link.end(Kind::Failed, &error);
                    n_told += 1;
                }
                None => thread::sleep(PAUSE),
            }
        }
        failed(error)
    }
}
