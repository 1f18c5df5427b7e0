"""Jobs of every kind while the operator is replaced by another release: what is there before is there after."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.process import OperatorProcess
from tests.endurance.operator import lived_out
from tests.harness.live import live_cluster
from tests.integration.eventually import eventually
from tests.integration.kube import Kube, Object
from tests.soak.stand_in import Life

NAMESPACE = "default"
NEVER = math.inf
KINDS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "one": ("OneDevice", {"worker": 1}),
    "gang": ("MultiWorkerMirrored", {"worker": 2}),
    "servers": ("ParameterServer", {"chief": 1, "worker": 1, "ps": 1}),
}
"""Strategy and replicas."""
STATES: Mapping[str, Callable[[int], Life]] = {
    "running": lambda pods: Life(pods, NEVER),
    "restarted": lambda pods: Life(pods, NEVER, fails_after=0),
    "done": lambda pods: Life(pods, 0),
    "suspended": lambda pods: Life(pods, NEVER),
}
"""What has become of a job when the upgrade begins."""
PHASES = {"running": "Running", "restarted": "Running", "done": "Succeeded", "suspended": "Suspended"}
SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The server of the harness over HTTP, whose kubelet runs the pods."""

    kube: Kube
    lives: dict[str, Life]
    """What is to become of each job's pods: filled while it runs."""
    operator: Callable[[str, str | None], OperatorProcess]
    """Another one, of this name: this checkout's, or the one of that folder."""


@contextmanager
def in_memory(folder: Path) -> Iterator[Ground]:
    with live_cluster(folder, operator=False) as live, lived_out(live) as lives:

        def operator(name: str, source: str | None) -> OperatorProcess:
            where = {"namespace": NAMESPACE, "lease": "upgrade", "namespaces": NAMESPACE}
            return OperatorProcess(live.kubeconfig, folder / f"{name}.log", **where, name=name, source=source)

        yield Ground(kube=Kube(live.kubeconfig), lives=lives, operator=operator)


@dataclass(frozen=True)
class Seen:
    """All jobs and pods at one moment."""

    statuses: Mapping[str, Object]
    pods: Mapping[str, str]
    """Uids by name."""


class Run:
    """`previous` is the PYTHONPATH of the last release."""

    def __init__(self, ground: Ground, previous: str, jobs: int, say: Callable[[str], None]) -> None:
        self._ground, self._previous, self._say = ground, previous, say
        self._states = {f"job-{number}": _of(number) for number in range(jobs)}
        self._problems: list[str] = []

    def problems(self) -> list[str]:
        """Pods that are not the same any more, and what of a status is lost."""
        before = self._ground.operator("previous", self._previous)
        operators = [before]
        try:
            self._await_leader(before)
            for name, (kind, state) in self._states.items():
                self._submit(name, kind, state)
            self._await(PHASES)
            self._say(f"{len(self._states)} jobs are there, by the last release")
            self._replace(operators, "current", None)
            self._say("the new operator has seen to all of them")
            # A job of either operator comes to its end under the other one.
            self._end("one")
            self._replace(operators, "back", self._previous)
            self._say("and so has the old one again")
            self._end(*KINDS)
        finally:
            for operator in operators:
                operator.stop()
        return self._problems

    def _submit(self, name: str, kind: str, state: str) -> None:
        strategy, replicas = KINDS[kind]
        self._ground.lives[name] = STATES[state](sum(replicas.values()))
        spec: Object = {
            "strategy": strategy,
            "image": "example.com/train:1",
            # So that as many run as are wanted, wherever this is.
            "gpu": {"perReplica": 0},
            "runPolicy": {"suspend": state == "suspended"},
            "replicaSpecs": {role: {"replicas": count} for role, count in replicas.items()},
        }
        self._ground.kube.create("TFGPUJob", NAMESPACE, {"metadata": {"name": name}, "spec": spec})

    def _replace(self, operators: list[OperatorProcess], name: str, source: str | None) -> None:
        """As a Deployment does: the new one is ready before the old one is asked to end. Then all must be as before."""
        before = self._seen()
        [old] = operators
        new = self._ground.operator(name, source)
        operators.append(new)
        eventually(lambda: new.metrics().get("tfgpu_jobs") == len(self._states), "the new one has listed", seconds=60)
        old.stop()
        operators.remove(old)
        self._await_leader(new)
        eventually(lambda: self._has_seen_all(new), "it has seen to every job", seconds=60, report=lambda: _log(new))
        self._compare(name, before, self._seen())

    def _compare(self, name: str, before: Seen, after: Seen) -> None:
        gone = [pod for pod, uid in before.pods.items() if after.pods.get(pod) != uid]
        self._problems += [f"{name}: pod {pod} is gone, or another one" for pod in gone]
        for job, status in before.statuses.items():
            self._problems += [f"{name}: {job}: {line}" for line in lost(status, after.statuses.get(job, {}))]

    def _await_leader(self, operator: OperatorProcess) -> None:
        eventually(
            lambda: operator.metrics().get("tfgpu_leader") == 1, "it leads", seconds=60, report=lambda: _log(operator)
        )

    def _has_seen_all(self, operator: OperatorProcess) -> bool:
        found = operator.metrics()
        looks = sum(value for name, value in found.items() if name.startswith("tfgpu_reconciles_total"))
        idle = found.get("tfgpu_queue_depth") == found.get("tfgpu_queue_active") == 0
        return idle and looks >= len(self._states)

    def _end(self, *kinds: str) -> None:
        """All jobs of these kinds come to their end; those that are suspended are resumed for that."""
        for name, (kind, state) in self._states.items():
            if kind in kinds:
                self._ground.lives[name].ends_after = 0
                if state == "suspended":
                    change = {"spec": {"runPolicy": {"suspend": False}}}
                    self._ground.kube.patch("TFGPUJob", NAMESPACE, name, change)
        self._await({**PHASES, **dict.fromkeys(kinds, "Succeeded")})

    def _await(self, phases: Mapping[str, str]) -> None:
        """Until the jobs are in these phases, by kind or else by state, and no status changes any more."""
        expected = {name: phases.get(kind, phases[state]) for name, (kind, state) in self._states.items()}

        def settled() -> bool:
            before = self._seen().statuses
            return not self._different(expected, before) and before == self._after_a_moment().statuses

        def report() -> str:
            return str(self._different(expected, self._seen().statuses))

        eventually(settled, "all jobs are as they should be", seconds=SECONDS, every=0.5, report=report)

    def _different(self, expected: Mapping[str, str], statuses: Mapping[str, Object]) -> list[str]:
        found = {name: (status.get("phase"), status.get("restarts", 0)) for name, status in statuses.items()}
        wanted = {name: (phase, self._ground.lives[name].restarts) for name, phase in expected.items()}
        return [f"{name}: {found.get(name)} instead of {of}" for name, of in wanted.items() if found.get(name) != of]

    def _after_a_moment(self) -> Seen:
        """Ready counts follow the phase."""
        time.sleep(1)
        return self._seen()

    def _seen(self) -> Seen:
        kube = self._ground.kube
        pods = (pod["metadata"] for pod in kube.list("Pod", NAMESPACE))
        return Seen(
            {job["metadata"]["name"]: job.get("status") or {} for job in kube.list("TFGPUJob", NAMESPACE)},
            {pod["name"]: pod["uid"] for pod in pods if "deletionTimestamp" not in pod},
        )


def lost(before: Object, after: Object) -> list[str]:
    """What of a status another operator did not keep. What it adds is no loss."""
    then, now = dict(_leaves(before)), dict(_leaves(after))
    return [f"{path}: {value!r} became {now.get(path)!r}" for path, value in then.items() if now.get(path) != value]


def _leaves(value: Any, path: str = "status") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            known = item.get("type", index) if isinstance(item, dict) else index
            yield from _leaves(item, f"{path}[{known}]")
    else:
        yield path, value


def _of(number: int) -> tuple[str, str]:
    """Kind and state: each with each, in turns."""
    kind, state = list(KINDS)[number % len(KINDS)], list(STATES)[number // len(KINDS) % len(STATES)]
    # A worker beside parameter servers starts again alone, and the stand-in would end it in the same way for ever.
    return kind, "running" if (kind, state) == ("servers", "restarted") else state


def _log(operator: OperatorProcess) -> str:
    return operator.log.read_text()[-2000:]
