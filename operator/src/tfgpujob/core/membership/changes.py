"""The members of a job from now on: each change, in the order in which they are tried.

Pure: a change is a value, and core/policies/membership.py executes it. status.plan records what was decided before, so
each decision follows from what is seen now. docs/design/membership.md explains the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tfgpujob.core.membership.deadlines import TRIAL, counts_from, finds_no_node_by, grow_time, shrink_deadline
from tfgpujob.core.membership.seen import Seen
from tfgpujob.core.observed.members import Kind, Limit, Membership, ReplicaId, Resize
from tfgpujob.core.observed.snapshot import Agreed, Event
from tfgpujob.core.pods.in_place import changes_in_place, replaces_lost_pods
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.names import Reason, Role
from tfgpujob.units import counted

TRAINS_ON: Final = "TrainsOn"
JOINED: Final = "Joined"
RESIZED_IN_PLACE: Final = "ResizedInPlace"
"""Reasons of events."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Only the cache says that these pods have no node: they must be looked up first."""

    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """The running attempt has these members."""

    members: Membership
    event: Event | None = None
    resizes: int = 0
    """How many resizes it counts as."""
    leaving: tuple[int, ...] = ()
    """Workers that leave by themselves, because `replicas` was edited."""
    waits: str = ""
    """Why the others wait for lost workers, if they do."""


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the pods of workers with these and higher indexes, which are in no round."""

    beyond: int


@dataclass(frozen=True, slots=True)
class ByAttempt:
    """The next attempt has the number of workers that is wanted now, or by a new limit."""

    why: str
    limit: Limit | None = None


Change = LookUp | Record | Release | ByAttempt


@dataclass(frozen=True, slots=True)
class Row:
    decide: Callable[[Seen], Change | None]
    kinds: Collection[Kind]
    when: str
    then: str


def next_change(rows: Sequence[Row], seen: Seen) -> Change | None:
    """The first change that is due; None: the members stay as they are."""
    if seen.edited or not (seen.spec.elastic or seen.members.spares):
        return None
    mine = (row for row in rows if seen.members.kind in row.kinds)
    changes = (change for row in mine if (change := row.decide(seen)) is not None)
    return next(changes, None)


def grows(seen: Seen) -> bool:
    """True if a job that trains with fewer workers than it requests may get more without an edit or a restart."""
    grows = seen.policy is not None and seen.policy.grow_after_seconds is not None
    return grows and changes_in_place(seen.spec, seen.plan)


def of_next_attempt(seen: Seen, fresh: Membership, *, keeps_limit: bool) -> Membership:
    """`fresh`: as the spec requests. Without the limit, all of these are tried."""
    limit, wanted = seen.members.limit, seen.wanted
    if limit is None or not keeps_limit or wanted >= seen.asked:
        return fresh
    return replace(fresh.resized(wanted), limit=Limit(limit.asked, wanted, timestamp(seen.now)))


def resizable(seen: Seen) -> bool:
    """True if the gang can be resized in place, as far as is known. A resize waits while a lost pod is replaced; then a
    lost leader can't be asked for yet another number."""
    resize, asked = seen.members.resize, seen.observed.ready(seen.members.chief)
    waits = seen.observed.losses > 0 and (resize is None or resize.workers == seen.wanted or asked)
    return (seen.running or waits) and changes_in_place(seen.spec, seen.plan) and not seen.why_not_in_place


def _trains_without(seen: Seen) -> Change | None:
    said, members = seen.said, seen.members
    if not replaces_lost_pods(seen.spec, seen.plan) or not isinstance(said, Agreed):
        return None
    absent = _absent(seen, said.without)
    # The loss for which a spare is used may still have to be counted.
    if absent == members.absent or len(absent) < members.spares:
        return None
    back, changed = [i for i in members.absent if i not in absent], replace(members, absent=absent)
    if lost := sorted(index for index in back if not seen.observed.ready((Role.WORKER, index))):
        text = f"Lost again after it had joined: {_names(seen, lost)}. The others keep their pods, and wait there."
        return Record(changed, Event("Warning", str(Reason.DISRUPTED), text), waits=text)
    if members.spares:
        lost = [index for index in absent if index not in members.absent]
        text = f"In the place of {_names(seen, lost)}: {_names(seen, back)}, which was spare. "
        text += f"All {members.workers} workers train."
    elif absent:
        text = f"{members.workers - len(absent)} of {members.workers} workers train on, without {_names(seen, absent)} "
        text += "until new pods join in their places."
    else:
        text = f"All {members.workers} workers train again."
    return Record(changed, Event("Normal", TRAINS_ON, text))


def _names(seen: Seen, indexes: Iterable[int]) -> str:
    return ", ".join(seen.observed.name((Role.WORKER, index)) for index in indexes)


def _absent(seen: Seen, without: Collection[int]) -> tuple[int, ...]:
    """Workers whose loss is counted, which restarts the replica. If the pod is ready, the leader may not have reported
    yet that it trains."""

    def counts(index: int) -> bool:
        replica = (Role.WORKER, index)
        # A spare is ready, and is in no round.
        joins = seen.observed.ready(replica) and not seen.members.spares
        return index in seen.members.absent or (seen.observed.restart(replica) > 0 and not joins)

    return tuple(sorted(i for i in without if i < seen.members.pods_of(Role.WORKER) and counts(i)))


def _scale(seen: Seen) -> Change | None:
    before, wanted = seen.members.workers, seen.asked
    if before == wanted or not _comes_and_leaves(seen):
        return None
    members, verb = seen.members.resized(wanted), seen.members.verb
    text = f"From {counted(before, 'worker')} to {wanted}: "
    text += f"new ones join the others, which {verb} on." if wanted > before else f"the others {verb} on."
    return Record(
        replace(members, absent=(*members.absent, *range(before, wanted))),
        Event("Normal", RESIZED_IN_PLACE, text),
        resizes=1,
        leaving=tuple(range(wanted, before)),
    )


def _take_in(seen: Seen) -> Change | None:
    members = seen.members
    came = [index for index in members.absent if _has_come(seen, (Role.WORKER, index))]
    if not came or not _comes_and_leaves(seen):
        return None
    absent = tuple(index for index in members.absent if index not in came)
    there = f"{members.workers - len(absent)} of {counted(members.workers, 'worker')} {members.verb}."
    return Record(replace(members, absent=absent), Event("Normal", JOINED, f"{_names(seen, came)} joined: {there}"))


def _has_come(seen: Seen, worker: ReplicaId) -> bool:
    """It has been up for a while: a node on which a program can't start shows by then, and fails no job."""
    if seen.observed.succeeded(worker) or not seen.observed.ready(worker):
        return seen.observed.succeeded(worker)
    due = counts_from(seen.observed.pods[worker])
    # A node's clock that is ahead must not postpone it.
    return due is None or not seen.now < due <= seen.now + TRIAL


def _comes_and_leaves(seen: Seen) -> bool:
    return seen.spec.elastic and seen.placed_alone and seen.created


def _start_without(seen: Seen) -> Change | None:
    found = _without_a_node(seen) if _comes_and_leaves(seen) else None
    if found is None or isinstance(found, LookUp):
        return found
    without = [index for _, index in found]
    fit = f"{_fit_at_start(seen)}, and takes in the others once they have one"
    event = Event("Warning", str(Reason.SHRUNK), _found_no_node(seen, len(without), fit, found[0]))
    return Record(replace(seen.members, absent=tuple(sorted({*seen.members.absent, *without}))), event)


def _start_with_fewer(seen: Seen) -> Change | None:
    settled = seen.members.resize is not None or seen.wanted == seen.members.workers
    found = _without_a_node(seen) if _fits_to_room(seen) and settled else None
    if found is None or isinstance(found, LookUp):
        return found
    fit = _fit_at_start(seen)
    why = _found_no_node(seen, seen.members.workers - fit, str(fit), found[0])
    return ByAttempt(why, Limit(seen.asked, fit, timestamp(seen.now)))


def _without_a_node(seen: Seen) -> LookUp | list[ReplicaId] | None:
    """At a start: the workers that were not scheduled in time, if enough others were."""
    due = shrink_deadline(seen)
    if seen.running or due is None or seen.now < due or seen.observed.required_missing():
        return None
    without = [replica for replica, _ in seen.observed.waiting_for_a_node()]
    if any(role is not Role.WORKER for role, _ in without):
        return None
    if _fit_at_start(seen) < seen.spec.replica_specs.least_workers:
        return None
    return LookUp(unconfirmed) if (unconfirmed := seen.unconfirmed(without)) else without


def _fit_at_start(seen: Seen) -> int:
    return sum(seen.has_node((Role.WORKER, index)) for index in range(seen.members.workers))


def _found_no_node(seen: Seen, count: int, fit: str, first: ReplicaId) -> str:
    policy, pod = seen.policy, seen.observed.pods[first]
    assert policy is not None, "no deadline passes without it"
    why = f"{pod.name}: {pod.waiting_message or pod.waiting_reason or 'no scheduler has looked at it'}"
    within = (
        f"{counted(count, 'worker')} of {seen.members.workers} found no node within {policy.shrink_after_seconds} s"
    )
    return f"{within}: it goes on with {fit}. {why}"


def _fits_to_room(seen: Seen) -> bool:
    """Kueue and gang schedulers place all pods or none."""
    return seen.policy is not None and seen.spec.elastic and seen.placed_alone


def _try_all(seen: Seen) -> Change | None:
    limit = seen.members.limit
    if limit is None or (_fits_to_room(seen) and limit.asked == seen.asked):
        return None
    return Record(replace(seen.members, limit=None))


def _join_with_fewer(seen: Seen) -> Change | None:
    resize, growing, due = seen.members.resize, seen.members.growing, shrink_deadline(seen)
    fit = _fit(seen)
    if resize is None or resize.workers != seen.wanted or fit == len(growing) or due is None or seen.now < due:
        return None
    if not _fits_to_room(seen) or not resizable(seen):
        return None
    if unconfirmed := seen.unconfirmed(growing[fit:]):
        return LookUp(unconfirmed)
    return _begin(_limited(seen, fit))


def _probe(seen: Seen) -> Change | None:
    """Pods have the lowest indexes, so one is tried at a time."""
    limit, due = seen.members.limit, grow_time(seen)
    if limit is None or due is None or not _looks_for_room(seen):
        return None
    probed = max(limit.probe, seen.members.workers)
    due_for_more = seen.now >= due if not seen.members.growing else probed < limit.asked
    if not due_for_more or _fit(seen) < len(seen.members.growing):
        return None
    return Record(replace(seen.members, limit=replace(limit, probe=probed + 1)))


def _join_those_that_fit(seen: Seen) -> Change | None:
    fit, growing = _fit(seen), seen.members.growing
    if not fit or not _looks_for_room(seen):
        return None
    none_for_the_next = fit == len(growing) or _finds_none(seen, growing[fit])
    return _begin(_limited(seen, fit)) if none_for_the_next else None


def _looks_for_room(seen: Seen) -> bool:
    members, limit = seen.members, seen.members.limit
    limited = limit is not None and limit.workers == members.workers and grow_time(seen) is not None
    # The replacement of a lost worker looks for capacity already.
    settled = members.resize is None and not members.absent
    return limited and settled and seen.running and _fits_to_room(seen) and resizable(seen)


def _limited(seen: Seen, more: int) -> Seen:
    """With the limit by which this many additional workers are to join."""
    before, limit = seen.members, seen.members.limit
    since = limit.since if limit is not None else timestamp(seen.now)
    return seen.with_members(replace(before, limit=Limit(seen.asked, before.workers + more, since)))


def _fit(seen: Seen) -> int:
    """How many of those that are to join are scheduled, from the first on: workers of a gang have the lowest
    indexes.
    """
    without = (number for number, replica in enumerate(seen.members.growing) if not seen.has_node(replica))
    return next(without, len(seen.members.growing))


def _finds_none(seen: Seen, replica: ReplicaId) -> bool:
    """The scheduler has reported it, or reports nothing; or the API server refuses the pod."""
    pod = seen.observed.pods.get(replica)
    if pod is None:
        return seen.observed.name(replica) in seen.builder.refused
    until = finds_no_node_by(pod)
    return bool(pod.waiting_reason) or until is None or seen.now >= until


def _release_surplus(seen: Seen) -> Change | None:
    settled = seen.members.resize is None and seen.members.workers == seen.wanted
    return _release(seen, seen.members.workers) if seen.spec.elastic and settled else None


def _release(seen: Seen, beyond: int) -> Release | None:
    there = any(pod.index >= beyond and not pod.deleting for pod in seen.observed.surplus)
    return Release(beyond) if there else None


def _resize(seen: Seen) -> Change | None:
    resize = seen.members.resize
    under_way = seen.members.workers if resize is None else resize.workers
    return _begin(seen) if seen.spec.elastic and under_way != seen.wanted and resizable(seen) else None


def _begin(seen: Seen) -> Record:
    """The intent to change to the wanted number of workers."""
    before, resize, wanted = seen.members.workers, seen.members.resize, seen.wanted
    begun = Resize(
        workers=wanted,
        least=min(wanted, before, resize.least if resize is not None else before),
        generation=seen.builder.generation,
        since=resize.since if resize is not None else timestamp(seen.now),
    )
    return Record(replace(seen.members, resize=begun))


def _end(seen: Seen) -> Change | None:
    said, members, resize = _agreed(seen), seen.members, seen.members.resize
    if said is None or resize is None:
        return None
    # Fewer than before: workers that have left don't come back, whatever is wanted now. New pods replace them.
    if said.workers != resize.workers and said.workers >= members.workers:
        return None
    before, limit = members.workers, members.limit
    still = replace(limit, since=timestamp(seen.now)) if limit is not None and said.workers < limit.asked else None
    # A leader that has replaced another may have begun without those that were to join.
    absent = {*members.absent, *(index for index in said.without if index >= before)}
    changed = replace(members, limit=still, absent=tuple(sorted(absent))).resized(said.workers)
    if said.workers == before:
        return Record(changed)
    seconds = max(0, int((seen.now - moment(resize.since)).total_seconds()))
    text = f"From {counted(before, 'worker')} to {said.workers} in {seconds} s: the pods that stay were not touched."
    text += f" There was no room for all {still.asked} that replicas asks for." if still is not None else ""
    return Record(changed, Event("Normal", RESIZED_IN_PLACE, text), resizes=1)


def _release_who_left(seen: Seen) -> Change | None:
    said, resize = _agreed(seen), seen.members.resize
    return _release(seen, max(said.workers, resize.workers)) if said is not None and resize is not None else None


def _agreed(seen: Seen) -> Agreed | None:
    return seen.agreement if seen.spec.elastic and resizable(seen) else None


def _by_attempt(seen: Seen) -> Change | None:
    before, wanted, refused = seen.members.workers, seen.wanted, seen.why_not_in_place
    kueue = seen.plan.queue and seen.config.kueue is not None
    if not seen.spec.elastic or (before == wanted and seen.members.resize is None) or kueue or resizable(seen):
        return None
    saved = "what is written stays" if seen.spec.predicts else "all save a checkpoint, and go on from it"
    why = f" Not in place: {refused}." if refused else ""
    return ByAttempt(f"From {counted(before, 'worker')} to {wanted}: {saved}.{why}")


_ANY: Final = tuple(Kind)
_GANG: Final = (Kind.GANG,)
_INDEPENDENT: Final = (Kind.BESIDE_SERVERS, Kind.SHARED_PARTS)
ADJUST: Final = (
    Row(_trains_without, _GANG, "its leader trains without workers whose loss is counted, or with one of them "
        "again", "record these as absent; a worker that has joined and is lost again is waited for"),
    Row(_scale, _INDEPENDENT, "`replicas` was edited", "record the number: pods are created or deleted by it"),
    Row(_take_in, _INDEPENDENT, "a worker has been up for 60 s", "the job needs it from now on"),
    Row(_start_without, _INDEPENDENT, "a start: some have no node after shrinkAfterSeconds, minReplicas or more "
        "have one", "begin with these; the others join when they have a node"),
    Row(_try_all, _GANG, "it is limited, and `replicas` or the policy was edited", "forget the limit"),
    Row(_start_with_fewer, _GANG, "a start: some have no node after shrinkAfterSeconds, minReplicas or more have "
        "one", "the next attempt has as many as have a node: those that were created know another TF_CONFIG"),
    Row(_join_with_fewer, _GANG, "a resize: a worker that is to join has no node after shrinkAfterSeconds",
        "the workers before it join without it"),
    Row(_probe, _GANG, "it is limited: growAfterSeconds have passed, and all pods that look for room have a node",
        "create one pod more, which looks for room"),
    Row(_join_those_that_fit, _GANG, "it is limited: pods that look for room have a node, and the next one "
        "finds none or is not asked for",
        "resize by those that have one"),
)  # fmt: skip
RESIZE: Final = (
    Row(_release_surplus, _ANY, "no resize is under way, and pods are left over", "delete them"),
    Row(_resize, _GANG, "another number of workers is wanted, and the gang can be resized in place",
        "record it: the leader is asked for it"),
    Row(_end, _GANG, "the round that runs has the number, or fewer than before", "the gang has that number"),
    Row(_release_who_left, _GANG, "the leader agrees: workers train no more", "delete their pods"),
    Row(_by_attempt, _ANY, "another number of workers is wanted, or a resize is under way, and it can't be in "
        "place", "the next attempt has that number, from a checkpoint"),
)  # fmt: skip
"""Before and after the deadlines of a start, and edits, are looked at."""
