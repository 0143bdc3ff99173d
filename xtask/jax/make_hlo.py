#!/usr/bin/env python3
"""Lower a training step with JAX to HLO text that hlo-opt takes: a GPT, an MLP, or an optimizer's update alone.

make_hlo.py --model gpt|mlp|update --out FILE [options]: see --help. With one device it is the step as JAX lowers it. With more
it is data-parallel (`jax.shard_map`), the module for each device as it stands right behind XLA's SPMD partitioner. The state
(weights, moments, step counter) is donated, so that it is updated in place."""
import argparse
import glob
import json
import os
import tempfile


def checked(a, parser):
    """Sizes that make a model."""
    if min(a.devices, a.layers, a.width, a.heads, a.vocabulary, a.sequence, a.batch, a.weights) < 1:
        parser.error("expected sizes of 1 or more")
    if a.model == "gpt" and a.width % a.heads:
        parser.error(f"--width: expected a multiple of --heads ({a.heads}), found {a.width}")
    return a


def arguments():
    parser = argparse.ArgumentParser(prog="cargo xtask make-hlo", description="Lower a training step with JAX to HLO text.")
    parser.add_argument("--model", choices=["gpt", "mlp", "update"], default="gpt")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    parser.add_argument("--devices", type=int, default=1, help="data-parallel (default %(default)s)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256, help="of the model (default %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="of attention (gpt)")
    parser.add_argument("--vocabulary", type=int, default=1024, help="tokens (gpt; default %(default)s)")
    parser.add_argument("--sequence", type=int, default=128, help="tokens of an example (gpt; default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="examples on each device (default %(default)s)")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="of activations; weights stay f32")
    parser.add_argument("--weights", type=int, default=1 << 28, help="elements (update; default %(default)s: 1 GiB of f32)")
    parser.add_argument("--out", required=True, help="the file to write")
    return checked(parser.parse_args(), parser)


def adam(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w - 1e-3 * step, m, v


def adamw(w, g, m, v, t):
    new, m, v = adam(w, g, m, v, t)
    return new - 1e-5 * w, m, v


def lamb(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.01 * w
    weight_norm, step_norm = jnp.linalg.norm(w.ravel()), jnp.linalg.norm(step.ravel())
    trust = jnp.where((weight_norm > 0) & (step_norm > 0), weight_norm / step_norm, 1.0)
    return w - 1e-3 * trust * step, m, v


def sgd(w, g, t):
    return (w - 1e-3 * g,)


# Each with how many moments of a weight it keeps.
OPTIMIZERS = {"adam": (adam, 2), "adamw": (adamw, 2), "lamb": (lamb, 2), "sgd": (sgd, 0)}


def gpt(a, dtype):
    """(weights, inputs, loss): pre-norm blocks, learned positions, tied embedding."""
    d, n_heads = a.width, a.heads
    block = {
        "norm1": [(d,), (d,)], "qkv": [(d, 3 * d), (3 * d,)], "out": [(d, d), (d,)],
        "norm2": [(d,), (d,)], "up": [(d, 4 * d), (4 * d,)], "down": [(4 * d, d), (d,)],
    }  # fmt: skip
    shapes = {
        "token": (a.vocabulary, d), "position": (a.sequence, d), "norm": [(d,), (d,)],
        "blocks": [dict(block) for _ in range(a.layers)],
    }  # fmt: skip
    is_shape = lambda x: isinstance(x, tuple)
    weights = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=is_shape)
    tokens = jax.ShapeDtypeStruct((a.batch, a.sequence), jnp.int32)

    def norm(x, scale_and_shift):
        scale, shift = scale_and_shift
        x32 = x.astype(jnp.float32)
        centred = x32 - x32.mean(-1, keepdims=True)
        return (centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift).astype(dtype)

    def dense(x, weight_and_bias):
        weight, bias = weight_and_bias
        return x @ weight.astype(dtype) + bias.astype(dtype)

    def attention(x, block):
        b, s, _ = x.shape
        q, k, v = (y.reshape(b, s, n_heads, d // n_heads) for y in jnp.split(dense(x, block["qkv"]), 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (d // n_heads) ** 0.5
        causal = jnp.tril(jnp.ones((s, s), bool))
        shares = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(dtype)
        return dense(jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, s, d), block["out"])

    def loss(w, tokens, targets):
        x = (w["token"][tokens] + w["position"]).astype(dtype)
        for block in w["blocks"]:
            x = x + attention(norm(x, block["norm1"]), block)
            x = x + dense(jax.nn.gelu(dense(norm(x, block["norm2"]), block["up"])), block["down"])
        logits = (norm(x, w["norm"]) @ w["token"].T.astype(dtype)).astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
        return -chosen.mean()

    return weights, (tokens, tokens), loss


def mlp(a, dtype):
    """(weights, inputs, loss)."""
    d = a.width
    weights = [jax.ShapeDtypeStruct((d, d), jnp.float32) for _ in range(a.layers)]
    examples = jax.ShapeDtypeStruct((a.batch, d), jnp.float32)

    def loss(weights, x, y):
        h = x.astype(dtype)
        for w in weights:
            h = jnp.tanh(h @ w.astype(dtype))
        return ((h.astype(jnp.float32) - y) ** 2).mean()

    return weights, (examples, examples), loss


def step_of(a):
    """(step, state, inputs): the step gives the new state and, where there is a model, the loss."""
    update, n_moments = OPTIMIZERS[a.optimizer]
    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[a.dtype]

    def updated(state, grads):
        weights, *moments, t = state
        t = t + 1
        leaves, tree = jax.tree.flatten(weights)
        new = [update(*row, t) for row in zip(leaves, *(jax.tree.leaves(x) for x in (grads, *moments)), strict=True)]
        return *(jax.tree.unflatten(tree, [n[i] for n in new]) for i in range(1 + n_moments)), t

    counter = jax.ShapeDtypeStruct((), jnp.float32)
    if a.model == "update":
        weights = jax.ShapeDtypeStruct((a.weights,), jnp.float32)
        return updated, (*[weights] * (1 + n_moments), counter), (weights,)
    weights, inputs, loss = {"gpt": gpt, "mlp": mlp}[a.model](a, dtype)

    def step(state, *inputs):
        value, grads = jax.value_and_grad(loss)(state[0], *inputs)
        if a.devices > 1:
            value, grads = lax.pmean((value, grads), "d")
        return updated(state, grads), value

    return step, (*[weights] * (1 + n_moments), counter), inputs


def lower(a, dumps):
    """The text of the module for each device."""
    step, state, inputs = step_of(a)
    if a.devices == 1:
        return jax.jit(step, donate_argnums=0).lower(state, *inputs).compiler_ir("hlo").as_hlo_text()
    mesh = jax.make_mesh((a.devices,), ("d",))
    whole, sharded = (jax.sharding.PartitionSpec(*axes) for axes in ((), ("d",)))
    specs = jax.tree.map(lambda _: whole, state)
    out_specs = specs if a.model == "update" else (specs, whole)
    inputs_spec = whole if a.model == "update" else sharded
    of_input = jax.tree.map(lambda _: inputs_spec, inputs)
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(specs, *of_input), out_specs=out_specs, check_vma=False)

    def placed(shape, spec):
        n = a.devices if spec == sharded else 1
        dims = (shape.shape[0] * n, *shape.shape[1:]) if shape.shape else ()
        return jax.ShapeDtypeStruct(dims, shape.dtype, sharding=jax.sharding.NamedSharding(mesh, spec))

    state = jax.tree.map(lambda x: placed(x, whole), state)
    inputs = jax.tree.map(lambda x: placed(x, inputs_spec), inputs)
    jax.jit(mapped, donate_argnums=0).lower(state, *inputs).compile()
    found = glob.glob(os.path.join(dumps, "*after_spmd-partitioning*.txt"))
    if not found:
        raise SystemExit("make_hlo.py: XLA dumped no module behind its partitioner")
    with open(max(found, key=os.path.getsize)) as f:
        return f.read()


def flags(a, dumps):
    """XLA's: so many devices, and the module behind the partitioner."""
    words = [
        f"--xla_force_host_platform_device_count={a.devices}", f"--xla_dump_to={dumps}", "--xla_dump_hlo_as_text",
        "--xla_dump_hlo_pass_re=spmd-partitioning", "--xla_dump_disable_metadata=true", "--xla_dump_max_hlo_modules=-1",
    ]  # fmt: skip
    return " ".join(words if a.devices > 1 else words[:1])


if __name__ == "__main__":
    a = arguments()
    with tempfile.TemporaryDirectory() as dumps:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = flags(a, dumps)
        import jax
        import jax.numpy as jnp
        from jax import lax

        text = lower(a, dumps)
    with open(a.out + ".part", "w") as f:
        f.write(text)
    os.replace(a.out + ".part", a.out)
    print(json.dumps({"file": a.out, "bytes": len(text), "instructions": text.count(" = ")}))
