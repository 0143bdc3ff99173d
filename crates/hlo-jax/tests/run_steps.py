"""A training script for the tests of several processes: ``python run_steps.py ARGUMENTS`` prints its losses as JSON.

With ``--process`` it is one of ``--processes`` that train together, each with its share of eight CPU devices.
"""

import argparse
import json
import os
import warnings

parser = argparse.ArgumentParser()
parser.add_argument("--shard", default="parameters")
parser.add_argument("--process", type=int, default=0)
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--port", type=int)
parser.add_argument("--unwrapped", action="store_true")
parser.add_argument("--pipeline", help="enable this; nothing is donated then, and the step is not wrapped")
options = parser.parse_args()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // options.processes}"

import hlo_opt.jax as ho  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
if options.processes > 1:
    jax.distributed.initialize(f"localhost:{options.port}", options.processes, options.process)
mesh = Mesh(np.array(jax.devices()), ("data",))
whole, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
tx = optax.adam(1e-2)


def put(array, sharding):
    """A global array of which each process gives its part."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def step(params, opt, x, y, key):
    def loss_of(p):
        hidden = jnp.tanh(x @ p["w"]) * jax.random.bernoulli(key, 0.9, (96,))
        return jnp.mean((hidden @ p["v"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


params = {"w": normal(0, 96, 96) / 10, "v": normal(1, 96, 8) / 10}
opt = jax.tree.map(lambda leaf: put(np.asarray(leaf), whole), tx.init(params))
params = jax.tree.map(lambda leaf: put(leaf, whole), params)
step = jax.jit(step, donate_argnums=() if options.pipeline else (0, 1))
losses = []
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    if options.pipeline:
        ho.enable(options.pipeline, strict=True)
    elif not options.unwrapped:
        step = ho.zero(step, shard=options.shard)
    for i in range(4):
        # Each process has all rows of `y`, as a warning of `ho.zero` advises for arrays of NumPy's, and a key of its own device.
        y = jax.device_put(normal(9 + i, 48, 8), cut)
        params, opt, loss = step(params, opt, put(normal(2 + i, 48, 96), cut), y, jax.random.key(i))
        losses.append(float(loss))
held = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves((params, opt))]
said = [str(warning.message) for warning in warned]
n_changed = [level for level, _ in ho.hooked().lines].count("change")
print(json.dumps({"losses": losses, "held": held, "hits": len(hits), "said": said, "n_changed": n_changed}))
