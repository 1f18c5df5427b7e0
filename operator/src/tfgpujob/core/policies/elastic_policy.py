"""runPolicy.elasticPolicy: an elastic job trains with the workers that there is room for, until there is room for more.

status.plan.limit is the persisted intent: how many workers it is to have instead of those that the spec asks for. All
else is done by what there is: a start is a new attempt, and a gang that runs is resized (resize_in_place.py).

start    the workers that have a node after shrinkAfterSeconds, if they are minReplicas or more, begin anew as a gang of
         so many. Those that were created know another TF_CONFIG, and wait for peers that do not come
growth   growAfterSeconds after it began, a worker pod more than train is created, and when that has a node the next.
         Once one finds none, those before it join, with a single resize. Pods have the lowest indexes, so one at a time
resize   a worker that is to join and has found no node for shrinkAfterSeconds: those before it join without it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tfgpujob.core.observed.members import Limit, ReplicaId
from tfgpujob.core.observed.observed_pods import has_ended
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.pods.in_place import resizes_in_place
from tfgpujob.core.policies import resize_in_place, start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import ReconcileContext, replace_attempt
from tfgpujob.core.policies.deadlines import finds_no_node_by, grow_time, shrink_deadline, waiting_for_a_node
from tfgpujob.core.status.builder import timestamp
from tfgpujob.names import Condition, Reason, Role
from tfgpujob.units import counted


def fit_to_room(ctx: ReconcileContext) -> Outcome | None:
    """Policy: an elastic job goes on with the workers that have a node, and takes in others that find one."""
    if ctx.edited:
        return None
    limit, applies = ctx.members.limit, _applies(ctx)
    if limit is not None and not (applies and limit.asked == ctx.spec.replica_specs.count(Role.WORKER)):
        # All that are asked for by now are tried.
        return resize_in_place.with_members(ctx, replace(ctx.members, limit=None))
    if not applies:
        return None
    if not ctx.builder.is_true(Condition.RUNNING):
        return _start_with_those_that_fit(ctx)
    if ctx.members.resize is not None:
        return _join_with_those_that_fit(ctx)
    return _look_for_room(ctx, limit) if limit is not None and grows(ctx) else None


def grows(ctx: ReconcileContext) -> bool:
    """Whether a job that trains with fewer workers than it asks for comes to have more without an edit or a restart."""
    policy = ctx.spec.run_policy.elastic_policy
    return policy is not None and policy.grow_after_seconds is not None and resizes_in_place(ctx.spec, ctx.plan)


def next_plan(ctx: ReconcileContext, *, keeps_limit: bool) -> Plan:
    """The plan of the attempt that takes the place of this one. Without its limit, all that are asked for are tried."""
    plan, limit = ctx.resolve(ctx.plan.admission), ctx.members.limit
    wanted = ctx.members.wanted(ctx.spec)
    if limit is None or not keeps_limit or wanted >= ctx.spec.replica_specs.count(Role.WORKER):
        return plan
    limited = replace(plan.members.resized(wanted), limit=Limit(limit.asked, wanted, timestamp(ctx.now)))
    return replace(plan, members=limited)


def _applies(ctx: ReconcileContext) -> bool:
    """Kueue and gang schedulers place all pods or none."""
    placed_alone = not ctx.plan.gang and not ctx.plan.queue
    gang = ctx.spec.elastic and not ctx.spec.workers_come_and_go
    return ctx.spec.run_policy.elastic_policy is not None and gang and placed_alone


def _start_with_those_that_fit(ctx: ReconcileContext) -> Outcome | None:
    builder, least = ctx.builder, ctx.spec.replica_specs.least_workers
    due = shrink_deadline(builder, ctx.spec.run_policy, ctx.observed)
    before, edited = ctx.members.workers, ctx.members.wanted(ctx.spec) != ctx.members.workers
    fit = sum(has_node(ctx, (Role.WORKER, index)) for index in range(before))
    waiting = waiting_for_a_node(ctx.observed)
    if edited or due is None or ctx.now < due or ctx.observed.required_missing() or not least <= fit < before:
        return None
    if any(replica[0] is not Role.WORKER for replica, _ in waiting):
        return None
    if unconfirmed := unconfirmed_pods(ctx, [replica for replica, _ in waiting]):
        return Outcome(lookups=unconfirmed)
    asked = ctx.spec.replica_specs.count(Role.WORKER)
    (_, pod), policy = waiting[0], ctx.spec.run_policy.elastic_policy
    assert policy is not None
    text = (
        f"{counted(before - fit, 'worker')} of {before} found no node within {policy.shrink_after_seconds} s: it goes "
        f"on with {fit}. {pod.name}: {pod.waiting_message or pod.waiting_reason or 'no scheduler has looked at it'}"
    )
    plan = ctx.resolve()
    limited = replace(plan.members.resized(fit), limit=Limit(asked, fit, timestamp(ctx.now)))
    start.next_attempt(builder, replace(plan, members=limited))
    builder.put("resizes", int(builder.fields.get("resizes") or 0) + 1)
    accept(builder, ctx.spec)
    builder.set(Condition.CREATED, False, Reason.SHRUNK, text)
    builder.set(Condition.RUNNING, False, Reason.SHRUNK, text)
    if builder.is_true(Condition.RESTARTING):
        builder.set(Condition.RESTARTING, True, Reason.SHRUNK, text)
    return replace_attempt(ctx, Event("Warning", str(Reason.SHRUNK), text))


def _join_with_those_that_fit(ctx: ReconcileContext) -> Outcome | None:
    joining, resize = ctx.members.growing, ctx.members.resize
    fit = _fit(ctx, joining)
    due = shrink_deadline(ctx.builder, ctx.spec.run_policy, ctx.observed)
    edited = resize is None or resize.workers != ctx.members.wanted(ctx.spec)
    if edited or fit == len(joining) or due is None or ctx.now < due or not resize_in_place.applies(ctx):
        return None
    if unconfirmed := unconfirmed_pods(ctx, joining[fit:]):
        return Outcome(lookups=unconfirmed)
    return _resize(ctx, fit)


def _look_for_room(ctx: ReconcileContext, limit: Limit) -> Outcome | None:
    joining, before = ctx.members.growing, ctx.members.workers
    due = grow_time(ctx.spec.run_policy, ctx.observed)
    # The pod in the place of a lost worker looks for room already.
    if limit.workers != before or ctx.members.absent or due is None or not resize_in_place.applies(ctx):
        return None
    if not joining:
        return _probe(ctx, limit, before + 1) if ctx.now >= due else None
    fit = _fit(ctx, joining)
    if fit == len(joining) and limit.probe < limit.asked:
        return _probe(ctx, limit, limit.probe + 1)
    if fit == len(joining) or (fit and _finds_none(ctx, joining[fit])):
        return _resize(ctx, fit)
    return None


def _probe(ctx: ReconcileContext, limit: Limit, workers: int) -> Outcome:
    """The Outcome whose intent is a pod more, which waits for a node."""
    return resize_in_place.with_members(ctx, replace(ctx.members, limit=replace(limit, probe=workers)))


def _resize(ctx: ReconcileContext, more: int) -> Outcome | None:
    """The Outcome whose intent is that so many workers more than train join them."""
    asked, workers = ctx.spec.replica_specs.count(Role.WORKER), ctx.members.workers + more
    since = ctx.members.limit.since if ctx.members.limit is not None else timestamp(ctx.now)
    members = replace(ctx.members, limit=Limit(asked, workers, since))
    return resize_in_place.resized_in_place(ctx.with_members(members))


def _fit(ctx: ReconcileContext, joining: tuple[ReplicaId, ...]) -> int:
    """How many of these, from the first on, have a node. Workers of a gang have the lowest indexes."""
    without = (number for number, replica in enumerate(joining) if not has_node(ctx, replica))
    return next(without, len(joining))


def has_node(ctx: ReconcileContext, replica: ReplicaId) -> bool:
    """Whether the scheduler has found one for its pod, which still counts."""
    pod = ctx.observed.pods.get(replica)
    if pod is None or pod.deleting or has_ended(pod) or ctx.observed.lost(replica):
        return False
    return bool(pod.node) or pod.phase != "Pending"


def unconfirmed_pods(ctx: ReconcileContext, replicas: Sequence[ReplicaId]) -> tuple[str, ...]:
    """Pods without a node of which only the cache says so: they are looked up first, in case it is stale."""
    there = (ctx.observed.pods[replica].name for replica in replicas if replica in ctx.observed.pods)
    return tuple(name for name in there if name not in ctx.snapshot.looked_up)


def _finds_none(ctx: ReconcileContext, replica: ReplicaId) -> bool:
    """The scheduler has said so, or says nothing; or the API server refuses the pod."""
    pod = ctx.observed.pods.get(replica)
    if pod is None:
        return ctx.observed.name(replica) in start.refused_last(ctx.builder)
    until: datetime | None = finds_no_node_by(pod)
    return bool(pod.waiting_reason) or until is None or ctx.now >= until
