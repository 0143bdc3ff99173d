"""State outside of the step, and calls of kinds that the step must tell apart."""

from __future__ import annotations

import re
import warnings

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_scripts import SCRIPTS, along, mesh_of, normal, whole

WIDTH = 96


def make(n_devices: int = 8, **options):
    """A step of Adam, its state, and a batch by number."""
    mesh = mesh_of(n_devices)
    tx = optax.adam(1e-2)

    def step(params, opt, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2))(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def init():
        key = jax.random.key(0)
        params = {"w": jax.random.normal(key, (WIDTH, WIDTH)) / 10, "v": jax.random.normal(key, (WIDTH, 8)) / 10}
        return params, tx.init(params)

    def batch(i: int, n: int = 48):
        return along(mesh, (normal(i, n, WIDTH), normal(100 + i, n, 8)))

    jitted = jax.jit(step, donate_argnums=(0, 1))
    return mesh, ho.zero(jitted, **{"strict": True, "shard": "parameters", **options}), init, batch


def train(step, state, batch, numbers):
    losses = []
    for i in numbers:
        *state, loss = step(*state, *batch(i))
        losses.append(float(loss))
    return losses, state


def held(tree) -> int:
    """Bytes on the first device."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def test_state_is_born_in_shards():
    mesh, step, init, batch = make()
    state = ho.init(init, step, *batch(0))
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert held(state) <= total / 8 + 64
    other = whole(mesh, init())
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
    _, second, _, _ = make()
    assert train(step, state, batch, range(3))[0] == pytest.approx(train(second, other, batch, range(3))[0], rel=1e-6)


def test_whole_state_is_freed_leaf_by_leaf():
    mesh, step, init, batch = make()
    state = whole(mesh, init())
    leaves = jax.tree.leaves(state)
    *after, _ = step(*state, *batch(0))
    assert all(leaf.is_deleted() for leaf in leaves if leaf.nbytes > 1024)
    assert held(after) < sum(leaf.nbytes for leaf in jax.tree.leaves(after)) / 7


def test_an_array_in_two_places_is_not_freed():
    mesh, step, init, batch = make()
    params, opt = whole(mesh, init())
    adam, rest = opt
    shared = (adam._replace(nu=adam.mu), rest)
    *state, loss = step(params, shared, *batch(0))
    *expected, other = step.unwrapped(*whole(mesh, init()), *batch(0))
    assert float(loss) == pytest.approx(float(other), rel=1e-6)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-7)


def test_donated_state_takes_no_second_place():
    _, step, init, batch = make()
    state = ho.init(init, step, *batch(0))
    memory = step.lower(*state, *batch(0)).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= held(state) - 64
    before = step.unwrapped.lower(*whole(mesh_of(8), init()), *batch(0)).compile().memory_analysis()
    assert memory.argument_size_in_bytes < before.argument_size_in_bytes / 3


def test_a_checkpoint_goes_on_with_other_devices(tmp_path):
    _, step, init, batch = make(8)
    state = ho.init(init, step, *batch(0))
    _, state = train(step, state, batch, range(3))
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "state", tuple(state))
    checkpointer.wait_until_finished()
    expected, _ = train(step, state, batch, range(3, 6))
    for n_devices in (4, 8):
        _, other, _, other_batch = make(n_devices)
        shapes = jax.eval_shape(init)
        rest = other_batch(0)
        rep = NamedSharding(mesh_of(n_devices), P())
        described = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=rep), shapes)
        wanted = ho.shardings(other, *described, *rest)[:2]
        target = jax.tree.map(
            lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes, wanted
        )
        restored = checkpointer.restore(tmp_path / "state", target)
        losses, _ = train(other, restored, other_batch, range(3, 6))
        assert losses == pytest.approx(expected, rel=1e-5)
    # Into a run on one device, without the wrapper.
    one = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        jax.eval_shape(init),
    )
    restored = checkpointer.restore(tmp_path / "state", one)
    losses, _ = train(step.unwrapped, restored, lambda i: jax.device_put(tuple(map(np.asarray, batch(i)))), range(3, 6))
    assert losses == pytest.approx(expected, rel=1e-5)


def test_whole_arrays_come_from_shards():
    mesh, step, init, batch = make()
    *state, _ = step(*whole(mesh, init()), *batch(0))
    evaluate = jax.jit(lambda p, x: x @ p["w"])
    assert evaluate(state[0], batch(1)[0]).shape == (48, WIDTH)
    strict = jax.jit(lambda p: p["w"].sum(), in_shardings=(NamedSharding(mesh, P()),))
    with pytest.raises(ValueError):
        strict(state[0])
    np.testing.assert_allclose(float(strict(ho.replicate(state[0]))), np.asarray(state[0]["w"]).sum(), rtol=1e-4)


def test_another_batch_size_is_another_program():
    mesh, step, init, batch = make()
    state = whole(mesh, init())
    _, plain, _, _ = make()
    other = whole(mesh, init())
    for i, n in ((0, 48), (1, 96), (2, 48), (3, 96)):
        *state, loss = step(*state, *batch(i, n))
        *other, expected = plain.unwrapped(*other, *batch(i, n))
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert held(state) < held(other) / 7


def test_inside_of_other_transformations_the_original_runs():
    mesh, step, init, batch = make()
    state = whole(mesh, init())
    expected = step.unwrapped(*whole(mesh, init()), *batch(0))[2]
    outer = jax.jit(lambda params, opt, x, y: step(params, opt, x, y)[2])
    assert float(outer(*state, *batch(0))) == pytest.approx(float(expected), rel=1e-6)
    with jax.disable_jit():
        small = whole(mesh, init())
        assert float(step(*small, *batch(0))[2]) == pytest.approx(float(expected), rel=1e-5)


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv("HLO_OPT", "off")
    mesh, step, init, batch = make()
    *state, _ = step(*whole(mesh, init()), *batch(0))
    assert held(state) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def test_what_cannot_be_taken_over_runs_as_it_was():
    mesh = mesh_of(8)

    @jax.jit
    def asks_in_order(w, m, x):
        m = 0.9 * m + jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
        return w - 0.1 * m, m, io_callback(np.float32, jax.ShapeDtypeStruct((), jnp.float32), x[0, 0], ordered=True)

    w, x = whole(mesh, jnp.ones((WIDTH, WIDTH))), along(mesh, normal(0, 16, WIDTH))
    with pytest.warns(UserWarning, match="ordered side effects"):
        after = ho.zero(asks_in_order)(w, w, x)
    np.testing.assert_allclose(np.asarray(after[0]), np.asarray(asks_in_order(w, w, x)[0]))
    one = ho.zero(jax.jit(lambda w: w + 1))
    with pytest.warns(UserWarning, match="one device"):
        assert float(one(jnp.ones(()))) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(one(jnp.ones(()))) == 2, "one warning is enough"
    with pytest.raises(ho.ZeroError, match="one device"):
        ho.zero(jax.jit(lambda w: w + 1), strict=True)(jnp.ones(()))
    with pytest.raises(TypeError, match="jax.jit"):
        ho.zero(lambda w: w)
    with pytest.raises(TypeError, match="pmap"):
        ho.zero(jax.pmap(lambda w: w, axis_name="data"))
    with pytest.raises(ValueError, match="shard"):
        ho.zero(jax.jit(lambda w: w), shard="weights")


def test_a_limit_of_memory_is_kept():
    mesh, step, init, batch = make(memory_limit=1)
    with pytest.raises(ho.ZeroError, match=r"nothing fits memory_limit=1 B \(1 bytes\) by XLA's account: the least that was found"):
        step(*whole(mesh, init()), *batch(0))


def test_passes_without_time_leave_the_step_as_it_was():
    mesh, step, init, batch = make(deadline_s=1e-6)
    with pytest.raises(ho.ZeroError, match="stopped after .* s, limit 0.000001 s; the module stays as it was"):
        step(*whole(mesh, init()), *batch(0))
    mesh, step, init, batch = make(deadline_s=1e-6, strict=False)
    with pytest.warns(UserWarning, match="limit 0.000001 s"):
        *_, loss = step(*whole(mesh, init()), *batch(0))
    *_, expected = step.unwrapped(*whole(mesh, init()), *batch(0))
    assert float(loss) == float(expected)
    mesh, step, init, batch = make(deadline_s=600)
    step(*whole(mesh, init()), *batch(0))


def test_a_mesh_of_two_axes():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "other"))
    _, step, init, _ = make()
    batch = jax.device_put((normal(0, 48, WIDTH), normal(1, 48, 8)), NamedSharding(mesh, P(("data", "other"))))
    *state, loss = step(*whole(mesh, init()), *batch)
    *expected, other = step.unwrapped(*whole(mesh, init()), *batch)
    assert float(loss) == pytest.approx(float(other), rel=1e-6)
    assert held(state) < held(expected) / 7
    batch = jax.device_put((normal(0, 48, WIDTH), normal(1, 48, 8)), NamedSharding(mesh, P("data")))
    _, step, init, _ = make()
    *state, loss = step(*whole(mesh, init()), *batch)
    *expected, other = step.unwrapped(*whole(mesh, init()), *batch)
    assert float(loss) == pytest.approx(float(other), rel=1e-6)
    assert held(state) < held(expected) / 3


def test_the_report_names_ways_and_leaves(tmp_path):
    mesh, step, init, batch = make(machine="h100")
    with pytest.raises(ValueError, match="expected a call of step before"):
        ho.report(step)
    step(*whole(mesh, init()), *batch(0))
    found = ho.report(step)
    text = str(found)
    assert "on 8 devices: " in text and "h100" in text and "params['w'] float32[96, 96] P('data',)" in text
    assert [way.name for way in found.ways] == ["as it was", "parameters"] and found.taken == 1
    assert found.ways[found.taken].argument_bytes < found.ways[0].argument_bytes / 1.5
    found.save(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")[:200]
    assert found._repr_html_().startswith("<iframe")


def test_all_that_is_private_of_jax_is_there():
    from hlo_opt.jax import private

    assert private.missing() == []
    assert jax.__version__ in private.TESTED


def test_the_scripts_are_all_there():
    assert len(SCRIPTS) == 11


def test_what_jit_tells_apart_is_another_program():
    mesh = mesh_of(8)

    def step(w, rate, x, y, *, flag):
        loss, grad = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
        return w - rate * grad, loss + jnp.asarray(flag).dtype.itemsize

    jitted = jax.jit(step, static_argnames=("flag",))
    zero = ho.zero(jitted, shard="parameters", strict=True)
    w, (x, y) = whole(mesh, jnp.ones((WIDTH, 8)) / WIDTH), along(mesh, (normal(0, 48, WIDTH), normal(1, 48, 8)))
    for rate in (jnp.float32(0.1), 0.1):
        for flag in (1, True):
            theirs, mine = jitted(w, rate, x, y, flag=flag), zero(w, rate, x, y, flag=flag)
            assert float(mine[1]) == pytest.approx(float(theirs[1]), rel=1e-6)
            np.testing.assert_allclose(np.asarray(mine[0]), np.asarray(theirs[0]), rtol=1e-5)


def test_after_a_call_transformations_have_the_original_too():
    mesh, step, init, batch = make()
    state = whole(mesh, init())
    expected = float(step.unwrapped(*whole(mesh, init()), *batch(0))[2])
    step(*whole(mesh, init()), *batch(0))
    outer = jax.jit(lambda params, opt, x, y: step(params, opt, x, y)[2])
    assert float(outer(*state, *batch(0))) == pytest.approx(expected, rel=1e-6)


def test_a_last_batch_of_another_size_and_place_loses_no_state():
    mesh, step, init, batch = make(strict=False)
    state, other = whole(mesh, init()), whole(mesh, init())
    uneven = whole(mesh, (normal(5, 45, WIDTH), normal(6, 45, 8)))
    for given in (batch(0), uneven, batch(1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            *state, loss = step(*state, *given)
        *other, expected = step.unwrapped(*other, *given)
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def told(kind: str, seen: list, loss: jax.Array, grad: jax.Array) -> jax.Array:
    """The loss, of which Python is told in one of several ways."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def twice(value):
        seen.append(float(value))
        return np.float32(2.0) * value

    match kind:
        case "print":
            jax.debug.print("loss {loss} and {part}", loss=loss, part=grad[0, :2])
        case "debug":
            jax.debug.callback(lambda value: seen.append(float(value)), loss)
        case "two":
            jax.debug.callback(lambda value: seen.append(float(value)), loss)
            jax.debug.callback(lambda value: seen.append(float(np.abs(value).max())), grad)
        case "state":
            jax.debug.callback(lambda value: seen.append(float(value)), grad.sum())
        case "io":
            loss = loss + io_callback(twice, shape, loss)
        case "pure":
            loss = loss + jax.pure_callback(twice, shape, loss)
    return loss


@pytest.mark.parametrize("kind", ["print", "debug", "two", "state", "io", "pure"])
def test_python_is_called_as_before(kind, capsys):
    mesh = mesh_of(8)
    seen: list[float] = []

    def step(w, m, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        loss = told(kind, seen, loss, m if kind == "state" else grad)
        m = 0.9 * m + grad
        return w - 0.1 * m, m, loss

    def run(step):
        w = whole(mesh, jnp.asarray(normal(1, WIDTH, WIDTH) / 12))
        m, losses = jnp.copy(w), []
        for i in range(3):
            w, m, loss = step(w, m, along(mesh, normal(i, 16, WIDTH)))
            losses.append(float(loss))
        jax.effects_barrier()
        found = sorted(seen)
        seen.clear()
        return losses, found, capsys.readouterr().out, m.sharding.is_fully_replicated

    before, after = run(jax.jit(step)), run(ho.zero(jax.jit(step), strict=True, quiet=True))
    assert after[0] == pytest.approx(before[0], rel=1e-5) and len(after[1]) == len(before[1])
    assert after[1] == pytest.approx(before[1], rel=1e-4)
    numbers = lambda text: [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]
    assert numbers(after[2]) == pytest.approx(numbers(before[2]), rel=1e-4)
    assert len(before[1]) + before[2].count("loss") >= 3, "this shows nothing"
    assert before[3] and not after[3]


def test_a_number_alone_is_no_name():
    """The moment ``state[3]`` is not the gradient ``out[1][3]``, which has its shape."""
    mesh = mesh_of(8)

    def step(state, x, y):
        (w, v), moments = state[:2], state[2:]
        loss_fn = lambda w, v: jnp.mean((jnp.tanh(x @ w) @ v - y) ** 2)
        loss, grads = jax.value_and_grad(loss_fn, (0, 1))(w, v)
        moments = [0.9 * m + g for m, g in zip(moments, grads)]
        return {"weights": [w - 0.1 * moments[0], v - 0.1 * moments[1]], "moments": moments}, (loss, loss, loss, grads[1])

    w, v = normal(0, WIDTH, WIDTH) / 10, normal(1, WIDTH, WIDTH) / 10
    state = whole(mesh, [w, v, np.zeros_like(w), np.zeros_like(v)])
    own = ho.zero(jax.jit(step), shard="optimizer", strict=True)
    x, y = along(mesh, (normal(2, 48, WIDTH), normal(3, 48, WIDTH)))
    made, others = own(state, x, y)
    assert not made["moments"][1].sharding.is_fully_replicated
    assert others[3].sharding.is_fully_replicated
