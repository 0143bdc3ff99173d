"""The extension module. Use what `hlo_opt` has of it."""

import os
from collections.abc import Sequence
from typing import final

__version__: str

def run(args: Sequence[str], stdin: bytes) -> tuple[int, bytes, str]:
    """Runs the command line on bytes: exit code, stdout, stderr."""

def main(args: Sequence[str]) -> int:
    """The program `hlo-opt` on the streams of this process; its exit code."""

def machine_error(text: str) -> str | None:
    """What is wrong with a machine as the command line takes it; files are not read."""

def machine_names() -> list[str]:
    """The names of machines."""

def pipeline_names() -> tuple[list[str], list[str]]:
    """The names of presets, and those of passes."""

def python_words(text: str) -> str:
    """A message of the command line as Python says it."""

class HloError(ValueError):
    """A module that is not valid, or work on it that cannot be done."""

class UsageError(ValueError):
    """An option that cannot be right: what was expected and found."""

@final
class Instruction:
    """An instruction of a module."""

    @property
    def name(self) -> str:
        """Its name, without `%`."""
    @property
    def opcode(self) -> str:
        """What it does, as `all-reduce`."""
    @property
    def computation(self) -> str:
        """The name of its computation."""
    @property
    def is_root(self) -> bool:
        """Whether its value is what its computation returns."""
    @property
    def shape(self) -> str:
        """The shape of its value as HLO text, with layouts: `f32[2,3]{1,0}`."""
    @property
    def leaves(self) -> list[tuple[str, list[int]]]:
        """The element type and dims of each array of its value, tuples flattened."""
    @property
    def bytes(self) -> int:
        """Bytes of its value in memory."""
    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
    @property
    def calls(self) -> list[str]:
        """The names of the computations that it calls."""
    @property
    def parameter_number(self) -> int | None:
        """The number of a parameter."""
    @property
    def literal(self) -> str | None:
        """The value of a constant, as text."""
    @property
    def attributes(self) -> dict[str, str]:
        """Everything behind the operands, as texts by name: `{"dimensions": "{0}", "to_apply": "%add"}`."""
    @property
    def op_name(self) -> str | None:
        """The name path of the framework."""
    @property
    def source_file(self) -> str | None:
        """The file of the program that it comes from: of its stack, the innermost frame's."""
    @property
    def source_line(self) -> int | None:
        """The line in that file."""
    @property
    def text(self) -> str:
        """The instruction on one line of HLO."""

@final
class Computation:
    """A computation of a module."""

    @property
    def name(self) -> str:
        """Its name, without `%`."""
    @property
    def is_entry(self) -> bool:
        """Whether the module begins here."""
    @property
    def instructions(self) -> list[Instruction]:
        """Its instructions in text order, operands before users."""
    @property
    def root(self) -> Instruction | None:
        """The instruction whose value it returns."""

@final
class Collective:
    """A collective; of one in two halves, the first."""

    @property
    def opcode(self) -> str:
        """Its opcode, as `all-reduce`."""
    @property
    def name(self) -> str:
        """Its name, without `%`."""
    @property
    def computation(self) -> str:
        """The name of the computation that it stands in."""
    @property
    def bytes(self) -> int:
        """Bytes of its operands on one device, in one run."""
    @property
    def result_bytes(self) -> int:
        """Bytes of its result on one device, in one run; of a first half, what else it holds included."""
    @property
    def n_operands(self) -> int:
        """How many arrays it takes."""
    @property
    def groups(self) -> list[list[int]]:
        """The devices that exchange values with each other, by flat id; empty for a permute."""
    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of a permute: which device sends to which."""
    @property
    def channel_id(self) -> int | None:
        """The channel."""
    @property
    def runs(self) -> float:
        """How often it runs in one run of the module; of a branch, on average."""
    @property
    def runs_basis(self) -> str:
        """How surely that is known: `stated` by the module, `derived` from it, `estimated`, or `assumed`."""
    @property
    def op_name(self) -> str | None:
        """The name path of the framework."""
    @property
    def source(self) -> str | None:
        """`file:line` of the program that it comes from."""

@final
class Module:
    """What stands behind `hlo_opt.Module`."""

    @staticmethod
    def parse(content: bytes, options: Sequence[tuple[str, str]]) -> Module: ...
    @staticmethod
    def read(path: str | os.PathLike[str], options: Sequence[tuple[str, str]]) -> Module: ...
    @property
    def name(self) -> str: ...
    @property
    def num_partitions(self) -> int: ...
    @property
    def num_replicas(self) -> int: ...
    @property
    def n_instructions(self) -> int: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def computations(self) -> list[Computation]: ...
    @property
    def parameter_leaves(self) -> list[tuple[str, list[int]]]: ...
    def collectives(self, unknown_trip_count: int) -> list[Collective]: ...
    def memory_json(self, top: int) -> str: ...
    def audit_json(self, options: Sequence[tuple[str, str]]) -> str: ...
    def run(self, options: Sequence[tuple[str, str]]) -> tuple[Module, str, str, list[tuple[str, Module | str]]]: ...
    def text(self, form: str) -> str: ...
    def proto(self) -> bytes: ...
    def evaluate(
        self,
        arrays: Sequence[Sequence[tuple[str, Sequence[int], bytes]]],
        is_for_all: bool,
        max_steps: int | None,
        timeout_s: float | None,
    ) -> list[list[tuple[str, list[int], bytearray]]]: ...

def hook(
    plugins: list[tuple[str, object]],
    pipeline: str,
    only: list[str],
    machine: str | None,
    deadline_s: float,
    switches: tuple[bool, bool, bool],
) -> None: ...
def transform_module(module: bytes) -> bytes | None: ...
def module_failed(name: str, why: str) -> None: ...
def module_left(name: str, why: str) -> None: ...
def unhook() -> None: ...
def is_switched_on(name: str, text: str) -> bool: ...
def hook_lines() -> list[tuple[str, str]]: ...
