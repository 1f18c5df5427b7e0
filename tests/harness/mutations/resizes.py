"""A resize in place: what the operator does before and after the leader's decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.harness.mutations.mutation import Mutation, instead, without_intent

from tfgpujob.core.membership import leader
from tfgpujob.core.membership.seen import Seen
from tfgpujob.core.observed.members import Membership
from tfgpujob.core.observed.snapshot import Agreed, Create, Kind, Outcome
from tfgpujob.core.pods import pod
from tfgpujob.core.policies import ensure_pods, membership, success
from tfgpujob.names import Role


def _ahead_of_the_leader(real: Any) -> Any:
    def broken(seen: Any) -> Any:
        wanted = seen.members.resize and seen.members.resize.workers
        return Agreed(wanted, wanted) if wanted else None

    return property(broken)


def _whoever_answered(real: Any) -> Any:
    def broken(seen: Any) -> Any:
        answer = seen.snapshot.leader_answer
        return answer.said if answer is not None and answer.question == seen.observed.question else None

    return property(broken)


@instead
def _joins_before_word(real: Any, ctx: Any, change: Any) -> Outcome:
    outcome: Outcome = real(ctx, change)
    if change.members.joining == ctx.members.joining:
        return outcome
    new = ctx.with_members(change.members)
    replicas = (ensure_pods._replica(new, replica) for replica in new.members.joining)
    creates = tuple(Create(Kind.POD, pod.build_pod(ctx.job, ctx.spec, new.plan, one)) for one in replicas)
    return replace(outcome, intent=None, creates=creates)


def _all_required(real: Any) -> Any:
    return property(lambda members: tuple(replica for replica in members.pods if replica[0] is not Role.EVALUATOR))


@instead
def _the_last_decides(real: Any, spec: Any, observed: Any) -> Any:
    return observed.members.required


def _what_stands_beside_it(real: Any) -> Any:
    return lambda job: job.get("spec")


MUTATIONS = (
    Mutation(
        "delete workers before they have left",
        "resizes_delete_nobody_who_trains",
        (Seen, "agreement"),
        _ahead_of_the_leader,
        ("resized_in_place_down",),
    ),
    Mutation(
        "believe a leader that was replaced",
        "converges",
        (Seen, "said"),
        _whoever_answered,
        ("resized_in_place_once_the_leader_that_refused_is_replaced",),
    ),
    Mutation(
        "delete workers before the status has fewer",
        "deletes_follow_persisted_intent",
        (membership, "_record"),
        without_intent,
        ("resized_in_place_down",),
    ),
    Mutation(
        "create workers before the status has more",
        "creates_follow_persisted_intent",
        (membership, "_record"),
        _joins_before_word,
        ("resized_in_place_up",),
    ),
    Mutation(
        "take a worker that is to join for a lost one",
        "failures_are_counted_once",
        (Membership, "required"),
        _all_required,
        ("resized_in_place_up",),
    ),
    Mutation(
        "take a worker that has left for a failed one",
        "converges",
        (Membership, "doubtful"),
        lambda _: property(lambda _: ()),
        ("resized_in_place_down",),
    ),
    Mutation(
        "take a worker that leaves for the one that comes after it",
        "converges",
        (membership, "_record_that_they_leave"),
        lambda _: lambda ctx, indexes: None,
        ("workers_go_and_come_beside_servers",),
    ),
    Mutation(
        "take a worker that has not come yet for a lost one",
        "failures_are_counted_once",
        (Membership, "required"),
        _all_required,
        ("workers_come_beside_servers",),
    ),
    Mutation(
        "take a worker that leaves for the one that comes after it, where they predict",
        "converges",
        (membership, "_record_that_they_leave"),
        lambda _: lambda ctx, indexes: None,
        ("workers_go_and_come_where_they_predict",),
    ),
    Mutation(
        "wait for all workers where the first one finds all done",
        "converges",
        (success, "deciders"),
        _the_last_decides,
        ("all_is_predicted_while_a_lost_worker_waits_for_a_node",),
    ),
    Mutation(
        "create workers beside servers before the status has more",
        "creates_follow_persisted_intent",
        (membership, "_record"),
        _joins_before_word,
        ("workers_come_beside_servers",),
    ),
    Mutation(
        "read of a large spec only what is kept beside it",
        "converges",
        (leader, "spec_of"),
        _what_stands_beside_it,
        ("trains_on_without_an_evicted_worker",),
    ),
)
