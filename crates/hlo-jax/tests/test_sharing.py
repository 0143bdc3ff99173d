"""State that a step has cut, where the original or another step gets it."""

from __future__ import annotations

import warnings
from functools import partial

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_state import make, train, whole
from training_scripts import mesh_of, normal

close = partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)


def step_of(rate):
    def step(params, momentum, x):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p["w"]) ** 2))(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - rate * m, params, momentum), momentum, loss

    return step


ALL, SOME = "parameters", "optimizer"


@pytest.mark.parametrize("shards", [(ALL, ALL), (ALL, SOME), (SOME, ALL), ("gradients", "gradients")])
def test_two_steps_that_share_parameters(shards):
    mesh = mesh_of(8)
    rep, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    declared = {"in_shardings": (rep, rep, cut), "out_shardings": (rep, rep, rep), "donate_argnums": (0, 1)}
    plain = [jax.jit(step_of(rate), **declared) for rate in (0.1, 0.05)]
    steps = [ho.zero(step, shard=shard, strict=True) for step, shard in zip(plain, shards)]

    def run(steps):
        params = whole(mesh, {"w": normal(0, 96, 96) / 10})
        momenta = [whole(mesh, {"w": np.zeros((96, 96), np.float32)}) for _ in steps]
        for i in range(6):
            step = steps[i % 2]
            params, momenta[i % 2], loss = step(params, momenta[i % 2], jax.device_put(normal(i, 48, 96), cut))
        return params, momenta, loss

    expected, found = run(plain), run(steps)
    jax.tree.map(close, found, expected)
    for leaf in jax.tree.leaves(found[1]):
        assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes


def test_a_batch_that_cannot_be_cut_costs_one_call_and_no_more():
    mesh, step, init, batch = make(strict=False)
    _, other, _, _ = make()
    rep = NamedSharding(mesh, P())
    ragged = lambda i: tuple(jax.device_put(leaf, rep) for leaf in (normal(i, 20, 96), normal(90 + i, 20, 8)))
    batches = [batch(0), batch(1), ragged(2), batch(3), ragged(4), batch(5)]

    def run(step):
        state = whole(mesh, init())
        losses, held = [], []
        for data in batches:
            *state, loss = step(*state, *data)
            losses.append(float(loss))
            held.append(sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state)))
        return losses, held

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        losses, held = run(step)
    assert len(said) == 1 and "the 20 rows of x cannot be cut evenly" in str(said[0].message)
    expected, all_whole = run(other.unwrapped)
    close(losses, expected)
    assert [bytes_ < all_whole[0] / 4 for bytes_ in held] == [True, True, False, True, False, True], (held, all_whole)
    assert held[2] == all_whole[2]


@pytest.mark.parametrize("word", ["off", "0", "False", "no"])
def test_off_is_the_step_as_it_was_on_state_in_shards_too(word, monkeypatch):
    mesh, step, init, batch = make()
    declared = jax.jit(step.unwrapped.__wrapped__, in_shardings=(NamedSharding(mesh, P()),) * 2 + (None, None))
    step = ho.zero(declared, shard="parameters", strict=True)
    expected, _ = train(declared, whole(mesh, init()), batch, range(4))
    losses, state = train(step, ho.init(init, step, *batch(0)), batch, range(2))
    monkeypatch.setenv("HLO_OPT", word)
    more, state = train(step, state, batch, range(2, 4))
    close(losses + more, expected)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))
    assert "zero is off" in str(ho.report(step))
    born = ho.init(init, step, *batch(0))
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(born))
    assert ho.shardings(step, *born, *batch(0))[:2] == jax.tree.map(lambda leaf: leaf.sharding, born)


def test_on_one_device_state_is_made_and_restored_as_it_lies():
    mesh, step, init, batch = make(1, strict=False)
    with pytest.warns(UserWarning, match="one device"):
        state = ho.init(init, step, *batch(0))
    wanted = ho.shardings(step, *state, *batch(0))[:2]
    assert wanted == jax.tree.map(lambda leaf: leaf.sharding, tuple(state))
    *state, loss = step(*state, *batch(0))
    assert ho.shardings(step)[0] is not None and np.isfinite(loss)


def test_what_a_step_does_not_read_is_whole():
    mesh = mesh_of(8)

    def step(state, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(state["w"])
        return {"w": state["w"] - 0.1 * grad, "last": loss}

    zero = ho.zero(jax.jit(step), shard="parameters", strict=True)
    state = whole(mesh, {"w": normal(0, 96, 96), "last": np.float32(0)})
    x = jax.device_put(normal(1, 48, 96), NamedSharding(mesh, P("data")))
    (wanted, _) = ho.shardings(zero, state, x)
    assert wanted["last"] == NamedSharding(mesh, P()) and wanted["w"].spec == P("data")


def test_init_takes_arguments_by_name():
    mesh = mesh_of(8)

    def step(state, *, x, rate):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(state["w"])
        return {"w": state["w"] - rate * grad}, loss

    zero = ho.zero(jax.jit(step), shard="parameters", strict=True)
    x = jax.device_put(normal(1, 48, 96), NamedSharding(mesh, P("data")))
    state = ho.init(lambda: {"w": jnp.ones((96, 96))}, zero, x=x, rate=0.5)
    assert state["w"].sharding.spec == P("data")
    state, _ = zero(state, x=x, rate=0.5)
    assert len(zero._plans) == 1, "the plan of init is that of the call"


def test_options_are_checked_at_once():
    jitted = jax.jit(lambda w: w)
    for wrong in ("1", 0, -1, 0.5, True):
        with pytest.raises((ValueError, TypeError), match="memory_limit: expected a "):
            ho.zero(jitted, memory_limit=wrong)
    for wrong in (0, -1, "soon"):
        with pytest.raises((ValueError, TypeError), match="deadline_s: expected a positive number of seconds"):
            ho.zero(jitted, deadline_s=wrong)
    with pytest.raises(ValueError, match="shard: expected"):
        ho.zero(jitted, shard=True)
    with pytest.raises(ValueError, match="expected a positive number of nodes behind 'h100:', found 'x'"):
        ho.zero(jitted, machine="h100:x")


@pytest.mark.parametrize("shard", [ALL, SOME])
def test_over_several_nodes_state_is_cut_within_a_node(shard):
    mesh, step, init, batch = make(machine="h100:2", shard=shard)
    expected, whole_state = train(step.unwrapped, whole(mesh, init()), batch, range(4))
    losses, state = train(step, whole(mesh, init()), batch, range(4))
    close(losses, expected)
    jax.tree.map(close, state, whole_state)
    momentum = state[1][0].mu["w"]
    assert momentum.sharding.spec == P("data_inner") and momentum.sharding.mesh.shape["data_inner"] == 4
    assert momentum.addressable_shards[0].data.nbytes * 4 == momentum.nbytes
    assert len(step._plans) == 1, "the state of a step is that of the next"
    # Where the mesh has an axis over a node, that is taken.
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("node", "data"))
    step = ho.zero(step.unwrapped, shard=shard, strict=True, machine="h100:2")
    data = jax.device_put(batch(0), NamedSharding(mesh, P(("node", "data"))))
    _, opt, _ = step(*whole(mesh, init()), *data)
    assert opt[0].mu["w"].sharding.spec == P("data")
    assert "2" in str(ho.report(step)).splitlines()[1]


def test_the_page_is_about_the_step(tmp_path):
    mesh, step, init, batch = make()
    step(*whole(mesh, init()), *batch(0))
    ho.report(step).save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "jit_step" in page and "hlo_opt_probe" not in page


def test_calls_that_gather_what_others_cut_are_told_after_the_third():
    """Gradients are summed in three calls and applied in the fourth."""
    mesh, rep = mesh_of(8), NamedSharding(mesh_of(8), P())
    arrays = lambda scale: {"w": scale * normal(0, 64, 128), "v": scale * normal(1, 128, 64)}

    def accumulate(params, momentum, sums, x, y, applies):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2))(params)
        sums = jax.tree.map(jnp.add, sums, grads)
        if applies:
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g / 4, momentum, sums)
            params = jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum)
            sums = jax.tree.map(jnp.zeros_like, sums)
        return params, momentum, sums, loss

    def run(step):
        state, losses = whole(mesh, (arrays(0.1), arrays(0.0), arrays(0.0))), []
        for i in range(16):
            batch = jax.device_put((normal(i, 32, 64), normal(90 + i, 32, 64)), NamedSharding(mesh, P("data")))
            *state, loss = step(*state, *batch, applies=i % 4 == 3)
            losses.append(float(loss))
        return losses, state

    step = jax.jit(accumulate, static_argnames="applies")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        losses, (_, momentum, _) = run(ho.zero(step, quiet=True))
    close(losses, run(step)[0])
    assert not momentum["w"].sharding.is_fully_replicated
    reason, gathered = [str(warning.message) for warning in said]
    assert "runs as it was: no state could be cut: no update in shards has state" in reason
    assert "momentum['v'] comes in shards from another call, but calls like this one run as they were" in gathered
