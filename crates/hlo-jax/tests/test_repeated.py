"""Steps in which some devices compute the gradients and the others repeat their work: microbatches that XLA cuts another way."""

from __future__ import annotations

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

TX = optax.adam(1e-3)


def loss_fn(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)


def make_step(constraint):
    def step(params, state, x, y):
        parts = x.reshape(4, -1, x.shape[-1]), y.reshape(4, -1, y.shape[-1])
        if constraint is not None:
            parts = jax.lax.with_sharding_constraint(parts, constraint)

        def body(sums, part):
            loss, grads = jax.value_and_grad(loss_fn)(params, *part)
            return jax.tree.map(jnp.add, sums, grads), loss

        sums, losses = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), parts)
        updates, state = TX.update(jax.tree.map(lambda leaf: leaf / 4, sums), state, params)
        return optax.apply_updates(params, updates), state, losses.mean()

    return step


def run(step, mesh):
    rng = np.random.default_rng(0)
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    shapes = {"a": (256, 512), "b": (512, 64)}
    params = {name: 0.05 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    params = jax.device_put(params, whole)
    state = jax.device_put(TX.init(params), whole)
    x = jax.device_put(rng.standard_normal((64, 256), np.float32), cut)
    y = jax.device_put(rng.standard_normal((64, 64), np.float32), cut)
    for _ in range(3):
        params, state, loss = step(params, state, x, y)
    return params, state, loss


@pytest.mark.parametrize("is_constrained", [False, True])
def test_state_lies_over_all_devices_that_hold_the_same(is_constrained, capfd):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    step = make_step(NamedSharding(mesh, P(None, mesh.axis_names)) if is_constrained else None)
    params, _, loss = run(jax.jit(step), mesh)
    capfd.readouterr()
    found, state, found_loss = run(ho.zero(jax.jit(step)), mesh)
    line = capfd.readouterr().err
    np.testing.assert_allclose(float(found_loss), float(loss), rtol=1e-5)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-4, atol=1e-5)
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert all(leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes for leaf in moments)
    repeated = (
        "; 2 of 8 devices compute each gradient and the others repeat their work: keep the batch cut over all of them, microbatches by "
        "xs = jax.lax.with_sharding_constraint(xs, NamedSharding(mesh, P(None, mesh.axis_names)))"
    )
    assert (repeated in line) != is_constrained, line
