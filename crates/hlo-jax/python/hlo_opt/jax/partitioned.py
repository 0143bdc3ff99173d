"""The program of one device that XLA's partitioner makes of a jitted step, with what is known of its arguments and
outputs."""

from __future__ import annotations

import dataclasses
import glob
import re
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from hlo_opt.jax import private
from hlo_opt.jax.layout import spec_of
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Declined(Exception):
    """Why a step runs as it was: one sentence."""


class NotTraced(Exception):
    """JAX cannot trace the step with these arguments; the cause is what it says."""


@dataclasses.dataclass
class Partitioned:
    """A jitted step after XLA's partitioner.

    Attributes:
        module: the HloModuleProto of one device.
        mesh: the mesh of the arguments; its devices are numbered as in the module.
        kept: for each parameter of the module, its number among the flat arguments.
        avals: shape and dtype of each flat argument.
        donated: whether each flat argument is donated.
        param_specs: how each parameter is cut, by number of the parameter.
        outputs: shape and dtype of each flat output.
        weak: whether each output has a weak type, as what Python's numbers become.
        output_specs: how each output is cut.
        out_tree: the tree of the outputs.
        in_paths, out_paths: what leaves are called, as ``[0]['w']``.
    """

    module: bytes
    mesh: Mesh
    kept: list[int]
    avals: list[Any]
    donated: list[bool]
    param_specs: list[PartitionSpec]
    outputs: list[jax.ShapeDtypeStruct]
    weak: list[bool]
    output_specs: list[PartitionSpec]
    out_tree: Any
    in_paths: list[Any]
    out_paths: list[Any]

    def describe(self, number: int, spec: PartitionSpec | None = None) -> str:
        """A parameter as ``[0]['w'] float32[64, 8] P('data')``, with the spec that it came with or another."""
        flat = self.kept[number]
        aval = self.avals[flat]
        # The first part of a path says that it is a positional argument.
        name = jax.tree_util.keystr(self.in_paths[flat][1:])
        return f"{name} {aval.dtype}{list(aval.shape)} {self.param_specs[number] if spec is None else spec}"


def first_message(data: bytes) -> bytes:
    """The first field of a proto: the HloModuleProto that an HloProto begins with."""
    size = shift = 0
    for place in range(1, 11):
        size |= (data[place] & 127) << shift
        shift += 7
        if data[place] < 128:
            return data[place + 1 : place + 1 + size]
    raise Declined("XLA's dump of the partitioned module cannot be read")


def dumped_module(dump: Callable[[str], None], name: str) -> bytes:
    """The partitioned module that a function has XLA write into a folder, by this name.

    Raises:
        Declined: XLA has not partitioned it.
    """
    with tempfile.TemporaryDirectory(prefix="hlo_opt_") as folder:
        dump(folder)
        found = glob.glob(f"{glob.escape(folder)}/*after_spmd-partitioning*.hlo.pb")
        if not found:
            raise Declined("XLA did not partition the step: it has no partitioner's dump")
        with open(found[0], "rb") as file:
            return private.renamed_module(first_message(file.read()), name)


def _mesh_of(lowered: Any) -> Mesh:
    devices = private.devices_of(lowered)
    if len(devices) < 2:
        raise Declined("the step runs on one device: put its arguments on a mesh of several")
    meshes = [s.mesh for s in private.argument_shardings(lowered) if isinstance(s, NamedSharding)]
    meshes = [mesh for mesh in meshes if isinstance(mesh, Mesh)]
    if not meshes:
        raise Declined("no argument of the step has a NamedSharding, so there is no mesh to say by how state is cut")
    if list(meshes[0].devices.flat) != devices:
        raise Declined("the devices of the mesh are in another order than those of the program")
    return meshes[0]


def partition(step: Any, args: tuple, kwargs: dict) -> Partitioned:
    """Lowers a jitted step with these arguments and has XLA partition it.

    Raises:
        Declined: the step cannot be taken over, and why.
        NotTraced: the step itself fails with these arguments.
    """
    return _partition(step, args, kwargs)[0]


def partition_by_xla(step: Any, args: tuple, kwargs: dict) -> tuple[Partitioned, bytes]:
    """As :func:`partition`, with the HloModuleProto of all devices together, from before the partitioner.

    Raises:
        Declined: the step cannot be taken over, and why.
        NotTraced: the step itself fails with these arguments.
    """
    partitioned, lowered = _partition(step, args, kwargs)
    return partitioned, private.global_module(lowered)


def _partition(step: Any, args: tuple, kwargs: dict) -> tuple[Partitioned, Any]:
    """Lowers a jitted step with these arguments and has XLA partition it; gives what was lowered too.

    Raises:
        Declined: the step cannot be taken over, and why.
        NotTraced: the step itself fails with these arguments.
    """
    try:
        traced = step.trace(*args, **kwargs)
    except Exception as error:
        raise NotTraced from error
    if traced.jaxpr.effects:
        effects = ", ".join(sorted(type(effect).__name__ for effect in traced.jaxpr.effects))
        raise Declined(f"the step has side effects ({effects}): prints and callbacks stay with the original program")
    lowered = traced.lower()
    mesh = _mesh_of(lowered)
    kept = private.kept_arguments(lowered)
    infos = jax.tree.leaves_with_path(lowered.args_info, is_leaf=lambda info: hasattr(info, "donated"))
    avals = [info.shape_dtype if hasattr(info, "shape_dtype") else info for _, info in infos]
    outputs = jax.tree.leaves_with_path(lowered.out_info)
    for sharding in private.argument_shardings(lowered):
        if getattr(sharding, "memory_kind", None) not in (None, "device", "unpinned_host"):
            raise Declined(
                f"an argument lies in {sharding.memory_kind}: only state in the devices' own memory is taken over"
            )
    name = f"jit_{getattr(step, '__name__', 'step')}"
    module = dumped_module(lambda folder: private.compile_until_partitioned(lowered, folder), name)
    if re.search(rb"xla_\w*python_\w*callback", module):
        raise Declined("the step calls back into Python: callbacks stay with the original program")
    ranks = [len(physical(avals[number]).shape) for number in kept]
    output_ranks = [len(physical(output).shape) for _, output in outputs]
    tiles = private.chosen_shardings(module, ranks, output_ranks, mesh.devices.size)
    specs = []
    for leaves, names in zip(tiles, ([infos[n][0] for n in kept], [path for path, _ in outputs])):
        of_kind = []
        for tile, name in zip(leaves, names):
            spec = None if tile is None else spec_of(tile, mesh)
            if spec is None:
                where = jax.tree_util.keystr(name)
                raise Declined(f"{where} lies on the devices in a way that the mesh {dict(mesh.shape)} cannot say")
            of_kind.append(spec)
        specs.append(of_kind)
    partitioned = Partitioned(
        module=module,
        mesh=mesh,
        kept=kept,
        avals=avals,
        donated=[info.donated for _, info in infos],
        param_specs=specs[0],
        outputs=[output for _, output in outputs],
        weak=[aval.weak_type for aval in traced.jaxpr.out_avals],
        output_specs=specs[1],
        out_tree=lowered.out_tree,
        in_paths=[path for path, _ in infos],
        out_paths=[path for path, _ in outputs],
    )
    return partitioned, lowered


def physical(aval: Any) -> jax.ShapeDtypeStruct:
    """An array's shape and dtype in the module: random keys are arrays of integers there."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def local_shape(shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh) -> tuple[int, ...]:
    """The shape of one device's part of an array."""
    sizes = list(shape)
    for dim, axes in enumerate(spec):
        names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
        sizes[dim] //= int(np.prod([mesh.shape[name] for name in names], dtype=int))
    return tuple(sizes)
