"""Training a script, and holding what comes of it against the same script with a change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from training_scripts import Script

N_STEPS = 20


def perturbed(tree: Any, perturbation: float = 6e-8) -> Any:
    """A tree with each element of its floating-point arrays larger or smaller by this share of it; scalars stay."""
    rng = np.random.default_rng(7)

    def one(leaf):
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) and leaf.ndim:
            noise = 1 + perturbation * rng.choice([-1.0, 1.0], leaf.shape)
            value = jax.numpy.asarray(np.asarray(leaf) * noise, leaf.dtype)
            return jax.device_put(value, leaf.sharding) if leaf.committed else value
        return leaf

    return jax.tree.map(one, tree)


def train(script: Script, step, n_steps: int = N_STEPS, perturbation: float = 0.0):
    """Losses and the last state."""
    state = perturbed(script.state, perturbation) if perturbation else script.state
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


def limit(change: float, most: float = 1e-3) -> float:
    """The distance allowed where a perturbation of the first state by rounding makes ``change`` of it."""
    return min(max(2e-5, 10 * change), most)


def check_alike(plain: tuple, nudged: tuple, own: tuple, undetermined: str | None = None, most: float = 1e-3) -> None:
    """Asserts that the losses and the last state of two runs are equal, but for ten times what rounding makes of them.

    Args:
        plain: losses and state of the script.
        nudged: the same, begun with a :func:`perturbed` state.
        own: the same of the run that is held against it.
        undetermined: as in :class:`Script`.
        most: the largest distance of a leaf, whatever rounding makes of it.
    """
    (losses, state), (nudged_losses, nudged_state), (own_losses, own_state) = plain, nudged, own
    assert abs(own_losses[0] - losses[0]) <= 1e-6 * max(1.0, abs(losses[0]))
    assert np.all(np.isfinite(own_losses))
    assert distance(own_losses, losses) <= limit(distance(nudged_losses, losses), most)
    mine, theirs, near = numbers(own_state), numbers(state), numbers(nudged_state)
    assert list(mine) == list(theirs)
    for path, value in theirs.items():
        is_determined = undetermined is None or not re.search(undetermined, path)
        allowed = limit(distance(near[path], value), most if is_determined else np.inf)
        assert distance(mine[path], value) <= allowed, path


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
    check_alike((losses, state), (nudged_losses, nudged_state), (own_losses, own_state), before.undetermined, most)
    return before, state, after, own_state
