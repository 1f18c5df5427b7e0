"""A job whose chief's pod and trainer report what the time is spent on."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob import names
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob_contract.goodput import PARTS

CHIEF = "train-worker-0"


class Story(World):
    """A World in which the kubelet reports the progress of the chief's pod, whose trainer keeps a ledger."""

    def __init__(self, strategy: str = "OneDevice", **parts: Any) -> None:
        job = make.job(strategy, **parts)
        job["metadata"]["creationTimestamp"] = timestamp(make.START)
        super().__init__(job)
        self.ledger: dict[str, int] = {}
        self.reached = 0
        self.marks: dict[str, int] = {}
        self.settle()

    def schedule(self, name: str = CHIEF) -> None:
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(self.now)}
        self.pod(name)["status"] = {"startTime": timestamp(self.now), "conditions": [scheduled]}
        self.settle()

    def gate(self, name: str = CHIEF) -> None:
        status = self.pod(name)["status"]
        gates = status.get("initContainerStatuses") or [{"name": names.GATE_CONTAINER, "state": {}}]
        began = gates[0]["state"].get("running")
        state = {"terminated": {**began, "finishedAt": timestamp(self.now), "exitCode": 0}} if began else None
        running = {"running": {"startedAt": timestamp(self.now)}}
        status["initContainerStatuses"] = [{"name": names.GATE_CONTAINER, "state": state or running}]
        self.settle()

    def begin(self, name: str = CHIEF) -> None:
        running = {"running": {"startedAt": timestamp(self.now)}}
        container = {"name": names.CONTAINER, "ready": True, "state": running}
        self.pod(name)["status"] |= {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [container]}
        self.ledger, self.marks = {}, {}
        self.settle()

    def starts(self, queued: float = 0, pulling: float = 0, name: str = CHIEF) -> None:
        """The pod, from its creation to its program."""
        self.advance(seconds=queued)
        self.schedule(name)
        self.advance(seconds=pulling)
        self.begin(name)

    def works(self, part: str, seconds: float) -> None:
        self.advance(seconds=seconds)
        self.ledger[part] = self.ledger.get(part, 0) + int(seconds * 1000)

    def said(self) -> dict[str, Any]:
        until = int(self.now.timestamp() * 1000)
        return {"until": until, "parts": dict(self.ledger), "reached": self.reached, "marks": self.marks}

    def killed(self) -> None:
        """Its pod ends without last words."""
        container = self.pod(CHIEF)["status"]["containerStatuses"][0]
        ended = {"exitCode": 137, "finishedAt": timestamp(self.now)}
        container |= {"ready": False, "state": {"terminated": ended}}
        self.pod(CHIEF)["status"]["phase"] = "Failed"

    def told_by_chief(self, **told: Any) -> None:
        self.tells(CHIEF, ledger=self.said(), **told)

    def ends(self, code: int, name: str = CHIEF) -> None:
        container = self.pod(name)["status"]["containerStatuses"][0]
        began = container["state"]["running"]["startedAt"]
        last_words = json.dumps({"code": code, "ledger": self.said()})
        ended = {"exitCode": code, "startedAt": began, "finishedAt": timestamp(self.now), "message": last_words}
        container |= {"ready": False, "state": {"terminated": ended}}
        self.pod(name)["status"]["phase"] = "Failed" if code else "Succeeded"
        self.settle()

    @property
    def told(self) -> dict[str, int]:
        found = self.status["goodput"]
        assert sum(found.get(part, 0) for part in PARTS) == self.whole, found
        return {part: found[part] for part in PARTS if part in found}

    @property
    def whole(self) -> int:
        return int((moment(self.status["goodput"]["time"]) - make.START).total_seconds())
