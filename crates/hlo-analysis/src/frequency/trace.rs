//! Where a scalar comes from: an expression over constants and loop-carried leaves.
//!
//! A *place* is a leaf of an instruction in a *frame*: a computation, either by itself or as entered from a known call
//! site. Walking back from a place goes through tuples, copies and reshapes, into called and fused computations and out
//! of them again, and past loops that carry a leaf unchanged. What remains is a constant, a leaf that a loop
//! changes ([`Node::State`]), an op on such scalars, or something not followed.
//!
//! Out of a computation with several call sites a value is followed only if all of them give the same constant.

use super::scalar::{Element, ScalarOp, constant, is_reshaping, single};
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use hashbrown::HashMap;
use hlo_ir::attrs::Attrs;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module};
use smallvec::SmallVec;

/// Nested calls, loops or operands that are followed; what lies deeper is unknown.
const MAX_DEPTH: usize = 128;
/// Instructions that one walk passes before it gives up.
const MAX_STEPS: usize = 1 << 17;
/// Expression nodes of one module; further ones are unknown.
const MAX_NODES: usize = 1 << 20;
/// Call sites of one computation that are compared.
const MAX_SITES: usize = 32;

/// An expression.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(u32);
entity_impl!(NodeId, "node");

/// One expression node; arguments have smaller ids.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// The same element always.
    Known(Element),
    /// A leaf that a loop changes from iteration to iteration: its value as an iteration starts.
    State(InstId, u32),
    /// An op.
    Op(ScalarOp, SmallVec<[NodeId; 3]>),
    /// Not followed.
    Unknown,
}

/// A computation by itself, or as entered through one call site.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FrameId(u32);
entity_impl!(FrameId, "frame");

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Frame {
    /// However it is entered.
    Base(CompId),
    /// From a call site, as its `slot`-th called computation.
    Entered { site: InstId, slot: u32, parent: FrameId },
}

/// A leaf of an instruction's value in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    frame: FrameId,
    inst: InstId,
    leaf: u32,
}

/// Where a walk back ends.
enum Origin {
    Value(Place),
    State(InstId, u32),
    /// A parameter's leaf of a computation with several call sites.
    Shared {
        comp: CompId,
        number: usize,
        leaf: u32,
    },
    Unknown,
}

/// Call sites of a computation: the instruction, and which of its called computations this is.
pub(super) type Sites = SmallVec<[(InstId, u32); 1]>;

/// Makes expressions of one module.
pub(super) struct Tracer<'m> {
    pub(super) module: &'m Module,
    pub(super) nodes: PrimaryMap<NodeId, Node>,
    /// Call sites in computations that the entry reaches.
    pub(super) sites: SecondaryMap<CompId, Sites>,
    frames: PrimaryMap<FrameId, Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    of_place: HashMap<Place, NodeId>,
    of_state: HashMap<(InstId, u32), NodeId>,
    next: HashMap<(InstId, u32), NodeId>,
    is_invariant: HashMap<(InstId, u32), bool>,
    unknown: NodeId,
}

/// Place of the body among a loop's called computations; the condition comes first.
const BODY_SLOT: u32 = 1;

impl<'m> Tracer<'m> {
    /// A tracer over `reached`, the computations that the entry reaches.
    pub(super) fn new(module: &'m Module, reached: &[CompId]) -> Tracer<'m> {
        let mut sites: SecondaryMap<CompId, Sites> = SecondaryMap::new();
        for &comp in reached {
            for &inst in &module.comp(comp).insts {
                for (slot, callee) in module.called(inst).into_iter().enumerate() {
                    sites[callee].push((inst, slot as u32));
                }
            }
        }
        let mut nodes = PrimaryMap::new();
        let unknown = nodes.push(Node::Unknown);
        Tracer {
            module,
            nodes,
            sites,
            frames: PrimaryMap::new(),
            frame_ids: HashMap::new(),
            of_place: HashMap::new(),
            of_state: HashMap::new(),
            next: HashMap::new(),
            is_invariant: HashMap::new(),
            unknown,
        }
    }

    /// The value of an array of one element.
    pub(super) fn value(&mut self, inst: InstId) -> NodeId {
        let frame = self.frame(Frame::Base(self.module.inst(inst).parent));
        self.expr(Place { frame, inst, leaf: 0 }, 0)
    }

    /// Whether a loop runs another iteration, by its state.
    pub(super) fn condition(&mut self, site: InstId) -> NodeId {
        let Attrs::While(attrs) = &self.module.inst(site).attrs else { return self.unknown };
        let Some(comp) = attrs.condition else { return self.unknown };
        self.root(site, 0, comp, 0)
    }

    /// A state's value at the end of an iteration.
    pub(super) fn next(&mut self, site: InstId, leaf: u32) -> NodeId {
        if let Some(&node) = self.next.get(&(site, leaf)) {
            return node;
        }
        let node = match &self.module.inst(site).attrs {
            Attrs::While(attrs) => match attrs.body {
                Some(body) => self.root(site, BODY_SLOT, body, leaf),
                None => self.unknown,
            },
            _ => self.unknown,
        };
        self.next.insert((site, leaf), node);
        node
    }

    /// A state's value before the first iteration.
    pub(super) fn init(&mut self, site: InstId, leaf: u32) -> NodeId {
        let Some(&inst) = self.module.inst(site).operands.first() else { return self.unknown };
        let frame = self.frame(Frame::Base(self.module.inst(site).parent));
        self.expr(Place { frame, inst, leaf }, 0)
    }

    fn root(&mut self, site: InstId, slot: u32, comp: CompId, leaf: u32) -> NodeId {
        let parent = self.frame(Frame::Base(self.module.inst(site).parent));
        let frame = self.frame(Frame::Entered { site, slot, parent });
        match self.module.comp(comp).root.expand() {
            Some(inst) => self.expr(Place { frame, inst, leaf }, 0),
            None => self.unknown,
        }
    }

    fn frame(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = self.frames.push(frame);
        self.frame_ids.insert(frame, id);
        id
    }

    fn push(&mut self, node: Node) -> NodeId {
        if self.nodes.len() >= MAX_NODES { self.unknown } else { self.nodes.push(node) }
    }

    fn expr(&mut self, place: Place, depth: usize) -> NodeId {
        if depth > MAX_DEPTH {
            return self.unknown;
        }
        match self.origin(place, None, 0) {
            Origin::Unknown => self.unknown,
            Origin::State(site, leaf) => {
                if let Some(&node) = self.of_state.get(&(site, leaf)) {
                    return node;
                }
                let node = self.push(Node::State(site, leaf));
                self.of_state.insert((site, leaf), node);
                node
            }
            Origin::Shared { comp, number, leaf } => self.agreed(comp, number, leaf, depth),
            Origin::Value(place) => {
                if let Some(&node) = self.of_place.get(&place) {
                    return node;
                }
                let node = self.build(place, depth);
                self.of_place.insert(place, node);
                node
            }
        }
    }

    /// The node of an instruction that is neither bookkeeping nor a parameter.
    fn build(&mut self, place: Place, depth: usize) -> NodeId {
        let module = self.module;
        if let Some(element) = constant(module, place.inst) {
            return self.push(Node::Known(element));
        }
        let Some(op) = ScalarOp::of(module, place.inst) else { return self.unknown };
        let mut args: SmallVec<[NodeId; 3]> = SmallVec::new();
        let mut known: SmallVec<[Element; 3]> = SmallVec::new();
        for &inst in &module.inst(place.inst).operands {
            if single(module, inst).is_none() {
                return self.unknown;
            }
            let arg = self.expr(Place { inst, leaf: 0, ..place }, depth + 1);
            match self.nodes[arg] {
                Node::Unknown => return self.unknown,
                Node::Known(element) => known.push(element),
                Node::State(..) | Node::Op(..) => {}
            }
            args.push(arg);
        }
        if known.len() == args.len() {
            return match op.apply(&known) {
                Some(element) => self.push(Node::Known(element)),
                None => self.unknown,
            };
        }
        self.push(Node::Op(op, args))
    }

    /// The constant that all call sites give for a parameter's leaf.
    fn agreed(&mut self, comp: CompId, number: usize, leaf: u32, depth: usize) -> NodeId {
        let sites = self.sites[comp].clone();
        if sites.len() > MAX_SITES {
            return self.unknown;
        }
        let mut first: Option<(NodeId, Element)> = None;
        for (site, slot) in sites {
            let parent = self.frame(Frame::Base(self.module.inst(site).parent));
            let Some((inst, leaf)) = self.argument(site, slot, number, leaf) else { return self.unknown };
            if self.module.inst(site).opcode.row().flow == Flow::While && !self.carries(site, leaf, 0) {
                return self.unknown;
            }
            let node = self.expr(Place { frame: parent, inst, leaf }, depth + 1);
            match (&self.nodes[node], first) {
                (Node::Known(element), None) => first = Some((node, *element)),
                (Node::Known(element), Some((_, other))) if *element == other => {}
                (Node::Known(_) | Node::State(..) | Node::Op(..) | Node::Unknown, _) => return self.unknown,
            }
        }
        first.map_or(self.unknown, |(node, _)| node)
    }

    /// The operand, and its leaf, that a call site gives for a parameter's leaf.
    fn argument(&self, site: InstId, slot: u32, number: usize, leaf: u32) -> Option<(InstId, u32)> {
        let instruction = self.module.inst(site);
        let operand = instruction.opcode.row().flow.entry()?.operand(slot as usize, number);
        Some((*instruction.operands.get(operand)?, leaf))
    }

    /// Whether a loop carries a leaf unchanged.
    fn carries(&mut self, site: InstId, leaf: u32, depth: usize) -> bool {
        if let Some(&known) = self.is_invariant.get(&(site, leaf)) {
            return known;
        }
        let Attrs::While(attrs) = &self.module.inst(site).attrs else { return false };
        let Some(inst) = attrs.body.and_then(|body| self.module.comp(body).root.expand()) else { return false };
        if depth > MAX_DEPTH {
            return false;
        }
        let parent = self.frame(Frame::Base(self.module.inst(site).parent));
        let frame = self.frame(Frame::Entered { site, slot: BODY_SLOT, parent });
        let origin = self.origin(Place { frame, inst, leaf }, Some(site), depth + 1);
        let answer = matches!(origin, Origin::State(s, l) if s == site && l == leaf);
        self.is_invariant.insert((site, leaf), answer);
        answer
    }

    /// Walks back through everything that only hands a leaf on. A leaf that `stop` carries is not followed out of it.
    fn origin(&mut self, mut place: Place, stop: Option<InstId>, depth: usize) -> Origin {
        let module = self.module;
        for _ in 0..MAX_STEPS {
            let instruction = module.inst(place.inst);
            match instruction.opcode.row().flow {
                Flow::Tuple => {
                    let mut leaf = place.leaf as usize;
                    let found = instruction.operands.iter().find(|&&operand| {
                        let n = module.shape(operand).n_leaves();
                        let is_here = leaf < n;
                        leaf -= if is_here { 0 } else { n };
                        is_here
                    });
                    let Some(&inst) = found else { return Origin::Unknown };
                    place = Place { inst, leaf: leaf as u32, ..place };
                }
                Flow::GetTupleElement => {
                    let (Attrs::TupleIndex(attrs), Some(&inst)) = (&instruction.attrs, instruction.operands.first())
                    else {
                        return Origin::Unknown;
                    };
                    let index = usize::try_from(attrs.index).unwrap_or(usize::MAX);
                    let before = module.shapes.element_leaves(module.inst(inst).shape, index).start;
                    place = Place { inst, leaf: place.leaf + before as u32, ..place };
                }
                Flow::Identity => match instruction.operands.first() {
                    Some(&inst) => place.inst = inst,
                    None => return Origin::Unknown,
                },
                Flow::Call => {
                    let callee =
                        module.called(place.inst).first().and_then(|&callee| module.comp(callee).root.expand());
                    let Some(inst) = callee else { return Origin::Unknown };
                    let frame = self.frame(Frame::Entered { site: place.inst, slot: 0, parent: place.frame });
                    place = Place { frame, inst, ..place };
                }
                Flow::While if self.carries(place.inst, place.leaf, depth) => match instruction.operands.first() {
                    Some(&inst) => place.inst = inst,
                    None => return Origin::Unknown,
                },
                Flow::Parameter => match self.out_of(place, stop, depth) {
                    Ok(outer) => place = outer,
                    Err(origin) => return origin,
                },
                _ => match instruction.operands.first() {
                    Some(&inst) if is_reshaping(module, place.inst) => place.inst = inst,
                    Some(_) | None => return Origin::Value(place),
                },
            }
        }
        Origin::Unknown
    }

    /// From a parameter to what the call site gives for it.
    fn out_of(&mut self, place: Place, stop: Option<InstId>, depth: usize) -> Result<Place, Origin> {
        let Attrs::Parameter(attrs) = &self.module.inst(place.inst).attrs else { return Err(Origin::Unknown) };
        let number = usize::try_from(attrs.number).map_err(|_| Origin::Unknown)?;
        let (site, slot, parent) = match self.frames[place.frame] {
            Frame::Entered { site, slot, parent } => (site, slot, parent),
            Frame::Base(comp) => match self.sites[comp].as_slice() {
                [] => return Err(Origin::Unknown),
                &[(site, slot)] => (site, slot, self.frame(Frame::Base(self.module.inst(site).parent))),
                [_, _, ..] => return Err(Origin::Shared { comp, number, leaf: place.leaf }),
            },
        };
        let is_state = self.module.inst(site).opcode.row().flow == Flow::While
            && (stop == Some(site) || !self.carries(site, place.leaf, depth));
        if is_state {
            return Err(Origin::State(site, place.leaf));
        }
        let (inst, leaf) = self.argument(site, slot, number, place.leaf).ok_or(Origin::Unknown)?;
        Ok(Place { frame: parent, inst, leaf })
    }
}
