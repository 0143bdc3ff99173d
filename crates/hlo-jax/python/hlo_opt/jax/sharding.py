"""What hlo-opt makes of a partitioned step: the ways that were compared, and the program that was taken."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from hlo_opt import _native
from hlo_opt.arguments import checked_text, nearest
from hlo_opt.jax import batch, layout, padded, private
from hlo_opt.jax.padded import Padding
from hlo_opt.jax.pairs import state_pairs
from hlo_opt.jax.partitioned import Declined, Partitioned, physical
from hlo_opt.jax.words import python_words, size
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr

#: What ``zero`` may be asked to shard, as ZeRO-1, 2 and 3 do.
SHARDS = ("optimizer", "gradients", "parameters")

#: Which of these is taken, or none, is left to what is predicted.
AUTO = "auto"

#: The name of the way in which a step runs without :func:`zero`.
AS_IT_WAS = "as it was"

#: Times nearer than this share of each other are taken as equal: a prediction is no better.
EQUAL_TIMES = 0.02

#: State that is smaller stays on the device: each copy has a latency.
LEAST_OFFLOADED_BYTES = 1 << 20

#: Arrays under this stay whole: shards of them save less memory than their collectives cost.
LEAST_CUT_BYTES = 1 << 10

#: Arrays under this are not padded.
LEAST_PADDED_BYTES = 16 << 10

#: What XLA's own combiners put together again, and StableHLO has no words for.
SEPARATE = "split-tuple-all-reduce{ops=all},dce"

#: Layers that a loop gathers one by one arrive while the layer before runs.
AHEAD = "pipeline-loop-collectives"


#: How often a limit that nothing keeps is taken for the least that was found.
MOST_LIMITS = 3


class OverLimit(Declined):
    """Nothing keeps a limit; ``least_bytes`` is the least that was found."""

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


class UnknownState(Declined):
    """The passes know of no update in shards that has these parameters as state; ``params`` are their numbers."""

    def __init__(self, message: str, params: list[int]) -> None:
        super().__init__(message)
        self.params = params


def seconds(step_s: float | None) -> str:
    """A predicted time in words."""
    return "unknown" if step_s is None else f"{step_s * 1e6:.1f} µs"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a script asks of :func:`shard`.

    Attributes:
        shard: one of :data:`SHARDS`, or :data:`AUTO`.
        state: of patterns of names whether leaves that match are in shards, whatever they are to the step.
        machine: what times are predicted for.
        deadline_s: seconds that the passes may take for each way.
        offload: whether state may lie in the memory of the host.
    """

    shard: str
    state: dict[re.Pattern[str], bool]
    machine: str | None
    deadline_s: float | None
    offload: bool


@dataclasses.dataclass
class Way:
    """One way to run a step, with what is predicted for one device. ``cut`` has the numbers of the parameters that it
    holds in shards and the step as it was does not; ``name`` is what ``zero`` shards, or who partitioned."""

    name: str
    cut: frozenset[int]
    step_s: float | None
    peak_bytes: int
    argument_bytes: int
    sent_bytes: float

    def describe(self) -> str:
        """One line of a table."""
        sizes = [self.peak_bytes / 2**20, self.argument_bytes / 2**20, self.sent_bytes / 2**20]
        cells = [f"{self.name:<10}", f"{len(self.cut):>9}", f"{seconds(self.step_s):>12}"]
        return " ".join([*cells, *(f"{size:>13.2f}" for size in sizes)])


@dataclasses.dataclass
class Sharded:
    """The program that was taken.

    Attributes:
        module: the HloModuleProto of one device, whose state is in shards.
        ways: all ways that were compared; the first is the step as it was.
        taken: the number of the way taken.
        mesh: that of the arguments; where state is cut over a part of an axis, with that axis split in two.
        param_specs, output_specs: how each parameter and output is cut now, by the axes of ``mesh``.
        param_shardings, output_shardings: the same as arrays have it.
        cut: the numbers of the parameters that were whole and are in shards now.
        machine: what times are predicted for.
        page_args: the arguments with which the command line makes the page about it.
        param_paddings, output_paddings: of those that are held in another shape their numbers, and how.
        on_host, outputs_on_host: the numbers of the parameters and outputs that lie in the memory of the host.
        failure_of_xla: what XLA's partitioner said of the step, where it failed and there is nothing to compare with.
        whole_because: of parameters that stay whole their numbers, and why.
        roles: what parameters are to the step, as ``"weight"`` and ``"state"``, by their numbers.
        repeated: how many devices add a gradient up, and how many hold it, where the others repeat their work.
    """

    module: bytes
    ways: list[Way]
    taken: int
    mesh: Mesh
    param_specs: list[PartitionSpec]
    output_specs: list[PartitionSpec]
    param_shardings: list[NamedSharding]
    output_shardings: list[NamedSharding]
    cut: list[int]
    machine: str
    page_args: list[str]
    param_paddings: dict[int, Padding] = dataclasses.field(default_factory=dict)
    output_paddings: dict[int, Padding] = dataclasses.field(default_factory=dict)
    on_host: frozenset[int] = frozenset()
    outputs_on_host: frozenset[int] = frozenset()
    failure_of_xla: str | None = None
    whole_because: dict[int, str] = dataclasses.field(default_factory=dict)
    roles: dict[int, str] = dataclasses.field(default_factory=dict)
    repeated: tuple[int, int] | None = None


_MACHINE = "the name of a machine (such as 'h100', 'h200:4' for four nodes, or 'a100:[(node,2),(gpu,8)]' for other links)"


def checked_machine(machine: Any) -> str | None:
    """Returns the name of a machine, ``None`` for the default. Whether the devices can be spread over its nodes, a step
    says: :func:`check_nodes`.

    Raises:
        TypeError: it is no string.
        ValueError: no machine has this name; the message lists those that there are.
    """
    if checked_text("machine", machine, _MACHINE) is None:
        return None
    links = machine.strip().partition(":")[2].strip() or machine.strip()
    if machine.strip().endswith(".toml"):
        return machine.strip()
    if links.startswith("[") or links == "switch":
        error = _native.machine_error(machine.strip())
        if error is not None:
            raise ValueError(error if error.startswith("machine") else f"machine: {error}")
        return machine.strip()
    name, colon, n_nodes = machine.strip().partition(":")
    if colon and not (n_nodes.isdecimal() and int(n_nodes) > 0):
        found = f"found {n_nodes!r} in {machine!r}"
        raise ValueError(f"machine: expected a positive number of nodes behind '{name}:', {found}")
    if name == "auto":
        _check_this_computer(machine.strip())
    else:
        known = _native.machine_names()
        short = name.removeprefix("dgx-")
        if short not in known:
            meant = f"; did you mean {short.lower()!r}?" if short.lower() in known else nearest(name, known)
            raise ValueError(f"machine: expected one of {', '.join(known)}, or 'auto', found {name!r}{meant}")
    return machine.strip()


def _check_this_computer(machine: str) -> None:
    """Raises a ValueError where this computer's devices are no known machine."""
    nothing = b"HloModule nothing\n\nENTRY main {\n  ROOT a = f32[] constant(0)\n}\n"
    code, _, said = _native.run(["--machine", machine.partition(":")[0], "-o", os.devnull, "-q", "-"], nothing)
    if code != 0:
        raise ValueError(python_words(said))


def check_nodes(machine: str | None, n_devices: int) -> None:
    """Checks that so many devices can be spread over the nodes that a machine's name says.

    Raises:
        Declined: they cannot, and why.
    """
    name, _, n_nodes = (machine or "").partition(":")
    if n_nodes.isdecimal() and n_devices % int(n_nodes):
        raise Declined(
            f"machine={machine!r}: expected a number of nodes that divides the {n_devices} devices, found {n_nodes}; "
            f"{name!r} alone takes as few nodes as the devices fill"
        )


def _run(step: Partitioned, preset: str, passes: str, target: list[str], deadline_s: float | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hlo_opt_") as folder:
        return _run_in(folder, step, preset, passes, target, deadline_s)


def _run_in(
    folder: str, step: Partitioned, preset: str, passes: str, target: list[str], deadline_s: float | None
) -> dict[str, Any]:
    report = os.path.join(folder, "report.json")
    what = ["--preset", preset, *target]
    limit = [] if deadline_s is None else ["--timeout", repr(float(deadline_s))]
    args = [*what, *limit, "--pass", passes, "--output-format", "proto", "-o", folder, "--report-file", report, "-"]
    code, _, said = _native.run(args, step.module)
    if code != 0:
        least = re.search(r"error\[memory-limit\].*found (\d+) bytes at least", said)
        if least is not None:
            raise OverLimit(python_words(said), int(least.group(1)))
        unknown = re.search(r"error\[pins\].*found (\d+(?:, \d+)*)\s*$", said)
        if unknown is not None:
            raise UnknownState(python_words(said), [int(number) for number in unknown.group(1).split(", ")])
        raise Declined(python_words(said))
    with open(report, encoding="utf-8") as file:
        (module,) = json.load(file)["modules"]
    with open(os.path.join(folder, "main.hlo.pb"), "rb") as file:
        module["proto"] = file.read()
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        module["manifest"] = json.load(file)
    module["page_args"] = what
    return module


def _step_s(figures: dict[str, Any]) -> float | None:
    """The predicted seconds of a step, with its collectives combined as XLA combines them; ``None`` where not known."""
    time = figures["time"]
    return None if time is None else time["critical_path_s"]


def _way(name: str, cut: Iterable[int], figures: dict[str, Any], step_s: float | None) -> Way:
    return Way(
        name=name,
        cut=frozenset(cut),
        step_s=step_s,
        peak_bytes=figures["peak_bytes"],
        argument_bytes=figures["argument_bytes"],
        sent_bytes=figures["sent_bytes"],
    )


def _said(pairs: list[tuple[int, int]]) -> str:
    text = ",".join(f"{param}:{output}" for param, output in pairs)
    return f",state-pairs=[{text}]" if pairs else ""


def _passes(form: str, offload: bool, pairs: list[tuple[int, int]], memory_limit: int | None) -> str:
    """What follows the preset. A limit decides itself whether there is memory for one more layer."""
    passes = f"{SEPARATE},{AHEAD}" if form == "parameters" and memory_limit is None else SEPARATE
    if not offload:
        return passes
    options = f"min-bytes={LEAST_OFFLOADED_BYTES},to={memory_limit or 0}{_said(pairs)}"
    return f"{passes},offload-state{{{options}}}"


def _options(step: Partitioned, form: str, pairs: list[tuple[int, int]], pins: dict[int, bool]) -> str:
    said = _said(pairs)
    # What the script cuts itself has tiles, and padding within each of them is no padding of the whole.
    is_whole = not any(axes is not None for param, _ in pairs for axes in step.param_specs[param])
    cuts = "padded" if is_whole and padded.is_known() else "even"
    if pins:
        said += f",pins=[{','.join(f'{n}:{_PINNED[is_cut]}' for n, is_cut in pins.items())}]"
    return f"sharded-state{{objective=memory,cuts={cuts},state={form}{said}}}"


def _target(form: str, machine: str | None, memory_limit: int | None) -> list[str]:
    """The options about the target. Weights that are in shards may be gathered a second time for the backward pass
    instead of being kept; the other forms have nothing to choose within a limit."""
    of_machine = [] if machine is None else ["--machine", machine]
    has_limit = form == "parameters" and memory_limit is not None
    return [*of_machine, "--memory-limit", str(memory_limit)] if has_limit else of_machine


_PINNED = {True: "sharded", False: "whole"}


def _pins(step: Partitioned, said: dict[re.Pattern[str], bool], pairs: list[tuple[int, int]]) -> dict[int, bool]:
    """The parameters of which the script says whether they are in shards, by number. Of several patterns that match a
    leaf's name the last one counts.

    Raises:
        Declined: a pattern matches no leaf with a next value.
    """
    pins: dict[int, bool] = {}
    for pattern, is_cut in said.items():
        found = [param for param, _ in pairs if pattern.search(step.names[step.kept[param]])]
        if not found:
            names = [step.names[step.kept[param]] for param, _ in pairs]
            example = f"such as {names[-1]!r}" if names else "of which this step has none"
            raise Declined(
                f"state: expected the name of an argument with a next value, {example}, found {pattern.pattern!r}, which "
                "matches none"
            )
        pins.update(dict.fromkeys(found, is_cut))
    return pins


def shard(step: Partitioned, asked: Asked, memory_limit: int | None) -> Sharded:
    """Shards what is asked for, and says how it is cut. ``"auto"`` compares all that there is, and takes the fastest way
    that fits the limit. Where none is predicted to fit, the one that takes least is taken.

    Raises:
        Declined: what the compiler says, that the passes had no time left, or that the step as it was is fastest.
    """
    forms = SHARDS if asked.shard == AUTO else (asked.shard,)
    pairs = state_pairs(step)
    pins = _pins(step, asked.state, pairs)
    ways: list[Way] = []
    made: list[dict[str, Any]] = []
    for form in forms:
        module = _within(step, form, (pairs, pins), memory_limit, asked)
        totals = module["totals"]
        if not ways:
            ways.append(_way(AS_IT_WAS, (), totals["before"], _step_s(totals["before"])))
        cut = [leaf["index"] for leaf in module["manifest"]["params"] if leaf["sharded"]]
        ways.append(_way(form, cut, totals["after"], _step_s(totals["after"])))
        made.append(module)
    taken = _choose(ways, memory_limit, asked.shard == AUTO)
    if taken == 0:
        fits = "" if memory_limit is None else f" and fits memory_limit={size(memory_limit)}"
        raise Declined(f"shard={AUTO!r}: the step as it was is predicted to be fastest{fits}; shard='optimizer' takes less memory")
    if pins and not any(pins.get(param, True) for param, _ in pairs):
        raise Declined("no state could be cut: the expressions of `state` keep every array with a next value whole")
    return _placed(step, made[taken - 1], ways, taken)


def _within(
    step: Partitioned,
    form: str,
    said: tuple[list[tuple[int, int]], dict[int, bool]],
    memory_limit: int | None,
    asked: Asked,
) -> dict[str, Any]:
    """What comes of a form within a limit, or within the least that is found where nothing keeps the limit: first the
    preset may say so, then a pass behind it."""
    limit = memory_limit
    for _ in range(MOST_LIMITS):
        try:
            return _run_pinned(step, form, said, limit, asked)
        except OverLimit as why:
            last, limit = why, why.least_bytes
    raise last


def _run_pinned(
    step: Partitioned,
    form: str,
    said: tuple[list[tuple[int, int]], dict[int, bool]],
    limit: int | None,
    asked: Asked,
) -> dict[str, Any]:
    """What comes of a form. A pin that asks the passes to leave whole what they know no way to shard is dropped.

    Raises:
        Declined: what the compiler says, or a pin asks for shards of what the passes know no way to shard.
    """
    pairs, pins = said
    run = lambda pins: _run(
        step,
        _options(step, form, pairs, pins),
        _passes(form, asked.offload, pairs, limit),
        _target(form, asked.machine, limit),
        asked.deadline_s,
    )
    try:
        return run(pins)
    except UnknownState as why:
        unknown = why.params
    names = [step.names[step.kept[param]] for param in unknown if pins[param]]
    if names:
        raise Declined(
            f"state: expected names of arrays that can lie in shards, found {', '.join(names)}: each is a scalar, or of "
            "less than 1 KiB, or no update in shards reaches it; narrow the expression that matches it"
        )
    return run({param: is_cut for param, is_cut in pins.items() if param not in unknown})


def _choose(ways: list[Way], memory_limit: int | None, may_do_nothing: bool) -> int:
    """The least predicted step of those that fit the limit; of nearly equal ones the one with less memory. Where none
    fits, the one with the least peak. The step as it was is there to be compared with, or else to be taken too."""
    numbers = list(range(0 if may_do_nothing else 1, len(ways)))
    if memory_limit is not None:
        least = min(numbers, key=lambda n: ways[n].peak_bytes)
        numbers = [n for n in numbers if ways[n].peak_bytes <= memory_limit] or [least]
    times = [way.step_s if way.step_s is not None else 0.0 for way in ways]
    limit = min(times[n] for n in numbers) * (1 + EQUAL_TIMES)
    near = [n for n in numbers if times[n] <= limit]
    return min(near, key=lambda n: (ways[n].peak_bytes, times[n]))


def _placed(step: Partitioned, module: dict[str, Any], ways: list[Way], taken: int) -> Sharded:
    manifest = module["manifest"]
    n_params = len(step.kept)
    if len(manifest["params"]) != n_params:
        raise Declined(f"expected {n_params} parameters in the manifest, found {len(manifest['params'])}")
    cut = [leaf["index"] for leaf in manifest["params"] if leaf["sharded"]]
    if not cut:
        raise Declined(f"no state could be cut: {_why_nothing(step, module, ways[taken].name)}")
    params = _leaves(manifest["params"], [step.avals[number] for number in step.kept], step.param_specs)
    outputs = _leaves(manifest["outputs"], step.outputs, step.output_specs)
    for mesh in layout.refinements(step.mesh):
        param_specs, output_specs = _specs(params, step.mesh, mesh), _specs(outputs, step.mesh, mesh)
        if None not in param_specs and None not in output_specs:
            break
    else:
        groups = next(leaf["groups"] for leaf in manifest["params"] if leaf["sharded"])
        raise Declined(f"the mesh {dict(step.mesh.shape)} has no axis over the groups {groups}, in which state is cut")
    on_host, outputs_on_host = private.on_host(module["proto"])
    if on_host and not private.has_host_memory(step.mesh.devices.flat[0]):
        raise Declined(f"offload: the devices have no memory of the kind {private.HOST_MEMORY}")
    return Sharded(
        module=module["proto"],
        ways=ways,
        taken=taken,
        mesh=mesh,
        param_specs=param_specs,
        output_specs=output_specs,
        param_shardings=_shardings(params, param_specs, on_host, step.mesh, mesh),
        output_shardings=_shardings(outputs, output_specs, outputs_on_host, step.mesh, mesh),
        cut=cut,
        machine=module["totals"]["machine"],
        page_args=module["page_args"],
        param_paddings={n: leaf.padding for n, leaf in enumerate(params) if leaf.padding is not None},
        output_paddings={n: leaf.padding for n, leaf in enumerate(outputs) if leaf.padding is not None},
        on_host=on_host,
        outputs_on_host=outputs_on_host,
        whole_because=_whole_because(step, manifest),
        roles={leaf["index"]: leaf["role"] for leaf in manifest["params"] if "role" in leaf},
        repeated=_repeated(manifest.get("repeated_work")),
    )


def _repeated(work: dict[str, int] | None) -> tuple[int, int] | None:
    return None if work is None else (work["summed_by"], work["held_by"])


@dataclasses.dataclass
class _Leaf:
    """A parameter or output: how it was cut, how the manifest cuts it once more, ``None`` if it does not, and in what
    other shape it is held, ``None`` for its own."""

    rank: int
    before: PartitionSpec
    cut: dict[str, Any] | None
    padding: Padding | None = None


def _leaves(entries: list[dict], avals: Sequence[Any], specs: list[PartitionSpec]) -> list[_Leaf]:
    leaves = [_Leaf(len(physical(aval).shape), spec, None) for aval, spec in zip(avals, specs)]
    for entry in entries:
        if entry["sharded"]:
            leaf = leaves[entry["index"]]
            leaf.cut = entry
            if entry["padded_shape"] != entry["original_shape"]:
                if any(axes is not None for axes in leaf.before):
                    raise Declined(f"expected an even cut of what the script cuts as {leaf.before}, found padding")
                shapes = [tuple(entry[of]) for of in ("original_shape", "formatted_shape", "padded_shape")]
                leaf.padding = Padding(*shapes, entry["dim"])
                leaf.rank = len(entry["padded_shape"])
    return leaves


def _specs(leaves: list[_Leaf], before: Mesh, mesh: Mesh) -> list[PartitionSpec | None]:
    """How leaves are cut, by the axes of a mesh of the same devices; ``None`` where these cannot say it."""
    specs = []
    for leaf in leaves:
        tiles = layout.tiles_of(leaf.before, leaf.rank, before)
        if leaf.cut is not None:
            shards = leaf.cut["shard_index_by_device"]
            tiles = layout.cut(tiles, leaf.cut["dim"], max(shards) + 1, shards)
        specs.append(layout.spec_of(tiles, mesh) if leaf.cut is not None or mesh is not before else leaf.before)
    return specs


def _shardings(
    leaves: list[_Leaf], specs: list[PartitionSpec | None], on_host: frozenset[int], before: Mesh, mesh: Mesh
) -> list[NamedSharding]:
    """How arrays lie: what is not cut once more keeps the script's mesh."""
    found = [
        NamedSharding(before, leaf.before) if leaf.cut is None else NamedSharding(mesh, spec)
        for leaf, spec in zip(leaves, specs)
    ]
    return [s.with_memory_kind(private.HOST_MEMORY) if n in on_host else s for n, s in enumerate(found)]


def _whole_because(step: Partitioned, manifest: dict[str, Any]) -> dict[int, str]:
    """Why parameters stay whole, by their numbers. Results are called by their paths, as arguments are."""
    path = lambda number: keystr(step.out_paths[int(number[1])]) or "the only one"
    named = lambda why: re.sub(r"\bresult (\d+)", lambda number: f"result {path(number)}", why)
    return {leaf["index"]: named(leaf["whole_because"]) for leaf in manifest["params"] if "whole_because" in leaf}


def _state_left(step: Partitioned, module: dict[str, Any]) -> list[int]:
    """The arrays with a next value that are optimizer state, though none of them could be cut, the largest first."""
    paired = {param for param, _ in state_pairs(step)}
    leaves = [leaf for leaf in module["manifest"]["params"] if leaf["index"] in paired and leaf["original_shape"]]
    found = [leaf["index"] for leaf in leaves if leaf.get("role") == "state"]
    return sorted(found, key=lambda number: -_bytes(step, number))


def _bytes(step: Partitioned, number: int) -> int:
    aval = physical(step.avals[step.kept[number]])
    return aval.size * aval.dtype.itemsize


def _why_nothing(step: Partitioned, module: dict[str, Any], form: str) -> str:
    """Why no state was cut, with what to do where that is known."""
    pairs = state_pairs(step)
    if not pairs:
        return "the step returns no state: no result has the path, shape and dtype of an argument"
    if not any(axes is not None for spec in step.param_specs for axes in spec):
        return f"every argument is whole on every device, so that all compute the same; {batch.advice(step)}"
    in_shards = [n for n, _ in pairs if any(axes is not None for axes in step.param_specs[n])]
    if in_shards:
        return f"the script holds its state in shards already ({step.describe(in_shards[0])})"
    declared = [pair for pair in pairs if any(axes is not None for axes in step.output_specs[pair[1]])]
    if declared:
        param, output = declared[0]
        returned = step.describe(param, step.output_specs[output])
        return f"the script takes state whole and returns it in shards ({returned})"
    reports = [report for report in module["reports"] if report["pass"] == "shard-weight-update"]
    decisions = [decision for report in reports for decision in report.get("decisions", [])]
    state = _state_left(step, module)
    if form != "parameters" and state and _bytes(step, state[0]) < LEAST_CUT_BYTES:
        name, n_bytes = step.names[step.kept[state[0]]], _bytes(step, state[0])
        return f"this optimizer keeps only small state: its largest array, {name}, has {n_bytes} B"
    whole_because = _whole_because(step, module["manifest"])
    if state and state[0] in whole_because:
        return f"no update in shards has state: of {step.names[step.kept[state[0]]]}, {whole_because[state[0]]}"
    if form != "parameters" and whole_because and not state:
        paired = {param for param, _ in pairs}
        carried = [leaf for leaf in module["manifest"]["params"] if leaf["index"] in paired and leaf["original_shape"]]
        others = [leaf for leaf in carried if leaf.get("role") != "weight"]
        if others:
            name, why = step.names[step.kept[others[0]["index"]]], whole_because[others[0]["index"]]
            advice = f'; state={{r"^{name.partition("[")[0]}": True}} asks for shards of it'
            return f"no update in shards has state: of {name}, {why}{advice if len(others) == len(carried) else ''}"
        weights = [leaf for leaf in carried if _bytes(step, leaf["index"]) >= LEAST_CUT_BYTES]
        sums = [decision for decision in decisions if decision.get("bytes", 0) >= LEAST_CUT_BYTES]
        # A line search takes the loss at weights that it computes from its state.
        which = "no state that the loss does not read" if len(weights) > len(sums) else "no state"
        return f"this optimizer keeps {which}; shard=\"parameters\" shards weights"
    bytes_by_reason: dict[str, int] = {}
    for decision in decisions:
        reason = decision.get("reason")
        if decision.get("action") != "sharded" and reason != "a scalar":
            bytes_by_reason[reason] = bytes_by_reason.get(reason, 0) + decision["bytes"]
    return max(bytes_by_reason, key=lambda reason: bytes_by_reason[reason], default="it sums no gradients over devices")
