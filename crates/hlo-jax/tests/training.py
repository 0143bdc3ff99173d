"""Training a script, and holding what comes of it against the same script with a change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from training_scripts import Script

N_STEPS = 20


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


def check_trains_alike(make: Callable[[], Script], changed: Callable[[Any], Any], name: str) -> tuple:
    """A script and its state after some steps, and the same with its step changed; losses and state are equal, but for
    ten times what a perturbation of the first state by rounding makes of them."""
    before = make()
    losses, state = train(before, before.step)
    nudged = make()
    nudged_losses, nudged_state = train(nudged, nudged.step, perturbation=6e-8)
    after = make()
    step = changed(after.step)
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
    return before, state, after, own_state
