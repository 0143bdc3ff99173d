"""A classifier in the style of Haiku's examples: `transform_with_state`, batch norm, an optax chain with a schedule, an
average of the weights that evaluation reads, a `NamedTuple` as train state, and pickled checkpoints."""

import dataclasses
import functools
import json
import os
import pickle
from typing import Any, NamedTuple

import haiku as hk
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
    width: int = 128
    num_classes: int = 16
    learning_rate: float = 0.05


class TrainState(NamedTuple):
    params: Any
    avg_params: Any
    state: Any
    opt_state: Any


def forward(batch, is_training, config):
    x = batch["image"]
    for _ in range(2):
        x = hk.Linear(config.width, with_bias=False)(x)
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training))
        if is_training:
            x = hk.dropout(hk.next_rng_key(), 0.1, x)
    return hk.Linear(config.num_classes)(x)


def make_optimizer(config):
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, 5, 40)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.add_decayed_weights(1e-4),
        optax.trace(decay=0.9, nesterov=True),
        optax.scale_by_schedule(lambda step: -schedule(step)),
    )


def get_batch(config, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, config.num_classes, config.batch_size).astype(np.int32)
    centers = np.random.default_rng(0).standard_normal((config.num_classes, 96))
    image = centers[label] + rng.standard_normal((config.batch_size, 96))
    return {"image": image.astype(np.float32), "label": label}


def init_state(config, net, rng):
    params, state = net.init(rng, get_batch(config, 0), True)
    return TrainState(params, params, state, make_optimizer(config).init(params))


def save_checkpoint(folder, step, train_state):
    with open(os.path.join(folder, f"checkpoint_{step}.pkl"), "wb") as file:
        pickle.dump({"step": step, "train_state": jax.device_get(train_state)}, file)


def restore_checkpoint(folder, train_state):
    names = [name for name in os.listdir(folder) if name.startswith("checkpoint_")]
    if not names:
        return 0, train_state
    with open(os.path.join(folder, max(names)), "rb") as file:
        found = pickle.load(file)
    return found["step"], found["train_state"]


def train_and_evaluate(config):
    mesh = Mesh(np.array(jax.devices()[: config.num_devices]), ("data",))
    replicated, data_sharding = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    net = hk.transform_with_state(functools.partial(forward, config=config))
    optimizer = make_optimizer(config)

    def loss_fn(params, state, rng, batch):
        logits, state = net.apply(params, state, rng, batch, True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), state

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(train_state, rng, batch):
        params, avg_params, state, opt_state = train_state
        (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, state, rng, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        avg_params = optax.incremental_update(params, avg_params, step_size=0.1)
        return TrainState(params, avg_params, state, opt_state), {"loss": loss}

    train_step = ho.zero(train_step)

    @functools.partial(jax.jit, in_shardings=(replicated, replicated, data_sharding))
    def eval_batch(params, state, batch):
        logits, _ = net.apply(params, state, None, batch, False)
        return jnp.mean(jnp.argmax(logits, axis=-1) == batch["label"])

    train_state = init_state(config, net, jax.random.key(0))
    start_step, train_state = restore_checkpoint(config.workdir, train_state)
    # A copy of each, as the average begins as the very weights and the step takes over both.
    train_state = jax.tree.map(jnp.array, train_state)
    train_state = jax.device_put(train_state, replicated)
    rng = jax.random.key(1)

    with open(os.path.join(config.workdir, "metrics.jsonl"), "a", encoding="utf-8") as log:
        for step in range(start_step, config.num_train_steps):
            batch = jax.device_put(get_batch(config, step), data_sharding)
            train_state, scalars = train_step(train_state, jax.random.fold_in(rng, step), batch)
            row = {"step": step + 1, "loss": float(jax.device_get(scalars)["loss"])}
            if (step + 1) % config.eval_every_steps == 0:
                held_out = get_batch(config, 1000)
                row["eval_accuracy"] = float(eval_batch(train_state.avg_params, train_state.state, held_out))
            if (step + 1) % config.checkpoint_every_steps == 0:
                save_checkpoint(config.workdir, step + 1, train_state)
            log.write(json.dumps(row) + "\n")
    return train_state, train_step
