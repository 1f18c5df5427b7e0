"""Builds the tf.distribute strategy, and gives its name in SUPPORT."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from tfgpujob_contract.strategies import Strategy
from tfgpujob_trainer.cluster.elastic_workers import elastic_strategy
from tfgpujob_trainer.cluster.instance_keys import reuse_instance_keys
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.reporting.log import say

AUTO, RING, NCCL, HIERARCHICAL_COPY = "Auto", "Ring", "NCCL", "HierarchicalCopy"
"""spec.trainer.communication. Absent is Auto."""


def build_strategy(
    env: Environment, devices: Sequence[str], communication: str | None = None
) -> tf.distribute.Strategy:
    """The strategy; `communication` as in spec.trainer.

    Raises ConfigError if TensorFlow's server cannot listen on its port, and for NCCL without a GPU.
    """
    with listening(env.name):
        return _BUILDERS[env.strategy](env, devices, _on(devices, communication or AUTO, env))


def _on(devices: Sequence[str], communication: str, env: Environment) -> str:
    """What is possible on these devices: with CPUs instead of granted GPUs, as in a local run, not NCCL."""
    if communication != NCCL or env.traits.single_replica or any("gpu" in device.lower() for device in devices):
        return communication
    if not env.is_evaluator:
        if not env.gpus:
            raise ConfigError(
                "trainer.communication is NCCL, and this process sees no GPU", "grant GPUs, or remove the field"
            )
        say("trainer.communication NCCL needs GPUs, and this trains on CPUs in their place: TensorFlow chooses instead")
    return AUTO


@contextmanager
def listening(name: str) -> Iterator[None]:
    """Raises ConfigError if TensorFlow's server can't be started in this block."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in error.message:
            raise
        raise ConfigError(
            f"TensorFlow cannot listen on the port that TF_CONFIG gives to {name}: another process has it",
            "end that process, or give the task another port",
        ) from error


def _one_device(_env: Environment, devices: Sequence[str], _communication: str) -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy(devices[0])


def _mirrored(_env: Environment, devices: Sequence[str], communication: str) -> tf.distribute.Strategy:
    reuse_instance_keys()
    # The default between GPUs is NCCL.
    by_copy = tf.distribute.HierarchicalCopyAllReduce() if communication == HIERARCHICAL_COPY else None
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=by_copy)


def _multi_worker_mirrored(env: Environment, _devices: Sequence[str], communication: str) -> tf.distribute.Strategy:
    reuse_instance_keys()
    if communication == AUTO and env.processes_per_gpu > 1:
        communication = RING  # NCCL refuses two ranks on one GPU
    tf.get_logger().addFilter(_is_of_no_collective)
    # Without timeout_seconds: it costs a sleeping thread for each collective. See cluster/collective_deadline.py.
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation[communication.upper()]
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    # Without a broadcast of each variable's initial value, for which a script that creates a model on one worker alone
    # would wait for ever. All workers have the same seed, and take_the_chiefs() before they train.
    extended = strategy.extended
    extended._get_variable_creator_initial_value = super(  # noqa: SLF001 (TensorFlow is pinned)
        type(extended), extended
    )._get_variable_creator_initial_value
    return strategy


def _is_of_no_collective(record: logging.LogRecord) -> bool:
    """TensorFlow logs each collective that it traces at INFO, which `logging.basicConfig(level="INFO")` shows."""
    return not str(record.msg).startswith("Collective ")


def _parameter_server(env: Environment, _devices: Sequence[str], _communication: str) -> tf.distribute.Strategy:
    if env.least_workers is not None:
        return elastic_strategy(env)
    return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


_BUILDERS: dict[str, Callable[[Environment, Sequence[str], str], tf.distribute.Strategy]] = {
    Strategy.ONE_DEVICE: _one_device,
    Strategy.MIRRORED: _mirrored,
    Strategy.MULTI_WORKER_MIRRORED: _multi_worker_mirrored,
    Strategy.PARAMETER_SERVER: _parameter_server,
}


def name_in_support(strategy: tf.distribute.Strategy) -> str:
    """The strategy's name in SUPPORT; with a single replica every synchronous one computes as OneDevice does."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return Strategy.PARAMETER_SERVER
    if strategy.num_replicas_in_sync == 1:
        return Strategy.ONE_DEVICE
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return Strategy.MULTI_WORKER_MIRRORED if several else Strategy.MIRRORED


def class_name(strategy: tf.distribute.Strategy) -> str:
    """The public name of its class, whose __name__ may be an older one."""
    public = tf.distribute.MultiWorkerMirroredStrategy
    return "MultiWorkerMirroredStrategy" if isinstance(strategy, public) else type(strategy).__name__
