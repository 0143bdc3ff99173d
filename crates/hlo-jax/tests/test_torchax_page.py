"""The script about torchax trains as it does without ``ho.zero``, and its optimizer state lies in shards."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.more

PAGE = (Path(__file__).parent.parent / "docs" / "torchax.md").read_text(encoding="utf-8")

#: The line of the script that the test leaves out to compare.
LINE = "train_step = ho.zero(train_step)  # the one line\n"


def run(code: str) -> dict:
    names: dict = {}
    exec(compile(code, "torchax.md", "exec"), names)
    return names


def test_the_script_trains_alike_with_and_without_the_line(capsys):
    interop = pytest.importorskip("torchax.interop", reason="needs requirements-torchax.txt")
    code = PAGE.split("<!-- script -->\n```python\n", 1)[1].split("```", 1)[0]
    plain, own = run(code.replace(LINE, "").replace(", ho.report(train_step)", "")), run(code)
    assert LINE in code and re.search(r"opt_state\[0\]\.mu\['blocks\.0\.up\.weight'\]", capsys.readouterr().out)
    np.testing.assert_allclose(own["losses"], plain["losses"], rtol=1e-5)
    before, after = (interop.jax_view((names["weights"], names["opt_state"])) for names in (plain, own))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(np.asarray(new), np.asarray(old), rtol=1e-3, atol=1e-5)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(after[0]))
    large = [leaf for leaf in jax.tree.leaves(after[1]) if leaf.nbytes >= 16 << 10]
    assert large and all(leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes for leaf in large)
