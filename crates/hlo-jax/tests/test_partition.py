"""``partition`` on a Transformer with tensor and data parallelism: the same losses as with XLA's partitioner."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_opt import Module
from hlo_opt.jax import layout, private
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tensor_parallel import OPTIMIZER, RULES, WIDTH, WORDS, mesh_of, params_of, placed, step_of, words_of

N_STEPS = 20


def train(step, mesh: Mesh, is_placed: bool, nudge: float = 0.0):
    params = params_of()
    if nudge:
        rng = np.random.default_rng(7)
        params = jax.tree.map(lambda x: x * (1 + nudge * rng.choice([-1.0, 1.0], x.shape)).astype(x.dtype), params)
    moments = OPTIMIZER.init(params)
    if is_placed:
        params, moments = placed(params, mesh, 0), placed(moments, mesh, 1)
    losses = []
    for number in range(N_STEPS):
        words = words_of(number)
        words = placed(words, mesh, 2) if is_placed else words
        params, moments, loss = step(params, moments, words)
        losses.append(float(loss))
    return np.array(losses), params, moments


@pytest.fixture(scope="module")
def by_xla():
    mesh = mesh_of(2, 4)
    losses, params, _ = train(step_of(), mesh, True)
    nudged, _, _ = train(step_of(), mesh, True, nudge=6e-8)
    # The tolerance for scripts: ten times what a change of the last bits makes, and no more than 1e-3.
    limit = min(max(2e-5, 10 * np.max(np.abs(nudged - losses))), 1e-3)
    return mesh, losses, params, limit


@pytest.mark.parametrize("is_placed", [True, False], ids=["placed arguments", "rules"])
def test_a_transformer_trains_as_with_xlas_partitioner(by_xla, is_placed):
    mesh, losses, params, limit = by_xla
    step = ho.partition(step_of(), strict=True, **({} if is_placed else {"mesh": mesh, "rules": RULES}))
    own, own_params, own_moments = train(step, mesh, is_placed)
    assert abs(own[0] - losses[0]) <= 1e-6 * abs(losses[0])
    np.testing.assert_allclose(own, losses, atol=limit, rtol=0)
    for (path, mine), theirs in zip(jax.tree.leaves_with_path(own_params), jax.tree.leaves(params), strict=True):
        assert mine.shape == theirs.shape, path
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), atol=100 * limit, rtol=0, err_msg=str(path))
    # A weight and its moments are as the user cut them, whatever else was decided.
    up = own_params["layers"][0]["up"]
    assert up.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "model")), 2)
    assert own_moments[0].mu["layers"][0]["down"].addressable_shards[0].data.shape == (WIDTH, WIDTH)
    theirs, mine = ho.report(step).ways
    assert mine.step_s < theirs.step_s
    assert mine.peak_bytes <= 1.25 * theirs.peak_bytes
    assert mine.sent_bytes <= theirs.sent_bytes
    text = str(ho.report(step))
    assert "train_step on 8 devices, partitioned by hlo-opt" in text
    assert "params['layers'][0]['up'] float32[64, 256]" in text


def test_constraints_within_the_step_are_kept():
    mesh = mesh_of(4, 2)
    constrain = lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    theirs, _, _ = train(step_of(constrain), mesh, True)
    step = ho.partition(step_of(constrain), strict=True)
    own, _, _ = train(step, mesh, True)
    np.testing.assert_allclose(own, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rule", [r"^words$", r"^\[2\]$"])
def test_rules_find_arguments_by_name_and_by_place(rule):
    mesh, params = mesh_of(8, 1), params_of()
    step = ho.partition(step_of(), mesh=mesh, rules=[(rule, P("data")), ("", P())], most_bytes=2.0)
    lowered = step._annotated((params, OPTIMIZER.init(params), words_of(0)), {})
    assert lowered[0][2].sharding.spec == P("data") and lowered[0][0]["table"].sharding.spec == P()


@custom_partitioning
def activation(x):
    return jnp.tanh(x) * 2


def _partition_activation(mesh, shapes, result):
    shardings = tuple(shape.sharding for shape in shapes)
    return mesh, lambda x: jnp.tanh(x) * 2, jax.tree.leaves(result)[0].sharding, shardings


activation.def_partition(
    partition=_partition_activation,
    infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
    sharding_rule="i j -> i j",
)


def test_operations_with_a_partitioning_of_their_own_are_partitioned_as_functions():
    mesh = mesh_of(2, 4)
    x = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
    x = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
    step = ho.partition(jax.jit(lambda x: activation(x) @ jnp.ones((12, 4))), mesh=mesh, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = step(x)
    np.testing.assert_allclose(own, np.tanh(x) * 2 @ np.ones((12, 4)), rtol=1e-5, atol=1e-5)
    for module in (step.last_plan.partitioned.module, step.last_plan.sharded.module):
        assert b"CustomSPMDPartitioning" not in module
    assert b"CustomSPMDPartitioning" in private.global_module(step.unwrapped.trace(x).lower())


def test_operations_for_xlas_partitioner_alone_are_named(monkeypatch):
    mesh = mesh_of(8, 1)
    x = jax.device_put(np.ones((8, 12), np.float32), NamedSharding(mesh, P("data")))
    monkeypatch.setattr(private, "with_whole_operations", lambda traced: traced.lower())
    step = ho.partition(jax.jit(lambda x: activation(x) + 1), mesh=mesh, strict=True)
    with pytest.raises(ho.PartitionError, match="custom_partitioning is for XLA's partitioner alone"):
        step(x)


def test_where_xlas_partitioner_fails_ours_runs(monkeypatch):
    def fail(lowered, folder):
        raise RuntimeError("INTERNAL: [hlo verifier]:\n  Expected\n\nSuspected Python Code Location:\n x.py")

    mesh = mesh_of(8, 1)
    x = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh, P("data")))
    function = jax.jit(lambda x: jnp.cumsum(x) * 2)
    expected = np.asarray(function(x))
    monkeypatch.setattr(private, "compile_until_partitioned", fail)
    step = ho.partition(function, mesh=mesh, strict=True)
    np.testing.assert_allclose(step(x), expected, rtol=1e-6)
    report = ho.report(step)
    assert [way.name for way in report.ways] == ["hlo-opt"] and report.taken == 0
    said = "there is nothing to compare with: RuntimeError: INTERNAL: [hlo verifier]: Expected"
    assert said in str(report) and "Suspected" not in str(report)


def test_a_program_that_xlas_partitioner_cannot_make_is_ours():
    # jaxlib 0.10.2 fails on concatenations of pads by negative numbers; a later one may not.
    def rolled(x):
        parts = [jax.lax.pad(x, 0.0, [(-5, 0, 0)]), jax.lax.pad(x, 0.0, [(0, -3, 0)])]
        return jnp.concatenate(parts) * 2

    mesh = mesh_of(8, 1)
    x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("data")))
    step = ho.partition(jax.jit(rolled), mesh=mesh, strict=True, most_bytes=1e9)
    np.testing.assert_array_equal(step(x), 2 * np.roll(np.arange(8), 3))


NAMES = [("batch", r"^\[2\]", 0), ("hidden", r"\['up'\]$", 1), ("words", r"\['table'\]$", 0)]


def test_a_layout_of_named_dims_trains_alike(by_xla):
    mesh, losses, _, limit = by_xla
    step = ho.partition(
        step_of(), mesh=mesh, names=NAMES, layout={"batch": "data", "hidden": "model", "words": "model"}, strict=True
    )
    own, params, _ = train(step, mesh, False)
    np.testing.assert_allclose(own, losses, atol=limit, rtol=0)
    assert params["layers"][1]["up"].addressable_shards[0].data.shape == (WIDTH, WIDTH)
    assert params["table"].addressable_shards[0].data.shape == (WORDS // 4, WIDTH)
    assert params["layers"][0]["q"].addressable_shards[0].data.shape == (WIDTH, WIDTH), "not named: whole"


def test_strategies_of_operators_train_alike(by_xla, tmp_path):
    mesh, losses, _, limit = by_xla
    params = params_of()
    plan = ho.partition(step_of(), mesh=mesh, rules=RULES, strict=True).plan(
        params, OPTIMIZER.init(params), words_of(0)
    )
    (tmp_path / "step.pb").write_bytes(plan.partitioned.module)
    passes = "inline-calls,search-strategies{devices=8,write=true}"
    tool = Path(sys.executable).parent / "hlo-opt"
    found = tmp_path / "found"
    subprocess.run([tool, tmp_path / "step.pb", "--pass", passes, "-q", "-o", found], check=True)
    file = found / "strategies.toml"
    step = ho.partition(step_of(), mesh=mesh, strategies=file, strict=True)
    own, *_ = train(step, mesh, False)
    np.testing.assert_allclose(own, losses, atol=limit, rtol=0)


def test_more_bytes_may_be_faster(by_xla):
    mesh = by_xla[0]
    args = (placed(params_of(), mesh, 0), placed(OPTIMIZER.init(params_of()), mesh, 1), placed(words_of(0), mesh, 2))
    ways = [ho.partition(step_of(), most_bytes=n, strict=True).plan(*args).sharded.ways[1] for n in (1.0, 1.5)]
    assert ways[0].sent_bytes < ways[1].sent_bytes and ways[0].step_s > ways[1].step_s


def test_donated_state_is_taken_over(by_xla):
    mesh = by_xla[0]
    step = ho.partition(step_of(), strict=True)
    params = placed(params_of(), mesh, 0)
    moments = placed(OPTIMIZER.init(params), mesh, 1)
    new, *_ = step(params, moments, placed(words_of(0), mesh, 2))
    assert params["layers"][0]["up"].is_deleted()
    assert not new["layers"][0]["up"].is_deleted()


def test_the_program_is_ours(by_xla):
    mesh = by_xla[0]
    step = ho.partition(step_of(), mesh=mesh, rules=RULES, strict=True)
    params = params_of()
    plan = step.plan(params, OPTIMIZER.init(params), words_of(0))
    collectives = Module.parse(plan.sharded.module, num_partitions=8).collectives()
    assert collectives, "tensor parallelism sums partial products"
    assert all(len(group) in (2, 4, 8) for collective in collectives for group in collective.groups)


def test_what_cannot_be_taken_over_runs_as_it_was():
    step = ho.partition(step_of())
    params = params_of()
    with pytest.warns(UserWarning, match="train_step runs as it was: the step runs on one device"):
        *_, loss = step(params, OPTIMIZER.init(params), words_of(0))
    assert np.isfinite(float(loss))
    assert ho.report(step).declined.startswith("the step runs on one device")
    with pytest.raises(ho.PartitionError, match="the step runs on one device"):
        params = params_of()
        ho.partition(step_of(), strict=True)(params, OPTIMIZER.init(params), words_of(0))


def test_rules_that_match_no_argument_are_named():
    mesh = mesh_of(2, 4)
    params = params_of()
    arguments = (params, OPTIMIZER.init(params), words_of(0))
    found = r"rules: expected a pattern that matches an argument, found 'nowhere'; arguments are params"
    with pytest.warns(UserWarning, match=found):
        ho.partition(step_of(), mesh=mesh, rules=[*RULES, ("nowhere", P())]).plan(*arguments)
    with pytest.raises(ho.PartitionError, match=found):
        ho.partition(step_of(), mesh=mesh, rules=[("nowhere", P("data"))], strict=True).plan(*arguments)


def test_arguments_that_the_step_refuses_are_refused_in_its_own_words():
    step = ho.partition(step_of(), mesh=mesh_of(2, 4), rules=RULES)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'words'"):
        step.plan(params_of(), None)


def test_wrong_arguments_are_named():
    mesh = mesh_of(2, 4)
    with pytest.raises(TypeError, match="equinox.filter_jit or torchax.interop.jax_jit returned, found the function <lambda>"):
        ho.partition(lambda x: x)
    with pytest.raises(ValueError, match="expected a mesh whose axes they name"):
        ho.partition(step_of(), rules=RULES)
    with pytest.raises(ValueError, match="expected pairs of an expression and a PartitionSpec"):
        ho.partition(step_of(), mesh=mesh, rules=["q"])
    with pytest.raises(ValueError, match="expected a regular expression, found '\\('"):
        ho.partition(step_of(), mesh=mesh, rules=[("(", P())])
    with pytest.raises(ValueError, match="rows"):
        ho.partition(step_of(), mesh=mesh, rules=[("q", P("rows"))])
    with pytest.raises(ValueError, match="expected an axis of the mesh .* for 'batch', found 'rows'"):
        ho.partition(step_of(), mesh=mesh, names=NAMES, layout={"batch": "rows"})
    with pytest.raises(ValueError, match="layout: expected 'depth' among the names"):
        ho.partition(step_of(), mesh=mesh, names=NAMES, layout={"depth": "data"})
    with pytest.raises(ValueError, match="expected one of rules, layout and strategies"):
        ho.partition(step_of(), mesh=mesh, rules=RULES, names=NAMES, layout={"batch": "data"})
    with pytest.raises(ValueError, match="most_memory: expected .* at least 1"):
        ho.partition(step_of(), most_memory=0.5)
    with pytest.raises(ValueError, match="most_bytes: expected .* a positive number"):
        ho.partition(step_of(), most_bytes=0)
    with pytest.raises(ValueError, match="deadline_s: expected a positive number of seconds"):
        ho.partition(step_of(), deadline_s=0)
    too_long = ho.partition(step_of(), mesh=mesh, rules=[("scale", P(None, "model"))], strict=True)
    params = params_of()
    with pytest.raises(ho.PartitionError, match="has more dims than float32\\[64\\]"):
        too_long(params, OPTIMIZER.init(params), words_of(0))


@pytest.mark.parametrize(
    ("text", "rank", "tiles"),
    [
        ("{replicated}", 1, [[0]] * 4),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 2, [[0, 0], [0, 0], [1, 0], [1, 0]]),
        ("{devices=[2,2]<=[2,2]T(1,0)}", 2, [[0, 0], [1, 0], [0, 1], [1, 1]]),
        ("{devices=[4]0,2,1,3}", 1, [[0], [2], [1], [3]]),
    ],
)
def test_words_of_hlo_are_tiles(text, rank, tiles):
    assert layout.tiles_of_text(text, rank, 4).tile_of_device.tolist() == tiles
