"""A CUDA driver that pretends to have GPUs."""

from __future__ import annotations


class Driver:
    """libcuda, with GPUs of these sizes."""

    def __init__(self, *sizes):
        self._sizes = sizes

    def cuInit(self, _):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self._sizes)
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = 100 + ordinal

    def cuDeviceTotalMem_v2(self, size, device):
        size._obj.value = self._sizes[device.value - 100]
