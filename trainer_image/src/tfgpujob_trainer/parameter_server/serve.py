"""A worker or a parameter server: a tf.distribute.Server that runs until SIGTERM. It never ends by itself."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfgpujob_contract import phases
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.cluster.strategy import listening
from tfgpujob_trainer.contract import entrypoint
from tfgpujob_trainer.contract.config import evaluates
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import StoppedError, classify, users_traceback
from tfgpujob_trainer.data.schedule import evaluation_schedule
from tfgpujob_trainer.data.splits import make_schedule
from tfgpujob_trainer.parameter_server import rows
from tfgpujob_trainer.parameter_server.memory_limits import register_limit
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.train.fit import Fit, fit_of_module

_POLL_SECONDS = 0.2
_LONGEST_STEP_SECONDS, _STEPS, _IDLE_SECONDS = 20.0, 3, 3.0
"""A worker that is to stop waits until its step is over. Without a question for _STEPS times what the step before took,
and _IDLE_SECONDS more, it has none: on a busy machine a step of milliseconds may take a second."""
_SERVED = 2
"""A worker that is asked for a second batch has completed the first: a later failure is worth a restart in place."""


def serve(settings: TrainerConfig, env: Environment, heartbeat: Heartbeat) -> NoReturn:
    """Serve until SIGTERM, then raise StoppedError."""
    if env.role == "worker":
        module = entrypoint.load(settings.entrypoint, settings.params, env.code_directory)
        serve_rows(fit_of_module(settings, module, env, heartbeat), env, heartbeat)
    register_limit()
    _serve(env, heartbeat)


def serve_rows(fit: Fit, env: Environment, heartbeat: Heartbeat) -> NoReturn:
    """Serve as a worker, which reads the rows for its steps."""
    reader = _ReadOrExit(read_splits(fit), heartbeat)
    rows.register(rows.ROWS, reader)
    _serve(env, heartbeat, reader.refuse)


def _serve(env: Environment, heartbeat: Heartbeat, leave: Callable[[], None] = lambda: None) -> NoReturn:
    stop = StopFlag()
    with listening(env.name):
        address = start_server(json.loads(os.environ["TF_CONFIG"]))
    # Not earlier: TensorFlow replaces the handler of SIGTERM when a server starts.
    stop.listen()
    heartbeat.stoppable()
    heartbeat.beat(phases.SERVING)
    say(f"{env.name} serves at {address}")
    while not stop.set:
        heartbeat.alive()
        time.sleep(_POLL_SECONDS)
    heartbeat.beat(phases.WAITING)  # `leave` sends no heartbeat
    leave()
    raise StoppedError(f"{env.name} was stopped by SIGTERM")


def start_server(tf_config: Mapping[str, Any]) -> str:
    """Start TensorFlow's server of this task, on its configured devices; returns its address."""
    task, cluster = tf_config["task"], {}
    for role, tasks in tf_config["cluster"].items():
        cluster[role] = {int(i): a for i, a in tasks.items()} if isinstance(tasks, Mapping) else tasks
    spec = tf.train.ClusterSpec(cluster)
    tf.distribute.Server(
        spec,
        job_name=task["type"],
        task_index=task["index"],
        protocol="grpc",
        config=context.context().config,
    )
    return spec.task_address(task["type"], task["index"])


def read_splits(fit: Fit) -> rows.Rows:
    """All splits that a step or an evaluation may request."""
    data = fit.split("train")
    assert data is not None
    schedule = make_schedule(fit.settings, data, replicas=1, accumulate=1)
    splits = {rows.TRAIN: rows.Split(rows.numbered(data, "train"), schedule)}
    wanted = {rows.TEST: "test"}
    if evaluates(fit.settings.evaluate):
        wanted[rows.VALIDATION] = "validation"
    for number, name in wanted.items():
        other = fit.split(name)
        if other is not None:
            splits[number] = rows.Split(rows.numbered(other, name), evaluation_schedule(schedule, other))
    return rows.Rows(splits)


class _ReadOrExit:
    """Rows whose errors end this process, with their own exit code and explanation. The chief would only see a failed
    step, and schedule it on the next worker."""

    def __init__(self, found: rows.Rows, heartbeat: Heartbeat) -> None:
        self._rows, self._heartbeat = found, heartbeat
        self._asked = 0
        self._asked_at, self._step_seconds = -math.inf, 0.0
        """When it was last called, and how long after the previous call."""
        self._refuses = False
        self._refused = threading.Event()

    def refuse(self) -> None:
        """Returns when no step is in progress. A worker runs one at a time, so a step is over when the next one
        requests its rows; that one is blocked until this process ends, and another worker repeats it, because it has
        changed nothing yet. No step is in progress either if there was no request for much longer than a step takes."""
        self._refuses = True
        idle_after = min(_LONGEST_STEP_SECONDS, _STEPS * self._step_seconds + _IDLE_SECONDS)
        self._refused.wait(max(0.0, self._asked_at + idle_after - time.monotonic()))

    def __call__(self, *place: Any) -> list[np.ndarray]:
        if self._refuses:
            self._refused.set()
            threading.Event().wait()
        now = time.monotonic()
        self._step_seconds, self._asked_at = min(now - self._asked_at, _LONGEST_STEP_SECONDS), now
        self._asked += 1
        if self._asked == 1:
            say("the chief asks for a first batch")
        if self._asked == _SERVED:
            self._heartbeat.beat(phases.SERVING, self._asked - 1)
        try:
            return self._rows(*place)
        except BaseException as error:  # noqa: BLE001 (every end is mapped)
            outcome = classify(error, has_peers=False)
            if outcome.cause == "Exception":
                print(users_traceback(error), end="", file=sys.stderr)
            self._heartbeat.ended(outcome)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(outcome.code))
