"""How long the first call of a step by ``zero`` takes to compile beside the step as it is: medians of interleaved pairs.

``python compile_time.py [--gpu] [--pairs 3] [SCRIPT …]`` on eight CPU devices, or for eight H100s that are only
described. It prints ratios and where the time goes, and fails where a ratio is above its bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
IS_GPU = "--gpu" in sys.argv
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0" if IS_GPU else "--xla_force_host_platform_device_count=8"

import hlo_opt.jax as ho  # noqa: E402
import jax  # noqa: E402
from hlo_opt.jax import partitioned, plan, private  # noqa: E402
from training_scripts import SCRIPTS, mesh_of  # noqa: E402

#: The compile may take this much of the plain one.
MOST = 1.1 if IS_GPU else 2.5

#: Seconds of the parts of the last compile.
PARTS: dict[str, float] = {}


def timed(place: Any, name: str, part: str) -> None:
    """Adds the time of a function to that of a part."""
    function = getattr(place, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            PARTS[part] = PARTS.get(part, 0.0) + time.perf_counter() - begin

    setattr(place, name, wrapper)


def seconds(step: Any, arguments: tuple, is_ours: bool) -> float:
    """From nothing to a program that can be called."""
    jax.clear_caches()
    PARTS.clear()
    begin = time.perf_counter()
    if is_ours:
        ho.zero(step, shard="parameters", machine="h100", strict=True).plan(*arguments)
    else:
        step.lower(*arguments).compile()
    return time.perf_counter() - begin


def main() -> int:
    # The function hides the module of its name.
    zero_module = sys.modules["hlo_opt.jax.zero"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="for eight H100s that are only described")
    parser.add_argument("--pairs", type=int, default=3, help="compiles of each, in turn (default 3)")
    parser.add_argument("scripts", nargs="*", default=["flax_transformer", "flax_mlp", "scan_layers"], metavar="SCRIPT")
    options = parser.parse_args()
    if options.gpu:
        from described_h100 import described_mesh

        mesh = described_mesh()
    else:
        mesh = mesh_of(8)
    timed(partitioned, "dumped_module", "XLA until it has partitioned")
    timed(zero_module, "partitioned_by_xla", "partition in all")
    timed(zero_module, "shard", "passes")
    timed(private, "stablehlo_of", "to StableHLO")
    timed(plan.Plan, "make", "lowering and XLA's compile of the result")
    is_within = True
    for name in options.scripts:
        script = SCRIPTS[name](mesh, width=256, rows=16)
        arguments = (*script.state, *script.batch(0))
        for is_ours in (True, False):
            seconds(script.step, arguments, is_ours)
        times: tuple[list, list] = ([], [])
        parts: list[dict] = []
        for pair in range(options.pairs):
            for is_ours in (True, False) if pair % 2 else (False, True):
                times[is_ours].append(seconds(script.step, arguments, is_ours))
                if is_ours:
                    parts.append(dict(PARTS))
        plain, ours = map(statistics.median, times)
        print(f"{name}: {ours:.2f} s, plain {plain:.2f} s, ratio {ours / plain:.2f}, at most {MOST}", flush=True)
        for part in parts[0]:
            print(f"    {part}: {statistics.median(found[part] for found in parts):.2f} s", flush=True)
        is_within &= ours <= MOST * plain
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
