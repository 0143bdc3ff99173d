"""State, found by the trees of a step's arguments and results."""

from __future__ import annotations

import jax
from hlo_opt.jax.partitioned import Lowered


def state_pairs(step: Lowered) -> list[tuple[int, int]]:
    """Parameter and output of state, found by the trees: a part of the arguments comes back as a part of the outputs.

    An argument leaf and an output leaf are paired where the ends of their paths, shapes and dtypes agree, and no other
    output has as long an end in common with it. Numbers alone are no name: they have to be the whole of both paths.
    """
    pairs = []
    taken: set[int] = set()
    by_place = {}
    for number, path in enumerate(step.out_paths):
        output = step.outputs[number]
        for length in range(len(path) + 1):
            end = jax.tree_util.keystr(path[len(path) - length :]) if length else ""
            by_place.setdefault((length, end, output.shape, str(output.dtype)), []).append(number)
    for param, flat in enumerate(step.kept):
        aval, path = step.avals[flat], step.in_paths[flat]
        # The first part of the path says whether it is an argument by place or by keyword, the second which one.
        for length in range(len(path) - 1, 0, -1):
            keys = path[len(path) - length :]
            end = jax.tree_util.keystr(keys)
            found = by_place.get((length, end, aval.shape, str(aval.dtype)), [])
            if all(isinstance(key, jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey) for key in keys):
                is_whole = length == len(path) - 1
                found = [number for number in found if is_whole and len(step.out_paths[number]) == length]
            if len(found) == 1:
                if found[0] not in taken:
                    taken.add(found[0])
                    pairs.append((param, found[0]))
                break
            if found:
                break
    return pairs
