"""Steps by ``zero`` beside ZeRO-1 written by hand and beside plain ``jax.jit``: medians of interleaved calls.

``python bench.py [--pairs 15]`` on eight CPU devices. It prints ratios, and fails where they are above their bounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import flax.linen as nn  # noqa: E402
import hlo_opt.jax as ho  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from training_scripts import Block, along, mesh_of, normal, whole  # noqa: E402

N_DEVICES = 8
MESH = mesh_of(N_DEVICES)
#: A step may take this much of the one written by hand, and the host's part of a call this much of plain jit's.
MOST_OF_BY_HAND, MOST_OF_PLAIN_CALL = 1.05, 1.3


class Mlp(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = jnp.tanh(nn.Dense(self.width)(x))
        return x


class Transformer(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = Block(self.width)(x, True)
        return nn.Dense(self.width)(nn.LayerNorm()(x))


def shard_dim(leaf) -> int | None:
    """The dim along which a leaf is cut by hand: the first that is a multiple of the devices."""
    return next((dim for dim, size in enumerate(leaf.shape) if size and size % N_DEVICES == 0), None)


def spec(leaf) -> P:
    dim = shard_dim(leaf)
    return P() if dim is None else P(*[None] * dim, "data")


def make_steps(model: nn.Module, example: jax.Array, tx: optax.GradientTransformation) -> tuple[Callable, Callable]:
    """The step that a user has, and ZeRO-1 by hand: reduce-scatter, update of a share, all-gather."""

    def loss_fn(params, x, y):
        return jnp.mean((model.apply(params, x) - y) ** 2)

    def plain(params, opt, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def scatter(grad):
        dim = shard_dim(grad)
        if dim is None:
            return lax.pmean(grad, "data")
        return lax.psum_scatter(grad, "data", scatter_dimension=dim, tiled=True) / N_DEVICES

    def share(param):
        dim = shard_dim(param)
        if dim is None:
            return param
        size = param.shape[dim] // N_DEVICES
        return lax.dynamic_slice_in_dim(param, lax.axis_index("data") * size, size, dim)

    def by_hand(params, opt, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        grads, shares = jax.tree.map(scatter, grads), jax.tree.map(share, params)
        updates, opt = tx.update(grads, opt, shares)
        shares = optax.apply_updates(shares, updates)

        def gather(new, param):
            dim = shard_dim(param)
            return new if dim is None else lax.all_gather(new, "data", axis=dim, tiled=True)

        return jax.tree.map(gather, shares, params), opt, lax.pmean(loss, "data")

    params = jax.eval_shape(model.init, jax.random.key(0), example)
    of_opt = jax.tree.map(spec, jax.eval_shape(tx.init, params))
    mapped = jax.shard_map(
        by_hand,
        mesh=MESH,
        in_specs=(P(), of_opt, P("data"), P("data")),
        out_specs=(P(), of_opt, P()),
        check_vma=False,
    )
    return jax.jit(plain, donate_argnums=(0, 1)), jax.jit(mapped, donate_argnums=(0, 1))


def interleaved(first: Callable[[], float], second: Callable[[], float], n_pairs: int) -> tuple[float, float]:
    """Medians of seconds of two things that are done in turn, the order changing."""
    times: tuple[list, list] = ([], [])
    for pair in range(n_pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            times[which].append((first, second)[which]())
    return statistics.median(times[0]), statistics.median(times[1])


class Loop:
    """A training loop, one step at a time."""

    def __init__(self, step: Callable, state: tuple, batch: tuple) -> None:
        self.step, self.state, self.batch = step, state, batch
        for _ in range(3):
            self.run()

    def run(self) -> float:
        """Seconds until the step has ended."""
        begin = time.perf_counter()
        *self.state, self.loss = self.step(*self.state, *self.batch)
        jax.block_until_ready((self.state, self.loss))
        return time.perf_counter() - begin

    def call(self) -> float:
        """Seconds until the call returns, which is the host's part."""
        begin = time.perf_counter()
        *self.state, self.loss = self.step(*self.state, *self.batch)
        seconds = time.perf_counter() - begin
        jax.block_until_ready((self.state, self.loss))
        return seconds


def beside_by_hand(name: str, model: nn.Module, shape: tuple[int, ...], n_pairs: int) -> bool:
    tx = optax.adamw(1e-3)
    x, y = along(MESH, (normal(1, *shape), normal(2, *shape)))
    plain, hand = make_steps(model, x[:1], tx)

    def state(sharding_of_opt):
        params = jax.tree.map(np.asarray, model.init(jax.random.key(0), x[:1]))
        opt = jax.tree.map(np.asarray, tx.init(params))
        return whole(MESH, params), jax.device_put(opt, sharding_of_opt(params))

    cut = lambda params: jax.tree.map(lambda leaf: NamedSharding(MESH, spec(leaf)), tx.init(params))
    rep = lambda _: NamedSharding(MESH, P())
    hand_loop = Loop(hand, state(cut), (x, y))
    expected = float(Loop(plain, state(rep), (x, y)).loss)
    np.testing.assert_allclose(float(hand_loop.loss), expected, rtol=1e-3)
    passed = True
    for shard in ("optimizer", "parameters"):
        zero = ho.zero(plain, shard=shard, strict=True)
        loop = Loop(zero, state(rep), (x, y))
        np.testing.assert_allclose(float(loop.loss), expected, rtol=1e-3)
        ours, theirs = interleaved(loop.run, hand_loop.run, n_pairs)
        # By hand, weights are whole as with shard="optimizer"; the other is shown beside it.
        passed &= shard != "optimizer" or ours <= MOST_OF_BY_HAND * theirs
        print(f"{name}, shard={shard!r}: {ours * 1e3:.1f} ms, by hand {theirs * 1e3:.1f} ms, ratio {ours / theirs:.3f}")
    return passed


def beside_plain_jit(n_leaves: int, n_pairs: int) -> bool:
    """The host's part of a call whose program has next to nothing to do, beside plain jit of the same program, with
    the same arguments and shardings."""

    def step(params, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(params[0])
        return [params[0] - 0.1 * grad, *params[1:]], loss

    x = along(MESH, (normal(0, 64, 16),))
    params = [np.ones((16, 16), np.float32), *(np.ones(8, np.float32) for _ in range(n_leaves - 1))]
    zero = ho.zero(jax.jit(step, donate_argnums=0), shard="parameters", strict=True)
    loop = Loop(zero, (whole(MESH, params),), x)
    (in_place,) = jax.tree.map(lambda leaf: leaf.sharding, loop.state)
    program = zero.last_plan.function

    def same(params, x):
        *params, loss = program(*params, x)
        return params, loss

    of_loss = NamedSharding(MESH, P())
    plain = jax.jit(same, donate_argnums=0, in_shardings=(in_place, x[0].sharding), out_shardings=(in_place, of_loss))
    plain_loop = Loop(plain, (jax.device_put(params, in_place),), x)
    ours, theirs = interleaved(loop.call, plain_loop.call, n_pairs)
    print(f"call of {n_leaves} leaves: {ours * 1e3:.2f} ms, plain jit {theirs * 1e3:.2f} ms, ratio {ours / theirs:.3f}")
    return ours <= MOST_OF_PLAIN_CALL * theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="calls of each, in turn (default 15)")
    n_pairs = parser.parse_args().pairs
    passed = [
        beside_plain_jit(100, 4 * n_pairs),
        beside_plain_jit(1000, 4 * n_pairs),
        *(beside_by_hand(f"MLP 4 x {width}", Mlp(width), (64, width), n_pairs) for width in (512, 1024)),
        beside_by_hand("Transformer 4 x 512", Transformer(512), (8, 64, 512), n_pairs),
    ]
    print("all within their bounds" if all(passed) else "above its bound: see the ratios")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
