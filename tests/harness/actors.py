"""Who else acts in a cluster: scheduler, kubelet, garbage collector. Stand-ins, each a set of steps.

A step does what the real component does to the API server, and nothing else. With `watch`, an actor also
reacts by itself to the server's changes, after a delay; without, a test calls the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tests.harness.apiserver import NAMESPACE_FINALIZER, ApiServer
from tests.harness.history import Change
from tests.harness.resources import GPU, Object, merged, with_meta

from tfgpujob import names

NODE = "node-1"
NAME = "default-scheduler"
GC_DELAY = 0.3
GATE_PAUSE = 1.0
PULL_PAUSE = 10.0
_UNSCHEDULABLE = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"0/1 nodes are available: 1 Insufficient {GPU}.",
    }
]


class GarbageCollector:
    """Deletes what has lost all its owners, and works off the foregroundDeletion and orphan finalizers.

    It does the namespace controller's work too: it empties a namespace that is being deleted.
    """

    def __init__(self, server: ApiServer, delay: float = GC_DELAY) -> None:
        self.server = server
        self.delay = delay
        self._due = False

    def watch(self) -> None:
        """React to every change of ownership, `delay` seconds later."""
        self.server.observers.append(self._notice)

    def _notice(self, change: Change) -> None:
        deleting = "deletionTimestamp" in change.object["metadata"]
        orphan_made = change.type == "ADDED" and "ownerReferences" in change.object["metadata"]
        if (change.type == "DELETED" or deleting or orphan_made) and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(self.delay, self._run)

    def _run(self) -> None:
        self._due = False
        self.collect()

    def collect(self) -> None:
        """One pass over all objects."""
        for obj in list(self.server.objects.values()):
            finalizers = obj["metadata"].get("finalizers") or ()
            if "orphan" in finalizers:
                self._orphan_dependents(obj)
                self._drop_finalizer(obj, "orphan")
            elif "foregroundDeletion" in finalizers:
                self._delete_dependents(obj)
            elif NAMESPACE_FINALIZER in finalizers:
                self._empty_namespace(obj)
        alive = {obj["metadata"]["uid"] for obj in self.server.objects.values()}
        for obj in list(self.server.objects.values()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in alive for owner in owners):
                self._delete(obj, "Background")

    def _empty_namespace(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        inside = [obj for key, obj in self.server.objects.items() if key[1] == name]
        for obj in inside:
            if "deletionTimestamp" not in obj["metadata"]:
                self._delete(obj, "Background")
        if not inside:
            self._drop_finalizer(namespace, NAMESPACE_FINALIZER)

    def _dependents(self, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        return [
            obj
            for obj in self.server.objects.values()
            if any(ref["uid"] == uid for ref in obj["metadata"].get("ownerReferences") or ())
        ]

    def _orphan_dependents(self, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for obj in self._dependents(owner):
            left = [ref for ref in obj["metadata"]["ownerReferences"] if ref["uid"] != uid]
            namespace = obj["metadata"]["namespace"]
            self.server.replace(obj["kind"], namespace, with_meta(obj, ownerReferences=left or None), by="gc")

    def _delete_dependents(self, owner: Object) -> None:
        dependents = self._dependents(owner)
        uid = owner["metadata"]["uid"]
        for obj in dependents:
            if "deletionTimestamp" not in obj["metadata"]:
                self._delete(obj, "Background")
        blocking = [
            obj
            for obj in self._dependents(owner)
            if any(r["uid"] == uid and r.get("blockOwnerDeletion") for r in obj["metadata"]["ownerReferences"])
        ]
        if not blocking:
            self._drop_finalizer(owner, "foregroundDeletion")

    def _drop_finalizer(self, obj: Object, finalizer: str) -> None:
        meta = obj["metadata"]
        left = [f for f in meta["finalizers"] if f != finalizer]
        namespace = meta.get("namespace", "")
        self.server.replace(obj["kind"], namespace, with_meta(obj, finalizers=left or None), by="gc")

    def _delete(self, obj: Object, propagation: str) -> None:
        meta = obj["metadata"]
        namespace = meta.get("namespace", "")
        self.server.delete(obj["kind"], namespace, meta["name"], uid=meta["uid"], propagation=propagation, by="gc")


class Scheduler:
    """Binds pods to the nodes by their replica's index, while GPUs are left; where they are not, pods that are told to
    stop for one of a higher priority are those of the lowest that began last."""

    def __init__(self, server: ApiServer, gpus: int = 64, delay: float = 0.05) -> None:
        self.server = server
        self.gpus = gpus
        self.delay = delay
        self.nodes = [NODE]
        self.priorities: Mapping[str, int] = {}
        """By priority class. All other pods have 0."""

    def watch(self) -> None:
        self.server.observers.append(self._notice)

    def _notice(self, change: Change) -> None:
        if change.kind in ("Pod", "PodGroup") and change.type in ("ADDED", "DELETED"):
            asyncio.get_running_loop().call_later(self.delay, self.schedule)

    def schedule(self) -> None:
        """Place every pod that fits; set the reason in the status of the others."""
        pods = sorted(self.server.select("Pod"), key=self._priority, reverse=True)
        free = self.gpus - sum(_gpus(pod) for pod in pods if pod["spec"].get("nodeName") and not finished(pod))
        for pod in pods:
            meta = pod["metadata"]
            if pod["spec"].get("nodeName") or "deletionTimestamp" in meta:
                continue
            if not self._schedules(pod):
                continue
            if _gpus(pod) <= free:
                free -= _gpus(pod)
                self.server.bind(meta["namespace"], meta["name"], self._node_for(pod))
            else:
                if self.priorities:
                    self._preempt(pod, _gpus(pod) - free)
                # Told once: each that comes has all that wait looked at again.
                if (pod.get("status") or {}).get("conditions") != _UNSCHEDULABLE:
                    write_status(self.server, pod, conditions=_UNSCHEDULABLE)

    def _preempt(self, pod: Object, missing: int) -> None:
        """Stop as many pods of a lower priority as it takes, unless they are on their way out already."""
        bound = [p for p in self.server.select("Pod") if p["spec"].get("nodeName") and not finished(p)]
        leaving = sum(_gpus(p) for p in bound if "deletionTimestamp" in p["metadata"])
        lower = [
            p for p in bound if self._priority(p) < self._priority(pod) and "deletionTimestamp" not in p["metadata"]
        ]
        lower.sort(key=lambda p: (-self._priority(p), p["status"].get("startTime", "~")))
        while leaving < missing <= leaving + sum(map(_gpus, lower)):
            victim = lower.pop()
            leaving += _gpus(victim)
            meta = victim["metadata"]
            self.server.delete("Pod", meta["namespace"], meta["name"], uid=meta["uid"], by="scheduler")

    def _priority(self, pod: Object) -> int:
        return self.priorities.get(pod["spec"].get("priorityClassName", ""), 0)

    def _schedules(self, pod: Object) -> bool:
        """The default scheduler's pods; as Volcano those of a pod group that is there and has as many as it needs."""
        scheduler = pod["spec"].get("schedulerName", NAME)
        if scheduler != "volcano":
            return bool(scheduler == NAME)
        namespace, group = pod["metadata"]["namespace"], _group_of(pod)
        found = self.server.objects.get(("PodGroup", namespace, group))
        members = [p for p in self.server.select("Pod", namespace) if _group_of(p) == group and not finished(p)]
        return found is not None and len(members) >= found["spec"]["minMember"]

    def _node_for(self, pod: Object) -> str:
        index = (pod["metadata"].get("labels") or {}).get(names.LABEL_REPLICA_INDEX, "0")
        return self.nodes[int(index) % len(self.nodes)]


def _group_of(pod: Object) -> str:
    name: str = (pod["metadata"].get("annotations") or {}).get("scheduling.k8s.io/group-name", "")
    return name


class Kubelet:
    """Runs pods that have a node: makes them ready, ends them, stops them when they are deleted."""

    def __init__(self, server: ApiServer, start: float = 0.5, stop: float = 1.0) -> None:
        self.server = server
        self.start_delay = start
        self.stop_delay = stop
        self.dead = False
        """The node is lost: nothing happens to its pods any more."""
        self.lost: set[str] = set()
        """The same for some nodes only."""
        self.missing_images: set[str] = set()
        """Images that don't exist yet."""
        self.on_ready: Callable[[Object], None] = lambda _: None
        self.last_words: Callable[[Object], str] = lambda _: ""
        """What a pod leaves in its termination message."""

    def watch(self) -> None:
        self.server.observers.append(self._notice)

    def _notice(self, change: Change) -> None:
        if change.kind != "Pod" or change.type == "DELETED" or not change.object["spec"].get("nodeName"):
            return
        loop = asyncio.get_running_loop()
        uid = change.object["metadata"]["uid"]
        if "deletionTimestamp" in change.object["metadata"]:
            if change.old is None or "deletionTimestamp" not in change.old["metadata"]:
                loop.call_later(self.stop_delay, self._if_alive, uid, self.stop)
        elif change.verb == "bind":
            began = loop.time() + self.start_delay
            loop.call_at(began, self._if_alive, uid, lambda pod: self._begin(pod, began))

    def _begin(self, pod: Object, began: float) -> None:
        """Pull the images, and run the wait-for-peers init container until it ends; then the containers."""
        gate = next((c for c in pod["spec"].get("initContainers") or () if c["name"] == names.GATE_CONTAINER), None)
        loop, uid = asyncio.get_running_loop(), pod["metadata"]["uid"]
        if any(container["image"] in self.missing_images for container in pod["spec"]["containers"]):
            if "containerStatuses" not in (pod.get("status") or {}):
                self.waiting(pod, "ImagePullBackOff", "Back-off pulling image")
            loop.call_later(PULL_PAUSE, self._if_alive, uid, lambda pod: self._begin(pod, loop.time()))
        elif gate is None or self._resolve(pod, gate):
            self.start(pod)
        elif loop.time() - began >= float(_env(gate, "TFGPU_GATE_TIMEOUT_SECONDS")):
            ended = {"terminated": {"exitCode": names.GATE_GAVE_UP, "reason": "Error"}}
            gates = [{"name": names.GATE_CONTAINER, "state": ended}]
            write_status(self.server, pod, phase="Failed", initContainerStatuses=gates)
        else:
            loop.call_later(GATE_PAUSE, self._if_alive, uid, lambda pod: self._begin(pod, began))

    def _resolve(self, pod: Object, gate: Object) -> bool:
        """Whether all peers have an address: DNS, roughly."""
        peers = [host.partition(".")[0] for host in _env(gate, "TFGPU_GATE_PEERS").split(",")]
        found = (self.server.objects.get(("Pod", pod["metadata"]["namespace"], peer)) for peer in peers)
        return all(peer is not None and peer["spec"].get("nodeName") for peer in found)

    def _if_alive(self, uid: str, step: Callable[[Object], None]) -> None:
        pod = self.find(uid)
        if pod is not None and not self.cut_off(pod):
            step(pod)

    def cut_off(self, pod: Object) -> bool:
        """Nothing happens to this pod any more."""
        return self.dead or pod["spec"].get("nodeName") in self.lost

    def find(self, uid: str) -> Object | None:
        """The pod of that uid, as it is now."""
        return next((pod for pod in self.server.select("Pod") if pod["metadata"]["uid"] == uid), None)

    def start(self, pod: Object) -> None:
        """All containers run, and are ready."""
        if finished(pod) or "deletionTimestamp" in pod["metadata"]:
            return
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        taken = self.server.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        self._set(pod, "Running", running, ready=True, podIP=pod["metadata"]["name"], startTime=taken)
        self.on_ready(pod)

    def finish(self, pod: Object, exit_code: int, message: str = "") -> None:
        """The containers end with this code. `message`: instead of the pod's last words."""
        ended: dict[str, Any] = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}
        ended |= {
            "finishedAt": self.server.clock().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "message": message or self.last_words(pod),
        }
        if exit_code > 128:
            ended["signal"] = exit_code - 128
        self._set(pod, "Failed" if exit_code else "Succeeded", {"terminated": ended}, ready=False)

    def fail_init(self, pod: Object, name: str, exit_code: int) -> None:
        """An init container fails, and its pod with it: the others never begin."""
        ended = {"exitCode": exit_code, "reason": "Error", "message": f"{name} has failed"}
        ended["finishedAt"] = self.server.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        waits = {"waiting": {"reason": "PodInitializing"}}
        containers = [{"name": c["name"], "ready": False, "state": waits} for c in pod["spec"]["containers"]]
        inits = [{"name": name, "ready": False, "state": {"terminated": ended}}]
        write_status(self.server, pod, phase="Failed", initContainerStatuses=inits, containerStatuses=containers)

    def linger(self, pod: Object, exit_code: int) -> None:
        """The training container ends with this code. Another one of the pod never does."""
        ended = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}
        ended["finishedAt"] = self.server.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        containers = [
            {**status, "ready": False, "state": {"terminated": ended}} if status["name"] == names.CONTAINER else status
            for status in pod["status"]["containerStatuses"]
        ]
        write_status(self.server, pod, phase="Running", containerStatuses=containers)

    def evict(self, pod: Object) -> None:
        """Node pressure: the pod fails with a reason and without container states."""
        write_status(self.server, pod, phase="Failed", reason="Evicted", message="The node was low on memory.")

    def waiting(self, pod: Object, reason: str, message: str) -> None:
        """The container cannot start yet: ImagePullBackOff and its like."""
        self._set(pod, "Pending", {"waiting": {"reason": reason, "message": message}}, ready=False)

    def stop(self, pod: Object) -> None:
        """A deleted pod: its containers get SIGTERM, and when they have ended it goes."""
        if not finished(pod) and (pod.get("status") or {}).get("phase") == "Running":
            self.finish(pod, 143)
        self.remove(pod)

    def remove(self, pod: Object) -> None:
        """Grace period 0: the object goes."""
        meta = pod["metadata"]
        self.server.delete("Pod", meta["namespace"], meta["name"], uid=meta["uid"], grace=0, by="kubelet")

    def _set(self, pod: Object, phase: str, state: Mapping[str, Any], *, ready: bool, **more: str) -> None:
        containers = [
            {"name": container["name"], "ready": ready, "restartCount": 0, "state": dict(state)}
            for container in pod["spec"]["containers"]
        ]
        conditions = [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}]
        write_status(self.server, pod, phase=phase, containerStatuses=containers, conditions=conditions, **more)


def write_status(server: ApiServer, pod: Object, **fields: Any) -> None:
    """PUT on the pod's /status over whatever version it has now."""
    meta = pod["metadata"]
    now = server.get("Pod", meta["namespace"], meta["name"])
    status = merged(now.get("status") or {}, **fields)
    server.replace("Pod", meta["namespace"], merged(now, status=status), status=True, by="kubelet")


def finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _env(container: Mapping[str, Any], name: str) -> str:
    return str(next(entry["value"] for entry in container["env"] if entry["name"] == name))


def _gpus(pod: Mapping[str, Any]) -> int:
    total = 0
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        total += int((resources.get("limits") or {}).get(GPU, 0))
    return total
