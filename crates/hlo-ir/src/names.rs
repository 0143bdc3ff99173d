//! Interned names of instructions and computations.

use crate::dtype::DType;
use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};
use hashbrown::HashTable;
use std::hash::Hasher;
use std::sync::Arc;

/// An interned name; the text lives in the module's [`NamePool`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(u32);
entity_impl!(Name, "name");

/// All names of a module in one string, each stored once. Copies share them until one of them gets another one.
#[derive(Clone, Debug, Default)]
pub struct NamePool {
    known: Arc<KnownNames>,
}

/// Names, each once.
#[derive(Clone, Debug, Default)]
struct KnownNames {
    text: String,
    spans: PrimaryMap<Name, (u32, u32)>,
    table: HashTable<Name>,
    next_suffix: hashbrown::HashMap<String, u32, FixedHash>,
}

/// A hasher with a fixed seed: the same input gives the same bytes in every process. It is made for short keys that are
/// trusted to be distinct, not secret.
#[derive(Clone, Copy, Debug, Default)]
pub struct WordHasher(u64);

/// Makes [`WordHasher`]s.
pub type FixedHash = std::hash::BuildHasherDefault<WordHasher>;

impl Hasher for WordHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(hash_bytes(bytes));
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Both halves of the product: the upper one carries what differs in the upper bytes, as in `add.1` and `add.2`, down to the
/// bits that choose a slot.
#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let product = u128::from(hash.rotate_left(23) ^ word) * u128::from(K);
    product as u64 ^ (product >> 64) as u64
}

/// Multiply hash over 8-byte words: short texts that are trusted to be distinct, not secret. The last word overlaps the
/// one before, so that no byte is read alone.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    let last = match (bytes.last_chunk::<8>(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(last), ..) => {
            let (words, _) = bytes.as_chunks::<8>();
            for word in words {
                hash = mix(hash, u64::from_le_bytes(*word));
            }
            u64::from_le_bytes(*last)
        }
        (None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
        }
        _ => bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    mix(hash, last)
}

/// Whether a bare word is something else than a name (a type, a keyword, a number), so that a name like it needs its `%`.
pub fn is_reserved(word: &str) -> bool {
    const KEYWORDS: [&str; 7] = ["ENTRY", "ROOT", "HloModule", "true", "false", "inf", "nan"];
    let begins_name = word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    !begins_name || is_short_word(word) && KEYWORDS.contains(&word) || is_type_name(word)
}

/// Whether a word names a type of values, which no instruction is called, not even with `%`.
pub fn is_type_name(word: &str) -> bool {
    is_short_word(word) && (DType::from_name(word).is_some() || ["token", "opaque"].contains(&word))
}

/// Whether a word can be a keyword or a type: the longest is `f8e4m3b11fnuz`, and none has a dot, as most names do.
#[inline]
fn is_short_word(word: &str) -> bool {
    word.len() <= 13 && !word.as_bytes().contains(&b'.')
}

#[inline]
fn bytes_of(all: &str, (start, end): (u32, u32)) -> &[u8] {
    &all.as_bytes()[start as usize..end as usize]
}

impl KnownNames {
    /// Adds a name that is not there.
    fn add(&mut self, text: &str, hash: u64) -> Name {
        let start = self.text.len() as u32;
        self.text.push_str(text);
        let name = self.spans.push((start, self.text.len() as u32));
        let (all, spans) = (&self.text, &self.spans);
        self.table.insert_unique(hash, name, |&n| hash_bytes(bytes_of(all, spans[n])));
        name
    }

    #[inline]
    fn find_hashed(&self, text: &str, hash: u64) -> Option<Name> {
        let is_it = |&name: &Name| bytes_of(&self.text, self.spans[name]) == text.as_bytes();
        self.table.find(hash, is_it).copied()
    }
}

impl NamePool {
    /// The name with this text, new or known.
    pub fn intern(&mut self, text: &str) -> Name {
        let hash = hash_bytes(text.as_bytes());
        self.known.find_hashed(text, hash).unwrap_or_else(|| Arc::make_mut(&mut self.known).add(text, hash))
    }

    /// Makes room for `n_names` more names.
    pub fn reserve(&mut self, n_names: usize) {
        let known = Arc::make_mut(&mut self.known);
        // Names of real modules have some 16 bytes.
        known.text.reserve(n_names.saturating_mul(16));
        known.spans.reserve(n_names);
        let (all, spans) = (&known.text, &known.spans);
        known.table.reserve(n_names, |&n| hash_bytes(bytes_of(all, spans[n])));
    }

    /// The name with this text, if it was interned.
    pub fn find(&self, text: &str) -> Option<Name> {
        self.known.find_hashed(text, hash_bytes(text.as_bytes()))
    }

    /// The text of a name of this pool.
    pub fn get(&self, name: Name) -> &str {
        let (start, end) = self.known.spans[name];
        &self.known.text[start as usize..end as usize]
    }

    /// A name that was not there before: `base` itself or `base.N`. A numeric suffix of `base` is dropped first, as
    /// XLA's own name uniquer does, so that clones of clones do not pile up suffixes.
    pub fn fresh(&mut self, base: &str) -> Name {
        if self.find(base).is_none() {
            return self.intern(base);
        }
        let stem = match base.rsplit_once('.') {
            Some((stem, suffix)) if !stem.is_empty() && suffix.bytes().all(|b| b.is_ascii_digit()) => stem,
            _ => base,
        };
        let mut n = self.known.next_suffix.get(stem).copied().unwrap_or(1);
        loop {
            let candidate = format!("{stem}.{n}");
            n = n.saturating_add(1);
            if self.find(&candidate).is_none() {
                Arc::make_mut(&mut self.known).next_suffix.insert(stem.to_string(), n);
                return self.intern(&candidate);
            }
        }
    }

    /// Number of distinct names; every [`Name`] index is below it.
    pub fn len(&self) -> usize {
        self.known.spans.len()
    }

    /// Whether no name was interned.
    pub fn is_empty(&self) -> bool {
        self.known.spans.is_empty()
    }

    /// All names, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Name> + '_ {
        (0..self.known.spans.len()).map(Name::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stored_once_and_fresh_ones_are_new() {
        let mut pool = NamePool::default();
        let a = pool.intern("add.5");
        assert_eq!(pool.intern("add.5"), a);
        let b = pool.fresh("add.5");
        assert_eq!(pool.get(b), "add.1");
        pool.intern("add.2");
        let c = pool.fresh("add.5");
        assert_eq!(pool.get(c), "add.3");
        let d = pool.fresh("mul");
        assert_eq!(pool.get(d), "mul");
        assert_eq!(pool.find("sub"), None);
    }

    #[test]
    fn types_keywords_and_numbers_are_no_bare_names() {
        for word in ["f32", "true", "ROOT", "8_", "-a", ""] {
            assert!(is_reserved(word), "{word}");
        }
        assert!(!is_reserved("f32_") && !is_reserved("_8"));
    }
}
