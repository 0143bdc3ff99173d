//! What callers see of a program, and must see afterwards: parameters, results, layouts, aliases, devices.

use hlo_ir::header::Header;
use hlo_ir::infer::ShapeText;
use hlo_ir::{Module, Shape, ShapeId};

/// Holds the program that passes made against the one that they were given, both as bytes of an HloModuleProto.
///
/// # Errors
/// One of them cannot be read, or what is different for callers.
pub fn check_signature(before: &[u8], after: &[u8]) -> Result<(), String> {
    let read = |what: &str, bytes: &[u8]| {
        let parsed = hlo_proto::read(bytes);
        parsed.map(|parsed| parsed.module).map_err(|error| format!("{what}: {}", error.message))
    };
    let (before, after) = (read("the program as it was", before)?, read("the program as it is now", after)?);
    check_counts(&before.header, &after.header)?;
    check_shapes(&before, &after)?;
    check_layouts(&before, &after)?;
    let differs = |what: &str| Err(format!("expected {what} as they were, found others"));
    if !are_equal_sets(&before.header.input_output_alias, &after.header.input_output_alias) {
        return differs("the aliases of inputs and outputs");
    }
    if !are_equal_sets(&before.header.buffer_donor, &after.header.buffer_donor) {
        return differs("the donated parameters");
    }
    Ok(())
}

fn check_counts(before: &Header, after: &Header) -> Result<(), String> {
    let counts = |header: &Header| (header.replica_count, header.num_partitions);
    let ((r, p), (r_now, p_now)) = (counts(before), counts(after));
    if (r, p) != (r_now, p_now) {
        return Err(format!("expected {r} replicas and {p} partitions, found {r_now} and {p_now}"));
    }
    Ok(())
}

/// Parameters and result of the entry, without layouts: inside they are the compiler's business.
fn check_shapes(before: &Module, after: &Module) -> Result<(), String> {
    let (params, params_now) = (entry_params(before), entry_params(after));
    if params.len() != params_now.len() {
        return Err(format!("expected {} parameters, found {}", params.len(), params_now.len()));
    }
    for (i, (shape, now)) in params.iter().zip(&params_now).enumerate() {
        if shape != now {
            return Err(format!("parameter {i}: expected {}, found {}", ShapeText(shape), ShapeText(now)));
        }
    }
    let result = |module: &Module| Some(bare(module, module.result_shape(module.entry()?)?));
    match (result(before), result(after)) {
        (Some(shape), Some(now)) if shape == now => Ok(()),
        (Some(shape), Some(now)) => Err(format!("result: expected {}, found {}", ShapeText(&shape), ShapeText(&now))),
        (None, _) | (_, None) => Err("expected an entry with a result, found none".into()),
    }
}

fn entry_params(module: &Module) -> Vec<Shape> {
    let params = module.entry().map(|entry| module.comp(entry).params.as_slice()).unwrap_or_default();
    params.iter().map(|&param| bare(module, module.inst(param).shape)).collect()
}

/// A shape without layouts.
fn bare(module: &Module, shape: ShapeId) -> Shape {
    module.shapes.get(module.shapes.bare(shape)).clone()
}

/// The layouts in which arrays cross the interface.
fn check_layouts(before: &Module, after: &Module) -> Result<(), String> {
    let layouts = |module: &Module| {
        let layout = module.header.entry_computation_layout.as_ref()?;
        let all = layout.params.iter().chain([&layout.result]);
        Some(all.map(|&shape| module.shapes.get(shape).clone()).collect::<Vec<Shape>>())
    };
    if layouts(before) != layouts(after) {
        return Err("expected the entry's layouts as they were, found others".into());
    }
    Ok(())
}

/// Whether two lists without repetition hold the same, in whatever order.
fn are_equal_sets<T: PartialEq>(before: &[T], after: &[T]) -> bool {
    before == after || before.len() == after.len() && before.iter().all(|entry| after.contains(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }, \
        entry_computation_layout={(f32[4,2]{1,0}, f32[4,2]{1,0})->(f32[4,2]{1,0}, f32[4,2]{1,0})}, num_partitions=8\n\n\
        ENTRY %e (a: f32[4,2], b: f32[4,2]) -> (f32[4,2], f32[4,2]) {\n  %a = f32[4,2]{1,0} parameter(0)\n  \
        %b = f32[4,2]{1,0} parameter(1)\n  %c = f32[4,2]{1,0} add(%a, %b)\n  \
        ROOT %t = (f32[4,2]{1,0}, f32[4,2]{1,0}) tuple(%c, %b)\n}\n";

    fn proto(text: &str) -> Vec<u8> {
        let module = hlo_text::parse_module(text).expect("it parses").module;
        hlo_proto::write(&module, &hlo_proto::Kept::default()).bytes
    }

    #[test]
    fn what_callers_do_not_see_may_change() {
        let other = MODULE.replace("add(%a, %b)", "subtract(%b, %a)").replace("%c", "%difference");
        assert_eq!(check_signature(&proto(MODULE), &proto(&other)), Ok(()));
    }

    #[test]
    fn what_callers_see_may_not() {
        let third =
            "ENTRY %e (a: f32[4,2], b: f32[4,2], d: f32[]) -> (f32[4,2], f32[4,2]) {\n  %d = f32[] parameter(2)";
        let cases: [(&str, &[(&str, &str)]); 6] = [
            ("expected 1 replicas and 8 partitions, found 1 and 4", &[("num_partitions=8", "num_partitions=4")]),
            ("parameter 0", &[("f32[4,2]", "f32[2,2]")]),
            (
                "expected 2 parameters, found 3",
                &[
                    ("ENTRY %e (a: f32[4,2], b: f32[4,2]) -> (f32[4,2], f32[4,2]) {", third),
                    ("f32[4,2]{1,0})->", "f32[4,2]{1,0}, f32[])->"),
                ],
            ),
            ("layouts", &[("layout={(f32[4,2]{1,0}", "layout={(f32[4,2]{0,1}")]),
            ("aliases", &[("may-alias", "must-alias")]),
            ("donated", &[("buffer_donor={ (1, {}) }, ", "")]),
        ];
        for (expected, changes) in cases {
            let changed = changes.iter().fold(MODULE.to_string(), |text, (from, to)| text.replace(from, to));
            let error = check_signature(&proto(MODULE), &proto(&changed)).expect_err(expected);
            assert!(error.contains(expected), "expected `{expected}`, found `{error}`");
        }
    }

    #[test]
    fn bytes_that_are_no_module_are_an_error() {
        let error = check_signature(&proto(MODULE), b"\x0a\xff").expect_err("no module");
        assert!(error.starts_with("the program as it is now: "), "{error}");
    }
}
