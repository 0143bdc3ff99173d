#!/usr/bin/env python3
"""Check one module under one combination of the weight-update sharding's options, judged by real XLA.

matrix_case.py CONFIG.json: the configuration of check_case.py, and reference (folder and key of the untouched module's
results), combination: null for the untouched module itself, whose results are kept for the combinations; or
  state       replicated: the transformed module has the original's parameters and outputs.
              Else the pass writes shard.hlo, main.hlo and unshard.hlo, and unshard(main(shard(in))) is compared.
  combine     none, variadic or packed. Reduce-scatters of several operands do not survive the way into XLA: XLA parses
              the variadic result as it is, and runs it after each such collective has been split.
  pipeline    as --pass takes it; again: the same without what undoes its own result, for a second run.
  mutants     names of corruptions that must be seen.
With digest_only the script judges nothing: it tells a digest of the texts that the tool emits, {"emitted": digits}."""
import hashlib
import json
import os
import shutil
import sys
from functools import cached_property

import numpy as np

import check_case
import hlo_oracle
import hlo_text
import mutants
import variadic
from check_case import Failure, Skip

PASS = "shard-weight-update"


class Case(check_case.Module):
    """A module whose untouched results come from a folder, and what one combination makes of it."""

    def __init__(self, config):
        super().__init__(config)
        self.folder = config["reference"]["folder"]
        self.inputs_file = os.path.join(self.folder, "in.npz")
        self.combination = config["combination"] or {}
        self.has_shards = self.combination.get("state", "replicated") != "replicated"

    def in_folder(self, name):
        return os.path.join(self.folder, name)

    @cached_property
    def reference(self):
        """(outputs, tolerance) of the untouched module on real XLA, computed once."""
        try:
            with open(self.in_folder("reference.json")) as f:
                kept = json.load(f)
        except (OSError, ValueError):
            kept = {}
        if kept.get("key") == self.config["reference"]["key"]:
            with open(self.short_file) as f:
                self.shapes = hlo_oracle.entry_leaves(hlo_oracle.parse(hlo_text.expand_mesh_groups(f.read())))
            outputs = hlo_oracle.load_npz_outputs(self.in_folder("out.npz"), kept["n_outputs"], self.n_devices)
            return outputs, kept["tolerance"]
        if self.combination:
            raise Failure("the untouched module has no results to compare with")
        outputs, tolerance = super().reference
        hlo_oracle.save_npz(self.in_folder("out.npz"), "out", outputs)
        kept = dict(key=self.config["reference"]["key"], n_outputs=len(outputs), tolerance=tolerance)
        with open(self.in_folder("reference.json.part"), "w") as f:
            json.dump(kept, f)
        os.replace(f.name, self.in_folder("reference.json"))
        return outputs, tolerance

    def run_pass(self, file, out, pipeline=None):
        """Runs the combination's pipeline, or another one; the sharding pass's report. `out` is a file, or a folder if sharded.

        Where the tool cannot tell which output is which state's next value, it is told: the outputs mirror the
        parameters in all programs here."""
        report_file = self.path("report.json")
        end = ["--report-file", report_file, file, "-o", out]
        arguments = [pipeline if pipeline and a == self.config["pipeline"] else a for a in self.pass_arguments()]
        status, _, stderr = self.hlo_opt(*arguments, *end, allow=(0, 1))
        if status == 1 and "state-pairs" in stderr:
            state = f"state={self.combination['state']}"
            said = f'{state},state-pairs="{self.mirror(file)}"'
            self.hlo_opt(*[a.replace(state, said) for a in arguments], *end)
        elif status == 1:
            raise Failure(f"the pass fails: {check_case.first_line(stderr)}")
        with open(report_file) as f:
            passes = json.load(f)["modules"][0]["reports"]
        return next(p for p in passes if p["pass"] == PASS)

    def mirror(self, file):
        """i=i for every output that has parameter i's shape."""
        with open(file) as f:
            module = hlo_oracle.parse(hlo_text.expand_mesh_groups(f.read()))
        pairs = zip(hlo_oracle.entry_leaves(module), hlo_oracle.result_leaves(module))
        return ",".join(f"{i}={i}" for i, (p, o) in enumerate(pairs) if p == o)

    @cached_property
    def transformed(self):
        """Text after the pipeline (`main.hlo` if state lies in shards); Skip with the pass's reason if it did nothing."""
        out = self.path("parts" if self.has_shards else "transformed.hlo")
        if self.has_shards:
            shutil.rmtree(out, ignore_errors=True)
        report = self.run_pass(self.short_file, out)
        if not report["changed"]:
            raise Skip(f"unchanged by the pass: {report.get('unchanged_because') or 'it gives no reason'}")
        with open(self.part("main") if self.has_shards else out) as f:
            return f.read()

    def part(self, name):
        return os.path.join(self.path("parts"), f"{name}.hlo")

    def run_in_xla(self, main):
        """[output][device] with this text of the transformed module, between shard and unshard if there are such."""
        if not self.has_shards:
            return self.xla_outputs(main)
        values = hlo_oracle.load_npz_inputs(self.inputs_file, self.shapes, self.n_devices)
        for name in ("shard", "main", "unshard"):
            text = main
            if name != "main":
                with open(self.part(name)) as f:
                    text = f.read()
            values = hlo_oracle.execute(self.executable(text), values, self.n_devices)
        return values

    def run_in_evaluator(self):
        """The same in hlo-opt's evaluator."""
        self.transformed
        if not self.has_shards:
            return self.evaluator_outputs(self.path("transformed.hlo"))
        inputs = self.inputs_file
        for name in ("shard", "main", "unshard"):
            out = self.path(f"eval.{name}.npz")
            self.hlo_opt("eval", self.part(name), "--inputs", inputs, "-o", out)
            inputs = self.path("eval.in.npz")
            with np.load(out) as z:
                np.savez(inputs, **{"in" + key[len("out"):]: z[key] for key in z.files if key.startswith("out")})
        return hlo_oracle.load_npz_outputs(out, len(self.reference[0]), self.n_devices)

    @cached_property
    def for_xla(self):
        """The transformed text as it can enter XLA."""
        if self.combination["combine"] != "variadic":
            return self.transformed
        return variadic.split(self.transformed)[0]


def evaluator(m):
    """The evaluator runs the transformed module to the untouched module's results."""
    return m.judge(m.run_in_evaluator())


def in_xla(m):
    """So does real XLA."""
    m.transformed
    m.reference
    return m.judge(m.run_in_xla(m.for_xla))


def parse(m):
    """XLA's parser takes the collectives of several operands as they are."""
    if not variadic.split(m.transformed)[1]:
        raise Skip("no all-reduce or reduce-scatter of several operands came about")
    hlo_oracle.parse(m.transformed)
    return {}


def second_run(m):
    """What the tool makes of its own output."""
    m.transformed
    out = m.path("again" if m.has_shards else "again.hlo")
    if m.has_shards:
        shutil.rmtree(out, ignore_errors=True)
    before = m.part("main") if m.has_shards else m.path("transformed.hlo")
    m.run_pass(before, out, m.combination["again"])
    with open(os.path.join(out, "main.hlo") if m.has_shards else out) as f:
        return f.read()


def again(m):
    """A second run changes no byte."""
    first, second = m.transformed, second_run(m)
    if second != first:
        lines = zip(first.split("\n"), second.split("\n"))
        line = next((f"{a.strip()!r} became {b.strip()!r}" for a, b in lines if a != b), "one text is longer")
        raise Failure(f"a second run changes its own output: {line[:300]}")
    return {}


def mutant(mutator):
    """The comparison sees this corruption of what XLA is given."""
    return check_case.mutant(mutator, lambda m: m.for_xla, lambda m, text: m.run_in_xla(text))


def cases(config):
    """{name: check} in the order of running."""
    combination = config["combination"]
    if not combination:
        return {"original.eval": check_case.evaluate}
    listed = {"pass.eval": evaluator}
    if combination["combine"] == "variadic":
        listed["pass.parse"] = parse
    listed.update({"pass.xla": in_xla, "pass.again": again})
    for name in combination["mutants"]:
        listed[f"mutant.{name}"] = mutant(getattr(mutants, name))
    return listed


def digest(m):
    """A digest of everything that the tool emits for this combination; None where it cannot do its work."""
    try:
        texts = [m.transformed, second_run(m)]
    except Skip as e:
        texts = ["unchanged", str(e)]
    except Failure:
        return None
    if m.has_shards and texts[0] != "unchanged":
        for name in ("shard.hlo", "unshard.hlo", "manifest.json"):
            with open(os.path.join(m.path("parts"), name)) as f:
                texts.append(f.read())
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


if __name__ == "__main__":
    configuration = check_case.prepare(sys.argv[1])
    if configuration.get("digest_only"):
        check_case.tell(emitted=digest(Case(configuration)))
    else:
        check_case.run(Case(configuration), cases(configuration))
