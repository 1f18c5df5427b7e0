"""A world that is controlled step by step, and must be in order when it has come to rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tests.harness import scenario
from tests.harness.actors import GC_DELAY, finished
from tests.harness.faults import MAX_TRAVEL, Fault, Injector
from tests.harness.feed import Blindfold, Sight
from tests.harness.memory_cluster import SLOW_BY
from tests.harness.process import upgraded
from tests.harness.resources import Object, controller, merged
from tests.harness.scenario import NAMESPACE, foreign_pod, foreign_service, job, quota
from tests.harness.scenarios.refusals import forbid
from tests.harness.vtime import VirtualLoop
from tests.harness.world import Complaints, World

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.kube.errors import ApiError

PATIENCE = 3000.0
CALM = 50.0
WORK = 40.0
"""Seconds that a gang trains: long enough for something to happen to it meanwhile."""
GPUS = 64
IMAGES = ("example.com/train:1", "example.com/train:2")
POLICIES = ("Background", "Foreground", "Orphan")
_PREDICT = {"entrypoint": "digits", "mode": "predict", "globalBatchSize": 8, "predict": {"model": "/models/digits"}}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "multi-worker": {"worker": 2},
    "parameter-server": {"strategy": "ParameterServer", "chief": 1, "worker": 1, "ps": 1},
    "mirrored": {"strategy": "Mirrored", "worker": 1, "evaluator": 1},
    "expiring": {"worker": 1, "run_policy": {"ttlSecondsAfterFinished": 30}},
    "hasty": {"worker": 2, "run_policy": {"activeDeadlineSeconds": 40, "startDeadlineSeconds": 30}},
    "fragile": {"worker": 2, "run_policy": {"backoffLimit": 1, "startPolicy": "Fail"}},
    "sleeping": {"worker": 2, "run_policy": {"suspend": True}},
    "broken": {"worker": 2, "ps": 1},
    "impatient": {"worker": 2, "run_policy": {"schedulingPolicy": {"scheduleTimeoutSeconds": 20}}},
    "watched": {"strategy": "ParameterServer", "chief": 1, "worker": 2, "ps": 1, "evaluator": 1},
    "elastic": {
        "run_policy": {"recovery": "InPlace", "elasticPolicy": {"shrinkAfterSeconds": 10, "growAfterSeconds": 20}},
        "spec": {
            "replicaSpecs": {"worker": {"replicas": 4, "minReplicas": 1, "maxReplicas": 6}},
            "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1},
        },
    },
    "predicting": {"strategy": "Custom", "worker": 3, "spec": {"trainer": _PREDICT}},
    "sharing-parts": {
        "strategy": "Custom",
        "run_policy": {"elasticPolicy": {"shrinkAfterSeconds": 10}},
        "spec": {
            "replicaSpecs": {"worker": {"replicas": 4, "minReplicas": 1, "maxReplicas": 6}},
            "trainer": {**_PREDICT, "output": {"store": "s3://a/b"}},
        },
    },
}
SPEC_EDITS: Mapping[str, Mapping[str, Any]] = {
    "five workers": {"replicaSpecs": {"worker": {"replicas": 5}}},
    "three workers": {"replicaSpecs": {"worker": {"replicas": 3}}},
    "two workers": {"replicaSpecs": {"worker": {"replicas": 2}}},
    "other image": {"image": "example.com/train:2"},
    "suspend": {"runPolicy": {"suspend": True}},
    "resume": {"runPolicy": {"suspend": False}},
    "nonsense": {"image": "", "strategy": "MultiWorkerMirrored", "replicaSpecs": {"ps": {"replicas": 1}}},
    "cleanup": {"runPolicy": {"cleanPodPolicy": "All"}},
}


class Story:
    """One world on a loop of its own, driven from outside."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.world = self.loop.run_until_complete(self._begin())
        self._complaints = Complaints(self.world).attach()

    async def _begin(self) -> World:
        world = World({}, Injector(), Blindfold())
        world.work = WORK
        world.spawn("operator-a")
        await asyncio.sleep(1)
        return world

    def act(self, what: str, *details: Any) -> None:
        """One act. What is not possible as things stand (no such pod, name taken) is no act at all."""
        self.loop.run_until_complete(self._act(what, details))

    async def _act(self, what: str, details: tuple[Any, ...]) -> None:
        with suppress(ApiError):
            await getattr(self, f"_{what}")(*details)

    async def _create(self, name: str, shape: str) -> None:
        scenario.apply(job(name, **SHAPES[shape]))(self.world)

    async def _edit(self, name: str, edit: str) -> None:
        old = self.world.server.get(names.KIND, NAMESPACE, name)
        changes = dict(SPEC_EDITS[edit])
        if "runPolicy" in changes:
            changes["runPolicy"] = {**old["spec"].get("runPolicy", {}), **changes["runPolicy"]}
        if "worker" in changes.get("replicaSpecs", {}):
            before = old["spec"]["replicaSpecs"].get("worker", {})
            bounds = {key: before[key] for key in ("minReplicas", "maxReplicas") if key in before}
            changes["replicaSpecs"] = {"worker": {**bounds, **changes["replicaSpecs"]["worker"]}}
        self.world.server.replace(names.KIND, NAMESPACE, merged(old, spec=merged(old["spec"], **changes)), by="user")

    async def _delete(self, name: str, policy: str) -> None:
        self.world.server.delete(names.KIND, NAMESPACE, name, propagation=policy, by="user")

    async def _pod(self, number: int, how: str) -> None:
        pods = [p for p in self.world.server.select("Pod") if p["metadata"].get("labels") and controller(p)]
        if not pods:
            return
        pod = pods[number % len(pods)]
        if how == "vanish":
            scenario.vanish(pod["metadata"]["name"])(self.world)
        elif how == "drain":
            scenario.delete("Pod", pod["metadata"]["name"])(self.world)
        elif pod["status"]["phase"] == "Running":
            if how == "evict":
                self.world.kubelet.evict(pod)
            else:
                self.world.kubelet.finish(pod, int(how.removeprefix("exit ")))

    async def _quota(self, pods: int | None) -> None:
        with suppress(ApiError):
            self.world.server.delete("ResourceQuota", NAMESPACE, "quota", by="user")
        if pods is not None:
            scenario.apply(quota(pods=str(pods)))(self.world)

    async def _room(self, gpus: int) -> None:
        """Capacity of this many GPUs for pods without a node. Pods with one keep theirs."""
        scenario.room(gpus)(self.world)

    async def _image(self, missing: bool) -> None:
        self.world.kubelet.missing_images = set(IMAGES) if missing else set()

    async def _foreign(self, kind: str, name: str) -> None:
        pods = {
            "Pod": foreign_pod(f"{name}-worker-1"),
            "Evaluator": foreign_pod(f"{name}-evaluator-0", **{names.LABEL_JOB_NAME: name}),
        }
        scenario.apply(pods.get(kind) or foreign_service(name))(self.world)

    async def _forbid(self, name: str, replica: str) -> None:
        scenario.refuse(forbid(f"{name}-{replica}"))(self.world)

    async def _heal(self) -> None:
        self._clear_the_way()

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _clock(self, seconds: float) -> None:
        for process in self.world.operators.values():
            process.skew += timedelta(seconds=seconds)

    async def _operator(self, how: str) -> None:
        if how == "upgrade":
            self.world.config = upgraded()
        if how == "second":
            if "operator-b" not in self.world.operators:
                self.world.spawn("operator-b")
            return
        process = self.world.operators["operator-a"]
        if not process.alive:
            return
        if how == "stop":
            await process.stop()
            self.world.spawn("operator-a")
        else:
            process.kill()

    async def _read(self, fault: str, reads: int) -> None:
        self._slower(SLOW_BY if fault == Fault.SLOW else 0.0)
        self.world.injector.read_strikes[len(self.world.injector.reads) + reads] = Fault(fault)

    async def _outage(self, seconds: float) -> None:
        """No API server answers, and no watch hears anything."""
        until = self.world.injector.outage_until = self.loop.time() + seconds
        for process in self.world.operators.values():
            process.feed.held_until = max(process.feed.held_until, until)

    async def _controllers(self, seconds: float) -> None:
        """The garbage collector and the quota controller are behind."""
        self.world.collector.delay = max(GC_DELAY, seconds)
        self.world.server.quota_delay = seconds

    async def _latency(self, seed: int) -> None:
        self._slower(MAX_TRAVEL)
        self.world.injector.chance = random.Random(seed)

    def _slower(self, seconds: float) -> None:
        self.world.promises.truth.flight = max(self.world.promises.truth.flight, 1.0 + 2 * seconds)

    async def _write(self, fault: str, writes: int) -> None:
        self._slower(SLOW_BY if fault == Fault.SLOW else 0.0)
        self.world.injector.strikes[len(self.world.injector.writes) + writes] = Fault(fault)

    async def _event(self, sight: str, events: int) -> None:
        self.world.blindfold.strikes[self.world.blindfold.seen + events] = Sight(sight)

    def end(self) -> list[str]:
        """Take all obstacles away, let the world come to rest, and say what is not as it should be."""
        try:
            problems = self.loop.run_until_complete(self._end())
            return problems + self.world.promises.broken + self.world.complaints
        finally:
            self.close()

    def close(self) -> None:
        self._complaints.detach()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
        asyncio.set_event_loop(None)

    async def _end(self) -> list[str]:
        self._clear_the_way()
        server, world = self.world.server, self.world
        deadline = self.loop.time() + PATIENCE
        while self.loop.time() < deadline:
            await asyncio.sleep(2)
            paused = any(process.cluster.paused_until > self.loop.time() for process in world.operators.values())
            if self.loop.time() - world.last_change >= CALM and not paused:
                unsettled = [line for obj in server.select(names.KIND) for line in self._unsettled(obj)]
                unsettled += world.promises.orphans()
                if not unsettled:
                    return await self._restart_writes_nothing()
        return [f"converges: {line}" for line in unsettled] or ["converges: it never comes to rest"]

    def _clear_the_way(self) -> None:
        world = self.world
        world.injector.strikes.clear()
        world.injector.read_strikes.clear()
        world.collector.delay, world.server.quota_delay = GC_DELAY, 0.0
        world.injector.outage_until, world.injector.chance = 0.0, None
        world.blindfold.strikes.clear()
        world.kubelet.missing_images.clear()
        world.server.rules.clear()
        world.scheduler.gpus = GPUS
        world.scheduler.schedule()
        for kind in ("ResourceQuota", "Pod", "Service"):
            for obj in world.server.select(kind, NAMESPACE):
                if controller(obj) is None:
                    with suppress(ApiError):
                        world.server.delete(kind, NAMESPACE, obj["metadata"]["name"], by="user")

    def _unsettled(self, obj: Object) -> list[str]:
        """Spec stable ⇒ the state reaches it."""
        meta, status = obj["metadata"], obj.get("status") or {}
        name = meta["name"]
        if "deletionTimestamp" in meta:
            return [f"{name} is deleted and still there"]
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        pods = [p for p in self.world.pods(name) if (controller(p) or {}).get("uid") == meta["uid"]]
        alive = [p for p in pods if not finished(p)]
        if conditions.get("Finished", {}).get("status") == "True":
            if "ttlSecondsAfterFinished" in (obj["spec"].get("runPolicy") or {}) and isinstance(
                parse_job(obj), JobSpec
            ):
                return [f"{name} is finished and has not expired"]
            return [f"{name} is finished and pods still run"] if alive else []
        if conditions.get("Accepted", {}).get("status") == "False":
            expected = ("InvalidSpec", "ImmutableFieldChanged")
            reason = conditions["Accepted"]["reason"]
            if reason not in expected:
                return [f"{name} is not accepted: {reason}, and nothing stands in its way"]
            starting = [p for p in alive if p["status"]["phase"] == "Pending"]
            return [f"{name} is not accepted, and {len(starting)} of its pods are on their way"] if starting else []
        if (obj["spec"].get("runPolicy") or {}).get("suspend"):
            suspended = conditions.get("Suspended", {}).get("status") == "True" and not pods
            return [] if suspended else [f"{name} is to be suspended: {status.get('phase')}, {len(pods)} pods"]
        counts = (status.get("plan") or {}).get("counts") or {}
        missing = {(role, str(index)) for role, count in counts.items() for index in range(count)}
        missing -= {_replica(p) for p in pods if p["status"]["phase"] in ("Running", "Succeeded")}
        whole = counts and all(role == "evaluator" for role, _ in missing)
        if status.get("phase") == "Running" and whole:
            return [f"{name} still tries to create something"] if "notBefore" in status.get("retry", {}) else []
        return [f"{name} is {status.get('phase')} with {len(alive)} of {counts} pods"]

    async def _restart_writes_nothing(self) -> list[str]:
        before = len(self.world.injector.writes)
        for process in list(self.world.operators.values()):
            process.kill()
        await asyncio.sleep(CALM)
        written = [write for write in self.world.injector.writes[before:] if write.kind != "Lease"]
        return [f"idle_writes_nothing: {write} after a restart" for write in written]


def _replica(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels[names.LABEL_REPLICA_TYPE], labels[names.LABEL_REPLICA_INDEX]
