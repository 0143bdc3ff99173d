//! Bytes as what another rank sent: frames are read, or the error has a name; a signed frame that was changed is refused.

use hlo_run::{Secret, describe_frames, sign_frames};
use std::io::ErrorKind;

/// The first byte says whether the rest is read as it is, read with a secret, or signed, changed and then read.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let Some((mode, rest)) = bytes.split_first() else { return Ok(()) };
    let secret = Secret::new(b"a secret of the fuzzer", "the fuzzer").map_err(|error| error.to_string())?;
    match mode % 3 {
        0 => is_named(describe_frames(rest, None).1.kind()),
        1 => is_named(describe_frames(rest, Some(&secret)).1.kind()),
        _ => changed_frames_are_refused(rest, &secret),
    }
}

fn is_named(kind: ErrorKind) -> Result<(), String> {
    match kind {
        ErrorKind::InvalidData | ErrorKind::PermissionDenied | ErrorKind::UnexpectedEof => Ok(()),
        other => Err(format!("expected an error that says what is wrong, found {other:?}")),
    }
}

/// Two bytes are a place, one what is changed there; the rest is cut into payloads of its first byte's length.
fn changed_frames_are_refused(bytes: &[u8], secret: &Secret) -> Result<(), String> {
    let [low, high, change, length, rest @ ..] = bytes else { return Ok(()) };
    let payloads: Vec<&[u8]> = rest.chunks(usize::from(*length).max(1)).take(64).collect();
    let mut sent = sign_frames(&payloads, secret);
    let (frames, end) = describe_frames(&sent, Some(secret));
    if frames.len() != payloads.len() || end.kind() != ErrorKind::UnexpectedEof {
        return Err(format!("expected {} frames, found {} and then: {end}", payloads.len(), frames.len()));
    }
    if *change == 0 || sent.is_empty() {
        return Ok(());
    }
    let at = usize::from(u16::from_le_bytes([*low, *high])) % sent.len();
    sent[at] ^= change;
    let (changed, end) = describe_frames(&sent, Some(secret));
    is_named(end.kind())?;
    // What was signed and came before the change is as it was. A frame turned into one that is never signed ends the reading.
    let is_prefix = changed.iter().zip(&frames).all(|(a, b)| a == b) && changed.len() < frames.len();
    match is_prefix || changed.iter().any(|frame| frame.starts_with("Opening") || frame.starts_with("Refused")) {
        true => Ok(()),
        false => Err(format!("byte {at} was changed, and all {} frames were taken", changed.len())),
    }
}
