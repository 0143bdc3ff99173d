"""Modules as objects: their figures are those of the command line, their values those of numpy."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hlo_opt import HloError, Module, UsageError, _native
from hlo_opt.arrays import _NAMES, from_native, numpy_dtype, to_native

SAMPLES = Path(__file__).parents[3] / "ir-samples"
PROGRAMS = SAMPLES / "programs"
PROTOS = SAMPLES / "protos"

ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"

# Each of 2 x 2 devices adds up what the devices of its row have, in a loop of three trips.
LOOP = f"""HloModule rows_in_a_loop, num_partitions=4

{ADD}
body {{
  s = (s32[], f32[3,5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[3,5] get-tuple-element(s), index=1
  y = f32[3,5] all-reduce(x), channel_id=7, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=add,
    metadata={{op_name="step/psum" source_file="train.py" source_line=12}}
  ROOT t = (s32[], f32[3,5]) tuple(next, y)
}}

cond {{
  s.1 = (s32[], f32[3,5]) parameter(0)
  i.1 = s32[] get-tuple-element(s.1), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i.1, n), direction=LT
}}

ENTRY main {{
  p = f32[3,5] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[3,5]) tuple(zero, p)
  loop = (s32[], f32[3,5]) while(init), condition=cond, body=body
  z = f32[3,5] get-tuple-element(loop), index=1
  w = f32[3,5] collective-permute(z), channel_id=8, source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}
  ROOT r = (f32[3,5], f32[3,5]) tuple(z, w)
}}
"""


def command(*args: str, stdin: bytes = b"") -> str:
    """What the command line writes to stdout."""
    code, stdout, stderr = _native.run([*args, "--config=none"], stdin)
    assert code == 0, stderr
    return stdout.decode()


def body(module: Module) -> str:
    """The module without its first line, of which a proto keeps less."""
    return module.to_text("short").split("\n", 1)[1]


def elementwise(dtype: str, expression: str, dims: str = "6") -> Module:
    return Module.parse(f"HloModule m\nENTRY e {{\n x = {dtype}[{dims}] parameter(0)\n ROOT y = {expression}\n}}\n")


# What a module is.


def test_text_bytes_proto_and_gzip_are_told_by_content() -> None:
    text = (PROGRAMS / "mlp_sgd_wide.hlo").read_text()
    from_text = Module.parse(text)
    assert (from_text.name, from_text.num_partitions, from_text.num_replicas) == ("jit_step", 8, 1)
    assert from_text.n_instructions == text.count(" = ") - text.split("\n", 1)[0].count(" = ")
    for content in (text.encode(), bytearray(text.encode()), memoryview(text.encode()), gzip.compress(text.encode())):
        assert Module.parse(content).to_text() == from_text.to_text()
    for name in ("mlp_sgd_wide.hlo.pb", "mlp_sgd_wide.hlo_proto.pb.gz", "mlp_sgd_wide.snapshot.pb.gz"):
        from_proto = Module.parse((PROTOS / name).read_bytes())
        assert body(from_proto) == body(from_text) and from_proto.n_devices == 8
        assert Module.read(PROTOS / name).to_proto() == from_proto.to_proto()


def test_a_module_without_counts_takes_those_of_its_collectives() -> None:
    proto = (PROTOS / "mlp_sgd_wide.hlo.pb").read_bytes()
    module = Module.parse(proto)
    assert (module.num_partitions, module.n_devices) == (8, 8)
    assert module.notes == ["the header has no counts; 8 partitions, by the groups of `%psum.18`"]
    assert Module.parse(proto, num_partitions=8).notes == []
    all_of_them = f"HloModule m\n{ADD}ENTRY e {{\n x = f32[2] parameter(0)\n ROOT y = f32[2] all-reduce(x), "
    all_of_them += "replica_groups={}, to_apply=add\n}\n"
    assert Module.parse(all_of_them).n_devices == 1
    assert "taken as one device" in Module.parse(all_of_them).notes[0]
    assert Module.parse(all_of_them, num_replicas=4).num_replicas == 4


def test_texts_and_protos_are_those_of_the_command_line() -> None:
    for name in ("mlp_adam.hlo", "mlp_adam_fori.opt.hlo", "gpt2l_adamw_fori.hlo"):
        module, content = Module.read(PROGRAMS / name), (PROGRAMS / name).read_bytes()
        for form in ("auto", "long", "short"):
            assert module.to_text(form) == command(f"--format={form}", "-", stdin=content)
        assert body(Module.parse(module.to_proto(), num_partitions=8)) == body(module)
        proto = PROGRAMS / name
        assert _native.run(["--config=none", "--output-format=proto", str(proto)], b"")[1] == module.to_proto()


def test_computations_and_instructions() -> None:
    module = Module.parse(LOOP)
    assert [c.name for c in module.computations] == ["add", "body", "cond", "main"]
    assert module.entry.name == "main"
    assert [i.name for i in module.entry.instructions] == ["p", "zero", "init", "loop", "z", "w", "r"]
    p, zero, init, loop, z, w, r = module.entry.instructions
    assert module.entry.root == r != z and hash(module.entry.root) == hash(r) and r.is_root and not z.is_root
    assert (p.opcode, p.shape, p.parameter_number, p.bytes, p.leaves) == (
        "parameter",
        "f32[3,5]",
        0,
        60,
        [("f32", [3, 5])],
    )
    assert (zero.literal, zero.parameter_number, p.literal) == ("0", None, None)
    assert (init.operands, init.shape, init.bytes) == (["zero", "p"], "(s32[], f32[3,5])", 64)
    assert init.leaves == [("s32", []), ("f32", [3, 5])]
    assert (loop.calls, z.attributes) == (["cond", "body"], {"index": "1"})
    assert w.attributes == {"channel_id": "8", "source_target_pairs": "{{0,1},{1,2},{2,3},{3,0}}"}
    y = module.computations[1].instructions[5]
    assert (y.computation, y.op_name, y.source_file, y.source_line) == ("body", "step/psum", "train.py", 12)
    assert list(y.attributes) == ["channel_id", "replica_groups", "use_global_device_ids", "to_apply", "metadata"]
    assert y.attributes["metadata"] == '{op_name="step/psum" source_file="train.py" source_line=12}'
    assert p.source_file is None and p.op_name is None


@pytest.mark.parametrize("folder", ["programs", "ops", "protos", "syntax"])
def test_the_parts_of_an_instruction_make_its_text(folder: str) -> None:
    n_cut = 0
    for path in sorted((SAMPLES / folder).glob("**/*.hlo*")):
        try:
            module = Module.read(path)
        except ValueError:
            continue
        for instruction in (i for c in module.computations for i in c.instructions):
            behind = "".join(f", {k}={v}" if v else f", {k}" for k, v in instruction.attributes.items())
            assert instruction.text.endswith(behind), instruction
            assert f"{instruction.name} = {instruction.shape} " in instruction.text
            n_cut += 1
    assert n_cut > 100


# What it costs.


def test_collectives_have_groups_bytes_and_runs() -> None:
    in_loop, permute = Module.parse(LOOP).collectives()
    assert (in_loop.opcode, in_loop.name, in_loop.computation) == ("all-reduce", "y", "body")
    assert (in_loop.bytes, in_loop.result_bytes, in_loop.n_operands) == (60, 60, 1)
    assert (in_loop.groups, in_loop.pairs, in_loop.channel_id) == ([[0, 1], [2, 3]], [], 7)
    assert (in_loop.runs, in_loop.runs_basis) == (3.0, "derived")
    assert (in_loop.op_name, in_loop.source) == ("step/psum", "train.py:12")
    assert (permute.groups, permute.pairs) == ([], [(0, 1), (1, 2), (2, 3), (3, 0)])
    assert (permute.runs, permute.runs_basis, permute.source) == (1.0, "stated", None)


def test_runs_rest_on_the_unknown_trip_count_where_the_module_does_not_say() -> None:
    unknown = LOOP.replace("p = f32[3,5] parameter(0)", "p = f32[3,5] parameter(0)\n  k = s32[] parameter(1)")
    unknown = unknown.replace("tuple(zero, p)", "tuple(k, p)")
    module = Module.parse(unknown)
    assert [(c.runs, c.runs_basis) for c in module.collectives()] == [(100.0, "assumed"), (1.0, "stated")]
    assert module.collectives(unknown_trip_count=7)[0].runs == 7.0


@pytest.mark.parametrize("name", ["mlp_adam.hlo", "mlp_adam_accum.hlo", "gpt2l_clipadam.hlo", "scan_momentum.hlo"])
def test_collectives_and_memory_are_those_of_the_command_line(name: str) -> None:
    module, path = Module.read(PROGRAMS / name), str(PROGRAMS / name)
    totals = json.loads(command("audit", "--json", path))["totals"]
    collectives = [c for c in module.collectives() if any(len(group) > 1 for group in c.groups)]
    assert sum(c.runs for c in collectives) == totals["collectives"] > 0
    assert sum(c.runs * max(c.bytes, c.result_bytes) for c in collectives) == totals["collective_bytes"]
    told, memory = json.loads(command("analyze", "memory", "--format=json", path)), module.memory()
    assert memory.peak_bytes == totals["peak_bytes"]
    for figure in ("peak", "argument", "output", "alias", "temp", "constant"):
        assert getattr(memory, f"{figure}_bytes") == told[f"{figure}_bytes"]
    assert memory.peak_bytes == memory.argument_bytes + memory.output_bytes - memory.alias_bytes + (
        memory.constant_bytes + memory.temp_bytes
    )
    _, report = module.run("dce")
    figures = report.json["modules"][0]["totals"]["before"]
    assert {key: figures[key] for key in figures if key.endswith("_bytes") and key != "sent_bytes"} == {
        key: getattr(memory, key) for key in figures if key.endswith("_bytes") and key != "sent_bytes"
    }


def test_memory_by_hand() -> None:
    # 4 x 6 floats come in and go out; between them lives one array of the same size, if they are not fused.
    text = (
        "\nENTRY e {\n x = f32[4,6] parameter(0)\n y = f32[4,6] negate(x)\n ROOT z = f32[6,4] transpose(y), "
        "dimensions={1,0}\n}"
    )
    assert Module.parse("HloModule m" + text).memory().peak_bytes == 192
    memory = Module.parse("HloModule m, is_scheduled=true" + text).memory()
    assert (memory.argument_bytes, memory.output_bytes, memory.alias_bytes, memory.constant_bytes) == (96, 96, 0, 0)
    assert (memory.peak_bytes, memory.temp_bytes, memory.peak_at) == (288, 96, ("z",))
    assert [(live.instruction, live.kind, live.bytes, live.shape) for live in memory.live_at_peak] == [
        ("x", "argument", 96, "f32[4,6]"),
        ("z", "output", 96, "f32[6,4]"),
        ("y", "temporary", 96, "f32[4,6]"),
    ]
    assert len(Module.read(PROGRAMS / "mlp_adam.hlo").memory(top=3).live_at_peak) == 3


# What passes make of it.


def test_run_does_what_the_command_line_does() -> None:
    path = PROGRAMS / "mlp_sgd_wide.hlo"
    module, text = Module.read(path), path.read_text()
    for options, args in [
        ({"preset": "data-parallel"}, ["--preset=data-parallel"]),
        ({"preset": "data-parallel", "machine": "a100"}, ["--preset=data-parallel", "--machine=a100"]),
        (
            {"passes": "cse,dce,combine-collectives{threshold-bytes=1GiB}"},
            ["--pass=cse,dce,combine-collectives{threshold-bytes=1GiB}"],
        ),
        ({"preset": "data-parallel", "passes": "inline-calls"}, ["--preset=data-parallel", "--pass=inline-calls"]),
    ]:
        made, report = module.run(**options)
        code, stdout, stderr = _native.run(["--config=none", *args, str(path)], b"")
        # The summary is that of the command line, in the words of Python.
        said = stderr.replace("--machine", "machine").replace("--preset", "preset").replace(" -o DIRECTORY", "")
        assert (code, made.to_text(), report.summary) == (0, stdout.decode(), said)
        proto = _native.run(["--config=none", "--output-format=proto", *args, str(path)], b"")[1]
        assert made.to_proto() == proto
        _, _, told = _native.run(["--config=none", "--report=json", *args, str(path)], b"")
        assert report.json == json.loads(told)
        assert report.has_changed and made.to_text() != module.to_text()
    assert module.to_text() == text, "the module itself is as it was"


def test_groups_over_a_mesh_become_lists_once_passes_changed_something() -> None:
    module = Module.read(PROTOS / "all-reduce.mesh.hlo.pb")
    text = module.to_text().replace("  %v1 = ", "  %unused = f32[3,5]{1,0} negate(%a)\n  %v1 = ")
    untouched = Module.parse(text)
    assert "mesh[" in untouched.to_text() and "mesh[" in Module.parse(untouched.to_proto()).to_text()
    made, report = untouched.run("dce")
    assert report.has_changed and made.n_instructions == module.n_instructions
    assert "mesh[" not in made.to_text() and "mesh[" not in Module.parse(made.to_proto()).to_text()
    assert [c.groups for c in made.collectives()] == [c.groups for c in module.collectives()]
    assert made.collectives()[0].groups == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_what_is_said_of_parameters_counts() -> None:
    path = PROGRAMS / "mlp_adam.hlo"
    module = Module.read(path)
    with pytest.raises(UsageError, match="leaf numbers below"):
        module.run(preset="data-parallel", replicated_params="999")
    made, _ = module.run("shard-weight-update", replicated_params="0-18")
    assert made.to_text() == command("--pass=shard-weight-update", "--replicated-params=0-18", str(path))
    with pytest.raises(HloError, match="by which they hold different parts"):
        module.run("shard-weight-update", replicated_params="all")


def test_a_sharded_interface_makes_files(tmp_path: Path) -> None:
    path = PROGRAMS / "mlp_adam.hlo"
    made, report = Module.read(path).run(preset="sharded-state")
    command("--preset=sharded-state", f"-o{tmp_path / 'out'}", str(path))
    written = {file.name: file.read_text() for file in (tmp_path / "out").iterdir()}
    found = {name: file if isinstance(file, str) else file.to_text() for name, file in report.files.items()}
    assert {"main.hlo": made.to_text(), **found} == written
    assert sorted(report.files) == ["manifest.json", "shard.hlo", "unshard.hlo"]
    shard = report.files["shard.hlo"]
    assert isinstance(shard, Module) and shard.n_devices == 8


def test_a_run_of_a_run() -> None:
    module = Module.read(PROGRAMS / "mlp_sgd_wide.hlo")
    one, _ = module.run(preset="data-parallel")
    two, report = one.run("dce")
    assert not report.has_changed and two.to_text() == one.to_text() and report.files == {}
    assert Module.parse(one.to_text()).to_text() == one.to_text()


def test_shardings_come_from_a_folder_of_dumps() -> None:
    for version, n_notes in [("jax-0.10", 1), ("jax-0.12", 2)]:
        module = Module.read(SAMPLES / "dumps" / version / "jit")
        assert (module.name, module.num_partitions, len(module.notes)) == ("jit_train_step", 4, n_notes)
        assert all(c.source is not None and c.source.startswith("train.py:") for c in module.collectives())
        parameters = [i for i in module.entry.instructions if i.opcode == "parameter"]
        assert all("sharding" in parameter.attributes for parameter in parameters)
        assert module.run(passes="shard-weight-update{profit=always,min-bytes=0}")[1].has_changed


def test_audit_finds_what_the_command_line_finds() -> None:
    paths = sorted((SAMPLES / "audit").glob("*/*.hlo"))
    n_found = 0
    for path in paths:
        findings = Module.read(path).audit(deny="fault")
        told = json.loads(_native.run(["audit", "--json", "-Dfault", str(path)], b"")[1])["findings"]
        assert [(f.check, f.level, f.message, f.remedy, f.bytes, f.is_denied) for f in findings] == [
            (t["check"], t["level"], t["message"], t["remedy"], t["bytes"], t["is_denied"]) for t in told
        ]
        assert all(f.is_denied == (f.level == "fault") for f in findings)
        lines = path.read_text().splitlines()
        for finding in findings:
            assert finding.line is not None and finding.instruction in lines[finding.line - 1]
            assert finding.where == f"%{finding.instruction} in {finding.computation}, line {finding.line}"
        n_found += len(findings)
        assert Module.read(path).audit(allow=["fault", "advice"]) == []
    assert n_found > 20


# What it computes.


def test_values_are_those_of_numpy() -> None:
    x = np.array([[1.5, -2, 0], [7, 0.25, 3]], np.float32)
    text = "HloModule m\nENTRY e {\n x = f32[2,3] parameter(0)\n y = f32[3,2] parameter(1)\n d = f32[2,2] dot(x, y), "
    text += (
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}\n n = f32[2,3] negate(x)\n ROOT t = (f32[2,2], f32[2,3]) "
    )
    module = Module.parse(text + "tuple(d, n)\n}")
    y = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert module.parameter_leaves == [("f32", (2, 3)), ("f32", (3, 2))]
    [[d, n]] = module.evaluate([np.ascontiguousarray(x[:, ::1]), y])
    np.testing.assert_array_equal(d, x @ y)
    np.testing.assert_array_equal(n, -x)
    n[0, 0] = 7  # What is returned belongs to the caller.


def test_devices_get_one_list_or_their_own() -> None:
    module = Module.parse(LOOP)
    arrays = [np.full((3, 5), 10.0**device, np.float32) for device in range(4)]
    rows = [arrays[0] + arrays[1]] * 2 + [arrays[2] + arrays[3]] * 2
    tripled = [4 * row for row in rows]  # Two further sums of two equal terms.
    outputs = module.evaluate([[array] for array in arrays])
    for device in range(4):
        np.testing.assert_array_equal(outputs[device][0], tripled[device])
        np.testing.assert_array_equal(outputs[device][1], tripled[device - 1])
    same = module.evaluate([arrays[0]])
    assert len(same) == 4
    for z, _ in same:
        np.testing.assert_array_equal(z, 8 * arrays[0])
    no_parameters = Module.parse("HloModule m, num_partitions=2\nENTRY e {\n ROOT p = u32[] partition-id()\n}")
    assert (
        [int(p) for [p] in no_parameters.evaluate([])] == [0, 1] == [int(p) for [p] in no_parameters.evaluate([[], []])]
    )


def test_a_training_step_gives_what_the_command_line_gives(tmp_path: Path) -> None:
    path = PROGRAMS / "mlp_sgd.hlo"
    npz = tmp_path / "arrays.npz"
    command("eval", str(path), "--save-inputs", "--seed=3", "-o", str(npz))
    archive, module = np.load(npz), Module.read(path)
    given = [[archive[f"in{i}_d{d}"] for i in range(len(module.parameter_leaves))] for d in range(8)]
    outputs = module.evaluate(given)
    assert len(outputs) == 8
    for device, arrays in enumerate(outputs):
        for leaf, array in enumerate(arrays):
            np.testing.assert_array_equal(array, archive[f"out{leaf}_d{device}"])
    sharded, _ = module.run("shard-weight-update,dce")
    for one, other in zip(outputs, sharded.evaluate(given), strict=True):
        for before, after in zip(one, other, strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", sorted(_NAMES))
def test_every_element_type_crosses_both_ways(dtype: str) -> None:
    if _NAMES[dtype] not in dir(np) and not hasattr(ml_dtypes, _NAMES[dtype]):
        with pytest.raises(HloError, match=f"arrays of {dtype} need ml_dtypes"):
            numpy_dtype(dtype)
        return
    numpy = numpy_dtype(dtype)
    x = np.array([1, 0, 1, 1, 0, 1]).astype(numpy)
    if dtype[0] == "s":
        x = np.array([-1, 0, -1, -1, 0, -1]).astype(numpy)
    name, dims, data = to_native(x)
    assert (name, dims) == (dtype, [6])
    back = from_native(name, dims, bytearray(data))
    assert back.dtype == numpy and back.tobytes() == x.tobytes()
    [[y]] = elementwise(dtype, f"{dtype}[6] reverse(x), dimensions={{0}}").evaluate([x])
    assert y.dtype == numpy and y.tobytes() == x[::-1].tobytes()


def test_bits_of_small_floats_stay() -> None:
    for dtype, name in _NAMES.items():
        if not name.startswith("float8") and name != "bfloat16":
            continue
        numpy = numpy_dtype(dtype)
        codes = np.arange(256, dtype=np.uint8) if numpy.itemsize == 1 else np.arange(1 << 16, dtype=np.uint16)
        [[y]] = elementwise(dtype, f"{dtype}[{len(codes)}] copy(x)", str(len(codes))).evaluate([codes.view(numpy)])
        assert y.tobytes() == codes.tobytes(), dtype


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    x = np.random.default_rng(0).normal(size=600).astype(ml_dtypes.bfloat16)
    [[y]] = elementwise("bf16", "bf16[600] multiply(x, x)", "600").evaluate([x])
    np.testing.assert_array_equal(y, x * x)


def test_without_ml_dtypes_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module.parse("HloModule m\nENTRY e {\n x = f32[2] parameter(0)\n ROOT y = bf16[2] convert(x)\n}")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(HloError, match="arrays of bf16 need the package ml_dtypes, which is not installed"):
        module.evaluate([np.ones(2, np.float32)])


def test_orders_of_bytes_and_dims_do_not_matter() -> None:
    x = np.arange(6, dtype=">i4").reshape(2, 3)
    module = elementwise("s32", "s32[2,3] add(x, x)", "2,3")
    np.testing.assert_array_equal(module.evaluate([x])[0][0], 2 * x)
    np.testing.assert_array_equal(module.evaluate([np.asfortranarray(x)])[0][0], 2 * x)
    np.testing.assert_array_equal(module.evaluate([np.arange(12, dtype=np.int32)[::2].reshape(2, 3)])[0][0], 4 * x)


def test_other_threads_go_on() -> None:
    module = Module.parse(LOOP.replace("constant(3)", "constant(20000)"))
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(module.evaluate([np.zeros((3, 5), np.float32)])))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    n_turns = 0
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.001)
        n_turns += 1
    assert len(results) == 2 and n_turns > 5


# What is wrong.

WRONG_CONTENT = [
    (b"\x00\x01garbage\xff", "byte 0"),
    (b"", "expected a computation, found the end of the file"),
    ("garbage", "expected `{` before the instructions"),
    (b"\x1f\x8b123", "gzip"),
    ("module @jit_step {}", "found MLIR"),
    ("HloModule m\nENTRY e {\n ROOT a = f32[2] parametre(0)\n}", "the nearest opcode is `parameter`"),
    ("HloModule m\nENTRY e {\n a = f32[2] parameter(0)\n ROOT b = f32[3] negate(a)\n}", "<module>:4"),
]


@pytest.mark.parametrize("content, expected", WRONG_CONTENT)
def test_wrong_content_is_an_error_with_its_place(content: str | bytes, expected: str) -> None:
    with pytest.raises(HloError) as raised:
        Module.parse(content)
    assert expected in str(raised.value) and isinstance(raised.value, ValueError)


def test_a_truncated_proto_is_an_error_wherever_it_ends() -> None:
    proto = (PROTOS / "compare.hlo.pb").read_bytes()
    whole = Module.parse(proto).n_instructions
    n_errors = 0
    for length in range(0, len(proto), 7):
        try:
            assert Module.parse(proto[:length]).n_instructions <= whole
        except HloError:
            n_errors += 1
    assert n_errors > len(proto) // 7 * 0.9


def test_content_is_text_or_bytes() -> None:
    for content in (3, None, ["HloModule m"], Path("x.hlo")):
        with pytest.raises(TypeError):
            Module.parse(content)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Module.read(SAMPLES / "nothing.hlo")


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"passes": "dcee"}, "passes: unknown pass: `dcee`, did you mean `dce`?"),
        ({"passes": "dce{x=1}"}, "unknown option of `dce`: `x`"),
        ({"passes": "dce{"}, "passes: pipeline string:"),
        ({"preset": "data-paralel"}, "did you mean `data-parallel`?"),
        ({"preset": "gpu", "machine": "h300"}, "did you mean `h200`?"),
        ({"preset": "gpu", "machine": "nothing:switch"}, "nothing"),
        ({"preset": "gpu", "memory_limit": "much"}, "memory_limit"),
        ({}, "expected passes or a preset, found neither"),
    ],
)
def test_a_wrong_option_of_a_run_is_told(options: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        Module.parse(LOOP).run(**options)
    assert expected in str(raised.value)


def test_a_device_is_part_of_the_machine() -> None:
    module = Module.parse(LOOP)
    for call in (module.run, module.audit):
        with pytest.raises(TypeError, match="device= is not taken; write machine='a100:switch'"):
            call(device="a100")  # type: ignore[call-arg]
    _, report = module.run(preset="data-parallel", machine="a100:[(node,2),(gpu,2)]")
    assert "a100, [(node,2),(gpu,2)]" in report.json["modules"][0]["totals"]["machine"]
    with pytest.raises(HloError, match="memory-limit"):
        module.run(preset="data-parallel", memory_limit=1)


def test_other_wrong_options_are_told() -> None:
    module = Module.parse(LOOP)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: Module.parse(LOOP, num_partitions=2), "the header of `<module>` says 4"),
        (lambda: Module.parse(ADD, num_partitions=0), "num_partitions: expected a positive number of devices, found 0"),
        (lambda: Module.parse(ADD, num_replicas=-1), "num_replicas: expected a positive number of devices, found -1"),
        (lambda: module.to_text("xla"), "expected auto, long or short, found `xla`"),  # type: ignore[arg-type]
        (lambda: module.audit(deny="falt"), "did you mean `fault`?"),
        (lambda: module.evaluate([], timeout_s=-1), "timeout_s"),
        (lambda: module.evaluate([np.zeros((3, 5)), [np.zeros((3, 5))]]), "found both"),
    ]
    for wrong, expected in cases:
        with pytest.raises(UsageError) as raised:
            wrong()
        assert expected in str(raised.value)


def test_a_program_of_all_devices_is_not_audited() -> None:
    with pytest.raises(HloError, match="expected the program of each device, found a global program"):
        Module.read(PROTOS / "jax-0.12.shard_map.hlo.pb").audit()


def test_arrays_that_do_not_fit_are_told() -> None:
    module, good = Module.parse(LOOP), np.zeros((3, 5), np.float32)
    cases: list[tuple[list[Any], str]] = [
        ([], "expected 1 array for the entry's parameters, found 0 arrays"),
        ([good, good], "expected 1 array for the entry's parameters, found 2 arrays"),
        ([[good], [good]], "expected 4 lists of arrays, one for each device, found 2 lists"),
        ([[good], [good], [good, good], [good]], "device 2: expected 1 array"),
        ([good.astype(np.float64)], "input 0 on device 0: expected f32[3, 5], found f64[3, 5]"),
        ([[good], [good], [good], [good.T]], "input 0 on device 3: expected f32[3, 5], found f32[5, 3]"),
        ([np.array(["x"])], "expected an array of numbers, found the numpy type `<U1`"),
        ([np.array([object()])], "found the numpy type `object`"),
    ]
    for arrays, expected in cases:
        with pytest.raises(HloError) as raised:
            module.evaluate(arrays)
        assert expected in str(raised.value)


def test_passes_end() -> None:
    module = Module.parse(LOOP)
    with pytest.raises(HloError, match="pass `cse`: stopped after .* s, limit 0.000001 s; the module stays as it was"):
        module.run("cse,dce", timeout_s=1e-6)
    module.run("cse,dce", timeout_s=600)
    with pytest.raises(UsageError, match="expected a positive number of seconds"):
        module.run("cse,dce", timeout_s=0)


def test_words_are_not_empty() -> None:
    module = Module.parse(LOOP)
    for said in ({"passes": " "}, {"preset": ""}, {"passes": "dce", "machine": ""}):
        with pytest.raises(UsageError, match="expected a name, found"):
            module.run(**said)
    with pytest.raises(TypeError, match="path: expected a path, found 4 of type int"):
        Module.read(4)


def test_an_evaluation_ends() -> None:
    forever = LOOP.replace("direction=LT", "direction=GE").replace("s32[] constant(0)", "s32[] constant(4)")
    module = Module.parse(forever)
    for limit in ({"timeout_s": 0.2}, {"max_steps": 1000}):
        with pytest.raises(HloError, match="limit reached"):
            module.evaluate([np.zeros((3, 5), np.float32)], **limit)
    unknown = Module.parse('HloModule m\nENTRY e {\n ROOT c = f32[] custom-call(), custom_call_target="x"\n}')
    with pytest.raises(HloError, match="<module>:3"):
        unknown.evaluate([])
