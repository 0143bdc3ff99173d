"""hlo-opt inside JAX: ``train_step = hlo_opt.jax.zero(train_step)`` keeps a step's state in shards between steps."""

from hlo_opt.jax.explain import Report, report
from hlo_opt.jax.state import init, replicate, shardings
from hlo_opt.jax.zero import ZeroError, ZeroStep, zero

__all__ = ["Report", "ZeroError", "ZeroStep", "init", "replicate", "report", "shardings", "zero"]
