#!/usr/bin/env python3
"""Print what XLA's CPU backend takes of a device's memory for one HLO module, as one JSON line.

memory_stats.py FILE.hlo

The way over StableHLO loses what the module's header says of donated parameters (`buffer_donor`, `input_output_alias`). It
is put back as the attributes of @main's arguments by which JAX says it, so XLA updates state in place as it would in a
training run."""
import io
import json
import re
import sys

import hlo_oracle
import hlo_text


def donations(text):
    """(donated parameters, {parameter: output leaf that it is aliased with}) of the module's header."""
    header = hlo_text.without_comments(text).split("\n", 1)[0]
    donors = _entry(header, "buffer_donor")
    aliases = _entry(header, "input_output_alias")
    if re.search(r"\(\d+, \{\d", donors + aliases) or re.search(r"\{\d+,", aliases):
        raise ValueError("expected flat parameters and outputs in the header's donations, found tuples")
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", aliases)
    return [int(p) for p in re.findall(r"\((\d+), \{\}\)", donors)], {int(p): int(o or 0) for o, p in pairs}


def _entry(header, key):
    start = header.find(key + "={")
    if start < 0:
        return ""
    depth, begin = 0, header.index("{", start)
    for i in range(begin, len(header)):
        depth += {"{": 1, "}": -1}.get(header[i], 0)
        if depth == 0:
            return header[begin + 1 : i]
    raise ValueError(f"expected a closing brace behind {key}")


def with_donations(stablehlo, donors, aliases):
    """The StableHLO program with `donors` and `aliases` as attributes of @main's arguments."""
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        program = ir.Module.parse(stablehlo)
        main = next(f for f in program.body.operations if str(f.attributes["sym_name"]).strip('"') == "main")
        attributes = [{} for _ in main.type.inputs]
        if "arg_attrs" in main.attributes:
            attributes = [{a.name: a.attr for a in one} for one in main.attributes["arg_attrs"]]
        for parameter, output in aliases.items():
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), output)
            attributes[parameter]["tf.aliasing_output"] = number
        for parameter in donors:
            attributes[parameter]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])
        stream = io.BytesIO()
        program.operation.write_bytecode(stream)
        return stream.getvalue()


def stats(text):
    """Bytes of arguments, outputs, temporaries and aliases on one device."""
    replicas, partitions = hlo_text.header_counts(text)
    hlo_oracle.set_device_count(replicas * partitions)
    donors, aliases = donations(text)
    module = hlo_oracle.parse(hlo_text.expand_mesh_groups(hlo_text.without_comments(text)))
    edit = lambda stablehlo: with_donations(stablehlo, donors, aliases)
    executable = hlo_oracle.compile_module(module, replicas, partitions, edit=edit)
    found = executable.get_compiled_memory_stats()
    sizes = {name: getattr(found, f"{name}_size_in_bytes") for name in ["argument", "output", "temp", "alias"]}
    if (donors or aliases) and sizes["alias"] == 0:
        raise ValueError(f"expected XLA to alias some of {len(donors) + len(aliases)} donated parameters, found none")
    return sizes


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        print(json.dumps(stats(f.read())))
