"""Keras models train after ``hlo_opt.keras.zero`` as they do without it, and their optimizer's state lies in shards."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import hlo_opt.jax as ho
import jax
import numpy as np
import pytest
from training_scripts import normal

os.environ["KERAS_BACKEND"] = "jax"
keras = pytest.importorskip("keras")

import hlo_opt.keras as hk  # noqa: E402
from hlo_opt.keras import private  # noqa: E402

layers, optimizers, callbacks = keras.layers, keras.optimizers, keras.callbacks

#: Three batches of 64 rows, and one of 8.
X, Y = normal(0, 200, 64), np.random.default_rng(1).integers(0, 10, 200)

#: What is smaller may stay whole where no dim is a multiple of the devices.
LARGE = 16 << 10


@pytest.fixture(autouse=True)
def distribution():
    with keras.distribution.DataParallel().scope():
        yield


def classifier() -> keras.Model:
    """Layers with batch statistics and dropout; no dim of the second kernel is a multiple of eight."""
    dense = [layers.Dense(331, "gelu"), layers.BatchNormalization(), layers.Dropout(0.1), layers.Dense(129, "relu")]
    return keras.Sequential([keras.Input((64,)), *dense, layers.Dense(10)])


def perceptron() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Dense(256, "gelu"), layers.Dense(64), layers.Dense(10)])


def half_perceptron() -> keras.Model:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return perceptron()
    finally:
        keras.config.set_dtype_policy("float32")


def adapted_perceptron() -> keras.Model:
    model = perceptron()
    model.layers[1].trainable = False
    return model


class Halved(keras.Sequential):
    """A step of the user's own, as Keras' guide for JAX has it."""

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y = data
        compute = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, aux), grads = compute(
            trainable, non_trainable, metrics, x, y, None, training=True, optimizer_variables=optimizer
        )
        _, _, non_trainable, metrics = aux
        grads = [grad / 2 for grad in grads]
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        return {"own_loss": loss}, (trainable, non_trainable, optimizer, metrics)


def halved() -> keras.Model:
    return Halved([keras.Input((64,)), layers.Dense(256, "gelu"), layers.Dense(10)])


def attention() -> keras.Model:
    x = inputs = keras.Input((64,))
    x = layers.Dense(64)(layers.Reshape((8, 8))(x))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def compiled(make: Callable[[], keras.Model], optimizer: Callable[[], Any], **options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, metrics=["accuracy"], **options)
    return model


def fit(model: keras.Model, n_rows: int = 192, **options: Any) -> dict[str, list[float]]:
    options = {"epochs": 2, "batch_size": 64, "shuffle": False, "verbose": 0, **options}
    return model.fit(X[:n_rows], Y[:n_rows], **options).history


def share(model: keras.Model) -> float:
    """Which share of the optimizer's large state one device holds."""
    values = [variable.value for variable in model.optimizer.variables if variable.value.nbytes >= LARGE]
    held = [value.held if isinstance(value, ho.PaddedArray) else value for value in values]
    return sum(value.addressable_shards[0].data.nbytes for value in held) / sum(value.nbytes for value in values)


def check_others_are_replicated(model: keras.Model) -> None:
    own = {id(variable) for variable in model.optimizer.variables}
    for variable in [*model.variables, *model.metrics_variables]:
        if id(variable) not in own:
            assert variable.value.sharding.is_fully_replicated, variable.path


def check_alike(found: dict, expected: dict, rtol: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, err_msg=name)


def check_same_variables(found: keras.Model, expected: keras.Model) -> None:
    for own, other in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_allclose(np.asarray(own), np.asarray(other), rtol=1e-3, atol=1e-5, err_msg=own.path)


#: Of each model the optimizer, options of ``compile``, of ``fit`` and of ``zero``.
CASES: dict[str, tuple] = {
    "clip, decay": (attention, lambda: optimizers.AdamW(1e-3, global_clipnorm=0.5), {}, {}, {}),
    "schedule, several steps": (
        perceptron,
        lambda: optimizers.SGD(optimizers.schedules.CosineDecay(0.1, 6), momentum=0.9),
        {"steps_per_execution": 2},
        {"class_weight": {label: 1.0 + label for label in range(10)}},
        {},
    ),
    "loss scaling": (half_perceptron, lambda: optimizers.Adam(1e-3), {}, {}, {}),
    "averages, accumulation": (
        adapted_perceptron,
        lambda: optimizers.Adam(1e-2, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2),
        {},
        {},
        {},
    ),
    "own step": (halved, lambda: optimizers.Lion(1e-3), {}, {}, {}),
    "parameters": (perceptron, lambda: optimizers.Adam(1e-3), {}, {}, {"shard": "parameters"}),
}


@pytest.mark.parametrize("name", CASES)
def test_models_train_alike(name):
    make, optimizer, of_compile, of_fit, of_zero = CASES[name]
    plain = compiled(make, optimizer, **of_compile)
    expected = fit(plain, **of_fit)
    model = compiled(make, optimizer, **of_compile)
    assert hk.zero(model, strict=True, quiet=True, **of_zero) is model
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_alike(fit(model, **of_fit), expected)
    check_same_variables(model, plain)
    assert share(plain) == 1
    assert share(model) <= 1.02 / 8, hk.report(model)
    if not of_zero:
        check_others_are_replicated(model)
    else:
        assert not model.layers[0].kernel.value.sharding.is_fully_replicated
        np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-4, atol=1e-5)


class Watched(callbacks.Callback):
    """Notes how the optimizer's state lies after each epoch."""

    def __init__(self):
        super().__init__()
        self.shares = []

    def on_epoch_end(self, epoch, logs=None):
        self.shares.append(share(self.model))


def test_a_life_of_a_model(tmp_path, capfd):
    """Uneven arrays and a last batch that is smaller; validation, callbacks, saving, loading, another ``compile``."""

    def live(is_sharded: bool) -> tuple:
        folder = tmp_path / str(is_sharded)
        folder.mkdir()
        watched = Watched()
        adam = lambda: optimizers.Adam(3e-3)
        model = compiled(classifier, adam)
        if is_sharded:
            hk.zero(model, strict=True)
        found = []
        each = [
            watched,
            callbacks.ModelCheckpoint(str(folder / "each.keras"), save_freq=2),
            callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=True, start_from_epoch=1),
            callbacks.ReduceLROnPlateau("loss", patience=0),
        ]
        found.append(fit(model, 200, epochs=3, validation_data=(X[:64], Y[:64]), callbacks=each))
        model.save_weights(folder / "own.weights.h5")
        found.append(model.evaluate(X[:192], Y[:192], batch_size=64, verbose=0, return_dict=True))
        found.append({"predicted": model.predict(X[:64], batch_size=64, verbose=0)})
        found.append(fit(model, epochs=1))
        found.append(model.train_on_batch(X[:64], Y[:64], return_dict=True))
        watched.shares.append(share(model))
        model.load_weights(folder / "own.weights.h5")
        model.save(folder / "whole.keras")
        loaded = keras.models.load_model(folder / "whole.keras")
        if is_sharded:
            hk.zero(loaded, strict=True)
        found.append(fit(loaded, epochs=1))
        watched.shares.append(share(loaded))
        keras.utils.set_random_seed(1)
        model.compile(adam(), "sparse_categorical_crossentropy")
        found.append(fit(model, epochs=1))
        watched.shares.append(share(model))
        check_others_are_replicated(model)
        return model, found, watched.shares

    plain, expected, _ = live(False)
    model, found, shares = live(True)
    for own, other in zip(found, expected, strict=True):
        check_alike(own, other, rtol=1e-4)
    check_same_variables(model, plain)
    assert len(shares) >= 4 and max(shares) <= 1.02 / 8
    assert any(isinstance(variable.value, ho.PaddedArray) for variable in model.optimizer.variables)
    # One line each for the model, the model that was loaded, and the second compile.
    assert capfd.readouterr().err.count("hlo_opt.jax.zero: train_step: ") == 3


def test_the_report_names_variables():
    model = compiled(perceptron, lambda: optimizers.Adam(1e-3))
    with pytest.raises(ValueError, match="report: expected a model after hlo_opt.keras.zero, found 'sequential"):
        hk.report(model)
    hk.zero(model, state={"kernel_velocity": False}, strict=True, quiet=True)
    with pytest.raises(ValueError, match="report: expected a model that has trained"):
        hk.report(model)
    with warnings.catch_warnings():
        # The state stays in shards between calls, so that there is nothing to warn of.
        warnings.simplefilter("error", UserWarning)
        for _ in range(5):
            model.train_on_batch(X[:64], Y[:64])
    in_shards, left = str(hk.report(model)).split("left as they were")
    name = f"optimizer['{model.optimizer.name}/{model.name}_{model.layers[0].name}_kernel_%s'] float32[64, 256]"
    assert name % "momentum" in in_shards and name % "velocity" in left
    assert f"trainable['{model.name}/{model.layers[0].name}/kernel']" in left


def test_several_metrics_of_one_name_are_told_apart():
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64)])
    same = [keras.metrics.MeanSquaredError(name="same"), keras.metrics.MeanSquaredError(name="same")]
    model.compile("adam", "mse", metrics=same)
    hk.zero(model, strict=True, quiet=True)
    model.train_on_batch(X[:64], X[:64])
    assert share(model) <= 1.02 / 8


@pytest.mark.parametrize("flag", [{"run_eagerly": True}, {"jit_compile": False}])
def test_models_that_are_not_compiled_run_as_they_were(flag):
    name, value = next(iter(flag.items()))
    options = {"n_rows": 64, "epochs": 1}
    expected = fit(compiled(halved, lambda: optimizers.SGD(0.1, momentum=0.9), **flag), **options)
    model = hk.zero(compiled(halved, lambda: optimizers.SGD(0.1, momentum=0.9), **flag))
    with pytest.warns(
        UserWarning, match=f"train_step runs as it was: the model is compiled with {name}={value}"
    ) as said:
        check_alike(fit(model, **options), expected)
    assert all(warning.filename == __file__ for warning in said if "train_step" in str(warning.message))
    model.compile("sgd", "mse", **flag)
    model = hk.zero(compiled(halved, lambda: "sgd", **flag), strict=True)
    with pytest.raises(ho.ZeroError, match=f"{name}={value}"):
        fit(model, **options)


def test_models_on_one_device_say_what_to_do():
    keras.distribution.set_distribution(None)
    model = hk.zero(compiled(halved, lambda: optimizers.Adam(1e-3)))
    expected = fit(compiled(halved, lambda: optimizers.Adam(1e-3)))
    with pytest.warns(
        UserWarning, match="no distribution is set, so that Keras trains on one device: call keras.distribution"
    ):
        check_alike(fit(model), expected)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    with (
        pytest.warns(UserWarning, match=r"\d+ variables are on one device, and were made before"),
        pytest.raises(ValueError),
    ):
        # Keras itself cannot train such a model.
        fit(hk.zero(halved_on_one_device()))


def halved_on_one_device() -> keras.Model:
    keras.distribution.set_distribution(None)
    model = compiled(halved, lambda: optimizers.Adam(1e-3))
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return model


def test_the_switch_turns_it_off(monkeypatch):
    model = hk.zero(compiled(perceptron, lambda: optimizers.Adam(1e-3)), strict=True, quiet=True)
    expected = fit(compiled(perceptron, lambda: optimizers.Adam(1e-3)), epochs=3)
    found = [fit(model, epochs=1)]
    monkeypatch.setenv("HLO_OPT", "off")
    found.append(fit(model, epochs=1))
    assert "off" in str(hk.report(model))
    monkeypatch.delenv("HLO_OPT")
    found.append(fit(model, epochs=1))
    check_alike({name: [one[name][0] for one in found] for name in expected}, expected)
    assert share(model) <= 1.02 / 8


def test_wrong_models_and_options_are_named(monkeypatch):
    model = perceptron()
    with pytest.raises(
        ValueError, match="zero: expected a compiled model, found 'sequential.*: call model.compile first"
    ):
        hk.zero(model)
    with pytest.raises(TypeError, match="zero: expected a keras.Model, found Dense"):
        hk.zero(layers.Dense(3))
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="shard: expected 'optimizer'.*, found 'optimiser'; did you mean 'optimizer'"):
        hk.zero(model, shard="optimiser")
    with pytest.raises(TypeError, match="unexpected keyword argument 'shrad'; did you mean 'shard'"):
        hk.zero(model, shrad="optimizer")
    hk.zero(model)
    with pytest.raises(ValueError, match="has been through zero before"):
        hk.zero(model)
    monkeypatch.setattr(keras.config, "backend", lambda: "tensorflow")
    with pytest.raises(
        ValueError, match="expected Keras on JAX, found the backend 'tensorflow': set KERAS_BACKEND=jax"
    ):
        hk.zero(model)


def test_options_are_those_of_the_function_for_steps():
    own, other = (inspect.signature(function).parameters for function in (hk.zero, ho.zero))
    assert list(own)[1:] == list(other)[1:]
    assert all(own[name].default == other[name].default for name in list(own)[1:])


def test_a_keras_without_layouts_is_told(monkeypatch):
    monkeypatch.setattr(private, "_LAYOUT", "_no_such_attribute")
    expected = fit(compiled(perceptron, lambda: optimizers.Adam(1e-3)))
    model = hk.zero(compiled(perceptron, lambda: optimizers.Adam(1e-3)), quiet=True)
    with pytest.warns(
        UserWarning, match=r"has no \w+._no_such_attribute: Keras replicates the optimizer's state after each"
    ):
        check_alike(fit(model), expected)
    assert share(model) == 1
    with pytest.warns(UserWarning, match=r"optimizer\['.*_momentum'\] came whole in 3 calls one after the other"):
        for _ in range(4):
            model.train_on_batch(X[:64], Y[:64])


@pytest.mark.parametrize("name", ["keras", "jax"])
def test_without_a_package_the_import_says_so(monkeypatch, name):
    for module in [module for module in sys.modules if module.startswith("hlo_opt.keras")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"hlo_opt.keras needs Keras 3 on JAX, and {name} is not installed"):
        import hlo_opt.keras  # noqa: F401
