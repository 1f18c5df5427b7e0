"""A worker with a core that says what the test wants, on a cluster in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.harness.scripted import ScriptedCluster
from tests.harness.vtime import run
from tests.unit.shell.make import flush, pod

from tfgpujob.core.observed.snapshot import (
    Config,
    Create,
    Kind,
    Object,
    Outcome,
    Refusal,
    Snapshot,
    StatusUpdate,
)
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.event_recorder import EventRecorder
from tfgpujob.shell.store import Key, Store
from tfgpujob.shell.worker import Core, Worker
from tfgpujob.shell.workqueue import WorkQueue

KEY = Key("ns", "train")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = Config(operator_image="o", trainer_image="t", operator_version="0")
INTENT: Object = {"phase": "Pending", "attempt": 1}
STATUS: Object = {"phase": "Starting", "attempt": 1}


def create_pod(name: str) -> Create:
    return Create(Kind.POD, pod(name, version=None, uid=f"uid-of-{name}"))


@dataclass
class Brain:
    """A core that says what the test wants, and remembers what it was told."""

    outcome: Outcome
    update: StatusUpdate = field(default_factory=StatusUpdate)
    seen: list[Snapshot] = field(default_factory=list)
    refusals: tuple[Refusal, ...] | None = None

    def reconcile(self, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        self.seen.append(snapshot)
        if self.outcome.lookups and set(self.outcome.lookups) <= snapshot.absent | {p.name for p in snapshot.pods}:
            return Outcome()
        return self.outcome

    def report_refusals(
        self, job: Object, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime
    ) -> StatusUpdate:
        return StatusUpdate({**STATUS, "refused": [refusal.name for refusal in refusals]})

    def finalize_status(
        self,
        snapshot: Snapshot,
        outcome: Outcome,
        refusals: tuple[Refusal, ...],
        now: datetime,
        config: Config,
    ) -> StatusUpdate:
        self.seen.append(snapshot)
        self.refusals = refusals
        return self.update


class Rig:
    def __init__(self, brain: Brain, *objects: Object, job_known: Object | None = None) -> None:
        self.brain = brain
        self.cluster = ScriptedCluster(*objects)
        self.store = Store()
        self.queue = WorkQueue(random=lambda: 0.0)
        for held in self.cluster.server.select(Kind.JOB):
            self.store.put(Kind.JOB, job_known or held)
        core = Core(brain.reconcile, brain.report_refusals, brain.finalize_status, CONFIG)
        self.recorder = EventRecorder(self.cluster, lambda: NOW)
        self.worker = Worker(
            self.cluster, self.store, self.queue, self.recorder, core=core, now=lambda: NOW, observe=lambda *_: None
        )

    def reconcile_once(self) -> str:
        """One reconciliation, and then the events that it led to."""

        async def reconcile_and_flush() -> str:
            result = await self.worker.reconcile_once(KEY)
            await flush(self.recorder)
            return result

        return run(reconcile_and_flush())

    def refuse(self, call: str, error: ApiError) -> None:
        def rule(made: str) -> None:
            if made.startswith(call):
                raise error

        self.cluster.refuse = rule
