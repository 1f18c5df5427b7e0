"""Ensure that an attempt has its pods, service, NetworkPolicy and pod group: what is missing is created, once its name
is free."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from tfgpujob.core.observed.gang import pod_group_kind
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.ownership import Ownership, dependent_ownership
from tfgpujob.core.observed.parsed import allows_host
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import POD_GROUPS, Create, Creation, Dependent, Event, Kind, Outcome, Snapshot
from tfgpujob.core.pods.in_place import changes_in_place, supervises, takes_workers_in
from tfgpujob.core.pods.network_policy import build_network_policy, isolated
from tfgpujob.core.pods.pod import Replica
from tfgpujob.core.pods.pod_create import PodCreate
from tfgpujob.core.pods.pod_group import build_pod_group, least_members
from tfgpujob.core.pods.pod_token import pod_token
from tfgpujob.core.pods.service import build_service
from tfgpujob.core.policies import start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.backoff import LONGEST
from tfgpujob.core.policies.context import ReconcileContext, delete_old_pods
from tfgpujob.core.policies.deadlines import starts_late
from tfgpujob.core.policies.refusals import Problem, name_taken
from tfgpujob.core.status import goodput_account
from tfgpujob.core.status.builder import StatusBuilder, moment, timestamp
from tfgpujob.names import Condition, Phase, Reason, Role
from tfgpujob.units import counted

_WORDS: Final = {
    Kind.SERVICE: "service",
    Kind.NETWORK_POLICY: "NetworkPolicy",
    **dict.fromkeys(POD_GROUPS, "pod group"),
}


def ensure_pods(ctx: ReconcileContext, *, persisted: bool) -> Outcome:
    """Creates what is missing. `persisted`: the status in the cluster records this attempt already."""
    builder = ctx.builder
    retry_at = start.not_before(builder)
    wait = (retry_at is not None and ctx.now < retry_at) or (persisted and start.needs_edit(builder))
    held = builder.refused if wait else frozenset()
    if wait and (not builder.is_true(Condition.CREATED) or ctx.job["metadata"]["name"] in held):
        return _wait(ctx, retry_at, persisted=persisted)
    taken = _taken_by_others(ctx)
    if taken is not None:
        if builder.is_true(Condition.CREATED):
            return _report_missing(ctx, taken)
        return release(ctx.snapshot, builder, ctx.observed, taken, ctx.plan)
    blocker = _stale_object(ctx)
    if blocker:
        return _wait_for(ctx, blocker, persisted=persisted)
    return _create_all_but(ctx, retry_at, held) if held else _create(ctx, persisted=persisted)


def incomplete(ctx: ReconcileContext) -> Outcome | None:
    """Policy: pods, the service, the NetworkPolicy or the pod group are missing."""
    if not ctx.observed.missing() and has_dependents(ctx):
        return None
    if not ctx.observed.required_missing():
        _report_running(ctx)
    return ensure_pods(ctx, persisted=True)


def running(ctx: ReconcileContext) -> Outcome:
    """Policy: nothing to do except to update the status."""
    _report_running(ctx)
    return ctx.requeue()


def report_all_created(ctx: ReconcileContext) -> None:
    """Sets Created. Before all policies, so that a job which ends within one reconcile has it too."""
    builder = ctx.builder
    builder.set(Condition.CREATED, True, Reason.ALL_CREATED, _all_created(builder.attempt))
    if start.refused_by_api_server(builder):
        accept(builder, ctx.spec)
    start.clear_refusals(builder)


def _report_running(ctx: ReconcileContext) -> None:
    builder = ctx.builder
    if not ctx.observed.missing() and not builder.is_true(Condition.CREATED):
        builder.set(Condition.CREATED, True, Reason.ALL_CREATED, _all_created(builder.attempt))
    start.report_running(builder, ctx.observed)


def release(
    snapshot: Snapshot, builder: StatusBuilder, observed: ObservedPods, found: Problem, next_plan: Plan
) -> Outcome:
    """End this start: its pods are deleted, and the next start is recorded with its backoff."""
    known = builder.reason(found.condition) == found.reason
    start.release(builder, next_plan, found, created_some=bool(observed.pods))
    status = builder.build()
    return Outcome(
        status,
        intent=status,
        deletes=delete_old_pods(snapshot, builder.attempt),
        events=() if known else (Event("Warning", str(found.reason), found.message),),
        requeue_at=start.not_before(builder),
    )


def _report_missing(ctx: ReconcileContext, found: Problem) -> Outcome:
    """A created attempt is never released because something that isn't required can't be created."""
    known = ctx.builder.reason(found.condition) == found.reason
    start.report_missing(ctx.builder, found)
    events = () if known else (Event("Warning", str(found.reason), found.message),)
    return replace(ctx.requeue(start.not_before(ctx.builder)), events=events)


def _all_created(attempt: int) -> str:
    return f"All pods of attempt {attempt} are created."


def has_dependents(ctx: ReconcileContext) -> bool:
    """True if the job has its service, and its NetworkPolicy and its pod group if it needs them."""
    return all(whose is Ownership.OURS for _, _, whose in _dependents(ctx))


def _dependents(ctx: ReconcileContext) -> list[tuple[Kind, Dependent | None, Ownership | None]]:
    """The objects that the job needs besides pods, by kind: the object that has the name, and its ownership; None for
    none.
    """
    found: list[tuple[Kind, Dependent | None]] = [(Kind.SERVICE, ctx.snapshot.service)]
    if isolated(ctx.job, ctx.config):
        found.insert(0, (Kind.NETWORK_POLICY, ctx.snapshot.network_policy))
    group = pod_group_kind(ctx.plan.gang, ctx.config)
    if group is not None:
        found.insert(0, (group, ctx.snapshot.pod_groups.get(group)))
    return [(kind, held, _ownership(ctx, kind, held) if held is not None else None) for kind, held in found]


def _ownership(ctx: ReconcileContext, kind: Kind, held: Dependent) -> Ownership:
    attempt = ctx.builder.attempt if kind in POD_GROUPS else 0
    created = ctx.builder.is_true(Condition.CREATED)
    return dependent_ownership(held, ctx.job["metadata"]["uid"], attempt, created=created)


def _taken_by_others(ctx: ReconcileContext) -> Problem | None:
    """A foreign object with a name of ours. In a created attempt a pod's name does not count: that pod is refused
    alone.
    """
    for kind, held, whose in _dependents(ctx):
        if held is not None and whose is Ownership.FOREIGN:
            return name_taken(kind, held.name)
    required = {ctx.observed.name(replica) for replica in ctx.members.required}
    taken = [pod.name for pod in ctx.observed.foreign if pod.name in required]
    return name_taken(Kind.POD, taken[0]) if taken and not ctx.builder.is_true(Condition.CREATED) else None


def _stale_object(ctx: ReconcileContext) -> str:
    """A stale object that must be gone before anything is created; empty when there is none."""
    for kind, held, whose in _dependents(ctx):
        if held is not None and whose is not Ownership.OURS:
            return f"{kind} {held.name}"
    return f"Pod {ctx.observed.stale_pods[0].name}" if ctx.observed.stale_pods else ""


def _wait_for(ctx: ReconcileContext, blocker: str, *, persisted: bool) -> Outcome:
    text = f"{blocker} of an earlier start is still going; nothing new is created beside it."
    ctx.builder.set(Condition.CREATED, False, Reason.WAITING_FOR_OLD_PODS, text)
    return _wait(ctx, None, persisted=persisted)


def _wait(ctx: ReconcileContext, until: datetime | None, *, persisted: bool) -> Outcome:
    outcome = ctx.requeue(until)
    deletes = delete_old_pods(ctx.snapshot, ctx.builder.attempt)
    return replace(outcome, intent=None if persisted else outcome.status, deletes=deletes)


def _create_all_but(ctx: ReconcileContext, retry_at: datetime | None, held: frozenset[str]) -> Outcome:
    """Creates replicas that restart beside refused objects, whose conditions are kept."""
    creates = tuple(create for create in _missing_objects(ctx) if create.name not in held)
    return replace(ctx.requeue(retry_at, *_restart_times(ctx)), creates=creates)


def _create(ctx: ReconcileContext, *, persisted: bool) -> Outcome:
    builder = ctx.builder
    creates = _missing_objects(ctx)
    if not creates:
        return ctx.requeue(*_restart_times(ctx))
    if not builder.is_true(Condition.RUNNING):
        start.report_not_ready(builder, ctx.observed)
    late = not ctx.observed.pods and starts_late(builder, ctx.spec.run_policy)
    if late:
        builder.put("attemptStartTime", timestamp(builder.now))
    intent = builder.build() if late or not persisted else None
    # While the others run, no create has to succeed before the rest is tried.
    refused_last = "" if builder.is_true(Condition.CREATED) else (builder.fields.get("retry") or {}).get("object", "")
    # True once the creates have succeeded; otherwise `finalize_status` does not write it.
    accept(builder, ctx.spec)
    builder.set(Condition.CREATED, True, Reason.ALL_CREATED, _all_created(builder.attempt))
    start.clear_refusals(builder)
    if builder.fields.get("phase") == Phase.PENDING:
        builder.set_phase(Phase.STARTING)
    return Outcome(
        status=builder.build(),
        intent=intent,
        creates=creates,
        first=refused_last if any(create.name == refused_last for create in creates) else "",
        events=(Event("Normal", "Created", f"Attempt {builder.attempt}: created {_in_words(creates)}."),),
        requeue_at=ctx.requeue(*_restart_times(ctx)).requeue_at,
    )


def _restart_times(ctx: ReconcileContext) -> tuple[datetime, ...]:
    return tuple(moment(ctx.observed.records[replica].backoff_until) for replica in _waiting_to_restart(ctx))


def _waiting_to_restart(ctx: ReconcileContext) -> tuple[ReplicaId, ...]:
    """Replicas whose restart waits for their stale pod to be gone, or for the end of their backoff."""
    observed = ctx.observed
    return tuple(
        r
        for r in observed.missing()
        if observed.restart_pending(r)
        and (r in observed.stale_replicas or ctx.now < moment(observed.records[r].backoff_until) <= ctx.now + LONGEST)
    )


def _replica(ctx: ReconcileContext, replica: ReplicaId) -> Replica:
    attempt, restart = ctx.builder.attempt, ctx.observed.restart(replica)
    pod = f"{ctx.job['metadata']['uid']}/{ctx.observed.name(replica)}/{attempt}/{restart}"
    key, ours = ctx.config.progress_key, ctx.spec.trainer is not None or supervises(ctx.spec, replica[0])
    reports = ours or ctx.spec.run_policy.stall_seconds is not None
    return Replica(
        *replica,
        attempt,
        restart,
        progress_token=pod_token(key, pod) if key and reports else "",
        recovery_token=_recovery_token(ctx) if key and ours else "",
        joins=_joins_gang(ctx, replica),
        restarts_left=ctx.spec.run_policy.backoff_limit - int(ctx.builder.fields.get("restarts") or 0),
        reached_step=goodput_account.reached_step(ctx.builder.fields),
        save_seconds=int((ctx.builder.fields.get("lastCheckpoint") or {}).get("seconds") or 0),
    )


def _joins_gang(ctx: ReconcileContext, replica: ReplicaId) -> bool:
    """True if it joins a gang that is training."""
    new = replica in ctx.members.joining and changes_in_place(ctx.spec, ctx.plan)
    return new or _replaces_member(ctx, replica)


def _replaces_member(ctx: ReconcileContext, replica: ReplicaId) -> bool:
    """True if it replaces a lost pod (restart/gang.py): the gang continues with it."""
    restarted = replica[0] is not Role.EVALUATOR and ctx.observed.restart(replica) > 0
    return restarted and changes_in_place(ctx.spec, ctx.plan)


def _recovery_token(ctx: ReconcileContext) -> str:
    """The token of the attempt's other pods, which another process of the operator may have created."""
    known = (pod.recovery_token for pod in ctx.observed.pods.values() if pod.recovery_token)
    made = pod_token(ctx.config.progress_key, f"{ctx.job['metadata']['uid']}/{ctx.builder.attempt}")
    return next(known, made)


def _missing_objects(ctx: ReconcileContext) -> tuple[Creation, ...]:
    may = ctx.members.may_be_created(
        running=ctx.builder.is_true(Condition.RUNNING),
        agreed=ctx.agreement is not None,
        # After an edit its pods may not know that they join, and would disturb those that train.
        takes_in=takes_workers_in(ctx.spec, ctx.plan),
    )
    if _counts_instead(ctx):
        may &= {*ctx.members.required}
    may -= {*_waiting_to_restart(ctx)}
    pods = tuple(_build_pod(ctx, replica) for replica in ctx.observed.missing() if replica in may)
    return (*(_build_dependent(ctx, kind) for kind, held, _ in _dependents(ctx) if held is None), *pods)


def _counts_instead(ctx: ReconcileContext) -> bool:
    """True if a gang scheduler would count the evaluator's pod as one of those that it places together: it counts any
    pods of the group, and the rest would keep their nodes for the one that has none."""
    placed = pod_group_kind(ctx.plan.gang, ctx.config) is None or ctx.builder.is_true(Condition.RUNNING)
    return not placed and least_members(ctx.spec, ctx.plan) <= len(ctx.members.required)


def _build_pod(ctx: ReconcileContext, replica: ReplicaId) -> Creation:
    restricted = ctx.config.restricted and not allows_host(ctx.job["metadata"]["namespace"], ctx.config)
    return PodCreate(ctx.job, ctx.spec, ctx.plan, _replica(ctx, replica), ctx.config.device_template, restricted)


def _build_dependent(ctx: ReconcileContext, kind: Kind) -> Create:
    if kind in POD_GROUPS:
        return Create(kind, build_pod_group(ctx.job, ctx.spec, ctx.plan, kind, ctx.builder.attempt))
    return Create(kind, build_service(ctx.job) if kind is Kind.SERVICE else build_network_policy(ctx.job, ctx.config))


def is_optional(create: Creation, plan: Plan) -> bool:
    """True for the pod of an evaluator or a spare, which the others don't need to start."""
    return create.replica is not None and create.replica not in plan.members.required


def _in_words(creates: tuple[Creation, ...]) -> str:
    pods = sum(create.kind is Kind.POD for create in creates)
    words = [counted(pods, "pod")] if pods else []
    words += [f"the {_WORDS[create.kind]}" for create in creates if create.kind in _WORDS]
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
