"""The devices of this task: chosen, limited and logged before TensorFlow initialises."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.gpus import Gpu, choose, describe, memory_mib
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.log import say_once

_NONE = "-1"
"""Value of CUDA_VISIBLE_DEVICES with which this task was started on the CPU on purpose, as by a local run, which has
logged it."""


def prepare(job: TrainerConfig, env: Environment, *, as_mesh: bool = False) -> list[str]:
    """Set what spec.trainer says of precision and determinism, and `prepare_devices`."""
    if job.precision is not None:
        keras.config.set_dtype_policy(job.precision)
    keras.utils.set_random_seed(job.seed)
    if job.deterministic:
        tf.config.experimental.enable_op_determinism()
    return prepare_devices(env, as_mesh=as_mesh)


def prepare_devices(env: Environment, *, as_mesh: bool = False) -> list[str]:
    """Set memory and devices before TensorFlow initialises; returns the devices to train on, and logs them.
    `as_mesh`: a worker that has peers may have several CPUs in place of its GPUs.

    Raises ConfigError when fewer GPUs are visible than the pod was granted, or with less memory than its limit.
    """
    physical = tf.config.list_physical_devices("GPU")
    visible, hidden_by = _described(physical), os.environ.get("CUDA_VISIBLE_DEVICES")
    used: Sequence[Gpu] = ()
    if visible or tf.test.is_built_with_gpu_support():
        used = choose(visible, env, hidden_by=hidden_by)
        tf.config.set_visible_devices(physical[: len(used)], "GPU")
        _set_memory(physical[: len(used)], env)
    elif env.gpus and hidden_by != _NONE:
        say_once(f"CPU build of TensorFlow: {counted(env.gpus, 'granted GPU is', 'granted GPUs are')} not used")
    one = env.traits.clustered and not as_mesh
    devices = [f"/gpu:{i}" for i in range(len(used))] or _cpus(1 if one else env.gpus or 1)
    cores = len(os.sched_getaffinity(0))
    say_once(describe(used, env, visible=len(visible), cores=cores, count=len(devices)))
    return devices


def _described(physical: Sequence[Any]) -> list[Gpu]:
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in physical]
    memory: Sequence[int | None] = memory_mib() if physical else ()
    # TensorFlow may omit a GPU that CUDA shows; then the order is unknown.
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
    """Call it before TensorFlow initialises. An operation that waits for a file occupies a thread of the pool that also
    runs the step, so each parallel read gets another thread."""
    if "TF_NUM_INTEROP_THREADS" not in os.environ:
        tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)) + parallel_reads)


def _cpus(count: int) -> list[str]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"/cpu:{i}" for i in range(count)]


def placement_devices(placement: Mapping[str, int], strategy: tf.distribute.Strategy) -> list[str]:
    """The devices that placement numbers; raises ConfigError for a number that this worker lacks."""
    if not placement:
        return []
    if not isinstance(strategy, tf.distribute.OneDeviceStrategy):
        raise ConfigError("trainer.placement works with strategy OneDevice only", "use OneDevice, or remove placement")
    first = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    devices = [device.name for device in tf.config.list_logical_devices(first.device_type)]
    check_placement(placement, devices)
    return devices


def check_placement(placement: Mapping[str, int], devices: Sequence[str]) -> None:
    """Raise ConfigError if placement has a device that is not among these."""
    for glob, index in placement.items():
        if index >= len(devices):
            raise ConfigError(
                f"trainer.placement.{glob} is {index} and this worker has {len(devices)} devices",
                "grant it more with replicaSpecs.worker.gpus",
            )
