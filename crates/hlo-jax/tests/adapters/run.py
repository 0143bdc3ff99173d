"""Runs a script of this folder, with or without its lines of hlo_opt. As a program: ``run.py NAME WORKDIR N_DEVICES``
goes on from the checkpoint in a folder, and writes there what came of it as ``result.npz``. With ``PROCESS N_PROCESSES PORT`` behind
these it is one process of several, with its share of the devices, and writes no checkpoint of its own."""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import hlo_opt.jax as ho
import jax
import numpy as np
from flax import nnx
from hlo_opt.jax import PaddedArray

FOLDER = pathlib.Path(__file__).parent

#: Of each script which part of the state that it returns is the optimizer's.
OPTIMIZER = {
    "lm1b_style": lambda state: state.opt_state,
    "nnx_style": lambda state: state[1],
    "haiku_style": lambda state: state.opt_state,
    "equinox_style": lambda state: state[1],
    "nanodo_style": lambda state: state.opt_state,
}


def lines_of_hlo_opt(name: str) -> list[str]:
    """The lines that a script has for hlo_opt."""
    return [line for line in source(name).splitlines() if is_of_hlo_opt(line)]


def source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def is_of_hlo_opt(line: str) -> bool:
    return "hlo_opt" in line or "ho." in line


def load(name: str, own: bool) -> types.ModuleType:
    """A script as a module of its own; without ``own``, less the lines of hlo_opt."""
    lines = source(name).splitlines(keepends=True)
    module = types.ModuleType(name)
    # Dataclasses and pickle find the module by its name.
    sys.modules[name] = module
    exec(compile("".join(line for line in lines if own or not is_of_hlo_opt(line)), name, "exec"), module.__dict__)
    return module


def arrays(tree: Any) -> Any:
    """The arrays of a tree; those of NNX's modules by their names."""
    if isinstance(tree, nnx.Module) or (type(tree) is tuple and isinstance(tree[0], nnx.Module)):
        tree = nnx.to_pure_dict(nnx.state(tree))
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if isinstance(leaf, jax.Array)}


def held_bytes(leaf: jax.Array) -> int:
    """What the first device has of an array."""
    array = leaf.held if isinstance(leaf, PaddedArray) else leaf
    return array.addressable_shards[0].data.nbytes


def key_data_in(found: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Arrays as they can be written to a file: random keys by their data."""
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return {path: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for path, leaf in found.items()}


def main(name: str, workdir: str, n_devices: str, process: str = "0", n_processes: str = "1", port: str = "") -> None:
    if n_processes != "1":
        jax.distributed.initialize(f"localhost:{port}", int(n_processes), int(process))
    assert len(jax.devices()) == int(n_devices)
    module = load(name, own=True)
    more = {} if n_processes == "1" else {"checkpoint_every_steps": 1000}
    state, _ = module.train_and_evaluate(module.Config(workdir, int(n_devices), **more))
    of_optimizer = arrays(OPTIMIZER[name](state))
    held = {f"held {path}": held_bytes(leaf) for path, leaf in of_optimizer.items()}
    np.savez(pathlib.Path(workdir) / "result.npz", **held, **key_data_in(ho.replicate(arrays(state))))


if __name__ == "__main__":
    main(*sys.argv[1:])
