"""Two layers of a Transformer that are cut within (tensor parallelism), as one jitted step on eight devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

HEADS = 32


def lower_step(mesh: Mesh, rows: int, length: int, width: int, hidden: int) -> jax.stages.Lowered:
    """The step with its gradients, lowered for arguments that are only described; ``mesh`` has one axis, ``data``."""
    axis, dtype = mesh.axis_names[0], jnp.bfloat16

    def cut(x: jax.Array, *dims: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*dims)))

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(dtype) * scale

    def layer(x: jax.Array, w: dict) -> jax.Array:
        h = norm(x, w["scale"])
        q, k, v = (cut(jnp.einsum("bsd,dhk->bshk", h, w[name]), None, None, axis, None) for name in "qkv")
        scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32) * (width // HEADS) ** -0.5
        mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores).astype(dtype), v)
        x = x + cut(jnp.einsum("bshk,hkd->bsd", mixed, w["out"]), None, None, None)
        h = norm(x, w["scale"])
        up, gate = (cut(jnp.einsum("bsd,df->bsf", h, w[name]), None, None, axis) for name in ("up", "gate"))
        return x + cut(jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"]), None, None, None)

    def loss(layers: list[dict], x: jax.Array) -> jax.Array:
        for w in layers:
            x = layer(x, w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(layers: list[dict], x: jax.Array):
        value, gradients = jax.value_and_grad(loss)(layers, x)
        return jax.tree.map(lambda w, g: (w - 1e-3 * g).astype(w.dtype), layers, gradients), value

    def shape(dims: tuple[int, ...], *cuts: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, P(*cuts)))

    heads = (width, HEADS, width // HEADS)
    weights = {
        **{name: shape(heads, None, axis, None) for name in "qkv"},
        "out": shape((HEADS, width // HEADS, width), axis, None, None),
        **{name: shape((width, hidden), None, axis) for name in ("up", "gate")},
        "down": shape((hidden, width), axis, None),
        "scale": shape((width,)),
    }
    return jax.jit(step, donate_argnums=0).lower([weights, weights], shape((rows, length, width)))
