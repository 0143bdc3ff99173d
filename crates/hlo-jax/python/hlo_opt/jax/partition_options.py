"""The arguments of ``partition``, checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from hlo_opt.arguments import nearest
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Options:
    """What :func:`hlo_opt.jax.partition` and :func:`hlo_opt.jax.auto` were asked for."""

    mesh: Mesh | None
    rules: tuple[tuple[re.Pattern[str], PartitionSpec], ...]
    layout: dict[str, str] | None
    names: tuple[tuple[str, re.Pattern[str], int], ...]
    strategies: str | None
    machine: str | None
    most_memory: float | None
    most_bytes: float
    deadline_s: float | None
    strict: bool
    #: A preset that decides how arguments come.
    search: str | None = None
    #: Bytes that a device has for the step.
    memory_limit: int | None = None


def check_alone(mesh: Any, rules: Any, layout: Any, names: Any, strategies: Any) -> None:
    """Checks that one of rules, layout and strategies is given, with the mesh that it needs.

    Raises:
        TypeError: the mesh is none.
        ValueError: several are given, or what one of them needs is missing.
    """
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh, found {mesh!r} of type {type(mesh).__name__}")
    given = {"rules": bool(rules), "layout": layout is not None, "strategies": strategies is not None}
    found = [name for name, is_given in given.items() if is_given]
    if len(found) > 1:
        raise ValueError(f"partition: expected one of rules, layout and strategies, found {' and '.join(found)}")
    if found and mesh is None:
        raise ValueError(f"{found[0]}: expected a mesh whose axes they name, found mesh=None")
    if names and layout is None:
        raise ValueError("names: expected a layout that speaks of them, found layout=None")


def checked_rules(rules: Any, mesh: Mesh | None) -> tuple[tuple[re.Pattern[str], PartitionSpec], ...]:
    """Returns rules with their expressions compiled.

    Raises:
        TypeError: they are no sequence of pairs.
        ValueError: an expression is none, or a spec names no axis of the mesh.
    """
    if isinstance(rules, str | Mapping) or not hasattr(rules, "__iter__"):
        raise TypeError(f"rules: expected a list of pairs (expression, PartitionSpec), found {rules!r}")
    read = []
    for rule in rules:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[1], PartitionSpec)):
            raise ValueError(f"rules: expected pairs of an expression and a PartitionSpec, found {rule!r}")
        for axis in _axes(rule[1]):
            if axis not in mesh.shape:
                raise ValueError(
                    f"rules: expected axes of the mesh {dict(mesh.shape)} in {rule!r}, found {axis!r}"
                    f"{nearest(axis, mesh.shape)}"
                )
        NamedSharding(mesh, rule[1])
        read.append((_expression("rules", rule[0]), rule[1]))
    return tuple(read)


def _axes(spec: PartitionSpec) -> list[str]:
    """The names of axes in a spec."""
    found = [axes if isinstance(axes, tuple) else (axes,) for axes in spec]
    return [axis for axes in found for axis in axes if isinstance(axis, str)]


def _expression(of: str, pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"{of}: expected a regular expression, found {pattern!r}: {error}") from None


def checked_layout(
    layout: Any, names: Any, mesh: Mesh | None
) -> tuple[dict[str, str] | None, tuple[tuple[str, re.Pattern[str], int], ...]]:
    """Returns a layout and the names that it speaks of, with their expressions compiled.

    Raises:
        TypeError: the layout maps nothing.
        ValueError: a name or an axis is not known, or the names are no triples.
    """
    read = []
    for triple in names:
        is_triple = isinstance(triple, tuple) and len(triple) == 3 and isinstance(triple[0], str)
        if not is_triple or isinstance(triple[2], bool) or not isinstance(triple[2], int) or triple[2] < 0:
            raise ValueError(
                f"names: expected triples of a name, an expression and the number of a dim from 0, found {triple!r}"
            )
        read.append((triple[0], _expression("names", triple[1]), triple[2]))
    if layout is None:
        return None, tuple(read)
    if not isinstance(layout, Mapping):
        raise TypeError(f"layout: expected a mapping of names to axes of the mesh, found {layout!r}")
    known = sorted({name for name, _, _ in read})
    for name, axis in layout.items():
        if axis not in mesh.shape:
            raise ValueError(
                f"layout: expected an axis of the mesh {dict(mesh.shape)} for {name!r}, found {axis!r}"
                f"{nearest(axis, mesh.shape)}"
            )
        if name not in known:
            raise ValueError(f"layout: expected {name!r} among the names, found {known}{nearest(name, known)}")
    return dict(layout), tuple(read)
