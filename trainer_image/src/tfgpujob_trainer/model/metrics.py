"""The model's metrics over all replicas: state that is summed in the step's all-reduce, and results made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.variables import local_value


def metric_variables(model: keras.Model) -> list[Any]:
    """The state of all of the model's metrics."""
    return list(model.metrics_variables)


def check_metrics(model: keras.Model, strategy: str) -> None:
    """Raise ConfigError unless every metric's fresh state is a sum that starts at zero."""
    for variable in metric_variables(model):
        if variable.aggregation != "sum" or local_value(variable).any():
            require("a metric that is no sum", strategy, f"metric state {variable.path!r}")


def fit(model: keras.Model, states: Sequence[Any]) -> bool:
    """Whether saved state has the shapes of the model's metrics."""
    return [tuple(v.shape) for v in metric_variables(model)] == [tuple(state.shape) for state in states]


def results(model: keras.Model, states: list[Any], *, with_loss: bool = False) -> dict[str, float]:
    """The model's metrics from state that was summed over all replicas; one named loss only `with_loss`."""
    mapping = list(zip(metric_variables(model), states, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        values = model.get_metrics_result()
    return {name: float(np.mean(value)) for name, value in values.items() if with_loss or name != "loss"}


class MetricStates:
    """Sets the state of the model's metrics, in which every replica counts its own rows."""

    def __init__(self, strategy: tf.distribute.Strategy, model: keras.Model) -> None:
        self._strategy, self._variables = strategy, metric_variables(model)
        # A function: each epoch begins with it, and outside one a replica of Mirrored is a thread to start.
        self._assign = tf.function(self._assign_replicas, autograph=False)

    def reset(self) -> None:
        """Start counting anew on every replica."""
        self.restore([np.zeros(v.shape) for v in self._variables])

    def restore(self, states: list[Any]) -> None:
        """Give summed state to the first replica of all and zero to the others, so that their sum is the same."""
        if self._variables:
            self._assign([tf.cast(state, v.dtype) for state, v in zip(states, self._variables, strict=True)])

    def _assign_replicas(self, states: list[Any]) -> None:
        def replica() -> None:
            context = tf.distribute.get_replica_context()
            first = int(tf.get_static_value(context.replica_id_in_sync_group)) == 0
            for variable, state in zip(self._variables, states, strict=True):
                variable.assign(state if first else tf.zeros_like(state))

        self._strategy.run(replica)
