//! The two programs: where each instruction is run, and which values are the same value under another name.

use super::text::SiteText;
use hlo_ir::attrs::{ParameterAttrs, TupleIndexAttrs, WhileAttrs};
use hlo_ir::op::{Begun, Flow};
use hlo_ir::{CompId, InstId, Module, Shape};
use std::collections::HashMap;

/// One run of a computation, by its number.
pub(super) type FrameId = usize;

/// A leaf of the value of an instruction in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    pub frame: FrameId,
    pub inst: InstId,
    pub leaf: usize,
}

/// How a computation is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    Entry,
    Call,
    Condition,
    Body,
    /// With the number of the branch.
    Branch(usize),
}

pub(super) struct Frame {
    pub module: usize,
    pub comp: CompId,
    pub run: Run,
    /// The frame and the instruction that call it.
    pub caller: Option<(FrameId, InstId)>,
}

/// All frames of all modules.
pub(super) struct Programs<'m> {
    pub modules: Vec<&'m Module>,
    pub frames: Vec<Frame>,
    /// The frame of each module's entry.
    pub entries: Vec<FrameId>,
    callees: HashMap<(FrameId, InstId), Vec<FrameId>>,
    paths: HashMap<(usize, String), FrameId>,
    names: HashMap<(CompId, usize, String), InstId>,
    passed_on: HashMap<(FrameId, usize), bool>,
}

impl<'m> Programs<'m> {
    pub(super) fn new(modules: Vec<&'m Module>) -> Option<Programs<'m>> {
        let mut programs = Programs {
            modules,
            frames: Vec::new(),
            entries: Vec::new(),
            callees: HashMap::new(),
            paths: HashMap::new(),
            names: HashMap::new(),
            passed_on: HashMap::new(),
        };
        for module in 0..programs.modules.len() {
            let comp = programs.modules[module].entry()?;
            let entry = programs.add(Frame { module, comp, run: Run::Entry, caller: None }, String::new());
            programs.entries.push(entry);
        }
        Some(programs)
    }

    fn add(&mut self, frame: Frame, path: String) -> FrameId {
        let id = self.frames.len();
        let (module, comp) = (frame.module, frame.comp);
        self.frames.push(frame);
        self.paths.insert((module, path.clone()), id);
        let program = self.modules[module];
        for &inst in &program.comp(comp).insts {
            self.names.insert((comp, module, program.inst_name(inst).to_string()), inst);
            let called = program.called(inst);
            let run = |k: usize| match program.inst(inst).opcode.row().flow {
                Flow::Call | Flow::AsyncStart(Begun::Call) => Some(Run::Call),
                Flow::While => {
                    let attrs = WhileAttrs::of(&program.inst(inst).attrs)?;
                    Some(if attrs.body == Some(called[k]) { Run::Body } else { Run::Condition })
                }
                Flow::Conditional => Some(Run::Branch(k)),
                Flow::All
                | Flow::Parameter
                | Flow::Constant
                | Flow::Tuple
                | Flow::GetTupleElement
                | Flow::Identity
                | Flow::ReplicaId
                | Flow::PartitionId
                | Flow::Collective(_)
                | Flow::AsyncStart(Begun::Copy | Begun::Collective(_))
                | Flow::AsyncUpdate
                | Flow::AsyncDone => None,
            };
            let mut frames = Vec::new();
            for (k, &callee) in called.iter().enumerate() {
                let Some(run) = run(k) else { continue };
                let name = program.inst_name(inst);
                let step = if called.len() == 1 { name.to_string() } else { format!("{name}:{k}") };
                let path = if path.is_empty() { step } else { format!("{path}/{step}") };
                frames.push(self.add(Frame { module, comp: callee, run, caller: Some((id, inst)) }, path));
            }
            if !frames.is_empty() {
                self.callees.insert((id, inst), frames);
            }
        }
        id
    }

    pub(super) fn module(&self, frame: FrameId) -> &'m Module {
        self.modules[self.frames[frame].module]
    }

    /// Whether the frame is one of the first module.
    pub(super) fn is_first(&self, frame: FrameId) -> bool {
        self.frames[frame].module == 0
    }

    pub(super) fn callees(&self, frame: FrameId, inst: InstId) -> &[FrameId] {
        self.callees.get(&(frame, inst)).map_or(&[], Vec::as_slice)
    }

    /// Of a loop: the frame of its condition or of its body.
    pub(super) fn of_loop(&self, frame: FrameId, inst: InstId, run: Run) -> Option<FrameId> {
        self.callees(frame, inst).iter().copied().find(|&callee| self.frames[callee].run == run)
    }

    pub(super) fn find(&self, site: &SiteText) -> Option<Place> {
        let frame = *self.paths.get(&(site.module, site.path.clone()))?;
        let inst = *self.names.get(&(self.frames[frame].comp, site.module, site.inst.clone()))?;
        Some(Place { frame, inst, leaf: site.leaf })
    }

    pub(super) fn root(&self, frame: FrameId, leaf: usize) -> Option<Place> {
        let inst = self.module(frame).comp(self.frames[frame].comp).root.expand()?;
        Some(Place { frame, inst, leaf })
    }

    pub(super) fn operand(&self, place: Place, number: usize) -> Option<Place> {
        let inst = *self.module(place.frame).inst(place.inst).operands.get(number)?;
        Some(Place { inst, ..place })
    }

    /// Where the value comes from that a loop carries, if each iteration passes it on.
    fn is_passed_on(&mut self, body: FrameId, leaf: usize) -> bool {
        if let Some(&known) = self.passed_on.get(&(body, leaf)) {
            return known;
        }
        self.passed_on.insert((body, leaf), false);
        let is_passed = self
            .root(body, leaf)
            .and_then(|root| self.same(root))
            .is_some_and(|place| place.frame == body && place.leaf == leaf && self.parameter(place).is_some());
        self.passed_on.insert((body, leaf), is_passed);
        is_passed
    }

    fn parameter(&self, place: Place) -> Option<usize> {
        let attrs = &self.module(place.frame).inst(place.inst).attrs;
        usize::try_from(ParameterAttrs::of(attrs)?.number).ok()
    }

    /// The value that this one is: through tuples, copies and calls to what computes it. `None` for what is not read.
    pub(super) fn same(&mut self, mut place: Place) -> Option<Place> {
        loop {
            place = match self.step(place)? {
                Some(next) => next,
                None => return Some(place),
            };
        }
    }

    /// One step; `Some(None)` at the end.
    fn step(&mut self, place: Place) -> Option<Option<Place>> {
        let module = self.module(place.frame);
        let instruction = module.inst(place.inst);
        let at = |inst: InstId, leaf: usize| Some(Some(Place { inst, leaf, ..place }));
        match instruction.opcode.row().flow {
            Flow::Tuple => {
                let mut leaf = place.leaf;
                for &operand in &instruction.operands {
                    let n = n_leaves(module.shape(operand));
                    if leaf < n {
                        return at(operand, leaf);
                    }
                    leaf -= n;
                }
                None
            }
            Flow::GetTupleElement => {
                let index = usize::try_from(TupleIndexAttrs::of(&instruction.attrs)?.index).ok()?;
                let operand = *instruction.operands.first()?;
                if matches!(module.inst(operand).opcode.row().flow, Flow::AsyncStart(_) | Flow::AsyncUpdate) {
                    return None;
                }
                let before: usize = module.shape(operand).as_tuple()?.iter().take(index).map(n_leaves).sum();
                at(operand, before + place.leaf)
            }
            Flow::Identity => at(*instruction.operands.first()?, place.leaf),
            Flow::Call => {
                let callee = *self.callees(place.frame, place.inst).first()?;
                self.root(callee, place.leaf).map(Some)
            }
            Flow::While => {
                let body = self.of_loop(place.frame, place.inst, Run::Body)?;
                match self.is_passed_on(body, place.leaf) {
                    true => at(*instruction.operands.first()?, place.leaf),
                    false => Some(None),
                }
            }
            Flow::Parameter => self.argument(place),
            Flow::AsyncDone => {
                let mut start = *instruction.operands.first()?;
                while matches!(module.inst(start).opcode.row().flow, Flow::AsyncUpdate) {
                    start = *module.inst(start).operands.first()?;
                }
                match module.inst(start).opcode.row().flow {
                    Flow::AsyncStart(Begun::Call) => {
                        let callee = *self.callees(place.frame, start).first()?;
                        self.root(callee, place.leaf).map(Some)
                    }
                    Flow::AsyncStart(Begun::Copy) => at(*module.inst(start).operands.first()?, place.leaf),
                    Flow::AsyncStart(Begun::Collective(_)) => at(start, place.leaf),
                    Flow::All
                    | Flow::Parameter
                    | Flow::Constant
                    | Flow::Tuple
                    | Flow::GetTupleElement
                    | Flow::Identity
                    | Flow::Call
                    | Flow::While
                    | Flow::Conditional
                    | Flow::ReplicaId
                    | Flow::PartitionId
                    | Flow::Collective(_)
                    | Flow::AsyncUpdate
                    | Flow::AsyncDone => None,
                }
            }
            Flow::AsyncUpdate => None,
            Flow::All
            | Flow::Constant
            | Flow::Conditional
            | Flow::ReplicaId
            | Flow::PartitionId
            | Flow::Collective(_)
            | Flow::AsyncStart(_) => Some(None),
        }
    }

    /// What a parameter is given.
    fn argument(&mut self, place: Place) -> Option<Option<Place>> {
        let number = self.parameter(place)?;
        let Frame { module, run, caller, .. } = self.frames[place.frame];
        let operand = |programs: &Self, k: usize| {
            let (frame, inst) = caller?;
            programs.operand(Place { frame, inst, leaf: place.leaf }, k)
        };
        match run {
            Run::Entry if module == 0 => Some(None),
            Run::Entry => {
                let own = self.modules[module];
                let params = &own.comp(self.frames[place.frame].comp).params;
                let before: usize = params.iter().take(number).map(|&p| n_leaves(own.shape(p))).sum();
                let leaf = before + place.leaf;
                match module {
                    1 => self.input(leaf).map(Some),
                    _ => self.root(self.entries[module - 1], leaf).map(Some),
                }
            }
            Run::Call => operand(self, number).map(Some),
            Run::Branch(k) => operand(self, k + 1).map(Some),
            Run::Condition => {
                let (frame, inst) = caller?;
                let body = self.of_loop(frame, inst, Run::Body)?;
                let param = *self.module(frame).comp(self.frames[body].comp).params.first()?;
                Some(Some(Place { frame: body, inst: param, leaf: place.leaf }))
            }
            Run::Body => match self.is_passed_on(place.frame, place.leaf) {
                true => operand(self, 0).map(Some),
                false => Some(None),
            },
        }
    }

    /// The input of the first module that is the `leaf`-th of all.
    fn input(&self, mut leaf: usize) -> Option<Place> {
        let frame = self.entries[0];
        let module = self.modules[0];
        for &inst in &module.comp(self.frames[frame].comp).params {
            let n = n_leaves(module.shape(inst));
            if leaf < n {
                return Some(Place { frame, inst, leaf });
            }
            leaf -= n;
        }
        None
    }

    /// The shape of a value's leaf.
    pub(super) fn shape(&self, place: Place) -> Option<&'m hlo_ir::ArrayShape> {
        let module = self.module(place.frame);
        let (mut k, mut out) = (0, None);
        let shape: &'m Shape = module.shape(place.inst);
        find_leaf(shape, place.leaf, &mut k, &mut out);
        out
    }
}

fn find_leaf<'s>(shape: &'s Shape, leaf: usize, k: &mut usize, out: &mut Option<&'s hlo_ir::ArrayShape>) {
    match shape {
        Shape::Tuple(elements) => elements.iter().for_each(|e| find_leaf(e, leaf, k, out)),
        Shape::Array(array) | Shape::Buffer(array) => {
            if *k == leaf {
                *out = Some(array);
            }
            *k += 1;
        }
        Shape::Token | Shape::Opaque => *k += 1,
    }
}

fn n_leaves(shape: &Shape) -> usize {
    let mut n = 0;
    shape.for_each_leaf(&mut |_, _| n += 1);
    n
}
