"""``auto``: a step that says nothing of shardings, cut over devices by the plan of least modelled time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from hlo_opt.jax.held import around, jitted_of
from hlo_opt.jax.partition import Options, PartitionError, PartitionStep
from hlo_opt.jax.sharding import check_deadline, check_machine, checked_memory_limit
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
        """
        plan = self.plan(*args, **kwargs)
        step, sharded = plan.partitioned, plan.sharded
        whole = NamedSharding(sharded.mesh, jax.sharding.PartitionSpec())
        of_arguments = [whole] * len(step.avals)
        for number, sharding in zip(step.kept, sharded.param_shardings):
            of_arguments[number] = sharding
        dynamic, _ = self._split(args, kwargs)
        given = jax.tree.unflatten(jax.tree.structure(dynamic), of_arguments)
        return given[0], jax.tree.unflatten(step.out_tree, sharded.output_shardings)


def auto(
    step: Callable[..., Any],
    *,
    devices: Sequence[jax.Device] | None = None,
    machine: str | None = None,
    memory_limit: int | None = None,
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
        machine: what times are modelled for, as ``--machine`` takes it: ``"h100"``, or with the number of nodes over
            which the devices are spread, ``"h200:4"``.
        memory_limit: bytes that a device has for the step, arguments included; no limit if not given.
        effort: how long the search goes on, in billions of counted steps; 1 if not given. The same effort gives the same
            plan.
        deadline_s: seconds that the search and the passes may take; no limit if not given.
        strict: raise :class:`PartitionError` where the step cannot be taken over, instead of a warning.

    Returns:
        A function that is called as ``step`` is. Arguments are brought to the devices at the first call; results stay cut
        and are ordinary arrays. Where no plan is found, the step runs as it was, with a warning.
    """
    jitted = jitted_of(step, AutoStep.maker)
    memory_limit = checked_memory_limit(memory_limit)
    if effort is not None and not effort > 0:
        raise ValueError(f"effort: expected a positive number, found {effort!r}")
    if machine is not None:
        check_machine(machine)
    check_deadline(deadline_s)
    check_version(AutoStep.maker, PartitionError, strict)
    found = list(jax.devices() if devices is None else devices)
    if len(found) < 2:
        raise ValueError(f"auto: expected two devices or more, found {len(found)}")
    sizes = _primes(len(found))
    mesh = Mesh(np.array(found).reshape(sizes), [f"axis{number}" for number in range(len(sizes))])
    words = [f"devices={len(found)}", "even=ends"]
    if memory_limit is not None:
        words.append(f"memory-limit={memory_limit}")
    if effort is not None:
        words.append(f"effort={effort}")
    search = f"auto-parallel{{{','.join(words)}}}"
    options = Options(mesh, (), None, (), None, machine, None, 1.0, deadline_s, strict, search)
    return around(step, AutoStep(jitted, options))


def _primes(number: int) -> list[int]:
    """The prime factors: the axes of every mesh of so many devices are products of neighbours of them, in some order."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
