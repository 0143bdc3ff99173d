"""A StableHLO program of one device as a JAX function of global arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from hlo_opt.jax import private
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh, PartitionSpec


class Program:
    """A program as a parameter of the primitive: compared and hashed by identity."""

    def __init__(
        self,
        code: bytes,
        params: Sequence[Any],
        results: Sequence[Any],
        weak: Sequence[bool],
        on_host: Collection[int] = (),
        callbacks: Sequence[Callable[..., Any]] = (),
        effects: Collection[Any] = (),
    ) -> None:
        """``on_host`` has the numbers of the results that lie in the memory of the host, ``callbacks`` the functions of
        Python that the code calls, by their numbers in it, and ``effects`` what it does beside computing its results."""
        self.code, self.callbacks, self.effects = code, tuple(callbacks), set(effects)
        self.params = tuple((p.shape, str(p.dtype)) for p in params)
        made = []
        for number, (result, is_weak) in enumerate(zip(results, weak)):
            space = {"memory_space": private.host_space()} if number in on_host else {}
            made.append(jax.core.ShapedArray(result.shape, result.dtype, weak_type=is_weak, **space))
        self.results = tuple(made)

    def __repr__(self) -> str:
        return f"<program of {len(self.params)} parameters>"


class SignatureChanged(Exception):
    """The program was made for arguments of other shapes or dtypes."""


step_p = Primitive("hlo_opt_step")
step_p.multiple_results = True


@step_p.def_effectful_abstract_eval
def _(*operands: Any, program: Program) -> tuple[Sequence[Any], set]:
    if tuple((o.shape, str(o.dtype)) for o in operands) != program.params:
        raise SignatureChanged
    return program.results, program.effects


def _lower(context: Any, *operands: Any, program: Program) -> Sequence[Any]:
    return private.inline_stablehlo(context, program.code, operands, program.callbacks)


mlir.register_lowering(step_p, _lower)


def global_function(
    program: Program, mesh: Mesh, in_specs: Sequence[PartitionSpec], out_specs: Sequence[PartitionSpec]
) -> Callable[..., tuple]:
    """The function of global arrays that runs ``program`` on each device of ``mesh``."""

    def local(*operands: Any) -> tuple:
        return tuple(step_p.bind(*operands, program=program))

    return jax.shard_map(local, mesh=mesh, in_specs=tuple(in_specs), out_specs=tuple(out_specs), check_vma=False)
