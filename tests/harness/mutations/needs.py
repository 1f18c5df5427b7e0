"""What a job has beside its pods: a NetworkPolicy, a pod group, claims, a place in a queue."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.harness.driver import Strike
from tests.harness.feed import Sight
from tests.harness.mutations.mutation import Mutation, instead

from tfgpujob.api import ReplicaSpec
from tfgpujob.core import reconcile
from tfgpujob.core.observed import admission
from tfgpujob.core.observed.snapshot import Create, Object, Outcome, Snapshot
from tfgpujob.core.policies import ensure_pods, finished, kueue
from tfgpujob.shell import apply


@instead
def _claims_by_attempt(real: Any, ctx: Any, replica: Any) -> Create:
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


@instead
def _anybodys(real: Any, snapshot: Snapshot) -> Any:
    return snapshot.workload


async def _ensures_nothing(self: Any, key: Any, job: Object, create: Create) -> None:
    return None


@instead
def _any_pod_sets(real: Any, snapshot: Snapshot, spec: Any) -> Any:
    return admission.own_workload(snapshot)


def _all_at_once(real: Any) -> Any:
    return property(lambda self: (self.creates,))


MUTATIONS = (
    Mutation(
        "create the NetworkPolicy beside the pods",
        "isolation_comes_before_pods",
        (Outcome, "stages"),
        _all_at_once,
        ("isolated",),
    ),
    Mutation(
        "create the pod group beside the pods", "gang_comes_before_pods", (Outcome, "stages"), _all_at_once, ("gang",)
    ),
    Mutation(
        "keep a finished job's pod group",
        "orphans",
        (finished, "delete_pod_groups"),
        lambda _: lambda *of: (),
        ("gang",),
    ),
    Mutation(
        "create a pod without its claims",
        "claims_come_before_pods",
        (apply.ObjectWriter, "_ensure"),
        lambda _: _ensures_nothing,
        ("claims", "device-claim"),
    ),
    Mutation(
        "give each attempt other claims",
        "claims_stay_the_replicas",
        (ensure_pods, "_build_pod"),
        _claims_by_attempt,
        ("claims",),
    ),
    Mutation(
        "let claims go that are to be kept",
        "only_claims_that_are_to_go_have_an_owner",
        (ReplicaSpec, "owns_claims"),
        lambda _: property(lambda replica: True),
        ("claims",),
    ),
    Mutation(
        "begin before the admission",
        "admission_comes_before_pods",
        (kueue, "wait_for_admission"),
        lambda _: lambda *of: None,
        ("queued",),
    ),
    Mutation(
        "give quota back while pods stop",
        "quota_goes_after_pods",
        (kueue, "own_pods"),
        lambda _: lambda *of: (),
        ("queued-evicted",),
        ((kueue, "_not_looked_up"), lambda _: lambda *of: ()),
    ),
    Mutation(
        "delete a Workload while pods stop",
        "quota_goes_after_pods",
        (kueue, "_all_pods"),
        lambda _: lambda snapshot: (),
        ("queued-suspended",),
        ((kueue, "_not_looked_up"), lambda _: lambda *of: ()),
    ),
    Mutation(
        "finish before the last pod",
        "quota_goes_after_pods",
        (kueue, "holds_node"),
        lambda _: lambda pod: False,
        ("queued-with-servers",),
    ),
    Mutation(
        "take an earlier job's Workload",
        "admission_comes_before_pods",
        (admission, "own_workload"),
        _anybodys,
        ("queued-again",),
        at=Strike(events={17: Sight.DROPPED}),
    ),
    Mutation(
        "take an earlier spec's Workload",
        "admission_comes_before_pods",
        (kueue, "_current"),
        _any_pod_sets,
        ("queued-edited",),
    ),
    Mutation(
        "run what MultiKueue runs elsewhere here too",
        "converges",
        (reconcile, "is_dispatched"),
        lambda _: lambda job: False,
        ("queued-elsewhere",),
        ((reconcile, "is_ours"), lambda _: lambda job: True),
    ),
    Mutation(
        "write over MultiKueue's copy of the status",
        "converges",
        (admission, "is_elsewhere"),
        lambda _: lambda held: False,
        ("queued-elsewhere-evicted",),
    ),
    Mutation(
        "give the quota back while pods stop in another cluster",
        "quota_goes_after_pods",
        (kueue, "_stopped_elsewhere"),
        lambda _: lambda held, builder: None,
        ("queued-elsewhere-evicted",),
    ),
    Mutation(
        "make a Workload beside the one that MultiKueue has sent",
        "converges",
        (admission, "prebuilt_name"),
        lambda _: lambda job: "",
        ("queued-elsewhere",),
    ),
)
