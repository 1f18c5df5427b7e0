"""Which pods there are, and what is made of their ends."""

from __future__ import annotations

from typing import Any

from tests.harness.driver import Strike
from tests.harness.faults import Fault
from tests.harness.mutations.mutation import Mutation, instead

from tfgpujob.core.observed import observed_pods, trim
from tfgpujob.core.observed.snapshot import Object, Snapshot
from tfgpujob.core.pods import pod, pod_create
from tfgpujob.core.policies import cleanup, context, edited, ensure_pods, finished, force_delete, start
from tfgpujob.core.status.builder import moment


@instead
def _foreign_too(real: Any, snapshot: Snapshot, number: int) -> Any:
    return tuple(pod for pod in snapshot.pods if pod.attempt <= number)


@instead
def _same_number(real: Any, job_status: Any, plan: Any, **how: Any) -> None:
    number = job_status.attempt
    real(job_status, plan, **how)
    job_status.put("attempt", max(1, number))


@instead
def _other_port(real: Any, strategy: Any, plan: Any, address: Any, role: Any, index: int) -> Any:
    config = real(strategy, plan, address, role, index)
    return config.replace(":2222", ":3333") if index and config else config


@instead
def _named_by_attempt(real: Any, job: Any, spec: Any, plan: Any, replica: Any) -> Object:
    body: Object = real(job, spec, plan, replica)
    name = f"{body['metadata']['name']}-{replica.attempt}"
    return {**body, "metadata": {**body["metadata"], "name": name}} if replica.attempt > 1 else body


@instead
def _with_finalizer(real: Any, job: Any, spec: Any, plan: Any, replica: Any) -> Object:
    body: Object = real(job, spec, plan, replica)
    return {**body, "metadata": {**body["metadata"], "finalizers": ["example.com/ours"]}}


@instead
def _this_attempt_too(real: Any, snapshot: Snapshot, attempt: int) -> Any:
    return real(snapshot, attempt + 1)


MUTATIONS = (
    Mutation(
        "rerun a recorded success",
        "phases",
        (observed_pods, "_recorded"),
        lambda _: lambda status: frozenset(),
        ("recorded-success-vanishes",),
    ),
    Mutation(
        "create beside old pods",
        "creates_follow_persisted_intent",
        (ensure_pods, "_stale_object"),
        lambda _: lambda of: "",
        ("evicted",),
    ),
    Mutation(
        "delete what is not ours",
        "touches_only_its_own",
        (context, "own_pods"),
        _foreign_too,
        ("foreign-labelled-pod",),
    ),
    Mutation("leave pods behind", "converges", (finished, "clean_up"), lambda _: lambda *of: (), ("parameter-server",)),
    Mutation(
        "keep the attempt's number", "failures_are_counted_once", (start, "next_attempt"), _same_number, ("evicted",)
    ),
    Mutation(
        "name pods by their attempt",
        "one_object_per_replica",
        (pod_create, "build_pod"),
        _named_by_attempt,
        ("evicted",),
        ((ensure_pods, "_stale_object"), lambda _: lambda of: ""),
    ),
    Mutation("give a replica another port", "addresses_agree", (pod, "tf_config"), _other_port, ("multi-worker",)),
    Mutation(
        "put a finalizer on pods", "orphans", (pod_create, "build_pod"), _with_finalizer, ("deleted-while-running",)
    ),
    Mutation(
        "take every end for a success",
        "outcome_is_true",
        (observed_pods, "has_succeeded"),
        lambda _: lambda pod: pod.termination is not None,
        ("retryable-failure",),
    ),
    Mutation(
        "delete what runs",
        "deletes_follow_persisted_intent",
        (edited, "delete_old_pods"),
        _this_attempt_too,
        ("edited-while-running",),
    ),
    Mutation(
        "force at once",
        "force_is_the_last_resort",
        (force_delete, "_stuck_from"),
        lambda _: lambda pod, after: moment(pod.deletion_due),
        ("node-lost-while-deleting",),
    ),
    Mutation(
        "take a program that has ended for a pod that has",
        "converges",
        (cleanup, "holds_node"),
        lambda _: lambda pod: not observed_pods.has_ended(pod),
        ("second-container-never-ends", "second-container-never-ends-after-a-failure"),
    ),
    Mutation(
        "overlook the init container that failed",
        "phases",
        (trim, "_of_another"),
        lambda _: lambda spec, status: None,
        ("init-container-fails",),
    ),
    Mutation(
        "take a pod that waited for its peers in vain for a failure",
        "failures_are_counted_once",
        (trim, "_waited_in_vain"),
        lambda _: lambda *ends: False,
        ("unschedulable-and-fail-policy",),
        at=Strike({2: Fault.PAUSED}),
    ),
)
