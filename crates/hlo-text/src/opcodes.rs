//! Opcodes by name: one hash and one comparison instead of a chain of 133 string comparisons.

use hlo_ir::Opcode;
use hlo_ir::names::hash_bytes;
use std::sync::LazyLock;

const N_SLOTS: usize = 1024;

/// An open-addressing table from opcode names to opcodes.
pub(crate) struct OpcodeTable {
    slots: Vec<Option<(&'static str, Opcode)>>,
}

static TABLE: LazyLock<OpcodeTable> = LazyLock::new(OpcodeTable::build);

fn hash(name: &[u8]) -> usize {
    hash_bytes(name) as usize % N_SLOTS
}

impl OpcodeTable {
    /// The one table of the process.
    pub(crate) fn get() -> &'static OpcodeTable {
        &TABLE
    }

    fn build() -> OpcodeTable {
        let mut slots = vec![None; N_SLOTS];
        for &opcode in Opcode::ALL {
            let start = hash(opcode.name().as_bytes());
            let place = (start..start + N_SLOTS).map(|i| i % N_SLOTS).find(|&i| slots.get(i) == Some(&None));
            if let Some(slot) = place.and_then(|i| slots.get_mut(i)) {
                *slot = Some((opcode.name(), opcode));
            }
        }
        OpcodeTable { slots }
    }

    /// The opcode of this name.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<Opcode> {
        // Every name is shorter; the bound keeps hashing of hostile words cheap.
        if name.len() > 64 {
            return None;
        }
        let start = hash(name.as_bytes());
        (start..start + N_SLOTS)
            .map(|i| self.slots.get(i % N_SLOTS).copied().flatten())
            .take_while(Option::is_some)
            .flatten()
            .find(|slot| slot.0 == name)
            .map(|slot| slot.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_is_found_by_its_name() {
        for &opcode in Opcode::ALL {
            assert_eq!(OpcodeTable::get().find(opcode.name()), Some(opcode));
        }
        assert_eq!(OpcodeTable::get().find("frobnicate"), None);
    }
}
