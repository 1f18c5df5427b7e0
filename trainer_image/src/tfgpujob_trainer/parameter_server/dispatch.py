"""Schedules batches on the workers with a ClusterCoordinator, and fetches their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Overdue
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.elastic_workers import ElasticWorkers, elastic_workers_of
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import PeerLostError
from tfgpujob_trainer.model.batch import number

BatchIndex = tuple[int, int, int]
"""Split, epoch, and index in the epoch of a batch."""

_PER_WORKER = 4
"""Batches scheduled for each worker: enough that none is idle while another is slow. It limits how stale a gradient's
weights may be, and how much is computed in vain when the chief is lost."""

_ATTEMPTS = 3
"""How many workers in a row may be lost with the result of one batch."""

UNREACHABLE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""TensorFlow's errors for a task that is unreachable."""


class Dispatcher:
    """The workers, as the chief sees them.

    A batch whose worker is lost is scheduled on another one: by TensorFlow, or here if the worker had finished it and
    its result was not fetched yet. So it is computed at least once. A worker whose node is lost does not answer and
    closes no connection, and TensorFlow would wait for a quarter of an hour; here the oldest batch has a deadline.
    """

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        *,
        workers: int,
        deadline: float,
        elastic: ElasticWorkers | None = None,
    ) -> None:
        """With a fixed number of workers, or with elastic ones."""
        self._elastic = elastic
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._workers, self._deadline = workers, deadline
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        self._answered = False

    @classmethod
    def of(
        cls, strategy: tf.distribute.ParameterServerStrategy, env: Environment, settings: TrainerConfig
    ) -> Dispatcher:
        """The workers of this cluster."""
        elastic, deadline = elastic_workers_of(strategy), settings.watchdog.step_seconds
        return cls(strategy, workers=len(env.workers), deadline=deadline, elastic=elastic)

    @property
    def workers(self) -> int:
        """Workers that take batches now; 1 if all elastic ones are gone for the moment."""
        return self._workers if self._elastic is None else max(1, len(self._elastic.present))

    @property
    def steady(self) -> tuple[int, ...]:
        """Indexes of workers that leave only by failure; none if they are elastic."""
        return tuple(range(self._workers)) if self._elastic is None else ()

    @property
    def in_flight(self) -> int:
        """Maximum number of batches in flight."""
        return self.workers * _PER_WORKER

    def run(
        self, function: Callable[..., Any], batches: Iterable[BatchIndex]
    ) -> Iterator[tuple[BatchIndex, np.ndarray]]:
        """`function` of every batch, each result once, in the order of the batches.

        When this is exhausted, nothing is in flight. Raises PeerLostError if the oldest result is late (the very first
        has no deadline here: start-up has its own).
        """
        waiting: deque[tuple[BatchIndex, Future[np.ndarray]]] = deque()
        for batch in batches:
            waiting.append((batch, self._schedule(function, batch)))
            while len(waiting) >= self.in_flight:
                yield self._oldest(function, waiting)
        while waiting:
            yield self._oldest(function, waiting)

    def _schedule(self, function: Callable[..., Any], batch: BatchIndex) -> Future[np.ndarray]:
        remote = self._coordinator.schedule(function, args=tuple(number(one, np.int32) for one in batch))
        return self._fetcher.submit(remote.fetch)

    def _oldest(
        self, function: Callable[..., Any], waiting: deque[tuple[BatchIndex, Future[np.ndarray]]]
    ) -> tuple[BatchIndex, np.ndarray]:
        batch, future = waiting.popleft()
        for attempts_left in range(_ATTEMPTS, 0, -1):
            try:
                result = future.result(self._deadline if self._answered else None)
            except Overdue:
                _, epoch, index = batch
                raise PeerLostError(
                    f"batch {index} of epoch {epoch + 1} did not come back from any worker for {self._deadline:g} s",
                    "a worker's or a parameter server's node may be lost; raise trainer.watchdog.stepSeconds if a step "
                    "may take this long",
                ) from None
            except UNREACHABLE:
                if attempts_left == 1:
                    raise
                # If a server and not a worker was lost, TensorFlow accepts no more, or fails again.
                future = self._schedule(function, batch)
            else:
                break
        self._answered = True
        return batch, result
