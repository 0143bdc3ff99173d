//! The optimal parallel plan of a global training step: which axis of a mesh cuts which dim of each value, with a lower bound that says
//! how far from the best it can be.

#[allow(dead_code, unused_imports, reason = "the search that asks the solver is not written yet")]
mod solver;
