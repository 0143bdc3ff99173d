"""The ways that ``zero`` is compared with compute what the step computes, and hold state in shards."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from rivals import by_gspmd, split, zero_by_hand
from test_zero import check_shards
from training import distance, train
from training_scripts import SCRIPTS, mesh_of

N_STEPS = 5


@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("name", ["flax_mlp", "scan_layers", "declared", "undeclared"])
def test_by_gspmd_a_script_trains_as_it_did(name, with_weights):
    mesh = mesh_of(8)
    before = SCRIPTS[name](mesh)
    arguments, statics = split(before)
    compiled = before.step.lower(*arguments, *statics).compile()
    step, described = by_gspmd(before, mesh, compiled, with_weights)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, described)
    after = dataclasses.replace(before, state=jax.tree.map(jax.numpy.copy, before.state))
    losses, state = train(before, before.step, N_STEPS)

    def placed(*arguments):
        return step(*jax.device_put(arguments[: len(shardings)], shardings))

    own_losses, own_state = train(after, placed, N_STEPS)
    assert distance(own_losses, losses) <= 2e-5
    cut = (lambda state: state) if with_weights else before.optimizer
    check_shards(cut(state), cut(own_state), 8)


@pytest.mark.parametrize("with_weights", [False, True])
def test_by_hand_the_script_trains_as_it_did(with_weights):
    mesh = mesh_of(8)
    before, after = SCRIPTS["shard_mapped"](mesh), zero_by_hand(mesh, with_weights=with_weights)
    losses, state = train(before, before.step, N_STEPS)
    own_losses, own_state = train(after, after.step, N_STEPS)
    assert distance(own_losses, losses) <= 2e-5
    for mine, theirs in zip(jax.tree.leaves(own_state), jax.tree.leaves(state)):
        assert distance(np.asarray(mine), np.asarray(theirs)) <= 2e-5
    check_shards(state if with_weights else state[1], own_state if with_weights else own_state[1], 8)
