"""The script of the README runs, and does what the README says of it."""

from __future__ import annotations

import re
from pathlib import Path

import hlo_opt.jax as ho
import jax
import numpy as np
import pytest
from test_auto import wide_step

README = Path(__file__).parent.parent / "README.md"


def script(marker: str) -> str:
    """The block of Python behind a marker."""
    text = README.read_text(encoding="utf-8")
    return text.split(f"<!-- {marker} -->\n```python\n", 1)[1].split("```", 1)[0]


def test_the_script_keeps_state_in_shards(capsys, tmp_path):
    names: dict = {}
    exec(compile(script("script"), str(README), "exec"), names)
    said = capsys.readouterr()
    assert "train_step on 8 devices: 4 of 9 arguments are in shards" in said.out
    quoted = README.read_text(encoding="utf-8").split("```text\nhlo_opt.jax.zero: ", 1)[1].split("```", 1)[0]
    assert " ".join(f"hlo_opt.jax.zero: {quoted}".split()) == said.err.strip()
    for leaf in jax.tree.leaves(names["opt_state"]):
        if leaf.ndim:
            assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(names["params"]))
    saved = [np.asarray(leaf) for leaf in jax.tree.leaves((names["params"], names["opt_state"]))]
    names["folder"] = tmp_path / "state"
    exec(compile(script("checkpoint"), str(README), "exec"), names)
    for leaf, before in zip(jax.tree.leaves((names["params"], names["opt_state"])), saved, strict=True):
        np.testing.assert_array_equal(leaf, before)
    for leaf in jax.tree.leaves(names["opt_state"]):
        if leaf.ndim:
            assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes
    copies = jax.tree.map(jax.numpy.copy, ho.replicate((names["params"], names["opt_state"])))
    whole = names["train_step"].unwrapped(*copies, names["x"], names["y"])
    again = names["train_step"](names["params"], names["opt_state"], names["x"], names["y"])
    assert float(again[2]) == pytest.approx(float(whole[2]), rel=1e-6)


def test_the_modules_script_prints_what_the_program_does(capsys, monkeypatch):
    monkeypatch.chdir(README.parent.parent.parent)
    names: dict = {}
    exec(compile(script("module"), str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("all-reduce ")
    assert "2 all-gather, 1 all-reduce, 1 reduce-scatter" in printed
    assert len(names["faster"].collectives()) == 5


def test_the_partitioned_script_is_what_it_says(capsys):
    names: dict = {}
    exec(compile(script("partition"), str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert "train_step on 8 devices, partitioned by hlo-opt" in printed
    assert names["params"]["up"].addressable_shards[0].data.shape == (256, 256)
    assert np.isfinite(float(names["loss"]))


def test_the_layout_is_laid_out():
    names: dict = {}
    exec(compile(script("partition"), str(README), "exec"), names)
    exec(compile(script("layout"), str(README), "exec"), names)
    params = {"up": jax.numpy.ones((256, 1024)) / 256, "down": jax.numpy.ones((1024, 256)) / 1024}
    params, _, loss = names["train_step"](params, names["tx"].init(params), names["x"], names["y"])
    assert params["up"].addressable_shards[0].data.shape == (256, 256) and np.isfinite(float(loss))
    assert ho.report(names["train_step"]).declined is None


def test_the_automatic_script_gives_shardings():
    """On a step that is wide enough for cutting to pay."""
    step, params, state, x, y = wide_step()
    names = {"ho": ho, "train_step": step, "params": params, "opt_state": state, "x": x, "y": y}
    exec(compile(script("auto"), str(README), "exec"), names)
    assert ho.report(names["train_step"]).declined is None
    assert any(not sharding.is_fully_replicated for sharding in jax.tree.leaves(names["in_shardings"]))
    assert np.isfinite(float(names["loss"]))


def test_the_hooked_script_prints_what_was_done(capsys):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    place = lambda array, spec: jax.device_put(array, jax.sharding.NamedSharding(mesh, spec))
    names = {"ho": ho, "jax": jax, "jnp": jax.numpy}
    names["params"] = {"w": place(np.ones((64, 64), np.float32), jax.sharding.PartitionSpec())}
    names["x"] = place(np.ones((16, 64), np.float32), jax.sharding.PartitionSpec("data"))
    exec(compile(script("enable"), str(README), "exec"), names)
    printed = capsys.readouterr().out
    counts = re.match(r"programs of several devices: (\d) changed, (\d) left, (\d) failed\n", printed)
    assert counts and sum(map(int, counts.groups())) == len(printed.splitlines()) - 1 > 0, "a line for each"
    assert ho.hooked().note == "nothing is enabled"
