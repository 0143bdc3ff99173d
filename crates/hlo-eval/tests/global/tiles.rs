//! Tiles of a global program's inputs and results.

use super::{counted, elems, mesh, module, try_outputs};
use hlo_eval::global::{GlobalProgram, TiledInterface};
use hlo_eval::{EvalOptions, run};
use hlo_ir::{Literal, Module};
use std::sync::Arc;

fn interface(global: &Module, local: &Module) -> Result<TiledInterface, String> {
    let program = GlobalProgram::on(global, local.n_devices()).map_err(|e| e.to_string())?;
    TiledInterface::between(&program, &[local]).map_err(|e| e.to_string())
}

/// Whether the first result of a per-device program is, in some way that fits, tiles of the global program's.
fn agrees(global: &Module, local: &Module) -> bool {
    let interface = interface(global, local).unwrap();
    let wholes = try_outputs(global).unwrap().agreed().unwrap();
    let wholes = vec![wholes.leaves[0][0].clone(); local.n_devices()];
    let inputs = interface.cut_inputs(&counted(global)).unwrap();
    let found = run(local, &inputs, &EvalOptions::default()).unwrap();
    let ways = interface.of_output(0);
    assert!(!ways.is_empty());
    let is_same = |(a, b): (&Arc<Literal>, &Arc<Literal>)| a == b;
    ways.iter().any(|way| {
        let (a, b) = (way.of_wholes(&wholes).unwrap(), way.without_padding(&found.leaves[0]).unwrap());
        a.iter().zip(&b).all(is_same)
    })
}

#[test]
fn inputs_are_cut_as_the_per_device_program_says_or_else_the_global_one() {
    let global = module("", "", "  ROOT %x = f32[4,2] parameter(0), sharding={devices=[4,1]<=[4]}");
    let of = |sharding: &str, dims: &str| {
        let local = module(", num_partitions=4", "", &format!("  ROOT %x = f32[{dims}] parameter(0){sharding}"));
        let cut = interface(&global, &local)?.cut_inputs(&counted(&global)).map_err(|e| e.to_string())?;
        Ok::<_, String>(cut.leaves[0].iter().map(|tile| elems(tile)).collect::<Vec<_>>())
    };
    assert_eq!(of("", "1,2").unwrap(), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]);
    let turned = of(", sharding={devices=[4,1]3,2,1,0}", "1,2");
    assert_eq!(turned.unwrap(), [[7.0, 8.0], [5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]);
    assert_eq!(
        of("", "2,2").unwrap_err(),
        "input 0: expected the tiles that sharding={devices=[4,1]<=[4]} makes of f32[4,2], found f32[2,2]"
    );
}

#[test]
fn results_are_cut_as_the_user_wrote() {
    let rows =
        module("", "", "  %x = f32[4,4] parameter(0)\n  ROOT %n = f32[4,4] negate(%x), sharding={devices=[4,1]<=[4]}");
    let local = |cut: &str| {
        module(
            ", num_partitions=4",
            "",
            &format!("  %x = f32[1,4] parameter(0), sharding={{{cut}}}\n  ROOT %n = f32[1,4] negate(%x)"),
        )
    };
    assert!(agrees(&rows, &local("devices=[4,1]<=[4]")));
    assert!(!agrees(&rows, &local("devices=[4,1]1,0,2,3")), "other rows on two devices");
    let columns = module(
        ", num_partitions=4",
        "",
        "  %x = f32[4,1] parameter(0), sharding={devices=[1,4]<=[4]}\n  ROOT %n = f32[4,1] negate(%x)",
    );
    assert_eq!(
        interface(&rows, &columns).unwrap_err(),
        "output 0: expected the tiles that sharding={devices=[4,1]<=[4]} makes of f32[4,4], found f32[4,1]"
    );
}

#[test]
fn results_that_the_user_left_open_may_be_cut_as_anything_is() {
    let free = |header: &str, root: &str| module(header, "", &format!("  %x = f32[4,4] parameter(0)\n{root}"));
    let unwritten = free("", "  ROOT %n = f32[4,4] negate(%x)");
    // Shardy prints a stand-in beside dims that are open.
    let open = free(
        &mesh("d=4"),
        "  %n = f32[4,4] negate(%x)
  %f = f32[4,4] custom-call(%n), custom_call_target=\"xla.sdy.FuncResultSharding\", frontend_attributes={xla.sdy.sharding=\"#sdy.sharding_per_value<[<@mesh, [{?}, {?}]>]>\"}
  %t = (f32[4,4]) tuple(%f)
  ROOT %r = f32[4,4] get-tuple-element(%t), index=0, sharding={replicated}",
    );
    let flag = free(
        ", allow_spmd_sharding_propagation_to_output={true}",
        "  ROOT %n = f32[4,4] negate(%x), sharding={replicated}",
    );
    let closed = free("", "  ROOT %n = f32[4,4] negate(%x), sharding={replicated}");
    let columns = module(
        ", num_partitions=4",
        "",
        "  %x = f32[4,1] parameter(0), sharding={devices=[1,4]<=[4]}\n  ROOT %n = f32[4,1] negate(%x)",
    );
    for global in [unwritten, open, flag] {
        assert!(agrees(&global, &columns));
    }
    assert!(interface(&closed, &columns).is_err());
}

#[test]
fn padding_is_not_compared() {
    let global = module(
        "",
        "",
        "  %x = f32[5] parameter(0), sharding={devices=[4]<=[4]}\n  ROOT %n = f32[5] negate(%x), sharding={devices=[4]<=[4]}",
    );
    let local = |op: &str| {
        module(
            ", num_partitions=4",
            "",
            &format!("  %x = f32[2] parameter(0), sharding={{devices=[4]<=[4]}}\n  ROOT %n = f32[2] {op}(%x)"),
        )
    };
    let cut = interface(&global, &local("negate")).unwrap().cut_inputs(&counted(&global)).unwrap();
    assert!(elems(&cut.leaves[0][3]).iter().all(|x| x.is_nan()), "the last tile holds nothing");
    assert!(agrees(&global, &local("negate")));
    assert!(!agrees(&global, &local("abs")));
}

#[test]
fn other_numbers_of_devices_inputs_and_outputs_are_errors() {
    let global = module("", "", "  ROOT %x = f32[4] parameter(0), sharding={devices=[4]<=[4]}");
    let program = GlobalProgram::of(&global).unwrap();
    let two = module(", num_partitions=2", "", "  ROOT %x = f32[2] parameter(0)");
    let error = |local: &Module| TiledInterface::between(&program, &[local]).unwrap_err().to_string();
    assert_eq!(error(&two), "expected 4 devices, found 2");
    let more = module(", num_partitions=4", "", "  %x = f32[1] parameter(0)\n  ROOT %y = f32[1] parameter(1)");
    assert_eq!(error(&more), "expected 1 inputs, found 2");
}
