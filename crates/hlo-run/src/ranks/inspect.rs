//! Frames outside of a connection: what a rank makes of bytes that another end sent. For tests that make such bytes up.

use std::io;

use super::frame::{self, Frame, Kind};
use super::greet::{HELLO_BYTES, describe_hello, describe_opening};
use super::secret::{End, NONCE_BYTES, Seal, Secret, Session};

/// Of a connection with fixed nonces: what is signed with it protects nothing.
const SESSION: Session = Session { rank: 1, joiner: [1; NONCE_BYTES], coordinator: [2; NONCE_BYTES] };

fn joiner(secret: &Secret) -> Seal {
    SESSION.seals(secret, End::Joiner).0
}

fn coordinator(secret: &Secret) -> Seal {
    SESSION.seals(secret, End::Coordinator).1
}

/// Reads frames until one cannot be read, as rank 0 does: a line for each frame, and why there is no next one. With a secret,
/// the frames are those of [`sign_frames`].
pub fn describe_frames(mut bytes: &[u8], secret: Option<&Secret>) -> (Vec<String>, io::Error) {
    let mut seal = secret.map(coordinator);
    let mut lines = Vec::new();
    loop {
        // Only frames that bring arrays may be longer than a greeting; a reader knows which it waits for.
        let most_bytes = if lines.is_empty() { HELLO_BYTES } else { u64::MAX };
        match frame::read(&mut bytes, seal.as_mut(), most_bytes) {
            Ok(frame) => lines.push(describe(&frame)),
            Err(error) => return (lines, error),
        }
    }
}

/// Frames of arrays as a rank with this secret sends them.
pub fn sign_frames(payloads: &[&[u8]], secret: &Secret) -> Vec<u8> {
    let mut seal = joiner(secret);
    let mut sent = Vec::new();
    for payload in payloads {
        // Nothing fails where memory is written to.
        let _ = frame::write(&mut sent, Some(&mut seal), Kind::Bytes, payload);
    }
    sent
}

fn describe(frame: &Frame) -> String {
    let said = match frame.kind {
        Kind::Opening => describe_opening(&frame.payload),
        Kind::Hello => describe_hello(&frame.text()),
        Kind::Bytes => frame::decode(&frame.payload).map(|(round, name, arrays)| {
            format!("exchange {round} (`{name}`), {} arrays of {} bytes", arrays.len(), arrays.concat().len())
        }),
        Kind::Welcome | Kind::Heartbeat | Kind::Failed | Kind::Bye | Kind::Refused => Some(frame.text()),
    };
    format!(
        "{:?}: {}",
        frame.kind,
        said.unwrap_or_else(|| format!("{} bytes that cannot be read", frame.payload.len()))
    )
}
