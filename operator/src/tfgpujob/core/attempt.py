"""Reconcile an attempt: a chain of policies; the first that returns an Outcome decides.

A policy is a function of the `ReconcileContext`. It returns None when it has nothing to decide, and may then have
changed the status under construction (`ctx.builder`). To add one, write it in a file of `core/policies` and enter it in
`_CHAIN`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.snapshot import Config, Outcome, Snapshot
from tfgpujob.core.policies import (
    edited,
    ensure_pods,
    finished,
    idle,
    membership,
    stall,
    start_timeout,
    success,
    triggers,
)
from tfgpujob.core.policies.context import ReconcileContext, delete_pods, new_context
from tfgpujob.core.policies.restart import in_place, replica
from tfgpujob.core.status.builder import StatusBuilder

Policy = Callable[[ReconcileContext], Outcome | None]

_CHAIN: tuple[Policy, ...] = (
    success.succeeded,
    finished.ran_too_long,
    triggers.lost_or_failed,
    triggers.unproductive,
    replica.restart_optional,
    membership.adjust,
    start_timeout.started_too_late,
    edited.edited,
    membership.resize,
    ensure_pods.incomplete,
    ensure_pods.running,
)
"""The order matters: a job that has succeeded can't fail any more, and nothing is created for one that restarts."""


def reconcile(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    """The Outcome for a job with a valid spec whose current attempt is recorded in the status."""
    ctx = new_context(snapshot, builder, spec, config)
    if not ctx.observed.missing() and ensure_pods.has_dependents(ctx):
        ensure_pods.report_all_created(ctx)
    restarts = in_place.count(spec, builder, ctx.observed, snapshot)
    events = (*restarts, *stall.update_conditions(ctx), *idle.update_condition(ctx))
    outcome = next(outcome for policy in _CHAIN if (outcome := policy(ctx)) is not None)
    outcome = _with_stale_replicas_deleted(ctx, outcome)
    return outcome if outcome.lookups else replace(outcome, events=(*events, *outcome.events))


def _with_stale_replicas_deleted(ctx: ReconcileContext, outcome: Outcome) -> Outcome:
    """A replica's restart is a persisted intent: its stale pod is deleted with every other decision."""
    if outcome.lookups:
        return outcome
    known = {delete.uid for delete in outcome.deletes}
    more = delete_pods(pod for pod in ctx.observed.stale_replicas.values() if pod.uid not in known)
    return replace(outcome, deletes=(*outcome.deletes, *more))
