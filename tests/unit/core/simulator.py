"""A cluster for one job, as a dictionary and a clock: it carries out what the core decides, as the worker does.

Everything that happens is followed by looks until the core asks for nothing more, so a test reads as a story:
`world.ready("train-worker-0")`, `world.exits("train-worker-1", 137)`, `world.advance(minutes=1)`. Each look also
checks what must hold at any time: inputs are not changed, a written status fits its schema, terminal conditions
exclude each other and stay, and nothing is created that the written status does not name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self

from tests.unit.core import make

from tfgpujob import names
from tfgpujob.api import JobStatus
from tfgpujob.core.membership.leader import leader_request
from tfgpujob.core.observed.progress_report import Report, parse
from tfgpujob.core.observed.snapshot import (
    KUEUE,
    POD_GROUPS,
    WORKLOADS,
    Agreed,
    Config,
    Creation,
    Delete,
    Dependent,
    Event,
    Kind,
    LeaderAnswer,
    Outcome,
    Pod,
    Refusal,
    Said,
    Snapshot,
    StatusWrite,
)
from tfgpujob.core.observed.trim import trim_cluster_object, trim_dependent, trim_job, trim_pod, trim_workload
from tfgpujob.core.reconcile import finalize_status, reconcile
from tfgpujob.core.status.builder import timestamp

Answer = tuple[int, str]
"""HTTP status and message of a refusal."""
HOT = 25
"""Looks in a row, with no time passing, that are taken for a loop without end."""


class World:
    def __init__(self, job: dict[str, Any], config: Config = make.CONFIG) -> None:
        self.now: datetime = make.START
        self.config = config
        self.job: dict[str, Any] | None = deepcopy(job)
        self.objects: dict[tuple[Kind, str], dict[str, Any]] = {}
        self.up = True
        self.grace = timedelta()
        """How long a running pod that is deleted takes to go."""
        self.refuse: Callable[[Creation], Answer | None] = lambda _: None
        self.writes: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.creates: list[str] = []
        self.deletes: list[Delete] = []
        self.tries = 0
        """Requests to create something, refused ones included."""
        self.looks = 0
        self.reports: dict[str, Report] = {}
        self.quarantined = ""
        """Why the job is set aside."""
        self.image_volumes = False
        """Whether every node mounts such."""
        self.leader_answer: LeaderAnswer | None = None
        self.departed: Pod | None = None
        """What the store has kept of a pod that is gone."""
        self.cluster_objects: dict[Kind, dict[str, Any]] = {}
        self.lookups = 0
        self._uids = 0
        self._wake: datetime | None = None
        self._deferred_since: datetime | None = None
        self._going: dict[str, datetime] = {}
        self._held: dict[str, Pod] = {}

    @classmethod
    def begun(cls, job: dict[str, Any], config: Config = make.CONFIG) -> Self:
        """Its pods are created."""
        world = cls(job, config)
        world.settle()
        return world

    @classmethod
    def running(cls, job: dict[str, Any], config: Config = make.CONFIG) -> Self:
        """Its pods are created and ready."""
        world = cls.begun(job, config)
        world.ready()
        return world

    @classmethod
    def training(cls, job: dict[str, Any], config: Config = make.CONFIG) -> Self:
        """It has run for a minute."""
        world = cls.running(job, config)
        world.advance(minutes=1)
        assert world.phase == "Running"
        return world

    # What a test looks at.

    @property
    def status(self) -> dict[str, Any]:
        assert self.job is not None
        found: dict[str, Any] = self.job.get("status") or {}
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("phase"))

    @property
    def pods(self) -> list[str]:
        return sorted(name for kind, name in self.objects if kind is Kind.POD)

    def condition(self, kind: str) -> str:
        """`True/AllReady`; empty when there is none."""
        for condition in self.status.get("conditions") or ():
            if condition["type"] == kind:
                return f"{condition['status']}/{condition['reason']}"
        return ""

    def message(self, kind: str) -> str:
        return next(str(c["message"]) for c in self.status["conditions"] if c["type"] == kind)

    def pod(self, name: str) -> dict[str, Any]:
        return self.objects[Kind.POD, name]

    def attempts(self) -> set[str]:
        return {self.pod(name)["metadata"]["labels"][names.LABEL_ATTEMPT] for name in self.pods}

    # What people do.

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        assert self.job is not None
        # A new value, as an API server gives: what was parsed before is remembered by the old one.
        self.job["spec"] = deepcopy(self.job["spec"])
        change(self.job["spec"])
        self.job["metadata"]["generation"] += 1
        self._touch_job()
        self.settle()

    def suspend(self, on: bool = True) -> None:
        self.edit(lambda spec: spec.setdefault("runPolicy", {}).update(suspend=on))

    def put(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Another client creates an object."""
        self._store(kind, body)
        self.settle()

    def remove(self, kind: Kind, name: str) -> None:
        """An object is gone, without a trace."""
        del self.objects[kind, name]
        self.settle()

    def mark_deleting(self, name: str) -> None:
        """Another client deletes a pod, which takes its time to end."""
        self.pod(name)["metadata"]["deletionTimestamp"] = timestamp(self.now)
        self.settle()

    def disrupt(self, name: str, reason: str) -> None:
        """As a server from 1.26 on takes a pod away: it says who does so, then deletes it."""
        self.pod(name)["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
        self.mark_deleting(name)

    # What kubelets and the scheduler do.

    def ready(self, *pods: str) -> None:
        for name in pods or [name for name in self.pods if not self.pod(name).get("status")]:
            running = {"name": names.CONTAINER, "ready": True, "state": {"running": {}}}
            now = {"startTime": timestamp(self.now), "podIP": "10.0.0.1"}
            self.pod(name)["status"] = {"phase": "Running", **now, "containerStatuses": [running]}
            self.settle()

    def tells(self, name: str, **told: Any) -> None:
        """A pod answers GET /progress."""
        report = parse(json.dumps({"phase": "training", "step": 5, "steps": 10, **told}).encode())
        assert report is not None
        self.reports[self.pod(name)["metadata"]["uid"]] = report
        self.settle()

    def leader_says(self, workers: int, wanted: int, without: frozenset[int] = frozenset()) -> None:
        """The leader agrees to the request for another number of workers."""
        self.leader_answers(Agreed(workers, wanted, without))

    def leader_answers(self, said: Said) -> None:
        request = leader_request(self.snapshot())
        assert request is not None, "nobody asks"
        self.leader_answer = LeaderAnswer(request.leader.uid, request.question, said)
        self.settle()

    def exits(self, name: str, code: int, message: str = "", reason: str = "") -> None:
        ended = {"exitCode": code, "finishedAt": timestamp(self.now), "message": message}
        ended["reason"] = reason or ("Error" if code else "Completed")
        container = {"name": names.CONTAINER, "ready": False, "state": {"terminated": ended}}
        phase = "Failed" if code else "Succeeded"
        self._ends_with(name, phase=phase, containerStatuses=[container])

    def fails_to_begin(self, name: str, container: str, code: int, message: str = "", reason: str = "Error") -> None:
        """One of its init containers fails."""
        ended = {"exitCode": code, "finishedAt": timestamp(self.now), "message": message, "reason": reason}
        init = {"name": container, "state": {"terminated": ended}}
        waits = {"name": names.CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}
        self._ends_with(name, phase="Failed", initContainerStatuses=[init], containerStatuses=[waits])

    def lingers(self, name: str, code: int) -> None:
        """Its training container ends, and another one of its pod runs on."""
        ended = {"exitCode": code, "finishedAt": timestamp(self.now), "reason": "Error" if code else "Completed"}
        states = {names.CONTAINER: {"terminated": ended}, "proxy": {"running": {}}}
        containers = [{"name": name, "ready": False, "state": state} for name, state in states.items()]
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(self.now)}
        self._ends_with(name, phase="Running", containerStatuses=containers, conditions=[not_ready])

    def evict(self, name: str, **condition: str) -> None:
        target = {"type": "DisruptionTarget", "status": "True", **condition}
        self._ends_with(name, phase="Failed", reason="Evicted", conditions=[target])

    def fails(self, name: str, reason: str, message: str) -> None:
        """Its kubelet ends or refuses the pod, and says why; of its containers nothing is recorded."""
        self._ends_with(name, phase="Failed", reason=reason, message=message)

    def _ends_with(self, name: str, **status: Any) -> None:
        before = self.pod(name).get("status") or {}
        kept = {"startTime": before["startTime"]} if "startTime" in before else {}
        self.pod(name)["status"] = {**kept, **status}
        self.settle()

    def waits_in_vain(self, name: str) -> None:
        """Its peers have not started in time, says its wait-for-peers init container, or the trainer."""
        pod = self.pod(name)
        if any(one["name"] == names.GATE_CONTAINER for one in pod["spec"].get("initContainers", ())):
            gate = {"name": names.GATE_CONTAINER, "state": {"terminated": {"exitCode": names.GATE_GAVE_UP}}}
            pod["status"] = {"phase": "Failed", "initContainerStatuses": [gate]}
            self.settle()
        else:
            self.exits(name, 164, '{"cause": "PeersMissing", "message": "1 peer did not start"}')

    def waits(self, name: str, reason: str, message: str) -> None:
        scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        self.pod(name)["status"] = {"phase": "Pending", "conditions": [scheduled]}
        self.settle()

    # The operator.

    def stop(self) -> None:
        self.up = False

    def start(self, config: Config | None = None) -> None:
        """A new process: it remembers nothing."""
        self.config = config or self.config
        self.up, self._deferred_since, self._held = True, None, {}
        self.settle()

    def settle(self) -> None:
        """Look until there is nothing left to do now."""
        for _ in range(HOT):
            if not self.up or self.job is None:
                return
            before = (len(self.writes), self.tries, len(self.deletes))
            self.look()
            idle = before == (len(self.writes), self.tries, len(self.deletes))
            if idle and (self._wake is None or self._wake > self.now):
                return
        raise AssertionError(f"{HOT} looks, and still something to do: {self.status}")

    def advance(self, **time: float) -> None:
        """Let time pass: whatever is due meanwhile happens in its turn."""
        end = self.now + timedelta(**time)
        while (due := self._due()) is not None and due <= end:
            self.now = max(self.now, due)
            for name in [name for name, at in self._going.items() if at <= self.now]:
                del self._going[name]
                self.objects.pop((Kind.POD, name), None)
            self.settle()
        self.now = end

    def look(self) -> Outcome:
        """One reconciliation, carried out in the order that `Outcome` lays down."""
        self.looks += 1
        snapshot, outcome = self._decide()
        if outcome.intent is not None:
            self._write(outcome.intent)
        for delete in outcome.deletes:
            self._delete(delete)
        refusals = self._create(outcome)
        job = trim_job(self.job) if self.job is not None else snapshot.job
        update = finalize_status(replace(snapshot, job=job), outcome, refusals, self.now, self.config)
        if update.status is not None:
            self._write(update.status)
        self._deferred_since = (self._deferred_since or self.now) if update.deferred else None
        self.events += update.events
        for write in outcome.status_writes:
            self._tell(write)
        looks = [at for at in (outcome.requeue_at, update.requeue_at) if at is not None]
        self._wake = min(looks, default=None)
        return outcome

    def _tell(self, write: StatusWrite) -> None:
        meta = write.body["metadata"]
        assert (write.body["apiVersion"], write.body["kind"]) == (KUEUE[write.kind], "Workload")
        held = self.objects[write.kind, meta["name"]]
        assert (meta["uid"], meta["resourceVersion"]) == (held["metadata"]["uid"], held["metadata"]["resourceVersion"])
        self.set_status(write.kind, meta["name"], write.body["status"])
        self.tries += 1

    def set_status(self, kind: Kind, name: str, status: Mapping[str, Any]) -> None:
        held = self.objects[kind, name]
        held["status"] = deepcopy(dict(status))
        held["metadata"]["resourceVersion"] = str(int(held["metadata"]["resourceVersion"]) + 1)

    def snapshot(self) -> Snapshot:
        """What the store would hold: pods by their label, the others by their name."""
        assert self.job is not None
        name = self.job["metadata"]["name"]
        bodies = [body for (kind, _), body in self.objects.items() if kind is Kind.POD]
        pods = [trim_pod(body, self._held.get(body["metadata"].get("uid", ""))) for body in bodies]
        self._held = {pod.uid: pod for pod in pods}
        service, policy = (self.objects.get((kind, name)) for kind in (Kind.SERVICE, Kind.NETWORK_POLICY))
        return Snapshot(
            job=trim_job(self.job),
            pods=tuple(pod for pod in pods if pod.job_name == name),
            service=trim_dependent(service) if service else None,
            network_policy=trim_dependent(policy) if policy else None,
            pod_groups={k: trim_dependent(self.objects[k, name]) for k in POD_GROUPS if (k, name) in self.objects},
            workload=next((trim_workload(self.objects[k, name]) for k in WORKLOADS if (k, name) in self.objects), None),
            cluster_objects={
                kind: {name: trim_cluster_object(obj) for name, obj in objects.items()}
                for kind, objects in self.cluster_objects.items()
            },
            image_volumes=self.image_volumes,
            reports=dict(self.reports),
            leader_answer=self.leader_answer,
            departed=self.departed,
            deferred_since=self._deferred_since,
            quarantined=self.quarantined,
        )

    def _decide(self) -> tuple[Snapshot, Outcome]:
        snapshot = self.snapshot()
        for _ in range(3):
            before = deepcopy(snapshot)
            outcome = reconcile(snapshot, self.now, self.config)
            assert snapshot == before, "the core changed its input"
            if not outcome.lookups:
                return snapshot, outcome
            self.lookups += len(outcome.lookups)
            gone = frozenset(name for name in outcome.lookups if (Kind.POD, name) not in self.objects)
            asked = snapshot.looked_up | {*outcome.lookups}
            snapshot = replace(snapshot, absent=snapshot.absent | gone, looked_up=asked)
        raise AssertionError(f"it keeps asking for {outcome.lookups}")

    def _write(self, status: Mapping[str, Any]) -> None:
        assert self.job is not None
        JobStatus.model_validate(dict(status))
        before = self._ends(self.status)
        after = self._ends(status)
        assert before <= after, "a terminal condition has changed back"
        assert not {"Succeeded", "Failed"} <= after, "a job has succeeded and failed"
        self.job["status"] = deepcopy(dict(status))
        self.writes.append(deepcopy(dict(status)))
        self._touch_job()

    @staticmethod
    def _ends(status: Mapping[str, Any]) -> set[str]:
        kinds = {"Succeeded", "Failed", "Finished"}
        return {c["type"] for c in status.get("conditions") or () if c["status"] == "True"} & kinds

    def _create(self, outcome: Outcome) -> tuple[Refusal, ...]:
        refusals: list[Refusal] = []
        for stage in outcome.stages:
            if not refusals:
                refusals = [refusal for create in stage if (refusal := self._try(create))]
        return tuple(refusals)

    def _try(self, create: Creation) -> Refusal | None:
        for needed in create.needs:
            answer = self.refuse(needed) if (needed.kind, needed.name) not in self.objects else None
            if answer is not None:
                code, message = answer
                reason = "Invalid" if code == 422 else "Forbidden"
                return Refusal(needed.kind, needed.name, code, reason, message, needed_by=create.name)
            if (needed.kind, needed.name) not in self.objects:
                self._store(needed.kind, needed.body)
        self.tries += 1
        if create.kind is Kind.POD:
            labels = create.body["metadata"]["labels"]
            assert labels[names.LABEL_ATTEMPT] == str(self.status["attempt"]), "no persisted intent"
            replica = (labels[names.LABEL_REPLICA_TYPE], labels[names.LABEL_REPLICA_INDEX])
            assert labels[names.LABEL_REPLICA_RESTART] == self._restarts(*replica), "no persisted intent to restart"
        held = self.objects.get((create.kind, create.name))
        if held is not None:
            holder: Pod | Dependent = trim_pod(held) if create.kind is Kind.POD else trim_dependent(held)
            return Refusal(create.kind, create.name, 409, "AlreadyExists", "already exists", holder)
        answer = self.refuse(create)
        if answer is not None:
            code, message = answer
            return Refusal(create.kind, create.name, code, "Invalid" if code == 422 else "Forbidden", message)
        self._store(create.kind, create.body)
        self.creates.append(create.name)
        return None

    def _restarts(self, role: str, index: str) -> str:
        records = self.status.get("restartRecords", ())
        return next((str(r["restarts"]) for r in records if (r["role"], str(r["index"])) == (role, index)), "0")

    def _delete(self, delete: Delete) -> None:
        self.deletes.append(delete)
        if delete.kind is Kind.JOB:
            assert self.job is not None
            assert delete.resource_version == self.job["metadata"]["resourceVersion"]
            self.job = None
            self.objects.clear()
            return
        body = self.objects.get((delete.kind, delete.name))
        if body is None or body["metadata"]["uid"] != delete.uid:
            return
        running = (body.get("status") or {}).get("phase") == "Running"
        if self.grace and running:
            body["metadata"]["deletionTimestamp"] = timestamp(self.now)
            self._going[delete.name] = self.now + self.grace
        else:
            del self.objects[delete.kind, delete.name]

    def _store(self, kind: Kind, body: Mapping[str, Any]) -> None:
        self._uids += 1
        copy = deepcopy(dict(body))
        born = {"uid": f"uid-{self._uids}", "resourceVersion": "1", "creationTimestamp": timestamp(self.now)}
        copy["metadata"] = {**copy["metadata"], **born}
        self.objects[kind, copy["metadata"]["name"]] = copy

    def _touch_job(self) -> None:
        assert self.job is not None
        metadata = self.job["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def _due(self) -> datetime | None:
        wake = (self._wake,) if self.up and self.job is not None else ()
        return min((at for at in (*wake, *self._going.values()) if at is not None), default=None)
