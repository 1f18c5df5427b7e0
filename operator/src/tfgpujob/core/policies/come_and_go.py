"""Workers that come and go by themselves: under ParameterServer (docs/adr/0049-come-and-go.md), and where they predict
(docs/adr/0050-shared-parts.md).

The chief takes in whoever it reaches, and gives the batch of a worker that leaves to another one; who predicts takes
the next part that nobody has, and in the end what others have begun. So nobody is asked before a worker is created or
deleted, and nobody stops. status.plan.counts says how many workers there are to be, and
status.plan.absent which of them have not come yet, or only just: none of these is required, one that fails is replaced
(restart/replica.py), and one that finds no node delays nobody.

edit     an edit of `replicas` is recorded at once. Pods that are left over are deleted, and end between two steps, or
         after a part
start    the job begins with the workers that have a node after elasticPolicy.shrinkAfterSeconds, if they are
         minReplicas or more. The pods of the others wait for a node, and join when they have one
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.policies import resize_in_place
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.policies.deadlines import TRIAL, counts_from, shrink_deadline, waiting_for_a_node
from tfgpujob.core.policies.elastic_policy import has_node, unconfirmed_pods
from tfgpujob.core.status.builder import timestamp
from tfgpujob.names import Condition, Reason, Role
from tfgpujob.units import counted

JOINED = "Joined"
"""The reason of the event."""


def come_and_go(ctx: ReconcileContext) -> Outcome | None:
    """Policy: record how many workers there are to be, and who of them is there."""
    placed_alone = not ctx.plan.gang and not ctx.plan.queue
    created = ctx.builder.is_true(Condition.CREATED)
    if not ctx.spec.workers_come_and_go or ctx.edited or not placed_alone or not created:
        return None
    return _resize(ctx) or _count_those_that_came(ctx) or _start_without(ctx)


def _resize(ctx: ReconcileContext) -> Outcome | None:
    before, wanted = ctx.members.workers, ctx.spec.replica_specs.count(Role.WORKER)
    if before == wanted:
        return None
    members = ctx.members.resized(wanted)
    members = replace(members, absent=(*members.absent, *range(before, wanted)))
    if wanted < before:
        _record_that_they_leave(ctx, range(wanted, before))
    accept(ctx.builder, ctx.spec)
    text = f"From {counted(before, 'worker')} to {wanted}: "
    verb = ctx.members.verb
    text += f"new ones join the others, which {verb} on." if wanted > before else f"the others {verb} on."
    event = Event("Normal", resize_in_place.RESIZED_IN_PLACE, text)
    return replace(resize_in_place.with_members(ctx, members, resizes=1), events=(event,))


def _record_that_they_leave(ctx: ReconcileContext, indexes: Collection[int]) -> None:
    """The pod that replaces one that leaves has a higher replica-restart label, as after a restart. It does not count
    against backoffLimit."""
    records = restart_records.read(ctx.builder.fields)
    for index in indexes:
        known = records.get((Role.WORKER, index), RestartRecord())
        records[Role.WORKER, index] = replace(known, restarts=known.restarts + 1, backoff_until=timestamp(ctx.now))
    ctx.builder.put("restartRecords", restart_records.to_status(records))


def _count_those_that_came(ctx: ReconcileContext) -> Outcome | None:
    came = [index for index in ctx.members.absent if _has_come(ctx, (Role.WORKER, index))]
    if not came:
        return None
    absent, total = tuple(index for index in ctx.members.absent if index not in came), ctx.members.workers
    names = ", ".join(ctx.observed.name((Role.WORKER, index)) for index in came)
    text = f"{names} joined: {total - len(absent)} of {counted(total, 'worker')} {ctx.members.verb}."
    outcome = resize_in_place.with_members(ctx, replace(ctx.members, absent=absent))
    return replace(outcome, events=(Event("Normal", JOINED, text),))


def _has_come(ctx: ReconcileContext, worker: ReplicaId) -> bool:
    """It has been up for a while: a node on which a program can't start shows by then, and fails no job."""
    if ctx.observed.succeeded(worker) or not ctx.observed.ready(worker):
        return ctx.observed.succeeded(worker)
    due = counts_from(ctx.observed.pods[worker])
    # A node's clock that is ahead must not postpone it.
    return due is None or not ctx.now < due <= ctx.now + TRIAL


def _start_without(ctx: ReconcileContext) -> Outcome | None:
    policy, due = ctx.spec.run_policy, shrink_deadline(ctx.builder, ctx.spec.run_policy, ctx.observed)
    if ctx.builder.is_true(Condition.RUNNING) or due is None or ctx.now < due or ctx.observed.required_missing():
        return None
    total = ctx.members.workers
    workers: list[ReplicaId] = [(Role.WORKER, index) for index in range(total)]
    without = [replica for replica, _ in waiting_for_a_node(ctx.observed)]
    there = sum(has_node(ctx, worker) for worker in workers)
    if any(role is not Role.WORKER for role, _ in without) or there < ctx.spec.replica_specs.least_workers:
        return None
    if unconfirmed := unconfirmed_pods(ctx, without):
        return Outcome(lookups=unconfirmed)
    assert policy.elastic_policy is not None
    pod = ctx.observed.pods[without[0]]
    text = (
        f"{counted(len(without), 'worker')} of {total} found no node within "
        f"{policy.elastic_policy.shrink_after_seconds} s: it goes on with {there}, and takes in the others once they "
        f"have one. {pod.name}: {pod.waiting_message or pod.waiting_reason or 'no scheduler has looked at it'}"
    )
    absent = tuple(sorted({*ctx.members.absent, *(index for _, index in without)}))
    outcome = resize_in_place.with_members(ctx, replace(ctx.members, absent=absent))
    return replace(outcome, events=(Event("Warning", str(Reason.SHRUNK), text),))
