//! Where a scalar comes from: an expression over constants and loop-carried leaves.
//!
//! A *place* is a leaf of an instruction in a *frame*: a computation, either by itself or as entered from a known call
//! site. Walking back from a place goes through tuples, copies and reshapes, into called and fused computations and out
//! of them again, and past loops that carry a leaf unchanged. What remains is a constant, a leaf that a loop
//! changes ([`Expr::State`]), an op on such scalars, or something not followed.
//!
//! Out of a computation with several call sites a value is followed only if all of them give the same constant.

use crate::scalar::{Element, ScalarOp, constant, is_reshaping, single};
use crate::values::{CallSite, CallSites, InstLeaf, LeafSource, Through, argument, condition_and_body, source_of_leaf};
use cranelift_entity::{PrimaryMap, entity_impl};
use hashbrown::HashMap;
use hlo_ir::attrs::Attrs;
use hlo_ir::op::CalleeEntry;
use hlo_ir::{CompId, InstId, Module};
use smallvec::SmallVec;

/// Nested calls, loops or operands that are followed; what lies deeper is unknown.
const MAX_DEPTH: usize = 128;
/// Instructions through which one leaf is traced back before it counts as unknown.
const MAX_STEPS: usize = 1 << 17;
/// Expression nodes of one module; further ones are unknown.
const MAX_NODES: usize = 1 << 20;
/// Call sites of one computation that are compared.
const MAX_SITES: usize = 32;

/// An expression.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ExprId(u32);
entity_impl!(ExprId, "node");

/// One expression node; arguments have smaller ids.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    /// The same element always.
    Known(Element),
    /// A leaf that a loop changes from iteration to iteration: its value as an iteration starts.
    State(InstId, u32),
    /// An op.
    Op(ScalarOp, SmallVec<[ExprId; 3]>),
    /// Not followed.
    Unknown,
}

/// A computation by itself, or as entered through one call site.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CallFrameId(u32);
entity_impl!(CallFrameId, "frame");

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum CallFrame {
    /// However it is entered.
    Base(CompId),
    /// From a call site.
    Entered { site: CallSite, parent: CallFrameId },
}

/// A leaf of an instruction's value in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FrameLeaf {
    frame: CallFrameId,
    leaf: InstLeaf,
}

impl FrameLeaf {
    fn new(frame: CallFrameId, inst: InstId, leaf_idx: u32) -> FrameLeaf {
        FrameLeaf { frame, leaf: InstLeaf::new(inst, leaf_idx) }
    }
}

/// Where a trace back ends.
enum TraceEnd {
    Value(FrameLeaf),
    State(InstId, u32),
    /// A parameter's leaf of a computation with several call sites.
    Shared {
        comp: CompId,
        number: usize,
        leaf: u32,
    },
    Unknown,
}

/// Makes expressions of one module.
pub(super) struct Tracer<'m> {
    pub(super) module: &'m Module,
    pub(super) nodes: PrimaryMap<ExprId, Expr>,
    /// Call sites in computations that the entry reaches.
    pub(super) sites: CallSites,
    frames: PrimaryMap<CallFrameId, CallFrame>,
    frame_ids: HashMap<CallFrame, CallFrameId>,
    of_leaf: HashMap<FrameLeaf, ExprId>,
    of_state: HashMap<(InstId, u32), ExprId>,
    next: HashMap<(InstId, u32), ExprId>,
    is_invariant: HashMap<(InstId, u32), bool>,
    unknown: ExprId,
}

impl<'m> Tracer<'m> {
    /// A tracer over `reached`, the computations that the entry reaches.
    pub(super) fn new(module: &'m Module, reached: &[CompId]) -> Tracer<'m> {
        let mut nodes = PrimaryMap::new();
        let unknown = nodes.push(Expr::Unknown);
        Tracer {
            module,
            nodes,
            sites: CallSites::find(module, reached.iter().copied()),
            frames: PrimaryMap::new(),
            frame_ids: HashMap::new(),
            of_leaf: HashMap::new(),
            of_state: HashMap::new(),
            next: HashMap::new(),
            is_invariant: HashMap::new(),
            unknown,
        }
    }

    /// The value of an array of one element.
    pub(super) fn value(&mut self, inst: InstId) -> ExprId {
        let frame = self.frame_of(inst);
        self.expr(FrameLeaf::new(frame, inst, 0), 0)
    }

    /// Whether a loop runs another iteration, by its state.
    pub(super) fn condition(&mut self, site: InstId) -> ExprId {
        match condition_and_body(self.module, site) {
            Some((condition, _)) => self.root(CallSite { inst: site, slot: 0 }, condition, 0),
            None => self.unknown,
        }
    }

    /// A state's value at the end of an iteration.
    pub(super) fn next(&mut self, site: InstId, leaf: u32) -> ExprId {
        if let Some(&node) = self.next.get(&(site, leaf)) {
            return node;
        }
        let node = match condition_and_body(self.module, site) {
            Some((_, body)) => self.root(CallSite::of_body(site), body, leaf),
            None => self.unknown,
        };
        self.next.insert((site, leaf), node);
        node
    }

    /// A state's value before the first iteration.
    pub(super) fn init(&mut self, site: InstId, leaf: u32) -> ExprId {
        let Some(&inst) = self.module.inst(site).operands.first() else { return self.unknown };
        let frame = self.frame_of(site);
        self.expr(FrameLeaf::new(frame, inst, leaf), 0)
    }

    fn root(&mut self, site: CallSite, comp: CompId, leaf: u32) -> ExprId {
        let parent = self.frame_of(site.inst);
        let frame = self.frame(CallFrame::Entered { site, parent });
        match self.module.comp(comp).root.expand() {
            Some(inst) => self.expr(FrameLeaf::new(frame, inst, leaf), 0),
            None => self.unknown,
        }
    }

    /// The frame of the computation that an instruction stands in, however it is entered.
    fn frame_of(&mut self, inst: InstId) -> CallFrameId {
        self.frame(CallFrame::Base(self.module.inst(inst).parent))
    }

    fn frame(&mut self, frame: CallFrame) -> CallFrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = self.frames.push(frame);
        self.frame_ids.insert(frame, id);
        id
    }

    fn push(&mut self, node: Expr) -> ExprId {
        if self.nodes.len() >= MAX_NODES { self.unknown } else { self.nodes.push(node) }
    }

    fn expr(&mut self, at: FrameLeaf, depth: usize) -> ExprId {
        if depth > MAX_DEPTH {
            return self.unknown;
        }
        match self.trace_back(at, None, 0) {
            TraceEnd::Unknown => self.unknown,
            TraceEnd::State(site, leaf) => {
                if let Some(&node) = self.of_state.get(&(site, leaf)) {
                    return node;
                }
                let node = self.push(Expr::State(site, leaf));
                self.of_state.insert((site, leaf), node);
                node
            }
            TraceEnd::Shared { comp, number, leaf } => self.agreed(comp, number, leaf, depth),
            TraceEnd::Value(at) => {
                if let Some(&node) = self.of_leaf.get(&at) {
                    return node;
                }
                let node = self.build(at, depth);
                self.of_leaf.insert(at, node);
                node
            }
        }
    }

    /// The node of an instruction that is neither bookkeeping nor a parameter.
    fn build(&mut self, at: FrameLeaf, depth: usize) -> ExprId {
        let module = self.module;
        if let Some(element) = constant(module, at.leaf.inst) {
            return self.push(Expr::Known(element));
        }
        let Some(op) = ScalarOp::of(module, at.leaf.inst) else { return self.unknown };
        let mut args: SmallVec<[ExprId; 3]> = SmallVec::new();
        let mut known: SmallVec<[Element; 3]> = SmallVec::new();
        for &inst in &module.inst(at.leaf.inst).operands {
            if single(module, inst).is_none() {
                return self.unknown;
            }
            let arg = self.expr(FrameLeaf::new(at.frame, inst, 0), depth + 1);
            match self.nodes[arg] {
                Expr::Unknown => return self.unknown,
                Expr::Known(element) => known.push(element),
                Expr::State(..) | Expr::Op(..) => {}
            }
            args.push(arg);
        }
        if known.len() == args.len() {
            return match op.apply(&known) {
                Some(element) => self.push(Expr::Known(element)),
                None => self.unknown,
            };
        }
        self.push(Expr::Op(op, args))
    }

    /// The constant that all call sites give for a parameter's leaf.
    fn agreed(&mut self, comp: CompId, number: usize, leaf: u32, depth: usize) -> ExprId {
        let module = self.module;
        let n_sites = self.sites.of(comp).len();
        if n_sites > MAX_SITES {
            return self.unknown;
        }
        let mut first: Option<(ExprId, Element)> = None;
        for i in 0..n_sites {
            let site = self.sites.of(comp)[i];
            let parent = self.frame_of(site.inst);
            let Some(inst) = argument(module, site, number) else { return self.unknown };
            if is_loop(module, site) && !self.carries(site.inst, leaf, 0) {
                return self.unknown;
            }
            let node = self.expr(FrameLeaf::new(parent, inst, leaf), depth + 1);
            match (&self.nodes[node], first) {
                (Expr::Known(element), None) => first = Some((node, *element)),
                (Expr::Known(element), Some((_, other))) if *element == other => {}
                (Expr::Known(_) | Expr::State(..) | Expr::Op(..) | Expr::Unknown, _) => return self.unknown,
            }
        }
        first.map_or(self.unknown, |(node, _)| node)
    }

    /// Whether a loop carries a leaf unchanged.
    fn carries(&mut self, site: InstId, leaf: u32, depth: usize) -> bool {
        if let Some(&known) = self.is_invariant.get(&(site, leaf)) {
            return known;
        }
        let body = condition_and_body(self.module, site).map(|(_, body)| body);
        let Some(inst) = body.and_then(|body| self.module.comp(body).root.expand()) else { return false };
        if depth > MAX_DEPTH {
            return false;
        }
        let parent = self.frame_of(site);
        let frame = self.frame(CallFrame::Entered { site: CallSite::of_body(site), parent });
        let end = self.trace_back(FrameLeaf::new(frame, inst, leaf), Some(site), depth + 1);
        let answer = matches!(end, TraceEnd::State(s, l) if s == site && l == leaf);
        self.is_invariant.insert((site, leaf), answer);
        answer
    }

    /// Goes back through everything that only hands a leaf on. A leaf that `stop` carries is not followed out of it.
    fn trace_back(&mut self, mut at: FrameLeaf, stop: Option<InstId>, depth: usize) -> TraceEnd {
        let module = self.module;
        for _ in 0..MAX_STEPS {
            let InstLeaf { inst, leaf_idx } = at.leaf;
            let first_operand = module.inst(inst).operands.first().copied();
            match source_of_leaf(module, at.leaf, Through::COPIES) {
                LeafSource::Operand(leaf) => at.leaf = leaf,
                LeafSource::Callees(CalleeEntry::Call) => {
                    let callee = module.called(inst).first().and_then(|&callee| module.comp(callee).root.expand());
                    let Some(root) = callee else { return TraceEnd::Unknown };
                    let site = CallSite { inst, slot: 0 };
                    let frame = self.frame(CallFrame::Entered { site, parent: at.frame });
                    at = FrameLeaf::new(frame, root, leaf_idx);
                }
                LeafSource::Callees(CalleeEntry::Loop) if self.carries(inst, leaf_idx, depth) => match first_operand {
                    Some(init) => at.leaf.inst = init,
                    None => return TraceEnd::Unknown,
                },
                LeafSource::Argument => match self.out_of(at, stop, depth) {
                    Ok(outer) => at = outer,
                    Err(end) => return end,
                },
                LeafSource::Callees(CalleeEntry::Loop | CalleeEntry::Branches) | LeafSource::Computed => {
                    match first_operand {
                        Some(operand) if is_reshaping(module, inst) => at.leaf.inst = operand,
                        Some(_) | None => return TraceEnd::Value(at),
                    }
                }
            }
        }
        TraceEnd::Unknown
    }

    /// From a parameter to what the call site gives for it.
    fn out_of(&mut self, at: FrameLeaf, stop: Option<InstId>, depth: usize) -> Result<FrameLeaf, TraceEnd> {
        let InstLeaf { inst, leaf_idx } = at.leaf;
        let Attrs::Parameter(attrs) = &self.module.inst(inst).attrs else { return Err(TraceEnd::Unknown) };
        let number = usize::try_from(attrs.number).map_err(|_| TraceEnd::Unknown)?;
        let (site, parent) = match self.frames[at.frame] {
            CallFrame::Entered { site, parent } => (site, parent),
            CallFrame::Base(comp) => match *self.sites.of(comp) {
                [] => return Err(TraceEnd::Unknown),
                [site] => (site, self.frame_of(site.inst)),
                [_, _, ..] => return Err(TraceEnd::Shared { comp, number, leaf: leaf_idx }),
            },
        };
        let is_loop = is_loop(self.module, site);
        if is_loop && (stop == Some(site.inst) || !self.carries(site.inst, leaf_idx, depth)) {
            return Err(TraceEnd::State(site.inst, leaf_idx));
        }
        let argument = argument(self.module, site, number).ok_or(TraceEnd::Unknown)?;
        Ok(FrameLeaf::new(parent, argument, leaf_idx))
    }
}

fn is_loop(module: &Module, site: CallSite) -> bool {
    module.inst(site.inst).opcode.row().flow.entry() == Some(CalleeEntry::Loop)
}
