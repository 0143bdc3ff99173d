"""Checks of the arguments that users pass: each error names the argument, what was expected and what was found.

A value of a wrong type is a :class:`TypeError`, a wrong value of the right type a :class:`ValueError`.
"""

from __future__ import annotations

import decimal
import difflib
import functools
import inspect
import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

#: Units of sizes: those of 1,000 and those of 1,024.
UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}

_SIZE = re.compile(
    r"\s*([+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*"
)

#: The most bytes that a limit can be: what 64 bits hold.
MOST_BYTES = 2**63 - 1

_SIZES = "a number of bytes (60e9) or a size with its unit ('60GB' is 60e9 bytes, '60GiB' is 60 * 2**30)"


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'X'?"`` with the nearest known word, or nothing where none is near."""
    words = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower(), words, n=1, cutoff=0.7)
    return f"; did you mean {words[found[0]]!r}?" if found else ""


def checks_names(function: Function | None = None, *, replaced: dict[str, str] | None = None) -> Any:
    """Makes a misspelt keyword an error that names the nearest one and lists all that the function takes. ``replaced``
    has keywords that are no longer taken, and what to write in their place."""
    if function is None:
        return functools.partial(checks_names, replaced=replaced)
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL and p.name not in ("self", "cls")]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name in (replaced or {}):
                raise TypeError(f"{function.__qualname__}: {name}= is not taken; write {replaced[name]}")
            if name not in names:
                raise TypeError(
                    f"{function.__qualname__}: unexpected keyword argument {name!r}{nearest(name, names)} "
                    f"(it takes {', '.join(names)})"
                )
        return function(*args, **kwargs)

    return checked


def checked_patterns(name: str, value: Any) -> dict[re.Pattern[str], bool]:
    """Returns a dict of regular expressions and flags, with the expressions compiled; ``None`` is an empty one.

    Raises:
        TypeError: it is no dict of strings and flags.
        ValueError: a string is no regular expression.
    """
    expected = "a dict of regular expressions and flags, such as {'ema': False}"
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name}: expected {expected}, found {_found(value)}")
    found = {}
    for pattern, flag in value.items():
        if not isinstance(pattern, str | re.Pattern) or not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name}: expected {expected}, found {pattern!r}: {_found(flag)}")
        try:
            found[re.compile(pattern)] = bool(flag)
        except re.error as error:
            raise ValueError(f"{name}: expected a regular expression, found {pattern!r}: {error}") from None
    return found


def checked_flag(name: str, value: Any) -> bool:
    """Returns a flag as a ``bool``.

    Raises:
        TypeError: it is another type; strings and numbers are no flags.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, found {_found(value)}")
    return bool(value)


def checked_number(name: str, value: Any, expected: str, is_right: Callable[[float], bool]) -> float:
    """Returns a finite number.

    Args:
        name: what messages call it.
        value: what the user passed.
        expected: what messages say of right values, with their unit: ``"a positive number of seconds"``.
        is_right: whether a finite number is a right one.

    Raises:
        TypeError: it is no real number.
        ValueError: it is infinite, NaN or not right.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected {expected}, found {_found(value)}")
    number = float(value)
    if not math.isfinite(number) or not is_right(number):
        raise ValueError(f"{name}: expected {expected}, found {value!r}")
    return number


def checked_deadline(value: Any, name: str = "deadline_s") -> float | None:
    """Returns a time limit in seconds, ``None`` for no limit.

    Raises:
        TypeError: it is no number.
        ValueError: it is not positive, or not finite.
    """
    if value is None:
        return None
    return checked_number(name, value, "a positive number of seconds", lambda seconds: seconds > 0)


def checked_count(name: str, value: Any, expected: str, least: int = 0) -> int:
    """Returns a whole number.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is less than ``least``, or more than 64 bits hold.
    """
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected {expected}, found {_found(value)}")
    count = operator.index(value)
    if not least <= count <= MOST_BYTES:
        raise ValueError(f"{name}: expected {expected}, found {value!r}")
    return count


def checked_bytes(name: str, value: Any) -> int | None:
    """Returns a size in bytes, ``None`` for no limit. A part of a byte is left out.

    Sizes are numbers of bytes, as ``60_000_000_000`` and ``60e9``, or strings of a number and a unit, as ``"60GB"`` and
    ``"1.5 GiB"``: kB, MB, GB and TB are powers of 1,000, KiB, MiB, GiB and TiB powers of 1,024. A string without a
    unit, or with half of one (``"60G"``), is refused: it could mean either.

    Raises:
        TypeError: it is neither a number nor a string.
        ValueError: it is no positive and finite number of bytes, or its unit is missing or unknown.
    """
    if value is None:
        return None
    is_number = isinstance(value, numbers.Real) or hasattr(value, "__index__")
    if isinstance(value, bool | np.bool_) or not (is_number or isinstance(value, str)):
        raise TypeError(f"{name}: expected {_SIZES}, found {_found(value)}")
    if isinstance(value, str):
        n_bytes = _bytes_of_text(name, value)
    elif hasattr(value, "__index__"):
        n_bytes = operator.index(value)
    else:
        n_bytes = math.floor(value) if math.isfinite(value) else 0
    if not 1 <= n_bytes <= MOST_BYTES:
        raise ValueError(f"{name}: expected {_SIZES}, at least 1 byte, found {value!r}")
    return n_bytes


def _bytes_of_text(name: str, text: str) -> int:
    parts = _SIZE.fullmatch(text)
    if parts is None:
        raise ValueError(f"{name}: expected {_SIZES}, found {text!r}")
    number, unit = parts[1].replace("_", "").replace(",", ""), parts[2]
    if not unit:
        meant = f"write '{number}GB' or '{number}GiB'"
        raise ValueError(f"{name}: expected a unit behind the number, found {text!r}; {meant}")
    if unit not in UNITS:
        letter = unit[0].upper()
        meant = [known for known in UNITS if known.upper() == unit.upper()]
        meant = meant or [known for known in (f"{letter}B", f"{letter}iB") if known in UNITS]
        hint = f"; did you mean {' or '.join(repr(number + known) for known in meant)}?" if meant else ""
        raise ValueError(f"{name}: expected one of the units {', '.join(UNITS)}, found {unit!r} in {text!r}{hint}")
    size = decimal.Decimal(number) * UNITS[unit]
    return math.floor(size) if 0 < size <= MOST_BYTES else 0


def checked_choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """Returns a value that is among the choices; ``True`` is not 1.

    Raises:
        ValueError: it is another; the nearest choice is named where one is near.
    """
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    if isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_) and int(value) in choices:
        return int(value)
    *first, last = [repr(choice) for choice in choices]
    same = [choice for choice in choices if str(choice) == str(value)]
    hint = f"; did you mean {same[0]!r}?" if same else nearest(value, [c for c in choices if isinstance(c, str)])
    raise ValueError(f"{name}: expected {', '.join(first)} or {last}, found {value!r}{hint}")


def checked_text(name: str, value: Any, expected: str) -> str | None:
    """Returns a string, ``None`` for none.

    Raises:
        TypeError: it is another type.
        ValueError: it is empty.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected {expected}, found {_found(value)}")
    if not value.strip():
        raise ValueError(f"{name}: expected {expected}, found an empty string")
    return value


def checked_file(name: str, value: Any) -> str | None:
    """Returns the absolute path of a file that is there, ``None`` for none.

    Raises:
        TypeError: it is no path.
        FileNotFoundError: nothing is there.
    """
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}: expected the path of a file, found {_found(value)}")
    path = os.path.abspath(os.fspath(value))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{name}: expected a file, found none at {path!r}")
    return path


def _found(value: Any) -> str:
    """Returns a value and its type, in a few words."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '…'} of type {type(value).__name__}"
