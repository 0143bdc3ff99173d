"""The two halves of `cargo xtask proto-check` that need jaxlib.

proto_check.py write OUT FILE…     for each text: its proto (N.jax.pb) and what jaxlib prints of that (N.ref), and the table of
                                   messages inside jaxlib (table.json)
proto_check.py compare OUT FILE…   what jaxlib reads in our text of its proto (N.our.hlo) and in our proto of the text (N.our.pb)
                                   must be N.ref; prints the differences and two counts
"""

import glob
import json
import mmap
import os
import re
import sys

import jaxlib
from jaxlib import _hlo

TYPES = {1: "Double", 2: "Float", 3: "Int64", 4: "Uint64", 5: "Int32", 8: "Bool", 9: "Text", 12: "Bytes", 13: "Uint32"}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    """Numbers and values of a message."""
    at, out = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError("expected a varint or bytes in a descriptor")
        out.append((key >> 3, value))
    return out


def descriptor(library, name):
    """The FileDescriptorProto of that name in a library: it begins with its name and its package."""
    key = bytes([0x0A, len(name)]) + name.encode()
    start = -1
    while True:
        start = library.find(key, start + 1)
        if start < 0:
            raise ValueError(f"{name} is not in this jaxlib")
        if library[start + len(key) : start + len(key) + 2] == b"\x12\x03":
            break
    at = start
    while True:
        number, next_at = varint(library, at)
        if number & 7 != 2 or not 1 <= number >> 3 <= 12:
            return bytes(library[start:at])
        length, next_at = varint(library, next_at)
        if length > 400_000:
            return bytes(library[start:at])
        at = next_at + length
        if number >> 3 == 12:
            return bytes(library[start:at])


def add_enum(table, data, prefix):
    parts = fields(data)
    name = prefix + next(value for number, value in parts if number == 1).decode()
    values = [dict(fields(value)) for number, value in parts if number == 2]
    table["enums"][name] = {value[1].decode(): value.get(2, 0) for value in values}


def add_message(table, data, prefix):
    parts = fields(data)
    name = prefix + next(value for number, value in parts if number == 1).decode()
    rows = []
    for field in (dict(fields(value)) for number, value in parts if number == 2):
        kind = TYPES.get(field[5]) or field[6].decode().removeprefix(".xla.")
        rows.append([field[1].decode(), field[3], kind, field.get(4) == 3])
    table["messages"][name] = rows
    for number, value in parts:
        if number == 3:
            add_message(table, value, name + ".")
        if number == 4:
            add_enum(table, value, name + ".")


def table():
    """All messages and enums of the two files that describe modules."""
    path = glob.glob(os.path.join(os.path.dirname(jaxlib.__file__), "**", "libjax_common.so"), recursive=True)[0]
    out = {"messages": {}, "enums": {}}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        for name in ("xla/xla_data.proto", "xla/service/hlo.proto"):
            for number, value in fields(descriptor(library, name)):
                if number == 4:
                    add_message(out, value, "")
                if number == 5:
                    add_enum(out, value, "")
    return out


def printed(proto):
    return _hlo.HloModule.from_serialized_hlo_module_proto(proto).to_string()


def write(out, files):
    with open(os.path.join(out, "table.json"), "w") as file:
        json.dump(table(), file)
    for i, path in enumerate(files):
        try:
            proto = _hlo.hlo_module_from_text(open(path).read()).as_serialized_hlo_module_proto()
            reference = printed(proto)
        except Exception:  # another version of jaxlib printed it, or jaxlib cannot read what it writes
            continue
        with open(os.path.join(out, f"{i}.jax.pb"), "wb") as file:
            file.write(proto)
        with open(os.path.join(out, f"{i}.ref"), "w") as file:
            file.write(reference)


def comparable(text):
    """Without what no proto has: counts, and what may be propagated."""
    text = re.sub(r", (num_partitions|replica_count)=\d+", "", text)
    text = re.sub(r", allow_spmd_sharding_propagation_to_(parameters|output)=\{[^}]*\}", "", text)
    return text.replace(", alias_passthrough_params=true", "")


def difference(expected, found):
    for a, b in zip(expected.split("\n"), found.split("\n")):
        if a != b:
            at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            at = max(0, at - 60)
            return f"\n    expected {a[at:at + 200]}\n    found    {b[at:at + 200]}"
    return "\n    another number of lines"


def compare(out, files):
    counts = {"our text of its proto": 0, "our proto of the text": 0}
    n_files = 0
    for i, path in enumerate(files):
        place = os.path.join(out, str(i))
        if not os.path.exists(place + ".ref"):
            continue
        n_files += 1
        expected = comparable(open(place + ".ref").read())
        for what, read in (
            ("our text of its proto", lambda: _hlo.hlo_module_from_text(open(place + ".our.hlo").read())
                .as_serialized_hlo_module_proto()),
            ("our proto of the text", lambda: open(place + ".our.pb", "rb").read()),
        ):
            try:
                found = comparable(printed(read()))
            except Exception as error:
                print(f"{path}: {what}: {str(error)[:300]}")
                continue
            if found == expected:
                counts[what] += 1
            else:
                print(f"{path}: {what}: {difference(expected, found)}")
    for what, count in counts.items():
        print(f"{what}: {count} of {n_files} modules as jaxlib {jaxlib.__version__} reads them")
    return n_files == min(counts.values()) and n_files > 0


if __name__ == "__main__":
    command, folder, *paths = sys.argv[1:]
    if command == "write":
        write(folder, paths)
    elif not compare(folder, paths):
        sys.exit(1)
