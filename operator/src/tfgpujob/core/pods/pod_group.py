"""The pod group of an attempt, by which a gang scheduler places all of its pods or none, and a pod's link to it.

It belongs to an attempt, as its pods do: a restart, a resize and a resumption create another one.
"""

from __future__ import annotations

from typing import Any

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.core.observed.gang import GANG_SCHEDULERS, scheduling_policy
from tfgpujob.core.observed.metadata import dependent_metadata
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import POD_GROUPS, Kind, Object


def build_pod_group(job: Object, spec: JobSpec, plan: Plan, kind: Kind, attempt: int) -> Object:
    metadata = dependent_metadata(job)
    metadata["labels"] = {**metadata["labels"], names.LABEL_ATTEMPT: str(attempt)}
    return {
        "apiVersion": POD_GROUPS[kind],
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {key: value for key, value in _spec(kind, spec, plan).items() if value is not None},
    }


def least_members(spec: JobSpec, plan: Plan) -> int:
    """Number of pods that are placed together. A group of more than exist would never be placed."""
    return min(scheduling_policy(spec).min_available or len(plan.members.required), len(plan.members.pods))


def _spec(kind: Kind, spec: JobSpec, plan: Plan) -> dict[str, Any]:
    """The spec for each API."""
    policy, least = scheduling_policy(spec), least_members(spec, plan)
    if kind is Kind.VOLCANO_POD_GROUP:
        return {
            "minMember": least,
            "queue": policy.queue,
            "minResources": policy.min_resources,
            "priorityClassName": policy.priority_class,
        }
    if kind is Kind.COSCHEDULING_POD_GROUP:
        return {
            "minMember": least,
            "minResources": policy.min_resources,
            "scheduleTimeoutSeconds": policy.schedule_timeout_seconds,
        }
    native: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": least}}}
    # v1alpha2 has no such field, and takes the priority from the pods.
    return native if kind is Kind.NATIVE_V1ALPHA2_POD_GROUP else {**native, "priorityClassName": policy.priority_class}


def join_pod_group(
    name: str, plan: Plan, labels: dict[str, str], annotations: dict[str, str], pod_spec: dict[str, Any]
) -> None:
    """Adds the link to a pod's labels, annotations or spec, and the scheduler's name. The template's own take
    precedence.
    """
    if plan.scheduler:
        pod_spec.setdefault("schedulerName", plan.scheduler)
    gang = GANG_SCHEDULERS.get(plan.gang)
    if gang is None:
        return
    if gang.annotation:
        annotations.setdefault(gang.annotation, name)
    if gang.label:
        labels.setdefault(gang.label, name)
    if gang.pod_field:
        pod_spec.setdefault(gang.pod_field, {"podGroupName": name})
