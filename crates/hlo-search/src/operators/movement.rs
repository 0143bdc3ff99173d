//! What a sequence of operators moves between devices.

use super::operator::{AxisOperator, Operator, OperatorError};
use super::state::TensorState;
use smallvec::SmallVec;

/// What one or two operators are on devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Movement {
    /// Nothing moves: `Replicate` where every device has the value, `Pipeline`, `Batch`, or operators that undo one another.
    Nothing,
    /// Each device keeps a part of what it has.
    Slice,
    /// `Combine`.
    AllGather,
    /// `Reduce`.
    AllReduce,
    /// `Reduce`, then `Partition` along the same axis.
    ReduceScatter,
    /// `Combine`, then `Partition` of another dim along the same axis.
    AllToAll,
    /// `Combine`, then `Partition` of the same dim along another axis of equal size.
    Permute,
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
    while !rest.is_empty() {
        let (taken, after) = rest.split_at(n_in_one_movement(rest, mesh));
        let local_before = state.local_dims(&dims, mesh);
        for operator in taken {
            operator.apply(&mut dims, &mut state, mesh)?;
        }
        let movement = movement_of(taken);
        let mut axes: SmallVec<[usize; 4]> = taken.iter().map(|operator| operator.axis).collect();
        axes.dedup();
        let n: u64 = match movement {
            Movement::AllReduce => axes.iter().map(|&axis| mesh[axis]).product(),
            _ => mesh[axes[0]],
        };
        let bytes = |local_dims: &[u64]| elem_bytes * local_dims.iter().product::<u64>();
        let received_bytes = match movement {
            Movement::Nothing | Movement::Slice => 0,
            Movement::AllGather => (n - 1) * bytes(&local_before),
            Movement::AllReduce => 2 * (n - 1) * elem_bytes * local_before.iter().product::<u64>().div_ceil(n),
            Movement::ReduceScatter => (n - 1) * bytes(&state.local_dims(&dims, mesh)),
            Movement::AllToAll => {
                let mut block = local_before;
                if let Some(dim) = taken[1].operator.dim() {
                    block[dim] = block[dim].div_ceil(n);
                }
                (n - 1) * bytes(&block)
            }
            Movement::Permute => bytes(&local_before),
        };
        moves.push(Move { movement, axes, received_bytes });
        rest = after;
    }
    Ok(moves)
}

/// How many of the first operators are one movement.
fn n_in_one_movement(operators: &[AxisOperator], mesh: &[u64]) -> usize {
    let [first, second, ..] = operators else { return operators.len() };
    let is_pair = match (first.operator, second.operator) {
        (Operator::Reduce, Operator::Partition(_)) => first.axis == second.axis,
        (Operator::Combine(from), Operator::Partition(to)) => {
            first.axis == second.axis || from == to && mesh[first.axis] == mesh[second.axis]
        }
        (Operator::Partition(to), Operator::Combine(from)) => first.axis == second.axis && to == from,
        (Operator::Pipeline { .. }, Operator::Batch { .. }) => first.operator.adjoint() == second.operator,
        _ => false,
    };
    if is_pair {
        return 2;
    }
    let n_reduced = operators.iter().take_while(|operator| operator.operator == Operator::Reduce).count();
    // The last of them goes with a partition behind it.
    let is_scattered = operators.get(n_reduced).zip(n_reduced.checked_sub(1)).is_some_and(|(next, last)| {
        matches!(next.operator, Operator::Partition(_)) && next.axis == operators[last].axis
    });
    n_reduced.saturating_sub(usize::from(is_scattered)).max(1)
}

/// What operators that are one movement are.
fn movement_of(taken: &[AxisOperator]) -> Movement {
    let same_axis = |second: &AxisOperator| taken[0].axis == second.axis;
    match (taken[0].operator, taken.get(1)) {
        (Operator::Reduce, Some(second)) if second.operator != Operator::Reduce => Movement::ReduceScatter,
        (Operator::Reduce, _) => Movement::AllReduce,
        (Operator::Combine(from), Some(second)) => match (same_axis(second), second.operator.dim() == Some(from)) {
            (true, true) => Movement::Nothing,
            (true, false) => Movement::AllToAll,
            (false, _) => Movement::Permute,
        },
        (Operator::Combine(_), None) => Movement::AllGather,
        (Operator::Partition(_), Some(_)) => Movement::Nothing,
        (Operator::Partition(_), None) => Movement::Slice,
        (Operator::Replicate | Operator::Pipeline { .. } | Operator::Batch { .. }, _) => Movement::Nothing,
    }
}
