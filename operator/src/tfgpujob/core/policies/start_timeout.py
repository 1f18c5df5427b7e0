"""A start that takes too long (startDeadlineSeconds, scheduleTimeoutSeconds): release all pods, and retry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfgpujob.api import RunPolicy
from tfgpujob.core.membership.messages import blocking_reason, why_not_ready
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.snapshot import Outcome, Pod
from tfgpujob.core.policies import ensure_pods, finished, start
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.policies.deadlines import schedule_deadline, start_deadline
from tfgpujob.core.policies.refusals import Problem
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.core.status.diagnosis import message_of, unschedulable, without_replica
from tfgpujob.names import Condition, Reason

_NAMES_IN_A_LINE = 8


def started_too_late(ctx: ReconcileContext) -> Outcome | None:
    """Policy: release the attempt when a deadline of its start has passed; under startPolicy Fail the job fails."""
    found = exceeded(ctx.builder, ctx.spec.run_policy, ctx.observed)
    if found is None or not (ctx.observed.pods or ctx.builder.is_true(Condition.CREATED)):
        # An attempt without pods has not started: its deadline is reset when its first pod is created (`starts_late`).
        return None
    if start.fails_on_refusal(ctx.spec.run_policy):
        last_failure = without_replica(str(found.reason), found.message, found.pod_reason)
        finished.fail(ctx.builder, found.reason, found.message, last_failure)
        return finished.finish(ctx.snapshot, ctx.builder, ctx.spec.run_policy)
    next_plan = ctx.resolve(ctx.plan.admission)
    return ensure_pods.release(ctx.snapshot, ctx.builder, ctx.observed, found, next_plan)


def exceeded(builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> Problem | None:
    """The deadline of the start that has passed. scheduleTimeoutSeconds first: the scheduler's message is more
    specific.

    Pods that wait for their peers have the same deadline, and detect it while the operator is down.
    """
    scheduled_by, ready_by = schedule_deadline(builder, policy, observed), start_deadline(builder, policy)
    if scheduled_by is not None and builder.now >= scheduled_by:
        return _not_scheduled_in_time(policy, observed)
    required = set(observed.members.required)
    waited = [pod for replica, pod in observed.pods.items() if replica in required and pod.waited_in_vain]
    passed = waited or (ready_by is not None and builder.now >= ready_by)
    return _not_ready_in_time(policy, observed, waited) if passed else None


def _not_scheduled_in_time(policy: RunPolicy, observed: ObservedPods) -> Problem:
    unscheduled = "; ".join(_unscheduled(observed))
    message = (
        "Not all pods were scheduled within spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds "
        f"({policy.schedule_timeout_seconds} s), so all were released: {unscheduled}. "
        f"{unschedulable(unscheduled)}"
    )
    return Problem(Condition.CREATED, Reason.SCHEDULE_TIMEOUT_EXCEEDED, message, "", 300)


def _not_ready_in_time(policy: RunPolicy, observed: ObservedPods, waited: Sequence[Pod]) -> Problem:
    seconds = policy.start_deadline_seconds
    message = (
        f"Not all replicas were ready within spec.runPolicy.startDeadlineSeconds ({seconds} s), so all were released: "
        f"{why_not_ready(observed, patient=False)[1]}"
    )
    told = (f" {pod.name}: {text}" for pod in waited if (text := message_of(pod)))
    message += next(told, "")
    why = blocking_reason(observed)
    return Problem(Condition.CREATED, Reason.START_DEADLINE_EXCEEDED, message, "", 300, pod_reason=why)


def _unscheduled(observed: ObservedPods) -> Iterable[str]:
    """Which pods are not scheduled and why; pods with the same message together."""
    by_message: dict[str, list[str]] = {}
    for replica, pod in observed.waiting_for_a_node():
        said = (pod.no_room or pod.waiting_message).rstrip(". ") or pod.waiting_reason
        by_message.setdefault(said or "no scheduler has looked at it: is schedulerName right?", []).append(
            observed.name(replica)
        )
    for said, names in by_message.items():
        more = len(names) - _NAMES_IN_A_LINE
        yield f"{', '.join(names[:_NAMES_IN_A_LINE])}{f' and {more} more' if more > 0 else ''}: {said}"
