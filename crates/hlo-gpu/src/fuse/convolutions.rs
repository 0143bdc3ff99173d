//! Convolutions with what follows them element by element (a bias, an activation and the mask of what stays, a residual), with sums of columns of
//! these (the gradient of a bias, the statistics of a batch norm), and with the reversals and reshapes of their operands, which a kernel
//! computes by an index.

use super::{has_order, waited_for};
use crate::kernel::{MAX_SUMS, keeps_runs, rows_of_tiles};
use cranelift_entity::SecondaryMap;
use hashbrown::{HashMap, HashSet};
use hlo_analysis::fusion::{ColumnSum, Group, column_sum, may_split_column_sum, split_column_sum};
use hlo_ir::module::UserMap;
use hlo_ir::view::is_view;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};

/// Instructions of one such fusion.
const MOST_MEMBERS: usize = 64;

/// What an instruction is to a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Relation {
    /// It does not depend on it.
    #[default]
    None,
    Member,
    /// It depends on a member and is none.
    After,
}

/// A fusion for each convolution that has something to take in. Inputs of one depend on no member of it, by way of other fusions either.
/// Sums that it computes of its tiles are put into two steps.
///
/// # Errors
/// An instruction on a cycle, which no verified module has.
pub(super) fn find_convolutions(module: &mut Module, comp: CompId, uses_tf32: bool) -> Result<Vec<Group>, InstId> {
    let (mut drafts, mut users) = find_drafts(module, comp, uses_tf32);
    let mut has_split = false;
    for sum in drafts.iter_mut().flat_map(|draft| &mut draft.sums) {
        let first = if sum.is_whole() { None } else { split_column_sum(module, comp, sum.reduce, sum.n_rows) };
        has_split |= first.is_some();
        sum.reduce = first.unwrap_or(sum.reduce);
    }
    if has_split {
        module.restore_order(comp)?;
        users = module.users();
    }
    Ok(drafts.into_iter().map(|draft| draft.group(module, comp, &users)).collect())
}

/// What the convolutions of a computation take in, with the users of what the module has.
fn find_drafts(module: &Module, comp: CompId, uses_tf32: bool) -> (Vec<Draft>, UserMap) {
    let insts = &module.comp(comp).insts;
    let waited_for = waited_for(module, comp);
    let is_convolution = |&inst: &InstId| {
        module.inst(inst).opcode == Opcode::Convolution && !has_order(module, inst) && !waited_for.contains(&inst)
    };
    let convs: Vec<InstId> = insts.iter().copied().filter(is_convolution).collect();
    if convs.is_empty() {
        return Default::default(); // the users of all of the module are asked for convolutions alone
    }
    let users = module.users();
    let mut drafts: Vec<Draft> = Vec::new();
    let mut group_of: HashMap<InstId, usize> = HashMap::new();
    for conv in convs {
        let found =
            Found { module, comp, users: &users, conv, group_of: &group_of, waited_for: &waited_for, uses_tf32 };
        if let Some(draft) = found.draft() {
            group_of.extend(draft.all().map(|member| (member, drafts.len())));
            drafts.push(draft);
        }
    }
    (drafts, users)
}

/// What a convolution takes in.
struct Draft {
    conv: InstId,
    /// The convolution and what is computed of its elements.
    members: Vec<InstId>,
    /// What members alone read that is computed element by element too, of other values.
    feeders: Vec<InstId>,
    /// Conversions from narrower types that others read too: they are done again inside.
    repeated: Vec<InstId>,
    /// Maps of its operands.
    maps: Vec<InstId>,
    sums: Vec<Sum>,
}

/// A sum of columns of a member, which the threads of the convolution's tiles compute.
struct Sum {
    reduce: InstId,
    /// Views between the member and the reduction.
    views: Vec<InstId>,
    what: ColumnSum,
    /// Rows of a tile, which those of the sum are a multiple of.
    n_rows: i64,
}

impl Sum {
    /// Whether a tile gives all of a result.
    fn is_whole(&self) -> bool {
        self.what.n_rows == self.n_rows
    }
}

impl Draft {
    fn all(&self) -> impl Iterator<Item = InstId> {
        let of_sums = self.sums.iter().flat_map(|sum| std::iter::once(sum.reduce).chain(sum.views.iter().copied()));
        self.members.iter().chain(&self.feeders).chain(&self.maps).copied().chain(of_sums)
    }

    /// Bytes that the kernel writes beside sums.
    fn bytes_written(&self, module: &Module, comp: CompId, users: &UserMap) -> u64 {
        let all: HashSet<InstId> = self.all().collect();
        let outputs = self.members.iter().filter(|&&member| is_needed_beside(module, comp, users, member, &all));
        outputs.map(|&output| module.shape(output).memory_bytes()).sum()
    }

    fn group(&self, module: &Module, comp: CompId, users: &UserMap) -> Group {
        let mut members: HashSet<InstId> = self.all().collect();
        // The steps of a sum begin with a reshape of what is summed.
        for sum in &self.sums {
            let mut at = module.inst(sum.reduce).operands.first().copied();
            while let Some(view) = at.filter(|&view| view != sum.what.source && is_view(module, view)) {
                members.insert(view);
                at = module.inst(view).operands.first().copied();
            }
        }
        let filled = fills_of(module, self.conv, &members);
        let all: HashSet<InstId> = members.iter().chain(&filled).chain(&self.repeated).copied().collect();
        let in_order = |of: &dyn Fn(InstId) -> bool| {
            module.comp(comp).insts.iter().copied().filter(|&inst| of(inst)).collect::<Vec<InstId>>()
        };
        let all_in_order = in_order(&|inst| all.contains(&inst));
        let mut inputs = Vec::new();
        for &operand in all_in_order.iter().flat_map(|&inst| &module.inst(inst).operands) {
            if !all.contains(&operand) && !inputs.contains(&operand) {
                inputs.push(operand);
            }
        }
        Group {
            members: in_order(&|inst| members.contains(&inst)),
            outputs: in_order(&|inst| members.contains(&inst) && is_needed_beside(module, comp, users, inst, &members)),
            all: all_in_order,
            inputs,
        }
    }
}

fn is_needed_beside(module: &Module, comp: CompId, users: &UserMap, member: InstId, members: &HashSet<InstId>) -> bool {
    module.comp(comp).root.expand() == Some(member) || users[member].iter().any(|user| !members.contains(user))
}

/// Constants, iotas and broadcasts that members read: they are done again inside.
fn fills_of(module: &Module, conv: InstId, members: &HashSet<InstId>) -> Vec<InstId> {
    let mut found = Vec::new();
    let followers = members.iter().filter(|&&member| member != conv);
    let mut open: Vec<InstId> = followers.flat_map(|&member| module.inst(member).operands.iter().copied()).collect();
    while let Some(at) = open.pop() {
        let is_scalar = module.shape(at).as_array().is_some_and(|shape| shape.n_elems() == 1);
        let opcode = module.inst(at).opcode;
        let is_fill = [Opcode::Broadcast, Opcode::Iota].contains(&opcode) || (opcode == Opcode::Constant && is_scalar);
        if is_fill && !found.contains(&at) && !members.contains(&at) && !has_order(module, at) {
            found.push(at);
            open.extend(module.inst(at).operands.iter().copied());
        }
    }
    found
}

struct Found<'a> {
    module: &'a Module,
    comp: CompId,
    users: &'a UserMap,
    conv: InstId,
    /// Which other convolution's fusion an instruction is in.
    group_of: &'a HashMap<InstId, usize>,
    /// Instructions that others wait for.
    waited_for: &'a HashSet<InstId>,
    /// Whether factors of f32 are rounded to TF32.
    uses_tf32: bool,
}

impl Found<'_> {
    fn draft(&self) -> Option<Draft> {
        let (mut members, relations) = self.followers();
        let bytes = self.module.shape(self.conv).memory_bytes();
        loop {
            let (maps, sums) = (self.maps_of_operands(), self.sums_of(&members));
            let (feeders, repeated) = self.feeders_of(&members, &maps, &relations);
            let draft = Draft { conv: self.conv, members: members.clone(), feeders, repeated, maps, sums };
            // A result in a wider type, or several, would cost what the convolution's own does not.
            let is_small = draft.bytes_written(self.module, self.comp, self.users) <= bytes + bytes / 2;
            if is_small || members.len() == 1 {
                return (draft.all().count() > 1).then_some(draft);
            }
            members.pop();
        }
    }

    /// What members alone read that is computed element by element of values that do not depend on the convolution and have no more than twice its
    /// bytes; and what they read that is converted from a narrower type. What the convolution itself reads, some times over, is neither.
    fn feeders_of(
        &self,
        members: &[InstId],
        maps: &[InstId],
        relations: &SecondaryMap<InstId, Relation>,
    ) -> (Vec<InstId>, Vec<InstId>) {
        let Some(shape) = self.module.shape(self.conv).as_array() else { return Default::default() };
        let is_like = |other: &ArrayShape| other.dims == shape.dims && other.is_same_order(shape);
        let may_feed = |at: InstId| {
            relations[at] == Relation::None
                && self.may_be_inside(at)
                && !self.users[at].iter().any(|user| *user == self.conv || maps.contains(user))
                && self.module.shape(at).as_array().is_some_and(is_like)
        };
        let bytes = |inst: InstId| self.module.shape(inst).memory_bytes();
        let operands = |inst: InstId| self.module.inst(inst).operands.iter().copied();
        let is_widened =
            |at: InstId| self.module.inst(at).opcode == Opcode::Convert && operands(at).all(|of| bytes(of) < bytes(at));
        let is_fill = |at: InstId| [Opcode::Broadcast, Opcode::Iota].contains(&self.module.inst(at).opcode);
        let (mut found, mut repeated): (Vec<InstId>, Vec<InstId>) = Default::default();
        let followers = || members.iter().filter(|&&member| member != self.conv);
        for root in followers().flat_map(|&member| operands(member)) {
            let (mut cone, mut n_read_bytes, mut open): (Vec<InstId>, u64, _) = (Vec::new(), 0, vec![root]);
            while let Some(at) = open.pop() {
                let is_inside = |user: &InstId| members.contains(user) || found.contains(user) || cone.contains(user);
                if is_inside(&at) {
                    continue;
                }
                let has_room = members.len() + found.len() + cone.len() < MOST_MEMBERS;
                if may_feed(at) && has_room && !self.is_root(at) && self.users[at].iter().all(is_inside) {
                    cone.push(at);
                    open.extend(operands(at));
                } else if !is_fill(at) {
                    n_read_bytes += bytes(at);
                }
            }
            if !cone.is_empty() && n_read_bytes <= 2 * bytes(root) {
                found.extend(cone);
            }
        }
        for at in followers().chain(&found).flat_map(|&inst| operands(inst)) {
            let is_inside = members.contains(&at) || found.contains(&at) || repeated.contains(&at);
            if !is_inside && repeated.len() < MOST_MEMBERS && may_feed(at) && is_widened(at) {
                repeated.push(at);
            }
        }
        (found, repeated)
    }

    /// Whether an instruction is computed element by element and in no other fusion, and has no order.
    fn may_be_inside(&self, inst: InstId) -> bool {
        self.module.inst(inst).opcode.is_elementwise()
            && self.module.called(inst).is_empty()
            && !has_order(self.module, inst)
            && !self.waited_for.contains(&inst)
            && !self.group_of.contains_key(&inst)
    }

    /// Sums of columns of members, in as many parts as the convolution has tiles of the size that most sums fit.
    fn sums_of(&self, members: &[InstId]) -> Vec<Sum> {
        let Some((n_rows, n_features)) = rows_of_tiles(self.module, self.conv, self.uses_tf32) else {
            return Vec::new();
        };
        let found = n_rows.into_iter().map(|n_rows| self.sums_of_tiles(members, n_rows, n_features));
        found.rev().max_by_key(Vec::len).unwrap_or_default()
    }

    fn sums_of_tiles(&self, members: &[InstId], n_rows: i64, n_features: i64) -> Vec<Sum> {
        let mut found: Vec<Sum> = Vec::new();
        for &member in members {
            let mut open: Vec<(InstId, Vec<InstId>)> =
                self.users[member].iter().map(|&user| (user, Vec::new())).collect();
            while let Some((at, mut views)) = open.pop() {
                let is_free = |inst: InstId| {
                    !has_order(self.module, inst)
                        && !self.waited_for.contains(&inst)
                        && !self.group_of.contains_key(&inst)
                };
                if !is_free(at) {
                    continue;
                }
                if let Some(what) = column_sum(self.module, at) {
                    let sum = Sum { reduce: at, views, what, n_rows };
                    let is_part = what.source == member && what.n_columns == n_features;
                    let fits = sum.is_whole() || may_split_column_sum(self.module, at, n_rows);
                    let is_read = self.is_root(at) || !self.users[at].is_empty();
                    let has_init = self.module.inst(at).operands.get(1).is_some_and(|&init| is_free(init));
                    if is_part && fits && is_read && has_init && found.len() < MAX_SUMS {
                        found.push(sum);
                    }
                } else if is_view(self.module, at) && !self.is_root(at) && self.users[at].len() == 1 {
                    views.push(at);
                    open.extend(self.users[at].iter().map(|&user| (user, views.clone())));
                }
            }
        }
        found
    }

    fn is_root(&self, inst: InstId) -> bool {
        self.module.comp(self.comp).root.expand() == Some(inst)
    }

    /// Reversals, reshapes and transposes that keep the fastest dim, of which only the convolution reads the result.
    fn maps_of_operands(&self) -> Vec<InstId> {
        let mut found: Vec<InstId> = Vec::new();
        for &operand in &self.module.inst(self.conv).operands {
            let (mut at, mut user) = (operand, self.conv);
            while self.users[at].iter().all(|&other| other == user)
                && !self.is_root(at)
                && !self.group_of.contains_key(&at)
                && keeps_runs(self.module, at)
                && !has_order(self.module, at)
                && !self.waited_for.contains(&at)
            {
                found.push(at);
                user = at;
                let Some(&next) = self.module.inst(at).operands.first() else { break };
                at = next;
            }
        }
        found
    }

    /// How each instruction stands to the convolution, its only member so far. What depends on one member of a fusion depends on all.
    fn relations(&self) -> SecondaryMap<InstId, Relation> {
        let mut relations = SecondaryMap::with_capacity(self.module.n_inst_slots());
        relations[self.conv] = Relation::Member;
        let mut fusions_after: HashSet<usize> = HashSet::new();
        loop {
            let n_before = fusions_after.len();
            for &inst in &self.module.comp(self.comp).insts {
                if relations[inst] == Relation::Member {
                    continue;
                }
                let own = self.group_of.get(&inst);
                let is_after = own.is_some_and(|group| fusions_after.contains(group))
                    || self.module.needed(inst).any(|other| relations[other] != Relation::None);
                if is_after {
                    relations[inst] = Relation::After;
                    fusions_after.extend(own);
                }
            }
            if fusions_after.len() == n_before {
                return relations;
            }
        }
    }

    /// The convolution and what can be computed of its elements one by one, and how all stand to these.
    fn followers(&self) -> (Vec<InstId>, SecondaryMap<InstId, Relation>) {
        let mut relations = self.relations();
        let mut members = vec![self.conv];
        let Some(shape) = self.module.shape(self.conv).as_array() else { return (members, relations) };
        // The text goes from operands to users: what depends on a member by way of no other instruction is found to be one in its turn.
        for &inst in &self.module.comp(self.comp).insts {
            let node = self.module.inst(inst);
            let relation = |inst: InstId| relations[inst];
            let of_member = node.operands.iter().any(|&operand| relation(operand) == Relation::Member);
            let is_like = |other: &ArrayShape| other.dims == shape.dims && other.is_same_order(shape);
            let fits = of_member
                && members.len() < MOST_MEMBERS
                && self.may_be_inside(inst)
                && self.module.shape(inst).as_array().is_some_and(is_like)
                && node.operands.iter().all(|&operand| relation(operand) != Relation::After);
            if fits {
                relations[inst] = Relation::Member;
                members.push(inst);
            }
        }
        (members, relations)
    }
}
