"""What catches each bug of the list in from_code.py: the promise, and the scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.harness.mutations.from_code import LIST
from tests.harness.mutations.mutation import Mutation

CAUGHT_BY: Final[Mapping[str, tuple[str, str]]] = {
    "a deletion removes whatever has the name from the cache": ("phases", "recreated"),
    "versions of objects are compared as texts": ("phases", "one-device"),
    "a job is requeued at the last of its deadlines": ("converges", "its-evaluator-ends-first"),
    "a change during a reconciliation is forgotten": ("phases", "queued-edited"),
    "a job restarts once more than backoffLimit allows": ("converges", "budget-spent"),
    "ten minutes of running give back spent restarts": ("converges", "fails-again-after-a-long-run"),
    "the first failure is the cause, even of an eviction": ("phases", "evicted-as-another-fails"),
    "an emptied status makes an attempt begin with a number that its pods have": ("phases", "its-status-is-emptied"),
    "a suspension stops the servers together with the chief that saves": (
        "servers_stay_while_their_chief_saves",
        "suspended-parameter-server",
    ),
    "a terminal status counts the pods that are about to be deleted": (
        "the_end_counts_no_pod_that_goes",
        "active-deadline",
    ),
    "pods that terminate slowly are force-deleted on nodes that are ready": (
        "force_is_the_last_resort",
        "stops-slowly-on-a-node-that-is-ready",
    ),
    "activeDeadlineSeconds includes the suspension": ("phases", "suspended-for-longer-than-its-deadline"),
    "the restarts in place of a new pod count beyond those of the one before": ("converges", "servers-in-place"),
    "a leader leads for longer than its Lease": ("one_leader", "leader-hears-late"),
    "a second edit forgets how few the first one asked for": ("converges", "resized_in_place_far_down_and_up"),
    "a pod that a webhook refuses waits for an edit": ("phases", "denied-by-a-webhook-then-allowed"),
    "the wait after refusals does not grow": ("over_and_over", "gpu-quota-for-ever"),
}
"""The others get away: docs/proof.md says why."""

MUTATIONS: Sequence[Mutation] = tuple(
    Mutation(planted.name, promise, planted.where, planted.bug, (scenario,))
    for planted in LIST
    if (found := CAUGHT_BY.get(planted.name)) is not None
    for promise, scenario in (found,)
)
