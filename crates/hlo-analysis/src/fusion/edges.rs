//! Which instructions can be fused at all, and along which edges.
//!
//! An edge from a producer to a consumer is *fusable* if one thread that computes an element of the consumer needs one
//! element of the producer, and nobody else computes that one. Where the dims change on the way (transpose, slice,
//! reduction …), the same threads cannot write the producer's own elements. Such an edge is fusable only if the consumer is
//! the producer's only user. Where an element is read several times (broadcast, gather), the producer must also
//! be cheap, all the way up.

use hashbrown::HashSet;
use hlo_ir::attrs::GatherAttrs;
use hlo_ir::op::{CostRule, FactorRule, Reach};
use hlo_ir::shape::MemorySpace;
use hlo_ir::view::is_view;
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode};
use smallvec::SmallVec;

use super::columns::{ColumnSum, column_sum, may_be_of_rows, min_blocks, min_parts};
use super::role::Role;
use super::rows::{RowPart, find_parts, is_elementwise_of};
use super::split::find_split;

/// What the stages and groups of a computation are made from.
#[derive(Clone, Debug)]
pub(super) struct Edges {
    /// The instructions in text order.
    pub order: Vec<InstId>,
    /// Roles by instruction.
    pub roles: InstMap<Role>,
    /// For each operand slot, whether the edge is fusable.
    pub is_fusable: InstMap<SmallVec<[bool; 4]>>,
    /// For each instruction, whether its fusable operand edges change dims.
    pub(super) changes_dims: InstMap<bool>,
    /// Users within the computation, each once.
    pub users: InstMap<SmallVec<[InstId; 4]>>,
    /// Whether the value is the computation's root.
    pub root: Option<InstId>,
    /// What instructions are to rows; see [`super::rows`].
    pub rows: InstMap<RowPart>,
    /// The stage before which an instruction is not computed.
    pub earliest: InstMap<u32>,
    /// What reads a value for a sum of its columns; see [`super::columns`].
    column_readers: InstMap<bool>,
    /// For a sum of columns, an instruction of another fusion that reads the same: both become one; see [`super::siblings`].
    pub beside: InstMap<Option<InstId>>,
    /// Whether an instruction waits for this one by a control dependency.
    pub is_waited_for: InstMap<bool>,
}

/// Arithmetic that may be done again for each element of a broadcast.
const MAX_REPEATED_WEIGHT: u64 = 3;
/// Arithmetic of all elements of a broadcast together that takes less time than a launch: 8,192 functions such as a power.
const MAX_SMALL_WEIGHT: u64 = 8192 * EXPENSIVE;
/// The weight of a function of one element that is no sum, product or comparison.
const EXPENSIVE: u64 = 1000;
/// The weight of what is never done again.
const NEVER: u64 = 1 << 40;

/// Elements that a thread or a block may reduce one result after the other.
const MAX_SERIAL_REDUCED: u64 = 4096;
/// Results of which there are enough for a device.
const MIN_PARALLEL_RESULTS: u64 = 512;

impl Edges {
    /// The edges of a computation.
    pub(super) fn of(module: &Module, comp: CompId) -> Edges {
        let order = module.comp(comp).insts.clone();
        let mut edges = Edges {
            order,
            roles: InstMap::of(module, comp),
            is_fusable: InstMap::of(module, comp),
            changes_dims: InstMap::of(module, comp),
            users: InstMap::of(module, comp),
            root: module.comp(comp).root.expand(),
            rows: InstMap::of(module, comp),
            earliest: InstMap::of(module, comp),
            column_readers: InstMap::of(module, comp),
            beside: InstMap::of(module, comp),
            is_waited_for: InstMap::of(module, comp),
        };
        for &inst in &edges.order {
            let waits = module.inst(inst).control_predecessors();
            waits.iter().for_each(|&predecessor| edges.is_waited_for[predecessor] = true);
            edges.roles[inst] = role(module, inst);
            for &operand in &module.inst(inst).operands {
                // What an instruction reads several times it reads one after the other here.
                if edges.users[operand].last() != Some(&inst) {
                    edges.users[operand].push(inst);
                }
            }
        }
        edges.drop_views_for_others();
        edges.find_parted(module, comp);
        edges.find_repeatable(module);
        edges.find_rows(module, comp);
        edges.find_column_readers(module);
        edges.find_fusable(module, comp);
        edges
    }

    /// For each user of each instruction, in their order, whether all its edges from there are fusable.
    pub(super) fn fusable_users(&self, module: &Module, comp: CompId) -> InstMap<SmallVec<[bool; 4]>> {
        let mut flags: InstMap<SmallVec<[bool; 4]>> = InstMap::of(module, comp);
        let mut last_user: InstMap<Option<InstId>> = InstMap::of(module, comp);
        for &user in &self.order {
            for (&operand, &is_fusable) in module.inst(user).operands.iter().zip(&self.is_fusable[user]) {
                let is_known = last_user[operand].replace(user) == Some(user);
                match flags[operand].last_mut().filter(|_| is_known) {
                    Some(flag) => *flag &= is_fusable,
                    None => flags[operand].push(is_fusable),
                }
            }
        }
        flags
    }

    /// A view that no fusable instruction reads is best left a view.
    fn drop_views_for_others(&mut self) {
        for &inst in self.order.iter().rev() {
            let is_read = self.users[inst].iter().any(|&user| self.roles[user] == Role::Fusable);
            if self.roles[inst] == Role::Repeatable && !is_read {
                self.roles[inst] = Role::Alone;
            }
            if self.roles[inst] == Role::Repeatable {
                // For the time being: its own operands see a fusable user.
                self.roles[inst] = Role::Fusable;
                self.changes_dims[inst] = true;
            }
        }
    }

    /// What only slices that share it out among them read (queries, keys and values with their bias) is computed by each for its part: as a
    /// whole it would be written, and read again.
    fn find_parted(&mut self, module: &Module, comp: CompId) {
        let mut is_parted: InstMap<bool> = InstMap::of(module, comp);
        let n_elems = |inst: InstId| module.shape(inst).as_array().map_or(u64::MAX, |array| array.n_elems());
        for &inst in self.order.iter().rev() {
            let users = &self.users[inst];
            let hands_on = module.inst(inst).opcode.is_elementwise() || is_view(module, inst);
            if !hands_on || users.is_empty() || self.roles[inst] != Role::Fusable || self.root == Some(inst) {
                continue;
            }
            let is_slice =
                |user: InstId| module.inst(user).opcode == Opcode::Slice && self.roles[user] == Role::Fusable;
            let of_slices = users.iter().map(|&user| n_elems(user)).fold(0, u64::saturating_add);
            let is_shared_out = users.iter().all(|&user| is_slice(user)) && of_slices <= n_elems(inst);
            is_parted[inst] = is_shared_out || users.iter().all(|&user| is_parted[user]);
            if is_parted[inst] {
                self.roles[inst] = Role::Repeatable;
            }
        }
    }

    /// Fills, broadcasts and views with several users are computed again for each.
    fn find_repeatable(&mut self, module: &Module) {
        for &inst in &self.order {
            let has_one_user = self.users[inst].len() == 1;
            let is_marked = std::mem::replace(&mut self.changes_dims[inst], false);
            let is_scalar_constant = module.inst(inst).opcode == Opcode::Constant;
            let reads_repeatable = module.inst(inst).operands.iter().all(|&o| self.roles[o] == Role::Repeatable);
            let is_for_parts = self.users[inst].iter().any(|&user| self.roles[user] == Role::Repeatable);
            if is_marked && (!has_one_user || is_scalar_constant || reads_repeatable || is_for_parts) {
                self.roles[inst] = Role::Repeatable;
            }
            let is_cheap_anywhere =
                reads_repeatable && self.is_mask(module, inst) || self.is_element_of_memory(module, inst);
            if !is_marked && is_cheap_anywhere && self.roles[inst] != Role::Alone {
                self.roles[inst] = Role::Repeatable;
            }
        }
    }

    /// Whether an instruction is cheap to compute of indices and constants, and read by fusions alone: each computes it again.
    fn is_mask(&self, module: &Module, inst: InstId) -> bool {
        let instruction = module.inst(inst);
        let is_cheap = matches!(instruction.opcode.row().cost, CostRule::PerElement(flops) if flops <= 2);
        let is_read = self.users[inst].iter().all(|&user| self.roles[user] != Role::Alone);
        let operands_are_plain = instruction.operands.iter().all(|&operand| {
            let leads = &module.inst(operand).operands;
            leads.iter().all(|&lead| module.inst(lead).operands.is_empty())
        });
        is_cheap && is_read && operands_are_plain && !instruction.operands.is_empty() && self.root != Some(inst)
    }

    /// Whether an instruction is one element of an array in memory, and read by fusions alone: each reads it there.
    fn is_element_of_memory(&self, module: &Module, inst: InstId) -> bool {
        let instruction = module.inst(inst);
        let is_element = module.shape(inst).as_array().is_some_and(|array| array.n_elems() == 1);
        let is_slice = instruction.opcode.row().factors == FactorRule::Slice;
        let is_of_memory = instruction.operands.iter().all(|&operand| self.roles[operand] == Role::Alone);
        let is_read = self.users[inst].iter().all(|&user| self.roles[user] != Role::Alone);
        is_slice && is_element && is_of_memory && is_read && self.root != Some(inst)
    }

    /// Finds what takes part in rows. What carries a row's value is computed with the row and not again in each fusion that needs it.
    fn find_rows(&mut self, module: &Module, comp: CompId) {
        self.rows = find_parts(module, comp, &self.order, &self.roles);
        for &inst in &self.order {
            let is_for_rows =
                |&user: &InstId| self.roles[user] == Role::Fusable && is_elementwise_of(module, user, inst);
            match self.rows[inst] {
                RowPart::None | RowPart::Reduce(_) => {}
                RowPart::Value(_) => self.roles[inst] = Role::Fusable,
                RowPart::Spread(_) if self.root != Some(inst) && self.users[inst].iter().all(is_for_rows) => {
                    self.roles[inst] = Role::Fusable;
                }
                RowPart::Spread(_) => self.rows[inst] = RowPart::None,
            }
        }
    }

    /// Finds what reads a value that is written anyway for a sum of its columns: the threads that compute it add it up.
    fn find_column_readers(&mut self, module: &Module) {
        let reduces = self.order.iter().copied().filter(|&inst| self.roles[inst] == Role::Fusable);
        let sums = reduces.filter_map(|inst| column_sum(module, inst).map(|sum| (inst, sum)));
        let joins = |&(reduce, sum): &(InstId, ColumnSum)| {
            let is_written = self.users[sum.source].len() > 1 || self.root == Some(sum.source);
            let is_computed = self.roles[sum.source] == Role::Fusable && !is_reduce(module, sum.source);
            let (mut at, mut is_private) = (reduce, true);
            while at != sum.reader {
                let Some(&view) = module.inst(at).operands.first() else { return false };
                at = view;
                is_private &= self.users[view].len() == 1 && self.roles[view] == Role::Fusable;
            }
            let is_for_rows = may_be_of_rows(module, &sum) && sum.n_parts >= min_parts(sum.n_elems());
            let has_blocks = is_for_rows || sum.n_blocks() >= min_blocks(sum.n_elems());
            let may_have_blocks = has_blocks || find_split(module, reduce, true).is_some();
            is_written && is_computed && is_private && may_have_blocks
        };
        let readers: Vec<InstId> = sums.filter(joins).map(|(_, sum)| sum.reader).collect();
        readers.into_iter().for_each(|reader| self.column_readers[reader] = true);
    }

    /// Whether the threads that have a row compute both ends of an edge.
    fn stays_in_row(&self, operand: InstId, inst: InstId, slot: usize) -> bool {
        match self.rows[inst] {
            RowPart::None => false,
            RowPart::Reduce(_) => slot == 0 && self.roles[operand] == Role::Fusable,
            RowPart::Value(class) | RowPart::Spread(class) => self.rows[operand].class_of_value() == Some(class),
        }
    }

    /// Lets a broadcast of a row's value be computed again by each fusion that needs it, from memory.
    pub(super) fn leave_row(&mut self, spread: InstId) {
        self.rows[spread] = RowPart::None;
        self.roles[spread] = Role::Repeatable;
        self.cut_edge(spread, 0);
    }

    fn find_fusable(&mut self, module: &Module, comp: CompId) {
        let mut weight: InstMap<u64> = InstMap::of(module, comp);
        for &inst in &self.order {
            let operands = module.inst(inst).operands.clone();
            weight[inst] = own_weight(module, inst);
            let (reach, can) = (reach_of(module, inst), self.roles[inst] != Role::Alone);
            let mut fusable: SmallVec<[bool; 4]> = SmallVec::new();
            for (k, &operand) in operands.iter().enumerate() {
                let is_only_user = self.users[operand].len() == 1 && self.root != Some(operand);
                let same_dims = dims(module, operand).is_some() && dims(module, operand) == dims(module, inst);
                let joins = match (self.roles[operand], reach) {
                    (Role::Alone, _) => false,
                    (Role::Repeatable, _) => true,
                    (Role::Fusable, Reach::Same) => same_dims && self.roles[inst] == Role::Fusable,
                    (Role::Fusable, Reach::Open) => false,
                    (Role::Fusable, Reach::Once) => is_only_user && k == 0,
                    (Role::Fusable, Reach::OnceAny) => is_only_user,
                    (Role::Fusable, Reach::Often) if k == 1 => same_dims && takes_one_element(module, inst),
                    (Role::Fusable, Reach::Often) => {
                        let n_elems = module.shape(inst).as_array().map_or(u64::MAX, |array| array.n_elems());
                        let is_cheap = weight[operand] <= MAX_REPEATED_WEIGHT
                            || weight[operand].saturating_mul(n_elems) <= MAX_SMALL_WEIGHT;
                        is_only_user && k == 0 && is_cheap
                    }
                };
                // What is computed again in each fusion reads memory or what is so too; a reduction's result is memory.
                let is_read_once = self.roles[inst] == Role::Fusable || self.roles[operand] == Role::Repeatable;
                let is_memory = is_reduce(module, operand) && !self.is_epilogue(module, inst, operand);
                // The threads of the operand's elements compute what is made of them here.
                let stays = can && (self.stays_in_row(operand, inst, k) || k == 0 && self.column_readers[inst]);
                let joins = stays || joins && can && is_read_once && !is_memory;
                fusable.push(joins);
                if joins {
                    weight[inst] = weight[inst].saturating_add(weight[operand]);
                    self.changes_dims[inst] |= reach != Reach::Same && self.roles[operand] == Role::Fusable && !stays;
                }
            }
            self.is_fusable[inst] = fusable;
        }
    }

    /// Whether `inst` may be computed by the threads that have just reduced its element: one of few that are long, or one of many.
    fn is_epilogue(&self, module: &Module, inst: InstId, reduce: InstId) -> bool {
        let Some(&operand) = module.inst(reduce).operands.first() else { return false };
        let n_elems = |inst: InstId| module.shape(inst).as_array().map_or(0, |array| array.n_elems());
        let n_results = n_elems(reduce);
        let n_reduced = n_elems(operand) / n_results.max(1);
        let is_short = n_reduced <= MAX_SERIAL_REDUCED || n_results >= MIN_PARALLEL_RESULTS;
        is_short && n_elems(inst) == n_results && n_results > 1
    }

    /// The edges by which values with several users come to a reduction, by way of values that only lead to it. Cutting these
    /// leaves the way to it in its fusion. None if more would be read so than if what it reduces were written and read.
    pub(super) fn shared_sources(&self, module: &Module, reduce: InstId) -> Vec<(InstId, usize)> {
        let (mut found, mut sources) = (Vec::new(), HashSet::new());
        let mut work = vec![reduce];
        while let Some(user) = work.pop() {
            let operands = module.inst(user).operands.iter().zip(&self.is_fusable[user]);
            for (k, (&operand, &is_fusable)) in operands.enumerate() {
                let role = if is_fusable { self.roles[operand] } else { Role::Alone };
                let is_private = self.users[operand].len() == 1 && self.root != Some(operand);
                if role == Role::Fusable && is_private {
                    work.push(operand);
                    continue;
                }
                if role == Role::Fusable {
                    found.push((user, k));
                }
                if role != Role::Repeatable {
                    sources.insert(operand);
                }
            }
        }
        let bytes = |inst: &InstId| module.shape(*inst).memory_bytes();
        let n_reduced_bytes = module.inst(reduce).operands.first().map_or(0, bytes);
        let n_read_bytes: u64 = sources.iter().map(bytes).sum();
        if n_read_bytes <= n_reduced_bytes * 9 / 4 { found } else { Vec::new() }
    }

    /// Parts a sum of columns from what computes it or reads the same. Returns whether it was with either for the sum's sake.
    pub(super) fn part_sum(&mut self, module: &Module, reduce: InstId) -> bool {
        let Some(sum) = column_sum(module, reduce) else { return false };
        let was_beside = self.beside[reduce].take().is_some();
        let was_summed = std::mem::take(&mut self.column_readers[sum.reader]);
        if was_summed {
            self.cut_edge(sum.reader, 0);
        }
        was_beside || was_summed
    }

    /// Makes one edge not fusable.
    pub(super) fn cut_edge(&mut self, user: InstId, slot: usize) {
        if let Some(flag) = self.is_fusable[user].get_mut(slot) {
            *flag = false;
        }
    }

    /// Makes the edges from an instruction not fusable.
    pub(super) fn cut_users(&mut self, module: &Module, inst: InstId) {
        for user in self.users[inst].clone() {
            let slots = module.inst(user).operands.iter().enumerate().filter(|&(_, &operand)| operand == inst);
            slots.for_each(|(slot, _)| self.cut_edge(user, slot));
        }
    }

    /// Makes the edges into instructions that change dims not fusable.
    pub(super) fn cut(&mut self, module: &Module, inst: InstId) {
        for (k, &operand) in module.inst(inst).operands.iter().enumerate() {
            if self.roles[operand] == Role::Fusable
                && let Some(flag) = self.is_fusable[inst].get_mut(k)
            {
                *flag = false;
            }
        }
        self.changes_dims[inst] = false;
    }
}

fn reach_of(module: &Module, inst: InstId) -> Reach {
    module.inst(inst).opcode.row().factors.row().reach
}

fn dims(module: &Module, inst: InstId) -> Option<&[i64]> {
    module.shape(inst).as_array().map(|array| array.dims.as_slice())
}

/// Whether the instruction is a reduction.
pub fn is_reduce(module: &Module, inst: InstId) -> bool {
    module.inst(inst).opcode.row().factors == FactorRule::Reduce
}

/// Whether a gather takes one element for each index, by the thread that has the index.
fn takes_one_element(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let (Some(attrs), Some(&indices)) = (GatherAttrs::of(&instruction.attrs), instruction.operands.get(1)) else {
        return false;
    };
    let rank = module.shape(indices).as_array().map_or(0, |array| array.rank());
    attrs.index_vector_dim == rank as i64 && attrs.slice_sizes.iter().all(|&size| size == 1)
}

fn own_weight(module: &Module, inst: InstId) -> u64 {
    match module.inst(inst).opcode.row().cost {
        CostRule::Free | CostRule::Moves => 0,
        CostRule::PerElement(flops) if flops <= 2 => 1,
        CostRule::PerElement(_) => EXPENSIVE,
        CostRule::Dot
        | CostRule::Convolution
        | CostRule::Reduce
        | CostRule::Scatter
        | CostRule::Window
        | CostRule::Sort
        | CostRule::Cholesky
        | CostRule::TriangularSolve
        | CostRule::Fft
        | CostRule::Called(_)
        | CostRule::Communication
        | CostRule::Unknown(_) => NEVER,
    }
}

/// What an instruction could be by itself.
pub(super) fn role(module: &Module, inst: InstId) -> Role {
    let instruction = module.inst(inst);
    let Some(array) = module.shape(inst).as_array() else { return Role::Alone };
    let is_with_host = |inst: InstId| {
        module.shape(inst).as_array().is_some_and(|array| array.memory_space() == MemorySpace::Host.number())
    };
    let has_order = !instruction.control_predecessors().is_empty();
    let reads_arrays = instruction.operands.iter().all(|&o| module.shape(o).as_array().is_some());
    if is_with_host(inst) || instruction.operands.iter().any(|&operand| is_with_host(operand)) {
        return Role::Alone;
    }
    if has_order || !reads_arrays || array.dynamic != 0 || array.n_elems() == 0 || array.dtype.bits() < 8 {
        return Role::Alone;
    }
    let row = instruction.opcode.row();
    match row.factors {
        FactorRule::Elementwise => {
            let is_cheap = matches!(row.cost, CostRule::PerElement(_) | CostRule::Moves);
            if is_cheap && instruction.opcode.is_pure() { Role::Fusable } else { Role::Alone }
        }
        // Bits seen as another type of the same width; of another width there is a dim more or less.
        FactorRule::BitcastConvert => {
            let keeps_dims = instruction.operands.iter().all(|&operand| dims(module, operand) == dims(module, inst));
            if keeps_dims { Role::Fusable } else { Role::Alone }
        }
        FactorRule::Broadcast | FactorRule::Iota => Role::Repeatable,
        FactorRule::Reshape | FactorRule::Bitcast | FactorRule::Transpose if is_view(module, inst) => Role::Repeatable,
        FactorRule::Reshape
        | FactorRule::Transpose
        | FactorRule::Reverse
        | FactorRule::Slice
        | FactorRule::DynamicSlice
        | FactorRule::DynamicUpdateSlice
        | FactorRule::Pad
        | FactorRule::Concatenate
        | FactorRule::Gather => Role::Fusable,
        FactorRule::Reduce if instruction.operands.len() == 2 => Role::Fusable,
        FactorRule::Structural(_) if instruction.opcode == Opcode::Constant && array.n_elems() == 1 => Role::Repeatable,
        FactorRule::Bitcast
        | FactorRule::Dot
        | FactorRule::Convolution
        | FactorRule::Reduce
        | FactorRule::ReduceWindow
        | FactorRule::SelectAndScatter
        | FactorRule::Sort
        | FactorRule::Scatter
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::BatchNorm
        | FactorRule::CustomCall
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => Role::Alone,
    }
}
