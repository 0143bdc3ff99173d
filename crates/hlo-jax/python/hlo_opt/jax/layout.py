"""From tiles on devices to a ``PartitionSpec`` over the axes of a mesh, and back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import numpy as np
from hlo_opt.jax.private import Tiles
from jax.sharding import Mesh, PartitionSpec


def spec_of(tiles: Tiles, mesh: Mesh) -> PartitionSpec | None:
    """The spec under which each device of ``mesh`` holds its tile; ``None`` where no order of the axes gives these
    tiles.

    The devices are numbered as they lie in the mesh.
    """
    places = np.stack(np.unravel_index(np.arange(mesh.devices.size), mesh.devices.shape), axis=1)
    sizes = mesh.devices.shape
    free = [axis for axis, size in enumerate(sizes) if size > 1]
    spec: list[None | str | tuple[str, ...]] = []
    for dim, n_tiles in enumerate(tiles.n_tiles):
        if n_tiles == 1:
            spec.append(None)
            continue
        found = _axes_of(tiles.tile_of_device[:, dim], n_tiles, places, sizes, free)
        if found is None:
            return None
        free = [axis for axis in free if axis not in found]
        names = tuple(mesh.axis_names[axis] for axis in found)
        spec.append(names if len(names) > 1 else names[0])
    while spec and spec[-1] is None:
        spec.pop()
    return PartitionSpec(*spec)


def _axes_of(wanted: np.ndarray, n_tiles: int, places: np.ndarray, sizes: tuple[int, ...], free: list[int]):
    """Axes, major-most first, whose places on the mesh number the tiles as wanted."""
    for n_axes in range(1, len(free) + 1):
        for axes in itertools.permutations(free, n_axes):
            if np.prod([sizes[axis] for axis in axes]) != n_tiles:
                continue
            number = np.zeros(len(places), int)
            for axis in axes:
                number = number * sizes[axis] + places[:, axis]
            if np.array_equal(number, wanted):
                return axes
    return None


def tiles_of(spec: PartitionSpec, rank: int, mesh: Mesh) -> Tiles:
    """The tiles that a spec gives; the devices are numbered as they lie in the mesh."""
    places = np.stack(np.unravel_index(np.arange(mesh.devices.size), mesh.devices.shape), axis=1)
    n_tiles = [1] * rank
    tile_of_device = np.zeros((mesh.devices.size, rank), int)
    for dim, names in enumerate(spec):
        for name in () if names is None else names if isinstance(names, tuple) else (names,):
            axis = mesh.axis_names.index(name)
            n_tiles[dim] *= mesh.devices.shape[axis]
            tile_of_device[:, dim] = tile_of_device[:, dim] * mesh.devices.shape[axis] + places[:, axis]
    return Tiles(n_tiles, tile_of_device)


def refinements(mesh: Mesh) -> Iterator[Mesh]:
    """The mesh itself, and meshes of the same devices in the same order of which one axis is split in two."""
    yield mesh
    for axis, (name, size) in enumerate(mesh.shape.items()):
        for inner in range(size // 2, 1, -1):
            if size % inner == 0:
                sizes = [*mesh.devices.shape[:axis], size // inner, inner, *mesh.devices.shape[axis + 1 :]]
                names = [*mesh.axis_names[:axis], f"{name}_outer", f"{name}_inner", *mesh.axis_names[axis + 1 :]]
                yield Mesh(mesh.devices.reshape(sizes), names)


def reorderings(mesh: Mesh) -> Iterator[Mesh]:
    """Meshes of the same devices in the same order whose axes have the same sizes, in every order."""
    for sizes in sorted(set(itertools.permutations(mesh.devices.shape))):
        yield Mesh(mesh.devices.reshape(sizes), mesh.axis_names)


def cut(tiles: Tiles, dim: int, n_shards: int, shard_of_device: list[int]) -> Tiles:
    """The tiles of an array whose tiles are cut once more along ``dim``."""
    n_tiles = list(tiles.n_tiles)
    n_tiles[dim] *= n_shards
    tile_of_device = tiles.tile_of_device.copy()
    tile_of_device[:, dim] = tile_of_device[:, dim] * n_shards + np.asarray(shard_of_device)
    return Tiles(n_tiles, tile_of_device)


_TILED = re.compile(r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))(.*)\}")


def tiles_of_text(text: str, rank: int, n_devices: int) -> Tiles:
    """The tiles of a sharding in HLO's words, as ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``.

    Raises:
        ValueError: the words are others.
    """
    if text == "{replicated}" or rank == 0:
        return Tiles([1] * rank, np.zeros((n_devices, rank), int))
    found = _TILED.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a sharding by tiles, found {text}")
    numbers = lambda words: [int(word) for word in words.split(",")]
    dims = numbers(found[1])
    if found[4] is not None:
        devices = np.array(numbers(found[4]))
    else:
        reshaped = np.arange(n_devices).reshape(numbers(found[2]))
        devices = (reshaped if found[3] is None else reshaped.transpose(numbers(found[3]))).flatten()
    devices = devices.reshape(dims)
    tile_of_device = np.zeros((n_devices, rank), int)
    for place in np.ndindex(*dims):
        tile_of_device[devices[place]] = place[:rank]
    return Tiles(dims[:rank], tile_of_device)
