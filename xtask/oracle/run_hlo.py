#!/usr/bin/env python3
"""Run an HLO text module on N CPU devices with real XLA (jaxlib) and store every device's outputs.

--draw   one word per flat ENTRY parameter: nS normal of scale S, pS |normal|*S (second moments must be positive), intK
         integers below K, or a number. Draw second moments of the order of the squared gradient: larger ones hide errors.
--same   auto: devices that hold the same tile by the ENTRY parameters' sharding= get the same values (the shardings are
         taken from --like G.hlo if given); all: every parameter is the same everywhere; none; or a list 0,1,5.
Keys of the npz: in{i}_d{device} (with --save-inputs) and out{i}_d{device}; bf16 is stored as f32."""
import argparse
import json
import time

import numpy as np

import hlo_oracle
import hlo_text


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file")
    p.add_argument("-o", "--out", help="npz of the outputs")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--draw", default="")
    p.add_argument("--same", default="all")
    p.add_argument("--like", help="take the shardings for --same auto from this module (same parameters)")
    p.add_argument("--perturb", type=float, default=0.0, help="multiply every float input by 1 +/- this")
    p.add_argument("--short-loops", action="store_true", help="cut training loops to a few trips")
    p.add_argument("--flatten", action="store_true", help="rewrite partitions to replicas first")
    p.add_argument("--inputs", help="npz with the inputs, instead of drawing them")
    p.add_argument("--save-inputs", action="store_true")
    p.add_argument("--partition", action="store_true", help="let XLA partition the module first (global shapes)")
    p.add_argument("--shardy", action="store_true", help="with --partition: by Shardy")
    p.add_argument("--dump", help="write XLA's optimized module here")
    p.add_argument("--repeat", type=int, default=0, help="run this many times more and print the best and median time")
    return p.parse_args()


def main():
    a = arguments()
    with open(a.file) as f:
        text = hlo_text.without_comments(f.read())
    n_replicas, n_partitions = hlo_text.header_counts(text)
    n_devices = n_replicas * n_partitions
    hlo_oracle.set_device_count(n_devices)
    if a.short_loops:
        text = hlo_text.shorten_loops(text)
    groups = {}
    if a.same == "auto":
        like = text
        if a.like:
            with open(a.like) as f:
                like = f.read()
        groups = hlo_text.replication_groups(like, n_devices)
    if a.flatten:
        text = hlo_text.flatten_to_replicas(text)
        n_replicas, n_partitions = n_partitions, 1
    t0 = time.time()
    module = hlo_oracle.parse(hlo_text.expand_mesh_groups(text))
    t1 = time.time()
    executable = hlo_oracle.compile_module(module, n_replicas, n_partitions, a.partition, a.shardy)
    t2 = time.time()
    optimized = executable.hlo_modules()[0]
    if a.dump:
        with open(a.dump, "w") as f:
            f.write(optimized.to_string())
    shapes = hlo_oracle.entry_leaves(optimized)
    if a.same not in ("auto", "none"):
        same = range(len(shapes)) if a.same == "all" else map(int, a.same.split(","))
        groups = {i: [0] * n_devices for i in same}
    if a.inputs:
        inputs = hlo_oracle.load_npz_inputs(a.inputs, shapes, n_devices)
    else:
        inputs = hlo_oracle.draw_inputs(shapes, n_devices, a.seed, groups, a.draw.split(), a.perturb)
    t3 = time.time()
    outputs = hlo_oracle.execute(executable, inputs, n_devices)
    t4 = time.time()
    info = dict(file=a.file, replicas=n_replicas, partitions=n_partitions, params=len(shapes), outputs=len(outputs))
    info.update(parse_s=round(t1 - t0, 3), compile_s=round(t2 - t1, 3), exec_s=round(t4 - t3, 3))
    if a.repeat:
        times = []
        for _ in range(a.repeat):
            t = time.perf_counter()
            hlo_oracle.execute(executable, inputs, n_devices)
            times.append(time.perf_counter() - t)
        info.update(best_ms=round(min(times) * 1e3, 3), median_ms=round(float(np.median(times)) * 1e3, 3))
    if a.out:
        stored = {f"out{i}_d{d}": hlo_oracle.storable(x) for i, row in enumerate(outputs) for d, x in enumerate(row)}
        if a.save_inputs:
            stored.update({f"in{i}_d{d}": hlo_oracle.storable(x) for i, row in enumerate(inputs) for d, x in enumerate(row)})
        np.savez(a.out, **stored)
    floats = [[hlo_oracle.storable(x) for x in row] for row in outputs]
    info["nan_outputs"] = [i for i, row in enumerate(floats) if row[0].dtype.kind == "f" and any(np.isnan(x).any() for x in row)]
    info["identical_outputs"] = [i for i, row in enumerate(outputs) if all(x.tobytes() == row[0].tobytes() for x in row)]
    print(json.dumps(info))


if __name__ == "__main__":
    main()
