"""``zero``: a jitted training step whose state stays in shards between steps."""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from hlo_opt.jax import private
from hlo_opt.jax.inlined import Program, global_function
from hlo_opt.jax.partitioned import Declined, Partitioned, local_shape, partition, physical
from hlo_opt.jax.sharding import Sharded, shard


class ZeroError(RuntimeError):
    """A step could not be taken over, with ``strict=True``."""


@dataclasses.dataclass
class Plan:
    """How calls of one signature run.

    Attributes:
        key: what has to be equal: the tree, the static arguments, JAX's configuration.
        kinds: shape, dtype and weak type of each leaf.
        accepted: of each leaf, the shardings with which it may come.
        declined: why the original runs; then nothing below is set.
        call: the jitted function of the kept flat arguments.
        kept: the flat arguments that it takes.
        moves: of each kept argument its number, the sharding that ``call`` takes, and whether its source may be freed.
    """

    key: tuple
    kinds: list
    accepted: list
    declined: str | None = None
    call: Any = None
    kept: Sequence[int] = ()
    moves: Sequence[tuple[int, NamedSharding, bool]] = ()
    out_tree: Any = None
    partitioned: Partitioned | None = None
    sharded: Sharded | None = None
    #: Of each leaf of the last call that fitted, its abstract value and sharding: most calls have the same objects.
    _known: list = dataclasses.field(default_factory=list)

    @property
    def tree(self) -> Any:
        """The tree of the arguments that are not static."""
        return self.key[0]

    def fits(self, leaves: list) -> bool:
        """Whether these arguments are those of the plan: what jit tells apart, and each leaf where the plan takes it.
        A tracer fits no plan."""
        known = self._known or [(None, None)] * len(leaves)
        found = []
        for leaf, pair, kind, accepted in zip(leaves, known, self.kinds, self.accepted):
            if isinstance(leaf, jax.core.Tracer):
                return False
            if isinstance(leaf, jax.Array):
                aval, sharding = leaf.aval, leaf.sharding
                if aval is pair[0] and sharding is pair[1]:
                    found.append(pair)
                    continue
                pair = (aval, sharding) if leaf.committed else (None, None)
            if _kind(leaf) != kind or _sharding(leaf) not in accepted:
                return False
            found.append(pair)
        self._known = found
        return True


class ZeroStep:
    """What :func:`zero` returns: called like the step that it was made of.

    Attributes:
        unwrapped: the original jitted step.
    """

    def __init__(self, step: Any, mode: str | int, memory_limit: int | None, machine: str | None, strict: bool) -> None:
        self.unwrapped = step
        self._mode, self._memory_limit, self._machine, self._strict = mode, memory_limit, machine, strict
        self._static_numbers, self._static_names = private.static_arguments(step)
        self._plans: list[Plan] = []
        self._last: Plan | None = None
        self._lock = threading.RLock()
        # Of leaves that a plan has cut, by path and shape: their sharding, and what it was in the original step.
        self._whole: dict[tuple[str, tuple], tuple[NamedSharding, NamedSharding]] = {}
        self.__name__ = getattr(step, "__name__", "step")
        self.__doc__ = getattr(step, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return self.unwrapped(*args, **kwargs)
        dynamic, statics = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(dynamic)
        key = (tree, statics, private.tracing_context())
        plan = self._last
        if plan is None or plan.key != key or not plan.fits(leaves):
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return self.unwrapped(*args, **kwargs)
            with self._lock:
                plan = self._find(args, kwargs, leaves, key)
            self._last = plan
        if plan.declined is not None:
            return self.unwrapped(*args, **kwargs)
        return self._run(plan, leaves)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """How calls with these arguments run; nothing is run. Arguments may be ``jax.ShapeDtypeStruct`` with a
        sharding."""
        dynamic, statics = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(dynamic)
        with self._lock:
            plan = self._find(args, kwargs, leaves, (tree, statics, private.tracing_context()))
        self._last = plan
        return plan

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last call."""
        return self._last

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(…).lower``, of the program that a call with these arguments runs."""
        plan = self.plan(*args, **kwargs)
        if plan.declined is not None:
            return self.unwrapped.lower(*args, **kwargs)
        leaves = jax.tree.leaves(self._split(args, kwargs)[0])
        for n in plan.sharded.cut:
            number, wanted, _ = plan.moves[n]
            leaves[number] = jax.ShapeDtypeStruct(leaves[number].shape, leaves[number].dtype, sharding=wanted)
        return plan.call.lower(*[leaves[number] for number in plan.kept])

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(…).eval_shape``."""
        return self.unwrapped.eval_shape(*args, **kwargs)

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

    def _run(self, plan: Plan, leaves: list) -> Any:
        moved = [move for move in plan.moves if getattr(leaves[move[0]], "sharding", None) is not move[1]]
        if moved:
            _move_leaves(leaves, moved)
        outs = plan.call(*[leaves[number] for number in plan.kept])
        return jax.tree.unflatten(plan.out_tree, outs)

    def _find(self, args: tuple, kwargs: dict, leaves: list, key: tuple) -> Plan:
        for plan in self._plans:
            if plan.key == key and plan.fits(leaves):
                return plan
        plan = Plan(key, kinds=[_kind(leaf) for leaf in leaves], accepted=[[_sharding(leaf)] for leaf in leaves])
        try:
            self._make(plan, *self._as_whole(args, kwargs))
        except Declined as reason:
            plan.declined = str(reason)
        except Exception as error:
            if self._strict:
                raise
            plan.declined = f"{type(error).__name__}: {error}"
        if plan.declined is not None:
            if self._strict:
                raise ZeroError(plan.declined)
            warnings.warn(f"hlo_opt.jax.zero: {self.__name__} runs as it was: {plan.declined}", stacklevel=3)
        self._plans.append(plan)
        return plan

    def _as_whole(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with the leaves that an earlier plan has cut described as whole, as the original step would
        have them."""

        def whole(path: Any, leaf: Any) -> Any:
            sharding = getattr(leaf, "sharding", None)
            cut = self._whole.get((jax.tree_util.keystr(path), getattr(leaf, "shape", None)))
            if cut is None or sharding != cut[0]:
                return leaf
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=cut[1])

        return jax.tree.map_with_path(whole, (args, kwargs)) if self._whole else (args, kwargs)

    def _make(self, plan: Plan, args: tuple, kwargs: dict) -> None:
        step = partition(self.unwrapped, args, kwargs)
        sharded = shard(step, self._mode, self._memory_limit, self._machine)
        mesh = step.mesh
        params = [physical(step.avals[number]) for number in step.kept]
        results = [physical(output) for output in step.outputs]
        program = Program(
            private.stablehlo_of(sharded.module),
            [_local(aval, spec, mesh) for aval, spec in zip(params, sharded.param_specs)],
            [_local(aval, spec, mesh) for aval, spec in zip(results, sharded.output_specs)],
            step.weak,
        )
        function = global_function(program, mesh, sharded.param_specs, sharded.output_specs)
        keys = [_key_impl(output) for output in step.outputs]

        def call(*leaves: Any) -> tuple:
            outs = function(*[_key_data(leaf) for leaf in leaves])
            return tuple(o if impl is None else jax.random.wrap_key_data(o, impl=impl) for o, impl in zip(outs, keys))

        call.__name__ = call.__qualname__ = self.__name__
        shardings = [NamedSharding(mesh, spec) for spec in sharded.param_specs]
        plan.call = jax.jit(
            call,
            in_shardings=tuple(shardings),
            out_shardings=tuple(NamedSharding(mesh, spec) for spec in sharded.output_specs),
            donate_argnums=tuple(n for n, number in enumerate(step.kept) if step.donated[number]),
            keep_unused=True,
        )
        plan.kept = step.kept
        plan.moves = [(number, shardings[n], step.donated[number]) for n, number in enumerate(step.kept)]
        for n, number in enumerate(step.kept):
            plan.accepted[number].append(shardings[n])
        for n in sharded.cut:
            # Whole or in shards, a leaf is the same argument.
            number, whole = step.kept[n], NamedSharding(mesh, step.param_specs[n])
            plan.accepted[number].append(whole)
            place = (jax.tree_util.keystr(step.in_paths[number]), step.avals[number].shape)
            self._whole[place] = (shardings[n], whole)
        plan.out_tree = step.out_tree
        plan.partitioned, plan.sharded = step, sharded


def _local(aval: Any, spec: PartitionSpec, mesh: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(local_shape(aval.shape, spec, mesh), aval.dtype)


def _key_impl(aval: Any) -> Any:
    """The generator of an array of random keys, ``None`` for other arrays. Only a value says it."""
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return None
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), aval)
    return found[0]


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _kind(leaf: Any) -> tuple:
    """What jit tells arguments apart by, their shardings aside."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return (type(leaf),)
    return (leaf.shape, dtype, getattr(leaf, "weak_type", False))


def _sharding(leaf: Any) -> Any:
    """Where an argument lies: ``None`` if jit may put it where it likes."""
    if isinstance(leaf, jax.Array) and not leaf.committed:
        return None
    return getattr(leaf, "sharding", None)


def _move_leaves(leaves: list, moves: Sequence[tuple[int, NamedSharding, bool]]) -> None:
    """Puts leaves where the program takes them, in place.

    One that the step would take over anyway is freed at once, so that no two copies of the state are there together;
    but not an array that stands in several places of the arguments.
    """
    n_places = collections.Counter(id(leaf) for leaf in leaves)
    for number, wanted, is_donated in moves:
        leaf = leaves[number]
        # An array that lies there already shares its memory with what device_put makes, and so may one made whole.
        if not isinstance(leaf, jax.Array) or leaf.sharding.is_equivalent_to(wanted, leaf.ndim):
            continue
        in_shards = jax.device_put(leaf, wanted)
        if is_donated and n_places[id(leaf)] == 1 and not wanted.is_fully_replicated:
            in_shards.block_until_ready()
            leaf.delete()
        leaves[number] = in_shards


def _is_off() -> bool:
    return os.environ.get("HLO_OPT", "").lower() == "off" or bool(jax.config.jax_disable_jit)


def zero(
    step: Callable[..., Any],
    *,
    mode: str | int = "auto",
    memory_limit: int | None = None,
    machine: str | None = None,
    strict: bool = False,
) -> ZeroStep:
    """Keeps the state of a jitted training step in shards between steps.

    Args:
        step: what ``jax.jit`` returned. It takes state and a batch, and returns the next state.
        mode: 1 shards the optimizer's state; 2 also the weights, where that is cheaper; ``"auto"`` takes what is
            predicted to be fastest, and of equally fast ways the one with less memory.
        memory_limit: the most bytes that one device may need at the peak, as predicted.
        machine: what times are predicted for: ``"h100"``, ``"h200:4"``, as ``--machine`` takes it.
        strict: raise :class:`ZeroError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is.
    """
    if not private.is_jitted(step):
        if hasattr(step, "lower"):
            raise TypeError(
                "expected what jax.jit returned, found jax.pmap: its state is a stack of copies; use jit with shardings"
            )
        raise TypeError(f"expected what jax.jit returned, found {type(step).__name__}: write zero(jax.jit(step))")
    if mode not in ("auto", 1, 2):
        raise ValueError(f"mode: expected 'auto', 1 or 2, found {mode!r}")
    lacking = private.missing()
    if lacking:
        message = f"jax {jax.__version__} lacks {', '.join(lacking)}; tested with {', '.join(private.TESTED)}"
        if strict:
            raise ZeroError(message)
        warnings.warn(f"hlo_opt.jax.zero: a step that needs what is missing runs as it was: {message}", stacklevel=2)
    return ZeroStep(step, mode, memory_limit, machine, strict)
