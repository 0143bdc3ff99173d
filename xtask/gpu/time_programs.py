#!/usr/bin/env python3
"""Time one-device programs on a card: `hlo-opt run --backend gpu`, and XLA on the same text, in one run.

time_programs.py --tool HLO-OPT --programs DIR --out TSV [--seconds S] [--no-xla] [NAME ...]

DIR is what make_programs.py wrote. Both multiply f32 matrices by tf32 (XLA's default). Ours is the median of three runs of 20 steps that
follow one another without a wait, for a step. XLA's is the smaller of the mean of as many, issued without waiting, and of the median of
single ones. Both leave out copies between host and card. Where the inputs are small enough, both get the same and outputs are compared:
`difference` is the largest over all outputs of max|a - b| / max|b|. Rows are written as they come: what is in the TSV is not run
again. Needs JAX with CUDA, and CUDA's libraries in LD_LIBRARY_PATH."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "oracle"))

import numpy as np

import compare_backends
import hlo_oracle

COLUMNS = ["program", "ours_ms", "xla_ms", "xla/ours", "GB/s", "difference", "note"]
MOST_COMPARED_BYTES = 64e6
N_RUNS = 20


def compiled(path):
    """XLA's executable of a text, and the shapes of its inputs."""
    module = hlo_oracle.parse(path.read_text())
    return hlo_oracle.compile_module(module, 1, 1), hlo_oracle.entry_leaves(module)


def drawn_on_card(shape, word, seed):
    """An input as its word says, see hlo_oracle.draw_inputs; drawn by the card itself."""
    import jax
    import jax.numpy as jnp

    key, dims, dtype = jax.random.PRNGKey(seed), tuple(shape.dimensions()), jnp.dtype(shape.numpy_dtype())
    if word.startswith("int"):
        return jax.random.randint(key, dims, 0, int(word[3:]), dtype)
    if word[0] not in "np":
        return jnp.full(dims, float(word), dtype)
    normal = jax.random.normal(key, dims, jnp.float32) * float(word[1:])
    return (jnp.abs(normal) if word[0] == "p" else normal).astype(dtype)


def xla_seconds(executable, arrays):
    import jax

    run = lambda: executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
    wait = lambda outputs: jax.block_until_ready([array for output in outputs for array in output])
    for _ in range(3):
        wait(run())
    single = []
    for _ in range(N_RUNS):
        start = time.perf_counter()
        wait(run())
        single.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(N_RUNS):
        outputs = run()
    wait(outputs)
    return min(sorted(single)[N_RUNS // 2], (time.perf_counter() - start) / N_RUNS), wait(run())


def difference(ours, xla):
    worst = 0.0
    for i, expected in enumerate(xla):
        found, expected = np.asarray(ours[f"out{i}_d0"]).astype(np.float64), np.asarray(expected).astype(np.float64)
        if found.size:
            apart = np.abs(found.reshape(expected.shape) - expected).max() / max(np.abs(expected).max(), 1e-30)
            worst = max(worst, 9e9 if np.isnan(apart) else float(apart))
    return worst


def our_seconds(arguments, path, draw, inputs, outputs, times):
    command = [arguments.tool, "run", "--backend", "gpu", "--matmul", "tf32", "--steps", str(N_RUNS), "--repeat", "3", "--times", times]
    command += ["--inputs", inputs, "-o", outputs] if inputs else ["--seed", "1", "--draw", draw]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=120)
    found = re.search(r"median ([\d.]+) ms", done.stdout)
    if done.returncode or not found:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no line of times"])[-1][:200])
    return float(found[1]) / 1e3


def one(arguments, name, described, xla, folder):
    row = dict.fromkeys(COLUMNS, "-") | {"program": name, "note": ""}
    path, draw = arguments.programs / f"{name}.hlo", described["draw"]
    inputs = outputs = expected = None
    if xla:
        import jax

        try:
            executable, shapes = xla.result()
            arrays = [drawn_on_card(shape, word, i) for i, (shape, word) in enumerate(zip(shapes, draw.split()))]
            seconds, expected = xla_seconds(executable, arrays)
            row["xla_ms"] = seconds * 1e3
            if sum(a.nbytes for a in arrays) < MOST_COMPARED_BYTES:
                drawn = [np.asarray(a) for a in arrays]
                inputs, outputs = str(folder / "in.npz"), str(folder / "out.npz")
                np.savez(inputs, **{f"in{i}_d0": hlo_oracle.storable(a) for i, a in enumerate(drawn)})
                expected = [np.asarray(output) for output in expected]
            del arrays
        except Exception as error:  # the peer's refusal is a row of the table, not the end of the run
            row["note"] = f"XLA: {str(error).splitlines()[0][:200]}"
    try:
        seconds = our_seconds(arguments, path, draw, inputs, outputs, str(arguments.out.parent / f"{name}.steps.tsv"))
        row["ours_ms"], row["GB/s"] = seconds * 1e3, described["least_bytes"] / seconds / 1e9
        if row["xla_ms"] != "-":
            row["xla/ours"] = row["xla_ms"] / row["ours_ms"]
        if outputs:
            row["difference"] = difference(np.load(outputs), expected)
    except Exception as error:
        row["note"] += " ours: " + (str(error).splitlines() or [repr(error)])[-1][-200:]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=540, help="begin no program after so long")
    parser.add_argument("--no-xla", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    start = time.time()
    print(compare_backends.card(), flush=True)
    programs = json.loads((arguments.programs / "programs.json").read_text())
    done = set()
    if arguments.out.exists():
        done = {line.split("\t")[0] for line in arguments.out.read_text().splitlines()[1:]}
    else:
        arguments.out.write_text("\t".join(COLUMNS) + "\n")
    names = [name for name in arguments.names or programs if name not in done]
    with concurrent.futures.ThreadPoolExecutor(8) as pool, tempfile.TemporaryDirectory() as folder:
        peers = {} if arguments.no_xla else {name: pool.submit(compiled, arguments.programs / f"{name}.hlo") for name in names}
        concurrent.futures.wait(peers.values())  # the compiler times its candidates on the card: nothing else may run there
        print(f"XLA has compiled: {time.time() - start:.0f} s", flush=True)
        for name in names:
            if time.time() - start > arguments.seconds:
                print(f"out of time before {name}; the next run goes on from here", flush=True)
                break
            row = one(arguments, name, programs[name], peers.pop(name, None), pathlib.Path(folder))
            cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
            with arguments.out.open("a") as table:
                table.write("\t".join(cells) + "\n")
            print("  ".join(f"{cell:>12}" for cell in cells), f"{time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
