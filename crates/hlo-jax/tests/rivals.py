"""Other ways to keep a training step's state in shards: by GSPMD's shardings, and ZeRO written by hand."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from training_scripts import Script, along, described, make_layers, normal, put, squares, whole


def by_gspmd(script: Script, mesh: Mesh, compiled: Any, with_weights: bool) -> tuple[Any, tuple]:
    """The step with ``P('data')`` on its optimizer's state, ``with_weights`` on all of its state, as arguments and as
    outputs: the jitted step, and its arguments described.

    Of each leaf the first dim is cut that is a multiple of the devices; a leaf without such a dim stays whole.
    Everything else lies as in ``compiled``, the step as it is.
    """
    state = tuple(script.state)
    numbers = jax.tree.unflatten(jax.tree.structure(state), range(len(jax.tree.leaves(state))))
    in_shards = set(jax.tree.leaves(numbers if with_weights else script.optimizer(numbers)))

    def sharding(number: int, leaf: Any, otherwise: Any) -> Any:
        dims = [dim for dim, size in enumerate(leaf.shape) if size % mesh.devices.size == 0 and size]
        if number in in_shards and dims:
            return NamedSharding(mesh, P(*[None] * dims[0], "data"))
        return otherwise

    arguments, statics = split(script)
    leaves, tree = jax.tree.flatten(arguments)
    lies = jax.tree.leaves(compiled.input_shardings[0])
    if len(lies) != len(leaves):
        raise ValueError(f"expected a sharding of each of {len(leaves)} arguments, found {len(lies)}")
    leaves = [described(leaf, sharding(n, leaf, lie)) for n, (leaf, lie) in enumerate(zip(leaves, lies))]
    outputs = jax.tree.leaves(compiled.out_info)
    replicated = NamedSharding(mesh, P())
    jitted = jax.jit(
        lambda *arguments: script.step.__wrapped__(*arguments, *statics),
        donate_argnums=donated(compiled),
        out_shardings=jax.tree.unflatten(
            jax.tree.structure(compiled.out_info), [sharding(n, out, replicated) for n, out in enumerate(outputs)]
        ),
    )
    return jitted, jax.tree.unflatten(tree, leaves)


def split(script: Script) -> tuple[tuple, tuple]:
    """The arguments of the first step, those that nobody placed described, and behind them the static ones: numbers."""
    arguments = (*script.state, *script.batch(0))
    n_arrays = sum(not isinstance(argument, (int, float)) for argument in arguments)

    def placed(leaf: Any) -> Any:
        return leaf if isinstance(getattr(leaf, "sharding", None), NamedSharding) else described(leaf)

    return jax.tree.map(placed, arguments[:n_arrays]), arguments[n_arrays:]


def donated(compiled: Any) -> tuple[int, ...]:
    """The numbers of the arguments that a compiled step takes over."""
    infos = [
        jax.tree.leaves(argument, is_leaf=lambda info: hasattr(info, "donated")) for argument in compiled.args_info[0]
    ]
    return tuple(n for n, of_one in enumerate(infos) if of_one and all(info.donated for info in of_one))


def zero_by_hand(mesh: Mesh, width: int = 96, rows: int = 4, with_weights: bool = False) -> Script:
    """The script ``shard_mapped`` with ZeRO as a person writes it: the optimizer's state in shards, ``with_weights``
    the weights too."""
    n_devices = mesh.devices.size
    params = make_layers(0, width, 3)
    tx = optax.adam(1e-3)

    def shard(leaf):
        size = leaf.shape[0] // n_devices
        return lax.dynamic_slice_in_dim(leaf, lax.axis_index("data") * size, size)

    def gather(leaf):
        return lax.all_gather(leaf, "data", axis=0, tiled=True)

    def local(params, opt, x, y):
        complete = jax.tree.map(gather, params) if with_weights else params
        loss, grads = jax.value_and_grad(squares)(complete, x, y)
        grads = jax.tree.map(lambda g: lax.psum_scatter(g, "data", tiled=True) / n_devices, grads)
        shards = params if with_weights else jax.tree.map(shard, params)
        updates, opt = tx.update(grads, opt, shards)
        shards = optax.apply_updates(shards, updates)
        return shards if with_weights else jax.tree.map(gather, shards), opt, lax.pmean(loss, "data")

    cut, rep = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    opt = jax.tree.map(lambda leaf: put(leaf, cut if leaf.ndim else rep), tx.init(params))
    state = (along(mesh, params) if with_weights else whole(mesh, params), opt)
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, state)
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(*specs, P("data"), P("data")), out_specs=(*specs, P()), check_vma=False
    )
    n = rows * n_devices
    step = jax.jit(mapped, donate_argnums=(0, 1))
    return Script(step, state, lambda i: along(mesh, (normal(i, n, width), normal(50 + i, n, width))))
