"""A language model in the style of Flax's `lm1b` example: linen, `TrainState`, a schedule with warm-up, label
smoothing, `jax.jit` with shardings in and out over a mesh of three axes, and `flax.training.checkpoints`."""

import dataclasses
import json
import os

import flax.linen as nn
import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import checkpoints, train_state
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
    vocab_size: int = 192
    max_len: int = 16
    emb_dim: int = 96
    mlp_dim: int = 192
    num_layers: int = 1
    learning_rate: float = 3e-3
    warmup_steps: int = 5
    label_smoothing: float = 0.1
    dropout_rate: float = 0.1


class DecoderBlock(nn.Module):
    config: Config
    deterministic: bool

    @nn.compact
    def __call__(self, x, mask):
        cfg = self.config
        y = nn.LayerNorm(use_bias=False)(x)
        y = nn.MultiHeadDotProductAttention(num_heads=4, use_bias=False, deterministic=self.deterministic)(y, mask=mask)
        x = x + nn.Dropout(cfg.dropout_rate, deterministic=self.deterministic)(y)
        y = nn.relu(nn.Dense(cfg.mlp_dim)(nn.LayerNorm(use_bias=False)(x)))
        y = nn.Dropout(cfg.dropout_rate, deterministic=self.deterministic)(y)
        return x + nn.Dense(cfg.emb_dim)(y)


class TransformerLM(nn.Module):
    config: Config
    deterministic: bool = False

    @nn.compact
    def __call__(self, inputs):
        cfg = self.config
        shifted = jnp.pad(inputs, ((0, 0), (1, 0)))[:, :-1]
        embed = nn.Embed(cfg.vocab_size, cfg.emb_dim, embedding_init=nn.initializers.normal(0.05))
        places = self.param("pos_embedding", nn.initializers.normal(0.02), (1, cfg.max_len, cfg.emb_dim))
        x = embed(shifted) + places[:, : inputs.shape[1]]
        mask = nn.make_causal_mask(inputs)
        for _ in range(cfg.num_layers):
            x = DecoderBlock(cfg, self.deterministic)(x, mask)
        return embed.attend(nn.LayerNorm(use_bias=False)(x))


def create_learning_rate_schedule(learning_rate, warmup_steps):
    decay = lambda count: learning_rate * jnp.sqrt(warmup_steps / (count + warmup_steps))
    warmup = optax.linear_schedule(0.0, learning_rate, warmup_steps)
    return optax.join_schedules([warmup, decay], boundaries=[warmup_steps])


def weighted_cross_entropy(logits, targets, weights, label_smoothing=0.0):
    confidence, rest = 1.0 - label_smoothing, label_smoothing / (logits.shape[-1] - 1)
    soft = jnp.where(jax.nn.one_hot(targets, logits.shape[-1]) > 0, confidence, rest)
    return -jnp.sum(jnp.sum(soft * nn.log_softmax(logits), axis=-1) * weights)


def compute_metrics(logits, targets, weights):
    return {
        "loss": weighted_cross_entropy(logits, targets, weights),
        "accuracy": jnp.sum((jnp.argmax(logits, axis=-1) == targets) * weights),
        "denominator": weights.sum(),
    }


def train_step(state, batch, config, learning_rate_fn, label_smoothing=0.0, dropout_rng=None):
    inputs = batch["inputs"]
    weights = jnp.where(inputs > 0, 1.0, 0.0)
    dropout_rng = jax.random.fold_in(dropout_rng, state.step)

    def loss_fn(params):
        logits = TransformerLM(config).apply({"params": params}, inputs, rngs={"dropout": dropout_rng})
        loss = weighted_cross_entropy(logits, inputs, weights, label_smoothing)
        return loss / weights.sum(), logits

    (_, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    metrics = compute_metrics(logits, inputs, weights)
    metrics["learning_rate"] = learning_rate_fn(state.step)
    return state.apply_gradients(grads=grads), metrics


def eval_step(params, batch, config):
    inputs = batch["inputs"]
    logits = TransformerLM(config, deterministic=True).apply({"params": params}, inputs)
    return compute_metrics(logits, inputs, jnp.where(inputs > 0, 1.0, 0.0))


def get_batch(config, seed):
    """Sequences that count up in steps of one to three, padded at their ends."""
    rng = np.random.default_rng(seed)
    first, by = rng.integers(1, config.vocab_size, (config.batch_size, 1)), rng.integers(1, 4, (config.batch_size, 1))
    tokens = (first + by * np.arange(config.max_len)) % (config.vocab_size - 1) + 1
    lengths = rng.integers(config.max_len // 2, config.max_len + 1, (config.batch_size, 1))
    return {"inputs": np.where(np.arange(config.max_len) < lengths, tokens, 0).astype(np.int32)}


def evaluate(jit_eval_step, params, config, data_sharding, num_eval_steps=2):
    batches = [jax.device_put(get_batch(config, 1000 + i), data_sharding) for i in range(num_eval_steps)]
    sums = [jit_eval_step(params, batch, config) for batch in batches]
    sums = jax.tree.map(lambda *parts: float(np.sum(parts)), *jax.device_get(sums))
    denominator = sums.pop("denominator")
    return {f"eval_{name}": value / denominator for name, value in sums.items()}


def init_state(config, rng, learning_rate_fn):
    model = TransformerLM(config, deterministic=True)
    params = model.init(rng, jnp.ones((1, config.max_len), jnp.int32))["params"]
    tx = optax.adamw(learning_rate_fn, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1)
    return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)


def train_and_evaluate(config):
    devices = np.array(jax.devices()[: config.num_devices]).reshape(-1, 1, 1)
    mesh = Mesh(devices, ("data", "fsdp", "tensor"))
    replicated, data_sharding = NamedSharding(mesh, P()), NamedSharding(mesh, P(("data", "fsdp")))

    init_rng, dropout_rng = jax.random.split(jax.random.key(0))
    learning_rate_fn = create_learning_rate_schedule(config.learning_rate, config.warmup_steps)
    state = init_state(config, init_rng, learning_rate_fn)
    state = checkpoints.restore_checkpoint(config.workdir, state)
    start_step = int(state.step)
    state = jax.device_put(state, replicated)
    state_shardings = jax.tree.map(lambda _: replicated, state)

    jit_train_step = jax.jit(
        train_step,
        in_shardings=(state_shardings, data_sharding, None),
        out_shardings=(state_shardings, None),
        static_argnums=(2, 3, 4),
        donate_argnums=0,
    )
    jit_train_step = ho.zero(jit_train_step)
    jit_eval_step = jax.jit(eval_step, in_shardings=(state_shardings.params, data_sharding), static_argnums=2)

    with open(os.path.join(config.workdir, "metrics.jsonl"), "a", encoding="utf-8") as log:
        for step in range(start_step, config.num_train_steps):
            batch = jax.device_put(get_batch(config, step), data_sharding)
            state, metrics = jit_train_step(
                state, batch, config, learning_rate_fn, config.label_smoothing, dropout_rng
            )
            metrics = jax.device_get(metrics)
            row = {"step": step + 1, "loss": float(metrics["loss"] / metrics["denominator"])}
            row["learning_rate"] = float(metrics["learning_rate"])
            if (step + 1) % config.eval_every_steps == 0:
                row |= evaluate(jit_eval_step, state.params, config, data_sharding)
            if (step + 1) % config.checkpoint_every_steps == 0:
                checkpoints.save_checkpoint(config.workdir, state, step + 1, keep=3)
            log.write(json.dumps(row) + "\n")
    return state, jit_train_step
