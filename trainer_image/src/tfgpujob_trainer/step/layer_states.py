"""State that layers of the model's author keep: counters, sums, running maxima, moving averages.

Each replica changes it by its own rows. What one device would make of all rows is found by an experiment before the
first step: the change by some rows is held against those by their halves. What is neither alike, their mean, their
largest or smallest nor their sum is refused: replicas could only guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.cluster.strategy import name_in_support
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.coupled_loss import is_near
from tfgpujob_trainer.model.moving_statistics import batch_normalizations, is_of_author
from tfgpujob_trainer.model.variables import local_value, plain_variables, traced_variables, whole_of
from tfgpujob_trainer.step.allreduce import AllReduce

_KINDS = ("alike", "mean", "largest", "smallest", "sum")
"""What one device's value is of the replicas'. The first that fits: what is alike fits others too."""
_ALIKE = 1e-3
"""Of itself, by how much what should be alike may differ, since it was rounded."""
_UNLIKE = re.compile(r"replicas have changed (\S++) in different ways")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "RngReadAndSkip")
"""Operations on a variable that leave it, and a generator's, of which each replica has its own."""
_FIX = (
    "let it be a mean, a sum, a maximum or a minimum over rows, or the same whatever the rows are; add_weight(..., "
    "aggregation='mean' or 'only_first_replica') takes it as if it were"
)


class LayerStates:
    """Of one model under one strategy; none until `look` has found some."""

    def __init__(self, strategy: tf.distribute.Strategy, model: keras.Model, all_reduce: AllReduce) -> None:
        self._strategy, self._model, self._all_reduce = strategy, model, all_reduce
        self._replicas = strategy.num_replicas_in_sync
        self._states: list[tuple[Any, str]] = []

    def look(self, step: Callable[[Any], Any], rows: Any, candidates: Sequence[Any]) -> list[str]:
        """Find them among these, and what is to be said of them; raises ConfigError for what replicas cannot share.

        `step` computes rows in a replica, and applies no gradients. All that it changes is put back. What it returns
        are sums over the rows, unless the rows are coupled by what layers keep.
        """
        count = len(tf.nest.flatten(rows)[0]) // 2 * 2
        candidates = [v for v in candidates if tf.as_dtype(v.dtype) != tf.string]
        if self._replicas == 1 or count == 0 or not candidates:
            return []

        def replica(first: Any, second: Any) -> Any:
            sums = step(second if _place() % 2 else first)
            return self._all_reduce([self._each(one) for one in (*(_wide(v.value) for v in candidates), *sums)])[0]

        function = tf.function(lambda *halves: self._strategy.run(replica, args=halves), autograph=False)
        whole, one, other = (
            tf.nest.map_structure(lambda array, of=part: tf.convert_to_tensor(array[of]), rows)
            for part in (slice(0, count), slice(0, count // 2), slice(count // 2, count))
        )
        traces = [function.get_concrete_function(part, part) for part in (whole, one)]
        changed = changed_variables(traces)
        variables = list({id(v): v for trace in traces for v in traced_variables(trace)}.values())

        def values() -> list[Any]:
            return [variable.read_value() for variable in variables]

        def begin(at: list[Any]) -> None:
            for variable, value in zip(variables, at, strict=True):
                variable.assign(value)

        def found(*parts: Any) -> list[np.ndarray]:
            return [self._strategy.experimental_local_results(one)[0].numpy() for one in function(*parts)]

        before, coupled = values(), False
        at = before
        fitting = {i: list(_KINDS) for i, state in enumerate(candidates) if id(state.value) in changed}
        try:
            for _ in range(2):
                start = [np.asarray(_wide(local_value(state))) for state in candidates]
                of_whole, following = found(whole, whole), values()
                begin(at)
                of_halves = found(one, other)
                begin(at)
                of_one = found(one, one)
                for i, kinds in fitting.items():
                    seen = start[i], of_whole[i][0], of_halves[i], of_one[i][0]
                    fitting[i] = [kind for kind in kinds if _fits(kind, *seen)]
                sums = list(zip(of_whole, of_halves, strict=True))[len(start) :]
                coupled |= not all(is_near(self._model, w[0], one + other) for w, (one, other, *_) in sums)
                begin(following)
                at = following
        finally:
            begin(before)
        notes = self._take([(candidates[i], kinds) for i, kinds in fitting.items()])
        if coupled and not self._own_rows():
            kept = ", ".join(state.path for state, kind in self._states if kind != "alike")
            who = f"the loss, in which layers use what they have just changed ({kept})"
            notes += require("a loss that couples rows", name_in_support(self._strategy), who)
        return notes

    def before(self) -> list[Any]:
        """Their values when a step begins."""
        return [tf.convert_to_tensor(state.value) for state, _ in self._states]

    def message(self, before: list[Any], rows: Any) -> list[Any]:
        """What is summed over the replicas after this one has taken its `rows`; of none, a stand-in's don't count."""
        message = [tf.cast(rows, tf.int64)] if self._states else []
        for (state, kind), old in zip(self._states, before, strict=True):
            value = _wide(tf.convert_to_tensor(state.value))
            if kind in ("mean", "sum"):  # of the change, so that what isn't changed keeps its bits
                change = value - _wide(old)
                shared = change * tf.cast(rows, value.dtype) if kind == "mean" else change
                message.append(tf.where(rows > 0, shared, tf.zeros_like(shared)))
            else:
                message.append(self._each(tf.reduce_sum(tf.abs(value)) if kind == "alike" else value))
        return message

    def assign(self, before: list[Any], summed: list[Any]) -> None:
        """Give every replica what one device would have after the rows of all."""
        for (state, kind), old, value in zip(self._states, before, summed[1:], strict=True):
            if kind == "alike":
                off = tf.cast(tf.reduce_max(tf.abs(value - value[0])), tf.float64)
                allowed = tf.cast(value[0], tf.float64) * (_ALIKE if value.dtype.is_floating else 0.0)
                tf.debugging.Assert(off <= allowed, [f"replicas have changed {state.path} in different ways"])
            else:
                state.assign(tf.cast(_of_all(kind, _wide(old), value, summed[0]), old.dtype))

    def _take(self, found: list[tuple[Any, list[str]]]) -> list[str]:
        notes, refused, self._states = [], [], []
        for state, kinds in found:
            kind = kinds[0] if kinds else self._nearly(state)
            if kind is None:
                refused.append(state.path)
                continue
            self._states.append((state, kind))
            if not kinds:
                notes.append(
                    f"{state.path}: its change by some rows does not follow from those by their halves, each step has "
                    + ("the mean of the replicas'" if kind == "mean" else "the first replica's")
                )
        if refused:
            raise ConfigError(
                f"replicas cannot share {', '.join(refused)}: the change by some rows is neither the mean, the sum nor "
                "an extreme of those by their halves",
                _FIX,
            )
        return notes

    def _nearly(self, state: Any) -> str | None:
        """What stands in where no kind fits: what its author says, or a mean where each replica's rows are its own."""
        if getattr(state, "aggregation", None) == "only_first_replica":  # TensorFlow takes a "mean" by itself
            return "first"
        return "mean" if self._own_rows() and tf.as_dtype(state.dtype).is_floating else None

    def _own_rows(self) -> bool:
        """Whether each replica's rows are its own anyway: by masks, or by statistics of a batch."""
        draws = any(layer._seed_generators for layer in self._model._flatten_layers())  # noqa: SLF001
        return draws or bool(batch_normalizations(self._model, synchronized=False))

    def _each(self, value: Any) -> Any:
        """This replica's value in its place among zeros: the sum over replicas has that of each."""
        mine = _place()
        return tf.stack([value if place == mine else tf.zeros_like(value) for place in range(self._replicas)])


@contextmanager
def unlike_states() -> Iterator[None]:
    """Says in one line what replicas have changed in different ways, though it was alike in the experiment."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _UNLIKE.search(error.message)
        if found is None:
            raise
        raise ConfigError(
            f"{found[0]}: it was the same on all of them for some rows before the first step, and is not any more", _FIX
        ) from error


def states_of_author(model: keras.Model) -> list[Any]:
    """What layers that are none of Keras' keep beside what is trained."""
    metrics = {id(v) for v in model.metrics_variables}
    layers = [layer for layer in model._flatten_layers() if is_of_author(layer)]  # noqa: SLF001
    own = [v for layer in layers for v in layer._non_trainable_variables if id(v) not in metrics]  # noqa: SLF001
    return [*own, *plain_variables(model)]


def changed_variables(traces: Iterable[Any]) -> set[int]:
    """The `id` of what traced functions may change; of the whole, where replicas have a part each."""
    return {
        id(whole_of(variable))
        for traced in traces
        for variable, inner in _captures(traced)
        if any(op.type not in _READS for op in inner.consumers())
    }


def _captures(traced: Any) -> Iterator[tuple[tf.Variable, Any]]:
    inside = {id(outer): inner for outer, inner in traced.graph.captures}
    return ((variable, inside[id(variable.handle)]) for variable in traced_variables(traced))


def _fits(kind: str, start: np.ndarray, whole: np.ndarray, halves: np.ndarray, of_one: np.ndarray) -> bool:
    """Whether the value after some rows follows from those after their halves; `of_one`: with the first for all."""
    one, other = halves[:2]
    floating = np.issubdtype(whole.dtype, np.floating)
    changes = np.abs(whole - start)
    scale = np.max(changes, initial=0.0, where=np.isfinite(changes))
    size = np.max(np.abs(whole), initial=0.0, where=np.isfinite(whole))
    eps = np.finfo(whole.dtype).eps if floating else 0.0
    slack = np.sqrt(eps) * scale + 8 * eps * size

    def close(a: np.ndarray, b: np.ndarray) -> bool:
        return np.allclose(a, b, rtol=0.0, atol=slack)

    if not close(one, of_one):
        return kind == "alike" and close(one, other)  # the layer itself makes it one over the replicas
    if kind == "alike":
        return close(one, other) and close(one, whole)
    if kind == "mean":
        return floating and close((one + other) / 2, whole)
    if kind == "sum":
        return close(one + (other - start), whole)
    return close(np.maximum(one, other) if kind == "largest" else np.minimum(one, other), whole)


def _of_all(kind: str, old: Any, summed: Any, rows: Any) -> Any:
    if kind == "mean":
        return old + summed / tf.cast(rows, summed.dtype)
    if kind == "sum":
        return old + summed
    if kind == "first":
        return summed[0]
    return (tf.reduce_max if kind == "largest" else tf.reduce_min)(summed, axis=0)


def _place() -> int:
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def _wide(value: Any) -> Any:
    """In a type that collectives sum and NumPy knows."""
    dtype = tf.as_dtype(value.dtype)
    wide = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype if dtype.is_floating else tf.int64
    return tf.cast(value, wide)
