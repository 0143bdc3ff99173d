"""What goes wrong inside ends in the original program and one warning, or in an error where that is asked for."""

from __future__ import annotations

import warnings

import hlo_opt.jax as ho
import jax
import numpy as np
import pytest
from hlo_opt import _native
from hlo_opt.jax import partitioned, plan, private, sharding
from test_state import make, whole


def raises(*_args, **_kwargs):
    raise RuntimeError("injected")


def garbage_module(run):
    def altered(*args):
        return {**run(*args), "proto": b"\xff\x00 no module"}

    return altered


FAULTS = {
    "the compiler raises": lambda patch: patch.setattr(_native, "run", raises),
    "the compiler refuses": lambda patch: patch.setattr(_native, "run", lambda *_: (1, b"", "error: injected")),
    "the compiler writes nothing": lambda patch: patch.setattr(_native, "run", lambda *_: (0, b"", "")),
    "its module is garbage": lambda patch: patch.setattr(sharding, "_run", garbage_module(sharding._run)),
    "XLA's dump is lacking": lambda patch: patch.setattr(private, "compile_until_partitioned", lambda *_: None),
    "XLA's dump is garbage": lambda patch: patch.setattr(partitioned, "first_message", lambda _: b"\xff\x00 no module"),
    "the probe fails": lambda patch: patch.setattr(private, "compile_until_partitioned", raises),
    "StableHLO has no words for it": lambda patch: patch.setattr(private, "stablehlo_of", raises),
    "StableHLO is garbage": lambda patch: patch.setattr(private, "stablehlo_of", lambda _: b"no StableHLO"),
    "the result has another signature": lambda patch: patch.setattr(plan, "_local", lambda aval, *_: aval),
    "the processes do not answer": lambda patch: patch.setattr(private, "differing_processes", raises),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_in_the_original(fault, monkeypatch):
    mesh, step, init, batch = make(strict=False)
    expected = step.unwrapped(*whole(mesh, init()), *batch(0))
    state = whole(mesh, init())
    FAULTS[fault](monkeypatch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = step(*state, *batch(0))
        jax.tree.map(np.testing.assert_array_equal, results, expected)
        step(*results[:2], *batch(1))
    (warning,) = [str(w.message) for w in said]
    assert "runs as it was" in warning
    assert "runs as it was" in str(ho.report(step))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_where_that_is_asked_for(fault, monkeypatch):
    mesh, step, init, batch = make(strict=True)
    state = whole(mesh, init())
    FAULTS[fault](monkeypatch)
    with pytest.raises(ho.ZeroError):
        step(*state, *batch(0))
    monkeypatch.undo()
    # Nothing was freed: the state still runs.
    step.unwrapped(*state, *batch(0))


def test_without_a_hook_the_probe_is_compiled_to_the_end(monkeypatch):
    monkeypatch.setattr(private, "_register_hook", lambda _: None)
    monkeypatch.setattr(private, "_on_module", lambda _: None)
    mesh, step, init, batch = make(strict=True)
    params, opt, _ = step(*whole(mesh, init()), *batch(0))
    assert not params["w"].sharding.is_fully_replicated


def test_what_is_lacking_in_another_version_is_named(monkeypatch):
    monkeypatch.setattr(private, "missing", lambda: ["jax._src.something"])
    with pytest.warns(UserWarning, match="lacks jax._src.something; tested with"):
        ho.zero(jax.jit(lambda w: w))
    with pytest.raises(ho.ZeroError, match="lacks"):
        ho.zero(jax.jit(lambda w: w), strict=True)


def test_everything_private_that_is_asked_for_is_there():
    assert private.missing() == []
