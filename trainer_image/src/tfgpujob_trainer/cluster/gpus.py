"""Which of the visible GPUs a task uses, and whether its limits fit them. Does not import TensorFlow."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted

_DRIVER = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that TensorFlow sees; `memory_mib` is None if the driver does not report it."""

    name: str
    memory_mib: int | None = None


def choose(visible: Sequence[Gpu], env: Environment, *, hidden_by: str | None = None) -> Sequence[Gpu]:
    """The GPUs that this task uses: as many as the pod was granted, or all if the number is not set.

    `hidden_by` is the value of CUDA_VISIBLE_DEVICES. Raises ConfigError for fewer than were granted, and for limits
    beyond a GPU's memory.
    """
    wanted = len(visible) if env.gpus is None else env.gpus
    if wanted > len(visible):
        seen = f"only {len(visible)} are" if visible else "none is"
        problem = f"{counted(wanted, 'GPU was', 'GPUs were')} granted and {seen} visible to TensorFlow"
        if hidden_by is not None:
            raise ConfigError(f"{problem}: CUDA_VISIBLE_DEVICES is {hidden_by!r}", "remove it from the container's env")
        fix = "check the node's driver with nvidia-smi, and that the image's CUDA libraries fit it"
        raise ConfigError(problem, fix)
    for gpu in visible[:wanted]:
        _check_limit(gpu, env)
    return visible[:wanted]


def _check_limit(gpu: Gpu, env: Environment) -> None:
    limit, processes = env.memory_limit_mib, env.processes_per_gpu
    if limit is None or gpu.memory_mib is None or processes * limit <= gpu.memory_mib:
        return
    together = f" for each of {processes} processes" if processes > 1 else ""
    raise ConfigError(
        f"spec.gpu.memory.limitMiB is {limit}{together}, and {gpu.name} has {gpu.memory_mib} MiB",
        f"use at most {gpu.memory_mib // processes}, or leave it out: memory then grows as it is needed",
    )


def describe(used: Sequence[Gpu], env: Environment, *, visible: int, cores: int, count: int) -> str:
    """`devices: 2 × NVIDIA H100, 81559 MiB, memory grows` or `devices: CPU, 4 cores`; `count`: those to compute on."""
    if not used:
        kind = "devices" if env.traits.single_replica else "replicas"
        return f"devices: CPU, {cores} cores" + (f", as {count} {kind}" if count > 1 else "")
    names = sorted({gpu.name if gpu.memory_mib is None else f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in used})
    grows = "memory grows" if env.memory_growth else "all memory is taken at once"
    memory = grows if env.memory_limit_mib is None else f"at most {env.memory_limit_mib} MiB are taken"
    shared = f" by each of {env.processes_per_gpu} processes" if env.processes_per_gpu > 1 else ""
    unused = f"; {visible} are visible, the others are left alone" if visible > len(used) else ""
    return f"devices: {len(used)} × {' and '.join(names)}, {memory}{shared}{unused}"


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports, such as (12, 8); None without a working driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def memory_mib() -> list[int]:
    """Memory of each GPU that CUDA shows to this process, in its order; empty without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return []
    count, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for ordinal in range(count.value):
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        found.append(size.value >> 20)
    return found
