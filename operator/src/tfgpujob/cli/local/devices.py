"""The GPUs of this machine, shared out over the replicas as a scheduler would: each to one replica, or none at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

from tfgpujob.api import JobSpec, gpus
from tfgpujob.core.plan import Plan, ReplicaId, replica_specs
from tfgpujob.units import counted

_NVIDIA = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Devices:
    """Which GPUs each replica gets; `note` says why it may be none."""

    given: Mapping[ReplicaId, tuple[str, ...]]
    note: str = ""

    def environment(self, replica: ReplicaId) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES, and the number of GPUs that the trainer is to expect."""
        mine = self.given.get(replica, ())
        if mine:
            return {"CUDA_VISIBLE_DEVICES": ",".join(mine)}
        # A CPU build takes logical devices for the GPUs it was promised; a GPU build would look for real ones.
        return {"CUDA_VISIBLE_DEVICES": "-1", **({} if _is_cpu_build() else {"TFGPU_GPUS": "0"})}


def share_out(spec: JobSpec, plan: Plan, visible: tuple[str, ...]) -> Devices:
    """`visible`: the GPUs here. All replicas get what they ask for, or all compute on the CPU."""
    specs = replica_specs(spec)
    wants = {(role, index): gpus(spec, role, specs[role]) for role, index in plan.pods()}
    total = sum(wants.values())
    if not total:
        return Devices({})
    if total > len(visible) or spec.gpu.resource_name != _NVIDIA:
        here = counted(len(visible), "GPU") if visible else "no GPU"
        return Devices(
            {}, f"the job asks for {total} × {spec.gpu.resource_name} and {here} is here: it runs on the CPU"
        )
    left = iter(visible)
    return Devices({replica: tuple(next(left) for _ in range(count)) for replica, count in wants.items()})


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none with a CPU build of TensorFlow."""
    if _is_cpu_build():
        return ()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part for part in chosen.split(",") if part not in {"", "-1"})
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False, timeout=30).stdout
    return tuple(str(i) for i, line in enumerate(line for line in listed.splitlines() if line.startswith("GPU ")))


def _is_cpu_build() -> bool:
    try:
        distribution("tensorflow-cpu")
    except PackageNotFoundError:
        return False
    return True
