"""Looks at the devices, resolves the peers, and only then builds the strategy."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.cluster.gpus import Gpu, choose, describe, memory_mib
from tfgpujob_trainer.cluster.instance_keys import reuse_instance_keys
from tfgpujob_trainer.contract.environment import (
    CUSTOM,
    MIRRORED,
    MULTI_WORKER_MIRRORED,
    ONE_DEVICE,
    PARAMETER_SERVER,
    Environment,
)
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted

Say = Callable[[str], None]
_NONE = "-1"
"""As CUDA_VISIBLE_DEVICES: whoever started this task wants it on the CPU, as a local run does, which has said so."""


def prepare(env: Environment, *, seed: int, deterministic: bool, say: Say) -> list[str]:
    """Set seeds, memory and devices before TensorFlow initialises; returns the devices to train on, and says what
    they are.

    Raises ConfigError when fewer GPUs are visible than the pod was granted, or with less memory than its limit.
    """
    keras.utils.set_random_seed(seed)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    physical = tf.config.list_physical_devices("GPU")
    visible, hidden_by = _described(physical), os.environ.get("CUDA_VISIBLE_DEVICES")
    used: Sequence[Gpu] = ()
    if visible or tf.test.is_built_with_cuda():
        used = choose(visible, env, hidden_by=hidden_by)
        tf.config.set_visible_devices(physical[: len(used)], "GPU")
        _set_memory(physical[: len(used)], env)
    elif env.gpus and hidden_by != _NONE:
        say(f"CPU build of TensorFlow: {counted(env.gpus, 'granted GPU is', 'granted GPUs are')} not used")
    several = env.strategy in (ONE_DEVICE, MIRRORED, CUSTOM)
    devices = [f"/gpu:{i}" for i in range(len(used))] or _cpus(env.gpus or 1 if several else 1)
    cores = len(os.sched_getaffinity(0))
    say(describe(used, env, visible=len(visible), cores=cores, replicas=len(devices)))
    return devices


def _described(physical: Sequence[Any]) -> list[Gpu]:
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in physical]
    memory: Sequence[int | None] = memory_mib() if physical else ()
    # TensorFlow may leave out a GPU that CUDA shows; then it is not known which is which.
    known = memory if len(memory) == len(names) else [None] * len(names)
    return [Gpu(name, mib) for name, mib in zip(names, known, strict=True)]


def _set_memory(physical: Sequence[Any], env: Environment) -> None:
    for gpu in physical:
        if env.memory_limit_mib is not None:
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=env.memory_limit_mib)
            tf.config.set_logical_device_configuration(gpu, [limit])
        else:
            tf.config.experimental.set_memory_growth(gpu, env.memory_growth)


def leave_threads_for_reading(parallel_reads: int) -> None:
    """Before TensorFlow initialises: an operation that waits for a file holds a thread of the pool that also runs the
    step, so each batch that is read at the same time gets one besides."""
    if "TF_NUM_INTEROP_THREADS" not in os.environ:
        tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)) + parallel_reads)


def _cpus(count: int) -> list[str]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"/cpu:{i}" for i in range(count)]


def resolve_peers(peers: Sequence[str], say: Say) -> None:
    """Wait until every peer's name resolves: TensorFlow would fail at the first collective instead.

    Waits without a limit of its own; the start-up deadline is the watchdog's.
    """
    said = 0.0
    missing = list(peers)
    while missing:
        missing = [peer for peer in missing if not _resolves(peer.rpartition(":")[0])]
        if missing and time.monotonic() - said > 10:
            say(f"waiting for the names of {counted(len(missing), 'peer')}: {', '.join(missing[:5])}")
            said = time.monotonic()
        if missing:
            time.sleep(random.uniform(0.2, 0.5))  # noqa: S311 (spreads the workers' questions)


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def build(env: Environment, devices: Sequence[str]) -> tf.distribute.Strategy:
    """The strategy. Raises ConfigError if TensorFlow's server cannot listen on its port."""
    with listening(env.name):
        return _build(env, devices)


@contextmanager
def listening(name: str) -> Iterator[None]:
    """Raises ConfigError if TensorFlow's server cannot be started in this block."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in error.message:
            raise
        raise ConfigError(
            f"TensorFlow cannot listen on the port that TF_CONFIG gives to {name}: another process has it",
            "end that process, or give the task another port",
        ) from error


def _build(env: Environment, devices: Sequence[str]) -> tf.distribute.Strategy:
    if env.strategy == MULTI_WORKER_MIRRORED:
        reuse_instance_keys()
        # NCCL refuses two ranks on one GPU.
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        auto = tf.distribute.experimental.CommunicationImplementation.AUTO
        # Without timeout_seconds: it costs a sleeping thread for each collective. See cluster/collective_deadline.py.
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=ring if env.processes_per_gpu > 1 else auto
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if env.is_asynchronous:
        return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    if env.strategy == MIRRORED:
        return tf.distribute.MirroredStrategy(list(devices))
    return tf.distribute.OneDeviceStrategy(devices[0])


def placement_devices(placement: Mapping[str, int], strategy: tf.distribute.Strategy) -> list[str]:
    """The devices that placement counts; raises ConfigError if it names one that this worker lacks."""
    if not placement:
        return []
    if not isinstance(strategy, tf.distribute.OneDeviceStrategy):
        raise ConfigError("trainer.placement works with strategy OneDevice only", "use OneDevice, or remove placement")
    first = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    devices = [device.name for device in tf.config.list_logical_devices(first.device_type)]
    for glob, index in placement.items():
        if index >= len(devices):
            raise ConfigError(
                f"trainer.placement.{glob} is {index} and this worker has {len(devices)} devices",
                "grant it more with replicaSpecs.worker.gpus",
            )
    return devices


def kind(strategy: tf.distribute.Strategy) -> str:
    """The strategy's name in SUPPORT; with a single replica every synchronous one computes as OneDevice does."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return PARAMETER_SERVER
    if strategy.num_replicas_in_sync == 1:
        return ONE_DEVICE
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return MULTI_WORKER_MIRRORED if several else MIRRORED


def first_replica(strategy: tf.distribute.Strategy, env: Environment) -> int:
    """The global number of this worker's first replica."""
    return env.position * len(strategy.extended.worker_devices) if len(env.peers) > 1 else 0
