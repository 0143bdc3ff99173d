//! Ways to make a module smaller. Each gives a copy that was cut, without what nothing needs any more; `None` where the cut is
//! not possible or leaves no valid module.

use hlo_analysis::Analyses;
use hlo_ir::attrs::{Attrs, CallAttrs, ConditionalAttrs, FusionAttrs, ParameterAttrs, WhileAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{CompId, InstId, Literal, Module, Opcode, Shape, ShapeId};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use std::collections::{BTreeMap, BTreeSet};

/// What takes the place of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// Zeros.
    Zero,
    /// A new parameter of the entry.
    Parameter,
    /// Its first operand of the same shape.
    Operand,
}

/// The instructions that [`cut`] can replace by `fill`, in text order.
pub(super) fn sites(module: &Module, fill: Fill) -> Vec<InstId> {
    let entry = module.entry();
    let root = entry.and_then(|entry| module.comp(entry).root.expand());
    let is_site = |&inst: &InstId| {
        let instruction = module.inst(inst);
        !is_leaf(module, inst)
            && root != Some(inst)
            && !is_splat(module, inst)
            && match fill {
                Fill::Zero => is_of_arrays(module.shape(inst)),
                Fill::Parameter => Some(instruction.parent) == entry && is_of_arrays(module.shape(inst)),
                Fill::Operand => same_operand(module, inst).is_some(),
            }
    };
    let all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    all.copied().filter(is_site).collect()
}

/// Whether it is a constant scalar that is repeated: what [`Fill::Zero`] makes.
fn is_splat(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    instruction.opcode == Opcode::Broadcast
        && instruction.operands.first().is_some_and(|&operand| module.inst(operand).opcode == Opcode::Constant)
}

fn is_of_arrays(shape: &Shape) -> bool {
    let mut is_it = true;
    shape.for_each_leaf(&mut |_, leaf| is_it &= matches!(leaf, Shape::Array(_)));
    is_it
}

fn same_operand(module: &Module, inst: InstId) -> Option<InstId> {
    let instruction = module.inst(inst);
    let bare = |inst: InstId| module.shapes.bare(module.inst(inst).shape);
    instruction.operands.iter().copied().find(|&operand| bare(operand) == bare(inst))
}

/// Replaces the values of `sites`.
pub(super) fn cut(module: &Module, sites: &[InstId], fill: Fill) -> Option<Module> {
    let mut out = module.clone();
    let replaced = add_fills(&mut out, sites, fill)?;
    redirect(&mut out, &replaced);
    if fill == Fill::Parameter {
        loosen(&mut out);
    }
    finished(out)
}

/// Takes `sites` out of the entry: others that used them take zeros, and what only they used becomes an output, so that
/// it stays without them.
pub(super) fn remove(module: &Module, sites: &[InstId]) -> Option<Module> {
    let entry = module.entry()?;
    let root = module.comp(entry).root.expand()?;
    let removed: BTreeSet<InstId> = sites.iter().copied().collect();
    let mut used: BTreeSet<InstId> = BTreeSet::new();
    for &inst in module.comp(entry).insts.iter().filter(|&inst| *inst != root && !removed.contains(inst)) {
        used.extend(module.inst(inst).operands.iter().copied());
    }
    let before = match n_outputs(module) {
        0 => vec![root],
        _ => module.inst(root).operands.to_vec(),
    };
    let mut outputs: Vec<InstId> = before.into_iter().filter(|inst| !removed.contains(inst)).collect();
    let mut known: BTreeSet<InstId> = outputs.iter().copied().collect();
    for &inst in module.comp(entry).insts.iter().filter(|inst| removed.contains(inst)) {
        for &operand in &module.inst(inst).operands {
            let is_lost = !used.contains(&operand) && !removed.contains(&operand) && !is_leaf(module, operand);
            if is_lost && !is_splat(module, operand) && known.insert(operand) {
                outputs.push(operand);
            }
        }
    }
    let mut out = module.clone();
    let needed: Vec<InstId> = sites.iter().copied().filter(|site| used.contains(site)).collect();
    let replaced = add_fills(&mut out, &needed, Fill::Zero)?;
    redirect(&mut out, &replaced);
    set_outputs(&mut out, &outputs)
}

fn is_leaf(module: &Module, inst: InstId) -> bool {
    matches!(module.inst(inst).opcode, Opcode::Parameter | Opcode::Constant | Opcode::Iota)
}

/// Adds what takes the place of `sites`, and says what of which.
fn add_fills(out: &mut Module, sites: &[InstId], fill: Fill) -> Option<BTreeMap<InstId, InstId>> {
    let mut replaced: BTreeMap<InstId, InstId> = BTreeMap::new();
    let mut zeros: BTreeMap<(CompId, ShapeId), InstId> = BTreeMap::new();
    let lengths: Vec<(CompId, usize)> =
        out.computations().iter().map(|&comp| (comp, out.comp(comp).insts.len())).collect();
    for &site in sites {
        let (comp, shape) = (out.inst(site).parent, out.inst(site).shape);
        let new = match fill {
            Fill::Operand => same_operand(out, site)?,
            Fill::Parameter => add_parameter(out, comp, site),
            Fill::Zero => match zeros.get(&(comp, shape)) {
                Some(&zero) => zero,
                None => {
                    let described = out.shapes.get(shape).clone();
                    let zero = add_zeros(out, comp, &described)?;
                    zeros.insert((comp, shape), zero);
                    zero
                }
            },
        };
        replaced.insert(site, new);
    }
    // What was added has no operands of before, so that it can stand first.
    for (comp, length) in lengths {
        let insts = &mut out.comp_mut(comp).insts;
        let n_added = insts.len() - length;
        insts.rotate_right(n_added);
    }
    Some(replaced)
}

/// Puts what `replaced` says in the place of operands, control predecessors and roots.
fn redirect(module: &mut Module, replaced: &BTreeMap<InstId, InstId>) {
    let last = |mut inst: InstId| {
        while let Some(&next) = replaced.get(&inst) {
            inst = next;
        }
        inst
    };
    for comp in module.computations().to_vec() {
        for inst in module.comp(comp).insts.clone() {
            let instruction = module.inst(inst);
            if instruction.operands.iter().any(|operand| replaced.contains_key(operand)) {
                module.inst_mut(inst).operands.iter_mut().for_each(|operand| *operand = last(*operand));
            }
            if module.inst(inst).control_predecessors().iter().any(|p| replaced.contains_key(p)) {
                module.marks_mut(inst).control_predecessors.retain(|p| !replaced.contains_key(p));
            }
        }
        if let Some(root) = module.comp(comp).root.expand() {
            module.comp_mut(comp).root = Some(last(root)).into();
        }
    }
}

fn add_parameter(module: &mut Module, comp: CompId, like: InstId) -> InstId {
    let (number, shape) = (module.comp(comp).params.len() as i64, module.shape(like).clone());
    let name = module.inst_name(like).to_string();
    let attrs = ParameterAttrs { number, ..ParameterAttrs::default() };
    Builder::new(module, comp).add(&name, Opcode::Parameter, shape, [], attrs)
}

fn add_zeros(module: &mut Module, comp: CompId, shape: &Shape) -> Option<InstId> {
    match shape {
        Shape::Array(array) => {
            let mut builder = Builder::new(module, comp);
            let scalar = builder.constant("zero", Literal::zeros(array.dtype, &[]).ok()?);
            Some(if array.dims.is_empty() { scalar } else { builder.broadcast_scalar("zeros", scalar, array.clone()) })
        }
        Shape::Tuple(parts) => {
            let zeros: Option<Vec<InstId>> = parts.iter().map(|part| add_zeros(module, comp, part)).collect();
            Some(Builder::new(module, comp).add("zeros", Opcode::Tuple, shape.clone(), zeros?, Attrs::Plain))
        }
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => None,
    }
}

/// Forgets what the header says of the entry's signature, which changes.
fn loosen(module: &mut Module) {
    let header = &mut module.header;
    header.input_output_alias.clear();
    header.buffer_donor.clear();
    header.entry_computation_layout = None;
    header.allow_spmd_sharding_propagation_to_parameters = None;
    header.allow_spmd_sharding_propagation_to_output = None;
}

/// Keeps the entry's first `n` instructions; what they compute and do not use becomes the output.
pub(super) fn keep_first(module: &Module, n: usize) -> Option<Module> {
    let mut out = module.clone();
    let entry = out.entry()?;
    let (kept, left): (Vec<_>, Vec<_>) = module.comp(entry).insts.iter().enumerate().partition(|(i, _)| *i < n);
    let mut kept: Vec<InstId> = kept.into_iter().map(|(_, &inst)| inst).collect();
    let is_param = |inst: &InstId| module.inst(*inst).opcode == Opcode::Parameter;
    kept.extend(left.into_iter().map(|(_, &inst)| inst).filter(is_param));
    let used: BTreeSet<InstId> = kept.iter().flat_map(|&inst| module.inst(inst).operands.to_vec()).collect();
    let is_output =
        |&inst: &InstId| !is_param(&inst) && !used.contains(&inst) && module.inst(inst).opcode != Opcode::Constant;
    let outputs: Vec<InstId> = kept.iter().copied().filter(is_output).collect();
    out.comp_mut(entry).insts = kept;
    set_outputs(&mut out, &outputs)
}

/// How many parts the entry's result has, if it is a tuple that the root makes.
pub(super) fn n_outputs(module: &Module) -> usize {
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    let root = root.filter(|&root| module.inst(root).opcode == Opcode::Tuple);
    root.map_or(0, |root| module.inst(root).operands.len())
}

/// Keeps these parts of the entry's result.
pub(super) fn keep_outputs(module: &Module, kept: &[usize]) -> Option<Module> {
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand())?;
    let outputs: Option<Vec<InstId>> = kept.iter().map(|&i| module.inst(root).operands.get(i).copied()).collect();
    set_outputs(&mut module.clone(), &outputs?)
}

fn set_outputs(module: &mut Module, outputs: &[InstId]) -> Option<Module> {
    let entry = module.entry()?;
    let root = match outputs {
        [] => return None,
        [one] => *one,
        several => {
            let shape = Shape::Tuple(several.iter().map(|&inst| module.shape(inst).clone()).collect());
            Builder::new(module, entry).add("out", Opcode::Tuple, shape, several.iter().copied(), Attrs::Plain)
        }
    };
    module.comp_mut(entry).root = Some(root).into();
    loosen(module);
    finished(std::mem::take(module))
}

/// The instructions of all computations that call another one, which [`open`] can put in their place.
pub(super) fn callers(module: &Module) -> Vec<InstId> {
    let is_caller = |&inst: &InstId| !callees(module, inst).is_empty();
    let all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    all.copied().filter(is_caller).collect()
}

/// What can stand in the place of a call, loop (one iteration), conditional (a branch) or fusion: computation and arguments.
fn callees(module: &Module, inst: InstId) -> Vec<(CompId, Vec<InstId>)> {
    let instruction = module.inst(inst);
    let operands = instruction.operands.to_vec();
    let one = |comp: Option<CompId>| comp.into_iter().map(|comp| (comp, operands.clone())).collect();
    if let Some(WhileAttrs { body, .. }) = WhileAttrs::of(&instruction.attrs) {
        one(*body)
    } else if let Some(FusionAttrs { calls, .. }) = FusionAttrs::of(&instruction.attrs) {
        one(*calls)
    } else if let Some(CallAttrs { to_apply, .. }) = CallAttrs::of(&instruction.attrs) {
        one(*to_apply)
    } else if ConditionalAttrs::of(&instruction.attrs).is_some() {
        let branches = module.called(inst);
        branches.into_iter().zip(operands.iter().skip(1)).map(|(branch, &operand)| (branch, vec![operand])).collect()
    } else {
        Vec::new()
    }
}

/// Puts what callers call in their place: of conditionals the branch with this number.
pub(super) fn open(module: &Module, sites: &[InstId], branch: usize) -> Option<Module> {
    let mut out = module.clone();
    for &site in sites {
        let (comp, operands) = callees(module, site).into_iter().nth(branch)?;
        let attrs = CallAttrs { to_apply: Some(comp), ..CallAttrs::default() };
        out.inst_mut(site).marks = None;
        let instruction = out.inst_mut(site);
        instruction.opcode = Opcode::Call;
        instruction.attrs = attrs.into();
        instruction.operands = operands.into_iter().collect();
    }
    let out = finished(out)?;
    simplified(out)
}

/// The module with its calls inlined and its tuples taken apart.
fn simplified(mut module: Module) -> Option<Module> {
    let calls = parse_pipeline("inline-calls,simplify-tuples").ok()?;
    let passes = bind(&calls, hlo_simplify::PASSES).ok()?;
    run_pipeline(&mut module, &mut Analyses::default(), &passes, RunOptions::default()).ok()?;
    finished(module)
}

/// The entry's parameters that nothing uses.
pub(super) fn unused_params(module: &Module) -> Vec<InstId> {
    let Some(entry) = module.entry() else { return Vec::new() };
    let comp = module.comp(entry);
    let mut used: BTreeSet<InstId> = comp.insts.iter().flat_map(|&inst| module.inst(inst).operands.to_vec()).collect();
    used.extend(comp.root.expand());
    comp.params.iter().copied().filter(|param| !used.contains(param)).collect()
}

/// Leaves out these parameters of the entry.
pub(super) fn drop_params(module: &Module, dropped: &[InstId]) -> Option<Module> {
    let mut out = module.clone();
    let entry = out.entry()?;
    let kept = |inst: &InstId| !dropped.contains(inst);
    out.comp_mut(entry).insts.retain(kept);
    let params: Vec<InstId> = module.comp(entry).params.iter().copied().filter(kept).collect();
    for (number, &param) in params.iter().enumerate() {
        if let Some(attrs) = ParameterAttrs::of_mut(&mut out.inst_mut(param).attrs) {
            attrs.number = number as i64;
        }
    }
    out.renumber_params(entry).ok()?;
    loosen(&mut out);
    finished(out)
}

/// Leaves out metadata, configurations and what the header says for people and front ends; shardings stay.
pub(super) fn strip(module: &Module) -> Option<Module> {
    let mut out = module.clone();
    for comp in module.computations() {
        for &inst in &module.comp(*comp).insts {
            let Some(marks) = &module.inst(inst).marks else { continue };
            let kept = hlo_ir::attrs::Marks {
                sharding: marks.sharding.clone(),
                control_predecessors: marks.control_predecessors.clone(),
                ..Default::default()
            };
            out.inst_mut(inst).marks = None;
            if !kept.is_empty() {
                *out.marks_mut(inst) = kept;
            }
        }
    }
    out.header.tables = Default::default();
    out.header.frontend_attributes.clear();
    out.header.origin_recovery_table = Default::default();
    out.header.debug_attributes = Default::default();
    finished(out)
}

/// Takes off what nothing needs; `None` if the module is not valid.
fn finished(mut module: Module) -> Option<Module> {
    module.remove_dead_computations();
    let effectful = module.effectful_computations();
    for comp in module.computations().to_vec() {
        module.remove_dead_given(comp, &effectful);
    }
    module.remove_dead_computations();
    hlo_ir::verify::verify(&module).is_ok().then_some(module)
}
