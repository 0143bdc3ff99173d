"""Batches that come on no device: the step keeps its state in shards all the same, with the same values."""

from __future__ import annotations

import warnings

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_opt.jax import batch as batches
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_state import make, whole
from training_scripts import mesh_of, normal

N_STEPS = 3


def numbers(i: int, n: int = 48):
    """A batch of the step of ``make``, as NumPy's arrays."""
    return normal(i, n, 96), normal(100 + i, n, 8)


def train(step, state, batch_of, steps=range(N_STEPS)):
    losses = []
    for i in steps:
        *state, loss = step(*state, *batch_of(i))
        losses.append(float(loss))
    return losses, state


def check_alike(own, expected) -> None:
    assert own[0] == pytest.approx(expected[0], rel=1e-5)
    for mine, theirs in zip(jax.tree.leaves(own[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def n_in_shards(state) -> int:
    return sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))


BATCHES = {
    "numpy": lambda i: numbers(i),
    "arrays that are not committed": lambda i: tuple(map(jnp.asarray, numbers(i))),
    "both": lambda i: (jnp.asarray(numbers(i)[0]), numbers(i)[1]),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_on_no_device_is_put_on_the_one_axis(kind):
    mesh, step, init, _ = make()
    expected = train(step.unwrapped, whole(mesh, init()), numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = train(step, whole(mesh, init()), BATCHES[kind])
    check_alike(own, expected)
    assert n_in_shards(own[1]) >= 6
    report = str(ho.report(step))
    assert "x float32[48, 96] P('data',): it comes on no device, and is put there in shards" in report
    assert len(step._plans) == 1


def test_it_lies_as_in_calls_before():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "other"))
    _, step, init, _ = make()
    rows = NamedSharding(mesh, P(("data", "other")))
    placed = lambda i, n=48: jax.device_put(numbers(i, n), rows)
    expected = train(step.unwrapped, whole(mesh, init()), placed)
    state = train(step, whole(mesh, init()), placed, range(1))
    own = train(step, state[1], numbers, range(1, N_STEPS))
    check_alike((state[0] + own[0], own[1]), expected)
    assert len(step._plans) == 1, "a call of the same shapes takes the same program"
    # Another number of rows is another program; the batch lies as before.
    train(step, own[1], lambda i: numbers(i, 64), range(1))
    assert step.last_plan.declined is None and len(step._plans) == 2
    assert step.last_plan.partitioned.placed


def test_it_lies_as_the_other_arguments_say():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "other"))
    _, step, init, _ = make()
    half = lambda i: (jax.device_put(numbers(i)[0], NamedSharding(mesh, P("data"))), numbers(i)[1])
    expected = train(step.unwrapped, whole(mesh, init()), half)
    own = train(step, whole(mesh, init()), half)
    check_alike(own, expected)
    partitioned = step.last_plan.partitioned
    names = {partitioned.names[flat] for flat in partitioned.placed}
    assert names == {"y"}
    assert n_in_shards(own[1]) >= 6


def test_it_lies_over_the_axis_that_no_weight_is_cut_over():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    _, step, init, _ = make()

    def placed():
        params, opt = whole(mesh, init())
        cut = lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P(None, "model") if leaf.ndim == 2 else P()))
        return jax.tree.map(cut, (params, opt))

    expected = train(step.unwrapped, placed(), numbers)
    own = train(step, placed(), numbers)
    check_alike(own, expected)
    assert step.last_plan.partitioned.placed
    assert own[1][0]["w"].addressable_shards[0].data.size * 8 == own[1][0]["w"].size


def test_declared_shardings_are_taken():
    mesh = mesh_of(8)
    _, step, init, _ = make()
    rows, rep = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    declared = jax.jit(step.unwrapped.__wrapped__, in_shardings=(rep, rep, rows, rows), donate_argnums=(0, 1))
    zero = ho.zero(declared, shard="parameters", strict=True)
    own = train(zero, whole(mesh, init()), numbers)
    check_alike(own, train(step.unwrapped, whole(mesh, init()), numbers))
    assert n_in_shards(own[1]) >= 6 and not zero.last_plan.partitioned.placed


def reason(step, *args) -> str:
    with pytest.raises(ho.ZeroError) as error:
        step(*args)
    return str(error.value)


def test_where_nothing_says_it_the_line_of_code_does(monkeypatch):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "other"))
    _, step, init, _ = make()
    said = reason(step, *whole(mesh, init()), *numbers(0))
    line = said.split("before the call: ")[1]
    assert line == "x, y = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec('data')))"
    # The line does what it says.
    names = {"jax": jax, "NamedSharding": NamedSharding, "PartitionSpec": P, "mesh": mesh}
    names["x"], names["y"] = numbers(0)
    exec(line, names)
    *state, _ = step(*whole(mesh, init()), names["x"], names["y"])
    assert n_in_shards(state) >= 6
    # Where other processes have a part of the mesh, an array of NumPy's is the whole batch in each of them.
    monkeypatch.setattr(batches, "can_be_placed", lambda _: False)
    _, other, init, _ = make()
    assert reason(other, *whole(mesh_of(8), init()), *numbers(0)).split("before the call: ")[1] == line


def test_rows_that_the_devices_do_not_divide_are_counted():
    mesh, step, init, _ = make()
    said = reason(step, *whole(mesh, init()), *numbers(0, 60))
    assert "the 60 rows of x cannot be cut evenly over the 8 devices of the axis 'data': leave out the last 4" in said


def test_a_batch_that_the_script_puts_whole_on_the_devices_stays_whole():
    mesh, step, init, _ = make()
    assert "x, y = jax.device_put((x, y)" in reason(step, *whole(mesh, init()), *whole(mesh, numbers(0)))


def test_other_arrays_on_no_device_stay_whole():
    mesh = mesh_of(8)

    def step(w, x, table):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh((x + table[0]) @ w) ** 2))(w)
        return w - 0.1 * grad, loss

    w, x, table = normal(0, 96, 96) / 10, normal(1, 48, 96), normal(2, 16, 96)
    expected = jax.jit(step)(*whole(mesh, (w, x, table)))
    zero = ho.zero(jax.jit(step), shard="parameters", strict=True)
    own = zero(whole(mesh, w), x, table)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), own, expected)
    partitioned = zero.last_plan.partitioned
    assert {partitioned.names[flat] for flat in partitioned.placed} == {"x"}


def test_state_that_a_library_flattens_is_no_batch():
    mesh = mesh_of(8)

    def step(flat, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(flat["w"])
        return {"other": {"path": flat["w"] - 0.1 * grad}}, loss

    w, x = normal(0, 48, 96) / 10, normal(1, 48, 48)
    zero = ho.zero(jax.jit(step))
    placed = jax.device_put(x, NamedSharding(mesh, P("data")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = zero({"w": w}, placed)
    expected = jax.jit(step)({"w": w}, placed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), own, expected)
    plan = zero.last_plan
    assert plan.partitioned is None or not plan.partitioned.placed


def test_calls_with_state_on_no_device_are_told_apart():
    mesh, step, init, batch = make(strict=False)
    step(*whole(mesh, init()), *batch(0))
    with pytest.warns(UserWarning, match="the step runs on one device: put its arguments on a mesh"):
        *state, _ = step(*jax.device_get(init()), *numbers(0))
    assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(state))
