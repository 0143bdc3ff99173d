"""hlo-opt inside JAX: ``train_step = zero(train_step)``."""

from hlo_opt.jax.zero import ZeroError, ZeroStep, zero

__all__ = ["ZeroError", "ZeroStep", "zero"]
