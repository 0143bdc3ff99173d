//! The first words over a connection. Both ends send an [`Opening`] with a nonce; where there is a secret, the keys of both
//! directions come from it and both nonces. The joiner's [`Hello`] is its proof, rank 0's first signed frame is that of rank 0.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{self, Frame, Kind};
use super::secret::{End, NONCE_BYTES, Nonce, Seal, Secret, Session, draw_nonce};

/// Of the protocol and of the program that speaks it.
pub(super) const VERSION: &str = concat!("hlo-opt ", env!("CARGO_PKG_VERSION"), ", protocol 2");
/// The beginning of an opening.
const PROTOCOL: &[u8] = b"hlo-opt ranks 2";
pub(super) const HELLO_BYTES: u64 = 4096;

/// A connection whose ends know of one another; `seals` sign what goes out and test what comes in.
pub(super) struct Link {
    pub stream: TcpStream,
    pub seals: Option<(Seal, Seal)>,
}

impl Link {
    /// Sends a frame.
    pub(super) fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        frame::write(&mut &self.stream, self.seals.as_mut().map(|seals| &mut seals.0), kind, payload)
    }

    /// Reads a short frame.
    pub(super) fn read(&mut self, deadline: Instant) -> io::Result<Frame> {
        let mut source = Timed { stream: &self.stream, deadline };
        frame::read(&mut source, self.seals.as_mut().map(|seals| &mut seals.1), HELLO_BYTES)
    }

    /// The last words.
    pub(super) fn end(mut self, kind: Kind, why: &str) {
        let _ = self.write(kind, why.as_bytes());
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Sends away who did not prove anything.
pub(super) fn refuse(stream: TcpStream, why: &str) {
    Link { stream, seals: None }.end(Kind::Refused, why);
}

/// Reads until a point in time, however slowly bytes come.
struct Timed<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        self.stream.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

/// The first frame of an end.
struct Opening {
    has_secret: bool,
    rank: u32,
    nonce: Nonce,
}

impl Opening {
    fn to_bytes(&self) -> Vec<u8> {
        [PROTOCOL, &[u8::from(self.has_secret)], &self.rank.to_le_bytes(), &self.nonce].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Opening> {
        let (&flag, rest) = bytes.strip_prefix(PROTOCOL)?.split_first()?;
        let (rank, nonce) = rest.split_first_chunk::<4>()?;
        let nonce: Nonce = *nonce.first_chunk::<NONCE_BYTES>()?;
        Some(Opening { has_secret: flag == 1, rank: u32::from_le_bytes(*rank), nonce })
    }
}

/// Who a rank is and what it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub version: String,
    pub rank: u32,
    pub n_ranks: u32,
    pub digest: u64,
    pub plan: String,
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
}

/// An opening in words; `None` for other bytes.
pub(super) fn describe_opening(bytes: &[u8]) -> Option<String> {
    let opening = Opening::parse(bytes)?;
    Some(format!("rank {} with {} secret", opening.rank, if opening.has_secret { "a" } else { "no" }))
}

/// A hello in words; `None` for other texts.
pub(super) fn describe_hello(text: &str) -> Option<String> {
    let Hello { version, rank, n_ranks, digest, plan } = Hello::parse(text)?;
    Some(format!("{version}: rank {rank} of {n_ranks} with {plan} of digest {digest:016x}"))
}

/// Why a joiner and rank 0 did not come to speak.
#[derive(Debug)]
pub(super) enum Unmet {
    /// Rank 0 closed the connection before it said a word: it may do better at the next attempt.
    Closed(io::Error),
    /// A sentence about rank 0 at its place.
    Refused(String),
}

/// The joiner's side: says who it is.
pub(super) fn greet(
    stream: TcpStream,
    own: &Hello,
    secret: Option<&Secret>,
    place: &str,
    deadline: Instant,
) -> Result<Link, Unmet> {
    let refused = |why: String| Unmet::Refused(why);
    let nonce = draw_nonce().map_err(|error| refused(error.to_string()))?;
    let opening = Opening { has_secret: secret.is_some(), rank: own.rank, nonce };
    let mut link = Link { stream, seals: None };
    link.write(Kind::Opening, &opening.to_bytes()).map_err(Unmet::Closed)?;
    let answer = link.read(deadline).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => refused(format!("rank 0 did not answer at {place} in time")),
        io::ErrorKind::InvalidData => refused(format!("expected rank 0 at {place}: {error}")),
        _ => Unmet::Closed(error),
    })?;
    if answer.kind == Kind::Refused {
        return Err(refused(refusal(place, &answer.text())));
    }
    let theirs = (answer.kind == Kind::Opening).then(|| Opening::parse(&answer.payload)).flatten();
    let Some(theirs) = theirs else {
        return Err(refused(format!("expected rank 0 of this version at {place}, found another")));
    };
    match (secret, theirs.has_secret) {
        (Some(secret), true) => {
            let session = Session { rank: own.rank, joiner: nonce, coordinator: theirs.nonce };
            link.seals = Some(session.seals(secret, End::Joiner));
        }
        (None, false) => {}
        (Some(_), false) => {
            return Err(refused(format!("rank 0 at {place} has no secret: expected that of this rank")));
        }
        (None, true) => return Err(refused(refusal(place, NO_SECRET))),
    }
    let said = link.write(Kind::Hello, own.to_text().as_bytes());
    said.map_err(|error| refused(format!("rank 0 at {place} was lost before all ranks were there: {error}")))?;
    Ok(link)
}

const NO_SECRET: &str = "it has no secret: expected that of rank 0, by --secret-file or HLO_OPT_SECRET";

/// What a joiner says of a refusal.
pub(super) fn refusal(place: &str, why: &str) -> String {
    format!("rank 0 at {place} refuses this rank: {why}")
}

/// Rank 0's side: hears who a connection is from, and refuses it where it does not prove that it knows the secret.
pub(super) fn hear(
    stream: TcpStream,
    secret: Option<&Secret>,
    deadline: Instant,
) -> Result<(Link, Hello), (TcpStream, String)> {
    let mut link = Link { stream, seals: None };
    match hear_over(&mut link, secret, deadline) {
        Ok(hello) => Ok((link, hello)),
        Err(why) => Err((link.stream, why)),
    }
}

fn hear_over(link: &mut Link, secret: Option<&Secret>, deadline: Instant) -> Result<Hello, String> {
    let slow = |error: io::Error| match error.kind() {
        io::ErrorKind::TimedOut => "it did not say in time who it is".to_string(),
        io::ErrorKind::UnexpectedEof => "it closed the connection before it said who it is".to_string(),
        _ => error.to_string(),
    };
    let ready = link.stream.set_nonblocking(false).and_then(|()| link.stream.set_write_timeout(Some(WRITE_PATIENCE)));
    ready.map_err(|error| error.to_string())?;
    let frame = link.read(deadline).map_err(slow)?;
    let theirs = (frame.kind == Kind::Opening).then(|| Opening::parse(&frame.payload)).flatten();
    let theirs = theirs.ok_or("it speaks another protocol: expected hlo-opt of the same version")?;
    match (secret, theirs.has_secret) {
        (Some(_), false) => return Err(NO_SECRET.into()),
        (None, true) => return Err("it has a secret and rank 0 has none: expected the same in both".into()),
        (Some(_), true) | (None, false) => {}
    }
    let nonce = draw_nonce().map_err(|error| error.to_string())?;
    let opening = Opening { has_secret: secret.is_some(), rank: 0, nonce };
    link.write(Kind::Opening, &opening.to_bytes()).map_err(slow)?;
    link.seals = secret.map(|secret| {
        let session = Session { rank: theirs.rank, joiner: theirs.nonce, coordinator: nonce };
        session.seals(secret, End::Coordinator)
    });
    let frame = link.read(deadline).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => "it has another secret, or repeats what another said".to_string(),
        _ => slow(error),
    })?;
    let hello = (frame.kind == Kind::Hello).then(|| Hello::parse(&frame.text())).flatten();
    hello.filter(|hello| hello.rank == theirs.rank).ok_or_else(|| "it does not say who it is".to_string())
}

/// How long a newcomer may take to take in a few bytes.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_comes_back_and_no_other_bytes_are_one() {
        let bytes = Opening { has_secret: true, rank: 7, nonce: [9; NONCE_BYTES] }.to_bytes();
        let back = Opening::parse(&bytes).unwrap();
        assert!(back.has_secret && back.rank == 7 && back.nonce == [9; NONCE_BYTES]);
        assert!((0..bytes.len()).all(|cut| Opening::parse(&bytes[..cut]).is_none()));
        assert!(Opening::parse(b"hlo-opt ranks 1 with some more bytes that nobody expects").is_none());
    }
}
