"""An image classifier in the style of Flax NNX's guides: `nnx.Optimizer`, `nnx.jit` with modules that change in place,
batch norm, dropout with its own stream of keys, `nnx.MultiMetric`, and checkpoints by orbax."""

import dataclasses
import json
import os

import hlo_opt.jax as ho
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
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
    learning_rate: float = 2e-3


class CNN(nnx.Module):
    def __init__(self, *, rngs):
        self.conv1 = nnx.Conv(1, 16, kernel_size=(3, 3), strides=2, use_bias=False, rngs=rngs)
        self.batch_norm1 = nnx.BatchNorm(16, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, kernel_size=(3, 3), use_bias=False, rngs=rngs)
        self.batch_norm2 = nnx.BatchNorm(32, rngs=rngs)
        self.linear1 = nnx.Linear(7 * 7 * 32, 64, rngs=rngs)
        self.dropout = nnx.Dropout(rate=0.25, rngs=rngs)
        self.linear2 = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.gelu(self.batch_norm1(self.conv1(x)))
        x = nnx.gelu(self.batch_norm2(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)
        x = self.dropout(nnx.gelu(self.linear1(x)))
        return self.linear2(x)


def loss_fn(model, batch):
    logits = model(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits=logits, labels=batch["label"]).mean()
    return loss, logits


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, grads)


@nnx.jit
def eval_step(model, metrics, batch):
    loss, logits = loss_fn(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])


def get_batch(config, sharding, seed):
    """Noise, with a bright row at the place of the label."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 10, config.batch_size).astype(np.int32)
    image = rng.standard_normal((config.batch_size, 14, 14, 1)).astype(np.float32)
    image[np.arange(config.batch_size), label + 2] += 1.5
    return jax.device_put({"image": image, "label": label}, sharding)


def init_state(config):
    model = CNN(rngs=nnx.Rngs(params=0, dropout=1))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(config.learning_rate, 0.9))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def pure_state(model, optimizer):
    """Arrays alone, keys as numbers, for a checkpoint."""
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    numbers = lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf
    return jax.tree.map(numbers, nnx.to_pure_dict(nnx.state((model, optimizer))))


def set_state(model, optimizer, pure):
    state = nnx.state((model, optimizer))
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    as_before = lambda old, new: jax.random.wrap_key_data(new) if is_key(old) else new
    pure = jax.tree.map(as_before, nnx.to_pure_dict(state), pure)
    nnx.replace_by_pure_dict(state, pure)
    nnx.update((model, optimizer), state)


def train_and_evaluate(config):
    mesh = Mesh(np.array(jax.devices()[: config.num_devices]), ("data",))
    replicated, data_sharding = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    step_fn = train_step
    step_fn = ho.zero(step_fn)

    model, optimizer = init_state(config)
    nnx.update((model, optimizer), jax.device_put(nnx.state((model, optimizer)), replicated))
    average = nnx.metrics.Average
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=average("loss"))

    folder = os.path.join(os.path.abspath(config.workdir), "checkpoints")
    checkpointer, start_step = ocp.StandardCheckpointer(), 0
    if os.path.isdir(folder):
        start_step = max(int(name) for name in os.listdir(folder))
        target = pure_state(model, optimizer)
        set_state(model, optimizer, checkpointer.restore(os.path.join(folder, str(start_step)), target))

    with open(os.path.join(config.workdir, "metrics.jsonl"), "a", encoding="utf-8") as log:
        for step in range(start_step, config.num_train_steps):
            model.train()
            step_fn(model, optimizer, metrics, get_batch(config, data_sharding, step))
            row = {"step": step + 1, **{name: float(value) for name, value in metrics.compute().items()}}
            metrics.reset()
            if (step + 1) % config.eval_every_steps == 0:
                model.eval()
                for i in range(2):
                    eval_step(model, metrics, get_batch(config, data_sharding, 1000 + i))
                row |= {f"eval_{name}": float(value) for name, value in metrics.compute().items()}
                metrics.reset()
            if (step + 1) % config.checkpoint_every_steps == 0:
                checkpointer.save(os.path.join(folder, str(step + 1)), pure_state(model, optimizer))
                checkpointer.wait_until_finished()
            log.write(json.dumps(row) + "\n")
    return (model, optimizer), step_fn
