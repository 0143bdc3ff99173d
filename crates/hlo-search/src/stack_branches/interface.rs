//! The state of a step held stacked: parameters of all branches, and the results that replace them, are one array each.

use super::find::{Branches, GroupId};
use super::write::pick;
use hlo_ir::attrs::{Attrs, DimsAttrs, ParameterAttrs, ReshapeAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::header::EntryLayout;
use hlo_ir::shape::Dims;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape};
use serde::Serialize;

/// A parameter that holds what several held.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StackedParam {
    /// Its number.
    pub number: usize,
    /// The numbers of those that it holds, in the order of its first dim.
    pub of: Vec<usize>,
    /// Their names.
    pub names: Vec<String>,
    /// Where the result that replaces it stands in the result.
    pub output: usize,
    /// Where the results that replaced those stood.
    pub outputs: Vec<usize>,
}

/// What is stacked before anything is written.
#[derive(Clone, Debug)]
pub(super) struct StateGroup {
    pub params: GroupId,
    pub results: GroupId,
    of: Vec<usize>,
    outputs: Vec<usize>,
}

/// The groups of parameters that results of the same branches replace.
pub(super) fn find_state(module: &Module, branches: &Branches) -> Vec<StateGroup> {
    let entry = module.comp(branches.comp);
    let Some(root) = entry.root.expand().filter(|&root| module.inst(root).opcode == Opcode::Tuple) else {
        return Vec::new();
    };
    if module.entry() != Some(branches.comp) {
        return Vec::new();
    }
    let results = &module.inst(root).operands;
    let output_of = |number: usize| {
        let mut aliases = module.header.input_output_alias.iter().filter(|alias| alias.param == number as i64);
        let alias = aliases.next().filter(|alias| alias.param_index.is_empty() && alias.output_index.len() == 1)?;
        let output = usize::try_from(alias.output_index[0]).ok()?;
        (aliases.next().is_none() && output < results.len()).then_some(output)
    };
    let mut all = Vec::new();
    for (group, insts) in &branches.groups {
        if module.inst(insts[0]).opcode != Opcode::Parameter {
            continue;
        }
        let numbers: Option<Vec<usize>> =
            insts.iter().map(|&inst| entry.params.iter().position(|&param| param == inst)).collect();
        let Some(of) = numbers else { continue };
        let Some(outputs) = of.iter().map(|&number| output_of(number)).collect::<Option<Vec<usize>>>() else {
            continue;
        };
        let given: Vec<InstId> = outputs.iter().map(|&output| results[output]).collect();
        if let Some(results) = branches.group_of_all(&given) {
            all.push(StateGroup { params: group, results, of, outputs });
        }
    }
    all
}

/// Adds a parameter for each group; its number is given by [`write_interface`].
pub(super) fn add_params(module: &mut Module, branches: &Branches, state: &[StateGroup]) -> Vec<InstId> {
    let mut new = Vec::with_capacity(state.len());
    for group in state {
        let first = branches.groups[group.params][0];
        let Some(array) = module.shape(first).as_array().cloned() else { continue };
        let dims = std::iter::once(group.of.len() as i64).chain(array.dims.iter().copied());
        let shape = Shape::Array(ArrayShape::new(array.dtype, dims).with_row_major());
        let (hint, marks) = (module.inst_name(first).to_string(), module.inst(first).marks.clone());
        let attrs = ParameterAttrs { number: i64::MAX, ..ParameterAttrs::default() };
        let param = Builder::new(module, branches.comp).add(&hint, Opcode::Parameter, shape, [], attrs);
        module.inst_mut(param).marks = marks;
        new.push(param);
    }
    new
}

/// Where what had a number goes: the first of a group takes the place of all of it.
struct Renumbering {
    /// New number by old one.
    to: Vec<usize>,
    /// What has each new number: an old one, or a group.
    from: Vec<Result<usize, usize>>,
}

impl Renumbering {
    fn new<'s>(n_old: usize, lists: impl Iterator<Item = &'s Vec<usize>>) -> Renumbering {
        let lists: Vec<&Vec<usize>> = lists.collect();
        let (mut to, mut from) = (vec![0; n_old], Vec::new());
        for k in 0..n_old {
            match lists.iter().position(|list| list.contains(&k)) {
                Some(group) if lists[group].iter().min() == Some(&k) => {
                    lists[group].iter().for_each(|&member| to[member] = from.len());
                    from.push(Err(group));
                }
                Some(_) => {}
                None => {
                    to[k] = from.len();
                    from.push(Ok(k));
                }
            }
        }
        Renumbering { to, from }
    }
}

/// What stands for the state: the new parameters, and the results that replace them, by group.
pub(super) struct NewState {
    pub params: Vec<InstId>,
    pub results: Vec<InstId>,
}

/// Renumbers parameters and results, and corrects the header. The parameters that are held stacked have no user any more.
pub(super) fn write_interface(
    module: &mut Module,
    branches: &Branches,
    state: &[StateGroup],
    new: &NewState,
) -> Vec<StackedParam> {
    let comp = branches.comp;
    let Some(root) = module.comp(comp).root.expand() else { return Vec::new() };
    let old_params = module.comp(comp).params.clone();
    let params = Renumbering::new(old_params.len(), state.iter().map(|group| &group.of));
    let old_results = module.inst(root).operands.to_vec();
    let results = Renumbering::new(old_results.len(), state.iter().map(|group| &group.outputs));
    let of_params: Vec<InstId> =
        params.from.iter().map(|from| from.map_or_else(|group| new.params[group], |k| old_params[k])).collect();
    let gone: Vec<InstId> = old_params.iter().copied().filter(|param| !of_params.contains(param)).collect();
    let of_results: Vec<InstId> =
        results.from.iter().map(|from| from.map_or_else(|group| new.results[group], |k| old_results[k])).collect();
    for (number, &param) in of_params.iter().enumerate() {
        if let Some(attrs) = ParameterAttrs::of_mut(&mut module.inst_mut(param).attrs) {
            attrs.number = number as i64;
        }
    }
    let shape = Shape::Tuple(of_results.iter().map(|&result| module.shape(result).clone()).collect());
    let shape = module.shapes.intern(shape);
    let node = module.inst_mut(root);
    (node.operands, node.shape) = (of_results.into_iter().collect(), shape);
    // What the branches were still takes the old parameters.
    module.remove_dead(comp);
    let computation = module.comp_mut(comp);
    computation.insts.retain(|inst| !gone.contains(inst));
    computation.params = of_params.clone();
    if module.header.entry_computation_layout.is_some() {
        let params = of_params.iter().map(|&param| module.inst(param).shape).collect();
        module.header.entry_computation_layout = Some(EntryLayout { params, result: shape });
    }
    let new_number =
        |old: i64, to: &Renumbering| usize::try_from(old).ok().and_then(|k| to.to.get(k)).map_or(old, |&k| k as i64);
    let header = &mut module.header;
    for alias in &mut header.input_output_alias {
        alias.param = new_number(alias.param, &params);
        if let Some(first) = alias.output_index.first_mut() {
            *first = new_number(*first, &results);
        }
    }
    header.input_output_alias.dedup();
    let mut seen: Vec<(i64, Dims)> = Vec::new();
    header.input_output_alias.retain(|alias| {
        let key = (alias.param, alias.param_index.clone());
        let is_new = !seen.contains(&key);
        seen.push(key);
        is_new
    });
    header.buffer_donor.iter_mut().for_each(|donor| donor.param = new_number(donor.param, &params));
    header.allow_spmd_sharding_propagation_to_parameters = None;
    header.allow_spmd_sharding_propagation_to_output = None;
    let name = |&number: &usize| module.inst_name(old_params[number]).to_string();
    let told = |group: &StateGroup| StackedParam {
        names: group.of.iter().map(name).collect(),
        number: params.to[group.of[0]],
        of: group.of.clone(),
        output: results.to[group.outputs[0]],
        outputs: group.outputs.clone(),
    };
    state.iter().map(told).collect()
}

/// The program that makes the stacked state of that of `before`: it takes the parameters that are held stacked, in the order of their
/// numbers, and gives the stacked ones in the order of theirs.
pub fn pack_program(before: &Module, state: &[StackedParam]) -> Option<Module> {
    program("pack", before, state, |module, comp, inputs| {
        let mut results = Vec::with_capacity(state.len());
        for param in state {
            let rows: Vec<InstId> = param
                .of
                .iter()
                .map(|number| {
                    let input = inputs(*number)?;
                    let array = module.shape(input).as_array()?.clone();
                    let row = std::iter::once(1).chain(array.dims.iter().copied());
                    let shape = Shape::Array(ArrayShape::new(array.dtype, row).with_row_major());
                    Some(Builder::new(module, comp).add(
                        "row",
                        Opcode::Reshape,
                        shape,
                        [input],
                        ReshapeAttrs::default(),
                    ))
                })
                .collect::<Option<_>>()?;
            let array = module.shape(rows[0]).as_array()?.clone();
            let dims = std::iter::once(rows.len() as i64).chain(array.dims[1..].iter().copied());
            let shape = Shape::Array(ArrayShape::new(array.dtype, dims).with_row_major());
            let attrs = DimsAttrs { dimensions: Dims::from_slice(&[0]) };
            results.push(Builder::new(module, comp).add("stacked", Opcode::Concatenate, shape, rows, attrs));
        }
        Some(results)
    })
}

/// The program that gives the state of `before` back from the stacked one: the inverse of [`pack_program`].
pub fn unpack_program(before: &Module, state: &[StackedParam]) -> Option<Module> {
    let entry = before.entry()?;
    let mut module = Module::new("unpack");
    let name = module.names.fresh("main");
    let comp = module.add_computation(name);
    module.set_entry(comp);
    let mut parts: Vec<(usize, InstId)> = Vec::new();
    for (number, param) in state.iter().enumerate() {
        let old = *before.comp(entry).params.get(*param.of.first()?)?;
        let array = before.shape(old).as_array()?;
        let dims = std::iter::once(param.of.len() as i64).chain(array.dims.iter().copied());
        let shape = Shape::Array(ArrayShape::new(array.dtype, dims).with_row_major());
        let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
        let stacked = Builder::new(&mut module, comp).add("stacked", Opcode::Parameter, shape, [], attrs);
        for (branch, &old) in param.of.iter().enumerate() {
            parts.push((old, pick(&mut module, stacked, branch)));
        }
    }
    parts.sort_by_key(|part| part.0);
    finish(module, comp, parts.into_iter().map(|part| part.1).collect())
}

fn program(
    name: &str,
    before: &Module,
    state: &[StackedParam],
    body: impl Fn(&mut Module, CompId, &dyn Fn(usize) -> Option<InstId>) -> Option<Vec<InstId>>,
) -> Option<Module> {
    let entry = before.entry()?;
    let mut module = Module::new(name);
    let of_entry = module.names.fresh("main");
    let comp = module.add_computation(of_entry);
    module.set_entry(comp);
    let mut numbers: Vec<usize> = state.iter().flat_map(|param| param.of.iter().copied()).collect();
    numbers.sort();
    let mut inputs: Vec<(usize, InstId)> = Vec::with_capacity(numbers.len());
    for (new, &old) in numbers.iter().enumerate() {
        let param = *before.comp(entry).params.get(old)?;
        let (hint, shape) = (before.inst_name(param).to_string(), before.shape(param).clone());
        let attrs = ParameterAttrs { number: new as i64, ..ParameterAttrs::default() };
        inputs.push((old, Builder::new(&mut module, comp).add(&hint, Opcode::Parameter, shape, [], attrs)));
    }
    let input = |number: usize| inputs.iter().find(|input| input.0 == number).map(|input| input.1);
    let results = body(&mut module, comp, &input)?;
    finish(module, comp, results)
}

fn finish(mut module: Module, comp: CompId, results: Vec<InstId>) -> Option<Module> {
    let shape = Shape::Tuple(results.iter().map(|&result| module.shape(result).clone()).collect());
    let root = Builder::new(&mut module, comp).add("all", Opcode::Tuple, shape, results, Attrs::Plain);
    module.comp_mut(comp).root = Some(root).into();
    Some(module)
}
