"""The signatures of Keras' own fit(), evaluate() and predict(), for their replacements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.own_steps import refuse_own_functions
from tfgpujob_trainer.script.call import FitCall
from tfgpujob_trainer.script.callbacks import as_logs
from tfgpujob_trainer.script.predicting import predict as predict_rows
from tfgpujob_trainer.script.takeover import Takeover

_OF_ALL_WORKERS = ("fit", "evaluate")
"""predict() needs no other worker, so one of them may call it alone."""


def calls(takeover: Takeover) -> dict[str, Callable[..., Any]]:
    """The replacement of each method of keras.Model, by its name."""

    def fit(model: keras.Model, **given: Any) -> Any:
        return takeover.fit(model, FitCall(**given))

    def evaluate(model: keras.Model, **given: Any) -> Any:
        values = as_logs(model, takeover.evaluate(model, given))
        return values if given["return_dict"] else model._flatten_metrics_in_order(values)  # noqa: SLF001

    def predict(model: keras.Model, **given: Any) -> Any:
        return predict_rows(takeover.session, model, **given)

    def predict_on_batch(model: keras.Model, **given: Any) -> Any:
        return predict_rows(takeover.session, model, given["x"], batch_size=len(tf.nest.flatten(given["x"])[0]))

    def refused(_: keras.Model, **__: Any) -> Any:
        raise ConfigError(
            "train_on_batch() and test_on_batch() are not taken over",
            "call fit(), or remove spec.trainer to run the script as your own program",
        )

    own: dict[str, Callable[..., Any]]
    own = {"fit": fit, "evaluate": evaluate, "predict": predict, "predict_on_batch": predict_on_batch}
    own |= {"train_on_batch": refused, "test_on_batch": refused}
    return {name: _bound(function, getattr(keras.Model, name), takeover) for name, function in own.items()}


def _bound(function: Callable[..., Any], original: Any, takeover: Takeover) -> Callable[..., Any]:
    """`function` with every argument by the name that Keras gives it, defaults filled in."""
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        refuse_own_functions(given.arguments["self"])
        if original.__name__ in _OF_ALL_WORKERS:
            takeover.agree.on_call(original.__name__, given.arguments)
        takeover.calls += 1
        given.apply_defaults()
        named = {name: value for name, value in given.arguments.items() if name not in ("self", "kwargs")}
        return function(given.arguments["self"], **named)

    return call
