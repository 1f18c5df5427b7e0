"""The others of an elastic gang train on without a lost worker, until the pod in its place joins them.

A worker whose pod receives SIGTERM deregisters from the leader of the gang when its processes have ended. A silent
worker counts as ended after a deadline. The leader does not wait for the replacement pod: it begins the next round
without that worker (docs/adr/0041 and 0042), and reports the workers that it has when it is asked
(core/status/leader.py). status.plan.absent records the missing ones. Then the job is Running:
none of the absent is required, one that fails is replaced (restart/replica.py), and one that finds no node delays
nobody.

The spares of a job that has some (docs/adr/0047) are absent from the beginning, and as many always are: once the leader
has taken one in, the worker whose place that is is one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.pods.in_place import replaces_lost_workers
from tfgpujob.core.policies import resize_in_place
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.status.builder import timestamp
from tfgpujob.core.status.leader import who_trains
from tfgpujob.names import Condition, Phase, Reason, Role

TRAINS_ON = "TrainsOn"
"""The reason of the event."""


def trains_without(ctx: ReconcileContext) -> Outcome | None:
    """Policy: record whom the gang trains without, as its leader says."""
    answer, leader = ctx.snapshot.leader_answer, ctx.observed.pods.get(ctx.members.chief)
    if ctx.edited or not replaces_lost_workers(ctx.spec, ctx.plan) or answer is None or leader is None:
        return None
    if (answer.pod_uid, answer.question) != (leader.uid, who_trains(ctx.observed)) or answer.refused or answer.silent:
        return None
    absent = _absent(ctx, answer.without)
    # Of a spare that is in the gang by now, the loss that it makes up for has still to be counted.
    if absent == ctx.members.absent or len(absent) < ctx.members.spares:
        return None
    back = [(Role.WORKER, index) for index in ctx.members.absent if index not in absent]
    event = _wait_for(ctx, lost) if (lost := [r for r in back if not ctx.observed.ready(r)]) else _trains(ctx, absent)
    return replace(resize_in_place.with_members(ctx, replace(ctx.members, absent=absent)), events=(event,))


def _absent(ctx: ReconcileContext, without: Collection[int]) -> tuple[int, ...]:
    """Its loss has to be counted first, which is what restarted the replica; and of a pod that is ready, the leader may
    not have said yet that it trains."""

    def counts(index: int) -> bool:
        replica = (Role.WORKER, index)
        # A spare is ready, and trains with nobody.
        joins = ctx.observed.ready(replica) and not ctx.members.spares
        return index in ctx.members.absent or (ctx.observed.restart(replica) > 0 and not joins)

    return tuple(sorted(index for index in without if index < ctx.members.pods_of(Role.WORKER) and counts(index)))


def _wait_for(ctx: ReconcileContext, lost: Collection[ReplicaId]) -> Event:
    """They have joined, and are lost without a goodbye before that was known. So the others wait for them."""
    names = ", ".join(ctx.observed.name(replica) for replica in sorted(lost))
    text = f"Lost again after it had joined: {names}. The others keep their pods, and wait there."
    ctx.builder.set(Condition.RUNNING, False, Reason.DISRUPTED, text)
    ctx.builder.set(Condition.RESTARTING, True, Reason.DISRUPTED, text)
    ctx.builder.put("attemptStartTime", timestamp(ctx.now))
    ctx.builder.set_phase(Phase.RESTARTING)
    return Event("Warning", str(Reason.DISRUPTED), text)


def _trains(ctx: ReconcileContext, absent: tuple[int, ...]) -> Event:
    total = ctx.members.workers
    if ctx.members.spares:
        taken = ", ".join(ctx.observed.name((Role.WORKER, i)) for i in ctx.members.absent if i not in absent)
        lost = ", ".join(ctx.observed.name((Role.WORKER, i)) for i in absent if i not in ctx.members.absent)
        return Event(
            "Normal", TRAINS_ON, f"In the place of {lost}: {taken}, which was spare. All {total} workers train."
        )
    if not absent:
        return Event("Normal", TRAINS_ON, f"All {total} workers train again.")
    names = ", ".join(ctx.observed.name((Role.WORKER, index)) for index in absent)
    text = f"{total - len(absent)} of {total} workers train on, without {names} until new pods join in their places."
    return Event("Normal", TRAINS_ON, text)
