//! The module line: counts, entry layout, aliases, donors.

use super::Verifier;
use crate::infer::{ShapeText, agrees};
use crate::module::Module;
use crate::names::FixedHash;
use crate::shape::Shape;

type IndexSet<T> = indexmap::IndexSet<T, FixedHash>;

/// Device ids are expanded into lists, so there is a limit.
const MAX_DEVICES: i64 = 1 << 24;

pub(super) fn check_counts(cx: &mut Verifier<'_>) {
    let header = &cx.module.header;
    let (r, p) = (header.replica_count, header.num_partitions);
    if r < 1 || p < 1 || r.checked_mul(p).is_none_or(|n| n > MAX_DEVICES) {
        let expected = format!("1 to {MAX_DEVICES} devices");
        cx.at_module("header-counts", expected, format_args!("replica_count={r}, num_partitions={p}"));
    }
}

pub(super) fn check(cx: &mut Verifier<'_>) {
    check_entry_layout(cx);
    check_aliases(cx);
    check_donors(cx);
}

fn check_entry_layout(cx: &mut Verifier<'_>) {
    let module = cx.module;
    let (Some(layout), Some(entry)) = (&module.header.entry_computation_layout, module.entry()) else { return };
    let params = &module.comp(entry).params;
    if layout.params.len() != params.len() {
        let expected = format!("{} parameters in entry_computation_layout", params.len());
        return cx.at_module("entry-layout", expected, layout.params.len());
    }
    for (i, (&param, &stated)) in params.iter().zip(&layout.params).enumerate() {
        let (expected, found) = (module.shape(param), module.shapes.get(stated));
        if !agrees(expected, found) {
            let expected = format!("{} as parameter {i} in entry_computation_layout", ShapeText(expected));
            cx.at_module("entry-layout", expected, ShapeText(found));
        }
    }
    if let Some(result) = module.result_shape(entry) {
        let (expected, found) = (module.shapes.get(result), module.shapes.get(layout.result));
        if !agrees(expected, found) {
            let expected = format!("{} as result in entry_computation_layout", ShapeText(expected));
            cx.at_module("entry-layout", expected, ShapeText(found));
        }
    }
}

/// The part of an entry parameter.
fn param_part<'a>(module: &'a Module, param: i64, index: &[i64]) -> Option<&'a Shape> {
    let params = &module.comp(module.entry()?).params;
    module.shape(*params.get(usize::try_from(param).ok()?)?).at(index)
}

fn check_aliases(cx: &mut Verifier<'_>) {
    let module = cx.module;
    let result = module.entry().and_then(|e| module.result_shape(e)).map(|s| module.shapes.get(s));
    let aliases = &module.header.input_output_alias;
    let (mut outputs, mut inputs) = (IndexSet::default(), IndexSet::default());
    for alias in aliases {
        let text = || format!("{{{}}}: ({}, {{{}}})", join(&alias.output_index), alias.param, join(&alias.param_index));
        let output = result.and_then(|r| r.at(&alias.output_index));
        let (Some(output), Some(input)) = (output, param_part(module, alias.param, &alias.param_index)) else {
            cx.at_module("alias-index", "an alias of parts that exist", text());
            continue;
        };
        let is_twice = !outputs.insert(&alias.output_index) || !inputs.insert((alias.param, &alias.param_index));
        if is_twice {
            cx.at_module("alias-duplicate", "each part aliased once", format_args!("{} again", text()));
        }
        let is_right = if alias.is_must { agrees(input, output) } else { input.size_bytes() == output.size_bytes() };
        if !is_right {
            let expected = format!("{} as output of alias {}", ShapeText(input), text());
            cx.at_module("alias-shape", expected, ShapeText(output));
        }
    }
}

fn check_donors(cx: &mut Verifier<'_>) {
    let module = cx.module;
    let aliased: IndexSet<_> = module.header.input_output_alias.iter().map(|a| (a.param, &a.param_index)).collect();
    for donor in &module.header.buffer_donor {
        let text = || format!("({}, {{{}}})", donor.param, join(&donor.param_index));
        if param_part(module, donor.param, &donor.param_index).is_none() {
            cx.at_module("donor-index", "a donor that exists", text());
            continue;
        }
        if aliased.contains(&(donor.param, &donor.param_index)) {
            cx.at_module("donor-alias", "donors that no output aliases", text());
        }
    }
}

fn join(index: &[i64]) -> String {
    index.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}
