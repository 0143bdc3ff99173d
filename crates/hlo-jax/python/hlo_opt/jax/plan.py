"""How calls of one signature run: which arguments fit, where they are moved, and the program that takes them."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from hlo_opt.jax import private
from hlo_opt.jax.inlined import Program, global_function
from hlo_opt.jax.partitioned import Partitioned, local_shape, physical
from hlo_opt.jax.sharding import Sharded
from jax.sharding import NamedSharding, PartitionSpec

#: Of the shardings of leaves that plans have cut, by identity: that sharding, and what the leaf had in the original
#: step. Arrays keep the very object, so that shards made here are told from those that a script makes.
_GIVEN: dict[int, tuple[NamedSharding, NamedSharding]] = {}


def remember(sharding: NamedSharding, whole: NamedSharding) -> None:
    """Notes that leaves with this sharding would have another in the original step."""
    _GIVEN[id(sharding)] = (sharding, whole)


def whole_of(leaf: Any) -> NamedSharding | None:
    """The sharding that a leaf would have in the original step, where a plan has cut it."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return None
    given = _GIVEN.get(id(leaf.sharding))
    return None if given is None else given[1]


def as_whole(tree: Any) -> Any:
    """A tree with the leaves that plans have cut put together again."""

    def whole(leaf: Any) -> Any:
        wanted = whole_of(leaf)
        return leaf if wanted is None else jax.device_put(leaf, wanted)

    return jax.tree.map(whole, tree)


@dataclasses.dataclass(frozen=True)
class Options:
    """What :func:`hlo_opt.jax.zero` was asked for."""

    mode: str | int
    memory_limit: int | None
    machine: str | None
    deadline_s: float | None
    strict: bool


@dataclasses.dataclass
class Plan:
    """How calls of one signature run.

    Attributes:
        key: what has to be equal: the tree, the static arguments, JAX's configuration.
        kinds: shape, dtype and weak type of each leaf.
        accepted: of each leaf, the shardings with which it may come.
        declined: why the original runs; then nothing below is set.
        call: the jitted function of the kept flat arguments.
        function: what ``call`` was made of.
        kept: the flat arguments that it takes.
        compiler_options: what the step asks of XLA.
        moves: of each kept argument its number, the sharding that ``call`` takes, and whether its source may be freed.
    """

    key: tuple
    kinds: list
    accepted: list
    declined: str | None = None
    call: Any = None
    function: Callable[..., tuple] | None = None
    compiler_options: dict[str, Any] | None = None
    kept: Sequence[int] = ()
    moves: Sequence[tuple[int, NamedSharding, bool]] = ()
    out_tree: Any = None
    partitioned: Partitioned | None = None
    sharded: Sharded | None = None
    #: Of each leaf of the last call that fitted, its abstract value and sharding: most calls have the same objects.
    _known: list = dataclasses.field(default_factory=list)
    _has_run: bool = False

    @classmethod
    def of(cls, key: tuple, leaves: list) -> Plan:
        """A plan for calls like this one, of which nothing is known yet."""
        return cls(key, kinds=[_kind(leaf) for leaf in leaves], accepted=[[_sharding(leaf)] for leaf in leaves])

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

    def run(self, leaves: list) -> Any:
        """Calls the program with these flat arguments, and moves those that lie elsewhere."""
        moved = [move for move in self.moves if getattr(leaves[move[0]], "sharding", None) is not move[1]]
        if moved:
            _move_leaves(leaves, moved)
        outs = self.call(*[leaves[number] for number in self.kept])
        if not self._has_run:
            # JAX may put an equal sharding in the place of the one that it was given, and keeps to it.
            self._has_run = True
            self._remember(zip((out.sharding for out in outs), self.sharded.output_shardings), "output_specs")
        return jax.tree.unflatten(self.out_tree, outs)

    def make(self, step: Any, partitioned: Partitioned, sharded: Sharded) -> None:
        """Compiles the program that runs in the place of a step."""
        shardings = sharded.param_shardings
        self.function = _function_of(partitioned, sharded, getattr(step, "__name__", "step"))
        self.compiler_options = private.compiler_options(step)
        self.call = jax.jit(
            self.function,
            in_shardings=tuple(shardings),
            out_shardings=tuple(sharded.output_shardings),
            donate_argnums=tuple(n for n, number in enumerate(partitioned.kept) if partitioned.donated[number]),
            keep_unused=True,
            compiler_options=self.compiler_options,
        )
        self.kept, self.out_tree = partitioned.kept, partitioned.out_tree
        self.moves = [(number, shardings[n], partitioned.donated[number]) for n, number in enumerate(self.kept)]
        self.partitioned, self.sharded = partitioned, sharded
        # JAX keeps what it compiles here for the first call: what fails, fails while the original can still run.
        self.call.lower(*self._described()).compile()
        self._remember(zip(shardings, shardings), "param_specs")
        for n, number in enumerate(self.kept):
            self.accepted[number].append(shardings[n])
        for number, _, whole in self.cut_leaves():
            # Whole or in shards, a leaf is the same argument.
            self.accepted[number].append(whole)

    def _remember(self, carried: Iterable[tuple[NamedSharding, NamedSharding]], specs: str) -> None:
        """Notes what leaves were that are cut now: of each the sharding that arrays carry, and the one asked for."""
        for (sharding, asked), before in zip(carried, getattr(self.partitioned, specs)):
            if asked.spec != before:
                remember(sharding, NamedSharding(self.partitioned.mesh, before))

    def cut_leaves(self) -> list[tuple[int, NamedSharding, NamedSharding]]:
        """Of each flat argument that was whole and is in shards its number, its sharding, and what that was before."""
        specs, mesh = self.partitioned.param_specs, self.partitioned.mesh
        return [(*self.moves[n][:2], NamedSharding(mesh, specs[n])) for n in self.sharded.cut]

    def shardings(self) -> list:
        """The sharding in which each flat argument is taken; of what the program does not use, whole on its mesh. Where
        the original runs, those that the arguments had."""
        if self.declined is not None:
            return [accepted[0] for accepted in self.accepted]
        found = [NamedSharding(self.partitioned.mesh, PartitionSpec())] * len(self.kinds)
        for number, wanted, _ in self.moves:
            found[number] = wanted
        return found

    def digest(self) -> str:
        """A digest of what was decided: equal on two processes whose programs run together."""
        if self.declined is not None:
            return "declined"
        said = [str(self.kept), str(self.sharded.param_specs), str(self.sharded.output_specs)]
        return hashlib.sha256("\n".join(said).encode() + self.sharded.module).hexdigest()

    def trace(self, args: tuple, kwargs: dict) -> Any:
        """As ``jax.jit(…).trace``, of the program in the step's own trees; static arguments are left out."""
        leaves: list[Any] = list(self.partitioned.avals)
        for (number, *_), described in zip(self.moves, self._described()):
            leaves[number] = described
        described_args, described_kwargs = jax.tree.unflatten(self.tree, leaves)
        donated = jax.tree.unflatten(self.tree, self.partitioned.donated)
        is_donated = lambda tree: any(jax.tree.leaves(tree))

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs))
            return jax.tree.unflatten(self.out_tree, self.function(*[leaves[number] for number in self.kept]))

        call.__name__ = call.__qualname__ = self.function.__name__
        jitted = jax.jit(
            call,
            out_shardings=jax.tree.unflatten(self.out_tree, self.sharded.output_shardings),
            donate_argnums=tuple(n for n, tree in enumerate(donated[0]) if is_donated(tree)),
            donate_argnames=tuple(name for name, tree in donated[1].items() if is_donated(tree)),
            compiler_options=self.compiler_options,
        )
        return jitted.trace(*described_args, **described_kwargs)

    def _described(self) -> list[jax.ShapeDtypeStruct]:
        avals = self.partitioned.avals
        return [
            jax.ShapeDtypeStruct(
                avals[n].shape, avals[n].dtype, sharding=wanted, weak_type=getattr(avals[n], "weak_type", False)
            )
            for n, wanted, _ in self.moves
        ]


def _function_of(step: Partitioned, sharded: Sharded, name: str) -> Callable[..., tuple]:
    """The function of global arrays, random keys among them, that runs the program of one device on each."""
    mesh = sharded.mesh
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

    call.__name__ = call.__qualname__ = name
    return call


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
