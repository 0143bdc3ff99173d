"""``enable`` where there is no compiler that takes a hook. What it does to one is in ``gpu_hook.py``."""

from __future__ import annotations

import hlo_opt.jax as ho
import jax
import pytest
from hlo_opt import _native
from hlo_opt.jax import private


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline": "data-paralel"}, "did you mean `data-parallel`|expected one of|no pass"),
        ({"pipeline": "cse,no-such-pass"}, "no-such-pass"),
        ({"pipeline": "data-parallel{no-such-option=1}"}, "no-such-option"),
        ({"machine": "h1000"}, "did you mean `h100`"),
    ],
)
def test_what_is_not_known_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        ho.enable(**options)


def test_off_means_off(monkeypatch):
    monkeypatch.setenv("HLO_OPT", "off")
    monkeypatch.setattr(private, "pjrt_plugins", lambda: pytest.fail("nothing is looked for"))
    ho.enable()


def test_without_a_plugin_it_says_what_works(monkeypatch):
    monkeypatch.setattr(private, "pjrt_plugins", dict)
    monkeypatch.setattr(jax.lib, "__version__", "0.12.0")
    with pytest.raises(ho.HookError, match="found none.*hlo_opt.jax.zero works there"):
        ho.enable()


def test_a_version_that_loses_aliases_is_refused(monkeypatch):
    monkeypatch.setattr(jax.lib, "__version__", "0.10.2")
    with pytest.raises(ho.HookError, match="expected jaxlib 0.11 or newer, found 0.10.2"):
        ho.enable()


def test_what_is_no_table_of_a_plugin_is_refused():
    with pytest.raises(TypeError):
        _native.hook(object(), "data-parallel", [], None, False, 60.0)


def test_disabling_without_enabling_does_nothing():
    salt = private.cache_salt()
    ho.disable()
    assert private.cache_salt() == salt == ""
    assert str(ho.hooked()) == "0 programs changed, 0 left, 0 failures"
