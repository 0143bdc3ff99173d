"""``partition``: a jitted step whose program for each device hlo-opt writes, instead of XLA's partitioner."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from hlo_opt import HloError, Module
from hlo_opt._native import UsageError
from hlo_opt.jax import layout as layouts
from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.partitioned import Declined, Partitioned, partition_by_xla, physical
from hlo_opt.jax.sharding import EQUAL_TIMES, SEPARATE, Sharded, Way, check_deadline, check_machine, seconds
from hlo_opt.jax.wrapped import WrappedStep, check_version
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: How a program whose values all say how they are cut becomes that of each device.
LOWERED = "spmd-partition,simplify-tuples,cse,dce,all-reduce-to-reduce-scatter,combine-collectives{mode=variadic}"


#: How many times the memory of the plainest program the preset gives a faster one.
MOST_MEMORY = 1.25


class PartitionError(RuntimeError):
    """A step could not be taken over, with ``strict=True``."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What :func:`partition` was asked for."""

    mesh: Mesh | None
    rules: Sequence[tuple[re.Pattern[str], PartitionSpec]]
    layout: dict[str, str] | None
    names: Sequence[tuple[str, re.Pattern[str], int]]
    strategies: str | None
    machine: str | None
    most_memory: float | None
    most_bytes: float
    deadline_s: float | None
    strict: bool
    #: A preset that decides how arguments come.
    search: str | None = None


class PartitionStep(WrappedStep):
    """What :func:`partition` returns: called like the step that it was made of.

    Attributes:
        unwrapped: the original jitted step.
    """

    maker = "partition"
    error = PartitionError
    _options: Options

    def take_over(self, args: tuple, kwargs: dict) -> tuple[Partitioned, Sharded]:
        """The step as hlo-opt partitions it."""
        args, kwargs = self._annotated(args, kwargs)
        by_xla, whole = partition_by_xla(self.unwrapped, args, kwargs)
        return _own(by_xla, whole, self._options)

    def _annotated(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with the shardings that rules give them."""
        mesh, rules = self._options.mesh, self._options.rules
        if mesh is None:
            return args, kwargs
        options = self._options
        if options.layout is not None or options.strategies is not None or options.search is not None:
            # What cuts the program says how the arguments come; until then they are whole.
            rules = [(re.compile(""), PartitionSpec())]

        def annotated(path: Any, leaf: Any) -> Any:
            # The first part of the path says whether it is an argument by place or by keyword.
            name = jax.tree_util.keystr(path[1:])
            spec = next((spec for pattern, spec in rules if pattern.search(name)), None)
            if spec is None or not hasattr(leaf, "shape"):
                return leaf
            if len(spec) > len(leaf.shape):
                raise Declined(f"the rule {spec} for {name} has more dims than {leaf.dtype}{list(leaf.shape)}")
            weak = bool(getattr(leaf, "weak_type", False))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec), weak_type=weak)

        return jax.tree.map_with_path(annotated, (args, kwargs))


def partition(
    step: Callable[..., Any],
    *,
    mesh: Mesh | None = None,
    rules: Sequence[tuple[str, PartitionSpec]] = (),
    layout: Mapping[str, str] | None = None,
    names: Sequence[tuple[str, str, int]] = (),
    strategies: str | os.PathLike | None = None,
    machine: str | None = None,
    most_memory: float | None = None,
    most_bytes: float = 1.0,
    deadline_s: float | None = None,
    strict: bool = False,
) -> PartitionStep:
    """Writes the program of each device of a step that says how some of its values are cut.

    The step says it as ever: by the shardings of its arguments, ``in_shardings``, ``with_sharding_constraint`` and
    ``shard_map``; or ``rules`` say it of its arguments. How all other values are cut is decided here, and the program
    that is predicted to be fastest is compiled by XLA with its own partitioner left out.

    Args:
        step: what ``jax.jit``, ``nnx.jit`` or ``equinox.filter_jit`` returned.
        mesh: the devices that ``rules`` are about.
        rules: pairs of a regular expression and a ``PartitionSpec``: an argument takes the spec of the first expression
            that is found in its path, such as ``[0]['dense']['kernel']``. An argument that none fits stays as it comes.
        layout: how named dims lie on the axes of ``mesh``, as Mesh-TensorFlow has it, such as
            ``{"batch": "data", "hidden": "model"}``. All other dims stay whole. It decides all that the step says of
            shardings; ``names`` say what is called so.
        names: triples of a name, a regular expression and a dim: an argument in whose path the expression is found has
            the name there. One argument is enough for all dims that the step ties to it.
        strategies: a TOML file of strategies for operators, as MindSpore has them, which spread over all others
            (``propagate-strategies`` of the command line; ``search-strategies{write=true}`` finds some).
        machine: what times are predicted for, as ``--machine`` takes it: ``"h100"``, or with the number of nodes over
            which the devices are spread, ``"h200:4"``.
        most_memory: how many times the memory of the plainest program a faster one may need; 1.25 if not given.
        most_bytes: how many times the bytes that XLA's program sends a faster one may send. Where none that is faster
            sends so few, the fastest is taken.
        deadline_s: seconds that the passes may take for each program that is compared; no limit if not given.
        strict: raise :class:`PartitionError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is. Where it cannot take the step over, or XLA's own program is predicted
        to be faster, the step runs as it was, with a warning.
    """
    jitted = jitted_of(step, PartitionStep.maker)
    if rules and mesh is None:
        raise ValueError("rules: expected a mesh whose axes they name, found mesh=None")
    read = []
    for rule in rules:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[1], PartitionSpec)):
            raise ValueError(f"rules: expected pairs of an expression and a PartitionSpec, found {rule!r}")
        try:
            read.append((re.compile(rule[0]), rule[1]))
        except (re.error, TypeError) as error:
            raise ValueError(f"rules: expected a regular expression, found {rule[0]!r}: {error}") from None
        NamedSharding(mesh, rule[1])
    ways = [given is not None for given in (layout, strategies)] + [bool(rules)]
    if sum(ways) > 1:
        raise ValueError("partition: expected one of rules, layout and strategies, found several")
    if any(ways[:2]) and mesh is None:
        raise ValueError("layout and strategies: expected the mesh of the devices, found mesh=None")
    if names and layout is None:
        raise ValueError("names: expected a layout that speaks of them, found layout=None")
    called = [(name, re.compile(pattern), dim) for name, pattern, dim in names]
    known = sorted({name for name, _, _ in called})
    for name, axis in (layout or {}).items():
        if axis not in mesh.shape:
            raise ValueError(f"layout: expected an axis of the mesh {dict(mesh.shape)} for {name!r}, found {axis!r}")
        if name not in known:
            raise ValueError(f"layout: expected {name!r} among the names, found {known}")
    if most_memory is not None and not most_memory >= 1:
        raise ValueError(f"most_memory: expected a number of at least 1, found {most_memory!r}")
    if not most_bytes > 0:
        raise ValueError(f"most_bytes: expected a positive number, found {most_bytes!r}")
    if machine is not None:
        check_machine(machine)
    check_deadline(deadline_s)
    check_version(PartitionStep.maker, PartitionError, strict)
    laid = None if layout is None else dict(layout)
    file = None if strategies is None else os.path.abspath(os.fspath(strategies))
    options = Options(
        mesh, tuple(read), laid, called, file, machine, most_memory, most_bytes, deadline_s, strict
    )
    return around(step, PartitionStep(jitted, options))


def _own(by_xla: Partitioned, whole: bytes, options: Options) -> tuple[Partitioned, Sharded]:
    """The step as hlo-opt partitions it, beside XLA's partitioner.

    Raises:
        Declined: what the compiler says, that the mesh cannot say how a value lies, or that XLA's program is faster.
    """
    theirs = _figures_of_xla(by_xla, options.machine)
    passes = _passes(by_xla, whole, options)
    preset = "auto-spmd" if options.most_memory is None else f"auto-spmd{{most-memory={options.most_memory}}}"
    try:
        if options.search is not None:
            module, told = _run(whole, options, preset=options.search)
            own, page = _way("hlo-opt", told["totals"]["after"]), ["--preset", options.search]
        elif passes is None:
            module, told, own, page = _fastest(whole, preset, theirs, options)
        else:
            module, told = _run(whole, options, pipeline=passes)
            own, page = _way("hlo-opt", told["totals"]["after"]), ["--pass", passes]
    except (HloError, UsageError) as error:
        raise Declined(str(error).strip()) from error
    # A layout is what the user wants, whatever it costs; and what a search finds stands beside devices that all do the same.
    if passes is None and options.search is None and own.step_s and theirs.step_s and own.step_s > theirs.step_s * (1 + EQUAL_TIMES):
        times = f"{seconds(theirs.step_s)} a step, {seconds(own.step_s)} by hlo-opt"
        raise Declined(f"XLA's partitioner is predicted to be faster: {times}")
    n_devices = by_xla.mesh.devices.size
    parameters = [inst for inst in module.entry.instructions if inst.parameter_number is not None]
    parameters.sort(key=lambda inst: inst.parameter_number)
    avals = [physical(by_xla.avals[number]) for number in by_xla.kept]
    results = [physical(output) for output in by_xla.outputs]
    params = [inst.attributes.get("sharding", "{replicated}") for inst in parameters]
    root = module.entry.root
    outputs = _elements(root.attributes.get("sharding", "{replicated}") if root is not None else "{replicated}")
    if len(outputs) == 1:
        outputs = outputs * len(results)
    if len(params) != len(avals) or len(outputs) != len(results):
        raise Declined(
            f"expected {len(avals)} parameters and {len(results)} results, found {len(params)} and {len(outputs)}"
        )
    tiles = [
        [layouts.tiles_of_text(text, len(aval.shape), n_devices) for text, aval in zip(texts, kinds)]
        for texts, kinds in ((params, avals), (outputs, results))
    ]
    candidates = layouts.refinements if options.search is None else layouts.reorderings
    for mesh in candidates(by_xla.mesh):
        specs = [[layouts.spec_of(one, mesh) for one in of_kind] for of_kind in tiles]
        if None not in specs[0] and None not in specs[1]:
            break
    else:
        raise Declined(f"the mesh {dict(by_xla.mesh.shape)} has no axes for the way in which some value is cut")
    proto = module.to_proto()
    partitioned = dataclasses.replace(by_xla, module=whole, mesh=mesh, param_specs=specs[0], output_specs=specs[1])
    of_machine = [] if options.machine is None else ["--machine", options.machine]
    sharded = Sharded(
        module=proto,
        ways=[theirs, own],
        taken=1,
        mesh=mesh,
        param_specs=specs[0],
        output_specs=specs[1],
        param_shardings=[
            _sharding_of(by_xla.avals[number], spec, mesh) for number, spec in zip(by_xla.kept, specs[0])
        ],
        output_shardings=[_sharding_of(output, spec, mesh) for output, spec in zip(by_xla.outputs, specs[1])],
        cut=[],
        machine=told["totals"]["machine"],
        combined_s=None,
        page_args=[*page, *of_machine],
    )
    return partitioned, sharded


def _sharding_of(aval: Any, spec: PartitionSpec, mesh: Mesh) -> NamedSharding:
    """How an array lies that the program cuts so. A random key is an array of numbers to the program, with a dim more: JAX
    has no words for a cut of that one, and brings the key to where the program takes it."""
    return NamedSharding(mesh, PartitionSpec(*spec[: len(aval.shape)]))


def _run(
    whole: bytes, options: Options, pipeline: str | None = None, preset: str | None = None
) -> tuple[Module, dict[str, Any]]:
    """The program of each device by a preset, or by passes; and what is told of it."""
    passes = SEPARATE if pipeline is None else f"{pipeline},{SEPARATE}"
    module, report = Module.parse(whole).run(
        passes, preset=preset, machine=options.machine, timeout_s=options.deadline_s
    )
    (told,) = report.json["modules"]
    return module, told


def _fastest(whole: bytes, preset: str, theirs: Way, options: Options) -> tuple[Module, dict[str, Any], Way, list[str]]:
    """The program by the preset's way; or by the fastest other way that is faster than XLA's program and sends no more
    bytes than it may, if there is one. Then what is told of it, its figures, and the words that make it again."""
    module, told = _run(whole, options, preset=preset)
    candidates = told["choice"]["candidates"]
    # XLA puts together again what is separate for its sake: the time is that of the way before.
    chosen = candidates[told["choice"]["chosen"]]
    own = _way("hlo-opt", {**told["totals"]["after"], "time": chosen})
    most_sent = theirs.sent_bytes * options.most_bytes
    if own.sent_bytes <= most_sent or not theirs.step_s:
        return module, told, own, ["--preset", preset]
    most_held = (options.most_memory or MOST_MEMORY) * candidates[0]["peak_bytes"]
    fitting = [way for way in candidates if way["critical_path_s"] <= theirs.step_s and way["peak_bytes"] <= most_held]
    for way in sorted(fitting, key=lambda way: way["critical_path_s"]):
        other, of_other = _run(whole, options, pipeline=way["pipeline"])
        if of_other["totals"]["after"]["sent_bytes"] <= most_sent:
            figures = _way("hlo-opt", {**of_other["totals"]["after"], "time": way})
            return other, of_other, figures, ["--pass", way["pipeline"]]
    return module, told, own, ["--preset", preset]


def _passes(by_xla: Partitioned, whole: bytes, options: Options) -> str | None:
    """The passes that lay a step out as the user says; ``None`` where shardings say it."""
    if options.strategies is not None:
        n_devices = by_xla.mesh.devices.size
        return f"inline-calls,propagate-strategies{{file='{options.strategies}',devices={n_devices}}},{LOWERED}"
    if options.layout is None:
        return None
    parameters = {
        inst.parameter_number: inst
        for inst in Module.parse(whole).entry.instructions
        if inst.parameter_number is not None
    }
    names = []
    for name, pattern, dim in options.names:
        found = False
        for number, of_argument in enumerate(by_xla.kept):
            path = jax.tree_util.keystr(by_xla.in_paths[of_argument][1:])
            if pattern.search(path) and dim < len(by_xla.avals[of_argument].shape):
                names.append(f"{name} = %{parameters[number].name}:{dim}")
                found = True
        if not found:
            raise Declined(
                f"names: expected an argument whose path has {pattern.pattern!r} and a dim {dim}, found none"
            )
    axes = ",".join(f"{axis}:{size}" for axis, size in by_xla.mesh.shape.items())
    laid = ";".join(f"{name}:{axis}" for name, axis in options.layout.items())
    told = f"names='{';'.join(names)}',mesh='{axes}',layout='{laid}',order=given"
    return f"inline-calls,assign-mesh-layout{{{told}}},{LOWERED}"


def _way(name: str, figures: dict[str, Any]) -> Way:
    time = figures["time"]
    return Way(
        mode=name,
        cut=frozenset(),
        step_s=None if time is None else time["critical_path_s"],
        peak_bytes=figures["peak_bytes"],
        argument_bytes=figures["argument_bytes"],
        sent_bytes=figures["sent_bytes"],
    )


def _figures_of_xla(step: Partitioned, machine: str | None) -> Way:
    """What is predicted of the program by XLA's partitioner: with what XLA does to its collectives, where that is
    faster."""
    module = Module.parse(step.module, num_partitions=step.mesh.devices.size)
    _, report = module.run("reassociate-all-reduce,cse,dce,combine-collectives{mode=variadic}", machine=machine)
    totals = report.json["modules"][0]["totals"]
    ways = [_way("XLA", totals[when]) for when in ("before", "after")]
    fastest = min(ways, key=lambda way: way.step_s or 0.0)
    return dataclasses.replace(fastest, sent_bytes=min(way.sent_bytes for way in ways))


def _elements(text: str) -> list[str]:
    """The shardings of a tuple, or of an array."""
    if not text.startswith("{{"):
        return [text]
    found, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        if letter == "{":
            depth += 1
            begin = place if depth == 2 else begin
        elif letter == "}":
            depth -= 1
            if depth == 1:
                found.append(text[begin : place + 1])
    return found
