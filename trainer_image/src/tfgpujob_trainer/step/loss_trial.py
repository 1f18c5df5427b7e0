"""The loss of some rows and its gradient as Keras computes them, compared with those of two halves as replicas compute
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.model.batch import Batch, unpack
from tfgpujob_trainer.model.loss import LossParts, grouped, total_loss
from tfgpujob_trainer.model.optimizers import optimizers_of
from tfgpujob_trainer.step.allreduce import AllReduce
from tfgpujob_trainer.step.lookups import LOOKUPS, Lookup, Lookups, may_look_up, slices
from tfgpujob_trainer.step.trial import MEAN, SUM, Numbers, Seen, Trial, follows, projected, unlike

_GRADIENT = "gradient"


class LossTrial(Trial):
    """Trial of a model's forward and backward pass, or of its forward pass in an evaluation."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        all_reduce: AllReduce,
        model: keras.Model,
        loss: LossParts,
        places: Sequence[Any],
        *,
        weigh: Callable[[Batch], Batch],
        lookups: Lookups,
        training: bool,
    ) -> None:
        self.training, self._model, self._loss, self._weigh = training, model, loss, weigh
        self._lookups = lookups if training and may_look_up(model) else None
        self._looked_up: list[Lookup] = []
        self._kinds: dict[str, list[float]] = {}
        """Possible kinds of each value that is one number for a batch."""
        self._said = False
        computes, optimizers = [partial(self._compute, whole) for whole in (True, False)], optimizers_of(model).values()
        super().__init__(strategy, all_reduce, places, *computes, optimizers=optimizers)
        self.watch({id(v.value) for v in (*model.trainable_variables, *model.metrics_variables)})

    def __call__(self, states: Sequence[Any] = (), *, moves: bool = True) -> list[Seen]:
        """As that of a Trial; the first finds the lookups whose gradients are summed over replicas too."""
        found = super().__call__(states, moves=moves)
        if self._looked_up and moves and self._lookups is not None:
            self._lookups.note(self._looked_up, found[0].whole[LOOKUPS], found[0].halves[0][LOOKUPS])
        return found

    def sums(self, found: Sequence[Seen]) -> list[str]:
        """Find out which numbers are sums over rows, and not means; returns log lines about those that were unknown."""
        known, dtype = self._loss.sums[self.training], self.precision(self._model.compute_dtype)
        for name, kinds in self._kinds.items():
            fitting = [kind for kind in kinds if all(follows(name, kind, seen, dtype) for seen in found)]
            self._kinds[name] = fitting
        new = [name for name, kinds in self._kinds.items() if kinds == [SUM] and name not in known]
        known.update(new)
        return [f"{name} is a sum over the rows: those of all replicas are added" for name in new if self.training]

    def coupled(self, found: Sequence[Seen]) -> str:
        """In what the rows of a batch are more than their halves together, if that is not said yet."""
        dtype = self.precision(self._model.compute_dtype)
        for seen in [] if self._said else found:
            names = [name for name in seen.whole if name not in (_GRADIENT, LOOKUPS)]
            factors = {name: (self._kinds.get(name, [SUM]) or [MEAN])[0] for name in names}
            halves = {name: factor * (seen.halves[0][name] + seen.halves[1][name]) for name, factor in factors.items()}
            self._said = True
            if not all(follows(name, factor, seen, dtype) for name, factor in factors.items()):
                of_whole, of_halves = self._value(seen.whole), self._value(halves)
                return f"the loss of {self.rows} rows is {of_whole:.7g}, and {of_halves:.7g} in halves"
            for place in unlike(seen.whole[_GRADIENT], self._gradient(seen, factors), dtype):
                path = self._model.trainable_variables[place].path
                return f"the gradient of {path} by {self.rows} rows is another one by their halves"
            self._said = False
        if self.counts_replicas and [SUM] in self._kinds.values() and not self._said:
            self._said = True
            return "it asks for the number of replicas, which have as many rows each only in some batches"
        return ""

    def _compute(self, whole: bool, packed: Any) -> Numbers:
        """Numbers and sums that make up the loss; their gradients or, of the `whole`, that of all."""
        batch = self._weigh(unpack(packed)) if self.training else unpack(packed)
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self._model(batch[0], training=self.training)
            parts = self._loss(batch, y_pred, training=self.training)
            numbers = {part.name: part.value for part in parts if part.name is not None}
            groups = [numerator for numerator, _ in grouped(parts).values()]
            sums = grouped([part for part in parts if part.name is None])
            total = total_loss([*((number, None) for number in numbers.values()), *sums.values()])
        self._kinds = self._kinds or {name: [MEAN, SUM] for name in numbers}
        targets = {**numbers, **{name: numerator for name, (numerator, _) in sums.items()}}
        found = {**targets, **{_count(name): count for name, (_, count) in sums.items() if count is not None}}
        if not self.training:
            return {**found, **({_GRADIENT: projected([])} if whole else {})}

        variables = self._model.trainable_variables

        def gradient(target: Any) -> Any:
            found = tape.gradient(target, variables)
            return projected([tf.zeros(v.shape) if g is None else g for g, v in zip(found, variables, strict=True)])

        if self._lookups is not None:
            each = [tape.gradient(numerator, variables) for numerator in groups]
            self._looked_up, sizes = slices(each, tf.nest.flatten(packed))
            found |= {LOOKUPS: tf.stack(sizes)} if sizes else {}
        if whole:
            return {**found, _GRADIENT: gradient(total)}
        return {**found, **{_of(name): gradient(target) for name, target in targets.items()}}

    def _value(self, values: Mapping[str, np.ndarray]) -> float:
        names = [name for name in values if name not in (_GRADIENT, LOOKUPS) and not name.endswith(_count(""))]
        return float(sum(values[name] / values.get(_count(name), 1.0) for name in names))

    def _gradient(self, seen: Seen, factors: Mapping[str, float]) -> np.ndarray:
        one, other = seen.halves
        total = np.zeros_like(seen.whole[_GRADIENT])
        for name in one if self.training else ():
            if name.startswith(_of("")):
                of = name.removeprefix(_of(""))
                count = one.get(_count(of), 0.5) + other.get(_count(of), 0.5)
                total = total + factors[of] * (one[name] + other[name]) / (count or 1.0)
        return total


def _count(name: str) -> str:
    return f"{name}, its count"


def _of(name: str) -> str:
    return f"{_GRADIENT} of {name}"
