"""``enable``: every program of several devices that XLA compiles goes through hlo-opt on its way, after it is
partitioned."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
from hlo_opt import _native
from hlo_opt.arguments import checked_deadline, checked_flag, checked_text, checks_names, nearest
from hlo_opt.jax import private
from hlo_opt.jax.partitioned import Declined, dumped_module
from hlo_opt.jax.sharding import checked_machine
from hlo_opt.jax.switch import VARIABLE, is_switched_off
from hlo_opt.jax.words import python_words, sentence

#: The first version of jaxlib that keeps what a program donates when a hook has changed it.
KEEPS_ALIASES = (0, 11)

#: How long a process waits for the others to enable something.
_WAIT_S = 60.0

_NOTHING = b"HloModule nothing\n\nENTRY main {\n  ROOT a = f32[] constant(0)\n}\n"


class HookError(RuntimeError):
    """Nothing could be enabled, and why."""


#: Why nothing goes through hlo-opt; empty while it does.
_note = "nothing is enabled"


class Hooked:
    """What the hook has said since :func:`enable`: a line for each program of several devices that XLA compiled.

    Attributes:
        lines: level (``"change"``, ``"left"`` for programs that stayed as they were, ``"warning"`` for failures) and
            text.
        note: why nothing goes through hlo-opt now; empty while it does.
    """

    def __init__(self, lines: list[tuple[str, str]], note: str = "") -> None:
        self.lines = lines
        self.note = note

    def __str__(self) -> str:
        of = {level: [text for found, text in self.lines if found == level] for level in ("change", "left", "warning")}
        counts = [(len(of["change"]), "changed"), (len(of["left"]), "left"), (len(of["warning"]), "failed")]
        said = ", ".join(f"{number} {what}" for number, what in counts)
        lines = [self.note] if self.note else []
        lines.append(f"programs of several devices: {said}")
        lines += [f"{text}" for text in of["change"]]
        lines += [f"left: {text}" for text in of["left"]]
        return "\n".join([*lines, *(f"failed: {text}" for text in of["warning"])])

    __repr__ = __str__


@checks_names
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
        machine: what times are predicted for: ``"h100"``, or ``"h200:4"`` with the number of nodes over which the devices
            are spread.
        schedule: also order anew what XLA has scheduled (``schedule-collectives``), where a shorter step is predicted and no
            more memory is taken: collectives run beside more of the other work. On GPUs only; no GPU has run it yet.
        strict: what goes wrong is an error of the compile, not a warning on stderr and the program as it was.
        deadline_s: seconds that one program may take.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: there is no such pipeline or machine, or ``HLO_OPT`` in the environment is no switch.
        HookError: a plugin for GPUs takes no hook; or another process of this run does not enable the same: of several
            processes, which share programs, all have to call this.
    """
    global _note
    pipeline, names, machine = _checked_pipeline(pipeline), _names(only), checked_machine(machine)
    schedule, strict = checked_flag("schedule", schedule), checked_flag("strict", strict)
    if deadline_s is None:
        raise TypeError("deadline_s: expected a positive number of seconds, found None; there is always a limit here")
    deadline_s = checked_deadline(deadline_s)
    is_off = is_switched_off()
    said = (_native.__version__, pipeline, names, machine, schedule, strict, deadline_s)
    others = private.disagreeing_processes("enable", "off" if is_off else repr(said), _WAIT_S)
    if others:
        raise HookError(f"nothing is enabled: processes {others} enable something else, or nothing within {_WAIT_S} s")
    if is_off:
        # What was enabled before is not what is asked for now.
        _native.hook([], pipeline, names, machine, deadline_s, (strict, True, False))
        disable()
        _note = f"nothing is enabled: {VARIABLE} was off in the environment when enable was called"
        return
    keeps_aliases = tuple(map(int, re.findall(r"\d+", jax.lib.__version__)[:2])) >= KEEPS_ALIASES
    plugins = list(private.pjrt_plugins().items())
    try:
        _native.hook(plugins, pipeline, names, machine, deadline_s, (strict, keeps_aliases, schedule))
    except RuntimeError as error:
        raise HookError(str(error)) from None
    private.intercept_cpu_compiles(_compile_changed)
    settings = (pipeline, tuple(names), machine, schedule)
    private.set_cache_salt(f"hlo-opt {_native.__version__} {settings}")
    _note = ""


def disable() -> None:
    """Programs that are compiled from now on stay as they are; those that were compiled stay as they became."""
    global _note
    _native.unhook()
    _note = "nothing is enabled"
    private.intercept_cpu_compiles(None)
    private.set_cache_salt("")


def hooked() -> Hooked:
    """What the hook has said since :func:`enable` was called last; it stays after :func:`disable`."""
    return Hooked(_native.hook_lines(), _note)


def _compile_changed(program: private.Compile) -> Any | None:
    """The executable of what hlo-opt makes of a program of CPU devices; ``None`` where it stays as it is."""
    try:
        module = dumped_module(program.dump_partitioned, program.name)
    except Declined as why:
        _native.module_left(program.name, str(why))
        return None
    except Exception as error:
        _raise_interrupt(error)
        _native.module_failed(program.name, f"XLA's partitioner: {sentence(error)}")
        return None
    made = _native.transform_module(module)
    if made is None:
        return None
    try:
        return program.finish(private.stablehlo_of(made))
    except Exception as error:
        _raise_interrupt(error)
        _native.module_failed(program.name, f"XLA did not compile what was made of it: {sentence(error)}")
        return None


def _raise_interrupt(error: Exception) -> None:
    """Raises the user's interrupt where that came inside of the hook, of which XLA makes an error of its own."""
    if "KeyboardInterrupt" in str(error):
        raise KeyboardInterrupt from error


def _names(only: Any) -> list[str]:
    """The names of jitted functions that the user gave."""
    names = [only] if isinstance(only, str) else only if only is not None else []
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"only: expected the name of a jitted function, or a list of names, found {only!r}")
    return list(names)


def _checked_pipeline(pipeline: Any) -> str:
    """Returns a preset or a list of passes.

    Raises:
        TypeError: it is no string.
        ValueError: it is neither, and what it may have meant.
    """
    expected = "a preset (such as 'data-parallel') or passes (such as 'cse,dce')"
    if checked_text("pipeline", pipeline, expected) is None:
        raise TypeError(f"pipeline: expected {expected}, found None")
    presets, passes = _native.pipeline_names()
    name = pipeline.partition("{")[0].strip()
    if "," not in name and name not in presets and name.replace("_", "-") not in passes:
        raise ValueError(
            f"pipeline: expected a preset ({', '.join(presets)}) or a list of passes, found {name!r}"
            f"{nearest(name, [*presets, *passes])}"
        )
    kind = "--preset" if name in presets else "--pass"
    with tempfile.TemporaryDirectory(prefix="hlo_opt_") as folder:
        code, _, said = _native.run([kind, pipeline, "-o", folder, "-q", "-"], _NOTHING)
    if code == 2:
        raise ValueError(f"pipeline: {python_words(said).removeprefix('passes: ').removeprefix('preset: ')}")
    return pipeline
