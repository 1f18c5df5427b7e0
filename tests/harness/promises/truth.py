"""What really happened, as the server and its actors saw it: no promise is checked against what a status says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.apiserver import ApiServer
from tests.harness.history import Change
from tests.harness.leaders import environment
from tests.harness.resources import Object, controller

from tfgpujob import names
from tfgpujob_contract.variables import Variable

OPERATOR = "operator"
DELETES = ("delete", "delete by name")
PEER_FAILURE = 160
"""The trainer's exit code when a task that it trains with is lost."""
NEAR = 30.0
"""Seconds between a failure and those that follow from it."""


class Truth:
    """Times are in seconds since the epoch, of the server's clock."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.flight = 1.0
        """Seconds within which a create may arrive whose intent was persisted when it left; longer where answers are
        slow."""
        self.strict_lists = True
        """Lists are quorum reads, as they are on a real server. Where they are not, generations may meet."""
        self.isolated = False
        """Whether jobs get a NetworkPolicy each."""
        self.with_policy: set[str] = set()
        """uids of jobs for which there has been one."""
        self.in_gangs = False
        """Whether jobs get a pod group for each attempt."""
        self.with_group: set[tuple[str, str]] = set()
        """(job uid, attempt) for which there has been one."""
        self.claims: dict[tuple[str, str, str], frozenset[str]] = {}
        """Names of the claims of each replica that has had a pod."""
        self.in_queues = False
        """Whether jobs wait in queues of Kueue."""
        self.admitted: set[str] = set()
        """uids of jobs that were admitted since they last waited."""
        self.gone: dict[str, float] = {}
        """Jobs that are gone or going, by uid, and since when."""
        self.made: dict[str, float] = {}
        """When an operator created what has this uid."""
        self.due: dict[str, str] = {}
        """When the grace period of a pod that is being deleted ends, by its uid."""
        self.renewed_at = 0.0
        """The Lease."""
        self.told: dict[str, list[float]] = {}
        """When progress was written, by the job's uid: the latest times."""
        self.stalled: set[str] = set()
        """uids of jobs whose training stood still."""
        self.unused: set[str] = set()
        """uids of jobs all of whose GPUs did nothing."""
        self.failures: dict[str, set[str]] = {}
        """Starts that failed, by the job's uid."""
        self.ends: dict[str, list[tuple[float, str, int]]] = {}
        """When each of them ended, and with which code."""
        self.losses: dict[str, set[str]] = {}
        """Starts that lost a pod."""
        self.rounds: dict[tuple[str, str], int] = {}
        """Workers that train together, or are about to, by (job uid, attempt): only of gangs that may be resized."""
        self.successes: set[tuple[str, str, str]] = set()
        """(job uid, role, index) that exited 0."""

    @property
    def now(self) -> float:
        return self.server.clock().timestamp()

    def failed_by_themselves(self, job_uid: str) -> set[str]:
        """Starts that failed, without those that say they lost a peer when another had just failed or was about to."""
        ends = self.ends.get(job_uid, [])
        causes = [at for at, _, code in ends if code != PEER_FAILURE]
        follow = {start for at, start, code in ends if code == PEER_FAILURE and any(abs(at - c) < NEAR for c in causes)}
        by_themselves = {start for _, start, code in ends if code != PEER_FAILURE}
        return self.failures.get(job_uid, set()) - (follow - by_themselves)

    def stood_still(self, job_uid: str, attempt: str) -> None:
        """The world says that this attempt does not get on: to restart it is no invention."""
        self.stalled.add(job_uid)
        self.failures.setdefault(job_uid, set()).add(attempt)

    def restarted_in_place(self, job_uid: str, leader: str, times: int) -> None:
        """Each time, a process had failed."""
        self.failures.setdefault(job_uid, set()).update(f"{leader} in place {i}" for i in range(times))

    def job_of(self, obj: Object) -> Object | None:
        """The job that controls it, if that is still there."""
        owner = controller(obj)
        job = self.server.objects.get((names.KIND, obj["metadata"]["namespace"], owner["name"])) if owner else None
        return job if job is not None and owner is not None and job["metadata"]["uid"] == owner["uid"] else None

    def lost_nodes(self) -> set[str]:
        return {node["metadata"]["name"] for node in self.server.select("Node") if not _is_ready(node)}

    def note(self, change: Change) -> None:
        meta = change.object["metadata"]
        if change.kind == names.KIND and (change.type == "DELETED" or "deletionTimestamp" in meta):
            self.gone.setdefault(meta["uid"], self.now)
        if change.verb == "create" and change.by.startswith(OPERATOR):
            self.made[meta["uid"]] = self.now
        if change.kind == "NetworkPolicy" and (owner := controller(change.object)):
            self.with_policy.add(owner["uid"])
        if change.kind == "PodGroup":
            self.with_group.add(attempt_of(change.object))
        if change.kind == "Workload" and _is_admitted(change.object):
            self.admitted |= self.jobs_of_workload(change.object)
        if change.kind == names.KIND and (held := self.workload_of(change.object)) and change.type == "ADDED":
            # MultiKueue sends a job after its Workload.
            self.admitted |= {meta["uid"]} if _is_admitted(held) else set()
        if change.kind == names.KIND and conditions(change.object).get("Suspended", {}).get("status") == "True":
            self._note_waiting(change.object)
        if change.kind == "Node" and not _is_ready(change.object):
            self._note_lost_node(meta["name"])
        if change.kind == "Pod":
            self._note_pod(change)

    def workload_of(self, job: Object) -> Object | None:
        """Its own Workload, or the one that MultiKueue has sent with it; None: it has none."""
        meta = job["metadata"]
        held = self.server.objects.get(("Workload", meta["namespace"], meta["name"]))
        return held if held is not None and meta["uid"] in self.jobs_of_workload(held) else None

    def jobs_of_workload(self, held: Object) -> set[str]:
        """uid of its job, if that is known."""
        meta, owner = held["metadata"], controller(held)
        if owner is not None:
            return {owner["uid"]}
        job = self.server.objects.get((names.KIND, meta["namespace"], meta["name"]))
        prebuilt = (job["metadata"].get("annotations") or {}).get(names.PREBUILT_WORKLOAD) if job else None
        return {job["metadata"]["uid"]} if job is not None and prebuilt == meta["name"] else set()

    def sent(self, job_uid: str) -> str:
        """uid of the job in another cluster that this one, which MultiKueue dispatches, was sent as; empty: of none."""
        jobs = self.server.select(names.KIND)
        made = next((j for j in jobs if j["metadata"]["uid"] == job_uid and j["spec"].get("managedBy")), None)
        name = made["metadata"]["name"] if made is not None else ""
        there = (j["metadata"] for j in jobs if j is not made and j["metadata"]["name"] == name)
        return next((str(meta["uid"]) for meta in there), "")

    def _note_waiting(self, job: Object) -> None:
        held = self.workload_of(job)
        if held is None or not _is_admitted(held):
            self.admitted.discard(job["metadata"]["uid"])

    def _note_lost_node(self, name: str) -> None:
        for pod in self.server.select("Pod"):
            if pod["spec"].get("nodeName") == name and replica(pod)[0]:
                self.losses.setdefault(replica(pod)[0], set()).add(self._start_of(pod, lost=True))

    def _note_pod(self, change: Change) -> None:
        meta = change.object["metadata"]
        if change.type == "MODIFIED" and "deletionTimestamp" in meta:
            self.due.setdefault(meta["uid"], meta["deletionTimestamp"])
        uid, role, index = replica(change.object)
        if not uid:
            return
        start = self._start_of(change.object)
        if change.by == "kubelet" and change.verb == "replace_status":
            code = exit_code(change.object)
            if code == 0:
                self.successes.add((uid, role, index))
            if code and "deletionTimestamp" not in meta:
                self.failures.setdefault(uid, set()).add(start)
                self.ends.setdefault(uid, []).append((self.now, start, code))
            if change.object["status"].get("reason"):
                self.losses.setdefault(uid, set()).add(self._start_of(change.object, lost=True))
        if change.by in ("user", "gc", "scheduler") and change.verb in DELETES:
            self.losses.setdefault(uid, set()).add(self._start_of(change.object, lost=True))

    def _start_of(self, pod: Object, *, lost: bool = False) -> str:
        """What counts as one start: an attempt, or the pod of a replica that starts again on its own, as each does that
        is `lost` in a gang which waits for another."""
        job = self.job_of(pod)
        resizes = bool(environment(pod, Variable.RECOVERY_RESIZE))
        alone = job is not None and (_restarts_alone(job) or (lost and resizes))
        return str(pod["metadata"]["uid"]) if alone else attempt_of(pod)[1]


def title(change: Change) -> str:
    return f"{change.kind} {change.object['metadata']['name']}"


def exit_code(pod: Mapping[str, Any]) -> int | None:
    """How the tensorflow container ended, or the init container that failed before it; None while neither has."""
    found = pod.get("status") or {}
    for status in (*(found.get("containerStatuses") or ()), *(found.get("initContainerStatuses") or ())):
        code: int = (status["state"].get("terminated") or {}).get("exitCode", 0)
        failed = bool(code) and status["name"] not in (names.CONTAINER, names.GATE_CONTAINER)
        if "terminated" in status["state"] and (status["name"] == names.CONTAINER or failed):
            return code
    return None


def replica(pod: Object) -> tuple[str, str, str]:
    """(job uid, role, index); the uid is empty for a pod that no job controls."""
    owner, labels = controller(pod), pod["metadata"].get("labels") or {}
    uid = owner["uid"] if owner and owner["kind"] == names.KIND else ""
    return uid, labels.get(names.LABEL_REPLICA_TYPE, ""), labels.get(names.LABEL_REPLICA_INDEX, "")


def attempt_of(pod: Object) -> tuple[str, str]:
    """(job uid, attempt)."""
    return replica(pod)[0], (pod["metadata"].get("labels") or {}).get(names.LABEL_ATTEMPT, "")


def conditions(job: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in (job.get("status") or {}).get("conditions") or ()}


def _is_admitted(workload: Object) -> bool:
    found = conditions(workload)
    return [found.get(kind, {}).get("status") == "True" for kind in ("Admitted", "Evicted")] == [True, False]


def _is_ready(node: Object) -> bool:
    return conditions(node).get("Ready", {}).get("status") == "True"


def _restarts_alone(job: Object) -> bool:
    spec = job.get("spec") or {}
    scope = (spec.get("runPolicy") or {}).get("restartScope", "Auto")
    if (spec.get("trainer") or {}).get("mode") == "predict" and scope != "Gang":
        return True
    return (spec.get("strategy"), scope) in {
        ("ParameterServer", "Auto"),
        ("ParameterServer", "Replica"),
        ("Custom", "Replica"),
    }
