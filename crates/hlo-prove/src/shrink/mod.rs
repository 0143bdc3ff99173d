//! Smaller modules that are the same programs as a pair that is too large to run.
//!
//! Each dim is a product of [atoms](atoms): dims that ops treat alike have the same, and where a reshape or a collective splits one it is
//! split everywhere. An atom's size is divided by one number wherever the atom stands, in both modules: the largest that all slices,
//! pads, constants and numbers of positions are multiples of. What is cut over devices, looked up, or counted by a loop keeps its size, as
//! groups of devices do. So a smaller module does what the larger one does, with fewer elements.
//!
//! A difference between the smaller modules need not be one of the larger: constants may be chosen for a size. So it counts only where
//! the [difference](crate::Output::parts_in_leaves) was found in the larger ones.

mod atoms;
mod dims;
mod rebuild;
mod units;
mod widen;

use atoms::Atoms;
use dims::{ModuleDims, Pieces, Reader};
use hlo_ir::{InstId, Module};
use units::Units;

/// A smaller pair, or a source and the modules that run after one another.
#[derive(Clone, Debug)]
pub struct SmallerPair {
    /// The first module.
    pub before: Module,
    /// The others.
    pub after: Vec<Module>,
}

impl SmallerPair {
    /// The pair with f64 in the place of shorter floats, in which differences are not lost among those of rounding; `None` if a module
    /// is not valid then.
    pub fn widened(&self) -> Option<SmallerPair> {
        let after: Option<Vec<Module>> = self.after.iter().map(widen::widened).collect();
        Some(SmallerPair { before: widen::widened(&self.before)?, after: after? })
    }
}

/// The same programs with smaller dims; `None` if no dim can be smaller, or if it is not known how.
pub fn shrink(before: &Module, after: &[&Module]) -> Option<SmallerPair> {
    if after.is_empty() {
        return None;
    }
    let modules: Vec<&Module> = std::iter::once(before).chain(after.iter().copied()).collect();
    let (mut atoms, mut pieces) = (Atoms::default(), Pieces::default());
    let mut dims = Vec::with_capacity(modules.len());
    for module in &modules {
        dims.push(Reader::new(module, &mut atoms, &mut pieces).read()?);
    }
    connect(&modules, &dims, &mut atoms)?;
    let units: Vec<Units<'_>> =
        modules.iter().zip(&dims).map(|(module, dims)| Units::read(module, dims)).collect::<Option<_>>()?;
    pieces.settle(&mut atoms);
    units.iter().for_each(|units| units.settle(&mut atoms));
    let divisors = atoms.solve();
    if !divisors.is_any() {
        return None;
    }
    let parts = modules.iter().zip(&dims).zip(&units);
    let mut small = parts.map(|((module, dims), units)| rebuild::rebuild(module, dims, units, &mut atoms, &divisors));
    let before = small.next()??;
    Some(SmallerPair { before, after: small.collect::<Option<_>>()? })
}

/// The modules take the same inputs and give the same outputs; in a chain each takes what the one before it gives.
fn connect(modules: &[&Module], dims: &[ModuleDims], atoms: &mut Atoms) -> Option<()> {
    let leaves = |k: usize, insts: &[InstId]| -> Option<Vec<_>> {
        let lists = insts.iter().map(|inst| dims.get(k)?.get(inst).cloned()).collect::<Option<Vec<_>>>()?;
        Some(lists.into_iter().flatten().collect())
    };
    let params = |k: usize| leaves(k, &modules[k].comp(modules[k].entry()?).params);
    let outputs = |k: usize| leaves(k, &[modules[k].comp(modules[k].entry()?).root.expand()?]);
    let last = modules.len().checked_sub(1)?;
    let mut pairs = vec![(params(0)?, params(1)?), (outputs(0)?, outputs(last)?)];
    for k in 1..last {
        pairs.push((outputs(k)?, params(k + 1)?));
    }
    for (a, b) in pairs {
        if a.len() != b.len() {
            return None;
        }
        for (a, b) in a.iter().zip(&b) {
            if a.len() != b.len() {
                return None;
            }
            a.iter().zip(b).for_each(|(&a, &b)| atoms.unify(&[a], &[b]));
        }
    }
    Some(())
}
