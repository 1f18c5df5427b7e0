"""What people ask of a job: that it is suspended, ends in time, expires, fails; and whose objects have its name."""

from __future__ import annotations

from tests.harness.mutations.mutation import Mutation

from tfgpujob.core import reconcile
from tfgpujob.core.policies import finished, refusals, start, start_timeout, suspend
from tfgpujob.core.policies.restart import backoff_limit, failure

MUTATIONS = (
    Mutation(
        "keep the pods of a suspended job",
        "converges",
        (suspend, "_deletes"),
        lambda _: lambda pods: (),
        ("suspended-and-resumed",),
    ),
    Mutation(
        "begin a suspended job",
        "converges",
        (reconcile, "_has_succeeded"),
        lambda _: lambda *of: True,
        ("suspended-from-the-start",),
    ),
    Mutation(
        "never let a finished job expire", "converges", (finished, "expiry"), lambda _: lambda *of: None, ("expires",)
    ),
    Mutation(
        "see to what another controller manages",
        "converges",
        (reconcile, "is_ours"),
        lambda _: lambda job: True,
        ("managed-by-another",),
    ),
    Mutation(
        "let a job run beyond its deadline",
        "converges",
        (finished, "active_deadline"),
        lambda _: lambda *of: None,
        ("active-deadline",),
    ),
    Mutation("spend no budget", "converges", (backoff_limit, "_number"), lambda _: lambda *of: 0, ("budget-spent",)),
    Mutation(
        "try again after a permanent failure",
        "converges",
        (failure, "_cause"),
        lambda _: lambda *of: failure.Cause.RETRYABLE,
        ("permanent-failure",),
    ),
    Mutation(
        "take what others have made for its own",
        "converges",
        (refusals, "_is_foreign"),
        lambda _: lambda *of: False,
        ("foreign-service", "foreign-pod"),
    ),
    Mutation(
        "start over only when asked",
        "converges",
        (start_timeout, "exceeded"),
        lambda _: lambda *of: None,
        ("half-created-too-late",),
    ),
    Mutation(
        "wait after a start that must fail",
        "converges",
        (start, "fails_on_refusal"),
        lambda _: lambda *of: False,
        ("forbidden-and-fail-policy", "unschedulable-and-fail-policy"),
    ),
)
