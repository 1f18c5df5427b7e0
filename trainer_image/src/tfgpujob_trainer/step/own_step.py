"""A model's own train_step() and test_step() under a strategy.

Each replica runs the step as it is, on its own rows. What it hands to an optimizer is all-reduced first: if its loss is
a mean over rows, its gradients times its rows, summed over the replicas and divided by all rows, are those of the
global batch. That this holds is tried on some rows before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model import metrics
from tfgpujob_trainer.model.batch import batch_spec, unpack
from tfgpujob_trainer.model.class_weights import weigher
from tfgpujob_trainer.model.loss import LossSums, add_loss
from tfgpujob_trainer.model.metrics import MetricStates, metric_variables
from tfgpujob_trainer.model.moving_statistics import Statistics, batch_normalization_notes, moving_statistics
from tfgpujob_trainer.model.optimizers import build_all, optimizers_of
from tfgpujob_trainer.model.variables import PlainVariable, plain_variables, traced_variables, whole_of
from tfgpujob_trainer.step import stand_in
from tfgpujob_trainer.step.allreduce import AllReduce, local_replica
from tfgpujob_trainer.step.compiled import Compiled, Evaluation, StepResult, flags
from tfgpujob_trainer.step.gradients import divided, multiplied, shaped
from tfgpujob_trainer.step.layer_states import LayerStates, changed_variables
from tfgpujob_trainer.step.lookups import Lookups, apart, slices, together

ROWS = 8
"""How many rows are tried: two halves of four."""
_TOLERANCE = 1e-3
"""Of the largest element of a gradient; what is wrong differs by more."""

Gradients = list[list[Any]]
"""Of each use of an optimizer in a step."""


class OwnSteps:
    """The steps that the model's author wrote, as `SynchronousSteps` are taken."""

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
        self._metrics, self.metric_states = metric_variables(model), MetricStates(strategy, model)
        self._statistics = Statistics(moving_statistics(model))
        self._states = LayerStates(strategy, model, self._all_reduce)
        self._rows: dict[int, Any] = {}
        self._weights: dict[int, Any] = {}
        self._uses: dict[int, int] = {}
        self._lookups = Lookups()
        self._tried: dict[int, Gradients] | None = None
        self._variables: dict[int, tuple[keras.optimizers.Optimizer, list[Any]]] = {}
        self._sums = False
        self._traced: list[tf.Variable] = []
        self._changed: set[int] = set()
        self.captured: list[PlainVariable] = []
        self._names: dict[str, tuple[str, ...]] = {}
        self.notes = batch_normalization_notes(model, name, 1)
        self._name = name
        self._applying: set[int] = set()
        for optimizer in optimizers_of(model).values():
            optimizer.apply = partial(self._apply, optimizer)
            optimizer.apply_gradients = partial(self._apply_gradients, optimizer)
        specs = (batch_spec(arrays, rows),) * len(strategy.extended.worker_devices)
        self._train = Compiled(strategy, partial(self._replica, "train_step"), specs)
        test = partial(self._replica, "test_step")
        self._evaluate = Evaluation(lambda spec: Compiled(strategy, test, (spec,) * len(specs)), arrays)

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
        return self._train(batches, edges, stop=stop, hold=hold, own_seconds=own_seconds)

    def evaluate(self, batches: Any, edges: Any) -> StepResult:
        """One test_step() of each replica."""
        return self._evaluate(batches, edges)

    def waits_for_peers(self) -> bool:
        """Whether this worker has done its part of a step, and lacks the others'. Any thread may ask."""
        return self._all_reduce.waits_for_peers()

    def add_loss(self, total: LossSums, step: LossSums, rows: int) -> LossSums:  # noqa: ARG002 (its numbers have them)
        """`total` with what one more step or batch returned."""
        return add_loss(total, step)

    def values(self, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        """What train_step() returns, by its names: metrics from their state, other numbers as means over the rows."""
        return self._values("train_step", loss, states)

    def evaluated(self, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        """The same of test_step()."""
        return self._values("test_step", loss, states)

    def _values(self, step: str, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        known = metrics.results(self._model, states, with_loss=self._has_loss_metric(states))
        names = self._names.get(step, ())
        means = {name: n / d if d else 0.0 for name, (n, d) in zip(names, loss, strict=False)}
        return {name: known.get(name, means.get(name, 0.0)) for name in names}

    def _has_loss_metric(self, states: list[Any]) -> bool:
        """Whether a metric counts what the step calls `loss`; Keras adds one of that name, perhaps without use."""
        of_keras = self._model._loss_tracker  # noqa: SLF001
        if any(metric.name == "loss" and metric is not of_keras for metric in self._model.metrics):
            return True
        its = [] if of_keras is None else [id(v) for v in of_keras.variables]
        return any(np.any(state) for v, state in zip(self._metrics, states, strict=True) if id(v) in its)

    def try_on(self, rows: Any) -> None:
        """Build the optimizers, and say whether the gradients of some rows are those of their halves.

        Only then may replicas share a batch and be exact.
        """
        even = len(tf.nest.flatten(rows)[0]) // 2 * 2
        found = self._gradients(tf.nest.map_structure(lambda array: array[:even], rows))
        self.metric_states.reset()
        for optimizer, variables in self._variables.values():
            build_all(optimizer, variables)
        self.captured = self._captured()
        if self._strategy.num_replicas_in_sync == 1:
            return
        with self._trying():

            def step(part: Any) -> list[Any]:
                self._model.train_step(self._as_given(part))
                return []  # its gradients have said whether it couples rows

            self.notes += self._states.look(step, rows, self._assigned())
        who = f"{type(self._model).__name__}'s own train_step"
        if _is_mean(found):
            self.notes.append(f"{who}: its gradients are means over the rows, so those of the global batch are exact")
        elif _is_sum(found):
            self._sums = True
            self.notes.append(f"{who}: its gradients are sums over the rows, so those of the global batch are exact")
        else:
            self.notes += require("own train_step", self._name, who)

    def _replica(self, step: str, batches: Any, edges: Any, votes: Any, own_seconds: Any) -> tuple[Any, ...]:
        replica = local_replica(self._strategy)
        batch = batches[replica]
        weight = stand_in.weight(self._strategy, edges)
        rows = multiplied(tf.shape(tf.nest.flatten(batch)[0])[0], weight)
        self._weights[replica] = weight
        self._rows[replica], self._uses[replica] = rows, 0
        before, states_before = self.metric_states.begin_step(), self._states.before()
        given = getattr(self._model, step)(self._as_given(batch)) or {}
        logs = dict(_by_name(given))
        self._names[step] = tuple(logs)
        count = tf.cast(rows, keras.config.floatx())
        groups = [(tf.cast(value, count.dtype) * count, count) for value in logs.values()]
        # What compile() is given may be NaN, as a score without rows; a loss is among the others.
        compiled = getattr(self._model._compile_metrics, "name", None)  # noqa: SLF001
        numbers = _by_name({name: value for name, value in given.items() if name != compiled})
        finite = [tf.reduce_all(tf.math.is_finite(tf.cast(value, count.dtype))) for _, value in numbers]
        message = {
            "flags": flags(self._strategy, tf.reduce_all(finite), votes, own_seconds, count.dtype),
            "groups": groups,
            "metrics": [multiplied(state, weight) for state in self.metric_states.of_step()],
            "statistics": self._statistics.of_step(weight),
            "states": self._states.message(states_before, rows),
        }
        message, times = self._all_reduce(message)
        if step == "train_step":
            self._statistics.assign(message["statistics"])
        self._states.assign(states_before, message["states"])
        states = self.metric_states.end_step(before, message["metrics"])
        return tf.constant(True), message["flags"], message["groups"], states, times

    def _as_given(self, batch: Any) -> Any:
        """What Keras gives to a step: x alone, or as many as there are."""
        given = tuple(part for part in self._weigh(unpack(batch)) if part is not None)
        return given if len(given) > 1 else given[0]

    def _apply(self, optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None) -> None:
        """Stands in for `optimizer.apply`."""
        known = optimizer._trainable_variables if trainable_variables is None else trainable_variables  # noqa: SLF001
        variables = list(known)
        self._reduced(optimizer, grads, variables, lambda grads: type(optimizer).apply(optimizer, grads, variables))

    def _apply_gradients(self, optimizer: keras.optimizers.Optimizer, grads_and_vars: Any, **more: Any) -> Any:
        """Stands in for `optimizer.apply_gradients`."""
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
        if self._tried is not None:
            self._variables[id(optimizer)] = optimizer, variables
            self._tried.setdefault(replica, []).append(grads)
            return
        if self._strategy.num_replicas_in_sync > 1:
            dense = next((g for g in grads if g is not None), None)
            rows = tf.cast(self._rows[replica], keras.config.floatx() if dense is None else dense.dtype)
            own = [self._lookups.by_part((self._uses[replica], i), g) for i, g in enumerate(grads)]
            own = [multiplied(g, self._weights[replica] if self._sums else rows) for g in own]
            rest, shared = apart([own])
            message, _ = self._all_reduce({"gradients": rest, "shared": shared, "rows": rows})
            (grads,) = together(message["gradients"], [own], message["shared"])
            self._uses[replica] += 1
            grads = grads if self._sums else [divided(g, message["rows"]) for g in grads]
        self._applying.add(replica)
        try:
            original(grads)
        finally:
            self._applying.remove(replica)

    def _gradients(self, rows: Any) -> tuple[Gradients, Gradients, Gradients]:
        """Of all rows and of both halves, as every replica computes them; nothing is applied, or remembered."""
        count = len(tf.nest.flatten(rows)[0])
        lookups: list[Any] = []

        def replica(part: Any) -> Any:
            assert self._tried is not None
            self._tried.pop(local_replica(self._strategy), None)
            self._model.train_step(self._as_given(part))
            mine = self._tried.get(local_replica(self._strategy), [])
            keys, sizes = slices(mine, tf.nest.flatten(part))
            lookups.append(keys)
            return [[tf.convert_to_tensor(g) for g in use if g is not None] for use in mine], sizes

        step = tf.function(lambda part: self._strategy.run(replica, args=(part,)), autograph=False)
        found = []
        for start, end in ((0, count), (0, count // 2), (count // 2, count)):
            part = tf.nest.map_structure(lambda array, of=slice(start, end): tf.convert_to_tensor(array[of]), rows)
            with self._trying():
                traced = step.get_concrete_function(part)
            variables = traced_variables(traced)
            before = [variable.read_value() for variable in variables]
            result = traced(*tf.nest.flatten(part))
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            found.append(
                tf.nest.map_structure(lambda v: self._strategy.experimental_local_results(v)[0].numpy(), result)
            )
            self._changed |= changed_variables([traced])
        self._traced = variables
        self._lookups.note(lookups[0], *(sizes for _, sizes in found[:2]))
        return found[0][0], found[1][0], found[2][0]

    def _assigned(self) -> list[Any]:
        """What the step changes besides what optimizers do: also weights, such as those of a second network."""
        known = {id(v) for v in (*self._metrics, *self._statistics.variables)}
        for layer in self._model._flatten_layers():  # noqa: SLF001
            known |= {id(generator.state) for generator in layer._seed_generators}  # noqa: SLF001
        held = [v for v in (*self._model.variables, *plain_variables(self._model)) if id(v) not in known]
        return [v for v in (*held, *self.captured) if id(v.value) in self._changed]

    def _captured(self) -> list[PlainVariable]:
        holders = [self._model, *optimizers_of(self._model).values()]
        known = [*self._metrics, *plain_variables(self._model), *(v for one in holders for v in one.variables)]
        seen, found = {id(variable.value) for variable in known}, []
        for variable in self._traced:
            whole = whole_of(variable)
            if id(whole) not in seen:
                seen.add(id(whole))
                found.append(PlainVariable(whole.name, whole))
        return found

    @contextmanager
    def _trying(self) -> Iterator[None]:
        def unknown(optimizer: keras.optimizers.Optimizer, *_: Any) -> None:
            raise ConfigError(
                f"the train_step of {type(self._model).__name__} uses an optimizer ({optimizer.name}) that neither the "
                "model nor one of its layers holds",
                "set it as an attribute of the model, or put it into a list or dict that is one",
            )

        self._tried = {}
        keras.optimizers.Optimizer.apply = unknown
        try:
            yield
        finally:
            self._tried = None
            del keras.optimizers.Optimizer.apply


def _by_name(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each value by its name: a metric that has several, such as all that compile() is given, is a dict of them."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _by_name(value)
        else:
            yield name, value


def _is_mean(found: Sequence[Gradients]) -> bool:
    return _equal(found[0], found[1], found[2], 0.5)


def _is_sum(found: Sequence[Gradients]) -> bool:
    return _equal(found[0], found[1], found[2], 1.0)


def _equal(whole: Gradients, one: Gradients, other: Gradients, factor: float) -> bool:
    """Whether each gradient is `factor` times the sum of the halves'."""
    flat = [[g for of_use in gradients for g in of_use] for gradients in (whole, one, other)]
    if not flat[0] or len({len(gradients) for gradients in flat}) != 1:
        return False
    largest = max(float(np.abs(g).max()) for g in flat[0])
    return all(
        a.shape == b.shape == c.shape and float(np.abs(a - (b + c) * factor).max()) <= _TOLERANCE * largest
        for a, b, c in zip(*flat, strict=True)
    )
