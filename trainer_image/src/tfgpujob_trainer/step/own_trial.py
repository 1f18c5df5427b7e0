"""How a model's own steps are to be shared by replicas, found by trials (step/trial.py) before they train.

A number that a step returns, and what it gives an optimizer, may be a mean over rows, or a sum; a metric may count
rows, or batches. What the log says of the steps follows from that, and from what they do to gradients (step/linear.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.moving_statistics import batch_normalization_notes, moving_statistics
from tfgpujob_trainer.model.optimizers import build_all, optimizers_of
from tfgpujob_trainer.model.variables import PlainVariable, captured_variables, plain_variables
from tfgpujob_trainer.step.allreduce import AllReduce, local_replica
from tfgpujob_trainer.step.layer_states import LayerStates
from tfgpujob_trainer.step.linear import Gradients
from tfgpujob_trainer.step.lookups import LOOKUPS, Lookup, Lookups, slices
from tfgpujob_trainer.step.trial import MEAN, SUM, Numbers, Seen, State, Trial, follows, near, projected, unlike

_CLIPS = ("clip_by_global_norm", "clip_by_norm")
"""What TensorFlow calls the operations that clip."""


class OwnTrials:
    """The trials of one model's own steps under one strategy, and what they have found."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        all_reduce: AllReduce,
        model: keras.Model,
        call: Callable[[str, Any], tuple[dict[str, Any], set[str]]],
        name: str,
    ) -> None:
        """`call` runs a step, by its name, on rows: what it returns, and which of that are no metric's result."""
        self._strategy, self._all_reduce, self._model, self._call, self._name = strategy, all_reduce, model, call, name
        self._metrics, self._optimizers = list(model.metrics_variables), list(optimizers_of(model).values())
        self._shared = {id(v) for v in (*self._metrics, *moving_statistics(model))}
        self.states = {step: LayerStates(strategy) for step in ("train_step", "test_step")}
        self.lookups = Lookups()
        self._trials: dict[str, Trial] = {}
        self._kinds: dict[tuple[str, str], list[float]] = {}
        """What each number that a step returns, and each use of an optimizer, may be."""
        self._powers: dict[str, list[int]] = {}
        """How each state of a metric is weighted, by step, as `powers` says."""
        self._said: dict[str, list[str]] = {}
        self.captured: list[PlainVariable] = []
        """What the training step reads or changes, and neither the model nor an optimizer holds."""
        self._tried: dict[int, list[list[Any]]] | None = None
        """While a trial is traced, the gradients of each use of an optimizer by each replica."""
        self._graph: Any = None
        """That of the traced step: a branch or a loop in it has another one."""
        self._used_in_branch = False
        self._gradients = Gradients()
        self._variables: dict[int, tuple[keras.optimizers.Optimizer, list[Any]]] = {}
        self._looked_up: list[Lookup] = []
        self._returned: set[str] = set()
        self._numbers: dict[str, set[str]] = {}
        """What each step returns that is no metric's result."""

    @property
    def found(self) -> Any:
        """What the graphs of the steps depend on; equal if they need not be traced again."""
        return dict(self._kinds), dict(self._powers), [states.kinds for states in self.states.values()]

    def is_sum(self, step: str, name: str) -> bool:
        """Whether a number that a step returns is a sum over the rows, and no mean."""
        return self._kinds.get((step, name)) == [SUM]

    def gives_sums(self, use: int) -> bool:
        """Whether an optimizer gets gradients that are sums over the rows, at this use of one in the training step."""
        return self.is_sum("train_step", _use(use))

    def powers(self, step: str) -> list[int]:
        """The power of its rows by which the change of each state of a metric is weighted in a step.

        0 for a sum over rows; 1 for a mean of a batch; -1 for a sum that is weighted by the rows, as Keras does with
        the loss of a batch.
        """
        return self._powers.get(step, [0] * len(self._metrics))

    def note(self, optimizer: keras.optimizers.Optimizer, gradients: list[Any], variables: list[Any]) -> bool:
        """Whether a trial is traced; then the step's gradients are noted, and not to be applied."""
        if self._tried is None:
            return False
        self._variables[id(optimizer)] = optimizer, variables
        if tf.compat.v1.get_default_graph() is self._graph:
            self._tried.setdefault(local_replica(self._strategy), []).append(gradients)
        else:
            self._used_in_branch = True
        return True

    def try_on(self, step: str, places: Sequence[Any]) -> list[str]:
        """Try a step once; what is to be said of it. As `OwnSteps.try_on`."""
        several, notes = self._strategy.num_replicas_in_sync > 1, []
        if step in self._trials or (step == "test_step" and not several):
            return []
        self._tried = {}
        try:
            with self._gradients.noted():
                computed, optimizers = partial(self._computed, step), self._optimizers
                trial = Trial(
                    self._strategy, self._all_reduce, places, computed, optimizers=optimizers, alone=not several
                )
        except Exception as error:
            if several:
                rows = len(tf.nest.flatten(places[0])[0])
                how = "take their number from the data, as keras.ops.shape(x)[0] is"
                error.add_note(f"{step} gets {rows} rows, or half of them, before it trains, and later a share: {how}")
            raise
        finally:
            self._tried = None
        self._trials[step] = trial
        if step == "train_step":
            for optimizer, variables in self._variables.values():
                build_all(optimizer, variables)
            self.captured = self._captured(trial)
            states = self._assigned(trial)
            held = (*self._model.trainable_variables, *self._model.metrics_variables, *states)
            trial.watch({id(v.value) for v in (*held, *(v for o in self._optimizers for v in o.variables))})
            notes = batch_normalization_notes(trial.normalized, self._name, 1, synchronized=False)
            notes += self._loss_without_metric()
        return [*notes, *self._fit(step, first=True)] if several and trial.rows > 1 else notes

    def has_changed(self) -> bool:
        """Whether what the steps read, and that is no weight, has another value than when they were tried."""
        return sum(trial.has_changed() for trial in self._trials.values()) > 0

    def try_again(self) -> list[str]:
        """Fit what was found to the values of now; what is new to say of the steps."""
        several = self._strategy.num_replicas_in_sync > 1
        return [note for step in self._trials for note in self._fit(step, first=False)] if several else []

    def _computed(self, step: str, rows: Any) -> Numbers:
        """What a step makes of rows in a replica: what it returns, and the gradients that it gives optimizers."""
        replica = local_replica(self._strategy)
        assert self._tried is not None
        self._tried.pop(replica, None)
        self._graph = tf.compat.v1.get_default_graph()
        given, self._numbers[step] = self._call(step, rows)
        self._returned = {*given}
        if self._used_in_branch and self._strategy.num_replicas_in_sync > 1:
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
        self._looked_up, sizes = slices(uses, tf.nest.flatten(rows))
        return {**found, LOOKUPS: tf.stack(sizes)} if sizes else found

    def _captured(self, trial: Trial) -> list[PlainVariable]:
        holders = [self._model, *self._optimizers]
        known = [*self._metrics, *plain_variables(self._model), *(v for one in holders for v in one.variables)]
        return captured_variables(trial.variables, [*known, self._all_reduce.counter])

    def _assigned(self, trial: Trial) -> list[Any]:
        """What the step changes besides what optimizers do: also weights, such as those of a second network."""
        layers = self._model._flatten_layers()  # noqa: SLF001
        generators = [generator for layer in layers for generator in layer._seed_generators]  # noqa: SLF001
        known = self._shared | {id(generator.state) for generator in generators}
        held = [v for v in (*self._model.variables, *plain_variables(self._model)) if id(v) not in known]
        numbers = [v for v in (*held, *self.captured) if tf.as_dtype(v.dtype) != tf.string]
        return [v for v in numbers if id(v.value) in trial.changed]

    def _loss_without_metric(self) -> list[str]:
        """Where train_step() returns what Model.metrics are named, Keras' history has the results of these."""
        if "loss" not in self._numbers["train_step"] or {*self._model.get_metrics_result()} != self._returned:
            return []
        return [f"the loss of {type(self._model).__name__}: no metric counts it, so plain Keras shows 0"]

    def _fit(self, step: str, *, first: bool) -> list[str]:
        """Run the trial of a step: what remains possible of all that it may be; what is new to say of it."""
        trial = self._trials[step]
        states = self._assigned(trial)
        found = trial([*states, *self._metrics], moves=first)
        counts = zip(*(seen.states[len(states) :] for seen in found), strict=True)
        odd: list[str] = []
        self._powers[step] = [self._power(v, seen, odd) for v, seen in zip(self._metrics, counts, strict=True)]
        whole = dict(found[0].whole)
        sizes = whole.pop(LOOKUPS, None)
        if first and sizes is not None:
            self.lookups.note(self._looked_up, sizes, found[0].halves[0][LOOKUPS])
        for name in whole:
            known = self._kinds.get((step, name), [MEAN, SUM])
            fitting = [kind for kind in known if all(self._is(kind, name, seen, trial) for seen in found)]
            self._kinds[step, name] = fitting
        notes = self.states[step].take(states, found, trial)
        odd += (name for name in sorted(self._numbers[step]) if not self._kinds[step, name])
        said = self._of_batch(step, odd)
        if step == "train_step":
            uses = [self._kinds[step, name] for name in whole if name.startswith(_use(""))]
            said = self._notes(trial, uses, said)
        notes += said if said != self._said.get(step, []) else []
        self._said[step] = said
        return notes

    def _of_batch(self, step: str, odd: Sequence[str]) -> list[str]:
        who = f"{', '.join(odd)} of {type(self._model).__name__}'s {step}"
        return require("a metric of one number for a batch", self._name, who) if odd else []

    def _notes(self, trial: Trial, uses: Sequence[Sequence[float]], of_numbers: list[str]) -> list[str]:
        """What to say of the training step, from what its uses of optimizers may be, and of its numbers."""
        who = f"{type(self._model).__name__}'s own train_step"
        changed_by = self._gradients.changed_by
        clips = [clip for clip in _CLIPS if any(clip in name for name in changed_by)]
        if clips:
            fix = "give the optimizer global_clipnorm, clipnorm or clipvalue instead"
            return [f"{who}: each replica clips the gradients of its own rows ({clips[0]}); {fix}"]
        if not uses or trial.own_rows:
            return require("own train_step", self._name, who)
        if not all(uses) and not changed_by:
            how = "the gradients of some rows do not follow from those of their halves"
            return require("a loss that couples rows", self._name, f"{who} ({how})")
        if trial.counts_replicas and [SUM] in uses:
            how = "its gradients follow from the number of replicas, which have as many rows each only in some batches"
            return require("a loss that couples rows", self._name, f"{who} ({how})")
        if changed_by:
            by = ", ".join(sorted({*changed_by.values()}))
            return require("own train_step", self._name, f"{who}, with {by} of its gradients")
        kinds = " and ".join(sorted({f"{'sums' if kind == [SUM] else 'means'} over the rows" for kind in uses}))
        return [f"{who}: its gradients are {kinds}, so those of the global batch are exact", *of_numbers]

    def _is(self, kind: float, name: str, seen: Seen, trial: Trial) -> bool:
        """Whether a number, or the gradients of a use of an optimizer, are of a kind."""
        dtype = trial.precision(self._model.compute_dtype)
        if not name.startswith(_use("")):
            return follows(name, kind, seen, dtype)
        return not unlike(seen.whole[name], kind * (seen.halves[0][name] + seen.halves[1][name]), dtype)

    def _power(self, variable: Any, found: Sequence[State], odd: list[str]) -> int:
        """How a metric's state is weighted (`powers`), from its changes by some rows and by their halves.

        As a mean, and it is added to `odd`, if nothing fits. Raises ConfigError for a maximum or minimum.
        """

        def fits(of_both: Callable[[np.ndarray, np.ndarray], np.ndarray], power: int = 0) -> bool:
            changes = [(s.whole - s.start, of_both(*(half - s.start for half in s.halves))) for s in found]
            return all(near(whole, of_halves / 2.0**power, "float32") for whole, of_halves in changes)

        for power in (0, 1, -1):
            if fits(np.add, power):
                return power
        if fits(np.maximum):
            require("a metric that is no sum", self._name, f"metric state {variable.path!r}")
        odd.append(variable.path)
        return 1


def _use(number: Any) -> str:
    return f"gradients {number}"
