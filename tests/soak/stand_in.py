"""Does the kubelets' work for pods that no kubelet runs: starts them, ends them, and lets some fail once.

It pauses while it is checked whether the operator has caught up. It reads back later what it has written, so a lost
answer does no harm.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from tests.bench.objects import failed, running, succeeded
from tests.integration.kube import Kube, Object, Refused, path_of
from urllib3.exceptions import HTTPError

from tfgpujob import names

EVERY = 0.5
RETRYABLE = 143


@dataclass(slots=True)
class Life:
    """What is to become of one job's pods. Times are seconds after all pods of an attempt run."""

    pods: int
    ends_after: float
    fails_after: float | None = None
    """One pod of the first attempt fails then, in a way that is tried again."""

    @property
    def restarts(self) -> int:
        return 0 if self.fails_after is None else 1


@dataclass
class StandIn:
    """Runs in a thread of its own between `start` and `stop`."""

    kube: Kube
    namespace: str
    lives: dict[str, Life] = field(default_factory=dict)
    """By job; filled while it runs."""
    _rest: threading.Event = field(default_factory=threading.Event)
    _resting: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _ran_since: dict[tuple[str, str], float] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)

    def rest(self) -> None:
        """Returns when nothing more is being written."""
        self._rest.set()
        self._resting.wait(60)

    def go_on(self) -> None:
        self._resting.clear()
        self._rest.clear()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            if self._rest.is_set():
                self._resting.set()
                continue
            try:
                self._look()
            except (Refused, HTTPError, OSError):
                # The API server is away; it is one of the faults.
                continue

    def _look(self) -> None:
        gangs: dict[tuple[str, str], list[Object]] = defaultdict(list)
        for pod in self.kube.list("Pod", self.namespace):
            labels = pod["metadata"].get("labels") or {}
            if not pod["metadata"].get("deletionTimestamp"):
                gangs[labels.get(names.LABEL_JOB_NAME, ""), labels.get(names.LABEL_ATTEMPT, "")].append(pod)
        for gang, pods in gangs.items():
            if gang[0] in self.lives and not self._rest.is_set():
                self._live(gang, sorted(pods, key=lambda pod: str(pod["metadata"]["name"])))

    def _live(self, gang: tuple[str, str], pods: list[Object]) -> None:
        life = self.lives[gang[0]]
        for pod in pods:
            if pod["status"].get("phase") == "Pending":
                self._write(pod, running())
        if len(pods) < life.pods or any(pod["status"].get("phase") == "Pending" for pod in pods):
            return
        ran = time.monotonic() - self._ran_since.setdefault(gang, time.monotonic())
        if gang[1] == "1" and life.fails_after is not None:
            if ran > life.fails_after and pods[-1]["status"]["phase"] == "Running":
                self._write(pods[-1], failed(RETRYABLE))
        elif ran > life.ends_after:
            for pod in pods:
                if pod["status"]["phase"] == "Running":
                    self._write(pod, succeeded())

    def _write(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        # With its uid: by now the name may be that of a newer pod.
        change = {"metadata": {"uid": metadata["uid"]}, "status": status}
        path = f"{path_of('Pod', self.namespace, metadata['name'])}/status"
        try:
            self.kube.call("PATCH", path, change, "application/merge-patch+json")
        except Refused as refused:
            if refused.code not in {404, 409, 422}:
                raise
