"""Optimizers: each gives the new weight and the new moments of one weight, from its gradient and the number of the step.

Importing this file imports JAX: set JAX_PLATFORMS before."""
import jax.numpy as jnp


def adam(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w - 1e-3 * step, m, v


def adamw(w, g, m, v, t):
    new, m, v = adam(w, g, m, v, t)
    return new - 1e-5 * w, m, v


def lamb(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.01 * w
    weight_norm, step_norm = jnp.linalg.norm(w.ravel()), jnp.linalg.norm(step.ravel())
    trust = jnp.where((weight_norm > 0) & (step_norm > 0), weight_norm / step_norm, 1.0)
    return w - 1e-3 * trust * step, m, v


def lars(w, g, m, t):
    weight_norm, step_norm = jnp.linalg.norm(w.ravel()), jnp.linalg.norm((g + 1e-4 * w).ravel())
    trust = jnp.where((weight_norm > 0) & (step_norm > 0), weight_norm / step_norm, 1.0)
    m = 0.9 * m + 0.1 * trust * (g + 1e-4 * w)
    return w - m, m


def sgd(w, g, t, rate=1e-3):
    return (w - rate * g,)


# Each with how many moments of a weight it keeps.
OPTIMIZERS = {"adam": (adam, 2), "adamw": (adamw, 2), "lamb": (lamb, 2), "lars": (lars, 1), "sgd": (sgd, 0)}
