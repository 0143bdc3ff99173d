"""Collectives of several operands, written as one collective each.

StableHLO has no reduce-scatter of several operands, and XLA's CPU pipeline takes an all-reduce of several only without a
channel id: on their way into XLA both are split. All-gathers of several operands survive and are left as they are."""
import re

import mutants

SPLIT = ("all-reduce", "reduce-scatter")


def split(text):
    """The same module with every all-reduce and reduce-scatter of several operands split; and how many there were."""
    found = [
        i
        for c in mutants.read_computations(text)
        for i in c.instructions.values()
        if i.opcode in SPLIT and i.shape.startswith("(")
    ]
    lines = text.split("\n")
    for at in sorted(found, key=lambda i: -i.line):
        lines[at.line : at.line + 1] = _parts(at)
    return "\n".join(lines), len(found)


def _parts(at):
    shapes = element_shapes(at.shape)
    names = [f"split.{k}.{at.name}" for k in range(len(shapes))]
    parts = [
        mutants.Instruction(0, False, at.sigil, name, shape, at.opcode, [operand], at.attributes).text()
        for name, shape, operand in zip(names, shapes, at.operands, strict=True)
    ]
    return parts + [mutants.Instruction(0, at.root, at.sigil, at.name, at.shape, "tuple", names, "").text()]


def element_shapes(shape):
    """Texts of a flat tuple's element shapes: commas inside brackets part nothing, comments are none."""
    parts, depth, part = [], 0, ""
    for c in re.sub(r"/\*.*?\*/", "", shape)[1:-1] + ",":
        if c == "," and depth == 0:
            if part.strip():
                parts.append(part.strip())
            part = ""
            continue
        depth += c in "([{"
        depth -= c in ")]}"
        part += c
    return parts
