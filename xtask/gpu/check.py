#!/usr/bin/env python3
"""What is to be known of a card, in one command: does it run what we lower, right, and how fast.

check.py --tool HLO-OPT --out FOLDER [--seconds S] [--programs DIR] [PART ...]

Parts, in this order:
  smoke     the card and the driver; a training step of eight devices on it, step by step, beside the host: 1e-5 at most
  sweep     all samples that lower, on the card and on the host (compare_backends.py): compared.tsv
  sanitize  compute-sanitizer's four tools on programs and samples; passed over where it is not installed
  nccl      one rank alone: a communicator that adds up, permutes, and is left again
  times     kernels of one kind and steps beside XLA on the same card (time_programs.py): times.tsv. DIR is what make_programs.py wrote

FOLDER/check.tsv has a row for each part. A part that passed is not run again, and one that ran out of time goes on where it stopped:
call it again until nothing is left. Needs numpy, and CUDA's libraries in LD_LIBRARY_PATH; `times` needs JAX with CUDA."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

import compare_backends

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES = HERE.parent.parent / "ir-samples"
COLUMNS = ["part", "outcome", "seconds", "note"]
CLOSE = 1e-5
STEP = SAMPLES / "programs/mlp_sgd.hlo"
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
SANITIZED = ["programs/mlp_adam_6.hlo", "programs/ncf_adam.hlo", "programs/conv_lars.hlo", "passes/fuse/softmax.hlo", "passes/fuse/norm-gradient.hlo",
             "passes/fuse/convolution-sums.hlo", "passes/fuse/scatter-of-zeros.hlo", "ops/sort.hlo", "ops/transpose.hlo"]  # fmt: skip
ONE_RANK = """HloModule one_rank, num_partitions=1

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[1048576]) -> (f32[1048576], f32[1048576]) {
  %x = f32[1048576]{0} parameter(0)
  %sum = f32[1048576]{0} all-reduce(%x), channel_id=1, replica_groups={{0}}, use_global_device_ids=true, to_apply=%add
  %self = f32[1048576]{0} collective-permute(%x), channel_id=2, source_target_pairs={{0,0}}
  ROOT %both = (f32[1048576]{0}, f32[1048576]{0}) tuple(%sum, %self)
}
"""


class OutOfTime(Exception):
    """What is left goes on in the next call."""


class Check:
    def __init__(self, arguments):
        self.tool, self.out, self.programs = str(pathlib.Path(arguments.tool).resolve()), arguments.out, arguments.programs
        self.end = time.monotonic() + arguments.seconds

    def left(self):
        """Seconds that are left for this call."""
        seconds = self.end - time.monotonic()
        if seconds < 5:
            raise OutOfTime
        return seconds

    def run(self, *words, env=None):
        """What a command prints; an error with its last words if it fails."""
        try:
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=self.left(), env=env)
        except subprocess.TimeoutExpired as error:
            raise OutOfTime from error
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit code {done.returncode}"]
            raise RuntimeError(next((line for line in lines if line.startswith("error")), lines[-1])[:240])
        return done.stdout

    def smoke(self):
        card = compare_backends.card()
        print(card, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            files = {backend: pathlib.Path(folder) / f"{backend}.npz" for backend in ("host", "gpu")}
            common = ["--seed", 1, "--draw", compare_backends.draw_of(STEP), STEP, "-o"]
            self.run(self.tool, "run", "--backend", "host", *common, files["host"])
            self.run(self.tool, "run", "--backend", "gpu", "--share-gpu", "--sync", *common, files["gpu"])
            apart = compare_backends.difference(np.load(files["gpu"]), np.load(files["host"]))
        if not apart <= CLOSE:
            raise RuntimeError(f"{STEP.name}: {apart:.3g} apart, expected at most {CLOSE}")
        return f"{card}; {STEP.name} {apart:.2g} apart"

    def script(self, name, *words):
        """Runs one of the scripts beside this one as long as time is left; its output is shown."""
        command = [sys.executable, HERE / name, "--tool", self.tool, "--seconds", f"{self.left():.0f}", *words]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        if "out of time" in done.stdout:
            raise OutOfTime
        if done.returncode:
            raise RuntimeError(f"{name}: exit code {done.returncode}")

    def sweep(self):
        files = [*sorted((SAMPLES / "ops").glob("*.hlo")), *sorted((SAMPLES / "passes").rglob("*.hlo")), *sorted((SAMPLES / "programs").glob("*.hlo"))]
        table = self.out / "compared.tsv"
        self.script("compare_backends.py", "--out", table, *files)
        outcomes = [line.split("\t")[1] for line in table.read_text().splitlines()[1:]]
        counts = ", ".join(f"{outcome}: {outcomes.count(outcome)}" for outcome in sorted(set(outcomes)))
        if "failed" in outcomes:
            raise RuntimeError(counts)
        return counts

    def sanitize(self):
        if not shutil.which("compute-sanitizer"):
            return None
        done = self.out / "sanitized.txt"
        seen = set(done.read_text().splitlines()) if done.exists() else set()
        for tool in TOOLS:
            for name in SANITIZED:
                if f"{tool} {name}" in seen:
                    continue
                words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", 9, self.tool, "run", "--backend", "gpu", "--share-gpu"]
                self.run(*words, "--draw", compare_backends.draw_of(SAMPLES / name), SAMPLES / name)
                print(f"{tool} {name}: nothing", flush=True)
                with done.open("a") as file:
                    file.write(f"{tool} {name}\n")
        return f"{len(TOOLS)} tools, {len(SANITIZED)} modules: nothing"

    def nccl(self):
        with tempfile.TemporaryDirectory() as folder:
            module, outputs = pathlib.Path(folder) / "one_rank.hlo", pathlib.Path(folder) / "out.npz"
            inputs = pathlib.Path(folder) / "in.npz"
            module.write_text(ONE_RANK)
            x = np.arange(1 << 20, dtype=np.float32)
            np.savez(inputs, in0_d0=x)
            where = ["--coordinator", "127.0.0.1:29517", "--rank", 0, "--ranks", 1]
            self.run(self.tool, "run", "--backend", "gpu", *where, "--inputs", inputs, "-o", outputs, module)
            found = np.load(outputs)
            if not all(np.array_equal(found[f"out{i}_d0"], x) for i in range(2)):
                raise RuntimeError("a sum over one rank, or what it sends to itself, is not what it had")
        return "one rank adds up and sends to itself"

    def times(self):
        if not self.programs:
            raise RuntimeError("expected --programs DIR, which make_programs.py writes, found none")
        table = self.out / "times.tsv"
        self.script("time_programs.py", "--programs", self.programs, "--out", table)
        rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
        failed = [row[0] for row in rows if row[1] == "-"]
        if failed:
            raise RuntimeError("no time of " + ", ".join(failed))
        slower = [f"{row[0]} {row[3]}" for row in rows if row[3] != "-" and float(row[3]) < 1 / 1.1]
        return f"{len(rows)} programs; slower than XLA by more than a tenth (XLA / ours): " + (", ".join(slower) or "none")


PARTS = ["smoke", "sweep", "sanitize", "nccl", "times"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=540, help="stop after so long (of `times`: begin no program)")
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"expected parts among {', '.join(PARTS)}, found {part}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = arguments.out / "check.tsv"
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]] if table.exists() else []
    known = {row[0]: row for row in rows}
    check, outcomes = Check(arguments), []
    for part in arguments.parts or PARTS:
        if known.get(part, ["", ""])[1] == "passed":
            print(f"{part}: passed before")
            continue
        start = time.monotonic()
        try:
            note = getattr(check, part)()
            outcome, note = ("passed", note) if note is not None else ("skipped", "compute-sanitizer is not installed")
        except OutOfTime:
            outcome, note = "out of time", "call again: it goes on where it stopped"
        except Exception as error:  # a part that fails is a row of the table, not the end of the others
            outcome, note = "failed", (str(error).splitlines() or [repr(error)])[0]
        outcomes.append(outcome)
        known[part] = [part, outcome, f"{time.monotonic() - start:.0f}", note]
        print(f"{part}: {outcome}: {note}", flush=True)
        lines = ["\t".join(known[part]) for part in PARTS if part in known]
        table.write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n")
        if outcome == "out of time":
            break
        if part == "smoke" and outcome == "failed":
            print("nothing else is tried")
            break
    return 0 if all(outcome in ("passed", "skipped") for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
