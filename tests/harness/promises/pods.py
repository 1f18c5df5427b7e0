"""What holds of pods, whoever made them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.canonical import tf_config
from tests.harness.history import Change
from tests.harness.promises.truth import Truth, attempt_of, replica
from tests.harness.resources import Object


def one_object_per_replica(change: Change, truth: Truth) -> Iterator[str]:
    """Never two pod objects for one (job uid, role, index)."""
    if change.type != "ADDED":
        return
    mine = replica(change.object)
    twins = [p for p in truth.server.select("Pod") if mine[0] and replica(p) == mine]
    if len(twins) > 1:
        yield f"{[p['metadata']['name'] for p in twins]} are both {mine[1:]}"


def addresses_agree(change: Change, truth: Truth) -> Iterator[str]:
    """In an attempt, all tasks agree on every address that they both know."""
    if change.type != "ADDED":
        return
    mine = _addresses(change.object)
    for other in truth.server.select("Pod", change.object["metadata"]["namespace"]):
        if attempt_of(other) != attempt_of(change.object):
            continue
        theirs = _addresses(other)
        if any(mine[task] != theirs[task] for task in mine.keys() & theirs.keys()):
            yield f"{change.object['metadata']['name']} and {other['metadata']['name']}"


def _addresses(pod: Object) -> dict[tuple[str, str], str]:
    """Address by (task type, index), from a full TF_CONFIG or a sparse one."""
    cluster = tf_config(pod).get("cluster") or {}
    return {
        (role, str(index)): address
        for role, tasks in cluster.items()
        for index, address in (tasks.items() if isinstance(tasks, dict) else enumerate(tasks))
    }
