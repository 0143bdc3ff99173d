#!/usr/bin/env python3
"""Weight-update sharding as a person writes it in JAX, beside plain data parallelism: an MLP with Adam on 8 CPU devices.

zero1_by_hand.py WIDTH LAYERS STEPS DIR writes each variant's module as XLA has it right behind its SPMD partitioner,
DIR/<variant>.hlo. The two data-parallel ones are what our pass takes, the four others what its result should be as good as.
Prints a JSON line for each variant: its name and the largest difference of the first weight from the data-parallel one's,
which shows that the hand-written variant is right."""
import glob
import json
import os
import shutil
import sys

N = 8
WIDTH, LAYERS, STEPS = map(int, sys.argv[1:4])
DIR = sys.argv[4]
DUMPS = os.path.join(DIR, "xla")
os.environ["XLA_FLAGS"] = " ".join(
    [
        f"--xla_force_host_platform_device_count={N}",
        f"--xla_dump_to={DUMPS}",
        "--xla_dump_hlo_as_text",
        "--xla_dump_hlo_pass_re=spmd-partitioning",
        "--xla_dump_disable_metadata=true",
        "--xla_dump_max_hlo_modules=-1",
    ]
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402: the flags come first
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

WHOLE, SHARDED = PartitionSpec(), PartitionSpec("d")


def loss(weights, x, y):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def gradients(weights, x, y):
    return jax.value_and_grad(loss)(weights, x, y)[1]


def adam(w, g, m, v, t):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    unbiased_m, unbiased_v = m / (1 - 0.9**t), v / (1 - 0.999**t)
    return w - 1e-3 * unbiased_m / (jnp.sqrt(unbiased_v) + 1e-8), m, v


def update(weights, grads, ms, vs, t):
    """([weights], [first moments], [second moments], step) after a step."""
    t = t + 1
    new = [adam(w, g, m, v, t) for w, g, m, v in zip(weights, grads, ms, vs, strict=True)]
    return [n[0] for n in new], [n[1] for n in new], [n[2] for n in new], t


def shard(whole):
    size = whole.shape[0] // N
    return lax.dynamic_slice_in_dim(whole, lax.axis_index("d") * size, size, 0)


def gather(part):
    return lax.all_gather(part, "d", axis=0, tiled=True)


def mean_shard(gradient):
    return lax.psum_scatter(gradient, "d", scatter_dimension=0, tiled=True) / N


def data_parallel(state, x, y):
    weights, ms, vs, t = state
    return update(weights, [lax.pmean(g, "d") for g in gradients(weights, x, y)], ms, vs, t)


def moments_sharded(state, x, y):
    """The moments come and go in shards; the weights are whole."""
    weights, ms, vs, t = state
    grads = [mean_shard(g) for g in gradients(weights, x, y)]
    parts, ms, vs, t = update([shard(w) for w in weights], grads, ms, vs, t)
    return [gather(p) for p in parts], ms, vs, t


def replicated_interface(state, x, y):
    """One step whose state comes and goes whole."""
    weights, ms, vs, t = state
    weights, ms, vs, t = moments_sharded((weights, [shard(m) for m in ms], [shard(v) for v in vs], t), x, y)
    return weights, [gather(m) for m in ms], [gather(v) for v in vs], t


def loop_of(step):
    return lambda state, x, y: lax.fori_loop(0, STEPS, lambda _, s: step(s, x, y), state)


def loop_moments_sharded(state, x, y):
    """State comes and goes whole; within the loop the moments stay in shards."""
    weights, ms, vs, t = state
    state = weights, [shard(m) for m in ms], [shard(v) for v in vs], t
    weights, ms, vs, t = loop_of(moments_sharded)(state, x, y)
    return weights, [gather(m) for m in ms], [gather(v) for v in vs], t


def loop_all_sharded(state, x, y):
    """So do the weights, gathered at the top of each step."""

    def step(state, x, y):
        parts, ms, vs, t = state
        grads = [mean_shard(g) for g in gradients([gather(p) for p in parts], x, y)]
        return update(parts, grads, ms, vs, t)

    weights, ms, vs, t = state
    parts, ms, vs, t = loop_of(step)((*([shard(a) for a in arrays] for arrays in (weights, ms, vs)), t), x, y)
    return [gather(p) for p in parts], [gather(m) for m in ms], [gather(v) for v in vs], t


VARIANTS = [  # name, step or loop, how the moments stand at the interface, steps
    ("dp_step", data_parallel, WHOLE, 1),
    ("step_sharded_interface", moments_sharded, SHARDED, 1),
    ("step_replicated_interface", replicated_interface, WHOLE, 1),
    ("dp_loop", loop_of(data_parallel), WHOLE, STEPS),
    ("loop_moments_sharded", loop_moments_sharded, WHOLE, STEPS),
    ("loop_all_sharded", loop_all_sharded, WHOLE, STEPS),
]


def main():
    mesh = Mesh(np.array(jax.devices()), ("d",))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((N, WIDTH)).astype(np.float32) for _ in range(2))
    weights = [(rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for _ in range(LAYERS)]

    def put(array, spec):
        return jax.device_put(array, NamedSharding(mesh, spec))

    x, y = put(x, SHARDED), put(y, SHARDED)
    reference = {}
    for name, run, moments, steps in VARIANTS:
        specs = (WHOLE, moments, moments, WHOLE)
        mapped = jax.shard_map(
            run, mesh=mesh, in_specs=(specs, SHARDED, SHARDED), out_specs=specs, check_vma=False
        )
        zeros = [[put(np.zeros_like(w), moments) for w in weights] for _ in range(2)]
        state = ([put(w, WHOLE) for w in weights], *zeros, put(np.float32(0), WHOLE))
        shutil.rmtree(DUMPS, ignore_errors=True)
        executable = jax.jit(mapped, donate_argnums=(0,)).lower(state, x, y).compile()
        dumps = glob.glob(os.path.join(DUMPS, "*after_spmd-partitioning*.txt"))
        if not dumps:
            raise SystemExit(f"{name}: XLA dumped no module behind its partitioner")
        shutil.copy(max(dumps, key=os.path.getsize), os.path.join(DIR, f"{name}.hlo"))
        first = np.asarray(executable(state, x, y)[0][0])
        difference = float(np.abs(first - reference.setdefault(steps, first)).max())
        print(json.dumps(dict(variant=name, difference=difference)), flush=True)
    shutil.rmtree(DUMPS, ignore_errors=True)


if __name__ == "__main__":
    main()
