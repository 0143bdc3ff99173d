"""Arrays of which no dim is a multiple of the devices, held in shards all the same: padded, or with dims merged.

JAX cuts a dim only into equal parts. What cannot be cut so is held as an array of another shape that can, and shown as
the array that it is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hlo_opt.jax import private
from jax.sharding import NamedSharding


@dataclasses.dataclass(frozen=True)
class Padding:
    """How an array is held in another shape: the dims from ``dim`` on are merged to one, which is padded at its end.

    Attributes:
        shape: that of the array.
        merged: its shape with these dims merged.
        padded: the same with padding.
        dim: the dim that is merged, padded and cut.
    """

    shape: tuple[int, ...]
    merged: tuple[int, ...]
    padded: tuple[int, ...]
    dim: int

    def pad(self, whole: Any) -> Any:
        """The array as it is held."""
        widths = [(0, after - before) for before, after in zip(self.merged, self.padded)]
        return jnp.pad(jnp.reshape(whole, self.merged), widths)

    def unpad(self, held: Any) -> Any:
        """The array that is held: of NumPy's arrays a view where that is possible."""
        return held[tuple(slice(size) for size in self.merged)].reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Place:
    """How and where an array is held, and what it would be in the original step. Equal places have equal programs."""

    padding: Padding
    dtype: Any
    weak: bool
    held: NamedSharding
    whole: NamedSharding

    @functools.cached_property
    def aval(self) -> Any:
        """What JAX knows of the array, always the same object."""
        return jax.core.ShapedArray(self.padding.shape, self.dtype, weak_type=self.weak)

    @functools.cached_property
    def _pad(self) -> Callable[[Any], jax.Array]:
        return jax.jit(self.padding.pad, out_shardings=self.held)

    @functools.cached_property
    def _unpad(self) -> Callable[[Any], jax.Array]:
        return jax.jit(self.whole_traced, out_shardings=self.whole)

    def cut_traced(self, whole: Any) -> Any:
        """As :meth:`cut`, while another function is traced."""
        return jax.lax.with_sharding_constraint(self.padding.pad(whole), self.held)

    def whole_traced(self, held: Any) -> Any:
        """The array that is held, while another function is traced."""
        # A slice of what is cut would keep the cut: it is made whole first.
        return self.padding.unpad(jax.lax.with_sharding_constraint(held, self.whole))

    def cut(self, leaf: Any) -> jax.Array:
        """An array as this place holds it."""
        if isinstance(leaf, PaddedArray):
            if leaf.place is self:
                return leaf.held
            leaf = leaf.whole()
        return self._pad(jax.device_put(leaf, self.whole))


class PaddedArray(jax.Array):
    """An array that is held in shards in another shape.

    It is a leaf of a tree, and shows the shape, dtype and values of the array. ``numpy.asarray``, arithmetic, calls of
    jitted functions, checkpoints and pickling work, as with the whole array on every device: for these it is put
    together anew each time. The step that made it takes it as it is held.

    Attributes:
        held: the ordinary array in shards that has the values, with padding at its end.
        place: how it is held.
    """

    __slots__ = ("held", "place")

    def __init__(self, held: jax.Array, place: Place) -> None:
        self.held = held
        self.place = place

    def whole(self) -> jax.Array:
        """The array as an ordinary one, whole on every device. In a run of several processes all have to ask."""
        return self.place._unpad(self.held)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.place.padding.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> Any:
        return self.place.dtype

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def weak_type(self) -> bool:
        return self.place.weak

    @property
    def aval(self) -> Any:
        return self.place.aval

    @property
    def sharding(self) -> NamedSharding:
        """What the array put together has: it is whole on every device."""
        return self.place.whole

    @property
    def committed(self) -> bool:
        return True

    _committed = committed

    @property
    def is_fully_replicated(self) -> bool:
        return True

    @property
    def is_fully_addressable(self) -> bool:
        return self.held.is_fully_addressable

    def devices(self) -> set:
        return self.held.devices()

    def is_deleted(self) -> bool:
        return self.held.is_deleted()

    def is_ready(self) -> bool:
        return self.held.is_ready()

    def delete(self) -> None:
        self.held.delete()

    def block_until_ready(self) -> PaddedArray:
        self.held.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        self.held.copy_to_host_async()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Shards come to the host one by one: no device holds the whole.
        found = self.place.padding.unpad(np.asarray(self.held))
        found = found.astype(dtype, copy=False) if dtype is not None else found
        return found.copy() if copy else found

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"PaddedArray({np.asarray(self)!r}, held as {list(self.held.shape)} in {self.held.sharding.spec})"

    def __reduce__(self) -> Any:
        """What it is when it comes back: an ordinary array, as any array that is pickled."""
        return self.whole().__reduce__()

    def __copy__(self) -> PaddedArray:
        return PaddedArray(self.held.copy(), self.place)

    def __deepcopy__(self, memo: dict) -> PaddedArray:
        return self.__copy__()

    __hash__ = None  # type: ignore[assignment]


def _of_whole(name: str) -> property:
    return property(lambda self: getattr(self.whole(), name), doc=f"As of the whole array: ``{name}``.")


def _complete() -> None:
    """Gives the class all else that arrays have, as the whole array has it."""
    of_arrays = private.array_type()
    inherited = {name for base in of_arrays.__mro__[:-1] for name in vars(base)}
    left = {"__module__", "__doc__", "__slots__", "__weakref__", "__init__", "__new__", "__reduce_ex__", "__dict__"}
    left |= {"__init_subclass__", "__class_getitem__", "__getattribute__", "__setattr__", "__del__", "__abstractmethods__"}
    left |= {"__annotations__", "__static_attributes__", "__firstlineno__", "__parameters__", "_abc_impl", "_npy_value"}
    for name in sorted(inherited - left - vars(PaddedArray).keys()):
        setattr(PaddedArray, name, _of_whole(name))
    private.register_array(PaddedArray, lambda leaf: leaf.aval, lambda leaf: leaf.whole())


@functools.cache
def is_known() -> bool:
    """Whether JAX takes such arrays as arguments: it is told so at the first question."""
    try:
        _complete()
    except (ImportError, AttributeError):
        return False
    return True
