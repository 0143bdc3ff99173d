#!/usr/bin/env python3
"""Run per-device programs in real XLA and hold their outputs against those of the global programs in the evaluator.

partition_case.py CONFIG.json, where CONFIG holds: skip (names that are done), and cases, each with name, n_devices, file (the per-device
program, which `local` is too), annotated (the same program for XLA's partitioner, or null: the file is either), unsharded (that one without
its shardings, for one device), memory (a file for the memory that it takes,
or null), inputs (npz of its tiles), expected and moved (npz of the evaluator's tiles without padding, the second of inputs that are
moved by half an ulp), floor (the least tolerance), whole (the global program for one device, or null) and wholes (npz of its inputs),
cuts ([output][device]: starts in the whole); with is_global_alone the global program alone is run.

Where XLA's outputs are others than the evaluator's, XLA runs the global program too: if it gives what the per-device program gives, they
differ by what XLA and the evaluator make of an op, not by how it is cut. Where the annotated program without its shardings gives what the
evaluator gives, XLA's partitioner is at fault: shardings change no results. Prints what check_case.py prints."""
import json
import re
import sys

import check_case
import compare
import hlo_oracle
import hlo_text
import memory_stats

DEVICES = 12


def first_words(error):
    """An error without what is this program's own."""
    text = " ".join(str(error).split())[:200]
    return re.sub(r"%?[\w\-]*\.\d+[\w.\-]*|\d+", "_", text)


def for_partitioner(text):
    """An annotated program as jaxlib takes it: the way over StableHLO loses the results of a conditional that has a sharding, which its
    branches' results have too."""
    tuples = r", sharding=\{(\{[^{}]*\}(, (/\*index=\d+\*/)?)?)+\}"
    lines = text.split("\n")
    return "\n".join(re.sub(tuples, "", line) if " conditional(" in line else line for line in lines)


def compiled(file, n_devices, partition=False, memory=None):
    """The program and its parameters' shapes; with `memory` (a function of its size in bytes) state is donated as the header says."""
    with open(file) as f:
        text = for_partitioner(f.read()) if partition else f.read()
    module = hlo_oracle.parse(hlo_text.expand_mesh_groups(text))
    edit = None
    if memory:
        donors, aliases = memory_stats.donations(text)
        edit = lambda stablehlo: memory_stats.with_donations(stablehlo, donors, aliases)
    program = hlo_oracle.compile_module(module, 1, n_devices, partition=partition, edit=edit)
    if memory:
        found = program.get_compiled_memory_stats()
        sizes = {name: getattr(found, f"{name}_size_in_bytes") for name in ["argument", "output", "temp", "alias"]}
        memory(sizes["argument"] + sizes["output"] + sizes["temp"] - sizes["alias"])
    return program, hlo_oracle.entry_leaves(module)


def compiled_of(case, memory=None):
    """The case's program, and the shapes of the tiles that it takes: those of the per-device program."""
    if not is_by_xla(case):
        return compiled(case["file"], case["n_devices"], memory=memory)
    with open(case["local"]) as f:
        shapes = hlo_oracle.entry_leaves(hlo_oracle.parse(hlo_text.expand_mesh_groups(f.read())))
    return compiled(case["file"], case["n_devices"], True, memory)[0], shapes


def note_memory(case):
    """What notes the memory of a case, or None."""
    if not case.get("memory"):
        return None

    def note(size):
        with open(case["memory"], "a") as f:
            f.write(f"{case['name']}\t{size}\n")

    return note


def tiles(wholes, case, expected):
    """[output][device] tiles of whole outputs, as the expected ones are cut."""
    wholes = [hlo_oracle.storable(whole) for whole in wholes]
    return [
        [whole[tuple(slice(at, at + n) for at, n in zip(start, e.shape))] for start, e in zip(starts, row)]
        for whole, starts, row in zip(wholes, case["cuts"], expected)
    ]


def whole_outputs(case, which="whole"):
    """[output] of the global program on one device, or of the annotated one (`unsharded`)."""
    program, shapes = compiled(case[which], 1)
    return [row[0] for row in hlo_oracle.execute(program, inputs_of(case["wholes"], shapes, 1), 1)]


def inputs_of(file, shapes, n_devices):
    """[parameter][device] arrays; an archive without any is no npz."""
    return hlo_oracle.load_npz_inputs(file, shapes, n_devices) if shapes else []


def unfolded(case):
    """[output][device] without XLA's folding, which may give another sign of zero than its code."""
    kept = hlo_oracle.NO_PARTITIONER
    hlo_oracle.NO_PARTITIONER = kept + ",constant_folding,algsimp"
    try:
        n_devices = case["n_devices"]
        program, shapes = compiled_of(case)
        found = hlo_oracle.execute(program, inputs_of(case["inputs"], shapes, n_devices), n_devices)
    finally:
        hlo_oracle.NO_PARTITIONER = kept
    return [[hlo_oracle.storable(held(a, e)) for a, e in zip(*both)] for both in zip(found, rows(case["expected"], n_devices))]


def held(array, expected):
    """What a tile holds, without the padding behind it."""
    if any(n < m for n, m in zip(array.shape, expected.shape)) or array.ndim != expected.ndim:
        raise check_case.Failure(f"expected a tile that holds {expected.shape}, found {array.shape}")
    return array[tuple(slice(0, n) for n in expected.shape)]


def is_by_xla(case):
    """Whether XLA partitions the program."""
    return case["file"] == case.get("annotated")


def near(expected, found, tolerance):
    return compare.compare(expected, found).worst <= tolerance


def run_case(case):
    n_devices = case["n_devices"]
    if case.get("is_global_alone"):
        whole_outputs(case)
        return {}
    expected = rows(case["expected"], n_devices)
    tolerance = max(case["floor"], widest(compare.tolerance, expected, rows(case["moved"], n_devices)))
    try:
        program, shapes = compiled_of(case, note_memory(case))
        found = hlo_oracle.execute(program, inputs_of(case["inputs"], shapes, n_devices), n_devices)
    except Exception as error:
        if case["whole"]:
            try:
                whole_outputs(case)
            except Exception as other:
                raise check_case.Skip(f"XLA does not run the global program either: {first_words(other)}") from None
        broken_by = re.search(r"Failed after (?!pipeline-start)([\w-]+)", str(error))
        if broken_by:
            # The verifier took the program as it came: one of XLA's passes made something of it that the verifier does not take.
            raise check_case.Skip(f"XLA's pass {broken_by[1]} makes a program of it that XLA's verifier refuses") from None
        raise check_case.Failure(f"XLA: {first_words(error)}") from None
    found = [[hlo_oracle.storable(held(a, e)) for a, e in zip(*both)] for both in zip(found, expected)]
    difference = compare.compare(expected, found)
    if difference.worst <= tolerance:
        return dict(worst=difference.worst, median=difference.median, tolerance=tolerance)
    told = difference.note or f"output {difference.worst_output} is off by {difference.worst:.1e} > {tolerance:.1e}"
    if not case["whole"]:
        raise check_case.Failure(told)
    if near(tiles(whole_outputs(case), case, expected), found, tolerance):
        return dict(reason="as XLA's own global program, not as the evaluator's")
    if near(expected, unfolded(case), tolerance):
        return dict(reason="as the evaluator's where XLA folds no constants")
    if is_by_xla(case) and near(expected, tiles(whole_outputs(case, "unsharded"), case, expected), tolerance):
        return dict(reason="XLA's partitioner makes something else of it than XLA gives without its shardings")
    raise check_case.Failure(told + "; XLA's own global program gives something else")


def widest(tolerance, expected, moved):
    """Moved inputs that move NaN or infinities say nothing of rounding."""
    try:
        return min(tolerance(expected, moved), check_case.WIDEST)
    except ValueError:
        return compare.FLOOR


def rows(file, n_devices):
    import numpy as np

    with np.load(file) as z:
        n_outputs = sum(key.endswith("_d0") for key in z.files)
        return [[z[f"out{i}_d{d}"] for d in range(n_devices)] for i in range(n_outputs)]


class Cases:
    """What check_case.run asks for."""

    def __init__(self, config):
        self.config = config


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        config = json.load(f)
    hlo_oracle.set_device_count(DEVICES)
    todo = {case["name"]: (lambda _, case=case: run_case(case)) for case in config["cases"]}
    check_case.run(Cases(config), todo)
