"""``zero``: a compiled Keras model whose optimizer state is sharded over the devices while it trains."""

from __future__ import annotations

from typing import Any

import keras
from hlo_opt.arguments import checks_names
from hlo_opt.jax.explain import Report
from hlo_opt.jax.explain import report as report_of_step
from hlo_opt.jax.wrapped import check_version
from hlo_opt.jax.zero import ZeroError, ZeroStep, options_of
from hlo_opt.keras.training import TrainFunctionMaker

#: The method of a model that Keras calls before it trains. A model that ``zero`` has taken has its own.
_MAKER = "make_train_function"


@checks_names
def zero(
    model: keras.Model,
    *,
    shard: str = "optimizer",
    memory_limit: int | float | str | None = None,
    state: dict[str, bool] | None = None,
    offload: bool = False,
    machine: str | None = None,
    deadline_s: float | None = None,
    strict: bool = False,
    quiet: bool = False,
) -> keras.Model:
    """Shards the optimizer's state of a compiled Keras model over the devices while it trains.

    Call it after ``model.compile``. ``fit`` and ``train_on_batch`` then run the sharded step; everything else of the
    model stays as it is. The model has to be built under a :class:`keras.distribution.DataParallel`, which puts it on
    several devices. Another ``compile`` keeps the options.

    Args:
        model: the compiled model. It is changed in place.
        shard: as of :func:`hlo_opt.jax.zero`, and so are all that follow.
        memory_limit: the most memory that one device may need.
        state: which variables are sharded. Names are those that :func:`report` prints, such as
            ``optimizer['adam/dense_kernel_momentum']``.
        offload: keep the optimizer's state in the memory of the host between steps.
        machine: the machine that times are predicted for.
        deadline_s: seconds that the passes may take for each plan.
        strict: raise :class:`hlo_opt.jax.ZeroError` if the step cannot be taken over, instead of a warning.
        quiet: do not print the line at the first step.

    Returns:
        The model.

    Raises:
        TypeError: ``model`` is no Keras model, or an option has a wrong type.
        ValueError: Keras does not run on JAX, the model is not compiled, ``zero`` has taken it before, or an option
            has a wrong value.
    """
    if keras.config.backend() != "jax":
        raise ValueError(
            f"zero: expected Keras on JAX, found the backend {keras.config.backend()!r}: set KERAS_BACKEND=jax in the "
            "environment before keras is imported"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"zero: expected a keras.Model, found {type(model).__name__}")
    if not model.compiled:
        raise ValueError(
            f"zero: expected a compiled model, found {model.name!r} without an optimizer: call model.compile first"
        )
    if maker_of(model) is not None:
        raise ValueError(
            f"zero: {model.name!r} has been through zero before, and another compile keeps that: to change options, build "
            "the model anew"
        )
    options = options_of(
        shard=shard,
        memory_limit=memory_limit,
        state=state,
        offload=offload,
        machine=machine,
        deadline_s=deadline_s,
        strict=strict,
        quiet=quiet,
    )
    check_version(ZeroStep.maker, ZeroError, options.strict)
    setattr(model, _MAKER, TrainFunctionMaker(model, options))
    # What an earlier fit has made is made again.
    model.train_function = None
    return model


def maker_of(model: Any) -> TrainFunctionMaker | None:
    """Returns what :func:`zero` has put into a model, ``None`` if it has not seen the model."""
    maker = getattr(model, _MAKER, None)
    return maker if isinstance(maker, TrainFunctionMaker) else None


def report(model: keras.Model) -> Report:
    """Returns what :func:`hlo_opt.jax.report` says of the model's last training step.

    Raises:
        ValueError: the model has not been through :func:`zero`, or has not trained since it was compiled.
    """
    maker = maker_of(model)
    if maker is None:
        raise ValueError(f"report: expected a model after hlo_opt.keras.zero, found {getattr(model, 'name', model)!r}")
    if maker.step is None:
        raise ValueError(
            f"report: expected a model that has trained, found {model.name!r}: call fit or train_on_batch first"
        )
    return report_of_step(maker.step)
