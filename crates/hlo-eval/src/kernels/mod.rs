//! Pure functions from literals to a literal, one file per family of operations.
