"""Twenty bugs, planted from the product's code alone. The list was committed before the first was run, and is not
changed afterwards: docs/proof.md says how many were caught at first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tfgpujob.core.membership import changes
from tfgpujob.core.policies import begin_attempt, finished, force_delete, kueue, refusals, start, suspend
from tfgpujob.core.policies.context import delete_pods
from tfgpujob.core.policies.restart import backoff_limit, failure, in_place
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.shell import leader_election, store
from tfgpujob.shell.leader_election import LeaderElector
from tfgpujob.shell.worker import Worker
from tfgpujob.shell.workqueue import WorkQueue


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    where: tuple[Any, str]
    bug: Callable[[Any], Any]


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def _by_name_alone(real: Any) -> Any:
    return lambda *of: _Equal() if real(*of) is not None else None


def _unchecked(real: Any) -> Any:
    async def broken(self: Any, key: Any, outcome: Any, written: Any) -> Any:
        return await real(self, key, replace(outcome, certain=False), written)

    return broken


def _the_last_one(real: Any) -> Any:
    def broken(self: Any, key: Any, now: Any, *due: Any) -> None:
        real(self, key, now, max((at for at in due if at is not None), default=None))

    return broken


def _not_again(real: Any) -> Any:
    def broken(self: Any, key: Any) -> None:
        self._dirty.discard(key)
        real(self, key)

    return broken


def _one_more(real: Any) -> Any:
    return lambda builder, limit, *more: real(builder, limit + 1, *more)


def _the_totals_too(real: Any) -> Any:
    def broken(builder: Any) -> None:
        before = builder.fields.get("consecutiveFailures")
        real(builder)
        if before and not builder.fields.get("consecutiveFailures"):
            builder.put("restarts", 0)

    return broken


def _by_time_alone(real: Any) -> Any:
    return lambda found: (found.is_peer_failure, not found.finished_at, found.finished_at, found.name)


def _from_the_first_start(real: Any) -> Any:
    def broken(self: Any, field: str, value: Any) -> None:
        if field != "startTime" or value is not None:
            real(self, field, value)

    return broken


def _beyond_the_last_pods_count(real: Any) -> Any:
    def broken(builder: Any, observed: Any, snapshot: Any, *, servers: bool) -> Any:
        pod, known = in_place._pod(observed, snapshot, observed.members.chief), builder.fields.get("progress") or {}
        if pod is not None and "inPlacePodUID" in known:
            builder.put("progress", {**known, "inPlacePodUID": pod.uid})
        return real(builder, observed, snapshot, servers=servers)

    return broken


def _as_if_it_had_led(real: Any) -> Any:
    async def broken(self: Any) -> Any:
        acquired = await real(self)
        self.took_over = False
        return acquired

    return broken


def _the_last_edit_alone(real: Any) -> Any:
    def broken(seen: Any) -> Any:
        record = real(seen)
        resize = record.members.resize
        least = min(resize.workers, seen.members.workers)
        return replace(record, members=replace(record.members, resize=replace(resize, least=least)))

    return broken


def _as_at_first(real: Any) -> Any:
    def broken(builder: Any, found: Any) -> Any:
        kept = builder.fields.get("retry")
        builder.put("retry", {**(kept or {}), "refusals": 0})
        try:
            return real(builder, found)
        finally:
            builder.put("retry", kept)

    return broken


LIST = (
    Planted("a deletion removes whatever has the name from the cache", (store, "_uid_of"), _by_name_alone),
    Planted("versions of objects are compared as texts", (store, "_newer"), lambda _: lambda held, new: new > held),
    Planted("deletes of current pods are not checked against the job as it is now", (Worker, "_apply"), _unchecked),
    Planted("a job is requeued at the last of its deadlines", (Worker, "_requeue"), _the_last_one),
    Planted("a change during a reconciliation is forgotten", (WorkQueue, "done"), _not_again),
    Planted("a job restarts once more than backoffLimit allows", (backoff_limit, "count_restart"), _one_more),
    Planted("ten minutes of running give back spent restarts", (backoff_limit, "_reset_if_stable"), _the_totals_too),
    Planted("the first failure is the cause, even of an eviction", (failure, "_rank"), _by_time_alone),
    Planted(
        "an emptied status makes an attempt begin with a number that its pods have",
        (begin_attempt, "_skip_used_attempt_numbers"),
        lambda _: lambda snapshot, builder: None,
    ),
    Planted(
        "a suspension stops the servers together with the chief that saves",
        (suspend, "_deletes"),
        lambda _: delete_pods,
    ),
    Planted(
        "a terminal status counts the pods that are about to be deleted",
        (finished, "uncount"),
        lambda _: lambda builder, snapshot, deletes: None,
    ),
    Planted(
        "pods that terminate slowly are force-deleted on nodes that are ready",
        (force_delete, "_is_unattended"),
        lambda _: lambda pod, snapshot: bool(pod.owner_uid and pod.deletion_due),
    ),
    Planted("activeDeadlineSeconds includes the suspension", (StatusBuilder, "put"), _from_the_first_start),
    Planted(
        "the restarts in place of a new pod count beyond those of the one before",
        (in_place, "_gang"),
        _beyond_the_last_pods_count,
    ),
    Planted("a leader leads for longer than its Lease", (leader_election, "RENEW_DEADLINE"), lambda _: 20.0),
    Planted("a new leader writes by its old cache", (LeaderElector, "_try_acquire"), _as_if_it_had_led),
    Planted(
        "quota is given back while a pod that is not in the cache may use it",
        (kueue, "_not_looked_up"),
        lambda _: lambda snapshot, status: (),
    ),
    Planted("a second edit forgets how few the first one asked for", (changes, "_begin"), _the_last_edit_alone),
    Planted("a pod that a webhook refuses waits for an edit", (refusals, "_ADMISSION"), lambda _: ()),
    Planted("the wait after refusals does not grow", (start, "_next_try"), _as_at_first),
)
