"""``enable`` on CPU devices, and what it refuses. What it does to compilers that call a hook is in ``gpu_hook.py``."""

from __future__ import annotations

import contextlib
import re
import threading
from functools import partial

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_opt import Module, _native
from hlo_opt.jax import hook, private
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training import check_trains_alike, train
from training_scripts import SCRIPTS, along, mesh_of, normal, whole

#: What changes each step, whatever it is predicted to be worth.
SHARDED = "shard-weight-update{profit=always},dce"
#: What cannot be handed back: the step takes and returns shards.
FAILING = "shard-weight-update{state=auto},dce"

KEEPS_ALIASES = tuple(map(int, re.findall(r"\d+", jax.lib.__version__)[:2])) >= hook.KEEPS_ALIASES


@contextlib.contextmanager
def enabled(*args, **options):
    ho.enable(*args, **options)
    try:
        yield
    finally:
        ho.disable()


def levels() -> list[str]:
    """What kinds of lines were said, of the programs of training steps."""
    return [level for level, line in ho.hooked().lines if "step" in line or "update" in line or "mapped" in line]


@pytest.mark.parametrize("n_devices", [8, *(pytest.param(n, marks=pytest.mark.more) for n in (3, 2))])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("plain_pytree", "loop_in_jit", "shard_mapped") else pytest.mark.more)
        for name in SCRIPTS
    ],
)
def test_a_script_trains_as_it_did(name, n_devices):
    said = []

    def compiled_through_the_hook(step):
        ho.enable(SHARDED, strict=True)
        return step

    try:
        check_trains_alike(lambda: SCRIPTS[name](mesh_of(n_devices)), compiled_through_the_hook, name)
        said = ho.hooked().lines
    finally:
        ho.disable()
    donates = not KEEPS_ALIASES and name not in ("plain_pytree", "undeclared")
    if donates:
        assert any("jaxlib 0.11 or newer" in line for level, line in said if level == "left"), said
    else:
        assert any(level == "change" for level, _ in said), said


def make_step(donated: tuple = (), **options):
    @partial(jax.jit, donate_argnums=donated, **options)
    def step(params, moments, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2))(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - 1e-2 * m, params, moments), moments, loss

    return step


def arguments(mesh):
    params = {"w": normal(0, 96, 96) / 10, "v": normal(1, 96, 8) / 10}
    moments = jax.tree.map(np.zeros_like, params)
    return (*whole(mesh, (params, moments)), *along(mesh, (normal(2, 16, 96), normal(3, 16, 8))))


def compiled(donated: tuple = (), **options):
    return make_step(donated, **options).lower(*arguments(mesh_of(8))).compile()


def n_reduce_scatters(program) -> int:
    return program.as_text().count(" reduce-scatter(")


def test_the_program_that_runs_is_the_changed_one():
    before = compiled()
    with enabled(SHARDED, strict=True):
        after = compiled()
        assert levels() == ["change"]
    assert n_reduce_scatters(before) == 0 < n_reduce_scatters(after)
    memory = [(m.argument_size_in_bytes, m.output_size_in_bytes) for m in map(memory_of, (before, after))]
    assert memory[0] == memory[1]
    assert before.output_shardings == after.output_shardings
    assert re.match(r"HloModule jit_step[,. ]", after.as_text())
    args = arguments(mesh_of(8))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), after(*args), before(*args))
    # Disabled, it is as it was.
    assert n_reduce_scatters(compiled()) == 0


def memory_of(program):
    return program.memory_analysis()


def test_what_is_donated_keeps_its_place():
    before = compiled(donated=(0, 1))
    with enabled(SHARDED, strict=True):
        after = compiled(donated=(0, 1))
        (line,) = [line for _, line in ho.hooked().lines]
    assert memory_of(after).alias_size_in_bytes == memory_of(before).alias_size_in_bytes > 0
    assert (n_reduce_scatters(after) > 0) == KEEPS_ALIASES
    if not KEEPS_ALIASES:
        assert "expected jaxlib 0.11 or newer (hlo_opt.jax.zero works with this one)" in line


def test_results_that_a_script_cuts_stay_cut():
    mesh = mesh_of(8)
    rep, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    options = {"out_shardings": ({"w": cut, "v": rep}, {"w": cut, "v": rep}, rep)}
    before = make_step(**options)(*arguments(mesh))
    with enabled(SHARDED, strict=True):
        after = make_step(**options)(*arguments(mesh))
        assert ho.hooked().lines
    for mine, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        assert mine.sharding == theirs.sharding
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize("is_declared", [False, True])
def test_layouts_stay(is_declared):
    mesh = mesh_of(8)
    turned = Format(Layout((1, 0)), NamedSharding(mesh, P()))
    w = jax.device_put(normal(0, 64, 32), turned)
    (x,) = along(mesh, (normal(1, 64, 64),))
    options = {"in_shardings": (turned, x.sharding), "out_shardings": turned} if is_declared else {}

    def make():
        def step(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - 1) ** 2))(w)

        return jax.jit(step, **options)

    before = make()(w, x)
    with enabled(SHARDED, strict=True):
        after = make()(w, x)
        assert levels() == ["change"]
    assert after.format == before.format
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_a_line_counts_collectives_as_xla_combines_them():
    with enabled("shard-weight-update{profit=always},combine-collectives{mode=variadic},dce", strict=True):
        compiled()
        ((level, line),) = [entry for entry in ho.hooked().lines if entry[0] == "change"]
    assert "combine-collectives combined" in line
    # XLA makes one of the three sums of the program as it came, and combines what the passes left apart.
    assert "; collectives 1 -> 3, sending " in line


def test_threads_compile_one_program_at_once():
    failed = []

    def compile_it(step, args):
        try:
            step.lower(*args).compile()
        except Exception as error:
            failed.append(error)

    args = arguments(mesh_of(8))
    with enabled(SHARDED, strict=True):
        for _ in range(3):
            step = make_step()
            threads = [threading.Thread(target=compile_it, args=(step, args)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert "change" in levels()
    assert not failed


def test_flags_about_dumps_are_in_nobodys_way(tmp_path):
    flags = {
        "xla_dump_to": str(tmp_path),
        "xla_dump_hlo_module_re": "another",
        "xla_dump_max_hlo_modules": 1,
        "xla_dump_hlo_as_proto": True,
        "xla_dump_compress_protos": True,
    }
    with enabled(SHARDED, strict=True):
        assert n_reduce_scatters(compiled(compiler_options=flags)) > 0


def test_an_interrupt_inside_of_the_hook_is_one(monkeypatch):
    def interrupt(self, code):
        raise RuntimeError("INTERNAL: Traceback (most recent call last): KeyboardInterrupt")

    monkeypatch.setattr(private.Compile, "finish", interrupt)
    with enabled(SHARDED), pytest.raises(KeyboardInterrupt):
        compiled()


def test_only_what_is_named_is_touched():
    with enabled(SHARDED, only="other_step"):
        assert n_reduce_scatters(compiled()) == 0
        assert "not among those" in str(ho.hooked().lines)
    with enabled(SHARDED, only=["step"]):
        assert n_reduce_scatters(compiled()) > 0


@pytest.mark.parametrize("options", [{"pipeline": FAILING}, {"pipeline": SHARDED, "deadline_s": 1e-6}])
def test_a_failure_leaves_the_program_as_it_was(options, capfd):
    with enabled(**options):
        assert n_reduce_scatters(compiled()) == 0
        assert levels() == ["warning"]
    assert "hlo_opt.jax.enable: warning: jit_step: compiled as it came" in capfd.readouterr().err
    with enabled(**options, strict=True), pytest.raises(RuntimeError, match="jit_step: "):
        compiled()


def test_what_xla_does_not_compile_is_left_as_it_was(monkeypatch):
    def fail(self, code):
        raise RuntimeError("a fault of this test")

    monkeypatch.setattr(private.Compile, "finish", fail)
    with enabled(SHARDED):
        assert n_reduce_scatters(compiled()) == 0
        ((level, line),) = ho.hooked().lines
    assert level == "warning" and "a fault of this test" in line
    with enabled(SHARDED, strict=True), pytest.raises(RuntimeError, match="a fault of this test"):
        compiled()


def test_programs_of_one_device_and_pmap_stay_as_they_are():
    with enabled(SHARDED, strict=True):
        assert float(jax.jit(lambda x: x.sum())(jnp.ones(3))) == 3.0
        assert not ho.hooked().lines
        mapped = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
        assert np.all(np.asarray(mapped(np.ones((8, 3)))) == 8.0)
        assert [level for level, _ in ho.hooked().lines] == ["left"]


def test_zero_works_beside_it():
    script = SCRIPTS["plain_pytree"](mesh_of(8))
    losses, _ = train(script, script.step, n_steps=3)
    with enabled(strict=True):
        script = SCRIPTS["plain_pytree"](mesh_of(8))
        own_losses, _ = train(script, ho.zero(script.step, strict=True), n_steps=3)
    np.testing.assert_allclose(own_losses, losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline": "data-paralel"}, "did you mean 'data-parallel'"),
        ({"pipeline": "cse,no-such-pass"}, "no-such-pass"),
        ({"pipeline": "data-parallel{no-such-option=1}"}, "no-such-option"),
        ({"machine": "h1000"}, "did you mean 'h100'"),
    ],
)
def test_what_is_not_known_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        ho.enable(**options)


def test_off_means_off(monkeypatch):
    monkeypatch.setenv("HLO_OPT", "off")
    ho.enable(SHARDED)
    assert n_reduce_scatters(compiled()) == 0


def test_off_takes_back_what_was_enabled(monkeypatch):
    with enabled(SHARDED, strict=True):
        assert n_reduce_scatters(compiled()) > 0
        monkeypatch.setenv("HLO_OPT", "off")
        ho.enable(SHARDED)
        assert n_reduce_scatters(compiled()) == 0
        assert not ho.hooked().lines and private.cache_salt() == ""


def test_what_is_no_table_of_a_plugin_is_refused(monkeypatch):
    with pytest.raises(TypeError):
        _native.hook([("cuda", object())], "data-parallel", [], None, 60.0, (False, True, False))


def test_disabling_without_enabling_does_nothing():
    salt = private.cache_salt()
    ho.disable()
    assert private.cache_salt() == salt == ""
    assert str(ho.hooked()).startswith("nothing is enabled\n")
