"""The task of a program with a training loop of its own: its place in the job, its strategy, SIGTERM, /progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import tensorflow as tf

from tfgpujob_trainer.cluster.devices import prepare_devices
from tfgpujob_trainer.cluster.peer_names import resolve_peers
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.cluster.strategy import build_strategy
from tfgpujob_trainer.contract.exits import ConfigError, TrainerError
from tfgpujob_trainer.contract.own_program import environment
from tfgpujob_trainer.own_loop.supervised import SupervisedStatus, new_status
from tfgpujob_trainer.reporting.progress_endpoint import serve

T = TypeVar("T")


class Task:
    """One process of the job. /progress is served from the start, SIGTERM is handled once there is a strategy."""

    def __init__(self) -> None:
        self.env = environment(os.environ)
        self.run_status = new_status(has_peers=self.env.has_peers)
        self._stop = StopFlag()
        if self.env.progress_port:
            token = self.env.progress_token
            serve(self.run_status, self.env.progress_port, in_pod=self.env.in_pod, token=token)

    @cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """See library.py."""
        if self.env.is_asynchronous:
            raise ConfigError(
                "TF_CONFIG names parameter servers, for which there is no strategy() of ours",
                "use tf.distribute.ParameterServerStrategy; report() works on the chief",
            )
        try:
            devices = prepare_devices(self.env)
        except RuntimeError as error:
            if "initialized" not in str(error):
                raise
            raise ConfigError(
                "strategy() comes too late: TensorFlow has begun to compute", "call it before anything of TensorFlow"
            ) from error
        resolve_peers(self.env)
        found = build_strategy(self.env, devices)
        self._stop.listen()
        if isinstance(self.run_status, SupervisedStatus):
            self.run_status.stoppable()
        return found

    @cached_property
    def peers(self) -> Peers:
        """Small collectives with the other workers."""
        return Peers(self.strategy, workers=max(1, len(self.env.peers)), is_chief=self.env.is_chief)

    def should_stop(self) -> bool:
        """See library.py."""
        told = self.peers.count(self._stop.set) > 0
        if told:
            self._stop.ignore()
        return told

    def shard(self, dataset: tf.data.Dataset) -> Any:
        """See library.py."""
        if self.strategy.num_replicas_in_sync == 1:
            return dataset
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return self.strategy.experimental_distribute_dataset(dataset.with_options(options))


def explained(function: Callable[..., T]) -> Callable[..., T]:
    """`function` with errors that include the fix when Python prints them."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        try:
            return function(*args, **kwargs)
        except TrainerError as error:
            if error.fix:
                error.add_note(error.fix)
            raise

    return call
