"""Which replica's end stopped the attempt, and what it says about restarting.

Exit codes: 0 is success; 1–127 are permanent, 128 and above retryable (a signal, or a code that the trainer
documents as such: 143 stopped on request, 160 peer failure, 161 deadline, 162 a limit of the machine).
A pod that failed without an exit code was evicted or lost, which is retryable. A peer's failure (160) only echoes
another one: it is blamed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tfgpujob.api import RestartPolicy, StallPolicy
from tfgpujob.core.observed.observed_pods import View, has_failed
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.policies import stall
from tfgpujob.core.policies.context import Case
from tfgpujob.core.status.builder import timestamp
from tfgpujob.core.status.diagnosis import diagnose
from tfgpujob.core.status.progress import report_of, reporter
from tfgpujob.names import Condition, Role

FIRST_RETRYABLE = 128
PEER_FAILURE = 160
NODE_LOST = "NodeLost"
_DISRUPTIONS = frozenset({"Evicted", "Preempting", NODE_LOST, "NodeAffinity", "Shutdown", "Terminated"})


class Cause(StrEnum):
    DISRUPTION = "Disruption"
    """The cluster took the pod away: it spends no budget."""
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

    def __str__(self) -> str:
        if self.reason == Condition.STALLED:
            return f"{self.name} stood still"
        code = "" if self.exit_code is None else f" with exit code {self.exit_code}"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.name} ended{code}{reason}"

    @property
    def is_echo(self) -> bool:
        """It only tells that another task failed."""
        return self.exit_code == PEER_FAILURE and self.cause is not Cause.DISRUPTION

    def to_status(self, log_lines: int) -> dict[str, Any]:
        """status.lastFailure."""
        fields = {
            "role": str(self.replica[0]),
            "index": self.replica[1],
            "exitCode": self.exit_code,
            "reason": self.reason or None,
            "time": self.finished_at or None,
        }
        found = diagnose(self.reason, self.exit_code, self.message, log_lines)
        return {**{key: value for key, value in fields.items() if value is not None}, **found.to_status()}


def failures(view: View, policies: dict[Role, RestartPolicy], gone: frozenset[ReplicaId]) -> list[Failure]:
    """Of all required replicas. `gone`: those that certainly have no pod any more."""
    found = [
        failure_of(view, replica, policies.get(replica[0], RestartPolicy.EXIT_CODE))
        for replica in view.plan.required()
        if _stopped(view, replica)
    ]
    return found + [
        Failure(r, view.name(r), Cause.DISRUPTION, None, "Vanished", "its pod no longer exists", "")
        for r in sorted(gone)
    ]


def stalled(case: Case) -> Failure | None:
    """The stall as a failure of the replica that is to blame, if the job is to start again for it."""
    unheard = report_of(case.view, case.snapshot.reports, reporter(case.view)) is None
    if case.spec.run_policy.stall_policy is not StallPolicy.RESTART or unheard:
        return None
    if not case.draft.is_true(Condition.STALLED):
        return None
    replica = stall.blocking_replica(case) or reporter(case.view)
    name, text = case.view.name(replica), case.draft.message(Condition.STALLED)
    return Failure(replica, name, Cause.RETRYABLE, None, str(Condition.STALLED), text, timestamp(case.now))


def to_blame(found: Sequence[Failure]) -> Failure:
    """Of at least one, the failure that the others follow from."""
    return min(found, key=_blame)


def _stopped(view: View, replica: ReplicaId) -> bool:
    pod = view.pods.get(replica)
    if pod is None or view.succeeded(replica) or pod.gave_up_at_gate:
        # Who gave up waiting for the others has not failed: the start was too late.
        return False
    return has_failed(pod) or pod.deleting or view.lost(replica)


def failure_of(view: View, replica: ReplicaId, policy: RestartPolicy) -> Failure:
    """What the end of this replica's pod means."""
    pod = view.pods[replica]
    ended = pod.termination
    if view.lost(replica):
        text = f"its node {pod.node} is gone or not ready"
        return Failure(replica, pod.name, Cause.DISRUPTION, None, NODE_LOST, text, "")
    return Failure(
        replica=replica,
        name=pod.name,
        cause=_cause(pod, policy),
        exit_code=ended.exit_code if ended else None,
        reason=pod.status_reason or (ended.reason if ended else "") or ("Deleted" if pod.deleting else ""),
        message=ended.message if ended else pod.waiting_message,
        finished_at=ended.finished_at if ended else "",
    )


def _cause(pod: Pod, policy: RestartPolicy) -> Cause:
    # The operator marks an attempt as over before it deletes its pods, so a deletion seen here is somebody else's.
    if pod.deleting or pod.disrupted or pod.status_reason in _DISRUPTIONS:
        return Cause.DISRUPTION
    if policy is RestartPolicy.NEVER:
        return Cause.PERMANENT
    if policy in {RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS}:
        return Cause.RETRYABLE
    code = pod.termination.exit_code if pod.termination else FIRST_RETRYABLE
    return Cause.RETRYABLE if code >= FIRST_RETRYABLE else Cause.PERMANENT


def _blame(failure: Failure) -> tuple[bool, bool, bool, str, str]:
    """First the specific ones; of those the disruptions, since a peer that they take down may exit with anything
    (raw TensorFlow with 1); then the earliest."""
    disrupted = failure.cause is Cause.DISRUPTION
    return failure.is_echo, not disrupted, not failure.finished_at, failure.finished_at, failure.name
