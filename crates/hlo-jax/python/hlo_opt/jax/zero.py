"""``zero``: a jitted training step whose state stays in shards between steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from hlo_opt.arguments import checked_bytes, checked_choice, checked_deadline, checked_flag, checks_names
from hlo_opt.jax import batch
from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.partitioned import Declined, Partitioned, lower, partitioned_by_xla
from hlo_opt.jax.plan import Options, Plan
from hlo_opt.jax.sharding import check_nodes, checked_machine, shard
from hlo_opt.jax.switch import is_switched_off
from hlo_opt.jax.words import size
from hlo_opt.jax.wrapped import WrappedStep, check_version

#: What ``mode=`` takes.
MODES = ("auto", 1, 2, 3)

#: So many programs are compiled where XLA's account of memory is above a limit.
MOST_TRIES = 4


class ZeroError(RuntimeError):
    """A step could not be taken over, with ``strict=True``."""


class ZeroStep(WrappedStep):
    """What :func:`zero` returns: called like the step that it was made of.

    Attributes:
        unwrapped: the original jitted step.
    """

    maker = "zero"
    error = ZeroError
    _options: Options

    def make_plan(self, begin: Callable[[], Plan], args: tuple, kwargs: dict) -> Plan:
        """As every step; and where the program takes more by XLA's account than a limit allows, others are tried of
        which as much less is predicted. Where none is predicted to fit, XLA is asked of the one that takes least. If none
        fits, the one that takes least runs, and a warning says so."""
        step, options = self._partitioned(args, kwargs), self._options
        check_nodes(options.machine, step.mesh.devices.size)
        limit, tried, peaks = options.memory_limit, [], set()
        while len(tried) < MOST_TRIES:
            sharded = shard(step, options.mode, limit, options.machine, options.deadline_s, options.offload)
            predicted = sharded.ways[sharded.taken].peak_bytes
            if predicted in peaks:
                break
            plan = begin()
            plan.make(self.unwrapped, step, sharded)
            if limit is None or plan.memory is None or plan.memory.peak_bytes <= options.memory_limit:
                return plan
            tried.append(plan)
            peaks.add(predicted)
            # XLA's account is off by a factor that other ways of the same step share.
            limit = max(1, min(int(predicted * options.memory_limit / plan.memory.peak_bytes), predicted - 1))
        plan = min(tried, key=lambda plan: plan.memory.peak_bytes)
        message = (
            f"nothing fits memory_limit={_exact(options.memory_limit)} by XLA's account: the least that was found takes "
            f"{_exact(plan.memory.peak_bytes)}"
        )
        if options.strict:
            raise Declined(message)
        self.warn(f"{self.__name__}: {message}, and runs")
        return plan

    def _partitioned(self, args: tuple, kwargs: dict) -> Partitioned:
        """The step after XLA's partitioner. A batch that comes on no device is put on the mesh as other arguments, or
        calls before, say."""
        step = lower(self.unwrapped, args, kwargs)
        placed = batch.shardings_of_batch(step, self._inputs)
        if placed:
            leaves = jax.tree.leaves(self.dynamic(args, kwargs))
            described = {}
            for number, sharding in placed.items():
                weak = bool(getattr(leaves[number], "weak_type", False))
                aval = step.avals[number]
                described[number] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=weak)
            step = lower(self.unwrapped, *self.with_leaves(args, kwargs, described))
        found = partitioned_by_xla(step, self.__name__)
        self._inputs.update(batch.shardings_of_inputs(found, found.param_specs))
        return dataclasses.replace(found, placed=frozenset(placed))


def _exact(n_bytes: int) -> str:
    return f"{size(n_bytes)} ({n_bytes:,} bytes)"


@checks_names
def zero(
    step: Callable[..., Any],
    *,
    mode: str | int = "auto",
    memory_limit: int | float | str | None = None,
    offload: bool = False,
    machine: str | None = None,
    deadline_s: float | None = None,
    strict: bool = False,
) -> ZeroStep:
    """Keeps the state of a jitted training step in shards between steps.

    Args:
        step: what ``jax.jit``, ``nnx.jit`` or ``equinox.filter_jit`` returned. It takes state and a batch, and returns
            or changes the state.
        mode: 1 shards the optimizer's state; 2 also the weights, where that is cheaper; 3 all weights: layers in a
            loop are gathered one by one. ``"auto"`` takes 1 or 2, whichever is predicted to be faster, and of equally
            fast ways the one with less memory; under a limit also 3.
        memory_limit: the most memory that one device may need, in bytes (``60e9``) or with a unit (``"60GB"``,
            ``"60GiB"``): ways are chosen by the predicted peak, and what was compiled is held against XLA's own account
            of it.
        offload: whether the optimizer's state may lie in the memory of the host between steps, from where each array
            comes to the device for its update alone: all state of 1 MiB and more, or under a limit as few arrays as it
            asks for. Steps become slower by what the link to the host takes.
        machine: what times are predicted for: ``"h100"``, or ``"h200:4"`` with the number of nodes over which the devices
            are spread.
        deadline_s: seconds that the passes may take for each mode that is tried; no limit if not given.
        strict: raise :class:`ZeroError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value, or ``HLO_OPT`` in the environment is no switch.
    """
    jitted = jitted_of(step, ZeroStep.maker)
    options = Options(
        mode=checked_choice("mode", mode, MODES),
        memory_limit=checked_bytes("memory_limit", memory_limit),
        machine=checked_machine(machine),
        deadline_s=checked_deadline(deadline_s),
        strict=checked_flag("strict", strict),
        offload=checked_flag("offload", offload),
    )
    is_switched_off()
    check_version(ZeroStep.maker, ZeroError, options.strict)
    return around(step, ZeroStep(jitted, options))
