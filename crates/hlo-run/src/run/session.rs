//! A program whose arrays stay on its devices from step to step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use hlo_ir::Literal;

use super::steps::Walk;
use super::{Backend, Device, Meeting, OutputBytes, Watch, misfit};
use crate::ExecutionError;
use crate::memory_order::to_memory;
use hlo_gpu::plan::Plan;

/// Stack of a device's thread; kernels on the host may hold arrays there.
const STACK_BYTES: usize = 16 << 20;

/// What a device is to do next.
enum Order {
    /// Fill parameters.
    Write(Vec<(usize, Arc<Literal>)>),
    /// Take so many steps.
    Steps(u32),
    /// Take one step and time what it consists of.
    TimedStep,
    /// Give the outputs.
    Read,
}

/// What it answers.
enum Answer {
    Written,
    Seconds(f64),
    OfEachStep(Vec<f64>),
    Outputs(OutputBytes),
}

/// The devices of this process, ready to take steps. Where a step's output lies where a parameter lies, as donated state does,
/// it is the next step's input; other parameters keep what was written to them. Every process that shares the devices of a
/// plan makes the same calls in the same order.
pub struct Session<'s> {
    plan: &'s Plan,
    meeting: &'s Meeting<'s>,
    /// In the order of flat ids.
    lines: Vec<Line>,
}

/// The way to a device's thread and back.
struct Line {
    orders: Sender<Order>,
    answers: Receiver<Result<Answer, ExecutionError>>,
}

/// Makes the devices of this process ready, lets `work` use them, and takes them down again.
///
/// # Errors
/// Devices that cannot be made ready; those of `work`.
pub fn with_session<B: Backend, R>(
    backend: &B,
    meeting: &Meeting<'_>,
    watch: Watch,
    work: impl FnOnce(&mut Session<'_>) -> Result<R, ExecutionError>,
) -> Result<R, ExecutionError> {
    let devices = meeting.devices();
    backend.check(devices.len())?;
    std::thread::scope(|scope| {
        let mut lines = Vec::new();
        for id in devices.clone() {
            let ((orders, to_do), (done, answers)) = (channel(), channel());
            lines.push(Line { orders, answers });
            let body = move || serve(backend, meeting, id, watch, &to_do, &done);
            let builder = std::thread::Builder::new().name(format!("device {id}")).stack_size(STACK_BYTES);
            if let Err(error) = builder.spawn_scoped(scope, body) {
                let reason = format!("expected a thread for each of {} devices: {error}", devices.len());
                let error = ExecutionError::Host { what: "threads".to_string(), reason };
                meeting.fail(&error);
                return Err(error);
            }
        }
        work(&mut Session { plan: backend.plan(), meeting, lines })
    })
}

impl Session<'_> {
    /// Fills all parameters: `[device of this process][leaf]`.
    ///
    /// # Errors
    /// Arrays that do not fit the parameters; a device failed.
    pub fn write(&mut self, inputs: &[Vec<Arc<Literal>>]) -> Result<(), ExecutionError> {
        let n_leaves = self.plan.parameters.len();
        if let Some(leaves) = inputs.iter().find(|leaves| leaves.len() != n_leaves) {
            return Err(misfit(format!("expected {n_leaves} arrays, found {}", leaves.len())));
        }
        self.write_some(inputs.iter().map(|leaves| leaves.iter().cloned().enumerate().collect()).collect())
    }

    /// Fills one parameter, such as the next batch of examples: an array for each device of this process.
    ///
    /// # Errors
    /// Arrays that do not fit the parameter; a device failed.
    pub fn write_leaf(&mut self, leaf: usize, arrays: &[Arc<Literal>]) -> Result<(), ExecutionError> {
        if leaf >= self.plan.parameters.len() {
            return Err(misfit(format!("expected a leaf below {}, found {leaf}", self.plan.parameters.len())));
        }
        self.write_some(arrays.iter().map(|array| vec![(leaf, array.clone())]).collect())
    }

    fn write_some(&mut self, of_devices: Vec<Vec<(usize, Arc<Literal>)>>) -> Result<(), ExecutionError> {
        let (expected, found) = (self.lines.len(), of_devices.len());
        if expected != found {
            return Err(misfit(format!("expected inputs for {expected} devices, found {found}")));
        }
        self.ask(of_devices.into_iter().map(Order::Write)).map(|_| ())
    }

    /// Takes `n` steps, one after the other; the host waits only for the last. The seconds from the first launch to the end of
    /// all work, on the slowest device of this process.
    ///
    /// # Errors
    /// A step fails, here or in another process; `n` is above 1 and a step uses up a parameter ([`Plan::used_up`]).
    pub fn steps(&mut self, n: u32) -> Result<f64, ExecutionError> {
        if let (2.., Some(leaf)) = (n, self.plan.used_up().first()) {
            let name = &self.plan.buffers[self.plan.parameters[*leaf as usize]].name;
            return Err(misfit(format!(
                "expected parameters that outlive a step, found leaf {leaf} (`{name}`), which is donated and whose memory no \
                 output takes: donate only what is returned"
            )));
        }
        let n_lines = self.lines.len();
        let seconds = self.ask((0..n_lines).map(|_| Order::Steps(n)))?.into_iter().map(|answer| match answer {
            Answer::Seconds(seconds) => seconds,
            Answer::Written | Answer::OfEachStep(_) | Answer::Outputs(_) => 0.0,
        });
        Ok(seconds.fold(0.0, f64::max))
    }

    /// Takes a step in which the plan's steps wait for one another: the seconds of each on the slowest device.
    ///
    /// # Errors
    /// The step fails, here or in another process.
    pub fn timed_step(&mut self) -> Result<Vec<f64>, ExecutionError> {
        let n_lines = self.lines.len();
        let mut slowest = vec![0.0; self.plan.steps.len()];
        for answer in self.ask((0..n_lines).map(|_| Order::TimedStep))? {
            let Answer::OfEachStep(seconds) = answer else { continue };
            slowest.iter_mut().zip(seconds).for_each(|(slowest, own): (&mut f64, f64)| *slowest = slowest.max(own));
        }
        Ok(slowest)
    }

    /// The outputs of the last step: `[device of this process][leaf]`.
    ///
    /// # Errors
    /// A device failed.
    pub fn outputs(&mut self) -> Result<Vec<OutputBytes>, ExecutionError> {
        let n_lines = self.lines.len();
        let answers = self.ask((0..n_lines).map(|_| Order::Read))?;
        let outputs = answers.into_iter().map(|answer| match answer {
            Answer::Outputs(outputs) => outputs,
            Answer::Written | Answer::Seconds(_) | Answer::OfEachStep(_) => OutputBytes::new(),
        });
        Ok(outputs.collect())
    }

    /// Gives each device its order and collects the answers. The first failure is the cause, others are its consequences.
    fn ask(&mut self, orders: impl Iterator<Item = Order>) -> Result<Vec<Answer>, ExecutionError> {
        for (line, order) in self.lines.iter().zip(orders) {
            // A thread that is gone has said why.
            let _ = line.orders.send(order);
        }
        let answers: Vec<Option<Result<Answer, ExecutionError>>> =
            self.lines.iter().map(|line| line.answers.recv().ok()).collect();
        self.meeting.check()?;
        let ended =
            || ExecutionError::Host { what: "run".to_string(), reason: "a device's thread has ended".to_string() };
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(ended()))).collect()
    }
}

/// Tells the other devices if this device's thread crashes: they may wait for it.
struct Alarm<'m>(&'m Meeting<'m>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "a device's thread crashed".to_string();
            self.0.fail(&ExecutionError::Host { what: "run".to_string(), reason });
        }
    }
}

/// A device's thread: makes the device ready and does what it is told until nobody tells it any more.
fn serve<B: Backend>(
    backend: &B,
    meeting: &Meeting<'_>,
    id: u32,
    watch: Watch,
    orders: &Receiver<Order>,
    answers: &Sender<Result<Answer, ExecutionError>>,
) {
    let _alarm = Alarm(meeting);
    let outcome = backend.open(id, meeting).and_then(|mut device| {
        let mut walk = Walk::new(backend.plan(), meeting, id, watch);
        for order in orders {
            // Before the device goes away: it must know whether others may wait for it in vain.
            let answer = carry_out(&mut device, &mut walk, order).inspect_err(|error| meeting.fail(error))?;
            if answers.send(Ok(answer)).is_err() {
                break;
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        meeting.fail(&error);
        let _ = answers.send(Err(error));
    }
}

fn carry_out<D: Device>(device: &mut D, walk: &mut Walk<'_, D>, order: Order) -> Result<Answer, ExecutionError> {
    let (plan, meeting, id) = (walk.plan, walk.meeting, walk.id);
    match order {
        Order::Write(leaves) => {
            for (leaf, literal) in leaves {
                let buffer = plan.parameters[leaf];
                device.write(buffer, &to_memory(&literal, &plan.buffers[buffer].shape)?)?;
            }
            Ok(Answer::Written)
        }
        Order::Steps(n) => {
            meeting.meet(id, "the start of a run", Vec::new(), Ok)?;
            let start = Instant::now();
            (0..n).try_for_each(|_| walk.issue(device))?;
            device.finish()?;
            let seconds = start.elapsed().as_secs_f64();
            // Nobody overwrites or frees what another device still reads.
            meeting.meet(id, "the end of a run", Vec::new(), Ok)?;
            Ok(Answer::Seconds(seconds))
        }
        Order::TimedStep => {
            let seconds = walk.timed(device)?;
            meeting.meet(id, "the end of a run", Vec::new(), Ok)?;
            Ok(Answer::OfEachStep(seconds))
        }
        Order::Read => {
            let outputs = plan.outputs.iter().map(|&buffer| device.read(buffer)).collect::<Result<_, _>>()?;
            Ok(Answer::Outputs(outputs))
        }
    }
}
