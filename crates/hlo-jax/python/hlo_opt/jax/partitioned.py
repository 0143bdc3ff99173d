"""The program of one device that XLA's partitioner makes of a jitted step, with what is known of its arguments and
outputs."""

from __future__ import annotations

import dataclasses
import glob
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from hlo_opt.jax import private
from hlo_opt.jax.layout import spec_of
from hlo_opt.jax.names import argument_namer
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Declined(Exception):
    """Why a step runs as it was: one sentence."""


class NotTraced(Exception):
    """JAX cannot trace the step with these arguments; the cause is what it says."""


@dataclasses.dataclass
class Lowered:
    """A jitted step as JAX lowers it for several devices.

    Attributes:
        traced, program: what JAX traced, and what it lowered.
        mesh: the mesh of the arguments; its devices are numbered as in the module.
        kept: for each parameter of the module, its number among the flat arguments.
        avals: shape and dtype of each flat argument.
        donated: whether each flat argument is donated.
        outputs: shape and dtype of each flat output.
        weak: whether each output has a weak type, as what Python's numbers become.
        out_tree: the tree of the outputs.
        in_paths, out_paths: the paths of the flat arguments in ``(args, kwargs)``, and of the outputs in the result.
        names: what the flat arguments are called, as ``params['w']``.
        callbacks: the functions of Python that the program calls, by their numbers in it.
    """

    traced: Any
    program: Any
    mesh: Mesh
    kept: list[int]
    avals: list[Any]
    donated: list[bool]
    outputs: list[jax.ShapeDtypeStruct]
    weak: list[bool]
    out_tree: Any
    in_paths: list[Any]
    out_paths: list[Any]
    names: list[str]
    callbacks: list[Callable[..., Any]]

    @property
    def effects(self) -> frozenset[Any]:
        """What the program does beside computing its results: prints, calls of Python."""
        return frozenset(self.traced.jaxpr.effects)


@dataclasses.dataclass
class Partitioned(Lowered):
    """A jitted step after a partitioner.

    Attributes:
        module: the HloModuleProto of one device.
        param_specs: how each parameter is cut, by number of the parameter.
        output_specs: how each output is cut.
        placed: the flat arguments that came on no device and are put on the mesh in shards.
    """

    module: bytes
    param_specs: list[PartitionSpec]
    output_specs: list[PartitionSpec]
    placed: frozenset[int] = frozenset()

    def describe(self, number: int, spec: PartitionSpec | None = None) -> str:
        """A parameter as ``params['w'] float32[64, 8] P('data')``, with the spec that it came with or another."""
        flat = self.kept[number]
        aval = self.avals[flat]
        return f"{self.names[flat]} {aval.dtype}{list(aval.shape)} {self.param_specs[number] if spec is None else spec}"


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
        raise Declined(f"the step runs on one device: {_onto_a_mesh()}")
    meshes = [s.mesh for s in private.argument_shardings(lowered) if isinstance(s, NamedSharding)]
    meshes = [mesh for mesh in meshes if isinstance(mesh, Mesh)]
    if not meshes:
        raise Declined("no argument of the step has a NamedSharding, so there is no mesh to say by how state is cut")
    if list(meshes[0].devices.flat) != devices:
        raise Declined("the devices of the mesh are in another order than those of the program")
    return meshes[0]


def _onto_a_mesh() -> str:
    """What to do with arguments that are on one device."""
    n_devices = jax.device_count()
    if n_devices < 2:
        return "there is no other one, and nothing to share"
    return (
        f"put its arguments on a mesh, mesh = jax.make_mesh(({n_devices},), ('data',)): the state by "
        "jax.device_put(state, NamedSharding(mesh, PartitionSpec())), the batch by jax.device_put(batch, "
        "NamedSharding(mesh, PartitionSpec('data')))"
    )


def lower(step: Any, args: tuple, kwargs: dict) -> Lowered:
    """Lowers a jitted step with these arguments.

    Raises:
        Declined: the step cannot be taken over, and why.
        NotTraced: the step itself fails with these arguments.
    """
    try:
        traced = step.trace(*args, **kwargs)
    except Exception as error:
        raise NotTraced from error
    try:
        program = traced.lower()
    except Exception as error:
        # JAX refuses an ordered print on several devices in its own words.
        raise NotTraced from error
    mesh = _mesh_of(program)
    infos = jax.tree.leaves_with_path(program.args_info, is_leaf=lambda info: hasattr(info, "donated"))
    outputs = jax.tree.leaves_with_path(program.out_info)
    for sharding in private.argument_shardings(program):
        if getattr(sharding, "memory_kind", None) not in (None, "device", "unpinned_host"):
            raise Declined(
                f"an argument lies in {sharding.memory_kind}: only state in the devices' own memory is taken over"
            )
    paths = [path for path, _ in infos]
    name = argument_namer(step, private.static_arguments(step)[0])
    return Lowered(
        traced=traced,
        program=program,
        mesh=mesh,
        kept=private.kept_arguments(program),
        avals=[info.shape_dtype if hasattr(info, "shape_dtype") else info for _, info in infos],
        donated=[info.donated for _, info in infos],
        outputs=[output for _, output in outputs],
        weak=[aval.weak_type for aval in traced.jaxpr.out_avals],
        out_tree=program.out_tree,
        in_paths=paths,
        out_paths=[path for path, _ in outputs],
        names=[name(path) for path in paths],
        callbacks=private.host_callbacks(program),
    )


def decline_effects(lowered: Lowered, only_ordered: bool = False) -> None:
    """Raises :class:`Declined` where a step prints or calls back into Python, in any order or in that of the program."""
    effects = lowered.traced.jaxpr.effects
    if only_ordered:
        effects = private.ordered_effects(effects)
    if effects:
        names = ", ".join(sorted(type(effect).__name__ for effect in effects))
        kind = "ordered side effects" if only_ordered else "side effects"
        raise Declined(f"the step has {kind} ({names}): they stay with the original program")
    if lowered.callbacks and not only_ordered:
        raise Declined("the step calls back into Python: callbacks stay with the original program")


def module_of_xla(lowered: Lowered, name: str) -> bytes:
    """The module of one device, by XLA's partitioner.

    Raises:
        Declined: XLA has not partitioned it.
        Exception: what XLA says where it cannot.
    """
    dump = lambda folder: private.compile_until_partitioned(lowered.program, folder)
    return dumped_module(dump, f"jit_{name}")


def module_of_all(lowered: Lowered) -> bytes:
    """The module of all devices together, from before a partitioner. Operations that bring code of their own for XLA's
    partitioner (``custom_partitioning``) stand in it as the function that they compute.

    Raises:
        Declined: an operation in it is for XLA's partitioner alone.
    """
    module = private.global_module(lowered.program)
    if private.CUSTOM_PARTITIONING in module:
        module = private.global_module(private.with_whole_operations(lowered.traced))
    for target, operation in private.FOR_PARTITIONER.items():
        if target in module:
            raise Declined(f"{operation} is for XLA's partitioner alone: hlo-opt has nothing to put in its place")
    return module


def partitioned_by_xla(lowered: Lowered, name: str) -> Partitioned:
    """Has XLA partition a lowered step.

    Raises:
        Declined: the step cannot be taken over, and why.
        Exception: what XLA says where it cannot.
    """
    module, mesh = module_of_xla(lowered, name), lowered.mesh
    kinds = ([lowered.avals[number] for number in lowered.kept], lowered.outputs)
    ranks = [[len(physical(aval).shape) for aval in of_kind] for of_kind in kinds]
    names = (
        [f"the argument {lowered.names[number]}" for number in lowered.kept],
        [f"the result {jax.tree_util.keystr(path)}" for path in lowered.out_paths],
    )
    specs = []
    for leaves, of_kind in zip(private.chosen_shardings(module, *ranks, mesh.devices.size), names):
        found = [None if tile is None else spec_of(tile, mesh) for tile in leaves]
        if None in found:
            where = of_kind[found.index(None)]
            raise Declined(f"{where} lies on the devices in a way that the mesh {dict(mesh.shape)} cannot say")
        specs.append(found)
    return Partitioned(**_fields(lowered), module=module, param_specs=specs[0], output_specs=specs[1])


def _fields(lowered: Lowered) -> dict[str, Any]:
    return {field.name: getattr(lowered, field.name) for field in dataclasses.fields(Lowered)}


def partitioned_as(
    lowered: Lowered, module: bytes, mesh: Mesh, param_specs: list[PartitionSpec], output_specs: list[PartitionSpec]
) -> Partitioned:
    """A lowered step that another partitioner cut, over a mesh of the same devices."""
    fields = {**_fields(lowered), "mesh": mesh}
    return Partitioned(**fields, module=module, param_specs=param_specs, output_specs=output_specs)


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
