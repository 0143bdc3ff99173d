//! Collectives between devices that share one card: each reads the others' inputs where they lie.
//!
//! The host threads meet twice in each step. First they exchange addresses and the points at which the inputs are ready; each
//! stream waits for those of all, and each device computes its own output. Then they exchange the points at which they have
//! read, and each stream waits for those, so that nobody's input is overwritten too early. An output that lies where an
//! input lies is computed elsewhere and copied at the end.

use cudarc::driver::sys::{CUevent, CUstream};

use super::collective_steps;
use super::context::{Allocation, DeviceContext, Event, Timing};
use super::moves::{Move, moves};
use super::reductions::Reductions;
use crate::ExecutionError;
use hlo_gpu::plan::{BufferId, CollectiveCall, Plan};

/// Whether the output of a call lies where a device's input of the step lies, so that others read what it would write.
fn overlaps(plan: &Plan, call: &CollectiveCall, output: BufferId) -> bool {
    let range = |buffer: BufferId| {
        let buffer = &plan.buffers[buffer];
        (buffer.place, buffer.offset_bytes, buffer.offset_bytes + buffer.shape.memory_bytes())
    };
    let (place, start, end) = range(output);
    call.calls.iter().map(|&(input, _)| range(input)).any(|(p, s, e)| p == place && s < end && start < e)
}

/// Bytes that the outputs of a step need elsewhere, each at a multiple of 256.
fn staged_bytes(plan: &Plan, call: &CollectiveCall) -> u64 {
    let outputs = call.calls.iter().map(|&(_, output)| output).filter(|&output| overlaps(plan, call, output));
    outputs.map(|output| plan.buffers[output].shape.memory_bytes().next_multiple_of(256)).sum()
}

/// One device among those of its card.
pub(super) struct Neighbours {
    staging: Allocation,
    /// Points that others may still be about to wait for.
    kept: Vec<Event>,
}

impl Neighbours {
    pub(super) fn new(context: &DeviceContext<'_>) -> Result<Neighbours, ExecutionError> {
        let n_bytes =
            collective_steps(&context.plan.steps).into_iter().map(|call| staged_bytes(context.plan, call)).max();
        let staging = Allocation::new(context.card, n_bytes.unwrap_or(0) as usize, "collectives in place")?;
        Ok(Neighbours { staging, kept: Vec::new() })
    }

    /// This device's part of a step.
    pub(super) fn collective(
        &mut self,
        context: &DeviceContext<'_>,
        stream: CUstream,
        name: &str,
        call: &CollectiveCall,
        reductions: &Reductions,
    ) -> Result<(), ExecutionError> {
        let ready = Event::record(context.card, stream, Timing::Off)?;
        let mut words = vec![ready.handle as usize as u64];
        for &(input, _) in &call.calls {
            words.push(context.address(input)?);
        }
        let width = words.len();
        let words = exchange(context, name, &words)?;
        self.kept.clear();
        wait_for_all(context, stream, words.iter().step_by(width))?;
        let mut staged = self.staging.address;
        let mut copies = Vec::new();
        for (i, &(input, output)) in call.calls.iter().enumerate() {
            let (mut target, n_bytes) = (context.address(output)?, context.size_bytes(output));
            let groups = &context.plan.communicators[call.communicator];
            let steps = moves(&call.kind, groups, context.id, context.size_bytes(input));
            if overlaps(context.plan, call, output) && !steps.is_empty() {
                copies.push((staged, target, n_bytes));
                target = staged;
                staged += n_bytes.next_multiple_of(256);
            }
            let input_of = |device: u32| words.get(device as usize * width + 1 + i).copied().unwrap_or(0);
            for step in steps {
                match step {
                    Move::Copy { device, from, to } => {
                        context.copy(stream, input_of(device) + from.start, target + to, from.end - from.start)?;
                    }
                    Move::Zero => context.fill(stream, target, 0, n_bytes)?,
                    Move::Reduce { devices, from } => {
                        let shape = &context.plan.buffers[output].shape;
                        let kernel = call
                            .kind
                            .reduction()
                            .and_then(|how| reductions.find(shape, how, devices.len()))
                            .ok_or_else(|| ExecutionError::Device {
                            what: name.to_string(),
                            reason: "expected a kernel that reduces between devices, found none".to_string(),
                        })?;
                        let mut pointers: Vec<u64> = devices.iter().map(|&d| input_of(d) + from.start).collect();
                        pointers.push(target);
                        context.card.launch(kernel, &pointers, stream)?;
                    }
                }
            }
        }
        let done = Event::record(context.card, stream, Timing::Off)?;
        let words = exchange(context, name, &[done.handle as usize as u64])?;
        wait_for_all(context, stream, words.iter())?;
        self.kept.extend([ready, done]);
        copies.into_iter().try_for_each(|(from, to, n_bytes)| context.copy(stream, from, to, n_bytes))
    }
}

impl Neighbours {
    /// After a failure others may still be about to wait for the kept points: they are left to the end of the process.
    pub(super) fn abandon(&mut self) {
        self.kept.drain(..).for_each(std::mem::forget);
    }
}

fn wait_for_all<'w>(
    context: &DeviceContext<'_>,
    stream: CUstream,
    mut events: impl Iterator<Item = &'w u64>,
) -> Result<(), ExecutionError> {
    events.try_for_each(|&event| context.wait(stream, event as usize as CUevent))
}

/// The words of all devices, in the order of flat ids.
fn exchange(context: &DeviceContext<'_>, name: &str, words: &[u64]) -> Result<Vec<u64>, ExecutionError> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = context.meeting.meet(context.id, name, bytes, |all| {
        let joined = all.concat();
        Ok(vec![joined; all.len()])
    })?;
    Ok(all.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect())
}
