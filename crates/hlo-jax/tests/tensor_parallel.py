"""A small Transformer without annotations. :data:`RULES` cut its arguments for tensor and data parallelism."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HEADS, LENGTH, ROWS, WORDS = 64, 4, 16, 8, 96

#: Heads, hidden units and words are cut over `model`, as Megatron cuts them; moments follow the weights.
RULES = [
    (r"\['(q|k|v|up)'\]$", P(None, "model")),
    (r"\['(out|down)'\]$", P("model", None)),
    (r"\['table'\]$", P("model", None)),
    (r"^\[2\]", P("data")),
]
OPTIMIZER = optax.adam(1e-3)


def mesh_of(n_data: int, n_model: int) -> Mesh:
    return Mesh(np.array(jax.devices()[: n_data * n_model]).reshape(n_data, n_model), ("data", "model"))


def params_of(seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    matrix = lambda *shape: jnp.asarray(rng.standard_normal(shape) * shape[0] ** -0.5, jnp.float32)
    layer = lambda: {
        **{name: matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "out")},
        "up": matrix(WIDTH, 4 * WIDTH),
        "down": matrix(4 * WIDTH, WIDTH),
        "scale": jnp.ones(WIDTH),
    }
    return {"table": matrix(WORDS, WIDTH), "layers": [layer(), layer()]}


def loss_of(params: dict, words: jax.Array, constrain=lambda x, spec: x) -> jax.Array:
    x = params["table"][words[:, :-1]]
    for layer in params["layers"]:
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * layer["scale"]
        heads = lambda w, normed=normed: (normed @ w).reshape(*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = heads(layer["q"]), heads(layer["k"]), heads(layer["v"])
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + mixed @ layer["out"]
        x = x + constrain(jax.nn.gelu(x @ layer["up"]), P("data", None, "model")) @ layer["down"]
    logits = x @ params["table"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 1:]).mean()


def step_of(constrain=lambda x, spec: x):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, moments, words):
        loss, gradients = jax.value_and_grad(functools.partial(loss_of, constrain=constrain))(params, words)
        updates, moments = OPTIMIZER.update(gradients, moments)
        return optax.apply_updates(params, updates), moments, loss

    return train_step


def words_of(number: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1000 + number).integers(0, WORDS, (ROWS, LENGTH + 1)), jnp.int32)


def sharding_of(path, mesh: Mesh, argument: int) -> NamedSharding:
    """How the rules cut a leaf of an argument."""
    name = f"[{argument}]" + jax.tree_util.keystr(path)
    return NamedSharding(mesh, next((spec for pattern, spec in RULES if re.search(pattern, name)), P()))


def placed(tree, mesh: Mesh, argument: int):
    """The arrays as the rules cut them, for a step whose arguments say it."""
    return jax.tree.map_with_path(lambda path, leaf: jax.device_put(leaf, sharding_of(path, mesh, argument)), tree)


def described(tree, mesh: Mesh, argument: int):
    """The same of arrays that nobody has made."""

    def one(path, leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding_of(path, mesh, argument))

    return jax.tree.map_with_path(one, tree)
