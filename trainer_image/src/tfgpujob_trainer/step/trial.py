"""A step compared with itself before it trains: some rows as a whole, and as two halves.

Replicas, and micro-batches, compute their own rows. The result of one device follows from theirs for means, sums and
extremes over rows, but not for values that couple rows. So the same rows are computed in both ways, from the same
values of every variable that the step reads or changes, all of which are restored, and with the same random numbers for
each row.

That is done at several places of the data, and with several values: those of the first step, those after it, and all of
them moved a little. A value that is zero at first, such as the weight of a loss, hides what it is multiplied by.
Optimizers, which apply nothing, count each place as a step: such a weight may follow from that.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from tfgpujob_trainer.model import replica_seeds
from tfgpujob_trainer.model.variables import local_value, traced_variables, whole_of
from tfgpujob_trainer.step.allreduce import AllReduce

ROWS = 8
"""Rows of a trial: two halves of four."""
MEAN, SUM = 0.5, 1.0
"""What the sum of the numbers of both halves is multiplied by to be that of the whole."""
_EXACT = {"float64": 1e-9, "float32": 1e-4}
_ROUNDED = 0.05
"""Relative rounding error of numbers of these types, and of others. Libraries compute 8 rows otherwise than 4, and many
layers add that up."""
_OF_GRADIENTS = 10
"""Its multiple for gradients."""
_LARGE = 1 << 24
"""Elements of a table whose sparse gradient is not made dense."""
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "RngReadAndSkip")
"""Operations on a variable that leave it, and a generator's, of which each replica has its own."""
_BY_SEED = (
    "stateless_random_normal_v2",
    "stateless_random_uniform_v2",
    "stateless_truncated_normal_v2",
    "stateless_random_uniform_int_v2",
    "stateless_random_uniform_full_int_v2",
)
_BY_ITSELF: dict[str, Callable[..., Any]] = {
    "random_standard_normal": lambda seed, shape, dtype: tf.random.stateless_normal(shape, seed, dtype=dtype),
    "random_uniform": lambda seed, shape, dtype: tf.random.stateless_uniform(shape, seed, dtype=dtype),
    "truncated_normal": lambda seed, shape, dtype: tf.random.stateless_truncated_normal(shape, seed, dtype=dtype),
    "random_uniform_int": lambda seed, shape, minval, maxval: tf.random.stateless_uniform(
        shape, seed, minval, maxval, dtype=tf.convert_to_tensor(minval).dtype
    ),
}
"""Functions that draw numbers from a seed, and those that replace functions without one."""

Numbers = Mapping[str, Any]
"""The results of rows in a step, by name: tensors of known shapes."""


@dataclass(frozen=True, slots=True)
class State:
    """Values of what a step may change: before it, and after the whole, both halves, and the first for all replicas."""

    start: np.ndarray
    whole: np.ndarray
    halves: tuple[np.ndarray, np.ndarray]
    of_one: np.ndarray


@dataclass(frozen=True, slots=True)
class Seen:
    """The results of one trial: of all rows, and of both halves."""

    whole: Mapping[str, np.ndarray]
    halves: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    states: Sequence[State]


class Trial:
    """A trial of one step of a model: `whole` and `half` compute rows in a replica, and apply nothing."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        all_reduce: AllReduce,
        places: Sequence[Any],
        whole: Callable[[Any], Numbers],
        half: Callable[[Any], Numbers] | None = None,
        *,
        optimizers: Iterable[keras.optimizers.Optimizer] = (),
        alone: bool = False,
    ) -> None:
        """`places`: rows of several places of the data; those unlike the first are left out.

        `alone`: nothing is compared, and the step gets the rows as they are, which may be as many as it expects.
        """
        self._strategy, self._all_reduce, self._replicas = strategy, all_reduce, strategy.num_replicas_in_sync
        rows = len(tf.nest.flatten(places[0])[0])
        self.rows = rows if alone else rows // 2 * 2 or 1
        """A single row can't be compared."""
        cut = [tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[: self.rows]), one) for one in places]
        self._places = [place for place in cut if _kinds(place) == _kinds(cut[0])]
        draws, asked = _Draws(), _Asked()
        with _as_alone(draws, asked):
            self._whole = self._traced(whole, draws, (cut[0], 0), (cut[0], 0))
            asked.alone = False
            self._half = self._whole if alone else self._traced(half or whole, draws, *self._halves(cut[0]))
        traces = [trace for trace, _ in (self._whole, self._half)]
        self.variables = list({id(v): v for trace in traces for v in traced_variables(trace)}.values())
        """Variables that the step reads or changes: each replica's own, where they have one."""
        self.changed = _changed(traces)
        """`id`s of those that it may change; of the whole variable, where replicas have a part each."""
        self._counts = {id(optimizer._iterations.value) for optimizer in optimizers}  # noqa: SLF001
        self._rounds = any(_rounds(trace.graph) for trace in traces)
        self.normalized = list(asked.normalized)
        """Names of the BatchNormalization layers that use statistics of a replica's batch."""
        self.own_rows = draws.for_rows or bool(self.normalized)
        """Whether each replica computes its rows in its own way: by random numbers for each, or by those statistics."""
        self.counts_replicas = asked.counted
        """Whether it asks how many replicas there are: then sums over them need batches that are divided evenly."""
        self._watched: list[tf.Variable] = []
        self._values: list[np.ndarray] = []

    def __call__(self, states: Sequence[Any] = (), *, moves: bool = True) -> list[Seen]:
        """The results with the current values; `moves`: and with those moved a little."""

        def each() -> Any:
            found = [each_of(wide(tf.convert_to_tensor(state.value)), self._replicas) for state in states]
            return self._all_reduce(found)[0]

        read = tf.function(lambda: self._strategy.run(each), autograph=False)
        before, found = self._read(), []
        at = before
        try:
            for place in self._places:
                seen, at = self._seen(place, at, states, read)
                found.append(seen)
                at = [a + 1 if id(whole_of(v)) in self._counts else a for v, a in zip(self.variables, at, strict=True)]
            if moves:
                seen, _ = self._seen(self._places[-1], self._moved(at), states, read)
                found += [seen] * _is_finite(seen)
        finally:
            self._begin(before)
        return found

    def precision(self, dtype: str) -> str:
        """The type by whose rounding results may differ in a model that computes in `dtype`: float32 for one in float64
        of which a part computes in float32, as CTC does.
        """
        return "float32" if self._rounds and dtype == "float64" else dtype

    def watch(self, known: set[int]) -> None:
        """Remember the values of other variables that the step reads, such as the weight of a loss."""
        each = {id(whole_of(variable)): variable for variable in self.variables}
        self._watched = [variable for key, variable in each.items() if key not in known | self.changed]
        self.has_changed()

    def has_changed(self) -> bool:
        """True if one of these has changed since the last call."""
        before, self._values = self._values, [variable.numpy() for variable in self._watched]
        return not all(np.array_equal(a, b) for a, b in zip(before, self._values, strict=False))

    def _seen(self, place: Any, at: list[Any], states: Sequence[Any], read: Any) -> tuple[Seen, list[Any]]:
        """The results of a place's rows with these values, and the values after it."""

        def run(of: Any, *parts: Any) -> tuple[list[dict[str, np.ndarray]], list[np.ndarray]]:
            trace, names = of
            self._begin(at)
            with _all_digits():
                numbers = [self._local(one) for one in trace(*tf.nest.map_structure(tf.convert_to_tensor, parts))]
            after = [self._local(one) for one in read()] if states else []
            return [{name: n[i] for name, n in zip(names, numbers, strict=True)} for i in range(self._replicas)], after

        self._begin(at)
        start = [np.asarray(wide(local_value(state))) for state in states]
        (whole, *_), after_whole = run(self._whole, (place, 0), (place, 0))
        following = self._read()
        one, other = self._halves(place)
        if self._replicas == 1:
            ((first,), after_one), ((second,), after_other) = run(self._half, one, one), run(self._half, other, other)
            after = [np.concatenate(both) for both in zip(after_one, after_other, strict=True)]
        else:
            (first, second, *_), after = run(self._half, one, other)
            after_one = run(self._half, one, one)[1] if states else []
        values = zip(start, after_whole, after, after_one, strict=True)
        return Seen(whole, (first, second), [State(s, w[0], (h[0], h[1]), o[0]) for s, w, h, o in values]), following

    def _traced(self, compute: Callable[[Any], Numbers], draws: _Draws, *parts: Any) -> tuple[Any, list[str]]:
        """A function of (rows, which half) for replicas of even and of odd numbers, and the names of its results."""
        names: list[str] = []

        def replica(*parts: Any) -> Any:
            rows, half = parts[place_of_replica() % 2]
            draws.begin(half)
            found = compute(rows)
            names[:] = found
            return self._all_reduce([each_of(wide(tf.convert_to_tensor(v)), self._replicas) for v in found.values()])[0]

        run = tf.function(lambda *parts: self._strategy.run(replica, args=parts), autograph=False)
        parts = tf.nest.map_structure(tf.convert_to_tensor, parts)
        return run.get_concrete_function(*parts), names

    def _halves(self, rows: Any) -> list[tuple[Any, int]]:
        size = max(1, self.rows // 2)
        starts = [0, self.rows - size]
        return [(tf.nest.map_structure(lambda a, at=at: a[at : at + size], rows), i) for i, at in enumerate(starts)]

    def _local(self, value: Any) -> np.ndarray:
        return np.asarray(self._strategy.experimental_local_results(value)[0])

    def _read(self) -> list[Any]:
        return [variable.read_value() for variable in self.variables]

    def _begin(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def _moved(self, values: Sequence[Any]) -> list[Any]:
        """By the same for each replica."""
        places = {key: place for place, key in enumerate(dict.fromkeys(id(whole_of(v)) for v in self.variables))}
        seeds = [places[id(whole_of(variable))] for variable in self.variables]
        return [
            _moved(value, seed) if value.dtype.is_floating else value for value, seed in zip(values, seeds, strict=True)
        ]


def _rounds(graph: tf.Graph) -> bool:
    """Whether float64 numbers become smaller ones in it."""
    casts = (operation for operation in graph.get_operations() if operation.type == "Cast")
    return any(c.get_attr("SrcT") == tf.float64 and c.get_attr("DstT").is_floating for c in casts)


def near(a: Any, b: Any, dtype: str) -> bool:
    """True if two numbers of a model that computes in this type are equal except for rounding. Numbers that are not
    finite are.
    """
    size = max(np.max(np.abs(a), initial=0.0), 1e-2)
    return bool(np.all(~np.isfinite(b) | (np.abs(np.asarray(a) - b) <= _EXACT.get(dtype, _ROUNDED) * size)))


def follows(name: str, kind: float, seen: Seen, dtype: str) -> bool:
    """True if a number of the whole is that of both halves, for a kind of numbers: `MEAN` or `SUM`."""
    return near(seen.whole[name], kind * (seen.halves[0][name] + seen.halves[1][name]), dtype)


def projected(gradients: Sequence[Any]) -> Any:
    """The product of each gradient with fixed numbers, and its size: [gradients, 2].

    Gradients that add up have products that do. Nothing of those of the largest tables, which are not made dense.
    """
    sizes = [math.prod(g.shape) for g in gradients]
    kept = [i for i, (g, n) in enumerate(zip(gradients, sizes, strict=True)) if n < _LARGE or isinstance(g, tf.Tensor)]
    if not kept:
        return tf.zeros([len(sizes), 2], tf.float64)
    dtype = max((gradients[i].dtype for i in kept), key=lambda dtype: dtype.size)
    dtype = dtype if dtype.size > 2 else tf.float32
    flat = tf.concat([tf.cast(tf.reshape(tf.convert_to_tensor(gradients[i]), [-1]), dtype) for i in kept], 0)
    places = tf.repeat(kept, [sizes[i] for i in kept])
    by = tf.random.stateless_uniform([sum(sizes[i] for i in kept)], [7, 7], -1, 1, dtype=dtype)
    products = tf.math.unsorted_segment_sum(tf.stack([flat * by, flat * flat], 1), places, len(sizes))
    return tf.cast(tf.stack([products[:, 0], tf.sqrt(products[:, 1])], 1), tf.float64)


def unlike(whole: Any, of_halves: Any, dtype: str) -> list[int]:
    """The gradients that differ by more than rounding, by what `projected` made of them; none of float16.

    Those vanish in rounding without a loss scale.
    """
    if dtype == "float16":
        return []
    allowed = _OF_GRADIENTS * _EXACT.get(dtype, _ROUNDED) * np.max(whole[:, 1], initial=0.0)
    return [int(i) for i in np.flatnonzero(np.abs(whole[:, 0] - of_halves[:, 0]) > allowed)]


def each_of(value: Any, replicas: int) -> Any:
    """In a replica: its value in its place among zeros. The sum over replicas has that of each."""
    return tf.stack([value if place == place_of_replica() else tf.zeros_like(value) for place in range(replicas)])


def place_of_replica() -> int:
    """In a replica: its index among all."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def wide(value: Any) -> Any:
    """In a type that collectives sum and NumPy knows."""
    dtype = tf.as_dtype(value.dtype)
    wide = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype if dtype.is_floating else tf.int64
    return tf.cast(value, wide)


class _Draws:
    """Random numbers for rows: a half's are those that these rows have in the whole, which is traced first.

    They are those whose first dimension is another one for fewer rows.
    """

    def __init__(self) -> None:
        self._of_whole: dict[int, list[Any]] = {}
        self._lengths: dict[int, list[Any]] = {}
        self._halves: dict[int, Any] = {}
        self.for_rows = False

    def begin(self, half: Any) -> None:
        """In a replica, before it computes a step of a half, or of the whole."""
        place = place_of_replica()
        self._of_whole[place], self._lengths[place] = self._lengths.get(place, []), []
        self._halves[place] = half

    def draw(self, original: Callable[..., Any], shape: Any, *args: Any, **more: Any) -> Any:
        """What `original` draws, whose numbers follow from a seed."""
        place, fixed = place_of_replica(), tf.get_static_value(shape)
        lengths, of_whole = self._lengths[place], self._of_whole[place]
        length = int(fixed[0]) if fixed is not None and len(fixed) else None
        whole = of_whole[len(lengths)] if len(lengths) < len(of_whole) else length
        lengths.append(length)
        if length is None or whole is None or whole == length:
            return original(shape, *args, **more)
        self.for_rows = True
        drawn = original([whole, *fixed[1:]], *args, **more)
        return tf.slice(drawn, [length * self._halves[place], *[0] * (len(fixed) - 1)], fixed)

    def draw_by_seed(self, by_seed: Callable[..., Any], *args: Any, seed: int = 0, **more: Any) -> Any:
        """The same for functions without a seed."""
        number = len(self._lengths[place_of_replica()])
        return by_seed([number, seed], *args, **{k: v for k, v in more.items() if k not in ("seed2", "name")})


class _Asked:
    """What a step asks for that replicas have of their own. In the whole, the number of replicas is 1."""

    def __init__(self) -> None:
        self.alone, self.counted = True, False
        self.normalized: dict[str, None] = {}

    def count(self, original: Any) -> property:
        """`original`, a property of TensorFlow's, for other modules than those that share the rows."""

        def number(of: Any) -> int:
            module = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 (who asks)
            if module.startswith(("tensorflow.python.distribute", "tfgpujob_trainer")):
                return int(original.fget(of))
            self.counted = True
            return 1 if self.alone else int(original.fget(of))

        return property(number)


@contextmanager
def _as_alone(draws: _Draws, asked: _Asked) -> Iterator[None]:
    """While a step is traced: each replica draws what a single one would, and no layer has statistics of a batch.

    A tf.function of the model's author is traced for this alone: what it keeps is for the training.
    """
    normalized, called = keras.layers.BatchNormalization.call, Function.__call__

    def by_moving_statistics(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if training and layer.trainable and not layer.synchronized:
            asked.normalized[layer.name] = None
        return normalized(layer, inputs, training=False, mask=mask)

    def cloned(function: Any, *args: Any, **kwargs: Any) -> Any:
        return called(function._clone(None), *args, **kwargs)  # noqa: SLF001 (TensorFlow is pinned)

    with ExitStack() as stack:
        for place, name, instead in (
            (replica_seeds, "_STRIDE", 0),
            (keras.layers.BatchNormalization, "call", by_moving_statistics),
            (Function, "__call__", cloned),
        ):
            stack.enter_context(mock.patch.object(place, name, instead))
        for kind in (distribute_lib.StrategyBase, distribute_lib.ReplicaContextBase):
            counted = asked.count(kind.num_replicas_in_sync)
            stack.enter_context(mock.patch.object(kind, "num_replicas_in_sync", counted))
        for name in _BY_SEED:
            own = partial(draws.draw, getattr(gen_stateless_random_ops_v2, name))
            stack.enter_context(mock.patch.object(gen_stateless_random_ops_v2, name, own))
        for name, by_seed in _BY_ITSELF.items():
            stack.enter_context(mock.patch.object(gen_random_ops, name, partial(draws.draw_by_seed, by_seed)))
        yield


@contextmanager
def _all_digits() -> Iterator[None]:
    """GPUs otherwise multiply with 10 bits, which differ between batches of 8 rows and of 4.

    And functions that run a few times are not worth the time that it takes to optimize them.
    """
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    options = tf.config.optimizer.get_experimental_options()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


def _changed(traces: Iterable[Any]) -> set[int]:
    return {
        id(whole_of(variable))
        for traced in traces
        for variable, inner in _captures(traced)
        if any(op.type not in _READS for op in inner.consumers())
    }


def _captures(traced: Any) -> Iterator[tuple[tf.Variable, Any]]:
    inside = {id(outer): inner for outer, inner in traced.graph.captures}
    return ((variable, inside[id(variable.handle)]) for variable in traced_variables(traced))


def _kinds(rows: Any) -> list[Any]:
    return [(array.shape, array.dtype) for array in tf.nest.flatten(rows)]


def _is_finite(seen: Seen) -> bool:
    numbers = [*seen.whole.values(), *(n for half in seen.halves for n in half.values())]
    numbers += [one for state in seen.states for one in (state.whole, *state.halves)]
    return all(bool(np.all(np.isfinite(one))) for one in numbers)


def _moved(value: Any, seed: int) -> Any:
    """By a tenth of the largest at most; zeros by a half, divided as the weights of a layer are."""
    size = tf.reduce_max(tf.where(tf.math.is_finite(value), tf.abs(value), tf.zeros_like(value)))
    fan = value.shape[-2] if value.shape.rank > 1 else 1
    by = tf.random.stateless_uniform(value.shape, [seed, 0], -1.0 if value.shape.rank > 1 else 0.5, 1.0)
    return value + tf.cast(by, value.dtype) * tf.where(size > 0, 0.1 * size, tf.cast(0.5 / fan**0.5, value.dtype))
