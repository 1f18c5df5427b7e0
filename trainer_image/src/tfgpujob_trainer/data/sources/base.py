"""The base of all sources of rows."""

from __future__ import annotations

import glob
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources import text

NAMED = ("x", "y", "sample_weight")
CANDIDATES = 32
"""Rows from the first to the last, among which those of a trial are chosen."""
HEAD_ROWS = 64
"""Rows by which two workers, or two readings, are compared."""

FIXED_SHAPE = "give rows of a fixed shape: pad, crop or resize, then tf.ensure_shape()"

Rows = tuple[Any, ...]
"""x, or x and y, or x, y and sample weight: structures of arrays with one row for each example."""


class Source(ABC):
    """Rows of one split.

    `policy` says how workers share the rows and why, `notes` what else a user should know;
    `classes` are the names behind integer labels, where the source made them.
    """

    rows: int
    policy: str
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    batch_size: int | None = None
    """Rows of a batch, where the data come in batches."""
    even_batches = True
    """Whether every batch has as many rows as its schedule."""
    once = False
    """Whether the data can be read only once: then nothing of an epoch is read before its first step needs it, because
    the previous epoch may be the last."""

    @abstractmethod
    def head(self, count: int) -> Rows:
        """The first `count` rows, or fewer if there are no more."""

    def places(self, count: int) -> list[Rows]:
        """`count` rows of each of several places of the data, of those that can be read before the training."""
        return [self.head(count)]

    def example(self) -> Any:
        """Arrays, or specs, whose dtypes and shapes are those of every batch but for the number of rows."""
        return self.head(2)

    def signature(self) -> list[str]:
        """dtype and shape of one row of every array, which a checkpoint and every other split must match."""
        kinds = [f"{text.kind(a.dtype)}{list(a.shape[1:])}" for a in leaves(self.head(1))]
        return kinds + ([f"classes {', '.join(self.classes)}"] if self.classes else [])

    def permute(self, generator: np.random.Generator, rows: int) -> np.ndarray:
        """The order of an epoch."""
        return generator.permutation(rows)

    def fingerprint(self) -> str:
        """Equal for two workers that read the same rows; looks at the number of rows and the first of them."""
        digest = hashlib.sha256(f"{self.rows}{self.signature()}".encode())
        for array in leaves(self.head(HEAD_ROWS)):
            digest.update(text.content(array))
        return digest.hexdigest()


class Ordered(Source):
    """Rows that only come one after another: every worker reads all of them, and keeps its share."""

    @abstractmethod
    def batches(
        self, start: tuple[int, int], size: Callable[[int], slice], steps: int, seed: int | None
    ) -> Iterator[Rows]:
        """Global batches from `start` (epoch, index): those of the epoch, or of all that follow it.

        `size` gives a batch's place in the epoch. Without a seed the rows keep their order.
        """


class Indexed(Source):
    """Rows that can be read by their number, so that each worker reads only its own."""

    augment: Callable[[Rows, np.ndarray], Rows] | None = None
    """Changes rows at random while training, by a (row, 2) array of stateless seeds. Gives tensors of the host."""

    @abstractmethod
    def tensors(self, indices: np.ndarray) -> Rows:
        """The rows of these numbers, as tensors of the host. Several threads may call it."""

    def take(self, indices: np.ndarray) -> Rows:
        """The same as numpy's arrays."""
        rows: Rows = as_arrays(self.tensors(indices))
        return rows

    def head(self, count: int) -> Rows:
        """The first rows, augmented where training rows are, since that may change their shape."""
        return self._numbered(np.arange(min(count, self.rows)))

    def places(self, count: int) -> list[Rows]:
        """The first rows, and `unlike` ones among some from the first to the last."""
        numbers = np.linspace(0, self.rows - 1, min(self.rows, CANDIDATES)).astype(int)
        return [self.head(count), *unlike(self._numbered(numbers), count)]

    def _numbered(self, numbers: np.ndarray) -> Rows:
        rows = self.take(numbers)
        return rows if self.augment is None else as_arrays(self.augment(rows, seeds(0, 0, numbers)))


def seeds(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """A stateless seed for each row, the same whichever worker reads it."""
    both = np.empty((len(indices), 2), np.int32)
    both[:, 0] = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint32).astype(np.int32)
    both[:, 1] = indices
    return both


def unlike(rows: Rows, count: int) -> list[Rows]:
    """`count` of these rows whose halves differ most in how many values are zero or NaN: of their labels and weights,
    and of their inputs. A loss that divides by what a mask leaves couples rows, which halves with equal masks hide.
    """
    count = min(count, len(leaves(rows)[0]))
    half = count // 2
    orders = [_by_missing(part) for part in (rows[1:] or rows, rows[:1])]
    chosen = [np.concatenate([order[:half], order[len(order) - count + half :]]) for order in orders]
    return [tf.nest.map_structure(lambda array, at=at: array[at], rows) for at in chosen]


def _by_missing(part: Any) -> np.ndarray:
    """The places of rows in the order of how many of their values are zero or NaN."""
    arrays = [np.asarray(array) for array in leaves(part)]
    missing = [(a == 0) | np.not_equal(a, a) if a.dtype.kind in "fiub" else a == a[:1] for a in arrays]
    shares = [np.mean(np.reshape(found, (len(found), -1)), axis=1) for found in missing]
    return np.argsort(np.sum(shares, axis=0), kind="stable")


def matching(patterns: Any, what: str) -> list[str]:
    """The files of one pattern or of several, sorted; raises ConfigError if one matches nothing."""
    wanted = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    found = [sorted(glob.glob(os.fspath(pattern), recursive=True)) for pattern in wanted]  # noqa: PTH207 (absolute)
    for pattern, files in zip(wanted, found, strict=True):
        if not files:
            raise ConfigError(f"{what}: no file matches {pattern}", "check the path, and the mounted volume")
    return [file for files in found for file in files]


def share(rows: int, parts: int, index: int) -> slice:
    """Part `index` of `parts` of `rows` rows: contiguous, sizes differ by at most one, no row twice."""
    return slice(rows * index // parts, rows * (index + 1) // parts)


def parts_of(value: Any, what: str) -> Rows:
    """x, (x, y), (x, y, sample_weight) or a dict with these names, as a tuple; raises ConfigError for anything else."""
    if value is None:
        raise ConfigError(f"{what} is None", "return (x, y), a tf.data.Dataset, or declared files")
    if isinstance(value, Mapping) and "x" in value:
        unknown = [key for key in value if key not in NAMED]
        if unknown:
            raise ConfigError(f"{what} has the key {unknown[0]!r}", f"known: {', '.join(NAMED)}")
        value = tuple(value.get(name) for name in NAMED)
        while value[-1] is None:
            value = value[:-1]
    if not isinstance(value, tuple):
        value = (value,)
    if not 1 <= len(value) <= 3:
        raise ConfigError(f"{what} has {len(value)} values", "return x, y and at most sample_weight")
    for name, part in zip(NAMED, value, strict=False):
        if part is None:
            raise ConfigError(f"{what} has None for {name}", "leave it out at the end")
    return value


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """`function` of every array in dicts and lists; a list of numbers is an array itself."""
    if isinstance(structure, Mapping):
        return {key: map_leaves(function, value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and structure and not np.isscalar(structure[0]):
        return [map_leaves(function, value) for value in structure]
    return function(structure)


def leaves(structure: Any) -> list[Any]:
    """Every array of a structure."""
    return list(tf.nest.flatten(structure))


def joined(rows: Rows, more: Rows) -> Rows:
    """The rows of both, in this order."""
    both: Rows = tf.nest.map_structure(lambda a, b: np.concatenate([a, b]), rows, more)
    return both


def as_arrays(rows: Any) -> Any:
    """The same rows as numpy's arrays, which share the memory of tensors of the host."""
    return tf.nest.map_structure(np.asarray, rows)


def as_keras_float(tensor: Any) -> Any:
    """Floating point numbers in Keras' float type, as in `fit`; anything else as it is."""
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def batched(function: Callable[..., Any], *inputs: tf.TypeSpec, what: str, name: str) -> Callable[..., Any]:
    """`function` of one example as a function of many, which TensorFlow runs in parallel, without Python, on the host.

    `inputs` are the specs of one example's arguments. Raises ConfigError unless every result has a fixed shape.
    """

    def one(*arguments: Any) -> Any:
        return map_leaves(lambda v: as_keras_float(tf.convert_to_tensor(v)), parts_of(function(*arguments), what))

    result = tf.function(one, autograph=True).get_concrete_function(*inputs).structured_outputs
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), result)
    for spec in leaves(specs):
        if not spec.shape.is_fully_defined():
            raise ConfigError(f"{what}: {name} gives a {spec.dtype.name} of shape {spec.shape}", FIXED_SHAPE)
    text.refuse_text(specs, NAMED, f"{what}: {name}")
    many = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape], s.dtype), inputs)

    @tf.function(autograph=False, input_signature=many)
    def all_of_them(*arguments: Any) -> Any:
        return tf.map_fn(lambda row: one(*row), arguments, fn_output_signature=specs, parallel_iterations=32)

    def run(*arguments: Any) -> Rows:
        with tf.device("/cpu:0"):
            # A tuple, as rows are that nothing was done to: a step takes both.
            return tuple(all_of_them(*arguments))

    return run
