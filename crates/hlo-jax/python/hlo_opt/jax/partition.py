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
from hlo_opt.arguments import checked_deadline, checked_file, checked_flag, checked_number, checks_names
from hlo_opt.jax import layout as layouts
from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.names import argument_namer, by_place
from hlo_opt.jax.partition_options import Options, check_alone, checked_layout, checked_rules
from hlo_opt.jax.partitioned import (
    Declined,
    Lowered,
    Partitioned,
    decline_effects,
    lower,
    module_of_all,
    module_of_xla,
    partitioned_as,
    physical,
)
from hlo_opt.jax.sharding import EQUAL_TIMES, SEPARATE, Sharded, Way, check_nodes, checked_machine, seconds
from hlo_opt.jax.switch import is_switched_off
from hlo_opt.jax.words import python_words, sentence
from hlo_opt.jax.wrapped import WrappedStep, check_version
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: How a program whose values all say how they are cut becomes that of each device.
LOWERED = "spmd-partition,simplify-tuples,cse,dce,all-reduce-to-reduce-scatter,combine-collectives{mode=variadic}"


#: How many times the memory of the plainest program the preset gives a faster one.
MOST_MEMORY = 1.25


class PartitionError(RuntimeError):
    """A step could not be taken over, with ``strict=True``."""


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
        lowered = lower(self.unwrapped, args, kwargs)
        decline_effects(lowered)
        check_nodes(self._options.machine, lowered.mesh.devices.size)
        of_xla = _by_xla(lowered, self.__name__, self._options.machine)
        return _own(lowered, module_of_all(lowered), of_xla, self._options)

    def _annotated(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with the shardings that rules give them."""
        mesh, rules = self._options.mesh, self._options.rules
        if mesh is None:
            return args, kwargs
        options = self._options
        if options.layout is not None or options.strategies is not None or options.search is not None:
            # What cuts the program says how the arguments come; until then they are whole.
            rules = [(re.compile(""), PartitionSpec())]

        name_of = argument_namer(self.unwrapped)
        unused = {pattern.pattern for pattern, _ in rules}
        names: list[str] = []

        def annotated(path: Any, leaf: Any) -> Any:
            name = name_of(path)
            names.append(name)
            meant = [(pattern, spec) for pattern, spec in rules if pattern.search(name) or pattern.search(by_place(path))]
            unused.difference_update(pattern.pattern for pattern, _ in meant)
            spec = meant[0][1] if meant else None
            if spec is None or not hasattr(leaf, "shape"):
                return leaf
            if len(spec) > len(leaf.shape):
                raise Declined(f"the rule {spec} for {name} has more dims than {leaf.dtype}{list(leaf.shape)}")
            weak = bool(getattr(leaf, "weak_type", False))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec), weak_type=weak)

        given = jax.tree.map_with_path(annotated, (args, kwargs))
        if unused:
            first = next(pattern.pattern for pattern, _ in rules if pattern.pattern in unused)
            what = f"rules: expected a pattern that matches an argument, found {first!r}; arguments are {_some(names)}"
            if len(unused) == len(rules):
                raise Declined(what)
            self.warn(f"{self.__name__}: {what}")
        return given


def _some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


@checks_names
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
        step: what ``jax.jit``, ``nnx.jit``, ``equinox.filter_jit`` or ``torchax.interop.jax_jit`` returned.
        mesh: the devices that ``rules`` are about.
        rules: pairs of a regular expression and a ``PartitionSpec``: an argument takes the spec of the first expression
            that is found in its name, such as ``params['dense']['kernel']``, or in its path by place, such as
            ``[0]['dense']['kernel']``. An argument that none fits stays as it comes.
        layout: how named dims lie on the axes of ``mesh``, as Mesh-TensorFlow has it, such as
            ``{"batch": "data", "hidden": "model"}``. All other dims stay whole. It decides all that the step says of
            shardings; ``names`` say what is called so.
        names: triples of a name, a regular expression and a dim: an argument in whose name or path the expression is
            found has the name there. One argument is enough for all dims that the step ties to it.
        strategies: a TOML file of strategies for operators, as MindSpore has them, which spread over all others
            (``propagate-strategies`` of the command line; ``search-strategies{write=true}`` finds some).
        machine: what times are predicted for: ``"h100"``, or ``"h200:4"`` with the number of nodes over which the devices
            are spread.
        most_memory: how many times the memory of the plainest program a faster one may need; 1.25 if not given.
        most_bytes: how many times the bytes that XLA's program sends a faster one may send. Where none that is faster
            sends so few, the fastest is taken.
        deadline_s: seconds that the passes may take for each program that is compared; no limit if not given.
        strict: raise :class:`PartitionError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is. Where it cannot take the step over, or XLA's own program is predicted
        to be faster, the step runs as it was, with a warning.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value, or ``HLO_OPT`` in the environment is no switch.
    """
    jitted = jitted_of(step, PartitionStep.maker)
    check_alone(mesh, rules, layout, names, strategies)
    read_layout, read_names = checked_layout(layout, names, mesh)
    if most_memory is not None:
        expected = "how many times the memory of the plainest program, at least 1"
        most_memory = checked_number("most_memory", most_memory, expected, lambda times: times >= 1)
    expected = "how many times the bytes of XLA's program, a positive number"
    options = Options(
        mesh=mesh,
        rules=checked_rules(rules, mesh),
        layout=read_layout,
        names=read_names,
        strategies=checked_file("strategies", strategies),
        machine=checked_machine(machine),
        most_memory=most_memory,
        most_bytes=checked_number("most_bytes", most_bytes, expected, lambda times: times > 0),
        deadline_s=checked_deadline(deadline_s),
        strict=checked_flag("strict", strict),
    )
    is_switched_off()
    check_version(PartitionStep.maker, PartitionError, options.strict)
    return around(step, PartitionStep(jitted, options))


@dataclasses.dataclass(frozen=True)
class OfXla:
    """What XLA's partitioner makes of a step: what is predicted of its program, or why there is none."""

    way: Way | None
    failure: str | None = None


def _by_xla(lowered: Lowered, name: str, machine: str | None) -> OfXla:
    """Compiles a step until XLA has partitioned it. It is there to be compared with: that XLA fails stops nothing.

    Raises:
        Declined: the step calls back into Python.
    """
    try:
        module = module_of_xla(lowered, name)
    except Declined:
        raise
    except Exception as error:
        return OfXla(None, sentence(error))
    return OfXla(_figures_of_xla(module, lowered.mesh.devices.size, machine))


def _own(step: Lowered, whole: bytes, of_xla: OfXla, options: Options) -> tuple[Partitioned, Sharded]:
    """The step as hlo-opt partitions it, beside XLA's partitioner.

    Raises:
        Declined: what the compiler says, that the mesh cannot say how a value lies, or that XLA's program is faster.
    """
    theirs = of_xla.way
    passes = _passes(step, whole, options)
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
        raise Declined(python_words(str(error))) from error
    # A layout is what the user wants, whatever it costs; and what a search finds stands beside devices that all do the same.
    is_compared = passes is None and options.search is None and theirs is not None
    if is_compared and own.step_s and theirs.step_s and own.step_s > theirs.step_s * (1 + EQUAL_TIMES):
        times = f"{seconds(theirs.step_s)} a step, {seconds(own.step_s)} by hlo-opt"
        raise Declined(f"XLA's partitioner is predicted to be faster: {times}")
    if options.search is not None and _repeats_all(module):
        raise Declined(_why_repeated(told, step.mesh.devices.size))
    mesh, params, outputs = _specs(step, module, is_search=options.search is not None)
    of_target = [] if options.machine is None else ["--machine", options.machine]
    of_target += [] if options.memory_limit is None else ["--memory-limit", str(options.memory_limit)]
    sharding_of = lambda avals, specs: [_sharding_of(aval, spec, mesh) for aval, spec in zip(avals, specs)]
    sharded = Sharded(
        module=module.to_proto(),
        ways=[own] if theirs is None else [theirs, own],
        taken=0 if theirs is None else 1,
        mesh=mesh,
        param_specs=params,
        output_specs=outputs,
        param_shardings=sharding_of([step.avals[number] for number in step.kept], params),
        output_shardings=sharding_of(step.outputs, outputs),
        cut=[],
        machine=told["totals"]["machine"],
        page_args=[*page, *of_target],
        failure_of_xla=of_xla.failure,
    )
    return partitioned_as(step, whole, mesh, params, outputs), sharded


def _specs(step: Lowered, module: Module, is_search: bool) -> tuple[Mesh, list[PartitionSpec], list[PartitionSpec]]:
    """How a partitioned module cuts its parameters and results, by the axes of the step's mesh, or of one of the same
    devices with other axes.

    Raises:
        Declined: no such mesh can say it.
    """
    parameters = [inst for inst in module.entry.instructions if inst.parameter_number is not None]
    parameters.sort(key=lambda inst: inst.parameter_number)
    kinds = ([physical(step.avals[number]) for number in step.kept], [physical(output) for output in step.outputs])
    params = [inst.attributes.get("sharding", "{replicated}") for inst in parameters]
    root = module.entry.root
    outputs = _elements(root.attributes.get("sharding", "{replicated}") if root is not None else "{replicated}")
    if len(outputs) == 1:
        outputs = outputs * len(kinds[1])
    if len(params) != len(kinds[0]) or len(outputs) != len(kinds[1]):
        raise Declined(
            f"expected {len(kinds[0])} parameters and {len(kinds[1])} results, found {len(params)} and {len(outputs)}"
        )
    n_devices = step.mesh.devices.size
    tiles = [
        [layouts.tiles_of_text(text, len(aval.shape), n_devices) for text, aval in zip(texts, of_kind)]
        for texts, of_kind in zip((params, outputs), kinds)
    ]
    candidates = layouts.reorderings if is_search else layouts.refinements
    for mesh in candidates(step.mesh):
        specs = [[layouts.spec_of(one, mesh) for one in of_kind] for of_kind in tiles]
        if None not in specs[0] and None not in specs[1]:
            return mesh, *specs
    raise Declined(f"the mesh {dict(step.mesh.shape)} has no axes for the way in which some value is cut")


def _repeats_all(module: Module) -> bool:
    """Whether every device computes the whole step: nothing comes or goes in tiles, and nothing is exchanged."""
    annotated = [inst for inst in module.entry.instructions if inst.parameter_number is not None or inst.is_root]
    is_cut = any("devices=" in inst.attributes.get("sharding", "") for inst in annotated)
    return not is_cut and not module.collectives()


def _why_repeated(told: dict[str, Any], n_devices: int) -> str:
    """Says of a search that found nothing to cut what it found."""
    totals = told["totals"]
    time = totals["after"]["time"]
    whole_s = None if time is None else time["critical_path_s"]
    return (
        f"not parallelized: every one of the {n_devices} devices would repeat the whole step ({seconds(whole_s)} "
        f"predicted for {totals['machine']}), and no plan that cuts it is predicted to be faster: it is too small for what "
        "the devices would have to exchange"
    )


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
        passes,
        preset=preset,
        machine=options.machine,
        memory_limit=options.memory_limit,
        timeout_s=options.deadline_s,
    )
    (told,) = report.json["modules"]
    return module, told


def _fastest(
    whole: bytes, preset: str, theirs: Way | None, options: Options
) -> tuple[Module, dict[str, Any], Way, list[str]]:
    """The program by the preset's way; or by the fastest other way that is faster than XLA's program and sends no more
    bytes than it may, if there is one. Then what is told of it, its figures, and the words that make it again."""
    module, told = _run(whole, options, preset=preset)
    candidates = told["choice"]["candidates"]
    # XLA puts together again what is separate for its sake: the time is that of the way before.
    chosen = candidates[told["choice"]["chosen"]]
    own = _way("hlo-opt", {**told["totals"]["after"], "time": chosen})
    if theirs is None:
        return module, told, own, ["--preset", preset]
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


def _passes(step: Lowered, whole: bytes, options: Options) -> str | None:
    """The passes that lay a step out as the user says; ``None`` where shardings say it."""
    if options.strategies is not None:
        n_devices = step.mesh.devices.size
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
        for number, of_argument in enumerate(step.kept):
            paths = (step.names[of_argument], by_place(step.in_paths[of_argument]))
            if any(map(pattern.search, paths)) and dim < len(step.avals[of_argument].shape):
                names.append(f"{name} = %{parameters[number].name}:{dim}")
                found = True
        if not found:
            raise Declined(
                f"names: expected an argument whose path has {pattern.pattern!r} and a dim {dim}, found none"
            )
    axes = ",".join(f"{axis}:{size}" for axis, size in step.mesh.shape.items())
    laid = ";".join(f"{name}:{axis}" for name, axis in options.layout.items())
    told = f"names='{';'.join(names)}',mesh='{axes}',layout='{laid}',order=given"
    return f"inline-calls,assign-mesh-layout{{{told}}},{LOWERED}"


def _way(name: str, figures: dict[str, Any]) -> Way:
    time = figures["time"]
    return Way(
        name=name,
        cut=frozenset(),
        step_s=None if time is None else time["critical_path_s"],
        peak_bytes=figures["peak_bytes"],
        argument_bytes=figures["argument_bytes"],
        sent_bytes=figures["sent_bytes"],
    )


def _figures_of_xla(partitioned: bytes, n_devices: int, machine: str | None) -> Way:
    """What is predicted of the program by XLA's partitioner: with what XLA does to its collectives, where that is
    faster."""
    module = Module.parse(partitioned, num_partitions=n_devices)
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
