"""Steps of other libraries round a jitted function: ``flax.nnx.jit``, ``equinox.filter_jit`` and ``torchax``'s ``jax_jit``."""

from __future__ import annotations

from functools import partial

import equinox
import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_scripts import along, mesh_of, normal, whole

WIDTH, N_STEPS = 64, 6


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(4 * WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(jax.nn.gelu(self.norm(self.up(x)))))


def replicate(module, mesh) -> None:
    """Puts all arrays of a module on all devices."""
    whole = NamedSharding(mesh, P())
    nnx.update(module, jax.device_put(nnx.state(module), whole))


def loss_fn(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def nnx_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss


def batches(mesh):
    for i in range(N_STEPS):
        yield along(mesh, (normal(i, 32, WIDTH), normal(50 + i, 32, WIDTH)))


def train_nnx(mesh, step):
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    replicate(model, mesh)
    replicate(optimizer, mesh)
    return [float(step(model, optimizer, x, y)) for x, y in batches(mesh)], model, optimizer


def n_in_shards(tree) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return sum(not leaf.sharding.is_fully_replicated for leaf in leaves)


@pytest.mark.parametrize("options", [{}, {"donate_argnums": (0, 1)}, {"graph": False}, {"graph_updates": False}])
def test_a_step_by_nnx_jit(options):
    mesh = mesh_of(8)
    plain = nnx.jit(nnx_step, **options)
    losses, model, optimizer = train_nnx(mesh, plain)
    step = ho.zero(plain, shard="optimizer", strict=True)
    own_losses, own_model, own_optimizer = train_nnx(mesh, step)
    np.testing.assert_allclose(own_losses, losses, rtol=2e-5)
    for mine, theirs in zip(jax.tree.leaves(nnx.state(own_model)), jax.tree.leaves(nnx.state(model)), strict=True):
        if jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    assert n_in_shards(nnx.state(optimizer)) == 0
    assert n_in_shards(nnx.state(own_optimizer)) >= 4
    assert "arguments are in shards" in str(ho.report(step))
    assert step.unwrapped is plain and step.__name__ == "nnx_step"
    # The original goes on with what is whole, and with what is not.
    again, *_ = train_nnx(mesh, plain)
    assert again == losses
    x, y = next(batches(mesh))
    assert np.isfinite(float(plain(own_model, own_optimizer, x, y)))


def test_a_method_and_off(monkeypatch):
    mesh = mesh_of(8)
    losses, *_ = train_nnx(mesh, nnx.jit(nnx_step))

    class Trainer:
        step = ho.zero(nnx.jit(lambda self, model, optimizer, x, y: nnx_step(model, optimizer, x, y), static_argnums=0))

    own_losses, _, optimizer = train_nnx(mesh, Trainer().step)
    np.testing.assert_allclose(own_losses, losses, rtol=2e-5)
    assert n_in_shards(nnx.state(optimizer)) >= 4
    monkeypatch.setenv("HLO_OPT", "off")
    step = ho.zero(nnx.jit(nnx_step))
    assert train_nnx(mesh, step)[0] == losses
    assert "off" in str(ho.report(step))


class EqxNet(equinox.Module):
    layers: list
    scale: jax.Array
    activation: callable = equinox.field(static=True)

    def __init__(self, key) -> None:
        first, second = jax.random.split(key)
        self.layers = [equinox.nn.Linear(WIDTH, 4 * WIDTH, key=first), equinox.nn.Linear(4 * WIDTH, WIDTH, key=second)]
        self.scale = jnp.ones(())
        self.activation = jax.nn.gelu

    def __call__(self, x):
        return self.scale * self.layers[1](self.activation(self.layers[0](x)))


TX = optax.adam(1e-2)


def eqx_step(model, state, x, y):
    loss, grads = equinox.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2))(model)
    updates, state = TX.update(grads, state, equinox.filter(model, equinox.is_array))
    return equinox.apply_updates(model, updates), state, loss


def train_eqx(mesh, step):
    model = EqxNet(jax.random.key(0))
    state = TX.init(equinox.filter(model, equinox.is_array))
    whole_of = lambda leaf: whole(mesh, leaf) if equinox.is_array(leaf) else leaf
    model, state = jax.tree.map(whole_of, (model, state))
    losses = []
    for x, y in batches(mesh):
        model, state, loss = step(model, state, x, y)
        losses.append(float(loss))
    return losses, model, state


@pytest.mark.parametrize("donate", ["none", "all"])
def test_a_step_by_filter_jit(donate):
    mesh = mesh_of(8)
    plain = equinox.filter_jit(eqx_step, donate=donate)
    losses, model, _ = train_eqx(mesh, plain)
    step = ho.zero(plain, shard="optimizer", strict=True)
    own_losses, own_model, own_state = train_eqx(mesh, step)
    np.testing.assert_allclose(own_losses, losses, rtol=2e-5)
    arrays = lambda tree: jax.tree.leaves(equinox.filter(tree, equinox.is_array))
    for mine, theirs in zip(arrays(own_model), arrays(model), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    assert n_in_shards(own_state) >= 4
    assert step.unwrapped is plain
    assert train_eqx(mesh, plain)[0] == losses


def jax_jit(torch_function):
    """As ``torchax.interop.jax_jit``, with arrays in the place of tensors: torchax is not among the tests' packages."""

    def call_torch(function, *args):
        return function(*args)

    def call_jax(function, *args):
        return function(*args)

    call_torch.__module__ = call_jax.__module__ = "torchax.interop"
    return partial(call_jax, jax.jit(partial(call_torch, torch_function), donate_argnums=(0, 1)))


def torch_step(weights, opt_state, x, y):
    tx = optax.adam(1e-2)
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"] - y) ** 2))(weights)
    updates, opt_state = tx.update(grads, opt_state, weights)
    return optax.apply_updates(weights, updates), opt_state, loss


def train_torch(mesh, step):
    weights = {"up": jnp.asarray(normal(0, WIDTH, WIDTH)), "down": jnp.asarray(normal(1, WIDTH, WIDTH))}
    weights, state = whole(mesh, (weights, optax.adam(1e-2).init(weights)))
    losses = []
    for x, y in batches(mesh):
        weights, state, loss = step(weights, state, x, y)
        losses.append(float(loss))
    return losses, state


def test_a_step_by_torchax():
    mesh = mesh_of(8)
    plain = jax_jit(torch_step)
    step = ho.zero(plain, strict=True, quiet=True)
    losses, _ = train_torch(mesh, plain)
    own_losses, state = train_torch(mesh, step)
    np.testing.assert_allclose(own_losses, losses, rtol=2e-5)
    assert n_in_shards(state) == 4
    assert str(ho.report(step)).startswith("torch_step on 8 devices: 4 of 9 arguments are in shards")
    assert "opt_state[0].mu['up']" in str(ho.report(step))
    with pytest.raises(TypeError, match="found one of torchax.interop.jax_jit: call it once"):
        ho.shardings(step)
    with pytest.raises(AttributeError, match="last_plan: a step of torchax.interop.jax_jit takes tensors; `.inner`"):
        step.last_plan


TAKES = {
    "partitioned by hlo-opt": lambda step: ho.partition(step, mesh=mesh_of(8), strict=True),
    "not parallelized: every one of the 8 devices would repeat the whole step": ho.auto,
}


@pytest.mark.parametrize("said", TAKES)
@pytest.mark.filterwarnings("ignore:.*not parallelized")
def test_partition_and_auto_take_them_too(said):
    mesh = mesh_of(8)
    losses, *_ = train_nnx(mesh, nnx.jit(nnx_step))
    step = TAKES[said](nnx.jit(nnx_step))
    own_losses, *_ = train_nnx(mesh, step)
    np.testing.assert_allclose(own_losses, losses, rtol=2e-5)
    # The generator of the dropout is state too, and a key is no array that can be cut.
    assert said in str(ho.report(step))


def test_what_takes_other_arguments_says_so():
    step = ho.zero(nnx.jit(nnx_step))
    with pytest.raises(TypeError, match="take the shardings of the arrays that it returns"):
        ho.shardings(step)
    with pytest.raises(TypeError, match="take the shardings of the arrays that it returns"):
        ho.init(lambda: None, step)
    with pytest.raises(TypeError, match="found a step by zero"):
        ho.partition(ho.zero(jax.jit(lambda x: x)))
    with pytest.raises(TypeError, match="found a step by zero"):
        ho.zero(step)
    with pytest.raises(TypeError, match="expected what jax.jit, nnx.jit, equinox.filter_jit or torchax.interop.jax_jit returned"):
        ho.zero(nnx.vmap(lambda x: x))
