//! What goes over a connection: frames of a kind, a length and so many bytes. Numbers are little-endian.
//!
//! With a secret, head and payload are each followed by a signature over the number of the piece and the bytes; the one of the
//! head is tested before its length is believed. An empty payload has none.

use std::io::{self, Read, Write};

use super::secret::{Seal, TAG_BYTES};

/// What a frame says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Who a rank is. Text.
    Hello,
    /// Rank 0's answer when all are there.
    Welcome,
    /// The sender lives.
    Heartbeat,
    /// The bytes that some devices bring or take. See [`encode`].
    Bytes,
    /// The run cannot go on; why, as text.
    Failed,
    /// The run is over and all is well.
    Bye,
    /// The first frame of both ends, never signed: see [`super::greet::Opening`].
    Opening,
    /// The connection is given up before it is proven; why, as text. Never signed.
    Refused,
}

/// First byte of each kind: none that a protocol of text begins with.
const KINDS: [(Kind, u8); 8] = [
    (Kind::Hello, 0xA1),
    (Kind::Welcome, 0xA2),
    (Kind::Heartbeat, 0xA3),
    (Kind::Bytes, 0xA4),
    (Kind::Failed, 0xA5),
    (Kind::Bye, 0xA6),
    (Kind::Opening, 0xA7),
    (Kind::Refused, 0xA8),
];

/// Bytes of a frame before its payload.
const HEAD_BYTES: usize = 9;
/// The longest frame that nobody signed.
const UNSIGNED_BYTES: u64 = 4096;

/// A frame as it was received.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub kind: Kind,
    pub payload: Vec<u8>,
}

impl Frame {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

impl Kind {
    /// Whether frames of this kind come before there is a key.
    fn is_unsigned(self) -> bool {
        match self {
            Kind::Opening | Kind::Refused => true,
            Kind::Hello | Kind::Welcome | Kind::Heartbeat | Kind::Bytes | Kind::Failed | Kind::Bye => false,
        }
    }
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_string())
}

/// Writes a frame, signed if there is a seal.
pub(super) fn write(sink: &mut impl Write, seal: Option<&mut Seal>, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let code = KINDS.iter().find(|(k, _)| *k == kind).map_or(0, |(_, code)| *code);
    let mut head = Vec::with_capacity(HEAD_BYTES + TAG_BYTES);
    head.push(code);
    head.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    let mut tag = None;
    if let Some(seal) = seal.filter(|_| !kind.is_unsigned()) {
        let of_head = seal.sign([&head, b""]);
        tag = (!payload.is_empty()).then(|| seal.sign([&head, payload]));
        head.extend_from_slice(&of_head);
    }
    let tag = tag.as_ref().map_or(&[][..], |tag| tag);
    // One write for what is small: a packet for each frame.
    if payload.len() <= 1 << 14 {
        sink.write_all(&[&head, payload, tag].concat())
    } else {
        sink.write_all(&head)?;
        sink.write_all(payload)?;
        sink.write_all(tag)
    }
}

/// Reads a frame of at most `most_bytes`, and tests its signatures if there is a seal. Memory is taken as bytes come, whatever
/// the length says.
pub(super) fn read(source: &mut impl Read, mut seal: Option<&mut Seal>, most_bytes: u64) -> io::Result<Frame> {
    let mut head = [0u8; HEAD_BYTES];
    source.read_exact(&mut head)?;
    let [code, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    let kind = KINDS.iter().find(|(_, c)| *c == code).map(|(kind, _)| *kind);
    let kind = kind.ok_or_else(|| wrong("expected a frame of hlo-opt, found other bytes"))?;
    let most_bytes = if kind.is_unsigned() { most_bytes.min(UNSIGNED_BYTES) } else { most_bytes };
    if kind.is_unsigned() {
        seal = None;
    }
    if let Some(seal) = &mut seal {
        test(source, seal, [&head, b""])?;
    }
    if length > most_bytes {
        return Err(wrong("expected a shorter frame"));
    }
    let mut payload = Vec::new();
    let found = source.take(length).read_to_end(&mut payload)?;
    if found as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if let Some(seal) = seal.filter(|_| !payload.is_empty()) {
        test(source, seal, [&head, &payload])?;
    }
    Ok(Frame { kind, payload })
}

/// Reads a signature and tests it.
fn test(source: &mut impl Read, seal: &mut Seal, parts: [&[u8]; 2]) -> io::Result<()> {
    let mut tag = [0u8; TAG_BYTES];
    source.read_exact(&mut tag)?;
    match seal.is_genuine(parts, &tag) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, UNPROVEN)),
    }
}

/// Of a frame whose signature is wrong.
pub(super) const UNPROVEN: &str = "a frame is not signed with the run's secret, or was changed, left out or sent again";

/// The payload of [`Kind::Bytes`]: which exchange it belongs to, and one array of bytes for each device.
pub(super) fn encode(round: u64, name: &str, arrays: &[Vec<u8>]) -> Vec<u8> {
    let total = arrays.iter().map(|array| array.len() + 8).sum::<usize>() + name.len() + 32;
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(&round.to_le_bytes());
    for bytes in std::iter::once(name.as_bytes()).chain(arrays.iter().map(Vec::as_slice)) {
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

/// What [`encode`] put in; `None` for other bytes.
pub(super) fn decode(payload: &[u8]) -> Option<(u64, String, Vec<Vec<u8>>)> {
    let (round, mut rest) = payload.split_first_chunk::<8>()?;
    let mut arrays = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<8>()?;
        let (array, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        arrays.push(array.to_vec());
        rest = tail;
    }
    let name = (!arrays.is_empty()).then(|| arrays.remove(0))?;
    Some((u64::from_le_bytes(*round), String::from_utf8(name).ok()?, arrays))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_arrays_come_back() {
        let arrays = vec![vec![1, 2, 3], Vec::new(), vec![0; 100_000]];
        let payload = encode(7, "all-reduce.3", &arrays);
        let mut sent = Vec::new();
        for (kind, payload) in [(Kind::Bytes, payload.as_slice()), (Kind::Heartbeat, &[]), (Kind::Failed, b"why")] {
            write(&mut sent, None, kind, payload).unwrap();
        }
        let mut source = sent.as_slice();
        let frame = read(&mut source, None, 1 << 20).unwrap();
        assert_eq!(decode(&frame.payload), Some((7, "all-reduce.3".to_string(), arrays)));
        assert_eq!(read(&mut source, None, 1 << 20).unwrap(), Frame { kind: Kind::Heartbeat, payload: Vec::new() });
        assert_eq!(read(&mut source, None, 1 << 20).unwrap().text(), "why");
        assert!(read(&mut source, None, 1 << 20).is_err(), "the end");
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(read(&mut &b"GET / HTTP/1.1\r\n\r\n"[..], None, 4096).is_err());
        let mut long = Vec::new();
        write(&mut long, None, Kind::Hello, &[0; 5000]).unwrap();
        assert!(read(&mut long.as_slice(), None, 4096).is_err());
        let payload = encode(1, "x", &[vec![1, 2]]);
        for cut in 0..payload.len() {
            let whole = decode(&payload[..cut]).is_some_and(|(_, _, arrays)| arrays.len() == 1);
            assert!(!whole, "cut at {cut}");
        }
    }
}
