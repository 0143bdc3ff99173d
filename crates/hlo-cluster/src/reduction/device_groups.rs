//! The groups of an instruction as devices, each with its class.

use crate::reduction::instruction::ReductionInstruction;
use crate::topology::Cluster;

/// The groups of an instruction: positions of the hierarchy, laid over devices.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    /// The machine.
    pub cluster: &'a Cluster,
    /// By combination of the other axes, by position: devices.
    pub numbering: &'a [Vec<u32>],
    /// The reduction's factors above one, outermost first.
    pub factors: &'a [usize],
    /// Whose groups.
    pub instruction: ReductionInstruction,
}

impl Groups<'_> {
    /// One number for each first-or-not of the places outside of a group; the one group of a master is the first.
    pub(super) fn n_classes(&self) -> usize {
        1 << (self.factors.len() - self.instruction.taking_part(self.factors.len()).len())
    }

    /// Calls `visit` with the class of each group and its devices.
    pub(super) fn for_each(&self, mut visit: impl FnMut(usize, Members<'_>)) {
        let part = self.instruction.taking_part(self.factors.len());
        let product = |of: &[usize]| of.iter().product::<usize>();
        let (outer, inner) = (&self.factors[..part.start], &self.factors[part.end..]);
        let (n, stride) = (product(&self.factors[part.clone()]), product(inner));
        let (n_outer, n_inner) = if self.instruction.is_master() { (1, 1) } else { (product(outer), stride) };
        let inner_classes: Vec<usize> = (0..n_inner).map(|i| class_of(i, inner)).collect();
        for devices in self.numbering {
            for o in 0..n_outer {
                let outer_class = class_of(o, outer) << inner.len();
                for (i, inner_class) in inner_classes.iter().enumerate() {
                    let first = o * n * stride + i;
                    let members = Members { devices: &devices[first..=first + (n - 1) * stride], stride };
                    visit(outer_class | inner_class, members);
                }
            }
        }
    }

    /// All groups, the root of each first, with their classes.
    pub(super) fn list(&self) -> Vec<(Vec<u32>, usize)> {
        let mut list = Vec::new();
        self.for_each(|class, members| list.push((members.iter().collect(), class)));
        list
    }
}

/// The devices of one group: every `stride`-th position from the root on.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    /// The first is the root; then every `stride`-th is a member.
    pub devices: &'a [u32],
    /// Positions from one member to the next.
    pub stride: usize,
}

impl<'a> Members<'a> {
    /// In the order of their positions.
    pub(super) fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.devices.iter().step_by(self.stride).copied()
    }

    /// The member before another by their ids, round the ring.
    pub(super) fn before(self, device: u32) -> u32 {
        let distance = |d: u32| device.wrapping_sub(d).wrapping_sub(1);
        self.iter().min_by_key(|d| distance(*d)).unwrap_or(device)
    }

    /// How many.
    pub(super) fn len(self) -> usize {
        self.devices.len().div_ceil(self.stride)
    }
}

/// One bit for each factor, the innermost lowest: whether the place is not the first.
fn class_of(mut index: usize, factors: &[usize]) -> usize {
    let mut class = 0;
    for (bit, f) in factors.iter().rev().enumerate() {
        class |= usize::from(!index.is_multiple_of(*f)) << bit;
        index /= f;
    }
    class
}
