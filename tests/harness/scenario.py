"""Scenarios as data: jobs, how their pods end, and what people and the cluster do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.harness.actors import finished
from tests.harness.resources import Object, merged, with_meta
from tests.harness.world import Ends, World

from tfgpujob import names

NAMESPACE = "default"
When = Callable[[World], bool]
Do = Callable[[World], object]


@dataclass(frozen=True, slots=True)
class Step:
    """Once this is true of the server, that happens."""

    when: When
    do: Do


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One story. Adding one is one entry in `scenarios/`."""

    name: str
    script: tuple[Step, ...] = ()
    """In order. The first step usually applies a job. Conditions look at pods, jobs and time, never at what an
    operator may or may not have had the time to write."""
    ends: Ends = field(default_factory=dict)
    operators: tuple[str, ...] = ("operator-a",)
    forgives: Mapping[str, str] = field(default_factory=dict)
    """Parts of the state (the beginning of their paths) that may differ from the fault-free end, and why."""
    phases: Mapping[str, str] = field(default_factory=lambda: {"train": "Succeeded"})
    """status.phase of every job that is left at the end, by name: what the story comes to. Most have one job."""
    schedulable_gpus: int = 64
    missing_images: frozenset[str] = frozenset()
    """Images that don't exist yet."""
    nodes: tuple[str, ...] = ()
    """Nodes that the cluster lists; empty: there is one that it does not list."""
    stuck: frozenset[str] = frozenset()
    """Replicas that wait for their data for ever, in runs that don't end (`ends`)."""
    unused: frozenset[str] = frozenset()
    """Replicas whose GPUs do nothing."""
    isolated: bool = False
    """Each job gets a NetworkPolicy."""
    in_gangs: bool = False
    """Each job gets a pod group."""
    in_queues: bool = False
    """Jobs wait in queues of Kueue, those that name one."""
    lags: Mapping[str, float] = field(default_factory=dict)
    """Operators whose watches are that many seconds late."""
    without_faults: bool = False
    """It has no crash points: how it ends rightly depends on what an operator sees in time."""


def story(name: str, *script: Step, **more: Any) -> Scenario:
    """The scenario of these steps, with other fields by name."""
    return Scenario(name=name, script=script, **more)


# Jobs


def job(
    name: str,
    strategy: str = "MultiWorkerMirrored",
    *,
    run_policy: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    **replicas: int,
) -> Object:
    """A job as a user writes it; `worker=2` and so on are its replicas."""
    specs = {role: {"replicas": count} for role, count in replicas.items()}
    image = "example.com/train:1"
    whole: Object = {"strategy": strategy, "image": image, "replicaSpecs": specs, **(spec or {})}
    if run_policy:
        whole["runPolicy"] = dict(run_policy)
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": whole}


def foreign_pod(name: str, **labels: str) -> Object:
    containers = [{"name": "main", "image": "example.com/other:1"}]
    meta = {"name": name, "labels": labels} if labels else {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}}


def foreign_service(name: str) -> Object:
    spec = {"clusterIP": "None", "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def foreign_policy(name: str) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


def quota(**hard: str) -> Object:
    """Keyword `pods` or `gpus`."""
    keys = {"pods": "count/pods", "gpus": "requests.nvidia.com/gpu"}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "quota"},
        "spec": {"hard": {keys[key]: value for key, value in hard.items()}},
    }


# When


def at_once(_: World) -> bool:
    return True


def after(seconds: float) -> When:
    """That long after the step before it was done."""

    def when(world: World) -> bool:
        start = world.marks.setdefault(when, world.loop.time())
        if world.loop.time() == start:
            world.loop.call_later(seconds, world.changed.set)
        return world.loop.time() >= start + seconds

    return when


def created(job_name: str, count: int) -> When:
    return lambda world: len(world.pods(job_name)) >= count


def running(job_name: str, count: int) -> When:
    """That many pods of the job run, and none is on its way out."""
    return lambda world: (
        len(
            [
                pod
                for pod in world.pods(job_name)
                if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            ]
        )
        >= count
    )


def training(job_name: str) -> When:
    """A gang of this very job is complete and has begun to train."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        return obj is not None and world.runs(obj["metadata"]["uid"]) > 0

    return when


def trains_again(job_name: str) -> When:
    """A gang of this job is complete for the second time."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        return obj is not None and world.runs(obj["metadata"]["uid"]) > 1

    return when


def restarted(pod_name: str) -> When:
    """The replica runs, and not for the first time in its attempt."""

    def when(world: World) -> bool:
        pod = world.server.objects.get(("Pod", NAMESPACE, pod_name))
        if pod is None or pod["status"]["phase"] != "Running":
            return False
        return bool(pod["metadata"]["labels"][names.LABEL_REPLICA_RESTART] != "0")

    return when


def stopping(pod_name: str) -> When:
    """The pod is on its way out."""

    def when(world: World) -> bool:
        pod = world.server.objects.get(("Pod", NAMESPACE, pod_name))
        return pod is not None and "deletionTimestamp" in pod["metadata"]

    return when


def ended(job_name: str, count: int) -> When:
    return lambda world: len([pod for pod in world.pods(job_name) if finished(pod)]) >= count


def no_pods(job_name: str) -> When:
    return lambda world: not world.pods(job_name)


def gone(job_name: str) -> When:
    return lambda world: (names.KIND, NAMESPACE, job_name) not in world.server.objects


def shows(job_name: str, condition: str, status: str, reason: str = "") -> When:
    """A condition of the job: only for what every operator comes to say sooner or later."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        found = ((obj or {}).get("status") or {}).get("conditions") or ()
        return any(c["type"] == condition and c["status"] == status and reason in ("", c["reason"]) for c in found)

    return when


def tells(job_name: str) -> When:
    """The status holds the job's progress and its last checkpoint."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        return {"progress", "lastCheckpoint"} <= set((obj or {}).get("status") or ())

    return when


def told_in_place(job_name: str, times: int) -> When:
    """The status has counted this many restarts in place."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        return bool(((obj or {}).get("status") or {}).get("inPlaceRestarts", 0) >= times)

    return when


def resized(job_name: str, workers: int) -> When:
    """By the status this many workers train, no resize is in progress, and no other worker is left."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        plan = ((obj or {}).get("status") or {}).get("plan") or {}
        done = "resize" not in plan and plan.get("counts", {}).get("worker") == workers
        return done and len(world.pods(job_name)) == workers

    return when


def trains(job_name: str, workers: int) -> When:
    """By the status this many workers train together, and no resize is in progress."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        status = (obj or {}).get("status") or {}
        plan = status.get("plan") or {}
        done = "resize" not in plan and "absent" not in plan and plan.get("counts", {}).get("worker") == workers
        return done and status.get("phase") == "Running"

    return when


def trains_without(job_name: str, *indexes: int) -> When:
    """The status says that the others train on without these workers."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        status = (obj or {}).get("status") or {}
        absent = (status.get("plan") or {}).get("absent") or ()
        return tuple(absent) == indexes and status.get("phase") == "Running"

    return when


def counts(job_name: str, field: str, number: int) -> When:
    """The status counts that many workers so, sooner or later."""

    def when(world: World) -> bool:
        obj = world.server.objects.get((names.KIND, NAMESPACE, job_name))
        replicas = ((obj or {}).get("status") or {}).get("replicaStatuses") or {}
        return bool((replicas.get("worker") or {}).get(field) == number)

    return when


# Do


def apply(obj: Object) -> Do:
    return lambda world: world.server.create(obj["kind"], NAMESPACE, obj, by="user")


def edit(job_name: str, **changes: Any) -> Do:
    """Replace top-level fields of the spec; None removes one."""

    def do(world: World) -> None:
        old = world.server.get(names.KIND, NAMESPACE, job_name)
        world.server.replace(names.KIND, NAMESPACE, merged(old, spec=merged(old["spec"], **changes)), by="user")

    return do


def empty_status(job_name: str) -> Do:
    """By hand, or by a backup that is restored without it."""

    def do(world: World) -> None:
        old = world.server.get(names.KIND, NAMESPACE, job_name)
        world.server.replace(names.KIND, NAMESPACE, merged(old, status={}), status=True, by="user")

    return do


def suspend(job_name: str, on: bool) -> Do:
    def do(world: World) -> None:
        old = world.server.get(names.KIND, NAMESPACE, job_name)
        edit(job_name, runPolicy={**old["spec"].get("runPolicy", {}), "suspend": on})(world)

    return do


def delete(kind: str, name: str, propagation: str = "Background", grace: int | None = None) -> Do:
    return lambda world: world.server.delete(kind, NAMESPACE, name, propagation=propagation, grace=grace, by="user")


def release(kind: str, name: str) -> Do:
    """Take all finalizers off."""

    def do(world: World) -> None:
        obj = world.server.get(kind, NAMESPACE, name)
        world.server.replace(kind, NAMESPACE, with_meta(obj, finalizers=None), by="user")

    return do


def open_queues(on: bool) -> Do:
    """Kueue admits what waits, or nothing any more."""
    return lambda world: world.kueue.set_open(on)


def take_quota(job_name: str) -> Do:
    """Kueue evicts the job for another one."""
    return lambda world: world.kueue.evict(NAMESPACE, job_name)


def evict(name: str) -> Do:
    return lambda world: world.kubelet.evict(world.server.get("Pod", NAMESPACE, name))


def vanish(name: str) -> Do:
    """The pod object goes without a trace, as when its node is deleted."""
    return delete("Pod", name, grace=0)


def room(gpus: int) -> Do:
    """This many GPUs exist, including those in use."""

    def do(world: World) -> None:
        world.scheduler.gpus = gpus
        world.scheduler.schedule()

    return do


def lose_node(name: str) -> Do:
    return lambda world: world.lose_node(name)


def finish(name: str, code: int) -> Do:
    return lambda world: world.kubelet.finish(world.server.get("Pod", NAMESPACE, name), code)


def linger(name: str, code: int) -> Do:
    """The training container of the pod ends, and another one runs on for ever."""
    return lambda world: world.kubelet.linger(world.server.get("Pod", NAMESPACE, name), code)


def fail_init(name: str, container: str, code: int) -> Do:
    """An init container of the pod fails."""
    return lambda world: world.kubelet.fail_init(world.server.get("Pod", NAMESPACE, name), container, code)


def restart_in_place(name: str, times: int) -> Do:
    """The pods that this one leads have restarted processes so often in all."""
    return lambda world: world.restart_in_place(name, times)


def refuse(rule: Callable[[str, str, Mapping[str, Any]], Any]) -> Do:
    """Add an admission rule."""
    return lambda world: world.server.rules.append(rule)


def nothing(_: World) -> None:
    """A step that only waits."""


def refuse_no_more(world: World) -> None:
    world.server.rules.clear()


def kill(identity: str) -> Do:
    return lambda world: world.operators[identity].kill()


def lose(identity: str) -> Do:
    """Its node is gone: the process dies, and is not restarted."""

    def do(world: World) -> None:
        world.lost.add(identity)
        world.operators[identity].kill()

    return do


def stop(identity: str) -> Do:
    """SIGTERM, for good."""

    def do(world: World) -> None:
        process = world.operators[identity]
        if process.alive:
            world.loop.create_task(process.stop())

    return do


def start(identity: str) -> Do:
    return lambda world: world.spawn(identity)


def then(*does: Do) -> Do:
    def do(world: World) -> None:
        for one in does:
            one(world)

    return do
