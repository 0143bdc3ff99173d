//! Writes a plan into the program: `sharding=` on every value that the plan decides, and a copy where a taker wants it otherwise.

use crate::error::SearchError;
use crate::plan::ChosenPlan;
use crate::program::{CutId, Program, Taker};
use crate::state::State;
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};

use hlo_ir::edit::Builder;
use hlo_ir::names::FixedHash;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_spmd::Rewrite;
use indexmap::IndexMap;

/// What is to be written; made while the program can still be looked at.
pub(crate) struct Emission {
    shardings: Vec<(InstId, Sharding)>,
    /// Operands that are wanted otherwise: user, operand, sharding.
    copies: Vec<(InstId, u32, LeafSharding)>,
    /// Leaves of the result that are wanted otherwise.
    exits: Vec<(u32, LeafSharding)>,
    n_devices: i64,
}

/// Collects what a plan says.
pub(crate) fn plan_emission(program: &Program<'_>, plan: &ChosenPlan<'_>) -> Emission {
    let module = program.module;
    let mut texts = Texts { plan, known: IndexMap::default() };
    let mut shardings = Vec::new();
    for &comp in &program.leaves.comps {
        for &inst in &module.comp(comp).insts {
            if program.leaves.is_live(inst)
                && let Some(sharding) = sharding_of(program, plan, &mut texts, inst)
            {
                shardings.push((inst, sharding));
            }
        }
    }
    let (mut copies, mut exits) = (Vec::new(), Vec::new());
    for (id, value) in &program.values {
        let Some(own) = plan.annotated(program, id) else { continue };
        let rank = value.dims.len();
        for &(taker, _) in &value.takers {
            let wanted = plan.wanted(program, id, taker);
            let Some(wanted) = wanted.filter(|&state| state != own && state.partial(&plan.network.mesh) == 0) else {
                continue;
            };
            match taker {
                Taker::Op { op, operand } => {
                    copies.push((program.ops[op].inst, operand, texts.of(wanted, rank)));
                }
                Taker::Replaces { leaf, .. } | Taker::Exit(leaf) => exits.push((leaf, texts.of(wanted, rank))),
                // A loop or branch brings what it takes to the sharding that it has.
                Taker::Becomes(_) | Taker::Whole => {}
            }
        }
    }
    correct_roots(program, plan, &mut texts, &mut shardings);
    Emission { shardings, copies, exits, n_devices: plan.network.mesh.n_devices() }
}

/// Texts of shardings, each built once.
struct Texts<'a> {
    plan: &'a ChosenPlan<'a>,
    known: IndexMap<(State, usize), LeafSharding, FixedHash>,
}

impl Texts<'_> {
    fn of(&mut self, state: State, rank: usize) -> LeafSharding {
        let mesh = &self.plan.network.mesh;
        self.known.entry((state, rank)).or_insert_with(|| state.axis_sharding(mesh, rank).to_leaf()).clone()
    }
}

/// The sharding of an instruction's leaves; `None` where all are free.
fn sharding_of(program: &Program<'_>, plan: &ChosenPlan<'_>, texts: &mut Texts<'_>, inst: InstId) -> Option<Sharding> {
    let values: Vec<Option<CutId>> = program.of_leaves(inst).collect();
    sharding_of_values(program, plan, texts, inst, &values)
}

fn sharding_of_values(
    program: &Program<'_>,
    plan: &ChosenPlan<'_>,
    texts: &mut Texts<'_>,
    inst: InstId,
    values: &[Option<CutId>],
) -> Option<Sharding> {
    let states: Vec<Option<(State, usize)>> = values
        .iter()
        .map(|value| value.and_then(|id| Some((plan.annotated(program, id)?, program.values[id].dims.len()))))
        .collect();
    if states.iter().all(Option::is_none) {
        return None;
    }
    let replicated = || LeafSharding::new(ShardingKind::Replicated);
    let mut leaves: Vec<LeafSharding> =
        states.into_iter().map(|state| state.map_or_else(replicated, |(state, rank)| texts.of(state, rank))).collect();
    match program.module.shape(inst) {
        Shape::Tuple(_) => Some(Sharding::Tuple(leaves)),
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => leaves.pop().map(Sharding::Single),
    }
}

/// The root of a computation says what its values become.
fn correct_roots(
    program: &Program<'_>,
    plan: &ChosenPlan<'_>,
    texts: &mut Texts<'_>,
    shardings: &mut [(InstId, Sharding)],
) {
    let module = program.module;
    let place: IndexMap<InstId, usize, FixedHash> =
        shardings.iter().enumerate().map(|(k, (inst, _))| (*inst, k)).collect();
    for &comp in &program.leaves.comps {
        let (Some(root), Some(&to)) = (module.comp(comp).root.expand(), program.leaves.returns_to(comp).first()) else {
            continue;
        };
        if module.inst(root).opcode != Opcode::Tuple {
            continue;
        }
        let values: Vec<Option<CutId>> = program.of_leaves(to).collect();
        if let (Some(&k), Some(sharding)) = (place.get(&root), sharding_of_values(program, plan, texts, root, &values))
        {
            shardings[k].1 = sharding;
        }
    }
}

impl Emission {
    /// Writes everything; gives the number of copies.
    ///
    /// # Errors
    /// An instruction that depends on itself: a defect of this pass.
    pub(crate) fn write(self, module: &mut Module) -> Result<usize, SearchError> {
        for (inst, sharding) in self.shardings {
            module.marks_mut(inst).sharding = Some(sharding);
        }
        let mut edited: Vec<CompId> = Vec::new();
        let mut made: IndexMap<(InstId, LeafSharding), InstId, FixedHash> = IndexMap::default();
        let mut n_copies = 0;
        let mut copy_of = |module: &mut Module, value: InstId, sharding: &LeafSharding| {
            *made.entry((value, sharding.clone())).or_insert_with(|| {
                n_copies += 1;
                add_copy(module, value, sharding)
            })
        };
        for (user, operand, sharding) in &self.copies {
            let Some(&value) = module.inst(*user).operands.get(*operand as usize) else { continue };
            let copy = copy_of(module, value, sharding);
            module.set_operand(*user, *operand as usize, copy);
            edited.push(module.inst(*user).parent);
        }
        let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
        if let Some(root) = root.filter(|_| !self.exits.is_empty()) {
            let root = add_root(module, root);
            for (leaf, sharding) in &self.exits {
                rewrite_exit(module, root, *leaf, sharding, &mut copy_of);
            }
            edited.push(module.inst(root).parent);
        }
        edited.sort();
        edited.dedup();
        for comp in edited {
            Rewrite::new(module, comp)
                .finish(module)
                .map_err(|cyclic| SearchError::depends_on_itself(module, cyclic.0))?;
        }
        say_inside(module).map_err(|cyclic| SearchError::depends_on_itself(module, cyclic))?;
        module.header.num_partitions = self.n_devices;
        module.header.allow_spmd_sharding_propagation_to_parameters = None;
        module.header.allow_spmd_sharding_propagation_to_output = None;
        Ok(n_copies)
    }
}

/// Lets a value within the program have a sharding where only the entry's parameters and its result do: a program of which nothing
/// else says how it is cut is taken for that of one device, by our partitioner as by people.
fn say_inside(module: &mut Module) -> Result<(), InstId> {
    let Some(entry) = module.entry() else { return Ok(()) };
    let Some(root) = module.comp(entry).root.expand() else { return Ok(()) };
    let is_inside = |&inst: &InstId| inst != root && module.inst(inst).opcode != Opcode::Parameter;
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let Some(sharding) = module.sharding(root).cloned() else { return Ok(()) };
    if insts.any(|inst| is_inside(inst) && module.sharding(*inst).is_some()) {
        return Ok(());
    }
    match module.shape(root).clone() {
        // The result becomes the copy of what was the result.
        shape @ Shape::Array(_) => {
            let copy = Builder::new(module, entry).add("result", Opcode::Copy, shape, [root], Attrs::Plain);
            module.marks_mut(copy).sharding = Some(sharding);
            module.comp_mut(entry).root = Some(copy).into();
        }
        Shape::Tuple(_) => {
            let element = module
                .inst(root)
                .operands
                .iter()
                .copied()
                .zip(0..)
                .find(|(operand, _)| module.shape(*operand).as_array().is_some());
            let leaf = element.and_then(|(_, k)| sharding.leaf(k).cloned());
            if let (Some((operand, k)), Some(leaf)) = (element, leaf) {
                let copy = add_copy(module, operand, &leaf);
                module.set_operand(root, k, copy);
            }
        }
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {}
    }
    module.restore_order(entry)
}

/// The root of the entry, as a tuple op where a loop or a branch gives the whole result: what it carries keeps its own shardings.
fn add_root(module: &mut Module, root: InstId) -> InstId {
    let shapes = module.shape(root).as_tuple().map(<[Shape]>::to_vec);
    let Some(shapes) = shapes.filter(|_| module.inst(root).opcode != Opcode::Tuple) else { return root };
    let (comp, shape, sharding) =
        (module.inst(root).parent, module.shape(root).clone(), module.sharding(root).cloned());
    let mut first_leaf = 0;
    let mut elements = Vec::with_capacity(shapes.len());
    for (index, shape) in shapes.into_iter().enumerate() {
        let is_array = shape.as_array().is_some();
        let mut n_leaves = 0;
        shape.for_each_leaf(&mut |_, _| n_leaves += 1);
        let attrs = TupleIndexAttrs { index: index as i64 };
        let element = Builder::new(module, comp).add("result", Opcode::GetTupleElement, shape, [root], attrs);
        let theirs: Option<Vec<LeafSharding>> =
            (first_leaf..first_leaf + n_leaves).map(|leaf| sharding.as_ref()?.leaf(leaf).cloned()).collect();
        module.marks_mut(element).sharding = theirs.and_then(|mut leaves| match is_array {
            true => leaves.pop().map(Sharding::Single),
            false => Some(Sharding::Tuple(leaves)),
        });
        first_leaf += n_leaves;
        elements.push(element);
    }
    let tuple = Builder::new(module, comp).add("result", Opcode::Tuple, shape, elements, Attrs::Plain);
    module.marks_mut(tuple).sharding = sharding;
    module.comp_mut(comp).root = Some(tuple).into();
    tuple
}

/// A leaf of the result gets a copy; of nested ones only the root says how it is cut.
fn rewrite_exit(
    module: &mut Module,
    root: InstId,
    leaf: u32,
    sharding: &LeafSharding,
    copy_of: &mut impl FnMut(&mut Module, InstId, &LeafSharding) -> InstId,
) {
    let comp = module.inst(root).parent;
    if module.shape(root).as_array().is_some() {
        let copy = copy_of(module, root, sharding);
        module.comp_mut(comp).root = Some(copy).into();
        return;
    }
    let given = module.inst(root).operands.get(leaf as usize).copied();
    let is_flat = module.shape(root).as_tuple().is_some_and(|all| all.iter().all(|shape| shape.as_array().is_some()));
    if let Some(given) = given.filter(|_| is_flat) {
        let copy = copy_of(module, given, sharding);
        module.set_operand(root, leaf as usize, copy);
    }
    if let Some(Sharding::Tuple(leaves)) = &mut module.marks_mut(root).sharding
        && let Some(slot) = leaves.get_mut(leaf as usize)
    {
        *slot = sharding.clone();
    }
}

fn add_copy(module: &mut Module, value: InstId, sharding: &LeafSharding) -> InstId {
    let (comp, hint, shape) =
        (module.inst(value).parent, module.inst_name(value).to_string(), module.shape(value).clone());
    let metadata = module.inst(value).marks.as_ref().and_then(|marks| marks.metadata.clone());
    let copy = Builder::new(module, comp).add(&hint, Opcode::Copy, shape, [value], Attrs::Plain);
    let marks = module.marks_mut(copy);
    marks.metadata = metadata;
    marks.sharding = Some(Sharding::Single(sharding.clone()));
    copy
}
