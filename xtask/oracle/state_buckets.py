"""A data-parallel training step with Adam in two forms, to price buckets of state: how fast is a step whose small vectors have
their weights and moments in one flat array each, beside one where each vector has its own?

state_buckets.py separate|bucket LAYERS WIDTH ROWS FILE   writes the module of 8 devices as XLA has it after its SPMD partitioner.

The model has the weights of GPT-2: for each layer four matrices and eight vectors, and two vectors at the end; no attention.
`hlo-opt --preset sharded-state` takes the file, and `hlo-opt analyze time` says how long a step takes."""

import glob
import os
import shutil
import sys
import tempfile

FORM, LAYERS, WIDTH, ROWS, FILE = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
assert FORM in ("separate", "bucket"), FORM
DUMP = tempfile.mkdtemp()
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_dump_hlo_as_text --xla_dump_disable_metadata=true "
    f"--xla_dump_hlo_pass_re=spmd-partitioning --xla_dump_to={DUMP}"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

MATRICES = LAYERS * [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
VECTORS = LAYERS * [WIDTH, WIDTH, 3 * WIDTH, WIDTH, WIDTH, WIDTH, 4 * WIDTH, WIDTH] + [WIDTH, WIDTH]
PLACES = np.cumsum([0] + VECTORS)


def normalized(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def loss(matrices, vectors, x, y):
    for layer in range(LAYERS):
        w, v = matrices[4 * layer : 4 * layer + 4], vectors[8 * layer : 8 * layer + 8]
        q = normalized(x, v[0], v[1]) @ w[0] + v[2]
        x = x + jnp.tanh(q[:, :WIDTH]) * q[:, WIDTH : 2 * WIDTH] @ w[1] + v[3]
        x = x + jnp.tanh(normalized(x, v[4], v[5]) @ w[2] + v[6]) @ w[3] + v[7]
    return jnp.mean((normalized(x, vectors[-2], vectors[-1]) - y) ** 2)


def updated(weight, m, v, local_gradient, t):
    g = lax.pmean(local_gradient, "d")
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return weight - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


def step(state, x, y):
    matrices, vectors, t = state
    is_bucket = FORM == "bucket"
    parts = [vectors[0][a:b] for a, b in zip(PLACES, PLACES[1:])] if is_bucket else [v[0] for v in vectors]
    gradient = jax.grad(lambda weights: loss(*weights, x, y))(([m[0] for m in matrices], parts))
    t = t + 1
    new_matrices = [updated(*state, g, t) for state, g in zip(matrices, gradient[0])]
    if is_bucket:
        return new_matrices, updated(*vectors, jnp.concatenate(gradient[1]), t), t
    return new_matrices, [updated(*state, g, t) for state, g in zip(vectors, gradient[1])], t


def array(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def main():
    vectors = 3 * (array(int(PLACES[-1])),) if FORM == "bucket" else [3 * (array(size),) for size in VECTORS]
    state = [3 * (array(*dims),) for dims in MATRICES], vectors, array()
    whole, cut = PartitionSpec(), PartitionSpec("d")
    mesh = Mesh(np.array(jax.devices()), ("d",))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, cut, cut), out_specs=whole, check_vma=False)
    jax.jit(mapped, donate_argnums=(0,)).lower(state, array(ROWS, WIDTH), array(ROWS, WIDTH)).compile()
    (dump,) = glob.glob(os.path.join(DUMP, "*jit_step*after_spmd-partitioning*"))
    shutil.copy(dump, FILE)
    shutil.rmtree(DUMP)


main()
