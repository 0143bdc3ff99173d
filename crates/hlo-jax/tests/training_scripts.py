"""Training scripts of kinds that users have. Each is a function that makes a :class:`Script` for a mesh.

``width`` is the size of its layers, ``rows`` how many rows of the batch each device gets. On a mesh of devices that are
only described, which can compile and hold no arrays, state and batch are described too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass
class Script:
    """A training script.

    Attributes:
        step: a jitted function ``(*state, *batch) -> (*state, loss)``.
        state: the state to begin with.
        batch: the batch by number of the step.
        optimizer: which part of the state is the optimizer's.
        undetermined: leaves whose path this pattern finds have a gradient that is zero but for rounding, of which an
            optimizer may
            make much: the script itself does not determine them.
    """

    step: Any
    state: tuple
    batch: Callable[[int], tuple]
    optimizer: Callable[[tuple], Any] = lambda state: state[1]
    undetermined: str | None = None


def mesh_of(n_devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:n_devices]), ("data",))


def put(tree: Any, sharding: NamedSharding) -> Any:
    """Arrays that lie so; where the devices are only described, a description of each array."""
    if set(sharding.mesh.devices.flat) <= set(jax.devices()):
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: described(leaf, sharding), tree)


def described(leaf: Any, sharding: NamedSharding | None = None) -> jax.ShapeDtypeStruct:
    """The description of an array, or of a number of Python's; without a sharding nobody has placed it."""
    kind = jax.eval_shape(jnp.asarray, leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=sharding, weak_type=kind.weak_type)


def whole(mesh: Mesh, tree: Any) -> Any:
    return put(tree, NamedSharding(mesh, P()))


def along(mesh: Mesh, tree: Any) -> Any:
    return put(tree, NamedSharding(mesh, P("data")))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Mlp(nn.Module):
    width: int
    out: int

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(self.out)(x)


def flax_mlp(mesh: Mesh, width: int = 128, rows: int = 8) -> Script:
    """TrainState, clipping, AdamW, a schedule; donated state."""
    model = Mlp(width, 16)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 5, 20)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    params = model.init(jax.random.key(0), jnp.zeros((1, 96)))
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    @partial(jax.jit, donate_argnums=(0,))
    def step(state, x, y):
        def loss_fn(params):
            return jnp.mean((state.apply_fn(params, x) - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    n = rows * mesh.devices.size
    batch = lambda i: along(mesh, (normal(i, n, 96), normal(100 + i, n, 16)))
    return Script(step, (whole(mesh, state),), batch, lambda state: state[0].opt_state)


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, deterministic):
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1, deterministic=deterministic)(y, y)
        x = x + nn.Dropout(0.1, deterministic=deterministic)(y)
        y = nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=deterministic)(y)


class Transformer(nn.Module):
    vocab: int
    width: int

    @nn.compact
    def __call__(self, tokens, deterministic=False):
        x = nn.Embed(self.vocab, self.width)(tokens)
        x = x + self.param("place", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        for _ in range(2):
            x = Block(self.width)(x, deterministic)
        return nn.Dense(self.vocab)(nn.LayerNorm()(x))


def flax_transformer(mesh: Mesh, width: int = 96, rows: int = 2) -> Script:
    """Dropout with a key as state, clipping, AdamW; state donated, as a dict. Softmax takes no notice of the bias of
    attention's keys."""
    model = Transformer(96, width)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    tokens = jnp.zeros((1, 16), jnp.int32)
    params = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens)
    state = {"params": params, "opt": tx.init(params), "key": jax.random.key(2), "step": jnp.zeros((), jnp.int32)}

    @partial(jax.jit, donate_argnums=(0,))
    def step(state, tokens):
        key, dropout = jax.random.split(state["key"])

        def loss_fn(params):
            logits = model.apply(params, tokens[:, :-1], rngs={"dropout": dropout})
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "key": key, "step": state["step"] + 1}, loss

    def batch(i: int) -> tuple:
        tokens = np.random.default_rng(i).integers(0, 96, (rows * mesh.devices.size, 17)).astype(np.int32)
        return (along(mesh, tokens),)

    return Script(step, (whole(mesh, state),), batch, lambda state: state[0]["opt"], r"\['key'\]\['bias'\]")


def make_layers(seed: int, width: int, n: int) -> list:
    key = jax.random.key(seed)
    return [
        {"w": jax.random.normal(jax.random.fold_in(key, i), (width, width)) / width**0.5, "b": jnp.zeros(width)}
        for i in range(n)
    ]


def _forward(params: list, x: jax.Array) -> jax.Array:
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def squares(params: list, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((_forward(params, x) - y) ** 2)


def _momentum(params: Any, velocity: Any, grads: Any) -> tuple[Any, Any]:
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.05 * v, params, velocity), velocity


def plain_pytree(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """Lists of dicts, momentum by hand, nothing donated."""
    params = make_layers(0, width, 3)
    velocity = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def step(params, velocity, x, y):
        loss, grads = jax.value_and_grad(squares)(params, x, y)
        params, velocity = _momentum(params, velocity, grads)
        return params, velocity, loss

    n = rows * mesh.devices.size
    return Script(
        step, whole(mesh, (params, velocity)), lambda i: along(mesh, (normal(i, n, width), normal(50 + i, n, width)))
    )


def bf16_masters(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """Computation in bf16, weights and moments in f32."""
    params = make_layers(0, width, 3)
    tx = optax.adam(1e-3)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt, x, y):
        def loss_fn(params):
            low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            return jnp.mean((_forward(low, x.astype(jnp.bfloat16)).astype(jnp.float32) - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    n = rows * mesh.devices.size
    state = whole(mesh, (params, tx.init(params)))
    return Script(step, state, lambda i: along(mesh, (normal(i, n, width), normal(50 + i, n, width))))


def accumulation(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """Four micro-batches in a scan, then one update."""
    params = make_layers(0, width, 2)
    tx = optax.adam(1e-3)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt, x, y):
        def one(carry, batch):
            loss, grads = jax.value_and_grad(squares)(params, *batch)
            return jax.tree.map(jnp.add, carry, (loss, grads)), None

        zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (loss, grads), _ = lax.scan(one, zeros, (x, y))
        grads = jax.tree.map(lambda g: g / 4, grads)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss / 4

    n = rows * mesh.devices.size
    sharding = NamedSharding(mesh, P(None, "data"))
    batch = lambda i: put((normal(i, 4, n, width), normal(50 + i, 4, n, width)), sharding)
    return Script(step, whole(mesh, (params, tx.init(params))), batch)


def scan_layers(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """The layers are one stacked array, and a scan goes over them."""
    n_layers = 4
    params = {"w": normal(0, n_layers, width, width) / width**0.5, "b": np.zeros((n_layers, width), np.float32)}
    tx = optax.adam(1e-3)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt, x, y):
        def loss_fn(params):
            out, _ = lax.scan(lambda h, layer: (jnp.tanh(h @ layer["w"] + layer["b"]), None), x, params)
            return jnp.mean((out - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    n = rows * mesh.devices.size
    state = whole(mesh, (params, tx.init(jax.tree.map(jnp.asarray, params))))
    return Script(step, state, lambda i: along(mesh, (normal(i, n, width), normal(50 + i, n, width))))


def loop_in_jit(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """Each call trains several steps in a loop."""
    params = make_layers(0, width, 2)
    tx = optax.adam(1e-3)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt, x, y):
        def one(_, carry):
            params, opt, _ = carry
            loss, grads = jax.value_and_grad(squares)(params, x, y)
            updates, opt = tx.update(grads, opt, params)
            return optax.apply_updates(params, updates), opt, loss

        return lax.fori_loop(0, 3, one, (params, opt, jnp.zeros(())))

    n = rows * mesh.devices.size
    state = whole(mesh, (params, tx.init(params)))
    return Script(step, state, lambda i: along(mesh, (normal(i, n, width), normal(50 + i, n, width))))


class Normed(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Conv(self.width, (3, 3))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        return nn.Dense(8)(x.mean((1, 2)))


def batch_norm(mesh: Mesh, width: int = 32, rows: int = 4) -> Script:
    """Statistics over the whole batch, kept beside the weights. Normalization takes a convolution's bias away again."""
    model, tx = Normed(width), optax.sgd(0.1, momentum=0.9)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    params, stats = variables["params"], variables["batch_stats"]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, stats, opt, x, labels):
        def loss_fn(params):
            logits, new = model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new["batch_stats"]

        (loss, new_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), new_stats, opt, loss

    n = rows * mesh.devices.size
    labels = lambda i: np.random.default_rng(i).integers(0, 8, n).astype(np.int32)
    state = whole(mesh, (params, stats, tx.init(params)))
    batch = lambda i: along(mesh, (normal(i, n, 8, 8, 3), labels(i)))
    return Script(step, state, batch, lambda state: state[2], r"\['Conv_\d'\]\['bias'\]")


def shard_mapped(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """The user's own shard_map with pmean."""
    params = make_layers(0, width, 3)
    tx = optax.adam(1e-3)

    def local(params, opt, x, y):
        loss, grads = jax.value_and_grad(squares)(params, x, y)
        loss, grads = lax.pmean((loss, grads), "data")
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P(), P("data"), P("data")), out_specs=(P(), P(), P()), check_vma=False
    )
    n = rows * mesh.devices.size
    state = whole(mesh, (params, tx.init(params)))
    batch = lambda i: along(mesh, (normal(i, n, width), normal(50 + i, n, width)))
    return Script(jax.jit(mapped, donate_argnums=(0, 1)), state, batch)


def declared(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """in_shardings and out_shardings, state in one tuple, and arguments that nobody placed."""
    params = make_layers(0, width, 3)
    tx = optax.adam(1e-3)
    rep, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    @partial(jax.jit, donate_argnums=(0,), in_shardings=(rep, cut, cut), out_shardings=(rep, rep))
    def step(state, x, y):
        params, opt = state
        loss, grads = jax.value_and_grad(squares)(params, x, y)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    n = rows * mesh.devices.size
    batch = lambda i: (normal(i, n, width), normal(50 + i, n, width))
    return Script(step, ((params, tx.init(params)),), batch, lambda state: state[0][1])


def undeclared(mesh: Mesh, width: int = 96, rows: int = 4) -> Script:
    """State that nobody placed, a batch on the mesh, an unused argument and a static one."""
    params = make_layers(0, width, 3)
    tx = optax.adam(1e-3)

    @partial(jax.jit, static_argnames=("rate",))
    def update(params, opt, unused, x, y, rate):
        loss, grads = jax.value_and_grad(squares)(params, x, y)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, jax.tree.map(lambda u: rate * u, updates)), opt, unused, loss

    n = rows * mesh.devices.size
    batch = lambda i: (*along(mesh, (normal(i, n, width), normal(50 + i, n, width))), 2.0)
    return Script(update, (params, tx.init(params), jnp.ones(3)), batch)


SCRIPTS = {
    f.__name__: f
    for f in (
        flax_mlp,
        flax_transformer,
        plain_pytree,
        bf16_masters,
        accumulation,
        scan_layers,
        loop_in_jit,
        batch_norm,
        shard_mapped,
        declared,
        undeclared,
    )
}
