"""Devices, meshes and layouts: the part of a backend that keras.distribution needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import distribution_lib
from keras.src.distribution.distribution_lib import DeviceMesh, Distribution, distribution
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.exits import ConfigError

_init, _init_distribution = DeviceMesh.__init__, Distribution.__init__


def replacements() -> Iterator[Any]:
    """Replacements for functions that Keras' TensorFlow backend has, or lacks."""
    yield mock.patch.object(DeviceMesh, "__init__", _with_devices)
    yield mock.patch.object(Distribution, "__init__", _of_whole_batches)
    lacking = (num_processes, process_id, get_device_count, initialize)
    for function in (*lacking, list_devices, _to_backend_mesh, _to_backend_layout):
        yield mock.patch.object(distribution_lib, function.__name__, function, create=function in lacking)


def _with_devices(mesh: Any, shape: Any, axis_names: Any, devices: Any = None) -> None:
    """DeviceMesh.__init__, with an error that explains how to get more devices."""
    wanted, there = math.prod(shape), len(list_devices() if devices is None else np.ravel(devices))
    if wanted != there:
        raise ConfigError(
            f"a DeviceMesh of shape {tuple(shape)} is of {wanted} devices, and {there} are given",
            f"ask for as many GPUs: {_gpus(wanted)}, or change the shape",
        )
    _init(mesh, shape, axis_names, devices)


def _gpus(wanted: int) -> str:
    each, more = divmod(wanted, num_processes())
    return f"--gpus {each}" if num_processes() == 1 or more else f"--workers {num_processes()} --gpus {each}"


def _of_whole_batches(distribution: Any, *args: Any, **kwargs: Any) -> None:
    """Distribution.__init__: each process reads whole batches, of which it places its part. Keras' own sharding of
    datasets gives the processes a different number of batches if the last is short, and takes no arrays."""
    _init_distribution(distribution, *args, **kwargs)
    if num_processes() > 1 and not distribution.auto_shard_dataset:
        raise ConfigError(
            "auto_shard_dataset is False: each worker would read rows of its own",
            "leave it out, and let each worker read all rows: it computes its part of them",
        )
    distribution._is_multi_process = False  # noqa: SLF001 (Keras has no other place for it, and is pinned)


def current_mesh() -> Any:
    """The mesh of the distribution that the script has set; None without one."""
    found = distribution()
    return None if found is None else found.device_mesh.backend_mesh


@contextmanager
def default_mesh(mesh: Any) -> Iterator[None]:
    """dtensor.default_mesh() that is also reset after an exception: a script may catch it and continue."""
    inner = dtensor.default_mesh(mesh)
    inner.__enter__()
    try:
        yield
    finally:
        inner.__exit__(None, None, None)


def num_processes() -> int:
    """How many processes share the mesh."""
    return int(dtensor.num_clients())


def process_id() -> int:
    """The index of this process."""
    return int(dtensor.client_id())


def list_devices(device_type: str | None = None) -> list[str]:
    """All devices of a kind, of all processes, as `cpu:0`; GPUs if there are any."""
    kind = (device_type or ("gpu" if tf.config.list_logical_devices("GPU") else "cpu")).lower()
    return [f"{kind}:{index}" for index in range(dtensor.num_local_devices(kind.upper()) * num_processes())]


def get_device_count(device_type: str | None = None) -> int:
    """The number of devices."""
    return len(list_devices(device_type))


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,  # noqa: ARG001 (Keras' signature)
) -> None:
    """Nothing to do: the job's workers are connected before the script begins. Raises ConfigError if they are another
    number."""
    named = num_processes or len((job_addresses or ",").split(",")) - (not job_addresses)
    if named not in (1, dtensor.num_clients()):
        raise ConfigError(
            f"keras.distribution.initialize() names {named} processes, and the job has {dtensor.num_clients()}",
            f"leave its arguments out, or start as many: --workers {named}",
        )


def _to_backend_mesh(mesh: Any) -> Any:
    devices = [str(device).upper() for device in mesh.devices.flatten()]
    kind = devices[0].split(":")[0]
    missing = sorted({*devices} - {device.upper() for device in list_devices(kind)})
    if missing:
        raise ConfigError(
            f"the DeviceMesh names {', '.join(missing).lower()}, and there are {get_device_count(kind)} devices",
            "use keras.distribution.list_devices(), or ask for more with --gpus",
        )
    axes = list(zip(mesh.axis_names, mesh.shape, strict=True))
    if num_processes() == 1:
        return dtensor.create_mesh(axes, devices=devices, device_type=kind)
    if devices != [device.upper() for device in list_devices(kind)]:
        raise ConfigError(
            "the DeviceMesh has the devices of several workers in another order, or leaves some out",
            "use all of keras.distribution.list_devices(), in its order",
        )
    return dtensor.create_distributed_mesh(axes, device_type=kind)


def _to_backend_layout(layout: Any) -> Any:
    if layout.device_mesh is None:
        raise ValueError("TensorLayout has no device_mesh: give it one, or put it into a LayoutMap, which has")
    return dtensor.Layout([axis or dtensor.UNSHARDED for axis in layout.axes], layout.device_mesh.backend_mesh)
