"""Batches that come on no device, as NumPy's arrays do: where they are put, or the line of code that puts them there.

``jax.jit`` computes with global arrays, so that where an argument lies changes no value. It does decide whether devices
share the work: a batch that comes on no device is whole on each, and then no gradient is summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from hlo_opt.jax import private
from hlo_opt.jax.pairs import state_pairs
from hlo_opt.jax.partitioned import Lowered, physical
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.tree_util import keystr


def _inputs(step: Lowered) -> list[int]:
    """The parameters that are arrays with dims and no state."""
    state = {param for param, _ in state_pairs(step)}
    return [n for n, flat in enumerate(step.kept) if n not in state and step.avals[flat].shape]


def _sure_inputs(step: Lowered) -> list[int]:
    """Those of which no result has the shape and dtype: of libraries that flatten their modules, state has other paths in
    arguments and results."""
    results = {(output.shape, str(output.dtype)) for output in step.outputs}
    kind = lambda flat: (step.avals[flat].shape, str(step.avals[flat].dtype))
    return [n for n in _inputs(step) if kind(step.kept[n]) not in results]


def _loose(step: Lowered) -> list[int]:
    """The inputs that come on no device and of which the step declares nothing."""
    shardings = private.argument_shardings(step.program)
    return [n for n in _sure_inputs(step) if not isinstance(shardings[n], Sharding)]


def _used_axes(step: Lowered) -> dict[int, tuple]:
    """Of each parameter that comes on the mesh the spec by which it is cut."""
    shardings = private.argument_shardings(step.program)
    return {n: tuple(s.spec) for n, s in enumerate(shardings) if isinstance(s, NamedSharding)}


def _names(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _free_axes(step: Lowered) -> list[str]:
    """The axes of several devices over which nothing is cut that comes on the mesh."""
    used = {name for spec in _used_axes(step).values() for axes in spec for name in _names(axes)}
    return [name for name, size in step.mesh.shape.items() if size > 1 and name not in used]


def _largest(step: Lowered, numbers: list[int]) -> int:
    size = lambda n: physical(step.avals[step.kept[n]]).size * physical(step.avals[step.kept[n]]).dtype.itemsize
    return max(numbers, key=size)


def _axes_of_rows(step: Lowered, rows: int) -> Any:
    """What cuts the first dim of a batch of so many rows: as that of another input with as many; or the one axis over
    which nothing is cut yet."""
    specs = _used_axes(step)
    for number in _inputs(step):
        spec = specs.get(number, ())
        if spec and spec[0] is not None and step.avals[step.kept[number]].shape[0] == rows:
            return spec[0]
    free = _free_axes(step)
    return free[0] if len(free) == 1 else None


def can_be_placed(mesh: Any) -> bool:
    """Whether JAX puts arrays that are on no device onto a mesh in shards: it does not where other processes have a part
    of the mesh, as each of them may have a batch of its own."""
    return all(device.process_index == jax.process_index() for device in mesh.devices.flat)


def shardings_of_batch(step: Lowered, earlier: Mapping[str, NamedSharding]) -> dict[int, NamedSharding]:
    """Returns where inputs belong that come on no device, by the flat argument; nothing where no argument says.

    Args:
        step: the step with arguments as they come.
        earlier: how inputs lay in other calls, by their paths.
    """
    loose = _loose(step)
    if not loose or not can_be_placed(step.mesh):
        return {}
    found = {}
    for number in loose:
        flat = step.kept[number]
        sharding = earlier.get(keystr(step.in_paths[flat]))
        if sharding is not None and sharding.mesh == step.mesh and _divides(sharding, step.avals[flat].shape):
            found[flat] = sharding
    if found:
        return found
    rows = step.avals[step.kept[_largest(step, loose)]].shape[0]
    axes = _axes_of_rows(step, rows)
    sharding = NamedSharding(step.mesh, PartitionSpec(axes))
    if axes is None or not _divides(sharding, (rows,)):
        return {}
    with_rows = [step.kept[n] for n in loose if step.avals[step.kept[n]].shape[0] == rows]
    return {flat: sharding for flat in with_rows}


def _divides(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return False
    return len(sharding.spec) <= len(shape)


def shardings_of_inputs(step: Lowered, specs: list[PartitionSpec]) -> dict[str, NamedSharding]:
    """Returns by path how the inputs lie that are in shards."""
    cut = [n for n in _inputs(step) if any(axes is not None for axes in specs[n])]
    return {keystr(step.in_paths[step.kept[n]]): NamedSharding(step.mesh, specs[n]) for n in cut}


def inputs(step: Lowered) -> frozenset[int]:
    """Returns the numbers of the flat arguments that are inputs: arrays that are no state."""
    return frozenset(step.kept[n] for n in _sure_inputs(step))


def advice(step: Lowered) -> str:
    """Returns what to do where every argument is whole on every device: one line of code to copy."""
    numbers = _inputs(step)
    if not numbers:
        return "give the step a batch in shards as an argument"
    names = list(dict.fromkeys(_root(step.names[step.kept[n]]) for n in numbers))
    axes = _free_axes(step) or list(step.mesh.axis_names)
    largest = step.kept[_largest(step, numbers)]
    rows, n_shards = step.avals[largest].shape[0], step.mesh.shape[axes[0]]
    spec = f"NamedSharding(mesh, PartitionSpec({axes[0]!r}))"
    if rows % n_shards:
        return (
            f"the {rows} rows of {step.names[largest]} cannot be cut evenly over the {n_shards} devices of the axis "
            f"{axes[0]!r}: leave out the last {rows % n_shards}, or pad the batch by {-rows % n_shards} rows that the loss masks"
        )
    many = ", ".join(names)
    given = many if len(names) == 1 else f"({many})"
    return f"put the batch in shards before the call: {many} = jax.device_put({given}, {spec})"


def _root(name: str) -> str:
    """The argument of a leaf: ``batch`` of ``batch['x']``."""
    for end, letter in enumerate(name):
        if letter in "[." and end > 0:
            return name[:end]
    return name
