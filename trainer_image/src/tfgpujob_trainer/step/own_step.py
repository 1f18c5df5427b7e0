"""A model's own train_step() and test_step() under a strategy.

Each replica runs the step as it is, on its own rows. What it hands to an optimizer is all-reduced first: if its loss is
a mean over rows, its gradients times its rows, summed over the replicas and divided by all rows, are those of the
global batch; if it is a sum, their sum is. Which it is, is tried on some rows before the first step (step/trial.py).
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
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model import metrics
from tfgpujob_trainer.model.batch import batch_spec, unpack
from tfgpujob_trainer.model.class_weights import weigher
from tfgpujob_trainer.model.loss import LossSums
from tfgpujob_trainer.model.metrics import MetricStates, metric_variables
from tfgpujob_trainer.model.moving_statistics import (
    Statistics,
    batch_normalization_notes,
    batch_normalizations,
    moving_statistics,
)
from tfgpujob_trainer.model.optimizers import build_all, optimizers_of
from tfgpujob_trainer.model.variables import PlainVariable, captured_variables, plain_variables
from tfgpujob_trainer.step import stand_in
from tfgpujob_trainer.step.allreduce import AllReduce, local_replica
from tfgpujob_trainer.step.compiled import Compiled, Evaluation, StepResult, flags
from tfgpujob_trainer.step.gradients import divided, multiplied, shaped
from tfgpujob_trainer.step.layer_states import LayerStates
from tfgpujob_trainer.step.linear import Gradients
from tfgpujob_trainer.step.lookups import Lookup, Lookups, apart, slices, together
from tfgpujob_trainer.step.trial import Numbers, Seen, State, Trial, near, projected, unlike

_LOOKUPS = "lookups"
_CLIPS = ("clip_by_global_norm", "clip_by_norm")
"""What TensorFlow calls the operations that clip."""
_KINDS = (0.5, 1.0)
"""What the sum of the halves is multiplied by to be that of the whole: of a mean over rows, and of a sum."""


class OwnSteps:
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
        self._metrics, self.metric_states = metric_variables(model), MetricStates(strategy, model)
        self._statistics = Statistics(moving_statistics(model))
        self._states = LayerStates(strategy, model)
        self._rows: dict[int, Any] = {}
        self._weights: dict[int, Any] = {}
        self._uses: dict[int, int] = {}
        self._lookups = Lookups()
        self._tried: dict[int, list[list[Any]]] | None = None
        """In a trial, the gradients of each use of an optimizer by each replica."""
        self._graph: Any = None
        """The step's, in a trial: that of a branch or a loop in it is another one."""
        self._branches = False
        """Whether an optimizer is used in one of these."""
        self._gradients = Gradients()
        self._variables: dict[int, tuple[keras.optimizers.Optimizer, list[Any]]] = {}
        self._trials: dict[str, Trial] = {}
        self._kinds: dict[tuple[str, str], list[float]] = {}
        """What each step returns, and each use of an optimizer, may be."""
        self._means: dict[str, list[bool]] = {}
        """Which states of metrics count each batch as one, whatever its rows, by step: a Mean of a loss, say."""
        self._said: list[str] = []
        self._looked_up: list[Lookup] = []
        self.captured: list[PlainVariable] = []
        self._names: dict[str, dict[str, str]] = {}
        """What each step returns, and the name of the metric whose result it is."""
        self._results: dict[int, str] = {}
        self._returned: set[str] = set()
        self._numbers: set[str] = set()
        """What the step that is tried returns, and is no metric's result."""
        self.notes = batch_normalization_notes(model, name, 1)
        self._name = name
        self._applying: set[int] = set()
        self._optimizers = list(optimizers_of(model).values())
        for optimizer in self._optimizers:
            optimizer.apply = partial(self._apply, optimizer)
            optimizer.apply_gradients = partial(self._apply_gradients, optimizer)
        specs = (batch_spec(arrays, rows),) * len(strategy.extended.worker_devices)
        test = partial(self._replica, "test_step")

        def begin() -> None:
            self._train = Compiled(strategy, partial(self._replica, "train_step"), specs)
            self._evaluate = Evaluation(lambda spec: Compiled(strategy, test, (spec,) * len(specs)), arrays)

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

    def values(self, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        """What train_step() returns, by its names: metrics from their state, other numbers of the last batch."""
        return self._values("train_step", loss, states)

    def evaluated(self, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        """The same of test_step()."""
        return self._values("test_step", loss, states)

    def _values(self, step: str, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        known = metrics.results(self._model, states, with_loss=self._has_loss_metric(states))
        names = self._names.get(step, {})
        means = {name: n / d if d else 0.0 for name, (n, d) in zip(names, loss, strict=False)}
        return {name: known.get(metric, means.get(name, 0.0)) for name, metric in names.items()}

    def _has_loss_metric(self, states: list[Any]) -> bool:
        """Whether a metric counts what the step calls `loss`; Keras adds one of that name, perhaps without use."""
        of_keras = self._model._loss_tracker  # noqa: SLF001
        if any(metric.name == "loss" and metric is not of_keras for metric in self._model.metrics):
            return True
        its = [] if of_keras is None else [id(v) for v in of_keras.variables]
        return any(np.any(state) for v, state in zip(self._metrics, states, strict=True) if id(v) in its)

    def try_on(self, places: Sequence[Any], *, training: bool = True, allowed: bool = False) -> None:  # noqa: ARG002
        """Find how replicas share what the step does, and say it; to be called before the first step.

        `places`: rows of several places of the data. Builds the optimizers. Raises ConfigError for what replicas cannot
        share.
        """
        step = "train_step" if training else "test_step"
        if step in self._trials or (not training and self._strategy.num_replicas_in_sync == 1):
            return
        several = self._strategy.num_replicas_in_sync > 1
        try:
            with self._trying(), self._noting_results(step):
                computed = partial(self._computed, step)
                trial = Trial(self._strategy, self._all_reduce, places, computed, alone=not several)
        except Exception as error:
            if several:
                rows = len(tf.nest.flatten(places[0])[0])
                how = "take their number from the data, as keras.ops.shape(x)[0] is"
                error.add_note(f"{step} gets {rows} rows, or half of them, before it trains, and later a share: {how}")
            raise
        self._trials[step] = trial
        if training:
            for optimizer, variables in self._variables.values():
                build_all(optimizer, variables)
            self.captured = self._captured(trial)
            states = self._assigned(trial)
            held = (*self._model.trainable_variables, *self._model.metrics_variables, *states)
            trial.watch({id(v.value) for v in (*held, *(v for o in self._optimizers for v in o.variables))})
            self.notes += self._loss_without_metric()
        if several and trial.rows > 1:
            self.notes += self._tried_on(step, moves=True)

    def _loss_without_metric(self) -> list[str]:
        """Where train_step() returns what Model.metrics are named, Keras' history has the results of these."""
        names = {*self._model.get_metrics_result()}
        if "loss" not in self._numbers or names != self._returned:
            return []
        return [f"the loss of {type(self._model).__name__}: no metric counts it, so plain Keras shows 0"]

    def has_changed(self) -> bool:
        """Whether what the steps read, and that is no weight, has another value than when they were tried."""
        return sum(trial.has_changed() for trial in self._trials.values()) > 0

    def try_again(self) -> list[str]:
        """Fit the steps to the values of now; what is new to say of them."""
        if self._strategy.num_replicas_in_sync == 1:
            return []
        before = dict(self._kinds), dict(self._means), self._states.kinds
        found = [note for step in self._trials for note in self._tried_on(step, moves=False)]
        if (self._kinds, self._means, self._states.kinds) != before:
            self._begin()
        return found

    def _tried_on(self, step: str, *, moves: bool) -> list[str]:
        trial, trains = self._trials[step], step == "train_step"
        states = self._assigned(trial) if trains else []
        found = trial([*states, *self._metrics], moves=moves)
        counts = zip(*(seen.states[len(states) :] for seen in found), strict=True)
        odd: list[str] = []
        self._means[step] = [self._is_mean(v, seen, odd) for v, seen in zip(self._metrics, counts, strict=True)]
        if trains and _LOOKUPS in found[0].whole:
            self._lookups.note(self._looked_up, found[0].whole[_LOOKUPS], found[0].halves[0][_LOOKUPS])
        for name in [name for name in found[0].whole if name != _LOOKUPS]:
            known = self._kinds.get((step, name), _KINDS)
            fitting = [kind for kind in known if all(self._is(kind, name, seen, trial) for seen in found)]
            self._kinds[step, name] = fitting
        if not trains:
            return []
        notes = self._states.take(states, found, trial.changed)
        who = f"{type(self._model).__name__}'s own train_step"
        uses = [kinds for (of, name), kinds in self._kinds.items() if of == step and name.startswith(_use(""))]
        changed_by = self._gradients.changed_by
        clips = [clip for clip in _CLIPS if any(clip in name for name in changed_by)]
        if clips:
            fix = "give the optimizer global_clipnorm, clipnorm or clipvalue instead"
            said = [f"{who}: each replica clips the gradients of its own rows ({clips[0]}); {fix}"]
        elif not uses or trial.draws or batch_normalizations(self._model, synchronized=False):
            said = require("own train_step", self._name, who)
        elif not all(uses) and not changed_by:
            said = require("a loss that couples rows", self._name, f"{who} (its gradients are not those of its halves)")
        elif changed_by:
            by = ", ".join(sorted({*changed_by.values()}))
            said = require("own train_step", self._name, f"{who}, with {by} of its gradients")
        else:
            what = {(0.5,): "means over the rows", (1.0,): "sums over the rows"}
            kinds = {what[kind[0],] for kind in uses}
            said = [f"{who}: its gradients are {' and '.join(sorted(kinds))}, so those of the global batch are exact"]
            odd += [name for name in sorted(self._numbers) if not self._kinds[step, name]]
            if odd:
                said += require("a metric of one number for a batch", self._name, f"{', '.join(odd)} of {who}")
        if said == self._said:
            return notes
        self._said = said
        return [*notes, *said]

    def _is(self, kind: float, name: str, seen: Seen, trial: Trial) -> bool:
        """Whether a number, or the gradients of a use of an optimizer, are of a kind."""
        whole, of_halves = seen.whole[name], kind * (seen.halves[0][name] + seen.halves[1][name])
        dtype = trial.precision(self._model.compute_dtype)
        return not unlike(whole, of_halves, dtype) if name.startswith(_use("")) else near(whole, of_halves, dtype)

    def _is_mean(self, variable: Any, found: Sequence[State], odd: list[str]) -> bool:
        """Whether one device's change of a metric's state is the mean of the replicas', and not their sum.

        It is taken for one, and is added to `odd`, if it is neither. Raises ConfigError for a maximum or minimum.
        """
        dtype = "float32"

        def fits(of_both: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> bool:
            return all(near(s.whole - s.start, of_both(*(half - s.start for half in s.halves)), dtype) for s in found)

        if fits(np.add):
            return False
        if not fits(lambda one, other: (one + other) / 2):
            if fits(np.maximum):
                require("a metric that is no sum", self._name, f"metric state {variable.path!r}")
            odd.append(variable.path)
        return True

    def _computed(self, step: str, part: Any) -> Numbers:
        """What a step makes of rows in a replica, without what it hands to optimizers: its numbers and gradients."""
        replica = local_replica(self._strategy)
        assert self._tried is not None
        self._tried.pop(replica, None)
        self._graph = tf.compat.v1.get_default_graph()
        given = dict(metrics.by_name(self._step(step)(self._as_given(part)) or {}))
        self._returned = {*given}
        self._numbers = {name for name, value in given.items() if id(value) not in self._results}
        if self._branches and self._strategy.num_replicas_in_sync > 1:
            raise ConfigError(
                f"the {step} of {type(self._model).__name__} uses an optimizer in a part of its graph, such as a "
                "tf.cond or a tf.function, in which replicas can't sum gradients",
                "use it outside, in each step; a larger batch has the gradients of several",
            )
        found = {name: tf.cast(value, tf.float64) for name, value in given.items()}
        uses = self._tried.get(replica, [])
        for use in uses:
            self._gradients.used(use)
        found |= {_use(i): projected([g for g in use if g is not None]) for i, use in enumerate(uses)}
        self._looked_up, sizes = slices(uses, tf.nest.flatten(part))
        return {**found, _LOOKUPS: tf.stack(sizes)} if sizes else found

    def _replica(self, step: str, batches: Any, edges: Any, votes: Any, own_seconds: Any) -> tuple[Any, ...]:
        replica = local_replica(self._strategy)
        batch = batches[replica]
        weight = stand_in.weight(self._strategy, edges)
        rows = multiplied(tf.shape(tf.nest.flatten(batch)[0])[0], weight)
        self._weights[replica] = weight
        self._rows[replica], self._uses[replica] = rows, 0
        before, states_before = self.metric_states.begin_step(), self._states.before()
        given = self._step(step)(self._as_given(batch)) or {}
        logs = dict(metrics.by_name(given))
        self._names[step] = {name: self._results.get(id(value), name) for name, value in logs.items()}
        count = tf.cast(rows, keras.config.floatx())
        sums = [self._is_sum(step, name) for name in logs]
        factors = [stand_in.one(weight, count.dtype) if is_sum else count for is_sum in sums]
        groups = [(tf.cast(v, count.dtype) * factor, count) for v, factor in zip(logs.values(), factors, strict=True)]
        # What compile() is given may be NaN, as a score without rows; a loss is among the others.
        compiled = getattr(self._model._compile_metrics, "name", None)  # noqa: SLF001
        numbers = metrics.by_name({name: value for name, value in given.items() if name != compiled})
        finite = [tf.reduce_all(tf.math.is_finite(tf.cast(value, count.dtype))) for _, value in numbers]
        counted = self.metric_states.of_step()
        means = self._means.get(step, [False] * len(counted))
        message = {
            "flags": flags(self._strategy, tf.reduce_all(finite), votes, own_seconds, count.dtype),
            "rows": rows,
            "groups": groups,
            "metrics": [multiplied(s, rows if mean else weight) for s, mean in zip(counted, means, strict=True)],
            "statistics": self._statistics.of_step(weight),
            "states": self._states.message(states_before, rows),
        }
        message, times = self._all_reduce(message)
        groups = [(n * d if is_sum else n, d) for is_sum, (n, d) in zip(sums, message["groups"], strict=True)]
        if step == "train_step":
            self._statistics.assign(message["statistics"])
        self._states.assign(states_before, message["states"])
        of_step = [
            s / tf.cast(message["rows"], s.dtype) if mean else s
            for s, mean in zip(message["metrics"], means, strict=True)
        ]
        states = self.metric_states.end_step(before, of_step)
        return tf.constant(True), message["flags"], groups, states, times

    def _step(self, name: str) -> Callable[[Any], Any]:
        """The model's step. One that is a tf.function becomes a part of the graph of this one."""
        function = getattr(type(self._model), name)
        if not isinstance(function, tf.types.experimental.PolymorphicFunction):
            return getattr(self._model, name)
        return partial(tf.autograph.to_graph(function.python_function), self._model)

    def _is_sum(self, step: str, name: str) -> bool:
        return self._kinds.get((step, name)) == [1.0]

    def _as_given(self, batch: Any) -> Any:
        """What Keras gives to a step: x alone, or as many as there are."""
        given = tuple(part for part in self._weigh(unpack(batch)) if part is not None)
        return given if len(given) > 1 else given[0]

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
        if self._tried is not None:
            self._variables[id(optimizer)] = optimizer, variables
            if tf.compat.v1.get_default_graph() is self._graph:
                self._tried.setdefault(replica, []).append(grads)
            else:
                self._branches = True
            return
        if self._strategy.num_replicas_in_sync > 1:
            dense = next((g for g in grads if g is not None), None)
            rows = tf.cast(self._rows[replica], keras.config.floatx() if dense is None else dense.dtype)
            number, is_sum = self._uses[replica], self._is_sum("train_step", _use(self._uses[replica]))
            own = [self._lookups.by_part((number, i), g) for i, g in enumerate(grads)]
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

    def _assigned(self, trial: Trial) -> list[Any]:
        """What the step changes besides what optimizers do: also weights, such as those of a second network."""
        known = {id(v) for v in (*self._metrics, *self._statistics.variables)}
        for layer in self._model._flatten_layers():  # noqa: SLF001
            known |= {id(generator.state) for generator in layer._seed_generators}  # noqa: SLF001
        held = [v for v in (*self._model.variables, *plain_variables(self._model)) if id(v) not in known]
        texts = [v for v in (*held, *self.captured) if tf.as_dtype(v.dtype) != tf.string]
        return [v for v in texts if id(v.value) in trial.changed]

    def _captured(self, trial: Trial) -> list[PlainVariable]:
        holders = [self._model, *self._optimizers]
        known = [*self._metrics, *plain_variables(self._model), *(v for one in holders for v in one.variables)]
        return captured_variables(trial.variables, [*known, self._all_reduce.counter])

    @contextmanager
    def _noting_results(self, step: str) -> Iterator[None]:
        """While a step is traced first, note the metrics whose result() it asks for, by the `id` of each result."""
        if step in self._names:
            yield
            return
        alive = []

        def noting(metric: keras.metrics.Metric, original: Callable[[Any], Any]) -> Any:
            result = original(metric)
            if not isinstance(result, Mapping):  # which has the names of its metrics
                alive.append(result)
                self._results[id(result)] = metric.name
            return result

        with ExitStack() as stack:
            for kind in {type(metric) for metric in self._model.metrics}:
                stack.enter_context(mock.patch.object(kind, "result", partialmethod(noting, kind.result)))
            yield
        self._results.clear()

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
            with self._gradients.noted():
                yield
        finally:
            self._tried = None
            del keras.optimizers.Optimizer.apply


def _use(number: Any) -> str:
    return f"gradients {number}"
