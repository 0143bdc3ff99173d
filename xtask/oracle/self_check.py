#!/usr/bin/env python3
"""The judge judged: comparisons and mutators on inputs whose answer is known. Needs no XLA."""
import numpy as np

import compare
import hlo_text
import mutants
import variadic

MODULE = """HloModule m, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (g: f32[8,2]) -> f32[2,2] {
  %g = f32[8,2]{1,0} parameter(0), sharding={devices=[1,1,4]<=[4] last_tile_dim_replicate}
  %rs = f32[2,2]{1,0} reduce-scatter(%g), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}, to_apply=%sum
  %n = f32[] constant(4)
  %n.all = f32[2,2]{1,0} broadcast(%n), dimensions={}
  %mean = f32[2,2]{1,0} divide(%rs, %n.all)
  %id = u32[] partition-id()
  ROOT %square = f32[2,2]{1,0} multiply(%mean, %mean)
}
"""


def rows(*arrays):
    return [[np.asarray(a) for a in arrays]]


def check_comparison():
    a = rows([1.0, 2.0], [3.0, 4.0])
    assert compare.compare(a, a).worst == 0
    assert abs(compare.compare(a, rows([1.0, 2.0], [3.0, 4.4])).worst - 0.1) < 1e-12, "relative to the largest element"
    assert compare.compare(a, rows([1.0, 2.0], [3.0, np.nan])).worst == np.inf
    assert compare.compare(rows([np.inf]), rows([-np.inf])).worst == np.inf
    assert compare.compare(rows([np.inf]), rows([np.inf])).worst == 0
    assert compare.compare(a, a + a).worst == np.inf, "another number of outputs"
    assert compare.compare(a, rows([1.0, 2.0])).worst == np.inf, "another number of devices"
    assert compare.compare(a, rows([[1.0, 2.0]], [[3.0, 4.0]])).worst == np.inf, "another shape"
    assert compare.compare([], []).worst == np.inf, "nothing compared is not equal"
    huge = np.uint32(2**31)
    assert compare.compare(rows([huge]), rows([huge + np.uint32(1)])).worst == np.inf, "integers are equal or not"
    assert compare.tolerance(a, a) == compare.FLOOR
    assert abs(compare.tolerance(rows([1.0]), rows([1.001])) - 0.01) < 1e-9
    assert compare.check_reference(rows([1.0, np.nan])) and not compare.check_reference(a)


def check_mutators():
    names = {m.__name__: m for m in mutants.for_pipeline("dce,shard-weight-update{state=auto}")}
    assert list(names) == ["drop_mean", "square_unreduced_gradient", "rotate_shard"]
    assert "%mean = f32[2,2]{1,0} select(%mutant.mean.first, %rs, %mutant.mean.whole)" in names["drop_mean"](MODULE, MODULE)
    square = names["square_unreduced_gradient"](MODULE, MODULE)
    assert "%mutant.square.mean = f32[2,2]{1,0} divide(%mutant.square.shard, %n.all)" in square
    assert "ROOT %square = f32[2,2]{1,0} multiply(%mutant.square.mean, %mutant.square.mean)" in square
    rotated = names["rotate_shard"](MODULE, MODULE.replace("%id", "%other"))
    assert "%id = u32[] remainder(%mutant.id.next, %mutant.id.count)" in rotated
    plain = MODULE.replace("reduce-scatter", "all-reduce")
    assert [m.__name__ for m in mutants.for_pipeline("combine-collectives")] == ["swap_combined"]
    for mutate in [*names.values(), mutants.swap_combined]:
        try:
            mutate(plain, plain)
        except mutants.NotApplicable:
            continue
        raise AssertionError(f"{mutate.__name__} corrupts a module that the pass did not touch")


def check_combined():
    both = "(f32[2,2]{1,0}, /*index=1*/f32[2,2]{1,0}) reduce-scatter(%g, /*index=1*/%g), dimensions={0}, to_apply=%sum"
    text = MODULE.replace("  %n = ", f"  %both = {both}\n  %p0 = f32[2,2]{{1,0}} get-tuple-element(%both), index=0\n"
                          "  %p1 = f32[2,2]{1,0} get-tuple-element(%both), index=1\n  %n = ")
    split, n_split = variadic.split(text)
    assert n_split == 1 and variadic.split(MODULE) == (MODULE, 0)
    assert "%split.1.both = f32[2,2]{1,0} reduce-scatter(%g), dimensions={0}, to_apply=%sum" in split, split
    assert "%both = (f32[2,2]{1,0}, /*index=1*/f32[2,2]{1,0}) tuple(%split.0.both, %split.1.both)" in split, split
    for module in (text, split):
        swapped = mutants.swap_combined(module, MODULE)
        assert "%p0 = f32[2,2]{1,0} get-tuple-element(%both), index=1" in swapped
        assert "%p1 = f32[2,2]{1,0} get-tuple-element(%both), index=0" in swapped


def check_text():
    assert hlo_text.header_counts(MODULE) == (1, 4)
    assert hlo_text.replication_groups(MODULE, 4) == {0: [1, 1, 1, 1]}
    tables = "FileNames\n1 \"a.py\"\n2 \"b.py\"\n\nFunctionNames\n1 \"f\"\n\nFileLocations\n1 {file_name_id=1 function_name_id=1 line=7}\n"
    tables += "2 {file_name_id=2 function_name_id=1 line=9}\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n\n"
    frames = hlo_text.spell_out_frames("HloModule m\n\n" + tables + "%a = x, metadata={stack_frame_id=2}")
    assert frames.endswith('stack_frames=["b.py","f",9;"a.py","f",7]}'), frames
    assert "FileNames" not in frames
    mesh = "replica_groups=mesh['a'=2,'b'=2] {'b'}"
    assert hlo_text.expand_mesh_groups(mesh) == "replica_groups={{0,1},{2,3}}"
    assert hlo_text.expand_mesh_groups(mesh.replace("{'b'}", "{'a'}")) == "replica_groups={{0,2},{1,3}}"
    donors = "HloModule m, buffer_donor={ (0, {}), (3, {}) }, num_partitions=4\n"
    aliases = "HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }, num_partitions=4\n"
    assert hlo_text.donors_as_aliases(donors, 2) == aliases and hlo_text.donors_as_aliases(aliases, 2) == aliases
    sub = "replica_groups=mesh['a'=4] {'a':(1)2}"
    assert hlo_text.expand_mesh_groups(sub) == "replica_groups={{0,2},{1,3}}"
    loop = "%c (p: s32[]) -> pred[] {\n  %n = s32[] constant(1000)\n}\n\nENTRY %m {\n  %w = s32[] while(%i), condition=%c, body=%b\n}"
    assert "constant(3)" in hlo_text.shorten_loops(loop)
    assert "constant(5)" in hlo_text.shorten_loops(loop.replace("while(", "conditional(") + " condition=%c")


if __name__ == "__main__":
    check_comparison()
    check_mutators()
    check_combined()
    check_text()
