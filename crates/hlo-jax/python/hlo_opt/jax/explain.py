"""What was done to a step, and what it is worth."""

from __future__ import annotations

import html
import math
import os
import re
import tempfile

from hlo_opt import _native
from hlo_opt.jax.held import HeldStep, expect_step
from hlo_opt.jax.pairs import state_pairs
from hlo_opt.jax.partition import PartitionStep
from hlo_opt.jax.partitioned import local_shape, physical
from hlo_opt.jax.plan import Plan
from hlo_opt.jax.sharding import EQUAL_TIMES, LEAST_PADDED_BYTES, Way, seconds
from hlo_opt.jax.switch import why_off
from hlo_opt.jax.wrapped import WrappedStep

#: Of a long list so many lines are printed.
MOST_LINES = 24

#: The roles of arrays that stay whole, as evaluation may read them, unless the script asks for shards.
_SHARDED_IF_ASKED = frozenset({"beside-weights", "feeds-no-weight", "maybe-weight", "read-by-result"})


class Report:
    """What :func:`report` returns: text when printed, a page in a notebook.

    Attributes:
        declined: why the step runs as it was, ``None`` where it does not.
        ways: the ways that were compared; the first is the step as it was.
        taken: the number of the way taken.
    """

    def __init__(self, step: WrappedStep, plan: Plan | None) -> None:
        self._name, self._plan = step.__name__, plan
        self._is_partitioned = isinstance(step, PartitionStep)
        self.declined = f"{step.maker} is off: {why_off()}" if plan is None else plan.declined
        sharded = plan.sharded if plan is not None else None
        self.ways: list[Way] = sharded.ways if sharded else []
        self.taken = sharded.taken if sharded else 0

    def __str__(self) -> str:
        if self.declined is not None:
            return f"{self._name} runs as it was: {self.declined}"
        if self._is_partitioned:
            return "\n".join(self._of_partitioner())
        sharded, step = self._plan.sharded, self._plan.partitioned
        n_devices = step.mesh.devices.size
        lines = [
            f"{self._name} on {n_devices} devices: {len(sharded.cut)} of {len(step.kept)} arguments are in shards",
            f"predicted for {sharded.machine}, one step of one device:",
            f"  {'shard':<10} {'in shards':>9} {'time':>12} {'peak MiB':>13} {'arguments MiB':>13} {'sent MiB':>13}",
        ]
        for number, way in enumerate(self.ways):
            lines.append(f"{'*' if number == self.taken else ' '} {way.describe()}")
        lines += self._price()
        lines += self._by_xla()
        if sharded.on_host:
            moved = sum(self._local_bytes(n) for n in sharded.on_host) / 2**20
            lines.append(
                f"  {len(sharded.on_host)} of them lie in the memory of the host: {moved:.2f} MiB of each device, copied there "
                "and back in each step"
            )
        lines.append("in shards:")
        lines += _some([f"  {step.describe(n, sharded.param_specs[n])}{self._held_as(n)}" for n in sharded.cut])
        large = [n for n in range(len(step.kept)) if n not in sharded.cut and self._bytes(n) >= 1024]
        if large:
            lines.append("left as they were (1 KiB and more):")
            lines += _some([f"  {step.describe(n)}: {self._why_left(n)}" for n in large])
        asked = [n for n in large if sharded.roles.get(n) in _SHARDED_IF_ASKED]
        if asked:
            name = re.escape(step.names[step.kept[asked[0]]])
            lines.append(f'state={{r"{name}": True}} puts {step.names[step.kept[asked[0]]]} in shards all the same')
        return "\n".join(lines)

    __repr__ = __str__

    def _of_partitioner(self) -> list[str]:
        """The program beside the one by XLA's partitioner, and how arguments are cut."""
        sharded, step = self._plan.sharded, self._plan.partitioned
        lines = [
            f"{self._name} on {step.mesh.devices.size} devices, partitioned by hlo-opt",
            f"predicted for {sharded.machine}, one step of one device:",
            f"  {'by':<9} {'time':>12} {'peak MiB':>13} {'arguments MiB':>13} {'sent MiB':>13}",
        ]
        for number, way in enumerate(self.ways):
            sizes = [way.peak_bytes / 2**20, way.argument_bytes / 2**20, way.sent_bytes / 2**20]
            cells = "".join(f" {size:>13.2f}" for size in sizes)
            lines.append(f"{'*' if number == self.taken else ' '} {way.name:<9} {seconds(way.step_s):>12}{cells}")
        if sharded.failure_of_xla is not None:
            failed = "  XLA's partitioner failed, so that there is nothing to compare with"
            lines.append(f"{failed}: {sharded.failure_of_xla}")
        lines.append("arguments:")
        large = [n for n in range(len(step.kept)) if self._bytes(n) >= 1024]
        lines += _some([f"  {step.describe(n)}" for n in large])
        return lines

    def _price(self) -> list[str]:
        """What the way taken costs, where it is predicted to be slower than the step as it was."""
        before, taken = self.ways[0], self.ways[self.taken]
        if before.step_s is None or taken.step_s is None:
            return []
        slower = taken.step_s / before.step_s - 1
        if slower <= EQUAL_TIMES:
            return []
        saved = (before.argument_bytes - taken.argument_bytes) / 2**20
        return [
            f"  predicted to be {slower:.0%} slower than as it was, for {saved:.2f} MiB less on each device:",
            "  where memory is not short, leave the step as it was",
        ]

    def _by_xla(self) -> list[str]:
        """What the way taken takes by XLA's account."""
        memory = self._plan.memory
        if memory is None:
            return []
        sizes = (memory.peak_bytes, memory.argument_bytes, memory.output_bytes - memory.alias_bytes)
        whole, arguments, results = (f"{size / 2**20:.2f}" for size in sizes)
        return [
            f"  memory by XLA's account, for the devices at hand: {whole} MiB (arguments {arguments}, results of their "
            f"own {results}, temporaries {memory.temporary_bytes / 2**20:.2f})"
        ]

    def _held_as(self, number: int) -> str:
        """In what other shape an argument is held."""
        padding = self._plan.sharded.param_paddings.get(number)
        held = "" if padding is None else f", held as {list(padding.padded)}"
        return f"{held}, on the host" if number in self._plan.sharded.on_host else held

    def _local_bytes(self, number: int) -> int:
        """What one device has of an argument."""
        sharded, step = self._plan.sharded, self._plan.partitioned
        padding = sharded.param_paddings.get(number)
        aval = physical(step.avals[step.kept[number]])
        shape = aval.shape if padding is None else padding.padded
        cut = local_shape(shape, sharded.param_specs[number], sharded.mesh)
        return math.prod(cut) * aval.dtype.itemsize

    def _bytes(self, number: int) -> int:
        aval = physical(self._plan.partitioned.avals[self._plan.partitioned.kept[number]])
        return aval.size * aval.dtype.itemsize

    def _why_left(self, number: int) -> str:
        step = self._plan.partitioned
        if step.kept[number] in step.placed:
            return "it comes on no device, and is put there in shards"
        if any(axes is not None for axes in step.param_specs[number]):
            return "in shards by the script"
        because = self._plan.sharded.whole_because.get(number)
        if because is not None:
            return because
        n_devices = step.mesh.devices.size
        if all(size % n_devices for size in physical(step.avals[step.kept[number]]).shape):
            if self._bytes(number) < LEAST_PADDED_BYTES:
                return f"no dim is a multiple of {n_devices}, and it is under {LEAST_PADDED_BYTES >> 10} KiB"
            return (
                f"no dim is a multiple of {n_devices}, and its shards would need more than 2 % of padding or a loop "
                "takes it apart layer by layer"
            )
        if any(number in way.cut for way in self.ways):
            return f"whole with shard={self.ways[self.taken].name!r}"
        if number not in {param for param, _ in state_pairs(step)}:
            return "no result has its path, shape and dtype, so that it is taken for an input"
        return (
            "state that no update in shards reaches: its gradient is under 1 KiB, or its update needs whole arrays; "
            "shard-weight-update on the page, .save(path), says which"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page about it, one HTML file that needs no network.

        Raises:
            ValueError: the step runs as it was, and there is nothing to show.
        """
        if self.declined is not None:
            raise ValueError(f"no page: {self}")
        with tempfile.TemporaryDirectory(prefix="hlo_opt_") as folder:
            args = [
                *self._plan.sharded.page_args,
                "-o",
                folder,
                "--report",
                "html",
                "--report-file",
                os.fspath(path),
                "-q",
                "-",
            ]
            code, _, said = _native.run(args, self._plan.partitioned.module)
        if code != 0:
            raise ValueError(said.strip())

    def _repr_html_(self) -> str:
        if self.declined is not None:
            return f"<pre>{html.escape(str(self))}</pre>"
        with tempfile.TemporaryDirectory(prefix="hlo_opt_") as folder:
            path = os.path.join(folder, "page.html")
            self.save(path)
            with open(path, encoding="utf-8") as file:
                page = html.escape(file.read(), quote=True)
        return f'<iframe style="width:100%;height:40em;border:0" srcdoc="{page}"></iframe>'


def _some(lines: list[str]) -> list[str]:
    """The first lines of a long list, and how many more there are."""
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:MOST_LINES], f"  and {len(lines) - MOST_LINES} more; .save(path) has all"]


def report(step: WrappedStep | HeldStep) -> Report:
    """What the last call of a step by ``zero``, ``partition`` or ``auto`` did: the ways that were compared, and how each
    argument is cut.

    Raises:
        TypeError: the step is not one of these.
        ValueError: there was no call yet, or ``HLO_OPT`` in the environment is no switch.
    """
    step = expect_step(step)
    if why_off():
        return Report(step, None)
    if step.last_plan is None:
        raise ValueError(f"report: expected a call of {step.__name__} before, found none: the first call compiles it")
    return Report(step, step.last_plan)
