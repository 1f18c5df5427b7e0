"""How busy GPUs are, by libraries that the test pretends: here is no GPU, and nothing is known."""

from __future__ import annotations

import ctypes
import json

import pytest

from tfgpujob_trainer.reporting import gpu_use as module
from tfgpujob_trainer.reporting.gpu_use import gpu_use
from tfgpujob_trainer.reporting.run_status import MOST_UNSEEN_SECONDS, RunStatus

NODE = {b"0000:01:00.0": 7, b"0000:41:00.0": 93, b"0000:61:00.0": 0}
"""All GPUs of a node, in NVML's order."""
SHOWN = [b"0000:61:00.0", b"0000:41:00.0"]
"""Those that CUDA shows to this process."""


class Driver:
    def cuDeviceGet(self, device, ordinal):
        device._obj.value = 100 + ordinal
        return int(ordinal >= len(SHOWN))

    def cuDeviceGetPCIBusId(self, bus_id, size, device):
        bus_id.value = SHOWN[device.value - 100]
        return 0


class Nvml:
    def __init__(self, broken=None):
        self.broken, self.handles = broken, list(NODE)

    def nvmlInit_v2(self):
        return int(self.broken == "nvmlInit_v2")

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id, handle):
        handle._obj.value = 1 + self.handles.index(bus_id)
        return int(self.broken == "nvmlDeviceGetHandleByPciBusId_v2")

    def nvmlDeviceGetUtilizationRates(self, handle, use):
        use._obj.gpu = NODE[self.handles[handle.value - 1]]
        return int(self.broken == "nvmlDeviceGetUtilizationRates")


@pytest.fixture
def pretend(monkeypatch):
    def libraries(nvml):
        module._nvml.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml if "nvidia" in name else Driver())

    yield libraries
    module._nvml.cache_clear()


def test_each_gpu_that_cuda_shows_is_found_among_all_of_the_node(pretend):
    pretend(Nvml())
    assert gpu_use(2) == [0, 93]
    assert gpu_use(1) == [0]


@pytest.mark.parametrize("broken", ["nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUtilizationRates"])
def test_what_nvml_does_not_say_is_not_known(pretend, broken):
    pretend(Nvml(broken))
    assert gpu_use(2) is None


def test_without_gpus_or_without_nvml_nothing_is_known(pretend):
    pretend(Nvml())
    assert gpu_use(0) is None
    assert gpu_use(3) is None, "CUDA shows two"
    pretend(object())
    assert gpu_use(2) is None


def test_here_is_none():
    module._nvml.cache_clear()
    assert gpu_use(1) is None


def test_gpus_are_idle_from_one_sample_to_the_next_while_it_trains(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("tfgpujob_trainer.reporting.run_status.time.monotonic", lambda: now[0])
    status = RunStatus()
    status.update(phase="training")
    status.gpu_use = lambda: [0, 0]

    def idle(seconds):
        now[0] += seconds
        return json.loads(status.to_json())["gpuIdleSeconds"]

    assert [idle(30), idle(30)] == [30, 60]
    status.gpu_use = lambda: [0, 1]
    assert idle(30) == 0
    status.gpu_use = lambda: [0, 0]
    assert idle(30) == 30
    assert idle(MOST_UNSEEN_SECONDS + 1) == 0, "it may have computed meanwhile"
    status.update(phase="caching")
    assert [idle(30), idle(30)] == [0, 0]
    status.gpu_use = lambda: None
    assert idle(30) is None
