#!/usr/bin/env python3
"""Lower a training step with JAX to HLO text that hlo-opt takes: a GPT, a Llama, an MLP, a convolutional net, neural collaborative
filtering, or an optimizer's update alone.

make_hlo.py --model gpt|llama|mlp|cnn|ncf|update --out FILE [options]: see --help. With one device it is the step as JAX lowers it. With more
it is data-parallel (`jax.shard_map`), the module for each device as it stands right behind XLA's SPMD partitioner. A Llama is
partitioned by XLA over a mesh (data, model), `--tensor-parallel` devices in each row; `--inference` is its forward pass alone,
`--decode N` one more token of a text with caches of N tokens.
`--global` stops before the partitioner: a GPT or a Llama on such a mesh, as one program with the annotations of its weights and
inputs, in Shardy's form or with `--gspmd` in GSPMD's. The state (weights, moments, step counter) is donated, so that it is updated
in place."""
import argparse
import glob
import json
import os
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax

from optimizers import OPTIMIZERS


def checked(a, parser):
    """Sizes that make a model."""
    sizes = (a.devices, a.layers, a.width, a.heads, a.vocabulary, a.sequence, a.batch, a.weights, a.tensor_parallel, a.kv_heads)
    if min(sizes) < 1:
        parser.error("expected sizes of 1 or more")
    if a.model == "gpt" and a.width % a.heads:
        parser.error(f"--width: expected a multiple of --heads ({a.heads}), found {a.width}")
    if a.devices % a.tensor_parallel:
        parser.error(f"--devices: expected a multiple of --tensor-parallel ({a.tensor_parallel}), found {a.devices}")
    if a.model != "llama" and (a.experts or a.inference or a.scan or a.decode):
        parser.error(f"--experts, --inference, --scan, --decode: expected --model llama, found {a.model}")
    if a.decode and (a.experts or a.inference or a.scan or a.devices > 1):
        parser.error("--decode: expected one device, and none of --experts, --inference, --scan")
    is_global_gpt = a.model == "gpt" and a.whole
    if a.model != "llama" and a.tensor_parallel > 1 and not is_global_gpt:
        parser.error(f"--tensor-parallel: expected --model llama, or gpt with --global, found {a.model}")
    if a.whole and (a.model not in ("gpt", "llama") or a.devices == 1):
        parser.error("--global: expected --model gpt or llama, and several devices")
    if a.gspmd and not a.whole:
        parser.error("--gspmd: expected --global beside it")
    return a


def arguments():
    parser = argparse.ArgumentParser(prog="cargo xtask make-hlo", description="Lower a training step with JAX to HLO text.")
    parser.add_argument("--model", choices=["gpt", "llama", "mlp", "cnn", "ncf", "update"], default="gpt")
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
    parser.add_argument("--tensor-parallel", type=int, default=1, help="devices that share one copy of the weights")
    parser.add_argument("--kv-heads", type=int, default=2, help="heads of keys and values (llama; default %(default)s)")
    parser.add_argument("--experts", type=int, default=0, help="a mixture of so many in each block, two for a token (llama)")
    parser.add_argument("--scan", action="store_true", help="blocks in one scan, rematerialized (llama)")
    parser.add_argument("--inference", action="store_true", help="logits of a batch, no update (llama)")
    parser.add_argument("--decode", type=int, default=0, help="one more token, with caches of so many (llama)")
    parser.add_argument("--apart", action="store_true", help="queries, keys and values by three products (gpt)")
    parser.add_argument("--global", action="store_true", dest="whole", help="before the partitioner (gpt, llama)")
    parser.add_argument("--gspmd", action="store_true", help="annotations in GSPMD's form (with --global)")
    parser.add_argument("--out", required=True, help="the file to write")
    return checked(parser.parse_args(), parser)


def gpt_cut(a):
    """The cuts of a GPT's weights over the mesh as Megatron makes them: a block's first products by columns, its second by rows."""
    P = jax.sharding.PartitionSpec
    wide, tall, whole = [P(None, "model"), P("model")], [P("model", None), P()], [P(), P()]
    block = {"norm1": whole, "q": wide, "k": wide, "v": wide, "out": tall, "norm2": whole, "up": wide, "down": tall}
    return {"token": P("model", None), "position": P(), "norm": whole, "blocks": [dict(block) for _ in range(a.layers)]}


def gpt(a, dtype, between=lambda x: x):
    """(weights, inputs, loss): pre-norm blocks, learned positions, tied embedding; `between` annotates what goes from block to block."""
    d, n_heads = a.width, a.heads
    # A cut product of all three would be cut across their borders.
    products = {name: [(d, d), (d,)] for name in "qkv"} if a.apart or a.tensor_parallel > 1 else {"qkv": [(d, 3 * d), (3 * d,)]}
    block = {
        "norm1": [(d,), (d,)], **products, "out": [(d, d), (d,)],
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
        parts = [dense(x, block[name]) for name in products]
        parts = parts if len(parts) == 3 else jnp.split(parts[0], 3, axis=-1)
        q, k, v = (y.reshape(b, s, n_heads, d // n_heads) for y in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (d // n_heads) ** 0.5
        causal = jnp.tril(jnp.ones((s, s), bool))
        shares = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(dtype)
        return dense(jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, s, d), block["out"])

    def loss(w, tokens, targets):
        x = (w["token"][tokens] + w["position"]).astype(dtype)
        for block in w["blocks"]:
            x = x + attention(norm(x, block["norm1"]), block)
            x = between(x + dense(jax.nn.gelu(dense(norm(x, block["norm2"]), block["up"])), block["down"]))
        logits = (norm(x, w["norm"]) @ w["token"].T.astype(dtype)).astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
        return -chosen.mean()

    return weights, (tokens, tokens), loss


def llama(a, dtype):
    """(weights, their cuts over the mesh, inputs, logits, loss): RMSNorm, rotary positions, grouped attention, SwiGLU."""
    d, n_heads, n_kv, ff = a.width, a.heads, a.kv_heads, 4 * a.width
    head = d // n_heads
    P = jax.sharding.PartitionSpec
    wide, tall = P(None, "model"), P("model", None)
    block = {
        "norm1": ((d,), P()), "q": ((d, d), wide), "k": ((d, n_kv * head), wide), "v": ((d, n_kv * head), wide),
        "out": ((d, d), tall), "norm2": ((d,), P()),
    }  # fmt: skip
    if a.experts:
        by_expert = P("model", None, None)
        block |= {
            "router": ((d, a.experts), P()), "gate": ((a.experts, d, ff), by_expert),
            "up": ((a.experts, d, ff), by_expert), "down": ((a.experts, ff, d), by_expert),
        }  # fmt: skip
    else:
        block |= {"gate": ((d, ff), wide), "up": ((d, ff), wide), "down": ((ff, d), tall)}
    if a.scan:
        blocks = {name: ((a.layers, *dims), P(None, *cut)) for name, (dims, cut) in block.items()}
    else:
        blocks = [dict(block) for _ in range(a.layers)]
    both = {"token": ((a.vocabulary, d), tall), "norm": ((d,), P()), "head": ((d, a.vocabulary), wide), "blocks": blocks}
    is_leaf = lambda x: isinstance(x, tuple)
    weights = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x[0], jnp.float32), both, is_leaf=is_leaf)
    cuts = jax.tree.map(lambda x: x[1], both, is_leaf=is_leaf)
    tokens = jax.ShapeDtypeStruct((a.batch * (a.devices // a.tensor_parallel), a.sequence), jnp.int32)

    def norm(x, scale):
        x32 = x.astype(jnp.float32)
        return (x32 * lax.rsqrt((x32**2).mean(-1, keepdims=True) + 1e-5) * scale).astype(dtype)

    def rotated(x):
        angles = jnp.arange(a.sequence)[:, None] * 1e4 ** (-jnp.arange(head // 2) * 2 / head)
        even, odd = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        return jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], -1).astype(dtype)

    def attention(x, w):
        b, s, _ = x.shape
        q = rotated((x @ w["q"].astype(dtype)).reshape(b, s, n_heads, head)).reshape(b, s, n_kv, n_heads // n_kv, head)
        k = rotated((x @ w["k"].astype(dtype)).reshape(b, s, n_kv, head))
        v = (x @ w["v"].astype(dtype)).reshape(b, s, n_kv, head)
        scores = jnp.einsum("bqghd,bkgd->bghqk", q, k).astype(jnp.float32) / head**0.5
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e30)
        out = jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(scores, axis=-1).astype(dtype), v)
        return out.reshape(b, s, d) @ w["out"].astype(dtype)

    def dense(x, w):
        return (jax.nn.silu(x @ w["gate"].astype(dtype)) * (x @ w["up"].astype(dtype))) @ w["down"].astype(dtype)

    def mixture(x, w):
        shares, chosen = lax.top_k(jax.nn.softmax(x.astype(jnp.float32) @ w["router"]), 2)
        share = (jax.nn.one_hot(chosen, a.experts) * shares[..., None]).sum(-2).astype(dtype)
        hidden = jax.nn.silu(jnp.einsum("bsd,edf->besf", x, w["gate"].astype(dtype)))
        hidden = hidden * jnp.einsum("bsd,edf->besf", x, w["up"].astype(dtype))
        return jnp.einsum("besf,efd,bse->bsd", hidden, w["down"].astype(dtype), share)

    def layer(x, w):
        x = x + attention(norm(x, w["norm1"]), w)
        return x + (mixture if a.experts else dense)(norm(x, w["norm2"]), w)

    def logits(w, tokens):
        x = w["token"][tokens].astype(dtype)
        if a.scan:
            x, _ = lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, w["blocks"])
        else:
            for block in w["blocks"]:
                x = layer(x, block)
        return (norm(x, w["norm"]) @ w["head"].astype(dtype)).astype(jnp.float32)

    def loss(w, tokens, targets):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(w, tokens)), targets[..., None], axis=-1)
        return -chosen.mean()

    return weights, cuts, (tokens, tokens), logits, loss


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


def cnn(a, dtype):
    """(weights, inputs, loss): 3 x 3 convolutions of images of 32 x 32, twice the features where there are half the positions."""
    features = [3] + [a.width // 4 << (i // 2) for i in range(a.layers)]
    f32 = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
    blocks = [(f32(3, 3, n, m), f32(m)) for n, m in zip(features, features[1:])]
    weights = {"blocks": blocks, "head": (f32(features[-1], 10), f32(10))}

    def loss(w, images, labels):
        x = images.astype(dtype)
        for i, (kernel, bias) in enumerate(w["blocks"]):
            stride = 2 if i and features[i] < features[i + 1] else 1
            dims = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, kernel.astype(dtype), (stride, stride), "SAME", dimension_numbers=dims)
            x = jax.nn.relu(x + bias.astype(dtype))
        kernel, bias = w["head"]
        scores = x.astype(jnp.float32).mean((1, 2)) @ kernel + bias
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=-1).mean()

    return weights, (f32(a.batch, 32, 32, 3), jax.ShapeDtypeStruct((a.batch,), jnp.int32)), loss


def ncf(a, dtype):
    """(weights, inputs, loss): He et al. 2017, Neural Collaborative Filtering, on as many users and items as MovieLens 1M has."""
    d, n_users, n_items = a.width, 6040, 3706
    f32 = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
    wide = [2 * d] + [2 * d >> i for i in range(1, a.layers + 1)]
    tables = {name: f32(n, d) for name, n in (("user", n_users), ("item", n_items), ("user2", n_users), ("item2", n_items))}
    layers = [(f32(n, m), f32(m)) for n, m in zip(wide, wide[1:])]
    weights = tables | {"layers": layers, "head": f32(d + wide[-1], 1)}

    def loss(w, users, items, labels):
        product = w["user"][users] * w["item"][items]
        x = jnp.concatenate([w["user2"][users], w["item2"][items]], -1).astype(dtype)
        for kernel, bias in w["layers"]:
            x = jax.nn.relu(x @ kernel.astype(dtype) + bias.astype(dtype))
        score = (jnp.concatenate([product, x.astype(jnp.float32)], -1) @ w["head"])[:, 0]
        return (jnp.logaddexp(0, score) - labels * score).mean()

    ids = jax.ShapeDtypeStruct((a.batch,), jnp.int32)
    return weights, (ids, ids, f32(a.batch)), loss


def decode(a, dtype):
    """(step, state, inputs): the next token's scores for a batch of texts; the state is weights, caches of keys and values, and where
    the token stands."""
    weights, *_ = llama(a, dtype)
    n_heads, n_kv, head = a.heads, a.kv_heads, a.width // a.heads
    cache = jax.ShapeDtypeStruct((a.batch, a.decode, n_kv, head), dtype)
    caches = [(cache, cache) for _ in range(a.layers)]

    def norm(x, scale):
        x32 = x.astype(jnp.float32)
        return (x32 * lax.rsqrt((x32**2).mean(-1, keepdims=True) + 1e-5) * scale).astype(dtype)

    def rotated(x, position):
        angles = position * 1e4 ** (-jnp.arange(head // 2) * 2 / head)
        even, odd = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], -1).astype(dtype)

    def attention(x, w, caches, position):
        b = x.shape[0]
        product = lambda name, n: (x @ w[name].astype(dtype)).reshape(b, n, head)
        q = rotated(product("q", n_heads), position).reshape(b, n_kv, n_heads // n_kv, head)
        new = rotated(product("k", n_kv), position), product("v", n_kv)
        keys, values = (lax.dynamic_update_slice(c, n[:, None], (0, position, 0, 0)) for c, n in zip(caches, new))
        scores = jnp.einsum("bghd,bkgd->bghk", q, keys).astype(jnp.float32) / head**0.5
        scores = jnp.where(jnp.arange(a.decode) <= position, scores, -1e30)
        out = jnp.einsum("bghk,bkgd->bghd", jax.nn.softmax(scores, axis=-1).astype(dtype), values)
        return out.reshape(b, -1) @ w["out"].astype(dtype), (keys, values)

    def step(state, tokens):
        w, caches, position = state
        x = w["token"][tokens].astype(dtype)
        new = []
        for block, cache in zip(w["blocks"], caches):
            attended, cache = attention(norm(x, block["norm1"]), block, cache, position)
            x = x + attended
            h = norm(x, block["norm2"])
            gate, up, down = (block[name].astype(dtype) for name in ("gate", "up", "down"))
            x = x + (jax.nn.silu(h @ gate) * (h @ up)) @ down
            new.append(cache)
        scores = (norm(x, w["norm"]) @ w["head"].astype(dtype)).astype(jnp.float32)
        return (w, new, position + 1), scores

    state = (weights, caches, jax.ShapeDtypeStruct((), jnp.int32))
    return step, state, (jax.ShapeDtypeStruct((a.batch,), jnp.int32),)


def dtype_of(a):
    return {"f32": jnp.float32, "bf16": jnp.bfloat16}[a.dtype]


def update_of(a):
    """(updated, n_moments): a new state from a state and the gradients of its weights."""
    update, n_moments = OPTIMIZERS[a.optimizer]

    def updated(state, grads):
        weights, *moments, t = state
        t = t + 1
        leaves, tree = jax.tree.flatten(weights)
        new = [update(*row, t) for row in zip(leaves, *(jax.tree.leaves(x) for x in (grads, *moments)), strict=True)]
        return *(jax.tree.unflatten(tree, [n[i] for n in new]) for i in range(1 + n_moments)), t

    return updated, n_moments


def step_of(a):
    """(step, state, inputs): the step gives the new state and, where there is a model, the loss."""
    updated, n_moments = update_of(a)
    dtype = dtype_of(a)
    counter = jax.ShapeDtypeStruct((), jnp.float32)
    if a.model == "update":
        weights = jax.ShapeDtypeStruct((a.weights,), jnp.float32)
        return updated, (*[weights] * (1 + n_moments), counter), (weights,)
    if a.decode:
        return decode(a, dtype)
    if a.model == "llama":
        weights, _, inputs, _, loss = llama(a, dtype)
    else:
        weights, inputs, loss = {"gpt": gpt, "mlp": mlp, "cnn": cnn, "ncf": ncf}[a.model](a, dtype)

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
    return partitioned(dumps)


def lower_on_mesh(a, dumps):
    """The text of a step over a mesh (data, model): for each device, partitioned by XLA, or as one program before that."""
    sizes, by_xla = (a.devices // a.tensor_parallel, a.tensor_parallel), (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=by_xla)
    at = lambda cut: jax.sharding.NamedSharding(mesh, cut)
    P = jax.sharding.PartitionSpec
    if a.model == "llama":
        weights, cuts, inputs, logits, loss = llama(a, dtype_of(a))
    else:
        between = lambda x: lax.with_sharding_constraint(x, at(P("data", None, None)))
        (weights, inputs, loss), cuts = gpt(a, dtype_of(a), between), gpt_cut(a)
        examples = (a.batch * sizes[0], a.sequence)
        inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(examples, x.dtype), inputs)
    updated, n_moments = update_of(a)
    placed = lambda x, cut: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at(cut))
    weights = jax.tree.map(placed, weights, cuts)
    inputs = jax.tree.map(lambda x: placed(x, P("data")), inputs)
    if a.inference:
        return text_of(a, dumps, jax.jit(logits).lower(weights, inputs[0]))

    def step(state, *inputs):
        value, grads = jax.value_and_grad(loss)(state[0], *inputs)
        return updated(state, grads), value

    counter = jax.ShapeDtypeStruct((), jnp.float32, sharding=at(P()))
    state = (*[weights] * (1 + n_moments), counter)
    places = jax.tree.map(lambda x: x.sharding, state)
    return text_of(a, dumps, jax.jit(step, donate_argnums=0, out_shardings=(places, at(P()))).lower(state, *inputs))


def text_of(a, dumps, lowered):
    """What is wanted of a step on a mesh."""
    if a.whole:
        return lowered.compiler_ir("hlo").as_hlo_text()
    lowered.compile()
    return partitioned(dumps)


def partitioned(dumps):
    """The largest module that XLA dumped behind its partitioner."""
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
        os.environ["XLA_FLAGS"] = flags(a, dumps)
        jax.config.update("jax_use_shardy_partitioner", not a.gspmd)
        is_on_mesh = a.whole or a.inference or a.model == "llama" and a.devices > 1
        text = (lower_on_mesh if is_on_mesh else lower)(a, dumps)
    with open(a.out + ".part", "w") as f:
        f.write(text)
    os.replace(a.out + ".part", a.out)
    print(json.dumps({"file": a.out, "bytes": len(text), "instructions": text.count(" = ")}))
