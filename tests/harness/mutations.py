"""Planted bugs, each of which the proof must catch: `python -m tests.harness.mutations` prints who caught what.

A proof that never fails proves nothing. Each bug is planted in the real code; then the points of some scenarios
are played until one of them is not as it is without the bug.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any
from unittest.mock import patch

from tests.harness.crashpoints import Point, check, fault_free, points
from tests.harness.driver import NO_STRIKE, Result, differences, play
from tests.harness.scenarios import SCENARIOS

from tfgpujob.api import ReplicaSpec
from tfgpujob.core import reconcile
from tfgpujob.core.observed import admission, observed_pods, trim
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Config, Create, Kind, LeaderAnswer, Object, Outcome, Snapshot, StatusUpdate
from tfgpujob.core.pods import pod
from tfgpujob.core.policies import (
    context,
    edited,
    ensure_pods,
    finished,
    force_delete,
    kueue,
    resize_in_place,
    stall,
    start,
)
from tfgpujob.core.status import builder, goodput
from tfgpujob.core.status.builder import moment
from tfgpujob.core.status.goodput_account import Account
from tfgpujob.kube.errors import ApiError
from tfgpujob.names import Role
from tfgpujob.shell import apply, leader_election, main, progress_poller, worker

Wrap = Callable[[Any], Any]
"""The real function in, the broken one out."""


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    where: tuple[Any, str]
    """The module or class, and the name of what is replaced in it."""
    bug: Wrap
    scenarios: tuple[str, ...]
    """Where the bug must show; tried in this order."""
    also: tuple[tuple[Any, str], Wrap] | None = None
    """The second barrier, taken down too."""


@contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """The bug is in the code."""
    owner, name = mutation.where
    with ExitStack() as bugs:
        bugs.enter_context(patch.object(owner, name, mutation.bug(getattr(owner, name))))
        if mutation.also:
            (owner, name), bug = mutation.also
            bugs.enter_context(patch.object(owner, name, bug(getattr(owner, name))))
        yield


@cache
def caught(mutation: Mutation) -> tuple[Point, str] | None:
    """The first point at which the bug shows, and as what; None when it gets away."""
    expected = [(scenario, fault_free(scenario), list(points(scenario))) for scenario in mutation.scenarios]
    with planted(mutation):
        for scenario, free, mine in expected:
            for point in (Point(scenario, NO_STRIKE), *mine):
                problems = _problems(point, free)
                if problems:
                    return point, problems[0]
    return None


def _problems(point: Point, free: Result) -> list[str]:
    """Broken promises first; that it comes to another end is said of all bugs."""
    if point.strike is NO_STRIKE:
        result = play(SCENARIOS[point.scenario])
        problems = result.problems + [f"converges: {line}" for line in differences(free.state, result.state)]
    else:
        problems = check(point)
    return sorted(problems, key=lambda problem: problem.startswith(("converges", "phases")))


def _no_intent(real: Any) -> Any:
    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        outcome: Outcome = real(snapshot, now, config)
        return replace(outcome, intent=None)

    return broken


def _no_uid(real: Any) -> Any:
    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        outcome: Outcome = real(snapshot, now, config)
        return replace(outcome, deletes=tuple(replace(delete, uid="") for delete in outcome.deletes))

    return broken


def _deaf_to_deletion(real: Any) -> Any:
    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        if snapshot.job is not None:
            meta = {k: v for k, v in snapshot.job["metadata"].items() if k != "deletionTimestamp"}
            snapshot = replace(snapshot, job={**snapshot.job, "metadata": meta})
        outcome: Outcome = real(snapshot, now, config)
        return outcome

    return broken


def _second_ending(real: Any) -> Any:
    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        outcome: Outcome = real(snapshot, now, config)
        status = (snapshot.job or {}).get("status") or {}
        if status.get("phase") != "Succeeded" or outcome.status is not None:
            return outcome
        failed = {**status["conditions"][-1], "type": "Failed", "reason": "Late"}
        return replace(outcome, status={**status, "conditions": [*status["conditions"], failed]})

    return broken


def _no_time_between(_: Any) -> Any:
    def broken(account: Account, old: Any, until: datetime, **_: Any) -> Account:
        return replace(account, time=max(until, account.time))

    return broken


def _twice(real: Any) -> Any:
    def broken(account: Account, *how: Any, **more: Any) -> Account:
        found: Account = real(account, *how, **more)
        return replace(found, before=found.before and found.parts)

    return broken


def _stale_cache(real: Any) -> Any:
    async def broken(self: Any, key: Any, job_uid: str, name: str) -> str:
        return name

    return broken


def _overwrites(real: Any) -> Any:
    async def broken(self: Any, key: Any, done: Any, status: Object, what: str) -> None:
        fresh = await self._cluster.get(Kind.JOB, key.namespace, key.name)
        meta = {**done.job["metadata"], "resourceVersion": fresh["metadata"]["resourceVersion"]}
        done.job = {**done.job, "metadata": meta}
        await real(self, key, done, status, what)

    return broken


def _shrugs_at_conflicts(real: Any) -> Any:
    async def broken(self: Any, key: Any, done: Any, status: Object, what: str) -> None:
        try:
            await real(self, key, done, status, what)
        except (worker._StaleError, ApiError):
            done.job = {**done.job, "status": status}

    return broken


def _counts_twice(real: Any) -> Any:
    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        outcome: Outcome = real(snapshot, now, config)
        before = ((snapshot.job or {}).get("status") or {}).get("restarts", 0)
        if outcome.intent is None or outcome.intent.get("restarts", 0) <= before:
            return outcome
        twice = {**outcome.intent, "restarts": before + 2}
        return replace(outcome, intent=twice, status=twice)

    return broken


def _foreign_too(real: Any) -> Any:
    def broken(snapshot: Snapshot, number: int) -> Any:
        return tuple(pod for pod in snapshot.pods if pod.attempt <= number)

    return broken


def _same_number(real: Any) -> Any:
    def broken(job_status: Any, plan: Any, **how: Any) -> None:
        number = job_status.attempt
        real(job_status, plan, **how)
        job_status.put("attempt", max(1, number))

    return broken


async def _no_check(self: Any, key: Any, job: Object) -> None:
    return None


def _writes_always(real: Any) -> Any:
    def broken(snapshot: Snapshot, outcome: Outcome, status: Object, now: datetime) -> StatusUpdate:
        return StatusUpdate(status, outcome.events, outcome.requeue_at)

    return broken


def _asks_all_the_time(real: Any) -> Any:
    async def broken(self: Any) -> None:
        self._interval = 2.0
        await real(self)

    return broken


def _other_port(real: Any) -> Any:
    def broken(strategy: Any, plan: Any, address: Any, role: Any, index: int) -> Any:
        config = real(strategy, plan, address, role, index)
        return config.replace(":2222", ":3333") if index and config else config

    return broken


def _named_by_attempt(real: Any) -> Any:
    def broken(job: Any, spec: Any, plan: Any, replica: Any) -> Object:
        body: Object = real(job, spec, plan, replica)
        name = f"{body['metadata']['name']}-{replica.attempt}"
        return {**body, "metadata": {**body["metadata"], "name": name}} if replica.attempt > 1 else body

    return broken


def _with_finalizer(real: Any) -> Any:
    def broken(job: Any, spec: Any, plan: Any, replica: Any) -> Object:
        body: Object = real(job, spec, plan, replica)
        return {**body, "metadata": {**body["metadata"], "finalizers": ["example.com/ours"]}}

    return broken


def _ahead(real: Any) -> Any:
    def broken(self: Any) -> Object:
        status: Object = real(self)
        return {**status, "observedGeneration": status["observedGeneration"] + 1}

    return broken


def _this_attempt_too(real: Any) -> Any:
    def broken(snapshot: Snapshot, attempt: int) -> Any:
        return real(snapshot, attempt + 1)

    return broken


def _claims_by_attempt(real: Any) -> Any:
    def broken(ctx: Any, replica: Any) -> Create:
        create: Create = real(ctx, replica)
        # Other names from the second attempt on, both of the claims and of what mounts them.
        suffix = f"-{ctx.builder.attempt}" if ctx.builder.attempt > 1 else ""
        body = deepcopy(dict(create.body))
        needs = tuple(Create(need.kind, deepcopy(dict(need.body))) for need in create.needs)
        for need in needs:
            need.body["metadata"]["name"] += suffix
        for volume in body["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                volume["persistentVolumeClaim"]["claimName"] += suffix
        return Create(create.kind, body, needs)

    return broken


def _ahead_of_the_leader(real: Any) -> Any:
    def broken(ctx: Any) -> Any:
        wanted = ctx.plan.resize and ctx.plan.resize.workers
        return LeaderAnswer("", 0, wanted, wanted) if wanted else None

    return broken


def _anybodys(real: Any) -> Any:
    def broken(snapshot: Snapshot) -> Any:
        return snapshot.workload

    return broken


async def _ensures_nothing(self: Any, key: Any, job: Object, create: Create) -> None:
    return None


def _deed_before_word(real: Any) -> Any:
    def broken(*of: Any, **more: Any) -> Outcome:
        outcome: Outcome = real(*of, **more)
        return replace(outcome, intent=None)

    return broken


def _joins_before_word(real: Any) -> Any:
    def broken(ctx: Any, wanted: int) -> Outcome:
        outcome: Outcome = real(ctx, wanted)
        new = replace(ctx, plan=Plan.from_status(ctx.builder.fields["plan"]))
        replicas = (ensure_pods._replica(new, replica) for replica in new.plan.joining())
        creates = tuple(Create(Kind.POD, pod.build_pod(ctx.job, ctx.spec, new.plan, one)) for one in replicas)
        return replace(outcome, intent=None, creates=creates)

    return broken


def _all_required(real: Any) -> Any:
    def broken(self: Any) -> Any:
        return tuple(replica for replica in self.pods() if replica[0] is not Role.EVALUATOR)

    return broken


def _any_pod_sets(real: Any) -> Any:
    def broken(snapshot: Snapshot, spec: Any) -> Any:
        return admission.own_workload(snapshot)

    return broken


def _all_at_once(real: Any) -> Any:
    return property(lambda self: (self.creates,))


MUTATIONS: Sequence[Mutation] = (
    Mutation("skip the intent write", (main, "reconcile"), _no_intent, ("multi-worker",)),
    Mutation("create the NetworkPolicy beside the pods", (Outcome, "stages"), _all_at_once, ("isolated",)),
    Mutation("create the pod group beside the pods", (Outcome, "stages"), _all_at_once, ("gang",)),
    Mutation("keep a finished job's pod group", (finished, "delete_pod_groups"), lambda _: lambda *of: (), ("gang",)),
    Mutation(
        "create a pod without its claims", (apply.ObjectWriter, "_ensure"), lambda _: _ensures_nothing, ("claims",)
    ),
    Mutation("give each attempt other claims", (ensure_pods, "_build_pod"), _claims_by_attempt, ("claims",)),
    Mutation(
        "let claims go that are to be kept",
        (ReplicaSpec, "owns_claims"),
        lambda _: property(lambda replica: True),
        ("claims",),
    ),
    Mutation("begin before the admission", (kueue, "wait_for_admission"), lambda _: lambda *of: None, ("queued",)),
    Mutation(
        "give quota back while pods stop",
        (kueue, "own_pods"),
        lambda _: lambda *of: (),
        ("queued-evicted",),
        ((kueue, "_not_looked_up"), lambda _: lambda *of: ()),
    ),
    Mutation(
        "delete a Workload while pods stop",
        (kueue, "_all_pods"),
        lambda _: lambda snapshot: (),
        ("queued-suspended",),
        ((kueue, "_not_looked_up"), lambda _: lambda *of: ()),
    ),
    Mutation("finish before the last pod", (kueue, "has_ended"), lambda _: lambda pod: True, ("queued-with-servers",)),
    Mutation("take an earlier job's Workload", (admission, "own_workload"), _anybodys, ("queued-again",)),
    Mutation("take an earlier spec's Workload", (kueue, "_current"), _any_pod_sets, ("queued-edited",)),
    Mutation("forget the uid of a delete", (main, "reconcile"), _no_uid, ("evicted",)),
    Mutation(
        "create during deletion",
        (main, "reconcile"),
        _deaf_to_deletion,
        ("deleted-in-the-foreground",),
        ((worker.Worker, "_check_unchanged"), lambda _: _no_check),
    ),
    Mutation("write a second terminal condition", (main, "reconcile"), _second_ending, ("multi-worker",)),
    Mutation("trust a stale cache", (worker.Worker, "_look_up"), _stale_cache, ("one-device",)),
    Mutation(
        "drop the precondition of status",
        (worker.Worker, "_write_status"),
        _overwrites,
        ("one-device",),
    ),
    Mutation("go on after a conflict", (worker.Worker, "_write_status"), _shrugs_at_conflicts, ("multi-worker",)),
    Mutation("count a failure twice", (main, "reconcile"), _counts_twice, ("retryable-failure",)),
    Mutation(
        "rerun a recorded success",
        (observed_pods, "_recorded"),
        lambda _: lambda status: frozenset(),
        ("recorded-success-vanishes",),
    ),
    Mutation("create beside old pods", (ensure_pods, "_stale_object"), lambda _: lambda of: "", ("evicted",)),
    Mutation(
        "take the Lease at once",
        (leader_election.LeaderElector, "_expired"),
        lambda _: lambda self, now: True,
        ("two-jobs",),
    ),
    Mutation("delete what is not ours", (context, "own_pods"), _foreign_too, ("foreign-labelled-pod",)),
    Mutation("write when nothing is new", (reconcile, "_write_or_defer"), _writes_always, ("invalid",)),
    Mutation("leave pods behind", (finished, "clean_up"), lambda _: lambda *of: (), ("parameter-server",)),
    Mutation("keep the attempt's number", (start, "next_attempt"), _same_number, ("evicted",)),
    Mutation(
        "name pods by their attempt",
        (ensure_pods, "build_pod"),
        _named_by_attempt,
        ("evicted",),
        ((ensure_pods, "_stale_object"), lambda _: lambda of: ""),
    ),
    Mutation("give a replica another port", (pod, "tf_config"), _other_port, ("multi-worker",)),
    Mutation("put a finalizer on pods", (ensure_pods, "build_pod"), _with_finalizer, ("deleted-while-running",)),
    Mutation("observe what is not there yet", (builder.StatusBuilder, "build"), _ahead, ("one-device",)),
    Mutation(
        "take every end for a success",
        (observed_pods, "has_succeeded"),
        lambda _: lambda pod: pod.termination is not None,
        ("retryable-failure",),
    ),
    Mutation("delete what runs", (edited, "delete_old_pods"), _this_attempt_too, ("edited-while-running",)),
    Mutation(
        "force at once",
        (force_delete, "_stuck_from"),
        lambda _: lambda pod, after: moment(pod.deletion_due),
        ("node-lost-while-deleting",),
    ),
    Mutation(
        "take the peers' init container timing out for a failure",
        (trim, "_gave_up_at_gate"),
        lambda _: lambda status: False,
        ("unschedulable-and-fail-policy",),
    ),
    Mutation("ask all the time", (progress_poller.ProgressPoller, "run"), _asks_all_the_time, ("progress-told",)),
    Mutation("forget the time without a pod", (goodput, "_without_pod"), _no_time_between, ("progress-told",)),
    Mutation("count a pod's time on top of itself", (goodput, "_followed"), _twice, ("progress-told",)),
    Mutation("see a stall in every step", (stall, "limit"), lambda _: lambda spec: 0, ("progress-told",)),
    Mutation(
        "forget to reread before creates",
        (worker.Worker, "_check_unchanged"),
        lambda _: _no_check,
        ("deleted-once-accepted",),
    ),
    Mutation(
        "delete workers before they have left",
        (resize_in_place, "agreement"),
        _ahead_of_the_leader,
        ("resized_in_place_down",),
    ),
    Mutation(
        "delete workers before the status has fewer",
        (resize_in_place, "_with_plan"),
        _deed_before_word,
        ("resized_in_place_down",),
    ),
    Mutation(
        "create workers before the status has more",
        (resize_in_place, "_begin"),
        _joins_before_word,
        ("resized_in_place_up",),
    ),
    Mutation(
        "take a worker that is to join for a lost one", (Plan, "required"), _all_required, ("resized_in_place_up",)
    ),
    Mutation(
        "take a worker that has left for a failed one",
        (Plan, "doubtful"),
        lambda _: lambda self: (),
        ("resized_in_place_down",),
    ),
)


def main_() -> None:
    free = True
    for mutation in MUTATIONS:
        found = caught(mutation)
        free = free and found is not None
        how = f"{found[1].partition(':')[0]:32} {found[0]}" if found else "NOT CAUGHT"
        print(f"{mutation.name:36} {how}")
    sys.exit(0 if free else 1)


if __name__ == "__main__":
    main_()
