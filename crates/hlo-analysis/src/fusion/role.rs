//! What instructions are to fusions.

/// How an instruction takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Role {
    /// It stays as it is.
    #[default]
    Alone,
    /// It may be computed element by element within a kernel.
    Fusable,
    /// As `Fusable`, and so cheap that each fusion that needs it computes it again.
    Repeatable,
}
