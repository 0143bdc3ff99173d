//! What a piece of work reads and writes.

use super::{BufferId, Plan, Step, Work};

/// The buffers of one piece of work; loops and branches give only what the host reads for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accesses {
    /// Read.
    pub reads: Vec<BufferId>,
    /// Written.
    pub writes: Vec<BufferId>,
}

impl Work {
    /// Whether both streams catch up with each other here.
    pub(crate) fn is_barrier(&self) -> bool {
        match self {
            Work::While { .. } | Work::Conditional { .. } => true,
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => false,
        }
    }

    /// The steps inside a loop or branch.
    pub(crate) fn inside(&self) -> impl Iterator<Item = &Step> {
        let (first, second, branches): (&[Step], &[Step], &[Vec<Step>]) = match self {
            Work::While { condition, body, .. } => (condition, body, &[]),
            Work::Conditional { branches, .. } => (&[], &[], branches),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {
                (&[], &[], &[])
            }
        };
        first.iter().chain(second).chain(branches.iter().flatten())
    }

    /// What this reads and writes, without the steps inside a loop or branch. Of a kernel's arguments the results come
    /// last: what its access list does not call a read is written.
    pub fn accesses(&self, plan: &Plan) -> Accesses {
        let mut found = Accesses::default();
        match self {
            Work::Launch { kernel, arguments } => {
                let uses = plan.kernels.get(*kernel).map(|k| k.arguments.as_slice()).unwrap_or_default();
                for (i, &argument) in arguments.iter().enumerate() {
                    match uses.get(i) {
                        Some(super::Access::Read) => found.reads.push(argument),
                        Some(super::Access::Write) => found.writes.push(argument),
                        Some(super::Access::Update) | None => {
                            found.reads.push(argument);
                            found.writes.push(argument);
                        }
                    }
                }
            }
            Work::Gemm(gemm) => {
                found.reads.extend([gemm.lhs.buffer, gemm.rhs.buffer]);
                found.writes.push(gemm.output.buffer);
            }
            Work::Collective(call) => {
                for &(input, output) in &call.calls {
                    found.reads.push(input);
                    found.writes.push(output);
                }
            }
            Work::Copy { from, to } => {
                found.reads.push(*from);
                found.writes.push(*to);
            }
            Work::Fill { to, .. } => found.writes.push(*to),
            Work::While { predicate, .. } => found.reads.push(*predicate),
            Work::Conditional { selector, .. } => found.reads.push(*selector),
        }
        found
    }
}
