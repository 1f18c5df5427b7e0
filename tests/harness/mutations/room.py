"""runPolicy.elasticPolicy: what is done about workers for which there is no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.harness.mutations.mutation import Mutation, instead, without_intent

from tfgpujob.core.membership import changes
from tfgpujob.core.membership.seen import Seen
from tfgpujob.core.observed.members import Membership
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Create, Kind, Outcome
from tfgpujob.core.pods import pod
from tfgpujob.core.policies import ensure_pods, membership, start
from tfgpujob.core.policies.restart import gang


@instead
def _in_the_same_attempt(real: Any, builder: Any, plan: Plan, **more: Any) -> None:
    attempt = builder.attempt
    real(builder, plan, **more)
    builder.put("attempt", attempt if plan.members.limit is not None else builder.attempt)


@instead
def _probes_before_word(real: Any, ctx: Any, change: Any) -> Outcome:
    outcome: Outcome = real(ctx, change)
    if change.members.limit is None or not change.members.limit.probe:
        return outcome
    new = ctx.with_members(change.members)
    one = ensure_pods._replica(new, new.members.growing[-1])
    probe = Create(Kind.POD, pod.build_pod(ctx.job, ctx.spec, new.plan, one))
    return replace(outcome, intent=None, creates=(probe,))


@instead
def _never_joins(real: Any, ctx: Any, replica: Any) -> Any:
    return replace(real(ctx, replica), joins=False)


@instead
def _lost_before_word(real: Any, ctx: Any, found: Any) -> Outcome | None:
    outcome: Outcome | None = real(ctx, found)
    return replace(outcome, intent=None) if outcome is not None else None


@instead
def _begin_with_the_gang(real: Any, ctx: Any, replica: Any) -> Any:
    found = real(ctx, replica)
    return replace(found, joins=found.joins and found.restart > 0)


MUTATIONS = (
    Mutation(
        "let a spare begin with the gang",
        "rounds_do_not_mix",
        (ensure_pods, "_replica"),
        _begin_with_the_gang,
        ("a_spare_takes_the_place_of_an_evicted_worker",),
    ),
    Mutation(
        "require spares",
        "spares_stay_spare",
        (Membership, "of_new_attempt"),
        lambda real: lambda members: replace(real(members), absent=()),
        ("a_spare_takes_the_place_of_an_evicted_worker",),
    ),
    Mutation(
        "take whoever is a spare now for one that trains",
        "converges",
        (changes, "_absent"),
        lambda real: lambda seen, without: tuple(i for i in real(seen, without) if not seen.members.spares or i > 1),
        ("a_spare_takes_the_place_of_an_evicted_worker",),
    ),
    Mutation(
        "delete a lost worker's pod before the status says so",
        "deletes_follow_persisted_intent",
        (gang, "replace_lost"),
        _lost_before_word,
        ("trains_on_without_an_evicted_worker",),
    ),
    Mutation(
        "go on without whoever has come in the place of a lost worker",
        "rounds_do_not_mix",
        (ensure_pods, "_replaces_member"),
        lambda _: lambda ctx, replica: False,
        ("replaces_a_lost_worker",),
    ),
    Mutation(
        "let the leader's new pod begin a gang of its own",
        "rounds_do_not_mix",
        (ensure_pods, "_replaces_member"),
        lambda real: lambda ctx, replica: replica != ctx.members.chief and real(ctx, replica),
        ("replaces_worker-0_of_a_rigid_gang_vanished",),
    ),
    Mutation(
        "take those for stopped who train on without a lost worker",
        "converges",
        (changes, "_absent"),
        lambda _: lambda seen, without: (),
        ("trains_on_without_an_evicted_worker",),
    ),
    Mutation(
        "never require a worker again that was lost once",
        "converges",
        (changes, "_absent"),
        lambda real: lambda seen, without: tuple(sorted({*seen.members.absent, *real(seen, without)})),
        ("trains_on_without_an_evicted_worker",),
    ),
    Mutation(
        "stop pods that wait for room before the status has fewer",
        "deletes_follow_persisted_intent",
        (membership, "_start_with_fewer"),
        without_intent,
        ("starts_with_what_fits",),
    ),
    Mutation(
        "begin with fewer workers in pods that know of more",
        "resizes_delete_nobody_who_trains",
        (start, "next_attempt"),
        _in_the_same_attempt,
        ("shrinks_after_a_loss",),
    ),
    Mutation(
        "look for room before the status says so",
        "creates_follow_persisted_intent",
        (membership, "_record"),
        _probes_before_word,
        ("grows_into_the_room_that_appears",),
    ),
    Mutation(
        "take who looks for room for a member of the gang",
        "rounds_do_not_mix",
        (ensure_pods, "_replica"),
        _never_joins,
        ("grows_into_the_room_that_appears",),
    ),
    Mutation(
        "wait for workers that have no node",
        "converges",
        (Seen, "has_node"),
        lambda _: lambda seen, replica: replica in seen.observed.pods,
        ("grows_into_the_room_that_appears",),
    ),
)
