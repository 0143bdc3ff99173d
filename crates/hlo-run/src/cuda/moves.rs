//! A collective as each device does its part of it by itself, when it can read the inputs of all others.

use std::ops::Range;

use hlo_gpu::plan::CollectiveKind;

/// One thing that a device does to its output. Offsets and sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    /// `output[to] = reduction of inputs[device][from], in the order of the devices`.
    Reduce {
        /// Flat ids.
        devices: Vec<u32>,
        /// In each input.
        from: Range<u64>,
    },
    /// `output[to..] = inputs[device][from]`.
    Copy {
        /// Flat id.
        device: u32,
        /// In its input.
        from: Range<u64>,
        /// In the output.
        to: u64,
    },
    /// `output = 0`.
    Zero,
}

/// What device `me` does in a collective on inputs of `input_bytes` each; nothing if it is in no group.
pub(crate) fn moves(kind: &CollectiveKind, groups: &[Vec<u32>], me: u32, input_bytes: u64) -> Vec<Move> {
    let whole = 0..input_bytes;
    let (reduction, scatters) = match kind {
        CollectiveKind::Groups { reduction, scatters } => (reduction, *scatters),
        CollectiveKind::Pairs(pairs) => return vec![from_pair(pairs, me, whole)],
    };
    let Some(group) = groups.iter().find(|group| group.contains(&me)) else { return Vec::new() };
    let place = group.iter().position(|&device| device == me).unwrap_or(0) as u64;
    let part = input_bytes / group.len() as u64;
    let from = if scatters { place * part..(place + 1) * part } else { whole };
    if reduction.is_some() {
        return vec![Move::Reduce { devices: group.clone(), from }];
    }
    let size = from.end - from.start;
    let copy = |(i, &device): (usize, &u32)| Move::Copy { device, from: from.clone(), to: i as u64 * size };
    group.iter().enumerate().map(copy).collect()
}

/// What a device receives from the source of the pair whose target it is.
fn from_pair(pairs: &[(u32, u32)], me: u32, whole: Range<u64>) -> Move {
    let source = pairs.iter().find(|(_, target)| *target == me).map(|(source, _)| *source);
    source.map_or(Move::Zero, |device| Move::Copy { device, from: whole, to: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::collective::{combine, reduce};
    use hlo_gpu::plan::{CollectiveCall, Place, Plan, PlanBuffer, Reduction};
    use hlo_ir::{ArrayShape, DType};

    const N: usize = 6;

    /// A plan of six devices with an input and an output of so many f32, and a communicator.
    fn plan(n_in: i64, n_out: i64, groups: &[&[u32]]) -> (Plan, CollectiveCall, CollectiveKind) {
        let mut plan = Plan { n_replicas: N as u32, n_partitions: 1, ..Plan::default() };
        let mut buffer = |n: i64| {
            let shape = ArrayShape::new(DType::F32, [n]).with_row_major();
            let value = hlo_gpu::plan::PlanValueId::from_u32(plan.buffers.len() as u32);
            let place = Place::Arena;
            plan.buffers.push(PlanBuffer {
                name: "x".into(),
                shape,
                place,
                offset_bytes: 0,
                value,
                value_offset_bytes: 0,
            })
        };
        let calls = vec![(buffer(n_in), buffer(n_out))];
        let communicator = plan.communicators.push(groups.iter().map(|group| group.to_vec()).collect());
        let kind = CollectiveKind::Groups { reduction: None, scatters: false };
        (plan, CollectiveCall { kind: kind.clone(), communicator, calls }, kind)
    }

    #[test]
    fn parts_make_the_whole() {
        let groups_of = |reduction, scatters| CollectiveKind::Groups { reduction, scatters };
        let sum = Some(Reduction::Sum);
        let groups: &[&[u32]] = &[&[4, 1], &[0, 5]];
        let pairs = vec![(0, 1), (1, 0), (5, 3)];
        for (kind, n_in, n_out) in [
            (groups_of(sum, false), 8, 8),
            (groups_of(sum, true), 8, 4),
            (groups_of(None, false), 4, 8),
            (groups_of(None, true), 8, 8),
            (CollectiveKind::Pairs(pairs), 8, 8),
        ] {
            let (plan, mut call, _) = plan(n_in, n_out, groups);
            call.kind = kind.clone();
            let number = |device: usize, i: i64| ((device * 37 + i as usize * 11) % 19) as f32 / 7.0;
            let inputs: Vec<Vec<u8>> =
                (0..N).map(|d| (0..n_in).flat_map(|i| number(d, i).to_le_bytes()).collect()).collect();
            let expected = combine(&plan, &call, &inputs).unwrap();
            for (me, expected) in expected.iter().enumerate() {
                let mut output = vec![7u8; n_out as usize * 4];
                let steps = moves(&kind, &plan.communicators[call.communicator], me as u32, n_in as u64 * 4);
                let part =
                    |device: u32, from: &Range<u64>| &inputs[device as usize][from.start as usize..from.end as usize];
                for step in &steps {
                    match step {
                        Move::Reduce { devices, from } => {
                            let inputs: Vec<&[u8]> = devices.iter().map(|&device| part(device, from)).collect();
                            output = reduce(DType::F32, Reduction::Sum, &inputs).unwrap();
                        }
                        Move::Copy { device, from, to } => {
                            let bytes = part(*device, from);
                            output[*to as usize..][..bytes.len()].copy_from_slice(bytes);
                        }
                        Move::Zero => output.fill(0),
                    }
                }
                assert_eq!(steps.is_empty(), expected.is_empty(), "{kind:?} on {me}");
                assert!(steps.is_empty() || output == *expected, "{kind:?} on {me}");
            }
        }
    }
}
