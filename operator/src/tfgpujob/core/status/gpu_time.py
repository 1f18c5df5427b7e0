"""status.gpuTime: how long the pods of all attempts have held their GPUs.

It is updated with status writes that are made anyway, and causes none: it holds the time up to which it counts and the
GPUs held at that time, so that a reader can extrapolate. A pod holds its GPUs from status.startTime until its last
container has terminated, or, where no termination is recorded (evicted, node lost), until the cluster recorded the
pod's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tfgpujob.api import JobSpec, ReplicaSpec, gpus, plain_count
from tfgpujob.core.observed.observed_pods import holds_node
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.snapshot import Delete, Object, Pod, Snapshot
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.names import CONTAINER, Condition, Role


def seconds(status: Mapping[str, Any], now: datetime) -> int:
    """GPU-seconds until now, extrapolated from the status."""
    reported = status.get("gpuTime")
    if reported is None:
        return 0
    stopped = {Condition.SUSPENDED, Condition.FINISHED}
    ended = any(c["type"] in stopped and c["status"] == "True" for c in status.get("conditions") or ())
    since = max(0, int((now - moment(reported["time"])).total_seconds()))
    return int(reported["seconds"]) + (0 if ended else int(reported["gpus"]) * since)


def gpus_held(spec: JobSpec, role: Role, replica: ReplicaSpec) -> int:
    """GPUs of one pod; also if only the limits of a Custom program's container set them."""
    count = gpus(spec, role, replica)
    for container in () if count else ((replica.template or {}).get("spec") or {}).get("containers") or ():
        if container.get("name") == CONTAINER:
            limits = (container.get("resources") or {}).get("limits") or {}
            return plain_count(limits.get(spec.gpu.resource_name)) or 0
    return count


def updated(status: Object, snapshot: Snapshot, deletes: Sequence[Delete], spec: JobSpec, now: datetime) -> Object:
    """The status that is about to be written, with gpuTime up to now. `deletes`: of pods that hold no GPUs after it."""
    reported = status.get("gpuTime") or {}
    since = moment(reported["time"]) if reported else None
    now = max(now.replace(microsecond=0), since or now)
    own = [pod for pod in snapshot.pods if pod.owner_uid == snapshot.job["metadata"]["uid"] and pod.started_at]
    counts = {str(role): gpus_held(spec, role, replica) for role, replica in replica_specs(spec).items()}
    released = {pod.uid: _released_at(pod, snapshot.lost_nodes, now) for pod in own}
    more = sum(counts.get(pod.role, 0) * _seconds(pod.started_at, since, released[pod.uid]) for pod in own)
    gone = {delete.uid for delete in deletes} | {uid for uid, at in released.items() if at < now}
    gone |= {pod.uid for pod in own if not holds_node(pod)}
    held = sum(counts.get(pod.role, 0) for pod in own if pod.uid not in gone)
    if not reported and not more and not held:
        return status
    return {**status, "gpuTime": {"seconds": reported.get("seconds", 0) + more, "gpus": held, "time": timestamp(now)}}


def _released_at(pod: Pod, lost_nodes: frozenset[str], now: datetime) -> datetime:
    """When the pod released its GPUs, as far as recorded; now, while it has them."""
    ended = pod.termination.finished_at if pod.termination is not None and not holds_node(pod) else ""
    if not ended and (not holds_node(pod) or pod.node in lost_nodes):
        ended = pod.ended_at
    # Without a record of its end, the pod was killed at the latest when the grace period of its deletion was over.
    ended = ended or pod.deletion_due
    return min(moment(ended), now) if ended else now


def _seconds(started: str, since: datetime | None, until: datetime) -> int:
    """From its start, or from `since` if that was later."""
    begin = max(moment(started), since or moment(started))
    return max(0, int((until - begin).total_seconds()))
