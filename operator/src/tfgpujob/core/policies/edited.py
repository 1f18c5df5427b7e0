"""The spec was edited during an attempt. An incomplete attempt starts over with it; a running one refuses the edit."""

from __future__ import annotations

from dataclasses import replace

from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.policies import ensure_pods, start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.begin_attempt import begin_attempt
from tfgpujob.core.policies.context import ReconcileContext, delete_old_pods
from tfgpujob.names import Condition, Reason


def edited(ctx: ReconcileContext) -> Outcome | None:
    """Policy: ImmutableFieldChanged, or the next attempt with the new spec."""
    builder = ctx.builder
    refused_before = builder.reason(Condition.ACCEPTED) == Reason.IMMUTABLE_FIELD_CHANGED
    if not ctx.edited:
        if not builder.is_true(Condition.ACCEPTED) and not start.refused_by_api_server(builder):
            accept(builder, ctx.spec)
        return None
    if not refused_before and not builder.is_true(Condition.CREATED) and ctx.observed.missing():
        return begin_attempt(ctx.snapshot, builder, ctx.spec, ctx.config)
    text = (
        "spec: strategy, replicaSpecs, gpu, trainer or image changed while an attempt runs. Its pods go on as they "
        "were started, and none is created. Restore the old values, or suspend the job, edit it, and resume it."
    )
    builder.set(Condition.ACCEPTED, False, Reason.IMMUTABLE_FIELD_CHANGED, text)
    event = Event("Warning", str(Reason.IMMUTABLE_FIELD_CHANGED), text)
    deletes = delete_old_pods(ctx.snapshot, builder.attempt)
    return replace(ensure_pods.running(ctx), deletes=deletes, events=() if refused_before else (event,))
