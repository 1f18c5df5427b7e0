"""Resize in place: a gang whose leader begins its rounds (docs/adr/0027) takes workers in, or lets them go, with the
next one. No pod that stays is touched, and it is the same attempt.

status.plan.resize is the persisted intent; status.plan.counts says how many workers the gang has. The operator asks the
leader (core/status/leader.py) until it reports that number of training workers. Only then is the intent fulfilled:

grow     the workers that join are created once the leader has agreed. They are required once they train. Until then
         one that fails is replaced (restart/replica.py), and one that finds no room delays nobody
shrink   pods are deleted once the leader has said that they train no more. From the intent on none of them is required
else     a leader that refuses, or answers nothing, and whatever else ends the attempt: the next one has the number of
         workers that the spec asks for (resize.py)
"""

from __future__ import annotations

from dataclasses import replace

from tfgpujob.core.observed.members import Membership, Resize
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.snapshot import Event, LeaderAnswer, Outcome, ResizeTo
from tfgpujob.core.pods.in_place import resizes_in_place
from tfgpujob.core.policies import start
from tfgpujob.core.policies.context import ReconcileContext, delete_pods
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses
from tfgpujob.names import Condition
from tfgpujob.units import counted

RESIZED_IN_PLACE = "ResizedInPlace"
"""The reason of the event."""


def resized_in_place(ctx: ReconcileContext) -> Outcome | None:
    """Policy: the leader of a running gang is asked for the number of workers that it is to have."""
    before, resize = ctx.members.workers, ctx.members.resize
    wanted = ctx.members.wanted(ctx.spec)
    if ctx.edited or not ctx.spec.elastic:
        return None
    if resize is None and before == wanted:
        return _delete_surplus(ctx, before)
    if not applies(ctx):
        return None
    if resize is None or resize.workers != wanted:
        return _begin(ctx, wanted)
    return _go_on(ctx, resize)


def _go_on(ctx: ReconcileContext, resize: Resize) -> Outcome | None:
    answer = agreement(ctx)
    if answer is None:
        return None
    # Fewer than before: who left does not come back, whatever is wanted by now. New pods join in their place.
    if answer.workers == resize.workers or answer.workers < ctx.members.workers:
        return _end(ctx, resize, answer.workers)
    return _delete_surplus(ctx, max(answer.workers, resize.workers))


def applies(ctx: ReconcileContext) -> bool:
    """Whether the gang can be resized in place, as far as anybody knows."""
    running = ctx.builder.is_true(Condition.RUNNING)
    return running and resizes_in_place(ctx.spec, ctx.plan) and not why_not(ctx)


def why_not(ctx: ReconcileContext) -> str:
    """Why the leader does not do what it was asked for; empty: it does, or has not answered yet."""
    answer = _answer(ctx)
    if answer is None:
        return ""
    return answer.refused or ("its leader does not answer" if answer.silent else "")


def agreement(ctx: ReconcileContext) -> LeaderAnswer | None:
    """The leader's answer by which it goes for what the intent says. Until then nobody may join, and nobody go."""
    answer, resize = _answer(ctx), ctx.members.resize
    agreed = answer is not None and resize is not None and answer.wanted == resize.workers
    return answer if agreed else None


def _answer(ctx: ReconcileContext) -> LeaderAnswer | None:
    """The answer of the pod that leads to the intent as it is now: one to an earlier edit says nothing."""
    answer, resize, leader = ctx.snapshot.leader_answer, ctx.members.resize, ctx.observed.pods.get(ctx.members.chief)
    if answer is None or resize is None or leader is None:
        return None
    return answer if (answer.pod_uid, answer.question) == (leader.uid, ResizeTo(resize.generation)) else None


def _begin(ctx: ReconcileContext, wanted: int) -> Outcome:
    """The Outcome whose intent is the number of workers to go for."""
    before, resize = ctx.members.workers, ctx.members.resize
    begun = Resize(
        workers=wanted,
        least=min(wanted, before, resize.least if resize is not None else before),
        generation=ctx.builder.generation,
        since=resize.since if resize is not None else timestamp(ctx.now),
    )
    return with_members(ctx, replace(ctx.members, resize=begun))


def _end(ctx: ReconcileContext, resize: Resize, workers: int) -> Outcome:
    """The Outcome whose intent is that the gang has so many workers, and which deletes the pods of the others."""
    before, limit = ctx.members.workers, ctx.members.limit
    still = replace(limit, since=timestamp(ctx.now)) if limit is not None and workers < limit.asked else None
    outcome = with_members(ctx, replace(ctx.members, limit=still).resized(workers), resizes=int(workers != before))
    if workers == before:
        return outcome
    seconds = max(0, int((ctx.now - moment(resize.since)).total_seconds()))
    text = f"From {counted(before, 'worker')} to {workers} in {seconds} s: the pods that stay were not touched."
    text += f" There was no room for all {still.asked} that replicas asks for." if still is not None else ""
    return replace(outcome, events=(Event("Normal", RESIZED_IN_PLACE, text),))


def with_members(ctx: ReconcileContext, members: Membership, resizes: int = 0) -> Outcome:
    """The Outcome whose intent is that the running attempt has these members."""
    builder = ctx.builder
    builder.put("plan", replace(ctx.plan, members=members).to_status())
    if resizes:
        builder.put("resizes", int(builder.fields.get("resizes") or 0) + resizes)
    observed = observe_pods(ctx.snapshot, builder.fields)
    builder.put("replicaStatuses", replica_statuses(observed))
    builder.put("ready", ready_text(observed))
    start.report_running(builder, observed)
    status = builder.build()
    surplus = delete_pods(observed.surplus) if members.resize is None else ()
    return Outcome(status=status, intent=status, deletes=surplus, requeue_at=ctx.now)


def _delete_surplus(ctx: ReconcileContext, workers: int) -> Outcome | None:
    """Deletes pods that a resize has left over: those of an index beyond `workers`, which train with nobody."""
    deletes = delete_pods(pod for pod in ctx.observed.surplus if pod.index >= workers)
    return replace(ctx.requeue(ctx.now), deletes=deletes, certain=True, requeue_at=ctx.now) if deletes else None
