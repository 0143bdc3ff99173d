"""The two scripts of the page about ``pmap`` train alike, and the second one's optimizer state lies in shards."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

PAGE = (Path(__file__).parent.parent / "docs" / "pmap.md").read_text(encoding="utf-8")


def run(marker: str) -> dict:
    names: dict = {}
    code = PAGE.split(f"<!-- {marker} -->\n```python\n", 1)[1].split("```", 1)[0]
    exec(compile(code, marker, "exec"), names)
    return names


def test_both_scripts_train_alike():
    before, after = run("pmap"), run("jit")
    np.testing.assert_allclose(float(after["loss"]), float(before["loss"]), rtol=1e-5)
    for name, leaf in after["params"].items():
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(before["params"][name][0]), rtol=1e-4, atol=1e-6)
    for leaf in jax.tree.leaves(after["opt_state"]):
        if leaf.ndim:
            assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes
