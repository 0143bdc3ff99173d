#!/usr/bin/env python3
"""Write the one-device programs that the GPU backend is timed on: kernels of one kind, and training and decoding steps.

make_programs.py --out DIR [--small] [NAME ...]: DIR/NAME.hlo, unoptimized HLO without donation, so that a run can be repeated with the
same inputs, and DIR/programs.json: for each the words that say how its inputs are drawn, and the bytes that it must move at least
(every input read once, every output written once). Needs JAX on CPU."""
import argparse
import json
import math
import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax

F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32


def array(dims, dtype=F32, draw="n1"):
    """An input: a shape, and the word that says how it is drawn."""
    return jax.ShapeDtypeStruct(tuple(dims), dtype), draw


# --- kernels -------------------------------------------------------------------------------------------------------------------


def adam_update(p, g, m, v, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p - rate * (m / (1 - b1**9)) / (jnp.sqrt(v / (1 - b2**9)) + eps), m, v


def adam(s):
    n = 1 << (12 if s else 26)
    return adam_update, [array([n]), array([n]), array([n], draw="n.1"), array([n], draw="p.1")]


def multiply_bf16(s):
    n = 1 << (12 if s else 27)
    return lambda x, y: x * y, [array([n], BF16), array([n], BF16)]


def rows(s, dtype=F32):
    return [16, 128] if s else [16384, 4096], dtype


def swiglu(s):
    dims, _ = rows(s)
    return lambda x, y: jax.nn.silu(x) * y, [array(dims, BF16), array(dims, BF16)]


def softmax(s):
    dims, _ = rows(s)
    return lambda x: jax.nn.softmax(x, axis=-1), [array(dims)]


def softmax_bf16(s):
    dims, _ = rows(s)
    return lambda x: jax.nn.softmax(x.astype(F32), axis=-1).astype(BF16), [array(dims, BF16)]


def norm(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def layer_norm(s):
    dims, _ = rows(s)
    return norm, [array(dims), array(dims[1:]), array(dims[1:])]


def layer_norm_grad(s):
    dims, _ = rows(s)
    f = lambda x, scale, shift, d: jax.vjp(norm, x, scale, shift)[1](d)
    return f, [array(dims), array(dims[1:]), array(dims[1:]), array(dims)]


def rms_norm_bf16(s):
    dims, _ = rows(s)

    def f(x, scale):
        y = x.astype(F32)
        return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(BF16) * scale

    return f, [array(dims, BF16), array(dims[1:], BF16)]


def transpose_bf16(s):
    n = 64 if s else 8192
    return lambda x: x.T, [array([n, n], BF16)]


def row_sum(s):
    dims, _ = rows(s)
    return lambda x: x.sum(-1), [array(dims)]


def column_sum(s):
    dims, _ = rows(s)
    return lambda x: x.sum(0), [array(dims)]


def sum_all(s):
    dims, _ = rows(s)
    return lambda x: x.sum(), [array(dims)]


def argmax(s):
    return lambda x: jnp.argmax(x, axis=-1), [array([8, 512] if s else [64, 262144])]


def update_slice(s):
    """A cache of which one row a batch is written: the cache itself is copied, because it is not donated."""
    t = 32 if s else 4096
    f = lambda cache, row, at: lax.dynamic_update_slice(cache, row, (0, at, 0, 0))
    return f, [array([8, t, 8, 128], BF16), array([8, 1, 8, 128], BF16), array([], S32, "7")]


def gather_rows(s):
    n = 64 if s else 16384
    return lambda table, rows: table[rows], [array([4 * n, 1024]), array([n], S32, f"int{4 * n}")]


def scatter_rows(s):
    n = 64 if s else 16384
    f = lambda table, rows, x: table.at[rows].add(x)
    return f, [array([2 * n, 1024]), array([n], S32, f"int{2 * n}"), array([n, 1024])]


def sort_rows(s):
    """Rows with their places, ascending, NaNs last: each element's rank in its row."""
    return lambda x: lax.sort_key_val(x, lax.broadcasted_iota(S32, x.shape, 1)), [array([4, 64] if s else [1024, 2048])]


def sort_long(s):
    return lambda x: jnp.sort(x), [array([1 << (10 if s else 22)])]


def top_k(s):
    return lambda x: lax.top_k(x, 8), [array([8, 64] if s else [16384, 256])]


def dropout_bf16(s):
    """Random bits of the generator that JAX calls `rbg`, and what they let through."""
    dims, _ = rows(s)

    def f(x, seed):
        keep = jax.random.bernoulli(jax.random.key(seed, impl="rbg"), 0.9, x.shape)
        return jnp.where(keep, x / 0.9, 0).astype(BF16)

    return f, [array(dims, BF16), array([], S32, "7")]


def batch_norm(s):
    """The gradient of a batch norm in training."""
    b, size, c = (2, 4, 8) if s else (64, 56, 256)

    def f(x, scale, shift, d):
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        y = (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift
        return (y * d).sum()

    return jax.grad(f, (0, 1, 2)), [array([b, size, size, c]), array([c]), array([c]), array([b, size, size, c])]


def gemm(dtype):
    def f(s):
        n = 64 if s else 8192
        return lambda x, y: x @ y, [array([n, n], dtype), array([n, n], dtype)]

    return f


def attention_bf16(s):
    b, h, t, d = (2, 2, 16, 8) if s else (8, 16, 1024, 128)

    def f(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32) / math.sqrt(d)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(BF16), v)

    return f, [array([b, t, h, d], BF16)] * 3


def convolution_bf16(s):
    n, size, c = (2, 8, 8) if s else (64, 56, 256)
    f = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return f, [array([n, size, size, c], BF16), array([3, 3, c, c], BF16, "n.05")]


# --- steps ---------------------------------------------------------------------------------------------------------------------


def training_step(weights, loss, batch):
    """Forward, backward and Adam. `weights`: name to dims; `batch`: inputs."""
    names = sorted(weights)

    def step(*arguments):
        n = len(names)
        p, m, v = (dict(zip(names, arguments[i * n : (i + 1) * n])) for i in range(3))
        value, gradients = jax.value_and_grad(loss)(p, *arguments[3 * n :])
        new = {k: adam_update(p[k], gradients[k], m[k], v[k]) for k in names}
        return [[new[k][i] for k in names] for i in range(3)], value

    # Moments are the same everywhere: to draw them takes longer than all runs.
    state = [array(weights[k], draw=draw) for draw in ("n.02", "5e-4", "5e-7") for k in names]
    return step, state + batch


def mlp_step(s):
    b, width, n = (4, 16, 2) if s else (1024, 4096, 4)

    def loss(p, x, y):
        for i in range(n):
            x = jax.nn.relu(x @ p[f"w{i}"] + p[f"b{i}"])
        return ((x - y) ** 2).mean()

    weights = {f"w{i}": (width, width) for i in range(n)} | {f"b{i}": (width,) for i in range(n)}
    return training_step(weights, loss, [array([b, width]), array([b, width])])


def token_loss(logits, tokens):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1].astype(F32)), tokens[:, 1:, None], axis=-1).mean()


def gpt(n_layers, d, heads, vocabulary, t, b, dtype=F32):
    weights = {"tokens": (vocabulary, d), "places": (t, d), "scale": (d,), "shift": (d,)}
    for i in range(n_layers):
        weights |= {f"{i}s1": (d,), f"{i}t1": (d,), f"{i}s2": (d,), f"{i}t2": (d,), f"{i}qkv": (d, 3 * d), f"{i}o": (d, d)}
        weights |= {f"{i}u": (d, 4 * d), f"{i}d": (4 * d, d), f"{i}bu": (4 * d,), f"{i}bd": (d,)}

    def loss(p, tokens):
        p = {k: w.astype(dtype) for k, w in p.items()}
        x = p["tokens"][tokens] + p["places"]
        mask = jnp.tril(jnp.ones((t, t), bool))
        for i in range(n_layers):
            w = lambda k: p[f"{i}{k}"]
            q, k, v = ((norm(x, w("s1"), w("t1")) @ w("qkv")).reshape(b, t, 3, heads, d // heads)[:, :, j] for j in range(3))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32) / math.sqrt(d // heads)
            a = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1).astype(dtype)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, t, d) @ w("o")
            x = x + jax.nn.gelu(norm(x, w("s2"), w("t2")) @ w("u") + w("bu")) @ w("d") + w("bd")
        return token_loss(norm(x, p["scale"], p["shift"]) @ p["tokens"].T, tokens)

    return training_step(weights, loss, [array([b, t], S32, f"int{vocabulary}")])


def gpt2_step(s):
    return gpt(2, 64, 4, 256, 32, 2) if s else gpt(12, 768, 12, 50257, 512, 8)


def gpt2_bf16_step(s):
    return gpt(2, 64, 4, 256, 32, 2, BF16) if s else gpt(12, 768, 12, 50257, 512, 8, BF16)


def small_gpt_step(s):
    """Small arrays: what launches cost shows."""
    return gpt(2, 64, 4, 256, 32, 2) if s else gpt(6, 256, 8, 4096, 128, 8)


def llama_block(w, x, places, mask, heads, kv, head):
    b, t, _ = x.shape
    half = head // 2
    angle = places[:, None].astype(F32) / 10000 ** (jnp.arange(0, head, 2, dtype=F32) / head)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]

    def rope(y):
        y1, y2 = y[..., :half].astype(F32), y[..., half:].astype(F32)
        return jnp.concatenate([y1 * cos - y2 * sin, y2 * cos + y1 * sin], -1).astype(y.dtype)

    y = rms(x, w("n1"))
    q = rope((y @ w("q")).reshape(b, t, heads, head)).reshape(b, t, kv, heads // kv, head)
    k, v = rope((y @ w("k")).reshape(b, t, kv, head)), (y @ w("v")).reshape(b, t, kv, head)
    scores = jnp.einsum("bqghc,bkgc->bghqk", q, k, preferred_element_type=F32) / math.sqrt(head)
    a = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1).astype(x.dtype)
    x = x + jnp.einsum("bghqk,bkgc->bqghc", a, v).reshape(b, t, heads * head) @ w("o")
    y = rms(x, w("n2"))
    return x + (jax.nn.silu(y @ w("g")) * (y @ w("u"))) @ w("d")


def rms(x, scale):
    y = x.astype(F32)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def llama_weights(n_layers, d, heads, kv, head, hidden, vocabulary):
    weights = {"tokens": (vocabulary, d), "scale": (d,), "head": (d, vocabulary)}
    for i in range(n_layers):
        weights |= {f"{i}n1": (d,), f"{i}n2": (d,), f"{i}q": (d, heads * head), f"{i}k": (d, kv * head)}
        weights |= {f"{i}v": (d, kv * head), f"{i}o": (heads * head, d)}
        weights |= {f"{i}g": (d, hidden), f"{i}u": (d, hidden), f"{i}d": (hidden, d)}
    return weights


def llama_step(s):
    n_layers, d, heads, kv, hidden, vocabulary, t, b = (2, 64, 4, 2, 96, 256, 32, 2) if s else (4, 2048, 16, 8, 5632, 16384, 1024, 4)
    head = d // heads

    def loss(p, tokens):
        p = {k: w.astype(BF16) for k, w in p.items()}
        x, mask = p["tokens"][tokens], jnp.tril(jnp.ones((t, t), bool))
        for i in range(n_layers):
            x = llama_block(lambda k: p[f"{i}{k}"], x, jnp.arange(t), mask, heads, kv, head)
        return token_loss(rms(x, p["scale"]) @ p["head"], tokens)

    weights = llama_weights(n_layers, d, heads, kv, head, hidden, vocabulary)
    return training_step(weights, loss, [array([b, t], S32, f"int{vocabulary}")])


def decode_step(s):
    """One token for each sequence of a batch; the caches are of length `t`."""
    n_layers, d, heads, kv, hidden, vocabulary, t, b = (2, 64, 4, 2, 96, 256, 32, 2) if s else (4, 2048, 16, 8, 5632, 16384, 2048, 8)
    head = d // heads
    weights = llama_weights(n_layers, d, heads, kv, head, hidden, vocabulary)
    names = sorted(weights)

    def step(*arguments):
        p = dict(zip(names, arguments))
        caches, (tokens, place) = arguments[len(names) : -2], arguments[-2:]
        x, new = p["tokens"][tokens][:, None], []
        for i in range(n_layers):
            w = lambda k: p[f"{i}{k}"]
            y = rms(x, w("n1"))
            q, k, v = y @ w("q"), (y @ w("k")).reshape(b, 1, kv, head), (y @ w("v")).reshape(b, 1, kv, head)
            ck = lax.dynamic_update_slice(caches[2 * i], k, (0, place, 0, 0))
            cv = lax.dynamic_update_slice(caches[2 * i + 1], v, (0, place, 0, 0))
            new += [ck, cv]
            scores = jnp.einsum("bghc,bkgc->bghk", q.reshape(b, kv, heads // kv, head), ck, preferred_element_type=F32)
            a = jax.nn.softmax(jnp.where(jnp.arange(t) <= place, scores / math.sqrt(head), -1e30), axis=-1).astype(BF16)
            x = x + jnp.einsum("bghk,bkgc->bghc", a, cv).reshape(b, 1, heads * head) @ w("o")
            y = rms(x, w("n2"))
            x = x + (jax.nn.silu(y @ w("g")) * (y @ w("u"))) @ w("d")
        return jnp.argmax((rms(x, p["scale"])[:, 0] @ p["head"]).astype(F32), -1), new

    # One number everywhere: nothing but reading them takes time.
    inputs = [array(weights[k], BF16, "0.01") for k in names] + [array([b, t, kv, head], BF16, "0.5")] * (2 * n_layers)
    return step, inputs + [array([b], S32, f"int{vocabulary}"), array([], S32, "7")]


def conv_step(s):
    b, size, c, n = (2, 8, 8, 2) if s else (64, 56, 128, 4)

    def loss(p, x, labels):
        for i in range(n):
            x = jax.nn.relu(lax.conv_general_dilated(x, p[f"c{i}"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return -jnp.take_along_axis(jax.nn.log_softmax(x.mean((1, 2)) @ p["head"]), labels[:, None], axis=-1).mean()

    weights = {f"c{i}": (3, 3, c, c) for i in range(n)} | {"head": (c, 128)}
    return training_step(weights, loss, [array([b, size, size, c]), array([b], S32, "int128")])


PROGRAMS = {
    "adam": adam, "multiply_bf16": multiply_bf16, "swiglu_bf16": swiglu, "softmax": softmax, "softmax_bf16": softmax_bf16,
    "layer_norm": layer_norm, "layer_norm_grad": layer_norm_grad, "rms_norm_bf16": rms_norm_bf16, "transpose_bf16": transpose_bf16,
    "row_sum": row_sum, "column_sum": column_sum, "sum_all": sum_all, "argmax": argmax, "update_slice": update_slice,
    "gather_rows": gather_rows, "scatter_rows": scatter_rows, "gemm_f32": gemm(F32), "gemm_bf16": gemm(BF16),
    "sort_rows": sort_rows, "sort_long": sort_long, "top_k": top_k, "dropout_bf16": dropout_bf16, "batch_norm": batch_norm,
    "attention_bf16": attention_bf16, "convolution_bf16": convolution_bf16, "mlp_step": mlp_step, "small_gpt_step": small_gpt_step,
    "gpt2_step": gpt2_step, "gpt2_bf16_step": gpt2_bf16_step, "llama_step": llama_step, "decode_step": decode_step,
    "conv_step": conv_step,
}  # fmt: skip


def n_bytes(shape):
    return math.prod(shape.shape) * shape.dtype.itemsize


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--small", action="store_true", help="small sizes, for checks without a card")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    described = {}
    for name in arguments.names or PROGRAMS:
        function, inputs = PROGRAMS[name](arguments.small)
        shapes = [shape for shape, _ in inputs]
        lowered = jax.jit(function, keep_unused=True).lower(*shapes)
        (arguments.out / f"{name}.hlo").write_text(lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True))
        outputs = jax.tree.leaves(jax.eval_shape(function, *shapes))
        least = sum(map(n_bytes, shapes)) + sum(map(n_bytes, outputs))
        described[name] = {"draw": " ".join(draw for _, draw in inputs), "least_bytes": least}
    (arguments.out / "programs.json").write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()
