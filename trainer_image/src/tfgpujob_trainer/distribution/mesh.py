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
from keras.src.distribution.distribution_lib import DeviceMesh, distribution
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.exits import ConfigError

_init = DeviceMesh.__init__


def replacements() -> Iterator[Any]:
    """Replacements for functions that Keras' TensorFlow backend has, or lacks."""
    yield mock.patch.object(DeviceMesh, "__init__", _with_devices)
    lacking = (num_processes, process_id, get_device_count, initialize)
    for function in (*lacking, list_devices, _to_backend_mesh, _to_backend_layout):
        yield mock.patch.object(distribution_lib, function.__name__, function, create=function in lacking)


def _with_devices(mesh: Any, shape: Any, axis_names: Any, devices: Any = None) -> None:
    """DeviceMesh.__init__, with an error that explains how to get more devices."""
    wanted, there = math.prod(shape), len(list_devices() if devices is None else np.ravel(devices))
    if wanted != there:
        raise ConfigError(
            f"a DeviceMesh of shape {tuple(shape)} is of {wanted} devices, and {there} are given",
            f"ask for as many GPUs for the worker: --gpus {wanted}, or change the shape",
        )
    _init(mesh, shape, axis_names, devices)


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
    return 1


def process_id() -> int:
    """The index of this process."""
    return 0


def list_devices(device_type: str | None = None) -> list[str]:
    """All devices of a kind, as `cpu:0`; GPUs if there are any."""
    kind = (device_type or ("gpu" if tf.config.list_logical_devices("GPU") else "cpu")).lower()
    return [f"{kind}:{index}" for index in range(len(tf.config.list_logical_devices(kind.upper())))]


def get_device_count(device_type: str | None = None) -> int:
    """The number of devices."""
    return len(list_devices(device_type))


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,  # noqa: ARG001 (Keras' signature)
) -> None:
    """Nothing to do in a single process. Raises ConfigError for several."""
    if (num_processes or 1) > 1 or "," in (job_addresses or ""):
        raise ConfigError(
            "keras.distribution.initialize() names several processes, and a mesh has the devices of one process here",
            "use one worker with more GPUs: --workers 1 --gpus N",
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
    return dtensor.create_mesh(list(zip(mesh.axis_names, mesh.shape, strict=True)), devices=devices, device_type=kind)


def _to_backend_layout(layout: Any) -> Any:
    if layout.device_mesh is None:
        raise ValueError("TensorLayout has no device_mesh: give it one, or put it into a LayoutMap, which has")
    return dtensor.Layout([axis or dtensor.UNSHARDED for axis in layout.axes], layout.device_mesh.backend_mesh)
