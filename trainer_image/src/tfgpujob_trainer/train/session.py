"""What a process sets up once, before it builds a model: devices, strategy, peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tensorflow as tf

from tfgpujob_contract import goodput
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.peer_names import resolve_peers
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.cluster.strategy import build_strategy, name_in_support
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.data.in_order import keep_rows_in_order
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas
from tfgpujob_trainer.model.replica_seeds import let_first_replica_draw_alike
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.step.jit import remember_auto


@dataclass(frozen=True, kw_only=True)
class Session:
    """What all trainings and evaluations of a process share."""

    job: TrainerConfig
    """spec.trainer; a script's fit() has settings of its own besides."""
    env: Environment
    strategy: tf.distribute.Strategy
    heartbeat: Heartbeat
    stop: StopFlag = field(default_factory=StopFlag)

    @cached_property
    def peers(self) -> Peers:
        """All workers. One object, because it traces its functions."""
        env = self.env
        return Peers(self.strategy, workers=max(1, len(env.peers)), is_chief=env.is_chief, position=env.position)

    @property
    def name(self) -> str:
        """The strategy's name in SUPPORT."""
        return name_in_support(self.strategy)

    @property
    def replicas(self) -> int:
        """Replicas of all workers."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def local_replicas(self) -> int:
        """Replicas of this worker."""
        return len(self.strategy.extended.worker_devices)

    @property
    def first_replica(self) -> int:
        """This worker's first one, among all replicas."""
        return self.env.position * self.local_replicas if len(self.env.peers) > 1 else 0


def open_session(
    job: TrainerConfig, env: Environment, heartbeat: Heartbeat, devices: Sequence[str], *, builds: bool = True
) -> Session:
    """Wait for the peers, build the strategy, and let Keras and TensorFlow compute as the trainer needs it.

    `builds`: False for a process that distributes in another way, or serves.
    """
    spent_on = goodput.WAITING if env.has_peers else goodput.BUILDING
    resolve_peers(env, heartbeat.waits_for)
    heartbeat.spent(spent_on, mark=goodput.RESOLVED)
    strategy = build_strategy(env, devices, job.communication) if builds else tf.distribute.get_strategy()
    heartbeat.spent(spent_on)
    stop_keras_scaling_by_replicas()
    remember_auto()
    keep_rows_in_order()
    let_first_replica_draw_alike()
    return Session(job=job, env=env, strategy=strategy, heartbeat=heartbeat)
