"""The promises of the design, checked at every revision of the server. A broken one is a line of text.

Each check is a method whose name is the promise; `broken` lists what was seen, with that name in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from tests.harness.apiserver import ApiServer
from tests.harness.canonical import tf_config
from tests.harness.history import Change
from tests.harness.memory_cluster import LATE_MARK
from tests.harness.resources import Object, controller

from tfgpujob import names

FLIGHT = 1.0
"""Seconds within which a create that was licensed when it left may arrive."""
OPERATOR = "operator"
FORCE_AFTER = 60.0
"""forceDeleteAfterSeconds, by default."""
PROGRESS_EVERY = 15.0
"""Seconds: the least that can be set."""
PROGRESS_WRITES = 4
DELETES = ("delete", "delete by name")
_TERMINAL = ("Succeeded", "Failed", "Finished")


class Promises:
    """Watches a server from its first revision on. Operators sign their requests with a name `operator…`."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.broken: list[str] = []
        self.checked = 0
        self.strict_lists = True
        """Lists are quorum reads, as they are on a real server. Where they are not, generations may meet."""
        self._gone: dict[str, float] = {}
        self._made: dict[str, float] = {}
        self._due: dict[str, str] = {}
        self._renewed_at = 0.0
        self._stalled: set[str] = set()
        self._told: dict[str, list[float]] = {}
        self._real_failures: dict[str, set[str]] = {}
        self._real_losses: dict[str, set[str]] = {}
        self._real_successes: set[tuple[str, str, str]] = set()
        server.observers.append(self.check)

    def check(self, change: Change) -> None:
        self.checked += 1
        self._note_truth(change)
        for promise in self._promises(change):
            for problem in promise:
                self.broken.append(f"{problem} [revision {change.revision}: {change.verb} by {change.by}]")

    def _promises(self, change: Change) -> Iterator[Iterator[str]]:
        if change.kind == "Pod":
            yield self.one_object_per_replica(change)
            yield self.addresses_agree(change)
        if change.kind == names.KIND and change.type == "MODIFIED":
            yield self.terminal_is_final(change)
            yield self.generation_is_observed(change)
            yield self.outcome_is_true(change)
            yield self.failures_are_counted_once(change)
            yield self.stalls_are_real(change)
            yield self.progress_is_seldom(change)
        if change.kind == "Lease" and change.type == "MODIFIED" and not change.by.endswith(LATE_MARK):
            yield self.one_leader(change)
        if change.by.startswith(OPERATOR) and change.kind in ("Pod", "Service", names.KIND):
            yield self.touches_only_its_own(change)
            yield self.deletes_carry_the_uid(change)
            if not change.by.endswith(LATE_MARK):
                yield self.nothing_for_a_job_that_goes(change)
                yield self.creates_are_licensed(change)
                yield self.deletes_are_licensed(change)
                yield self.force_is_the_last_resort(change)

    def one_object_per_replica(self, change: Change) -> Iterator[str]:
        """Never two pod objects for one (job uid, role, index)."""
        if change.type != "ADDED":
            return
        replica = _replica(change.object)
        twins = [p for p in self.server.select("Pod") if replica[0] and _replica(p) == replica]
        if len(twins) > 1:
            yield f"one_object_per_replica: {[p['metadata']['name'] for p in twins]} are both {replica[1:]}"

    def addresses_agree(self, change: Change) -> Iterator[str]:
        """In an attempt, all tasks agree on every address that they both know."""
        if change.type != "ADDED":
            return
        mine = _addresses(change.object)
        for other in self.server.select("Pod", change.object["metadata"]["namespace"]):
            if _attempt_of(other) != _attempt_of(change.object):
                continue
            theirs = _addresses(other)
            if any(mine[task] != theirs[task] for task in mine.keys() & theirs.keys()):
                yield f"addresses_agree: {change.object['metadata']['name']} and {other['metadata']['name']}"

    def terminal_is_final(self, change: Change) -> Iterator[str]:
        """Terminal conditions exclude each other and never change back."""
        assert change.old is not None
        before, now = _conditions(change.old), _conditions(change.object)
        if now.get("Succeeded") == "True" and now.get("Failed") == "True":
            yield "terminal_is_final: Succeeded and Failed are both True"
        for condition in _TERMINAL:
            if before.get(condition) == "True" and now.get(condition) != "True":
                yield f"terminal_is_final: {condition} changed back"
        one = now.get("Succeeded") == "True" or now.get("Failed") == "True"
        if one != (now.get("Finished") == "True"):
            yield "terminal_is_final: Finished is not Succeeded or Failed"
        if before.get("Finished") == "True" and _terminal_details(change.old) != _terminal_details(change.object):
            yield "terminal_is_final: a terminal condition was written again"

    def generation_is_observed(self, change: Change) -> Iterator[str]:
        """observedGeneration never runs ahead, nor back."""
        assert change.old is not None
        before = (change.old.get("status") or {}).get("observedGeneration", 0)
        now = (change.object.get("status") or {}).get("observedGeneration", 0)
        if now > change.object["metadata"]["generation"] or now < before:
            yield f"generation_is_observed: {before} → {now}"

    def outcome_is_true(self, change: Change) -> Iterator[str]:
        """Succeeded is said only when a deciding replica did exit 0; ReplicaFailed only when one did not."""
        assert change.old is not None
        before, now = _conditions(change.old), _conditions(change.object)
        uid = change.object["metadata"]["uid"]
        if now.get("Succeeded") == "True" and before.get("Succeeded") != "True":
            counts = change.object["status"].get("plan", {}).get("counts", {})
            decider = "chief" if counts.get("chief") else "worker"
            if (uid, decider, "0") not in self._real_successes:
                yield f"outcome_is_true: Succeeded, but {decider} 0 never exited 0"
        reason = _reason(change.object, "Failed")
        if reason == "ReplicaFailed" and not self._real_failures.get(uid):
            yield "outcome_is_true: ReplicaFailed, but none failed"

    def failures_are_counted_once(self, change: Change) -> Iterator[str]:
        """`restarts` and `disruptions` never exceed the attempts that really failed or lost a pod.

        Of a job whose replicas start again on their own, it is the pods that count.
        """
        uid, status = change.object["metadata"]["uid"], change.object.get("status") or {}
        failed, lost = self._real_failures.get(uid, set()), self._real_losses.get(uid, set())
        if status.get("restarts", 0) > len(failed):
            yield f"failures_are_counted_once: restarts {status['restarts']}, really failed {sorted(failed)}"
        if status.get("disruptions", 0) > len(lost):
            yield f"failures_are_counted_once: disruptions {status['disruptions']}, really lost {sorted(lost)}"
        assert change.old is not None
        for field in ("restarts", "disruptions"):
            if status.get(field, 0) < (change.old.get("status") or {}).get(field, 0):
                yield f"failures_are_counted_once: {field} went down"

    def stalls_are_real(self, change: Change) -> Iterator[str]:
        """Stalled is said only of a job whose training stood still."""
        if (
            _conditions(change.object).get("Stalled") == "True"
            and change.object["metadata"]["uid"] not in self._stalled
        ):
            yield "stalls_are_real: the training got on"

    def progress_is_seldom(self, change: Change) -> Iterator[str]:
        """How far a job is costs at most one write an interval; one that was held up may come with the next."""
        assert change.old is not None
        now = _told_at(change.object)
        if now and now != _told_at(change.old):
            since = self._now() - PROGRESS_WRITES * PROGRESS_EVERY
            told = [at for at in self._told.get(change.object["metadata"]["uid"], []) if at > since]
            self._told[change.object["metadata"]["uid"]] = [*told, self._now()]
            if len(told) >= PROGRESS_WRITES:
                yield f"progress_is_seldom: {len(told) + 1} writes since {since:.0f}"

    def stood_still(self, job_uid: str, attempt: str) -> None:
        """The world says that this attempt does not get on: to restart it is no invention."""
        self._stalled.add(job_uid)
        self._real_failures.setdefault(job_uid, set()).add(attempt)

    def touches_only_its_own(self, change: Change) -> Iterator[str]:
        """Pods and services are created and deleted, never changed; only those that a job controls."""
        if change.verb in DELETES:
            owner = controller(change.object)
            # A delete that arrives late names the uid of a pod that was the job's, and may have been orphaned since.
            late = change.by.endswith(LATE_MARK)
            if not late and change.kind != names.KIND and (owner is None or owner["kind"] != names.KIND):
                yield f"touches_only_its_own: deleted the foreign {_title(change)}"
        elif change.kind == names.KIND:
            if change.verb != "replace_status":
                yield f"touches_only_its_own: {change.verb} of {_title(change)}"
        elif change.verb != "create":
            yield f"touches_only_its_own: {change.verb} of {_title(change)}"

    def deletes_carry_the_uid(self, change: Change) -> Iterator[str]:
        """Every delete names the uid; that of a job (it has expired) the resourceVersion too."""
        if change.verb == "delete by name":
            yield f"deletes_carry_the_uid: {_title(change)}"

    def one_leader(self, change: Change) -> Iterator[str]:
        """Nobody takes the Lease from a holder who may still believe in it."""
        assert change.old is not None
        before, now = change.old["spec"], change.object["spec"]
        renewed = self._renewed_at
        self._renewed_at = self._now()
        if before.get("holderIdentity") in ("", now.get("holderIdentity")) or not now.get("holderIdentity"):
            return
        if self._now() < renewed + before["leaseDurationSeconds"]:
            yield f"one_leader: {now['holderIdentity']} took it from {before['holderIdentity']}"

    def nothing_for_a_job_that_goes(self, change: Change) -> Iterator[str]:
        """A job with a deletionTimestamp, or one that is gone, gets nothing created."""
        if change.verb == "create":
            owner = controller(change.object)
            uid = owner["uid"] if owner else ""
            gone = self._gone.get(uid)
            if gone is not None and self._now() > gone + FLIGHT:
                yield f"nothing_for_a_job_that_goes: {_title(change)}"

    def creates_are_licensed(self, change: Change) -> Iterator[str]:
        """The status names the attempt of every pod before the pod is there, and no success reruns in it."""
        if change.verb != "create" or change.kind != "Pod":
            return
        job = self._job_of(change.object)
        if job is None:
            return
        status, labels = job.get("status") or {}, change.object["metadata"]["labels"]
        conditions = _conditions(job)
        attempt = labels[names.LABEL_ATTEMPT]
        if str(status.get("attempt")) != attempt or not status.get("plan"):
            yield f"creates_are_licensed: {_title(change)} of attempt {attempt}, status has {status.get('attempt')}"
        if conditions.get("Finished") == "True" or conditions.get("Suspended") == "True":
            yield f"creates_are_licensed: {_title(change)} for a job that is finished or suspended"
        role, index = labels[names.LABEL_REPLICA_TYPE], int(labels[names.LABEL_REPLICA_INDEX])
        done = ((status.get("replicaStatuses") or {}).get(role) or {}).get("succeededIndexes") or ()
        if index in done and str(status.get("attempt")) == attempt:
            yield f"creates_are_licensed: {_title(change)} has succeeded and runs again"
        older = [
            pod["metadata"]["name"]
            for pod in self.server.select("Pod", change.object["metadata"]["namespace"])
            if _attempt_of(pod)[0] == job["metadata"]["uid"] and int(_attempt_of(pod)[1] or 0) < int(attempt)
        ]
        if older and self.strict_lists:
            yield f"creates_are_licensed: {_title(change)} beside {older} of an older attempt"
        if int(labels[names.LABEL_REPLICA_RESTART]) != _licensed_restart(job, role, index):
            yield f"creates_are_licensed: {_title(change)} of restart {labels[names.LABEL_REPLICA_RESTART]}"

    def deletes_are_licensed(self, change: Change) -> Iterator[str]:
        """A pod goes only when the status says why: a later attempt, its own restart, the end, or a suspension."""
        if change.verb not in DELETES or change.kind != "Pod":
            return
        job = self._job_of(change.object)
        if job is None:
            return
        conditions = _conditions(job)
        if self._now() <= self._made.get(change.object["metadata"]["uid"], 0.0) + FLIGHT:
            return  # taken back by who has just made it: the server had dropped a field of it
        superseded = int((job.get("status") or {}).get("attempt", 0)) > int(_attempt_of(change.object)[1])
        labels = change.object["metadata"]["labels"]
        role, index = labels[names.LABEL_REPLICA_TYPE], int(labels[names.LABEL_REPLICA_INDEX])
        superseded = superseded or _licensed_restart(job, role, index) > int(labels[names.LABEL_REPLICA_RESTART])
        if not superseded and "True" not in (conditions.get("Finished"), conditions.get("Suspended")):
            yield f"deletes_are_licensed: {_title(change)}"

    def force_is_the_last_resort(self, change: Change) -> Iterator[str]:
        """A pod that is being deleted is forced a minute after its grace period, and on a lost node only."""
        meta = change.object["metadata"]
        node, due = change.object["spec"].get("nodeName"), self._due.get(meta["uid"])
        if not node or exit_code(change.object) is not None or change.object["status"].get("phase") == "Failed":
            return
        if change.verb != "delete" or change.kind != "Pod" or change.type != "DELETED" or due is None:
            return
        if self._now() < datetime.fromisoformat(due).timestamp() + FORCE_AFTER:
            yield f"force_is_the_last_resort: {meta['name']} was due at {due}"
        if node not in self._lost_nodes():
            yield f"force_is_the_last_resort: {meta['name']} is on a node that is ready"

    def _lost_nodes(self) -> set[str]:
        return {node["metadata"]["name"] for node in self.server.select("Node") if not _is_ready(node)}

    def orphans(self) -> list[str]:
        """Pods and services whose job is gone, or whose job of that name is another one."""
        alive = {job["metadata"]["uid"] for job in self.server.select(names.KIND)}
        found = []
        for kind in ("Pod", "Service"):
            for obj in self.server.select(kind):
                owner = controller(obj)
                if owner and owner["kind"] == names.KIND and owner["uid"] not in alive:
                    found.append(f"orphans: {kind} {obj['metadata']['name']}")
        return found

    def _note_truth(self, change: Change) -> None:
        meta = change.object["metadata"]
        if change.kind == names.KIND and (change.type == "DELETED" or "deletionTimestamp" in meta):
            self._gone.setdefault(meta["uid"], self._now())
        if change.verb == "create" and change.by.startswith(OPERATOR):
            self._made[meta["uid"]] = self._now()
        self._note_lost_node(change)
        if change.kind == "Pod" and change.type == "MODIFIED" and "deletionTimestamp" in meta:
            self._due.setdefault(meta["uid"], meta["deletionTimestamp"])
        if change.kind != "Pod" or not _replica(change.object)[0]:
            return
        uid, role, index = _replica(change.object)
        attempt = self._start_of(change.object)
        if change.by == "kubelet" and change.verb == "replace_status":
            code = exit_code(change.object)
            if code == 0:
                self._real_successes.add((uid, role, index))
            if code and "deletionTimestamp" not in meta:
                self._real_failures.setdefault(uid, set()).add(attempt)
            if (change.object["status"]).get("reason"):
                self._real_losses.setdefault(uid, set()).add(attempt)
        if change.by in ("user", "gc", "scheduler") and change.verb in DELETES:
            self._real_losses.setdefault(uid, set()).add(attempt)

    def _note_lost_node(self, change: Change) -> None:
        if change.kind != "Node" or _is_ready(change.object):
            return
        for pod in self.server.select("Pod"):
            if pod["spec"].get("nodeName") == change.object["metadata"]["name"] and _replica(pod)[0]:
                self._real_losses.setdefault(_replica(pod)[0], set()).add(self._start_of(pod))

    def _start_of(self, pod: Object) -> str:
        """What counts as one start: an attempt, or the pod of a replica that starts again on its own."""
        job = self._job_of(pod)
        return str(pod["metadata"]["uid"]) if job is not None and _restarts_alone(job) else _attempt_of(pod)[1]

    def _job_of(self, obj: Object) -> Object | None:
        owner = controller(obj)
        job = self.server.objects.get((names.KIND, obj["metadata"]["namespace"], owner["name"])) if owner else None
        return job if job is not None and owner is not None and job["metadata"]["uid"] == owner["uid"] else None

    def _now(self) -> float:
        return self.server.clock().timestamp()


def exit_code(pod: Mapping[str, Any]) -> int | None:
    """How the tensorflow container ended; None while it has not."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status["name"] == names.CONTAINER and "terminated" in status["state"]:
            code: int = status["state"]["terminated"]["exitCode"]
            return code
    return None


def _replica(pod: Object) -> tuple[str, str, str]:
    """(job uid, role, index); the uid is empty for a pod that no job controls."""
    owner, labels = controller(pod), pod["metadata"].get("labels") or {}
    uid = owner["uid"] if owner and owner["kind"] == names.KIND else ""
    return uid, labels.get(names.LABEL_REPLICA_TYPE, ""), labels.get(names.LABEL_REPLICA_INDEX, "")


def _addresses(pod: Object) -> dict[tuple[str, str], str]:
    """Address by (task type, index), from a full TF_CONFIG or a sparse one."""
    cluster = tf_config(pod).get("cluster") or {}
    return {
        (role, str(index)): address
        for role, tasks in cluster.items()
        for index, address in (tasks.items() if isinstance(tasks, dict) else enumerate(tasks))
    }


def _attempt_of(pod: Object) -> tuple[str, str]:
    return _replica(pod)[0], (pod["metadata"].get("labels") or {}).get(names.LABEL_ATTEMPT, "")


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _told_at(job: Object) -> str:
    return str(((job.get("status") or {}).get("progress") or {}).get("time", ""))


def _restarts_alone(job: Object) -> bool:
    spec = job.get("spec") or {}
    scope = (spec.get("runPolicy") or {}).get("restartScope", "Auto")
    return (spec.get("strategy"), scope) in {
        ("ParameterServer", "Auto"),
        ("ParameterServer", "Replica"),
        ("Custom", "Replica"),
    }


def _licensed_restart(job: Object, role: str, index: int) -> int:
    records = (job.get("status") or {}).get("restartRecords") or ()
    return next((int(r["restarts"]) for r in records if (r["role"], r["index"]) == (role, index)), 0)


def _conditions(job: Mapping[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in (job.get("status") or {}).get("conditions") or ()}


def _reason(job: Mapping[str, Any], condition: str) -> str:
    found = [c["reason"] for c in (job.get("status") or {}).get("conditions") or () if c["type"] == condition]
    return found[0] if found else ""


def _terminal_details(job: Mapping[str, Any]) -> list[Any]:
    found = [c for c in (job.get("status") or {}).get("conditions") or () if c["type"] in _TERMINAL]
    return [*found, (job.get("status") or {}).get("completionTime")]


def _title(change: Change) -> str:
    return f"{change.kind} {change.object['metadata']['name']}"
