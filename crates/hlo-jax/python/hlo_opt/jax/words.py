"""Sizes, and what the compiler and XLA say, in the words of warnings and reports."""

from __future__ import annotations

import re

from hlo_opt import _native

#: The most characters of what XLA says that a warning repeats.
MOST_CHARACTERS = 400

_TRACEBACK = "Traceback (most recent call last)"

#: Where XLA's messages begin to list frames, most of them of this package.
_FRAMES = "Suspected Python Code Location"


def size(n_bytes: float) -> str:
    """Returns a size with four digits at most, as ``1.522 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.4g} {unit}"
    return f"{n_bytes:.0f} B"


def python_words(said: str) -> str:
    """Returns what the compiler says to users of steps: no options of the command line, and sizes with units."""
    text = _native.python_words(said.strip()).replace("timeout_s", "deadline_s")
    text = re.sub(r"^error\[[\w-]+\]: (?:<\w+>: )?", "", text)
    return re.sub(r"\b([0-9]{4,}) bytes\b", lambda found: size(int(found[1])), text)


def sentence(error: BaseException) -> str:
    """Returns an error as one line without a traceback: its type and what it says."""
    text = str(error).partition(_FRAMES)[0].strip()
    before, traceback, behind = text.partition(_TRACEBACK)
    if traceback:
        # A traceback ends with the error that was raised; what XLA adds stands behind an empty line.
        raised = [line for line in behind.split("\n\n")[0].splitlines() if line and not line.startswith((" ", "At:"))]
        text = " ".join([before.strip(), raised[-1] if raised else ""])
    text = " ".join(text.split())
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
