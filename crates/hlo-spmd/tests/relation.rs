//! Which dims of slices, updates and padding may be cut: those that the op takes whole.

use hlo_ir::{InstId, Module};
use hlo_spmd::{DimRelation, DimRun, OperandCut, ResultCut, shard_attrs};

const TEXT: &str = "\
HloModule windows

ENTRY %main {
  %stack = f32[4,8,6] parameter(0)
  %layer = f32[1,8,6] parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %x = f32[] constant(0)
  %written = f32[4,8,6] dynamic-update-slice(%stack, %layer, %i, %zero, %zero)
  %read = f32[1,8,6] dynamic-slice(%stack, %i, %zero, %zero), dynamic_slice_sizes={1,8,6}
  %padded = f32[4,8,9] pad(%stack, %x), padding=0_0x0_0x1_2
  %joined = f32[8,8,6] concatenate(%stack, %stack), dimensions={0}
  ROOT %all = tuple(%written, %read, %padded, %joined)
}
";

fn instruction(module: &Module, name: &str) -> InstId {
    let entry = module.entry().expect("an entry");
    let found = module.comp(entry).insts.iter().find(|&&inst| module.inst_name(inst) == name);
    *found.unwrap_or_else(|| panic!("expected %{name}"))
}

/// One dim.
fn dim(start: usize) -> DimRun {
    DimRun::dim(start)
}

#[test]
fn whole_dims_are_cut_and_dims_that_elements_move_along_are_not() {
    let module = hlo_text::parse_module(TEXT).unwrap_or_else(|e| panic!("{e:?}")).module;
    for (name, n_arrays, moves_along) in [("written", 2, 0), ("read", 1, 0), ("padded", 1, 2), ("joined", 2, 0)] {
        let inst = instruction(&module, name);
        let relation = DimRelation::find(&module, inst).unwrap_or_else(|| panic!("%{name} may be cut"));
        for cut in 0..3 {
            for operand in 0..n_arrays {
                let (from, to) = (relation.operand_cut(operand, dim(cut)), relation.result_cut(operand, dim(cut)));
                let expected = match cut == moves_along {
                    true => (OperandCut::Impossible, ResultCut::Impossible),
                    false => (OperandCut::Run(dim(cut)), ResultCut::Run(dim(cut))),
                };
                assert_eq!((from, to), expected, "%{name}: operand {operand}, dim {cut}");
            }
            let local = shard_attrs(&module, inst, Some(dim(cut)), Some(dim(cut)), 2);
            // Of a dim of one row the first shard has all.
            let has_form = cut != moves_along || name == "read";
            assert_eq!(local.is_ok(), has_form, "%{name}, dim {cut}: {local:?}");
        }
        // Two dims that are merged before they are cut have no local form here.
        let both = DimRun::of(1, 2);
        assert_eq!(relation.operand_cut(0, both), OperandCut::Impossible, "%{name}");
        assert_eq!(relation.result_cut(0, both), ResultCut::Impossible, "%{name}");
    }
}
