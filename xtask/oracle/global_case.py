#!/usr/bin/env python3
"""Check one global program: the evaluator, which runs it as a whole, gives what real XLA gives that partitions it.

global_case.py CONFIG.json: the configuration of check_case.py. Inputs are drawn once for the whole; XLA gets the tiles that its compiled program
takes, and the tiles that it gives are held against those of the evaluator's whole outputs. Case `global`, and the corruption `other_tile`, which
must be seen where an output is cut: tiles of another device. With `pipeline` XLA partitions what hlo-opt makes of the program."""
import math
import re
import sys
from functools import cached_property

import check_case
import compare
import hlo_oracle
import hlo_text
import numpy as np


def count_devices(text):
    """What the header says, or else the most that a mesh or an annotation names."""
    said = math.prod(hlo_text.header_counts(text))
    sizes = lambda found: math.prod(int(n) for n in re.findall(r"\d+", found))
    meshes = [sizes(re.sub(r'"[^"]*"', "", mesh)) for mesh in re.findall(r"#sdy\.mesh<\[([^\]]*)\]", text)]
    tilings = [sizes(dims) for dims in re.findall(r"devices=\[([\d,]*)\]", text)]
    return said if said > 1 else max(meshes + tilings, default=1)


def without_gspmd(stablehlo):
    """The program with Shardy's annotations alone: jaxlib leaves Shardy out where it sees GSPMD's beside them."""
    import io

    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        lines, same = [], {}
        for line in str(ir.Module.parse(stablehlo)).split("\n"):
            if "func.func" in line:
                same = {}  # names of values are those of one function
            line = re.sub(r"%\d+\b", lambda name: same.get(name[0], name[0]), line)
            annotation = re.match(r"\s*(%\d+) = stablehlo\.custom_call @Sharding\((%\w+)\)", line)
            if annotation:
                same[annotation[1]] = annotation[2]
                continue
            line = re.sub(r', mhlo\.sharding = "[^"]*"', "", line)
            lines.append(re.sub(r'mhlo\.sharding = "[^"]*"(, )?', "", line))
        edited = io.BytesIO()
        ir.Module.parse("\n".join(lines)).operation.write_bytecode(edited)
        return edited.getvalue()


def tiles(shape, sharding, n_devices):
    """For each device the slices of the whole that it holds; None if it holds the whole."""
    from jax._src.lib import xla_client

    if sharding is None:
        return None
    sharding = xla_client.HloSharding.from_proto(sharding)
    if sharding.is_replicated():
        return None
    counts = sharding.tile_assignment_dimensions()
    devices = np.array(sharding.tile_assignment_devices()).reshape(counts)
    held = [None] * n_devices
    for position in np.ndindex(*counts):
        sizes = [-(-n // count) for n, count in zip(shape, counts)]
        starts = [min(k * size, n) for k, size, n in zip(position, sizes, shape)]
        held[devices[position]] = tuple(slice(at, min(at + size, n)) for at, size, n in zip(starts, sizes, shape))
    return held


class Global(check_case.Module):
    """A global program on all its devices."""

    def __init__(self, config):
        super().__init__(config)
        self.n_devices = count_devices(self.text)
        with open(self.short_file) as f:
            self.short_text = f.read()
        self.for_xla = self.short_text
        if config.get("pipeline"):
            out = self.path("annotated.hlo")
            self.hlo_opt("--pass", config["pipeline"], self.short_file, "-o", out)
            with open(out) as f:
                self.for_xla = f.read()

    @cached_property
    def compiled(self):
        is_shardy = "xla.sdy." in self.for_xla.replace("xla.sdy.meshes", "")
        module = hlo_oracle.parse(hlo_text.expand_mesh_groups(self.for_xla))
        edit = without_gspmd if is_shardy else None
        return hlo_oracle.compile_module(module, 1, self.n_devices, partition=True, shardy=is_shardy, edit=edit)

    def cut(self, wholes, shardings):
        """[value][device] tiles of [value] wholes, without padding."""
        cut = []
        for i, whole in enumerate(wholes):
            held = tiles(whole.shape, shardings[i] if shardings else None, self.n_devices)
            cut.append([whole if held is None else whole[held[d]] for d in range(self.n_devices)])
        return cut

    def xla_outputs(self, wholes):
        """[output][device] arrays of the whole inputs, without padding."""
        import jax

        devices = jax.devices()[: self.n_devices]
        arguments = []
        for i, (whole, per_device) in enumerate(zip(wholes, self.cut(wholes, self.compiled.get_parameter_shardings()))):
            if len({tile.shape for tile in per_device}) > 1:
                raise check_case.Skip(f"input {i}: jax makes no array of uneven tiles")
            mesh = jax.sharding.Mesh(np.array(devices), ("all",))
            # The tiles are what XLA takes; how they make a whole, its program says.
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            placed = [jax.device_put(tile, device) for tile, device in zip(per_device, devices)]
            arguments.append(jax.make_array_from_single_device_arrays(per_device[0].shape, sharding, placed))
        outputs = self.compiled.execute_sharded(arguments).disassemble_into_single_device_arrays()
        outputs = [[np.asarray(a) for a in row] for row in outputs]
        whole_shapes = [tuple(leaf.dimensions()) for leaf in hlo_oracle.result_leaves(hlo_oracle.parse(self.short_text))]
        shardings = self.compiled.get_output_shardings()
        for i, shape in enumerate(whole_shapes):
            held = tiles(shape, shardings[i] if shardings else None, self.n_devices)
            if held is not None:
                sizes = [[s.stop - s.start for s in held[d]] for d in range(self.n_devices)]
                outputs[i] = [a[tuple(slice(0, n) for n in sizes[d])] for d, a in enumerate(outputs[i])]
        return outputs

    @cached_property
    def reference(self):
        """(outputs, tolerance) of real XLA; the whole inputs lie in `inputs_file`."""
        shapes = hlo_oracle.entry_leaves(hlo_oracle.parse(self.short_text))
        words = self.config["draw"].split()
        best = None
        for seed in self.config["seeds"]:
            drawn = [
                hlo_oracle.draw_inputs(shapes, 1, seed, {}, words, perturb) for perturb in (0.0, compare.PERTURB)
            ]
            outputs, moved = (self.xla_outputs([row[0] for row in one]) for one in drawn)
            tolerance = compare.tolerance(outputs, moved)
            if best is None or tolerance < best[1]:
                best = (outputs, tolerance)
                hlo_oracle.save_npz(self.inputs_file, "in", drawn[0])
            if tolerance <= compare.MARGIN * check_case.STEADY:
                break
        why = compare.check_reference(best[0])
        if why:
            raise check_case.Failure(f"the reference: {why}")
        if best[1] > check_case.WIDEST:
            raise check_case.Failure(f"the tolerance would be {best[1]:.1e}: it would prove nothing")
        return best

    @cached_property
    def evaluated(self):
        """[output] wholes of the evaluator."""
        n_outputs = len(self.reference[0])
        out = self.path("eval.npz")
        self.hlo_opt("eval", self.short_file, "--inputs", self.inputs_file, "-o", out)
        return [row[0] for row in hlo_oracle.load_npz_outputs(out, n_outputs, 1)]


def evaluate(m):
    """The tiles that XLA gives are those of the evaluator's outputs."""
    m.reference
    return m.judge(m.cut(m.evaluated, m.compiled.get_output_shardings()))


def other_tile(m):
    """Tiles of the next device are not."""
    reference, tolerance = m.reference
    cut = m.cut(m.evaluated, m.compiled.get_output_shardings())
    turned = [row[1:] + row[:1] for row in cut]
    if all(a is b for row, other in zip(cut, turned) for a, b in zip(row, other)):
        raise check_case.Skip("no output is cut")
    difference = compare.compare(reference, turned)
    if difference.worst <= tolerance:
        raise check_case.Failure(f"not detected: worst {difference.worst:.1e} <= {tolerance:.1e}")
    return dict(worst=difference.worst, median=difference.median, tolerance=tolerance)


if __name__ == "__main__":
    configuration = check_case.prepare(sys.argv[1])
    with open(configuration["file"]) as f:  # said a second time, the number holds
        hlo_oracle.set_device_count(count_devices(f.read()))
    check_case.run(Global(configuration), {"global": evaluate, "other_tile": other_tile})
