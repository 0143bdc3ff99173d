//! Which parameters may be overwritten, and which outputs are their next values.

use super::array_leaves;
use hlo_ir::{ArrayShape, InstId, Module};

/// The number of a leaf among all ENTRY parameters' leaves.
fn parameter_leaf(module: &Module, param: i64, index: &[i64]) -> Option<usize> {
    let params = &module.comp(module.entry()?).params;
    let number = usize::try_from(param).ok()?;
    let before: usize = params.get(..number)?.iter().map(|&p| module.shape(p).n_leaves()).sum();
    Some(before + leaf_number(module, *params.get(number)?, index)?)
}

/// The number of an instruction's leaf at a tuple index.
fn leaf_number(module: &Module, inst: InstId, index: &[i64]) -> Option<usize> {
    module.shapes.leaf_number(module.inst(inst).shape, index)
}

/// Leaves of ENTRY's parameters that may be overwritten: donors, and those with an alias.
pub(crate) fn donated_leaves(module: &Module) -> Vec<usize> {
    let donors = module.header.buffer_donor.iter().map(|donor| (donor.param, &donor.param_index));
    let aliased = module.header.input_output_alias.iter().map(|alias| (alias.param, &alias.param_index));
    donors.chain(aliased).filter_map(|(param, index)| parameter_leaf(module, param, index)).collect()
}

/// Pairs (output leaf, parameter leaf) of an output and the parameter whose next value it is: those that the header aliases; and of
/// donors without an alias the first of the same shape for each output in order, as JAX pairs them.
pub(crate) fn next_values(module: &Module) -> Vec<(usize, usize)> {
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    let Some(root) = root else { return Vec::new() };
    let pair = |alias: &hlo_ir::header::AliasEntry| {
        let output = leaf_number(module, root, &alias.output_index)?;
        Some((output, parameter_leaf(module, alias.param, &alias.param_index)?))
    };
    let mut pairs: Vec<(usize, usize)> = module.header.input_output_alias.iter().filter_map(pair).collect();
    let of_parameters: Vec<Option<ArrayShape>> = module.entry().map_or(Vec::new(), |entry| {
        module.comp(entry).params.iter().flat_map(|&param| array_leaves(module.shape(param))).collect()
    });
    let mut donors: Vec<usize> = donated_leaves(module);
    donors.sort();
    donors.retain(|donor| !pairs.iter().any(|(_, parameter)| parameter == donor));
    for (output, shape) in array_leaves(module.shape(root)).into_iter().enumerate() {
        let is_like = |donor: &usize| match (&shape, of_parameters.get(*donor)) {
            (Some(shape), Some(Some(of_donor))) => of_donor.same_type(shape),
            _ => false,
        };
        let is_free = !pairs.iter().any(|(other, _)| *other == output);
        if let (true, Some(found)) = (is_free, donors.iter().position(is_like)) {
            pairs.push((output, donors.remove(found)));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    #[test]
    fn aliases_are_pairs_of_leaves() {
        let text = "HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {1,1}: (1, {1}, must-alias) }\n
            ENTRY main {
              a = f32[4]{0} parameter(0)
              b = (f32[2]{0}, f32[3]{0}) parameter(1)
              x = f32[2]{0} get-tuple-element(b), index=0
              y = f32[3]{0} get-tuple-element(b), index=1
              inner = (f32[2]{0}, f32[3]{0}) tuple(x, y)
              ROOT all = (f32[4]{0}, (f32[2]{0}, f32[3]{0})) tuple(a, inner)
            }";
        let module = hlo_text::parse_module(text).expect("a module").module;
        assert_eq!(super::next_values(&module), [(0, 0), (2, 2)]);
        let module =
            hlo_text::parse_module("HloModule m\nENTRY main { ROOT a = f32[4]{0} parameter(0) }").expect("a module");
        assert_eq!(super::next_values(&module.module), []);
    }

    #[test]
    fn donors_are_paired_with_outputs_of_their_shape_in_order() {
        let text =
            "HloModule m, input_output_alias={ {2}: (3, {}, may-alias) }, buffer_donor={ (0, {}), (1, {}), (2, {}) }

            ENTRY main {
              a = f32[4]{0} parameter(0)
              b = f32[2]{0} parameter(1)
              c = f32[4]{0} parameter(2)
              d = f32[4]{0} parameter(3)
              ROOT all = (f32[2]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(b, c, a, d, d)
            }";
        let module = hlo_text::parse_module(text).expect("a module").module;
        assert_eq!(super::next_values(&module), [(2, 3), (0, 1), (1, 0), (3, 2)]);
    }
}
