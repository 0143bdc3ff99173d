"""Names of the leaves of a step's arguments, as its signature has them: ``params['w']``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from jax.tree_util import keystr

#: A path into ``(args, kwargs)``: the first key says which of the two, the second which argument.
Path = tuple[Any, ...]


def by_place(path: Path) -> str:
    """Returns a leaf's name by the place of its argument, as ``[0]['w']``."""
    return keystr(path[1:])


def argument_namer(step: Any, static_numbers: Iterable[int] = ()) -> Callable[[Path], str]:
    """Returns the function that names leaves of ``(args, kwargs)`` by the parameters of ``step``.

    Args:
        step: a function, or what ``jax.jit`` made of one.
        static_numbers: the positional arguments that the paths leave out.
    """
    positional, rest = _parameters(step)
    left_out = {number % len(positional) if number < 0 and positional else number for number in static_numbers}

    def name(path: Path) -> str:
        if path[0].idx == 1:
            return f"{path[1].key}{keystr(path[2:])}"
        number = _nth_outside(path[1].idx, left_out)
        if number < len(positional):
            return f"{positional[number]}{keystr(path[2:])}"
        if rest is not None:
            return f"{rest}[{number - len(positional)}]{keystr(path[2:])}"
        return by_place(path)

    return name


def torch_function_of(step: Any) -> Any:
    """Returns the function of tensors that ``torchax.interop.jax_jit`` made a jitted function of, ``None`` for every other
    jitted function."""
    inside = getattr(step, "__wrapped__", None)
    if not isinstance(inside, functools.partial) or len(inside.args) != 1:
        return None
    of_torchax = (getattr(inside.func, "__module__", None), getattr(inside.func, "__name__", None))
    return inside.args[0] if of_torchax == ("torchax.interop", "call_torch") else None


def _parameters(step: Any) -> tuple[list[str], str | None]:
    """The names of the positional parameters, and that of the parameter that takes all further ones."""
    try:
        parameters = inspect.signature(torch_function_of(step) or step).parameters.values()
    except (TypeError, ValueError):
        return [], None
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    return positional, rest[0] if rest else None


def _nth_outside(nth: int, left_out: set[int]) -> int:
    """The number of the ``nth`` argument among those that are not left out."""
    number = 0
    while number in left_out or nth > 0:
        nth -= number not in left_out
        number += 1
    return number
