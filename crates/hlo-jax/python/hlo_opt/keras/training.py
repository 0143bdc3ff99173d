"""The training function of a Keras model, with its jitted step by ``hlo_opt.jax.zero``.

Keras' trainer jits ``model.train_step`` itself. Where a model is not to be compiled it calls ``model.train_step`` as it
is. So this file jits the step, and has the trainer make the training function as if the model were not to be compiled.
All names of Keras that it uses are public.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
from hlo_opt.jax.padded import PaddedArray
from hlo_opt.jax.partitioned import Declined
from hlo_opt.jax.plan import Options, Plan, whole_of
from hlo_opt.jax.wrapped import warn
from hlo_opt.jax.zero import ZeroError, ZeroStep
from hlo_opt.keras import private

#: The state of a training step in Keras: lists of the values of trainable, other, optimizer's and metrics' variables.
State = tuple[Sequence[Any], ...]


class TrainFunctionMaker:
    """Stands in for ``model.make_train_function``.

    Attributes:
        step: the jitted step of the training function that was made last; ``None`` until it is called.
    """

    def __init__(self, model: keras.Model, options: Options) -> None:
        self._model, self._options = model, options
        self._shown: ShownStep | None = None

    @property
    def step(self) -> ZeroStep | None:
        return None if self._shown is None else self._shown.step

    def __call__(self, force: bool = False) -> None:
        """Makes ``model.train_function`` if there is none, or if ``force`` is set."""
        model = self._model
        if model.train_function is not None and not force:
            return
        why_not = _why_not_compiled(model)
        if why_not is not None:
            self._shown = None
            _decline(f"train_step runs as it was: {why_not}", self._options)
            type(model).make_train_function(model, force=force)
            return
        self._shown = ShownStep(model, model.train_step, self._options)
        with _changed(model, train_step=self._shown, jit_compile=False):
            type(model).make_train_function(model, force=force)


def _why_not_compiled(model: keras.Model) -> str | None:
    if model.run_eagerly:
        return "the model is compiled with run_eagerly=True, so that JAX runs it op by op"
    if not model.jit_compile:
        return "the model is compiled with jit_compile=False, or has a layer that supports no jit, so that JAX runs it op by op"
    return None


def _decline(message: str, options: Options) -> None:
    if options.strict:
        raise ZeroError(message)
    warn(ZeroStep.maker, message)


@contextlib.contextmanager
def _changed(model: keras.Model, train_step: Any, jit_compile: bool) -> Iterator[None]:
    """Gives a model another step and flag, and takes them back at the end."""
    before = model.jit_compile
    has_own_step = "train_step" in vars(model)
    own_step = vars(model).get("train_step")
    model.train_step, model.jit_compile = train_step, jit_compile
    try:
        yield
    finally:
        model.jit_compile = before
        if has_own_step:
            model.train_step = own_step
        else:
            del model.train_step


class ShownStep:
    """Runs a jitted step for the trainer, which passes lists of values. The jitted step has dicts in their place, with
    the variables' paths as keys, so that reports and patterns know state by name.

    Attributes:
        step: the jitted step; ``None`` until it is called.
    """

    def __init__(
        self, model: keras.Model, train_step: Callable[[State, Any], tuple[Any, State]], options: Options
    ) -> None:
        self._model, self._train_step, self._options = model, train_step, options
        self.step: KerasStep | None = None
        self._names: list[list[str]] = []
        self._plan: Plan | None = None

    def __call__(self, state: State, data: Any) -> tuple[Any, State]:
        """Runs the step: ``(state, data) -> (logs, state)``."""
        if self.step is None or [len(group) for group in state] != [len(names) for names in self._names]:
            self._names = [_names(group) for group in _variables(self._model)]
            self.step = self._jitted(state)
        named = [dict(zip(names, group, strict=True)) for names, group in zip(self._names, state, strict=True)]
        logs, named = self.step(*named, data)
        state = tuple(
            [group[name] for name in names] if isinstance(group, dict) else group
            for names, group in zip(self._names, named, strict=True)
        )
        if self.step.last_plan is not self._plan:
            self._plan = self.step.last_plan
            self._place_variables(state)
        return logs, state

    def _jitted(self, state: State) -> KerasStep:
        """Returns the jitted step, with the donation and the shardings that Keras declares."""

        def train_step(trainable: dict, non_trainable: dict, optimizer: dict, metrics: dict, data: Any) -> Any:
            groups = (trainable, non_trainable, optimizer, metrics)
            lists = tuple([group[name] for name in names] for names, group in zip(self._names, groups, strict=True))
            logs, state = self._train_step(lists, data)
            # A step of the user's own may leave out variables that do not change.
            named = [
                dict(zip(names, group)) if len(names) == len(group) else list(group)
                for names, group in zip(self._names, state, strict=True)
            ]
            return logs, tuple(named)

        out_shardings = None
        if keras.distribution.distribution() is not None:
            shardings = [[_sharding_of(leaf) for leaf in group] for group in state]
            out_shardings = (None, tuple(dict(zip(names, group)) for names, group in zip(self._names, shardings)))
        jitted = jax.jit(train_step, donate_argnums=(0, 1, 2, 3), out_shardings=out_shardings)
        return KerasStep(jitted, self._options)

    def _place_variables(self, state: State) -> None:
        """Gives variables of which the step returns shards that sharding, so that Keras assigns the value as it is."""
        for variables, values in zip(_variables(self._model), state, strict=True):
            for variable, value in zip(variables, values):
                # A padded array shows itself as replicated, and Keras assigns it as it is.
                if whole_of(value) is None or isinstance(value, PaddedArray):
                    continue
                lacking = private.lacks_layouts(variable)
                if lacking is not None:
                    warn(ZeroStep.maker, lacking)
                    return
                private.set_layout(variable, value.sharding)


class KerasStep(ZeroStep):
    """The jitted step of a Keras model."""

    _n_said = -1

    def make_plan(self, begin: Callable[[], Plan], args: tuple, kwargs: dict) -> Plan:
        """Makes a plan as every step does. If Keras holds variables on one device, says how to get them on several."""
        n_local = sum(len(_sharding_of(leaf).device_set) == 1 for leaf in jax.tree.leaves(args[:-1]))
        if n_local and jax.device_count() > 1:
            distribution = keras.distribution.distribution()
            if distribution is None:
                why = "no distribution is set, so that Keras trains on one device"
            else:
                why = f"{n_local} variables are on one device, and were made before the distribution was set"
            raise Declined(
                f"{why}: call keras.distribution.set_distribution(keras.distribution.DataParallel()) before the model is built"
            )
        return super().make_plan(begin, args, kwargs)

    def plan_is_made(self, plan: Plan) -> None:
        """Says in one line what a new plan does, unless an earlier one, of another size of the batch, does the same."""
        n_cut = len(plan.sharded.cut)
        if n_cut != self._n_said:
            self._n_said = n_cut
            super().plan_is_made(plan)


def _variables(model: keras.Model) -> tuple[list[keras.Variable], ...]:
    """Returns a model's variables, in the order of the state."""
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )


def _names(variables: Sequence[keras.Variable]) -> list[str]:
    """Returns the paths of variables, with a number where several have the same path."""
    n_found: Counter[str] = Counter()
    names = []
    for variable in variables:
        n_found[variable.path] += 1
        n_same = n_found[variable.path]
        names.append(variable.path if n_same == 1 else f"{variable.path}#{n_same}")
    return names


def _sharding_of(leaf: Any) -> Any:
    """Returns the sharding that a value has in the original step."""
    whole = whole_of(leaf)
    return leaf.sharding if whole is None else whole
