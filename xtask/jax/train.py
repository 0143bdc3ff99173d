#!/usr/bin/env python3
"""Train a small MLP with Adam for two steps on virtual CPU devices: train.py jit|shard_map|pmap [DEVICES].

The three ways in which JAX programs are data-parallel. With XLA_FLAGS="--xla_dump_to=…" it makes the dumps that hlo-opt reads."""
import os
import sys

style = sys.argv[1]
n = int(sys.argv[2]) if len(sys.argv) > 2 else 4
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={n}"
os.environ["JAX_PLATFORMS"] = "cpu"

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

WIDTH, BATCH = 64, 8 * n


def initial_state():
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    w = {"w0": jax.random.normal(keys[0], (WIDTH, WIDTH)) * 0.1, "b0": jnp.zeros(WIDTH)}
    w["w1"] = jax.random.normal(keys[1], (WIDTH, WIDTH)) * 0.1
    return {"w": w, "m": jax.tree.map(jnp.zeros_like, w), "v": jax.tree.map(jnp.zeros_like, w), "t": jnp.zeros((), jnp.int32)}


def loss(w, x, y):
    hidden = jax.nn.relu(x @ w["w0"] + w["b0"])
    return jnp.mean((hidden @ w["w1"] - y) ** 2)


def adam(s, g):
    t = s["t"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, s["m"], g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, s["v"], g)
    c1, c2 = 1 - 0.9 ** t.astype(jnp.float32), 1 - 0.999 ** t.astype(jnp.float32)
    w = jax.tree.map(lambda w, m, v: w - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8), s["w"], m, v)
    return {"w": w, "m": m, "v": v, "t": t}


mesh = Mesh(np.array(jax.devices()), ("d",))
whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
x = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
y = np.roll(x, 1, 1)
state = initial_state()
if style == "jit":

    @functools.partial(jax.jit, in_shardings=(whole, cut, cut), out_shardings=(whole, whole), donate_argnums=0)
    def train_step(s, x, y):
        value, g = jax.value_and_grad(loss)(s["w"], x, y)
        return adam(s, g), value

elif style == "shard_map":

    @functools.partial(jax.jit, donate_argnums=0)
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=(P(), P()))
    def train_step(s, x, y):
        value, g = jax.value_and_grad(lambda w: jax.lax.pmean(loss(w, x, y), "d"))(s["w"])
        return adam(s, g), value

elif style == "pmap":

    @functools.partial(jax.pmap, axis_name="d", donate_argnums=0)
    def train_step(s, x, y):
        value, g = jax.value_and_grad(loss)(s["w"], x, y)
        return adam(s, jax.lax.pmean(g, "d")), jax.lax.pmean(value, "d")

else:
    sys.exit(f"expected jit, shard_map or pmap, found {style}")
if style == "pmap":
    state = jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *a.shape)), state)
    x, y = x.reshape(n, -1, WIDTH), y.reshape(n, -1, WIDTH)
else:
    state, x, y = jax.device_put(state, whole), jax.device_put(x, cut), jax.device_put(y, cut)
for _ in range(2):
    state, value = train_step(state, x, y)
print(style, jax.__version__, np.asarray(value).ravel()[0])
