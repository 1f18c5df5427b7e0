"""Waits until every task can connect to every parameter server.

A task that has just failed to reach a parameter server fails at once for another second, even if the server has
restarted meanwhile. In a step that would end the chief, so the connections are tried before the first one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from tfgpujob_trainer.parameter_server.variable_placement import server_of, size_of
from tfgpujob_trainer.reporting.log import say

_RETRY_SECONDS = 0.5


def wait_for_servers(variables: Mapping[str, Any], workers: Collection[int], servers: int) -> None:
    """Let these workers and every parameter server read a variable from every parameter server.

    Retries without a limit of its own; the start-up deadline is the watchdog's.
    """
    smallest: dict[str, Any] = {}
    for variable in sorted(variables.values(), key=size_of, reverse=True):
        smallest[server_of(variable)] = variable
    tasks = [("worker", i) for i in workers] + [("ps", i) for i in range(servers)]

    @tf.function(autograph=False)
    def read() -> list[Any]:
        values = []
        for role, index in tasks:
            with tf.device(f"/job:{role}/replica:0/task:{index}/device:CPU:0"):
                values += [tf.identity(variable.value) for variable in smallest.values()]
        return values

    said = False
    while True:
        try:
            for value in read():
                value.numpy()
        except tf.errors.UnavailableError:
            if not said:
                say("waiting until every task reaches every parameter server")
            said = True
            time.sleep(_RETRY_SECONDS)
        else:
            return
