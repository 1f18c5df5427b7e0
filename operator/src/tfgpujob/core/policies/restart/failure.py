"""Which replicas have failed, which failure is the root cause of the others, and whether it is retryable.

Exit codes: 0 is success; 1–127 are permanent, 128 and above retryable (a signal, or a code that the trainer documents
as such: 143 stopped on request, 160 peer failure, 161 deadline, 162 a limit of the machine, 163 nothing fetched; 164,
peers that did not start, is no failure of the pod). The code of a container that could not be started is the runtime's,
and says nothing: a command that is not in the image is permanent, whatever else keeps a container from starting
retryable. A pod that failed without an exit code is retryable. What the cluster does to a pod costs nothing: it evicts
or loses it, or the node has no longer the room that the scheduler had counted on; an eviction for the pod's own limit
is counted. A peer failure (160) only follows another failure, so it is the root cause last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from tfgpujob import names
from tfgpujob.api import RestartPolicy
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods, ended_by_cluster, has_failed
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.status.builder import moment
from tfgpujob.core.status.diagnosis import (
    NOT_ADMITTED,
    diagnose,
    field_of,
    is_of_runtime,
    message_of,
    missing_command,
    no_room_on_node,
    over_own_limit,
)
from tfgpujob.names import Condition, Role
from tfgpujob_contract.exit_codes import ExitCode

FIRST_RETRYABLE = 128
NODE_LOST = "NodeLost"
DEVICE_UNHEALTHY = "DeviceUnhealthy"
OOM_KILLED = "OOMKilled"
"""The container reached its memory limit. The kernel may have killed a child, and the program exits with any code."""
PEER_FAILURE_GRACE = timedelta(seconds=10)
"""Grace period after a peer failure (exit code 160), within which the failure of the pod that caused it should be
seen."""
_DISRUPTIONS = frozenset({"Evicted", "Preempting", NODE_LOST, "Shutdown", "Terminated", *NOT_ADMITTED})
_MAX_SENTENCE = 300


class Cause(StrEnum):
    DISRUPTION = "Disruption"
    """The cluster took the pod away, or its device broke: it costs no restart."""
    RETRYABLE = "Retryable"
    PERMANENT = "Permanent"


@dataclass(frozen=True, slots=True)
class Failure:
    replica: ReplicaId
    name: str
    cause: Cause
    exit_code: int | None
    reason: str
    message: str
    finished_at: str
    sentence: str = ""
    """Kubernetes' message about the pod's end: status.message."""
    container: str = names.CONTAINER
    """The container that ended the pod."""
    is_init: bool = False

    def __str__(self) -> str:
        if self.reason == Condition.STALLED:
            return f"{self.name} stood still"
        if self.reason == DEVICE_UNHEALTHY:
            return f"{self.name} has a device that is not healthy"
        code = "" if self.exit_code is None else f" with exit code {self.exit_code}"
        sentence = self.sentence or (self.message if is_of_runtime(self.reason) else "")
        told = ": ".join(text for text in (self.reason, " ".join(sentence.split())[:_MAX_SENTENCE]) if text)
        reason = f" ({told})" if told else ""
        who = self.name
        if self.container != names.CONTAINER:
            who += f": its {'init ' if self.is_init else ''}container {self.container}"
        return f"{who} ended{code}{reason}"

    @property
    def is_peer_failure(self) -> bool:
        """True if it only reports that another task failed."""
        return self.exit_code == ExitCode.PEER_FAILURE and self.cause is not Cause.DISRUPTION

    def to_status(self, log_lines: int) -> dict[str, Any]:
        """status.lastFailure."""
        fields = {
            "role": str(self.replica[0]),
            "index": self.replica[1],
            "container": self.container if self.container != names.CONTAINER else None,
            "exitCode": self.exit_code,
            "reason": self.reason or None,
            "time": self.finished_at or None,
        }
        where = field_of(str(self.replica[0]), self.container, is_init=self.is_init)
        found = diagnose(self.reason, self.exit_code, self.message, log_lines, self.sentence, where=where)
        return {**{key: value for key, value in fields.items() if value is not None}, **found.to_status()}


def failures(observed: ObservedPods, policies: dict[Role, RestartPolicy], gone: frozenset[ReplicaId]) -> list[Failure]:
    """Failures of all required replicas. `gone`: those for which a live GET has shown that they have no pod any
    more.
    """
    found = [
        failure_of(observed, replica, policies.get(replica[0], RestartPolicy.EXIT_CODE))
        for replica in observed.members.required
        if _stopped(observed, replica)
    ]
    return found + [
        Failure(r, observed.name(r), Cause.DISRUPTION, None, "Vanished", "its pod no longer exists", "")
        for r in sorted(gone)
    ]


def root_cause(found: Sequence[Failure]) -> Failure:
    """The failure that caused the others; there must be at least one."""
    return min(found, key=_rank)


def peer_failure_grace(failure: Failure, now: datetime) -> datetime | None:
    """Until when to wait for the failure behind a peer failure; None for any other."""
    if not failure.is_peer_failure or not failure.finished_at:
        return None
    ended = moment(failure.finished_at)
    # A node whose clock is ahead must not delay the restart.
    return ended + PEER_FAILURE_GRACE if ended <= now else None


def _stopped(observed: ObservedPods, replica: ReplicaId) -> bool:
    pod = observed.pods.get(replica)
    if pod is None or observed.succeeded(replica) or pod.waited_in_vain:
        # That is no failure of the pod: the start took too long.
        return False
    return has_failed(pod) or pod.deleting or observed.lost(replica) or bool(pod.unhealthy_device)


def failure_of(observed: ObservedPods, replica: ReplicaId, policy: RestartPolicy) -> Failure:
    """The failure of this replica's pod, classified."""
    pod = observed.pods[replica]
    ended = pod.termination
    if observed.lost(replica):
        text = f"its node {pod.node} is gone or not ready"
        return Failure(replica, pod.name, Cause.DISRUPTION, None, NODE_LOST, text, "")
    if pod.unhealthy_device and not pod.deleting:
        # Whatever its program reported: how it ended, if it did, was not its own doing.
        text = f"on the node {pod.node}: {pod.unhealthy_device}"
        code, at = (ended.exit_code, ended.finished_at) if ended else (None, "")
        return Failure(replica, pod.name, Cause.DISRUPTION, code, DEVICE_UNHEALTHY, text, at)
    return Failure(
        replica=replica,
        name=pod.name,
        cause=_cause(pod, policy),
        exit_code=ended.exit_code if ended else None,
        reason=_reason(pod),
        message=ended.message if ended else pod.waiting_message,
        finished_at=ended.finished_at if ended else "",
        sentence=pod.status_message,
        container=ended.container if ended else names.CONTAINER,
        is_init=ended.is_init if ended else False,
    )


def _reason(pod: Pod) -> str:
    """The cause of the deletion is more specific than the container's end."""
    ended = pod.termination
    by_signal = ended is None or (ended.reason == "Error" and ended.exit_code >= FIRST_RETRYABLE)
    said = "Deleted" if pod.deleting and by_signal and not message_of(pod) else ended.reason if ended else ""
    return pod.status_reason or pod.disruption or said


def _cause(pod: Pod, policy: RestartPolicy) -> Cause:
    # The operator records the next attempt before it deletes pods, so another client has made a deletion that is seen
    # here.
    taken = pod.disruption or pod.status_reason in _DISRUPTIONS or no_room_on_node(pod.status_reason)
    if pod.deleting or (taken and not over_own_limit(pod.status_reason, pod.status_message)):
        return Cause.DISRUPTION
    if policy is RestartPolicy.NEVER:
        return Cause.PERMANENT
    if policy in {RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS}:
        return Cause.RETRYABLE
    ended = pod.termination
    if ended is not None and missing_command(ended.reason, ended.exit_code, ended.message):
        return Cause.PERMANENT
    if ended is None or ended_by_cluster(pod) or is_of_runtime(ended.reason) or ended.reason == OOM_KILLED:
        return Cause.RETRYABLE
    return Cause.PERMANENT if 0 < ended.exit_code < FIRST_RETRYABLE else Cause.RETRYABLE


def _rank(failure: Failure) -> tuple[bool, bool, bool, str, str]:
    """Peer failures last. Disruptions first: processes that they take down may exit with any code (raw TensorFlow with
    1). Among equals the earliest."""
    disrupted = failure.cause is Cause.DISRUPTION
    return failure.is_peer_failure, not disrupted, not failure.finished_at, failure.finished_at, failure.name
