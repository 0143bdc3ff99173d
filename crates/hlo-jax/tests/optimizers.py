"""Takes five steps of each optimizer that optax exports, with and without ``ho.zero``: ``python optimizers.py``.

Tries those that defaults, or a rate alone, construct. Prints whether results are equal, and whose state is sharded."""

from __future__ import annotations

import collections
import inspect
import warnings
from collections.abc import Iterator

import conftest  # noqa: F401 (eight devices)
import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
from test_contract import WIDTH, large, loss_of, weights
from training import check_alike, perturbed
from training_scripts import along, mesh_of, normal, whole

N_STEPS = 5


def exported() -> Iterator[tuple[str, optax.GradientTransformation]]:
    """Names and transformations, in order."""
    for module, place in ((optax, "optax"), (optax.contrib, "optax.contrib")):
        for name, make in sorted(vars(module).items()):
            if name.startswith("_") or not callable(make) or inspect.isclass(make):
                continue
            for arguments in ((), (1e-2,)):
                try:
                    made = make(*arguments)
                except Exception:  # It needs other arguments, or is no transformation.
                    continue
                if isinstance(made, optax.GradientTransformation):
                    # A scale alone has no rate, and with one of 1 training leaves all bounds.
                    has_rate = not name.startswith("scale_by_")
                    yield f"{place}.{name}", made if has_rate else optax.chain(made, optax.scale(-1e-2))
                    break


def step_of(tx: optax.GradientTransformation):
    def step(params, opt_state, x):
        value_fn = lambda params: loss_of(params, x)
        loss, grads = jax.value_and_grad(value_fn)(params)
        # What some of them take beside the gradients.
        of_line_search = {"value": loss, "grad": grads, "value_fn": value_fn}
        for more in ({}, of_line_search, {"obj_fn": value_fn}):
            try:
                updates, opt_state = tx.update(grads, opt_state, params, **more)
            except (TypeError, ValueError) as error:
                failure = error
            else:
                return optax.apply_updates(params, updates), opt_state, loss
        raise failure

    return step


def run(step, mesh, state) -> tuple:
    state, losses = jax.tree.map(jnp.copy, whole(mesh, state)), []
    for i in range(N_STEPS):
        *state, loss = step(*state, *along(mesh, (normal(20 + i, 16, WIDTH),)))
        losses.append(float(loss))
    return np.array(losses), tuple(state)


def tried(tx: optax.GradientTransformation) -> tuple[str, str]:
    """What came of an optimizer, and which of its state of 16 KiB and more is whole, or why the step runs as it was."""
    mesh, body, params = mesh_of(8), step_of(tx), weights()
    try:
        state = params, tx.init(params)
        plain = run(jax.jit(body), mesh, state)
    except Exception as error:
        return "does not run without zero", type(error).__name__
    step = ho.zero(jax.jit(body), quiet=True)
    own = run(step, mesh, state)
    held = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(own[1][1]) if large(leaf)]
    left = [name for name, leaf in held if not isinstance(leaf, ho.PaddedArray) and leaf.sharding.is_fully_replicated]
    declined = ho.report(step).declined
    if declined is not None:
        return ("runs as it was, with large state" if left else "runs as it was, without large state"), declined
    try:
        check_alike(plain, run(jax.jit(body), mesh, perturbed(state)), own)
    except AssertionError as error:
        return "differs", str(error).splitlines()[0]
    return ("equal, some large state whole" if left else "equal, all large state in shards"), ", ".join(left)


def main() -> None:
    warnings.simplefilter("ignore")
    found = collections.defaultdict(list)
    for name, tx in exported():
        how, why = tried(tx)
        found[how].append(name)
        print(f"{name}: {how}{': ' + why if why else ''}", flush=True)
    for how, names in found.items():
        print(f"| {how} | {len(names)} | {', '.join(names)} |")


if __name__ == "__main__":
    main()
