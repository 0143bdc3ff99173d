//! Opcodes by name, one hash for each look-up.

use hashbrown::HashTable;
use hlo_ir::Opcode;
use hlo_ir::names::hash_bytes;
use std::sync::OnceLock;

/// Opcodes by name.
pub(crate) struct OpcodeTable {
    table: HashTable<Opcode>,
}

impl OpcodeTable {
    /// The table, made when first asked for.
    pub(crate) fn get() -> &'static OpcodeTable {
        static TABLE: OnceLock<OpcodeTable> = OnceLock::new();
        TABLE.get_or_init(|| {
            let hash = |op: &Opcode| hash_bytes(op.name().as_bytes());
            let mut table = HashTable::with_capacity(Opcode::ALL.len());
            for op in Opcode::ALL {
                table.insert_unique(hash(op), *op, hash);
            }
            OpcodeTable { table }
        })
    }

    /// The opcode of a name.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<Opcode> {
        self.table.find(hash_bytes(name), |op| op.name().as_bytes() == name).copied()
    }
}
