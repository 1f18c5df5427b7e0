"""The exact step: the same weights for any number of replicas.

Each replica sums its losses and gradients. One all-reduce per optimizer step then carries the gradients, numerators and
normalisers of the loss, the metrics, the moving statistics and the stop flag together. Only after it are the sums
divided and applied, with the optimizer's own reduction switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.cluster.strategy import name_in_support
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.batch import Batch, batch_spec, unpack, weigher
from tfgpujob_trainer.model.loss import LossParts, LossSums, add_step, grouped, mean_loss, total_loss
from tfgpujob_trainer.model.metrics import (
    MetricStates,
    check_shared_metrics,
    has_own_numbers,
    numbers_left_out,
    results,
)
from tfgpujob_trainer.model.moving_statistics import (
    Statistics,
    batch_normalization_notes,
    moving_statistics,
    synchronized_normalizations,
)
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.model.optimizers import optimizers_of
from tfgpujob_trainer.model.variables import PlainVariable, captured_variables, plain_variables, state_kept
from tfgpujob_trainer.step import stand_in
from tfgpujob_trainer.step.allreduce import AllReduce, local_replica
from tfgpujob_trainer.step.compiled import Compiled, Evaluation, Step, StepResult, as_traced, flags
from tfgpujob_trainer.step.gradient_accumulation import accumulate
from tfgpujob_trainer.step.gradients import add, all_finite, divided, multiplied, shaped
from tfgpujob_trainer.step.jit import WithXla, jitted, jitted_notes, jitted_update, wanted
from tfgpujob_trainer.step.layer_states import LayerStates, states_of_author
from tfgpujob_trainer.step.lookups import Lookups, apart, together
from tfgpujob_trainer.step.loss_trial import LossTrial
from tfgpujob_trainer.step.tried import Tried


class SynchronousSteps(Tried):
    """Training and evaluation steps of one model under one strategy.

    `arrays` are some rows of the data; `rows` is what each replica gets of every training batch, if that is always the
    same: TensorFlow is a little faster where it knows. `allow_coupled_loss`: micro-batches may have a loss that couples
    their rows.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        takeover: OptimizerTakeover,
        arrays: Any,
        *,
        rows: int | None = None,
        jit: str | None = "none",
        half: bool = False,
        class_weights: Mapping[str, float] | None = None,
        allow_coupled_loss: bool = False,
    ) -> None:
        self._strategy, self._model, self._takeover = strategy, model, takeover
        self._weigh = weigher(class_weights or {})
        self._alone = strategy.num_replicas_in_sync == takeover.accumulate == 1
        """Whether these rows are the whole batch. Then their loss itself is differentiated, as by Keras, and not its
        parts: a tf.custom_gradient may make something else of each."""
        replicas = len(strategy.extended.worker_devices)
        self._all_reduce = AllReduce(strategy, half=half)
        self._loss, self._lookups = LossParts(model), Lookups()
        self.metric_states = MetricStates(strategy, model, self._loss.of_batch if self._loss.has_outputs else None)
        self._statistics = Statistics(moving_statistics(model))
        self._states = {training: LayerStates(strategy) for training in (True, False)}
        """What layers change in the training, and what in an evaluation."""
        name = name_in_support(strategy)
        normalized = synchronized_normalizations(model)
        self.notes = batch_normalization_notes(normalized, name, takeover.accumulate, synchronized=True)
        self._unrolled = strategy.num_replicas_in_sync > 1 and bool(normalized)
        if half:
            self.notes += require("allReduce: float16", name, "allReduce: float16")
        if with_xla := wanted(jit, strategy, model):
            self.notes += jitted_notes(model, name)

        def training() -> tuple[Step, Step]:
            inputs = (batch_spec(arrays, rows),) * replicas
            plain = self._compile(partial(self._train_replica, jit=False), inputs, training=True)
            if not with_xla:
                return plain, plain
            compiled = self._compile(partial(self._train_replica, jit=True), inputs, training=True)
            return plain, WithXla(model, compiled, plain, must=jit is not None)

        def evaluation(spec: Any) -> Step:
            plain = self._compile(partial(self._evaluate_replica, jit=False), (spec,) * replicas, training=False)
            if not with_xla:
                return plain
            compiled = self._compile(partial(self._evaluate_replica, jit=True), (spec,) * replicas, training=False)
            return WithXla(model, compiled, plain, must=False)

        def begin() -> None:
            self._train, self._train_whole = training()
            self._evaluate = Evaluation(evaluation, arrays)

        self._begin = begin
        begin()
        self._trials: dict[bool, LossTrial] = {}
        """The trials of the training and of an evaluation, if these were made."""
        self._allow_coupled_loss = allow_coupled_loss

    @property
    def draws(self) -> bool:
        """Whether a step has random operations whose state no checkpoint keeps."""
        step = getattr(self._train_whole, "step", self._train_whole)
        return isinstance(step, Compiled) and step.draws()

    @property
    def captured(self) -> list[PlainVariable]:
        """What the script holds, such as the weight of a loss that a callback changes."""
        step = getattr(self._train_whole, "step", self._train_whole)
        traced = step.variables() if isinstance(step, Compiled) else []
        optimizers = optimizers_of(self._model).values()
        known = [*self._model.variables, *self._model.metrics_variables, *plain_variables(self._model)]
        known += [v for optimizer in optimizers for v in optimizer.variables]
        return captured_variables(traced, [*known, self._all_reduce.counter])

    def values(self, loss: LossSums, states: list[Any], *, training: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Loss and metrics, of an evaluation too, from their sums."""
        return {"loss": mean_loss(loss), **results(self._model, states)}

    def add_loss(self, total: LossSums, step: LossSums, rows: int) -> LossSums:
        """`total` with the loss of one more step or batch."""
        return add_step(total, step, rows)

    def try_on(self, places: Sequence[Any], *, training: bool = True) -> None:
        """Find how replicas share the loss, and what layers change by themselves; to be called before the first step.

        `places`: rows of several places of the data. Raises ConfigError for what replicas cannot share, and for a loss
        that couples rows and is to be accumulated, unless that is allowed.
        """
        self._places = places if training else self._places
        several = self._strategy.num_replicas_in_sync > 1
        if training in self._trials or not (several or self._takeover.accumulate > 1):
            return
        with self._loss.unmeasured(), as_traced(self._model, places[0], training=training):
            trial = LossTrial(
                self._strategy,
                self._all_reduce,
                self._model,
                self._loss,
                places,
                weigh=self._weigh,
                lookups=self._lookups,
                training=training,
            )
        name, count = name_in_support(self._strategy), self._takeover.accumulate
        self.notes += batch_normalization_notes(trial.normalized, name, count, synchronized=False)
        if trial.rows < 2:
            return
        self._trials[training] = trial
        if (states := states_of_author(self._model)) and training and self._takeover.accumulate > 1:
            names = ", ".join(state.path for state in states)
            self.notes.append(
                f"{names}: if a call changes it, each micro-batch does, as in gradient accumulation by Keras"
            )
        found = self._tried(trial, moves=True)
        self.notes += [*self._loss.notes, *found] if training else [note for note in found if note not in self.notes]

    def _forget(self) -> None:
        self._trials.pop(True, None)

    def has_changed(self) -> bool:
        """Whether what the steps read, and that is no weight, has another value than when they were tried."""
        return sum(trial.has_changed() for trial in self._trials.values()) > 0

    def _fitted(self) -> list[str]:
        return [note for trial in self._trials.values() for note in self._tried(trial, moves=False)]

    def _found(self) -> Any:
        return [(self._loss.sums[training].copy(), states.kinds) for training, states in self._states.items()]

    def _kept(self) -> list[Any]:
        return states_of_author(self._model) if self._strategy.num_replicas_in_sync > 1 else []

    def _tried(self, trial: LossTrial, *, moves: bool) -> list[str]:
        states = self._kept()
        with self._loss.unmeasured():
            found = trial(states, moves=moves)
        notes = [*self._states[trial.training].take(states, found, trial), *trial.sums(found)]
        coupled = trial.coupled(found)
        if not coupled:
            return notes
        kept = ", ".join(self._states[trial.training].unlike)
        coupled += f"; layers use what they have just changed: {kept}" if kept else ""
        if trial.training and (count := self._takeover.accumulate) > 1:
            if not self._allow_coupled_loss:
                raise ConfigError(
                    f"trainer.accumulate is {count}, and the loss couples the rows of a batch: {coupled}",
                    "set accumulate to 1, or allowCoupledLoss: true if a micro-batch is a batch to this loss",
                )
            notes.append(f"allowCoupledLoss: {count} micro-batches, each with its own loss")
        what = f"the loss{'' if trial.training else ' of an evaluation'} ({coupled})"
        return [*require("a loss that couples rows", name_in_support(self._strategy), what), *notes]

    def check_metrics(self, rows: Any) -> list[str]:
        """Notes about metrics that differ on several replicas; raises ConfigError for some."""
        own, several = has_own_numbers(self._model), self._strategy.num_replicas_in_sync > 1
        if not own and not several:
            return []
        batch = unpack(tf.nest.map_structure(tf.convert_to_tensor, rows))
        with state_kept(self._model):
            y_pred = self._model(batch[0], training=False)
        notes = numbers_left_out(self._model, batch, y_pred) if own else []
        return (
            notes
            if not several
            else notes + check_shared_metrics(self._model, batch, y_pred, name_in_support(self._strategy))
        )

    def train(
        self,
        batches: Any,
        *,
        edges: Any,
        stop: bool,
        hold: bool = False,
        own_seconds: float = 0.0,
        whole: bool = True,
    ) -> StepResult:
        """One optimizer step on this worker's part of a global batch; `whole` unless the batch is a short one.

        `edges`, of shape (replicas, micro-batches + 1): where each replica's micro-batches begin and end in its rows.
        `stop` and `hold`: what every worker's result says if one worker says so.
        `own_seconds` is how long this worker needs for a step without the all-reduce; every worker gets it.
        """
        function = self._train_whole if whole else self._train
        return function(batches, edges, stop=stop, hold=hold, own_seconds=own_seconds)

    def evaluate(self, batches: Any, edges: Any) -> StepResult:
        """One batch of an evaluation; `edges` as in `train`."""
        return self._evaluate(batches, edges)

    def waits_for_peers(self) -> bool:
        """True if this worker has done its part of a step, or of an evaluation batch, and waits for the others'.

        Any thread may call it.
        """
        return self._all_reduce.waits_for_peers()

    def _compile(self, replica: Callable[..., Any], inputs: Any, *, training: bool) -> Compiled:
        kept = partial(as_traced, self._model, training=training)
        return Compiled(self._strategy, replica, None if self._unrolled else inputs, kept)

    def _train_replica(self, batches: Any, edges: Any, votes: Any, own_seconds: Any, *, jit: bool) -> tuple[Any, ...]:
        """`jit`: for full batches, of which each replica has rows."""
        replica, weight = local_replica(self._strategy), stand_in.weight(self._strategy, edges)
        sums: Callable[..., Any] = partial(self._sums, weight=weight)
        regularisers, update = self._regularisers, self._update
        if jit:
            sums, regularisers, update = jitted(self._sums), jitted(regularisers), jitted_update(self._strategy, update)
        batch, before, states_before = batches[replica], self.metric_states.begin_step(), self._states[True].before()
        if self._takeover.accumulate == 1:
            groups, gradients = sums(batch)
        else:
            groups, gradients = accumulate(batch, stand_in.micro_batches(edges[replica]), sums, unrolled=self._unrolled)
        message = self._message(groups, votes, own_seconds, weight)
        message["gradients"], message["shared"] = apart(gradients)
        message["statistics"] = self._statistics.of_step(weight)
        message["states"] = self._states[True].message(states_before, multiplied(_rows(batch), weight))
        message, times = self._all_reduce.gradients(message)
        message["gradients"] = together(message["gradients"], gradients, message["shared"])
        loss = [*message["groups"], *self._regularisation()]
        applied = update(message["gradients"], message["groups"], regularisers() if self._loss.regularised else [])
        self._statistics.assign(message["statistics"])
        self._states[True].assign(states_before, message["states"])
        states = self.metric_states.end_step(before, message["metrics"])
        return applied, message["flags"], loss, states, times

    def _regularisation(self) -> list[Any]:
        """The weight regularisers' part of the loss: the same on every replica, so it is not summed over them."""
        return [(self._loss.regularisation(), None)] if self._loss.regularised else []

    def _sums(self, packed: Any, weight: Any = None) -> tuple[list[Any], list[Any]]:
        """(numerator, normaliser) of each part of the loss of these rows, and the numerators' gradients; the loss's if
        `_alone`.
        """
        batch, variables = self._weigh(unpack(packed)), self._model.trainable_variables
        scale, unscale = self._scaling(batch)
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self._model(batch[0], training=True)
            groups = stand_in.weighted(list(grouped(self._loss(batch, y_pred, training=True)).values()), weight)
            targets = [total_loss(groups)] if self._alone else [n for n, _ in groups]
            targets = targets if scale is None else [n * tf.cast(scale, n.dtype) for n in targets]
        gradients = [shaped(tape.gradient(target, variables), variables) for target in targets]
        self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        self._lookups.compare(gradients)
        return groups, [
            [multiplied(self._lookups.by_part((i, j), g), unscale) for j, g in enumerate(group)]
            for i, group in enumerate(gradients)
        ]

    def _scaling(self, batch: Batch) -> tuple[Any, Any]:
        """What a numerator is multiplied by before the backward pass, and its gradients after it.

        A sum over rows overflows float16 sooner than a mean, so the rows are divided out in between.
        """
        if self._takeover.loss_scale is None:
            return None, None
        dtype = keras.config.floatx()
        if self._alone:
            return self._takeover.loss_scale.value, None
        rows = tf.maximum(tf.cast(tf.shape(tf.nest.flatten(batch[0])[0])[0], dtype), 1)
        return tf.cast(self._takeover.loss_scale.value, dtype) / rows, rows

    def _regularisers(self) -> list[Any]:
        """The gradients of the weight regularisers."""
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            regularisation = self._loss.regularisation()
        return list(tape.gradient(regularisation, variables))

    def _update(self, gradients: list[list[Any]], groups: list[Any], regularisers: list[Any]) -> Any:
        """Apply the gradient of the global loss or, after an overflow, skip it; whether it was applied.

        One of several batches is kept for their mean.
        """
        total = self._combine(gradients, groups)
        if self._takeover.loss_scale is None and self._takeover.several is None:
            return self._apply(total, regularisers)
        if (context := tf.distribute.get_replica_context()) is None:  # already for all replicas, see jitted_update
            args = total, regularisers
            return tf.cond(self._is_applied(total), lambda: self._apply(*args), lambda: self._leave(*args))
        return context.merge_call(self._apply_or_leave, args=(total, regularisers))

    def _is_applied(self, gradients: list[Any]) -> Any:
        several = self._takeover.several
        return all_finite(gradients) if several is None else several.due()

    def _whole(self, gradients: list[Any], regularisers: list[Any]) -> list[Any]:
        """The gradient without its scale, and with that of the regularisers."""
        scale = self._takeover.loss_scale
        total = gradients if scale is None else [divided(g, scale.value) for g in gradients]
        if regularisers:
            total = [add(a, b) for a, b in zip(total, regularisers, strict=True)]
        return [multiplied(g, self._takeover.loss_factor) for g in total]

    def _apply(self, gradients: list[Any], regularisers: list[Any]) -> Any:
        takeover, variables = self._takeover, self._model.trainable_variables
        total = self._whole(gradients, regularisers)
        takeover.apply(total if takeover.several is None else takeover.several.mean(total, variables), variables)
        if takeover.averages is not None:
            takeover.averages.overwrite_if_due(variables)
        if takeover.loss_scale is not None:
            takeover.loss_scale.grow()
        return tf.constant(True)

    def _leave(self, gradients: list[Any], regularisers: list[Any]) -> Any:
        takeover = self._takeover
        if takeover.several is not None:
            takeover.several.add(self._whole(gradients, regularisers), self._model.trainable_variables)
            return tf.constant(True)
        assert takeover.loss_scale is not None
        takeover.loss_scale.shrink()
        return tf.constant(False)

    def _apply_or_leave(self, strategy: tf.distribute.Strategy, gradients: list[Any], regularisers: list[Any]) -> Any:
        """The branch, taken for all replicas of this worker at once; the gradients are the same on every replica."""

        def run(function: Callable[..., Any], *args: Any) -> Any:
            results = strategy.extended.call_for_each_replica(function, args=args)
            return strategy.experimental_local_results(results)[0]

        args = gradients, regularisers
        is_applied = run(self._is_applied, gradients)
        return tf.cond(is_applied, lambda: run(self._apply, *args), lambda: run(self._leave, *args))

    def _evaluate_replica(
        self, batches: Any, edges: Any, votes: Any, own_seconds: Any, *, jit: bool
    ) -> tuple[Any, ...]:
        batch, weight = batches[local_replica(self._strategy)], stand_in.weight(self._strategy, edges)
        before, states_before = self.metric_states.begin_step(), self._states[False].before()
        groups = stand_in.weighted((jitted(self._evaluated) if jit else self._evaluated)(batch), weight)
        message = self._message(groups, votes, own_seconds, weight)
        message["states"] = self._states[False].message(states_before, multiplied(_rows(batch), weight))
        message, times = self._all_reduce(message)
        self._states[False].assign(states_before, message["states"])
        states = self.metric_states.end_step(before, message["metrics"])
        return tf.constant(True), message["flags"], [*message["groups"], *self._regularisation()], states, times

    def _evaluated(self, packed: Any) -> list[Any]:
        """(numerator, normaliser) of each part of the loss of these rows; the metrics count them."""
        batch = unpack(packed)
        y_pred = self._model(batch[0], training=False)
        groups = list(grouped(self._loss(batch, y_pred, training=False)).values())
        self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        return groups

    def _message(self, groups: list[Any], votes: Any, own_seconds: Any, weight: Any) -> dict[str, Any]:
        """What is all-reduced beside the gradients; `Compiled` reads the flags."""
        finite = tf.reduce_all([tf.math.is_finite(numerator) for numerator, _ in groups])
        return {
            "flags": flags(self._strategy, finite, votes, own_seconds, groups[0][0].dtype),
            "groups": groups,
            "metrics": [multiplied(state, weight) for state in self.metric_states.of_step()],
        }

    def _combine(self, gradients: list[list[Any]], groups: list[Any]) -> list[Any]:
        """The gradient of the global loss from the sums over all replicas."""
        if self._alone:
            return gradients[0]
        total: list[Any] = [None] * len(gradients[0])
        for of_group, (_, normaliser) in zip(gradients, groups, strict=True):
            for i, gradient in enumerate(of_group):
                total[i] = self._lookups.sum(i, total[i], divided(gradient, normaliser))
        return total


def _rows(batch: Any) -> Any:
    return tf.shape(tf.nest.flatten(batch)[0])[0]
