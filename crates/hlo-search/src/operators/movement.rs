//! What a sequence of operators moves between devices.

use super::operator::{AxisOperator, Operator, OperatorError};
use super::state::TensorState;
use hlo_mesh::Exchange;
use smallvec::SmallVec;

/// What one or two operators are on devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Movement {
    /// Nothing moves: `Replicate` where every device has the value, `Pipeline`, `Batch`, or operators that undo one another.
    Nothing,
    /// Each device keeps a part of what it has.
    Slice,
    /// `Combine` is an all-gather and `Reduce` an all-reduce. `Reduce` and then `Partition` along the same axis is a reduce-scatter.
    /// `Combine` and then `Partition` is an all-to-all (another dim, the same axis) or a permute (the same dim, another axis of equal
    /// size). No operators are a broadcast.
    Exchange(Exchange),
}

/// One movement along one axis, or an all-reduce along several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// What moves.
    pub movement: Movement,
    /// The axes, in the order of the operators; of a permute, the one the dim was cut along and the one it is cut along now.
    pub axes: SmallVec<[usize; 4]>,
    /// The bytes that each device receives, with padding: the ring algorithms' for reductions (Patarasuk and Yuan, *Bandwidth optimal
    /// all-reduce algorithms for clusters of workstations*, JPDC 2009), the most that any device receives for a permute.
    pub received_bytes: u64,
}

/// What `operators` move, applied in turn to a tensor of shape `dims` with elements of `elem_bytes`, from `state` on, on a mesh of axes
/// of these sizes. Neighbours that are one collective become one; reductions next to each other become one all-reduce over their axes.
///
/// # Errors
/// An operator does not apply to the state before it.
pub fn movements(
    operators: &[AxisOperator],
    dims: &[u64],
    elem_bytes: u64,
    state: &TensorState,
    mesh: &[u64],
) -> Result<Vec<Move>, OperatorError> {
    let (mut dims, mut state, mut moves) = (dims.to_vec(), state.clone(), Vec::new());
    let mut rest = operators;
    while let Some((movement, n_taken)) = find_movement(rest, mesh) {
        let (taken, after) = rest.split_at(n_taken);
        let local_before = state.local_dims(&dims, mesh);
        for operator in taken {
            operator.rewrite_state(&mut dims, &mut state, mesh)?;
        }
        let mut axes: SmallVec<[usize; 4]> = taken.iter().map(|operator| operator.axis).collect();
        axes.dedup();
        let n: u64 = axes.iter().map(|&axis| mesh[axis]).product();
        let bytes = |local_dims: &[u64]| elem_bytes * local_dims.iter().product::<u64>();
        let received_bytes = match movement {
            Movement::Nothing | Movement::Slice | Movement::Exchange(Exchange::Broadcast) => 0,
            Movement::Exchange(Exchange::AllGather) => (n - 1) * bytes(&local_before),
            Movement::Exchange(Exchange::AllReduce) => {
                2 * (n - 1) * elem_bytes * local_before.iter().product::<u64>().div_ceil(n)
            }
            Movement::Exchange(Exchange::ReduceScatter) => (n - 1) * bytes(&state.local_dims(&dims, mesh)),
            Movement::Exchange(Exchange::AllToAll) => {
                let mut block = local_before;
                if let Some(dim) = taken[1].operator.dim() {
                    block[dim] = block[dim].div_ceil(n);
                }
                (n - 1) * bytes(&block)
            }
            Movement::Exchange(Exchange::Permute) => bytes(&local_before),
        };
        moves.push(Move { movement, axes, received_bytes });
        rest = after;
    }
    Ok(moves)
}

/// What the first operators are together, and how many they are.
fn find_movement(operators: &[AxisOperator], mesh: &[u64]) -> Option<(Movement, usize)> {
    let first = operators.first()?;
    if let Some(movement) = operators.get(1).and_then(|second| movement_of_pair(first, second, mesh)) {
        return Some((movement, 2));
    }
    let movement = match first.operator {
        Operator::Partition(_) => Movement::Slice,
        Operator::Combine(_) => Movement::Exchange(Exchange::AllGather),
        Operator::Replicate | Operator::Pipeline { .. } | Operator::Batch { .. } => Movement::Nothing,
        Operator::Reduce => {
            let n_reduced = operators.iter().take_while(|operator| operator.operator == Operator::Reduce).count();
            // The last of them may go with the operator behind it.
            let is_last_apart = operators
                .get(n_reduced - 1..=n_reduced)
                .is_some_and(|pair| movement_of_pair(&pair[0], &pair[1], mesh).is_some());
            return Some((Movement::Exchange(Exchange::AllReduce), n_reduced - usize::from(is_last_apart)));
        }
    };
    Some((movement, 1))
}

/// What two operators are together, if they are one movement.
fn movement_of_pair(first: &AxisOperator, second: &AxisOperator, mesh: &[u64]) -> Option<Movement> {
    let has_same_axis = first.axis == second.axis;
    match first.operator {
        Operator::Partition(dim) => {
            (has_same_axis && second.operator == Operator::Combine(dim)).then_some(Movement::Nothing)
        }
        Operator::Combine(from) => {
            let Operator::Partition(to) = second.operator else { return None };
            let has_equal_size = mesh.get(first.axis) == mesh.get(second.axis);
            match (has_same_axis, from == to) {
                (true, true) => Some(Movement::Nothing),
                (true, false) => Some(Movement::Exchange(Exchange::AllToAll)),
                (false, true) => has_equal_size.then_some(Movement::Exchange(Exchange::Permute)),
                (false, false) => None,
            }
        }
        Operator::Reduce => (has_same_axis && matches!(second.operator, Operator::Partition(_)))
            .then_some(Movement::Exchange(Exchange::ReduceScatter)),
        Operator::Pipeline { .. } => (second.operator == first.operator.adjoint()).then_some(Movement::Nothing),
        Operator::Replicate | Operator::Batch { .. } => None,
    }
}
