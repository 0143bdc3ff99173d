"""Edits of HLO text that the oracle needs before XLA sees a module. No XLA is imported here."""
import re

import numpy as np


def without_comments(text):
    """The text from its `HloModule` on: samples start with comment lines."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith("HloModule")), 0)
    return "\n".join(lines[start:])


def header_counts(text):
    """(replica_count, num_partitions) of the module header; an absent count is 1."""
    header = without_comments(text).split("\n", 1)[0]
    replicas = re.search(r"replica_count=(\d+)", header)
    partitions = re.search(r"num_partitions=(\d+)", header)
    return (int(replicas.group(1)) if replicas else 1, int(partitions.group(1)) if partitions else 1)


def replication_groups(text, n_devices):
    """{flat ENTRY parameter: [group id per device]} from the sharding= of ENTRY parameters.

    Devices that hold the same tile share an id. Understood: {replicated}, {devices=[..]<=[..]T(..)} with and without
    last_tile_dim_replicate, {devices=[..]0,1,..}. A parameter with another sharding, or none, is left out: all its
    devices get values of their own."""
    entry = text[text.index("\nENTRY"):]
    groups = {}
    for m in re.finditer(r" parameter\((\d+)\), sharding=\{((?:[^{}]|\{[^{}]*\})*)\}", entry):
        index, sharding = int(m.group(1)), m.group(2)
        if sharding.startswith("replicated"):
            groups[index] = [0] * n_devices
            continue
        tiled = re.match(r"devices=\[([\d,]+)\](<=\[([\d,]+)\](?:T\(([\d,]+)\))?|[\d,]+)(.*)", sharding)
        if not tiled:
            continue
        tile = _ints(tiled.group(1))
        if tiled.group(3):
            devices = np.arange(n_devices).reshape(_ints(tiled.group(3)))
            if tiled.group(4):
                devices = devices.transpose(_ints(tiled.group(4)))
            devices = devices.reshape(tile)
        else:
            devices = np.array(_ints(tiled.group(2))).reshape(tile)
        replicate = "last_tile_dim_replicate" in tiled.group(5)
        ids = [0] * n_devices
        for k, row in enumerate(devices.reshape(-1, tile[-1]) if replicate else devices.reshape(-1, 1)):
            for device in row:
                ids[int(device)] = k + 1
        groups[index] = ids
    return groups


def _ints(comma_separated):
    return [int(x) for x in comma_separated.split(",")]


def expand_mesh_groups(text):
    """Spell replica_groups=mesh['a'=4,'b'=2] {'b'} out as {{0,1},...}; sub-axes ('a':(1)2) too.

    Needed before the StableHLO route: two meshes in one module are silently bound to the wrong groups there."""

    def expand(m):
        axes = [(a, int(s)) for a, s in re.findall(r"'([^']+)'=(\d+)", m.group(1))]
        chosen = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", m.group(2))
        dims, names = [], []
        for axis, size in axes:
            subs = sorted((int(p), int(z)) for b, p, z in chosen if b == axis and p)
            pos = 1
            for p, z in subs:
                if p > pos:
                    dims.append(p // pos)
                    names.append((axis, pos, "rest"))
                dims.append(z)
                names.append((axis, p, "chosen"))
                pos = p * z
            if pos < size or not subs:
                dims.append(size // pos)
                names.append((axis, pos, "rest" if subs else "full"))
        want = [
            next(i for i, (a, q, kind) in enumerate(names) if a == b and (kind == "full" if not p else kind == "chosen" and q == int(p)))
            for b, p, _ in chosen
        ]
        ids = np.arange(int(np.prod(dims))).reshape(dims)
        keep = [i for i in range(len(dims)) if i not in want]
        rows = ids.transpose(keep + want).reshape(-1, int(np.prod([dims[i] for i in want])))
        return "replica_groups={" + ",".join("{" + ",".join(map(str, r)) + "}" for r in rows) + "}"

    return re.sub(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", expand, text)


def spell_out_frames(text):
    """The text without its tables of source places, and each stack_frame_id=N as the places themselves.

    XLA numbers these tables anew at every print, so that equal modules differ in the numbers."""
    tables, current, kept = {}, None, []
    for line in text.split("\n"):
        entry = re.match(r"(\d+) (.*)$", line)
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            current = tables.setdefault(line, {})
        elif current is not None and entry:
            current[int(entry.group(1))] = entry.group(2)
        else:
            current = current if line == "" else None
            kept.append(line)

    def fields(inside):
        return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", inside)}

    def place(location_id):
        at = fields(tables["FileLocations"][location_id])
        at["file_name_id"] = tables["FileNames"][at["file_name_id"]]
        at["function_name_id"] = tables["FunctionNames"][at["function_name_id"]]
        return ",".join(str(v) for v in at.values())

    def frames(m):
        chain, at = [], int(m.group(1))
        while at in tables.get("StackFrames", {}):
            frame = fields(tables["StackFrames"][at])
            chain.append(place(frame["file_location_id"]))
            above = frame.get("parent_frame_id", 1) - 1  # printed one higher, so that 1 says "none"
            at = above if above < at else 0
        return "stack_frames=[" + ";".join(chain) + "]"

    return re.sub(r"stack_frame_id=(\d+)", frames, "\n".join(kept))


def shorten_loops(text, trips=3, period=2):
    """The same module with its training loops cut short.

    Long loops amplify rounding until no comparison means anything. The constants above 5 that a while's condition
    compares with become `trips` (5 where a body has a conditional), and then the summary period 100 becomes
    `period`, so that both branches are taken."""
    conditions = set(re.findall(r"condition=%?([\w.\-]+)", text))
    has_conditional = " conditional(" in text
    limit = 5 if has_conditional else trips
    out, inside = [], False
    for line in text.split("\n"):
        head = re.match(r"%?([\w.\-]+)\s.*\{$", line)
        if head and not line.startswith(" "):
            inside = head.group(1) in conditions
        if line.startswith("}"):
            inside = False
        if inside:
            line = re.sub(
                r"s32\[\] constant\((\d+)\)",
                lambda m: f"s32[] constant({limit})" if int(m.group(1)) > 5 else m.group(0),
                line,
            )
        elif has_conditional:
            line = line.replace("s32[] constant(100)", f"s32[] constant({period})")
        out.append(line)
    return "\n".join(out)


def flatten_to_replicas(text):
    """Rewrite num_partitions=N to replica_count=N. The numbers stay the same.

    Every collective must count devices by flattened id (channel_id and use_global_device_ids=true). The CPU pipeline
    takes a variadic all-reduce only without a channel id."""
    header, body = text.split("\n", 1)
    n = int(re.search(r"num_partitions=(\d+)", header).group(1))
    if "replica_count=" in header:
        raise ValueError("flatten_to_replicas: expected a module with partitions only")
    header = re.sub(r", (allow_spmd_sharding_propagation_to_\w+)=\{[^}]*\}", "", header)
    header = re.sub(r", num_partitions=\d+", "", header) + f", replica_count={n}"
    body = re.sub(r", channel_id=\d+", "", body).replace(", use_global_device_ids=true", "")
    body = body.replace("partition-id()", "replica-id()")
    body = re.sub(r", sharding=\{(?:[^{}]|\{[^{}]*\})*\}", "", body)
    return header + "\n" + body


def donors_as_aliases(text, n_outputs):
    """The same module with each donated parameter i < n_outputs as the buffer of output i.

    The StableHLO route keeps input_output_alias and loses buffer_donor. Each parameter must be one array."""
    donors = re.search(r"buffer_donor=\{((?:[^{}]|\{[^{}]*\})*)\}", text.split("\n", 1)[0])
    if not donors:
        return text
    numbers = [int(n) for n in re.findall(r"\((\d+), \{\}\)", donors.group(1))]
    aliases = ", ".join(f"{{{i}}}: ({i}, {{}}, may-alias)" for i in sorted(numbers) if i < n_outputs)
    return text[: donors.start()] + f"input_output_alias={{ {aliases} }}" + text[donors.end() :]
