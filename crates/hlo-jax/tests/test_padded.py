"""Leaves of which no dim is a multiple of the devices: held in shards, and shown as what they are."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from hlo_opt.jax import sharding
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_scripts import along, mesh_of, normal, whole

#: No dim of these is a multiple of 2, 3, 7 or 8; the last two are too small to be padded, or scalars.
SHAPES = {"rows": (1003, 331), "columns": (331, 67), "flat": (13, 17, 47), "small": (47, 7), "bias": (331,)}
DEVICES = [pytest.param(n, marks=[] if n == 8 else [pytest.mark.more]) for n in (2, 3, 7, 8)]


def make(n_devices: int = 8, shard: str = "parameters", dtype=jnp.float32, wrapped: bool = True):
    mesh = mesh_of(n_devices)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def loss_fn(params, x):
        hidden = jnp.tanh(x @ params["rows"] + params["bias"]) @ params["columns"]
        sums = jnp.tanh(hidden[:, :13]) @ params["flat"].reshape(13, -1)
        return jnp.mean(sums**2) + jnp.mean((hidden[:, :47] @ params["small"] - 1) ** 2)

    def step(params, opt, x):
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def init():
        params = {name: jnp.asarray(normal(n, *s) / 10, dtype) for n, (name, s) in enumerate(SHAPES.items())}
        return params, tx.init(params)

    jitted = jax.jit(step, donate_argnums=(0, 1))
    batch = lambda i: along(mesh, (normal(100 + i, 2 * n_devices, 1003).astype(dtype),))
    return mesh, ho.zero(jitted, strict=True, shard=shard) if wrapped else jitted, init, batch


def train(step, state, batch, numbers):
    losses = []
    for i in numbers:
        *state, loss = step(*state, *batch(i))
        losses.append(float(loss))
    return losses, tuple(state)


def held_bytes(leaf) -> int:
    """What a leaf takes on the first device."""
    array = leaf.held if isinstance(leaf, ho.PaddedArray) else leaf
    return array.addressable_shards[0].data.nbytes


def assert_near(tree, expected, atol=2e-5):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for path, leaf in jax.tree.leaves_with_path(tree):
        of_expected = dict(jax.tree.leaves_with_path(expected))[path]
        assert leaf.shape == of_expected.shape and leaf.dtype == of_expected.dtype, jax.tree_util.keystr(path)
        np.testing.assert_allclose(
            np.asarray(leaf, np.float32), np.asarray(of_expected, np.float32), atol=atol, err_msg=str(path)
        )


def test_one_leaf_is_replaced_between_steps():
    mesh, step, init, batch = make(shard="optimizer")
    _, (params, opt) = train(step, whole(mesh, init()), batch, range(1))
    _, plain, *_ = make(wrapped=False)
    _, (plain_params, plain_opt) = train(plain, whole(mesh, init()), batch, range(1))

    def reset(opt):
        """Adam's first moment of one weight begins anew; all else stays as it is held."""
        is_reset = lambda path: ".mu" in jax.tree_util.keystr(path) and "columns" in jax.tree_util.keystr(path)
        zeros = lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), whole(mesh, jnp.ones(1)).sharding)
        return jax.tree.map_with_path(lambda path, leaf: zeros(leaf) if is_reset(path) else leaf, opt)

    assert sum(isinstance(leaf, ho.PaddedArray) for leaf in jax.tree.leaves(reset(opt))) >= 2
    losses, state = train(step, (params, reset(opt)), batch, range(1, 3))
    expected, plain_state = train(plain, (plain_params, reset(plain_opt)), batch, range(1, 3))
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert_near(state, plain_state)


@pytest.mark.parametrize("n_devices", DEVICES)
@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
def test_training_is_that_of_the_script_and_moments_take_their_share(n_devices, shard):
    mesh, step, init, batch = make(n_devices, shard)
    _, plain, _, _ = make(n_devices, wrapped=False)
    expected, expected_state = train(plain, whole(mesh, init()), batch, range(20))
    losses, state = train(step, whole(mesh, init()), batch, range(20))
    np.testing.assert_allclose(losses, expected, atol=2e-5)
    assert_near(state, expected_state)
    large = [leaf for leaf in jax.tree.leaves(state[1]) if leaf.nbytes >= 16 << 10]
    assert len(large) == 6
    for leaf in large:
        assert isinstance(leaf, ho.PaddedArray) and isinstance(leaf, jax.Array)
        assert held_bytes(leaf) <= (1 / n_devices + 0.02) * leaf.nbytes
    # Weights are ordinary arrays.
    assert not any(isinstance(leaf, ho.PaddedArray) for leaf in jax.tree.leaves(state[0]))
    assert "held as" in str(ho.report(step))


def test_xla_takes_no_more_for_the_arguments_than_is_held():
    mesh, step, init, batch = make()
    _, state = train(step, whole(mesh, init()), batch, range(1))
    plan = step.last_plan
    memory = plan.call.lower(*plan._described()).compile().memory_analysis()
    own = sum(held_bytes(leaf) for leaf in jax.tree.leaves(state)) + batch(0)[0].addressable_shards[0].data.nbytes
    assert own <= memory.argument_size_in_bytes <= own + 64 * len(plan.kept)
    assert memory.alias_size_in_bytes >= sum(held_bytes(leaf) for leaf in jax.tree.leaves(state))


def test_bf16_leaves_are_padded_too():
    mesh, step, init, batch = make(dtype=jnp.bfloat16)
    losses, state = train(step, whole(mesh, init()), batch, range(3))
    mu = state[1][1][0].mu["rows"]
    assert mu.dtype == jnp.bfloat16 and isinstance(mu, ho.PaddedArray)
    assert np.asarray(mu).dtype == jnp.bfloat16
    assert all(np.isfinite(losses))


def test_a_padded_leaf_is_used_as_an_array():
    mesh, step, init, batch = make()
    _, plain, _, _ = make(wrapped=False)
    _, (_, expected) = train(plain, whole(mesh, init()), batch, range(2))
    _, (params, opt) = train(step, whole(mesh, init()), batch, range(2))
    leaf, wanted = opt[1][0].mu["rows"], np.asarray(expected[1][0].mu["rows"])
    near = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
    assert leaf.shape == (1003, 331) and leaf.ndim == 2 and leaf.size == wanted.size and len(leaf) == 1003
    near(np.asarray(leaf), wanted)
    near(np.asarray(leaf, np.float64), wanted)
    near(jax.device_get(leaf), wanted)
    near(leaf * 2 + 1, wanted * 2 + 1)
    near(1 - leaf, 1 - wanted)
    near(jnp.ones_like(params["rows"]) + leaf, 1 + wanted)
    near(params["rows"] * leaf, np.asarray(params["rows"]) * wanted)
    near(leaf.T, wanted.T)
    near(leaf[3:5, 7], wanted[3:5, 7])
    near(leaf.at[0].set(0.0)[1], wanted[1])
    near(jnp.sum(leaf, 0), wanted.sum(0))
    near(leaf.astype(jnp.float32).mean(), wanted.mean())
    near(np.stack(list(leaf))[5], wanted[5])
    assert bool((leaf == leaf).all())
    assert jnp.asarray(leaf).shape == leaf.shape and jax.typeof(leaf).shape == leaf.shape
    # In other jitted functions, of any placement, as argument and as a constant.
    near(jax.jit(lambda a, b: a + b)(leaf, params["rows"]), np.asarray(params["rows"]) + wanted)
    near(jax.jit(lambda b: leaf + b)(params["rows"]), np.asarray(params["rows"]) + wanted)
    replicated = NamedSharding(mesh, P())
    near(jax.jit(lambda a: a * 2, in_shardings=replicated)(leaf), wanted * 2)
    near(jax.device_put(leaf, jax.devices()[0]), wanted)
    near(jax.device_put(leaf, replicated), wanted)
    near(jax.grad(lambda a: jnp.sum(a * leaf))(params["rows"]), wanted)
    near(jax.vmap(jnp.sum)(leaf), wanted.sum(1))
    assert jax.eval_shape(jnp.sum, leaf).shape == ()
    assert jax.block_until_ready(opt) is not None
    # Trees: the leaf is one leaf, and meets plain trees.
    assert jax.tree.structure(opt) == jax.tree.structure(expected)
    added = jax.tree.map(lambda a, b: a + b, opt, expected)
    near(added[1][0].mu["rows"], 2 * wanted)
    near(optax.global_norm(opt[1][0].mu), optax.global_norm(expected[1][0].mu))
    for copied in (pickle.loads(pickle.dumps(leaf)), copy.copy(leaf), copy.deepcopy(leaf)):
        near(np.asarray(copied), wanted)
    assert "held as" in repr(leaf)
    assert type(ho.replicate(opt)[1][0].mu["rows"]) is type(params["rows"])
    near(ho.replicate(opt)[1][0].mu["rows"], wanted)
    # What was done with it is taken by the step.
    state = (params, jax.tree.map(lambda leaf: leaf * 1, opt))
    train(step, state, batch, range(2, 3))


def test_a_step_takes_over_what_it_holds():
    mesh, step, init, batch = make()
    _, (params, opt) = train(step, whole(mesh, init()), batch, range(2))
    leaf = opt[1][0].mu["rows"]
    step(params, opt, *batch(2))
    assert leaf.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(leaf)


def test_the_source_is_freed():
    mesh, step, init, batch = make()
    params, opt = whole(mesh, init())
    source = opt[1][0].mu["rows"]
    step(params, opt, *batch(0))
    assert source.is_deleted()


@pytest.mark.parametrize("n_devices", DEVICES)
def test_state_is_born_in_shards(n_devices):
    mesh, step, init, batch = make(n_devices)
    state = ho.init(init, step, *batch(0))
    large = [leaf for leaf in jax.tree.leaves(state[1]) if leaf.nbytes >= 16 << 10]
    assert all(held_bytes(leaf) <= (1 / n_devices + 0.02) * leaf.nbytes for leaf in large)
    losses, _ = train(step, state, batch, range(3))
    expected, _ = train(step, whole(mesh, init()), batch, range(3))
    np.testing.assert_array_equal(losses, expected)


@pytest.mark.parametrize("n_later", [1, 3, 8])
def test_orbax_checkpoints_go_to_other_numbers_of_devices_and_to_the_plain_script(tmp_path, n_later):
    mesh, step, init, batch = make(8)
    rows = normal(7, 24, 1003)
    _, state = train(step, whole(mesh, init()), batch, range(2))
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "state", state)
    checkpointer.wait_until_finished()
    described = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    later, other, _, _ = make(n_later) if n_later > 1 else make(1, wrapped=False)
    same = along(later, (rows,))
    as_made = jax.eval_shape(init)
    if n_later > 1:
        whole_now = jax.tree.map(lambda leaf: described(leaf, NamedSharding(later, P())), as_made)
        target = jax.tree.map(described, as_made, ho.shardings(other, *whole_now, *same)[:2])
    else:
        target = jax.tree.map(lambda leaf: described(leaf, NamedSharding(later, P())), as_made)
    restored = checkpointer.restore(tmp_path / "state", target)
    assert_near(restored, state, atol=0)
    _, plain, _, _ = make(8, wrapped=False)
    host = jax.tree.map(np.asarray, restored)
    *_, expected = plain(*whole(mesh, host), *along(mesh, (rows,)))
    *_, loss = other(*restored, *same)
    np.testing.assert_allclose(float(loss), float(expected), rtol=1e-5)


def test_a_checkpoint_of_numpy_arrays_is_that_of_the_script(tmp_path):
    mesh, step, init, batch = make(8)
    _, state = train(step, whole(mesh, init()), batch, range(2))
    leaves, tree = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *leaves)
    with np.load(tmp_path / "state.npz") as file:
        loaded = jax.tree.unflatten(tree, [file[name] for name in file.files])
    assert_near(loaded, state, atol=0)
    expected, _ = train(step, state, batch, range(2, 4))
    # Back in the wrapped step the next step is the same to the bit, in the plain one to rounding.
    again, _ = train(step, whole(mesh, loaded), batch, range(2, 4))
    np.testing.assert_array_equal(again, expected)
    _, plain, _, _ = make(8, wrapped=False)
    as_plain, _ = train(plain, whole(mesh, loaded), batch, range(2, 4))
    np.testing.assert_allclose(as_plain, expected, atol=2e-5)


def test_calls_that_run_as_they_were_have_it_whole(monkeypatch):
    mesh, step, init, batch = make(8)
    _, state = train(step, whole(mesh, init()), batch, range(2))
    host = jax.tree.map(np.asarray, state)
    monkeypatch.setenv("HLO_OPT", "off")
    off, state = train(step, state, batch, range(2, 4))
    assert not any(isinstance(leaf, ho.PaddedArray) for leaf in jax.tree.leaves(state))
    monkeypatch.delenv("HLO_OPT")
    on, _ = train(step, whole(mesh, host), batch, range(2, 4))
    np.testing.assert_allclose(off, on, atol=2e-5)
    losses, state = train(step, state, batch, range(4, 6))
    assert any(isinstance(leaf, ho.PaddedArray) for leaf in jax.tree.leaves(state))
    # Compiled ahead of time, whole arrays come and go.
    compiled = step.lower(*state, *batch(6)).compile()
    direct = step.unwrapped(*jax.tree.map(jnp.copy, ho.replicate(state)), *batch(6))[2]
    np.testing.assert_allclose(float(compiled(*state, *batch(6))[2]), float(direct), atol=2e-5)


def test_another_step_takes_what_one_has_padded():
    mesh, step, init, batch = make(8)
    _, other, _, _ = make(8, shard="optimizer")
    _, state = train(step, whole(mesh, init()), batch, range(2))
    losses, state = train(other, state, batch, range(2, 4))
    more, _ = train(step, state, batch, range(4, 5))
    _, plain, _, _ = make(8, wrapped=False)
    expected, _ = train(plain, whole(mesh, init()), batch, range(5))
    np.testing.assert_allclose([*losses, *more], expected[2:], atol=2e-5)


def test_padded_state_lies_on_the_host(monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_OFFLOADED_BYTES", 1024)
    mesh, tx = mesh_of(8), optax.adam(1e-3)

    def step(params, opt, x):
        def loss_fn(params):
            hidden = x
            for weight in params:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.mean(hidden**2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def init():
        params = [jnp.asarray(normal(n, 101, 101), jnp.float32) for n in range(4)]
        return params, tx.init(params)

    jitted = jax.jit(step, donate_argnums=(0, 1))
    batch = lambda i: along(mesh, (normal(100 + i, 16, 101).astype(jnp.float32),))
    expected, _ = train(ho.zero(jitted, strict=True, shard="optimizer"), init(), batch, range(6))
    offloading = ho.zero(jitted, strict=True, shard="optimizer", offload=True)
    losses, state = train(offloading, init(), batch, range(3))
    on_host = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, ho.PaddedArray) and is_on_host(leaf.held)]
    assert len(on_host) == 8
    # As an array it is the whole one, in the devices' memory.
    assert not any(is_on_host(leaf.whole()) or is_on_host(leaf + 0) for leaf in on_host)
    pickled = pickle.loads(pickle.dumps(state))
    more, _ = train(offloading, copy.deepcopy(state), batch, range(3, 6))
    np.testing.assert_array_equal(losses + more, expected)
    again, _ = train(offloading, pickled, batch, range(3, 6))
    np.testing.assert_array_equal(again, more)


def is_on_host(array) -> bool:
    return array.sharding.memory_kind == "pinned_host"
