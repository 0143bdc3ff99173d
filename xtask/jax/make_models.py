#!/usr/bin/env python3
"""Lower the training steps whose parallel plan is searched: forward, backward and update as one global program without shardings.

make_models.py --out DIR [options]: see --help. Each model is written to DIR/MODEL.GPUS.hlo, its batch that of one GPU times GPUS. Two
header lines say what it is and how its inputs are drawn. Weights and moments are donated. The weights of a model in full size are
counted: another number than the table's is an error. GPT and Llama are those of make_hlo.py."""
import argparse
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace as Sizes
from typing import Callable, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

import search_models
from optimizers import OPTIMIZERS, sgd


class Input(NamedTuple):
    """One input of a batch: real numbers, or integers below a bound. `dims` are those of one example."""

    dims: tuple
    below: int = 0


class Model(NamedTuple):
    """A model in full and in small size. `weights` are how many arrays and how many elements it has in full size."""

    what: str
    loss: Callable
    inputs: Callable
    batch: int
    weights: tuple
    sizes: Sizes
    small: dict
    optimizer: str = "sgd"
    small_batch: int = 2


def sizes(model, is_small):
    return Sizes(**{**vars(model.sizes), **(model.small if is_small else {})})


def image_inputs(s):
    return [Input((s.image, s.image, 3)), Input((), s.classes)]


def token_inputs(s):
    return [Input((s.sequence, s.width)), Input((s.sequence, 1))]


RESNEXT = Sizes(
    image=224, stem=64, stages=((128, 3), (256, 4), (512, 6), (1024, 3)), groups=32, classes=1000, projections=False
)
RESNEXT_SMALL = {"image": 64, "stem": 8, "stages": ((16, 3), (32, 4), (64, 6), (128, 3)), "groups": 8, "classes": 24}

MODELS = {
    "mlp": Model(
        "MLP of Unity: two chains of eight layers, added",
        search_models.mlp, lambda s: [Input((s.inputs,)), Input((s.inputs,)), Input((), s.width)],
        256, (16, 956_301_312), Sizes(inputs=1024, width=8192, layers=8), {"inputs": 24, "width": 64},
    ),
    "candle": Model(
        "CANDLE Uno of Unity: five towers and two scalars, concatenated",
        search_models.candle, lambda s: [*(Input((n,)) for n in s.features), Input((1,))],
        256, (45, 820_948_704), Sizes(features=(1, 1, 942, 5270, 2048, 5270, 2048), width=4192, tower_layers=8, layers=4),
        {"features": (1, 1, 9, 54, 20, 54, 20), "width": 40},
    ),
    "dlrm": Model(
        "DLRM of Unity: eight tables and a chain, concatenated",
        search_models.dlrm,
        lambda s: [*[Input((), s.rows)] * s.tables, Input((s.width,)), Input((s.width,))],
        1024, (20, 2_062_680_064),
        Sizes(tables=8, rows=10**6, embedding=256, width=1024, bottom_layers=8, top_layers=4),
        {"rows": 100, "embedding": 16, "width": 48},
    ),
    "xdl": Model(
        "XDL of Unity: four tables, concatenated",
        search_models.xdl, lambda s: [*[Input((), s.rows)] * s.tables, Input((2,))],
        1024, (7, 256_131_584), Sizes(tables=4, rows=10**6, embedding=64, width=256),
        {"rows": 100, "embedding": 12, "width": 48},
    ),
    "resnext": Model(
        "ResNeXt-50 of Unity, without residuals", search_models.resnext, image_inputs,
        64, (50, 22_190_784), RESNEXT, RESNEXT_SMALL,
    ),
    "resnext-projections": Model(
        "ResNeXt-50 of Unity with a projection where the shape changes", search_models.resnext, image_inputs,
        64, (54, 24_959_680), Sizes(**{**vars(RESNEXT), "projections": True}), RESNEXT_SMALL,
    ),
    "inception": Model(
        "Inception-v3 of Unity", search_models.inception, image_inputs,
        64, (95, 21_771_616), Sizes(image=299, divisor=1, classes=10), {"image": 75, "divisor": 8},
    ),
    "bert-ae": Model(
        "the Transformer of Unity's artifact, without residuals and norms", search_models.bert_ae, token_inputs,
        4, (73, 75_498_496), Sizes(layers=12, width=1024, heads=16, sequence=512),
        {"layers": 3, "width": 48, "heads": 6, "sequence": 16},
    ),
    "bert-large": Model(
        "BERT-Large", search_models.bert, token_inputs,
        4, (289, 302_212_096), Sizes(layers=24, width=1024, heads=16, sequence=512),
        {"layers": 2, "width": 48, "heads": 6, "sequence": 16}, "adam",
    ),
    "moe": Model(
        "a mixture of experts, each written out", search_models.moe, lambda s: [Input((s.width,)), Input((1,))],
        512, (69, 4_295_102_464), Sizes(layers=4, experts=8, width=4096, hidden=16384),
        {"layers": 2, "experts": 4, "width": 24, "hidden": 40}, "adam",
    ),
    "ncf": Model(
        "neural collaborative filtering, users and items of MovieLens", search_models.ncf,
        lambda s: [Input((), s.users), Input((), s.items), Input(())],
        32, (10, 1_272_385), Sizes(users=6040, items=3706, width=64), {"users": 90, "items": 50, "width": 12}, "adam",
    ),
    "conv": Model(
        "a convolutional network with batch norms", search_models.conv_net, image_inputs,
        64, (14, 1_650_911), Sizes(image=32, stem=63, channels=256, features=250, classes=1001),
        {"image": 16, "stem": 7, "channels": 16, "features": 10, "classes": 11}, "lars",
    ),
    "perceptron": Model(
        "a perceptron for images of 28 x 28", search_models.perceptron, lambda s: [Input((s.inputs,)), Input((), s.classes)],
        128, (6, 669_706), Sizes(inputs=784, width=512, layers=3, classes=10), {"inputs": 28, "width": 24}, "adam",
    ),
}  # fmt: skip

# Those of make_hlo.py: its words in full and in small size, and the batch of one GPU.
GPT = ["--model", "gpt", "--width", "1024", "--heads", "16", "--vocabulary", "50304", "--sequence", "1024"]
GPT_SMALL = ["--model", "gpt", "--width", "48", "--heads", "6", "--vocabulary", "96", "--sequence", "12"]
LLAMA = ["--model", "llama", "--width", "1024", "--heads", "16", "--kv-heads", "4", "--vocabulary", "32000", "--sequence", "1024"]
LLAMA_SMALL = ["--model", "llama", "--width", "48", "--heads", "6", "--kv-heads", "2", "--vocabulary", "96", "--sequence", "12"]
TRANSFORMERS = {
    **{f"gpt{n}l": ("GPT", [*GPT, "--layers", str(n)], [*GPT_SMALL, "--layers", str(n)]) for n in (2, 24, 96, 400)},
    "llama4l": ("Llama", [*LLAMA, "--layers", "4"], [*LLAMA_SMALL, "--layers", "4"]),
}
TRANSFORMER_BATCH, TRANSFORMER_SMALL_BATCH = 4, 2


def arguments():
    own = [f"{name}: {model.what}; {model.optimizer}" for name, model in MODELS.items()]
    shared = [f"{name}: {what}, as make-hlo lowers it; adam" for name, (what, _, _) in TRANSFORMERS.items()]
    parser = argparse.ArgumentParser(
        prog="cargo xtask make-models", description=__doc__.splitlines()[0], epilog="\n".join(["models:", *own, *shared]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--out", required=True, help="the folder to write to")
    parser.add_argument("--only", action="append", choices=[*MODELS, *TRANSFORMERS], help="this model; may be repeated")
    parser.add_argument("--gpus", type=int, action="append", help="may be repeated (default 6)")
    parser.add_argument("--small", action="store_true", help="the same graphs in small size, BERTs with fewer layers")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), help="in place of a model's own")
    a = parser.parse_args()
    if a.gpus and min(a.gpus) < 1:
        parser.error(f"--gpus: expected 1 or more, found {min(a.gpus)}")
    return a


def find_weights(model, s, batch):
    """Their shapes by name, from a trace of the model."""
    w = search_models.Weights()
    jax.eval_shape(lambda *inputs: model.loss(w, s, *inputs), *batch)
    return w.shapes


def check_count(name, model, weights):
    found = len(weights), sum(math.prod(x.shape) for x in weights.values())
    if found != model.weights:
        raise SystemExit(f"make_models.py: {name}: expected {model.weights} weights and elements, found {found}")


def build_step(model, s, optimizer):
    """(weights, moments, *inputs) → (new weights, new moments, loss); the number of the step is the last moment, if there are any."""
    update, n_moments = OPTIMIZERS[optimizer]
    if optimizer == "sgd":
        update = functools.partial(sgd, rate=0.1)

    def step(weights, moments, *inputs):
        loss = lambda weights: model.loss(search_models.Weights(weights), s, *inputs)
        value, grads = jax.value_and_grad(loss)(weights)
        *by_weight, t = moments if n_moments else (None,)
        t = t + 1 if n_moments else None
        new = {name: update(w, grads[name], *(m[name] for m in by_weight), t) for name, w in weights.items()}
        weights, *by_weight = ({name: x[i] for name, x in new.items()} for i in range(1 + n_moments))
        return weights, (*by_weight, t) if n_moments else (), value

    return step, n_moments


def draw_words(weights, n_moments, inputs):
    """How the parameters are drawn, in their order: weights so that activations keep their size, moments as after some steps."""

    def of_weight(name, dims):
        if name.startswith("conv") or name.startswith("dense"):
            return f"n{math.sqrt(2 / math.prod(dims[:-1])):.2g}"
        return "p1" if name.startswith("scale") else "n1" if name.startswith("table") else "n.05"

    by_name = sorted(weights.items())
    words = [of_weight(name, x.shape) for name, x in by_name]
    if n_moments:
        words += ["n5e-4"] * len(words) + (["p5e-7"] * len(words) if n_moments == 2 else []) + ["3"]
    return words + [f"int{x.below}" if x.below else "n1" for x in inputs]


def lower(name, n_gpus, a):
    """The text of a model's step, with its header lines."""
    model = MODELS[name]
    s = sizes(model, a.small)
    n_examples = n_gpus * (model.small_batch if a.small else model.batch)
    inputs = model.inputs(s)
    batch = [jax.ShapeDtypeStruct((n_examples, *x.dims), jnp.int32 if x.below else jnp.float32) for x in inputs]
    weights = find_weights(model, s, batch)
    if not a.small:
        check_count(name, model, weights)
    optimizer = a.optimizer or model.optimizer
    step, n_moments = build_step(model, s, optimizer)
    moments = (*[weights] * n_moments, jax.ShapeDtypeStruct((), jnp.float32)) if n_moments else ()
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(weights, moments, *batch)
    what = f"{model.what}, a step with {optimizer}, {n_examples} examples"
    draw = " ".join(draw_words(weights, n_moments, inputs))
    return f"// what: {what}\n// draw: {draw}\n" + lowered.compiler_ir("hlo").as_hlo_text()


def lower_transformer(name, n_gpus, a):
    """The text of a step that make_hlo.py lowers, with its header line."""
    what, full, small = TRANSFORMERS[name]
    n_examples = n_gpus * (TRANSFORMER_SMALL_BATCH if a.small else TRANSFORMER_BATCH)
    optimizer = a.optimizer or "adam"
    words = [*(small if a.small else full), "--batch", str(n_examples), "--optimizer", optimizer]
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_hlo.py")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "step.hlo")
        subprocess.run([sys.executable, "-B", script, *words, "--out", file], check=True, stdout=subprocess.DEVNULL)
        with open(file) as f:
            return f"// what: {what}, a step with {optimizer}, {n_examples} examples: make-hlo {' '.join(words)}\n" + f.read()


def write(path, text):
    with open(path + ".part", "w") as f:
        f.write(text)
    os.replace(path + ".part", path)


def main():
    a = arguments()
    os.makedirs(a.out, exist_ok=True)
    for name in a.only or [*MODELS, *TRANSFORMERS]:
        for n_gpus in a.gpus or [6]:
            start = time.monotonic()
            text = (lower if name in MODELS else lower_transformer)(name, n_gpus, a)
            path = os.path.join(a.out, f"{name}.{n_gpus}.hlo")
            write(path, text)
            seconds = round(time.monotonic() - start, 1)
            print(json.dumps({"file": path, "bytes": len(text), "instructions": text.count(" = "), "s": seconds}), flush=True)


if __name__ == "__main__":
    main()
