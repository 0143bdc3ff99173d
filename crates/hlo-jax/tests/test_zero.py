"""``zero`` on training scripts: the same losses and state as the script without it, and state in shards."""

from __future__ import annotations

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import pytest
from hlo_opt.jax import sharding
from hlo_opt.jax.plan import Memory
from jax.sharding import NamedSharding, PartitionSpec
from training import check_trains_alike
from training_scripts import SCRIPTS, along, mesh_of, normal

#: Leaves below this may stay whole.
LEAF_BYTES = 16 * 1024


@pytest.mark.parametrize("n_devices", [8, *(pytest.param(n, marks=pytest.mark.more) for n in (3, 2))])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_as_it_did(name, n_devices):
    before, state, after, own_state = trained(name, n_devices, "optimizer")
    check_shards(before.optimizer(state), after.optimizer(own_state), n_devices)


ONE_LAYER_AT_A_TIME = "scan_layers"


@pytest.mark.parametrize("n_devices", [8, *(pytest.param(n, marks=pytest.mark.more) for n in (3, 2))])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == ONE_LAYER_AT_A_TIME else pytest.mark.more) for name in SCRIPTS]
)
def test_weights_lie_in_shards_too(name, n_devices):
    _, state, _, own_state = trained(name, n_devices, "parameters")
    check_shards(state, own_state, n_devices)


@pytest.mark.more
def test_weights_are_gathered_twice_where_memory_is_short(monkeypatch):
    # XLA for CPUs fuses less than is predicted, and takes no less for gathering twice.
    monkeypatch.setattr(Memory, "of", lambda _: None)
    name, n_devices = "flax_transformer", 8
    script = SCRIPTS[name](mesh_of(n_devices))

    def planned(memory_limit=None):
        step = ho.zero(script.step, shard="parameters", memory_limit=memory_limit, strict=True)
        step.plan(*script.state, *script.batch(0))
        return step.last_plan.sharded.ways[-1]

    free = planned()
    limit = int(0.8 * free.peak_bytes)
    short = planned(limit)
    assert short.peak_bytes <= limit and short.sent_bytes > free.sent_bytes
    trained(name, n_devices, "parameters", limit)


def plan_of(name: str, shard, **options):
    """How a script runs on eight devices, and its step."""
    script = SCRIPTS[name](mesh_of(8))
    step = ho.zero(script.step, shard=shard, **options)
    return step.plan(*script.state, *script.batch(0)), step


def between(plan) -> int:
    """A limit that the predicted peak keeps and XLA's account does not."""
    predicted = plan.sharded.ways[plan.sharded.taken].peak_bytes
    assert predicted < plan.memory.peak_bytes, "this shows nothing"
    return (predicted + plan.memory.peak_bytes) // 2


def test_a_limit_holds_by_xlas_account_too():
    free, _ = plan_of("scan_layers", "optimizer")
    limit = between(free)
    plan, step = plan_of("scan_layers", "auto", memory_limit=limit, strict=True)
    assert plan.memory.peak_bytes <= limit
    assert f"{plan.memory.peak_bytes / 2**20:.2f} MiB (arguments" in str(ho.report(step))


def test_where_nothing_fits_by_xlas_account_the_least_runs():
    free, _ = plan_of("bf16_masters", "optimizer")
    limit = between(free)
    with pytest.warns(UserWarning, match=rf"nothing fits memory_limit=.* \({limit:,} bytes\) by XLA's account: the least"):
        plan, _ = plan_of("bf16_masters", "optimizer", memory_limit=limit)
    assert plan.declined is None and plan.memory == free.memory
    with pytest.raises(ho.ZeroError, match="by XLA's account"):
        plan_of("bf16_masters", "optimizer", memory_limit=limit, strict=True)


def test_a_prediction_alone_refuses_no_limit():
    free, _ = plan_of("loop_in_jit", "parameters")
    predicted = free.sharded.ways[free.sharded.taken].peak_bytes
    assert free.memory.peak_bytes < predicted, "this shows nothing"
    plan, _ = plan_of("loop_in_jit", "parameters", memory_limit=free.memory.peak_bytes, strict=True)
    assert plan.memory == free.memory


@pytest.mark.parametrize("shard", ["auto", "parameters"])
def test_a_limit_that_nothing_keeps_takes_the_least(shard):
    with pytest.warns(UserWarning, match=r"nothing fits memory_limit=1000 B \(1,000 bytes\) by XLA's account"):
        plan, _ = plan_of("scan_layers", shard, memory_limit=1000)
    free, _ = plan_of("scan_layers", "optimizer")
    assert plan.declined is None and plan.memory.peak_bytes < free.memory.peak_bytes


def trained(name, n_devices: int, shard, memory_limit=None):
    """A script without the line and its state after some steps, and the same with it; losses and state are equal."""
    change = lambda step: ho.zero(step, shard=shard, memory_limit=memory_limit, strict=True)
    before, state, after, own_state = check_trains_alike(lambda: SCRIPTS[name](mesh_of(n_devices)), change, name)
    for mine, theirs in zip(jax.tree.leaves(own_state), jax.tree.leaves(state)):
        kind = lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False))
        assert kind(mine) == kind(theirs)
    return before, state, after, own_state


def check_shards(whole, in_shards, n_devices: int) -> None:
    """Large leaves of which a dim is a multiple of the devices lie in shards."""
    n_cut = 0
    for before, after in zip(jax.tree.leaves(whole), jax.tree.leaves(in_shards)):
        if any(size % n_devices == 0 for size in after.shape) and after.nbytes >= LEAF_BYTES:
            held = after.addressable_shards[0].data.nbytes
            assert held <= before.nbytes * (1 / n_devices + 0.02), (after.shape, after.sharding)
            n_cut += 1
    if n_devices != 3:
        assert n_cut > 0


def on_host(state) -> list:
    """The leaves that lie in the memory of the host."""
    leaves = [getattr(leaf, "held", leaf) for leaf in jax.tree.leaves(state)]
    return [leaf for leaf in leaves if leaf.sharding.memory_kind == "pinned_host"]


OFFLOADED = ("flax_transformer", "plain_pytree", "scan_layers", "bf16_masters")
#: The state of this one is carried by a loop in the program, so that none of it can wait on the host.
ALL_IN_A_LOOP = "loop_in_jit"


@pytest.mark.parametrize("shard", ["optimizer", pytest.param("parameters", marks=pytest.mark.more)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in OFFLOADED else pytest.mark.more) for n in SCRIPTS])
def test_optimizer_state_lies_on_the_host(name, shard, monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_OFFLOADED_BYTES", 256)
    make = lambda: SCRIPTS[name](mesh_of(8))
    change = lambda step: ho.zero(step, shard=shard, offload=True, strict=True)
    before, _, after, state = check_trains_alike(make, change, f"{name} {shard} offloaded")
    if name == ALL_IN_A_LOOP:
        assert not on_host(state)
        return
    assert on_host(after.optimizer(state)), "no optimizer state lies on the host"
    assert not on_host(ho.replicate(state))


def test_a_limit_offloads_as_little_as_it_asks_for(monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_OFFLOADED_BYTES", 256)
    all_of_it, step = plan_of("plain_pytree", "optimizer", offload=True, strict=True)
    free, _ = plan_of("plain_pytree", "optimizer", strict=True)
    n_all = len(all_of_it.sharded.on_host)
    peaks = [plan.sharded.ways[plan.sharded.taken].peak_bytes for plan in (all_of_it, free)]
    assert n_all > 1 and peaks[0] < peaks[1]
    asked = sharding.Asked("optimizer", {}, None, None, True)
    some = sharding.shard(all_of_it.partitioned, asked, sum(peaks) // 2)
    assert 0 < len(some.on_host) < n_all
    none = sharding.shard(all_of_it.partitioned, asked, peaks[1])
    assert not none.on_host
    assert "on the host" in str(ho.report(step))


def test_offloaded_state_goes_wherever_state_goes(monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_OFFLOADED_BYTES", 256)
    script = SCRIPTS["plain_pytree"](mesh_of(8))
    step = ho.zero(script.step, shard="optimizer", offload=True, strict=True)
    *state, _ = step(*script.state, *script.batch(0))
    assert on_host(script.optimizer(state))
    expected = float(script.step(*ho.replicate(tuple(state)), *script.batch(1))[-1])
    with pytest.warns(UserWarning, match="inside of another jit"):
        inside = jax.jit(lambda *args: step(*args)[-1])(*state, *script.batch(1))
    assert float(inside) == pytest.approx(expected, rel=1e-5)
    jax.eval_shape(step, *state, *script.batch(1))
    step.eval_shape(*state, *script.batch(1))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("donated", [(), (1,), (0, 1)])
def test_what_is_donated_says_nothing_of_what_is_state(order, donated, monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_OFFLOADED_BYTES", 256)
    mesh = mesh_of(8)

    def step(params, momentum, x):
        loss_fn = lambda params: jnp.mean(jnp.tanh(jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2)
        loss, grads = jax.value_and_grad(loss_fn)(params)
        momentum = {f"m{n}": 0.9 * momentum[f"m{n}"] + grads[f"w{n}"] for n in (1, 2)}
        params = {f"w{n}": params[f"w{n}"] - 0.1 * momentum[f"m{n}"] for n in (1, 2)}
        outputs = ({"params": params}, {"momentum": momentum}, loss)
        return tuple(outputs[n] for n in order)

    whole = lambda tree: jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
    params = whole({f"w{n}": jnp.asarray(normal(n, 64, 64)) for n in (1, 2)})
    momentum = whole({f"m{n}": jnp.zeros((64, 64)) for n in (1, 2)})
    (x,) = along(mesh, (normal(7, 16, 64),))
    offloading = ho.zero(jax.jit(step, donate_argnums=donated), shard="optimizer", offload=True, strict=True)
    outs = offloading(params, momentum, x)
    assert not on_host([out for out in outs if isinstance(out, dict) and "params" in out])
    assert len(on_host([out for out in outs if isinstance(out, dict) and "momentum" in out])) == 2
