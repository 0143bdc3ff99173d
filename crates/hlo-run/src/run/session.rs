//! A program whose arrays stay on its devices from step to step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use hlo_ir::Literal;

use super::steps::Walk;
use super::{Backend, Device, Meeting, OutputBytes, Watch, misfit};
use crate::ExecutionError;
use crate::memory_order::{from_memory, to_memory};
use hlo_gpu::plan::{BufferId, Place, Plan, Stream};

/// Stack of a device's thread; kernels on the host may hold arrays there.
const STACK_BYTES: usize = 16 << 20;

/// What a device is to do next.
enum Order {
    /// Fill parameters.
    Write(Vec<(usize, Arc<Literal>)>),
    /// Make outputs the parameters that they are the next values of.
    Carry,
    /// Take so many steps.
    Steps(u32),
    /// Take one step and time what it consists of.
    TimedStep,
    /// Give the outputs.
    Read,
}

/// What it answers.
enum Answer {
    Done,
    Seconds(f64),
    OfEachStep(Vec<f64>),
    Outputs(OutputBytes),
}

/// The devices of this process, ready to take steps. An output that the module's header aliases with a parameter is the parameter's
/// value in the next step; other parameters keep what was written to them. Every process that shares the devices of a plan makes the
/// same calls in the same order.
pub struct Session<'s> {
    plan: &'s Plan,
    meeting: &'s Meeting<'s>,
    /// In the order of flat ids.
    lines: Vec<Line>,
    /// What was done since all parameters were filled.
    progress: Progress,
}

/// What was done with the parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// They hold what the next step takes.
    Ready,
    /// A step has been taken: outputs can be read, and are to become parameters.
    Stepped,
    /// The same, and since then a parameter was filled.
    Filled,
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
        work(&mut Session { plan: backend.plan(), meeting, lines, progress: Progress::Ready })
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
        self.write_some(inputs.iter().map(|leaves| leaves.iter().cloned().enumerate().collect()).collect())?;
        self.progress = Progress::Ready;
        Ok(())
    }

    /// Fills one parameter, such as the next batch of examples: an array for each device of this process. What the last step gave must
    /// have been read before.
    ///
    /// # Errors
    /// Arrays that do not fit the parameter; a device failed.
    pub fn write_leaf(&mut self, leaf: usize, arrays: &[Arc<Literal>]) -> Result<(), ExecutionError> {
        if leaf >= self.plan.parameters.len() {
            return Err(misfit(format!("expected a leaf below {}, found {leaf}", self.plan.parameters.len())));
        }
        if self.progress == Progress::Stepped {
            self.carry()?;
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
    /// A step fails, here or in another process; it is not the first and a step uses up a parameter ([`Plan::used_up`]).
    pub fn steps(&mut self, n: u32) -> Result<f64, ExecutionError> {
        if let (true, Some(leaf)) = (n > 1 || self.progress != Progress::Ready, self.plan.used_up().first()) {
            let name = &self.plan.buffers[self.plan.parameters[*leaf as usize]].name;
            return Err(misfit(format!(
                "expected parameters that outlive a step, found leaf {leaf} (`{name}`), which is donated and is no output's alias: \
                 donate only what is returned in its place"
            )));
        }
        if self.progress == Progress::Stepped {
            self.carry()?;
        }
        self.progress = Progress::Stepped;
        let n_lines = self.lines.len();
        let seconds = self.ask((0..n_lines).map(|_| Order::Steps(n)))?.into_iter().map(|answer| match answer {
            Answer::Seconds(seconds) => seconds,
            Answer::Done | Answer::OfEachStep(_) | Answer::Outputs(_) => 0.0,
        });
        Ok(seconds.fold(0.0, f64::max))
    }

    /// Takes a step in which the plan's steps wait for one another: the seconds of each on the slowest device.
    ///
    /// # Errors
    /// The step fails, here or in another process.
    pub fn timed_step(&mut self) -> Result<Vec<f64>, ExecutionError> {
        if self.progress == Progress::Stepped {
            self.carry()?;
        }
        self.progress = Progress::Stepped;
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
    /// A device failed; parameters have been filled since the last step, which may lie where outputs lay.
    pub fn outputs(&mut self) -> Result<Vec<OutputBytes>, ExecutionError> {
        if self.progress != Progress::Stepped {
            let reason = "expected outputs to be read after a step and before parameters are filled again".to_string();
            return Err(ExecutionError::Host { what: "outputs".to_string(), reason });
        }
        let n_lines = self.lines.len();
        let answers = self.ask((0..n_lines).map(|_| Order::Read))?;
        let outputs = answers.into_iter().map(|answer| match answer {
            Answer::Outputs(outputs) => outputs,
            Answer::Done | Answer::Seconds(_) | Answer::OfEachStep(_) => OutputBytes::new(),
        });
        Ok(outputs.collect())
    }

    /// Makes outputs the parameters that they are the next values of.
    fn carry(&mut self) -> Result<(), ExecutionError> {
        self.progress = Progress::Filled;
        let n_lines = self.lines.len();
        self.ask((0..n_lines).map(|_| Order::Carry)).map(|_| ())
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
            Ok(Answer::Done)
        }
        Order::Carry => carry(plan, device).map(|()| Answer::Done),
        Order::Steps(n) => {
            meeting.meet(id, "the start of a run", Vec::new(), Ok)?;
            let start = Instant::now();
            for k in 0..n {
                if k > 0 {
                    carry(plan, device)?;
                }
                walk.issue(device)?;
            }
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

/// Makes outputs the parameters that they are the next values of, those that do not lie there already. What lies at a parameter is
/// read before any parameter is filled: outputs may have changed places. So is what lies in another order of dims.
fn carry<D: Device>(plan: &Plan, device: &mut D) -> Result<(), ExecutionError> {
    let (place, shape) =
        (|buffer: BufferId| plan.buffers[buffer].place, |buffer: BufferId| &plan.buffers[buffer].shape);
    let pairs = plan.aliases.iter().map(|&(output, parameter)| (plan.outputs[output], plan.parameters[parameter]));
    let (by_host, by_device): (Vec<_>, Vec<_>) = pairs
        .filter(|&(from, to)| place(from) != place(to))
        .partition(|&(from, to)| matches!(place(from), Place::Parameter(_)) || shape(from) != shape(to));
    let mut brought = Vec::new();
    for (from, to) in by_host {
        let literal = from_memory(&device.read(from)?, shape(from))?;
        brought.push((to, to_memory(&literal, shape(to))?));
    }
    for (from, to) in by_device {
        device.copy(Stream::Compute, from, to)?;
    }
    brought.into_iter().try_for_each(|(to, bytes)| device.write(to, &bytes))
}
