"""Arguments are called as the step's signature calls them."""

from __future__ import annotations

from functools import partial

import hlo_opt.jax as ho
import jax
import jax.numpy as jnp
import pytest
from hlo_opt.jax.names import argument_namer
from jax.tree_util import tree_leaves_with_path
from training_scripts import along, mesh_of, normal, whole


def names(step, args, kwargs=None, static=()):
    name = argument_namer(step, static)
    return [name(path) for path, _ in tree_leaves_with_path((args, kwargs or {}))]


def plain(params, x, *, scale=1.0):
    pass


def variadic(params, *xs, **more):
    pass


@pytest.mark.parametrize(
    ("step", "args", "kwargs", "static", "expected"),
    [
        (plain, ({"w": 1, "v": 2}, 3), {"scale": 4}, (), ["params['v']", "params['w']", "x", "scale"]),
        (plain, (), {"params": [1], "x": 2}, (), ["params[0]", "x"]),
        (variadic, (1, 2, {"a": 3}), {"z": 4}, (), ["params", "xs[0]", "xs[1]['a']", "z"]),
        (plain, (3,), {}, (0,), ["x"]),
        (lambda a, b, c, d: None, (1, 2), {}, (0, 2), ["b", "d"]),
        (lambda a, b, c: None, (1, 2), {}, (-1,), ["a", "b"]),
        (jax.jit(plain), (1, 2), {}, (), ["params", "x"]),
        (partial(plain, 1), (2,), {}, (), ["x"]),
        (min, (1, 2), {}, (), ["[0]", "[1]"]),
    ],
)
def test_leaves_have_the_names_of_parameters(step, args, kwargs, static, expected):
    assert names(step, args, kwargs, static) == expected


class Trainer:
    @partial(ho.zero, shard="parameters", strict=True)
    @partial(jax.jit, static_argnums=0)
    def step(self, weights, batch):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(batch["x"] @ w["up"] @ w["down"]) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def test_reports_name_arguments_and_not_their_places():
    mesh = mesh_of(8)
    weights = whole(mesh, {"up": normal(0, 96, 64), "down": normal(1, 64, 96)})
    (x,) = along(mesh, (normal(2, 48, 96),))
    trainer = Trainer()
    trainer.step(weights, batch={"x": x})
    text = str(ho.report(Trainer.step))
    assert "weights['up'] float32[96, 64] P('data',)" in text and "batch['x'] float32[48, 96]" in text
    assert "[0]" not in text and "self" not in text


def test_warnings_name_arguments():
    mesh = mesh_of(8)

    def step(weights, sample):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((sample["x"] @ w) ** 2))(weights)
        return weights - grad, loss

    args = whole(mesh, (normal(0, 96, 96), {"x": normal(1, 48, 96)}))
    with pytest.raises(ho.ZeroError, match=r"sample = jax.device_put\(sample, NamedSharding"):
        ho.zero(jax.jit(step), strict=True)(*args)


def test_steps_of_torchax_have_the_names_of_their_functions():
    def call_torch(torch_function, *args, **kwargs):
        pass

    call_torch.__module__ = "torchax.interop"
    step = jax.jit(partial(call_torch, plain))
    assert names(step, ({"w": 1}, 2)) == ["params['w']", "x"]
    call_torch.__module__ = "elsewhere"
    assert names(step, ({"w": 1}, 2)) == ["args[0]['w']", "args[1]"]
