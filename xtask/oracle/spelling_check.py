"""What jaxlib makes of spellings of HLO, for `cargo xtask spelling-check`: spelling_check.py CASES OUT K N.

CASES is a JSON list of [text, our print of it or null]; every N-th from the K-th on is judged, one JSON object a line in OUT:
  reads     whether jaxlib reads the text, or why not
  compiles  whether it compiles what it read, or why not
  same      whether it reads our print as the same module: in its text; in all but names and what no proto has; or as a program of
            the same StableHLO; or as one of the same results. Otherwise the first difference.
"""
import json
import os
import re
import sys

import hlo_oracle
import hlo_text
import proto_check

hlo_oracle.set_device_count(8)
import jax  # no device is opened before a child does it
from jax._src.interpreters import mlir
from jaxlib import _jax
from jaxlib.mlir import ir


def plain(text):
    """The text of a module as its proto has it, with names by the order in which they come."""
    module = hlo_oracle.parse(text)
    module = type(module).from_serialized_hlo_module_proto(module.as_serialized_hlo_module_proto())
    text = proto_check.comparable(hlo_oracle.whole_text(module))
    text = re.sub(r"^((?:ENTRY )?%\S+) \(.*\) -> .* \{", r"\1 {", text, flags=re.M)
    names = {}
    return re.sub(r"%[\w.\-]+", lambda found: names.setdefault(found.group(), f"%{len(names)}"), text)


def program(text):
    module = hlo_oracle.parse(text)
    stablehlo = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    with mlir.make_ir_context():
        return re.sub(r"module @\S+", "module", str(ir.Module.parse(stablehlo)))


def results(text):
    """The bits of all outputs on all devices for inputs that are drawn."""
    module = hlo_oracle.parse(text)
    counts = hlo_text.header_counts(text)
    executable = hlo_oracle.compile_module(module, *counts)
    n_devices = counts[0] * counts[1]
    inputs = hlo_oracle.draw_inputs(hlo_oracle.entry_leaves(module), n_devices)
    return [[a.tobytes() for a in output] for output in hlo_oracle.execute(executable, inputs, n_devices)]


def first_line(error):
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "")[:300]


def reads(text):
    try:
        return True, hlo_oracle.whole_text(hlo_oracle.parse(text))
    except Exception as error:
        return first_line(error), None


def compiles(text):
    try:
        hlo_oracle.compile_module(hlo_oracle.parse(text), *hlo_text.header_counts(text))
        return True
    except Exception as error:
        return first_line(error)


def same(text, printed, ours):
    answer, of_ours = reads(ours)
    if of_ours is None:
        return f"jaxlib refuses our print: {answer}"
    if re.search(r"\{\s*\.\.\.", text):  # jaxlib makes the numbers up, other ones at each reading
        printed, of_ours = (re.sub(r"(constant\(|literal=\S+ )\{.*\}", r"\1{...}", t) for t in (printed, of_ours))
    if of_ours == printed:
        return "text"
    for what, view in (("names", plain), ("program", program)):
        try:
            if view(text) == view(ours):
                return what
        except Exception:
            continue  # no proto, or no StableHLO, has it
    try:
        if results(text) == results(ours):
            return "results"
    except Exception:
        pass  # it does not compile, or takes no inputs that can be drawn
    return proto_check.difference(printed, of_ours)


def judge(text, ours, out):
    def say(**what):
        out.write(json.dumps(what) + "\n")
        out.flush()

    answer, printed = reads(text)
    say(reads=answer)
    if printed is None:
        return
    if ours is not None:
        say(same=same(text, printed, ours))
    say(compiles=compiles(text))


def main():
    cases_file, out_file, first, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with open(cases_file) as file:
        cases = json.load(file)
    todo = list(range(first, len(cases), step))
    with open(out_file, "w") as out:
        while todo:
            # jaxlib ends the process on some texts: a child judges until it falls, the next one goes on behind.
            out.flush()
            receive, send = os.pipe()
            child = os.fork()
            if child == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                with os.fdopen(send, "w") as pipe:
                    for i in todo:
                        pipe.write(json.dumps(i) + "\n")
                        pipe.flush()
                        judge(*cases[i], pipe)
                os._exit(0)
            os.close(send)
            at, found = None, {}
            with os.fdopen(receive) as pipe:
                for line in pipe:
                    value = json.loads(line)
                    if isinstance(value, dict):
                        found.update(value)
                        continue
                    if at is not None:
                        out.write(json.dumps({"case": at, **found}) + "\n")
                    at, found = value, {}
            os.waitpid(child, 0)
            out.write(json.dumps({"case": at, **found}) + "\n")
            todo = todo[todo.index(at) + 1 :]


main()
