"""Starts ParameterServer jobs as the operator would: a chief, workers and parameter servers with their TF_CONFIG, and
starts again whom the operator would start again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.trainer.harness import Launcher, Task, free_ports, training_process


@dataclass
class ServerJob:
    """One job; `tasks` holds the running task of each replica, such as `worker-1`."""

    launch: Launcher
    config: Mapping[str, Any]
    workers: int
    servers: int = 1
    absent: Sequence[str] = ()
    in_place: bool = False
    """runPolicy.recovery: InPlace."""
    budget: int = 6
    least: int | None = None
    """minReplicas; None: the workers can't come and go."""
    tasks: dict[str, Task] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ports = iter(free_ports(3 + self.workers + self.servers))
        self._leader, self.port = f"127.0.0.1:{next(ports)}", next(ports)
        counts = {"chief": 1, "worker": self.workers, "ps": self.servers}
        self._cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for role, n in counts.items()}
        for name in self.replicas:
            if name not in self.absent:
                self.start(name)

    @property
    def replicas(self) -> list[str]:
        """The names of all replicas; the chief's is last."""
        return [f"{role}-{i}" for role in ("ps", "worker", "chief") for i in range(len(self._cluster[role]))]

    @property
    def chief(self) -> Task:
        """The running chief."""
        return self.tasks["chief-0"]

    def start(self, name: str) -> Task:
        """Start a replica for the first time or again, with the environment that its pod would have."""
        role, index = name.rsplit("-", 1)
        self.restarts[name] = self.restarts.get(name, -1) + 1
        environment = {
            "TF_CONFIG": json.dumps(
                {"cluster": self._seen_by(role, index), "task": {"type": role, "index": int(index)}}
            ),
            "TFGPU_STRATEGY": "ParameterServer",
            "TFGPU_REPLICA_TYPE": role,
            "TFGPU_REPLICA_INDEX": index,
            "TFGPU_REPLICA_RESTART": str(self.restarts[name]),
            "TFGPU_JOB_UID": "u1",
            "TFGPU_PROGRESS_PORT": str(self.port if role == "chief" else 0),
            **(self._recovery if self.in_place else {}),
            **(self._elastic if role == "chief" and self.least is not None else {}),
        }
        self.tasks[name] = self.launch.start(self.config, env=environment)
        return self.tasks[name]

    @property
    def _recovery(self) -> dict[str, str]:
        told = {"": "InPlace", "_BUDGET": str(self.budget), "_LEADER": self._leader, "_TOKEN": "secret"}
        return {f"TFGPU_RECOVERY{name}": value for name, value in told.items()}

    @property
    def _elastic(self) -> dict[str, str]:
        return {"TFGPU_WORKERS_MIN": str(self.least)}

    def _seen_by(self, role: str, index: str) -> dict[str, Any]:
        """The cluster in a task's TF_CONFIG, as the operator writes it."""
        own = {role: {index: self._cluster[role][int(index)]}}
        if role == "chief":
            return dict(self._cluster)
        return {**own, "ps": self._cluster["ps"]} if role == "worker" else own

    def kill(self, name: str) -> None:
        """`kill -9` of the replica's container."""
        self.tasks[name].process.kill()
        self.tasks[name].process.wait()

    def kill_process(self, name: str, number: int = signal.SIGKILL) -> None:
        """`kill -9` of the replica's training process, of which its container does not end, or another signal."""
        os.kill(training_process(self.tasks[name].process.pid), number)

    def logs(self) -> str:
        """The logs of all tasks that run now."""
        return "\n".join(f"--- {name}\n{task.log}" for name, task in self.tasks.items())

    def end(self) -> None:
        """The operator deletes what is left."""
        for task in self.tasks.values():
            if task.process.poll() is None:
                task.process.kill()
                task.process.wait()
