"""Random global programs with GSPMD's annotations, with what XLA's sharding propagation makes of them, beside what ours does.

usage: gspmd_check.py write FOLDER COUNT SEED
       gspmd_check.py compare FOLDER

`write` draws programs (the ops of propagate_check.py, and what GSPMD's form has besides: dims that are left open by `unspecified_dims`,
groups, barriers, regions along some axes, gathers and scatters whose indices count rows, device lists that are no iota), lets XLA
compile them, and stores what its pass `sharding-propagation` took (NAME.hlo) and gave (NAME.xla). `compare` reads NAME.out, what our
pass makes of the former, and counts values that have other tiles; instructions are matched by name. Exit code 1 if more than one in
ten differs."""
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import propagate_check as base
from propagate_check import ints, tensor

CHUNK = 20


def sharding_text(mesh, dims, order, manual=()):
    """`sharding=` for lists of axes (name, pre, size); pre is None for a whole axis."""
    split = {name for axes in dims for name, _, pre in axes if pre is not None}
    parts = []
    for name, size in mesh:
        parts += [(name, 1, 2), (name, 2, 2)] if name in split else [(name, None, size)]
    index = {(name, pre): k for k, (name, pre, _) in enumerate(parts)}
    perm = [index[(name, pre)] for axes in dims for name, _, pre in axes]
    sizes = [math.prod(size for _, size, _ in axes) for axes in dims]
    of_manual = [index[(name, None)] for name in manual]
    rest = [k for k in range(len(parts)) if k not in perm and k not in of_manual]
    n_manual = math.prod(parts[k][2] for k in of_manual)
    n_rest = math.prod(parts[k][2] for k in rest)
    if not perm and not manual:
        return "{replicated}"
    if not perm and n_rest == 1:
        return "{manual}"
    tail, kinds = [], ""
    if manual:
        tail, kinds = ([n_manual], "manual") if n_rest == 1 else ([n_manual, n_rest], "manual, replicated")
        kinds = f" last_tile_dims={{{kinds}}}"
    elif n_rest > 1:
        tail, kinds = [n_rest], " last_tile_dim_replicate"
    shape = ",".join(map(str, sizes + tail))
    ids = np.arange(math.prod(s for _, _, s in parts)).reshape([s for _, _, s in parts])
    ids = np.array(order)[ids] if order else ids
    ids = ids.transpose(perm + of_manual + rest).reshape(-1)
    if order:
        return f"{{devices=[{shape}]{','.join(map(str, ids))}{kinds}}}"
    turned = perm + of_manual + rest
    if turned == sorted(turned):  # XLA reads no reshape without a transpose
        return f"{{devices=[{shape}]<=[{len(ids)}]{kinds}}}"
    reshape = ",".join(str(s) for _, _, s in parts)
    turn = f"T({','.join(map(str, turned))})"
    return f"{{devices=[{shape}]<=[{reshape}]{turn}{kinds}}}"


class Program(base.Program):
    def __init__(self, rng):
        super().__init__(rng)
        n = math.prod(s for _, s in self.mesh)
        self.order = rng.sample(range(n), n) if rng.random() < 0.08 else None
        self.n_groups = 0
        self.manual = ()

    def annotation(self, dims, open_share=0.0):
        """A random sharding: its text, and the dims that are left open."""
        rng, axes = self.rng, [(n, s, None) for n, s in self.mesh if n not in self.manual]
        if rng.random() < 0.1 and not self.manual:
            name, size, _ = rng.choice(axes)
            if size == 4:
                axes = [a for a in axes if a[0] != name] + [(name, 2, 1), (name, 2, 2)]
        rng.shuffle(axes)
        out = [[] for _ in dims]
        for name, size, pre in axes:
            if rng.random() < 0.35 or not dims:
                continue
            d = rng.randrange(len(dims))
            if dims[d] % (math.prod(s for _, s, _ in out[d]) * size) == 0:
                out[d].append((name, size, pre))
        left_open = [d for d in range(len(dims)) if rng.random() < open_share]
        self.n_annotations += 1
        return sharding_text(self.mesh, out, self.order, self.manual), left_open

    def add_param(self, dims, dtype="f32", share=0.5):
        name = self.fresh()
        said = self.annotation(dims)[0] if dims and self.rng.random() < share else None
        self.params.append((name, tensor(dims, dtype), said))
        if dtype == "f32":
            self.values.append((name, dims))
        return name

    def custom(self, target, operand, dims, said, left_open=(), result=None):
        result = dims if result is None else result
        config = f', backend_config = "unspecified_dims=[{",".join(map(str, left_open))}]"' if left_open else ""
        text = (f'stablehlo.custom_call @{target}(%{operand}) {{mhlo.sharding = "{said}"{config}}} : '
                f"({tensor(dims)}) -> {tensor(result)}")
        name = self.fresh()
        self.lines.append((name, text, None))
        self.values.append((name, result))
        self.n_ops += 1
        return name

    def constraint(self):
        name, dims = self.pick(lambda d: len(d) > 0)
        said, left_open = self.annotation(dims, self.rng.choice([0.0, 0.0, 0.5]))
        self.custom("Sharding", name, dims, said, left_open)

    def count_annotations(self):
        return len(re.findall("mhlo.sharding", self.text()))

    def text(self):
        n = math.prod(s for _, s in self.mesh)
        attribute = lambda said: f' {{mhlo.sharding = "{said}"}}' if said else ""
        out = [f"module attributes {{mhlo.num_partitions = {n} : i32, mhlo.num_replicas = 1 : i32}} {{"]
        params = [f'%{name}: {shape}{attribute(said)} loc("{name}")' for name, shape, said in self.params]
        results = [tensor(dims) + attribute(said and said[0]) for _, dims, said in self.results]
        out.append(f"func.func public @main({', '.join(params)}) -> ({', '.join(results)}) {{")
        for name, text, _ in self.lines:
            target = f"%{name} = " if "@@" not in text else text.split("@@")[0]
            out.append(f'  {target}{text.split("@@")[-1]} loc("{name}")')
        out.append(f"  return {', '.join('%' + n for n, _, _ in self.results)} : "
                   f"{', '.join(tensor(d) for _, d, _ in self.results)}")
        out += ["}", "}"]
        return "\n".join(out) + "\n"


def op_group(p):
    """Two values that are cut alike, or as each other where that helps."""
    a, dims = p.pick(lambda d: len(d) > 0)
    b = p.pick(lambda d: d == dims)[0]
    b = p.add_param(dims, share=0.3) if b == a else b
    p.n_groups += 1
    kind = p.rng.choice(["shard_as", "shard_like"])
    for name in (a, b):
        p.custom("Sharding", name, dims, f"{{unknown {kind} {p.n_groups}}}", [])


def op_region(p):
    """A region along one axis, with a few ops that the other axes may cut."""
    axes = [(n, s) for n, s in p.mesh]
    name, size = p.rng.choice(axes)
    a, dims = p.pick(lambda d: 1 <= len(d) <= 3 and any(s % size == 0 and s > size for s in d))
    k = p.rng.choice([d for d, s in enumerate(dims) if s % size == 0 and s > size])
    lists = lambda n, d: [[(name, size, None)] if i == d else [] for i in range(n)]
    all_open = lambda n: list(range(n)) if p.rng.random() < 0.7 else []
    cut = p.custom("Sharding", a, dims, sharding_text(p.mesh, lists(len(dims), k), p.order), all_open(len(dims)))
    local = [s // size if d == k else s for d, s in enumerate(dims)]
    n_params = len(p.params)
    of_manual = lambda n: sharding_text(p.mesh, [[] for _ in range(n)], p.order, (name,))
    p.custom("SPMDFullToShardShape", cut, dims, of_manual(len(dims)), all_open(len(dims)), local)
    local_value = p.values.pop()
    outside, p.values, p.manual = p.values, [local_value], (name,)
    for _ in range(p.rng.randint(1, 4)):
        op = p.rng.choice([base.op_unary, base.op_transpose, base.op_broadcast, base.op_barrier, op_square, op_tuple_while,
                           base.op_reduce, Program.constraint])
        try:
            op(p)
        except TypeError:
            continue
    assert len(p.params) == n_params
    inner = [v for v in p.values if v[1]]
    p.manual = ()
    last, dims = inner[-1]
    k = p.rng.randrange(len(dims))
    last = p.custom("Sharding", last, dims, of_manual(len(dims)), all_open(len(dims)))
    whole = [s * size if d == k else s for d, s in enumerate(dims)]
    p.values = outside
    p.custom("SPMDShardToFullShape", last, dims, sharding_text(p.mesh, lists(len(dims), k), p.order),
             all_open(len(dims)), whole)


def op_square(p):
    name, dims = p.pick()
    p.emit(f"stablehlo.multiply %{name}, %{name} : {tensor(dims)}", dims)


def op_tuple_while(p):
    """A loop that carries three arrays, of which one turns into another."""
    a, dims = p.pick(lambda d: len(d) > 0)
    b = p.pick(lambda d: d == dims)[0]
    i32, t = "tensor<i32>", tensor(dims)
    zero = p.emit(f"stablehlo.constant dense<0> : {i32}", [], "scalar")
    w = p.fresh()
    text = (
        f"%{w}:4 = @@\"stablehlo.while\"(%{zero}, %{a}, %{b}, %{a}) ({{ ^bb0(%i: {i32}, %x: {t}, %y: {t}, %z: {t}):"
        f" %n = stablehlo.constant dense<3> : {i32} %c = stablehlo.compare LT, %i, %n : ({i32}, {i32}) -> tensor<i1>"
        f" stablehlo.return %c : tensor<i1> }}, {{ ^bb0(%i: {i32}, %x: {t}, %y: {t}, %z: {t}):"
        f" %one = stablehlo.constant dense<1> : {i32} %next = stablehlo.add %i, %one : {i32}"
        f" %u = stablehlo.multiply %x, %z : {t} %v = stablehlo.tanh %y : {t}"
        f" stablehlo.return %next, %v, %u, %z : {i32}, {t}, {t}, {t} }}) : ({i32}, {t}, {t}, {t}) -> ({i32}, {t}, {t}, {t})"
    )
    p.lines.append((w, text, None))
    p.n_ops += 3
    p.values += [(f"{w}#1", dims), (f"{w}#2", dims)]


def op_tuple_barrier(p):
    a, dims = p.pick()
    b, others = p.pick()
    w = p.fresh()
    p.lines.append((w, f"%{w}:2 = @@stablehlo.optimization_barrier %{a}, %{b} : {tensor(dims)}, {tensor(others)}", None))
    p.n_ops += 1
    p.values += [(f"{w}#0", dims), (f"{w}#1", others)]


def rows_by_number(p, n, m):
    """Indices [n, m, 2] whose first number is the row."""
    i32 = lambda dims: tensor(dims, "i32")
    rows = p.emit(f"stablehlo.iota dim = 0 : {i32([n, m, 1])}", [n, m, 1], "i32")
    found = p.add_param([n, m, 1], "i32")
    return p.emit(
        f"stablehlo.concatenate %{rows}, %{found}, dim = 2 : ({i32([n, m, 1])}, {i32([n, m, 1])}) -> {i32([n, m, 2])}",
        [n, m, 2], "i32",
    )


def op_parallel_gather(p):
    name, dims = p.pick(lambda d: 2 <= len(d) <= 3)
    m = p.rng.choice([4, 8])
    n, rest = dims[0], dims[2:]
    out = [n, m] + rest
    offsets = list(range(2, len(out)))
    if p.rng.random() < 0.5:
        indices, shape = rows_by_number(p, n, m), [n, m, 2]
        numbers = f"offset_dims = {offsets}, collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2"
    else:
        indices, shape = p.add_param([n, m, 1], "i32"), [n, m, 1]
        numbers = (f"offset_dims = {offsets}, collapsed_slice_dims = [1], operand_batching_dims = [0], "
                   "start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2")
    p.emit(
        f'"stablehlo.gather"(%{name}, %{indices}) {{dimension_numbers = #stablehlo.gather<{numbers}>, '
        f"slice_sizes = {ints([1, 1] + rest)}}} : ({tensor(dims)}, {tensor(shape, 'i32')}) -> {tensor(out)}",
        out,
    )


def op_parallel_scatter(p):
    name, dims = p.pick(lambda d: 2 <= len(d) <= 3)
    m = p.rng.choice([4, 8])
    n, rest = dims[0], dims[2:]
    shape = [n, m] + rest
    found = p.pick(lambda d: d == shape)
    updates = found[0] if found else p.add_param(shape)
    windows = list(range(2, len(shape)))
    if p.rng.random() < 0.5:
        indices, of_indices = rows_by_number(p, n, m), [n, m, 2]
        numbers = (f"update_window_dims = {windows}, inserted_window_dims = [0, 1], "
                   "scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2")
    else:
        indices, of_indices = p.add_param([n, m, 1], "i32"), [n, m, 1]
        numbers = (f"update_window_dims = {windows}, inserted_window_dims = [1], input_batching_dims = [0], "
                   "scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2")
    p.emit(
        f'"stablehlo.scatter"(%{name}, %{indices}, %{updates}) {base.scalar_region("add")} '
        f"{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}} : "
        f'({tensor(dims)}, {tensor(of_indices, "i32")}, {tensor(shape)}) -> {tensor(dims)}',
        dims,
    )


OPS = [(op, n) for op, n in base.OPS if op is not base.Program.constraint] + [
    (Program.constraint, 5), (op_group, 2), (op_region, 2), (op_tuple_while, 2), (op_tuple_barrier, 1),
    (op_parallel_gather, 2), (op_parallel_scatter, 2), (base.op_concatenate, 1),
]


def draw(rng):
    return base.draw(rng, Program, OPS, annotated_results=0.3)


# ---- XLA ----

def compile_chunk(folder, seed, numbers):
    """Compiles programs; what the pass took and gave is dumped."""
    import hlo_oracle

    hlo_oracle.set_device_count(16)
    dump = folder / "dump"
    os.environ["XLA_FLAGS"] += f" --xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=sharding-propagation"
    import jax
    from jaxlib import _jax

    for k in numbers:
        program = draw(random.Random(f"{seed}:{k}"))
        stem = folder / f"p{k:04}"
        text = program.text()
        stem.with_suffix(".mlir").write_text(text)
        n = math.prod(s for _, s in program.mesh)
        options = _jax.CompileOptions()
        options.num_replicas, options.num_partitions = 1, n
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = 1, n
        build.use_spmd_partitioning, build.use_shardy_partitioner = True, False
        build.allow_spmd_sharding_propagation_to_output = [said is None for _, _, said in program.results]
        build.allow_spmd_sharding_propagation_to_parameters = [said is None for _, _, said in program.params]
        assignment = _jax.DeviceAssignment.create(np.arange(n, dtype=np.int32).reshape(1, n))
        options.device_assignment = assignment
        build.device_assignment = assignment
        stem.with_suffix(".json").write_text(json.dumps({"devices": n}))
        try:
            jax.devices()[0].client.compile_and_load(text.replace("module attributes", f"module @p{k:04} attributes"),
                                                     jax.devices()[:n], options)
        except Exception as error:  # what XLA refuses or dies of later has been through the pass; else there is no dump
            stem.with_suffix(".refused").write_text(str(error)[:2000])


def collect(folder, number):
    """Whether there is what the pass took and what it gave; all else that was dumped goes."""
    stem, kept = folder / f"p{number:04}", set()
    for file in (folder / "dump").rglob(f"*.p{number:04}*"):
        for mark, suffix in (("before_sharding-propagation", ".hlo"), ("after_sharding-propagation", ".xla")):
            if mark in file.name and file.is_file():
                stem.with_suffix(suffix).write_text(file.read_text())
                kept.add(suffix)
    if len(kept) < 2:
        for suffix in (".xla", ".hlo", ".json"):
            stem.with_suffix(suffix).unlink(missing_ok=True)
    return len(kept) == 2


def write(folder, count, seed):
    folder.mkdir(parents=True, exist_ok=True)
    k = n_written = 0
    while n_written < count:
        numbers = list(range(k, k + min(CHUNK, count - n_written)))
        command = [sys.executable, __file__, "chunk", str(folder), str(seed), *map(str, numbers)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        # XLA may end the whole process on a program: the next one begins behind it.
        done = [number for number in numbers if (folder / f"p{number:04}.mlir").exists()]
        n_written += sum(collect(folder, number) for number in done)
        shutil.rmtree(folder / "dump", ignore_errors=True)
        k = done[-1] + 1 if done else k + 1
    print(f"{n_written} programs of {k} drawn")


# ---- comparison ----

def split_top(text):
    """The parts between commas that stand in no brackets."""
    out, depth, part = [], 0, ""
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            out.append(part.strip())
            part = ""
        else:
            part += c
    return out + [part.strip()] if part.strip() else out


def instructions(text):
    """By name: opcode, dims of each leaf, text of each leaf's sharding, or None."""
    out = {}
    for line in text.splitlines():
        head = re.match(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(", line)
        if not head:
            continue
        dims = [[int(d) for d in found.split(",") if d] for found in re.findall(r"\w+\[([\d,]*)\]", head.group(2))]
        found = re.search(r"[ ,]sharding=\{", line)
        said = None
        if found:
            depth, at = 0, found.end() - 1
            for end in range(at, len(line)):
                depth += (line[end] == "{") - (line[end] == "}")
                if depth == 0:
                    break
            said = re.sub(r"/\*.*?\*/", "", line[at : end + 1])
        shardings = [said] * len(dims)
        if said and said.startswith("{{"):
            shardings = split_top(said[1:-1])
        out[head.group(1)] = (head.group(3), dims, shardings)
    return out


def tiles(text, rank, n_devices):
    """For each device its tile along each dim, and for parts that are manual nothing."""
    if text is None or not text.startswith("{devices"):
        return [[0] * rank for _ in range(n_devices)]
    found = re.match(r"\{devices=\[([\d,]+)\](<=\[([\d,]+)\](?:T\(([\d,]+)\))?|[\d,]+)", text)
    dims = [int(x) for x in found.group(1).split(",")]
    if found.group(3):
        reshape = [int(x) for x in found.group(3).split(",")]
        perm = [int(x) for x in found.group(4).split(",")] if found.group(4) else list(range(len(reshape)))
        ids = np.arange(math.prod(reshape)).reshape(reshape).transpose(perm).reshape(dims)
    else:
        ids = np.array([int(x) for x in found.group(2).split(",")]).reshape(dims)
    out = [None] * n_devices
    for index in np.ndindex(*dims):
        out[int(ids[index])] = [int(i) for i in index[:rank]]
    return out


def live(text):
    """The names of what a computation's result needs."""
    operands, needed, roots = {}, set(), []
    for line in text.splitlines():
        head = re.match(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$", line)
        if head:
            operands[head.group(2)] = re.findall(r"%([\w.\-]+)", head.group(3))
            roots += [head.group(2)] if head.group(1) else []
    while roots:
        name = roots.pop()
        if name not in needed:
            needed.add(name)
            roots += [operand for operand in operands.get(name, []) if operand not in needed]
    return needed


NOT_COMPARED = {"constant", "iota", "tuple", "while", "conditional", "opt-barrier", "get-tuple-element"}


def compare(folder):
    n_values = n_equal = n_clean = n_files = 0
    by_op, differing, refused, cut = {}, [], {}, 0
    for file in sorted(folder.glob("p*.xla")):
        n_files += 1
        out = file.with_suffix(".out")
        if not out.exists():
            reason = file.with_suffix(".error").read_text()[:100]
            refused[reason] = refused.get(reason, 0) + 1
            continue
        n_devices = json.loads(file.with_suffix(".json").read_text())["devices"]
        expected, found = instructions(file.read_text()), instructions(out.read_text())
        is_clean, needed = True, live(file.with_suffix(".hlo").read_text())
        for name, (opcode, dims, said) in expected.items():
            if name not in found or name not in needed or opcode in NOT_COMPARED or found[name][1] != dims:
                continue
            for k, d in enumerate(dims):
                if not d:
                    continue
                of_xla, ours = tiles(said[k], len(d), n_devices), tiles(found[name][2][k], len(d), n_devices)
                n_values += 1
                cut += any(any(t) for t in of_xla)
                if of_xla == ours:
                    n_equal += 1
                else:
                    is_clean = False
                    by_op[opcode] = by_op.get(opcode, 0) + 1
                    differing.append(f"{file.stem} {name} {opcode} {d}: XLA {said[k]}, ours {found[name][2][k]}")
        n_clean += is_clean
    for line in differing:
        print(line)
    share = n_equal / max(1, n_values)
    worst = dict(sorted(by_op.items(), key=lambda x: -x[1])[:12])
    print(f"{n_files} programs, {n_values} values ({cut} cut), {n_equal} equal ({100 * share:.2f} %); {n_clean} programs without "
          f"a difference; differing by op {worst}; refused {len(refused)}")
    return share >= 0.9 and not refused


if __name__ == "__main__":
    words = sys.argv
    if words[1] == "write":
        write(Path(words[2]), int(words[3]), int(words[4]))
    elif words[1] == "chunk":
        compile_chunk(Path(words[2]), words[3], [int(word) for word in words[4:]])
    else:
        sys.exit(0 if compare(Path(words[2])) else 1)
