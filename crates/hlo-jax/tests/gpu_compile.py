"""Compiles the training scripts for eight H100s on a machine without a GPU: as they are, by GSPMD with the optimizer's
state in shards, and with ``zero``; and a step over a mesh by XLA's partitioner and by ``partition``. No GPU runs
anything.

The CUDA plugin compiles for devices that are only described. Needs ``jax-cuda13-plugin``, ``jax-cuda13-pjrt``,
``nvidia-cuda-nvcc`` and ``nvidia-nvvm`` of the version of jax. ``python gpu_compile.py [--all] [SCRIPT …]`` prints a
table in Markdown and fails where what is promised does not hold. Without ``--all`` three scripts are compiled, and not
in the ways of others.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"
# Without a GPU no kernel can be timed.
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"

import hlo_opt.jax as ho
import jax
from described_h100 import described_mesh
from hlo_opt import Module, _native
from hlo_opt.jax import private, sharding
from hlo_opt.jax.plan import Memory
from hlo_opt.jax.partitioned import local_shape, physical
from jax.sharding import Mesh
from rivals import by_gspmd, donated, split, zero_by_hand
from tensor_parallel import OPTIMIZER, described, params_of, step_of, words_of
from training_scripts import SCRIPTS, Script

QUICK = ("flax_transformer", "plain_pytree", "scan_layers")
#: Layers as wide as real ones, with enough rows that XLA sums gradients and does not gather the batch instead.
SIZES = {
    "flax_mlp": {"width": 1024, "rows": 64},
    "flax_transformer": {"width": 512, "rows": 16},
    "batch_norm": {"width": 256, "rows": 16},
}
SIZE = {"width": 1024, "rows": 64}

#: XLA puts the gathers of all weights into one. Where the first layer waits for it, nothing can run beside it. Apart,
#: each can run beside the layers before its own.
GATHERS_APART = {
    "xla_gpu_all_gather_combine_threshold_bytes": 1,
    "xla_gpu_experimental_parallel_collective_overlap_limit": 8,
}

#: State of these scripts that lies on the host: much smaller than that of real ones.
LEAST_OFFLOADED_BYTES = 64 << 10
#: So much of the bytes of state on the host is saved at the peak, at least.
HELD_BACK = 0.8

#: Scripts with layers in a loop, whose weights in shards are gathered one by one: the memory that is predicted differs by at most this
#: share from XLA's account. In others the workspace of products weighs more than that, as small as they are.
IN_LOOPS = ("scan_layers",)
FORETOLD = 0.06

AS_IT_IS = "as it is"
OPTIMIZER_STATE = "GSPMD, optimizer state"
WEIGHTS_TOO = "GSPMD, weights too"
BY_XLA = "partitioned by XLA"
BY_US = "partition"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A collective of a module: its kind, whether it runs beside other work, and the bytes of its operands on one
    device in all its runs."""

    kind: str
    is_async: bool
    operand_bytes: float
    n_devices: int

    @property
    def sent_bytes(self) -> float:
        """What one device sends in a ring."""
        n = self.n_devices
        shares = {
            "all-reduce": 2 * (n - 1) / n,
            "reduce-scatter": (n - 1) / n,
            "all-gather": n - 1,
            "all-to-all": (n - 1) / n,
            "collective-permute": 1,
        }
        return shares[self.kind] * self.operand_bytes


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What is known of a compiled step; bytes are those of one device."""

    arguments: int
    outputs: int
    alias: int
    temp: int
    exchanges: list[Exchange]
    step_s: float
    is_partial: bool
    compile_s: float
    loops: list[bool]

    @property
    def own(self) -> int:
        """All that it takes."""
        return self.arguments + self.outputs - self.alias + self.temp


def exchanges_of(module: Module) -> list[Exchange]:
    """The collectives of a module. XLA writes an asynchronous one as a computation that an ``async-start`` calls."""
    starts = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode.endswith("-start"):
                is_sync = '"is_sync":true' in instruction.attributes.get("backend_config", "")
                for name in (instruction.name, *instruction.calls):
                    starts[name] = not is_sync
    found = []
    for collective in module.collectives():
        n_devices = len(collective.groups[0]) if collective.groups else module.n_devices
        is_async = starts.get(collective.name) or starts.get(collective.computation) or False
        kind = collective.opcode.removesuffix("-start")
        found.append(Exchange(kind, is_async, collective.bytes * collective.runs, n_devices))
    return found


def loops_ahead(module: Module) -> list[bool]:
    """Of each loop that gathers, whether it hands what it has gathered on to the next iteration."""
    gathering = {c.name for c in module.computations if any(i.opcode == "all-gather" for i in c.instructions)}
    bodies = {call for c in module.computations for i in c.instructions if i.opcode == "while" for call in i.calls}
    found = []
    for computation in module.computations:
        gathered: set[str] = set()
        for instruction in computation.instructions:
            is_gather = instruction.opcode.startswith("all-gather") or gathering.intersection(instruction.calls)
            is_handed_on = instruction.opcode in ("get-tuple-element", "bitcast", "copy", "tuple", "async-done")
            if is_gather or (is_handed_on and gathered.intersection(instruction.operands)):
                gathered.add(instruction.name)
        if gathered and computation.name in bodies:
            found.append(computation.root.name in gathered)
    return found


def predicted(module: bytes) -> tuple[float, bool]:
    """The predicted time of a step on eight H100s, and whether some of it is not counted."""
    args = ["analyze", "time", "--machine", "h100", "--num-partitions", "8", "--format", "json", "-"]
    code, out, said = _native.run(args, module)
    if code != 0:
        raise ValueError(said.strip())
    facts = json.loads(out)
    return facts["critical_path_s"], facts["is_partial"]


def compiled(lower: Callable[[], Any], options: dict | None = None) -> tuple[Compiled, Any]:
    """Compiles what ``lower`` returns, which is timed too."""
    begin = time.perf_counter()
    executable = lower().compile(compiler_options=options)
    seconds = time.perf_counter() - begin
    (final,) = executable.runtime_executable().hlo_modules()
    proto = final.as_serialized_hlo_module_proto()
    memory = executable.memory_analysis()
    step_s, is_partial = predicted(proto)
    row = Compiled(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        alias=memory.alias_size_in_bytes,
        temp=memory.temp_size_in_bytes,
        exchanges=exchanges_of(Module.parse(proto, num_partitions=8)),
        step_s=step_s,
        is_partial=is_partial,
        compile_s=seconds,
        loops=loops_ahead(Module.parse(proto, num_partitions=8)),
    )
    return row, executable


def zero(shard: str) -> str:
    """What a way is called."""
    return f'zero, shard="{shard}"'


def apart(shard: str) -> str:
    """What a way is called whose gathers XLA does not combine."""
    return f"{zero(shard)}, gathers apart"


def offloaded(shard: str) -> str:
    """What a way is called whose optimizer state lies in the memory of the host."""
    return f"{zero(shard)}, state on the host"


def lower_offloaded(step: ho.ZeroStep, *args: Any) -> Any:
    """The program of a step with state on the host, lowered. JAX knows no kinds of memory of devices that are only
    described, and XLA compiles no such program without them: so they are put in before it is compiled."""
    of_lowered = jax.stages.Lowered
    compile_probe = of_lowered.compile

    def compile_no_program(lowered: Any, *args: Any, **options: Any) -> Any:
        return compile_probe(lowered, *args, **options) if args or options else None

    with (
        mock.patch.object(private, "has_host_memory", lambda _: True),
        mock.patch.object(of_lowered, "compile", compile_no_program),
        mock.patch.object(Memory, "of", lambda _: None),
    ):
        plan = step.plan(*args)
    lowered = plan.call.lower(*plan._described())
    on_host = {"arg_attrs": plan.sharded.on_host, "res_attrs": plan.sharded.outputs_on_host}
    private.set_memory_kinds(lowered, on_host)
    return lowered


def check_offloaded(shard: str, step: ho.ZeroStep, rows: dict[str, Compiled], n_bytes: int, is_quick: bool) -> list[str]:
    """What does not hold of what is promised of state on the host, of which ``n_bytes`` lie there: sentences."""
    row, base, failures = rows[offloaded(shard)], rows[zero(shard)], []
    sharded = step.last_plan.sharded
    expected = sum(held_bytes(step.last_plan, n) for n in sharded.on_host)
    if n_bytes != expected or expected == 0:
        failures.append(f"expected {expected} bytes on the host, found {n_bytes}")
    if row.arguments != base.arguments - expected:
        failures.append(f"expected {base.arguments - expected} bytes of arguments, found {row.arguments}")
    # Where the most memory is taken while state is updated, nothing is saved.
    least = HELD_BACK * expected if is_quick else -0.001 * base.own
    if base.own - row.own < least:
        failures.append(f"expected {least:.0f} bytes less than {base.own} in all, found {row.own}")
    return failures


def bytes_by_kind(exchanges: list[Exchange]) -> dict[str, float]:
    """The bytes of operands of all collectives of each kind."""
    found: dict[str, float] = collections.defaultdict(float)
    for exchange in exchanges:
        found[exchange.kind] += exchange.operand_bytes
    return dict(sorted(found.items()))


def rows_of(name: str, mesh: Mesh, with_others: bool) -> tuple[dict[str, Compiled], list[str]]:
    """The ways to compile a script, and what does not hold."""
    size = SIZES.get(name, SIZE)
    script: Script = SCRIPTS[name](mesh, **size)
    arguments, statics = split(script)
    rows = {}
    rows[AS_IT_IS], executable = compiled(functools.partial(script.step.lower, *arguments, *statics))
    if with_others:
        for way, with_weights in ((OPTIMIZER_STATE, False), (WEIGHTS_TOO, True)):
            step, described = by_gspmd(script, mesh, executable, with_weights)
            rows[way], _ = compiled(functools.partial(step.lower, *described))
    if with_others and name == "shard_mapped":
        for way, with_weights in (("by hand, optimizer state", False), ("by hand, weights too", True)):
            own = zero_by_hand(mesh, with_weights=with_weights, **size)
            rows[way], _ = compiled(functools.partial(own.step.lower, *own.state, *own.batch(0)))
    is_donated, failures = bool(donated(executable)), []
    for shard in sharding.SHARDS:
        step = ho.zero(script.step, shard=shard, machine="h100", strict=True)
        lower = functools.partial(step.lower, *arguments, *statics)
        rows[zero(shard)], _ = compiled(lower)
        if shard == "parameters" and not has_async(rows[zero(shard)], "all-gather"):
            rows[apart(shard)], _ = compiled(lower, GATHERS_APART)
        found = check(name, script, shard, step.last_plan, rows, is_donated)
        # A check that accepts the step as it is could not fail.
        refused = check(
            name, script, shard, step.last_plan, {AS_IT_IS: rows[AS_IT_IS], zero(shard): rows[AS_IT_IS]}, is_donated
        )
        if len(refused) < 4:
            found.append(f"expected the step as it is to be refused for four reasons, found {refused}")
        failures += [f"{name}, shard={shard!r}: {sentence}" for sentence in found]
    for shard in ("optimizer", "parameters") if with_others else ("optimizer",):
        step = ho.zero(script.step, shard=shard, machine="h100", strict=True, offload=True)
        with mock.patch.object(sharding, "LEAST_OFFLOADED_BYTES", LEAST_OFFLOADED_BYTES):
            lowered = lower_offloaded(step, *arguments, *statics)
        if not step.last_plan.sharded.on_host:
            continue  # a loop that holds the whole training has its state within
        rows[offloaded(shard)], executable = compiled(lambda lowered=lowered: lowered)
        n_bytes = executable.memory_analysis().host_argument_size_in_bytes
        found = check_offloaded(shard, step, rows, n_bytes, name in QUICK)
        failures += [f"{name}, shard={shard!r}, on the host: {sentence}" for sentence in found]
    return rows, failures


def partitioned_rows(mesh: Mesh) -> tuple[dict[str, Compiled], list[str]]:
    """A Transformer over 2 x 4 devices by XLA's partitioner and by ``partition``, and what does not hold."""
    grid = Mesh(mesh.devices.reshape(2, 4), ("data", "model"))
    params = jax.eval_shape(params_of)
    shapes = (params, jax.eval_shape(OPTIMIZER.init, params), jax.eval_shape(lambda: words_of(0)))
    arguments = [described(tree, grid, number) for number, tree in enumerate(shapes)]
    step = ho.partition(step_of(), machine="h100", strict=True)
    rows = {
        BY_XLA: compiled(functools.partial(step.unwrapped.lower, *arguments))[0],
        BY_US: compiled(functools.partial(step.lower, *arguments))[0],
    }
    own, xla, failures = rows[BY_US], rows[BY_XLA], []
    kept = donated_bytes(step.last_plan)
    if not 0 < kept <= own.alias:
        failures.append(f"expected {kept} donated bytes to keep their place, found {own.alias}")
    if own.step_s > xla.step_s:
        failures.append(f"expected at most {xla.step_s * 1e6:.0f} µs, found {own.step_s * 1e6:.0f}")
    sent = [sum(exchange.sent_bytes for exchange in row.exchanges) for row in (own, xla)]
    if sent[0] > sent[1]:
        failures.append(f"expected at most {sent[1]} bytes sent, found {sent[0]}")
    if own.arguments != xla.arguments:
        failures.append(f"expected arguments as they are annotated, {xla.arguments} bytes, found {own.arguments}")
    return rows, [f"tensor_parallel: {sentence}" for sentence in failures]


def has_async(row: Compiled, kind: str) -> bool:
    """Whether a collective of this kind runs beside other work."""
    return any(exchange.kind == kind and exchange.is_async for exchange in row.exchanges)


def nbytes(tree: Any) -> int:
    """The bytes of all leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def held_bytes(plan: Any, number: int) -> int:
    """The bytes of a kept argument on one device, as the program takes it."""
    leaf = jax.tree.map(physical, plan._described()[number])
    spec, mesh = plan.sharded.param_specs[number], plan.sharded.mesh
    return nbytes(jax.ShapeDtypeStruct(local_shape(leaf.shape, spec, mesh), leaf.dtype))


def donated_bytes(plan: Any) -> int:
    """The bytes of donated arguments on one device, as the plan cuts them."""
    step, total = plan.partitioned, 0
    for number, spec in zip(step.kept, plan.sharded.param_specs):
        if step.donated[number]:
            leaf = physical(step.avals[number])
            total += nbytes(jax.ShapeDtypeStruct(local_shape(leaf.shape, spec, step.mesh), leaf.dtype))
    return total


def foretold(plan: Any) -> int:
    """The predicted peak of what was taken."""
    return plan.sharded.ways[plan.sharded.taken].peak_bytes


def check(name: str, script: Script, shard: str, plan: Any, rows: dict[str, Compiled], is_donated: bool) -> list[str]:
    """What does not hold of what is promised: sentences."""
    row, base, failures = rows[zero(shard)], rows[AS_IT_IS], []

    def expect(holds: bool, sentence: str) -> None:
        if not holds:
            failures.append(f"expected {sentence}")

    expect(has_async(row, "reduce-scatter"), f"an asynchronous reduce-scatter, found {kinds(row)}")
    # Where XLA puts the gathers into one that nothing can run beside, those that it was given are looked at.
    gathers = rows.get(apart(shard), row) if shard == "parameters" else row
    expect(has_async(gathers, "all-gather"), f"an asynchronous all-gather, found {kinds(gathers)}")

    cut = script.state if shard == "parameters" else script.optimizer(script.state)
    saved, most = base.arguments - row.arguments, nbytes(jax.tree.map(physical, cut)) * 7 / 8
    expect(saved >= 0.98 * most, f"nearly {most:.0f} bytes of arguments less than {base.arguments}, found {saved} less")
    kept = donated_bytes(plan)
    expect((kept > 0) == is_donated, f"donated state in the plan if the step donates it, found {kept} bytes")
    expect(row.alias >= kept, f"{kept} donated bytes to keep their place, found {row.alias}")
    expect(row.own <= base.own, f"at most {base.own} bytes in all, found {row.own}")

    if shard == "parameters" and name in IN_LOOPS:
        expect(row.loops == [True, True], f"both loops to gather a layer ahead, found {row.loops}")
        expect(abs(foretold(plan) / row.own - 1) <= FORETOLD, f"about {foretold(plan)} bytes in all, found {row.own}")

    given = bytes_by_kind(exchanges_of(Module.parse(plan.sharded.module, num_partitions=8)))
    final = bytes_by_kind(row.exchanges)
    if shard == "optimizer":
        # XLA makes reduce-scatters of sums that only slices read.
        given, final = (as_sums(found) for found in (given, final))
    expect(given == final, f"the bytes of the module that XLA was given, {given}, found {final}")
    return failures


def as_sums(found: dict[str, float]) -> dict[str, float]:
    """The same with all sums as one kind."""
    sums = ("all-reduce", "reduce-scatter")
    return {"sums": sum(found.get(kind, 0) for kind in sums), **{k: n for k, n in found.items() if k not in sums}}


def kinds(row: Compiled) -> str:
    """The collectives, of each kind their number and how many of them are asynchronous."""
    n_all = collections.Counter(exchange.kind for exchange in row.exchanges)
    n_async = collections.Counter(exchange.kind for exchange in row.exchanges if exchange.is_async)
    return ", ".join(f"{n} {kind} ({n_async[kind]} async)" for kind, n in sorted(n_all.items())) or "no collective"


def predicted_us(row: Compiled) -> str:
    """The predicted time; it is more where it is not known of all instructions."""
    return f"{'≥ ' if row.is_partial else ''}{row.step_s * 1e6:.0f}"


COLUMNS = "script|way|arguments|outputs|alias|temp|in all|sent|collectives|predicted µs|compile s"
HEADER = f"| {COLUMNS.replace('|', ' | ')} |\n|---|---|--:|--:|--:|--:|--:|--:|---|--:|--:|"


def line(name: str, way: str, row: Compiled) -> str:
    """A row of the table; bytes in MB, on one device."""
    sizes = (row.arguments, row.outputs, row.alias, row.temp, row.own, sum(e.sent_bytes for e in row.exchanges))
    cells = [name, way, *(f"{size / 1e6:.1f}" for size in sizes), kinds(row)]
    cells += [predicted_us(row), f"{row.compile_s:.1f}"]
    return f"| {' | '.join(cells)} |"


def summary(rows_by_script: dict[str, dict[str, Compiled]]) -> str:
    """A table with a line for each script: bytes in all, and the predicted time, of each way."""
    ways = [AS_IT_IS, OPTIMIZER_STATE, WEIGHTS_TOO, *map(zero, sharding.SHARDS)]
    lines = ["| script | " + " | ".join(ways) + " |", "|---|" + "--:|" * len(ways)]
    for name, rows in rows_by_script.items():
        cells = [f"{rows[way].own / 1e6:.1f} MB, {predicted_us(rows[way])} µs" for way in ways]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="all scripts, and the ways of others too")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=", ".join(SCRIPTS))
    options = parser.parse_args()
    mesh = described_mesh()
    print(f"jax {jax.__version__}, compiled for 8 H100, no GPU ran")
    print("MB of one device; in all: arguments + outputs - alias + temp; predicted by hlo-opt, of the final module\n")
    print(HEADER, flush=True)
    by_script, failures = {}, []
    for name in options.scripts or (SCRIPTS if options.all else QUICK):
        try:
            by_script[name], failed = rows_of(name, mesh, options.all)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for way, row in by_script[name].items():
            print(line(name, way, row), flush=True)
        failures += failed
    if not options.scripts:
        try:
            rows, failed = partitioned_rows(mesh)
            print("\n".join(line("tensor_parallel", way, row) for way, row in rows.items()), flush=True)
        except Exception as error:
            failed = [f"tensor_parallel: {type(error).__name__}: {error}"]
        failures += failed
    if options.all:
        print(f"\n{summary(by_script)}")
    print("\n" + ("\n".join(failures) or "all that is promised holds"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
