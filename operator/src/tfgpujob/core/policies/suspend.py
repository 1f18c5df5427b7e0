"""spec.runPolicy.suspend: the pods stop, the service and the status stay, and resuming is a new attempt.

Under ParameterServer the chief goes first: to save, it must read the variables from parameter servers that live.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.observed_pods import build_view
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Delete, Kind, Outcome, Pod, Snapshot
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import own_pods
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import Draft
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses
from tfgpujob.names import Condition, Phase, Reason, Role


def reconcile(snapshot: Snapshot, draft: Draft, spec: JobSpec | None) -> Outcome:
    """`spec` None: it is not valid, which is said already."""
    pods = own_pods(snapshot, draft.attempt)
    if draft.fields.get("plan"):
        view = build_view(snapshot, Plan.from_status(draft.fields["plan"]), draft.fields)
        draft.put("replicaStatuses", replica_statuses(view))
        draft.put("ready", ready_text(view))
    new = not draft.is_true(Condition.SUSPENDED)
    if spec is not None and not draft.is_true(Condition.ACCEPTED):
        accept(draft, spec)
    if new:
        _say_so(draft)
    status: Mapping[str, Any] = draft.done()
    return Outcome(status=status, intent=status if new else None, deletes=_stops(pods))


def _say_so(draft: Draft) -> None:
    text = "spec.runPolicy.suspend is on: no pod runs until it is off."
    draft.set(Condition.RUNNING, False, Reason.SUSPENDED, text)
    draft.set(Condition.SUSPENDED, True, Reason.SUSPENDED, text)
    if draft.reason(Condition.CREATED):
        draft.set(Condition.CREATED, False, Reason.SUSPENDED, text)
    if draft.is_true(Condition.RESTARTING):
        draft.set(Condition.RESTARTING, False, Reason.SUSPENDED, text)
    progress.no_more(draft, Reason.SUSPENDED, text)
    draft.set_phase(Phase.SUSPENDED)
    draft.put("retry", None)


def _stops(pods: tuple[Pod, ...]) -> tuple[Delete, ...]:
    chief = tuple(pod for pod in pods if pod.role == Role.CHIEF)
    serves = any(pod.role == Role.PS for pod in pods)
    stopping = chief if chief and serves else pods
    return tuple(Delete(Kind.POD, pod.name, pod.uid) for pod in stopping if not pod.deleting)
