"""Kueue: a job with its label gets a Workload, and nothing else before that is admitted.

A waiting job is suspended, with the reason WaitingForAdmission: an eviction stops its pods as suspend does, at a
checkpoint, and an admission resumes it. The Workload's conditions report that the quota is free again when the last pod
is deleted, and that the job is finished when the last pod has ended.

A job of MultiKueue's has two operators. The one in the manager cluster, where the job was created, writes its Workload
and no pod, and leaves the status to MultiKueue, which copies it from the job in the worker cluster. There the Workload
was sent with the job: the operator obeys and updates it like any other, but never creates or deletes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from tfgpujob.api import JobSpec
from tfgpujob.core.observed import admission
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.members import Membership
from tfgpujob.core.observed.metadata import pod_name
from tfgpujob.core.observed.observed_pods import holds_node
from tfgpujob.core.observed.ownership import is_dispatched
from tfgpujob.core.observed.snapshot import (
    KUEUE,
    Config,
    Create,
    Delete,
    Event,
    Object,
    Outcome,
    Pod,
    Snapshot,
    StatusWrite,
    Workload,
)
from tfgpujob.core.pods.workload import build_workload, pod_sets
from tfgpujob.core.policies import finished, start, success, suspend
from tfgpujob.core.policies.context import new_context, own_pods
from tfgpujob.core.policies.deadlines import expiry
from tfgpujob.core.status import workload
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.names import LABEL_QUEUE, Condition, Reason, Role

_NO_QUEUE = f"Waits: MultiKueue takes it from a queue. Name one in metadata.labels[{LABEL_QUEUE}]."
_QUEUE_REQUIRED = (
    f"Waits: in this cluster each job waits in a queue of Kueue. Name one in metadata.labels[{LABEL_QUEUE}]; "
    "`kubectl get localqueues` lists those of the namespace."
)
_MISSING = "MultiKueue has sent it here, and its Workload is not here."
_NOWHERE = (
    "Kueue admitted it, and it runs nowhere: the ClusterQueue has no admission check of MultiKueue. Add one, or name "
    "another queue."
)
_COPY_SECONDS: Final = 60
"""How long the last status of a job may take from the other cluster."""
_UNLIKE = (
    "the Workload that MultiKueue has sent with it asks for other pods. Edit the job where it was made, not here, "
    "and have one version of TFGPUJob in both clusters."
)


def wait_for_admission(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome | None:
    """Policy of a job that is to run: None when it waits for no queue."""
    if not config.kueue_enabled:
        return None
    if _has_begun(builder):
        text = stopped_by(snapshot, builder, spec, config)
        if not text:
            return None
        ended = success.succeeded(new_context(snapshot, builder, spec, config))
        return ended or _stop(snapshot, builder, spec, text)
    if not admission.queue_name(snapshot.job) and not admission.prebuilt_name(snapshot.job):
        return _wait_for_a_name(snapshot, builder, spec, config) if config.queue_required else None
    found = admission.admission(snapshot, config)
    if found is None or own_pods(snapshot, builder.attempt) or _current(snapshot, spec) is None:
        return _queue(snapshot, builder, spec, config)
    return _wait(snapshot, builder, spec, found) if isinstance(found, str) else None


def wait_for_dispatch(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    """Policy of a job that is to run in another cluster: it waits until MultiKueue has found one."""
    held, queue = admission.own_workload(snapshot), admission.queue_name(snapshot.job)
    if held is None and not queue:
        return _wait(snapshot, builder, spec, _NO_QUEUE)
    if held is not None and admission.has(held, admission.FINISHED):
        return _over(builder, spec, held)
    current = _current(snapshot, spec)
    if runs_elsewhere(snapshot) and (not queue or current is not None):
        return Outcome()
    stopped = _stopped_elsewhere(held, builder) if held is not None else None
    if stopped is not None and builder.now < stopped:
        return Outcome(requeue_at=stopped)
    if current is not None and admission.is_admitted(current):
        return _wait(snapshot, builder, spec, _waits(snapshot, _NOWHERE))
    return _queue(snapshot, builder, spec, config)


def runs_elsewhere(snapshot: Snapshot) -> bool:
    """True if MultiKueue writes the job's status; then the operator does not."""
    held = admission.own_workload(snapshot)
    return held is not None and admission.is_elsewhere(held)


def _stopped_elsewhere(held: Workload, builder: StatusBuilder) -> datetime | None:
    """Until when a job that is losing its quota keeps it for its pods in the other cluster, which the copied status
    counts: MultiKueue stops them there, and deletes the job as soon as the quota is free. None: it has no pods, or its
    Workload is deleted anyway. The count does not change if that cluster is lost, or Kueue is older than 0.16.
    """
    evicted = admission.eviction(held)
    if held.deleting or not admission.holds_quota(held) or (held.active and not evicted):
        return None
    if not any(counts.get("active") for counts in (builder.fields.get("replicaStatuses") or {}).values()):
        return None
    began = moment(evicted["lastTransitionTime"]) if evicted else builder.now
    return began + timedelta(seconds=held.stop_seconds + _COPY_SECONDS)


def stopped_by(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec | None, config: Config) -> str:
    """Why an attempt that Kueue admitted must stop, as long as it has pods; empty: it need not.

    `spec` None: it is not valid.
    """
    if config.kueue is None or not (builder.fields.get("plan") or {}).get("queue"):
        return ""  # it began before Kueue was turned on, or Kueue has been turned off
    if not _has_begun(builder):
        waits = builder.reason(Condition.SUSPENDED) == Reason.WAITING_FOR_ADMISSION
        return builder.message(Condition.SUSPENDED) if waits and own_pods(snapshot, builder.attempt) else ""
    held = admission.own_workload(snapshot)
    if held is None:
        return _waits(snapshot, "its Workload was deleted.")
    if not admission.is_admitted(held):
        return _waits(snapshot, admission.why_not_admitted(held))
    if spec is not None and _asks_for_others(builder, spec, held):
        return _waits(snapshot, "it asks for other pods than those it was admitted for.")
    return ""


def with_workload(outcome: Outcome, snapshot: Snapshot, config: Config, now: datetime) -> Outcome:
    """The outcome, with the status of the Workload for a job that runs, has finished, or needs no quota any more."""
    if _is_left_over(outcome, snapshot, config):
        return Outcome(deletes=(finished.delete_job(snapshot),))
    return _with_news(outcome, snapshot, config, now)


def _with_news(outcome: Outcome, snapshot: Snapshot, config: Config, now: datetime) -> Outcome:
    held = admission.own_workload(snapshot) if config.kueue is not None else None
    if held is None or held.deleting or outcome.lookups:
        return outcome
    job = snapshot.job
    status: Object = outcome.status if outcome.status is not None else job.get("status") or {}
    elsewhere, prebuilt = is_dispatched(job), bool(admission.prebuilt_name(job))
    if is_true({"status": status}, Condition.FINISHED):
        # For a job in another cluster MultiKueue sets it, once the Workload there has it.
        told = elsewhere or admission.has(held, admission.FINISHED)
        if not told and not any(holds_node(pod) for pod in _all_pods(snapshot)):
            return _telling(outcome, snapshot, config, held, workload.finished(held, status, now))
    elif _runs_without_queue(status) and not elsewhere and not prebuilt:
        return _deleting(outcome, config, held)
    elif _needs_no_quota(status) and not prebuilt:
        return outcome if _all_pods(snapshot) else _deleting_once_free(outcome, snapshot, status, config, held)
    elif is_true({"status": status}, Condition.RUNNING) and not admission.has(held, admission.PODS_READY):
        return _telling(outcome, snapshot, config, held, workload.pods_ready(held, now))
    return outcome


# A job that is to run, and its queue.


def _wait_for_a_name(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    outcome, held = _wait(snapshot, builder, spec, _QUEUE_REQUIRED), admission.own_workload(snapshot)
    if held is None or held.deleting or own_pods(snapshot, builder.attempt):
        return outcome
    return _deleting_once_free(outcome, snapshot, builder.fields, config, held)


def _queue(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    """First the pods of an earlier attempt are deleted, then a Workload with other requests, and its quota with it."""
    if config.kueue is None:
        text = "this cluster does not serve Kueue's Workloads. Install Kueue, and restart the operator."
        return _wait(snapshot, builder, spec, _waits(snapshot, text))
    if own_pods(snapshot, builder.attempt):
        waits = builder.reason(Condition.SUSPENDED) == Reason.WAITING_FOR_ADMISSION
        why = builder.message(Condition.SUSPENDED) if waits else _waits(snapshot, "its pods are still stopping.")
        return _wait(snapshot, builder, spec, why)
    current, held = _current(snapshot, spec), snapshot.workload
    if current is not None:
        outcome = _wait(snapshot, builder, spec, _waits(snapshot, admission.why_not_admitted(current)))
        evicted = admission.has(current, admission.EVICTED) and admission.holds_quota(current)
        return _releasing(outcome, snapshot, builder, config, current) if evicted else outcome
    if held is not None and held.owner_uid:
        outcome = _wait(snapshot, builder, spec, _waits(snapshot, "its earlier Workload has to go first."))
        if held.deleting or held.owner_uid != snapshot.job["metadata"]["uid"]:
            return outcome
        return _deleting_once_free(outcome, snapshot, builder.fields, config, held)
    return _create(snapshot, builder, spec, config)


def _create(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    if admission.prebuilt_name(snapshot.job):
        why = _MISSING if snapshot.workload is None else _UNLIKE
        return _wait(snapshot, builder, spec, _waits(snapshot, why))
    retry_at = start.not_before(builder)
    if retry_at is not None and builder.now < retry_at:
        return Outcome(status=builder.build(), requeue_at=retry_at)
    made = build_workload(snapshot, spec, config)
    if isinstance(made, str):
        return _wait(snapshot, builder, spec, _waits(snapshot, made))
    assert config.kueue is not None
    outcome = _wait(snapshot, builder, spec, _waits(snapshot))
    return replace(outcome, creates=(Create(config.kueue, made),), first=made["metadata"]["name"])


def _wait(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, text: str) -> Outcome:
    builder.set(Condition.CREATED, False, Reason.WAITING_FOR_ADMISSION, text)
    return _stop(snapshot, builder, spec, text)


def _stop(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, text: str) -> Outcome:
    outcome = suspend.stop(snapshot, builder, spec, Reason.WAITING_FOR_ADMISSION, text)
    if outcome.intent is None:
        return outcome
    event = Event("Normal", str(Reason.WAITING_FOR_ADMISSION), text)
    return replace(outcome, events=(*outcome.events, event))


def _over(builder: StatusBuilder, spec: JobSpec, held: Workload) -> Outcome:
    """It ended in the other cluster, and was deleted there before its last status was copied."""
    found = admission.condition(held, admission.FINISHED)
    message = str(found.get("message") or "Its Workload is finished.")
    if builder.is_true(Condition.SUSPENDED):
        builder.set(Condition.SUSPENDED, False, Reason.STOPPED, message)
    if found.get("reason") == Reason.SUCCEEDED:
        finished.succeed(builder, Reason.SUCCEEDED, message)
    else:
        finished.fail(builder, Reason.FAILED, message)
    status, event = builder.build(), finished.final_event(builder)
    return Outcome(status=status, intent=status, events=(event,), requeue_at=expiry(spec.run_policy, status))


def _waits(snapshot: Snapshot, why: str = "") -> str:
    queue = admission.queue_name(snapshot.job)
    where = f"Waits in the queue {queue}" if queue else "Stops"
    return f"{where}: {why}" if why else f"{where}."


def _has_begun(builder: StatusBuilder) -> bool:
    return bool(builder.attempt and builder.fields.get("plan")) and not builder.is_true(Condition.SUSPENDED)


def _current(snapshot: Snapshot, spec: JobSpec) -> Workload | None:
    """The job's own Workload, if its requests match the spec."""
    held = admission.own_workload(snapshot)
    return held if held is not None and held.pod_sets == pod_sets(snapshot.job, spec) else None


def _asks_for_others(builder: StatusBuilder, spec: JobSpec, held: Workload) -> bool:
    """A resize, or an edit before all pods are created: Kueue does not permit changes of what it has admitted."""
    if spec.shape_hash == builder.fields["plan"]["specHash"]:
        return spec.elastic and held.counts.get(Role.WORKER) != spec.replica_specs.count(Role.WORKER)
    refused = builder.reason(Condition.ACCEPTED) == Reason.IMMUTABLE_FIELD_CHANGED
    return not refused and not builder.is_true(Condition.CREATED)


# Updates of the Workload's status.


def _releasing(outcome: Outcome, snapshot: Snapshot, builder: StatusBuilder, config: Config, held: Workload) -> Outcome:
    """After an eviction the owner releases the quota."""
    if held.deleting:
        return outcome
    if admission.prebuilt_name(snapshot.job):
        # At once: the quota in the manager cluster waits for a status that counts no pods.
        outcome = replace(outcome, intent=outcome.status)
    lookups = _not_looked_up(snapshot, builder.fields)
    released = workload.released(held, builder.now)
    return Outcome(lookups=lookups) if lookups else _telling(outcome, snapshot, config, held, released)


def _telling(outcome: Outcome, snapshot: Snapshot, config: Config, held: Workload, status: Object) -> Outcome:
    """The resourceVersion prevents the loss of what Kueue has written meanwhile."""
    assert config.kueue is not None
    namespace = snapshot.job["metadata"]["namespace"]
    metadata = {"name": held.name, "namespace": namespace, "uid": held.uid, "resourceVersion": held.resource_version}
    body = {"apiVersion": KUEUE[config.kueue], "kind": "Workload", "metadata": metadata, "status": status}
    return replace(outcome, status_writes=(*outcome.status_writes, StatusWrite(config.kueue, body)))


def _deleting_once_free(
    outcome: Outcome, snapshot: Snapshot, status: Mapping[str, Any], config: Config, held: Workload
) -> Outcome:
    lookups = _not_looked_up(snapshot, status)
    return Outcome(lookups=lookups) if lookups else _deleting(outcome, config, held)


def _deleting(outcome: Outcome, config: Config, held: Workload) -> Outcome:
    assert config.kueue is not None
    return replace(outcome, deletes=(*outcome.deletes, Delete(config.kueue, held.name, held.uid)))


def _not_looked_up(snapshot: Snapshot, status: Mapping[str, Any]) -> tuple[str, ...]:
    """Pods that are not in the cache: one whose create got no answer may exist, and use the quota."""
    if not status.get("plan"):
        return ()
    name = snapshot.job["metadata"]["name"]
    wanted = (pod_name(name, *replica) for replica in Membership.from_plan(status["plan"]).pods)
    return tuple(pod for pod in wanted if pod not in snapshot.absent)


def _is_left_over(outcome: Outcome, snapshot: Snapshot, config: Config) -> bool:
    """True for a job that was sent here and started by a Workload that MultiKueue has deleted since. MultiKueue's
    garbage collection finds a job by its Workload's owner: it leaves this one, and would take it for the next job of
    its name."""
    job = snapshot.job
    if config.kueue is None or snapshot.workload is not None or not admission.prebuilt_name(job):
        return False
    began = bool(((job.get("status") or {}).get("plan") or {}).get("queue"))
    stopped = is_true(job, Condition.FINISHED) or not _all_pods(snapshot)
    return began and stopped and outcome.intent is None and not outcome.lookups


def _runs_without_queue(status: Mapping[str, Any]) -> bool:
    """Its label was removed while it waited."""
    plan = status.get("plan") or {}
    return bool(plan) and not plan.get("queue") and not is_true({"status": status}, Condition.SUSPENDED)


def _needs_no_quota(status: Mapping[str, Any]) -> bool:
    """It is suspended, and not to wait for Kueue, or it waits with a spec that is not valid any more."""
    found = {c["type"]: c for c in status.get("conditions") or ()}
    if found.get(Condition.SUSPENDED, {}).get("status") != "True":
        return False
    invalid = found.get(Condition.ACCEPTED, {}).get("reason") == Reason.INVALID_SPEC
    return invalid or bool(found[Condition.SUSPENDED]["reason"] != Reason.WAITING_FOR_ADMISSION)


def _all_pods(snapshot: Snapshot) -> tuple[Pod, ...]:
    """The job's own, of any attempt."""
    uid = snapshot.job["metadata"]["uid"]
    return tuple(pod for pod in snapshot.pods if pod.owner_uid == uid)
