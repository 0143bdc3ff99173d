"""HLO modules as objects: read them, look at them, run passes on them, evaluate them.

>>> import numpy as np
>>> from hlo_opt import Module
>>> module = Module.parse('''
... HloModule scaled_sum, num_partitions=2
...
... add {
...   a = f32[] parameter(0)
...   b = f32[] parameter(1)
...   ROOT c = f32[] add(a, b)
... }
...
... ENTRY main {
...   x = f32[4] parameter(0)
...   s = f32[4] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
...   two = f32[] constant(2)
...   twos = f32[4] broadcast(two), dimensions={}
...   ROOT y = f32[4] multiply(s, twos)
... }
... ''')
>>> module
<Module scaled_sum: 8 instructions, 2 devices>
>>> [(c.opcode, c.name, c.bytes, c.groups) for c in module.collectives()]
[('all-reduce', 's', 16, [[0, 1]])]
>>> x = np.arange(4, dtype=np.float32)
>>> on_first, on_second = module.evaluate([[x], [10 * x]])
>>> on_first[0]
array([ 0., 22., 44., 66.], dtype=float32)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hlo_opt import _native, arguments
from hlo_opt._native import Collective, Computation, UsageError
from hlo_opt.arguments import checks_names
from hlo_opt.arrays import from_native, to_native

__all__ = ["Finding", "LiveBuffer", "Memory", "Module", "Report"]


@dataclass(frozen=True)
class LiveBuffer:
    """A buffer that lives when memory is at its peak."""

    instruction: str
    """Whose value is in it."""
    index: tuple[int, ...]
    """Which element of a tuple; empty for an array."""
    kind: Literal["argument", "output", "temporary", "constant"]
    """What it is for."""
    bytes: int
    """Its size."""
    shape: str
    """The array, without layout."""
    op_name: str | None
    """The name path of the framework."""


@dataclass(frozen=True)
class Memory:
    """The memory of one device in one run, as `hlo-opt analyze memory` says it."""

    peak_bytes: int
    """The most that lives at one time: arguments, outputs that lie in no argument, constants and temporaries."""
    argument_bytes: int
    """The entry's parameters."""
    output_bytes: int
    """The result."""
    alias_bytes: int
    """The part of the result that lies in the memory of parameters."""
    temp_bytes: int
    """What the peak takes beyond arguments, outputs and constants."""
    constant_bytes: int
    """Constants."""
    host_bytes: int
    """Parameters in the memory of the host; no other figure counts them."""
    peak_at: tuple[str, ...]
    """Where the peak is: an instruction of the entry, then one in what it calls there, and so on."""
    n_live_at_peak: int
    """How many buffers live there."""
    live_at_peak: tuple[LiveBuffer, ...]
    """The largest of them."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a step, as `hlo-opt audit` says it."""

    check: str
    """The check that found it, as `hlo-opt audit --list-checks` names it."""
    level: Literal["fault", "advice"]
    """`fault`: a wrong result, or work that gives nothing; `advice`: the step could be better, at a price."""
    message: str
    """What is wrong."""
    remedy: str
    """What to do."""
    instruction: str
    """Where: the instruction, without `%`."""
    computation: str
    """The computation that it stands in."""
    line: int | None
    """Its line in the text that was read, from 1; none for a proto and for what a pass added."""
    also: tuple[str, ...]
    """Other instructions that belong to it."""
    bytes: int
    """What it is about, in bytes."""
    bytes_are: Literal["moved", "held", "wrong"]
    """What the bytes are: moved in a step, held in memory, or wrong."""
    predicted_s: float | None
    """The seconds that it is predicted to cost in a step, where it costs time."""
    is_denied: bool
    """Whether `deny` names it."""

    @property
    def where(self) -> str:
        """`%instruction in computation, line 7`."""
        line = f", line {self.line}" if self.line is not None else ""
        return f"%{self.instruction} in {self.computation}{line}"


@dataclass(frozen=True)
class Report:
    """What a run of passes did."""

    summary: str
    """Some lines for people; empty where nothing of size was done or declined."""
    json: Mapping[str, Any]
    """The report, as `hlo-opt --report json` writes it; `docs/report.schema.json` has its fields."""
    files: Mapping[str, Module | str]
    """What passes make beside the module, by file name: of `sharded-state` the programs before and after all steps."""

    @property
    def has_changed(self) -> bool:
        """Whether a pass changed something."""
        return any(report["changed"] for module in self.json["modules"] for report in module["reports"])

#: A device alone is a machine without said links.
IN_PLACE_OF_DEVICE = {"device": "machine='a100:switch', or 'a100:[(node,2),(gpu,8)]' with links"}


class Module:
    """A verified HLO module. It never changes: passes give a new one.

    Made by `Module.parse`, `Module.read` and `Module.run`.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.Module) -> None:
        """Wraps a native module; users call `parse` or `read`."""
        self._native = native

    @classmethod
    @checks_names
    def parse(
        cls,
        content: str | bytes | bytearray | memoryview,
        *,
        num_partitions: int | None = None,
        num_replicas: int | None = None,
    ) -> Module:
        """Takes HLO text or a proto (HloModuleProto, HloProto, HloSnapshot), each packed with gzip or not.

        Its content tells which of them it is. Where the header has no counts of devices, `num_partitions` and
        `num_replicas` give them, else they are found from the collectives; `notes` says so.

        Raises `HloError` with the place of what is wrong, and `UsageError` where the counts contradict the header.

        >>> Module.parse("HloModule m\\nENTRY e {\\n ROOT a = f32[2] parametre(0)\\n}")
        Traceback (most recent call last):
            ...
        hlo_opt.HloError: error[parse-unknown-name]: expected an opcode, found `parametre`
         --> <module>:3:18
          |
        3 |  ROOT a = f32[2] parametre(0)
          |                  ^^^^^^^^^
          |
          = help: the nearest opcode is `parameter`
        """
        if not isinstance(content, str | bytes | bytearray | memoryview):
            found = f"a value of type {type(content).__name__}"
            raise TypeError(f"content: expected HLO text or the bytes of a proto, found {found}")
        held = content.encode() if isinstance(content, str) else bytes(memoryview(content))
        return cls(_native.Module.parse(held, _counts(num_partitions, num_replicas)))

    @classmethod
    @checks_names
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        num_partitions: int | None = None,
        num_replicas: int | None = None,
    ) -> Module:
        """Reads a file as `parse` does; of a folder of XLA's dumps, the module of the training step.

        In a folder of dumps, shardings of parameters that the module does not repeat (jax 0.12) are taken from the dump
        before XLA's partitioner. Messages name the file. Raises `OSError` where there is nothing at `path`.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path: expected a path, found {path!r} of type {type(path).__name__}")
        os.stat(path)
        return cls(_native.Module.read(path, _counts(num_partitions, num_replicas)))

    @property
    def name(self) -> str:
        """Its name."""
        return self._native.name

    @property
    def num_partitions(self) -> int:
        """Partitions that it runs on."""
        return self._native.num_partitions

    @property
    def num_replicas(self) -> int:
        """Replicas that it runs on."""
        return self._native.num_replicas

    @property
    def n_devices(self) -> int:
        """Devices that it runs on: replicas x partitions. A device's flat id is replica x partitions + partition."""
        return self.num_replicas * self.num_partitions

    @property
    def n_instructions(self) -> int:
        """Instructions in all computations."""
        return self._native.n_instructions

    @property
    def notes(self) -> list[str]:
        """What was assumed while it was read, in sentences: where counts and shardings come from."""
        return self._native.notes

    @property
    def computations(self) -> list[Computation]:
        """The computations in text order, callees before callers."""
        return self._native.computations

    @property
    def entry(self) -> Computation:
        """The computation that the module begins with."""
        return next(computation for computation in self.computations if computation.is_entry)

    @property
    def parameter_leaves(self) -> list[tuple[str, tuple[int, ...]]]:
        """Element type and dims of each array that `evaluate` takes: the entry's parameters, tuples flattened."""
        return [(dtype, tuple(dims)) for dtype, dims in self._native.parameter_leaves]

    def collectives(self, *, unknown_trip_count: int = 100) -> list[Collective]:
        """The collectives of all computations in text order; of one in two halves, the first.

        `unknown_trip_count` is how often a loop is taken to run where the module does not say; `Collective.runs_basis`
        says where a number rests on it.
        """
        expected = "how often a loop runs, a whole number from 0 on"
        return self._native.collectives(_checked_count("unknown_trip_count", unknown_trip_count, expected))

    def memory(self, *, top: int = 20) -> Memory:
        """The memory of one device in one run, with the `top` largest buffers of the peak."""
        facts = json.loads(self._native.memory_json(_checked_count("top", top, "a number of buffers, from 0 on")))
        live = facts.pop("live_at_peak")
        buffers = tuple(LiveBuffer(**{**buffer, "index": tuple(buffer["index"])}) for buffer in live)
        return Memory(**{**facts, "peak_at": tuple(facts["peak_at"]), "live_at_peak": buffers})

    @checks_names(replaced=IN_PLACE_OF_DEVICE)
    def run(
        self,
        passes: str | None = None,
        *,
        preset: str | None = None,
        machine: str | None = None,
        memory_limit: int | float | str | None = None,
        replicated_params: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Module, Report]:
        """Runs a preset, then passes, on a copy: the new module and what was done.

        `passes` is a pipeline such as `"cse,dce"` or `"shard-weight-update{min-bytes=4KiB}"`, and `preset` a preset with
        its options; `hlo-opt --list-passes` has the names of both. Times are predicted for `machine`, and passes keep
        `memory_limit` (60e9 or "30GiB", on one device). Raises `UsageError` for a wrong option, `HloError`
        where a pass fails or the passes take longer than `timeout_s`.

        >>> module = Module.parse("HloModule m\\nENTRY e {\\n a = f32[2] parameter(0)\\n b = f32[2] negate(a)\\n"
        ...                       " ROOT c = f32[2] abs(a)\\n}")
        >>> smaller, report = module.run("dce")
        >>> smaller.n_instructions, module.n_instructions, report.has_changed
        (2, 3, True)
        >>> module.run("dcee")
        Traceback (most recent call last):
            ...
        hlo_opt.UsageError: passes: unknown pass: `dcee`, did you mean `dce`?
        """
        if passes is None and preset is None:
            raise UsageError("expected passes or a preset, found neither")
        limit = _checked_bytes("memory_limit", memory_limit)
        options = _options(
            {
                "pass": passes,
                "preset": preset,
                "machine": machine,
                "memory-limit": None if limit is None else str(limit),
                "replicated-params": replicated_params,
                "timeout": None if timeout_s is None else repr(_checked_timeout(timeout_s)),
            }
        )
        native, summary, report, made = self._native.run(options)
        files = {name: file if isinstance(file, str) else Module(file) for name, file in made}
        return Module(native), Report(summary, json.loads(report), files)

    def to_text(self, format: Literal["auto", "long", "short"] = "auto") -> str:
        """HLO text: in the form that was read, or in XLA's long or short form."""
        return self._native.text(format)

    def to_proto(self) -> bytes:
        """The bytes of an HloModuleProto. It has no counts of devices: XLA keeps them elsewhere."""
        return self._native.proto()

    @checks_names
    def evaluate(
        self,
        arrays: Sequence[Any] | Sequence[Sequence[Any]],
        *,
        max_steps: int | None = None,
        timeout_s: float | None = None,
    ) -> list[list[np.ndarray]]:
        """Runs the module on all its devices, without a compiler: a list of arrays for each device.

        `arrays` is one list of arrays, which all devices get, or one such list for each device. A list holds one array
        for each of `parameter_leaves`, of exactly its element type and dims. What is returned is always a list for each
        device, of the result's arrays, tuples flattened. Types that numpy lacks, such as bfloat16, are those of the
        package ml_dtypes.

        `max_steps` and `timeout_s` end an evaluation that takes too long with an `HloError`.

        >>> module = Module.parse("HloModule m\\nENTRY e {\\n a = s32[2] parameter(0)\\n ROOT b = s32[2] negate(a)\\n}")
        >>> module.evaluate([np.array([1, -2], np.int32)])
        [[array([-1,  2], dtype=int32)]]
        >>> module.evaluate([np.array([1.5, 2])])
        Traceback (most recent call last):
            ...
        hlo_opt.HloError: error[evaluation]: <module>: input 0 on device 0: expected s32[2], found f64[2]
        """
        if isinstance(arrays, np.ndarray) or not isinstance(arrays, Sequence):
            found = f"a value of type {type(arrays).__name__}"
            raise TypeError(f"arrays: expected a list of arrays, found {found}; write [array]")
        timeout_s = _checked_timeout(timeout_s)
        if max_steps is not None:
            max_steps = _checked_count("max_steps", max_steps, "a positive number of steps", least=1)
        n_lists = sum(isinstance(one, (list, tuple)) for one in arrays)
        if n_lists not in (0, len(arrays)):
            raise UsageError("arrays: expected arrays for all devices, or a list of arrays for each, found both")
        is_for_all = n_lists == 0
        lists: Sequence[Sequence[Any]] = [arrays] if is_for_all else arrays
        given = [[to_native(array) for array in one] for one in lists]
        computed = self._native.evaluate(given, is_for_all, max_steps, timeout_s)
        return [[from_native(*array) for array in one] for one in computed]

    @checks_names(replaced=IN_PLACE_OF_DEVICE)
    def audit(
        self,
        *,
        deny: str | Sequence[str] = (),
        allow: str | Sequence[str] = (),
        machine: str | None = None,
        replicated_params: str | None = None,
    ) -> list[Finding]:
        """What is wrong with a step, in text order. The module is one device's, as it is after XLA's partitioner.

        `deny` marks findings (`Finding.is_denied`), `allow` leaves checks out; both take names of checks, `"fault"`,
        `"advice"` or `"all"`. Times are predicted for `machine`. Raises `HloError` for a program of all devices
        together.
        """
        options = _options(
            {
                "deny": _checks("deny", deny) or None,
                "allow": _checks("allow", allow) or None,
                "machine": machine,
                "replicated-params": replicated_params,
            }
        )
        return [_finding(fact) for fact in json.loads(self._native.audit_json(options))["findings"]]

    def __repr__(self) -> str:
        devices = "1 device" if self.n_devices == 1 else f"{self.n_devices} devices"
        return f"<Module {self.name}: {self.n_instructions} instructions, {devices}>"


def _checked_count(name: str, value: Any, expected: str, least: int = 0) -> int:
    """As `arguments.checked_count`; a wrong value is a `UsageError`."""
    try:
        return arguments.checked_count(name, value, expected, least)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _checked_timeout(timeout_s: Any) -> float | None:
    """As `arguments.checked_deadline`; a wrong value is a `UsageError`."""
    try:
        return arguments.checked_deadline(timeout_s, "timeout_s")
    except ValueError as error:
        raise UsageError(str(error)) from None


def _checked_bytes(name: str, value: Any) -> int | None:
    """As `arguments.checked_bytes`; a wrong value is a `UsageError`."""
    try:
        return arguments.checked_bytes(name, value)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _counts(num_partitions: int | None, num_replicas: int | None) -> list[tuple[str, str]]:
    """The options about devices."""
    said = {"num_partitions": num_partitions, "num_replicas": num_replicas}
    count = lambda name, number: str(_checked_count(name, number, "a positive number of devices", least=1))
    return [(name.replace("_", "-"), count(name, number)) for name, number in said.items() if number is not None]


def _options(said: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """The options that something is said of."""
    for name, value in said.items():
        called = {"pass": "passes"}.get(name, name.replace("-", "_"))
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{called}: expected a string, found {value!r} of type {type(value).__name__}")
        if value is not None and not value.strip():
            raise UsageError(f"{called}: expected a name, found {value!r}")
    return [(name, value) for name, value in said.items() if value is not None]


def _checks(name: str, checks: Any) -> str:
    """The names of checks, with commas between."""
    if isinstance(checks, str):
        return checks
    if not isinstance(checks, Sequence) or not all(isinstance(check, str) for check in checks):
        raise TypeError(f"{name}: expected the name of a check or a list of names, found {checks!r}")
    return ",".join(checks)


def _finding(fact: dict[str, Any]) -> Finding:
    """A finding of the JSON of `hlo-opt audit`."""
    del fact["column"]
    fact["line"] = fact["line"] or None
    fact["also"] = tuple(place["instruction"] for place in fact["also"])
    return Finding(**fact)
