"""``zero`` on training scripts: the same losses and state as the script without it, and state in shards."""

from __future__ import annotations

import re

import hlo_opt.jax as ho
import jax
import numpy as np
import pytest
from training_scripts import SCRIPTS, Script, mesh_of

N_STEPS = 20
#: Leaves below this may stay whole.
LEAF_BYTES = 16 * 1024


def train(script: Script, step, n_steps: int = N_STEPS, perturbation: float = 0.0):
    """Losses and the last state."""
    state = script.state
    if perturbation:
        rng = np.random.default_rng(7)

        def perturbed(leaf):
            if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) and leaf.ndim:
                noise = 1 + perturbation * rng.choice([-1.0, 1.0], leaf.shape)
                value = jax.numpy.asarray(np.asarray(leaf) * noise, leaf.dtype)
                return jax.device_put(value, leaf.sharding) if leaf.committed else value
            return leaf

        state = jax.tree.map(perturbed, state)
    losses = []
    for i in range(n_steps):
        *state, loss = step(*state, *script.batch(i))
        losses.append(float(loss))
    return np.array(losses), state


def numbers(state) -> dict[str, np.ndarray]:
    """The leaves of a state as f64, by their paths."""

    def number(leaf):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf).astype(np.float64)

    return {jax.tree_util.keystr(path): number(leaf) for path, leaf in jax.tree.leaves_with_path(state)}


def distance(a, b) -> float:
    """The largest difference of two leaves, as a share of the larger one's largest element."""
    most = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    return float(np.abs(a - b).max(initial=0.0) / most) if most > 0 else 0.0


@pytest.mark.parametrize("n_devices", [8, *(pytest.param(n, marks=pytest.mark.more) for n in (3, 2))])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_as_it_did(name, n_devices):
    before, state, after, own_state = trained(name, n_devices, "auto")
    check_shards(before.optimizer(state), after.optimizer(own_state), n_devices)


ONE_LAYER_AT_A_TIME = "scan_layers"


@pytest.mark.parametrize("n_devices", [8, *(pytest.param(n, marks=pytest.mark.more) for n in (3, 2))])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == ONE_LAYER_AT_A_TIME else pytest.mark.more) for name in SCRIPTS]
)
def test_weights_lie_in_shards_too(name, n_devices):
    _, state, _, own_state = trained(name, n_devices, 3)
    check_shards(state, own_state, n_devices)


@pytest.mark.more
def test_weights_are_gathered_twice_where_memory_is_short():
    name, n_devices = "flax_transformer", 8
    script = SCRIPTS[name](mesh_of(n_devices))

    def planned(memory_limit=None):
        step = ho.zero(script.step, mode=3, memory_limit=memory_limit, strict=True)
        step.plan(*script.state, *script.batch(0))
        return step.last_plan.sharded.ways[-1]

    free = planned()
    limit = int(0.8 * free.peak_bytes)
    short = planned(limit)
    assert short.peak_bytes <= limit and short.sent_bytes > free.sent_bytes
    trained(name, n_devices, 3, limit)


def trained(name, n_devices: int, mode, memory_limit=None):
    """A script without the line and its state after some steps, and the same with it; losses and state are equal."""
    make = lambda: SCRIPTS[name](mesh_of(n_devices))
    before = make()
    losses, state = train(before, before.step)
    nudged = make()
    nudged_losses, nudged_state = train(nudged, nudged.step, perturbation=6e-8)
    after = make()
    step = ho.zero(after.step, mode=mode, memory_limit=memory_limit, strict=True)
    own_losses, own_state = train(after, step)

    most = np.inf if name == "bf16_masters" else 1e-3
    limit = lambda change, most=most: min(max(2e-5, 10 * change), most)
    assert abs(own_losses[0] - losses[0]) <= 1e-6 * max(1.0, abs(losses[0]))
    assert np.all(np.isfinite(own_losses))
    assert distance(own_losses, losses) <= limit(distance(nudged_losses, losses))
    mine, theirs, near = numbers(own_state), numbers(state), numbers(nudged_state)
    assert list(mine) == list(theirs)
    for path, value in theirs.items():
        is_determined = before.undetermined is None or not re.search(before.undetermined, path)
        change = distance(near[path], value)
        assert distance(mine[path], value) <= (limit(change) if is_determined else max(2e-5, 10 * change)), path
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
