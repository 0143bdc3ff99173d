//! Which instructions go into one kernel.

use super::columns::column_sum;
use super::edges::{Edges, is_reduce};
use super::members::{Group, Marks, components, positions};
use super::rows::RowPart;
use super::siblings::put_beside;
use super::stages::{Stages, find_stages};
use super::sums::sums_of;
use crate::values::tuple_elements;
use hashbrown::HashSet;
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode};
use std::collections::BTreeMap;

/// Limits of one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FusionLimits {
    /// Operands and results of one fusion. A CUDA kernel's parameters must fit into 4 KiB.
    pub max_arguments: usize,
    /// Fusions that read and write fewer bytes, and whose results leave the computation, share one kernel; so do those that read parameters alone
    /// and have fewer bytes together.
    pub side_by_side_bytes: u64,
}

impl Default for FusionLimits {
    fn default() -> FusionLimits {
        FusionLimits { max_arguments: 480, side_by_side_bytes: 2 << 20 }
    }
}

/// Rows of a short sum of columns, as the second step of a long one has them: some threads add them up one after the other.
const MAX_ROWS_OF_SHORT_SUM: i64 = 1024;

/// Most instructions on a way through a fusion: the emitter follows operands by recursion.
const MAX_CHAIN: u32 = 256;

/// The edges of a computation and the stages that they give.
#[derive(Clone, Debug)]
pub struct StagedEdges {
    pub(super) edges: Edges,
    pub(super) stages: Stages,
    /// Copies of what is computed again, each with what it is a copy of.
    pub(super) again: Vec<(InstId, InstId)>,
}

impl StagedEdges {
    /// The copies of values that are computed again for late users, each with what it is a copy of: an instruction, or another copy.
    pub fn repeated(&self) -> &[(InstId, InstId)] {
        &self.again
    }
}

/// Parts chains that are too long. Returns whether there are any.
fn cut_long_chains(module: &Module, comp: CompId, edges: &mut Edges) -> bool {
    let mut has_cut = false;
    let mut lengths: InstMap<u32> = InstMap::of(module, comp);
    for inst in edges.order.clone() {
        let operands = module.inst(inst).operands.iter().zip(&edges.is_fusable[inst]);
        let fused = operands.filter(|(_, is_fusable)| **is_fusable).map(|(&operand, _)| lengths[operand]);
        let longest = fused.max().unwrap_or(0);
        lengths[inst] = if longest < MAX_CHAIN { longest + 1 } else { 1 };
        if longest >= MAX_CHAIN {
            let changes_dims = edges.changes_dims[inst];
            edges.cut(module, inst);
            edges.changes_dims[inst] = changes_dims;
            has_cut = true;
        }
    }
    has_cut
}

/// The fusions of a computation.
pub fn find_groups(module: &Module, comp: CompId, limits: FusionLimits) -> Vec<Group> {
    find_groups_of(module, comp, None, limits)
}

/// The fusions of a computation of which this is known.
pub fn find_groups_of(module: &Module, comp: CompId, known: Option<StagedEdges>, limits: FusionLimits) -> Vec<Group> {
    let (mut edges, stages) = match known {
        Some(StagedEdges { edges, stages, .. }) => (edges, Some(stages)),
        None => (Edges::of(module, comp), None),
    };
    let has_cut = cut_long_chains(module, comp, &mut edges);
    let stages = match stages.filter(|_| !has_cut) {
        Some(stages) => stages,
        None => find_stages(module, comp, &edges).0,
    };
    let position = positions(module, comp);
    let has_siblings = put_beside(module, comp, &mut edges, &stages);
    let mut known_stages = Some(stages).filter(|_| !has_siblings);
    let mut marks = Marks::of(module, comp);
    let dims_of = |&o: &InstId| module.shape(o).as_array().map(|a| &a.dims);
    // Results of different dims would be computed by different threads: cut where dims change, and number again.
    let (mut groups, stages) = loop {
        let stages = known_stages.take().unwrap_or_else(|| find_stages(module, comp, &edges).0);
        let groups: Vec<Group> = components(module, comp, &edges, &stages)
            .into_iter()
            .map(|members| marks.complete(module, &edges, &position, members))
            .collect();
        let mut n_cut = 0;
        for group in &groups {
            for &output in &group.outputs {
                // Its users are elsewhere: what is the same along a row is not worth writing down.
                if matches!(edges.rows[output], RowPart::Spread(_)) {
                    edges.leave_row(output);
                    n_cut += 1;
                }
            }
            let sums = sums_of(module, &edges, &group.members, &group.outputs);
            let mut n_parted = sums.misfits.iter().filter(|&&sum| edges.part_sum(module, sum)).count();
            if n_parted == 0 && !sums.fit.is_empty() {
                n_parted = sums.misfits.iter().filter(|&&sum| separate(module, &mut edges, sum)).count();
            }
            if n_parted > 0 {
                n_cut += n_parted;
                continue;
            }
            let is_own = |output: &&InstId| !sums.fit.contains(output) && !is_of_row(module, &edges, group, **output);
            let mut dims = group.outputs.iter().filter(is_own).map(dims_of);
            let first = dims.next();
            if dims.any(|other| Some(other) != first) {
                let changing = changing_members(module, &edges, group);
                n_cut += changing.len();
                for inst in changing {
                    separate(module, &mut edges, inst);
                }
            }
        }
        if n_cut == 0 {
            break (groups, stages);
        }
    };
    groups.retain(|group| group.inputs.len() + group.outputs.len() <= limits.max_arguments);
    let mut groups = side_by_side(module, (&edges, &stages), groups, limits, |mut members: Vec<InstId>| {
        members.sort_by_key(|&inst| position[inst]);
        marks.complete(module, &edges, &position, members)
    });
    groups.retain(|group| is_worth_it(module, group));
    groups
}

/// Whether an output is one element for each row of a group that has other outputs of whole rows: the threads that have the row
/// write it.
fn is_of_row(module: &Module, edges: &Edges, group: &Group, output: InstId) -> bool {
    let Some(class) = edges.rows[output].class_of_value() else { return false };
    let reduced = group.members.iter().filter(|&&m| edges.rows[m] == RowPart::Reduce(class));
    let rows = reduced.flat_map(|&m| module.inst(m).operands.first());
    let dims = |inst: InstId| module.shape(inst).as_array().map(|array| &array.dims);
    let mut whole = group.outputs.iter().filter(|&&o| edges.rows[o].class_of_value().is_none());
    let Some(rows) = rows.map(|&operand| dims(operand)).next() else { return false };
    whole.all(|&o| dims(o) == rows)
}

/// The members whose operands have other dims; only those that read a reduction's result, if there are such.
fn changing_members(module: &Module, edges: &Edges, group: &Group) -> Vec<InstId> {
    let mut after_reduce: HashSet<InstId> = HashSet::new();
    for &member in &group.members {
        let operands = module.inst(member).operands.iter().zip(&edges.is_fusable[member]);
        let mut fused = operands.filter(|(_, is_fusable)| **is_fusable).map(|(operand, _)| *operand);
        if fused.any(|operand| after_reduce.contains(&operand) || is_reduce(module, operand)) {
            after_reduce.insert(member);
        }
    }
    // What is reduced is parted from the reduction above the views of it.
    let leads_to_reduce = |&member: &InstId| {
        let mut at = member;
        while let ([user], true) = (edges.users[at].as_slice(), hlo_ir::view::is_view(module, at)) {
            if is_reduce(module, *user) {
                return edges.is_fusable[*user].first() == Some(&true);
            }
            at = *user;
        }
        false
    };
    let is_changing = |&member: &InstId| edges.changes_dims[member] && !leads_to_reduce(&member);
    let changing: Vec<InstId> = group.members.iter().copied().filter(is_changing).collect();
    let late: Vec<InstId> = changing.iter().copied().filter(|m| after_reduce.contains(m)).collect();
    if late.is_empty() { changing } else { late }
}

/// Parts an instruction that changes dims from what others need too: above the values that only it needs, or at itself. Returns whether
/// it was not parted before.
fn separate(module: &Module, edges: &mut Edges, inst: InstId) -> bool {
    let sources = if is_reduce(module, inst) { edges.shared_sources(module, inst) } else { Vec::new() };
    let is_new = !sources.is_empty() || edges.changes_dims[inst];
    if sources.is_empty() {
        edges.cut(module, inst);
    }
    sources.into_iter().for_each(|(user, slot)| edges.cut_edge(user, slot));
    is_new
}

/// Whether a fusion saves a launch: it holds two instructions that would be kernels of their own.
fn is_worth_it(module: &Module, group: &Group) -> bool {
    let counts = |&&inst: &&InstId| module.inst(inst).opcode != Opcode::Constant;
    let n_members = group.all.iter().filter(counts).count();
    let has_arithmetic = group.members.iter().any(|&m| !hlo_ir::view::is_view(module, m));
    n_members > 1 && has_arithmetic && !group.outputs.is_empty()
}

/// Groups that are to become one.
struct Joined {
    groups: Vec<Group>,
    inputs: HashSet<InstId>,
    all: HashSet<InstId>,
    n_outputs: usize,
}

impl Joined {
    fn of(group: Group) -> Joined {
        let (inputs, all) = (group.inputs.iter().copied().collect(), group.all.iter().copied().collect());
        Joined { inputs, all, n_outputs: group.outputs.len(), groups: vec![group] }
    }

    /// Operands and results of the kernel with one group more, no result of which another group reads.
    fn n_arguments_with(&self, group: &Group) -> usize {
        let is_new = |input: &&InstId| !self.inputs.contains(*input) && !self.all.contains(*input);
        let n_new = group.inputs.iter().filter(is_new).count();
        let n_taken_in = group.all.iter().filter(|inst| self.inputs.contains(*inst)).count();
        self.inputs.len() + n_new - n_taken_in + self.n_outputs + group.outputs.len()
    }

    fn push(&mut self, group: Group) {
        self.all.extend(group.all.iter().copied());
        self.inputs.extend(group.inputs.iter().filter(|input| !self.all.contains(*input)));
        group.all.iter().for_each(|inst| {
            self.inputs.remove(inst);
        });
        self.n_outputs += group.outputs.len();
        self.groups.push(group);
    }
}

/// Whether a value is there when the computation begins: a parameter, or an element of one.
fn is_given(module: &Module, mut value: InstId) -> bool {
    while let (Opcode::GetTupleElement, Some(&of)) = (module.inst(value).opcode, module.inst(value).operands.first()) {
        value = of;
    }
    module.inst(value).opcode == Opcode::Parameter
}

/// Whether a group sums the columns of few rows, and does nothing but to use the results element by element.
fn is_short_sum(module: &Module, group: &Group) -> bool {
    let mut reduces = group.members.iter().copied().filter(|&member| is_reduce(module, member)).peekable();
    let n_elems = |inst: InstId| module.shape(inst).as_array().map(|array| array.n_elems());
    let Some(n_results) = reduces.peek().map(|&reduce| n_elems(reduce)) else { return false };
    let is_short = |reduce: InstId| column_sum(module, reduce).is_some_and(|sum| sum.n_rows <= MAX_ROWS_OF_SHORT_SUM);
    reduces.all(|reduce| n_elems(reduce) == n_results && is_short(reduce))
        && group.outputs.iter().all(|&output| n_elems(output) == n_results)
}

/// Puts small fusions whose results nobody in the computation reads but its root into one, which `complete` makes of its members; and
/// so those that read nothing but what is given, while these together are small, as their results wait for their users. Short
/// sums that have one stage wait for nothing of each other.
fn side_by_side(
    module: &Module,
    (edges, stages): (&Edges, &Stages),
    groups: Vec<Group>,
    limits: FusionLimits,
    mut complete: impl FnMut(Vec<InstId>) -> Group,
) -> Vec<Group> {
    let root = edges.root.filter(|&root| tuple_elements(module, root).is_some());
    let leaves = |group: &Group| {
        let members: HashSet<InstId> = group.members.iter().copied().collect();
        let is_own = |user: &InstId| Some(*user) == root || members.contains(user);
        let is_read = |output: &InstId| edges.users[*output].iter().all(is_own);
        root.is_some() && group.outputs.iter().all(is_read) && !members.iter().any(|&m| edges.is_waited_for[m])
    };
    let bytes = |group: &Group| {
        let values = group.inputs.iter().chain(&group.outputs);
        values.map(|&v| module.shape(v).memory_bytes()).sum::<u64>()
    };
    let begins = |group: &Group| group.inputs.iter().all(|&input| is_given(module, input));
    let mut kept = Vec::new();
    let (mut leaving, mut beginning): (Option<Joined>, Option<Joined>) = (None, None);
    let mut short_sums: BTreeMap<u32, Option<Joined>> = BTreeMap::new();
    let mut close = |mut joined: Joined| match joined.groups.len() {
        1 => joined.groups.pop(),
        _ => Some(complete(joined.groups.into_iter().flat_map(|group| group.members).collect())),
    };
    for group in groups {
        let has_reduce = group.members.iter().any(|&m| is_reduce(module, m));
        let is_short_sum = has_reduce && is_short_sum(module, &group);
        let is_small = !group.outputs.is_empty() && bytes(&group) <= limits.side_by_side_bytes;
        let (open, most_bytes) = if is_small && (!has_reduce || is_short_sum) && leaves(&group) {
            (&mut leaving, u64::MAX)
        } else if is_small && !has_reduce && begins(&group) {
            (&mut beginning, limits.side_by_side_bytes)
        } else if let Some(&first) = group.members.first().filter(|_| is_small && is_short_sum) {
            (short_sums.entry(stages[first]).or_default(), limits.side_by_side_bytes)
        } else {
            kept.push(group);
            continue;
        };
        let is_room = |joined: &Joined| {
            let together = joined.groups.iter().map(bytes).fold(bytes(&group), u64::saturating_add);
            joined.n_arguments_with(&group) <= limits.max_arguments && together <= most_bytes
        };
        match open {
            Some(joined) if is_room(joined) => joined.push(group),
            Some(_) => kept.extend(open.replace(Joined::of(group)).and_then(&mut close)),
            None => *open = Some(Joined::of(group)),
        }
    }
    let open = [leaving, beginning].into_iter().chain(short_sums.into_values());
    kept.extend(open.flatten().filter_map(close));
    kept
}
