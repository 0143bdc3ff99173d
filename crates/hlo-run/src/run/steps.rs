//! The steps of a plan on one device.

use std::collections::HashMap;

use super::segments::{Segment, awaited, segments};
use super::{Device, Meeting, Watch, finite};
use crate::ExecutionError;
use hlo_gpu::plan::{BufferId, Plan, Step, Stream, Work};

/// One device's way through a plan.
pub(super) struct Walk<'a, D: Device> {
    pub plan: &'a Plan,
    pub meeting: &'a Meeting<'a>,
    /// Flat id.
    pub id: u32,
    watch: Watch,
    /// What is known of lists of steps that were walked before, by where they lie in the plan.
    lists: HashMap<*const Step, List<D>>,
    /// Seconds of the steps that the entry's list has run one by one, with the stream's marks before and after each.
    marks: Option<Vec<StepMarks<D>>>,
}

/// A step's index in the entry's list, and the points before and after it in its stream.
type StepMarks<D> = (usize, <D as Device>::Mark, <D as Device>::Mark);

/// A list of steps that is walked again and again.
struct List<D: Device> {
    segments: Vec<(Segment, Option<D::Recording>)>,
    is_awaited: Vec<bool>,
    /// Whether a step of its own is on the communication stream.
    communicates: bool,
    /// Whether all steps have been issued once: what they need besides memory is ready.
    has_run: bool,
}

impl<D: Device> List<D> {
    fn new(steps: &[Step]) -> List<D> {
        let segments = segments(steps).into_iter().map(|segment| (segment, None)).collect();
        let communicates = steps.iter().any(|step| step.stream == Stream::Communication);
        List { segments, is_awaited: awaited(steps), communicates, has_run: false }
    }
}

impl<'a, D: Device> Walk<'a, D> {
    pub(super) fn new(plan: &'a Plan, meeting: &'a Meeting<'a>, id: u32, watch: Watch) -> Walk<'a, D> {
        Walk { plan, meeting, id, watch, lists: HashMap::new(), marks: None }
    }

    /// Issues all steps.
    pub(super) fn issue(&mut self, device: &mut D) -> Result<(), ExecutionError> {
        let plan = self.plan;
        self.list(device, &plan.steps)
    }

    /// All steps to their end, one after the other: the seconds of each step of the entry. Those of a loop are all its rounds.
    pub(super) fn timed(&mut self, device: &mut D) -> Result<Vec<f64>, ExecutionError> {
        self.marks = Some(Vec::new());
        self.issue(device)?;
        device.finish()?;
        let mut seconds = vec![0.0; self.plan.steps.len()];
        for (i, before, after) in self.marks.take().unwrap_or_default() {
            if let Some(slot) = seconds.get_mut(i) {
                *slot = device.seconds_between(&before, &after)?;
            }
        }
        Ok(seconds)
    }

    /// A list of steps. When one that uses both streams begins and when it ends, they have caught up with each other.
    fn list(&mut self, device: &mut D, steps: &[Step]) -> Result<(), ExecutionError> {
        let mut list = self.lists.remove(&steps.as_ptr()).unwrap_or_else(|| List::new(steps));
        if list.communicates {
            join_streams(device)?;
        }
        let outcome = self.segments(device, steps, &mut list);
        list.has_run = true;
        let communicates = list.communicates;
        self.lists.insert(steps.as_ptr(), list);
        outcome?;
        if communicates { join_streams(device) } else { Ok(()) }
    }

    fn segments(&mut self, device: &mut D, steps: &[Step], list: &mut List<D>) -> Result<(), ExecutionError> {
        let looks_inside = self.watch.sync || self.watch.check_finite || self.marks.is_some();
        let may_record = list.has_run && !looks_inside && device.can_record();
        let mut events: Vec<Option<D::Event>> = (0..steps.len()).map(|_| None).collect();
        for (segment, recording) in &mut list.segments {
            let (first, end) = (segment.range.start, segment.range.end);
            for &earlier in &steps[first].waits_for {
                if let Some(Some(event)) = events.get(earlier as usize) {
                    device.wait(steps[first].stream, event)?;
                }
            }
            match recording {
                Some(recording) if !looks_inside => device.replay(recording)?,
                _ if may_record && segment.is_recordable && segment.range.len() > 1 => {
                    let made = self.recorded(device, &steps[first..end])?;
                    device.replay(&made)?;
                    *recording = Some(made);
                }
                _ => (first..end).try_for_each(|i| self.watched(device, steps, i))?,
            }
            if list.is_awaited[end - 1] {
                events[end - 1] = Some(device.record(steps[end - 1].stream)?);
            }
        }
        Ok(())
    }

    /// Steps as one thing to launch; nothing of them is done yet.
    fn recorded(&mut self, device: &mut D, steps: &[Step]) -> Result<D::Recording, ExecutionError> {
        device.begin_recording()?;
        let issued = steps.iter().try_for_each(|step| self.step(device, step));
        // A stream that records must be told to end, also after an error.
        let recording = device.end_recording();
        issued.and(recording)
    }

    /// One step, with what was asked to be looked at.
    fn watched(&mut self, device: &mut D, steps: &[Step], i: usize) -> Result<(), ExecutionError> {
        let step = &steps[i];
        let is_marked = self.marks.is_some() && std::ptr::eq(steps, self.plan.steps.as_slice());
        let before = is_marked.then(|| device.mark(step.stream)).transpose()?;
        self.step(device, step)?;
        if let (Some(before), Some(marks)) = (before, &mut self.marks) {
            marks.push((i, before, device.mark(step.stream)?));
        }
        if self.watch.sync {
            device.finish().map_err(|error| after(&step.name, error))?;
        }
        if self.watch.check_finite {
            finite::check(self.plan, device, self.id, step)?;
        }
        Ok(())
    }

    fn step(&mut self, device: &mut D, step: &Step) -> Result<(), ExecutionError> {
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
    fn decision(&self, device: &mut D, name: &str, buffer: BufferId) -> Result<Vec<u8>, ExecutionError> {
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
