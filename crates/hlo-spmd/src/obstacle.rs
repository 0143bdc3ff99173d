//! What keeps a pass from changing an instruction.

use std::fmt;

/// What keeps a pass from changing an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// It has a control predecessor or is one.
    ControlDependency,
    /// Somebody annotated it.
    Annotated,
    /// Its operands must keep their layouts.
    ConstrainsLayout,
    /// It starts what another instruction ends.
    Asynchronous,
    /// It reduces several arrays.
    ReducesTuple,
    /// One of its shapes has dynamic dims.
    DynamicDims,
    /// Its groups name no devices of the module.
    MeaninglessGroups,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::ControlDependency => "takes part in a control dependency",
            Obstacle::Annotated => "carries a sharding or a front end's attribute",
            Obstacle::ConstrainsLayout => "constrains its layout",
            Obstacle::Asynchronous => "is asynchronous: this pass is for modules as they are before XLA's scheduler",
            Obstacle::ReducesTuple => "reduces several arrays, and cannot be split",
            Obstacle::DynamicDims => "has dynamic dims",
            Obstacle::MeaninglessGroups => "its groups have no meaning on these devices",
        })
    }
}

impl std::error::Error for Obstacle {}
