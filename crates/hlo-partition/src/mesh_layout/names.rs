//! Which class has which name: those that a sidecar gives, and suggestions for the others.

use super::classes::{DimClass, DimPlace, DimProgram};
use super::parts::PartId;
use super::path::path_text;
use super::text::{NamedTarget, Naming, parse_names};
use crate::error::PartitionError;
use hlo_ir::diag::Entity;
use hlo_ir::names::FixedHash;
use hlo_ir::{InstId, Module};
use indexmap::{IndexMap, IndexSet};

/// A class with its name.
#[derive(Clone, Debug)]
pub(crate) struct NamedClass {
    pub name: String,
    /// Whether the user gave it, or it is made of the first place of the class.
    pub is_given: bool,
    pub class: DimClass,
}

/// A place of the sidecar, found in the module.
struct FoundPlace {
    place: DimPlace,
    part: PartId,
    naming: Naming,
}

/// Names all classes of a program; classes of one name become one.
///
/// # Errors
/// A text that is no list of names, a place that is not there, two names for one class, and one name for dims of two sizes.
pub(crate) fn name_classes(program: &mut DimProgram, sidecar: &str) -> Result<Vec<NamedClass>, PartitionError> {
    let mut found: Vec<FoundPlace> = Vec::new();
    for naming in parse_names(sidecar)? {
        let place = find_place(program, &naming)?;
        let parts = program.parts_of(place.value, place.dim as usize);
        let Some(&part) = parts.get(place.part as usize) else {
            return Err(no_such_part(program, &naming, place, parts.len()));
        };
        found.push(FoundPlace { place, part, naming });
    }
    check_sizes(program, &found)?;
    // What has one name is one dim.
    let mut first: IndexMap<&str, PartId, FixedHash> = IndexMap::default();
    for one in &found {
        let part = *first.entry(&one.naming.name).or_insert(one.part);
        program.join(part, one.part);
    }
    let mut given: IndexMap<PartId, &FoundPlace, FixedHash> = IndexMap::default();
    for one in &found {
        // A part that another place showed to be several is named by its major one.
        let parts = program.parts_of(one.place.value, one.place.dim as usize);
        let Some(&part) = parts.get(one.place.part as usize) else { continue };
        let known = given.entry(part).or_insert(one);
        if known.naming.name != one.naming.name {
            return Err(two_names(program, part, (known, one)));
        }
    }
    let mut taken: IndexSet<String, FixedHash> = given.values().map(|one| one.naming.name.clone()).collect();
    let classes = program.classes().into_iter().map(|class| match given.get(&class.part) {
        Some(one) => NamedClass { name: one.naming.name.clone(), is_given: true, class },
        None => NamedClass { name: suggest_name(program, &class, &mut taken), is_given: false, class },
    });
    Ok(classes.collect())
}

/// The dim that a place means.
fn find_place(program: &DimProgram, naming: &Naming) -> Result<DimPlace, PartitionError> {
    let module = &program.module;
    let inst = find_target(program, &naming.target).map_err(|text| wrong_place(naming, Entity::Module, text))?;
    let entity = program.entity(inst);
    let (shape, n_leaves) = (module.shape(inst), module.shape(inst).n_leaves());
    let leaf = match (naming.leaf, shape.as_array()) {
        (Some(leaf), None) if leaf < n_leaves => leaf,
        (Some(leaf), None) => {
            let text = format!("expected a leaf below {n_leaves}, found {leaf}");
            return Err(wrong_place(naming, entity, text));
        }
        (None, None) => {
            let text =
                format!("expected a leaf of the tuple %{0}, as in `%{0}:0.0`, found none", module.inst_name(inst));
            return Err(wrong_place(naming, entity, text));
        }
        (Some(0) | None, Some(_)) => 0,
        (Some(leaf), Some(_)) => {
            return Err(wrong_place(naming, entity, format!("expected leaf 0 of an array, found leaf {leaf}")));
        }
    };
    let Some(value) = program.graph.of_leaf(inst, leaf) else {
        let text =
            format!("expected a value that is computed for a result, found the unused %{}", module.inst_name(inst));
        return Err(wrong_place(naming, entity, text));
    };
    let dims = &program.graph.values[value].dims;
    match dims.get(naming.dim) {
        Some(dim) if dim.size != 1 => Ok(DimPlace { value, dim: naming.dim as u32, part: naming.part as u32 }),
        Some(_) => {
            let text = format!("expected a dim of several elements, found dim {} of size 1", naming.dim);
            Err(wrong_place(naming, entity, text))
        }
        None => {
            let text = format!(
                "expected a dim of {}, which has {}, found dim {}",
                program.tensor_text(value),
                dims.len(),
                naming.dim
            );
            Err(wrong_place(naming, entity, text))
        }
    }
}

/// The instruction that a place names.
fn find_target(program: &DimProgram, target: &NamedTarget) -> Result<InstId, String> {
    let module = &program.module;
    match target {
        NamedTarget::Instruction(name) => {
            let mut named = instructions(module).filter(|&inst| module.inst_name(inst) == name);
            match (named.next(), named.next()) {
                (Some(inst), None) => Ok(inst),
                (Some(_), Some(_)) => {
                    Err(format!("expected one instruction %{name}, found several computations with one"))
                }
                (None, _) => Err(format!("expected an instruction, found no %{name}")),
            }
        }
        NamedTarget::Framework(name) => {
            let params = module.entry().map_or(&[][..], |entry| &module.comp(entry).params);
            let mut named = params.iter().copied().filter(|&param| program.op_name(param) == Some(name));
            match (named.next(), named.next()) {
                (Some(inst), None) => Ok(inst),
                (Some(_), Some(_)) => Err(format!("expected one parameter \"{name}\", found several")),
                (None, _) => {
                    let known: Vec<&str> = params.iter().filter_map(|&param| program.op_name(param)).take(8).collect();
                    let known = if known.is_empty() { "none with a name".to_string() } else { known.join(", ") };
                    Err(format!("expected what the metadata calls a parameter ({known}), found \"{name}\""))
                }
            }
        }
    }
}

fn instructions(module: &Module) -> impl Iterator<Item = InstId> + '_ {
    module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied()
}

/// A name stands for one size.
fn check_sizes(program: &DimProgram, found: &[FoundPlace]) -> Result<(), PartitionError> {
    for (at, one) in found.iter().enumerate() {
        let Some(first) = found[..at].iter().find(|first| first.naming.name == one.naming.name) else { continue };
        let (size, other) = (program.parts.size(first.part), program.parts.size(one.part));
        if size != other {
            let text = format!(
                "names, line {}: `{}`: expected one size, found {size} at {} (line {}) and {other} at {}",
                one.naming.line, one.naming.name, first.naming.text, first.naming.line, one.naming.text
            );
            return Err(PartitionError::about("names", Entity::Module, text));
        }
    }
    Ok(())
}

fn two_names(program: &DimProgram, part: PartId, (first, second): (&FoundPlace, &FoundPlace)) -> PartitionError {
    let text = format!(
        "names, line {}: expected one name for one dim, found `{}` at {} (line {}) and `{}` at {}; \
         ops tie these two: {}",
        second.naming.line,
        first.naming.name,
        first.naming.text,
        first.naming.line,
        second.naming.name,
        second.naming.text,
        path_text(program, part, first.place, second.place),
    );
    let inst = program.graph.values[second.place.value].inst;
    PartitionError::about("names", program.entity(inst), text)
}

fn no_such_part(program: &DimProgram, naming: &Naming, place: DimPlace, n_parts: usize) -> PartitionError {
    let text = format!(
        "expected a part below {n_parts} of dim {} of {}, found part {}",
        place.dim,
        program.tensor_text(place.value),
        place.part
    );
    wrong_place(naming, program.entity(program.graph.values[place.value].inst), text)
}

fn wrong_place(naming: &Naming, entity: Entity, text: String) -> PartitionError {
    let text = format!("names, line {}: `{}` at {}: {text}", naming.line, naming.name, naming.text);
    PartitionError::about("names", entity, text)
}

/// Words of a path that a suggested name has.
const MOST_WORDS: usize = 4;

/// The last words of what the framework calls the first value of a class, else of the instruction, with the number of the dim.
fn suggest_name(program: &DimProgram, class: &DimClass, taken: &mut IndexSet<String, FixedHash>) -> String {
    let base = class.places.first().map_or_else(
        || "dim".to_string(),
        |place| {
            let value = &program.graph.values[place.value];
            let is_param = program.module.inst(value.inst).opcode == hlo_ir::Opcode::Parameter;
            let name = program.op_name(value.inst).filter(|_| is_param);
            let name = name.unwrap_or_else(|| program.module.inst_name(value.inst));
            let leaf = if program.module.shape(value.inst).as_array().is_some() {
                String::new()
            } else {
                format!("_{}", value.leaf)
            };
            let part = if place.part == 0 { String::new() } else { format!("_{}", place.part) };
            format!("{}{leaf}_{}{part}", last_words(name), place.dim)
        },
    );
    let mut name = base.clone();
    let mut n = 1;
    while !taken.insert(name.clone()) {
        n += 1;
        name = format!("{base}_{n}");
    }
    name
}

/// The last words of a path such as `state.params['Dense_0']['kernel']`, or of what JAX makes of it, `state_params__Dense_0___kernel__.1`:
/// `params_Dense_0_kernel`.
fn last_words(path: &str) -> String {
    let numbered = path.rsplit_once('.').filter(|(_, end)| end.chars().all(|c| c.is_ascii_digit()));
    let path = numbered.map_or(path, |(name, _)| name).replace("__", " ");
    let words = path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(|word| word.trim_matches('_'));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let last = words[words.len().saturating_sub(MOST_WORDS)..].join("_");
    match last.chars().next() {
        Some(c) if c.is_ascii_alphabetic() || c == '_' => last,
        Some(_) | None => format!("dim_{last}"),
    }
}
