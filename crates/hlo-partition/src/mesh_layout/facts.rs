//! The classes of dims of a module, for people: `hlo-opt analyze dims`.

use super::classes::{DimPlace, DimProgram};
use super::names::{NamedClass, name_classes};
use crate::error::PartitionError;
use hlo_ir::names::FixedHash;
use hlo_ir::{InstId, Module};
use indexmap::IndexSet;
use serde::Serialize;

/// Dims of values that are one dim of the model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DimFact {
    /// What a layout calls it.
    pub name: String,
    /// Whether the user gave the name; else it is made of the first place.
    pub is_given: bool,
    /// Number of elements.
    pub size: i64,
    /// Number of values that have it.
    pub n_values: usize,
    /// Number of values that have it more than once. A layout that cuts it is illegal if there are any.
    pub n_values_twice: usize,
    /// The parameters that have it, as a file of names writes the places: `%x:0`.
    pub params: Vec<DimFactPlace>,
    /// Where it is computed first; `None` if a parameter has it.
    pub computed: Option<DimFactPlace>,
    /// The ops that reduce it out: behind each of them come sums if it is cut.
    pub reduced_by: Vec<String>,
}

/// A dim of a value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DimFactPlace {
    /// As a file of names writes it: `%x:0`.
    pub place: String,
    /// What the framework calls the value.
    pub op_name: Option<String>,
}

/// The classes of dims of a global program, those of parameters first; `names` is the text of a file of names.
///
/// # Errors
/// A manual region, a text that is no list of names, a place that is not there, two names for one class, one name for two sizes.
pub fn find_dims(module: &Module, names: &str) -> Result<Vec<DimFact>, PartitionError> {
    let mut program = DimProgram::read(module)?;
    let classes = name_classes(&mut program, names)?;
    Ok(classes.into_iter().map(|named| fact(&program, named)).collect())
}

fn fact(program: &DimProgram, named: NamedClass) -> DimFact {
    let NamedClass { name, is_given, class } = named;
    let entry = program.module.entry().map_or(&[][..], |entry| &program.module.comp(entry).params);
    let inst_of = |place: &DimPlace| program.graph.values[place.value].inst;
    let told = |place: &DimPlace| DimFactPlace {
        place: program.place_text(*place),
        op_name: program.op_name(inst_of(place)).map(str::to_string),
    };
    let (mut values, mut twice) =
        (IndexSet::with_hasher(FixedHash::default()), IndexSet::with_hasher(FixedHash::default()));
    for place in &class.places {
        if !values.insert(place.value) {
            twice.insert(place.value);
        }
    }
    let params: Vec<DimFactPlace> =
        class.places.iter().filter(|place| entry.contains(&inst_of(place))).map(told).collect();
    let computed = class.places.first().filter(|_| params.is_empty()).map(told);
    let mut reduced_by: Vec<InstId> = class.reduced_by;
    reduced_by.dedup();
    DimFact {
        name,
        is_given,
        size: class.size,
        n_values: values.len(),
        n_values_twice: twice.len(),
        params,
        computed,
        reduced_by: reduced_by.into_iter().map(|inst| program.module.inst_name(inst).to_string()).collect(),
    }
}
