"""A wrapped step is used as what ``jax.jit`` returns: lowered, copied, a method, with arguments by name."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from functools import partial

import hlo_opt.jax as ho
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_state import make, train, whole
from training_scripts import along, mesh_of, normal


def test_compiled_ahead_of_time_it_takes_the_trees_of_the_step():
    mesh, step, init, batch = make()
    _, other, _, _ = make()
    state, _ = ho.init(init, step, *batch(0)), None
    compiled = step.lower(*state, *batch(0)).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= sum(
        leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state)
    )
    expected, _ = train(other, whole(mesh, init()), batch, range(3))
    assert train(compiled, state, batch, range(3))[0] == pytest.approx(expected, rel=1e-6)
    assert (
        step.trace(*whole(mesh, init()), *batch(0)).lower().as_text()
        == step.lower(*whole(mesh, init()), *batch(0)).as_text()
    )


def by_name(w, *, x, scale, unused=None):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - scale * grad, loss


jitted_by_name = jax.jit(by_name, static_argnames="scale", donate_argnums=0)


def arguments_by_name():
    mesh = mesh_of(8)
    return whole(mesh, normal(0, 96, 96)), along(mesh, (normal(1, 48, 96),))[0]


def test_static_arguments_and_arguments_by_name_are_lowered_too():
    step = ho.zero(jitted_by_name, shard="parameters", strict=True)
    w, x = arguments_by_name()
    compiled = step.lower(w, x=x, scale=0.5, unused=x).compile()
    in_shards = step(w, x=x, scale=0.5, unused=x)[0]
    w, x = arguments_by_name()
    expected = jitted_by_name(w, x=x, scale=0.5)[0]
    np.testing.assert_allclose(in_shards, expected, rtol=2e-5, atol=1e-6)
    again = compiled(in_shards, x=x, unused=x)[0]
    np.testing.assert_allclose(again, jitted_by_name(expected, x=x, scale=0.5)[0], rtol=2e-5, atol=1e-6)


def test_copies_are_steps():
    step = ho.zero(jitted_by_name, shard="parameters", strict=True)
    w, x = arguments_by_name()
    expected = np.asarray(step(w, x=x, scale=0.5)[0])
    for other in (copy.copy(step), copy.deepcopy(step)):
        w, x = arguments_by_name()
        result = other(w, x=x, scale=0.5)[0]
        assert not result.sharding.is_fully_replicated
        np.testing.assert_array_equal(result, expected)
    with pytest.raises(TypeError, match="cannot be pickled, as no jitted function can"):
        pickle.dumps(step)


def test_it_has_the_name_text_and_signature_of_the_step():
    step = ho.zero(jitted_by_name)
    assert step.__name__ == "by_name"
    assert inspect.signature(step) == inspect.signature(by_name)
    w, x = arguments_by_name()
    assert step.eval_shape(w, x=x, scale=0.5)[0].shape == (96, 96)


class Trainer:
    """Its rate is read where the step is traced, so that the instance is static."""

    def __init__(self, rate):
        self.rate = rate

    @partial(ho.zero, shard="parameters", strict=True)
    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def step(self, w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - self.rate * grad, loss


def test_a_method():
    for rate in (0.5, 0.25):
        w, x = arguments_by_name()
        expected = jitted_by_name(w, x=x, scale=rate)[0]
        w, x = arguments_by_name()
        np.testing.assert_allclose(Trainer(rate).step(w, x)[0], expected, rtol=2e-5, atol=1e-6)


def test_forgetting_plans():
    mesh, step, init, batch = make()
    step(*whole(mesh, init()), *batch(0))
    step.clear_cache()
    assert step.last_plan is None
    step(*whole(mesh, init()), *batch(0))


def test_errors_of_the_step_itself_are_its_own():
    mesh, step, init, batch = make()
    x, y = batch(0)
    with pytest.raises(TypeError, match="contracting dimensions"):
        step(*whole(mesh, init()), x[:, :7], y)
    with pytest.raises(TypeError, match="missing"):
        step(*whole(mesh, init()))


def test_wrong_uses_are_named():
    jitted = jax.jit(lambda w: w)
    with pytest.raises(TypeError, match="found a step by zero: it has another program already"):
        ho.zero(ho.zero(jitted))
    with pytest.raises(ValueError, match="did you mean 'h100'"):
        ho.zero(jitted, machine="h1000")
    with pytest.raises(ValueError, match="shard: expected 'optimizer', 'gradients', 'parameters' or 'auto', found 4"):
        ho.zero(jitted, shard=4)
    for use in (ho.report, ho.shardings):
        with pytest.raises(
            TypeError, match="a step by hlo_opt.jax.zero, partition or auto, found .* of type PjitFunction"
        ):
            use(jitted)


def step_of_two(w, m, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"] @ w["b"]) ** 2))(w)
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, grad)
    return jax.tree.map(lambda w, m: w - 0.1 * m, w, m), m, loss


def two(a, b):
    """Weights and moments, placed."""
    leaves = {"a": normal(0, 96, 64) / 10, "b": normal(1, 64, 96) / 10}
    place = lambda tree: {"a": jax.device_put(tree["a"], a), "b": jax.device_put(tree["b"], b)}
    return place(leaves), place(jax.tree.map(np.zeros_like, leaves))


def test_weights_that_the_script_cuts_are_cut_once_more_over_the_batch_axis():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    placed = partial(two, NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("model")))
    jitted = jax.jit(step_of_two, donate_argnums=(0, 1))
    step = ho.zero(jitted, shard="parameters", strict=True)
    expected, state = placed(), placed()
    for i in range(4):
        x = jax.device_put(normal(9 + i, 48, 96), NamedSharding(mesh, P("data")))
        *expected, expected_loss = jitted(*expected, x)
        *state, loss = step(*state, x)
        np.testing.assert_allclose(loss, expected_loss, rtol=2e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), state, expected)
    for leaf in jax.tree.leaves(state):
        assert leaf.addressable_shards[0].data.nbytes == leaf.nbytes // 8


def test_why_nothing_is_cut_is_said_with_what_to_do():
    mesh = mesh_of(8)
    rep, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    jitted = jax.jit(step_of_two)

    def reason(state, x, step=jitted):
        with pytest.raises(ho.ZeroError) as error:
            ho.zero(step, strict=True)(*state, x)
        return str(error.value)

    x = normal(9, 48, 96)
    line = "put the batch in shards before the call: x = jax.device_put(x, NamedSharding(mesh, PartitionSpec('data')))"
    assert line in reason(two(rep, rep), jax.device_put(x, rep))
    state = (two(rep, rep)[0], two(cut, cut)[1])
    assert "holds its state in shards already (m['a'] float32[96, 64]" in reason(state, jax.device_put(x, cut))
    returns_cut = jax.jit(step_of_two, out_shardings=(rep, cut, rep))
    said = reason(two(rep, rep), jax.device_put(x, cut), returns_cut)
    assert "takes state whole and returns it in shards (m['a']" in said


def test_plain_gradient_descent_has_no_state():
    mesh = mesh_of(8)
    rep = NamedSharding(mesh, P())

    def step(w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"] @ w["b"]) ** 2))(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grad), loss

    args = two(rep, rep)[0], along(mesh, (normal(9, 48, 96),))[0]
    with pytest.raises(ho.ZeroError, match='this optimizer keeps no state; shard="parameters" shards weights'):
        ho.zero(jax.jit(step), shard="optimizer", strict=True)(*args)
    new, _ = ho.zero(jax.jit(step), shard="parameters", strict=True)(*args)
    assert not new["a"].sharding.is_fully_replicated


def test_the_report_gives_reasons_and_the_price():
    mesh = mesh_of(8)
    rep = NamedSharding(mesh, P())
    state, x = two(rep, rep), along(mesh, (normal(9, 48, 96),))[0]
    step = ho.zero(jax.jit(step_of_two), shard="optimizer", strict=True)
    step(*state, x)
    report = ho.report(step)
    text = str(report)
    assert "m['a'] float32[96, 64] P('data',)" in text
    assert "x float32[48, 96] P('data',): in shards by the script" in text
    before, taken = report.ways[0], report.ways[report.taken]
    is_slower = taken.step_s > 1.02 * before.step_s
    assert ("slower than as it was" in text) == is_slower
    chosen = ho.zero(jax.jit(step_of_two), shard="auto", memory_limit="1TB")
    chosen(*state, x)
    ways = ho.report(chosen).ways
    assert not ways or [way.name for way in ways] == ["as it was", "optimizer", "gradients", "parameters"]
    if ways:
        assert ways[1].cut < ways[3].cut


def test_what_looks_inside_of_a_step_sees_the_original():
    mesh, step, init, batch = make()
    x, y = batch(0)
    for looks in (jax.debug_nans, jax.debug_infs):
        with looks(True), pytest.raises(FloatingPointError, match="encountered in"):
            step(*whole(mesh, init()), x * np.nan if looks is jax.debug_nans else x / 0, y)
    state = ho.init(init, step, *batch(0))
    with jax.debug_nans(True):
        assert np.isfinite(step(*state, *batch(0))[2])


def test_guards_and_exports():
    mesh, step, init, batch = make()
    state, data = whole(mesh, init()), batch(0)
    with jax.transfer_guard("disallow"), jax.checking_leaks():
        *state, _ = step(*state, *data)
    exported = jax.export.export(step)(*state, *data)
    assert exported.nr_devices == 8
    (again,) = exported.call(*state, *batch(1))[2:]
    assert float(again) == pytest.approx(float(step(*state, *batch(1))[2]), rel=1e-6)


def test_threads_share_a_step():
    mesh, step, init, batch = make()
    _, other, _, _ = make()
    losses: dict = {}

    def run(thread: int) -> None:
        losses[thread] = train(step, whole(mesh, init()), batch, range(3 * thread, 3 * thread + 3))[0]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        expected = train(other, whole(mesh, init()), batch, range(3 * n, 3 * n + 3))[0]
        assert losses[n] == pytest.approx(expected, rel=1e-6)


def test_what_the_step_asks_of_the_compiler_is_asked_for_the_result_too():
    def step(w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * grad, loss

    jitted = jax.jit(step, compiler_options={"xla_no_such_option": True})
    w, x = arguments_by_name()
    with pytest.raises(ho.ZeroError, match="xla_no_such_option"):
        ho.zero(jitted, shard="parameters", strict=True)(w, x)
    jitted = jax.jit(step, compiler_options={"xla_cpu_enable_fast_math": False})
    zero = ho.zero(jitted, shard="parameters", strict=True)
    zero(w, x)
    assert zero.last_plan.compiler_options == {"xla_cpu_enable_fast_math": False}
    zero.lower(w, x).compile()
