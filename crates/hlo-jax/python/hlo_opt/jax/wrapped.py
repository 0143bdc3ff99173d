"""Jitted steps that run another program than they would: called, traced and lowered like the step they were made of."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
from hlo_opt.jax import private
from hlo_opt.jax.names import argument_namer
from hlo_opt.jax.partitioned import Declined, NotTraced, Partitioned
from hlo_opt.jax.plan import Plan, as_whole, whole_of
from hlo_opt.jax.sharding import Sharded
from hlo_opt.jax.switch import why_off
from hlo_opt.jax.words import sentence
from jax.sharding import NamedSharding


#: After so many calls that get whole what they had returned in shards, or make it whole, a warning says so.
MOST_UNDONE = 3


class WrappedStep:
    """A jitted step with another program: called like the step that it was made of.

    A subclass says by ``maker`` what it is by name, and by :meth:`take_over` what runs in the step's place.

    Attributes:
        unwrapped: the original jitted step.
    """

    #: The function that makes such steps, for messages.
    maker: str
    #: What is raised with ``strict=True``.
    error: type[Exception]

    def __init__(self, step: Any, options: Any) -> None:
        functools.update_wrapper(self, step, updated=())
        # What is called but no function has no name.
        self.__name__ = getattr(step, "__name__", "step")
        self.unwrapped = step
        self._options = options
        self._static_numbers, self._static_names = private.static_arguments(step)
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._plans: list[Plan] = []
        self._last: Plan | None = None
        self._is_traced = False
        # Why calls run as they were, as far as the user was told.
        self._said: set[str] = set()
        # Whether the original has put arrays together since the last call of a plan.
        self._has_gathered = False
        # How inputs lay that came in shards, by path.
        self._inputs: dict[str, NamedSharding] = {}
        # Of leaves that a plan has cut, by path and shape: their sharding, and what it was in the original step.
        self._whole: dict[tuple[str, tuple], tuple[NamedSharding, NamedSharding]] = {}

    def take_over(self, args: tuple, kwargs: dict) -> tuple[Partitioned, Sharded]:
        """The step as it was partitioned, and the program that runs in its place.

        Raises:
            Declined: why the original has to run.
            NotTraced: JAX cannot trace the step with these arguments.
        """
        raise NotImplementedError

    def make_plan(self, begin: Callable[[], Plan], args: tuple, kwargs: dict) -> Plan:
        """A plan with the program that runs in the step's place; ``begin`` gives one of which nothing is known yet.

        Raises:
            Exception: as :meth:`take_over`, and what XLA says of the program.
        """
        plan = begin()
        plan.make(self.unwrapped, *self.take_over(args, kwargs))
        return plan

    def plan_is_made(self, plan: Plan) -> None:
        """Tells the user of a new plan. There is nothing to say here."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if why_off():
            return self._run_original(args, kwargs)
        dynamic, statics = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(dynamic)
        key = (tree, statics, private.tracing_context())
        plan = self._last
        if plan is None or plan.key != key or not plan.fits(leaves):
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return self._inside_of_another(args, kwargs)
            try:
                plan = self._find(args, kwargs, leaves, key)
            except NotTraced:
                # The original says it in its own words.
                return self._run_original(args, kwargs)
        if plan.declined is not None:
            self._tell_of_shards(plan, leaves)
            return self._run_original(args, kwargs)
        outs = plan.run(leaves)
        if self._has_gathered:
            # Arrays came whole because the original ran, not because the script made them so.
            self._has_gathered, plan.undone = False, (0, 0)
        n_undone, leaf = plan.undone
        if n_undone == MOST_UNDONE:
            self.warn(
                f"{self.__name__}: {plan.partitioned.names[leaf]} came whole in {n_undone} calls one after the other, though "
                f"the calls before returned it in shards: what puts it together costs an exchange, and the memory of the "
                "whole; hand on what the step returns"
            )
        return outs

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where the step is one of a class."""
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> WrappedStep:
        """A step of its own, of the same jitted function."""
        return type(self)(self.unwrapped, self._options)

    def __deepcopy__(self, memo: dict) -> WrappedStep:
        """As a copy: Python does not copy functions."""
        return self.__copy__()

    def __reduce__(self) -> Any:
        """Refuses: JAX pickles no jitted function."""
        raise TypeError(
            f"{self!r} cannot be pickled, as no jitted function can: pickle the function, and apply {self.maker} again"
        )

    def __repr__(self) -> str:
        return f"<hlo_opt.jax.{self.maker} of {self.unwrapped!r}>"

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """How calls with these arguments run; nothing is run. Arguments may be ``jax.ShapeDtypeStruct`` with a
        sharding.

        Raises:
            Exception: the step itself fails with these arguments, and says it in its own words.
        """
        dynamic, statics = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(dynamic)
        try:
            return self._find(args, kwargs, leaves, (tree, statics, private.tracing_context()))
        except NotTraced as error:
            raise error.__cause__ or error from None

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last call."""
        return self._last

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(…).trace``, of the program that a call with these arguments runs."""
        plan = None if why_off() else self.plan(*args, **kwargs)
        if plan is None or plan.declined is not None:
            return self.unwrapped.trace(*args, **kwargs)
        return plan.trace(*self.dynamic(args, kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(…).lower``, of the program that a call with these arguments runs."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(…).eval_shape``."""
        described = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
        args, kwargs = private.off_host((args, kwargs), described)
        return self.unwrapped.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As ``jax.jit(…).clear_cache``: the next call finds its plan anew."""
        with self._lock:
            self._forget()
        self.unwrapped.clear_cache()

    def _tell_of_shards(self, plan: Plan, leaves: list) -> None:
        """Counts calls of the original on arrays that other calls return in shards, and warns of several."""
        number = next((number for number, leaf in enumerate(leaves) if whole_of(leaf) is not None), None)
        if number is None:
            return
        self._has_gathered = True
        plan.n_gathered += 1
        if plan.n_gathered == MOST_UNDONE:
            path = jax.tree.flatten_with_path(jax.tree.unflatten(plan.tree, leaves))[0][number][0]
            name = argument_namer(self.unwrapped, self._static_numbers)(path)
            self.warn(
                f"{self.__name__}: {name} comes in shards from another call, but calls like this one run as they were, and "
                "each gathers the array. If the step sums gradients over several calls, sum them in one call, with "
                "jax.lax.scan or optax.MultiSteps"
            )

    def _run_original(self, args: tuple, kwargs: dict) -> Any:
        """Runs the original on state that is whole, as it would have it, whatever steps have cut it before."""
        args, kwargs = as_whole((args, kwargs))
        return self.unwrapped(*args, **kwargs)

    def _inside_of_another(self, args: tuple, kwargs: dict) -> Any:
        if not self._is_traced:
            self._is_traced = True
            self.warn(
                f"{self.__name__} is called inside of another jit, grad or vmap, where the step as it was is traced: "
                f"apply {self.maker} to the outermost jitted function"
            )
        args, kwargs = private.off_host((args, kwargs))
        return self.unwrapped(*args, **kwargs)

    def dynamic(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments without the static ones, as JAX flattens them."""
        return self._split(args, kwargs)[0]

    def _split(self, args: tuple, kwargs: dict) -> tuple[tuple, tuple]:
        """The arguments without the static ones, as JAX flattens them, and the static ones."""
        if not self._static_numbers and not self._static_names:
            return (args, kwargs), ()
        numbers = {n % len(args) if n < 0 and args else n for n in self._static_numbers}
        dynamic = tuple(arg for n, arg in enumerate(args) if n not in numbers)
        by_name = {name: arg for name, arg in kwargs.items() if name not in self._static_names}
        # 1 and True are equal, and not the same program.
        statics = tuple((type(arg), arg) for n, arg in enumerate(args) if n in numbers)
        named = tuple((name, type(kwargs[name]), kwargs[name]) for name in sorted(kwargs) if name in self._static_names)
        return (dynamic, by_name), (statics, named)

    def with_leaves(self, args: tuple, kwargs: dict, leaves: dict[int, Any]) -> tuple[tuple, dict]:
        """The arguments with some of the leaves that are not static replaced, by their numbers."""
        dynamic, _ = self._split(args, kwargs)
        flat, tree = jax.tree.flatten(dynamic)
        for number, leaf in leaves.items():
            flat[number] = leaf
        of_place, by_name = jax.tree.unflatten(tree, flat)
        rest = iter(of_place)
        statics = {n % len(args) if n < 0 and args else n for n in self._static_numbers}
        return tuple(arg if n in statics else next(rest) for n, arg in enumerate(args)), {**kwargs, **by_name}

    def _find(self, args: tuple, kwargs: dict, leaves: list, key: tuple) -> Plan:
        """The plan of a call, a new one if there is none."""
        with self._lock:
            for plan in self._plans:
                if plan.key == key and (plan.fits(leaves) or plan.takes(leaves)):
                    break
            else:
                plan = self._new_plan(args, kwargs, leaves, key)
                self._plans.append(plan)
            self._last = plan
            return plan

    def _new_plan(self, args: tuple, kwargs: dict, leaves: list, key: tuple) -> Plan:
        plan = Plan.of(key, leaves)
        cause: Exception | None = None
        try:
            plan = self.make_plan(lambda: Plan.of(key, leaves), *self._as_whole(args, kwargs))
        except NotTraced:
            raise
        except Exception as error:
            plan.declined, cause = _reason(error), error
        try:
            others = private.differing_processes(_processes(leaves), plan.digest())
            if others and plan.declined is None:
                raise Declined(f"process {others[0]} came to another program for this call")
        except Exception as error:
            plan.declined, cause = _reason(error), error
        if plan.declined is None:
            for number, cut, whole in plan.cut_leaves():
                place = (jax.tree_util.keystr(plan.partitioned.in_paths[number]), plan.kinds[number][0])
                self._whole[place] = (cut, whole)
            self.plan_is_made(plan)
        elif self._options.strict:
            raise self.error(plan.declined) from cause
        elif plan.declined not in self._said:
            self._said.add(plan.declined)
            self.warn(f"{self.__name__} runs as it was: {plan.declined}")
        return plan

    def _as_whole(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with the leaves that a plan has cut described as whole, as the original step would have them:
        told by their sharding, or, where they come from elsewhere, by path and shape."""

        def whole(path: Any, leaf: Any) -> Any:
            wanted = whole_of(leaf)
            if wanted is None:
                cut = self._whole.get((jax.tree_util.keystr(path), getattr(leaf, "shape", None)))
                if cut is None or getattr(leaf, "sharding", None) != cut[0]:
                    return leaf
                wanted = cut[1]
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=wanted, weak_type=_is_weak(leaf))

        return jax.tree.map_with_path(whole, (args, kwargs))

    def warn(self, message: str) -> None:
        """Warns at the place of the caller."""
        warn(self.maker, message)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Declined) else sentence(error)


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(leaf, "weak_type", False))


#: Libraries that call steps for a script.
_CALLERS = ("equinox", "flax", "keras", "torchax")


def _folders_between() -> tuple[str, ...]:
    """The folders of this package, and of the libraries that stand between it and the script."""
    found = [os.path.dirname(os.path.dirname(__file__))]
    for name in _CALLERS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            found.append(os.path.dirname(file))
    return tuple(folder + os.sep for folder in found)


def warn(maker: str, message: str) -> None:
    """Warns at the place of the caller: the innermost one outside of this package."""
    folders, level = _folders_between(), 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"hlo_opt.jax.{maker}: {message}", stacklevel=level)


def _processes(leaves: list) -> list[int]:
    """The processes whose devices hold any of these arrays, in order."""
    shardings = [leaf.sharding for leaf in leaves if getattr(leaf, "sharding", None) is not None]
    return sorted({device.process_index for sharding in shardings for device in sharding.device_set})


def check_jitted(step: Any, maker: str) -> None:
    """Raises a TypeError where this is not what ``jax.jit`` returned."""
    if private.is_jitted(step):
        return
    expected = f"{maker}: expected what jax.jit, nnx.jit, equinox.filter_jit or torchax.interop.jax_jit returned"
    if isinstance(step, WrappedStep):
        raise TypeError(f"{expected}, found a step by {step.maker}: it has another program already")
    if isinstance(step, types.FunctionType) and hasattr(step, "lower"):
        raise TypeError(f"{expected}, found jax.pmap: its state is a stack of copies; use jit with shardings")
    name = getattr(step, "__name__", None)
    if callable(step) and name is not None:
        raise TypeError(
            f"{expected}, found the function {name}: write {maker}(jax.jit({name})), with state as arguments and "
            "results"
        )
    raise TypeError(f"{expected}, found {step!r}" if step is None else f"{expected}, found {type(step).__name__}")


def check_version(maker: str, error: type[Exception], strict: bool) -> None:
    """Warns, or raises ``error``, where this version of JAX lacks something."""
    lacking = private.missing()
    if lacking:
        message = f"jax {jax.__version__} lacks {', '.join(lacking)}; tested with {', '.join(private.TESTED)}"
        if strict:
            raise error(message)
        warn(maker, f"a step that needs what is missing runs as it was: {message}")
