//! Operators along the axes of a mesh: the state they give is that of the arrays on the devices, and devices receive what is claimed.

use crate::array::{Array, index_of};
use crate::number::Residue;
use crate::random::Random;
use hlo_mesh::Exchange;
use hlo_search::{AxisOperator, AxisState, Move, Movement, Operator, OperatorError, TensorState, movements};
use std::collections::BTreeSet;

const MESHES: [&[u64]; 7] = [&[2], &[6], &[2, 3], &[3, 2], &[4, 2], &[2, 2, 2], &[2, 3, 2]];

fn on(axis: usize, operator: Operator) -> AxisOperator {
    AxisOperator { axis, operator }
}

fn sizes(dims: &[u64]) -> Vec<usize> {
    dims.iter().map(|&len| len as usize).collect()
}

/// The device's place along each axis; device numbers are row-major.
fn places(device: usize, mesh: &[u64]) -> Vec<usize> {
    index_of(device, &sizes(mesh))
}

/// The devices that differ from this one in their place along an axis alone, in order, itself included.
fn group(device: usize, axis: usize, mesh: &[u64]) -> Vec<usize> {
    let n_devices = mesh.iter().product::<u64>() as usize;
    let others =
        |places: Vec<usize>| places.into_iter().enumerate().filter(move |(a, _)| *a != axis).collect::<Vec<_>>();
    (0..n_devices).filter(|&d| others(places(d, mesh)) == others(places(device, mesh))).collect()
}

/// The place in the whole tensor at which a device's part begins.
fn begin(device: usize, state: &TensorState, dims: &[u64], mesh: &[u64]) -> Vec<usize> {
    let local = state.local_dims(dims, mesh);
    let at = places(device, mesh);
    let part = |dim: usize| {
        let axes = (0..mesh.len()).filter(|&axis| state.0[axis] == AxisState::Cut(dim));
        axes.fold(0, |part, axis| part * mesh[axis] as usize + at[axis])
    };
    (0..dims.len()).map(|dim| part(dim) * local[dim] as usize).collect()
}

/// A device's part of a tensor; zeros are the padding.
fn part_of(whole: &Array<Residue>, device: usize, state: &TensorState, mesh: &[u64]) -> Array<Residue> {
    let dims: Vec<u64> = whole.dims.iter().map(|&len| len as u64).collect();
    let (begin, local) = (begin(device, state, &dims, mesh), state.local_dims(&dims, mesh));
    Array::from_fn(&sizes(&local), |index| {
        whole.at_or_zero(&index.iter().zip(&begin).map(|(i, b)| i + b).collect::<Vec<_>>())
    })
}

/// What an operator makes of the devices' arrays; `after` is the state behind it.
fn run(
    operator: AxisOperator,
    x: &[Array<Residue>],
    after: &TensorState,
    dims: &[u64],
    mesh: &[u64],
) -> Vec<Array<Residue>> {
    let (axis, n) = (operator.axis, mesh[operator.axis] as usize);
    let on_device = |device: usize| {
        let all: Vec<&Array<Residue>> = group(device, axis, mesh).into_iter().map(|other| &x[other]).collect();
        match operator.operator {
            Operator::Partition(dim) => {
                let len = x[device].dims[dim].div_ceil(n);
                x[device].part(dim, places(device, mesh)[axis] * len, len)
            }
            Operator::Combine(dim) => {
                let whole_len = after.local_dims(dims, mesh)[dim] as usize;
                Array::join(&all, dim).part(dim, 0, whole_len)
            }
            Operator::Replicate => x[device].clone(),
            Operator::Reduce => Array::sum(&all),
            Operator::Pipeline { .. } | Operator::Batch { .. } => unreachable!("no operators in time here"),
        }
    };
    (0..x.len()).map(on_device).collect()
}

/// The sum along all partial axes, which is the device's part of the true value.
fn reduced(x: &[Array<Residue>], state: &TensorState, mesh: &[u64]) -> Vec<Array<Residue>> {
    let mut x = x.to_vec();
    for axis in (0..mesh.len()).filter(|&axis| state.0[axis] == AxisState::Partial) {
        x = (0..x.len())
            .map(|device| Array::sum(&group(device, axis, mesh).into_iter().map(|d| &x[d]).collect::<Vec<_>>()))
            .collect();
    }
    x
}

fn random_operator(random: &mut Random, n_axes: usize, n_dims: usize) -> AxisOperator {
    let dim = random.below(n_dims as u64) as usize;
    let operators = [Operator::Partition(dim), Operator::Combine(dim), Operator::Replicate, Operator::Reduce];
    on(random.below(n_axes as u64) as usize, operators[random.below(4) as usize])
}

#[test]
fn states_are_those_of_the_arrays() {
    let mut random = Random::new(1);
    let (mut n_applied, mut n_uneven) = (0, 0);
    for mesh in MESHES {
        for _ in 0..40 {
            let mut dims = vec![1 + random.below(13), 1 + random.below(13)];
            let n_devices = mesh.iter().product::<u64>() as usize;
            let mut state = TensorState::replicated(mesh.len());
            for axis in 0..mesh.len() {
                if random.below(3) == 0 {
                    state.0[axis] = AxisState::Partial;
                }
            }
            // Along partial axes the devices differ, along the others they do not.
            let mut x = vec![Array::draw(&sizes(&dims), &mut random); n_devices];
            for device in 0..n_devices {
                let at = places(device, mesh);
                let first = (0..n_devices).find(|&other| {
                    (0..mesh.len()).all(|a| state.0[a] != AxisState::Partial || places(other, mesh)[a] == at[a])
                });
                let first = first.expect("itself at the latest");
                x[device] = if first == device { Array::draw(&sizes(&dims), &mut random) } else { x[first].clone() };
            }
            let whole = reduced(&x, &state, mesh)[0].clone();
            for _ in 0..12 {
                let operator = random_operator(&mut random, mesh.len(), dims.len());
                let (before, whole_dims) = (state.clone(), dims.clone());
                if operator.rewrite_state(&mut dims, &mut state, mesh).is_err() {
                    assert_eq!((&state, &dims), (&before, &whole_dims), "{operator:?}: an error changes nothing");
                    continue;
                }
                x = run(operator, &x, &state, &dims, mesh);
                for (device, found) in reduced(&x, &state, mesh).iter().enumerate() {
                    assert_eq!(
                        *found,
                        part_of(&whole, device, &state, mesh),
                        "{operator:?}: {before} to {state} on {mesh:?}"
                    );
                }
                n_applied += 1;
                n_uneven += usize::from((0..2).any(|dim| dims[dim] % state.n_parts(dim, mesh) != 0));
            }
        }
    }
    assert!(n_applied > 500 && n_uneven > 100, "{n_applied} operators, {n_uneven} uneven states");
}

/// The most elements that a device's new part has and its old part lacks.
fn n_missing(before: &TensorState, after: &TensorState, dims: &[u64], mesh: &[u64]) -> u64 {
    let elements = |device: usize, state: &TensorState| -> BTreeSet<Vec<usize>> {
        let (begin, local) = (begin(device, state, dims, mesh), sizes(&state.local_dims(dims, mesh)));
        let place = |at| index_of(at, &local).iter().zip(&begin).map(|(i, b)| i + b).collect();
        (0..local.iter().product()).map(place).collect()
    };
    let n_devices = mesh.iter().product::<u64>() as usize;
    let missing = |device| elements(device, after).difference(&elements(device, before)).count() as u64;
    (0..n_devices).map(missing).max().expect("a device")
}

#[test]
fn devices_receive_what_they_miss() {
    let state = |states: &[AxisState]| TensorState(states.iter().copied().collect());
    let (r, rows, columns) = (AxisState::Replicated, AxisState::Cut(0), AxisState::Cut(1));
    let cases: &[(&[u64], TensorState, &[AxisOperator], Movement)] = &[
        (&[6], state(&[r]), &[on(0, Operator::Partition(1))], Movement::Slice),
        (&[6], state(&[rows]), &[on(0, Operator::Combine(0))], Movement::Exchange(Exchange::AllGather)),
        (
            &[6],
            state(&[rows]),
            &[on(0, Operator::Combine(0)), on(0, Operator::Partition(1))],
            Movement::Exchange(Exchange::AllToAll),
        ),
        (&[6], state(&[r]), &[on(0, Operator::Replicate)], Movement::Nothing),
        (&[6], state(&[r]), &[on(0, Operator::Partition(0)), on(0, Operator::Combine(0))], Movement::Nothing),
        (&[6], state(&[rows]), &[on(0, Operator::Combine(0)), on(0, Operator::Partition(0))], Movement::Nothing),
        (&[2, 3], state(&[rows, columns]), &[on(1, Operator::Combine(1))], Movement::Exchange(Exchange::AllGather)),
        (&[2, 3], state(&[rows, rows]), &[on(1, Operator::Combine(0))], Movement::Exchange(Exchange::AllGather)),
        (
            &[2, 3],
            state(&[columns, rows]),
            &[on(0, Operator::Combine(1)), on(0, Operator::Partition(0))],
            Movement::Exchange(Exchange::AllToAll),
        ),
        (
            &[2, 2],
            state(&[rows, r]),
            &[on(0, Operator::Combine(0)), on(1, Operator::Partition(0))],
            Movement::Exchange(Exchange::Permute),
        ),
        (
            &[3, 3],
            state(&[r, rows]),
            &[on(1, Operator::Combine(0)), on(0, Operator::Partition(0))],
            Movement::Exchange(Exchange::Permute),
        ),
    ];
    let dims = [36, 72];
    for (mesh, before, operators, movement) in cases {
        let is_not_nested = (mesh, before.to_string().as_str()) == (&&[2_u64, 3][..], "[1 0]");
        let moves = movements(operators, &dims, 4, before, mesh);
        if is_not_nested {
            // The rows would be cut along an axis outside of the one that cuts them.
            assert!(matches!(moves, Err(OperatorError::NotNested { .. })), "{moves:?}");
            continue;
        }
        let moves = moves.expect("operators that apply");
        let [Move { movement: found, received_bytes, .. }] = &moves[..] else { panic!("one movement: {moves:?}") };
        let (mut after, mut whole) = (before.clone(), dims.to_vec());
        operators.iter().for_each(|operator| operator.rewrite_state(&mut whole, &mut after, mesh).expect("as before"));
        assert_eq!(
            (found, *received_bytes),
            (movement, 4 * n_missing(before, &after, &dims, mesh)),
            "{before} {after}"
        );
    }
}

#[test]
fn reductions_receive_what_rings_send() {
    let partial = |n_axes| TensorState(std::iter::repeat_n(AxisState::Partial, n_axes).collect());
    let received = |operators: &[AxisOperator], dims: &[u64], mesh: &[u64]| {
        let moves = movements(operators, dims, 4, &partial(mesh.len()), mesh).expect("operators that apply");
        moves.iter().map(|found| (found.movement, found.axes.to_vec(), found.received_bytes)).collect::<Vec<_>>()
    };
    let (reduce, scatter) = (Operator::Reduce, Operator::Partition(0));
    let p = 4 * 24 * 10;
    assert_eq!(
        received(&[on(0, reduce)], &[24, 10], &[6]),
        [(Movement::Exchange(Exchange::AllReduce), vec![0], 2 * p * 5 / 6)]
    );
    assert_eq!(
        received(&[on(0, reduce), on(0, scatter)], &[24, 10], &[6]),
        [(Movement::Exchange(Exchange::ReduceScatter), vec![0], p * 5 / 6)]
    );
    let and_back = [on(0, reduce), on(0, scatter), on(0, Operator::Combine(0))];
    let both = received(&and_back, &[24, 10], &[6]);
    assert_eq!(both.iter().map(|found| found.2).sum::<u64>(), 2 * p * 5 / 6, "as much as the all-reduce");
    // Two partial axes are one all-reduce over six devices, less than one after the other.
    let flat = received(&[on(0, reduce), on(1, reduce)], &[24, 10], &[2, 3]);
    assert_eq!(flat, [(Movement::Exchange(Exchange::AllReduce), vec![0, 1], 2 * p * 5 / 6)]);
    // The last reduction goes with a partition behind it.
    let last = received(&[on(0, reduce), on(1, reduce), on(1, scatter)], &[24, 10], &[2, 3]);
    assert_eq!(
        last,
        [
            (Movement::Exchange(Exchange::AllReduce), vec![0], p),
            (Movement::Exchange(Exchange::ReduceScatter), vec![1], p * 2 / 3)
        ]
    );
    // Seven rows on six devices are parts of two rows, twelve with padding.
    let uneven = received(&and_back, &[7, 10], &[6]);
    assert_eq!(uneven.iter().map(|found| found.2).collect::<Vec<_>>(), [5 * 80, 5 * 80]);
}

#[test]
fn operators_refuse_other_states() {
    let refused = |operator: AxisOperator, states: &[AxisState], dims: &[u64], mesh: &[u64]| {
        let mut state = TensorState(states.iter().copied().collect());
        operator.rewrite_state(&mut dims.to_vec(), &mut state, mesh).expect_err("a refusal").to_string()
    };
    let (r, p, rows) = (AxisState::Replicated, AxisState::Partial, AxisState::Cut(0));
    let expected = "Reduce along axis 0: expected state P, found R";
    assert_eq!(refused(on(0, Operator::Reduce), &[r], &[4], &[2]), expected);
    let expected = "Replicate along axis 0: expected state R, found P";
    assert_eq!(refused(on(0, Operator::Replicate), &[p], &[4], &[2]), expected);
    assert_eq!(
        refused(on(0, Operator::Combine(1)), &[rows], &[4, 4], &[2]),
        "Combine(1) along axis 0: expected state 1, found 0"
    );
    assert_eq!(refused(on(1, Operator::Reduce), &[r], &[4], &[2]), "Reduce along axis 1: expected an axis below 1");
    let expected = "Partition(1) along axis 0: expected a dim below 1";
    assert_eq!(refused(on(0, Operator::Partition(1)), &[r], &[4], &[2]), expected);
    let beyond = [on(5, Operator::Combine(0)), on(0, Operator::Partition(0))];
    let state = TensorState::replicated(1);
    let error = OperatorError::NoAxis { operator: beyond[0], n_axes: 1 };
    assert_eq!(movements(&beyond, &[4], 4, &state, &[2]), Err(error));
    let outer = refused(on(0, Operator::Partition(0)), &[r, rows], &[12], &[2, 3]);
    assert!(outer.ends_with("found state [R 0]"), "{outer}");
    // Seven rows on two devices are four each; three parts of four are two rows each, across the border after four.
    let uneven = refused(on(1, Operator::Partition(0)), &[rows, r], &[7], &[2, 3]);
    assert!(uneven.contains("even cuts around it"), "{uneven}");
    let pieces = Operator::Pipeline { dim: 0, n_pieces: 3 };
    assert_eq!(
        refused(on(0, pieces), &[rows], &[12], &[8]),
        "Pipeline(0, 3) along axis 0: expected pieces that divide the dim, found length 12"
    );
}

#[test]
fn pipelines_change_the_shape_of_one_piece() {
    let (mut dims, mut state) = (vec![24, 5], TensorState::replicated(1));
    let pipeline = Operator::Pipeline { dim: 0, n_pieces: 3 };
    for (operator, expected) in
        [(pipeline, 8), (Operator::Partition(0), 8), (Operator::Combine(0), 8), (pipeline.adjoint(), 24)]
    {
        on(0, operator).rewrite_state(&mut dims, &mut state, &[4]).expect("an operator that applies");
        assert_eq!(dims[0], expected);
    }
    let moves = movements(&[on(0, pipeline), on(0, pipeline.adjoint())], &dims, 4, &state, &[4]).expect("both apply");
    assert_eq!(
        moves.iter().map(|found| (found.movement, found.received_bytes)).collect::<Vec<_>>(),
        [(Movement::Nothing, 0)]
    );
}
