#!/usr/bin/env python3
"""Run per-device modules on a card and on the host, with the same inputs, and compare what comes out.

compare_backends.py --tool HLO-OPT --out TSV [--jobs N] [--seconds S] FILE ...

The card has all devices of a module (`--share-gpu`). Inputs are drawn as a line
`// draw: …` of the file says, or a manifest.json beside it. `difference` is the largest over all outputs of max|a - b| / max|b|, b on the host; integers must be
equal. Where it is above 2e-5, other seeds say whether that is so for all inputs (relus flip where sums are rounded differently, and
bf16 rounds more). A row for each file, written as it comes; what is in the TSV is not run again. The last line counts the rows by outcome."""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import time

import numpy as np

COLUMNS = ["module", "outcome", "difference", "note"]
SECONDS = 120
LOOSEST_F32 = 2e-5
MORE_SEEDS = range(2, 6)


def card():
    """The card's name and the driver's version."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except OSError:
        return "no card"


def difference(found, expected):
    """The largest difference of two files' outputs; they must have the same arrays."""
    if sorted(found.files) != sorted(expected.files):
        raise RuntimeError(f"outputs {sorted(found.files)} on the card, {sorted(expected.files)} on the host")
    worst = 0.0
    for key in expected.files:
        a, b = found[key], expected[key]
        if a.dtype != b.dtype or a.shape != b.shape:
            raise RuntimeError(f"{key}: {a.dtype}{a.shape} on the card, {b.dtype}{b.shape} on the host")
        if not np.issubdtype(b.dtype, np.inexact):
            worst = max(worst, 0.0 if np.array_equal(a, b) else np.inf)
            continue
        if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not np.array_equal(np.isnan(a), np.isnan(b)):
            return np.inf
        a, b = (np.where(np.isfinite(x), x, 0).astype(np.complex128 if np.iscomplexobj(x) else np.float64) for x in (a, b))
        if b.size:
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst


class OutOfTime(Exception):
    """What is left is for the next run."""


def run(tool, end, *words):
    left = end - time.monotonic()
    try:
        done = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, timeout=max(0, min(SECONDS, left)))
    except subprocess.TimeoutExpired as error:
        if left < SECONDS:
            raise OutOfTime from error
        raise RuntimeError(f"more than {SECONDS} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(next((line for line in lines if line.startswith("error")), lines[-1])[:240])


def draw_of(path):
    """One word for each input that says how it is drawn."""
    line = re.search(r"^// draw: (.*)$", path.read_text(), re.MULTILINE)
    manifest = path.with_name("manifest.json")
    if line or not manifest.exists():
        return line[1] if line else ""
    return next((entry["draw"] for entry in json.loads(manifest.read_text()) if entry["file"] == path.name), "")


def apart_for(tool, end, path, seed, folder):
    """The difference of the two backends for the inputs of a seed."""
    files = [folder / "host.npz", folder / "card.npz"]
    for file, backend in zip(files, (["host"], ["gpu", "--share-gpu"])):
        try:
            run(tool, end, "run", "--backend", *backend, "--seed", seed, "--draw", draw_of(path), "-o", file, path)
        except RuntimeError as error:
            raise RuntimeError(f"{backend[0]}: {error}") from error
    return difference(np.load(files[1]), np.load(files[0]))


def one(tool, end, path):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            run(tool, end, "-q", "--emit", "plan", path, "-o", folder / "plan.txt")
        except RuntimeError as error:
            return "refused", "-", str(error)
        try:
            apart = apart_for(tool, end, path, 1, folder)
            if apart <= LOOSEST_F32:
                return "equal" if apart == 0 else "close", f"{apart:.3g}", ""
            others = [apart_for(tool, end, path, seed, folder) for seed in MORE_SEEDS]
        except RuntimeError as error:
            return "failed", "-", str(error)
        outcome = "close for other seeds" if min(others) <= LOOSEST_F32 else "apart"
        return outcome, f"{apart:.3g}", "other seeds: " + ", ".join(f"{other:.3g}" for other in others)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so long")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    done = set()
    if arguments.out.exists():
        done = {line.split("\t")[0] for line in arguments.out.read_text().splitlines()[1:]}
    else:
        arguments.out.write_text("\t".join(COLUMNS) + "\n")
    lock, outcomes, end = threading.Lock(), collections.Counter(), time.monotonic() + arguments.seconds

    def row(path):
        try:
            outcome, apart, note = one(arguments.tool, end, path)
        except OutOfTime:
            outcomes["left"] += 1
            return
        with lock, arguments.out.open("a") as table:
            outcomes[outcome] += 1
            table.write("\t".join([str(path), outcome, apart, note]) + "\n")
            if outcome not in ("equal", "close", "refused"):
                print(f"{path}  {outcome}  {apart}  {note}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(row, [path for path in arguments.files if str(path) not in done]))
    print(", ".join(f"{outcome}: {n}" for outcome, n in sorted(outcomes.items())))
    if outcomes["left"]:
        print(f"out of time before {outcomes['left']} modules; the next run goes on from here", flush=True)


if __name__ == "__main__":
    main()
