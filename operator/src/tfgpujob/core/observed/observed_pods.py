"""The pods of the current attempt as observed: which replicas have one, which are missing, which pods are stale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfgpujob.core.observed.members import Membership, ReplicaId
from tfgpujob.core.observed.metadata import pod_name
from tfgpujob.core.observed.ownership import Ownership, pod_ownership
from tfgpujob.core.observed.restart_records import RestartRecord, read
from tfgpujob.core.observed.snapshot import Pod, Snapshot
from tfgpujob.names import ROLES, Role


@dataclass(frozen=True, slots=True)
class ObservedPods:
    job_name: str
    members: Membership
    pods: Mapping[ReplicaId, Pod]
    """By replica, the pod of this attempt and of the replica's last restart in it; terminating ones included."""
    stale_replicas: Mapping[ReplicaId, Pod]
    """Stale pods of this attempt whose replica has a persisted intent to restart: deleted before it restarts."""
    records: Mapping[ReplicaId, RestartRecord]
    stale_pods: tuple[Pod, ...]
    """Pods of earlier attempts or of an earlier job of this name: nothing is created until they are gone."""
    surplus: tuple[Pod, ...]
    """Workers of this attempt whose index is beyond the plan, left over by a resize. In a gang they become stale after
    the resize; elsewhere they delay no other pod."""
    foreign: tuple[Pod, ...]
    """Pods that no TFGPUJob controls and that have a name of ours."""
    lost_nodes: frozenset[str]
    recorded: frozenset[ReplicaId]
    """Replicas whose success is recorded in the status: they never run again in this attempt."""

    def name(self, replica: ReplicaId) -> str:
        return pod_name(self.job_name, *replica)

    def succeeded(self, replica: ReplicaId) -> bool:
        pod = self.pods.get(replica)
        return replica in self.recorded or (pod is not None and has_succeeded(pod))

    def restart(self, replica: ReplicaId) -> int:
        """The replica-restart label of the pod that it has, or is to have."""
        record = self.records.get(replica)
        return record.restarts if record else 0

    @property
    def losses(self) -> int:
        """Restarts of its chief and workers that are counted."""
        gang = ((role, index) for role in (Role.CHIEF, Role.WORKER) for index in range(self.members.pods_of(role)))
        return sum(map(self.restart, gang))

    def restart_pending(self, replica: ReplicaId) -> bool:
        """Its restart is a persisted intent, and its new pod has not been observed yet."""
        record = self.records.get(replica)
        return replica not in self.pods and record is not None and bool(record.backoff_until)

    def lost(self, replica: ReplicaId) -> bool:
        """Its pod is on a node that is gone or not ready, so that the pod's status is out of date."""
        pod = self.pods.get(replica)
        return pod is not None and not has_ended(pod) and pod.node in self.lost_nodes

    def missing(self) -> tuple[ReplicaId, ...]:
        """Replicas that are to have a pod, and have none and no recorded success."""
        doubtful = self.members.doubtful
        return tuple(
            r for r in self.members.pods if r not in self.pods and r not in self.recorded and r not in doubtful
        )

    def required_missing(self) -> tuple[ReplicaId, ...]:
        """The required replicas among those that are missing."""
        required = set(self.members.required)
        return tuple(replica for replica in self.missing() if replica in required)

    def ready(self, replica: ReplicaId) -> bool:
        """Ready, or already succeeded: a replica that finished quickly was ready before."""
        pod = self.pods.get(replica)
        return self.succeeded(replica) or (pod is not None and pod.ready and not pod.deleting)

    def waiting_for_a_node(self) -> list[tuple[ReplicaId, Pod]]:
        """Required replicas whose pod is not scheduled. One without a pod waits for something else."""
        pods = ((replica, self.pods.get(replica)) for replica in self.members.required)
        return [(r, pod) for r, pod in pods if pod is not None and waits_for_a_node(pod)]


def observe_pods(snapshot: Snapshot, status: Mapping[str, Any]) -> ObservedPods:
    """By a status with a plan, which may be under construction."""
    members = Membership.from_plan(status["plan"])
    metadata = snapshot.job["metadata"]
    attempt = int(status.get("attempt") or 0)
    wanted = {pod_name(metadata["name"], role, index): (role, index) for role, index in members.pods}
    records = read(status)
    pods: dict[ReplicaId, Pod] = {}
    stale_replicas: dict[ReplicaId, Pod] = {}
    stale_pods: list[Pod] = []
    surplus: list[Pod] = []
    foreign: list[Pod] = []
    for pod in snapshot.pods:
        ownership = pod_ownership(pod, metadata["uid"], attempt)
        current = pod.owner_uid == metadata["uid"] and pod.attempt == attempt
        if current and pod.name in wanted:
            replica = wanted[pod.name]
            restart = records[replica].restarts if replica in records else 0
            (stale_replicas if pod.replica_restart < restart else pods)[replica] = pod
        elif current and pod.name == pod_name(metadata["name"], Role.WORKER, pod.index):
            surplus.append(pod)
        elif ownership is Ownership.FOREIGN and pod.name in wanted:
            foreign.append(pod)
        elif ownership is not Ownership.FOREIGN:
            stale_pods.append(pod)
    # A worker that leaves ends by itself, and its index must be distinguished from the one that joins later.
    leaves_stale = members.resize is None and not members.independent
    return ObservedPods(
        metadata["name"],
        members,
        pods,
        stale_replicas,
        records,
        (*stale_pods, *(surplus if leaves_stale else ())),
        tuple(surplus),
        tuple(foreign),
        snapshot.lost_nodes,
        _recorded(status),
    )


def has_succeeded(pod: Pod) -> bool:
    """By the exit code of the `tensorflow` container: a sidecar that still runs doesn't matter. False if the cluster
    ended the pod: many programs exit with 0 when they are stopped."""
    return pod.termination is not None and pod.termination.exit_code == 0 and not ended_by_cluster(pod)


def has_failed(pod: Pod) -> bool:
    if pod.termination is None:
        return pod.phase == "Failed"
    return pod.termination.exit_code != 0 or ended_by_cluster(pod)


def ended_by_cluster(pod: Pod) -> bool:
    """True if a node or a controller ended the pod (Evicted, DeadlineExceeded, …), so that no exit code says why."""
    return pod.phase == "Failed" and bool(pod.status_reason)


def has_ended(pod: Pod) -> bool:
    """True if its program has ended. `holds_node` returns whether its node and GPUs are free again."""
    return pod.termination is not None or pod.phase == "Failed"


def holds_node(pod: Pod) -> bool:
    """True if it has its node and its GPUs, or will get them: until all its containers have ended."""
    return not has_ended(pod) or pod.lingers


def waits_for_a_node(pod: Pod) -> bool:
    return pod.phase == "Pending" and not pod.node


def _recorded(status: Mapping[str, Any]) -> frozenset[ReplicaId]:
    by_role = status.get("replicaStatuses") or {}
    return frozenset((role, i) for role in ROLES for i in (by_role.get(role) or {}).get("succeededIndexes") or ())
