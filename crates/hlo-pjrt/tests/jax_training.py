"""Trains through a plugin, and through the wrapper round it: the losses must be the same bit for bit.

JAX sends StableHLO, which the wrapper passes on where the plugin has no XlaTransform. Run:
``python jax_training.py LIBHLO_PJRT_SO PLUGIN_SO``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

N_DEVICES, N_STEPS, WIDTH = 8, 10, 64


def train(library: str) -> list[str]:
    """Losses of some steps of data-parallel training, exactly."""
    from jax._src import xla_bridge

    name = "under_test"
    xla_bridge.register_plugin(name, library_path=library, options={"cpu_device_count": N_DEVICES})
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = jax.devices(name)
    assert len(devices) == N_DEVICES, devices
    mesh = Mesh(np.array(devices), ("data",))
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    @jax.jit
    def step(weights, momenta, x, y):
        def loss_fn(weights):
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return jnp.mean((h - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(weights)
        momenta = [0.9 * m + g for m, g in zip(momenta, grads)]
        return [w - 0.1 * m for w, m in zip(weights, momenta)], momenta, loss

    draw = np.random.default_rng(0)
    array = lambda *dims: draw.standard_normal(dims, dtype=np.float32)
    weights = jax.device_put([array(WIDTH, WIDTH) / 8 for _ in range(2)], whole)
    momenta = jax.device_put([np.zeros((WIDTH, WIDTH), np.float32)] * 2, whole)
    losses = []
    for _ in range(N_STEPS):
        x, y = jax.device_put((array(8 * N_DEVICES, WIDTH), array(8 * N_DEVICES, WIDTH)), cut)
        weights, momenta, loss = step(weights, momenta, x, y)
        losses.append(float(loss).hex())
    return losses


def run(library: str, **environment: str) -> tuple[list[str] | None, str]:
    """The losses of a process of its own, none where it failed; and what it said."""
    env = {**os.environ, "JAX_PLATFORMS": "under_test", **environment}
    command = [sys.executable, __file__, "--one", library]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None), done.stderr


def main() -> int:
    if sys.argv[1] == "--one":
        print(json.dumps(train(sys.argv[2])))
        return 0
    wrapper, plugin = map(os.path.abspath, sys.argv[1:])
    losses, said = run(plugin)
    if losses is None:
        print(f"{plugin} does not train\n{said}")
        return 1
    print(f"losses of the plugin itself: {[float.fromhex(loss) for loss in losses]}")
    wrapped, wrapped_said = run(wrapper, HLO_OPT_PJRT_PLUGIN=plugin, HLO_OPT_LOG="all")
    off, off_said = run(wrapper, HLO_OPT_PJRT_PLUGIN=plugin, HLO_OPT_LOG="all", HLO_OPT="off")
    nothing, nothing_said = run(wrapper, HLO_OPT_PJRT_PLUGIN="")
    missing, missing_said = run(wrapper, HLO_OPT_PJRT_PLUGIN="no-such-plugin.so")
    no_plugin = "hlo-opt: warning: no PJRT plugin: "
    checks = {
        "losses fall and are distinct": len(set(losses)) == N_STEPS
        and float.fromhex(losses[-1]) < float.fromhex(losses[0]),
        "wrapped: the same losses": wrapped == losses,
        "wrapped: programs pass through, and it says so": "expected a program of format `hlo`, found `mlir`"
        in wrapped_said,
        "off: the same losses, and not a word": off == losses and "hlo-opt" not in off_said,
        "no plugin named: an error and one sentence": nothing is None and nothing_said.count(no_plugin) == 1,
        "a plugin that is not there: the same": missing is None and missing_said.count(no_plugin) == 1,
    }
    for what, holds in checks.items():
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    if not all(checks.values()):
        print(wrapped_said, off_said, nothing_said, missing_said, sep="\n----\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
