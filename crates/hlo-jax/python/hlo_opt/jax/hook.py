"""``enable``: every program of several devices that XLA compiles goes through hlo-opt on its way, after it is
partitioned."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
from hlo_opt import _native
from hlo_opt.jax import private
from hlo_opt.jax.partitioned import Declined, dumped_module
from hlo_opt.jax.sharding import check_machine

#: The first version of jaxlib that keeps what a program donates when a hook has changed it.
KEEPS_ALIASES = (0, 11)

#: How long a process waits for the others to enable something.
_WAIT_S = 60.0

_NOTHING = b"HloModule nothing\n\nENTRY main {\n  ROOT a = f32[] constant(0)\n}\n"


class HookError(RuntimeError):
    """Nothing could be enabled, and why."""


class Hooked:
    """What the hook has said since :func:`enable`: a line for each program that it changed or failed on.

    Attributes:
        lines: level (``"warning"``, ``"change"``, or ``"left"`` for programs that stayed as they were) and text.
    """

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self.lines = lines

    def __str__(self) -> str:
        of = {level: [text for found, text in self.lines if found == level] for level in ("change", "warning", "left")}
        counts = f"{len(of['change'])} programs changed, {len(of['left'])} left, {len(of['warning'])} failures"
        return "\n".join([counts, *of["change"], *(f"warning: {text}" for text in of["warning"])])

    __repr__ = __str__


def enable(
    pipeline: str = "data-parallel",
    *,
    only: str | Sequence[str] | None = None,
    machine: str | None = None,
    schedule: bool = False,
    strict: bool = False,
    deadline_s: float = 60.0,
) -> None:
    """Has XLA's compilers send each program of several devices through hlo-opt, once it is partitioned.

    On GPUs the compiler calls a native callback. XLA's compiler for CPU devices has no place for one there: such programs
    are compiled three times, until they are partitioned, until fusions are made of what hlo-opt gives, and to the end. So
    CPU devices show what a pipeline does to results and memory, not what a compile takes.

    The interface of a program stays as it is: state that is whole between steps stays whole, so ``zero`` does more for
    a step. This reaches loops inside of ``jit``, collectives, and every other program. Programs that were compiled
    before stay as they are. A second call takes the place of the first.

    Args:
        pipeline: a preset or a list of passes, with options, as the command line takes them.
        only: names of jitted functions that are touched; all if none is given.
        machine: what times are predicted for: ``"h100"``, ``"h200:4"``, as ``--machine`` takes it.
        schedule: also order anew what XLA has scheduled (``schedule-collectives``), where a shorter step is predicted and no
            more memory is taken: collectives run beside more of the other work. On GPUs only; no GPU has run it yet.
        strict: what goes wrong is an error of the compile, not a warning on stderr and the program as it was.
        deadline_s: seconds that one program may take.

    Raises:
        ValueError: there is no such pipeline or machine.
        HookError: a plugin for GPUs takes no hook; or another process of this run does not enable the same: of several
            processes, which share programs, all have to call this.
    """
    _check_pipeline(pipeline)
    if machine is not None:
        check_machine(machine)
    names = [only] if isinstance(only, str) else list(only or ())
    is_off = os.environ.get("HLO_OPT", "").lower() == "off"
    said = (_native.__version__, pipeline, names, machine, schedule, strict, deadline_s)
    others = private.disagreeing_processes("enable", "off" if is_off else repr(said), _WAIT_S)
    if others:
        raise HookError(f"nothing is enabled: processes {others} enable something else, or nothing within {_WAIT_S} s")
    if is_off:
        # What was enabled before is not what is asked for now.
        _native.hook([], pipeline, names, machine, deadline_s, (strict, True, False))
        disable()
        return
    keeps_aliases = tuple(map(int, re.findall(r"\d+", jax.lib.__version__)[:2])) >= KEEPS_ALIASES
    plugins = list(private.pjrt_plugins().items())
    try:
        _native.hook(plugins, pipeline, names, machine, deadline_s, (strict, keeps_aliases, bool(schedule)))
    except RuntimeError as error:
        raise HookError(str(error)) from None
    private.intercept_cpu_compiles(_compile_changed)
    settings = (pipeline, tuple(names), machine, bool(schedule))
    private.set_cache_salt(f"hlo-opt {_native.__version__} {settings}")


def disable() -> None:
    """Programs that are compiled from now on stay as they are; those that were compiled stay as they became."""
    _native.unhook()
    private.intercept_cpu_compiles(None)
    private.set_cache_salt("")


def hooked() -> Hooked:
    """What the hook has said since it was enabled."""
    return Hooked(_native.hook_lines())


def _compile_changed(program: private.Compile) -> Any | None:
    """The executable of what hlo-opt makes of a program of CPU devices; ``None`` where it stays as it is."""
    try:
        module = dumped_module(program.dump_partitioned, program.name)
    except Declined as why:
        _native.module_left(program.name, str(why))
        return None
    except Exception as error:
        _raise_interrupt(error)
        _native.module_failed(program.name, f"XLA's partitioner: {error}")
        return None
    made = _native.transform_module(module)
    if made is None:
        return None
    try:
        return program.finish(private.stablehlo_of(made))
    except Exception as error:
        _raise_interrupt(error)
        _native.module_failed(program.name, f"XLA did not compile what was made of it: {error}")
        return None


def _raise_interrupt(error: Exception) -> None:
    """Raises the user's interrupt where that came inside of the hook, of which XLA makes an error of its own."""
    if "KeyboardInterrupt" in str(error):
        raise KeyboardInterrupt from error


def _check_pipeline(pipeline: str) -> None:
    """Raises a ValueError where this is neither a preset nor a list of passes."""
    name = pipeline.split("{")[0]
    for kind in ("--preset", "--pass"):
        with tempfile.TemporaryDirectory(prefix="hlo_opt_") as folder:
            code, _, said = _native.run([kind, pipeline, "-o", folder, "-q", "-"], _NOTHING)
        is_other = f"found `{name}`" in said or "expected one preset" in said
        if code == 2 and (kind == "--pass" or not is_other):
            raise ValueError(f"pipeline: {said.strip().splitlines()[0].removeprefix('error: ')}")
        if code != 2:
            return
