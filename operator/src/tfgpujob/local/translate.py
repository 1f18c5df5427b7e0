"""From a pod that the core has built to a process on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.pods.expansion import MAX_CHARACTERS, expanded
from tfgpujob.local.devices import Devices
from tfgpujob.local.folder import Folder
from tfgpujob.local.ports import Ports
from tfgpujob.local.process import Launch
from tfgpujob.names import Role
from tfgpujob_contract.pod import CODE_DIR
from tfgpujob_contract.variables import LocalVariable

REQUIREMENTS: Final = ".requirements"
"""Folder beside those of the runs, in which installed packages are kept for all of them."""
TRAINER_MODULE: Final = "tfgpujob_trainer.main"
SUPERVISOR_MODULE: Final = "tfgpujob_trainer.own_program"
_DEFAULT_GRACE_SECONDS: Final = 30
_THREADS: Final = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this machine uses for images, volumes, names and devices."""

    folder: Folder
    code: Path
    """Used as /code and as working directory."""
    ports: Ports
    devices: Devices
    replicas: int
    """Processes that share the CPU."""
    command: Sequence[str] = ()
    """Used for the image's own command, for jobs without spec.trainer."""
    shell: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The environment that processes inherit."""


def launch(pod: Object, here: Here) -> Launch:
    """What to start for this pod. Writes the trainer's config file, which the kubelet would mount."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels = metadata["labels"]
    role, index = Role(labels[names.LABEL_REPLICA_TYPE]), int(labels[names.LABEL_REPLICA_INDEX])
    container = next(c for c in spec["containers"] if c["name"] == names.CONTAINER)
    replica = f"{role}-{index}"
    termination_log = here.folder.scratch / f"{replica}.end"
    environment = {
        **_inherited(here),
        **_variables(container, here.ports),
        **here.devices.environment((role, index)),
        LocalVariable.CODE_DIR: str(here.code),
        LocalVariable.FILES_DIR: str(here.folder.scratch / f"{replica}.files"),
        LocalVariable.REQUIREMENTS_DIR: str(here.folder.path.parent / REQUIREMENTS),
        LocalVariable.TERMINATION_LOG: str(termination_log),
        # The screen shows the progress, and several jobs on one machine would use the same port.
        LocalVariable.PROGRESS_PORT: "0",
    }
    text = (metadata.get("annotations") or {}).get(names.ANNOTATION_TRAINER_CONFIG)
    command = _own_command(container, here, environment) if text is None else _trainer(container, replica, text, here)
    attempt, restart = labels[names.LABEL_ATTEMPT], labels[names.LABEL_REPLICA_RESTART]
    return Launch(
        command=command,
        environment=environment,
        directory=here.code,
        log=here.folder.logs / f"{replica}.log",
        termination_log=termination_log,
        grace_seconds=spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS),
        heading=f"=== attempt {attempt}, restart {restart}, {datetime.now(UTC).isoformat(timespec='seconds')}",
    )


def _trainer(container: Mapping[str, Any], replica: str, text: str, here: Here) -> list[str]:
    """The pod's `tfgpu-train …`, with this Python and a config file whose paths are on this machine."""
    config = json.loads(text)
    mounts = {config["output"]["directory"]: str(here.folder.output), CODE_DIR: str(here.code)}
    if config.get("models"):
        mounts[names.MODELS_DIR] = str(here.code / "models")
    file = here.folder.scratch / f"{replica}.json"
    file.write_text(json.dumps(_remounted(config, mounts)))
    mounted = f"{names.CONFIG_DIR}/{names.CONFIG_FILE}"
    arguments = [str(file) if argument == mounted else argument for argument in container["command"][1:]]
    return [sys.executable, "-m", TRAINER_MODULE, *arguments]


def _remounted(value: Any, mounts: Mapping[str, str]) -> Any:
    """The value with every path below a mount of the container replaced by its path here."""
    if isinstance(value, Mapping):
        return {key: _remounted(item, mounts) for key, item in value.items()}
    if isinstance(value, list):
        return [_remounted(item, mounts) for item in value]
    for inside, outside in mounts.items():
        if isinstance(value, str) and (value == inside or value.startswith(f"{inside}/")):
            return f"{outside}{value[len(inside) :]}"
    return value


def _own_command(container: Mapping[str, Any], here: Here, environment: Mapping[str, str]) -> list[str]:
    """The command with this Python, supervised if the pod's is."""
    own = [*container.get("command", ()), *container.get("args", ())]
    supervised = own[:1] == [names.SUPERVISE]
    command = here.command or own[supervised:]
    by = [sys.executable, "-m", SUPERVISOR_MODULE] if supervised else []
    return [*by, *(expanded(word, environment.get) for word in command)]


def _inherited(here: Here) -> dict[str, str]:
    """The shell's environment, without variables that only a job may set."""
    cores = max(1, (os.cpu_count() or 1) // here.replicas)
    kept = {k: v for k, v in here.shell.items() if k != "TF_CONFIG" and not k.startswith("TFGPU_")}
    # `python` in a command is the interpreter that has TensorFlow.
    path = os.pathsep.join((str(Path(sys.executable).parent), here.shell.get("PATH", os.defpath)))
    return {**dict.fromkeys(_THREADS, str(cores)), **kept, "PATH": path, "PYTHONUNBUFFERED": "1"}


def _variables(container: Mapping[str, Any], ports: Ports) -> dict[str, str]:
    """The container's variables with a value; those from a Secret or a field are left to the shell."""
    found: dict[str, str] = {}
    room = MAX_CHARACTERS
    for variable in container.get("env", ()):
        if "value" in variable:
            value = expanded(variable["value"], found.get, room)
            room -= len(value)
            found[variable["name"]] = ports.translated(value)
    return found
