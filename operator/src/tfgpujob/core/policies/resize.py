"""Resize: an elastic job goes on with another number of workers, from a checkpoint that the old ones write. That is how
it goes where resize_in_place.py can't.

It is a new attempt, as a restart is: the stop request makes all workers save at the same step, and the trainer's resume
is exact for any number of them (docs/adr/0025-elastic-by-checkpoint.md). It counts against no budget.
"""

from __future__ import annotations

from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.policies import elastic_policy, resize_in_place, start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.begin_attempt import begin_attempt
from tfgpujob.core.policies.context import ReconcileContext, replace_attempt
from tfgpujob.names import Condition, Reason
from tfgpujob.units import counted


def resized(ctx: ReconcileContext) -> Outcome | None:
    """Policy: the next attempt with the number of workers that it is to have by now."""
    builder = ctx.builder
    before, wanted = ctx.members.workers, ctx.members.wanted(ctx.spec)
    if not ctx.spec.elastic or ctx.edited or (before == wanted and ctx.members.resize is None):
        return None
    if ctx.plan.queue and ctx.config.kueue is not None:
        # Kueue decides about the number of workers of a job in its queues: policies/kueue.py.
        return None
    if resize_in_place.applies(ctx):
        return None
    if not builder.is_true(Condition.CREATED) and ctx.observed.missing():
        return begin_attempt(ctx.snapshot, builder, ctx.spec, ctx.config)
    refused = resize_in_place.why_not(ctx)
    why = f" Not in place: {refused}." if refused else ""
    goes_on = "what is written stays" if ctx.spec.predicts else "all save a checkpoint, and go on from it"
    text = f"From {counted(before, 'worker')} to {wanted}: {goes_on}.{why}"
    start.next_attempt(builder, elastic_policy.next_plan(ctx, keeps_limit=True))
    builder.put("resizes", builder.fields.get("resizes", 0) + 1)
    accept(builder, ctx.spec)
    start.report_restarting(builder, Reason.RESIZED, text)
    return replace_attempt(ctx, Event("Normal", str(Reason.RESIZED), text))
