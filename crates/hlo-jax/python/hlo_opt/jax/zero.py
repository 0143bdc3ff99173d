"""``zero``: a jitted training step whose state stays in shards between steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from hlo_opt.arguments import (
    checked_bytes,
    checked_choice,
    checked_deadline,
    checked_flag,
    checked_patterns,
    checks_names,
)
from hlo_opt.jax import batch, sharding
from hlo_opt.jax.first_call import say_first_call
from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.partitioned import Declined, Partitioned, decline_effects, lower, partitioned_by_xla
from hlo_opt.jax.plan import Options, Plan
from hlo_opt.jax.sharding import AUTO, SHARDS, Asked, check_nodes, checked_machine
from hlo_opt.jax.switch import is_switched_off
from hlo_opt.jax.words import size
from hlo_opt.jax.wrapped import WrappedStep, check_version

#: What ``shard=`` takes.
CHOICES = (*SHARDS, AUTO)

#: What is written in the place of ``mode=``.
IN_PLACE_OF_MODE = 'shard="optimizer", "gradients", "parameters" or "auto": ZeRO-1, 2, 3, or what is predicted to be fastest'

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
        check_nodes(options.asked.machine, step.mesh.devices.size)
        limit, tried, peaks = options.memory_limit, [], set()
        while len(tried) < MOST_TRIES:
            sharded = sharding.shard(step, options.asked, limit)
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

    def plan_is_made(self, plan: Plan) -> None:
        """Says in one line what a new plan does."""
        if not self._options.quiet:
            say_first_call(self.__name__, plan)

    def _partitioned(self, args: tuple, kwargs: dict) -> Partitioned:
        """The step after XLA's partitioner. A batch that comes on no device is put on the mesh as other arguments, or
        calls before, say."""
        step = lower(self.unwrapped, args, kwargs)
        decline_effects(step, only_ordered=True)
        placed = batch.shardings_of_batch(step, self._inputs)
        if placed:
            leaves = jax.tree.leaves(self.dynamic(args, kwargs))
            described = {}
            for number, where in placed.items():
                weak = bool(getattr(leaves[number], "weak_type", False))
                aval = step.avals[number]
                described[number] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=where, weak_type=weak)
            step = lower(self.unwrapped, *self.with_leaves(args, kwargs, described))
        found = partitioned_by_xla(step, self.__name__)
        self._inputs.update(batch.shardings_of_inputs(found, found.param_specs))
        return dataclasses.replace(found, placed=frozenset(placed))


def _exact(n_bytes: int) -> str:
    return f"{size(n_bytes)} ({n_bytes:,} bytes)"


@checks_names(replaced={"mode": IN_PLACE_OF_MODE})
def zero(
    step: Callable[..., Any],
    *,
    shard: str = "optimizer",
    memory_limit: int | float | str | None = None,
    state: dict[str, bool] | None = None,
    offload: bool = False,
    machine: str | None = None,
    deadline_s: float | None = None,
    strict: bool = False,
    quiet: bool = False,
) -> ZeroStep:
    """Keeps the optimizer's state of a jitted training step in shards between steps; nothing else changes for the
    script.

    Weights, batch statistics, averages of weights, random keys, counters, and all else that evaluation or logging reads
    come back as they came. At the first call a line says what lies in shards, and what it is predicted to cost.

    Args:
        step: what ``jax.jit``, ``nnx.jit``, ``equinox.filter_jit`` or ``torchax.interop.jax_jit`` returned. It takes
            state and a batch, and returns or changes the state.
        shard: ``"optimizer"`` shards the optimizer's state (ZeRO-1). ``"gradients"`` has gradients summed into shards as
            well (ZeRO-2). ``"parameters"`` shards weights too (ZeRO-3): layers in a loop are gathered one by one.
            ``"auto"`` takes the one of these, or none, that is predicted to be fastest within ``memory_limit``, and of
            equally fast ones the one with less memory.
        memory_limit: the most memory that one device may need, in bytes (``60e9``) or with a unit (``"60GB"``,
            ``"60GiB"``): ways are chosen by the predicted peak, and what was compiled is held against XLA's own account
            of it.
        state: which arrays are in shards, where the step's own data flow does not say it as the script wants: regular
            expressions that are searched in the names that :func:`report` prints, as ``{r"\\.slow": False}``.
        offload: whether the optimizer's state may lie in the memory of the host between steps, from where each array
            comes to the device for its update alone: all state of 1 MiB and more, or under a limit as few arrays as it
            asks for. Steps become slower by what the link to the host takes.
        machine: what times are predicted for: ``"h100"``, or ``"h200:4"`` with the number of nodes over which the devices
            are spread.
        deadline_s: seconds that the passes may take for each way that is tried; no limit if not given.
        strict: raise :class:`ZeroError` where the step cannot be taken over, instead of a warning.
        quiet: do not print the line at the first call.

    Returns:
        A function that is called as ``step`` is.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value, or ``HLO_OPT`` in the environment is no switch.
    """
    jitted = jitted_of(step, ZeroStep.maker)
    options = options_of(
        shard=shard,
        memory_limit=memory_limit,
        state=state,
        offload=offload,
        machine=machine,
        deadline_s=deadline_s,
        strict=strict,
        quiet=quiet,
    )
    check_version(ZeroStep.maker, ZeroError, options.strict)
    return around(step, ZeroStep(jitted, options))


def options_of(
    *,
    shard: str,
    memory_limit: int | float | str | None,
    state: dict[str, bool] | None,
    offload: bool,
    machine: str | None,
    deadline_s: float | None,
    strict: bool,
    quiet: bool,
) -> Options:
    """Returns the checked options of :func:`zero`.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value, or ``HLO_OPT`` in the environment is no switch.
    """
    options = Options(
        asked=Asked(
            shard=checked_choice("shard", shard, CHOICES),
            state=checked_patterns("state", state),
            machine=checked_machine(machine),
            deadline_s=checked_deadline(deadline_s),
            offload=checked_flag("offload", offload),
        ),
        memory_limit=checked_bytes("memory_limit", memory_limit),
        strict=checked_flag("strict", strict),
        quiet=checked_flag("quiet", quiet),
    )
    is_switched_off()
    return options
