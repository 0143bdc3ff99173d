"""Deliberate corruptions of a transformed module, to show that the comparison would see a wrong pass.

A mutator takes (transformed text, original text) and gives the corrupted text, or raises NotApplicable with the reason.
`FOR_PASS` lists the mutators of each pass."""
import math
import re
from dataclasses import dataclass, field, replace

from hlo_text import header_counts


class NotApplicable(Exception):
    """This module has no place for the corruption."""


@dataclass
class Instruction:
    """One line of a computation. `line` is its index in the text; `sigil` is '%' in XLA's long form."""

    line: int
    root: bool
    sigil: str
    name: str
    shape: str
    opcode: str
    operands: list
    attributes: str

    def dims(self):
        """Dimensions of an array shape."""
        inner = self.shape[self.shape.index("[") + 1 : self.shape.index("]")]
        return [int(d) for d in inner.split(",") if d]

    def text(self):
        """The line again, operands by name alone."""
        operands = ", ".join(self.sigil + o for o in self.operands)
        root = "ROOT " if self.root else ""
        return f"  {root}{self.sigil}{self.name} = {self.shape} {self.opcode}({operands}){self.attributes}"


@dataclass
class Computation:
    """Instructions by name, in the order of the text."""

    instructions: dict = field(default_factory=dict)


_HEAD = re.compile(r"^\s+(ROOT )?(%?)([\w.\-]+) = (.*)$")


def read_computations(text):
    """The computations of a module's text; enough structure for edits, not a parser that checks."""
    computations, current = [], None
    for number, line in enumerate(text.split("\n")):
        if line.endswith("{") and not line.startswith(" ") and not line.startswith("HloModule"):
            current = Computation()
            computations.append(current)
        elif line.startswith("}"):
            current = None
        elif current is not None and (m := _HEAD.match(line)):
            instruction = _read_instruction(number, m)
            if instruction:
                current.instructions[instruction.name] = instruction
    return computations


def _read_instruction(number, match):
    rest = match.group(4)
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode = re.match(r"[\w\-]+", rest)
    if not opcode or rest[opcode.end() : opcode.end() + 1] != "(":
        return None
    close = _closing(rest, opcode.end())
    operands = _operand_names(rest[opcode.end() + 1 : close])
    return Instruction(
        number, bool(match.group(1)), match.group(2), match.group(3), shape, opcode.group(0), operands, rest[close + 1 :]
    )


def _closing(s, start):
    depth = 0
    for i in range(start, len(s)):
        if s[i] in "([{":
            depth += 1
        elif s[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return len(s) - 1


def _operand_names(inside):
    names, depth, part = [], 0, ""
    for c in re.sub(r"/\*.*?\*/", "", inside) + ",":
        if c == "," and depth == 0:
            if part.strip():
                names.append(part.split()[-1].lstrip("%"))
            part = ""
            continue
        depth += c in "([{"
        depth -= c in ")]}"
        part += c
    return names


def _replace_line(text, number, lines):
    all_lines = text.split("\n")
    all_lines[number : number + 1] = lines
    return "\n".join(all_lines)


_CARRIES = {"divide", "multiply", "add", "negate", "select", "reshape", "transpose", "copy", "convert", "bitcast"}


def _path_to_reduce_scatter(instructions, name, depth=16):
    """Names from `name` down to a reduce-scatter, through elementwise and data-movement ops; None if there is none."""
    at = instructions.get(name)
    if at is None or depth == 0:
        return None
    if at.opcode == "reduce-scatter":
        return [name]
    if at.opcode in _CARRIES:
        for operand in at.operands:
            below = _path_to_reduce_scatter(instructions, operand, depth - 1)
            if below:
                return [name] + below
    return None


def drop_mean(text, _original):
    """Half of the largest reduced gradient is not divided. (LARS scales a factor of the whole away.)"""
    best = None
    for computation in read_computations(text):
        for at in computation.instructions.values():
            if at.opcode == "divide" and _path_to_reduce_scatter(computation.instructions, at.operands[0]):
                best = at if best is None or math.prod(at.dims()) > math.prod(best.dims()) else best
    if best is None:
        raise NotApplicable("no divide follows a reduce-scatter")
    return _replace_line(text, best.line, _divide_half(best))


def _divide_half(at):
    """Lines for a divide that leaves the first half of its longest dim as it was."""
    sizes = at.dims()
    dim = max(range(len(sizes)), key=lambda d: sizes[d], default=None)
    if dim is None:
        return [replace(at, opcode="copy", operands=at.operands[:1]).text()]
    shape = at.shape[at.shape.index("[") :]
    s, n = at.sigil, f"mutant.{at.name}"
    return [
        replace(at, root=False, name=f"{n}.whole").text(),
        f"  {s}{n}.half = s32[] constant({(sizes[dim] + 1) // 2})",
        f"  {s}{n}.halves = s32{shape} broadcast({s}{n}.half), dimensions={{}}",
        f"  {s}{n}.index = s32{shape} iota(), iota_dimension={dim}",
        f"  {s}{n}.first = pred{shape} compare({s}{n}.index, {s}{n}.halves), direction=LT",
        replace(at, opcode="select", operands=[f"{n}.first", at.operands[0], f"{n}.whole"], attributes="").text(),
    ]


def square_unreduced_gradient(text, _original):
    """Squares of reduced gradients take this device's shard of the gradient before the reduction.

    All of them: a norm that is only guarded against zero, or below its limit, hides one."""
    n_replicas, n_partitions = header_counts(text)
    id_opcode = "replica-id" if n_replicas > 1 else "partition-id"
    reason, found = "nothing squares a reduce-scatter's result", []
    for computation in read_computations(text):
        for at in computation.instructions.values():
            if at.opcode != "multiply" or len(at.operands) != 2 or at.operands[0] != at.operands[1]:
                continue
            path = _path_to_reduce_scatter(computation.instructions, at.operands[0])
            if not path:
                continue
            scatter = computation.instructions[path[-1]]
            if len(scatter.operands) == 1 and _one_group_in_order(scatter.attributes, n_replicas * n_partitions):
                found.append((at, path, computation.instructions))
            else:
                reason = "the squared gradient's reduce-scatter has several operands or groups"
    if not found:
        raise NotApplicable(reason)
    for at, path, instructions in sorted(found, key=lambda f: -f[0].line):
        text = _replace_line(text, at.line, _square_unreduced(at, path, instructions, id_opcode))
    return text


def _square_unreduced(at, path, instructions, id_opcode):
    """Lines for a square of this device's shard, computed anew from before the reduction."""
    prefix = f"mutant.{at.name}"
    lines = _own_shard(instructions[path[-1]], id_opcode, prefix)
    replaced = {path[-1]: f"{prefix}.shard"}
    for name in reversed(path[:-1]):
        old = instructions[name]
        operands = [replaced.get(o, o) for o in old.operands]
        copy = Instruction(
            0, False, old.sigil, f"{prefix}.{name}", old.shape, old.opcode, operands, old.attributes
        )
        replaced[name] = copy.name
        lines.append(copy.text())
    return lines + [replace(at, operands=[replaced[o] for o in at.operands]).text()]


def _one_group_in_order(attributes, n_devices):
    listed = re.search(r"replica_groups=(\{\{[\d,]*\}\}|\{\}|\[1,\d+\]<=\[\d+\])", attributes)
    if not listed:
        return False
    return listed.group(1) in ("{}", f"[1,{n_devices}]<=[{n_devices}]") or listed.group(1) == "{{" + ",".join(
        map(str, range(n_devices))
    ) + "}}"


def _own_shard(scatter, id_opcode, prefix):
    """Lines that slice the reduce-scatter's operand where its result would lie; the slice is `PREFIX.shard`."""
    s, p = scatter.sigil, prefix
    dim = int(re.search(r"dimensions=\{(\d+)\}", scatter.attributes).group(1))
    sizes = scatter.dims()
    offsets = [f"{p}.offset" if d == dim else f"{p}.zero" for d in range(len(sizes))]
    names = ", ".join(s + n for n in [scatter.operands[0], *offsets])
    size_list = ",".join(map(str, sizes))
    return [
        f"  {s}{p}.id = u32[] {id_opcode}()",
        f"  {s}{p}.id_s32 = s32[] convert({s}{p}.id)",
        f"  {s}{p}.size = s32[] constant({sizes[dim]})",
        f"  {s}{p}.zero = s32[] constant(0)",
        f"  {s}{p}.offset = s32[] multiply({s}{p}.id_s32, {s}{p}.size)",
        f"  {s}{p}.shard = {scatter.shape} dynamic-slice({names}), dynamic_slice_sizes={{{size_list}}}",
    ]


def rotate_shard(text, original):
    """Every device works on the shard of its neighbour: the device ids that the pass added are off by one."""
    n_replicas, n_partitions = header_counts(text)
    before = {(i.opcode, i.name) for c in read_computations(original) for i in c.instructions.values()}
    found = [
        i
        for c in read_computations(text)
        for i in c.instructions.values()
        if i.opcode in ("partition-id", "replica-id") and (i.opcode, i.name) not in before
    ]
    if not found:
        raise NotApplicable("the pass added no partition-id or replica-id")
    for at in sorted(found, key=lambda i: -i.line):
        count = n_partitions if at.opcode == "partition-id" else n_replicas
        s, n = at.sigil, at.name
        root = "ROOT " if at.root else ""
        lines = [
            f"  {s}mutant.{n}.id = {at.shape} {at.opcode}()",
            f"  {s}mutant.{n}.one = {at.shape} constant(1)",
            f"  {s}mutant.{n}.next = {at.shape} add({s}mutant.{n}.id, {s}mutant.{n}.one)",
            f"  {s}mutant.{n}.count = {at.shape} constant({count})",
            f"  {root}{s}{n} = {at.shape} remainder({s}mutant.{n}.next, {s}mutant.{n}.count)",
        ]
        text = _replace_line(text, at.line, lines)
    return text


def swap_combined(text, _original):
    """Two parts of equal shape change places behind a collective that carries several."""
    best = None
    for computation in read_computations(text):
        parts = {}
        for at in computation.instructions.values():
            carrier = computation.instructions.get(at.operands[0]) if at.operands else None
            if at.opcode in ("slice", "get-tuple-element") and carrier and _carries_several(carrier, computation.instructions):
                parts.setdefault((at.operands[0], at.shape), []).append(at)
        for alike in parts.values():
            other = next((a for a in alike[1:] if a.attributes != alike[0].attributes), None)
            n_elems = math.prod(alike[0].dims()) if other else 0
            if other and (best is None or n_elems > best[0]):
                best = (n_elems, alike[0], other)
    if best is None:
        raise NotApplicable("no collective carries two parts of equal shape")
    _, one, other = best
    one.attributes, other.attributes = other.attributes, one.attributes
    return _replace_line(_replace_line(text, one.line, [one.text()]), other.line, [other.text()])


_COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather")


def _carries_several(carrier, instructions):
    if carrier.opcode == "tuple":  # as variadic.split leaves it
        return bool(carrier.operands) and all(o.startswith("split.") for o in carrier.operands)
    if carrier.opcode not in _COLLECTIVES or not carrier.operands:
        return False
    operand = instructions.get(carrier.operands[0])
    return carrier.shape.startswith("(") or (operand is not None and operand.opcode == "concatenate")


def gather_backwards(text, _original):
    """Every all-gather puts its parts together the wrong way round."""
    found = [
        at
        for computation in read_computations(text)
        for at in computation.instructions.values()
        if at.opcode == "all-gather" and re.search(r"replica_groups=\{\{\d+,", at.attributes)
    ]
    if not found:
        raise NotApplicable("no all-gather over listed groups")
    for at in found:
        turned = lambda group: "{" + ",".join(reversed(group.group(1).split(","))) + "}"
        groups = re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", at.attributes).group(1)
        at.attributes = at.attributes.replace(groups, re.sub(r"\{([\d,]+)\}", turned, groups))
        text = _replace_line(text, at.line, [at.text()])
    return text


FOR_PASS = {
    "decompose-collectives": [gather_backwards],
    "shard-weight-update": [drop_mean, square_unreduced_gradient, rotate_shard],
    "combine-collectives": [swap_combined],
}


def for_pipeline(pipeline):
    """The mutators of the passes that a pipeline string names."""
    return [m for name, mutators in FOR_PASS.items() if re.search(rf"(^|,)\s*{re.escape(name)}\b", pipeline) for m in mutators]
