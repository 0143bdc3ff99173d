"""The switch ``HLO_OPT`` of the environment, and the settings of JAX under which steps run as they were."""

from __future__ import annotations

import functools
import os

import jax
from hlo_opt import _native

#: The variable of the environment; the PJRT plugin reads the same words.
VARIABLE = "HLO_OPT"


@functools.lru_cache(maxsize=64)
def _is_on(text: str) -> bool:
    return not text or _native.is_switched_on(VARIABLE, text)


def is_switched_off() -> bool:
    """Whether ``HLO_OPT`` is ``off``, ``0``, ``false`` or ``no``, in any case.

    Raises:
        ValueError: it has a word that is no switch; the message lists those that are.
    """
    return not _is_on(os.environ.get(VARIABLE, ""))


def why_off() -> str | None:
    """Returns why original steps run: the environment, or a setting by which JAX looks into steps op by op; ``None``
    where nothing is off.

    Raises:
        ValueError: as :func:`is_switched_off`.
    """
    if is_switched_off():
        return f"{VARIABLE}={os.environ[VARIABLE]} in the environment"
    config = jax.config
    for name, is_set in (
        ("jax_disable_jit", config.jax_disable_jit),
        ("jax_debug_nans", config.jax_debug_nans),
        ("jax_debug_infs", config.jax_debug_infs),
    ):
        if is_set:
            return f"{name} is set"
    return None
