"""Compiles a training step for eight H100s on a machine without a GPU, with the CUDA plugin and with the wrapper round it.

The CUDA plugin has the extension XlaTransform, so this is the native route: JAX sends StableHLO, XLA partitions it, and
the callback that the wrapper registered gets the partitioned module. Needs ``jax-cuda13-plugin``, ``jax-cuda13-pjrt``,
``nvidia-cuda-nvcc`` and ``nvidia-nvvm`` of the version of jax. Run: ``python gpu_compile.py LIBHLO_PJRT_SO``; it prints
what was compiled and fails where what is promised does not hold.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
#: NVIDIA H100 SXM5 80 GB, described beside the other test that compiles for it.
H100 = HERE.parent.parent / "hlo-jax" / "tests" / "h100.txtpb"
WIDTH, N_LAYERS, BATCH = 1024, 3, 512


def compile_step(wrapper: str | None) -> dict:
    """What XLA makes of the step: collectives by kind, bytes on one device, seconds."""
    import jax_plugins.xla_cuda13 as cuda
    from jax._src.lib import xla_client

    if wrapper is not None:
        # The wrapper takes the plugin's place, and loads it.
        os.environ["HLO_OPT_PJRT_PLUGIN"] = str(cuda._get_library_path())
        cuda._get_library_path = lambda: pathlib.Path(wrapper)

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.devices()  # loads the plugins
    plugin = xla_client._xla.get_pjrt_plugin("cuda")
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")
    topology = xla_client.make_c_api_device_topology(plugin, "", topology="1x1x8", target_config=H100.read_text())
    mesh = Mesh(np.array(topology._make_compile_only_devices()), ("data",))
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def step(params, first, second, x, y):
        def loss_fn(params):
            h = x
            for w in params:
                h = jnp.tanh(h @ w)
            return jnp.mean((h - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, grads)]
        second = [0.999 * v + 0.001 * g * g for v, g in zip(second, grads)]
        params = [w - 1e-3 * m / (jnp.sqrt(v) + 1e-8) for w, m, v in zip(params, first, second)]
        return params, first, second, loss

    state = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=whole)] * N_LAYERS
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32, sharding=cut)
    jitted = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=whole)
    lowered = jitted.lower(state, state, state, batch, batch)
    begin = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - begin
    kinds = r" (all-reduce|reduce-scatter|all-gather|async)(-start)?\("
    memory = compiled.memory_analysis()
    return {
        "collectives": dict(collections.Counter("".join(found) for found in re.findall(kinds, compiled.as_text()))),
        "arguments": memory.argument_size_in_bytes,
        "alias": memory.alias_size_in_bytes,
        "temp": memory.temp_size_in_bytes,
        "seconds": seconds,
    }


def run(wrapper: str | None, **environment: str) -> tuple[dict | None, str]:
    """The figures of a process of its own, none where the compile failed; and what it said."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_gpu_autotune_level=0", **environment}
    command = [sys.executable, __file__, "--one", *([wrapper] if wrapper else [])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None), done.stderr


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(compile_step(sys.argv[2] if len(sys.argv) > 2 else None)))
        return 0
    wrapper = str(pathlib.Path(sys.argv[1]).resolve())
    pipeline = "shard-weight-update,combine-collectives,dce"
    runs = {
        "the plugin itself": run(None),
        "wrapped, off": run(wrapper, HLO_OPT="off"),
        "wrapped": run(wrapper, HLO_OPT_MACHINE="h100"),
        f"wrapped, {pipeline}": run(wrapper, HLO_OPT_PIPELINE=pipeline, HLO_OPT_MACHINE="h100"),
        "wrapped, a pipeline that is none": run(wrapper, HLO_OPT_PIPELINE="no-such-pass"),
        "the same, strict": run(wrapper, HLO_OPT_PIPELINE="no-such-pass", HLO_OPT_STRICT="1"),
    }
    for name, (figures, said) in runs.items():
        print(f"{name}: {figures}")
        print("\n".join(f"    {line}" for line in said.splitlines() if "hlo-opt" in line)[:1500])
    base, _ = runs["the plugin itself"]
    off, _ = runs["wrapped, off"]
    changed, said = runs[f"wrapped, {pipeline}"]
    default, default_said = runs["wrapped"]
    failed, failed_said = runs["wrapped, a pipeline that is none"]
    strict, strict_said = runs["the same, strict"]

    def without_time(figures: dict | None) -> dict | None:
        return figures and {key: value for key, value in figures.items() if key != "seconds"}

    checks = {
        "the plugin compiles": base is not None,
        "off: the same program": without_time(off) == without_time(base),
        "default: compiled, with a line or as it was": default is not None
        and ("hlo-opt: jit_step: " in default_said or without_time(default) == without_time(base)),
        "no reduce-scatter without": base is not None and not any("scatter" in k for k in base["collectives"]),
        "a reduce-scatter with": changed is not None and any("scatter" in k for k in changed["collectives"]),
        "one line": said.count("hlo-opt: jit_step: ") == 1,
        "aliases stay": changed is not None and base is not None and changed["alias"] == base["alias"],
        "arguments stay": changed is not None and base is not None and changed["arguments"] == base["arguments"],
        "failure: the same program": without_time(failed) == without_time(base),
        "failure: one warning": failed_said.count("hlo-opt: warning: jit_step: compiled as it came: ") == 1,
        "strict: an error that says why": strict is None and "HLO_OPT_STRICT=1" in strict_said,
    }
    for what, holds in checks.items():
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
