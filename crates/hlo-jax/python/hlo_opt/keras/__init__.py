"""hlo-opt inside Keras 3 on JAX: ``hlo_opt.keras.zero(model)``, between ``compile`` and ``fit``, shards the optimizer's
state over the devices."""

import importlib.util

for _name in ("keras", "jax"):
    if importlib.util.find_spec(_name) is None:
        raise ImportError(f"hlo_opt.keras needs Keras 3 on JAX, and {_name} is not installed: pip install keras jax")

import keras as _keras  # noqa: E402

if int(_keras.__version__.partition(".")[0]) < 3:
    raise ImportError(f"hlo_opt.keras needs Keras 3, found keras {_keras.__version__}: pip install --upgrade keras")

from hlo_opt.keras.zero import report, zero  # noqa: E402

__all__ = ["report", "zero"]
