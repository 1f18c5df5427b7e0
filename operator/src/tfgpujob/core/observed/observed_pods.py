"""The current attempt as the pods show it: who is there, who is missing, who stands in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfgpujob.core.observed.metadata import pod_name
from tfgpujob.core.observed.ownership import Ownership, pod_ownership
from tfgpujob.core.observed.plan import Plan, ReplicaId
from tfgpujob.core.observed.restart_records import RestartRecord, read
from tfgpujob.core.observed.snapshot import Pod, Snapshot
from tfgpujob.names import Role


@dataclass(frozen=True, slots=True)
class View:
    job_name: str
    plan: Plan
    pods: Mapping[ReplicaId, Pod]
    """The pods of this very attempt, terminating ones included, and of each replica's last restart in it."""
    superseded: Mapping[ReplicaId, Pod]
    """Pods of this attempt whose replica has a licence to start again: they go, and only then it does."""
    records: Mapping[ReplicaId, RestartRecord]
    in_the_way: tuple[Pod, ...]
    """Old pods: nothing is created until they are gone."""
    foreign: tuple[Pod, ...]
    """Pods of others that have a name of ours."""
    lost_nodes: frozenset[str]
    recorded: frozenset[ReplicaId]
    """Replicas whose success the status already holds: they never run again in this attempt."""

    def name(self, replica: ReplicaId) -> str:
        return pod_name(self.job_name, *replica)

    def succeeded(self, replica: ReplicaId) -> bool:
        pod = self.pods.get(replica)
        return replica in self.recorded or (pod is not None and has_succeeded(pod))

    def restart(self, replica: ReplicaId) -> int:
        """The replica-restart of the pod that it has, or is to have."""
        record = self.records.get(replica)
        return record.restarts if record else 0

    def starts_again(self, replica: ReplicaId) -> bool:
        """It has a licence to start again, and its new pod has not been seen yet."""
        record = self.records.get(replica)
        return replica not in self.pods and record is not None and bool(record.backoff_until)

    def lost(self, replica: ReplicaId) -> bool:
        """It ran on a node that is gone or not ready: whatever its pod's status says is old."""
        pod = self.pods.get(replica)
        return pod is not None and not has_ended(pod) and pod.node in self.lost_nodes

    def missing(self) -> tuple[ReplicaId, ...]:
        """Replicas that have no pod and are not known to have succeeded."""
        return tuple(r for r in self.plan.pods() if r not in self.pods and r not in self.recorded)

    def ready(self, replica: ReplicaId) -> bool:
        """Running, or already through: a replica that finished quickly was ready on its way."""
        pod = self.pods.get(replica)
        return self.succeeded(replica) or (pod is not None and pod.ready and not pod.deleting)


def build_view(snapshot: Snapshot, plan: Plan, status: Mapping[str, Any]) -> View:
    assert snapshot.job is not None
    metadata = snapshot.job["metadata"]
    attempt = int(status.get("attempt") or 0)
    wanted = {pod_name(metadata["name"], role, index): (role, index) for role, index in plan.pods()}
    records = read(status)
    pods: dict[ReplicaId, Pod] = {}
    superseded: dict[ReplicaId, Pod] = {}
    in_the_way: list[Pod] = []
    foreign: list[Pod] = []
    for pod in snapshot.pods:
        ownership = pod_ownership(pod, metadata["uid"], attempt)
        current = pod.owner_uid == metadata["uid"] and pod.attempt == attempt
        if current and pod.name in wanted:
            replica = wanted[pod.name]
            restart = records[replica].restarts if replica in records else 0
            (superseded if pod.replica_restart < restart else pods)[replica] = pod
        elif ownership is Ownership.FOREIGN and pod.name in wanted:
            foreign.append(pod)
        elif ownership is not Ownership.FOREIGN:
            in_the_way.append(pod)
    return View(
        metadata["name"],
        plan,
        pods,
        superseded,
        records,
        tuple(in_the_way),
        tuple(foreign),
        snapshot.lost_nodes,
        _recorded(status),
    )


def has_succeeded(pod: Pod) -> bool:
    """Judged by the `tensorflow` container: a sidecar that runs on doesn't matter."""
    return pod.termination is not None and pod.termination.exit_code == 0


def has_failed(pod: Pod) -> bool:
    if pod.termination is not None:
        return pod.termination.exit_code != 0
    return pod.phase == "Failed"


def has_ended(pod: Pod) -> bool:
    return has_succeeded(pod) or has_failed(pod)


def _recorded(status: Mapping[str, Any]) -> frozenset[ReplicaId]:
    by_role = status.get("replicaStatuses") or {}
    return frozenset((role, i) for role in Role for i in (by_role.get(str(role)) or {}).get("succeededIndexes") or ())
