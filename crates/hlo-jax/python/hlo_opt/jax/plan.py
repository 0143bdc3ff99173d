"""How calls of one signature run: which arguments fit, where they are moved, and the program that takes them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from hlo_opt.jax import private
from hlo_opt.jax.batch import can_be_placed, inputs
from hlo_opt.jax.inlined import Program, global_function
from hlo_opt.jax.padded import PaddedArray, Padding, Place
from hlo_opt.jax.partitioned import Partitioned, local_shape, physical
from hlo_opt.jax.sharding import Asked, Sharded
from jax.sharding import NamedSharding, PartitionSpec

#: Of the shardings of leaves that plans have cut, by identity: that sharding, and what the leaf had in the original
#: step. Arrays keep the very object, so that shards made here are told from those that a script makes.
_GIVEN: dict[int, tuple[NamedSharding, NamedSharding]] = {}


#: Equal places are one object, so that arrays that a program takes are told from others by identity.
_PLACES: dict[Place, Place] = {}


def remember(sharding: NamedSharding, whole: NamedSharding) -> None:
    """Notes that leaves with this sharding would have another in the original step."""
    _GIVEN[id(sharding)] = (sharding, whole)


def whole_of(leaf: Any) -> NamedSharding | None:
    """The sharding that a leaf would have in the original step, where a plan has cut it."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return None
    if isinstance(leaf, PaddedArray):
        return leaf.place.whole
    given = _GIVEN.get(id(leaf.sharding))
    return None if given is None else given[1]


def is_replicated(sharding: NamedSharding) -> bool:
    """Whether each device has the whole of an array in its own memory."""
    return sharding.is_fully_replicated and not private.is_of_host(sharding)


def as_whole(tree: Any) -> Any:
    """A tree with the leaves that plans have cut put together again."""

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, PaddedArray):
            return leaf.whole()
        wanted = whole_of(leaf)
        return leaf if wanted is None else jax.device_put(leaf, wanted)

    return jax.tree.map(whole, tree)


@dataclasses.dataclass(frozen=True)
class Options:
    """What :func:`hlo_opt.jax.zero` was asked for."""

    asked: Asked
    memory_limit: int | None
    strict: bool
    quiet: bool


@dataclasses.dataclass(frozen=True)
class Memory:
    """What the program of one device takes by XLA's own account, in bytes. Outputs that lie in the place of an argument
    are ``alias_bytes``."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int

    @property
    def peak_bytes(self) -> int:
        """All that is there at once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes

    @classmethod
    def of(cls, compiled: Any) -> Memory | None:
        """That of a compiled program; ``None`` where XLA gives no account."""
        found = compiled.memory_analysis()
        if found is None:
            return None
        return cls(
            found.argument_size_in_bytes,
            found.output_size_in_bytes,
            found.alias_size_in_bytes,
            found.temp_size_in_bytes,
        )


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
        moves: of each kept argument that is held in its own shape its number, the sharding that ``call`` takes, and
            whether its source may be freed.
        padded: of each one that is held in another shape its number, its place, and whether its source may be freed.
        out_padded: the same of outputs, without the last.
        memory: what the program takes by XLA's account.
        inputs: the flat arguments that are no state, and may come on no device.
        undone: how many calls in a row brought state whole that the call before had returned in shards, and a leaf of it.
        n_gathered: how many calls ran as they were on state that other calls had returned in shards.
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
    padded: Sequence[tuple[int, Place, bool]] = ()
    out_padded: Sequence[tuple[int, Place]] = ()
    out_tree: Any = None
    partitioned: Partitioned | None = None
    sharded: Sharded | None = None
    memory: Memory | None = None
    inputs: frozenset[int] = frozenset()
    undone: tuple[int, int] = (0, 0)
    n_gathered: int = 0
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

    def takes(self, leaves: list) -> bool:
        """Whether the plan takes these arguments though some inputs come on no device: they are put where those of the
        plan lie. State has to lie where the plan takes it, and some of it on the mesh."""
        if self.declined is not None or not self.inputs or len(leaves) != len(self.kinds):
            return False
        loose, is_on_mesh = [], False
        for number, (leaf, kind, accepted) in enumerate(zip(leaves, self.kinds, self.accepted)):
            if isinstance(leaf, jax.core.Tracer) or _kind(leaf) != kind:
                return False
            sharding = _sharding(leaf)
            is_on_mesh = is_on_mesh or sharding is not None
            if sharding in accepted:
                continue
            if sharding is not None or number not in self.inputs:
                return False
            loose.append(number)
        if not is_on_mesh or not can_be_placed(self.partitioned.mesh):
            return False
        for number in loose:
            self.accepted[number].append(None)
        return True

    def run(self, leaves: list) -> Any:
        """Calls the program with these flat arguments, and moves those that lie elsewhere."""
        moved = [move for move in self.moves if getattr(leaves[move[0]], "sharding", None) is not move[1]]
        if self._has_run:
            self._count_undone(leaves, moved)
        if moved:
            _move_leaves(leaves, moved)
        if self.padded:
            _pad_leaves(leaves, self.padded)
        if self._has_run:
            outs = self.call(*[leaves[number] for number in self.kept])
        else:
            with _without_word_of_donation():
                outs = self.call(*[leaves[number] for number in self.kept])
            # JAX may put an equal sharding in the place of the one that it was given, and keeps to it.
            self._has_run = True
            self._remember(zip((out.sharding for out in outs), self.sharded.output_shardings), "output_specs")
        if self.out_padded:
            outs = list(outs)
            for number, place in self.out_padded:
                outs[number] = PaddedArray(outs[number], place)
        return jax.tree.unflatten(self.out_tree, outs)

    def _count_undone(self, leaves: list, moved: Sequence[tuple[int, NamedSharding, bool]]) -> None:
        """Notes whether leaves that come elsewhere than the program takes them are state that it returned in shards."""
        cut = {self.kept[n] for n in self.sharded.cut} if moved else ()
        is_whole = lambda leaf: isinstance(leaf, jax.Array) and is_replicated(leaf.sharding)
        whole = [number for number, _, _ in moved if number in cut and is_whole(leaves[number])]
        self.undone = (self.undone[0] + 1, whole[0]) if whole else (0, 0)

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
        self.partitioned, self.sharded = partitioned, sharded
        self.inputs = inputs(partitioned)
        self.moves, self.padded = [], []
        for n, number in enumerate(self.kept):
            is_donated = partitioned.donated[number]
            if n in sharded.param_paddings:
                place = self._place(sharded.param_paddings[n], partitioned.avals[number], shardings[n])
                self.padded.append((number, place, is_donated))
            else:
                self.moves.append((number, shardings[n], is_donated))
        self.out_padded = [
            (n, self._place(padding, partitioned.outputs[n], sharded.output_shardings[n], partitioned.weak[n]))
            for n, padding in sharded.output_paddings.items()
        ]
        # JAX keeps what it compiles here for the first call: what fails, fails while the original can still run.
        with _without_word_of_donation():
            self.memory = Memory.of(self.call.lower(*self._described()).compile())
        self._remember(zip(shardings, shardings), "param_specs")
        for number, wanted, _ in self.moves:
            self.accepted[number].append(wanted)
        for number, place, _ in self.padded:
            self.accepted[number].append(place.whole)
        for number, _, whole in self.cut_leaves():
            # Whole or in shards, a leaf is the same argument.
            self.accepted[number].append(whole)

    def _place(self, padding: Padding, aval: Any, held: NamedSharding, weak: bool | None = None) -> Place:
        whole = NamedSharding(self.partitioned.mesh, PartitionSpec())
        weak = bool(getattr(aval, "weak_type", False)) if weak is None else weak
        place = Place(padding, aval.dtype, weak, held, whole)
        return _PLACES.setdefault(place, place)

    def _remember(self, carried: Iterable[tuple[NamedSharding, NamedSharding]], specs: str) -> None:
        """Notes what leaves were that are cut now: of each the sharding that arrays carry, and the one asked for."""
        for (sharding, asked), before in zip(carried, getattr(self.partitioned, specs)):
            if asked.spec != before or private.is_of_host(asked):
                remember(sharding, NamedSharding(self.partitioned.mesh, before))

    def cut_leaves(self) -> list[tuple[int, NamedSharding, NamedSharding]]:
        """Of each flat argument that was whole and is in shards of its own shape its number, its sharding, and what that
        was before."""
        specs, mesh = self.partitioned.param_specs, self.partitioned.mesh
        shardings, paddings = self.sharded.param_shardings, self.sharded.param_paddings
        own = [n for n in self.sharded.cut if n not in paddings]
        return [(self.kept[n], shardings[n], NamedSharding(mesh, specs[n])) for n in own]

    def places(self) -> dict[int, Place]:
        """How those flat arguments are held that have another shape in the program."""
        return {number: place for number, place, _ in self.padded}

    def shardings(self) -> list:
        """The sharding in which each flat argument is taken; of what the program does not use, or holds in another
        shape, whole on its mesh. Where the original runs, those that the arguments had."""
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
        said += [str(self.sharded.param_paddings), str(self.sharded.output_paddings)]
        return hashlib.sha256("\n".join(said).encode() + self.sharded.module).hexdigest()

    def trace(self, args: tuple, kwargs: dict) -> Any:
        """As ``jax.jit(…).trace``, of the program in the step's own trees; static arguments are left out. What is held in
        another shape comes and goes whole."""
        leaves: list[Any] = list(self.partitioned.avals)
        for number, described in zip(self.kept, self._described()):
            leaves[number] = described
        for number, place, _ in self.padded:
            leaves[number] = _as_described(leaves[number], place.whole, place.padding.shape)
        out_shardings = list(self.sharded.output_shardings)
        for number, place in self.out_padded:
            out_shardings[number] = place.whole
        described_args, described_kwargs = jax.tree.unflatten(self.tree, leaves)
        donated = jax.tree.unflatten(self.tree, self.partitioned.donated)
        is_donated = lambda tree: any(jax.tree.leaves(tree))

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs))
            for number, place, _ in self.padded:
                leaves[number] = place.cut_traced(leaves[number])
            outs = list(self.function(*[leaves[number] for number in self.kept]))
            for number, place in self.out_padded:
                outs[number] = place.whole_traced(outs[number])
            return jax.tree.unflatten(self.out_tree, outs)

        call.__name__ = call.__qualname__ = self.function.__name__
        jitted = jax.jit(
            call,
            out_shardings=jax.tree.unflatten(self.out_tree, out_shardings),
            donate_argnums=tuple(n for n, tree in enumerate(donated[0]) if is_donated(tree)),
            donate_argnames=tuple(name for name, tree in donated[1].items() if is_donated(tree)),
            compiler_options=self.compiler_options,
        )
        return jitted.trace(*described_args, **described_kwargs)

    def _described(self) -> list[jax.ShapeDtypeStruct]:
        """The arguments of ``call``, as it takes them."""
        avals, paddings = self.partitioned.avals, self.sharded.param_paddings
        shape = lambda n, number: paddings[n].padded if n in paddings else avals[number].shape
        return [
            _as_described(avals[number], self.sharded.param_shardings[n], shape(n, number))
            for n, number in enumerate(self.kept)
        ]


def _as_described(aval: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=sharding, weak_type=weak)


def _function_of(step: Partitioned, sharded: Sharded, name: str) -> Callable[..., tuple]:
    """The function of global arrays, random keys among them, that runs the program of one device on each."""
    mesh = sharded.mesh
    params = [_held(physical(step.avals[n]), sharded.param_paddings.get(i)) for i, n in enumerate(step.kept)]
    results = [_held(physical(output), sharded.output_paddings.get(i)) for i, output in enumerate(step.outputs)]
    program = Program(
        private.stablehlo_of(sharded.module),
        [_local(aval, spec, mesh) for aval, spec in zip(params, sharded.param_specs)],
        [_local(aval, spec, mesh) for aval, spec in zip(results, sharded.output_specs)],
        step.weak,
        sharded.outputs_on_host,
        step.callbacks,
        step.effects,
    )
    function = global_function(program, mesh, sharded.param_specs, sharded.output_specs)
    keys = [_key_impl(output) for output in step.outputs]

    def call(*leaves: Any) -> tuple:
        outs = function(*[_key_data(leaf) for leaf in leaves])
        return tuple(o if impl is None else jax.random.wrap_key_data(o, impl=impl) for o, impl in zip(outs, keys))

    call.__name__ = call.__qualname__ = name
    return call


def _held(aval: Any, padding: Padding | None) -> Any:
    """An array in the shape in which it is held."""
    return aval if padding is None else jax.ShapeDtypeStruct(padding.padded, aval.dtype)


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


def _pad_leaves(leaves: list, padded: Sequence[tuple[int, Place, bool]]) -> None:
    """Puts leaves into the shapes in which the program holds them, in place. One that comes whole and that the step would
    take over anyway is freed at once."""
    is_held = all(type(leaves[number]) is PaddedArray for number, _, _ in padded)
    n_places = collections.Counter() if is_held else collections.Counter(id(leaf) for leaf in leaves)
    for number, place, is_donated in padded:
        leaf = leaves[number]
        leaves[number] = place.cut(leaf)
        # What is held so already is passed on as it is.
        is_new = not (isinstance(leaf, PaddedArray) and leaves[number] is leaf.held)
        if is_new and is_donated and n_places[id(leaf)] == 1 and isinstance(leaf, jax.Array):
            leaves[number].block_until_ready()
            leaf.delete()


@contextlib.contextmanager
def _without_word_of_donation() -> Iterator[None]:
    """Drops JAX's warning of donated arrays that no result can use: it has none where it chooses the shardings of results itself, as in
    the original step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def _put(leaf: jax.Array, wanted: NamedSharding) -> jax.Array:
    """Moves an array. JAX moves no typed random keys to a mesh of several processes, so that their data is moved."""
    if wanted.is_fully_addressable or not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(leaf, wanted)
    data = jax.device_put(jax.random.key_data(leaf), wanted)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


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
        in_shards = _put(leaf, wanted)
        if is_donated and n_places[id(leaf)] == 1 and not is_replicated(wanted):
            in_shards.block_until_ready()
            leaf.delete()
        leaves[number] = in_shards
