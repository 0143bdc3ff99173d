#!/usr/bin/env python3
"""Time two modules that do the same job, turn by turn, on CPU devices with real XLA.

time_pair.py CONFIG.json, where CONFIG holds: theirs, ours (HLO files), draw (a word for each flat ENTRY parameter), reps,
steps (training steps that one run of the module takes).
Both go the same way into XLA, with the same donation: a donated parameter's buffer becomes the output of its number. A
run's outputs are the next run's first parameters, as in training. Only the execution is timed, until every device is done. Within a pair the order alternates.
Prints a JSON object: ms per step of every run of each, the ratios ours/theirs of the pairs in wall-clock
time and in CPU time (which a busy machine blurs less), how many inputs each module
took over, and the largest difference of the first runs' outputs, relative to an output's largest element (null where the
two have their state in other shapes)."""
import gc
import json
import sys
import time

import compare
import hlo_oracle
import hlo_text


class Trainer:
    """A compiled module and the state that it works on."""

    def __init__(self, file, draw):
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        with open(file) as f:
            text = f.read()
        counts = hlo_text.header_counts(text)
        self.n_devices = counts[0] * counts[1]
        n_outputs = len(hlo_oracle.result_leaves(hlo_oracle.parse(text)))
        text = hlo_text.donors_as_aliases(hlo_text.expand_mesh_groups(text), n_outputs)
        module = hlo_oracle.parse(text)
        self.executable = hlo_oracle.compile_module(module, *counts)
        shapes = hlo_oracle.entry_leaves(self.executable.hlo_modules()[0])
        groups = hlo_text.replication_groups(text, self.n_devices)
        drawn = hlo_oracle.draw_inputs(shapes, self.n_devices, 1, groups, draw)
        devices = jax.devices()[: self.n_devices]
        sharding = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
        self.assemble = lambda row: jax.make_array_from_single_device_arrays(row[0].shape, sharding, row)
        self.arguments = [
            self.assemble([jax.device_put(a, d) for a, d in zip(row, devices, strict=True)]) for row in drawn
        ]

    def run(self):
        """Seconds of one run, and CPU seconds of all its threads."""
        start, cpu_start = time.perf_counter(), time.process_time()
        rows = self.executable.execute_sharded(self.arguments).disassemble_into_single_device_arrays()
        for row in rows:
            for array in row:
                array.block_until_ready()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        self.n_taken_over = sum(a.is_deleted() for a in self.arguments)
        self.arguments[: len(rows)] = [self.assemble(row) for row in rows]
        self.n_outputs = len(rows)
        return seconds, cpu_seconds

    def state(self):
        import numpy as np

        return [[np.asarray(s.data) for s in a.addressable_shards] for a in self.arguments[: self.n_outputs]]


def main():
    with open(sys.argv[1]) as f:
        config = json.load(f)
    with open(config["theirs"]) as f:
        replicas, partitions = hlo_text.header_counts(f.read())
    hlo_oracle.set_device_count(replicas * partitions)
    theirs, ours = (Trainer(config[side], config["draw"].split()) for side in ("theirs", "ours"))
    for side in (theirs, ours):
        side.run()
    a, b = theirs.state(), ours.state()
    is_alike = [x[0].shape for x in a] == [x[0].shape for x in b]
    difference = compare.compare(a, b).worst if is_alike else None
    del a, b
    times = {"theirs": [], "ours": []}
    for rep in range(config["reps"]):
        pair = [("theirs", theirs), ("ours", ours)]
        for name, side in pair if rep % 2 == 0 else reversed(pair):
            gc.collect()
            times[name].append([seconds * 1e3 / config["steps"] for seconds in side.run()])
    pairs = list(zip(times["ours"], times["theirs"], strict=True))
    ratios, cpu_ratios = ([o[k] / t[k] for o, t in pairs] for k in (0, 1))
    times = {name: [wall for wall, _ in runs] for name, runs in times.items()}
    taken_over = [theirs.n_taken_over, ours.n_taken_over]
    print(json.dumps(dict(times, ratios=ratios, cpu_ratios=cpu_ratios, difference=difference, taken_over=taken_over)))


if __name__ == "__main__":
    main()
