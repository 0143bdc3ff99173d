"""Compiles a training step for eight H100s on a machine without a GPU, with and without ``zero``, and beside GSPMD.

The CUDA plugin compiles for a device that is only described. Needs ``jax-cuda13-plugin``, ``jax-cuda13-pjrt``,
``nvidia-cuda-nvcc`` and
``nvidia-nvvm`` of the version of jax. Run: ``python gpu_compile.py``; it prints a table and fails where what is
promised does not hold.
"""

from __future__ import annotations

import collections
import os
import re
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

#: NVIDIA H100 SXM5 80 GB: the vendor's data sheet and CUDA's table of compute capability 9.0.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  reserved_shared_memory_per_block: 1024
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  name: "NVIDIA H100 80GB HBM3"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
"""

WIDTH, N_LAYERS, BATCH = 1024, 3, 512


def described_devices() -> list:
    """Eight H100s on one switch that are not there."""
    jax.devices()  # loads the plugins
    plugin = xla_client._xla.get_pjrt_plugin("cuda")
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")
    topology = xla_client.make_c_api_device_topology(plugin, "", topology="1x1x8", target_config=H100)
    return topology._make_compile_only_devices()


def figures(compiled) -> dict:
    """Collectives by kind, and bytes on one device."""
    kinds = r" (all-reduce|reduce-scatter|all-gather|async)(-start)?\("
    memory = compiled.memory_analysis()
    return {
        "collectives": dict(collections.Counter("".join(found) for found in re.findall(kinds, compiled.as_text()))),
        "arguments": memory.argument_size_in_bytes,
        "alias": memory.alias_size_in_bytes,
        "own": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
    }


def main() -> int:
    mesh = Mesh(np.array(described_devices()), ("data",))
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    tx = optax.adam(1e-3)

    def step(params, opt, x, y):
        def loss_fn(params):
            h = x
            for layer in params:
                h = jnp.tanh(h @ layer["w"] + layer["b"])
            return jnp.mean((h - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def described(tree, sharding):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding(a)), tree)

    layer = {"w": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32), "b": jax.ShapeDtypeStruct((WIDTH,), jnp.float32)}
    params = described([layer] * N_LAYERS, lambda _: whole)
    opt = described(jax.eval_shape(tx.init, params), lambda _: whole)
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32, sharding=cut)
    jitted = jax.jit(step, donate_argnums=(0, 1))

    rows, seconds = {}, {}
    begin = time.perf_counter()
    rows["as it is"] = figures(jitted.lower(params, opt, batch, batch).compile())
    seconds["as it is"] = time.perf_counter() - begin
    in_shards = lambda a: cut if a.ndim else whole
    gspmd = jax.jit(
        step,
        donate_argnums=(0, 1),
        out_shardings=(jax.tree.map(lambda _: whole, params), jax.tree.map(in_shards, opt), whole),
    )
    begin = time.perf_counter()
    rows["GSPMD, P('data') on optimizer state"] = figures(
        gspmd.lower(params, described(opt, in_shards), batch, batch).compile()
    )
    seconds["GSPMD, P('data') on optimizer state"] = time.perf_counter() - begin
    for mode in (1, 2):
        zero = ho.zero(jitted, mode=mode, machine="h100", strict=True)
        begin = time.perf_counter()
        rows[f"zero, mode={mode}"] = figures(zero.lower(params, opt, batch, batch).compile())
        seconds[f"zero, mode={mode}"] = time.perf_counter() - begin

    print(f"{'':36} {'arguments':>10} {'alias':>10} {'all of it':>10} {'compile s':>9}  collectives")
    for name, row in rows.items():
        sizes = " ".join(f"{row[key] / 1e6:10.1f}" for key in ("arguments", "alias", "own"))
        print(f"{name:36} {sizes} {seconds[name]:9.1f}  {row['collectives']}")
    failures = []
    base, total = rows["as it is"], sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((params, opt)))
    for mode, most in ((1, total / 3 + total * 2 / 3 / 8), (2, total / 8)):
        row = rows[f"zero, mode={mode}"]
        inputs = 2 * BATCH * WIDTH * 4 / 8
        if row["arguments"] > (most + inputs) * 1.02:
            failures.append(f"mode {mode}: expected arguments of {most + inputs:.0f} bytes, found {row['arguments']}")
        if row["alias"] < (row["arguments"] - inputs) * 0.98:
            failures.append(f"mode {mode}: expected donated state to keep its place, found alias {row['alias']}")
        if row["own"] > base["own"]:
            failures.append(f"mode {mode}: expected at most {base['own']} bytes in all, found {row['own']}")
        if not any(kind.startswith("reduce-scatter") for kind in row["collectives"]):
            failures.append(f"mode {mode}: expected a reduce-scatter, found {row['collectives']}")
    print("\n".join(failures) or "all that is promised holds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
