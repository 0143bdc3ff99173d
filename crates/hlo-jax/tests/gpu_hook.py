"""Compiles steps for eight described H100s with and without ``enable``: what the hook changes, what it leaves, and what
happens where it fails.

Needs what ``gpu_compile.py`` needs. Run: ``python gpu_hook.py``; it prints what was compiled, and fails where what is
promised does not hold.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
# Without a GPU no kernel can be timed.
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"

import hlo_opt.jax as ho
import jax
from described_h100 import described_mesh
from gpu_compile import Compiled, compiled
from hlo_opt import _native
from hlo_opt.jax import private
from parallel_layers import lower_step
from training_scripts import SCRIPTS

#: What changes each step, whatever it is predicted to be worth.
SHARDED = "shard-weight-update{profit=always},dce"
FAILING = "shard-weight-update{state=auto},dce"


def compile_step(name: str) -> Compiled:
    """As :func:`compile_anew`, without the executable."""
    return compile_anew(name)[0]


def compile_anew(name: str) -> tuple[Compiled, Any]:
    """What XLA makes of a script's step, which is made anew so that nothing compiled before is found."""
    script = SCRIPTS[name](described_mesh(), width=512, rows=64)
    return compiled(lambda: script.step.lower(*script.state, *script.batch(0)))


@contextlib.contextmanager
def enabled(*args: object, **options: object) -> Iterator[None]:
    ho.enable(*args, machine="h100", **options)
    try:
        yield
    finally:
        ho.disable()


def kinds(row: Compiled) -> dict[str, int]:
    return dict(collections.Counter(exchange.kind for exchange in row.exchanges))


def figures(row: Compiled) -> tuple:
    return (row.arguments, row.outputs, row.alias, row.temp, kinds(row))


def show(name: str, row: Compiled) -> None:
    print(
        f"{name:44} {row.arguments / 1e6:9.1f} {row.alias / 1e6:8.1f} {row.own / 1e6:8.1f} {row.step_s * 1e6:8.0f}  "
        f"{kinds(row)}"
    )


def sums_beside_work(row: Compiled) -> list[int]:
    """How many all-reduces XLA starts and ends with other work between, and how many there are."""
    sums = [exchange.is_async for exchange in row.exchanges if exchange.kind == "all-reduce"]
    return [sum(sums), len(sums)]


def layers_in_parts() -> dict[str, bool]:
    """What ``enable`` does to layers that are cut within."""
    lower = lambda: lower_step(described_mesh(), rows=2, length=4096, width=4096, hidden=14336)
    base = compiled(lower)[0]
    show("layers cut within, as they are", base)
    with enabled():
        parts = compiled(lower)[0]
    show("layers cut within, enable()", parts)
    (n_before, of_before), (n_after, of_after) = sums_beside_work(base), sums_beside_work(parts)
    print(f"    all-reduces beside other work: {n_before} of {of_before} as they are, {n_after} of {of_after} in parts")
    return {
        "layers cut within: most sums wait as they are": n_before < of_before / 2,
        "layers cut within: all sums but one at most run beside work": n_after >= of_after - 1 > of_before,
        "layers cut within: no more memory": parts.own <= base.own,
        "layers cut within: faster by a tenth": parts.step_s <= 0.9 * base.step_s,
    }


def ordered_s(executable: Any) -> float:
    """The predicted time of what XLA runs, in the order in which it has scheduled it."""
    (final,) = executable.runtime_executable().hlo_modules()
    args = ["analyze", "time", "--as-ordered", "--machine", "h100", "--num-partitions", "8", "--format", "json", "-"]
    code, out, said = _native.run(args, final.as_serialized_hlo_module_proto())
    if code != 0:
        raise ValueError(said.strip())
    return json.loads(out)["critical_path_s"]


def ordered_anew() -> dict[str, bool]:
    """What ``enable(schedule=True)`` does to what XLA has scheduled."""
    base, executable = compile_anew("scan_layers")
    before_s = ordered_s(executable)
    with enabled("dce", schedule=True):
        again, executable = compile_anew("scan_layers")
        said = ho.hooked()
    after_s = ordered_s(executable)
    show("scan_layers, as it is", base)
    show("scan_layers, enable(schedule=True)", again)
    print(f"    in XLA's order {before_s * 1e6:.1f} µs, in ours {after_s * 1e6:.1f} µs predicted")
    lines = [line for level, line in said.lines if level == "change"]
    promised = re.search(r"([0-9.]+) -> ([0-9.]+) µs predicted in the order", lines[0]) if len(lines) == 1 else None
    return {
        "ordered anew: XLA keeps the order, by its predicted time": promised is not None
        and promised.groups() == (f"{before_s * 1e6:.1f}", f"{after_s * 1e6:.1f}"),
        "ordered anew: faster by a tenth": after_s <= 0.9 * before_s,
        "ordered anew: no more memory": again.own <= base.own,
        "ordered anew: the same collectives": kinds(again) == kinds(base) and again.alias == base.alias,
    }


def main() -> int:
    checks: dict[str, bool] = {}
    print(f"{'':44} {'arguments':>9} {'alias':>8} {'in all':>8} {'µs':>8}  collectives (MB, predicted µs of all runs)")
    for name in ("loop_in_jit", "plain_pytree"):
        base = compile_step(name)
        show(f"{name}, as it is", base)
        with enabled():
            default = compile_step(name)
            said = ho.hooked()
        show(f"{name}, enable()", default)
        print("    " + "\n    ".join(f"{level}: {line}" for level, line in said.lines))
        checks[f"{name}: the default is no slower"] = default.step_s <= base.step_s * 1.02
        checks[f"{name}: the default takes no more memory"] = default.own <= base.own
        checks[f"{name}: aliases stay"] = default.alias == base.alias
        checks[f"{name}: it says what became of the step"] = any("jit_step" in line for _, line in said.lines)
    with enabled(SHARDED):
        sharded = compile_step("plain_pytree")
        said = ho.hooked()
    show(f"plain_pytree, {SHARDED}", sharded)
    checks["sharded: a reduce-scatter that was not there"] = "reduce-scatter" in kinds(
        sharded
    ) and "reduce-scatter" not in kinds(base)
    checks["sharded: the interface stays"] = (sharded.arguments, sharded.outputs, sharded.alias) == (
        base.arguments,
        base.outputs,
        base.alias,
    )
    checks["sharded: one line about it"] = [level for level, _ in said.lines].count("change") == 1
    checks["disabled: as it is"] = figures(compile_step("plain_pytree")) == figures(base)
    with enabled(SHARDED, only="other_step"):
        checks["only another: as it is"] = figures(compile_step("plain_pytree")) == figures(base)
        checks["only another: said"] = "not among those" in str(ho.hooked().lines)
    with enabled(SHARDED, only=["step"]):
        checks["only this: changed"] = "reduce-scatter" in kinds(compile_step("plain_pytree"))
    with enabled(FAILING):
        checks["failure: as it is"] = figures(compile_step("plain_pytree")) == figures(base)
        checks["failure: one warning"] = [level for level, _ in ho.hooked().lines].count("warning") == 1
    with enabled(SHARDED, deadline_s=1e-6):
        checks["deadline: as it is"] = figures(compile_step("plain_pytree")) == figures(base)
        checks["deadline: one warning"] = [level for level, _ in ho.hooked().lines].count("warning") == 1
    with enabled(FAILING, strict=True):
        try:
            compile_step("plain_pytree")
            checks["strict: an error of the compile"] = False
        except jax.errors.JaxRuntimeError as error:
            checks["strict: an error of the compile"] = "signature" in str(error)
    checks["the cache tells pipelines apart"] = cache_keys_differ()
    checks |= layers_in_parts()
    checks |= ordered_anew()
    for what, holds in checks.items():
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return 0 if all(checks.values()) else 1


def cache_keys_differ() -> bool:
    """Whether the persistent cache's keys hold what the hook does."""
    salts = [private.cache_salt()]
    for pipeline in ("data-parallel", SHARDED):
        with enabled(pipeline):
            salts.append(private.cache_salt())
    return len(set(salts)) == len(salts)


if __name__ == "__main__":
    sys.exit(main())
