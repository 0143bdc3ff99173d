"""The script of the page about other frameworks runs, and the optimizer's state of its model lies in shards."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "jax"
keras = pytest.importorskip("keras")

PAGE = (Path(__file__).parent.parent / "docs" / "other_frameworks.md").read_text(encoding="utf-8")


def test_the_keras_script_keeps_state_in_shards(capsys):
    names: dict = {}
    code = PAGE.split("<!-- keras -->\n```python\n", 1)[1].split("```", 1)[0]
    try:
        exec(compile(code, "other_frameworks.md", "exec"), names)
    finally:
        keras.distribution.set_distribution(None)
    said = capsys.readouterr()
    assert (
        "train_step on 8 devices" in said.out and "arrays of optimizer state lie in shards over 8 devices" in said.err
    )
    model = names["model"]
    assert f"optimizer['{model.optimizer.name}/{model.name}_{model.layers[0].name}_kernel_momentum']" in said.out
    large = [variable.value for variable in model.optimizer.variables if variable.value.nbytes >= 16 << 10]
    assert large and all(value.addressable_shards[0].data.nbytes * 8 == value.nbytes for value in large)
    assert all(variable.value.sharding.is_fully_replicated for variable in model.weights)
    assert np.all(np.isfinite(model.history.history["loss"]))
