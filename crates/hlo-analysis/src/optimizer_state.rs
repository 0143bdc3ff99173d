//! Which of a training step's parameters are the state of its optimizer.
//!
//! A step takes weights, optimizer state, statistics, averages, counters and a batch, and returns the next value of most of them.
//! Optimizer state is what only the next step reads: it may lie in shards between steps, and nobody else notices. What evaluation,
//! logging or a checkpoint of the model reads is none. This is decided from the data flow alone, never from sizes or times:
//!
//! | the leaf | role |
//! |---|---|
//! | has no next value that is known | [`Input`](LeafRole::Input) |
//! | the loss reads it: it flows into a value that differs between devices and is then summed over them | [`Weight`](LeafRole::Weight) |
//! | a weight's next value is computed from it, in this step or in a later one, and whatever else is computed from it is a weight's next value first, the next value of another such leaf, or smaller than [`SMALL_BYTES`] | [`State`](LeafRole::State) |
//! | is returned as it came, and nothing reads it | [`Carried`](LeafRole::Carried) |
//! | no weight's next value is computed from it: batch statistics, averages of weights, metrics | [`FeedsNoWeight`](LeafRole::FeedsNoWeight) |
//! | a result that stays whole is computed from it | [`ReadByResult`](LeafRole::ReadByResult) |
//!
//! The tree of the parameters' names then says more ([`settle_by_names`]): what is only carried is state where it lies in the
//! optimizer's own part of the tree, and what lies beside the weights is none where the optimizer has a part of its own.
//!
//! **Algorithm.** Four searches backward through the graph of values: from the sums of what differs (what the loss reads), from the
//! weights' next values and those of state that feeds them (what feeds them in this step or a later one), and from results that stay whole (what those read). The next value of a parameter ends a
//! path where it says so above; in a loop of steps it is what the loop carries. Leaves that drop out make their next values results that stay
//! whole, until nothing changes.
//!
//! Cost: linear in the uses of the module's values.

use crate::annotations::{ParamLeaf, entry_leaves};
use crate::replication::Replication;
use crate::values::{Origin, User, ValueId, Values};
use cranelift_entity::SecondaryMap;
use hlo_ir::op::Effects;
use hlo_ir::{ArrayShape, InstId, Module, Opcode};
use std::collections::BTreeMap;

/// Results below this may be computed from optimizer state without making it something else: a norm that is logged.
pub const SMALL_BYTES: u64 = 16 << 10;

/// The role of a leaf of the entry's parameters in a training step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafRole {
    /// The loss reads it.
    Weight,
    /// No result is known to be its next value: a batch, a rate, a frozen weight.
    Input,
    /// Optimizer state.
    State,
    /// It is returned as it came, and nothing else reads it.
    Carried,
    /// It has a next value, and no weight's next value is computed from it.
    FeedsNoWeight,
    /// It would be state, and a result that stays whole is computed from it, by its flat number.
    ReadByResult(usize),
    /// Its next value is a constant: a sum that begins anew.
    Reset,
    /// It would be state, and its own update reads it otherwise than element by element.
    MaybeWeight,
    /// It would be state, and it lies beside weights while the optimizer has a part of the tree of its own.
    BesideWeights,
}

impl LeafRole {
    /// The role as a word, for other programs.
    pub fn name(self) -> &'static str {
        match self {
            LeafRole::Weight => "weight",
            LeafRole::Input => "input",
            LeafRole::State => "state",
            LeafRole::Carried => "carried",
            LeafRole::FeedsNoWeight => "feeds-no-weight",
            LeafRole::ReadByResult(_) => "read-by-result",
            LeafRole::Reset => "reset",
            LeafRole::MaybeWeight => "maybe-weight",
            LeafRole::BesideWeights => "beside-weights",
        }
    }

    /// The role in words, as an answer to why a leaf is whole.
    pub fn describe(self) -> String {
        match self {
            LeafRole::Weight => "a weight: the loss reads it".into(),
            LeafRole::Input => "no result is known to be its next value".into(),
            LeafRole::State => "optimizer state".into(),
            LeafRole::Carried => "the step returns it as it came, and nothing marks it as optimizer state".into(),
            LeafRole::FeedsNoWeight => {
                "no weight's next value is computed from it, so that evaluation may read it".into()
            }
            LeafRole::ReadByResult(output) => format!("result {output}, which stays whole, is computed from it"),
            LeafRole::Reset => "its next value is a constant".into(),
            LeafRole::MaybeWeight => {
                "its gradient, which no devices sum, is computed from it, so that it may be a weight".into()
            }
            LeafRole::BesideWeights => {
                "it lies beside weights, and the optimizer has a part of the tree of its own".into()
            }
        }
    }
}

/// The role of each leaf of the entry's parameters, in order. `pairs` are parameters and the results that are their next values, both by flat number;
/// `groups` the devices over which gradients are summed.
pub fn find_roles(
    module: &Module,
    (values, replication): (&Values, &Replication),
    groups: &[Vec<u32>],
    pairs: &[(usize, usize)],
) -> Vec<LeafRole> {
    let mut finder = Finder::new(module, values);
    finder.find_next_values(pairs);
    let reads = finder.find_read_by_loss(replication, groups);
    let is_weight = |number: usize| finder.holds(number, &reads);
    let mut roles: Vec<LeafRole> = (0..finder.params.len()).map(|n| finder.first_role(n, is_weight(n))).collect();
    finder.find_state(&mut roles, pairs);
    settle_by_names(module, &mut roles);
    roles
}

/// Returns for each leaf whether its next value is computed from an array that the devices sum up. The next value of a weight ends a
/// path: what is computed from it belongs to another update. Each device computes all of an update that no such sum reaches.
pub fn find_summed(module: &Module, values: &Values, pairs: &[(usize, usize)], roles: &[LeafRole]) -> Vec<bool> {
    let mut finder = Finder::new(module, values);
    finder.find_next_values(pairs);
    let is_array = |value: ValueId| values.shape(module, value).is_some_and(|shape| shape.n_elems() > 1);
    let insts = values.comps.iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    let sums = insts.filter(|&inst| is_sum(module, inst));
    let mut open: Vec<ValueId> =
        sums.flat_map(|inst| values.leaves(inst)).filter_map(|leaf| leaf.expand()).filter(|&v| is_array(v)).collect();
    let mut reached = Reached::new();
    while let Some(value) = open.pop() {
        let is_next_weight = finder.next_of[value].iter().any(|&number| roles.get(number) == Some(&LeafRole::Weight));
        if std::mem::replace(&mut reached[value], true) || is_next_weight {
            continue;
        }
        for taken in &values.uses[value] {
            let next = match taken.user {
                User::Op { inst, .. } | User::Opaque(inst) => values.leaves(inst).to_vec(),
                User::Becomes(next) => vec![next.into()],
                User::Exit(_) => continue,
            };
            open.extend(next.into_iter().filter_map(|value| value.expand()).filter(|&value| is_array(value)));
        }
    }
    let mut is_summed = vec![false; finder.params.len()];
    for (_, numbers) in finder.next_of.iter().filter(|(value, _)| reached[*value]) {
        numbers.iter().for_each(|&number| is_summed[number] = true);
    }
    is_summed
}

/// Whether an instruction adds up over devices.
fn is_sum(module: &Module, inst: InstId) -> bool {
    let opcode = module.inst(inst).opcode;
    matches!(opcode, Opcode::AllReduce | Opcode::AllReduceStart | Opcode::ReduceScatter)
        && opcode.row().effects == Effects::Communicates
}

/// The values that a search has reached.
pub type Reached = SecondaryMap<ValueId, bool>;

struct Finder<'m> {
    module: &'m Module,
    values: &'m Values,
    /// The value of each leaf; none for tokens.
    params: Vec<Option<ValueId>>,
    /// Its next value, before it is copied on its way out.
    next: Vec<Option<ValueId>>,
    /// The leaves of which a value is the next one.
    next_of: SecondaryMap<ValueId, Vec<usize>>,
}

impl<'m> Finder<'m> {
    fn new(module: &'m Module, values: &'m Values) -> Finder<'m> {
        let leaf = |leaf: &ParamLeaf| values.leaves(leaf.param).get(leaf.leaf_idx)?.expand();
        let params: Vec<Option<ValueId>> = entry_leaves(module).iter().map(leaf).collect();
        Finder { module, values, next: vec![None; params.len()], params, next_of: SecondaryMap::new() }
    }

    fn find_next_values(&mut self, pairs: &[(usize, usize)]) {
        let results = self.results();
        for &(number, output) in pairs {
            let Some(&next) = results.get(&output) else { continue };
            if number >= self.next.len() {
                continue;
            }
            // What is only copied on its way out is the next value too: in a loop of steps what the loop carries, and what each
            // iteration hands on.
            let mut at = vec![next];
            while let Some(value) = at.pop() {
                if self.next_of[value].contains(&number) {
                    continue;
                }
                self.next_of[value].push(number);
                let of_iterations = match self.values.values[value].origin {
                    Origin::Carry => self.values.sources[value].as_slice(),
                    Origin::Computed | Origin::CallResult | Origin::Param | Origin::EntryParam => &[],
                };
                let is_own = |source: &ValueId| Some(*source) != self.params[number];
                at.extend(of_iterations.iter().filter(|source| is_own(source)));
                let copied = self.copied(value);
                at.extend(copied);
                if copied.is_none() && self.next[number].is_none() {
                    self.next[number] = Some(value);
                }
            }
        }
    }

    /// The value that another one is a copy of, as it is or in other dims; also what one call returns.
    fn copied(&self, value: ValueId) -> Option<ValueId> {
        let inst = self.values.inst(value);
        match self.values.values[value].origin {
            Origin::Computed => {
                let is_copy =
                    matches!(self.module.inst(inst).opcode, Opcode::Copy | Opcode::Reshape | Opcode::Transpose);
                self.values.of(*self.module.inst(inst).operands.first().filter(|_| is_copy)?)
            }
            Origin::CallResult | Origin::Param => match self.values.sources[value].as_slice() {
                [only] => Some(*only),
                _ => None,
            },
            Origin::Carry | Origin::EntryParam => None,
        }
    }

    /// The value of each result.
    fn results(&self) -> BTreeMap<usize, ValueId> {
        let exits = |value: ValueId| {
            self.values.uses[value].iter().filter_map(move |taken| match taken.user {
                User::Exit(output) => Some((output as usize, value)),
                User::Op { .. } | User::Becomes(_) | User::Opaque(_) => None,
            })
        };
        self.values.values.keys().flat_map(exits).collect()
    }

    /// Finds what the loss reads: all from which something is computed that differs between devices and is summed over them. Paths end at next values, so
    /// that a step that updates, and then evaluates or goes on in a loop, makes no weight of what it updates with.
    fn find_read_by_loss(&self, replication: &Replication, groups: &[Vec<u32>]) -> Reached {
        let insts = self.values.comps.iter().flat_map(|&comp| &self.module.comp(comp).insts).copied();
        let operands = insts
            .filter(|&inst| is_sum(self.module, inst))
            .flat_map(|inst| self.module.inst(inst).operands.iter().copied());
        let mut seeds = Vec::new();
        for operand in operands {
            for (leaf_idx, value) in self.values.leaves(operand).iter().enumerate() {
                if !replication.is_equal_within(operand, leaf_idx, groups) {
                    seeds.extend(value.expand());
                }
            }
        }
        let mut reached = Reached::new();
        search_back(self.module, self.values, seeds, &mut reached, &mut |value| self.next_of[value].is_empty());
        reached
    }

    /// Whether a search has reached a leaf, or its next value.
    fn holds(&self, number: usize, reached: &Reached) -> bool {
        [self.params[number], self.next[number]].into_iter().flatten().any(|value| reached[value])
    }

    /// The role of a leaf as far as the loss and its next value say it.
    fn first_role(&self, number: usize, is_weight: bool) -> LeafRole {
        match (self.params[number], self.next[number]) {
            (_, None) | (None, _) => LeafRole::Input,
            (Some(_), Some(_)) if is_weight => LeafRole::Weight,
            (Some(_), Some(next)) if self.is_constant(next) => LeafRole::Reset,
            (Some(_), Some(_)) => LeafRole::State,
        }
    }

    /// Whether a value is a constant, or one number for all elements.
    fn is_constant(&self, value: ValueId) -> bool {
        let is_constant = |inst: InstId| self.module.inst(inst).opcode == Opcode::Constant;
        let instruction = self.module.inst(self.values.inst(value));
        let is_filled = instruction.opcode == Opcode::Broadcast && instruction.operands.iter().all(|&o| is_constant(o));
        self.values.values[value].origin == Origin::Computed && (is_filled || instruction.opcode == Opcode::Constant)
    }

    /// Tells state from what only looks like it.
    fn find_state(&self, roles: &mut [LeafRole], pairs: &[(usize, usize)]) {
        let weights = (0..roles.len()).filter(|&number| roles[number] == LeafRole::Weight);
        let next_weights: Vec<ValueId> = weights.filter_map(|number| self.next[number]).collect();
        let mut is_next_weight = Reached::new();
        for (value, numbers) in self.next_of.iter() {
            is_next_weight[value] = numbers.iter().any(|&number| roles[number] == LeafRole::Weight);
        }
        let (mut feeds, mut open) = (Reached::new(), next_weights);
        let mut is_followed = vec![false; roles.len()];
        // State that feeds state feeds a weight of a later step.
        while !open.is_empty() {
            search_back(self.module, self.values, std::mem::take(&mut open), &mut feeds, &mut |_| true);
            for (number, role) in roles.iter().enumerate() {
                if *role == LeafRole::State && !is_followed[number] && self.holds(number, &feeds) {
                    is_followed[number] = true;
                    open.extend(self.next[number]);
                }
            }
        }
        for (number, role) in roles.iter_mut().enumerate() {
            if *role == LeafRole::State && !self.holds(number, &feeds) {
                let is_carried = self.next[number] == self.params[number];
                *role = if is_carried { LeafRole::Carried } else { LeafRole::FeedsNoWeight };
            }
        }
        let paired: BTreeMap<usize, usize> = pairs.iter().map(|&(number, output)| (output, number)).collect();
        let mut open: Vec<(usize, ValueId)> = Vec::new();
        for (output, value) in self.results() {
            let stays = match paired.get(&output).map(|&number| roles[number]) {
                None | Some(LeafRole::FeedsNoWeight | LeafRole::Carried | LeafRole::Reset | LeafRole::Input) => true,
                Some(_) => false,
            };
            if stays && self.is_large(value) {
                open.push((output, value));
            }
        }
        let mut number_of: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::new();
        for (number, param) in self.params.iter().enumerate() {
            param.iter().for_each(|&param| number_of[param] = Some(number));
        }
        let mut whole = Reached::new();
        while let Some((output, value)) = open.pop() {
            let mut read = Vec::new();
            search_back(self.module, self.values, vec![value], &mut whole, &mut |value| {
                let goes_on = !is_next_weight[value];
                read.extend(goes_on.then_some(value));
                goes_on
            });
            // A leaf that such a result reads, or whose next value it reads, is no state, and neither is what that is computed from.
            let numbers = read.iter().flat_map(|&value| self.next_of[value].iter().copied().chain(number_of[value]));
            for number in numbers {
                if roles[number] == LeafRole::State {
                    roles[number] = LeafRole::ReadByResult(output);
                    let next = self.next[number].filter(|&next| self.is_large(next));
                    open.extend(next.map(|next| (output, next)));
                }
            }
        }
    }

    fn is_large(&self, value: ValueId) -> bool {
        self.values.shape(self.module, value).map_or(0, ArrayShape::size_bytes) >= SMALL_BYTES
    }
}

/// Reaches all from which `seeds` are computed. `goes_on` says whether to look behind a value.
pub fn search_back(
    module: &Module,
    values: &Values,
    seeds: Vec<ValueId>,
    reached: &mut Reached,
    goes_on: &mut dyn FnMut(ValueId) -> bool,
) {
    let mut open = seeds;
    while let Some(value) = open.pop() {
        if std::mem::replace(&mut reached[value], true) || !goes_on(value) {
            continue;
        }
        open.extend(&values.sources[value]);
        let inst = values.inst(value);
        let operands = &module.inst(inst).operands;
        let read = match values.values[value].origin {
            Origin::Computed => operands.as_slice(),
            // The first operand decides between branches.
            Origin::CallResult if module.inst(inst).opcode == Opcode::Conditional => &operands[..1],
            Origin::CallResult | Origin::EntryParam | Origin::Param | Origin::Carry => &[],
        };
        let leaves = read.iter().flat_map(|&operand| values.leaves(operand));
        open.extend(leaves.filter_map(|leaf| leaf.expand()));
    }
}

/// A node of the tree that the names of parameters make: `state.opt_state[0].mu['w']` is `state`, `.opt_state`, `[0]`, `.mu`, `['w']`.
#[derive(Default)]
struct Node<'n> {
    children: BTreeMap<&'n str, Node<'n>>,
    leaves: Vec<usize>,
}

/// Facts about the leaves below a node.
#[derive(Clone, Copy, Default)]
struct Below {
    has_weights: bool,
    /// State that is more than a counter.
    has_state: bool,
}

/// Corrects roles by the tree of the parameters' names. Where a node has a part with state and without weights, that part is the
/// optimizer's: what is only carried there is state, and state in the parts with weights is [`LeafRole::BesideWeights`]: slow weights,
/// which evaluation reads. Where no part is free of weights, as with layers that hold their own state, the same is asked of each part.
pub fn settle_by_names(module: &Module, roles: &mut [LeafRole]) {
    let leaves = entry_leaves(module);
    let name = |inst: InstId| module.inst(inst).marks.as_ref().and_then(|marks| marks.op_name());
    let mut root = Node::default();
    for (number, leaf) in leaves.iter().enumerate() {
        let Some(name) = name(leaf.param) else { continue };
        let node = parts(name).fold(&mut root, |node, part| node.children.entry(part).or_default());
        node.leaves.push(number);
    }
    let is_array = |number: usize| {
        let shape = module.shape(leaves[number].param);
        shape.as_array().is_some_and(|array| array.n_elems() > 1)
    };
    settle(&root, roles, &is_array);
}

/// The parts of a name, each with what stands before it.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let len = match (first, rest.find(']')) {
            ('[', Some(end)) => end + 1,
            _ => rest[first.len_utf8()..].find(['.', '[']).map_or(rest.len(), |at| at + first.len_utf8()),
        };
        let (part, behind) = rest.split_at(len);
        rest = behind;
        Some(part)
    })
}

fn below(node: &Node<'_>, roles: &[LeafRole], is_array: &dyn Fn(usize) -> bool) -> Below {
    let mut found = Below::default();
    for &number in &node.leaves {
        found.has_weights |= roles[number] == LeafRole::Weight && is_array(number);
        found.has_state |= roles[number] == LeafRole::State && is_array(number);
    }
    for child in node.children.values() {
        let child = below(child, roles, is_array);
        found.has_weights |= child.has_weights;
        found.has_state |= child.has_state;
    }
    found
}

fn settle(node: &Node<'_>, roles: &mut [LeafRole], is_array: &dyn Fn(usize) -> bool) {
    let found: Vec<(&Node<'_>, Below)> =
        node.children.values().map(|child| (child, below(child, roles, is_array))).collect();
    let has_own_part = found.iter().any(|(_, below)| below.has_state && !below.has_weights);
    for (child, below) in found.into_iter().filter(|(_, below)| below.has_state) {
        match (below.has_weights, has_own_part) {
            (false, _) => replace(child, roles, LeafRole::Carried, LeafRole::State),
            (true, true) => replace(child, roles, LeafRole::State, LeafRole::BesideWeights),
            (true, false) => settle(child, roles, is_array),
        }
    }
}

fn replace(node: &Node<'_>, roles: &mut [LeafRole], from: LeafRole, to: LeafRole) {
    for &number in &node.leaves {
        if roles[number] == from {
            roles[number] = to;
        }
    }
    node.children.values().for_each(|child| replace(child, roles, from, to));
}
