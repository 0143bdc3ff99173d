//! Which well-known reduction a reducer computation is, read off its instructions and never off its name.

use hlo_ir::{CompId, Module, Opcode};

/// A reducer of two scalars that is one associative op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Reducer {
    Add,
    Multiply,
    Maximum,
    Minimum,
    And,
    Or,
}

/// The reduction of a computation that applies one op to its two scalar parameters, in either order; `None` for any
/// other.
pub fn find_reducer(module: &Module, comp: CompId) -> Option<Reducer> {
    let computation = module.comp(comp);
    let root = module.inst(computation.root.expand()?);
    let [a, b] = computation.params.as_slice() else { return None };
    let takes_both = matches!(root.operands.as_slice(), [x, y] if (x, y) == (a, b) || (x, y) == (b, a));
    if !takes_both {
        return None;
    }
    [
        (Opcode::Add, Reducer::Add),
        (Opcode::Multiply, Reducer::Multiply),
        (Opcode::Maximum, Reducer::Maximum),
        (Opcode::Minimum, Reducer::Minimum),
        (Opcode::And, Reducer::And),
        (Opcode::Or, Reducer::Or),
    ]
    .into_iter()
    .find(|(opcode, _)| *opcode == root.opcode)
    .map(|(_, reducer)| reducer)
}
