"""Random StableHLO programs, with what Shardy's propagation makes of them, beside what ours does.

usage: propagate_check.py write FOLDER COUNT SEED
       propagate_check.py compare FOLDER

`write` draws programs of ten ops or more with three annotations or more, in which shardings meet that differ, runs Shardy's
pipeline on each, and stores the tiles that each value has on each device (NAME.json) and the program as HLO (NAME.hlo). `compare` reads
NAME.out, the HLO after our pass, and counts values that have other tiles. Values are matched by their MLIR locations, which
are `op_name` in HLO. Exit code 1 if more than one in twenty differs."""
import json
import math
import random
import re
import sys
from pathlib import Path

MESHES = [
    [("a", 2), ("b", 2), ("c", 2)],
    [("x", 2), ("y", 4)],
    [("x", 4), ("y", 2)],
    [("d", 8)],
    [("a", 2), ("b", 3)],
    [("x", 4), ("y", 2), ("z", 2)],
    [("a", 2), ("b", 2)],
]
ELEMENTWISE = ["tanh", "negate", "exponential", "abs"]
BINARY = ["add", "multiply", "subtract", "maximum"]


def tensor(dims, dtype="f32"):
    return "tensor<" + "".join(f"{d}x" for d in dims) + dtype + ">"


class Program:
    """One random program: its text twice, with annotations as Shardy writes them and as HLO's front ends do."""

    def __init__(self, rng):
        self.rng = rng
        self.mesh = rng.choice(MESHES)
        self.lines = []
        self.values = []  # (name, dims) of f32 values
        self.params = []  # (name, type, annotation)
        self.n = 0
        self.n_ops = 0
        self.n_annotations = 0
        self.uses = {}

    def fresh(self):
        self.n += 1
        return f"v{self.n}"

    def annotation(self, dims, open_share=0.3):
        """A random sharding of an array, as Shardy writes it."""
        rng, axes = self.rng, [(n, s, None) for n, s in self.mesh]
        if rng.random() < 0.15:
            name, size, _ = rng.choice(axes)
            if size == 4:
                axes = [a for a in axes if a[0] != name] + [(name, 2, 1), (name, 2, 2)]
        rng.shuffle(axes)
        out, used = [[] for _ in dims], set()
        for name, size, pre in axes:
            if rng.random() < 0.35:
                continue
            d = rng.randrange(len(dims)) if dims else None
            if d is None:
                break
            product = math.prod(s for _, s, _ in out[d]) * size
            if dims[d] % product == 0:
                out[d].append((name, size, pre))
                used.add(name)
        def axis(a):
            return f'"{a[0]}"' if a[2] is None else f'"{a[0]}":({a[2]}){a[1]}'
        texts = []
        with_priority = rng.random() < 0.1
        for d in out:
            parts = [axis(a) for a in self.merged(d)]
            if rng.random() < open_share:
                parts.append("?")
            priority = f"p{rng.randrange(3)}" if with_priority and parts else ""
            texts.append("{" + ", ".join(parts) + "}" + priority)
        pinned = ""
        rest = [n for n, _ in self.mesh if n not in used]
        if rest and rng.random() < 0.05:
            pinned = f', replicated={{"{rng.choice(rest)}"}}'
        self.n_annotations += 1
        return f"<@mesh, [{', '.join(texts)}]{pinned}>"

    def merged(self, axes):
        """Neighbouring parts of an axis are one."""
        out = []
        for a in axes:
            if out and out[-1][0] == a[0] and out[-1][2] == 1 and a[2] == 2:
                out[-1] = (a[0], 4, None)
            else:
                out.append(a)
        return out

    def add_param(self, dims, dtype="f32", share=0.5):
        name = self.fresh()
        said = self.annotation(dims) if dims and self.rng.random() < share else None
        self.params.append((name, tensor(dims, dtype), said))
        if dtype == "f32":
            self.values.append((name, dims))
        return name

    def pick(self, test=lambda dims: True):
        fitting = [v for v in self.values if test(v[1])]
        if not fitting:
            return None
        # Late values more often, so that programs are deep.
        k = max(self.rng.randrange(len(fitting)), self.rng.randrange(len(fitting)))
        return fitting[k]

    def emit(self, text, dims, dtype="f32", can_annotate=True):
        """An op of one result; `text` with {0} where the attributes go and without the location."""
        name = self.fresh()
        self.lines.append((name, text, None))
        self.n_ops += 1
        if dtype == "f32":
            self.values.append((name, dims))
        return name

    def constraint(self):
        v = self.pick(lambda d: len(d) > 0)
        name = self.fresh()
        self.lines.append((name, ("constraint", v[0], tensor(v[1])), self.annotation(v[1], 0.4)))
        self.values.append((name, v[1]))
        self.n_ops += 1

    def count_annotations(self):
        return self.n_annotations

    def text(self, is_shardy):
        mesh = ", ".join(f'"{n}"={s}' for n, s in self.mesh)
        def attribute(said):
            if is_shardy:
                return f"sdy.sharding = #sdy.sharding{said}"
            quoted = f"#sdy.sharding{said}".replace('"', '\\"')
            return f'mhlo.frontend_attributes = {{xla.sdy.sharding = "{quoted}"}}'
        def per_value(said):
            quoted = f"#sdy.sharding_per_value<[{said}]>".replace('"', '\\"')
            return f'mhlo.frontend_attributes = {{xla.sdy.sharding = "{quoted}"}}'
        out = []
        if is_shardy:
            out.append("module {")
            out.append(f"sdy.mesh @mesh = <[{mesh}]>")
        else:
            meshes = f"{{mesh = #sdy.mesh<[{mesh}]>}}".replace('"', '\\"')
            out.append(f'module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{meshes}"}}}} {{')
        params = []
        for name, shape, said in self.params:
            attrs = f" {{{attribute(said)}}}" if said else ""
            params.append(f'%{name}: {shape}{attrs} loc("{name}")')
        results = [
            tensor(dims) + (f" {{{attribute(said)}}}" if said and is_shardy else "") for _, dims, said in self.results
        ]
        out.append(f"func.func public @main({', '.join(params)}) -> ({', '.join(results)}) {{")
        for name, text, said in self.lines:
            if isinstance(text, tuple):
                _, operand, shape = text
                if is_shardy:
                    text = f"sdy.sharding_constraint %{operand} {said} : {shape}"
                else:
                    text = f"stablehlo.custom_call @Sharding(%{operand}) {{{per_value(said)}}} : ({shape}) -> {shape}"
            target = f"%{name} = " if "@@" not in text else text.split("@@")[0]
            body = text.split("@@")[-1]
            out.append(f'  {target}{body} loc("{name}")')
        named = []
        for k, (name, dims, said) in enumerate(self.results):
            if said and not is_shardy:
                out.append(
                    f"  %r{k} = stablehlo.custom_call @xla.sdy.FuncResultSharding(%{name}) "
                    f"{{has_side_effect = true, {per_value(said)}}} : ({tensor(dims)}) -> {tensor(dims)} loc(\"r{k}\")"
                )
                named.append(f"%r{k}")
            else:
                named.append(f"%{name}")
        out.append(f"  return {', '.join(named)} : {', '.join(tensor(d) for _, d, _ in self.results)}")
        out.append("}")
        out.append("}")
        return "\n".join(out) + "\n"


def scalar_region(op, dtype="f32"):
    t = f"tensor<{dtype}>"
    return f"({{ ^bb0(%l: {t}, %r: {t}): %s = stablehlo.{op} %l, %r : {t} stablehlo.return %s : {t} }})"


def ints(xs):
    return "array<i64" + (": " + ", ".join(map(str, xs)) if xs else "") + ">"


def op_unary(p):
    name, dims = p.pick()
    op = p.rng.choice(ELEMENTWISE)
    p.emit(f"stablehlo.{op} %{name} : {tensor(dims)}", dims)


def op_binary(p):
    a = p.pick()
    b = p.pick(lambda d: d == a[1])
    if p.rng.random() < 0.4:
        b = (p.add_param(a[1]), a[1])
    if p.rng.random() < 0.5:
        a, b = b, a
    op = p.rng.choice(BINARY)
    p.emit(f"stablehlo.{op} %{a[0]}, %{b[0]} : {tensor(a[1])}", a[1])


def op_dot(p):
    a, dims = p.pick(lambda d: 1 <= len(d) <= 4)
    rng = p.rng
    order = list(range(len(dims)))
    rng.shuffle(order)
    n_contract = rng.choice([0, 1, 1, 1, 2])
    contract = sorted(order[: min(n_contract, len(dims))])
    rest = [d for d in range(len(dims)) if d not in contract]
    batch = [d for d in rest if rng.random() < 0.25][:1]
    free_b = [rng.choice([4, 8, 16]) for _ in range(rng.choice([0, 1, 1, 2]))]
    if math.prod(free_b) * math.prod(dims) > 200000:
        return
    b_dims = [dims[d] for d in batch] + [dims[d] for d in contract] + free_b
    found = p.pick(lambda d: d == b_dims)
    b = found[0] if found and rng.random() < 0.5 else p.add_param(b_dims)
    nb = len(batch)
    out = [dims[d] for d in batch] + [dims[d] for d in rest if d not in batch] + free_b
    bc = list(range(nb, nb + len(contract)))
    parts = [f"#stablehlo.dot<lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {list(range(nb))}, "
             f"lhs_contracting_dimensions = {contract}, rhs_contracting_dimensions = {bc}>"]
    p.emit(
        f'"stablehlo.dot_general"(%{a}, %{b}) {{dot_dimension_numbers = {parts[0]}}} : '
        f"({tensor(dims)}, {tensor(b_dims)}) -> {tensor(out)}",
        out,
    )


def op_transpose(p):
    name, dims = p.pick(lambda d: len(d) > 1)
    perm = list(range(len(dims)))
    while perm == sorted(perm):
        p.rng.shuffle(perm)
    out = [dims[d] for d in perm]
    p.emit(f"stablehlo.transpose %{name}, dims = {perm} : ({tensor(dims)}) -> {tensor(out)}", out)


def op_reshape(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    rng, out = p.rng, list(dims)
    for _ in range(rng.choice([1, 1, 2])):
        if rng.random() < 0.5 and len(out) > 1:
            k = rng.randrange(len(out) - 1)
            out[k : k + 2] = [out[k] * out[k + 1]]
        else:
            k = rng.randrange(len(out))
            divisors = [f for f in range(2, out[k]) if out[k] % f == 0]
            if divisors and len(out) < 4:
                f = rng.choice(divisors)
                out[k : k + 1] = [f, out[k] // f]
    if out != dims:
        p.emit(f"stablehlo.reshape %{name} : ({tensor(dims)}) -> {tensor(out)}", out)


def op_reduce(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    over = sorted(p.rng.sample(range(len(dims)), p.rng.randint(1, min(2, len(dims)))))
    out = [s for d, s in enumerate(dims) if d not in over]
    op = p.rng.choice(["add", "maximum"])
    zero = p.emit("stablehlo.constant dense<0.0> : tensor<f32>", [], "scalar")
    p.emit(
        f'"stablehlo.reduce"(%{name}, %{zero}) {scalar_region(op)} {{dimensions = {ints(over)}}} : '
        f"({tensor(dims)}, tensor<f32>) -> {tensor(out)}",
        out,
    )


def op_broadcast(p):
    name, dims = p.pick(lambda d: len(d) < 3 and math.prod(d) < 4000)
    at = p.rng.randint(0, len(dims))
    out = dims[:at] + [p.rng.choice([4, 8])] + dims[at:]
    where = [d for d in range(len(out)) if d != at]
    p.emit(f"stablehlo.broadcast_in_dim %{name}, dims = {where} : ({tensor(dims)}) -> {tensor(out)}", out)


def op_slice(p):
    name, dims = p.pick(lambda d: len(d) > 0 and max(d) > 3)
    k = p.rng.choice([d for d, s in enumerate(dims) if s > 3])
    start = p.rng.randint(0, dims[k] // 2)
    limit = p.rng.randint(start + 2, dims[k])
    if p.rng.random() < 0.6:
        start, limit = 0, dims[k] // 2
    bounds = ", ".join(f"{start}:{limit}" if d == k else f"0:{s}" for d, s in enumerate(dims))
    out = [limit - start if d == k else s for d, s in enumerate(dims)]
    p.emit(f"stablehlo.slice %{name} [{bounds}] : ({tensor(dims)}) -> {tensor(out)}", out)


def op_pad(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    k = p.rng.randrange(len(dims))
    low, high = p.rng.choice([(0, 1), (1, 0), (2, 2), (0, dims[k])])
    zero = p.emit("stablehlo.constant dense<0.0> : tensor<f32>", [], "scalar")
    out = [s + low + high if d == k else s for d, s in enumerate(dims)]
    lows = [low if d == k else 0 for d in range(len(dims))]
    highs = [high if d == k else 0 for d in range(len(dims))]
    p.emit(
        f"stablehlo.pad %{name}, %{zero}, low = {lows}, high = {highs}, interior = {[0] * len(dims)} : "
        f"({tensor(dims)}, tensor<f32>) -> {tensor(out)}",
        out,
    )


def op_concatenate(p):
    a, dims = p.pick(lambda d: len(d) > 0)
    b = p.pick(lambda d: d == dims)[0]
    k = p.rng.randrange(len(dims))
    out = [2 * s if d == k else s for d, s in enumerate(dims)]
    p.emit(
        f"stablehlo.concatenate %{a}, %{b}, dim = {k} : ({tensor(dims)}, {tensor(dims)}) -> {tensor(out)}", out
    )


def op_reverse(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    p.emit(f"stablehlo.reverse %{name}, dims = {[p.rng.randrange(len(dims))]} : {tensor(dims)}", dims)


def op_dynamic_slice(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    k = p.rng.randrange(len(dims))
    index = p.add_param([], "i32")
    size = p.rng.choice([1, 1, max(1, dims[k] // 2)])
    out = [size if d == k else s for d, s in enumerate(dims)]
    indices = ", ".join([f"%{index}"] * len(dims))
    types = ", ".join(["tensor<i32>"] * len(dims))
    p.emit(
        f"stablehlo.dynamic_slice %{name}, {indices}, sizes = {out} : ({tensor(dims)}, {types}) -> {tensor(out)}", out
    )


def op_dynamic_update_slice(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    k = p.rng.randrange(len(dims))
    index = p.add_param([], "i32")
    part = [1 if d == k else s for d, s in enumerate(dims)]
    found = p.pick(lambda d: d == part)
    update = found[0] if found else p.add_param(part)
    indices = ", ".join([f"%{index}"] * len(dims))
    types = ", ".join(["tensor<i32>"] * len(dims))
    p.emit(
        f"stablehlo.dynamic_update_slice %{name}, %{update}, {indices} : "
        f"({tensor(dims)}, {tensor(part)}, {types}) -> {tensor(dims)}",
        dims,
    )


def op_iota(p):
    _, dims = p.pick(lambda d: len(d) > 0)
    p.emit(f"stablehlo.iota dim = {p.rng.randrange(len(dims))} : {tensor(dims)}", dims)


def op_sort(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    body = ("({ ^bb0(%l: tensor<f32>, %r: tensor<f32>): %s = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>)"
            " -> tensor<i1> stablehlo.return %s : tensor<i1> })")
    p.emit(
        f'"stablehlo.sort"(%{name}) {body} {{dimension = {p.rng.randrange(len(dims))} : i64}} : '
        f"({tensor(dims)}) -> {tensor(dims)}",
        dims,
    )


def op_gather(p):
    name, dims = p.pick(lambda d: 1 <= len(d) <= 3)
    k = p.rng.randrange(len(dims))
    batch = [p.rng.choice([4, 8, 6]) for _ in range(p.rng.choice([1, 2]))]
    if math.prod(batch) * math.prod(dims) > 100000:
        return
    indices = p.add_param(batch + [1], "i32")
    rest = [s for d, s in enumerate(dims) if d != k]
    out = batch + rest
    offsets = list(range(len(batch), len(out)))
    sizes = [1 if d == k else s for d, s in enumerate(dims)]
    numbers = (f"#stablehlo.gather<offset_dims = {offsets}, collapsed_slice_dims = [{k}], start_index_map = [{k}], "
               f"index_vector_dim = {len(batch)}>")
    p.emit(
        f'"stablehlo.gather"(%{name}, %{indices}) {{dimension_numbers = {numbers}, slice_sizes = {ints(sizes)}}} : '
        f'({tensor(dims)}, {tensor(batch + [1], "i32")}) -> {tensor(out)}',
        out,
    )


def op_scatter(p):
    name, dims = p.pick(lambda d: 1 <= len(d) <= 3)
    batch = [p.rng.choice([4, 8, 6])]
    indices = p.add_param(batch + [1], "i32")
    shape = batch + dims[1:]
    found = p.pick(lambda d: d == shape)
    updates = found[0] if found else p.add_param(shape)
    windows = list(range(1, len(shape)))
    numbers = (f"#stablehlo.scatter<update_window_dims = {windows}, inserted_window_dims = [0], "
               f"scatter_dims_to_operand_dims = [0], index_vector_dim = 1>")
    p.emit(
        f'"stablehlo.scatter"(%{name}, %{indices}, %{updates}) {scalar_region("add")} '
        f"{{scatter_dimension_numbers = {numbers}}} : "
        f'({tensor(dims)}, {tensor(batch + [1], "i32")}, {tensor(shape)}) -> {tensor(dims)}',
        dims,
    )


def op_convolution(p):
    name = p.add_param([p.rng.choice([4, 8]), 8, 8, p.rng.choice([4, 8])])
    dims = p.values[-1][1]
    out_features = p.rng.choice([4, 8])
    kernel_dims = [3, 3, dims[3], out_features]
    kernel = p.add_param(kernel_dims)
    pad = p.rng.choice([0, 1])
    out = [dims[0], 6 + 2 * pad, 6 + 2 * pad, out_features]
    p.emit(
        f"stablehlo.convolution(%{name}, %{kernel}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
        f"window = {{pad = [[{pad}, {pad}], [{pad}, {pad}]]}} "
        f"{{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : "
        f"({tensor(dims)}, {tensor(kernel_dims)}) -> {tensor(out)}",
        out,
    )


def op_reduce_window(p):
    name, dims = p.pick(lambda d: len(d) > 0 and max(d) >= 4)
    k = p.rng.choice([d for d, s in enumerate(dims) if s >= 4])
    zero = p.emit("stablehlo.constant dense<0.0> : tensor<f32>", [], "scalar")
    size = [2 if d == k else 1 for d in range(len(dims))]
    stride = [p.rng.choice([1, 2]) if d == k else 1 for d in range(len(dims))]
    out = [(s - 2) // stride[d] + 1 if d == k else s for d, s in enumerate(dims)]
    p.emit(
        f'"stablehlo.reduce_window"(%{name}, %{zero}) {scalar_region("add")} '
        f"{{window_dimensions = {ints(size)}, window_strides = {ints(stride)}}} : "
        f"({tensor(dims)}, tensor<f32>) -> {tensor(out)}",
        out,
    )


def op_cholesky(p):
    n = p.rng.choice([4, 8])
    dims = [p.rng.choice([4, 8]), n, n]
    found = p.pick(lambda d: d == dims)
    name = found[0] if found else p.add_param(dims)
    if p.rng.random() < 0.5:
        return p.emit(f"stablehlo.cholesky %{name}, lower = true : {tensor(dims)}", dims)
    other = dims[:2] + [p.rng.choice([4, 8])]
    b = p.add_param(other)
    p.emit(
        f'"stablehlo.triangular_solve"(%{name}, %{b}) {{left_side = true, lower = true, unit_diagonal = false, '
        f"transpose_a = #stablehlo<transpose NO_TRANSPOSE>}} : ({tensor(dims)}, {tensor(other)}) -> {tensor(other)}",
        other,
    )


def op_select(p):
    a, dims = p.pick()
    b = p.pick(lambda d: d == dims)[0]
    b = p.add_param(dims) if b == a else b
    t, i1 = tensor(dims), tensor(dims, "i1")
    test = p.emit(f"stablehlo.compare GT, %{a}, %{b} : ({t}, {t}) -> {i1}", dims, "i1")
    p.emit(f"stablehlo.select %{test}, %{b}, %{a} : {i1}, {t}", dims)


def op_convert(p):
    name, dims = p.pick()
    half = p.emit(f"stablehlo.convert %{name} : ({tensor(dims)}) -> {tensor(dims, 'f16')}", dims, "f16")
    p.emit(f"stablehlo.convert %{half} : ({tensor(dims, 'f16')}) -> {tensor(dims)}", dims)


def op_constant(p):
    a, dims = p.pick(lambda d: len(d) > 0)
    c = p.emit(f"stablehlo.constant dense<2.0> : {tensor(dims)}", dims, "constant")
    p.emit(f"stablehlo.add %{a}, %{c} : {tensor(dims)}", dims)
    other = p.pick(lambda d: d == dims)
    p.emit(f"stablehlo.multiply %{other[0]}, %{c} : {tensor(dims)}", dims)


def op_while(p):
    a, dims = p.pick(lambda d: len(d) > 0)
    i32 = "tensor<i32>"
    zero = p.emit(f"stablehlo.constant dense<0> : {i32}", [], "scalar")
    t = tensor(dims)
    name, i = p.fresh(), p.fresh()
    w = p.fresh()
    other = p.pick(lambda d: d == dims)[0]
    text = (
        f"%{w}:3 = @@\"stablehlo.while\"(%{zero}, %{a}, %{other}) ({{ ^bb0(%i: {i32}, %x: {t}, %k: {t}):"
        f" %n = stablehlo.constant dense<3> : {i32} %c = stablehlo.compare LT, %i, %n : ({i32}, {i32}) -> tensor<i1>"
        f" stablehlo.return %c : tensor<i1> }}, {{ ^bb0(%i: {i32}, %x: {t}, %k: {t}):"
        f" %one = stablehlo.constant dense<1> : {i32} %next = stablehlo.add %i, %one : {i32}"
        f" %y = stablehlo.multiply %x, %k : {t} loc(\"{name}\") %z = stablehlo.tanh %y : {t} loc(\"{i}\")"
        f" stablehlo.return %next, %z, %k : {i32}, {t}, {t} }}) : ({i32}, {t}, {t}) -> ({i32}, {t}, {t})"
    )
    self_lines = p.lines
    self_lines.append((w, text, None))
    p.n_ops += 3
    p.values.append((f"{w}#1", dims))


def op_fft(p):
    name, dims = p.pick(lambda d: len(d) > 0)
    c64 = tensor(dims, "complex<f32>")
    whole = p.emit(f"stablehlo.complex %{name}, %{name} : {c64}", dims, "c64")
    turned = p.emit(f"stablehlo.fft %{whole}, type = FFT, length = [{dims[-1]}] : ({c64}) -> {c64}", dims, "c64")
    p.emit(f"stablehlo.real %{turned} : ({c64}) -> {tensor(dims)}", dims)


def op_select_and_scatter(p):
    name, dims = p.pick(lambda d: len(d) > 0 and max(d) >= 4)
    k = p.rng.choice([d for d, s in enumerate(dims) if s >= 4])
    size = [2 if d == k else 1 for d in range(len(dims))]
    windows = [s // 2 if d == k else s for d, s in enumerate(dims)]
    found = p.pick(lambda d: d == windows)
    source = found[0] if found else p.add_param(windows)
    zero = p.emit("stablehlo.constant dense<0.0> : tensor<f32>", [], "scalar")
    test = ("({ ^bb0(%l: tensor<f32>, %r: tensor<f32>): %s = stablehlo.compare GE, %l, %r : (tensor<f32>, tensor<f32>)"
            " -> tensor<i1> stablehlo.return %s : tensor<i1> }")
    p.emit(
        f'"stablehlo.select_and_scatter"(%{name}, %{source}, %{zero}) {test}, {scalar_region("add")[1:]} '
        f"{{window_dimensions = {ints(size)}, window_strides = {ints(size)}}} : "
        f"({tensor(dims)}, {tensor(windows)}, tensor<f32>) -> {tensor(dims)}",
        dims,
    )


def op_clamp(p):
    name, dims = p.pick()
    low = p.add_param([])
    high = p.add_param([])
    p.emit(
        f"stablehlo.clamp %{low}, %{name}, %{high} : (tensor<f32>, {tensor(dims)}, tensor<f32>) -> {tensor(dims)}", dims
    )


def op_case(p):
    a, dims = p.pick(lambda d: len(d) > 0)
    b = p.pick(lambda d: d == dims)[0]
    index = p.add_param([], "i32")
    t = tensor(dims)
    p.emit(
        f'"stablehlo.case"(%{index}) ({{ %x = stablehlo.tanh %{a} : {t} stablehlo.return %x : {t} }}, '
        f"{{ %x = stablehlo.negate %{b} : {t} stablehlo.return %x : {t} }}) : (tensor<i32>) -> {t}",
        dims,
    )


def op_barrier(p):
    name, dims = p.pick()
    p.emit(f"stablehlo.optimization_barrier %{name} : {tensor(dims)}", dims)


OPS = [
    (op_fft, 1), (op_select_and_scatter, 1), (op_clamp, 1), (op_case, 1), (op_barrier, 1),
    (op_unary, 6), (op_binary, 10), (op_dot, 10), (op_transpose, 4), (op_reshape, 6), (op_reduce, 5), (op_broadcast, 5),
    (op_slice, 2), (op_pad, 2), (op_concatenate, 2), (op_reverse, 1), (op_dynamic_slice, 2),
    (op_dynamic_update_slice, 2), (op_iota, 1), (op_sort, 1), (op_gather, 3), (op_scatter, 3), (op_convolution, 2),
    (op_reduce_window, 2), (op_cholesky, 1), (op_select, 2), (op_convert, 1), (op_constant, 2), (op_while, 2),
    (Program.constraint, 4),
]


def draw(rng, kind=Program, ops=OPS, annotated_results=0.4):
    p = kind(rng)
    for _ in range(rng.randint(2, 3)):
        p.add_param([rng.choice([4, 8, 8, 16, 16, 32, 12, 6]) for _ in range(rng.choice([1, 2, 2, 3]))], share=0.8)
    n_ops = rng.randint(10, 24)
    while p.n_ops < n_ops:
        op = rng.choices([o for o, _ in ops], [w for _, w in ops])[0]
        try:
            op(p)
        except TypeError:  # `pick` found nothing
            continue
    kept = p.values[-1:] + rng.sample(p.values, min(2, len(p.values)))
    p.results = [(n, d, p.annotation(d) if d and rng.random() < annotated_results else None) for n, d in kept]
    drop_dead(p)
    is_enough = p.count_annotations() >= 3 and p.n_ops >= 10
    return p if is_enough else draw(rng, kind, ops, annotated_results)


def drop_dead(p):
    """Removes what no result needs: it would tell Shardy something, and no HLO has it."""
    needed, kept = {n.split("#")[0] for n, _, _ in p.results}, []
    for name, text, said in reversed(p.lines):
        if name not in needed:
            continue
        body = f"%{text[1]}" if isinstance(text, tuple) else text.split("@@")[-1]
        needed |= set(re.findall(r"%(v\d+)", body))
        kept.append((name, text, said))
    p.lines = kept[::-1]
    p.n_ops = sum("stablehlo.constant" not in str(text) for _, text, _ in p.lines)
    p.params = [param for param in p.params if param[0] in needed]
    said = [s for _, _, s in p.params] + [s for _, _, s in p.lines] + [s for _, _, s in p.results]
    p.n_annotations = sum(s is not None for s in said)


# ---- tiles ----

def tiles_of_axes(mesh, dims):
    """For each device the tile index along each dim; `dims` lists axes (name, pre, size) of each dim."""
    sizes = [s for _, s in mesh]
    out = []
    for device in range(math.prod(sizes)):
        rest, place = device, {}
        for name, size in reversed(mesh):
            place[name] = rest % size
            rest //= size
        at = []
        for axes in dims:
            tile = 0
            for name, pre, size in axes:
                whole = dict(mesh)[name]
                part = place[name] // (whole // (pre * size)) % size
                tile = tile * size + part
            at.append(tile)
        out.append(at)
    return out


def axes_of(mesh, text):
    """The axes of each dim of `#sdy.sharding<@mesh, [...]>`."""
    inner = re.search(r"\[(.*)\]", text).group(1)
    dims = []
    for dim in re.findall(r"\{([^}]*)\}", inner):
        axes = []
        for name, pre, size in re.findall(r'"(\w+)"(?::\((\d+)\)(\d+))?', dim):
            axes.append((name, int(pre or 1), int(size or dict(mesh)[name])))
        dims.append(axes)
    return dims


def tiles_of_hlo(text, rank, n_devices):
    """The same from `sharding=` as HLO prints it."""
    if text in ("{replicated}", "{}"):
        return [[0] * rank for _ in range(n_devices)]
    found = re.match(r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    dims = [int(x) for x in found.group(1).split(",")]
    reshape = [int(x) for x in found.group(2).split(",")]
    perm = [int(x) for x in found.group(3).split(",")] if found.group(3) else list(range(len(reshape)))
    import numpy as np

    ids = np.arange(math.prod(reshape)).reshape(reshape).transpose(perm).reshape(dims)
    out = [None] * n_devices
    for index in np.ndindex(*dims):
        out[int(ids[index])] = [int(i) for i in index[:rank]]
    return out


def even(size, axes):
    """The axes without what does not divide the dim: parameters without annotation are cut evenly, by prime parts of axes."""
    out, tiles = [], 1
    for name, pre, n in axes:
        part = 1
        while part < n and size % (tiles * part * 2) == 0 and n % (part * 2) == 0:
            part *= 2
        while part < n and size % (tiles * part * 3) == 0 and n % (part * 3) == 0:
            part *= 3
        if part > 1:
            out.append((name, pre, part))
        tiles *= part
        if part < n:
            break
    return out


# ---- Shardy ----

def named(loc):
    found = re.match(r'loc\("(\w+)"', str(loc))
    return found.group(1) if found else None


def shardings_by_shardy(program):
    """By location: dims, and the text of the sharding of each result after Shardy's pipeline."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir, passmanager

    out = {}
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(program.text(True))
        names = {named(a.location) for f in module.body.operations if "func" in f.operation.name
                 for a in f.regions[0].blocks[0].arguments}
        # Without what the pipeline does afterwards, which closes dims and rounds the shardings of parameters and results.
        pipeline = "builtin.module(sdy-import-pipeline,sdy-user-priority-propagate)"
        passmanager.PassManager.parse(pipeline).run(module.operation)

        def texts(attribute):
            return re.findall(r"<@mesh, (?:\[[^\]]*\])[^>]*>", str(attribute))

        def dims_of(value):
            return list(ir.RankedTensorType(value.type).shape)

        def visit(op):
            op = op.operation
            if op.name == "sdy.data_flow_edge":
                # What a branch, a loop or a barrier gives has its sharding here.
                value = op.operands[0]
                if isinstance(value, ir.OpResult):
                    owner, text = value.owner.operation, str(op.attributes["sharding"]) if "sharding" in op.attributes else None
                    out[(named(owner.location), value.result_number)] = (owner.name, dims_of(value), text)
            elif "sdy.sharding" in op.attributes and named(op.location):
                for k, (value, text) in enumerate(zip(op.results, texts(op.attributes["sdy.sharding"]))):
                    out.setdefault((named(op.location), k), (op.name, dims_of(value), text))
            elif op.name in ("sdy.sharding_constraint", "sdy.reshard"):
                out[(named(op.location), 0)] = (op.name, dims_of(op.results[0]), texts(op.attributes["sharding"])[0])
            elif named(op.location) and op.results:
                for k, value in enumerate(op.results):
                    if isinstance(value.type, ir.RankedTensorType):
                        out.setdefault((named(op.location), k), (op.name, dims_of(value), None))
            for region in op.regions:
                for block in region.blocks:
                    for inner in block.operations:
                        visit(inner)

        for f in module.body.operations:
            if f.operation.name != "func.func":
                continue
            arg_attrs = f.operation.attributes["arg_attrs"] if "arg_attrs" in f.operation.attributes else []
            arguments = f.operation.regions[0].blocks[0].arguments
            for k, argument in enumerate(arguments):
                said = arg_attrs[k] if k < len(arg_attrs) else None
                text = str(said["sdy.sharding"]) if said is not None and "sdy.sharding" in said else None
                out[(named(argument.location), 0)] = ("parameter", dims_of(argument), text)
            visit(f)
        assert names
        return out, str(module)


def as_hlo(program):
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(program.text(False), use_tuple_args=False, return_tuple=False)
    from jaxlib import _hlo

    module = computation.get_hlo_module() if hasattr(computation, "get_hlo_module") else computation.hlo_module()
    options = _hlo.HloPrintOptions() if hasattr(_hlo, "HloPrintOptions") else None
    return module.to_string(options) if options else module.to_string()


def conflicts(found, program):
    """Ops that take or give elementwise what is cut in different ways."""
    by_name = {}
    for (name, k), (op, dims, text) in found.items():
        by_name[name if k == 0 else f"{name}#{k}"] = (op, dims, text)
    n = 0
    for name, text, _ in program.lines:
        body = " ".join(map(str, text)) if isinstance(text, tuple) else text
        operands = [o for o in re.findall(r"%(v\d+(?:#\d)?)", body) if o in by_name and o != name]
        own = by_name.get(name)
        if own is None:
            continue
        cut = [axes_of(program.mesh, by_name[o][2]) if by_name[o][2] else None for o in operands
               if by_name[o][1] == own[1]]
        me = axes_of(program.mesh, own[2]) if own[2] else None
        n += any(c != me for c in cut if c is not None)
    return n


def write(folder, count, seed):
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    written = 0
    while written < count:
        program = draw(rng)
        found, text = shardings_by_shardy(program)
        if conflicts(found, program) == 0:
            continue
        n_devices = math.prod(s for _, s in program.mesh)
        values = []
        annotated = {name for name, _, said in program.params if said}
        for (name, k), (op, dims, said) in sorted(found.items()):
            axes = axes_of(program.mesh, said) if said else [[] for _ in dims]
            if op == "parameter" and name not in annotated:
                axes = [even(size, of_dim) for size, of_dim in zip(dims, axes)]
            values.append({"name": name, "k": k, "op": op, "dims": dims, "text": said,
                           "tiles": tiles_of_axes(program.mesh, axes)})
        stem = folder / f"p{written:04}"
        stem.with_suffix(".mlir").write_text(program.text(True))
        stem.with_suffix(".sdy").write_text(text)
        stem.with_suffix(".hlo").write_text(as_hlo(program))
        stem.with_suffix(".json").write_text(json.dumps({"devices": n_devices, "values": values}))
        written += 1
    print(f"{written} programs")


INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(?[^=]*?\)?) ([a-z\-]+)\(")
NOT_TIED = {"stablehlo.constant", "stablehlo.iota"}


def shardings_of_hlo(text):
    """By `op_name`: opcode, dims and sharding of each array instruction."""
    out = {}
    for line in text.splitlines():
        head = INSTRUCTION.match(line)
        name = re.search(r'op_name="(\w+)"', line)
        said = re.search(r"sharding=(\{(?:[^{}]|\{[^{}]*\})*\})", line)
        if not head or not said or not name:
            continue
        shape, opcode = head.group(2), head.group(3)
        if shape.startswith("("):
            continue
        dims = [int(d) for d in re.search(r"\[([\d,]*)\]", shape).group(1).split(",") if d]
        out.setdefault(name.group(1), []).append((opcode, dims, said.group(1)))
    return out


def compare(folder):
    n_values = n_equal = n_missing = 0
    differing, by_op, missing, clean = [], {}, {}, 0
    files = sorted(folder.glob("p*.json"))
    for file in files:
        expected = json.loads(file.read_text())
        out = file.with_suffix(".out")
        found = shardings_of_hlo(out.read_text())
        n_before = len(differing)
        for value in expected["values"]:
            rank = len(value["dims"])
            if rank == 0 or value["op"] in NOT_TIED or value["k"] > 0:
                continue
            candidates = [c for c in found.get(value["name"], []) if c[1] == value["dims"]]
            is_copy = value["op"] in ("sdy.sharding_constraint", "sdy.reshard")
            plain = [c for c in candidates if (c[0] == "copy") == is_copy] or candidates
            if not plain:
                n_missing += 1
                print(file.stem, value["name"], "not found")
                missing[value["op"]] = missing.get(value["op"], 0) + 1
                continue
            n_values += 1
            ours = tiles_of_hlo(plain[-1][2], rank, expected["devices"])
            if ours == value["tiles"]:
                n_equal += 1
            else:
                differing.append((file.stem, value["name"], value["op"], value["text"], plain[-1][2]))
                by_op[value["op"]] = by_op.get(value["op"], 0) + 1
        clean += len(differing) == n_before
    for one in differing[:60]:
        print("%s %s %s: Shardy %s, ours %s" % one)
    share = n_equal / max(1, n_values)
    print(f"{len(files)} programs, {n_values} values, {n_equal} equal ({100 * share:.2f} %), {n_missing} not found; "
          f"{clean} programs without a difference; differing by op {by_op}, not found by op {missing}")
    return share >= 0.95 and n_missing * 20 <= n_values


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(0 if compare(Path(sys.argv[2])) else 1)
