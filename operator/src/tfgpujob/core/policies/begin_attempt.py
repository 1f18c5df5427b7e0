"""Begin an attempt that follows no failure: the first, one after a suspension, or one after an edit of the spec."""

from __future__ import annotations

from dataclasses import replace

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.core.membership import messages
from tfgpujob.core.observed.admission import admission
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.plan import Plan, resolve
from tfgpujob.core.observed.snapshot import Config, Dependent, Event, Outcome, Pod, Snapshot
from tfgpujob.core.policies import ensure_pods, start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import new_context
from tfgpujob.core.policies.restart import in_place
from tfgpujob.core.status.builder import StatusBuilder, timestamp
from tfgpujob.names import Condition, Phase, Reason, Role


def begin_attempt(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    """The Outcome whose intent records the new attempt and which creates its pods."""
    told: tuple[Event, ...] = ()
    if builder.is_true(Condition.SUSPENDED):
        if builder.fields.get("plan"):
            # The last reports of its old pods may arrive together with its resumption.
            observed = observe_pods(snapshot, builder.fields)
            told = in_place.count(spec, builder, observed, snapshot)
        builder.set(Condition.SUSPENDED, False, *_why_resumed(builder))
        builder.put("startTime", None)
    _skip_used_attempt_numbers(snapshot, builder)
    edited = start.needs_edit(builder)
    admitted = admission(snapshot, config)
    if isinstance(admitted, str):
        admitted = Plan.from_status(builder.fields["plan"]).admission
    start.next_attempt(builder, resolve(spec, config, admitted, image_volumes=snapshot.image_volumes))
    builder.put("startTime", builder.fields.get("startTime") or timestamp(builder.now))
    builder.put("restarts", builder.fields.get("restarts", 0))
    builder.put("selector", _selector(snapshot.job["metadata"]["name"], spec))
    if edited:
        accept(builder, spec)
        builder.set(Condition.CREATED, False, Reason.STARTING, "The spec was edited: its pods are created anew.")
    if not start.refused_by_api_server(builder):
        accept(builder, spec)
    builder.set_phase(Phase.STARTING)
    ctx = new_context(snapshot, builder, spec, config)
    builder.set(Condition.RUNNING, False, *messages.why_not_ready(ctx.observed))
    outcome = ensure_pods.ensure_pods(ctx, persisted=False)
    return replace(outcome, events=(*told, *outcome.events))


def _selector(job_name: str, spec: JobSpec) -> str:
    """Selector of the pods that /scale counts: an autoscaler of an elastic job must not count its chief as a worker."""
    workers = f",{names.LABEL_REPLICA_TYPE}={Role.WORKER}" if spec.elastic else ""
    return f"{names.LABEL_JOB_NAME}={job_name}{workers}"


def _why_resumed(builder: StatusBuilder) -> tuple[Reason, str]:
    if builder.reason(Condition.SUSPENDED) == Reason.WAITING_FOR_ADMISSION:
        return Reason.ADMITTED, "Its queue has admitted it."
    if builder.reason(Condition.SUSPENDED) == Reason.NOT_USED:
        return Reason.RESUMED, "Its spec was edited, or it was resumed."
    return Reason.RESUMED, "spec.runPolicy.suspend is off again."


def _skip_used_attempt_numbers(snapshot: Snapshot, builder: StatusBuilder) -> None:
    """After the status was emptied: the labels of the job's objects still have the used numbers."""
    uid = snapshot.job["metadata"]["uid"]
    labelled: tuple[Pod | Dependent, ...] = (*snapshot.pods, *snapshot.pod_groups.values())
    builder.put("attempt", max([builder.attempt, *(obj.attempt for obj in labelled if obj.owner_uid == uid)]))
