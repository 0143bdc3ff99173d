//! The operators of a program: what one strategy is about.
//!
//! An operator is one instruction; or, where a depth is given, the connected instructions whose metadata names (`op_name`) are the same
//! up to so many parts. Dims that its instructions treat alike are one *class*; a strategy cuts classes. What a loop carries is an
//! operator too, that hands its operands on.

use super::kinds::{OperatorKind, kind_of_group, kind_of_one};
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::ties::{FactorEffect, Tie, TieId, TieKind};
use crate::propagate_shardings::values::CutId;
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::names::FixedHash;
use hlo_ir::{CompId, InstId, Module};
use indexmap::IndexMap;
use smallvec::{SmallVec, smallvec};

/// An operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OperatorId(u32);
entity_impl!(OperatorId, "operator");

/// Index of a class of dims in its operator.
pub(super) type ClassIdx = u16;

/// A tensor that an operator takes or gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Port {
    pub value: CutId,
    /// The class of each dim.
    pub classes: SmallVec<[ClassIdx; 4]>,
    /// Of an input: the instructions that take it, with the number of the operand.
    pub users: SmallVec<[(InstId, u32); 1]>,
}

/// Dims that an operator treats alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DimClass {
    /// What a cut has to divide: the greatest common divisor of the sizes of its dims.
    pub granule: i64,
    /// What cutting it does.
    pub effect: FactorEffect,
    /// Whether some tensor has it twice.
    pub is_twice: bool,
}

impl DimClass {
    /// Why it cannot be cut.
    pub(super) fn why_whole(&self) -> Option<&'static str> {
        match self.effect {
            FactorEffect::Whole => Some("the operator needs it whole"),
            FactorEffect::Move => Some("its rows would go to other devices"),
            FactorEffect::Pass | FactorEffect::Reduce | FactorEffect::Halo => {
                self.is_twice.then_some("a tensor has it as two dims")
            }
        }
    }
}

/// An operator.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    /// Its instruction's name with `%`, or the metadata name that its instructions share.
    pub name: String,
    pub kind: OperatorKind,
    /// The instruction that it is named after: the only one, or the first.
    pub inst: InstId,
    pub inputs: Vec<Port>,
    /// What it computes, what only it uses included.
    pub outputs: Vec<Port>,
    /// In the order in which the tensors of a strategy have them.
    pub classes: Vec<DimClass>,
    /// Whether it is what a loop carries, or another place where values become others.
    pub is_edge: bool,
}

impl Operator {
    /// The tensors whose cuts a strategy says: the inputs, but of a broadcast its result, which has dims that no input has.
    pub(super) fn strategy_ports(&self) -> &[Port] {
        match self.kind {
            OperatorKind::Broadcast => &self.outputs,
            OperatorKind::MatMul
            | OperatorKind::BatchMatMul
            | OperatorKind::Conv2d
            | OperatorKind::Conv2dTranspose
            | OperatorKind::Elementwise
            | OperatorKind::PRelu
            | OperatorKind::Pooling
            | OperatorKind::BatchNorm
            | OperatorKind::Softmax
            | OperatorKind::SoftmaxCrossEntropy
            | OperatorKind::UnsortedSegment
            | OperatorKind::Gather
            | OperatorKind::Reshape
            | OperatorKind::Concat
            | OperatorKind::Other => &self.inputs,
        }
    }
}

/// All operators and who gives and takes each value.
pub(super) struct OperatorGraph {
    pub operators: PrimaryMap<OperatorId, Operator>,
    /// The operator that computes a value.
    producer: SecondaryMap<CutId, PackedOption<OperatorId>>,
    /// The operators that take it, with the input.
    takers: SecondaryMap<CutId, SmallVec<[(OperatorId, u16); 2]>>,
}

impl OperatorGraph {
    /// The operators of a module; `depth` 0: of one instruction each.
    pub(super) fn new(module: &Module, graph: &ShardingGraph, depth: usize) -> OperatorGraph {
        let mut out =
            OperatorGraph { operators: PrimaryMap::new(), producer: SecondaryMap::new(), takers: SecondaryMap::new() };
        for ties in grouped(module, graph, depth) {
            let Some(operator) = build(module, graph, &ties, depth) else { continue };
            let id = out.operators.push(operator);
            let operator = &out.operators[id];
            for port in &operator.outputs {
                out.producer[port.value] = Some(id).into();
            }
            for (k, port) in operator.inputs.iter().enumerate() {
                out.takers[port.value].push((id, k as u16));
            }
        }
        out
    }

    /// The operator that computes a value; none for parameters and for what no tensor shares a dim with.
    pub(super) fn producer(&self, value: CutId) -> Option<OperatorId> {
        self.producer[value].expand()
    }

    /// The operators that take a value, with the numbers of their inputs.
    pub(super) fn takers(&self, value: CutId) -> &[(OperatorId, u16)] {
        &self.takers[value]
    }

    /// Operators so that each comes after those that compute its inputs; where loops close circles, in program order.
    pub(super) fn topological(&self) -> Vec<OperatorId> {
        let mut n_waited: SecondaryMap<OperatorId, u32> = SecondaryMap::new();
        let giver = |port: &Port, id: OperatorId| self.producer(port.value).filter(|&other| other != id);
        for (id, operator) in &self.operators {
            n_waited[id] = match operator.is_edge {
                true => 0,
                false => operator.inputs.iter().filter(|port| giver(port, id).is_some()).count() as u32,
            };
        }
        let mut order: Vec<OperatorId> = self.operators.keys().filter(|&id| n_waited[id] == 0).collect();
        let mut is_done: SecondaryMap<OperatorId, bool> = SecondaryMap::new();
        let (mut at, mut next) = (0, 0);
        loop {
            while let Some(&id) = order.get(at) {
                at += 1;
                if std::mem::replace(&mut is_done[id], true) {
                    continue;
                }
                for port in &self.operators[id].outputs {
                    for &(taker, _) in self.takers(port.value).iter().filter(|(taker, _)| *taker != id) {
                        n_waited[taker] = n_waited[taker].saturating_sub(1);
                        if n_waited[taker] == 0 && !is_done[taker] {
                            order.push(taker);
                        }
                    }
                }
            }
            // A circle within a group of instructions: the first that is left.
            while next < self.operators.len() && is_done[OperatorId::new(next)] {
                next += 1;
            }
            if next == self.operators.len() {
                break;
            }
            order.push(OperatorId::new(next));
        }
        let mut seen: SecondaryMap<OperatorId, bool> = SecondaryMap::new();
        order.retain(|&id| !std::mem::replace(&mut seen[id], true));
        order
    }
}

/// Whether an instruction's tie is an operator; the others only say what values become.
fn is_operator(kind: TieKind) -> bool {
    match kind {
        TieKind::Elementwise
        | TieKind::Relabelling
        | TieKind::Edge
        | TieKind::Window
        | TieKind::Broadcast
        | TieKind::Transform
        | TieKind::Other
        | TieKind::Barrier(_) => true,
        TieKind::Exit | TieKind::CountedRows => false,
    }
}

/// The first `depth` parts of a metadata name.
fn prefix(name: &str, depth: usize) -> &str {
    let end = name.match_indices('/').nth(depth.saturating_sub(1)).map_or(name.len(), |(at, _)| at);
    name.get(..end).unwrap_or(name)
}

/// The ties of each operator, in program order of the first.
fn grouped(module: &Module, graph: &ShardingGraph, depth: usize) -> Vec<Vec<TieId>> {
    let ties: Vec<TieId> = graph.ties.iter().filter(|(_, tie)| is_operator(tie.kind)).map(|(id, _)| id).collect();
    if depth == 0 {
        return ties.into_iter().map(|id| vec![id]).collect();
    }
    let key = |id: TieId| -> Option<(CompId, &str)> {
        let tie = &graph.ties[id];
        let name = module.inst(tie.inst).marks.as_ref().and_then(|marks| marks.op_name());
        name.filter(|_| tie.kind != TieKind::Edge).map(|name| (module.inst(tie.inst).parent, prefix(name, depth)))
    };
    let mut given_by: SecondaryMap<CutId, PackedOption<TieId>> = SecondaryMap::new();
    for &id in &ties {
        let tie = &graph.ties[id];
        tie.tensors.iter().skip(tie.n_operands as usize).for_each(|tensor| given_by[tensor.value] = Some(id).into());
    }
    let mut forest: SecondaryMap<TieId, PackedOption<TieId>> = SecondaryMap::new();
    fn root(forest: &SecondaryMap<TieId, PackedOption<TieId>>, mut id: TieId) -> TieId {
        while let Some(above) = forest[id].expand() {
            id = above;
        }
        id
    }
    for &id in ties.iter().filter(|&&id| key(id).is_some()) {
        let tie = &graph.ties[id];
        for tensor in tie.tensors.iter().take(tie.n_operands as usize) {
            let Some(giver) = given_by[tensor.value].expand().filter(|&giver| key(giver) == key(id)) else { continue };
            let (a, b) = (root(&forest, giver), root(&forest, id));
            if a != b {
                // The earlier one stays on top, so that paths stay short in program order.
                forest[a.max(b)] = Some(a.min(b)).into();
            }
        }
    }
    let mut groups: IndexMap<TieId, Vec<TieId>, FixedHash> = IndexMap::default();
    for id in ties {
        groups.entry(root(&forest, id)).or_default().push(id);
    }
    groups.into_values().collect()
}

/// Which operand of its instruction each operand of a tie is.
fn operand_numbers(module: &Module, graph: &ShardingGraph, tie: &Tie) -> SmallVec<[u32; 3]> {
    let mut out = SmallVec::new();
    let mut next = 0;
    let operands = &module.inst(tie.inst).operands;
    for tensor in tie.tensors.iter().take(tie.n_operands as usize) {
        let found = (next..operands.len()).find(|&k| graph.of_leaf(operands[k], 0) == Some(tensor.value));
        let Some(k) = found else { break };
        out.push(k as u32);
        next = k + 1;
    }
    out
}

/// Dims of the tensors of one operator that are being joined into classes.
#[derive(Default)]
struct Joined {
    /// For each dim the one above it, or itself.
    above: Vec<usize>,
    granule: Vec<i64>,
    effect: Vec<FactorEffect>,
}

impl Joined {
    fn add(&mut self, size: i64) -> usize {
        self.above.push(self.above.len());
        self.granule.push(size);
        self.effect.push(FactorEffect::Pass);
        self.above.len() - 1
    }

    fn root(&self, mut node: usize) -> usize {
        while self.above[node] != node {
            node = self.above[node];
        }
        node
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        if one != other {
            let (low, high) = (one.min(other), one.max(other));
            self.above[high] = low;
            self.granule[low] = gcd(self.granule[low], self.granule[high]);
            self.effect[low] = stronger(self.effect[low], self.effect[high]);
        }
    }

    fn mark(&mut self, node: usize, size: i64, effect: FactorEffect) {
        let root = self.root(node);
        self.granule[root] = gcd(self.granule[root], size);
        self.effect[root] = stronger(self.effect[root], effect);
    }
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The effect that says more against a cut.
fn stronger(a: FactorEffect, b: FactorEffect) -> FactorEffect {
    let rank = |effect: FactorEffect| match effect {
        FactorEffect::Pass => 0,
        FactorEffect::Reduce => 1,
        FactorEffect::Halo => 2,
        FactorEffect::Move => 3,
        FactorEffect::Whole => 4,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// A port with the nodes of its dims.
struct OpenPort {
    port: Port,
    nodes: SmallVec<[usize; 4]>,
    last_tie: usize,
}

/// The ports of an operator under construction.
#[derive(Default)]
struct Ports {
    joined: Joined,
    inputs: Vec<OpenPort>,
    outputs: Vec<OpenPort>,
}

impl Ports {
    fn new_port(&mut self, graph: &ShardingGraph, value: CutId, last_tie: usize) -> OpenPort {
        let nodes = graph.values[value].dims.iter().map(|dim| self.joined.add(dim.size)).collect();
        OpenPort { port: Port { value, classes: smallvec![], users: smallvec![] }, nodes, last_tie }
    }

    /// The nodes of the dims of an operand: of what the operator computed, or of an input. A value that an instruction takes twice is
    /// two inputs.
    fn operand(
        &mut self,
        graph: &ShardingGraph,
        (value, user): (CutId, Option<(InstId, u32)>),
        tie: usize,
    ) -> SmallVec<[usize; 4]> {
        if let Some(made) = self.outputs.iter().find(|open| open.port.value == value) {
            return made.nodes.clone();
        }
        let known = self.inputs.iter().position(|open| open.port.value == value && open.last_tie != tie);
        let at = match known {
            Some(at) => at,
            None => {
                let open = self.new_port(graph, value, tie);
                self.inputs.push(open);
                self.inputs.len() - 1
            }
        };
        let open = &mut self.inputs[at];
        open.last_tie = tie;
        open.port.users.extend(user);
        open.nodes.clone()
    }
}

fn build(module: &Module, graph: &ShardingGraph, ties: &[TieId], depth: usize) -> Option<Operator> {
    let mut ports = Ports::default();
    for (k, &id) in ties.iter().enumerate() {
        let tie = &graph.ties[id];
        let numbers = match tie.kind {
            TieKind::Edge => SmallVec::new(),
            TieKind::Elementwise
            | TieKind::Relabelling
            | TieKind::Exit
            | TieKind::Window
            | TieKind::Broadcast
            | TieKind::Transform
            | TieKind::CountedRows
            | TieKind::Other
            | TieKind::Barrier(_) => operand_numbers(module, graph, tie),
        };
        let mut nodes: Vec<SmallVec<[usize; 4]>> = Vec::with_capacity(tie.tensors.len());
        for (t, tensor) in tie.tensors.iter().enumerate() {
            nodes.push(if tie.is_operand(t) {
                ports.operand(graph, (tensor.value, numbers.get(t).map(|&n| (tie.inst, n))), k)
            } else {
                let open = ports.new_port(graph, tensor.value, k);
                let of_dims = open.nodes.clone();
                ports.outputs.push(open);
                of_dims
            });
        }
        join_dims(&mut ports.joined, tie, &nodes);
    }
    let &first = ties.first()?;
    let tie = &graph.ties[first];
    let kind = match ties {
        [only] => kind_of_one(module, &graph.ties[*only]),
        _ => kind_of_group(module, &mut ties.iter().map(|&id| graph.ties[id].inst)),
    };
    let name = match module.inst(tie.inst).marks.as_ref().and_then(|marks| marks.op_name()) {
        Some(name) if depth > 0 && tie.kind != TieKind::Edge => prefix(name, depth).to_string(),
        Some(_) | None => format!("%{}", module.inst_name(tie.inst)),
    };
    let mut operator = Operator {
        name,
        kind,
        inst: tie.inst,
        inputs: Vec::new(),
        outputs: Vec::new(),
        classes: Vec::new(),
        is_edge: tie.kind == TieKind::Edge,
    };
    number_classes(&mut operator, ports);
    Some(operator)
}

/// Joins the dims that a tie's rule gives the same leading factor.
fn join_dims(joined: &mut Joined, tie: &Tie, nodes: &[SmallVec<[usize; 4]>]) {
    let Some(rule) = &tie.rule else {
        let Some((first, rest)) = nodes.split_first() else { return };
        for (&one, &other) in rest.iter().flat_map(|other| first.iter().zip(other)) {
            joined.join(one, other);
        }
        return;
    };
    let mut first_of: Vec<Option<usize>> = vec![None; rule.factors.len()];
    for (dims, of_nodes) in rule.tensors.iter().zip(nodes) {
        for (factors, &node) in dims.iter().zip(of_nodes) {
            let is_wide = |f: &&u16| rule.factors.get(usize::from(**f)).is_some_and(|factor| factor.size > 1);
            let Some(&leading) = factors.iter().find(is_wide).or(factors.first()) else { continue };
            let Some(factor) = rule.factors.get(usize::from(leading)) else { continue };
            joined.mark(node, factor.size, factor.effect);
            match first_of[usize::from(leading)] {
                Some(first) => joined.join(first, node),
                None => first_of[usize::from(leading)] = Some(node),
            }
        }
    }
}

/// Numbers the classes in the order in which a strategy names their dims.
fn number_classes(operator: &mut Operator, ports: Ports) {
    let Ports { joined, inputs, outputs } = ports;
    let mut numbers: IndexMap<usize, ClassIdx, FixedHash> = IndexMap::default();
    let is_by_result = operator.kind == OperatorKind::Broadcast;
    let (first, second) = if is_by_result { (&outputs, &inputs) } else { (&inputs, &outputs) };
    for node in first.iter().chain(second).flat_map(|open| &open.nodes) {
        let next = numbers.len() as ClassIdx;
        numbers.entry(joined.root(*node)).or_insert(next);
    }
    operator.classes = numbers
        .keys()
        .map(|&root| DimClass { granule: joined.granule[root], effect: joined.effect[root], is_twice: false })
        .collect();
    let mut close = |open: OpenPort| {
        let mut port = open.port;
        port.classes = open.nodes.iter().map(|&node| numbers[&joined.root(node)]).collect();
        for (d, class) in port.classes.iter().enumerate() {
            if port.classes[..d].contains(class) {
                operator.classes[usize::from(*class)].is_twice = true;
            }
        }
        port
    };
    let inputs: Vec<Port> = inputs.into_iter().map(&mut close).collect();
    let outputs: Vec<Port> = outputs.into_iter().map(&mut close).collect();
    (operator.inputs, operator.outputs) = (inputs, outputs);
}
