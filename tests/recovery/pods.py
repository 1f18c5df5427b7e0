"""A gang of three pods of which some are lost: each by its supervisor and all below it, and replaced alone.

`measure` has the figures of a rigid and an elastic one, with and without a claim, which lose worker 0 and another by
turns, by force and with their grace period. A replacement starts at once, as where an image and a node are there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

from tests.recovery.parts import Figures, launching
from tests.recovery.training import percentiles, repetitions
from tests.trainer.harness import Launcher, Task, ask, free_ports, trainer_config, training_process, until

WORKERS = 3
SLOW = {"TEST_DO": "slow", "TEST_AT": "1", "TEST_SECONDS": "0.1"}
"""Steps so long that copying the state costs next to nothing of them, also on a busy machine."""


class Gang:
    """Its pods, each with the output of its own unless they share a claim."""

    def __init__(self, launch: Launcher, name: str, *, claim: bool = True, least: int | None = None, **fields: Any):
        """`least`: the workers with which an elastic gang trains on. `fields`: of trainer.json."""
        self._launch, self._output, self._claim = launch, launch.directory / name, claim
        first, leader, self._progress = free_ports(3)
        self._fields = {"params": {"dropout": 0.3}, "checkpoint": {"everyEpochs": 1000}, **fields}
        # Numbered, as the hosts of pods are.
        self._cluster = {"worker": [f"127.0.0.1:{first + index}" for index in range(WORKERS)]}
        self._common = {
            "TFGPU_RECOVERY": "InPlace",
            "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{leader}",
            "TFGPU_RECOVERY_TOKEN": "token",
            "TFGPU_RECOVERY_RESIZE": "1",
            "TFGPU_STRATEGY": "MultiWorkerMirrored",
            "TFGPU_REPLICA_TYPE": "worker",
            "TFGPU_JOB_UID": name,
            **({} if least is None else {"TFGPU_RECOVERY_LEAST": str(least)}),
            **SLOW,
        }
        self.restarts = [0] * WORKERS
        self.pods = [self._start(index) for index in range(WORKERS)]

    def output(self, index: int) -> Path:
        """Where the pod of this index saves."""
        return self._output if self._claim else self._output.with_name(f"{self._output.name}-{index}")

    def _start(self, index: int, **more: str) -> Task:
        told = {
            **self._common,
            "TF_CONFIG": json.dumps({"cluster": self._cluster, "task": {"type": "worker", "index": index}}),
            "TFGPU_REPLICA_INDEX": str(index),
            "TFGPU_REPLICA_RESTART": str(self.restarts[index]),
            "TFGPU_PROGRESS_PORT": str(0 if index else self._progress),
            **more,
        }
        return self._launch.start(trainer_config(self.output(index), **self._fields), env=told)

    @property
    def step(self) -> int:
        """Completed steps; 0 while worker 0 does not answer."""
        return int(ask(self._progress).get("step") or 0)

    def lose(self, *indexes: int, number: int = signal.SIGKILL) -> None:
        """Signal their supervisors, and wait for their ends."""
        for index in indexes:
            os.kill(self.pods[index].process.pid, number)
        for index in indexes:
            self.pods[index].wait()

    def replace(self, *indexes: int) -> None:
        """Start a new pod for each."""
        for index in indexes:
            self.restarts[index] += 1
            self.pods[index] = self._start(index, TFGPU_RECOVERY_JOINS="1")

    def signal(self, index: int, number: int) -> None:
        """Send it to the training process and the supervisor of that pod."""
        supervisor = self.pods[index].process.pid
        for pid in (training_process(supervisor), supervisor):
            os.kill(pid, number)

    @property
    def resumed(self) -> list[int]:
        """The steps after which the pod that leads now has continued."""
        return [int(step) for step in re.findall(r"resuming after step (\d+)", self.pods[0].log)]

    def codes(self) -> list[int]:
        """The exit codes of all, once they have ended."""
        return [pod.wait() for pod in self.pods]

    @property
    def weights(self) -> str:
        """Their digest, after the end."""
        digest: str = self.pods[0].ended["summary"]["weightsSha256"]
        return digest

    @property
    def log(self) -> str:
        """What the pods of now have printed."""
        return "\n".join(f"--- {index}\n{pod.log}" for index, pod in enumerate(self.pods))

    @property
    def rounds(self) -> int:
        """Rounds of all workers that the pod that leads now has been in, but for its own."""
        return self.pods[0].log.count(f"has {WORKERS} workers")


_STEPS = 30
"""Between two losses, and after the last: far more than a copy is old."""
_KINDS = {"rigid": None, "elastic": WORKERS - 1}
_SAME = 1e-9


def measure(figures: Figures, *, losses: int) -> None:
    """The figures of `losses` lost pods of each of the four jobs."""
    fields: dict[str, Any] = {"params": {}, "epochs": losses * _STEPS // 5 + 5}
    with launching() as launch:
        undisturbed = Gang(launch, "undisturbed", **fields)
        assert undisturbed.codes() == [0] * WORKERS
        for (kind, least), claim in product(_KINDS.items(), (True, False)):
            name = f"{kind}_{'claim' if claim else 'no_claim'}"
            into = figures.setdefault(name, {})
            gang = Gang(launch, name, claim=claim, least=least, **fields)
            found = {lost: _Found() for lost in ("worker_0", "another")}
            try:
                _lose_by_turns(gang, found, losses=losses, elastic=least is not None)
            finally:
                into |= {lost: each.figures() for lost, each in found.items()}
            loss, same = (_loss(each) for each in (gang, undisturbed))
            into["equal"] = gang.weights == undisturbed.weights if least is None else abs(loss - same) <= _SAME
            figures["bit_equal"] = figures.get("bit_equal", True) and into["equal"]
            figures.show()


@dataclass
class _Found:
    """The losses of one kind of pod."""

    seconds: list[float] = field(default_factory=list)
    """From each loss to the next step."""
    after_start: list[float] = field(default_factory=list)
    """The part from the round of the replacement on, where the others have waited for its import of TensorFlow."""
    repeated: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """As they stand in the line of JSON."""
        after = {f"{name}_after_start": value for name, value in percentiles(self.after_start).items()}
        return {"losses": len(self.seconds), **percentiles(self.seconds), **after, **repetitions(self.repeated)}


def _lose_by_turns(gang: Gang, found: Mapping[str, _Found], *, losses: int, elastic: bool) -> None:
    turns = ((signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGTERM, 2), (signal.SIGTERM, 0))
    for number, index in islice(cycle(turns), losses):
        ready = gang.step + _STEPS // 2
        until(lambda: gang.step >= ready)  # noqa: B023 (called at once)
        known, rounds, before, began = len(gang.resumed), gang.rounds, gang.step, time.monotonic()
        gang.lose(index, number=number)
        gang.replace(index)
        into = found["another" if index else "worker_0"]
        if index == 0:
            known = rounds = 0
        if waits := index > 0 and not elastic:
            until(lambda: gang.rounds > rounds, every=0.01)  # noqa: B023
            joined = time.monotonic()
        until(lambda: len(gang.resumed) > known and gang.step > gang.resumed[-1], every=0.01)  # noqa: B023
        into.seconds.append(time.monotonic() - began)
        if waits:
            into.after_start.append(time.monotonic() - joined)
        into.repeated.append(max(0, before - gang.resumed[known]))
        until(lambda: gang.rounds > rounds)  # noqa: B023
    assert gang.codes() == [0] * WORKERS, "an attempt would have begun"


def _loss(gang: Gang) -> float:
    return float(gang.pods[0].ended["summary"]["splits"]["train"]["loss"])
