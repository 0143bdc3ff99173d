"""``auto``: steps that say nothing of shardings, cut over 8 devices by a search: the same losses as on one device."""

from __future__ import annotations

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tensor_parallel import OPTIMIZER, params_of, step_of, words_of

N_STEPS = 5


def assert_alike(own, theirs, limit):
    for (path, mine), other in zip(jax.tree.leaves_with_path(own), jax.tree.leaves(theirs), strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype, path
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), atol=limit, rtol=0, err_msg=str(path))


def wide_step():
    """A perceptron that is wide enough for cutting to pay."""
    optimizer = optax.adam(1e-3)

    def loss(params, x, y):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer)
        return jnp.mean((x @ params[-1] - y) ** 2)

    @jax.jit
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    keys = jax.random.split(jax.random.key(0), 4)
    params = [0.03 * jax.random.normal(keys[0], (256, 2048)), 0.02 * jax.random.normal(keys[1], (2048, 2048))]
    params.append(0.02 * jax.random.normal(keys[2], (2048, 17)))
    x = jax.random.normal(keys[3], (1024, 256))
    return step, params, optimizer.init(params), x, x[:, :17] * 0.5


def recommender_step():
    """Embeddings of several tables, and a small perceptron behind them."""
    rows, width, n_tables = 20_000, 64, 4

    def loss(params, ids, y):
        parts = [jnp.take(table, ids[:, k], axis=0, mode="clip") for k, table in enumerate(params["tables"])]
        x = jax.nn.relu(jnp.concatenate(parts, axis=1) @ params["hidden"])
        return jnp.mean((jax.nn.sigmoid(x @ params["out"])[:, 0] - y) ** 2)

    @jax.jit
    def step(params, ids, y):
        value, grads = jax.value_and_grad(loss)(params, ids, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape) * 0.1, jnp.float32)
    params = {
        "tables": [draw(rows, width) for _ in range(n_tables)],
        "hidden": draw(n_tables * width, 256),
        "out": draw(256, 1),
    }
    ids = jnp.asarray(rng.integers(0, rows, (1024, n_tables)), jnp.int32)
    return step, params, ids, jnp.asarray(rng.random(1024), jnp.float32)


def test_a_wide_perceptron_trains_as_on_one_device():
    step, params, state, x, y = wide_step()
    auto = ho.auto(step, machine="h100", strict=True)
    own, own_state, theirs, their_state = params, state, params, state
    for _ in range(N_STEPS):
        own, own_state, mine = auto(own, own_state, x, y)
        theirs, their_state, other = step(theirs, their_state, x, y)
        np.testing.assert_allclose(float(mine), float(other), rtol=1e-5)
    assert_alike(own, theirs, 1e-4)
    (whole, planned) = ho.report(auto).ways
    assert planned.step_s < 0.5 * whole.step_s, "eight devices that all do the same, and the plan"
    given, results = auto.shardings(params, state, x, y)
    assert any(not sharding.is_fully_replicated for sharding in jax.tree.leaves(given))
    # What the plan says of arguments and results works without this package.
    plain = jax.jit(step.__wrapped__, in_shardings=given, out_shardings=results)
    again, _, value = plain(params, state, x, y)
    np.testing.assert_allclose(float(value), float(step(params, state, x, y)[2]), rtol=1e-5)
    assert [leaf.sharding for leaf in again] == jax.tree.leaves(results[0])


def test_a_step_that_is_too_small_is_not_parallelized():
    step = step_of()
    auto = ho.auto(step, machine="h100", effort=0.02)
    # The step donates its state, so each run has its own.
    own, theirs = params_of(), params_of()
    own_state, their_state = OPTIMIZER.init(own), OPTIMIZER.init(theirs)
    said = (
        "not parallelized: every one of the 8 devices would repeat .* predicted for h100, .* is predicted to be faster"
    )
    with pytest.warns(UserWarning, match=f"train_step runs as it was: {said}"):
        own, own_state, mine = auto(own, own_state, words_of(0))
    theirs, their_state, other = step(theirs, their_state, words_of(0))
    assert float(mine) == float(other)
    assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(own))
    assert "not parallelized" in str(ho.report(auto))
    with pytest.raises(ho.PartitionError, match="no shardings: not parallelized"):
        auto.shardings(own, own_state, words_of(1))
    with pytest.raises(ho.PartitionError, match="not parallelized"):
        ho.auto(step, machine="h100", effort=0.02, strict=True)(own, own_state, words_of(1))


def test_a_recommender_trains_as_on_one_device():
    step, params, ids, y = recommender_step()
    auto = ho.auto(step, machine="h100", memory_limit=8 << 20, strict=True)
    own = theirs = params
    for _ in range(N_STEPS):
        own, mine = auto(own, ids, y)
        theirs, other = step(theirs, ids, y)
        np.testing.assert_allclose(float(mine), float(other), rtol=1e-5)
    assert_alike(own, theirs, 1e-5)
    # Four tables of 5.1 MB fit 8 MiB in shards alone.
    for table in own["tables"]:
        assert table.addressable_shards[0].data.nbytes * 4 <= table.nbytes


def test_branches_that_are_alike_train_as_on_one_device():
    optimizer = optax.adam(1e-3)

    def chain(layers, x):
        for layer in layers:
            x = jnp.tanh(x @ layer)
        return x

    def loss(params, x, y):
        return jnp.mean((chain(params[0], x[0]) + chain(params[1], x[1]) - y) ** 2)

    @jax.jit
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    keys = jax.random.split(jax.random.key(1), 7)
    params = [[0.05 * jax.random.normal(keys[3 * b + k], (512, 512)) for k in range(3)] for b in range(2)]
    x = jax.random.normal(keys[6], (2, 48, 512))
    # Whole on each device the step would take 36 MiB.
    auto = ho.auto(step, machine="h100", memory_limit="16MiB", effort=0.02, strict=True)
    own, own_state, theirs, their_state = params, optimizer.init(params), params, optimizer.init(params)
    for _ in range(N_STEPS):
        own, own_state, mine = auto(own, own_state, x, x[0] - x[1])
        theirs, their_state, other = step(theirs, their_state, x, x[0] - x[1])
        np.testing.assert_allclose(float(mine), float(other), rtol=1e-5)
    assert_alike(own, theirs, 1e-4)
    assert ho.report(auto).ways[1].peak_bytes <= 16 << 20
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves((own, own_state)))


def test_a_limit_that_no_plan_keeps_is_said():
    step, params, ids, y = recommender_step()
    with pytest.raises(ho.PartitionError, match="no plan found"):
        ho.auto(step, memory_limit=1 << 20, strict=True)(params, ids, y)


def test_wrong_options_are_refused():
    step, *_ = recommender_step()
    with pytest.raises(ValueError, match="memory_limit: expected a number of bytes"):
        ho.auto(step, memory_limit=0)
    with pytest.raises(ValueError, match="devices: expected two or more, found 1"):
        ho.auto(step, devices=jax.devices()[:1])
