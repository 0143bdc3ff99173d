"""A decoder in the style of NanoDO: a trainer object around a functional step, micro-batches by `lax.scan`, a dict of
metrics with norms, the cost of the step by `.lower`, an average of the weights, and orbax's `CheckpointManager`."""

import dataclasses
import functools
import json
import os
from typing import Any

import flax
import flax.linen as nn
import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Config:
    workdir: str
    num_devices: int = 8
    num_train_steps: int = 20
    checkpoint_every_steps: int = 12
    eval_every_steps: int = 5
    batch_size: int = 48
    grad_accumulation_steps: int = 2
    V: int = 160
    L: int = 12
    D: int = 64
    F: int = 192
    N: int = 1
    peak_learning_rate: float = 3e-3


class TransformerDo(nn.Module):
    c: Config

    @nn.compact
    def __call__(self, y_BxL):
        c = self.c
        embed = nn.Embed(c.V, c.D, embedding_init=nn.initializers.normal(0.05))
        pos_embed = self.param("pos_embed", nn.initializers.normal(0.02), (c.L, c.D))
        x_BxLxD = embed(y_BxL) + pos_embed
        for _ in range(c.N):
            z_BxLxD = nn.LayerNorm(use_bias=False)(x_BxLxD)
            mask = nn.make_causal_mask(y_BxL)
            attend = nn.MultiHeadDotProductAttention(num_heads=4, use_bias=False, normalize_qk=True)
            x_BxLxD = x_BxLxD + attend(z_BxLxD, mask=mask)
            z_BxLxD = nn.LayerNorm(use_bias=False)(x_BxLxD)
            z_BxLxD = nn.Dense(c.D, use_bias=False)(nn.gelu(nn.Dense(c.F, use_bias=False)(z_BxLxD)))
            x_BxLxD = x_BxLxD + z_BxLxD
        return embed.attend(nn.LayerNorm(use_bias=False)(x_BxLxD))


@flax.struct.dataclass
class TrainState:
    step: jax.Array
    params: Any
    ema: Any
    opt_state: Any


def get_optimizer(c):
    schedule = optax.warmup_cosine_decay_schedule(0.0, c.peak_learning_rate, 4, 40)
    return optax.inject_hyperparams(optax.adamw)(learning_rate=schedule, b2=0.98, weight_decay=1e-2)


def get_in_out(in_BxL):
    """Inputs, targets and their weights; 0 pads."""
    x_BxL = jnp.pad(in_BxL[:, :-1], ((0, 0), (1, 0)))
    return x_BxL, in_BxL, (in_BxL > 0).astype(jnp.float32)


def loss_fn(params, in_BxL, c):
    x_BxL, y_BxL, weights_BxL = get_in_out(in_BxL)
    losses = optax.softmax_cross_entropy_with_integer_labels(TransformerDo(c).apply({"params": params}, x_BxL), y_BxL)
    return jnp.sum(losses * weights_BxL) / weights_BxL.sum()


def train_step(state, in_AxBxL, c, mesh):
    in_AxBxL = jax.lax.with_sharding_constraint(in_AxBxL, NamedSharding(mesh, P(None, "data")))

    def micro_step(carry, in_BxL):
        loss, grads = jax.value_and_grad(loss_fn)(state.params, in_BxL, c)
        return jax.tree.map(jnp.add, carry, (loss, grads)), loss

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params))
    (loss, grads), losses_A = jax.lax.scan(micro_step, zeros, in_AxBxL)
    loss, grads = jax.tree.map(lambda x: x / c.grad_accumulation_steps, (loss, grads))
    updates, opt_state = get_optimizer(c).update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = optax.incremental_update(params, state.ema, step_size=0.05)
    metrics = {
        "train_loss": loss,
        "train_loss_spread": losses_A.max() - losses_A.min(),
        "grad_norm": optax.tree.norm(grads),
        "update_norm": optax.tree.norm(updates),
        "param_norm": optax.tree.norm(params),
        "learning_rate": opt_state.hyperparams["learning_rate"],
    }
    return TrainState(state.step + 1, params, ema, opt_state), metrics


def get_batch(c, seed):
    rng = np.random.default_rng(seed)
    first, by = rng.integers(1, c.V, (c.batch_size, 1)), rng.integers(1, 4, (c.batch_size, 1))
    tokens = (first + by * np.arange(c.L)) % (c.V - 1) + 1
    return tokens.reshape(c.grad_accumulation_steps, -1, c.L).astype(np.int32)


def init_state(c, rng):
    params = TransformerDo(c).init(rng, jnp.ones((1, c.L), jnp.int32))["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, jax.tree.map(jnp.copy, params), get_optimizer(c).init(params))


class Trainer:
    """Holds the state and runs the step."""

    def __init__(self, c, state, mesh):
        self.state, self.init_metrics = state, None
        replicated = NamedSharding(mesh, P())
        self.step_fn = jax.jit(
            functools.partial(train_step, c=c, mesh=mesh),
            in_shardings=(replicated, replicated),
            out_shardings=(replicated, replicated),
            donate_argnames=("state",),
        )
        self.step_fn = ho.zero(self.step_fn)

    def do_step(self, in_AxBxL):
        if self.init_metrics is None:
            cost = self.step_fn.lower(self.state, in_AxBxL).cost_analysis() or {}
            n_params = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))
            self.init_metrics = {"flops_lowered": cost.get("flops", 0.0), "num_params": n_params}
        self.state, metrics = self.step_fn(self.state, in_AxBxL)
        return metrics


def train_and_evaluate(c):
    mesh = Mesh(np.array(jax.devices()[: c.num_devices]), ("data",))
    replicated = NamedSharding(mesh, P())
    state = jax.device_put(init_state(c, jax.random.key(0)), replicated)

    options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=c.checkpoint_every_steps)
    manager = ocp.CheckpointManager(os.path.join(os.path.abspath(c.workdir), "checkpoints"), options=options)
    if manager.latest_step() is not None:
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(abstract))

    trainer = Trainer(c, state, mesh)
    eval_sharding = NamedSharding(mesh, P("data"))
    eval_fn = jax.jit(functools.partial(loss_fn, c=c), in_shardings=(replicated, eval_sharding))
    with open(os.path.join(c.workdir, "metrics.jsonl"), "a", encoding="utf-8") as log:
        for step in range(int(trainer.state.step) + 1, c.num_train_steps + 1):
            metrics = trainer.do_step(get_batch(c, step))
            row = {"step": step, **{name: float(value) for name, value in jax.device_get(metrics).items()}}
            if step == 1:
                row |= trainer.init_metrics
            if step % c.eval_every_steps == 0:
                held_out = jax.device_put(get_batch(c, 1000)[0], eval_sharding)
                row["eval_loss"] = float(eval_fn(trainer.state.params, held_out))
                row["eval_loss_ema"] = float(eval_fn(trainer.state.ema, held_out))
            if manager.should_save(step) and step > 1:
                manager.save(step, args=ocp.args.StandardSave(trainer.state))
                manager.wait_until_finished()
            log.write(json.dumps(row) + "\n")
    manager.close()
    return trainer.state, trainer.step_fn
