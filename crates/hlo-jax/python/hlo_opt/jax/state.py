"""State outside of the step: made in shards, restored into shards, and whole again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from hlo_opt.jax.held import expect_plain
from hlo_opt.jax.padded import PaddedArray
from hlo_opt.jax.plan import is_replicated, remember
from hlo_opt.jax.switch import why_off
from hlo_opt.jax.wrapped import WrappedStep
from jax.sharding import NamedSharding, PartitionSpec


def shardings(step: WrappedStep, *args: Any, **kwargs: Any) -> tuple:
    """The shardings that the step holds its arguments in: a tuple of trees, one for each positional argument that is
    not static.

    With arguments (arrays, or ``jax.ShapeDtypeStruct`` with a sharding) for a call with these; without, for the last
    call. They say where a checkpoint is restored to. Where the step runs as it was, they are those of the arguments.

    Raises:
        TypeError: the step is not one by ``zero``, or one of ``nnx.jit`` or ``filter_jit``: after a call its module's
            arrays have their shardings.
        ValueError: there was no call yet.
    """
    step = expect_plain(step, "shardings")
    if (args or kwargs) and why_off():
        return jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), step.dynamic(args, kwargs))[0]
    plan = step.plan(*args, **kwargs) if args or kwargs else step.last_plan
    if plan is None:
        raise ValueError(
            f"shardings: expected arguments, or a call of {step.__name__} before, found neither: nothing is known of "
            "its state yet"
        )
    return jax.tree.unflatten(plan.tree, plan.shardings())[0]


def init(init_fn: Callable[[], Any], step: WrappedStep, *rest: Any, **named: Any) -> Any:
    """Makes state in shards: no device ever holds the whole of a leaf that the step cuts.

    Args:
        init_fn: returns the step's first argument, or a tuple of its first arguments; it takes no argument.
        rest: the step's other arguments, arrays or ``jax.ShapeDtypeStruct`` with a sharding. They say how many
            ``init_fn`` returns: where the step takes one argument more than ``rest`` has, it is one.
        named: those of the step's arguments that are given by name.

    Returns:
        What ``init_fn`` returns, in shards.
    """
    step = expect_plain(step, "init")
    shapes = jax.eval_shape(init_fn)
    mesh = _mesh_of((rest, named))
    whole = NamedSharding(mesh, PartitionSpec())
    described = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=whole), shapes)
    n_first = _n_positional(step, named) - len(rest)
    first = described if isinstance(shapes, tuple) and n_first == len(shapes) != 1 else (described,)
    if len(first) != n_first:
        raise ValueError(f"init: expected {n_first} arguments of {step.__name__} from init_fn, found {len(first)}")
    of_args = shardings(step, *first, *rest, **named)[: len(first)]
    wanted = of_args if first is described else of_args[0]
    wanted = jax.tree.map(lambda s: whole if s is None else s, wanted, is_leaf=lambda s: s is None)
    leaves, tree = jax.tree.flatten(wanted)
    # The step's first arguments are its first leaves.
    places = {} if why_off() else step.plan(*first, *rest, **named).places()

    def made() -> list:
        found = jax.tree.leaves(init_fn())
        return [places[n].padding.pad(leaf) if n in places else leaf for n, leaf in enumerate(found)]

    held = [places[n].held if n in places else sharding for n, sharding in enumerate(leaves)]
    state = jax.jit(made, out_shardings=held)()
    for n, sharding in enumerate(leaves):
        if n in places:
            state[n] = PaddedArray(state[n], places[n])
        elif not is_replicated(sharding):
            remember(state[n].sharding, whole)
    return jax.tree.unflatten(tree, state)


def _n_positional(step: WrappedStep, named: dict) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    params = inspect.signature(step.unwrapped).parameters.values()
    is_wanted = lambda p: p.kind in kinds and p.default is inspect.Parameter.empty and p.name not in named
    return sum(map(is_wanted, params))


def _mesh_of(tree: Any) -> Any:
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding):
            return sharding.mesh
    raise ValueError(
        "init: expected an argument with a NamedSharding, which says on what mesh the state is to be made; found none"
    )


def replicate(tree: Any) -> Any:
    """The arrays of a tree, each whole in the memory of every device, as a function with replicated ``in_shardings`` wants them."""

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, PaddedArray):
            return leaf.whole()
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and not is_replicated(sharding):
            return jax.device_put(leaf, NamedSharding(sharding.mesh, PartitionSpec()))
        return leaf

    return jax.tree.map(whole, tree)
