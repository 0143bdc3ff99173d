"""Steps by ``flax.nnx.jit``, ``equinox.filter_jit`` and ``torchax.interop.jax_jit``: they take modules or tensors, and
call a jitted function of arrays inside. That function is what changes; its wrapper goes on as it did."""

from __future__ import annotations

import copy
import functools
from typing import Any

from hlo_opt.jax import private
from hlo_opt.jax.names import torch_function_of
from hlo_opt.jax.wrapped import WrappedStep, check_jitted

#: The attribute that holds the jitted function, by the package of the wrapper's class.
_INSIDE = {"flax": "jitted_fn", "equinox": "_cached"}


def _attribute(step: Any) -> str | None:
    """Where a step of another library holds its jitted function; ``None`` for all others."""
    name = _INSIDE.get(type(step).__module__.split(".")[0])
    return name if name is not None and private.is_jitted(getattr(step, name, None)) else None


def _is_of_torchax(step: Any) -> bool:
    """Whether ``torchax.interop.jax_jit`` returned this: ``call_jax`` with a jitted function as its first argument."""
    return (
        isinstance(step, functools.partial)
        and getattr(step.func, "__module__", None) == "torchax.interop"
        and getattr(step.func, "__name__", None) == "call_jax"
        and len(step.args) == 1
        and private.is_jitted(step.args[0])
    )


def jitted_of(step: Any, maker: str) -> Any:
    """The jitted function that a step is, or that it calls inside.

    Raises:
        TypeError: there is none.
    """
    if _is_of_torchax(step):
        return step.args[0]
    name = _attribute(step)
    if name is not None:
        return getattr(step, name)
    check_jitted(step.inner if isinstance(step, HeldStep) else step, maker)
    return step


def around(step: Any, inner: WrappedStep) -> Any:
    """What is called in the place of ``step``, of whose jitted function ``inner`` was made."""
    if _is_of_torchax(step):
        inner.__name__ = getattr(torch_function_of(step.args[0]), "__name__", inner.__name__)
        return HeldStep(step, inner)
    return inner if _attribute(step) is None else HeldStep(step, inner)


class HeldStep:
    """A step of another library that calls another jitted function inside; called as the step that it was made of.

    Attributes:
        unwrapped: the step as it was.
        inner: what runs in the place of its jitted function.
    """

    def __init__(self, step: Any, inner: WrappedStep) -> None:
        functools.update_wrapper(self, step, updated=())
        self.unwrapped, self.inner = step, inner
        self._step = _with(step, inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where the step is one of a class."""
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        """All else, as ``lower`` and ``trace``, is the library's."""
        if name in ("_step", "inner", "unwrapped"):
            raise AttributeError(name)
        if hasattr(self.inner, name) and not hasattr(self._step, name):
            raise AttributeError(
                f"{name}: a step of {_kind(self.unwrapped)}; `.inner`, the jitted function in it, has {name}"
            )
        return getattr(self._step, name)

    def __repr__(self) -> str:
        return f"<hlo_opt.jax.{self.inner.maker} of {self.unwrapped!r}>"


def _kind(step: Any) -> str:
    """The kind of a step that calls a jitted function inside, and what it takes."""
    return "torchax.interop.jax_jit takes tensors" if _is_of_torchax(step) else f"{type(step).__name__} takes modules"


def _with(step: Any, inner: WrappedStep) -> Any:
    """A copy of a library's step that calls ``inner``. The library may know the step by what it is equal to: so the copy
    is equal to the original."""
    if _is_of_torchax(step):
        return functools.partial(step.func, inner, **step.keywords)
    kind = type(step)

    class Copy(kind):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return other is self or other is step

        def __hash__(self) -> int:
            return hash(step)

    Copy.__name__, Copy.__qualname__, Copy.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    made = copy.copy(step)
    object.__setattr__(made, _attribute(step), inner)
    if kind.__hash__ is object.__hash__:
        made.__class__ = Copy
    return made


def expect_step(step: Any) -> WrappedStep:
    """The step of this package that this is, or that it holds.

    Raises:
        TypeError: it is none.
    """
    inner = step.inner if isinstance(step, HeldStep) else step
    if not isinstance(inner, WrappedStep):
        found = f"{step!r} of type {type(step).__name__}"
        raise TypeError(f"expected a step by hlo_opt.jax.zero, partition or auto, found {found}")
    return inner


def expect_plain(step: Any, maker: str) -> WrappedStep:
    """The step of this package that this is.

    Raises:
        TypeError: it is none, or one that holds one: its arguments are not those of the jitted function.
    """
    inner = expect_step(step)
    if inner is not step:
        found = "torchax.interop.jax_jit" if _is_of_torchax(step.unwrapped) else type(step.unwrapped).__name__
        raise TypeError(
            f"{maker}: expected a step made of what jax.jit returned, found one of {found}: call it once, and take the "
            "shardings of the arrays that it returns"
        )
    return inner
