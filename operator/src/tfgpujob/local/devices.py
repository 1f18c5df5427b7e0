"""Assigns the GPUs of this machine to the replicas as a scheduler would: each GPU to one replica, or none at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from tfgpujob.api import JobSpec, gpus
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.plan import Plan, replica_specs
from tfgpujob.units import counted
from tfgpujob_contract.variables import Variable

_NVIDIA = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of each replica; `note` says why there may be none."""

    given: Mapping[ReplicaId, tuple[str, ...]]
    note: str = ""

    def environment(self, replica: ReplicaId) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES, and the number of GPUs that the trainer expects."""
        mine = self.given.get(replica, ())
        if mine:
            return {"CUDA_VISIBLE_DEVICES": ",".join(mine)}
        # A CPU build uses logical devices instead of the expected GPUs; a GPU build would look for real ones.
        return {"CUDA_VISIBLE_DEVICES": "-1", **({} if is_cpu_build() else {Variable.GPUS: "0"})}


def share_out(spec: JobSpec, plan: Plan, visible: tuple[str, ...], *, cpu_build: bool = False) -> Devices:
    """`visible`: the GPUs here; `cpu_build`: the TensorFlow here uses none.

    All replicas get the GPUs that they request, or all compute on the CPU.
    """
    specs = replica_specs(spec)
    wants = {(role, index): gpus(spec, role, specs[role]) for role, index in plan.members.pods}
    total = sum(wants.values())
    if not total:
        return Devices({})
    if obstacle := _obstacle(spec.gpu.resource_name, total, visible, cpu_build=cpu_build):
        granted = _granted(spec.gpu.resource_name, wants)
        note = f"runs on the CPU, as {obstacle}; in a cluster {granted}"
        if spec.trainer is None and (most := max(wants.values())) > 1:
            # The trainer creates as many logical CPU devices; no variable makes another program's TensorFlow do so.
            note += f"; a program of its own finds one device here, so MirroredStrategy has one replica of {most}"
        return Devices({}, note)
    left = iter(visible)
    return Devices({replica: tuple(next(left) for _ in range(count)) for replica, count in wants.items()})


def _obstacle(resource: str, total: int, visible: tuple[str, ...], *, cpu_build: bool) -> str:
    """Why no replica gets a GPU; empty if there are enough."""
    if resource != _NVIDIA:
        return f"{resource} is granted by clusters alone"
    if visible and cpu_build:
        return "the TensorFlow here is built for CPUs ('tfgpujob[local-gpu]' brings the one for GPUs)"
    if total <= len(visible):
        return ""
    return f"the job's {counted(total, 'GPU')} are more than the {len(visible)} here" if visible else "no GPU is here"


def _granted(resource: str, wants: Mapping[ReplicaId, int]) -> str:
    """`the chief gets 1 GPU, each worker gets 2 GPUs`."""
    by_role: dict[str, list[int]] = {}
    for (role, _), count in wants.items():
        by_role.setdefault(role, []).append(count)
    shares = [
        f"{'each' if len(counts) > 1 else 'the'} {role} gets "
        f"{counted(counts[0], 'GPU') if resource == _NVIDIA else f'{counts[0]} × {resource}'}"
        for role, counts in by_role.items()
        if counts[0]
    ]
    return ", ".join(shares)


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part for part in chosen.split(",") if part not in {"", "-1"})
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False, timeout=30).stdout
    return tuple(str(i) for i, line in enumerate(line for line in listed.splitlines() if line.startswith("GPU ")))


def is_cpu_build() -> bool:
    """True if the installed TensorFlow uses no GPU.

    Read from its build record, without importing TensorFlow: the distributions tensorflow and tensorflow-cpu install
    the same files, so with both of them the metadata does not say which is used.
    """
    package = find_spec("tensorflow")
    for folder in (package.submodule_search_locations or ()) if package else ():
        spec = spec_from_file_location("build_info", Path(folder) / "python/platform/build_info.py")
        if spec is not None and spec.loader is not None:
            record = module_from_spec(spec)
            try:
                spec.loader.exec_module(record)
            except FileNotFoundError:
                continue
            return not (record.build_info["is_cuda_build"] or record.build_info["is_rocm_build"])
    return False
