#!/usr/bin/env python3
"""Check one module: what hlo-opt prints, evaluates and transforms, judged by real XLA.

check_case.py CONFIG.json, where CONFIG holds: file, like (sibling with the shardings, or null), draw, seeds, runnable,
nan_belongs (NaN is part of what the module shows; else it fails the case),
hlo_opt, stages, pipeline (or null), mutants, work (folder for files), timeout_s, skip (cases that are already done).
Prints a JSON line when a case starts and one when it ends; XLA can end the process at any point, and the line that is
missing then says where."""
import json
import os
import subprocess
import sys
import time
from functools import cached_property

import compare
import hlo_oracle
import hlo_text
import mutants

# Where an output moves by more than this under half an ulp, a rounding flips a branch (a relu's kink): try other draws.
STEADY = 1e-4
# A kink may lie just beyond half an ulp, where another order of a sum reaches it: inputs are also moved by this much more.
SHAKEN = 8.0
# A tolerance above this proves nothing.
WIDEST = 0.1


class Failure(Exception):
    """The case fails, and why."""


class Skip(Exception):
    """The case cannot be run, and why."""


class Module:
    """One module and everything derived from it, made when first asked for."""

    def __init__(self, config):
        self.config = config
        self.deadline = time.monotonic() + config["timeout_s"] * 0.9
        self.file = config["file"]
        with open(self.file) as f:
            self.text = hlo_text.without_comments(f.read())
        self.counts = hlo_text.header_counts(self.text)
        self.n_devices = self.counts[0] * self.counts[1]
        self.inputs_file = self.path("in.npz")
        self.short_file = self.path("short.hlo")
        with open(self.short_file, "w") as f:
            f.write(hlo_text.shorten_loops(self.text))

    def path(self, name):
        return os.path.join(self.config["work"], name)

    def hlo_opt(self, *arguments, allow=(0,)):
        """Run the tool; (exit status, stdout bytes, stderr text). A status outside `allow` fails the case."""
        command = [self.config["hlo_opt"], *arguments]
        left = max(1.0, self.deadline - time.monotonic())
        try:
            r = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=left)
        except subprocess.TimeoutExpired:
            raise Failure(f"hlo-opt {' '.join(arguments)}: no end after {left:.0f} s") from None
        stderr = r.stderr.decode(errors="replace")
        if r.returncode not in allow:
            raise Failure(f"hlo-opt {' '.join(arguments)}: exit {r.returncode}: {first_line(stderr)}")
        return r.returncode, r.stdout, stderr

    @cached_property
    def in_xla(self):
        """XLA's reading of the original."""
        return hlo_oracle.parse(self.text)

    def executable(self, text):
        module = hlo_oracle.parse(hlo_text.expand_mesh_groups(text))
        return hlo_oracle.compile_module(module, *self.counts)

    @cached_property
    def reference(self):
        """(outputs, tolerance) of the untouched module on real XLA; its inputs lie in `inputs_file`."""
        with open(self.short_file) as f:
            executable = self.executable(f.read())
        like = self.text
        if self.config["like"]:
            with open(self.config["like"]) as f:
                like = f.read()
        groups = hlo_text.replication_groups(like, self.n_devices)
        self.shapes = hlo_oracle.entry_leaves(executable.hlo_modules()[0])
        words = self.config["draw"].split()
        best, least_kinks = None, None
        for seed in self.config["seeds"]:
            drawn = [
                hlo_oracle.draw_inputs(self.shapes, self.n_devices, seed, groups, words, perturb)
                for perturb in (0.0, compare.PERTURB, SHAKEN * compare.PERTURB)
            ]
            outputs, moved, shaken = (hlo_oracle.execute(executable, d, self.n_devices) for d in drawn)
            tolerance = compare.tolerance(outputs, moved)
            kinks = max(tolerance, compare.tolerance(outputs, shaken) / SHAKEN)
            if best is None or kinks < least_kinks:
                best, least_kinks = (outputs, tolerance), kinks
                hlo_oracle.save_npz(self.inputs_file, "in", drawn[0])
            if kinks <= compare.MARGIN * STEADY:
                break
        why = compare.check_reference(best[0])
        if why and not self.config["nan_belongs"]:
            raise Failure(f"the reference: {why}")
        if best[1] > WIDEST:
            raise Failure(f"the tolerance would be {best[1]:.1e}, above {WIDEST}: it would prove nothing")
        return best

    def xla_outputs(self, text):
        """[output][device] of a text on real XLA, on the reference's inputs."""
        executable = self.executable(text)
        inputs = hlo_oracle.load_npz_inputs(self.inputs_file, self.shapes, self.n_devices)
        return hlo_oracle.execute(executable, inputs, self.n_devices)

    def evaluator_outputs(self, file):
        """[output][device] of a file in hlo-opt's evaluator, on the reference's inputs."""
        outputs = self.reference[0]
        out = self.path("eval.npz")
        self.hlo_opt("eval", file, "--inputs", self.inputs_file, "-o", out)
        return hlo_oracle.load_npz_outputs(out, len(outputs), self.n_devices)

    def pass_arguments(self):
        extra = ["--replicated-params", f"like:{self.config['like']}"] if self.config["like"] else []
        return ["--pass", self.config["pipeline"], *extra]

    @cached_property
    def transformed(self):
        """Text after the pipeline; Skip with the pass's reason if it changed nothing."""
        out = self.path("transformed.hlo")
        arguments = [*self.pass_arguments(), "--require-change", "--report", "text", self.short_file, "-o", out]
        status, _, stderr = self.hlo_opt(*arguments, allow=(0, 3))
        if status == 3:
            raise Skip(f"unchanged by the pass: {first_line(stderr)}")
        with open(out) as f:
            return f.read()

    def judge(self, outputs):
        """The case's numbers; fails where the outputs are too far from the reference."""
        reference, tolerance = self.reference
        difference = compare.compare(reference, outputs)
        numbers = dict(worst=difference.worst, median=difference.median, tolerance=tolerance)
        if not difference.worst <= tolerance:
            note = difference.note or f"output {difference.worst_output} is off"
            raise Failure(f"worst {difference.worst:.1e} > {tolerance:.1e}: {note}")
        return numbers


def first_line(stderr):
    """What a message begins with."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[0][:300] if lines else "(no message)"


def text_auto(m):
    """The automatic form gives the file back, byte for byte, from its header line on."""
    with open(m.file) as f:
        want = hlo_text.without_comments(f.read()).encode()
    have = m.hlo_opt(m.file)[1]
    if have != want:
        at = next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))
        line = want[:at].count(b"\n") + 1
        raise Failure(f"differs from the file at line {line}, byte {at}")
    return {}


def text_form(form):
    """XLA's reading of our print in this form is its reading of the original; the short form has no metadata."""

    def check(m):
        printed = m.hlo_opt("--format", form, m.file)[1].decode()
        readings = [m.in_xla, hlo_oracle.parse(printed)]
        want, have = (hlo_text.spell_out_frames(hlo_oracle.whole_text(r, metadata=form == "long")) for r in readings)
        if have != want:
            pairs = zip(want.split("\n"), have.split("\n"))
            line = next((f"expected {a.strip()!r}, found {b.strip()!r}" for a, b in pairs if a != b), "one is longer")
            raise Failure(f"XLA reads our {form} form differently: {line[:400]}")
        return {}

    return check


def evaluate(m):
    """The evaluator and real XLA agree on the untouched module."""
    m.reference
    return m.judge(m.evaluator_outputs(m.short_file))


def pass_in_xla(m):
    """Real XLA runs the transformed module to the untouched module's results."""
    m.transformed
    m.reference
    return m.judge(m.xla_outputs(m.transformed))


def pass_in_evaluator(m):
    """So does the evaluator."""
    m.transformed
    m.reference
    return m.judge(m.evaluator_outputs(m.path("transformed.hlo")))


def pass_again(m):
    """A second run of the pipeline changes no byte."""
    first = m.transformed
    again = m.path("again.hlo")
    m.hlo_opt(*m.pass_arguments(), m.path("transformed.hlo"), "-o", again)
    with open(again) as f:
        if f.read() != first:
            raise Failure("a second run of the pass changes its own output")
    return {}


def mutant(mutator, transformed=lambda m: m.transformed, in_xla=lambda m, text: m.xla_outputs(text)):
    """The comparison sees this corruption of the transformed module."""

    def check(m):
        with open(m.short_file) as f:
            original = f.read()
        try:
            corrupted = mutator(transformed(m), original)
        except mutants.NotApplicable as e:
            raise Skip(str(e)) from None
        reference, tolerance = m.reference
        difference = compare.compare(reference, in_xla(m, corrupted))
        if difference.worst <= tolerance:
            raise Failure(f"not detected: worst {difference.worst:.1e} <= {tolerance:.1e}")
        return dict(worst=difference.worst, median=difference.median, tolerance=tolerance)

    return check


def cases(config):
    """{name: check} in the order of running."""
    listed, stages, runnable = {}, config["stages"], config["runnable"]
    if "text" in stages:
        listed.update({"text.auto": text_auto, "text.long": text_form("long"), "text.short": text_form("short")})
    if "eval" in stages and runnable:
        listed["eval"] = evaluate
    if "pass" in stages and runnable and config["pipeline"]:
        listed.update({"pass.xla": pass_in_xla, "pass.eval": pass_in_evaluator, "pass.again": pass_again})
        if config["mutants"]:
            for mutator in mutants.for_pipeline(config["pipeline"]):
                listed[f"mutant.{mutator.__name__}"] = mutant(mutator)
    return listed


def tell(**line):
    print(json.dumps(line), flush=True)


def run(module, todo):
    """Run the cases {name: check} that are not done yet; tell how each ends."""
    todo = {name: check for name, check in todo.items() if name not in module.config["skip"]}
    tell(plan=list(todo))
    for name, check in todo.items():
        tell(start=name)
        t = time.time()
        result = dict(case=name, status="passed", reason="", worst=None, median=None, tolerance=None)
        try:
            result.update(check(module))
        except Skip as e:
            result.update(status="skipped", reason=str(e))
        except Failure as e:
            result.update(status="failed", reason=str(e))
        except Exception as e:  # XLA's own errors come in several types: each is this case's failure
            result.update(status="failed", reason=f"{type(e).__name__}: {' '.join(str(e).split())[:500]}")
        if result["worst"] is not None and not result["worst"] < float("inf"):
            result.update(worst=1e308, median=None)
        tell(**result, seconds=round(time.time() - t, 2))


def prepare(config_file):
    """The configuration, after the folder for files and the module's number of CPU devices are there."""
    with open(config_file) as f:
        config = json.loads(f.read())
    with open(config["file"]) as f:
        replicas, partitions = hlo_text.header_counts(f.read())
    hlo_oracle.set_device_count(replicas * partitions)
    os.makedirs(config["work"], exist_ok=True)
    return config


if __name__ == "__main__":
    configuration = prepare(sys.argv[1])
    run(Module(configuration), cases(configuration))
