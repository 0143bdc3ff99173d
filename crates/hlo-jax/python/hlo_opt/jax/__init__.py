"""hlo-opt inside JAX: ``train_step = hlo_opt.jax.zero(train_step)`` keeps a step's state in shards between steps."""

from hlo_opt.jax.explain import Report, report
from hlo_opt.jax.hook import Hooked, HookError, disable, enable, hooked
from hlo_opt.jax.state import init, replicate, shardings
from hlo_opt.jax.zero import ZeroError, ZeroStep, zero

__all__ = [
    "HookError",
    "Hooked",
    "Report",
    "ZeroError",
    "ZeroStep",
    "disable",
    "enable",
    "hooked",
    "init",
    "replicate",
    "report",
    "shardings",
    "zero",
]
