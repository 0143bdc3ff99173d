"""The line that ``zero`` prints when it has taken a step over."""

from __future__ import annotations

import math
import sys

import jax
from hlo_opt.jax.partitioned import local_shape, physical
from hlo_opt.jax.plan import Plan
from hlo_opt.jax.sharding import EQUAL_TIMES, LEAST_PADDED_BYTES, seconds
from hlo_opt.jax.words import size

#: What of the step's results comes back in shards.
_COMES_BACK = {
    "optimizer": "weights and all else come back as before",
    "gradients": "weights and all else come back as before",
    "parameters": "weights come back in shards too",
}


def first_call(name: str, plan: Plan) -> str:
    """What a plan does with a step, in one line."""
    sharded, step = plan.sharded, plan.partitioned
    before, taken = sharded.ways[0], sharded.ways[sharded.taken]
    whole = sum(_bytes(plan, n, in_shards=False) for n in sharded.cut)
    held = sum(_bytes(plan, n, in_shards=True) for n in sharded.cut)
    arrays = "array of" if len(sharded.cut) == 1 else "arrays of"
    what = f"{arrays} {'optimizer state' if taken.name != 'parameters' else 'state and weights'}"
    lie = "lies" if len(sharded.cut) == 1 else "lie"
    times = f"predicted {seconds(taken.step_s)} a step on {sharded.machine}"
    if before.step_s and taken.step_s is not None:
        change = taken.step_s / before.step_s - 1
        slower = "equally fast" if abs(change) <= EQUAL_TIMES else f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"
        times += f" ({slower}; {seconds(before.step_s)} as XLA compiles it)"
    chosen = f'shard="{taken.name}" is taken: ' if len(sharded.ways) > 2 else ""
    repeated = ""
    if sharded.repeated is not None:
        summed_by, held_by = sharded.repeated
        repeated = (
            f"; {summed_by} of {held_by} devices compute each gradient and the others repeat their work: keep the batch cut over all of "
            "them, microbatches by xs = jax.lax.with_sharding_constraint(xs, NamedSharding(mesh, P(None, mesh.axis_names)))"
        )
    state_left = [n for n, role in sharded.roles.items() if role == "state" and n not in sharded.cut]
    large = [n for n in state_left if _bytes(plan, n, in_shards=False) >= LEAST_PADDED_BYTES]
    others = "1 other large array of state stays" if len(large) == 1 else f"{len(large)} other large arrays of state stay"
    left = f"; {others} replicated: ho.report(step) says why" if large else ""
    peak = ""
    if before.peak_bytes and taken.peak_bytes and taken.peak_bytes > before.peak_bytes:
        peak = f", with {size(taken.peak_bytes)} of a device at the peak in the place of {size(before.peak_bytes)}"
    return (
        f"hlo_opt.jax.zero: {name}: {chosen}{len(sharded.cut)} {what} {lie} in shards over {step.mesh.devices.size} devices, "
        f"{size(held)} of a device in the place of {size(whole)}; {times}{peak}; {_COMES_BACK[taken.name]}{left}{repeated}"
    )


def say_first_call(name: str, plan: Plan) -> None:
    """Prints the line, once for all processes."""
    if jax.process_index() == 0:
        print(first_call(name, plan), file=sys.stderr)


def _bytes(plan: Plan, number: int, in_shards: bool) -> int:
    """What one device holds of a parameter, now or as the script had it."""
    sharded, step = plan.sharded, plan.partitioned
    aval = physical(step.avals[step.kept[number]])
    if not in_shards:
        shape = local_shape(aval.shape, step.param_specs[number], step.mesh)
    else:
        padding = sharded.param_paddings.get(number)
        held = aval.shape if padding is None else padding.padded
        shape = local_shape(held, sharded.param_specs[number], sharded.mesh)
    return math.prod(shape) * aval.dtype.itemsize
