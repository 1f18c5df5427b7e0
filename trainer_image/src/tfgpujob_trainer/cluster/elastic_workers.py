"""Workers that join and leave while a chief trains under ParameterServer.

TensorFlow's coordinator has a fixed number of workers, and uses a lost one again only once all lost ones are back. Its
runtime is more flexible: `update_server_def` adds and removes tasks while functions run on the others. So the
coordinator is built without workers, and this class adds one for each address at which a worker's server answers, and
removes those that have failed.
"""

from __future__ import annotations

import copy
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context

from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.resize import addresses
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.log import say

_LOOK_SECONDS = 1.0
"""Seconds between two lookups of workers that were present before, or expected from the start."""
_SEEK_SECONDS = 5.0
"""Seconds between two lookups of others: a name without a pod costs several DNS queries each time."""
_CONNECT_SECONDS = 0.5
_AHEAD = 8
"""Number of workers that are looked up at a time: those after the last known one, because pods are created from the
lowest index on, and in turns those beyond a gap."""

_HANDLED = (
    tf.errors.OpError,
    cluster_coordinator.ClosureInputError,
    cluster_coordinator.ClosureAbortedError,
    TypeError,
)
"""The errors for which TensorFlow's own handler assumes a lost worker."""


class ElasticWorkers:
    """Replaces the failure handler of TensorFlow's coordinator (private: TensorFlow is pinned).

    `addresses` are the possible ones by index, and `expected` is the number at the start; `strategy` is connected to
    the workers `present`.
    """

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        addresses: Sequence[str],
        present: Collection[int],
        *,
        expected: int,
        reached: Callable[[str], bool] | None = None,
    ) -> None:
        self._addresses, self._reached = addresses, reached or _reached
        self._known, self._sought, self._turn = set(range(expected)), -_SEEK_SECONDS, 0
        self._changed = threading.Condition()
        self._members: set[int] = set()
        self._failed: set[int] = set()
        """Members whose last step has failed, and that wait to be added again."""
        self._error: Exception | None = None
        """The error of an update that is no worker's failure: a parameter server is lost."""
        self._stopped = False
        self._threads: dict[int, cluster_coordinator.Worker] = {}
        self._server_def = context.get_server_def()
        self._cluster = _coordinator_without_workers(strategy)._cluster  # noqa: SLF001
        self._cluster.failure_handler.stop()
        self._cluster.failure_handler = self
        self._begin(present)
        threading.Thread(target=self._watch, name="elastic workers", daemon=True).start()

    @property
    def present(self) -> tuple[int, ...]:
        """The indexes of the workers that get batches now."""
        with self._changed:
            return tuple(sorted(self._members - self._failed))

    def stop(self) -> None:
        """Called by TensorFlow when the coordinator ends."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @contextmanager
    def wait_on_failure(
        self,
        on_failure_fn: Callable[[Exception], None] | None = None,
        on_transient_failure_fn: Callable[[], None] | None = None,
        on_recovery_fn: Callable[[], None] | None = None,
        worker_device_name: str = "",
    ) -> Iterator[None]:
        """Called by TensorFlow around each step, on the worker's thread: like its own handler, except that a worker
        waits only for itself."""
        try:
            yield
        except _HANDLED as error:
            if self._is_transient(error):
                if on_transient_failure_fn:
                    on_transient_failure_fn()
                return
            if not self._is_workers(error):
                raise
            if on_failure_fn:
                on_failure_fn(error)
            self._wait_until_back(int(worker_device_name.rpartition(":")[2]))
            if on_recovery_fn:
                on_recovery_fn()

    def _is_transient(self, error: Exception) -> bool:
        cluster = self._cluster
        return (
            cluster._record_and_ignore_transient_ps_failure(error)  # noqa: SLF001
            or cluster._record_and_ignore_transient_timeouts(error)  # noqa: SLF001
            or (isinstance(error, tf.errors.CancelledError) and "/job:" in str(error))
        )

    def _is_workers(self, error: Exception) -> bool:
        cancelled = self._cluster.closure_queue._cancellation_mgr.is_cancelled  # noqa: SLF001
        return bool(cluster_coordinator._is_worker_failure(error)) and not cancelled  # noqa: SLF001

    def _wait_until_back(self, index: int) -> None:
        with self._changed:
            self._failed.add(index)
            self._changed.notify_all()
            while index in self._failed and not self._stopped:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                self._changed.wait()

    def _watch(self) -> None:
        looked = -_LOOK_SECONDS
        while True:
            with self._changed:
                if not self._stopped and not self._failed & self._members:
                    self._changed.wait(_LOOK_SECONDS)
                if self._stopped:
                    return
                left = self._members & self._failed
            if left:
                self._let_go(left)
            if time.monotonic() - looked >= _LOOK_SECONDS:
                self._take_in_whoever_is_there()
                looked = time.monotonic()

    def _let_go(self, left: Collection[int]) -> None:
        if self._update(self._members - set(left)):
            names = ", ".join(f"worker-{index}" for index in sorted(left))
            say(f"{names} left; workers that train on: {len(self._members)}")

    def _take_in_whoever_is_there(self) -> None:
        for index in sorted(self._candidates() - self._members):
            if self._failed & self._members:  # failed members are removed first
                return
            # One at a time: an update fails as a whole.
            if self._reached(self._addresses[index]) and self._update(self._members | {index}):
                self._begin([index])
                say(f"worker-{index} joined; workers that train: {len(self._members)}")

    def _candidates(self) -> set[int]:
        """Indexes of the workers that are looked up this time."""
        now, total = time.monotonic(), len(self._addresses)
        found = {index for index in self._known if index < total}
        if now - self._sought >= _SEEK_SECONDS:
            following = max(self._known, default=-1) + 1
            found |= {*range(following, min(total, following + _AHEAD))}
            found |= {*range(self._turn, min(total, self._turn + _AHEAD))}
            self._sought, self._turn = now, (self._turn + _AHEAD) % total
        return found

    def _begin(self, indexes: Collection[int]) -> None:
        """Let the coordinator schedule steps on these, which are connected."""
        with self._changed:
            self._members |= set(indexes)
            self._failed -= set(indexes)
            self._changed.notify_all()
        for index in indexes:
            self._known.add(index)
            if index not in self._threads:
                device = f"/job:worker/replica:0/task:{index}"
                self._threads[index] = cluster_coordinator.Worker(index, device, self._cluster)
                self._cluster.workers.append(self._threads[index])

    def _update(self, members: set[int]) -> bool:
        """Connect to exactly these workers; True if it worked. Otherwise it is retried at the next lookup."""
        try:
            context.context().update_server_def(
                _with_workers(self._server_def, {i: self._addresses[i] for i in members})
            )
        except tf.errors.OpError as error:
            if not self._is_workers(error):
                with self._changed:
                    # Relevant only if a member waits for the update.
                    self._error = error if self._failed else None
                    self._changed.notify_all()
            return False
        with self._changed:
            self._members, self._error = members, None
        return True


def elastic_strategy(env: Environment) -> tf.distribute.ParameterServerStrategy:
    """The strategy of a chief, once all parameter servers and enough workers are present.

    Waits without a limit of its own; the start-up deadline is the watchdog's.
    """
    assert env.least_workers is not None
    # An update must fail at once if a worker is gone: by default TensorFlow waits for it.
    os.environ["GRPC_FAIL_FAST"] = "true"
    possible = possible_addresses(env)
    present = _wait_for(env.servers, possible, len(env.workers), env.least_workers)
    cluster = {
        "chief": list(env.chief_addresses),
        "ps": list(env.servers),
        "worker": {index: possible[index] for index in present},
    }
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    ElasticWorkers(strategy, possible, present, expected=len(env.workers))
    return strategy


def elastic_workers_of(strategy: tf.distribute.ParameterServerStrategy) -> ElasticWorkers | None:
    """The elastic workers; None: this strategy has a fixed number."""
    coordinator = strategy._cluster_coordinator  # noqa: SLF001
    handler = coordinator._cluster.failure_handler if coordinator is not None else None  # noqa: SLF001
    return handler if isinstance(handler, ElasticWorkers) else None


def possible_addresses(env: Environment) -> tuple[str, ...]:
    """Addresses that workers have or may get later, because maxReplicas may be raised while the chief runs; those of
    TF_CONFIG if there is no rule for them."""
    if len(env.workers) > 1 and len({address.rpartition(":")[0] for address in env.workers}) == 1:
        return env.workers  # on one machine, where another port belongs to another program
    try:
        return tuple(addresses(env.workers, MAX_REPLICAS))
    except ValueError as error:
        say(f"no more workers than {len(env.workers)}: {error}")
        return env.workers


def _wait_for(servers: Sequence[str], workers: Sequence[str], expected: int, least: int) -> list[int]:
    """The indexes of the workers that are present, once they are enough and all parameter servers are present, too.

    A chief that restarts in its pod may have others than the `expected`: each lookup goes further.
    """
    said, width = "", expected
    while True:
        there = [index for index, address in enumerate(workers[:width]) if _reached(address)]
        width += _AHEAD
        missing = [f"ps-{index}" for index, address in enumerate(servers) if not _reached(address)]
        if not missing and len(there) >= least:
            return there
        workers_missing = f"{least - len(there)} of at least {counted(least, 'worker')}"
        what = ", ".join(missing) or workers_missing
        if what != said:
            say(f"waiting for {what}")
        said = what
        time.sleep(_CONNECT_SECONDS)


def _reached(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _coordinator_without_workers(strategy: tf.distribute.ParameterServerStrategy) -> Any:
    """TensorFlow's coordinator without workers."""
    workers = strategy._num_workers  # noqa: SLF001
    strategy._num_workers = 0  # noqa: SLF001
    try:
        return tf.distribute.coordinator.ClusterCoordinator(strategy)
    finally:
        strategy._num_workers = workers  # noqa: SLF001


def _with_workers(server_def: Any, workers: Mapping[int, str]) -> Any:
    """The same cluster with these workers."""
    changed = copy.deepcopy(server_def)
    # Filters can only be set at the start, and TensorFlow warns each time.
    changed.ClearField("cluster_device_filters")
    (job,) = (job for job in changed.cluster.job if job.name == "worker")
    job.ClearField("tasks")
    for index, address in workers.items():
        job.tasks[index] = address
    return changed
