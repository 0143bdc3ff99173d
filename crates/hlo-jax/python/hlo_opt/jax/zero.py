"""``zero``: a jitted training step whose state stays in shards between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.partitioned import Declined, partition
from hlo_opt.jax.plan import Options, Plan
from hlo_opt.jax.sharding import check_deadline, check_machine, checked_memory_limit, shard
from hlo_opt.jax.wrapped import WrappedStep, check_version

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
        step, options = partition(self.unwrapped, args, kwargs), self._options
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
            f"no way fits memory_limit={options.memory_limit} by XLA's account: the least that was found takes "
            f"{plan.memory.peak_bytes} bytes"
        )
        if options.strict:
            raise Declined(message)
        self.warn(f"{self.__name__}: {message}, and runs")
        return plan


def zero(
    step: Callable[..., Any],
    *,
    mode: str | int = "auto",
    memory_limit: int | None = None,
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
        memory_limit: the most bytes that one device may need: ways are chosen by the predicted peak, and what was
            compiled is held against XLA's own account of it.
        offload: whether the optimizer's state may lie in the memory of the host between steps, from where each array
            comes to the device for its update alone: all state of 1 MiB and more, or under a limit as few arrays as it
            asks for. Steps become slower by what the link to the host takes.
        machine: what times are predicted for, as ``--machine`` takes it: ``"h100"``, or with the number of nodes over
            which the devices are spread, ``"h200:4"``.
        deadline_s: seconds that the passes may take for each mode that is tried; no limit if not given.
        strict: raise :class:`ZeroError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is.
    """
    jitted = jitted_of(step, ZeroStep.maker)
    if mode not in ("auto", 1, 2, 3) or isinstance(mode, bool):
        raise ValueError(f"mode: expected 'auto', 1, 2 or 3, found {mode!r}")
    memory_limit = checked_memory_limit(memory_limit)
    if machine is not None:
        check_machine(machine)
    check_deadline(deadline_s)
    check_version(ZeroStep.maker, ZeroError, strict)
    return around(step, ZeroStep(jitted, Options(mode, memory_limit, machine, deadline_s, strict, bool(offload))))
