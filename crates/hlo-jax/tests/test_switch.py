"""``HLO_OPT``: one reader for ``zero``, ``partition``, ``auto`` and ``enable``."""

from __future__ import annotations

import hlo_opt.jax as ho
import jax
import pytest
from test_hook import compiled, n_reduce_scatters
from test_state import make, whole

OFF = ("off", "0", "NO", " False ")
ON = ("", "Yes")

MAKERS = {
    "zero": ho.zero,
    "partition": ho.partition,
    "auto": ho.auto,
    "enable": lambda _: ho.enable(),
}


@pytest.mark.parametrize("word", OFF)
def test_each_word_for_off_turns_all_of_it_off(word, monkeypatch):
    monkeypatch.setenv("HLO_OPT", word)
    mesh, step, init, batch = make()
    state = step(*whole(mesh, init()), *batch(0))
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))
    assert str(ho.report(step)) == f"step runs as it was: zero is off: HLO_OPT={word} in the environment"
    ho.enable("shard-weight-update{profit=always},dce", strict=True)
    try:
        assert n_reduce_scatters(compiled()) == 0
        assert str(ho.hooked()).startswith("nothing is enabled: HLO_OPT was off in the environment when enable was")
    finally:
        ho.disable()


@pytest.mark.parametrize("make_step", (ho.partition, ho.auto))
def test_other_steps_are_off_too(make_step, monkeypatch):
    monkeypatch.setenv("HLO_OPT", "0")
    step = make_step(jax.jit(lambda x: x + 1))
    assert float(step(1.0)) == 2.0
    assert "is off: HLO_OPT=0 in the environment" in str(ho.report(step))


def test_no_shardings_are_planned_where_auto_is_off(monkeypatch):
    step = ho.auto(jax.jit(lambda x: x @ x.T))
    monkeypatch.setenv("HLO_OPT", "off")
    with pytest.raises(ho.PartitionError, match="no shardings: HLO_OPT=off in the environment"):
        step.shardings(jax.ShapeDtypeStruct((8, 8), "float32"))


@pytest.mark.parametrize("word", ON)
def test_each_word_for_on_leaves_it_on(word, monkeypatch):
    monkeypatch.setenv("HLO_OPT", word)
    mesh, step, init, batch = make()
    step.plan(*whole(mesh, init()), *batch(0))
    assert step.last_plan.declined is None


@pytest.mark.parametrize("maker", MAKERS)
def test_a_word_that_is_no_switch_is_an_error(maker, monkeypatch):
    monkeypatch.setenv("HLO_OPT", "of")
    expected = r"HLO_OPT: expected on, 1, true, yes \(on\), or off, 0, false, no \(off\), found `of`"
    with pytest.raises(ValueError, match=expected):
        MAKERS[maker](jax.jit(lambda x: x))


def test_a_word_that_is_no_switch_is_an_error_at_a_call(monkeypatch):
    mesh, step, init, batch = make()
    monkeypatch.setenv("HLO_OPT", "perhaps")
    with pytest.raises(ValueError, match="found `perhaps`"):
        step(*whole(mesh, init()), *batch(0))
    with pytest.raises(ValueError, match="found `perhaps`"):
        ho.report(step)


def test_settings_of_jax_are_named():
    mesh, step, init, batch = make()
    with jax.debug_nans(True):
        step(*whole(mesh, init()), *batch(0))
        assert str(ho.report(step)) == "step runs as it was: zero is off: jax_debug_nans is set"
