//! The steps of a plan on one device.

use super::{Device, ExecutionOptions, Meeting, finite};
use crate::ExecutionError;
use hlo_gpu::plan::{BufferId, Plan, Step, Stream, Work};

/// One device's way through a plan.
pub(super) struct Walk<'a> {
    plan: &'a Plan,
    meeting: &'a Meeting<'a>,
    /// Flat id.
    id: u32,
    options: ExecutionOptions,
}

impl<'a> Walk<'a> {
    pub(super) fn new(plan: &'a Plan, meeting: &'a Meeting<'a>, id: u32, options: ExecutionOptions) -> Walk<'a> {
        Walk { plan, meeting, id, options }
    }

    /// All steps, to their end.
    pub(super) fn run<D: Device>(&self, device: &mut D) -> Result<(), ExecutionError> {
        self.list(device, &self.plan.steps)?;
        device.finish()
    }

    /// A list of steps. When it begins and when it ends, both streams have caught up with each other.
    fn list<D: Device>(&self, device: &mut D, steps: &[Step]) -> Result<(), ExecutionError> {
        let mut is_awaited = vec![false; steps.len()];
        for &earlier in steps.iter().flat_map(|step| &step.waits_for) {
            if let Some(slot) = is_awaited.get_mut(earlier as usize) {
                *slot = true;
            }
        }
        let mut events: Vec<Option<D::Event>> = (0..steps.len()).map(|_| None).collect();
        for (i, step) in steps.iter().enumerate() {
            for &earlier in &step.waits_for {
                if let Some(Some(event)) = events.get(earlier as usize) {
                    device.wait(step.stream, event)?;
                }
            }
            self.step(device, step)?;
            if is_awaited[i] {
                events[i] = Some(device.record(step.stream)?);
            }
            if self.options.sync {
                device.finish().map_err(|error| after(&step.name, error))?;
            }
            if self.options.check_finite {
                finite::check(self.plan, device, self.id, step)?;
            }
        }
        join_streams(device)
    }

    fn step<D: Device>(&self, device: &mut D, step: &Step) -> Result<(), ExecutionError> {
        match &step.work {
            Work::Launch { kernel, arguments } => device.launch(step.stream, *kernel, arguments),
            Work::Gemm(product) => device.gemm(step.stream, product),
            Work::Collective(call) => device.collective(step.stream, &step.name, call),
            Work::Copy { from, to } => device.copy(step.stream, *from, *to),
            Work::Fill { to, byte } => device.fill(step.stream, *to, *byte),
            Work::While { condition, predicate, body, .. } => {
                join_streams(device)?;
                loop {
                    self.list(device, condition)?;
                    if self.decision(device, &step.name, *predicate)?.first() == Some(&0) {
                        return Ok(());
                    }
                    self.list(device, body)?;
                }
            }
            Work::Conditional { selector, branches, .. } => {
                join_streams(device)?;
                let bytes = self.decision(device, &step.name, *selector)?;
                branches.get(branch(&bytes, branches.len())).map_or(Ok(()), |steps| self.list(device, steps))
            }
        }
    }

    /// Reads back what the host decides by, and makes sure that all devices of all processes decide the same.
    fn decision<D: Device>(&self, device: &mut D, name: &str, buffer: BufferId) -> Result<Vec<u8>, ExecutionError> {
        let own = device.read(buffer)?;
        self.meeting.meet(self.id, name, own, |all| {
            let first = all.first().cloned().unwrap_or_default();
            match all.iter().position(|other| *other != first) {
                None => Ok(all),
                Some(other) => {
                    let reason = format!("expected the same decision on all devices, found another on device {other}");
                    Err(ExecutionError::Host { what: name.to_string(), reason })
                }
            }
        })
    }
}

/// Which of `n` branches a selector takes: true is branch 0, a number out of range is the last branch.
fn branch(selector: &[u8], n: usize) -> usize {
    let last = n.saturating_sub(1);
    match selector {
        [pred] => usize::from(*pred == 0),
        [a, b, c, d] => usize::try_from(i32::from_le_bytes([*a, *b, *c, *d])).unwrap_or(last).min(last),
        _ => last,
    }
}

/// Lets each stream wait for what the other has been given so far.
fn join_streams<D: Device>(device: &mut D) -> Result<(), ExecutionError> {
    let points = [device.record(Stream::Compute)?, device.record(Stream::Communication)?];
    device.wait(Stream::Communication, &points[0])?;
    device.wait(Stream::Compute, &points[1])
}

/// An error that became known while waiting for a step.
fn after(step: &str, error: ExecutionError) -> ExecutionError {
    match error {
        ExecutionError::Device { what, reason } => ExecutionError::Device { what: format!("{step}: {what}"), reason },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::branch;

    #[test]
    fn selectors_choose_as_conditionals_do() {
        assert_eq!((branch(&[1], 2), branch(&[0], 2)), (0, 1));
        let of = |selector: i32| branch(&selector.to_le_bytes(), 3);
        assert_eq!((of(0), of(2), of(3), of(-1)), (0, 2, 2, 2));
    }
}
