"""Utilization of a task's GPUs, by NVML; None if it does not answer. Does not import TensorFlow."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

_DRIVER, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_BUS_ID_BYTES = 32


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def gpu_use(count: int) -> Sequence[int] | None:
    """For CUDA's first `count` GPUs, the percentage of NVML's last sample (up to a second) in which a kernel ran.

    None without GPUs or NVML, or if a device has no such figure, such as a MIG slice.
    """
    nvml = _nvml()
    if count == 0 or nvml is None:
        return None
    found = []
    for bus_id in _bus_ids(count):
        handle, use = ctypes.c_void_p(), _Utilization()
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(handle)):
            return None
        if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)):
            return None
        found.append(use.gpu)
    return found if len(found) == count else None


@cache
def _nvml() -> Any:
    """The library, initialised once in a process; None without it."""
    try:
        library = ctypes.CDLL(_NVML)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def _bus_ids(count: int) -> Iterator[bytes]:
    """PCI bus ids of the GPUs that CUDA shows to this process: NVML counts all of a node, in its own order."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return
    for ordinal in range(count):
        device, bus_id = ctypes.c_int(), ctypes.create_string_buffer(_BUS_ID_BYTES)
        if driver.cuDeviceGet(ctypes.byref(device), ordinal):
            return
        if driver.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device):
            return
        yield bus_id.value
