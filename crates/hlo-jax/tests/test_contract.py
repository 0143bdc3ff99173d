"""The contract of ``zero``: the optimizer's state lies in shards, and everything else comes back as it came in."""

from __future__ import annotations

import re
import warnings

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_scripts import along, mesh_of, normal, whole

WIDTH = 128

#: The longer dim of weights with factored moments.
WIDE = 4096


def weights() -> dict:
    return {name: jnp.asarray(normal(seed, WIDTH, WIDTH) / 12) for seed, name in enumerate(("up", "down"))}


def loss_of(params: dict, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - 1.0) ** 2)


def step_of(tx: optax.GradientTransformation, evaluated=lambda params: params):
    """A step of ``tx``; the loss reads what ``evaluated`` takes of the weights."""

    def step(params, opt_state, x):
        loss, grads = jax.value_and_grad(lambda params: loss_of(evaluated(params), x))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def average_step(params, opt_state, ema, x):
    """Adam, and an average of the weights that evaluation reads."""
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, opt_state = optax.adam(1e-2).update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, ema, params), loss


def statistics_step(params, opt_state, stats, key, x):
    """Batch statistics and a random key beside the optimizer."""
    key, noise = jax.random.split(key)

    def loss_fn(params):
        hidden = x @ params["up"] + 0.01 * jax.random.normal(noise, (WIDTH,))
        mean, var = hidden.mean(0), hidden.var(0)
        hidden = jnp.tanh((hidden - mean) / jnp.sqrt(var + 1e-5))
        return jnp.mean((hidden @ params["down"] - 1.0) ** 2), (mean, var)

    (loss, found), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    stats = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * jnp.tile(new, WIDTH), stats, found)
    updates, opt_state = optax.adam(1e-2).update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, stats, key, loss


def masters_step(params, masters, moments, x):
    """Weights in bf16, which the loss reads, and what they are rounded from."""
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), moments, grads)
    masters = jax.tree.map(lambda w, m: w - 0.05 * m, masters, moments)
    return jax.tree.map(lambda w: w.astype(jnp.bfloat16), masters), masters, moments, loss


def adapter_step(adapters, opt_state, base, x):
    """Adapters of weights that stay as they are."""

    def loss_fn(adapters):
        return loss_of(jax.tree.map(lambda w, a: w + a["in"] @ a["out"], base, adapters), x)

    adapters_of = lambda tree: jax.tree.map(lambda leaf: leaf, tree)
    loss, grads = jax.value_and_grad(loss_fn)(adapters_of(adapters))
    updates, opt_state = optax.adam(1e-2).update(grads, opt_state, adapters)
    return optax.apply_updates(adapters, updates), opt_state, loss


def adapters() -> dict:
    make = lambda seed: {"in": jnp.asarray(normal(seed, WIDTH, 32) / 12), "out": jnp.asarray(normal(seed + 9, 32, WIDTH) / 12)}
    return {"up": make(3), "down": make(4)}


def of_optax(tx: optax.GradientTransformation):
    params = weights()
    return step_of(tx), (params, tx.init(params))


def of_wide(tx: optax.GradientTransformation):
    """Weights of which Adafactor keeps sums over rows and over columns; those over rows are of 16 KiB."""
    shapes = {"up": (WIDTH, WIDE), "down": (WIDE, WIDTH)}
    params = {name: jnp.asarray(normal(seed, *shape) / 48) for seed, (name, shape) in enumerate(shapes.items())}
    return step_of(tx), (params, tx.init(params))


def is_adapter(tree):
    """Of each leaf of a model with adapters whether it is one of them."""
    return jax.tree.map_with_path(lambda path, _: path[0].key == "adapters", tree)


def of_frozen(tx: optax.GradientTransformation):
    """Adapters and frozen weights in one tree, of which the optimizer's state has a masked copy."""
    params = {"base": weights(), "adapters": adapters()}
    merged = lambda params: jax.tree.map(lambda w, a: w + a["in"] @ a["out"], params["base"], params["adapters"])
    return step_of(tx, merged), (params, tx.init(params))


def multi_transform() -> optax.GradientTransformation:
    labels = lambda tree: jax.tree.map(lambda is_one: "train" if is_one else "freeze", is_adapter(tree))
    return optax.multi_transform({"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}, labels)


def masked() -> optax.GradientTransformation:
    others = lambda tree: jax.tree.map(lambda is_one: not is_one, is_adapter(tree))
    return optax.chain(optax.masked(optax.adam(1e-2), is_adapter), optax.masked(optax.set_to_zero(), others))


def of_lookahead():
    tx = optax.lookahead(optax.adam(1e-2), 3, 0.5)
    params = optax.LookaheadParams.init_synced(weights())

    def step(params, opt_state, x):
        loss, grads = jax.value_and_grad(loss_of)(params.fast, x)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, tx.init(params))


def of_schedule_free():
    tx = optax.contrib.schedule_free(optax.sgd(0.5), learning_rate=0.5, b1=0.9)
    params = weights()
    return step_of(tx), (params, tx.init(params))


def schedule_free_adam() -> optax.GradientTransformation:
    return optax.contrib.schedule_free(optax.adam(1e-2, b1=0.0), learning_rate=1e-2, b1=0.9)


def of_average():
    params = weights()
    return average_step, (params, optax.adam(1e-2).init(params), params)


def of_statistics():
    params = weights()
    stats = (jnp.zeros(WIDTH * WIDTH), jnp.ones(WIDTH * WIDTH))
    return statistics_step, (params, optax.adam(1e-2).init(params), stats, jax.random.key(0))


def of_masters():
    masters = weights()
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), masters)
    return masters_step, (params, masters, jax.tree.map(jnp.zeros_like, masters))


def of_adapters():
    made = adapters()
    tx = optax.adam(1e-2)
    base = weights()
    return lambda a, o, x: adapter_step(a, o, base_of(base), x), (made, tx.init(made))


def base_of(base: dict) -> dict:
    return jax.tree.map(jnp.asarray, base)


#: Of each script what makes it, and which leaves of its state lie in shards: all that are large and match.
CASES = {
    "adam": (lambda: of_optax(optax.adam(1e-2)), r"\[1\].*\.(mu|nu)"),
    "adamw, clipped": (lambda: of_optax(optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))), r"\.(mu|nu)"),
    "momentum": (lambda: of_optax(optax.sgd(1e-2, momentum=0.9)), r"\.trace"),
    "adafactor": (lambda: of_optax(optax.adafactor(1e-2, min_dim_size_to_factor=1024)), r"\.v\["),
    "adafactor, factored": (lambda: of_wide(optax.adafactor(1e-2)), r"\.v_col\["),
    "adafactor, factored, with momentum": (lambda: of_wide(optax.adafactor(1e-2, momentum=0.9)), r"\.(v_col|ema)\["),
    "frozen by multi_transform": (lambda: of_frozen(multi_transform()), r"\.(mu|nu)"),
    "frozen by masked": (lambda: of_frozen(masked()), r"\.(mu|nu)"),
    "multi steps": (lambda: of_optax(optax.MultiSteps(optax.adam(1e-2), 3)), r"\.(mu|nu|acc_grads)"),
    "prodigy": (lambda: of_optax(optax.contrib.prodigy(1.0)), r"\.(exp_avg|exp_avg_sq|grad_sum|params0)\["),
    "lookahead": (of_lookahead, r"\.(mu|nu)"),
    "schedule-free": (of_schedule_free, r"\.z\["),
    "schedule-free adam": (lambda: of_optax(schedule_free_adam()), r"\.(z|mu|nu)\["),
    "average": (of_average, r"\.(mu|nu)"),
    "statistics": (of_statistics, r"\.(mu|nu)"),
    "masters": (of_masters, r"^\[[12]\]"),
    "adapters": (of_adapters, r"\.(mu|nu)"),
}


def large(leaf: jax.Array) -> bool:
    return leaf.ndim > 0 and leaf.size * leaf.dtype.itemsize >= 16 << 10


def held_bytes(leaf: jax.Array) -> int:
    """What the first device has of a leaf."""
    array = leaf.held if isinstance(leaf, ho.PaddedArray) else leaf
    return array.addressable_shards[0].data.nbytes


@pytest.mark.parametrize("donates", [False, True], ids=["kept", "donated"])
@pytest.mark.parametrize("name", CASES)
def test_the_optimizers_state_alone_lies_in_shards(name, donates):
    check_contract(name, donates, 8)


@pytest.mark.more
@pytest.mark.parametrize("is_odd", [False, True], ids=["even", "odd"])
@pytest.mark.parametrize("n_devices", [2, 3, 6, 8])
@pytest.mark.parametrize("name", CASES)
def test_it_does_on_other_numbers_of_devices_and_with_odd_sizes(name, n_devices, is_odd, monkeypatch):
    if is_odd:
        monkeypatch.setitem(globals(), "WIDTH", 131)
        monkeypatch.setitem(globals(), "WIDE", 4099)
    check_contract(name, True, n_devices)


def check_contract(name: str, donates: bool, n_devices: int) -> None:
    """Trains a case with and without ``zero``: equal results, state in shards, and everything else as it came in."""
    make, pattern = CASES[name]
    mesh = mesh_of(n_devices)
    body, state = make()
    n_state = len(state)
    jitted = jax.jit(body, donate_argnums=tuple(range(n_state)) if donates else ())
    step = ho.zero(jitted, strict=True, quiet=True)
    plain = own = whole(mesh, state)
    plain, own = jax.tree.map(jnp.copy, plain), jax.tree.map(jnp.copy, own)
    for i in range(4):
        batch = along(mesh, (normal(20 + i, 2 * n_devices, WIDTH),))
        *plain, loss = jax.jit(body)(*plain, *batch)
        *own, own_loss = step(*own, *batch)
        assert float(own_loss) == pytest.approx(float(loss), rel=1e-5)
    n_cut = 0
    for (path, before), after in zip(jax.tree.leaves_with_path(tuple(plain)), jax.tree.leaves(tuple(own))):
        place = jax.tree_util.keystr(path)
        is_state = re.search(pattern, place) is not None and large(before)
        n_cut += is_state
        is_even = any(size % n_devices == 0 for size in before.shape)
        if is_state:
            most = before.nbytes / n_devices if is_even else (1 / n_devices + 0.02) * before.nbytes
            assert held_bytes(after) <= most, f"{place}: {before.nbytes} bytes\n{ho.report(step)}"
        else:
            assert after.sharding.is_fully_replicated, f"{place}: {after.sharding}\n{ho.report(step)}"
            assert not isinstance(after, ho.PaddedArray), place
        if jnp.issubdtype(before.dtype, jnp.floating):
            apart = np.abs(np.asarray(before, np.float32) - np.asarray(after, np.float32)).max(initial=0.0)
            assert apart <= 1e-2 * max(1e-3, np.abs(np.asarray(before, np.float32)).max(initial=0.0)), place
    assert n_cut > 0


def test_an_evaluation_that_declares_the_optimizers_state_whole_takes_it_by_replicate():
    """Schedule-free weights are an average of the step's weights and of its state."""
    mesh = mesh_of(8)
    body, state = of_optax(schedule_free_adam())
    rep = NamedSharding(mesh, P())
    x = along(mesh, (normal(21, 16, WIDTH),))[0]
    averaged = optax.contrib.schedule_free_eval_params
    loss_at_average = lambda opt_state, params, x: loss_of(averaged(opt_state, params), x)
    evaluate = jax.jit(loss_at_average, in_shardings=(rep, rep, x.sharding))
    of_weights_alone = jax.jit(loss_at_average, in_shardings=(None, rep, x.sharding))

    def after(step):
        params, opt_state = whole(mesh, state)
        for i in range(4):
            params, opt_state, _ = step(params, opt_state, *along(mesh, (normal(20 + i, 16, WIDTH),)))
        return opt_state, params

    expected = float(evaluate(*after(jax.jit(body)), x))
    opt_state, params = after(ho.zero(jax.jit(body), strict=True, quiet=True))
    assert not opt_state.z["up"].sharding.is_fully_replicated
    with pytest.raises(ValueError, match="[Ss]harding"):
        evaluate(opt_state, params, x)
    assert float(evaluate(ho.replicate(opt_state), params, x)) == pytest.approx(expected, rel=1e-5)
    assert float(of_weights_alone(opt_state, params, x)) == pytest.approx(expected, rel=1e-5)


def accumulate(sums, params, x):
    """Adds the gradients of a micro-batch; the update is in another jit."""
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(jnp.add, sums, grads), loss


def apply(params, opt_state, sums):
    """The update of several micro-batches, and sums for the next ones."""
    updates, opt_state = optax.adam(1e-2).update(jax.tree.map(lambda g: g / 2, sums), opt_state, params)
    return optax.apply_updates(params, updates), opt_state, jax.tree.map(jnp.zeros_like, sums)


def train_in_two(mesh, accumulate, apply) -> tuple:
    """Losses and state of three updates from two micro-batches each, and the last sums."""
    params = whole(mesh, weights())
    opt_state, sums = optax.adam(1e-2).init(params), jax.tree.map(jnp.zeros_like, params)
    losses = []
    for i in range(6):
        sums, loss = accumulate(sums, params, *along(mesh, (normal(20 + i, 16, WIDTH),)))
        losses.append(float(loss))
        if i % 2:
            last = sums
            params, opt_state, sums = apply(params, opt_state, sums)
    return losses, (params, opt_state), last


def check_near(mine, theirs) -> None:
    for before, after in zip(jax.tree.leaves(theirs), jax.tree.leaves(mine), strict=True):
        np.testing.assert_allclose(np.asarray(after), np.asarray(before), rtol=1e-3, atol=2e-5)


def test_an_update_apart_from_its_gradients_runs_as_it_was():
    """Neither jit shows a gradient's sum and an update."""
    mesh = mesh_of(8)
    losses, state, _ = train_in_two(mesh, jax.jit(accumulate), jax.jit(apply))
    steps = [ho.zero(jax.jit(body), quiet=True) for body in (accumulate, apply)]
    of_sums = r"no update in shards has state: of sums\['down'\], .*; state=\{r\"\^sums\": True\} asks for shards of it"
    of_apply = "apply runs as it was: .*every argument is whole"
    with pytest.warns(UserWarning, match=of_sums), pytest.warns(UserWarning, match=of_apply):
        own_losses, own_state, _ = train_in_two(mesh, *steps)
    assert own_losses == losses
    check_near(own_state, state)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(own_state))


def test_an_update_apart_from_its_gradients_keeps_state_in_shards_where_sums_are():
    """With the sums in shards, XLA's partitioner updates shards of Adam's moments."""
    mesh = mesh_of(8)
    losses, state, _ = train_in_two(mesh, jax.jit(accumulate), jax.jit(apply))
    summed = ho.zero(jax.jit(accumulate), strict=True, quiet=True, state={r"^sums": True})
    applied = jax.jit(apply, out_shardings=(NamedSharding(mesh, P()), None, None))
    own_losses, (params, opt_state), sums = train_in_two(mesh, summed, applied)
    np.testing.assert_allclose(own_losses, losses, rtol=1e-5)
    check_near((params, opt_state), state)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params))
    for leaf in jax.tree.leaves((opt_state[0].mu, opt_state[0].nu, sums)):
        assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes


def test_a_step_without_state_says_so():
    mesh = mesh_of(8)
    body, state = of_optax(optax.sgd(1e-2))
    step = ho.zero(jax.jit(body), strict=True)
    with pytest.raises(ho.ZeroError, match='no state could be cut: this optimizer keeps no state; shard="parameters"'):
        step(*whole(mesh, state), *along(mesh, (normal(20, 16, WIDTH),)))


def test_what_the_script_says_of_state_counts():
    mesh = mesh_of(8)
    body, state = of_average()
    arguments = (*whole(mesh, state), *along(mesh, (normal(20, 16, WIDTH),)))
    step = ho.zero(jax.jit(body), strict=True, quiet=True, state={r"\.nu": False, r"ema\['up'\]": True})
    _, opt_state, ema, _ = step(*arguments)
    assert opt_state[0].nu["up"].sharding.is_fully_replicated
    assert not opt_state[0].mu["up"].sharding.is_fully_replicated
    assert not ema["up"].sharding.is_fully_replicated and ema["down"].sharding.is_fully_replicated
    step = ho.zero(jax.jit(body), strict=True, state={"emma": True})
    with pytest.raises(ho.ZeroError, match="state: expected the name of an argument with a next value, such as .*, found 'emma'"):
        step(*arguments)


def of_biases():
    """Small weights beside large ones: a bias and a scale, whose state is not cut."""
    tx = optax.adam(1e-2)
    params = {**weights(), "bias": jnp.zeros(WIDTH), "scale": jnp.ones(())}

    def step(params, opt_state, x):
        loss_fn = lambda p: jnp.mean((jnp.tanh(x @ p["up"] + p["bias"]) @ p["down"] * p["scale"] - 1.0) ** 2)
        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, tx.init(params))


KEPT_WHOLE = {r"\.nu": 2, r"\['bias'\]": 4, r"\.count": 4, "params": 4, r"\.(mu|count)|bias": 2}


@pytest.mark.parametrize(("expression", "n_cut"), KEPT_WHOLE.items())
def test_an_expression_may_keep_whole_what_is_whole_anyway(expression, n_cut):
    mesh = mesh_of(8)
    body, state = of_biases()
    arguments = (*whole(mesh, state), *along(mesh, (normal(20, 16, WIDTH),)))
    step = ho.zero(jax.jit(body), strict=True, quiet=True, state={expression: False})
    *own, _ = step(*arguments)
    leaves = jax.tree.leaves_with_path(own)
    cut = [jax.tree_util.keystr(path) for path, leaf in leaves if not leaf.sharding.is_fully_replicated]
    assert len(cut) == n_cut and not any(re.search(expression, place) for place in cut), cut
    *plain, _ = jax.jit(body)(*arguments)
    check_near(own, plain)


def test_an_expression_that_asks_for_what_cannot_be_is_told_of_the_names():
    mesh = mesh_of(8)
    body, state = of_biases()
    arguments = (*whole(mesh, state), *along(mesh, (normal(20, 16, WIDTH),)))

    def said(expressions: dict) -> str:
        with pytest.raises(ho.ZeroError) as error:
            ho.zero(jax.jit(body), strict=True, state=expressions)(*arguments)
        return str(error.value)

    small = "opt_state[0].nu['bias'], opt_state[0].nu['scale']"
    assert f"expected names of arrays that can lie in shards, found {small}: each is a scalar" in said({r"\.nu": True})
    assert "found params['bias']: " in said({r"\.nu": False, r"params\['bias'\]": True})
    assert "the expressions of `state` keep every array with a next value whole" in said({".": False})


def test_the_first_call_says_what_lies_in_shards(capfd):
    mesh = mesh_of(8)
    body, state = of_optax(optax.adam(1e-2))
    step = ho.zero(jax.jit(body), strict=True, machine="h100")
    state = whole(mesh, state)
    for i in range(2):
        *state, _ = step(*state, *along(mesh, (normal(20 + i, 16, WIDTH),)))
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    shape = (
        r"hlo_opt\.jax\.zero: step: 4 arrays of optimizer state lie in shards over 8 devices, 32 KiB of a device in the place of "
        r"256 KiB; predicted [\d.]+ µs a step on h100.* \((equally fast|\d+% (slower|faster)); [\d.]+ µs as XLA compiles it\); "
        r"weights and all else come back as before"
    )
    assert re.fullmatch(shape, said[0]), said[0]


def test_a_script_that_undoes_it_in_each_call_is_told():
    mesh = mesh_of(8)
    body, state = of_optax(optax.adam(1e-2))
    step = ho.zero(jax.jit(body), strict=True, quiet=True)
    state = whole(mesh, state)

    def calls(n: int, change) -> None:
        nonlocal state
        for i in range(n):
            *state, _ = step(*change(tuple(state)), *along(mesh, (normal(20 + i, 16, WIDTH),)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calls(3, lambda state: state)
        # A checkpoint is restored, and an evaluation between is none of it.
        calls(2, ho.replicate)
        calls(1, lambda state: state)
        calls(2, ho.replicate)
    with pytest.warns(UserWarning, match=r"step: opt_state\[0\]\.mu\['down'\] came whole in 3 calls one after the other"):
        calls(1, ho.replicate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calls(2, ho.replicate)
