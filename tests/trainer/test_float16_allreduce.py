"""Gradients that travel as float16: off by no more than the bound, and never NaN where they were finite."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.cases import CASES, dense, labels, rows
from tests.trainer.inprocess import train_here, weights_of

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.step.float16_allreduce import all_reduce_as_float16


class Together:
    """Replicas, each a thread, whose tensors are summed one after the other as a ring does."""

    def __init__(self, replicas: int) -> None:
        self._here = threading.Barrier(replicas)
        self._given: list[Any] = [None] * replicas
        self.bytes = [0] * replicas

    def of(self, replica: int) -> Any:
        def sum_up(message: Any) -> Any:
            self.bytes[replica] += sum(t.dtype.size * int(tf.size(t)) for t in tf.nest.flatten(message))
            self._given[replica] = message
            self._here.wait()
            total = self._given[0]
            for other in self._given[1:]:
                total = tf.nest.map_structure(tf.add, total, other)
            self._here.wait()
            return total, tf.zeros([2])

        return sum_up


def summed(gradients: list[list[np.ndarray]]) -> tuple[list[np.ndarray], list[int]]:
    """What each replica's gradients add up to, and the bytes that each sent."""
    together = Together(len(gradients))

    def replica(number: int) -> list[np.ndarray]:
        message = {"gradients": [tf.constant(g) for g in gradients[number]], "loss": tf.constant(0.1)}
        total, _ = all_reduce_as_float16(message, number, len(gradients), together.of(number))
        assert abs(float(total["loss"]) - 0.1 * len(gradients)) < 1e-6
        return [g.numpy() for g in total["gradients"]]

    with ThreadPoolExecutor(len(gradients)) as threads:
        first, *others = threads.map(replica, range(len(gradients)))
    assert all(np.array_equal(a, b, equal_nan=True) for other in others for a, b in zip(first, other, strict=True))
    return first, together.bytes


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_element_is_off_by_no_more_than_the_bound(replicas, dtype):
    """For gradients of every size, with elements of different size in each, on replicas of different size."""
    rng = np.random.default_rng(replicas)

    def gradient(size: float) -> np.ndarray:
        spread = 2.0 ** (size + rng.uniform(-8, 0) + rng.uniform(-20, 0, 1000))
        return (rng.standard_normal(1000) * spread).astype(dtype)

    sizes = [-90.0, -40.0, -20.0, 0.0, 15.0, 40.0, 100.0]
    sent = [[*(gradient(size) for size in sizes), np.zeros(5, dtype)] for _ in range(replicas)]
    found, sent_bytes = summed(sent)
    for i, sums in enumerate(found):
        each = np.stack([replica[i].astype("float64") for replica in sent])
        allowed = replicas * 2.0**-11 * 1.01 * np.abs(each).sum(0) + replicas**2 * 2.0**-37 * np.abs(each).max()
        off = np.abs(sums.astype("float64") - each.sum(0))
        assert (off <= allowed).all(), sizes[i]
        assert sums.dtype == dtype
    assert any((np.abs(s - sum(r[i] for r in sent)) > 0).any() for i, s in enumerate(found)), "nothing was rounded"
    elements = sum(g.size for g in sent[0])
    assert sent_bytes == [2 * elements + 4 + 4 * replicas * len(sent[0])] * replicas


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_does_not_become_a_number_and_what_is_finite_stays_so(bad):
    largest = np.finfo("float32").max / 4
    one, other = np.array([1.0, bad], "float32"), np.array([1.0, 2.0], "float32")
    fine, steep = np.array([3.0, 4.0], "float32"), np.array([largest, -1.0], "float32")
    (sums, untouched, steeper), _ = summed([[one, fine, steep], [other, fine, steep]])
    assert not np.isfinite(sums[1])
    assert untouched.tolist() == [6.0, 8.0]
    assert steeper[0] == pytest.approx(2 * largest, rel=1e-3)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "case",
    [
        "global_clipnorm",
        pytest.param("sparse gradients of embeddings", marks=pytest.mark.deep),
        pytest.param("recompute", marks=pytest.mark.deep),
    ],
)
def test_a_run_stays_near_the_exact_one_and_alike_on_every_replica(case):
    """Of 28 steps in float64, with momentum or Adam, clipping, and micro-batches."""
    make_model, make_data = CASES[case]

    def run(**fields: Any) -> Any:
        keras.utils.set_random_seed(1)
        return train_here(make_model, make_data(), devices=2, epochs=4, batch=16, seed=1, accumulate=2, **fields)

    exact, rounded = weights_of(run()), run(allReduce="float16")
    first, second = ([v.value.values[i].numpy() for v in rounded.built.model.weights] for i in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    distance = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(first, exact, strict=True)))
    length = np.sqrt(sum((b**2).sum() for b in exact))
    assert 0 < distance < 1e-3 * length


def test_an_overflow_on_one_replica_still_skips_the_step_on_all():
    x, y = rows(6).astype("float32"), labels()
    x[3] = 1e5
    run = train_here(
        lambda: dense(keras.optimizers.Adam(0.05)),
        (x, y),
        devices=2,
        epochs=2,
        batch=len(x),
        seed=1,
        precision="mixed_float16",
        allReduce="float16",
    )
    assert run.skipped_in_all == 2
    assert all(np.isfinite(w).all() for w in weights_of(run))


def test_another_type_is_refused():
    with pytest.raises(ConfigError, match=r"trainer.allReduce is"):
        train_here(lambda: dense("sgd"), (rows(6), labels()), devices=1, epochs=1, batch=8, seed=1, allReduce="float8")
