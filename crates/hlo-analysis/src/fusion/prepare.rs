//! Rewrites before fusion: broadcasts that repeat nothing become reshapes, which are views. Copies that keep the layout go.
//! Long reductions to few results go in two steps, so that many blocks take part. Cheap values that are needed late are
//! computed again ([`super::repeat`]). Views go above operations that they look at ([`super::lift_views`]).

use super::columns::{ColumnSum, column_sum, may_be_of_rows};
use super::edges::Edges;
use super::groups::StagedEdges;
use super::lift_views::lift_views;
use super::members::components;
use super::neutral::plain_operation;
use super::repeat::repeat_cheap_values;
use super::rows::{RowPart, trailing_reduction};
use super::siblings::sums_beside_rows;
use super::split::{build_split, find_split};
use super::spreads::part_spreads;
use super::stages::find_stages;
use hashbrown::HashSet;
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode, Shape};
use smallvec::SmallVec;

/// What was rewritten before fusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prepared {
    /// Broadcasts that became reshapes.
    pub n_views: usize,
    /// Views that are of the operands of the operation that they were of.
    pub n_lifted: usize,
    /// Reductions that go in two steps.
    pub n_split: usize,
    /// Copies that are gone.
    pub n_copies: usize,
    /// Values that are computed again for late users.
    pub n_repeated: usize,
}

/// Rewrites a computation so that its fusible groups are what a backend computes. The values stay the same.
///
/// # Errors
/// An instruction on a cycle, which no verified module has.
pub fn prepare(module: &mut Module, comp: CompId) -> Result<Prepared, InstId> {
    prepare_and_stage(module, comp).map(|(prepared, _)| prepared)
}

/// The same, with what [`find_groups_of`](super::find_groups_of) begins with where that was found on the way.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_and_stage(module: &mut Module, comp: CompId) -> Result<(Prepared, StagedEdges), InstId> {
    let n_views = rewrite_idle_broadcasts(module, comp) + rewrite_idle_reductions(module, comp)?;
    let (n_lifted, n_split) = (lift_views(module, comp), split_reductions(module, comp));
    if n_lifted + n_split > 0 {
        module.restore_order(comp)?;
    }
    let n_copies = remove_idle_copies(module, comp);
    if part_spreads(module, comp) {
        module.restore_order(comp)?;
    }
    let (n_repeated, staged) = repeat_cheap_values(module, comp)?;
    Ok((Prepared { n_views, n_lifted, n_split, n_copies, n_repeated }, staged))
}

/// Turns broadcasts that only add dims of size 1 into reshapes. Returns how many.
fn rewrite_idle_broadcasts(module: &mut Module, comp: CompId) -> usize {
    let mut n_rewritten = 0;
    for inst in module.comp(comp).insts.clone() {
        let instruction = module.inst(inst);
        let (Opcode::Broadcast, Attrs::Dims(attrs)) = (instruction.opcode, &instruction.attrs) else { continue };
        let operand = instruction.operands.first().and_then(|&o| module.shape(o).as_array());
        let (Some(from), Some(to)) = (operand, module.shape(inst).as_array()) else { continue };
        let long: SmallVec<[i64; 4]> =
            attrs.dimensions.iter().zip(&from.dims).filter(|(_, n)| **n != 1).map(|(&dim, _)| dim).collect();
        if from.n_elems() == to.n_elems() && long.is_sorted() && from.dynamic == 0 && to.dynamic == 0 {
            let instruction = module.inst_mut(inst);
            instruction.opcode = Opcode::Reshape;
            instruction.attrs = ReshapeAttrs::default().into();
            n_rewritten += 1;
        }
    }
    n_rewritten
}

/// Turns reductions of one element each into the operation of their initial value and that element. Returns how many. The gradient
/// of a broadcast to dims of which one has one element is such.
fn rewrite_idle_reductions(module: &mut Module, comp: CompId) -> Result<usize, InstId> {
    let mut n_rewritten = 0;
    for inst in module.comp(comp).insts.clone() {
        let instruction = module.inst(inst);
        let (Opcode::Reduce, Attrs::Reduce(attrs)) = (instruction.opcode, &instruction.attrs) else { continue };
        let &[operand, init] = instruction.operands.as_slice() else { continue };
        let (Some(from), Some(to)) = (module.shape(operand).as_array(), module.shape(inst).as_array()) else {
            continue;
        };
        let Some(opcode) = plain_operation(module, attrs) else { continue };
        if from.n_elems() != to.n_elems() || from.dynamic != 0 || to.n_elems() == 0 {
            continue;
        }
        let (shape, hint) = (Shape::Array(to.clone()), module.inst_name(inst).to_string());
        let mut build = Builder::new(module, comp);
        let element = build.add(&hint, Opcode::Reshape, shape.clone(), [operand], ReshapeAttrs::default());
        let inits = build.add(&hint, Opcode::Broadcast, shape, [init], DimsAttrs::default());
        let instruction = module.inst_mut(inst);
        instruction.opcode = opcode;
        instruction.operands = [inits, element].into_iter().collect();
        instruction.attrs = Attrs::Plain;
        n_rewritten += 1;
    }
    if n_rewritten > 0 {
        module.restore_order(comp)?;
    }
    Ok(n_rewritten)
}

/// The sums of columns of what teams of threads have row by row.
fn sums_by_rows(module: &Module, comp: CompId) -> HashSet<InstId> {
    let insts = &module.comp(comp).insts;
    let may_be = |inst: &InstId| column_sum(module, *inst).filter(|sum| may_be_of_rows(module, sum));
    let sums: Vec<InstId> = insts.iter().copied().filter(|inst| may_be(inst).is_some()).collect();
    if sums.is_empty() {
        return HashSet::new();
    }
    let mut edges = Edges::of(module, comp);
    // What is made of a sum is made of its second step.
    for sum in sums.into_iter().filter(|&sum| find_split(module, sum, true).is_some()) {
        edges.cut_users(module, sum);
    }
    let (stages, _) = find_stages(module, comp, &edges);
    let mut found = HashSet::new();
    for members in components(module, comp, &edges, &stages) {
        let of_rows = members.iter().filter(|&&member| matches!(edges.rows[member], RowPart::Reduce(_)));
        let rows = of_rows.filter_map(|&reduce| trailing_reduction(module, reduce)).next();
        let Some(dims) = rows.and_then(|(rows, _)| module.shape(rows).as_array()).map(|array| &array.dims) else {
            continue;
        };
        let is_of_them = |sum: ColumnSum| module.shape(sum.source).as_array().is_some_and(|array| array.dims == *dims);
        found.extend(members.iter().copied().filter(|member| may_be(member).is_some_and(is_of_them)));
    }
    found.extend(sums_beside_rows(module, comp, &edges, &stages));
    found
}

/// Lets long reductions with few results go in two steps. Returns how many.
fn split_reductions(module: &mut Module, comp: CompId) -> usize {
    let mut n_split = 0;
    let by_rows = sums_by_rows(module, comp);
    for inst in module.comp(comp).insts.clone() {
        if let Some(split) = find_split(module, inst, by_rows.contains(&inst)) {
            n_split += usize::from(build_split(module, comp, inst, &split).is_some());
        }
    }
    n_split
}

/// Lets users of copies that keep the layout read what is copied. Returns how many.
fn remove_idle_copies(module: &mut Module, comp: CompId) -> usize {
    let mut n_removed = 0;
    // What others wait for by a control dependency stays.
    let named = |inst: &InstId| module.inst(*inst).control_predecessors();
    let kept: HashSet<InstId> = module.comp(comp).insts.iter().flat_map(named).copied().collect();
    let mut source: InstMap<Option<InstId>> = InstMap::of(module, comp);
    for inst in module.comp(comp).insts.clone() {
        let operands = module.inst(inst).operands.clone();
        for (k, operand) in operands.iter().enumerate() {
            if let Some(source) = source[*operand] {
                module.inst_mut(inst).operands[k] = source;
            }
        }
        let instruction = module.inst(inst);
        if instruction.opcode != Opcode::Copy || kept.contains(&inst) || !instruction.control_predecessors().is_empty()
        {
            continue;
        }
        let Some(&operand) = instruction.operands.first() else { continue };
        let shapes = (module.shape(operand).as_array(), module.shape(inst).as_array());
        let is_root = module.comp(comp).root.expand() == Some(inst);
        if let (Some(from), Some(to)) = shapes
            && from.same_type(to)
            && from.is_same_order(to)
            && from.memory_space() == to.memory_space()
            && !is_root
        {
            source[inst] = Some(operand);
            n_removed += 1;
        }
    }
    if n_removed > 0 {
        module.comp_mut(comp).insts.retain(|&inst| source[inst].is_none());
    }
    n_removed
}
