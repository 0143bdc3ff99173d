"""A small Transformer in the style of Equinox's examples: a model that is a tree, `eqx.filter_jit` with donation, state
by `eqx.filter`, `eqx.nn.inference_mode` for evaluation, and `eqx.tree_serialise_leaves`."""

import dataclasses
import glob
import json
import os

import equinox as eqx
import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Config:
    workdir: str
    num_devices: int = 8
    num_train_steps: int = 20
    checkpoint_every_steps: int = 12
    eval_every_steps: int = 5
    batch_size: int = 24
    vocab_size: int = 131
    length: int = 12
    width: int = 68
    learning_rate: float = 3e-3


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, width, key):
        key1, key2 = jax.random.split(key)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(4, width, key=key1)
        self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=key2)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, key):
        y = jax.vmap(self.norm1)(x)
        mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
        x = x + self.dropout(self.attention(y, y, y, mask=mask), key=key)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm2)(x))


class Model(eqx.Module):
    embedding: eqx.nn.Embedding
    places: jax.Array
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, config, key):
        keys = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(config.vocab_size, config.width, key=keys[0])
        self.places = 0.02 * jax.random.normal(keys[1], (config.length, config.width))
        self.blocks = [Block(config.width, k) for k in keys[2:3]]
        self.head = eqx.nn.Linear(config.width, config.vocab_size, key=keys[3])

    def __call__(self, tokens, key=None):
        x = jax.vmap(self.embedding)(tokens) + self.places
        keys = [None] * len(self.blocks) if key is None else jax.random.split(key, len(self.blocks))
        for block, k in zip(self.blocks, keys):
            x = block(x, k)
        return jax.vmap(self.head)(x)


def mean_loss(model, x, y, keys):
    logits = jax.vmap(model)(x, keys) if keys is not None else jax.vmap(model)(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def make_optimizer(config):
    return optax.chain(optax.clip_by_global_norm(1.0), optax.lion(config.learning_rate / 3, weight_decay=0.1))


@eqx.filter_jit
def evaluate(model, x, y):
    return mean_loss(eqx.nn.inference_mode(model), x, y, None)


def get_batch(config, seed):
    rng = np.random.default_rng(seed)
    first, by = rng.integers(0, config.vocab_size, (config.batch_size, 1)), rng.integers(1, 4, (config.batch_size, 1))
    tokens = (first + by * np.arange(config.length + 1)) % config.vocab_size
    return tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)


def init_state(config):
    model = Model(config, jax.random.key(0))
    return model, make_optimizer(config).init(eqx.filter(model, eqx.is_inexact_array))


def train_and_evaluate(config):
    mesh = Mesh(np.array(jax.devices()[: config.num_devices]), ("data",))
    replicated, data_sharding = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    optim = make_optimizer(config)

    @eqx.filter_jit(donate="all-except-first")
    def make_step(batch, model, opt_state, key):
        x, y = batch
        keys = jax.random.split(key, x.shape[0])
        loss, grads = eqx.filter_value_and_grad(mean_loss)(model, x, y, keys)
        updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, jax.random.split(key)[0], loss

    make_step = ho.zero(make_step)

    model, opt_state = init_state(config)
    key, start_step = jax.random.key_data(jax.random.key(1)), 0
    saved = sorted(glob.glob(os.path.join(config.workdir, "*.eqx")))
    if saved:
        start_step = int(os.path.basename(saved[-1]).removesuffix(".eqx"))
        model, opt_state, key = eqx.tree_deserialise_leaves(saved[-1], (model, opt_state, key))
    state = (model, opt_state, jax.random.wrap_key_data(key))
    model, opt_state, key = eqx.filter_shard(state, replicated)

    with open(os.path.join(config.workdir, "metrics.jsonl"), "a", encoding="utf-8") as log:
        for step in range(start_step, config.num_train_steps):
            batch = eqx.filter_shard(jax.tree.map(jnp.asarray, get_batch(config, step)), data_sharding)
            model, opt_state, key, loss = make_step(batch, model, opt_state, key)
            row = {"step": step + 1, "loss": loss.item()}
            if (step + 1) % config.eval_every_steps == 0:
                held_out = jax.device_put(get_batch(config, 1000), data_sharding)
                row["eval_loss"] = evaluate(model, *held_out).item()
            if (step + 1) % config.checkpoint_every_steps == 0:
                path = os.path.join(config.workdir, f"{step + 1:06}.eqx")
                eqx.tree_serialise_leaves(path, (model, opt_state, jax.random.key_data(key)))
            log.write(json.dumps(row) + "\n")
    return (model, opt_state), make_step
