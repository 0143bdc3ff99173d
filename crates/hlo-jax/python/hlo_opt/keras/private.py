"""The one name of Keras that is not public: where a variable is placed when a value is assigned to it.

Between epochs Keras assigns the state of the step to its variables. A variable puts each value where its layout says,
which for :class:`keras.distribution.DataParallel` is whole on every device.
"""

from __future__ import annotations

from typing import Any

import jax
import keras

#: The versions of Keras that were tested.
TESTED = ("3.12.0", "3.15.1")

#: The attribute of a variable that holds its layout.
_LAYOUT = "_layout"


def lacks_layouts(variable: keras.Variable) -> str | None:
    """Returns a sentence if this version of Keras has no layouts that can be set, ``None`` if it has."""
    if hasattr(variable, _LAYOUT):
        return None
    return (
        f"keras {keras.__version__} has no {type(variable).__name__}.{_LAYOUT}: Keras replicates the optimizer's state "
        f"after each epoch, and the next step shards it again; tested with keras {', '.join(TESTED)}"
    )


def set_layout(variable: Any, sharding: jax.sharding.Sharding) -> None:
    """Makes a variable place all values that are assigned to it by this sharding."""
    setattr(variable, _LAYOUT, sharding)
