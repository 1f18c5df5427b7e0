"""A model's own train_step() and test_step() under a strategy.

Each replica runs the step as it is, on its own rows. What it hands to an optimizer is all-reduced first: if its loss is
a mean over rows, its gradients times its rows, summed over the replicas and divided by all rows, are those of the
global batch; if it is a sum, their sum is. Which it is, is tried on some rows before the first step
(step/own_trial.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model import metrics
from tfgpujob_trainer.model.batch import batch_spec, unpack, weigher
from tfgpujob_trainer.model.loss import LossSums
from tfgpujob_trainer.model.metrics import MetricStates
from tfgpujob_trainer.model.moving_statistics import (
    Statistics,
    batch_normalization_notes,
    moving_statistics,
    synchronized_normalizations,
)
from tfgpujob_trainer.model.optimizers import optimizers_of
from tfgpujob_trainer.model.variables import PlainVariable
from tfgpujob_trainer.step import stand_in
from tfgpujob_trainer.step.allreduce import AllReduce, local_replica
from tfgpujob_trainer.step.compiled import Compiled, Evaluation, StepResult, as_traced, flags
from tfgpujob_trainer.step.gradients import divided, multiplied, shaped
from tfgpujob_trainer.step.lookups import apart, together
from tfgpujob_trainer.step.own_trial import OwnTrials
from tfgpujob_trainer.step.tried import Tried


class OwnSteps(Tried):
    """The steps of the model's author, with the interface of `SynchronousSteps`."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        arrays: Any,
        *,
        name: str,
        rows: int | None = None,
        class_weights: Mapping[str, float] | None = None,
    ) -> None:
        self._strategy, self._model = strategy, model
        self._weigh = weigher(class_weights or {})
        self._all_reduce = AllReduce(strategy)
        self.metric_states = MetricStates(strategy, model)
        self._statistics = Statistics(moving_statistics(model))
        self._tries = partial(OwnTrials, strategy, self._all_reduce, model, self._returned, name)
        self._trials = self._tries()
        normalized = synchronized_normalizations(model)
        self.notes = batch_normalization_notes(normalized, name, 1, synchronized=True)
        self._rows: dict[int, Any] = {}
        self._weights: dict[int, Any] = {}
        self._uses: dict[int, int] = {}
        self._applying: set[int] = set()
        self._names: dict[str, dict[str, str]] = {}
        """What each step returns, and the name of the metric whose result it is."""
        self._shapes: dict[tuple[str, str], tf.TensorShape] = {}
        self._results: dict[int, str] = {}
        for optimizer in optimizers_of(model).values():
            optimizer.apply = partial(self._apply, optimizer)
            optimizer.apply_gradients = partial(self._apply_gradients, optimizer)
        specs = (batch_spec(arrays, rows),) * len(strategy.extended.worker_devices)
        test = partial(self._replica, "test_step")

        def begin() -> None:
            train = partial(self._replica, "train_step")
            self._train = Compiled(strategy, train, specs, partial(as_traced, model, training=True))
            evaluating = partial(as_traced, model, training=False)
            self._evaluate = Evaluation(lambda one: Compiled(strategy, test, (one,) * len(specs), evaluating), arrays)

        self._begin = begin
        begin()

    def train(
        self,
        batches: Any,
        *,
        edges: Any,
        stop: bool,
        hold: bool = False,
        own_seconds: float = 0.0,
        whole: bool = True,  # noqa: ARG002 (XLA compiles no step of another author)
    ) -> StepResult:
        """One train_step() of each replica."""
        with self._noting_results("train_step"):
            return self._train(batches, edges, stop=stop, hold=hold, own_seconds=own_seconds)

    def evaluate(self, batches: Any, edges: Any) -> StepResult:
        """One test_step() of each replica."""
        with self._noting_results("test_step"):
            return self._evaluate(batches, edges)

    @property
    def captured(self) -> list[PlainVariable]:
        """What the training step reads or changes, and neither the model nor an optimizer holds."""
        return self._trials.captured

    @property
    def draws(self) -> bool:
        """Whether a step has random operations whose state no checkpoint keeps."""
        with self._noting_results("train_step"):
            return self._train.draws()

    def waits_for_peers(self) -> bool:
        """True if this worker has done its part of a step, and waits for the others'. Any thread may call it."""
        return self._all_reduce.waits_for_peers()

    def add_loss(self, total: LossSums, step: LossSums, rows: int) -> LossSums:  # noqa: ARG002 (as Keras does)
        """What one more step or batch returned: Keras shows the last one's numbers."""
        return step

    def values(self, loss: LossSums, states: list[Any], *, training: bool = True) -> dict[str, Any]:
        """What the step returns, by its names: metrics from their state, other numbers of the last batch."""
        known = metrics.results(self._model, states, with_loss=self._has_loss_metric(states))
        step = _step(training)
        names = self._names.get(step, {})
        left = iter(n / d if d else 0.0 for n, d in loss)

        def next_ones(name: str) -> Any:
            shape = self._shapes[step, name]
            return np.reshape([next(left, 0.0) for _ in range(shape.num_elements())], shape).tolist()

        means = {name: next_ones(name) for name in names}
        return {name: known.get(metric, means[name]) for name, metric in names.items()}

    def _has_loss_metric(self, states: list[Any]) -> bool:
        """Whether a metric counts what the step calls `loss`; Keras adds one of that name, perhaps without use."""
        of_keras = self._model._loss_tracker  # noqa: SLF001
        if any(metric.name == "loss" and metric is not of_keras for metric in self._model.metrics):
            return True
        its = [] if of_keras is None else [id(v) for v in of_keras.variables]
        counted = zip(self._model.metrics_variables, states, strict=True)
        return any(np.any(state) for v, state in counted if id(v) in its)

    def try_on(self, places: Sequence[Any], *, training: bool = True) -> None:
        """Find how replicas share what the step does, and say it; to be called before the first step.

        `places`: rows of several places of the data. Builds the optimizers. Raises ConfigError for what replicas cannot
        share.
        """

        def unknown(optimizer: keras.optimizers.Optimizer, *_: Any) -> None:
            raise ConfigError(
                f"the train_step of {type(self._model).__name__} uses an optimizer ({optimizer.name}) that neither the "
                "model nor one of its layers holds",
                "set it as an attribute of the model, or put it into a list or dict that is one",
            )

        self._places = places if training else self._places
        step = _step(training)
        with (
            as_traced(self._model, places[0], training=training),
            mock.patch.object(keras.optimizers.Optimizer, "apply", unknown),
            self._noting_results(step),
        ):
            self.notes += self._trials.try_on(step, places)

    def _forget(self) -> None:
        self._trials = self._tries()
        self._names.pop("train_step", None)

    def has_changed(self) -> bool:
        """Whether what the steps read, and that is no weight, has another value than when they were tried."""
        return self._trials.has_changed()

    def _fitted(self) -> list[str]:
        return self._trials.try_again()

    def _found(self) -> Any:
        return self._trials.found

    def _replica(self, step: str, batches: Any, edges: Any, votes: Any, own_seconds: Any) -> tuple[Any, ...]:
        replica = local_replica(self._strategy)
        batch = batches[replica]
        weight = stand_in.weight(self._strategy, edges)
        rows = multiplied(tf.shape(tf.nest.flatten(batch)[0])[0], weight)
        self._weights[replica] = weight
        self._rows[replica], self._uses[replica] = rows, 0
        kept = self._trials.states[step]
        before, states_before = self.metric_states.begin_step(), kept.before()
        given = self._call(step, batch)
        logs = self._logs(step, given)
        self._names[step] = {name: self._results.get(id(value)) or name for name, value in logs.items()}
        count = tf.cast(rows, keras.config.floatx())
        one = stand_in.one(weight, count.dtype)
        flat = [
            (number, self._trials.is_sum(step, name))
            for name, value in logs.items()
            for number in tf.unstack(tf.reshape(tf.cast(value, count.dtype), [-1]))
        ]
        groups = [(number * (one if is_sum else count), count) for number, is_sum in flat]
        # What compile() is given may be NaN, as a score without rows; a loss is among the others.
        compiled = getattr(self._model._compile_metrics, "name", None)  # noqa: SLF001
        numbers = metrics.by_name({name: value for name, value in given.items() if name != compiled})
        finite = [tf.reduce_all(tf.math.is_finite(tf.cast(value, count.dtype))) for _, value in numbers]
        powers = self._trials.powers(step)
        counted = [multiplied(state, weight) for state in self.metric_states.of_step()]
        message = {
            "flags": flags(self._strategy, tf.reduce_all(finite), votes, own_seconds, count.dtype),
            "rows": rows,
            "groups": groups,
            "metrics": [_by_rows(s, power, rows) for s, power in zip(counted, powers, strict=True)],
            "statistics": self._statistics.of_step(weight),
            "states": kept.message(states_before, rows),
        }
        message, times = self._all_reduce(message)
        groups = [(n * d if is_sum else n, d) for (_, is_sum), (n, d) in zip(flat, message["groups"], strict=True)]
        if step == "train_step":
            self._statistics.assign(message["statistics"])
        kept.assign(states_before, message["states"])
        of_step = [_by_rows(s, -power, message["rows"]) for s, power in zip(message["metrics"], powers, strict=True)]
        states = self.metric_states.end_step(before, of_step)
        return tf.constant(True), message["flags"], groups, states, times

    def _call(self, step: str, batch: Any) -> Mapping[str, Any]:
        """What the model's step returns of rows. One that is a tf.function becomes a part of the graph of this one."""
        function = getattr(self._model, step)
        traced = getattr(type(self._model), step)
        if isinstance(traced, tf.types.experimental.PolymorphicFunction):
            function = partial(tf.autograph.to_graph(traced.python_function), self._model)
        # Keras gives a step x alone, or as many as there are.
        given = tuple(part for part in self._weigh(unpack(batch)) if part is not None)
        return function(given if len(given) > 1 else given[0]) or {}

    def _returned(self, step: str, batch: Any) -> tuple[dict[str, Any], set[str]]:
        """What the model's step returns of rows, by name, and the names of what is no metric's result."""
        logs = self._logs(step, self._call(step, batch))
        return logs, {name for name, value in logs.items() if id(value) not in self._results}

    def _logs(self, step: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What it returned, by name. Raises ConfigError where its shape follows from the number of rows."""
        logs = dict(metrics.by_name(given))
        for name, value in logs.items():
            shape = tf.TensorShape(getattr(value, "shape", ()))
            if not shape.is_fully_defined() or self._shapes.setdefault((step, name), shape) != shape:
                raise ConfigError(
                    f"{name!r} that the {step} of {type(self._model).__name__} returns has a shape that follows from "
                    f"the number of rows: {shape}",
                    "return its mean, or another number of the batch",
                )
        return logs

    def _apply(self, optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None) -> None:
        """Replaces `optimizer.apply`."""
        known = optimizer._trainable_variables if trainable_variables is None else trainable_variables  # noqa: SLF001
        variables = list(known)
        self._reduced(optimizer, grads, variables, lambda grads: type(optimizer).apply(optimizer, grads, variables))

    def _apply_gradients(self, optimizer: keras.optimizers.Optimizer, grads_and_vars: Any, **more: Any) -> Any:
        """Replaces `optimizer.apply_gradients`."""
        grads, variables = zip(*grads_and_vars, strict=True)

        def original(grads: Any) -> None:
            type(optimizer).apply_gradients(optimizer, zip(grads, variables, strict=True), **more)

        self._reduced(optimizer, grads, list(variables), original)
        return optimizer.iterations

    def _reduced(
        self, optimizer: keras.optimizers.Optimizer, grads: Any, variables: list[Any], original: Callable[[Any], None]
    ) -> None:
        """Apply the gradients of all replicas' rows.

        The outermost method that the step calls is given them, and what it calls gets its own: it may override Keras',
        or wrap another optimizer.
        """
        replica = local_replica(self._strategy)
        if replica in self._applying:
            original(grads)
            return
        grads = shaped(list(grads), variables)
        if self._trials.note(optimizer, grads, variables):
            return
        if self._strategy.num_replicas_in_sync > 1:
            dense = next((g for g in grads if g is not None), None)
            rows = tf.cast(self._rows[replica], keras.config.floatx() if dense is None else dense.dtype)
            number, is_sum = self._uses[replica], self._trials.gives_sums(self._uses[replica])
            own = [self._trials.lookups.by_part((number, i), g) for i, g in enumerate(grads)]
            own = [multiplied(g, self._weights[replica] if is_sum else rows) for g in own]
            rest, shared = apart([own])
            message, _ = self._all_reduce({"gradients": rest, "shared": shared, "rows": rows})
            (grads,) = together(message["gradients"], [own], message["shared"])
            self._uses[replica] += 1
            grads = grads if is_sum else [divided(g, message["rows"]) for g in grads]
        self._applying.add(replica)
        try:
            original(grads)
        finally:
            self._applying.remove(replica)

    @contextmanager
    def _noting_results(self, step: str) -> Iterator[None]:
        """While a step is traced first, note the metrics whose result() it asks for, by the `id` of each result."""
        if step in self._names:
            yield
            return
        alive = []

        own = self._model.metrics
        compiled = [part for metric in own for part in getattr(metric, "metrics", ())]

        def noting(metric: keras.metrics.Metric, original: Callable[[Any], Any]) -> Any:
            result = original(metric)
            if not isinstance(result, Mapping):  # which has the names of its metrics
                alive.append(result)
                self._results[id(result)] = metric.name if any(metric is one for one in own) else ""
            return result

        with ExitStack() as stack:
            for kind in {type(metric) for metric in (*own, *compiled)}:
                stack.enter_context(mock.patch.object(kind, "result", partialmethod(noting, kind.result)))
            yield
        self._results.clear()


def _by_rows(state: Any, power: int, rows: Any) -> Any:
    """`state` times `rows` to this power."""
    return state if power == 0 else (multiplied if power > 0 else divided)(state, rows)


def _step(training: bool) -> str:
    return "train_step" if training else "test_step"
