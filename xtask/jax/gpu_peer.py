#!/usr/bin/env python3
"""Compile a training step for H100s that are only described, and dump what XLA makes of it.

gpu_peer.py --dumps DIR --target FILE [--no-triton], followed by the arguments of make_hlo.py, whose models are compiled: with one device by themselves, with
more along the batch, by XLA's partitioner. Needs the CUDA plugin of
JAX and its compiler, and no GPU. Prints one line of JSON: the bytes of a device as XLA counts them."""
import argparse
import json
import os
import sys
from pathlib import Path

own = argparse.ArgumentParser(prog="gpu_peer.py", allow_abbrev=False)
own.add_argument("--dumps", required=True)
own.add_argument("--target", required=True, help="the description of the GPU")
own.add_argument("--no-triton", action="store_true", help="products by cuBLAS")
own.add_argument("--devices", type=int, default=1)
known, others = own.parse_known_args()
sys.argv = [sys.argv[0], *others, "--out", os.devnull]
flags = [
    # Without a GPU no kernel can be timed.
    "--xla_gpu_autotune_level=0", f"--xla_dump_to={known.dumps}", "--xla_dump_hlo_as_text",
    "--xla_dump_hlo_pass_re=spmd-partitioner", "--xla_dump_max_hlo_modules=-1",
]  # fmt: skip
flags += ["--xla_gpu_enable_triton_gemm=false"] if known.no_triton else []
os.environ["XLA_FLAGS"] = " ".join(flags)

import jax
import make_hlo
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_plugins import xla_cuda13


def described(n_devices):
    """A mesh of GPUs on one switch that are not there."""
    xla_cuda13._load_nvidia_libraries()
    plugin = xla_client.load_pjrt_plugin_dynamically("cuda", str(Path(xla_cuda13.__file__).parent / "xla_cuda_plugin.so"))
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")
    with open(known.target, encoding="utf-8") as f:
        target = f.read()
    topology = xla_client.make_c_api_device_topology(plugin, "", topology=f"1x1x{n_devices}", target_config=target)
    return Mesh(np.array(topology._make_compile_only_devices()), ("data",))


a = make_hlo.arguments()
n_devices = known.devices
mesh = described(n_devices)
step, state, inputs = make_hlo.step_of(a)
whole, along_batch = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
enlarged = lambda x: jax.ShapeDtypeStruct((x.shape[0] * n_devices, *x.shape[1:]), x.dtype, sharding=along_batch)
on_all = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole)
if a.decode:
    weights, caches, position = state
    state = jax.tree.map(on_all, weights), jax.tree.map(enlarged, caches), on_all(position)
else:
    state = jax.tree.map(on_all, state)
inputs = jax.tree.map(enlarged, inputs)
result = along_batch if a.decode else whole
jitted = jax.jit(step, donate_argnums=0, out_shardings=(jax.tree.map(lambda x: x.sharding, state), result))
memory = jitted.lower(state, *inputs).compile().memory_analysis()
names = ("argument", "output", "alias", "temp")
print(json.dumps({name: getattr(memory, f"{name}_size_in_bytes") for name in names}))
