"""Redistribution plans beside XLA's partitioner and Shardy's reshards, and run by XLA.

usage: reshard_check.py FOLDER PAIRS: pairs.json lists meshes of prime axes, dims, and pairs of shardings as axes of each dim, of which
the first PAIRS of each mesh are taken. Sums bytes received per device (a ring's) in our plans, in what XLA's partitioner makes of a
jitted identity, and in what Shardy's pass makes of a reshard; runs the plans' modules in XLA. Exit code 1 if a plan is above one of
the others, or gives other tiles than the target's."""
import json
import math
import re
import sys
from pathlib import Path

import hlo_oracle

WIDTH = {"f32": 4, "u32": 4, "s32": 4, "pred": 1}
OPS = {"all-gather", "all-to-all", "collective-permute", "all-reduce", "reduce-scatter"}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z\-]+)\(")


def received(op, tile, n):
    """Bytes that a device receives; `tile` bytes go in on each."""
    return {
        "all-gather": tile * (n - 1),
        "all-to-all": tile * (n - 1) // n,
        "reduce-scatter": tile * (n - 1) // n,
        "all-reduce": 2 * tile * (n - 1) // n,
        "collective-permute": tile,
    }[op]


def shape_bytes(text):
    return sum(
        WIDTH[dtype] * math.prod(int(d) for d in dims.split(",") if d)
        for dtype, dims in re.findall(r"([a-z]\w*)\[([\d,]*)\]", text)
    )


def group_size(line):
    lists = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if lists:
        return len(lists.group(1).split(","))
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", line)
    if iota:
        return int(iota.group(2))
    mesh, used = re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{('[^}]*)\}", line).groups()
    sizes = dict(re.findall(r"('\w+')=(\d+)", mesh))
    axes = re.findall(r"('\w+')(?::\(\d+\)(\d+))?", used)
    return math.prod(int(size or sizes[axis]) for axis, size in axes)


def hlo_bytes(text):
    total = 0
    for line in text.splitlines():
        found = INSTRUCTION.match(line)
        op = found and found.group(2).removesuffix("-start")
        if op not in OPS:
            continue
        out = shape_bytes(found.group(1))
        n = 1 if op == "collective-permute" else group_size(line)
        tile = {"all-gather": out // n, "reduce-scatter": out * n}.get(op, out)
        total += received(op, tile, n)
    return total


def spec(dims):
    from jax.sharding import PartitionSpec

    return PartitionSpec(*[tuple(axes) if axes else None for axes in dims])


def partitioner_bytes(mesh, dims, pair):
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    shardings = [NamedSharding(mesh, spec(end)) for end in (pair["from"], pair["to"])]
    identity = jax.jit(lambda x: x + 0, in_shardings=shardings[0], out_shardings=shardings[1])
    with_shape = jax.ShapeDtypeStruct(tuple(dims), jnp.float32)
    return hlo_bytes(identity.lower(with_shape).compile().as_text())


def shardy_bytes(axes, dims, pair):
    """Bytes of the collectives that Shardy makes of a reshard; None if its pass refuses."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir, passmanager

    def sharding(end):
        return "[" + ", ".join("{" + ", ".join(f'"{a}"' for a in dim) + "}" for dim in end) + "]"

    mesh = ", ".join(f'"{name}"={size}' for name, size in axes)
    tensor = "tensor<" + "x".join(map(str, dims)) + "xf32>"
    text = f"""module {{ sdy.mesh @mesh = <[{mesh}]>
      func.func @main(%arg0: {tensor} {{sdy.sharding = #sdy.sharding<@mesh, {sharding(pair["from"])}>}}) -> {tensor} {{
        %0 = sdy.reshard %arg0 <@mesh, {sharding(pair["to"])}> : {tensor}
        return %0 : {tensor} }} }}"""
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        try:
            module = ir.Module.parse(text)
            passmanager.PassManager.parse("builtin.module(func.func(sdy-reshard-to-collectives))").run(module.operation)
        except Exception:  # noqa: BLE001 - any refusal counts as one
            return None
        return collective_bytes(str(module), dict(axes), dims, pair["from"])


def axis_size(axis, sizes):
    sub = re.match(r'"(\w+)":\(\d+\)(\d+)', axis)
    return int(sub.group(2)) if sub else sizes[axis.strip('"')]


def collective_bytes(text, sizes, dims, start):
    whole = 4 * math.prod(dims)
    tile = whole // math.prod([sizes[a] for dim in start for a in dim] or [1])
    total = 0
    for line in text.splitlines():
        op = re.search(r"sdy\.(all_gather|all_slice|all_to_all|collective_permute|reshard)", line)
        if not op:
            continue
        out = re.search(r"out_sharding=<@mesh, \[(.*?)\]>", line)
        listed = line[: line.index("out_sharding")] if out else line
        axes = [axis_size(a, sizes) for a in re.findall(r'"\w+"(?::\(\d+\)\d+)?', listed)]
        n = math.prod(axes or [1])
        if op.group(1) == "reshard":
            return None
        if op.group(1) == "all_gather":
            total += tile * (n - 1)
            tile *= n
        elif op.group(1) == "all_slice":
            tile //= n
        elif op.group(1) == "all_to_all":
            total += tile * (n - 1) // n
        else:
            total += tile
    return total


def runs(module_text, mesh_devices, dims, pair, axes):
    """Whether the plan's module gives the target tiles of an iota."""
    import numpy as np

    n_devices = mesh_devices
    sizes = dict(axes)
    names = [name for name, _ in axes]
    array = np.arange(math.prod(dims), dtype=np.float32).reshape(dims)

    def tile(device, end):
        """The device's tile, and which of its elements are none of the array's."""
        place = dict(zip(names, np.unravel_index(device, [sizes[name] for name in names])))
        indices = []
        for size, dim in zip(dims, end):
            index, n = 0, 1
            for axis in dim:
                index, n = index * sizes[axis] + int(place[axis]), n * sizes[axis]
            length = -(-size // n)
            indices.append(np.arange(index * length, (index + 1) * length))
        is_padding = np.zeros([len(along) for along in indices], bool)
        for dim, (along, size) in enumerate(zip(indices, dims)):
            is_padding |= (along >= size).reshape([-1 if d == dim else 1 for d in range(len(dims))])
        inside = [np.minimum(along, size - 1) for along, size in zip(indices, dims)]
        return np.where(is_padding, np.float32("nan"), array[np.ix_(*inside)]), is_padding

    module = hlo_oracle.parse(module_text)
    executable = hlo_oracle.compile_module(module, 1, n_devices)
    inputs = [[tile(device, pair["from"])[0] for device in range(n_devices)]]
    outputs = hlo_oracle.execute(executable, inputs, n_devices)
    for device in range(n_devices):
        expected, is_padding = tile(device, pair["to"])
        found = np.asarray(outputs[0][device])
        if found.shape != expected.shape or not np.all(is_padding | (found == expected)):
            return False
    return True


def main():
    folder, n_pairs = Path(sys.argv[1]), int(sys.argv[2])
    asked = json.loads((folder / "pairs.json").read_text())
    hlo_oracle.set_device_count(max(math.prod(size for _, size in group["axes"]) for group in asked))
    import jax
    import numpy as np
    from jax.sharding import Mesh

    jax.config.update("jax_use_shardy_partitioner", False)
    is_well = True
    for group in asked:
        axes, dims = group["axes"], group["dims"]
        n = math.prod(size for _, size in axes)
        devices = np.array(jax.devices()[:n]).reshape([size for _, size in axes])
        mesh = Mesh(devices, [name for name, _ in axes])
        sums = {"bound": 0, "plan": 0, "xla": 0}
        shardy = {"pairs": 0, "plan": 0, "shardy": 0, "alike": 0}
        above, n_run, wrong = [], 0, []
        for pair in group["pairs"][:n_pairs]:
            xla, shardys = pair["plan"], None
            if not group["only_run"]:
                xla, shardys = partitioner_bytes(mesh, dims, pair), shardy_bytes(axes, dims, pair)
            sums = {"bound": sums["bound"] + pair["bound"], "plan": sums["plan"] + pair["plan"], "xla": sums["xla"] + xla}
            if shardys is not None:
                shardy["pairs"] += 1
                shardy["plan"] += pair["plan"]
                shardy["shardy"] += shardys
                shardy["alike"] += pair["shardy"] == shardys
            if pair["plan"] > xla or (shardys is not None and pair["plan"] > shardys):
                above.append((pair, xla, shardys))
            if pair["module"]:
                n_run += 1
                if not runs((folder / pair["module"]).read_text(), n, dims, pair, axes):
                    wrong.append(pair)
        compared = min(n_pairs, len(group["pairs"]))
        if group["only_run"]:
            print(f"{group['mesh']}: {n_run} run in XLA, {len(wrong)} wrong", flush=True)
            is_well &= not wrong
            continue
        print(
            f"{group['mesh']}: {compared} pairs, bound {sums['bound']} B, plans {sums['plan']} B, XLA's partitioner {sums['xla']} B; "
            f"Shardy on {shardy['pairs']}: {shardy['shardy']} B, plans {shardy['plan']} B, "
            f"our account of it the same on {shardy['alike']}; {len(above)} plans above them; "
            f"{n_run} run in XLA, {len(wrong)} wrong",
            flush=True,
        )
        for found in above[:5] + wrong[:5]:
            print(f"  {found}")
        is_well &= not above and not wrong
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
