"""Promises about pods, whichever client created them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from tests.harness.canonical import tf_config, tf_config_text
from tests.harness.history import Change
from tests.harness.leaders import environment
from tests.harness.promises.truth import Truth, attempt_of, replica
from tests.harness.resources import Object

from tfgpujob_contract.variables import Variable


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
        if theirs is not mine and any(mine[task] != theirs[task] for task in mine.keys() & theirs.keys()):
            yield f"{change.object['metadata']['name']} and {other['metadata']['name']}"


def rounds_do_not_mix(change: Change, truth: Truth) -> Iterator[str]:
    """A worker that starts with a gang has the number of workers in the status, and so have all others that started
    with it. A worker that joins later has itself among them."""
    job = truth.job_of(change.object) if change.kind == "Pod" and change.type == "ADDED" else None
    known = None if job is None else _workers(change.object)
    if job is None or known is None:
        return
    name, mine = change.object["metadata"]["name"], attempt_of(change.object)
    if environment(change.object, Variable.RECOVERY_JOINS):
        if int(replica(change.object)[2]) >= known:
            yield f"{name} knows {known} workers"
        return
    if truth.rounds.get(mine):
        yield f"{name} begins a round of its own, beside those that wait"
    status = job.get("status") or {}
    planned = status["plan"]["counts"]["worker"]
    if str(status["attempt"]) == mine[1] and known != planned:
        yield f"{name} knows {known} workers of {planned}"
    for other in truth.server.select("Pod", change.object["metadata"]["namespace"]):
        if attempt_of(other) == mine and not environment(other, Variable.RECOVERY_JOINS) and _workers(other) != known:
            yield f"{name} and {other['metadata']['name']} know {known} and {_workers(other)} workers"


def _workers(pod: Object) -> int | None:
    """How many a pod of a gang that may be resized knows; None for all others."""
    return len(tf_config(pod)["cluster"]["worker"]) if environment(pod, Variable.RECOVERY_RESIZE) else None


def _addresses(pod: Object) -> Mapping[tuple[str, str], str]:
    """Address by (task type, index), from a full TF_CONFIG or a sparse one."""
    return _addresses_in(tf_config_text(pod))


@lru_cache(maxsize=1024)
def _addresses_in(text: str) -> Mapping[tuple[str, str], str]:
    """Read once, though each pod is looked at for each that comes after it."""
    cluster = (json.loads(text) if text else {}).get("cluster") or {}
    found = (
        ((role, str(index)), address)
        for role, tasks in cluster.items()
        for index, address in (tasks.items() if isinstance(tasks, dict) else enumerate(tasks))
    )
    return _one_of_its_kind(tuple(found))


@lru_cache(maxsize=1024)
def _one_of_its_kind(addresses: tuple[tuple[tuple[str, str], str], ...]) -> Mapping[tuple[str, str], str]:
    """Most tasks know the same, and so have the same object."""
    return dict(addresses)
