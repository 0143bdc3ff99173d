"""hlo-opt inside JAX: ``train_step = hlo_opt.jax.zero(train_step)`` keeps a step's state in shards between
steps; ``train_step = hlo_opt.jax.partition(train_step)`` partitions a step over a mesh, and ``hlo_opt.jax.auto`` finds how."""

from hlo_opt.jax.auto import AutoStep, auto
from hlo_opt.jax.explain import Report, report
from hlo_opt.jax.hook import Hooked, HookError, disable, enable, hooked
from hlo_opt.jax.padded import PaddedArray
from hlo_opt.jax.partition import PartitionError, PartitionStep, partition
from hlo_opt.jax.state import init, replicate, shardings
from hlo_opt.jax.zero import ZeroError, ZeroStep, zero

__all__ = [
    "AutoStep",
    "HookError",
    "Hooked",
    "PaddedArray",
    "PartitionError",
    "PartitionStep",
    "Report",
    "ZeroError",
    "ZeroStep",
    "auto",
    "disable",
    "enable",
    "hooked",
    "init",
    "partition",
    "replicate",
    "report",
    "shardings",
    "zero",
]
