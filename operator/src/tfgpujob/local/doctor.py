"""Problems of this machine for a local run: rules over what is installed and mounted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Final

from tfgpujob import __version__
from tfgpujob.local.preflight import INSTALL
from tfgpujob_contract.limits import SHM_DIR

_TENSORFLOWS: Final = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu")
_TRAINER: Final = "tfgpujob-trainer"
_LEAST_SHARED: Final = 1 << 30
_LEAST_DISK: Final = 2 << 30
_PINNED: Final = re.compile(r"^(keras|tensorboard)==([\w.]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """State of this machine. `installed` maps distributions to versions, `pinned` to those that the trainer
    requires.
    """

    installed: Mapping[str, str]
    pinned: Mapping[str, str]
    gpus_on_the_bus: int
    driver: bool
    shared_memory: int | None
    """Bytes of /dev/shm; None where there is none."""
    free_disk: int


def look() -> Machine:
    """Reads the state of this machine. Does not import TensorFlow."""
    found = ((d.metadata["Name"], d.version) for d in distributions())
    installed = {name.lower().replace("_", "-"): version for name, version in found if name}
    pinned: dict[str, str] = {}
    if _TRAINER in installed:
        pinned = {m[1]: m[2] for text in requires(_TRAINER) or () if (m := _PINNED.match(text))}
    shared = Path(SHM_DIR)
    return Machine(
        installed=installed,
        pinned=pinned,
        gpus_on_the_bus=len(list(Path("/sys/bus/pci/drivers/nvidia").glob("0*"))) or _nvidia_devices(),
        driver=Path("/proc/driver/nvidia/version").exists() and Path("/dev/nvidiactl").exists(),
        shared_memory=_size(shared) if shared.is_dir() else None,
        free_disk=shutil.disk_usage(Path.cwd()).free,
    )


def examine(machine: Machine) -> Iterator[tuple[str, str]]:
    """The problems, each with its fix."""
    found = [name for name in _TENSORFLOWS if name in machine.installed]
    if not found or _TRAINER not in machine.installed:
        missing = "TensorFlow" if not found else "the trainer"
        yield f"{missing} is not installed in this environment", INSTALL
    if len(found) > 1:
        yield (
            f"TensorFlow is installed {len(found)} times, as {' and '.join(found)}, in the same folder",
            f"pip uninstall -y {' '.join(found)}, then: {INSTALL}",
        )
    trainer = machine.installed.get(_TRAINER, __version__)
    if trainer != __version__:
        yield f"the trainer is {trainer}, this tool {__version__}", f"pip install '{_TRAINER}=={__version__}'"
    for name, wanted in machine.pinned.items():
        if (version := machine.installed.get(name)) is not None and version != wanted:
            yield f"{name} is {version}, and the trainer is tested with {wanted}", f"pip install '{name}=={wanted}'"
    if machine.gpus_on_the_bus and not machine.driver:
        yield (
            f"{machine.gpus_on_the_bus} NVIDIA devices are in this machine, and their driver does not answer",
            "install NVIDIA's driver, or in a container its runtime (docker run --gpus all)",
        )
    if machine.shared_memory is not None and machine.shared_memory < _LEAST_SHARED:
        mib = machine.shared_memory >> 20
        yield f"{SHM_DIR} has {mib} MiB, which NCCL and data workers outgrow", "in Docker: --shm-size=2g"
    if machine.free_disk < _LEAST_DISK:
        yield f"{machine.free_disk >> 20} MiB are free on this disk, where runs/ would be", "free some, or use --dir"


def _nvidia_devices() -> int:
    """PCI display controllers of NVIDIA, with or without a driver."""
    devices = Path("/sys/bus/pci/devices")
    count = 0
    for device in devices.iterdir() if devices.is_dir() else ():
        vendor, kind = ((device / part).read_text().strip() for part in ("vendor", "class"))
        count += vendor == "0x10de" and kind.startswith("0x03")
    return count


def _size(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
