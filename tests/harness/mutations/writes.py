"""What is written, in which order, and on what knowledge."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.harness.driver import Strike
from tests.harness.faults import Fault
from tests.harness.mutations.mutation import Mutation, instead, without_intent

from tfgpujob.core import reconcile
from tfgpujob.core.observed.snapshot import Config, Kind, Object, Outcome, Snapshot, StatusUpdate
from tfgpujob.core.status import builder
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell import leader_election, main, worker


@instead
def _no_uid(real: Any, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
    outcome: Outcome = real(snapshot, now, config)
    return replace(outcome, deletes=tuple(replace(delete, uid="") for delete in outcome.deletes))


@instead
def _deaf_to_deletion(real: Any, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
    meta = {k: v for k, v in snapshot.job["metadata"].items() if k != "deletionTimestamp"}
    outcome: Outcome = real(replace(snapshot, job={**snapshot.job, "metadata": meta}), now, config)
    return outcome


@instead
def _second_ending(real: Any, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
    outcome: Outcome = real(snapshot, now, config)
    status = snapshot.job.get("status") or {}
    if status.get("phase") != "Succeeded" or outcome.status is not None:
        return outcome
    failed = {**status["conditions"][-1], "type": "Failed", "reason": "Late"}
    return replace(outcome, status={**status, "conditions": [*status["conditions"], failed]})


@instead
async def _stale_cache(real: Any, self: Any, key: Any, job_uid: str, name: str) -> str:
    return name


@instead
async def _overwrites(real: Any, self: Any, key: Any, done: Any, status: Object, what: str) -> None:
    fresh = await self._cluster.get(Kind.JOB, key.namespace, key.name)
    meta = {**done.job["metadata"], "resourceVersion": fresh["metadata"]["resourceVersion"]}
    done.job = {**done.job, "metadata": meta}
    await real(self, key, done, status, what)


@instead
async def _shrugs_at_conflicts(real: Any, self: Any, key: Any, done: Any, status: Object, what: str) -> None:
    try:
        await real(self, key, done, status, what)
    except (worker._StaleError, ApiError):
        done.job = {**done.job, "status": status}


@instead
def _counts_twice(real: Any, snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
    outcome: Outcome = real(snapshot, now, config)
    before = (snapshot.job.get("status") or {}).get("restarts", 0)
    if outcome.intent is None or outcome.intent.get("restarts", 0) <= before:
        return outcome
    twice = {**outcome.intent, "restarts": before + 2}
    return replace(outcome, intent=twice, status=twice)


async def _no_check(self: Any, key: Any, job: Object) -> None:
    return None


@instead
def _writes_always(real: Any, snapshot: Snapshot, outcome: Outcome, status: Object, now: datetime) -> StatusUpdate:
    return StatusUpdate(status, outcome.events, outcome.requeue_at)


@instead
def _ahead(real: Any, self: Any) -> Object:
    status: Object = real(self)
    return {**status, "observedGeneration": status["observedGeneration"] + 1}


@instead
async def _dated_by_the_answer(real: Any, self: leader_election.LeaderElector) -> bool:
    definite: bool = await real(self)
    self._renewed_at = asyncio.get_running_loop().time()
    return definite


MUTATIONS = (
    Mutation(
        "skip the intent write",
        "creates_follow_persisted_intent",
        (main, "reconcile"),
        without_intent,
        ("multi-worker",),
    ),
    Mutation("forget the uid of a delete", "deletes_carry_the_uid", (main, "reconcile"), _no_uid, ("evicted",)),
    Mutation(
        "create during deletion",
        "nothing_for_a_job_that_goes",
        (main, "reconcile"),
        _deaf_to_deletion,
        ("deleted-in-the-foreground",),
        ((worker.Worker, "_check_unchanged"), lambda _: _no_check),
    ),
    Mutation(
        "write a second terminal condition", "terminal_is_final", (main, "reconcile"), _second_ending, ("multi-worker",)
    ),
    Mutation(
        "trust a stale cache",
        "failures_are_counted_once",
        (worker.Worker, "_look_up"),
        _stale_cache,
        ("one-device",),
        at=Strike({6: Fault.CRASH_AFTER}, behind=8),
    ),
    Mutation(
        "drop the precondition of status",
        "terminal_is_final",
        (worker.Worker, "_write_status"),
        _overwrites,
        ("one-device",),
        at=Strike({8: Fault.CRASH_AFTER}, behind=1),
    ),
    Mutation(
        "go on after a conflict",
        "creates_follow_persisted_intent",
        (worker.Worker, "_write_status"),
        _shrugs_at_conflicts,
        ("multi-worker",),
    ),
    Mutation(
        "count a failure twice", "failures_are_counted_once", (main, "reconcile"), _counts_twice, ("retryable-failure",)
    ),
    Mutation(
        "take the Lease at once",
        "one_leader",
        (leader_election.LeaderElector, "_expired"),
        lambda _: lambda self, now: True,
        ("two-jobs",),
    ),
    Mutation(
        "date the Lease by the answer",
        "one_leader",
        (leader_election.LeaderElector, "_renew"),
        _dated_by_the_answer,
        ("leader-hears-late",),
    ),
    Mutation(
        "write when nothing is new", "idle_writes_nothing", (reconcile, "_write_or_defer"), _writes_always, ("invalid",)
    ),
    Mutation(
        "observe what is not there yet",
        "generation_is_observed",
        (builder.StatusBuilder, "build"),
        _ahead,
        ("one-device",),
    ),
    Mutation(
        "forget to reread before creates",
        "nothing_for_a_job_that_goes",
        (worker.Worker, "_check_unchanged"),
        lambda _: _no_check,
        ("deleted-once-accepted",),
    ),
)
