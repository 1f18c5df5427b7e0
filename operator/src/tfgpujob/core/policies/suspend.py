"""spec.runPolicy.suspend: pods and their pod group are deleted, the service and the status stay, and resuming begins
a new attempt. A job that waits in a queue of Kueue is stopped in the same way (policies/kueue.py).

Under ParameterServer the chief is deleted first: to save a checkpoint it reads the variables from running servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.snapshot import Delete, Event, Outcome, Pod, Snapshot
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import delete_pod_groups, delete_pods, own_pods
from tfgpujob.core.policies.restart import in_place
from tfgpujob.core.status import progress, replica_statuses
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import Condition, Phase, Reason, Role


def reconcile(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec | None) -> Outcome:
    """Policy of a suspended job. `spec` None: it is not valid, and the builder already has the reason."""
    return stop(snapshot, builder, spec, Reason.SUSPENDED, "spec.runPolicy.suspend is on: no pod runs until it is off.")


def stop(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec | None, reason: Reason, text: str) -> Outcome:
    """Suspended=True with this reason, which is persisted before the first pod is deleted."""
    pods = own_pods(snapshot, builder.attempt)
    events: tuple[Event, ...] = ()
    if builder.fields.get("plan"):
        observed = observe_pods(snapshot, builder.fields)
        replica_statuses.update(builder, observed)
        if spec is not None:
            # A pod reports at its end what was not polled any more.
            events = in_place.count(spec, builder, observed, snapshot)
    new = not builder.is_true(Condition.SUSPENDED) or builder.reason(Condition.SUSPENDED) != reason
    if spec is not None and not builder.is_true(Condition.ACCEPTED):
        accept(builder, spec)
    if new or builder.message(Condition.SUSPENDED) != text:
        _set_conditions(builder, reason, text)
    status: Mapping[str, Any] = builder.build()
    deletes = (*_deletes(pods), *delete_pod_groups(snapshot, builder.attempt))
    return Outcome(status=status, intent=status if new else None, deletes=deletes, events=events)


def is_for(builder: StatusBuilder, reason: Reason) -> bool:
    """True for a job that is suspended for this reason."""
    return builder.is_true(Condition.SUSPENDED) and builder.reason(Condition.SUSPENDED) == reason


def _set_conditions(builder: StatusBuilder, reason: Reason, text: str) -> None:
    builder.set(Condition.RUNNING, False, reason, text)
    builder.set(Condition.SUSPENDED, True, reason, text)
    if builder.attempt or builder.reason(Condition.CREATED):
        builder.set(Condition.CREATED, False, reason, text)
    if builder.is_true(Condition.RESTARTING):
        builder.set(Condition.RESTARTING, False, reason, text)
    progress.clear_stalled(builder, reason, text)
    builder.set_phase(Phase.PENDING if reason is Reason.WAITING_FOR_ADMISSION else Phase.SUSPENDED)
    builder.put("retry", None)


def _deletes(pods: tuple[Pod, ...]) -> tuple[Delete, ...]:
    chief = tuple(pod for pod in pods if pod.role == Role.CHIEF)
    has_ps = any(pod.role == Role.PS for pod in pods)
    stopping = chief if chief and has_ps else pods
    return delete_pods(stopping)
