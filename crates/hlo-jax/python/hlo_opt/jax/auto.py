"""``auto``: a step that says nothing of shardings, cut over devices by the plan of least modelled time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from hlo_opt.arguments import checked_bytes, checked_deadline, checked_flag, checked_number, checks_names
from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.partition import Options, PartitionError, PartitionStep
from hlo_opt.jax.sharding import checked_machine
from hlo_opt.jax.switch import is_switched_off, why_off
from hlo_opt.jax.wrapped import check_version
from jax.sharding import Mesh, NamedSharding


class AutoStep(PartitionStep):
    """What :func:`auto` returns: called like the step that it was made of.

    Attributes:
        unwrapped: the original jitted step.
    """

    maker = "auto"

    def shardings(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The shardings of arguments and of results, as ``jax.jit`` takes them in ``in_shardings`` and
        ``out_shardings``: what the plan decided, to print, to keep, or to use without this package.

        The arguments may be ``jax.ShapeDtypeStruct``. Arguments that the step does not read are whole.

        Raises:
            PartitionError: the step runs as it was, so that no plan says how anything is cut; the message says why.
        """
        reason = why_off()
        if reason is not None:
            raise PartitionError(f"no shardings: {reason}")
        plan = self.plan(*args, **kwargs)
        if plan.declined is not None:
            raise PartitionError(f"no shardings: {plan.declined}")
        step, sharded = plan.partitioned, plan.sharded
        whole = NamedSharding(sharded.mesh, jax.sharding.PartitionSpec())
        of_arguments = [whole] * len(step.avals)
        for number, sharding in zip(step.kept, sharded.param_shardings):
            of_arguments[number] = sharding
        dynamic, _ = self._split(args, kwargs)
        given = jax.tree.unflatten(jax.tree.structure(dynamic), of_arguments)
        return given[0], jax.tree.unflatten(step.out_tree, sharded.output_shardings)


@checks_names
def auto(
    step: Callable[..., Any],
    *,
    devices: Sequence[jax.Device] | None = None,
    machine: str | None = None,
    memory_limit: int | float | str | None = None,
    effort: float | None = None,
    deadline_s: float | None = None,
    strict: bool = False,
) -> AutoStep:
    """Cuts a step that says nothing of shardings over devices, by the plan of least modelled time.

    The step is written as for one device, with the batch of all. A search decides for each op and each value how it is cut
    over a mesh of the devices (the search of Unity; of its rewrites those that make branches one), beside data parallelism; the program that is
    predicted to be faster is compiled by XLA with its own partitioner left out. Arguments and results are cut into equal
    tiles, as ``jax.jit`` wants it, values in between also into others.

    Args:
        step: what ``jax.jit``, ``nnx.jit`` or ``equinox.filter_jit`` returned, without shardings.
        devices: those of the process if not given.
        machine: what times are predicted for: ``"h100"``, or ``"h200:4"`` with the number of nodes over which the devices
            are spread.
        memory_limit: the memory that a device has for the step, arguments included, in bytes (``60e9``) or with a unit
            (``"60GB"``, ``"60GiB"``); no limit if not given.
        effort: how long the search goes on, in billions of counted steps; 1 if not given. The same effort gives the same
            plan.
        deadline_s: seconds that the search and the passes may take; no limit if not given.
        strict: raise :class:`PartitionError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is. Arguments are brought to the devices at the first call; results stay cut
        and are ordinary arrays. Where no plan is found, or none is faster than every device repeating the whole step,
        the step runs as it was, with a warning.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value, there are fewer than two devices, or ``HLO_OPT`` in the environment
            is no switch.
    """
    jitted = jitted_of(step, AutoStep.maker)
    memory_limit = checked_bytes("memory_limit", memory_limit)
    if effort is not None:
        expected = "a positive number of billions of counted steps"
        effort = checked_number("effort", effort, expected, lambda billions: billions > 0)
    machine, deadline_s, strict = checked_machine(machine), checked_deadline(deadline_s), checked_flag("strict", strict)
    is_switched_off()
    check_version(AutoStep.maker, PartitionError, strict)
    found = _devices(devices)
    if len(found) < 2:
        raise ValueError(f"devices: expected two or more, found {len(found)}; a step of one device has nothing to cut")
    sizes = _primes(len(found))
    mesh = Mesh(np.array(found).reshape(sizes), [f"axis{number}" for number in range(len(sizes))])
    words = [f"devices={len(found)}", "even=ends"]
    if effort is not None:
        words.append(f"effort={effort}")
    search = f"auto-parallel{{{','.join(words)}}}"
    options = Options(
        mesh=mesh,
        rules=(),
        layout=None,
        names=(),
        strategies=None,
        machine=machine,
        most_memory=None,
        most_bytes=1.0,
        deadline_s=deadline_s,
        strict=strict,
        search=search,
        memory_limit=memory_limit,
    )
    return around(step, AutoStep(jitted, options))


def _devices(devices: Any) -> list[jax.Device]:
    """The devices that the user named, or those of the process."""
    if devices is None:
        return jax.devices()
    if isinstance(devices, Mesh):
        raise TypeError("devices: expected a sequence of devices, found a mesh; pass mesh.devices.flat")
    try:
        found = list(devices)
    except TypeError:
        raise TypeError(f"devices: expected a sequence of jax.Device, found {devices!r}") from None
    others = [device for device in found if not hasattr(device, "platform")]
    if others:
        raise TypeError(f"devices: expected a sequence of jax.Device, found {others[0]!r} in it")
    twice = next((device for number, device in enumerate(found) if device in found[:number]), None)
    if twice is not None:
        raise ValueError(f"devices: expected each device once, found {twice!r} {found.count(twice)} times")
    return found


def _primes(number: int) -> list[int]:
    """The prime factors: the axes of every mesh of so many devices are products of neighbours of them, in some order."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
