//! A secret that all ranks of a run know, and what is signed with keys that come from it.
//!
//! Nothing is encrypted. Whoever does not know the secret can read what is sent, but cannot take part, and cannot change,
//! repeat, reorder or send back a frame without being noticed.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::SeatError;

/// Bytes of a signature.
pub(super) const TAG_BYTES: usize = 32;
/// Bytes of a nonce.
pub(super) const NONCE_BYTES: usize = 32;

/// A random number that is used once.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// What all ranks of a run know and nobody else does.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The shortest secret: whoever records a handshake can try short ones at leisure.
    pub const MIN_BYTES: usize = 16;
    /// The longest one.
    pub const MAX_BYTES: usize = 4096;

    /// Takes a secret without the white space around it; `origin` says where it is from, for the error.
    ///
    /// # Errors
    /// It is shorter than [`Secret::MIN_BYTES`] or longer than [`Secret::MAX_BYTES`].
    pub fn new(bytes: &[u8], origin: &str) -> Result<Secret, SeatError> {
        let bytes = bytes.trim_ascii();
        if !(Secret::MIN_BYTES..=Secret::MAX_BYTES).contains(&bytes.len()) {
            let expected_bytes = (Secret::MIN_BYTES, Secret::MAX_BYTES);
            return Err(SeatError::NoSecret { origin: origin.into(), expected_bytes, found_bytes: bytes.len() });
        }
        Ok(Secret(bytes.to_vec()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Rank 0.
    Coordinator,
    /// Another rank.
    Joiner,
}

impl End {
    fn other(self) -> End {
        match self {
            End::Coordinator => End::Joiner,
            End::Joiner => End::Coordinator,
        }
    }

    /// What a key is for: one that signs frames of this end.
    fn label(self) -> &'static [u8] {
        match self {
            End::Coordinator => b"frames of rank 0",
            End::Joiner => b"frames to rank 0",
        }
    }
}

/// What both ends of a connection know of it before anything is signed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// Whom the joiner says to be.
    pub rank: u32,
    /// What the joiner drew.
    pub joiner: Nonce,
    /// What rank 0 drew.
    pub coordinator: Nonce,
}

impl Session {
    /// What signs the frames of `own`, and what tests those of the other end.
    pub(super) fn seals(&self, secret: &Secret, own: End) -> (Seal, Seal) {
        let mut mac = keyed(&secret.0);
        mac.update(b"hlo-opt ranks, protocol 2");
        mac.update(&self.rank.to_le_bytes());
        mac.update(&self.joiner);
        mac.update(&self.coordinator);
        let session = mac.finalize().into_bytes();
        let seal = |end: End| {
            let mut mac = keyed(&session);
            mac.update(end.label());
            Seal { mac: keyed(&mac.finalize().into_bytes()), n_signed: 0 }
        };
        (seal(own), seal(own.other()))
    }
}

/// HMAC with a key of any length, which RFC 2104 hashes where it is longer than a block of the hash, and fills up with zeros.
fn keyed(key: &[u8]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    match block.get_mut(..key.len()) {
        Some(start) => start.copy_from_slice(key),
        None => block[..TAG_BYTES].copy_from_slice(&Sha256::digest(key)),
    }
    Hmac::new(&block.into())
}

/// Signs what goes one way over a connection, each piece with its number.
#[derive(Clone)]
pub(super) struct Seal {
    mac: Hmac<Sha256>,
    n_signed: u64,
}

impl Seal {
    fn next(&mut self, parts: [&[u8]; 2]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&self.n_signed.to_le_bytes());
        parts.into_iter().for_each(|part| mac.update(part));
        self.n_signed += 1;
        mac
    }

    /// The signature of the next piece.
    pub(super) fn sign(&mut self, parts: [&[u8]; 2]) -> [u8; TAG_BYTES] {
        self.next(parts).finalize().into_bytes().into()
    }

    /// Whether the next piece is what the other end signed; in the same time whatever the signature.
    pub(super) fn is_genuine(&mut self, parts: [&[u8]; 2], tag: &[u8; TAG_BYTES]) -> bool {
        self.next(parts).verify_slice(tag).is_ok()
    }
}

/// A number that nobody has drawn before.
///
/// # Errors
/// The operating system has none.
pub(super) fn draw_nonce() -> std::io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| std::io::Error::other(format!("no random numbers: {error}")))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes(), "a test").unwrap()
    }

    const SESSION: Session = Session { rank: 1, joiner: [1; NONCE_BYTES], coordinator: [2; NONCE_BYTES] };

    #[test]
    fn short_secrets_are_refused_and_none_is_shown() {
        for text in ["", "  \n", "fifteen-letters", "\n fifteen-letters \n"] {
            let error = Secret::new(text.as_bytes(), "f").unwrap_err().to_string();
            assert!(error.contains("expected a secret of 16 to 4096 bytes, found"), "{error}");
            assert!(!error.contains("fifteen"), "{error}");
        }
        assert_eq!(format!("{:?}", secret("sixteen--letters")), "Secret(…)");
    }

    #[test]
    fn keys_of_every_length_are_those_of_hmac() {
        for n_bytes in [0, 20, 64, 65, 131] {
            let key = vec![0xaa; n_bytes];
            let expected = Hmac::<Sha256>::new_from_slice(&key).unwrap().chain_update(b"x").finalize().into_bytes();
            assert_eq!(keyed(&key).chain_update(b"x").finalize().into_bytes(), expected, "{n_bytes}");
        }
    }

    #[test]
    fn what_one_end_signs_the_other_takes_once_and_in_order() {
        let key = secret("a secret of the test\n");
        let (mut mine, _) = SESSION.seals(&secret("a secret of the test"), End::Joiner);
        let (_, mut theirs) = SESSION.seals(&key, End::Coordinator);
        let (first, second) = (mine.sign([b"head", b"one"]), mine.sign([b"head", b"two"]));
        assert!(!theirs.clone().is_genuine([b"head", b"two"], &second), "out of order");
        assert!(theirs.is_genuine([b"head", b"one"], &first));
        assert!(!theirs.clone().is_genuine([b"head", b"one"], &first), "again");
        assert!(!theirs.clone().is_genuine([b"head", b"Two"], &second), "changed");
        assert!(theirs.is_genuine([b"head", b"two"], &second));
    }

    #[test]
    fn everything_that_is_said_before_counts() {
        let key = secret("a secret of the test");
        let tag = |session: Session, key: &Secret, end| session.seals(key, end).0.sign([b"x", b""]);
        let expected = tag(SESSION, &key, End::Joiner);
        let others = [
            tag(SESSION, &key, End::Coordinator),
            tag(SESSION, &secret("another secret of it"), End::Joiner),
            tag(Session { rank: 2, ..SESSION }, &key, End::Joiner),
            tag(Session { joiner: [3; NONCE_BYTES], ..SESSION }, &key, End::Joiner),
            tag(Session { coordinator: [3; NONCE_BYTES], ..SESSION }, &key, End::Joiner),
            tag(Session { joiner: SESSION.coordinator, coordinator: SESSION.joiner, ..SESSION }, &key, End::Joiner),
        ];
        assert!(others.iter().all(|other| *other != expected));
    }
}
