//! A hash of contents that is the same in every process: results are kept under it from run to run.

use std::path::Path;

/// FNV-1a over 128 bits: short, and no stranger can choose what is hashed here.
#[derive(Clone)]
pub(crate) struct ContentHash(u128);

impl ContentHash {
    /// The hash of nothing.
    pub(crate) fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds bytes, and their number, so that two parts never run into each other.
    pub(crate) fn add(mut self, bytes: &[u8]) -> Self {
        for &byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        self
    }

    /// Adds a file's contents, not its name.
    pub(crate) fn add_file(self, file: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(self.add(&bytes))
    }

    /// The hash as hexadecimal digits.
    pub(crate) fn digits(&self) -> String {
        format!("{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let digits = |parts: &[&str]| parts.iter().fold(ContentHash::new(), |h, p| h.add(p.as_bytes())).digits();
        assert_eq!(digits(&["a", "b"]), digits(&["a", "b"]));
        assert_ne!(digits(&["a", "b"]), digits(&["ab"]));
        assert_ne!(digits(&["a", "b"]), digits(&["b", "a"]));
        assert_ne!(digits(&[""]), digits(&[]));
    }
}
